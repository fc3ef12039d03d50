"""Programs run by PyTorch's operations on tensors of one device, a range of elements at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial, reduce
from operator import or_
from typing import Any, Protocol

import torch

from mcfsim.compile.launch import Ready, SourceWords
from mcfsim.compile.lines import AsBits, Epilogue, Lines
from mcfsim.compile.lowering import Lowered, lower, type_of
from mcfsim.compile.program import Program, Register
from mcfsim.compile.scalars import ScalarEncoding, encoding
from mcfsim.compile.single import by_policy
from mcfsim.compile.torch_calls import DTYPES, TorchCalls, constant, drawn, scalar
from mcfsim.eft import two_sum
from mcfsim.formats import Format
from mcfsim.kernels.element.element_rounding import is_value
from mcfsim.kernels.element.machine import F32, F64, I32, I64, Line, Type, Value
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


@dataclass(frozen=True)
class TensorLoop:
    """A straight line of machine operations, with its inputs and results, for tensors of stated dtypes.

    Attributes
    ----------
    calls : TorchCalls
        Takes the elements, words, and numbers that are the same for all elements; if the loop looks for
        strange elements, the last result tells where they are.
    numbers, results : tuple of Type
        The types of the numbers that it takes, and of its results.
    draws : tuple of (int, int)
        Which operations draw, and how many random bits.
    looks : bool
        Whether it looks for strange elements, those that are no values of their formats.
    """

    calls: TorchCalls
    numbers: tuple[Type, ...]
    results: tuple[Type, ...]
    draws: tuple[tuple[int, int], ...]
    looks: bool

    def __call__(
        self,
        operands: Tensors,
        shape: torch.Size,
        streams: DeviceStreams | None = None,
        start: int = 0,
        *,
        numbers: Sequence[float] = (),
    ) -> Carried:
        """Return new tensors of a shape to which the operands broadcast, and whether an element is strange.

        An element's random words depend on its index in row-major order, counted from `start`.
        """
        device, size = operands[0].device, shape.numel()
        flat = [x.reshape(1) if x.numel() == 1 else x.expand(shape).reshape(-1) for x in operands]
        singles = [scalar(x, kind, device) for x, kind in zip(numbers, self.numbers, strict=True)]
        results = [torch.empty(shape, dtype=DTYPES[kind], device=device) for kind in self.results]
        found = torch.zeros((), dtype=torch.bool, device=device)
        for first in range(0, size, AT_ONCE):
            part = slice(first, min(first + AT_ONCE, size))
            given = [y for x in flat for y in as_numbers(x if x.numel() == 1 else x[part])]
            for operation, bits in self.draws:
                assert streams is not None
                given.append(drawn(streams.of(operation), start + first, part.stop - first, bits, device))
            made = self.calls([*given, *singles])
            if self.looks:
                found = torch.bitwise_or(found, torch.any(made.pop()))
            for result, numbers_made in zip(results, made, strict=True):
                result.view(-1)[part].copy_(numbers_made)
        return results, self.looks and bool(found)


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


@dataclass(frozen=True)
class CacheKey:
    """An item together with a key for caches; only the keys are compared."""

    key: Any
    item: Any = field(compare=False)


def values_alone(program: Program) -> Program:
    """Return a program without the results that are plain numbers instead of values."""
    return replace(program, results=tuple(x for x in program.outputs() if isinstance(x, Register)))


def loop_of(
    program: Program, dtypes: tuple[torch.dtype, ...], scalars: Scalars, *, checked: bool
) -> Callable[..., Carried]:
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
    program = by_policy(program, scalars)
    pairs = [encoding(use, x, scalars) for use, x in zip(program.uses, program.reals(), strict=True)]
    loop = _loop(CacheKey(program.key, program), tuple(way for way, _ in pairs), dtypes, checked)
    return partial(loop, numbers=[number for _, numbers in pairs for number in numbers])


@lru_cache(maxsize=512)
def _loop(
    kept: CacheKey, ways: tuple[ScalarEncoding, ...], dtypes: tuple[torch.dtype, ...], checked: bool
) -> TensorLoop:
    line, given, values, strange = Line(), list[Value](), list[Value](), list[Value]()
    for place, (x, dtype) in enumerate(zip(kept.item.inputs, dtypes, strict=True)):
        inputs, value, lost = _entered(line, dtype, place)
        carrier = type_of(x.format)
        value = value.widen() if carrier is F64 else value
        other = ~is_value(value, x.format)
        strange.append(other if lost is None else other | ~lost.equals(0.0))
        value = value.narrow() if carrier is F32 else value
        values.append(value if x.format.has_negative_zero else value + 0.0)  # -0 + 0 is +0
        given += inputs
    lowered = lower(kept.item, ways, onto=tuple(values), clean=False)
    results = list(lowered.results)
    if checked:
        results.append(reduce(or_, strange))
    return TensorLoop(
        calls=TorchCalls(results, [*given, *lowered.words, *lowered.numbers]),
        numbers=tuple(x.type for x in lowered.numbers),
        results=tuple(x.type for x in lowered.results),
        draws=tuple((draw.operation, bits) for draw, bits in lowered.draws.items()),
        looks=checked,
    )


@lru_cache(maxsize=512)
def rounding_loop(dtype: torch.dtype, fmt: Format, rounding: Rounding) -> TensorLoop:
    """Return the loop that rounds tensors of a dtype into a format, each number once.

    Integers that cannot be rounded once are strange.
    """
    line, carrier = Line(), type_of(fmt)
    inputs, x, lost = _entered(line, dtype, 0)
    bits, word, given, strange = rounding.random_bits, None, list(inputs), list[Value]()
    if rounding.stochastic:
        given.append(line.input("word", I64))
        word = given[-1].shr(word_bits(bits) - bits)
    if lost is None:
        x = x.widen() if carrier is F64 else x
        rounded = change_element("round", x, Into(fmt, rounding, carrier, word))
    else:
        way = Way.STICKY
        if fmt.precision + rounding.guard_bits > 53:
            way = Way.EXACT
            if not integers_as_binary64(fmt, rounding):
                strange.append(~lost.equals(0.0))
        if rounding.underflow is Underflow.FLUSH_INPUTS:  # the operand is the sum, and not its terms
            rounding = replace(rounding, underflow=Underflow.FLUSH_BEFORE)
        rounded = operate_element("add", inputs, way, Into(fmt, rounding, carrier, word), real=True)
    return TensorLoop(
        calls=TorchCalls([rounded, *strange], given),
        numbers=(),
        results=(rounded.type,),
        draws=((0, bits),) if rounding.stochastic else (),
        looks=bool(strange),
    )


def _entered(line: Line, dtype: torch.dtype, place: int) -> tuple[list[Value], Value, Value | None]:
    """Return the inputs for numbers of a dtype, as of `as_numbers`; the number; and its error, if any."""
    if dtype in _WHOLE:
        high, low = line.input(f"high{place}", F64), line.input(f"low{place}", F64)
        number, lost = two_sum(BINARY64, high, low)
        return [high, low], number, lost
    short = dtype.is_floating_point and dtype != torch.float64
    x = line.input(f"operand{place}", F32 if short else F64)
    return [x], x, None


# -- on tensors in place ----------------------------------------------------------------------------------
@dataclass(frozen=True)
class BoundTensorLoop(Ready):
    """A line bound to its real scalars, run by PyTorch's operations."""

    calls: TorchCalls = field(kw_only=True)

    def __call__(
        self, operands: Tensors, results: Tensors, start: int = 0, words: SourceWords | None = None
    ) -> None:
        """Fill results from operands as `mcfsim.compile.launch.Launcher` does, with the same exceptions."""
        vectors, streams = self.checked(operands, results), self.streams(words)
        taken, filled = vectors[: len(operands)], vectors[len(operands) :]
        device, size = vectors[0].device, vectors[0].numel()
        pairs = zip(self._numbers, self.lowered.numbers, strict=True)
        numbers = [scalar(number, value.type, device) for number, value in pairs]
        for first in range(0, size, AT_ONCE):
            part = slice(first, min(first + AT_ONCE, size))
            given = [
                self._read(x[part], value) for x, value in zip(taken, self.lowered.operands, strict=True)
            ]
            for stream, bits in zip(streams, self.lowered.draws.values(), strict=True):
                given.append(drawn(stream, start + first, part.stop - first, bits, device))
            # Copies, because a result may be an operand and share memory that is still read. Integers keep
            # their lower bits.
            made = self.calls([*given, *numbers])
            kept = [y.to(x.dtype, copy=True) for x, y in zip(filled, made, strict=True)]
            for x, y in zip(filled, kept, strict=True):
                x[part].copy_(y)

    def _read(self, x: torch.Tensor, value: Any) -> torch.Tensor:
        """Return part of a vector as the line takes it."""
        dtype = self.lowered.packed.get(value)
        if dtype is None:
            return x
        return torch.bitwise_and(x.to(torch.int32), constant(2 ** (8 * dtype.itemsize) - 1, I32, x.device))


class TensorLines(Lines):
    """A program on codes, run by PyTorch's operations.

    Parameters
    ----------
    program, scalars, joined, epilogue
        As for `mcfsim.compile.kernel.TableKernel`.
    """

    def __init__(
        self,
        program: Program,
        scalars: Scalars = "exact",
        joined: AsBits | None = None,
        *,
        epilogue: Epilogue | None = None,
    ) -> None:
        super().__init__(program, scalars, epilogue, joined, packed=True, clean=False)

    def with_numbers(self, numbers: Sequence[Any]) -> BoundTensorLoop:
        """Return the line bound to real scalars, as `mcfsim.compile.kernel.TableKernel.with_numbers` does."""
        ways, found = self._entering(numbers)
        lowered, calls = self._lowered(ways)
        return BoundTensorLoop("", lowered, tuple(found), calls=calls)

    def _emitted(self, lowered: Lowered, about: str) -> TorchCalls:
        return TorchCalls(lowered.results, [*lowered.operands, *lowered.words, *lowered.numbers])
