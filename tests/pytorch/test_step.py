"""Steps of the optimizers for torch: those of `mcfsim.Optimizer`, together or not, and as torch asks for."""

from contextlib import contextmanager
from functools import partial

import numpy as np
import pytest
import torch

import mcfsim as mcf
import mcfsim.torch
from mcfsim.checks import FlushedSubnormalsError
from mcfsim.compile import choice, loops
from mcfsim.optim import step_programs
from mcfsim.optim.stored import FLOAT8_GROUPS, FLOAT32, Stored
from mcfsim.random import RandomWords
from mcfsim.rounding import Rounding
from mcfsim.storage.buffers import BLOCK
from mcfsim.torch import AdamW, straight_step
from mcfsim.torch import step as steps
from mcfsim.torch.moved import ParameterSlice
from mcfsim.torch.straight_step import HostStep
from tests.pytorch import runs
from tests.pytorch.beside import both, compare
from tests.pytorch.runs import assert_same_states, give, listed, parameters, run
from tests.shared.kinds import LEADING, STORED, feeding


# -- which tensors move together, and which do not ----------------------------------------------------------
@pytest.mark.parametrize("strategy", ["plain", "collage-plus", "stochastic", "fp8-moments"])
@pytest.mark.sampled(2, each=False)
@pytest.mark.slow
def test_parameters_without_a_gradient_stay_and_change_no_other(strategy, monkeypatch):
    """Not its step, nor the random words that it draws; batched or not."""
    shapes = ((3,), (0, 2), (40,), (), (9,), (256,), (4, 4))
    made = []
    for small in (-1, 64):
        monkeypatch.setattr(straight_step, "SMALL", small)
        given = parameters(shapes)
        made.append(AdamW(given, 1e-2, strategy=strategy))
        for step, skip in enumerate(({2}, {0, 5}, {2, 3, 6})):
            give(given, step, skip)
            made[-1].step()
    assert_same_states(*made)
    assert [made[-1].state[p]["step"] for p in given] == [2, 3, 1, 2, 3, 2, 2]
    other = AdamW(parameters(shapes), 1e-2, strategy=strategy)
    run(other, range(3))
    for place in (1, 4):
        assert torch.equal(listed(other)[place], given[place])


@pytest.mark.parametrize("kind", runs.KINDS.values(), ids=runs.KINDS)
def test_many_small_tensors_are_few_pieces_of_work(kind, monkeypatch):
    """However many there are: so many as fit a block are one."""
    handed = []
    monkeypatch.setattr(HostStep, "_bound_loop", lambda *given: None)
    monkeypatch.setattr(HostStep, "_make", lambda self, joint, *_: handed.append(joint.gradient.numel()))
    sizes = [16] * 200 + [BLOCK] + [straight_step.SMALL] * 9 + [16] * 3
    given = [torch.nn.Parameter(torch.ones(size).bfloat16()) for size in sizes]
    given[3].data = torch.ones(2, 16).bfloat16()[:, ::2].reshape(4, 4).t()
    for p in given:
        p.grad = torch.ones_like(p)
    kind(given, 1e-2).step()
    fit = BLOCK // straight_step.SMALL
    ends = [BLOCK, fit * straight_step.SMALL, (9 - fit) * straight_step.SMALL + 3 * 16]
    assert handed == [200 * 16, *ends]


@pytest.mark.parametrize("sizes", [[], [0], [3, 0, 5], [BLOCK], [BLOCK + 1, 7, 2 * BLOCK], [9000] * 40])
def test_batches_have_every_parameter_once(sizes):
    firsts = np.cumsum([0, *sizes[:-1]]).tolist()
    moved = [ParameterSlice({}, torch.empty(size), first) for size, first in zip(sizes, firsts, strict=False)]
    batches = list(straight_step._batches(moved))
    assert [id(x) for batch in batches for x in batch] == list(map(id, moved))
    assert all(len(batch) == 1 or sum(x.gradient.numel() for x in batch) <= BLOCK for batch in batches)


def test_gradients_of_another_dtype_are_rounded_once():
    """Each by itself, beside others of the same batch that have another dtype."""
    given, random = [p for _ in range(2) for p in parameters([(200,)])], torch.Generator().manual_seed(0)
    optimizer = AdamW(given, 1e-2, strategy="plain")
    for _ in range(5):
        x = torch.randn(200, generator=random, dtype=torch.float64)
        x[::2] = x[::2].sign() * (1 + 2.0**-8 + 2.0**-40)  # a tie of bfloat16, if rounded to binary32 first
        given[1].grad_dtype = None
        given[0].grad = torch.from_numpy(mcf.round_to(x.numpy(), "bfloat16")).bfloat16()
        given[1].grad = x
        optimizer.step()
    assert torch.equal(*given)


