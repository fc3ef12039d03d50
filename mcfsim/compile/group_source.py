"""A text of groups as the source of two loops for Numba: one that writes codes, and one that reads them."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from mcfsim.compile.group_text import GroupLine, Warps
from mcfsim.compile.lowering import Lowered
from mcfsim.compile.numba_source import (
    IMPORTS,
    NJIT,
    LoopStatements,
    constants_of,
    expression,
    indented,
    loops,
)
from mcfsim.compile.places import Array, Places
from mcfsim.compile.statements import Statements, module_head, statements
from mcfsim.kernels.element.machine import Value

#: How the place of a number is found: by signs, for comparing would branch, and no one can tell which way.
_FIND = """\
code = bits32({x})
above = i32((code & i32({mask})) - i32({least}))
above = i32(above & ~(above >> i32(31)))
beyond = i32(above - i32({reach}))
above = i32(i32({reach}) + (beyond & (beyond >> i32(31))))
bucket = u32(u32(above) >> u32({shift})) + u32(u32(code) >> u32(31)) * u32({count})
start = starts[u64(bucket)]
missed = u32(u32(bits32({x} - bounds_of_places[u64(start)])) >> u32(31))
reached = u8(u32(start) + u32(1) - missed)
"""


def group_source(line: GroupLine, places: Places | None) -> str:
    """Return the source of a module with ``encode`` and ``decode``, which take what those methods do.

    See `mcfsim.compile.group_loops.GroupLoops`.
    """
    same = (*line.shared, line.greatest, *line.least, *line.other)
    lowered = Lowered(line.line, (), same, (), (), None)
    table = line.text.table
    read = {line.x: "part[i]", line.code: "i32(own[i])" if table is None else "table[own[i]]"}.__getitem__

    def over(asked: Value, put: Callable[[str], list[str]], *vectors: str) -> LoopStatements:
        size = f"{vectors[0]}.size"
        return loops(lowered, (asked,), read, lambda _, x: put(x), size, vectors, apart=True)

    def coded(x: str) -> list[str]:
        if places is None:
            return [f"own[i] = u8({x})"]
        return [*_found(x, places), f"own[i] = reached if {x} == {x} else u8(0)"]

    measuring = over(line.measured, lambda x: [f"greatest = {x} if greatest < {x} else greatest"], "part")
    sharing = statements(lowered, line.made, read, expression)
    encoding = over(line.encoded, coded, "part", "own")
    decoding = over(line.decoded, lambda x: [f"made[i] = {x}"], "own", "made")
    constants = measuring.constants | sharing.constants | encoding.constants | decoding.constants
    kept = [f"shared[g, {place}] = {name}" for place, name in enumerate(sharing.results)]
    named = [f"{x.constant} = shared[g, {place}]" for place, x in enumerate(line.shared)]
    wide = ["prefer_whole_vectors()"]
    begun = [*(wide if places is None else []), *measuring.once, *encoding.once]
    tables, finding = "", list[str]()
    if line.text.warps is not None:
        halving = statements(lowered, line.lesser, read, expression)
        constants |= halving.constants
        tables = _warps(line.text.warps, halving)
        begun.append(f"threads = np.empty({line.text.warps.block}, f32)")
        finding = ["least = least_of(part, threads)"]
    if places is not None and table is not None:
        tables = _tables(table, places)
    writing = ["part, own = x[bounds[g]:bounds[g + 1]], codes[bounds[g]:bounds[g + 1]]", "greatest = i32(0)"]
    writing += [*measuring.each, *finding, *sharing.body, *kept, *named, *encoding.each]
    reading = ["own, made = codes[bounds[g]:bounds[g + 1]], out[bounds[g]:bounds[g + 1]]"]
    reading += [*named, *decoding.each]
    groups = "    for g in range(bounds.size - 1):\n"
    return (
        f"{module_head('Groups of numbers that share others.', IMPORTS)}{constants_of(constants)}{tables}\n\n"
        f"{NJIT}def encode(x, bounds, codes, shared):\n"
        f"{indented(begun, 1)}{groups}{indented(writing, 2)}\n\n"
        f"{NJIT}def decode(codes, shared, bounds, out):\n"
        f"{indented([*wide, *decoding.once], 1)}{groups}{indented(reading, 2)}"
    )


def _warps(warps: Warps, halving: Statements) -> str:
    """Return functions by which the least magnitude of a group is found."""
    halves, half = "", warps.width // 2
    while half:
        halves += (
            f"    for k in range({half}):\n"
            f"        least, other = x[start + k], x[start + k + {half}]\n"
            f"{indented([*halving.body, f'x[start + k] = {halving.results[0]}'], 2)}"
        )
        half //= 2
    return (
        f"\n\n{NJIT}def halve(x, start):\n{halves}    return x[start]\n\n\n"
        f"{NJIT}def least_of(part, threads):\n"
        "    for i in range(part.size):\n        threads[i] = abs(part[i])\n"
        f"    for i in range(part.size, threads.size):\n        threads[i] = f32({warps.beyond!r})\n"
        f"    found = np.full({warps.width}, f32({warps.idle!r}), f32)\n"
        f"    for w in range(threads.size // {warps.width}):\n"
        f"        found[w] = halve(threads, {warps.width} * w)\n"
        "    return halve(found, 0)\n"
    )


def _found(x: str, places: Places) -> list[str]:
    """Return statements that find the place of a number."""
    shift, first, last, _ = places.buckets
    count = last - first + 1
    given = {"least": first << shift, "reach": (count << shift) - 1, "shift": shift, "count": count}
    return _FIND.format(x=x, mask=2**31 - 1, **given).splitlines()


def _tables(table: Array, places: Places) -> str:
    """Return statements that make a table, and what is needed to find places in it."""
    beyond = np.append(places.bounds, np.float32("inf"))  # which no number reaches
    arrays = {"table": table, "bounds_of_places": beyond, "starts": places.buckets.starts}
    return "".join(
        f"{name} = np.array([{', '.join('np.inf' if x == math.inf else repr(x) for x in array.tolist())}], "
        f"np.{array.dtype})\n"
        for name, array in arrays.items()
    )
