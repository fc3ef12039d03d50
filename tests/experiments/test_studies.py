"""A study that is killed goes on where it was, and its file is the same, byte for byte."""

import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing

import pytest

from experiments import studies
from experiments.common import ROOT

pytestmark = pytest.mark.slow
#: A study as the others are: jobs by `resumed`, some of them chosen by what others gave, and one file.
STUDY = """
import time
from contextlib import closing
from pathlib import Path
import numpy as np
import mcfsim as mcf
from experiments import common
from mcfsim.storage.files import write_text

FOLDER = str(Path(__file__).parent)

def train(rate, seed):
    write_text(f"{FOLDER}/made {rate} {seed}", "")
    time.sleep(0.25)
    problem = mcf.get_problem("quadratic", dimension=3, condition_number=10.0)
    run = mcf.simulate(problem, "adamw", "plain", 5, mcf.Schedule(rate, 1), seed, progress=False)
    return run.results["plain"]["validation_loss"]

if __name__ == "__main__":
    common.ROOT, common.RESULTS = Path(FOLDER), Path(FOLDER) / "results"
    import mine
    rates = [0.01 * 2**k for k in range(4)]
    tried = common.resumed("mine", mine.train, [(rate, 0) for rate in rates])
    best = rates[int(np.argmin(tried))]
    found = common.resumed("mine", mine.train, [(best, seed) for seed in range(1, 6)])
    common.write_result("mine", {"rate": best, "tried": tried, "losses": found})
"""


@pytest.mark.exhaustive
def test_a_study_that_is_killed_goes_on_and_writes_the_same_bytes(tmp_path):
    files = []
    for times in (0, 1):
        folder = tmp_path / f"killed {times} times"
        folder.mkdir()
        (folder / "mine.py").write_text(STUDY)
        place = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(folder)])}
        for left in range(times, -1, -1):
            study = subprocess.Popen(
                [sys.executable, folder / "mine.py"],
                env=os.environ | place,
                start_new_session=True,
                stderr=subprocess.DEVNULL,
            )
            before, kept = made(folder), recorded(folder)
            while left and study.poll() is None and len(made(folder)) < 5:  # the first four have ended then
                time.sleep(0.02)
            if left:
                os.killpg(study.pid, signal.SIGKILL)
            assert study.wait(60) == (-signal.SIGKILL if left else 0)
            again = sum(made(folder)[path] != begun for path, begun in before.items())
            assert again == len(before) - kept, "all that the journal lacks is made again, and nothing else"
            assert kept >= 4 or not before
        files.append((folder / "results" / "mine.json").read_bytes())
        assert len(made(folder)) == 9
    assert files[0] == files[1]


def made(folder):
    """Return when each job last began."""
    return {path: path.stat().st_mtime_ns for path in folder.glob("made *")}


def recorded(folder):
    """Return how many results the journal holds."""
    path = folder / "build" / "mine.journal"
    if not path.exists():
        return 0
    with closing(sqlite3.connect(path)) as journal:
        return journal.execute("SELECT count(*) FROM units").fetchone()[0]


def test_every_study_is_listed_once():
    """What has a `study` is in the list that `make studies` runs."""
    names = {path.stem for path in (ROOT / "experiments").glob("*.py") if "\ndef study()" in path.read_text()}
    listed = [study.__module__.rpartition(".")[2] for study in studies.STUDIES]
    assert len(listed) == len(set(listed))
    assert names <= set(listed)
