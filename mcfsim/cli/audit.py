"""Commands that find tensors of a model that would stop learning, and assign storage to each tensor."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from mcfsim.cli.application import Place, check_checkpoint, command, telling_how_to_go_on
from mcfsim.cli.options import (
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
from mcfsim.report import terminal
from mcfsim.report.terminal import output_width, print_legend, print_rows, say

if TYPE_CHECKING:
    from mcfsim.models.assigning import Assignment
    from mcfsim.models.audit import Audit
    from mcfsim.models.samples import TensorSample
    from mcfsim.models.weights import Weights


# -- assign -----------------------------------------------------------------------------------------------
_FILES = "Files"


@command(epilog=terminal.help_text(terminal.ASSIGN))
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
    from mcfsim.models.samples import scan
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
    _show_assignment(model, found, most)
    if output is not None:
        data = as_json(found, dict(model.left_out))
        write_text(output, json.dumps(data, indent=1, allow_nan=False) + "\n")
        say(f"saved {output}")
    if table is not None:
        write_text(table, as_csv(found))
        say(f"saved {table}")


def _show_assignment(model: Weights, found: Assignment, most: int) -> None:
    """Print the assignment, and the memory and loss of each candidate given to all tensors."""
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
    print_legend(terminal.under(terminal.ASSIGN, [*tensors[0], *compared[0]], ["-"]), output_width())


# -- audit ------------------------------------------------------------------------------------------------
@command(epilog=terminal.help_text(terminal.AUDIT))
def audit(
    weights: WeightsFile,
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
    strategy: Annotated[
        list[str] | None,
        Option(help="Repeat it to compare.", show_default="all whose losses are forecast"),
    ] = None,
    low: Annotated[str, Option(help="The strategies' low format.")] = "bfloat16",
    threshold: Annotated[
        float, Option(help="Least EDQ of every tensor for a strategy to be recommended.")
    ] = 0.95,
    stopped: Annotated[float, Option(help="A tensor has stopped where its EDQ stays below this.")] = 0.5,
    samples: Samples = 1024,
    most: Annotated[int, Option(help="Tensors that are printed.", min=1)] = 20,
    checkpoint: Annotated[
        Path | None,
        Place.WRITTEN,
        Option(help="Save what was read here, and go on from it if it is there.", rich_help_panel=_FILES),
    ] = None,
    resume: Annotated[
        bool,
        Option(
            "--resume", help="Refuse to begin anew: the checkpoint must be there.", rich_help_panel=_FILES
        ),
    ] = False,
    output: Annotated[
        Path | None,
        Place.WRITTEN,
        Option("--json", help="Write all that was found here.", rich_help_panel=_FILES),
    ] = None,
    html: Annotated[
        Path | None,
        Place.WRITTEN,
        Option(
            help="Write it as one page for a browser here, also at 1/4 to 4 times the peak rate.",
            rich_help_panel=_FILES,
        ),
    ] = None,
    png: Annotated[
        Path | None,
        Place.WRITTEN,
        Option(
            help="Draw tensors by steps and by strategies here; a name in .svg too.", rich_help_panel=_FILES
        ),
    ] = None,
) -> None:
    """Say which tensors of a model would stop learning under a plan of training, and what prevents it.

    All elements are read once; a sample of each tensor is tried at steps of the schedule.
    """
    nothing = "nothing is kept, for want of --checkpoint FILE."
    with telling_how_to_go_on(checkpoint, nothing):
        from mcfsim.formats import get_format
        from mcfsim.models.audit import audit as audited
        from mcfsim.models.known import updates_of
        from mcfsim.models.plan import Plan, forecast_in
        from mcfsim.models.weights import open_weights
        from mcfsim.optim.adamw import AdamW
        from mcfsim.optim.strategies import strategy as look_up
        from mcfsim.report.audits import as_json
        from mcfsim.report.plotting import checked_suffix
        from mcfsim.storage.files import write_text

        rates = schedule_of(schedule, lr, warmup, final)
        check_checkpoint(checkpoint, resume=resume)
        if png is not None:
            checked_suffix(png)
        fmt = get_format(low)
        plan = Plan(
            hyper=AdamW(beta1=betas[0], beta2=betas[1], epsilon=eps, weight_decay=weight_decay),
            schedule=rates,
            steps=steps,
            strategies=tuple(look_up(name, fmt) for name in strategy or ()) or forecast_in(fmt),
            updates=updates_of(update_rms, state, gradients),
            threshold=threshold,
            stopped=stopped,
        )
        model = open_weights(weights)
        read = _read(model, samples, checkpoint)
        found = audited(read, plan, fmt)
        page = _page(model, read, found) if html is not None else ""
        _show(model, found, most)
        if output is not None:
            write_text(
                output, json.dumps(as_json(found, dict(model.left_out)), indent=1, allow_nan=False) + "\n"
            )
            say(f"saved {output}")
        if html is not None:
            write_text(html, page)
            say(f"saved {html}")
        if png is not None:
            _draw(found, png)


def _show(model: Weights, found: Audit, most: int) -> None:
    """Print the findings of an audit, and its recommendation."""
    from mcfsim.report.audits import mix_offered, strategy_table, tensor_table, update_model

    plan, strategies, tensors = found.plan, strategy_table(found), tensor_table(found, most)
    first = found.totals()[0].strategy.name
    say(
        f"{model.path}: {model.size:,} parameters in {len(model)} tensors, {plan.steps} steps, "
        f"peak rate {plan.schedule.peak:g}"
    )
    for name, why in model.left_out.items():
        say(f"left out: {name}, {why}")
    say("", "Under each strategy, over the run:")
    print_rows(strategies, {}, ["of tensor"])
    say("", f"Tensors under {first}, the worst first ({len(tensors)} of {len(model)}):")
    print_rows(tensors, {})
    print_legend(terminal.under(terminal.AUDIT, [*tensors[0], *strategies[0]], ["-"]), output_width())
    chosen, why = found.recommended()
    say("", f"Recommended: {chosen.strategy.name}. {why}" if chosen else f"Not recommended: {why}")
    say(*filter(None, [mix_offered(found), f"Supposed: {update_model(found)}"]))


def _page(model: Weights, read: list[TensorSample], found: Audit) -> str:
    from mcfsim.report.audit_page import at_rates, audit_page

    return audit_page(str(model.path), at_rates(read, found), model.left_out)


def _draw(found: Audit, path: Path) -> None:
    from mcfsim.report.audit_figure import audit_figure
    from mcfsim.report.plotting import save_one

    with audit_figure(found) as figure:
        save_one(figure, path)
    say(f"saved {path}")


def _read(model: Weights, samples: int, checkpoint: Path | None) -> list[TensorSample]:
    """Return samples of the weights; show a progress bar on a terminal."""
    import sys

    from mcfsim.models.samples import scan
    from mcfsim.storage.sweeps.progress import Bar

    if not sys.stderr.isatty():
        return scan(model, samples, checkpoint)
    with Bar() as bar:
        bar.expect(model.size)

        def told(name: str, elements: int, earlier: bool) -> None:
            bar.label(name)
            (bar.skip if earlier else bar.advance)(elements)

        return scan(model, samples, checkpoint, told)
