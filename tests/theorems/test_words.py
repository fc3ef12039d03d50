"""Double words, expansions and long sums: worst constants exactly, reductions by brute force."""

import itertools
import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from mcfsim.backends.block_arithmetic import BlockArithmetic
from mcfsim.formats import Format, get_format
from mcfsim.oracle.arithmetic import OracleArithmetic
from mcfsim.rounding import Rounding
from mcfsim.theorems import THEOREMS, double_word, relaxed_pair
from mcfsim.theorems.check import Check
from mcfsim.theorems.domain import cover, unbounded
from mcfsim.theorems.judge import try_block
from mcfsim.theorems.operands import normal
from mcfsim.theorems.parts import Selection
from tests.theorems.trying import constant, on_parts

pytestmark = pytest.mark.slow

EVEN, AWAY = "nearest_even", "nearest_away"


def on_core(name, p, mode=EVEN, limit=1 << 24, kinds=("core", "family")):
    """Try the core of a statement, and what is known to be extremal, without samples."""
    theorem = THEOREMS[name]
    domain = cover(theorem, unbounded(p), Rounding(mode), Selection(limit=limit, samples=0))
    parts = [part for part in domain.parts if part.kind in kinds]
    assert parts
    return on_parts(theorem, domain.format, Rounding(mode), parts)


# -- worst constants ----------------------------------------------------------------------------------------
RESULTS = Path(__file__).parents[2] / "experiments" / "results" / "worst_constants.json"
MEASURED = {
    (name, row["p"]): row
    for name, item in json.loads(RESULTS.read_text())["statements"].items()
    for row in item["worst"]
}
PRODUCTS = ["dw_times_dw1", "dw_times_dw2", "dw_times_dw3"]
QUOTIENTS = ["dw_div_dw2", "dw_div_dw2_fma", "dw_div_dw3"]
FEW_BITS = [(name, p) for name, p in MEASURED if p < 5 and name != "sqrt_dw"]
BFLOAT16 = [(name, 8) for name in ("dw_times_fp1", "dw_times_fp2", "dw_times_fp3", "dw_div_fp3")]
#: With limits. All of p = 8 is minutes for each quotient; what was found there is tried below.
LARGE = dict.fromkeys(itertools.product(QUOTIENTS, (5, 6)), 8_800_000_000)
LARGE |= dict.fromkeys(itertools.product(PRODUCTS[1:], (7,)), 1_100_000_000)
LARGE |= dict.fromkeys(itertools.product(("dw_times_dw1", "grow", "grow_unordered"), (8,)), 1_100_000_000)
LARGE |= {("accurate_dw_plus_dw", 4): 1 << 28}


CASES = [case for case in [*FEW_BITS, *BFLOAT16] if case not in LARGE]
CASES += [pytest.param(*case, marks=pytest.mark.exhaustive) for case in LARGE]


@pytest.mark.parametrize(("name", "p"), CASES)
@pytest.mark.sampled(10, each=False)
def test_worst_constants_are_those_measured(name, p):
    row = MEASURED[name, p]
    found = on_core(name, p, limit=LARGE.get((name, p), 1 << 24))
    assert (found.violations > 0) == (row["violations"] > 0)
    assert constant(found) == Fraction(row["constant"])


#: Of three bits on, over all double words with low words as deep as the core of p = 3 and 4 has them.
WORST = {
    ("sloppy_dw_plus_dw_any_signs", EVEN): ("64", "256"),
    ("add222_relaxed", EVEN): ("704/459", "5888/3863"),
    ("dw_times_dw2_relaxed", EVEN): ("320/133", "29440/9331"),
    ("dw_plus_fp_relaxed_ties_away", AWAY): ("64/29", "256/121"),
    ("accurate_dw_plus_dw_relaxed", AWAY): ("320/123", "1280/499"),
    ("dw_times_dw3_relaxed", AWAY): ("832/253", "256/81"),
    ("dw_div_dw2_relaxed", AWAY): ("176/29", "736/123"),
    ("grow_same_exponent", EVEN): ("64/73", "256/273", "1024/1057"),
}


@pytest.mark.parametrize("name", WORST, ids="-".join)
@pytest.mark.sampled(4, each=False)
def test_worst_constants_of_few_bits(name):
    found = [constant(on_core(name[0], p, name[1])) for p, _ in enumerate(WORST[name], 3)]
    assert found == list(map(Fraction, WORST[name]))


def test_worst_ratios_of_the_square_root():
    found = {p: on_core("sqrt_dw", p) for p in (3, 4, 5, 8)}
    worst = map(Fraction, ("17/344", "17/1208", "1273/317952", "99721/1103003648"))
    assert [one.worst[0] for one in found.values()] == list(worst)
    assert f"{float(constant(found[8])):.8g}" == "2.9624416"
    # Even and odd exponents are tried alike.
    (pairs, _) = normal(double_word("x"), unbounded(3), [0], 5, signs=False, zero=False)
    assert on_core("sqrt_dw", 3, kinds=("core",)).applicable == 2 * pairs.size


