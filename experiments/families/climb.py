"""Hill climbing among families: coefficients moved at random, many families at once, by the emulator.

A family's error at three precisions is computed in binary64, which guides the climb and proves nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.backends.factory import on_blocks
from mcfsim.checks import check_int
from mcfsim.compile.program import flat
from mcfsim.rounding import Mode, Rounding
from mcfsim.theorems.every_p.trying import measured
from mcfsim.theorems.operands import OperandSpec, belongs, unbounded
from mcfsim.theorems.statement import Scaling, Theorem
from mcfsim.theorems.symbolic import EVEN, EVERY, Family, Polynomial, Precisions
from mcfsim.theorems.symbolic.operand_families import root, unit
from mcfsim.theorems.trial import Trial


class Kind(Enum):
    """What a coefficient is: a power of two that stays, or a multiple of a grain or of a last bit."""

    FIXED = "fixed"
    FINE = "fine"
    LAST = "last"


#: Coefficients as multiples of their monomials' grains: a row each, a column a family.
Coefficients = NDArray[np.int64]

#: Precisions at which families are tried, and by how much the error at each may be below that at the last.
_TRIED, _TRIED_ODD = (12, 16, 20), (11, 15, 19)
_ALLOWED = (1.0, 0.125, 0.0)
#: Coefficients that are no integers have so many bits after the point at most.
_BITS = 3
_ONE = 1 << _BITS
#: How much worse a family may become at first, in the statement's unit.
_HEAT = 0.25


@dataclass(frozen=True)
class Grid:
    """The families among which to climb: what polynomials the components of operands may be.

    A high word is a power of two, an integer multiple of its last bit and, over one parity of p, a multiple
    of the root t of u; a low word has multiples of u, of u t and of its last bit ``u**2``.

    Parameters
    ----------
    theorem : Theorem
        Its operands are values and pairs of words, and each may be scaled by a power of two of its own.
    over : Precisions, optional
        Every precision, or those of one parity.

    Raises
    ------
    ValueError
        If operands are of other kinds, or scaled together: then what matters are their exponents. If the
        claim measures no error.
    """

    theorem: Theorem
    over: Precisions = EVEN

    def __post_init__(self) -> None:
        if self.theorem.scaling not in (Scaling.EACH, Scaling.SQUARE):
            raise ValueError(
                f"{self.theorem.name!r} scales {self.theorem.scaling}: a climb is among operands of any "
                "exponents, which matter there; fit families to worst cases"
            )
        if self.theorem.claim.bound is None or not self.theorem.claim.bound.unit:
            raise ValueError(f"{self.theorem.name!r} measures no error that could be climbed")
        if any(operand.kind == "sequence" for operand in self.theorem.operands):
            raise ValueError(f"{self.theorem.name!r} takes a sequence; a climb is among values and pairs")
        if self.over.step > 2:
            raise ValueError(f"precisions {self.over}: a climb is over every one, or those of one parity")

    @cached_property
    def monomials(self) -> tuple[tuple[Polynomial, ...], ...]:
        """What is multiplied by integers and added up: a component's monomials, times their grains."""
        return tuple(tuple(_of_component(low, self.over)) for low in self._components())

    @cached_property
    def kinds(self) -> tuple[Kind, ...]:
        """What each coefficient is, component by component."""
        fine = [Kind.FINE] * (self.over.step - 1)
        low, high = (Kind.FINE, *fine, Kind.LAST), (Kind.FIXED, *fine, Kind.LAST)
        return tuple(kind for is_low in self._components() for kind in (low if is_low else high))

    @cached_property
    def weights(self) -> dict[int, list[NDArray[np.float64]]]:
        """The monomials of each component, at each precision at which families are tried."""
        tried = _TRIED if self.over in (EVERY, EVEN) else _TRIED_ODD
        return {
            p: [np.array([float(term.at(p)) for term in terms]) for terms in self.monomials] for p in tried
        }

    def family(self, numbers: NDArray[np.int64]) -> Family:
        """Return the family of one column of coefficients."""
        parts, start = [], 0
        for terms in self.monomials:
            total = Polynomial((), self.over)
            for number, term in zip(numbers[start : start + len(terms)], terms, strict=True):
                total = total + term * int(number)
            parts.append(total)
            start += len(terms)
        given, at = [], 0
        for operand in self.theorem.operands:
            given.append((operand.name, tuple(parts[at : at + operand.components])))
            at += operand.components
        return Family(tuple(given), self.over)

    def start(self, rng: np.random.Generator, shifts: NDArray[np.int64]) -> Coefficients:
        """Return random coefficients: high words near powers of two, low ones near half an ulp.

        The fine ones of each column are multiples of two to the power of its shift.
        """
        bases = (1, 2, 4) if self.theorem.scaling is Scaling.SQUARE else (1, 2)
        count = shifts.size
        rows: list[Any] = []
        for low, terms in zip(self._components(), self.monomials, strict=True):
            rows.append(rng.choice((-_ONE, _ONE), count) if low else rng.choice(bases, count))
            # Half the high words lie below their power of two.
            rows.extend(rng.integers(-4 * _ONE, 4 * _ONE + 1, count) >> shifts << shifts for _ in terms[1:-1])
            rows.append(rng.integers(-4, 5, count))
        return np.array(rows, dtype=np.int64)

    def _components(self) -> Iterator[bool]:
        """Yield of each component whether it is a low word."""
        for operand in self.theorem.operands:
            yield False
            yield from [True] * (operand.components - 1)


