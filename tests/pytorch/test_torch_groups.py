"""What a group, a constructor and a loaded state may say: all is looked at, and nothing left half done."""

import copy
import inspect
import math
import subprocess
import sys
import warnings

import numpy as np
import pytest

import mcfsim as mcf

torch = pytest.importorskip("torch")

import mcfsim.torch  # noqa: E402
from mcfsim.optim.declaration import straight_optimizers  # noqa: E402
from mcfsim.torch import adopt, release  # noqa: E402
from mcfsim.torch.group import ABSENT, LABELS, SETTINGS  # noqa: E402
from tests.pytorch.steps import assert_same_states, hard  # noqa: E402

KINDS = {item.__name__: getattr(mcfsim.torch, item.__name__) for item in straight_optimizers().values()}
every_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


def parameters(count=2, dtype=torch.bfloat16, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.nn.Parameter(torch.randn(5, generator=generator).to(dtype)) for _ in range(count)]


def run(given, optimizer, steps, sign=1):
    for step in steps:
        generator = torch.Generator().manual_seed(50 + step)
        for p in given:
            p.grad = sign * hard(p.shape, p.dtype, generator)
        optimizer.step()


def hyperparameters(kind):
    """Return what a constructor takes beside parameters, rate and settings."""
    return [x for x in inspect.signature(kind).parameters if x not in ("params", "lr", *SETTINGS)]


# -- names ------------------------------------------------------------------------------------------------
@every_kind
def test_constructors_follow_from_the_declaration(kind):
    """Each hyperparameter of the declaration is known, by PyTorch's name; a step has the number given."""
    given, declared = hyperparameters(kind), kind._declaration
    assert set(given) <= {"betas", "eps", "momentum", "weight_decay"}
    values = {"betas": (0.25, 0.5), "eps": 0.125, "momentum": 0.75, "weight_decay": 0.375}
    named = kind(parameters(), 1.0, **{name: values[name] for name in given})
    placed = kind(parameters(), 1.0, *(values[name] for name in given))
    grouped = kind([{"params": parameters(), **{name: values[name] for name in given}}])
    numbers = {"beta1": 0.25, "beta2": 0.5, "epsilon": 0.125, "momentum": 0.75, "weight_decay": 0.375}
    fields = inspect.signature(declared).parameters
    for optimizer in (named, placed, grouped):
        assert optimizer._hyper(optimizer.param_groups[0]) == declared(**{x: numbers[x] for x in fields})
    defaults = kind(parameters())
    decay = {"weight_decay": 0.01} if "betas" in given and "eps" in given else {}
    assert defaults._hyper(defaults.param_groups[0]) == declared(**decay)


@every_kind
def test_an_unknown_name_is_refused_wherever_it_stands(kind):
    (p,) = parameters(1)
    allowed = {"lr", *SETTINGS, *hyperparameters(kind)}
    for name in sorted(allowed):
        wrong = name + name[-1]
        message = rf"has no '{wrong}' \(did you mean '{name}'\?\)"
        with pytest.raises(TypeError, match=message):
            kind([p], **{wrong: 1})
        with pytest.raises(TypeError, match=message):
            kind([{"params": [p], wrong: 1}])
        optimizer = kind(parameters(1))
        with pytest.raises(TypeError, match=message):
            optimizer.add_param_group({"params": [p], wrong: 1})
        assert len(optimizer.param_groups) == 1
    with pytest.raises(TypeError, match=r"has no 'beta1'"):
        kind([{"params": [p], "beta1": 0.9}])
    labelled = kind([{"params": [p], **dict.fromkeys(LABELS[2:], 1)}])
    assert labelled.param_groups[0]["name"] == 1


@pytest.mark.parametrize("kind", [mcfsim.torch.AdamW, mcfsim.torch.Lion])
def test_a_constructor_takes_the_names_of_the_simulated_optimizer(kind):
    (p,) = parameters(1)
    default = kind([p]).defaults["betas"]
    assert kind([p], beta1=0.5, beta2=0.25).defaults["betas"] == (0.5, 0.25)
    assert kind([p], beta2=0.25).defaults["betas"] == (default[0], 0.25)
    with pytest.raises(TypeError, match="is given betas and beta1, which it holds"):
        kind([p], beta1=0.5, betas=(0.5, 0.25))


