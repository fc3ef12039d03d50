"""Source of Numba loops for lines of machine operations (verbs): a statement each, several loops if long."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from operator import attrgetter
from typing import NamedTuple

from mcfsim.compile.lowering import Lowered
from mcfsim.compile.sources import CASTS, INFIX, indented, module_head, statements, table_name
from mcfsim.kernels.element.machine import F32, F64, I32, I64, TRUTH, Value
from mcfsim.kernels.element.verbs import DTYPES
from mcfsim.random import word_bits

# -- long lines, as several loops -------------------------------------------------------------------------
#: Elements processed by one loop before the next: so few that the values kept stay in the L1 cache.
AT_ONCE = 512
#: The fewest and the most operations of a loop.
_LEAST, _MOST = 12, 30
#: The least share of operations in 64 bits.
_SHARE = 1 / 3
#: Values are recomputed in each loop if they take at most so many operations on operands.
_CHEAP = 2
#: The cost of a cut, and of each value kept across it; truth values cost more, as they are not vectorized.
_CUT, _KEPT = 4, {F32: 1, I32: 1, F64: 2, I64: 2, TRUTH: 16}


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

    Later parts still read operands after earlier ones have written results.
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
    bounds = [0, *_cuts([_KEPT[x.type] for x in long], [last[x] for x in long]), len(long)]
    found: list[LoopPart] = []
    for start, stop in pairwise(bounds):
        own = long[start:stop]
        made = [k for k, x in enumerate(results) if start <= places.get(x, len(long) - 1) < stop]
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


# -- the source -------------------------------------------------------------------------------------------
#: Verbs as expressions of their operands, without the conversion to the type of the result.
_EXPRESSIONS = {
    **INFIX,
    **{"div": "{} / {}", "neg": "-{}", "abs": "abs({})", "sqrt": "sqrt({})", "select": "select({}, {}, {})"},
    **dict.fromkeys(CASTS, "{}"),
}

NJIT = '@njit(error_model="numpy", fastmath=False, nogil=True, boundscheck=False, cache=True)\n'
IMPORTS = """import numpy as np
from numba import njit

