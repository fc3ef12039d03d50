"""Runs of PyTorch's Muon, Adam, and AdamW with amsgrad go on here, and come back, with their bits."""

import copy

import numpy as np
import pytest
import torch

import mcfsim as mcf
import mcfsim.torch
from mcfsim.optim.torchmuon import TorchNewtonSchulz
from mcfsim.torch import SGD, AdamW, TorchAdamW, adopt, release
from tests.pytorch.runs import RightRoots, array, assert_same_states, dtype_of, fused, listed, run, states
from tests.pytorch.test_torch_muon import ordered

#: The dtypes of a run, and the strategies that store it alike.
ALIKE = [(torch.float32, "fp32"), (torch.bfloat16, "plain")]
MATRICES, ANY = ((8, 12), (9, 6), (20, 4)), ((6, 7), (5,), (), (0, 3))
Muon, AMSGrad, TorchMuon, TorchAMSGrad = (
    getattr(mcfsim.torch, name) for name in ("Muon", "AMSGrad", "TorchMuon", "TorchAMSGrad")
)


def parameters(shapes, dtype):
    generator = torch.Generator().manual_seed(3)
    return [torch.nn.Parameter((torch.randn(x, generator=generator) * 0.1).to(dtype)) for x in shapes]


def train(optimizer, steps):
    """Make steps with gradients that fall, so that the largest moments are older ones."""
    for step in steps:
        for place, p in enumerate(listed(optimizer)):
            generator = torch.Generator().manual_seed(100 * step + place)
            p.grad = (torch.randn(p.shape, generator=generator) * 0.6**step).to(p.dtype)
        optimizer.step()


def muon(dtype=torch.float32, steps=3, **options):
    if not hasattr(torch.optim, "Muon"):
        pytest.skip("this version of PyTorch has no Muon")
    given = parameters(MATRICES, dtype)
    groups = [{"params": given[:2]}, {"params": given[2:], "lr": 3e-3, "weight_decay": 0.0}]
    optimizer = torch.optim.Muon(groups, **{"lr": 0.02, "momentum": 0.9, **options})
    train(optimizer, range(steps))
    return optimizer


def amsgrad(dtype=torch.float32, steps=3, kind=torch.optim.AdamW, **options):
    given = parameters(ANY, dtype)
    groups = [{"params": given[:2]}, {"params": given[2:], "lr": 3e-3, "weight_decay": 0.0}]
    decay = {} if kind is torch.optim.Adam else {"weight_decay": 0.1}
    options = (
        {"lr": 1e-2, "betas": (0.8, 0.99), "eps": 1e-6, "amsgrad": True, "foreach": False} | decay | options
    )
    optimizer = kind(groups, **options)
    train(optimizer, range(steps))
    return optimizer


def taken(optimizer, saved, strategy, **options):
    """Return a run that is taken over, as an optimizer or by its state dict."""
    if not saved:
        return adopt(optimizer, strategy, **options)
    state, given = copy.deepcopy(optimizer.state_dict()), listed(optimizer)
    return adopt(state, strategy, from_="torch", params=given, **options)


# -- Muon --------------------------------------------------------------------------------------------------
@ordered
@pytest.mark.parametrize(("dtype", "strategy"), ALIKE, ids=str)
@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.costly("sums in a stated order are made term by term")
def test_steps_of_muon_on_both_sides_are_those_of_pytorch(dtype, strategy, saved):
    options = {"adjust_lr_fn": "match_rms_adamw", "ns_steps": 3} if saved else {}
    whole, part = muon(dtype, **options), muon(dtype, **options)
    ours = taken(part, saved, strategy)
    assert type(ours) is TorchMuon
    for steps in (range(3, 5), range(5, 7)):
        train(ours, steps)
        train(whole, steps)
        assert all(map(torch.equal, listed(ours), listed(whole)))
        ours = release(ours, dtype) if type(ours) is TorchMuon else ours
    assert type(ours) is torch.optim.Muon
    assert_same_states(ours, whole)


@pytest.mark.parametrize(("dtype", "strategy"), ALIKE, ids=str)
@pytest.mark.parametrize("kind", [TorchMuon, TorchAMSGrad, Muon, AMSGrad])
@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.sampled(20, each=False)
@pytest.mark.slow
def test_a_run_that_was_away_is_the_same(kind, dtype, strategy, saved):
    """Given to PyTorch, and taken over at once; on every processor."""
    if kind in (Muon, TorchMuon):
        muon(steps=0)  # which skips the test where PyTorch has none
    (whole, part), found = (parameters(MATRICES, dtype) for _ in range(2)), []
    for given in (whole, part):
        groups = [{"params": given[:1]}, {"params": given[1:], "lr": 3e-3, "weight_decay": 0.0}]
        found.append(kind(groups, lr=0.02, weight_decay=0.1, strategy=strategy))
        train(found[-1], range(2))
    mine, ours = found
    ours = taken(release(ours, dtype), saved, strategy, kind=kind)
    for optimizer in (mine, ours):
        train(optimizer, range(2, 4))
    # PyTorch's Muon counts no steps.
    compared = [
        {name: x for name, x in states(x).items() if not name.startswith("step")} for x in (mine, ours)
    ]
    assert_same_states(*compared)


