"""Domains: the operands on which a statement is tried, either all of a format, or a core and samples.

Every case of a domain has an index. Ranges of indices are the units of work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import compress, islice
from math import prod

import numpy as np

from mcfsim.formats import Format
from mcfsim.kernels.carriers import carrier_of
from mcfsim.rounding import Rounding
from mcfsim.theorems.cores import (
    GAP,
    NO_CORE,
    OF_PAIRS,
    SIGN,
    UNBOUNDED_EXPONENTS,
    core_of_values,
    positive_stands,
)
from mcfsim.theorems.homogeneity import NotHomogeneousError, Scales, scales_of
from mcfsim.theorems.operands import (
    Columns,
    OperandSpec,
    belongs,
    every,
    has_all,
    normal,
    normal_pairs,
    unbounded,
    unscaled_reach,
)
from mcfsim.theorems.parts import Domain, Pairs, Part, Sample, Selection, anywhere
from mcfsim.theorems.statement import Scaling, Theorem

#: With at most this many cases, a core is not worth its reductions.
FEW = 1 << 25
#: By default, a core or, failing that, random operands.
USUAL = Selection()


def cover(
    theorem: Theorem,
    fmt: Format,
    rounding: Rounding,
    selection: Selection = USUAL,
    *,
    few: int | None = None,
) -> Domain:
    """Return the operands on which to try a statement.

    Parameters
    ----------
    theorem : Theorem
    fmt : Format
    rounding : Rounding
    selection : Selection, optional
        Which operands; by default a core, where there is one.
    few : int, optional
        If there are at most this many cases, all are tried, whatever the reductions; by default `FEW`.

    Raises
    ------
    ValueError
        If every operand is asked for, and there are too many to list; or if the algorithm does not scale as
        the statement says.
    """
    if not theorem.possible(fmt, rounding):
        return Domain(fmt, (), (), covers=True)
    whole = _complete(theorem, fmt) if theorem.range == "bounded" else None
    if selection.extent == "all":
        if whole is None:
            many = "too many" if theorem.range == "bounded" else "infinitely many, of unbounded exponents"
            raise ValueError(f"operands of {theorem.name} in {fmt} cannot all be tried: {many}; use a core")
        return Domain(fmt, (whole,), (), covers=True)
    # Reductions apply to floating-point formats, and a core of values lists all significands.
    usual = type(fmt) is Format and fmt.signed and fmt.zero
    values = theorem.components == len(theorem.operands)
    # With unbounded exponents, those of the format do not matter.
    narrow = theorem.range == "unbounded" or fmt.bits <= 16
    reducible = theorem.scaling is not Scaling.NONE and usual and (narrow or not values)
    reducible &= theorem.scaling is not Scaling.SQUARE or len(theorem.operands) == 1
    reducible &= not rounding.stochastic  # with some probability operands interact across any gap
    if whole is not None and whole.size <= (FEW if few is None else few):
        return Domain(fmt, (whole,), (), covers=True)
    scales = _scales(theorem, fmt, rounding) if reducible else None
    if values and theorem.range == "bounded":
        reducible &= _reduces(theorem, scales)
    # Without a reduction, at most pairs of 16 bits are tried by default, or on every path pairs of 8 bits.
    if whole is not None and whole.size <= 1 << 32 and not reducible and not rounding.stochastic:
        return Domain(fmt, (whole,), (), covers=True)
    if any(operand.kind == "sequence" for operand in theorem.operands) or not reducible:
        # A case of several paths, each tried with many draws, costs as much as many cases.
        if rounding.stochastic:
            selection = replace(selection, samples=_share(selection.samples, 16))
        return _drawn(theorem, fmt, rounding, selection)
    if values and theorem.range == "bounded":
        assert scales is not None
        core = core_of_values(theorem, fmt, rounding, scales, selection)
        # Again, at most pairs of 16 bits are tried; a case of more operands takes longer.
        most = 1 << 32 if len(theorem.operands) < 3 else selection.limit // 8
        if core.size <= most:
            known = () if core.covers else _known(theorem, fmt, rounding)
            return replace(core, parts=(*core.parts, *known))
        if whole is not None and whole.size <= most:
            return Domain(fmt, (whole,), (), covers=True)
        drawn = _drawn(theorem, fmt, rounding, selection)
        return replace(drawn, reductions=(*drawn.reductions, NO_CORE.format(core.size, most)))
    if theorem.variant:
        selection = replace(selection, limit=max(1, selection.limit // 8))
    return _core_of_pairs(theorem, fmt, rounding, scales, selection)


def _complete(theorem: Theorem, fmt: Format) -> Part | None:
    """Return a part with every operand of a format, or None if they cannot be listed."""
    paired = any(operand.paired for operand in theorem.operands)
    if fmt.bits > (8 if paired else 16) or any(o.kind == "sequence" for o in theorem.operands):
        return None
    tables = tuple(every(operand, fmt) for operand in theorem.operands)
    part = Part("complete", f"every operand of {fmt}", tables)
    return part if part.size < 1 << 40 else None


def _scales(theorem: Theorem, fmt: Format, rounding: Rounding) -> Scales | None:
    """Return how the algorithm scales, or None if that is not known."""
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
    # For numbers that scale as the operands do, it is known where they overflow and when they underflow.
    return theorem.scaling is Scaling.COMMON and all(x.degrees == (Fraction(1),) for x in scales.quantities)


def _core_of_pairs(
    theorem: Theorem, fmt: Format, rounding: Rounding, scales: Scales | None, selection: Selection
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
    others = (*_known(theorem, wide, rounding), _sample(theorem, wide, selection))
    exponents = [first, *[later] * (len(theorem.operands) - 1)]
    fewest = 0
    for depth in range(p + 2, 0, -1):
        most = selection.limit if depth == 1 else selection.limit // 8
        fewest = prod(_fewest(o, e, p, depth) for o, e in zip(theorem.operands, exponents, strict=True))
        if fewest > most:
            continue  # before long tables are made
        text = (
            f"exponents {first[0]} to {first[-1]} of the first operand, {later[0]} to {later[-1]} of "
            f"others, low words zero or in the {depth} binades below half an ulp"
        )
        one, *rest = theorem.operands
        core: Part
        if rest or not one.paired:
            tables = [normal(one, wide, first, depth, signs=not positive[0], zero=False)]
            tables += [normal(x, wide, later, depth, signs=not positive[1], zero=common) for x in rest]
            core = Part("core", text, tuple(tables))
        else:
            rows = normal_pairs(one, wide, first, depth, signs=not positive[0], zero=False)
            core = Pairs("core", text, (), rows)
        if (fewest := core.size) <= most:
            return Domain(wide, (core, *others), tuple(reductions), covers=False)
    none = NO_CORE.format(fewest, selection.limit)
    return Domain(wide, others, (*reductions[-2:], none), covers=False)


def _fewest(operand: OperandSpec, exponents: Sequence[int], p: int, depth: int) -> int:
    """Return a little less than the number of positive operands that `normal` makes."""
    return (len(exponents) << (p - 1)) * (depth << p if operand.paired else 1)


def _drawn(theorem: Theorem, fmt: Format, rounding: Rounding, selection: Selection) -> Domain:
    free = theorem.range == "unbounded"
    used = unbounded(fmt.precision) if free else fmt
    parts = (*_known(theorem, used, rounding), _sample(theorem, used, selection))
    return Domain(used, parts, (UNBOUNDED_EXPONENTS,) if free else (), covers=False)


def _sample(theorem: Theorem, fmt: Format, selection: Selection) -> Sample:
    low, high = theorem.gaps(fmt.precision)
    if any(operand.kind == "sequence" for operand in theorem.operands):
        exponents = [(low, high)] * len(theorem.operands)
    elif theorem.scaling is Scaling.COMMON:
        exponents = [(0, 0)] + [(low, high)] * (len(theorem.operands) - 1)
    elif theorem.scaling is Scaling.NONE and theorem.range == "unbounded":
        reach = unscaled_reach(fmt.precision)
        exponents = [(-reach, reach)] * len(theorem.operands)
    elif theorem.scaling is Scaling.NONE:
        exponents = [anywhere(fmt)] * len(theorem.operands)
    else:
        exponents = [(0, 1)] * len(theorem.operands)
    least, most = anywhere(fmt)
    exponents = [(min(max(a, least), most), max(min(b, most), least)) for a, b in exponents]
    # Long sequences cost as much as many short operands.
    count = _share(selection.samples, max(1, theorem.components // 4))
    text = f"random operands, seed {selection.seed}"
    return Sample("sample", text, (), theorem.operands, fmt, tuple(exponents), count, selection.seed)


def _share(samples: int, cost: int) -> int:
    """Return how many cases of a given cost are drawn: at least one, unless no samples are asked for."""
    return max(min(samples, 1), samples // cost)


def _known(theorem: Theorem, fmt: Format, rounding: Rounding) -> tuple[Part, ...]:
    """Return a part with known extremal operands and a known counterexample, if the format has them."""
    cases = [tuple(map(Fraction, case)) for case in theorem.families(fmt.precision)]
    cases = list(compress(cases, has_all(fmt, cases)))
    witness = theorem.witness(fmt, rounding)
    if witness is not None and witness not in cases:
        cases.append(witness)
    if not cases:
        return ()
    # One table of whole cases, since a product of tables would mix them.
    numbers = [[float(number) for number in case] for case in cases]
    table: Columns = tuple(np.array(numbers, dtype=carrier_of(fmt)).T.copy())
    words = iter(table)
    for operand in theorem.operands:
        if not belongs(operand, tuple(islice(words, operand.components)), fmt).all():
            raise ValueError(
                f"{theorem.name!r}: a family has {operand.name} that is no {operand.kind} in {fmt}"
            )
    return (Part("family", "operands known or conjectured to be extremal", (table,)),)