@every_kind
def test_what_pytorch_has_beside_is_taken_if_it_is_off(kind):
    (p,) = parameters(1)
    off = {name: absent.off[0] for name, absent in ABSENT.items()}
    optimizer = kind([{"params": [p], **off}], **off)
    assert not optimizer.param_groups[0].keys() & off.keys()
    saved = optimizer.state_dict()
    saved["param_groups"][0].update(off)
    optimizer.load_state_dict(saved)
    for name, absent in ABSENT.items():
        on = next(x for x in (True, False) if x not in absent.off)
        message = f"{name} = {on}: {absent.why[:20]}"
        with pytest.raises(ValueError, match=message):
            kind([p], **{name: on})
        with pytest.raises(ValueError, match=message):
            kind([{"params": [p], name: on}])
        before = copy.deepcopy(optimizer.param_groups)
        with pytest.raises(ValueError, match=message):
            optimizer.load_state_dict({**saved, "param_groups": [{**saved["param_groups"][0], name: on}]})
        assert optimizer.param_groups[0].keys() == before[0].keys()


@pytest.mark.parametrize("flag", ["maximize", "capturable"])
@pytest.mark.parametrize("x", [1, "yes", None, 0.5])
def test_what_is_on_or_off_is_a_truth_value(flag, x):
    given = parameters()
    with pytest.raises(TypeError, match=f"{flag} must be True or False, not {x!r}"):
        mcfsim.torch.AdamW(given, **{flag: x})
    optimizer = mcfsim.torch.AdamW(given)
    optimizer.param_groups[0][flag] = x
    with pytest.raises(TypeError, match=f"{flag} must be True or False, not {x!r}"):
        run(given, optimizer, [0])
    assert not optimizer.state


def test_an_argument_that_is_missing_or_too_much_is_named():
    (p,) = parameters(1)
    for make, message in [
        (lambda: mcfsim.torch.AdamW(), "missing a required argument: 'params'"),
        (lambda: mcfsim.torch.AdamW([p], 1e-3, lr=1e-3), "multiple values for argument 'lr'"),
        (lambda: mcfsim.torch.SGD([p], 1e-3, 0.9, 0.1, "plain"), "too many positional arguments"),
        (lambda: mcfsim.torch.AdamW([{"lr": 1e-3}]), "a group has no 'params'"),
        (lambda: mcfsim.torch.AdamW([p], torch.ones((), device="meta")), "has a shape, and no numbers"),
    ]:
        with pytest.raises(TypeError, match=message):
            make()
    assert mcfsim.torch.AdamW(params=[p], lr=0.5).param_groups[0]["lr"] == 0.5


BETAS = [(0.9,), (), (0.9, 0.99, 0.999), 0.9, None, "99", torch.tensor([0.9]), [0.9], {0.9: 0.99}]


@pytest.mark.parametrize("betas", BETAS, ids=str)
@pytest.mark.parametrize("kind", [mcfsim.torch.AdamW, mcfsim.torch.TorchAdamW, KINDS["Lion"]])
def test_betas_are_two_numbers_wherever_they_come_from(kind, betas):
    given = parameters()
    optimizer = kind(given)
    run(given, optimizer, range(2))
    before = copy.deepcopy(optimizer.state_dict())
    for make in (lambda: kind(given, betas=betas), lambda: kind([{"params": given, "betas": betas}])):
        with pytest.raises(ValueError, match="must be 2 numbers: beta1, beta2"):
            make()
    saved = copy.deepcopy(before)
    saved["param_groups"][0]["betas"] = betas
    with pytest.raises(ValueError, match=r"the state's group 0: betas = .* must be 2 numbers"):
        optimizer.load_state_dict(saved)
    assert str(optimizer.state_dict()) == str(before)
    optimizer.param_groups[0]["betas"] = betas
    with pytest.raises(ValueError, match="must be 2 numbers"):
        optimizer.step()
    assert str(optimizer.state_dict()["state"]) == str(before["state"])


def test_betas_may_be_a_list_or_a_tensor():
    for betas in ([0.5, 0.25], np.array([0.5, 0.25]), torch.tensor([0.5, 0.25]), (torch.tensor([0.5]), 0.25)):
        optimizer = mcfsim.torch.AdamW(parameters(), betas=betas)
        assert optimizer._hyper(optimizer.param_groups[0]).beta2 == 0.25


# -- parameters twice ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("named", [False, True])
def test_a_parameter_that_is_twice_in_its_group_is_warned_of_and_moves_once(named):
    first, second = parameters()
    doubled = [("a", first), ("b", second), ("c", first)] if named else [first, second, first]
    with pytest.warns(UserWarning, match="duplicate parameters"):
        optimizer = mcfsim.torch.AdamW(doubled, 1e-2)
    assert [id(p) for p in optimizer.param_groups[0]["params"]] == [id(first), id(second)]
    assert optimizer.param_groups[0].get("param_names", ["a", "b"]) == ["a", "b"]
    others = parameters()
    other = mcfsim.torch.AdamW(others, 1e-2)
    run([first, second], optimizer, range(3))
    run(others, other, range(3))
    assert_same_states(optimizer, other)


