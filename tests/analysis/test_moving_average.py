"""Averages in low formats: the rule, in fractions, beside the oracle on numbers around every threshold."""

from fractions import Fraction
from itertools import pairwise, product

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.analysis.moving_average import AverageForm, MovingAverage
from mcfsim.analysis.preimage import RealInterval, point, preimage
from mcfsim.formats import Grid
from mcfsim.kernels.carriers import UnsupportedFormatError
from mcfsim.models.forecast import frozen_share, significands
from mcfsim.oracle import OracleArithmetic, round_fraction
from mcfsim.rounding import DETERMINISTIC

SINGLE = OracleArithmetic(mcf.get_format("float32"))
TINY = Fraction(1, 2**200)
SATURATING = mcf.Rounding("nearest_even", "saturate")
DECAYS = (0.9, 0.99, 0.999, 0.9999)


def judged(form, ar, s, g, decay):
    """Return the new average by the oracle, operation by operation."""
    gain, far = 1.0 - decay, SINGLE
    if form == "lerp":
        return ar.round(Fraction(s) + Fraction(gain) * (Fraction(g) - Fraction(s)))
    if form == "terms":
        return ar.add(ar.mul(s, decay), ar.mul(g, gain))
    if form == "adamw":
        return ar.fma(g, gain, ar.mul(s, decay))
    if form == "torch_lerp":
        return ar.round(far.fma(far.sub(g, s), far.round(gain), s))
    shrunk = ar.round(far.mul(s, far.round(decay)))
    if form == "torch_avg_fn":
        return ar.round(far.add(shrunk, ar.round(far.mul(g, far.round(gain)))))
    return ar.round(far.fma(far.mul(g, far.round(gain)), g, shrunk))


def values(fmt):
    """Return the finite values of a format, in order, each once."""
    found = np.unique(mcf.codec.all_values(fmt).astype(np.float64))
    return found[np.isfinite(found)].tolist()


# -- numbers that round to a value ---------------------------------------------------------------------------
SMALL = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3b11fnuz", "binary8p4uf", "float4_e2m1fn")
SMALL += ("float6_e3m2fn", "float6_e2m3fn", "float8_e8m0fnu", "posit6", "posit5es1", "int4", "ternary")


def tiny(precision, emax, specials="none", emin=-1, **options):
    return mcf.Format(precision=precision, emin=emin, emax=emax, specials=specials, **options)


#: Of each kind of special numbers, with and without a sign; of one significand bit, by both rules for ties.
TINIES = [
    *(tiny(3, 0, x, emin=0) for x in ("ieee", "fn", "fnuz", "nuz", "none")),
    *(tiny(2, 1, x, signed=False) for x in ("ieee", "fn", "nuz", "none")),
    *(tiny(1, 2, x, parity=y) for x in ("fn", "nuz", "none") for y in ("significand", "code")),
    *(tiny(1, 2, x, parity="code", signed=False) for x in ("fn", "nuz", "none")),
    *(tiny(x, 2, "fn", signed=False, zero=False) for x in (1, 2)),
    tiny(2, 0, "ieee", emin=0),
    mcf.get_format("posit4"),
    mcf.get_format("int3"),
    Grid(low=0, high=5, fraction_bits=1),
]


@pytest.mark.parametrize("mode", DETERMINISTIC)
@pytest.mark.parametrize("name", [*SMALL, *TINIES], ids=str)
@pytest.mark.sampled(12, each=False)
@pytest.mark.slow
def test_numbers_round_to_a_value_if_they_are_in_its_interval(name, mode):
    fmt = mcf.get_format(name)
    for overflow in ("ieee", "saturate") if fmt.zero else ("ieee",):
        rounding = mcf.Rounding(mode, overflow)
        for value in map(Fraction, values(fmt)[:: 3 if fmt.bits > 6 else 1]):
            found = preimage(point(value), fmt, rounding)
            ends = [x for x in found[:2] if isinstance(x, Fraction)]
            for x in [value, *(end + by for end in ends for by in (-TINY, Fraction(0), TINY))]:
                assert found.holds(x) == (round_fraction(x, fmt, rounding) == value), (value, x)
            for end, far in ((found.low, -(2**140)), (found.high, 2**140)):
                if not isinstance(end, Fraction):
                    assert round_fraction(Fraction(far), fmt, rounding) == value


