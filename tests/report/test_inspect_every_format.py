"""Every number in every kind of format: no exception, and every equation that is printed is true.

The printed text is read back: decimals, hexadecimal numbers, codes, powers of two, components, what is left.
"""

import math
import re
from dataclasses import replace
from decimal import ROUND_HALF_EVEN, Context, Decimal
from fractions import Fraction

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.codec import decode, next_down, next_up, ulp
from mcfsim.formats import FORMATS, Format, Grid, Posit, get_format, p3109
from mcfsim.report.inspect import inspect_value, read_number
from mcfsim.report.tables import inspection_table, power_text
from mcfsim.rounding import DETERMINISTIC, Overflow
from tests.oracle.operands import UNUSUAL_FORMATS, label

SPECIAL = (
    *(
        "0",
        "-0",
        "nan",
        "-nan",
        "inf",
        "-inf",
        "1",
        "-1",
        "2",
        "0.5",
        "0.999",
        "-0.999",
        "1/3",
        "-2/7",
        "0.1",
    ),
    *("447", "448", "464", "465", "-465", "1e9", "-1e9", "2e7", "6.5", "7", "127", "127.5", "-128", "-128.5"),
    *(
        "-129",
        "18446744073709551617",
        "-36893488147419103233",
        "123456789" * 9,
        "1e5000",
        "-1e5000",
        "1e-5000",
    ),
    *("5e-324", "2e-324", "1e-40", "-1e-40", "1.7976931348623157e308", "1e309", "0x1.8p3", "0x1p-149"),
    *("-0x1.fffffffffffffp1023", "0xffffffffffffffffffffp-3", "1e20000", "22/7", "1000000007/1000000009"),
)
GRIDS = [
    *(Grid(low=-2, high=7), Grid(low=0, high=7), Grid(low=-7, high=2, fraction_bits=3)),
    *(Grid(low=-8, high=8, fraction_bits=-2), Grid(low=-(2**31), high=5, fraction_bits=40)),
]


def random_formats(count):
    rng = np.random.default_rng(11)
    found = []
    while len(found) < count:
        low = int(rng.integers(-60, 40))
        try:
            item = Format(
                precision=int(rng.integers(1, 25)),
                emin=low,
                emax=low + int(rng.integers(0, 70)),
                specials=str(rng.choice(["ieee", "fn", "fnuz", "nuz", "none"])),
                signed=bool(rng.random() < 0.6),
                zero=bool(rng.random() < 0.8),
                parity=str(rng.choice(["significand", "code"])),
            )
        except ValueError:
            continue
        found.append(replace(item, name=f"random{len(found)}"))
    return found


def family():
    for bits in (3, 5, 8):
        for signed in (True, False):
            for extended in (True, False):
                for precision in range(1, bits):
                    try:
                        yield p3109(bits, precision, signed=signed, extended=extended)
                    except ValueError:
                        continue


NAMED = [
    *FORMATS.values(),
    *map(get_format, ("e6m9", "e2m1", "e11m51", "posit8", "posit16", "posit32", "posit3", "int2", "int8")),
    *map(get_format, ("int8_symmetric", "int32", "ternary", "posit16es1", "posit32es5", "posit8es0")),
]
EVERY = list(
    {repr(item): item for item in (*NAMED, *UNUSUAL_FORMATS, *GRIDS, *family(), *random_formats(15))}.values()
)


