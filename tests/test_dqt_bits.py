"""What is said of weights on grids holds in the committed results, and the cheap part is computed again."""

import numpy as np
import pytest

import mcfsim as mcf
from experiments import common, dqt_bits
from experiments.common import _shorten as shorten
from experiments.common import read_result
from mcfsim.storage.files import write_text

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def result():
    return read_result("dqt_bits")


def test_first_steps_are_computed_again(result):
    names = [f"dqt-{integers}" for integers in ("ternary", "int3", "int8")]
    strategies = [next(item for item in dqt_bits.BITS if item.name == name) for name in names]
    schedule = mcf.Schedule(dqt_bits.RATE, 0, 1.0)
    runs = [
        mcf.simulate("language-model", dqt_bits.HYPER, strategies, 1, schedule, seed, progress=False)
        for seed in dqt_bits.SEEDS
    ]
    for name in names:
        for measure in ("changed", "at_ends", f"changed/{dqt_bits.TENSOR}"):
            again = float(np.mean([run.series[name][measure][0] for run in runs]))
            assert shorten(again) == result["table"][name][measure][0]
    for integers in dqt_bits.INTEGERS:
        again = float(np.mean([dqt_bits.asked(integers, seed) for seed in dqt_bits.SEEDS]))
        assert shorten(again) == result["asked"][integers]


def test_to_nearest_few_bits_freeze_and_at_random_they_learn(result):
    table = result["table"]
    for integers in ("ternary", "int2", "int3", "int4"):
        still, moving = table[f"dqt-{integers}, {dqt_bits.NEAREST}"], table[f"dqt-{integers}"]
        assert still["changed"][0] == 0.0
        assert max(still["changed"]) <= (1e-3 if integers == "int4" else 0)
        assert min(moving["changed"]) > 0
        assert moving["validation_loss"] < still["validation_loss"] - 0.5


def test_the_grid_and_not_the_rounding_costs_eight_bits_their_loss(result):
    """What the page says: above BitNet's, and below it from a grid up to the largest weight."""
    table = result["table"]
    loss = {name: row["validation_loss"] for name, row in table.items()}
    assert loss["dqt-int8"] > 1.05 * loss[dqt_bits.BITNET]
    assert loss[f"dqt-int8, {dqt_bits.WIDE}"] < loss[dqt_bits.BITNET]
    ternary = [table[f"dqt-int{bits}"]["ternary_validation_loss"] for bits in range(3, 9)]
    assert max(ternary) < loss["dqt-ternary"]
    costs = [found - loss[f"dqt-int{bits}"] for bits, found in enumerate(ternary, 3)]
    assert costs[0] == max(costs) > 2 * min(costs)
    assert table["dqt-int8"]["grid_size"][-1] <= 1 < table[dqt_bits.BITNET]["grid_size"][-1]


def test_eight_bits_come_near_bitnet_from_a_grid_that_is_wide_enough():
    found = {name: row["above_bitnet"] for name, row in read_result("dqt_long")["table"].items()}
    assert found["dqt-int8"] > 0.5
    for wide in (dqt_bits.WIDE, "max-abs scale", "wide start, max-abs scale"):
        assert found[f"dqt-int8, {wide}"] < 0.05
    for other in ("int8 activations", "bf16 states", "fp8 states", "fixed scale", dqt_bits.ADAFACTOR):
        assert abs(found[f"dqt-int8, {other}"] - found["dqt-int8"]) < 0.01


def test_the_share_that_changes_is_the_expected_one(result):
    """In a tensor whose gradients are far above epsilon; where they are not, less is asked."""
    for integers in dqt_bits.INTEGERS:
        found = result["table"][f"dqt-{integers}"][f"changed/{dqt_bits.TENSOR}"][0]
        assert abs(found / dqt_bits.expected(integers, result["asked"][integers]) - 1) < 0.1
        draws = np.random.default_rng(0).standard_normal(10**6)
        made = mcf.Optimizer(mcf.SGD(), mcf.strategy(f"dqt-{integers}"), {"w": draws})
        weights, slices = made.state.parameter[0], slice(0, draws.size)
        share = made.grid.measures(weights, weights, slices)["at_ends"]
        assert abs(share - dqt_bits.at_ends(integers)) < 0.003


def test_the_share_that_is_clipped_at_the_start_follows_the_formula(result):
    for integers in dqt_bits.INTEGERS:
        found = result["table"][f"dqt-{integers}"]["clipped_at_start"]
        assert abs(found - dqt_bits.clipped(integers)) < 0.005  # gains of 1 are not normal


def test_a_sweep_goes_on_where_it_was(monkeypatch, tmp_path):
    monkeypatch.setattr(common, "ROOT", tmp_path)
    monkeypatch.setattr(common, "WORKERS", 1)
    paths = [tmp_path / name for name in "ab"]
    for done in ([], [0], [0, 1]):
        for path in paths:
            path.unlink(missing_ok=True)
        jobs = [(str(paths[i]), "made") for i in (*done, *{0, 1} - set(done))][: len(done) + 1]
        assert common.resumed("small", write_text, jobs) == [None] * len(jobs)
        written = [i for i, path in enumerate(paths) if path.exists()]
        assert written == ([len(done)] if len(done) < 2 else [])
