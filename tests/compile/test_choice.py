"""When loops are compiled or written for NumPy, by themselves or on demand; and what is done without."""

from __future__ import annotations

import subprocess
import sys
from functools import lru_cache, partial

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.compile import choice, trace
from mcfsim.compile.choice import Loops
from mcfsim.compile.loops import CompilationError, Loop
from mcfsim.compile.objects import is_available
from mcfsim.compile.tracing import record
from mcfsim.multiword.summation import recursive_sum
from mcfsim.optim.sgd import SGD
from mcfsim.random import RandomWords
from mcfsim.storage.buffers import BLOCK
from tests.shared.algorithms import alike, values

needs_llvm = pytest.mark.skipif(not is_available(), reason="LLVM is not installed")
ASKED = [partial(mcf.arithmetic, "bfloat16"), partial(mcf.round_to, [1.0], "bfloat16")]
PROGRAM = trace(mcf.two_sum, "bfloat16", lines=False)
LONG = record(recursive_sum, "bfloat16", operands=(tuple(f"x{i}" for i in range(2000)),))
#: Loops, what asks them for one of so many elements, and how many elements each call has.
PAYING = {
    "compiled": (lambda loops, size, asked: loops.bound_loop(lambda: PROGRAM, size, asked), 10**7),
    "written": (
        lambda loops, size, asked: loops.bound_loop(lambda: PROGRAM, size, asked, by_numpy=True),
        10**5,
    ),
    "folded": (lambda loops, size, asked: loops.fold(lambda: LONG, size, asked), 64),
}


@pytest.mark.parametrize(
    "name", [pytest.param("compiled", marks=needs_llvm), "written", pytest.param("folded", marks=needs_llvm)]
)
@pytest.mark.slow
def test_work_is_prepared_once_that_pays(name, cache_folder, monkeypatch):
    """Whether a loop is there already decides when it pays."""
    monkeypatch.setattr(choice, "_COMPILE", 3e8)
    if name == "written":
        monkeypatch.setattr(choice, "is_available", lambda: False)
    (ask, size), loops, calls = PAYING[name], Loops("exact", checked=name == "folded"), 0
    while ask(loops, size, None) is None:
        calls += 1
        assert calls < 1000
    assert calls >= 3
    assert ask(loops, 1, None) is not None
    assert ask(loops, 10**10, False) is None
    if name == "compiled":
        assert ask(Loops("exact", checked=False), 10**10, None) is not None
        assert ask(Loops("exact", checked=False), 1, True) is not None
        # At once, where enough is to follow.
        for ahead in (10, 10**5):
            fresh = Loops("exact", checked=False)
            assert (fresh.bound_loop(lambda: PROGRAM, 1, None, ahead=ahead) is None) == (ahead < 10**5)
    if name == "written":
        assert loops.bound_loop(lambda: PROGRAM, 10**10, None) is None


@needs_llvm
@pytest.mark.parametrize("steps", [1, 10**6])
def test_an_optimizer_that_knows_of_many_steps_is_compiled_at_the_first(steps, monkeypatch):
    monkeypatch.setattr("mcfsim.optim.step_programs.loops", lru_cache(Loops))
    filled = []
    watched = "mcfsim.optim.optimizer.filling"
    monkeypatch.setattr(watched, lambda loop, *_: lambda block: filled.append(loop))
    optimizer = mcf.Optimizer(SGD(), mcf.strategy("plain"), {"w": np.ones(5000)}, steps=steps)
    optimizer.step(np.ones(5000, np.float32), 1e-3)
    assert len(filled) == (steps > 1)


# -- by NumPy, where nothing is compiled ---------------------------------------------------------------------
@pytest.fixture
def numpy_alone(monkeypatch):
    """Return a function that says how many sources were written, where nothing is compiled, and all pays."""
    choice.loops.cache_clear()  # those that other tests have compiled would be taken
    monkeypatch.setattr(choice, "is_available", lambda: False)
    monkeypatch.setattr(choice, "_WRITE", 0.0)
    monkeypatch.setattr(choice, "_WRITE_DRAWN", 0.0)
    found, written = [], Loop.on_numpy
    monkeypatch.setattr(Loop, "on_numpy", lambda *given: found.append(given) or written(*given))
    return lambda: len(found)


