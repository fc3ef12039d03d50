"""Forecasts, compared with arithmetic of other code, and with freezes that are known."""

import math
from dataclasses import replace
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.models.forecast import (
    Course,
    TensorRows,
    forecast,
    frozen_share,
    points_of,
    significands,
    stop_of,
)
from mcfsim.models.plan import Steady, noise_rms, normal_directions
from mcfsim.models.samples import places_of, read_sample
from mcfsim.models.weights import open_weights
from mcfsim.oracle import round_fraction
from mcfsim.rounding import Rounding
from mcfsim.scaled import get_scaled_format
from tests.models.files import raw_safetensors
from tests.models.pages import BFLOAT16
from tests.optim.reference import added, roles_of

FROZEN = {0.999: 1.0, 0.998: 0.9453125, 0.997: 0.296875, 0.996: 0.0, 0.95: 0.0, 0.5: 0.0}
PLAIN = mcf.strategy("plain", "bfloat16")
NO_DECAY = mcf.AdamW()


def course_of(weights, directions, strategy=PLAIN, rate=1e-3, hyper=NO_DECAY):
    """Return one step of the same directions at a constant rate; tensors decay if the optimizer decays."""
    decayed = np.full(len(weights), hyper is not NO_DECAY)
    trial = TensorRows(weights, Steady(directions, 0.9), decayed)
    return forecast(trial, hyper, strategy, np.array([1]), np.array([rate]))


@pytest.mark.parametrize("name", ["plain", "kahan", "collage-light", "collage-plus", "fp32-master", "fp32"])
def test_one_step_with_decay_is_that_of_fractions(name):
    """Every strategy's step, one number at a time, by the judge of optimizers."""
    strategy, rate, decay = mcf.strategy(name, "bfloat16"), 1e-3, 0.1
    weights, directions = np.random.default_rng(1).standard_normal((2, 1, 40)) * 0.02
    found = course_of(weights, directions, strategy, rate, mcf.AdamW(weight_decay=decay))
    roles = roles_of(strategy, 1, 0, Rounding())
    up, ar, master = roles.update, roles.parameter, name == "fp32-master"
    lost, changed, mixed, squares = 0, 0, Fraction(0), Fraction(0)
    for w, d in zip(weights[0].tolist(), directions[0].tolist(), strict=True):
        first = ar.round(w)
        rest = () if name in ("plain", "fp32", "fp32-master") else (ar.round(w - first),)
        parameter, extra = ((first,), rest) if name == "kahan" else ((first, *rest), (first,) * master)
        direction = up.add(up.round(d), up.mul(up.round(first), decay))
        parameter, extra = added(strategy, roles, parameter, extra, up.mul(direction, -rate))
        meant = sum(map(Fraction, (first, *rest)))
        after = sum(map(Fraction, extra if master else (*parameter, *extra)))
        asked = -(Fraction(d) + Fraction(decay) * meant)
        lost += after == meant
        changed += parameter[0] != (round_fraction(Fraction(first), BFLOAT16) if master else first)
        mixed += asked * (after - meant) / Fraction(rate)
        squares += asked**2
    assert found.lost[0, 0] == lost / 40
    assert found.changed[0, 0] == changed / 40
    assert found.edq[0, 0] == pytest.approx(float(mixed / squares), rel=1e-12)


def test_updates_and_decay_do_nothing_below_two_to_the_minus_nine():
    """Down from 1, where half an ulp of bfloat16 is 2^-9; and for all significands, by ml_dtypes."""
    ones = np.ones((1, 64))
    for rate, stops in ((2.0**-9, 1), (2.0**-9 * 1.02, None), (2.0**-12, 1)):
        course = course_of(ones, ones, rate=rate)
        assert course.lost[0, 0] == (stops is not None)
        assert course.stops(0.5) == [stops]
    values, rate = np.ldexp(1.0 + np.arange(128) / 128, -5)[None], 0.5**4
    for product, idle in ((2.0**-9 * 0.99, True), (2.0**-8 * 1.01, False)):
        course = course_of(values, np.zeros_like(values), PLAIN, rate, mcf.AdamW(weight_decay=product / rate))
        alone = (values * (1.0 - product)).astype(ml_dtypes.bfloat16).astype(float)
        assert (alone == values).all() == idle == (course.lost[0, 0] == 1.0)


