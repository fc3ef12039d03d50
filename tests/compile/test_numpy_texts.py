"""Whole texts as calls of NumPy's functions: the bits of an operation at a time, and when that pays."""

from typing import Any

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.backends.factory import on_blocks
from mcfsim.compile import choice, trace
from mcfsim.compile.choice import Loops
from mcfsim.compile.loops import Loop
from mcfsim.compile.program import Scalar, flat
from mcfsim.compile.scalars import uses
from mcfsim.formats import get_format
from mcfsim.kernels.carriers import carrier_of
from mcfsim.random import RandomWords
from mcfsim.rounding import DETERMINISTIC, Rounding, Underflow
from mcfsim.storage.buffers import BLOCK
from tests.oracle.operands import corners

FORMATS = ("bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "tf32", "posit8", "int8")


@pytest.fixture
def numpy_alone(monkeypatch):
    """Return a function that says how many texts were written, where nothing is compiled, and all pays."""
    choice.loops.cache_clear()  # those that other tests have compiled would be taken
    monkeypatch.setattr("mcfsim.compile.choice.is_available", lambda: False)
    monkeypatch.setattr("mcfsim.compile.choice._WRITE", 0.0)
    monkeypatch.setattr("mcfsim.compile.choice._WRITE_DRAWN", 0.0)
    found: list[Any] = []
    written = Loop.on_numpy
    monkeypatch.setattr(Loop, "on_numpy", lambda *given: found.append(given) or written(*given))
    return lambda: len(found)


def every(ar, a, b, c):
    """Each operation once."""
    return (
        *(ar.add(a, b), ar.sub(a, b), ar.mul(a, b), ar.div(a, b), ar.sqrt(a), ar.fma(a, b, c)),
        *(ar.neg(a), ar.abs(a), ar.sign(a)),
    )


def operands(fmt, count, size):
    rng, carrier = np.random.default_rng(1), carrier_of(fmt)
    with np.errstate(all="ignore"):
        some = mcf.round_to(rng.standard_normal(size) * 2.0 ** rng.integers(-9, 9, size), fmt)
        pool = np.concatenate([some.astype(carrier), corners(fmt).astype(carrier)])
    return [rng.choice(pool, size) for _ in range(count)]


def carried_out(program, given, threads=1, **scalars):
    filler = Loop(program).on_numpy([use.number(scalars) for use in uses(program)]).on_threads(threads)
    results = [np.empty(given[0].size, dtype) for dtype in filler.results]
    assert filler(given, results)
    return results


@pytest.mark.parametrize(
    "rounding", [*map(Rounding, DETERMINISTIC), Rounding(underflow=Underflow.FLUSH_INPUTS)]
)
@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.sampled(4)
def test_every_operation_has_the_bits_of_one_at_a_time(fmt, rounding, assert_same):
    fmt = get_format(fmt)
    if rounding.underflow is not Underflow.GRADUAL and fmt.name in ("posit8", "int8"):
        return
    program = trace(every, fmt, rounding)
    given = operands(fmt, 3, 140_000)  # more than is worked on at once, on one thread and on several
    with np.errstate(all="ignore"):
        expected = program.run(on_blocks, *given)
    for threads in (1, 2):
        for mine, other in zip(carried_out(program, given, threads), expected, strict=True):
            assert_same(mine, other)


@pytest.mark.parametrize("mode", ["nearest_even", "up"])
@pytest.mark.parametrize("text", [mcf.two_sum, mcf.two_prod_fma, mcf.fast_two_sum])
@pytest.mark.parametrize("fmt", FORMATS)
def test_error_free_transformations_have_the_bits_of_one_operation_at_a_time(fmt, text, mode, assert_same):
    program = trace(text, fmt, mode)
    given = operands(get_format(fmt), 2, 5000)
    with np.errstate(all="ignore"):
        expected = program.run(on_blocks, *given)
    for mine, other in zip(carried_out(program, given), flat(expected), strict=True):
        assert_same(mine, other)


def test_real_scalars_enter_exactly_and_nothing_is_written_again(assert_same):
    def text(ar, a, b, rate):
        return ar.mul(a, -rate), ar.div(a, rate), ar.add(b, rate), ar.fma(a, rate, b), ar.add(a, 0.1)

    program = trace(text, "bfloat16", operands=("a", "b", Scalar("rate")))
    given, loop = operands(get_format("bfloat16"), 2, 5000), Loop(program)
    for rate in (0.9, 1 - 0.9, 3e-4, 1e-8, -160.1):
        filler = loop.on_numpy([use.number({"rate": rate}) for use in uses(program)])
        results = [np.empty(5000, np.float32) for _ in filler.results]
        filler(given, results)
        with np.errstate(all="ignore"):
            expected = program.run(on_blocks, *given, rate=rate)
        for mine, other in zip(results, expected, strict=True):
            assert_same(mine, other)
    assert len(loop._written) < 5


@pytest.mark.parametrize("rounding", ["nearest_even", "stochastic"])
@pytest.mark.parametrize("strategy", [name for name in mcf.STRATEGIES if name != "exact"])
def test_steps_have_the_bits_of_one_operation_at_a_time(strategy, rounding, numpy_alone, assert_same):
    weights = {"w": np.random.default_rng(0).standard_normal(5000), "b": np.ones(300)}
    words = {"random": RandomWords(3)} if rounding == "stochastic" else {}
    made = [
        mcf.Optimizer(
            mcf.AdamW(), mcf.strategy(strategy), weights, {"w"}, rounding, compiled=compiled, **words
        )
        for compiled in (None, False)
    ]
    for step in range(3):
        gradient = 0.1 * np.random.default_rng(step).standard_normal(5300)
        given = made[0].receive({"w": gradient[:5000], "b": gradient[5000:]})
        assert_same(*(item.step(given, 1e-3) for item in made))
        for mine, other in zip(*(flat(tuple(item.state)) for item in made), strict=True):
            assert_same(mine, other)
    assert numpy_alone() == 3  # the tensor of 300 elements is not worth it


# -- by itself ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("rounding", ["down", "stochastic"])
def test_long_arrays_are_carried_out_as_a_whole(rounding, numpy_alone, assert_same):
    made = []
    for compiled in (None, False):
        words = {"random": RandomWords(5)} if rounding == "stochastic" else {}
        made.append(mcf.arithmetic("float8_e4m3fn", rounding, compiled=compiled, **words))
    a, b = operands(get_format("float8_e4m3fn"), 2, 2 * BLOCK)
    for _ in range(2):  # the second takes the streams that follow
        for mine, other in zip(*(mcf.two_sum(ar, a, b[::-1]) for ar in made), strict=True):
            assert_same(mine, other)
    assert numpy_alone() == 2
    for short in (a[:BLOCK], b[:7]):
        made[0].add(short, short)
    assert numpy_alone() == 2


def test_an_operand_that_is_no_value_is_refused_by_its_place(numpy_alone):
    a = np.ones(2 * BLOCK, np.float32)
    a[BLOCK + 5] = 1.001
    with pytest.raises(ValueError, match=rf"operand element \({BLOCK + 5},\) = .*1.001.* is no value"):
        mcf.two_sum(mcf.arithmetic("bfloat16"), a, a)
    assert numpy_alone() == 1


@pytest.mark.slow
def test_what_has_no_exact_way_is_left_to_an_operation_at_a_time(numpy_alone):
    a = np.ones(2 * BLOCK, np.float32)
    found = mcf.arithmetic("bfloat16").evaluate(lambda ar, x: ar.fma(x, 1e300, x), a)
    assert np.isinf(found).all()


def test_a_text_is_written_once_that_pays(monkeypatch):
    monkeypatch.setattr("mcfsim.compile.choice.is_available", lambda: False)
    program = trace(mcf.two_sum, "bfloat16", lines=False)
    loops, calls = Loops("exact", checked=False), 0
    while loops.filler(lambda: program, 10**5, None, by_numpy=True) is None:
        calls += 1
        assert calls < 1000
    assert calls >= 3
    assert loops.filler(lambda: program, 1, None, by_numpy=True) is not None
    assert loops.filler(lambda: program, 10**10, None) is None
    assert loops.filler(lambda: program, 10**10, False, by_numpy=True) is None
