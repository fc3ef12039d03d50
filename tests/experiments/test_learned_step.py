"""Embedding tables with learned steps, judged in fractions, one number at a time."""

import math
from fractions import Fraction

import numpy as np
import pytest

import mcfsim as mcf
from experiments.learned_step import LearnedStepTable
from mcfsim.oracle.definition import round_fraction

pytestmark = pytest.mark.slow

FLOAT32 = mcf.get_format("float32")


def rounded(x):
    return Fraction(round_fraction(Fraction(x), FLOAT32))


def drawn(x, word, low, high):
    """Return an integer rounded at random by 16 bits: away from zero where floor(2^16 f) + R >= 2^16."""
    x = min(max(x, low), high)
    below = math.floor(abs(x))
    found = below + (math.floor((abs(x) - below) * 2**16) + int(word) >= 2**16)
    return float(-found if x < 0 else found)


def judged(table, update, gradient, rate, scale, words):
    """Return the steps and codes after a step, and the weights of the second pass, in fractions."""
    low, high = Fraction(table.lowest), Fraction(table.highest)
    steps, codes, seconds = [], [], []
    words = words.reshape(table.codes.shape)
    for row, step in enumerate(map(Fraction, table.steps[:, 0].tolist())):
        total, moved, second = Fraction(0), [], []
        for column, code in enumerate(map(Fraction, table.codes[row].tolist())):
            weight = rounded(rounded(step * code) + rounded(update[row, column]))
            x = rounded(weight / step)
            whole = min(max(Fraction(round(x)), low), high)  # ties to even
            slope = low if x <= low else high if x >= high else rounded(whole - x)
            total += rounded(gradient[row, column]) * slope
            moved.append(weight)
            second.append(float(rounded(step * whole)))
        change = rounded(rounded(rounded(total) * Fraction(scale)) * Fraction(rate))
        step = max(rounded(step - change), Fraction(float(table.least)))
        steps.append(float(step))
        codes.append([drawn(rounded(w / step), x, low, high) for w, x in zip(moved, words[row], strict=True)])
        seconds.append(second)
    return np.array(steps), np.array(codes), np.array(seconds)


def some(rng, bits):
    """Return a table, an update, and a gradient: rows of several sizes, some beyond the range of codes."""
    shape = int(rng.integers(1, 6)), int(rng.integers(1, 9))
    weights = rng.standard_normal(shape) * 2.0 ** rng.integers(-12, 4)
    table = LearnedStepTable(weights, bits, int(rng.integers(100)))
    update = rng.standard_normal(shape) * table.steps * table.highest * 2.0 ** rng.integers(-10, 2)
    update[rng.random(shape) < 0.2] = 0.0  # so that some lie at an end exactly
    return table, update, rng.standard_normal(shape) * 2.0 ** rng.integers(-20, 4)


def assert_holds(table, codes, steps):
    np.testing.assert_array_equal(table.codes, codes)
    np.testing.assert_array_equal(table.steps, steps)


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
            assert_holds(table, codes, steps[:, None])
            ends += int(np.isin(codes, (table.lowest, table.highest)).sum())
            floors += int((table.steps == table.least).sum())
    assert ends > 5
    assert floors > 0


def test_steps_at_first_and_without_a_gradient_and_codes_without_an_update():
    # The first step is twice the mean over the root of the largest code, and of a row of zeros the least.
    assert LearnedStepTable([[1.0, -3.0], [0.5, 0.25]], 2).steps.tolist() == [[4.0], [0.75]]
    assert LearnedStepTable(np.zeros((1, 3)), 4, least=2.0**-10).steps.tolist() == [[2.0**-10]]
    table = LearnedStepTable(np.random.default_rng(1).standard_normal((3, 5)), 8)
    before = table.codes.copy(), table.steps.copy()
    table.step(table.moved(np.zeros((3, 5))))
    assert_holds(table, *before)
    assert table.bytes_per_parameter == 1 + 4 / 5


@pytest.mark.parametrize(
    ("options", "text"),
    [
        *(({"weights": x}, "table of finite numbers") for x in (np.zeros(3), np.zeros((0, 3)), [[np.nan]])),
        ({"weights": np.array([["a"]])}, "does not hold real numbers"),
        ({"bits": 1}, "bits"),
        ({"bits": 9}, "must lie in"),
        ({"bits": 4.0}, "bits"),
        ({"least": 0}, "least"),
        ({"seed": -1}, "seed"),
        ({"rounding": "sometimes"}, "sometimes"),
    ],
)
def test_tables_that_make_no_sense_are_refused(options, text):
    with pytest.raises((ValueError, TypeError), match=text):
        LearnedStepTable(**{"weights": np.ones((2, 2)), "bits": 4} | options)


def full(x):
    return np.full((2, 2), x)


LARGE = full(np.float32(1e38))


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda table, moved: table.moved(np.zeros((2, 3))), "must be finite, of shape"),
        (lambda table, moved: table.moved(full(np.inf)), "must be finite"),
        (lambda table, moved: table.moved(full(3.4e38)) and table.moved(full(1e39)), "range"),
        (lambda table, moved: table.step(moved, full(np.nan)), "must be finite"),
        (lambda table, moved: table.step(moved, full(1), -1.0), "rate"),
        (lambda table, moved: table.step(moved, full(1), 0.1, math.inf), "scale"),
        (lambda table, moved: table.step(moved._replace(weights=LARGE), full(-1e38), 1e38), "leave"),
    ],
)
def test_a_step_that_is_refused_changes_nothing(call, text):
    table = LearnedStepTable(np.ones((2, 2)), 4)
    before = table.codes.copy(), table.steps.copy()
    with pytest.raises(ValueError, match=text):
        call(table, table.moved(np.zeros((2, 2))))
    assert_holds(table, *before)
    assert table.count == 0
