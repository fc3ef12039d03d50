"""Published quantisers that store moments in 8 bits, by a table or by powers, outside the scaled formats."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import KW_ONLY, dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.checks import whole_number
from mcfsim.compile.group_algorithm import GroupAlgorithm, Warps
from mcfsim.compile.group_loops import group_loops, uniform
from mcfsim.formats import FORMATS
from mcfsim.kernels.element.binary32 import log2_element, power_element
from mcfsim.kernels.element.codes import decode_element, encode_element
from mcfsim.kernels.element.floats import NAN
from mcfsim.kernels.element.machine import F32, Value
from mcfsim.kernels.element.operations import Into, change_element
from mcfsim.rounding import Rounding

Array = NDArray[Any]

E4M3 = FORMATS["float8_e4m3fn"]
#: The number of decades of a dynamic map; each has twice as many numbers as the one below it.
_DECADES = 7
#: The number of threads in a warp of NVIDIA's GPUs.
_WARP = 32
_MAGNITUDE, _SIGN = 2**31 - 1, -(2**31)


@dataclass(frozen=True)
class Quantiser(GroupAlgorithm):
    """A way to store float32 numbers in groups: one code per number, some float32 numbers per group.

    Parameters
    ----------
    name : str
        Its label.
    block : int
        The number of neighbours in a group; the last group of a tensor may be shorter.

    Raises
    ------
    TypeError, ValueError
        If `block` is not an int, or is less than 1.
    """

    name: str
    _: KW_ONLY
    block: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "block", whole_number("block", self.block, least=1))

    def __str__(self) -> str:
        return self.name

    @property
    def bits_per_element(self) -> Fraction:
        """Bits of a code plus its share of the numbers of a full group, exactly."""
        return 8 + Fraction(32 * self.shared, self.block)

    @property
    @abstractmethod
    def zero(self) -> int:
        """The code of zero, whatever the shared numbers of its group."""

    def encode(self, x: Array) -> tuple[Array, ...]:
        """Encode a vector of float32: return its codes and the shared numbers of each group.

        Returns
        -------
        codes : array of uint8, shape (elements,)
        shared : arrays of float32, shape (groups,)
        """
        bounds = uniform(x.size, self.block)
        codes, shared = np.empty(x.size, np.uint8), np.empty((bounds.size - 1, self.shared), np.float32)
        group_loops(self).encode(x, bounds, codes, shared)
        return codes, *shared.T

    def decode(self, codes: Array, *shared: Array) -> Array:
        """Return the float32 numbers that codes stand for."""
        rows, out = np.stack(shared, axis=1), np.empty(codes.size, np.float32)
        group_loops(self).decode(codes, rows, uniform(codes.size, self.block), out)
        return out

    def through(self, x: Array) -> Array:
        """Return a vector of float32 encoded and decoded again."""
        return self.decode(*self.encode(np.ascontiguousarray(x, np.float32)))


@dataclass(frozen=True)
class DynamicMap(Quantiser):
    """A quantiser by a table of 256 numbers from -1 or 0 to 1, scaled by a group's largest magnitude.

    Parameters
    ----------
    signed : bool
        Whether the table has negative numbers; a second moment needs none.

    Notes
    -----
    The table has seven decades, ``10**-7`` to 1, each with twice as many numbers as the one below. A number
    is divided by the largest magnitude of its group, at least 1e-12, and takes the nearest number of the
    table, the upper one at a tie. A NaN makes its group NaN; an infinity makes it infinite or NaN.

    References
    ----------
    Dettmers et al., 8-bit optimizers via block-wise quantization, ICLR 2022 (at a tie, bitsandbytes keeps the
    number that its search came to); as in torchao/optim/quant_utils.py: groups of 256.
    """

    _: KW_ONLY
    signed: bool
    block: int = 256

    #: The largest magnitude.
    shared = 1

    @property
    def zero(self) -> int:
        """The code of zero: its place in the table."""
        return int(np.flatnonzero(self.table == 0)[0])

    @cached_property
    def table(self) -> Array:
        """The numbers of the table, in order, computed in float32 as PyTorch does."""
        found = [np.zeros(1, np.float32), np.ones(1, np.float32)]
        for decade in range(_DECADES):
            count = 2 ** (decade if self.signed else decade + 1)
            means = _between(count) * np.float32(10.0 ** (decade + 1 - _DECADES))
            found += [means, -means] if self.signed else [means]
        return np.sort(np.concatenate(found))

    @cached_property
    def places(self) -> Array:
        """The least float32 numbers that are nearest to the upper of two neighbours in the table.

        They are found by bisection, since the differences rounded to float32 grow with the number.
        """
        below, above = self.table[:-1], self.table[1:]
        half = (above - below) * np.float32(0.5)
        too_low, enough = _in_order(below), _in_order(above)
        while (enough - too_low > 1).any():
            middle = (too_low + enough) // 2
            upper = _at(middle) - below >= half
            too_low, enough = np.where(upper, too_low, middle), np.where(upper, middle, enough)
        return _at(enough)

    def shares(self, greatest: Value, *least: Value) -> tuple[Value, ...]:
        """Return the largest magnitude, at least 1e-12."""
        largest, bottom = greatest.as_number(), float(np.float32(1e-12))
        largest = (largest < bottom).select(bottom, largest)
        return (largest,)

    def encoded(self, x: Value, *shared: Value) -> Value:
        """Return the number divided by the group's largest magnitude."""
        return x / shared[0]

    def decoded(self, code: Value, *shared: Value) -> Value:
        """Return the number of the table times the group's largest magnitude."""
        return code * shared[0]


