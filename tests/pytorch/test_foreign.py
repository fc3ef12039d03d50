"""Runs of other libraries' AdamW are taken over and given back, where these are installed by themselves."""

import copy
import importlib
from fractions import Fraction
from types import SimpleNamespace

import pytest
import torch

from mcfsim.formats import FORMATS
from mcfsim.optim.stored import DYNAMIC, DYNAMIC_UNSIGNED
from mcfsim.oracle import round_fraction
from mcfsim.torch import AdamW, adopt, release
from mcfsim.torch.foreign import LIBRARIES
from tests.pytorch.runs import assert_same_states, dtype_of, listed, run, states

#: Of more and fewer than 4096 numbers, and of whole blocks of 256 or not.
SHAPES = ((64, 128), (100, 50), (7,))
FLOAT32 = FORMATS["float32"]


def parameters(dtype=torch.bfloat16):
    generator = torch.Generator().manual_seed(0)
    return [torch.nn.Parameter((torch.randn(x, generator=generator) * 0.02).to(dtype)) for x in SHAPES]


def begun(strategy="plain+int8", steps=3):
    optimizer = AdamW(parameters(dtype_of(strategy)), 1e-2, (0.8, 0.99), 1e-6, 0.1, strategy=strategy)
    train(optimizer, range(0, 2 * steps, 2))
    return optimizer


def train(optimizer, steps):
    run(optimizer, steps)


def saved(optimizer, state_of, **entries):
    """Return a state dict with what `state_of` makes of a parameter's own state."""
    copies = [copy.deepcopy(optimizer.state[p]) for p in listed(optimizer)]
    given = {place: state_of(state) for place, state in enumerate(copies)}
    group = {"params": [*given], "lr": 1e-2, "betas": (0.8, 0.99), "eps": 1e-6, "weight_decay": 0.1}
    return {"state": given, "param_groups": [{**group, **entries}]}


class OptimState8bit(SimpleNamespace):
    """What torchao's class of this name holds."""


def in_torchao(state):
    made = {"step": torch.tensor(float(state["step"]))}
    for name, theirs, table in (("m", "exp_avg", DYNAMIC), ("v", "exp_avg_sq", DYNAMIC_UNSIGNED)):
        scale, qmap = state[f"{name}_scales"].reshape(-1), torch.from_numpy(table.table.copy())
        made[theirs] = OptimState8bit(codes=state[name], scale=scale, qmap=qmap)
    return made


def in_bitsandbytes(state):
    made = {"step": state["step"]}
    for place, name, table in ((1, "m", DYNAMIC), (2, "v", DYNAMIC_UNSIGNED)):
        made |= {f"state{place}": state[name], f"qmap{place}": torch.from_numpy(table.table.copy())}
        made[f"absmax{place}"] = state[f"{name}_scales"].reshape(-1)
    return made


# -- as states lie there -----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("library", "state_of"), [("torchao", in_torchao), ("bitsandbytes", in_bitsandbytes)]
)
def test_codes_and_scales_are_taken_over_as_they_are(library, state_of):
    ours = begun()
    given = [torch.nn.Parameter(p.detach().clone()) for p in listed(ours)]
    taken = adopt(saved(ours, state_of), "plain+int8", from_=library, params=given)
    assert_same_states(taken, ours)
    group = taken.param_groups[0]
    assert [group[name] for name in ("lr", "betas", "eps", "weight_decay")] == [1e-2, (0.8, 0.99), 1e-6, 0.1]
    train(taken, [1])
    train(ours, [1])
    assert_same_states(taken, ours)


@pytest.mark.parametrize(
    ("library", "state_of"), [("torchao", in_torchao), ("bitsandbytes", in_bitsandbytes)]
)
def test_codes_become_the_numbers_that_they_stand_for(library, state_of):
    """Under other strategies as by a switch; of an own table by that table."""
    ours = begun()
    given = [torch.nn.Parameter(p.detach().clone()) for p in listed(ours)]
    state = saved(ours, state_of)
    taken = adopt(state, "fp32-master", from_=library, params=given)
    other = adopt(ours, "fp32-master")
    assert_same_states(taken, other)
    given = parameters()
    for x in state["state"].values():
        tables = (
            [x["exp_avg"].qmap, x["exp_avg_sq"].qmap] if library == "torchao" else [x["qmap1"], x["qmap2"]]
        )
        for table in tables:
            table *= 0.5
    halved = adopt(state, "fp32-optim", from_=library, params=given)
    for p, q in zip(given, listed(other), strict=True):
        assert torch.equal(2 * halved.state[p]["m"], other.state[q]["m"])
        assert torch.equal(2 * halved.state[p]["v"], other.state[q]["v"])


