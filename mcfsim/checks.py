"""Checks of arguments, names and the processor, and guards for printed text, symbols and state.

Nothing here computes. Each check returns a usable value, or says what is wrong and what is allowed.
"""

from __future__ import annotations

import difflib
import math
import re
import struct
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import numpy as np
from numpy.typing import NDArray


# -- arguments --------------------------------------------------------------------------------------------
def lacks(x: Any, protocol: type) -> list[str]:
    """Return the members of a protocol that an object lacks.

    Members that the object forwards to another one count as its own; `isinstance` counts them only up to
    Python 3.11.
    """
    return [name for name in vars(protocol) if not name.startswith("_") and not hasattr(x, name)]


def is_masked(x: Any) -> bool:
    """Return whether x is a masked array, without importing ``numpy.ma``."""
    return type(x) is not np.ndarray and "numpy.ma" in sys.modules and isinstance(x, np.ma.MaskedArray)


def as_array(x: Any, label: str = "x") -> NDArray[Any]:
    """Return an array_like as a plain array; raise where NumPy would silently change its values.

    A PyTorch tensor of floats shorter than 32 bits, such as bfloat16, becomes a float32 array, exactly.

    Raises
    ------
    TypeError
        If it is a masked array, or a sequence that contains one: a plain array would show the values that
        the mask hides. If it is a sequence that contains a truth value: among numbers NumPy makes it 1 or 0.
    ValueError
        If it cannot be converted to an array; or if it is a sequence of floats and integers that NumPy
        converts to binary64 or a shorter float, and this dtype does not hold one of the integers.
    """
    if is_masked(x):
        raise TypeError(f"{label} is a masked array; fill it or compress it first")
    if isinstance(x, np.ndarray):
        return np.asarray(x)
    if isinstance(x, list | tuple):
        refuse_items(x, label)
    if is_tensor(x) and x.is_floating_point() and x.element_size() < 4:
        x = x.float()
    try:
        array = np.asarray(x)
    except Exception as error:  # of ragged sequences, or of the object's own __array__
        raise ValueError(f"{label} cannot be turned into an array: {error}") from error
    short = array.dtype.type.__module__ == "ml_dtypes"
    if isinstance(x, list | tuple) and (short or (array.dtype.char in "fd" and (abs(array) >= 2**53).any())):
        holder = array.dtype if short else "binary64"
        for given, taken in zip(np.asarray(x, dtype=object).flat, array.flat, strict=True):
            given = given.item() if getattr(given, "ndim", None) == 0 else given  # of arrays without axes
            if isinstance(given, int | np.integer) and int(given) != float(taken):
                raise ValueError(f"{label} has {given} among floats, an integer that {holder} does not hold")
    return array


def is_tensor(x: Any) -> bool:
    """Return whether x is a PyTorch tensor; PyTorch need not be installed."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def real_array(x: Any, label: str = "x") -> NDArray[Any]:
    """Return real numbers of at most 64 bits as a plain array, see `as_array`.

    Raises
    ------
    TypeError
        If the dtype is no floating or integer dtype of NumPy or ml_dtypes, or has more than 64 bits.
    """
    array = as_array(x, label)
    if not is_real(array.dtype):
        raise TypeError(f"{label} of dtype {array.dtype} does not hold real numbers of at most 64 bits")
    return array


def as_codes(x: Any) -> NDArray[Any]:
    """Return integers as a plain array, see `as_array`; an empty sequence is allowed.

    Raises
    ------
    TypeError
        If the elements are no integers.
    """
    array = as_array(x, "codes")
    if not array.size and isinstance(x, list | tuple):  # NumPy would make it an array of floats
        array = array.astype(np.uint8)
    if array.dtype.kind not in "iu":
        raise TypeError(f"codes must be integers, not {array.dtype}")
    return array


def is_real(dtype: np.dtype[Any]) -> bool:
    """Return whether a dtype holds real numbers of at most 64 bits."""
    # ml_dtypes types are of kind V or f; their scalar type tells them from NumPy's own void types.
    foreign = dtype.type.__module__ == "ml_dtypes" and np.can_cast(dtype, np.float32)
    return foreign or dtype.kind in "iu" or (dtype.kind == "f" and dtype.itemsize <= 8)


def finite_number(label: str, x: Any) -> float:
    """Return a finite real number as a float.

    Raises
    ------
    TypeError
        If it is no int, float, fraction or NumPy scalar of these, or if it is a bool.
    ValueError
        If it is NaN, infinite, or an integer beyond the range of binary64.
    """
    if not isinstance(x, Real) or isinstance(x, bool | np.bool_):
        raise TypeError(f"{label} must be a real number, not {x!r}")
    try:
        number = float(x)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"{label} = {number} must be finite")  # a float: Python writes no very long integers
    return number


def whole_number(label: str, x: Any, least: int) -> int:
    """Return an int or a NumPy integer of at least `least` as an int; raise as `check_int` does."""
    if not isinstance(x, Integral) or isinstance(x, bool | np.bool_ | np.timedelta64):
        raise TypeError(f"{label} must be an int, not {x!r}")
    check_int(label, int(x), least)
    return int(x)


def check_int(label: str, x: Any, least: int | None = None, most: int | None = None) -> None:
    """Raise TypeError unless x is a Python int and no bool, and ValueError if it is beyond the bounds."""
    if not isinstance(x, int) or isinstance(x, bool):
        raise TypeError(f"{label} must be an int, not {x!r}")
    if least is not None and most is not None and not least <= x <= most:
        raise ValueError(f"{label} = {x} must lie between {least} and {most}")
    if least is not None and x < least:
        allowed = "must not be negative" if least == 0 else f"must be at least {least}"
        raise ValueError(f"{label} = {x} {allowed}")
    if most is not None and x > most:
        raise ValueError(f"{label} = {x} must be at most {most}")


def check_flag(label: str, x: Any) -> None:
    """Raise TypeError unless x is True or False; NumPy's truth values are refused."""
    if not isinstance(x, bool):
        raise TypeError(f"{label} must be True or False, not {x!r}")


