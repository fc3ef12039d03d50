"""Gradients that several processes reduce by gloo: the same numbers in each run, and what came of them."""

from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
#: The last is of more than two segments for each of some ranks, which gloo makes no longer than 2**20 bytes.
SIZES = (1, 2, 3, 7, 16, 63, 1000, 65537, 300000, 2200000)


def cases(ranks):
    """Return dtypes and sizes, the last of them where its segments are not those of a shorter one."""
    longest = 2 * ranks * 2**20
    found = product(DTYPES, SIZES)
    return [x for x in found if x[1] < SIZES[-1] or x[1] * DTYPES[x[0]].itemsize > longest]


@cache
def part(rank, size):
    """Return a rank's numbers, of many magnitudes, which partly cancel those of other ranks; many recur."""
    random, count = np.random.default_rng([rank, size]), min(size, 65537)
    x = random.standard_normal(count) * 2.0 ** random.integers(-6, 4, count)
    shared = np.random.default_rng(size).standard_normal(count) * 8
    return torch.from_numpy(np.resize(x + (-1) ** rank * shared, size))


def work(rank, folder, ranks):
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting of {ranks}", rank=rank, world_size=ranks
    )
    found = {}
    for name, size in cases(ranks):
        x = part(rank, size).to(DTYPES[name])
        mean = x / ranks  # as DistributedDataParallel does
        dist.all_reduce(x)
        dist.all_reduce(mean)
        found[f"{name} {size}"] = x.float().numpy()
        found[f"{name} {size} mean"] = mean.float().numpy()
    if rank == ranks - 1:
        np.savez(Path(folder) / f"found by {ranks}.npz", **found)
    dist.destroy_process_group()
