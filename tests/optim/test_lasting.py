"""Runs that are resumed, and states that are saved: of steps in stages and of weights on a grid."""

from dataclasses import replace

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.models.saving import load_state, save_state
from mcfsim.models.weights import open_tensors
from mcfsim.optim.declaration import optimizers
from mcfsim.optim.memory import read
from mcfsim.training.trainer import Trainer

from .on_grid_reference import placed
from .test_adafactor import DECAYED, numbers


class Folded(mcf.problems.Quadratic):
    """A quadratic whose point is a matrix and a vector."""

    decayed = frozenset({"w"})

    def __init__(self):
        super().__init__(dimension=14, condition_number=10.0)

    def initial_parameters(self, seed):
        return self.folded(super().initial_parameters(seed)["x"])

    def loss_and_gradient(self, parameters, step=0, seed=0):
        whole = np.concatenate([parameters["w"].ravel(), parameters["b"]])
        loss, gradient = super().loss_and_gradient({"x": whole})
        return loss, self.folded(gradient["x"])

    def validation_loss(self, parameters):
        return self.loss_and_gradient(parameters)[0]

    @staticmethod
    def folded(x):
        return {"w": x[:12].reshape(3, 4), "b": x[12:]}


STAGED = ["plain", "collage-plus", "fp8-moments", "exact"]
GRIDS = [
    "dqt-ternary",
    "dqt-int8",
    "bitnet",
    replace(placed("dqt-int4", reach="fixed", start="absmax"), name="fixed"),
]


@pytest.mark.parametrize(
    ("problem", "optimizer", "strategies"),
    [
        (Folded(), "adafactor", STAGED),
        (Folded(), "momentumadafactor", STAGED),
        ("logistic", "adamw", GRIDS),
    ],
    ids=["adafactor", "momentum", "grids"],
)
@pytest.mark.slow
@pytest.mark.sampled(3, each=False)
def test_a_run_that_is_resumed_and_read_back_is_the_same(
    problem, optimizer, strategies, tmp_path, monkeypatch
):
    given = {"schedule": mcf.Schedule(peak=1e-2, warmup=0), "record_every": 2, "truth_sample": 2}
    given |= {"strategies": strategies, "steps": 4, "progress": False}
    whole = mcf.simulate(problem, optimizer, **given)
    kept = {"checkpoint": tmp_path / "run.ckpt", "checkpoint_every": 1}
    step, steps = Trainer.step, []

    def interrupted(self, t, setup):
        steps.append(t)
        if steps.count(3) == 2:
            raise KeyboardInterrupt
        step(self, t, setup)

    monkeypatch.setattr(Trainer, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        mcf.simulate(problem, optimizer, **given, **kept)
    monkeypatch.undo()
    again = mcf.simulate(problem, optimizer, **given, **kept)
    assert again == whole
    again.save(tmp_path / "run.npz")
    assert mcf.Run.load(tmp_path / "run.npz") == whole
    if optimizers()[optimizer].staged:
        series = whole.series
        assert series["plain"]["binary64_gap"].max() < 1e-13
        assert series["plain"]["distance"][-1] > series["collage-plus"]["distance"][-1] > 0
        # Parameter and gradient of two bytes, perhaps m; of v 3 + 4 + 2 numbers for 14 elements.
        moments = 2 * optimizers()[optimizer].keeps("m")
        assert whole.results["plain"]["bytes_per_parameter"] == 4 + moments + 2 * 9 / 14


@pytest.mark.parametrize(
    ("optimizer", "strategy", "packed"),
    [
        ("momentumadafactor", "collage-plus", False),
        ("momentumadafactor", "fp8-moments", True),
        ("adamw", "dqt-int4", False),
        ("adamw", "bitnet", False),
    ],
)
@pytest.mark.slow
def test_a_saved_state_goes_on_to_the_same_bits(optimizer, strategy, packed, tmp_path, assert_same):
    hyper, chosen, path = optimizers()[optimizer](), mcf.strategy(strategy), tmp_path / "state.safetensors"
    first, other = (mcf.Optimizer(hyper, chosen, numbers(x), DECAYED, packed=packed) for x in (0, 7))
    for step in range(2):
        first.step(first.receive(numbers(step)), 2.0**-9)
    save_state(first, path)
    load_state(other, path)
    for one in (first, other):
        one.step(one.receive(numbers(9)), 2.0**-9)
    for mine, others, fmt in zip(first.state, other.state, first.formats, strict=True):
        for x, y in zip(mine, others, strict=True):
            assert_same(read(x, fmt), read(y, fmt))
    if optimizer == "momentumadafactor":
        kept = "w.exp_avg_sq.rows" + ".codes" * packed
        assert {kept, kept.replace("rows", "columns")} < set(open_tensors(path))
