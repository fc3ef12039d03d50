"""Where loops are compiled: arithmetic on arrays, roundings and steps have the bits of NumPy."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
import pytest

pytest.importorskip("numba", reason="Numba is not installed")
pytest.importorskip("platformdirs", reason="platformdirs is not installed")

import mcfsim as mcf
from mcfsim.compile import choice, sources
from mcfsim.compile.choice import Loops
from mcfsim.compile.loops import CompilationError, Loop
from mcfsim.compile.program import Register, Scalar
from mcfsim.compile.recording import trace
from mcfsim.compile.scalars import entering, uses
from mcfsim.formats import get_format
from mcfsim.kernels.carriers import UnsupportedFormatError, carrier_of
from mcfsim.optim.adamw import AdamW
from mcfsim.optim.declaration import Declaration, straight_optimizers
from mcfsim.optim.sgd import SGD
from mcfsim.optim.state import State, Step
from mcfsim.optim.strategies import STRATEGIES
from mcfsim.random import RandomWords
from mcfsim.rounding import DETERMINISTIC, Rounding, Rule
from mcfsim.storage.buffers import BLOCK
from tests.oracle.operands import corners
from tests.shared.kinds import LEADING, STORED, feeding


def pair(fmt, **options):
    return (mcf.arithmetic(fmt, compiled=compiled, **options) for compiled in (True, False))


def some(fmt, shape, seed=0):
    rng = np.random.default_rng(seed)
    with np.errstate(all="ignore"):
        pool = mcf.round_to(rng.standard_normal(2000) * 2.0 ** rng.integers(-12, 12, 2000), fmt)
        pool = np.concatenate([pool, mcf.round_to(corners(get_format(fmt)), fmt)])
    pool = pool.astype(carrier_of(get_format(fmt)))
    return rng.choice(pool, shape)


# -- arithmetic on arrays -----------------------------------------------------------------------------------
@pytest.mark.parametrize("mode", DETERMINISTIC)
@pytest.mark.parametrize("fmt", ["bfloat16", "float16", "float8_e4m3fn", "tf32", "posit8"])
@pytest.mark.sampled(15, each=False)
def test_texts_and_operations_have_the_bits_of_numpy(fmt, mode, assert_same):
    compiled, plain = pair(fmt, rounding=mode)
    a, b = some(fmt, (40, 50)), some(fmt, 50, 1)
    for text in (mcf.two_sum, mcf.fast_two_sum):
        for mine, other in zip(text(compiled, a, b), text(plain, a, b), strict=True):
            assert mine.shape == (40, 50)
            assert_same(mine, other)
    for name, operands in (
        ("mul", (a, b)),
        ("div", (a, 0.3)),
        ("fma", (a, 0.3, b)),
        ("sub", (0.3, a)),
        ("neg", (a,)),
    ):
        assert_same(getattr(compiled, name)(*operands), getattr(plain, name)(*operands))


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x[::2],
        lambda x: x.T,
        lambda x: np.asfortranarray(x),
        lambda x: x.astype(">f4"),
        lambda x: x.astype(np.float64),
        lambda x: x[:0],
        lambda x: x[3, 4],
        lambda x: np.broadcast_to(x[0], (7, 50)),
    ],
)
def test_arrays_of_any_layout(view, assert_same):
    compiled, plain = pair("bfloat16")
    x = view(some("bfloat16", (40, 50)))
    found, expected = compiled.mul(x, x), plain.mul(x, x)
    assert found.shape == expected.shape
    assert_same(found, expected)


def test_several_threads_and_large_arrays(assert_same):
    compiled, plain = pair("bfloat16", threads=2)
    a, b = some("bfloat16", 3 * BLOCK + 7), some("bfloat16", 3 * BLOCK + 7, 1)
    for mine, other in zip(mcf.two_sum(compiled, a, b), mcf.two_sum(plain, a, b), strict=True):
        assert_same(mine, other)


def test_operands_that_are_no_values_are_named():
    ar = mcf.arithmetic("bfloat16", compiled=True)
    x = some("bfloat16", (40, 50))
    x[3, 4] = 1 + 2.0**-20
    with pytest.raises(ValueError, match=r"operand element \(3, 4\) = .* is no value of bfloat16"):
        mcf.two_sum(ar, x, x)
    assert np.isnan(ar.add(np.float32("nan"), 1.0))


@pytest.mark.parametrize("number", [Fraction(1, 3), 10**30, 1e-200, float("inf"), float("nan"), -0.0, 2])
def test_scalars_of_every_kind(number, assert_same):
    compiled, plain = pair("bfloat16")
    a = some("bfloat16", 2000)
    for name in ("add", "sub", "mul", "div"):
        expected = getattr(plain, name)(a, number)
        try:
            assert_same(getattr(compiled, name)(a, number), expected)
        except UnsupportedFormatError:
            assert number in (Fraction(1, 3), 1e-200, 10**30)


def test_scalars_rounded_by_policy(assert_same):
    compiled, plain = pair("bfloat16", scalars="rounded")
    a = some("bfloat16", 2000)
    for name, operands in (("mul", (a, 0.1)), ("add", (a, 0.1)), ("div", (0.1, a)), ("fma", (a, 0.1, a))):
        assert_same(getattr(compiled, name)(*operands), getattr(plain, name)(*operands))


def test_numbers_that_change_between_calls_are_those_of_the_call(assert_same):
    compiled, plain = pair("bfloat16")
    a, rate = some("bfloat16", 2000), [0.1]
    for rate[0] in (0.1, 0.3, 1.0, 1e-3):
        found, expected = (ar.evaluate(lambda ar, x: ar.fma(x, rate[0], x), a) for ar in (compiled, plain))
        assert_same(found, expected)


def test_what_is_no_straight_line():
    x = some("bfloat16", 2000)

    def branching(ar, x):
        return ar.neg(x) if np.all(np.isfinite(x)) else x

    with pytest.raises(TypeError):
        mcf.arithmetic("bfloat16", compiled=True).evaluate(branching, x)
    large = np.resize(x[np.isfinite(x)], 2 * BLOCK)
    np.testing.assert_array_equal(mcf.arithmetic("bfloat16").evaluate(branching, large), -large)


def test_partial_functions_options_and_nested_tuples(assert_same):
    compiled, plain = pair("bfloat16")
    x = tuple(some("bfloat16", 500, seed) for seed in (1, 2))

    def text(ar, pair, y, *, twice):
        high, low = mcf.two_sum(ar, *pair)
        return (high, (ar.add(low, y), ar.add(low, low) if twice else low))

    for twice in (True, False):
        mine = compiled.evaluate(partial(text, twice=twice), x, x[0])
        other = plain.evaluate(text, x, x[0], twice=twice)
        assert_same(mine[0], other[0])
        for a, b in zip(mine[1], other[1], strict=True):
            assert_same(a, b)


def test_backend_numba_is_the_same():
    assert mcf.arithmetic("bfloat16", backend="numba").compiled is True
    assert mcf.arithmetic("bfloat16", backend="numba").like(get_format("float16"), mcf.Rounding()).compiled
    with pytest.raises(ValueError, match="contradicts"):
        mcf.arithmetic("bfloat16", backend="numba", compiled=False)


@pytest.mark.parametrize("compiled", [1, 0, "yes", 1.0])
def test_compiled_is_true_false_or_none(compiled):
    for call in (partial(mcf.arithmetic, "bfloat16"), partial(mcf.round_to, [1.0], "bfloat16")):
        with pytest.raises(TypeError, match="True, False or None"):
            call(compiled=compiled)


def test_without_numba(monkeypatch):
    monkeypatch.setattr(choice, "is_available", lambda: False)
    for call in (partial(mcf.arithmetic, "bfloat16"), partial(mcf.round_to, [1.0], "bfloat16")):
        with pytest.raises(ImportError, match=r"mcfsim\[jit\]"):
            call(compiled=True)
    x = some("bfloat16", 2 * BLOCK)
    np.testing.assert_array_equal(mcf.arithmetic("bfloat16").neg(x), -x)


def test_importing_does_not_import_numba():
    code = (
        "import sys, mcfsim; mcfsim.arithmetic('bfloat16').add([1.0], [2.0]); print('numba' in sys.modules)"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "False"


# -- at random ----------------------------------------------------------------------------------------------
RULES = [Rounding("stochastic", random_bits=bits, rule=rule) for bits in (1, 8, 16, 20, 32) for rule in Rule]


@pytest.mark.parametrize("rounding", RULES, ids=lambda x: f"{x.rule}-{x.random_bits}")
@pytest.mark.parametrize("fmt", ["bfloat16", "float16", "float8_e4m3fn", "float8_e8m0fnu", "posit8", "int8"])
@pytest.mark.sampled(30, each=False)
def test_random_words_are_those_of_numpy(fmt, rounding, assert_same):
    """Word for word, also those of operations that nothing needs, and in the calls that follow."""
    words = RandomWords(2**40 + 3, step=5, stream=7)
    compiled, plain = pair(fmt, rounding=rounding, random=words)
    a, b = (mcf.round_to(np.abs(x), fmt) for x in (some(fmt, (30, 50)), some(fmt, 50, 1)))

    def text(ar, a, b):
        ar.add(a, b)
        return (
            ar.mul(a, b),
            ar.fma(a, 0.3, b),
            ar.neg(ar.abs(b)),
            ar.round(a),
            ar.add(ar.mul(a, b), ar.mul(a, b)),
        )

    for _ in range(2):
        for mine, other in zip(compiled.evaluate(text, a, b), plain.evaluate(text, a, b), strict=True):
            assert_same(mine, other)
        assert compiled.random == plain.random


@pytest.mark.parametrize("rounding", RULES[::2], ids=lambda x: f"{x.rule}-{x.random_bits}")
@pytest.mark.sampled(4, each=False)
def test_arrays_are_rounded_at_random_by_the_same_words(rounding, assert_same):
    x = np.random.default_rng(0).standard_normal((300, 1000)).astype(np.float32)
    for fmt in ("bfloat16", "float8_e5m2", "posit16"):
        for array in (x, x.T, x[::2, 1:]):
            found, expected = (
                mcf.round_to(array, fmt, rounding, random=RandomWords(9), compiled=compiled, threads=2)
                for compiled in (True, False)
            )
            assert_same(found, expected)


def test_words_beyond_the_first_counters(assert_same):
    """The counter's second word: indices from 2**34 on."""
    program = trace(
        lambda ar, x: ar.round(x), "bfloat16", "stochastic", operands=(Register("x", get_format("float32")),)
    )
    x = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    out, start, words = np.empty_like(x), 2**35 + 3, RandomWords(11)
    Loop(program).with_numbers([]).drawing({0: words})([x], [out], start)
    drawn = words.draws(start, 1000, 16)
    assert_same(out, mcf.round_to(x, "bfloat16", "stochastic", random=drawn, compiled=False))


