"""The command that feeds recorded gradients to several strategies."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from mcfsim.cli import run_options as options
from mcfsim.cli.application import (
    Place,
    check_checkpoint,
    command,
    given,
    telling_how_to_go_on,
)
from mcfsim.cli.constructor_options import with_settings
from mcfsim.cli.simulate import OPTIMIZER, SCHEDULE, show_run
from mcfsim.formats import get_format
from mcfsim.optim.declaration import optimizers
from mcfsim.report import legends
from mcfsim.report.terminal import print_rows, say


@command(epilog=legends.help_text(legends.REPLAY))
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
        from mcfsim.checks.arguments import whole_number
        from mcfsim.models.recording import open_recording
        from mcfsim.models.replay import replay as run_replay
        from mcfsim.report.runs import tensor_table
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
        good = show_run(run, legends.REPLAY, "state")
        if rows := tensor_table(run, per_tensor):
            say("")
            print_rows(rows, {})
        if output is not None:
            say(f"saved {output}")
    if not good:
        raise typer.Exit(1)