def check_threads(threads: int) -> None:
    """Raise TypeError or ValueError unless `threads` is a positive int."""
    check_int("threads", threads, 1)


_Choice = TypeVar("_Choice", bound=StrEnum)


def chosen(label: str, x: Any, kind: type[_Choice]) -> _Choice:
    """Return the member of an enumeration with a given name, or raise ValueError with all names."""
    try:
        return kind(x)
    except ValueError:
        raise ValueError(f"unknown {label} {x!r}{hint(str(x), kind)}; allowed: {', '.join(kind)}") from None


def refuse(array: NDArray[Any], place: int, what: str) -> NoReturn:
    """Raise ValueError for the element at a place in row-major order."""
    index = tuple(int(i) for i in np.unravel_index(place, array.shape))
    raise ValueError(f"element {index} = {array[index]} {what}")


def refuse_items(x: list[Any] | tuple[Any, ...], label: str) -> None:
    """Raise TypeError if a sequence contains a masked array or a truth value, however deep."""
    for item in x:
        if isinstance(item, list | tuple):
            refuse_items(item, label)
        elif is_masked(item):
            raise TypeError(f"{label} has a masked array in it; fill it or compress it first")
        elif getattr(item, "dtype", type(item)) in (bool,):  # Python's, NumPy's, and arrays of NumPy's
            raise TypeError(f"{label} has a truth value in it, {item!r}, which is no real number")


# -- names that are misspelt ------------------------------------------------------------------------------
#: Words and their usual short forms, as in TwoSum and 2Sum; they are also replaced inside longer words.
_WORDS = {"zero": "0", "one": "1", "two": "2", "three": "3", "four": "4", "plus": "add", "times": "mul"}
#: The largest number of suggested names, and their least similarity by `difflib`.
_MOST, _ALIKE = 3, 0.6


def hint(name: str, known: Iterable[str], most: int = 1) -> str:
    """Return `` (did you mean 'x'?)`` with the nearest known names, or an empty string if none is near.

    A name with the same letters and digits is nearest; case, separators, and numbers written as words make no
    difference. Next come the names most similar by `difflib`, then names that contain the given one.

    Parameters
    ----------
    name : str
        The name that was given.
    known : iterable of str
        The known names, the usual ones first.
    most : int, optional
        Largest number of names to suggest.

    Examples
    --------
    >>> hint("fast2sum", ["two_sum", "fast_two_sum"])
    " (did you mean 'fast_two_sum'?)"
    """
    if not (found := nearest(name, known, most)):
        return ""
    *others, last = map(repr, found)
    return f" (did you mean {', '.join(others)}{' or ' if others else ''}{last}?)"


def nearest(name: str, known: Iterable[str], most: int = _MOST) -> list[str]:
    """Return at most `most` known names nearest to `name`, the nearest first; see `hint`."""
    given = _spellings(name)
    matchers = [difflib.SequenceMatcher(None, "", b) for b in given]
    distances: list[tuple[float, str]] = []
    for item in map(str, known):
        spellings = _spellings(item)
        if spellings[1] == given[1]:
            return [item]
        likeness = 0.0
        for matcher, word in zip(matchers, spellings, strict=True):
            matcher.set_seq1(word)
            if min(matcher.real_quick_ratio(), matcher.quick_ratio()) >= _ALIKE:  # two upper bounds
                likeness = max(likeness, matcher.ratio())
        if likeness >= _ALIKE:
            distances.append((-likeness, item))
        elif len(given[1]) > 2 and given[1] in spellings[1]:
            distances.append((len(spellings[1]), item))
    return [item for _, item in sorted(distances, key=lambda pair: pair[0])[:most]]


def _spellings(name: str) -> tuple[str, str]:
    """Return the lower-case letters and digits of a name, and the same with words as digits."""
    letters = short = re.sub(r"[^a-z0-9]", "", name.lower())
    for word, sign in _WORDS.items():
        short = short.replace(word, sign)
    return letters, short


