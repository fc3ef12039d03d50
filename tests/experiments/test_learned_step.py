"""Embedding tables with learned steps, judged in fractions, one number at a time."""

import math
from fractions import Fraction

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.oracle.definition import round_fraction
from mcfsim.training.learned_step import LearnedStepTable, Moved

pytestmark = pytest.mark.slow

FLOAT32 = mcf.get_format("float32")


def rounded(x):
    """Return a rational rounded to binary32, as a fraction."""
    return Fraction(round_fraction(Fraction(x), FLOAT32))


def nearest(x, low, high):
    """Return the nearest integer, ties to even, within the range."""
    return min(max(Fraction(round(x)), low), high)


def drawn(x, word, low, high):
    """Return an integer rounded at random by 16 bits: away from zero where floor(2^16 f) + R >= 2^16."""
    x = min(max(x, low), high)
    below = math.floor(abs(x))
    found = below + (math.floor((abs(x) - below) * 2**16) + int(word) >= 2**16)
    return Fraction(-found if x < 0 else found)


def judged(table, update, gradient, rate, scale, words):
    """Return the steps and codes after a step, and the weights of the second pass, in fractions."""
    low, high = Fraction(table.lowest), Fraction(table.highest)
    steps, codes, seconds = [], [], []
    for row, step in enumerate(map(Fraction, table.steps[:, 0].tolist())):
        total, moved, second = Fraction(0), [], []
        for column, code in enumerate(map(Fraction, table.codes[row].tolist())):
            weight = rounded(rounded(step * code) + rounded(Fraction(update[row, column])))
            x = rounded(weight / step)
            whole = nearest(x, low, high)
            slope = low if x <= low else high if x >= high else rounded(whole - x)
            total += rounded(Fraction(gradient[row, column])) * slope
            moved.append(weight)
            second.append(rounded(step * whole))
        change = rounded(rounded(rounded(total) * Fraction(scale)) * Fraction(rate))
        step = max(rounded(step - change), Fraction(float(table.least)))
        steps.append(float(step))
        here = words[row * len(moved) : (row + 1) * len(moved)]
        codes.append(
            [float(drawn(rounded(w / step), word, low, high)) for w, word in zip(moved, here, strict=True)]
        )
        seconds.append([float(x) for x in second])
    return np.array(steps), np.array(codes), np.array(seconds)


def some(rng, bits):
    """Return a table, an update, and a gradient: rows of several sizes, some beyond the range of codes."""
    shape = int(rng.integers(1, 6)), int(rng.integers(1, 9))
    table = LearnedStepTable(
        rng.standard_normal(shape) * 2.0 ** rng.integers(-12, 4), bits, int(rng.integers(100))
    )
    size = table.steps * table.highest
    update = rng.standard_normal(shape) * size * 2.0 ** rng.integers(-10, 2)
    update[rng.random(shape) < 0.2] = 0.0  # so that some lie at an end exactly
    return table, update, rng.standard_normal(shape) * 2.0 ** rng.integers(-20, 4)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_steps_are_those_of_fractions(bits):
    rng = np.random.default_rng(bits)
    ends = floors = 0
    for _ in range(8):
        table, update, gradient = some(rng, bits)
        for _ in range(3):
            rate, scale = float(rng.uniform(0, 0.3)), float(rng.uniform(0, 1))
            words = mcf.RandomWords(table._words.seed, table.count + 1).of(1).words(0, table.codes.size, 16)
            steps, codes, seconds = judged(table, update, gradient, rate, scale, words)
            moved = table.moved(update)
            np.testing.assert_array_equal(moved.rounded, seconds)
            table.step(moved, gradient, rate, scale)
            np.testing.assert_array_equal(table.steps[:, 0], steps)
            np.testing.assert_array_equal(table.codes, codes)
            ends += int(np.isin(codes, (table.lowest, table.highest)).sum())
            floors += int((table.steps == table.least).sum())
    assert ends > 5
    assert floors > 0


def test_without_a_gradient_steps_stay_and_nothing_moves_without_an_update():
    table = LearnedStepTable(np.random.default_rng(1).standard_normal((3, 5)), 8)
    before = table.codes.copy(), table.steps.copy()
    table.step(table.moved(np.zeros((3, 5))))
    np.testing.assert_array_equal(table.codes, before[0])
    np.testing.assert_array_equal(table.steps, before[1])
    assert table.bytes_per_parameter == 1 + 4 / 5


def test_the_first_step_is_twice_the_mean_and_of_a_row_of_zeros_the_least():
    """Over the root of the largest code, which is 1 of two bits."""
    assert LearnedStepTable([[1.0, -3.0], [0.5, 0.25]], 2).steps.tolist() == [[4.0], [0.75]]
    table = LearnedStepTable(np.zeros((2, 3)), 4, least=2.0**-10)
    assert (table.steps == 2.0**-10).all()
    assert not table.codes.any()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"weights": np.zeros(3)}, "table of finite numbers"),
        ({"weights": np.zeros((0, 3))}, "table of finite numbers"),
        ({"weights": np.array([[np.nan]])}, "table of finite numbers"),
        ({"weights": np.array([["a"]])}, "does not hold real numbers"),
        ({"bits": 1}, "bits"),
        ({"bits": 9}, "must lie in"),
        ({"bits": 4.0}, "bits"),
        ({"least": 0}, "least"),
        ({"seed": -1}, "seed"),
        ({"rounding": "sometimes"}, "sometimes"),
    ],
    ids=["vector", "empty", "NaN", "text", "one bit", "nine bits", "no int", "least", "seed", "rounding"],
)
def test_tables_that_make_no_sense_are_refused(options, text):
    with pytest.raises((ValueError, TypeError), match=text):
        LearnedStepTable(**{"weights": np.ones((2, 2)), "bits": 4} | options)


def test_a_step_that_is_refused_changes_nothing():
    table = LearnedStepTable(np.ones((2, 2)), 4)
    moved, before = table.moved(np.zeros((2, 2))), (table.codes.copy(), table.steps.copy())
    for call, text in (
        (lambda: table.moved(np.zeros((2, 3))), "must be finite, of shape"),
        (lambda: table.moved(np.full((2, 2), np.inf)), "must be finite"),
        (lambda: table.moved(np.full((2, 2), 3.4e38)) and table.moved(np.full((2, 2), 1e39)), "range"),
        (lambda: table.step(moved, np.full((2, 2), np.nan)), "must be finite"),
        (lambda: table.step(moved, np.ones((2, 2)), -1.0), "rate"),
        (lambda: table.step(moved, np.ones((2, 2)), 0.1, math.inf), "scale"),
        (
            lambda: table.step(
                Moved(np.full((2, 2), 1e38, "f4"), moved.rounded), np.full((2, 2), -1e38), 1e38
            ),
            "leave",
        ),
    ):
        with pytest.raises(ValueError, match=text):
            call()
        np.testing.assert_array_equal(table.codes, before[0])
        np.testing.assert_array_equal(table.steps, before[1])
        assert table.count == 0
