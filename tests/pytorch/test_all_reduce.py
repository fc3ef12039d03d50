"""Sums over ranks, in every order, beside the judge; beside those of gloo's processes in test_distributed."""

import math
from fractions import Fraction

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.oracle import OracleArithmetic


def ordered(order, ranks, size):
    """Return for each element the order of ranks, or None for a binomial tree."""
    if order == "binomial":
        return [None] * size
    if order == "sequential":
        return [list(range(ranks))] * size
    length = math.ceil(size / ranks)
    if order == "ring":  # of so few numbers, two segments for each rank
        length = 2 * math.ceil(size / (2 * ranks))
    step = -1 if order == "ring" else 1
    return [[(i // length + step * k) % ranks for k in range(1, ranks + 1)] for i in range(size)]


def judged(ar, numbers, places):
    if places is not None:
        total, *others = (numbers[rank] for rank in places)
        for other in others:
            total = ar.add(total, other)
        return total
    left = dict(enumerate(numbers))
    apart = 1
    while len(left) > 1:
        for rank in sorted(left):
            if rank % (2 * apart) == 0 and rank + apart in left:
                left[rank] = ar.add(left[rank], left.pop(rank + apart))
        apart *= 2
    return left[0]


@pytest.mark.parametrize("order", ["sequential", "ring", "ring_up", "binomial"])
@pytest.mark.parametrize("divide", ["none", "before", "after", "reciprocal"])
@pytest.mark.parametrize(("fmt", "rounding"), [("bfloat16", "nearest_even"), ("float8_e5m2", "toward_zero")])
@pytest.mark.sampled(2, each=False)
def test_every_order_is_that_of_the_judge(order, divide, fmt, rounding, assert_same):
    fmt, random = mcf.get_format(fmt), np.random.default_rng(1)
    ar = OracleArithmetic(fmt, mcf.Rounding(rounding))
    for ranks in (1, 2, 3, 5, 8):
        size = int(random.integers(1, 40))
        parts = [np.float32(random.standard_normal(size)) for _ in range(ranks)]
        found = mcf.reduce(parts, order, fmt, rounding, divide=divide)
        expected = []
        for i, places in enumerate(ordered(order, ranks, size)):
            numbers = [ar.round(float(x[i])) for x in parts]
            if divide == "before":
                numbers = [ar.div(x, float(ranks)) for x in numbers]
            if divide == "reciprocal":
                share = ar.round(1.0 / ranks)
                numbers = [ar.mul(x, share) for x in numbers]
            total = judged(ar, numbers, places)
            expected.append(ar.div(total, float(ranks)) if divide == "after" else total)
        assert_same(found, expected)


def test_a_sum_in_a_wider_format_is_rounded_once_more():
    x = [np.float32([1.0]), np.float32([2.0**-9]), np.float32([2.0**-9])]
    assert mcf.reduce(x, format="bfloat16").item() == 1
    assert mcf.reduce(x, format="float32", out_format="bfloat16").item() == 1  # a tie, to even
    assert mcf.reduce(x, format="float32").item() == float(Fraction(1) + Fraction(1, 256))


def test_shapes_are_kept_and_special_numbers_come_out():
    x = np.array([[np.inf, np.nan], [3e38, -0.0]], np.float32)
    found = mcf.reduce([x, x], "ring")
    assert found.shape == (2, 2)
    np.testing.assert_array_equal(found, [[np.inf, np.nan], [np.inf, -0.0]])
    assert np.signbit(found[1, 1])
    assert mcf.reduce([np.zeros((0, 3))] * 2, "ring").shape == (0, 3)


@pytest.mark.parametrize(
    ("parts", "options", "error", "problem"),
    [
        ([], {}, ValueError, "no parts"),
        ([np.ones(2), np.ones(3)], {}, ValueError, r"parts\[1\] has shape \(3,\)"),
        ([np.ones(2)], {"order": "rings"}, ValueError, "order"),
        ([np.ones(2)], {"divide": "first"}, ValueError, "divide"),
        ([np.ones(2)], {"rounding": "stochastic"}, ValueError, "not rounded at random"),
        ([np.array(["a"])], {}, TypeError, r"parts\[0\]"),
    ],
)
def test_reductions_that_are_none(parts, options, error, problem):
    with pytest.raises(error, match=problem):
        mcf.reduce(parts, **options)
