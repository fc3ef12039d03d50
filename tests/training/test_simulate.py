"""Simulations: the same bits from the same arguments, and the numbers that they should record."""

import math
from fractions import Fraction
from itertools import pairwise, product

import mpmath
import numpy as np
import pytest

from mcfsim import STRATEGIES, AdamW, Optimizer, Schedule, round_to, simulate, strategy
from mcfsim.kernels.real_numbers import to_fraction
from mcfsim.random import RandomWords
from mcfsim.training import metrics
from mcfsim.training.problems import LogisticRegression, Quadratic
from mcfsim.training.trainer import WideStep
from tests.training.problems import Watched, assert_same_run, tiny_model

LOW_STRATEGIES = [name for name in STRATEGIES if name != "exact"]


@pytest.fixture(scope="module")
def problem():
    return Quadratic(24, 100.0, seed=3)


# -- the run is a function of its arguments ------------------------------------------------------------
@pytest.mark.parametrize(
    ("optimizer", "names"),
    [("adamw", ["plain", "collage-plus", "stochastic", "fp8-moments"]), ("sgd", ["plain", "kahan"])],
)
@pytest.mark.slow
def test_the_same_arguments_give_the_same_bits_whatever_is_recorded_beside(problem, optimizer, names, capsys):
    arguments = {"optimizer": optimizer, "strategies": names, "steps": 4}
    first, again = Watched(problem), Watched(problem)
    recorded = {"seed": 1, "truth_sample": 2, "record_every": 2}
    run = simulate(first, **recorded, **arguments)
    assert_same_run(simulate(problem, **recorded, progress=True, **arguments), run)
    assert capsys.readouterr().out == ""
    simulate(again, seed=1, **arguments)
    assert again.finals == first.finals
    elsewhere = simulate(problem, optimizer, "plain", 1, seed=2)
    assert elsewhere.series["plain"]["loss"][0] != run.series["plain"]["loss"][0]


@pytest.mark.slow
def test_the_rates_of_a_run_are_those_of_each_step_in_pythons_numbers():
    def expected(peak, warmup, final, step, steps):
        if step < warmup:
            return peak * step / warmup if peak * step < math.inf else peak * (step / warmup)
        share = math.cos(math.pi * ((step - warmup) / max(1, steps - warmup)))
        return peak * (final + (1 - final) * 0.5 * (1 + share))

    plans = (3e-4, 50, 0.1), (0.7, 0, 0.0), (1.7e308, 50, 1.0), (5e-324, 7, 0.3), (0.1, 10**30, 0.3)
    for plan, steps in product(plans, (1, 2, 49, 50, 51, 40_000)):
        schedule, every = Schedule(*plan), range(1, steps + 1)
        rates = [expected(*plan, step, steps) for step in every]
        assert schedule.rates(steps).tolist() == rates
        assert [schedule.rate(step, steps) for step in every[-60:]] == rates[-60:]
    for bad, error in ((0, ValueError), (2.0, TypeError), (True, TypeError)):
        with pytest.raises(error, match="steps"):
            Schedule().rates(bad)


@pytest.mark.slow
def test_a_schedule_of_ones_own_is_the_rates_of_all_steps():
    class Falling(Schedule):
        def rate(self, step, steps):
            return self.peak * (steps - step + 1) / steps

    rates = [Falling(0.02).rate(step, 6) for step in range(1, 7)]
    assert Falling(0.02).rates(6).tolist() == rates
    runs = [
        simulate("quadratic", strategies="kahan", steps=6, schedule=given, progress=False)
        for given in (Falling(0.02), rates, np.array(rates))
    ]
    assert runs[0] == runs[1] == runs[2]
    assert [*runs[0].settings["schedule"]["rates"]] == rates
    assert runs[0] != simulate("quadratic", strategies="kahan", steps=6, progress=False)


