"""The command that says which tensor of a model is to be stored in which way, under a budget of bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from mcfsim.cli.application import Place, command
from mcfsim.cli.plan_options import (
    OPTIMIZER,
    Betas,
    Decay,
    Epsilon,
    Final,
    Gradients,
    Rate,
    Samples,
    Shape,
    State,
    Steps,
    UpdateSize,
    Warmup,
    WeightsFile,
    schedule_of,
)
from mcfsim.report import legends
from mcfsim.report.terminal import output_width, print_legend, print_rows, say

if TYPE_CHECKING:
    from mcfsim.models.assigning import Assignment
    from mcfsim.models.weights import Weights

_FILES = "Files"


@command(epilog=legends.help_text(legends.ASSIGN))
def assign(
    weights: WeightsFile,
    budget: Annotated[
        float, Option(help="Bytes a parameter, in the mean: parameter, gradient, moments and all else.")
    ] = 10.0,
    by: Annotated[str, Option(help="sensitivity or demotion.")] = "sensitivity",
    strategy: Annotated[
        list[str] | None,
        Option(
            help="Repeat it for several.",
            show_default="plain, collage-light, collage-plus, split-master, fp32-master; "
            "by demotion fp32-master and plain",
        ),
    ] = None,
    low: Annotated[
        list[str] | None,
        Option(help="The strategies' low format; repeat it for several.", show_default="bfloat16"),
    ] = None,
    frozen_cost: Annotated[
        float, Option(help="The share of updates that a second moment costs which cannot decay.")
    ] = 0.05,
    lr: Rate = 3e-4,
    schedule: Shape = "cosine",
    warmup: Warmup = 0,
    final: Final = None,
    steps: Steps = 10_000,
    betas: Betas = (OPTIMIZER.beta1, OPTIMIZER.beta2),
    eps: Epsilon = OPTIMIZER.epsilon,
    weight_decay: Decay = OPTIMIZER.weight_decay,
    update_rms: UpdateSize = None,
    state: State = None,
    gradients: Gradients = None,
    samples: Samples = 1024,
    most: Annotated[int, Option(help="Tensors that are printed.", min=1)] = 50,
    output: Annotated[
        Path | None,
        Place.WRITTEN,
        Option("--json", help="Write all that was found here.", rich_help_panel=_FILES),
    ] = None,
    table: Annotated[
        Path | None,
        Place.WRITTEN,
        Option("--csv", help="Write a line a tensor here.", rich_help_panel=_FILES),
    ] = None,
) -> None:
    """Say which tensor is to have which strategy and format, so that the least is lost within a budget.

    What each would lose is forecast as by `mcfsim audit`. By sensitivity an integer program chooses among all
    strategies and formats; by demotion the largest groups of tensors go from the dearer one of two to the
    cheaper one until the budget is kept, and what would overflow there stays.
    """
    from mcfsim.formats import get_format
    from mcfsim.models import assigning
    from mcfsim.models.audit import audit
    from mcfsim.models.known import updates_of
    from mcfsim.models.plan import Plan
    from mcfsim.models.scan import scan
    from mcfsim.models.weights import open_weights
    from mcfsim.optim.adamw import AdamW
    from mcfsim.report.assignments import as_csv, as_json
    from mcfsim.storage.files import write_text

    assigning.check_request(budget, by, frozen_cost)
    rates = schedule_of(schedule, lr, warmup, final)
    lows = [get_format(name) for name in dict.fromkeys(low or ["bfloat16"])]
    plan = Plan(
        hyper=AdamW(beta1=betas[0], beta2=betas[1], epsilon=eps, weight_decay=weight_decay),
        schedule=rates,
        steps=steps,
        strategies=assigning.candidates_of(lows, strategy or (), by),
        updates=updates_of(update_rms, state, gradients),
    )
    model = open_weights(weights)
    read = scan(model, samples)
    found = assigning.assign(audit(read, plan, lows[0]), read, budget, by, frozen_cost)
    _show(model, found, most)
    if output is not None:
        data = as_json(found, dict(model.left_out))
        write_text(output, json.dumps(data, indent=1, allow_nan=False) + "\n")
        say(f"saved {output}")
    if table is not None:
        write_text(table, as_csv(found))
        say(f"saved {table}")


def _show(model: Weights, found: Assignment, most: int) -> None:
    """Print what is assigned, beside what each candidate alone would take and lose."""
    from mcfsim.report.assignments import assignment_table, comparison_table
    from mcfsim.report.audits import update_model

    plan, tensors, compared = found.audit.plan, assignment_table(found, most), comparison_table(found)
    say(
        f"{model.path}: {model.size:,} parameters in {len(model)} tensors, {plan.steps} steps, "
        f"peak rate {plan.schedule.peak:g}; at most {float(found.budget):g} bytes a parameter, "
        f"by {found.method}"
    )
    for name, why in model.left_out.items():
        say(f"left out: {name}, {why}")
    say(f"{update_model(found.audit)} {found.words}.")
    say("", f"Tensors, those that lose most first ({len(tensors)} of {len(model)}):")
    print_rows(tensors, {}, ["tensor"])
    say("", "All together:")
    print_rows(compared, {})
    print_legend(legends.under(legends.ASSIGN, [*tensors[0], *compared[0]], ["-"]), output_width())
