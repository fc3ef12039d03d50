"""Formats against the libraries that have them, what follows from the fields, and names."""

import copy
import dataclasses
import itertools
import math
import pickle
from fractions import Fraction
from functools import partial

import ml_dtypes
import mpmath
import numpy as np
import pytest

from mcfsim.formats import ALIASES, FORMATS, Format, Grid, Posit, Specials, format_table, get_format
from mcfsim.formats.grids import grid
from mcfsim.formats.named import digits
from mcfsim.formats.posit import posit
from mcfsim.oracle.posits import posit_value
from mcfsim.scaled import SCALED, get_scaled_format
from tests.shared.formats import GRIDS, SMALL_POSITS, some_codes
from tests.shared.refusals import check, refusals, refused

IN_NUMPY = ["float16", "float32", "float64"]
IN_ML_DTYPES = [name for name in FORMATS if hasattr(ml_dtypes, name)]


def dtype_of(name):
    return np.dtype(getattr(ml_dtypes if name in IN_ML_DTYPES else np, name))


@pytest.mark.parametrize("name", [*IN_NUMPY, *IN_ML_DTYPES])
def test_parameters_are_the_librarys(name):
    assert set(FORMATS) == {*IN_NUMPY, *IN_ML_DTYPES, "tf32"}
    fmt, info = FORMATS[name], ml_dtypes.finfo(dtype_of(name))
    assert (fmt.bits, fmt.precision, fmt.emin) == (info.bits, info.nmant + 1, info.minexp)
    assert fmt.max == Fraction(float(info.max))
    assert fmt.emax == math.frexp(float(info.max))[1] - 1
    assert fmt.smallest_normal == Fraction(float(info.smallest_normal))
    assert fmt.smallest_subnormal == Fraction(float(info.smallest_subnormal))
    assert 2 * fmt.unit_roundoff == Fraction(float(info.eps))


@pytest.mark.parametrize("specials", Specials)
def test_codes_suffice_and_would_not_with_one_exponent_bit_less(specials):
    for precision, emin, emax in itertools.product((2, 3, 5), (-7, 0), (0, 1, 6, 7, 8, 9)):
        fmt = Format(precision=precision, emin=emin, emax=emax, specials=specials)
        own_field = specials is Specials.IEEE
        fields = emax - emin + 2 + own_field  # of zero and subnormals, each exponent, the specials
        assert 2 ** (fmt.exponent_bits - 1) < fields <= 2**fmt.exponent_bits


# -- as values of Python ----------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["bfloat16", "posit16es1", "int4", "binary8p4uf"])
def test_what_a_format_has_been_asked_for_does_not_change_how_it_is_copied(name):
    fmt = copy.copy(get_format(name))
    before = pickle.dumps(fmt)
    assert all((fmt.max, fmt.bits, fmt.smallest_subnormal))
    assert pickle.dumps(fmt) == before
    for other in (pickle.loads(before), copy.copy(fmt), copy.deepcopy(fmt)):
        assert (other, hash(other), repr(other), other.max) == (fmt, hash(fmt), repr(fmt), fmt.max)
        assert str(other) == fmt.name
    assert dataclasses.replace(FORMATS["bfloat16"], emax=3).max < FORMATS["bfloat16"].max
    with pytest.raises(dataclasses.FrozenInstanceError):
        fmt.precision = 9


BF16 = {"precision": 8, "emin": -126, "emax": 127}


INT8, INT8_FLOAT = {"low": -128, "high": 127}, {"precision": 8, "emin": 7, "emax": 7}
#: Two equal ones, and others, some of them with the same fields.
EQUAL = [
    (Format("mine", **BF16), FORMATS["bfloat16"], Format("mine", **BF16, specials="fn")),
    (get_format("int8"), Grid("mine", **INT8), get_format("int8_symmetric"), Grid(**INT8, fraction_bits=6)),
    (get_format("int8"), Grid("mine", **INT8), Format(**INT8_FLOAT, specials="none")),
    (Posit(16, 2), Posit(16), Posit(16, 1), Posit(17)),
    (Posit(16, 2), Posit(16), Format(precision=12, emin=-56, emax=56, specials="fnuz")),
]


