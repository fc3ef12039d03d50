"""Commands that train a problem, or replay recorded gradients, under several strategies."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from mcfsim.cli.application import Place, check_checkpoint, command, telling_how_to_go_on
from mcfsim.cli.options import FieldOptions, KindOptions, Output, Picture, Resume, RunOptions, with_settings
from mcfsim.formats import get_format
from mcfsim.optim.declaration import optimizers
from mcfsim.report import terminal
from mcfsim.report.plotting import checked_suffix
from mcfsim.report.terminal import output_width, print_legend, print_rows, say
from mcfsim.training.problems import PROBLEMS
from mcfsim.training.schedule import Schedule

if TYPE_CHECKING:
    from mcfsim.training.record import Run


# -- simulate ---------------------------------------------------------------------------------------------
#: The run and its parts, each with its options.
RUN = FieldOptions(RunOptions)
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
OPTIMIZER = KindOptions(
    "optimizer",
    optimizers(),
    names={"epsilon": "eps"},
    meaning={
        "beta2_power": "In step t the second moment decays by 1 - t^-power.",
        "epsilon": "Added to the root of the second moment; in Adafactor to squares of gradients.",
        "threshold": "Largest root mean square of a direction.",
        "least_scale": "A tensor's step is scaled by its root mean square, or by this if larger.",
        "weight_decay": "Decoupled decay.",
        "beta1": "Decay of the first moment; in Lion, weight of the momentum in the direction.",
        "beta2": "Decay of the second moment; in Lion, decay of the momentum.",
        "momentum": "Decay of the momentum.",
        "scale": "Factor of a matrix's rate: none, original, match_rms_adamw or spectral.",
        "share": "Rate of what AdamW moves, as a share of the schedule's.",
        "dampening": "Share of a gradient that does not enter the momentum.",
    },
)
OptimizerName = Annotated[str, Option(help=f"One of {', '.join(optimizers())}.")]
PROBLEM = KindOptions(
    "problem",
    PROBLEMS,
    names={"seed": "problem_seed"},
    meaning={
        "seed": "Seed of the problem.",
        "l2": "Factor of the penalty.",
        "batch": "Sequences or images in a batch.",
        "format": "Format in which the model computes.",
        "loss_format": "Format in which the loss is computed; none: that of the model.",
        "sums": "How sums are rounded: once, or each time.",
        "calculation": "A recipe of linear layers, such as nvfp4, or formats: bfloat16,float32,blas.",
        "activation_bits": "Round the inputs of layers' matrices to integers of this many bits; 0: do not.",
    },
)


@command(epilog=terminal.help_text(terminal.SIMULATE))
@with_settings(RUN, SCHEDULE, OPTIMIZER, PROBLEM)
def simulate(
    problem: Annotated[str, Option(help=f"One of {', '.join(PROBLEMS)}.")] = "language-model",
    optimizer: OptimizerName = "adamw",
    steps: Annotated[int, Option(help="Length of the run.")] = 300,
    seed: Annotated[int, Option(help="Seed of the start and of the batches.")] = 0,
    *,
    reduction: Annotated[
        str | None,
        Option(
            "--reduce",
            help="Micro-batches or ranks of a step, and how their gradients are added: 8,ring,bfloat16.",
        ),
    ] = None,
    output: Output = None,
    png: Picture = None,
    **settings: Any,
) -> None:
    """Train a problem under several storage strategies, and show what each of them loses.

    Exit status 1 if a strategy diverges: its loss, gradients or state become infinite or NaN.
    """
    options = RUN.make(settings)
    if png is not None:
        checked_suffix(png)
    with telling_how_to_go_on(options.checkpoint):
        from mcfsim.training.simulate import simulate as run_simulation

        check_checkpoint(options.checkpoint, every=options.checkpoint_every)
        hyperparameters = OPTIMIZER.make(optimizer, settings)
        schedule = SCHEDULE.make("cosine", settings)
        run = run_simulation(
            PROBLEM.make(problem, settings),
            hyperparameters,
            steps=steps,
            schedule=schedule,
            seed=seed,
            reduction=reduction,
            output=output,
            **options.arguments(),
        )
        about = f"peak rate = {schedule.peak!r}, steps = {steps}, low = {get_format(options.low)}"
        say(f"{problem}, {optimizer}: {_described(hyperparameters)}; {about}")
        _show(run, terminal.SIMULATE, "loss, gradient or state", output, png)


def _described(hyperparameters: Any) -> str:
    return ", ".join(f"{name} = {value!r}" for name, value in asdict(hyperparameters).items())


def _show(
    run: Run,
    legend: terminal.Legend,
    infinite: str,
    output: Path | None,
    png: Path | None,
    per_tensor: int = 0,
) -> None:
    """Print what strategies lose, draw it, and say what was saved; exit with status 1 if one diverged.

    `infinite` names what is infinite or NaN in a run that diverged.
    """
    from mcfsim.report.tables import run_table, tensor_table

    rows = run_table(run)
    print_rows(rows, {})
    cells = [text for row in rows for text in row.values()]
    print_legend(terminal.under(legend, rows[0], cells), output_width())
    diverged = {name: found["diverged_at"] for name, found in run.results.items() if "diverged_at" in found}
    for name, step in diverged.items():
        say(f"{name} diverged at step {step}: its {infinite} is infinite or NaN")
    if tensors := tensor_table(run, per_tensor):
        say("")
        print_rows(tensors, {})
    if png is not None:
        run.plot(png)
    for path in (output, png):
        if path is not None:
            say(f"saved {path}")
    if diverged:
        raise typer.Exit(1)


# -- replay -----------------------------------------------------------------------------------------------
@command(epilog=terminal.help_text(terminal.REPLAY))
@with_settings(
    replace(RUN, defaults={"clip": math.inf, "truth_sample": 16}),
    replace(SCHEDULE, unless="as recorded"),
    OPTIMIZER,
)
def replay(
    directory: Annotated[Path, Place.READ, Argument(help="The recording: a safetensors file per step.")],
    weights: Annotated[
        Path | None,
        Place.READ,
        Option(help="Another start: a model's safetensors file or folder, or .npz."),
    ] = None,
    optimizer: OptimizerName = "adamw",
    steps: Annotated[
        int | None, Option(help="How many steps are made, from the first on.", show_default="all")
    ] = None,
    decay_all: Annotated[
        bool, Option("--decay-all", help="Decay all tensors, not only those of two dimensions and more.")
    ] = False,
    seed: Annotated[int, Option(help="Seed of stochastic rounding and of the sample.")] = 0,
    *,
    per_tensor: Annotated[int, Option(help="How many tensors to show per strategy, the worst first.")] = 5,
    resume: Resume = False,
    output: Output = None,
    png: Picture = None,
    **settings: Any,
) -> None:
    """Feed the recorded gradients of a training to storage strategies, and show what each of them loses.

    The gradients stay those of the recorded training, wherever a strategy's weights go. Rates are those
    recorded, unless options of the schedule are given.

    Exit status 1 if a strategy diverges: its state becomes infinite or NaN.
    """
    options = RUN.make(settings)
    if png is not None:
        checked_suffix(png)
    with telling_how_to_go_on(options.checkpoint):
        from mcfsim.checks import whole_number
        from mcfsim.models.recording import open_recording
        from mcfsim.models.replay import replay as run_replay

        whole_number("per_tensor", per_tensor, least=0)
        check_checkpoint(options.checkpoint, resume=resume, every=options.checkpoint_every)
        hyperparameters = OPTIMIZER.make(optimizer, settings)
        scheduled = any(settings[item.name] is not None for item in SCHEDULE.parameters())
        schedule = SCHEDULE.make("cosine", settings) if scheduled else None
        run = run_replay(
            directory,
            hyperparameters,
            schedule=schedule,
            weights=weights,
            steps=steps,
            decayed=open_recording(directory, weights, 1).weights.shapes if decay_all else None,
            seed=seed,
            output=output,
            **options.arguments(),
        )
        rates = "recorded" if schedule is None else f"up to {schedule.peak!r}"
        about = f"rates {rates}, steps = {run.settings['steps']}, low = {get_format(options.low)}"
        size = run.settings["recording"]["parameters"]
        say(f"{size} parameters, {optimizer}: {_described(hyperparameters)}; {about}")
        _show(run, terminal.REPLAY, "state", output, png, per_tensor)
