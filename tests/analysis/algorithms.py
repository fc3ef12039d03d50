"""Functions to analyse: one of each kind of operation, as a user writes them; and random ones."""

import importlib.util
from fractions import Fraction

import numpy as np

import mcfsim as mcf


def horner(ar, x, c):
    r = c[0]
    for k in c[1:]:
        r = ar.add(ar.mul(r, x), k)
    return r


def compensated_horner(ar, x, c):
    r, e = c[0], ar.round(0.0)
    for k in c[1:]:
        p, pi = mcf.two_prod_fma(ar, r, x)
        r, sigma = mcf.two_sum(ar, p, k)
        e = ar.add(ar.mul(e, x), ar.add(pi, sigma))
    return ar.add(r, e)


def total(ar, x):
    s = x[0]
    for t in x[1:]:
        s = ar.add(s, t)
    return s


def softmax(ar, x):
    m = x[0]
    for t in x[1:]:
        m = ar.maximum(m, t)
    e = tuple(ar.exp(ar.sub(t, m)) for t in x)
    return ar.div(e[0], total(ar, e))


def average(ar, g, beta=0.99):
    m = g[0]
    for t in g[1:]:
        m = ar.add(ar.mul(m, beta), ar.mul(t, float(1 - Fraction(beta))))
    return m


def variance(ar, x):
    q = total(ar, tuple(ar.mul(t, t) for t in x))
    s = total(ar, x)
    return ar.mul(ar.sub(q, ar.mul(ar.mul(s, s), 1 / len(x))), 1 / len(x))


def root(ar, a, b, c):
    w = ar.sqrt(ar.sub(ar.mul(b, b), ar.mul(ar.mul(4.0, a), c)))
    q = ar.add(ar.abs(b), w)
    return ar.choose(b, ar.div(ar.mul(-2.0, c), q), ar.div(q, ar.mul(2.0, a)))


def bisection(ar, a):
    lo, hi = ar.round(1.0), ar.round(2.0)
    for _ in range(6):
        m = ar.mul(ar.add(lo, hi), 0.5)
        s = ar.sub(ar.mul(m, m), a)
        lo, hi = ar.choose(s, lo, m), ar.choose(s, m, hi)
    return ar.mul(ar.add(lo, hi), 0.5)


def waves(ar, x, y):
    s = ar.add(ar.sin(x), ar.cos(ar.mul(x, y)))
    t = ar.minimum(ar.tanh(s), ar.erf(y))
    return ar.fma(ar.sign(t), ar.log1p(ar.abs(t)), ar.expm1(ar.neg(x)))


#: Each with inputs.
ALGORITHMS = {
    horner: {
        "x": "uniform(0.6, 1.4)",
        "c": tuple(np.full(200, c) for c in (1.0, -5.0, 10.0, -10.0, 5.0, -1.0)),
    },
    compensated_horner: {
        "x": "uniform(0.6, 1.4)",
        "c": tuple(np.full(200, c) for c in (1.0, -5.0, 10.0, -10.0, 5.0, -1.0)),
    },
    total: {"x": "uniform(-1, 1)*12"},
    softmax: {"x": "uniform(-4, 4)*6"},
    average: {"g": "uniform(0.5, 1.5)*12"},
    variance: {"x": "uniform(0.5, 1.5)*5"},
    root: {"a": "uniform(0.5, 2)", "b": "uniform(4, 16)", "c": "uniform(0.05, 1)"},
    bisection: {"a": "uniform(1, 4)"},
    waves: {"x": "uniform(-2, 2)", "y": "uniform(-1, 1)"},
}

# -- random functions ----------------------------------------------------------------------------------------
_BINARY, _UNARY = ("add", "sub", "mul", "div", "maximum", "minimum"), ("sqrt", "exp", "tanh", "sin", "abs")


def random_function(folder, seed, operations=8):
    """Write a random function of x and y to a file, an operation in each line, and import it.

    The last line returns a value on which every line before it has an effect, as far as that is likely.
    """
    rng = np.random.default_rng(seed)
    names, lines = ["x", "y"], ["def text(ar, x, y):"]
    for place in range(operations):
        last = names[-1]
        other = names[rng.integers(len(names))]
        kind = rng.random()
        if kind < 0.6:
            operation = str(rng.choice(_BINARY[:3]))
            call = f"ar.{operation}({last}, {other})" if last != other else f"ar.mul({last}, {other})"
        elif kind < 0.75:
            call = f"ar.div({last}, ar.add(2.0, ar.abs({other})))"
        elif kind < 0.9:
            call = f"ar.{rng.choice(_UNARY[2:4])}({last})"
        else:
            call = f"ar.fma({last}, 0.75, {other})"
        names.append(f"t{place}")
        lines.append(f"    t{place} = {call}")
    path = folder / f"text{seed}.py"
    path.write_text("\n".join([*lines, f"    return {names[-1]}", ""]))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.text
