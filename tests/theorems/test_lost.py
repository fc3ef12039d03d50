"""Lost arithmetic: the exact condition, judged in fractions, by the metrics, and on all pairs."""

import itertools
from bisect import bisect_left, bisect_right
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.codec import all_values
from mcfsim.formats import Format
from mcfsim.oracle import operate
from mcfsim.rounding import Rounding
from mcfsim.theorems import THEOREMS, claim
from mcfsim.theorems.catalogue import lost
from mcfsim.theorems.logic.bits import half_step
from mcfsim.training import metrics
from tests.theorems.trying import core_of, on_domain, on_parts

P3 = Format("p3", precision=3, emin=-4, emax=4)
#: Wider than the core's gaps and both its edges.
WIDE = [
    Format("wide2", precision=2, emin=-14, emax=14),
    Format("wide3", precision=3, emin=-15, emax=16),
    mcf.get_format("float8_e5m2"),
]


def magnitudes(fmt):
    values = all_values(fmt)
    return [Fraction(float(x)) for x in np.unique(values[np.isfinite(values) & (values > 0)])]


def losses(fmt):
    """Yield for each positive a up to which |b| is lost, outward and inward, and whether that one is, too."""
    ulp_of_least = fmt.smallest_subnormal
    for a in magnitudes(fmt):
        ulp = ulp_of_least
        while ulp * 2**fmt.precision <= a:
            ulp *= 2
        even = (a / ulp) % 2 == 0
        power = a == ulp * 2 ** (fmt.precision - 1) and ulp > ulp_of_least
        yield a, ulp / 2, ulp / (4 if power else 2), even


def lost_pairs(fmt):
    """Count the pairs of nonzero numbers of which the first does not move."""
    values = magnitudes(fmt)
    return 2 * sum(
        (bisect_right if even else bisect_left)(values, limit)
        for _, outward, inward, even in losses(fmt)
        for limit in (outward, inward)
    )


@pytest.mark.slow
def test_the_condition_is_what_rounding_by_the_definition_does():
    for a, outward, inward, even in losses(P3):
        for b, sign in itertools.product(magnitudes(P3), (1, -1)):
            limit = outward if sign > 0 else inward
            for side in (1, -1):
                moved = operate("add", (float(side * a), float(side * sign * b)), P3) != side * a
                assert moved != (b < limit or (b == limit and even))


@pytest.mark.parametrize(("fmt", "count"), [(P3, 1280), ("float8_e5m2", 23792)], ids=str)
def test_the_metrics_count_the_same_pairs(fmt, count):
    fmt = mcf.get_format(fmt)
    values = all_values(fmt)
    values = np.unique(values[np.isfinite(values) & (values != 0)])
    a, b = np.repeat(values, values.size), np.tile(values, values.size)
    s = mcf.arithmetic(fmt).add(a, b)
    there = np.isfinite(s)  # what overflows is no update, and moves
    share = metrics.lost_fraction(b[there], metrics.effective_update([a[there]], [s[there]]))
    assert share == lost_pairs(fmt) / there.sum() == count / there.sum()


def _altered(text, wrong):
    """Return a statement whose condition is altered where `wrong` says so."""
    theorem = THEOREMS["lost_iff"]
    return replace(theorem, claim=claim(text, lambda t: theorem.claim.test(t) != wrong(t))), "nearest_even"


def _at(exponent):
    return lambda t: (np.abs(t["a"]) == 2.0 ** exponent(t.format)) & (np.abs(t["b"]) <= np.abs(t["a"]))


#: Conditions that are wrong in one place alone: next to underflow, at the top, at one gap.
ALTERED = [
    _altered("wrong at the least normal number", _at(lambda fmt: fmt.emin)),
    _altered("wrong above it", _at(lambda fmt: fmt.emin + 1)),
    _altered("wrong at the largest", lambda t: np.abs(t["a"]) == float(t.format.max)),
    _altered(
        "wrong on ties", lambda t: np.abs(t["b"]) == half_step(t["a"].astype(np.float64), t["b"], t.format)
    ),
    _altered("wrong far off", lambda t: np.abs(t["b"]) * 2.0 ** (t.format.precision + 2) == np.abs(t["a"])),
]
STATEMENTS = [(theorem, mode) for theorem in lost.THEOREMS for mode in sorted(theorem.modes)] + ALTERED


@pytest.mark.parametrize("fmt", WIDE, ids=str)
@pytest.mark.parametrize(
    ("theorem", "mode"),
    STATEMENTS,
    ids=[
        f"{theorem.name if theorem in lost.THEOREMS else theorem.claim.text}-{mode}"
        for theorem, mode in STATEMENTS
    ],
)
@pytest.mark.sampled(8)
def test_the_core_finds_what_all_pairs_show(theorem, mode, fmt):
    """And all pairs show what the catalogue says."""
    all_pairs = on_domain(theorem, fmt, mode)
    parts = core_of(theorem, fmt, Rounding(mode))
    core = on_parts(theorem, fmt, mode, parts)
    assert {part.kind for part in parts} == {"core", "edge"}
    assert bool(core.violations) == bool(all_pairs.violations)
    assert bool(core.applicable) == bool(all_pairs.applicable)
    assert bool(all_pairs.violations) == ((theorem, mode) in ALTERED or not theorem.holds)