@dataclass(frozen=True)
class Climbed:
    """What a climb came to.

    Attributes
    ----------
    families : tuple of Family
        The best ones, best first.
    scores : tuple of float
        Their errors in the statement's unit at the largest precision tried, or a little less: see `climb`.
    tried : int
        How many families were tried.
    """

    families: tuple[Family, ...]
    scores: tuple[float, ...]
    tried: int


def climb(
    grid: Grid,
    *,
    seed: int = 0,
    chains: int = 4096,
    steps: int = 2000,
    keep: int = 8,
    mode: str | Mode = Mode.NEAREST_EVEN,
) -> Climbed:
    """Climb from random families to those of large errors, by simulated annealing.

    Parameters
    ----------
    grid : Grid
        Among which families.
    seed : int, optional
        The same one gives the same families.
    chains, steps : int, optional
        How many families are moved at once, and how often.
    keep : int, optional
        So many of the best are returned.
    mode : str or Mode, optional
        How results are rounded.

    Returns
    -------
    Climbed
        A score is the least error among those at three precisions, of which the smaller ones are given some
        allowance: so a family counts only if it is one, and not a case that happens to be bad.
    """
    for name, number in (("chains", chains), ("steps", steps), ("keep", keep)):
        check_int(name, number)
        if number < 1:
            raise ValueError(f"{name} = {number}: a climb needs at least one")
    rng = np.random.default_rng(seed)
    # Simple coefficients are extremal more often: two columns of five keep to integers.
    shifts = rng.choice((_BITS, *range(_BITS + 1)), chains)
    now = grid.start(rng, shifts)
    score = scores(grid, now, mode)
    top, top_score = now.copy(), score.copy()
    for step in range(steps):
        moved = _moved(now, grid.kinds, shifts, rng)
        found = scores(grid, moved, mode)
        heat = _HEAT * (1 - step / steps)
        with np.errstate(over="ignore", invalid="ignore"):
            taken = (found >= score) | (rng.random(chains) < np.exp((found - score) / heat))
        taken &= np.isfinite(found)
        now[:, taken], score[taken] = moved[:, taken], found[taken]
        better = score > top_score
        top[:, better], top_score[better] = now[:, better], score[better]
    order = np.argsort(-top_score, kind="stable")
    _, first = np.unique(top[:, order], axis=1, return_index=True)
    best = [order[i] for i in sorted(first) if np.isfinite(top_score[order[i]])][:keep]
    return Climbed(
        tuple(grid.family(top[:, i]) for i in best),
        tuple(float(top_score[i]) for i in best),
        chains * (steps + 1),
    )


