"""Source of LLVM's loops for lines of machine operations (verbs): one loop, or several if a line is long."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise
from operator import attrgetter
from types import MappingProxyType
from typing import NamedTuple

from mcfsim.compile.llvm_text import HALF, REGISTERS, Function, element, module
from mcfsim.compile.lowering import Lowered
from mcfsim.compile.objects import has_half
from mcfsim.compile.sources import noted
from mcfsim.kernels.element.machine import F32, F64, I32, I64, TRUTH, Value
from mcfsim.random import word_bits

#: The most bytes of values kept between the loops of a long line, and the fewest elements of each.
_KEPT_BYTES, _FEWEST = 1 << 18, 64
#: The types of values kept in memory: truth values as bytes, because LLVM packs single bits badly.
_KEPT = {kind: "i8" if kind is TRUTH else name for kind, name in REGISTERS.items()}
_SIZES = {"i8": 1, "i32": 4, "float": 4, "i64": 8, "double": 8}


class _Arguments(NamedTuple):
    """The arguments of a loop: types and names in order; and names of tables by key, of numbers by value."""

    vectors: list[str]
    own: list[str]
    tables: dict[str, str]
    known: dict[Value, str]


def _arguments(lowered: Lowered, results: Sequence[str]) -> _Arguments:
    """Return tables, operands, words, numbers and results as arguments, in this order."""
    tables = {key: f"%table{place}" for place, key in enumerate(lowered.tables)}
    vectors = [*(f"%x{k}" for k in range(len(lowered.operands)))]
    vectors += [f"%word{k}" for k in range(len(lowered.draws))]
    known = {x: f"%s{k}" for k, x in enumerate(lowered.numbers)}
    own = [y for x in (*tables.values(), *vectors) for y in array(x)]
    own += [f"{REGISTERS[x.type]} {name}" for x, name in known.items()]
    own += [y for x in results for y in array(x)]
    return _Arguments(vectors, own, tables, known)


def array(name: str, dimensions: int = 1) -> list[str]:
    """Return the arguments of a contiguous array: its memory and its shape."""
    shape = ["size"] if dimensions == 1 else ["rows", "columns"]
    return [f"ptr {name}", *(f"i64 {name}.{x}" for x in shape)]


def source(lowered: Lowered, about: str, *, apart: bool = False) -> str:
    """Return the source of a module with a function ``loop(*tables, *operands, *words, *numbers, *results)``.

    The function returns 1 if some element is strange (no value of its format), and 0 otherwise.

    Parameters
    ----------
    lowered : Lowered
        The operations on each element.
    about : str
        What the module is, for its reader.
    apart : bool, optional
        Whether a result shares no memory with operands, unless it is itself an operand. LLVM is then told so,
        and a long line becomes several loops (`parts`).
    """
    return module(about, _loop(lowered, apart=apart))


def _loop(
    lowered: Lowered, *, interleaved: bool = False, apart: bool = False, private: bool = False
) -> Function:
    """Return the function; if `interleaved`, the results of an element follow one another in one array.

    It then takes the number of the first element before that array.
    """
    outputs = [f"%out{number}" for number in range(len(lowered.results))]
    arguments = _arguments(lowered, ["%out"] if interleaved else outputs)
    own = arguments.own
    if interleaved:
        own = [*own[:-2], "i64 %start", *own[-2:]]
    function = Function("loop", own, private=private)
    for x, name in zip(lowered.operands, arguments.vectors, strict=False):
        function.do(f"; {name} is {x.constant}")
    found = function.variable("i32")
    function.store("i32", "0", found)
    size = f"{outputs[0]}.size"
    if interleaved:
        size = function.made(f"udiv i64 %out.size, {len(outputs)}")
    vectors = dict(zip((*lowered.operands, *lowered.words), arguments.vectors, strict=False))
    bits = dict(zip(lowered.words, lowered.draws.values(), strict=False))

    def read(value: Value, i: str) -> str:
        if value is lowered.index:
            return function.made(f"add i64 %start, {i}")
        kind, own = REGISTERS[value.type], element(lowered.dtype(value))
        if value in bits:
            own = f"i{word_bits(bits[value])}"
        return function.converted(function.load(own, vectors[value], i), own, kind)

    def put(number: int, made: str, i: str) -> None:
        if number == len(outputs):
            other = function.converted(made, "i1", "i32")
            both = function.made(f"or i32 {function.load('i32', found)}, {other}")
            function.store("i32", both, found)
            return
        result = lowered.results[number]
        kind, own = REGISTERS[result.type], element(lowered.dtype(result))
        made = function.converted(made, kind, own)
        pointer = outputs[number]
        if interleaved:
            i = function.made(f"add i64 {function.made(f'mul i64 {i}, {len(outputs)}')}, {number}")
            pointer = "%out"
        function.store(own, made, pointer, i)

    known, tables = arguments.known, arguments.tables
    loops(function, lowered, lowered.asked, read, put, size, known, tables, apart=apart, many=True)
    function.returns(function.load("i32", found))
    return function


def loops(
    function: Function,
    lowered: Lowered,
    asked: Sequence[Value],
    read: Callable[[Value, str], str],
    put: Callable[[int, str, str], None],
    size: str,
    known: Mapping[Value, str] = MappingProxyType({}),
    tables: Mapping[str, str] = MappingProxyType({}),
    *,
    apart: bool = False,
    many: bool = False,
) -> None:
    """Append the loops that compute values for each element to a function: one, or several in sequence.

    Parameters
    ----------
    function : Function
    lowered : Lowered
        The line.
    asked : sequence of Value
        The values to compute.
    read : callable
        Appends code that reads an input of an element, given its number, and returns its name.
    put : callable
        Appends code that uses a computed value, given its place among those asked for, its name and the
        number of the element.
    size : str
        The number of elements.
    known : mapping of Value to str, optional
        The inputs that are the same for all elements, by name.
    tables : mapping of str to str, optional
        The pointers to tables, by key.
    apart : bool, optional
        As for `source`.
    many : bool, optional
        Whether there are many elements, as a rule; see `Function.loop`.
    """
    split = parts(lowered, asked) if apart else [whole(lowered, asked)]
    if len(split) == 1 and has_half():
        split = [split[0]._replace(values=list(lowered.line.needed(tuple(asked), hardware=HALF)))]

    def compute(part: LoopPart, i: str, there: dict[Value, str]) -> None:
        there |= {x: read(x, i) for x in part.values if x.verb == "input" and x not in there}
        for x, note in noted(lowered, part.values):
            if note:
                function.do(f"; {note}")
            function.verb(x, there, tables)
        for number in part.results:
            put(number, there[asked[number]], i)

    if len(split) == 1:
        with function.loop(size, independent=apart, many=many) as i:
            compute(split[0], i, dict(known))
        return
    rows, at_once = _rows(function, split)
    blocks = function.made(f"sdiv i64 {function.made(f'add i64 {size}, {at_once - 1}')}, {at_once}")
    with function.loop(blocks) as block:
        base = function.made(f"mul i64 {block}, {at_once}")
        left = function.made(f"sub i64 {size}, {base}")
        count = function.made(f"call i64 @llvm.smin.i64(i64 {left}, i64 {at_once})")
        for part in split:
            with function.loop(count, independent=True, many=many) as i:
                there = dict(known)
                for x in part.taken:
                    kept = function.load(_KEPT[x.type], rows[x], i)
                    there[x] = function.converted(kept, _KEPT[x.type], REGISTERS[x.type])
                compute(part, function.made(f"add nuw nsw i64 {base}, {i}"), there)
                for x in part.kept:
                    own = function.converted(there[x], REGISTERS[x.type], _KEPT[x.type])
                    function.store(_KEPT[x.type], own, rows[x], i)


def _rows(function: Function, split: Sequence[LoopPart]) -> tuple[dict[Value, str], int]:
    """Return memory, reused, for the values kept between loops, and how many elements it holds of each."""
    last = {x: number for number, part in enumerate(split) for x in part.taken}
    slots, free, made = dict[Value, int](), defaultdict[str, list[int]](list), Counter[str]()
    for number, part in enumerate(split):
        for x in part.kept:
            kind = _KEPT[x.type]
            slots[x] = free[kind].pop() if free[kind] else made[kind]
            made[kind] = max(made[kind], slots[x] + 1)
        for x in part.taken:
            if last[x] == number:
                free[_KEPT[x.type]].append(slots[x])
    each = sum(_SIZES[kind] * count for kind, count in made.items())
    at_once = max(_FEWEST, min(AT_ONCE, _KEPT_BYTES // each // _FEWEST * _FEWEST))
    memory = {kind: [function.variable(kind, at_once) for _ in range(count)] for kind, count in made.items()}
    return {x: memory[_KEPT[x.type]][slot] for x, slot in slots.items()}, at_once


def rows_source(lowered: Lowered, about: str) -> str:
    """Return the source of a module with a function ``rows(*tables, addresses, size, *numbers)``.

    It does what ``loop`` does for each row of a table. A row has the addresses of operands, words and
    results, which are vectors of one size. The function returns 1 if some element is strange, else 0.
    """
    results = [f"%out{number}" for number in range(len(lowered.results))]
    arguments = _arguments(lowered, results)
    vectors = [*arguments.vectors, *results]
    shared = [x for x in arguments.own if x.split()[1].removesuffix(".size") not in vectors]
    tables = 2 * len(arguments.tables)
    function = Function("rows", [*shared[:tables], *array("%addresses", 2), "i64 %size", *shared[tables:]])
    found = function.variable("i32")
    function.store("i32", "0", found)
    with function.loop("%addresses.rows") as j:
        row = function.made(f"mul i64 {j}, %addresses.columns")
        places = [function.made(f"add i64 {row}, {place}") for place in range(len(vectors))]
        pointers = [function.load("ptr", "%addresses", place) for place in places]
        there = dict(zip(vectors, pointers, strict=True))
        there |= {f"{x}.size": "%size" for x in vectors}
        given = [f"{kind} {there.get(x, x)}" for kind, x in map(str.split, arguments.own)]
        strange = function.made(f"call i32 @loop({', '.join(given)})")
        function.store("i32", function.made(f"or i32 {function.load('i32', found)}, {strange}"), found)
    function.returns(function.load("i32", found))
    return module(about, _loop(lowered, private=True), function)


def words_source(lowered: Lowered, about: str) -> str:
    """Return the source of a module with functions ``loop(*key, start, out)`` and ``rows``.

    ``loop`` fills an array with the results of the elements from a number on, which follow one another.
    ``rows(*key, places, start, out)`` does so for each row, with the last part of the key from `places`.
    """
    loop = _loop(lowered, interleaved=True)
    key = [f"i64 %s{k}" for k in range(len(lowered.numbers))]
    function = Function("rows", [*key[:-1], *array("%places"), "i64 %start", *array("%out", 2)])
    with function.loop("%places.size") as j:
        place = function.load("i64", "%places", j)
        row = function.at("i32", "%out", function.made(f"mul i64 {j}, %out.columns"))
        given = [*key[:-1], f"i64 {place}", "i64 %start", f"ptr {row}", "i64 %out.columns"]
        function.made(f"call i32 @loop({', '.join(given)})")
    function.returns("0")
    return module(about, loop, function)


# -- long lines as several loops in sequence, so that few values are alive at once -------------------------
#: Elements processed by one loop before the next: so few that the values kept stay in the L1 cache.
AT_ONCE = 512
#: The fewest and the most operations of a loop.
_LEAST, _MOST = 12, 30
#: The least share of operations in 64 bits.
_SHARE = 1 / 3
#: Values are recomputed in each loop if they take at most this many operations on operands.
_CHEAP = 2
#: The cost of a cut, and of each value kept across it; truth values cost more, as they are not vectorized.
_CUT, _KEEPING = 4, {F32: 1, I32: 1, F64: 2, I64: 2, TRUTH: 16}


class LoopPart(NamedTuple):
    """A part of a line that becomes a loop of its own.

    Attributes
    ----------
    values : list of Value
        The values that it reads and computes, in order.
    taken, kept : list of Value
        The values that it takes from earlier loops, and those that it keeps for later ones.
    results : list of int
        The places of the results that it computes.
    """

    values: list[Value]
    taken: list[Value]
    kept: list[Value]
    results: list[int]


def whole(lowered: Lowered, results: Sequence[Value]) -> LoopPart:
    """Return a line as one part."""
    return LoopPart(list(lowered.line.needed(tuple(results))), [], [], list(range(len(results))))


def parts(lowered: Lowered, results: Sequence[Value]) -> list[LoopPart]:
    """Cut a line into parts where few values must be kept; a short line is one part.

    The last part computes or takes all results, so that they may be written where operands were read.
    """
    undivided = whole(lowered, results)
    cones = _cones(undivided.values)
    long = [x for x in undivided.values if _is_made(x) and x not in cones]
    wide = sum(any(y.type in (F64, I64) for y in (x, *x.operands)) for x in long)
    if len(long) <= _MOST or lowered.words or wide < _SHARE * len(long):
        return [undivided]
    places = {x: place for place, x in enumerate(long)}
    last = dict(places)
    for x in long:
        last |= dict.fromkeys(last.keys() & set(x.operands), places[x])
    last |= dict.fromkeys(places.keys() & set(results), len(long) - 1)
    bounds = [0, *_cuts([_KEEPING[x.type] for x in long], [last[x] for x in long]), len(long)]
    found: list[LoopPart] = []
    for start, stop in pairwise(bounds):
        own = long[start:stop]
        made = list(range(len(results))) if stop == len(long) else []
        asked = [*(y for x in own for y in x.operands), *(results[k] for k in made)]
        taken = {x for x in asked if places.get(x, start) < start}
        beside = {y for x in asked if x not in places for y in cones.get(x, {x})}
        values = sorted({*own, *beside}, key=attrgetter("number"))
        kept = [x for x in own if last[x] >= stop]
        found.append(LoopPart(values, sorted(taken, key=attrgetter("number")), kept, made))
    return found


def _is_made(x: Value) -> bool:
    return x.verb not in ("input", "constant")


def _cones(needed: Sequence[Value]) -> dict[Value, set[Value]]:
    """Return the values that take few operations on operands, each with all values that it depends on."""
    found: dict[Value, set[Value]] = {}
    for x in needed:
        if _is_made(x) and all(y in found or not _is_made(y) for y in x.operands):
            cone = {x, *(z for y in x.operands for z in found.get(y, {y}))}
            if sum(map(_is_made, cone)) <= _CHEAP:
                found[x] = cone
    return found


def _cuts(costs: Sequence[int], last: Sequence[int]) -> list[int]:
    """Return where to cut, given the cost of keeping each value and the place of its last use."""
    size = len(costs)
    steps = [0] * (size + 1)  # changes in the cost of a cut from one place to the next
    for place, (cost, end) in enumerate(zip(costs, last, strict=True)):
        steps[place + 1] += cost
        steps[end + 1] -= cost
    kept = list(accumulate(steps))
    best: list[tuple[float, int]] = [(0.0, 0)]
    for place in range(1, size + 1):
        before = [
            (best[start][0] + _CUT + kept[start], start)
            for start in range(max(0, place - _MOST), place - _LEAST + 1)
        ]
        best.append(min(before, default=(float("inf"), 0)))
    cuts, place = list[int](), best[size][1]
    while place:
        cuts.append(place)
        place = best[place][1]
    return cuts[::-1]
