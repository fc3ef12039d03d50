"""Emulated operations on one block of carrier numbers: each the line of one operation."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.checks.processor import check_processor
from mcfsim.compile.operation import Operation, operation
from mcfsim.formats import Format
from mcfsim.kernels import rational
from mcfsim.kernels.carriers import FLOAT64, UnsupportedFormatError, carrier_of
from mcfsim.kernels.dispatch import get_kernel
from mcfsim.kernels.operation_plan import plan
from mcfsim.kernels.real_numbers import Scalars, changed_real, enter, exact_or_binary64, is_scalar, signum
from mcfsim.protocol import RoundedNumber, Streams, Value
from mcfsim.random import Words
from mcfsim.rounding import Mode, Rounding, Underflow
from mcfsim.storage.buffers import retain_freed_memory


class BlockArithmetic:
    """Operations on one-dimensional carrier blocks and Python scalars, with nothing checked.

    An operation is the line that a text of this operation alone is lowered to (`mcfsim.compile.operation`).
    With a real scalar that no line takes, as binary64 does not hold it, or as it lies so far out that
    intermediate results could leave binary64's range, it is worked out in fractions, element by element.

    The result of an operation on scalars alone is a scalar, a Python float, the same in every block: drawn
    for by the word of index 0.
    """

    #: Where the words of stochastic rounding come from, from which element on, and the operations so far.
    random: Streams | None = None
    start = operations = 0

    def __init__(self, fmt: Format, rounding: Rounding, scalars: Scalars) -> None:
        check_processor()
        retain_freed_memory()
        self.format, self.rounding, self.scalars = fmt, rounding, scalars
        self.carrier = carrier_of(fmt)
        # A result is no operand: where those are flushed, results stay gradual.
        flushes = rounding.underflow is Underflow.FLUSH_INPUTS
        of_results = replace(rounding, underflow=Underflow.GRADUAL) if flushes else rounding
        self.plan = plan(fmt, rounding, self.carrier)
        self._kernel = get_kernel(fmt, of_results, self.carrier)
        self._entering = get_kernel(fmt, rounding, self.carrier)
        self._wide_kernel = get_kernel(fmt, of_results, FLOAT64)
        self._wide_entering = get_kernel(fmt, rounding, FLOAT64)
        self._operations: dict[tuple[str, tuple[bool, ...]], Operation] = {}

    def at(self, random: Streams | None, start: int) -> BlockArithmetic:
        """Return the arithmetic for the block that begins with an element, and its operations' streams."""
        if not self.rounding.stochastic:
            return self
        block = copy(self)
        block.random, block.start, block.operations = random, start, 0
        return block

    def like(self, fmt: Format, rounding: Rounding) -> BlockArithmetic:
        """Return the emulator of another format and rounding, made once."""
        return _like(fmt, rounding, self.scalars)

    def on_block(self, step: int, start: int) -> BlockArithmetic:
        """Return itself: it works on blocks."""
        return self

    # -- the operations -----------------------------------------------------------------------------------
    def add(self, a: Value, b: Value) -> Value:
        """Return ``a + b``."""
        return self._carry_out("add", a, b)

    def sub(self, a: Value, b: Value) -> Value:
        """Return ``a - b``."""
        return self._carry_out("sub", a, b)

    def mul(self, a: Value, b: Value) -> Value:
        """Return ``a * b``."""
        return self._carry_out("mul", a, b)

    def div(self, a: Value, b: Value) -> Value:
        """Return ``a / b``."""
        return self._carry_out("div", a, b)

    def sqrt(self, a: Value) -> Value:
        """Return the square root."""
        return self._carry_out("sqrt", a)

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """Return ``a * b + c``, rounded once: never by a wider fma, whose second rounding can be wrong."""
        return self._carry_out("fma", a, b, c)

    def neg(self, a: Value) -> Value:
        """Return ``-a``; where that is no value of the format, what the rounding makes of it."""
        return self._changed("neg", a) if is_scalar(a) else self._carry_out("neg", a)

    def abs(self, a: Value) -> Value:
        """Return ``|a|``; where that is no value of the format, what the rounding makes of it."""
        return self._changed("abs", a) if is_scalar(a) else self._carry_out("abs", a)

    def sign(self, a: Value) -> Value:
        """Return 1 or -1 by the sign; where that is no value of the format, what the rounding makes of it."""
        return self._changed("sign", a) if is_scalar(a) else self._carry_out("sign", a)

    def round(self, x: Value) -> Value:
        """Round a block of either carrier, or a number."""
        if is_scalar(x):
            return self._changed("round", x)
        kernel = self._entering if x.dtype == self.carrier else self._wide_entering
        result = np.empty(x.shape, kernel.carrier)
        kernel(x.astype(kernel.carrier, copy=False), result, self._words(x.size, self.start))
        return result.astype(self.carrier, copy=False)

    def settle(self, x: Value) -> Value:
        """Return values and results as they are, and a number that is no value of the format rounded.

        That is how a number leaves an algorithm that did nothing with it.
        """
        return self._changed("settle", x) if is_scalar(x) and type(x) is not RoundedNumber else x

    def keeps(self, x: NDArray[Any]) -> bool:
        """Return whether a block of the carrier holds values of the format, or NaN, alone."""
        return self._kernel.keeps(x)

    def evaluate(self, function: Callable[..., Any], /, *operands: Any, **options: Any) -> Any:
        """Return ``function(self, *operands, **options)``: blocks are already small."""
        return function(self, *operands, **options)

    # -- carried out --------------------------------------------------------------------------------------
    def _carry_out(self, name: str, *operands: Value) -> Value:
        scalars = tuple([type(x) is not np.ndarray and is_scalar(x) for x in operands])
        line = self._operations.get((name, scalars))
        if line is None:
            line = operation(name, self.format, self.rounding, self.scalars, scalars)
            self._operations[name, scalars] = line
        if line.plain is not None:
            size = operands[0].size
            words = self._words(size, self.start) if line.draws else None
            return line(line.plain, operands, size, words)
        blocks = [x for x, scalar in zip(operands, scalars, strict=True) if not scalar]
        numbers = [x for x, scalar in zip(operands, scalars, strict=True) if scalar]
        size, start = (blocks[0].size, self.start) if blocks else (1, 0)
        bound = line.bound(numbers, size)
        words = self._words(size, start) if line.draws else None
        if bound is None:
            result = self._in_fractions(name, operands, size, words)
        else:
            result = line(bound, blocks, size, words)
        return result if blocks else RoundedNumber(result[0], self.carrier)

    def _changed(self, name: str, x: Any) -> RoundedNumber:
        """Return what an operation on signs, or rounding, makes of a number."""

        def one_word() -> Words | None:
            return self._words(1, 0)

        found = changed_real(name, x, self.format, self.rounding, self.scalars, one_word)
        return RoundedNumber(found, self.carrier)

    def _in_fractions(
        self, name: str, operands: tuple[Value, ...], size: int, words: Words | None
    ) -> NDArray[Any]:
        """Carry out an operation on numbers of any kind, each result rounded to odd in binary64 first."""
        given = [self._entered(x) if is_scalar(x) else x.astype(np.float64) for x in operands]
        if self.rounding.underflow is Underflow.FLUSH_INPUTS:
            least = self.format.smallest_normal
            signed = self.format.has_negative_zero
            zeros = [np.copysign(0.0, signum(x)) if signed else 0.0 for x in given]
            given = [np.where(abs(x) < least, zero, x) for x, zero in zip(given, zeros, strict=True)]
        if name == "sub":
            given[1] = -given[1]
        # An exact zero sum is -0 in this mode: -((-a) + (-b)) gives just that.
        negated = self.rounding.mode is Mode.DOWN and name in ("add", "sub", "fma")
        if negated:
            given[0], given[-1] = -given[0], -given[-1]
        y = rational.decided(name, *given)
        largest = np.finfo(np.float64).max
        if self.rounding.stochastic and float(self.format.max) > largest / 2 and (abs(y) == largest).any():
            raise UnsupportedFormatError(
                f"{name} in {self.format}, rounding {self.rounding.mode}, leaves the range of binary64"
            )
        y = np.array(np.broadcast_to(-y if negated else y, size))
        self._wide_kernel(y, y, words)
        return y.astype(self.carrier, copy=False)

    def _entered(self, x: Any) -> NDArray[Any]:
        """Return a real scalar as an array of one element: of float64, or a Fraction."""
        number, _ = enter(exact_or_binary64(x), self.format, self.rounding, self.scalars)
        return np.array([number], np.float64 if isinstance(number, float) else object)

    def _words(self, size: int, start: int) -> Words | None:
        """Return the next stream's words for a block."""
        if not self.rounding.stochastic:
            return None
        if self.random is None:
            raise ValueError("stochastic rounding needs random=RandomWords(seed)")
        stream = self.random.of(self.operations)
        self.operations += 1
        return stream.draws(start, size, self.rounding.random_bits)


@lru_cache(maxsize=64)
def _like(fmt: Format, rounding: Rounding, scalars: Scalars) -> BlockArithmetic:
    return BlockArithmetic(fmt, rounding, scalars)
