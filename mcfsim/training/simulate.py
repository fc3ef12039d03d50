"""A problem trained under several storage strategies side by side, and what each of them loses."""

from __future__ import annotations

import os
from collections.abc import Sequence

from mcfsim.formats import Format
from mcfsim.optim.declaration import Declaration
from mcfsim.optim.strategies import Strategy
from mcfsim.problems import Problem
from mcfsim.rounding import Rounding
from mcfsim.training.loop import carry_out
from mcfsim.training.record import Run
from mcfsim.training.schedule import Schedule
from mcfsim.training.setup import Setup
from mcfsim.training.source import ComputedGradients

DEFAULT_STRATEGIES = ("plain", "collage-light", "collage-plus", "fp32-master")


def simulate(
    problem: Problem | str,
    optimizer: Declaration | str = "adamw",
    strategies: Sequence[Strategy | str] | Strategy | str = DEFAULT_STRATEGIES,
    steps: int = 300,
    schedule: Schedule | None = None,
    seed: int = 0,
    *,
    low: Format | str = "bfloat16",
    clip: float | None = 1.0,
    rounding: Rounding | str = "nearest_even",
    scalars: str = "exact",
    record_every: int = 10,
    truth_sample: int = 0,
    precision: int = 400,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: int = 100,
    output: str | os.PathLike[str] | None = None,
    progress: bool | None = None,
) -> Run:
    """Train a problem under several strategies, on the same batches from the same start.

    The start is the problem's, rounded to the low format for all. Gradients are computed in the
    problem's precision at the weights that the model sees (the leading component), clipped, and
    rounded into the strategy's gradient format; so what differs between strategies is the optimizer alone.

    Parameters
    ----------
    problem : Problem or str
        The objective, or its name.
    optimizer : AdamW, SGD, another Declaration, or str, optional
        Hyperparameters, or a name for the default ones: ``"adamw"``, ``"sgd"``, or one of
        `mcfsim.optim.declaration.optimizers`.
    strategies : sequence of str or Strategy, or one of these, optional
        Names of `STRATEGIES` or `GRID_STRATEGIES`, or declarations; ``"exact"`` trains in mpmath, if the
        problem can, and then every other strategy's distance to it is recorded.
    steps : int, optional
        Length of the run.
    schedule : Schedule, optional
        Learning rates; by default the peak is 3e-4.
    seed : int, optional
        Of the start and of the batches. The run is a function of its arguments: the same ones give the
        same bits, wherever NumPy multiplies matrices by the same kernel (see `Run.versions`).
    low : Format or str, optional
        The low format of the strategies.
    clip : float or None, optional
        Largest norm of the gradient; it is scaled down to that.
    rounding : str or Rounding, optional
        Rounding of the optimizer's operations. Stochastic rounding draws words from the run's seed.
    scalars : {"exact", "rounded"}, optional
        How hyperparameters enter the optimizer's operations, see `mcfsim.protocol`.
    record_every : int, optional
        Measures are recorded at the first step, at multiples of this, and at the last.
    truth_sample : int, optional
        If positive, the exact update from the same state is computed at each recorded step: in binary64
        for all parameters, and in mpmath for so many of them, to judge binary64.
    precision : int, optional
        Bits of mpmath; 400 are 120 decimal digits.
    checkpoint : path, optional
        The run is saved here as it goes: its start, so that no other run can take the place, every so many
        steps, at the last, and when KeyboardInterrupt (Ctrl-C) ends it. If the file is there, the run goes
        on from it, to the same bits.
    checkpoint_every : int, optional
        Steps between two checkpoints.
    output : path, optional
        The run is saved here at its end, see `Run.save`; whether there is room is looked at before the first
        step.
    progress : bool, optional
        Show a progress bar on stderr; by default where that is a terminal.

    Returns
    -------
    Run
        ``series``: ``loss`` (of the batch, before the step), ``rate``, ``gradient_norm``, the measures of
        `mcfsim.metrics.measure`, in total and per tensor; ``m_error``, ``m_ratio``, ``v_error``, ``v_ratio``
        against averages of the same gradients in binary64; of weights on a grid ``changed``, ``at_ends`` and
        ``grid_size``, see `mcfsim.optim.on_grid.OnGrid.measures`; with `truth_sample`, ``one_step_error`` of
        E to the exact update, ``update_length`` of D along it, and ``binary64_gap``; ``distance`` to the
        exact trajectory relative to its norm. ``results``: ``validation_loss``, ``bytes_per_parameter``, and
        of a strategy that diverged ``diverged_at``; of weights on a grid ``clipped_at_start``, the share that
        lay beyond its ends, and if its integers have more than 2 bits ``ternary_validation_loss``, of the
        trained weights put on a grid of 3 values.

    Raises
    ------
    TypeError
        If an argument is of the wrong type, as a class in place of hyperparameters.
    ValueError
        If an argument is out of range; or the checkpoint is of another run or another problem's data, or is
        damaged, or its place cannot be written; or there is no room for the output.

    Warns
    -----
    VanishingScalarWarning
        If a hyperparameter or a learning rate is zero in the format that it is used in.

    Notes
    -----
    A run goes on when a strategy diverges. ``results[strategy]["diverged_at"]`` is the first step whose loss
    or gradient was infinite or NaN, or which left such a number in parameters, moments or compensations;
    without one there is no such result. From then on measures of the update are NaN.
    """
    setup = Setup.of(
        source=ComputedGradients.of(problem),
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
