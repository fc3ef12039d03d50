"""Steps of every optimizer in every strategy, bit for bit as the judge makes them one number at a time."""

from dataclasses import replace
from itertools import product
from zlib import crc32

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.models.saving import load_state, save_state
from mcfsim.optim.declaration import straight_optimizers
from mcfsim.optim.on_grid import on_grid, scale_of
from mcfsim.optim.state import error_weight, remaining
from mcfsim.optim.stored import Reach, WeightGrid
from mcfsim.optim.strategies import FLOAT32, LOW, Stored, Strategy
from mcfsim.rounding import DETERMINISTIC
from tests.optim.stored import E4M3, made, numbers, scaled
from tests.shared.kinds import LEADING, QUANTISED, STORED, feeding

from . import on_grid_reference as grids
from .on_grid_reference import placed
from .reference import assert_judged

pytestmark = pytest.mark.filterwarnings("ignore::mcfsim.VanishingScalarWarning")

SHAPES = {"b": (2,), "w": (1, 2), "s": (), "none": (0,)}
DECAYED = {"w", "s", "none"}
#: What keeps numbers of a low format alive: epsilon, the rate, and the least exponent of a gradient.
RANGES = {
    **{"bfloat16": (1e-8, 0.01, -12), "float16": (1e-4, 0.01, -8), "float8_e4m3fn": (0.1, 0.3, -2)},
    **{"float8_e5m2": (1e-3, 0.1, -6), "posit8": (2.0**-6, 0.1, -4), "posit16es1": (2.0**-6, 0.1, -6)},
}
#: Low format, rounding and how scalars enter.
SETTINGS = [
    *((low, "nearest_even", "exact") for low in RANGES),
    *((low, "nearest_even", "rounded") for low in ("bfloat16", "float16", "float8_e4m3fn")),
    *((low, "nearest_even", "float32") for low in RANGES),
    *(("bfloat16", mode, "float32") for mode in ("up", "toward_zero", "to_odd")),
    *(("bfloat16", str(mode), "exact") for mode in DETERMINISTIC if mode != "nearest_even"),
    ("bfloat16", "stochastic", "exact"),
]
#: The betas of a case: weights below and above a half, and none.
BETAS = [(0.9, 0.999), (0.9, 0.95), (0.3, 0.99), (0.0, 0.9999)]
SIZED = {"w": (4, 33), "b": (128,), "c": (5,), "s": (), "none": (0,)}


def hyperparameters(optimizer, epsilon, betas=BETAS[1], decay=0.1):
    """Return an optimizer with some of these, where it has them."""
    given = {"beta1": betas[0], "beta2": betas[1], "epsilon": epsilon, "weight_decay": decay}
    given["momentum"] = betas[0] or 0.5
    kind = straight_optimizers()[optimizer]
    return kind(**{name: value for name, value in given.items() if name in kind.ranges})


def judged(assert_same, hyper, strategy, low="bfloat16", shapes=SHAPES, steps=4, rate=None, **options):
    _, own, least = RANGES[low]
    start, *given = (numbers(seed, shapes, low, seed and least) for seed in range(steps + 1))
    rates = [(rate or own) / step for step in range(1, steps + 1)]
    return start, *assert_judged(assert_same, (hyper, strategy, start, DECAYED), given, rates, **options)


def possible(strategy, low, rounding, scalars):
    """Return whether a strategy has such settings."""
    addition = mcf.STRATEGIES[strategy].addition
    if (strategy in LEADING and low != "bfloat16") or (addition == "grow" and rounding != "nearest_even"):
        return False
    drawn = any(x.rounding for x in mcf.STRATEGIES[strategy].tensors.values())
    if low.startswith("posit") and (addition == "grow" or drawn or strategy.startswith("remainder")):
        return False
    return scalars == "exact" or not mcf.STRATEGIES[strategy].draws


PAIRS = product(feeding(STORED), SETTINGS)
CASES = [(*pair, *setting) for pair, setting in PAIRS if possible(pair[1], *setting)]


@pytest.mark.parametrize(("optimizer", "name", "low", "rounding", "scalars"), CASES)
@pytest.mark.sampled(140, each=False)
def test_steps_are_those_of_the_judge(optimizer, name, low, rounding, scalars, assert_same):
    which = crc32(f"{optimizer} {name} {rounding} {scalars}".encode()) if low == "bfloat16" else 1
    betas = BETAS[which % len(BETAS)]
    hyper = hyperparameters(optimizer, RANGES[low][0], betas)
    options = {"rounding": rounding, "scalars": scalars}
    if rounding == "stochastic":
        options["random"] = mcf.RandomWords(7)
    start, optimizer, _ = judged(assert_same, hyper, mcf.strategy(name, low), low, **options)
    weights = optimizer.weights()
    assert any((weights[label] != x).any() for label, x in start.items())
    assert all(np.isfinite(x).all() for x in weights.values())


