"""Rules of published code, which compute scales and quotients in binary32: one algorithm for all backends.

The algorithm is one straight line per block and another per element. NumPy runs it on blocks of any
shape, with elements rounded in any mode; `block_quantization` compiles it for blocks along the last axis.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mcfsim.compile.group_algorithm import GroupAlgorithm, GroupLine
from mcfsim.formats import Format
from mcfsim.kernels.element.floats import INFINITY, NAN
from mcfsim.kernels.element.machine import F32, Value, run
from mcfsim.kernels.element.operations import Into, change_element
from mcfsim.rounding import Rounding
from mcfsim.scaled.formats import SMALLER_TOP, ScaledFormat
from mcfsim.scaled.rules import SATURATING, power_element
from mcfsim.scaled.scale_rules import FOUR_SIX, ScaleRule

Array = NDArray[Any]
#: The shared numbers of blocks: scales, and the factors or divisors of numbers.
Shared = tuple[NDArray[np.float32], NDArray[np.float32]]

#: The largest number of binary32.
MOST = float(np.finfo(np.float32).max)
#: EDEN's largest scale, below 256 so that corrections have room, and the quotient of a block's amax.
_EDEN_TOP = 255.99
_EDEN_SIX = 6.0 / (17 / 16 * 0.93)
#: Infinity's bits in binary32: the measure of a block of finite numbers is less.
INFINITE = 0xFF << 23


@dataclass(frozen=True)
class ScaledAlgorithm(GroupAlgorithm):
    """An algorithm of a scaled format whose elements are numbers of binary32.

    The first shared number of a block is its scale. Two further numbers are the same for all blocks; the last
    is the tensor scale, or 1.

    Parameters
    ----------
    format : ScaledFormat
    rounding : Rounding
        Of the elements.
    """

    format: ScaledFormat
    rounding: Rounding

    coded: ClassVar[bool] = False
    numbers: ClassVar[int] = 2

    @property
    def random_bits(self) -> int:
        """The number of random bits of stochastic rounding."""
        return self.rounding.drawn_bits

    def decoded(self, code: Value, *shared: Value) -> Value:
        """Return the element times the scales."""
        scale, *_, tensor_scale = shared
        x = code.widen()
        return x.equals(x).select(x * (scale.widen() * tensor_scale), x)


def finite(found: NDArray[np.int32]) -> NDArray[Any]:
    """Return the largest magnitudes of the blocks of finite numbers, from the greatest measures of all."""
    return found[found < INFINITE].view(np.float32)


@dataclass(frozen=True)
class Float32Algorithm(ScaledAlgorithm):
    """The algorithm of a rule that computes in binary32, except further steps of `eden` and Four Over Six.

    The first number that is the same for all blocks depends on the rule.

    Parameters
    ----------
    format : ScaledFormat
    rounding : Rounding
        Of the elements.
    expansion : float
        A factor of the scales of Four Over Six: 1 for 6, 1.5 for 4.
    """

    expansion: float = 1.0

    #: The scale, and the factor or divisor of numbers.
    shared = 2

    @property
    def top(self) -> float:
        """The largest element."""
        return float(self.format.element.max)

    def shares(self, greatest: Value, *others: Value) -> tuple[Value, ...]:
        """Return the scale and what goes with it, or NaN if a number of the block is not finite."""
        largest, numbers = greatest.as_number(), (x.narrow() for x in others)
        found = _SCALES[self.format.rule](self, largest, *numbers)
        return tuple((largest < INFINITY).select(x, NAN) for x in found)

    def quotient(self, x: Value, by: Value) -> Value:
        """Return the quotient; where it is undefined, a zero of the sign of x."""
        y = x / by if self.format.rule in _DIVIDING else x * by
        return y.equals(y).select(y, x * 0.0)

    def clipped(self, y: Value) -> Value:
        """Return a quotient clipped to the range of elements."""
        return (y > self.top).select(self.top, (y < -self.top).select(-self.top, y))

    def encoded(self, x: Value, *shared: Value, word: Value | None = None) -> Value:
        """Return the element: the rounded quotient; if the scale is NaN, NaN or, without a NaN, 0."""
        scale, by, element = shared[0], shared[1], self.format.element
        quotient = self.clipped(self.quotient(x, by))
        found = change_element("round", quotient, Into(element, self.rounding, F32, word))
        return scale.equals(scale).select(found, NAN if element.has_nan else 0.0)

    def both(self, amax: float) -> tuple[float, float]:
        """Return the two numbers that all blocks share, from the largest magnitude of them all."""
        rule, largest = self.format.rule, np.float32(amax)
        top, most = np.float32(self.top), np.float32(MOST)
        highest = float(self.format.scale.max)
        with np.errstate(all="ignore"):
            if rule is ScaleRule.TORCHAO and self.format.tensor_scale is not None:
                scale = largest / np.float32(self.top * highest)
                return float(np.float32(1) / scale), float(scale)
            if rule is ScaleRule.TRANSFORMER_ENGINE or rule in FOUR_SIX:
                highest = SMALLER_TOP if rule in FOUR_SIX else highest
                encode = np.minimum(np.float32(self.top * highest) / largest, most)
                return float(encode), float(np.float32(1) / encode)
            if rule is ScaleRule.EDEN:
                six = np.float32(_EDEN_SIX / 6 * self.top)
                scale = largest / np.float32(_EDEN_TOP) / six if largest else np.float32(1)
                return float(six), float(scale)
            if rule is ScaleRule.QUARTET:
                return 1.0, float(np.float32(1) / np.float32(0.75))
        return float(top), 1.0


# -- the rules --------------------------------------------------------------------------------------------
def _least(x: Value, bound: float) -> Value:
    return (x < bound).select(x, bound)  # NaN becomes the bound


def _rounded(x: Value, target: Format) -> Value:
    """Return a scale rounded to nearest even; beyond the largest scale, it is the largest."""
    return change_element("round", _least(x, float(target.max)), Into(target, SATURATING, F32))


def _inverse(x: Value) -> Value:
    return _least(x.like(1.0) / x, MOST)


def _torchao(
    algorithm: Float32Algorithm, largest: Value, inverse: Value, tensor_scale: Value
) -> tuple[Value, Value]:
    scale, least = largest / algorithm.top, float(algorithm.format.scale.smallest_normal)
    if algorithm.format.tensor_scale is None:
        inverse = largest.like(1.0)
    else:
        scale = scale / tensor_scale
    scale = _rounded((scale > least).select(scale, least), algorithm.format.scale)
    return scale, inverse / scale


def _transformer_engine(
    algorithm: Float32Algorithm, largest: Value, encode: Value, tensor_scale: Value
) -> tuple[Value, Value]:
    if algorithm.format.rule in FOUR_SIX:
        scale = largest / algorithm.top * encode
        scale = scale * algorithm.expansion if algorithm.expansion != 1 else scale
    else:
        scale = largest * (encode * float(np.float32(1) / np.float32(algorithm.top)))
    scale = _rounded(scale, algorithm.format.scale)
    return scale, _inverse(scale * tensor_scale)


def _eden(
    algorithm: Float32Algorithm, largest: Value, six: Value, tensor_scale: Value
) -> tuple[Value, Value]:
    scale = _rounded(largest / six / tensor_scale, algorithm.format.scale)
    scale = scale.equals(0.0).select(1.0, scale)
    return scale, scale * tensor_scale


def _current(algorithm: Float32Algorithm, largest: Value, *_: Value) -> tuple[Value, Value]:
    encode = largest.equals(0.0).select(1.0, _least(largest.like(algorithm.top) / largest, MOST))
    if algorithm.format.rule is ScaleRule.FLOOR_POWER:
        encode = (encode.bits() & -(2**23)).as_number()
    return largest.like(1.0) / encode, encode


def _deepseek(algorithm: Float32Algorithm, largest: Value, *_: Value) -> tuple[Value, Value]:
    least = float(np.float32(1e-4))
    scale = (largest < least).select(least, largest) / algorithm.top
    if algorithm.format.rule is ScaleRule.DEEPSEEK_POWER:
        scale = ((scale.bits() + (2**23 - 1)) & -(2**23)).as_number()
    return scale, largest.like(1.0) / scale


def _quartet(
    algorithm: Float32Algorithm, largest: Value, _: Value, tensor_scale: Value
) -> tuple[Value, Value]:
    scale = power_element(largest, algorithm.format)
    return scale, scale * tensor_scale


_SCALES: Mapping[ScaleRule, Callable[..., tuple[Value, Value]]] = {
    ScaleRule.TORCHAO: _torchao,
    ScaleRule.TRANSFORMER_ENGINE: _transformer_engine,
    ScaleRule.FOUR_SIX_MAE: _transformer_engine,
    ScaleRule.FOUR_SIX_MSE: _transformer_engine,
    ScaleRule.EDEN: _eden,
    ScaleRule.CURRENT: _current,
    ScaleRule.FLOOR_POWER: _current,
    ScaleRule.DEEPSEEK: _deepseek,
    ScaleRule.DEEPSEEK_POWER: _deepseek,
    ScaleRule.QUARTET: _quartet,
}
_DIVIDING = (ScaleRule.EDEN, ScaleRule.QUARTET)


# -- by NumPy ---------------------------------------------------------------------------------------------
@lru_cache(maxsize=64)
def line_of(algorithm: Float32Algorithm) -> tuple[GroupLine, Value]:
    """Return the line of an algorithm, and in it the clipped quotient; made once."""
    line = GroupLine(algorithm)
    return line, algorithm.clipped(algorithm.quotient(line.x, line.shared[1]))


def overall(found: Sequence[NDArray[np.int32]]) -> float:
    """Return the largest magnitude of finite blocks, from the greatest measures; 0 if none is."""
    return max((float(finite(x).max(initial=0)) for x in found), default=0.0)


def quotients(part: Array, by: Array, algorithm: Float32Algorithm) -> NDArray[np.float32]:
    """Return the quotients of a part's numbers in binary32, clipped to the range of elements; or NaN."""
    line, clipped = line_of(algorithm)
    (found,) = run(line.line, (clipped,), x=part, shared1=by[..., np.newaxis])
    return np.where(np.isnan(by)[..., np.newaxis], np.float32(np.nan), found)