def test_numbers_that_round_into_an_interval():
    fmt = mcf.get_format("float8_e4m3fn")
    for (low, high), ends in ((pair, ends) for pair in pairwise(values(fmt)[7:-7:7]) for ends in range(4)):
        wanted = RealInterval(Fraction(low), Fraction(high), bool(ends & 1), bool(ends & 2))
        found = preimage(wanted, fmt, mcf.Rounding())
        for end in (found.low, found.high):
            for x in (end - TINY, end, end + TINY):
                assert found.holds(x) == wanted.holds(Fraction(round_fraction(x, fmt)))
    between = RealInterval(Fraction(1), Fraction(9, 8), False, False)
    assert preimage(between, fmt, mcf.Rounding()).empty


# -- the rule -----------------------------------------------------------------------------------------------
def around(still, fmt, s):
    """Return targets just inside and just outside: real ones, and values of the format."""
    ends = [x for x in still[:2] if isinstance(x, Fraction) and not still.empty] or [Fraction(s)]
    real = [x + by for x in ends for by in (-TINY, Fraction(0), TINY)]
    nearest = [mcf.round_to(x, fmt, overflow="saturate") for x in ends]
    beside = [f(x, fmt).item() for x in nearest for f in (mcf.codec.next_down, mcf.codec.next_up)]
    return real, [x for x in {*nearest, *beside, float(s)} if np.isfinite(x)]


def check(average, stored):
    ar = OracleArithmetic(average.format, average.rounding)
    squares = average.form == "torch_addcmul"
    for s in stored:
        still = average.still(s)
        real, exact = around(still, average.format, s)
        for g in exact if squares else [*exact, *real]:
            moved = judged(average.form, ar, s, g, average.decay)
            assert still.holds(abs(Fraction(g)) if squares else Fraction(g)) == (moved == s), (s, g)


@pytest.mark.parametrize("form", AverageForm)
@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.sampled(24, each=False)
@pytest.mark.slow
def test_every_significand_of_bf16_is_still_between_its_thresholds(form, decay):
    step = 4 if form == "torch_addcmul" else 1
    check(MovingAverage("bfloat16", decay, form), significands(mcf.get_format("bfloat16"))[::step])


@pytest.mark.parametrize("form", [x for x in AverageForm if x != "torch_addcmul"])
@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("decay", [0.9, 0.999])
@pytest.mark.parametrize("part", range(4))
@pytest.mark.sampled(40, each=False)
@pytest.mark.slow
def test_every_number_of_fp8_is_still_between_its_thresholds(form, name, decay, part):
    check(MovingAverage(name, decay, form), values(name)[part::4])


def check_all(fmt, mode, form, decay):
    """Try all pairs of numbers."""
    for overflow in ("ieee", "saturate") if fmt.zero else ("ieee",):
        average = MovingAverage(fmt, decay, form, mcf.Rounding(mode, overflow))
        ar, numbers = OracleArithmetic(fmt, average.rounding), values(fmt)
        for s in numbers:
            still = average.still(s)
            for g in numbers:
                entering = abs(Fraction(g)) if form == "torch_addcmul" else Fraction(g)
                assert still.holds(entering) == (judged(form, ar, s, g, decay) == s), (s, g)


@pytest.mark.parametrize("form", AverageForm)
@pytest.mark.parametrize("decay", [0.75, 0.9375])
@pytest.mark.sampled(3, each=False)
def test_every_pair_of_small_numbers(form, decay):
    """With decays of few bits, so that ends of intervals may be values themselves."""
    check_all(mcf.get_format("float4_e2m1fn"), "nearest_even", form, decay)