@pytest.mark.parametrize("name", [*PRODUCTS, *QUOTIENTS])
def test_worst_cases_are_as_bad_as_measured_by_the_oracle(name):
    for p in range(3, 12):
        row = MEASURED[name, p]
        a, b, c, d = map(float.fromhex, row["operands"])
        results = THEOREMS[name].algorithm(OracleArithmetic(unbounded(p)), (a, b), (c, d))
        x, y = Fraction(a) + Fraction(b), Fraction(c) + Fraction(d)
        exact = x * y if name in PRODUCTS else x / y
        assert abs(sum(map(Fraction, results)) / exact - 1) * 4**p == Fraction(row["constant"]), p


#: Nine binades, so that low words, and numbers far below them, are there.
TOY = Format("", precision=2, emin=-8, emax=0)
SUMS = ["dw_plus_fp", "accurate_dw_plus_dw", "add222", "sloppy_dw_plus_dw_any_signs"]
OTHERS = ("grow_exp", "grow_zero")
GROWN = [name for name in THEOREMS if name.startswith("grow") and not name.startswith(OTHERS)]


@pytest.mark.parametrize("mode", [EVEN, AWAY])
@pytest.mark.parametrize(
    ("name", "operand"),
    [*((n, o) for n in SUMS for o in (double_word, relaxed_pair)), *((n, None) for n in GROWN)],
)
@pytest.mark.sampled(9, each=False)
def test_the_core_of_sums_stands_for_all_of_a_format(name, mode, operand):
    theorem = THEOREMS[name]
    if operand:
        operands = tuple(operand(o.name) if o.paired else o for o in theorem.operands)
        theorem = replace(theorem, operands=operands, families=lambda p: (), witnesses=None)
    whole = cover(theorem, TOY, Rounding(mode), Selection("all"))
    core = cover(theorem, unbounded(2), Rounding(mode), Selection(samples=0))
    assert core.parts[0].kind == "core"
    assert core.size < whole.size / 2
    all_found, found = (on_parts(theorem, d.format, Rounding(mode), d.parts) for d in (whole, core))
    assert all_found.applicable < whole.size  # some overflow
    assert constant(found) == constant(all_found)
    assert (found.violations == 0) == (all_found.violations == 0)


# -- verdicts -----------------------------------------------------------------------------------------------
def test_the_old_conjecture_holds_for_three_bits_alone():
    name = "accurate_dw_plus_dw_old_conjecture"
    assert on_core(name, 3).violations == 0
    assert all(on_core(name, p, limit=1, kinds=("family",)).violations for p in range(4, 12))


def gamma(n, p):
    return Fraction(n, 2**p - n)


#: What the bounds of sums of 16 terms are, for the exact sum s and the sum S of magnitudes; u = 2**-p.
BOUNDS = {
    "recursive_sum": lambda p, s, size: 15 * size / 2**p,
    "kahan_sum": lambda p, s, size: (Fraction(2, 2**p) + Fraction(64, 4**p)) * size,
    "neumaier_sum": lambda p, s, size: abs(s) / 2**p + gamma(15, p) ** 2 * size,
    "sum_k": lambda p, s, size: (
        (Fraction(1, 2**p) + 3 * gamma(15, p) ** 2) * abs(s) + gamma(30, p) ** 3 * size
    ),
    "dw_sum": lambda p, s, size: Fraction(30, 4**p) * (1 + Fraction(2, 4**p)) ** 15 * size,
}


@pytest.mark.parametrize("name", BOUNDS)
def test_errors_of_sums_are_measured_in_units_of_their_bounds(name):
    check = Check(THEOREMS[name], get_format("bfloat16"), Rounding(), Selection(samples=200))
    domain = check.domain()
    ((_, blocks),) = domain.blocks(0, domain.size)
    trial = try_block(check.theorem, BlockArithmetic(domain.format, Rounding(), "exact"), blocks)
    measured = check.theorem.claim.measure(trial)
    some = measured[np.arange(trial.size)[::-1]]
    for i in range(trial.size):
        terms = [Fraction(float(block[i])) for block in blocks]
        total = sum(terms)
        parts = trial.results if name == "dw_sum" else trial.results[:1]
        error = sum(Fraction(float(part[i])) for part in parts) - total
        right = error / BOUNDS[name](domain.format.precision, total, sum(map(abs, terms)))
        for found, place in ((measured, i), (some, trial.size - 1 - i)):
            assert found.error.fraction(place) / found.reference.fraction(place) == right
            assert abs(Fraction(float(found.ratio[place])) - right) <= abs(right) / 2**47