def test_a_refused_text_takes_no_words(assert_same):
    compiled, plain = (
        mcf.arithmetic("bfloat16", "stochastic", random=RandomWords(1), compiled=compiled)
        for compiled in (None, False)
    )
    x = np.abs(some("bfloat16", 2 * BLOCK))

    def text(ar, x):
        return ar.fma(x, 0.3, x), 1.5

    for _ in range(2):
        for mine, other in zip(compiled.evaluate(text, x), plain.evaluate(text, x), strict=True):
            assert_same(mine, other)


@pytest.mark.parametrize("strategy", ["plain", "kahan", "fp32-master", "fp32-optim"])
@pytest.mark.parametrize("name", straight_optimizers())
@pytest.mark.sampled(8, each=False)
@pytest.mark.slow
def test_steps_at_random_have_the_words_of_numpy(name, strategy, assert_same):
    options = {"rounding": "stochastic", "random": RandomWords(3)}
    for updates, states in compared(
        straight_optimizers()[name](), mcf.strategy(strategy), 3, 5000, **options
    ):
        assert_same(*updates)
        for mine, other in zip(*states, strict=True):
            assert_same(mine, other)


# -- when it pays -------------------------------------------------------------------------------------------
def test_a_program_is_compiled_once_that_pays(tmp_path, monkeypatch):
    # Whether a loop is there already decides when it pays.
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    loops, program = Loops("exact", checked=False), trace(mcf.two_sum, "bfloat16", lines=False)
    calls = 0
    while loops.filler(lambda: program, 10**7, None) is None:
        calls += 1
        assert calls < 100
    assert calls >= 3
    assert loops.filler(lambda: program, 1, None) is not None
    assert Loops("exact", checked=False).filler(lambda: program, 10**10, None) is not None
    assert Loops("exact", checked=False).filler(lambda: program, 1, True) is not None
    assert loops.filler(lambda: program, 10**10, False) is None


