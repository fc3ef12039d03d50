"""Adafactor, whose steps have means in them: by the judge, in every strategy, and wherever it is used."""

from dataclasses import replace
from functools import lru_cache, partial

import numpy as np
import pytest
from mpmath import MPContext

import mcfsim as mcf
from mcfsim.backends.factory import on_blocks
from mcfsim.optim.adafactor import Adafactor, MomentumAdafactor
from mcfsim.optim.layout import Layout, bytes_per_parameter
from mcfsim.optim.staged import mean
from mcfsim.optim.strategies import Stored, Strategy
from tests.optim.stored import numbers
from tests.training.problems import Folded

from .factored import Judge
from .reference import assert_course, course

SHAPES = {"w": (3, 4), "b": (3,), "one": (1, 4), "t": (2, 2, 2), "s": (), "e": (3, 0), "n": (3, 1), "l": (1,)}
DECAYED = {"w", "s", "t"}
#: Now below the largest rate of a step, now above it.
RATES = (2.0**-4, 2.0, 2.0**-4)
GIVEN = {"epsilon": 2.0**-40, "threshold": 0.75, "least_scale": 0.5, "weight_decay": 0.1}
KINDS = {"adafactor": Adafactor(**GIVEN), "momentumadafactor": MomentumAdafactor(**GIVEN)}
STORED = [name for name in mcf.STRATEGIES if name not in ("exact", "eco")]
MIXED = Strategy("mixed", Stored("bfloat16", 2), Stored("e8m4"), Stored("e8m10"), addition="grow")
MIXED = mcf.strategy(MIXED, "bfloat16")
BY_BF16 = mcf.Accumulator("bfloat16", block=2)
every_kind = pytest.mark.parametrize("kind", KINDS)


given = partial(numbers, shapes=SHAPES)


@lru_cache
def situation(judge, strategy, rounding="nearest_even", steps=3, make=given):
    """Return what starts an optimizer, and what its steps are by the judge; see `assert_course`."""
    start, *gradients = map(make, (100, *range(1, steps + 1)))
    start = strategy, start, DECAYED & start.keys(), rounding
    rates = RATES[:steps]
    return start, course(Judge(judge, *start), gradients, rates), gradients, rates


def assert_judged(assert_same, hyper, *given, judge=None, **options):
    """Compare with what the judge has for these hyperparameters, or for those of another text."""
    start, *rest = situation(judge or hyper, *given, **options)
    optimizer = mcf.Optimizer(hyper, *start)
    assert_course(assert_same, optimizer, *rest)
    return optimizer


@every_kind
@pytest.mark.parametrize("rounding", ["nearest_even", "up", "down", "toward_zero"])
@pytest.mark.parametrize("strategy", [*STORED, MIXED])
@pytest.mark.sampled(65, each=False)
@pytest.mark.slow
def test_steps_are_those_of_the_judge(kind, strategy, rounding, assert_same):
    strategy = mcf.strategy(strategy)
    expanding = strategy.addition == "grow"  # whose exact errors are those of nearest
    assert_judged(assert_same, KINDS[kind], strategy, "nearest_even" if expanding else rounding, steps=2)


@pytest.mark.parametrize(("kind", "strategy"), [*zip(KINDS, ("plain", "fp32-master"), strict=True)])
@pytest.mark.slow
def test_means_by_a_stated_sum_are_those_of_the_judge(kind, strategy, assert_same):
    made = [
        assert_judged(assert_same, hyper, mcf.strategy(strategy), steps=2).state.v[0].tolist()
        for hyper in (KINDS[kind], replace(KINDS[kind], accumulator=BY_BF16))
    ]
    assert made[0] != made[1]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.sampled(3, each=False)
@pytest.mark.slow
def test_what_is_not_finite_is_as_the_judge_has_it(seed, assert_same):
    random = np.random.default_rng(seed)

    def strange(step):
        made = numbers(step, SHAPES, least=-3, most=9)
        for x in made.values():
            if step < 100 and x.size:
                x.reshape(-1)[random.integers(x.size)] = (np.nan, np.inf, -np.inf, 3e38)[step % 4]
        return made

    for name in ("plain", "fp32-master"):
        assert_judged(assert_same, Adafactor(), mcf.strategy(name), make=strange)


