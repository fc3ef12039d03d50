"""What ``==`` and ``<`` say of objects that hold many numbers: something of each one, or nothing at all.

Python compares objects that define no comparison by identity, and tuples by the first items that differ. A
claim written with either would be judged without its numbers being looked at.
"""

from __future__ import annotations

from typing import Any, NoReturn

from numpy.typing import NDArray

Truth = NDArray[Any]


class Elementwise:
    """Numbers in an array, of which every pair is in order: all comparisons from two.

    A subclass defines ``__le__`` and ``__eq__``, each of which returns an array of booleans, or raises
    TypeError if the other one is nothing that it compares with.
    """

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]
    # Not to be iterated over, nor searched, nor taken elementwise by a function of NumPy's.
    __iter__ = None
    __contains__ = None
    __array_ufunc__ = None

    def __ne__(self, other: object) -> Truth:  # type: ignore[override]
        return ~self._same(other)

    def __lt__(self, other: Any) -> Truth:
        return self._at_most(other) & ~self._same(other)

    def __gt__(self, other: Any) -> Truth:
        return ~self._at_most(other)

    def __ge__(self, other: Any) -> Truth:
        return ~self._at_most(other) | self._same(other)

    def __bool__(self) -> NoReturn:
        raise TypeError(f"{type(self).__name__} holds a number a case, and has no one truth value")

    def _same(self, other: Any) -> Truth:
        found: Truth = self == other
        return found

    def _at_most(self, other: Any) -> Truth:
        found: Truth = self <= other
        return found


class Incomparable:
    """What holds arrays and is not to be compared as a whole."""

    __slots__ = ()

    def _refuse(self, other: object) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__} cannot be compared as a whole: compare its arrays one by one, or exact "
            "numbers, such as t.exact(name) and t.result()"
        )

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __contains__ = _refuse
    __hash__ = object.__hash__


class Components(Incomparable, tuple[Any, ...]):
    """The arrays of an operand or a result that has several: a tuple, but for its comparisons."""

    __slots__ = ()
    index = count = Incomparable._refuse  # type: ignore[assignment]

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        return Components(found) if isinstance(index, slice) else found

    def __add__(self, other: tuple[Any, ...]) -> Components:
        return Components((*self, *other))
