"""Options of a command that follow from what it makes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from mcfsim.cli.settings import Settings, with_settings
from mcfsim.cli.simulate import OPTIMIZER, PROBLEM
from mcfsim.optim.declaration import optimizers
from mcfsim.problems.registry import PROBLEMS


@dataclass(frozen=True)
class Near:
    rho: float = 0.5
    steps: int = 3


@dataclass(frozen=True)
class Far:
    rho: float = 0.25
    corpus: Path | None = None  # no option


@dataclass(frozen=True)
class Bare:
    steps: float  # an int of the others
    length: int


@dataclass(frozen=True)
class Worded:
    word: Path | str | None = None
    kind: str = "plain"


def application() -> tuple[typer.Typer, list[Any]]:
    """Return a command that makes one of two things, and a list of what it made."""
    things = Settings(
        "thing",
        {"near": Near, "far": Far, "bare": Bare, "said": Worded},
        names={"steps": "thing_steps"},
        meaning={"rho": "How much."},
    )
    app, made = typer.Typer(rich_markup_mode=None), []

    @app.command()
    @with_settings(things)
    def make(thing: str = "near", steps: int = 1, **settings: Any) -> None:
        made.append((things.make(thing, settings), steps))

    return app, made


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("", (Near(), 1)),
        ("--rho 2 --steps 7 --thing-steps 4", (Near(2.0, 4), 7)),
        ("--rho 0 --thing far", (Far(0.0), 1)),
        ("--thing far", (Far(), 1)),
        ("--thing bare --thing-steps .5 --length 3", (Bare(0.5, 3), 1)),
        ("--thing said", (Worded(), 1)),
        ("--thing said --word 3 --kind x", (Worded("3", "x"), 1)),
    ],
)
def test_a_thing_is_made_of_what_is_given(words: str, expected: Any) -> None:
    app, made = application()
    result = CliRunner().invoke(app, words.split())
    assert (result.exit_code, made) == (0, [expected]), result.output
    assert list(map(type, vars(made[0][0]).values())) == list(map(type, vars(expected[0]).values()))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--thing far --thing-steps 3", "thing 'far' has no --thing-steps; it takes --rho"),
        (
            "--thing nearr",
            r"unknown thing 'nearr' (did you mean 'near'?); known things: near, far, bare, said",
        ),
        ("--thing-steps 1.5", "--thing-steps = 1.5 of thing 'near' is no whole number"),
        ("--thing bare --length 2", "thing 'bare' needs --thing-steps"),
        ("--thing bare", "thing 'bare' needs --thing-steps, --length"),
        ("--word x", "thing 'near' has no --word; it takes --rho, --thing-steps"),
    ],
)
def test_what_a_kind_has_no_use_for_is_refused(words: str, message: str) -> None:
    app, made = application()
    result = CliRunner().invoke(app, words.split())
    assert str(result.exception) == message
    assert not made


@pytest.mark.parametrize("words", ["--corpus x", "--rho x", "--steps 1.5", "--length 1.5"])
def test_what_is_no_option_or_no_number_is_wrong_usage(words: str) -> None:
    app, made = application()
    assert CliRunner().invoke(app, words.split()).exit_code == 2
    assert not made


def test_the_help_says_who_takes_an_option_and_what_it_is_otherwise() -> None:
    app, _ = application()
    text = " ".join(CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"}).output.split())
    assert "How much. Of near, far. [default: (0.5 for near, 0.25 for far)]" in text
    assert "Of near, bare. [default: (3 for near, required for bare)]" in text
    assert "Of bare. [default: (required)]" in text
    assert "Of said. [default: (none)]" in text
    assert "Of said. [default: (plain)]" in text


@pytest.mark.parametrize("settings", [OPTIMIZER, PROBLEM], ids=lambda item: item.label)
def test_every_number_of_a_constructor_is_an_option_of_simulate(settings: Settings) -> None:
    kinds = optimizers() if settings is OPTIMIZER else PROBLEMS
    assert settings.kinds == kinds
    for kind in kinds:
        instance = settings.make(kind, dict.fromkeys(item.name for item in settings.parameters()))
        numbers = {name for name, value in vars(instance).items() if type(value) in (int, float)}
        words = {"format", "loss_format", "sums"} if kind == "digits" else set()
        assert set(settings.of(kind)) <= numbers | words
        if settings is OPTIMIZER:
            assert set(settings.of(kind)) == numbers == set(kinds[kind].ranges)
