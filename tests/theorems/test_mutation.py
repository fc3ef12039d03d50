"""Every algorithm with one operation altered: its statement must fail, or it is said here why it does not.

The alterations are made by the arithmetic that the algorithm runs on, so each text is the one and only.
Operands are those of a small format, or of a core of four bits. Changes of sign are left as they are;
statements on sequences, whose operands are only sampled, and on stochastic rounding are not tried.
"""

import itertools
from collections import Counter
from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest

from mcfsim.backends.block_arithmetic import BlockArithmetic
from mcfsim.formats import Format, get_format
from mcfsim.rounding import Mode, Rounding
from mcfsim.theorems import THEOREMS
from mcfsim.theorems.check import Check
from mcfsim.theorems.judge import applicable, structured, try_block, violating
from mcfsim.theorems.parts import Selection
from tests.theorems.trying import Mutant, exchanged, opposite

pytestmark = pytest.mark.slow

WIDE = Format(precision=4, emin=-126, emax=127)
#: By the number of operands, all of them values: formats of which every operand can be tried. The first one
#: that a statement speaks of is taken.
SMALL = {
    1: [get_format("float8_e4m3fn"), get_format("float8_e5m2")],
    2: [get_format("float8_e4m3fn"), get_format("float8_e5m2")],
    3: [Format(precision=4, emin=-2, emax=3), Format(precision=2, emin=-2, emax=2)],
    4: [Format(precision=3, emin=0, emax=1)],
}
CORE = {"limit": 1 << 22, "samples": 1 << 11}
#: Of more cases so many are tried, in so many ranges everywhere.
ENOUGH, MORE, EVERY = (1 << 14, 13), (1 << 18, 61), (1 << 40, 1)
#: Statements some mutants of which are rarely wrong: more cases of these.
RARELY = dict.fromkeys(
    ("fma_error", "accurate_dw_plus_dw", "grow_expansion", "grow_expansion_nonadjacent", "expansion_sum"),
    MORE,
)
RARELY["doubly_compensated_sum"] = EVERY


def _skipped(ar, name, first, *rest):
    return first if isinstance(first, np.ndarray) else ar.mul(first, np.ones_like(rest[0]))


def _toward_zero(ar, name, *operands):
    other = BlockArithmetic(ar.format, replace(ar.rounding, mode=Mode.TOWARD_ZERO), "exact")
    return getattr(other, name)(*operands)


def _separate(ar, name, a, b, c):
    return ar.add(ar.mul(a, b), c)


ALTERATIONS = {
    "opposite": (opposite, {"add", "sub", "fma"}),
    "exchanged": (exchanged, {"sub", "div", "fma"}),
    "skipped": (_skipped, {"add", "sub", "mul", "div", "sqrt", "fma", "round"}),
    "toward zero": (_toward_zero, {"add", "sub", "mul", "div", "sqrt", "fma", "round"}),
    "separate": (_separate, {"fma"}),
}


def mutated(theorem, place, alteration, known=()):
    def algorithm(ar, *operands):
        return theorem.algorithm(Mutant(ar, place, ALTERATIONS[alteration][0], known), *operands)

    return replace(theorem, algorithm=algorithm)


@lru_cache
def operations(name):
    theorem, recorder = THEOREMS[name], Mutant(BlockArithmetic(WIDE, Rounding(_mode(name)), "exact"))
    ones = [np.ones(1, np.float32)] * theorem.components
    theorem.algorithm(recorder, *structured(theorem.operands, ones))
    return recorder.done


def _mode(name):
    modes = THEOREMS[name].modes
    return Mode.NEAREST_EVEN if Mode.NEAREST_EVEN in modes else min(modes)


def mutants(name):
    return [
        (place, alteration)
        for place, operation in enumerate(operations(name))
        for alteration, (_, where) in ALTERATIONS.items()
        if operation in where
    ]


# -- survivors ----------------------------------------------------------------------------------------------
KINDS = {"x": "exchanged", "o": "opposite", "s": "skipped", "z": "toward zero"}


def places(table):
    """Return the mutants of each statement, written as places, and kinds of alterations at each."""
    return {
        name: {(int(x.rstrip("xosz")), KINDS[kind]) for x in text.split() for kind in x.lstrip("0123456789")}
        for name, text in table.items()
    }


