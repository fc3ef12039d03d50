"""A processor that rounds in another direction than to nearest is refused, wherever work begins."""

import ctypes
import json
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from mcfsim.checks.processor import (
    FlushedSubnormalsError,
    ProcessorError,
    RoundingDirectionError,
    check_processor,
)
from tests.shared import processor_calls
from tests.shared.processor_calls import MODES

CALLS = Path(processor_calls.__file__)

pytestmark = pytest.mark.skipif(
    platform.machine() not in MODES or sys.platform != "linux",
    reason="directions of this machine are unknown",
)


@pytest.mark.slow
def test_every_call_is_refused_in_every_direction_in_each_thread():
    done = subprocess.run([sys.executable, CALLS], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found["wrong"] == {}
    assert found["calls"] >= 120


@pytest.mark.parametrize("direction", ["upward", "downward", "toward zero"])
def test_it_says_which_direction_and_how_to_set_it_right(direction):
    library = ctypes.CDLL(None)
    check_processor()
    library.fesetround(MODES[platform.machine()][direction])
    try:
        with pytest.raises(RoundingDirectionError, match=rf"rounds {direction} and not.*fesetround\(0\)"):
            check_processor()
    finally:
        library.fesetround(0)
    check_processor()
    assert 1.0 + 2.0**-60 == 1.0


def test_whoever_caught_one_of_them_catches_both():
    for kind in (FlushedSubnormalsError, RoundingDirectionError):
        assert issubclass(kind, ProcessorError)
        assert issubclass(kind, FloatingPointError)
        assert issubclass(kind, ValueError)  # so that the command line says it, and exits with 2
