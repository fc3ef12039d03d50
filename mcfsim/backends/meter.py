"""A wrapper for any arithmetic that counts its operations and records what each one lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.codec.views import on_host
from mcfsim.formats import Format, Grid
from mcfsim.kernels import rational, residuals
from mcfsim.kernels.real_numbers import exact_or_binary64, is_scalar, signum
from mcfsim.protocol import Arithmetic, RoundedNumber, Value
from mcfsim.rounding import Rounding


@dataclass
class OperationTally:
    """What a `Meter` saw of one kind of operation.

    Judged are elements whose operands are finite and whose exact result is a real number: what comes of an
    infinity or NaN, of a division by zero or of the square root of a negative number, is counted by `calls`
    and `elements` alone.

    Attributes
    ----------
    calls : int
        How often the operation was called.
    elements : int
        On how many elements in all.
    inexact : int
        Elements whose result differs from the exact one, over- and underflows among them.
    overflow : int
        Elements whose result is infinite or NaN, as a format without infinity has it, or that saturated: the
        result is an end of the format's range, and beyond it the exact one, by a unit in the last place of
        that end or more.
    underflow : int
        Elements whose result is zero though the exact one is not.
    lost : int
        Additions and subtractions whose result is the one operand though the other is not zero. Where that
        is an overflow it is not counted here.
    max_error : float
        Largest relative error in units of u = 2**-p of the format, p its precision, where the result is
        neither zero nor an overflow. Near the smallest subnormal number it may exceed 1, as an absolute
        error of half that number does.
    """

    calls: int = 0
    elements: int = 0
    inexact: int = 0
    overflow: int = 0
    underflow: int = 0
    lost: int = 0
    max_error: float = 0.0


class Meter:
    """Any arithmetic, watched: results are those of the wrapped one.

    Exact results are judged as binary64 numbers with a residual: what is counted is exact where operands lie
    within 2**+-480, and for real scalars and integers that binary64 does not hold. A real scalar counts as
    the number that it is, whatever the scalar policy. Tensors are judged in the host's memory, to which
    operands and results of other devices are copied; the results that are handed on stay where they are.

    Parameters
    ----------
    arithmetic : Arithmetic
        The one to watch.

    Attributes
    ----------
    tallies : dict of str to Tally
        By operation: ``add``, ``sub``, ``mul``, ``div``, ``sqrt``, ``fma``, ``neg``, ``abs``, ``sign``,
        ``round``.
    trace : list of str
        The operations in order of their calls.
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
        if name == "arithmetic":  # of a copy that has nothing yet
            raise AttributeError(name)
        return getattr(self.arithmetic, name)

    def like(self, fmt: Format, rounding: Rounding) -> Meter:
        """Return a meter around an arithmetic of another format and rounding."""
        return Meter(self.arithmetic.like(fmt, rounding))

    def on_block(self, step: int, start: int) -> Meter:
        """Return a meter around the wrapped arithmetic for the block, which counts to the same tallies."""
        watched = Meter(self.arithmetic.on_block(step, start))
        watched.tallies, watched.trace = self.tallies, self.trace
        return watched

    def add(self, a: Value, b: Value) -> Value:
        """Return ``a + b``, and count it."""
        return self._watch("add", a, b)

    def sub(self, a: Value, b: Value) -> Value:
        """Return ``a - b``, and count it."""
        return self._watch("sub", a, b)

    def mul(self, a: Value, b: Value) -> Value:
        """Return ``a * b``, and count it."""
        return self._watch("mul", a, b)

    def div(self, a: Value, b: Value) -> Value:
        """Return ``a / b``, and count it."""
        return self._watch("div", a, b)

    def sqrt(self, a: Value) -> Value:
        """Return the square root, and count it."""
        return self._watch("sqrt", a)

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """Return ``a * b + c``, and count it."""
        return self._watch("fma", a, b, c)

    def neg(self, a: Value) -> Value:
        """Return ``-a``, and count it."""
        return self._watch("neg", a)

    def abs(self, a: Value) -> Value:
        """Return ``|a|``, and count it."""
        return self._watch("abs", a)

    def sign(self, a: Value) -> Value:
        """Return the sign, and count it."""
        return self._watch("sign", a)

    def round(self, x: Value) -> Value:
        """Round into the format, and count it."""
        return self._watch("round", x)

    def evaluate(self, function: Callable[..., Any], /, *operands: Any, **options: Any) -> Any:
        """Return ``function(self, *operands, **options)``: whole arrays, so that every operation is seen.

        A Python number that the function returns as it was leaves as the wrapped arithmetic has it.
        """
        return self._leave(function(self, *operands, **options))

    def _leave(self, results: Any) -> Any:
        if isinstance(results, tuple):
            return tuple(map(self._leave, results))
        if type(results) is RoundedNumber:
            return float(results)
        return self.arithmetic.evaluate(lambda _, x: x, results) if is_scalar(results) else results

    def _watch(self, name: str, *operands: Value) -> Value:
        result = getattr(self.arithmetic, name)(*operands)
        tally = self.tallies.setdefault(name, OperationTally())
        self.trace.append(name)
        tally.calls += 1
        made = on_host(result)
        tally.elements += int(np.size(made))
        if self.format is not None:
            with np.errstate(all="ignore"):
                self._judge(
                    tally,
                    name,
                    [_numbers(on_host(x)) for x in operands],
                    np.atleast_1d(np.asarray(made, np.float64)),
                )
        return RoundedNumber(result, self.carrier) if type(result) is float else result

    def _judge(
        self, tally: OperationTally, name: str, operands: list[NDArray[Any]], rounded: NDArray[Any]
    ) -> None:
        """Compare results with the exact ones."""
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
        exact, residual = _exactly(name, operands)
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


def _numbers(x: Any) -> NDArray[Any]:
    """Return an operand as an array of float64, or of fractions where binary64 does not hold it."""
    if is_scalar(x):
        number = exact_or_binary64(x)
        return np.array([number], dtype=object if isinstance(number, Fraction) else np.float64)
    array = np.atleast_1d(np.asarray(x))
    if array.dtype.kind in "iu" and array.dtype.itemsize == 8:
        return np.asarray(np.frompyfunc(Fraction, 1, 1)(array.astype(object)))
    return array.astype(np.float64)


def _exactly(name: str, operands: list[NDArray[Any]]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return exact results, as binary64 numbers and residuals that are zero where there is none."""
    if name in _OF_SIGNS:
        (x,) = operands
        changed = _OF_SIGNS[name](x)
        if changed.dtype != object:
            return changed, np.zeros_like(changed)
        return rational.with_residual("add", changed, np.zeros(()))
    if any(x.dtype == object for x in operands):
        return rational.with_residual(name, *operands)
    exact, residual = _WIDE[name](*operands)
    if name in ("div", "sqrt"):  # a remainder, of which so much is the residual
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
    "add": residuals.add,
    "sub": residuals.add,  # of the negative
    "mul": residuals.mul,
    "div": residuals.div,
    "sqrt": residuals.sqrt,
    "fma": residuals.fma,
}
