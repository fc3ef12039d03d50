"""Quantised operands of products on tensors of any device, with the numbers of `mcfsim.quantize`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mcfsim.compile.torch_calls import check_machine, drawn, scalar
from mcfsim.convert import given_words
from mcfsim.kernels.carriers import FLOAT64
from mcfsim.kernels.element.floats import SHORT
from mcfsim.kernels.element.machine import F64
from mcfsim.kernels.torch_tensors import TORCH_DTYPES, as_array, check_dense, uncompiled
from mcfsim.random import RandomWords, word_bits
from mcfsim.rounding import Overflow, Rounding, get_rounding
from mcfsim.scaled import ScaledFormat, ScaleRule, get_scaled_format
from mcfsim.scaled import quantize as quantize_array
from mcfsim.scaled.block_quantization import BlockAlgorithm, block_algorithm, shared_by_all
from mcfsim.scaled.block_views import BlockViews, axis_of
from mcfsim.scaled.float32_rules import INFINITE, Float32Algorithm, overall
from mcfsim.scaled.scale_rules import FOUR_SIX
from mcfsim.scaled.searched_scales import rounding_of_scales
from mcfsim.torch.tensor_scales import (
    Blocks,
    algorithm_calls,
    better_scales,
    corrected_elements,
    scales_by_deviation,
)


def quantize(
    tensor: torch.Tensor,
    fmt: ScaledFormat | str,
    *,
    axis: int = -1,
    rounding: Rounding | str = "nearest_even",
    rule: ScaleRule | str | None = None,
    random: RandomWords | NDArray[np.unsignedinteger[Any]] | None = None,
) -> torch.Tensor:
    """Return a tensor quantised and dequantised, on its device, with the numbers of `mcfsim.quantize`.

    Parameters
    ----------
    tensor : tensor of a floating dtype of at most 64 bits
        Dense, on any device that computes.
    fmt, axis, rounding, rule, random
        As for `mcfsim.quantize`.

    Returns
    -------
    tensor
        ``mcfsim.quantize(tensor, ...).dequantize()``: float32 if that holds every number of the format, else
        float64. It never shares memory with the operand, and has no autograd graph.

    Raises
    ------
    TypeError, ValueError, UnsupportedFormatError
        As for `mcfsim.quantize`; also if the tensor requires grad and gradients are recorded.
    RuntimeError
        If the device does not round as the processor does.

    Notes
    -----
    Tensors on the CPU are quantised as NumPy's arrays. On other devices, PyTorch carries out the line of
    machine operations that the compiled loops are made of, one operation at a time. Cases without such a line
    are computed on the CPU: numbers of 64 bits, the rules ``absmean`` and ``max``, and ``absmax`` with so
    many random bits that binary64 does not hold the numbers compared with words.
    """
    return uncompiled(_quantized, tensor, fmt, axis, rounding, rule, random)


def _quantized(
    tensor: torch.Tensor,
    fmt: ScaledFormat | str,
    axis: int,
    rounding: Rounding | str,
    rule: ScaleRule | str | None,
    random: Any,
) -> torch.Tensor:
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"a tensor is quantised, not {type(tensor).__name__}; mcfsim.quantize takes arrays")
    check_dense(tensor)
    if tensor.dtype not in TORCH_DTYPES:
        raise TypeError(f"a tensor of dtype {tensor.dtype} has no floating-point numbers that NumPy can hold")
    fmt = get_scaled_format(fmt)
    fmt = fmt if rule is None else fmt.with_rule(rule)
    if tensor.device.type != "cpu":
        policy = rounding if isinstance(rounding, Rounding) else get_rounding(rounding, Overflow.SATURATE)
        if tensor.dtype != torch.float64 and has_line(fmt, policy):
            check_machine(tensor.device)
            return on_device(tensor.detach(), fmt, policy, axis, random)
    options: dict[str, Any] = {"axis": axis, "rounding": rounding, "random": random}
    found = quantize_array(as_array(tensor.detach().cpu().resolve_neg()), fmt, **options).dequantize()
    return torch.from_numpy(np.asarray(found, order="C")).to(tensor.device)


def _algorithm(fmt: ScaledFormat, rounding: Rounding) -> BlockAlgorithm | Float32Algorithm | None:
    """Return the algorithm of a format's blocks; for the rule ``quest``, that of the rule ``floor``."""
    if fmt.rule in FOUR_SIX or (fmt.rule is ScaleRule.EDEN and not rounding.stochastic):
        return Float32Algorithm(fmt, rounding)
    return block_algorithm(fmt.with_rule(ScaleRule.FLOOR) if fmt.rule is ScaleRule.QUEST else fmt, rounding)


