"""The bounds that docstrings state, on random operands; and inputs on which a careful function is needed."""

import itertools
import math

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim import functions as f
from mcfsim.backends.exact import ExactArithmetic
from mcfsim.compile.tracing import trace
from mcfsim.formats import Format
from tests.functions.cases import POLYNOMIAL, QUADRATIC, SORTED, Within, drawn, flat, vec
from tests.shared.refusals import check, refusals, refused

P12 = Format(precision=12, emin=-200, emax=200)
U = 2.0**-12
EXACT = ExactArithmetic(400)
FIRST = 1.02  # of bounds to first order, in P12


def gamma(k):
    return k * U / (1 - k * U)


def sizes(x, *others):
    """Return the sum of the magnitudes of terms, or of their products with others, exactly."""
    y = others[0] if others else (1.0,) * len(x)
    return f.recursive_dot(EXACT, tuple(map(abs, x)), tuple(map(abs, y)))


def q(x, c):
    return f.horner(EXACT, abs(x), tuple(map(abs, c)))


def spread(x):
    return np.max(x, axis=0) - np.min(x, axis=0)


def relative(*factors):
    """Return the bound of results that are each off by so many u times themselves."""
    return lambda given, exact: [k * U * abs(y) for k, y in zip(factors, exact, strict=True)]


def modulus(k):
    return lambda given, exact: [k * np.sqrt(exact[0] ** 2 + exact[1] ** 2)] * 2


def of_logs(given, exact):
    return [U * (2 * abs(z) + 5 + spread(given[0])) for z in exact]


NEAR_ONE = vec(4, 1, 1.01)
PLANE = (vec(2), vec(2))
#: Operands and bounds, given operands and exact results.
BOUNDS = {
    "horner": (POLYNOMIAL[1], lambda given, exact: [gamma(12) * q(*given)]),
    "compensated_horner": (
        (Within(0.5, 2), (1.0, -5.0, 10.0, -10.0, 5.0, -1.0)),
        lambda given, exact: [U * abs(exact[0]) + gamma(10) ** 2 * q(*given)],
    ),
    "polynomial_from_roots": ((Within(1, 2), vec(5, 1, 2)), lambda given, exact: [gamma(9) * abs(exact[0])]),
    "pairwise_sum": ((vec(7),), lambda given, exact: [gamma(3) * sizes(*given)]),
    "doubly_compensated_sum": ((SORTED,), relative(2)),
    "recursive_dot": ((vec(7), vec(7)), lambda given, exact: [7 * U * sizes(*given)]),
    "pairwise_dot": ((vec(7), vec(7)), lambda given, exact: [gamma(4) * sizes(*given)]),
    "fma_dot": ((vec(7), vec(7)), lambda given, exact: [gamma(7) * sizes(*given)]),
    "difference_of_products": (NEAR_ONE, relative(2)),
    "stable_quadratic_roots": (QUADRATIC[1], relative(4, 4)),
    "naive_softmax": ((vec(5),), relative(*(7,) * 5)),
    "softmax": ((vec(5),), lambda given, exact: [U * (7 + 2 * spread(given[0])) * y for y in exact]),
    "naive_log_sum_exp": ((vec(5, -3, 0),), lambda given, exact: [U * (abs(exact[0]) + 5)]),
    "log_sum_exp": (
        (vec(5, -3, 0),),
        lambda given, exact: [U * (abs(exact[0]) + abs(exact[0] + 5 - np.min(given[0], axis=0)))],
    ),
    "log_softmax": ((vec(5),), of_logs),
    "sigmoid": ((Within(-9, 9),), relative(3)),
    "softplus": ((Within(-9, 9),), relative(3)),
    "silu": ((Within(-9, 9),), relative(4)),
    "rms_norm": ((vec(6), vec(6)), relative(*(8,) * 6)),
    "mean": ((vec(7, 0, 1),), lambda given, exact: [U * sizes(*given)]),
    "variance_two_pass": ((vec(6),), relative(9)),
    "hypot": ((Within(1, 2), Within(1, 2)), relative(2)),
    "scaled_hypot": (vec(2), relative(3.25)),
    "givens": ((Within(0, 1), Within(1, 2)), relative(5.25, 3.25)),
    "rotation": (vec(4), lambda given, exact: [gamma(2) * (abs(a) + abs(b)) for a, b in crossed(*given)]),
    "complex_product": (PLANE, modulus(math.sqrt(5) * U)),
    "complex_product_fma": (PLANE, relative(2, 2)),
    "complex_quotient": (PLANE, modulus(math.sqrt(2) * gamma(4))),
    "smith_quotient": (PLANE, modulus(6 * U)),
    # A step from error e: (1 + |e|) / (1 - e**2), and 1 + 1 / (2 (1 + e)).
    "reciprocal_newton": ((Within(1.25, 1.75), 0.625), relative(1.3)),
    "sqrt_newton": ((Within(1, 4), 1.5), relative(1.67)),
}


