"""A run of torch's AdamW goes on under a strategy, and comes back, and loses no more than formats must."""

from fractions import Fraction

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import mcfsim as mcf  # noqa: E402
from mcfsim.optim.remainder import remaining  # noqa: E402
from mcfsim.oracle import round_fraction  # noqa: E402
from mcfsim.torch import AdamW, TorchAdamW, adopt, release  # noqa: E402
from tests.pytorch.roots import RightRoots, fused  # noqa: E402

STRATEGIES = [name for name in mcf.STRATEGIES if name != "exact"]
OPTIONS = {"foreach": False, "weight_decay": 0.1}


def model(dtype=torch.float32):
    torch.manual_seed(0)
    layers = torch.nn.Linear(6, 40), torch.nn.Tanh(), torch.nn.Linear(40, 3)
    return torch.nn.Sequential(*layers).to(dtype)


def train(given, optimizer, steps, scheduler=None):
    for step in steps:
        x = torch.randn(8, 6, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        given(x.to(given[0].weight.dtype)).float().square().mean().backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()


def begun(steps=5, dtype=torch.float32):
    given = model(dtype)
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


def bits(x):
    return x.reshape(-1).view(torch.uint8)


def nearest(x, fmt, count):
    """Return by fractions the sum of so many values of a format, each the rest, rounded: what they hold."""
    found = []
    for number in x.double().reshape(-1).tolist():
        total = Fraction(0)
        for _ in range(count):
            total += Fraction(round_fraction(Fraction(number) - total, fmt))
        found.append(float(total))
    return torch.tensor(found, dtype=torch.float64).reshape(x.shape)


def moment(state, name, count):
    return sum(state[f"{name}_{i}" if i else name].double() for i in reversed(range(count)))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_what_the_formats_can_hold_is_kept(strategy):
    chosen = mcf.strategy(strategy)
    given, theirs = begun()
    before, parameters = state_of(given, theirs), list(given.parameters())
    ours = adopt(theirs, strategy)
    assert all(p is q for p, q in zip(parameters, given.parameters(), strict=True))
    assert not theirs.state
    kept = chosen.extra if chosen.addition == "master" else chosen.parameter
    count = 2 if strategy == "kahan" else kept.components
    for name, p in given.named_parameters():
        old, state = before[name], ours.state[p]
        assert p.dtype == getattr(torch, chosen.parameter.format.name)
        assert p.grad is None
        assert state["step"] == 5
        expected = nearest(old["parameter"], kept.format, count)
        if kept.remainder:
            low = nearest(expected, chosen.parameter.format, 1).numpy().astype(np.float32)
            master = expected.numpy().astype(np.float32)
            ar, bits = mcf.arithmetic("float32"), kept.remainder
            left = remaining(ar, chosen.parameter.format, bits, master.reshape(-1), low.reshape(-1))
            expected = torch.from_numpy(left.reshape(master.shape)).double()
        assert torch.equal(ours.represented(p), expected)
        if strategy == "split-master":
            # Ties away from zero; none of these numbers is one.
            assert torch.equal(p.double(), nearest(old["parameter"], chosen.parameter.format, 1))
        for mine, name_there in (("m", "exp_avg"), ("v", "exp_avg_sq")):
            stored = getattr(chosen, mine)
            if stored.scaled is None:
                whole = nearest(old[name_there], stored.format, stored.components)
                assert torch.equal(moment(state, mine, stored.components), whole)
    assert [group["lr"] for group in ours.param_groups] == [1e-2, 3e-3]
    assert [group["weight_decay"] for group in ours.param_groups] == [0.1, 0.0]
    assert ours.param_groups[0]["betas"] == (0.8, 0.99)
    train(given, ours, range(5, 8))
    represented = {name: ours.represented(p) for name, p in given.named_parameters()}
    back = release(ours)
    assert type(back) is torch.optim.AdamW
    assert all(p is q for p, q in zip(parameters, given.parameters(), strict=True))
    for name, p in given.named_parameters():
        assert p.dtype == torch.float32
        assert torch.equal(p, represented[name].float())
        assert back.state[p]["step"] == 8
        assert back.state[p]["exp_avg"].dtype == torch.float32
    train(given, back, range(8, 10))


def test_nothing_is_lost_on_the_way_there_and_back():
    given, theirs = begun()
    other, kept = begun()
    back = release(adopt(theirs, "fp32"))
    for (name, x), y in zip(state_of(given, back).items(), state_of(other, kept).values(), strict=True):
        for key in y:
            assert torch.equal(x[key], y[key]), (name, key)
    for own, their in zip(back.param_groups, kept.param_groups, strict=True):
        assert own["lr"] == their["lr"]
        assert own["weight_decay"] == their["weight_decay"]
        own["foreach"] = False
    train(given, back, range(5, 100))
    train(other, kept, range(5, 100))
    for p, q in zip(given.parameters(), other.parameters(), strict=True):
        assert torch.equal(p, q)


@fused
@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["fp32", "plain"])
def test_steps_of_both_are_those_of_either(strategy):
    """A hundred by torch, some here, some by torch again: the bits of two hundred here, or there."""
    dtype = torch.float32 if strategy == "fp32" else torch.bfloat16
    given, optimizer = begun(0, dtype)
    mine, ours = begun(0, dtype)
    theirs, torchs = begun(0, dtype)
    with RightRoots():
        train(given, optimizer, range(100))
        optimizer = adopt(optimizer, strategy, kind=TorchAdamW)
        train(given, optimizer, range(100, 150))
        optimizer = release(optimizer, dtype)
        for group in optimizer.param_groups:
            group["foreach"] = False
        train(given, optimizer, range(150, 200))
        train(mine, adopt(ours, strategy, kind=TorchAdamW), range(200))
        train(theirs, torchs, range(200))
    for p, q, r in zip(given.parameters(), mine.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(p, q)
        assert torch.equal(p, r)
    for (name, x), y in zip(
        state_of(given, optimizer).items(), state_of(theirs, torchs).values(), strict=True
    ):
        for key in y:
            assert torch.equal(x[key], y[key]), (name, key)


@pytest.mark.parametrize("strategy", ["plain", "collage-plus", "fp32-master", "split-master"])
def test_a_bfloat16_run_goes_on(strategy):
    """Its parameters stay the tensors that they are."""
    given, theirs = begun(dtype=torch.bfloat16)
    before = state_of(given, theirs)
    places = [p.data_ptr() for p in given.parameters()]
    ours = adopt(theirs, strategy)
    assert places == [p.data_ptr() for p in given.parameters()]
    for name, p in given.named_parameters():
        assert torch.equal(p, before[name]["parameter"])
        assert torch.equal(ours.represented(p), before[name]["parameter"].double())
        assert torch.equal(ours.state[p]["m"].double(), before[name]["exp_avg"].double())
    train(given, ours, range(5, 7))


def test_a_run_that_has_not_begun():
    given, theirs = begun(0)
    before = {name: p.detach().clone() for name, p in given.named_parameters()}
    ours = adopt(theirs, "collage-plus")
    for name, p in given.named_parameters():
        assert ours.state[p]["step"] == 0
        assert torch.equal(ours.represented(p), nearest(before[name], mcf.get_format("bfloat16"), 2))
    train(given, ours, range(2))
    assert {state["step"] for state in ours.state.values()} == {2}


@pytest.mark.parametrize(
    "schedule",
    [
        lambda x: torch.optim.lr_scheduler.CosineAnnealingLR(x, 20),
        lambda x: torch.optim.lr_scheduler.LambdaLR(x, lambda step: 1 / (1 + step)),
        lambda x: torch.optim.lr_scheduler.OneCycleLR(x, max_lr=0.1, total_steps=10),
    ],
    ids=["cosine", "lambda", "one cycle"],
)
def test_a_scheduler_goes_on(schedule):
    given, theirs = begun(0)
    scheduler = schedule(theirs)
    train(given, theirs, range(5), scheduler)
    ours = scheduler.optimizer = adopt(theirs, "fp32-master")
    train(given, ours, range(5, 8), scheduler)
    other, expected = begun(0)
    train(other, expected, range(8), schedule(expected))
    for group, same in zip(ours.param_groups, expected.param_groups, strict=True):
        assert group["lr"] == same["lr"]
        assert group["betas"] == same["betas"]


@pytest.mark.parametrize(
    ("made", "options", "error", "message"),
    [
        (lambda p: torch.optim.SGD(p), {}, TypeError, "only torch.optim.AdamW is taken over, not SGD"),
        (lambda p: torch.optim.AdamW(p, amsgrad=True), {}, ValueError, "amsgrad = True"),
        (lambda p: torch.optim.AdamW(p), {"strategy": "colage"}, ValueError, "unknown strategy"),
        (lambda p: torch.optim.AdamW(p), {"strategy": "exact"}, ValueError, "exact numbers"),
        (lambda p: torch.optim.AdamW(p), {"lower": "bfloat16"}, TypeError, "lower"),
        (lambda p: torch.optim.AdamW(p), {"rounding": "upward"}, ValueError, "unknown rounding"),
        (lambda p: torch.optim.AdamW(p, eps=1e400), {}, ValueError, "epsilon = inf"),
        (lambda p: torch.optim.AdamW(p), {"low": "float16"}, ValueError, "1 numbers of parameter .* float16"),
    ],
    ids=["sgd", "amsgrad", "strategy", "exact", "option", "rounding", "epsilon", "too large"],
)
def test_what_is_refused_changes_nothing(made, options, error, message):
    given = model()
    with torch.no_grad():
        given[0].weight[0, 0] = 1e6
    optimizer = made(given.parameters())
    train(given, optimizer, range(2))
    before = state_of(given, optimizer)
    with pytest.raises(error, match=message):
        adopt(optimizer, **options)
    after = state_of(given, optimizer)
    for name, state in before.items():
        assert state.keys() == after[name].keys()
        assert all(torch.equal(bits(x), bits(after[name][key])) for key, x in state.items())
    with pytest.raises(TypeError, match=r"only an AdamW of mcfsim\.torch is given back"):
        release(optimizer)


def test_numbers_that_are_not_finite_stay_what_they_are():
    given, theirs = begun()
    with torch.no_grad():
        given[0].weight[0, :2] = torch.tensor([float("inf"), float("nan")])
    ours = adopt(theirs, "collage-plus")
    assert ours.represented(given[0].weight)[0, 0] == float("inf")
    assert ours.represented(given[0].weight)[0, 1].isnan()
    assert isinstance(ours, AdamW)
