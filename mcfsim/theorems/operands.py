"""The operands of a statement: values, double words, sequences; and tables of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.backends.factory import on_blocks
from mcfsim.checks import whole_number
from mcfsim.codec import all_values
from mcfsim.convert import round_to
from mcfsim.formats import Format
from mcfsim.kernels.carriers import carrier_of
from mcfsim.rounding import Rounding

Block = NDArray[Any]
#: The columns of a table of operands: one array per component.
Columns = tuple[Block, ...]
#: Exponents of the format that stands for unbounded ones. If binary32 carries it, they are binary32's own:
#: rounding to such a format takes half of the operations that others take.
UNBOUNDED, FURTHER = (-126, 127), (-200, 200)
#: The largest precision at which binary32 carries it.
_IN_BINARY32 = 11


@dataclass(frozen=True)
class OperandSpec:
    """An operand of a statement: a value of the format, or several that belong together.

    Parameters
    ----------
    name : str
        Its name in hypotheses and claims.
    kind : {"value", "double word", "relaxed pair", "sequence"}
        A double word is a pair ``(high, low)`` with ``high = RN(high + low)``, ties to even, and ``|low| <=
        ulp(high) / 2``. The second condition says more only where sums saturate and in posits. A relaxed pair
        meets the second condition alone. A sequence is any number of values.
    components : int
        Number of values that it consists of.
    """

    name: str
    kind: str
    components: int

    @property
    def paired(self) -> bool:
        """Whether it has a high and a low word."""
        return self.kind in ("double word", "relaxed pair")


@dataclass(frozen=True, eq=False)
class PairRows:
    """Pairs of words by their high words; the low words of each are consecutive in an array.

    Attributes
    ----------
    high, low : array
        High words, one per row; and low words.
    start, count : array of int
        For each row, the place of its first low word, and how many it has.
    """

    high: Block
    low: Block
    start: NDArray[np.int64]
    count: NDArray[np.int64]

    @cached_property
    def _ends(self) -> NDArray[np.int64]:
        return np.cumsum(self.count)

    @property
    def size(self) -> int:
        """Number of pairs."""
        return int(self._ends[-1])

    @property
    def nbytes(self) -> int:
        """Number of bytes of the arrays."""
        return self.high.nbytes + self.low.nbytes + self.start.nbytes + self.count.nbytes

    def between(self, start: int, stop: int | None = None) -> Columns:
        """Return the pairs of a range, by default up to the last one: high words, and low words."""
        stop = self.size if stop is None else stop
        first, last = np.searchsorted(self._ends, [start, stop - 1], "right").tolist()
        rows = slice(first, last + 1)
        count = self.count[rows]
        before = int(self._ends[first] - count[0])
        # The number of a pair plus this is the place of its low word.
        shift = np.repeat(self.start[rows] - self._ends[rows] + count, count)
        place = np.arange(before, before + shift.size) + shift
        own = slice(start - before, stop - before)
        return np.repeat(self.high[rows], count)[own], self.low[place[own]]

    def at(self, cases: NDArray[np.int64]) -> Columns:
        """Return the pairs with the given numbers."""
        row = np.searchsorted(self._ends, cases, "right")
        place = cases - self._ends[row] + self.count[row] + self.start[row]
        return self.high[row], self.low[place]


def value(name: str) -> OperandSpec:
    """Return an operand that is a value of the format."""
    return OperandSpec(name, "value", 1)


def double_word(name: str) -> OperandSpec:
    """Return an operand that is a double word: a normalised pair."""
    return OperandSpec(name, "double word", 2)


def relaxed_pair(name: str) -> OperandSpec:
    """Return an operand that is a pair whose low word is at most half an ulp of the high one."""
    return OperandSpec(name, "relaxed pair", 2)


def sequence(name: str, length: int) -> OperandSpec:
    """Return an operand that is a sequence of `length` values, at least one."""
    return OperandSpec(name, "sequence", whole_number("length", length, least=1))


def every(operand: OperandSpec, fmt: Format) -> Columns:
    """Return every finite operand of a format, of either sign, subnormal numbers and zero included."""
    values = finite_values(fmt)
    if operand.paired:
        return _pairs(values, values, operand.kind, fmt).between(0)
    if operand.components == 1:
        return (values,)
    raise ValueError(f"{operand.name} is a sequence: there is no list of all of them")


def normal(
    operand: OperandSpec, fmt: Format, exponents: Sequence[int], depth: int, *, signs: bool, zero: bool
) -> Columns:
    """Return every operand whose high word is a normal number with one of the exponents.

    Parameters
    ----------
    depth : int
        For a pair: how many binades below half an ulp of the high word a nonzero low word may lie.
    signs : bool
        Whether the high word may be negative.
    zero : bool
        Whether zero is included.
    """
    if operand.paired:
        return normal_pairs(operand, fmt, exponents, depth, signs=signs, zero=zero).between(0)
    high = significands(fmt, exponents, signs=signs)
    return (np.append(high, high.dtype.type(0)) if zero else high,)


def normal_pairs(
    operand: OperandSpec, fmt: Format, exponents: Sequence[int], depth: int, *, signs: bool, zero: bool
) -> PairRows:
    """Return the operands that `normal` returns for a pair, without listing them."""
    found: list[PairRows] = []
    for exponent in exponents:
        words = significands(fmt, [exponent], signs=signs)
        top = exponent - fmt.precision
        low = significands(fmt, range(top - depth, top + 1), signs=True)
        low = np.sort(np.append(low[np.abs(low) <= 2.0**top], low.dtype.type(0)))
        found.append(_pairs(words, low, operand.kind, fmt))
    if zero:
        nothing, one = found[0].high[:1] * 0, np.ones(1, np.int64)
        found.append(PairRows(nothing, nothing, np.zeros(1, np.int64), one))
    return _joined(found)


def significands(fmt: Format, exponents: Sequence[int], *, signs: bool) -> Block:
    """Return the normal numbers of the given exponents that are finite values, in order."""
    one = 1 + np.arange(1 << (fmt.precision - 1)) / (1 << (fmt.precision - 1))
    values = np.ldexp(one, np.asarray(sorted(exponents))[:, None]).ravel().astype(carrier_of(fmt))
    values = values[values <= float(fmt.max)]  # some formats lack numbers of the largest exponent
    return np.concatenate([-values[::-1], values]) if signs else values


def sparse(fmt: Format) -> Block:
    """Return zeros, and the significands 1, 1 + 2u, 3/2 and 2 - 2u with every exponent and either sign.

    Subnormal numbers have fewer bits: only those that are 1 or 3/2 times a power of two are returned.
    """
    values = finite_values(fmt)
    significand = 2 * np.abs(np.frexp(values.astype(np.float64))[0])
    normal_too = [1 + 2.0 ** (1 - fmt.precision), 2 - 2.0 ** (1 - fmt.precision)]
    some = np.isin(significand, [0, 1, 1.5])
    some |= np.isin(significand, normal_too) & (np.abs(values) >= 2.0**fmt.emin)
    return values[some]


def unbounded(precision: int) -> Format:
    """Return the format that stands for all of its precision while nothing overflows or underflows."""
    low, high = UNBOUNDED if precision <= _IN_BINARY32 else FURTHER
    return Format(f"p{precision}", precision=precision, emin=low, emax=high)


def unscaled_reach(precision: int) -> int:
    """Return the largest exponent, positive or negative, of random operands that no scaling keeps near 1."""
    return precision + 3


def has_all(fmt: Format, cases: Sequence[Sequence[Fraction]]) -> NDArray[np.bool_]:
    """Return for each case whether all its numbers, given exactly, are finite values of a format."""
    if not cases:
        return np.zeros(0, np.bool_)
    near = np.array([[_in_binary64(number) for number in case] for case in cases])
    with np.errstate(over="ignore"):
        there: NDArray[np.bool_] = (round_to(near, fmt) == near).all(axis=1)
    return there


def _in_binary64(number: Fraction) -> float:
    """Return a number as a float, or NaN if it is not a binary64 number; binary64 carries every format."""
    try:
        near = float(number)
    except OverflowError:
        return np.nan
    # A Fraction is in lowest terms; comparing it with a float takes several times as long.
    return near if near.as_integer_ratio() == (number.numerator, number.denominator) else np.nan


@lru_cache(maxsize=8)
def finite_values(fmt: Format) -> Block:
    """Return the finite values of a format, in order."""
    values: Block = all_values(fmt)
    values = values[np.isfinite(values)]
    values.flags.writeable = False
    return values


def _pairs(high: Block, low: Block, kind: str, fmt: Format) -> PairRows:
    """Return all pairs of a kind; `low` must be sorted."""
    # The low word is at most half an ulp of the high one, which rules out most candidates.
    half = _half_ulp(high, fmt)
    start, stop = np.searchsorted(low, -half, "left"), np.searchsorted(low, half, "right")
    if kind == "double word":
        # Rounding is monotonic: the low words that do not change the high one lie around zero, without gaps.
        zero = np.searchsorted(low, 0)
        start = _farthest(high, low, np.maximum(zero, start), start - 1, fmt)
        stop = _farthest(high, low, np.minimum(zero, stop - 1), stop, fmt) + 1
        stop = np.where(_normalised(high, low[start], fmt), stop, start)  # none, if `low` has no zero
    return PairRows(high, low, start, stop - start)


def _farthest(
    high: Block, low: Block, inside: NDArray[np.int64], outside: NDArray[np.int64], fmt: Format
) -> NDArray[np.int64]:
    """Return the last places, from `inside` toward `outside`, of low words that do not change the high ones.

    Low words at `inside` are assumed not to change them; those at `outside` are left out.
    """
    while (np.abs(outside - inside) > 1).any():
        middle = inside + ((outside - inside) / 2).astype(np.int64)
        there = _normalised(high, low[middle], fmt)
        inside, outside = np.where(there, middle, inside), np.where(there, outside, middle)
    return inside


def _joined(parts: list[PairRows]) -> PairRows:
    """Return the pairs of all parts, one after the other."""
    before = accumulate((rows.low.size for rows in parts[:-1]), initial=0)
    return PairRows(
        np.concatenate([rows.high for rows in parts]),
        np.concatenate([rows.low for rows in parts]),
        np.concatenate([rows.start + many for rows, many in zip(parts, before, strict=True)]),
        np.concatenate([rows.count for rows in parts]),
    )


def belongs(operand: OperandSpec, words: Columns, fmt: Format) -> NDArray[np.bool_]:
    """Return where values of a format, given component by component, form an operand of its kind."""
    high, low = words[0], words[-1]
    if not operand.paired:
        return np.ones(high.shape, dtype=np.bool_)
    # Where sums saturate, the largest number is the sum of itself and any other.
    there: NDArray[np.bool_] = np.abs(low) <= _half_ulp(high, fmt)
    return there & _normalised(high, low, fmt) if operand.kind == "double word" else there


def _normalised(high: Block, low: Block, fmt: Format) -> NDArray[np.bool_]:
    ar = on_blocks(fmt, Rounding())
    with np.errstate(over="ignore"):
        there: NDArray[np.bool_] = ar.add(high.astype(ar.carrier), low.astype(ar.carrier)) == high
    return there


def _half_ulp(x: Block, fmt: Format) -> NDArray[np.float64]:
    """Return half an ulp of x; zero for zero."""
    exponent = np.maximum(np.frexp(x.astype(np.float64))[1] - 1, fmt.emin)
    half: NDArray[np.float64] = np.where(x == 0, 0, np.ldexp(1.0, exponent - fmt.precision))
    return half
