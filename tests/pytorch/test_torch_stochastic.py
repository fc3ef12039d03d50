"""Stochastic rounding on tensors: the random words, and so the bits, of the simulation."""

import copy
import io

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.random import RandomWords
from mcfsim.rounding import Rounding

torch = pytest.importorskip("torch")

from mcfsim.checks.processor import FlushedSubnormalsError  # noqa: E402
from mcfsim.compile import loops  # noqa: E402
from mcfsim.optim import optimizer as stepping  # noqa: E402
from mcfsim.torch import SGD, AdamW, batched, host_loop  # noqa: E402

STRATEGIES = (
    "plain",
    "kahan",
    "collage-light",
    "collage-plus",
    "fp32-optim",
    "fp32-master",
    "split-master",
    "stochastic-parameter",
)
OPERATIONS = {"add": 2, "sub": 2, "mul": 2, "div": 2, "sqrt": 1, "fma": 3, "round": 1}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("fmt", ["bfloat16", "float16", "float8_e4m3fn", "posit8"])
def test_operations_have_the_bits_of_numpys(fmt, threads, assert_same):
    words = RandomWords(7, step=2, stream=5)
    ours = mcf.arithmetic(fmt, "stochastic", backend="torch", random=words, threads=threads)
    theirs = mcf.arithmetic(fmt, "stochastic", random=words)
    x = np.random.default_rng(0).standard_normal((3, 11, 7))
    a = theirs.round(x).astype(theirs.carrier)
    t = ours.round(torch.from_numpy(x))
    assert_same(t.numpy(), a)
    for name, count in OPERATIONS.items():
        for operands in (t[:count], t.transpose(1, 2)[:count]):  # words go by the index, not by the memory
            arrays = [item.numpy() for item in operands]
            assert_same(getattr(ours, name)(*operands).numpy(), getattr(theirs, name)(*arrays))
    assert ours.add(0.1, 0.2) == theirs.add(0.1, 0.2)
    assert ours.neg(0.1) == theirs.neg(0.1)
    assert [item.tolist() for item in mcf.two_sum(ours, *t[:2])] == [
        item.tolist() for item in mcf.two_sum(theirs, *a[:2])
    ]
    assert ours.random == theirs.random


def test_a_bfloat16_tensor_draws_too(assert_same):
    words = RandomWords(1)
    ones = torch.ones(1000, dtype=torch.bfloat16)
    ours = mcf.arithmetic("bfloat16", "stochastic", backend="torch", random=words).mul(ones, 1 + 2.0**-9)
    theirs = mcf.arithmetic("bfloat16", "stochastic", random=words).mul(
        np.ones(1000, np.float32), 1 + 2.0**-9
    )
    assert_same(ours.numpy(), theirs)
    assert 0 < int((ours > 1).sum()) < 1000


@pytest.mark.parametrize("fmt", ["bfloat16", "posit8"])
def test_a_block_of_a_step_draws_as_numpys_does(fmt, assert_same):
    words = RandomWords(7, stream=5)
    ours = mcf.arithmetic(fmt, "stochastic", backend="torch", random=words).on_block(step=4, start=1000)
    theirs = mcf.arithmetic(fmt, "stochastic", random=words).on_block(step=4, start=1000)
    x = theirs.round(np.random.default_rng(0).standard_normal(300).astype(theirs.carrier))
    t = ours.round(torch.from_numpy(np.random.default_rng(0).standard_normal(300).astype(theirs.carrier)))
    assert isinstance(t, torch.Tensor)
    assert_same(t.numpy(), x)
    for _ in range(3):
        t, x = ours.mul(ours.add(t, 0.1), 1.01), theirs.mul(theirs.add(x, 0.1), 1.01)
        assert_same(t.numpy(), x)
    here, there = mcf.two_sum(ours, t, 0.3), mcf.two_sum(theirs, x, 0.3)
    for one, other in zip(here, there, strict=True):
        assert_same(one.numpy(), other)
    once = theirs.like(theirs.format, Rounding())
    assert_same(ours.like(ours.format, Rounding()).add(t, 0.1).numpy(), once.add(x, 0.1))


