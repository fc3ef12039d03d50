"""Weights that something else than the optimizer writes: taken over by `resync`, and told of where seen."""

import copy
import warnings

import pytest
import torch

import mcfsim as mcf
from mcfsim.torch import AdamW, OutsideWriteWarning, adopt, step_in_backward
from tests.pytorch import runs
from tests.pytorch.runs import KINDS, assert_same_states, hard_parameters, listed, put, run
from tests.shared.kinds import STORED

SHAPES = ((5, 3), (7,), (), (130,))
#: Of what the state holds a part of the parameter.
BESIDE = [
    name for name in STORED if mcf.STRATEGIES[name].extra or mcf.STRATEGIES[name].parameter.components > 1
]


def made(kind, strategy):
    return KINDS[kind](hard_parameters(runs.dtype_of(strategy), shapes=SHAPES), 1e-2, strategy=strategy)


def write(optimizer, seed=9):
    """Write other numbers of all kinds into parameters, as a swap of averages or a pruning does."""
    put(optimizer, hard_parameters(listed(optimizer)[0].dtype, seed, SHAPES))


@pytest.mark.parametrize(("kind", "strategy"), runs.in_turn(STORED))
def test_what_was_written_is_what_the_optimizer_goes_on_with(kind, strategy):
    """As one does that began with these numbers, and has the same moments and counts.

    It is told of once where it is seen, if the state has a part of the parameter, and never after `resync`.
    """

    def meant():
        return torch.cat([ours.represented(p).flatten().nan_to_num(7.0) for p in listed(ours)])

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        ours, theirs = made(kind, strategy), made(kind, strategy)
        run(ours, range(2))
        write(ours)
        undone = meant()
        ours.resync()
        whole = torch.cat([p.detach().double().flatten() for p in listed(ours)])
        if strategy in ("remainder-8", "remainder-16"):  # beside an infinity there is no remainder
            whole[~whole.isfinite()] = torch.nan
        assert torch.equal(meant(), whole.nan_to_num(7.0))
        assert torch.equal(meant(), undone) != (strategy in BESIDE)
        write(theirs)
        for p, q in zip(listed(ours), listed(theirs), strict=True):
            kept = {name: x for name, x in ours.state[p].items() if name.split("_")[0] in ("step", "m", "v")}
            theirs.state[q] = theirs._start(q, theirs._stores_of(q)) | copy.deepcopy(kept)
        assert_same_states(ours, theirs)
        for optimizer in (ours, theirs):
            run(optimizer, [2])
        assert_same_states(ours, theirs)
        assert not [x for x in told if issubclass(x.category, OutsideWriteWarning)]
        for seed in (11, 12):
            write(ours, seed)
            run(ours, [3])
    told = [str(x.message) for x in told if issubclass(x.category, OutsideWriteWarning)]
    assert len(told) == (strategy in BESIDE)
    assert all("optimizer.resync()" in x for x in told)


def test_one_parameter_or_some():
    optimizer = AdamW(runs.parameters(SHAPES), 1e-2, strategy="fp32-master")
    given = listed(optimizer)
    optimizer.resync()  # which has nothing to do yet
    assert not optimizer.state
    run(optimizer, range(2))
    write(optimizer)

    def meant():
        return [optimizer.represented(p).nan_to_num(7.0) for p in given]

    before, kept = meant(), runs.states(optimizer)
    tensors = [id(x) for p in given for x in optimizer.state[p].values()]
    with pytest.raises(ValueError, match="no parameter of this optimizer"):
        optimizer.resync(given[0], torch.ones(3))
    assert_same_states(optimizer, kept)
    optimizer.resync(given[1], given[3])
    assert [torch.equal(x, y) for x, y in zip(meant(), before, strict=True)] == [True, False, True, False]
    assert [id(x) for p in given for x in optimizer.state[p].values()] == tensors


def test_nobody_is_told_of_what_training_does():
    """Loading states, clipping, copies, other dtypes, steps in the backward pass, adoption."""

    def train(model, by=None):
        for step in range(2):
            runs.backward(model, step)
            if by is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                by.step()
                by.zero_grad()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        given = torch.nn.Linear(3, 2).bfloat16()
        optimizer = AdamW(given.parameters(), 1e-2, strategy="fp32-master")
        train(given, optimizer)
        saved = copy.deepcopy((given.state_dict(), optimizer.state_dict()))
        for order in ((0, 1), (1, 0)):
            train(given, optimizer)
            for which in order:
                (given, optimizer)[which].load_state_dict(saved[which])
        train(given, optimizer)
        others, other = copy.deepcopy((given, optimizer))
        train(others, other)
        step_in_backward(other)
        train(others)
        single = torch.nn.Linear(3, 2)
        theirs = torch.optim.AdamW(single.parameters())
        train(single, theirs)
        train(single, adopt(theirs, "collage-plus"))
