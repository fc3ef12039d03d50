"""Families guessed from worst cases and by climbing: planted ones are found, false ones refused."""

import random
from fractions import Fraction

import numpy as np
import pytest

from experiments.common import read_result
from experiments.families.climb import Grid, climb, scores
from experiments.families.fit import NoFitError, fit, normalised, polynomial
from experiments.families.search import in_u, quality, search, tidied
from mcfsim.compile.program import flat
from mcfsim.oracle import FractionArithmetic
from mcfsim.theorems import THEOREMS
from mcfsim.theorems.every_p import Sharpness, prove
from mcfsim.theorems.every_p.family_certificate import polynomial as of_terms
from mcfsim.theorems.every_p.family_proof import members
from mcfsim.theorems.symbolic import EVEN, EVERY, ODD, Family, Precisions, UndecidedError, family, u
from mcfsim.theorems.symbolic.operand_families import root
from tests.theorems.reading import rounded

pytestmark = pytest.mark.slow

PRODUCT = THEOREMS["dw_times_dw2"]
WORST = read_result("worst_constants")["statements"]
RESULTS = read_result("family_search")["statements"]


def exhaustive(name):
    rows = [row for row in WORST[name]["worst"] if row["exhaustive"]]
    return {row["p"]: tuple(Fraction(float.fromhex(x)) for x in row["operands"]) for row in rows}


def planted(rng, over):
    """Return a family of a double word and another, first components in the binade of 1."""
    t, step = root(over), over.step

    def coefficient():
        return Fraction(rng.choice([c for c in range(-8, 9) if c]), rng.choice((1, 2, 4)))

    high, low = 1 + abs(coefficient()) * t, coefficient() * t**step + coefficient() * t ** (step + 1)
    return family(x=(high, low), y=(1 + abs(coefficient()) * t**step, coefficient() * t**step))


def moved(rng, case):
    """Return the case with each operand scaled by a power of two of its own, and a sign."""
    x, y = (rng.choice((-1, 1)) * Fraction(2) ** rng.randint(-9, 9) for _ in range(2))
    return case[0] * x, case[1] * x, case[2] * y, case[3] * y


# -- fitting ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("over", [EVERY, EVEN, ODD], ids=str)
def test_planted_families_are_recovered(over):
    rng = random.Random(7)
    for _ in range(15):
        one = planted(rng, over)
        precisions = [p for p in range(12, 25) if p in over]
        found = fit(PRODUCT, {p: moved(rng, one.at(p)) for p in precisions}, over)
        assert (found.family, found.others) == (one, ())
        assert sorted((*found.fitted, *found.confirmed)) == precisions


def test_a_family_of_some_precisions_is_found_among_others():
    one = family(x=(1 + 2 * u, u - 3 * u**2), y=(1 + 2 * u, u - u**2))
    cases = {p: one.at(p) for p in range(5, 11)}
    cases[4] = (Fraction(1), Fraction(1, 32), Fraction(5, 4), Fraction(1, 32))
    found = fit(PRODUCT, cases)
    assert (found.family, found.fitted, found.confirmed, found.others) == (one, (8, 9, 10), (5, 6, 7), (4,))
    # Where the three largest are of no family, those before them are taken.
    assert fit(PRODUCT, {**cases, 10: cases[4]}).fitted == (7, 8, 9)


VALUES = [
    (lambda p: Fraction(1, 3), EVERY, "None"),
    (lambda p: Fraction(65), EVERY, "None"),
    (lambda p: Fraction(64), EVERY, "64 u"),
    (lambda p: Fraction(p), EVERY, "None"),
    (lambda p: Fraction((-1) ** p), EVERY, "None"),
    (lambda p: Fraction((-1) ** p), EVEN, "u"),
    (lambda p: Fraction(0), EVERY, "0"),
]


@pytest.mark.parametrize(("at", "over", "found"), VALUES)
def test_polynomials_have_small_dyadic_coefficients(at, over, found):
    assert str(polynomial({p: at(p) / 2**p for p in range(6, 12) if p in over}, over)) == found


def test_as_many_terms_as_precisions_are_confirmed_by_another_one_or_refused():
    one = family(x=(1 + 2 * u + 4 * u**2, u), y=(1 + 2 * u, u))
    three = {p: one.at(p) for p in (8, 9, 10)}
    with pytest.raises(NoFitError, match="no other precision confirms"):
        fit(PRODUCT, three)
    assert fit(PRODUCT, three | {5: one.at(5)}).confirmed == (5,)
    with pytest.raises(NoFitError, match="no 3 cases at neighbouring precisions p"):
        fit(PRODUCT, {p: one.at(p) for p in (6, 8, 10)})
    two = family(x=(1 + 2 * u, u), y=(1 + 4 * u, u))
    assert fit(PRODUCT, {p: two.at(p) for p in (4, 6, 8, 10)}, EVEN).family.at(12) == two.at(12)


