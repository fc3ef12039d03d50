"""Scales and codes of blocks on tensors: by a `GroupAlgorithm`, or by rules that use every number.

These rules are QuEST, Four Over Six and EDEN, with the bits of `mcfsim.scaled.rules` and
`mcfsim.scaled.searched_scales`. Blocks are summed in the order of those modules. Nothing is divided by a
Python number, as a device would multiply by its reciprocal. Codes of groups are those of
`mcfsim.compile.group_loops`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from operator import add
from typing import Any, NamedTuple

import torch

from mcfsim.compile.group_algorithm import GroupAlgorithm, GroupLine, Warps, halved
from mcfsim.compile.torch_calls import TorchCalls, root, scalar
from mcfsim.formats import Format
from mcfsim.kernels.element.floats import NAN, SHORT
from mcfsim.kernels.element.machine import F32, F64, I32, I64, Line
from mcfsim.kernels.element.operations import Into, change_element
from mcfsim.rounding import Rounding
from mcfsim.scaled import ScaledFormat
from mcfsim.scaled.block_views import BlockViews
from mcfsim.scaled.float32_rules import Float32Algorithm
from mcfsim.scaled.rules import SATURATING, clips_by_deviation, exponents
from mcfsim.scaled.searched_scales import ElementErrors, Quotients

#: The bits of the exponent of a binary32 number.
_EXPONENT = 0x7F800000


class AlgorithmCalls:
    """The line of an algorithm as calls: measures, shared numbers, elements, and decoded numbers."""

    def __init__(self, algorithm: GroupAlgorithm) -> None:
        self._algorithm, self._line = algorithm, GroupLine(algorithm)
        line = self._line
        self._given = [line.x, *line.shared, *line.numbers, *line.word]

    @cached_property
    def measure(self) -> TorchCalls:
        """The measure of each number."""
        return TorchCalls([self._line.measured], [self._line.x])

    @cached_property
    def share(self) -> TorchCalls:
        """The shared numbers of blocks, from greatest measures, least magnitudes, and numbers of all."""
        return TorchCalls(self._line.made, [self._line.greatest, *self._line.least, *self._line.numbers])

    @cached_property
    def lesser(self) -> TorchCalls:
        """The lesser of two magnitudes, as a thread finds it."""
        return TorchCalls(self._line.lesser, [*self._line.least, *self._line.other])

    @cached_property
    def encode(self) -> TorchCalls:
        """The elements, from numbers, shared numbers, numbers of all blocks, and words."""
        return TorchCalls([self._line.encoded], self._given)

    @cached_property
    def decode(self) -> TorchCalls:
        """What elements stand for."""
        line = self._line
        return TorchCalls([line.decoded], [line.code, *line.shared, *line.numbers])

    @cached_property
    def through(self) -> TorchCalls:
        """Numbers encoded as elements, and decoded again."""
        line = self._line
        return TorchCalls([self._algorithm.decoded(line.encoded, *line.shared, *line.numbers)], self._given)


@lru_cache(maxsize=128)
def algorithm_calls(algorithm: GroupAlgorithm) -> AlgorithmCalls:
    """Return the calls of an algorithm, recorded once."""
    return AlgorithmCalls(algorithm)


def _sums(x: torch.Tensor) -> torch.Tensor:
    """Return sums along the last axis by halving."""
    length = x.shape[-1]
    missing = (1 << max(length - 1, 0).bit_length()) - length
    made: torch.Tensor = halved(torch.nn.functional.pad(x, (0, missing)) if missing else x, add)[..., 0]
    return made


# -- QuEST ------------------------------------------------------------------------------------------------
def scales_by_deviation(part: torch.Tensor, fmt: ScaledFormat) -> torch.Tensor:
    """Return the scale of each block along the last axis by the rule ``quest``."""
    clip = clips_by_deviation(part, part.new_tensor(float(part.shape[-1])), fmt, _sums, root)
    _, lowest, highest = exponents(fmt)
    power = (clip.view(torch.int32) & _EXPONENT).view(torch.float32).clip(2.0**lowest, 2.0**highest)
    scale = torch.where(clip.isfinite(), power, 2.0**highest)
    return torch.where(part.isfinite().all(-1), scale, NAN)


def inside_of_deviation(x: torch.Tensor, fmt: ScaledFormat) -> torch.Tensor:
    """Return where the rule ``quest`` clips nothing along the last axis, as `mcfsim.scaled.Scaled.inside`."""
    views = BlockViews(tuple(x.shape), fmt.block, x.ndim - 1)
    found = torch.empty(x.shape, dtype=torch.bool, device=x.device)
    parts: Any = views.parts(x)
    targets: Any = views.parts(found)
    for part, target in zip(parts, targets, strict=True):
        scale = scales_by_deviation(part, fmt).double()[..., None]
        target[...] = part.double().abs() < scale * float(fmt.element.max)
    views.put(targets, found)
    return found


# -- Four Over Six ----------------------------------------------------------------------------------------
class Blocks(NamedTuple):
    """Blocks of one size along the last axis, and what each of them shares.

    Attributes
    ----------
    numbers : tensor, shape (..., elements)
    greatest : tensor, shape (...)
        Measures.
    shared : sequence of tensor, shape (..., 1)
    """

    numbers: torch.Tensor
    greatest: torch.Tensor
    shared: Sequence[torch.Tensor]


def better_scales(
    blocks: Blocks, same: Sequence[torch.Tensor], width: int, algorithm: Float32Algorithm, amax: float
) -> list[torch.Tensor]:
    """Return for each block the shared numbers of the scale with the smaller error; ties go to 6."""
    wider = algorithm_calls(replace(algorithm, expansion=1.5)).share([blocks.greatest, *same])
    four = [x.expand(blocks.greatest.shape)[..., None] for x in wider]
    errors = [_errors(blocks.numbers, shared, width, algorithm, amax) for shared in (blocks.shared, four)]
    smaller = (errors[1] < errors[0])[..., None]
    return [torch.where(smaller, *pair) for pair in zip(four, blocks.shared, strict=True)]


def _errors(
    part: torch.Tensor, shared: Sequence[torch.Tensor], width: int, algorithm: Float32Algorithm, amax: float
) -> torch.Tensor:
    """Return the sum of the errors of each block, along its rows from the left, then by halving."""
    calls = algorithm_calls(ElementErrors(algorithm.format, SATURATING))
    numbers = [scalar(x, F64, part.device) for x in (amax, 1.0)]
    errors = calls.encode([part, *shared, *numbers])[0].expand(part.shape)
    rows = errors.reshape(*part.shape[:-1], part.shape[-1] // max(width, 1), width)
    total = rows.new_zeros(rows.shape[:-1])
    for each in rows.unbind(-1):
        total = total + each
    return _sums(total)


# -- EDEN -------------------------------------------------------------------------------------------------
def corrected_elements(
    parts: Sequence[Blocks],
    same: Sequence[torch.Tensor],
    algorithm: Float32Algorithm,
    rounding: Rounding,
    words: torch.Tensor,
) -> list[torch.Tensor]:
    """Return what the elements of blocks stand for, by scales that are corrected for each group.

    Parameters
    ----------
    parts : sequence of Blocks
        The axis before the last counts the blocks.
    same : sequence of tensor
        The numbers that all blocks share.
    algorithm : Float32Algorithm
    rounding : Rounding
        Of the scales.
    words : tensor of int, of the shape of the scales, with their axis last
        The random bits of the scales.
    """
    fmt, calls = algorithm.format, algorithm_calls(algorithm)
    quotients = algorithm_calls(Quotients(fmt, SATURATING))
    assert isinstance(fmt.block, int)
    assert fmt.group is not None
    elements, rows = [], []
    for blocks in parts:
        given = [blocks.numbers, *blocks.shared, *same]
        stored, quotient = (x.encode(given)[0].expand(blocks.numbers.shape) for x in (calls, quotients))
        elements.append(stored)
        fill = (0, parts[0].numbers.shape[-1] - stored.shape[-1])
        rows.append([torch.nn.functional.pad(x, fill) for x in (quotient, stored)])
    quotient, stored = (torch.cat(list(x), -2) for x in zip(*rows, strict=True))
    scale = torch.cat([blocks.shared[0][..., 0] for blocks in parts], -1)
    each = min(fmt.group // fmt.block, max(scale.shape[-1], 1))
    by = _corrections(quotient, stored, each)
    (made,) = _rounded(fmt.scale, rounding)([scale * by, words])
    found, start = [], 0
    for blocks, stored in zip(parts, elements, strict=True):
        stop = start + stored.shape[-2]
        own = [made[..., start:stop, None], *blocks.shared[1:]]
        found.append(calls.decode([stored, *own, *same])[0])
        start = stop
    return found


def _corrections(quotient: torch.Tensor, stored: torch.Tensor, each: int) -> torch.Tensor:
    """Return for each block the correction of its group of `each` blocks."""
    count, size = quotient.shape[-2:]
    missing = -count % each
    given = [torch.nn.functional.pad(x.nan_to_num(), (0, 0, 0, missing)) for x in (quotient, stored)]
    flat, other = (x.reshape(*x.shape[:-2], (count + missing) // each, each * size) for x in given)
    above, below = _sums(flat * flat), _sums(flat * other)
    correction = torch.where((below == 0) | above.isinf(), 1.0, above / below)
    return correction.repeat_interleave(each, -1)[..., :count]


@lru_cache(maxsize=16)
def _rounded(fmt: Format, rounding: Rounding) -> TorchCalls:
    """Return the rounding of numbers of binary32 by random bits."""
    line = Line()
    x, word = line.input("x", F32), line.input("word", I32 if rounding.random_bits <= SHORT else I64)
    return TorchCalls([change_element("round", x, Into(fmt, rounding, F32, word))], [x, word])


# -- numbers in groups as codes and shared numbers --------------------------------------------------------
def encoded(algorithm: GroupAlgorithm, numbers: torch.Tensor, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the codes of a vector of float32 as uint8, and a row of shared numbers for each group.

    A group has `size` numbers; the last one may be shorter.
    """
    calls, count = algorithm_calls(algorithm), numbers.numel()
    rows = torch.nn.functional.pad(numbers, (0, -count % size)).view(-1, size)
    given = [calls.measure([rows])[0].amax(1)]  # zeros of the padding have the least measure
    if algorithm.warps is not None:
        given.append(_least(calls, rows.abs(), count, algorithm.warps))
    shared = [x.expand(len(rows)) for x in calls.share(given)]
    made = calls.encode([rows, *(x[:, None] for x in shared)])[0].expand(rows.shape)
    if algorithm.places is not None:
        bounds = _places_on(algorithm, numbers.device)
        made = torch.where(made.isnan(), 0, torch.searchsorted(bounds, made.contiguous(), right=True))
    return made.to(torch.uint8).view(-1)[:count], torch.stack(shared, 1)


