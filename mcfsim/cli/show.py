"""The command that shows a text as a program: its operations, what they cost, its source and its drawing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from mcfsim.checks.names import hint
from mcfsim.cli.application import Place, command
from mcfsim.report import legends
from mcfsim.report.terminal import output_width, print_legend, print_rows, say, say_text

if TYPE_CHECKING:
    from mcfsim.report.texts import RecordedText

# The rest is imported by the part that needs it, so that the other commands start at once.


def _pseudocode(recorded: RecordedText) -> None:
    say_text(recorded.program.pseudocode())


def _text(recorded: RecordedText) -> None:
    say_text(recorded.source.rstrip())


def _numba(recorded: RecordedText) -> None:
    from mcfsim.report.costs import generated_source

    say_text(generated_source(recorded).rstrip())


def _triton(recorded: RecordedText) -> None:
    from mcfsim.report.costs import generated_kernel

    say_text(generated_kernel(recorded).rstrip())


def _network(recorded: RecordedText) -> None:
    from mcfsim.report.network import network_text
    from mcfsim.report.wiring import wired

    width = output_width()
    say_text(network_text(wired(recorded.program, recorded.results), width))
    if width is not None:
        print_legend(legends.NETWORK, width)


def _cost(recorded: RecordedText) -> None:
    from mcfsim.report import costs

    tables = [costs.summary_table(recorded), costs.memory_table(recorded)]
    why = costs.refused(recorded)
    if why is None:
        tables.insert(1, costs.machine_table(recorded))
    print_rows(costs.operation_table(recorded), legends.COST, ["why"], numbers=False)
    for rows in tables:
        say("")
        print_rows(rows, legends.COST)
    if why is not None:
        say("", f"There is no line for the machine: {why}")


#: How a program is shown, by the name that a user gives.
VIEWS: dict[str, Callable[[RecordedText], None]] = {
    "pseudocode": _pseudocode,
    "text": _text,
    "network": _network,
    "numba": _numba,
    "triton": _triton,
    "cost": _cost,
}


@command(epilog=legends.help_text(legends.COST, legends.NETWORK))
def show(
    text: Annotated[
        str | None,
        Argument(
            help="A text by its name, as two_sum, expansion.grow, adamw or adafactor.rows; left out, all are "
            "listed."
        ),
    ] = None,
    format: Annotated[str, Option(help="Format of operands and operations; an optimizer's low format.")] = (
        "bfloat16"
    ),
    rounding: Annotated[str, Option(help="Rounding mode.")] = "nearest_even",
    overflow: Annotated[str, Option(help="ieee or saturate.")] = "ieee",
    underflow: Annotated[str, Option(help="gradual, flush_inputs, flush_before or flush_after.")] = "gradual",
    strategy: Annotated[
        str | None, Option(help="Storage strategy of an optimizer.", show_default="plain")
    ] = None,
    components: Annotated[
        int | None,
        Option(help="Length of tuples that may have any, as expansions.", min=1, max=8, show_default="2"),
    ] = None,
    view: Annotated[
        str,
        Option(
            "--as",
            help="pseudocode; text, its Python; network, a drawing; numba or triton, the generated source; "
            "cost.",
        ),
    ] = "pseudocode",
    output: Annotated[
        Path | None, Place.WRITTEN, Option(help="Draw --as network into this file, .svg or .png.")
    ] = None,
) -> None:
    """Show a text as a program: its operations, its drawing, its compiled loop, and what it costs."""
    from mcfsim.formats import get_format
    from mcfsim.report.plotting import checked_suffix
    from mcfsim.rounding import get_rounding

    if view not in VIEWS:
        raise ValueError(f"unknown --as {view!r}{hint(view, VIEWS)}; allowed: {', '.join(VIEWS)}")
    if output is not None and view != "network":
        raise ValueError("--output takes a drawing: give --as network with it")
    fmt, policies = get_format(format), get_rounding(rounding, overflow, underflow)
    if text is None:
        if output is not None or strategy is not None or components is not None:
            raise ValueError("name a text; without one, mcfsim show lists them")
        _list()
        return
    if output is not None:
        checked_suffix(output)
    from mcfsim.report.texts import is_staged, record, stage_table

    if is_staged(text) and view == "pseudocode":
        print_rows(stage_table(text), legends.TEXTS, ["what"], numbers=False)
        return
    recorded = record(text, fmt, policies, strategy=strategy, components=components)
    if output is None:
        VIEWS[view](recorded)
    else:
        _draw(recorded, f"{recorded.program.name}; {fmt}, {policies.mode}", output)


def _list() -> None:
    """Print all texts, and what each is."""
    from mcfsim.report.texts import text_table

    print_rows(text_table(), legends.TEXTS, ["what"], numbers=False)


def _draw(recorded: RecordedText, title: str, output: Path) -> None:
    from mcfsim.report.network_figure import network_figure
    from mcfsim.report.plotting import save_one
    from mcfsim.report.wiring import wired

    program = recorded.program
    about = f"{title}: {len(program.steps)} operations, depth {program.depth()}"
    with network_figure(wired(program, recorded.results), about) as figure:
        save_one(figure, output)
    say(f"saved {output}")
