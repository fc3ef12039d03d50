"""Trials of the symmetries that a statement declares, made before any result depends on them.

`mcfsim.theorems.homogeneity` shows that an algorithm scales. Hypotheses and claims may be arbitrary
functions, so their scaling can only be tried: on all operands of small formats, and on random operands of
the precision of the format.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from mcfsim.backends.factory import on_blocks
from mcfsim.formats import Format
from mcfsim.kernels.carriers import UnsupportedFormatError
from mcfsim.rounding import Rounding
from mcfsim.storage.buffers import BLOCK
from mcfsim.theorems.identity import by_identity
from mcfsim.theorems.judge import applicable, measured, try_block, violating
from mcfsim.theorems.operands import Block, Columns, OperandSpec, every, normal
from mcfsim.theorems.parts import Part, Sample, anywhere
from mcfsim.theorems.statement import Scaling, Theorem
from mcfsim.theorems.trial import Trial

#: Exponents so far from the operands of a trial that scaling by powers of two neither over- nor underflows.
FAR = 300
#: Random cases of a trial, and the most cases from all operands of a small format, evenly spaced if more.
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
        # Cases that are left out may be no worse than those that stand for them.
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
    """Return a small format, and its operands of few exponents: all, or a random sample of many."""
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
