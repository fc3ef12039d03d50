"""Where results and figures go, and the environment that a result depends on."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from mcfsim.storage.files import write_text
from mcfsim.storage.sweeps.installed import DIGEST, blas, versions

ROOT = Path(__file__).resolve().parent.parent
FIGURES = ROOT / "figures"
#: The pages of the documentation.
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
RESULTS = ROOT / "experiments" / "results"
#: Processes that share the runs; each computes on one thread.
WORKERS = 2


def write_result(name: str, result: dict[str, Any]) -> None:
    """Write a result file, numbers to six digits, with the versions of all that computed it.

    ``versions`` has Python, the machine, this package with a digest of its source, NumPy, mpmath, and the
    kernel of its BLAS; a result may add others. A file that would change only in its versions is left as it
    is, so that a rerun shows real differences, and a file names the versions that first gave its numbers.
    """
    RESULTS.mkdir(parents=True, exist_ok=True)
    computed = {**versions(), "source": DIGEST, "blas": blas(), **result.get("versions", {})}
    path, result = RESULTS / f"{name}.json", {**_shorten(result), "versions": computed}
    with suppress(FileNotFoundError, ValueError):  # none yet, or damaged
        before = read_result(name)
        named = before.get("versions", {}).keys() >= computed.keys() - {"source"}
        if named and _numbers(before) == _numbers(result):
            return
    write_text(path, _text(result))


def _text(result: dict[str, Any]) -> str:
    return json.dumps(result, indent=1) + "\n"


def _numbers(result: dict[str, Any]) -> str:
    """Return a result as text without its versions, wherever these stand in it."""
    return _text({name: x for name, x in result.items() if name != "versions"})


def read_result(name: str) -> dict[str, Any]:
    """Read what `write_result` wrote."""
    result: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return result


def in_processes(
    function: Callable[..., Any],
    jobs: Iterable[tuple[Any, ...]],
    keep: Callable[[tuple[Any, ...], Any], None] | None = None,
) -> list[Any]:
    """Return ``function(*job)`` for every job, in order, computed in processes; with a progress bar.

    The result of a job is passed to ``keep(job, result)`` as soon as it is ready.
    """
    from rich.progress import Progress

    jobs = list(jobs)
    with ProcessPoolExecutor(WORKERS) as pool, Progress() as progress:
        bar = progress.add_task(function.__name__.replace("_", " "), total=len(jobs))
        tasks = [pool.submit(function, *job) for job in jobs]
        for task in tasks:
            task.add_done_callback(lambda _: progress.advance(bar))
        if keep is not None:
            job_of = dict(zip(tasks, jobs, strict=True))
            for task in as_completed(tasks):
                keep(job_of[task], task.result())
        return [task.result() for task in tasks]


def resumed(name: str, function: Callable[..., Any], jobs: Iterable[tuple[Any, ...]]) -> list[Any]:
    """Return ``function(*job)`` for every job, in order, as JSON data, computed in processes by a sweep.

    Finished jobs are kept in ``build/NAME.journal``. A sweep that was stopped, or is called again, continues
    from there, unless the package, the function, what it calls and reads, or the kernel of BLAS has changed.

    Parameters
    ----------
    name : str
        Of the sweep.
    function : callable
        A function of a module, which depends on its arguments alone and returns JSON data.
    jobs : iterable of tuple
        Arguments, which differ.
    """
    from mcfsim.storage.sweeps.reached import digest
    from mcfsim.storage.sweeps.sweep import Job, Sweep

    kernel = blas()
    made = [
        Job(
            digest([("the function", function), ("the arguments", job), ("the kernel of BLAS", kernel)]),
            name,
            partial(_only, function, job),
            [(0, 1)],
        )
        for job in jobs
    ]
    journal = ROOT / "build" / f"{name}.journal"
    journal.parent.mkdir(exist_ok=True)
    with Sweep(WORKERS, journal=journal, progress=True) as sweep:
        return [result for _, (result,) in sweep.run(made)]


def _only(function: Callable[..., Any], job: tuple[Any, ...], start: int, stop: int) -> Any:
    """Return the result of a job, which has one unit."""
    return function(*job)


def processor() -> str:
    """Return the processor's name, as far as the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def each_float(data: Any, change: Callable[[float], Any]) -> Any:
    """Return data with every float changed; tuples become lists."""
    if isinstance(data, dict):
        return {key: each_float(item, change) for key, item in data.items()}
    if isinstance(data, list | tuple):
        return [each_float(item, change) for item in data]
    return change(data) if isinstance(data, float) else data


def _shorten(data: Any) -> Any:
    return each_float(data, lambda number: float(f"{number:.6g}"))


def versions_of(about: dict[str, Any]) -> str:
    """Return the versions of the packages that a benchmark ran with, where they were installed."""
    names = ("Numba", "llvmlite", "NumPy", "ml_dtypes", "gfloat", "pychop", "torch", "Python")
    return ", ".join(f"{name} {about[name.lower()]}" for name in names if name.lower() in about)
