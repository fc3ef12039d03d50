"""Read-only copies of blocks, and base classes for arrays that compare elementwise or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.checks import Opaque


class Sealed:
    """Blocks that hand out only read-only copies, to code that must not change them."""

    def __init__(self) -> None:
        self._kept: list[tuple[NDArray[Any], NDArray[Any]]] = []

    def copies(self, blocks: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        """Return copies of blocks, of type `numpy.ndarray` and read-only; keep the originals as they are."""
        found = [np.array(block, order="C") for block in blocks]
        for block in found:
            block.flags.writeable = False
        self._kept += zip(blocks, found, strict=True)
        return found

    def check(self) -> None:
        """Raise ValueError if a copy was written to: NumPy leaves some ways to do so."""
        for ours, theirs in self._kept:
            code = f"u{ours.itemsize}"  # the sign of a zero counts, and a NaN equals itself
            if not np.array_equal(np.ascontiguousarray(ours).view(code), theirs.view(code)):
                raise ValueError("a block of operands or results was written to; they are for reading alone")


def is_block(x: Any, kind: str, shape: tuple[int, ...]) -> bool:
    """Return whether an object is an array of a kind and a shape, and of no subclass."""
    return type(x) is np.ndarray and x.dtype.kind == kind and x.shape == shape


# -- comparisons ------------------------------------------------------------------------------------------
class Elementwise(Opaque):
    """A base class for arrays of ordered numbers, which derives all comparisons from two.

    A subclass defines ``__le__`` and ``__eq__``. Each returns an array of booleans, or raises TypeError if
    it cannot compare with the other operand.
    """

    __slots__ = ()
    opaque = "holds a number a case: it has no one truth value, and is not searched or hashed"

    def __ne__(self: Any, other: object) -> Any:
        return ~(self == other)

    def __lt__(self: Any, other: Any) -> Any:
        return (self <= other) & ~(self == other)

    def __gt__(self: Any, other: Any) -> Any:
        return ~(self <= other)

    def __ge__(self: Any, other: Any) -> Any:
        return ~(self <= other) | (self == other)


class ArrayBacked(Opaque):
    """A base class for objects that hold arrays and are not compared as a whole."""

    __slots__ = ()
    opaque = (
        "cannot be compared as a whole: compare its arrays one by one, or exact numbers, such as "
        "t.exact(name) and t.result()"
    )


class Components(ArrayBacked, tuple[Any, ...]):
    """The arrays of an operand or result that has several: a tuple without comparisons and truth."""

    __slots__ = ()
    __iter__ = tuple.__iter__
    index = count = Opaque._refuse

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        return Components(found) if isinstance(index, slice) else found

    def __add__(self, other: tuple[Any, ...]) -> Components:
        return Components((*self, *other))
