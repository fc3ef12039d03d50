"""Steps whose changes are recorded, beside the same steps unrecorded, in turn: ten million parameters.

This measures and tests nothing.
"""

from __future__ import annotations

import time
from statistics import median
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import mcfsim as mcf
from experiments.common import write_result
from mcfsim.torch import AdamW, changes
from tests.benchmarks import timing
from tests.benchmarks.timing import about
from tests.benchmarks.torch_steps import parameters

PARAMETERS, REPEATS, WARM = 10**7, 7, 3
STRATEGIES = ("plain", "collage-plus", "fp32-master", "fp32")
#: A rate of post-training, and one of pre-training.
RATES = (3e-6, 1e-3)


def measured(name: str, rate: float) -> dict[str, Any]:
    """Return nanoseconds of a parameter's step, of the thread alone, medians; and the share that changed."""
    fmt = mcf.strategy(name).parameter.format
    assert fmt is not None
    given = parameters(PARAMETERS, getattr(torch, fmt.name))
    gradients = [[torch.randn_like(p) * 1e-3 for p in given] for _ in range(4)]
    optimizer = AdamW(given, lr=rate, weight_decay=0.0, strategy=name)
    row: dict[str, Any] = {"strategy": name, "rate": rate}
    for way, kept in (("recorded", False), ("before", True)):
        recorder = changes(optimizer, before=kept)
        times: dict[bool, list[float]] = {False: [], True: []}
        for turn in range(2 * (WARM + REPEATS)):
            seen = bool(turn % 2)
            optimizer.watches[:] = [recorder] * seen
            for p, x in zip(given, gradients[turn // 2 % 4], strict=True):
                p.grad = x
            begun = time.thread_time()
            optimizer.step()
            times[seen].append(1e9 * (time.thread_time() - begun) / PARAMETERS)
            if seen and turn // 2 == WARM:
                row.setdefault("changed", recorder.share())
            recorder.clear()
        row.setdefault("ns", median(times[False][WARM:]))
        row[way] = median(times[True][WARM:])
        optimizer.watches.clear()
    return row


def main() -> None:
    parser = timing.parser(__doc__)
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows = [measured(name, rate) for name in STRATEGIES for rate in RATES]
    table = Table(*rows[0])
    for row in rows:
        table.add_row(*(x if isinstance(x, str) else f"{x:.3g}" for x in row.values()))
    Console().print(table)
    if given.write:
        versions = about("torch", "llvmlite")
        write_result("recorded_steps", {"versions": versions, "parameters": PARAMETERS, "steps": rows})


if __name__ == "__main__":
    main()
