"""The array API standard's functions for rounded arrays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from mcfsim.checks import as_array, is_tensor
from mcfsim.codec import ulp
from mcfsim.formats import FORMATS, Format
from mcfsim.rounding import Rounding

#: The version of the standard that names and arguments follow.
VERSION = "2024.12"
#: NumPy's names, used as they are: rounded arrays carry out the functions, and plain arrays work as usual.
_NAMES = """
abs add all any argmax argmin bitwise_and bitwise_invert bitwise_left_shift bitwise_or bitwise_right_shift
bitwise_xor broadcast_to ceil clip concat copysign cos count_nonzero cumulative_prod cumulative_sum divide
equal exp expand_dims expm1 flip floor greater greater_equal isfinite isinf isnan less less_equal log
log1p logical_and logical_not logical_or logical_xor matmul matrix_transpose max maximum mean min minimum
moveaxis multiply negative nonzero not_equal permute_dims positive prod reciprocal repeat reshape roll
round sign signbit sin sqrt square squeeze stack subtract sum take take_along_axis tanh tile tril triu
trunc unstack where bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 e inf nan newaxis pi
"""
_SHARED = frozenset(_NAMES.split())
#: Functions whose results are arrays of the format, if no other dtype is asked for.
_CREATING = frozenset(("empty", "eye", "linspace", "ones", "zeros"))
_CREATING_LIKE = frozenset(("empty_like", "ones_like", "zeros_like"))


@dataclass(frozen=True)
class FormatInfo:
    """The result of `finfo` for a format: plain numbers, and the format itself as ``dtype``."""

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: Format


class ArrayNamespace:
    """The functions of the array API standard for rounded arrays of one format and rounding.

    The dtypes of real numbers are formats, available under their names. New arrays have the format of the
    array whose namespace this is. Arrays of different formats do not mix. Integers, truth values and indices
    are plain NumPy arrays. ``sum``, ``prod`` and their cumulative forms work from left to right and round
    after each operation; ``mean`` is the sum divided by the number of elements. Functions that would need an
    operation arithmetics do not have, such as ``pow``, ``atan2`` or ``var``, are missing.

    Parameters
    ----------
    fmt : Format
        The format of new arrays.
    rounding : Rounding
        The rounding of the arrays. Namespaces of the same format and rounding are equal: code written for
        the standard compares the namespaces of several arrays.
    enter : callable
        ``enter(x, fmt)`` rounds numbers into an array of a format.
    """

    def __init__(self, fmt: Format, rounding: Rounding, enter: Callable[..., Any]) -> None:
        self.format, self._enter = fmt, enter
        self._about = fmt, rounding
        #: Formats by their names, which are the dtypes of real numbers.
        self.formats = {**FORMATS, fmt.name: fmt}
        self.__name__ = f"mcfsim.{fmt}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ArrayNamespace) and self._about == other._about

    def __hash__(self) -> int:
        return hash(self._about)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *_SHARED, *_CREATING, *_CREATING_LIKE, *self.formats})

    def __repr__(self) -> str:
        return f"<array namespace of {self.format}>"

    def __getattr__(self, name: str) -> Any:
        if name == "formats":  # a copy in the making has no attributes yet
            raise AttributeError(name)
        if name in self.formats:
            return self.formats[name]
        if name in _SHARED:
            return getattr(np, name)
        if name in _CREATING:
            return lambda *given, **options: self._made(getattr(np, name), given, options)
        if name in _CREATING_LIKE:
            return lambda x, /, **options: self._made_like(name, x, **options)
        raise AttributeError(
            f"arrays of {self.format} have no {name}: arithmetics lack the operation", name=name
        )

    # -- creation ------------------------------------------------------------------------------------------
    def _made(self, function: Callable[..., Any], given: Any, options: Any) -> Any:
        """Return the array that a NumPy function creates, rounded if its dtype is a format or not given."""
        _check_device(options.pop("device", None))
        dtype = options.pop("dtype", None)
        if dtype is None or _is_format(dtype):
            return self._enter(function(*given, **options, dtype=np.float64), dtype)
        return function(*given, **options, dtype=dtype)

    def _made_like(self, name: str, x: Any, *, dtype: Any = None, device: Any = None) -> Any:
        return getattr(self, name.removesuffix("_like"))(
            x.shape, dtype=x.dtype if dtype is None else dtype, device=device
        )

    def asarray(self, x: Any, /, *, dtype: Any = None, device: Any = None, copy: bool | None = None) -> Any:
        """Return an array of a format, rounded once, or a NumPy array of integers or truth values.

        Without ``dtype``, an array of a format keeps it, integers and truth values stay as they are, and
        other numbers are rounded into the namespace's format.

        Raises
        ------
        TypeError
            If ``dtype`` is neither the format, nor bool, nor an integer.
        ValueError
            If ``copy=False`` and a copy is needed.
        """
        _check_device(device)
        x = as_array(x) if is_tensor(x) else x
        if dtype is None:
            known = getattr(x, "dtype", None)
            dtype = known if isinstance(known, Format) else _kind_of(x) or self.format
        if not _is_format(dtype):
            return np.asarray(x, dtype=dtype, copy=copy)
        if getattr(x, "dtype", None) == dtype and not copy:
            return x
        if copy is False:
            raise ValueError("copy=False, but numbers rounded into a format are a copy")
        return self._enter(x, dtype)

    def full(self, shape: Any, value: Any, *, dtype: Any = None, device: Any = None) -> Any:
        """Return an array filled with a number, which is rounded if the dtype is the format."""
        _check_device(device)
        if dtype is None:
            dtype = _kind_of(value) or self.format
        if _is_format(dtype):
            return np.broadcast_to(self._enter(value, dtype), shape)
        return np.full(shape, value, dtype)

    def full_like(self, x: Any, /, value: Any, *, dtype: Any = None, device: Any = None) -> Any:
        """Return an array of the shape of another one, and of its dtype, filled with a number."""
        return self.full(x.shape, value, dtype=x.dtype if dtype is None else dtype, device=device)

    def arange(
        self, start: Any, /, stop: Any = None, step: Any = 1, *, dtype: Any = None, device: Any = None
    ) -> Any:
        """Return evenly spaced numbers: integers, or numbers that are each rounded into the format."""
        _check_device(device)
        if dtype is None and all(x is None or isinstance(x, int) for x in (start, stop, step)):
            dtype = np.int64
        begin, end = (0, start) if stop is None else (start, stop)
        if dtype is None or _is_format(dtype):
            return self._enter(np.arange(begin, end, step, dtype=np.float64), dtype)
        return np.arange(begin, end, step, dtype=dtype)

    def from_dlpack(self, x: Any, /, *, device: Any = None, copy: bool | None = None) -> Any:
        """Return an array of another library, with real numbers rounded into the format."""
        _check_device(device)
        return self.asarray(np.from_dlpack(x), copy=copy)

    def meshgrid(self, *arrays: Any, indexing: str = "xy") -> list[Any]:
        """Return arrays of coordinates; ValueError for any indexing but ``"xy"`` and ``"ij"``."""
        if indexing not in ("xy", "ij"):
            raise ValueError(f"unknown indexing {indexing!r}; allowed: xy, ij")
        axes = list(range(len(arrays)))
        if indexing == "xy" and len(arrays) > 1:
            axes[:2] = 1, 0
        shapes = [tuple(-1 if place == axis else 1 for place in range(len(arrays))) for axis in axes]
        return self.broadcast_arrays(*map(np.reshape, arrays, shapes))

    # -- dtypes ----------------------------------------------------------------------------------------------
    def astype(self, x: Any, dtype: Any, /, *, copy: bool = True, device: Any = None) -> Any:
        """Return an array with another dtype; numbers are rounded once, or truncated to integers.

        Raises
        ------
        ValueError
            If a number is NaN, infinite or beyond the integers of the dtype.
        """
        _check_device(device)
        if _is_format(dtype):
            return x if x.dtype == dtype and not copy else self._enter(x, dtype)
        return (np.asarray(x, dtype) if isinstance(x.dtype, Format) else x).astype(dtype, copy=copy)

    def can_cast(self, given: Any, dtype: Any, /) -> bool:
        """Return whether the standard's rules convert a dtype, or the dtype of an array, to another one."""
        given = _dtype_of(given)
        if not _is_format(given) and not _is_format(dtype):
            return bool(np.can_cast(given, dtype))
        return bool(given == dtype)

    def result_type(self, *given: Any) -> Any:
        """Return the dtype that results from combining arrays, dtypes and numbers.

        Raises
        ------
        TypeError
            If a format is combined with another format, integers or truth values: such arrays do not mix.
        """
        dtypes = [_dtype_of(x, None) for x in given]
        known = [dtype for dtype in dtypes if dtype is not None]
        if not any(map(_is_format, known)):
            taken: list[Any] = [x if dtype is None else dtype for x, dtype in zip(given, dtypes, strict=True)]
            return np.result_type(*taken)
        if any(dtype != known[0] for dtype in known):
            raise TypeError(f"{' and '.join(map(str, known))} do not mix; convert by astype")
        return known[0]

    def isdtype(self, dtype: Any, kind: Any) -> bool:
        """Return whether a dtype is of a kind; formats are ``"real floating"`` and ``"numeric"``."""
        if isinstance(kind, tuple):
            return any(self.isdtype(dtype, item) for item in kind)
        if isinstance(dtype, Format) or isinstance(kind, Format):
            return kind in ("real floating", "numeric") if isinstance(kind, str) else dtype == kind
        return np.isdtype(dtype, kind)

    def finfo(self, dtype: Any, /) -> FormatInfo:
        """Return the precision and the range of the format."""
        fmt = _dtype_of(dtype)
        if not isinstance(fmt, Format):
            raise TypeError(f"finfo takes a format, not {dtype!r}")
        step, least = float(ulp(1.0, fmt)), float(fmt.smallest_normal)
        return FormatInfo(fmt.bits, step, float(fmt.max), float(fmt.lowest), least, fmt)

    def iinfo(self, dtype: Any, /) -> np.iinfo[Any]:
        """Return the range of an integer dtype, or of the dtype of an array."""
        return np.iinfo(_dtype_of(dtype))

    # -- order -----------------------------------------------------------------------------------------------
    def sort(self, x: Any, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Any:
        """Return the elements in order; NaN comes last, or first in descending order."""
        return self.take_along_axis(x, self.argsort(x, axis=axis, descending=descending), axis=axis)

    def argsort(self, x: Any, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Any:
        """Return the indices that sort the elements; equal elements keep their order."""
        if not descending:
            return np.argsort(np.asarray(x), axis=axis, stable=True)
        backward = np.flip(np.asarray(x), axis)
        return x.shape[axis] - 1 - np.flip(np.argsort(backward, axis=axis, stable=True), axis)

    def broadcast_arrays(self, *arrays: Any) -> list[Any]:
        """Return arrays of one shape, each with its own dtype."""
        return list(np.broadcast_arrays(*arrays))

    def __array_namespace_info__(self) -> NamespaceInfo:
        return NamespaceInfo(self)


@dataclass(frozen=True)
class NamespaceInfo:
    """The inspection object that the standard defines for a namespace."""

    of: ArrayNamespace

    def capabilities(self) -> dict[str, Any]:
        """Return which optional features of the standard are supported."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 64}

    def devices(self) -> list[str]:
        """Return the devices that arrays are on."""
        return ["cpu"]

    def default_device(self) -> str:
        """Return the device of new arrays."""
        return "cpu"

    def default_dtypes(self, *, device: Any = None) -> dict[str, Any]:
        """Return the dtypes of new arrays, by kind of element."""
        _check_device(device)
        return {
            "real floating": self.of.format,
            "integral": np.dtype(np.int64),
            "indexing": np.dtype(np.int64),
        }

    def dtypes(self, *, device: Any = None, kind: Any = None) -> dict[str, Any]:
        """Return dtypes by their names, of one kind or several."""
        exact = np.__array_namespace_info__().dtypes(device=device, kind=("bool", "integral"))
        found = {**exact, **self.of.formats}
        return {name: dtype for name, dtype in found.items() if kind is None or self.of.isdtype(dtype, kind)}


def _kind_of(x: Any) -> Any:
    """Return the dtype of integers or truth values; return None for other numbers."""
    dtype = np.asarray(x).dtype if not hasattr(x, "dtype") else x.dtype
    if isinstance(dtype, Format) or np.dtype(dtype).kind not in "biu":
        return None
    return dtype


def _dtype_of(x: Any, *of_numbers: Any) -> Any:
    """Return a dtype as it is, or the dtype of an array; return a default, or the number, for a number."""
    return x if isinstance(x, Format | np.dtype | type) else getattr(x, "dtype", *(of_numbers or (x,)))


def _is_format(dtype: Any) -> bool:
    """Return whether a dtype is a format; raise TypeError for NumPy's dtypes except bool and integers."""
    if isinstance(dtype, Format):
        return True
    if np.dtype(dtype).kind not in "biu":
        raise TypeError(f"dtype must be a format, bool or an integer, not {np.dtype(dtype)}")
    return False


def _check_device(device: Any) -> None:
    if device not in (None, "cpu"):
        raise ValueError(f"arrays are on device 'cpu', not {device!r}")