# -- signs --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("rounding", ["nearest_even", "toward_zero", "up"])
@every_kind
def test_to_maximise_is_to_take_gradients_with_the_other_sign(kind, rounding):
    one, two = parameters(), parameters()
    options = {"lr": 1e-2, "weight_decay": 0.1, "rounding": rounding}
    ours = kind([{"params": one[:1], "maximize": True}, {"params": one[1:]}], **options)
    theirs = kind([{"params": two[:1]}, {"params": two[1:]}], **options)
    for step in range(3):
        run(one, ours, [step])
        given = [p.grad.clone() for p in one]
        for p, g, sign in zip(two, given, (-1, 1), strict=True):
            p.grad = sign * g
        theirs.step()
        for x, p in zip(given, one, strict=True):  # gradients stay as they are
            np.testing.assert_array_equal(x.double().numpy(), p.grad.double().numpy())
    assert_same_states(ours, theirs)


@pytest.mark.parametrize(
    "dtype", [torch.float8_e5m2, torch.float8_e4m3fn, torch.float16, torch.float64], ids=str
)
def test_every_number_gets_the_other_sign(dtype):
    from mcfsim.torch.moved import opposite

    if dtype.itemsize == 1:
        x = torch.arange(256, dtype=torch.int16).to(torch.uint8).view(dtype)
    else:
        x = hard((4000,), dtype, torch.Generator().manual_seed(0))
    found, given = opposite(x).to(torch.float64), x.to(torch.float64)
    assert torch.equal(found.isnan(), given.isnan())
    numbers = ~given.isnan()
    assert torch.equal(found[numbers], -given[numbers])
    assert torch.equal(found[numbers].signbit(), ~given[numbers].signbit())


def test_a_run_that_maximises_is_taken_over_and_given_back():
    """So are numbers of a group that nobody here knows."""
    given = parameters(dtype=torch.float32)
    theirs = torch.optim.AdamW([{"params": given, "layer": 3}], 1e-2, maximize=True)
    ours = adopt(theirs, "fp32")
    assert ours.param_groups[0]["maximize"] is True
    assert ours.param_groups[0]["layer"] == 3
    before = [p.detach().clone() for p in given]
    for p in given:
        p.grad = torch.ones_like(p)
    ours.step()
    assert all((p > q).all() for p, q in zip(given, before, strict=True))
    back = release(ours)
    assert back.param_groups[0]["maximize"] is True
    assert back.param_groups[0]["layer"] == 3


