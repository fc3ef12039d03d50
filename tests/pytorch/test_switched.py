"""A run goes on under another strategy by one call, with the bits of `mcfsim.Optimizer.switched`."""

import copy
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch

import mcfsim as mcf
import mcfsim.torch
from mcfsim.checks import SpoiltStateError
from mcfsim.optim.declaration import optimizers
from mcfsim.optim.stored import Stored
from mcfsim.torch import SGD, AdamW, TorchAdamW, adopt, release
from tests.optim.on_grid_reference import placed
from tests.pytorch.beside import compared
from tests.pytorch.runs import EVERY, array, assert_all_same, assert_same_states, dtype_of, states
from tests.shared.kinds import STAGED, STORED, feeds, rotating

LAID = placed("dqt-int4", reach="fixed", start="absmax")
SHAPES = {"w": (7, 20), "b": (11,), "empty": (0, 3), "scalar": (), "long": (300,)}


def begun(optimizer, strategy, steps=2, **options):
    """Return an optimizer of tensors, its parameters, and one of arrays, after the same steps."""
    start = {name: mcf.round_to(np.random.default_rng(1).standard_normal(x), "bfloat16").astype(np.float32)
             for name, x in SHAPES.items()}  # fmt: skip
    params = {name: torch.nn.Parameter(torch.tensor(x).to(dtype_of(strategy))) for name, x in start.items()}
    groups = [{"params": [params["w"]]}, {"params": [*params.values()][1:], "weight_decay": 0.0}]
    ours = EVERY[optimizer](groups, 1e-2, weight_decay=0.1, strategy=strategy, **options)
    hyper = optimizers()[optimizer](weight_decay=0.1)
    theirs = mcf.Optimizer(hyper, mcf.strategy(strategy), start, ["w"], **options)
    train(ours, params, theirs, steps)
    return ours, params, theirs


def train(ours, params, theirs, steps):
    for _ in range(steps):
        random = np.random.default_rng(theirs.count + 10)
        given = {name: random.standard_normal(x).astype(np.float32) / 8 for name, x in SHAPES.items()}
        for name, p in params.items():
            p.grad = torch.tensor(given[name]).to(p.dtype)
        ours.step()
        theirs.step(theirs.receive({name: array(p.grad) for name, p in params.items()}), 1e-2)


def assert_alike(ours, params, theirs):
    """Compare what is stored and meant of parameters, and the count of steps."""
    assert {ours.state[p]["step"] for p in params.values()} == {theirs.count}
    assert_all_same(compared(ours, params, theirs))


@pytest.mark.usefixtures("few_steps")
@pytest.mark.parametrize("third", range(3))
@pytest.mark.parametrize(("optimizer", "old"), rotating(STORED))
@pytest.mark.sampled(72, each=False)
@pytest.mark.slow
def test_a_switch_is_that_of_arrays(optimizer, old, third):
    """Bit for bit, then and after a step; the parameters stay the objects that they are."""
    for new in STORED[third::3]:
        if not feeds(optimizer, new):
            continue
        before, params, theirs = begun(optimizer, old)
        ours = adopt(before, new)
        assert type(ours) is type(before)
        assert not before.state
        assert {p.dtype for p in params.values()} == {dtype_of(new)}
        theirs = theirs.switched(mcf.strategy(new))
        assert_alike(ours, params, theirs)
        train(ours, params, theirs, 1)
        assert_alike(ours, params, theirs)


#: Back from blocks that share scales; to grids, to others, to the same, and back.
MOMENTS = ("int8-moments", "mcf-2", "fp8-moments", "split-master", "plain+coat")
GRIDS = ("dqt-int4", LAID, "bitnet", "bitnet", "mcf-2", "dqt-ternary", "dqt-ternary", "fp32")
CHAINS = [
    *((optimizer, "kahan", MOMENTS) for optimizer in STAGED),
    *(("adamw", "plain", GRIDS), ("sgd", "dqt-int4", GRIDS), ("muon", "bitnet", GRIDS)),
]


@pytest.mark.usefixtures("few_steps")
@pytest.mark.parametrize(("optimizer", "old", "chain"), CHAINS)
@pytest.mark.sampled(5, each=False)
@pytest.mark.costly("stages are compiled")
def test_switches_one_after_another_are_those_of_arrays(optimizer, old, chain):
    """Of moments that keep rows and columns, or nothing, and of weights that have not moved yet, too."""
    for steps in (0, 2):
        ours, params, theirs = begun(optimizer, old, steps=steps)
        for new in chain:
            ours, theirs = adopt(ours, new), theirs.switched(mcf.strategy(new))
            assert_alike(ours, params, theirs)
            if theirs.grid is not None:
                scales = [ours.state[params[name]]["scale"].item() for name in theirs.layout.slices]
                assert_all_same([("scales", scales, theirs.grid.scales)])
            if steps:
                train(ours, params, theirs, 1)
                assert_alike(ours, params, theirs)


@pytest.mark.parametrize(("optimizer", "strategy"), rotating(STORED))
@pytest.mark.sampled(6, each=False)
def test_a_switch_to_the_same_strategy_changes_nothing(optimizer, strategy):
    ours, params, theirs = begun(optimizer, strategy)
    whole, kept, _ = begun(optimizer, strategy)
    ours = adopt(ours, strategy)
    assert_same_states(ours, whole)
    assert all(map(torch.equal, params.values(), kept.values()))
    train(ours, params, theirs, 2)
    assert_alike(ours, params, theirs)


