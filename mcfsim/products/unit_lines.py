"""Matrix units as straight lines of machine operations: what a unit does with one group of products.

The lines run on numbers of binary64 that hold powers of two in place of exponents, so that the exponent of a
product is a product.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, reduce
from operator import add

from mcfsim.compile.contraction import ContractionLine
from mcfsim.eft import two_prod, two_sum
from mcfsim.formats import Format, get_format
from mcfsim.kernels.element.floats import INFINITY
from mcfsim.kernels.element.machine import F32, F64, Line, Value, greatest, least
from mcfsim.kernels.element.operations import BINARY64, Into, change_element, make_odd, operate_element
from mcfsim.kernels.operation_plan import Way
from mcfsim.products.units import Unit, UnitSums
from mcfsim.rounding import Rounding

#: The exponent of a zero.
_OF_ZERO = -126
#: Products of a term of `UnitSums.ALIGNED_SUMS`.
TERM = 16
#: Added to an integer and subtracted again, it rounds a number of binary64 to nearest; below 2^51.
_WHOLE = 1.5 * 2.0**52
#: Subtracted from a magnitude before rounding to nearest, so that the result is truncated: see `_cut`.
_NEARLY_HALF = 0.5 - 2.0**-26
_EXPONENT = 0x7FF << 52
_FLOAT32 = get_format("float32")


# -- operands ---------------------------------------------------------------------------------------------
def _power(x: Value, emin: int, unit: Unit | None = None) -> Value:
    """Return 2 to the exponent of a number, which is at least emin; that of a zero is a constant.

    It is 0 for a unit that gives zeros no exponent. Infinity and NaN have the power infinity.
    """
    power = _greater((x.bits() & _EXPONENT).as_number(), x.like(2.0**emin))
    none = unit is not None and unit.least_exponent is not None
    return x.equals(0.0).select(0.0 if none else 2.0**_OF_ZERO, power)


@lru_cache(maxsize=256)
def operand_line(unit: Unit, fmt: Format, of_scale: Format | None) -> tuple[Line, tuple[Value, ...]]:
    """Return the line that prepares a number ``x`` of an operand, and its results: the number and its power.

    With a format of scales it takes a ``scale``, too. Sums that are not aligned need no power.
    """
    line = Line()
    x = line.input("x", F64)
    if unit.flush:
        x = (abs(x) < float(fmt.smallest_normal)).select(0.0, x)
    if unit.sums in (UnitSums.PAIRWISE, UnitSums.CHAIN):
        return line, (x if unit.output.precision > 24 else x.narrow(),)
    if unit.sums is UnitSums.ALIGNED_SUMS:
        return line, (x,)
    power = _power(x, fmt.emin, unit)
    if of_scale is None:
        return line, (x, power)
    scale = line.input("scale", F64)
    return line, (x * scale, power * _power(scale, of_scale.emin))


@lru_cache(maxsize=64)
def scale_line(fmt: Format) -> tuple[Line, tuple[Value, ...]]:
    """Return the line that takes a ``scale`` apart: its significand, which is NaN if it is, and its power."""
    line = Line()
    scale = abs(line.input("scale", F64))
    power = _power(scale, fmt.emin)
    return line, (scale * _inverse(power), power)


# -- groups -----------------------------------------------------------------------------------------------
@lru_cache(maxsize=256)
def group_line(unit: Unit) -> ContractionLine:
    """Return the line of a unit for one group, given what `operand_line` and `scale_line` prepare."""
    wide = unit.sums.aligns or unit.output.precision > 24
    if unit.sums is UnitSums.ALIGNED_SUMS:
        parts = unit.k + 2 * (unit.k // TERM)
    else:
        parts = 2 * unit.k if unit.sums.aligns else unit.k
    carried = F32 if unit.output.precision <= 24 else F64
    made = ContractionLine(parts, F64 if wide else F32, carried)
    made.result = _GROUPS[unit.sums](unit, list(made.left), list(made.right), made.carried)
    return made


def _products(unit: Unit, left: list[Value], right: list[Value]) -> tuple[list[Value], list[Value]]:
    """Return the products of a group of numbers, and those of their powers."""
    products = [x * y for x, y in zip(left, right, strict=True)]
    return products[: unit.k], products[unit.k :]


def _aligned(unit: Unit, left: list[Value], right: list[Value], carried: Value) -> Value:
    return _with_carried(unit, *_products(unit, left, right), carried)


def _aligned_sums(unit: Unit, left: list[Value], right: list[Value], carried: Value) -> Value:
    count = unit.k // TERM
    products = [x * y for x, y in zip(left[: unit.k], right[: unit.k], strict=True)]
    terms, powers = [], []
    for place in range(count):
        term = _combined(products[TERM * place : TERM * (place + 1)], add)
        at, of = unit.k + place, unit.k + count + place
        power = left[of] * right[of]
        terms.append(term * (left[at] * right[at]) * power)
        powers.append(power)
    return _with_carried(unit, terms, powers, carried)


def _with_carried(unit: Unit, terms: list[Value], powers: list[Value], carried: Value) -> Value:
    """Return the rounded sum of terms and what is carried, all cut at the same place."""
    c, of_c = _carried(carried, unit)
    least = [] if unit.least_exponent is None else [c.like(2.0**unit.least_exponent)]
    total, quantum = _cut_sum([c, *terms], _combined([of_c, *powers, *least], _greater), _bits(unit))
    return _output(total * quantum, unit)


def _floored(unit: Unit, left: list[Value], right: list[Value], carried: Value) -> Value:
    products, powers = _products(unit, left, right)
    c, of_c = _carried(carried, unit)
    plain = _combined(products, add) + c  # for NaN and infinity alone
    # A product of 2^128 or more is infinite, and so is any sum with it.
    terms = [(abs(x) < 2.0**128).select(x, x * INFINITY) for x in products]
    bits = _bits(unit)
    most = _combined(powers, _greater)
    if unit.sums is UnitSums.FLOORED:
        total, quantum = _cut_sum(terms, most, bits)
    else:
        sums = []
        for half in (slice(0, None, 2), slice(1, None, 2)):
            part, own = _cut_sum(terms[half], _combined(powers[half], _greater), bits)
            sums.append(_floor(part * own * _to_quanta(most, bits)))
        total, quantum = _combined(sums, add), _inverse(_to_quanta(most, bits))
    top = _greater(most, of_c)
    total = _floor(total * quantum * _to_quanta(top, bits + 7))
    kept = c * _to_quanta(top, bits)
    if unit.sums is UnitSums.FLOORED_HALVES:
        kept = (of_c < top * 2.0 ** -(bits + 1)).select(0.0, kept)
    exact = (total + _floor(kept) * 2.0**7) * _inverse(_to_quanta(top, bits + 7))
    return _output((abs(plain) < INFINITY).select(exact, plain), unit)


def _pairwise(unit: Unit, left: list[Value], right: list[Value], carried: Value) -> Value:
    def rounded(x: Value) -> Value:
        return (abs(x) < 2.0**-126).select(x * 0.0, x) if unit.flush else x

    # As a fused multiply-add with +0: an exact zero is +0, an underflow has its sign.
    terms = [rounded((x.widen() * y.widen() + 0.0).narrow()) for x, y in zip(left, right, strict=True)]

    def tree(given: list[Value]) -> Value:
        half = len(given) // 2
        return rounded(tree(given[:half]) + tree(given[half:])) if half else given[0]

    return rounded(carried + tree(terms))


def _chain(unit: Unit, left: list[Value], right: list[Value], carried: Value) -> Value:
    for x, y in zip(left, right, strict=True):
        if unit.output.precision > 24:
            carried = fused_float64(x, y, carried)
        else:
            given = [x, y, carried]
            carried = operate_element("fma", given, Way.STICKY, Into(unit.output, Rounding(), F32))
    return carried


_GROUPS = {
    UnitSums.ALIGNED: _aligned,
    UnitSums.ALIGNED_SUMS: _aligned_sums,
    UnitSums.FLOORED: _floored,
    UnitSums.FLOORED_HALVES: _floored,
    UnitSums.PAIRWISE: _pairwise,
    UnitSums.CHAIN: _chain,
}


# -- aligned sums -----------------------------------------------------------------------------------------
def _bits(unit: Unit) -> int:
    assert unit.fraction_bits is not None
    return unit.fraction_bits


def _greater(x: Value, y: Value) -> Value:
    chosen: Value = (x < y).select(y, x)
    return chosen


def _combined(given: list[Value], both: Callable[[Value, Value], Value]) -> Value:
    """Combine numbers in pairs until one is left; binary64 holds their partial sums."""
    while len(given) > 1:
        given = [reduce(both, given[i : i + 2]) for i in range(0, len(given), 2)]
    return given[0]


def _carried(carried: Value, unit: Unit) -> tuple[Value, Value]:
    c = carried.widen()
    return c, _power(c, min(unit.added.emin, unit.output.emin), unit)


def _to_quanta(power: Value, bits: int) -> Value:
    """Return ``2**bits / power``; of infinity, a small power."""
    return (-power.bits() + (2046 << 52) + (bits << 52)).as_number()


def _inverse(power: Value) -> Value:
    """Return the inverse of a power of two."""
    return (-power.bits() + (2046 << 52)).as_number()


def _cut_sum(terms: list[Value], power: Value, bits: int) -> tuple[Value, Value]:
    """Return the sum of terms, each cut to a multiple of a quantum, ``power / 2**bits``, and the quantum.

    The sum is in quanta. It is infinite or NaN if that of the terms is.
    """
    scale = _to_quanta(power, bits)
    return _combined([_cut(term * scale) for term in terms], add), _inverse(scale)


def _cut(x: Value) -> Value:
    """Return a number of at most 24 bits and below 2^51, cut to an integer; the sign of a zero is arbitrary.

    A little less than a half is subtracted from the magnitude ``n + f``, and the difference is rounded to
    nearest. Since ``f <= 1 - 2^-24``, it rounds to n. If n has more than 24 bits, binary64 may not hold the
    difference, and rounds it to no less than a tie; then n is even.
    """
    toward = ((x.bits() & -(2**63)) | x.like(_NEARLY_HALF).bits()).as_number()
    return (x - toward + _WHOLE) - _WHOLE


def _floor(x: Value) -> Value:
    """Return a number below 2^51 rounded down to an integer."""
    near = (x + _WHOLE) - _WHOLE
    return (x < near).select(near - 1.0, near)


def _output(x: Value, unit: Unit) -> Value:
    """Round a sum; beyond the largest exponent it is infinite, and an exact zero is +0."""
    fmt, signed = unit.output, unit.sums.floors
    x = x + 0.0 if signed else x
    rounded = change_element("round", x, Into(fmt, Rounding(unit.rounding), F32))
    rounded = rounded if signed else rounded + 0.0
    within = abs(x) < 2.0 ** (fmt.emax + 1)
    return within.select(rounded, (x * INFINITY).narrow())


# -- fused multiply-adds of binary64 ----------------------------------------------------------------------
#: Between exponents that differ by more, the smaller number decides only how the other one is rounded.
_FAR = 120


def fused_float64(a: Value, b: Value, c: Value) -> Value:
    """Return ``a b + c`` of binary64, rounded once to nearest even, subnormal results included.

    The factors are taken apart, so that the product is exact in two numbers h and l, and c is scaled like it.
    The exact sum of h, l and c is one number and another that is rounded to odd (Boldo and Melquiond 2008).
    If the result is subnormal, a power of two is added so that the last bit is the smallest subnormal
    number's.
    """
    (ma, ea), (mb, eb), (mc, ec) = map(_apart, (a, b, c))
    exponent = ea + eb
    distance = c.equals(0.0).select(-_FAR, ec - exponent)
    far = distance > _FAR
    scaled = mc * _power_of(greatest(least(distance, _FAR), -_FAR))
    scaled = c.equals(0.0).select(0.0, scaled)
    place = far.select(ec - _FAR, exponent)
    high, low = two_prod(BINARY64, ma, mb)
    t_high, t_low = two_sum(BINARY64, scaled, low)
    v_high, v_low = two_sum(BINARY64, high, t_high)
    rest = make_odd(*two_sum(BINARY64, t_low, v_low))
    total = v_high + rest
    sign = total.bits() & -(2**63)
    # The smallest subnormal number in units of 2^place, or some number as far from the sum as that.
    quantum = _power_of(greatest(least(-place - 1074, 300), -300))
    coarse = abs(total) < quantum * 2.0**52
    beside = coarse.select(((quantum * 2.0**52).bits() | sign).as_number(), 0.0)
    upper, lost = two_sum(BINARY64, beside, v_high)
    made = (upper + make_odd(*two_sum(BINARY64, lost, rest))) - beside
    made = ((made.bits() & (2**63 - 1)) | sign).as_number()
    quarter = place >> 2
    by = _power_of(quarter)
    made = made * by * by * by * _power_of(place - quarter - quarter - quarter)
    finite = (abs(a) < INFINITY) & (abs(b) < INFINITY)
    usual = (abs(a) > 0.0) & (abs(b) > 0.0) & (abs(total) > 0.0) & finite & (abs(c) < INFINITY)
    # A product beyond the range must not meet an infinite c.
    plainly = (finite & ~(abs(c) < INFINITY)).select(c, a * b + c)
    fused: Value = usual.select(made, plainly)
    return fused


def _apart(x: Value) -> tuple[Value, Value]:
    """Return the significand in [1, 2) with the sign, and the exponent, of a finite number that is not 0."""
    small = abs(x) < 2.0**-1022
    bits = small.select(x * 2.0**54, x).bits()
    exponent = (bits & _EXPONENT).shr(52) - 1023 - small.select(x.bits().like(54), 0)
    return ((bits & ~_EXPONENT) | (1023 << 52)).as_number(), exponent


def _power_of(exponent: Value) -> Value:
    return ((exponent + 1023) << 52).as_number()