def test_the_compensation_of_optimi_is_kahan_s_and_its_moments_lose_their_correction():
    ours, count = begun("kahan"), 3

    def state_of(state):
        m, v = (state[name].double() for name in "mv")
        return {
            "exp_avg": (m / (1 - 0.8**count)).bfloat16(),
            "exp_avg_sq": (v / (1 - 0.99**count)).bfloat16(),
            "kahan_comp": state["compensation"],
        }

    state = saved(ours, state_of, beta1=0.8, beta2=0.99, step=torch.tensor(count, dtype=torch.int32))
    given = [torch.nn.Parameter(p.detach().clone()) for p in listed(ours)]
    taken = adopt(state, "kahan", from_="optimi", params=given)
    for place, (p, q) in enumerate(zip(given, listed(ours), strict=True)):
        own, kept = taken.state[p], state["state"][place]
        assert torch.equal(p, q)
        assert torch.equal(own["compensation"], kept["kahan_comp"])
        assert own["step"] == count
        for name, theirs, beta in (("m", "exp_avg", 0.8), ("v", "exp_avg_sq", 0.99)):
            assert torch.equal(own[name], (kept[theirs].double() * (1 - beta**count)).bfloat16())
    with pytest.raises(ValueError, match="set decouple_lr=False"):
        adopt(saved(ours, state_of, beta1=0.8, beta2=0.99, decouple_lr=True), from_="optimi", params=given)


def test_the_moments_of_flashoptim_are_read_by_its_formulas_and_its_rest_is_a_remainder():
    """Each operation rounded to binary32, by the judge."""
    generator = torch.Generator().manual_seed(3)
    codes = torch.randint(-127, 128, (40,), generator=generator).to(torch.int8)
    unsigned = torch.randint(0, 256, (40,), generator=generator).to(torch.uint8)
    scales = torch.tensor([0.37, 1e-3]).half()
    rest = torch.randint(-127, 128, (40,), generator=generator).to(torch.int8)
    weight = torch.nn.Parameter(torch.randn(40, generator=generator).bfloat16())
    state = {
        "step": torch.tensor(5),
        "exp_avg::quantized": codes, "exp_avg::scales": scales.view(torch.bfloat16),
        "exp_avg_sq::quantized": unsigned, "exp_avg_sq::scales": scales,
        "error_bits": rest,
    }  # fmt: skip
    group = {"params": [0], "lr": 1e-2, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0}
    taken = adopt(
        {"state": {0: state}, "param_groups": [group]}, "remainder-8", from_="flashoptim", params=[weight]
    )

    def single(x):
        return Fraction(round_fraction(Fraction(x), FLOAT32))

    own = taken.state[weight]
    assert torch.equal(own["remainder"].view(torch.int8), rest)
    for place in range(40):
        scale = Fraction(scales[place // 32].item())
        y = single(Fraction(codes[place].item(), 127))
        m = single(single(y / single(2 - abs(y))) * scale)
        root = single(single(Fraction(unsigned[place].item(), 255)) * scale)
        assert own["m"][place].item() == m
        assert own["v"][place].item() == single(root * root)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"from_": "torchao"}, "params are the parameters of a state dict: give both or neither"),
        ({"params": "some"}, "say whose state it is by from_: one of torch, torchao"),
        ({"params": "some", "from_": "torchaoo"}, r"unknown library 'torchaoo' \(did you mean 'torchao'\?\)"),
        ({"params": "few", "from_": "torch"}, "the state is of 3 parameters, and 2 are given"),
    ],
)
def test_what_is_no_state_with_its_parameters_is_refused(options, text):
    ours, given = begun("plain"), parameters()
    before = states(ours)
    if "params" in options:
        options = {**options, "params": given[:2] if options["params"] == "few" else given}
    with pytest.raises((TypeError, ValueError), match=text):
        adopt(ours.state_dict() | {"optimizer": "x"}, "plain", **options)
    assert_same_states(states(ours), before)


