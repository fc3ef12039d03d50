"""What is said of weights on grids holds in the committed results, and the cheap part is computed again."""

import numpy as np
import pytest

import mcfsim as mcf
from experiments import common, dqt_bits, dqt_tensors, paired
from experiments.common import _shorten as shorten
from experiments.common import read_result
from mcfsim.problems import LanguageModel
from mcfsim.storage.files import write_text

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def result():
    return read_result("dqt_bits")


DEAR = [pytest.param(name, marks=pytest.mark.exhaustive) for name in ("int3", "int8")]


@pytest.mark.parametrize("integers", ["ternary", *DEAR])
def test_first_steps_are_computed_again(integers, result):
    name = f"dqt-{integers}"
    strategy = next(item for item in dqt_bits.BITS if item.name == name)
    schedule = mcf.Schedule(dqt_bits.RATE, 0, 1.0)
    runs = [
        mcf.simulate("language-model", dqt_bits.HYPER, [strategy], 1, schedule, seed, progress=False)
        for seed in dqt_bits.SEEDS
    ]
    for measure in ("changed", "at_ends", f"changed/{dqt_bits.TENSOR}"):
        again = float(np.mean([run.series[name][measure][0] for run in runs]))
        assert shorten(again) == result["table"][name][measure][0]


def test_to_nearest_few_bits_freeze_and_at_random_they_learn(result):
    table = result["table"]
    for integers in ("ternary", "int2", "int3", "int4"):
        still, moving = table[f"dqt-{integers}, {dqt_bits.NEAREST}"], table[f"dqt-{integers}"]
        assert still["changed"][0] == 0.0
        assert max(still["changed"]) <= (1e-3 if integers == "int4" else 0)
        assert min(moving["changed"]) > 0
        assert moving["validation_loss"] < still["validation_loss"] - 0.5


def test_with_a_tied_embedding_on_it_the_grid_and_not_the_rounding_costs_eight_bits_their_loss(result):
    """What the page says: above BitNet's, and below it from a grid up to the largest weight."""
    table = result["table"]
    loss = {name: row["validation_loss"] for name, row in table.items()}
    assert loss["dqt-int8"] > 1.05 * loss[dqt_bits.BITNET]
    assert loss[f"dqt-int8, {dqt_bits.WIDE}"] < loss[dqt_bits.BITNET]
    ternary = [table[f"dqt-int{bits}"]["ternary_validation_loss"] for bits in range(3, 9)]
    assert max(ternary[1:]) < loss["dqt-ternary"] - 5 * table["dqt-ternary"]["spread"]
    costs = [found - loss[f"dqt-int{bits}"] for bits, found in enumerate(ternary, 3)]
    assert costs[0] == max(costs) > 2 * min(costs)
    assert table["dqt-int8"]["grid_size"][-1] <= 1 < table[dqt_bits.BITNET]["grid_size"][-1]


def test_it_is_the_embedding_that_costs_eight_bits_their_loss():
    """Taken off the grid alone it takes the gap away, and put on it alone it brings nearly all of it."""
    found = {shape: dqt_tensors.above_bitnet(row) for shape, row in dqt_tensors.losses().items()}
    steps, short = dqt_bits.LONG, dqt_tensors.SHORT
    long = {choice: found[choice, 64, steps] for choice in dqt_tensors.CHOICES}
    assert min(long["all"]) > 0.65
    assert min(long["the embedding"]) > 0.6
    assert max(long["all but the embedding"]) < 0.05
    assert max(long[dqt_tensors.MATRICES]) < 0.03
    assert paired.apart(long[dqt_tensors.MATRICES])
    for width in dqt_tensors.WIDTHS:
        assert not paired.apart(found[dqt_tensors.MATRICES, width, short])
    assert max(found["all", 256, short]) < 0.12 < 0.28 < min(found["all", 64, short])


@pytest.mark.costly("a training in miniature")
def test_all_tensors_on_grids_one_by_one_are_what_simulate_trains():
    """The loss of a sweep of tensors is the one that `dqt_long` and `dqt_bits` were trained to."""
    table = read_result("dqt_long")["table"]
    for strategy, losses in dqt_tensors.losses()["all", 64, dqt_bits.LONG].items():
        assert abs(np.mean(losses) - table[strategy]["validation_loss"]) < 1e-5  # each has six digits
    run = mcf.simulate(
        "language-model", dqt_bits.HYPER, "dqt-int8", 3, dqt_tensors.SCHEDULE, 0, progress=False
    )
    assert dqt_tensors.loss("dqt-int8", "all", 64, 3, 0) == run.results["dqt-int8"]["validation_loss"]


@pytest.mark.parametrize("width", dqt_tensors.WIDTHS)
def test_logits_of_a_tied_embedding_that_cannot_grow_are_bounded(width):
    """By the width times the mean magnitude of the start, whatever the stream; and the loss from below."""
    problem = LanguageModel(width=width)
    weights = problem.initial_parameters(0)
    reach = float(np.abs(weights["embedding"]).mean())
    random = np.random.default_rng(width)
    tokens = random.integers(0, 256, (2, 8), dtype=np.uint8)
    worst = 0.0
    for scale in (1.0, 100.0):
        wild = {
            name: random.standard_normal(x.shape).astype(np.float32) * scale for name, x in weights.items()
        }
        wild["embedding"] = np.float32(reach) * random.choice([-1, 1], weights["embedding"].shape).astype(
            np.float32
        )
        wild["gain"] = np.ones(width, np.float32)
        worst = max(worst, float(np.abs(problem.logits(wild, tokens)).max()))
    assert worst <= width * reach
    bound = width * reach * (128 / 127) ** 2
    logits = np.full(256, -bound)
    logits[0] = bound
    assert dqt_tensors.least_loss(width) == pytest.approx(np.log(np.exp(logits - bound).sum()), rel=1e-12)
    for (choice, size, _), found in dqt_tensors.losses().items():
        if (choice, size) == ("all", width):
            assert min(found["dqt-int8"]) > dqt_tensors.least_loss(width)
    if width == 64:  # the bound alone is above what BitNet loses
        assert dqt_tensors.least_loss(64) > max(dqt_tensors.losses()["all", 64, dqt_bits.LONG]["bitnet"])


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
        again = float(np.mean([dqt_bits.asked(integers, seed) for seed in dqt_bits.SEEDS]))
        assert shorten(again) == result["asked"][integers]
        found = result["table"][f"dqt-{integers}"][f"changed/{dqt_bits.TENSOR}"][0]
        assert abs(found / dqt_bits.expected(integers, result["asked"][integers]) - 1) < 0.1
        draws = np.random.default_rng(0).standard_normal(3 * 10**5)
        made = mcf.Optimizer(mcf.SGD(), mcf.strategy(f"dqt-{integers}"), {"w": draws})
        weights, slices = made.state.parameter[0], slice(0, draws.size)
        share = made.grid.measures(weights, weights, slices)["at_ends"]
        assert abs(share - dqt_bits.at_ends(integers)) < 0.003
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
