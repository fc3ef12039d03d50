"""Programs run by PyTorch's operations on tensors of one device, a range of elements at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from operator import or_
from typing import Any, Protocol

import torch

from mcfsim.compile.launch import Ready, SourceWords
from mcfsim.compile.lines import Lines
from mcfsim.compile.lowering import Lowered, lower, type_of
from mcfsim.compile.program import CacheKey, Draw, Program, Register
from mcfsim.compile.scalars import ScalarEncoding
from mcfsim.compile.torch_calls import DTYPES, TorchCalls, constant, drawn, scalar
from mcfsim.eft import two_sum
from mcfsim.formats import Format
from mcfsim.kernels.element.element_rounding import is_value
from mcfsim.kernels.element.machine import F32, F64, I32, I64, Line, Value
from mcfsim.kernels.element.operations import BINARY64, Into, change_element, operate_element
from mcfsim.kernels.operation_plan import Way, integers_as_binary64
from mcfsim.kernels.real_numbers import Scalars
from mcfsim.kernels.torch_tensors import Tensors
from mcfsim.random import RandomWords, word_bits
from mcfsim.rounding import Rounding, Underflow

#: Elements processed at a time: enough to outweigh the cost of calls, and few enough to keep memory small.
AT_ONCE = 1 << 22
#: Results on tensors, and whether some element of an operand is no value of its format.
Carried = tuple[list[torch.Tensor], bool]
#: Runs an algorithm on tensors that broadcast to a shape, given streams of random words and the first index.
TensorWay = Callable[[Tensors, torch.Size, "DeviceStreams | None", int], Carried]
#: Dtypes with numbers that binary64 cannot hold; each enters as the exact sum of two numbers.
_WHOLE = (torch.int64, torch.uint64)
_LOW = 2**32 - 1


class DeviceStreams(Protocol):
    """A source of random words, given by seed, step and stream, so that a device can draw them."""

    def of(self, operation: int) -> RandomWords:
        """Return the stream of an operation, counted from 0."""


def taken(streams: DeviceStreams | None, count: int) -> DeviceStreams | None:
    """Return streams after taking `count` of them, one per operation, whether its result is used or not."""
    if streams is not None and count:
        streams.of(count - 1)
    return streams


def as_numbers(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return a tensor's elements exactly, as binary32 or binary64 numbers or as sums of two binary64 numbers.

    Raises
    ------
    TypeError
        If its elements are no real numbers.
    """
    if x.dtype in (torch.float32, torch.float64):
        return (x,)
    if x.dtype in _WHOLE:
        bits = x.view(torch.int64)
        low, places = constant(_LOW, I64, x.device), constant(32, I64, x.device)
        high = torch.bitwise_right_shift(bits, places)
        high = torch.bitwise_and(high, low) if x.dtype == torch.uint64 else high
        scaled = torch.mul(high.to(torch.float64), constant(2.0**32, F64, x.device))
        return scaled, torch.bitwise_and(bits, low).to(torch.float64)
    if x.dtype.is_floating_point and x.dtype.itemsize <= 2:
        return (x.to(torch.float32),)
    if x.dtype == torch.bool or x.is_complex() or x.dtype.is_floating_point:
        raise TypeError(f"a tensor of dtype {x.dtype} is no tensor of real numbers")
    return (x.to(torch.int64).to(torch.float64),)