@pytest.mark.slow
def test_groups_are_moved_as_by_optimizers_of_their_own():
    """With their own strategies, hyperparameters and rates; saved and gone on from."""
    settings = [
        {"strategy": "collage-plus", "low": "float16", "eps": 1e-6},
        {"strategy": "plain", "rounding": "toward_zero", "lr": 1e-3, "betas": (0.8, 0.9)},
        {"strategy": "fp32-master", "scalars": "rounded", "weight_decay": 0.0},
        {"strategy": "fp32"},
    ]

    def of_each():
        return [parameters(dtype=runs.dtype_of(x["strategy"], x.get("low", "bfloat16"))) for x in settings]

    def made():
        first, *rest = [{"params": x, **setting} for x, setting in zip(of_each(), settings, strict=True)]
        optimizer = AdamW([first], 1e-2)
        for group in rest:
            optimizer.add_param_group(group)
        return optimizer

    together, gone_on = made(), made()
    apart = [AdamW(x, **{"lr": 1e-2, **setting}) for x, setting in zip(of_each(), settings, strict=True)]
    schedulers = [torch.optim.lr_scheduler.ExponentialLR(x, 0.5) for x in (together, *apart)]
    for step in range(3):
        for given in (*(group["params"] for group in together.param_groups), *map(listed, apart)):
            give(given, step)
        for x in (together, *apart, *schedulers):
            x.step()
    gone_on.load_state_dict(together.state_dict())
    runs.put(gone_on, listed(together))
    for optimizer in (together, gone_on):
        for group, single in zip(optimizer.param_groups, apart, strict=True):
            assert group["lr"] == single.param_groups[0]["lr"]
            assert_same_states(runs.states(optimizer, group["params"]), runs.states(single))


@pytest.mark.slow
def test_words_are_drawn_by_the_number_of_an_element_among_all():
    """Whatever group its parameter is in; a group may have words of its own."""
    words = {"random": RandomWords(3), "strategy": "stochastic"}
    one, two, three = (parameters() for _ in range(3))
    whole = AdamW(one, **words)
    apart = AdamW([{"params": two[:1]}, {"params": two[1:]}], **words)
    other = AdamW([{"params": three[:1]}, {"params": three[1:], "random": RandomWords(4)}], **words)
    for optimizer in (whole, apart, other):
        run(optimizer, range(3))
    assert_same_states(whole, apart)
    assert_same_states(runs.states(other, three[:1]), runs.states(whole, one[:1]))
    assert not torch.equal(three[1], one[1])


# -- what torch asks of a step -----------------------------------------------------------------------------
def test_the_closure_is_called_with_gradients_on_and_autograd_notices_the_step():
    weight = torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    optimizer, kept = AdamW([weight], lr=0.1), []

    def closure():
        optimizer.zero_grad()
        kept.append((weight * weight).sum())
        kept[0].backward(retain_graph=True)
        return kept[0]

    with torch.no_grad():
        assert optimizer.step(closure).item() == 3.0
    assert weight.max() < 1.0
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        kept[0].backward()


def test_what_is_refused_changes_nothing():
    """Sparse gradients, and tensors of no parameter; of bad numbers see test_group."""
    given = parameters([(3, 2), (3, 2)])
    optimizer = AdamW([{"params": given[:1]}, {"params": given[1:]}], 1e-2)
    before = runs.frozen(optimizer)
    give(given, 0)
    given[1].grad_dtype = None
    for gradient, message in (
        (given[1].grad.to_sparse(), r"layout torch\.sparse_coo is not supported.*only dense ones are"),
        *((torch.ones(3, 2, dtype=x), f"{x} holds no") for x in (torch.bool, torch.int64, torch.complex64)),
    ):
        given[1].grad = gradient
        with pytest.raises(TypeError, match=message):
            optimizer.step()
    with pytest.raises(ValueError, match="no parameter of this optimizer"):
        optimizer.represented(torch.ones(2))
    assert_same_states(runs.frozen(optimizer), before)


def cut(p):
    p.grad, p.data = None, p.data[:2].clone()
    p.grad = torch.ones_like(p)


def regrown(p):
    p.grad, p.data = None, torch.ones(4, 2, dtype=p.dtype)
    p.grad = torch.ones_like(p)


