"""The oracle of posits, against published tables and results, and by its own order."""

import math
from fractions import Fraction

import pytest

from mcfsim.formats import Posit, get_format
from mcfsim.oracle.posits import operate_posit, posit_value, round_posit
from mcfsim.rounding import Rounding
from tests.shared.formats import SMALL_POSITS


def test_the_oracle_reads_the_published_table_of_five_bits():
    """Gustafson and Yonemoto 2017, the positive posits with n = 5, es = 1."""
    values = ["1/64", "1/16", "1/8", "1/4", "3/8", "1/2", "3/4", 1, "3/2", 2, 3, 4, 8, 16, 64]
    assert [posit_value(code, Posit(5, 1)) for code in range(1, 16)] == list(map(Fraction, values))


def test_the_oracle_rounds_between_the_last_two_posits_of_eight_bits():
    below, above = Fraction(2**20), Fraction(2**24)
    fmt, tiny = Posit(8), Fraction(1, 2**500)
    assert (posit_value(0x7E, fmt), posit_value(0x7F, fmt), posit_value(0xFD, Posit(9))) == (
        below,
        above,
        2**22,
    )
    for number, even, away in (
        (Fraction(2**22), below, above),
        (2**22 - tiny, below, below),
        (2**22 + tiny, above, above),
        (Fraction(2**23), above, above),
    ):
        assert round_posit(number, fmt) == even
        assert round_posit(-number, fmt) == -even
        assert round_posit(number, fmt, Rounding("nearest_away")) == away


@pytest.mark.parametrize("fmt", SMALL_POSITS, ids=str)
def test_posits_are_ordered_as_integers_in_twos_complement(fmt):
    half = 2 ** (fmt.bits - 1)
    codes = [integer % (2 * half) for integer in range(-half + 1, half)]  # but that of NaR
    values = [posit_value(code, fmt) for code in codes]
    assert values == sorted(set(values))
    assert values == [-value for value in reversed(values)]


# Results of the C library SoftPosit 0.3.4, whose posits of 8 and 16 bits with es = 2 are its posit_2.
PUBLISHED = [
    ("posit8", "round", ["0x1.7p-1"], "0x1.8p-1"),
    ("posit8", "add", ["0x1.ep+3", "0x1.8p+4"], "0x1.4p+5"),
    ("posit8", "mul", ["0x1.ap-3", "-0x1.cp-5"], "-0x1.8p-7"),
    ("posit8", "div", ["0x1.ap-3", "-0x1.cp-5"], "-0x1.ep+1"),
    ("posit8", "sqrt", ["0x1.ap-3"], "0x1.cp-2"),
    ("posit16es1", "round", ["0x1.fffffffffffffp-27"], "0x1p-26"),
    ("posit16es1", "add", ["0x1.64p-4", "-0x1.916p-3"], "-0x1.becp-4"),
    ("posit16es1", "mul", ["0x1.324p+5", "0x1.04p+3"], "0x1.37p+8"),
    ("posit16", "round", ["0x1.16p-22"], "0x1.18p-22"),
    ("posit16", "add", ["0x1.0bp+5", "-0x1.7p+8"], "-0x1.4e8p+8"),
    ("posit16", "mul", ["0x1.0bp+5", "-0x1.7p+8"], "-0x1.8p+13"),
    ("posit16", "div", ["0x1.22ep-1", "-0x1.57p-1"], "-0x1.b24p-1"),
    ("posit32", "round", ["0x1.a90cc3fp+0"], "0x1.a90cc4p+0"),
    ("posit32", "add", ["0x1.f86001ap-3", "0x1.8711a0ap-4"], "0x1.5df469p-2"),
    ("posit32", "mul", ["0x1.199d136p+3", "0x1.63c454cp+2"], "0x1.875ccb4p+5"),
    ("posit32", "div", ["0x1.199d136p+3", "0x1.63c454cp+2"], "0x1.95485a4p+0"),
    ("posit32", "sqrt", ["0x1.199d136p+3"], "0x1.7bb7f0ap+1"),
]


@pytest.mark.parametrize(("name", "operation", "operands", "expected"), PUBLISHED)
def test_the_oracle_computes_what_a_published_library_does(name, operation, operands, expected):
    fmt, exact = get_format(name), [float.fromhex(operand) for operand in operands]
    assert operate_posit(operation, exact, fmt) == float.fromhex(expected)


def test_the_oracles_operations_at_nar():
    fmt = Posit(8)
    for operation, given in {
        "div": (1.0, 0.0),
        "sqrt": (-1.0,),
        "add": (math.nan, 1.0),
        "mul": (math.inf, 0.0),
        "fma": (1.0, 1.0, math.nan),
    }.items():
        assert math.isnan(operate_posit(operation, given, fmt))
    assert math.copysign(1, operate_posit("mul", (-1.0, 0.0), fmt)) == 1
    assert operate_posit("sqrt", (0.0,), fmt) == 0
    with pytest.raises(ValueError, match="binary64 does not hold"):
        operate_posit("round", [1.0], Posit(58))
    with pytest.raises(ValueError, match="no operation 'add' of 1"):
        operate_posit("add", (1.0,), fmt)
    with pytest.raises(ValueError, match="no one result"):
        operate_posit("add", (1.0, 1.0 / 3), fmt, Rounding("stochastic"))