CASES = [
    ("dw_times_dw2", (-12, "1/8", "5/16", "1/64"), ("3/2", "-1/64", "5/4", "1/16")),
    ("add222", (-12, "1/8", "5/16", "1/64"), ("3/2", "-1/64", "-5/128", "-1/512")),
    ("sqrt_dw", (12, "1/4"), (3, "1/16")),
    ("sqrt_dw", ("3/8", "1/4"), ("3/2", 1)),
]


@pytest.mark.parametrize(("name", "case", "expected"), CASES)
def test_cases_are_brought_to_one_binade_as_far_as_they_scale(name, case, expected):
    assert normalised(THEOREMS[name], tuple(map(Fraction, case))) == tuple(map(Fraction, expected))
    with pytest.raises(ValueError, match=f"takes {len(case)} numbers, not 1"):
        normalised(THEOREMS[name], (Fraction(1),))


FITTED = ("dw_plus_fp", "grow", "grow_relaxed", "sloppy_dw_plus_dw", "sqrt_dw", "dw_times_dw1")


@pytest.mark.parametrize("name", [*FITTED, "dw_times_dw2", "dw_times_dw3"])
def test_the_families_of_the_catalogue_follow_from_exhaustive_worst_cases(name):
    theorem, cases = THEOREMS[name], exhaustive(name)
    found = search(theorem, cases, over=(EVERY,), seeds=())
    proof = found.best[EVERY]
    assert proof.family.operands == members(theorem)[0].operands
    assert (found.origin[EVERY], proof.sharpness) == ("fit", Sharpness.SHARP)
    assert found.limit == theorem.claim.bound.formula.limit
    # At the precisions that were fitted its constant is the worst of all operands tried.
    rows = {row["p"]: Fraction(row["constant"]) for row in WORST[name]["worst"]}
    for p in fit(theorem, cases).fitted if name != "sqrt_dw" else ():  # of roots they are irrational
        assert proof.in_unit.at(p) == rows[p]


@pytest.mark.parametrize("name", ["dw_times_fp2", "dw_div_fp3", "dw_div_dw2"])
def test_worst_cases_that_follow_no_polynomial_in_u_are_said_not_to(name):
    found = search(THEOREMS[name], exhaustive(name), over=(EVERY, EVEN, ODD), seeds=())
    assert (found.best, found.limit) == ({}, None)
    assert any("follows no polynomial" in reason for reason in found.refused)


# -- false guesses ------------------------------------------------------------------------------------------
def are_words(operands, p):
    """Return whether operands are values, and pairs of them double words."""
    pairs = [x for x in operands if isinstance(x, tuple)]
    double = all(rounded(high + low, p, "even") == high for high, low in pairs)
    return double and all(rounded(x, p, "even") == x for x in flat(operands))


def test_mutated_guesses_are_refused_or_proved_below_the_bound():
    rng = random.Random(3)
    base = family(x=(1 + 2 * u, u - 3 * u**2), y=(1 + 2 * u, u - u**2))
    refused = proved = 0
    for _ in range(80):
        i, j = rng.randrange(2), rng.randrange(2)
        change = Fraction(rng.choice((-3, -1, 1, 3)), rng.choice((1, 2, 4))) * u ** rng.randint(1, 3)
        groups = [[name, list(parts)] for name, parts in base.operands]
        groups[i][1][j] = groups[i][1][j] + change
        guess = Family(tuple((name, tuple(parts)) for name, parts in groups), EVERY)
        if not are_words(guess.structured(40), 40):
            with pytest.raises(UndecidedError):
                prove(PRODUCT, guess)
            refused += 1
            continue
        proof = prove(PRODUCT, guess)
        assert proof.limit <= 5
        x, y = guess.structured(30)
        exact = sum(x) * sum(y)
        error = abs(sum(PRODUCT.algorithm(FractionArithmetic(30), x, y)) - exact)
        assert proof.in_unit.at(30) == error / exact * 4**30
        proved += 1
    assert refused > 10
    assert proved > 7


def test_a_search_says_why_a_guess_is_refused():
    wrong = family(x=(1 + u, u), y=(1 + 2 * u, u - u**2))
    found = search(PRODUCT, guesses=[wrong], over=(EVERY,), seeds=())
    assert found.best == {}
    assert [reason.startswith(f"guess: {wrong}: ") for reason in found.refused] == [True]