def test_a_program_is_compiled_at_once_where_enough_is_to_follow():
    program = trace(mcf.two_sum, "bfloat16", lines=False)
    assert Loops("exact", checked=False).filler(lambda: program, 1, None, ahead=10**10) is not None
    loops = Loops("exact", checked=False)
    assert all(loops.filler(lambda: program, 1, None, ahead=10**5) is None for _ in range(100))


@pytest.mark.parametrize("steps", [1, 10**6])
def test_an_optimizer_that_knows_of_many_steps_is_compiled_at_the_first(steps, monkeypatch):
    monkeypatch.setattr(
        "mcfsim.optim.compiled_step.loops", lru_cache(lambda scalars, **options: Loops(scalars, **options))
    )
    filled = []
    monkeypatch.setattr(mcf.Optimizer, "_fill", lambda self, filler, *rest: filled.append(filler))
    optimizer = mcf.Optimizer(AdamW(), mcf.strategy("plain"), {"w": some("bfloat16", 5000)}, steps=steps)
    optimizer.step(some("bfloat16", 5000), 1e-3)
    assert len(filled) == (steps > 1)


def test_zeros_of_either_sign_enter_apart():
    (use,) = uses(trace(lambda ar, a: ar.mul(a, Scalar("s")), "bfloat16", lines=False))
    for zero in (0.0, -0.0, 0.0):
        _, (number,) = entering(use, zero, "exact")
        assert str(number) == str(zero)


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="whoever may write anywhere")
def test_a_cache_that_cannot_be_written_is_made_elsewhere(tmp_path, monkeypatch):
    tmp_path.chmod(0o500)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert not str(sources.folder()).startswith(str(tmp_path))


