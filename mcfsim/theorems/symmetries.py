"""The symmetries that a statement declares, read from its data or tried before any result depends on them.

`mcfsim.theorems.homogeneity` shows that an algorithm scales. Whether negating operands leaves hypotheses and
claim unchanged is read from their data. If they are arbitrary functions, it is tried, as their scaling is: on
all operands of small formats, and on random operands of the precision of the format.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from mcfsim.backends.factory import on_blocks
from mcfsim.formats import Format
from mcfsim.kernels.carriers import UnsupportedFormatError
from mcfsim.rounding import Mode, Rounding
from mcfsim.storage.buffers import BLOCK
from mcfsim.theorems.homogeneity import Scales
from mcfsim.theorems.identity import by_identity
from mcfsim.theorems.judge import applicable, measured, try_block, violating
from mcfsim.theorems.logic.propositions import (
    EveryDraw,
    Finite,
    HasBits,
    Iff,
    InFormat,
    IsMultiple,
    IsValue,
    Nonoverlapping,
    NoOverflow,
    Same,
    SameSign,
    StronglyNonoverlapping,
    UnreadableError,
    Within,
    halves,
)
from mcfsim.theorems.logic.terms import (
    AllOf,
    AnyOf,
    Equal,
    Exponent,
    FixedTerm,
    InnerProduct,
    LowBit,
    Magnitude,
    Mixed,
    Negative,
    Not,
    OfTwo,
    Operand,
    Product,
    Proposition,
    Result,
    Results,
    Rounded,
    RoundedToBits,
    Sum,
    SumOfMagnitudes,
    Term,
    Ulp,
    UlpTowards,
    Word,
)
from mcfsim.theorems.operands import Block, Columns, OperandSpec, every, normal
from mcfsim.theorems.parts import Part, Sample, anywhere
from mcfsim.theorems.statement import Scaling, Theorem, names_of, propositions_of
from mcfsim.theorems.trial import Trial

# -- trials -------------------------------------------------------------------------------------------------
#: Exponents so far from the operands of a trial that scaling by powers of two neither over- nor underflows.
FAR = 300
#: The number of random cases in a trial, and the most cases from all operands of a small format, which are
#: evenly spaced if there are more.
RANDOM, MOST = 1 << 12, 1 << 17
#: The most operands that are listed: a statement that supposes many bits has no small format.
LARGEST = 1 << 22
#: Operands are multiplied by two to these powers.
_SHIFTS = (1, -2, 5, -38, 40)

#: A format, and operands of it.
Place = tuple[Format, Part]
Transformed = Callable[[list[Block], int], list[Block]]
Outcome = tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.float64]]


@by_identity(1024)
def signs_hold(theorem: Theorem, fmt: Format, rounding: Rounding, *, each: bool) -> bool:
    """Return whether trials agree that cases with positive operands stand for all cases.

    Parameters
    ----------
    theorem, fmt, rounding
        The statement to be verified, and the arithmetic.
    each : bool
        Whether each operand is made positive by itself. If not, all are negated where the first is negative.
    """
    bounded = theorem.range == "bounded"
    span = 3 if bounded else FAR
    if not _signs_hold_in_small(theorem, _small_format(theorem, fmt, span), rounding, span, each=each):
        return False
    places = [_wide(theorem, fmt)]
    if bounded:
        places.append((fmt, _random(theorem, fmt, [anywhere(fmt)] * len(theorem.operands), RANDOM, 2)))
    return all(_signs_hold_in(theorem, place, rounding, each=each) for place in places)


@by_identity(1024)
def _signs_hold_in_small(theorem: Theorem, fmt: Format, rounding: Rounding, span: int, *, each: bool) -> bool:
    """Return whether trials in a small format agree; many formats share one small format."""
    return _signs_hold_in(theorem, _small(theorem, fmt, span), rounding, each=each)


def _signs_hold_in(theorem: Theorem, place: Place, rounding: Rounding, *, each: bool) -> bool:
    def positive(blocks: list[Block], _: int) -> list[Block]:
        heads = _heads(theorem)
        return [
            np.where(np.signbit(blocks[heads[i] if each else 0]), -block, block)
            for i, block in enumerate(blocks)
        ]

    for _, ours, theirs in _both(theorem, place, rounding, positive, (0,)):
        # Cases that are left out must not be worse than those that stand for them.
        if np.any(ours[0] & ~theirs[0]) or np.any(ours[1] & ~theirs[1]) or np.any(ours[2] > theirs[2]):
            return False
    return True


def try_scaling(theorem: Theorem, fmt: Format, rounding: Rounding) -> None:
    """Test that hypotheses and claim do not change when operands are multiplied by powers of two.

    Raises
    ------
    ValueError
        If they change, although nothing overflows or underflows.
    """
    heads = _heads(theorem)

    def scaled(blocks: list[Block], shift: int) -> list[Block]:
        if theorem.scaling is Scaling.SQUARE:
            shift *= 2
        alone = theorem.scaling is Scaling.EACH
        # If operands scale by themselves, the first ones move, each further than the next.
        by = [shift // (1 + heads[i]) if alone else shift for i in range(len(blocks))]
        return [np.ldexp(block, power) for block, power in zip(blocks, by, strict=True)]

    for place in (_small(theorem, fmt, span=FAR), _wide(theorem, fmt)):
        for cases, ours, theirs in _both(theorem, place, rounding, scaled, _SHIFTS):
            different = (ours[0] != theirs[0]) | (ours[1] != theirs[1]) | (ours[2] != theirs[2])
            if different.any():
                first = int(np.argmax(different))
                one, other = (tuple(float(block[first]) for block in blocks) for blocks in cases)
                raise ValueError(
                    f"scaling={str(theorem.scaling)!r} is not valid for {theorem.name!r}: hypotheses or "
                    f"claim differ at {one} and {other}"
                )


def _heads(theorem: Theorem) -> list[int]:
    """Return for each component the place of its operand's first component."""
    heads: list[int] = []
    for operand in theorem.operands:
        heads += [len(heads)] * operand.components
    return heads


