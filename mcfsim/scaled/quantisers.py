"""Published ways to keep moments in 8 bits that no scaled format describes: by a map, and by powers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import KW_ONLY, dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.checks.arguments import whole_number
from mcfsim.codec import decode, encode
from mcfsim.convert import round_to
from mcfsim.formats import FORMATS

Array = NDArray[Any]

E4M3 = FORMATS["float8_e4m3fn"]
#: The powers of ten below which the numbers of a dynamic map lie, and how finely the largest are spread.
_DECADES = 7
#: What a warp of NVIDIA's GPUs has of threads.
_WARP = 32


@dataclass(frozen=True)
class Quantiser(ABC):
    """A way to keep float32 numbers in groups: as a code each, and some float32 numbers a group.

    Parameters
    ----------
    name : str
        What it is called.
    block : int
        How many neighbours are a group; the last one of a tensor may be shorter.

    Raises
    ------
    TypeError, ValueError
        If `block` is no int, or none.
    """

    name: str
    _: KW_ONLY
    block: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "block", whole_number("block", self.block, least=1))

    def __str__(self) -> str:
        return self.name

    @property
    @abstractmethod
    def shared(self) -> int:
        """How many float32 numbers a group has."""

    @property
    def bits_per_element(self) -> Fraction:
        """Bits of a code and its share of what a full group has, exactly."""
        return 8 + Fraction(32 * self.shared, self.block)

    @abstractmethod
    def encode(self, x: Array) -> tuple[Array, ...]:
        """Return codes, and what each group has, of a vector of float32.

        Returns
        -------
        codes : array of uint8, shape (elements,)
        shared : arrays of float32, shape (groups,)
        """

    @abstractmethod
    def decode(self, codes: Array, *shared: Array) -> Array:
        """Return the float32 numbers that codes stand for."""

    def through(self, x: Array) -> Array:
        """Return what is left of a vector of float32 that is kept so."""
        return self.decode(*self.encode(np.ascontiguousarray(x, np.float32)))

    def _rows(self, x: Array, filling: float = 0.0) -> Array:
        """Return groups as rows, the last one filled up."""
        return np.append(x, np.full(-x.size % self.block, filling, x.dtype)).reshape(-1, self.block)

    def _spread(self, shared: Array, size: int) -> Array:
        """Return what the groups have, for each of so many elements."""
        return np.repeat(shared, self.block)[:size]


@dataclass(frozen=True)
class DynamicMap(Quantiser):
    """8 bits as places in a table of 256 numbers from -1 to 1, or from 0 to 1, by the largest of a group.

    Parameters
    ----------
    signed : bool
        Whether there are negative ones; a second moment needs none.

    Notes
    -----
    The table has seven decades, ``10**-7`` to 1, each of twice as many numbers as the one below. A number is
    divided by the largest magnitude of its group, not less than 1e-12, and takes the nearest of the table, of
    two the upper one. A NaN makes its group NaN, and an infinity infinite or NaN.

    References
    ----------
    Dettmers et al., 8-bit optimizers via block-wise quantization, ICLR 2022 (bitsandbytes, which keeps at a
    tie the number that its search came to); as in torchao/optim/quant_utils.py: groups of 256.
    """

    _: KW_ONLY
    signed: bool
    block: int = 256

    @property
    def shared(self) -> int:
        """The largest magnitude."""
        return 1

    @cached_property
    def table(self) -> Array:
        """The numbers, in order, in float32."""
        return _table(signed=self.signed)

    def encode(self, x: Array) -> tuple[Array, ...]:
        """Return codes, and the largest magnitude of each group."""
        with np.errstate(all="ignore"):
            scale = np.maximum(np.abs(self._rows(x)).max(axis=1), np.float32(1e-12))
            y = x / self._spread(scale, x.size)
            lower = np.maximum(np.searchsorted(self.table, y, "right") - 1, 0)
            lower = np.where(np.isnan(y), 0, lower)  # of which the search knows no order
            upper = np.minimum(lower + 1, 255)
            below, above = self.table[lower], self.table[upper]
            codes = np.where(y - below >= (above - below) * np.float32(0.5), upper, lower)
        return codes.astype(np.uint8), scale

    def decode(self, codes: Array, *shared: Array) -> Array:
        """Return the numbers of the table, multiplied by the groups' largest."""
        with np.errstate(all="ignore"):
            return np.asarray(self.table[codes] * self._spread(shared[0], codes.size), np.float32)


