"""Sums along a contracted axis, a group at a time: one line for an element, by NumPy or in compiled loops."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.checks import check_processor
from mcfsim.compile.llvm_source import array, loops
from mcfsim.compile.llvm_text import REGISTERS, Function, module
from mcfsim.compile.lowering import Lowered
from mcfsim.compile.objects import NamedLoops
from mcfsim.kernels.element.machine import DTYPES, Line, Type, Value, run

Array = NDArray[Any]

#: Elements of the result that NumPy computes at a time.
_AT_ONCE = 1 << 13
#: NumPy takes as much time for this many elements as for one.
_FEWEST = 1 << 9


class ContractionLine:
    """The line of what an element of the result does with one group of both operands.

    Parameters
    ----------
    parts : int
        How many numbers a group of an operand has.
    given, carried : Type
        The type of these numbers, and of the element.

    Attributes
    ----------
    line : Line
    left, right : tuple of Value
        The numbers of a group of the left and the right operand.
    carried, result : Value
        The element before and after the group.
    """

    result: Value

    def __init__(self, parts: int, given: Type, carried: Type) -> None:
        self.line = Line()
        self.left = tuple(self.line.input(f"left{place}", given) for place in range(parts))
        self.right = tuple(self.line.input(f"right{place}", given) for place in range(parts))
        self.carried = self.line.input("carried", carried)


class Contraction(NamedLoops):
    """Sums along the contracted axis by a line, which is compiled once enough groups have been summed."""

    def __init__(self, own: ContractionLine) -> None:
        super().__init__()
        self.line, self.parts = own, len(own.left)
        self.given, self.carried = DTYPES[own.left[0].type], DTYPES[own.carried.type]

    def add(
        self, left: Array, right: Array, out: Array, first: int, last: int, *, paired: bool = False
    ) -> None:
        """Add groups of both operands to a matrix in place, in ascending order.

        Parameters
        ----------
        left : array, shape (rows, groups * parts)
        right : array, shape (groups * parts, columns)
        out : array, shape (rows, columns)
        first, last : int
            The first group, and the one after the last.
        paired : bool, optional
            Whether `left` is laid out as `right`, and each of its columns is multiplied by the same column
            of `right`: the results are dot products, and `out` has one row.

        Notes
        -----
        All arrays are contiguous and of the line's dtypes.
        """
        check_processor()
        if not out.size or last <= first:
            return
        name = "pair" if paired else "contract"
        if self.pays(max(out.size, _FEWEST) * self.parts * (last - first), name):
            self._run(name, left, right, np.int64(first), np.int64(last), out)
            return
        names = [str(x.constant) for x in (*self.line.left, *self.line.right)]
        for some, numbers in groups_of(left, right, out, first, last, self.parts, _AT_ONCE, paired=paired):
            given = dict(zip(names, numbers, strict=True))
            (out[some],) = run(self.line.line, (self.line.result,), carried=out[some], **given)

    def _written(self, name: str) -> str:
        return module("Sums of products, a group at a time.", _function(self.line, name))

    def _examples(self, name: str) -> Sequence[Any]:
        given = np.empty((1, 1), self.given)
        return given, given, np.int64(0), np.int64(0), np.empty((1, 1), self.carried)


def groups_of(
    left: Any, right: Any, out: Any, first: int, last: int, parts: int, at_once: int, *, paired: bool
) -> Iterator[tuple[slice, list[Any]]]:
    """Yield some rows of the result at a time, with the numbers of one group of both operands for them.

    Arguments are those of `Contraction.add`, arrays or tensors; the rows have `at_once` elements at most.
    """
    rows = max(1, at_once // out.shape[1])
    for row in range(0, len(out), rows):
        some = slice(row, row + rows)
        for group in range(first, last):
            places = range(group * parts, (group + 1) * parts)
            lefts = [left[x][None, :] if paired else left[some, x][:, None] for x in places]
            yield some, [*lefts, *(right[x][None, :] for x in places)]


def _function(own: ContractionLine, name: str) -> Function:
    """Return a function ``contract`` or ``pair``, for `Contraction.add`.

    All rows take a group before the next one, so that the group of the right operand stays in cache.
    """
    paired = name == "pair"
    taken = [*array("%left", 2), *array("%right", 2), "i64 %first", "i64 %last", *array("%out", 2)]
    function = Function(name, taken)
    parts, kind = len(own.left), REGISTERS[own.left[0].type]
    carried = REGISTERS[own.carried.type]
    lowered = Lowered(own.line)
    columns = "%out.columns"
    with function.loop(function.made("sub i64 %last, %first")) as step:
        start = function.made(f"mul i64 {function.made(f'add i64 %first, {step}')}, {parts}")
        places = [function.made(f"add i64 {start}, {place}") for place in range(parts)]
        rows = [function.made(f"mul i64 {place}, {columns}") for place in places]
        vectors = dict(zip(own.right, (function.at(kind, "%right", row) for row in rows), strict=True))
        if paired:
            vectors |= zip(own.left, (function.at(kind, "%left", row) for row in rows), strict=True)
        with function.loop("%out.rows") as i:
            known = {}
            if not paired:
                row = function.at(kind, "%left", function.made(f"mul i64 {i}, %left.columns"))
                known = {x: function.load(kind, row, y) for x, y in zip(own.left, places, strict=True)}
            out = function.at(carried, "%out", function.made(f"mul i64 {i}, {columns}"))

            def read(value: Value, j: str, vectors: dict[Value, str] = vectors, out: str = out) -> str:
                if value is own.carried:
                    return function.load(carried, out, j)
                return function.load(kind, vectors[value], j)

            def put(_: int, x: str, j: str, out: str = out) -> None:
                function.store(carried, x, out, j)

            loops(function, lowered, (own.result,), read, put, columns, known)
    function.returns("0")
    return function
