"""Digits: the loss, and every result in a format against fractions and mpmath, rounded by the judge."""

from fractions import Fraction
from functools import cache

import mpmath
import numpy as np
import pytest

from mcfsim.formats import Posit, get_format
from mcfsim.oracle import round_fraction
from mcfsim.oracle.posits import round_posit
from mcfsim.training.problems import Digits
from mcfsim.training.problems.calculation import Calculation
from tests.problems.test_problems import generic

HELD_OUT = np.arange(1797) % 5 == 4


@cache
def digits():
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    return images / 16, labels


def batch(problem, step, seed):
    """Return the images of a batch and their digits, as the problem's documentation has it."""
    sequence = np.random.SeedSequence(seed, spawn_key=(2, step))
    chosen = np.random.Generator(np.random.PCG64(sequence)).choice(1438, problem.batch, replace=False)
    return tuple(x[~HELD_OUT][chosen] for x in digits())


@pytest.mark.slow
def test_the_losses_are_those_of_scikit_learn():
    from sklearn.metrics import log_loss

    problem = Digits(hidden=6, batch=40)
    p = generic(problem)

    def reference(images, labels):
        active = np.maximum(images @ p["hidden.weight"] + p["hidden.bias"], 0)
        powers = np.exp(active @ p["output.weight"] + p["output.bias"])
        return log_loss(labels, powers / powers.sum(axis=1, keepdims=True), labels=range(10))

    loss, _ = problem.loss_and_gradient(p, 8, 9)
    assert loss == pytest.approx(reference(*batch(problem, 8, 9)), rel=1e-12)
    held_out = reference(*(x[HELD_OUT] for x in digits()))
    assert problem.validation_loss(p) == pytest.approx(held_out, rel=1e-12)


# -- in a format --------------------------------------------------------------------------------------------
class Judge:
    """Numbers as fractions, each result rounded by the judge."""

    def __init__(self, fmt, sums):
        self.fmt, self.sums = fmt, sums

    def round(self, x):
        found = (round_posit if isinstance(self.fmt, Posit) else round_fraction)(Fraction(x), self.fmt)
        return Fraction(found)

    def exp(self, x):
        with mpmath.workprec(200):
            mantissa, exponent = mpmath.frexp(mpmath.exp(mpmath.mpf(x.numerator) / x.denominator))
            return self.round(int(mpmath.ldexp(mantissa, 200)) * Fraction(2) ** (int(exponent) - 200))

    def product(self, rows, matrix, added=None):
        pairs = list(zip(transposed(matrix), added or [None] * len(matrix[0]), strict=True))
        return [[self.sum(row, column, first) for column, first in pairs] for row in rows]

    def sum(self, row, column, first):
        products = [x * y for x, y in zip(row, column, strict=True)]
        if self.sums == "once":
            return self.round(sum(products) + (first or 0))
        products = list(map(self.round, products))
        total = products.pop(0) if first is None else first
        for item in products:
            total = self.round(total + item)
        return total


def fractions(array):
    return [[Fraction(float(x)) for x in row] for row in np.atleast_2d(array)]


def transposed(rows):
    return [list(column) for column in zip(*rows, strict=True)]


def judged(problem, parameters, step, seed, fmt, loss_format, sums):
    """Return the gradient, written a second time and plainly."""
    of, loss = Judge(fmt, sums), Judge(loss_format, sums)
    images, labels = batch(problem, step, seed)

    def rounded(rows):
        return [[of.round(x) for x in row] for row in rows]

    w1, b1, w2, b2 = (rounded(fractions(parameters[name])) for name in problem.shapes)
    x = rounded(fractions(images))
    active = [[max(z, Fraction(0)) for z in row] for row in of.product(x, w1, b1[0])]
    errors = []
    for row, label in zip(of.product(active, w2, b2[0]), labels, strict=True):
        z = [loss.round(score) for score in row]
        e = [loss.exp(loss.round(score - max(z))) for score in z]
        s = loss.sum(e, [Fraction(1)] * 10, None)
        d = [loss.round((loss.round(e[k] - s) if k == label else e[k]) / s) for k in range(10)]
        errors.append([of.round(item) for item in d])
    pairs = zip(active, of.product(errors, transposed(w2)), strict=True)
    back = [[b if a > 0 else Fraction(0) for a, b in zip(*rows, strict=True)] for rows in pairs]
    ones = [[Fraction(1)] * problem.batch]
    sums_of = [of.product(a, b) for y, b in ((x, back), (active, errors)) for a in (transposed(y), ones)]
    return [np.array([[float(of.round(x / problem.batch)) for x in row] for row in rows]) for rows in sums_of]


NETWORKS = [(name, None) for name in ("posit8", "posit8es0", "posit16es1", "bfloat16")]
NETWORKS += [("posit8", "posit16"), ("float8_e5m2", "bfloat16")]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "loss_name"), NETWORKS)
@pytest.mark.sampled(4, each=False)
def test_every_result_is_rounded_where_the_documentation_says(name, loss_name):
    fmt, loss_format = get_format(name), get_format(loss_name or name)
    for seed in range(2):
        ways = {}
        for sums in ("once", "each"):
            problem = Digits(hidden=4, batch=3, format=name, loss_format=loss_name, sums=sums)
            parameters = generic(problem, seed)  # no values of the format: they are rounded first
            _, gradient = problem.loss_and_gradient(parameters, 1, seed)
            ways[sums] = judged(problem, parameters, 1, seed, fmt, loss_format, sums)
            for found, right in zip(gradient.values(), ways[sums], strict=True):
                np.testing.assert_array_equal(found, right.reshape(found.shape))
        assert any((a != b).any() for a, b in zip(*ways.values(), strict=True))


def test_overflow_and_underflow_are_those_of_the_format():
    x = np.array([-100.0, 0.0, 2.0], np.float32)
    for fmt, least in (("posit8es0", 2.0**-6), ("float8_e4m3fn", 0.0)):
        calculation = Calculation(fmt)
        assert calculation.exp(calculation.round(x)).tolist() == [least, 1.0, 7.5]
    assert Calculation(None).exp(x).tolist() == np.exp(x.astype(np.float64)).tolist()
