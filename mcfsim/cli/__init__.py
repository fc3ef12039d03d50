"""The command line: formats, single numbers, simulations, memory, theorems, texts."""

from __future__ import annotations

from mcfsim.cli import look, show, simulate, verify
from mcfsim.cli.application import app

__all__ = ["app", "look", "main", "show", "simulate", "verify"]


def main() -> None:
    """Run the command line."""
    app(prog_name="mcfsim")
