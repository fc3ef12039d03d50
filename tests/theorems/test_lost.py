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
from mcfsim.rounding import Mode, Rounding
from mcfsim.theorems import THEOREMS, claim, verify
from mcfsim.theorems.catalogue import lost
from mcfsim.theorems.logic.bits import half_step
from mcfsim.theorems.verification import prepare
from mcfsim.training import metrics
from tests.theorems.trying import core_of, on_domain, on_parts

P3 = Format("p3", precision=3, emin=-4, emax=4)
P4 = Format("p4", precision=4, emin=-6, emax=7)
P5 = Format("p5", precision=5, emin=-6, emax=6)
#: Wider than the core's gaps and both its edges.
WIDE = [
    Format("wide2", precision=2, emin=-14, emax=14),
    Format("wide3", precision=3, emin=-15, emax=16),
    mcf.get_format("float8_e5m2"),
]
STATEMENTS = [(theorem, mode) for theorem in lost.THEOREMS for mode in sorted(theorem.modes)]
IDS = [f"{theorem.name}-{mode}" for theorem, mode in STATEMENTS]


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


@pytest.mark.parametrize(
    ("fmt", "pairs"), [(P3, 6241), (P4, 57121), ("float8_e5m2", 61009), (P5, 199809)], ids=str
)
@pytest.mark.parametrize(("theorem", "mode"), STATEMENTS, ids=IDS)
@pytest.mark.sampled(4)
def test_verdicts_on_every_pair(theorem, mode, fmt, pairs):
    certificate = verify(theorem, fmt, mode)
    numbers = round(pairs**0.5)
    assert certificate.covers
    assert certificate.tried == (numbers + 1) ** 2  # a zero of either sign
    assert certificate.holds == theorem.holds
    if theorem.name in ("lost_iff", "lost_iff_away"):
        assert certificate.applicable == (numbers - 1) ** 2


@pytest.mark.slow
def test_the_condition_is_what_rounding_by_the_definition_does():
    for a, outward, inward, even in losses(P3):
        for b, sign in itertools.product(magnitudes(P3), (1, -1)):
            limit = outward if sign > 0 else inward
            for side in (1, -1):
                moved = operate("add", (float(side * a), float(side * sign * b)), P3) != side * a
                assert moved != (b < limit or (b == limit and even))


@pytest.mark.parametrize(
    ("fmt", "count"),
    [(P3, 1280), (P4, 13936), ("float8_e4m3fn", 16372), ("float8_e5m2", 23792), (P5, 37184)],
    ids=str,
)
def test_the_metrics_count_the_same_pairs(fmt, count):
    fmt = mcf.get_format(fmt)
    values = all_values(fmt)
    values = np.unique(values[np.isfinite(values) & (values != 0)])
    a, b = np.repeat(values, values.size), np.tile(values, values.size)
    s = mcf.arithmetic(fmt).add(a, b)
    there = np.isfinite(s)  # what overflows is no update, and moves
    share = metrics.lost_fraction(b[there], metrics.effective_update([a[there]], [s[there]]))
    assert share == lost_pairs(fmt) / there.sum() == count / there.sum()


def _altered(name, text, wrong):
    """Return a statement whose condition is altered where `wrong` says so."""
    theorem = THEOREMS[name]
    return replace(theorem, claim=claim(text, lambda t: theorem.claim.test(t) != wrong(t)))


def _at(exponent, what):
    return lambda t: (np.abs(t[what]) == 2.0 ** exponent(t.format)) & (np.abs(t["b"]) <= np.abs(t["a"]))


#: Conditions that are wrong in one place alone: next to underflow, at the top, at one gap.
ALTERED = [
    _altered("lost_iff", "wrong at the least normal number", _at(lambda fmt: fmt.emin, "a")),
    _altered("lost_iff", "wrong above it", _at(lambda fmt: fmt.emin + 1, "a")),
    _altered("lost_iff", "wrong at the largest", lambda t: np.abs(t["a"]) == float(t.format.max)),
    _altered(
        "lost_iff",
        "wrong on ties",
        lambda t: np.abs(t["b"]) == half_step(t["a"].astype(np.float64), t["b"], t.format),
    ),
    _altered(
        "lost_iff",
        "wrong far off",
        lambda t: np.abs(t["b"]) * 2.0 ** (t.format.precision + 2) == np.abs(t["a"]),
    ),
]


@pytest.mark.parametrize("fmt", WIDE, ids=str)
@pytest.mark.parametrize(
    ("theorem", "mode"),
    [*STATEMENTS, *((theorem, Mode.NEAREST_EVEN) for theorem in ALTERED)],
    ids=[*IDS, *(theorem.claim.text for theorem in ALTERED)],
)
@pytest.mark.sampled(8)
def test_the_core_finds_what_all_pairs_show(theorem, mode, fmt):
    all_pairs = on_domain(theorem, fmt, mode)
    parts = core_of(theorem, fmt, Rounding(mode))
    core = on_parts(theorem, fmt, mode, parts)
    assert {part.kind for part in parts} == {"core", "edge"}
    assert bool(core.violations) == bool(all_pairs.violations)
    assert bool(core.applicable) == bool(all_pairs.applicable)
    assert bool(all_pairs.violations) == (theorem in ALTERED or not theorem.holds)


def test_the_core_of_bfloat16_covers_all_with_few_pairs():
    domain = prepare("lost_iff", "bfloat16", "nearest_even").domain()
    assert domain.covers
    assert domain.size < 1 << 24


@pytest.mark.exhaustive
def test_all_pairs_of_bfloat16():
    certificate = verify("lost_iff", "bfloat16", extent="all")
    assert certificate.holds
    assert certificate.tried == 65280**2
