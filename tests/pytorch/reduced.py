"""Gradients that several processes reduce by gloo: the same numbers in each run, and what came of them."""

import itertools
import sys
from functools import cache
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
SIZES = (1, 2, 3, 7, 16, 63, 1000, 65537, 300000, 2500000)
CASES = [*itertools.product(DTYPES, SIZES)]


@cache
def part(rank, size):
    """Return a rank's numbers, of many magnitudes, which partly cancel those of other ranks."""
    random = np.random.default_rng([rank, size])
    x = random.standard_normal(size) * 2.0 ** random.integers(-6, 4, size)
    shared = np.random.default_rng(size).standard_normal(size) * 8
    return torch.from_numpy(x + (-1) ** rank * shared)


def work(rank, folder, ranks):
    dist.init_process_group(
        "gloo", init_method=f"file://{Path(folder) / 'meeting'}", rank=rank, world_size=ranks
    )
    found = {}
    for name, size in CASES:
        x = part(rank, size).to(DTYPES[name])
        mean = x / ranks  # as DistributedDataParallel does
        dist.all_reduce(x)
        dist.all_reduce(mean)
        found[f"{name} {size}"] = x.float().numpy()
        found[f"{name} {size} mean"] = mean.float().numpy()
    if rank == ranks - 1:
        np.savez(Path(folder) / "found.npz", **found)
    dist.destroy_process_group()


if __name__ == "__main__":
    # Copies of one process, which has imported PyTorch once for all and computed nothing.
    torch.multiprocessing.start_processes(
        work, (sys.argv[1], int(sys.argv[2])), int(sys.argv[2]), start_method="fork"
    )
