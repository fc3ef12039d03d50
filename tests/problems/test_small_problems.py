"""Problems that mpmath can compute exactly, against fractions, derivatives in mpmath, and scikit-learn."""

import pickle
import sys
from fractions import Fraction

import mpmath
import numpy as np
import pytest

from mcfsim.training.problems import LogisticRegression, Quadratic, Rosenbrock
from tests.problems.test_problems import EXACT, generic, label


def exactly(parameters):
    return {name: p.astype(object) + mpmath.mpf(0) for name, p in parameters.items()}


@pytest.mark.parametrize("problem", EXACT[:3], ids=label)
def test_numbers_of_mpmath_and_what_is_pickled_after_them(problem):
    point = generic(problem)
    loss, gradient = problem.loss_and_gradient(point, step=0, seed=0)
    with mpmath.workdps(60):
        exact_point = exactly(point)
        exact_loss, exact_gradient = problem.loss_and_gradient(exact_point, step=0, seed=0)
        assert isinstance(exact_loss, mpmath.mpf)
        assert abs(loss - exact_loss) < 1e-14 * loss
        assert abs(problem.validation_loss(point) - problem.validation_loss(exact_point)) < 1e-14 * loss
        for name, exact in exact_gradient.items():
            assert max(abs(gradient[name] - exact)) < 1e-14 * max(abs(exact))
        huge = {name: np.full_like(p, -1e200) for name, p in point.items()}
        assert problem.loss_and_gradient(exactly(huge), 0, 0)[0] > 1e100
    again = pickle.loads(pickle.dumps(problem))
    assert again.settings() == problem.settings()
    assert again.validation_loss(point) == problem.validation_loss(point)


# -- the quadratic and Rosenbrock's --------------------------------------------------------------------------
@pytest.mark.parametrize(("dimension", "condition_number"), [(2, 1.0), (7, 10.0), (40, 1e6)])
def test_quadratic_has_the_spectrum_it_promises_and_is_zero_at_its_minimiser(dimension, condition_number):
    problem = Quadratic(dimension, condition_number)
    np.testing.assert_array_equal(problem.matrix, problem.matrix.T)
    expected = condition_number ** -np.linspace(1, 0, dimension)
    np.testing.assert_allclose(np.linalg.eigvalsh(problem.matrix), expected, rtol=0, atol=1e-14)
    loss, gradient = problem.loss_and_gradient({"x": problem.minimiser}, 0, 0)
    assert (loss, gradient["x"].any()) == (0, False)


def test_quadratic_takes_its_data_exactly():
    """Also when they were taken at a lower precision before: 200 digits hold all without rounding."""
    problem = Quadratic(3, 50.0)
    x = problem.initial_parameters(seed=5)
    with mpmath.workprec(20):
        problem.loss_and_gradient(exactly(x), 0, 0)
    error = [Fraction(a) - Fraction(b) for a, b in zip(x["x"], problem.minimiser, strict=True)]
    moved = [sum(Fraction(a) * e for a, e in zip(row, error, strict=True)) for row in problem.matrix]
    exact = sum(e * m for e, m in zip(error, moved, strict=True)) / 2
    with mpmath.workdps(200):
        loss, _ = problem.loss_and_gradient(exactly(x), 0, 0)
        assert loss == mpmath.mpf(exact.numerator) / exact.denominator


def test_quadratic_depends_on_its_seeds():
    one, two = Quadratic(4, 10.0, seed=1), Quadratic(4, 10.0, seed=2)
    assert (one.matrix != two.matrix).all()
    assert (one.minimiser != two.minimiser).all()
    starts = np.array([[x.initial_parameters(seed=seed)["x"] for seed in (1, 2)] for x in (one, two)])
    assert (starts[:, 0] != starts[:, 1]).all()
    assert (starts[0] == starts[1]).all()


def test_rosenbrock_values():
    plane, chain = Rosenbrock(), Rosenbrock(5)
    assert chain.initial_parameters()["x"].tolist() == [-1.2, 1.0, -1.2, 1.0, -1.2]
    assert plane.validation_loss(plane.initial_parameters()) == pytest.approx(24.2, rel=1e-15)
    loss, gradient = chain.loss_and_gradient({"x": np.ones(5)}, 0, 0)
    assert (loss, gradient["x"].any()) == (0, False)


# -- logistic regression -------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def breast_cancer():
    from sklearn.datasets import load_breast_cancer
    from sklearn.preprocessing import StandardScaler

    features, labels = load_breast_cancer(return_X_y=True)
    held_out = np.arange(569) % 5 == 4
    features = StandardScaler().fit(features[~held_out]).transform(features)
    return features[~held_out], labels[~held_out], features[held_out], labels[held_out]


@pytest.mark.slow
def test_logistic_loss_and_minimum_are_those_of_scikit_learn(breast_cancer):
    from sklearn.linear_model import LogisticRegression as Reference
    from sklearn.metrics import log_loss

    problem = LogisticRegression(l2=0.5)
    point = generic(problem)
    features, labels, held_out, held_out_labels = breast_cancer

    def reference(features, labels):
        return log_loss(labels, 1 / (1 + np.exp(-(features @ point["weights"] + point["bias"]))))

    penalty = 0.25 * np.sum(point["weights"] ** 2)
    loss, _ = problem.loss_and_gradient(point, 0, 0)
    assert loss == pytest.approx(reference(features, labels) + penalty, rel=1e-12)
    assert problem.validation_loss(point) == pytest.approx(reference(held_out, held_out_labels), rel=1e-12)
    fit = Reference(C=1 / (0.01 * len(labels)), tol=1e-12, solver="newton-cholesky").fit(features, labels)
    least = {"weights": fit.coef_[0], "bias": fit.intercept_}
    _, gradient = LogisticRegression(l2=0.01).loss_and_gradient(least, 0, 0)
    assert max(np.abs(g).max() for g in gradient.values()) < 1e-12


def test_logistic_is_stable_for_huge_margins(breast_cancer):
    problem = LogisticRegression(l2=0.0)
    weights = 1e6 * generic(problem)["weights"]
    features, labels, *_ = breast_cancer
    margins = (features @ weights) * np.where(labels == 1, 1, -1)
    assert margins.min() < -1e6
    assert margins.max() > 1e6
    loss, gradient = problem.loss_and_gradient({"weights": weights, "bias": np.zeros(1)}, 0, 0)
    assert loss == pytest.approx(np.maximum(-margins, 0).mean(), rel=1e-12)
    misfit = np.where(margins < 0, np.where(labels == 1, -1.0, 1.0), 0.0)
    np.testing.assert_allclose(gradient["weights"], misfit @ features / len(labels), rtol=0, atol=1e-13)


def test_logistic_says_where_its_data_are_from(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ImportError, match="pip install scikit-learn"):
        LogisticRegression()
