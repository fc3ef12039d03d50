"""Stochastic rounding on tensors: the random words, and so the bits, of the simulation."""

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.random import RandomWords
from mcfsim.rounding import Rounding

torch = pytest.importorskip("torch")

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


def test_stochastic_rounding_without_words_is_refused():
    with pytest.raises(TypeError, match="random must be RandomWords"):
        mcf.arithmetic("bfloat16", "stochastic", backend="torch", random=5)