def decoded(algorithm: GroupAlgorithm, codes: torch.Tensor, shared: torch.Tensor, size: int) -> torch.Tensor:
    """Return the float32 numbers of a vector of codes, given a row of shared numbers for each group."""
    count = codes.numel()
    rows = torch.nn.functional.pad(codes, (0, -count % size)).view(-1, size).to(torch.int32)
    taken = rows if algorithm.table is None else _table_on(algorithm, codes.device)[rows]
    columns = shared.view(len(rows), -1).unbind(1)
    made = algorithm_calls(algorithm).decode([taken, *(x[:, None] for x in columns)])[0]
    return made.expand(rows.shape).reshape(-1)[:count]


def _least(calls: AlgorithmCalls, magnitudes: torch.Tensor, count: int, warps: Warps) -> torch.Tensor:
    """Return the least magnitude that threads find in each group; some threads have no element."""
    inside = torch.arange(magnitudes.numel(), device=magnitudes.device).view(magnitudes.shape) < count
    rows = torch.where(inside, magnitudes, warps.beyond)
    of_warps = _halved(calls, rows.view(len(rows), -1, warps.width))
    last = of_warps.new_full((len(rows), warps.width), warps.idle)
    last[:, : of_warps.shape[1]] = of_warps
    return _halved(calls, last)


def _halved(calls: AlgorithmCalls, x: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = halved(x, lambda *pair: calls.lesser(pair)[0])[..., 0]
    return found


@lru_cache(maxsize=32)
def _places_on(algorithm: GroupAlgorithm, device: torch.device) -> torch.Tensor:
    """Return the bounds between places on a device, copied there once."""
    return torch.from_numpy(algorithm.places).to(device)


@lru_cache(maxsize=32)
def _table_on(algorithm: GroupAlgorithm, device: torch.device) -> torch.Tensor:
    """Return the numbers of a table on a device, copied there once."""
    return torch.from_numpy(algorithm.table).to(device)
