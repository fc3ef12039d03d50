"""Validation of arguments: arrays, single numbers, counts of threads."""

from __future__ import annotations

import math
import sys
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

_BINARY64_INTEGERS = 2**53


def lacks(x: Any, protocol: type) -> list[str]:
    """Return the members of a protocol that an object does not have.

    What it hands on to another object it has: `isinstance` says so up to Python 3.11 alone.
    """
    return [name for name in vars(protocol) if not name.startswith("_") and not hasattr(x, name)]


def as_array(x: Any, label: str = "x") -> NDArray[Any]:
    """Return an array_like as a plain array, unless NumPy would change what it says without a word.

    Raises
    ------
    TypeError
        If it is masked, or a sequence with a masked array in it: a plain array would bring back what the
        mask hides.
    ValueError
        If it cannot be turned into an array; or if it is a sequence of floats and integers that binary64,
        into which NumPy would put them together, does not hold.
    """
    if isinstance(x, np.ma.MaskedArray):
        raise TypeError(f"{label} is a masked array; fill it or compress it first")
    if isinstance(x, np.ndarray):
        return np.asarray(x)
    if isinstance(x, list | tuple):
        _refuse_masked(x, label)
    try:
        array = np.asarray(x)
    except Exception as error:  # of ragged sequences, or of the object's own __array__
        raise ValueError(f"{label} cannot be turned into an array: {error}") from error
    if isinstance(x, list | tuple) and array.dtype.kind == "f" and (abs(array) >= _BINARY64_INTEGERS).any():
        for given, taken in zip(np.asarray(x, dtype=object).flat, array.flat, strict=True):
            if isinstance(given, int | np.integer) and int(given) != float(taken):
                raise ValueError(f"{label} has {given} among floats, an integer that binary64 does not hold")
    return array


def is_tensor(x: Any) -> bool:
    """Return whether x is a tensor of PyTorch, which need not be installed."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def real_array(x: Any, label: str = "x") -> NDArray[Any]:
    """Return real numbers of at most 64 bits as a plain array, see `as_array`.

    Raises
    ------
    TypeError
        If they are not of a floating or integer dtype of NumPy or ml_dtypes, or are of a longer one.
    """
    array = as_array(x, label)
    if not is_real(array.dtype):
        raise TypeError(f"{label} of dtype {array.dtype} does not hold real numbers of at most 64 bits")
    return array


def as_codes(x: Any, label: str = "codes") -> NDArray[Any]:
    """Return integers as a plain array, see `as_array`; a sequence of none of them as well.

    Raises
    ------
    TypeError
        If they are no integers.
    """
    array = as_array(x, label)
    if not array.size and isinstance(x, list | tuple):  # to NumPy these are floats
        array = array.astype(np.uint8)
    if array.dtype.kind not in "iu":
        raise TypeError(f"{label} must be integers, not {array.dtype}")
    return array


def is_real(dtype: np.dtype[Any]) -> bool:
    """Whether numbers of a dtype are real numbers of at most 64 bits."""
    # ml_dtypes types are of kind V or f, with NumPy's own void types told apart by their scalar type.
    foreign = dtype.type.__module__ == "ml_dtypes" and np.can_cast(dtype, np.float32)
    return foreign or dtype.kind in "iu" or (dtype.kind == "f" and dtype.itemsize <= 8)


def finite_number(label: str, x: Any) -> float:
    """Return a finite real number as a float.

    Raises
    ------
    TypeError
        If it is no int, float, fraction or NumPy scalar of these; a truth value is none.
    ValueError
        If it is NaN or infinite, or an integer beyond binary64.
    """
    if not isinstance(x, Real) or isinstance(x, bool | np.bool_):
        raise TypeError(f"{label} must be a real number, not {x!r}")
    try:
        number = float(x)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"{label} = {x} must be finite")
    return number


def whole_number(label: str, x: Any, least: int) -> int:
    """Return an integer that is not less than `least` as an int.

    Raises
    ------
    TypeError
        If it is no int or integer of NumPy; a truth value is none.
    ValueError
        If it is less.
    """
    if not isinstance(x, Integral) or isinstance(x, bool | np.bool_ | np.timedelta64):
        raise TypeError(f"{label} must be an int, not {x!r}")
    _check_least(label, x, least)
    return int(x)


def check_int(label: str, x: Any, least: int | None = None) -> None:
    """Refuse what is no int of Python, or is less than `least`.

    Raises
    ------
    TypeError
        If it is no int, as an integer of NumPy is none; a truth value is none, either.
    ValueError
        If it is less.
    """
    if not isinstance(x, int) or isinstance(x, bool):
        raise TypeError(f"{label} must be an int, not {x!r}")
    if least is not None:
        _check_least(label, x, least)


def _check_least(label: str, x: Any, least: int) -> None:
    if x < least:
        allowed = "must not be negative" if least == 0 else f"must be at least {least}"
        raise ValueError(f"{label} = {x} {allowed}")


def check_threads(threads: int) -> None:
    """Refuse what is no number of threads.

    Raises
    ------
    TypeError
        If it is no int.
    ValueError
        If it is less than 1.
    """
    check_int("threads", threads)
    if threads < 1:
        raise ValueError(f"threads = {threads}: at least one is needed")


def _refuse_masked(x: list[Any] | tuple[Any, ...], label: str) -> None:
    for item in x:
        if isinstance(item, np.ma.MaskedArray):
            raise TypeError(f"{label} has a masked array in it; fill it or compress it first")
        if isinstance(item, list | tuple):
            _refuse_masked(item, label)
