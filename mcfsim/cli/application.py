"""The application that commands are added to, and what they all share: how they end."""

from __future__ import annotations

import shlex
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Option

app = typer.Typer(
    help="Bit-exact emulation of low-precision training.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

#: What the library raises of arguments that it cannot take, or that take more than there is.
_REFUSALS = (ValueError, TypeError, ArithmeticError, OSError, ImportError, RuntimeError, MemoryError)


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


@contextmanager
def errors_in_one_line() -> Iterator[None]:
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
def warnings_in_one_line() -> Iterator[None]:
    """Print warnings without the line of code that gives them."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_: typer.secho(f"Warning: {message}", fg="yellow", err=True)
        yield


@contextmanager
def telling_how_to_go_on(kept: Path | None, otherwise: str) -> Iterator[None]:
    """On Ctrl-C say which command goes on from what is kept in a file, and end with status 130."""
    try:
        yield
    except KeyboardInterrupt:
        # A fresh start would forget what is finished by now.
        again = shlex.join(["mcfsim", *(word for word in sys.argv[1:] if word != "--fresh")])
        text = otherwise if kept is None else f"what is finished is in {kept}. To go on: {again}"
        typer.echo(f"\nEnded; {text}", err=True)
        raise typer.Exit(130) from None


def check_checkpoint(checkpoint: Path | None, *, resume: bool = False, every: int | None = None) -> None:
    """Raise ValueError if options are given that need a checkpoint's name, or a checkpoint that is there."""
    for label, wanted in (("--checkpoint-every", every is not None), ("--resume", resume)):
        if wanted and checkpoint is None:
            raise ValueError(f"{label} needs --checkpoint, which names the file")
    if resume and checkpoint is not None and not checkpoint.exists():
        raise ValueError(f"--resume: there is no checkpoint {checkpoint}")


def given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that were given a value."""
    return {name: value for name, value in options.items() if value is not None}
