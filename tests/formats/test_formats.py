"""Formats against the libraries that have them, what follows from the fields, and names."""

import copy
import dataclasses
import itertools
import math
import pickle
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from mcfsim.formats import ALIASES, FORMATS, Format, Specials, format_table, get_format
from mcfsim.formats.grids import grid
from mcfsim.formats.posit import posit
from mcfsim.scaled import SCALED, get_scaled_format

IN_NUMPY = ["float16", "float32", "float64"]
IN_ML_DTYPES = [name for name in FORMATS if hasattr(ml_dtypes, name)]


def dtype_of(name):
    return np.dtype(getattr(ml_dtypes if name in IN_ML_DTYPES else np, name))


def test_every_format_but_tf32_is_in_a_library():
    assert set(FORMATS) == {*IN_NUMPY, *IN_ML_DTYPES, "tf32"}


@pytest.mark.parametrize("name", ["bfloat16", "posit8", "int4", "binary8p4uf"])
def test_what_a_format_has_been_asked_for_does_not_change_how_it_is_copied(name):
    fmt = copy.copy(get_format(name))
    before = pickle.dumps(fmt)
    assert all((fmt.max, fmt.bits, fmt.smallest_subnormal))
    assert pickle.dumps(fmt) == before
    for again in (pickle.loads(before), copy.copy(fmt), copy.deepcopy(fmt)):
        assert (again, hash(again), repr(again), again.max) == (fmt, hash(fmt), repr(fmt), fmt.max)
    assert dataclasses.replace(FORMATS["bfloat16"], emax=3).max < FORMATS["bfloat16"].max


@pytest.mark.parametrize("name", [*IN_NUMPY, *IN_ML_DTYPES])
def test_parameters_are_the_librarys(name):
    fmt, info = FORMATS[name], ml_dtypes.finfo(dtype_of(name))
    assert (fmt.bits, fmt.precision, fmt.emin) == (info.bits, info.nmant + 1, info.minexp)
    assert fmt.max == Fraction(float(info.max))
    assert fmt.emax == math.frexp(float(info.max))[1] - 1
    assert fmt.smallest_normal == Fraction(float(info.smallest_normal))
    assert fmt.smallest_subnormal == Fraction(float(info.smallest_subnormal))
    assert 2 * fmt.unit_roundoff == Fraction(float(info.eps))


@pytest.mark.parametrize("name", [name for name in FORMATS if FORMATS[name].bits <= 16])
def test_specials_are_those_among_the_librarys_codes(name):
    fmt = FORMATS[name]
    codes = np.arange(2**fmt.bits, dtype=np.uint8 if fmt.bits <= 8 else np.uint16).view(dtype_of(name))
    with np.errstate(invalid="ignore"):  # a signalling NaN is a code like others here
        decoded = codes.astype(np.float64)
    assert fmt.has_infinity == np.isinf(decoded).any()
    assert fmt.has_nan == np.isnan(decoded).any()
    assert fmt.has_negative_zero == ((decoded == 0) & np.signbit(decoded)).any()


def test_tf32_has_the_precision_of_float16_and_the_range_of_float32():
    tf32, half, single = (FORMATS[name] for name in ("tf32", "float16", "float32"))
    assert (tf32.precision, tf32.emin, tf32.emax) == (half.precision, single.emin, single.emax)
    assert tf32.bits == 19


@pytest.mark.parametrize("specials", Specials)
def test_codes_suffice_and_would_not_with_one_exponent_bit_less(specials):
    for precision, emin, emax in itertools.product((2, 3, 5), (-7, 0), (0, 1, 6, 7, 8, 9)):
        fmt = Format(precision=precision, emin=emin, emax=emax, specials=specials)
        own_field = specials is Specials.IEEE
        fields = emax - emin + 2 + own_field  # of zero and subnormals, each exponent, the specials
        assert 2 ** (fmt.exponent_bits - 1) < fields <= 2**fmt.exponent_bits


@pytest.mark.parametrize(("emax", "significand"), [(7, 15), (8, 14)])
def test_fn_gives_a_significand_to_nan_only_where_the_exponent_field_is_full(emax, significand):
    fmt = Format(precision=4, emin=-6, emax=emax, specials="fn")
    assert fmt.exponent_bits == 4
    assert fmt.max == Fraction(significand, 8) * 2**emax


def test_formats_with_equal_fields_are_equal_whatever_their_names():
    mine = Format("mine", precision=8, emin=-126, emax=127)
    assert mine == FORMATS["bfloat16"]
    assert hash(mine) == hash(FORMATS["bfloat16"])
    assert mine != Format("mine", precision=8, emin=-126, emax=127, specials="fn")
    assert str(mine) == "mine"


def test_an_unnamed_format_is_called_by_its_fields():
    assert str(Format(precision=9, emin=-62, emax=63)) == "float_p9_emin-62_emax63"
    assert str(Format(precision=4, emin=-6, emax=8, specials="fn")) == "float_p4_emin-6_emax8_fn"


