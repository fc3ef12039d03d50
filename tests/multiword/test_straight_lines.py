"""Texts of several operations: what each costs, which shapes it takes, and what it gives without rounding."""

from fractions import Fraction

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.multiword import shewchuk, summation

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


def test_operands_broadcast_and_numbers_give_numbers():
    ar = mcf.arithmetic("bf16")
    s, e = mcf.two_sum(ar, np.float32([[1], [256]]), np.float32([1, 3]))
    assert (s.tolist(), e.tolist()) == ([[2, 4], [256, 260]], [[0, 0], [1, -1]])
    assert all(type(x) is float for x in mcf.two_sum(ar, 256.0, 1.0))
    assert summation.recursive_sum(ar, (np.ones((2, 1)), np.ones(3), 1.0)).tolist() == [[3.0] * 3] * 2
    # More terms than some loops of NumPy take operands.
    assert summation.kahan_sum(ar, (np.ones(3),) * 70)[0].tolist() == [70.0] * 3


@pytest.mark.parametrize("n", [1, 2, 3])
def test_exact_arithmetic_runs_the_same_texts_without_error(n):
    exact = mcf.arithmetic(None, backend="exact")
    x, y = (tuple(scale * 2.0 ** (-9 * i) for i in range(n)) for scale in (0.75, -1.25))
    value = mcf.expansion.value
    assert value(mcf.grow(exact, x, y[0])) == value(x) + Fraction(y[0])
    assert value(mcf.expansion_add(exact, x, y)) == value(x) + value(y)
    assert value(mcf.expansion_scale(exact, x, y[0])) == value(x) * Fraction(y[0])
    assert value(mcf.renormalize(exact, x)) == value(x)
    terms = tuple(Fraction(k, 2**k) for k in range(20))
    for algorithm in (summation.recursive_sum, summation.neumaier_sum):
        assert algorithm(exact, terms) == sum(terms)
