"""What commands answer, what they refuse, and what they save."""

from __future__ import annotations

import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

import mcfsim as mcf
from mcfsim.cli.options import KindOptions, with_settings
from mcfsim.cli.simulate import OPTIMIZER, PROBLEM
from mcfsim.optim.declaration import optimizers
from mcfsim.training.problems import PROBLEMS
from tests.cli.runner import COMMANDS, call, invoke, refused

QUADRATIC = "simulate --problem quadratic --dimension 8 --steps 30 --warmup 5"
LANGUAGE_MODEL = "simulate --layers 1 --width 8 --heads 2 --context 8 --batch 2 --steps 2 --strategy plain"
MOMENTUM = "--optimizer sgd --momentum 0.5 --strategy kahan"
ADAFACTOR = "--optimizer adafactor --strategy plain --least-scale .25 --eps 1e-20"
OTHERS, TWO = "--format=posit16 --format=int8 --format=e8m0fnu", "--format bf16 --format e4m3fn"
CODES = {"-0": "0x8000", "-inf": "0xff80", "nan": "0x7fc0", "-1/3": "0xbeab"}
CODES |= {"-0x1.8p3": "0xc140", "-.5": "0xbf00"}


ANSWERS = [
    ("--help", COMMANDS),
    ("replay --help", [r"as recorded; 0\.0003 with another"]),
    ("formats bf16 e6m9", [r"\nbfloat16 +16 +8 .*\n *e6m9 +16 +10 "]),
    ("formats bf16 --markdown", [r"^\| format.*\n.*\n\| bfloat16 \|   16 \|.*\n$"]),
    ("inspect 0.999", [r"0x1p\+0", r"0 \| 01111111 \| 0000000", "0x3f80", "1, -0.00099945068359375"]),
    (f"inspect 1/3 {TWO} --rounding up", [r"^\s*1/3 +bfloat16 +float8_e4m3fn", "0.34375"]),
    ("inspect 1e9 --format e4m3fn --overflow saturate", ["448"]),
    ("inspect 0x1.8p-8 --format e4m3fn --underflow gradual", [r"rounded +0\.005859375 *\n"]),
    ("inspect 0x1.8p-8 --format e4m3fn --underflow flush_before", [r"rounded +0 *\n"]),
    (f"inspect 0.1 {OTHERS}", [r"rounded +0\.100006103515625 +0 +0\.125 *\n"]),
    *((f"inspect {number}", [code]) for number, code in CODES.items()),
    (f"{QUADRATIC} {MOMENTUM}", ["sgd: momentum = 0.5", "not:v / exact", "not:fp32-master"]),
    ("simulate --problem rosenbrock --steps 3 --strategy exact", ["exact"]),
    (f"{LANGUAGE_MODEL} --strategy collage-plus", ["collage-plus"]),
    (f"{QUADRATIC} {ADAFACTOR}", ["quadratic, adafactor: .*epsilon = 1e-20, thr.*least_scale = 0.25"]),
    ("show momentumadafactor", [r"matrix +row_mean +row +mean of square, rounded once"]),
    ("show momentumadafactor", [r"vector +momentumadafactor\.averaged +element +Average the updates"]),
]


@pytest.mark.parametrize(("line", "patterns"), ANSWERS)
@pytest.mark.slow
def test_what_is_answered(line: str, patterns: list[str]) -> None:
    printed = call(*line.split()).stdout
    for pattern in patterns:
        wanted = pattern.removeprefix("not:")
        assert bool(re.search(wanted, printed)) == (wanted == pattern), (pattern, printed)


def test_the_version_is_that_of_the_package() -> None:  # which need not be installed for tests on a GPU
    assert call("--version").stdout == f"mcfsim {version('mcfsim')}\n"


OPTIMIZERS = "adafactor, momentumadafactor, adamw, amsgrad"
REFUSALS = [
    ("formats bf17", "unknown format 'bf17' (did you mean 'bf16'?); known formats: float64, float32"),
    ("inspect abc", "'abc' is no number; allowed: a decimal"),
    ("inspect 1/0", "denominator zero"),
    ("inspect 1 --rounding x", "unknown rounding 'x'; allowed: nearest_even"),
    ("inspect 1 --overflow x", "unknown overflow 'x'; allowed: ieee, saturate"),
    ("inspect 1 --underflow sometimes", "underflow"),
    ("inspect 1 --fromat bf16", "'--fromat' is no option (did you mean '--format'?)"),
    ("inspect --fromat bf16", "'--fromat' is no number and no option (did you mean '--format'?)"),
    ("inspect 1 2", "'2' is no option"),
    ("memory 1e9 --low nvfp4", "'nvfp4' is a scaled format"),
    ("show adafactor --as cost", "is made in stages, each an algorithm of its own: adafactor.squares, "),
    ("simulate --problem x", "unknown problem 'x'; known problems: digits"),
    ("simulate --optimizer x", f"unknown optimizer 'x'; known optimizers: {OPTIMIZERS}"),
    ("{q} --strategy x", "unknown strategy 'x'; known strategies: plain"),
    ("{q} --low mxfp8_e4m3", "'mxfp8_e4m3' is a scaled format"),
    ("{q} --width 3", "problem 'quadratic' has no --width; it takes --dimension, --condition-number"),
    ("{q} --momentum .5", "optimizer 'adamw' has no --momentum; it takes --beta1, --beta2, --eps"),
    ("{q} --beta1 2", "beta1 = 2.0 must lie in [0, 1)"),
    ("{q} --clip -1", "clip = -1.0 must be positive"),
    ("{q} --output /no/such/folder/run.npz", "cannot write /no/such/folder/run.npz"),
    ("{q} --checkpoint-every 3", "--checkpoint-every needs --checkpoint"),
    ("{q} --checkpoint no-file --checkpoint-every 0", "checkpoint_every = 0"),
    ("verify two_sum --format mxfp4", "'mxfp4' is a scaled format"),
    *((f"verify {word}fast2sum", "did you mean 'fast_two_sum'") for word in ("", "--list ")),
    (f"{{q}} --dimension {10**30}", "this takes more memory than there is: "),
    (f"simulate --problem language-model --layers {10**15}", "this takes more memory than there is: "),
]