@pytest.mark.parametrize("mode", DETERMINISTIC)
@pytest.mark.parametrize("form", AverageForm)
@pytest.mark.parametrize("fmt", TINIES, ids=str)
@pytest.mark.sampled(159, each=False)
def test_every_pair_of_numbers_of_every_kind_of_format(fmt, form, mode):
    check_all(fmt, mode, form, 0.75)


FORMS, FEW_BITS = list(AverageForm), ("float4_e2m1fn", "float6_e3m2fn", "float6_e2m3fn", "posit6")


@pytest.mark.parametrize(("place", "mode"), list(enumerate(DETERMINISTIC)))
@pytest.mark.parametrize(("turn", "name"), list(enumerate(FEW_BITS)))
@pytest.mark.exhaustive
def test_every_pair_of_numbers_of_few_bits(turn, name, place, mode):
    """And real targets around every threshold; forms take turns: each meets each mode and each format."""
    form = FORMS[(turn + place) % len(FORMS)]
    for decay in (0.75, 0.9):
        check_all(mcf.get_format(name), mode, form, decay)
        check(MovingAverage(name, decay, form, mode), values(name))


def check_ways(average, ways):
    """Look at all numbers on the way from a start to a target, and where the first one stays."""
    numbers = values(average.format)
    still = {s: average.still(s) for s in numbers}
    for start, target in ways:
        way = [s for s in numbers if min(start, target) <= s <= max(start, target) and s != target]
        way = way if start < target else way[::-1]
        expected = next((s for s in way if still[s].holds(Fraction(target))), None)
        assert average.stalls_at(start, target) == expected, (start, target)


@pytest.mark.parametrize("fmt", [x for x in TINIES if x.zero], ids=str)
@pytest.mark.sampled(3, each=False)
@pytest.mark.slow
def test_no_number_of_any_kind_of_format_is_left_out_on_the_way(fmt):
    check_ways(MovingAverage(fmt, 0.875), product(values(fmt)[::2], values(fmt)))


@pytest.mark.parametrize("ends", range(4))
def test_gradients_whose_squares_are_at_an_end(ends):
    """A quarter of the square of 1.5 is 9/16, and of that of 3 four times as much."""
    average = MovingAverage("float8_e4m3fn", 0.75, "torch_addcmul")
    wanted = RealInterval(Fraction(9, 16), Fraction(9, 4), bool(ends & 1), bool(ends & 2))
    found = average.backward.gradients(wanted, average.backward.gain)
    assert found[:2] == (1.5 if ends & 1 else 1.625, 3.0 if ends & 2 else 2.75)


@pytest.mark.parametrize("mode", DETERMINISTIC)
@pytest.mark.parametrize("form", AverageForm)
@pytest.mark.sampled(7, each=False)
def test_every_mode_has_its_thresholds(form, mode):
    stored = [0.0, *2.0 ** np.arange(-9.0, 8.0, 3), 1.125, 1.25, 448.0]
    for overflow in ("ieee", "saturate"):
        check(MovingAverage("float8_e4m3fn", 0.97, form, mcf.Rounding(mode, overflow)), stored)


@pytest.mark.parametrize("form", AverageForm)
@pytest.mark.parametrize("name", ["float16", "float32", "float8_e5m2"])
def test_other_formats_and_subnormal_numbers(form, name):
    fmt = mcf.get_format(name)
    least, last = float(fmt.smallest_normal), 2 - 2 * float(fmt.unit_roundoff)
    stored = [least / 2, least, least * last, 1.0, last]
    check(MovingAverage(name, 0.999, form), [float(mcf.round_to(x, fmt)) for x in stored])


