"""Every function of `mcfsim.functions` with operands, and what it computes by definition, in mpmath."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import mpmath
import numpy as np

import mcfsim as mcf
from mcfsim import functions
from mcfsim.functions import FPBENCH
from tests.shared.formats import hard_numbers

M = mpmath.MPContext()
M.prec = 1600


@dataclass(frozen=True)
class Within:
    """Numbers of an interval."""

    low: float
    high: float


@dataclass(frozen=True)
class Case:
    """Operands (intervals, numbers, tuples of such) and the definition of the results."""

    definition: Callable[..., Any]
    operands: tuple[Any, ...]
    options: dict[str, Any] = field(default_factory=dict)


def vec(n, low=-4.0, high=4.0):
    return (Within(low, high),) * n


def mapped(function, x):
    return tuple(mapped(function, part) for part in x) if isinstance(x, tuple) else function(x)


def flat(x):
    return [leaf for part in x for leaf in flat(part)] if isinstance(x, tuple) else [x]


def drawn(operands, fmt, count, seed=0):
    """Return arrays of values of a format, in tuples as the operands are."""
    rng = np.random.default_rng(seed)

    def draw(x):
        numbers = rng.uniform(x.low, x.high, count) if isinstance(x, Within) else np.full(count, float(x))
        return mcf.arithmetic(fmt).round(numbers)

    return mapped(draw, operands)


@cache
def hard(fmt):
    """Return numbers of few bits about 1 and u, and zero; their negatives; hard ones; least and largest."""
    ar = mcf.arithmetic(fmt)
    u = 2.0**-ar.format.precision
    near = ar.round(np.array([0, 1, 1 + 2 * u, 1 - u, 2 - 2 * u, 1.5, 2, 3, u, 3 * u, u / 2, 0.125, 8]))
    every = np.unique(ar.round(hard_numbers(ar.format, np.float64)))
    every = every[np.isfinite(every)]
    least = np.sort(abs(every))[1:8:3]
    return near, -near, every, np.concatenate([every[:3], every[-3:], least, -least])


def hostile(operands, fmt, count, seed=0):
    """Return arrays as `drawn` does; in all but the first third, some numbers are hard for the format.

    Sums and products of some lie halfway between values, below the normal numbers, or beyond the largest.
    """
    rng, kinds = np.random.default_rng(seed), hard(fmt)

    def spoilt(x):
        x = np.where(np.isfinite(x), x, kinds[-1].max())
        for chance, kind in zip((0.25, 0.15, 0.1, 0.1), kinds, strict=True):
            taken = (rng.random(count) < chance) & (np.arange(count) >= count // 3)
            x = np.where(taken, rng.choice(kind, count), x)
        return x

    return mapped(spoilt, drawn(operands, fmt, count, seed))


def element(operands, i):
    return mapped(lambda x: float(x[i]), operands)


# -- definitions --------------------------------------------------------------------------------------------
TINY, EPSILON = M.mpf(2) ** -400, M.mpf(1e-5)


def dot(x, y):
    return M.fsum(a * b for a, b in zip(x, y, strict=True))


def gradient(function, x):
    """Return the derivatives of a function by each number of x, by central differences."""

    def moved(i, by):
        return function(tuple(value + by * (i == j) for j, value in enumerate(x)))

    return tuple((moved(i, TINY) - moved(i, -TINY)) / (2 * TINY) for i in range(len(x)))


def polynomial(c, x):
    """Return the value of a polynomial, whose highest coefficient comes first."""
    return M.fsum(a * x**n for n, a in enumerate(reversed(list(c))))


def convolution(a, b):
    """From values at points: Lagrange's interpolation, solved as a system of equations."""
    n = len(a) + len(b) - 1
    points = [M.mpf(i) for i in range(n)]
    values = M.matrix([polynomial(a, x) * polynomial(b, x) for x in points])
    return tuple(M.lu_solve(M.matrix([[x**k for k in reversed(range(n))] for x in points]), values))


def roots(a, b, c):
    found = [M.mpf(x).real for x in M.polyroots([a, b, c], maxsteps=500, extraprec=2000)]
    return (max(found), min(found)) if a > 0 else (min(found), max(found))


def lse(x):
    return M.log(M.fsum(map(M.exp, x)))


def soft(x):
    return tuple(M.exp(value - lse(x)) for value in x)


