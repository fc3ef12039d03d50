"""Whether a reduction is one, by its own words and by brute force: the same is said of a case and its image.

A reduction says that powers of two (or signs) change nothing while nothing overflows or underflows. So every
case far from either end is compared with the case whose operands are multiplied. That nothing overflows or
underflows is seen by running the line once more, with exponents that are as good as unbounded.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from mcfsim.formats import Format
from mcfsim.oracle import operate_integers
from tests.theorems.campaign import brute
from tests.theorems.campaign.draw import Case

Array = Any
#: Exponents that are as good as unbounded.
WIDE = 400
#: So many binades from either end, what a hypothesis or a claim adds up stays in range, too.
MARGIN = 5


def broken(case: Case, tried: brute.Tried, truth: brute.Judged) -> str | None:
    """Return which part of a declared reduction does not hold, by two cases; None if all of it does."""
    statement, found = case.statement, ["sign"] if case.rounding.mode not in ("up", "down") else []
    clean = _clean(case, tried)
    count = len(tried.shape)
    images = {"sign": _images(tried, range(count), -1)} if found else {}
    match statement.scaling:
        case "common":
            images["scaling"] = _images(tried, range(count), 2)
        case "square":
            images["scaling"] = _images(tried, range(count), 4)
        case "each":
            images |= {f"scaling of {i + 1}": _images(tried, [i], 2) for i in range(count)}
    ratio = _ratios(statement, tried, truth)
    for name, image in images.items():
        pairs = np.flatnonzero((image >= 0) & clean)
        pairs = pairs[clean[image[pairs]]]
        other = image[pairs]
        for what in (truth.there, truth.failing, ratio):
            same = what[pairs] == what[other]
            if not same.all():
                return name
    return None


def _images(tried: brute.Tried, which: Any, factor: int) -> Array:
    """Return the number of the case whose operands are multiplied, or -1."""
    toy, size = tried.toy, tried.toy.finite.size
    wanted = toy.finite * factor
    if not toy.format.has_negative_zero:
        wanted = np.where(wanted == 0, 0.0, wanted)
    known = {(float(x), bool(np.signbit(x))): i for i, x in enumerate(toy.finite)}
    image = np.array([known.get((float(x), bool(np.signbit(x))), -1) for x in wanted])
    rows = np.indices(tried.shape, sparse=True)
    index, there = np.zeros(tried.shape, np.int64), np.ones(tried.shape, bool)
    for i, (row, extent) in enumerate(zip(rows, tried.shape, strict=True)):
        assert extent == size
        own = image[row] if i in which else row
        index, there = index * size + own, there & (own >= 0)
    return np.where(there, index, -1).ravel()


def _clean(case: Case, tried: brute.Tried) -> Array:
    """Return the cases in which nothing overflows, underflows, or comes near."""
    toy, fmt = tried.toy, case.format
    wide = Format("", precision=fmt.precision, emin=-WIDE, emax=WIDE)
    rounding = replace(case.rounding)
    registers = [toy.values[codes] for codes in tried.registers[: len(tried.shape)]]
    clean = np.ones(tried.size, bool)
    results = tried.registers[len(tried.shape) :]
    for (name, *given), codes in zip(case.statement.line.steps, results, strict=True):
        x = [item if isinstance(item, float) else registers[item] for item in given]
        if name in ("neg", "abs"):
            registers.append(np.negative(x[0]) if name == "neg" else np.abs(x[0]))
        else:
            # What has no bounds is no operand of the oracle: there, the case is left out.
            x = [np.where(np.abs(item) < 2.0**WIDE, item, np.nan) for item in x]
            registers.append(operate_integers(name, *x, fmt=wide, rounding=rounding))
        clean &= registers[-1] == toy.values[codes]  # not NaN
    low, high = 2.0 ** (fmt.emin + fmt.precision), 2.0 ** (fmt.emax - MARGIN)
    for register in registers:
        size = np.abs(register)
        clean &= (size == 0) | ((size >= low) & (size <= high))
    return clean


def _ratios(statement: Any, tried: brute.Tried, truth: brute.Judged) -> Array:
    """Return the measured quotients, which binary64 holds well enough to tell small ones apart."""
    if statement.claim[0] != "within":
        return np.zeros(tried.size)
    error, reference = (tried.exact(tree) for tree in statement.claim[1:3])
    e, r, _, _ = tried._aligned(error, reference)
    e, r = abs(e).astype(np.float64), abs(r).astype(np.float64)
    with np.errstate(all="ignore"):
        return np.where(truth.there & (r != 0), e / np.where(r == 0, 1, r), 0)
