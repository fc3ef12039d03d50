"""What the tests share: a comparison of bits that names a witness."""

import gc
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import ArrayLike

from mcfsim.compile.choice import COMPILER
from mcfsim.oracle import same

pytest_plugins = ["pytester", "tests.costs", "tests.sampling"]

# Tests that compare bits are not tests of time, on whatever machine.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


def pytest_configure() -> None:
    """Let what the tests start be interrupted, also where they run in a background that ignores Ctrl-C."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # No test cuts the power, so none waits until what it writes is on a disk.
    os.fsync = lambda file: None  # type: ignore[assignment]
    # No thread compiles loops for tests: what they cost would depend on how far it is.
    COMPILER.ask = lambda *given: False  # type: ignore[method-assign]


# -- garbage ----------------------------------------------------------------------------------------------
@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Let the collector of garbage look at a thing once, and at nothing while cases are collected.

    To look through 30,000 cases and all compiled code takes a second, which a run would spend fifty times.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        # Hypothesis asks once who holds its generator, which frozen things do not tell.
        given(st.none())(lambda _: None)()
        gc.freeze()
        gc.callbacks.append(_freeze)
        gc.enable()


def _freeze(phase: str, about: dict[str, int]) -> None:
    if (phase, about["generation"]) == ("stop", 2):
        gc.freeze()


# -- which files and cases are run, see `tests.sampling` ----------------------------------------------------
#: A module whose tests are all slow says so.
_SLOW = re.compile(r"^pytestmark = (?:\[[^\]]*|.*)\bmarks?\.slow\b", re.MULTILINE)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With ``--quick`` do not even import files of slow tests alone."""
    quick = config.getoption("quick") and collection_path.suffix == ".py"
    return True if quick and _SLOW.search(collection_path.read_text()) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is slow or costly with ``--quick``, and begin with what takes minutes."""
    items.sort(key=lambda item: item.get_closest_marker("minutes") is None)
    if config.getoption("quick"):
        slow = {item for item in items for name in ("slow", "costly") if item.get_closest_marker(name)}
        items[:] = [item for item in items if item not in slow]


# -- what tests share ---------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def assert_same() -> Callable[..., None]:
    """Return an assertion that arrays hold the same values, NaNs alike and zeros of equal sign."""

    def check(actual: ArrayLike, expected: ArrayLike, *operands: ArrayLike) -> None:
        actual, expected = np.asarray(actual), np.asarray(expected)
        assert actual.shape == expected.shape
        wrong = np.flatnonzero(~same(actual, expected))
        if wrong.size:
            witness = [np.broadcast_to(x, actual.shape).flat[wrong[0]] for x in operands]
            pytest.fail(
                f"{wrong.size} of {actual.size} differ: {', '.join(map(repr, map(float, witness)))} gives "
                f"{float(actual.flat[wrong[0]])!r}, not {float(expected.flat[wrong[0]])!r}"
            )

    return check


@pytest.fixture(scope="session", autouse=True)
def _environment(pytestconfig: pytest.Config) -> Iterator[None]:
    """Let all processes of all runs keep what they compile in one folder, which `make clean` empties.

    The width that a terminal has set is forgotten, also for the programs that they start.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(pytestconfig.rootpath / "build" / "cache"))
        patch.delenv("COLUMNS", raising=False)
        yield


@pytest.fixture
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return where what is compiled is kept for this test alone, with nothing there."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    return tmp_path
