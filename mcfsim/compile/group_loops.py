"""Loops over groups of numbers: encoding and decoding with shared numbers (scales), and Hadamard transforms.

Encoding and decoding of groups between bounds is compiled or done by NumPy. Loops over blocks of one size and
Hadamard transforms in binary32 are compiled.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.checks import check_processor
from mcfsim.compile.group_algorithm import GroupAlgorithm, GroupLine, Places, Warps, halved
from mcfsim.compile.group_source import block_source, group_source, group_tables
from mcfsim.compile.llvm_source import array
from mcfsim.compile.llvm_text import Function, module, number
from mcfsim.compile.loops import word_dtype
from mcfsim.compile.objects import NamedLoops
from mcfsim.kernels.element.machine import DTYPES, run

Array = NDArray[Any]


class GroupLoops(NamedLoops):
    """Encoding and decoding of groups by a `GroupAlgorithm`, which says how groups are stored.

    Groups are ranges of a vector between bounds; an array has their shared numbers, one row per group.
    """

    def __init__(self, algorithm: GroupAlgorithm) -> None:
        super().__init__()
        self.algorithm, self._line = algorithm, GroupLine(algorithm)
        self._places = None if algorithm.places is None else Places(algorithm.places)
        self._tables = group_tables(self._line, self._places)

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
        own, rows = self._line, shared.reshape(-1, self.algorithm.shared)
        if self.pays(x.size, "encode"):
            numbers = np.ascontiguousarray(x, np.float32)
            self._run("encode", *self._tables, numbers, bounds, codes, rows)
        elif x.size:
            (measured,) = run(own.line, (own.measured,), x=x)
            found = {"greatest": np.maximum.reduceat(measured, bounds[:-1])}
            if self.algorithm.warps is not None:
                found["least"] = self._least(np.abs(x), bounds, self.algorithm.warps)
            for place, column in enumerate(run(own.line, own.made, **found)):
                rows[:, place] = column
            (made,) = run(own.line, (own.encoded,), x=x, **self._spread(rows, bounds))
            codes[...] = made if self._places is None else self._places.find(made)

    def decode(self, codes: Array, shared: Array, bounds: Array, out: Array) -> None:
        """Write the numbers of codes into an array of float32; arguments as for `encode`."""
        check_processor()
        own, rows = self._line, shared.reshape(-1, self.algorithm.shared)
        if self.pays(codes.size, "decode"):
            self._run("decode", *self._tables, codes, rows, bounds, out)
        elif codes.size:
            taken = codes.astype(np.int32) if self.algorithm.table is None else self.algorithm.table[codes]
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

        def lesser(least: Array, other: Array) -> Array:
            return run(own.line, own.lesser, least=least, other=other)[0]

        found: Array = halved(x, lesser)[..., 0]
        return found

    def _spread(self, shared: Array, bounds: Array) -> dict[str, Array]:
        """Return the shared numbers of groups, repeated for each of their elements."""
        lengths = np.diff(bounds)
        return {f"shared{place}": np.repeat(column, lengths) for place, column in enumerate(shared.T)}

    def _written(self, name: str) -> str:
        return group_source(self._line, self._places, name)

    def _examples(self, name: str) -> Sequence[Any]:
        bounds, shared = np.zeros(1, np.int64), np.empty((0, self.algorithm.shared), np.float32)
        numbers, codes = np.empty(0, np.float32), np.empty(0, np.uint8)
        if name == "encode":
            return *self._tables, numbers, bounds, codes, shared
        return *self._tables, codes, shared, bounds, numbers


class BlockLoops(NamedLoops):
    """Compiled encoding and decoding of blocks of one size, by a `GroupAlgorithm` that stores no codes.

    Parameters
    ----------
    algorithm : GroupAlgorithm
    block : int
        The elements of a block.
    """

    def __init__(self, algorithm: GroupAlgorithm, block: int) -> None:
        super().__init__()
        self.algorithm, self._line, self._block = algorithm, GroupLine(algorithm), block

    def encode(
        self, x: Array, elements: Array, shared: Array, *numbers: float, words: Array | None = None
    ) -> None:
        """Write the elements and the shared numbers of blocks.

        Parameters
        ----------
        x, elements : array of float32, shape (blocks * block,)
        shared : array of float32, shape (blocks, shared)
        *numbers : float
            The same for all blocks.
        words : array of `word_dtype`, shape (blocks * block,)
            If the algorithm takes random bits: the upper ones of these words.
        """
        self._run("encode", x, elements, shared, *(() if words is None else (words,)), *numbers)

    def fill(
        self, x: Array, elements: Array, shared: Array, *numbers: float, words: Array | None = None
    ) -> None:
        """Write the elements of blocks whose shared numbers are given; arguments as for `encode`."""
        self._run("fill", x, elements, shared, *(() if words is None else (words,)), *numbers)

    def decode(self, elements: Array, shared: Array, out: Array, *numbers: float) -> None:
        """Write the numbers that elements stand for; arguments as for `encode`."""
        self._run("decode", elements, shared, out, *numbers)

    def measure(self, x: Array, found: Array, *numbers: float) -> None:
        """Write the greatest measure of each block, an int32."""
        self._run("measure", x, found, *numbers)

    def share(self, found: Array, shared: Array, *numbers: float) -> None:
        """Write the shared numbers of blocks from their greatest measures."""
        self._run("share", found, shared, *numbers)

    def _written(self, name: str) -> str:
        return block_source(self._line, self._block, name)

    def _examples(self, name: str) -> Sequence[Any]:
        numbers, found = np.empty(0, np.float32), np.empty(0, np.int32)
        shared = np.empty((0, self.algorithm.shared), np.float32)
        out = np.empty(0, DTYPES[self._line.decoded.type])
        words = [np.empty(0, word_dtype(self.algorithm.random_bits)) for _ in self._line.word]
        arrays: dict[str, Any] = {"decode": (numbers, shared, out), "measure": (numbers, found)}
        arrays["share"] = found, shared
        given = arrays.get(name, (numbers, numbers, shared, *words))
        return [*given, *[np.float64(1)] * len(self._line.numbers)]


@lru_cache(maxsize=64)
def block_loops(algorithm: GroupAlgorithm, block: int) -> BlockLoops:
    """Return the compiled loops over blocks of one size, made once."""
    return BlockLoops(algorithm, block)


@lru_cache(maxsize=64)
def group_loops(algorithm: GroupAlgorithm) -> GroupLoops:
    """Return the loops that encode and decode groups by a `GroupAlgorithm`, made once."""
    return GroupLoops(algorithm)


def uniform(size: int, group: int) -> Array:
    """Return the bounds of groups of equal length in `size` elements; the last group may be shorter."""
    return np.append(np.arange(0, size, group, dtype=np.int64), np.int64(size))


# -- Hadamard transforms ----------------------------------------------------------------------------------
Single = NDArray[np.float32]

#: The longest group that nearly fits into registers.
LONGEST = 128


class HadamardLoops(NamedLoops):
    """Transforms of groups that lie one after another, by butterflies in the order of `mcfsim.hadamard`.

    A loop holds a group in a vector of LLVM.

    Parameters
    ----------
    size : int
        The size of a group: a power of two, from 2 to `LONGEST`.
    factor : float
        The factor by which sums are multiplied.
    """

    def __init__(self, size: int, factor: float) -> None:
        super().__init__()
        self._size, self._factor = size, factor

    def transform(self, name: str, x: Single, signs: Single, out: Single) -> None:
        """Write the transforms of groups, or their inverses.

        Parameters
        ----------
        name : {"forward", "inverse"}
            Whether signs apply before the transform or after.
        x, out : array of float32, shape (groups, size)
            Contiguous.
        signs : array of float32, shape (size,)
        """
        self._run(name, x, signs, out)

    def _examples(self, name: str) -> Sequence[Single]:
        groups = np.empty((0, self._size), np.float32)
        return groups, np.empty(0, np.float32), groups

    def _written(self, name: str) -> str:
        size, inverse = self._size, name == "inverse"
        kind = f"<{size} x float>"
        function = Function(name, [*array("%x", 2), *array("%signs", 1), *array("%out", 2)])
        signs = function.made(f"load {kind}, ptr %signs, align 4")
        factor = _listed("float", [number(self._factor)] * size)
        with function.loop("%x.rows") as group:
            place = function.made(f"mul i64 {group}, {size}")
            x = function.made(f"load {kind}, ptr {function.at('float', '%x', place)}, align 4")
            if not inverse:
                x = function.made(f"fmul {kind} {x}, {signs}")
            for stage in range(size.bit_length() - 1):
                x = _butterflies(function, x, size, 1 << stage)
            x = function.made(f"fmul {kind} {x}, {factor}")
            if inverse:
                x = function.made(f"fmul {kind} {x}, {signs}")
            function.do(f"store {kind} {x}, ptr {function.at('float', '%out', place)}, align 4")
        function.returns("0")
        return module(f"Hadamard transforms of {size} numbers.", function)


def _butterflies(function: Function, x: str, size: int, stride: int) -> str:
    """Return sums and differences of neighbours at a stride."""
    kind = f"<{size} x float>"

    def shuffled(first: str, second: str, places: Iterable[int]) -> str:
        mask = _listed("i32", places)
        return function.made(f"shufflevector {kind} {first}, {kind} {second}, <{size} x i32> {mask}")

    other = shuffled(x, "poison", (place ^ stride for place in range(size)))
    sums = function.made(f"fadd {kind} {x}, {other}")
    differences = function.made(f"fsub {kind} {other}, {x}")
    return shuffled(sums, differences, (place + size * bool(place & stride) for place in range(size)))


def _listed(kind: str, items: Iterable[Any]) -> str:
    return f"<{', '.join(f'{kind} {x}' for x in items)}>"


@lru_cache(maxsize=16)
def hadamard_loops(size: int, factor: float) -> HadamardLoops | None:
    """Return the loops for groups of a size, made once; None if groups are too long."""
    return HadamardLoops(size, factor) if size <= LONGEST else None
