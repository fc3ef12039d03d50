"""Emulated operations on one block of carrier numbers; NumPy runs the line that each is lowered to."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mcfsim.checks import check_processor
from mcfsim.compile.lines import Lines
from mcfsim.compile.lowering import Lowered
from mcfsim.compile.program import Draw, Program, ProgramStep, Register, Scalar
from mcfsim.compile.scalars import ScalarEncoding, function_of_real, is_result
from mcfsim.formats import Format
from mcfsim.kernels import real_numbers
from mcfsim.kernels.blocks import get_kernel, rounds
from mcfsim.kernels.carriers import FLOAT64, UnsupportedFormatError, carrier_of
from mcfsim.kernels.element.calls import Calls
from mcfsim.kernels.element.codes import has_codes
from mcfsim.kernels.element.forms import as_calls
from mcfsim.kernels.elementary import function_entry
from mcfsim.kernels.function_blocks import decided_values, nearest_values
from mcfsim.kernels.operation_plan import SELECTING, Way, plan, refusal
from mcfsim.kernels.real_numbers import (
    Scalars,
    changed_real,
    enter,
    exact_or_binary64,
    is_scalar,
    signum,
)
from mcfsim.protocol import Forwarding, RoundedNumber, Streams, Value
from mcfsim.random import Words, word_bits
from mcfsim.rounding import Mode, Rounding, Underflow
from mcfsim.storage.buffers import retain_freed_memory, scratch

# -- one operation ----------------------------------------------------------------------------------------
Block = NDArray[Any]
#: Whether an operand is a real scalar; `RoundedNumber` if it is a value, but one number for all elements.
Kind = bool | type[RoundedNumber]

#: Bytes of the result computed at a time: with the intermediate results they fit into the level-2 cache.
_AT_ONCE = 1 << 18
#: From this many elements on, a stand-in for a scalar saves more time than the search for it takes.
_WORTH_A_SEARCH = 1 << 12
#: Number of real scalars whose bound lines are cached.
_KEPT = 256


class _Bound(NamedTuple):
    """A line with its real scalars filled in."""

    calls: Calls
    numbers: tuple[Block, ...]


class Operation(Lines[_Bound]):
    """An operation in a format on blocks of values and real scalars.

    Parameters
    ----------
    name : str
        Name of the operation, as in `mcfsim.protocol.Arithmetic`.
    fmt, rounding
        Format and rounding of the result; operands that are values have the same format.
    policy : {"exact", "rounded", "float32"}
        How real scalars enter.
    scalars : tuple of bool or type
        Which operands are real scalars; `RoundedNumber` for a number that is a value.

    Attributes
    ----------
    draws : bool
        Whether the operation takes random words.
    plain : _Bound or None
        The line, if there are no real scalars.
    """

    def __init__(
        self, name: str, fmt: Format, rounding: Rounding, policy: Scalars, scalars: tuple[Kind, ...]
    ) -> None:
        self._name, self._format, self._rounding, self._scalars = name, fmt, rounding, scalars
        self.draws = rounding.stochastic and rounds(name, fmt)
        given = [Scalar(f"s{n}") if s else Register(f"x{n}", fmt) for n, s in enumerate(scalars)]
        values = {n: Register(f"v{n}", fmt) for n, s in enumerate(scalars) if s is RoundedNumber}
        brought = [ProgramStep("round", Rounding(), (given[n],), x) for n, x in values.items()]
        operands = tuple(values.get(n, x) for n, x in enumerate(given))
        draw = Draw(0, 0) if self.draws else None
        step = ProgramStep(name, rounding, operands, Register("y", fmt), draw=draw)
        inputs = tuple(x for x in given if isinstance(x, Register))
        names, drawn = tuple(x.name for x in given if isinstance(x, Scalar)), (1,) if self.draws else ()
        program = Program(name, inputs, names, (*brought, step), step.result, drawn)
        super().__init__(program, policy, clean=False, narrows=False)
        self._carrier, self._word_bits = carrier_of(fmt), word_bits(rounding.random_bits)
        self._kept: dict[Any, _Bound | None] = {}
        self.plain = None if any(scalars) else self._bound((), ())

    def __reduce__(self) -> tuple[Any, ...]:
        return operation, (self._name, self._format, self._rounding, self.policy, self._scalars)

    def bound(self, numbers: Sequence[Any], size: int) -> _Bound | None:
        """Return the line with its real scalars, or None if binary64 cannot take one of them exactly.

        Parameters
        ----------
        numbers : sequence of number
            The real scalars, in order.
        size : int
            Number of elements of the result.

        Raises
        ------
        UnsupportedFormatError
            If the operation has no exact path.
        """
        search = size >= _WORTH_A_SEARCH
        # No key for zeros, which are equal with either sign, nor for other types, whose numbers may be equal.
        key = (search, *numbers) if all(isinstance(x, float) and x for x in numbers) else None
        kept = self._kept.get(key, self)  # one look-up, as another thread may empty the cache
        if not isinstance(kept, Operation):
            return kept
        found = self._entered(numbers, search)
        if key is not None:
            if len(self._kept) >= _KEPT:
                self._kept.clear()
            self._kept[key] = found
        return found

    def _entered(self, numbers: Sequence[Any], search: bool) -> _Bound | None:
        reals = self.program.reals(dict(zip(self.program.scalars, numbers, strict=True)))
        try:
            ways, found = self._entering(reals, search=search)
        except UnsupportedFormatError:
            if self._name in SELECTING:
                raise
            chosen, why = plan(self._format, self._rounding, self._carrier).reals[self._name]
            if chosen is Way.REFUSED:
                raise refusal(self._name, self._format, self._rounding, why) from None
            return None
        return self._bound(ways, found)

    def _emitted(self, lowered: Lowered, about: str) -> Calls:
        given = (*lowered.operands, *lowered.words, *lowered.numbers)
        return as_calls(lowered.results, given, lowered.numbers)

    def _bound(self, ways: tuple[ScalarEncoding, ...], numbers: Sequence[float]) -> _Bound:
        lowered, calls = self._lowered(ways)
        typed = zip(lowered.numbers, numbers, strict=True)
        return _Bound(calls, tuple(np.array(number, lowered.dtype(x)) for x, number in typed))

    def __call__(self, bound: _Bound, blocks: Sequence[Block], size: int, words: Words | None) -> Block:
        """Return the result on contiguous blocks of the carrier.

        Parameters
        ----------
        bound : _Bound
            See `bound`.
        blocks : sequence of array
            The operands that are no real scalars.
        size : int
            Their number of elements; 1 if all operands are real scalars.
        words : array of unsigned integers or None
            One random word per element, if the operation draws; its highest bits are used.
        """
        for x in blocks:
            if x.dtype is not self._carrier and x.dtype != self._carrier:
                raise ValueError(
                    f"{self._name} in {self._format} of {x.dtype}: convert values of other formats by round"
                )
        out = np.empty(size, self._carrier)
        given = blocks
        if words is not None:
            drawn = scratch("words", size, np.int64)
            longer = 8 * words.itemsize - self._word_bits
            np.copyto(drawn, words >> words.dtype.type(longer) if longer else words)
            given = [*blocks, drawn]
        at_once = _AT_ONCE // self._carrier.itemsize
        if size <= at_once or len(bound.calls) == 1:
            bound.calls([*given, *bound.numbers] if bound.numbers else given, [out])
            return out
        for start in range(0, size, at_once):
            part = slice(start, start + at_once)
            bound.calls([*(x[part] for x in given), *bound.numbers], [out[part]])
        return out


@lru_cache(maxsize=1024)
def operation(
    name: str, fmt: Format, rounding: Rounding, policy: Scalars, scalars: tuple[Kind, ...]
) -> Operation:
    """Return an `Operation`, made once and cached."""
    return Operation(name, fmt, rounding, policy, scalars)


# -- the arithmetic ---------------------------------------------------------------------------------------
def _is_number(x: Any) -> bool:
    """Return whether an operand is a real scalar; raise TypeError for a sequence, such as an expansion."""
    if isinstance(x, tuple | list):
        raise TypeError(f"an operand is an array or a number, not a {type(x).__name__}")
    return is_scalar(x)


class BlockArithmetic(Forwarding):
    """Emulated operations on one-dimensional carrier blocks and Python scalars; nothing is checked.

    An operation runs the line of a program with this one operation (`Operation`). No line takes a real scalar
    that binary64 does not hold, or one so large or small that intermediate results could leave the range of
    binary64. With such a scalar the operation is computed in fractions, element by element.

    The result of an operation on scalars alone is a Python float, the same in every block. Stochastic
    rounding then takes the word of index 0.
    """

    #: Streams of random words, index of the block's first element, and number of operations so far.
    random: Streams | None = None
    start = operations = 0

    def __init__(self, fmt: Format, rounding: Rounding, scalars: Scalars) -> None:
        check_processor()
        retain_freed_memory()
        self.format, self.rounding, self.scalars = fmt, rounding, scalars
        self.carrier = carrier_of(fmt)
        self.plan = plan(fmt, rounding, self.carrier)
        self._kernel = get_kernel(fmt, rounding.of_results, self.carrier)
        self._entering = get_kernel(fmt, rounding, self.carrier)
        self._wide_kernel = get_kernel(fmt, rounding.of_results, FLOAT64)
        self._wide_entering = get_kernel(fmt, rounding, FLOAT64)
        self._operations: dict[tuple[str, tuple[Kind, ...]], Operation] = {}

    def at(self, random: Streams | None, start: int) -> BlockArithmetic:
        """Return the arithmetic for the block from index `start` on, with the streams of its operations."""
        if not self.rounding.stochastic:
            return self
        block = copy(self)
        block.random, block.start, block.operations = random, start, 0
        return block

    def like(self, fmt: Format, rounding: Rounding) -> BlockArithmetic:
        """Return the emulator of another format and rounding, made once and cached."""
        return _like(fmt, rounding, self.scalars)

    # -- the operations -----------------------------------------------------------------------------------
    def neg(self, a: Value) -> Value:
        """Return ``-a``, rounded if it is no value of the format."""
        return self._changed("neg", a) if is_scalar(a) else self._operate("neg", a)

    def abs(self, a: Value) -> Value:
        """Return ``|a|``, rounded if it is no value of the format."""
        return self._changed("abs", a) if is_scalar(a) else self._operate("abs", a)

    def sign(self, a: Value) -> Value:
        """Return 1 or -1 by the sign of `a`, or an unchanged zero or NaN; rounded if 1 is no value."""
        return self._changed("sign", a) if is_scalar(a) else self._operate("sign", a)

    def round(self, x: Value) -> Value:
        """Return a block of either carrier, or a number, rounded to the format."""
        if is_scalar(x):
            return self._changed("round", x)
        kernel = self._entering if x.dtype == self.carrier else self._wide_entering
        result = np.empty(x.shape, kernel.carrier)
        kernel(x.astype(kernel.carrier, copy=False), result, self._words(x.size, self.start))
        return result.astype(self.carrier, copy=False)

    def settle(self, x: Value) -> Value:
        """Return values and results as they are, and round a number that is no value of the format.

        An algorithm may return a number that it was given as an operand; such a number is rounded here.
        """
        return self._changed("settle", x) if is_scalar(x) and type(x) is not RoundedNumber else x

    def keeps(self, x: NDArray[Any]) -> bool:
        """Return whether a block of the carrier holds only values of the format and NaN."""
        return self._kernel.keeps(x)

    # -- how they run -------------------------------------------------------------------------------------
    def _operate(self, name: str, *operands: Value) -> Value:
        scalars: tuple[Kind, ...] = tuple([type(x) is not np.ndarray and _is_number(x) for x in operands])
        if any(scalars):  # a result of numbers alone is no real scalar: it is neither flushed nor widened
            pairs = zip(operands, scalars, strict=True)
            scalars = tuple([RoundedNumber if is_result(x, self.format) else s for x, s in pairs])
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

    def _function(self, name: str, a: Value) -> Value:
        if _is_number(a):
            policy: Scalars = "exact" if is_result(a, self.format) else self.scalars
            found = function_of_real(name, a, self.format, self.rounding, policy, lambda: self._words(1, 0))
            return RoundedNumber(found, self.carrier)
        if has_codes(self.format):
            return self._operate(name, a)
        way, why = function_entry(self.format, self.rounding)
        if way is Way.REFUSED:
            raise refusal(name, self.format, self.rounding, why)
        if way is Way.NATIVE:
            return nearest_values(name, a)
        if self.rounding.underflow is Underflow.FLUSH_INPUTS:
            zero = np.copysign(a.dtype.type(0), a if self.format.has_negative_zero else 1)
            a = np.where(np.abs(a) < float(self.format.smallest_normal), zero, a)
        y = decided_values(name, a, self.format, self.format.precision + self.rounding.guard_bits)
        self._wide_kernel(y, y, self._words(a.size, self.start))
        return y.astype(self.carrier, copy=False)

    def _changed(self, name: str, x: Any) -> RoundedNumber:
        """Return the result of an operation on signs, or of rounding, for one number."""

        def one_word() -> Words | None:
            return self._words(1, 0)

        policy: Scalars = "exact" if is_result(x, self.format) else self.scalars
        found = changed_real(name, x, self.format, self.rounding, policy, one_word)
        return RoundedNumber(found, self.carrier)

    def _in_fractions(
        self, name: str, operands: tuple[Value, ...], size: int, words: Words | None
    ) -> NDArray[Any]:
        """Return an operation on numbers of any kind, each result first rounded to odd in binary64."""
        given = [self._entered(x) if is_scalar(x) else x.astype(np.float64) for x in operands]
        if self.rounding.underflow is Underflow.FLUSH_INPUTS:
            least = self.format.smallest_normal
            signed = self.format.has_negative_zero
            zeros = [np.copysign(0.0, signum(x)) if signed else 0.0 for x in given]
            given = [np.where(abs(x) < least, zero, x) for x, zero in zip(given, zeros, strict=True)]
        if name == "sub":
            given[1] = -given[1]
        # In this mode an exactly zero sum is -0, as -((-a) + (-b)) is.
        negated = self.rounding.mode is Mode.DOWN and name in ("add", "sub", "fma")
        if negated:
            given[0], given[-1] = -given[0], -given[-1]
        y = real_numbers.decided(name, *given)
        largest = np.finfo(np.float64).max
        if self.rounding.stochastic and float(self.format.max) > largest / 2 and (abs(y) == largest).any():
            raise UnsupportedFormatError(
                f"{name} in {self.format}, rounding {self.rounding.mode}, leaves the range of binary64"
            )
        y = np.array(np.broadcast_to(-y if negated else y, size))
        self._wide_kernel(y, y, words)
        return y.astype(self.carrier, copy=False)

    def _entered(self, x: Any) -> NDArray[Any]:
        """Return a real scalar as an array of one element, a float64 or a Fraction."""
        number, _ = enter(exact_or_binary64(x), self.format, self.rounding, self.scalars)
        return np.array([number], np.float64 if isinstance(number, float) else object)

    def _words(self, size: int, start: int) -> Words | None:
        """Return the words of the next stream for a block."""
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
