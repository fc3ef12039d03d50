"""A problem trained under several storage strategies side by side, and what each of them loses."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Any, cast

import numpy as np

from mcfsim.checks.arguments import finite_number, whole_number
from mcfsim.convert import round_to
from mcfsim.formats import Format, get_format
from mcfsim.optim.declaration import Declaration, optimizers
from mcfsim.optim.optimizer import Optimizer, check_hyperparameters
from mcfsim.optim.strategies import Strategy, strategy
from mcfsim.problems import Problem, get_problem
from mcfsim.random import RandomWords
from mcfsim.rounding import Rounding, get_rounding
from mcfsim.training.checkpoint import Checkpoint, fingerprint
from mcfsim.training.record import Run, blas, versions
from mcfsim.training.schedule import Schedule
from mcfsim.training.trainer import Trainer, record_distances

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
        Names of `STRATEGIES` or declarations; ``"exact"`` trains in mpmath, if the problem can, and then
        every other strategy's distance to it is recorded.
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
    progress : bool, optional
        Show a progress bar on stderr; by default where that is a terminal.

    Returns
    -------
    Run
        ``series``: ``loss`` (of the batch, before the step), ``rate``, ``gradient_norm``, the measures of
        `mcfsim.metrics.measure`, in total and per tensor; ``m_error``, ``m_ratio``, ``v_error``, ``v_ratio``
        against averages of the same gradients in binary64; with `truth_sample`, ``one_step_error`` of E
        to the exact update, ``update_length`` of D along it, and ``binary64_gap``; ``distance`` to the
        exact trajectory relative to its norm. ``results``: ``validation_loss``, ``bytes_per_parameter``, and
        of a strategy that diverged ``diverged_at``.

    Raises
    ------
    TypeError
        If an argument is of the wrong type, as a class in place of hyperparameters.
    ValueError
        If an argument is out of range; or the checkpoint is of another run or another problem's data, or is
        damaged, or its place cannot be written.

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
    from threadpoolctl import threadpool_limits

    steps = whole_number("steps", steps, least=1)
    record_every = whole_number("record_every", record_every, least=1)
    checkpoint_every = whole_number("checkpoint_every", checkpoint_every, least=1)
    truth_sample = whole_number("truth_sample", truth_sample, least=0)
    precision = whole_number("precision", precision, least=64)
    seed = whole_number("seed", seed, least=0)
    clip = None if clip is None or clip == np.inf else finite_number("clip", clip)
    if clip is not None and not clip > 0:
        raise ValueError(f"clip = {clip} must be positive, or None")
    if isinstance(optimizer, str):
        if optimizer not in (known := optimizers()):
            raise ValueError(f"unknown optimizer {optimizer!r}; known optimizers: {', '.join(known)}")
        optimizer = known[optimizer]()
    check_hyperparameters(optimizer, "optimizer")
    problem = get_problem(problem) if isinstance(problem, str) else problem
    if isinstance(problem, type) or not isinstance(problem, Problem):
        raise TypeError(f"problem must be a Problem, as mcfsim.get_problem('quadratic'), not {problem!r}")
    low, schedule = get_format(low), Schedule() if schedule is None else schedule
    if not isinstance(schedule, Schedule):
        raise TypeError(f"schedule must be a Schedule, as mcfsim.Schedule(peak=1e-3), not {schedule!r}")
    if isinstance(strategies, Strategy | str):
        strategies = [strategies]
    if not isinstance(strategies, Iterable):
        raise TypeError(f"strategies must be a sequence of names or Strategies, not {strategies!r}")
    chosen = [strategy(item, low) for item in strategies]
    names = [item.name for item in chosen]
    if not names or len(set(names)) < len(names):
        raise ValueError(f"strategies must be at least one, and each named once: {names}")
    if any(item.parameter.format is None for item in chosen) and not problem.exact_capable:
        raise ValueError(f"problem {problem.name!r} cannot be trained in exact arithmetic; leave out 'exact'")

    start = {
        name: round_to(np.asarray(tensor), low) for name, tensor in problem.initial_parameters(seed).items()
    }
    policy = get_rounding(rounding)
    options = {"scalars": scalars, "precision": precision}
    if policy.stochastic:
        options["random"] = RandomWords(seed)
    trainers = {
        item.name: Trainer(problem, Optimizer(optimizer, item, start, problem.decayed, policy, **options))
        for item in chosen
    }
    run = Run(
        settings={
            "problem": problem.settings(),
            "optimizer": {"name": type(optimizer).__name__.lower(), **asdict(cast(Any, optimizer))},
            "strategies": [asdict(item) for item in chosen],
            **{"steps": steps, "schedule": asdict(schedule), "seed": seed, "low": asdict(low), "clip": clip},
            **{
                "rounding": asdict(rounding) if isinstance(rounding, Rounding) else rounding,
                "scalars": scalars,
                "record_every": record_every,
            },
            **{"truth_sample": truth_sample, "precision": precision},
        },
        versions={**versions(), "blas": blas()},
    )
    exact = any(trainer.exact for trainer in trainers.values())

    def recorded(t: int) -> bool:
        return t in (1, steps) or t % record_every == 0

    # One thread of BLAS sums in one order, whatever the machine has, and is faster on small matrices.
    # A run that diverges shows it in its series, not by warnings.
    with threadpool_limits(limits=1), np.errstate(over="ignore", invalid="ignore"):
        first, saved = 1, None
        if checkpoint is not None:
            saved = Checkpoint(
                checkpoint,
                run,
                fingerprint(problem, seed, next(iter(trainers.values())).dtype),
                trainers,
                lambda t: _count_recorded(steps, record_every, t),
                {name: trainer.measures(truth_sample, exact) for name, trainer in trainers.items()},
            )
            first = saved.resume() + 1
        try:
            for t in _steps(range(first, steps + 1), sys.stderr.isatty() if progress is None else progress):
                rate = schedule.rate(t, steps)
                record = recorded(t)
                for trainer in trainers.values():
                    trainer.step(t, seed, rate, clip, record, truth_sample, precision)
                if record:
                    record_distances(trainers.values())
                if saved is not None:
                    saved.keep(t)
                    if t % checkpoint_every == 0 or t == steps:
                        saved.save()
        except KeyboardInterrupt:
            if saved is not None:
                saved.save()
            raise
        run.steps = np.array(list(filter(recorded, range(1, steps + 1))), dtype=np.int64)
        for name, trainer in trainers.items():
            run.series[name] = {measure: np.array(numbers) for measure, numbers in trainer.series.items()}
            run.results[name] = trainer.results()
    return run


def _count_recorded(steps: int, every: int, until: int) -> int:
    """Return how many steps are recorded until one, that included: the first, multiples, and the last."""
    return until // every + (every > 1 <= until) + (until == steps > 1 and steps % every > 0)


def _steps(steps: range, progress: bool) -> Iterable[int]:
    if not progress:
        return steps
    from rich.console import Console
    from rich.progress import track

    show: Callable[..., Iterable[int]] = track
    return show(steps, description="training", console=Console(stderr=True))