def _small(theorem: Theorem, fmt: Format, span: int) -> Place:
    """Return a small format, and its operands with few exponents, or a random sample if they are many."""
    small = _small_format(theorem, fmt, span)
    p = small.precision
    if span < FAR and theorem.components == len(theorem.operands):
        tables = tuple(every(operand, small) for operand in theorem.operands)
    else:
        few = range(-1, 2) if len(theorem.operands) > 1 else range(-3, 4)
        small = replace(small, emin=-FAR, emax=FAR)
        if max(_rows(operand, len(few), p) for operand in theorem.operands) > LARGEST:
            exponents = [(few[0], few[-1])] * len(theorem.operands)
            return small, _random(theorem, small, exponents, MOST, 3)
        tables = tuple(_normal(replace(operand, name=""), small, few) for operand in theorem.operands)
    return small, Part("complete", "", tables)


@lru_cache(maxsize=64)
def _normal(operand: OperandSpec, fmt: Format, exponents: range) -> Columns:
    """Return all operands of a kind; many statements share them."""
    return normal(operand, fmt, exponents, fmt.precision + 1, signs=True, zero=True)


def _small_format(theorem: Theorem, fmt: Format, span: int) -> Format:
    p = max(2, min(theorem.precision, fmt.precision))
    return replace(fmt, name="", precision=p, emin=-span, emax=span)


def _rows(operand: OperandSpec, exponents: int, p: int) -> int:
    """Return about how many operands have the given exponents, with low words of all depths."""
    return (2 * exponents << (p - 1)) * ((p + 1) << p if operand.paired else 1)


def _wide(theorem: Theorem, fmt: Format) -> Place:
    """Return a format of the same precision with a wide range of exponents, and random operands."""
    wide = replace(fmt, name="", emin=-FAR, emax=FAR)
    low, high = theorem.gaps(fmt.precision)
    near = (-3, 3)
    far = (max(low, -40), min(high, 40)) if theorem.scaling is Scaling.COMMON else near
    exponents = [near] + [far] * (len(theorem.operands) - 1)
    return wide, _random(theorem, wide, exponents, RANDOM, 1)


def _random(theorem: Theorem, fmt: Format, exponents: list[tuple[int, int]], count: int, seed: int) -> Part:
    return Sample("sample", "", (), theorem.operands, fmt, tuple(exponents), count, seed)


def _both(
    theorem: Theorem, place: Place, rounding: Rounding, transformed: Transformed, shifts: tuple[int, ...]
) -> Iterator[tuple[tuple[list[Block], list[Block]], Outcome, Outcome]]:
    """Yield a part's operands and their transforms, then the outcomes of both."""
    fmt, part = place
    if not theorem.possible(fmt, rounding):
        return
    some = np.linspace(0, part.size - 1, min(part.size, MOST)).astype(np.int64)
    try:
        ar = on_blocks(fmt, rounding)
        for start in range(0, some.size, BLOCK):
            blocks = part.at(some[start : start + BLOCK])
            ours = outcome(theorem, try_block(theorem, ar, blocks))
            for shift in shifts:
                others = transformed(blocks, shift)
                yield (blocks, others), ours, outcome(theorem, try_block(theorem, ar, others))
    except UnsupportedFormatError:
        return  # this arithmetic has no exact path for so wide a range


def outcome(theorem: Theorem, trial: Trial) -> Outcome:
    """Return where the hypotheses hold, where the claim then fails, and the size of the error."""
    there = applicable(theorem, trial)
    held = np.ones(trial.cases, np.bool_) if there is None else there
    error = np.zeros(trial.size)
    failing = violating(theorem, trial, there)
    if theorem.claim.measure is not None:
        ratio = np.abs(measured(theorem, trial).ratio)
        error = np.where(trial.each(held) & np.isfinite(ratio) & trial.finite, ratio, 0)
    return held, failing, error


