"""Simulations: a problem trained under several storage strategies side by side, and what each loses."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from mcfsim.checks import whole_number
from mcfsim.formats import Format
from mcfsim.optim.declaration import Declaration
from mcfsim.optim.strategies import Strategy
from mcfsim.rounding import Rounding
from mcfsim.storage.files import check_outputs, check_space
from mcfsim.storage.sweeps.installed import blas, versions
from mcfsim.training.checkpoint import Checkpoint
from mcfsim.training.gradients import ComputedGradients, Reduction
from mcfsim.training.problems import Problem
from mcfsim.training.record import Run
from mcfsim.training.schedule import Schedule
from mcfsim.training.setup import PrecisionSchedule, Setup
from mcfsim.training.trainer import DISTANCE, Trainer


# -- the steps of a run -----------------------------------------------------------------------------------
def carry_out(
    setup: Setup,
    checkpoint: str | os.PathLike[str] | None,
    checkpoint_every: Any,
    output: str | os.PathLike[str] | None,
    progress: bool | None,
    label: str,
) -> Run:
    """Make the steps of a run, or those that its checkpoint lacks, and return the record.

    Parameters
    ----------
    setup : Setup
        All that the run depends on.
    checkpoint, checkpoint_every, output, progress
        As for `mcfsim.simulate`.
    label : str
        The label of the progress bar.

    Raises
    ------
    TypeError, ValueError
        As `mcfsim.simulate` does.
    """
    from threadpoolctl import threadpool_limits

    every = whole_number("checkpoint_every", checkpoint_every, least=1)
    check_outputs({"checkpoint": checkpoint, "output": output})
    begun = setup.optimizers()
    trainers = {item.name: Trainer(setup.source, begun[item.name], item) for item in setup.strategies}
    run = Run(setup.settings(), {**versions(), "blas": blas()})
    # One thread of BLAS sums in one order, whatever the machine has, and is faster on small matrices.
    # A run that diverges shows it in its series, not by warnings.
    with threadpool_limits(limits=1), np.errstate(over="ignore", invalid="ignore"):
        measures: dict[str, list[str]] = {}
        if checkpoint is not None or output is not None:
            truth = exact_one(trainers.values())
            measures = {name: x.measures(setup, truth not in (None, x)) for name, x in trainers.items()}
        if output is not None:
            numbers = setup.recorded(setup.steps) * sum(map(len, measures.values()))
            check_space(output, numbers * np.dtype(np.float64).itemsize)
        saved = None if checkpoint is None else Checkpoint(checkpoint, run, setup, trainers, measures)
        if saved is None:  # a checkpoint's fingerprint tries the same
            setup.source.try_out(setup.seed)
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


def exact_one(trainers: Collection[Trainer]) -> Trainer | None:
    """Return the first trainer whose steps are all exact, with which the others are compared."""
    return next((trainer for trainer in trainers if trainer.phases.exact), None)


def record_distances(trainers: Collection[Trainer]) -> None:
    """Record the distance of every other strategy from the exact trajectory, relative to its norm."""
    if (truth := exact_one(trainers)) is None:
        return
    ar: Any = truth.optimizer.roles.parameter
    exact = truth.optimizer.state.parameter[0]
    norm = ar.sqrt((exact * exact).sum())
    for trainer in trainers:
        if trainer is not truth:
            difference = sum((ar.round(item) for item in trainer.optimizer.represented()), -exact)
            trainer.put({DISTANCE: ar.sqrt((difference * difference).sum()) / norm if norm else np.nan})


@contextmanager
def steps_shown(label: str, first: int, last: int, shown: bool) -> Iterator[Iterable[int]]:
    """Enter a context that gives the steps from first to last, with a progress bar on stderr if `shown`.

    The bar shows the step, the number of steps, the speed, and the time left. Steps before the first count as
    made, but not for the speed.
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


# -- simulations ------------------------------------------------------------------------------------------
#: A strategy, its name, or several strategies one after another.
Trained = Strategy | PrecisionSchedule | str
DEFAULT_STRATEGIES: tuple[Trained, ...] = ("plain", "collage-light", "collage-plus", "fp32-master")


