"""The command line ``mcfsim``, with one file for each group of commands.

`application` has the code that commands share, such as how they end; `options` has options that several of
them take. Commands print what `report` lays out, and compute nothing themselves. Imports anything; nothing
imports it. Begin with `show`, the simplest.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from mcfsim.cli.application import app, standard_streams

__all__ = ["app", "main"]

# Importing a file adds its commands.
for _name in sorted(module.name for module in iter_modules(__path__)):
    import_module(f"{__name__}.{_name}")


def main() -> None:
    """Run the command line."""
    with standard_streams():
        app(prog_name="mcfsim")