def test_a_cache_folder_that_is_a_file_is_made_elsewhere(tmp_path, monkeypatch):
    (tmp_path / "mcfsim").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    program = trace(lambda ar, a: ar.mul(a, ar.add(a, 0.7)), "bfloat16", lines=False)
    x = some("bfloat16", 2000)
    np.testing.assert_array_equal(
        Loop(program)(x), program.run(lambda fmt, rounding: mcf.arithmetic(fmt, compiled=False), x)
    )


def test_if_numba_fails_numpy_does_the_work(monkeypatch):
    def fail(*given):
        raise SystemError("no registers")

    monkeypatch.setattr("mcfsim.compile.loops.called", fail)
    loops, program = Loops("exact", checked=False), trace(mcf.two_sum, "bfloat16", lines=False)
    with pytest.warns(
        RuntimeWarning, match="two_sum could not be compiled: no registers; NumPy does the work"
    ):
        assert loops.filler(lambda: program, 10**10, None) is None
    assert loops.filler(lambda: program, 10**10, None) is None  # and says so once
    with pytest.raises(CompilationError, match="no registers"):
        loops.filler(lambda: program, 1, True)


# -- rounding -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("mode", DETERMINISTIC)
@pytest.mark.parametrize("overflow", ["ieee", "saturate"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ">f4"])
@pytest.mark.parametrize(
    "fmt", ["bfloat16", "float16", "float8_e4m3fn", "float8_e5m2fnuz", "posit16", "int4", "tf32"]
)
@pytest.mark.sampled(40)
def test_arrays_are_rounded_as_by_numpy(fmt, dtype, overflow, mode, assert_same):
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 2**63, 3000, dtype=np.uint64).view(np.float64)
    with np.errstate(all="ignore"):
        x = np.concatenate([codes, rng.standard_normal(3000), corners(get_format(fmt))]).astype(dtype)
        found = mcf.round_to(x, fmt, mode, overflow, compiled=True)
        expected = mcf.round_to(x, fmt, mode, overflow, compiled=False)
    assert found.dtype == expected.dtype
    assert_same(found, expected, x)


