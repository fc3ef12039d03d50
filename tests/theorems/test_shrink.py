"""Counterexamples made simple: still counterexamples, as simple as any, and judged by a key in fractions."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from mcfsim.backends.block_arithmetic import BlockArithmetic
from mcfsim.formats import get_format
from mcfsim.rounding import Rounding
from mcfsim.theorems import THEOREMS, Theorem, claim, double_word, hypothesis, relaxed_pair, value, verify
from mcfsim.theorems.domain import cover
from mcfsim.theorems.hypotheses import nonzero
from mcfsim.theorems.judge import applicable, try_block, violating
from mcfsim.theorems.operands import sequence
from mcfsim.theorems.parts import Selection
from mcfsim.theorems.shrink import shrink
from tests.theorems.trying import PAIR

pytestmark = pytest.mark.slow


def arithmetic(fmt, mode="nearest_even"):
    return BlockArithmetic(get_format(fmt), Rounding(mode), "exact")


def violations(theorem, fmt, mode="nearest_even"):
    ar = arithmetic(fmt, mode)
    domain = cover(theorem, ar.format, ar.rounding, Selection("all"))
    rows = []
    for _, blocks in domain.blocks(0, domain.size):
        trial = try_block(theorem, ar, blocks)
        rows.append(np.stack(blocks, axis=1)[violating(theorem, trial, applicable(theorem, trial))])
    return np.concatenate(rows).astype(float)


def simplicity(case):
    """Return the key that orders cases, by its definition."""
    numbers = [Fraction(x) for x in case]
    bits = exponents = 0
    for x in filter(None, numbers):
        odd = abs(x.numerator)
        last = -(x.denominator.bit_length() - 1)
        while odd % 2 == 0:
            odd, last = odd // 2, last + 1
        bits += odd.bit_length()
        exponents += abs(last + odd.bit_length() - 1)
    negative = [bool(np.signbit(x)) for x in case]
    fractions = sum(x.denominator != 1 for x in numbers)
    return bits, fractions, exponents, sum(negative), *map(abs, numbers), *negative


SEVERAL = ("div_remainder_any", "two_prod_fma_any", "lost_up_to_u")
#: Of some several are as simple as can be from where one starts.
SIMPLEST = [
    ("fast_two_sum_unordered", "float8_e4m3fn", "nearest_even", (1, 32)),
    ("fast_two_sum_unordered", "float8_e5m2", "nearest_even", (1, 16)),
    ("fast_two_sum_unordered", "float8_e4m3fn", "nearest_away", (1, 16)),
    ("two_sum_any", "float8_e5m2", "nearest_even", (57344, -12288)),
    ("two_sum_any", "float8_e4m3fn", "nearest_away", (448, -16)),
    ("sqrt_remainder_directed", "float8_e4m3fn", "up", (13,)),
    ("sqrt_remainder_directed", "float8_e5m2", "to_odd", (10,)),
    *((name, "float8_e4m3fn", "nearest_even", None) for name in SEVERAL),
    ("two_sum_directed", "float8_e4m3fn", "up", None),
]


@pytest.mark.parametrize(("name", "fmt", "mode", "expected"), SIMPLEST)
@pytest.mark.sampled(6, each=False)
def test_every_violation_shrinks_to_one_that_is_as_simple_as_any(name, fmt, mode, expected):
    theorem, ar = THEOREMS[name], arithmetic(fmt, mode)
    every = violations(theorem, fmt, mode)
    some = every[np.random.default_rng(0).permutation(len(every))[:10]]
    for case in some:
        simple = shrink(theorem, ar, case)
        assert (every == simple).all(axis=1).any()
        assert simplicity(simple) <= simplicity(case)
        assert expected is None or simple == expected
        assert expected is not None or shrink(theorem, ar, simple) == simple
    if expected is not None:
        assert min(map(simplicity, every.tolist())) == simplicity(expected)


# -- kinds of operands --------------------------------------------------------------------------------------
def _false(where, *operands):
    def first_two(ar, *given):
        return ar.add(*(operand[0] if isinstance(operand, tuple) else operand for operand in given[:2]))

    never = claim("never", lambda t: np.zeros(t.size, dtype=bool))
    return Theorem("false", first_two, operands, never, where=where)


def test_of_what_fails_everywhere_zero_is_left():
    theorem, ar = _false((), *PAIR), arithmetic("float8_e4m3fn")
    for case in ((448.0, -0.0), (-0.0, -0.0)):
        assert str(shrink(theorem, ar, case)) == "(0.0, 0.0)"
    theorem = _false((nonzero("a", "b"),), *PAIR)
    assert shrink(theorem, arithmetic("bfloat16"), (-(2.0**-133), 3e38 // 2**120 * 2**120)) == (1, 1)


def test_zero_has_no_bits():
    """So 6 beside it is simpler than 3 beside 1."""
    there = hypothesis("a, b", lambda t: (t["a"] == 1) & (t["b"] == 3) | (t["a"] == 0) & (t["b"] == 6))
    theorem = _false((there,), *PAIR)
    assert shrink(theorem, arithmetic("float8_e4m3fn"), (1, 3)) == (0, 6)


@pytest.mark.parametrize(("kind", "low"), [(double_word, 0.5), (relaxed_pair, 1.0)])
def test_pairs_stay_pairs(kind, low):
    # 18 has an odd significand of 4 bits, so 18 + 1 is a tie that goes away from it.
    where = hypothesis("xh = 18, xl != 0", lambda t: (t["x"][0] == 18) & (t["x"][1] != 0))
    theorem = _false((where,), kind("x"), value("y"))
    assert shrink(theorem, arithmetic("float8_e4m3fn"), (18, -0.4375, 5)) == (18, low, 0)


def test_long_sequences_shrink_in_groups():
    two = hypothesis("two", lambda t: sum((x != 0).astype(int) for x in t["x"]) >= 2)
    theorem = replace(_false((two,), sequence("x", 24)), algorithm=lambda ar, x: ar.add(x[0], x[1]))
    given = np.linspace(-3, 3, 24).astype("f2").round(1).astype("f4")
    assert sorted(shrink(theorem, arithmetic("bfloat16"), given)) == [0] * 22 + [1, 1]


# -- what does not shrink -----------------------------------------------------------------------------------
def test_what_is_no_violation_is_refused():
    with pytest.raises(ValueError, match=r"'fast_two_sum_unordered': \(2.0, 1.0\) is no violation"):
        shrink(THEOREMS["fast_two_sum_unordered"], arithmetic("bfloat16"), (2.0, 1.0))
    assert verify("two_sum", "float8_e5m2").simplest is None


def test_a_claim_that_does_not_fail_alone_is_shown_as_it_was_found():
    """A claim that looks at other cases: nothing to shrink, and no reason to stop."""

    def test(t):
        return np.full(t.size, t.size == 1) if isinstance(t["a"], np.ndarray) else t["a"] == t["a"]

    theorem = replace(_false((), *PAIR), claim=claim("alone", test))
    certificate = verify(theorem, "float6_e3m2fn")
    assert certificate.verdict == "refuted"
    assert certificate.simplest.operands
    with pytest.raises(ValueError, match="is no violation"):
        shrink(theorem, arithmetic("float6_e3m2fn"), (1.0, 1.0))
