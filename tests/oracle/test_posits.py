"""The oracle of posits, against published tables and results, and by its own order."""

import math
from fractions import Fraction

import pytest

from mcfsim.formats import Posit, get_format
from mcfsim.oracle.posits import operate_posit, posit_value, round_posit
from mcfsim.rounding import Rounding
from tests.shared.refusals import check, refusals, refused

P8 = Posit(8)


def test_the_oracle_reads_the_published_table_of_five_bits():
    """Gustafson and Yonemoto 2017, all posits with n = 5, es = 1: codes in two's complement are in order."""
    values = ["1/64", "1/16", "1/8", "1/4", "3/8", "1/2", "3/4", 1, "3/2", 2, 3, 4, 8, 16, 64]
    positive = list(map(Fraction, values))
    read = [posit_value(code % 32, Posit(5, 1)) for code in range(-15, 16)]
    assert read == [*(-x for x in reversed(positive)), 0, *positive]
    assert posit_value(16, Posit(5, 1)) is None


def test_the_oracle_rounds_between_the_last_two_posits_of_eight_bits():
    below, above, tie, tiny = Fraction(2**20), Fraction(2**24), Fraction(2**22), Fraction(1, 2**500)
    assert [posit_value(0x7E, P8), posit_value(0x7F, P8), posit_value(0xFD, Posit(9))] == [below, above, tie]
    for number, even, away in ((tie, below, above), (tie - tiny, below, below), (tie + tiny, above, above)):
        assert round_posit(number, P8) == -round_posit(-number, P8) == even
        assert round_posit(number, P8, Rounding("nearest_away")) == away


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
    ("posit32", "round", ["0x1.a90cc3fp+0"], "0x1.a90cc4p+0"),
    ("posit32", "add", ["0x1.f86001ap-3", "0x1.8711a0ap-4"], "0x1.5df469p-2"),
    ("posit32", "div", ["0x1.199d136p+3", "0x1.63c454cp+2"], "0x1.95485a4p+0"),
    ("posit32", "sqrt", ["0x1.199d136p+3"], "0x1.7bb7f0ap+1"),
]


@pytest.mark.parametrize(("name", "operation", "operands", "expected"), PUBLISHED)
def test_the_oracle_computes_what_a_published_library_does(name, operation, operands, expected):
    fmt, exact = get_format(name), [float.fromhex(operand) for operand in operands]
    assert operate_posit(operation, exact, fmt) == float.fromhex(expected)


NAN, INF = math.nan, math.inf
FMA = ("fma", (1.0, 1.0, NAN))
SPECIAL = {
    "nan": [("div", (1.0, 0.0)), ("sqrt", (-1.0,)), ("add", (NAN, 1.0)), ("mul", (INF, 0.0)), FMA],
    "0.0": [("mul", (-1.0, 0.0)), ("sqrt", (-0.0,))],
}


def test_the_oracles_operations_at_nar_and_zeros_without_sign():
    for expected, cases in SPECIAL.items():
        assert {given: str(operate_posit(*given, P8)) for given in cases} == dict.fromkeys(cases, expected)


@refusals(
    refused(ValueError, "binary64 does not hold", operate_posit, ("round", [1.0], Posit(58))),
    refused(ValueError, "no operation 'add' of 1", operate_posit, ("add", (1.0,), P8)),
    refused(ValueError, "no one result", operate_posit, ("add", (1.0, 1 / 3), P8, Rounding("stochastic"))),
)
def test_refusals(rows):
    check(rows)