@pytest.mark.parametrize(
    ("rounding", "scalars"), [("nearest_even", "exact"), ("toward_zero", "rounded"), ("up", "float32")]
)
@pytest.mark.slow
@pytest.mark.sampled(3, each=False)
def test_a_run_is_its_optimizers_loop(problem, rounding, scalars):
    """Gradient at the weights in binary64, received, stepped: nothing else happens to the numbers."""
    hyper, schedule, steps = AdamW(0.9, 0.95), Schedule(0.02, 3), 3
    watched, options = Watched(problem), {"rounding": rounding, "scalars": scalars, "truth_sample": 1}
    run = simulate(watched, hyper, STRATEGIES, steps, schedule, 4, clip=None, record_every=2, **options)
    start = round_to(problem.initial_parameters(4)["x"], "bfloat16")
    assert [call[:2] for call in watched.calls] == [(t, 4) for t in range(1, steps + 1) for _ in STRATEGIES]
    assert all((weights["x"] == start).all() for *_, weights in watched.calls[: len(STRATEGIES)])
    for place, name in enumerate(LOW_STRATEGIES):
        words = {"random": RandomWords(4)} if strategy(name).draws else {}
        optimizer = Optimizer(hyper, strategy(name), {"x": start}, {"x"}, rounding, scalars=scalars, **words)
        losses, quality, judged = [], [], []
        for t in range(1, steps + 1):
            weights = optimizer.weights()["x"].astype(np.float64)
            loss, gradient = problem.loss_and_gradient({"x": weights}, t, 4)
            before, leading = optimizer.represented(), optimizer.state.parameter[0].copy()
            received, rate = optimizer.receive(gradient), schedule.rate(t, steps)
            state = {**optimizer.state._asdict(), "parameter": before}
            wide = WideStep(hyper, optimizer.layout, state, received, t, rate)
            exact = wide.judged(np.arange(0)).update
            update = optimizer.step(received, rate)
            losses.append(loss)
            effective = metrics.effective_update(before, optimizer.represented())
            quality.append(metrics.normalized_edq(update, effective))
            still = metrics.released_imprecision(leading, optimizer.state.parameter[0])
            length = metrics.normalized_edq(exact, update)
            judged.append((metrics.relative_error(effective, exact), length, still))
        measures = "one_step_error", "update_length", "released_imprecision"
        compared = [run.series[name][measure].tolist() for measure in measures]
        assert compared == [*map(list, zip(*judged, strict=True))], name
        assert run.series[name]["loss"].tolist() == losses, name
        assert run.series[name]["normalized_edq"].tolist() == quality, name
        assert watched.finals[place]["x"] == optimizer.weights()["x"].tolist(), name
        final = {"x": optimizer.weights()["x"].astype(np.float64)}
        assert run.results[name] == {
            "validation_loss": problem.validation_loss(final),
            "bytes_per_parameter": strategy(name).bytes_per_parameter,
        }


def test_averages_are_those_of_whole_vectors(problem, monkeypatch):
    whole = simulate(problem, strategies="collage-plus", steps=5, record_every=1)
    monkeypatch.setattr("mcfsim.training.trainer._BLOCK", 3)
    assert_same_run(simulate(problem, strategies="collage-plus", steps=5, record_every=1), whole)


# -- what is recorded ----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("steps", "every", "expected"),
    [(25, 10, [1, 10, 20, 25]), (20, 10, [1, 10, 20]), (1, 10, [1]), (3, 1, [1, 2, 3]), (4, 9, [1, 4])],
)
@pytest.mark.slow
def test_recorded_steps_and_rates(problem, steps, every, expected):
    schedule = Schedule(0.03, warmup=7, final=0.25)
    run = simulate(problem, "sgd", ["plain", "exact"], steps, schedule, record_every=every)
    assert run.steps.tolist() == expected
    assert {numbers.size for series in run.series.values() for numbers in series.values()} == {len(expected)}
    assert run.series["plain"]["rate"].tolist() == [schedule.rate(t, steps) for t in expected]


TOTALS = {
    *("edq", "normalized_edq", "lost", "norm_ratio", "cosine", "residual_norm"),
    *("released_edq", "released_imprecision", "m_error", "m_ratio"),
}
SECOND = {"v_error", "v_ratio"}
EVERY_STEP = {"loss", "rate", "gradient_norm"}
JUDGED = {"one_step_error", "update_length", "binary64_gap"}


@pytest.mark.slow
def test_the_series_of_one_tensor_and_of_several(problem):
    run = simulate(problem, "adamw", ["plain", "exact"], steps=2)
    assert set(run.series["plain"]) == TOTALS | SECOND | EVERY_STEP | {"distance"}
    assert set(run.series["exact"]) == EVERY_STEP
    assert run.results["exact"].keys() == {"validation_loss"}
    judged = simulate(problem, "sgd", ["plain"], steps=2, truth_sample=3)
    assert set(judged.series["plain"]) == TOTALS | EVERY_STEP | JUDGED
    several = simulate(LogisticRegression(), "sgd", ["plain"], steps=2)
    per_tensor = {f"{measure}/{tensor}" for measure in TOTALS for tensor in ("weights", "bias")}
    assert set(several.series["plain"]) == TOTALS | EVERY_STEP | per_tensor