@pytest.mark.parametrize("formats", EQUAL)
def test_formats_are_equal_by_their_kind_and_fields_whatever_their_names(formats):
    one, equal, *different = formats
    assert one == equal
    assert hash(one) == hash(equal)
    assert not any(one == other for other in different)
    assert len({one, equal, *different}) == 1 + len(different)


@pytest.mark.parametrize(
    ("fmt", "name"),
    [
        (Format("mine", **BF16), "mine"),
        (Format(precision=9, emin=-62, emax=63), "float_p9_emin-62_emax63"),
        (Format(precision=4, emin=-6, emax=8, specials="fn"), "float_p4_emin-6_emax8_fn"),
        (Grid(low=-8, high=7), "int4"),
        (Grid(low=-8, high=7, fraction_bits=2), "int4_fraction2"),
        (Grid(low=-5, high=3), "integers_-5_3"),
        (Posit(16), "posit16"),
        (Posit(16, 1), "posit16es1"),
    ],
)
def test_an_unnamed_format_is_called_by_its_fields(fmt, name):
    assert str(fmt) == fmt.name == name
    assert not isinstance(fmt, Posit) or eval(repr(fmt)) == fmt


def changed(**fields):
    return Format(**{"precision": 4, "emin": -6, "emax": 8, **fields})


def ranged(low, high, **fields):
    return Grid(low=low, high=high, **fields)


ONE_NUMBER = {"precision": 1, "emin": 8, "specials": "none", "signed": False, "zero": False}
NO_POSITS = ("posit", "posit16es", "posit<16", "posit16,1", "posit<16,1>x")
WRONG_FIELDS = [
    ({"precision": 0}, ValueError, "at least 1 bit"),
    ({"precision": 1, "specials": "ieee"}, ValueError, "no fraction bit to tell NaN from infinity"),
    ({"specials": "fnuz", "signed": False}, ValueError, "an unsigned format lacks; use fn"),
    ({"specials": "fnuz", "zero": False}, ValueError, "zero=True is needed"),
    ({"specials": "nuz", "zero": False}, ValueError, "zero=True is needed"),
    (ONE_NUMBER, ValueError, "one number"),
    ({"signed": 1}, TypeError, "signed must be True or False"),
    ({"zero": None}, TypeError, "zero must be True or False"),
    ({"parity": "last"}, ValueError, "unknown parity 'last'; allowed: significand, code"),
    ({"precision": True}, TypeError, "precision must be an int"),
    ({"emin": "-6"}, TypeError, "emin must be an int"),
    ({"emax": None}, TypeError, "emax must be an int"),
    ({"emin": 9}, ValueError, "emin = 9 must not exceed emax = 8"),
    ({"specials": "posit"}, ValueError, "unknown specials 'posit'; allowed: ieee, fn, fnuz, nuz, none"),
]


@refusals(
    *(refused(error, message, lambda x=x: changed(**x), ()) for x, error, message in WRONG_FIELDS),
    refused(ValueError, "low <= 0 < high", ranged, (0, 0), (1, 2), (-2, -1), (2, -2)),
    refused(TypeError, "unexpected keyword argument 'parity'", partial(ranged, parity="code"), (-1, 1)),
    refused(TypeError, "must be an int", ranged, (-1.0, 1), (-1, True), (-1, "1")),
    refused(ValueError, "bits = .* of a posit must lie between", Posit, 2, 65),
    refused(ValueError, "es = .* of a posit must lie between", Posit, (8, -1), (8, 6)),
    refused(TypeError, "must be an int", Posit, 8.0, True, "8", (8, 1.0), (8, False)),
    refused(ValueError, "of a posit must lie between", get_format, "posit2", "posit65", "posit<16,9>"),
    refused(ValueError, "unknown format .*'posit16'", get_format, *NO_POSITS),
    refused(ValueError, "unknown grid", grid, "int1", "int33", "int", "int04x", "uint8", "symmetric", "INT8"),
)
def test_refusals(rows):
    check(rows)


