"""Numbers in every kind of format: no exception, and every equation that is printed is true.

The printed text is read back: decimals, hexadecimal numbers, codes, powers of two, components, what is left.
What rounds is `mcfsim.oracle`, which its own tests judge.
"""

from __future__ import annotations

import math
import re
from decimal import ROUND_HALF_EVEN, Context, Decimal
from fractions import Fraction

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.codec import decode, next_down, next_up, ulp
from mcfsim.formats import FORMATS, Format, Grid, Posit, get_format
from mcfsim.report.inspect import inspect_value, read_number
from mcfsim.report.tables import inspection_table, power_text
from tests.oracle.operands import UNUSUAL_FORMATS, label
from tests.shared.formats import GRIDS, LARGE_POSITS, VARIANTS
from tests.shared.rationals import floor_log2
from tests.shared.refusals import check as check_refusals
from tests.shared.refusals import refusals, refused

#: Texts of every magnitude that matters to some format, and the special values.
_NUMBERS = """
0 -0 nan -nan inf -inf 1 -1 2 0.5 0.999 -0.999 1/3 -2/7 0.1 3.5 447 448 449 464 465 -465 1e5 65519.99 65520
-70000 1e-3 6e-8 2.98e-8 1e-40 -1e-40 4e-46 5e-324 2e-324 1e39 1.7976931348623157e308 1e309 -1e400 1e-400
0x1.8p3 0x1p-149 1e9 -1e9 2e7 6.5 7 127 127.5 -128 -128.5 -129 18446744073709551617 -36893488147419103233
1e5000 -1e5000 1e-5000 -0x1.fffffffffffffp1023 0xffffffffffffffffffffp-3 1e20000 22/7 1000000007/1000000009
"""
NUMBERS = (*_NUMBERS.split(), "123456789" * 9)
EVERY = [
    *(*FORMATS.values(), *UNUSUAL_FORMATS, *GRIDS, *LARGE_POSITS, *VARIANTS[::9]),
    *map(get_format, ("e6m9", "e2m1", "e11m51", "posit3", "posit8", "posit8es0", "int32")),
    *(Grid(low=-8, high=8, fraction_bits=-2), Grid(low=-(2**31), high=5, fraction_bits=40)),
]


def near(fmt, seed, size):
    """Return random fractions of the format's magnitudes, as text, half of them as decimals."""
    rng = np.random.default_rng(seed)
    low, high = max(fmt.emin - fmt.precision - 3, -1100), min(fmt.emax + 3, 1100)
    for place in range(size):
        number = Fraction(int(rng.integers(1, 2**60)), int(rng.integers(1, 2**60)))
        number *= int(rng.choice([-1, 1])) * Fraction(2) ** int(rng.integers(low, high))
        decimal = Context(prec=20).divide(number.numerator, number.denominator)
        yield f"{number.numerator}/{number.denominator}" if place % 2 else str(decimal)


def decimal(text):
    """Return the number of a decimal text, exactly: NaN and infinities as floats."""
    return float(text) if text in ("nan", "inf", "-inf") else Fraction(text)


def is_rounding(text, exact, figures):
    """Whether a text is a number in decimal, rounded to so many significant digits."""
    with_digits = Context(prec=figures, rounding=ROUND_HALF_EVEN, Emax=10**8, Emin=-(10**8))
    return Decimal(text) == with_digits.divide(Decimal(exact.numerator), Decimal(exact.denominator))


