"""Would the campaign notice? The verifier's text altered place by place: it must, or it is said why not.

What alterations there are is said in `campaign.mutants`, which tries a systematic sample of them.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.theorems.campaign.mutants import TRIED, chosen, mutants, path_of

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]

#: Mutants that the campaign lets live, by how they begin, and why each is as good as the text.
ALIVE: dict[str, dict[str, str]] = {
    "exact": {
        "Exact.of: if least >>": "last zeros stay in the integers, which are held by the bits that they have",
        "Exact.of: 1 -> 2 (7)": "one bit more in a bound, of numbers in the lowest binades",
        "Exact.ratio: if isinstance(shift, int)": "both ways multiply by a power of two, and round once",
        "Exact._aligned: 0 -> 1": "zeros are shifted, and are zeros still",
        "_hold: 62 -> 63": "an integer of 63 bits fits int64, too",
        "_leading: 62 -> 63": "less is cut off of a number before it is rounded to binary64",
    },
    "symmetries": {
        "_SignReader._together: 2 -> 3": "statements here have two operands",
        "_SignReader._of: True -> False": "both have a sign for each operand",
    },
    "two_words": {
        "TwoWords.product: 0 -> 1": "a product by zero is zero, with either sign",
        "TwoWords.__lshift__: shifted._shifted(rest) if": "a shift by nothing changes nothing",
        "lengths: n & _HALF_MASK": "the lower half counts where there is no upper one",
    },
    "domain": {
        "cover: whole is None": "all operands are not asked for here",
        "cover: narrow or not values": "formats here have few bits",
        "cover: 16 -> 17 (2)": "random operands, on which nothing rests",
        "cover: if whole is not None and whole.size <= most": "every core is small enough here",
        "cover: 8 -> 9 (2)": "a limit of cost",
        "_complete: 16 -> 17": "a limit of cost",
        "_complete: 40 -> 41": "a limit of cost",
        "_known: if witness is not None": "no statement here has a known counterexample",
    },
    "cells": {
        "packed: 1 << 62 -> 1": "no two ends give one of the numbers of places that do not matter",
        "_apart: cells.format.emin + cells.format.precision": "a margin that no claim here asks about",
        "core: fmt.emin - 1 -> fmt.emin": "the least normal numbers may be in the class of zero",
        "grouped: classes - (fmt.emin": "which of equivalent pairs comes first",
        "_all: x is scales.quantities[-1]": "no claim compares what is rounded up from its bounds otherwise",
    },
    "reach": {
        "asked: reader.inside if": "no claim here is read in part, and asks that near the ends alone",
        "_Reader._read: self._term(x)": "what is refused there is refused elsewhere, too",
        "_Reader._exponents: self._note": "no claim here asks for the exponent of what underflows",
        "_Exponents.moves: 0 -> 1": "if exponents move, both of their ends do",
        "_against: not decided": "no claim here is decided at a constant that a number just reaches",
    },
    "homogeneity": {"scales_of: 1 -> 2": "of words in several components the cases here try no core"},
    "cores": {
        "core_of_values: [SIGN] if positive[0] else []": "what is said of reductions, no operand",
        "core_of_values: reductions.append(GAP": "what is said of reductions, no operand",
        "core_of_values: 2 -> 3 (2)": "of three operands, which no core covers",
        "core_of_values: min(middle + high": "of three operands, which no core covers",
        "core_of_values: 0 -> 1 (3)": "of three operands, which no core covers",
        "core_of_values: known and": "claims here ask beyond the gaps what they ask at them",
        "core_of_values: pairs and gradual": "no claim here fails by flushed sums of numbers far apart",
        "_apart_alike: if question.everywhere": "claims here ask beyond the gaps what they ask at them",
        "_apart_alike: 0 -> 1": "operands of one exponent are alike at either end",
        "_apart_alike: max(gap, last) + 1": "one gap less is looked at, of many that are alike",
        "_apart_alike: first + apart": "claims here ask beyond the gaps what they ask at them",
        "positive_stands: if rounding.mode": "no claim here is false of negative operands alone",
    },
}


def tried(module):
    """Return the fate of a module's mutants, by what was altered."""
    command = [sys.executable, "-m", "tests.theorems.campaign.mutants", module, *excused(module)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    return dict(map(json.loads, done.stdout.splitlines()))


def excused(module):
    """Return the mutants that may live: of each excuse the one that is called so, or begins so."""
    names = [mutant.what for mutant in chosen(module)]
    begun = {start: [what for what in names if what.startswith(start)] for start in ALIVE.get(module, {})}
    assert all(start in found or len(found) == 1 for start, found in begun.items())
    return {start if start in found else found[0] for start, found in begun.items()}


@pytest.mark.exhaustive
@pytest.mark.minutes
@pytest.mark.parametrize("module", TRIED)
def test_every_mutant_is_noticed_or_known_to_be_as_good(module):
    found = tried(module)
    assert found.keys() == {mutant.what for mutant in chosen(module)}
    alive = {what for what, problem in found.items() if not problem}
    known = excused(module)
    assert alive - known == set(), "not noticed"
    assert known - alive == set(), "excused, though it is noticed"


def test_enough_is_altered_and_what_is_excused_is_altered():
    assert sum(len(chosen(module)) for module in TRIED) >= 60
    assert {"domain", "exact"} <= TRIED.keys()
    for module, known in ALIVE.items():
        assert len(excused(module)) == len(known)


@pytest.mark.parametrize("module", TRIED)
@pytest.mark.sampled(10, each=False)
def test_mutants_are_other_texts_of_one_name_each(module):
    assert len({mutant.what for mutant in mutants(module)}) == len(mutants(module))
    made = chosen(module)
    assert len({mutant.source for mutant in made}) == len(made)
    text = path_of(module).read_text()
    assert all(mutant.source != text for mutant in made)
    for mutant in made:
        compile(mutant.source, module, "exec")
