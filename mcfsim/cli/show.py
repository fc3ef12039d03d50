"""Commands that show formats, numbers, strategies and algorithms; all of them are quick."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Context, Option

from mcfsim.checks import hint
from mcfsim.cli.application import Place, command
from mcfsim.formats import FORMATS, format_table, get_format
from mcfsim.report import terminal
from mcfsim.report.tables import Rows, markdown_table
from mcfsim.report.terminal import output_width, print_columns, print_legend, print_rows, say, say_text

if TYPE_CHECKING:
    from mcfsim.report.algorithms import RecordedAlgorithm


# -- formats, numbers, memory -----------------------------------------------------------------------------
# Each command imports what it needs, so that the others start at once.
Markdown = Annotated[bool, Option("--markdown", help="Print a GitHub table.")]
OverflowPolicy = Annotated[str, Option(help="ieee or saturate.")]
UnderflowPolicy = Annotated[str, Option(help="gradual, flush_inputs, flush_before or flush_after.")]


@command(epilog=terminal.help_text(terminal.FORMATS))
def formats(
    names: Annotated[
        list[str] | None,
        Argument(metavar="[NAME]...", help="Formats to show, such as bfloat16 or e6m9; default all."),
    ] = None,
    markdown: Markdown = False,
) -> None:
    """Show the formats: precision, exponents, range and special values."""
    rows = format_table(map(get_format, names) if names else FORMATS.values())
    _print(rows, terminal.FORMATS, markdown)


def _print(rows: Rows, legend: terminal.Legend, markdown: bool) -> None:
    if markdown:
        say_text(markdown_table(rows))
    else:
        print_rows(rows, legend)


# Unknown options are passed as arguments, so that -0 and -inf need no "--" before them.
@command(
    "inspect",
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    epilog=terminal.help_text(terminal.INSPECT, terminal.PLAN),
)
def inspect_command(
    context: Context,
    value: Annotated[
        str, Argument(help="A decimal, taken exactly; a hex float 0x1.8p3; a fraction 1/3; inf, nan or -0.")
    ],
    format: Annotated[
        list[str] | None, Option(help="Format; repeat it to compare.", show_default="bfloat16")
    ] = None,
    rounding: Annotated[str, Option(help="Rounding mode.")] = "nearest_even",
    overflow: OverflowPolicy = "ieee",
    underflow: UnderflowPolicy = "gradual",
    plan: Annotated[bool, Option("--plan", help="Say how operations of the format are carried out.")] = False,
) -> None:
    """Look at one number in a format: its rounding, code, neighbours, ulp and expansions."""
    from mcfsim.report.inspect import inspect_value
    from mcfsim.report.tables import inspection_table, plan_table
    from mcfsim.rounding import get_rounding

    options = [name for item in context.command.params for name in item.opts if name.startswith("--")]
    if value.startswith("--"):
        raise ValueError(f"{value!r} is no number and no option{hint(value, options)}")
    for text in context.args:
        raise ValueError(f"{text!r} is no option{hint(text, options)}, and only one number is taken")
    names = format or ["bfloat16"]
    inspections = [inspect_value(value, name, rounding, overflow, underflow) for name in names]
    print_columns(inspection_table(value, inspections), terminal.INSPECT)
    if plan:
        policies = get_rounding(rounding, overflow, underflow)
        rows = [row for name in names for row in plan_table(get_format(name), policies)]
        print_rows(rows, terminal.PLAN, ["why"], numbers=False)


@command(epilog=terminal.help_text(terminal.MEMORY))
def memory(
    models: Annotated[
        list[str] | None,
        Argument(
            metavar="[MODEL]...",
            help="Numbers of parameters, such as 7e9; weights (.safetensors, a folder of them, their index, "
            ".npz); or names, such as gpt-6.7b and openllama-7b; default 1e9.",
        ),
    ] = None,
    low: Annotated[str, Option(help="Low format.")] = "bfloat16",
    strategy: Annotated[
        list[str] | None, Option(help="Strategy; repeat it for several.", show_default="all")
    ] = None,
    markdown: Markdown = False,
) -> None:
    """Show what every storage strategy keeps for each parameter, and for all of a model."""
    from mcfsim.models.memory import get_models
    from mcfsim.report.tables import memory_table

    rows = memory_table(get_models(models or ["1e9"]), low, strategy or ())
    _print(rows, terminal.MEMORY, markdown)


# -- programs ---------------------------------------------------------------------------------------------
# Each function imports what it needs, so that other commands start at once.


def _pseudocode(recorded: RecordedAlgorithm) -> None:
    say_text(recorded.program.pseudocode())


def _text(recorded: RecordedAlgorithm) -> None:
    say_text(recorded.source.rstrip())


def _llvm(recorded: RecordedAlgorithm) -> None:
    from mcfsim.report.program_report import generated_source

    say_text(generated_source(recorded).rstrip())


def _triton(recorded: RecordedAlgorithm) -> None:
    from mcfsim.report.program_report import generated_kernel

    say_text(generated_kernel(recorded).rstrip())


def _network(recorded: RecordedAlgorithm) -> None:
    from mcfsim.report.wiring import network_text, wired

    width = output_width()
    say_text(network_text(wired(recorded.program, recorded.results), width))
    if width is not None:
        print_legend(terminal.NETWORK, width)


def _cost(recorded: RecordedAlgorithm) -> None:
    from mcfsim.report import program_report

    tables = [program_report.summary_table(recorded), program_report.memory_table(recorded)]
    why = program_report.refused(recorded)
    if why is None:
        tables.insert(1, program_report.machine_table(recorded))
    print_rows(program_report.operation_table(recorded), terminal.COST, ["why"], numbers=False)
    for rows in tables:
        say("")
        print_rows(rows, terminal.COST)
    if why is not None:
        say("", f"There is no line for the machine: {why}")


#: Functions that show a program, by the value of ``--as``.
VIEWS: dict[str, Callable[[RecordedAlgorithm], None]] = {
    "pseudocode": _pseudocode,
    "text": _text,
    "network": _network,
    "llvm": _llvm,
    "triton": _triton,
    "cost": _cost,
}


@command(epilog=terminal.help_text(terminal.COST, terminal.NETWORK))
def show(
    name: Annotated[
        str | None,
        Argument(
            help="An algorithm, such as two_sum, expansion.grow, adamw or adafactor.rows; without it all are "
            "listed."
        ),
    ] = None,
    format: Annotated[str, Option(help="Format of operands and operations; an optimizer's low format.")] = (
        "bfloat16"
    ),
    rounding: Annotated[str, Option(help="Rounding mode.")] = "nearest_even",
    overflow: OverflowPolicy = "ieee",
    underflow: UnderflowPolicy = "gradual",
    strategy: Annotated[
        str | None, Option(help="Storage strategy of an optimizer.", show_default="plain")
    ] = None,
    components: Annotated[
        int | None,
        Option(help="Length of tuples of variable length (expansions).", min=1, max=8, show_default="2"),
    ] = None,
    view: Annotated[
        str,
        Option(
            "--as",
            help="pseudocode; text, its Python; network, a drawing; llvm or triton, the generated source; "
            "cost.",
        ),
    ] = "pseudocode",
    output: Annotated[
        Path | None, Place.WRITTEN, Option(help="Draw --as network into this file, .svg or .png.")
    ] = None,
) -> None:
    """Show an algorithm as a program: its operations, its drawing, its compiled loop, and what it costs."""
    from mcfsim.report.algorithms import algorithm_table, is_staged, record, stage_table
    from mcfsim.report.plotting import checked_suffix
    from mcfsim.rounding import get_rounding

    if view not in VIEWS:
        raise ValueError(f"unknown --as {view!r}{hint(view, VIEWS)}; allowed: {', '.join(VIEWS)}")
    if output is not None and view != "network":
        raise ValueError("--output takes a drawing: give --as network with it")
    fmt, policies = get_format(format), get_rounding(rounding, overflow, underflow)
    if name is None:
        if output is not None or strategy is not None or components is not None:
            raise ValueError("name an algorithm; without one, mcfsim show lists all")
    elif output is not None:
        checked_suffix(output)
    if name is None or (is_staged(name) and view == "pseudocode"):
        rows = algorithm_table() if name is None else stage_table(name)
        print_rows(rows, terminal.ALGORITHMS, ["what"], numbers=False)
        return
    recorded = record(name, fmt, policies, strategy=strategy, components=components)
    if output is None:
        VIEWS[view](recorded)
    else:
        _draw(recorded, f"{recorded.program.name}; {fmt}, {policies.mode}", output)


def _draw(recorded: RecordedAlgorithm, title: str, output: Path) -> None:
    from mcfsim.report.plotting import save_one
    from mcfsim.report.program_report import network_figure
    from mcfsim.report.wiring import wired

    program = recorded.program
    about = f"{title}: {len(program.steps)} operations, depth {program.depth()}"
    with network_figure(wired(program, recorded.results), about) as figure:
        save_one(figure, output)
    say(f"saved {output}")
