"""Steps in stages, weights on grids and composed strategies: those of `mcfsim.Optimizer`, in bits."""

from dataclasses import dataclass, make_dataclass, replace
from functools import partial

import numpy as np
import pytest
import torch

import mcfsim as mcf
import mcfsim.torch
from mcfsim.optim.declaration import Declaration
from mcfsim.optim.muon import Muon
from mcfsim.optim.sgd import SGD
from mcfsim.optim.stored import Reach
from mcfsim.optim.strategies import MOMENTS
from mcfsim.random import RandomWords
from mcfsim.torch import step as steps
from tests.pytorch import runs
from tests.pytorch.beside import both, compare
from tests.pytorch.runs import assert_same_states, listed, run
from tests.shared.kinds import STAGED, STORED, feeds

#: Strategies with the moments of another, by each base that has no way of its own to keep them.
OWN = ("collage-plus", "mcf-2", "mcf-3", "stochastic", "fp8-moments", "int8-moments", "coat-moments")
COMPOSED = [f"{base}+{kept}" for base in STORED if base not in OWN for kept in MOMENTS]
GRIDS = [*mcf.GRID_STRATEGIES]
WORDS = {"rounding": "stochastic", "random": RandomWords(9)}

CASES = [
    *((kind, strategy, {}) for kind in STAGED for strategy in STORED if feeds(kind, strategy)),
    *((kind, strategy, WORDS) for kind in STAGED for strategy in ("plain", "fp8-moments", "mcf-2")),
    *((kind, "kahan+int8", {"low": "float16"}) for kind in STAGED),
    *(("adamw", strategy, {}) for strategy in COMPOSED),
    *((kind, strategy, {}) for kind in ("adamw", "sgd", *STAGED) for strategy in GRIDS),
    *((kind, "dqt-int4+fp8", WORDS) for kind in ("lion", "muon")),
]


@pytest.mark.filterwarnings("ignore::mcfsim.VanishingScalarWarning")
@pytest.mark.parametrize("place", range(len(CASES)), ids=lambda place: "-".join(CASES[place][:2]))
@pytest.mark.sampled(127, each=False)
@pytest.mark.costly("stages are compiled")
def test_steps_have_the_bits_of_the_simulated_optimizer(place):
    """On numbers of all kinds, in tensors that lie otherwise in memory, and of no elements."""
    kind, strategy, options = CASES[place]
    compare(*both(kind, strategy, **options))


@pytest.mark.parametrize("reach", Reach)
@pytest.mark.slow
def test_a_grid_reaches_as_far_as_its_strategy_says(reach):
    base = mcf.GRID_STRATEGIES["dqt-int4"]
    grid = replace(base.parameter.grid, reach=reach)
    compare(*both("adamw", replace(base, name="mine", parameter=replace(base.parameter, grid=grid))))


def made(kind, strategy, shapes=((4, 6), (5,), (2, 3, 4), ()), **options):
    given = runs.parameters(shapes, runs.dtype_of(strategy))
    groups = [{"params": given[:1]}, {"params": given[1:], "weight_decay": 0.0, "lr": 3e-3}]
    return runs.EVERY[kind](groups, 1e-2, weight_decay=0.1, strategy=strategy, **options)


def test_a_state_of_another_iteration_is_refused():
    saved = made("muon", "plain").state_dict()
    other = made("muon", "plain", iteration=mcf.NewtonSchulz("deepseek-v4"))
    with pytest.raises(ValueError, match=r"group 0: it has iteration = NewtonSchulz\("):
        other.load_state_dict(saved)


# -- the start of weights on grids -------------------------------------------------------------------------
@pytest.mark.parametrize("strategy", ["dqt-int8", "bitnet"])
def test_weights_are_put_on_their_grids_when_it_is_asked_or_at_the_first_step(strategy):
    early, late = (made("adamw", strategy) for _ in range(2))
    theirs = mcf.Optimizer(
        mcf.AdamW(), mcf.strategy(strategy), {str(i): runs.array(p) for i, p in enumerate(listed(early))}
    )
    early.start()
    runs.assert_all_same(
        (name, runs.array(p), x) for p, (name, x) in zip(listed(early), theirs.weights().items(), strict=True)
    )
    before = runs.states(early)
    early.start()
    assert_same_states(runs.states(early), before)
    run(early, range(3))
    run(late, range(3))
    assert_same_states(early, late)


