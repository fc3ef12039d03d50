"""The operands that a statement is tried on: all of a format, or a core that stands for them, and samples.

Every case of a domain has an index, ranges of which are the units of work.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import islice
from math import prod
from typing import Literal

import numpy as np

from mcfsim.backends.carriers import carrier_of
from mcfsim.convert import round_to
from mcfsim.formats import Format
from mcfsim.rounding import Rounding
from mcfsim.theorems.cores import GAP, OF_PAIRS, SIGN, UNBOUNDED_EXPONENTS, core_of_values, positive_stands
from mcfsim.theorems.homogeneity import NotHomogeneousError, Scales, scales_of
from mcfsim.theorems.operands import (
    Columns,
    Operand,
    belongs,
    every,
    normal,
)
from mcfsim.theorems.parts import Domain, Part, Sample
from mcfsim.theorems.statement import Scaling, Theorem

#: Which operands: ``core`` uses the reductions of the statement, ``all`` uses none.
Extent = Literal["core", "all"]
#: Exponents of the format that stands for unbounded ones; binary32 carries it up to precision 11.
UNBOUNDED = (-100, 100)
#: Up to so many cases, a core is not worth its reductions.
FEW = 1 << 25
#: A core of pairs of words has at most so many cases, and an eighth of it if its low words lie deep.
LIMIT = 1_100_000_000
#: So many cases are sampled.
SAMPLES = 1 << 22


def cover(
    theorem: Theorem,
    fmt: Format,
    rounding: Rounding,
    extent: Extent = "core",
    *,
    limit: int = LIMIT,
    samples: int = SAMPLES,
    seed: int = 0,
    few: int | None = None,
) -> Domain:
    """Return the operands on which to try a statement.

    Parameters
    ----------
    theorem : Theorem
    fmt : Format
    rounding : Rounding
    extent : {"core", "all"}, optional
        ``all`` takes every operand of the format and no reduction.
    limit : int, optional
        The most cases of a core of pairs of words; it is made less deep until it has no more.
    samples, seed : int, optional
        How many random cases there are where the core is not all, and which.
    few : int, optional
        Up to so many cases all are tried, whatever the reductions; by default `FEW`.

    Raises
    ------
    ValueError
        If every operand is asked for, and there are too many to list; or the algorithm does not scale as the
        statement says.
    """
    if not all(hypothesis.of_format(fmt) for hypothesis in theorem.where):
        return Domain(fmt, (), (), covers=True)
    whole = _complete(theorem, fmt) if theorem.range == "bounded" else None
    if extent == "all":
        if whole is None:
            many = "too many" if theorem.range == "bounded" else "infinitely many, of unbounded exponents"
            raise ValueError(f"operands of {theorem.name} in {fmt} cannot all be tried: {many}; use a core")
        return Domain(fmt, (whole,), (), covers=True)
    # Reductions are those of floating-point formats, and a core of values has all significands.
    usual = type(fmt) is Format and fmt.signed and fmt.zero
    values = theorem.components == len(theorem.operands)
    reducible = theorem.scaling is not Scaling.NONE and usual and (fmt.bits <= 16 or not values)
    reducible &= theorem.scaling is not Scaling.SQUARE or len(theorem.operands) == 1
    reducible &= not rounding.stochastic  # with some probability operands interact across any gap
    if whole is not None and whole.size <= (FEW if few is None else few):
        return Domain(fmt, (whole,), (), covers=True)
    scales = _scales(theorem, fmt, rounding) if reducible else None
    if values and theorem.range == "bounded":
        reducible &= _reduces(theorem, scales)
    # Without a reduction, pairs of 16 bits are the most that is tried unasked, and on every path those of 8.
    if whole is not None and whole.size <= 1 << 32 and not reducible and not rounding.stochastic:
        return Domain(fmt, (whole,), (), covers=True)
    if any(operand.kind == "sequence" for operand in theorem.operands) or not reducible:
        # A case of several paths, each tried with many draws, costs as much as many cases.
        return _drawn(theorem, fmt, samples // 16 if rounding.stochastic else samples, seed)
    if values and theorem.range == "bounded":
        assert scales is not None
        core = core_of_values(theorem, fmt, rounding, scales, samples, seed)
        # Again, pairs of 16 bits are tried; a case of more operands takes longer.
        most = 1 << 32 if len(theorem.operands) < 3 else limit // 8
        if core.size <= most:
            return core
        if whole is not None and whole.size <= 1 << 32:
            return Domain(fmt, (whole,), (), covers=True)
        return _drawn(theorem, fmt, samples, seed)
    most = limit // 8 if theorem.variant else limit
    return _core_of_pairs(theorem, fmt, rounding, scales, most, samples, seed)


def unbounded(precision: int) -> Format:
    """Return the format that stands for all of its precision where nothing overflows or underflows."""
    return Format(f"p{precision}", precision=precision, emin=UNBOUNDED[0], emax=UNBOUNDED[1])


def _complete(theorem: Theorem, fmt: Format) -> Part | None:
    """Return every operand of a format, if they can be listed."""
    paired = any(operand.paired for operand in theorem.operands)
    if fmt.bits > (8 if paired else 16) or any(o.kind == "sequence" for o in theorem.operands):
        return None
    tables = tuple(every(operand, fmt) for operand in theorem.operands)
    part = Part("complete", f"every operand of {fmt}", tables)
    return part if part.size < 1 << 40 else None


def _scales(theorem: Theorem, fmt: Format, rounding: Rounding) -> Scales | None:
    """Return how the algorithm scales, if it can be told."""
    common = theorem.scaling in (Scaling.COMMON, Scaling.SQUARE)
    degree = 2 if theorem.scaling is Scaling.SQUARE else 1
    try:
        return scales_of(theorem.algorithm, theorem.operands, fmt, rounding, common=common, degree=degree)
    except NotHomogeneousError as problem:
        raise ValueError(
            f"scaling={str(theorem.scaling)!r} is not valid for {theorem.name!r}: in its algorithm, {problem}"
        ) from problem


def _reduces(theorem: Theorem, scales: Scales | None) -> bool:
    """Return whether the operands of a core stand for all values, overflow and underflow included."""
    if scales is None or len(theorem.operands) < 2:
        return False
    if theorem.scaling is Scaling.EACH:
        return len(theorem.operands) == 2
    # Of numbers that scale as the operands do it is known where they overflow, and when they underflow.
    return theorem.scaling is Scaling.COMMON and all(x.degrees == (Fraction(1),) for x in scales.quantities)


def _core_of_pairs(
    theorem: Theorem,
    fmt: Format,
    rounding: Rounding,
    scales: Scales | None,
    limit: int,
    samples: int,
    seed: int,
) -> Domain:
    wide, p = unbounded(fmt.precision), fmt.precision
    positive = positive_stands(theorem, wide, rounding, scales)
    low, high = theorem.gaps(p)
    first = range(2) if theorem.scaling is Scaling.SQUARE else range(1)
    common = theorem.scaling is Scaling.COMMON
    later = range(low, high + 1) if common else range(1)
    sign, scaling = OF_PAIRS[theorem.scaling]
    if not positive[1] and theorem.scaling is Scaling.EACH:
        sign = SIGN
    reductions = [*([sign] if positive[0] else []), scaling, UNBOUNDED_EXPONENTS]
    if common:
        reductions.append(GAP.format(low, high))
    families = _families(theorem, wide)
    rest = _sample(theorem, wide, samples, seed)
    exponents = [first, *[later] * (len(theorem.operands) - 1)]
    for depth in range(p + 2, 0, -1):
        most = limit if depth == 1 else limit // 8
        if prod(_fewest(o, e, p, depth) for o, e in zip(theorem.operands, exponents, strict=True)) > most:
            continue  # before long tables are made
        tables = [normal(theorem.operands[0], wide, first, depth, signs=not positive[0], zero=False)]
        for operand in theorem.operands[1:]:
            tables.append(normal(operand, wide, later, depth, signs=not positive[1], zero=common))
        if prod(len(table[0]) for table in tables) <= most:
            text = (
                f"exponents {first[0]} to {first[-1]} of the first operand, {later[0]} to {later[-1]} of "
                f"others, low words zero or in the {depth} binades below half an ulp"
            )
            core = Part("core", text, tuple(tables))
            return Domain(wide, (core, *families, rest), tuple(reductions), covers=False)
    return Domain(wide, (*families, rest), tuple(reductions[-2:]), covers=False)


def _fewest(operand: Operand, exponents: Sequence[int], p: int, depth: int) -> int:
    """Return a little less than the number of positive operands that `normal` makes."""
    return (len(exponents) << (p - 1)) * (depth << p if operand.paired else 1)


def _drawn(theorem: Theorem, fmt: Format, samples: int, seed: int) -> Domain:
    free = theorem.range == "unbounded"
    used = unbounded(fmt.precision) if free else fmt
    parts = (*_families(theorem, used), _sample(theorem, used, samples, seed))
    return Domain(used, parts, (UNBOUNDED_EXPONENTS,) if free else (), covers=False)


def _sample(theorem: Theorem, fmt: Format, samples: int, seed: int) -> Sample:
    p = fmt.precision
    low, high = theorem.gaps(p)
    low, high = max(low, fmt.emin), min(high, fmt.emax - 1)
    if any(operand.kind == "sequence" for operand in theorem.operands):
        exponents = [(low, high)] * len(theorem.operands)
    elif theorem.scaling is Scaling.COMMON:
        exponents = [(0, 0)] + [(low, high)] * (len(theorem.operands) - 1)
    elif theorem.scaling is Scaling.NONE:
        exponents = [(fmt.emin, fmt.emax - 1)] * len(theorem.operands)
    else:
        exponents = [(0, 1)] * len(theorem.operands)
    # Long sequences cost as much as many short operands.
    count = max(1, samples // max(1, theorem.components // 4))
    text = f"random operands, seed {seed}"
    return Sample("sample", text, (), theorem.operands, fmt, tuple(exponents), count, seed)


def _families(theorem: Theorem, fmt: Format) -> tuple[Part, ...]:
    """Return the known extremal operands, as far as the format holds them."""
    cases = []
    for case in theorem.families(fmt.precision):
        numbers = np.array([float(number) for number in case])
        exact = all(number == exactly for number, exactly in zip(numbers.tolist(), case, strict=True))
        if exact and np.array_equal(round_to(numbers, fmt), numbers):
            cases.append(numbers)
    if not cases:
        return ()
    # One table of whole cases: a product of tables would mix them.
    table: Columns = tuple(np.array(cases, dtype=carrier_of(fmt)).T.copy())
    words = iter(table)
    for operand in theorem.operands:
        if not belongs(operand, tuple(islice(words, operand.components)), fmt).all():
            raise ValueError(
                f"{theorem.name!r}: a family has {operand.name} that is no {operand.kind} in {fmt}"
            )
    return (Part("family", "operands known or conjectured to be extremal", (table,)),)
