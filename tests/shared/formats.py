"""Formats of every kind, and numbers that are hard to round into them."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from typing import Any

import gfloat
import numpy as np

from mcfsim.formats import Format, Grid, Parity, Posit, Specials, get_format, p3109
from mcfsim.oracle import round_float, round_integers
from mcfsim.oracle.posits import posit_value
from mcfsim.rounding import Rounding
from tests.oracle import operands

#: Short enough for the oracle of arrays.
FLOATS = [*operands.SMALL_FORMATS, *operands.UNUSUAL_FORMATS, *operands.WIDE_FORMATS]
SMALL_POSITS = [Posit(bits, es) for es in range(4) for bits in (3, 4, 5, 6, 8, 10)]
LARGE_POSITS = [Posit(16), Posit(16, 1), *map(Posit, (24, 28, 32, 57)), Posit(32, 3), Posit(32, 5)]
GRIDS = [
    *map(get_format, ("ternary", "int2", "int3", "int4", "int8", "int4_symmetric", "int8_symmetric")),
    Grid("mxint8_element", low=-128, high=127, fraction_bits=6),
    Grid("unsigned", low=0, high=15),
    Grid("lopsided", low=-3, high=12, fraction_bits=-2),
]
#: Of every kind.
ALL = [*FLOATS, *SMALL_POSITS, *LARGE_POSITS, *GRIDS]
#: Every choice of specials, sign and zero, with exponents that fill their field and that do not.
VARIANTS = [
    Format(precision=precision, emin=-3, emax=emax, specials=specials, signed=signed, zero=zero)
    for specials in ("ieee", "fn", "fnuz", "nuz", "none")
    for signed in (True, False)
    for zero in (True, False)
    for precision in (1, 2, 3)
    for emax in (0, 2, 3, 4)
    if not (specials == "ieee" and precision == 1)
    and not (specials == "fnuz" and not signed)
    and not (specials in ("fnuz", "nuz") and signed and not zero)
]


def p3109_formats(widths: Iterable[int]) -> list[Format]:
    """Return the formats of IEEE P3109 of these widths that have a normal number."""
    found = []
    for bits, signed, extended in itertools.product(widths, (True, False), (True, False)):
        for precision in range(1, bits + 1):
            with suppress(ValueError):  # there is no such format, or it has no normal number
                found.append(p3109(bits, precision, signed=signed, extended=extended))
    return found


def p3109_of_gfloat(fmt: Format) -> Any:
    """Return a format of P3109 as gfloat has it."""
    signedness = gfloat.Signedness.Signed if fmt.signed else gfloat.Signedness.Unsigned
    domain = gfloat.Domain.Extended if fmt.has_infinity else gfloat.Domain.Finite
    return gfloat.formats.format_info_p3109(fmt.bits, fmt.precision, signedness, domain)


def drawn(seed: int) -> tuple[Format, Rounding]:
    """Return a format of any kind at random, two of three of them floats, and a rounding into it."""
    choose = random.Random(seed)
    fmt: Format | None = None
    if seed % 6 == 0:
        fmt = Posit(choose.randint(3, 16), choose.randint(0, 3))
    if seed % 6 == 1:
        low, high, bits = -choose.randint(0, 5000), choose.randint(1, 5000), choose.randint(-20, 20)
        fmt = Grid(low=low, high=high, fraction_bits=bits)
    while fmt is None:
        emin = choose.randint(-150, 149) if seed % 6 < 5 else choose.randint(-1022, 940)
        with suppress(ValueError):  # there is no such format
            fmt = Format(
                precision=choose.randint(1, 12),
                emin=emin,
                emax=emin + choose.randint(0, 40),
                specials=choose.choice(list(Specials)),
                signed=choose.random() < 0.7,
                zero=choose.random() < 0.7,
                parity=choose.choice(list(Parity)),
            )
    return fmt, choose.choice(roundings(fmt))


def roundings(fmt: Format) -> list[Rounding]:
    """Return the roundings into a format but those at random; posits and grids have nothing to flush."""
    return [*operands.ROUNDINGS, *operands.FLUSHING] if type(fmt) is Format else operands.ROUNDINGS


def in_arrays(fmt: Format) -> bool:
    """Whether the oracle of arrays takes a format."""
    return type(fmt) is Format and fmt.emin - fmt.precision + 1 >= -1022


def by_definition(x: Any, fmt: Format, rounding: Rounding) -> Any:
    """Round an array by the oracle: that of arrays, where it takes the format."""
    if in_arrays(fmt):
        return round_integers(x, fmt, rounding)
    return np.array([round_float(number, fmt, rounding) for number in x.tolist()])


def some_codes(fmt: Posit) -> list[int]:
    """Return positive codes: those at both ends, beside the turn of a regime, and random ones."""
    top = 2 ** (fmt.bits - 1) - 1
    turns = {2**place + step for place in range(fmt.bits - 1) for step in (-1, 0, 1)}
    turns |= {top + 1 - turn for turn in turns}
    drawn = np.random.default_rng(1).integers(1, top + 1, 50).tolist()
    return sorted({turn for turn in turns if 1 <= turn <= top} | set(drawn))


@cache
def turning_points(fmt: Format) -> Any:
    """Return positive values and the boundaries between them, some beyond the last: all of a small format."""
    if isinstance(fmt, Posit):
        longer = Posit(fmt.bits + 1, fmt.es)
        codes = range(1, 2**fmt.bits) if fmt.bits <= 8 else some_codes(longer)
        return np.array([float(posit_value(code, longer)) for code in codes])
    if isinstance(fmt, Grid):
        most = min(max(fmt.high, -fmt.low), 300)
        ends = [4 * abs(end) + step for end in (fmt.low, fmt.high) for step in range(-17, 18)]
        quarters = np.unique(np.abs([*range(4 * most + 18), *ends]))
        return quarters * 2.0 ** (-2 - fmt.fraction_bits)
    size = operands.count(fmt) if fmt.precision <= 11 and fmt.emax - fmt.emin < 300 else 0
    if 0 < size <= 2**10:
        numbers = operands.magnitudes(fmt)
    elif size:
        inner = np.random.default_rng(1).integers(0, size, 1000)
        places = np.unique([*range(300), *inner, *(inner + 1) % size, *range(size - 300, size)])
        numbers = operands.magnitudes(fmt, places)
    else:
        return _drawn_beside_boundaries(fmt)
    last = numbers[-1] - numbers[-2]
    beyond = numbers[-1] + last * np.array([0.25, 0.5, 0.75, 1.0, 2.0, 64.0])
    return np.concatenate([numbers, numbers[1:] / 2 + numbers[:-1] / 2, beyond])


def _drawn_beside_boundaries(fmt: Format) -> Any:
    """Return numbers on values and boundaries of a format of many, and beside them by steps of all sizes."""
    rng, size = np.random.default_rng(4), 400
    low, high = max(fmt.emin - fmt.precision - 1, -1074), min(fmt.emax + 2, 1024)
    halves = rng.integers(2**fmt.precision, 2 ** (fmt.precision + 1), size)  # significands of p + 1 bits
    x = np.ldexp(halves.astype(np.float64), rng.integers(low, high, size) - fmt.precision)
    step = np.ldexp(rng.choice([-1.0, 0.0, 1.0], size), -rng.integers(1, 53, size))
    edges = np.array([fmt.max, fmt.smallest_normal, fmt.smallest_subnormal], dtype=np.float64)
    with np.errstate(over="ignore"):
        return np.concatenate([x, x * (1 + step), np.outer([0.5, 1.0, 1.5], edges).ravel()])


@cache
def hard_numbers(fmt: Format, dtype: type, any_bits: int = 0) -> Any:
    """Return turning points and the carrier's numbers beside them, of either sign, extremes, and any bits."""
    info, integer = np.finfo(dtype), np.dtype(f"u{np.dtype(dtype).itemsize}")
    with np.errstate(all="ignore"):
        exact = turning_points(fmt).astype(dtype)
        beside = [np.nextafter(exact, dtype(end)) for end in (0, np.inf)]
    codes = np.random.default_rng(3).integers(0, np.iinfo(integer).max, any_bits, integer, endpoint=True)
    extremes = [0.0, info.smallest_subnormal, info.tiny, 1e-30, 1e9, 1e30, info.max, np.inf, np.nan]
    nans = np.array([1, info.dtype.type(np.inf).view(integer) + 1, np.iinfo(integer).max >> 1], integer)[1:]
    x = np.concatenate([exact, *beside, np.array(extremes, dtype), nans.view(dtype), codes.view(dtype)])
    return np.concatenate([x, -x])
