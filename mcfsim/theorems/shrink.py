"""Shrinking: from a violation to the simplest one, the counterexample that a person would like to see."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from mcfsim.compile.program import flat
from mcfsim.convert import round_to
from mcfsim.formats import Format
from mcfsim.protocol import Emulation
from mcfsim.storage.buffers import BLOCK
from mcfsim.theorems.judge import applicable, structured, try_block, violating
from mcfsim.theorems.operands import belongs
from mcfsim.theorems.statement import Theorem

#: Cases in binary64: one case per row, one component per column.
Cases = NDArray[np.float64]

#: Two components are changed at once in cases of at most this many.
_FEW = 8
#: The components of a long case are changed in groups, at most this many of one size.
_GROUPS = 32
#: Least batch of candidates, however long they are: the calls of a long algorithm cost more.
_AT_ONCE = 1 << 11
_SIGNIFICAND = 53


def shrink(theorem: Theorem, ar: Emulation, case: Iterable[float]) -> tuple[float, ...]:
    """Return the simplest violation to which a given violation shrinks.

    Parameters
    ----------
    theorem : Theorem
        The statement.
    ar : Emulation
        The arithmetic that its algorithm runs in.
    case : iterable of float
        Operands that meet the hypotheses and fail the claim, component by component.

    Returns
    -------
    tuple of float
        Operands of a violation. None of their neighbours is simpler and violates the claim as well. The same
        case always gives the same operands.

    Raises
    ------
    ValueError
        If the case is not a violation.

    Notes
    -----
    A case is simpler than another one if its key is smaller. The key is a tuple of

    1. the significant bits, from the first set bit to the last, of all components together: none for zero;
    2. the number of components that are not integers;
    3. the distances of the exponents from zero, added up;
    4. the number of negative components;
    5. the magnitudes of the components, in order, and then their signs.

    The neighbours of a case are

    - all components, or all of one operand, multiplied by one power of two, or negated;
    - one component multiplied likewise, negated, cut or rounded up to fewer bits, made a power of two or
      zero; the same with all of a half, a quarter, ... of the components; in long cases, such groups only;
    - two components changed at once, if there are few, each to fewer bits or by a small power of two.

    They are values of the format, and pairs stay pairs of their kind. So that nothing overflows or underflows
    anew, their bits have exponents from ``min(last, 0)`` to ``max(first, first - last, 0) + 1``, where first
    and last are those of the given case's first and last bit. In each step, the simplest violation among the
    neighbours replaces the case; it is taken from the first kind that has one.
    """
    given = np.array(list(case), dtype=np.float64)
    now = given + 0.0  # zeros are positive, unless they must be negative
    if not violates(theorem, ar, now):
        now = given
        if not violates(theorem, ar, now):
            raise ValueError(
                f"{theorem.name!r}: {tuple(now.tolist())} is no violation, so there is nothing to shrink"
            )
    first, last = (int(extreme) for extreme in (_exponents(now)[0].max(), _exponents(now)[1].min()))
    span = range(min(last, 0), max(first, first - last, 0) + 2)
    wholes, groups = _groups(theorem)
    while True:
        # Candidates that overflow binary64 are dropped below.
        shifted = (_replaced(now, group, _scaled(now[group], len(span))) for group in wholes)
        changed = (_replaced(now, group, _changed(now[group], span)) for group in groups)
        for candidates in map(_joined, (shifted, changed, _two(now))):
            better = _simplest(theorem, ar, now, candidates, span)
            if better is not None:
                now = better
                break
        else:
            return tuple(now.tolist())


def violates(theorem: Theorem, ar: Emulation, case: Iterable[float]) -> bool:
    """Return whether a case meets the hypotheses and fails the claim when it is tried alone."""
    return bool(_violating(theorem, ar, np.array([list(case)], dtype=np.float64))[0])


def _simplest(theorem: Theorem, ar: Emulation, now: Cases, candidates: Cases, span: range) -> Cases | None:
    """Return the simplest candidate that is simpler than the case, allowed and a violation."""
    candidates = candidates[np.isfinite(candidates).all(axis=1)]
    kept = (now == 0) & np.signbit(now)  # zeros whose sign matters
    cases = np.concatenate([now[None], np.where(kept & (candidates == 0), now, candidates + 0.0)])
    first, last = _exponents(cases)
    # Sorting is stable, so cases that are not simpler come after the case.
    order = np.lexsort(_key(cases, first, last)[::-1])
    near = np.logical_and.reduce((last >= span[0]) & (first <= span[-1]), axis=1)
    simpler = order[: np.flatnonzero(order == 0)[0]]
    cases = cases[simpler[near[simpler]]]
    cases = cases[_possible(theorem, ar.format, cases)]
    rows = max(BLOCK // now.size, _AT_ONCE)
    for start in range(0, len(cases), rows):
        found = np.flatnonzero(_violating(theorem, ar, cases[start : start + rows]))
        if found.size:
            best: Cases = cases[start + found[0]]
            return best
    return None


def _key(cases: Cases, first: NDArray[np.int64], last: NDArray[np.int64]) -> list[NDArray[np.float64]]:
    """Return the columns of the key in `shrink`, from the exponents of first and last bits."""
    return [
        np.where(cases == 0, 0, first - last + 1).sum(axis=1),
        (cases != np.rint(cases)).sum(axis=1),
        np.abs(first).sum(axis=1),
        np.signbit(cases).sum(axis=1),
        *np.abs(cases).T,
        *np.signbit(cases).T,
    ]


def _exponents(x: Cases) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the exponents of the first and the last set bit; zeros for zero."""
    significand, exponent = np.frexp(x)
    n = np.ldexp(np.abs(significand), _SIGNIFICAND).astype(np.int64)
    last = np.frexp((n & -n).astype(np.float64))[1] + exponent - _SIGNIFICAND - 1
    return np.where(x == 0, 0, exponent - 1), np.where(x == 0, 0, last)