MIXED = Strategy("mixed", parameter=Stored(LOW, 2), v=Stored("float8_e5m2"), addition="grow")
#: With m and v exchanged; with streams of random words for two formats.
CROSSED = replace(MIXED, m=MIXED.v, v=MIXED.m)
DRAWN = Stored(FLOAT32, rounding="stochastic")
APART = replace(mcf.STRATEGIES["stochastic"], m=DRAWN, v=Stored(LOW, rounding="up"))


@pytest.mark.parametrize("kind", straight_optimizers())
@pytest.mark.parametrize("declared", [MIXED, CROSSED, APART], ids=["mixed", "crossed", "apart"])
def test_moments_of_different_formats_are_those_of_the_judge(kind, declared, assert_same):
    hyper, words = hyperparameters(kind, 1e-4), mcf.RandomWords(5, stream=3)
    _, optimizer, _ = judged(assert_same, hyper, mcf.strategy(declared), steps=3, random=words)
    for slot, vectors in (("m", optimizer.state.m), ("v", optimizer.state.v)):
        for x in vectors:
            assert_same(x, mcf.round_to(x, optimizer.strategy.tensors[slot].format))
    assert mcf.strategy(declared).bytes_per_parameter == (10 if declared is APART else 9)


WHOLE = Stored(FLOAT32, scaled=scaled(E4M3, None))
WHOLE = replace(mcf.STRATEGIES["fp8-moments"], name="whole", m=WHOLE, v=WHOLE)
IN_GROUPS = [(name, False) for name in (*QUANTISED, WHOLE)]


@pytest.mark.parametrize(("strategy", "packed"), [("fp8-moments", True), *IN_GROUPS])
@pytest.mark.slow
@pytest.mark.sampled(6, each=False)
def test_moments_in_groups_are_those_of_the_judge(strategy, packed, assert_same):
    """Of tensors of several groups, of a part of one, of one element and of none, decayed and not."""
    hyper = mcf.AdamW(0.9, 0.95, 1e-8, 0.1)
    judged(assert_same, hyper, mcf.strategy(strategy), shapes=SIZED, steps=2, packed=packed)


BF16 = Stored("bfloat16")
PLACED = product(Reach, ("absmean", "absmax"), ("stochastic", "nearest_even"))
GRIDS = [
    *map(mcf.strategy, ("dqt-ternary", "dqt-int2", "dqt-int3", "dqt-int8", "bitnet")),
    replace(mcf.strategy("dqt-int4"), m=BF16, v=BF16),
    *(placed("dqt-int4", reach=reach, start=start, rounding=mode) for reach, start, mode in PLACED),
]


@pytest.mark.parametrize("strategy", GRIDS, ids=[f"{i}-{x.name}" for i, x in enumerate(GRIDS)])
@pytest.mark.sampled(5, each=False)
@pytest.mark.slow
def test_weights_on_grids_are_those_of_the_judge(strategy, assert_same):
    hyper, words = mcf.AdamW(0.9, 0.95, 1e-6, 0.1), mcf.RandomWords(5)
    shapes = {"w": (12,), "gain": (5,), "s": (), "none": (0,), "b": (7,)}
    options = {"shapes": shapes, "steps": 3, "rate": 2.0**-8}
    _, optimizer, judge = judged(assert_same, hyper, strategy, random=words, **options)
    scales = dict(zip(optimizer.layout.slices, optimizer.grid.scales.tolist(), strict=True))
    assert judge.scales == {name: scale for name, scale in scales.items() if name != "none"}


# -- weights on grids ----------------------------------------------------------------------------------------
def test_roundings_of_the_run_leave_the_way_to_the_grid_as_it_is():
    """The grid's own rounding decides; the run's acts before it."""
    strategy = placed("dqt-int4", reach="fixed", rounding="nearest_even")
    up = made({"w": np.linspace(-1, 1, 99)}, strategy, hyper=mcf.SGD(0.0, 0.0), rounding="up")
    still = up.state.parameter[0].tolist()
    up.step(up.receive({"w": np.zeros(99)}), 1.0)
    assert up.state.parameter[0].tolist() == still


