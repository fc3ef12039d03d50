"""A wrapper around any arithmetic that counts its operations and measures their rounding errors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.codec import on_host
from mcfsim.formats import Format, Grid
from mcfsim.kernels import native, real_numbers
from mcfsim.kernels.real_numbers import exact_or_binary64, is_scalar, signum
from mcfsim.protocol import Arithmetic, RoundedNumber, Value
from mcfsim.rounding import Rounding


@dataclass
class OperationTally:
    """Counts of a `Meter` for one kind of operation.

    Counts other than `calls` and `elements` cover only elements whose operands are finite and whose exact
    result is a real number. They leave out infinite and NaN operands, divisions by zero and square roots of
    negative numbers.

    Attributes
    ----------
    calls : int
        Number of calls.
    elements : int
        Number of elements in all calls.
    inexact : int
        Elements whose result differs from the exact one, overflows and underflows included.
    overflow : int
        Elements whose result is infinite, or NaN in a format without infinity, or saturated: the result is an
        end of the format's range, and the exact result exceeds it by at least one unit in its last place.
    underflow : int
        Elements whose result is zero although the exact result is not.
    lost : int
        Additions and subtractions whose result is one operand although the other is not zero. Overflows are
        not counted.
    max_error : float
        Largest relative error of a result that is neither an underflow to zero nor an overflow, in units of
        u = 2**-p, where p is the format's precision. It may exceed 1 near the smallest subnormal number,
        where the absolute error can be half of that number.
    """

    calls: int = 0
    elements: int = 0
    inexact: int = 0
    overflow: int = 0
    underflow: int = 0
    lost: int = 0
    max_error: float = 0.0


class Meter(native.Settling):
    """An arithmetic that measures another one; its results are those of the wrapped arithmetic.

    Exact results are binary64 numbers with a residual. Counts are exact where operands lie within 2**+-480,
    and for real scalars and integers that binary64 does not hold. A real scalar counts as the exact number,
    whatever the scalar policy. An algorithm runs on whole arrays, so that each operation is seen. Tensors
    of other devices are copied to host memory for the comparison; the returned results stay on their
    device.

    Parameters
    ----------
    arithmetic : Arithmetic
        The arithmetic to measure.

    Attributes
    ----------
    tallies : dict of str to OperationTally
        Counts by operation: ``add``, ``sub``, ``mul``, ``div``, ``sqrt``, ``fma``, ``neg``, ``abs``,
        ``sign``, ``round``. Elementary functions and selections, as ``exp`` and ``maximum``, have only
        `calls` and `elements`.
    trace : list of str
        The operations in the order of their calls.
    """

    def __init__(self, arithmetic: Arithmetic) -> None:
        self.arithmetic = arithmetic
        self.tallies: dict[str, OperationTally] = {}
        self.trace: list[str] = []

    @property
    def format(self) -> Any:
        """The wrapped arithmetic's format."""
        return self.arithmetic.format

    def __getattr__(self, name: str) -> Any:
        if name == "arithmetic":  # a copy in the making has no attributes yet
            raise AttributeError(name)
        return getattr(self.arithmetic, name)

    def like(self, fmt: Format, rounding: Rounding) -> Meter:
        """Return a meter around an arithmetic of another format and rounding."""
        return Meter(self.arithmetic.like(fmt, rounding))

    def on_block(self, step: int, start: int) -> Meter:
        """Return a meter around the wrapped arithmetic of the block, with the same tallies."""
        watched = Meter(self.arithmetic.on_block(step, start))
        watched.tallies, watched.trace = self.tallies, self.trace
        return watched

    def _settled(self, number: Any) -> Any:
        """Return a Python number as the wrapped arithmetic does."""
        if type(number) is RoundedNumber:
            return float(number)
        return self.arithmetic.evaluate(lambda _, x: x, number)

    def _operate(self, name: str, *operands: Value) -> Value:
        result = getattr(self.arithmetic, name)(*operands)
        tally = self.tallies.setdefault(name, OperationTally())
        self.trace.append(name)
        tally.calls += 1
        made = on_host(result)
        tally.elements += int(np.size(made))
        if self.format is not None and (name in _OF_SIGNS or name in _WIDE):
            with np.errstate(all="ignore"):
                self._judge(
                    tally,
                    name,
                    [operand_numbers(on_host(x)) for x in operands],
                    np.atleast_1d(np.asarray(made, np.float64)),
                )
        return RoundedNumber(result, self.carrier) if type(result) is float else result

    def _judge(
        self, tally: OperationTally, name: str, operands: list[NDArray[Any]], rounded: NDArray[Any]
    ) -> None:
        """Compare results with exact results, and update the counts."""
        fmt: Format = self.format
        if name == "sub":
            operands[1] = -operands[1]
        real = np.ones(rounded.shape, np.bool_)
        for x in operands:
            real &= True if x.dtype == object else np.isfinite(x)
        if name == "div":
            real &= operands[1] != 0
        elif name == "sqrt":
            real &= operands[0] >= 0
        exact, residual = exact_results(name, operands)
        error = (rounded - exact) - residual
        inexact = real & ~((rounded == exact) & (residual == 0))
        unit = fmt.quantum if isinstance(fmt, Grid) else Fraction(2) ** (fmt.emax - fmt.precision + 1)
        highest, lowest = float(fmt.max), float(fmt.lowest)
        beyond = ((rounded == highest) & (exact > highest)) | ((rounded == lowest) & (exact < lowest))
        overflow = inexact & (~np.isfinite(rounded) | (beyond & (np.abs(error) >= float(unit))))
        underflow = inexact & (rounded == 0) & ~overflow
        tally.inexact += int(np.count_nonzero(inexact))
        tally.overflow += int(np.count_nonzero(overflow))
        tally.underflow += int(np.count_nonzero(underflow))
        if name in ("add", "sub"):
            a, b = operands
            kept = ((rounded == a) & (b != 0)) | ((rounded == b) & (a != 0))
            tally.lost += int(np.count_nonzero(kept & inexact & ~overflow))
        relative = np.abs(error / exact)[inexact & ~overflow & ~underflow]
        if relative.size:
            tally.max_error = max(tally.max_error, float(relative.max()) * 2.0**fmt.precision)


