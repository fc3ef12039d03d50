"""Statements about double words: worst constants exactly, verdicts, and the reductions by brute force."""

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from mcfsim.eft import fast_two_sum, two_prod_fma, two_sum
from mcfsim.formats import Format, get_format
from mcfsim.multiword import double_word as dw
from mcfsim.oracle.arithmetic import OracleArithmetic
from mcfsim.rounding import Rounding
from mcfsim.theorems import THEOREMS, double_word, relaxed_pair, value, verify
from mcfsim.theorems.catalogue import double_word_products, double_word_suppositions, double_words
from mcfsim.theorems.domain import cover, unbounded
from mcfsim.theorems.operands import belongs, normal
from mcfsim.theorems.parts import Part, Sample
from mcfsim.theorems.selection import Selection
from tests.theorems.trying import altered, constant, on_parts

pytestmark = pytest.mark.slow

CHAPTERS = (double_words, double_word_products, double_word_suppositions)
STATEMENTS = [theorem for chapter in CHAPTERS for theorem in chapter.THEOREMS]
EVEN, AWAY = "nearest_even", "nearest_away"


def on_core(name, p, mode=EVEN, limit=1 << 24, kinds=("core", "family")):
    """Try the core of a statement, and what is known to be extremal, without samples."""
    theorem = THEOREMS[name]
    domain = cover(theorem, unbounded(p), Rounding(mode), Selection(limit=limit, samples=0))
    parts = [part for part in domain.parts if part.kind in kinds]
    assert parts
    return on_parts(theorem, domain.format, mode, parts)


# -- worst constants ----------------------------------------------------------------------------------------
#: Over all double words with low words as deep as the core of p = 3 and 4 has them.
WORST = {
    "dw_plus_fp": ("64/41", "256/145"),
    "sloppy_dw_plus_dw": ("320/219", "256/127"),
    "sloppy_dw_plus_dw_absolute": ("320/219", "256/127"),
    "sloppy_dw_plus_dw_any_signs": ("64", "256"),
    "accurate_dw_plus_dw": ("1472/681", "5888/2409"),
    "add222": ("1472/1047", "12032/8239"),
    "dw_times_fp1": ("320/267", "2816/2165"),
    "dw_times_fp2": ("320/219", "2816/1675"),
    "dw_times_fp3": ("64/55", "256/207"),
    "dw_times_dw1": ("23616/10609", "28928/8305"),
    "dw_times_dw2": ("23616/10609", "279296/91203"),
    "dw_times_dw3": ("1472/663", "11520/4141"),
    "dw_div_fp2": ("32/23", "576/337"),
    "dw_div_fp3": ("32/23", "576/337"),
    "dw_div_dw2": ("304/73", "82/17"),
    "dw_div_dw2_fma": ("304/73", "972/187"),
    "dw_div_dw3": ("184/51", "384/101"),
    "dw_plus_fp_relaxed": ("64/37", "256/137"),
    "add222_relaxed": ("704/459", "5888/3863"),
    "dw_times_dw1_relaxed": ("320/133", "28928/8305"),
    "dw_times_dw2_relaxed": ("320/133", "29440/9331"),
    "dw_times_dw3_relaxed": ("64/27", "14080/4681"),
}


@pytest.mark.parametrize("name", WORST)
@pytest.mark.sampled(4, each=False)
def test_worst_constants_of_three_and_four_bits(name):
    assert [constant(on_core(name, p)) for p in (3, 4)] == [Fraction(text) for text in WORST[name]]


def test_deep_low_words_are_worse_than_the_family_of_four_bits():
    found = on_core("accurate_dw_plus_dw", 4, limit=1 << 28)
    assert constant(found) == Fraction(12032, 4817) > THEOREMS["accurate_dw_plus_dw"].worst(4)


WORST_AWAY = {
    "dw_plus_fp_relaxed_ties_away": ("64/29", "256/121"),
    "accurate_dw_plus_dw_relaxed": ("320/123", "1280/499"),
    "dw_times_dw1_any_ties": ("1088/273", "68864/18445"),
    "dw_times_dw2_relaxed": ("448/135", "30464/9207"),
    "dw_times_dw3_relaxed": ("832/253", "256/81"),
    "dw_div_dw2_relaxed": ("176/29", "736/123"),
}


@pytest.mark.parametrize("name", WORST_AWAY)
def test_worst_constants_where_ties_go_away_from_zero(name):
    found = [constant(on_core(name, p, AWAY)) for p in (3, 4)]
    assert found == [Fraction(text) for text in WORST_AWAY[name]]