def test_an_optimizer_of_arrays_refuses_tensors():
    with pytest.raises(TypeError, match=r"keeps NumPy arrays, and TorchArithmetic\(bfloat16.* mcfsim\.torch"):
        mcf.Optimizer(mcf.AdamW(), mcf.strategy("plain", "bfloat16"), {"w": np.ones(3)}, backend="torch")


# -- optimizers -------------------------------------------------------------------------------------------
def parameters(sizes, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.nn.Parameter(torch.randn(size, generator=generator).bfloat16()) for size in sizes]


def give(params, step, skip=()):
    generator = torch.Generator().manual_seed(100 + step)
    for number, p in enumerate(params):
        g = torch.randn(p.shape, generator=generator).bfloat16()
        p.grad = None if number in skip else g


def numbers(tensors):
    return {str(i): t.detach().float().numpy() for i, t in enumerate(tensors)}


WORDS = RandomWords(9)


def stochastic(kind, params, random=WORDS, **options):
    return kind(params, lr=1e-2, rounding="stochastic", random=random, **options)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("kind", [AdamW, SGD])
@pytest.mark.parametrize("rounding", ["stochastic", Rounding("stochastic", random_bits=7)], ids=["16", "7"])
def test_optimizers_have_the_bits_of_the_simulated_ones(kind, strategy, rounding, assert_same):
    params = parameters([(7, 5), (11,), (), (0, 3), (40,)])
    optimizer = kind(
        params, 1e-2, weight_decay=0.1, strategy=strategy, rounding=rounding, random=RandomWords(9)
    )
    hyper = mcf.AdamW(weight_decay=0.1) if kind is AdamW else mcf.SGD(weight_decay=0.1)
    chosen, start = mcf.strategy(strategy, "bfloat16"), numbers(params)
    reference = mcf.Optimizer(hyper, chosen, start, set(start), rounding, random=RandomWords(9))
    for step in range(8):
        give(params, step)
        optimizer.step()
        reference.step(reference.receive(numbers(p.grad for p in params)), 1e-2)
    for name, weight in reference.weights().items():
        assert_same(params[int(name)].detach().float().numpy(), weight)
    for name, vector in reference.layout.split(reference.state.m[0]).items():
        assert_same(optimizer.state[params[int(name)]]["m"].float().numpy(), vector)


def test_optimizers_have_the_simulations_bits_with_groups_and_blocks(assert_same, monkeypatch):
    """Decayed parameters first, as the layout has them, with tensors across the ends of blocks."""
    for module, name, size in (
        *((module, "BLOCK", 190) for module in (stepping, loops, host_loop, batched)),
        *((loops, "AT_ONCE", 77), (batched, "SMALL", 23)),
    ):
        monkeypatch.setattr(module, name, size)
    sizes = [(185,), (9,), (191,), (3,)]
    params = parameters(sizes)
    groups = [{"params": params[:2], "weight_decay": 0.1}, {"params": params[2:], "weight_decay": 0.0}]
    optimizer = stochastic(AdamW, groups)
    hyper, start = mcf.AdamW(weight_decay=0.1), numbers(params)
    reference = mcf.Optimizer(
        hyper,
        mcf.strategy("collage-plus", "bfloat16"),
        start,
        {"0", "1"},
        "stochastic",
        random=RandomWords(9),
    )
    for step in range(2):
        give(params, step)
        optimizer.step()
        reference.step(reference.receive(numbers(p.grad for p in params)), 1e-2)
    for name, weight in reference.weights().items():
        assert_same(params[int(name)].detach().float().numpy(), weight)


def test_an_elements_words_do_not_depend_on_which_others_move(assert_same):
    both, without = parameters([(20,), (30,), (40,)]), parameters([(20,), (30,), (40,)])
    first, second = stochastic(AdamW, both), stochastic(AdamW, without)
    for step in range(4):
        give(both, step)
        first.step()
        give(without, step, skip={1})
        second.step()
    for i in (0, 2):
        assert_same(without[i].detach().float().numpy(), both[i].detach().float().numpy())


