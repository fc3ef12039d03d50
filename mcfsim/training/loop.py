"""The steps of a run: all strategies, each on the same gradients or from the same start."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from mcfsim.checks.arguments import whole_number
from mcfsim.storage.files import check_outputs
from mcfsim.storage.space import check_space
from mcfsim.training.checkpoint import Checkpoint
from mcfsim.training.record import Run, blas, versions
from mcfsim.training.setup import Setup
from mcfsim.training.trainer import Trainer, record_distances


def carry_out(
    setup: Setup,
    checkpoint: str | os.PathLike[str] | None,
    checkpoint_every: Any,
    output: str | os.PathLike[str] | None,
    progress: bool | None,
    label: str,
) -> Run:
    """Make the steps of a run, or those that its checkpoint lacks, and return what was recorded.

    Parameters
    ----------
    setup : Setup
        What the run is a function of.
    checkpoint, checkpoint_every, output, progress
        As of `mcfsim.simulate`.
    label : str
        What the bar calls it.

    Raises
    ------
    TypeError, ValueError
        As `mcfsim.simulate` does.
    """
    from threadpoolctl import threadpool_limits

    every = whole_number("checkpoint_every", checkpoint_every, least=1)
    check_outputs({"checkpoint": checkpoint, "output": output})
    trainers = {name: Trainer(setup.source, one) for name, one in setup.optimizers().items()}
    run = Run(setup.settings(), {**versions(), "blas": blas()})
    # One thread of BLAS sums in one order, whatever the machine has, and is faster on small matrices.
    # A run that diverges shows it in its series, not by warnings.
    with threadpool_limits(limits=1), np.errstate(over="ignore", invalid="ignore"):
        measures: dict[str, list[str]] = {}
        if checkpoint is not None or output is not None:
            exact = any(trainer.exact for trainer in trainers.values())
            measures = {name: trainer.measures(setup, exact) for name, trainer in trainers.items()}
        if output is not None:
            numbers = setup.recorded(setup.steps) * sum(map(len, measures.values()))
            check_space(output, numbers * np.dtype(np.float64).itemsize)
        saved = None if checkpoint is None else Checkpoint(checkpoint, run, setup, trainers, measures)
        first = 1 if saved is None else saved.resume() + 1
        shown = sys.stderr.isatty() if progress is None else progress
        try:
            with steps_shown(label, first, setup.steps, shown) as steps:
                for t in steps:
                    for trainer in trainers.values():
                        trainer.step(t, setup)
                    if setup.records(t):
                        record_distances(trainers.values())
                    if saved is not None:
                        saved.keep(t)
                        if t % every == 0 or t == setup.steps:
                            saved.save()
        except KeyboardInterrupt:
            if saved is not None:
                saved.save()
            raise
        run.steps = np.array(list(filter(setup.records, range(1, setup.steps + 1))), dtype=np.int64)
        for name, trainer in trainers.items():
            run.series[name] = {measure: np.array(numbers) for measure, numbers in trainer.series.items()}
            run.results[name] = trainer.results()
    if output is not None:
        run.save(output)
    return run


@contextmanager
def steps_shown(label: str, first: int, last: int, shown: bool) -> Iterator[Iterable[int]]:
    """Give the steps from the first to the last, with a bar on stderr if that is wanted.

    The bar says which step it is, of how many, how many a second, and the time left. Steps before the first
    count as made, and say nothing of the speed.
    """
    steps = range(first, last + 1)
    if not shown:
        yield steps
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        Task,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    class Speed(ProgressColumn):
        def render(self, task: Task) -> Text:
            speed = task.finished_speed or task.speed
            return Text("" if speed is None else f"{speed:.3g} steps/s", style="progress.data.speed")

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        Speed(),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(label, total=last, completed=first - 1)

        def counted() -> Iterator[int]:
            for step in steps:
                yield step
                progress.advance(task)

        yield counted()