@pytest.mark.parametrize(("beta2", "share"), FROZEN.items())
def test_second_moments_that_cannot_decay(beta2, share):
    """By fractions: the exact product of every significand, rounded to bfloat16."""
    significands = [Fraction(128 + i, 128) for i in range(128)]
    products = [round_fraction(x * Fraction(beta2), BFLOAT16) for x in significands]
    assert share == sum(map(float.__eq__, products, map(float, significands))) / 128
    freezing = {
        "plain",
        "collage-light",
        "stochastic-parameter",
    }  # an average that draws does as its draws do
    for name in (*freezing, "collage-plus", "fp32-master", "exact", "stochastic"):
        assert frozen_share(mcf.strategy(name), beta2) == (share if name in freezing else 0), name


@pytest.mark.parametrize("name", ["stochastic-parameter", "stochastic"])
@pytest.mark.slow
def test_rounding_at_random_lets_a_gain_learn_in_the_mean(name):
    """Where to nearest all is lost: one draw of 128 moves such a weight; down from 1 an ulp is 2^-8."""
    course = course_of(np.ones((1, 4096)), np.ones((1, 4096)), mcf.strategy(name, "bfloat16"), 2.0**-15)
    assert abs(course.lost[0, 0] - (1 - 2.0**-7)) < 0.002
    assert 0 < abs(course.edq[0, 0] - 1) < 0.2


def test_what_asks_for_nothing_is_no_number():
    trial = TensorRows(np.ones((2, 16)), Steady(np.repeat([[0.0], [1.0]], 16, 1), 0.9), np.zeros(2, bool))
    rates = mcf.Schedule(0.5, warmup=0, final=0.0).rates(8)
    course = forecast(trial, mcf.AdamW(), PLAIN, np.arange(1, 9), rates)
    assert np.isnan(course.edq[0]).all()
    assert np.isnan(course.edq[1, -1])  # the last rate is zero
    assert course.over_run(course.edq) == pytest.approx([math.nan, 1.0], abs=0.02, nan_ok=True)
    assert course.stops(0.5) == [None, None]
    assert course_of(np.ones((1, 16)), np.ones((1, 16)), rate=0.0).stops(0.5) == [None]
    course = forecast(trial, mcf.AdamW(), PLAIN, np.arange(1, 9), rates * 2.0**-6)
    assert 1 < course.stops(0.5)[1] < 8


def test_a_mean_over_the_run_is_weighted_by_the_way():
    """Against the sum over all steps, of a measure that is a line between the points."""
    steps, rates = np.array([1, 2, 5, 9, 10]), np.array([1.0, 2.0, 3.0, 1.0, 0.5])
    edq, none = np.array([[1.0, 0.5, 0.0, 0.25, np.nan]]), np.zeros((1, 5))
    course = Course(steps, rates, none, edq, none, none.astype(bool))
    lengths = np.array([1, 2, 3.5, 2.5])
    weight = lengths * rates[:4]
    assert course.over_run(edq)[0] == (weight @ edq[0, :4]) / weight.sum()
    assert course.per_step(edq)[0] == (lengths @ edq[0, :4]) / lengths.sum()


def test_where_a_series_stops():
    for edq, stop in (
        ([1, 1, 0.4, 0.2], 6),
        ([1, 1, 0.5, 0.4], 7),
        ([0.4, 0.3, 0.2, 0.1], 1),
        ([0.1, 0.1, 0.1, 0.6], None),
        ([0.1, 0.6, 0.1, 0.1], 3),
        ([math.nan, math.nan, 0.1, 0.1], 6),
        ([1, 1, 1, math.nan], None),
    ):
        assert stop_of([1, 2, 6, 7], edq, 0.5) == stop, edq


def test_the_steps_of_a_schedule_hold_its_ends_and_its_turn():
    points = points_of(mcf.Schedule(1e-3, warmup=37), 10_000).tolist()
    assert points == sorted(set(points))
    assert {1, 37, 38, 10_000} <= set(points)
    assert points_of(mcf.Schedule(1e-3, warmup=50), 3).tolist() == [1, 2, 3]
    assert points_of(mcf.Schedule(1e-3, warmup=0), 1).tolist() == [1]


@pytest.mark.slow
def test_directions_are_normal_and_of_the_size_of_noise():
    first, second = normal_directions(50, 1000)
    assert np.sort(first, axis=1).tolist() == np.sort(second, axis=1).tolist()
    assert abs(np.mean(first * second)) < 0.02
    assert not first.flags.writeable | second.flags.writeable  # they are kept for the next one
    m, late = np.zeros(200), []
    for g in np.random.default_rng(0).standard_normal((3000, 200)):
        m = 0.9 * m + 0.1 * g
        late.append(np.mean(m**2))
    assert np.sqrt(np.mean(late[500:])) == pytest.approx(noise_rms(0.9), rel=0.02)


