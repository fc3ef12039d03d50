"""Simulations: the same bits from the same arguments, and the numbers that they should record."""

import math
from fractions import Fraction

import numpy as np
import pytest

from mcfsim import SGD, STRATEGIES, AdamW, Optimizer, Schedule, Strategy, round_to, simulate, strategy
from mcfsim.kernels.real_numbers import to_fraction
from mcfsim.optim.strategies import LOW, Stored
from mcfsim.problems import Corpus, LanguageModel, LogisticRegression, Quadratic, Rosenbrock
from mcfsim.random import RandomWords
from mcfsim.training import metrics

LOW_STRATEGIES = [name for name in STRATEGIES if name != "exact"]
CONSTANT = Schedule(2.0**-4, 0, 1.0)


class Watched:
    """A problem that notes every call for a gradient, and the weights that are validated."""

    def __init__(self, problem):
        self.problem, self.calls, self.finals = problem, [], []

    def __getattr__(self, name):
        return getattr(self.problem, name)

    def loss_and_gradient(self, parameters, step, seed):
        self.calls.append((step, seed, {name: x.copy() for name, x in parameters.items()}))
        return self.problem.loss_and_gradient(parameters, step, seed)

    def validation_loss(self, parameters):
        self.finals.append({name: x.copy() for name, x in parameters.items()})
        return self.problem.validation_loss(parameters)


class Linear:
    """A constant gradient for two unknowns."""

    name, exact_capable, decayed = "linear", True, frozenset()

    def __init__(self, slope, start=(1.0, 1.0)):
        self.slope, self.start = np.array(slope), np.array(start)

    def settings(self):
        return {"kind": self.name, "slope": self.slope.tolist()}

    def initial_parameters(self, seed):
        return {"x": self.start.copy()}

    def loss_and_gradient(self, parameters, step, seed):
        x = parameters["x"]
        return (x * self.slope).sum(), {"x": 0 * x + self.slope}

    def validation_loss(self, parameters):
        return (parameters["x"] * self.slope).sum()


class Explosive(Linear):
    """The gradient grows with the square of the weights until binary64 overflows."""

    def loss_and_gradient(self, parameters, step, seed):
        x = parameters["x"]
        with np.errstate(all="ignore"):
            return float((-(x**3)).sum()), {"x": -1e3 * x**2}

    def validation_loss(self, parameters):
        with np.errstate(all="ignore"):
            return float((-(parameters["x"] ** 3)).sum())


def assert_same_runs(a, b):
    assert a.settings == b.settings
    assert a.results == b.results
    np.testing.assert_array_equal(a.steps, b.steps)
    assert {name: list(series) for name, series in a.series.items()} == {
        name: list(series) for name, series in b.series.items()
    }
    for name, series in a.series.items():
        for measure, numbers in series.items():
            np.testing.assert_array_equal(numbers, b.series[name][measure], err_msg=f"{name} {measure}")


@pytest.fixture(scope="module")
def problem():
    return Quadratic(24, 100.0, seed=3)


# -- the run is a function of its arguments ------------------------------------------------------------
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.slow
def test_the_same_arguments_give_the_same_bits(problem, optimizer):
    arguments = {"optimizer": optimizer, "strategies": LOW_STRATEGIES, "steps": 25, "truth_sample": 5}
    first = simulate(problem, seed=1, **arguments)
    assert_same_runs(first, simulate(problem, seed=1, **arguments))
    other = simulate(problem, seed=2, **arguments)
    assert first.series["plain"]["loss"][0] != other.series["plain"]["loss"][0]


def test_names_stand_for_default_objects():
    by_name = simulate("rosenbrock", "sgd", ["plain"], steps=3)
    assert_same_runs(by_name, simulate(Rosenbrock(), SGD(), [strategy("plain")], 3, Schedule(), low="bf16"))


def test_a_progress_bar_changes_nothing(problem, capsys):
    assert_same_runs(simulate(problem, steps=3), simulate(problem, steps=3, progress=True))
    assert capsys.readouterr().out == ""


def test_every_strategy_gets_the_same_batches_and_the_same_start(problem):
    watched = Watched(problem)
    names = [*LOW_STRATEGIES, "exact"]
    run = simulate(watched, "sgd", names, steps=4, seed=9)
    assert [(step, seed) for step, seed, _ in watched.calls] == [(t, 9) for t in range(1, 5) for _ in names]
    start = round_to(problem.initial_parameters(9)["x"], "bfloat16")
    for _, _, weights in watched.calls[: len(names)]:
        assert (weights["x"] == start).all()
    assert len({run.series[name]["loss"][0] for name in LOW_STRATEGIES}) == 1


