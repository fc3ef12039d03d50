"""Trainings whose steps reduce the gradients of several batches to one."""

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.training.gradients import ComputedGradients, Reduction
from tests.training.problems import Folded

LOGISTIC = mcf.get_problem("logistic")
MANY = Reduction(3, "ring", "bfloat16", divide="after", out_format="float16")


@pytest.mark.slow
def test_a_gradient_is_that_of_its_batches():
    """Of batches 4, 5 and 6 at the second step of three; its loss is their mean."""
    source = ComputedGradients.of("language-model", "3,binomial,bfloat16,before")
    weights = source.start(0)
    loss, gradient = source.gradient(weights, 2, 0)
    parts = [source.problem.loss_and_gradient(weights, batch, 0) for batch in (4, 5, 6)]
    assert loss == sum(found for found, _ in parts) / 3
    for name, x in gradient.items():
        each = [found[name] for _, found in parts]
        expected = mcf.reduce(each, "binomial", "bfloat16", divide="before")
        np.testing.assert_array_equal(x, expected)
        assert (x != np.mean(each, axis=0)).any()


def test_one_part_in_the_problem_s_format_is_the_problem():
    given = {"strategies": ["plain"], "steps": 3, "record_every": 1}
    alone, reduced = (
        mcf.simulate(LOGISTIC, reduction=x, **given) for x in (None, Reduction(1, "sequential", "float64"))
    )
    for name, series in alone.series["plain"].items():
        np.testing.assert_array_equal(series, reduced.series["plain"][name])
    assert "reduction" not in alone.settings


def test_exact_gradients_are_added_exactly():
    run = mcf.simulate(Folded(), strategies=["plain", "exact"], steps=2, reduction=Reduction(2))
    assert np.isfinite(run.series["plain"]["distance"]).all()
    for divide, total in (("before", 2.0), ("none", 6.0)):
        parts = [np.array([x], object) for x in (1.0, 2.0, 3.0)]
        assert Reduction(3, divide=divide)(parts) == [total]


@pytest.mark.slow
def test_settings_and_checkpoints_tell_the_reduction(tmp_path):
    given = {"strategies": ["plain"], "steps": 4}
    run = mcf.simulate(LOGISTIC, reduction=MANY, checkpoint=tmp_path / "c", **given)
    assert run.settings["reduction"] == {
        "parts": 3, "order": "ring", "format": "bfloat16", "rounding": "nearest_even", "divide": "after",
        "out_format": "float16",
    }  # fmt: skip
    again = mcf.simulate(LOGISTIC, reduction=MANY, checkpoint=tmp_path / "c", **given)
    np.testing.assert_array_equal(run.series["plain"]["loss"], again.series["plain"]["loss"])
    with pytest.raises(ValueError, match="reduction"):
        mcf.simulate(LOGISTIC, reduction="2,ring,bfloat16", checkpoint=tmp_path / "c", **given)


@pytest.mark.parametrize("name", ["", "own", "float32"])
def test_an_own_format_is_itself_whatever_its_name(name, tmp_path):
    own = mcf.Format(name, precision=3, emin=-14, emax=15)
    reduction, parts = Reduction(2, format=own, out_format=own), [np.float64([1.0]), np.float64([1.25])]
    assert reduction(parts) == mcf.reduce(parts, format=own, divide="before", out_format=own) != [1.125]
    run = mcf.simulate(LOGISTIC, "sgd", "plain", 1, mcf.Schedule(0.5, warmup=0), low=own, reduction=reduction)
    assert run.settings["reduction"]["format"] == run.settings["low"]
    run.save(tmp_path / "run.npz")
    assert mcf.Run.load(tmp_path / "run.npz") == run
    assert Reduction(2, format=mcf.get_format("bf16")) == Reduction(2, format="bfloat16")


def test_a_text_is_the_reduction_that_it_says():
    assert Reduction.of("3, ring,bf16,after,float16") == MANY
    assert Reduction.of("4") == Reduction(4)
    assert Reduction.of(MANY) is MANY
    assert Reduction.of(None) is None
    assert Reduction.of("1000000000").parts == 10**9  # it is not tried with so many


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        (lambda: Reduction.of("ring"), ValueError, "the number of parts, then order, format, divide"),
        (lambda: Reduction.of("2,ring,bf16,after,fp16,6"), ValueError, "the number of parts, then order"),
        (lambda: Reduction.of("2,rnig"), ValueError, "rnig"),
        (lambda: Reduction.of("2,ring,bf17"), ValueError, "bf17"),
        (lambda: Reduction.of(2), TypeError, "a Reduction or a text like '8,ring,bfloat16', not 2"),
        (lambda: Reduction(0), ValueError, "parts"),
        (lambda: Reduction(2.5), TypeError, "parts"),
        (lambda: Reduction(2, rounding="stochastic"), ValueError, "not rounded at random"),
        (lambda: mcf.simulate(LOGISTIC, reduction="x"), ValueError, "a reduction in text"),
        (lambda: Reduction(2)([]), ValueError, "a reduction of 2 parts was given 0"),
        (lambda: Reduction(2)([np.ones(2)] * 3), ValueError, "a reduction of 2 parts was given 3"),
    ],
)
def test_what_is_no_reduction_is_refused(given, error, text):
    with pytest.raises(error, match=text):
        given()