WORST_OF_BFLOAT16 = {
    "dw_times_fp1": "25100288/16783743",
    "dw_times_fp2": "12517376/4783425",
    "dw_times_fp3": "65536/37113",
    "dw_div_fp2": "101376/38021",
    "dw_div_fp3": "101376/38021",
}


@pytest.mark.parametrize("name", WORST_OF_BFLOAT16)
def test_worst_constants_of_bfloat16_by_a_number(name):
    found = on_core(name, 8, limit=1 << 23)
    assert found.applicable == 32_896 * 128
    assert found.violations == 0
    assert constant(found) == Fraction(WORST_OF_BFLOAT16[name])


def test_worst_ratios_of_the_square_root():
    ratios = [on_core("sqrt_dw", p).worst[0] for p in (3, 4, 5, 8)]
    assert ratios == [Fraction(r) for r in ("17/344", "17/1208", "1273/317952", "99721/1103003648")]
    assert f"{float(constant(on_core('sqrt_dw', 8))):.8g}" == "2.9624416"


RESULTS = Path(__file__).parents[2] / "experiments" / "results" / "worst_constants.json"
MEASURED = json.loads(RESULTS.read_text())["statements"]
PRODUCTS = ["dw_times_dw1", "dw_times_dw2", "dw_times_dw3"]
QUOTIENTS = ["dw_div_dw2", "dw_div_dw2_fma", "dw_div_dw3"]


def _measured(name, p):
    (row,) = (row for row in MEASURED[name]["worst"] if row["p"] == p)
    return row


# All of p = 8 is minutes for each quotient; what was found there is tried below.
@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("name", "p"), [*((name, 8) for name in PRODUCTS), *((name, p) for name in QUOTIENTS for p in (5, 6, 7))]
)
def test_worst_constants_of_two_double_words(name, p):
    row, limit = _measured(name, p), 1_100_000_000
    found = on_core(name, p, limit=limit * 8 if name in QUOTIENTS else limit, kinds=("core",))
    assert found.applicable == row["tried"]["core"] > 10_000_000
    assert found.violations == row["violations"]
    assert constant(found) == Fraction(row["constant"])


@pytest.mark.parametrize("p", range(3, 12))
@pytest.mark.parametrize("name", [*PRODUCTS, *QUOTIENTS])
def test_worst_cases_are_as_bad_as_measured_by_the_oracle(name, p):
    row = _measured(name, p)
    a, b, c, d = map(float.fromhex, row["operands"])
    results = THEOREMS[name].algorithm(OracleArithmetic(unbounded(p)), (a, b), (c, d))
    x, y = Fraction(a) + Fraction(b), Fraction(c) + Fraction(d)
    exact = x * y if name in PRODUCTS else x / y
    assert abs(sum(map(Fraction, results)) / exact - 1) * 4**p == Fraction(row["constant"])


@pytest.mark.parametrize("theorem", [t for t in STATEMENTS if t.worst], ids=lambda t: t.name)
@pytest.mark.parametrize("p", [5, 6, 7, 8, 9, 10, 11])
@pytest.mark.sampled(4)
def test_families_reach_the_formula(theorem, p):
    (mode, *_) = theorem.modes
    assert constant(on_core(theorem.name, p, mode, limit=1, kinds=("family",))) == theorem.worst(p)


@pytest.mark.parametrize("name", ["dw_plus_fp", "dw_plus_fp_relaxed"])
def test_formulas_are_the_worst_of_five_bits(name):
    assert constant(on_core(name, 5)) == THEOREMS[name].worst(5)


# -- reductions ---------------------------------------------------------------------------------------------
#: Nine binades, so that low words, and numbers far below them, are there.
TOY = Format("", precision=2, emin=-8, emax=0)


@pytest.mark.parametrize("mode", [EVEN, AWAY])
@pytest.mark.parametrize(
    "name", ["dw_plus_fp", "accurate_dw_plus_dw", "add222", "sloppy_dw_plus_dw_any_signs"]
)
@pytest.mark.parametrize("operand", [double_word, relaxed_pair])
@pytest.mark.sampled(4)
def test_the_core_of_sums_stands_for_all_of_a_format(name, mode, operand):
    theorem = THEOREMS[name]
    operands = tuple(operand(o.name) if o.paired else o for o in theorem.operands)
    theorem = replace(theorem, operands=operands, families=lambda p: (), witnesses=None)
    whole = cover(theorem, TOY, Rounding(mode), Selection("all"))
    core = cover(theorem, unbounded(2), Rounding(mode), Selection(samples=0))
    assert [part.kind for part in core.parts] == ["core", "sample"]
    assert core.size < whole.size / 2
    all_found, found = (on_parts(theorem, d.format, mode, d.parts) for d in (whole, core))
    assert all_found.applicable < whole.size  # some overflow
    assert constant(found) == constant(all_found)
    assert (found.violations == 0) == (all_found.violations == 0)


