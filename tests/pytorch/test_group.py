"""What a group, a constructor and a loaded state may say: all is looked at, and nothing left half done."""

import copy
import inspect
import itertools
import subprocess
import sys
import warnings
from functools import partial

import numpy as np
import pytest
import torch

import mcfsim as mcf
import mcfsim.torch as mt
from mcfsim.optim.amsgrad import AMSGrad
from mcfsim.torch import AdamW, TorchAdamW
from mcfsim.torch.group import ABSENT, LABELS, SETTINGS
from mcfsim.torch.moved import opposite
from mcfsim.torch.optimizers import family
from tests.pytorch import runs
from tests.pytorch.runs import EVERY, KINDS, assert_same_states, frozen, listed, parameters, run

NAN, INF = float("nan"), float("inf")
every_kind = pytest.mark.parametrize("kind", EVERY.values(), ids=EVERY)
#: A value of each hyperparameter that is no default; and what a subclass does not take.
VALUES = {
    "betas": (0.25, 0.5), "eps": 0.125, "momentum": 0.75, "weight_decay": 0.375, "dampening": 0.25,
    "beta1": 0.25, "beta2_power": 0.5, "threshold": 2.0, "least_scale": 0.125, "share": 0.5,
    "accumulator": mcf.Accumulator("float32", block=None), "iteration": mcf.NewtonSchulz("deepseek-v4"),
    "nesterov": False, "averaged": False, "scale": "none", "others": ("*",),
}  # fmt: skip
REFUSED = {"nesterov": {"dampening": 0.0}, "torchmuon": {"averaged": True}}


# -- names ------------------------------------------------------------------------------------------------
def hyperparameters(kind):
    """Return what a constructor takes beside parameters, rate and settings."""
    return [x for x in inspect.signature(kind).parameters if x not in ("params", "lr", *SETTINGS)]


@every_kind
def test_constructors_follow_from_the_declaration(kind):
    """Each hyperparameter is known, by PyTorch's name and the declaration's; a step has the number given."""
    given, declared = hyperparameters(kind), kind._declaration
    values = {**VALUES, **REFUSED.get(kind.__name__.lower(), {})}
    values = {name: values[name] for name in given}
    numbers = {"beta1": 0.25, "beta2": 0.5, "epsilon": 0.125, **values}
    numbers = {name: numbers[name] for name in inspect.signature(declared).parameters}
    for optimizer in (
        kind(parameters(), 1.0, **values),
        kind(parameters(), 1.0, *values.values()),
        kind(parameters(), 1.0, **numbers),
        kind(params=[{"params": parameters(), **values}], lr=1.0),
    ):
        assert optimizer._declared(optimizer.param_groups[0])[0] == declared(**numbers)
        assert optimizer.param_groups[0]["lr"] == 1.0
    defaults = kind(parameters())
    decay = {"weight_decay": 0.01} if family(kind) in (mcf.AdamW, AMSGrad) else {}
    assert defaults._declared(defaults.param_groups[0])[0] == declared(**decay)
    if "betas" in given:
        first, second = defaults.defaults["betas"]
        assert kind(parameters(), beta2=0.25).defaults["betas"] == (first, 0.25)
        with pytest.raises(TypeError, match="is given both betas and beta1; give one"):
            kind(parameters(), beta1=0.5, betas=(0.5, second))
        for of in (list, np.array, torch.tensor, lambda x: (torch.tensor(x[:1]), x[1])):
            optimizer = kind(parameters(), betas=of([0.5, 0.25]))
            hyper = optimizer._declared(optimizer.param_groups[0])[0]
            assert (hyper.beta1, hyper.beta2) == (0.5, 0.25)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("AdamW",) * 2,
        ("TorchAdamW", "AdamW"),
        ("AMSGrad", "AdamW"),
        ("TorchAMSGrad", "AdamW"),
        ("TorchMuon", "Muon"),
    ],
)
def test_defaults_are_pytorch_s(ours, theirs):
    """So that one takes the other's place."""
    (p,) = parameters([(2, 2)])
    own, there = getattr(mt, ours)([p]).defaults, getattr(torch.optim, theirs)([p]).defaults
    shared = {"lr", "betas", "weight_decay", "momentum", "nesterov", "eps"} & own.keys() & there.keys()
    shared -= {"eps"} if theirs == "Muon" else set()  # which is AdamW's here, and the iteration's there
    assert {name: own[name] for name in shared} == {name: there[name] for name in shared}
    assert len(shared) == 4


