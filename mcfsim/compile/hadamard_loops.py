"""Compiled loops of Hadamard transforms in binary32, which hold a group in a vector of LLVM."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.compile.llvm_source import array
from mcfsim.compile.llvm_text import Function, module, number
from mcfsim.compile.objects import NamedLoops

Single = NDArray[np.float32]

#: The longest group that registers hold, nearly.
LONGEST = 128


class HadamardLoops(NamedLoops):
    """Transforms of groups that lie one after another, by butterflies in the order of `mcfsim.hadamard`.

    Parameters
    ----------
    size : int
        Of a group: a power of two, from 2 to `LONGEST`.
    factor : float
        By which sums are multiplied.
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
