"""Source of LLVM's loops over blocks of one size, whose numbers share others: some blocks at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mcfsim.compile.group_source import greatest_measure
from mcfsim.compile.group_text import GroupLine
from mcfsim.compile.llvm_source import array, loops
from mcfsim.compile.llvm_text import REGISTERS, Function, module
from mcfsim.compile.lowering import Lowered
from mcfsim.kernels.element.machine import Value
from mcfsim.random import word_bits

#: Elements at a time: so few that they stay in the L1 cache between loops.
_AT_ONCE = 2048


def block_source(line: GroupLine, block: int, name: str) -> str:
    """Return the source of a module with ``encode``, ``fill``, ``decode``, ``measure`` or ``share``.

    It takes the arguments of that method of `mcfsim.compile.group_loops.BlockLoops`.
    """
    made = {"encode": _encoding, "fill": _filling, "decode": _decoding}
    made |= {"measure": _measuring, "share": _sharing}
    return module(f"Blocks of {block} numbers that share others.", made[name](line, block))


def _function(name: str, line: GroupLine, *arrays: tuple[str, int]) -> Function:
    numbers = [f"double %number{place}" for place in range(len(line.numbers))]
    return Function(name, [*(y for x in arrays for y in array(*x)), *numbers])


def _lowered(line: GroupLine) -> tuple[Lowered, dict[Value, str]]:
    """Return the line, and the names of the numbers that are the same for all blocks."""
    named = {x: f"%number{place}" for place, x in enumerate(line.numbers)}
    return Lowered(line.line, (), (), (), (), None), named


@contextmanager
def _some(function: Function, blocks: str, block: int) -> Iterator[tuple[str, str]]:
    """Return a context for some blocks at a time, which gives the number of the first, and how many."""
    some = max(1, _AT_ONCE // block)
    times = function.made(f"udiv i64 {function.made(f'add i64 {blocks}, {some - 1}')}, {some}")
    with function.loop(times) as time:
        first = function.made(f"mul i64 {time}, {some}")
        left = function.made(f"sub i64 {blocks}, {first}")
        yield first, function.made(f"call i64 @llvm.smin.i64(i64 {left}, i64 {some})")


def _measured(function: Function, line: GroupLine, block: int, first: str, count: str, found: str) -> None:
    """Append code that writes the greatest measure of each of some blocks."""
    lowered, known = _lowered(line)
    with function.loop(count) as k:
        start = function.made(f"mul i64 {function.made(f'add i64 {first}, {k}')}, {block}")
        part = function.at("float", "%x", start)

        def read(_: Value, i: str) -> str:
            return function.load("float", part, i)

        greatest = greatest_measure(function, line, lowered, read, f"{block}", known)
        function.store("i32", greatest, found, k)


def _each(
    function: Function,
    line: GroupLine,
    block: int,
    blocks: str,
    asked: Value,
    vectors: tuple[str, ...],
    before: Callable[[str, str], None] | None = None,
) -> None:
    """Append code that computes each element's value from another one and its block's shared numbers."""
    lowered, known = _lowered(line)
    taken, made, *words = vectors
    with _some(function, blocks, block) as (first, count):
        if before is not None:
            before(first, count)
        with function.loop(count) as k:
            g = function.made(f"add i64 {first}, {k}")
            row = function.made(f"mul i64 {g}, {len(line.shared)}")
            at = [function.made(f"add i64 {row}, {place}") for place in range(len(line.shared))]
            own = {x: function.load("float", "%shared", y) for x, y in zip(line.shared, at, strict=True)}
            start = function.made(f"mul i64 {g}, {block}")
            kind = REGISTERS[asked.type]
            part, out = function.at("float", taken, start), function.at(kind, made, start)

            drawn = [function.at(_word(line), x, start) for x in words]

            def read(value: Value, i: str) -> str:
                if value in line.word:
                    return _bits(function, line, drawn[0], i)
                return function.load("float", part, i)

            def put(_: int, x: str, i: str) -> None:
                function.store(kind, x, out, i)

            loops(function, lowered, (asked,), read, put, f"{block}", known | own, {}, apart=False)
    function.returns("0")


def _word(line: GroupLine) -> str:
    return f"i{word_bits(line.text.random_bits)}"


def _bits(function: Function, line: GroupLine, words: str, i: str) -> str:
    """Return the random bits of an element, the upper ones of its word."""
    bits, own = line.text.random_bits, _word(line)
    drawn = function.made(f"lshr {own} {function.load(own, words, i)}, {word_bits(bits) - bits}")
    return function.converted(drawn, own, REGISTERS[line.word[0].type])


def _filling(line: GroupLine, block: int) -> Function:
    function, vectors = _to_elements("fill", line)
    _each(function, line, block, "%shared.rows", line.encoded, vectors)
    return function


def _to_elements(name: str, line: GroupLine) -> tuple[Function, tuple[str, ...]]:
    """Return a function that writes elements, and the names of its vectors."""
    words = ["%words" for _ in line.word]
    arrays = ("%x", 1), ("%elements", 1), ("%shared", 2), *((x, 1) for x in words)
    return _function(name, line, *arrays), ("%x", "%elements", *words)


def _shared(function: Function, line: GroupLine, first: str, count: str, found: str) -> None:
    """Append code that writes the shared numbers of some blocks, given the greatest measure of each."""
    lowered, known = _lowered(line)

    def read(_: Value, k: str) -> str:
        return function.load("i32", found, k)

    def put(number: int, x: str, k: str) -> None:
        g = function.made(f"add i64 {first}, {k}")
        place = function.made(f"add i64 {function.made(f'mul i64 {g}, {len(line.shared)}')}, {number}")
        function.store("float", x, "%shared", place)

    loops(function, lowered, line.made, read, put, count, known, {}, apart=False)


def _encoding(line: GroupLine, block: int) -> Function:
    function, vectors = _to_elements("encode", line)
    found = function.variable("i32", max(1, _AT_ONCE // block))

    def share(first: str, count: str) -> None:
        _measured(function, line, block, first, count, found)
        _shared(function, line, first, count, found)

    _each(function, line, block, "%shared.rows", line.encoded, vectors, share)
    return function


def _decoding(line: GroupLine, block: int) -> Function:
    function = _function("decode", line, ("%elements", 1), ("%shared", 2), ("%out", 1))
    _each(function, line, block, "%shared.rows", line.decoded, ("%elements", "%out"))
    return function


def _measuring(line: GroupLine, block: int) -> Function:
    function = _function("measure", line, ("%x", 1), ("%found", 1))
    with _some(function, "%found.size", block) as (first, count):
        _measured(function, line, block, first, count, function.at("i32", "%found", first))
    function.returns("0")
    return function


def _sharing(line: GroupLine, block: int) -> Function:
    function = _function("share", line, ("%found", 1), ("%shared", 2))
    _shared(function, line, "0", "%found.size", "%found")
    function.returns("0")
    return function