# -- samples -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("size", [1, 2, 7, 100, 1024, 1 << 20, 12345678])
def test_a_sample_takes_one_of_each_part(size):
    places = places_of(size, 512)
    assert 0 <= places[0] <= places[-1] < size
    if size >= 512:
        assert (np.diff(places) > 0).all()
        assert np.abs(places * 512 // size - np.arange(512)).max() <= 1
        assert np.bincount(places % 64, minlength=64).max() < 40  # no column alone
    else:
        assert (np.diff(places) >= 0).all()
        assert set(range(size)) == set(places.tolist())


def test_samples_are_elements_and_the_rest_is_of_all(tmp_path, monkeypatch):
    monkeypatch.setattr("mcfsim.models.samples._BLOCK", 1000)
    x, told = np.random.default_rng(0).standard_normal((70, 90)).astype(np.float32), []
    x[x < -1] = 0
    raw_safetensors(tmp_path / "m.safetensors", {"x": x})
    sample, bad = read_sample(open_weights(tmp_path / "m.safetensors")["x"], 256, told.append)
    assert sample.values.tolist() == x.ravel()[places_of(x.size, 256)].tolist()
    assert sample.rms == pytest.approx(np.sqrt(np.mean(x.astype(float) ** 2)), rel=1e-14)
    assert sample.zeros == np.mean(x == 0)
    assert (bad, sum(told), sample.size) == ((0, 0), x.size, x.size)


#: A scale that cannot follow a decay: the next power of two.
COARSE = get_scaled_format("mxfp8_e4m3")
GROUPED = [mcf.strategy(name) for name in ("fp8-moments", "int8-moments", "coat-moments")]
GROUPED += [replace(GROUPED[0], name="coarse", v=replace(GROUPED[0].v, scaled=COARSE))]


@pytest.mark.parametrize("beta2", [0.999, 0.99, 0.9, 0.5])
@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("strategy", GROUPED, ids=lambda item: item.name)
@pytest.mark.sampled(3)
def test_numbers_that_share_a_scale_freeze_as_they_do_in_a_step(strategy, beside, beta2):
    """A real second moment, of gradients of all sizes, in a step without any, or with the largest kept."""
    size = strategy.v.scaled.block
    optimizer = mcf.Optimizer(mcf.AdamW(beta2=beta2), strategy, {"w": np.zeros(size)})
    roots = np.sqrt(np.geomspace(1 / 32, 1, size) / (1 - beta2))
    optimizer.step(optimizer.receive({"w": roots}), 1e-3)
    (v,) = optimizer.state.v
    before, gradient = v.copy(), np.zeros(size, np.float32)
    gradient[-1] = np.sqrt(before[-1]) if beside else 0
    optimizer.step(gradient, 1e-3)
    stays = (v == before)[: -1 if beside else None]
    assert abs(np.mean(stays) - frozen_share(strategy, beta2, beside=beside)) < 0.1
    if not beside and strategy.name != "coarse":
        assert not stays.any()  # the scale decays with them
    elif beta2 == 0.999 and strategy.name != "coat-moments":
        assert np.mean(stays) > 0.9


def test_without_a_first_moment_only_what_is_longer_than_one_keeps_its_sign():
    """Noise has the length 1 then: there is no room between it and what is coherent."""
    rng = np.random.default_rng(0)
    signs, rates = rng.choice([-1.0, 1.0], (3, 16)), np.array([0.5, 0.25])
    straight, square = Steady(signs * [[0.5], [1.0], [2.0]], 0.0).walk(1, rates)
    assert np.array_equal(straight, signs * [[0.0], [0.0], [0.75]])
    assert np.array_equal(square, [0.25 * 0.3125, 0.3125, 0.3125])
    # With one, both parts together are as long as the directions.
    straight, square = Steady(signs * [[0.1], [0.5], [1.0]], 0.9).walk(1, rates)
    kept = straight / (0.75 * signs)
    assert kept == pytest.approx(np.repeat(kept[:, :1], 16, axis=1))
    together = kept[:, 0] ** 2 + (1 - kept[:, 0] ** 2) * square / 0.3125 * noise_rms(0.9) ** 2
    assert together == pytest.approx([0.1**2, 0.5**2, 1.0])


@pytest.mark.parametrize("name", ["float8_e5m2", "bfloat16", "float16", "tf32", "float32"])
def test_significands_are_numbers_from_one_to_the_last_below_two(name):
    fmt = mcf.get_format(name)
    found, ulp = significands(fmt), 2.0 ** (1 - fmt.precision)
    assert found[0] == 1
    assert found[-1] == 2 - ulp
    assert found.size == 2 ** min(fmt.precision - 1, 14)
    assert (np.diff(found) >= ulp).all()
    assert (mcf.round_to(found, name) == found).all()
