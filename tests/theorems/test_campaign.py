"""The verifier against brute force: random statements, under reductions that hold for them and that do not.

What each group is, is said in `campaign.draw.GROUPS`. A statement whose reduction holds by construction may
not be refused; one that is declared with any other may be, and if it is not, what is found must be so.
"""

import collections

import numpy as np
import pytest

from mcfsim.backends.factory import on_blocks
from mcfsim.kernels.carriers import carrier_of
from mcfsim.theorems.judge import structured
from mcfsim.theorems.logic.propositions import possible
from mcfsim.theorems.trial import Trial
from tests.theorems.campaign import numbers
from tests.theorems.campaign.compare import certified, contradiction, judged, reduced
from tests.theorems.campaign.declared import read_as_data, theorem
from tests.theorems.campaign.draw import GROUPS, draw
from tests.theorems.reading import by_arrays, by_fractions, by_line, propositions

pytestmark = pytest.mark.slow

#: How many statements of each group there are; `make test` tries the first one of some.
COUNTS = {
    "complete": 300,
    "complete pairs": 150,
    "long": 100,
    "long single": 100,
    "common": 250,
    "common wide": 150,
    "common default": 150,
    "common three": 50,
    "common products": 100,
    "each": 250,
    "each three": 100,
    "square": 150,
    "signs": 100,
    "unbounded": 50,
    "unbounded pairs": 30,
    "false common": 200,
    "false each": 200,
    "false square": 150,
}

#: Statements of a test of the exhaustive target.
CHUNK = 50
CHUNKS = [(group, start) for group in COUNTS for start in range(0, COUNTS[group], CHUNK)]
#: Of statements whose reduction holds, such a share at least is verified, on fewer operands than all.
VERIFIED = {"common": 0.15, "common wide": 0.2, "common default": 0.2, "each": 0.2}
#: Groups whose statements have types, by which their reductions hold.
TYPED = [group for group in GROUPS if group.startswith(("common", "each", "square"))]


def test_every_group_is_tried():
    assert COUNTS.keys() == GROUPS.keys()
    assert sum(COUNTS.values()) >= 2500


def check(group, number):
    """Judge a statement by brute force, and compare; return what came of it, and whether cases were saved."""
    case = draw(group, number)
    data = number % 2 == 1  # whether the predicates are data
    truth, tried = judged(case, data=data)
    certificate = certified(case, data=data)
    problem = contradiction(case, certificate, truth, tried)
    assert not problem, f"{problem}\n{case}"

    check_readings(case, tried, np.random.default_rng(number))
    came_to = "refused" if isinstance(certificate, ValueError) else str(certificate.verdict)
    return came_to, reduced(certificate, truth)


def check_readings(case, tried, rng):
    """Compare what arrays, a line and fractions read with brute force, case by case."""
    stated = theorem(case.statement, data=True)
    places = rng.choice(tried.size, min(40, tried.size), replace=False)
    toy, carrier = tried.toy, carrier_of(case.format)

    def blocks(codes):
        return [toy.values[column[places]].astype(carrier) for column in codes]

    names = tuple(name for name, _ in case.statement.line.operands)
    operands = structured(
        stated.operands, blocks([column for name in names for column in tried.operands[name]])
    )
    trial = Trial(on_blocks(case.format, case.rounding), names, operands, tuple(blocks(tried.results)))
    read = read_as_data(case.statement)
    for tree, said in zip((*read.where, read.claim), propositions(stated), strict=True):
        if not possible(said, case.format, case.rounding):
            continue  # and brute force says so of the whole statement
        truth = tried.truth(tree)[places].tolist()
        assert by_arrays(said, trial).tolist() == truth, case
        assert by_fractions(stated, said, trial).tolist() == truth, case
        try:
            held, left_open = by_line(stated, said, trial)
        except (TypeError, ValueError):  # numbers that no line has: then there is none
            continue
        assert (left_open | (held == truth)).all(), case


@pytest.mark.parametrize("group", COUNTS)
@pytest.mark.sampled(5, each=False)
def test_some_random_statements(group):
    check(group, 1)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("group", "start"), CHUNKS)
def test_random_statements(group, start):
    stop = min(start + CHUNK, COUNTS[group])
    found = [check(group, number) for number in range(start, stop)]
    verdicts = collections.Counter(came_to for came_to, _ in found)
    if stop - start == CHUNK:
        # A campaign whose statements are all of one kind would show little.
        assert verdicts["refuted"] >= (CHUNK // 12 if group in ("complete", *TYPED) else 1)
        truly = sum(came_to == "verified" and less for came_to, less in found)
        assert truly >= VERIFIED.get(group, 0) * CHUNK


# -- the campaign's own means -------------------------------------------------------------------------------
def test_a_case_is_the_same_whenever_it_is_drawn():
    assert draw("each", 3) == draw("each", 3)
    assert draw("each", 3) != draw("each", 4)
    assert "each 3: Format(" in str(draw("each", 3))


@pytest.mark.parametrize("count", [150, pytest.param(2500, marks=pytest.mark.exhaustive)])
def test_exact_numbers_in_random_expressions(count):
    assert numbers.first_wrong(count) is None
