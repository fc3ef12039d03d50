"""The progress bar of a sweep."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.filesize import pick_unit_and_suffix
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.table import Column
from rich.text import Text

from mcfsim.checks import printable

#: Seconds over which the speed is averaged: units may take minutes.
_PERIOD = 600.0


class Bar:
    """A progress bar on stderr: current job, operands done, operands per second, time left."""

    def __init__(self) -> None:
        self._progress = Progress(
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
        )
        self._task = self._progress.add_task("", total=0)

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def expect(self, operands: int) -> None:
        """Add operands to the total."""
        self._progress.update(self._task, total=(self._progress.tasks[0].total or 0) + operands)

    def label(self, text: str) -> None:
        """Show the name of the current job."""
        self._progress.update(self._task, description=printable(text))

    def skip(self, operands: int) -> None:
        """Count operands of an earlier run as done, without effect on the speed."""
        self._progress.tasks[0].completed += operands

    def advance(self, operands: int) -> None:
        """Count operands as done."""
        self._progress.advance(self._task, operands)


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
