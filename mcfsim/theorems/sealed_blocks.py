"""Read-only copies of blocks, and base classes for arrays that compare elementwise or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.checks import Opaque


class Sealed:
    """Read-only copies of blocks, for code that may only read them.

    Parameters
    ----------
    blocks : sequence of array
        The originals, which are kept as they are and not handed out.

    Attributes
    ----------
    blocks : list of array
        Copies, of type `numpy.ndarray` and read-only.
    """

    def __init__(self, blocks: Sequence[NDArray[Any]]) -> None:
        self._kept = blocks
        self.blocks = [np.array(block, order="C") for block in blocks]
        for block in self.blocks:
            block.flags.writeable = False

    def check(self) -> None:
        """Raise ValueError if a copy was written to: NumPy leaves some ways to do so."""
        for ours, theirs in zip(self._kept, self.blocks, strict=True):
            code = f"u{ours.itemsize}"  # the sign of a zero counts, and a NaN equals itself
            if not np.array_equal(np.ascontiguousarray(ours).view(code), theirs.view(code)):
                raise ValueError("a block of operands or results was written to; they are for reading alone")


def is_block(x: Any, kind: str, shape: tuple[int, ...]) -> bool:
    """Return whether an object is an array of a kind and a shape, and of no subclass."""
    return type(x) is np.ndarray and x.dtype.kind == kind and x.shape == shape


# -- comparisons ------------------------------------------------------------------------------------------
Truth = NDArray[Any]


class Elementwise(Opaque):
    """A base class for arrays of ordered numbers, which derives all comparisons from two.

    A subclass defines ``__le__`` and ``__eq__``. Each returns an array of booleans, or raises TypeError if
    it cannot compare with the other operand.
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
