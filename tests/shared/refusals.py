"""Tables of calls that are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Rows = list[tuple[Callable[..., Any], tuple[Any, ...], type[Exception], str | None]]


def refused(error: type[Exception], message: str | None, function: Callable[..., Any], *given: Any) -> Rows:
    """Return rows of a table: the function on each that is given, a tuple of arguments or a single one."""
    return [(function, x if isinstance(x, tuple) else (x,), error, message) for x in given]


def refusals(*tables: Rows) -> Any:
    """Return the mark of a test that takes each table as one parameter."""
    return pytest.mark.parametrize("rows", tables, ids=lambda rows: rows[0][3])


def check(rows: Rows) -> None:
    """Make calls, each of which must raise its error with its message."""
    for function, given, error, message in rows:
        with pytest.raises(error, match=message):
            function(*given)
