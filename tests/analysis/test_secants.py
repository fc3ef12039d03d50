"""Secant slopes against mpmath, and every wrong rule that differs from one in a factor, sign or operand."""

from itertools import product

import mpmath
import numpy as np
import pytest

from mcfsim.analysis import secants
from mcfsim.analysis.bounds import PASSED
from mcfsim.analysis.secants import SLOPES, flipped

MP = mpmath.MPContext()
MP.prec = 1000  # erf(16) is that close to 1
EXACTLY = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "fma": lambda a, b, c: a * b + c,
    "div": lambda a, b: a / b,
    "sqrt": MP.sqrt,
    "neg": lambda a: -a,
    "round": lambda a: a,
    "abs": abs,
    "sign": lambda a: MP.mpf((a > 0) - (a < 0)),
    "exp": MP.exp,
    "log": MP.log,
    "expm1": lambda a: MP.exp(a) - 1,
    "log1p": lambda a: MP.log(1 + a),
    "tanh": MP.tanh,
    "erf": MP.erf,
    "sin": MP.sin,
    "cos": MP.cos,
    "maximum": lambda a, b: max(a, b),
    "minimum": lambda a, b: min(a, b),
    "choose": lambda s, x, y: x if s >= 0 else y,
}
ARITY = {
    name: function.__code__.co_argcount for name, function in EXACTLY.items() if hasattr(function, "__code__")
}
POSITIVE = ("sqrt", "log", "log1p")
SIZE = 60


def arity(name):
    return 1 if name in ("sqrt", "exp", "log", "tanh", "erf", "sin", "cos", "abs") else ARITY[name]


def operands(name, seed=0):
    """Return operands and their errors: of all sizes, some zero, some so large that signs change."""
    rng = np.random.default_rng(seed)
    count = arity(name)
    h = [rng.choice([-1, 1], SIZE) * np.exp2(rng.uniform(-6, 4, SIZE)) for _ in range(count)]
    share = np.exp2(rng.uniform(-30, 1, (count, SIZE))) * rng.choice(
        [-1, 0, 1], (count, SIZE), p=[0.4, 0.2, 0.4]
    )
    errors = [x * s for x, s in zip(h, share, strict=True)]
    if name in POSITIVE:
        h, errors = (
            [np.abs(x) for x in h],
            [np.minimum(d, np.abs(x) / 2) for x, d in zip(h, errors, strict=True)],
        )
    if name == "div":
        errors[1] = np.clip(errors[1], -np.abs(h[1]) / 2, np.abs(h[1]) / 2)
    return h, errors


def results(name, h):
    """Return exact results, rounded to binary64."""
    return np.array(
        [float(EXACTLY[name](*map(MP.mpf, at))) for at in zip(*(x.tolist() for x in h), strict=True)]
    )


def off(name, rule, seed=0):
    """Return how far the passed-on errors are from mpmath's difference, relative to the largest term."""
    h, errors = operands(name, seed)
    with np.errstate(all="ignore"):
        found = [np.broadcast_to(k, SIZE) for k in rule(results(name, h), *h, *errors)]
    worst = 0.0
    for place in range(SIZE):
        computed = [MP.mpf(float(x[place])) for x in h]
        exact = [x - MP.mpf(float(d[place])) for x, d in zip(computed, errors, strict=True)]
        right = EXACTLY[name](*computed) - EXACTLY[name](*exact)
        if name == "choose":  # what the other branch does is an error of its own
            _, difference = flipped(*(float(x[place]) for x in h), float(errors[0][place]))
            right -= MP.mpf(float(difference))
            exact.append(MP.mpf(float(difference)))  # whose own rounding counts
        terms = [
            MP.mpf(float(k[place])) * MP.mpf(float(d[place])) for k, d in zip(found, errors, strict=True)
        ]
        scale = max(map(abs, (right, *terms, *exact[len(h) :])))
        if scale:
            worst = max(worst, float(abs(sum(terms) - right) / scale))
    return worst


@pytest.mark.parametrize("name", EXACTLY)
def test_errors_are_passed_on_without_a_remainder(name):
    for seed in range(3):
        # In the tails of erf the exponent of exp(-x * x) has a hundred units.
        assert off(name, secants.SLOPES[name], seed) < (1e-12 if name == "erf" else 1e-13)


@pytest.mark.parametrize("name", ["exp", "expm1", "tanh", "erf"])
def test_errors_that_dwarf_their_operands_are_passed_on(name):
    """Where one or both values are all but their limits, for computed and exact operands of both signs."""
    far = np.concatenate([x * np.array([3e-5, 0.5, 20.0, 448.0, 6e4, 1e21]) for x in (1, -1)])
    a, b = map(np.ravel, np.meshgrid(far, far))
    kept = (np.maximum(a, b) < 700) if name in ("exp", "expm1") else np.isfinite(a)
    a, b = a[kept], b[kept]
    with np.errstate(all="ignore"):
        (slope,) = SLOPES[name](np.exp(a), a, a - b)
        passed = slope * (a - b)
    for x, y, made in zip(a, b, passed, strict=True):
        right = EXACTLY[name](MP.mpf(x)) - EXACTLY[name](MP.mpf(x) - MP.mpf(x - y))
        assert abs(made - right) <= 1e-12 * abs(right) + 1e-300, (x, y)