# -- what a step is -----------------------------------------------------------------------------------------
def test_the_formulas_of_the_paper_in_exact_arithmetic():
    """Algorithms 4 and 5, with their sums in place of means, beside the stages."""
    random, c = np.random.default_rng(2), MPContext()
    c.dps = 60
    start = {"w": random.standard_normal((3, 4)), "b": random.standard_normal(3)}
    hyper = Adafactor(epsilon=0.25, threshold=0.5)
    optimizer = mcf.Optimizer(hyper, mcf.strategy("exact"), start)
    x = {name: [c.mpf(v) for v in part.ravel()] for name, part in start.items()}
    rows, columns, full = [0] * 3, [0] * 4, [0] * 3
    for t in range(1, 4):
        given = {name: random.standard_normal(part.shape) for name, part in start.items()}
        g = {name: [c.mpf(v) for v in part.ravel()] for name, part in given.items()}
        b2 = 1.0 - t**-0.8  # a number of binary64, as the real scalar is
        square = [v * v + c.mpf(0.25) for v in g["w"]]
        rows = [b2 * rows[i] + t**-0.8 * sum(square[4 * i : 4 * i + 4]) for i in range(3)]
        columns = [b2 * columns[j] + t**-0.8 * sum(square[j::4]) for j in range(4)]
        v = [rows[i] * columns[j] / sum(rows) for i in range(3) for j in range(4)]
        full = [b2 * old + t**-0.8 * (new * new + c.mpf(0.25)) for old, new in zip(full, g["b"], strict=True)]
        for name, variances in (("w", v), ("b", full)):
            # Sums of 3 rows by 4 columns are those means times 4, 3 and 12: variances of sums are the same.
            size = c.sqrt(sum(p * p for p in x[name]) / len(x[name]))
            u = [p / c.sqrt(q) for p, q in zip(g[name], variances, strict=True)]
            clip = max(c.mpf(1), c.sqrt(sum(p * p for p in u) / len(u)) / c.mpf(0.5))
            rate = max(c.mpf(1e-3), size) * min(0.125, t**-0.5)
            x[name] = [p - rate * q / clip for p, q in zip(x[name], u, strict=True)]
        optimizer.step(optimizer.receive(given), 0.125)
    found = optimizer.layout.split(optimizer.state.parameter[0])
    for name, expected in x.items():
        for mine, other in zip(found[name].ravel(), expected, strict=True):
            assert abs(mine - other) < 1e-50 * abs(other)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_is_measured_beside_averages_of_rows_and_columns(kind):
    """An average that stays at zero has lost all; those in binary64 are of the same means."""
    names = ["plain", "collage-plus", "fp32", "exact"]
    given = {"schedule": mcf.Schedule(peak=1e-2, warmup=0), "record_every": 2, "truth_sample": 2}
    run = mcf.simulate(Folded(), kind, names, 4, **given)
    plain, collage, single = (run.series[name] for name in names[:3])
    assert max(series["binary64_gap"].max() for series in (plain, collage, single)) < 1e-13
    assert plain["distance"][-1] > collage["distance"][-1] > single["distance"][-1] > 0
    for tensor in "wb":
        assert single[f"v_error/{tensor}"].max() < 1e-6 < plain[f"v_error/{tensor}"].max() < 0.1
        assert single[f"v_ratio/{tensor}"] == pytest.approx(1, abs=1e-6)
    nothing = Layout({"e": np.zeros((5, 0))})  # as if all were vectors
    assert bytes_per_parameter(Adafactor(), mcf.strategy("fp32-optim"), nothing) == 8
    # Parameter and gradient of two bytes, perhaps m; of v 3 + 4 + 2 numbers for 14 elements.
    assert run.results["plain"]["bytes_per_parameter"] == 4 + 2 * KINDS[kind].keeps("m") + 2 * 9 / 14


@pytest.mark.parametrize(("tiny", "expected"), [(2.0**-126, 1 + 2.0**-23), (-(2.0**-126), 1), (0, 1)])
def test_a_mean_near_the_middle_of_two_numbers_is_that_of_the_exact_sum(tiny, expected):
    """Of 64 numbers and 64 zeros, or one far below them: half of 1 and half a unit in the last place."""
    ar = on_blocks(mcf.get_format("float32"), mcf.rounding.get_rounding("nearest_even"))
    x = np.zeros((1, 1, 128), np.float32)
    x[..., :64], x[..., 63], x[..., 64] = 1, 1 + 64 * 2.0**-24, tiny
    assert 2 * mean(ar, x, (1, 1, 1)).item() == expected


@pytest.mark.parametrize("mode", ["up", "down"])
@pytest.mark.parametrize("row", [(1, 3), (-1, -4, -4), (2.0**-30, 1 - 2.0**-30)])
def test_a_mean_that_is_a_number_is_that_number(row, mode):
    """In a format so long that means are made of fractions."""
    fmt = mcf.Format(precision=49, emin=-1000, emax=1000)
    found = mean(on_blocks(fmt, mcf.rounding.get_rounding(mode)), np.array([[row]], float), (1, 1, 1))
    assert found.item() == sum(row) / len(row)