@pytest.mark.parametrize("name", LOW_STRATEGIES)
@pytest.mark.parametrize(("rounding", "scalars"), [("nearest_even", "exact"), ("toward_zero", "rounded")])
@pytest.mark.sampled(4)
def test_a_run_is_its_optimizers_loop(problem, name, rounding, scalars):
    """Gradient at the weights in binary64, received, stepped: nothing else happens to the numbers."""
    hyper, schedule, steps = AdamW(0.9, 0.95), Schedule(0.02, 5), 30
    watched = Watched(problem)
    options = {"rounding": rounding, "scalars": scalars}
    words = {"random": RandomWords(4)} if strategy(name).draws else {}
    run = simulate(watched, hyper, [name], steps, schedule, seed=4, clip=None, record_every=7, **options)
    start = round_to(problem.initial_parameters(4)["x"], "bfloat16")
    optimizer = Optimizer(hyper, strategy(name), {"x": start}, {"x"}, rounding, scalars=scalars, **words)
    losses, quality = [], []
    for t in range(1, steps + 1):
        weights = optimizer.weights()["x"].astype(np.float64)
        loss, gradient = problem.loss_and_gradient({"x": weights}, t, 4)
        before = optimizer.represented()
        update = optimizer.step(optimizer.receive(gradient), schedule.rate(t, steps))
        effective = metrics.effective_update(before, optimizer.represented())
        losses.append(loss)
        quality.append(metrics.normalized_edq(update, effective))
    recorded = [0, 6, 13, 20, 27, 29]
    assert run.series[name]["loss"].tolist() == [losses[t] for t in recorded]
    assert run.series[name]["normalized_edq"].tolist() == [quality[t] for t in recorded]
    assert (watched.finals[0]["x"] == optimizer.weights()["x"]).all()
    final = {"x": optimizer.weights()["x"].astype(np.float64)}
    assert run.results[name]["validation_loss"] == problem.validation_loss(final)
    assert run.results[name]["bytes_per_parameter"] == strategy(name).bytes_per_parameter


@pytest.mark.parametrize("low", ["float16", "float8_e4m3fn", "float8_e5m2"])
def test_the_model_sees_values_of_the_low_format(problem, low):
    watched = Watched(problem)
    simulate(watched, "sgd", ["plain", "collage-light", "fp32-master"], 3, CONSTANT, low=low)
    for _, _, weights in watched.calls:
        np.testing.assert_array_equal(weights["x"], round_to(weights["x"], low))


# -- clipping, rates, recorded steps -------------------------------------------------------------------
@pytest.mark.parametrize(
    ("clip", "shrink"), [(None, 1.0), (math.inf, 1.0), (10.0, 1.0), (5.0, 1.0), (2.5, 0.5), (0.625, 0.125)]
)
@pytest.mark.parametrize("name", ["plain", "fp32", "exact"])
def test_a_gradient_of_norm_five_is_scaled_down_to_the_clip(clip, shrink, name):
    watched = Watched(Linear([3.0, 4.0]))
    run = simulate(watched, SGD(0.0), [name], steps=1, schedule=CONSTANT, clip=clip)
    moved = watched.finals[0]["x"] - watched.start
    np.testing.assert_array_equal(moved, -(2.0**-4) * shrink * np.array([3.0, 4.0]))
    assert run.series[name]["gradient_norm"].tolist() == [5.0]  # before clipping


def test_recorded_rates_are_those_of_the_schedule(problem):
    schedule = Schedule(0.03, warmup=7, final=0.25)
    run = simulate(problem, "sgd", ["plain"], 30, schedule, record_every=1)
    assert run.series["plain"]["rate"].tolist() == [schedule.rate(t, 30) for t in range(1, 31)]
    assert run.series["plain"]["rate"][[0, 6, 29]].tolist() == [0.03 / 7, 0.03, 0.03 * 0.25]


@pytest.mark.parametrize(
    ("steps", "every", "expected"),
    [(25, 10, [1, 10, 20, 25]), (20, 10, [1, 10, 20]), (1, 10, [1]), (3, 1, [1, 2, 3]), (4, 9, [1, 4])],
)
def test_recorded_steps(problem, steps, every, expected):
    run = simulate(problem, "sgd", ["plain", "exact"], steps, record_every=every)
    assert run.steps.tolist() == expected
    assert {numbers.size for series in run.series.values() for numbers in series.values()} == {len(expected)}


