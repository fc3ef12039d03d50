"""Means that are rounded once, and the larger one of two numbers, by fractions."""

import math
from fractions import Fraction

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.backends.factory import on_blocks
from mcfsim.optim.means import mean
from mcfsim.oracle import round_fraction


def signed(seed, scale):
    """Return rows of numbers of both signs, which nearly cancel."""
    random = np.random.default_rng(seed)
    x = random.standard_normal((1, 40, 30)) * 2.0 ** random.integers(-scale, scale, (1, 40, 30))
    x[..., 15:] = -x[..., :15] * (1 + 2.0**-20 * random.integers(0, 3, (1, 40, 15)))
    return x.astype(np.float32)


@pytest.mark.parametrize("mode", ["nearest_even", "down", "up", "to_odd", "stochastic"])
@pytest.mark.parametrize("fmt", ["bfloat16", "float32", "float8_e5m2"])
def test_means_are_rounded_once(mode, fmt):
    """Of fractions, by the judge; 30 numbers of float32 at random are summed as fractions."""
    policy, fmt = mcf.rounding.get_rounding(mode), mcf.get_format(fmt)
    ar = on_blocks(fmt, policy).at(mcf.RandomWords(5), 0)
    words = mcf.RandomWords(5).draws(0, 40, 16).copy() if policy.stochastic else [None] * 40
    x = signed(3, 20 if fmt.emin < -100 else 3)
    rows = [sum(map(Fraction, row.tolist())) / 30 for row in x[0]]
    expected = [_rounded(q, fmt, policy, word) for q, word in zip(rows, words, strict=True)]
    assert mean(ar, x, (1, 40, 1)).ravel().tolist() == expected
    if not policy.stochastic:
        whole = _rounded(sum(rows) / 40, fmt, policy, None)
        assert mean(ar, x, (1, 1, 1)).ravel().tolist() == [whole]
        columns = [_rounded(sum(map(Fraction, row.tolist())) / 40, fmt, policy, None) for row in x[0].T]
        assert mean(ar, x, (1, 1, 30)).ravel().tolist() == columns


def _rounded(exact, fmt, policy, word):
    if word is None:
        return float(round_fraction(exact, fmt, policy))
    quantum = Fraction(2) ** (max(math.frexp(float(exact))[1] - 1, fmt.emin) - fmt.precision + 1)
    below = abs(exact) // quantum
    up = math.floor((abs(exact) / quantum - below) * 2**16) + int(word) >= 2**16
    return math.copysign(float((below + up) * quantum), exact)


@pytest.mark.parametrize(("tiny", "expected"), [(2.0**-126, 1 + 2.0**-23), (-(2.0**-126), 1), (0, 1)])
def test_a_mean_near_the_middle_of_two_numbers_is_that_of_the_exact_sum(tiny, expected):
    """Of 64 numbers and 64 zeros, or one far below them: half of 1 and half a unit in the last place."""
    ar = on_blocks(mcf.get_format("float32"), mcf.rounding.get_rounding("nearest_even"))
    x = np.zeros((1, 1, 128), np.float32)
    x[..., :64], x[..., 63], x[..., 64] = 1, 1 + 64 * 2.0**-24, tiny
    assert 2 * mean(ar, x, (1, 1, 1)).item() == expected