@pytest.mark.parametrize(
    ("kind", "strategy"), [("muon", "plain"), ("adamw", "dqt-int8"), ("adafactor", "kahan")]
)
@pytest.mark.sampled(3, each=False)
@pytest.mark.slow
def test_a_watched_run_is_the_same(kind, strategy):
    seen, unseen = made(kind, strategy), made(kind, strategy)
    for optimizer in (seen, unseen):
        optimizer.start()
    watch = mcfsim.torch.watch(seen, 1)
    for optimizer in (seen, unseen):
        run(optimizer, range(0, 6, 2))
    assert_same_states(seen, unseen)
    assert all(0 <= x.lost <= 1 for x in watch.seen)


@pytest.mark.parametrize(
    ("kind", "strategy"), [("muon", "kahan"), ("adamw", "bitnet"), ("adafactor", "int8-moments")]
)
@pytest.mark.slow
def test_tensors_that_are_not_the_host_s_are_copied_there_and_back(kind, strategy, monkeypatch):
    """As a GPU's would be: each copy is other memory, which is written back."""
    ours, theirs = made(kind, strategy), made(kind, strategy)
    run(theirs, range(3))
    monkeypatch.setattr(torch.Tensor, "cpu", lambda x: x.clone())
    if kind != "adamw":
        monkeypatch.setattr(steps, "_is_host", lambda device: False)
    run(ours, range(3))
    assert_same_states(ours, theirs)


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("pair", ["muon kahan", "adamw dqt-int4", "adamw bitnet", "adafactor split-master"])
@pytest.mark.sampled(2)
def test_the_codes_that_such_a_step_changes_are_recorded(pair, before):
    """Those of bytes that differ after it, on a grid after it was put there."""
    optimizer = made(*pair.split(), shapes=((4, 6), (5,), (0, 3), (300,)))
    optimizer.start()
    recorder = mcfsim.torch.changes(optimizer, before=before)
    for step in range(0, 8, 2):
        old = [p.detach().clone() for p in listed(optimizer)]
        recorder.clear()
        run(optimizer, [step])
        for p, was in zip(listed(optimizer), old, strict=True):
            bits = {2: torch.int16, 4: torch.int32}[p.itemsize]
            assert torch.equal(recorder.mask(p), was.view(bits) != p.detach().view(bits))


# -- names, and what is refused ----------------------------------------------------------------------------
def test_what_goes_by_names_needs_them():
    given = dict(zip(("embedding", "head"), runs.parameters(((4, 3), (3, 4))), strict=True))
    with pytest.raises(ValueError, match=r"Muon goes by the names .*model\.named_parameters"):
        mcfsim.torch.Muon(given.values(), others=("emb*",))
    named = mcfsim.torch.Muon(given.items(), others=("emb*",), strategy="plain")
    run(named, range(2))
    assert [named.state[p]["v"].numel() for p in given.values()] == [12, 0]
    every = mcfsim.torch.Muon(given.values(), others=("*",), strategy="plain")
    run(every, [0])
    assert [every.state[p]["v"].numel() for p in given.values()] == [12, 12]


@pytest.mark.parametrize("options", [{}, {"strategy": "dqt-int8"}])
def test_no_graph_captures_what_is_made_on_the_host(options):
    kind = mcfsim.torch.AdamW if options else mcfsim.torch.Muon
    given = runs.parameters(dtype=torch.float32 if options else torch.bfloat16)
    with pytest.raises(ValueError, match="leave capturable False"):
        kind(given, capturable=True, **options)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("kahan+int7", r"'kahan\+int7': moments are not kept as 'int7' \(did you mean 'int8'\?\)"),
        ("kahan+", "are not kept as ''"),
        ("collage-plus+int8", "'collage-plus' has its own way to keep v"),
        ("mcf-2+coat", "its own way to keep m and v"),
        ("int8-moments+fp8", "its own way to keep m and v"),
        ("exact+fp8", "its own way to keep m and v"),
        ("kahn+int8", r"unknown strategy 'kahn\+int8'"),
    ],
)
def test_what_does_not_compose_is_refused(name, text):
    with pytest.raises(ValueError, match=text):
        mcf.strategy(name)