def entropy(x, t):
    return dot(t, [lse(x) - value for value in x])


def layer(x, gain, bias):
    mean = M.fsum(x) / len(x)
    deviation = M.sqrt(M.fsum((value - mean) ** 2 for value in x) / len(x) + EPSILON)
    return tuple(g * (value - mean) / deviation + b for value, g, b in zip(x, gain, bias, strict=True))


def rms(x, gain):
    size = M.sqrt(dot(x, x) / len(x) + EPSILON)
    return tuple(g * value / size for value, g in zip(x, gain, strict=True))


def averaged(x, beta=0.875):
    return M.fsum((1 - M.mpf(beta)) * M.mpf(beta) ** age * value for age, value in enumerate(reversed(x)))


def variance(x):
    pairs = [(a - b) ** 2 for a in x for b in x]  # the mean square difference, without a mean
    return M.fsum(pairs) / (2 * len(x) * (len(x) - 1))


def complex_pair(z):
    return z.real, z.imag


def orthogonalised(x):
    m = M.matrix([list(row) for row in x])
    gram = m.T * m
    found = m * (1.875 * M.eye(gram.rows) - 1.25 * gram + 0.375 * gram * gram)
    return tuple(tuple(found[i, j] for j in range(found.cols)) for i in range(found.rows))


def solution(a, b):
    return tuple(M.lu_solve(M.matrix([list(row) for row in a]), M.matrix(list(b))))


def heron(a, start, steps):
    """The error (x - s) / (x + s) is squared by each step."""
    s = M.sqrt(a)
    q = ((start - s) / (start + s)) ** (2**steps)
    return s * (1 + q) / (1 - q)


def halved(a, low, high, steps):
    cell = (high - low) / 2**steps
    return low + (M.floor((M.sqrt(a) - low) / cell) + M.mpf(0.5)) * cell


