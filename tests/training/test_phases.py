"""A training that changes its strategy or rounding on the way is made of the trainings that it names."""

import json

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim import AdamW, Phase, PrecisionSchedule, Run, Schedule, simulate
from mcfsim.training.problems import Quadratic
from mcfsim.training.schedule import clipped
from mcfsim.training.trainer import BASE
from tests.cli.runner import call
from tests.optim.on_grid_reference import placed
from tests.shared.kinds import STORED
from tests.training.problems import Watched, assert_same_run, tiny_model

QUADRATIC = Quadratic(6, 100.0)
SATURATING = mcf.Rounding("up", "saturate")
STEPS, RATES = 8, Schedule(0.02, 3)
#: Everything that may change: storage, format, rounding, and words that are drawn.
CHANGING = PrecisionSchedule(
    [
        Phase("stochastic"),
        Phase(mcf.strategy("collage-plus", "float16"), 3),
        Phase("fp8-moments", 5, "stochastic"),
        Phase("int8-moments", 6),
        Phase("fp32", 8),
    ],
    "changing",
)
#: To grids and exact numbers, and from there.
FAR = PrecisionSchedule(
    [
        Phase("plain"),
        Phase("exact", 2),
        Phase(placed("dqt-int4", reach="fixed"), 3),
        Phase("dqt-int2", 5),
        Phase("kahan", 7),
        Phase("bitnet", 8),
    ],
    "far",
)


def train(strategies, problem=QUADRATIC, **options):
    options = {"record_every": 1, "progress": False, "rounding": "nearest_even", **options}
    return simulate(problem, AdamW(0.9, 0.95, 1e-6), strategies, STEPS, RATES, 6, **options)


@pytest.mark.parametrize("strategy", STORED)
@pytest.mark.sampled(12, each=False)
@pytest.mark.slow
def test_a_switch_to_the_same_strategy_is_no_switch(strategy):
    run = train([strategy, f"{strategy},{strategy}@4,{strategy}@8"], truth_sample=2)
    (first, second), (known, found) = run.series.values(), run.results.values()
    assert list(first) == list(second)
    for measure, numbers in first.items():
        assert np.array_equal(numbers, second[measure], equal_nan=True), measure
    assert known == found


@pytest.mark.parametrize(("schedule", "most"), [(CHANGING, 16), (FAR, 14.25)], ids=["near", "far"])
@pytest.mark.slow
def test_a_schedule_is_its_phases_one_after_another(schedule, most):
    """By hand: steps of an optimizer, and of the next one, which it is switched to."""
    watched = Watched(QUADRATIC)
    run = train(schedule, watched)
    start = {name: mcf.round_to(x, "bfloat16") for name, x in QUADRATIC.initial_parameters(6).items()}
    words, low = mcf.RandomWords(6), "bfloat16"
    optimizer = mcf.Optimizer(
        *(AdamW(0.9, 0.95, 1e-6), mcf.strategy(schedule.phases[0].strategy, low), start, QUADRATIC.decayed),
        random=words,
    )
    changes = {phase.first: phase for phase in schedule.phases[1:]}
    losses = []
    for step in range(1, STEPS + 1):
        if phase := changes.get(step):
            chosen = mcf.strategy(phase.strategy, low)
            optimizer = optimizer.switched(chosen, rounding=phase.rounding or "nearest_even")
        weights = {
            name: x if x.dtype == object else x.astype(np.float64) for name, x in optimizer.weights().items()
        }
        loss, gradients = QUADRATIC.loss_and_gradient(weights, step, 6)
        losses.append(float(loss))
        optimizer.step(optimizer.receive(clipped(gradients, 1.0)[0]), RATES.rate(step, STEPS))
    assert run.series[schedule.name]["loss"].tolist() == losses
    (final,) = watched.finals
    assert all(np.array_equal(final[name], x) for name, x in optimizer.weights().items())
    assert run.results[schedule.name]["bytes_per_parameter"] == most
    first = schedule.phases[0].strategy
    alone = train(first).series[first]["loss"].tolist()
    same = schedule.phases[1].first - 1
    assert losses[:same] == alone[:same]
    assert losses[same + 1 :] != alone[same + 1 :]


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ("plain,eco@3", "has no formula for that"),
        (PrecisionSchedule([Phase("plain"), Phase("split-master", 3, SATURATING)]), "ieee"),
    ],
)
def test_what_a_later_phase_refuses_is_refused_before_the_first_step(schedule, message):
    watched = Watched(QUADRATIC)
    with pytest.raises(ValueError, match=message):
        simulate(watched, "lion", schedule, STEPS, progress=False)
    assert not watched.calls


@pytest.mark.slow
def test_measures_that_a_phase_does_not_have_are_nan():
    run = train(["exact", FAR, "exact,exact@4", "plain,dqt-int4@5"], truth_sample=2)
    far, exact = run.series["far"], run.series["exact"]
    assert {len(x) for series in run.series.values() for x in series.values()} == {STEPS}
    there = {
        name: np.flatnonzero(np.isfinite(far[name])) + 1 for name in ("changed", "lost", "one_step_error")
    }
    assert there["changed"].tolist() == [3, 4, 5, 6, 8]
    assert there["lost"].tolist() == there["one_step_error"].tolist() == [1, *range(3, STEPS + 1)]
    assert list(exact) == [*BASE]
    assert all(np.array_equal(exact[name], run.series["exact,exact@4"][name]) for name in BASE)
    assert np.isfinite(far["distance"]).all()
    assert far["distance"][0] < 1e-2 < far["distance"][2]
    assert run.results["far"]["clipped_at_start"] <= 1
    assert "clipped_at_start" not in run.results["exact"]