# -- lines bound to numbers -------------------------------------------------------------------------------
@dataclass(frozen=True)
class BoundTensorLoop(Ready):
    """A line bound to its real scalars, run by PyTorch's operations.

    Attributes
    ----------
    calls : TorchCalls
        Takes the line's operands, words and numbers, and returns all that is asked of it.
    """

    calls: TorchCalls

    def __call__(
        self, operands: Tensors, results: Tensors, start: int = 0, words: SourceWords | None = None
    ) -> None:
        """Fill results from operands as `mcfsim.compile.launch.Launcher` does, with the same exceptions."""
        vectors, streams = self.checked(operands, results), self.streams(words)
        taken, filled = vectors[: len(operands)], vectors[len(operands) :]

        def read(part: slice) -> list[torch.Tensor]:
            return [self._read(x[part], value) for x, value in zip(taken, self.lowered.operands, strict=True)]

        for part, made in self._in_parts(vectors[0].numel(), read, streams, start, vectors[0].device):
            # Copies, because a result may be an operand and share memory that is still read. Integers keep
            # their lower bits.
            kept = [y.to(x.dtype, copy=True) for x, y in zip(filled, made, strict=True)]
            for x, y in zip(filled, kept, strict=True):
                x[part].copy_(y)

    def on_any(
        self, operands: Tensors, shape: torch.Size, streams: DeviceStreams | None = None, start: int = 0
    ) -> Carried:
        """Return new tensors of a shape to which operands broadcast, and whether an element is strange.

        The operands are of the dtypes whose numbers the line takes, see `as_numbers`; strange elements are no
        values of their formats. An element's random words depend on its index in row-major order, counted
        from `start`.
        """
        device, looks = operands[0].device, self.lowered.strange is not None
        flat = [x.reshape(1) if x.numel() == 1 else x.expand(shape).reshape(-1) for x in operands]
        words = [] if streams is None else [streams.of(draw.operation) for draw in self.lowered.draws]
        results = [torch.empty(shape, dtype=DTYPES[x.type], device=device) for x in self.lowered.results]
        found = torch.zeros((), dtype=torch.bool, device=device)

        def read(part: slice) -> list[torch.Tensor]:
            return [y for x in flat for y in as_numbers(x if x.numel() == 1 else x[part])]

        for part, made in self._in_parts(shape.numel(), read, words, start, device):
            if looks:
                found = torch.bitwise_or(found, torch.any(made.pop()))
            for result, numbers in zip(results, made, strict=True):
                result.view(-1)[part].copy_(numbers)
        return results, looks and bool(found)

    def _in_parts(
        self,
        size: int,
        read: Callable[[slice], list[torch.Tensor]],
        streams: Sequence[RandomWords],
        start: int,
        device: torch.device,
    ) -> Iterator[tuple[slice, list[torch.Tensor]]]:
        """Yield what is asked for a range of elements at a time; `read` returns the operands there."""
        pairs = zip(self._numbers, self.lowered.numbers, strict=True)
        numbers = [scalar(number, value.type, device) for number, value in pairs]
        drawing = list(zip(streams, self.lowered.draws.values(), strict=True))
        for first in range(0, size, AT_ONCE):
            part = slice(first, min(first + AT_ONCE, size))
            words = [drawn(x, start + first, part.stop - first, bits, device) for x, bits in drawing]
            yield part, self.calls([*read(part), *words, *numbers])

    def _read(self, x: torch.Tensor, value: Any) -> torch.Tensor:
        """Return part of a vector as the line takes it."""
        dtype = self.lowered.packed.get(value)
        if dtype is None:
            return x
        return torch.bitwise_and(x.to(torch.int32), constant(2 ** (8 * dtype.itemsize) - 1, I32, x.device))


def calls_of(lowered: Lowered) -> TorchCalls:
    """Return all that is asked of a line as calls on its operands, words and numbers."""
    return TorchCalls(lowered.asked, [*lowered.operands, *lowered.words, *lowered.numbers])


