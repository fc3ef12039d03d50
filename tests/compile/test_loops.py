"""Loops of programs, compiled or as calls of NumPy's functions: the bits of one operation after another."""

from __future__ import annotations

import importlib.util
from contextlib import nullcontext

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.backends.factory import on_blocks
from mcfsim.compile import trace
from mcfsim.compile.llvm_source import AT_ONCE
from mcfsim.compile.loops import Loop
from mcfsim.compile.program import Scalar, flat
from mcfsim.compile.scalars import encoding
from mcfsim.formats import Format, get_format
from mcfsim.kernels.codes_by_kind import codes_by_kind
from mcfsim.oracle import operate_integers
from mcfsim.rounding import DETERMINISTIC, Rounding
from tests.shared.algorithms import every, values, with_scalar

LLVM = importlib.util.find_spec("llvmlite") is not None
needs_llvm = pytest.mark.skipif(not LLVM, reason="LLVM is not installed")
WAYS = [pytest.param("compiled", marks=needs_llvm), "calls"]


def bound_loop(way, loop, scalars):
    numbers = loop.program.reals(scalars)
    return loop.with_numbers(numbers) if way == "compiled" else loop.on_numpy(numbers)


def carried_out(way, loop, given, threads=1, **scalars):
    found = bound_loop(way, loop, scalars).on_threads(threads)
    results = [np.empty(given[0].size, dtype) for dtype in found.results]
    assert found(given, results)
    return results


def compared(assert_same, way, loop, given, threads=1, **scalars):
    """Compare with one operation after another."""
    with np.errstate(all="ignore"):
        expected = loop.program.run(on_blocks, *given, **scalars)
    for mine, other in zip(carried_out(way, loop, given, threads, **scalars), flat(expected), strict=True):
        assert_same(mine, other, *given)


def arrays(fmt, count, size=1500):
    return [values(fmt, size, seed) for seed in range(count)]


@pytest.mark.parametrize("fmt", ["bfloat16", "float16", "float8_e4m3fn", "e5m2", "tf32", "posit8", "int8"])
@pytest.mark.parametrize("mode", DETERMINISTIC)
@pytest.mark.sampled(6)
def test_every_operation_has_the_bits_of_one_at_a_time(fmt, mode, assert_same):
    compared(assert_same, "calls", Loop(trace(every, fmt, mode)), arrays(fmt, 3))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.slow
def test_more_than_is_worked_on_at_once(threads, assert_same):
    loop = Loop(trace(every, "float8_e4m3fn", "up"))
    compared(assert_same, "calls", loop, arrays("float8_e4m3fn", 3, 140_000), threads)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.slow
def test_real_scalars_enter_exactly_and_nothing_is_made_again(way, assert_same):
    loop = Loop(trace(with_scalar, "bfloat16", operands=("a", "b", Scalar("rate"))))
    for rate in (0.9, 1 - 0.9, 3e-4, 1e-8, -160.1):
        compared(assert_same, way, loop, arrays("bfloat16", 2), rate=rate)
    assert 0 < len(loop._written) + len(loop._compiled) < 5


@pytest.mark.parametrize("mode", DETERMINISTIC)
@pytest.mark.parametrize("fmt", ["bfloat16", "float16", "float8_e5m2"])
@pytest.mark.sampled(3)
def test_an_fma_with_a_short_scalar_stays_in_the_carrier(fmt, mode, assert_same):
    fmt, (x, c) = get_format(fmt), arrays(fmt, 2)
    for number in (1.0, -0.75, 0.998046875, 2.0**-16, 2.0**-18, 3.0, 1e3):
        scalar = float(mcf.round_to(number, fmt))
        text = lambda ar, x, c, y=scalar: (ar.fma(x, y, c), ar.fma(y, x, c))  # noqa: E731
        program = trace(text, fmt, mode, operands=("x", "c"))
        wide = x.astype(float), np.full(x.size, scalar), c.astype(float)
        expected = operate_integers("fma", *wide, fmt=fmt, rounding=Rounding(mode))
        for found in carried_out("calls", Loop(program), [x, c]):
            assert_same(found, expected, x, c)
    program = trace(lambda ar, x, c: ar.fma(x, 1.0, c), fmt)
    numbers = (1.0, 2.0**-20, 1e4)
    ways = [encoding(program.uses[0], float(mcf.round_to(x, fmt)), "exact")[0] for x in numbers]
    assert [way == "short" for way in ways] == [True, str(fmt) == "float16", fmt.emax < 100]