def crossed(c, s, x, y):
    return (c * x, s * y), (c * y, s * x)


OPTIONS = {
    "stable_quadratic_roots": {"fused": True},
    "reciprocal_newton": {"steps": 1},
    "sqrt_newton": {"steps": 1},
}


@pytest.mark.parametrize("name", BOUNDS)
def test_no_error_exceeds_its_bound_and_some_come_near(name):
    operands, bound = BOUNDS[name]
    given = drawn(operands, P12, 150, seed=3)
    function, options = getattr(f, name), OPTIONS.get(name, {})
    found = flat(function(mcf.arithmetic(P12), *given, **options))
    exact = flat(function(EXACT, *given, **options))
    pairs = zip(found, exact, bound(given, exact), strict=True)
    shares = [np.float64(abs(a - b) / np.where(c == 0, 2.0**-99, c)) for a, b, c in pairs]
    assert 0.05 < np.max(shares) <= FIRST


@pytest.mark.slow
def test_a_doubly_compensated_sum_is_right_however_much_cancels():
    x = mcf.arithmetic(P12).round(np.random.default_rng(5).uniform(-4, 4, (30, 200)))
    x = np.concatenate([x, [mcf.arithmetic(P12).round(-x.sum(axis=0))]])
    x = tuple(np.take_along_axis(x, np.argsort(-abs(x), axis=0), axis=0))
    found, exact = (f.doubly_compensated_sum(ar, x) for ar in (mcf.arithmetic(P12), EXACT))
    assert (abs(found - exact) <= 2 * U * abs(exact)).all()


@pytest.mark.parametrize("n", range(1, 20))
def test_a_pairwise_sum_is_as_deep_as_its_bound_says(n):
    names = (tuple(f"x{i}" for i in range(n)),)
    assert trace(f.pairwise_sum, "bfloat16", operands=names).depth() == math.ceil(math.log2(n))


# -- careful functions beside plain ones --------------------------------------------------------------------
BF16 = mcf.arithmetic("bfloat16")
CUBE = (1.0, -3.0, 3.0, -1.0)
FAR = (96.0, 97.0, 98.0, 97.0)
HUGE, CLOSE = ((1.0, 2.0**90), (2.0**90, 2.0**89)), ((1.0078125, 1.015625), (1.0078125, 1.0))
HILBERT = ((420.0, 210.0, 140.0), (210.0, 140.0, 105.0), (140.0, 105.0, 84.0))
#: A plain function, a careful one, and an input on which the one is wrong and the other right.
BETTER = [
    ("cancelling polynomial", f.horner, f.compensated_horner, (1.0625, CUBE), {}),
    ("cancelling sum", f.recursive_sum, f.doubly_compensated_sum, ((255.0, 254.0, -253.0, -252.0),), {}),
    ("cancelling dot product", f.recursive_dot, f.dot2, ((1.0078125, 1.015625), (1.0078125, -1.0)), {}),
    (
        "determinant",
        lambda ar, a, b, c, d: ar.sub(ar.mul(a, b), ar.mul(c, d)),
        f.difference_of_products,
        (1.0078125, 1.0078125, 1.015625, 1.0),
        {},
    ),
    ("small root", f.quadratic_roots, f.stable_quadratic_roots, (1.0, 32.0, 1.0), {}),
    ("variance far from zero", f.variance_one_pass, f.variance_two_pass, (FAR,), {}),
    ("long average", f.ema, f.ema_in_components, ((1.0,) * 300,), {"beta": 0.999}),
    (
        "system of equations",
        f.iterative_refinement,
        lambda ar, a, b: f.iterative_refinement(ar, a, b, steps=4, residual="float32"),
        (HILBERT, (1.0, 2.0, 3.0)),
        {},
    ),
    ("overflow of softmax", f.naive_softmax, f.softmax, ((96.0, 95.0),), {}),
    ("overflow of log-sum-exp", f.naive_log_sum_exp, f.log_sum_exp, ((96.0, 95.0),), {}),
    ("overflow of a length", f.hypot, f.scaled_hypot, (2.0**100, 2.0**99), {}),
    ("overflow of a quotient", f.complex_quotient, f.smith_quotient, HUGE, {}),
    ("part of a product", f.complex_product, f.complex_product_fma, CLOSE, {}),
]