@pytest.mark.parametrize("strategy", ["fp32", "collage-plus", "kahan+int8", "fp32-master", "split-master"])
def test_momenta_are_kept_as_a_switch_keeps_them(strategy):
    """Under a strategy that stores numbers as PyTorch does bit for bit, and from there by a switch."""
    first, second = muon(), muon()
    momenta = [first.state[p]["momentum_buffer"].clone() for p in listed(first)]
    direct, ours = adopt(first, strategy), adopt(second, "fp32")
    for p, momentum in zip(listed(ours), momenta, strict=True):
        assert torch.equal(ours.state[p]["m"], momentum)
        assert (ours.state[p]["step"], ours.state[p]["v"].numel()) == (0, 0)
    assert [group["lr"] for group in direct.param_groups] == [0.02, 3e-3]
    assert [group["weight_decay"] for group in direct.param_groups] == [0.1, 0.0]
    assert {group["momentum"] for group in direct.param_groups} == {0.9}
    assert_same_states(direct, adopt(ours, strategy))
    back = release(direct)
    train(back, [3])
    assert all(back.state[p]["momentum_buffer"].isfinite().all() for p in listed(back))


def test_the_entries_of_muon_are_translated():
    """Its eps is that of the iteration; what is named takes the place of what was."""
    options = {"ns_coefficients": (3.0, -3.2, 1.2), "ns_steps": 2, "eps": 2.0**-20, "nesterov": False}
    ours = adopt(muon(**options, steps=0), "plain", momentum=0.5)
    group = ours.param_groups[0]
    assert group["iteration"] == TorchNewtonSchulz(((3.0, -3.2, 1.2),) * 2, epsilon=2.0**-20)
    assert (group["nesterov"], group["momentum"], str(group["scale"])) == (False, 0.5, "original")
    assert group["eps"] == mcf.Muon().epsilon
    back = release(ours, torch.bfloat16)
    assert not any(back.state[p]["momentum_buffer"].any() for p in listed(back))
    mine, theirs = back.param_groups[0], torch.optim.Muon(parameters(MATRICES, torch.float32)).param_groups[0]
    assert mine.keys() == theirs.keys()
    found = [mine[name] for name in ("ns_steps", "eps", "nesterov", "momentum", "lr")]
    assert found == [2, 2.0**-20, False, 0.5, 0.02]
    assert mine["ns_coefficients"] == tuple(map(float, np.float32(options["ns_coefficients"])))
    other = adopt(back, "kahan", kind=Muon)
    assert type(other) is Muon
    assert type(adopt(other, "plain", kind=TorchMuon)) is TorchMuon


@pytest.mark.slow
def test_what_muon_has_and_pytorch_s_has_not_is_refused():
    given = parameters(MATRICES, torch.bfloat16)
    for kind, options, text in (
        (Muon, {"scale": "spectral"}, "no counterpart of scale = 'spectral'"),
        (Muon, {"averaged": False}, "averaged = False"),
        (Muon, {"maximize": True}, "maximize = True"),
        (Muon, {"iteration": mcf.NewtonSchulz("deepseek-v4")}, "no counterpart of iteration = NewtonSchulz"),
        (Muon, {"iteration": mcf.NewtonSchulz(margin=1.5)}, "no counterpart of iteration"),
        (Muon, {"others": ("*",)}, r"no parameter of shape \(8, 12\), which AdamW moves here"),
        (TorchMuon, {"params": parameters(ANY, torch.bfloat16)}, r"of shape \(5,\), which AdamW"),
        (Muon, {"params": parameters([(2, 3, 4)], torch.bfloat16)}, r"no parameter of shape \(2, 3, 4\)$"),
    ):
        ours = kind(options.pop("params", given), strategy="plain", **options)
        train(ours, [0])
        before = states(ours)
        with pytest.raises(ValueError, match=text):
            release(ours)
        assert_same_states(ours, before)
    for ours in (TorchMuon(given, strategy="plain"), TorchAMSGrad(given, strategy="plain")):
        with pytest.raises(
            ValueError, match=rf"no run of {type(ours).__name__} is given to 'torchao' .*, but to torch"
        ):
            release(ours, to="torchao")


