"""The model with adapters that an experiment trains: gradient, start, and two ways to the same steps."""

import numpy as np
import pytest

import mcfsim as mcf
from experiments import adapters
from experiments.cells import Model


@pytest.fixture
def small(monkeypatch):
    """Make the model small, and its base untrained; return it."""
    model = Model(layers=1, width=16, heads=2, context=8)
    start = model.problem().initial_parameters(0)
    base = {name: mcf.round_to(x, "bfloat16") for name, x in start.items()}
    for name, changed in (("MODEL", model), ("BATCH", 2), ("STEPS", 4), ("WARMUP", 1), ("RECORD_EVERY", 2)):
        monkeypatch.setattr(adapters, name, changed)
    monkeypatch.setattr(adapters, "base", lambda: base)
    return adapters.AdaptedModel()


def test_adapters_change_nothing_at_their_start_and_gradients_are_differences(small):
    start = small.initial_parameters(3)
    merged = small.weights(start)
    assert all(np.array_equal(x, adapters.base()[name]) for name, x in merged.items())
    random = np.random.default_rng(0)
    at = {name: x + 0.05 * random.standard_normal(x.shape) for name, x in start.items()}
    _, gradient = small.loss_and_gradient(at, 1, 0)
    assert gradient.keys() == at.keys()
    for name, x in at.items():
        way = random.standard_normal(x.shape)
        ends = [small.loss_and_gradient({**at, name: x + h * way}, 1, 0)[0] for h in (1e-5, -1e-5)]
        assert np.vdot(gradient[name], way) == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-5, abs=1e-9)


@pytest.mark.slow
def test_all_parts_kept_is_the_training_with_master_weights(small):
    whole = adapters.train("fp32-master", 0.01, 1)
    assert adapters.keep(("gains", "A", "B"), 0.01, 1) == whole["loss"]
    assert adapters.keep((), 0.01, 1) == (plain := adapters.train("plain", 0.01, 1))["loss"] != whole["loss"]
    assert plain["lost"]["A"][0] is None  # nothing is asked where B is zero
    assert plain["lost"]["B"][0] == 0.0


def test_shares_of_parts_are_means_over_what_is_asked():
    """By size and by rate: of two tensors of A one asks for nothing at first."""
    names = ["x.lora_A.weight", "y.lora_A.weight", "gain", "x.lora_B.weight"]
    series = [[np.nan, 0.5], [0.25, 1.0], [np.nan, 1.0], [0.0, 0.0]]
    found = adapters.of_parts(names, series, [1, 3, 2, 1])
    assert found == {"A": [0.25, 0.875], "B": [0.0, 0.0], "gains": [None, 1.0]}
    assert adapters.over_run([None, 1.0], [1, 200], 0.01) == 1.0
    steps, rates = [1, 100, 200], adapters.schedule(0.01)
    weights = np.array([50.0 - 0.5 + 0.5, 99.5, 50.5]) * [rates.rate(step, 200) for step in steps]
    weights[0] = 50.0 * rates.rate(1, 200)
    assert adapters.over_run([0.0, 0.5, 1.0], steps, 0.01) == pytest.approx(
        (0.5 * weights[1] + weights[2]) / weights.sum()
    )