@pytest.mark.slow
def test_recording_does_not_disturb_the_run(problem):
    finals = []
    for every in (1, 100):
        watched = Watched(problem)
        names = ["collage-plus", "kahan"]
        simulate(watched, "adamw", names, 20, CONSTANT, record_every=every, truth_sample=every)
        finals.append([final["x"].tolist() for final in watched.finals])
    assert finals[0] == finals[1]


# -- measures ------------------------------------------------------------------------------------------
TOTALS = {
    *("edq", "normalized_edq", "lost", "norm_ratio", "cosine", "residual_norm"),
    *("released_edq", "released_imprecision", "m_error", "m_ratio"),
}
SECOND = {"v_error", "v_ratio"}
EVERY_STEP = {"loss", "rate", "gradient_norm"}
JUDGED = {"one_step_error", "update_length", "binary64_gap"}


def test_series_of_one_tensor(problem):
    run = simulate(problem, "adamw", ["plain", "exact"], steps=2)
    assert set(run.series["plain"]) == TOTALS | SECOND | EVERY_STEP | {"distance"}
    assert set(run.series["exact"]) == EVERY_STEP
    assert run.results["exact"].keys() == {"validation_loss"}
    judged = simulate(problem, "sgd", ["plain"], steps=2, truth_sample=3)
    assert set(judged.series["plain"]) == TOTALS | EVERY_STEP | JUDGED


def test_series_of_several_tensors():
    run = simulate(LogisticRegression(), "sgd", ["plain"], steps=2)
    per_tensor = {f"{measure}/{tensor}" for measure in TOTALS for tensor in ("weights", "bias")}
    assert set(run.series["plain"]) == TOTALS | EVERY_STEP | per_tensor


@pytest.mark.slow
def test_the_second_moment_of_bfloat16_is_measured_against_binary64(problem):
    run = simulate(problem, AdamW(), ["plain", "collage-plus", "fp32-master"], 60, Schedule(0.01, 10))
    error = {name: series["v_error"][-1] for name, series in run.series.items()}
    assert error["fp32-master"] < 2.0**-20 < error["collage-plus"] < 2.0**-7 < error["plain"]
    assert run.series["plain"]["v_ratio"][-1] > 1.01
    assert abs(run.series["fp32-master"]["v_ratio"][-1] - 1) < 2.0**-20
    assert run.series["plain"]["lost"][-1] > 0.3 > 0.0 == run.series["fp32-master"]["lost"][-1]


@pytest.mark.slow
def test_the_exact_update_of_the_same_state(problem):
    run = simulate(problem, AdamW(), ["plain", "fp32-master"], 20, Schedule(0.01, 10), truth_sample=24)
    assert run.series["fp32-master"]["one_step_error"].max() < 2.0**-10 < 0.1
    assert run.series["plain"]["one_step_error"].max() > 0.1
    assert np.abs(run.series["fp32-master"]["update_length"] - 1).max() < 2.0**-20
    for series in run.series.values():
        assert 0 < series["binary64_gap"].max() < 1e-14


# -- exact trajectories --------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "objective",
    [Quadratic(5, 1e3, seed=2), Rosenbrock(4), LogisticRegression(0.01)],
    ids=lambda objective: objective.name,
)
@pytest.mark.slow
def test_exact_trajectories_to_a_hundred_digits(objective):
    """400 bits and 1000 bits go the same way: what differs is below 10**-100 relative."""
    ends = []
    for precision in (400, 1000):
        watched = Watched(objective)
        run = simulate(
            watched, AdamW(0.9, 0.99), ["exact", "plain"], 12, Schedule(0.05, 3), precision=precision
        )
        assert (run.series["plain"]["distance"] > 0).all()
        ends.append([to_fraction(x) for tensor in watched.finals[0].values() for x in tensor])
    size = max(map(abs, ends[1]))
    gap = max(abs(a - b) for a, b in zip(*ends, strict=True))
    assert 0 < gap < size / 10**100


@pytest.mark.slow
def test_distance_to_the_exact_trajectory(problem):
    watched = Watched(problem)
    names = ["plain", "kahan", "collage-light", "fp32", "exact"]
    run = simulate(watched, AdamW(0.9, 0.99), names, 40, Schedule(0.02, 5), record_every=5)
    distance = {name: run.series[name]["distance"] for name in names if name != "exact"}
    assert (distance["fp32"][1:] < distance["collage-light"][1:] / 10).all()
    assert distance["collage-light"][-1] < distance["plain"][-1] / 2
    assert "distance" not in run.series["exact"]
    exact, fp32 = ([to_fraction(x) for x in watched.finals[i]["x"]] for i in (4, 3))
    square = sum((a - b) ** 2 for a, b in zip(exact, fp32, strict=True)) / sum(x * x for x in exact)
    assert abs(Fraction(distance["fp32"][-1]) ** 2 / square - 1) < Fraction(1, 2**50)