# -- grids and posits -------------------------------------------------------------------------------------
@pytest.mark.parametrize("fmt", GRIDS, ids=str)
def test_the_fixed_point_format_of_a_grid_holds_both_ends_and_has_the_quantum(fmt):
    held = Format(precision=fmt.precision, emin=fmt.emin, emax=fmt.emax, specials="none")
    assert fmt.emin == fmt.emax
    assert held.smallest_subnormal == fmt.quantum == fmt.smallest_normal == fmt.smallest_subnormal
    assert 2 ** (fmt.precision - 1) <= max(-fmt.low, fmt.high) < 2**fmt.precision
    assert (fmt.lowest, fmt.max) == (fmt.low * fmt.quantum, fmt.high * fmt.quantum)
    assert fmt.max_significand == fmt.high
    assert not any((fmt.has_nan, fmt.has_infinity, fmt.has_negative_zero, fmt.has_subnormals))


def spelled(*names):
    return [(name, ml_dtypes.iinfo(name).min, ml_dtypes.iinfo(name).max, int(name[3:])) for name in names]


@pytest.mark.parametrize(
    ("name", "low", "high", "bits"),
    [*spelled("int2", "int4", "int8", "int16", "int32"), ("ternary", -1, 1, 2), ("int4_symmetric", -7, 7, 4)],
)
def test_range_and_bits_of_a_grid_are_those_of_its_name(name, low, high, bits):
    fmt = get_format(name)
    assert (fmt.low, fmt.high, fmt.bits, fmt.precision) == (low, high, bits, (max(high, -low)).bit_length())


@pytest.mark.parametrize("fmt", [*SMALL_POSITS, Posit(16), Posit(16, 1)], ids=str)
@pytest.mark.sampled(3, each=False)
def test_fields_of_a_posit_are_what_the_codes_say(fmt):
    positive = [posit_value(code, fmt) for code in range(1, 2 ** (fmt.bits - 1))]
    assert positive[0] == fmt.smallest_subnormal == fmt.smallest_normal
    assert positive[-1] == fmt.max == -fmt.lowest
    assert not any((fmt.has_infinity, fmt.has_subnormals, fmt.has_negative_zero))
    assert fmt.max == fmt.max_significand * Fraction(2) ** (fmt.emax - fmt.precision + 1)
    assert fmt.precision == max(map(significant_bits, positive))


