"""Commands that show what is known of formats, numbers and strategies, and run nothing long."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, Context, Option

from mcfsim.checks.names import hint
from mcfsim.cli.application import command
from mcfsim.formats import FORMATS, format_table, get_format

# The rest is imported by the command that needs it, so that the others start at once.
from mcfsim.report import legends
from mcfsim.report.terminal import print_columns, print_rows, say_text


@command(epilog=legends.help_text(legends.FORMATS))
def formats(
    names: Annotated[
        list[str] | None,
        Argument(metavar="[NAME]...", help="Formats to show, as bfloat16 or e6m9; default all."),
    ] = None,
    markdown: Annotated[bool, Option("--markdown", help="Print a GitHub table.")] = False,
) -> None:
    """Show the formats: precision, exponents, range and special values."""
    rows = format_table(map(get_format, names) if names else FORMATS.values())
    if markdown:
        from mcfsim.report.tables import markdown_table

        say_text(markdown_table(rows))
    else:
        print_rows(rows, legends.FORMATS)


# Unknown options are passed on as arguments, so that -0 and -inf need no "--" before them.
@command(
    "inspect",
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    epilog=legends.help_text(legends.INSPECT, legends.PLAN),
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
    overflow: Annotated[str, Option(help="ieee or saturate.")] = "ieee",
    underflow: Annotated[str, Option(help="gradual, flush_inputs, flush_before or flush_after.")] = "gradual",
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
        raise ValueError(f"{text!r} is no option{hint(text, options)}, and one number is enough")
    names = format or ["bfloat16"]
    inspections = [inspect_value(value, name, rounding, overflow, underflow) for name in names]
    print_columns(inspection_table(value, inspections), legends.INSPECT)
    if plan:
        policies = get_rounding(rounding, overflow, underflow)
        rows = [row for name in names for row in plan_table(get_format(name), policies)]
        print_rows(rows, legends.PLAN, ["why"], numbers=False)


@command(epilog=legends.help_text(legends.MEMORY))
def memory(
    models: Annotated[
        list[str] | None,
        Argument(
            metavar="[MODEL]...",
            help="Numbers of parameters, as 7e9; weights (.safetensors, a folder of them, their index, "
            ".npz); or names, as gpt-6.7b and openllama-7b; default 1e9.",
        ),
    ] = None,
    low: Annotated[str, Option(help="Low format.")] = "bfloat16",
    strategy: Annotated[
        list[str] | None, Option(help="Strategy; repeat it for several.", show_default="all")
    ] = None,
    markdown: Annotated[bool, Option("--markdown", help="Print a GitHub table.")] = False,
) -> None:
    """Show what every storage strategy keeps for each parameter, and for all of a model."""
    from mcfsim.models.memory import get_models
    from mcfsim.report.tables import markdown_table, memory_table

    rows = memory_table(get_models(models or ["1e9"]), low, strategy or ())
    if markdown:
        say_text(markdown_table(rows))
    else:
        print_rows(rows, legends.MEMORY)
