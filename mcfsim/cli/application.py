"""The application that commands are added to, and what they all share: how they end."""

from __future__ import annotations

import inspect
import shlex
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.markup import escape
from typer import Option
from typer.core import TyperCommand

from mcfsim.checks.printable import printable

app = typer.Typer(
    help="Bit-exact emulation of low-precision training.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)

_Function = TypeVar("_Function", bound=Callable[..., None])

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


class Place(Enum):
    """What a command does with a file; each of its parameters that is a path says one."""

    READ = "a file or folder that is read"
    WRITTEN = "a file that is written, or taken up and written anew"
    FOLDER = "a folder, which must be there, that files are written to"


class _Command(TyperCommand):
    """A command whose help is text: brackets in it are brackets, and no markup."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        for item in (self, *self.params):
            for name in ("help", "epilog"):
                if text := getattr(item, name, None):
                    setattr(item, name, escape(text))


def command(name: str | None = None, **options: Any) -> Callable[[_Function], _Function]:
    """Return a decorator that adds a command: what all have in common is done around it.

    Its outputs are looked at before it begins, and against all its inputs; what the library refuses, and
    warns of, is one line.

    Parameters
    ----------
    name : str, optional
        What it is called, if otherwise than the function.
    **options
        As of `typer.Typer.command`.
    """

    def decorate(function: _Function) -> _Function:
        places = places_of(function)

        @wraps(function)
        def run(**given: Any) -> None:
            with errors_in_one_line(), warnings_in_one_line():
                _check_places(places, given)
                function(**given)

        app.command(name, cls=_Command, **options)(run)
        return function

    return decorate


def places_of(function: Callable[..., None]) -> dict[str, tuple[str, Place]]:
    """Return which parameters of a command are paths, what a user calls them, and what each is for."""
    found = {}
    for name, parameter in inspect.signature(function, eval_str=True).parameters.items():
        about = getattr(parameter.annotation, "__metadata__", ())
        for place in about:
            if isinstance(place, Place):
                found[name] = _spelling(name, about), place
    return found


def _spelling(name: str, about: tuple[Any, ...]) -> str:
    """Return what a user calls a parameter, by what is annotated."""
    for item in about:
        if isinstance(item, typer.models.ArgumentInfo):
            return name.upper()
        # Typer takes the first word of an annotated option for its default.
        for word in (getattr(item, "default", None), *(getattr(item, "param_decls", None) or ())):
            if isinstance(word, str) and word.startswith("--"):
                return word
    return f"--{name.replace('_', '-')}"


def _check_places(places: Mapping[str, tuple[str, Place]], options: Mapping[str, Any]) -> None:
    """Refuse outputs that cannot be written, or that an input or another output is."""
    from mcfsim.storage.apart import check_apart
    from mcfsim.storage.files import OutputError, check_outputs

    paths: dict[Place, dict[str, Path]] = {place: {} for place in Place}
    for name, (label, place) in places.items():
        several = options[name] if isinstance(options[name], list) else [options[name]]
        for number, path in enumerate(several, 1):
            if path is not None:
                paths[place][label if len(several) == 1 else f"{label} {number}"] = path
    for folder in paths[Place.FOLDER].values():
        if not folder.is_dir():
            raise OutputError(f"cannot write to {folder}: it must be a folder that exists")
    check_outputs(paths[Place.WRITTEN])
    check_apart(paths[Place.WRITTEN], paths[Place.READ])


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
        typer.secho(f"Error: {printable(text)}", fg="red", err=True)
        raise typer.Exit(2) from None


@contextmanager
def warnings_in_one_line() -> Iterator[None]:
    """Print warnings without the line of code that gives them."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_: typer.secho(
            f"Warning: {printable(str(message))}", fg="yellow", err=True
        )
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
        typer.echo(f"\nEnded; {printable(text)}", err=True)
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
