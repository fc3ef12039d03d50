"""A processor that is set to flush subnormal numbers is refused, wherever work begins."""

import ctypes
import ctypes.util
import platform
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.checks.processor import FlushedSubnormalsError, check_processor
from mcfsim.optim.optimizer import Optimizer

#: Bits of MXCSR: results (FTZ), operands (DAZ), and both.
SETTINGS = {"FTZ": 0x8000, "DAZ": 0x0040, "FTZ and DAZ": 0x8040}
_MXCSR = 7  # where glibc's fenv_t of x86-64 has it, in words of 32 bits

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64" or platform.libc_ver()[0] != "glibc",
    reason="only glibc on x86-64 lets a test change these bits",
)


@contextmanager
def flushing(bits):
    """Let the processor flush, in this thread."""
    library = ctypes.CDLL(ctypes.util.find_library("m"))
    before, changed = (ctypes.c_uint32 * 8)(), (ctypes.c_uint32 * 8)()
    library.fegetenv(before)
    library.fegetenv(changed)
    changed[_MXCSR] |= bits
    library.fesetenv(changed)
    try:
        yield
    finally:
        library.fesetenv(before)


X = np.float32([1.0, 2.0**-130])
AR = mcf.arithmetic("bfloat16")
PROBLEM = mcf.get_problem("quadratic", dimension=4, condition_number=10.0)
OPTIMIZER = Optimizer(mcf.AdamW(), mcf.strategy("plain", "bfloat16"), {"x": np.ones(4, np.float32)})
WORK = {
    "arithmetic": lambda: mcf.arithmetic("bfloat16"),
    "native arithmetic": lambda: mcf.arithmetic("bfloat16", backend="native"),
    "exact arithmetic": lambda: mcf.arithmetic(None, backend="exact"),
    "an operation": lambda: AR.add(X, X),
    "scalars": lambda: AR.add(1.0, 2.0),
    "an algorithm": lambda: mcf.two_sum(AR, X, X),
    "round": lambda: AR.round(0.1),
    "round_to": lambda: mcf.round_to(X, "bfloat16"),
    "round_to a number": lambda: mcf.round_to(2.0**-130, "bfloat16"),
    "encode": lambda: mcf.codec.encode(X, "bfloat16"),
    "quantize": lambda: mcf.quantize(X, "mxfp8_e4m3"),
    "matmul": lambda: mcf.dot(X, X, mcf.Accumulator("bfloat16", block=1)),
    "optimizer": lambda: OPTIMIZER.step(np.ones(4, np.float32), 0.1),
    "simulate": lambda: mcf.simulate(PROBLEM, steps=1),
    "verify": lambda: mcf.verify("two_sum", "e3m2"),
}


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", WORK)
def test_work_is_refused_while_the_processor_flushes(name, setting):
    with flushing(SETTINGS[setting]), pytest.raises(FlushedSubnormalsError, match=setting[:3]):
        WORK[name]()
    WORK[name]()


def test_it_says_which_setting_and_what_switches_it_off():
    check_processor()
    for setting, bits in SETTINGS.items():
        with flushing(bits), pytest.raises(FlushedSubnormalsError) as caught:
            check_processor()
        assert "torch.set_flush_denormal(False)" in str(caught.value)
        for name in ("FTZ", "DAZ"):
            assert (f"({name})" in str(caught.value)) == (name in setting)
        assert isinstance(caught.value, ValueError)  # so that the command line says it, and exits with 2


def test_each_thread_has_a_setting_of_its_own():
    def flushes():
        with flushing(SETTINGS["FTZ and DAZ"]):
            inside.set()
            done.wait(10)

    inside, done = threading.Event(), threading.Event()
    thread = threading.Thread(target=flushes)
    thread.start()
    inside.wait(10)
    check_processor()
    assert AR.add(X, X)[1] == 2.0**-129
    done.set()
    thread.join()
    with ThreadPoolExecutor(1) as pool:

        def work():
            with flushing(SETTINGS["DAZ"]):
                AR.add(X, X)

        with pytest.raises(FlushedSubnormalsError):
            pool.submit(work).result()


def test_a_unit_of_a_verification_looks_in_its_own_thread():
    from mcfsim.rounding import Rounding
    from mcfsim.theorems import THEOREMS
    from mcfsim.theorems.check import Check

    check = Check(THEOREMS["two_sum"], mcf.get_format("e3m2"), Rounding())
    check(0, 2)
    with flushing(SETTINGS["FTZ"]), pytest.raises(FlushedSubnormalsError):
        check(0, 2)


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
except mcf.checks.processor.FlushedSubnormalsError:
    print("refused")
library.fesetenv(before)
print(mcf.arithmetic("bfloat16").mul(2.0**-100, 2.0**-33) == 2.0**-133)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["refused", "True"]
