"""The command that trains a problem under several strategies."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from mcfsim.checks.names import hint
from mcfsim.cli.application import app, errors_in_one_line, given, telling_how_to_go_on, warnings_in_one_line
from mcfsim.formats import get_format
from mcfsim.report import legends
from mcfsim.report.terminal import output_width, print_legend, print_rows

if TYPE_CHECKING:
    from mcfsim.training.record import Run

#: Options named otherwise than the argument that they stand for.
OPTION_NAMES = {"seed": "problem-seed", "epsilon": "eps"}


@app.command(epilog=legends.help_text(legends.SIMULATE))
def simulate(
    problem: Annotated[
        str, Option(help="language-model, logistic, quadratic or rosenbrock.")
    ] = "language-model",
    optimizer: Annotated[str, Option(help="adamw, sgd, or another of mcfsim.optim.")] = "adamw",
    strategy: Annotated[
        list[str] | None,
        Option(help="Repeat it to compare.", show_default="plain, collage-light, collage-plus, fp32-master"),
    ] = None,
    low: Annotated[str, Option(help="The strategies' low format.")] = "bfloat16",
    rounding: Annotated[str, Option(help="Rounding mode of the optimizer's operations.")] = "nearest_even",
    scalars: Annotated[str, Option(help="How hyperparameters enter: exact or rounded.")] = "exact",
    steps: Annotated[int, Option(help="Length of the run.")] = 300,
    seed: Annotated[int, Option(help="Of the start and of the batches.")] = 0,
    lr: Annotated[float | None, Option(help="Peak learning rate.", show_default="3e-4")] = None,
    warmup: Annotated[int | None, Option(help="Steps of linear warm-up.", show_default="50")] = None,
    final: Annotated[
        float | None, Option(help="Last rate as a share of the peak.", show_default="0.1")
    ] = None,
    beta1: Annotated[float | None, Option(help="AdamW.", show_default="0.9")] = None,
    beta2: Annotated[float | None, Option(help="AdamW.", show_default="0.999")] = None,
    eps: Annotated[float | None, Option(help="AdamW.", show_default="1e-8")] = None,
    momentum: Annotated[float | None, Option(help="SGD.", show_default="0.9")] = None,
    weight_decay: Annotated[float | None, Option(show_default="0.1 for AdamW, 0 for SGD")] = None,
    clip: Annotated[float, Option(help="Largest norm of the gradient; inf does not clip.")] = 1.0,
    record_every: Annotated[int, Option(help="Steps between two records.")] = 10,
    truth_sample: Annotated[
        int, Option(help="Compare steps with the exact update; so many parameters in mpmath.")
    ] = 0,
    checkpoint: Annotated[
        Path | None, Option(help="Save the state here as it goes, and go on from it if it is there.")
    ] = None,
    checkpoint_every: Annotated[
        int | None, Option(help="Steps between two checkpoints.", show_default="100")
    ] = None,
    output: Annotated[Path | None, Option(help="Save the run here, as .npz.")] = None,
    dimension: Annotated[
        int | None, Option(help="Quadratic and Rosenbrock.", show_default="100 and 2")
    ] = None,
    condition_number: Annotated[float | None, Option(help="Quadratic.", show_default="1000")] = None,
    problem_seed: Annotated[int | None, Option(help="Quadratic: which one.", show_default="0")] = None,
    l2: Annotated[float | None, Option(help="Logistic: penalty.", show_default="1e-4")] = None,
    layers: Annotated[int | None, Option(help="Language model.", show_default="2")] = None,
    width: Annotated[int | None, Option(help="Language model.", show_default="64")] = None,
    heads: Annotated[int | None, Option(help="Language model.", show_default="4")] = None,
    context: Annotated[int | None, Option(help="Language model.", show_default="64")] = None,
    batch: Annotated[int | None, Option(help="Language model: sequences.", show_default="16")] = None,
) -> None:
    """Train a problem under several storage strategies, and show what each of them loses.

    Exit status 1 if a strategy diverges: its loss, gradients or state become infinite or NaN.
    """
    nothing = "nothing is kept, for want of --checkpoint FILE."
    with errors_in_one_line(), warnings_in_one_line(), telling_how_to_go_on(checkpoint, nothing):
        from mcfsim.optim.declaration import optimizers
        from mcfsim.problems.registry import PROBLEMS
        from mcfsim.storage.files import check_outputs
        from mcfsim.training.schedule import Schedule
        from mcfsim.training.simulate import DEFAULT_STRATEGIES
        from mcfsim.training.simulate import simulate as run_simulation

        if checkpoint_every is not None and checkpoint is None:
            raise ValueError("--checkpoint-every needs --checkpoint, which names the file")
        check_outputs({"--checkpoint": checkpoint, "--output": output})
        of_problems = {
            **{"dimension": dimension, "condition_number": condition_number, "seed": problem_seed, "l2": l2},
            **{"layers": layers, "width": width, "heads": heads, "context": context, "batch": batch},
        }
        of_optimizers = {
            **{"beta1": beta1, "beta2": beta2, "epsilon": eps, "momentum": momentum},
            **{"weight_decay": weight_decay},
        }
        hyperparameters = _make("optimizer", optimizer, optimizers(), of_optimizers)
        schedule = Schedule(**given({"peak": lr, "warmup": warmup, "final": final}))
        run = run_simulation(
            _make("problem", problem, PROBLEMS, of_problems),
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
            **given({"checkpoint_every": checkpoint_every}),
        )
        about = ", ".join(f"{name} = {value!r}" for name, value in asdict(hyperparameters).items())
        about += f"; peak rate = {schedule.peak!r}, steps = {steps}, low = {get_format(low)}"
        typer.echo(f"{problem}, {optimizer}: {about}")
        good = _show(run)
        if output is not None:
            run.save(output)
            typer.echo(f"saved {output}")
    if not good:
        raise typer.Exit(1)


def _show(run: Run) -> bool:
    """Print what every strategy lost; return whether none diverged."""
    from mcfsim.report.tables import run_table

    rows = run_table(run)
    print_rows(rows, {})
    cells = [text for row in rows for text in row.values()]
    print_legend(legends.under(legends.SIMULATE, rows[0], cells), output_width())
    diverged = {name: found["diverged_at"] for name, found in run.results.items() if "diverged_at" in found}
    for name, step in diverged.items():
        typer.echo(f"{name} diverged at step {step}: its loss, gradient or state is infinite or NaN")
    return not diverged


def _make(label: str, name: str, kinds: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
    """Return the problem or optimizer of a name; refuse options that it has no use for."""
    if name not in kinds:
        raise ValueError(f"unknown {label} {name!r}{hint(name, kinds)}; known {label}s: {', '.join(kinds)}")
    chosen = given(options)
    taken = [argument for argument in inspect.signature(kinds[name]).parameters if argument in options]
    if stray := [argument for argument in chosen if argument not in taken]:
        raise ValueError(
            f"{label} {name!r} has no {_options(stray)}; it takes {_options(taken) or 'no options'}"
        )
    return kinds[name](**chosen)


def _options(arguments: list[str]) -> str:
    return ", ".join("--" + OPTION_NAMES.get(name, name).replace("_", "-") for name in arguments)