@every_kind
def test_an_unknown_name_is_refused_wherever_it_stands(kind):
    (p,) = parameters([(5,)])
    optimizer = kind(parameters())
    takers = (
        *(lambda wrong: kind([p], **wrong), lambda wrong: kind([{"params": [p], **wrong}])),
        lambda wrong: optimizer.add_param_group({"params": [p], **wrong}),
    )
    names = sorted({"lr", *SETTINGS, *hyperparameters(kind)})
    for name, take in zip(names, itertools.cycle(takers), strict=False):
        wrong = name + name[-1]
        with pytest.raises(TypeError, match=rf"has no '{wrong}' \(did you mean '{name}'\?\)"):
            take({wrong: 1})
    assert len(optimizer.param_groups) == 1
    if "beta1" not in hyperparameters(kind):
        with pytest.raises(TypeError, match=r"has no 'beta1'"):
            kind([{"params": [p], "beta1": 0.9}])
    labelled = kind([{"params": [p], **dict.fromkeys(LABELS[2:], 1)}])
    assert labelled.param_groups[0]["name"] == 1


@every_kind
def test_what_pytorch_has_beside_is_taken_if_it_is_off(kind):
    off = {name: x.off[0] for name, x in ABSENT.items() if name not in hyperparameters(kind)}
    optimizer = kind([{"params": parameters(), **off}], **off)
    assert not optimizer.param_groups[0].keys() & off.keys()
    saved = optimizer.state_dict()
    saved["param_groups"][0].update(off)
    optimizer.load_state_dict(saved)


# -- what is refused --------------------------------------------------------------------------------------
BETAS = [(0.9,), (), (0.9, 0.99, 0.999), 0.9, None, "99", torch.tensor([0.9]), [0.9], {0.9: 0.99}]
#: Numbers and flags, which schedulers and states may spoil, too: name, what it is, what is said.
OUT_OF_RANGE = [
    ("lr", -1.0, "lr = -1.0 must not be negative"),
    ("lr", INF, "lr = inf must be finite"),
    ("lr", NAN, "lr = nan must be finite"),
    ("lr", torch.ones(2), "lr must be"),
    ("lr", torch.ones((), device="meta"), "a tensor on device 'meta' .*has a shape, and no numbers"),
    ("betas", (0.9, NAN), "beta2 = nan must be finite"),
    ("betas", (1.0, 0.9), "beta1 = 1.0"),
    ("betas", (0.9, 1.0), r"beta2 = 1\.0 must lie in"),
    *(("betas", betas, "must be 2 numbers: beta1, beta2") for betas in BETAS),
    ("eps", INF, "epsilon = inf must be finite"),
    ("eps", -1e-8, "epsilon = -1e-08"),
    ("weight_decay", NAN, "weight_decay = nan"),
    ("weight_decay", -0.1, "weight_decay = -0.1"),
    *(("maximize", x, f"maximize must be True or False, not {x!r}") for x in (1, "yes", None, 0.5)),
    ("capturable", 1, "capturable must be True or False, not 1"),
    *((name, True, f"no {name} = True: {ABSENT[name].why[:20]}") for name in list(ABSENT)[:-1]),
    *((name, False, f"no {name} = False: {ABSENT[name].why[:20]}") for name in list(ABSENT)[-1:]),
]


