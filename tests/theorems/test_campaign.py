"""The verifier against brute force: random statements, under reductions that hold for them and that do not.

What each group is, is said in `campaign.draw.GROUPS`. A statement whose reduction holds by construction may
not be refused; one that is declared with any other may be, and if it is not, what is found must be so.
"""

import collections

import pytest

from tests.theorems.campaign.compare import certified, contradiction, judged, reduced
from tests.theorems.campaign.draw import GROUPS, draw

pytestmark = pytest.mark.slow

#: Statements of a test of the exhaustive target, and tests of a group; `make test` tries one of some.
CHUNK, CHUNKS = 50, 1
DEAR = ("common three", "unbounded", "unbounded pairs")
#: Of statements whose reduction holds, such a share at least is verified, on fewer operands than all.
VERIFIED = {"common": 0.15, "common wide": 0.2, "common default": 0.2, "each": 0.2}
#: Groups whose statements have types, by which their reductions hold.
TYPED = [group for group in GROUPS if group.startswith(("common", "each", "square"))]


def check(group, number):
    """Judge a statement by brute force, and compare; return what came of it, and whether cases were saved."""
    case = draw(group, number)
    data = number % 2 == 1  # whether the predicates are data
    truth, tried = judged(case, data=data)
    certificate = certified(case, data=data)
    problem = contradiction(case, certificate, truth, tried)
    assert not problem, f"{problem}\n{case}"
    came_to = "refused" if isinstance(certificate, ValueError) else str(certificate.verdict)
    return came_to, reduced(certificate, truth)


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.sampled(7, each=False)
def test_some_random_statements(group):
    check(group, 1)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("group", "chunk"),
    [(group, chunk) for group in GROUPS for chunk in range(1 if group in DEAR else CHUNKS)],
)
def test_random_statements(group, chunk):
    found = [check(group, number) for number in range(chunk * CHUNK, (chunk + 1) * CHUNK)]
    verdicts = collections.Counter(came_to for came_to, _ in found)
    # A campaign whose statements are all of one kind would show little.
    assert verdicts["refuted"] >= (CHUNK // 12 if group in ("complete", *TYPED) else 1)
    truly = sum(came_to == "verified" and less for came_to, less in found)
    assert truly >= VERIFIED.get(group, 0) * CHUNK


def test_a_case_is_the_same_whenever_it_is_drawn():
    assert draw("each", 3) == draw("each", 3)
    assert draw("each", 3) != draw("each", 4)
