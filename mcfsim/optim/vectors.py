"""How an optimizer's vectors lie in memory: as carrier numbers, or packed, as codes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mcfsim.codec.codes import values_of
from mcfsim.convert import round_to
from mcfsim.formats import Format
from mcfsim.kernels.carriers import carrier_of
from mcfsim.kernels.codes_by_kind import FloatCodes, code_dtype, codes_by_kind
from mcfsim.kernels.element.codes import MOST_BITS
from mcfsim.kernels.element.machine import F32, I32, Line, Value, recorded
from mcfsim.kernels.element.on_numpy import run
from mcfsim.kernels.element.split import joined_element, rest_element
from mcfsim.optim.state import State
from mcfsim.optim.stored import FLOAT32
from mcfsim.scaled import ScaledFormat, quantize
from mcfsim.scaled.quantisers import Quantiser
from mcfsim.storage.buffers import BLOCK

Array = NDArray[Any]
#: Those of a `State`'s vectors, in its order.
Formats = tuple[Format | None, ...]


class Packed(Protocol):
    """A vector that is no array of its numbers, nor of their codes alone."""

    def __getitem__(self, block: slice) -> Packed:
        """Return a block of it, which shares its memory."""

    def numbers(self) -> Array:
        """Return the carrier numbers."""

    def keep(self, numbers: Array) -> None:
        """Put numbers in the place of those that it has."""


#: What a `State` holds.
Vector = Array | Packed


@dataclass(frozen=True)
class Split:
    """A vector of float32 numbers whose leading bits are the codes in another vector.

    Parameters
    ----------
    leading : array of unsigned integers
        Codes of a format with float32's exponents and less precision: these numbers, rounded.
    rest : array of unsigned integers
        The bits that follow.
    following : int
        How many these are.
    rounded : bool
        Whether the codes are rounded to nearest, ties away from zero: then they are one more than the leading
        bits where the first bit that follows is set. Otherwise they are the leading bits.
    """

    leading: Array
    rest: Array
    following: int
    rounded: bool

    @classmethod
    def beside(cls, leading: Array, rest: Array, fmt: Format, *, rounded: bool) -> Split:
        """Return the vector whose leading bits are codes of a format, and whose others are the rest."""
        return cls(leading, rest, FLOAT32.precision - fmt.precision, rounded)

    @staticmethod
    def form(fmt: Format) -> np.dtype[Any]:
        """Return the dtype of what follows the codes of a format."""
        return np.min_scalar_type(2 ** (FLOAT32.precision - fmt.precision) - 1)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the bits that follow."""
        return self.rest.dtype

    @property
    def itemsize(self) -> int:
        """Bytes an element, those of the codes not counted."""
        return self.rest.itemsize

    def __getitem__(self, block: slice) -> Split:
        return Split(self.leading[block], self.rest[block], self.following, self.rounded)

    def numbers(self) -> Array:
        """Return the numbers."""
        line, results = _joined(self.following, rounded=self.rounded)
        (numbers,) = run(
            line, results, leading=self.leading.astype(np.int32), rest=self.rest.astype(np.int32)
        )
        return numbers

    def keep(self, numbers: Array) -> None:
        """Keep what follows the codes of numbers, which are kept by themselves. All NaN become one."""
        line, results = _rest(self.following)
        (self.rest[...],) = run(line, results, x=np.ascontiguousarray(numbers, np.float32))


@lru_cache
def _joined(following: int, *, rounded: bool) -> tuple[Line, tuple[Value, ...]]:
    text = partial(joined_element, following=following, rounded=rounded)
    return recorded(text, leading=I32, rest=I32)


@lru_cache
def _rest(following: int) -> tuple[Line, tuple[Value, ...]]:
    return recorded(partial(rest_element, following=following), x=F32)


def packed_dtype(fmt: Format) -> np.dtype[Any]:
    """Return the dtype of a packed vector: of codes that have 16 bits or less, one of them for NaN.

    Other formats lie in their carriers.
    """
    short = fmt.bits <= MOST_BITS and fmt.has_nan
    return code_dtype(fmt) if short else carrier_of(fmt)


def form(fmt: Format | None, *, packed: bool) -> np.dtype[Any]:
    """Return the dtype of a vector of a format, packed or not, or of one of exact numbers."""
    if fmt is None:
        return np.dtype(object)
    return packed_dtype(fmt) if packed else carrier_of(fmt)


def is_packed(x: Array | Split) -> bool:
    """Return whether an array holds codes, or bits that follow them."""
    return x.dtype.kind == "u"


def read(x: Vector, fmt: Format | None) -> Array:
    """Return the carrier numbers of a vector, as it is if it holds them."""
    if not isinstance(x, np.ndarray):
        return x.numbers()
    if not is_packed(x):
        return x
    assert fmt is not None
    carrier, codes = carrier_of(fmt), codes_by_kind(fmt)
    cut = codes.cut(carrier) if isinstance(codes, FloatCodes) else 0
    if not cut:
        return values_of(x, fmt)
    numbers: Array = x.astype(f"u{carrier.itemsize}")
    numbers <<= numbers.dtype.type(cut)
    return numbers.view(carrier)


def write(x: Vector, values: Array, fmt: Format | None) -> None:
    """Put values of a format in a vector, or codes, if it holds codes or is packed otherwise."""
    if not isinstance(x, np.ndarray):
        x.keep(read(values, fmt))
        return
    if is_packed(x) and not is_packed(values):
        assert fmt is not None
        values = codes_by_kind(fmt).encode(np.ascontiguousarray(values))
    x[...] = values


def requantize(x: Array, tensors: Iterable[slice], kept: ScaledFormat | Quantiser, fmt: Format) -> None:
    """Put in place of a vector's numbers what is left of them as they are kept, rounded into their format.

    Parameters
    ----------
    x : array
        Numbers of `fmt` in its carrier.
    tensors : iterable of slice
        Where each tensor lies: blocks begin with it.
    kept : ScaledFormat or Quantiser
        Elements of a scaled format are rounded to nearest even, and saturate.
    fmt : Format
        What comes of them is rounded into it, to nearest even.
    """
    # Of whole blocks, where these do not depend on the rest of the tensor.
    size = max(1, len(x))
    if isinstance(kept.block, int) and (isinstance(kept, Quantiser) or kept.tensor_scale is None):
        size = max(1, BLOCK // kept.block) * kept.block
    for tensor in tensors:
        for start in range(tensor.start, tensor.stop, size):
            part = slice(start, min(start + size, tensor.stop))
            left = (
                kept.through(x[part]) if isinstance(kept, Quantiser) else quantize(x[part], kept).dequantize()
            )
            x[part] = round_to(left, fmt)


def read_block(state: State, formats: Formats, block: slice) -> State:
    """Return the carrier numbers of a block of all vectors."""
    pairs = zip(state, formats, strict=True)
    return State(*(tuple(read(x[block], fmt) for x in vectors) for vectors, fmt in pairs))


def write_block(state: State, new: State, formats: Formats, block: slice) -> None:
    """Put new values in a block of all vectors."""
    for vectors, values, fmt in zip(state, new, formats, strict=True):
        for x, made in zip(vectors, values, strict=True):
            write(x[block], made, fmt)
