"""Trials: a block of operands and the algorithm's results for it, as hypotheses and claims see them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property, reduce
from math import lcm
from operator import and_, or_
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from mcfsim.backends.factory import on_blocks
from mcfsim.checks import Opaque
from mcfsim.compile.program import flat
from mcfsim.formats import Format
from mcfsim.protocol import Emulation
from mcfsim.rounding import Rounding
from mcfsim.theorems.exact import Exact

Block = NDArray[Any]
#: An array of booleans.
Truth = Any
_Item = TypeVar("_Item")


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
                raise ValueError("a block of operands or results was written to; they are read-only")


def is_block(x: Any, kind: str, shape: tuple[int, ...]) -> bool:
    """Return whether an object is an array of a kind and a shape, and of no subclass."""
    return type(x) is np.ndarray and x.dtype.kind == kind and x.shape == shape


class ArrayBacked(Opaque):
    """A base class for objects that hold arrays and are not compared as a whole."""

    __slots__ = ()
    opaque = (
        "cannot be compared as a whole: compare its arrays one by one, or exact numbers, such as "
        "t.exact(name) and t.result()"
    )


class Components(ArrayBacked, tuple[Any, ...]):
    """The arrays of an operand or result that has several: a tuple without comparisons or a truth value."""

    __slots__ = ()
    __iter__ = tuple.__iter__
    index = count = Opaque._refuse

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        return Components(found) if isinstance(index, slice) else found

    def __add__(self, other: tuple[Any, ...]) -> Components:
        return Components((*self, *other))


@dataclass(frozen=True, eq=False)
class Measured(ArrayBacked):
    """The errors of results, and what they are relative to.

    Attributes
    ----------
    error, reference : Exact
        The error, and the number that it is relative to.
    """

    error: Exact
    reference: Exact

    @cached_property
    def ratio(self) -> NDArray[np.float64]:
        """Their signed quotient in binary64, with a relative error below ``2**-47``."""
        return self.error.ratio(self.reference)

    def __getitem__(self, index: Any) -> Measured:
        """Return the errors of some elements."""
        return Measured(self.error[index], self.reference[index])


class MixedError(Measured):
    """An error relative to ``a |x| + b y`` for a, b > 0 and y >= |x|.

    The reference has many bits. It is computed exactly only on demand, not for the quotient.

    Parameters
    ----------
    off, x, y : Exact
    a, b : Fraction
    """

    def __init__(self, off: Exact, x: Exact, y: Exact, a: Fraction, b: Fraction) -> None:
        self.__dict__.update(_exact=(off, x, y), _shares=(a, b), _common=lcm(a.denominator, b.denominator))

    _exact: tuple[Exact, Exact, Exact]
    _shares: tuple[Fraction, Fraction]
    _common: int

    @cached_property
    def error(self) -> Exact:
        """The error, times the common denominator of a and b."""
        return self._exact[0] * self._common

    @cached_property
    def reference(self) -> Exact:
        """The reference, times the common denominator of a and b."""
        (_, x, y), (a, b) = self._exact, self._shares
        return abs(x) * int(a * self._common) + y * int(b * self._common)

    @cached_property
    def ratio(self) -> NDArray[np.float64]:
        """Their signed quotient in binary64, with a relative error below ``2**-47``."""
        (off, x, y), (a, b) = self._exact, map(float, self._shares)
        return off.ratio(y) / (abs(x).ratio(y) * a + b)

    def __getitem__(self, index: Any) -> Measured:
        """Return the errors of some elements."""
        off, x, y = (item[index] for item in self._exact)
        return MixedError(off, x, y, *self._shares)


@dataclass(frozen=True, eq=False)
class Trial(ArrayBacked):
    """Operands and results, one element per case; for stochastic rounding see `mcfsim.theorems.paths`.

    A tuple of blocks cannot be compared as a whole; its blocks can, and so can exact numbers.

    Attributes
    ----------
    ar : Arithmetic
        The arithmetic that the algorithm ran in; it takes blocks.
    names : tuple of str
        Names of the operands.
    operands : tuple
        For each name a block, or, for a double word or a sequence, a tuple of blocks.
    results : tuple of blocks
        Results of the algorithm, with nested tuples laid flat. They may contain infinities and NaN.
    sealed : Sealed, optional
        The owner of the read-only blocks from which operands and results come.
    """

    ar: Emulation
    names: tuple[str, ...]
    operands: tuple[Any, ...]
    results: tuple[Block, ...]
    sealed: Sealed = field(default_factory=Sealed, repr=False)
    _known: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        named = tuple(Components(item) if isinstance(item, tuple) else item for item in self.operands)
        object.__setattr__(self, "operands", named)
        object.__setattr__(self, "results", Components(self.results))

    def once(self, function: Callable[[Any, Any], _Item], said: Any) -> _Item:
        """Return ``function(said, self)``, computed only the first time for equal data."""
        if (function, said) not in self._known:
            self._known[function, said] = function(said, self)
        found: _Item = self._known[function, said]
        return found

    def __getitem__(self, name: str) -> Any:
        """Return the block, or the tuple of blocks, of a named operand."""
        try:
            return self.operands[self.names.index(name)]
        except ValueError:
            raise KeyError(f"no operand {name!r}; operands: {', '.join(self.names)}") from None

    def head(self, name: str) -> Block:
        """Return the block of a value, or of the first component of an expansion."""
        operand = self[name]
        block: Block = operand[0] if isinstance(operand, tuple) else operand
        return block

    @cached_property
    def format(self) -> Format:
        """The format of operands and results."""
        return self.ar.format

    @cached_property
    def rounding(self) -> Rounding:
        """How results are rounded."""
        return self.ar.rounding

    def under(self, rounding: Rounding) -> Any:
        """Return the arithmetic of the format under another rounding."""
        return on_blocks(self.format, rounding)

    @cached_property
    def size(self) -> int:
        """Number of elements."""
        return int(flat(self.operands)[0].size)

    # -- elements and cases: the same, except for the paths of stochastic rounding --------------------------
    @property
    def cases(self) -> int:
        """Number of cases."""
        return self.size

    def case(self, element: int) -> int:
        """Return the case of an element."""
        return element

    def each(self, of_cases: Block) -> Block:
        """Return a value for each element from a value for each case."""
        return of_cases

    def throughout(self, held: Truth) -> Truth:
        """Return for each case whether something holds for all of its elements."""
        return held

    def mean(self, x: Exact) -> Exact:
        """Return for each element the expectation of a number in its case."""
        return x

    def only(self, there: Truth, test: Callable[[Trial], Truth]) -> Truth:
        """Return where `there` and a test of trials hold; the test does not see other cases."""
        return only(there, test, self)

    #: The type of exact numbers.
    numbers: ClassVar[type] = Exact

    def truth(self, held: Any) -> Truth:
        """Return the result of a test; raise TypeError if it is not a truth value per case."""
        if not is_block(held, "b", (self.size,)):
            raise TypeError(
                f"a test must return a block of {self.size} truth values, not {type(held).__name__}"
            )
        return held

    def rarely(self, there: Truth, test: Callable[[Trial], Truth]) -> Truth:
        """Return the same as `only`, for a test of few cases, which a compiled loop leaves to NumPy."""
        return rarely(there, test, self)

    def everywhere(self, held: bool) -> Truth:
        """Return a truth value for every case."""
        return np.full(self.size, held)

    @cached_property
    def finite(self) -> Block:
        """Where all results are finite."""
        finite: Block = all_hold(*map(np.isfinite, self.results))
        return finite

    def exact(self, name: str) -> Exact:
        """Return the exact value of an operand, components summed."""
        return self._sum(flat(self[name]))

    def result(self, first: int = 0, stop: int | None = None) -> Exact:
        """Return the exact sum of results ``[first:stop]``; a result that is not finite counts as zero."""
        return self._sum(map(_finite, self.results[first:stop]))

    def at(self, index: Any) -> Trial:
        """Return the trial of some of the cases."""
        return Trial(self.ar, self.names, _taken(self.operands, index), _taken(self.results, index))

    def _sum(self, parts: Any) -> Exact:
        return total(exact_of(part, self.format.precision) for part in parts)


def total(numbers: Iterable[Exact]) -> Exact:
    """Return an exact sum, added pairwise, so that the bound on its bits does not grow with each number."""
    sums = list(numbers)
    while len(sums) > 1:
        pairs = [a + b for a, b in zip(sums[::2], sums[1::2], strict=False)]
        sums = [*pairs, *sums[2 * len(pairs) :]]
    return sums[0]


def exact_of(x: Block, precision: int) -> Exact:
    """Return finite numbers of at most `precision` bits as exact numbers."""
    found: Exact = Exact.of(x, precision) if isinstance(x, np.ndarray) else x.exactly()
    return found


def all_hold(*truths: Truth) -> Truth:
    """Return where all of several truth values hold."""
    return reduce(and_, truths)


def any_holds(*truths: Truth) -> Truth:
    """Return where at least one of several truth values holds."""
    return reduce(or_, truths)


def only(there: Truth, test: Callable[..., Truth], *blocks: Any) -> Truth:
    """Return where `there` and a test of blocks, or of trials, hold; the test sees no other elements."""
    if not isinstance(there, np.ndarray):
        return there.only(test, *blocks)
    held, places = np.zeros(there.shape, np.bool_), np.flatnonzero(there)
    if places.size:
        found = test(*(x.at(places) if isinstance(x, Trial) else x[places] for x in blocks))
        if not is_block(found, "b", places.shape):
            raise TypeError(
                f"a test of {places.size} elements gave {type(found).__name__}, no truth value of each"
            )
        held[places] = found
    return held


def rarely(there: Truth, test: Callable[..., Truth], *blocks: Any) -> Truth:
    """Return the same as `only`, for a test of few elements, which a compiled loop leaves to NumPy."""
    return only(there, test, *blocks) if isinstance(there, np.ndarray) else there.rarely(test, *blocks)


def _taken(item: Any, index: Any) -> Any:
    return tuple(_taken(part, index) for part in item) if isinstance(item, tuple) else item[index]


def _finite(part: Block) -> Block:
    """Return a block with zeros in place of infinities and NaN."""
    there = np.isfinite(part)
    every = isinstance(there, np.ndarray) and there.all()
    return part if every else np.where(there, part, part.dtype.type(0))