def test_what_is_no_adamw_is_refused():
    given = parameters()
    for other in (torch.optim.SGD(given, 0.1), torch.optim.NAdam(given)):
        with pytest.raises(TypeError, match=r"only optimizers of mcfsim\.torch and of these .*bitsandbytes"):
            adopt(other)
    saved = torch.optim.AdamW(given, amsgrad=True).state_dict()
    with pytest.raises(ValueError, match="only torch's is taken over, not torchao's"):
        adopt(saved, from_="torchao", params=given)
    with pytest.raises(ValueError, match="from_ = 'optimi', and the optimizer is of torch"):
        adopt(torch.optim.AdamW(given), from_="optimi")
    with pytest.raises(ValueError, match=r"from_ = 'torch', and the optimizer is of mcfsim\.torch"):
        adopt(begun(), from_="torch")
    with pytest.raises(
        ValueError, match=r"no run of AdamW is given to 'torchoa' \(did you mean 'torchao'\?\)"
    ):
        release(begun(), to="torchoa")
    with pytest.raises(TypeError, match="state dict: give both or neither"):
        adopt(torch.optim.AdamW(given), params=given)


# -- by the libraries --------------------------------------------------------------------------------------
MAKES = {
    "torchao": ("torchao.optim", ("AdamW8bit", "AdamWFp8", "AdamW4bit")),
    "bitsandbytes": ("bitsandbytes.optim", ("AdamW8bit", "AdamW")),
    "optimi": ("optimi", ("AdamW",)),
}
assert {*MAKES} < {*LIBRARIES}


@pytest.fixture
def uncompiled():
    """Let torchao, which compiles its steps, make them without."""
    torch.compiler.set_stance("force_eager")
    yield
    torch.compiler.set_stance("default")


def peer(library, kind, given):
    module = pytest.importorskip(MAKES[library][0])
    return getattr(module, kind)(given, lr=1e-2)


@pytest.mark.parametrize("strategy", ["plain+int8", "kahan+int8", "collage-plus", "fp32-master"])
@pytest.mark.parametrize(
    ("library", "kind"), [(x, kind) for x, (_, kinds) in MAKES.items() for kind in kinds]
)
@pytest.mark.usefixtures("uncompiled")
@pytest.mark.costly("a library is imported")
def test_a_run_of_the_library_goes_on(library, kind, strategy):
    """Parameters keep their numbers, or with optimi's compensation become what was meant."""
    given = parameters()
    theirs = peer(library, kind, given)
    train(theirs, range(0, 6, 2))
    kept = [p.detach().clone() for p in given]
    comps = [theirs.state[p].get("kahan_comp") for p in given]
    ours = adopt(theirs, strategy)
    for p, q, comp in zip(given, kept, comps, strict=True):
        meant = q.double() + (0 if comp is None else comp.double())
        if strategy != "plain+int8":
            assert torch.equal(ours.represented(p), meant)
        assert torch.equal(p, meant.bfloat16())
        assert ours.state[p]["step"] == 3
    train(ours, [6])


@pytest.mark.parametrize("library", MAKES)
@pytest.mark.usefixtures("uncompiled")
@pytest.mark.costly("a library is imported")
def test_a_run_is_given_to_the_library_and_comes_back(library):
    pytest.importorskip(MAKES[library][0])
    strategy = "kahan" if library == "optimi" else "plain+int8"
    ours = begun(strategy)
    before = {p: {**ours.state[p], "parameter": p.detach().clone()} for p in listed(ours)}
    theirs = release(ours, torch.bfloat16, library)
    assert type(theirs).__module__.partition(".")[0] == library
    back = adopt(theirs, strategy)
    for p, old in before.items():
        assert torch.equal(p, old["parameter"])
        assert back.state[p]["step"] == old["step"]
        if library == "optimi":
            assert torch.equal(back.state[p]["compensation"], old["compensation"])
        elif p.numel() >= 4096 and p.numel() % 256 == 0:
            for name in ("m", "v", "m_scales", "v_scales"):
                assert torch.equal(back.state[p][name], old[name])
    train(release(back, torch.bfloat16, library), [1, 3])


def test_a_library_that_is_missing_is_named(monkeypatch):
    real = importlib.import_module

    def missing(name, *rest):
        if name.startswith("torchao"):
            raise ImportError("there is no torchao")
        return real(name, *rest)

    monkeypatch.setattr("mcfsim.torch.giving.import_module", missing)
    with pytest.raises(ImportError, match=r"to give a run to torchao\.optim, install it"):
        release(begun(), to="torchao")