@pytest.mark.slow
@pytest.mark.parametrize("underflow", ["flush_inputs", "flush_before", "flush_after"])
def test_numbers_that_the_format_has_are_flushed_all_the_same(underflow, assert_same):
    x = corners(get_format("float32")).astype(np.float32)
    found = mcf.round_to(x, "float32", underflow=underflow, compiled=True)
    expected = mcf.round_to(x, "float32", underflow=underflow, compiled=False)
    assert_same(found, expected, x)
    assert (found[np.abs(x) < 2.0**-126] == 0).all()


@pytest.mark.slow
def test_nan_keeps_its_sign():
    """And so its code, in formats that have two."""
    codes = np.array([0x7FC00000, 0xFFC00000, 0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001, 0xFF812345], np.uint32)
    for fmt in ("bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "tf32"):
        for mode in DETERMINISTIC:
            for dtype in (np.float32, np.float64):
                with np.errstate(all="ignore"):  # signalling NaNs
                    x = codes.view(np.float32).astype(dtype)
                    found = mcf.round_to(x, fmt, mode, compiled=True)
                assert np.isnan(found).all()
                np.testing.assert_array_equal(np.signbit(found), np.signbit(x))


def test_rounding_in_place_and_in_parts(assert_same):
    x = np.random.default_rng(0).standard_normal((500, 700)).astype(np.float32)
    expected = mcf.round_to(x, "bfloat16", compiled=False)
    for out, given in ((np.empty_like(x), x), (y := x.copy(), y), (np.empty_like(x.T).T, x)):
        assert mcf.round_to(given, "bfloat16", out=out, compiled=True, threads=2) is out
        assert_same(out, expected)
    assert_same(mcf.round_to(x[::3, ::2], "bfloat16", compiled=True), expected[::3, ::2])


# -- optimizers ---------------------------------------------------------------------------------------------
def start(size, seed):
    """Return parameters with everything in them that a float can be."""
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal(size) * 2.0 ** rng.integers(-30, 5, size)).astype(np.float32)
    hard = [0.0, -0.0, 1e-40, -2e-45, 3e38, -3e38, np.inf, -np.inf, np.nan, 1e-38, 65504, 6e-8]
    x[: 20 * len(hard)] = np.tile(np.array(hard, np.float32), 20)
    return rng.permutation(x)