SUM, DOT = (M.fsum, (vec(7),)), (dot, (vec(7), vec(7)))
SORTED = tuple(Within(low, low + size) for low, size in ((8, 1), (-8, 1), (-4, 2), (2, 1), (0.5, 0.5)))
POLYNOMIAL = (lambda x, c: polynomial(c, x), (Within(-2, 2), vec(7)))
PLANE = (Within(-4, 4),) * 2
QUADRATIC = (roots, (Within(1e-4, 2e-4), Within(-16, 16), Within(-2, 2)))
TARGETS = (0.125, 0.5, 0.25, 0.125)
MATRIX, RIGHT = ((4.0, 1.0, 0.5), (1.0, 3.0, -0.25), (0.5, -0.25, 2.0)), vec(3)
CASES = {
    "horner": Case(*POLYNOMIAL),
    "compensated_horner": Case(*POLYNOMIAL),
    "estrin": Case(*POLYNOMIAL),
    "polynomial_from_roots": Case(lambda x, r: M.fprod(x - s for s in r), (Within(-2, 2), vec(5))),
    "polynomial_product": Case(convolution, (vec(4), vec(3))),
    "quadratic_roots": Case(*QUADRATIC),
    "stable_quadratic_roots": Case(*QUADRATIC, {"fused": True}),
    "recursive_sum": Case(*SUM),
    "pairwise_sum": Case(*SUM),
    "kahan_sum": Case(lambda x: (M.fsum(x), 0), (vec(7),)),
    "neumaier_sum": Case(*SUM),
    "sum_k": Case(*SUM, {"k": 3}),
    "dw_sum": Case(lambda x: (M.fsum(x), 0), (vec(7),)),
    "doubly_compensated_sum": Case(M.fsum, (SORTED,)),
    "recursive_dot": Case(*DOT),
    "pairwise_dot": Case(*DOT),
    "fma_dot": Case(*DOT),
    "dot2": Case(*DOT),
    "difference_of_products": Case(lambda a, b, c, d: a * b - c * d, vec(4)),
    "softmax": Case(soft, (vec(5),)),
    "naive_softmax": Case(soft, (vec(5),)),
    "log_sum_exp": Case(lse, (vec(5),)),
    "naive_log_sum_exp": Case(lse, (vec(5),)),
    "log_softmax": Case(lambda x: tuple(map(M.log, soft(x))), (vec(5),)),
    "cross_entropy": Case(entropy, (vec(4), TARGETS)),
    "cross_entropy_gradient": Case(
        lambda x, t: gradient(lambda y: entropy(y, t), x), (vec(4, -3, 3), TARGETS)
    ),
    "softmax_gradient": Case(
        lambda p, g: tuple(a * (b - dot(p, g)) for a, b in zip(p, g, strict=True)), (vec(5, 0, 0.5), vec(5))
    ),
    "sigmoid": Case(lambda x: (1 + M.tanh(x / 2)) / 2, (Within(-6, 6),)),
    "softplus": Case(lambda x: M.log(1 + M.exp(x)), (Within(-6, 6),)),
    "gelu": Case(lambda x: x * M.erfc(-x * M.mpf(0.5**0.5)) / 2, (Within(-3, 3),)),
    "silu": Case(lambda x: x * (1 + M.tanh(x / 2)) / 2, (Within(-6, 6),)),
    "silu_gradient": Case(
        lambda x, up: gradient(lambda y: up * y[0] * (1 + M.tanh(y[0] / 2)) / 2, (x,))[0],
        (Within(-6, 6), Within(-4, 4)),
    ),
    "squared_relu": Case(lambda x: x**2 if x > 0 else M.mpf(0), (Within(-4, 4),)),
    "squared_relu_gradient": Case(lambda x, up: up * (x + abs(x)), PLANE),
    "layer_norm": Case(layer, (vec(5), vec(5), vec(5))),
    "layer_norm_gradient": Case(
        lambda x, g, up: gradient(lambda y: dot(up, layer(y, g, (0,) * 5)), x), (vec(5), vec(5), vec(5))
    ),
    "rms_norm": Case(rms, (vec(5), vec(5))),
    "rms_norm_gradient": Case(
        lambda x, g, up: gradient(lambda y: dot(up, rms(y, g)), x), (vec(5), vec(5), vec(5))
    ),
    "mean": Case(lambda x: M.fsum(x) / 7, (vec(7),)),
    **{f"variance_{kind}": Case(variance, (vec(6, 1),)) for kind in ("one_pass", "two_pass", "welford")},
    "ema": Case(averaged, (vec(6),), {"beta": 0.875}),
    "debiased_ema": Case(lambda x: averaged(x) / (1 - M.mpf(0.875) ** 6), (vec(6),), {"beta": 0.875}),
    "ema_in_components": Case(lambda x: (averaged(x), 0), (vec(6),), {"beta": 0.875, "k": 2}),
    "complex_product": Case(lambda x, y: complex_pair(M.mpc(*x) * M.mpc(*y)), (PLANE, PLANE)),
    "complex_product_fma": Case(lambda x, y: complex_pair(M.mpc(*x) * M.mpc(*y)), (PLANE, PLANE)),
    "complex_quotient": Case(lambda x, y: complex_pair(M.mpc(*x) / M.mpc(*y)), (PLANE, PLANE)),
    "smith_quotient": Case(lambda x, y: complex_pair(M.mpc(*x) / M.mpc(*y)), (PLANE, PLANE)),
    "hypot": Case(M.hypot, PLANE),
    "scaled_hypot": Case(M.hypot, PLANE),
    "rotation": Case(lambda c, s, x, y: complex_pair(M.mpc(c, -s) * M.mpc(x, y)), vec(4)),
    "givens": Case(
        lambda a, b: tuple(M.sign(a if abs(a) >= abs(b) else b) * x / M.hypot(a, b) for x in (a, b)), PLANE
    ),
    "newton_schulz_step": Case(orthogonalised, ((vec(3, -1, 1),) * 2,)),
    "reciprocal_newton": Case(
        lambda a, x: (1 - (1 - a * x) ** 8) / a, (Within(1.25, 1.75), 0.625), {"steps": 3}
    ),
    "sqrt_newton": Case(lambda a, x: heron(a, x, 3), (Within(1, 4), 1.5), {"steps": 3}),
    "bisection": Case(lambda a, x, y: halved(a, x, y, 6), (Within(1, 4), 1.0, 2.0), {"steps": 6}),
    "iterative_refinement": Case(solution, (MATRIX, RIGHT), {"steps": 2, "residual": "float32"}),
    "conjugate_gradients": Case(solution, (MATRIX, RIGHT)),
}


