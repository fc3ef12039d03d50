"""Moments kept as posits: no square of a gradient vanishes, and at the ends of the range none decays."""

from fractions import Fraction

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.codec import decode
from mcfsim.formats import Posit
from mcfsim.optim.adamw import second_moment
from mcfsim.oracle.posits import posit_value, round_posit
from mcfsim.training.schedule import Schedule

FORMATS = [Posit(8), Posit(8, 0), Posit(12), Posit(16), Posit(16, 1)]
BETAS = (0.9, 0.95, 0.99, 0.999)


def positive(fmt):
    """Return all positive posits."""
    return decode(np.arange(1, 2 ** (fmt.bits - 1), dtype=np.uint64), fmt)


def next_v(fmt, v, g, beta2):
    """Return the second moment after a gradient, by the text of AdamW's step."""
    ar = mcf.arithmetic(fmt)
    strategy = mcf.strategy("plain", fmt)
    scalars = mcf.AdamW(beta2=beta2).scalars(strategy.roles(), strategy, 1, 1e-3, decayed=False)
    (moved,) = second_moment(ar, (ar.round(v),), ar.round(g), scalars)
    return moved


def judged(fmt, v, g, beta2):
    """Return the same by the documented formula, RN(RN(beta2 v) + (1 - beta2) RN(g g))."""
    square, decayed = round_posit(g * g, fmt), round_posit(Fraction(beta2) * v, fmt)
    return float(round_posit(decayed + Fraction(1.0 - beta2) * square, fmt))


@pytest.mark.parametrize("beta2", BETAS)
@pytest.mark.parametrize("fmt", [Posit(8), Posit(8, 0), Posit(12)], ids=str)
def test_no_gradient_is_too_small_for_v(fmt, beta2, assert_same):
    g = positive(fmt)
    v = next_v(fmt, np.zeros_like(g), g, beta2)
    assert_same(v, [judged(fmt, Fraction(0), Fraction(x), beta2) for x in g.tolist()])
    assert (v >= float(fmt.smallest_normal)).all()


@pytest.mark.parametrize("low", ["float8_e4m3fn", "float8_e5m2", "float16"])
def test_floats_lose_what_posits_of_their_length_keep(low):
    fmt = mcf.get_format(low)
    g = np.array([float(fmt.smallest_normal)])
    assert next_v(low, np.zeros(1), g, 0.9)[0] == 0
    kept = Posit(fmt.bits)
    assert next_v(kept, np.zeros(1), mcf.round_to(g, kept), 0.9)[0] >= kept.smallest_normal


@pytest.mark.parametrize("beta2", BETAS)
@pytest.mark.parametrize("fmt", FORMATS, ids=str)
def test_v_decays_where_beta2_v_lies_below_the_boundary_under_v(fmt, beta2):
    values = positive(fmt)
    decays = next_v(fmt, values, np.zeros_like(values), beta2) < values
    for code in range(1, len(values) + 1, max(1, len(values) // 500)):
        v = posit_value(code, fmt)
        # The boundary is the posit of one bit more, below; a tie goes to the even code.
        boundary = posit_value(2 * code - 1, Posit(fmt.bits + 1, fmt.es))
        if code == 1:  # nothing but zero becomes zero
            expected = False
        else:
            expected = Fraction(beta2) * v < boundary or (Fraction(beta2) * v == boundary and code % 2 == 1)
        assert decays[code - 1] == expected, (code, v)
    assert not decays[[0, -1]].any()
    if beta2 == 0.9:
        assert decays[len(values) // 2]


@pytest.mark.slow
def test_small_squares_stay_when_gradients_end_and_larger_ones_fall_until_they_do():
    fmt, g = Posit(16), np.array([2.0**-16, 2.0**-8, 1.0])
    first = next_v(fmt, np.zeros(3), g, 0.95)
    v, steps = first, 0
    while (moved := next_v(fmt, v, np.zeros(3), 0.95)).tolist() != v.tolist():
        v, steps = moved, steps + 1
    assert 300 < steps < 500
    assert (v[0], v[1] < first[1], v[2] < 2.0**-20) == (first[0], True, True)
    assert (v > 2.0**-40).all()


@pytest.mark.parametrize("low", ["posit8", "posit16es1"])
@pytest.mark.slow
def test_strategies_train_with_posits(low):
    problem = mcf.get_problem("quadratic", dimension=6, condition_number=10.0)
    hyper = mcf.AdamW(beta2=0.9, epsilon=2.0**-6, weight_decay=0.0)
    names = ("plain", "stochastic", "fp32-master", "fp8-moments")
    run = mcf.simulate(problem, hyper, names, 15, Schedule(peak=2.0**-3, warmup=0), low=low)
    for name in names:
        assert "diverged_at" not in run.results[name]
        assert run.results[name]["validation_loss"] < run.series[name]["loss"][0], name
