"""Command lines at random, those of the documentation, and the help: of every command and option there is."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

from experiments.common import PAGES
from mcfsim.optim.strategies import STRATEGIES
from tests.cli.runner import COMMANDS, call, invoke
from tests.models.files import checkpoint, recorded

ROOT = Path(__file__).parents[2]

WORDS = (
    "- -- x nan inf -inf -0 0 1 2 -1 -5 3.5 1e400 1e-400 -1e400 1/3 1/0 0/0 0x1p-3 0x1p999999999 1e999999999 "
    "1e-999999999 100000 10000000000 None True [] ٣ %s / .. . /nonexistent/x $HOME *"
)
NASTY = (*WORDS.split(), *("", " ", "9" * 5000, "1" + "0" * 30, "a\nb", "\N{SNOWMAN}", "\udcff", "a" * 300))
FORMATS = (
    "bfloat16 float16 e4m3fn e2m1 float4_e2m1fn e5m2 posit8 int4 ternary float8_e8m0fnu binary8p1 "
    "binary8p4uf e6m9 float64 mxfp4 float32 e2m1fn posit64"
)
#: What is meant besides an option's default, so that not all ends at the first option.
MEANT = {
    **dict.fromkeys(("names", "format", "loss_format", "low"), FORMATS),
    "rounding": "nearest_even up toward_zero stochastic nearest_away to_odd every",
    "underflow": "gradual flush_inputs flush_before flush_after",
    "problem": "quadratic rosenbrock logistic digits language-model",
    "strategy": " ".join(STRATEGIES),
    "dimension": "2 3 100000 10000000000",
    "width": "8 4 1000000000",
    "layers": "1 2 1000000000000",
    "theorems": "sterbenz two_sum fast_two_sum neg_exact lost_iff",
    "text": "two_sum dw_times_dw2 expansion.grow adamw sgd",
    "view": "pseudocode text network llvm cost",
    "value": "0.999 -0 1e-40",
}
#: These ask for work without an end, or for others' machines: what is tried of them takes a moment.
MODEST = {
    "steps": ("1", "2", "3", "0", "-1", "x", ""),
    "samples": ("0", "1", "5", "-1", "x", "", "nan"),
    "limit": ("1", "100", "0", "-1", "x"),
    "workers": ("1", "0", "-1", "x"),
    "dask": ("", "x"),
    "extent": ("core", "x", ""),
    "truth_sample": ("0", "1", "-1", "x", "1" + "0" * 30),
    "listing": ("",),
}
#: So that a line is short work where it is right.
ALWAYS = {
    "simulate": {"problem": "rosenbrock", "steps": "2", "strategy": "plain"},
    "verify": {"theorems": "sterbenz", "format": "float4_e2m1fn", "samples": "5", "limit": "100"},
    "inspect": {"value": "0.1"},
    "show": {"text": "two_sum"},
    **{name: {"weights": "m.safetensors", "steps": "3"} for name in ("audit", "assign")},
    "replay": {"directory": "recording", "strategy": "plain"},
}
DEFAULTS = {
    str(parameter.name): (parameter.default,)
    for command in COMMANDS.values()
    for parameter in command.params
    if isinstance(parameter.default, str | int | float)
}
OF_PLACES = "checkpoint output journal check weights state gradients html png table"
IN_FOLDER = "m.safetensors new new.png pipe sub text link run.npz empty read-only none/x"


def line(command: str, folder: Path, random: np.random.Generator) -> list[str]:
    """Return a command with some of its options, each meant, nasty, or a place in a folder."""

    def pick(choices: Any) -> str:
        return str(choices[int(random.integers(len(choices)))])

    def value(name: str) -> str:
        if name in MODEST:
            return pick(MODEST[name])
        if name in OF_PLACES.split():
            return str(folder / pick((*IN_FOLDER.split(), "\0", "")))
        if name == "directory" and random.random() < 0.8:
            places = ("pipe", "sub", "text", "empty", "none/x", "")
            return pick(("recording", "recording", *(str(folder / place) for place in places)))
        meant = MEANT[name].split() if name in MEANT else DEFAULTS.get(name, NASTY)
        return pick(meant if random.random() < 0.6 else NASTY)

    always, options = ALWAYS.get(command, {}), COMMANDS[command].params
    words, positional = [command], []
    for parameter in options:
        name = str(parameter.name)
        given = random.random() < 3 / len(options)
        if not given and name not in always:
            continue
        text = value(name) if given else always[name]
        if name == "weights" and not given:
            text = str(folder / text)
        if parameter.param_type_name == "argument":
            positional += [text] if text or given else []
        elif getattr(parameter, "is_flag", False):
            words.append(parameter.opts[0])
        else:
            words += [parameter.opts[0], text, *(value(name) for _ in range(parameter.nargs - 1))]
    return [*words, *positional] if random.random() < 0.95 else [*words, *positional, pick(NASTY)]


def furnish(folder: Path) -> None:
    (folder / "sub").mkdir(parents=True)
    os.mkfifo(folder / "pipe")
    for name, text in {"text": "hello", "empty": "", "read-only": "mine"}.items():
        (folder / name).write_text(text)
    (folder / "read-only").chmod(0o444)
    (folder / "link").symlink_to("text")
    checkpoint(folder / "m.safetensors")


@pytest.mark.slow
@pytest.mark.filterwarnings("default::mcfsim.VanishingScalarWarning")  # which the command prints
@pytest.mark.parametrize("cases", [30, pytest.param(100, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.sampled(6, each=False)
def test_any_command_line_is_answered_or_refused(command, cases, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    recorded(tmp_path / "recording", 3)
    random, statuses = np.random.default_rng(cases), set()
    for case in range(cases):
        folder = tmp_path / str(case)
        furnish(folder)
        words = line(command, folder, random)
        result = invoke(*words)
        assert result.exit_code in (0, 1, 2), (words, result)
        assert "Traceback" not in result.output, (words, result)
        assert result.exit_code != 2 or result.stderr.strip(), words
        assert (folder / "read-only").read_text() == "mine", words
        assert (folder / "pipe").is_fifo(), words
        assert (folder / "link").is_symlink(), words
        statuses.add(result.exit_code)
    assert statuses >= {0, 2}


# -- documentation and help ---------------------------------------------------------------------------------
#: Lines of blocks, and code in running text.
WRITTEN = re.compile(r"^(?:\$ )?(mcfsim .*?)(?: +[#|].*)?$|`(mcfsim [^`]+)`", re.MULTILINE)


def lines_of(page: Path) -> list[str]:
    """Return the command lines of a page, without names of commands alone and what is cut short."""
    found = [" ".join((x or y).split()) for x, y in WRITTEN.findall(page.read_text("utf-8"))]
    full = [line for line in found if "..." not in line and len(line.split()) > 2]
    return [line for line in full if line.split()[1] in COMMANDS]


@pytest.mark.parametrize("page", [*filter(lines_of, PAGES)], ids=lambda page: page.name)
def test_a_command_line_of_the_documentation_is_one(page: Path) -> None:
    for line in lines_of(page):
        _, name, *words = shlex.split(line)
        said = ""
        try:
            COMMANDS[name].make_context(name, list(words))
        except Exception as error:
            said = error.format_message() if isinstance(error, typer.BadParameter) else str(error)
        # Running text names options without what they take, or need not repeat arguments.
        unsaid = said in ("", f"Option '{words[-1]}' requires an argument.")
        assert unsaid or said.startswith("Missing argument"), line


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_each_text_as_it_stands(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Brackets are brackets, as in ``mcfsim[solver]``, and no markup."""
    monkeypatch.setenv("COLUMNS", "200")
    words = set(re.findall(r"\S*\[[^\]\s]*\]\S*", call(name, "--help").stdout))
    about = [item.__dict__.get("help") or "" for item in COMMANDS[name].params]
    for text in (*about, COMMANDS[name].epilog or "", COMMANDS[name].help or ""):
        for word in re.findall(r"\w+\\?\[\w+\]", text):
            assert any(word.replace("\\", "") in one for one in words), word
    assert name != "verify" or any("mcfsim[solver]" in word for word in words)
