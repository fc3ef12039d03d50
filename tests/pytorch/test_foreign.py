"""Runs of other libraries' AdamW are taken over and given back, where these are installed by themselves."""

import copy
import importlib
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
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
    run(optimizer, range(0, 2 * steps, 2))
    return optimizer


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


def in_a_dict_of_bitsandbytes(state):
    """As its `state_dict` has them, so that FSDP casts no codes."""
    made = in_bitsandbytes(state)
    return {"step": made.pop("step"), "__bnb_optimizer_quant_state__": made}


# -- as states lie there -----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("library", "state_of"),
    [("torchao", in_torchao), ("bitsandbytes", in_bitsandbytes), ("bitsandbytes", in_a_dict_of_bitsandbytes)],
)
def test_codes_and_scales_are_taken_over_as_they_are(library, state_of):
    ours = begun()
    given = [torch.nn.Parameter(p.detach().clone()) for p in listed(ours)]
    taken = adopt(saved(ours, state_of), "plain+int8", from_=library, params=given)
    assert_same_states(taken, ours)
    group = taken.param_groups[0]
    assert [group[name] for name in ("lr", "betas", "eps", "weight_decay")] == [1e-2, (0.8, 0.99), 1e-6, 0.1]
    run(taken, [1])
    run(ours, [1])
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
    unlike = ({"decouple_lr": True}, "set decouple_lr=False"), ({"decouple_wd": False}, "decoupled")
    for refused, text in unlike:
        other = saved(ours, state_of, beta1=0.8, beta2=0.99, step=count, **refused)
        with pytest.raises(ValueError, match=text):
            adopt(other, from_="optimi", params=given)


@pytest.mark.parametrize("beside", [None, torch.zeros(1, dtype=torch.uint8)])
def test_a_state_of_optimi_without_compensation_goes_on(beside):
    """A byte stands for none in its Triton kernels; where gradients are released, parameters count steps."""
    ours, count = begun("fp32"), 3

    def state_of(state):
        x = torch.full_like(state["m"], 0.5)
        return {"exp_avg": x, "exp_avg_sq": x, "kahan_comp": beside, "step": torch.tensor(count)}

    given = [torch.nn.Parameter(p.detach().clone()) for p in listed(ours)]
    taken = adopt(saved(ours, state_of, beta1=0.8, beta2=0.99), "fp32", from_="optimi", params=given)
    for p, q in zip(given, listed(ours), strict=True):
        assert torch.equal(p, q)
        assert taken.state[p]["step"] == count
        for name, beta in (("m", 0.8), ("v", 0.99)):
            assert (taken.state[p][name].double() == float(np.float32(0.5 * (1 - beta**count)))).all()