def has_line(fmt: ScaledFormat, rounding: Rounding) -> bool:
    """Return whether operations of a device can quantise by a format."""
    return _algorithm(fmt, rounding) is not None


def on_device(
    tensor: torch.Tensor,
    fmt: ScaledFormat,
    rounding: Rounding,
    axis: int,
    random: RandomWords | NDArray[np.unsignedinteger[Any]] | None,
) -> torch.Tensor:
    """Return a tensor quantised and dequantised by PyTorch's operations, one for each in the line."""
    algorithm = _algorithm(fmt, rounding)
    assert algorithm is not None
    shape, device = tuple(tensor.shape), tensor.device
    views = BlockViews(shape, fmt.block, axis_of(axis, max(tensor.ndim, 1)))
    parts: Any = views.parts(tensor.to(torch.float32).contiguous())
    blocks, same = _shared(parts, fmt, algorithm, views)
    if fmt.rule is ScaleRule.EDEN and isinstance(algorithm, Float32Algorithm):
        words = _words(views.scales_shape, rounding, random, device)
        words = words.movedim(views.axis, -1) if words.ndim else words
        made = corrected_elements(blocks, same, algorithm, rounding_of_scales(rounding), words)
    else:
        draws: Any = [[] for _ in parts]
        if rounding.stochastic:
            words = _words(shape, rounding, random, device)
            draws = [[x] for x in views.parts(words)]
        through = algorithm_calls(algorithm).through
        pairs = zip(blocks, draws, strict=True)
        made = [through([own.numbers, *own.shared, *same, *draw])[0] for own, draw in pairs]
    out = torch.empty(shape, dtype=torch.float64, device=device)
    targets: Any = views.parts(out)
    for target, numbers in zip(targets, made, strict=True):
        target[...] = numbers
    views.put(targets, out)
    return out if fmt.carrier == FLOAT64 else out.to(torch.float32)


def _shared(
    parts: Sequence[torch.Tensor],
    fmt: ScaledFormat,
    algorithm: BlockAlgorithm | Float32Algorithm,
    views: BlockViews,
) -> tuple[list[Blocks], list[torch.Tensor]]:
    """Return the blocks of each part with what they share, and the numbers that all blocks share."""
    calls, device = algorithm_calls(algorithm), parts[0].device
    found = [_greatest(calls.measure([part])[0]) for part in parts]
    largest = _largest(found) if fmt.tensor_scale is not None else np.zeros(0, np.int32)
    same = [scalar(number, F64, device) for number in shared_by_all(algorithm, largest)]
    blocks, widths = [], views.widths(parts)
    for part, greatest, width in zip(parts, found, widths, strict=True):
        quest = fmt.rule is ScaleRule.QUEST
        shared = [scales_by_deviation(part, fmt)] if quest else calls.share([greatest, *same])
        own = Blocks(part, greatest, [x.expand(greatest.shape)[..., None] for x in shared])
        if fmt.rule in FOUR_SIX and isinstance(algorithm, Float32Algorithm):
            own = own._replace(shared=better_scales(own, same, width, algorithm, overall([largest])))
        blocks.append(own)
    return blocks, same


def _greatest(measured: torch.Tensor) -> torch.Tensor:
    """Return the greatest measure of each block; 0 if it has no numbers."""
    if not measured.shape[-1]:
        return measured.new_zeros(measured.shape[:-1])
    return measured.amax(-1)


def _largest(found: Sequence[torch.Tensor]) -> NDArray[np.int32]:
    """Return the greatest measures of the parts' finite blocks."""
    finite = (torch.where(x < INFINITE, x, 0) for x in found if x.numel())
    return np.array([int(x.max()) for x in finite], np.int32)


def _words(
    shape: tuple[int, ...],
    rounding: Rounding,
    random: RandomWords | NDArray[np.unsignedinteger[Any]] | None,
    device: torch.device,
) -> torch.Tensor:
    """Return the random bits of each element, as the line takes them."""
    bits = rounding.random_bits
    if isinstance(random, RandomWords):
        size = word_bits(bits)
        words = drawn(random, 0, math.prod(shape), bits, device).reshape(shape)
    else:
        given = given_words(random, rounding, shape)
        size = 8 * given.dtype.itemsize
        words = torch.from_numpy(given.astype(np.int64)).to(device)
    return (words >> (size - bits)).to(torch.int32 if bits <= SHORT else torch.int64)