#: Mutants with the same results on every operand, besides exact operations that round toward zero.
SAME = {
    # The error of the larger operand in a 2Sum of ordered ones, or of an exact difference: it is zero.
    "dw_div_fp1_equals_fp2": "4xos 6x 7x 8os",
    "dw_div_dw1_equals_dw2": "12xos 14x 15x 16os",
    "fast_expansion_sum": "7x 8os",
    "expansion_sum": "13os",
    # The same, and a Fast2Sum of what is a double word already.
    "dw_div_dw3": "16x 17os 19s 20x 21os",
    # Where |a| >= |b|, any number near a serves 2Sum as what is left of a.
    "grow_equals_dw_plus_fp": "8s",
    # In so small a range the second error leaves no third.
    "fma_error": "19x",
    # The first sum is of one term and zero, and so is what is left of two of the others.
    "doubly_compensated_sum": "0s 1os 2x 7s 8x 9os 18xos 19xos",
    # Factors in the other order.
    "reciprocal_newton": "3x 6x",
    # Everything but a is zero.
    "grow_zero_high": "0x 1s 2os 3x 4os 5os 6x 7xos",
}
#: Mutants with other results that meet the claim, besides single roundings for which a bound has room.
WITHIN = {
    # (a, b) itself has the sum of a and b: the claim does not say that s is the rounded one.
    **dict.fromkeys(("fast_two_sum", "fast_two_sum_exponents", "fast_two_sum_multiple"), "0s"),
    **dict.fromkeys(("fast_two_sum_unordered_error", "fast_two_sum_faithful_error"), "0s"),
    # The same, and the error of any faithful sum is a value under these hypotheses.
    "fast_two_sum_faithful": "0sz",
    # The error of any faithful product is a value; where it is none, only that e is not the error is said.
    "two_prod": "0z",
    "two_prod_fma": "0z 1z",
    # Exponents of so small a range differ by p at most, so the error of any faithful sum is a value.
    "expansion_sum": "1z 6z 7z 12z 19z",
    # Half of a sum lies between the terms, however it is rounded.
    "mean_of_two": "1z",
    # Twice u has room for one of the two roundings that are compensated.
    "complex_product_fma": "3s 7s",
    # ... and for what is left of the smallest term.
    "doubly_compensated_sum": "7o 10s 12x 16s 17s",
    # Only the high part is spoken of.
    "split_to_nearest": "3xos",
    # Terms of the order of u^2 that a bound has room for, when p is 4: 1.5u^2 + 4u^3 for 1.3u^2, ...
    "dw_times_fp1": "3s",
    # ... 4u^2 for 2.8u^2, ...
    "dw_times_dw3": "3o",
    # ... 15u^2 for 4.8u^2, ...
    "dw_div_dw2": "4os 7s 8os",
    "dw_div_dw2_relaxed": "4os 7s 8os",
    "dw_div_dw2_fma": "4os",
    # ... 9.8u^2 for 3.8u^2.
    "dw_div_dw3": "3os 5x 6s 8xos 9os 10x 11xos 13x 19o 25o",
}
SAME, WITHIN = places(SAME), places(WITHIN)
#: Statements that claim no more than that results are finite.
OF_RANGE = {"two_sum_overflow", "fast_two_sum_overflow"}

TRIED = [
    name
    for name, theorem in THEOREMS.items()
    if theorem.holds
    and name not in OF_RANGE
    and theorem.modes != {Mode.STOCHASTIC}
    and not any(operand.kind == "sequence" for operand in theorem.operands)
    and len(operations(name)) > 1
]


def check(name):
    theorem = THEOREMS[name]
    values = theorem.range == "bounded" and len(theorem.operands) == theorem.components
    rounding = Rounding(_mode(name), underflow=theorem.underflow)
    formats = SMALL[theorem.components] if values else [WIDE]
    checks = (Check(theorem, fmt, rounding, Selection(**CORE)) for fmt in formats)
    return next(check for check in checks if check.domain().size)


def spread(size, most, pieces):
    """Yield ranges of cases: all of them, or short ones everywhere."""
    pieces = pieces if size > most else 1
    for piece in range(pieces):
        start = size * piece // pieces
        yield start, min(start + most // pieces, size)


class Unlooped(BlockArithmetic):
    """For which no loop is looked for: naming a mutant takes longer than running it."""


def survivors(name, most=ENOUGH, some=None):
    """Return the mutants, of some, whose claim holds, and for how many operands each has other results."""
    original, domain = check(name), check(name).domain()
    ar = Unlooped(domain.format, original.rounding, "exact")
    alive = Counter(dict.fromkeys(mutants(name) if some is None else some, 0))
    ranges = spread(domain.size, *most)
    for _, blocks in itertools.chain.from_iterable(itertools.starmap(domain.blocks, ranges)):
        right, known = try_block(original.theorem, ar, blocks), results(original.theorem, ar, blocks)
        there = applicable(original.theorem, right)
        assert not violating(original.theorem, right, there).any()
        for mutant in list(alive):
            theorem = mutated(original.theorem, *mutant, known)
            try:
                trial = try_block(theorem, ar, blocks)
            except ValueError as error:  # what is no longer rounded may be no value, and is refused
                if "is no value of" not in str(error):
                    raise
                del alive[mutant]
                continue
            there = applicable(theorem, trial)
            if violating(theorem, trial, there).any():
                del alive[mutant]
            else:
                alive[mutant] += np.count_nonzero(_differs(trial, right) & (True if there is None else there))
    return alive


def results(theorem, ar, blocks):
    recorder = Mutant(ar)
    with np.errstate(all="ignore"):
        theorem.algorithm(recorder, *structured(theorem.operands, blocks))
    return recorder.results


def _differs(trial, other):
    pairs = zip(trial.results, other.results, strict=True)
    return np.logical_or.reduce([(a != b) & ~(np.isnan(a) & np.isnan(b)) for a, b in pairs])


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.exhaustive) if name in RARELY else name for name in TRIED]
)
@pytest.mark.sampled(90, each=False)
def test_every_mutant_is_caught_or_known_to_be_as_good(name):
    alive = survivors(name, RARELY.get(name, ENOUGH))
    same = {mutant for mutant, differences in alive.items() if not differences and mutant[1] != "toward zero"}
    assert same == SAME.get(name, set())
    rounding = {"toward zero", "separate"} if THEOREMS[name].claim.bound else set()
    within = {mutant for mutant, differences in alive.items() if differences and mutant[1] not in rounding}
    assert within == WITHIN.get(name, set())


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", sorted({*SAME, *WITHIN}))
def test_what_is_as_good_is_so_on_all_operands(name):
    known = SAME.get(name, set()), WITHIN.get(name, set())
    assert known[0] | known[1] <= set(mutants(name))
    alive = survivors(name, EVERY, sorted(known[0] | known[1]))
    assert {mutant for mutant, differences in alive.items() if not differences} == known[0]
    assert {mutant for mutant, differences in alive.items() if differences} == known[1]
