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
from mcfsim.theorems.operands import every, finite_values
from mcfsim.theorems.trial import Trial
from tests.theorems.campaign import brute, numbers
from tests.theorems.campaign.compare import certified, contradiction, judged, reduced
from tests.theorems.campaign.declared import KINDS, read_as_data, theorem
from tests.theorems.campaign.draw import GROUPS, draw
from tests.theorems.campaign.validity import broken
from tests.theorems.reading import by_arrays, by_fractions, by_line, propositions

pytestmark = pytest.mark.slow

#: Of each group: how many statements `make test` tries, and how many there are in all.
COUNTS = {
    "complete": (40, 700),
    "complete pairs": (20, 400),
    "long": (15, 250),
    "long single": (15, 200),
    "common": (25, 650),
    "common wide": (15, 350),
    "common default": (15, 350),
    "common three": (5, 100),
    "common products": (15, 250),
    "each": (25, 650),
    "each three": (15, 250),
    "square": (20, 400),
    "signs": (15, 250),
    "unbounded": (10, 150),
    "unbounded pairs": (1, 30),
    "false common": (40, 450),
    "false each": (40, 450),
    "false square": (30, 350),
}
#: Statements of a test of the exhaustive target.
CHUNK = 50
#: Of statements whose reduction holds, such a share at least is verified, on fewer operands than all.
VERIFIED = {"common": 0.15, "common wide": 0.2, "common default": 0.2, "each": 0.2}
CHUNKS = [(group, start) for group in COUNTS for start in range(0, COUNTS[group][1], CHUNK)]
#: Groups whose statements have types.
TYPED = [group for group in GROUPS if group.startswith(("common", "each", "square"))]


def trouble(case):
    """Return what is wrong with the certificate of a case, with the case; and what it came to.

    Of every other case the predicates are data.
    """
    data = case.name.endswith(("1", "3", "5", "7", "9"))
    truth, tried = judged(case, data=data)
    certificate = certified(case, data=data)
    problem = contradiction(case, certificate, truth, tried)
    came_to = "refused" if isinstance(certificate, ValueError) else str(certificate.verdict)
    return problem and f"{problem}\n{case}", came_to, reduced(certificate, truth)


def test_every_group_is_tried():
    assert COUNTS.keys() == GROUPS.keys()
    assert sum(every for _, every in COUNTS.values()) >= 5000
    assert all(some <= every for some, every in COUNTS.values())


@pytest.mark.parametrize("group", COUNTS)
@pytest.mark.sampled(4, each=False)
def test_some_random_statements(group):
    problems = [trouble(draw(group, number))[0] for number in range(COUNTS[group][0])]
    assert not any(problems), "\n".join(filter(None, problems))


@pytest.mark.exhaustive
@pytest.mark.parametrize(("group", "start"), CHUNKS)
def test_random_statements(group, start):
    stop = min(start + CHUNK, COUNTS[group][1])
    found = [trouble(draw(group, number)) for number in range(start, stop)]
    problems = [problem for problem, _, _ in found]
    assert not any(problems), "\n".join(filter(None, problems))
    verdicts = collections.Counter(came_to for _, came_to, _ in found)
    if stop - start == CHUNK:
        # A campaign whose statements are all of one kind would show little.
        assert verdicts["refuted"] >= (CHUNK // 12 if group in ("complete", *TYPED) else 1)
        truly = sum(came_to == "verified" and less for _, came_to, less in found)
        assert truly >= VERIFIED.get(group, 0) * CHUNK


@pytest.mark.parametrize("group", TYPED)
@pytest.mark.sampled(4, each=False)
def test_a_reduction_holds_by_types_if_and_only_if_brute_force_agrees(group):
    for number in range(COUNTS[group][0]):
        case = draw(group, number)
        truth, tried = judged(case)
        assert broken(case, tried, truth) is None, str(case)


@pytest.mark.exhaustive
@pytest.mark.parametrize("group", TYPED)
def test_reductions_hold_by_types_as_by_brute_force(group):
    for number in range(COUNTS[group][0], COUNTS[group][1], 2):
        case = draw(group, number)
        truth, tried = judged(case)
        assert broken(case, tried, truth) is None, str(case)


# -- the campaign's own means -------------------------------------------------------------------------------
def test_a_case_is_the_same_whenever_it_is_drawn():
    assert draw("each", 3) == draw("each", 3)
    assert draw("each", 3) != draw("each", 4)
    assert "each 3: Format(" in str(draw("each", 3))


def test_the_operands_of_brute_force_are_those_of_the_verifier():
    """Not that one copies the other: values by their definition, pairs by the rounded sum."""
    for group in ("complete", "complete pairs", "common", "each"):
        for number in range(20):
            case = draw(group, number)
            toy = brute.toy(case.format, case.rounding)
            assert np.array_equal(np.sort(toy.finite), np.sort(finite_values(case.format)))
            for name, kind in case.statement.line.operands:
                if kind != "value":
                    ours = set(zip(*(toy.values[codes].tolist() for codes in toy.pairs(kind)), strict=True))
                    theirs = every(KINDS[kind](name), case.format)
                    assert ours == set(zip(*(column.tolist() for column in theirs), strict=True))


def test_exact_numbers_in_random_expressions():
    assert numbers.first_wrong(200) is None


@pytest.mark.exhaustive
def test_exact_numbers_in_many_random_expressions():
    assert numbers.first_wrong(4000) is None


# -- interpreters -------------------------------------------------------------------------------------------
def check_readings(group, number, some):
    """Compare what arrays, a line and fractions read with brute force, case by case."""
    case = draw(group, number)
    stated, tried = theorem(case.statement, data=True), judged(case)[1]
    places = np.random.default_rng(number).choice(tried.size, min(some, tried.size), replace=False)
    toy = tried.toy
    carrier = carrier_of(case.format)

    def blocks(codes):
        return [toy.values[column[places]].astype(carrier) for column in codes]

    columns = blocks([column for name, _ in case.statement.line.operands for column in tried.operands[name]])
    operands = structured(stated.operands, columns)
    names = tuple(name for name, _ in case.statement.line.operands)
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
def test_interpreters_read_what_brute_force_finds(group):
    for number in range(6):
        check_readings(group, number, 24)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("group", "start"), CHUNKS)
def test_interpreters_read_what_brute_force_finds_of_all(group, start):
    for number in range(start, min(start + CHUNK, COUNTS[group][1])):
        check_readings(group, number, 64)
