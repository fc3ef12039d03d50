"""What ``==`` and ``<`` say of objects that hold many numbers: something of each one, or nothing at all."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from mcfsim.checks.opaque import Opaque

Truth = NDArray[Any]


class Elementwise(Opaque):
    """Numbers in an array, of which every pair is in order: all comparisons from two.

    A subclass defines ``__le__`` and ``__eq__``, each of which returns an array of booleans, or raises
    TypeError if the other one is nothing that it compares with.
    """

    __slots__ = ()
    opaque = "holds a number a case: it has no one truth value, and is not searched or hashed"

    def __ne__(self, other: object) -> Truth:  # type: ignore[override]
        return ~self._same(other)

    def __lt__(self, other: Any) -> Truth:
        return self._at_most(other) & ~self._same(other)

    def __gt__(self, other: Any) -> Truth:
        return ~self._at_most(other)

    def __ge__(self, other: Any) -> Truth:
        return ~self._at_most(other) | self._same(other)

    def _same(self, other: Any) -> Truth:
        found: Truth = self == other
        return found

    def _at_most(self, other: Any) -> Truth:
        found: Truth = self <= other
        return found


class ArrayBacked(Opaque):
    """What holds arrays and is not to be compared as a whole."""

    __slots__ = ()
    opaque = (
        "cannot be compared as a whole: compare its arrays one by one, or exact numbers, such as "
        "t.exact(name) and t.result()"
    )


class Components(ArrayBacked, tuple[Any, ...]):
    """The arrays of an operand or a result that has several: a tuple, but for its comparisons and truth."""

    __slots__ = ()
    __iter__ = tuple.__iter__
    index = count = Opaque._refuse

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        return Components(found) if isinstance(index, slice) else found

    def __add__(self, other: tuple[Any, ...]) -> Components:
        return Components((*self, *other))