def turned(p):
    p.grad, p.data = None, p.data.t().clone()
    p.grad = torch.ones_like(p)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (cut, r"shape \(2, 2\) has a state of another one, whose \w+ has"),
        (turned, r"shape \(2, 3\) has a state of another one, whose \w+ has shape \(3, 2\)"),
        (regrown, r"shape \(4, 2\) has a state of another one, whose \w+ has"),
        (lambda p: setattr(p, "data", p.data[:2]), r"shape \(2, 2\) has a gradient of shape \(3, 2\)"),
        (lambda p: setattr(p, "data", p.data.view(2, 3)), r"shape \(2, 3\) has a gradient of shape \(3, 2\)"),
    ],
)
@pytest.mark.parametrize(
    ("kind", "strategy"), [("AdamW", "collage-plus"), ("AMSGrad", "fp32-master"), ("AdamW", "kahan+int8")]
)
def test_tensors_of_other_shapes_are_not_moved(kind, strategy, change, message):
    """Before anything changes, whatever was put into a parameter or has stayed as its gradient."""
    given = parameters([(3, 2), (3, 2)])
    optimizer = getattr(mcfsim.torch, kind)(given, 1e-2, strategy=strategy)
    give(given, 0)
    optimizer.step()
    give(given, 1)
    change(given[1])
    before = runs.frozen(optimizer)
    own, over = "has a state of another one", partial(mcfsim.torch.adopt, optimizer, "fp32")
    for use, said in ((optimizer.step, message), (optimizer.resync, own), (over, own)):
        with pytest.raises(ValueError, match=said):
            use()
        assert_same_states(runs.frozen(optimizer), before)
    optimizer.whole.check()


@pytest.mark.parametrize("strategy", ["split-master", "dqt-int8"])
def test_a_model_that_was_converted_is_refused(strategy):
    """Whose bits lead those of a master copy, or whose numbers come to lie on a grid."""
    dtype = runs.dtype_of(strategy)
    optimizer = AdamW(parameters([(3, 2)], dtype), 1e-2, strategy=strategy)
    run(optimizer, range(strategy == "split-master"))
    (p,) = listed(optimizer)
    p.grad, p.data = None, p.data.to(torch.float32 if dtype == torch.bfloat16 else torch.bfloat16)
    before = runs.frozen(optimizer)
    uses = [optimizer.start]
    if strategy == "split-master":
        over = (mcfsim.torch.adopt, mcfsim.torch.release)
        uses += [partial(optimizer.represented, p), *(partial(give, optimizer) for give in over)]
    for use in uses:
        with pytest.raises(TypeError, match=f"stores parameters as {dtype}"):
            use()
        assert_same_states(runs.frozen(optimizer), before)
    optimizer.whole.check()


def test_a_strategy_put_into_a_group_is_refused():
    optimizer = AdamW(parameters(), 1e-2)
    optimizer.param_groups[0]["strategy"] = "plain"
    with pytest.raises(TypeError, match=r"strategy = 'plain' was put into a group .*adopt"):
        run(optimizer, [0])


@pytest.mark.parametrize("strategy", ["plain", "kahan+int8", "dqt-int8"])
def test_a_first_step_in_inference_mode_is_like_others(strategy):
    found = []
    for mode in (True, False):
        optimizer = AdamW(parameters(dtype=runs.dtype_of(strategy)), 1e-2, strategy=strategy)
        give(listed(optimizer), 0)
        with torch.inference_mode(mode):
            optimizer.step()
        run(optimizer, [1])
        found.append(optimizer)
    assert_same_states(*found)
    with torch.inference_mode(), pytest.raises(TypeError, match=r"made in torch\.inference_mode.*clone"):
        AdamW([torch.nn.Parameter(torch.ones(2).bfloat16())])


@pytest.mark.parametrize("view", [lambda x: x, lambda x: x.t(), lambda x: x[0]])
def test_negated_views_are_moved(view):
    """The imaginary part of a conjugate is one, whose memory has the numbers with the other sign."""
    found = []
    for negated in (True, False):
        x = torch.complex(torch.ones(3, 4), torch.arange(12.0).view(3, 4) * (-1 if negated else 1))
        x = view((x.conj() if negated else x).imag)
        assert x.is_neg() == negated
        optimizer = AdamW([torch.nn.Parameter(x)], 1e-2, strategy="fp32")
        seen = mcfsim.torch.changes(optimizer)
        run(optimizer, range(2))
        (p,) = listed(optimizer)
        found.append([p.detach().nan_to_num(7.0), seen.values(p).nan_to_num(7.0)])
    assert all(map(torch.equal, *found))


