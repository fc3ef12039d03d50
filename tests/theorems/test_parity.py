"""What is said not to depend on signs: it is tried on all operands of small formats and their negatives."""

import itertools
import random

import numpy as np
import pytest

from mcfsim.backends.block_arithmetic import BlockArithmetic
from mcfsim.eft import two_sum
from mcfsim.formats import Format
from mcfsim.rounding import DETERMINISTIC, Mode, Rounding
from mcfsim.theorems import THEOREMS
from mcfsim.theorems import logic as lg
from mcfsim.theorems.claims import Claim
from mcfsim.theorems.domain import _scales
from mcfsim.theorems.judge import try_block
from mcfsim.theorems.logic.terms import InnerProduct, SumOfMagnitudes, UlpTowards
from mcfsim.theorems.operands import every
from mcfsim.theorems.parts import Part
from mcfsim.theorems.statement import Scaling
from mcfsim.theorems.symmetries import indifferent, outcome
from tests.theorems.drawn import proposition, statement, term
from tests.theorems.trying import mine, on_core

pytestmark = pytest.mark.slow

EITHER_WAY = [mode for mode in DETERMINISTIC if mode not in (Mode.UP, Mode.DOWN)]
SMALL = Format("", precision=3, emin=-5, emax=5)
#: About how many cases are tried of a statement that has more.
MOST = 1 << 14