def test_a_format_is_immutable():
    with pytest.raises(dataclasses.FrozenInstanceError):
        FORMATS["bfloat16"].precision = 9


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"precision": 0}, ValueError, "at least 1 bit"),
        ({"precision": 1, "specials": "ieee"}, ValueError, "no fraction bit to tell NaN from infinity"),
        ({"specials": "fnuz", "signed": False}, ValueError, "an unsigned format lacks; use fn"),
        ({"specials": "fnuz", "zero": False}, ValueError, "not without a zero"),
        ({"specials": "nuz", "zero": False}, ValueError, "not without a zero"),
        (
            {"precision": 1, "emin": 8, "specials": "none", "signed": False, "zero": False},
            ValueError,
            "one number",
        ),
        ({"signed": 1}, TypeError, "signed must be True or False"),
        ({"zero": None}, TypeError, "zero must be True or False"),
        ({"parity": "last"}, ValueError, "unknown parity 'last'; allowed: significand, code"),
        ({"precision": 8.0}, TypeError, "precision must be an int"),
        ({"precision": True}, TypeError, "precision must be an int"),
        ({"emin": "-6"}, TypeError, "emin must be an int"),
        ({"emax": None}, TypeError, "emax must be an int"),
        ({"emin": 9}, ValueError, "emin = 9 must not exceed emax = 8"),
        ({"specials": "posit"}, ValueError, "unknown specials 'posit'; allowed: ieee, fn, fnuz, nuz, none"),
    ],
)
def test_impossible_fields_are_refused(fields, error, message):
    with pytest.raises(error, match=message):
        Format(**{"precision": 4, "emin": -6, "emax": 8, **fields})


# -- names ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", FORMATS)
def test_a_name_a_format_and_a_dtype_mean_the_same(name):
    fmt = FORMATS[name]
    assert get_format(name) is get_format(fmt) is get_format(f" {name.upper()} ") is fmt
    if name != "tf32":
        assert get_format(dtype_of(name)) is get_format(dtype_of(name).type) is fmt
        assert get_format(dtype_of(name).newbyteorder()) is fmt


@pytest.mark.parametrize(("alias", "name"), ALIASES.items())
def test_an_alias_means_its_format_and_names_none(alias, name):
    assert get_format(alias) is FORMATS[name]
    assert alias not in FORMATS


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("e8m7", "bfloat16"),
        ("e5m10", "float16"),
        ("e8m10", "tf32"),
        ("e8m23", "float32"),
        ("e11m52", "float64"),
    ],
)
def test_field_widths_spell_the_ieee_like_formats(spelling, name):
    assert get_format(spelling) == FORMATS[name]


def test_field_widths_spell_formats_without_a_name():
    assert get_format("e6m9") == Format(precision=10, emin=-30, emax=31)
    assert (get_format("e6m9").bits, str(get_format("e6m9"))) == (16, "e6m9")


@pytest.mark.parametrize("spec", ["bfloat61", "", "e1m3", "e5m0", "int1", np.int64, np.complex64, None, 16])
def test_an_unknown_format_lists_the_known_ones(spec):
    with pytest.raises(ValueError, match="unknown format") as error:
        get_format(spec)
    assert all(name in str(error.value) for name in FORMATS)


@pytest.mark.parametrize(
    ("typed", "meant"), [("bfloat61", "bfloat16"), ("e4m3nf", "e4m3fn"), ("flaot16", "float16")]
)
def test_a_misspelt_format_brings_a_suggestion(typed, meant):
    with pytest.raises(ValueError, match=f"did you mean '{meant}'"):
        get_format(typed)


# What int() reads as a digit, what lower() makes a Latin letter of, and what strip() takes for a blank.
FOREIGN_DIGITS = [chr(code) for code in range(128, 0x110000) if chr(code).isdecimal()]
FAMILIES = ["e6m9", "binary8p3", "binary10p4uf", "p3109_k8p3", "posit16", "posit16es1", "posit<8,1>", "int8"]
READERS = {"format": get_format, "grid": grid, "posit": posit, "scaled": get_scaled_format}


@pytest.mark.parametrize("name", [*FORMATS, *ALIASES, *FAMILIES, "int4_symmetric", *SCALED])
@pytest.mark.sampled(8, each=False)
def test_other_alphabets_spell_no_format(name):
    """Every digit of every name in another alphabet: NKo digits and double-struck ones among them."""
    foreign = [
        name.replace(digit, chr(code), 1)
        for digit in sorted({*name} & {*"0123456789"})
        for code in [ord(zero) - int(zero) + int(digit) for zero in FOREIGN_DIGITS[::7]]
    ]
    foreign += [name.replace("k", "\u212a"), f"{name}\u2003", f"\xa0{name}"]
    for spelling in {*foreign} - {name}:
        for reader in READERS.values():
            try:
                found = reader(spelling)
            except ValueError as refusal:
                assert "unknown" in str(refusal)  # noqa: PT017
            else:
                assert found is None, spelling


def test_the_table_has_a_row_a_format_and_the_numbers_of_each():
    rows = format_table()
    assert [row["format"] for row in rows] == list(FORMATS)
    for row, fmt in zip(rows, FORMATS.values(), strict=True):
        assert (int(row["bits"]), int(row["p"]), int(row["emin"]), int(row["emax"])) == (
            *(fmt.bits, fmt.precision),
            *(fmt.emin, fmt.emax),
        )
        assert row["max"] == f"{float(fmt.max):.6g}"
        assert row["u"] == f"2^-{fmt.precision}"
        assert [row[key] == "yes" for key in ("inf", "NaN", "-0")] == [
            fmt.has_infinity,
            fmt.has_nan,
            fmt.has_negative_zero,
        ]


def test_the_table_of_chosen_formats_has_only_them():
    mine = Format("mine", precision=9, emin=-62, emax=63)
    assert [row["format"] for row in format_table([mine])] == ["mine"]
