"""Lowering of a program to a straight line of machine operations, each operation by its plan."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from keyword import iskeyword
from typing import Any, Literal

import numpy as np

from mcfsim.compile.program import Draw, Program, ProgramStep, Register, identity
from mcfsim.compile.scalars import ON_SIGNS, ScalarEncoding
from mcfsim.formats import Format
from mcfsim.kernels.blocks import rounds
from mcfsim.kernels.carriers import FLOAT32, FLOAT64, UnsupportedFormatError, carrier_of, code_dtype, within
from mcfsim.kernels.element.codes import decode_element, encode_element, has_codes, is_code
from mcfsim.kernels.element.element_rounding import is_value
from mcfsim.kernels.element.floats import CARRIERS, NAN
from mcfsim.kernels.element.machine import DTYPES, F32, F64, I32, I64, Line, Type, Value
from mcfsim.kernels.element.operations import (
    Into,
    change_element,
    flush_element,
    fma_by_parts,
    function_element,
    operate_element,
    select_element,
)
from mcfsim.kernels.elementary import FUNCTIONS, function_entry
from mcfsim.kernels.operation_plan import SELECTING, Entry, Way, plan, refusal, selecting_entry, sum_within
from mcfsim.random import word_bits
from mcfsim.rounding import NEAREST, Overflow, Underflow

_TYPES = {FLOAT32: F32, FLOAT64: F64}
#: Whether operands and results are codes.
Packed = bool | Literal["operands", "results"]


@dataclass(frozen=True)
class Lowered:
    """A program lowered to a straight line of machine operations on one element.

    Attributes
    ----------
    line : Line
        Its inputs are those of the program, each in its format's carrier or as a code, and a number for each
        use of a real scalar.
    operands : tuple of Value
        The inputs that differ from element to element.
    numbers : tuple of Value
        The inputs that are the same for all elements, in the order of the uses.
    words : tuple of Value
        The inputs that are random words.
    results : tuple of Value
    strange : Value or None
        A truth value, true where an operand is no value of its format; None unless requested.
    draws : dict of Draw to int
        The operations that draw, and how many random bits, in the order of `words`. A word has 16 bits where
        they suffice, else 32.
    index : Value, optional
        An input that is the number of the element.
    packed : dict of Value to dtype
        The operands and results that are codes, and their dtypes in memory.
    notes : dict of int to str
        The operation of the program to which the values from a number on belong, with the algorithm's source
        line if it was recorded.
    clean : bool
        Whether the machine makes clean codes of NaN.
    """

    line: Line
    operands: tuple[Value, ...] = ()
    numbers: tuple[Value, ...] = ()
    words: tuple[Value, ...] = ()
    results: tuple[Value, ...] = ()
    strange: Value | None = None
    draws: Mapping[Draw, int] = field(default_factory=dict)
    index: Value | None = None
    notes: Mapping[int, str] = field(default_factory=dict)
    packed: Mapping[Value, np.dtype[Any]] = field(default_factory=dict)
    clean: bool = True

    def dtype(self, value: Value) -> np.dtype[Any]:
        """Return the dtype of an operand or a result in memory."""
        return self.packed.get(value, DTYPES[value.type])

    @cached_property
    def dtypes(self) -> tuple[tuple[np.dtype[Any], ...], ...]:
        """The dtypes of operands, results and numbers in memory."""
        return tuple(tuple(map(self.dtype, x)) for x in (self.operands, self.results, self.numbers))

    @property
    def asked(self) -> tuple[Value, ...]:
        """All that is to be computed: the results, and where an operand is strange if that is requested."""
        return self.results if self.strange is None else (*self.results, self.strange)

    @cached_property
    def tables(self) -> tuple[str, ...]:
        """The keys of the tables that are read, see `mcfsim.kernels.elementary.table_key`."""
        found = (x.constant for x in self.line.needed(self.asked) if x.verb == "look_up")
        return tuple(dict.fromkeys(map(str, found)))


#: Names that lines and generated sources use themselves.
_TAKEN = re.compile(
    r"(r|c|s|out|words?|operand|bits|numbers?|kept|[fiu])\d*(_low)?|found|start|loop|np|njit|sqrt|select|abs|min|range|"
    r"base|whole.*|"
    r"(round|encode|decode|add|sub|mul|fma)_b?float16|kernel|triton|tl|key|seed_low|seed_high|step|size|"
    r"inside|row|table|table_of|owners|ELEMENTS|ALIGNED|C\d+|T[0-9a-f]{12}"
)


def called(x: Register, place: int) -> str:
    """Return the name of a line's input for an operand: the operand's own name if that is free."""
    free = x.name.isidentifier() and not iskeyword(x.name) and _TAKEN.fullmatch(x.name) is None
    return x.name if free else f"operand{place}"


@lru_cache(maxsize=256)
def type_of(fmt: Format) -> Type:
    """Return the type of the register that holds a value of a format."""
    return _TYPES[carrier_of(fmt)]


def lower(
    program: Program,
    encoding: tuple[ScalarEncoding, ...],
    *,
    checked: bool = False,
    wide: bool = False,
    packed: Packed = False,
    trusted: Collection[int] = (),
    onto: tuple[Value, ...] = (),
    clean: bool = True,
    narrows: bool = True,
) -> Lowered:
    """Lower a program to a straight line of machine operations.

    Parameters
    ----------
    program : Program
    encoding : tuple of ScalarEncoding
        The encoding of each real scalar, in the order of `Program.uses`.
    checked : bool, optional
        Whether to tell where an operand is no value of its format.
    wide : bool, optional
        Whether all results are binary64 numbers.
    packed : bool or {"operands", "results"}, optional
        Whether these are codes, in formats with short ones (`mcfsim.kernels.element.codes.has_codes`).
    trusted : collection of int, optional
        The places of inputs that are known to be values of their formats, NaN with a clean code.
    onto : tuple of Value, optional
        The operands, if a line makes them; the program is then appended to that line.
    clean : bool, optional
        Whether the machine's NaN has a clean code: processors make one, NVIDIA's GPUs set all bits.
    narrows : bool, optional
        Whether it pays to switch to binary32, see `mcfsim.kernels.element.machine.Line`.

    Raises
    ------
    UnsupportedFormatError
        If an operation has no exact path in binary64.
    TypeError
        If a result is a number.
    """
    line: Line = onto[0].line if onto else Line(narrows=narrows)
    strange: Value | None = None
    lying: dict[Value, np.dtype[Any]] = {}
    taken, given = [], []
    for place, x in enumerate(program.inputs):
        coded = packed in (True, "operands") and has_codes(x.format)
        kind = I32 if coded else type_of(x.format)
        operand = onto[place] if onto else line.input(called(x, place), kind)
        if coded:
            lying[operand] = code_dtype(x.format)
        if checked and place not in trusted:
            other = ~(is_code if coded else is_value)(operand, x.format)
            strange = other if strange is None else strange | other
        taken.append(operand)
        given.append(decode_element(operand, x.format, type_of(x.format)) if coded else operand)
    # Processors give a NaN a clean code and propagate it; a NaN from elsewhere is cleaned. A NaN decoded from
    # a short code is zero below the code's last bit, which is as good.
    computed_with = {x for step in program.steps for x in step.registers if not _brings_over(step)}
    known: dict[Any, Value] = {}
    for place, (x, operand, value) in enumerate(zip(program.inputs, taken, given, strict=True)):
        as_it_is = not clean or place in trusted or operand in lying or x not in computed_with
        known[x] = value if as_it_is else _cleaned(value)
    numbers: dict[tuple[int, int], tuple[ScalarEncoding, list[Value]]] = {}
    for use, way in zip(program.uses, encoding, strict=True):
        narrow = way in (ScalarEncoding.VALUE, ScalarEncoding.SHORT, ScalarEncoding.CARRIER)
        kind = type_of(use.step.result.format) if narrow else F64
        names = [use.name, f"{use.name}_low"] if way is ScalarEncoding.PARTS else [use.name]
        numbers[id(use.step), use.position] = way, [line.input(name, kind) for name in names]
    draws = {step.draw: step.rounding.random_bits for step in program.steps if step.draw is not None}
    words = {draw: line.input(name, I64) for draw, name in program.words.items()}
    made = {step.result: step for step in program.steps}
    notes: dict[int, str] = {}
    for step in program.steps:
        operands, names = list[Value](), list[str]()
        ways = set()
        for position, x in enumerate(step.operands):
            if isinstance(x, Register):
                operands.append(known[x])
                names.append(str(x))
            else:
                way, parts = numbers[id(step), position]
                ways.add(way)
                operands += parts
                names.append(str(parts[0].constant))
        word = None
        if step.draw is not None:
            bits = draws[step.draw]  # the highest bits of the word
            word = words[step.draw].shr(word_bits(bits) - bits)
        elif step.rounding.stochastic:  # nothing is rounded
            word = line.constant(0, I64)
        asked = step.written(names, program.words.get(step.draw, ""))
        notes[len(line.values)] = f"{asked}  # {step.text}" if step.text else asked
        known[step.result] = _lowered(step, operands, ways, made, word, clean=clean)
    results = []
    for x in program.outputs():
        if not isinstance(x, Register):
            raise TypeError(f"{program.name} returns {x!r}, which is no result of an operation")
        result = known[x].widen() if wide else known[x]
        if packed in (True, "results") and has_codes(x.format):
            result = encode_element(result, x.format)
            lying[result] = code_dtype(x.format)
        results.append(result)
    return Lowered(
        line=line,
        operands=tuple(taken),
        numbers=tuple(x for _, parts in numbers.values() for x in parts),
        words=tuple(words.values()),
        results=tuple(results),
        strange=strange,
        draws=draws,
        notes=notes,
        packed=lying,
        clean=clean,
    )


def _brings_over(step: ProgramStep) -> bool:
    """Return whether an operation rounds a scalar or a value of another format."""
    (x, *_) = step.operands
    return step.operation == "round" and (not isinstance(x, Register) or x.format != step.result.format)


def _keeps(step: ProgramStep) -> bool:
    """Return whether an operation converts values that its own format has, too."""
    (x, *_) = step.operands
    if step.operation != "round" or not isinstance(x, Register) or step.rounding.stochastic:
        return False
    own, wide = x.format, step.result.format
    usual = type(own) is type(wide) is Format and wide.zero
    lacks = (
        own.has_infinity > wide.has_infinity
        or own.has_nan > wide.has_nan
        or own.has_negative_zero > wide.has_negative_zero
    )
    return usual and step.rounding.underflow is Underflow.GRADUAL and not lacks and within(own, wide)


def _cleaned(x: Value) -> Value:
    """Return a number unchanged, and NaN with a clean code and its sign."""
    sign = x.bits() & CARRIERS[x.type].sign_bit
    return x.equals(x).select(x, (x.like(NAN).bits() | sign).as_number())


def _lowered(
    step: ProgramStep,
    operands: list[Value],
    ways: set[ScalarEncoding],
    made: Mapping[Register, ProgramStep],
    word: Value | None,
    *,
    clean: bool,
) -> Value:
    fmt, rounding, operation = step.result.format, step.rounding, step.operation
    carrier = type_of(fmt)
    number = not isinstance(step.operands[0], Register)
    if number and operation in (*ON_SIGNS, *FUNCTIONS):  # which was encoded as the result itself
        return operands[0]
    if operation in ON_SIGNS:
        x = operands[0].widen() if carrier is F64 else operands[0]  # binary64 holds the bounds of the format
        if _keeps(step):
            return _cleaned(x) if clean else x
        clean = clean and not _brings_over(step)
        if operation == "sign" and not rounds(operation, fmt):  # 1 is a value, and no small result
            rounding = replace(rounding, underflow=Underflow.GRADUAL)
        return change_element(operation, x, Into(fmt, rounding, carrier, word, clean))
    into = Into(fmt, rounding, carrier, word, clean)
    chosen, why = way_of(step, ways, made, narrows=operands[0].line.narrows)
    if chosen is Way.REFUSED:
        raise refusal(operation, fmt, rounding, why)
    if operation in FUNCTIONS:
        if not has_codes(fmt):
            why = "loops and devices read tables, of floats of up to 16 bits with NaN; NumPy needs none"
            raise UnsupportedFormatError(f"{operation} in {fmt}: {why}")
        return function_element(operation, operands[0], into)
    if operation in SELECTING:
        return select_element(operation, operands, carrier)
    if ways & {ScalarEncoding.CARRIER, ScalarEncoding.WIDE}:
        if rounding.underflow is Underflow.FLUSH_INPUTS:
            values = [isinstance(x, Register) for x in step.operands]
            operands = [flush_element(x, fmt) if v else x for x, v in zip(operands, values, strict=True)]
            into = into.of_results()
        operation = "mul" if operation == "div" else operation
        return operate_element(operation, operands, chosen, into._replace(word=None))
    if ScalarEncoding.PARTS in ways:
        high, low, x, c = operands if number else (*operands[1:3], operands[0], operands[3])
        return fma_by_parts(x, (high, low), c, into)
    if ScalarEncoding.SHORT in ways:
        operation, operands = "add", [operands[0] * operands[1], operands[2]]
    return operate_element(operation, operands, chosen, into, real=ScalarEncoding.REAL in ways)


def way_of(
    step: ProgramStep,
    ways: set[ScalarEncoding],
    made: Mapping[Register, ProgramStep],
    *,
    narrows: bool = True,
) -> Entry:
    """Return how a step is performed in a line, and why that is exact.

    Parameters
    ----------
    step : ProgramStep
    ways : set of ScalarEncoding
        The encodings of its real scalars.
    made : mapping of Register to ProgramStep
        The steps of the program, by their results.
    narrows : bool, optional
        As for `lower`: whether sums that binary64 holds are better computed in binary32.
    """
    fmt, rounding, operation = step.result.format, step.rounding, step.operation
    carrier = carrier_of(fmt)
    if _keeps(step):
        return Entry(Way.EXACT, "the format has all values of the other")
    if operation == "round":
        return Entry(Way.EXACT, "a number of the carrier is rounded once")
    if operation in ON_SIGNS:
        return Entry(Way.EXACT, "but for its sign nothing is changed")
    if operation in FUNCTIONS:
        return function_entry(fmt, rounding)
    if operation in SELECTING:
        return selecting_entry(operation, rounding)
    if ScalarEncoding.CARRIER in ways:
        return Entry(Way.NATIVE, f"a number of {carrier} acts on every value as the scalar does")
    if ScalarEncoding.WIDE in ways:
        return Entry(Way.WIDE, "a number of binary64 acts on every value as the scalar does")
    planned, real = plan(fmt, rounding, carrier), bool(ways & {ScalarEncoding.REAL, ScalarEncoding.PARTS})
    if ScalarEncoding.PARTS in ways and planned.reals[operation].way is not Way.REFUSED:
        return Entry(Way.STICKY, "binary64 holds the products with both parts of the scalar")
    if ScalarEncoding.SHORT in ways:
        if _loses_nothing(step, made):
            return Entry(Way.EXACT_WITHIN, f"{carrier} holds what the rounded product of its factors lost")
        chosen = sum_within(fmt, rounding, carrier, values=False)
        assert chosen is not None
        return chosen._replace(
            why=f"{carrier} holds every product with the scalar, and loses no more of a sum"
        )
    chosen = (planned.reals if real else planned.values)[operation]
    if chosen.way is Way.REFUSED or real:
        return chosen
    if operation in ("add", "sub") and chosen.way is not Way.NATIVE:
        within = sum_within(fmt, rounding, carrier)
        longer = not narrows and chosen.way is Way.EXACT  # binary64 holds the sum, without an error
        return chosen if within is None or (longer and within.way is Way.STICKY_WITHIN) else within
    if operation == "fma" and _loses_nothing(step, made):
        return Entry(Way.EXACT, "binary64 holds what the rounded product of its factors lost")
    return chosen


def _loses_nothing(step: ProgramStep, made: Mapping[Register, ProgramStep]) -> bool:
    """Return whether an fma computes the rounding error of its factors' product, which binary64 holds.

    To nearest, the error of a product of values of p bits has 2 p bits at most, and an overflow is infinite.
    """
    *factors, last = step.operands
    fmt, rounding = step.result.format, step.rounding
    negative = made.get(last) if isinstance(last, Register) else None
    if negative is None or negative.operation != "neg" or negative.result.format != fmt:
        return False
    product = made.get(negative.operands[0]) if isinstance(negative.operands[0], Register) else None
    if product is None or product.operation != "mul" or product.result.format != fmt:
        return False
    nearest = rounding.mode in NEAREST and rounding.overflow is Overflow.IEEE
    plain = type(fmt) is Format and fmt.has_nan and fmt.signed and fmt.zero and 2 * fmt.precision < 53
    gradual = rounding.underflow is Underflow.GRADUAL
    same = list(map(identity, factors)) == list(map(identity, product.operands))
    return nearest and plain and gradual and same and product.rounding == negative.rounding == rounding
