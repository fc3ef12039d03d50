"""Source of LLVM's loops that encode and decode groups of numbers with shared numbers (scales).

Groups lie between bounds. Blocks are groups of one size; some are processed at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.compile.group_algorithm import GroupLine, Places, Warps
from mcfsim.compile.llvm_source import array, loops
from mcfsim.compile.llvm_text import REGISTERS, Function, module, number
from mcfsim.compile.lowering import Lowered
from mcfsim.kernels.element.machine import Value
from mcfsim.random import word_bits

Array = NDArray[Any]


def group_source(line: GroupLine, places: Places | None, name: str) -> str:
    """Return the source of a module with a function ``encode`` or ``decode``.

    It takes `group_tables`, and the arguments of that method of `GroupLoops`.
    """
    made = _encoding(line, places) if name == "encode" else _decoding(line)
    return module("Groups of numbers that share others.", made)


def group_tables(line: GroupLine, places: Places | None) -> list[Array]:
    """Return the tables that both functions take: numbers by place, bounds of places, and buckets' starts."""
    if places is None:
        return [] if line.algorithm.table is None else [line.algorithm.table]
    beyond = np.append(places.bounds, np.float32("nan"))  # which no number reaches
    assert line.algorithm.table is not None
    return [line.algorithm.table, beyond, places.buckets.starts]


def _begun(
    name: str, line: GroupLine, arguments: Sequence[tuple[str, int]], *, wide: bool = True
) -> tuple[Function, Lowered]:
    """Return a function that takes the tables and arrays, by names and dimensions, and its line."""
    tables = [] if line.algorithm.table is None else ["%table"]
    tables += [] if line.algorithm.places is None else ["%reached", "%starts"]
    taken = [*((x, 1) for x in tables), *arguments]
    function = Function(name, [y for x in taken for y in array(*x)], wide=wide)
    return function, Lowered(line.line)


def _group(function: Function, g: str) -> tuple[str, str]:
    """Return the start and the size of a group."""
    start = function.load("i64", "%bounds", g)
    end = function.load("i64", "%bounds", function.made(f"add i64 {g}, 1"))
    return start, function.made(f"sub i64 {end}, {start}")


def _shared(function: Function, line: GroupLine, g: str) -> list[str]:
    """Return pointers to the shared numbers of a group."""
    row = function.made(f"mul i64 {g}, %shared.columns")
    at = (function.made(f"add i64 {row}, {place}") for place in range(len(line.shared)))
    return [function.at("float", "%shared", place) for place in at]


def _greatest_measure(
    function: Function,
    line: GroupLine,
    lowered: Lowered,
    read: Callable[[Value, str], str],
    size: str,
    known: Mapping[Value, str],
) -> str:
    """Append a loop over the numbers of a group; return the greatest of their measures."""
    greatest = function.variable("i32")
    function.store("i32", "0", greatest)

    def put(_: int, x: str, i: str) -> None:
        most = function.made(f"call i32 @llvm.smax.i32(i32 {function.load('i32', greatest)}, i32 {x})")
        function.store("i32", most, greatest)

    loops(function, lowered, (line.measured,), read, put, size, known)
    return function.load("i32", greatest)


def _encoding(line: GroupLine, places: Places | None) -> Function:
    taken = [("%x", 1), ("%bounds", 1), ("%codes", 1), ("%shared", 2)]
    function, lowered = _begun("encode", line, taken, wide=places is None)
    warps = line.algorithm.warps
    threads = "" if warps is None else function.variable("float", warps.block)
    of_warps = "" if warps is None else function.variable("float", warps.width)
    with function.loop(function.made("sub i64 %bounds.size, 1")) as g:
        start, size = _group(function, g)
        part, own = function.at("float", "%x", start), function.at("i8", "%codes", start)

        def read(_: Value, i: str) -> str:
            return function.load("float", part, i)

        def put(_: int, x: str, i: str) -> None:
            code = function.made(f"trunc i32 {x} to i8") if places is None else _found(function, x, places)
            function.store("i8", code, own, i)

        known = {line.greatest: _greatest_measure(function, line, lowered, read, size, {})}
        if warps is not None:
            known[line.least[0]] = _least(function, line, warps, part, size, threads, of_warps)
        for x in line.line.needed(line.made):
            function.verb(x, known, {})
        named = {}
        for x, made, pointer in zip(line.shared, line.made, _shared(function, line, g), strict=True):
            named[x] = known[made]
            function.store("float", named[x], pointer)
        loops(function, lowered, (line.encoded,), read, put, size, named, apart=True)
    function.returns("0")
    return function


