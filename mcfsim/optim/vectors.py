"""The vectors of an optimizer in memory: carrier numbers, packed codes, split numbers or remainders."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mcfsim.backends.factory import arithmetic
from mcfsim.checks import is_masked, is_real
from mcfsim.codec import check_codes, values_of
from mcfsim.compile.loops import BoundLoop
from mcfsim.convert import round_to
from mcfsim.formats import Format
from mcfsim.kernels.carriers import carrier_of, code_dtype
from mcfsim.kernels.codes_by_kind import FloatCodes, codes_by_kind
from mcfsim.kernels.element.binary32 import joined_element, rest_element
from mcfsim.kernels.element.codes import MOST_BITS
from mcfsim.kernels.element.machine import F32, I32, Line, Value, recorded, run
from mcfsim.optim.state import State, steps_of, with_steps
from mcfsim.optim.stored import FLOAT32
from mcfsim.scaled import ScaledFormat, quantize
from mcfsim.scaled.quantisers import Quantiser
from mcfsim.storage.buffers import BLOCK, scratch

Array = NDArray[Any]
#: The formats of a `State`'s vectors, in its order.
Formats = tuple[Format | None, ...]


class Packed(Protocol):
    """A vector that is stored neither as an array of its numbers nor as an array of their codes."""

    def __getitem__(self, block: slice) -> Packed:
        """Return a block of the vector, which shares its memory."""

    def numbers(self) -> Array:
        """Return the carrier numbers."""

    def keep(self, numbers: Array) -> None:
        """Store numbers in place of the old ones."""


#: A vector of a `State`.
Vector = Array | Packed


@dataclass(frozen=True)
class Split:
    """A vector of float32 numbers whose leading bits are the codes in another vector.

    Parameters
    ----------
    leading : array of unsigned integers
        Codes of the rounded numbers, in a format with float32's exponents and less precision.
    rest : array of unsigned integers
        The bits that follow the leading bits.
    following : int
        Number of bits that follow.
    rounded : bool
        Whether the codes are rounded to nearest, ties away from zero. If so, they exceed the leading bits by
        one where the first bit that follows is set. Otherwise they are the leading bits.
    """

    leading: Array
    rest: Array
    following: int
    rounded: bool

    @classmethod
    def beside(cls, leading: Array, rest: Array, fmt: Format, *, rounded: bool) -> Split:
        """Return the vector with codes of a format as leading bits, and `rest` as the other bits."""
        return cls(leading, rest, FLOAT32.precision - fmt.precision, rounded)

    @staticmethod
    def form(fmt: Format) -> np.dtype[Any]:
        """Return the dtype of the bits that follow the codes of a format."""
        return np.min_scalar_type(2 ** (FLOAT32.precision - fmt.precision) - 1)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the bits that follow."""
        return self.rest.dtype

    @property
    def itemsize(self) -> int:
        """Bytes per element, without the codes."""
        return self.rest.itemsize

    def __getitem__(self, block: slice) -> Split:
        return Split(self.leading[block], self.rest[block], self.following, self.rounded)

    def numbers(self) -> Array:
        """Return the numbers as float32."""
        line, results = _joined(self.following, rounded=self.rounded)
        (numbers,) = run(
            line, results, leading=self.leading.astype(np.int32), rest=self.rest.astype(np.int32)
        )
        return numbers

    def keep(self, numbers: Array) -> None:
        """Store the bits that follow the codes of numbers, but not the codes; all NaN become one."""
        line, results = _rest(self.following)
        (self.rest[...],) = run(line, results, x=np.ascontiguousarray(numbers, np.float32))


@lru_cache
def _joined(following: int, *, rounded: bool) -> tuple[Line, tuple[Value, ...]]:
    element = partial(joined_element, following=following, rounded=rounded)
    return recorded(element, leading=I32, rest=I32)


@lru_cache
def _rest(following: int) -> tuple[Line, tuple[Value, ...]]:
    return recorded(partial(rest_element, following=following), x=F32)


def packed_dtype(fmt: Format) -> np.dtype[Any]:
    """Return the dtype of a packed vector: codes of a format with NaN and at most 16 bits, or its carrier."""
    short = fmt.bits <= MOST_BITS and fmt.has_nan
    return code_dtype(fmt) if short else carrier_of(fmt)


def form(fmt: Format | None, *, packed: bool) -> np.dtype[Any]:
    """Return the dtype of a vector of a format, packed or not; object for exact numbers."""
    if fmt is None:
        return np.dtype(object)
    return packed_dtype(fmt) if packed else carrier_of(fmt)