def test_every_operation_has_a_rule():
    assert set(EXACTLY) == set(secants.SLOPES)


def mutants(name):
    """Return wrong rules: a factor, a sign, no midpoint, operands for one another, an error left out."""
    right, count = secants.SLOPES[name], arity(name)
    found = {}

    def of_operands(change):
        def rule(y, *given):
            h, d = list(given[:count]), list(given[count:])
            return right(y, *change(h, d))

        return rule

    found["derivatives at the computed operands"] = of_operands(lambda h, d: (*h, *(0 * x for x in d)))
    found["derivatives at the exact operands"] = of_operands(
        lambda h, d: (*(x - y for x, y in zip(h, d, strict=True)), *(0 * x for x in d))
    )
    found["errors of the other sign"] = of_operands(lambda h, d: (*h, *(-x for x in d)))
    found["errors twice as large"] = of_operands(lambda h, d: (*h, *(2 * x for x in d)))
    for place in range(count):
        for what, change in (
            ("half", lambda k: k / 2),
            ("negated", lambda k: -k),
            ("left out", lambda k: 0 * k),
            ("a millionth more", lambda k: k * (1 + 1e-6)),
        ):

            def rule(*given, place=place, change=change):
                slopes = list(right(*given))
                slopes[place] = change(np.asarray(slopes[place], float))
                return slopes

            found[f"slope {place} {what}"] = rule
        if count > 1:
            found[f"error {place} without effect"] = of_operands(
                lambda h, d, place=place: (*h, *(x if k != place else 0 * x for k, x in enumerate(d)))
            )
            found[f"slope {place} of the next operand"] = lambda *given, place=place: [
                right(*given)[(k + (k == place)) % count] for k in range(count)
            ]
    return found


@pytest.mark.parametrize("name", EXACTLY)
@pytest.mark.sampled(18, each=False)
@pytest.mark.slow
def test_a_wrong_rule_is_noticed(name):
    h, errors = operands(name)
    y = results(name, h)
    with np.errstate(all="ignore"):
        right = np.array([np.broadcast_to(k, SIZE) for k in secants.SLOPES[name](y, *h, *errors)])
        for what, rule in mutants(name).items():
            made = np.array([np.broadcast_to(k, SIZE) for k in rule(y, *h, *errors)])
            if np.allclose(made * np.array(errors), right * np.array(errors), rtol=1e-12, atol=0):
                continue  # the same rule, as all of them are for sums
            differs = max(off(name, rule, seed) for seed in range(3))
            assert differs > 1e-9 or np.allclose(
                (made * np.array(errors)).sum(0), (right * np.array(errors)).sum(0), rtol=1e-12, atol=0
            ), (what, differs)


@pytest.mark.slow
def test_slopes_without_errors_are_derivatives():
    for name in EXACTLY:
        if name in ("sign", "choose", "maximum", "minimum", "abs"):
            continue
        h, _ = operands(name)
        zeros = [np.zeros(8)] * len(h)
        found = SLOPES[name](results(name, h)[:8], *(x[:8] for x in h), *zeros)
        for place in range(8):
            at = [MP.mpf(float(x[place])) for x in h]
            for number, slope in enumerate(found):

                def along(t, number=number, at=at, name=name):
                    return EXACTLY[name](*(t if k == number else x for k, x in enumerate(at)))

                right = float(MP.diff(along, at[number]))
                assert float(np.broadcast_to(slope, 8)[place]) == pytest.approx(right, rel=1e-12)


# -- bounds ------------------------------------------------------------------------------------------------
#: Rules that are no larger than what some error of this size does.
SHARP = ("add", "sub", "mul", "fma", "div", "sqrt", "neg", "round", "exp", "expm1", "log", "log1p")


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", EXACTLY)
@pytest.mark.sampled(8, each=False)
def test_a_bound_passes_on_what_errors_of_a_size_can_do(name, seed):
    """Of errors of any size: some of those of roots and choices exceed the operand."""
    h, errors = operands(name, seed)
    if name in ("log", "log1p"):
        errors = [np.minimum(np.abs(d), 0.9 * x) for x, d in zip(h, errors, strict=True)]
    if name in ("sqrt", "choose"):
        errors[0] = 4 * errors[0]
    with np.errstate(all="ignore"):
        found = np.broadcast_to(PASSED[name](results(name, h), *h, *map(np.abs, errors)), SIZE)
    for place, bound in enumerate(found.tolist()):
        computed, sizes = ([MP.mpf(float(x[place])) for x in of] for of in (h, errors))
        right, largest = EXACTLY[name](*computed), 0
        for shares in product((-1, -0.5, 0, 0.5, 1), repeat=len(h)):
            exact = [x - k * d for x, k, d in zip(computed, shares, sizes, strict=True)]
            if name != "sqrt" or exact[0] >= 0:
                largest = max(largest, abs(EXACTLY[name](*exact) - right))
        assert largest <= bound * (1 + 1e-12), (name, place)
        if name in SHARP and (name != "sqrt" or abs(sizes[0]) <= computed[0]):
            assert bound <= largest * (1 + 1e-12), (name, place)