def compared(hyper, strategy, steps, size, **options):
    whole = {"w": start(size, 1), "b": start(size // 4, 2)}
    made = [
        mcf.Optimizer(hyper, strategy, whole, {"w"}, compiled=compiled, **options)
        for compiled in (True, False)
    ]
    for step in range(steps):
        gradient = {name: start(x.size, 10 * step + len(name)) for name, x in whole.items()}
        with np.errstate(all="ignore"):
            updates = [item.step(item.receive(gradient), 1e-3 / (step + 1)) for item in made]
        yield updates, [flat_state(item.state) for item in made]


def flat_state(state):
    return [x for part in state for x in part]


@pytest.mark.parametrize(("name", "strategy"), feeding(STORED))
@pytest.mark.sampled(24, each=False)
@pytest.mark.slow
def test_steps_have_the_bits_of_numpy(name, strategy, assert_same):
    for updates, states in compared(straight_optimizers()[name](), mcf.strategy(strategy), 3, 5000):
        assert_same(*updates)
        for mine, other in zip(*states, strict=True):
            assert_same(mine, other)


@pytest.mark.parametrize("low", ["bfloat16", "float8_e4m3fn"])
@pytest.mark.parametrize("mode", ["nearest_even", "up"])
@pytest.mark.parametrize("strategy", STORED)
@pytest.mark.parametrize("hyper", [AdamW(weight_decay=0.1), SGD(momentum=0.9)], ids=["adamw", "sgd"])
@pytest.mark.filterwarnings("ignore::mcfsim.VanishingScalarWarning")
@pytest.mark.exhaustive
def test_hundred_steps_of_many_parameters(hyper, strategy, mode, low, assert_same):
    if STRATEGIES[strategy].addition == "grow" and mode != "nearest_even":
        pytest.skip("expansions are for nearest modes")
    if strategy in LEADING and low != "bfloat16":
        pytest.skip("of the low formats here bfloat16 alone leads float32")
    for updates, states in compared(hyper, mcf.strategy(strategy, low), 100, 100_000, rounding=mode):
        assert_same(*updates)
        for mine, other in zip(*states, strict=True):
            assert_same(mine, other)


class Rate(NamedTuple):
    rate: float


@dataclass(frozen=True)
class Odd(Declaration):
    """A step that computes with its scalars, which a text ought not to do."""

    asks: bool = False

    def scalars(self, roles: Any, strategy: Any, step: int, rate: float, *, decayed: bool) -> Any:
        return Rate(rate)

    def entering(self) -> Any:
        return {}

    def step(self, roles: Any, strategy: Any, state: State, gradient: Any, scalars: Any) -> Step:
        ar = roles.parameter
        if self.asks and scalars.rate == 0.5:
            scalars = Rate(-1.0)
        update = ar.mul(ar.round(gradient), 1 - scalars.rate)
        return Step(State((ar.add(state.parameter[0], update),), (), (), ()), update)


@pytest.mark.parametrize("asks", [False, True])
def test_steps_that_compute_with_their_scalars_are_recorded_each_time(asks, assert_same):
    made = [
        mcf.Optimizer(Odd(asks), mcf.strategy("plain"), {"w": start(5000, 1)}, compiled=compiled)
        for compiled in (True, False)
    ]
    for rate in (0.1, 0.5, 0.7):
        gradient = start(5000, int(rate * 10))
        with np.errstate(all="ignore"):
            assert_same(*(item.step(gradient, rate) for item in made))


class Far(Odd):
    """A step that is refused for the tensors without decay."""

    def scalars(self, roles: Any, strategy: Any, step: int, rate: float, *, decayed: bool) -> Any:
        return Rate(rate if decayed else 1e-200)

    def step(self, roles: Any, strategy: Any, state: State, gradient: Any, scalars: Any) -> Step:
        ar = roles.parameter
        update = ar.fma(ar.round(gradient), scalars.rate, state.parameter[0])
        return Step(State((update,), (), (), ()), update)


def test_a_step_that_is_refused_changes_nothing():
    tensors = {"w": np.ones(5000), "b": np.ones(5000)}
    optimizer = mcf.Optimizer(Far(), mcf.strategy("plain"), tensors, {"w"}, compiled=True)
    with pytest.raises(UnsupportedFormatError, match="beyond what a compiled loop takes"):
        optimizer.step(np.ones(10000, np.float32), 0.5)
    assert (optimizer.state.parameter[0] == 1).all()
    assert optimizer.count == 0
    plain = mcf.Optimizer(Far(), mcf.strategy("plain"), tensors, {"w"})
    plain.step(np.ones(10000, np.float32), 0.5)
    assert plain.state.parameter[0][:5000].tolist() == [1.5] * 5000


def test_watched_steps_are_not_compiled():
    optimizer = mcf.Optimizer(mcf.AdamW(), mcf.strategy("plain"), {"w": np.ones(5000)}, compiled=True)
    meter = mcf.Meter(optimizer.roles.moments)
    optimizer.roles = type(optimizer.roles)(*[meter] * 5)
    optimizer.step(optimizer.receive({"w": np.ones(5000)}), 1e-3)
    assert meter.tallies["fma"].elements == 2 * 5000
