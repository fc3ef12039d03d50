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

ROOT = Path(__file__).parents[2]
#: How many processes share the mutants of a module.
PARTS = 2

#: Mutants that the campaign lets live, and why each is as good as the text.
ALIVE: dict[str, dict[str, str]] = {}


def tried(module, part):
    """Return the fate of mutants, by what was altered."""
    command = [sys.executable, "-m", "tests.theorems.campaign.mutants", module, str(part), str(PARTS)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    return dict(map(json.loads, done.stdout.splitlines()))


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("module", TRIED)
def test_every_mutant_is_noticed_or_known_to_be_as_good(module, part):
    found = tried(module, part)
    assert found.keys() == {mutant.what for mutant in chosen(module)[part::PARTS]}
    alive = {what for what, problem in found.items() if not problem}
    known = ALIVE.get(module, {}).keys() & found.keys()
    assert alive - known == set(), "not noticed"
    assert known - alive == set(), "excused, though it is noticed"


def test_enough_is_altered_and_what_is_excused_is_altered():
    assert sum(len(chosen(module)) for module in TRIED) >= 60
    assert {"domain", "exact"} <= TRIED.keys()
    for module, known in ALIVE.items():
        assert known.keys() <= {mutant.what for mutant in chosen(module)}


@pytest.mark.parametrize("module", TRIED)
def test_mutants_are_other_texts_of_one_name_each(module):
    made = mutants(module)
    assert len({mutant.what for mutant in made}) == len(made) == len({mutant.source for mutant in made})
    text = path_of(module).read_text()
    assert all(mutant.source != text for mutant in made)
    for mutant in made:
        compile(mutant.source, module, "exec")