# -- text for a terminal ----------------------------------------------------------------------------------
def printable(text: str) -> str:
    r"""Return text with every unprintable character escaped as in Python.

    These are control characters, which a terminal obeys (titles, colours, cursor moves), line ends, direction
    marks, surrogates, and all others for which `str.isprintable` is false.

    Examples
    --------
    >>> printable("a\x1b]0;title\x07")
    'a\\x1b]0;title\\x07'
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


# -- symbols for unknown numbers --------------------------------------------------------------------------
class Opaque:
    """A symbol for an unknown number: it refuses comparison, truth value, hashing, iteration and search.

    A subclass redefines the operations that it can answer. Python itself refuses ``float(x)``, ``len(x)`` and
    ``round(x)``.

    Raises
    ------
    TypeError
        In each of these operations.
    """

    __slots__ = ()
    #: The error message, after the name of the type.
    opaque = "stands for a number that is not known: it is not compared, searched, hashed or tested for truth"
    # Keeps NumPy functions from treating it elementwise, and NumPy scalars from comparing it.
    __array_ufunc__: Any = None

    def _refuse(self, *_: object) -> NoReturn:
        raise TypeError(f"{type(self).__name__} {self.opaque}")

    if not TYPE_CHECKING:  # a type checker would refuse subclasses that answer
        __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __contains__ = _refuse
        __bool__ = __hash__ = __iter__ = _refuse


# -- the processor ----------------------------------------------------------------------------------------
#: Made from their codes: a processor that flushes could not parse such numbers.
_LEAST, _LEAST_NORMAL = struct.unpack("<2d", struct.pack("<2Q", 1, 1 << 52))
_SCALE, _HALF = 2.0**60, 0.5
#: Operands whose sum and difference round to 1 to nearest; no compiler folds them.
_ONE, _TINY = 1.0, 2.0**-60


class ProcessorError(FloatingPointError, ValueError):
    """The processor is not set to compute as IEEE 754 requires, so no result can be relied on."""


class FlushedSubnormalsError(ProcessorError):
    """The processor treats subnormal numbers as zeros."""


class RoundingDirectionError(ProcessorError):
    """The processor does not round to nearest."""


def check_processor() -> None:
    """Raise if this thread's processor flushes subnormal numbers or does not round to nearest.

    These are settings of a thread: subnormal operands taken for zeros (x86's DAZ), subnormal results replaced
    by zeros (FTZ), and the rounding direction, one for binary32 and binary64. Other code changes them, the
    first two for speed. The check takes a fraction of a microsecond and keeps no state.

    Raises
    ------
    FlushedSubnormalsError, RoundingDirectionError
        If such a setting is on; both are a `ProcessorError`.
    """
    if _LEAST * _SCALE != 0.0 != _LEAST_NORMAL * _HALF and _ONE + _TINY == _ONE == _ONE - _TINY:
        return
    if _ONE + _TINY != _ONE or _ONE - _TINY != _ONE:
        # Toward zero, 1 decreases and -1 increases.
        up, down = _ONE + _TINY > _ONE, -_ONE - _TINY < -_ONE
        direction = "upward" if up else "downward" if down else "toward zero"
        raise RoundingDirectionError(
            f"this thread's processor rounds {direction} and not to nearest, which falsifies results; set it "
            "right by C's fesetround(FE_TONEAREST), in Python ctypes.CDLL(None).fesetround(0). Code that "
            "needs another direction must set it back"
        )
    faults = []
    if _LEAST * _SCALE == 0.0:
        faults.append("takes subnormal operands for zero (DAZ)")
    if struct.pack("<d", _LEAST_NORMAL * _HALF) == bytes(8):  # a comparison would take it for zero
        faults.append("puts zero in place of subnormal results (FTZ)")
    raise FlushedSubnormalsError(
        f"this thread's processor {' and '.join(faults)}, which falsifies results; switch it off, in PyTorch "
        "with torch.set_flush_denormal(False). Libraries that were linked with -ffast-math switch it on when "
        "they are loaded"
    )


# -- state that an interrupted change spoils --------------------------------------------------------------
class SpoiltStateError(RuntimeError):
    """A change of state was interrupted, so that part of it is old and part new; or it was given away."""


class Whole:
    """A record of whether every change of a state was completed; errors end with a remedy."""

    def __init__(self, remedy: str) -> None:
        self._remedy = remedy
        self._fault: str | None = None

    @contextmanager
    def changing(self, what: str) -> Iterator[None]:
        """Let a ``with`` block change the state; it is whole again once the block completes."""
        self.begin(what)
        yield
        self.end()

    def begin(self, what: str) -> None:
        """Mark the state as spoilt until `end`."""
        self._fault = f"{what} was broken off, so that part of the state is old and part of it new"

    def give_away(self, to: str) -> None:
        """Mark the state as gone until `end`, so that nothing begins without it."""
        self._fault = f"the state has gone to {to}, which goes on with it"

    def end(self) -> None:
        """Mark the state as whole: all of it has changed."""
        self._fault = None

    def check(self) -> None:
        """Raise if the state is spoilt.

        Raises
        ------
        SpoiltStateError
            If KeyboardInterrupt or another exception interrupted a change, or the state was given away.
        """
        if self._fault is not None:
            raise SpoiltStateError(f"{self._fault}; {self._remedy}")