@pytest.mark.parametrize("strategy", ["plain", "collage-plus", "fp32-master", "stochastic"])
@pytest.mark.parametrize("shift", [-8, -1, 0, 1, 8])
@pytest.mark.usefixtures("one_thread")
def test_a_gradient_that_lies_across_its_parameter_is_a_copy_of_itself(strategy, shift):
    found = []
    for copied in (False, True):
        memory = torch.randn(1064, generator=torch.Generator().manual_seed(1)).bfloat16()
        optimizer = AdamW([torch.nn.Parameter(memory[32:1032])], 1e-2, strategy=strategy)
        (p,) = listed(optimizer)
        for _ in range(3):
            gradient = memory[32 + shift : 1032 + shift]
            p.grad = gradient.clone() if copied else gradient.detach()
            optimizer.step()
        found.append(optimizer)
    assert_same_states(*found)


def test_a_torch_that_flushes_is_refused():
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush")
    try:
        given = parameters()
        for refused in (lambda: mcf.arithmetic("bfloat16", backend="torch"), lambda: AdamW(given)):
            with pytest.raises(FlushedSubnormalsError, match=r"torch\.set_flush_denormal"):
                refused()
        torch.set_flush_denormal(False)
        optimizer = AdamW(given)
        give(given, 0)
        torch.set_flush_denormal(True)
        with pytest.raises(FlushedSubnormalsError):
            optimizer.step()
    finally:
        torch.set_flush_denormal(False)
    optimizer.step()


def test_pytorch_s_default_device_makes_no_difference():
    """It may be a GPU, by `torch.set_default_device`, and NumPy reads tensors of the processor alone."""

    def trained(device):
        (p,) = given = parameters([(3, 100)])
        rate = torch.tensor(0.01)
        gradient = torch.ones_like(p)
        with torch.device(device):
            optimizer = AdamW(given, rate, strategy="plain")
            watch = mcfsim.torch.watch(optimizer, every=1)
            p.grad = gradient.clone()
            optimizer.step()
            optimizer = mcfsim.torch.adopt(optimizer, "remainder-8")
            p.grad = gradient.clone()
            optimizer.step()
            optimizer.load_state_dict(optimizer.state_dict())
        return optimizer, watch.seen

    (ours, seen), (theirs, expected) = map(trained, ("meta", "cpu"))
    assert seen == expected
    assert_same_states(ours, theirs)


def test_an_optimizer_of_arrays_refuses_tensors():
    with pytest.raises(TypeError, match=r"keeps NumPy arrays, and TorchArithmetic\(bfloat16.* mcfsim\.torch"):
        mcf.Optimizer(mcf.AdamW(), mcf.strategy("plain", "bfloat16"), {"w": np.ones(3)}, backend="torch")


# -- the bits of a step --------------------------------------------------------------------------------------
SMALL_BLOCKS = [
    *((module, "BLOCK", 190) for module in (loops, straight_step)),
    *((loops, "AT_ONCE", 77), (straight_step, "SMALL", 23)),
]
#: Loops by calls of NumPy's functions: to compile them never pays, to write them always does.
CALLS = [
    *((step_programs, "_LEAST_COMPILED", 0), (choice, "_LOAD", float("inf"))),
    *((choice, "_WRITE", -1.0), (choice, "_WRITE_DRAWN", -1.0)),
]
#: How a step is made: what is other than by default, where small tensors go together by operations.
WAYS = {
    "batches": [],
    "one by one": [(straight_step, "SMALL", -1)],
    "calls": CALLS,
    "calls on small blocks": [*CALLS, *SMALL_BLOCKS],
    "small blocks": SMALL_BLOCKS,
    "numba": [(step_programs, "how_compiled", lambda roles: True)],
    "a device": [(steps, "_is_host", lambda device: False)],
}
HOST = list(WAYS)[:5]


def of_remainder(bits):
    moment = Stored(FLOAT32)
    return mcf.Strategy("mine", m=moment, v=moment, extra=Stored(FLOAT32, remainder=bits), addition="master")


def of_moments(fmt, by=FLOAT32):
    kept = Stored(by, scaled=fmt)
    return mcf.Strategy("mine", m=kept, v=kept)


