"""The command line ``mcfsim``, with one file for each group of commands.

`application` has the code that commands share, such as how they end; `options` has options that several of
them take. Commands print what `report` lays out, and compute nothing themselves. Imports anything; nothing
imports it. Begin with `show`, the simplest.
"""

from __future__ import annotations

from mcfsim.cli.application import app, standard_streams
from mcfsim.optim.declaration import modules_of

__all__ = ["app", "main"]

modules_of(__name__)  # a file's commands are added when it is imported


def main() -> None:
    """Run the command line."""
    with standard_streams():
        app(prog_name="mcfsim")