def test_scalars_too_far_out_are_refused_and_zeros_of_either_sign_enter_apart():
    program = trace(lambda ar, a, rate: ar.fma(a, rate, a), "bfloat16", operands=("a", Scalar("rate")))
    for rate in (1e300, 2**53 + 1, 1e-200):
        with pytest.raises(ValueError, match="beyond what a compiled loop takes exactly"):
            Loop(program)(np.ones(3, np.float32), rate=rate)
    (use,) = trace(lambda ar, a: ar.mul(a, Scalar("s")), "bfloat16", lines=False).uses
    for zero in (0.0, -0.0, 0.0):
        _, (number,) = encoding(use, zero, "exact")
        assert str(number) == str(zero)


# -- operands, names and sources -----------------------------------------------------------------------------
@needs_llvm
@pytest.mark.slow
def test_other_arrays_are_refused():
    loop, three = Loop(trace(mcf.two_sum, "bfloat16")), np.ones(3, np.float32)
    for other in (np.ones(3), np.ones((2, 2), np.float32), np.ones(6, np.float32)[::2]):
        with pytest.raises((TypeError, ValueError), match="a must be a contiguous vector of float32"):
            loop(other, three)
    with pytest.raises(ValueError, match="b has 4 elements, not 3"):
        loop(three, np.ones(4, np.float32))


def own(source):
    """Return the text of the loop alone, without what Python calls."""
    return source.partition("@loop.call")[0]


@needs_llvm
@pytest.mark.parametrize(
    ("apart", "names"),
    [
        (False, ("i", "r0", "s0", "found", "f32", "out0", "not a name", "lambda")),
        (True, ("x0", "m1", "v1", "entry", "size", "min")),
    ],
)
@pytest.mark.slow
@pytest.mark.costly("LLVM or Triton compiles")
def test_operands_may_be_called_as_what_is_in_a_source(apart, names, assert_same):
    """Of a line as a whole, and of one in parts."""

    def long(ar, total, *x):
        for y in x:
            total = ar.fma(y, 0.1, ar.mul(total, 0.3))  # in binary64
        return total, x[0]

    loop = Loop(trace(long, "float32", operands=names, lines=False), apart=apart)
    assert (own(loop.source(loop.program.reals())).count("br i1 ") > 2) == apart
    for size in (1, AT_ONCE - 1, AT_ONCE, 3 * AT_ONCE + 5):
        compared(assert_same, "compiled", loop, arrays("float32", len(names), size))
    with pytest.raises(ValueError, match="distinct names, not a, a"):
        trace(lambda ar, x, y: ar.sub(x, y), "bfloat16", operands=("a", "a"))


def test_the_source_of_a_loop_has_no_branches_but_its_own():
    rounding = mcf.Rounding("stochastic", random_bits=16)
    source = own(Loop(trace(mcf.two_sum, "bfloat16", rounding)).source([]))
    assert " select i1 " in source
    assert source.count("br i1 ") == 2  # whether there are elements, and whether there are more


def test_a_source_tells_which_operation_each_statement_is_for_and_is_the_same_every_time():
    shown = Loop(trace(mcf.fast_two_sum, "bfloat16")).source([])
    assert shown == Loop(trace(mcf.fast_two_sum, "bfloat16")).source([])
    notes = [line.strip() for line in shown.splitlines() if line.startswith("  ; t")]
    assert [note.split("  ")[0] for note in notes] == [
        *("; t1 = add(a, b)", "; t2 = sub(t1, a)", "; t3 = sub(b, t2)")
    ]
    program = trace(lambda ar, x: ar.mul(x, Scalar("rate")), "bfloat16", lines=False)
    assert Loop(program).source([0.1]) == Loop(program).source([0.3])


# -- codes ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("fmt", ["tf32", "int8", "posit8", "float4_e2m1fn"])
def test_formats_without_short_codes_stay_as_they_are(fmt):
    loop = Loop(trace(every, fmt), packed=True)
    assert not loop.line([]).packed
    assert loop.source([]) == Loop(loop.program).source([])


@needs_llvm
@pytest.mark.slow
def test_checked_packed_loops_tell_integers_that_are_no_codes():
    fmt = Format("gaps", precision=4, emin=-3, emax=0)  # of its seven bits some stand for nothing
    loop = Loop(trace(lambda ar, a, b: ar.neg(a), fmt), checked=True, packed=True)
    integers = np.arange(256)
    for unknown, code in zip(codes_by_kind(fmt).unassigned(integers), integers.astype(np.uint8), strict=True):
        with pytest.raises(ValueError, match="no value") if unknown or code > 127 else nullcontext():
            loop(code[None], np.zeros(1, np.uint8))
