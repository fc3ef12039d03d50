"""The two words of a double word."""

from __future__ import annotations

from typing import Any

from mcfsim.protocol import Value

DoubleWord = tuple[Value, Value]


def words(x: Any) -> DoubleWord:
    """Return the high and the low word.

    Raises
    ------
    TypeError
        If x is no tuple: the elements of an array are no words.
    ValueError
        If the tuple has another number of components than two.
    """
    if not isinstance(x, tuple):
        raise TypeError(f"a double word is a tuple (high, low), not of type {type(x).__name__}")
    if len(x) != 2:
        raise ValueError(f"a double word is a tuple (high, low), not one of {len(x)} components")
    return x
