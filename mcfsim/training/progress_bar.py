"""The progress bar of a run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager


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