@pytest.mark.parametrize(("line", "message"), REFUSALS)
@pytest.mark.slow
def test_what_is_refused(line: str, message: str) -> None:
    assert message in refused(*line.format(q=QUADRATIC).split())


USAGE = dict.fromkeys(("", "nope", "inspect", "simulate --nope", "simulate --steps x"), "Usage")
SUGGESTED = "Did you mean|Possible options"
MISSPELT = ("verify --formt x", "verify --smaples x", "verify --outptu x")


@pytest.mark.parametrize(("line", "said"), (USAGE | dict.fromkeys(MISSPELT, SUGGESTED)).items())
def test_wrong_usage(line: str, said: str) -> None:
    assert re.search(said, call(*line.split(), status=2).output)


@pytest.mark.slow
def test_simulate_saves_what_it_ran(tmp_path: Path) -> None:
    path, checkpoint = tmp_path / "run.npz", tmp_path / "checkpoint.npz"
    words = (
        f"{QUADRATIC} --strategy plain --strategy fp32-master --lr 1e-2 --beta2 0.99 --eps 1e-6 --clip inf "
        "--record-every 5 --truth-sample 3 --low bf16 --seed 4 --condition-number 10 --problem-seed 2"
    ).split()
    printed = call(*words, "--output", path, "--checkpoint", checkpoint).stdout
    for text in ("quadratic, adamw:", "beta2 = 0.99", "plain", "fp32-master", "one-step", f"saved {path}"):
        assert text in printed
    assert checkpoint.exists()
    problem = mcf.get_problem("quadratic", dimension=8, condition_number=10.0, seed=2)
    hyper, options = mcf.AdamW(beta2=0.99, epsilon=1e-6), {"clip": None, "record_every": 5, "truth_sample": 3}
    again = mcf.simulate(problem, hyper, ["plain", "fp32-master"], 30, mcf.Schedule(1e-2, 5), 4, **options)
    run = mcf.Run.load(path)
    assert (run.settings, run.results) == (again.settings, again.results)
    np.testing.assert_equal(run.series, again.series)
    assert run.steps.tolist() == [1, 5, 10, 15, 20, 25, 30]
    assert "is of another run" in refused(*words, "--checkpoint", checkpoint, "--seed", "1")


def test_what_the_library_raises_of_no_argument_is_no_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcfsim.cli.show.format_table", lambda names: [][0])
    with pytest.raises(IndexError):
        invoke("formats")


# -- options that follow from what a command makes ----------------------------------------------------------
def near(rho: float = 0.5, steps: int = 3) -> tuple[Any, ...]:
    return "near", rho, steps


def far(rho: float = 0.25, corpus: Path | None = None) -> tuple[Any, ...]:  # the latter is no option
    return "far", rho, corpus


def bare(steps: float, length: int) -> tuple[Any, ...]:  # steps are an int of the others
    return "bare", steps, length


def said(word: Path | str | None = None, kind: str = "plain") -> tuple[Any, ...]:
    return "said", word, kind


def made_by(line: str) -> tuple[Any, list[Any]]:
    """Run a command that makes one of these things; return its result, and what it made."""
    kinds = {"near": near, "far": far, "bare": bare, "said": said}
    things = KindOptions("thing", kinds, names={"steps": "thing_steps"}, meaning={"rho": "How much."})
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
    result, made = made_by(line)
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
def test_what_has_no_use_or_is_no_option_or_no_number_is_refused(line: str, message: str | None) -> None:
    result, made = made_by(line)
    assert not made
    assert str(result.exception) == message if message else result.exit_code == 2


def test_the_help_says_who_takes_an_option_and_what_it_is_otherwise() -> None:
    text = " ".join(made_by("--help")[0].output.split())
    assert "How much. Only for near, far. [default: (0.5 for near; 0.25 for far)]" in text
    assert "Only for near, bare. [default: (3 for near; required for bare)]" in text
    for of, default in (("bare", "required"), ("said", "none"), ("said", "plain")):
        assert f"Only for {of}. [default: ({default})]" in text


@pytest.mark.parametrize("settings", [OPTIMIZER, PROBLEM], ids=lambda item: item.label)
@pytest.mark.slow
def test_every_number_of_a_constructor_is_an_option_of_simulate(settings: KindOptions) -> None:
    kinds = optimizers() if settings is OPTIMIZER else PROBLEMS
    assert settings.kinds == kinds
    nothing = dict.fromkeys(item.name for item in settings.parameters())
    for kind in kinds:
        instance = settings.make(kind, nothing)
        numbers = {name for name, value in vars(instance).items() if type(value) in (int, float)}
        words = {
            "digits": {"format", "loss_format", "sums", "calculation"},
            "language-model": {"calculation"},
            "llama": {"calculation"},
            "muon": {"scale"},
            "torchmuon": {"scale"},
        }.get(kind, set())
        assert set(settings.of(kind)) <= numbers | words
        if settings is OPTIMIZER:
            assert set(settings.of(kind)) == numbers | words == set(kinds[kind].ranges) | words
