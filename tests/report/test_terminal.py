"""Tables at the widths of terminals: no line is too long, no number is cut, no row loses a cell."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios

import numpy as np
import pytest
from typer.testing import CliRunner

from mcfsim.cli import app
from mcfsim.formats import FORMATS
from mcfsim.optim.strategies import STRATEGIES
from mcfsim.report import legends
from mcfsim.report.tables import certificate_table
from mcfsim.report.terminal import labelled, output_width, print_columns, print_rows, stacked
from mcfsim.rounding import Mode
from mcfsim.theorems import THEOREMS, verify
from mcfsim.theorems.logic.notation import LEGEND

pytestmark = pytest.mark.slow

WIDTHS = [40, 60, 80, 120, 250]
TRAINED = ("simulate", "--problem", "quadratic", "--dimension", "6", "--steps", "8", "--warmup", "2")
COMMANDS = {
    "formats": ("formats",),
    "chosen formats": ("formats", "bf16", "posit16", "binary8p4uf", "int8"),
    "memory": ("memory", "7e9", "gpt-6.7b"),
    "inspect": ("inspect", "0.999"),
    "inspect several": (
        "inspect",
        "1/3",
        *(f"--format={x}" for x in ("bf16", "e4m3fn", "posit16", "float64")),
    ),
    "inspect long": ("inspect", "-1e-310", "--format", "float64", "--format", "e5m2"),
    "inspect a long number": ("inspect", "1" * 300, "--format", "bf16"),
    "list": ("verify", "--list"),
    "simulate": (*TRAINED, "--strategy", "plain", "--strategy", "fp32-master", "--strategy", "exact"),
    "simulate truth": (*TRAINED, "--strategy", "collage-plus", "--truth-sample", "2"),
}


def call(monkeypatch, width, *arguments):
    """Return what a command prints for a width, or to a pipe."""
    if width is None:
        monkeypatch.delenv("COLUMNS", raising=False)
    else:
        monkeypatch.setenv("COLUMNS", str(width))
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def check_lines(text, width):
    """Assert that a line is too long only where a word alone is."""
    for line in text.splitlines():
        assert len(line.rstrip()) <= width or len(line.split()[-1]) > width - 30, line
        assert len(line.rstrip()) <= width or len(line.split()) <= 3, line


def words(text):
    return set(re.sub("[\u2500]", " ", text).split())


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.sampled(5, each=False)
def test_no_line_is_too_long_and_no_word_is_lost_at_any_width(name, monkeypatch):
    to_a_pipe = call(monkeypatch, None, *COMMANDS[name])
    for width in WIDTHS:
        fitted = call(monkeypatch, width, *COMMANDS[name])
        lines = fitted.splitlines()
        # The line above the table says what was run, and goes on where the terminal ends.
        check_lines("\n".join(lines[1:] if "simulate" in name else lines), width)
        assert words(to_a_pipe) - words(fitted) <= {"statement", "source"}, width


@pytest.fixture(scope="module")
def certificates():
    names = ("two_sum", "fast_two_sum_unordered", "dw_plus_fp", "sr_fast_two_sum_path_error_unordered")
    return [
        verify(name, "e5m2", next(mode for mode in Mode if mode in THEOREMS[name].modes), samples=20)
        for name in names
    ]


@pytest.mark.parametrize("width", WIDTHS)
def test_verdicts_at_every_width(width, certificates, monkeypatch, capsys):
    rows = certificate_table(certificates)
    monkeypatch.setenv("COLUMNS", str(width))
    print_rows(rows, legends.VERIFY, ("at", "counterexample"))
    text = capsys.readouterr().out
    check_lines(text, width)
    first = [line.split()[0] for line in text.splitlines() if line and line[0] not in " \u2500"]
    assert first[: len(rows) + 1] == ["theorem", *(row["theorem"] for row in rows)]
    for row in rows:
        for cell in row.values():
            assert words(cell) <= words(text), cell
    for item in certificates:
        assert not item.worst or str(item.worst.case) in " ".join(text.split())
    # The legend explains the words that are there.
    for word in ("verified", "refuted", "holds", "fails", "at", "counterexample", "worst, bound"):
        assert f"\n{word}: {legends.VERIFY[word]}"[: width // 2] in text, word
    for word in ("vacuous", "open", "core verified"):
        assert f"\n{word}: " not in text


def test_where_the_worst_case_lies_is_printed(certificates, capsys):
    """To a pipe beside the constant, in the one line of the row."""
    rows = certificate_table(certificates)
    assert any(item.worst for item in certificates)
    print_rows(rows, legends.VERIFY, ("at", "counterexample"))
    lines = capsys.readouterr().out.splitlines()
    for item, row in zip(certificates, rows, strict=True):
        assert row["at"] == (str(item.worst.case) if item.worst else "")
        assert row["counterexample"] == (str(item.simplest) if item.simplest else "")
        assert not row["at"] or re.fullmatch(r"\(.*\) -> \(.*\)", row["at"])
        (line,) = (line for line in lines if line.startswith(item.theorem + " "))
        assert not item.worst or (item.worst.decimal in line and str(item.worst.case) in line)


@pytest.mark.parametrize("name", [name for name in COMMANDS if "inspect" not in name])
def test_to_a_pipe_each_row_is_one_line(name, monkeypatch):
    lines = call(monkeypatch, None, *COMMANDS[name]).splitlines()
    rule = next(index for index, line in enumerate(lines) if line.startswith("\u2500"))
    body = lines[rule + 1 :]
    if "simulate" in name:
        body = body[: body.index("")]  # the legend follows
    expected = {
        "formats": [*FORMATS],
        "chosen formats": ["bfloat16", "posit16", "binary8p4uf", "int8"],
        "memory": [item for item in STRATEGIES if item != "exact"],
        "list": [*THEOREMS],
        "simulate": ["plain", "fp32-master", "exact"],
        "simulate truth": ["collage-plus"],
    }
    assert [line.split()[0] for line in body] == expected[name]
    assert all(line[0] != " " for line in body)


@pytest.mark.parametrize(("width", "name"), [(80, "formats"), (100, "memory"), (160, "inspect several")])
@pytest.mark.sampled(3, each=False)
def test_in_a_real_terminal(width, name):
    """The width is that of the terminal, with no COLUMNS: what is printed is what COLUMNS gives."""
    main, end = pty.openpty()
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
    clean = {key: text for key, text in os.environ.items() if key not in ("COLUMNS", "LINES", "NO_COLOR")}
    process = subprocess.Popen(
        [sys.executable, "-m", "mcfsim", *COMMANDS[name]],
        **{"stdin": end, "stdout": end, "stderr": end, "env": {**clean, "TERM": "xterm"}},
    )
    os.close(end)
    printed = b""
    while True:
        try:
            piece = os.read(main, 1 << 16)
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        printed += piece
    os.close(main)
    assert process.wait() == 0
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", printed.decode()).replace("\r\n", "\n")
    check_lines(text, width)
    expected = CliRunner(env={"COLUMNS": str(width)}).invoke(app, COMMANDS[name]).stdout
    assert text == expected


def test_the_width(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    assert output_width() is None
    for text, width in (("80", 80), ("7", 40), ("0", 40), ("wide", None), ("", None)):
        monkeypatch.setenv("COLUMNS", text)
        assert output_width() == width


def test_random_tables_keep_every_cell_whole():
    rng = np.random.default_rng(8)
    for _ in range(200):
        count, size = int(rng.integers(1, 12)), int(rng.integers(1, 6))
        headings = [f"h{i} " + "x" * int(rng.integers(0, 12)) for i in range(count)]
        rows = [
            {heading: "9" * int(rng.integers(0, 25)) + f"{i}.{j}" for i, heading in enumerate(headings)}
            for j in range(size)
        ]
        width = int(rng.integers(40, 200))
        long = headings[1:][: int(rng.integers(0, 3))]
        lines = [line for line, _ in stacked(rows, width, long)]
        assert all(len(line) <= width for line in lines)
        text = " ".join(lines)
        for row in rows:
            assert all(cell in text.split() for cell in row.values())
        pair = [{"label": f"l{i}", "text": " ".join(row.values())} for i, row in enumerate(rows)]
        lines = [line for line, _ in labelled(pair, width)]
        assert all(len(line) <= width for line in lines)
        assert all(word in " ".join(lines).split() for row in pair for word in row["text"].split())


# -- legends ----------------------------------------------------------------------------------------------
def test_legends_are_below_the_tables_and_in_the_help(monkeypatch):
    for name in ("formats", "inspect", "simulate", "replay", "memory", "verify"):
        text = " ".join(call(monkeypatch, 100, name, "--help").split())
        for term, meaning in getattr(legends, name.upper()).items():
            assert f"{term}: {meaning}." in text
        assert legends.LAYOUT in text
    trained = " ".join(call(monkeypatch, 100, *COMMANDS["simulate"]).split())
    for term in ("late", "lost", "EDQ", "v / exact", "distance to exact", "minus fp32-master", "-"):
        assert f" {term}: {legends.SIMULATE[term]}" in trained
    assert "one-step error:" not in trained
    assert "codes in parentheses" in call(monkeypatch, 100, "inspect", "1")


def test_terms_of_a_legend():
    for heading, cell, terms in (
        ("theorem", "open", ["open"]),
        ("worst", "refuted, unexpected", ["refuted", "worst, bound"]),
        ("theorem", "opening", []),
    ):
        assert list(legends.under(legends.VERIFY, [heading], [cell])) == terms


# -- verify --list ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("patterns", "match"),
    [
        ("dw_times*", r"dw_times"),
        ("sum", r".*sum"),
        ("*_SUM dot2", r".*_sum$|dot2$"),
        ("dw_*_dw?", r"dw_.*_dw.$"),
    ],
)
def test_statements_are_listed_by_pattern(patterns, match, monkeypatch):
    lines = call(monkeypatch, None, "verify", "--list", *patterns.split()).splitlines()
    assert [line.split()[0] for line in lines[2:]] == [name for name in THEOREMS if re.match(match, name)]


def test_signs_are_explained_below_the_statements_and_no_match_is_refused(monkeypatch):
    for width in (None, 60, 250):
        said = " ".join(call(monkeypatch, width, "verify", "--list", "two_sum").split())
        assert (width is not None) == all(f"{sign}: {meaning}" in said for sign, meaning in LEGEND.items())
        assert (width is None) == all(f"{sign}: " not in said for sign in LEGEND)
    for patterns in (["zzz"], ["two_sum", "zzz*"], ["[]"]):
        result = CliRunner().invoke(app, ["verify", "--list", *patterns])
        assert result.exit_code == 2
        assert result.stderr.startswith(f"Error: no statement matches {patterns[-1]!r}")


def test_columns_side_by_side_are_as_many_as_fit(monkeypatch, capsys):
    rows = [{"what": f"row {i}", **{f"f{j}": f"{i}{j}" * 6 for j in range(5)}} for i in range(3)]
    for width, tables in ((40, 3), (60, 2), (200, 1)):
        monkeypatch.setenv("COLUMNS", str(width))
        print_columns(rows, {})
        text = capsys.readouterr().out
        assert text.count("what") == tables
        check_lines(text, width)
        assert all(cell in text for row in rows for cell in row.values())