def _in_order(x: Array) -> Array:
    """Return integers in the order of float32 numbers; both zeros give 0."""
    bits = x.view(np.int32).astype(np.int64)
    return np.where(bits < 0, -(bits & _MAGNITUDE), bits)


def _at(place: Array) -> Array:
    """Return the float32 numbers of the integers that `_in_order` gives."""
    return np.copysign(np.abs(place).astype(np.int32).view(np.float32), place.astype(np.float32))


def _between(count: int) -> Array:
    """Return the midpoints of `count` equal parts of [0.1, 1], with the edges of `torch.linspace`.

    `torch.linspace` works in float32 from either end to the middle, by fused multiply-adds. They are exact in
    binary64 here.
    """
    first, last = np.float32(0.1), np.float32(1.0)
    step = float((last - first) / np.float32(count))
    places = np.arange(count + 1)
    lower, upper = float(first) + step * places, float(last) - step * (count - places)
    edges = np.where(places < (count + 1) // 2, lower, upper).astype(np.float32)
    middles: Array = (edges[:-1] + edges[1:]) / np.float32(2)
    return middles


@dataclass(frozen=True)
class RangeExpansion(Quantiser):
    """A quantiser to float8_e4m3fn of ``sign(x) (|x| / c)**k``; k spreads a group over the format's range.

    Parameters
    ----------
    steps : int
        k is a multiple of ``1 / steps``.

    Notes
    -----
    With M and m the largest and the least magnitude of a group, each with 1e-30 added: ``c = RN(sqrt(M))
    RN(sqrt(m))``, k the greatest multiple of ``1 / steps`` with ``(M / m)**k <= 448**2 / 2``, and the scale
    ``(M / c)**k / 448``. Operations are those of float32; powers and logarithms are rounded correctly
    (`mcfsim.kernels.element.binary32`), while CUDA's `powf` may err by a few ulps.

    Edge cases follow the published kernel. Its search for the least magnitude is meant to skip zeros, but
    also skips numbers that were combined with a zero. If all magnitudes of a group are the same, k is
    infinite: zeros come back as 1e-30 and other numbers as they are, or all as c if c is off by an ulp. A NaN
    does not affect the other numbers of its group, and its sign has no effect.

    References
    ----------
    Xi et al., COAT: compressing optimizer states and activation for memory-efficient FP8 training, ICLR 2025;
    ``fp8_adamw_expand_cuda_kernel.cu`` of its code, with groups of 128 and ``expand_min`` 16.
    """

    _: KW_ONLY
    block: int = 128
    steps: int = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "steps", whole_number("steps", self.steps, least=1))
        if self.block % _WARP:
            raise ValueError(f"block = {self.block} must be a multiple of {_WARP}, the threads that compare")

    #: The scale, k and c; and the code of zero.
    shared, zero = 3, 0

    @property
    def warps(self) -> Warps:
        """The way threads find the least magnitude of a group."""
        return Warps(_WARP, self.block, float(np.finfo(np.float32).max), float(np.float32(1e9)))

    def measured(self, x: Value) -> Value:
        """Return the bits of the magnitude; NaN counts as zero."""
        return x.equals(x).select(abs(x), 0.0).bits()

    def lesser(self, own: Value, other: Value) -> Value:
        """Return the lesser of two magnitudes as a thread finds it: it skips a zero that it receives."""
        less = (other < own).select(other, own)
        less = own.equals(own).select(less, other)
        return (other > 0.0).select(less, own)

    def shares(self, greatest: Value, *least: Value) -> tuple[Value, ...]:
        """Return the scale, k and c."""
        top = float(E4M3.max)
        most, smallest = _raised(greatest.as_number()), _raised(least[0])
        centre = most.sqrt() * smallest.sqrt()
        bound = float(np.float32(np.log2(top**2 / 2)))
        power = _floor(most.like(bound) / log2_element(most / smallest) * float(self.steps)) / float(
            self.steps
        )
        return power_element(most / centre, power) / top, power, centre

    def encoded(self, x: Value, *shared: Value) -> Value:
        """Return the code of ``sign(x) (|x| / c)**k / scale``."""
        (scale, power, centre), top = shared, float(E4M3.max)
        x = x.equals(x).select(x, NAN)
        y = _signed(power_element(abs(x) / centre, power), x) / scale
        y = (y > top).select(top, (y < -top).select(-top, y))
        return encode_element(change_element("round", y, Into(E4M3, Rounding(), F32)), E4M3)

    def decoded(self, code: Value, *shared: Value) -> Value:
        """Return the number of a code, by the inverse power."""
        scale, power, centre = shared
        y = decode_element(code, E4M3, F32) * scale
        root = power_element(abs(y), power.like(1.0) / power)  # a NaN to the power of 0 is 1, as CUDA has it
        return y.equals(y).select(_signed(root, y), root) * centre


def _raised(x: Value) -> Value:
    return (x.widen() + 1e-30).narrow()


def _signed(x: Value, sign: Value) -> Value:
    """Return a nonnegative number with the sign of another number."""
    return (x.bits() | (sign.bits() & _SIGN)).as_number()


def _floor(x: Value) -> Value:
    """Return the greatest integer that does not exceed a binary32 number."""
    integer = 1.5 * 2.0**52
    whole = (x.widen() + integer) - integer
    whole = (x.widen() < whole).select(whole - 1.0, whole)
    return (abs(x) < 2.0**24).select(whole.narrow(), x)  # larger numbers are integers