@lru_cache
def _table(*, signed: bool) -> Array:
    """Return a dynamic map, computed in float32 as PyTorch does."""
    found = [np.zeros(1, np.float32), np.ones(1, np.float32)]
    for decade in range(_DECADES):
        count = 2 ** (decade if signed else decade + 1)
        means = _between(count) * np.float32(10.0 ** (decade + 1 - _DECADES))
        found += [means, -means] if signed else [means]
    return np.sort(np.concatenate(found))


def _between(count: int) -> Array:
    """Return the middles of so many equal parts of .1 to 1, whose edges are those of `torch.linspace`.

    It goes in float32 from either end to the middle by fused multiply-adds, which are exact in binary64 here.
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
    """float8_e4m3fn of ``sign(x) (|x| / c)**k``: k spreads the numbers of a group over the format's range.

    Parameters
    ----------
    steps : int
        By what k goes: one over this.

    Notes
    -----
    With M and m the largest and the least magnitude of a group, each with 1e-30 added: ``c = RN(sqrt(M))
    RN(sqrt(m))``, k the greatest multiple of ``1 / steps`` with ``(M / m)**k <= 448**2 / 2``, and the scale
    ``(M / c)**k / 448``. Operations are those of float32; powers and logarithms are computed in binary64 by
    the platform and rounded, where CUDA's `powf` may err by some ulp.

    The published kernel's behaviour at the edges is kept. Its search for the least magnitude means to pass
    over zeros, and passes over what was joined with a zero as well. Where a group has one magnitude k is
    infinite: zeros come back as 1e-30, others as they are, or all as c if that is off by an ulp. A NaN has
    no effect on the others of its group, and its sign none at all.

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

    @property
    def shared(self) -> int:
        """Scale, k and c."""
        return 3

    def encode(self, x: Array) -> tuple[Array, ...]:
        """Return codes, and scale, k and c of each group."""
        top = np.float32(E4M3.max)
        with np.errstate(all="ignore"):
            x = _of_cuda(x)
            magnitudes = np.abs(x)
            rows = self._rows(magnitudes)
            largest = _raised(np.fmax.reduce(rows, axis=1, initial=0.0))
            least = _raised(_least(self._rows(magnitudes, float(np.finfo(np.float32).max))))
            centre = np.sqrt(largest) * np.sqrt(least)
            bound = np.float32(np.log2(float(top) ** 2 / 2))
            ratio = np.log2((largest / least).astype(np.float64)).astype(np.float32)
            power = np.floor(bound / ratio * np.float32(self.steps)) / np.float32(self.steps)
            scale = _power(largest / centre, power) / top
            spread = [self._spread(shared, x.size) for shared in (scale, power, centre)]
            y = _of_cuda(np.copysign(_power(magnitudes / spread[2], spread[1]), x) / spread[0])
            codes = encode(round_to(np.clip(y, -top, top), E4M3), E4M3)
        return codes, scale, power, centre

    def decode(self, codes: Array, *shared: Array) -> Array:
        """Return the numbers, by the inverse of the power."""
        scale, power, centre = (self._spread(x, codes.size) for x in shared)
        with np.errstate(all="ignore"):
            y = _of_cuda(decode(codes, E4M3).astype(np.float32) * scale)
            root = _power(np.abs(y), np.float32(1) / power)  # a NaN to the power of 0 is 1, as CUDA has it
            return np.asarray(np.copysign(root, y) * centre, np.float32)


def _raised(x: Array) -> Array:
    return (x.astype(np.float64) + 1e-30).astype(np.float32)


def _of_cuda(x: Array) -> Array:
    """Give every NaN the sign that CUDA's have; here it depends on which operand was the NaN."""
    return np.where(np.isnan(x), np.float32(np.nan), x)


def _power(x: Array, exponent: Array) -> Array:
    """Return powers of float32 numbers in float32."""
    return np.power(x.astype(np.float64), exponent.astype(np.float64)).astype(np.float32)


def _least(rows: Array) -> Array:
    """Return the least of each row as threads find it that compare in pairs, warp by warp.

    One that has a zero keeps it, and one that is handed a zero passes over it, and with it over all that was
    compared with that.
    """
    warps = _halved(rows.reshape(len(rows), -1, _WARP))
    filled = np.full((len(rows), _WARP), 1e9, np.float32)
    filled[:, : warps.shape[1]] = warps
    return _halved(filled)


def _halved(x: Array) -> Array:
    while x.shape[-1] > 1:
        own, other = np.split(x, 2, axis=-1)
        x = np.where(other > 0, np.fmin(own, other), own)
    return x[..., 0]
