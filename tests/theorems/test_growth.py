"""Statements about Collage's Grow, Mul and Scaling: worst constants exactly, and where Grow fails."""

from fractions import Fraction

import pytest

from mcfsim.formats import Format, get_format
from mcfsim.multiword import double_word, expansion
from mcfsim.oracle.arithmetic import OracleArithmetic
from mcfsim.rounding import Rounding
from mcfsim.theorems import THEOREMS, verify
from mcfsim.theorems.catalogue import growth
from mcfsim.theorems.domain import cover, unbounded
from mcfsim.theorems.selection import Selection
from tests.theorems.trying import altered, constant, on_parts

pytestmark = pytest.mark.slow

EVEN, AWAY = "nearest_even", "nearest_away"


def on_core(name, p, mode=EVEN, limit=1 << 24):
    """Try the core of a statement, without samples."""
    domain = cover(THEOREMS[name], unbounded(p), Rounding(mode), Selection(limit=limit, samples=0))
    assert domain.parts[0].kind == "core"
    return on_parts(THEOREMS[name], domain.format, mode, domain.parts)


#: Of all operands of a format: how many meet the hypotheses, and how many of them violate the claim.
COUNTS = {
    ("grow", "float8_e4m3fn"): (3_302_492, 0),
    ("grow", "float8_e5m2"): (4_308_964, 0),
    ("grow_unordered", "float8_e4m3fn"): (910_994, 575_052),
    ("grow_unordered", "float8_e5m2"): (1_688_548, 450_260),
}


@pytest.mark.parametrize("fmt", ["float8_e4m3fn", "float8_e5m2", "bfloat16", "float16"])
@pytest.mark.parametrize("theorem", growth.THEOREMS, ids=lambda t: t.name)
@pytest.mark.sampled(6)
def test_statements_hold_or_fail_as_the_catalogue_says(theorem, fmt):
    for mode in theorem.modes:
        certificate = verify(theorem, fmt, mode, limit=1 << 20, samples=1 << 15)
        assert certificate.as_expected
        assert certificate.expected != "open"
        assert certificate.applicable > 200
        if (theorem.name, fmt) in COUNTS:
            assert [part.kind for part in certificate.parts] == ["complete"]
            assert (certificate.applicable, certificate.violations) == COUNTS[theorem.name, fmt]


WORST = {
    "grow": ("64/41", "256/145", "1024/545"),
    "grow_multiple_of_ulp": ("64/41", "256/145", "1024/545"),
    "grow_relaxed": ("64/37", "256/137", "1024/529"),
    "grow_same_exponent": ("64/73", "256/273", "1024/1057"),
    "grow_unordered": ("1216/149", "2304/139", "17408/531"),
}


@pytest.mark.parametrize("name", WORST)
def test_worst_constants_of_three_to_five_bits(name):
    assert [constant(on_core(name, p)) for p in (3, 4, 5)] == [Fraction(text) for text in WORST[name]]


@pytest.mark.parametrize("p", [3, 4, 5, 6])
def test_formulas_of_the_worst(p):
    u = Fraction(1, 2**p)
    assert constant(on_core("grow", p)) == THEOREMS["grow"].worst(p) == 2 / (1 + 2 * u + 2 * u**2)
    assert constant(on_core("grow_relaxed", p)) == THEOREMS["grow_relaxed"].worst(p) == 2 / (1 + u + 2 * u**2)


@pytest.mark.exhaustive
def test_worst_constants_of_bfloat16():
    for name, worst in (("grow", 1.98444), ("grow_relaxed", 1.99216), ("grow_unordered", 256.97)):
        found = on_core(name, 8, limit=1_100_000_000)
        assert round(float(constant(found)), 5 if worst < 2 else 2) == worst
        assert (found.violations == 0) == THEOREMS[name].holds


#: Nine binades, so that low words, and numbers far below them, are there.
TOY = Format("", precision=2, emin=-8, emax=0)


@pytest.mark.parametrize("mode", [EVEN, AWAY])
@pytest.mark.parametrize("name", [*WORST, "grow_equals_dw_plus_fp"])
def test_the_core_stands_for_all_of_a_format(name, mode):
    theorem = THEOREMS[name]
    whole = cover(theorem, TOY, Rounding(mode), Selection("all"))
    core = cover(theorem, unbounded(2), Rounding(mode), Selection(samples=0))
    assert core.size < whole.size / 2
    all_found, found = (on_parts(theorem, d.format, mode, d.parts) for d in (whole, core))
    assert constant(found) == constant(all_found)
    assert (found.violations == 0) == (all_found.violations == 0)


def test_the_compensation_is_lost_where_the_addend_is_larger():
    certificate = verify("grow_unordered", "bfloat16", limit=1 << 20, samples=1 << 20)
    assert 250 < float(certificate.worst.decimal) < 257
    high, low, a = case = (1.03125, -0.000732421875, -9.0625)
    fmt = get_format("bfloat16")
    results = expansion.grow(OracleArithmetic(fmt), (high, low), a, ordered=True)
    exact = sum(map(Fraction, case))
    relative = abs(sum(map(Fraction, results)) - exact) / abs(exact)
    assert f"{float(relative * 4**8):.5g}" == "256.97"


@pytest.mark.parametrize(
    ("name", "algorithm"),
    [
        ("grow", lambda ar, x, a: (ar.add(x[0], a), x[1])),
        ("grow_zero_high", lambda ar, a: (ar.add(a, a), ar.sub(a, a))),
        ("grow_equals_dw_plus_fp", lambda ar, x, a: (expansion.grow(ar, x, a), (ar.add(x[0], a), x[1]))),
        ("expansion_mul", lambda ar, x, y: (expansion.mul(ar, x, y), double_word.dw_times_dw2(ar, x, y))),
        ("expansion_scale", lambda ar, x, a: (expansion.scale(ar, x, a), double_word.dw_times_fp2(ar, x, a))),
    ],
)
def test_other_algorithms_are_refuted(name, algorithm):
    assert not verify(altered(THEOREMS[name], algorithm), "bfloat16", limit=1 << 20, samples=1 << 16).holds
