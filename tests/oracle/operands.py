"""Operands for the tests: every value of a format, its corners, and tuples that are hard to round."""

from types import FunctionType

import numpy as np
from numpy.typing import NDArray

from mcfsim.formats import FORMATS, Format, get_format
from mcfsim.rounding import DETERMINISTIC, Overflow, Rounding, Underflow

MODES = [Rounding(mode) for mode in DETERMINISTIC]
OVERFLOWS = (Overflow.IEEE, Overflow.SATURATE)
ROUNDINGS = [Rounding(mode, overflow) for mode in DETERMINISTIC for overflow in OVERFLOWS]
FLUSHING = [Rounding(mode, underflow=flush) for mode in DETERMINISTIC for flush in list(Underflow)[1:]]
SMALL_FORMATS = [fmt for fmt in FORMATS.values() if fmt.bits <= 8 and fmt.signed]
_P3109 = ("binary8p1se", "binary8p3se", "binary8p4sf", "binary8p1uf", "binary6p3ue", "binary5p2ue")
#: Without negative numbers, without zero, of precision 1, with infinity on top, or several of these.
UNUSUAL_FORMATS = [
    FORMATS["float8_e8m0fnu"],
    *map(get_format, _P3109),
    Format("float_u4", precision=3, emin=0, emax=2, specials="none", signed=False),
    Format("float_nozero", precision=3, emin=-3, emax=3, specials="none", zero=False),
    Format("float_p1", precision=1, emin=-5, emax=6, specials="none"),
]
WIDE_FORMATS = [FORMATS[name] for name in ("bfloat16", "float16", "tf32")]

Floats = NDArray[np.float64]


def label(item: object) -> str:
    """Name a test's parameter."""
    if not isinstance(item, Rounding):
        return item.__name__ if isinstance(item, FunctionType) else str(item)
    return f"{item.mode}-{item.overflow if item.underflow is Underflow.GRADUAL else item.underflow}"


def count(fmt: Format) -> int:
    """Return how many magnitudes a format has, from zero to the largest finite number."""
    below_top = (fmt.emax - fmt.emin + fmt.zero) * 2 ** (fmt.precision - 1)
    return below_top + fmt.max_significand - 2 ** (fmt.precision - 1) + 1


def magnitudes(fmt: Format, places: NDArray[np.int64] | None = None) -> Floats:
    """Return the magnitudes at the given places of the ascending order, or all of them."""
    binade = 2 ** (fmt.precision - 1)
    field, fraction = np.divmod(np.arange(count(fmt)) if places is None else places, binade)
    field = field + (not fmt.zero)
    significand = fraction + np.where(field > 0, binade, 0)
    return np.ldexp(significand.astype(np.float64), np.maximum(field, 1) - 1 + fmt.emin - fmt.precision + 1)


def with_signs(fmt: Format, numbers: Floats) -> Floats:
    """Return magnitudes with either sign, and the infinities and the NaN that the format has."""
    specials = [np.inf, -np.inf][: 1 + fmt.signed] * fmt.has_infinity + [np.nan] * fmt.has_nan
    if not fmt.signed:
        return np.concatenate([numbers, specials])
    negative = -numbers if fmt.has_negative_zero else -numbers[numbers != 0]
    return np.concatenate([numbers, negative, specials])


def values(fmt: Format) -> Floats:
    """Return every value of a format."""
    return with_signs(fmt, magnitudes(fmt))


def corners(fmt: Format) -> Floats:
    """Return the numbers next to which something changes, and the specials."""
    binade = 2 ** (fmt.precision - 1)
    one = (1 - fmt.emin) * binade
    places = np.array([0, 1, 2, count(fmt) - 2, count(fmt) - 1])
    for turn in (binade, one, one + binade // 2, one + binade):
        places = np.concatenate([places, [turn - 1, turn, turn + 1]])
    return with_signs(fmt, magnitudes(fmt, np.unique(np.clip(places, 0, count(fmt) - 1))))


def random_tuples(fmt: Format, size: int, arity: int, seed: int) -> list[Floats]:
    """Return tuples of operands: the first drawn from all values, most others placed with regard to it.

    Their exponents lie within about two precisions of one that puts the sum near a tie, or the product or the
    quotient near the smallest or the largest number, or next to the square of the first.
    """
    rng = np.random.default_rng(seed)
    binade, last = 2 ** (fmt.precision - 1), count(fmt) - 1
    specials = with_signs(fmt, magnitudes(fmt, np.zeros(1, dtype=np.int64)))

    def signed(places: NDArray[np.int64]) -> Floats:
        number = magnitudes(fmt, np.clip(places, 0, last)) * rng.choice(
            [-1.0, 1.0] if fmt.signed else [1.0], size
        )
        return np.where(rng.random(size) < 0.05, rng.choice(specials, size), number + 0.0)

    first = signed(rng.integers(0, last + 1, size))
    exponent = np.frexp(np.where(np.isfinite(first), first, 1.0))[1] - 1
    low, high = fmt.emin - fmt.precision, fmt.emax
    tuples = [first]
    for _ in range(arity - 1):
        targets = [exponent, low - exponent, high - exponent, exponent - low, exponent - high, 2 * exponent]
        target = np.choose(rng.integers(0, 6, size), targets)
        field = target + rng.integers(-2 * fmt.precision - 3, 2 * fmt.precision + 4, size) - fmt.emin + 1
        fraction = rng.choice([0, 1, binade // 2, binade - 1], size)
        fraction = np.where(rng.random(size) < 0.4, fraction, rng.integers(0, binade, size))
        near = rng.random(size) < 0.8
        tuples.append(signed(np.where(near, field * binade + fraction, rng.integers(0, last + 1, size))))
    return tuples
