"""Which cases of a test are made: of many alike an ordinary run has few, and a quick run has one.

Marks say it: ``sampled(every, each=True)``, ``exhaustive`` and ``slow``; see `tests/README.md`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any
from zlib import crc32

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="one case of each test, and none of the slow ones")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> Iterator[None]:
    """Leave most `sampled` cases to the exhaustive tests; with ``--quick`` leave one of what is parametrized.

    Cases that an ordinary run leaves out are not even made: they are four times as many as it has.
    """
    test = metafunc.definition
    if metafunc.config.getoption("quick"):
        test.own_markers[:] = [_first_case(x) if x.name == "parametrize" else x for x in test.own_markers]
        return (yield)
    yield
    left = test.get_closest_marker("exhaustive") is not None
    cases = [case for case in metafunc._calls if not (left or is_exhaustive(case))]
    mark = test.get_closest_marker("sampled")
    if mark is not None:
        chosen = _sample(test.nodeid, cases, mark)
        for case in cases:
            if id(case) not in chosen:
                case.marks.append(pytest.mark.exhaustive.mark)
    if metafunc.config.option.markexpr == "not exhaustive":
        # Of no case pytest would make a test without parameters: one stays, to be left out for its mark.
        metafunc._calls = [case for case in cases if not is_exhaustive(case)] or metafunc._calls[:1]


def _first_case(mark: pytest.Mark) -> pytest.Mark:
    names, cases, *rest = mark.args
    return pytest.mark.parametrize(names, list(cases)[:1], *rest, **mark.kwargs | {"ids": None}).mark


def is_exhaustive(case: Any) -> bool:
    """Return whether a case of a test is marked so."""
    return any(mark.name == "exhaustive" for mark in case.marks)


def checksum(test: str, case: Any) -> int:
    """Return what puts cases in an order in which no two parameters go together."""
    return crc32(f"{test}[{case.id}]".encode())


def _sample(test: str, cases: list[Any], mark: pytest.Mark) -> set[int]:
    """Return one of so many cases, the same always, and then more until `each` value of a parameter is met.

    They are told by their `id`: parameters may be arrays.
    """
    (every,), each = mark.args, mark.kwargs.get("each", True)
    most = -(-len(cases) // every)
    chosen, met = set[int](), set[tuple[str, int]]()
    for place, case in enumerate(sorted(cases, key=partial(checksum, test))):
        values = {(name, id(value)) for name, value in case.params.items()}
        if place < most or (each and values - met):
            chosen.add(id(case))
            met |= values
    return chosen