def test_names_of_matrices_that_adamw_moves_go_on():
    net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2)).to(torch.bfloat16)
    ours = Muon(net.named_parameters(), strategy="plain", others=("1.*",))
    run(ours, [0])
    other = adopt(ours, "kahan")
    assert other.param_groups[0]["param_names"][2] == "1.weight"
    assert [other.state[p]["v"].numel() for p in listed(other)] == [0, 3, 6, 2]
    run(other, [1])


# -- amsgrad -----------------------------------------------------------------------------------------------
@fused
@pytest.mark.parametrize(("dtype", "strategy"), ALIKE, ids=str)
@pytest.mark.parametrize(("saved", "kind"), [(False, torch.optim.AdamW), (True, torch.optim.Adam)])
def test_steps_by_the_largest_moment_on_both_sides_are_those_of_pytorch(dtype, strategy, saved, kind):
    whole, part = amsgrad(dtype, kind=kind), amsgrad(dtype, kind=kind)
    with RightRoots():
        ours = taken(part, saved, strategy, kind=TorchAMSGrad)
        for steps in (range(3, 6), range(6, 9)):
            train(ours, steps)
            train(whole, steps)
            if type(ours) is TorchAMSGrad:
                ours = release(ours, dtype)
                for group in ours.param_groups:
                    assert group["amsgrad"] is True
                    group["foreach"] = False
            assert_same_states(ours, whole)
    older = [whole.state[p]["max_exp_avg_sq"] > whole.state[p]["exp_avg_sq"] for p in listed(whole)]
    assert all(x.any() for x in older[:2])


@pytest.mark.parametrize("strategy", ["collage-plus", "kahan+int8", "fp32-master"])
def test_both_second_moments_are_kept_as_a_switch_keeps_them(strategy):
    first, second = amsgrad(), amsgrad()
    there = [{name: x.clone() for name, x in first.state[p].items()} for p in listed(first)]
    direct, ours = adopt(first, strategy), adopt(second, "fp32")
    assert type(direct) is AMSGrad
    for p, old in zip(listed(ours), there, strict=True):
        state = ours.state[p]
        assert torch.equal(state["m"], old["exp_avg"])
        assert state["step"] == 3
        kept = torch.cat([old[name].reshape(-1) for name in ("exp_avg_sq", "max_exp_avg_sq")])
        assert torch.equal(state["v"], kept)
    assert_same_states(direct, adopt(ours, strategy))


def test_the_adopted_run_goes_on_as_one_of_arrays():
    """AMSGrad's own rounding points, from PyTorch's numbers on."""
    theirs = amsgrad(steps=0)
    start = {
        str(place): array(p).copy() for place, p in enumerate(listed(theirs)) if p.ndim == 2 and p.numel()
    }
    (name, x), *_ = start.items()
    p = torch.nn.Parameter(torch.tensor(x, dtype=torch.float32))
    ours = adopt(torch.optim.AdamW([p], 1e-2, weight_decay=0.1, amsgrad=True), "fp32")
    arrays = mcf.Optimizer(mcf.optim.amsgrad.AMSGrad(), mcf.strategy("fp32"), {name: np.float32(x)}, [name])
    for step in range(4):
        g = np.random.default_rng(step).standard_normal(x.shape).astype(np.float32)
        p.grad = torch.from_numpy(g)
        ours.step()
        arrays.step(arrays.receive({name: g}), 1e-2)
        np.testing.assert_array_equal(array(p), arrays.weights()[name])


@pytest.mark.parametrize(("made", "options"), [(amsgrad, {}), (muon, {"ns_steps": 2})])
def test_groups_that_are_added_have_the_defaults_of_the_run_here_and_there(made, options):
    optimizer = made(steps=0, **options)
    for give in (lambda x: adopt(x, "fp32"), release):
        optimizer = give(optimizer)
        optimizer.add_param_group({"params": parameters(MATRICES[:1], torch.float32)})
        first, *_, last = ({**group, "params": 0} for group in optimizer.param_groups)
        assert first == last


def test_defaults_that_no_group_has_are_not_given_where_the_library_lacks_them():
    groups = [{"params": parameters(MATRICES, torch.float32), "scale": "original"}]
    back = release(TorchMuon(groups, strategy="fp32", scale="spectral"))
    assert back.defaults == torch.optim.Muon(parameters(MATRICES, torch.float32)).defaults
    assert {group["adjust_lr_fn"] for group in back.param_groups} == {"original"}


# -- what is refused ---------------------------------------------------------------------------------------
def mixed():
    optimizer = amsgrad(steps=0)
    optimizer.param_groups[1]["amsgrad"] = False
    return optimizer


def halved():
    optimizer = amsgrad()
    optimizer.state[listed(optimizer)[1]].pop("max_exp_avg_sq")
    return optimizer