FLOAT8, SHORT = mcf.get_format("float8_e5m2"), Rounding("stochastic", random_bits=7)
THREE = {"parameter": Stored(FLOAT8, 3), "m": Stored(FLOAT8, 2), "v": Stored(FLOAT8, 2)}
THREE |= {"gradient": Stored(FLOAT8), "addition": "grow"}
#: Strategies that have no name, and their low formats.
MINE = {
    "three components of float8": (mcf.Strategy("mine", **THREE), FLOAT8),
    **{
        f"a remainder of {bits} bits": (of_remainder(bits), low)
        for bits, low in ((2, "bfloat16"), (5, "float16"), (8, "float16"), (9, "bfloat16"), (16, "float16"))
    },
    "float8_e5m2 in groups": (of_moments(runs.scaled("float8_e5m2")), "bfloat16"),
    "mxfp8_e4m3": (of_moments("mxfp8_e4m3"), "bfloat16"),
    "int8 in groups of 64": (of_moments(runs.scaled("int8", 64)), "bfloat16"),
    "int8 with a scale a tensor": (of_moments("int8"), "bfloat16"),
    "nvfp4": (of_moments("nvfp4"), "bfloat16"),
    "float8_e4m3fn of bfloat16": (of_moments(FLOAT8_GROUPS, "bfloat16"), "bfloat16"),
    "two numbers a group": (mcf.STRATEGIES["coat-moments"], "bfloat16"),
}
#: Whose moments lie as numbers, between steps, too.
NO_CODES = ("int8 with a scale a tensor", "nvfp4")


@contextmanager
def made_by(way):
    if way == "numba":
        pytest.importorskip("llvmlite")
    with pytest.MonkeyPatch.context() as patch:
        for module, name, x in WAYS[way]:
            patch.setattr(module, name, x)
        yield


#: With none all optimizers and strategies are tried, with others all strategies.
OPTIONS = {
    "none": {},
    "float16": {"low": "float16"},
    "float8": {"low": "float8_e5m2"},
    "toward zero": {"rounding": "toward_zero"},
    "rounded scalars": {"scalars": "rounded"},
    "scalars in float32": {"scalars": "float32"},
    "stochastic": {"rounding": "stochastic", "random": RandomWords(9)},
    "7 random bits": {"rounding": SHORT, "random": RandomWords(2**40, stream=3)},
}
CASES = [(*pair, x) for x in OPTIONS for pair in (feeding if x == "none" else runs.in_turn)(STORED)]


@pytest.mark.filterwarnings("ignore::mcfsim.VanishingScalarWarning")
@pytest.mark.parametrize("place", range(len(CASES)), ids=lambda place: "-".join(CASES[place]))
@pytest.mark.sampled(39, each=False)
@pytest.mark.costly("some are compiled")
def test_steps_have_the_bits_of_the_simulated_optimizer(place):
    """On numbers of all kinds, before the first step, too."""
    optimizer, strategy, option = CASES[place]
    options = OPTIONS[option]
    if "low" in options and strategy in LEADING:
        with pytest.raises(ValueError, match="float32"):
            mcf.strategy(strategy, options["low"])
        return
    compare(*both(optimizer, strategy, **options), partial(made_by, HOST[place % 5]))


@pytest.mark.parametrize(
    "way", ["calls on small blocks", "a device", pytest.param("batches", marks=pytest.mark.exhaustive)]
)
@pytest.mark.parametrize("name", MINE)
@pytest.mark.sampled(18, each=False)
@pytest.mark.slow
def test_declared_strategies_have_the_bits_of_the_simulated_optimizer(name, way):
    strategy, low = MINE[name]
    ours, params, theirs = both("adamw", strategy, low)
    compare(ours, params, theirs, partial(made_by, way))
    state = ours.state[params["odd"]]
    assert ("m_scales" in state) == bool(mcf.strategy(strategy).m.scaled and name not in NO_CODES)
    if "remainder" in state:
        assert state["remainder"].itemsize == (1 if strategy.extra.remainder <= 8 else 2)


COMPILED = ("sgd plain", "adamw collage-plus", "lion stochastic", "adamw fp8-moments")
COMPILED += ("torchadamw fp32", "nesterov remainder-8", "adamw split-master")


@pytest.mark.slow
@pytest.mark.parametrize("pair", COMPILED)
@pytest.mark.sampled(7, each=False)
@pytest.mark.costly("LLVM compiles a step")
def test_compiled_loops_have_the_bits_of_the_simulated_optimizer(pair, one_thread):
    torch.set_num_threads(2)
    compare(*both(*pair.split()), partial(made_by, "numba"))
