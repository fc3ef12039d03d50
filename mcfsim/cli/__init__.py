"""The command line: formats, single numbers, simulations, replays, audits, memory, theorems, texts."""

from __future__ import annotations

from mcfsim.cli import audit, look, replay, show, simulate, verify
from mcfsim.cli.application import app

__all__ = ["app", "audit", "look", "main", "replay", "show", "simulate", "verify"]


def main() -> None:
    """Run the command line."""
    app(prog_name="mcfsim")
