"""The first answers of a new process: ten roundings as the README writes them, beside ten copies.

Each run is a process of its own. *Warm* finds the loop that another one has compiled, *cold* finds nothing.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from rich import print as show
from rich.table import Table

from experiments.common import processor
from tests.benchmarks.timing import REPEATS, SIZE

CALLS = 10
#: What a process calls, and whether it finds the loop.
RUNS = {
    "copy": ("x.copy()", True),
    "NumPy alone": ("mcf.round_to(x, 'bfloat16', compiled=False)", True),
    "cold": ("mcf.round_to(x, 'bfloat16')", False),
    "warm": ("mcf.round_to(x, 'bfloat16')", True),
    "warm, compiled=True": ("mcf.round_to(x, 'bfloat16', compiled=True)", True),
}
#: Seconds after which a loop is compiled that was asked for.
_COMPILED = 5
_TIMED = """
import time
import numpy as np
import mcfsim as mcf
x = np.random.default_rng(0).standard_normal({size}).astype(np.float32)
begun = time.perf_counter()
for _ in range({calls}):
    y = {call}
print(time.perf_counter() - begun)
"""


def seconds(call: str, cache: Path) -> float:
    """Return the time of the calls in a new process with a cache folder."""
    code = _TIMED.format(size=SIZE, calls=CALLS, call=call)
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    said = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True)
    return float(said.stdout)


def main() -> None:
    """Time all runs in turns, and print their medians beside that of the copies."""
    with tempfile.TemporaryDirectory() as folder:
        warm = Path(folder) / "warm"
        seconds(RUNS["warm, compiled=True"][0], warm)
        times: dict[str, list[float]] = {name: [] for name in RUNS}
        for repeat in range(REPEATS):
            for name, (call, finds) in RUNS.items():
                times[name].append(seconds(call, warm if finds else Path(folder) / f"cold{repeat}"))
                time.sleep(0 if finds else _COMPILED)
    table = Table("ten calls of 2^24 elements", "s", "least", "of ten copies", title=processor())
    for name, found in times.items():
        ratio = median(found) / median(times["copy"])
        table.add_row(name, f"{median(found):.3f}", f"{min(found):.3f}", f"{ratio:.2f}")
    show(table)


if __name__ == "__main__":
    main()