def check(text, fmt, rounding="nearest_even", overflow="ieee"):
    """Inspect a number, print it, read the print back and compare with codec and fractions."""
    number = read_number(text)
    seen = inspect_value(text, fmt, rounding, overflow)
    column = {row[text]: row[str(fmt)] for row in inspection_table(text, [seen])}
    exact = number if isinstance(number, Fraction) else Fraction(number) if number == 0 else None
    rounded = decimal(column["rounded"])
    assert rounded == seen.rounded or math.isnan(seen.rounded)
    if math.isnan(seen.rounded):
        assert column["hex float"] == column["rounded"] == "nan"
        assert column["below"] == column["above"] == "-"
    else:
        assert float.fromhex(column["hex float"]) == seen.rounded
    bits = column["sign | exponent | fraction"].replace(" | ", "")
    if column["code"] == "no code":
        assert not math.isfinite(seen.rounded)
        assert bits == "no code"
    else:
        code = int(column["code"], 16)
        assert bits == f"{code:0{fmt.bits}b}"
        value = float(decode([code], fmt)[0])
        assert value == seen.rounded or (math.isnan(value) and math.isnan(seen.rounded))
    for side, direction in (("below", next_down), ("above", next_up)):
        if column[side] != "-":
            value, code = re.fullmatch(r"(\S+) \((0x[0-9a-f]+)\)", column[side]).groups()
            with np.errstate(over="ignore"):
                assert float(direction([seen.rounded], fmt)[0]) == decimal(value)
            assert float(decode([int(code, 16)], fmt)[0]) == decimal(value)
    finite = math.isfinite(seen.rounded)
    assert (column["ulp"] == "-") is not finite
    if finite:
        check_power(column["ulp"], Fraction(float(ulp([seen.rounded], fmt)[0])))
    said = r"\(the number is (beyond the maximum|below the least value) (\S+)\)"
    if remark := re.search(said, column["kind"]):
        beyond, end = remark[1].startswith("beyond"), Fraction(remark[2])
        assert end == (fmt.max if beyond else fmt.lowest)
        assert exact > end if beyond else exact < end
    elif exact is not None:
        assert exact <= fmt.max
        assert exact >= min(fmt.lowest, 0)
    if exact is None or not finite:
        assert column["relative error"] == column["error in ulp"] == "-"
    else:
        error = Fraction(seen.rounded) - exact
        assert is_rounding(column["relative error"], error / abs(exact) if error else error, 6)
        assert is_rounding(column["error in ulp"], error / unit_of(exact, fmt), 6)
    for length in (2, 3):
        if column[f"{length} components"] == "-":
            assert column[f"residual of {length}"] == "-"
            continue
        parts = [Fraction(part) for part in column[f"{length} components"].split(", ")]
        assert len(parts) == length
        assert is_rounding(column[f"residual of {length}"], exact - sum(parts), 17)
        assert seen.residual(parts) == exact - sum(parts)
        assert parts[0] == seen.rounded or rounding != "nearest_even"
    nearest = exact is not None and finite and rounding == "nearest_even" and not seen.beyond_maximum
    if nearest and type(fmt) is Format:
        if not fmt.zero and abs(exact) < fmt.smallest_normal:
            assert abs(seen.rounded) == fmt.smallest_normal  # nothing is below it
        elif fmt.signed or exact >= 0:
            assert abs(seen.ulp_error) <= Fraction(1, 2)
        if seen.expansions and fmt.precision < 52:  # the emulator cannot round to 52 bits
            assert seen.expansions[1] == mcf.expand(mcf.arithmetic(fmt), seen.exact, 3)
    return seen


def check_power(text, number):
    """Read ``[odd *] 2^k = d`` or ``..., about d``: the product is the number, and so is the decimal."""
    odd, power, about, written = re.fullmatch(r"(?:(\d+) \* )?2\^(-?\d+)( =|, about) (\S+)", text).groups()
    assert int(odd or 1) * Fraction(2) ** int(power) == number
    if about == " =":
        assert Fraction(written) == number
    else:
        assert Fraction(written) != number
        assert is_rounding(written, number, 6)


def unit_of(exact, fmt):
    """Return the unit in the last place of a number that need not be one of binary64."""
    if isinstance(fmt, Grid):
        return fmt.quantum
    if isinstance(fmt, Posit):
        clipped = min(abs(exact), fmt.max)
        nearest = float(clipped)
        below = nearest if Fraction(nearest) <= clipped else math.nextafter(nearest, 0.0)
        return Fraction(float(ulp([below], fmt)[0]))
    exponent = min(max(floor_log2(exact), fmt.emin), fmt.emax) if exact else fmt.emin
    return Fraction(2) ** (exponent - fmt.precision + 1)


@pytest.mark.slow
@pytest.mark.parametrize("fmt", EVERY, ids=label)
@pytest.mark.sampled(60, each=False)
def test_every_number_is_inspected_and_every_equation_holds(fmt):
    for text in (*NUMBERS, *near(fmt, fmt.bits, 12)):
        check(text, fmt)
    for text in near(fmt, fmt.bits + 1, 6):
        check(text, fmt, "down", "saturate")


@pytest.mark.parametrize("name", ["binary8p4uf", "binary8p3ue", "binary6p2uf", "float8_e8m0fnu"])
def test_what_rounds_up_in_a_format_without_sign_has_no_components(name):
    assert check("0.999", get_format(name)).expansions == ()
    with pytest.raises(ValueError, match=r"what 1\.0 leaves is negative"):
        mcf.expand(mcf.arithmetic(name), Fraction("0.999"), 2)


def test_powers_of_two_and_what_is_none():
    numbers = 15_728_640, Fraction(1, 128), 1, Fraction(3, 4), Fraction(1, 2**133)
    exact = ["15 * 2^20 = 15728640", "2^-7 = 0.0078125", "2^0 = 1", "3 * 2^-2 = 0.75"]
    assert [power_text(Fraction(number)) for number in numbers] == [*exact, "2^-133, about 9.18355e-41"]
    rng = np.random.default_rng(2)
    for _ in range(500):
        number = int(rng.integers(1, 2**40)) * Fraction(2) ** int(rng.integers(-1200, 1200))
        check_power(power_text(number), number)