def off(function, given, options):
    """Return the largest relative error of results; of an expansion that of the sum."""
    found, exact = (flat(function(ar, *given, **options)) for ar in (BF16, EXACT))
    if function is f.ema_in_components:
        found, exact = [sum(found)], [sum(exact)]
    return max(float(abs(a / b - 1)) for a, b in zip(map(EXACT.context.mpf, found), exact, strict=True))


@pytest.mark.parametrize(
    ("plain", "careful", "given", "options"), [x[1:] for x in BETTER], ids=[x[0] for x in BETTER]
)
@pytest.mark.sampled(2, each=False)
def test_the_careful_function_is_right_where_the_plain_one_is_wrong(plain, careful, given, options):
    u = 2.0**-8
    assert off(careful, given, options) <= 4 * u
    assert not off(plain, given, options) <= 16 * u


def test_results_at_ends_and_zeros():
    inf = math.inf
    assert [f.sigmoid(BF16, x) for x in (-inf, -0.0, inf)] == [0.0, 0.5, 1.0]
    assert [f.softplus(BF16, x) for x in (-inf, inf)] == [0.0, inf]
    assert f.scaled_hypot(BF16, -0.0, 0.0) == 0.0
    large, small = 2.0**100, 2.0**-100
    for x in ((large, small), (small, large), (-large, small), (small, -large)):
        assert f.scaled_hypot(BF16, *x) == large
    assert f.smith_quotient(BF16, (1.0, 1.0), (small, large)) == (small, -small)
    assert f.smith_quotient(BF16, (1.0, 1.0), (large, -small)) == (small, small)
    for sign in (1.0, -1.0):
        assert f.givens(BF16, -sign * small, sign * large) == (0.0, 1.0)
        assert f.givens(BF16, sign * large, -sign * small) == (1.0, 0.0)
    assert f.givens(BF16, 0.0, -0.0) == (1.0, 0.0)
    assert f.softmax(BF16, (96.0, -8.0)) == (1.0, 0.0)
    half = mcf.arithmetic("float16")
    assert f.sigmoid(half, -12.0) == half.round(1 / (1 + math.exp(12)))
    assert math.isnan(f.naive_softmax(half, (11.5, 0.0))[0])
    assert f.naive_log_sum_exp(half, (-17.5, -17.5)) == -inf != f.naive_log_sum_exp(half, (-17.25, -17.25))


def test_an_average_stands_still_as_its_docstring_says():
    assert [f.ema(BF16, (1000.0, x)) for x in (1.8984375, -1.8984375)] == [1.0, 1.0]
    share = BF16.mul(1.0, 1 - 0.999)
    assert f.ema_in_components(BF16, (1.0,) * 9, k=1) == (f.recursive_sum(BF16, (share,) * 9),)


def test_no_variance_is_a_negative_zero():
    for kind, x in itertools.product(("one_pass", "two_pass", "welford"), ((-3.0,), (-3.0, -3.0), (0.0,))):
        assert str(float(getattr(f, f"variance_{kind}")(BF16, x, correction=0))) == "0.0"


def test_steps_towards_an_orthogonal_matrix_arrive():
    x = ((1.0, 0.25), (-0.5, 0.75))
    for _ in range(5):
        x = f.newton_schulz_step(EXACT, x)
    (a, b), (c, d) = x
    assert max(map(abs, (a * a + c * c - 1, b * b + d * d - 1, a * b + c * d))) < 2.0**-100


@refusals(
    refused(TypeError, "must be a tuple of values, not of type float", f.mean, (BF16, 1.0)),
    refused(ValueError, "x has 2 values, y has 1 values", f.recursive_dot, (BF16, (1.0, 2.0), (1.0,))),
    refused(ValueError, "a complex number is a pair", f.smith_quotient, (BF16, (1.0,), (2.0,))),
    refused(ValueError, "a variance with correction = 1 needs more", f.variance_welford, (BF16, (1.0,))),
    refused(
        ValueError, "a tuple of 2 rows of 2 values", f.conjugate_gradients, (BF16, ((1.0, 2.0),), (1.0, 2.0))
    ),
    refused(TypeError, "x must be a tuple of rows", f.newton_schulz_step, (BF16, 1.0)),
    refused(ValueError, "x has no rows", f.newton_schulz_step, (BF16, ())),
    refused(TypeError, "a must be a tuple of rows", f.conjugate_gradients, (BF16, 2.0, (1.0,))),
    refused(ValueError, "row 1 has 1 value", f.conjugate_gradients, (BF16, ((1.0, 2.0), (1.0,)), (1.0, 2.0))),
    refused(
        ValueError, "steps = -1 must not be negative", lambda ar: f.sqrt_newton(ar, 1.0, 1.0, steps=-1), BF16
    ),
)
def test_what_does_not_fit_is_refused(rows):
    check(rows)
