"""What tests cost in processor time: a limit for each case, and a table.

A case of the ordinary run that takes more than `LIMIT` seconds fails, unless ``@pytest.mark.costly(reason)``
says why it may. What cases share (fixtures of a module or of the run) is counted apart.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from pathlib import PurePath
from typing import Any

import pytest

#: Seconds of a processor, children included; more where that is slow or shared with other work.
LIMIT = 2.0
#: A case that imports more modules than these pays for all that follow it.
IMPORTED = 500
_BEGUN = pytest.StashKey[float]()
_ENDED = pytest.StashKey[float]()
_SHARED = pytest.StashKey[Counter[str]]()
_MODULES = pytest.StashKey[int]()
_SLOWNESS = pytest.StashKey[float]()


def pytest_addoption(parser: pytest.Parser) -> None:
    listed, limited = "list what folders cost, and the N dearest tests", "processor's seconds a case may take"
    parser.addoption("--costs", type=int, default=0, metavar="N", help=listed)
    parser.addoption("--cost-limit", type=float, default=LIMIT, help=limited)


def cpu_seconds() -> float:
    """Return the time of processors that this process took, and those that it started and waited for."""
    return sum(os.times()[:4])


def _slowness() -> float:
    """Return how many times slower the machine is now than where the limit was chosen; at least 1.

    Fractions are added, which calls and allocates as the oracle does: work beside it slows both down alike.
    Processes that take turns on a processor also take its caches from each other.
    """
    begun = time.process_time()
    for _ in range(400):
        sum((Fraction(i, i + 1) for i in range(1, 40)), Fraction(0))
    turns = os.getloadavg()[0] / (os.cpu_count() or 1)
    return max(1.0, (time.process_time() - begun) / 0.03) * max(1.0, turns)


def pytest_sessionstart(session: pytest.Session) -> None:
    session.stash[_SLOWNESS] = _slowness()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        mark = item.get_closest_marker("costly")
        if mark is not None and not (len(mark.args) == 1 and isinstance(mark.args[0], str) and mark.args[0]):
            raise pytest.UsageError(f"{item.nodeid} is costly without a reason")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> None:
    item.session.stash[_BEGUN] = cpu_seconds()
    item.session.stash[_SHARED] = Counter()
    item.session.stash[_MODULES] = len(sys.modules)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: Any, request: pytest.FixtureRequest) -> Iterator[None]:
    """Count apart what several cases share; a fixture that another one needs is counted once."""
    stash = request.session.stash
    before, begun, counted = cpu_seconds(), stash[_BEGUN], stash[_SHARED].total()
    result = yield
    if fixturedef.scope != "function":
        spent = cpu_seconds() - before
        stash[_BEGUN] = begun + spent
        of_others = stash[_SHARED].total() - counted
        stash[_SHARED][f"{fixturedef.baseid or 'tests'}::{fixturedef.argname}"] += spent - of_others
    return result


def pytest_fixture_post_finalizer(fixturedef: Any, request: pytest.FixtureRequest) -> None:
    """Let a case end with its own fixtures; what several cases share goes after them, and is nobody's."""
    if fixturedef.scope == "function":
        request.session.stash[_ENDED] = cpu_seconds()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report: Any = yield
    stash = item.session.stash
    if call.when == "teardown":
        spent = stash[_ENDED] - stash[_BEGUN]
        stash[_SHARED]["tests::what is left at the end"] += cpu_seconds() - stash[_ENDED]
        report.user_properties += [("CPU seconds", spent), ("CPU seconds shared", dict(stash[_SHARED]))]
        limit = item.config.getoption("cost_limit")
        may = any(item.get_closest_marker(name) for name in ("costly", "exhaustive", "gpu"))
        # In a quick run few cases share what a first one imports and compiles.
        may = may or item.config.getoption("quick", default=False)
        may = may or len(sys.modules) - stash[_MODULES] > IMPORTED
        # Work beside a case may have ended with it: the slower of two measurements counts.
        if spent > limit and not may and report.passed and spent > limit * max(_slowness(), stash[_SLOWNESS]):
            report.outcome = "failed"
            report.longrepr = (
                f"{item.nodeid} took {spent:.1f} seconds of a processor; {limit:g} are allowed. "
                "Take less work for the same question, leave most cases to the exhaustive tests (sampled), "
                "or say by @pytest.mark.costly(reason) why it must cost so much."
            )
    else:
        stash[_ENDED] = cpu_seconds()
    return report


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """List what each folder costs, then the tests whose cases cost most, all together."""
    if not (most := config.getoption("costs")):
        return
    costs, counts, folders, cases = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    for report in itertools.chain.from_iterable(terminalreporter.stats.values()):
        if getattr(report, "when", None) != "teardown":
            continue
        told = dict(report.user_properties)
        test = report.nodeid.partition("[")[0]
        folder = "/".join(PurePath(test.partition("::")[0]).parts[:-1][:2])
        counts[test] += 1
        cases[folder] += 1
        for name, seconds in [(test, told["CPU seconds"]), *told["CPU seconds shared"].items()]:
            costs[name] += seconds
            folders[folder] += seconds
    slow = f"; this machine is {_slowness():.2f} times slower than the one of the limits"
    terminalreporter.section(f"CPU seconds: {costs.total():.0f} in all{slow}")
    for folder, seconds in folders.most_common():
        terminalreporter.write_line(f"{seconds:7.1f} {cases[folder]:6d} {folder}")
    terminalreporter.write_line("")
    for test, seconds in costs.most_common(most):
        terminalreporter.write_line(f"{seconds:7.1f} {counts[test]:6d} {test}")
