"""Operands of products on tensors of any device, with the numbers of `mcfsim.quantize`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mcfsim.compile.group_text import GroupLine
from mcfsim.compile.torch_calls import TorchCalls, check_machine, drawn, root, scalar
from mcfsim.convert import given_words
from mcfsim.kernels.carriers import FLOAT64
from mcfsim.kernels.element.floats import NAN, SHORT
from mcfsim.kernels.element.machine import F64
from mcfsim.kernels.torch_tensors import TORCH_DTYPES, as_array, check_dense, uncompiled
from mcfsim.random import RandomWords, word_bits
from mcfsim.rounding import Overflow, Rounding, get_rounding
from mcfsim.scaled import ScaledFormat, ScaleRule, get_scaled_format
from mcfsim.scaled import quantize as quantize_array
from mcfsim.scaled.block_quantization import BlockText, shared_by_all, text_of
from mcfsim.scaled.block_views import BlockViews
from mcfsim.scaled.float32_rules import Float32Text
from mcfsim.scaled.power_scales import exponents
from mcfsim.scaled.rules import clips_by_deviation, halved
from mcfsim.scaled.scaled_text import INFINITE

#: The bits of the exponent of a binary32 number.
_EXPONENT = 0x7F800000


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
        float64. It never shares memory with the operand, and has no graph.

    Raises
    ------
    TypeError, ValueError, UnsupportedFormatError
        As for `mcfsim.quantize`; also if the tensor requires grad and gradients are recorded.
    RuntimeError
        If the device does not round as the processor does.

    Notes
    -----
    Tensors on the CPU are NumPy's arrays. On other devices, PyTorch carries out the line of machine
    operations that the compiled loops are made of, one operation at a time. What has no such line goes by way
    of the CPU: numbers of 64 bits, the rules ``absmean``, ``max``, ``eden`` and Four Over Six, and by
    ``absmax`` so many random bits that binary64 does not hold what words are compared with.
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
    found = quantize_array(as_array(tensor.detach().cpu()), fmt, **options).dequantize()
    return torch.from_numpy(np.asarray(found, order="C")).to(tensor.device)


class _BlockCalls:
    """The line of a text as calls: measures, what blocks share, and numbers quantised and dequantised."""

    def __init__(self, text: BlockText | Float32Text) -> None:
        line = GroupLine(text)
        number = text.decoded(line.encoded, *line.shared, *line.numbers)
        self.measure = TorchCalls([line.measured], [line.x])
        self.share = TorchCalls(line.made, [line.greatest, *line.numbers])
        self.through = TorchCalls([number], [line.x, *line.shared, *line.numbers, *line.word])


@lru_cache(maxsize=64)
def _calls(text: BlockText | Float32Text) -> _BlockCalls:
    return _BlockCalls(text)


def _text(fmt: ScaledFormat, rounding: Rounding) -> BlockText | Float32Text | None:
    """Return the algorithm of a format's blocks; by the rule ``quest`` that of other powers of two."""
    return text_of(fmt.with_rule(ScaleRule.FLOOR) if fmt.rule is ScaleRule.QUEST else fmt, rounding)


def has_line(fmt: ScaledFormat, rounding: Rounding) -> bool:
    """Return whether operations of a device can quantise by a format."""
    return _text(fmt, rounding) is not None


def on_device(
    tensor: torch.Tensor,
    fmt: ScaledFormat,
    rounding: Rounding,
    axis: int,
    random: RandomWords | NDArray[np.unsignedinteger[Any]] | None,
) -> torch.Tensor:
    """Return a tensor quantised and dequantised by PyTorch's operations, one for each of the text's line."""
    text = _text(fmt, rounding)
    assert text is not None
    dimensions = max(tensor.ndim, 1)
    if not isinstance(axis, int) or isinstance(axis, bool):
        raise TypeError(f"axis must be an int, not {axis!r}")
    if not -dimensions <= axis < dimensions:
        raise np.exceptions.AxisError(axis, dimensions)
    calls, device = _calls(text), tensor.device
    shape = tuple(tensor.shape)
    views = BlockViews(shape, fmt.block, axis % dimensions)
    numbers_in = tensor.to(torch.float32).contiguous()
    words = None
    if text.rounding.stochastic:
        words = _words(shape, text.rounding, random, device)
    parts = views.parts(numbers_in)
    found = [_greatest(calls.measure([part])[0]) for part in parts]
    shared = shared_by_all(text, _largest(found) if fmt.tensor_scale is not None else np.zeros(0, np.int32))
    same = [scalar(number, F64, device) for number in shared]
    out = torch.empty(shape, dtype=torch.float64, device=device)
    targets: Any = views.parts(out)
    draws: Any = [None] * len(parts) if words is None else views.parts(words)
    for part, greatest, target, draw in zip(parts, found, targets, draws, strict=True):
        quest = fmt.rule is ScaleRule.QUEST
        own = [scales_by_deviation(part, fmt)] if quest else calls.share([greatest, *same])
        made = [x.expand(greatest.shape)[..., None] for x in own]
        given = [part, *made, *same, *([] if draw is None else [draw])]
        target[...] = calls.through(given)[0]
    views.put(targets, out)
    return out if fmt.carrier == FLOAT64 else out.to(torch.float32)


def scales_by_deviation(part: torch.Tensor, fmt: ScaledFormat) -> torch.Tensor:
    """Return the scale of each block along the last axis by the rule ``quest``, as `mcfsim.scaled.rules`."""
    length = part.shape[-1]
    size = part.new_tensor(float(length))  # no number of Python's: a device divides by its reciprocal

    def sums(x: torch.Tensor) -> torch.Tensor:
        missing = (1 << max(length - 1, 0).bit_length()) - length
        return halved(torch.nn.functional.pad(x, (0, missing)))[..., 0]

    clip = clips_by_deviation(part, size, fmt, sums, root)
    _, lowest, highest = exponents(fmt)
    power = (clip.view(torch.int32) & _EXPONENT).view(torch.float32).clip(2.0**lowest, 2.0**highest)
    scale = torch.where(clip.isfinite(), power, 2.0**highest)
    return torch.where(part.isfinite().all(-1), scale, NAN)


def inside_of_deviation(x: torch.Tensor, fmt: ScaledFormat) -> torch.Tensor:
    """Return where the rule ``quest`` clips nothing, as `mcfsim.scaled.Scaled.inside`, by the last axis."""
    views = BlockViews(tuple(x.shape), fmt.block, x.ndim - 1)
    found = torch.empty(x.shape, dtype=torch.bool, device=x.device)
    targets: Any = views.parts(found)
    parts: Any = views.parts(x)
    for part, target in zip(parts, targets, strict=True):
        scale = scales_by_deviation(part, fmt).double()[..., None]
        target[...] = part.double().abs() < scale * float(fmt.element.max)
    views.put(targets, found)
    return found


def _greatest(measured: torch.Tensor) -> torch.Tensor:
    """Return the greatest measure of each block; 0 of one without numbers."""
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