ABSENT = dict.fromkeys(("below", "above", "ulp", "exact", "error"))
TIE = 2**16 - 2**4  # half way from the maximum of float16 to 2^16
BELOW = TIE - Fraction(1, 2)
LEAST = float(get_format("float8_e4m3fnuz").smallest_subnormal)
#: A number, a format, and what is seen, of a neighbour its value and code.
SEEN = [
    ("nan", "float8_e4m3fn", {"kind": "NaN", "code": 0x7F, "expansions": (), **ABSENT}),
    ("nan", "float4_e2m1fn", {"bits": None}),
    ("-inf", "float16", {"kind": "infinite", "code": 0xFC00, "below": None, "above": (-65504.0, 0xFBFF)}),
    ("-0", "bfloat16", {"kind": "zero", "code": 0x8000, "relative_error": 0}),
    ("-0", "float8_e4m3fnuz", {"code": 0}),  # there is no negative zero
    (-LEAST, "float8_e4m3fnuz", {"above": (0.0, 0)}),
    ("1e-50", "bfloat16", {"kind": "zero"}),
    ("1e-40", "bfloat16", {"kind": "subnormal", "code": 1, "below": (0.0, 0)}),
    (TIE, "float16", {"kind": "infinite", "expansions": ()}),
    (BELOW, "float16", {"rounded": 65504.0, "beyond_maximum": True, "above": (math.inf, 0x7C00)}),
    (100, "float4_e2m1fn", {"rounded": 6.0, "expansions": ()}),  # no sum of three components is near
    (465, "float8_e4m3fn", {"expansions": ()}),
]


@pytest.mark.parametrize(("number", "fmt", "expected"), SEEN)
def test_what_is_seen_of_special_values_and_at_the_ends_of_the_range(number, fmt, expected):
    seen = inspect_value(number, fmt)
    found = {name: getattr(seen, name) for name in expected}
    for side in {"below", "above"} & {name for name, x in found.items() if x is not None}:
        assert math.copysign(1, found[side].value) == math.copysign(1, expected[side][0])
        found[side] = found[side].value, found[side].code
    assert found == expected


def test_overflow():
    assert inspect_value(BELOW, "float16").expansions[0] == (65504.0, 15.5)
    assert inspect_value(464, "float8_e4m3fn").expansions[0] == (448.0, 16.0)  # a tie to even: the maximum
    saturated = inspect_value(465, "float8_e4m3fn", overflow="saturate")
    assert (saturated.rounded, saturated.above, saturated.ulp_error) == (448.0, None, Fraction(-17, 32))
    with pytest.raises(ValueError, match="not finite"):
        inspect_value("nan", "float8_e4m3fn").residual((1.0,))


def test_numbers_are_taken_exactly():
    halfway = "1.00390625"
    assert inspect_value(halfway, "bfloat16").rounded == 1.0
    # In binary64 the last digit is lost, and with it the direction.
    assert inspect_value(halfway + "0" * 30 + "1", "bfloat16").rounded == 1.0078125
    assert read_number("0x1.00000000000000000001p0") == 1 + Fraction(1, 16**20)
    assert read_number("-0X.8P+4") == -8
    assert read_number("0xff") == 255
    assert read_number(" 1/3 ") == Fraction(1, 3)
    assert inspect_value(Decimal("0.999"), "bfloat16") == inspect_value("0.999", "bfloat16")
    assert inspect_value(0.999, "bfloat16").exact == Fraction(0.999) != Fraction("0.999")
    for text in ("-0", "-0.0", "-0e5", "-0x0p0", "-0/3"):
        assert math.copysign(1, read_number(text)) == -1, text
    assert [repr(read_number(text)) for text in ("0", "0/3", "0x0p0")] == ["Fraction(0, 1)"] * 3
    assert inspect_value("0.1", "float64", "up").rounded == 0.1
    assert inspect_value("0.1", "float64", "down").rounded == math.nextafter(0.1, 0)


WRONG = ("", "abc", "0x", "0x.p1", "1/2/3", "1.5/2", "1e", "--1")


@refusals(
    refused(ValueError, "is no number; allowed: a decimal", inspect_value, *((x, "bfloat16") for x in WRONG)),
    refused(ValueError, "denominator zero", inspect_value, ("1/0", "bfloat16")),
    refused(ValueError, "exceeds 20000", read_number, "1e99999999", "1e-99999999", "0x1p-999999"),
    refused(ValueError, "binary64 does not hold", inspect_value, (1, "e15m10")),
    refused(ValueError, "unknown rounding 'even'", inspect_value, (1, "bfloat16", "even")),
    refused(TypeError, "no real number", inspect_value, ([1], "bfloat16")),
)
def test_what_is_no_number_or_no_format_is_refused(rows):
    check_refusals(rows)