def _tables(theorem, fmt, depth, first, later, signs):
    """Return high words of the exponents with low words of a depth."""
    exponents = (first, *[later] * (len(theorem.operands) - 1))
    zipped = zip(theorem.operands, exponents, strict=True)
    return tuple(normal(o, fmt, e, depth, signs=signs, zero=False) for o, e in zipped)


@pytest.mark.parametrize("mode", [EVEN, AWAY])
@pytest.mark.parametrize(
    "name",
    [
        "dw_times_fp1",
        "dw_times_fp3",
        "dw_times_dw1",
        "dw_times_dw3",
        "dw_div_fp3",
        "dw_div_dw2",
        "dw_div_dw3",
    ],
)
def test_products_and_quotients_do_not_depend_on_exponents_and_signs(name, mode):
    theorem, fmt = THEOREMS[name], unbounded(3)
    reduced, wide = (
        on_parts(theorem, fmt, mode, [Part("core", "", _tables(theorem, fmt, 2, *e, signs))])
        for e, signs in ((([0], [0]), False), (([-7, 0, 1], [-3, 0, 4]), True))
    )
    # Three exponents and two signs of each operand.
    assert wide.applicable == 36 * reduced.applicable
    assert constant(wide) == constant(reduced)
    assert (wide.violations, reduced.violations) == (0, 0)


@pytest.mark.parametrize("mode", [EVEN, AWAY])
def test_roots_depend_on_the_parity_of_the_exponent_alone(mode):
    theorem, fmt = THEOREMS["sqrt_dw"], unbounded(4)
    ratios = {
        e: on_parts(theorem, fmt, mode, [Part("core", "", _tables(theorem, fmt, 4, [e], [], False))]).worst[0]
        for e in range(-4, 5)
    }
    assert len(set(ratios.values())) == 2
    assert all(ratios[e] == ratios[e % 2] for e in ratios)


def test_wider_gaps_and_deeper_low_words_find_nothing_worse():
    for name in ("dw_plus_fp", "accurate_dw_plus_dw", "add222"):
        theorem, fmt = THEOREMS[name], unbounded(2)
        tables = (
            normal(double_word("x"), fmt, [0], 7, signs=False, zero=False),
            normal(theorem.operands[1], fmt, range(-13, 14), 7, signs=True, zero=True),
        )
        wider = on_parts(theorem, fmt, EVEN, [Part("core", "", tables)])
        assert constant(wider) == constant(on_core(name, 2))
        assert wider.violations == 0


def test_statements_of_unbounded_exponents_are_tried_with_them_in_every_format():
    domain = cover(THEOREMS["dw_times_fp3"], get_format("float8_e5m2"), Rounding(), Selection(samples=10))
    assert domain.format == unbounded(3)
    assert not domain.covers
    assert any("unbounded" in reduction for reduction in domain.reductions)
    with pytest.raises(ValueError, match="unbounded"):
        verify("dw_times_fp3", "float8_e5m2", extent="all")


# -- verdicts -----------------------------------------------------------------------------------------------
#: Of all operands of a format: how many meet the hypotheses, and how many of them violate the claim.
COUNTS = {
    ("dw_plus_fp", "float8_e5m2"): (5_997_484, 0),
    ("dw_plus_fp_relaxed_ties_away", "float8_e4m3fn"): (4_307_084, 80),
    ("dw_plus_fp_ties_away", "float8_e4m3fn"): (4_207_224, 117_736),
    ("dw_times_fp3_in_range", "float8_e4m3fn"): (1_767_032, 0),
    ("dw_times_fp3_in_range", "float8_e5m2"): (3_158_988, 0),
    ("dw_times_fp3_underflow", "float8_e4m3fn"): (2_925_236, 147_684),
    ("dw_times_fp3_underflow", "float8_e5m2"): (4_570_752, 198_972),
}