# -- climbing -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["dw_times_fp2", "dw_div_dw2", "sqrt_dw"])
@pytest.mark.parametrize("over", [EVERY, EVEN, ODD], ids=str)
@pytest.mark.sampled(5, each=False)
def test_scores_are_those_of_fractions(name, over):
    theorem = THEOREMS[name]
    grid = Grid(theorem, over)
    drawn = grid.start(np.random.default_rng(5), np.full(120, 3))
    found = scores(grid, drawn)
    tried = (11, 15, 19) if over == ODD else (12, 16, 20)
    operands = 0
    for column, score in zip(drawn.T, found, strict=True):
        wanted = []
        for p, allowed in zip(tried, (1, Fraction(1, 8), 0), strict=True):
            given = grid.family(column).structured(p)
            if not are_words(given, p):
                wanted.append(-np.inf)
                continue
            total = sum(theorem.algorithm(FractionArithmetic(p), *given))
            x, *rest = (sum(part) if isinstance(part, tuple) else part for part in given)
            if name == "sqrt_dw":
                size = abs(total**2 / x - 1) / 2
            else:
                size = abs(total / (x * rest[0] if name == "dw_times_fp2" else x / rest[0]) - 1)
            wanted.append(float(size * 4**p + allowed))
        operands += np.isfinite(min(wanted))
        assert score == pytest.approx(min(wanted), abs=2e-3)
    assert operands > 8


def test_a_climb_rises_and_repeats_itself():
    grid = Grid(THEOREMS["dw_times_fp3"], EVEN)
    first, second = (climb(grid, seed=2, chains=256, steps=60, keep=3) for _ in range(2))
    assert first == second
    assert first.tried == 256 * 61
    assert list(first.scores) == sorted(first.scores, reverse=True)
    assert first.scores[0] > climb(grid, seed=2, chains=256, steps=1, keep=1).scores[0]
    assert len(set(first.families)) == 3


@pytest.mark.parametrize("steps", [50, pytest.param(400, marks=pytest.mark.exhaustive)])
def test_a_climb_finds_that_a_bound_is_sharp(steps):
    found = search(THEOREMS["dw_times_fp3"], over=(EVEN,), steps=steps, keep=1)
    assert (found.best[EVEN].limit, found.best[EVEN].sharpness) == (2, Sharpness.SHARP)
    assert (found.origin, found.tried) == ({EVEN: "climb"}, {EVEN: 4096 * (steps + 1)})
    assert found.limit is None  # of odd precisions it says nothing


def test_families_in_u_alone_are_of_every_precision(monkeypatch):
    monkeypatch.setattr("experiments.families.search.tidied", lambda proof: proof)
    t, s = root(EVEN), root(ODD)
    odd = family(x=(1 + 3 * s**2, s**4 / 4 - s**2), y=1 + 0 * s)
    assert in_u(odd) == family(x=(1 + 6 * u, u**2 - 2 * u), y=1)
    assert in_u(family(x=1 + t**2)) == family(x=1 + u)
    assert in_u(family(x=(1 + s, s**2))) is None
    one = family(x=(1 + 2 * t**2, t**2 - t**4), y=1 + 0 * t)
    found = search(THEOREMS["dw_times_fp3"], guesses=[one], over=(EVEN,), seeds=())
    assert found.origin == {EVEN: "guess", EVERY: "guess"} == dict.fromkeys(found.best, "guess")


def test_a_family_is_made_no_worse():
    t = root(EVEN)
    start = prove(THEOREMS["dw_times_fp3"], family(x=(1 + t, -(t**2) + t**3 - t**4), y=1 + 3 * t + 2 * t**2))
    better = tidied(start, rounds=1)
    assert quality(better) > quality(start)
    assert (start.limit, better.limit) == (0, 1)


def test_what_cannot_be_climbed_is_refused():
    for given, problem in (
        ((THEOREMS["dw_plus_fp"],), "scales common"),
        ((THEOREMS["dw_div_fp1_equals_fp2"],), "measures no error"),
        ((PRODUCT, Precisions(3, 1)), "every one, or those of one parity"),
    ):
        with pytest.raises(ValueError, match=problem):
            Grid(*given)
    for name in ("chains", "steps", "keep"):
        with pytest.raises(ValueError, match=f"{name} = 0: a climb needs at least one"):
            climb(Grid(PRODUCT), **{name: 0})
        with pytest.raises(TypeError, match=name):
            climb(Grid(PRODUCT), **{name: 1.5})


@pytest.mark.parametrize("key", RESULTS)
@pytest.mark.sampled(3, each=False)
def test_results_are_proved_again(key):
    item, theorem = RESULTS[key], THEOREMS[key.split(",")[0]]
    assert item["families"]
    for words, kept in item["families"].items():
        over = {"every p": EVERY, "even p": EVEN, "odd p": ODD}[words]
        operands = tuple(
            (name, tuple(of_terms(tuple(map(tuple, part)), over) for part in parts))
            for name, parts in kept["operands"].items()
        )
        proof = prove(theorem, Family(operands, over), item["rounding"])
        limit = None if proof.limit is None else str(proof.limit)
        found = str(proof.family), limit, proof.first, str(proof.sharpness)
        assert found == tuple(kept[x] for x in ("family", "limit", "from_p", "sharpness"))
        for p, constant in kept["at"].items():
            assert float(f"{float(proof.constant(int(p))):.6g}") == constant
            # No family is above the worst of all operands tried, where it is known.
            assert constant <= float(item["worst"].get(p, "inf")) * (1 + 1e-5)