def other(made, name, alter):
    """Return a run with a tensor of its state altered."""
    optimizer = made()
    state = optimizer.state[listed(optimizer)[0]]
    state[name] = alter(state[name])
    return optimizer


def without(optimizer, *names, **entries):
    for group in optimizer.param_groups:
        group.update(entries)
        for name in names:
            group.pop(name)
    return optimizer


REFUSED = [
    (lambda: other(muon, "momentum_buffer", torch.t), {}, r"shape \(8, 12\) is of another: \(12, 8\)"),
    (lambda: other(muon, "momentum_buffer", torch.Tensor.int), {}, "not torch.int32"),
    (lambda: other(amsgrad, "exp_avg", torch.ravel), {}, r"exp_avg .* \(42,\)"),
    (lambda: other(amsgrad, "max_exp_avg_sq", torch.t), {}, r"max_exp_avg_sq .* \(7, 6\)"),
    (mixed, {}, "some groups have amsgrad = True, and some have not"),
    (halved, {}, "has exp_avg_sq and max_exp_avg_sq, and this one only exp_avg_sq"),
    (amsgrad, {"kind": AdamW}, "a run of AMSGrad does not go on by AdamW"),
    (amsgrad, {"kind": TorchAdamW}, "a run of AMSGrad does not go on by TorchAdamW"),
    (muon, {"kind": SGD}, "a run of TorchMuon does not go on by SGD"),
    (muon, {"kind": "Muon"}, "a run of TorchMuon does not go on by Muon"),
    (muon, {"others": ("*",)}, r"mcfsim keeps 96 numbers of v .* of shape \(8, 12\), and the state has 0"),
    (lambda: muon(momentum=1.5, steps=0), {}, r"momentum = 1.5 must lie in \[0, 1\)"),
    (lambda: without(muon(), ns_steps=100), {}, "ns_steps = 100 must be less than 100"),
    (lambda: without(muon(), ns_steps=0), {}, "ns_steps = 0"),
    (lambda: without(muon(), ns_steps=2.5), {}, "ns_steps must be an int"),
    (lambda: without(muon(), ns_coefficients=(1.0, 2.0)), {}, "three coefficients"),
    (lambda: without(muon(), adjust_lr_fn="sqrt"), {}, "scale"),
    (lambda: without(muon(), "eps"), {}, r"\['eps'\] are missing"),
    (lambda: amsgrad(kind=torch.optim.Adam, amsgrad=False, weight_decay=0.1), {}, "added to the gradient"),
    (lambda: amsgrad(kind=torch.optim.Adam, weight_decay=0.1), {}, "0.1 of torch.optim.Adam is added to"),
]


@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize(("made", "options", "text"), REFUSED, ids=[text for *_, text in REFUSED])
def test_what_is_refused_changes_nothing(made, options, text, saved):
    optimizer = made()
    before = states(optimizer)
    with pytest.raises((TypeError, ValueError), match=text):
        taken(optimizer, saved, "plain", **options)
    assert_same_states(optimizer, before)


@pytest.mark.parametrize(
    "decay", [{"weight_decay": 0.0}, {"weight_decay": 0.1, "decoupled_weight_decay": True}]
)
@pytest.mark.parametrize("saved", [False, True])
def test_adam_whose_decay_is_none_or_decoupled_is_adamw(decay, saved):
    found = []
    alone = {"weight_decay": decay["weight_decay"]}
    for kind, options in ((torch.optim.Adam, decay), (torch.optim.AdamW, alone)):
        optimizer = kind(parameters(ANY, torch.float32), 1e-2, **options)
        train(optimizer, range(2))
        found.append(taken(optimizer, saved, "kahan"))
        assert type(found[-1]) is AdamW
        train(found[-1], [2])
    assert_same_states(*found)


def test_an_adam_whose_groups_do_not_say_how_they_decay_adds_decay_to_the_gradient():
    """As of PyTorch 2.6; a state dict without a word is AdamW's."""
    optimizer = torch.optim.Adam(parameters(ANY, torch.float32), weight_decay=0.1)
    for group in optimizer.param_groups:
        group.pop("decoupled_weight_decay", None)
    with pytest.raises(ValueError, match="added to the gradient"):
        adopt(optimizer, "plain")
    assert type(taken(optimizer, True, "plain")) is AdamW


def test_processes_that_share_a_parameter_are_refused_before_anything_changes(monkeypatch):
    optimizer = muon()
    before = states(optimizer)

    def refuse(parameter, *_):
        raise ValueError("do not shard it")

    monkeypatch.setattr("mcfsim.torch.adoption._check_spread", refuse)
    with pytest.raises(ValueError, match="do not shard it"):
        adopt(optimizer, "plain")
    assert_same_states(optimizer, before)
    assert dtype_of("plain") is torch.bfloat16
