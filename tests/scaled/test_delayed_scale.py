"""Delayed scaling against Transformer Engine's rolled history, by its definition."""

import math
from fractions import Fraction

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.formats import FORMATS
from tests.shared.rationals import single

MOST = float(np.finfo(np.float32).max)


def rolled(amaxes, length, top, most_recent):
    """Return the scale after each step, from a history whose first place is that of the current step."""
    history, scale = [0.0] * length, 1.0
    for last in amaxes:
        history[0] = last
        amax = 0.0
        if last != 0:
            amax = max((x for x in [*history[1:], last] if x == x), default=0.0)
            history = [0.0, *history[2:], last][:length] if length > 1 else [0.0]
        amax = last if most_recent else amax
        if math.isfinite(amax) and amax > 0:
            exact = Fraction(top) / Fraction(amax)
            scale = single(exact) if exact < 2**128 else MOST
            scale = min(scale, MOST)
        yield scale


@pytest.mark.parametrize("most_recent", [False, True])
@pytest.mark.parametrize("length", [1, 2, 5])
@pytest.mark.parametrize(
    ("element", "margin"), [("float8_e4m3fn", 0), ("float8_e5m2", 3), ("float8_e4m3fn", -2)]
)
def test_the_scale_follows_the_history(element, margin, length, most_recent):
    rng = np.random.default_rng(length)
    delayed = mcf.DelayedScale(element, length=length, margin=margin, most_recent=most_recent)
    amaxes = np.abs(rng.standard_normal(60) * 2.0 ** rng.integers(-140, 120, 60)).astype(np.float32)
    amaxes[:3] = 1.0, 3.0, 2.0
    amaxes[rng.integers(3, 60, 12)] = rng.choice(np.float32([0, np.inf, np.nan, 1e-45, 1e-38]), 12)
    top = Fraction(FORMATS[element].max) / Fraction(2) ** margin
    for amax, expected in zip(amaxes, rolled(amaxes.tolist(), length, top, most_recent), strict=True):
        delayed.update(amax)
        assert delayed.scale == expected
        assert delayed.scale.dtype == np.float32


def test_a_call_quantises_by_the_scale_before_it(assert_same):
    rng, delayed, seen = np.random.default_rng(0), mcf.DelayedScale(length=3), set()
    for step in range(6):
        x = (rng.standard_normal((7, 9)) * 2.0 ** rng.integers(-5, 9)).astype(np.float32)
        x[0, 0] = -0.0
        before = delayed.scale
        found = delayed(x, rounding="stochastic", random=mcf.RandomWords(1, step=step))
        assert found.scale == single(1 / Fraction(float(before)))
        clipped = np.clip(x * before, np.float32(-448), np.float32(448))
        expected = mcf.round_to(clipped, "float8_e4m3fn", "stochastic", random=mcf.RandomWords(1, step=step))
        assert_same(found.elements, expected, x)
        seen.add(float(before))
    assert len(seen) > 3
    kept = delayed.scale
    assert np.isnan(delayed(np.float32([1, np.inf])).dequantize()).all()
    assert delayed.scale == kept
    assert delayed(np.zeros((0, 3), np.float32)).shape == (0, 3)


@pytest.mark.parametrize(("element", "margin"), [("float8_e4m3fn", 8), ("float4_e2m1fn", 2)])
def test_the_largest_margins_leave_each_scale_an_inverse(element, margin):
    delayed = mcf.DelayedScale(element, margin=margin)
    delayed.update(MOST)
    assert delayed.scale > 0
    assert np.isfinite(delayed(np.float32([MOST, 0.0])).dequantize()).all()
    other = mcf.DelayedScale(element, margin=margin)
    other.load(delayed.state())
    assert other.scale == delayed.scale


@pytest.mark.parametrize("kind", [int, float, Fraction, np.float16, np.float64, np.int8])
def test_magnitudes_are_numbers_of_any_kind(kind):
    delayed = mcf.DelayedScale()
    delayed.update(kind(2))
    assert delayed.scale == 224


def test_a_run_goes_on_from_a_saved_state():
    rng = np.random.default_rng(1)
    one, other = mcf.DelayedScale(length=4, margin=1), mcf.DelayedScale(length=4, margin=1)
    for _ in range(7):
        one.update(abs(rng.standard_normal()))
    state = {name: array.copy() for name, array in one.state().items()}
    other.load(state)
    for _ in range(7):
        amax = abs(rng.standard_normal()) / 8
        one.update(amax)
        other.update(amax)
        assert one.scale == other.scale
    for changed, message in (
        ({"scale": np.float32(0)}, "no scale or history"),
        ({"scale": np.float64(1)}, "is not part of a state"),
        ({"scale": np.float32(2.0**-128)}, "no scale or history"),
        ({"history": np.ones(5, np.float32)}, "no scale or history"),
        (mcf.DelayedScale("float8_e5m2", length=4, margin=1).state(), "element .* 57344.0. and .* 448"),
        ({"more": np.array(1)}, "a state has"),
    ):
        with pytest.raises(ValueError, match=message):
            other.load(state | changed)
    assert one.scale == other.scale


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"length": 0}, ValueError, "length"),
        ({"margin": 0.5}, TypeError, "margin"),
        ({"margin": 300}, ValueError, "448, the largest .*, over 2..margin must be a binary32 number above"),
        ({"margin": 9}, ValueError, "above 1"),
        ({"margin": 3, "element": "float4_e2m1fn"}, ValueError, "above 1"),
        ({"margin": 10**400}, ValueError, "above 1"),
        ({"margin": -120}, ValueError, "a binary32 number"),
        ({"margin": -(10**400)}, ValueError, "a binary32 number"),
        ({"length": 10**30}, ValueError, "at most 2147483647"),
        ({"element": "float64"}, ValueError, "does not hold"),
    ],
)
def test_what_makes_no_sense_is_refused(options, error, message):
    with pytest.raises(error, match=message):
        mcf.DelayedScale(**options)
    for amax, wrong, about in (
        (-1.0, ValueError, "negative"),
        (None, TypeError, "must be a real number, not None"),
        (1e300, ValueError, "beyond the range of binary32"),
        (10**400, ValueError, "beyond the range"),
    ):
        with pytest.raises(wrong, match=about):
            mcf.DelayedScale().update(amax)
    with pytest.raises(TypeError, match="float64 is longer"):
        mcf.DelayedScale()(np.ones(3))
