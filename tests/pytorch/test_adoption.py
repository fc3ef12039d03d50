"""A run of torch's AdamW goes on under a strategy, and comes back, and loses no more than formats must."""

from fractions import Fraction

import pytest
import torch
from torch.optim.lr_scheduler import OneCycleLR, StepLR

import mcfsim as mcf
from mcfsim.optim.state import remaining
from mcfsim.oracle import round_fraction
from mcfsim.torch import TorchAdamW, adopt, release
from tests.pytorch.runs import RightRoots, assert_same_states, backward, dtype_of, fused, net, states
from tests.shared.kinds import STORED

OPTIONS = {"foreach": False, "weight_decay": 0.1}


def train(given, optimizer, steps, scheduler=None):
    for step in steps:
        optimizer.zero_grad()
        backward(given, step)
        optimizer.step()
        if scheduler is not None:
            scheduler.step()


def begun(steps=5, dtype=torch.float32):
    given = net(6, 40, 3, dtype=dtype)
    weights, biases = ([p for p in given.parameters() if p.ndim == n] for n in (2, 1))
    groups = [{"params": weights}, {"params": biases, "weight_decay": 0.0, "lr": 3e-3}]
    optimizer = torch.optim.AdamW(groups, 1e-2, (0.8, 0.99), 1e-6, **OPTIONS)
    train(given, optimizer, range(steps))
    return given, optimizer


def state_of(given, optimizer):
    return {
        name: {"parameter": p.detach().clone(), **{k: x.clone() for k, x in optimizer.state[p].items()}}
        for name, p in given.named_parameters()
    }


def nearest(x, fmt, count):
    """Return by fractions the sum of so many values of a format, each the rest, rounded: what they hold."""
    found = []
    for number in x.double().flatten().tolist():
        total = Fraction(0)
        for _ in range(count):
            total += Fraction(round_fraction(Fraction(number) - total, fmt))
        found.append(float(total))
    return torch.tensor(found, dtype=torch.float64).reshape(x.shape)


def moment(state, name, count):
    return sum(state[f"{name}_{i}" if i else name].double() for i in reversed(range(count)))


@pytest.mark.usefixtures("few_steps")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("strategy", STORED)
@pytest.mark.sampled(13, each=False)
def test_what_the_formats_can_hold_is_kept(strategy, dtype):
    """Parameters that have the dtype of the strategy stay where they lie."""
    chosen = mcf.strategy(strategy)
    fmt = chosen.parameter.format
    given, theirs = begun(dtype=dtype)
    before, parameters = state_of(given, theirs), list(given.parameters())
    places = [p.data_ptr() for p in parameters]
    ours = adopt(theirs, strategy)
    assert (places == [p.data_ptr() for p in parameters]) == (dtype == dtype_of(strategy))
    assert all(p is q for p, q in zip(parameters, given.parameters(), strict=True))
    assert not theirs.state
    kept = chosen.extra if chosen.addition == "master" else chosen.parameter
    count = 2 if strategy == "kahan" else kept.components
    for name, p in given.named_parameters():
        old, state = before[name], ours.state[p]
        assert (p.dtype, p.grad, state["step"]) == (dtype_of(strategy), None, 5)
        expected = nearest(old["parameter"], kept.format, count)
        if kept.remainder:
            low, master = (x.float().flatten().numpy() for x in (nearest(expected, fmt, 1), expected))
            left = remaining(mcf.arithmetic("float32"), fmt, kept.remainder, master, low)
            expected = torch.from_numpy(left).reshape(expected.shape).double()
        assert torch.equal(ours.represented(p), expected)
        if strategy == "split-master":  # ties away from zero; none of these numbers is one
            assert torch.equal(p.double(), nearest(old["parameter"], fmt, 1))
        for mine, name_there in (("m", "exp_avg"), ("v", "exp_avg_sq")):
            stored = getattr(chosen, mine)
            if stored.scaled is None:
                whole = nearest(old[name_there], stored.format, stored.components)
                assert torch.equal(moment(state, mine, stored.components), whole)
    assert [group["lr"] for group in ours.param_groups] == [1e-2, 3e-3]
    assert [group["weight_decay"] for group in ours.param_groups] == [0.1, 0.0]
    assert ours.param_groups[0]["betas"] == (0.8, 0.99)
    train(given, ours, range(5, 7))
    represented = {name: ours.represented(p) for name, p in given.named_parameters()}
    back = release(ours)
    assert type(back) is torch.optim.AdamW
    assert all(p is q for p, q in zip(parameters, given.parameters(), strict=True))
    for name, p in given.named_parameters():
        assert p.dtype == back.state[p]["exp_avg"].dtype == torch.float32
        assert torch.equal(p, represented[name].float())
        assert back.state[p]["step"] == 7
    train(given, back, [7])