@pytest.mark.parametrize("fmt", ["float8_e4m3fn", "float8_e5m2", "bfloat16", "float16"])
@pytest.mark.parametrize("theorem", STATEMENTS, ids=lambda t: t.name)
@pytest.mark.parametrize("samples", [1 << 12, pytest.param(1 << 17, marks=pytest.mark.exhaustive)])
@pytest.mark.sampled(6)
def test_statements_hold_or_fail_as_the_catalogue_says(samples, theorem, fmt):
    for mode in theorem.modes:
        certificate = verify(theorem, fmt, mode, limit=1 << 20, samples=samples)
        assert certificate.as_expected
        assert certificate.applicable > 1000
        if theorem.precision <= get_format(fmt).precision:
            assert certificate.claimed == theorem.holds
            assert certificate.expected == "holds" or not theorem.holds
        if (theorem.name, fmt) in COUNTS:
            assert [part.kind for part in certificate.parts] == ["complete"]
            assert (certificate.applicable, certificate.violations) == COUNTS[theorem.name, fmt]


def test_the_sloppy_sum_loses_everything():
    found = on_core("sloppy_dw_plus_dw_any_signs", 11, limit=1, kinds=("family",))
    assert found.worst[0] == -1  # the relative error, signed


def test_the_old_conjecture_holds_for_three_bits_alone():
    name = "accurate_dw_plus_dw_old_conjecture"
    assert on_core(name, 3).violations == 0
    assert all(on_core(name, p, limit=1, kinds=("family",)).violations for p in range(4, 12))


def _broken(ar, x, y):
    c, _ = two_prod_fma(ar, x[0], y)
    return fast_two_sum(ar, c, ar.mul(x[1], y))


def _not_normalised(ar, x, y):
    s, e = two_sum(ar, x[0], y)
    return s, ar.add(x[1], e)


@pytest.mark.parametrize(
    ("name", "algorithm"),
    [
        ("dw_times_fp3", _broken),
        ("dw_plus_fp", _not_normalised),
        ("accurate_dw_plus_dw", dw.sloppy_dw_plus_dw),
        ("dw_times_fp1", dw.dw_times_fp2),
        ("dw_div_fp3", lambda ar, x, y: (ar.div(x[0], y), ar.mul(x[1], 0.0))),
        ("sqrt_dw", lambda ar, x: (ar.sqrt(x[0]), ar.mul(x[1], 0.0))),
        ("dw_div_dw1_equals_dw2", lambda ar, x, y: (dw.dw_div_dw2(ar, x, y), dw.dw_div_dw2_fma(ar, x, y))),
    ],
)
def test_other_algorithms_are_refuted(name, algorithm):
    assert not verify(altered(THEOREMS[name], algorithm), "bfloat16", limit=1 << 20, samples=1 << 16).holds


# -- judged by fractions ------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "operate", "mode"),
    [
        ("dw_plus_fp", lambda x, y: x + y, EVEN),
        ("dw_plus_fp_relaxed_ties_away", lambda x, y: x + y, AWAY),
        ("dw_times_fp1", lambda x, y: x * y, EVEN),
        ("dw_times_fp3", lambda x, y: x * y, EVEN),
        ("dw_div_fp3", lambda x, y: x / y, EVEN),
    ],
)
def test_worst_constant_and_violations_by_fractions(name, operate, mode):
    theorem, fmt = THEOREMS[name], unbounded(3)
    part = Part("core", "", _tables(theorem, fmt, 1, [0], [-1], True))
    found = on_parts(theorem, fmt, mode, [part])
    ar = OracleArithmetic(fmt, Rounding(mode))
    worst, violations = Fraction(0), 0
    for _, (high, low, number) in part.blocks(0, part.size):
        for h, x, y in zip(high.tolist(), low.tolist(), number.tolist(), strict=True):
            results = [Fraction(r) for r in theorem.algorithm(ar, (h, x), y)]
            exact = operate(Fraction(h) + Fraction(x), Fraction(y))
            error = abs(sum(results) - exact)
            assert exact or not error
            relative = error / abs(exact) * 64 if exact else Fraction(0)
            worst, violations = max(worst, relative), violations + (relative > theorem.claim.bound.at(3))
    assert (constant(found), found.violations) == (worst, violations)


# -- samples ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", [double_word, relaxed_pair])
def test_samples_of_pairs_are_pairs_of_their_kind(kind):
    fmt = get_format("bfloat16")
    sample = Sample("sample", "", (), (kind("x"), value("y")), fmt, ((-3, 3), (0, 0)), 1 << 16, 5)
    for _, (high, low, _) in sample.blocks(0, sample.size):
        assert belongs(kind("x"), (high, low), fmt).all()
        assert (low == 0).mean() < 0.02
        share = np.abs(low) / np.abs(np.ldexp(1.0, np.frexp(high)[1] - 1 - fmt.precision))
        assert 0.99 < share.max() <= 1
