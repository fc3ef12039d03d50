"""One number in a format, against rational arithmetic, ml_dtypes, NumPy and the emulator."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from typer.testing import CliRunner

import mcfsim as mcf
from mcfsim.cli import app
from mcfsim.formats import get_format
from mcfsim.report.inspect import inspect_value, read_number
from mcfsim.report.tables import plan_table
from mcfsim.rounding import DETERMINISTIC, Mode, Rounding

THOUSANDTHS = Fraction("0.999")
#: Texts of every magnitude that matters to some format, and the special values.
NUMBERS = (
    *(
        "0",
        "-0",
        "1",
        "-1",
        "0.999",
        "1/3",
        "-2/7",
        "0.1",
        "3.5",
        "447",
        "449",
        "464",
        "465",
        "1e5",
        "65519.99",
    ),
    *("65520", "-70000", "1e-3", "6e-8", "2.98e-8", "1e-40", "-1e-40", "4e-46", "5e-324", "2e-324", "1e39"),
    *("1.7976931348623157e308", "1e309", "-1e400", "1e-400", "0x1.8p3", "0x1p-149", "inf", "-inf", "nan"),
)


def _dtype(name: str) -> np.dtype:
    return np.dtype(getattr(ml_dtypes, name, None) or getattr(np, name))


def _nearest_binary64(number: Fraction | float) -> float:
    try:
        return float(number)
    except OverflowError:
        return -math.inf if number < 0 else math.inf


NATIVE = [name for name in mcf.FORMATS if name != "tf32"]


def test_the_published_example() -> None:
    seen = inspect_value("0.999", "bfloat16")
    assert (seen.rounded, seen.code, seen.kind) == (1.0, 0x3F80, "normal")
    assert seen.bits == ("0", "01111111", "0000000")
    assert (seen.below.value, seen.below.code) == (0.99609375, 0x3F7F)
    assert (seen.above.value, seen.above.code) == (1.0078125, 0x3F81)
    assert seen.ulp == Fraction(1, 128)
    assert seen.error == Fraction(1, 1000)
    assert seen.relative_error == Fraction(1, 999)
    assert seen.ulp_error == Fraction(256, 1000)  # 0.999 lies in a binade whose ulp is 2^-8
    two, three = seen.expansions
    assert two == (1.0, -0.00099945068359375)
    assert three[:2] == two
    assert seen.residual(two) == THOUSANDTHS - 1 + Fraction(0.00099945068359375)
    assert seen.residual(two) == Fraction(-9, 16384000)
    assert seen.residual(three) == THOUSANDTHS - sum(map(Fraction, three))


@pytest.mark.parametrize("name", NATIVE)
@pytest.mark.parametrize("text", NUMBERS)
def test_rounding_and_bits_are_those_of_ml_dtypes(name: str, text: str) -> None:
    number = read_number(text)
    dtype = _dtype(name)
    # The library's own casts start from binary64: so do we here, that theirs is the only rounding.
    start = _nearest_binary64(number)
    seen = inspect_value(start, name, overflow="ieee")
    with np.errstate(all="ignore"):
        theirs = np.array([start]).astype(dtype)
        if start and not mcf.get_format(name).zero and np.float32(start) == 0:
            return  # on its way through binary32 it became a zero, which is NaN in this format
    if math.isnan(float(theirs[0])):
        assert math.isnan(seen.rounded)
        assert seen.bits is not None
        return
    if not mcf.get_format(name).has_nan and not math.isfinite(start):
        assert seen.code is None  # ml_dtypes saturates infinity and NaN, which the format cannot hold
        return
    assert seen.rounded == float(theirs[0])
    assert math.copysign(1, seen.rounded) == math.copysign(1, float(theirs[0]))
    code = int(theirs.view(f"u{dtype.itemsize}")[0])
    assert seen.code == code
    assert "".join(seen.bits) == f"{code:0{mcf.get_format(name).bits}b}"


@pytest.mark.parametrize(
    "name", ["bfloat16", "float8_e4m3fn", "float8_e5m2fnuz", "float4_e2m1fn", "e6m9", "tf32"]
)
@pytest.mark.parametrize("mode", DETERMINISTIC)
@pytest.mark.parametrize("overflow", ["ieee", "saturate"])
@pytest.mark.sampled(8)
def test_the_rounding_is_the_emulators(name: str, mode: Mode, overflow: str) -> None:
    for text in NUMBERS:
        number = read_number(text)
        seen = inspect_value(text, name, mode, overflow)
        ours = mcf.round_to(number, name, mode, overflow)
        assert seen.rounded == ours or (math.isnan(seen.rounded) and math.isnan(ours)), text
        assert math.copysign(1, seen.rounded) == math.copysign(1, ours) or math.isnan(ours), text


@pytest.mark.parametrize("name", [*mcf.FORMATS, "e6m9", "e8m1", "e2m1", "e11m51"])
@pytest.mark.sampled(6, each=False)
def test_everything_fits_together(name: str) -> None:
    fmt = mcf.get_format(name)
    for text in NUMBERS:
        seen = inspect_value(text, fmt)
        finite = math.isfinite(seen.rounded)
        assert (seen.ulp is None) is not finite
        if seen.exact is None or not finite:
            assert seen.error is None
            assert seen.relative_error is None
            assert seen.ulp_error is None
        elif not fmt.zero and abs(seen.exact) < fmt.smallest_normal:
            assert seen.rounded == fmt.smallest_normal  # nothing is below it
        elif not seen.beyond_maximum:
            assert abs(seen.ulp_error) <= Fraction(1, 2)
            assert abs(seen.relative_error) <= 1
        if finite:
            for neighbour, sign in ((seen.below, -1), (seen.above, 1)):
                if neighbour is not None and math.isfinite(neighbour.value):
                    step = sign * (Fraction(neighbour.value) - Fraction(seen.rounded))
                    assert seen.ulp / 2 <= step <= seen.ulp
                    assert inspect_value(neighbour.value, fmt).code == neighbour.code
        for expansion in seen.expansions:
            assert expansion[0] == seen.rounded
            assert seen.residual(expansion) == seen.exact - sum(map(Fraction, expansion))
        if seen.expansions and fmt.precision < 52:  # the emulator cannot round to 52 bits
            assert seen.expansions[1] == mcf.expand(mcf.arithmetic(fmt), seen.exact, 3)


def test_special_values() -> None:
    nan = inspect_value("nan", "float8_e4m3fn")
    assert (nan.kind, nan.code, nan.below, nan.above, nan.ulp, nan.expansions) == (
        "NaN",
        0x7F,
        None,
        None,
        None,
        (),
    )
    assert nan.exact is nan.error is None
    with pytest.raises(ValueError, match="not finite"):
        nan.residual((1.0,))
    infinite = inspect_value("-inf", "float16")
    assert (infinite.kind, infinite.code, infinite.below) == ("infinite", 0xFC00, None)
    assert (infinite.above.value, infinite.above.code) == (-65504.0, 0xFBFF)
    zero = inspect_value("-0", "bfloat16")
    assert (zero.kind, zero.code, zero.relative_error) == ("zero", 0x8000, 0)
    assert inspect_value("-0", "float8_e4m3fnuz").code == 0  # there is no negative zero
    above = inspect_value(
        -float(mcf.get_format("float8_e4m3fnuz").smallest_subnormal), "float8_e4m3fnuz"
    ).above
    assert (math.copysign(1, above.value), above.code) == (1, 0)
    assert inspect_value("1e-50", "bfloat16").kind == "zero"
    assert inspect_value("nan", "float4_e2m1fn").bits is None
    subnormal = inspect_value("1e-40", "bfloat16")
    assert (subnormal.kind, subnormal.code, subnormal.below.value) == ("subnormal", 1, 0.0)


def test_overflow() -> None:
    tie = 2**16 - 2**4  # half way from the maximum of float16 to 2^16
    assert inspect_value(tie, "float16").kind == "infinite"
    assert inspect_value(tie, "float16").expansions == ()
    below = inspect_value(tie - Fraction(1, 2), "float16")
    assert (below.rounded, below.beyond_maximum, below.above.value) == (65504.0, True, math.inf)
    assert below.expansions[0] == (65504.0, 15.5)
    assert inspect_value(464, "float8_e4m3fn").expansions[0] == (448.0, 16.0)  # a tie to even: the maximum
    assert inspect_value(465, "float8_e4m3fn").expansions == ()
    saturated = inspect_value(465, "float8_e4m3fn", overflow="saturate")
    assert (saturated.rounded, saturated.above, saturated.ulp_error) == (448.0, None, Fraction(-17, 32))
    assert inspect_value(100, "float4_e2m1fn").rounded == 6.0
    assert inspect_value(100, "float4_e2m1fn").expansions == ()  # no sum of three components is near


def test_numbers_are_taken_exactly() -> None:
    halfway = "1.00390625"
    assert inspect_value(halfway, "bfloat16").rounded == 1.0
    # In binary64 the last digit is lost, and with it the direction.
    assert inspect_value(halfway + "0" * 30 + "1", "bfloat16").rounded == 1.0078125
    assert read_number("0x1.00000000000000000001p0") == 1 + Fraction(1, 16**20)
    assert read_number("-0X.8P+4") == -8
    assert read_number("0xff") == 255
    assert read_number(" 1/3 ") == Fraction(1, 3)
    assert inspect_value(Decimal("0.999"), "bfloat16") == inspect_value("0.999", "bfloat16")
    assert inspect_value(0.999, "bfloat16").exact == Fraction(0.999) != THOUSANDTHS
    for text in ("-0", "-0.0", "-0e5", "-0x0p0", "-0/3"):
        assert math.copysign(1, read_number(text)) == -1, text
    assert inspect_value("0.1", "float64", "up").rounded == 0.1
    assert inspect_value("0.1", "float64", "down").rounded == math.nextafter(0.1, 0)


@pytest.mark.parametrize("text", ["", "abc", "0x", "0x.p1", "1/2/3", "1.5/2", "1e", "--1"])
def test_texts_that_are_no_numbers(text: str) -> None:
    with pytest.raises(ValueError, match="is no number; allowed: a decimal"):
        read_number(text)


def test_refusals() -> None:
    with pytest.raises(ValueError, match="denominator zero"):
        read_number("1/0")
    for text in ("1e99999999", "1e-99999999", "0x1p-999999"):
        with pytest.raises(ValueError, match="exceeds 20000"):
            read_number(text)
    with pytest.raises(ValueError, match="binary64 does not hold"):
        inspect_value(1, "e15m10")
    with pytest.raises(ValueError, match="unknown rounding 'even'"):
        inspect_value(1, "bfloat16", "even")
    with pytest.raises(TypeError, match="no real number"):
        inspect_value([1], "bfloat16")


@pytest.mark.parametrize(
    ("name", "rounding", "ways"),
    [
        ("bfloat16", "nearest_even", ["native"] * 5 + ["sticky"]),
        ("tf32", "nearest_even", ["wide"] * 5 + ["sticky"]),
        ("e4m3fn", "up", ["exact"] * 3 + ["sticky"] * 3),
        ("float32", "up", ["sticky"] * 2 + ["exact"] + ["sticky"] * 3),
        ("float64", "nearest_even", ["native"] * 5 + ["refused"]),
        ("float64", "up", ["refused"] * 6),
    ],
)
def test_the_plan_says_how_each_operation_is_carried_out(name, rounding, ways):
    fmt, policies = get_format(name), Rounding(rounding)
    rows = plan_table(fmt, policies)
    assert [row["operation"] for row in rows] == ["add", "sub", "mul", "div", "sqrt", "fma"]
    assert [str(row["values"]) for row in rows] == ways
    ar = mcf.arithmetic(fmt, policies)
    for row, operands in zip(rows, [2, 2, 2, 2, 1, 3], strict=True):
        ones = [np.ones(1, ar.carrier)] * operands
        if row["values"] == "refused":
            with pytest.raises(ValueError, match=re.escape(row["why"])):
                getattr(ar, row["operation"])(*ones)
        else:
            assert getattr(ar, row["operation"])(*ones)[0] in (0, 1, 2)


@pytest.mark.slow
def test_the_plan_is_printed():
    result = CliRunner().invoke(app, ["inspect", "1", "--format", "tf32", "--plan", "--rounding", "up"])
    assert result.exit_code == 0
    assert re.search(r"tf32 +sqrt +sticky +sticky +rounded to odd", result.stdout)
