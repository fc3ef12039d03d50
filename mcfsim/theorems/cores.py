"""Cores: sets of values of two or more operands that stand for all, by a statement's declared reductions."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mcfsim.formats import Format
from mcfsim.rounding import NEAREST, Mode, Rounding, Underflow
from mcfsim.theorems.cells import Cells, core
from mcfsim.theorems.homogeneity import Scales
from mcfsim.theorems.operands import finite_values, significands, sparse
from mcfsim.theorems.parts import Domain, Part, Sample, Selection, anywhere
from mcfsim.theorems.reach import Asked, asked
from mcfsim.theorems.statement import Scaling, Theorem, usual_gaps
from mcfsim.theorems.symmetries import indifferent, signs_hold

SIGN = "sign: negating all operands negates all results, so the first operand is positive"
COMMON = (
    "scaling: a power of two common to all operands multiplies all results, while nothing overflows; sums of "
    "subnormal numbers are exact"
)
EACH = "scaling: powers of two of single operands multiply the results, while nothing overflows or underflows"
SQUARE = "scaling: powers of four multiply the results by their roots, while nothing overflows or underflows"
SIGN_OF_EACH = "sign: negating one operand negates all results, so operands are positive"
NO_NEGATIVE = "sign: the operand is not negative, by hypothesis"
DRAWS = "draws: each operation gives what each of 2^{} draws makes of it, by the rule {}"
UNBOUNDED_EXPONENTS = (
    "range: the exponents are unbounded; what is found holds in any format of this precision wherever "
    "nothing overflows or underflows"
)
#: Listed among the reductions if no core is tried.
NO_CORE = "no core: it would have {} cases or more, and at most {} are allowed"
GAP = "gap: operands whose exponents differ from the first's by less than {} or more than {} do not interact"
#: Why the operands of a core of pairs need so few signs and so few exponents.
OF_PAIRS = {
    Scaling.COMMON: (SIGN, COMMON),
    Scaling.EACH: (SIGN_OF_EACH, EACH),
    Scaling.SQUARE: (NO_NEGATIVE, SQUARE),
}


def core_of_values(
    theorem: Theorem, fmt: Format, rounding: Rounding, scales: Scales, selection: Selection
) -> Domain:
    """Return a core of values, the edges that its reductions leave out, and a sample of all operands.

    Parameters
    ----------
    theorem, fmt, rounding, selection
        As for `mcfsim.theorems.domain.cover`.
    scales : Scales
        How the algorithm scales.
    """
    positive = positive_stands(theorem, fmt, rounding, scales)
    each, pairs = theorem.scaling is Scaling.EACH, len(theorem.operands) == 2
    reductions = [SIGN_OF_EACH] if positive[1] else [SIGN] if positive[0] else []
    reductions.append(EACH if each else COMMON)
    middle = (fmt.emin + fmt.emax) // 2
    gaps = None if each else _window(theorem, fmt, scales)
    # If sums of normal numbers are flushed, so are some whose operands lie too far apart to be tried.
    gradual = rounding.underflow is Underflow.GRADUAL
    if pairs:
        question = asked(theorem, scales)
        known = rounding.mode in NEAREST or theorem.gaps is not usual_gaps
        if gaps is not None and gradual and not (known and _apart_alike(question, fmt, gaps)):
            gaps = None
        parts: tuple[Part, ...] = core(fmt, scales, positive, question.places, gaps)
    else:
        assert gaps is not None
        low, high = gaps
        first = significands(fmt, [middle], signs=not positive[0])
        near = significands(
            fmt, range(max(middle + low, fmt.emin), min(middle + high, fmt.emax) + 1), signs=True
        )
        others = [(np.append(near, near.dtype.type(0)),)] * (len(theorem.operands) - 1)
        inside = Part("core", f"exponent {middle} of a, gaps {low} to {high}", ((first,), *others))
        parts = (inside, *_edges(theorem, fmt, rounding, gaps, positive[0]))
    if gaps is not None:
        reductions.append(GAP.format(*gaps))
    exponents = (anywhere(fmt),) * len(theorem.operands)
    text = f"random operands of all exponents, seed {selection.seed}"
    count = selection.samples // 16
    rest = Sample("sample", text, (), theorem.operands, fmt, exponents, count, selection.seed)
    parts = (*parts, *(_spread(fmt, middle) if pairs else ()), rest)
    # Two of three operands may interact far from the first one.
    covers = each or (pairs and gradual)
    return Domain(fmt, parts, tuple(reductions), covers=covers)


def _window(theorem: Theorem, fmt: Format, scales: Scales) -> tuple[int, int]:
    """Return the exponent gaps beyond which operands do not interact.

    The statement gives the gaps of the operands themselves. Constants and sums in the algorithm widen them.
    No core of three operands covers all, so their gaps are not widened.
    """
    low, high = theorem.gaps(fmt.precision)
    if len(theorem.operands) > 2:
        return low, high
    more = max([0, *(x.top - 1 for x in scales.quantities)])
    more += max([0, *(1 - fmt.precision - x.unit for x in scales.quantities)])
    return low - more, high + more


def _apart_alike(question: Asked, fmt: Format, gaps: tuple[int, int]) -> bool:
    """Return whether all questions about operands beyond these gaps have the same answers as at the gaps."""
    # A statement's gaps may be narrower than usual because its hypotheses compare the operands.
    if question.everywhere or question.ratio > max(gaps[1], -gaps[0], fmt.precision + 3):
        return False
    widest = fmt.emax - fmt.emin + 1
    for gap, last in zip(gaps, (-widest, widest), strict=True):
        apart = np.arange(min(gap, last), max(gap, last) + 1)
        first = np.where(apart < 0, fmt.emax, fmt.emin)
        cells = Cells(fmt, True, np.stack([first, first + apart]))
        if any(np.unique(place(cells)).size > 1 for place in question.gaps):
            return False
    return True


def _edges(
    theorem: Theorem, fmt: Format, rounding: Rounding, gaps: tuple[int, int], positive: bool
) -> list[Part]:
    """Return the parts next to overflow and underflow, for three or more operands that scale together."""
    values, others, (low, high) = finite_values(fmt), len(theorem.operands) - 1, gaps
    magnitude, reach = np.abs(values), max(high, -low)
    parts = []
    for i in range(others + 1):
        for name, edge, beside in (
            ("overflow", magnitude >= 2.0 ** (fmt.emax - 1), magnitude >= 2.0 ** (fmt.emax - 1 - reach)),
            ("underflow", magnitude < 2.0 ** (fmt.emin + 1), magnitude < 2.0 ** (fmt.emin + 1 + reach)),
        ):
            tables = [(values[beside | (magnitude == 0)],)] * (others + 1)
            tables[i] = (values[edge],)
            if positive:
                tables[0] = (tables[0][0][~np.signbit(tables[0][0])],)
            text = f"operand {i + 1} next to {name}, others within the gap"
            parts.append(Part("edge", text, tuple(tables)))
    if rounding.underflow is not Underflow.GRADUAL:
        small = values[magnitude < 2.0 ** (fmt.emin + 3)]
        tables = [(small[~np.signbit(small)] if i == 0 and positive else small,) for i in range(others + 1)]
        parts.append(Part("edge", f"all operands below 2^{fmt.emin + 3}", tuple(tables)))
    return parts


def _spread(fmt: Format, middle: int) -> Iterator[Part]:
    """Yield pairs of all exponents with few significands: a claim may concern what reductions leave out."""
    few, many = (sparse(fmt),), (significands(fmt, [middle], signs=True),)
    text = "pairs of all exponents and either sign, significands 1, 1 + 2u, 3/2 and 2 - 2u"
    yield Part("spread", text, (few, few))
    yield Part("spread", f"the same, the first of exponent {middle} and any significand", (many, few))
    yield Part("spread", f"the same, the second of exponent {middle} and any significand", (few, many))


def positive_stands(
    theorem: Theorem, fmt: Format, rounding: Rounding, scales: Scales | None
) -> tuple[bool, bool]:
    """Return whether positive values of the first operand, and of the others, stand for all."""
    if rounding.mode in (Mode.UP, Mode.DOWN):
        return False, False
    each = theorem.scaling is Scaling.EACH and (scales is None or scales.odd_in_each)
    if each and _signs_hold(theorem, fmt, rounding, scales, each=True):
        return True, True
    # A root takes no negative numbers; they are left out where hypotheses exclude them.
    odd = scales is None or scales.odd or theorem.scaling is Scaling.SQUARE
    return odd and _signs_hold(theorem, fmt, rounding, scales, each=False), False


def _signs_hold(
    theorem: Theorem, fmt: Format, rounding: Rounding, scales: Scales | None, *, each: bool
) -> bool:
    """Return whether signs do not matter, by the statement's data or, if these cannot be read, by trials.

    Trials may miss comparisons with constants. A root does depend on the sign of its operand, but hypotheses
    or NaN leave out negative numbers.
    """
    read = None if scales is None else indifferent(theorem, scales, each=each)
    if read is None or theorem.scaling is Scaling.SQUARE:
        return read or signs_hold(theorem, fmt, rounding, each=each)
    return read
