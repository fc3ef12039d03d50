"""What a state represents is summed exactly and rounded once into other storage, and goes on from there."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.checks import SpoiltStateError
from mcfsim.kernels.real_numbers import to_fraction
from mcfsim.optim.declaration import components, optimizers
from mcfsim.optim.stored import Reach, Stored
from mcfsim.oracle import operate, round_fraction
from tests.optim.stored import bits, held, made, numbers
from tests.shared.kinds import STORED, UNPACKED, rotating

from . import on_grid_reference as grids
from .on_grid_reference import placed
from .reference import left_of, quantised

SHAPES = {"w": (5, 7), "empty": (0, 4), "b": (9,), "scalar": ()}
FLOAT32 = mcf.get_format("float32")
#: A format as long as one may be in which steps are made.
LONG = mcf.Format("long", precision=51, emin=-430, emax=479)


def trained(strategy, steps=3, hyper=None, **options):
    optimizer = made(numbers(0, SHAPES), strategy, hyper=hyper, decayed=["w"], **options)
    return trained_on(optimizer, steps)


def trained_on(optimizer, steps):
    for _ in range(steps):
        optimizer.step(optimizer.receive(numbers(optimizer.count + 1, SHAPES)), 3e-3)
    return optimizer


def filled(strategy):
    """Return an optimizer whose vectors hold numbers far apart, so that few sums are exact in binary64."""
    hyper, random = mcf.AdamW(epsilon=0.125, weight_decay=0.0), np.random.default_rng(5)
    optimizer = made(numbers(0, SHAPES), strategy, hyper=hyper)
    for label, fmt, vectors in zip(optimizer.state._fields, optimizer.formats, optimizer.state, strict=True):
        for place, x in enumerate(vectors):
            scale = 2.0 ** (random.integers(-12, 3, x.size) - (12 + random.integers(0, 40, x.size)) * place)
            given = mcf.round_to(random.standard_normal(x.size) * scale, fmt)
            x[...] = np.abs(given) if label == "v" and not place else given
            x[:3] = (0.0, -0.0, 1.0) if not place else (0.0, -0.0, 2.0**-9)
    return optimizer


# -- by the definition ---------------------------------------------------------------------------------------
def form(stored):
    lies = stored and stored.grid and stored.grid.integers
    return stored and (stored.format, stored.components, stored.scaled, stored.shared, stored.remainder, lies)


def beside(strategy):
    """Return all that says how a parameter is stored."""
    extra, cut = strategy.extra, strategy.parameter.rounding
    more = (form(extra), strategy.addition, extra.shared and cut) if extra else ()
    return form(strategy.parameter), *more


def summed(columns):
    """Return each element's exact sum; of zeros alone the IEEE sum, whose sign counts."""
    rows = zip(*(x.tolist() for x in columns), strict=True)
    return [sum(map(Fraction, row)) if any(row) else sum(row[1:], row[0]) for row in rows]


def zero_as(x, exact):
    """Return a rounded number; a zero has the sign of what was rounded."""
    return math.copysign(0.0, exact) if x == 0 else x


def expected(optimizer, new):
    """Return what the vectors hold under another strategy, by fractions, a list of numbers each."""
    old, state = optimizer.strategy, optimizer.state
    if beside(old) == beside(new):
        parameter = [x.tolist() for x in (*state.parameter, *state.extra)]
    else:
        given = state.extra if old.addition == "master" else state.parameter + state.extra
        whole, low = summed(given), new.parameter.format
        if new.addition == "master":
            master = [zero_as(round_fraction(Fraction(x), FLOAT32), x) for x in whole]
            mode = new.parameter.rounding if new.extra.shared else "nearest_even"
            theta = [zero_as(round_fraction(Fraction(x), low, mcf.Rounding(mode)), x) for x in master]
            if bits := new.extra.remainder:
                most = 2 ** (bits - 1) - 1
                master = [left_of(x, t, low, most) for x, t in zip(master, theta, strict=True)]
            parameter = [theta, master]
        else:
            parameter = split(whole, low, new.parameter.components + (new.extra is not None))
        if new.parameter.grid:
            parameter[0] = laid(optimizer, parameter[0], new.parameter.grid)[0]
    moments = []
    for slot in "mv":
        stored, vectors = getattr(new, slot), getattr(state, slot)
        if form(getattr(old, slot)) == form(stored):
            moments += [x.tolist() for x in vectors]
            continue
        made_of = split(summed(vectors), stored.format, stored.components)
        if stored.scaled is not None:
            tensors = [made_of[0][part] for part in optimizer.layout.slices.values()]
            made_of = [[x for tensor in tensors for x in quantised(tensor, stored.scaled)]]
        moments += made_of
    count = new.parameter.components
    return parameter[:count] + moments + parameter[count:]


