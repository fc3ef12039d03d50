"""Statements on double rounding: when rounding to a wider format first does not change the result."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

from mcfsim.formats import FORMATS, Format
from mcfsim.rounding import Mode, Rounding, Underflow
from mcfsim.theorems.claims import same_results
from mcfsim.theorems.counterexamples import (
    Case,
    Witnesses,
    factors,
    nearest_to,
    power,
    quantum,
    scaled,
    shows,
)
from mcfsim.theorems.operands import value
from mcfsim.theorems.rounding_twice import held, suffices, twice, wider
from mcfsim.theorems.statement import DIRECTED, EVERY_MODE, FAITHFUL, Scaling, Theorem, gaps_in_every_mode

FORMULAS = {"add": "a + b", "mul": "a b", "div": "a / b", "sqrt": "sqrt(a)", "fma": "a b + c"}
OPERANDS = {"add": "ab", "mul": "ab", "div": "ab", "sqrt": "a", "fma": "abc"}
SCALINGS = {
    "add": Scaling.COMMON,
    "mul": Scaling.EACH,
    "div": Scaling.EACH,
    "sqrt": Scaling.SQUARE,
    "fma": Scaling.NONE,
}
CARRIERS = ("float16", "bfloat16", "float32", "float64")

FIGUEROA = "Figueroa, SIGNUM Newsl. 30(3), 1995; Roux, J. Formaliz. Reason. 7(1), 2014"
BOLDO_MELQUIOND = "Boldo, Melquiond, IEEE Trans. Comput. 57(4), 2008"
MONOTONY = "rounding is monotone, and the values of the format are among those of the wider one"
OWN = "from the bits of exact results; no published source is known to us"


def _statement(name: str, operation: str, algorithm: Callable[..., Any], how: str, **facts: Any) -> Theorem:
    return Theorem(
        name,
        algorithm,
        tuple(map(value, OPERANDS[operation])),
        same_results(f"RN({FORMULAS[operation]}, {how})", f"RN({FORMULAS[operation]})"),
        scaling=SCALINGS[operation],
        **facts,
    )


# -- to more bits, without intermediate overflow or underflow -----------------------------------------------
def _innocuous(operation: str, more: int, **facts: Any) -> Theorem:
    """State that rounding to ``2p + more`` bits first is innocuous."""
    bits = f"2p{more:+}" if more else "2p"
    name = f"innocuous_{operation}_2p{'_minus_' if more < 0 else ''}{abs(more) or ''}"
    algorithm = twice(operation, wider(lambda p: 2 * p + more))
    return _statement(name, operation, algorithm, f"first to {bits} bits", source=FIGUEROA, **facts)


def _same_direction(operation: str) -> Theorem:
    algorithm = twice(operation, wider(lambda p: p + 1))
    how = "first to p+1 bits in the same direction"
    given: Any = {"source": MONOTONY, "modes": FAITHFUL, "gaps": gaps_in_every_mode}
    return _statement(f"directed_{operation}", operation, algorithm, how, **given)


def _odd(operation: str, more: int, **facts: Any) -> Theorem:
    """State that rounding to odd with ``p + more`` bits first is innocuous."""
    algorithm = twice(operation, wider(lambda p: p + more), Mode.TO_ODD)
    name = f"round_to_odd_{operation}" + ("" if more == 2 else f"_p{more}")
    how = f"first to odd with p+{more} bits"
    return _statement(name, operation, algorithm, how, source=BOLDO_MELQUIOND, **facts)


# -- carriers -----------------------------------------------------------------------------------------------
def _via(operation: str, carrier: str) -> Theorem:
    """State that rounding to a carrier first is innocuous if it has the bits and the range needed."""
    fmt = FORMATS[carrier]
    return _statement(
        f"{operation}_via_{carrier}",
        operation,
        twice(operation, lambda _: fmt, Mode.NEAREST_EVEN),
        f"first in {carrier}",
        where=(suffices(operation, fmt),),
        source=OWN if operation == "fma" else f"{FIGUEROA}; what underflow needs: {OWN}",
    )


def _via_any(operation: str, carrier: str, **facts: Any) -> Theorem:
    """State the same for any format whose values the carrier has, which is false for some formats."""
    return replace(
        _via(operation, carrier),
        name=f"{operation}_via_{carrier}_any",
        where=(held(FORMATS[carrier]),),
        source="a common belief",
        holds=False,
        **facts,
    )


def _beside_midpoints(p: int) -> Iterator[tuple[Fraction, ...]]:
    """Yield a, b, c where a b is a midpoint and c decides, but a carrier drops c."""
    product = 2**p + (1 if p % 2 else 5)  # a multiple of 3
    for c in (20, 50):
        yield Fraction(3), Fraction(product, 3), Fraction(1, 2**c)


# -- counterexamples ----------------------------------------------------------------------------------------
def _seen(
    fmt: Format, rounding: Rounding, case: tuple[int | Fraction, Fraction], upper: int, last: int
) -> Iterator[Case]:
    """Yield a case at two scales (see `scaled`), where the upper of its two results does not saturate."""
    for *operands, result in scaled((*case, upper), fmt, last):
        if shows(fmt, rounding, result):
            yield tuple(operands)


def _sum_at_midpoint(bits: Callable[[int], int]) -> Witnesses:
    """Return witnesses: sums next to a midpoint, to which a tie in `bits` bits, to even or away, goes."""

    def witnesses(fmt: Format, rounding: Rounding) -> Iterator[Case]:
        p, q = fmt.precision, bits(fmt.precision)
        if not p + 2 <= q <= 2 * p:
            return
        one, half, step = 2 ** (p - 1), Fraction(1, 2), power(p - 1 - q)
        yield from _seen(fmt, rounding, (one + 1, half - step), one + 2, p - 1 - q)
        if rounding.mode is Mode.NEAREST_EVEN:
            yield from _seen(fmt, rounding, (one, half + step), one + 1, p - 1 - q)

    return witnesses


def _product_at_midpoint(fmt: Format, rounding: Rounding) -> Iterator[Case]:
    """Yield products of 2p bits that differ from a midpoint by one unit of their last bit."""
    p = fmt.precision
    if rounding.mode is Mode.NEAREST_AWAY:
        a, b = 2 ** (p - 1) + 1, 2**p - 1
    elif p >= 4:
        a = b = 13 if p == 4 else 3 * 2 ** (p - 2) - 1
    else:
        return
    low = max(fmt.emin - 2 * p + 1, 2 * quantum(fmt))
    for total in nearest_to(0, low, min(fmt.emax, 2 * fmt.emax + 1) - 2 * p):
        yield factors(a, b, total)


def _quotient_at_midpoint(fmt: Format, rounding: Rounding) -> Iterator[Case]:
    """Yield quotients just above a midpoint that rounds down, or just below one that rounds up."""
    p = fmt.precision
    x, y = 2 ** (p - 1), 2**p - 1
    if rounding.mode is Mode.NEAREST_AWAY:
        if p == 2:
            return
        # 2**(p+1) x = (3 2**(p-1) + 1) y - 1
        x, y = 3 * 2**p // 8 + 1, 2 ** (p - 1) + 1
    for shift in nearest_to(0, fmt.emin + 1, fmt.emax):
        least = max(quantum(fmt), quantum(fmt) - shift)
        yield from scaled((x * power(shift), y), fmt, quantum(fmt) - least)


def _root_at_midpoint(fmt: Format, _: Rounding) -> Iterator[Case]:
    """Yield ``1 - u`` times powers of 4: the root is just below ``1 - u/2 - u^2/8`` times a power of 2."""
    p = fmt.precision
    low = max(quantum(fmt), 2 * fmt.emin + 2 - p)
    high = min(fmt.emax - p + (fmt.max_significand == 2**p - 1), 2 * fmt.emax - p)
    for exponent in nearest_to(-p, low + (low - p) % 2, high - (high - p) % 2):
        yield ((2**p - 1) * power(exponent),)


def _lost_in_nearest(fmt: Format, rounding: Rounding) -> Iterator[Case]:
    """Yield a number and one that is lost beside it to nearest in 2p + 1 bits, but not in a directed mode."""
    p, mode = fmt.precision, rounding.mode
    a, b = Fraction(1), power(-2 * p - 1)
    if mode is Mode.DOWN:
        a, b = -a, -b
    elif mode is Mode.TOWARD_ZERO:
        a, b = 1 + power(1 - p), -b
    return scaled((a, b), fmt, -2 * p - 1)


def _odd_sum(fmt: Format, rounding: Rounding) -> Iterator[Case]:
    """Yield numbers and 1/4 or 3/4 of their ulp: rounding to odd in p + 1 bits makes it half an ulp."""
    one = 2 ** (fmt.precision - 1)
    yield from _seen(fmt, rounding, (one + 1, Fraction(1, 4)), one + 2, -2)
    if rounding.mode is Mode.NEAREST_EVEN:
        yield from _seen(fmt, rounding, (one, Fraction(3, 4)), one + 1, -2)


def _odd_product(fmt: Format, rounding: Rounding) -> Iterator[Case]:
    """Yield a product a quarter of an ulp above an odd significand; for p = 2, above an even one."""
    p = fmt.precision
    if p > 2 or rounding.mode is Mode.NEAREST_AWAY:
        low = max(fmt.emin - p - 1, 2 * quantum(fmt))
        for total in nearest_to(0, low, min(fmt.emax - p - 2, 2 * fmt.emax - p)):
            yield factors(3, 2**p - 1, total)


def _odd_fma(fmt: Format, rounding: Rounding) -> Iterator[Case]:
    """Yield products ``a b + 0`` and sums ``a * 1 + b``."""
    yield from ((a, b, Fraction(0)) for a, b in _odd_product(fmt, rounding))
    yield from ((a, Fraction(1), b) for a, b in _odd_sum(fmt, rounding))


ODD: Mapping[str, Witnesses] = {
    "add": _odd_sum,
    "mul": _odd_product,
    "div": _quotient_at_midpoint,
    "sqrt": _root_at_midpoint,
    "fma": _odd_fma,
}


def _root_in_bfloat16(fmt: Format, rounding: Rounding) -> Iterator[Case]:
    """Yield roots next to a midpoint to which the 8 bits of bfloat16 round them."""
    if fmt.precision < 8 <= 2 * fmt.precision + 1:
        yield from _root_at_midpoint(fmt, rounding)


def _product_below(fmt: Format, _: Rounding) -> Iterator[Case]:
    """Yield products just below 3/2 of the smallest number, to which float32 rounds them.

    ``(3 2**(p-2) + 3) (2**p - 4) = 3 2**(2p-2) - 12``.
    """
    p, last = fmt.precision, quantum(fmt) + 1 - 2 * fmt.precision
    if p > 3 and 24 * power(last) <= power(quantum(FORMATS["float32"])) < power(quantum(fmt)):
        yield factors(3 * 2 ** (p - 2) + 3, 2**p - 4, last)


def _fma_at_midpoint(carrier: Format) -> Witnesses:
    """Return witnesses: products at a midpoint, and summands that decide but that a carrier drops."""

    def witnesses(fmt: Format, rounding: Rounding) -> Iterator[Case]:
        p = fmt.precision
        if p < 3 or carrier.precision < p + 2:
            return
        product = 2**p + (1 if p % 2 else 5)  # a multiple of 3
        sign = -1 if rounding.mode is Mode.NEAREST_AWAY else 1
        for total in nearest_to(0, quantum(fmt) + carrier.precision - p, fmt.emax - p - 1):
            a, b = factors(3, Fraction(product, 3), total)
            yield a, b, sign * power(total + p - carrier.precision)

    return witnesses


def _flushed(fmt: Format, _: Rounding) -> Iterator[Case]:
    """Yield a product of 3/4 of the smallest number, if that is subnormal in float32."""
    if quantum(fmt) <= FORMATS["float32"].emin:
        yield factors(3, 1, quantum(fmt) - 2)


THEOREMS: tuple[Theorem, ...] = (
    _innocuous("add", 1),
    _innocuous("add", 0, holds=False, witnesses=_sum_at_midpoint(lambda p: 2 * p)),
    _innocuous("mul", 0),
    _innocuous("mul", -1, holds=False, witnesses=_product_at_midpoint),
    _innocuous("div", 0),
    _innocuous("div", -1, holds=False, witnesses=_quotient_at_midpoint),
    _innocuous("sqrt", 2),
    _innocuous("sqrt", 1, holds=False, witnesses=_root_at_midpoint),
    *map(_same_direction, FORMULAS),
    _statement(
        "directed_add_after_nearest",
        "add",
        twice("add", wider(lambda p: 2 * p + 1), Mode.NEAREST_EVEN),
        "first to nearest with 2p+1 bits",
        source=OWN,
        modes=DIRECTED,
        holds=False,
        witnesses=_lost_in_nearest,
        gaps=lambda p: (-2 * p - 4, 2 * p + 4),
    ),
    *(_odd(operation, 2, modes=EVERY_MODE) for operation in FORMULAS),
    *(_odd(operation, 1, holds=False, witnesses=ODD[operation]) for operation in FORMULAS),
    *(_via(operation, carrier) for operation in ("add", "mul", "div", "sqrt") for carrier in CARRIERS),
    *(_via("fma", carrier) for carrier in ("float16", "float32", "float64")),
    _via_any("add", "bfloat16", witnesses=_sum_at_midpoint(lambda _: 8)),
    _via_any("sqrt", "bfloat16", witnesses=_root_in_bfloat16),
    _via_any("mul", "float32", witnesses=_product_below),
    *(
        _via_any("fma", name, families=_beside_midpoints, witnesses=_fma_at_midpoint(FORMATS[name]))
        for name in ("float16", "float32", "float64")
    ),
    _statement(
        "mul_via_float32_flushed",
        "mul",
        twice("mul", lambda _: FORMATS["float32"], Mode.NEAREST_EVEN, Underflow.FLUSH_AFTER),
        "first in float32 without subnormal numbers",
        where=(suffices("mul", FORMATS["float32"]),),
        source=OWN,
        holds=False,
        witnesses=_flushed,
    ),
)
