"""Trainings as cells of a sweep: the same run as by itself, kept in a journal, and judged when back."""

import math
from dataclasses import replace

import numpy as np
import pytest

import mcfsim as mcf
from experiments import assignment, embedding_steps, memory_quality, precision_law
from experiments.cells import MEASURES, Cell, Model, sweep_options, train
from mcfsim.optim.strategies import GRID_STRATEGIES, STRATEGIES

pytestmark = pytest.mark.slow

LOW = mcf.get_format("bfloat16")
CELL = Cell(mcf.strategy("plain"), LOW, Model(layers=1, width=8, heads=2, context=8), steps=3)
BAD = replace(CELL, strategy=mcf.strategy("plain", "float8_e4m3fn"), low=mcf.get_format("float8_e4m3fn"))


def test_a_cell_is_the_run_and_a_journal_gives_it_back(tmp_path):
    given = sweep_options("", "x").parse_args(["--workers", "1", "--journal", str(tmp_path / "j")])
    first = train([CELL, BAD], 2, given)
    hyper, schedule = mcf.AdamW(epsilon=1e-6, weight_decay=0.1), mcf.Schedule(CELL.peak, warmup=0, final=0.1)
    run = mcf.simulate(CELL.model.problem(), hyper, "plain", 3, schedule, 1, record_every=1, progress=False)
    assert first[0]["loss"][1] == run.results["plain"]["validation_loss"]
    assert first[0]["edq"][1] == np.mean(run.series["plain"]["normalized_edq"])
    assert all(math.isnan(loss) for loss in first[1]["loss"])  # it diverges, and a journal holds no NaN
    assert train([CELL, BAD], 2, given)[0] == first[0]


def test_whatever_a_result_depends_on_is_in_the_key():
    formats = {"low": mcf.get_format("float16")}, {"strategy": mcf.strategy("kahan")}
    numbers = {"peak": 2e-4}, {"beta2": 0.9}, {"steps": 4}
    others = {"overflow": "saturate"}, {"model": Model(layers=1, width=16, heads=2, context=8)}
    assert CELL.job(1).key == replace(CELL).job(1).key
    keys = {replace(CELL, **change).job(1).key for change in ({}, *formats, *numbers, *others)}
    assert len(keys) == 8


def test_results_of_other_work_are_refused():
    good = CELL(0, 1)
    CELL.check(0, 1, good)
    for bad in (
        None,
        [],
        good | {"more": 1},
        {key: value for key, value in good.items() if key != "lost"},
        good | {"blas": "another"},
        *(good | {measure: [1.0, 2.0]} for measure in MEASURES),
    ):
        with pytest.raises(ValueError, match=r"it has not|it multiplied|has not one"):
            CELL.check(0, 1, bad)


def test_every_strategy_is_tried_in_every_format_once():
    found = [(item.name, str(low)) for item, low in memory_quality.configurations()]
    assert len(set(found)) == len(found)
    assert {name for name, _ in found} == {*STRATEGIES, *GRID_STRATEGIES} - {"exact"}
    assert {low for name, low in found if name in GRID_STRATEGIES} == {"bfloat16"}
    assert ("split-master", "float16") not in found
    assert [low for name, low in found if name == "fp32"] == ["bfloat16"]


@pytest.mark.parametrize("bits", [bits for bits in precision_law.BITS if bits])
def test_weights_are_in_so_many_bits_up_to_the_largest_of_each_matrix(bits):
    fmt, problem = precision_law.format_of(bits), precision_law.RoundedWeights(CELL.model, bits)
    assert fmt.bits == bits
    start = problem.initial_parameters(0)
    start["layer0.mlp.up"] *= np.float32(1e-6)
    start["layer0.mlp.down"] *= 0
    found = problem.rounded(start)
    for name, x in found.items():
        if name not in problem.decayed:
            assert x is start[name]
        elif x.any():
            assert np.unique(x).size <= 2**bits
            assert np.abs(x).max() == pytest.approx(np.abs(start[name]).max(), rel=1e-6)
            assert np.linalg.norm(x - start[name]) < 2.0 ** (3 - bits) * np.linalg.norm(start[name])
    assert not found["layer0.mlp.down"].any()
    given = problem.loss_and_gradient(start, 1, 0)
    plain = CELL.model.problem().loss_and_gradient(found, 1, 0)
    assert given[0] == plain[0]
    np.testing.assert_equal(given[1], plain[1])


def shortened(monkeypatch, module):
    """Make an experiment's training a short one; return the loss that `simulate` has of it."""
    monkeypatch.setattr(module, "MODEL", CELL.model)
    monkeypatch.setattr(module, "STEPS", 4)

    def loss(strategy):
        options = {"low": "float32", "progress": False}
        made = CELL.model.problem(), module.HYPER, strategy, 4, module.SCHEDULE, 1
        run = mcf.simulate(*made, **options)
        return run.results[strategy]["validation_loss"]

    return loss


def test_assigned_tensors_are_trained_as_together_where_they_have_one_strategy(monkeypatch):
    loss = shortened(monkeypatch, assignment)
    names = CELL.model.problem().shapes
    assert assignment.train(dict.fromkeys(names, "fp32"), 1) == loss("fp32")
    halves = {name: ("fp32", "fp32-master")[place % 2] for place, name in enumerate(names)}
    assert assignment.train(halves, 1) != loss("fp32")
    assert 8 < assignment.bytes_of(assignment.by_chance(8.5, 1)) <= 8.5


def test_a_whole_embedding_table_is_trained_as_by_itself(monkeypatch):
    loss = shortened(monkeypatch, embedding_steps)
    assert embedding_steps.train(embedding_steps.WHOLE, 8, 1) == [loss("fp32"), 1.0]
    kept, step = embedding_steps.train("learned steps, at random", 8, 1)
    assert abs(kept - loss("fp32")) < 0.01
    assert step != 1.0