def test_groups_of_other_sizes_are_read():
    """Of torchao in float8, whose groups are of as many codes as its option says."""
    codes = torch.randn(1000, generator=torch.Generator().manual_seed(0)).to(torch.float8_e4m3fn)
    for size in (128, 256, 512):
        scale = torch.arange(1.0, -(-1000 // size) + 1)
        held = type("OptimStateFp8", (), {"codes": codes, "scale": scale})()
        state = {0: {"step": 2, "exp_avg": held, "exp_avg_sq": held}}
        group = {"params": [0], "lr": 1e-2, "betas": (0.8, 0.99), "eps": 1e-6, "weight_decay": 0.1}
        weight = torch.nn.Parameter(torch.ones(1000))
        taken = adopt({"state": state, "param_groups": [group]}, "fp32", from_="torchao", params=[weight])
        expected = codes.float() * scale.repeat_interleave(size)[:1000]
        assert torch.equal(taken.state[weight]["m"], expected)


def of_library(library, state_of=in_bitsandbytes):
    """Return a function that says how a state dict of a library is altered."""

    def made(alter):
        def given(ours):
            found = saved(ours, state_of)
            alter(found["state"][0], found["param_groups"][0])
            return found, library

        return given

    return made


bitsandbytes, torchao = of_library("bitsandbytes"), of_library("torchao", in_torchao)
ALTERED = [
    (bitsandbytes(lambda x, _: x.pop("state1")), "with step, qmap1, .* one of bitsandbytes has state1"),
    (bitsandbytes(lambda x, _: x.pop("step")), r"shape \(64, 128\) has a state without a step"),
    (bitsandbytes(lambda x, _: x.update(step=-1)), "step = -1"),
    (bitsandbytes(lambda x, _: x.update(step=2.5)), "step must be an int, not 2.5"),
    (bitsandbytes(lambda x, _: x.update(state1=x["state1"].t())), r"128\) is of another: \(128, 64\)"),
    (bitsandbytes(lambda x, _: x.update(state1=x["state1"][:32])), r"is of another: \(32, 128\)"),
    (bitsandbytes(lambda x, _: x.update(absmax1=x["absmax1"][:7])), "8192 codes of m have 7 scales"),
    (bitsandbytes(lambda x, _: x.update(absmax1=x["absmax1"][:0])), "8192 codes of m have 0 scales"),
    (bitsandbytes(lambda _, x: x.pop("lr")), r"a group of an AdamW has lr, .*\['lr'\] are missing"),
    (torchao(lambda x, _: x.update(exp_avg=None)), "one of torchao has exp_avg, exp_avg_sq"),
    (of_library("torch", in_torchao)(lambda *_: None), r"\['amsgrad'\] are missing"),
    (of_library("optimi")(lambda *_: None), r"\['beta1', 'beta2'\] are missing"),
    (lambda ours: (ours.state_dict(), "torchao"), "with step, m, v, .* one of torchao has exp_avg"),
]


@pytest.mark.parametrize("place", range(len(ALTERED)))
def test_a_state_that_is_not_whole_or_another_s_is_refused(place):
    """And no moments are zeros, no steps none, and no rate the usual one in its place."""
    given_by, text = ALTERED[place]
    ours = begun()
    before = [p.detach().clone() for p in listed(ours)]
    found, library = given_by(ours)
    with pytest.raises((TypeError, ValueError), match=text):
        adopt(found, "plain", from_=library, params=listed(ours))
    assert all(map(torch.equal, before, listed(ours)))


@pytest.mark.parametrize("kind", ["SGD", "RMSprop", "NAdam", "RAdam", "Adamax"])
def test_a_state_of_another_optimizer_of_pytorch_is_refused(kind):
    given = parameters()
    other = getattr(torch.optim, kind)(given, 0.1)
    run(other, [1])
    with pytest.raises(ValueError, match=r"a group of torch\.optim\.AdamW has .*'amsgrad'\] are missing"):
        adopt(other.state_dict(), "plain", from_="torch", params=given)


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
        ({"params": "one", "from_": "torch"}, "the same tensor in two places"),
        ({"params": "groups", "from_": "torch"}, "params must be tensors, in the order"),
        ({"params": "some", "from_": "torch", "state": {9: {}}}, "parameter 9, which is in none of its"),
        ({"params": "some", "from_": "torch", "state": 3}, "of an optimizer: it has no state, a dict"),
    ],
)
def test_what_is_no_state_with_its_parameters_is_refused(options, text):
    ours, given = begun("plain"), parameters()
    before, options = states(ours), dict(options)
    changed = {"state": options.pop("state")} if "state" in options else {}
    if "params" in options:
        of = {"some": given, "few": given[:2], "one": [*given[:2], given[0]], "groups": [{"params": given}]}
        options["params"] = of[options["params"]]
    with pytest.raises((TypeError, ValueError), match=text):
        adopt(ours.state_dict() | {"optimizer": "x"} | changed, "plain", **options)
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
    with pytest.raises(ValueError, match=r"no run of AdamW is given to 'torchoa' \(did you mean 'torchao'"):
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
every_kind = pytest.mark.parametrize(
    ("library", "kind"), [(x, kind) for x, (_, kinds) in MAKES.items() for kind in kinds]
)


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
@every_kind
@pytest.mark.usefixtures("uncompiled")
@pytest.mark.costly("a library is imported")
def test_a_run_of_the_library_goes_on(library, kind, strategy):
    """Parameters keep their numbers, or with optimi's compensation become what was meant."""
    given = parameters()
    theirs = peer(library, kind, given)
    run(theirs, range(0, 6, 2))
    kept = [p.detach().clone() for p in given]
    comps = [theirs.state[p].get("kahan_comp") for p in given]
    ours = adopt(theirs, strategy)
    for p, q, comp in zip(given, kept, comps, strict=True):
        meant = q.double() + (0 if comp is None else comp.double())
        if strategy != "plain+int8":
            assert torch.equal(ours.represented(p), meant)
        assert torch.equal(p, meant.bfloat16())
        assert ours.state[p]["step"] == 3
    assert "step" not in ours.param_groups[0]
    run(ours, [6])


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
    given = release(back, torch.bfloat16, library)
    run(given, [1, 3])
    given.add_param_group({"params": parameters()[:1]})
    first, *_, last = given.param_groups
    names = {"lr", "betas", "beta1", "beta2", "eps", "weight_decay"} & first.keys()
    assert {name: last[name] for name in names} == {name: first[name] for name in names}