def _decoding(line: GroupLine) -> Function:
    taken = [("%codes", 1), ("%shared", 2), ("%bounds", 1), ("%out", 1)]
    function, lowered = _begun("decode", line, taken)
    with function.loop(function.made("sub i64 %bounds.size, 1")) as g:
        start, size = _group(function, g)
        own, made = function.at("i8", "%codes", start), function.at("float", "%out", start)
        pointers = _shared(function, line, g)
        named = {x: function.load("float", y) for x, y in zip(line.shared, pointers, strict=True)}

        def read(value: Value, i: str) -> str:
            code = function.load("i8", own, i)
            if line.algorithm.table is None:
                return function.made(f"zext i8 {code} to i32")
            return function.load("float", "%table", function.made(f"zext i8 {code} to i64"))

        def put(_: int, x: str, i: str) -> None:
            function.store("float", x, made, i)

        loops(function, lowered, (line.decoded,), read, put, size, named, apart=True)
    function.returns("0")
    return function


def _found(function: Function, x: str, places: Places) -> str:
    """Return the place of a number, by its bucket; NaN has place 0."""
    shift, first, last, _ = places.buckets
    count, made = last - first + 1, function.made
    code = made(f"bitcast float {x} to i32")
    above = made(f"sub i32 {made(f'and i32 {code}, {2**31 - 1}')}, {first << shift}")
    above = made(f"call i32 @llvm.smax.i32(i32 {above}, i32 0)")
    above = made(f"call i32 @llvm.umin.i32(i32 {above}, i32 {(count << shift) - 1})")
    negative = made(f"mul i32 {made(f'lshr i32 {code}, 31')}, {count}")
    bucket = made(f"add i32 {made(f'lshr i32 {above}, {shift}')}, {negative}")
    bucket = made(f"zext i32 {bucket} to i64")
    start = function.load("i8", "%starts", bucket)
    bound = function.load("float", "%reached", made(f"zext i8 {start} to i64"))
    reaches = made(f"zext i1 {made(f'fcmp oge float {x}, {bound}')} to i8")
    is_number = made(f"fcmp ord float {x}, {x}")
    return made(f"select i1 {is_number}, i8 {made(f'add i8 {start}, {reaches}')}, i8 0")


def _least(
    function: Function, line: GroupLine, warps: Warps, part: str, size: str, threads: str, of_warps: str
) -> str:
    """Return the least magnitude of a group, as its threads find it."""

    def halved(x: str) -> str:
        half = warps.width // 2
        while half:
            with function.loop(f"{half}") as k:
                other = function.made(f"add i64 {k}, {half}")
                pair = (function.load("float", x, k), function.load("float", x, other))
                known = dict(zip((*line.least, *line.other), pair, strict=True))
                for value in line.line.needed(line.lesser):
                    function.verb(value, known, {})
                function.store("float", known[line.lesser[0]], x, k)
            half //= 2
        return function.load("float", x)

    with function.loop(f"{warps.block}") as i:
        function.store("float", number(warps.beyond), threads, i)
    with function.loop(size) as i:
        x = function.load("float", part, i)
        function.store("float", function.made(f"call float @llvm.fabs.f32(float {x})"), threads, i)
    with function.loop(f"{warps.width}") as i:
        function.store("float", number(warps.idle), of_warps, i)
    with function.loop(f"{warps.block // warps.width}") as w:
        first = function.made(f"mul i64 {w}, {warps.width}")
        function.store("float", halved(function.at("float", threads, first)), of_warps, w)
    return halved(of_warps)


# -- blocks of one size -----------------------------------------------------------------------------------
#: Elements at a time: so few that they stay in the L1 cache between loops.
_AT_ONCE = 2048