def laid(optimizer, numbers, grid):
    """Return numbers on a grid as at the start, the scale of each tensor, and how many lay beyond ends."""
    low, high, found, scales, beyond = grid.integers.low, grid.integers.high, [], [], 0
    for part in optimizer.layout.slices.values():
        tensor = numbers[part]
        scales.append(grids.scale(tensor, high, str(grid.start)) if tensor else 1.0)
        found += [grids.put(x, scales[-1], low, high)[0] for x in tensor]
        by = [operate("mul", [x, float(scales[-1])], FLOAT32) for x in tensor]
        beyond += sum(not low <= x <= high for x in by)
    return found, scales, beyond


def split(whole, fmt, count):
    """Return components, a list each: what is left, rounded; a zero has the sign of what it was."""
    rows = []
    for x in whole:
        rows.append([zero_as(round_fraction(Fraction(x), fmt), x)])
        for _ in range(count - 1):
            rest = Fraction(x) - sum(map(Fraction, rows[-1]))
            rows[-1].append(zero_as(round_fraction(rest, fmt), rest))
    return [list(column) for column in zip(*rows, strict=True)]


@pytest.mark.parametrize("begin", [trained, filled])
@pytest.mark.parametrize("old", STORED)
@pytest.mark.sampled(19, each=False)
@pytest.mark.slow
def test_every_strategy_takes_another_s_place_by_the_definition(old, begin, assert_same):
    """Powers of COAT's quantiser are those of the mathematical library, to which no bits are due."""
    optimizer = begin(old)
    before = bits(optimizer)
    for name in STORED:
        new = mcf.strategy(name)
        switched = optimizer.switched(new)
        assert (switched.strategy, switched.count) == (new, optimizer.count)
        for found, wanted in zip(held(switched), expected(optimizer, new), strict=True):
            assert_same(found, wanted)
    assert bits(optimizer) == before


@pytest.mark.parametrize("low", [LONG, "float16", "float8_e4m3fn"], ids=str)
@pytest.mark.slow
def test_low_formats_take_each_other_s_place(low, assert_same):
    """Sums that need more bits than binary64 has, too, and numbers that a shorter format lacks."""
    for given, other in ((low, "bfloat16"), ("bfloat16", low)):
        optimizer = filled(mcf.strategy("mcf-3", given))
        new = mcf.strategy("mcf-2", other)
        with np.errstate(all="ignore"):
            switched = optimizer.switched(new)
        for found, wanted in zip(held(switched), expected(optimizer, new), strict=True):
            assert_same(found, wanted)


def test_what_is_not_finite_stays_so_and_what_is_too_large_overflows():
    optimizer = made({"w": np.ones(4, np.float32)}, "fp32", hyper=mcf.SGD())
    optimizer.state.parameter[0][:] = math.nan, math.inf, -1e30, 1.0
    switched = optimizer.switched(mcf.strategy("collage-light", "float16"))
    assert (
        str([x.tolist() for x in switched.represented()]) == "[[nan, inf, -inf, 1.0], [0.0, 0.0, 0.0, 0.0]]"
    )
    optimizer = made({"w": np.ones(3)}, "kahan")
    optimizer.state.parameter[0][:], optimizer.state.extra[0][:] = (math.inf, 1, -0.0), (-math.inf, 0, -0.0)
    (whole,) = optimizer.switched(mcf.strategy("fp32")).represented()
    assert str(whole.tolist()) == "[nan, 1.0, -0.0]"


@pytest.mark.parametrize("strategy", ["fp32-master", "remainder-16"])
def test_beside_a_master_copy_the_parameter_is_that_rounded(strategy):
    """At the start, too: once rounded into binary32, the number is in the middle of two in bfloat16."""
    x = {"w": np.array([1 + 2.0**-8 + 2.0**-30])}
    for optimizer in (made(x, strategy), made(x, "plain", LONG).switched(mcf.strategy(strategy))):
        assert (optimizer.weights()["w"], optimizer.represented()[0]) == (1.0, 1 + 2.0**-8)


