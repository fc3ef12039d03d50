"""A line as the source of a loop for Numba: one statement a verb, each array read and written once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from mcfsim.compile.fission import AT_ONCE, parts, whole
from mcfsim.compile.lowering import Lowered
from mcfsim.compile.statements import module_head, statements
from mcfsim.kernels.element.machine import F32, F64, I32, I64, TRUTH, Value
from mcfsim.kernels.element.on_numpy import DTYPES
from mcfsim.random import word_bits

#: What a number of a type is made by, in the source.
_MADE = {F32: "f32", F64: "f64", I32: "i32", I64: "i64"}
_SIGNS = {"add": "+", "sub": "-", "mul": "*", "div": "/", "and": "&", "or": "|", "xor": "^"}
_SHIFTS = {"shl": "<<", "sar": ">>"}
_COMPARED = {"lt": "<", "le": "<=", "eq": "=="}

NJIT = '@njit(error_model="numpy", fastmath=False, nogil=True, boundscheck=False, cache=True)\n'
IMPORTS = """import numpy as np
from numba import njit

from mcfsim.compile.intrinsics import bits32, bits64, f32, f64, i32, i64, number32, number64
from mcfsim.compile.intrinsics import prefer_whole_vectors, select, sqrt
from mcfsim.compile.intrinsics import u8, u16, u32, u64
"""


def source(lowered: Lowered, about: str, *, interleaved: bool = False, apart: bool = False) -> str:
    """Return the source of a module with a function ``loop(*operands, *words, *numbers, *results)``.

    It returns 1 if some element is strange, and else 0.

    Parameters
    ----------
    lowered : Lowered
        What is to be done for each element.
    about : str
        What the module is, for its reader.
    interleaved : bool, optional
        Whether the results of an element follow one another in one array; the number of the first element,
        `start`, is then handed over before that.
    apart : bool, optional
        Whether results share no memory with operands: a long line then becomes several loops
        (`mcfsim.compile.fission`).
    """
    arrays, words, numbers = (
        [str(x.constant) for x in part] for part in (lowered.operands, lowered.words, lowered.numbers)
    )
    outputs = [f"out{number}" for number in range(len(lowered.results))]
    strange = () if lowered.strange is None else (lowered.strange,)
    asked = (*lowered.results, *strange)
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
        f"{module_head(about, IMPORTS)}{constants_of(made.constants)}\n\n"
        f"{NJIT}def loop({', '.join(head)}):\n"
        f"    prefer_whole_vectors()\n    found = i32(0)\n"
        f"{indented(made.once, 1)}{indented(made.each, 1)}    return found\n"
    )


class LoopStatements(NamedTuple):
    """Loops over elements, as statements.

    Attributes
    ----------
    constants : dict of str to Value
        Those that they take, by name.
    once, each : list of str
        What is done once in a function, and each time that its loops are carried out.
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
    """Return what makes values of each element: one loop, or several that follow one another.

    Parameters
    ----------
    lowered : Lowered
        The line.
    asked : sequence of Value
        Those of its values that are asked for.
    read : callable
        Returns how an input of element ``i`` is read.
    put : callable
        Returns what is done with a value that was asked for, by its place, and what it is called.
    size : str
        How many elements there are.
    vectors : sequence of str
        The names of vectors of elements that are read and written.
    apart : bool
        As of `source`.
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


def indented(body: Iterable[str], depth: int) -> str:
    """Return statements as lines, so many levels deep."""
    return "".join(f"{'    ' * depth}{statement}\n" for statement in body)


def rows_source(lowered: Lowered) -> str:
    """Return the source of a function ``rows(addresses, size, *numbers)``, to follow that of ``loop``.

    It calls ``loop`` for each row of a table of addresses, at which its operands, words and results are,
    vectors of one size. It returns 1 if some element is strange, and else 0.
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


def constants_of(constants: Mapping[str, Value]) -> str:
    """Return the statements that make constants, by name."""
    return "".join(f"{name} = {_constant(value)}\n" for name, value in constants.items())


def _constant(value: Value) -> str:
    number = value.constant
    assert isinstance(number, int | float)
    if isinstance(number, float) and not math.isfinite(number):
        return (
            f"{_MADE[value.type]}({'np.nan' if number != number else 'np.inf' if number > 0 else '-np.inf'})"
        )
    return f"{_MADE[value.type]}({number!r})"


def expression(value: Value, given: list[str]) -> str:
    """Return a verb as an expression, of just its type: Numba would widen integers and mixed numbers."""
    verb, made = value.verb, _MADE.get(value.type, "")
    if verb in _SIGNS or verb in _SHIFTS:
        text = f"{given[0]} {(_SIGNS | _SHIFTS)[verb]} {given[1]}"
        return f"{made}({text})" if made else text
    if verb == "shr":
        unsigned = "u32" if value.type is I32 else "u64"
        return f"{made}({unsigned}({given[0]}) >> {unsigned}({given[1]}))"
    if verb == "not":
        return f"not {given[0]}" if value.type is TRUTH else f"{made}(~{given[0]})"
    if verb in _COMPARED:
        return f"{given[0]} {_COMPARED[verb]} {given[1]}"
    if verb == "select":
        return f"select({', '.join(given)})"
    if verb == "bits":
        return f"bits{value.type.bits}({given[0]})"
    if verb == "number":
        return f"number{value.type.bits}({given[0]})"
    if verb in ("widen", "narrow", "extend", "cut", "count"):
        return f"{made}({given[0]})"
    text = {"neg": "-{}", "abs": "abs({})", "sqrt": "sqrt({})"}[verb].format(given[0])
    return f"{made}({text})" if value.type.is_integer else text
