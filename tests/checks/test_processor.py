"""No work begins, if the processor does not round to nearest or flushes subnormal numbers."""

import ctypes
import platform
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim import checks as checks
from mcfsim.checks import FlushedSubnormalsError, ProcessorError, RoundingDirectionError
from tests.shared import processor_calls
from tests.shared.processor_calls import MODES

pytestmark = pytest.mark.skipif(
    platform.machine() not in MODES or sys.platform != "linux",
    reason="directions of this machine are unknown",
)
FLUSHES = platform.machine() == "x86_64" and platform.libc_ver()[0] == "glibc"
on_glibc = pytest.mark.skipif(not FLUSHES, reason="only glibc on x86-64 lets a test change these bits")

#: Bits of MXCSR: results (FTZ), operands (DAZ), and both.
SETTINGS = {"FTZ": 0x8000, "DAZ": 0x0040, "FTZ and DAZ": 0x8040}
_MXCSR = 7  # where glibc's fenv_t of x86-64 has it, in words of 32 bits
DIRECTIONS = MODES.get(platform.machine(), {})
OFF = r"torch\.set_flush_denormal\(False\)"
SAID = {
    **{name: rf"rounds {name} and not.*fesetround\(0\)" for name in DIRECTIONS},
    "FTZ": rf"^(?!.*\(DAZ\)).*\(FTZ\).*{OFF}",
    "DAZ": rf"^(?!.*\(FTZ\)).*\(DAZ\).*{OFF}",
    "FTZ and DAZ": rf"\(DAZ\).*\(FTZ\).*{OFF}",
}
STATES = [*DIRECTIONS, *(pytest.param(name, marks=on_glibc) for name in SETTINGS)]


@contextmanager
def processor(state):
    """Let the processor round in a direction or flush, in this thread."""
    library = ctypes.CDLL(None)
    before, changed = (ctypes.c_uint32 * 64)(), (ctypes.c_uint32 * 64)()
    for kept in (before, changed):
        library.fegetenv(kept)
    changed[_MXCSR] |= SETTINGS.get(state, 0)
    done = library.fesetenv(changed) if state in SETTINGS else library.fesetround(DIRECTIONS[state])
    assert done == 0
    try:
        yield
    finally:
        library.fesetenv(before)


@pytest.fixture(scope="module")
def calls():
    """Return public calls, by what they are, each of which works."""
    for part in ("arithmetics", "functions", "work", "torch"):
        getattr(processor_calls, f"add_{part}")()
    found = {
        "native arithmetic": lambda: mcf.arithmetic("bfloat16", backend="native"),
        "exact arithmetic": lambda: mcf.arithmetic(None, backend="exact"),
        **processor_calls.CALLS,
    }
    assert len(found) >= 120
    # Two stand for what is compiled: it is looked at in one place, and compiling takes long.
    stand = ("add of compiled", "two_sum of compiled")
    found = {name: call for name, call in found.items() if not name.endswith("of compiled") or name in stand}
    for call in found.values():
        call()
    return found


def wrong_with(call, state):
    """Return what is wrong with a call in a state; nothing if it is refused as it should be."""
    refusal = FlushedSubnormalsError if state in SETTINGS else RoundingDirectionError
    try:
        with processor(state):
            call()
    except refusal:
        return None
    except Exception as error:
        return repr(error)
    return "it is not refused"


@pytest.mark.parametrize("state", STATES)
@pytest.mark.filterwarnings("ignore:a parameter of shape .* was written to:UserWarning")
@pytest.mark.sampled(3, each=False)
@pytest.mark.slow
def test_every_call_is_refused_in_every_state_in_each_thread(state, calls):
    wrong = {name: wrong_with(call, state) for name, call in calls.items()}
    with ThreadPoolExecutor(1) as pool:
        for name, call in calls.items():
            wrong[f"{name}, in a thread"] = pool.submit(wrong_with, call, state).result()
    assert {name: found for name, found in wrong.items() if found} == {}
    for call in calls.values():  # nothing is spoilt
        call()


@pytest.mark.parametrize("state", STATES)
def test_it_says_which_state_and_what_sets_it_right(state):
    checks.check_processor()
    with processor(state), pytest.raises(ProcessorError, match=SAID[state]):
        checks.check_processor()
    checks.check_processor()
    assert 1.0 + 2.0**-60 == 1.0
    assert np.float32(2.0**-130) * np.float32(0.5) != 0


@pytest.mark.parametrize("kind", [FlushedSubnormalsError, RoundingDirectionError])
def test_whoever_caught_one_of_them_catches_both(kind):
    # The last, so that the command line says it, and exits with 2.
    assert {ProcessorError, FloatingPointError, ValueError} <= set(kind.__mro__)


@on_glibc
@pytest.mark.slow
def test_an_import_while_the_processor_flushes_spoils_nothing():
    code = """
import ctypes, ctypes.util
library = ctypes.CDLL(ctypes.util.find_library("m"))
before, changed = (ctypes.c_uint32 * 8)(), (ctypes.c_uint32 * 8)()
library.fegetenv(before); library.fegetenv(changed)
changed[7] |= 0x8040
library.fesetenv(changed)
import mcfsim as mcf
try:
    mcf.arithmetic("bfloat16")
except mcf.checks.FlushedSubnormalsError:
    print("refused")
library.fesetenv(before)
print(mcf.arithmetic("bfloat16").mul(2.0**-100, 2.0**-33) == 2.0**-133)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["refused", "True"]