# -- an eps of zero -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("strategy", ["plain", "collage-plus", "fp32"])
@pytest.mark.parametrize("kind", [mcfsim.torch.AdamW, mcfsim.torch.TorchAdamW])
def test_an_eps_of_zero_adds_nothing(kind, strategy):
    """It is as one too small to be added to any root, and 0 / 0 where there was no gradient."""
    dtype = torch.float32 if strategy == "fp32" else torch.bfloat16
    one, two = parameters(dtype=dtype), parameters(dtype=dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("error", mcf.VanishingScalarWarning)
        ours, theirs = (kind(x, 1e-2, eps=eps, strategy=strategy) for x, eps in ((one, 0), (two, 1e-37)))
    for step in range(3):
        generator = torch.Generator().manual_seed(step)
        for p, q in zip(one, two, strict=True):
            p.grad = q.grad = torch.randn(p.shape, generator=generator).to(dtype)
        ours.step()
        theirs.step()
    assert_same_states(ours, theirs)
    still = parameters(dtype=dtype)
    optimizer = kind(still, 1e-2, eps=0.0, strategy=strategy)
    for p in still:
        p.grad = torch.zeros_like(p)
    optimizer.step()
    assert all(p.isnan().all() for p in still)


# -- loaded states ------------------------------------------------------------------------------------------
def spoilt():
    """Yield what is wrong with a state by name: what makes it so, and what is said."""
    for step in (
        -3,
        2.5,
        math.nan,
        math.inf,
        "3",
        None,
        True,
        [3],
        torch.tensor(-1.0),
        torch.tensor([1.0, 2.0]),
    ):
        yield (
            f"step {step}",
            lambda x, step=step: x["state"][1].update(step=step),
            "the state of parameter 1: step",
        )
    meta = torch.empty(5, dtype=torch.bfloat16, device="meta")
    yield "meta", lambda x: x["state"][1].update(m=meta), "parameter 1: a tensor on device 'meta'"
    sparse = torch.zeros(5, dtype=torch.bfloat16).to_sparse()
    yield "sparse", lambda x: x["state"][1].update(m=sparse), "parameter 1: .*sparse"
    yield "none", lambda x: x["state"][1].update(m=None), "parameter 1: it has .*NoneType"
    yield "lacking", lambda x: x["state"][1].pop("m"), "parameter 1: it has"
    yield "no state", lambda x: x["state"].update({1: [1]}), "parameter 1: a list is no state"
    yield "stray", lambda x: x["state"].update({7: x["state"][1]}), "the state has parameter 7"
    yield "rate", lambda x: x["param_groups"][1].update(lr=-1.0), "group 1: lr = -1.0 must not"
    yield "rates", lambda x: x["param_groups"][1].update(lr=torch.ones(2)), "group 1: lr must be"
    yield "decay", lambda x: x["param_groups"][1].update(weight_decay=math.nan), "group 1: weight_decay = nan"
    yield "flag", lambda x: x["param_groups"][1].update(maximize="no"), "group 1: maximize must be"
    yield "amsgrad", lambda x: x["param_groups"][1].update(amsgrad=True), "group 1: it has no amsgrad = True"
    for groups in (None, 3, [None], [{"lr": 1.0}], [{"params": None}]):
        yield (
            f"groups {groups}",
            lambda x, groups=groups: x.update(param_groups=groups),
            "has no param_groups, a list",
        )
    for states in (None, [], 3):
        yield f"states {states}", lambda x, states=states: x.update(state=states), "has no state, a dict"
    yield "low", lambda x: x["param_groups"][1].update(low="float16"), "group 1: it has low"
    yield "meta rate", lambda x: x["param_groups"][1].update(lr=meta[0]), "group 1: a tensor on device 'meta'"
    yield "no groups", lambda x: x.pop("param_groups"), "has no param_groups"
    yield "no states", lambda x: x.pop("state"), "has no state"


SPOILT = {name: (change, message) for name, change, message in spoilt()}


@pytest.mark.parametrize("name", SPOILT)
@every_kind
def test_a_bad_state_is_refused_whole(kind, name):
    change, message = SPOILT[name]
    given, optimizer = started(kind)
    saved = copy.deepcopy(optimizer.state_dict())
    run(given, optimizer, range(2, 4))
    change(saved)
    before = copy.deepcopy(optimizer.state_dict())
    kept = [x for p in given for x in optimizer.state[p].values() if isinstance(x, torch.Tensor)]
    with pytest.raises(ValueError, match=message):
        optimizer.load_state_dict(saved)
    assert str(optimizer.state_dict()) == str(before)
    after = [x for p in given for x in optimizer.state[p].values() if isinstance(x, torch.Tensor)]
    assert all(x is y for x, y in zip(kept, after, strict=True))


def started(kind):
    given = parameters()
    optimizer = kind([{"params": given[:1]}, {"params": given[1:]}], 1e-2)
    run(given, optimizer, range(2))
    return given, optimizer


@every_kind
def test_what_is_no_state_is_refused(kind):
    for x in (None, [], 3, "state"):
        with pytest.raises(ValueError, match=f"a {type(x).__name__} is no state of an optimizer"):
            kind(parameters()).load_state_dict(x)


@pytest.mark.parametrize("step", [3, 3.0, torch.tensor(3.0), torch.tensor([3]), np.int64(3)], ids=repr)
def test_a_step_that_is_whole_is_taken_as_torch_has_it(step):
    given, optimizer = started(mcfsim.torch.AdamW)
    saved = copy.deepcopy(optimizer.state_dict())
    saved["state"][0]["step"] = step
    optimizer.load_state_dict(saved)
    assert [type(optimizer.state[p]["step"]) for p in given] == [int, int]
    assert optimizer.state[given[0]]["step"] == 3


# -- without PyTorch ------------------------------------------------------------------------------------
def test_without_pytorch_it_says_what_to_install():
    code = """
import sys
sys.modules["torch"] = None
for name in ("mcfsim.torch", "mcfsim.torch.step", "mcfsim.torch.group"):
    try:
        __import__(name)
    except ImportError as error:
        assert "mcfsim.torch needs PyTorch: pip install 'mcfsim[torch]'" in str(error), error
    else:
        raise AssertionError(name)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
