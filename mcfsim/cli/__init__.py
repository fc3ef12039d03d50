"""The command line: formats, numbers, simulations, replays, audits, assignments, memory, theorems, texts."""

from __future__ import annotations

from mcfsim.cli import assign, audit, look, replay, show, simulate, verify
from mcfsim.cli.application import app
from mcfsim.cli.streams import standard_streams

__all__ = ["app", "assign", "audit", "look", "main", "replay", "show", "simulate", "verify"]


def main() -> None:
    """Run the command line."""
    with standard_streams():
        app(prog_name="mcfsim")
