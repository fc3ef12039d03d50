"""What is compiled on demand: arithmetic on arrays, roundings, random words and steps of optimizers."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from itertools import cycle, product
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import pytest

pytest.importorskip("numba", reason="Numba is not installed")
pytest.importorskip("platformdirs", reason="platformdirs is not installed")

import mcfsim as mcf
from mcfsim.compile import sources
from mcfsim.compile.loops import Loop
from mcfsim.compile.recording import trace
from mcfsim.formats import get_format
from mcfsim.kernels.carriers import UnsupportedFormatError
from mcfsim.optim.adamw import AdamW
from mcfsim.optim.declaration import Declaration, straight_optimizers
from mcfsim.optim.sgd import SGD
from mcfsim.optim.state import State, Step
from mcfsim.optim.strategies import STRATEGIES
from mcfsim.random import RandomWords
from mcfsim.rounding import DETERMINISTIC, Overflow, Rounding, Rule
from mcfsim.storage.buffers import BLOCK
from tests.oracle.operands import corners
from tests.shared.kinds import LEADING, STORED, rotating
from tests.shared.texts import alike, values


def pair(fmt, **options):
    return [mcf.arithmetic(fmt, compiled=compiled, **options) for compiled in (True, False)]


def both(assert_same, text, *operands, fmt="bfloat16", **options):
    """Compare a text on an arithmetic that compiles with the same on one that does not."""
    compiled, plain = pair(fmt, **options)
    with np.errstate(all="ignore"):
        alike(assert_same, *(ar.evaluate(text, *operands) for ar in (compiled, plain)))
    assert compiled.random == plain.random


# -- arithmetic on arrays -----------------------------------------------------------------------------------
VIEWS = {
    "as it is": lambda x: x,
    "every other row": lambda x: x[::2],
    "transposed": lambda x: x.T,
    "of columns": lambda x: np.asfortranarray(x),
    "big endian": lambda x: x.astype(">f4"),
    "of binary64": lambda x: x.astype(np.float64),
    "empty": lambda x: x[:0],
    "one": lambda x: x[3, 4],
    "broadcast": lambda x: np.broadcast_to(x[0], (7, 50)),
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.slow
def test_arrays_of_any_layout(view, assert_same):
    x = VIEWS[view](values("bfloat16", (40, 50)))
    compiled, plain = pair("bfloat16")
    found, expected = compiled.mul(x, x), plain.mul(x, x)
    assert found.shape == expected.shape
    assert_same(found, expected)
    both(assert_same, mcf.two_sum, x, values("bfloat16", 50 if view == "as it is" else x.shape, 1))


OPERATIONS = ("add", "sub", "mul", "div")


@pytest.mark.parametrize("number", [float("inf"), float("nan"), -0.0, 2, 0.3])
@pytest.mark.sampled(3, each=False)
@pytest.mark.slow
def test_scalars_of_every_kind(number, assert_same):
    def text(ar, a):
        return [(getattr(ar, name)(a, number), getattr(ar, name)(number, a)) for name in OPERATIONS]

    both(assert_same, lambda ar, a: sum(text(ar, a), ()), values("bfloat16", 2000))


@pytest.mark.parametrize("number", [Fraction(1, 3), 10**30, 1e-200])
@pytest.mark.parametrize("scalars", ["exact", "rounded"])
@pytest.mark.sampled(3, each=False)
@pytest.mark.slow
def test_scalars_far_out_are_taken_exactly_or_refused(number, scalars, assert_same):
    compiled, plain = pair("bfloat16", scalars=scalars)
    a = values("bfloat16", 2000)
    for name in OPERATIONS:
        for operands in ((a, number), (number, a)):
            with np.errstate(all="ignore"):
                expected = getattr(plain, name)(*operands)
            try:
                assert_same(getattr(compiled, name)(*operands), expected)
            except UnsupportedFormatError:
                assert scalars == "exact"


@pytest.mark.slow
def test_numbers_that_change_between_calls_are_those_of_the_call(assert_same):
    a, rate = values("bfloat16", 2000), [0.1]
    for rate[0] in (0.1, 0.3):
        both(assert_same, lambda ar, x: ar.fma(x, rate[0], x), a)


@pytest.mark.slow
@pytest.mark.costly("Numba or Triton compiles")
def test_partial_functions_options_and_nested_tuples(assert_same):
    x = tuple(values("bfloat16", (2, 500)))

    def text(ar, pair, y, *, twice):
        high, low = pair
        return (high, (ar.add(low, y), ar.add(low, low) if twice else low))

    for twice in (True, False):
        both(assert_same, partial(text, twice=twice), x, x[0])


@pytest.mark.slow
def test_several_threads_and_large_arrays(assert_same):
    both(assert_same, mcf.two_sum, *values("bfloat16", (2, 3 * BLOCK + 7)), threads=2)


@pytest.mark.slow
def test_operands_that_are_no_values_are_named():
    ar, x = mcf.arithmetic("bfloat16", compiled=True), values("bfloat16", (40, 50))
    x[3, 4] = 1 + 2.0**-20
    with pytest.raises(ValueError, match=r"operand element \(3, 4\) = .* is no value of bfloat16"):
        mcf.two_sum(ar, x, x)
    assert np.isnan(ar.add(np.float32("nan"), 1.0))


def test_what_is_no_straight_line_is_refused():
    with pytest.raises(TypeError):
        mcf.arithmetic("bfloat16", compiled=True).evaluate(
            lambda ar, x: ar.neg(x) if np.all(np.isfinite(x)) else x, values("bfloat16", 2000)
        )


def test_backend_numba_is_the_same():
    ar = mcf.arithmetic("bfloat16", backend="numba")
    assert ar.compiled is ar.like(get_format("float16"), mcf.Rounding()).compiled is True
    with pytest.raises(ValueError, match="contradicts"):
        mcf.arithmetic("bfloat16", backend="numba", compiled=False)


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="whoever may write anywhere")
def test_a_cache_that_cannot_be_written_is_made_elsewhere(tmp_path, monkeypatch):
    tmp_path.chmod(0o500)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert not str(sources.folder()).startswith(str(tmp_path))


@pytest.mark.slow
def test_a_cache_folder_that_is_a_file_is_made_elsewhere(tmp_path, monkeypatch):
    (tmp_path / "mcfsim").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    program = trace(lambda ar, a: ar.mul(a, ar.add(a, 0.7)), "bfloat16", lines=False)
    x = values("bfloat16", 2000)
    with np.errstate(all="ignore"):
        expected = program.run(lambda fmt, rounding: mcf.arithmetic(fmt, compiled=False), x)
    np.testing.assert_array_equal(Loop(program)(x), expected)


# -- at random ----------------------------------------------------------------------------------------------
RULES = [Rounding("stochastic", random_bits=bits, rule=rule) for bits in (1, 8, 16, 20, 32) for rule in Rule]


@pytest.mark.parametrize("rounding", RULES, ids=lambda x: f"{x.rule}-{x.random_bits}")
@pytest.mark.sampled(15, each=False)
@pytest.mark.slow
@pytest.mark.costly("Numba or Triton compiles")
def test_random_words_are_those_of_numpy(rounding, assert_same):
    """Word for word, also those of operations that nothing needs, and in the calls that follow."""
    known = ("bfloat16", "float16", "float8_e4m3fn", "float8_e8m0fnu", "posit8", "int8")
    fmt = known[RULES.index(rounding) % len(known)]
    words = RandomWords(2**40 + 3, step=5, stream=7)
    compiled, plain = pair(fmt, rounding=rounding, random=words)
    a, b = (mcf.round_to(np.abs(x), fmt) for x in (values(fmt, (30, 50)), values(fmt, 50, 1)))

    def text(ar, a, b):
        ar.add(a, b)
        return (
            *(ar.sub(a, 0.3), ar.neg(ar.abs(b))),
            ar.add(ar.mul(a, b), ar.mul(a, b)),
        )

    for _ in range(2):
        alike(assert_same, *(ar.evaluate(text, a, b) for ar in (compiled, plain)))
        assert compiled.random == plain.random


def test_a_refused_text_takes_no_words(assert_same):
    words = {"rounding": "stochastic", "random": RandomWords(1)}
    compiled, plain = (mcf.arithmetic("bfloat16", compiled=x, **words) for x in (None, False))
    x = np.abs(values("bfloat16", 2 * BLOCK))
    for _ in range(2):
        alike(
            assert_same, *(ar.evaluate(lambda ar, x: (ar.fma(x, 0.3, x), 1.5), x) for ar in (compiled, plain))
        )


# -- rounding -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("rounding", [*map(Rounding, DETERMINISTIC), *RULES[::4]], ids=lambda x: x.mode)
@pytest.mark.parametrize(
    "fmt", ["bfloat16", "float16", "float8_e4m3fn", "float8_e5m2fnuz", "posit16", "int4", "tf32"]
)
@pytest.mark.sampled(35, each=False)
@pytest.mark.slow
def test_arrays_are_rounded_as_by_numpy(fmt, rounding, assert_same):
    place = crc32(f"{fmt} {rounding}".encode())
    dtype = (np.float32, np.float64, np.float16, ">f4")[place % 4]
    overflow = (Overflow.IEEE, Overflow.SATURATE)[place // 4 % 2]
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 2**63, 3000, dtype=np.uint64).view(np.float64)
    random = RandomWords(9) if rounding.stochastic else None
    with np.errstate(all="ignore"):
        x = np.concatenate([codes, rng.standard_normal(3000), corners(get_format(fmt))]).astype(dtype)
        given = x, fmt, replace(rounding, overflow=overflow)
        found, expected = (mcf.round_to(*given, random=random, compiled=y) for y in (True, False))
    assert found.dtype == expected.dtype
    assert_same(found, expected, x)


@pytest.mark.parametrize("underflow", ["flush_inputs", "flush_before", "flush_after"])
@pytest.mark.slow
def test_numbers_that_the_format_has_are_flushed_all_the_same(underflow, assert_same):
    x = corners(get_format("float32")).astype(np.float32)
    found, expected = (mcf.round_to(x, "float32", underflow=underflow, compiled=y) for y in (True, False))
    assert_same(found, expected, x)
    assert (found[np.abs(x) < 2.0**-126] == 0).all()


@pytest.mark.parametrize("fmt", ["bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "tf32"])
@pytest.mark.sampled(5, each=False)
@pytest.mark.slow
def test_nan_keeps_its_sign(fmt):
    """And so its code, in formats that have two."""
    codes = np.array([0x7FC00000, 0xFFC00000, 0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001, 0xFF812345], np.uint32)
    for mode, dtype in (("nearest_even", np.float32), ("to_odd", np.float64)):
        with np.errstate(all="ignore"):  # signalling NaNs
            x = codes.view(np.float32).astype(dtype)
            found = mcf.round_to(x, fmt, mode, compiled=True)
        assert np.isnan(found).all()
        np.testing.assert_array_equal(np.signbit(found), np.signbit(x))


@pytest.mark.parametrize("mode", ["nearest_even", "stochastic"])
@pytest.mark.slow
def test_rounding_in_place_and_in_parts(mode, assert_same):
    x, y = np.random.default_rng(0).standard_normal((2, 500, 700)).astype(np.float32)
    random = {"random": RandomWords(9)} if mode == "stochastic" else {}
    expected = mcf.round_to(x, "bfloat16", mode, compiled=False, **random)
    for out, given in ((np.empty_like(x), x), (y, y), (np.empty_like(x.T).T, x)):
        given[...] = x
        assert mcf.round_to(given, "bfloat16", mode, out=out, compiled=True, threads=2, **random) is out
        assert_same(out, expected)
    parts = (mcf.round_to(x[::3, ::2], "bfloat16", mode, compiled=y, **random) for y in (True, False))
    assert_same(*parts)


# -- optimizers ---------------------------------------------------------------------------------------------
def start(size, seed):
    """Return parameters with everything in them that a float can be."""
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal(size) * 2.0 ** rng.integers(-30, 5, size)).astype(np.float32)
    hard = [0.0, -0.0, 1e-40, -2e-45, 3e38, -3e38, np.inf, -np.inf, np.nan, 1e-38, 65504, 6e-8]
    x[: 20 * len(hard)] = np.tile(np.array(hard, np.float32), 20)
    return rng.permutation(x)


def compared(assert_same, hyper, strategy, steps, size, **options):
    """Take steps by compiled loops and by NumPy, and compare updates and states."""
    whole = {"w": start(size, 1), "b": start(size // 4, 2)}
    made = [
        mcf.Optimizer(hyper, strategy, whole, {"w"}, compiled=compiled, **options)
        for compiled in (True, False)
    ]
    for step in range(steps):
        gradient = {name: start(x.size, 10 * step + len(name)) for name, x in whole.items()}
        with np.errstate(all="ignore"):
            assert_same(*(item.step(item.receive(gradient), 1e-3 / (step + 1)) for item in made))
        for mine, other in zip(*([x for part in item.state for x in part] for item in made), strict=True):
            assert_same(mine, other)


AT_RANDOM = {"rounding": "stochastic", "random": RandomWords(3)}


@pytest.mark.parametrize(
    ("name", "strategy", "options"),
    [
        *((*pair, {}) for pair in rotating(STORED)),
        *((*pair, AT_RANDOM) for pair in rotating(["plain", "kahan", "fp32-master", "fp32-optim"])),
    ],
)
@pytest.mark.exhaustive
def test_steps_have_the_bits_of_numpy(name, strategy, options, assert_same):
    compared(assert_same, straight_optimizers()[name](), mcf.strategy(strategy), 3, 3000, **options)


def every_stored():
    """Yield each strategy with an optimizer, a low format and a mode in turn."""
    hypers = (AdamW(weight_decay=0.1), SGD(momentum=0.9))
    turns = cycle(product(hypers, ("bfloat16", "float8_e4m3fn"), ("nearest_even", "up")))
    for strategy, (hyper, low, mode) in zip(STORED, turns, strict=False):
        # LLVM takes 10 GB for the 7,600 verbs of mcf-3, which NumPy's calls carry out in test_choice.
        if strategy != "mcf-3":
            nearest, leads = STRATEGIES[strategy].addition == "grow", strategy in LEADING
            yield strategy, hyper, "bfloat16" if leads else low, "nearest_even" if nearest else mode


@pytest.mark.parametrize(("strategy", "hyper", "low", "mode"), [*every_stored()], ids=str)
@pytest.mark.filterwarnings("ignore::mcfsim.VanishingScalarWarning")
@pytest.mark.exhaustive
def test_many_steps_of_many_parameters(strategy, hyper, low, mode, assert_same):
    compared(assert_same, hyper, mcf.strategy(strategy, low), 20, 20_000, rounding=mode)


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
@pytest.mark.slow
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


@pytest.mark.slow
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
