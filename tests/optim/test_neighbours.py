"""Remainders, fed-back errors, tables and powers: by judges of their own, and at their edges."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.kernels.carriers import UnsupportedFormatError
from mcfsim.models.freezes import frozen_share
from mcfsim.optim.remainder import remaining
from mcfsim.optim.state import error_weight
from mcfsim.optim.strategies import FLOAT32, LOW, Addition, Stored, Strategy
from mcfsim.oracle import round_fraction
from mcfsim.random import RandomWords
from mcfsim.rounding import Mode, Rounding, Rule
from mcfsim.scaled.quantisers import DynamicMap, RangeExpansion
from tests.shared.kinds import QUANTISED, UNPACKED

from .reference import by_powers, by_table

SIGNED, UNSIGNED = DynamicMap("signed", signed=True), DynamicMap("unsigned", signed=False)
EXPANDED = RangeExpansion("expanded")
BFLOAT16 = mcf.get_format("bfloat16")


# -- remainders ----------------------------------------------------------------------------------------------
def judged(x, low, bits):
    """Return what theta and rho say of a number, in fractions, by the documented formula."""
    most, x = 2 ** (bits - 1) - 1, Fraction(x)
    theta = Fraction(round_fraction(x, low))
    exponent = max(math.frexp(float(theta))[1] - 1, low.emin) if theta else low.emin
    half = Fraction(2) ** (exponent - low.precision)
    share = Fraction(round_fraction((x - theta) / half * most, FLOAT32))
    rho = min(math.floor(abs(share) + Fraction(1, 2)), most) * (1 if share >= 0 else -1)
    step = Fraction(round_fraction(Fraction(round_fraction(Fraction(rho, most), FLOAT32)) * half, FLOAT32))
    return float(round_fraction(theta + step, FLOAT32)), rho


def numbers(low):
    """Return numbers of all binades of a format, between two of its numbers, at ties and beside them."""
    rng = np.random.default_rng(5)
    spread = rng.choice([-1, 1], 400) * np.ldexp(
        rng.uniform(1, 2, 400), rng.integers(low.emin, low.emax, 400)
    )
    ties = 1 + (2 * np.arange(20) + 1) * 2.0**-low.precision
    tiny = float(low.smallest_subnormal) * np.array([0, -0.0, 0.25, 0.5, 0.75, 1, 1.5, 7.25])
    around = np.concatenate([ties, np.nextafter(np.float32(ties), np.float32(9)), -ties, tiny])
    return np.concatenate([spread, around]).astype(np.float32)


@pytest.mark.parametrize("low", ["bfloat16", "float16", "float8_e5m2", "float8_e4m3fn"])
@pytest.mark.parametrize("bits", [2, 8, 16])
def test_a_remainder_says_what_the_formula_says(low, bits):
    low = mcf.get_format(low)
    x = numbers(low)
    theta = mcf.round_to(x, low).astype(np.float32)
    left = remaining(mcf.arithmetic("float32"), low, bits, x, theta)
    assert left.tolist() == [judged(float(number), low, bits)[0] for number in x]
    assert (np.abs(left - x) <= np.abs(x - theta)).all()


def test_it_holds_what_it_says_again():
    """What is read back gives the same parameter and the same remainder: nothing is lost a second time."""
    ar, x = mcf.arithmetic("float32"), numbers(BFLOAT16)
    for bits in (8, 16):
        once = remaining(ar, BFLOAT16, bits, x, mcf.round_to(x, BFLOAT16).astype(np.float32))
        theta = mcf.round_to(once, BFLOAT16).astype(np.float32)
        again = remaining(ar, BFLOAT16, bits, once, theta)
        settled = theta == mcf.round_to(x, BFLOAT16)
        assert settled.mean() > 0.9  # the others lay next to a tie
        assert (again == once)[settled].all()


def test_a_remainder_has_the_values_that_its_bits_have():
    x = np.float32(1) + np.arange(-(1 << 15), 1 << 15, dtype=np.float32) * np.float32(2.0**-23)
    theta = np.ones_like(x)
    for bits, most in ((2, 1), (4, 7), (8, 127)):
        inside = np.abs(x - 1) <= 2.0**-9  # next to 1, below which bfloat16 is twice as fine
        found = remaining(mcf.arithmetic("float32"), BFLOAT16, bits, x[inside], theta[inside])
        assert np.unique(found).size <= 2 * most + 1
        assert {judged(float(number), BFLOAT16, bits)[1] for number in x[inside][::999]} <= {
            *range(-most, most + 1)
        }


def test_sixteen_bits_name_nearly_every_master_copy():
    """As the page says: 50 of those about a number are off by a bit, and half of those below 1."""
    ar = mcf.arithmetic("float32")
    for middle, first, last, wrong in ((1.5, -(1 << 15), 1 << 15, 50), (1.0, -(1 << 15), 0, 1 << 14)):
        codes = np.arange(first + 1, last, dtype=np.int64) + int(np.float32(middle).view(np.int32))
        x = codes.astype(np.int32).view(np.float32)
        theta = mcf.round_to(x, BFLOAT16).astype(np.float32)
        assert (theta == middle).all()
        apart = remaining(ar, BFLOAT16, 16, x, theta).view(np.int32) - codes
        assert np.abs(apart).max() == 1
        assert np.count_nonzero(apart) == wrong


def test_beyond_the_range_it_is_no_number():
    low = mcf.get_format("float16")
    for x in (70000.0, np.inf, np.nan):
        given = np.array([x], np.float32)
        with np.errstate(all="ignore"):
            theta = mcf.round_to(given, low).astype(np.float32)
            assert np.isnan(remaining(mcf.arithmetic("float32"), low, 8, given, theta)).all()


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"extra": Stored(FLOAT32, remainder=8, shared=True)}, ValueError, "shares bits|rounds nearest_away"),
        ({"m": Stored(FLOAT32, remainder=8)}, ValueError, "only a master copy has a remainder, not m"),
        ({"extra": Stored("float64", remainder=8)}, UnsupportedFormatError, "lower than float32"),
        ({"parameter": Stored(FLOAT32)}, UnsupportedFormatError, "lower than float32"),
        ({"parameter": Stored("posit16")}, UnsupportedFormatError, "lower than float32"),
    ],
)
def test_remainders_that_cannot_be(fields, error, message):
    with pytest.raises(error, match=message):
        replace(mcf.strategy("remainder-8"), **fields)


@pytest.mark.parametrize(
    ("bits", "error"), [(1, ValueError), (17, ValueError), (8.0, TypeError), (True, TypeError)]
)
def test_remainders_of_no_such_length(bits, error):
    with pytest.raises(error, match="remainder"):
        Stored(FLOAT32, remainder=bits)


def test_a_flushed_parameter_has_no_remainder():
    with pytest.raises(ValueError, match="takes underflow 'gradual' alone, not flush_after"):
        mcf.strategy("remainder-8").roles(underflow="flush_after")


# -- errors fed back -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("hyper", [mcf.AdamW(0.9, 0.99, 1e-6, 0.1), mcf.SGD(0.9, 0.1)], ids=["adamw", "sgd"])
@pytest.mark.slow
def test_what_is_lost_is_made_up_for_in_steps_to_come(hyper):
    """A steady update that nearest loses moves nothing; with feedback, all but a bounded rest arrives."""
    moved = {}
    for name in ("fp32-optim", "eco", "fp32-master"):
        optimizer = mcf.Optimizer(hyper, mcf.strategy(name), {"w": np.ones(1)})
        for _ in range(2000):
            optimizer.step(
                np.full(1, -1.0, np.float32), 2.0**-11 / (1 if isinstance(hyper, mcf.AdamW) else 10)
            )
        moved[name] = float(optimizer.weights()["w"][0]) - 1
    assert moved["fp32-optim"] == 0
    assert abs(moved["eco"] - moved["fp32-master"]) <= 20 * 2.0**-8 < moved["fp32-master"] / 10


@pytest.mark.parametrize("hyper", [mcf.AdamW(beta1=0.0), mcf.SGD(0.0), mcf.AdamW(), mcf.SGD()], ids=str)
def test_nothing_is_fed_back_without_momentum_or_rate(hyper):
    rates = (0.0, 1e-2) if getattr(hyper, "beta1", getattr(hyper, "momentum", 0.0)) == 0 else (0.0,)
    for rate in rates:
        ends = []
        for name in ("eco", "fp32-optim"):
            optimizer = mcf.Optimizer(hyper, mcf.strategy(name), {"w": np.linspace(-1, 1, 9)})
            for step in range(3):
                optimizer.step(optimizer.receive({"w": np.linspace(1, 2, 9) / (step + 1)}), rate)
            ends.append([x.tolist() for x in (*optimizer.state.m, *optimizer.state.v)])
        assert ends[0] == ends[1]


@pytest.mark.parametrize("name", ["lion", "nesterov", "torchadamw"])
def test_optimizers_without_a_formula_refuse(name):
    hyper = mcf.optim.declaration.optimizers()[name]()
    with pytest.raises(ValueError, match="has no formula for that; these have: AdamW, SGD"):
        mcf.Optimizer(hyper, mcf.strategy("eco"), {"w": np.ones(2)})


def test_errors_over_hardly_any_rate_are_refused():
    with pytest.raises(ValueError, match=r"'eco' feeds errors back over the learning rate: not over 5e-324"):
        error_weight(mcf.strategy("eco"), -0.1, 5e-324)
    assert error_weight(mcf.strategy("plain"), -0.1, 5e-324) == 0.0


def test_a_momentum_of_several_components_takes_no_feedback():
    with pytest.raises(ValueError, match="an m of one component"):
        Strategy("mine", m=Stored(LOW, 2), addition=Addition.FEEDBACK)


# -- tables and powers ---------------------------------------------------------------------------------------
def hostile(seed, size):
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal(size) * 2.0 ** rng.integers(-30, 4, size)).astype(np.float32)
    x[rng.random(size) < 0.1] = 0.0
    return x


@pytest.mark.parametrize("size", [1, 31, 128, 256, 300])
@pytest.mark.parametrize("how", [SIGNED, UNSIGNED, EXPANDED], ids=str)
def test_what_is_left_is_that_of_the_judge(how, size):
    judge = by_powers if how is EXPANDED else by_table
    for seed in range(4):
        x = hostile(seed, size)
        x = np.abs(x) if how is UNSIGNED else x
        groups = [x[i : i + how.block].tolist() for i in range(0, size, how.block)]
        expected = [number for group in groups for number in judge(group, how)]
        np.testing.assert_array_equal(how.through(x), expected)


def test_the_table_is_that_of_pytorch_s_linspace():
    torch = pytest.importorskip("torch")
    for how in (SIGNED, UNSIGNED):
        rows = [torch.zeros(1), torch.ones(1)]
        for decade in range(7):
            edges = torch.linspace(0.1, 1, 2 ** (decade + (not how.signed)) + 1)
            middles = (edges[:-1] + edges[1:]) / 2.0 * 10 ** (decade - 6)
            rows += [middles, -middles] if how.signed else [middles]
        assert torch.cat(rows).sort().values.tolist() == how.table.tolist()


def test_ties_of_a_table_go_up():
    table = SIGNED.table
    for place in (0, 100, 127, 128, 250):
        middle = (np.float64(table[place]) + np.float64(table[place + 1])) / 2
        if np.float32(middle) == middle:
            codes, _ = SIGNED.encode(np.array([middle, 1.0], np.float32))
            assert codes[0] == place + 1


def test_a_power_of_a_group_at_the_edges_of_the_published_kernel():
    assert EXPANDED.through(np.zeros(5, np.float32)).tolist() == [float(np.float32(1e-30))] * 5
    spread = np.geomspace(1e-6, 1, 128).astype(np.float32)
    codes, scale, power, _ = EXPANDED.encode(spread)
    assert codes.dtype == np.uint8
    assert power.tolist() == [math.floor(16 * math.log2(100352) / math.log2(1e6)) / 16]
    assert scale.shape == (1,)
    # A zero in the place of a thread that receives is kept, and nothing lower than 1e-30 is found below it.
    first = spread.copy()
    first[0] = 0.0
    assert EXPANDED.encode(first)[2] < power
    # One in the place of a thread that hands over is passed over.
    last = spread.copy()
    last[-1] = 0.0
    assert EXPANDED.encode(last)[2] == power


def test_nan_stays_where_it_is_or_takes_its_group():
    x = np.append(np.ones(300, np.float32), np.float32(np.nan))
    assert np.isnan(SIGNED.through(x)).tolist() == [False] * 256 + [True] * 45
    x = np.append(np.linspace(1, 2, 128).astype(np.float32), np.float32(np.nan))
    x[3] = np.nan
    assert np.flatnonzero(np.isnan(EXPANDED.through(x))).tolist() == [3, 128]


@pytest.mark.parametrize("how", [SIGNED, UNSIGNED, EXPANDED], ids=str)
def test_the_sign_of_a_nan_is_no_matter(how):
    """Which one an operation gives depends on the processor, and where numbers lie in memory."""
    for other in (np.inf, 1.0, 0.0):
        x = np.array([np.nan, other, 3.0, np.nan], np.float32)
        y = np.where(np.isnan(x), -np.float32(np.nan), x)
        assert np.signbit(y[0]) != np.signbit(x[0])
        found, same = how.through(x), how.through(y)
        np.testing.assert_array_equal(found, same)
        numbers = ~np.isnan(found)
        assert np.array_equal(np.signbit(found)[numbers], np.signbit(same)[numbers])


@pytest.mark.parametrize("how", [SIGNED, UNSIGNED, EXPANDED], ids=str)
def test_codes_take_the_bits_that_are_declared(how):
    parts = how.encode(hostile(0, 4 * how.block))
    assert sum(x.nbytes for x in parts) * 8 == how.bits_per_element * 4 * how.block


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DynamicMap("x", signed=True, block=0), "block = 0 must be at least 1"),
        (lambda: RangeExpansion("x", block=100), "must be a multiple of 32"),
        (lambda: RangeExpansion("x", steps=0), "steps = 0 must be at least 1"),
    ],
)
def test_quantisers_that_cannot_be(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("name", UNPACKED)
def test_they_are_not_packed(name):
    assert name in QUANTISED
    with pytest.raises(ValueError, match="which is not packed: its codes are of no format"):
        mcf.Optimizer(mcf.AdamW(), mcf.strategy(name), {"w": np.ones(300)}, packed=True)


def test_a_dynamic_map_lets_a_second_moment_decay_no_more_than_float8_does():
    for name in ("int8-moments", "fp8-moments"):
        assert frozen_share(mcf.strategy(name), "v", 0.999, beside=True) == 1.0
        assert frozen_share(mcf.strategy(name), "v", 0.5, beside=True) == 0.0


# -- random bits of a tensor ---------------------------------------------------------------------------------
@pytest.mark.parametrize("rule", [*Rule, None])
@pytest.mark.parametrize("bits", [1, 3, 16, None])
def test_a_tensor_rounds_with_its_own_bits_and_rule(bits, rule):
    stored = Stored(LOW, rounding="stochastic", random_bits=bits, rule=rule)
    roles = mcf.strategy(replace(mcf.STRATEGIES["plain"], parameter=stored)).roles(random=RandomWords(3))
    assert roles.parameter.rounding == Rounding(
        Mode.STOCHASTIC, random_bits=bits or 16, rule=rule or Rule.TRUNCATE
    )
    assert roles.moments.rounding == Rounding()
    of_run = Rounding(Mode.STOCHASTIC, random_bits=5, rule="centred")
    roles = mcf.strategy(replace(mcf.STRATEGIES["plain"], parameter=stored)).roles(
        of_run, random=RandomWords(3)
    )
    assert roles.parameter.rounding == replace(of_run, random_bits=bits or 5, rule=rule or Rule.CENTRED)


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        (
            {"random_bits": 4},
            ValueError,
            "random_bits: only rounding 'stochastic' of its own has them, not None",
        ),
        ({"rule": "centred", "rounding": "up"}, ValueError, "rule: only rounding 'stochastic' of its own"),
        ({"rounding": "stochastic", "random_bits": 0}, ValueError, "must lie between 1 and 32"),
        ({"rounding": "stochastic", "random_bits": 2.0}, TypeError, "random_bits must be an int"),
        ({"rounding": "stochastic", "rule": "no"}, ValueError, "unknown rule 'no'"),
    ],
)
def test_bits_and_rules_that_cannot_be(fields, error, message):
    with pytest.raises(error, match=message):
        Stored(**{"format": LOW, **fields})


def test_bits_and_rule_change_nothing_of_what_no_draw_moves():
    few = Stored("bfloat16", rounding="stochastic", random_bits=3, rule="centred")
    mine = replace(mcf.strategy("stochastic"), v=few)
    assert frozen_share(mine, "v", 0.999) == frozen_share(mcf.strategy("stochastic"), "v", 0.999)


def replicas(seeds, steps=30):
    """Return the weights of replicas that are handed the same gradients, of their mean, as they train."""
    stored = Stored(LOW, rounding="stochastic", random_bits=8)
    chosen = mcf.strategy(replace(mcf.STRATEGIES["stochastic"], parameter=stored, m=stored, v=stored))
    start = np.random.default_rng(0).standard_normal(500)
    made = [mcf.Optimizer(mcf.AdamW(), chosen, {"w": start}, random=RandomWords(seed)) for seed in seeds]
    apart = []
    for _ in range(steps):
        gradient = np.mean([x.weights()["w"].astype(np.float64) for x in made], axis=0)
        for x in made:
            x.step(x.receive({"w": gradient}), 1e-3)
        weights = [x.weights()["w"].astype(np.float64) for x in made]
        apart.append(float(np.sqrt(np.mean((weights[0] - weights[1]) ** 2))))
    return apart


def test_replicas_with_one_seed_stay_together_and_others_drift():
    assert replicas((7, 7)) == [0.0] * 30
    apart = replicas((7, 8))
    assert 0 < apart[0] < apart[-1] / 2
