"""Weights that something else than the optimizer writes: taken over by `resync`, and told of where seen."""

import copy
import warnings

import pytest

torch = pytest.importorskip("torch")

import mcfsim as mcf  # noqa: E402
from mcfsim.torch import AdamW, OutsideWriteWarning, adopt, step_in_backward  # noqa: E402
from tests.pytorch import steps  # noqa: E402
from tests.pytorch.runs import (  # noqa: E402
    KINDS,
    assert_same_states,
    dtype_of,
    in_turn,
    listed,
    parameters,
    run,
    states,
)  # fmt: skip
from tests.shared.kinds import STORED  # noqa: E402

SHAPES = ((5, 3), (7,), (), (130,))
#: Of what the state holds a part of the parameter.
BESIDE = [
    name for name in STORED if mcf.STRATEGIES[name].extra or mcf.STRATEGIES[name].parameter.components > 1
]


def made(kind, strategy):
    return KINDS[kind](steps.parameters(dtype_of(strategy), shapes=SHAPES), 1e-2, strategy=strategy)


def write(optimizer, seed=9):
    """Write other numbers of all kinds into parameters, as a swap of averages or a pruning does."""
    given = listed(optimizer)
    with torch.no_grad():
        for p, new in zip(given, steps.parameters(given[0].dtype, seed, SHAPES), strict=True):
            p.copy_(new)


@pytest.mark.parametrize(("kind", "strategy"), in_turn(STORED))
def test_what_was_written_is_what_the_optimizer_goes_on_with(kind, strategy):
    """As one does that began with these numbers, and has the same moments and counts.

    It is told of once where it is seen, if the state has a part of the parameter, and never after `resync`.
    """
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        ours = made(kind, strategy)
        run(ours, range(2))
        write(ours)
        given, undone = listed(ours), [ours.represented(p).nan_to_num(7.0) for p in listed(ours)]
        ours.resync()
        found = [ours.represented(p).nan_to_num(7.0) for p in given]
        for p, x in zip(given, found, strict=True):
            meant = p.double().detach()
            if strategy in ("remainder-8", "remainder-16"):  # beside an infinity there is no remainder
                meant[~p.isfinite()] = torch.nan
            assert torch.equal(x, meant.nan_to_num(7.0))
            assert ours.state[p]["step"] == 2
        same = [torch.equal(x, y) for x, y in zip(found, undone, strict=True)]
        assert not all(same) if strategy in BESIDE else all(same)
        theirs = made(kind, strategy)
        write(theirs)
        for p, q in zip(given, listed(theirs), strict=True):
            theirs.state[q] = theirs._start(q, theirs._stores_of(q))
            kept = {
                name: x for name, x in ours.state[p].items() if name.partition("_")[0] in ("step", "m", "v")
            }
            theirs.state[q].update(copy.deepcopy(kept))
        assert_same_states(ours, theirs)
        run(ours, [2])
        run(theirs, [2])
        assert_same_states(ours, theirs)
        assert not [x for x in told if issubclass(x.category, OutsideWriteWarning)]
        for seed in (11, 12):
            write(ours, seed)
            run(ours, [3])
    told = [x for x in told if issubclass(x.category, OutsideWriteWarning)]
    assert len(told) == (strategy in BESIDE)
    assert all("optimizer.resync()" in str(x.message) for x in told)


def test_one_parameter_or_some():
    optimizer = AdamW(parameters(SHAPES), 1e-2, strategy="fp32-master")
    given = listed(optimizer)
    optimizer.resync()  # which has nothing to do yet
    assert not optimizer.state
    run(optimizer, range(2))
    write(optimizer)

    def meant():
        return [optimizer.represented(p).nan_to_num(7.0) for p in given]

    def addresses():
        tensors = (x for p in given for x in optimizer.state[p].values() if isinstance(x, torch.Tensor))
        return [x.data_ptr() for x in tensors]

    before, there, kept = meant(), addresses(), states(optimizer)
    with pytest.raises(ValueError, match="no parameter of this optimizer"):
        optimizer.resync(given[0], torch.ones(3))
    assert_same_states(optimizer, kept)
    optimizer.resync(given[1], given[3])
    changed = [not torch.equal(x, y) for x, y in zip(meant(), before, strict=True)]
    assert changed == [False, True, False, True]
    assert addresses() == there


def test_nobody_is_told_of_what_training_does():
    """Loading states, clipping, copies, other dtypes, steps in the backward pass, adoption."""
    x = torch.ones(4, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        given = torch.nn.Linear(3, 2).bfloat16()
        optimizer = AdamW(given.parameters(), 1e-2, strategy="fp32-master")

        def train(model, by):
            for _ in range(2):
                by.zero_grad()
                model(x.bfloat16()).square().sum().backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                by.step()

        train(given, optimizer)
        saved = copy.deepcopy((given.state_dict(), optimizer.state_dict()))
        train(given, optimizer)
        for order in ((0, 1), (1, 0)):
            for which in order:
                (given, optimizer)[which].load_state_dict(saved[which])
            train(given, optimizer)
        others, other = copy.deepcopy((given, optimizer))
        train(others, other)
        other.zero_grad()
        hooks = step_in_backward(other)
        for _ in range(2):
            others(x.bfloat16()).square().sum().backward()
        hooks.remove()
        single = torch.nn.Linear(3, 2)
        theirs = torch.optim.AdamW(single.parameters())
        single(x).sum().backward()
        theirs.step()
        train(single, adopt(theirs, "collage-plus"))
