"""What is seen of a run: the measures of the simulated one, told to whoever asks."""

import csv
import math
import re
import resource

import pytest
import torch

import mcfsim as mcf
from mcfsim import metrics
from mcfsim.torch import AdamW, Seen, watch, watcher
from mcfsim.torch import step as steps
from mcfsim.training.tally import Tally
from tests.pytorch.runs import assert_same_states, dtype_of, give, parameters, run
from tests.shared.kinds import STORED

SHAPES = ((40, 7), (300,), (5,))


def arrays(tensors):
    return {str(i): x.detach().float().numpy() for i, x in enumerate(tensors)}


@pytest.fixture(params=["host", "device"])
def place(request, monkeypatch):
    """Let a step be made as one of the CPU's tensors, or as one of a GPU's by PyTorch's operations."""
    if request.param == "device":
        monkeypatch.setattr(steps, "_is_host", lambda device: False)
    return request.param


@pytest.mark.parametrize("strategy", STORED)
@pytest.mark.sampled(8, each=False)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.slow
def test_the_measures_are_those_of_the_simulated_optimizer(strategy, place, monkeypatch):
    monkeypatch.setattr(watcher, "AT_ONCE", 250)  # so that they are joined
    chosen = mcf.strategy(strategy)
    given = parameters(SHAPES, dtype_of(strategy))
    reference = mcf.Optimizer(
        mcf.AdamW(weight_decay=0.01), chosen, arrays(given), set(map(str, range(len(given))))
    )
    optimizer = AdamW(given, 1e-3, strategy=strategy)
    seen = watch(optimizer, 2).seen
    for step in range(6):
        give(given, 2 * step)
        optimizer.step()
        before = reference.represented()
        update = reference.step(reference.receive(arrays(p.grad for p in given)), 1e-3)
        after = reference.represented()
        if step % 2:
            effective = metrics.effective_update(before, after)
            found = seen[-1]
            assert (found.step, found.group) == (step + 1, 0)
            assert found.lost == metrics.lost_fraction(update, effective)
            assert found.edq == pytest.approx(metrics.normalized_edq(update, effective), rel=1e-12)
    assert len(seen) == 3


@pytest.mark.parametrize("strategy", ["collage-plus", "stochastic", "split-master", "fp8-moments"])
@pytest.mark.sampled(2)
@pytest.mark.slow
def test_looking_changes_nothing(strategy, place):
    runs = []
    for looked_at in (False, True):
        given = parameters(SHAPES)
        runs.append(AdamW([{"params": given[:1]}, {"params": given[1:], "lr": 0.1}], strategy=strategy))
        if looked_at:
            watch(runs[-1], 1)
        run(runs[-1], range(2))
    assert_same_states(*runs)


def test_what_is_seen_is_told(tmp_path):
    """To a function, a file, a writer and a list, until it is removed; of groups in their steps."""
    given, told, scalars = parameters(SHAPES), [], []

    class Writer:
        def add_scalar(self, *given):
            scalars.append(given)

    optimizer = AdamW([{"params": given[:1]}, {"params": given[1:]}], 1e-3, strategy="plain")
    path = tmp_path / "seen.csv"
    watches = [watch(optimizer, 3, to) for to in (told.append, path, Writer(), None)]
    for step in range(7):
        give(given, 2 * step, (1, 2) if step == 6 else ())
        optimizer.step()
    give(given, 14)
    optimizer.step()
    seen = watches[0].seen
    assert seen == told == watches[3].seen
    assert [(x.step, x.group) for x in seen] == [(s, group) for s in (3, 6) for group in (0, 1, None)]
    assert 0 < min(x.lost for x in seen[:2]) < seen[2].lost < max(x.lost for x in seen[:2]) < 1
    with path.open(newline="") as file:
        head, *lines = csv.reader(file)
    assert tuple(head) == Seen._fields
    assert seen == [Seen(int(a), int(b) if b else None, float(c), float(d)) for a, b, c, d in lines]
    names = [f"{name}/{of}" for of in ("group 0", "group 1", "all") for name in ("lost", "edq")]
    expected = [x for s in seen for x in (s.lost, s.edq)]
    assert scalars == [
        (f"mcfsim/{name}", x, step)
        for name, x, step in zip(names * 2, expected, [3] * 6 + [6] * 6, strict=True)
    ]
    for x in watches * 2:  # twice does no harm
        x.remove()
    run(optimizer, [16])
    assert len(told) == 6
    again = watch(optimizer, 1, str(path))
    run(optimizer, [18])
    assert len(path.read_text().splitlines()) == 1 + 6 + 2
    assert [(x.step, x.group) for x in again.seen] == [(10, 0), (9, 1)]


def test_numbers_that_are_not_finite_are_not_averaged_away():
    given = parameters(SHAPES)
    optimizer = AdamW([{"params": given[:1]}, {"params": given[1:]}])
    seen = watch(optimizer, 1).seen
    give(given, 0)
    given[0].grad[3, 3] = math.inf
    optimizer.step()
    assert [math.isnan(x) for x in (seen[0].lost, seen[0].edq, seen[1].lost, seen[2].lost)] == [1, 1, 0, 1]
    nothing = Tally()
    nothing.add([], [[]], [[]])
    assert math.isnan(nothing.lost)
    assert math.isnan(nothing.normalized_edq)


def test_what_cannot_be_watched_or_told_is_refused(tmp_path):
    given = parameters(SHAPES)
    optimizer = AdamW(given)
    with pytest.raises(TypeError, match=r"only optimizers of mcfsim\.torch are watched, not SGD"):
        watch(torch.optim.SGD(given))
    bad = [*((x, None, "every") for x in (0, -3, 1.5, "x")), (1, 5, "to must be a function")]
    for every, to, message in (*bad, (1, tmp_path / "nowhere" / "seen.csv", "nowhere")):
        with pytest.raises((TypeError, ValueError, OSError), match=message):
            watch(optimizer, every, to)
    assert not optimizer.watches


def test_a_disk_that_becomes_full_is_told_by_name(tmp_path):
    path, before = tmp_path / "seen.csv", resource.getrlimit(resource.RLIMIT_FSIZE)
    optimizer = AdamW(parameters(SHAPES))
    watch(optimizer, 1, path)
    give(optimizer.param_groups[0]["params"], 0)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size, before[1]))
    try:
        with pytest.raises(OSError, match=re.escape(f"cannot write {path}: ")):
            optimizer.step()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