@pytest.mark.parametrize("fmt", ["bfloat16", "float16", "float8_e5m2"])
def test_grids_in_formats_other_than_float32_are_those_of_the_judge(fmt):
    fmt, whole = mcf.get_format(fmt), WeightGrid("int3")
    x = mcf.round_to(np.random.default_rng(3).standard_normal(60) * 0.02, fmt)
    s = grids.scale(x.tolist(), 3, "absmean", fmt)
    assert scale_of(x, whole, whole.start, fmt) == s
    assert grids.same(on_grid(x, whole, fmt), [grids.put(y, s, -4, 3, fmt=fmt)[0] for y in x.tolist()])


def test_a_weight_that_becomes_infinite_is_clipped_and_a_nan_spoils_its_tensor_alone():
    def stepped(*gradient):
        optimizer = made({"a": np.ones(3), "b": np.ones(3)}, "dqt-int8", hyper=mcf.SGD(0.0, 0.0))
        optimizer.step(np.array([*gradient, 0, 0, 0], np.float32), 1.0)
        return optimizer

    bottom = float(np.float32(-128) / np.float32(127))
    assert stepped(np.inf, 0, -np.inf).weights()["a"].tolist() == [bottom, 1.0, 1.0]
    spoilt = stepped(np.nan, 0, 0)
    assert grids.same(spoilt.weights()["a"], [np.nan, 1.0, 1.0])
    spoilt.step(np.zeros(6, np.float32), 1.0)
    assert grids.same([*spoilt.weights().values()], [[np.nan] * 3, [1.0] * 3])


def test_a_state_with_scales_of_the_start_is_not_saved(tmp_path):
    for work in (save_state, load_state):
        with pytest.raises(ValueError, match="whose scales are those of the start"):
            work(made(3, placed("dqt-int8", reach="fixed")), tmp_path / "state.safetensors")


@pytest.mark.slow
def test_a_run_measures_grids_and_infers_by_three_values():
    for integers, bits in (("ternary", 2), *((f"int{bits}", bits) for bits in range(2, 9))):
        assert mcf.strategy(f"dqt-{integers}").bytes_per_parameter == bits / 8 + 2 + 8
    assert mcf.strategy("bitnet").bytes_per_parameter == 14.25
    names, schedule = ["dqt-ternary", "dqt-int8", "bitnet", "plain"], mcf.Schedule(2.0**-6, 0)
    given = mcf.get_problem("quadratic", dimension=20), mcf.AdamW(0.9, 0.95, 1e-6, 0.1), names, 5, schedule
    run = mcf.simulate(*given, low="float32", record_every=2)
    for name in names[:3]:
        assert {"changed", "at_ends", "grid_size"} <= set(run.series[name])
        assert 0 <= run.results[name]["clipped_at_start"] <= 1
    assert "changed" not in run.series["plain"]
    assert [name for name in names if "ternary_validation_loss" in run.results[name]] == ["dqt-int8"]


# -- edges ---------------------------------------------------------------------------------------------------
def test_beyond_the_range_a_remainder_leaves_no_number():
    x = np.array([70000.0, np.inf, np.nan], np.float32)
    with np.errstate(all="ignore"):
        theta = mcf.round_to(x, "float16").astype(np.float32)
        left = remaining(mcf.arithmetic("float32"), mcf.get_format("float16"), 8, x, theta)
    assert np.isnan(left).all()


@pytest.mark.parametrize("rounding", ["toward_zero", "up"])
def test_a_parameter_beside_a_remainder_is_rounded_to_nearest(rounding):
    """Rounded otherwise, it would not go on: a remainder keeps at most half of an ulp, here two steps."""
    optimizer = made(1, "remainder-8", hyper=mcf.SGD(0.0, 0.0), rounding=rounding)
    for _ in range(12):
        optimizer.step(np.full(1, -(2.0**-9), np.float32), 1.0)
    assert optimizer.weights()["w"] == 1 + 3 * 2.0**-7


@pytest.mark.parametrize("hyper", [mcf.AdamW(beta1=0.0), mcf.SGD(0.0), mcf.AdamW(), mcf.SGD()], ids=str)
def test_nothing_is_fed_back_without_momentum_or_rate(hyper):
    rates = (0.0, 1e-2) if getattr(hyper, "beta1", getattr(hyper, "momentum", 0.0)) == 0 else (0.0,)
    for rate in rates:
        ends = []
        for name in ("eco", "fp32-optim"):
            optimizer = made({"w": np.linspace(-1, 1, 9)}, name, hyper=hyper)
            for step in range(3):
                optimizer.step(optimizer.receive({"w": np.linspace(1, 2, 9) / (step + 1)}), rate)
            ends.append([x.tolist() for x in (*optimizer.state.m, *optimizer.state.v)])
        assert ends[0] == ends[1]
    assert error_weight(mcf.strategy("plain"), -0.1, 5e-324) == 0.0
