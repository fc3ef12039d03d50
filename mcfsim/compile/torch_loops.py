"""Programs carried out on PyTorch's tensors of one device, a stretch of elements at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Protocol

import torch

from mcfsim.compile.lowering import lower, type_of
from mcfsim.compile.program import Program, Register
from mcfsim.compile.scalars import Entering, entering, uses
from mcfsim.compile.torch_calls import DTYPES, TorchCalls, constant, drawn, scalar
from mcfsim.eft import two_sum
from mcfsim.formats import Format
from mcfsim.kernels.element.element_rounding import is_value
from mcfsim.kernels.element.machine import F32, F64, I64, Line, Type, Value
from mcfsim.kernels.element.operations import BINARY64, change_element, operate_element
from mcfsim.kernels.operation_plan import Way
from mcfsim.kernels.real_numbers import Scalars
from mcfsim.random import RandomWords, word_bits
from mcfsim.rounding import Mode, Rounding, Underflow

#: Elements that are worked on at once: enough to outweigh calls, and few enough to keep memory small.
AT_ONCE = 1 << 22
#: What comes of a text on tensors: results, and whether an element of an operand is no value of its format.
Carried = tuple[list[torch.Tensor], bool]
#: Dtypes whose numbers binary64 need not hold; they enter as two numbers whose sum they are.
_WHOLE = (torch.int64, torch.uint64)
_LOW = 2**32 - 1


class DeviceStreams(Protocol):
    """Where operations find their random words, by seed, step and stream, so that a device can draw them."""

    def of(self, operation: int) -> RandomWords:
        """Return the stream of an operation, counted from 0."""


def taken(streams: DeviceStreams | None, count: int) -> DeviceStreams | None:
    """Return streams, so many of them taken: each operation's, its result wanted or not."""
    if streams is not None and count:
        streams.of(count - 1)
    return streams


@dataclass(frozen=True)
class TensorLoop:
    """A line with what it is given, for tensors of stated dtypes.

    Attributes
    ----------
    calls : TorchCalls
        Given the elements, words, and numbers that are the same for all elements; the last result is where an
        element is strange, if the loop looks for that.
    numbers, results : tuple of Type
        Of the numbers that it is given, and of what it makes.
    draws : tuple of (int, int)
        Which operations draw, and how many random bits.
    looks : bool
        Whether it looks for strange elements.
    """

    calls: TorchCalls
    numbers: tuple[Type, ...]
    results: tuple[Type, ...]
    draws: tuple[tuple[int, int], ...]
    looks: bool

    def __call__(
        self,
        operands: Sequence[torch.Tensor],
        shape: torch.Size,
        numbers: Sequence[float] = (),
        streams: DeviceStreams | None = None,
        start: int = 0,
    ) -> Carried:
        """Return new tensors of a shape to which the operands broadcast, and whether an element is strange.

        Words go by the index in row-major order, counted from `start` on.
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
    """Return the elements of a tensor as binary32 or binary64 numbers, or as sums of two of binary64; exact.

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
class Keyed:
    """What something is made of, as the key under which that is kept; the rest of it may be other."""

    key: Any
    item: Any = field(compare=False)


def values_alone(program: Program) -> Program:
    """Return a program without those results that are no values, but numbers that a text returns."""
    return replace(program, results=tuple(x for x in program.outputs() if isinstance(x, Register)))


def loop_of(
    program: Program, dtypes: tuple[torch.dtype, ...], scalars: Scalars, *, checked: bool
) -> tuple[TensorLoop, list[float]]:
    """Return the loop of a program for tensors of some dtypes, and the numbers that it is to be given.

    Parameters
    ----------
    program : Program
    dtypes : tuple of dtype
        Of the tensors, one an input.
    scalars : {"exact", "rounded"}
        How real scalars enter.
    checked : bool
        Whether the loop looks for elements that are no values of their formats.

    Raises
    ------
    UnsupportedFormatError
        If an operation has no exact path in binary64, or a real scalar leads beyond that.
    """
    pairs = [entering(use, use.number({}), scalars) for use in uses(program)]
    ways = tuple(way for way, _ in pairs)
    loop = _loop(Keyed(program.key, program), ways, dtypes, checked)
    return loop, [number for _, numbers in pairs for number in numbers]


@lru_cache(maxsize=512)
def _loop(
    kept: Keyed, ways: tuple[Entering, ...], dtypes: tuple[torch.dtype, ...], checked: bool
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
        found = strange[0]
        for other in strange[1:]:
            found = found | other
        results.append(found)
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

    Strange are integers that cannot be rounded once.
    """
    line, carrier = Line(), type_of(fmt)
    inputs, x, lost = _entered(line, dtype, 0)
    bits, word, given, strange = rounding.random_bits, None, list(inputs), list[Value]()
    if rounding.stochastic:
        given.append(line.input("word", I64))
        word = given[-1].shr(word_bits(bits) - bits)
    if lost is None:
        x = x.widen() if carrier is F64 else x
        rounded = change_element("round", x, fmt, rounding, word, carrier=carrier)
    else:
        way = Way.STICKY
        if fmt.precision + rounding.guard_bits > 53:
            way = Way.EXACT
            if rounding.mode is not Mode.NEAREST_EVEN or fmt.precision != 53:
                strange.append(~lost.equals(0.0))
        if rounding.underflow is Underflow.FLUSH_INPUTS:  # the operand is the sum, and no part of it
            rounding = replace(rounding, underflow=Underflow.FLUSH_BEFORE)
        rounded = operate_element("add", inputs, way, fmt, rounding, word, carrier=carrier, real=True)
    return TensorLoop(
        calls=TorchCalls([rounded, *strange], given),
        numbers=(),
        results=(rounded.type,),
        draws=((0, bits),) if rounding.stochastic else (),
        looks=bool(strange),
    )


def quotients(x: torch.Tensor, y: torch.Tensor, fmt: Format, rounding: Rounding) -> torch.Tensor:
    """Return quotients of binary32 numbers that lie in float64, each rounded once, in the format's carrier.

    What is divided by zero is a zero of its sign, as where all numbers of a group that share a scale are.
    """
    (found,), _ = _quotient_loop(fmt, rounding)([x, y], x.shape)
    return found


@lru_cache(maxsize=64)
def _quotient_loop(fmt: Format, rounding: Rounding) -> TensorLoop:
    line = Line()
    x, y = line.input("x", F64), line.input("y", F64)
    # No quotient of binary32 numbers leaves binary64's range, nor does what it lost.
    made = operate_element("div", [x, y], Way.STICKY, fmt, rounding, carrier=type_of(fmt), real=True)
    zero = change_element("round", x * 0.0, fmt, rounding, carrier=type_of(fmt))
    result = y.equals(0.0).select(zero, made)
    return TensorLoop(TorchCalls([result], [x, y]), (), (result.type,), (), looks=False)


def _entered(line: Line, dtype: torch.dtype, place: int) -> tuple[list[Value], Value, Value | None]:
    """Return the inputs that stand for numbers of a dtype, the number, and what it lost, as `as_numbers`."""
    if dtype in _WHOLE:
        high, low = line.input(f"high{place}", F64), line.input(f"low{place}", F64)
        number, lost = two_sum(BINARY64, high, low)
        return [high, low], number, lost
    short = dtype.is_floating_point and dtype != torch.float64
    x = line.input(f"operand{place}", F32 if short else F64)
    return [x], x, None