# -- exact trajectories --------------------------------------------------------------------------------
@pytest.mark.slow
def test_distance_to_the_exact_trajectory_which_is_the_same_to_a_hundred_digits(problem):
    """400 bits and 1000 bits go the same way: what differs is below 10**-100 relative."""
    ends, names = [], ["plain", "fp32", "exact"]
    given = AdamW(0.9, 0.99), names, 6, Schedule(0.02, 3)
    for precision in (400, 1000):
        watched = Watched(problem)
        run = simulate(watched, *given, record_every=5, precision=precision)
        *finals, exact = ([to_fraction(x) for x in final["x"]] for final in watched.finals)
        ends.append(exact)
        for name, final in zip(names, finals, strict=False):
            square = sum((a - b) ** 2 for a, b in zip(exact, final, strict=True)) / sum(x * x for x in exact)
            assert abs(Fraction(run.series[name]["distance"][-1]) ** 2 / square - 1) < Fraction(1, 2**50)
            assert (run.series[name]["distance"] > 0).all()
    gap = max(abs(a - b) for a, b in zip(*ends, strict=True))
    assert 0 < gap < max(map(abs, exact)) / 10**100


# -- a language model, strategies of one's own, divergence ---------------------------------------------


@pytest.mark.slow
def test_a_tiny_language_model_end_to_end():
    names = ["plain", "collage-plus", "fp32-master"]
    run = simulate(tiny_model(), "adamw", names, 6, Schedule(3e-3, 2), truth_sample=10, record_every=5)
    plain, collage, master = (run.series[name] for name in names)
    for series in (plain, collage, master):
        assert series["binary64_gap"].max() < 1e-12
        assert series["loss"][0] == pytest.approx(math.log(256), rel=0.01)
        assert series["loss"][-1] < series["loss"][0]
        assert all(np.isfinite(series[measure]).all() for measure in TOTALS | SECOND | JUDGED)
        assert {key.split("/")[1] for key in series if "/" in key} == set(tiny_model().shapes)
    for slot in "mv":
        assert 0 < master[f"{slot}_error"][-1] < 2.0**-20 < 2.0**-12 < plain[f"{slot}_error"][-1]
        assert master[f"{slot}_ratio"] == pytest.approx(1, abs=2.0**-20)
    assert collage["v_error"][-1] < plain["v_error"][-1]
    assert master["one_step_error"].max() < 1e-3
    with pytest.raises(ValueError, match="'language-model' cannot be trained in exact arithmetic"):
        simulate(tiny_model(), strategies=["exact"], steps=1)


# -- learning rates: for what is refused see `test_training_input` ------------------------------------------
LEAST = 5e-324


def formula(schedule, step, steps):
    """Return the rate that is documented."""
    peak, warmup, final = map(mpmath.mpf, (schedule.peak, schedule.warmup, schedule.final))
    if step <= warmup:
        return peak * step / warmup
    return peak * (final + (1 - final) * (1 + mpmath.cospi((step - warmup) / (steps - warmup))) / 2)


@pytest.mark.parametrize("final", [0.0, 0.1, 0.3, 1.0])
@pytest.mark.parametrize("warmup", [0, 1, 3, 7, 50, 10**6])
@pytest.mark.parametrize("peak", [3e-4, 0.1, 1 / 3, LEAST, 1.7e308])
@pytest.mark.sampled(6)
def test_rates_are_those_of_the_formula(peak, warmup, final):
    schedule = Schedule(peak, warmup, final)
    for steps in (1, 2, 3, 300):
        rates = [schedule.rate(step, steps) for step in range(1, steps + 1)]
        assert 0 <= min(rates) <= max(rates) <= peak
        with mpmath.workdps(40):
            for step, rate in enumerate(rates, start=1):
                assert abs(rate - formula(schedule, step, steps)) <= 2e-15 * peak + LEAST, step
        if 0 < warmup <= steps:  # exactly, at its ends
            assert rates[0] == peak / warmup
            assert rates[warmup - 1] == max(rates) == peak
        if warmup < steps:
            assert rates[-1] == pytest.approx(final * peak, rel=1e-15, abs=0)
            falling = pairwise(rates[max(warmup, 1) - 1 :])
            assert peak == LEAST or all(later < earlier or final == 1 for earlier, later in falling)
