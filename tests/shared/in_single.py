"""The policy ``float32`` for real scalars by its definition, as an oracle that is told which they are."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mcfsim.formats import FORMATS, Format
from mcfsim.kernels.carriers import carrier_of
from mcfsim.oracle import OracleArithmetic
from mcfsim.rounding import Rounding, Underflow

FLOAT32 = FORMATS["float32"]
SINGLE = OracleArithmetic(FLOAT32)


@dataclass(frozen=True)
class Real:
    """A real scalar as an operand; all other numbers are values."""

    number: Any

    def __neg__(self) -> Real:
        return Real(-self.number)


def widened(fmt: Format) -> bool:
    """Return whether the policy brings operations of a format to binary32, and is not ``rounded``."""
    return fmt != FLOAT32 and carrier_of(fmt) == np.float32


def single(x: Any) -> Any:
    """Return a real scalar rounded to binary32; a value is one of its numbers."""
    return SINGLE.round(x.number) if isinstance(x, Real) else x


class InSingle(OracleArithmetic):
    """Operations of a format, carried out in binary32 and rounded again if an operand is a `Real`."""

    def like(self, fmt: Format, rounding: Rounding) -> OracleArithmetic:
        """Return an arithmetic of this kind."""
        return type(self)(fmt, rounding)

    def _operate(self, name: str, *operands: Any) -> float:
        if not any(isinstance(x, Real) for x in operands):
            return super()._operate(name, *operands)
        made = getattr(SINGLE, name)(*map(single, map(self._flushed, operands)))
        rounding = self.rounding
        if rounding.underflow is Underflow.FLUSH_INPUTS:  # the result of an operation is no operand
            rounding = replace(rounding, underflow=Underflow.GRADUAL)
        return OracleArithmetic(self.format, rounding).round(made)

    def _flushed(self, x: Any) -> Any:
        small = not isinstance(x, Real) and abs(x) < self.format.smallest_normal
        if small and self.rounding.underflow is Underflow.FLUSH_INPUTS:
            return math.copysign(0.0, x) if self.format.has_negative_zero else 0.0
        return x

    def _left(self, number: Any) -> Any:
        return self._settled(single(number)) if isinstance(number, Real) else super()._left(number)

    def neg(self, a: Any) -> float:
        """Return ``-a``."""
        return super().neg(single(a))

    def abs(self, a: Any) -> float:
        """Return ``|a|``."""
        return super().abs(single(a))

    def sign(self, a: Any) -> float:
        """Return the sign of `a`."""
        return super().sign(single(a))

    def choose(self, s: Any, x: Any, y: Any) -> float:
        """Return `x` or `y`, by the sign of `s`."""
        return super().choose(*map(single, (s, x, y)))

    def _extreme(self, a: Any, b: Any, *, greatest: bool) -> float:
        return super()._extreme(single(a), single(b), greatest=greatest)

    def round(self, x: Any) -> float:
        """Return a number rounded once: that is no operation on a real scalar."""
        return super().round(x.number if isinstance(x, Real) else x)