from mcfsim.compile.intrinsics import bits32, bits64, f32, f64, i32, i64, number32, number64
from mcfsim.compile.intrinsics import prefer_whole_vectors, select, sqrt
from mcfsim.compile.intrinsics import u8, u16, u32, u64
"""


def source(lowered: Lowered, about: str, *, interleaved: bool = False, apart: bool = False) -> str:
    """Return the source of a module with a function ``loop(*operands, *words, *numbers, *results)``.

    The function returns 1 if some element is strange (no value of its format), and 0 otherwise.

    Parameters
    ----------
    lowered : Lowered
        The operations on each element.
    about : str
        What the module is, for its reader.
    interleaved : bool, optional
        Whether the results of an element follow one another in one array; the function then takes the number
        of the first element, `start`, before that array.
    apart : bool, optional
        Whether results share no memory with operands: a long line then becomes several loops
        (`mcfsim.compile.numba_source`).
    """
    arrays, words, numbers = (
        [str(x.constant) for x in part] for part in (lowered.operands, lowered.words, lowered.numbers)
    )
    outputs = [f"out{number}" for number in range(len(lowered.results))]
    asked = lowered.asked
    if interleaved:
        places = [f"out[{len(outputs)} * i + {number}]" for number in range(len(outputs))]
        head, size = [*arrays, *words, *numbers, "start", "out"], f"out.size // {len(outputs)}"
    else:
        places, head = [f"{output}[i]" for output in outputs], [*arrays, *words, *numbers, *outputs]
        size = f"{outputs[0]}.size"

    def read(value: Value) -> str:
        if value is lowered.index:
            return "i64(start + i)"
        if value in lowered.words:
            return f"i64({value.constant}[i])"
        return f"i32({value.constant}[i])" if value in lowered.packed else f"{value.constant}[i]"

    def put(number: int, made: str) -> list[str]:
        if number == len(outputs):
            return [f"found = i32(found | i32({made}))"]
        dtype = lowered.packed.get(lowered.results[number])
        return [f"{places[number]} = {made if dtype is None else f'u{8 * dtype.itemsize}({made})'}"]

    vectors = [*arrays, *words] if interleaved else [*arrays, *words, *outputs]
    made = loops(lowered, asked, read, put, size, vectors, apart=apart)
    return (
        f"{module_head(about, IMPORTS)}{constants_of(made.constants, lowered.tables)}\n\n"
        f"{NJIT}def loop({', '.join(head)}):\n"
        f"    prefer_whole_vectors()\n    found = i32(0)\n"
        f"{indented(made.once, 1)}{indented(made.each, 1)}    return found\n"
    )


class LoopStatements(NamedTuple):
    """Loops over elements, as statements.

    Attributes
    ----------
    constants : dict of str to Value
        The constants that they use, by name.
    once, each : list of str
        Statements to run once per function, and each time that its loops run.
    """

    constants: dict[str, Value]
    once: list[str]
    each: list[str]


def loops(
    lowered: Lowered,
    asked: Sequence[Value],
    read: Callable[[Value], str],
    put: Callable[[int, str], list[str]],
    size: str,
    vectors: Sequence[str],
    *,
    apart: bool,
) -> LoopStatements:
    """Return the statements that compute values for each element: one loop, or several in sequence.

    Parameters
    ----------
    lowered : Lowered
        The line.
    asked : sequence of Value
        The values to compute.
    read : callable
        Returns the expression that reads an input of element ``i``.
    put : callable
        Returns the statements that use a computed value, given its place and its name.
    size : str
        The expression for the number of elements.
    vectors : sequence of str
        The names of the vectors of elements that are read and written.
    apart : bool
        As for `source`.
    """
    split = parts(lowered, asked) if apart else [whole(lowered, asked)]
    constants, each, several = dict[str, Value](), list[str](), len(split) > 1
    for part in split:
        results = [asked[number] for number in part.results]
        written = statements(lowered, results, read, expression, values=part.values)
        constants |= written.constants
        body = [f"r{x.number} = kept{x.number}[i]" for x in part.taken] + written.body
        for number, name in zip(part.results, written.results, strict=True):
            body += put(number, name)
        body += [f"kept{x.number}[i] = r{x.number}" for x in part.kept]
        each += [f"for i in range({'size' if several else size}):", *_deeper(body)]
    if not several:
        return LoopStatements(constants, [], each)
    once = [f"kept{x.number} = np.empty({AT_ONCE}, np.{DTYPES[x.type]})" for y in split for x in y.kept]
    sliced = [f"size = min({AT_ONCE}, whole - base)"]
    sliced += [f"{x} = whole_{x}[base:base + size]" for x in vectors]
    each = [
        *(f"whole_{x} = {x}" for x in vectors),
        f"whole = {size}",
        f"for base in range(0, whole, {AT_ONCE}):",
        *_deeper([*sliced, *each]),
        *(f"{x} = whole_{x}" for x in vectors),
    ]
    return LoopStatements(constants, once, each)


def _deeper(body: Iterable[str]) -> list[str]:
    return [f"    {statement}" for statement in body]


def rows_source(lowered: Lowered) -> str:
    """Return the source of a function ``rows(addresses, size, *numbers)``, to follow that of ``loop``.

    It calls ``loop`` for each row of a table. A row has the addresses of operands, words and results, which
    are vectors of one size. The function returns 1 if some element is strange, and 0 otherwise.
    """
    kinds = [
        *(f"float{x.type.bits}" for x in lowered.operands),
        *(f"uint{word_bits(bits)}" for bits in lowered.draws.values()),
        *(f"float{x.type.bits}" for x in lowered.results),
    ]
    given = [f"row_{kind}(addresses[j, {place}], size)" for place, kind in enumerate(kinds)]
    imported = ", ".join(f"row_{kind}" for kind in sorted(set(kinds)))
    numbers = [str(x.constant) for x in lowered.numbers]
    results = len(kinds) - len(lowered.results)
    arguments = "".join(f"            {x},\n" for x in (*given[:results], *numbers, *given[results:]))
    return (
        f"\n\nfrom mcfsim.compile.intrinsics import {imported}\n"
        f"\n\n{NJIT}def rows({', '.join(['addresses', 'size', *numbers])}):\n"
        "    prefer_whole_vectors()\n    found = i32(0)\n"
        f"    for j in range(addresses.shape[0]):\n        strange = loop(\n{arguments}        )\n"
        "        found = i32(found | strange)\n    return found\n"
    )


def constants_of(constants: Mapping[str, Value], tables: Iterable[str] = ()) -> str:
    """Return the statements that define constants, and tables with given keys."""
    read = [f"{table_name(key)} = table_of({key!r})\n" for key in tables]
    head = ["from mcfsim.kernels.elementary import table_of\n"] if read else []
    return "".join([*head, *(f"{name} = {_constant(x)}\n" for name, x in constants.items()), *read])


def _constant(value: Value) -> str:
    number = value.constant
    assert isinstance(number, int | float)
    text = repr(number)
    if not math.isfinite(number):
        text = "np.nan" if number != number else "np.inf" if number > 0 else "-np.inf"
    return f"{value.type}({text})"


def expression(value: Value, given: list[str]) -> str:
    """Return a verb as an expression of exactly its type: Numba would widen integers and mixed numbers."""
    verb, kind = value.verb, value.type
    if verb == "look_up":
        return f"{table_name(value.constant)}[{given[0]}]"
    if verb in ("bits", "number"):
        return f"{verb}{kind.bits}({given[0]})"
    if verb == "shr":
        text = f"u{kind.bits}({given[0]}) >> u{kind.bits}({given[1]})"
    elif verb == "not":
        text = f"not {given[0]}" if kind is TRUTH else f"~{given[0]}"
    else:
        text = _EXPRESSIONS[verb].format(*given)
    exact = verb == "select" or (verb in ("neg", "abs", "sqrt") and kind.is_float)
    return text if exact or kind is TRUTH else f"{kind}({text})"