@pytest.mark.parametrize("form", AverageForm)
@pytest.mark.parametrize("name", ["bfloat16", "float16", "float8_e5m2", "float32"])
@pytest.mark.sampled(3, each=False)
def test_steps_of_arrays_are_those_of_the_judge(form, name, assert_same):
    fmt, random = mcf.get_format(name), np.random.default_rng(3)
    s, g = (mcf.round_to(random.standard_normal(150) * 2.0 ** random.integers(-9, 9, 150), fmt) for _ in "ab")
    s[:3] = [0.0, -0.0, np.inf]  # of which the last less itself is NaN
    for decay in (0.9, 0.999):
        average = MovingAverage(name, decay, form)
        ar = OracleArithmetic(fmt)
        expected = [judged(form, ar, float(x), float(y), decay) for x, y in zip(s[3:], g[3:], strict=True)]
        found = average.step(s, g)
        assert found.dtype == mcf.arithmetic(name).carrier
        assert_same(found[3:], expected)
        assert np.isnan(found[2]) if "lerp" in form else found[2] == np.inf


@pytest.mark.slow
def test_an_average_cannot_decay_where_zero_leaves_all_significands_still():
    """By the audit, which multiplies arrays: what the rule says of the target zero."""
    for name in ("bfloat16", "float8_e4m3fn"):
        strategy = mcf.strategy("plain", name)
        for decay in (0.9, 0.99, 0.996, 0.999):
            average = MovingAverage(name, decay, "adamw")
            numbers = significands(average.format)
            still = [average.still(x).holds(Fraction(0)) for x in numbers]
            assert frozen_share(strategy, decay) == np.mean(still)


# -- where and when it stalls -------------------------------------------------------------------------------
def trial(average, start, target):
    """Return where the emulator's average stalls for good."""
    s, g = np.float32(start), np.float32(target)
    while True:
        moved = average.step(np.array([s]), np.array([g]))[0]
        if moved == s:
            return Fraction(float(s))
        s = moved


@pytest.mark.parametrize("form", [x for x in AverageForm if x != "torch_addcmul"])
@pytest.mark.sampled(5, each=False)
@pytest.mark.slow
def test_no_number_on_the_way_is_left_out(form):
    ways = ((0.0, 1.0), (-448.0, 0.5), (1.75, -3.0), (0.25, 448.0), (1.0, 1.0), (3.0, 0.0))
    for decay in (0.75, 0.95):
        check_ways(MovingAverage("float8_e4m3fn", decay, form), ways)


@pytest.mark.parametrize("name", [pytest.param("bfloat16", marks=pytest.mark.exhaustive), "float8_e4m3fn"])
@pytest.mark.slow
def test_a_lerp_stalls_where_the_rule_says(name):
    for decay in (0.9, 0.99, 0.999):
        average = MovingAverage(name, decay)
        for start, target in ((0.0, 1.0), (1.0, 1.5), (4.0, 1.25), (-1.0, 0.25)):
            expected = average.stalls_at(start, target)
            assert trial(average, start, target) == (target if expected is None else expected)


@pytest.mark.slow
def test_the_first_gradient_that_moves_v():
    average = MovingAverage("bfloat16", 0.999, "torch_addcmul")
    assert trial(average, 7.5, 5.0) == average.stalls_at(7.5, 5.0) == 8


@pytest.mark.parametrize("mode", ["nearest_even", "toward_zero", "up"])
def test_the_exact_average_leaves_the_number_at_the_step_that_is_said(mode):
    """By powers of the decay in fractions, one step after another."""
    steps = set()
    for decay in (0.75, 0.9375, 0.99):
        average = MovingAverage("float8_e4m3fn", decay, rounding=mode)
        for start, target in ((1.0, 1.5), (1.5, 1.0), (0.0, 1.0), (-1.0, 2.0), (0.0, 0.015625)):
            stall, said = average.stalls_at(start, target), average.wrong_from(start, target)
            if stall is None or round_fraction(Fraction(target), average.format, average.rounding) == stall:
                assert said is None
                continue
            start, target = Fraction(start), Fraction(target)
            exact, step = start, 0
            while step == 0 or not _passed(exact, stall, start < target, average):
                exact, step = target + (exact - target) * Fraction(decay), step + 1
            assert said == step
            steps.add(step)
    assert len(steps) > 2