@pytest.mark.slow
def test_a_reference_average_goes_on_through_exact_steps():
    """It is that of the gradients in binary64, so that float32's averages stay near it."""
    for optimizer in ("adamw", "adafactor"):
        run = simulate(QUADRATIC, optimizer, "fp32,exact@3,fp32@6", 8, RATES, record_every=1, progress=False)
        (series,) = run.series.values()
        assert np.isnan(series["v_error"]).tolist() == [2 <= step < 5 for step in range(8)]
        assert np.nanmax(series["v_error"]) < 1e-6


@pytest.mark.parametrize("at", range(2, STEPS + 1))
@pytest.mark.sampled(7, each=False)
@pytest.mark.slow
def test_a_run_goes_on_across_its_switches(at, tmp_path):
    """From a checkpoint before one, at one and after one: the run that was not interrupted."""
    schedules = [CHANGING, "kahan,fp32-master@4,split-master@7", FAR]
    whole, path = train(schedules), tmp_path / "run.npz"
    with pytest.raises(KeyboardInterrupt):
        train(schedules, Watched(QUADRATIC, at, 1, KeyboardInterrupt), checkpoint=path)
    resumed = Watched(QUADRATIC)
    run = train(schedules, resumed, checkpoint=path)
    assert resumed.steps[:2] == [1, at]  # the fingerprint, and not from the beginning
    assert_same_run(run, whole)
    run.save(tmp_path / "saved.npz")
    assert_same_run(Run.load(tmp_path / "saved.npz"), whole)
    with pytest.raises(ValueError, match="is of another run: settings differ in strategies"):
        train([schedules[0], "kahan,fp32-master@5"], checkpoint=path)


@pytest.mark.slow
def test_a_model_is_trained_on_with_what_is_recorded_of_it():
    run = train(["plain", "plain,fp32@5"], tiny_model(), truth_sample=2)
    plain, late = run.series.values()
    assert list(plain) == list(late)
    assert plain["loss"][:5].tolist() == late["loss"][:5].tolist()
    assert np.median(late["lost"][4:]) < np.median(plain["lost"][4:])
    assert late["one_step_error"][4:].max() < 1e-5 < plain["one_step_error"][4:].min()


@pytest.mark.slow
def test_the_settings_say_the_schedule():
    run = train([CHANGING, "plain", PrecisionSchedule([Phase("plain", rounding="up")], "upward")])
    first, second, third = json.loads(json.dumps(run.settings["strategies"]))
    assert (first["name"], second["name"], third["name"]) == ("changing", "plain", "upward")
    assert [phase["first"] for phase in first["phases"]] == [1, 3, 5, 6, 8]
    assert first["phases"][1]["strategy"]["parameter"]["format"]["name"] == "float16"
    assert "phases" not in second
    assert third["phases"][0]["rounding"]["mode"] == "up"


@pytest.mark.slow
def test_a_text_is_a_schedule():
    found = PrecisionSchedule.read("plain,collage-plus@101,fp32@201")
    assert found.phases == (Phase("plain"), Phase("collage-plus", 101), Phase("fp32", 201))
    assert found.name == "plain,collage-plus@101,fp32@201"
    assert (found.at(0), found.at(1), found.at(100), found.at(101), found.at(999)) == (0, 0, 0, 1, 2)
    command = "simulate --problem quadratic --steps 8 --strategy plain,fp32@5"
    assert "plain,fp32@5" in call(*command.split()).output


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Phase("plain", 0), ValueError, "first = 0"),
        (lambda: Phase("plain", rounding="upward"), ValueError, "unknown rounding"),
        (lambda: PrecisionSchedule([]), ValueError, r"must increase from 1, not \[\]"),
        (lambda: PrecisionSchedule([Phase("plain", 2)]), ValueError, r"not \[2\]"),
        (lambda: PrecisionSchedule([Phase("plain")] * 2), ValueError, r"not \[1, 1\]"),
        (lambda: PrecisionSchedule("plain"), TypeError, "not 'p'"),
        (lambda: PrecisionSchedule(Phase("plain"), "a|b"), ValueError, "must not have a '|'"),
        *(
            (lambda name=name: PrecisionSchedule(Phase("plain"), name), ValueError, "a name in a file has no")
            for name in ("a\0", "\ud800", "x" * 32_001)
        ),
        (lambda: train(mcf.Strategy("a\0")), ValueError, "a name in a file has no NUL"),
        (lambda: PrecisionSchedule(Phase("plain"), 3), TypeError, "name must be a string, not 3"),
        (lambda: train("plain,fp32"), ValueError, "unknown strategy 'plain,fp32'"),
        (
            lambda: train("plain,fp32@late"),
            ValueError,
            "must be a strategy and its first step, like fp32@201",
        ),
        (lambda: train("plain,fp33@5"), ValueError, "unknown strategy 'fp33'"),
        (lambda: train("plain,fp32@9"), ValueError, "step 9 begins a phase, and the run has 8"),
        (lambda: train("plain,exact@5", tiny_model()), ValueError, "cannot be trained in exact arithmetic"),
        (lambda: train(["plain", "plain"]), ValueError, "each named once"),
    ],
)
def test_what_is_no_schedule_is_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()