# -- weights on grids ----------------------------------------------------------------------------------------
LAID = ["dqt-ternary", "dqt-int4", "bitnet", placed("dqt-int3", reach="fixed", start="absmax")]
BESIDE = [*LAID, "plain", "mcf-3", "remainder-8", "fp8-moments", "fp32"]


@pytest.mark.parametrize("old", BESIDE, ids=lambda x: getattr(x, "name", x))
@pytest.mark.sampled(3, each=False)
@pytest.mark.slow
def test_weights_are_put_on_grids_as_at_the_start_and_taken_from_there_as_they_are(old, assert_same):
    optimizer = trained(old, random=mcf.RandomWords(3))
    before = bits(optimizer)
    for name in LAID if old not in LAID else BESIDE:
        new = mcf.strategy(name)
        switched = optimizer.switched(new)
        for found, wanted in zip(held(switched), expected(optimizer, new), strict=True):
            assert_same(found, wanted)
        if new.parameter.grid and beside(new) != beside(optimizer.strategy):
            whole = split(summed(optimizer.represented()), FLOAT32, 1)[0]
            _, scales, beyond = laid(optimizer, whole, new.parameter.grid)
            assert switched.grid.scales.tolist() == scales
            assert switched.grid.clipped == beyond
    assert bits(optimizer) == before


@pytest.mark.parametrize("reach", Reach)
def test_what_is_on_a_grid_goes_on_there(reach):
    """By the scales that it came to lie by; under other rules for what comes, too."""
    first, second = (trained(placed("dqt-int3", reach=reach), random=mcf.RandomWords(3)) for _ in range(2))
    other = first.switched(first.strategy)
    assert bits(other) == bits(first)
    assert [x.tolist() for x in other.grid.kept] == [x.tolist() for x in first.grid.kept]
    assert bits(trained_on(other, 2)) == bits(trained_on(second, 2)) != bits(first)
    last = first.switched(placed("dqt-int3", reach="fixed"))
    assert bits(last) == bits(first)
    scales = first.grid.scales.tolist()
    assert trained_on(last, 2).grid.scales.tolist() == scales != [1.0] * 4


def test_steps_on_a_grid_go_on_from_any_state():
    """As those of one that began there, with the same numbers in its state."""
    given = trained("kahan", random=mcf.RandomWords(3))
    switched = given.switched(mcf.strategy("dqt-int4"))
    other = made(given.weights(), "dqt-int4", decayed=["w"], random=mcf.RandomWords(3))
    for slot, vectors in other.state._asdict().items():
        for x, y in zip(vectors, getattr(switched.state, slot), strict=True):
            x[...] = y
    other.count = switched.count
    assert bits(trained_on(other, 2)) == bits(trained_on(switched, 2))


def test_exact_numbers_and_grids_take_each_other_s_place(assert_same):
    given = trained("dqt-int4", random=mcf.RandomWords(3))
    exact = given.switched(mcf.strategy("exact"))
    wanted = given.state.parameter[0].tolist()
    assert [to_fraction(x) for x in exact.state.parameter[0]] == [*map(Fraction, wanted)]
    assert [to_fraction(x) for x in exact.state.v[0]] == [*map(Fraction, given.state.v[0].tolist())]
    third = exact.roles.parameter.round(1) / 3
    exact.state.parameter[0][:] = exact.state.parameter[0] + third
    back = exact.switched(mcf.strategy("dqt-ternary"))
    rounded = [round_fraction(to_fraction(x), FLOAT32) for x in exact.state.parameter[0]]
    assert_same(back.state.parameter[0], laid(given, rounded, back.strategy.parameter.grid)[0])


# -- exact numbers -------------------------------------------------------------------------------------------
def test_exact_numbers_are_the_sums_and_are_rounded_once_on_their_way_back():
    optimizer = filled("mcf-3")
    exact = optimizer.switched(mcf.strategy("exact"))
    for found, slot in ((exact.state.parameter, "parameter"), (exact.state.m, "m"), (exact.state.v, "v")):
        wanted = [Fraction(x) for x in summed(getattr(optimizer.state, slot))]
        assert [to_fraction(x) for x in found[0]] == wanted
    tie = exact.state.parameter[0]
    tie[3] = exact.roles.parameter.context.mpf(1) + mcf.arithmetic(None, backend="exact").round(2.0**-8)
    tie[4] = tie[3] + exact.roles.parameter.round(2.0**-300)
    tie[5] = exact.roles.parameter.context.mpf("inf")
    (low,) = exact.switched(mcf.strategy("plain")).represented()
    assert low[3:6].tolist() == [1.0, 1.0 + 2.0**-7, math.inf]
    for found, x in zip(low[6:].tolist(), tie[6:], strict=True):
        assert found == round_fraction(to_fraction(x), mcf.get_format("bfloat16"))
    (few,) = exact.switched(mcf.strategy("exact"), precision=64).represented()
    assert few[4] == 1 + 2.0**-8
    several = replace(mcf.strategy("exact"), parameter=Stored(None, components=2), addition="grow")
    (whole, *rest) = optimizer.switched(several).state.parameter
    assert whole.tolist() == optimizer.switched(mcf.strategy("exact")).state.parameter[0].tolist()
    assert [x.tolist() for x in rest] == [[0.0] * whole.size]


