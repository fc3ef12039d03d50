"""The command that trains a problem under several strategies."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from mcfsim.cli import run_options as options
from mcfsim.cli.application import (
    check_checkpoint,
    command,
    given,
    telling_how_to_go_on,
)
from mcfsim.cli.constructor_options import KindOptions, with_settings
from mcfsim.formats import get_format
from mcfsim.optim.declaration import optimizers
from mcfsim.problems.registry import PROBLEMS
from mcfsim.report import legends
from mcfsim.report.terminal import output_width, print_legend, print_rows, say
from mcfsim.training.schedule import Schedule

if TYPE_CHECKING:
    from mcfsim.training.record import Run

#: What a run is made of, each with its options.
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


@command(epilog=legends.help_text(legends.SIMULATE))
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
        good = show_run(run, legends.SIMULATE, "loss, gradient or state")
        if output is not None:
            say(f"saved {output}")
    if not good:
        raise typer.Exit(1)


def show_run(run: Run, legend: legends.Legend, infinite: str) -> bool:
    """Print what every strategy lost, and which diverged, by what is infinite; return whether none did."""
    from mcfsim.report.runs import run_table

    rows = run_table(run)
    print_rows(rows, {})
    cells = [text for row in rows for text in row.values()]
    print_legend(legends.under(legend, rows[0], cells), output_width())
    diverged = {name: found["diverged_at"] for name, found in run.results.items() if "diverged_at" in found}
    for name, step in diverged.items():
        say(f"{name} diverged at step {step}: its {infinite} is infinite or NaN")
    return not diverged