def scores(
    grid: Grid, coefficients: Coefficients, mode: str | Mode = Mode.NEAREST_EVEN
) -> NDArray[np.float64]:
    """Return the score of every column; minus infinity where there are no such operands."""
    total = np.full(coefficients.shape[1], np.inf)
    for p, allowed in zip(grid.weights, _ALLOWED, strict=True):
        total = np.minimum(total, _errors(grid, coefficients, p, Mode(mode)) + allowed)
    return total


def _errors(grid: Grid, coefficients: Coefficients, p: int, mode: Mode) -> NDArray[np.float64]:
    """Return errors at one precision in the statement's unit, minus infinity where operands are none."""
    theorem, fmt = grid.theorem, unbounded(p)
    ar = on_blocks(fmt, Rounding(mode))
    parts, start = [], 0
    for weights in grid.weights[p]:
        # Exact: the terms are multiples of the last bit of a word, and their sum has a few bits more than it.
        parts.append(weights @ coefficients[start : start + weights.size].astype(np.float64))
        start += weights.size
    words = [part.astype(ar.carrier) for part in parts]
    with np.errstate(all="ignore"):
        there = np.all([ar.round(part) == part for part in parts], axis=0)
        operands = list(_of_operands(theorem.operands, words))
        for operand, given in zip(theorem.operands, operands, strict=True):
            if operand.paired:
                there &= belongs(operand, given, fmt)
        results = tuple(flat(theorem.algorithm(ar, *operands)))
        trial = Trial(ar, tuple(operand.name for operand in theorem.operands), tuple(operands), results)
        for hypothesis in theorem.where:
            there &= hypothesis.test(trial)
        wide = tuple(result.astype(np.float64) for result in results)
        pair = measured(theorem, tuple(_of_operands(theorem.operands, parts)), wide)
        bound = theorem.claim.bound
        assert pair is not None
        assert bound is not None
        error, reference = pair
        size = np.abs(error / reference) * 2.0 ** (p * bound.unit)
    size = size / 2 if bound.squared else size
    return np.where(there & np.isfinite(size), size, -np.inf)


def _of_operands(operands: tuple[OperandSpec, ...], parts: list[Any]) -> Iterator[Any]:
    """Yield parts as operands: one, or a tuple of them."""
    start = 0
    for operand in operands:
        some = tuple(parts[start : start + operand.components])
        yield some[0] if len(some) == 1 else some
        start += operand.components


def _of_component(low: bool, over: Precisions) -> Iterator[Polynomial]:
    u, fine = unit(over), Fraction(1, _ONE)
    yield u * fine if low else Polynomial.constant(1, over)
    if over.step == 2:
        yield root(over) * fine * (u if low else 1)
    yield u * u if low else 2 * u


def _moved(
    now: Coefficients, kinds: tuple[Kind, ...], shifts: NDArray[np.int64], rng: np.random.Generator
) -> Coefficients:
    """Return the coefficients with one to three of each column moved by a power of two."""
    moved, columns = now.copy(), np.arange(now.shape[1])
    rows = np.array([row for row, kind in enumerate(kinds) if kind is not Kind.FIXED])
    fine = np.array([kind is Kind.FINE for kind in kinds])
    for share in (1.0, 0.4, 0.2):
        row = rng.choice(rows, columns.size)
        step = 1 << (rng.integers(0, 3, columns.size) + np.where(fine[row], shifts, 0))
        signs = rng.choice((-1, 1), columns.size)
        moved[row, columns] += np.where(rng.random(columns.size) < share, signs * step, 0)
    row = rng.choice(rows, columns.size)
    moved[row, columns] *= np.where(rng.random(columns.size) < 0.05, -1, 1)
    return moved