def near(fmt, seed, size):
    """Return random numbers of the format's magnitudes, as text, half of them as fractions."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(size):
        scale = int(rng.integers(max(fmt.emin - fmt.precision - 3, -1100), min(fmt.emax + 3, 1100)))
        number = Fraction(int(rng.integers(1, 2**60)), int(rng.integers(1, 2**60))) * Fraction(2) ** scale
        number *= int(rng.choice([-1, 1]))
        if rng.random() < 0.5:
            found.append(f"{number.numerator}/{number.denominator}")
        else:
            found.append(str(Context(prec=20).divide(number.numerator, number.denominator)))
    return found


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
    (column,) = ({row[text]: row[str(fmt)] for row in inspection_table(text, [seen])},)
    exact = number if isinstance(number, Fraction) else Fraction(number) if number == 0 else None
    rounded = decimal(column["rounded"])
    assert rounded == seen.rounded or math.isnan(seen.rounded)
    if math.isnan(seen.rounded):
        assert column["hex float"] == column["rounded"] == "nan"
        assert column["below"] == column["above"] == "-"
    else:
        assert float.fromhex(column["hex float"]) == seen.rounded
    if column["code"] == "no code":
        assert not math.isfinite(seen.rounded)
        assert column["sign | exponent | fraction"] == "no code"
    else:
        code = int(column["code"], 16)
        assert int(column["sign | exponent | fraction"].replace(" | ", ""), 2) == code
        assert len(column["sign | exponent | fraction"].replace(" | ", "")) == fmt.bits
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
    if remark := re.search(
        r"\(the number is (beyond the maximum|below the least value) (\S+)\)", column["kind"]
    ):
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
    size = abs(exact)
    exponent = size.numerator.bit_length() - size.denominator.bit_length() if size else fmt.emin
    exponent -= size < Fraction(2) ** exponent
    exponent = min(max(exponent, fmt.emin), fmt.emax)
    return Fraction(2) ** (exponent - fmt.precision + 1)


@pytest.mark.parametrize("fmt", EVERY, ids=label)
@pytest.mark.sampled(8, each=False)
def test_every_number_is_inspected_and_every_equation_holds(fmt):
    random = near(fmt, seed=fmt.bits, size=12)
    for text in (*SPECIAL, *random):
        check(text, fmt)
    rng = np.random.default_rng(fmt.bits)
    for text in random:
        check(text, fmt, str(rng.choice(list(DETERMINISTIC))), str(rng.choice(["ieee", "saturate"])))


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", range(8))
def test_random_numbers_in_random_formats(part):
    for index, fmt in enumerate(random_formats(400)[part::8]):
        for text in (*SPECIAL, *near(fmt, seed=index, size=60)):
            check(text, fmt)


@pytest.mark.parametrize("name", ["binary8p4uf", "binary8p3ue", "binary6p2uf", "float8_e8m0fnu"])
def test_what_rounds_up_in_a_format_without_sign_has_no_components(name):
    assert check("0.999", get_format(name)).expansions == ()
    with pytest.raises(ValueError, match=r"what 1\.0 leaves is negative"):
        mcf.expand(mcf.arithmetic(name), Fraction("0.999"), 2)


def test_powers_of_two_and_what_is_none():
    assert power_text(Fraction(15_728_640)) == "15 * 2^20 = 15728640"
    assert power_text(Fraction(1, 128)) == "2^-7 = 0.0078125"
    assert power_text(Fraction(1)) == "2^0 = 1"
    assert power_text(Fraction(3, 4)) == "3 * 2^-2 = 0.75"
    assert power_text(Fraction(1, 2**133)) == "2^-133, about 9.18355e-41"
    rng = np.random.default_rng(2)
    for _ in range(500):
        number = int(rng.integers(1, 2**40)) * Fraction(2) ** int(rng.integers(-1200, 1200))
        check_power(power_text(number), number)


@pytest.mark.parametrize("fmt", EVERY, ids=label)
def test_errors_in_ulp_are_in_the_codecs(fmt):
    """One definition of the unit: that of `mcfsim.codec.ulp`, also for the measure."""
    rng = np.random.default_rng(4)
    top = min(float(fmt.max), 1e300)
    exact = np.concatenate([[0.0, top, 2 * top], top * rng.random(30), top * 2.0 ** -rng.integers(0, 60, 30)])
    x = mcf.round_to(exact, fmt, overflow=Overflow.SATURATE)
    for a, b, error, unit in zip(
        x, exact, mcf.metrics.ulp_error(x, exact, fmt), ulp(exact, fmt), strict=True
    ):
        assert error == abs(a - b) / unit or math.isnan(a)


def test_the_error_in_ulp_of_a_posit():
    found = mcf.metrics.ulp_error([2.0**24], [2.0**20], "posit8")
    assert found.tolist() == [1.0]
    assert (ulp([2.0**20], "posit8") == 15 * 2.0**20).all()
