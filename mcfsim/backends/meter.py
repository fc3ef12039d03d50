"""A wrapper for any arithmetic that counts its operations and records what each one lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from mcfsim.arithmetic import Arithmetic, Value


@dataclass
class Tally:
    """What a `Meter` saw of one kind of operation.

    Attributes
    ----------
    calls : int
        How often the operation was called.
    elements : int
        On how many elements in all.
    inexact : int
        Elements whose result differs from the exact one.
    lost : int
        Additions and subtractions whose result is the one operand though the other is not zero.
    max_error : float
        Largest relative error of a finite nonzero result, in units of u = 2**-p of the format.
    """

    calls: int = 0
    elements: int = 0
    inexact: int = 0
    lost: int = 0
    max_error: float = 0.0


class Meter:
    """Any arithmetic, watched: results are those of the wrapped one.

    Exact results are judged in extended or binary64 arithmetic of NumPy: what is inexact and what is lost
    is exact for formats of at most 26 bits, but for a residual below 2**-53 of the result.

    Parameters
    ----------
    arithmetic : Arithmetic
        The one to watch.

    Attributes
    ----------
    tallies : dict of str to Tally
        By operation: ``add``, ``sub``, ``mul``, ``div``, ``sqrt``, ``fma``, ``neg``, ``abs``, ``round``.
    trace : list of str
        The operations in order of their calls.
    """

    def __init__(self, arithmetic: Arithmetic) -> None:
        self.arithmetic = arithmetic
        self.tallies: dict[str, Tally] = {}
        self.trace: list[str] = []

    @property
    def format(self) -> Any:
        """The wrapped arithmetic's format."""
        return self.arithmetic.format

    def __getattr__(self, name: str) -> Any:
        return getattr(self.arithmetic, name)

    def add(self, a: Value, b: Value) -> Value:
        """Return ``a + b``, and count it."""
        return self._watch("add", np.add, a, b)

    def sub(self, a: Value, b: Value) -> Value:
        """Return ``a - b``, and count it."""
        return self._watch("sub", np.subtract, a, b)

    def mul(self, a: Value, b: Value) -> Value:
        """Return ``a * b``, and count it."""
        return self._watch("mul", np.multiply, a, b)

    def div(self, a: Value, b: Value) -> Value:
        """Return ``a / b``, and count it."""
        return self._watch("div", np.divide, a, b)

    def sqrt(self, a: Value) -> Value:
        """Return the square root, and count it."""
        return self._watch("sqrt", np.sqrt, a)

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """Return ``a * b + c``, and count it."""
        return self._watch("fma", lambda x, y, z: x * y + z, a, b, c)

    def neg(self, a: Value) -> Value:
        """Return ``-a``, and count it."""
        return self._watch("neg", np.negative, a)

    def abs(self, a: Value) -> Value:
        """Return ``|a|``, and count it."""
        return self._watch("abs", np.absolute, a)

    def round(self, x: Value) -> Value:
        """Round into the format, and count it."""
        return self._watch("round", np.positive, x)

    def evaluate(self, function: Callable[..., Any], *operands: Any) -> Any:
        """Return ``function(self, *operands)``: whole arrays, so that every operation is seen."""
        return function(self, *operands)

    def _watch(self, name: str, exactly: Callable[..., Any], *operands: Value) -> Value:
        result = getattr(self.arithmetic, name)(*operands)
        tally = self.tallies.setdefault(name, Tally())
        self.trace.append(name)
        tally.calls += 1
        tally.elements += int(np.size(result))
        fmt = self.format
        if fmt is None:
            return result
        with np.errstate(all="ignore"):
            wide = [np.asarray(x, dtype=np.float64) for x in operands]
            exact, rounded = exactly(*wide), np.asarray(result, dtype=np.float64)
            error = rounded - exact
            if name in ("add", "sub"):
                # What binary64 loses itself: the residual of 2Sum.
                a, b = wide if name == "add" else (wide[0], -wide[1])
                part = exact - b
                error -= (a - part) + (b - (exact - part))
                kept = (rounded == a) & (b != 0) | (rounded == b) & (a != 0)
                tally.lost += int(np.count_nonzero(kept & (error != 0)))
            finite = np.isfinite(error)
            tally.inexact += int(np.count_nonzero(finite & (error != 0)))
            relative = np.abs(error / exact)[finite & (exact != 0)]
            if relative.size:
                tally.max_error = max(tally.max_error, float(relative.max()) * 2.0**fmt.precision)
        return result