def test_nothing_is_lost_on_the_way_there_and_back():
    """Schedulers, of rates and betas, go on, too."""
    (given, theirs), (other, kept) = begun(0), begun(0)
    scheduler, expected = (OneCycleLR(x, max_lr=0.1, total_steps=20) for x in (theirs, kept))
    train(given, theirs, range(5), scheduler)
    train(other, kept, range(5), expected)
    scheduler.optimizer = back = release(adopt(theirs, "fp32"))
    assert_same_states(back, kept)
    for group in back.param_groups:
        group["foreach"] = False
    train(given, back, range(5, 15), scheduler)
    train(other, kept, range(5, 15), expected)
    assert_same_states(back, kept)
    for own, their in zip(back.param_groups, kept.param_groups, strict=True):
        assert all(own[name] == their[name] for name in ("lr", "betas", "weight_decay"))


@fused
@pytest.mark.parametrize("strategy", ["fp32", "plain"])
@pytest.mark.sampled(2, each=False)
@pytest.mark.slow
def test_steps_of_both_are_those_of_either(strategy):
    """Some by torch, some here, some by torch again: the bits of all of them here, or there."""
    dtype = torch.float32 if strategy == "fp32" else torch.bfloat16
    (given, optimizer), (mine, ours), (theirs, torchs) = (begun(0, dtype) for _ in range(3))
    with RightRoots():
        train(given, optimizer, range(10))
        optimizer = adopt(optimizer, strategy, kind=TorchAdamW)
        train(given, optimizer, range(10, 20))
        optimizer = release(optimizer, dtype)
        for group in optimizer.param_groups:
            group["foreach"] = False
        train(given, optimizer, range(20, 30))
        train(mine, adopt(ours, strategy, kind=TorchAdamW), range(30))
        train(theirs, torchs, range(30))
    assert_same_states(optimizer, torchs)
    assert all(map(torch.equal, mine.parameters(), theirs.parameters()))


def test_a_run_that_has_not_begun():
    """Numbers that are not finite stay what they are."""
    given, theirs = begun(0)
    with torch.no_grad():
        given[0].weight[0, :2] = torch.tensor([float("inf"), float("nan")])
    before = {name: p.detach().clone() for name, p in given.named_parameters()}
    ours = adopt(theirs, "collage-plus")
    assert str(ours.represented(given[0].weight)[0, :2].tolist()) == "[inf, nan]"
    for name, p in given.named_parameters():
        assert ours.state[p]["step"] == 0
        finite = before[name].isfinite()
        held = nearest(before[name][finite], mcf.get_format("bfloat16"), 2)
        assert torch.equal(ours.represented(p)[finite], held)
    train(given, ours, range(2))
    assert {state["step"] for state in ours.state.values()} == {2}


@pytest.mark.parametrize("strategy", ["fp32", "kahan", "fp8-moments"])
def test_a_parameter_that_lies_otherwise_goes_on_alike(strategy):
    """Columns of one may lie together in memory, and those of its moments, as PyTorch makes them."""
    start, found = torch.randn(4, 200, generator=torch.Generator().manual_seed(0)), []
    for given in (start.clone(), start.t().contiguous().t()):
        p = torch.nn.Parameter(given)
        optimizer = torch.optim.AdamW([p], 1e-2, foreach=False)
        for step in range(3):
            if step == 1:
                optimizer = adopt(optimizer, strategy)
            p.grad = (start * (step + 1)).to(p.dtype)
            optimizer.step()
        found.append(optimizer.represented(p))
    assert torch.equal(*found)


