"""The progress bar of a sweep."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import nullcontext
from typing import TypeVar

from rich.console import Console
from rich.filesize import pick_unit_and_suffix
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.table import Column
from rich.text import Text

from mcfsim.checks import printable

#: Seconds over which the speed is averaged: units may take minutes.
_PERIOD = 600.0


class Bar(Progress):
    """A progress bar on stderr: current job, operands done, operands per second, time left."""

    def __init__(self, *, transient: bool = False) -> None:
        super().__init__(
            TextColumn(
                "{task.description}",
                markup=False,
                table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis"),
            ),
            BarColumn(bar_width=20),
            _Done(table_column=Column(no_wrap=True)),
            _Speed(table_column=Column(no_wrap=True)),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            speed_estimate_period=_PERIOD,
            expand=True,
            transient=transient,
        )
        self._one = self.add_task("", total=0)

    def expect(self, operands: int) -> None:
        """Add operands to the total."""
        self.update(self._one, total=(self.tasks[0].total or 0) + operands)

    def label(self, text: str) -> None:
        """Show the name of the current job."""
        self.update(self._one, description=printable(text))

    def skip(self, operands: int) -> None:
        """Count operands of an earlier run as done, without effect on the speed."""
        self.tasks[0].completed += operands

    def count(self, operands: int) -> None:
        """Count operands as done."""
        self.advance(self._one, operands)


Made = TypeVar("Made")


def one_by_one(answers: Iterator[Made], expected: int, label: str) -> Iterator[Made]:
    """Yield answers in turn; on a terminal, a bar on stderr shows their number while the next is computed."""
    bar = Bar(transient=True) if sys.stderr.isatty() else None
    if bar is not None:
        bar.expect(expected)
        bar.label(label)
    while True:
        with nullcontext() if bar is None else bar:
            found = next(answers, None)
        if found is None:
            return
        if bar is not None:
            bar.count(1)
        yield found


class _Done(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(f"{_short(task.completed)}/{_short(task.total or 0)}", style="progress.download")


class _Speed(ProgressColumn):
    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{_short(speed)}/s", style="progress.data.speed")


def _short(number: float) -> str:
    """Return a number as text of about three digits, such as 123 M."""
    unit, suffix = pick_unit_and_suffix(int(number), ["", " k", " M", " G", " T", " P", " E"], 1000)
    return f"{number / unit:.{0 if unit == 1 or number >= 100 * unit else 1}f}{suffix}"