@pytest.mark.costly("a library is imported")
def test_a_run_that_begins_here_goes_on_in_optimi_as_if_it_began_there():
    """With a state of no step, and with the compensation that optimi keeps of numbers in bfloat16."""
    optimi = pytest.importorskip("optimi")
    ours, given = begun("kahan", 0), parameters()
    ours.start()
    theirs = release(ours, torch.bfloat16, "optimi")
    alone = optimi.AdamW(given, 1e-2, (0.8, 0.99), weight_decay=0.1, eps=1e-6, triton=False)
    for optimizer in (theirs, alone):
        run(optimizer, range(0, 10, 2))
    for p, q in zip(listed(theirs), given, strict=True):
        assert torch.equal(p, q)
        for name in ("exp_avg", "exp_avg_sq", "kahan_comp"):
            assert torch.equal(theirs.state[p][name], alone.state[q][name])
        assert alone.state[q]["kahan_comp"].any()


@every_kind
@pytest.mark.usefixtures("uncompiled")
@pytest.mark.costly("a library is imported")
def test_a_state_dict_of_the_library_is_its_run(library, kind):
    given = parameters()
    theirs = peer(library, kind, given)
    run(theirs, range(0, 6, 2))
    copies = [torch.nn.Parameter(p.detach().clone()) for p in given]
    read = adopt(theirs.state_dict(), "fp32-master", from_=library, params=copies)
    taken = adopt(theirs, "fp32-master")
    assert_same_states(read, taken)
    assert any(taken.state[p]["m"].any() for p in given)


@pytest.mark.parametrize("library", ["torchao", "bitsandbytes", "optimi"])
def test_a_run_that_maximizes_is_not_given_to_what_does_not(library, monkeypatch):
    monkeypatch.setattr(
        "mcfsim.torch.handover.import_module", lambda _: SimpleNamespace(AdamW8bit=0, AdamW=0)
    )
    ours = begun()
    ours.param_groups[0]["maximize"] = True
    before = states(ours)
    with pytest.raises(ValueError, match=f"{library}'s AdamW does not maximize"):
        release(ours, to=library)
    assert_same_states(ours, before)


def test_hyperparameters_are_given_as_plain_numbers():
    for betas in (torch.tensor([0.5, 0.75]), np.array([0.5, 0.75]), (torch.tensor(0.5), 0.75)):
        ours = begun()
        ours.param_groups[0].update(betas=betas, weight_decay=torch.tensor(0.5))
        (group,) = release(ours).param_groups
        assert repr(group["betas"]) == "(0.5, 0.75)"
        assert repr(group["weight_decay"]) == "0.5"


def test_a_library_that_is_missing_is_named(monkeypatch):
    real = importlib.import_module

    def missing(name, *rest):
        if name.startswith("torchao"):
            raise ImportError("there is no torchao")
        return real(name, *rest)

    monkeypatch.setattr("mcfsim.torch.handover.import_module", missing)
    with pytest.raises(ImportError, match=r"to give a run to torchao\.optim, install it"):
        release(begun(), to="torchao")