def significant_bits(value):
    return (value.numerator // (value.numerator & -value.numerator)).bit_length()


@pytest.mark.parametrize("fmt", [*SMALL_POSITS, Posit(16), Posit(32), Posit(32, 3), Posit(31, 0)], ids=str)
def test_boundaries_of_posits_have_as_many_bits_as_binary64_is_trusted_with(fmt):
    """With j bits more a posit has at most j significant bits more."""
    for extra in (1, 2, 5, 17):
        longer = Posit(fmt.bits + extra, fmt.es)
        values = [posit_value(code, longer) for code in some_codes(longer)]
        assert max(map(significant_bits, values)) <= fmt.precision + extra


# -- names ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", FORMATS)
def test_a_name_a_format_and_a_dtype_mean_the_same(name):
    fmt = FORMATS[name]
    assert get_format(name) is get_format(fmt) is get_format(f" {name.upper()} ") is fmt
    if name != "tf32":
        assert get_format(dtype_of(name)) is get_format(dtype_of(name).type) is fmt
        assert get_format(dtype_of(name).newbyteorder()) is fmt


@pytest.mark.parametrize(
    ("spelling", "fmt"),
    [
        *((alias, FORMATS[name]) for alias, name in ALIASES.items()),
        ("e8m10", FORMATS["tf32"]),
        ("e11m52", FORMATS["float64"]),
        ("e6m9", Format(precision=10, emin=-30, emax=31)),
        ("Posit8", Posit(8)),
        ("posit16es1", Posit(16, 1)),
        ("posit16es2", Posit(16)),
        ("posit<16>", Posit(16)),
        ("posit<8, 0>", Posit(8, 0)),
    ],
)
def test_aliases_and_widths_spell_floats_and_posits(spelling, fmt):
    found = get_format(spelling)
    assert get_format(found.name) == found == fmt
    assert spelling != "e6m9" or (found.name, found.bits) == ("e6m9", 16)
    assert spelling not in FORMATS


@pytest.mark.parametrize("spec", ["bfloat61", "", "e1m3", "e5m0", "int1", np.int64, np.complex64, None, 16])
def test_an_unknown_format_lists_the_known_ones_and_what_may_be_meant(spec):
    with pytest.raises(ValueError, match="unknown format") as error:
        get_format(spec)
    assert all(name in str(error.value) for name in FORMATS)
    assert ("did you mean 'bfloat16'" in str(error.value)) == (spec == "bfloat61")


# What int() reads as a digit, what lower() makes a Latin letter of, and what strip() takes for a blank.
FAMILIES = ["e6m9", "binary8p3", "binary10p4uf", "p3109_k8p3", "posit16", "posit16es1", "posit<8,1>", "int8"]


@pytest.mark.parametrize("name", [*FORMATS, *ALIASES, *FAMILIES, "int4_symmetric", *SCALED])
@pytest.mark.sampled(80, each=False)
@pytest.mark.slow
def test_other_alphabets_spell_no_format(name):
    """Every digit of every name in another alphabet: NKo digits and double-struck ones among them."""
    zeros = [code for code in range(128, 0x20000) if chr(code).isdecimal() and int(chr(code)) == 0]
    foreign = {name.replace(x, chr(zero + int(x)), 1) for x in {*name} & {*"0123456789"} for zero in zeros}
    foreign |= {name.replace("k", "\u212a"), f"{name}\u2003", f"\xa0{name}"} - {name}
    for spelling in foreign:
        assert posit(spelling) is None, spelling
        for reader in (get_format, grid, get_scaled_format):
            with pytest.raises(ValueError, match="unknown"):
                print(ascii(spelling), reader(spelling))


def test_long_numbers_are_shown_as_mpmath_rounds_them():
    """Powers of two so large are raised in decimal."""
    random = np.random.default_rng(1)
    for power in (*random.integers(-(2**16), 2**16, 40), 2**23, -(2**23)):
        odd = int(random.integers(-(2**60), 2**60)) | 1
        shown = digits(Fraction(odd) * Fraction(2) ** int(power), 17)
        with mpmath.workdps(60):
            exact = mpmath.ldexp(odd, int(power))
            error = abs(mpmath.mpf(shown) - exact) / mpmath.mpf(10) ** (int(shown.partition("e")[2]) - 16)
        assert error <= 0.5


@pytest.mark.parametrize("formats", [None, [Posit(16), Format("mine", precision=9, emin=-62, emax=63)]])
def test_the_table_has_a_row_a_format_and_the_numbers_of_each(formats):
    rows = format_table(formats) if formats else format_table()
    for row, fmt in zip(rows, formats or FORMATS.values(), strict=True):
        fields = (fmt.name, *map(str, (fmt.bits, fmt.precision, fmt.emin, fmt.emax)), f"{float(fmt.max):.6g}")
        assert tuple(row[key] for key in ("format", "bits", "p", "emin", "emax", "max")) == fields
        assert isinstance(fmt, Posit) or row["u"] == f"2^-{fmt.precision}"
        specials = fmt.has_infinity, fmt.has_nan, fmt.has_negative_zero
        assert tuple(row[key] == "yes" for key in ("inf", "NaN", "-0")) == specials
