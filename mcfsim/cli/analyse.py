"""The command `analyse`: what rounding does to a function, which expression is to blame, what cures it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from inspect import isfunction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from mcfsim.checks import hint
from mcfsim.cli.application import Place, command, given, save_json, save_text
from mcfsim.cli.options import FILES, Json
from mcfsim.report.terminal import say, say_text

if TYPE_CHECKING:
    from mcfsim.analysis.curves import Curve

_MORE = "Further questions"


@command()
def analyse(
    function: Annotated[
        str | None,
        Argument(help="mine.py:NAME, module:NAME, or a name that --list shows.", show_default=False),
    ] = None,
    input: Annotated[
        list[str] | None,
        Option(
            "--input",
            help="An operand and its numbers, such as 'x=normal()*16': uniform(a, b), normal(), logspace(a, "
            "b) or values('file.npy'), and *16 for a tuple of 16. Repeat it for each operand.",
        ),
    ] = None,
    format: Annotated[
        list[str] | None, Option("--format", help="Format; repeat it for several.", show_default="bfloat16")
    ] = None,
    rounding: Annotated[str, Option(help="Rounding mode of all operations.")] = "nearest_even",
    scalars: Annotated[str, Option(help="How numbers in the function enter: exact or rounded.")] = "exact",
    option: Annotated[
        list[str] | None, Option(help="An option of the function, such as 'beta=0.999'. Repeat it.")
    ] = None,
    output: Annotated[str, Option(help="The result that is analysed: its place, or sum.")] = "0",
    data: Annotated[
        str, Option(help="format: rounded inputs are the data; real: rounding them is part of the error.")
    ] = "format",
    count: Annotated[int, Option(help="Number of inputs.", min=1)] = 1000,
    seed: Annotated[int, Option(help="Seed of the inputs.", min=0)] = 0,
    truth: Annotated[int, Option(help="Inputs whose errors are compared with mpmath.", min=0)] = 20,
    threads: Annotated[int, Option(help="Threads that share the inputs.", min=1)] = 1,
    target: Annotated[
        str | None,
        Option(
            help="Advise on how to bring the error below this, such as 2u or 0.01.", rich_help_panel=_MORE
        ),
    ] = None,
    wide: Annotated[
        str | None,
        Option(
            help="The wider format of the advice, or 'two components'.",
            show_default="float32",
            rich_help_panel=_MORE,
        ),
    ] = None,
    search: Annotated[
        bool, Option("--search", help="Search for the worst input.", rich_help_panel=_MORE)
    ] = False,
    along: Annotated[
        str | None,
        Option(
            help="Draw a curve: precision=4:24, length=4,16,64, condition, components=1:3 or rounding.",
            rich_help_panel=_MORE,
        ),
    ] = None,
    json_file: Json = None,
    html: Annotated[
        Path | None,
        Place.WRITTEN,
        Option(help="Write the report to this file, as one HTML page.", rich_help_panel=FILES),
    ] = None,
    png: Annotated[
        Path | None,
        Place.WRITTEN,
        Option(help="Draw errors and shares into this file, .png or .svg.", rich_help_panel=FILES),
    ] = None,
    list_functions: Annotated[
        bool, Option("--list", help="Show the functions of the library, and exit.")
    ] = False,
) -> None:
    """Say what rounding does to a function, which of its expressions is to blame, and what cures it.

    A function is `f(ar, *operands)`, in which `ar.add(x, y)` and so on stand for operations.
    """
    if list_functions:
        _list()
        return
    if function is None:
        raise ValueError(
            "name a function, as mine.py:softmax; mcfsim analyse --list shows those of the library"
        )
    from mcfsim.analysis.advice import target_of, wider_format
    from mcfsim.analysis.analyse import analyse as run_analysis
    from mcfsim.analysis.samplers import innermost, sampler
    from mcfsim.formats import get_format
    from mcfsim.report.plotting import checked_suffix
    from mcfsim.storage.shards import check_apart

    if png is not None:
        checked_suffix(png)
    found, samplers = function_named(function)
    told = _pairs(input, "--input", "x=normal()")
    inputs = {**samplers, **{name: sampler(text) for name, text in told.items()}}
    read = {f"--input {name}": item.file for name, item in inputs.items()}
    if isfunction(inner := innermost(found)):
        read["FUNCTION"] = Path(inner.__code__.co_filename)
    check_apart({"--json": json_file, "--html": html, "--png": png}, read)
    options = {name: _literal(text) for name, text in _pairs(option, "--option", "k=2").items()}
    formats = format or ["bfloat16"]
    if len(formats) > 1 and any(x is not None for x in (json_file, html, png)):
        raise ValueError("files are written of one format: give --format once")
    if target is None and wide is not None:
        raise ValueError("--wide needs --target, which asks for advice")
    wide = "float32" if wide is None else wide
    if target is not None:  # refused before the work begins
        for fmt in map(get_format, formats):
            target_of(target, fmt)
            wider_format(wide, fmt)
    shared: dict[str, Any] = {
        **{"count": count, "seed": seed, "rounding": rounding, "scalars": scalars, "data": data},
        **{"options": options, "threads": threads, "output": output if output == "sum" else _whole(output)},
    }
    curves = [] if along is None else _curves(found, inputs, formats, along, shared)
    for place, report in enumerate(run_analysis(found, inputs, formats, truth=truth, **shared)):
        say_text(("\n" if place else "") + str(report))
        advice = report.advise(target, wide) if target is not None else None
        if advice is not None:
            say(f"advice   {advice}")
        worst = report.search() if search else None
        if worst is not None:
            say(f"worst    {worst}")
        more = given({"advice": advice, "found": worst, "curve": curves[0] if curves else None})
        if json_file is not None:
            save_json(json_file, report.as_json(**more))
        if html is not None:
            from mcfsim.report.analysis_report import analysis_page

            save_text(html, analysis_page(report, **more))
        if png is not None:
            from mcfsim.report.plot import plot

            plot(report, png)
            say(f"saved {png}")
    for made in curves:
        say_text(f"\n{made}")


# -- functions by name ------------------------------------------------------------------------------------
def library() -> dict[str, Callable[..., Any]]:
    """Return the functions of `mcfsim.functions` by name."""
    from mcfsim import functions

    found = {name: getattr(functions, name) for name in functions.__all__}
    return {name: item for name, item in found.items() if isfunction(item)}


def function_named(name: str) -> tuple[Callable[..., Any], dict[str, Any]]:
    """Return a function and the inputs that are known for it.

    Parameters
    ----------
    name : str
        ``path.py:NAME``, ``module:NAME``, or a name of the library or of a benchmark.

    Raises
    ------
    ValueError
        If there is no such file, module or function.
    """
    if ":" not in name:
        return _of_library(name)
    path, _, attribute = name.rpartition(":")
    if not (path and attribute):
        raise ValueError(f"{name!r} names no function: write mine.py:NAME or module:NAME")
    module = _loaded(path)
    found = getattr(module, attribute, None)
    if not callable(found):
        names = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise ValueError(f"{path} has no function {attribute!r}{hint(attribute, names)}")
    return found, {}


def _of_library(name: str) -> tuple[Callable[..., Any], dict[str, Any]]:
    """Return a function of the library, or a benchmark and its inputs."""
    from mcfsim.analysis.samplers import operand_names, uniform
    from mcfsim.functions import FPBENCH

    known = library()
    if name in known:
        return known[name], {}
    if name.endswith(".py"):
        raise ValueError(f"which function of {name}? Write {name}:NAME")
    if name not in FPBENCH:
        every = [*known, *FPBENCH]
        raise ValueError(f"no function {name!r}{hint(name, every)}; mcfsim analyse --list shows all")
    item = FPBENCH[name]
    ranges = [uniform(low, high) for low, high in item.inputs.values()]
    return item.function, dict(zip(operand_names(item.function, {}), ranges, strict=True))


def _loaded(path: str) -> Any:
    """Import a module from a file, or by its name from the current folder or Python's path."""
    import importlib
    import importlib.util
    import os
    import sys

    if path.endswith(".py") and not Path(path).is_file():
        raise ValueError(f"there is no file {path}")
    try:
        if not path.endswith(".py"):
            if os.getcwd() not in sys.path:
                sys.path.insert(0, os.getcwd())
            return importlib.import_module(path)
        # Next to its own imports, and under a name that no other module has.
        sys.path.insert(0, str(Path(path).resolve().parent))
        spec = importlib.util.spec_from_file_location(f"analysed {Path(path).stem}", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as problem:
        raise ValueError(f"{path} cannot be imported: {type(problem).__name__}: {problem}") from problem
    return module


def _list() -> None:
    import inspect

    from mcfsim.analysis.samplers import operand_names
    from mcfsim.functions import FPBENCH
    from mcfsim.report.terminal import print_rows

    rows = []
    for name, function in library().items():
        about = (inspect.getdoc(function) or "").partition("\n")[0]
        rows.append({"function": name, "operands": ", ".join(operand_names(function, {})), "about": about})
    for name, item in FPBENCH.items():
        rows.append({"function": name, "operands": ", ".join(item.inputs), "about": item.source})
    print_rows(rows, {}, ["about"])


# -- options ----------------------------------------------------------------------------------------------
def _pairs(texts: list[str] | None, label: str, example: str) -> dict[str, str]:
    """Return names with their values, each given once."""
    found: dict[str, str] = {}
    for text in texts or ():
        name, sign, value = (part.strip() for part in text.partition("="))
        if not (sign and name.isidentifier() and value):
            raise ValueError(f"{label} {text!r} is no name with a value: write {label} '{example}'")
        if name in found:
            raise ValueError(f"{label} {text!r}: {name} has a value already, {found[name]}")
        found[name] = value
    return found


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"--output {text}: write the place of a result, counted from 0, or sum") from None


def _curves(
    function: Any, inputs: Any, formats: Sequence[str], along: str, shared: dict[str, Any]
) -> list[Curve]:
    """Return what --along asks for, a curve for each format: a quantity, and its values if given."""
    from mcfsim.analysis.curves import SET, curve

    name, sign, text = along.partition("=")
    at: list[Any] | None = None
    if sign:
        try:
            if ":" in text:
                start, stop, *step = map(int, text.split(":"))
                at = list(range(start, stop + (-1 if step and step[0] < 0 else 1), *step))
            else:
                at = [x if name == "rounding" else int(x) for x in text.split(",")]
        except (TypeError, ValueError):
            raise ValueError(f"--along {along}: write values as 4:24, 4:24:2 or 4,8,16") from None
        if not at:
            raise ValueError(f"--along {along}: there are no values between these ends")
    own = SET.get(name, ())
    rest = {key: value for key, value in shared.items() if key not in own}
    some = formats[:1] if name == "precision" else formats
    return [curve(function, inputs, name, at, formats=x, **rest) for x in some]