@pytest.mark.parametrize("taker", [0, pytest.param(1, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize(("name", "x", "message"), OUT_OF_RANGE, ids=str)
def test_what_is_out_of_range_is_refused_wherever_it_comes_from(name, x, message, taker):
    """In a constructor, a group, a state, or what a scheduler has left in one: nothing changes then."""
    given = {name: x}
    takers = [kind for kind in KINDS.values() if name in {*ABSENT, *inspect.signature(kind).parameters}]
    for kind in takers[: taker + 1]:
        optimizer, group = kind([{"params": [p]} for p in parameters()]), {"params": parameters(), **given}
        run(optimizer, [0])
        before, saved = frozen(optimizer), copy.deepcopy(optimizer.state_dict())
        saved["param_groups"][1].update(given)
        for make, where in (
            (partial(kind, parameters(), **given), ""),
            (partial(kind, [group]), ""),
            (partial(optimizer.add_param_group, group), ""),
            (partial(optimizer.load_state_dict, saved), "the state's group 1: .*"),
        ):
            with pytest.raises(ValueError if where else (TypeError, ValueError), match=where + message):
                make()
        assert_same_states(frozen(optimizer), before)
        if name not in ABSENT:
            optimizer.param_groups[1].update(given)
            with pytest.raises((TypeError, ValueError), match=message):
                run(optimizer, [1])
            before.pop("groups")
            assert_same_states(runs.states(optimizer), before)


def leaf(**options):
    return torch.nn.Parameter(torch.zeros(2, **{"dtype": torch.bfloat16, **options}), requires_grad=False)


@pytest.mark.parametrize(
    ("weight", "options", "message"),
    [
        (leaf(dtype=torch.float32), {}, r"as torch.bfloat16, not torch.float32; convert .*\.to\("),
        (leaf(), {"strategy": "fp32"}, "stores parameters as torch.float32"),
        (leaf(), {"low": "float16"}, r"stores parameters as torch\.float16, not torch\.bfloat16"),
        (leaf(dtype=torch.complex64), {}, "not torch.complex64"),
        (leaf(device="meta"), {}, "has a shape, and no numbers"),
        (torch.nn.Parameter(torch.zeros(1).bfloat16().expand(3)), {}, "share memory"),
        (leaf(), {"strategy": "colage-plus"}, "did you mean 'collage-plus'"),
        (leaf(), {"strategy": "exact"}, "exact numbers, which no tensor holds"),
        (leaf(), {"low": "e6m9"}, "no torch dtype holds e6m9"),
        (leaf(), {"low": "bfloat17"}, "bfloat17"),
        (leaf(), {"rounding": "upward"}, "unknown rounding 'upward'"),
        (leaf(), {"scalars": "float"}, "unknown scalar policy 'float'"),
        (leaf(dtype=torch.float64), {"low": "float64"}, "fma in float64, .* has no exact path"),
        (leaf(), {"rounding": "stochastic"}, r"needs random=RandomWords\(seed\)"),
        (leaf(), {"rounding": "stochastic", "random": 5}, "random must be RandomWords"),
        (leaf(), {"random": np.zeros(4, np.uint32)}, "random must be RandomWords"),
        *(
            (leaf(), {"strategy": name, "random": mcf.RandomWords(1, operation=2**32 - 1)}, "must lie in")
            for name in ("stochastic", "dqt-int8")
        ),
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.filterwarnings("ignore::mcfsim.VanishingScalarWarning")
def test_a_group_that_is_refused_is_not_added(weight, options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        AdamW([weight], **options)
    optimizer = AdamW(parameters())
    with pytest.raises((TypeError, ValueError), match=message):
        optimizer.add_param_group({"params": [weight], **options})
    assert len(optimizer.param_groups) == 1


def test_a_parameter_without_elements_shares_no_memory():
    """NumPy's arrays have no strides where they have no elements."""
    empty = torch.from_numpy(np.zeros((0, 3), np.float32)).bfloat16()
    assert empty.stride() == (0, 0)
    optimizer = AdamW([torch.nn.Parameter(empty)])
    optimizer.param_groups[0]["params"][0].grad = empty.clone()
    optimizer.step()


def test_parameters_of_one_memory_are_refused():
    """Small ones lost a step, and what lay beside one was of the numbers before the other's step."""
    table, head = leaf(), leaf()
    head.data = table.data
    optimizer = AdamW([table, leaf()])
    with pytest.raises(ValueError, match=r"\(2,\) has the memory of another, .*head\.weight = table"):
        optimizer.add_param_group({"params": [head]})
    with pytest.raises(ValueError, match="has the memory of another,"):
        AdamW([table, head])
    assert len(optimizer.param_groups) == 1
    whole = torch.zeros(12, dtype=torch.bfloat16)
    rows = whole.view(3, 4)
    for parts in ((whole[:2], whole[:0], whole[2:]), (rows[:, :2], rows[:, 2:]), (whole[::2], whole[1::2])):
        AdamW([torch.nn.Parameter(x) for x in parts])  # as a flat buffer has them
    for parts in (
        (whole[:8], whole[7:]),
        (rows[:, 1:3], rows[:, :2]),
        (whole, whole[5:6]),
        (whole[::2], rows[1]),
    ):
        with pytest.raises(ValueError, match="has the memory of another,"):
            AdamW([{"params": torch.nn.Parameter(x)} for x in parts])
    for given in (whole.expand(2, 12), whole.as_strided((3, 3), (1, 1)), whole.as_strided((3, 2), (2, 4))):
        with pytest.raises(TypeError, match="elements of the parameter share memory"):
            AdamW([torch.nn.Parameter(given)])
    AdamW([torch.nn.Parameter(whole.as_strided((3, 2), (2, 3)))])


#: What is wrong with what a constructor is given as parameters, or with its call.
CALLS = {
    "should be an iterable of Tensors or dicts": lambda kind, p: kind(p.detach()),
    "empty parameter list": lambda kind, p: kind([]),
    "can only optimize Tensors": lambda kind, p: kind([3.0]),
    "non-leaf": lambda kind, p: kind([p * 2]),
    "more than one parameter group": lambda kind, p: kind([{"params": [p]}, {"params": [p]}]),
    "missing a required argument: 'params'": lambda kind, p: kind(),
    "multiple values for argument 'lr'": lambda kind, p: kind([p], 1e-3, lr=1e-3),
    "too many positional arguments": lambda kind, p: kind([p], 1e-3, *range(19)),
    "a group has no 'params'": lambda kind, p: kind([{"lr": 1e-3}]),
}


@pytest.mark.parametrize("message", CALLS)
@every_kind
def test_what_is_no_list_of_parameters_is_refused(kind, message):
    with pytest.raises((TypeError, ValueError), match=message):
        CALLS[message](kind, *parameters([(5,)]))


def test_scalars_that_vanish_are_warned_of():
    half = {"params": [leaf(dtype=torch.float16)], "low": "float16"}
    optimizer = AdamW([leaf()])
    for options, said in (({}, "epsilon = 1e-08"), ({"eps": 1e-7, "lr": 1e-8}, "lr = 1e-08")):
        with pytest.warns(mcf.VanishingScalarWarning, match=f"{said} is zero in float16"):
            optimizer.add_param_group({**half, **options})
        half["params"] = [leaf(dtype=torch.float16)]
    AdamW([leaf(dtype=torch.float16)], strategy="fp32-optim", low="float16")


def test_a_parameter_that_is_twice_in_its_group_is_warned_of_and_moves_once():
    for name_of in (lambda name, p: p, lambda name, p: (name, p)):
        first, second = parameters([(5,), (5,)])
        with pytest.warns(UserWarning, match="duplicate parameters"):
            optimizer = AdamW([name_of("a", first), name_of("b", second), name_of("c", first)], 1e-2)
        assert [id(p) for p in listed(optimizer)] == [id(first), id(second)]
        assert optimizer.param_groups[0].get("param_names", ["a", "b"]) == ["a", "b"]
        other = AdamW(parameters([(5,), (5,)]), 1e-2)
        run(optimizer, range(3))
        run(other, range(3))
        assert_same_states(optimizer, other)


# -- signs, and an eps of zero ----------------------------------------------------------------------------
@pytest.mark.parametrize("rounding", ["nearest_even", "toward_zero", "up"])
@every_kind
@pytest.mark.sampled(16, each=False)
@pytest.mark.slow
def test_to_maximise_is_to_take_gradients_with_the_other_sign(kind, rounding):
    """Those that are given stay as they are."""
    one, two = parameters(), parameters()
    options = {"lr": 1e-2, "weight_decay": 0.1, "rounding": rounding}
    ours = kind([{"params": one[:1], "maximize": True}, {"params": one[1:]}], **options)
    theirs = kind([{"params": two[:1]}, {"params": two[1:]}], **options)
    for step in range(3):
        for given in (one, two):
            runs.give(given, step)
        kept = [p.grad for p in two]
        two[0].grad = -two[0].grad
        ours.step()
        theirs.step()
        pairs = zip(one, kept, strict=True)
        runs.assert_all_same((step, runs.array(p.grad), runs.array(x)) for p, x in pairs)
    assert_same_states(ours, theirs)


@pytest.mark.parametrize("name", ["float8_e5m2", "float8_e4m3fn", "float16", "float64"])
def test_every_number_gets_the_other_sign(name):
    dtype = getattr(torch, name)
    if dtype.itemsize == 1:
        x = torch.arange(256, dtype=torch.int16).to(torch.uint8).view(dtype)
    else:
        x = runs.hard((4000,), dtype, torch.Generator().manual_seed(0))
    found, given = opposite(x).to(torch.float64), x.to(torch.float64)
    assert torch.equal(found.isnan(), given.isnan())
    numbers = ~given.isnan()
    assert torch.equal(found[numbers], -given[numbers])
    assert torch.equal(found[numbers].signbit(), ~given[numbers].signbit())


@pytest.mark.parametrize("strategy", ["plain", "collage-plus", "fp32"])
@pytest.mark.parametrize("kind", [AdamW, TorchAdamW])
def test_an_eps_of_zero_adds_nothing(kind, strategy):
    """It is as one too small to be added to any root, and 0 / 0 where there was no gradient."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", mcf.VanishingScalarWarning)
        ours, theirs, still = (
            kind(parameters(dtype=runs.dtype_of(strategy)), 1e-2, eps=eps, strategy=strategy)
            for eps in (0, 1e-37, 0.0)
        )
    for step in range(0, 6, 2):
        for optimizer in (ours, theirs):
            run(optimizer, [step])
    assert_same_states(ours, theirs)
    for p in listed(still):
        p.grad = torch.zeros_like(p)
    still.step()
    assert all(p.isnan().all() for p in listed(still))


# -- without PyTorch --------------------------------------------------------------------------------------
WITHOUT_PYTORCH = """
import sys
sys.modules["torch"] = None
for name in ("mcfsim.torch", "mcfsim.torch.step", "mcfsim.torch.group"):
    try:
        __import__(name)
    except ImportError as problem:
        print(problem)
"""


@pytest.mark.slow
def test_without_pytorch_it_says_what_to_install():
    done = subprocess.run([sys.executable, "-c", WITHOUT_PYTORCH], capture_output=True, text=True, check=True)
    assert done.stdout == "mcfsim.torch needs PyTorch: pip install 'mcfsim[torch]'\n" * 3