@pytest.mark.parametrize("kept", MOMENTS)
def test_what_is_composed_has_the_storage_of_its_parts(kept):
    whole = mcf.strategy(f"{kept}-moments")
    assert replace(mcf.strategy(f"fp32-master+{kept}"), name=whole.name) == whole
    kahan, plain = mcf.strategy(f"kahan+{kept}"), mcf.strategy("kahan")
    assert (kahan.m, kahan.v) == (whole.m, whole.v)
    assert replace(kahan, name="kahan", m=plain.m, v=plain.v) == plain


# -- optimizers of one's own -------------------------------------------------------------------------------
@dataclass(frozen=True)
class Halved(SGD):
    """SGD at half of the rate."""

    def scalars(self, roles, strategy, step, rate, *, decayed):
        return super().scalars(roles, strategy, step, rate / 2, decayed=decayed)


def test_a_declaration_of_one_s_own_makes_its_steps():
    mine, whole = (runs.parameters() for _ in range(2))
    ours = mcfsim.torch.optimizer(Halved)(mine, 2e-2, momentum=0.5)
    theirs = mcfsim.torch.SGD(whole, 1e-2, momentum=0.5)
    run(ours, range(4))
    run(theirs, range(4))
    assert_same_states(ours, theirs)
    assert type(ours).__name__ == "Halved"


def test_the_numbers_of_an_instance_are_defaults():
    kind = mcfsim.torch.optimizer(mcf.AdamW(beta1=0.5, weight_decay=0.25))
    optimizer = kind(runs.parameters(), betas=(0.5, 0.75))
    assert kind(runs.parameters()).defaults["betas"] == (0.5, mcf.AdamW().beta2)
    hyper = optimizer._declared(optimizer.param_groups[0])[0]
    assert hyper == mcf.AdamW(beta1=0.5, beta2=0.75, weight_decay=0.25)
    muon = mcfsim.torch.optimizer(Muon(scale="none"))(runs.parameters())
    assert muon.defaults["scale"] == "none"


@pytest.mark.parametrize("x", [3, "adamw", dict, mcf.Optimizer, Declaration, mcf.strategy("plain")])
def test_what_is_no_declaration_makes_no_optimizer(x):
    with pytest.raises(TypeError, match="made of a Declaration that is a dataclass and has a step"):
        mcfsim.torch.optimizer(x)


@pytest.mark.parametrize(
    "name", ["lr", "params", "low", "rounding", "random", "maximize", "name", "max_lr", "betas"]
)
def test_hyperparameters_with_names_of_other_entries_are_refused(name):
    """They would take each other's values."""
    mine = make_dataclass("Mine", [(name, float, 0.5)], bases=(SGD,), frozen=True)
    with pytest.raises(TypeError, match=f"of Mine have names of other entries of groups: {name};"):
        mcfsim.torch.optimizer(mine)


# -- dampening ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dampening", [0.25, 0.5])
def test_gradients_are_dampened_as_by_pytorch(dampening):
    """By factors that are powers of two or sums of few, of short gradients, both have the exact momentum."""
    random = np.random.default_rng(0)
    mine, theirs = (torch.nn.Parameter(torch.zeros(64)) for _ in range(2))
    ours = mcfsim.torch.SGD([mine], 0.5, momentum=0.5, dampening=dampening, strategy="fp32")
    other = torch.optim.SGD([theirs], 0.5, momentum=0.5, dampening=dampening)
    for _ in range(6):
        given = torch.from_numpy(random.integers(-64, 64, 64).astype(np.float32))
        mine.grad, theirs.grad = given.clone(), given.clone()
        ours.step()
        other.step()
        assert torch.equal(ours.state[mine]["m"], other.state[theirs]["momentum_buffer"])
        assert torch.equal(mine, theirs)


def test_what_does_not_dampen_says_so():
    given = partial(runs.parameters, ((3,),))
    with pytest.raises(ValueError, match="Nesterov's momentum takes gradients whole"):
        mcfsim.torch.Nesterov(given(), dampening=0.1)
    with pytest.raises(ValueError, match=r"no dampening = 0\.1: only mcfsim\.torch\.SGD"):
        mcfsim.torch.AdamW(given(), dampening=0.1)
    with pytest.raises(ValueError, match=r"dampening = 1\.0 must lie in"):
        mcfsim.torch.SGD(given(), dampening=1.0)
