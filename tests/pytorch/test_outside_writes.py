"""Weights that something else than the optimizer writes: taken over by `resync`, and told of where seen."""

import copy
import warnings

import pytest

torch = pytest.importorskip("torch")

import mcfsim as mcf  # noqa: E402
from mcfsim.torch import AdamW, OutsideWriteWarning, adopt, step_in_backward  # noqa: E402
from tests.pytorch.steps import assert_same_states, give_gradients, made, parameters  # noqa: E402
from tests.shared.kinds import STORED, feeding  # noqa: E402

SHAPES = ((5, 3), (7,), (), (130,))
#: Of what the state holds a part of the parameter.
BESIDE = [
    name for name in STORED if mcf.STRATEGIES[name].extra or mcf.STRATEGIES[name].parameter.components > 1
]


def write(given, seed=9):
    """Write other numbers of all kinds into parameters, as a swap of averages or a pruning does."""
    with torch.no_grad():
        for p, new in zip(given, parameters(given[0].dtype, seed, SHAPES), strict=True):
            p.copy_(new)


def run(optimizer, given, counts):
    for count in counts:
        give_gradients(given, count)
        optimizer.step()


@pytest.mark.filterwarnings("ignore::mcfsim.torch.OutsideWriteWarning")
@pytest.mark.parametrize(("kind", "strategy"), feeding(STORED))
def test_what_was_written_is_what_the_optimizer_goes_on_with(kind, strategy):
    """As one does that began with these numbers, and has the same moments and counts."""
    ours, given = made(kind, strategy, "bfloat16", shapes=SHAPES)
    run(ours, given, range(4, 7))
    write(given)
    before = copy.deepcopy([ours.state[p] for p in given])
    if strategy in BESIDE:
        undone = [ours.represented(p) for p in given]
    ours.resync()
    for p, state in zip(given, before, strict=True):
        meant = p.double().detach()
        if strategy in ("remainder-8", "remainder-16"):  # beside an infinity there is no remainder
            meant[~p.isfinite()] = torch.nan
        assert torch.equal(ours.represented(p).nan_to_num(7.0), meant.nan_to_num(7.0))
        assert ours.state[p]["step"] == state["step"]
    if strategy in BESIDE:
        found = [ours.represented(p) for p in given]
        assert not all(torch.equal(x, y) for x, y in zip(found, undone, strict=True))
    theirs, same = made(kind, strategy, "bfloat16", shapes=SHAPES)
    write(same)
    for p, q in zip(given, same, strict=True):
        q.grad = torch.zeros_like(q)
        theirs.state[q] = theirs._start(q, theirs._stores_of(q))
        moments = {
            name: x for name, x in ours.state[p].items() if name.partition("_")[0] in ("step", "m", "v")
        }
        theirs.state[q].update(copy.deepcopy(moments))
    assert_same_states(ours, theirs)
    run(ours, given, range(7, 9))
    run(theirs, same, range(7, 9))
    assert_same_states(ours, theirs)


def test_one_parameter_or_some():
    given = parameters(torch.bfloat16, shapes=SHAPES)
    optimizer = AdamW(given, 1e-2, strategy="fp32-master")
    optimizer.resync()  # which has nothing to do yet
    assert not optimizer.state
    run(optimizer, given, range(4, 6))
    write(given)
    before = [optimizer.represented(p) for p in given]
    addresses = [
        x.data_ptr() for p in given for x in optimizer.state[p].values() if isinstance(x, torch.Tensor)
    ]
    with pytest.raises(ValueError, match="no parameter of this optimizer"):
        optimizer.resync(given[0], torch.ones(3))
    assert torch.equal(optimizer.represented(given[0]), before[0])
    optimizer.resync(given[1], given[3])
    changed = [not torch.equal(optimizer.represented(p), x) for p, x in zip(given, before, strict=True)]
    assert changed == [False, True, False, True]
    after = [x.data_ptr() for p in given for x in optimizer.state[p].values() if isinstance(x, torch.Tensor)]
    assert addresses == after


@pytest.mark.parametrize("strategy", STORED)
def test_it_is_told_once_where_it_is_seen(strategy):
    """If the state has a part of the parameter, and never after `resync`."""
    dtype = getattr(torch, mcf.strategy(strategy).parameter.format.name)
    given = parameters(dtype, shapes=SHAPES)
    optimizer = AdamW(given, 1e-2, strategy=strategy)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        run(optimizer, given, range(4, 7))
        for seed in (9, 10):
            write(given, seed)
            optimizer.resync()
            run(optimizer, given, [7])
        assert not told
        for seed in (11, 12):
            write(given, seed)
            run(optimizer, given, [8])
    found = [x for x in told if issubclass(x.category, OutsideWriteWarning)]
    assert len(found) == (strategy in BESIDE)
    assert all("optimizer.resync()" in str(x.message) for x in found)


def test_nobody_is_told_of_what_training_does():
    """Loading states, clipping, copies, other dtypes, steps in the backward pass, adoption."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        given = torch.nn.Linear(3, 2).bfloat16()
        optimizer = AdamW(given.parameters(), 1e-2, strategy="fp32-master")

        def train(model, by):
            for _ in range(2):
                by.zero_grad()
                model(torch.ones(4, 3).bfloat16()).square().sum().backward()
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
            others(torch.ones(4, 3).bfloat16()).square().sum().backward()
        hooks.remove()
        single = torch.nn.Linear(3, 2)
        theirs = torch.optim.AdamW(single.parameters())
        single(torch.ones(4, 3)).sum().backward()
        theirs.step()
        train(single, adopt(theirs, "collage-plus"))