def simulate(
    problem: Problem | str,
    optimizer: Declaration | str = "adamw",
    strategies: Sequence[Trained] | Trained = DEFAULT_STRATEGIES,
    steps: int = 300,
    schedule: Schedule | Sequence[float] | None = None,
    seed: int = 0,
    *,
    low: Format | str = "bfloat16",
    clip: float | None = 1.0,
    rounding: Rounding | str = "nearest_even",
    scalars: str = "exact",
    record_every: int = 10,
    truth_sample: int = 0,
    precision: int = 400,
    reduction: Reduction | str | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: int = 100,
    output: str | os.PathLike[str] | None = None,
    progress: bool | None = None,
) -> Run:
    """Train a problem under several strategies, on the same batches from the same start.

    The start is the problem's, rounded to the low format for all. Gradients are computed in the
    problem's precision at the weights that the model sees (the leading component), clipped, and
    rounded into the strategy's gradient format. So strategies differ by the optimizer alone.

    Parameters
    ----------
    problem : Problem or str
        The objective, or its name.
    optimizer : AdamW, SGD, another Declaration, or str, optional
        Hyperparameters, or an optimizer's name for its default ones: ``"adamw"``, ``"sgd"``, or one of
        `mcfsim.optim.declaration.optimizers`.
    strategies : sequence of str, Strategy or PrecisionSchedule, or one of these, optional
        Names of `STRATEGIES` or `GRID_STRATEGIES`, or composed ones, such as ``"kahan+int8"``, or
        declarations; ``"exact"`` trains in mpmath, if the problem can, and then every other strategy's
        distance to it is recorded. A `PrecisionSchedule`, or its text, such as ``"plain,fp32@201"``, changes
        the strategy during the run; a measure that a phase does not have is NaN at its steps.
    steps : int, optional
        Length of the run.
    schedule : Schedule or sequence of float, optional
        The schedule, or one learning rate per step; by default the peak is 3e-4. For a subclass of
        `Schedule`, the run's settings keep the rates of all steps.
    seed : int, optional
        Seed of the start and of the batches. The run is a function of its arguments: the same ones give the
        same bits wherever NumPy multiplies matrices by the same kernel (see `Run.versions`).
    low : Format or str, optional
        The low format of the strategies.
    clip : float or None, optional
        Largest norm of the gradient; a larger gradient is scaled down to it.
    rounding : str or Rounding, optional
        Rounding of the optimizer's operations. Stochastic rounding draws words from the run's seed.
    scalars : {"exact", "rounded", "float32"}, optional
        How hyperparameters enter the optimizer's operations, see `mcfsim.protocol`.
    record_every : int, optional
        Measures are recorded at the first step, at multiples of this, and at the last.
    truth_sample : int, optional
        If positive, the exact update from the same state is computed at each recorded step: in binary64
        for all parameters, and in mpmath for this many of them, to judge binary64.
    precision : int, optional
        Bits of mpmath; 400 are 120 decimal digits.
    reduction : Reduction or str, optional
        Each step reduces the gradients of several batches, of micro-batches or ranks, to one, in a stated
        order and format: a `mcfsim.Reduction`, or its text, such as ``"8,ring,bfloat16"``.
    checkpoint : path, optional
        The run is saved here at its start, so that no other run can take the file, every `checkpoint_every`
        steps, at the last step, and when KeyboardInterrupt (Ctrl-C) ends it. If the file exists, the run
        continues from it, to the same bits.
    checkpoint_every : int, optional
        Steps between two checkpoints.
    output : path, optional
        The run is saved here at its end, see `Run.save`. The room for it is checked before the first step.
    progress : bool, optional
        Show a progress bar on stderr; by default where that is a terminal.

    Returns
    -------
    Run
        ``series``: ``loss`` (of the batch, before the step), ``rate``, ``gradient_norm``, the measures of
        `mcfsim.metrics.measure`, in total and per tensor; ``m_error``, ``m_ratio``, ``v_error``, ``v_ratio``
        against averages of the same gradients in binary64; for weights on a grid ``changed``, ``at_ends`` and
        ``grid_size``, see `mcfsim.optim.on_grid.OnGrid.measures`; with `truth_sample`, ``one_step_error`` of
        E to the exact update, ``update_length`` of D along it, and ``binary64_gap``; ``distance`` to the
        exact trajectory relative to its norm. ``results``: ``validation_loss``; ``bytes_per_parameter``, of
        the phase that takes most; for a strategy that diverged ``diverged_at``; for weights on a grid
        ``clipped_at_start``, the share that lay beyond its ends; if the grid's integers have more than 2 bits
        ``ternary_validation_loss``, with the trained weights put on a grid of 3 values.

    Raises
    ------
    TypeError
        If an argument is of the wrong type, such as a class in place of hyperparameters; or if a custom
        problem or optimizer returns data that a run cannot use or store.
    ValueError
        If an argument is out of range, or a file cannot hold a name; if the checkpoint is of another run or
        another problem's data, is damaged, or cannot be written; or if there is no room for the output.

    Warns
    -----
    VanishingScalarWarning
        If a hyperparameter or a learning rate is zero in the format that it is used in.

    Notes
    -----
    A run continues when a strategy diverges. ``results[strategy]["diverged_at"]`` is the first step that had
    an infinite or NaN loss or gradient, or left such a number in parameters, moments or compensations. It is
    missing if no step did. From then on measures of the update are NaN.
    """
    setup = Setup.of(
        source=ComputedGradients.of(problem, reduction),
        optimizer=optimizer,
        strategies=strategies,
        steps=steps,
        schedule=schedule,
        seed=seed,
        low=low,
        clip=clip,
        rounding=rounding,
        scalars=scalars,
        record_every=record_every,
        truth_sample=truth_sample,
        precision=precision,
    )
    return carry_out(setup, checkpoint, checkpoint_every, output, progress, "training")
