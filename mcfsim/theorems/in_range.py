"""Whether the format that stands for unbounded exponents was left: what comes of such a case says nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mcfsim.backends.factory import on_blocks
from mcfsim.formats import Format
from mcfsim.protocol import Value
from mcfsim.rounding import Rounding
from mcfsim.theorems.homogeneity import NotHomogeneousError, scales_of
from mcfsim.theorems.identity import by_identity
from mcfsim.theorems.logic.exact_sums import is_difference
from mcfsim.theorems.operands import Block, unscaled_reach
from mcfsim.theorems.statement import Scaling, Theorem
from mcfsim.theorems.trial import Trial

#: The bits of binary64.
_BITS = 53


def inside(theorem: Theorem, trial: Trial) -> Block | None:
    """Return where no operation left the range of the format, or None where none can.

    Only a statement of unbounded exponents is asked: where an operation overflows or underflows, the format
    that stands for them does not show what it says.
    """
    if trial.rounding.stochastic or not may_leave(theorem, trial.format):
        return None
    watch = RangeWatch(on_blocks(trial.format, trial.rounding), trial.size)
    with np.errstate(all="ignore"):
        theorem.algorithm(watch, *(tuple(x) if isinstance(x, tuple) else x for x in trial.operands))
    return watch.inside


@by_identity(256)
def may_leave(theorem: Theorem, fmt: Format) -> bool:
    """Return whether operands of a statement could lead beyond the format, as far as can be told."""
    if theorem.range == "bounded":
        return False
    if theorem.scaling is Scaling.NONE or any(operand.kind == "sequence" for operand in theorem.operands):
        return True
    common, degree = theorem.scaling is not Scaling.EACH, 2 if theorem.scaling is Scaling.SQUARE else 1
    try:
        scales = scales_of(theorem.algorithm, theorem.operands, fmt, Rounding(), common=common, degree=degree)
    except NotHomogeneousError:
        return True
    # Low words lie as deep as the parts of a domain let them; how deep is not known here.
    values = not any(operand.paired for operand in theorem.operands)
    low, high = theorem.gaps(fmt.precision) if common else (0, 1)
    return scales is None or any(
        high > x.safe_to or (values and min(low, -unscaled_reach(fmt.precision)) < x.safe_from)
        for x in scales.quantities
    )


class RangeWatch:
    """An `mcfsim.protocol.Arithmetic` that notes where a result leaves the range of its format.

    Parameters
    ----------
    ar : Arithmetic
        It carries out every operation.
    size : int
        How many elements there are.

    Attributes
    ----------
    inside : array of bool
        Where so far nothing overflowed, and nothing was rounded by underflow. Sums of subnormal numbers are
        exact. What comes of a division by zero, or of a root of a negative number, is no overflow.
    """

    def __init__(self, ar: Any, size: int, inside: Block | None = None) -> None:
        self._ar = ar
        self.inside = np.ones(size, np.bool_) if inside is None else inside

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ar, name)

    def like(self, fmt: Format, rounding: Rounding) -> RangeWatch:
        """Return the same for another format, which notes in the same place."""
        return RangeWatch(self._ar.like(fmt, rounding), self.inside.size, self.inside)

    def add(self, a: Value, b: Value) -> Value:
        """Return ``a + b``."""
        return self._noted(self._ar.add(a, b), a, b)

    def sub(self, a: Value, b: Value) -> Value:
        """Return ``a - b``."""
        return self._noted(self._ar.sub(a, b), a, b)

    def mul(self, a: Value, b: Value) -> Value:
        """Return ``a * b``."""
        result = self._ar.mul(a, b)
        return self._noted(result, a, b, small=_small(result, self._least) & _nonzero(a) & _nonzero(b))

    def div(self, a: Value, b: Value) -> Value:
        """Return ``a / b``."""
        result = self._ar.div(a, b)
        small = _small(result, self._least) & _nonzero(a)
        return self._noted(result, a, b, small=small, real=_nonzero(b))

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """Return ``a * b + c``, rounded once."""
        result = self._ar.fma(a, b, c)
        small = _small(result, self._least) & _nonzero(a) & _nonzero(b)
        if 2 * self._ar.format.precision <= _BITS:  # binary64 holds the product
            exact = is_difference(_number(a) * np.float64(1) * _number(b), np.float64(1) * result, _number(c))
            small = small & ~exact
        return self._noted(result, a, b, c, small=small)

    def round(self, x: Value) -> Value:
        """Round into the format."""
        result = self._ar.round(x)
        return self._noted(result, x, small=_small(result, self._least) & _nonzero(x))

    def evaluate(self, function: Callable[..., Any], /, *operands: Any, **options: Any) -> Any:
        """Return ``function(self, *operands, **options)``."""
        return function(self, *operands, **options)

    @property
    def _least(self) -> float:
        return float(self._ar.format.smallest_normal)

    def _noted(self, result: Value, *operands: Value, small: Any = False, real: Any = True) -> Value:
        finite = real
        for x in operands:
            finite = finite & np.isfinite(_number(x))
        self.inside &= ~(small | (finite & ~np.isfinite(result)))
        return result


def _small(x: Value, least: float) -> Any:
    # The smallest normal number may come of a smaller one that was rounded to a subnormal number's last bit.
    return np.abs(_number(x)) <= least


def _nonzero(x: Value) -> Any:
    return _number(x) != 0


def _number(x: Value) -> Any:
    """Return a block, or a real scalar, which is finite, by its sign and whether it is small."""
    if isinstance(x, np.ndarray | np.floating):
        return x
    try:
        return np.float64(x)
    except OverflowError:
        return np.float64(np.finfo(np.float64).max)