def test_seeds_differ_and_repeat_themselves():
    after = []
    for seed in (1, 1, 2):
        params = parameters([(300,)])
        optimizer = stochastic(AdamW, params, RandomWords(seed))
        for step in range(3):
            give(params, step)
            optimizer.step()
        after.append(params[0].detach().float().tolist())
    assert after[0] == after[1] != after[2]


def words(optimizer):
    return [group["random"] for group in optimizer.param_groups]


@pytest.mark.parametrize("kind", [AdamW, SGD])
def test_a_saved_optimizer_goes_on_with_its_words(kind):
    def run(params, optimizer, steps):
        for step in steps:
            give(params, step)
            optimizer.step()

    whole = parameters([(50,), (70,)])
    optimizer = stochastic(kind, whole, RandomWords(3, stream=100))
    run(whole, optimizer, range(3))
    saved, weights = io.BytesIO(), [p.detach().clone() for p in whole]
    torch.save(optimizer.state_dict(), saved)
    duplicate = copy.deepcopy(optimizer)
    assert words(duplicate) == words(optimizer)
    run(whole, optimizer, range(3, 6))

    resumed = [torch.nn.Parameter(w) for w in weights]
    other = stochastic(kind, resumed, RandomWords(77))  # whatever it began with
    saved.seek(0)
    other.load_state_dict(torch.load(saved, weights_only=True))
    assert words(other) == [RandomWords(3, stream=100)]
    run(resumed, other, range(3, 6))
    for one, two in zip(whole, resumed, strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize(
    ("random", "message"),
    [
        ({"seed": -1, "step": 0, "stream": 0}, "seed = -1"),
        ({"seed": "1", "step": 0, "stream": 0}, "no seed, step and stream"),
        ({"key": 3}, "no seed, step and stream"),
        (5, "no seed, step and stream"),
        (None, "needs random"),
    ],
)
def test_a_state_with_wrong_words_is_refused_before_anything_changes(random, message):
    params = parameters([(5,)])
    optimizer = stochastic(AdamW, params)
    give(params, 0)
    optimizer.step()
    state = copy.deepcopy(optimizer.state_dict())
    state["param_groups"][0]["random"] = random
    before = copy.deepcopy(optimizer.state_dict())
    state["state"][0]["m"] += 1
    with pytest.raises(ValueError, match=message):
        optimizer.load_state_dict(state)
    assert torch.equal(optimizer.state_dict()["state"][0]["m"], before["state"][0]["m"])
    assert words(optimizer) == [RandomWords(9)]


def test_a_state_of_another_rounding_is_refused():
    params = parameters([(5,)])
    optimizer = stochastic(AdamW, params)
    nearest = AdamW(parameters([(5,)]))
    with pytest.raises(ValueError, match="and this optimizer is of"):
        nearest.load_state_dict(optimizer.state_dict())
    assert words(nearest) == [None]
    with pytest.raises(ValueError, match="and this optimizer is of"):
        optimizer.load_state_dict(nearest.state_dict())
    assert words(optimizer) == [RandomWords(9)]


def test_stochastic_rounding_without_words_is_refused():
    with pytest.raises(ValueError, match=r"needs random=RandomWords\(seed\)"):
        AdamW(parameters([(5,)]), rounding="stochastic")
    with pytest.raises(TypeError, match="random must be RandomWords"):
        AdamW(parameters([(5,)]), rounding="stochastic", random=5)
    with pytest.raises(TypeError, match="random must be RandomWords"):
        mcf.arithmetic("bfloat16", "stochastic", backend="torch", random=5)


# -- what torch does to the processor ---------------------------------------------------------------------
def test_a_flushing_torch_is_refused():
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush")
    try:
        with pytest.raises(FlushedSubnormalsError, match=r"torch\.set_flush_denormal"):
            mcf.arithmetic("bfloat16", backend="torch")
        params = parameters([(5,)])
    finally:
        torch.set_flush_denormal(False)
    optimizer = AdamW(params)
    give(params, 0)
    torch.set_flush_denormal(True)
    try:
        with pytest.raises(FlushedSubnormalsError):
            optimizer.step()
        with pytest.raises(FlushedSubnormalsError):
            AdamW(parameters([(5,)]))
    finally:
        torch.set_flush_denormal(False)
    optimizer.step()
