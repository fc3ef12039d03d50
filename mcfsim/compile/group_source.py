"""Source of LLVM's loops that encode and decode groups of numbers with shared numbers (scales)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.compile.group_text import GroupLine, Places, Warps
from mcfsim.compile.llvm_source import array, loops
from mcfsim.compile.llvm_text import Function, module, number
from mcfsim.compile.lowering import Lowered
from mcfsim.kernels.element.machine import Value

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
        return [] if line.text.table is None else [line.text.table]
    beyond = np.append(places.bounds, np.float32("nan"))  # which no number reaches
    assert line.text.table is not None
    return [line.text.table, beyond, places.buckets.starts]


def _begun(
    name: str, line: GroupLine, arguments: Sequence[tuple[str, int]], *, wide: bool = True
) -> tuple[Function, Lowered]:
    """Return a function that takes the tables and arrays, by names and dimensions, and its line."""
    tables = [] if line.text.table is None else ["%table"]
    tables += [] if line.text.places is None else ["%reached", "%starts"]
    taken = [*((x, 1) for x in tables), *arguments]
    function = Function(name, [y for x in taken for y in array(*x)], wide=wide)
    return function, Lowered(line.line, (), (), (), (), None)


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


def greatest_measure(
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

    loops(function, lowered, (line.measured,), read, put, size, known, {}, apart=False)
    return function.load("i32", greatest)


def _encoding(line: GroupLine, places: Places | None) -> Function:
    taken = [("%x", 1), ("%bounds", 1), ("%codes", 1), ("%shared", 2)]
    function, lowered = _begun("encode", line, taken, wide=places is None)
    warps = line.text.warps
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

        known = {line.greatest: greatest_measure(function, line, lowered, read, size, {})}
        if warps is not None:
            known[line.least[0]] = _least(function, line, warps, part, size, threads, of_warps)
        for x in line.line.needed(line.made):
            function.verb(x, known, {})
        named = {}
        for x, made, pointer in zip(line.shared, line.made, _shared(function, line, g), strict=True):
            named[x] = known[made]
            function.store("float", named[x], pointer)
        loops(function, lowered, (line.encoded,), read, put, size, named, {}, apart=True)
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
            if line.text.table is None:
                return function.made(f"zext i8 {code} to i32")
            return function.load("float", "%table", function.made(f"zext i8 {code} to i64"))

        def put(_: int, x: str, i: str) -> None:
            function.store("float", x, made, i)

        loops(function, lowered, (line.decoded,), read, put, size, named, {}, apart=True)
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
