"""The command line: formats, single numbers, simulations, memory, theorems."""

from __future__ import annotations

import inspect
import shlex
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from mcfsim.checks.names import hint
from mcfsim.formats import FORMATS, format_table, get_format

# The rest is imported by the command that needs it, so that the others start at once.
from mcfsim.report import legends
from mcfsim.report.terminal import output_width, print_columns, print_legend, print_rows

app = typer.Typer(
    help="Bit-exact emulation of low-precision training.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

#: Options named otherwise than the argument that they stand for.
OPTION_NAMES = {"seed": "problem-seed", "epsilon": "eps"}

#: What the library raises of arguments that it cannot take, or that take more than there is.
_REFUSALS = (ValueError, TypeError, ArithmeticError, OSError, ImportError, RuntimeError, MemoryError)


def main() -> None:
    """Run the command line."""
    app(prog_name="mcfsim")


@contextmanager
def _errors_in_one_line() -> Iterator[None]:
    """Print what the library has to say about the arguments, and end with status 2."""
    try:
        yield
    except typer.Exit:  # which is a RuntimeError
        raise
    except _REFUSALS as error:
        text = " ".join(str(error).split()) or type(error).__name__
        if isinstance(error, MemoryError):
            text = f"this takes more memory than there is: {text}"
        typer.secho(f"Error: {text}", fg="red", err=True)
        raise typer.Exit(2) from None


@contextmanager
def _warnings_in_one_line() -> Iterator[None]:
    """Print warnings without the line of code that gives them."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_: typer.secho(f"Warning: {message}", fg="yellow", err=True)
        yield


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"mcfsim {version('mcfsim')}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool, Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Bit-exact emulation of low-precision training."""


@app.command(epilog=legends.help_text(legends.FORMATS))
def formats(
    names: Annotated[
        list[str] | None,
        Argument(metavar="[NAME]...", help="Formats to show, as bfloat16 or e6m9; default all."),
    ] = None,
    markdown: Annotated[bool, Option("--markdown", help="Print a GitHub table.")] = False,
) -> None:
    """Show the formats: precision, exponents, range and special values."""
    with _errors_in_one_line():
        rows = format_table(map(get_format, names) if names else FORMATS.values())
        if markdown:
            from mcfsim.report.tables import markdown_table

            typer.echo(markdown_table(rows))
        else:
            print_rows(rows, legends.FORMATS)


# Unknown options are passed on as arguments, so that -0 and -inf need no "--" before them.
@app.command(
    "inspect",
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    epilog=legends.help_text(legends.INSPECT, legends.PLAN),
)
def inspect_command(
    context: typer.Context,
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
    with _errors_in_one_line():
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
    with _errors_in_one_line(), _warnings_in_one_line(), _telling_how_to_go_on(checkpoint, nothing):
        from mcfsim.optim.declaration import optimizers
        from mcfsim.problems.registry import PROBLEMS
        from mcfsim.report.tables import run_table
        from mcfsim.storage.files import check_outputs
        from mcfsim.training.schedule import Schedule
        from mcfsim.training.simulate import DEFAULT_STRATEGIES
        from mcfsim.training.simulate import simulate as run_simulation

        if checkpoint_every is not None and checkpoint is None:
            raise ValueError("--checkpoint-every needs --checkpoint, which names the file")
        check_outputs({"--checkpoint": checkpoint, "--output": output})
        shape = {"layers": layers, "width": width, "heads": heads, "context": context, "batch": batch}
        objective = _make(
            *("problem", problem, PROBLEMS),
            {
                "dimension": dimension,
                "condition_number": condition_number,
                "seed": problem_seed,
                "l2": l2,
                **shape,
            },
        )
        hyperparameters = _make(
            *("optimizer", optimizer, optimizers()),
            {
                "beta1": beta1,
                "beta2": beta2,
                "epsilon": eps,
                "momentum": momentum,
                "weight_decay": weight_decay,
            },
        )
        schedule = Schedule(**_given({"peak": lr, "warmup": warmup, "final": final}))
        run = run_simulation(
            objective,
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
            **_given({"checkpoint_every": checkpoint_every}),
        )
        about = ", ".join(f"{name} = {value!r}" for name, value in asdict(hyperparameters).items())
        about += f"; peak rate = {schedule.peak!r}, steps = {steps}, low = {get_format(low)}"
        typer.echo(f"{problem}, {optimizer}: {about}")
        rows = run_table(run)
        print_rows(rows, {})
        cells = [text for row in rows for text in row.values()]
        print_legend(legends.under(legends.SIMULATE, rows[0], cells), output_width())
        diverged = {
            name: found["diverged_at"] for name, found in run.results.items() if "diverged_at" in found
        }
        for name, step in diverged.items():
            typer.echo(f"{name} diverged at step {step}: its loss, gradient or state is infinite or NaN")
        if output is not None:
            run.save(output)
            typer.echo(f"saved {output}")
    if diverged:
        raise typer.Exit(1)


@app.command(epilog=legends.help_text(legends.MEMORY))
def memory(
    parameters: Annotated[float, Argument(help="How many parameters, as 7e9.", min=1)] = 1e9,
    low: Annotated[str, Option(help="Low format.")] = "bfloat16",
) -> None:
    """Show what every storage strategy keeps for each parameter, and for all of them."""
    with _errors_in_one_line():
        from mcfsim.report.tables import memory_table

        print_rows(memory_table(parameters, get_format(low)), legends.MEMORY)


@app.command(epilog=legends.help_text(legends.VERIFY, legends.LISTING))
def verify(
    theorems: Annotated[
        list[str] | None,
        Argument(metavar="[ID]...", help="Statements; all by default. With --list, patterns."),
    ] = None,
    format: Annotated[
        list[str] | None,
        Option(
            help="Format; repeat it for several.",
            show_default="float8_e4m3fn, float8_e5m2, bfloat16, float16",
        ),
    ] = None,
    rounding: Annotated[
        list[str] | None,
        Option(
            help="Mode, or 'every' for every one that a statement is claimed for; repeat it for several.",
            show_default="nearest_even, or the first that a statement is claimed for",
        ),
    ] = None,
    extent: Annotated[
        str, Option(help="core: operands that stand for all by stated reductions. all: no reductions.")
    ] = "core",
    limit: Annotated[
        int | None, Option(min=1, help="The most cases of a core of double words.", show_default="1.1e9")
    ] = None,
    samples: Annotated[
        int | None, Option(min=0, help="Random cases where a core is not all.", show_default="2^22")
    ] = None,
    seed: Annotated[int, Option(min=0, help="Of the random cases.")] = 0,
    workers: Annotated[
        int | None, Option(min=1, help="Processes.", show_default="as many as cores, if it takes long")
    ] = None,
    dask: Annotated[str | None, Option(help="Scheduler of a Dask cluster, as tcp://host:8786.")] = None,
    journal: Annotated[
        Path | None, Option(help="Where finished work is kept.", show_default="in the user's folder")
    ] = None,
    resume: Annotated[
        bool, Option("--resume/--fresh", help="Go on from what the journal has, or try all of it again.")
    ] = True,
    output: Annotated[Path | None, Option(help="Folder for the certificates, as JSON.")] = None,
    listing: Annotated[
        bool,
        Option(
            "--list",
            help="List statements and their sources: all, or those whose id matches, as 'dw_*' or sum.",
        ),
    ] = False,
    check: Annotated[
        list[Path] | None,
        Option(
            help="Examine a certificate: try again its witnesses, and of each part random cases by the "
            "oracle (--samples, --seed) and all by the emulator if they are few (--limit). Repeat it for "
            "several.",
        ),
    ] = None,
) -> None:
    """Try every operand; exit status 1 if a claim fails that should hold, or holds that should fail."""
    with _errors_in_one_line():
        from mcfsim.report.tables import certificate_table, theorem_table
        from mcfsim.theorems import THEOREMS
        from mcfsim.theorems.verification import matching

        if listing:
            chosen = theorem_table(THEOREMS[name] for name in matching(theorems or ["*"]))
            print_rows(chosen, legends.LISTING, ("statement", "source"), numbers=False)
            return
        options = _given({"limit": limit, "samples": samples, "seed": seed})
        if check:
            good = _examine(check, options)
        else:
            if output is not None and not output.is_dir():
                raise ValueError(f"cannot write to {output}: it must be a folder that exists")
            from mcfsim.kernels.carriers import UnsupportedFormatError
            from mcfsim.storage.files import check_outputs
            from mcfsim.sweeps.sweep import Sweep
            from mcfsim.theorems.verification import plan, run, sort_out, workers_for

            checks, refused = sort_out(plan(theorems, format, rounding, extent=extent, **options))
            names = {f"{item.theorem.name}-{item.format}-{item.rounding.mode}" for item in checks}
            places = {f"certificate {name}": output / f"{name}.json" for name in sorted(names) if output}
            check_outputs({"--journal": journal, **places})
            path = journal or _default_journal()
            certificates = []
            many, show = workers or workers_for(checks), sys.stderr.isatty()
            anew = None if path is None else resume
            with (
                _telling_how_to_go_on(path, "no journal was kept, so the same command begins anew."),
                Sweep(many, dask=dask, journal=path, resume=anew, progress=show) as sweep,
            ):
                for certificate in run(checks, sweep):
                    certificates.append(certificate)
                    if output is not None:
                        certificate.save(output / f"{certificate.name}.json")
            if sweep.resumed:
                typer.echo(
                    f"{sweep.resumed:,} cases are from the journal {path}; --fresh tries them again", err=True
                )
            if certificates:
                print_rows(certificate_table(certificates), legends.VERIFY, ("at", "counterexample"))
            for one, reason in refused:
                typer.echo(f"refused: {one.theorem.name}, {one.format}, {one.rounding.mode}: {reason}")
            # What does not apply is no failure; what is left without a case is one.
            good = all(certificate.as_expected for certificate in certificates)
            good &= all(isinstance(reason, UnsupportedFormatError) for _, reason in refused)
    if not good:
        raise typer.Exit(1)


def _examine(paths: list[Path], options: dict[str, Any]) -> bool:
    """Print what is wrong with certificates, and how much was tried again; return whether nothing is."""
    from mcfsim.theorems.recheck import examine

    good = True
    for path in paths:
        found = examine(path, **options)
        typer.echo(f"{path}: {found}")
        good &= not found.problems
    return good


def _default_journal() -> Path | None:
    """Return the journal in the user's folder, or None, and say why, if none can be kept there."""
    from mcfsim.sweeps.journal import VERSION, Journal

    path = Path(typer.get_app_dir("mcfsim")) / f"verify-{VERSION}.sqlite"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        Journal(path).close()
    except (OSError, ValueError) as problem:
        typer.echo(f"No journal is kept ({problem}); --journal FILE keeps one.", err=True)
        return None
    return path


@contextmanager
def _telling_how_to_go_on(kept: Path | None, otherwise: str) -> Iterator[None]:
    """On Ctrl-C say which command goes on from what is kept in a file, and end with status 130."""
    try:
        yield
    except KeyboardInterrupt:
        # A fresh start would forget what is finished by now.
        again = shlex.join(["mcfsim", *(word for word in sys.argv[1:] if word != "--fresh")])
        text = otherwise if kept is None else f"what is finished is in {kept}. To go on: {again}"
        typer.echo(f"\nEnded; {text}", err=True)
        raise typer.Exit(130) from None


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _make(label: str, name: str, kinds: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
    """Return the problem or optimizer of a name; refuse options that it has no use for."""
    if name not in kinds:
        raise ValueError(f"unknown {label} {name!r}{hint(name, kinds)}; known {label}s: {', '.join(kinds)}")
    given = _given(options)
    taken = [argument for argument in inspect.signature(kinds[name]).parameters if argument in options]
    if stray := [argument for argument in given if argument not in taken]:
        raise ValueError(
            f"{label} {name!r} has no {_options(stray)}; it takes {_options(taken) or 'no options'}"
        )
    return kinds[name](**given)


def _options(arguments: list[str]) -> str:
    return ", ".join("--" + OPTION_NAMES.get(name, name).replace("_", "-") for name in arguments)