# -- FPBench's functions, by another formula ----------------------------------------------------------------
def jet_engine(x, y):
    t, s, d = (3 * x**2 + 2 * y - x), (3 * x**2 - 2 * y - x), x**2 + 1
    inner = 2 * x * (t / d) * (t / d - 3) + x**2 * (4 * t / d - 6)
    return 2 * x + inner * d + 3 * x**2 * t / d + x**3 + 3 * s / d


def simplex(a, b, c, d, e, f):
    """Half the determinant of Cayley and Menger, of squared edges."""
    pairs = {(0, 1): a, (0, 2): b, (0, 3): c, (2, 3): d, (1, 3): e, (1, 2): f}
    rows = [[1, *(pairs.get((min(i, j), max(i, j)), 0) for j in range(4))] for i in range(4)]
    return M.det(M.matrix([[0, 1, 1, 1, 1], *rows])) / 2


def by_fourth(*x):
    return gradient(lambda y: simplex(*y), x)[3]


FORMULAS = {
    "doppler": lambda u, v, t: -(331.4 + 0.6 * t) * v / (331.4 + 0.6 * t + u) ** 2,
    "rigid_body_1": lambda x, y, z: -y * (x + 2 * z) - x - z,
    "rigid_body_2": lambda x, y, z: x * y * z * (2 - y) + 6 * z**2 - y,
    "jet_engine": jet_engine,
    "turbine_1": lambda v, w, r: 2 / r**2 - 1.5 - (3 - 2 * v) * (w * r) ** 2 / (8 * (1 - v)),
    "turbine_2": lambda v, w, r: 6 * v - 2.5 - v * (w * r) ** 2 / (2 * (1 - v)),
    "turbine_3": lambda v, w, r: 2.5 - 2 / r**2 - (1 + 2 * v) * (w * r) ** 2 / (8 * (1 - v)),
    "verhulst": lambda x: 4 / (1 / x + 1 / M.mpf(1.11)),
    "predator_prey": lambda x: 4 / (1 / x**2 + 1 / M.mpf(1.11) ** 2),
    "carbon_gas": lambda v: (
        (3.5e7 + 0.401 * (1000 / v) ** 2) * (v - 1000 * M.mpf(42.7e-6)) - 300000 * M.mpf(1.3806503e-23)
    ),
    "sine": lambda x: M.fsum((-1) ** k * x ** (2 * k + 1) / M.factorial(2 * k + 1) for k in range(4)),
    "sine_order_3": lambda x: x * (0.954929658551372 - 0.12900613773279798 * x**2),
    "sqroot": lambda x: M.fsum(M.binomial(0.5, k) * x**k for k in range(5)),
    "bspline3": lambda u: -(u**3) / 6,
    "kepler_0": lambda *x: by_fourth(*x) + x[0] * x[3],
    "kepler_1": lambda a, b, c, d: a * d * (b + c - a - d) - (b - c) ** 2 - d * (b - 1) * (c - 1),
    "kepler_2": simplex,
    "delta": simplex,
    "delta_4": by_fourth,
    "share_of_next": lambda t: 1 - 1 / (t + 1),
    "share_of_sum": lambda x, y: 1 - y / (x + y),
    "nonlin2": lambda x, y: 1 / (x * y + 1),
    "nonlin1_r4": lambda x: 1 / (x + 1),
    "nonlin1_test2": lambda x: (x - 1) / (x**2 - 1),
    "himmilbeau": lambda x, y: (x**2 + y - 11) ** 2 + (x + y**2 - 7) ** 2,
    "hypot": M.hypot,
    "exp1x": lambda x: M.expm1(x) / x,
    "exp1x_log": lambda x: M.expm1(x) / x,
    "logexp": lambda x: M.log1p(M.exp(x)),
    "sum_of_differences": lambda x, y, z: x + y + z,
    "i4": lambda x, y: M.hypot(M.sqrt(x), y),
    "i6": lambda x, y: M.sin(x * y),
    "sphere": lambda x, r, lat, lon: x + r * (M.sin(lat + lon) + M.sin(lat - lon)) / 2,
}


def of_benchmark(benchmark):
    box = tuple(Within(*ends) for ends in benchmark.inputs.values())
    return Case(FORMULAS[benchmark.function.__name__], box)


TRIED = CASES | {f"FPBench {name}": of_benchmark(item) for name, item in FPBENCH.items()}
RUN = {name: getattr(functions, name) for name in CASES} | {
    f"FPBench {name}": benchmark.function for name, benchmark in FPBENCH.items()
}