def block_source(line: GroupLine, block: int, name: str) -> str:
    """Return the source of a module with ``encode``, ``fill``, ``decode``, ``measure`` or ``share``.

    It takes the arguments of that method of `mcfsim.compile.group_loops.BlockLoops`.
    """
    if name in ("encode", "fill"):
        made = _block_encoding(line, block, name)
    else:
        made = {"decode": _block_decoding, "measure": _measuring, "share": _sharing}[name](line, block)
    return module(f"Blocks of {block} numbers that share others.", made)


def _function(name: str, line: GroupLine, *arrays: tuple[str, int]) -> Function:
    numbers = [f"double {name}" for name in _numbers(line).values()]
    return Function(name, [*(y for x in arrays for y in array(*x)), *numbers])


def _numbers(line: GroupLine) -> dict[Value, str]:
    """Return the names of the numbers that are the same for all blocks."""
    return {x: f"%number{place}" for place, x in enumerate(line.numbers)}


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
    with function.loop(count) as k:
        start = function.made(f"mul i64 {function.made(f'add i64 {first}, {k}')}, {block}")
        part = function.at("float", "%x", start)

        def read(_: Value, i: str) -> str:
            return function.load("float", part, i)

        greatest = _greatest_measure(function, line, Lowered(line.line), read, f"{block}", _numbers(line))
        function.store("i32", greatest, found, k)


def _each(
    function: Function,
    line: GroupLine,
    block: int,
    asked: Value,
    vectors: tuple[str, ...],
    before: Callable[[str, str], None] | None = None,
) -> None:
    """Append code that computes each element's value from another one and its block's shared numbers."""
    taken, made, *words = vectors
    with _some(function, "%shared.rows", block) as (first, count):
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

            known = _numbers(line) | own
            loops(function, Lowered(line.line), (asked,), read, put, f"{block}", known)
    function.returns("0")


def _word(line: GroupLine) -> str:
    return f"i{word_bits(line.algorithm.random_bits)}"


def _bits(function: Function, line: GroupLine, words: str, i: str) -> str:
    """Return the random bits of an element, the upper ones of its word."""
    bits, own = line.algorithm.random_bits, _word(line)
    drawn = function.made(f"lshr {own} {function.load(own, words, i)}, {word_bits(bits) - bits}")
    return function.converted(drawn, own, REGISTERS[line.word[0].type])


def _share(function: Function, line: GroupLine, first: str, count: str, found: str) -> None:
    """Append code that writes the shared numbers of some blocks, given the greatest measure of each."""

    def read(_: Value, k: str) -> str:
        return function.load("i32", found, k)

    def put(number: int, x: str, k: str) -> None:
        g = function.made(f"add i64 {first}, {k}")
        place = function.made(f"add i64 {function.made(f'mul i64 {g}, {len(line.shared)}')}, {number}")
        function.store("float", x, "%shared", place)

    loops(function, Lowered(line.line), line.made, read, put, count, _numbers(line))


def _block_encoding(line: GroupLine, block: int, name: str) -> Function:
    """Return ``encode``, or ``fill``, which is given the shared numbers."""
    words = ["%words" for _ in line.word]
    arrays = ("%x", 1), ("%elements", 1), ("%shared", 2), *((x, 1) for x in words)
    function = _function(name, line, *arrays)
    before: Callable[[str, str], None] | None = None
    if name == "encode":
        found = function.variable("i32", max(1, _AT_ONCE // block))

        def share(first: str, count: str) -> None:
            _measured(function, line, block, first, count, found)
            _share(function, line, first, count, found)

        before = share
    _each(function, line, block, line.encoded, ("%x", "%elements", *words), before)
    return function


def _block_decoding(line: GroupLine, block: int) -> Function:
    function = _function("decode", line, ("%elements", 1), ("%shared", 2), ("%out", 1))
    _each(function, line, block, line.decoded, ("%elements", "%out"))
    return function


def _measuring(line: GroupLine, block: int) -> Function:
    function = _function("measure", line, ("%x", 1), ("%found", 1))
    with _some(function, "%found.size", block) as (first, count):
        _measured(function, line, block, first, count, function.at("i32", "%found", first))
    function.returns("0")
    return function


def _sharing(line: GroupLine, block: int) -> Function:
    function = _function("share", line, ("%found", 1), ("%shared", 2))
    _share(function, line, "0", "%found.size", "%found")
    function.returns("0")
    return function