def differing(theorem, fmt, rounding, each):
    """Return a case whose outcome differs from that of its negative, or None."""
    tables = tuple(every(operand, fmt) for operand in theorem.operands)
    part = Part("complete", "", tables)
    blocks = part.at(np.arange(0, part.size, part.size // MOST | 1))
    heads = list(itertools.accumulate((operand.components for operand in theorem.operands), initial=0))
    ar = BlockArithmetic(fmt, rounding, "exact")
    with np.errstate(all="ignore"):
        ours = outcome(theorem, try_block(theorem, ar, blocks))
        for a, b in itertools.pairwise(heads) if each else [(0, heads[-1])]:
            others = [-block if a <= i < b else block for i, block in enumerate(blocks)]
            theirs = outcome(theorem, try_block(theorem, ar, others))
            for one, other in zip(ours, theirs, strict=True):
                if (places := np.flatnonzero(one != other)).size:
                    return [float(block[places[0]]) for block in blocks]
    return None


@pytest.mark.costly("each statement is tried on operands and their negatives")
@pytest.mark.exhaustive
def test_what_is_read_of_the_catalogue_is_so():
    read = tried = 0
    for name, theorem in THEOREMS.items():
        listed = all(operand.kind != "sequence" for operand in theorem.operands)
        if theorem.scaling is Scaling.NONE or not listed or not theorem.possible(SMALL, Rounding()):
            continue
        for mode in set(EITHER_WAY) & set(theorem.modes):
            scales = _scales(theorem, SMALL, Rounding(mode))
            for each in (False, True):
                tried += 1
                if scales is not None and indifferent(theorem, scales, each=each):
                    assert differing(theorem, SMALL, Rounding(mode), each) is None, (name, mode, each)
                    read += 1
    assert read > tried / 3


# -- statements at random -----------------------------------------------------------------------------------
def further(draw):
    """Return a proposition, also of the kinds that only the reader of signs knows."""
    if draw.random() < 0.4:
        return proposition(draw)
    x, y, one = term(draw), term(draw), lg.Word(draw.choice("ab"))
    few = lg.OfFormat("2", lambda *_: 2)
    mode = draw.choice([None, *DETERMINISTIC])
    more = draw.choice(
        (
            lg.LowBit(one),
            lg.Rounded(lg.Word("a"), lg.Word("b"), mode),
            lg.RoundedToBits(one, few),
            SumOfMagnitudes(draw.choice((("a",), ("a", "b")))),
            InnerProduct("a", "b"),
        )
    )
    return draw.choice(
        (
            lg.equal(more, x),
            lg.equal(more, 0),
            x <= 0,
            more <= abs(x),
            abs(more) <= abs(x),
            lg.Iff(draw.choice((more <= abs(x), lg.equal(x, 0))), draw.choice((x <= y, lg.equal(x, y)))),
            lg.Same(),
            lg.SameSign(lg.Word("a"), lg.Result(draw.randrange(2))),
            lg.Within(
                x, lg.Mixed(draw.choice((one, y)), draw.choice((abs(one), y)), _shares, ""), lg.Bound(1, 1)
            ),
            lg.Nonoverlapping(draw.choice(((), (lg.Result(0), lg.Result(1)), (x, y))), draw.choice((1, 2))),
        )
    )


def _shares(p):
    return 1, 1


#: A number of which more than the sign changes with that of an operand, and propositions on it.
A, B = lg.Word("a"), lg.Word("b")
MIXED = A + abs(B)
REFUSED = [
    lg.Iff(MIXED <= 0, lg.Same()),
    lg.Iff(lg.Same(), MIXED <= 0),
    lg.Nonoverlapping((A, MIXED)),
    lg.Within(A, lg.Mixed(MIXED, abs(B), _shares, ""), lg.Bound(1, 1)),
    lg.Within(A, lg.Mixed(A, B, _shares, ""), lg.Bound(1, 1)),
    lg.Within(MIXED, A, lg.Bound(1, 1)),
    lg.Within(A, MIXED, lg.Bound(1, 1)),
    lg.Within(A, abs(B), lg.Bound(1, 1, squared=True)),
    abs(A) <= UlpTowards(A, abs(B)),
    lg.IsValue(MIXED),
    lg.IsMultiple(MIXED, A),
    lg.IsMultiple(A, MIXED),
    ~(MIXED <= 0) & lg.Same(),
]


def first_unlike(count):
    """Return the first random statement that depends on signs, against what is said, and how often it is."""
    draw, read = random.Random(count), 0
    for said in REFUSED:
        theorem = mine(two_sum, Claim(said), scaling="common")
        if indifferent(theorem, _scales(theorem, SMALL, Rounding()), each=False):
            return f"{said} is said not to depend on signs", 0
    while count:
        theorem, fmt, rounding = statement(draw, further)
        if rounding.mode not in EITHER_WAY:
            continue
        try:
            scales = _scales(theorem, fmt, rounding)
            found = [each for each in (False, True) if scales and indifferent(theorem, scales, each=each)]
            for each in found:
                if (case := differing(theorem, fmt, rounding, each)) is not None:
                    return f"{theorem.statement} {fmt} {rounding}, each by itself: {each}: {case}", read
        except ValueError:  # it does not scale, or cannot be judged
            continue
        count, read = count - 1, read + len(found)
    return None, read


def test_a_constant_tells_signs_where_trials_have_no_operand():
    """They draw no numbers of the last binade."""
    fmt = Format("", precision=3, emin=-7, emax=8)
    theorem = mine(lambda ar, a, b: ar.mul(a, b), Claim(~lg.equal(B, -320)), scaling="each")
    assert on_core(theorem, fmt, "nearest_even").violations


def test_negative_operands_are_tried_where_results_are_rounded_up():
    """Those of positive ones are larger than products, and of negative ones smaller in magnitude."""
    said = (abs(lg.Result(0)) >= abs(A * B)) | ~lg.Finite()
    theorem = mine(lambda ar, a, b: ar.mul(a, b), Claim(said), scaling="each", modes=["up"])
    assert on_core(theorem, SMALL, "up").violations


@pytest.mark.parametrize("count", [60, pytest.param(2000, marks=pytest.mark.exhaustive)])
def test_what_is_read_of_random_statements_is_so(count):
    wrong, read = first_unlike(count)
    assert wrong is None
    assert read > count / 4


def test_a_quotient_by_what_underflows_to_the_one_zero_of_a_format_depends_on_signs():
    theorem = mine(
        lambda ar, a, b: (ar.sign(ar.div(1, ar.mul(a, 0.125))), b),
        Claim(lg.SameSign(lg.Result(0), A)),
        scaling="common",
    )
    for specials in ("ieee", "nuz"):
        fmt, rounding = Format("", precision=3, emin=-5, emax=5, specials=specials), Rounding()
        case = differing(theorem, fmt, rounding, False)
        assert (case is None) is (specials == "ieee")
        known = indifferent(theorem, _scales(theorem, fmt, rounding), each=False)
        assert known is (True if case is None else None)  # trials decide then
