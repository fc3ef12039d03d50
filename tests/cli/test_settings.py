"""Options of a command that follow from what it makes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from mcfsim.cli.settings import Settings, with_settings
from mcfsim.cli.simulate import OPTIMIZER, PROBLEM
from mcfsim.optim.declaration import optimizers
from mcfsim.problems.registry import PROBLEMS


def near(rho: float = 0.5, steps: int = 3) -> tuple[Any, ...]:
    return "near", rho, steps


def far(rho: float = 0.25, corpus: Path | None = None) -> tuple[Any, ...]:  # the latter is no option
    return "far", rho, corpus


def bare(steps: float, length: int) -> tuple[Any, ...]:  # steps are an int of the others
    return "bare", steps, length


def said(word: Path | str | None = None, kind: str = "plain") -> tuple[Any, ...]:
    return "said", word, kind


def run(line: str) -> tuple[Any, list[Any]]:
    """Run a command that makes one of these things; return its result, and what it made."""
    kinds = {"near": near, "far": far, "bare": bare, "said": said}
    things = Settings("thing", kinds, names={"steps": "thing_steps"}, meaning={"rho": "How much."})
    app, made = typer.Typer(rich_markup_mode=None), []

    @app.command()
    @with_settings(things)
    def make(thing: str = "near", steps: int = 1, **settings: Any) -> None:
        made.append((*things.make(thing, settings), steps))

    return CliRunner().invoke(app, line.split(), env={"COLUMNS": "200"}), made


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", ("near", 0.5, 3, 1)),
        ("--rho 2 --steps 7 --thing-steps 4", ("near", 2.0, 4, 7)),
        ("--rho 0 --thing far", ("far", 0.0, None, 1)),
        ("--thing bare --thing-steps .5 --length 3", ("bare", 0.5, 3, 1)),
        ("--thing said", ("said", None, "plain", 1)),
        ("--thing said --word 3 --kind x", ("said", "3", "x", 1)),
    ],
)
def test_a_thing_is_made_of_what_is_given(line: str, expected: Any) -> None:
    result, made = run(line)
    assert (result.exit_code, repr(made)) == (0, repr([expected])), result.output  # their types, too


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--thing far --thing-steps 3", "thing 'far' has no --thing-steps; it takes --rho"),
        ("--thing nea", "unknown thing 'nea' (did you mean 'near'?); known things: near, far, bare, said"),
        ("--thing-steps 1.5", "--thing-steps = 1.5 of thing 'near' is no whole number"),
        ("--thing bare --length 2", "thing 'bare' needs --thing-steps"),
        ("--thing bare", "thing 'bare' needs --thing-steps, --length"),
        ("--word x", "thing 'near' has no --word; it takes --rho, --thing-steps"),
        *((line, None) for line in ("--corpus x", "--rho x", "--steps 1.5", "--length 1.5")),
    ],
)
def test_what_a_kind_has_no_use_for_is_refused_and_what_is_no_option_or_no_number(
    line: str, message: str
) -> None:
    result, made = run(line)
    assert not made
    if message is None:
        assert result.exit_code == 2
    else:
        assert str(result.exception) == message


def test_the_help_says_who_takes_an_option_and_what_it_is_otherwise() -> None:
    text = " ".join(run("--help")[0].output.split())
    assert "How much. Of near, far. [default: (0.5 for near, 0.25 for far)]" in text
    assert "Of near, bare. [default: (3 for near, required for bare)]" in text
    for of, default in (("bare", "required"), ("said", "none"), ("said", "plain")):
        assert f"Of {of}. [default: ({default})]" in text


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
