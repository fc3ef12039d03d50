import pickle
import sys
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression as Reference
from sklearn.metrics import log_loss
from sklearn.preprocessing import StandardScaler

from mcfsim.problems import LogisticRegression, Quadratic, Rosenbrock

PROBLEMS = [Quadratic(6, 1e4, seed=1), Rosenbrock(5), LogisticRegression(l2=0.01)]
every_problem = pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.name)


def generic_point(problem, seed=0):
    random = np.random.default_rng(seed)
    return {name: random.standard_normal(p.shape) for name, p in problem.initial_parameters(seed=0).items()}


def exactly(parameters):
    return {name: p.astype(object) + mpmath.mpf(0) for name, p in parameters.items()}


@every_problem
def test_gradient_against_finite_differences(problem):
    point = generic_point(problem)
    _, gradient = problem.loss_and_gradient(point, step=0, seed=0)
    h = 1e-5
    for name, g in gradient.items():
        assert g.dtype == np.float64
        for i, unit in enumerate(np.eye(len(g))):
            low, high = (
                problem.loss_and_gradient(point | {name: point[name] + t * unit}, 0, 0)[0] for t in (-h, h)
            )
            assert abs((high - low) / (2 * h) - g[i]) < 1e-8 * np.abs(g).max()


@every_problem
def test_mpmath_parameters(problem):
    point = generic_point(problem)
    loss, gradient = problem.loss_and_gradient(point, step=0, seed=0)
    with mpmath.workdps(60):
        exact_point = exactly(point)
        exact_loss, exact_gradient = problem.loss_and_gradient(exact_point, step=0, seed=0)
        assert isinstance(exact_loss, mpmath.mpf)
        assert abs(loss - exact_loss) < 1e-14 * loss
        assert abs(problem.validation_loss(point) - problem.validation_loss(exact_point)) < 1e-14 * loss
        for name, exact in exact_gradient.items():
            size = max(abs(exact))
            assert max(abs(gradient[name] - exact)) < 1e-14 * size
            for i in range(min(len(exact), 4)):

                def along(t, name=name, i=i):
                    moved = exact_point[name].copy()
                    moved[i] = t
                    return problem.loss_and_gradient(exact_point | {name: moved}, 0, 0)[0]

                assert abs(mpmath.diff(along, exact_point[name][i]) - exact[i]) < 1e-40 * size


@every_problem
def test_problems_can_be_pickled_even_after_mpmath(problem):
    point = generic_point(problem)
    problem.loss_and_gradient(exactly(point), 0, 0)
    again = pickle.loads(pickle.dumps(problem))
    assert again.settings() == problem.settings()
    assert again.validation_loss(point) == problem.validation_loss(point)


def test_data_are_exact_below_double_precision_too():
    problem = Quadratic(6, 1e4, seed=1)
    with mpmath.workprec(20):  # the conversion happens here, and must not round
        problem.loss_and_gradient(exactly(generic_point(problem)), 0, 0)
    with mpmath.workdps(60):
        x = exactly(generic_point(problem))
        assert (
            problem.loss_and_gradient(x, 0, 0)[0] == Quadratic(6, 1e4, seed=1).loss_and_gradient(x, 0, 0)[0]
        )


@every_problem
def test_wrong_parameters_are_refused(problem):
    good = problem.initial_parameters(seed=0)
    name = next(iter(good))
    with pytest.raises(ValueError, match="expected the tensors"):
        problem.loss_and_gradient({}, 0, 0)
    with pytest.raises(ValueError, match=f"'{name}' must have shape"):
        problem.validation_loss(good | {name: np.zeros(99)})
    with pytest.raises(TypeError, match="all float64 or all object, not float32"):
        problem.validation_loss({name: p.astype(np.float32) for name, p in good.items()})


@every_problem
def test_a_diverged_run_gives_no_warning(problem):
    huge = {name: np.full_like(p, -1e200) for name, p in problem.initial_parameters(seed=0).items()}
    loss, _ = problem.loss_and_gradient(huge, 0, 0)
    # Where terms overflow to either side, the order of the sum decides between infinity and NaN.
    assert loss > 1e100 or np.isnan(loss)
    with mpmath.workdps(30):
        assert problem.loss_and_gradient(exactly(huge), 0, 0)[0] > 1e100
    lost = {name: np.full_like(p, np.nan) for name, p in huge.items()}
    assert np.isnan(problem.loss_and_gradient(lost, 0, 0)[0])


@pytest.mark.parametrize(("dimension", "condition_number"), [(2, 1.0), (7, 10.0), (40, 1e6)])
def test_quadratic_has_the_spectrum_it_promises(dimension, condition_number):
    problem = Quadratic(dimension, condition_number)
    np.testing.assert_array_equal(problem.matrix, problem.matrix.T)
    expected = condition_number ** -np.linspace(1, 0, dimension)
    np.testing.assert_allclose(np.linalg.eigvalsh(problem.matrix), expected, rtol=0, atol=1e-14)


def test_quadratic_is_zero_at_its_minimiser():
    problem = Quadratic(6, 1e4)
    loss, gradient = problem.loss_and_gradient({"x": problem.minimiser}, 0, 0)
    assert loss == 0
    assert not gradient["x"].any()