def operand_numbers(x: Any) -> NDArray[Any]:
    """Return an operand as an array of float64, or of Fractions where binary64 does not hold it."""
    if is_scalar(x):
        number = exact_or_binary64(x)
        return np.array([number], dtype=object if isinstance(number, Fraction) else np.float64)
    array = np.atleast_1d(np.asarray(x))
    if array.dtype.kind in "iu" and array.dtype.itemsize == 8:
        return np.asarray(np.frompyfunc(Fraction, 1, 1)(array.astype(object)))
    return array.astype(np.float64)


def exact_results(name: str, operands: list[NDArray[Any]]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return exact results as binary64 numbers and residuals; a zero residual means an exact number."""
    if name in _OF_SIGNS:
        (x,) = operands
        changed = _OF_SIGNS[name](x)
        if changed.dtype != object:
            return changed, np.zeros_like(changed)
        return real_numbers.with_residual("add", changed, np.zeros(()))
    if any(x.dtype == object for x in operands):
        return real_numbers.with_residual(name, *operands)
    exact, residual = _WIDE[name](*operands)
    if name in ("div", "sqrt"):  # the residual is the remainder divided by this
        share = np.abs(operands[1]) if name == "div" else 2 * exact
        residual = np.where(residual == 0, residual, residual / share)
    return exact, residual


_OF_SIGNS: dict[str, Callable[[Any], Any]] = {
    "neg": np.negative,
    "abs": np.absolute,
    "sign": signum,
    "round": np.positive,
}
_WIDE: dict[str, Callable[..., tuple[NDArray[Any], NDArray[Any]]]] = {
    "add": native.add,
    "sub": native.add,  # of the negated second operand
    "mul": native.mul,
    "div": native.div,
    "sqrt": native.sqrt,
    "fma": native.fma,
}
