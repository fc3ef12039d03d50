"""Sentences that compare options are borne out by intervals; false ones and unlisted ones are found."""

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest

from experiments import claims
from experiments.common import PAGES

pytestmark = pytest.mark.slow

COMPARED = [claim for claim in claims.CLAIMS if isinstance(claim, claims.Claim)]
NUMBERS = [claim for claim in claims.CLAIMS if isinstance(claim, claims.Number)]


def said(claim):
    return claim.says[:40]


@pytest.mark.parametrize("claim", claims.CLAIMS, ids=said)
def test_what_a_page_says_is_borne_out(claim):
    assert claim.errors() == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_page_compares_without_a_claim(page):
    assert claims.unsupported(page) == []


@pytest.mark.parametrize("claim", COMPARED, ids=said)
def test_a_claim_of_another_sign_is_false(claim):
    for sign in {-1, 0, 1} - {claim.sign}:
        assert len(replace(claim, sign=sign).errors()) == len(claim.differences())
    assert claim.errors("Nothing is said.") == [f"{claim.page} does not say {claim.says!r}"]


@pytest.mark.parametrize("claim", NUMBERS, ids=said)
def test_a_number_beyond_the_ends_is_false(claim):
    count = len(claim.numbers())
    for low, high in ((claim.high + 1e-9, np.inf), (-np.inf, claim.low - 1e-9)):
        assert len(replace(claim, low=low, high=high).errors()) == count


def test_signs_of_random_differences_are_those_of_their_intervals():
    """By hundreds: a claim passes exactly if all differences lie on the side that it says."""
    draw = np.random.default_rng(0)
    told = dict.fromkeys((-1, 0, 1), 0)
    for _ in range(300):
        gaps = [draw.normal(draw.choice([-1, -0.3, 0, 0.3, 1]), 0.4, 8) for _ in range(draw.integers(1, 4))]
        for sign in (-1, 0, 1):
            made = claims.Claim("README.md", "a", "own_rates", sign, lambda gaps=gaps: gaps)
            half = [2.3646 * gap.std(ddof=1) / np.sqrt(8) for gap in gaps]  # Student's t of 7 degrees, 97.5 %
            there = [np.sign(gap.mean()) * (abs(gap.mean()) > h) for gap, h in zip(gaps, half, strict=True)]
            right = all(x == sign for x in there)
            assert (made.errors("a") == []) == right
            told[sign] += right
    assert min(told.values()) > 30


def test_a_comparison_that_nobody_lists_is_found(tmp_path, monkeypatch):
    """By the hundred: every sentence of these kinds, wherever it stands, and no other."""
    monkeypatch.setattr(claims, "ROOT", tmp_path)
    names = ["`plain`", "`collage-plus`", "fp32 master weights", "BitNet", "`dqt-int8`", "plain bf16"]
    words = ["ends below", "is better than", "ends .01 above", "is worse than"]
    words += ["loses less and ends ahead of"]
    draw, page = random.Random(0), tmp_path / "page.md"
    harmless = ["A table stands above.", "Weights round to nearest.", "`plain` takes 8 bytes."]
    for one, other in itertools.permutations(names, 2):
        for word in words:
            wrong = f"{one} {word} {other} at 1e-3."
            text = [*draw.sample(harmless, 2), wrong, draw.choice(harmless)]
            page.write_text(draw.choice(["\n\n", " ", "\n- "]).join(text) + "\n```\n`plain` is better\n```\n")
            (found,) = claims.unsupported(page)
            assert wrong.rstrip(".") in found or wrong in found
    page.write_text(" ".join(harmless))
    assert claims.unsupported(page) == []


def test_the_control_is_not_told_from_what_it_controls():
    assert claims.Claim("README.md", "", "own_rates", 0, claims.own("split-master")).errors() == []