def test_quadratic_takes_its_data_exactly():
    problem = Quadratic(3, 50.0)
    x = problem.initial_parameters(seed=5)
    error = [Fraction(a) - Fraction(b) for a, b in zip(x["x"], problem.minimiser, strict=True)]
    rows = [[Fraction(a) for a in row] for row in problem.matrix]
    exact = (
        sum(e * a * f for e, row in zip(error, rows, strict=True) for a, f in zip(row, error, strict=True))
        / 2
    )
    with mpmath.workdps(200):
        loss, _ = problem.loss_and_gradient(exactly(x), 0, 0)
        assert loss == mpmath.mpf(exact.numerator) / exact.denominator  # 200 digits hold it without rounding


def test_quadratic_depends_on_its_seeds():
    one, two = Quadratic(4, 10.0, seed=1), Quadratic(4, 10.0, seed=2)
    assert (one.matrix != two.matrix).all()
    assert (one.minimiser != two.minimiser).all()
    assert (one.initial_parameters(seed=1)["x"] != one.initial_parameters(seed=2)["x"]).all()
    assert (one.initial_parameters(seed=1)["x"] == two.initial_parameters(seed=1)["x"]).all()


@pytest.mark.parametrize("condition_number", [0.99, -1.0, 2e12, np.inf, np.nan])
def test_quadratic_refuses_condition_numbers(condition_number):
    with pytest.raises(ValueError, match="must lie between 1 and 1e12"):
        Quadratic(3, condition_number)


def test_sizes_are_checked():
    with pytest.raises(ValueError, match="dimension = 1 must be at least 2"):
        Quadratic(1, 1.0)
    with pytest.raises(ValueError, match="dimension = 0 must be at least 2"):
        Rosenbrock(0)
    with pytest.raises(TypeError, match="dimension must be an int"):
        Rosenbrock(2.0)
    with pytest.raises(ValueError, match="seed = -1 must be at least 0"):
        Quadratic(2, 1.0, seed=-1)


def test_rosenbrock_values():
    plane, chain = Rosenbrock(), Rosenbrock(5)
    assert chain.initial_parameters()["x"].tolist() == [-1.2, 1.0, -1.2, 1.0, -1.2]
    assert plane.validation_loss(plane.initial_parameters()) == pytest.approx(24.2, rel=1e-15)
    loss, gradient = chain.loss_and_gradient({"x": np.ones(5)}, 0, 0)
    assert loss == 0
    assert not gradient["x"].any()


def breast_cancer():
    features, labels = load_breast_cancer(return_X_y=True)
    held_out = np.arange(569) % 5 == 4
    features = StandardScaler().fit(features[~held_out]).transform(features)
    return features[~held_out], labels[~held_out], features[held_out], labels[held_out]


def test_logistic_loss_is_that_of_scikit_learn():
    problem = LogisticRegression(l2=0.5)
    point = generic_point(problem)
    features, labels, held_out, held_out_labels = breast_cancer()

    def reference(features, labels):
        return log_loss(labels, 1 / (1 + np.exp(-(features @ point["weights"] + point["bias"]))))

    penalty = 0.25 * np.sum(point["weights"] ** 2)
    loss, _ = problem.loss_and_gradient(point, 0, 0)
    assert loss == pytest.approx(reference(features, labels) + penalty, rel=1e-12)
    assert problem.validation_loss(point) == pytest.approx(reference(held_out, held_out_labels), rel=1e-12)


def test_logistic_gradient_vanishes_where_scikit_learn_finds_the_minimum():
    problem = LogisticRegression(l2=0.01)
    features, labels, *_ = breast_cancer()
    fit = Reference(C=1 / (0.01 * len(labels)), tol=1e-12, solver="newton-cholesky").fit(features, labels)
    _, gradient = problem.loss_and_gradient({"weights": fit.coef_[0], "bias": fit.intercept_}, 0, 0)
    assert max(np.abs(g).max() for g in gradient.values()) < 1e-12


def test_logistic_is_stable_for_huge_margins():
    problem = LogisticRegression(l2=0.0)
    weights = 1e6 * generic_point(problem)["weights"]
    features, labels, *_ = breast_cancer()
    margins = (features @ weights) * np.where(labels == 1, 1, -1)
    assert margins.min() < -1e6
    assert margins.max() > 1e6
    loss, gradient = problem.loss_and_gradient({"weights": weights, "bias": np.zeros(1)}, 0, 0)
    assert loss == pytest.approx(np.maximum(-margins, 0).mean(), rel=1e-12)
    misfit = np.where(margins < 0, np.where(labels == 1, -1.0, 1.0), 0.0)
    np.testing.assert_allclose(gradient["weights"], misfit @ features / len(labels), rtol=0, atol=1e-13)


@pytest.mark.parametrize("l2", [-1e-9, np.inf, np.nan])
def test_logistic_refuses_penalties(l2):
    with pytest.raises(ValueError, match="must be finite and not negative"):
        LogisticRegression(l2)


def test_logistic_says_where_its_data_are_from(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ImportError, match=r"pip install 'mcfsim\[test\]'"):
        LogisticRegression()
