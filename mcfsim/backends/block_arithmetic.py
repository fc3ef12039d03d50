"""Emulated operations on one block of carrier numbers, and how each of them is made exact."""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache, wraps
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.checks.processor import check_processor
from mcfsim.formats import Format
from mcfsim.kernels import rational, residuals
from mcfsim.kernels.carriers import FLOAT64, UnsupportedFormatError, carrier_of
from mcfsim.kernels.dispatch import get_kernel
from mcfsim.kernels.plan import COMFORT, Way, plan, refusal
from mcfsim.kernels.real_numbers import Scalars, enter, exact_or_binary64, is_scalar, round_real, signum
from mcfsim.kernels.stand_ins import stand_in
from mcfsim.protocol import Streams, Value
from mcfsim.random import Words
from mcfsim.rounding import Mode, Rounding, Underflow
from mcfsim.storage.buffers import retain_freed_memory

#: Elements from which on a stand-in saves more time than is spent on finding it.
_WORTH_A_SEARCH = 1 << 12
_LARGEST, _LARGEST_EXPONENT = np.finfo(np.float64).max, 1023

_NATIVE: dict[str, Callable[..., Any]] = {
    **{"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "sqrt": np.sqrt}
}
#: Of a difference, the second operand's sign is changed before.
_IN_BINARY64: dict[str, Callable[..., Any]] = {**_NATIVE, "sub": np.add}


def _operation(carry_out: Callable[..., Any]) -> Callable[..., Any]:
    """Make an operation on numbers alone give a number: the same one in every block, by one random word."""

    @wraps(carry_out)
    def run(ar: BlockArithmetic, *operands: Value) -> Value:
        for x in operands:
            if not is_scalar(x):
                return carry_out(ar, *operands)
        alone = ar.at(ar.random, 0)
        alone.operations = ar.operations
        result = carry_out(alone, *operands)
        ar.operations = alone.operations
        return float(result[0])

    return run


class BlockArithmetic:
    """Operations on one-dimensional carrier blocks and Python scalars, with nothing checked.

    How an operation is carried out is settled once, see `mcfsim.kernels.plan`.

    A real scalar that binary64 does not hold, or that lies so far out that intermediate results could leave
    its range, is worked with in fractions, element by element.

    The result of an operation on scalars alone is a scalar, a Python float.
    """

    #: Where the words of stochastic rounding come from, from which element on, and the operations so far.
    random: Streams | None = None
    start = operations = 0

    def __init__(self, fmt: Format, rounding: Rounding, scalars: Scalars) -> None:
        check_processor()
        retain_freed_memory()
        self.format, self.rounding, self.scalars = fmt, rounding, scalars
        self._origin = self  # of the arithmetics for single blocks
        self.carrier = carrier_of(fmt)
        # A result is no operand: where those are flushed, results stay gradual.
        self._flushes = rounding.underflow is Underflow.FLUSH_INPUTS
        if self._flushes:
            get_kernel(fmt, rounding, self.carrier)  # refuses formats that have nothing to flush
        of_results = replace(rounding, underflow=Underflow.GRADUAL) if self._flushes else rounding
        self._of_results = of_results
        self._kernel = get_kernel(fmt, of_results, self.carrier)
        self._wide_kernel = get_kernel(fmt, of_results, FLOAT64)
        self._smallest_normal = float(fmt.smallest_normal)
        self.plan = plan(fmt, rounding, self.carrier)
        self._undecided_bits = (1 << max(0, 54 - fmt.precision - rounding.guard_bits)) - 1
        self._down = rounding.mode is Mode.DOWN
        self._mirrored = fmt.lowest == -fmt.max
        self._has_units = self._kernel.keeps(np.array([1.0, -1.0 if fmt.signed else 1.0], self.carrier))

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
    @_operation
    def add(self, a: Value, b: Value) -> Value:
        """Return ``a + b``."""
        return self._carry_out("add", *self._enter(a, b))

    @_operation
    def sub(self, a: Value, b: Value) -> Value:
        """Return ``a - b``."""
        return self._carry_out("sub", *self._enter(a, b))

    @_operation
    def mul(self, a: Value, b: Value) -> Value:
        """Return ``a * b``."""
        return self._carry_out("mul", *self._enter(a, b))

    @_operation
    def div(self, a: Value, b: Value) -> Value:
        """Return ``a / b``."""
        return self._carry_out("div", *self._enter(a, b))

    @_operation
    def sqrt(self, a: Value) -> Value:
        """Return the square root."""
        return self._carry_out("sqrt", *self._enter(a))

    @_operation
    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """Return ``a * b + c``, rounded once: never by a wider fma, whose second rounding can be wrong."""
        return self._carry_out("fma", *self._enter(a, b, c))

    def _by_stand_in(self, operation: str, operands: list[Value]) -> NDArray[Any] | None:
        """Return an operation on values and a real scalar by what stands for it, if something does."""
        sizes = [x.size for x in operands]
        if len(sizes) != 2 or max(sizes) < _WORTH_A_SEARCH:
            return None
        position = sizes.index(1)
        for carrier in (self.carrier, FLOAT64):
            scalar = operands[position][0]
            found = stand_in(operation, position, scalar, self.format, self._of_results, carrier)
            if found is not None:
                taken = list(operands)
                taken[position] = carrier.type(found)
                multiplies = "mul" if operation == "div" else operation
                result = _NATIVE[multiplies](*taken, dtype=carrier)
                return self._round_in_place(result) if carrier == self.carrier else self._leave(result)
        return None

    def _carry_out(self, operation: str, operands: list[Value], real: bool) -> Value:
        """Carry out an operation as planned; `real` if an operand is no value of the format."""
        if real and (result := self._by_stand_in(operation, operands)) is not None:
            return result
        way, why = (self.plan.reals if real else self.plan.values)[operation]
        if way is Way.NATIVE:
            return self._round_in_place(_NATIVE[operation](*operands))
        if way is Way.REFUSED:
            raise refusal(operation, self.format, self.rounding, why)
        operands = [_widen(x) for x in operands]
        if operation == "sub":
            operands[1] = -operands[1]
        if way is Way.WIDE:
            return self._leave(_IN_BINARY64[operation](*operands))
        # An exact zero sum is -0 in this mode: -((-a) + (-b)) gives just that.
        negated = self._down and operation in ("add", "sub", "fma")
        if negated:
            operands[0], operands[-1] = -operands[0], -operands[-1]
        if way is Way.EXACT:
            y = _IN_BINARY64[operation](*operands)
        elif operation == "fma" and not real and self.plan.exact_product:
            a, b, c = operands
            y, residual = residuals.add(a * b, c)
            if residual.any():
                y = residuals.make_odd(y, residual)
        else:
            y = self._decide(operation, operands)
        return self._leave(-y if negated else y)

    @_operation
    def neg(self, a: Value) -> Value:
        """Return ``-a``; where that is no value of the format, what the rounding makes of it."""
        if is_scalar(a):
            return self._settled(a, np.negative)
        result = np.negative(a)
        if not self._mirrored:
            return self._round_in_place(result)
        return result if self.format.has_negative_zero else result + self.carrier.type(0)

    @_operation
    def abs(self, a: Value) -> Value:
        """Return ``|a|``; where that is no value of the format, what the rounding makes of it."""
        if is_scalar(a):
            return self._settled(a, np.absolute)
        result = np.absolute(a)
        if self.format.signed and not self._mirrored:
            return self._round_in_place(result)
        return result

    @_operation
    def sign(self, a: Value) -> Value:
        """Return 1 or -1 by the sign; where that is no value of the format, what the rounding makes of it."""
        if is_scalar(a):
            return self._settled(a, signum)
        result = signum(a)
        return result if self._has_units else self._round_in_place(result)

    @_operation
    def round(self, x: Value) -> Value:
        """Round a block of either carrier, or a number."""
        if is_scalar(x):
            words = self._words(1)
            return np.array([round_real(x, self.format, self.rounding, words)], dtype=self.carrier)
        if x.dtype == self.carrier:
            result = np.empty_like(x)
            self._kernel(self._flushed(x), result, self._words(x.size))
            return result
        return self._leave(self._flushed(x.astype(np.float64)))

    @_operation
    def settle(self, x: Value) -> Value:
        """Return values as they are, and a number that is no value of the format rounded.

        That is how a number leaves an algorithm that did nothing with it.
        """
        return self._settled(x, np.positive) if is_scalar(x) else x

    def keeps(self, x: NDArray[Any]) -> bool:
        """Return whether a block of the carrier holds values of the format, or NaN, alone."""
        return self._kernel.keeps(x)

    def evaluate(self, function: Callable[..., Any], /, *operands: Any, **options: Any) -> Any:
        """Return ``function(self, *operands, **options)``: blocks are already small."""
        return function(self, *operands, **options)

    # -- in and out ---------------------------------------------------------------------------------------
    def _enter(self, *operands: Value) -> tuple[list[Value], bool]:
        """Turn scalars into arrays of one element; True if one of them is no value of the format."""
        blocks, reals = [], False
        for x in operands:
            if is_scalar(x):
                x, real = self._scalar_block(x)
                reals = reals or real
            blocks.append(self._flushed(x) if self._flushes else x)
        return blocks, reals

    def _flushed(self, x: Value) -> Value:
        """Put zeros in place of small operands if that is the policy."""
        if not self._flushes:
            return x
        if x.dtype == object:
            return np.array([math.copysign(0.0, x[0])]) if abs(x[0]) < self._smallest_normal else x
        return np.where(np.abs(x) < self._smallest_normal, np.copysign(x.dtype.type(0), x), x)

    def _scalar_block(self, x: Any) -> tuple[NDArray[Any], bool]:
        """Return a scalar as a block of one element, and whether it is no value of the format."""
        number = exact_or_binary64(x)
        # The sign is a key of its own: 0.0 and -0.0 compare equal.
        return _entered(self._origin, number, isinstance(number, float) and math.copysign(1.0, number))

    def _settled(self, x: Any, change: Callable[[Any], Any]) -> NDArray[Any]:
        """Return a scalar, its sign changed: as it is if that is a value of the format, else rounded."""
        number, real = self._scalar_block(x)
        if change is np.positive and not real:
            return number
        number = change(number)
        if number.dtype != object and self._wide_kernel.keeps(_widen(number)):
            value: NDArray[Any] = number.astype(self.carrier)
            return value if self.format.has_negative_zero else value + self.carrier.type(0)
        rounded = round_real(number[0], self.format, self._of_results, self._words(1))
        return np.array([rounded], dtype=self.carrier)

    def _round_in_place(self, y: NDArray[Any]) -> NDArray[Any]:
        self._kernel(y, y, self._words(y.size))
        return y

    def _leave(self, y: NDArray[np.float64]) -> NDArray[Any]:
        self._wide_kernel(y, y, self._words(y.size))
        return y if self.carrier == FLOAT64 else y.astype(self.carrier)

    def _words(self, size: int) -> Words | None:
        """Return the next stream's words for this block."""
        if not self.rounding.stochastic:
            return None
        if self.random is None:
            raise ValueError("stochastic rounding needs random=RandomWords(seed)")
        stream = self.random.of(self.operations)
        self.operations += 1
        return stream.draws(self.start, size, self.rounding.random_bits)

    def _decide(self, operation: str, operands: list[NDArray[Any]]) -> NDArray[np.float64]:
        """Carry out an operation in binary64, odd wherever that could change the rounding."""
        if self._far(operation, operands):
            y = rational.decided(operation, *operands)
            left = self.format.emax == _LARGEST_EXPONENT and bool((np.abs(y) == _LARGEST).any())
        else:
            y = residuals.decided(operation, *operands, undecided_bits=self._undecided_bits)
            left = operation in ("add", "sub") and residuals.bring_back(y, *operands)
        if left and self.rounding.stochastic:
            raise UnsupportedFormatError(
                f"{operation} in {self.format}, rounding {self.rounding.mode}, leaves the range of binary64"
            )
        return y

    def _far(self, operation: str, operands: list[NDArray[Any]]) -> bool:
        """Whether a real scalar is no binary64 number, or one that takes results out of binary64's range."""
        for x in operands:
            if x.dtype == object:
                return True
            # Only a real scalar can lie outside a comfortable format's range. A sum may take tiny ones.
            if self.plan.comfortable and x.dtype == FLOAT64 and x.size == 1 and 0 < abs(x[0]) < np.inf:
                least = 0.0 if operation in ("add", "sub") else 2.0**-COMFORT
                if not least <= abs(x[0]) <= 2.0**COMFORT:
                    return True
        return False


def _widen(x: NDArray[Any]) -> NDArray[Any]:
    return x if x.dtype == object else x.astype(np.float64, copy=False)


@lru_cache(maxsize=1024)
def _entered(ar: BlockArithmetic, number: float | Fraction, sign: float) -> tuple[NDArray[Any], bool]:
    """Return a scalar as `BlockArithmetic._scalar_block` does: of float64, of the carrier, or a Fraction."""
    entered, real = enter(number, ar.format, ar.rounding, ar.scalars)
    dtype = ar.carrier if not real else object if isinstance(entered, Fraction) else FLOAT64
    block = np.array([entered], dtype)
    block.flags.writeable = False
    return block, real


@lru_cache(maxsize=64)
def _like(fmt: Format, rounding: Rounding, scalars: Scalars) -> BlockArithmetic:
    return BlockArithmetic(fmt, rounding, scalars)
