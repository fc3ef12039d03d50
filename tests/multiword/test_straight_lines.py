"""Texts of several operations: what each costs, and that blocks, threads and shapes change no bit."""

from fractions import Fraction

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.formats import FORMATS
from mcfsim.multiword import shewchuk, summation
from mcfsim.storage.buffers import BLOCK
from tests.multiword.words import numbers, total
from tests.oracle.operands import random_tuples

BF16 = FORMATS["bfloat16"]
FIVE = (8.0, 9.0, 10.0, 11.0, 12.0)
PAIR = (1.0, 0.0)

#: What a sum costs for each term but the first.
SUMS = [
    (summation.recursive_sum, {}, 1),
    (summation.kahan_sum, {}, 4),
    (summation.neumaier_sum, {}, 7),
    (summation.dw_sum, {}, 10),
    (summation.dw_sum, {"ordered": True}, 7),
    (summation.sum_k, {"k": 4}, 19),
]
#: Operations of each text: Knuth, Dekker, Veltkamp; Joldes, Muller, Popescu 2017, Algorithms 4, 6, 9, 11;
#: Shewchuk 1997; Ogita, Rump, Oishi 2005. Those of double words are in their docstrings.
COSTS = [
    (mcf.two_sum, (1.0, 2.0), {}, 6),
    (mcf.fast_two_sum, (2.0, 1.0), {}, 3),
    (mcf.split, (1.0,), {}, 4),
    (mcf.two_prod, (1.0, 2.0), {}, 17),
    (mcf.two_prod_fma, (1.0, 2.0), {}, 2),
    (mcf.eft.err_fma, (1.0, 2.0, 3.0), {}, 20),
    (mcf.grow, (PAIR, 2.0), {}, 10),
    (mcf.grow, (PAIR, 2.0), {"ordered": True}, 7),
    (mcf.expansion_add, (PAIR, PAIR), {}, 20),
    (mcf.expansion_scale, (PAIR, 2.0), {}, 6),
    (mcf.expansion_mul, (PAIR, PAIR), {}, 8),
    (mcf.renormalize, (PAIR,), {}, 6),
    (mcf.renormalize, ((1.0, 0.0, 0.0),), {}, 30),
    (shewchuk.vec_sum, (FIVE,), {}, 24),
    (shewchuk.grow_expansion, (FIVE, 1.0), {}, 30),
    (shewchuk.expansion_sum, (FIVE, FIVE[:3]), {}, 90),
    (shewchuk.fast_expansion_sum, (FIVE,), {}, 21),
    *((summation.dot2, ((2.0,) * n, (3.0,) * n), {}, 10 * n - 7) for n in (1, 2, 7)),
    *(
        (algorithm, ((1.0,) * n,), options, each * (n - 1))
        for algorithm, options, each in SUMS
        for n in (1, 2, 7)
    ),
]


@pytest.mark.parametrize(("function", "operands", "options", "cost"), COSTS)
def test_every_text_costs_what_the_literature_says(function, operands, options, cost):
    meter = mcf.Meter(mcf.arithmetic("bf16"))
    function(meter, *operands, **options)
    assert len([operation for operation in meter.trace if operation != "neg"]) == cost
    assert sum(tally.calls for tally in meter.tallies.values()) == len(meter.trace)


# -- blocks and threads -----------------------------------------------------------------------------------
def expansion_texts(x, y):
    """Return the texts of expansions, with operands that stand for themselves in each of their components."""
    return {
        "grow": (mcf.grow, x, y[0]),
        "add": (mcf.expansion_add, x, y),
        "scale": (mcf.expansion_scale, x, y[0]),
        "mul": (mcf.expansion_mul, x, y),
        "renormalize": (mcf.renormalize, x),
        "kahan": (summation.kahan_sum, (*x, *y)),
    }


def part_of(operand, part):
    return tuple(x[part] for x in operand) if isinstance(operand, tuple) else operand[part]


def large_operands(n):
    """Return texts with operands of more than a block: the transforms for n = 0, else those of expansions."""
    if n == 0:
        a, b = random_tuples(BF16, BLOCK + 99, 2, seed=12)
        transforms = mcf.two_sum, mcf.fast_two_sum, mcf.two_prod, mcf.two_prod_fma
        return {transform.__name__: (transform, a, b) for transform in transforms}
    x = tuple(numbers(BF16, BLOCK + 99, seed=i, exponents=(-9 * i, 1 - 9 * i)) for i in range(n))
    return expansion_texts(x, tuple(part[::-1].copy() for part in x))


@pytest.mark.parametrize("n", [0, 2])
@pytest.mark.slow
def test_blocks_and_threads_change_no_bit(n, assert_same):
    """In pieces with a stride, by two threads, and a step at a time as the bare text has it."""
    ar, threads = mcf.arithmetic("bf16"), mcf.arithmetic("bf16", threads=2)
    for function, *operands in large_operands(n).values():
        whole, shared = function(ar, *operands), function(threads, *operands)
        bare = function.__wrapped__(ar, *operands)
        pieces = [function(ar, *(part_of(x, slice(i, None, 3)) for x in operands)) for i in range(3)]
        for k, result in enumerate(whole):
            assert_same(shared[k], result)
            assert_same(bare[k], result)
            for i, piece in enumerate(pieces):
                assert_same(piece[k], result[i::3])


def test_operands_broadcast_and_numbers_give_numbers():
    ar = mcf.arithmetic("bf16")
    s, e = mcf.two_sum(ar, np.float32([[1], [256]]), np.float32([1, 3]))
    assert (s.tolist(), e.tolist()) == ([[2, 4], [256, 260]], [[0, 0], [1, -1]])
    assert all(type(x) is float for x in mcf.two_sum(ar, 256.0, 1.0))
    assert summation.recursive_sum(ar, (np.ones((2, 1)), np.ones(3), 1.0)).tolist() == [[3.0] * 3] * 2
    # More terms than some loops of NumPy take operands.
    assert summation.kahan_sum(ar, (np.ones(3),) * 70)[0].tolist() == [70.0] * 3


# -- without rounding ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("n", [1, 2, 3])
def test_exact_arithmetic_runs_the_same_texts_without_error(n):
    exact = mcf.arithmetic(None, backend="exact")
    x = tuple(0.75 * 2.0 ** (-9 * i) for i in range(n))
    y = tuple(-1.25 * 2.0 ** (-9 * i) for i in range(n))
    found = {
        name: sum(map(mcf.expansion.to_fraction, function(exact, *operands)))
        for name, (function, *operands) in expansion_texts(x, y).items()
    }
    assert found["grow"] == total(x) + Fraction(y[0])
    assert found["add"] == total(x) + total(y)
    assert found["scale"] == total(x) * Fraction(y[0])
    assert found["renormalize"] == total(x)
    if n < 3:  # Collage's Mul leaves the product of the second components out
        assert found["mul"] == total(x) * total(y) - (Fraction(x[1]) * Fraction(y[1]) if n == 2 else 0)
    for transform in (mcf.two_sum, mcf.fast_two_sum, mcf.two_prod_fma):
        assert transform(exact, 0.1, 3e-40)[1] == 0
    terms = tuple(Fraction(k, 2**k) for k in range(20))
    for algorithm in (summation.recursive_sum, lambda *a: summation.kahan_sum(*a)[0], summation.neumaier_sum):
        assert algorithm(exact, terms) == sum(terms)
