"""Loops that encode and decode groups of numbers with shared numbers (scales), compiled or by NumPy."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from functools import cached_property, lru_cache
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.checks import check_processor
from mcfsim.compile.choice import is_available
from mcfsim.compile.group_text import GroupLine, GroupText, Places, Warps
from mcfsim.compile.lowering import Lowered
from mcfsim.compile.numba_source import (
    IMPORTS,
    NJIT,
    LoopStatements,
    constants_of,
    expression,
    loops,
)
from mcfsim.compile.sources import Statements, imported, indented, module_head, statements
from mcfsim.kernels.element.machine import Value
from mcfsim.kernels.element.verbs import run

# -- the source of two loops ------------------------------------------------------------------------------
#: Statements that find a number's place by signs: comparisons would be branches that no one can predict.
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
    """Return the source of a module with functions ``encode`` and ``decode``.

    They take the arguments of those methods of `mcfsim.compile.group_loops.GroupLoops`.
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
    """Return the source of functions that find the least magnitude of a group."""
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
    """Return statements that define a table and the arrays for finding places in it."""
    beyond = np.append(places.bounds, np.float32("inf"))  # which no number reaches
    arrays = {"table": table, "bounds_of_places": beyond, "starts": places.buckets.starts}
    return "".join(
        f"{name} = np.array([{', '.join('np.inf' if x == math.inf else repr(x) for x in array.tolist())}], "
        f"np.{array.dtype})\n"
        for name, array in arrays.items()
    )


# -- the loops --------------------------------------------------------------------------------------------
Array = NDArray[Any]

#: Elements after which loading compiled loops pays, and after which compiling them does, on a slow machine.
_WORTH_LOADING, _WORTH_COMPILING = 1 << 22, 1 << 25


class GroupLoops:
    """Encoding and decoding of groups by a `GroupText`, an algorithm that says how groups are stored.

    Groups are ranges of a vector between bounds; an array has their shared numbers, one row per group.
    """

    def __init__(self, text: GroupText) -> None:
        self.text = text
        self._line = GroupLine(text)
        self._places = None if text.places is None else Places(text.places)
        self._lock, self._done = Lock(), 0

    def encode(self, x: Array, bounds: Array, codes: Array, shared: Array) -> None:
        """Write the codes and the shared numbers of groups of float32 numbers.

        Parameters
        ----------
        x : array of float32, shape (elements,)
            Contiguous.
        bounds : array of int64, shape (groups + 1,)
            The start of each group, and the end of the last one; none is empty.
        codes : array of uint8, shape (elements,)
        shared : array of float32, shape (groups,) or (groups, shared)
        """
        check_processor()
        own, rows = self._line, shared.reshape(-1, self.text.shared)
        if self._pays(x.size):
            self._loops[0](np.ascontiguousarray(x, np.float32), bounds, codes, rows)
        elif x.size:
            (measured,) = run(own.line, (own.measured,), x=x)
            found = {"greatest": np.maximum.reduceat(measured, bounds[:-1])}
            if self.text.warps is not None:
                found["least"] = self._least(np.abs(x), bounds, self.text.warps)
            for place, column in enumerate(run(own.line, own.made, **found)):
                rows[:, place] = column
            (made,) = run(own.line, (own.encoded,), x=x, **self._spread(rows, bounds))
            codes[...] = made if self._places is None else self._places.find(made)

    def decode(self, codes: Array, shared: Array, bounds: Array, out: Array) -> None:
        """Write the numbers of codes into an array of float32; arguments as for `encode`."""
        check_processor()
        own, rows = self._line, shared.reshape(-1, self.text.shared)
        if self._pays(codes.size):
            self._loops[1](codes, rows, bounds, out)
        elif codes.size:
            taken = codes.astype(np.int32) if self.text.table is None else self.text.table[codes]
            (out[...],) = run(own.line, (own.decoded,), code=taken, **self._spread(rows, bounds))

    def _least(self, magnitudes: Array, bounds: Array, warps: Warps) -> Array:
        """Return the least magnitude that the threads find in each group."""
        lengths = np.diff(bounds)
        inside = np.arange(warps.block) < lengths[:, np.newaxis]
        rows = np.full(inside.shape, warps.beyond, np.float32)
        rows[inside] = magnitudes
        of_warps = self._halved(rows.reshape(len(rows), -1, warps.width))
        last = np.full((len(rows), warps.width), warps.idle, np.float32)
        last[:, : of_warps.shape[1]] = of_warps
        return self._halved(last)

    def _halved(self, x: Array) -> Array:
        own = self._line
        while x.shape[-1] > 1:
            least, other = np.split(x, 2, axis=-1)
            (x,) = run(own.line, own.lesser, least=least, other=other)
        return x[..., 0]

    def _spread(self, shared: Array, bounds: Array) -> dict[str, Array]:
        """Return the shared numbers of groups, repeated for each of their elements."""
        lengths = np.diff(bounds)
        return {f"shared{place}": np.repeat(column, lengths) for place, column in enumerate(shared.T)}

    def _pays(self, size: int) -> bool:
        """Return whether the loops are compiled already, or should be now."""
        self._done += size
        if "_loops" in self.__dict__:
            return True
        if self._done < _WORTH_LOADING or not is_available():
            return False
        return "numba" in sys.modules or self._done >= _WORTH_COMPILING

    @cached_property
    def _loops(self) -> tuple[Callable[..., None], Callable[..., None]]:
        """The compiled functions, after a first call on no groups, in which Numba compiles them."""
        with self._lock:  # so that threads do not compile them twice
            module: Any = imported(group_source(self._line, self._places))
            bounds, shared = np.zeros(1, np.int64), np.empty((0, self.text.shared), np.float32)
            numbers, codes = np.empty(0, np.float32), np.empty(0, np.uint8)
            module.encode(numbers, bounds, codes, shared)
            module.decode(codes, shared, bounds, numbers)
            return module.encode, module.decode


@lru_cache(maxsize=64)
def group_loops(text: GroupText) -> GroupLoops:
    """Return the loops that encode and decode groups by a `GroupText`, made once."""
    return GroupLoops(text)


def uniform(size: int, group: int) -> Array:
    """Return the bounds of groups of equal length in `size` elements; the last group may be shorter."""
    return np.append(np.arange(0, size, group, dtype=np.int64), np.int64(size))
