"""Loops compiled by another process: taken over in the same bits, and what becomes of that process."""

from __future__ import annotations

import subprocess
import sys
import time

import numpy as np
import pytest

pytest.importorskip("numba", reason="Numba is not installed")

from mcfsim.compile import ahead, choice, sources, trace, words
from mcfsim.compile.choice import Loops
from mcfsim.eft import two_sum
from tests.shared.texts import values


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    """Return a process of its own for a test, with nothing compiled."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made = ahead.Compiler()
    for module in (choice, sys.modules["mcfsim.compile.loops"]):
        monkeypatch.setattr(module, "COMPILER", made)
    yield made
    if made.is_running():
        made._process.kill()
    if made._process is not None:
        made._process.stdin.close()
        made._process.wait()


def waited(condition):
    """Wait until a condition holds, a minute at most; return whether it does."""
    for _ in range(600):
        if condition():
            return True
        time.sleep(0.1)
    return False


@pytest.mark.parametrize("rounding", ["nearest_even", "stochastic"])
@pytest.mark.costly("another process imports Numba and compiles")
@pytest.mark.slow
def test_a_loop_is_taken_over_from_the_process_that_compiles_it(rounding, compiler, assert_same):
    loops, program = Loops("exact"), trace(two_sum, "bfloat16", rounding, lines=False)
    ask = {"words": lambda _: dict.fromkeys(program.drawn)}
    assert loops.bound_loop(lambda: program, 10**9, None, **ask) is None
    assert compiler.is_running()
    (account,) = loops._accounts.values()
    assert account.begun
    assert loops.bound_loop(lambda: program, 10**10, None, **ask) is None  # it compiles nothing itself
    assert waited(lambda: account.loop.is_saved([]))
    if program.drawn:
        assert sources.is_saved(words.source_of_words(), *words.FIRST_CALL)
        return
    bound = loops.bound_loop(lambda: program, 10**10, None)
    operands = [values("bfloat16", 500, seed) for seed in (1, 2)]
    found, expected = ([np.empty(500, np.float32) for _ in range(2)] for _ in range(2))
    assert bound(operands, found)
    account.loop.on_numpy([])(operands, expected)
    for mine, other in zip(found, expected, strict=True):
        assert_same(mine, other)


@pytest.mark.costly("another process imports Numba")
@pytest.mark.slow
def test_the_process_ends_with_whoever_asks_and_at_what_it_cannot_compile(compiler):
    text, first = words.source_of_words(), words.FIRST_CALL
    assert not compiler.is_running()
    assert compiler.ask(text, *first)
    begun = compiler._process
    begun.stdin.close()
    assert begun.wait(60) == 0
    assert sources.is_saved(text, *first)  # what it was asked for it finishes
    assert compiler.ask("nonsense +", *first)
    assert compiler._process is not begun
    assert waited(lambda: not compiler.is_running())
    assert compiler._process.returncode == 1
    compiler._owner = -1
    compiler.ask(text, *first)
    assert compiler.is_running()


def test_where_no_process_can_be_begun_nothing_is(compiler, monkeypatch):
    monkeypatch.setattr("multiprocessing.spawn.get_executable", lambda: "/nowhere/python")
    assert not compiler.ask("text", "loop", np.int64(0))
    assert not compiler.is_running()
    loops, program = Loops("exact"), trace(two_sum, "bfloat16", lines=False)
    assert loops.bound_loop(lambda: program, 4 * 10**7, None) is None
    (account,) = loops._accounts.values()
    assert not account.begun


_WORKS = """
import sys, time, numpy as np, mcfsim as mcf
x = np.random.default_rng(3).standard_normal(2**20).astype("f4")
expected = mcf.round_to(x, "float8_e5m2", compiled=False)
end = time.monotonic() + 60
while "llvmlite" not in sys.modules and time.monotonic() < end:
    assert np.array_equal(mcf.round_to(x, "float8_e5m2"), expected)
assert np.array_equal(mcf.round_to(x, "float8_e5m2"), expected)
print("llvmlite" in sys.modules, "numba" in sys.modules)
"""


@pytest.mark.costly("a process works until another one has compiled its loop")
@pytest.mark.slow
def test_long_work_takes_a_compiled_loop_and_imports_no_numba(compiler):
    said = subprocess.run([sys.executable, "-c", _WORKS], capture_output=True, text=True, check=False)
    assert (said.stdout.split(), said.stderr) == (["True", "False"], "")