def test_grids_in_other_formats_are_those_of_arrays():
    strategy = placed("dqt-int4", reach="absmax")
    low = Stored("bfloat16", grid=strategy.parameter.grid)
    ours, params, theirs = begun("adamw", replace(strategy, name="bf16", parameter=low))
    assert_alike(ours, params, theirs)


@pytest.mark.slow
def test_settings_go_on_unless_others_are_named():
    options = {"rounding": "stochastic", "random": mcf.RandomWords(4), "scalars": "float32"}
    ours, params, theirs = begun("adamw", "plain", **options)
    ours.param_groups[1]["lr"] = 3e-3
    ours = adopt(ours, "fp32-optim")
    assert [group["lr"] for group in ours.param_groups] == [1e-2, 3e-3]
    assert [group["weight_decay"] for group in ours.param_groups] == [0.1, 0.0]
    ours.param_groups[1]["lr"] = 1e-2
    theirs = theirs.switched(mcf.strategy("fp32-optim"))
    train(ours, params, theirs, 2)
    assert_alike(ours, params, theirs)
    ours = adopt(ours, "plain", rounding="nearest_even", scalars="exact", kind=TorchAdamW)
    assert type(ours) is TorchAdamW
    (settings,) = {(group["rounding"], group["scalars"]) for group in ours.param_groups}
    assert settings == ("nearest_even", "exact")


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (AdamW, {"strategy": "plain", "rounding": "stochastic", "random": mcf.RandomWords(4)}),
        (torch.optim.AdamW, {}),
    ],
)
def test_groups_that_are_added_later_have_the_defaults_of_the_old_optimizer(kind, options):
    """And not those of the class, as a rate of 1e-3."""
    first, *added = (torch.nn.Parameter(torch.ones(3).bfloat16()) for _ in range(3))
    ours = kind([first], 0.25, (0.5, 0.75), 1e-3, weight_decay=0.5, **options)
    for give, other in zip((lambda x: adopt(x, "kahan", scalars="rounded"), release), added, strict=True):
        ours = give(ours)
        ours.add_param_group({"params": [other]})
        one, *others = ({**group, "params": 0} for group in ours.param_groups)
        assert all(group == one for group in others)


@pytest.mark.parametrize("give", [lambda x: adopt(x, "fp32"), release], ids=["adopt", "release"])
def test_what_was_given_away_refuses_until_a_state_is_loaded(give):
    """It would begin anew, with moments of zeros, and an average would lose what lay beside weights."""
    ours, params, _ = begun("adamw", "kahan")
    kept, weights = copy.deepcopy(ours.state_dict()), {p: p.detach().clone() for p in params.values()}
    averaged = mcfsim.torch.average(ours, 0.9)
    given = give(ours)
    train_on = [lambda: give(ours), lambda: ours.represented(params["w"]), averaged.update, ours.state_dict]
    for use in (*train_on, ours.resync, ours.step, ours.start, lambda: copy.deepcopy(ours)):
        params["w"].grad = torch.ones_like(params["w"])
        with pytest.raises(SpoiltStateError, match=r"has gone to the optimizer that \w+ returned"):
            use()
    assert given.state[params["w"]]["step"] == 2
    for p, x in weights.items():
        p.grad, p.data = None, x
    ours.load_state_dict(kept)
    ours.step()


@pytest.mark.parametrize("strategy", ["kahan", "dqt-int8"])
def test_a_warning_that_is_an_error_comes_before_anything_changes(strategy):
    ours, _, _ = begun("adamw", "fp32")
    ours.param_groups[1]["lr"] = 1e-300
    before = states(ours)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(mcf.VanishingScalarWarning):
            adopt(ours, strategy)
    assert_same_states(ours, before)
    with pytest.warns(mcf.VanishingScalarWarning) as told:
        adopt(ours, strategy)
    assert [x.filename for x in told] == [__file__]


def test_a_run_that_has_not_begun_begins_under_the_new_strategy():
    ours, params, theirs = begun("adamw", "fp32", steps=0)
    ours, theirs = adopt(ours, "collage-plus"), theirs.switched(mcf.strategy("collage-plus"))
    train(ours, params, theirs, 2)
    assert_alike(ours, params, theirs)


def test_what_is_refused_changes_nothing():
    ours, params, _ = begun("adamw", "fp32")
    with torch.no_grad():
        params["w"][0, 0] = 1e6
    before = states(ours)
    for given, message in (
        ({"strategy": "plain", "low": "float16"}, "1 numbers of parameter .* too large for float16"),
        ({"strategy": "exact"}, "exact numbers"),
        ({"kind": SGD}, "a run of AdamW does not go on by SGD"),
        ({"lower": "bfloat16"}, "lower"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            adopt(ours, **given)
        assert_same_states(ours, before)
    with pytest.raises(TypeError, match="a run of SGD does not go on by AdamW"):
        adopt(begun("sgd", "plain")[0], "fp32", kind=AdamW)
    muon, params, _ = begun("muon", "plain", steps=0)
    with pytest.raises(ValueError, match=r"shape \(7, 20\) has moments for another step"):
        adopt(muon, "fp32", others=("*",))
    muon.start()
    ours.whole.begin("a step")
    with pytest.raises(SpoiltStateError):
        adopt(ours, "plain")
