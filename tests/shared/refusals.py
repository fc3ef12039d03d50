"""Tables of calls that are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Row = tuple[Callable[..., Any], tuple[Any, ...], type[Exception], str | None]


def refused(
    error: type[Exception], message: str | None, function: Callable[..., Any], *given: Any
) -> list[Row]:
    """Return rows of a table: the function on each that is given, a tuple of arguments or a single one."""
    return [(function, x if isinstance(x, tuple) else (x,), error, message) for x in given]


def refusals(*tables: list[Row]) -> Any:
    """Return the mark of a test that takes each row as one parameter."""
    return pytest.mark.parametrize("row", [row for table in tables for row in table], ids=lambda row: row[3])


def check(row: Row) -> None:
    """Make a call, which must raise its error with its message."""
    function, given, error, message = row
    with pytest.raises(error, match=message):
        function(*given)
