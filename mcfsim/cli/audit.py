"""Commands that find tensors of a model that would stop learning, and assign storage to each tensor."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Exit, Option

from mcfsim.cli.application import (
    Place,
    check_checkpoint,
    command,
    save_json,
    save_text,
    telling_how_to_go_on,
)
from mcfsim.cli.options import FILES, PLAN, Json, Most, Resume, Samples, WeightsFile, with_settings
from mcfsim.formats import get_format
from mcfsim.report import terminal
from mcfsim.report.terminal import output_width, print_legend, print_rows, say

if TYPE_CHECKING:
    from mcfsim.models.assigning import Assignment
    from mcfsim.models.audit import Audit
    from mcfsim.models.samples import TensorSample
    from mcfsim.models.weights import Weights


# -- assign -----------------------------------------------------------------------------------------------
@command(epilog=terminal.help_text(terminal.ASSIGN))
@with_settings(PLAN)
def assign(
    weights: WeightsFile,
    budget: Annotated[
        float, Option(help="Mean bytes per parameter: parameter, gradient, moments and all else stored.")
    ] = 10.0,
    by: Annotated[str, Option(help="sensitivity or demotion.")] = "sensitivity",
    strategy: Annotated[
        list[str] | None,
        Option(
            help="Strategy; repeat it for several.",
            show_default="plain, collage-light, collage-plus, split-master, fp32-master; "
            "by demotion fp32-master and plain",
        ),
    ] = None,
    low: Annotated[
        list[str] | None,
        Option(help="The strategies' low format; repeat it for several.", show_default="bfloat16"),
    ] = None,
    frozen_cost: Annotated[
        float, Option(help="Share of updates that counts as lost where the second moment cannot decay.")
    ] = 0.05,
    samples: Samples = 1024,
    most: Most = 50,
    *,
    output: Json = None,
    table: Annotated[
        Path | None,
        Place.WRITTEN,
        Option("--csv", help="Write a line per tensor to this file.", rich_help_panel=FILES),
    ] = None,
    **settings: Any,
) -> None:
    """Assign a strategy and a format to each tensor, so that the least is lost within a budget of bytes.

    What each would lose is forecast as by `mcfsim audit`. By sensitivity, an integer program chooses among
    all strategies and formats. By demotion there are two; the largest groups of tensors go from the dearer to
    the cheaper until the budget is kept, except tensors that would overflow there.
    """
    from mcfsim.models import assigning
    from mcfsim.models.adapters import config_beside
    from mcfsim.models.audit import audit
    from mcfsim.models.weights import open_weights
    from mcfsim.report.audits import assignment_csv, assignment_json
    from mcfsim.storage.shards import check_apart

    check_apart({"--json": output, "--csv": table}, {"WEIGHTS": config_beside(weights)})
    assigning.check_request(budget, by, frozen_cost)
    lows = [get_format(name) for name in dict.fromkeys(low or ["bfloat16"])]
    plan = PLAN.make(settings).plan(assigning.candidates_of(lows, strategy or (), by))
    model = open_weights(weights)
    read = _read(model, samples, None)
    found = assigning.assign(audit(read, plan, lows[0]), read, budget, by, frozen_cost)
    _show_assignment(model, found, most)
    if output is not None:
        save_json(output, assignment_json(found, dict(model.left_out)))
    if table is not None:
        save_text(table, assignment_csv(found))


def _show_assignment(model: Weights, found: Assignment, most: int) -> None:
    """Print the assignment, and the memory and loss of each candidate given to all tensors."""
    from mcfsim.report.audits import assignment_table, comparison_table, update_model

    tensors, compared = assignment_table(found, most), comparison_table(found)
    _introduce(model, found.audit, f"; at most {float(found.budget):g} bytes a parameter, by {found.method}")
    say(f"{update_model(found.audit)} {found.words}.")
    say("", f"Tensors, those that lose most first ({len(tensors)} of {len(model)}):")
    print_rows(tensors, {}, ["tensor"])
    say("", "All together:")
    print_rows(compared, {})
    print_legend(terminal.under(terminal.ASSIGN, [*tensors[0], *compared[0]], ["-"]), output_width())


def _introduce(model: Weights, found: Audit, more: str = "", *lines: str) -> None:
    """Print what the model and the plan are, which tensors are left out, and further lines."""
    plan = found.plan
    say(
        f"{model.path}: {found.size:,} parameters in {len(found.tensors)} tensors, {plan.steps} steps, "
        f"peak rate {plan.schedule.peak:g}{more}",
        *(f"left out: {name}, {why}" for name, why in model.left_out.items()),
        *lines,
    )


# -- audit ------------------------------------------------------------------------------------------------
@command(epilog=terminal.help_text(terminal.AUDIT, terminal.TRANSFER))
@with_settings(PLAN)
def audit(
    weights: WeightsFile,
    strategy: Annotated[
        list[str] | None,
        Option(help="Strategy; repeat it to compare.", show_default="all whose losses are forecast"),
    ] = None,
    low: Annotated[str, Option(help="The strategies' low format.")] = "bfloat16",
    threshold: Annotated[
        float, Option(help="Least EDQ of every tensor for a strategy to be recommended.")
    ] = 0.95,
    stopped: Annotated[float, Option(help="A tensor has stopped where its EDQ stays below this.")] = 0.5,
    rank: Annotated[
        int | None,
        Option(help="Audit adapters of this rank on the model's matrices, as they start.", min=1),
    ] = None,
    target: Annotated[
        list[str] | None,
        Option(
            help="With --rank, a module to adapt, by the end of its name; repeat it for several.",
            show_default="all matrices but embeddings and heads",
        ),
    ] = None,
    samples: Samples = 1024,
    most: Most = 20,
    rl: Annotated[
        bool,
        Option("--rl", help="Also say how many bytes it takes to send the weights that a step changes."),
    ] = False,
    fail_if_stops: Annotated[
        str | None,
        Option(
            metavar="STRATEGY",
            help="Exit status 1 if a tensor stops, or leaves the range, under this strategy.",
        ),
    ] = None,
    *,
    checkpoint: Annotated[
        Path | None,
        Place.WRITTEN,
        Option(help="Save what is read to this file; continue from it if it exists.", rich_help_panel=FILES),
    ] = None,
    resume: Resume = False,
    output: Json = None,
    html: Annotated[
        Path | None,
        Place.WRITTEN,
        Option(
            help="Write the audit to this file, as one HTML page, also at 1/4 to 4 times the peak rate.",
            rich_help_panel=FILES,
        ),
    ] = None,
    products: Annotated[
        Path | None,
        Place.READ,
        Option(
            help="CSV file of measurements by mcfsim.torch.watch_products, for the page of --html.",
            rich_help_panel=FILES,
        ),
    ] = None,
    png: Annotated[
        Path | None,
        Place.WRITTEN,
        Option(
            help="Draw tensors by steps and by strategies into this file, .png or .svg.",
            rich_help_panel=FILES,
        ),
    ] = None,
    **settings: Any,
) -> None:
    """Say which tensors of a model would stop learning under a plan of training, and what prevents it.

    All elements are read once; a sample of each tensor is tried at steps of the schedule. With --rank only
    shapes are read.
    """
    with telling_how_to_go_on(checkpoint):
        from mcfsim.models.adapters import adapters_at_start, config_beside, describe
        from mcfsim.models.audit import audit as audited
        from mcfsim.models.plan import forecast_in
        from mcfsim.models.product_rows import read_rows
        from mcfsim.models.weights import open_weights
        from mcfsim.optim.strategies import strategy as look_up
        from mcfsim.report.audit_report import at_rates, audit_figure, audit_page
        from mcfsim.report.audits import adapters_text, audit_json, transfer_table
        from mcfsim.report.plotting import checked_suffix, save_one
        from mcfsim.storage.shards import check_apart

        check_checkpoint(checkpoint, resume=resume)
        written = {"--json": output, "--html": html, "--png": png, "--checkpoint": checkpoint}
        check_apart(written, {"WEIGHTS": config_beside(weights)})
        if target and rank is None:
            raise ValueError("--target needs --rank, which says that adapters are to be audited")
        if rank is not None and checkpoint is not None:
            raise ValueError("--rank reads no weights: --checkpoint would hold nothing")
        if png is not None:
            checked_suffix(png)
        fmt = get_format(low)
        strategies = [look_up(name, fmt) for name in strategy or ()] or forecast_in(fmt)
        plan = PLAN.make(settings).plan(strategies, threshold=threshold, stopped=stopped)
        tried = [item.name for item in strategies]
        if fail_if_stops not in (None, *tried):
            raise ValueError(f"--fail-if-stops {fail_if_stops}: tried are {', '.join(tried)}")
        if products is not None and html is None:
            raise ValueError("--products needs --html, on whose page it is shown")
        watched = [] if products is None else read_rows(products)
        model = open_weights(weights)
        if rank is None:
            read = _read(model, samples, checkpoint)
            adapters = describe(model.path, read)
            more = ["", adapters_text(adapters)] if adapters else []
        else:
            shapes = {name: item.shape for name, item in model.items()}
            read, adapters = adapters_at_start(shapes, rank, samples, target or ()), None
            model, more = replace(model, left_out={}), [f"; adapters of rank {rank} as they start"]
        found = audited(read, plan, fmt)
        page = ""
        if html is not None:
            page = audit_page(str(model.path), at_rates(read, found), model.left_out, watched)
        _show(model, found, most, *more)
        if rl:
            say("", "Bytes that send what a step changes:")
            print_rows(transfer_table(found), terminal.TRANSFER)
        if output is not None:
            save_json(output, audit_json(found, model.left_out, adapters))
        if html is not None:
            save_text(html, page)
        if png is not None:
            with audit_figure(found) as figure:
                save_one(figure, png)
            say(f"saved {png}")
        if fail_if_stops:
            of = [item.found[fail_if_stops] for item in found.tensors]
            if any(item.stops is not None or item.beyond is not None for item in of):
                raise Exit(1)


def _show(model: Weights, found: Audit, most: int, *more: str) -> None:
    """Print the findings of an audit, and its recommendation."""
    from mcfsim.report.audits import kind_table, mix_offered, strategy_table, tensor_table, update_model

    strategies, kinds, tensors = strategy_table(found), kind_table(found), tensor_table(found, most)
    _introduce(model, found, *more)
    say("", "Under each strategy, over the run:")
    print_rows(strategies, {}, ["of tensor"])
    first, headings = found.totals()[0].strategy.name, [*tensors[0], *strategies[0]]
    if len(kinds) > 1:
        headings += kinds[0]
        say("", f"Kinds of tensors under {first}:")
        print_rows(kinds, {})
    say("", f"Tensors under {first}, the worst first ({len(tensors)} of {len(found.tensors)}):")
    print_rows(tensors, {})
    print_legend(terminal.under(terminal.AUDIT, headings, ["-"]), output_width())
    chosen, why = found.recommended()
    say("", f"Recommended: {chosen.strategy.name}. {why}" if chosen else f"Not recommended: {why}")
    say(*filter(None, [mix_offered(found), f"Supposed: {update_model(found)}"]))


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
            (bar.skip if earlier else bar.count)(elements)

        return scan(model, samples, checkpoint, told)