def is_packed(x: Array | Split) -> bool:
    """Return whether an array holds codes, or bits that follow codes."""
    return x.dtype.kind == "u"


def check_gradient(gradient: Any, size: int, fmt: Format | None, *, packed: bool) -> None:
    """Raise an error unless a gradient is a vector of floats, or of codes if vectors hold codes.

    Raises
    ------
    TypeError
        If it is not an array, is masked, holds codes of another dtype or other integers, or holds anything
        but floats of at most 64 bits; exact numbers are allowed if the gradient has no format.
    ValueError
        If its shape differs, or an element is not a code.
    """
    if not isinstance(gradient, np.ndarray) or is_masked(gradient):
        raise TypeError(f"the gradient must be an array, as `receive` returns it, not {gradient!r:.60}")
    if gradient.shape != (size,):
        raise ValueError(f"the gradient must have shape ({size},), not {gradient.shape}")
    if packed and fmt is not None and is_packed(gradient):
        if gradient.dtype != packed_dtype(fmt):
            raise TypeError(f"codes of {fmt} are an array of {packed_dtype(fmt)}, not {gradient.dtype}")
        check_codes(gradient, fmt)
    elif fmt is None and gradient.dtype.kind == "O":
        return
    elif gradient.dtype.kind in "iu" or not is_real(gradient.dtype):
        raise TypeError(f"a gradient of dtype {gradient.dtype} holds no floats of at most 64 bits")


def read(x: Vector, fmt: Format | None) -> Array:
    """Return the carrier numbers of a vector; the vector itself if it holds them."""
    if not isinstance(x, np.ndarray):
        return x.numbers()
    if not is_packed(x):
        return x
    assert fmt is not None
    carrier, unsigned, cut, _ = _upper(fmt)
    if unsigned is None:
        return values_of(x, fmt)
    numbers: Array = np.left_shift(x, cut, dtype=unsigned)
    return numbers.view(carrier)


@lru_cache(maxsize=64)
def _upper(fmt: Format) -> tuple[Any, Any, Any, int]:
    """Return the carrier, its unsigned dtype, how many of its lower bits codes lack, and the code of NaN.

    The unsigned dtype is None if codes are not the upper bits of carrier numbers.
    """
    carrier, codes = carrier_of(fmt), codes_by_kind(fmt)
    cut = codes.cuts[carrier] if isinstance(codes, FloatCodes) else 0
    if not (cut and isinstance(codes, FloatCodes)):
        return carrier, None, None, 0
    unsigned = np.dtype(f"u{carrier.itemsize}")
    return carrier, unsigned, unsigned.type(cut), codes.nan


def write(x: Vector, values: Array, fmt: Format | None) -> None:
    """Write values of a format, or their codes, to a vector in the form that the vector holds."""
    if not isinstance(x, np.ndarray):
        x.keep(read(values, fmt))
        return
    if is_packed(x) and not is_packed(values):
        assert fmt is not None
        carrier, unsigned, cut, nan = _upper(fmt)
        if unsigned is not None and values.dtype == carrier:
            np.right_shift(values.view(unsigned), cut, out=x, casting="unsafe")
            if (there := np.isnan(values)).any():
                x[there] = nan
            return
        values = codes_by_kind(fmt).encode(np.ascontiguousarray(values))
    x[...] = values


def requantize(x: Array, tensors: Iterable[slice], kept: ScaledFormat | Quantiser, fmt: Format) -> None:
    """Quantise a vector's numbers in place, and round the quantised numbers into their format.

    Parameters
    ----------
    x : array
        Numbers of `fmt` in its carrier.
    tensors : iterable of slice
        The place of each tensor; blocks begin at its start.
    kept : ScaledFormat or Quantiser
        How numbers are quantised; elements of a scaled format are rounded to nearest even, and saturate.
    fmt : Format
        The format into which the quantised numbers are rounded, to nearest even.
    """
    # Work on a few whole blocks at a time, unless they depend on the rest of the tensor.
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
    """Return the carrier numbers of one block of all vectors."""
    pairs = zip(state, formats, strict=True)
    return State(*(tuple(read(x[block], fmt) for x in vectors) for vectors, fmt in pairs))


def write_block(state: State, new: State, formats: Formats, block: slice) -> None:
    """Write new values to one block of all vectors."""
    for vectors, values, fmt in zip(state, new, formats, strict=True):
        for x, made in zip(vectors, values, strict=True):
            write(x[block], made, fmt)


