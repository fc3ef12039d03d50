"""A text of groups as the source of two loops for Numba: one that writes codes, and one that reads them."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from mcfsim.compile.group_text import GroupLine, Warps
from mcfsim.compile.lowering import Lowered
from mcfsim.compile.numba_source import IMPORTS, NJIT, constants_of, expression
from mcfsim.compile.places import Array, Places
from mcfsim.compile.statements import module_head, statements
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
    constants: dict[str, Value] = {}

    def body(results: tuple[Value, ...], read: Mapping[Value, str], depth: int) -> tuple[str, list[str]]:
        made = statements(lowered, results, read.__getitem__, expression)
        constants.update(made.constants)
        return "".join(f"{'    ' * depth}{statement}\n" for statement in made.body), made.results

    measuring, (measured,) = body((line.measured,), {line.x: "part[i]"}, 3)
    sharing, made = body(line.made, {}, 2)
    encoding, (encoded,) = body((line.encoded,), {line.x: "part[i]"}, 3)
    number = "i32(own[i])" if line.text.table is None else "table[own[i]]"
    decoding, (decoded,) = body((line.decoded,), {line.code: number}, 3)
    kept = "".join(f"        shared[g, {place}] = {name}\n" for place, name in enumerate(made))
    named = "".join(f"        {x.constant} = shared[g, {place}]\n" for place, x in enumerate(line.shared))
    wide = "    prefer_whole_vectors()\n" if places is None else ""
    tables, code, finding, threads = "", f"u8({encoded})", "", ""
    if line.text.warps is not None:
        halving, (lesser,) = body(line.lesser, {}, 3)
        tables = _warps(line.text.warps, halving, lesser)
        finding = "        least = least_of(part, threads)\n"
        threads = f"    threads = np.empty({line.text.warps.block}, f32)\n"
    if places is not None and line.text.table is not None:
        tables, code = _tables(line.text.table, places), f"reached if {encoded} == {encoded} else u8(0)"
        encoding += "".join(f"            {statement}\n" for statement in _found(encoded, places))
    return (
        f"{module_head('Groups of numbers that share others.', IMPORTS)}{constants_of(constants)}{tables}\n\n"
        f"{NJIT}def encode(x, bounds, codes, shared):\n"
        f"{wide}{threads}"
        "    for g in range(bounds.size - 1):\n"
        "        part, own = x[bounds[g]:bounds[g + 1]], codes[bounds[g]:bounds[g + 1]]\n"
        "        greatest = i32(0)\n"
        f"        for i in range(part.size):\n{measuring}"
        f"            greatest = {measured} if greatest < {measured} else greatest\n"
        f"{finding}{sharing}{kept}{named}"
        f"        for i in range(part.size):\n{encoding}            own[i] = {code}\n\n\n"
        f"{NJIT}def decode(codes, shared, bounds, out):\n"
        "    prefer_whole_vectors()\n"
        "    for g in range(bounds.size - 1):\n"
        "        own, made = codes[bounds[g]:bounds[g + 1]], out[bounds[g]:bounds[g + 1]]\n"
        f"{named}"
        f"        for i in range(own.size):\n{decoding}            made[i] = {decoded}\n"
    )


def _warps(warps: Warps, halving: str, lesser: str) -> str:
    """Return functions by which the least magnitude of a group is found."""
    halves, half = "", warps.width // 2
    while half:
        halves += (
            f"    for k in range({half}):\n"
            f"        least, other = x[start + k], x[start + k + {half}]\n"
            f"{halving.replace('            ', '        ')}        x[start + k] = {lesser}\n"
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
