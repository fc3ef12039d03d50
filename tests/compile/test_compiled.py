"""What is compiled on demand: arithmetic on arrays, roundings, random words and steps of optimizers.

That compiled code does what a line says is asked in test_emitters, of whole programs in
pytorch/test_random_programs, and of steps in optim/test_ways.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import pytest

pytest.importorskip("llvmlite", reason="LLVM is not installed")

import mcfsim as mcf
from mcfsim.formats import get_format
from mcfsim.kernels.carriers import UnsupportedFormatError
from mcfsim.optim.declaration import Declaration
from mcfsim.optim.state import State, Step
from mcfsim.random import RandomWords
from mcfsim.rounding import Rounding, Rule
from mcfsim.storage.buffers import BLOCK
from tests.oracle.operands import MODES, corners
from tests.shared.algorithms import alike, values


def pair(fmt, **options):
    return [mcf.arithmetic(fmt, compiled=compiled, **options) for compiled in (True, False)]


def both(assert_same, text, *operands, **options):
    """Compare a text on an arithmetic that compiles with the same on one that does not, twice in a row."""
    compiled, plain = pair("bfloat16", **options)
    for _ in range(2):
        with np.errstate(all="ignore"):
            alike(assert_same, *(ar.evaluate(text, *operands) for ar in (compiled, plain)))
        assert compiled.random == plain.random


# -- arithmetic on arrays -----------------------------------------------------------------------------------
VIEWS = {
    "as it is": lambda x: x,
    "every other row": lambda x: x[::2],
    "transposed": lambda x: x.T,
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
    both(assert_same, mcf.two_sum, x, values("bfloat16", 50 if view == "as it is" else x.shape, 1))


@pytest.mark.slow
def test_numbers_that_change_between_calls_are_those_of_the_call(assert_same):
    a, rate = values("bfloat16", 2000), [0.1]
    for rate[0] in (0.1, 0.3):
        both(assert_same, lambda ar, x: ar.fma(x, rate[0], x), a)


@pytest.mark.slow
@pytest.mark.costly("LLVM or Triton compiles")
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
def test_operands_that_are_no_values_are_named_and_what_is_no_straight_line_refused():
    ar, x = mcf.arithmetic("bfloat16", compiled=True), values("bfloat16", (40, 50))
    with pytest.raises(TypeError):
        ar.evaluate(lambda ar, x: ar.neg(x) if np.all(np.isfinite(x)) else x, x)
    with pytest.raises(ValueError, match="returns no values"):
        ar.evaluate(lambda ar, x: (), x)
    assert mcf.arithmetic("bfloat16").evaluate(lambda ar, x: (), np.resize(x, BLOCK + 1)) == ()
    x[3, 4] = 1 + 2.0**-20
    with pytest.raises(ValueError, match=r"operand element \(3, 4\) = .* is no value of bfloat16"):
        mcf.two_sum(ar, x, x)
    assert np.isnan(ar.add(np.float32("nan"), 1.0))


def test_backend_numba_is_the_same():
    ar = mcf.arithmetic("bfloat16", backend="numba")
    assert ar.compiled is ar.like(get_format("float16"), mcf.Rounding()).compiled is True
    with pytest.raises(ValueError, match="contradicts"):
        mcf.arithmetic("bfloat16", backend="numba", compiled=False)


# -- at random ----------------------------------------------------------------------------------------------
RULES = [Rounding("stochastic", random_bits=bits, rule=rule) for bits in (1, 16, 20, 32) for rule in Rule]


@pytest.mark.parametrize("rounding", RULES, ids=lambda x: f"{x.rule}-{x.random_bits}")
@pytest.mark.sampled(12, each=False)
@pytest.mark.slow
@pytest.mark.costly("LLVM or Triton compiles")
def test_random_words_are_those_of_numpy(rounding, assert_same):
    """Word for word, also those of operations that nothing needs, and in the calls that follow."""

    def text(ar, a, b):
        ar.add(a, b)
        return ar.sub(a, 0.3), ar.neg(ar.abs(b)), ar.add(ar.mul(a, b), ar.mul(a, b))

    words = RandomWords(2**40 + 3, step=5, stream=7)
    operands = values("bfloat16", (30, 50)), values("bfloat16", 50, 1)
    both(assert_same, text, *operands, rounding=rounding, random=words)


def test_a_refused_text_takes_no_words(assert_same):
    words = RandomWords(1)
    ars = [mcf.arithmetic("bfloat16", "stochastic", random=words, compiled=x) for x in (None, False)]
    x = np.abs(values("bfloat16", 2 * BLOCK))
    for _ in range(2):
        alike(assert_same, *(ar.evaluate(lambda ar, x: (ar.fma(x, 0.3, x), 1.5), x) for ar in ars))


# -- rounding -----------------------------------------------------------------------------------------------
NANS = np.array([0x7FC00000, 0xFFC00000, 0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001, 0xFF812345], np.uint32)


FLUSHING, SATURATING = Rounding(underflow="flush_after"), Rounding("up", "saturate")


#: Posits and grids have nothing to flush.
ROUNDED = [
    (fmt, rounding)
    for fmt in ("bfloat16", "float16", "e4m3fn", "e5m2fnuz", "posit16", "int4", "tf32", "float32")
    for rounding in (*MODES, *RULES[::4], FLUSHING, SATURATING)
    if rounding is not FLUSHING or get_format(fmt).has_subnormals
]


@pytest.mark.parametrize(("fmt", "rounding"), ROUNDED, ids=str)
@pytest.mark.sampled(45, each=False)
@pytest.mark.slow
def test_arrays_are_rounded_as_by_numpy(fmt, rounding, assert_same):
    """Also where the format has a number, which may be flushed all the same; NaN keeps its sign."""
    dtype = (np.float32, np.float64, np.float16, ">f4")[crc32(f"{fmt} {rounding}".encode()) % 4]
    codes = np.random.default_rng(0).integers(0, 2**63, 6000, dtype=np.uint64).view(np.float64)
    random = RandomWords(9) if rounding.stochastic else None
    with np.errstate(all="ignore"):
        x = np.concatenate([codes, corners(get_format("float32")), NANS.view(np.float32)]).astype(dtype)
        found, expected = (mcf.round_to(x, fmt, rounding, random=random, compiled=y) for y in (True, False))
    assert found.dtype == expected.dtype
    assert_same(found, expected, x)
    assert np.array_equal(np.signbit(found[np.isnan(x)]), np.signbit(x[np.isnan(x)]))


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
class Rate(NamedTuple):
    rate: float


@dataclass(frozen=True)
class Odd(Declaration):
    """A step that computes with its scalars, which a text ought not to do, and asks what they are.

    If it is far, it is refused for the tensors without decay.
    """

    far: bool = False

    def scalars(self, roles: Any, strategy: Any, step: int, rate: float, *, decayed: bool) -> Any:
        return Rate(1e-200 if self.far and not decayed else rate)

    def rounded_hyperparameters(self) -> Any:
        return {}

    def step(self, roles: Any, strategy: Any, state: State, gradient: Any, scalars: Any) -> Step:
        ar, rate = roles.parameter, -1.0 if scalars.rate == 0.7 else scalars.rate
        factor = rate if self.far else 1 - rate
        update = ar.fma(ar.round(gradient), factor, state.parameter[0])
        return Step(State((update,), (), (), ()), update)


@pytest.mark.slow
def test_steps_that_compute_with_their_scalars_are_recorded_each_time(assert_same):
    weights, *gradients = np.random.default_rng(1).standard_normal((4, 5000)).astype(np.float32)
    plain, tensors = mcf.strategy("plain"), {"w": weights}
    made = [mcf.Optimizer(Odd(), plain, tensors, compiled=compiled) for compiled in (True, False)]
    for rate, gradient in zip((0.1, 0.7, 0.5), gradients, strict=True):
        assert_same(*(item.step(gradient, rate) for item in made))


@pytest.mark.slow
def test_a_step_that_is_refused_changes_nothing():
    tensors = {"w": np.ones(5000), "b": np.ones(5000)}
    optimizer = mcf.Optimizer(Odd(far=True), mcf.strategy("plain"), tensors, {"w"}, compiled=True)
    with pytest.raises(UnsupportedFormatError, match="beyond what a compiled loop takes"):
        optimizer.step(np.ones(10000, np.float32), 0.5)
    assert (optimizer.state.parameter[0] == 1).all()
    assert optimizer.count == 0


def test_watched_steps_are_not_compiled():
    optimizer = mcf.Optimizer(mcf.AdamW(), mcf.strategy("plain"), {"w": np.ones(5000)}, compiled=True)
    meter = mcf.Meter(optimizer.roles.moments)
    optimizer.roles = type(optimizer.roles)(*[meter] * 5)
    optimizer.step(optimizer.receive({"w": np.ones(5000)}), 1e-3)
    assert meter.tallies["fma"].elements == 2 * 5000