# -- signs, read from data ---------------------------------------------------------------------------------
#: For each sign that may change, whether a number changes with it; None for zero.
Signs = tuple[bool, ...] | None


class _DifferentSignsError(ValueError):
    """Raised if numbers whose signs change differently are combined, such as an operand and a constant."""


def indifferent(theorem: Theorem, scales: Scales, *, each: bool) -> bool | None:
    """Return whether hypotheses, claim and error do not depend on the signs of operands; None if not known.

    Parameters
    ----------
    theorem : Theorem
    scales : Scales
        How the numbers in its algorithm scale, under a rounding that treats both signs alike.
    each : bool
        Whether each operand may be negated by itself; if not, all are negated together.
    """
    if scales.divides_by_sums or not (scales.odd_in_each if each else scales.odd):
        return None
    reader = _SignReader(theorem, scales, each)
    try:
        for said in propositions_of(theorem):
            reader.read(said)
    except _DifferentSignsError:
        return False
    return None if reader.unread else True


class _SignReader:
    """A reader of propositions. It refuses those that depend on signs, and notes those that may."""

    def __init__(self, theorem: Theorem, scales: Scales, each: bool) -> None:
        self._names = names_of(theorem)
        self._each = each
        self.unread = False
        self._scales = scales
        self._results = [None if x.zero else self._together(x.signs) for x in scales.results]
        self._even = self._together((False,) * len(self._names))

    def _together(self, signs: tuple[bool, ...]) -> Signs:
        """Return how a number changes with each sign, or with all of them at once."""
        return signs if self._each else (sum(signs) % 2 == 1,)

    def read(self, said: Proposition) -> None:
        """Note whether a proposition may depend on signs."""
        try:
            self._read(said)
        except (UnreadableError, LookupError):
            self.unread = True

    def _read(self, said: Proposition) -> None:
        match said:
            case InFormat() | NoOverflow() | Finite() | StronglyNonoverlapping() | Nonoverlapping(()):
                pass
            case AllOf(parts) | AnyOf(parts):
                for part in parts:
                    self.read(part)
            case Not(part) | EveryDraw(part):
                self.read(part)
            case Iff(first, second):
                self.read(first)
                self.read(second)
            case Same():
                for pair in halves(self._results):
                    _one_of(pair)
            case Within(error, reference, bound) if bound.squared:  # depends on the sign of their quotient
                self._alike(error, reference)
            case Within(error, reference):
                self._of(error), self._of(reference)
            case HasBits(x) | IsValue(x):
                self._of(x)
            case IsMultiple(x, of):
                self._of(x), self._of(of)
            case Nonoverlapping(terms):
                for term in terms:
                    self._of(term)
            case SameSign(x, y) | Equal(x, y):
                self._alike(x, y)
            case OfTwo(x, y) if self._alike(x, y) in (None, self._even):
                pass
            case _:
                raise UnreadableError(f"{said} may depend on signs")

    def _alike(self, *terms: Term) -> Signs:
        """Return how terms change with signs; refuse terms that change differently."""
        return _one_of(map(self._of, terms))

    def _of(self, x: Term) -> Signs:
        """Return how a term changes with signs; refuse it if more than its sign may change."""
        match x:
            case FixedTerm():
                return self._even if x.at(self._scales.format, self._scales.rounding) else None
            case Operand(name) | Word(name):
                return self._together(tuple(name == other for other in self._names))
            case Result(place):
                return self._results[place]
            case Results(first, stop):
                return _one_of(self._results[first:stop])
            case Sum(terms):
                return self._alike(*terms)
            case Negative(term) | RoundedToBits(term):
                return self._of(term)
            case Rounded(one, other, mode) if mode not in (Mode.UP, Mode.DOWN):
                return self._alike(one, other)
            case Product(first, second):
                a, b = self._of(first), self._of(second)
                return a and b and tuple(p != q for p, q in zip(a, b, strict=True))
            case InnerProduct(one, other):
                return self._of(Product(Operand(one), Operand(other)))
            case Magnitude(term) | Exponent(term) | Ulp(term) | LowBit(term):
                self._of(term)
                return self._even
            case UlpTowards(of, toward):
                self._alike(of, toward)
                return self._even
            case SumOfMagnitudes():
                return self._even
            case Mixed(size, bound) if self._of(bound) in (None, self._even):
                self._of(size)
                return self._even
        raise UnreadableError(f"{x} may depend on signs")


def _one_of(signs: Iterable[Signs]) -> Signs:
    """Return how all numbers but zeros change with signs; refuse them if they differ."""
    found = set(signs) - {None}
    if len(found) > 1:
        raise _DifferentSignsError("numbers whose signs change differently are combined")
    return found.pop() if found else None