def test_a_run_that_maximises_is_taken_over_and_given_back():
    """So are numbers of a group that nobody here knows."""
    given = torch.nn.Parameter(torch.ones(5))
    ours = adopt(torch.optim.AdamW([{"params": [given], "layer": 3}], 1e-2, maximize=True), "fp32")
    given.grad = torch.ones_like(given)
    ours.step()
    assert (given > 1).all()
    for optimizer in (ours, release(ours)):
        (group,) = optimizer.param_groups
        assert (group["maximize"], group["layer"]) == (True, 3)


@pytest.mark.parametrize("default", [torch.bfloat16, torch.float64])
def test_counts_are_given_back_whole_whatever_the_default_dtype(default):
    given = torch.nn.Parameter(torch.ones(5))
    ours = adopt(torch.optim.AdamW([given]), "fp32")
    ours.state[given]["step"] = 301
    torch.set_default_dtype(default)
    try:
        theirs = release(ours)
    finally:
        torch.set_default_dtype(torch.float32)
    given.grad = torch.ones_like(given)
    theirs.step()
    assert theirs.state[given]["step"] == 302


def test_entries_of_schedulers_go_over_from_a_state_dict():
    """By them a new scheduler goes on, and does not begin at the rate that an old one has lowered."""
    given, theirs = begun(0)
    train(given, theirs, [0], StepLR(theirs, 1, 0.5))
    params = [p for group in theirs.param_groups for p in group["params"]]
    ours = adopt(theirs.state_dict(), "fp32", from_="torch", params=params)
    assert [group["lr"] for group in ours.param_groups] == [5e-3, 1.5e-3]
    assert StepLR(ours, 1, 0.5, last_epoch=1).base_lrs == [1e-2, 3e-3]


ADAMW = torch.optim.AdamW


@pytest.mark.parametrize(
    ("made", "options", "message"),
    [
        (torch.optim.SGD, {}, "only optimizers of mcfsim.torch and of these .* not torch.s SGD"),
        (lambda p: torch.optim.Adam(p, weight_decay=0.1), {}, "weight_decay = 0.1 .* added to the gradient"),
        (lambda p: ADAMW(p, eps=1e400), {}, "epsilon = inf"),
        (ADAMW, {"strategy": "colage"}, "unknown strategy"),
        (ADAMW, {"strategy": "exact"}, "exact numbers"),
        (ADAMW, {"lower": "bfloat16"}, "lower"),
        (ADAMW, {"rounding": "upward"}, "unknown rounding"),
        (ADAMW, {"low": "float16"}, "1 numbers of parameter .* float16"),
    ],
    ids=lambda x: getattr(x, "__name__", str(x)),
)
def test_what_is_refused_changes_nothing(made, options, message):
    given = net(6, 40, 3)
    with torch.no_grad():
        given[0].weight[0, 0] = 1e6
    optimizer = made(given.parameters())
    train(given, optimizer, range(2))
    before = states(optimizer)
    with pytest.raises((TypeError, ValueError), match=message):
        adopt(optimizer, **options)
    assert_same_states(optimizer, before)
    with pytest.raises(TypeError, match=r"only AdamW, .* of mcfsim\.torch are given back"):
        release(optimizer)


def test_parameters_of_one_memory_are_refused():
    """Those of another dtype would have become apart."""
    table, head = (torch.nn.Parameter(torch.ones(3)) for _ in range(2))
    head.data = table.data
    theirs = ADAMW([table, head])
    with pytest.raises(ValueError, match="has the memory of another"):
        adopt(theirs, "plain")
    assert head.data_ptr() == table.data_ptr()


@pytest.mark.parametrize(
    ("dtype", "error", "message"),
    [
        *((x, TypeError, "is no floating dtype .*torch.float32") for x in ("float16", None, torch.int32)),
        (torch.complex64, TypeError, "is no floating dtype"),
        (torch.float16, ValueError, "1 numbers of parameter .* too large for float16"),
    ],
    ids=str,
)
def test_what_cannot_be_given_back_stays(dtype, error, message):
    given = net(6, 40, 3)
    optimizer = adopt(ADAMW(given.parameters()), "fp32")
    train(given, optimizer, range(2))
    with torch.no_grad():
        given[-1].bias[0] = 1e6
    before, weights = states(optimizer), [p.detach().clone() for p in given.parameters()]
    with pytest.raises(error, match=message):
        release(optimizer, dtype)
    assert_same_states(optimizer, before)
    assert all(map(torch.equal, weights, given.parameters()))