def _passed(exact, stall, up, average):
    rounded = Fraction(round_fraction(exact, average.format, average.rounding))
    return rounded > stall if up else rounded < stall


@pytest.mark.parametrize(
    ("given", "options", "error", "problem"),
    [
        (("bfloat16", 0.5), {}, ValueError, "decay = 0.5 must lie between"),
        (("bfloat16", 1.0), {}, ValueError, "decay = 1.0 must lie between"),
        (("bfloat16", "half"), {}, TypeError, "decay must be a real number"),
        (("bfloat16", 0.9), {"form": "lerps"}, ValueError, "form"),
        (("bfloat16", 0.9), {"rounding": "stochastic"}, ValueError, "stochastic"),
        (("bfloat16", 0.9), {"rounding": mcf.Rounding(underflow="flush_after")}, ValueError, "gradual"),
        ((tiny(2, 1, zero=False), 0.9), {}, UnsupportedFormatError, "has no zero: numbers on both sides"),
        (("float8_e8m0fnu", 0.9), {"rounding": SATURATING}, UnsupportedFormatError, "'ieee' is supported"),
    ],
)
def test_averages_that_are_none(given, options, error, problem):
    with pytest.raises(error, match=problem):
        MovingAverage(*given, **options)


def test_numbers_that_are_none():
    average = MovingAverage("bfloat16", 0.9)
    for stored in (0.3, np.inf, np.nan):
        with pytest.raises(ValueError, match="no finite value of bfloat16"):
            average.still(stored)
    with pytest.raises(ValueError, match=r"target = 0\.3"):
        average.stalls_at(1.0, 0.3)
    with pytest.raises(ValueError, match="24 bits of precision"):
        MovingAverage("float32", 0.9).stalls_at(0.0, 1.0)
    assert MovingAverage("posit8", 0.9).stalls_at(0.0, 1.0) is not None
    with pytest.raises(ValueError, match="posit32 has 32 bits: numbers are tried"):
        MovingAverage("posit32", 0.9).stalls_at(0.0, 1.0)


def test_sums_of_pytorch_are_rounded_to_nearest_before_they_are_stored():
    """1 and at most 2**-24 make 1 in binary32, which no rounding changes; their sum was rounded up."""
    for fmt in ("bfloat16", "float16"):
        average = MovingAverage(fmt, 0.9999, "torch_avg_fn", "up")
        tiny = 2.0**-24
        assert average.step(np.array([1.0]), np.array([tiny]))[0] == 1.0
        assert average.still(1.0).holds(Fraction(tiny))


def test_an_average_of_squares_stalls_at_the_end_of_a_format_that_saturates():
    average = MovingAverage("float4_e2m1fn", 0.51, "torch_addcmul")
    assert average.step(np.array([6.0]), np.array([-6.0]))[0] == 6
    assert average.stalls_at(0.0, -6.0) == 6
    assert average.wrong_from(0.0, -6.0) is None  # 36 is stored as 6, too
    assert MovingAverage("float8_e4m3fn", 0.51, "torch_addcmul").stalls_at(0.0, 416.0) is None


def test_an_average_that_stalls_below_a_target_it_never_reaches_is_not_wrong():
    """Downward, all numbers from 256 to below 384 are stored as 256, and the exact average stays there."""
    average = MovingAverage("posit8", 0.75, "torch_avg_fn", "down")
    assert average.stalls_at(2.0**-9, 384.0) == 256
    assert average.wrong_from(2.0**-9, 384.0) is None