def test_without_exact_there_is_no_distance(problem):
    assert "distance" not in simulate(problem, strategies=["plain"], steps=1).series["plain"]


# -- a language model, strategies of one's own, divergence ---------------------------------------------
@pytest.fixture(scope="module")
def tiny_model():
    text = bytes(range(32, 127)) * 20
    return LanguageModel(Corpus.from_bytes(text, "ascii"), layers=1, width=8, heads=2, context=8, batch=2)


@pytest.mark.slow
def test_a_tiny_language_model_end_to_end(tiny_model):
    run = simulate(tiny_model, "adamw", LOW_STRATEGIES, 6, Schedule(3e-3, 2), truth_sample=40, record_every=3)
    for name in LOW_STRATEGIES:
        series = run.series[name]
        assert series["binary64_gap"].max() < 1e-12
        assert series["loss"][0] == pytest.approx(math.log(256), rel=0.01)
        assert series["loss"][-1] < series["loss"][0]
        assert all(np.isfinite(series[measure]).all() for measure in TOTALS | SECOND | JUDGED)
        assert {key.split("/")[1] for key in series if "/" in key} == set(tiny_model.shapes)
    assert run.series["fp32-master"]["one_step_error"].max() < 1e-3
    with pytest.raises(ValueError, match="'language-model' cannot be trained in exact arithmetic"):
        simulate(tiny_model, strategies=["exact"], steps=1)


def test_averages_are_those_of_whole_vectors(problem, monkeypatch):
    whole = simulate(problem, strategies="collage-plus", steps=5, record_every=1)
    monkeypatch.setattr("mcfsim.training.trainer._BLOCK", 3)
    assert_same_runs(whole, simulate(problem, strategies="collage-plus", steps=5, record_every=1))


def test_a_strategy_declared_in_one_expression(problem):
    three = Strategy("three", parameter=Stored(LOW, 3), v=Stored(LOW, 3), beta2_components=3, addition="grow")
    run = simulate(problem, AdamW(), ["plain", three], 20, Schedule(0.01, 10))
    assert run.results["three"]["bytes_per_parameter"] == 16
    assert run.series["three"]["lost"].max() == 0.0
    assert run.settings["strategies"][1]["parameter"]["components"] == 3


@pytest.mark.parametrize("clip", [1.0, None])
@pytest.mark.parametrize("truth_sample", [0, 2])
def test_divergence_gives_inf_or_nan_and_no_exception(clip, truth_sample):
    explosive = Explosive([1.0, 1.0], start=[1.0, 1e150])
    run = simulate(
        explosive, AdamW(), LOW_STRATEGIES, 8, Schedule(1e30, 0, 1.0), clip=clip, truth_sample=truth_sample
    )
    for name in LOW_STRATEGIES:
        assert not np.isfinite(run.series[name]["loss"][-1])
        assert not np.isfinite(run.results[name]["validation_loss"])


# -- what is refused -----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"steps": 0}, "steps = 0"),
        ({"record_every": 0}, "record_every = 0"),
        ({"checkpoint_every": 0}, "checkpoint_every = 0"),
        ({"clip": 0.0}, "clip = 0.0 must be positive"),
        ({"clip": math.nan}, "clip = nan must be finite"),
        ({"optimizer": "adam"}, "unknown optimizer 'adam'; known optimizers: adafactor, momentumadafactor"),
        ({"strategies": []}, "at least one"),
        ({"strategies": ["plain", strategy("plain")]}, "each named once"),
        ({"strategies": ["plane"]}, "did you mean 'plain'"),
        ({"low": "bfloat61"}, "unknown format"),
        ({"rounding": "nearest"}, "unknown rounding 'nearest'"),
        ({"scalars": "real"}, "unknown scalar policy 'real'"),
        ({"problem": "quadratics"}, "unknown problem 'quadratics'"),
        ({"strategies": ["exact"], "precision": 10}, "at least 64"),
    ],
)
def test_bad_arguments(problem, arguments, message):
    with pytest.raises(ValueError, match=message):
        simulate(**{"problem": problem, "steps": 1, **arguments})
