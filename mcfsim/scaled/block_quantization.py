"""Blocks of a scaled format in compiled loops: their scales, their elements, and what these stand for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from mcfsim.compile.group_loops import BlockLoops, block_loops
from mcfsim.compile.group_text import GroupText
from mcfsim.kernels.carriers import FLOAT32, FLOAT64, carrier_of, holds
from mcfsim.kernels.element.floats import INFINITY, NAN
from mcfsim.kernels.element.machine import F32, Value
from mcfsim.kernels.element.operations import change_element
from mcfsim.rounding import Mode, Overflow, Rounding
from mcfsim.scaled.block_views import BlockViews
from mcfsim.scaled.float32_rules import Float32Text
from mcfsim.scaled.formats import ScaledFormat
from mcfsim.scaled.power_scales import exponents, power_element
from mcfsim.scaled.rules import divisors
from mcfsim.scaled.scale_rules import FOUR_SIX, POWERS, ScaleRule
from mcfsim.storage.buffers import BLOCK

Array = NDArray[Any]
_SATURATING = Rounding(overflow=Overflow.SATURATE)
_NEAREST = (Mode.NEAREST_EVEN, Mode.NEAREST_AWAY)
#: Infinity's bits in binary32.
_INFINITE = 0xFF << 23


@dataclass(frozen=True)
class BlockText(GroupText):
    """The algorithm of a scaled format of binary32 numbers in blocks of a fixed size.

    Two further numbers are the same for all blocks: by what a largest magnitude is divided, and the tensor
    scale. For formats without a tensor scale these are the largest element and 1.

    Notes
    -----
    Where scales are no powers of two, quotients are computed in binary64 and rounded once more. Let x be a
    number of 24 bits, s a divisor, and t a tie between elements, so that ``t s`` has at most 45 bits. Either
    ``x / s`` is t itself, or ``x - t s`` is a multiple of the last bit of x or of ``t s``, and no less than
    2^-45 of x. So binary64, which has 53 bits, rounds no other quotient onto a tie.
    """

    format: ScaledFormat
    rounding: Rounding

    coded: ClassVar[bool] = False
    numbers: int = 2

    @property
    def shared(self) -> int:
        """The scale alone."""
        return 1

    @classmethod
    def of(cls, fmt: ScaledFormat, rounding: Rounding, *, words: bool = False) -> BlockText | None:
        """Return the algorithm of a format and a rounding of its elements, or None if there is none.

        Stochastic rounding has one only where words are given.
        """
        scaled = fmt.rule in POWERS or fmt.rule is ScaleRule.ABSMAX
        powers = fmt.rule in POWERS
        near = rounding.mode in _NEAREST or (powers and (words or not rounding.stochastic))
        scales = [fmt.scale] if fmt.tensor_scale is None else [fmt.scale, fmt.tensor_scale]
        tie = fmt.element.precision + 1 + sum(x.precision for x in scales)
        short = carrier_of(fmt.element) == FLOAT32 and (powers or tie <= 45)
        held = holds(FLOAT32, fmt.scale) or powers
        return cls(fmt, rounding) if scaled and near and short and held else None

    def shares(self, greatest: Value, *others: Value) -> tuple[Value, ...]:
        """Return the scale, or NaN if a number of the block is not finite."""
        largest, (divisor, _) = greatest.as_number(), others
        scale = (
            power_element(largest, self.format)
            if self.format.rule in POWERS
            else self._quotient(largest, divisor)
        )
        return ((largest < INFINITY).select(scale, NAN),)

    def _quotient(self, largest: Value, divisor: Value) -> Value:
        target = self.format.scale
        by = divisor.equals(0.0).select(0.0, largest.widen() / divisor)
        if not target.zero:
            smallest = float(target.smallest_normal)
            by = (by < smallest).select(smallest, by)
        return change_element("round", by, target, _SATURATING, carrier=F32)

    def encoded(self, x: Value, *shared: Value, word: Value | None = None) -> Value:
        """Return the element: the rounded quotient; where the scale is NaN, NaN or if there is none 0."""
        (scale, _, tensor_scale), element = shared, self.format.element
        if self.format.rule not in POWERS:
            by = scale.widen()
            by = by if self.format.tensor_scale is None else by * tensor_scale
            quotient = quotient_element(x, by)
        else:
            inverse = (-scale.widen().bits() + (2046 << 52)).as_number()
            # To nearest, what binary32 has not is nothing beside the smallest element.
            _, *ends = exponents(self.format)
            near = self.rounding.mode in _NEAREST and max(map(abs, ends)) <= 127
            quotient = x * inverse.narrow() if near else x.widen() * inverse
        found = change_element("round", quotient, element, self.rounding, word, carrier=F32)
        nothing: Any = 0.0
        if element.has_nan:  # that of the number itself, if it is one
            nothing = x.equals(x).select(NAN, (x.bits() | x.like(NAN).bits()).as_number())
        return scale.equals(scale).select(found, nothing)

    def decoded(self, code: Value, *shared: Value) -> Value:
        """Return the element times the scales."""
        scale, _, tensor_scale = shared
        x = code.widen()
        return x.equals(x).select(x * (scale.widen() * tensor_scale), x)


def text_of(fmt: ScaledFormat, rounding: Rounding, *, words: bool = False) -> BlockText | Float32Text | None:
    """Return the algorithm of a format's blocks, whatever their shape, or None; see `BlockText.of`."""
    if fmt.rule.exact:
        return BlockText.of(fmt, rounding, words=words)
    alone = fmt.rule not in FOUR_SIX and fmt.rule is not ScaleRule.EDEN
    return Float32Text(fmt, rounding) if alone and (words or not rounding.stochastic) else None


