"""Elementary functions (exp, log, ...), rounded to odd in binary64: tables of all codes, and single values.

A number of binary64 that was rounded to odd may be rounded once more, in every mode, into a format of at most
51 bits, guard bits included (Boldo and Melquiond 2008). So one table serves all modes of a format.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from fractions import Fraction
from functools import lru_cache, partial
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.formats import Format
from mcfsim.kernels.carriers import UnsupportedFormatError, is_filled
from mcfsim.kernels.codes_by_kind import codes_by_kind
from mcfsim.kernels.operation_plan import Entry, Way
from mcfsim.rounding import Rounding

if TYPE_CHECKING:
    from mcfsim.storage.archive import ArraySpec

#: A float or a Fraction; mypy makes an object of its magnitude.
Real = Any
#: Bits of a significand, and exponent of the smallest number, of binary64.
_BITS, _LEAST = 53, -1074
_LARGEST, _SMALLEST, _BELOW_ONE = float(np.finfo(np.float64).max), 5e-324, 1.0 - 2.0**-53
#: Precisions with which a value is computed until its first 53 bits are certain. mpmath's error is taken to
#: be 2**10 times its unit, which is far more than it states.
_FIRST_PRECISION, _LAST_PRECISION, _UNCERTAIN = 96, 1 << 16, 10
#: Longer codes have no table.
MOST_BITS = 16
_FLOAT64 = np.dtype(np.float64)


def function_entry(fmt: Format, rounding: Rounding) -> Entry:
    """Return the way of elementary functions in a format, and why the result is that of one rounding."""
    needed = fmt.precision + rounding.guard_bits
    if is_filled(_FLOAT64, fmt) and rounding.standard:
        return Entry(Way.NATIVE, "mpmath's value, with growing precision, is rounded to nearest once")
    if needed > _BITS:
        return Entry(Way.REFUSED, f"a value rounded to odd in binary64 lacks the {needed} bits that decide")
    if fmt.emin - fmt.precision + 1 - rounding.guard_bits < _LEAST:
        return Entry(Way.REFUSED, "binary64 lacks the bits that decide below its smallest numbers")
    how = "a table of all codes" if fmt.bits <= MOST_BITS else "mpmath, with growing precision"
    return Entry(Way.STICKY, f"by {how}, rounded to odd in binary64, which has the {needed} bits that decide")


# -- one value --------------------------------------------------------------------------------------------
def odd_value(name: str, x: float | Fraction) -> float:
    """Return the value of an elementary function, rounded to odd in binary64.

    Beyond binary64's range it is the largest number, and below it the smallest one: the value is finite. A
    pole is an infinity, and a value that is no real number is NaN.

    Parameters
    ----------
    name : str
        A name in `FUNCTIONS`.
    x : float or Fraction
    """
    if isinstance(x, float) and (not x or not math.isfinite(x)):
        return _AT_SPECIAL[name](x)
    if (known := _KNOWN[name](x)) is not None:
        return known
    return _decided(name, x, _odd)


def _decided(name: str, x: Real, settle: Callable[[bool, int, int, int], float | None]) -> float:
    """Return what `settle` makes of a value, computed with growing precision until it is not None."""
    precision = _FIRST_PRECISION
    while precision <= _LAST_PRECISION:
        found = {settle(*_evaluated(name, end, precision)) for end in _enclosed(x, precision)}
        if len(found) == 1 and None not in found:
            return found.pop()  # type: ignore[return-value]
        precision *= 2
    raise ArithmeticError(f"{name} of {x!r} is not decided with {_LAST_PRECISION} bits")


def _enclosed(x: float | Fraction, precision: int) -> tuple[Any, ...]:
    """Return a number exactly, as mpmath takes it; for a fraction that is not binary, bounds around it."""
    from mpmath import libmp

    if isinstance(x, float):
        return (libmp.from_float(x),)
    if not x.denominator & (x.denominator - 1):
        return (libmp.from_man_exp(x.numerator, 1 - x.denominator.bit_length()),)
    # For a large number also the bits before the point, which sin and cos cancel.
    bits = 4 * precision + max(0, x.numerator.bit_length() - x.denominator.bit_length())
    ends = [libmp.from_rational(x.numerator, x.denominator, bits, end) for end in "fc"]
    return tuple(dict.fromkeys(ends))


def _evaluated(name: str, x: Any, precision: int) -> tuple[bool, int, int, int]:
    """Return a value as mpmath computes it: sign, significand of `precision` bits, exponent, and error."""
    sign, significand, exponent, bits = EVALUATE[name](x, precision)
    shift = max(0, precision - bits)
    return (
        bool(sign),
        int(significand) << shift,
        exponent - shift,
        1 << (_UNCERTAIN + max(0, bits - precision)),
    )


def _odd(negative: bool, significand: int, exponent: int, error: int) -> float | None:
    """Return ``significand * 2**exponent`` rounded to odd in binary64; None if the error leaves it open."""
    bits = significand.bit_length()
    if not bits:
        return None
    kept = min(_BITS, bits + exponent - _LEAST)
    if kept <= 0:
        magnitude = _SMALLEST
    elif bits + exponent > 1024:
        magnitude = _LARGEST
    else:
        cut = bits - kept
        rest = significand & ((1 << cut) - 1)
        if not error < rest < (1 << cut) - error:
            return None
        magnitude = math.ldexp(significand >> cut | 1, exponent + cut)
    return -magnitude if negative else magnitude


def _of_libmp(name: str) -> Callable[[Any, int], Any]:
    def evaluate(x: Any, precision: int) -> Any:
        from mpmath import libmp

        return getattr(libmp, f"mpf_{name}")(x, precision, "n")

    return evaluate


def _expm1(x: Any, precision: int) -> Any:
    from mpmath import libmp

    wider = precision + max(0, -(x[2] + x[3])) + 16  # what cancels
    return libmp.mpf_sub(libmp.mpf_exp(x, wider, "n"), libmp.fone, precision, "n")


def _log1p(x: Any, precision: int) -> Any:
    from mpmath import libmp

    return libmp.mpf_log(libmp.mpf_add(x, libmp.fone), precision + 16, "n")  # the sum is exact


EVALUATE: Mapping[str, Callable[[Any, int], Any]] = {
    **{name: _of_libmp(name) for name in ("exp", "log", "tanh", "erf", "sin", "cos")},
    "expm1": _expm1,
    "log1p": _log1p,
}


def _beside(x: Real, *, outward: bool) -> float | None:
    """Return a number just above or below x in magnitude, rounded to odd; None if x is a fraction."""
    if not isinstance(x, float):
        return None
    magnitude = abs(x) if outward else math.nextafter(abs(x), 0.0)
    odd = float((np.float64(magnitude).view(np.int64) | 1).view(np.float64))
    return math.copysign(odd, x)


def _exp(x: Real) -> float | None:
    if abs(x) < 2.0**-54:
        return 1.0 + 2.0**-52 if x > 0 else _BELOW_ONE
    return _LARGEST if x > 710 else _SMALLEST if x < -746 else None


def _log(x: Real) -> float | None:
    return math.nan if x < 0 else 0.0 if x == 1 else None


def _expm1_known(x: Real) -> float | None:
    if abs(x) < 2.0**-54:
        return _beside(x, outward=x > 0)
    return _LARGEST if x > 710 else -_BELOW_ONE if x < -40 else None


def _log1p_known(x: Real) -> float | None:
    if abs(x) < 2.0**-54:
        return _beside(x, outward=x < 0)
    return math.nan if x < -1 else -math.inf if x == -1 else None


def _end(x: Real) -> float:
    """Return the number just inside 1 or -1, by the sign of a number of any size."""
    return _BELOW_ONE if x > 0 else -_BELOW_ONE


def _tanh(x: Real) -> float | None:
    if abs(x) < 2.0**-28:
        return _beside(x, outward=False)
    return _end(x) if abs(x) > 20 else None


def _erf(x: Real) -> float | None:
    return _end(x) if abs(x) > 6 else None


def _sin(x: Real) -> float | None:
    return _beside(x, outward=False) if abs(x) < 2.0**-28 else None


def _cos(x: Real) -> float | None:
    return _BELOW_ONE if abs(x) < 2.0**-28 else None


#: Values that are exact, or so close to a number or to an end of the range that this decides them; or None.
_KNOWN: Mapping[str, Callable[[Real], float | None]] = {
    **{"exp": _exp, "log": _log, "expm1": _expm1_known, "log1p": _log1p_known},
    **{"tanh": _tanh, "erf": _erf, "sin": _sin, "cos": _cos},
}
#: Values at zeros, infinities and NaN.
_AT_SPECIAL: Mapping[str, Callable[[float], float]] = {
    "exp": lambda x: 1.0 if not x else 0.0 if x == -math.inf else x,
    "log": lambda x: -math.inf if not x else math.nan if x == -math.inf else x,
    "expm1": lambda x: -1.0 if x == -math.inf else x,
    "log1p": lambda x: math.nan if x == -math.inf else x,
    "tanh": lambda x: math.copysign(1.0, x) if math.isinf(x) else x,
    "erf": lambda x: math.copysign(1.0, x) if math.isinf(x) else x,
    "sin": lambda x: math.nan if x else x,
    "cos": lambda x: math.nan if x else 1.0,
}
#: The elementary functions of the protocol.
FUNCTIONS = tuple(_KNOWN)


def nearest_value(name: str, x: Real) -> float:
    """Return the value of an elementary function, rounded to nearest even in binary64."""
    if isinstance(x, float) and (not x or not math.isfinite(x)):
        return _AT_SPECIAL[name](x)
    known = _KNOWN[name](x)
    if known is not None and (not known or not math.isfinite(known)):
        return known
    if name in ("exp", "expm1") and abs(x) > 1e4:  # beyond binary64, and too long to be written out
        return math.inf if x > 0 else 0.0 if name == "exp" else -1.0
    return _decided(name, x, _nearest)


def _nearest(negative: bool, significand: int, exponent: int, error: int) -> float | None:
    """Return ``significand * 2**exponent`` rounded to nearest even; None if the error leaves it open."""
    low, high = (
        _binary64(Fraction(moved) * Fraction(2) ** exponent)
        for moved in (significand - error, significand + error)
    )
    if low != high:
        return None
    return -low if negative else low


def _binary64(exact: Fraction) -> float:
    try:
        return float(exact)
    except OverflowError:
        return math.inf


# -- tables of all codes ----------------------------------------------------------------------------------
#: Files that compute what tables hold.
_OWN = ("elementary.py", "function_blocks.py")
_KEYS: dict[str, Callable[[], NDArray[np.float64]]] = {}


def table_key(
    name: str, fmt: Format, made: Callable[[str, Format], NDArray[np.float64]] | None = None, about: str = ""
) -> str:
    """Return the name of a table in lines of machine operations: by default of an elementary function."""
    key = f"{name}{about} of {fmt!r}"
    _KEYS[key] = partial(made or function_table, name, fmt)
    return key


def table_of(key: str) -> NDArray[np.float64]:
    """Return the table that `table_key` named."""
    return _KEYS[key]()


@lru_cache(maxsize=128)
def function_table(name: str, fmt: Format) -> NDArray[np.float64]:
    """Return the values of an elementary function at all codes of a format, rounded to odd in binary64.

    Parameters
    ----------
    name : str
        A name in `FUNCTIONS`.
    fmt : Format

    Raises
    ------
    UnsupportedFormatError
        If codes have more than 16 bits.
    """
    return table_of_all(name, fmt, partial(map, partial(odd_value, name)))


def table_of_all(
    name: str, fmt: Format, function: Callable[[list[float]], Iterable[float]]
) -> NDArray[np.float64]:
    """Return a function's values at all codes of a format; NaN for codes that stand for no value.

    The function takes a list of numbers. A table is made on first use (in a second for 16 bits) and kept as a
    file in the user's cache, with its digest; a damaged file is made anew.
    """
    if fmt.bits > MOST_BITS:
        raise UnsupportedFormatError(f"{fmt} has codes of {fmt.bits} bits; tables are for {MOST_BITS}")
    from mcfsim.storage.archive import read_archive, write_archive

    path = _path(name, fmt)
    try:
        values = read_archive(path, partial(_check, fmt))[1]["values"]
    except (ValueError, OSError):
        values = _computed(function, fmt)
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_archive(path, {"kind": "function", "of": f"{name} of {fmt!r}"}, {"values": values})
    values.flags.writeable = False
    return values


def _computed(function: Callable[[list[float]], Iterable[float]], fmt: Format) -> NDArray[np.float64]:
    codes, kind = np.arange(1 << fmt.bits, dtype=np.uint64), codes_by_kind(fmt)
    assigned = ~kind.unassigned(codes) if kind.gaps else np.ones(codes.size, np.bool_)
    values = np.full(codes.size, np.nan)
    values[assigned] = list(function(kind.decode(codes[assigned]).tolist()))
    return values


def _check(fmt: Format, about: Mapping[str, Any], forms: Mapping[str, ArraySpec]) -> None:
    if {name: (x.dtype, x.shape) for name, x in forms.items()} != {"values": (_FLOAT64, (1 << fmt.bits,))}:
        raise ValueError("holds another table")


def _path(name: str, fmt: Format) -> Path:
    """Return the file of a table; its name identifies the function, the format and the code that makes it."""
    import mpmath
    from platformdirs import user_cache_path

    own = b"".join((files("mcfsim.kernels") / name).read_bytes() for name in _OWN)
    what = f"{name} of {fmt!r}, mpmath {mpmath.__version__}, "
    digest = hashlib.sha256(what.encode() + own).hexdigest()
    return Path(user_cache_path("mcfsim")) / "functions" / f"{name}_{digest[:20]}.npz"