# -- remainders -------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Remainder:
    """A vector of float32 numbers that lie within half an ulp of the values of another vector.

    Parameters
    ----------
    leading : array
        The values, as codes or numbers of a format.
    rest : array of uint8 or uint16
        Remainders, in two's complement.
    low : Format
        The format of the values.
    bits : int
        The size of a remainder in bits.
    """

    leading: Array
    rest: Array
    low: Format
    bits: int

    def __getitem__(self, block: slice) -> Remainder:
        return replace(self, leading=self.leading[block], rest=self.rest[block])

    def numbers(self) -> Array:
        """Return the numbers; NaN where the leading value is not finite."""
        steps = self.rest.view(f"i{self.rest.itemsize}").astype(np.float32)
        return self._made(with_steps, steps)

    def keep(self, numbers: Array) -> None:
        """Store the remainders of numbers whose rounded values `leading` has; zero for NaN."""
        steps = self._made(steps_of, np.asarray(numbers, np.float32))
        np.copyto(steps, 0.0, where=np.isnan(steps))
        self.rest[...] = steps.astype(f"i{self.rest.itemsize}").view(self.rest.dtype)

    def _made(self, algorithm: Any, beside: Array) -> Array:
        """Return the result of `with_steps` or `steps_of` for the leading values and numbers near them."""
        ar, leading = arithmetic("float32", compiled=False), read(self.leading, self.low)
        with np.errstate(all="ignore"):
            return np.array(algorithm(ar, self.low, self.bits, leading, beside), np.float32)


def filling(
    bound_loop: BoundLoop,
    given: Sequence[tuple[Vector, Format | None]],
    asked: Sequence[tuple[Vector | None, Format | None]],
    first: int = 0,
) -> Callable[[slice], None]:
    """Return a function that runs a loop on a block of vectors, each with its format.

    The vectors that results are written to may be among those that are read. For random words, the first
    element of the vectors has number `first`. Some loops must not write where they read
    (`BoundLoop.in_place`). A loop knows the codes of some formats only, or of none if it runs by NumPy: then
    numbers are read and written outside the loop. A result without a vector is dropped.
    """
    read_from = set() if bound_loop.in_place else {id(x) for x, _ in given}
    # What is the same for all blocks is done once: a step has hundreds, each of a few hundred microseconds.
    sources: list[tuple[Any, Format | None, np.dtype[Any], bool]] = [
        (x, fmt, dtype, isinstance(x, np.ndarray) and x.dtype == dtype and x.flags.c_contiguous)
        for (x, fmt), dtype in zip(given, bound_loop.operands, strict=True)
    ]
    targets: list[tuple[Any, Format | None, np.dtype[Any], bool, str]] = [
        (x, fmt, dtype, _is_filled(x, dtype) and id(x) not in read_from, f"step{i}")
        for i, ((x, fmt), dtype) in enumerate(zip(asked, bound_loop.results, strict=True))
    ]

    def fill(block: slice) -> None:
        operands = [x[block] if ready else _operand(x[block], fmt, dtype) for x, fmt, dtype, ready in sources]
        size = operands[0].size
        results = [
            x[block] if direct else scratch(place, size, dtype) for x, _, dtype, direct, place in targets
        ]
        bound_loop(operands, results, first + block.start)
        for (x, fmt, _, direct, _), made in zip(targets, results, strict=True):
            if x is not None and not direct:
                write(x[block], made, fmt)

    return fill


def _is_filled(x: Any, dtype: np.dtype[Any]) -> bool:
    """Return whether a loop can write to a vector itself."""
    return isinstance(x, np.ndarray) and x.dtype == dtype and x.flags.c_contiguous and x.flags.writeable


def apart(x: Array, vectors: Iterable[Any]) -> Array:
    """Return a vector that a step reads while it writes others: a copy if it partly overlaps one of these.

    It may occupy exactly the memory of one, since each element is read before it is written.
    """
    for y in vectors:
        written = getattr(y, "leading", y)
        if isinstance(written, np.ndarray) and np.may_share_memory(x, written) and _lie(x) != _lie(written):
            return x.copy()
    return x


def _lie(x: Array) -> tuple[Any, ...]:
    return x.ctypes.data, x.itemsize, x.strides


def _operand(x: Vector, fmt: Format | None, dtype: np.dtype[Any]) -> Array:
    """Return a block in the form that a loop reads: unchanged, as numbers, or as codes."""
    if isinstance(x, np.ndarray) and x.dtype == dtype:
        return np.ascontiguousarray(x)
    numbers = read(x, fmt)
    if dtype.kind != "u":
        return numbers
    codes = np.empty(numbers.size, dtype)
    write(codes, numbers, fmt)
    return codes