def shared_by_all(text: BlockText | Float32Text, found: NDArray[np.int32]) -> tuple[float, float]:
    """Return the two numbers that all blocks share, given the greatest measures of blocks."""
    largest = found[found < _INFINITE].view(np.float32)
    if isinstance(text, Float32Text):
        return text.both(float(largest.max(initial=0)))
    divisor, tensor_scale = divisors(largest, text.format)
    return divisor, 1.0 if tensor_scale is None else tensor_scale


def _loops(x: Array, fmt: ScaledFormat, rounding: Rounding, views: BlockViews) -> BlockLoops | None:
    """Return loops over the blocks of an array, if there are some, all blocks are whole, and they pay."""
    text, size = text_of(fmt, rounding), fmt.block_size
    if text is None or size is None or not x.ndim or x.dtype != FLOAT32:
        return None
    if [part.shape[-1] for part in views.parts(x)] != [size]:
        return None
    loops = block_loops(text, size)
    return loops if loops.pays(x.size) else None


def decoded(
    elements: Array, scale: Array, fmt: ScaledFormat, tensor_scale: float | None, axis: int
) -> Array | None:
    """Return the numbers of elements by compiled loops; None as for `encoded`."""
    views = BlockViews(elements.shape, fmt.block, axis)
    loops = _loops(elements, fmt, _SATURATING, views)
    if loops is None or fmt.carrier != FLOAT64:
        return None
    (part,), (by,) = views.parts(elements), views.shared(scale)
    out, found = _place(elements.shape, np.float64, views)
    rows = np.ones((scale.size, loops.text.shared), np.float32)
    rows[:, 0] = by.reshape(-1)
    same = 0.0, 1.0 if tensor_scale is None else tensor_scale
    loops.decode(_lying(part).reshape(-1), rows, found.reshape(-1), *same)
    return _put_back(found, out, views)


def encoded(
    x: Array, fmt: ScaledFormat, rounding: Rounding, axis: int
) -> tuple[Array, Array, float | None] | None:
    """Return elements, scales and the tensor scale of an array by compiled loops.

    The result is None if there is no loop for its blocks, some are not whole, or it does not pay.
    """
    views = BlockViews(x.shape, fmt.block, axis)
    loops = _loops(x, fmt, rounding, views)
    text = text_of(fmt, rounding)
    if loops is None or text is None:
        return None
    (part,) = views.parts(x)
    vector = _lying(part).reshape(-1)
    blocks = part.shape[:-1]
    found = np.empty(math.prod(blocks) if fmt.tensor_scale else 0, np.int32)
    if fmt.tensor_scale is not None:
        loops.measure(vector, found, 1.0, 1.0)
    numbers = shared_by_all(text, found)
    out, elements = _place(x.shape, np.float32, views)
    rows = np.empty((math.prod(blocks), text.shared), np.float32)
    loops.encode(vector, elements.reshape(-1), rows, *numbers)
    scale = views.joined([rows[:, 0].astype(carrier_of(fmt.scale)).reshape(blocks)])
    tensor_scale = None if fmt.tensor_scale is None else numbers[1]
    return _put_back(elements, out, views), scale, tensor_scale


def _place(shape: tuple[int, ...], dtype: DTypeLike, views: BlockViews) -> tuple[Array, Array]:
    """Return an array to be filled, and a place for its only part: in it, if its blocks lie in order."""
    out = np.empty(shape, dtype)
    (part,) = views.parts(out)
    inside = part.flags.c_contiguous and np.shares_memory(part, out)
    return out, part if inside else np.empty(part.shape, dtype)


def _put_back(part: Array, out: Array, views: BlockViews) -> Array:
    """Return an array with the numbers of its only part."""
    if not np.shares_memory(part, out):
        (target,) = views.parts(out)
        _copy(part, target)
        views.put([part], out)
    return out


def _lying(part: Array) -> Array:
    """Return an array whose blocks lie one after another."""
    if part.flags.c_contiguous and part.flags.aligned:
        return part
    found = np.empty(part.shape, part.dtype)
    _copy(part, found)
    return found


def _copy(part: Array, target: Array) -> None:
    """Copy an array into another of its shape, some blocks of each run at a time, which stay in cache."""
    blocks = part.shape[-2]
    some = max(1, BLOCK * blocks // max(part.size, 1))
    for start in range(0, blocks, some):
        target[..., start : start + some, :] = part[..., start : start + some, :]


def quotient_element(x: Value, by: Value) -> Value:
    """Return a number of binary32 over one of binary64, in binary64; by zero, a zero of its sign."""
    return by.equals(0.0).select(x.widen() * 0.0, x.widen() / by)