def _possible(theorem: Theorem, fmt: Format, cases: Cases) -> NDArray[np.bool_]:
    """Return where a case consists of values of the format, in pairs of the right kind."""
    with np.errstate(over="ignore"):
        possible: NDArray[np.bool_] = (round_to(cases, fmt) == cases).all(axis=1)
    columns = structured(theorem.operands, list(cases[possible].T.copy()))
    kinds = [
        belongs(operand, tuple(flat(words)), fmt)
        for operand, words in zip(theorem.operands, columns, strict=True)
    ]
    possible[possible] = np.logical_and.reduce(kinds)
    return possible


def _violating(theorem: Theorem, ar: Emulation, cases: Cases) -> NDArray[np.bool_]:
    blocks = list(cases.T.astype(ar.carrier, order="C"))
    trial = try_block(theorem, ar, blocks)
    return violating(theorem, trial, applicable(theorem, trial))


# -- neighbours ---------------------------------------------------------------------------------------------
def _groups(theorem: Theorem) -> tuple[list[slice], list[slice]]:
    """Return slices of components that are shifted as a whole, and slices that are changed together."""
    starts = np.cumsum([0, *(operand.components for operand in theorem.operands)]).tolist()
    wholes = [slice(0, starts[-1]), *map(slice, starts[:-1], starts[1:])]
    groups, size = [], starts[-1]
    while size * _GROUPS >= starts[-1]:
        groups += [slice(start, start + size) for start in range(0, starts[-1], size)]
        if size == 1:
            break
        size = -(-size // 2)
    return wholes, groups


def _joined(parts: Iterable[Cases]) -> Cases:
    with np.errstate(over="ignore"):
        return np.concatenate(list(parts))


def _replaced(now: Cases, group: slice, by: Cases) -> Cases:
    cases = np.tile(now, (len(by), 1))
    cases[:, group] = by
    return cases


def _changed(x: Cases, span: range) -> Cases:
    """Return all simpler replacements of some numbers, one per row."""
    powers = np.tile(np.ldexp(1.0, np.array(span))[:, None], x.size)
    return np.concatenate([_shorter(x), powers, -powers, _scaled(x, len(span))])


def _two(now: Cases) -> Iterator[Cases]:
    """Yield cases with two components changed at once; none if there are many components."""
    yield now[None][:0]
    if now.size > _FEW:
        return
    changed = [np.concatenate([_shorter(x), _scaled(x, 2)]).ravel() for x in now[:, None]]
    for i, j in combinations(range(now.size), 2):
        cases = np.tile(now, (changed[i].size * changed[j].size, 1))
        cases[:, i], cases[:, j] = (grid.ravel() for grid in np.meshgrid(changed[i], changed[j]))
        yield cases


def _scaled(x: Cases, most: int) -> Cases:
    """Return numbers multiplied by powers of two, with either sign."""
    scaled = np.ldexp(x, np.arange(-most, most + 1)[:, None])
    return np.concatenate([scaled, -scaled])


def _shorter(x: Cases) -> Cases:
    """Return numbers cut, and rounded up in magnitude, to every smaller number of bits; and zeros."""
    first, last = _exponents(x)
    units = np.ldexp(1.0, first - np.arange((first - last).max())[:, None])
    cut = np.trunc(x / units)
    short = (cut + np.where(cut * units == x, 0, np.sign(x))) * units
    return np.concatenate([cut * units, short, np.zeros((1, x.size))])
