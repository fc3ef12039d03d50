"""Loops compiled by a thread: taken over in the same bits, and what becomes of the thread."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

pytest.importorskip("llvmlite", reason="LLVM is not installed")

from mcfsim.compile import choice, trace
from mcfsim.compile.choice import Loops
from mcfsim.compile.loops import Loop
from mcfsim.eft import two_sum
from mcfsim.random import RandomWords
from tests.shared.algorithms import values


@pytest.fixture
def compiler(cache_folder, monkeypatch):
    """Return a thread of its own for a test, with nothing compiled and nothing that pays at once."""
    monkeypatch.setattr(choice, "_COMPILE", 1e9)
    made = choice.Compiler()
    monkeypatch.setattr(choice, "COMPILER", made)
    yield made
    made.wait()


@pytest.mark.parametrize("rounding", ["nearest_even", "stochastic"])
@pytest.mark.slow
def test_a_loop_is_taken_over_from_the_thread_that_compiles_it(rounding, compiler, monkeypatch, assert_same):
    held, compiled = threading.Event(), Loop.with_numbers

    def waits(self, numbers):
        if threading.current_thread() is not threading.main_thread():
            assert held.wait(60)
        return compiled(self, numbers)

    monkeypatch.setattr(Loop, "with_numbers", waits)
    loops, program = Loops("exact"), trace(two_sum, "bfloat16", rounding, lines=False)
    ask = {"words": lambda _: {0: RandomWords(1)} if program.drawn else {}}
    for _ in range(100):  # NumPy serves
        assert loops.bound_loop(lambda: program, 10**6, None, **ask) is None
    (account,) = loops._accounts.values()
    assert account.begun == os.getpid()
    held.set()
    compiler.wait()
    bound = loops.bound_loop(lambda: program, 1, None, **ask)
    operands = [values("bfloat16", 500, seed) for seed in (1, 2)]
    found, expected = ([np.empty(500, np.float32) for _ in range(2)] for _ in range(2))
    assert bound(operands, found)
    numpys = account.loop.on_numpy([])
    (numpys.drawing(ask["words"](None)) if program.drawn else numpys)(operands, expected)
    for mine, other in zip(found, expected, strict=True):
        assert_same(mine, other)


def test_what_a_thread_cannot_compile_is_said_once_and_numpy_does_the_work(compiler, monkeypatch):
    def fail(*given):
        raise SystemError("no registers")

    monkeypatch.setattr("mcfsim.compile.loops.called", fail)
    loops, program = Loops("exact"), trace(two_sum, "bfloat16", lines=False)
    for _ in range(20):
        assert loops.bound_loop(lambda: program, 10**7, None) is None
        if next(iter(loops._accounts.values())).begun:
            break
    compiler.wait()
    with pytest.warns(RuntimeWarning, match="two_sum could not be .*: no registers; NumPy does the work"):
        assert loops.bound_loop(lambda: program, 10**7, None) is None
    assert loops.bound_loop(lambda: program, 10**10, None) is None


def test_tasks_are_done_in_order_by_a_thread_that_ends_with_the_last_one(compiler):
    done, held = [], threading.Event()
    assert compiler.ask(lambda: done.append(held.wait(60)))
    for number in range(50):
        assert compiler.ask(lambda number=number: done.append(number))
    assert not done
    held.set()
    compiler.wait()
    assert done == [True, *range(50)]
    assert compiler._thread is None
    assert compiler.ask(lambda: done.append("again"))
    compiler.wait()
    assert done[-1] == "again"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks here")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.slow
def test_a_forked_process_has_a_thread_of_its_own_and_begins_after_a_task(compiler):
    begun, done = threading.Event(), []

    def task():
        begun.set()
        time.sleep(0.2)
        done.append("under way")

    compiler.ask(task)
    compiler.ask(lambda: done.append("not the child's"))
    begun.wait(60)
    child = os.fork()
    if not child:
        own = list(done)
        compiler.ask(lambda: own.append("own"))
        compiler.wait()
        os._exit(own[0] != "under way" or own[-1] != "own")
    assert os.waitpid(child, 0)[1] == 0


_ENDS = """
import threading, time
from mcfsim.compile.choice import COMPILER
begun = threading.Event()
def under_way():
    begun.set()
    time.sleep(.3)
    print("done", flush=True)
COMPILER.ask(under_way)
for _ in range(100):
    COMPILER.ask(lambda: time.sleep(1))
begun.wait()
"""


@pytest.mark.slow
def test_a_program_that_ends_waits_for_the_task_under_way_alone():
    start = time.monotonic()
    said = subprocess.run([sys.executable, "-c", _ENDS], capture_output=True, text=True, check=False)
    assert (said.stdout, said.stderr, said.returncode) == ("done\n", "", 0)
    assert time.monotonic() - start < 50


_WORKS = """
import sys, time, numpy as np, mcfsim as mcf
x = np.random.default_rng(3).standard_normal(2**18).astype("f4")
expected = mcf.round_to(x, "float8_e5m2", compiled=False)
end = time.monotonic() + 60
while "llvmlite" not in sys.modules and time.monotonic() < end:
    assert np.array_equal(mcf.round_to(x, "float8_e5m2"), expected)
for _ in range(50):
    assert np.array_equal(mcf.round_to(x, "float8_e5m2"), expected)
print("llvmlite" in sys.modules, "numba" in sys.modules)
"""


@pytest.mark.slow
def test_long_work_takes_a_compiled_loop_and_imports_no_numba(compiler):
    said = subprocess.run([sys.executable, "-c", _WORKS], capture_output=True, text=True, check=False)
    assert (said.stdout.split(), said.stderr) == (["True", "False"], "")