class TensorLines(Lines[BoundTensorLoop]):
    """A program run by PyTorch's operations: on codes, or on tensors of stated dtypes.

    Parameters
    ----------
    *given, **options
        As for `mcfsim.compile.lines.Lines`.
    dtypes : tuple of dtype, optional
        The dtypes of the tensors, one per input, that `BoundTensorLoop.on_any` takes.
    checked : bool, optional
        Whether to look for elements of these tensors that are no values of their formats.
    """

    def __init__(
        self,
        *given: Any,
        dtypes: tuple[torch.dtype, ...] | None = None,
        checked: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(*given, packed=True, clean=False, **options)
        self._dtypes, self._checked = dtypes, checked

    def _line(self, ways: tuple[ScalarEncoding, ...], **options: Any) -> Lowered:
        if self._dtypes is None:
            return super()._line(ways, **options)
        line, given, values, strange = Line(), list[Value](), list[Value](), list[Value]()
        for place, (x, dtype) in enumerate(zip(self.program.inputs, self._dtypes, strict=True)):
            inputs, value, lost = _entered(line, dtype, place)
            carrier = type_of(x.format)
            value = value.widen() if carrier is F64 else value
            other = ~is_value(value, x.format)
            strange.append(other if lost is None else other | ~lost.equals(0.0))
            value = value.narrow() if carrier is F32 else value
            values.append(value if x.format.has_negative_zero else value + 0.0)  # -0 + 0 is +0
            given += inputs
        lowered = lower(self.program, ways, onto=tuple(values), clean=False)
        found = reduce(or_, strange) if self._checked else None
        return replace(lowered, operands=tuple(given), strange=found)

    def _bound(self, ways: tuple[ScalarEncoding, ...], numbers: tuple[float, ...]) -> BoundTensorLoop:
        lowered, calls = self._lowered(ways)
        return BoundTensorLoop(lowered, numbers, calls)

    def _emitted(self, lowered: Lowered, about: str) -> TorchCalls:
        return calls_of(lowered)


# -- ways to run a program on tensors ---------------------------------------------------------------------
def values_alone(program: Program) -> Program:
    """Return a program without the results that are plain numbers instead of values."""
    return replace(program, results=tuple(x for x in program.outputs() if isinstance(x, Register)))


def loop_of(
    program: Program, dtypes: tuple[torch.dtype, ...], scalars: Scalars, *, checked: bool
) -> TensorWay:
    """Return the loop of a program for tensors of the given dtypes, bound to its numbers.

    Parameters
    ----------
    program : Program
    dtypes : tuple of dtype
        The dtypes of the tensors, one per input.
    scalars : {"exact", "rounded", "float32"}
        How real scalars enter.
    checked : bool
        Whether the loop looks for elements that are no values of their formats.

    Raises
    ------
    UnsupportedFormatError
        If an operation has no exact path in binary64, or a real scalar leads beyond that.
    """
    lines = _lines(CacheKey(program.key, program), scalars, dtypes, checked)
    return lines.with_numbers(program.reals()).on_any


@lru_cache(maxsize=512)
def _lines(kept: CacheKey, scalars: Scalars, dtypes: tuple[torch.dtype, ...], checked: bool) -> TensorLines:
    return TensorLines(kept.item, scalars, dtypes=dtypes, checked=checked)


@lru_cache(maxsize=512)
def rounding_loop(dtype: torch.dtype, fmt: Format, rounding: Rounding) -> TensorWay:
    """Return the loop that rounds tensors of a dtype into a format, each number once.

    Integers that cannot be rounded once are strange.
    """
    line, carrier = Line(), type_of(fmt)
    inputs, x, lost = _entered(line, dtype, 0)
    bits, words, strange = rounding.random_bits, list[Value](), None
    if rounding.stochastic:
        words.append(line.input("word", I64))
    word = words[0].shr(word_bits(bits) - bits) if words else None
    if lost is None:
        x = x.widen() if carrier is F64 else x
        rounded = change_element("round", x, Into(fmt, rounding, carrier, word))
    else:
        way = Way.STICKY
        if fmt.precision + rounding.guard_bits > 53:
            way = Way.EXACT
            if not integers_as_binary64(fmt, rounding):
                strange = ~lost.equals(0.0)
        if rounding.underflow is Underflow.FLUSH_INPUTS:  # the operand is the sum, and not its terms
            rounding = replace(rounding, underflow=Underflow.FLUSH_BEFORE)
        rounded = operate_element("add", inputs, way, Into(fmt, rounding, carrier, word), real=True)
    lowered = Lowered(
        line,
        operands=tuple(inputs),
        words=tuple(words),
        results=(rounded,),
        strange=strange,
        draws={Draw(0, 0): bits} if words else {},
    )
    return BoundTensorLoop(lowered, (), calls_of(lowered)).on_any


def _entered(line: Line, dtype: torch.dtype, place: int) -> tuple[list[Value], Value, Value | None]:
    """Return the inputs for numbers of a dtype, as of `as_numbers`; the number; and its error, if any."""
    if dtype in _WHOLE:
        high, low = line.input(f"high{place}", F64), line.input(f"low{place}", F64)
        number, lost = two_sum(BINARY64, high, low)
        return [high, low], number, lost
    short = dtype.is_floating_point and dtype != torch.float64
    x = line.input(f"operand{place}", F32 if short else F64)
    return [x], x, None
