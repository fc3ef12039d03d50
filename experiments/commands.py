"""The options of every command, as tables."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import typer.main

from mcfsim.cli import app
from mcfsim.report.tables import markdown_table


def tables() -> dict[str, Callable[[], str]]:
    """Return a table of the options of each command, by ``options_`` and its name."""
    group: Any = typer.main.get_command(app)
    return {f"options_{name}": partial(_options, command) for name, command in group.commands.items()}


def _options(command: Any) -> str:
    rows = []
    for item in command.params:
        names = [*item.opts, *item.secondary_opts]
        if names == ["--help"]:
            continue
        argument = not names[0].startswith("--")
        shown = f"`{names[0].upper()}`" if argument else ", ".join(f"`{name}`" for name in names)
        rows.append({"argument or option": shown, "meaning": _line(item.help), "default": _default(item)})
    return markdown_table(rows)


def _default(item: Any) -> str:
    """Return what holds where an option is not given, as its help says."""
    if item.required:
        return "must be given"
    if isinstance(item.show_default, str):
        return _line(item.show_default)
    empty = item.default is None or item.default is False or item.default == [] or not item.show_default
    return "" if empty else f"`{item.default}`"


def _line(text: str | None) -> str:
    return " ".join((text or "").split())
