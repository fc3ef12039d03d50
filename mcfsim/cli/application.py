"""The command-line application: its output streams, the command decorator, and error handling."""

from __future__ import annotations

import inspect
import io
import json
import os
import shlex
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, TextIO, TypeVar

import typer
from rich.markup import escape
from typer import Option
from typer.core import TyperCommand

from mcfsim.checks import printable
from mcfsim.report.terminal import say
from mcfsim.storage.files import OutputError, ToldFile, check_outputs, write_text


# -- closed or full output --------------------------------------------------------------------------------
class PipeClosedError(BaseException):
    """The reader of a pipe is gone; not a subclass of Exception, so that no error handler catches it."""


class _Stream(ToldFile):
    """A standard stream whose reader may close it."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OutputError as problem:
            if isinstance(problem.__cause__, BrokenPipeError):
                raise PipeClosedError from None
            raise


@contextmanager
def standard_streams() -> Iterator[None]:
    """Run a command with standard streams whose errors end it as they would end other programs.

    A closed pipe ends the command by SIGPIPE, as `head` ends the program before it, or with status 141 where
    this signal does not exist. Other write errors, such as a full disk, end it with an error line and status
    2, and so does a standard output that is closed from the start. Characters that the stream's encoding
    lacks are escaped as in Python.
    """
    if sys.stderr is None:  # as by 2>&-
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115  # open as long as the process
    if sys.stdout is None:
        _refuse("cannot write standard output: it is closed")
    streams = sys.stdout, sys.stderr
    try:
        sys.stdout = _watched(sys.stdout, "standard output")
        sys.stderr = _watched(sys.stderr, "standard error")
        try:
            yield
        finally:
            sys.stdout.flush()
    except PipeClosedError:
        _end_by_signal()
    except OutputError as problem:  # of the last flush
        _refuse(str(problem))
    finally:
        sys.stdout, sys.stderr = streams


def _watched(stream: TextIO, label: str) -> TextIO:
    """Return a `_Stream` to the same file, or the given stream if it writes to no file."""
    try:
        watched = _Stream(stream.fileno(), "wb", label, closefd=False)
    except io.UnsupportedOperation:
        return stream
    stream.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(watched),
        encoding=stream.encoding,
        errors="backslashreplace",
        line_buffering=stream.isatty() or stream is sys.stderr,
    )


def _refuse(text: str) -> None:
    sys.stderr.write(f"Error: {text}\n")
    sys.exit(2)


def _end_by_signal() -> None:
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGPIPE)
    os._exit(141)  # 128 and the signal's number, as shells say it


# -- the application --------------------------------------------------------------------------------------
app = typer.Typer(
    help="Bit-exact emulation of low-precision training.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)

_Function = TypeVar("_Function", bound=Callable[..., None])

#: Exceptions that the library raises for arguments that it cannot take, or for lack of memory.
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
    """What a command does with a file or folder; each path among its parameters is annotated with one."""

    READ = "a file or folder that is read"
    WRITTEN = "a file that is written, or taken up and written anew"
    FOLDER = "a folder, which must be there, that files are written to"


class _Command(TyperCommand):
    """A command whose help is plain text: brackets are not markup."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        for item in (self, *self.params):
            for name in ("help", "epilog"):
                if text := getattr(item, name, None):
                    setattr(item, name, escape(text))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words of a command, and refuse an empty path, which is taken for the working folder."""
        given, *_ = self.make_parser(ctx).parse_args(args=[*args])
        assert self.callback is not None
        with errors_in_one_line():
            for name, (label, _) in places_of(self.callback).items():
                words = given.get(name)
                if "" in (words if isinstance(words, list | tuple) else [words]):
                    raise ValueError(f"{label} is empty: it names no file or folder")
        rest: list[str] = super().parse_args(ctx, args)
        return rest


def command(name: str | None = None, **options: Any) -> Callable[[_Function], _Function]:
    """Return a decorator that adds a command to the application, with the checks that all commands share.

    Before the command begins, its outputs are checked by themselves and against all its inputs. Errors and
    warnings of the library are printed in one line.

    Parameters
    ----------
    name : str, optional
        Name of the command; by default that of the function.
    **options
        Options of `typer.Typer.command`.
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
    """Return the parameters of a command that are paths, with their names for users and their `Place`."""
    found = {}
    for name, parameter in inspect.signature(function, eval_str=True).parameters.items():
        about = getattr(parameter.annotation, "__metadata__", ())
        for place in about:
            if isinstance(place, Place):
                found[name] = _spelling(name, about), place
    return found


def _spelling(name: str, about: tuple[Any, ...]) -> str:
    """Return a parameter's name for users, from its annotations."""
    for item in about:
        if isinstance(item, typer.models.ArgumentInfo):
            return name.upper()
        # Typer takes the first string of an annotated option as its default.
        for word in (getattr(item, "default", None), *(getattr(item, "param_decls", None) or ())):
            if isinstance(word, str) and word.startswith("--"):
                return word
    return f"--{name.replace('_', '-')}"


def _check_places(places: Mapping[str, tuple[str, Place]], options: Mapping[str, Any]) -> None:
    """Raise if an output cannot be written, or is the same file as an input or another output."""
    from mcfsim.storage.shards import check_apart

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
    """Print an error of the library in one line, and exit with status 2."""
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
    """Print warnings in one line, without the source line that issues them."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_: typer.secho(
            f"Warning: {printable(str(message))}", fg="yellow", err=True
        )
        yield


@contextmanager
def telling_how_to_go_on(
    kept: Path | None, otherwise: str = "nothing is kept, for want of --checkpoint FILE."
) -> Iterator[None]:
    """On Ctrl-C, print the command that resumes from the kept file, and exit with status 130."""
    try:
        yield
    except KeyboardInterrupt:
        # A fresh start would discard finished work.
        again = shlex.join(["mcfsim", *(word for word in sys.argv[1:] if word != "--fresh")])
        text = otherwise if kept is None else f"what is finished is in {kept}. To go on: {again}"
        typer.echo(f"\nEnded; {printable(text)}", err=True)
        raise typer.Exit(130) from None


def check_checkpoint(checkpoint: Path | None, *, resume: bool = False, every: int | None = None) -> None:
    """Raise ValueError if options need a checkpoint's name, or an existing checkpoint, that is missing."""
    for label, wanted in (("--checkpoint-every", every is not None), ("--resume", resume)):
        if wanted and checkpoint is None:
            raise ValueError(f"{label} needs --checkpoint, which names the file")
    if resume and checkpoint is not None and not checkpoint.exists():
        raise ValueError(f"--resume: there is no checkpoint {checkpoint}")


def given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that have a value."""
    return {name: value for name, value in options.items() if value is not None}


def save_text(path: Path, text: str) -> None:
    """Write a text file, and say so."""
    write_text(path, text)
    say(f"saved {path}")


def save_json(path: Path, data: Mapping[str, Any]) -> None:
    """Write JSON data to a file, and say so."""
    save_text(path, json.dumps(data, indent=1, allow_nan=False) + "\n")