@pytest.mark.parametrize("rounding", ["down", "stochastic"])
@pytest.mark.slow
def test_long_arrays_are_carried_out_as_a_whole(rounding, numpy_alone, assert_same):
    made = []
    for compiled in (None, False):
        words = {"random": RandomWords(5)} if rounding == "stochastic" else {}
        made.append(mcf.arithmetic("float8_e4m3fn", rounding, compiled=compiled, **words))
    a, b = (values("float8_e4m3fn", 2 * BLOCK, seed) for seed in (1, 2))
    for _ in range(2):  # the second takes the streams that follow
        alike(assert_same, *(mcf.two_sum(ar, a, b) for ar in made))
    assert numpy_alone() == 2
    for short in (a[:BLOCK], b[:7]):
        made[0].add(short, short)
    assert numpy_alone() == 2


def test_an_fma_of_other_factors_is_not_that_of_an_error(numpy_alone):
    """The loop for the error of a product loses nothing of it; with other factors it would lose a tie."""
    ar, x = mcf.arithmetic("bfloat16"), np.full(2 * BLOCK, 1 + 2.0**-7, np.float32)
    for other, right in ((0.75, -0.5), (2.0**-60, 193), (2.0**-50, 193)):
        found = ar.evaluate(lambda ar, x, y=other: ar.fma(x, 0.75, ar.neg(ar.mul(x, y))), x)
        assert (found == right * 2.0**-8).all()
    assert numpy_alone() == 3


def test_an_fma_of_another_product_s_factors_is_not_that_of_an_error():
    ar, x = mcf.arithmetic("bfloat16", compiled=True), np.full(2 * BLOCK, 1 + 2.0**-7, np.float32)

    def of(ar, x, factor):
        first, second = ar.mul(x, 2.0**-60), ar.mul(x, 0.75)
        return ar.fma(x, factor, ar.neg(first)), second

    for factor, right in ((2.0**-60, 0), (0.75, 193)):
        assert (ar.evaluate(of, x, factor=factor)[0] == right * 2.0**-8).all()


def test_no_value_is_refused_and_what_is_no_line_left_to_an_operation_at_a_time(numpy_alone):
    ar, a = mcf.arithmetic("bfloat16"), np.ones(2 * BLOCK, np.float32)
    assert np.array_equal(ar.evaluate(lambda ar, x: ar.neg(x) if np.all(np.isfinite(x)) else x, a), -a)
    a[BLOCK + 5] = 1.001
    with pytest.raises(ValueError, match=rf"operand element \({BLOCK + 5},\) = .*1.001.* is no value"):
        mcf.two_sum(ar, a, a)
    assert numpy_alone() == 1


# -- without LLVM, or where it fails -------------------------------------------------------------------------
@pytest.mark.parametrize("call", ASKED)
def test_compiled_is_true_false_or_none_and_without_llvm_not_true(call, monkeypatch):
    for compiled in (1, 0, "yes"):
        with pytest.raises(TypeError, match="True, False or None"):
            call(compiled=compiled)
    monkeypatch.setattr(choice, "is_available", lambda: False)
    with pytest.raises(ImportError, match=r"mcfsim\[jit\]"):
        call(compiled=True)


@pytest.mark.slow
def test_importing_imports_neither_compilers_nor_torch():
    code = """
import sys, mcfsim.cli
mcfsim.arithmetic("bfloat16").add([1.0], [2.0])
print({"numba", "llvmlite", "torch"} & sys.modules.keys())
"""
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "set()"


@needs_llvm
def test_if_llvm_fails_numpy_does_the_work(monkeypatch):
    def fail(*given):
        raise SystemError("no registers")

    monkeypatch.setattr("mcfsim.compile.loops.called", fail)
    loops = Loops("exact", checked=False)
    with pytest.warns(RuntimeWarning, match="two_sum could not be .*: no registers; NumPy does the work"):
        assert loops.bound_loop(lambda: PROGRAM, 10**10, None) is None
    assert loops.bound_loop(lambda: PROGRAM, 10**10, None) is None  # and says so once
    with pytest.raises(CompilationError, match="no registers"):
        loops.bound_loop(lambda: PROGRAM, 1, True)
