"""Commands that train a problem, or replay recorded gradients, under several strategies."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from mcfsim.cli import options
from mcfsim.cli.application import Place, check_checkpoint, command, given, telling_how_to_go_on
from mcfsim.cli.options import KindOptions, with_settings
from mcfsim.formats import get_format
from mcfsim.optim.declaration import optimizers
from mcfsim.report import terminal
from mcfsim.report.terminal import output_width, print_legend, print_rows, say
from mcfsim.training.problems.registry import PROBLEMS
from mcfsim.training.schedule import Schedule

if TYPE_CHECKING:
    from mcfsim.training.record import Run


# -- simulate ---------------------------------------------------------------------------------------------
#: The parts of a run, each with its options.
SCHEDULE = KindOptions(
    "schedule",
    {"cosine": Schedule},
    names={"peak": "lr"},
    meaning={
        "peak": "Peak learning rate.",
        "warmup": "Steps of linear warm-up.",
        "final": "Last rate as a share of the peak.",
    },
)
OPTIMIZER = KindOptions("optimizer", optimizers(), names={"epsilon": "eps"})
PROBLEM = KindOptions(
    "problem",
    PROBLEMS,
    names={"seed": "problem_seed"},
    meaning={
        "seed": "Which one it is.",
        "l2": "Penalty.",
        "batch": "Sequences or images in a batch.",
        "format": "What the model computes in.",
        "loss_format": "The same of its loss; that of the model, if none.",
        "sums": "Rounded once, or each time.",
    },
)


@command(epilog=terminal.help_text(terminal.SIMULATE))
@with_settings(SCHEDULE, OPTIMIZER, PROBLEM)
def simulate(
    problem: Annotated[str, Option(help=f"One of {', '.join(PROBLEMS)}.")] = "language-model",
    optimizer: Annotated[str, Option(help=f"One of {', '.join(optimizers())}.")] = "adamw",
    steps: Annotated[int, Option(help="Length of the run.")] = 300,
    seed: Annotated[int, Option(help="Of the start and of the batches.")] = 0,
    clip: options.Clip = 1.0,
    record_every: options.RecordEvery = 10,
    truth_sample: options.TruthSample = 0,
    strategy: options.Strategies = None,
    low: options.Low = "bfloat16",
    rounding: options.RoundingMode = "nearest_even",
    scalars: options.Entering = "exact",
    checkpoint: options.Checkpoint = None,
    checkpoint_every: options.CheckpointEvery = None,
    output: options.Output = None,
    **settings: Any,
) -> None:
    """Train a problem under several storage strategies, and show what each of them loses.

    Exit status 1 if a strategy diverges: its loss, gradients or state become infinite or NaN.
    """
    nothing = "nothing is kept, for want of --checkpoint FILE."
    with telling_how_to_go_on(checkpoint, nothing):
        from mcfsim.training.simulate import DEFAULT_STRATEGIES
        from mcfsim.training.simulate import simulate as run_simulation

        check_checkpoint(checkpoint, every=checkpoint_every)
        hyperparameters = OPTIMIZER.make(optimizer, settings)
        schedule = SCHEDULE.make("cosine", settings)
        run = run_simulation(
            PROBLEM.make(problem, settings),
            hyperparameters,
            strategy or DEFAULT_STRATEGIES,
            steps,
            schedule,
            seed,
            low=low,
            clip=None if clip == float("inf") else clip,
            rounding=rounding,
            scalars=scalars,
            record_every=record_every,
            truth_sample=truth_sample,
            checkpoint=checkpoint,
            output=output,
            **given({"checkpoint_every": checkpoint_every}),
        )
        about = ", ".join(f"{name} = {value!r}" for name, value in asdict(hyperparameters).items())
        about += f"; peak rate = {schedule.peak!r}, steps = {steps}, low = {get_format(low)}"
        say(f"{problem}, {optimizer}: {about}")
        good = show_run(run, terminal.SIMULATE, "loss, gradient or state")
        if output is not None:
            say(f"saved {output}")
    if not good:
        raise typer.Exit(1)


def show_run(run: Run, legend: terminal.Legend, infinite: str) -> bool:
    """Print each strategy's losses, and which diverged; return whether none did.

    `infinite` names what is infinite or NaN in a run that diverged.
    """
    from mcfsim.report.tables import run_table

    rows = run_table(run)
    print_rows(rows, {})
    cells = [text for row in rows for text in row.values()]
    print_legend(terminal.under(legend, rows[0], cells), output_width())
    diverged = {name: found["diverged_at"] for name, found in run.results.items() if "diverged_at" in found}
    for name, step in diverged.items():
        say(f"{name} diverged at step {step}: its {infinite} is infinite or NaN")
    return not diverged


# -- replay -----------------------------------------------------------------------------------------------
@command(epilog=terminal.help_text(terminal.REPLAY))
@with_settings(SCHEDULE, OPTIMIZER)
def replay(
    directory: Annotated[Path, Place.READ, Argument(help="The recording: safetensors files, one a step.")],
    weights: Annotated[
        Path | None,
        Place.READ,
        Option(help="Another start: a model's safetensors file or folder, or .npz."),
    ] = None,
    optimizer: Annotated[str, Option(help=f"One of {', '.join(optimizers())}.")] = "adamw",
    steps: Annotated[
        int | None, Option(help="How many steps are made, from the first on.", show_default="all")
    ] = None,
    decay_all: Annotated[
        bool, Option("--decay-all", help="Decay all tensors, and not only those of two indices or more.")
    ] = False,
    seed: Annotated[int, Option(help="Of stochastic rounding and of the sample.")] = 0,
    clip: options.Clip = float("inf"),
    record_every: options.RecordEvery = 10,
    truth_sample: options.TruthSample = 16,
    strategy: options.Strategies = None,
    low: options.Low = "bfloat16",
    rounding: options.RoundingMode = "nearest_even",
    scalars: options.Entering = "exact",
    per_tensor: Annotated[int, Option(help="Show so many tensors of each strategy, the worst first.")] = 5,
    checkpoint: options.Checkpoint = None,
    checkpoint_every: options.CheckpointEvery = None,
    resume: options.Resume = False,
    output: options.Output = None,
    **settings: Any,
) -> None:
    """Feed the recorded gradients of a training to storage strategies, and show what each of them loses.

    The gradients stay those of the recorded training, wherever a strategy's weights go. Rates are those
    recorded, unless options of the schedule are given.

    Exit status 1 if a strategy diverges: its state becomes infinite or NaN.
    """
    nothing = "nothing is kept, for want of --checkpoint FILE."
    with telling_how_to_go_on(checkpoint, nothing):
        from mcfsim.checks import whole_number
        from mcfsim.models.recording import open_recording
        from mcfsim.models.replay import replay as run_replay
        from mcfsim.report.tables import tensor_table
        from mcfsim.training.simulate import DEFAULT_STRATEGIES

        whole_number("per_tensor", per_tensor, least=0)
        check_checkpoint(checkpoint, resume=resume, every=checkpoint_every)
        hyperparameters = OPTIMIZER.make(optimizer, settings)
        scheduled = any(settings[item.name] is not None for item in SCHEDULE.parameters())
        schedule = SCHEDULE.make("cosine", settings) if scheduled else None
        decayed = open_recording(directory, weights, 1).weights.shapes if decay_all else None
        run = run_replay(
            directory,
            hyperparameters,
            strategy or DEFAULT_STRATEGIES,
            schedule,
            weights=weights,
            steps=steps,
            decayed=decayed,
            seed=seed,
            low=low,
            clip=None if clip == float("inf") else clip,
            rounding=rounding,
            scalars=scalars,
            record_every=record_every,
            truth_sample=truth_sample,
            checkpoint=checkpoint,
            output=output,
            **given({"checkpoint_every": checkpoint_every}),
        )
        about = ", ".join(f"{name} = {value!r}" for name, value in asdict(hyperparameters).items())
        rates = "recorded" if schedule is None else f"up to {schedule.peak!r}"
        about += f"; rates {rates}, steps = {run.settings['steps']}, low = {get_format(low)}"
        say(f"{run.settings['recording']['parameters']} parameters, {optimizer}: {about}")
        good = show_run(run, terminal.REPLAY, "state")
        if rows := tensor_table(run, per_tensor):
            say("")
            print_rows(rows, {})
        if output is not None:
            say(f"saved {output}")
    if not good:
        raise typer.Exit(1)
