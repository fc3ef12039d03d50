"""Sweeps: a function evaluated on ranges of an index by any workers, with results in order."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Literal

from mcfsim.checks import check_flag, check_int
from mcfsim.storage.sealed import parse
from mcfsim.storage.sweeps.journal import Journal
from mcfsim.storage.sweeps.workers import Work, Workers, open_workers

if TYPE_CHECKING:
    from mcfsim.storage.sweeps.progress import Bar


Result = dict[str, Any]

#: How often a unit is started before the sweep gives up, if its worker dies each time.
ATTEMPTS = 3
#: How many ranges an error lists.
_NAMED = 16


@dataclass(frozen=True)
class Job:
    """One function to evaluate on ranges of an index.

    Attributes
    ----------
    key : str
        Identifies the job in a journal: a digest of everything that its results depend on.
    label : str
        Its name in the progress bar and in errors.
    work : callable
        ``work(start, stop)`` returns JSON data, the same at every call. Several workers call it at once. For
        processes and Dask it must survive pickling, by cloudpickle if that is installed.
    units : sequence of (int, int)
        Ranges ``[start, stop)`` of the index. Each should take between a fraction of a second and minutes.
    validate : callable, optional
        ``validate(start, stop, result)`` raises ValueError if `result` cannot be that of the range. Nothing
        that comes from a journal or another process is taken on trust.

    Raises
    ------
    TypeError, ValueError
        If `work` is not callable, or a unit is not a range of integers.
    """

    key: str
    label: str
    work: Work
    units: Sequence[tuple[int, int]]
    validate: Callable[[int, int, Any], None] | None = None

    def __post_init__(self) -> None:
        if not callable(self.work):
            raise TypeError(f"{self.label}: work must be callable, not {self.work!r}")
        for unit in self.units:
            if len(unit) != 2 or not all(isinstance(end, int) for end in unit):
                raise TypeError(f"{self.label}: units are pairs of int, not {unit!r}")
            if not unit[0] < unit[1]:
                raise ValueError(f"{self.label}: unit {unit!r} is empty; start must be less than stop")


class Sweep:
    """Workers, a journal and a progress bar, for the duration of a ``with`` statement.

    Parameters
    ----------
    workers : int, optional
        How many threads or processes; with 1, everything runs in the calling thread.
    kind : {"threads", "processes"}, optional
        Threads share one interpreter. They are as fast as processes only where NumPy does the work, on large
        blocks. Processes are spawned, so a script needs ``if __name__ == "__main__":``.
    dask : str, optional
        Address of the scheduler of a Dask cluster to use instead, such as ``"tcp://host:8786"``. The cluster
        then sets the number of workers. Needs the extra ``dask``.
    journal : path, optional
        File that keeps results as they come, see `mcfsim.storage.sweeps.journal.Journal`.
    resume : bool, optional
        Whether to take results that the journal has for the same key and range, and compute only the others.
        This is the default. False deletes the journal's results of the jobs that are run.
    progress : bool, optional
        Show a bar on stderr.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range, no Dask scheduler answers, one of its workers has another mcfsim, or
        the file is no journal or is in use.
    ImportError
        If Dask is asked for and not installed.

    Attributes
    ----------
    resumed : int
        How many operands were taken from the journal so far.
    """

    def __init__(
        self,
        workers: int = 1,
        *,
        kind: Literal["threads", "processes"] = "processes",
        dask: str | None = None,
        journal: str | os.PathLike[str] | None = None,
        resume: bool | None = None,
        progress: bool = False,
    ) -> None:
        check_int("workers", workers, 1)
        if kind not in ("threads", "processes"):
            raise ValueError(f"unknown kind of workers {kind!r}; known kinds: threads, processes")
        if resume is not None:
            check_flag("resume", resume)
        if resume and journal is None:
            raise ValueError("resume needs the journal of the run to resume")
        self._asked = (workers, kind, dask)
        self._path, self._resume, self._shown = journal, resume is not False, progress
        self.resumed = 0
        self._workers: Workers | None = None
        self._journal: Journal | None = None
        self._bar: Bar | None = None

    @property
    def has_journal(self) -> bool:
        """Whether results are kept in a journal."""
        return self._path is not None

    def __enter__(self) -> Sweep:
        with ExitStack() as stack:
            if self._path is not None:
                self._journal = stack.enter_context(Journal(self._path))
            self._workers = open_workers(*self._asked)
            stack.push(self._end_workers)
            if self._shown:
                from mcfsim.storage.sweeps.progress import Bar

                self._bar = stack.enter_context(Bar())
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def run(self, jobs: Iterable[Job]) -> Iterator[tuple[Job, list[Result]]]:
        """Yield each job with its results, one per unit, in the order of jobs and units.

        Units of later jobs start while the last ones of an earlier job run. All results pass through JSON,
        whatever the workers: tuples become lists, and keys strings.

        Parameters
        ----------
        jobs : iterable of Job
            Their keys must differ.

        Yields
        ------
        job : Job
            One of `jobs`.
        results : list of dict
            ``work(*unit)`` for each unit.

        Raises
        ------
        RuntimeError
            If work raises an exception, which is chained, or returns no JSON data; or if a unit's worker dies
            `ATTEMPTS` times (for Dask, each time as often as its scheduler allows). The message names job
            and range, and no further unit starts. Also if called outside the ``with`` statement.
        ValueError
            If keys are equal, work must be pickled but cannot be, or a row of the journal is no result of its
            range.
        ConnectionError
            If the Dask scheduler is lost. Finished units are in the journal.
        """
        if self._workers is None:
            raise RuntimeError("a Sweep runs inside its with statement")
        given = list(jobs)
        if len({job.key for job in given}) < len(given):
            raise ValueError(f"jobs must have different keys: {', '.join(job.key for job in given)}")
        if self._journal and not self._resume:
            self._journal.drop(job.key for job in given)
        if self._bar:
            self._bar.expect(sum(stop - start for job in given for start, stop in job.units))
        return self._run(deque(given), self._workers)

    def _run(self, jobs: deque[Job], workers: Workers) -> Iterator[tuple[Job, list[Result]]]:
        begun: deque[_Begun] = deque()
        waiting: deque[_Unit] = deque()
        running: dict[_Unit, Any] = {}
        settled: SimpleQueue[_Unit] = SimpleQueue()
        try:
            while jobs or begun:
                if begun and self._bar:
                    self._bar.label(begun[0].job.label)
                if begun and begun[0].missing == 0:
                    yield begun[0].job, begun.popleft().results
                elif len(running) < workers.room and waiting:
                    unit = waiting.popleft()
                    running[unit] = workers.submit(unit.owner.packed, unit.start, unit.stop)
                    running[unit].add_done_callback(lambda _, unit=unit: settled.put(unit))
                elif len(running) < workers.room and jobs:
                    job = jobs.popleft()
                    begun.append(_Begun(job, [None] * len(job.units)))
                    waiting += self._begin(begun[-1], workers)
                else:
                    unit = settled.get()
                    try:
                        text = running[unit].result()
                    except workers.lost as problem:
                        unit.attempts += 1
                        if unit.attempts == ATTEMPTS:
                            raise self._gave_up(unit, running) from problem
                        waiting.appendleft(unit)
                    except workers.cut_off as problem:
                        raise ConnectionError(
                            f"{unit}: {workers.cut_off_text}. {self._what_is_kept()}"
                        ) from problem
                    except Exception as problem:
                        raise RuntimeError(f"{unit} failed: {type(problem).__name__}: {problem}") from problem
                    else:
                        self._finish(unit, text)
                    del running[unit]
        finally:
            workers.cancel(running.values())

    def _begin(self, begun: _Begun, workers: Workers) -> list[_Unit]:
        """Take a job's results from the journal, and return the units that it lacks."""
        job, units = begun.job, []
        recorded = self._journal.results(job.key) if self._journal and self._resume else {}
        for index, (start, stop) in enumerate(job.units):
            unit = _Unit(begun, index, start, stop)
            if (start, stop) not in recorded:
                units.append(unit)
                continue
            try:
                unit.settle(recorded[start, stop])
            except ValueError as problem:
                raise ValueError(
                    f"journal {self._path} is damaged: its row of {unit}: {problem}; "
                    "resume=False computes it again"
                ) from problem
            self.resumed += stop - start
            if self._bar:
                self._bar.skip(stop - start)
        begun.missing = len(units)
        if units:
            try:
                begun.packed = workers.pack(job.work)
            except Exception as problem:
                raise ValueError(
                    f"{job.label}: work cannot be sent to another process ({problem}); "
                    'kind="threads" runs it in this one'
                ) from problem
        return units

    def _finish(self, unit: _Unit, text: str) -> None:
        try:
            unit.settle(text)
        except ValueError as problem:
            raise RuntimeError(f"{unit} failed: its result is not valid: {problem}") from problem
        if self._journal:
            self._journal.record(unit.owner.job.key, unit.start, unit.stop, text)
        unit.owner.missing -= 1
        if self._bar:
            self._bar.count(unit.stop - unit.start)

    def _gave_up(self, unit: _Unit, running: Iterable[_Unit]) -> RuntimeError:
        others = [str(other) for other in running if other is not unit]
        beside = "; ".join(others[:_NAMED]) + f" and {len(others) - _NAMED} more" * (len(others) > _NAMED)
        return RuntimeError(
            f"{unit}: workers died {ATTEMPTS} times while this was running, perhaps because memory ran out, "
            'or because a script lacks `if __name__ == "__main__":`. '
            + (f"Also unfinished: {beside}. " if others else "")
            + self._what_is_kept()
        )

    def _what_is_kept(self) -> str:
        if self._journal is None:
            return "No journal was kept."
        return (
            f"The finished units are in the journal {self._path}: the same call goes on from them "
            "(resume=True, the default)."
        )

    def _end_workers(self, *error: object) -> None:
        assert self._workers is not None
        self._workers.close(abandon=error[0] is not None)
        self._workers = None


@dataclass(eq=False)
class _Begun:
    """A started job with results still missing."""

    job: Job
    results: list[Any]
    packed: Any = None
    missing: int = 0


@dataclass(eq=False)
class _Unit:
    owner: _Begun
    index: int
    start: int
    stop: int
    attempts: int = 0

    def __str__(self) -> str:
        return f"{self.owner.job.label}, range [{self.start}, {self.stop})"

    def settle(self, text: str) -> None:
        """Parse, validate and keep the result of the unit."""
        result = parse(text)
        if self.owner.job.validate is not None:
            self.owner.job.validate(self.start, self.stop, result)
        self.owner.results[self.index] = result