# -- on from there -------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("optimizer", "strategy", "packed"),
    [(*pair, packed) for pair in rotating(STORED) for packed in {False, pair[1] not in UNPACKED}],
)
@pytest.mark.sampled(12, each=False)
@pytest.mark.slow
def test_a_switch_to_the_same_strategy_changes_nothing(optimizer, strategy, packed):
    """Random words go on, too: those of a step are the same."""
    words = {"random": mcf.RandomWords(3), "packed": packed}
    if mcf.STRATEGIES[strategy].addition in ("plain", "feedback"):
        words["rounding"] = "stochastic"
    whole, first = (trained(strategy, hyper=optimizers()[optimizer](), **words) for _ in range(2))
    second = first.switched(whole.strategy)
    assert bits(second) == bits(whole)
    assert bits(trained_on(second, 2)) == bits(trained_on(whole, 2))
    assert bits(first) != bits(second)


@pytest.mark.parametrize("old", [name for name in STORED if name not in UNPACKED])
@pytest.mark.sampled(10, each=False)
@pytest.mark.slow
def test_codes_are_those_of_numbers(old, assert_same, tmp_path):
    """In memory, and in files."""
    plain, packed = (trained(old, packed=packed) for packed in (False, True))
    for place, name in enumerate(STORED):
        if name in UNPACKED:
            continue
        new = mcf.strategy(name)
        switched = packed.switched(new, folder=tmp_path / name if place % 6 == 0 else None)
        for found, wanted in zip(held(switched), held(plain.switched(new)), strict=True):
            assert_same(found, wanted)


@pytest.mark.parametrize("optimizer", optimizers())
def test_every_optimizer_goes_on(optimizer, assert_same):
    """bfloat16 within float32, and back, is what it was; slots that an optimizer lacks stay away."""
    given = trained("plain", hyper=optimizers()[optimizer]())
    wide = given.switched(mcf.strategy("fp32"))
    for found, wanted in zip(held(wide), held(given), strict=True):
        assert_same(found, wanted)
    assert bits(wide.switched(mcf.strategy("plain"))) == bits(given)
    counts = components(given.hyper, mcf.strategy("mcf-2"))
    assert [len(x) for x in given.switched(mcf.strategy("mcf-2")).state] == [*counts.values()]
    trained_on(wide, 1)


def test_the_rounding_of_steps_may_change_alone():
    given = trained("plain")
    upward = trained_on(given.switched(given.strategy, rounding="up"), 1)
    other = made(given.weights(), decayed=["w"], rounding="up")
    for slot, vectors in other.state._asdict().items():
        for x, y in zip(vectors, getattr(given.state, slot), strict=True):
            x[...] = y
    other.count = given.count
    assert bits(trained_on(other, 1)) == bits(upward) != bits(trained_on(given, 1))


def test_what_cannot_take_another_s_place_is_refused(tmp_path):
    given = trained("plain")
    with pytest.raises(ValueError, match="'dqt-int8' keeps weights on a grid, as numbers"):
        trained("plain", packed=True).switched(mcf.strategy("dqt-int8"), folder=tmp_path / "new")
    assert not (tmp_path / "new").exists()
    with pytest.raises(ValueError, match="a switch cannot change packed = False"):
        given.switched(given.strategy, packed=True)
    with pytest.raises(TypeError, match="must be a Strategy"):
        given.switched("plain")
    with pytest.raises(ValueError, match="unknown rounding"):
        given.switched(given.strategy, rounding="upward")
    given.whole.begin("a step")
    with pytest.raises(SpoiltStateError):
        given.switched(given.strategy)
