"""Steps of one optimizer of some size, in a process of its own, whose memory is measured: prints JSON.

It is started by `tests.benchmarks.sizes`.
"""

from __future__ import annotations

import json
import mmap
import os
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from timeit import repeat
from typing import Any

import numpy as np

import mcfsim as mcf
from tests.optim.stored import Made

_RATE = 1e-3
#: Bytes that a plain copy reads and writes at once.
_AT_ONCE = 1 << 24


def tensors(parameters: int, seed: int) -> dict[str, Any]:
    """Return synthetic weights, or gradients, of GPT's shape: 24 layers, and an embedding of what is left."""
    layer: dict[str, tuple[int, ...]]
    width = max(8, int((parameters / (24 * 13)) ** 0.5) // 8 * 8)
    layer = {"attention": (width, 3 * width), "projection": (width, width), "up": (width, 4 * width)}
    layer |= {"down": (4 * width, width), "gain": (width,)}
    shapes = {f"{place}.{name}": shape for place in range(24) for name, shape in layer.items()}
    rest = parameters - sum(int(np.prod(shape)) for shape in shapes.values())
    return {name: Made(shape, seed) for name, shape in {"embedding": (rest,), **shapes}.items()}


def optimizer(parameters: int, **options: Any) -> tuple[mcf.Optimizer, Any]:
    """Return an optimizer under Collage-plus, on codes, and a gradient for it."""
    weights = tensors(parameters, 1)
    decayed = [name for name in weights if not name.endswith("gain")]
    made = mcf.Optimizer(
        mcf.AdamW(), mcf.strategy("collage-plus"), weights, decayed, packed=True, steps=10, **options
    )
    return made, made.receive(tensors(parameters, 2))


def state_bytes(made: mcf.Optimizer, gradient: Any) -> int:
    return sum(x.nbytes for items in made.state for x in items) + int(gradient.nbytes)


def in_memory(parameters: int, threads: int) -> dict[str, Any]:
    """Time steps, and measure the most memory that the process has held."""
    made, gradient = optimizer(parameters, threads=threads, compiled=True)
    made.advance(gradient, _RATE)  # the first is not counted
    repeats = max(3, min(51, 5 * 10**7 // parameters))
    rounds = 3 if parameters < 10**9 else 1
    step = partial(made.advance, gradient, _RATE)
    taken = min(median(repeat(step, number=1, repeat=repeats)) for _ in range(rounds))
    state, most = state_bytes(made, gradient), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"parameters": parameters, "seconds": taken, "state": state, "beyond": most - state}


def in_files(parameters: int, threads: int, folder: str) -> dict[str, Any]:
    """Time a step of a state in files, from the disk and to it, and a plain copy of the same bytes."""
    made, gradient = optimizer(parameters, threads=threads, compiled=True, folder=folder)
    files = sorted(Path(folder).glob("*.npy"))
    maps = [_map_of(x) for x in (gradient, *(x for items in made.state for x in items))]
    state = state_bytes(made, gradient)

    def step() -> None:
        made.advance(gradient, _RATE)
        for path in files:
            _written(path)

    def copy() -> None:
        """Read all, and write as much as a step writes."""
        for path in files:
            _copy(path, None if path.name.startswith("gradient") else path.with_suffix(".copy"))

    with _cold(maps, files):
        step()  # the first is not counted
    with _cold(maps, files) as taken:
        step()
    with _cold(maps, files) as copied:
        copy()
    usage = resource.getrusage(resource.RUSAGE_SELF)
    found = {"parameters": parameters, "seconds": taken[0], "state": state, "copy": copied[0]}
    return found | {"faults": usage.ru_majflt, **_memory()}


def _map_of(x: Any) -> mmap.mmap:
    while not isinstance(x, mmap.mmap):
        x = x.base
    return x


@contextmanager
def _cold(maps: list[mmap.mmap], files: list[Path]) -> Iterator[list[float]]:
    """Time something that finds nothing of the files in memory."""
    for one in maps:
        one.madvise(mmap.MADV_DONTNEED)  # what is mapped the system does not forget
    for path in files:
        _written(path)
    taken: list[float] = []
    start = time.perf_counter()
    yield taken
    taken.append(time.perf_counter() - start)


def _written(path: Path) -> None:
    """Wait until a file lies on the disk, and let the system forget it."""
    handle = os.open(path, os.O_RDWR)
    os.fsync(handle)
    os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(handle)


def _copy(source: Path, target: Path | None) -> None:
    buffer = memoryview(bytearray(_AT_ONCE))
    with open(source, "rb", buffering=0) as given, open(target or os.devnull, "wb", buffering=0) as made:
        while count := given.readinto(buffer):
            made.write(buffer[:count])
    if target is not None:
        _written(target)
        target.unlink()


def _memory() -> dict[str, int]:
    """Return the bytes of the process's own memory, and of files that it has mapped, by Linux."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {name: int(lines[name].split()[0]) * 1024 for name in ("VmData", "RssAnon", "RssFile")}


def main() -> None:
    asked = json.loads(sys.argv[1])
    if limit := asked.pop("limit", None):
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    work = in_files if "folder" in asked else in_memory
    print(json.dumps(work(**asked)))


if __name__ == "__main__":
    main()
