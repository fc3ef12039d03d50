"""Tables at the widths of terminals: no line is too long, no number is cut, no row loses a cell."""

from __future__ import annotations

import fcntl
import itertools
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from contextlib import suppress

import numpy as np
import pytest

from mcfsim.formats import FORMATS
from mcfsim.optim.strategies import STRATEGIES
from mcfsim.report import terminal
from mcfsim.report.tables import certificate_table
from mcfsim.report.terminal import labelled, output_width, print_columns, print_rows, stacked
from mcfsim.rounding import Mode
from mcfsim.theorems import THEOREMS, verify
from mcfsim.theorems.logic.notation import LEGEND
from tests.cli import runner

pytestmark = pytest.mark.slow

WIDTHS = [40, 60, 80, 120, 250]
SIMULATE = "simulate --problem quadratic --dimension 6 --steps 8 --warmup 2 --strategy"
#: Commands, and the first words of the rows that each prints.
ROWS = {
    "formats": [*FORMATS],
    "formats bf16 posit16 binary8p4uf int8": ["bfloat16", "posit16", "binary8p4uf", "int8"],
    "memory 7e9 gpt-6.7b": [name for name in STRATEGIES if name != "exact"],
    "verify --list": [*THEOREMS],
    f"{SIMULATE} plain --strategy fp32-master --strategy exact": ["plain", "fp32-master", "exact"],
    f"{SIMULATE} collage-plus --truth-sample 2": ["collage-plus"],
}
INSPECTED = (
    "inspect 1/3 --format bf16 --format e4m3fn --format posit16 --format float64",
    "inspect -1e-310 --format float64 --format e5m2",
    f"inspect {'1' * 300} --format bf16",
)


def set_width(monkeypatch, width):
    monkeypatch.delenv("COLUMNS", raising=False)
    if width is not None:
        monkeypatch.setenv("COLUMNS", str(width))


@pytest.fixture
def call(monkeypatch):
    """Return a function that gives what a command prints for a width, or to a pipe."""

    def call(width, line):
        set_width(monkeypatch, width)
        return runner.call(*line.split()).stdout

    return call


def check_lines(text, width):
    """Assert that a line is too long only where a word alone is."""
    for line in text.splitlines():
        assert len(line.rstrip()) <= width or len(line.split()[-1]) > width - 30, line
        assert len(line.rstrip()) <= width or len(line.split()) <= 3, line


def words(text):
    return set(text.replace("\u2500", " ").split())


@pytest.mark.parametrize("line", [*ROWS, *INSPECTED])
@pytest.mark.sampled(5, each=False)
def test_no_line_is_too_long_and_no_word_is_lost_at_any_width(line, call):
    to_a_pipe = call(None, line)
    for width in WIDTHS:
        fitted = call(width, line)
        # The line above the table says what was run, and goes on where the terminal ends.
        check_lines("\n".join(fitted.splitlines()["simulate" in line :]), width)
        assert words(to_a_pipe) - words(fitted) <= {"statement", "source"}, width


@pytest.mark.parametrize("line", ROWS)
def test_to_a_pipe_each_row_is_one_line(line, call):
    lines = call(None, line).splitlines()
    body = lines[1 + next(place for place, text in enumerate(lines) if text.startswith("\u2500")) :]
    if "simulate" in line:
        body = body[: body.index("")]  # the legend follows
    assert [text.split()[0] for text in body] == ROWS[line]
    assert all(text[0] != " " for text in body)


@pytest.fixture(scope="module")
def certificates():
    names = ("two_sum", "fast_two_sum_unordered", "dw_plus_fp", "sr_fast_two_sum_path_error_unordered")
    modes = {name: next(mode for mode in Mode if mode in THEOREMS[name].modes) for name in names}
    return [verify(name, "e5m2", mode, samples=20) for name, mode in modes.items()]


@pytest.mark.parametrize("width", [None, *WIDTHS])
def test_verdicts_at_every_width_and_to_a_pipe(width, certificates, monkeypatch, capsys):
    rows = certificate_table(certificates)
    set_width(monkeypatch, width)
    print_rows(rows, terminal.VERIFY, ("at", "counterexample"))
    text = capsys.readouterr().out
    first = [line.split()[0] for line in text.splitlines() if line and line[0] not in " \u2500"]
    assert first[: len(rows) + 1] == ["theorem", *(row["theorem"] for row in rows)]
    for item, row in zip(certificates, rows, strict=True):
        assert row["at"] == (str(item.worst.case) if item.worst else "")
        assert row["counterexample"] == (str(item.simplest) if item.simplest else "")
        for cell in row.values():
            assert words(cell) <= words(text), cell
        assert row["at"] in " ".join(text.split())
        if width is None:  # beside the constant, in the one line of the row
            (line,) = (line for line in text.splitlines() if line.startswith(item.theorem + " "))
            assert not item.worst or (item.worst.decimal in line and row["at"] in line)
    if width is not None:
        check_lines(text, width)
        # The legend explains the words that are there.
        for word in ("verified", "refuted", "holds", "fails", "at", "counterexample", "worst, bound"):
            assert f"\n{word}: {terminal.VERIFY[word]}"[: width // 2] in text, word
        for word in ("vacuous", "open", "core verified"):
            assert f"\n{word}: " not in text


@pytest.mark.parametrize(("width", "line"), [(80, "formats"), (160, INSPECTED[0])])
@pytest.mark.sampled(2, each=False)
def test_in_a_real_terminal(width, line, call):
    """The width is that of the terminal, with no COLUMNS: what is printed is what COLUMNS gives."""
    assert printed_in_terminal(width, line, TERM="xterm") == call(width, line)


@pytest.mark.parametrize(("terminal", "columns"), [("dumb", None), ("dumb", 200), ("unknown", None)])
@pytest.mark.slow
@pytest.mark.sampled(3, each=False)
def test_a_dumb_terminal_has_whole_rows_unless_columns_says_its_width(terminal, columns, call):
    given = {} if columns is None else {"COLUMNS": str(columns)}
    assert printed_in_terminal(60, "formats", TERM=terminal, **given) == call(columns, "formats")


def printed_in_terminal(width, line, **given):
    """Return what a command prints, without styles."""
    main, end = pty.openpty()
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
    clean = {key: text for key, text in os.environ.items() if key not in ("COLUMNS", "LINES", "NO_COLOR")}
    ends = {"stdin": end, "stdout": end, "stderr": end, "env": {**clean, **given}}
    process = subprocess.Popen([sys.executable, "-m", "mcfsim", *line.split()], **ends)
    os.close(end)
    printed = b""
    with suppress(OSError):  # the other end is closed
        while piece := os.read(main, 1 << 16):
            printed += piece
    os.close(main)
    assert process.wait() == 0
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", printed.decode()).replace("\r\n", "\n")


def test_the_width(monkeypatch):
    assert output_width() is None
    for text, width in (("80", 80), ("7", 40), ("0", 40), ("wide", None), ("", None)):
        set_width(monkeypatch, text)
        assert output_width() == width, text


def test_random_tables_keep_every_cell_whole():
    rng = np.random.default_rng(8)
    for _ in range(200):
        count, size, width = (int(rng.integers(*ends)) for ends in ((1, 12), (1, 6), (40, 200)))
        headings = [f"h{i} " + "x" * int(rng.integers(0, 12)) for i in range(count)]
        places = [[f"{i}.{j}" for i in range(count)] for j in range(size)]
        cells = [["9" * int(rng.integers(0, 25)) + place for place in row] for row in places]
        rows = [dict(zip(headings, row, strict=True)) for row in cells]
        pair = [{"label": f"l{i}", "text": " ".join(row.values())} for i, row in enumerate(rows)]
        for made in (stacked(rows, width, headings[1:][: int(rng.integers(0, 3))]), labelled(pair, width)):
            lines = [line for line, _ in made]
            assert all(len(line) <= width for line in lines)
            assert {*itertools.chain(*cells)} <= set(" ".join(lines).split())


# -- legends ----------------------------------------------------------------------------------------------
def test_legends_are_below_the_tables_and_in_the_help(call):
    for name in ("formats", "inspect", "simulate", "replay", "memory", "verify"):
        text = " ".join(call(100, f"{name} --help").split())
        for term, meaning in getattr(terminal, name.upper()).items():
            assert f"{term}: {meaning}." in text
        assert terminal.LAYOUT in text
    trained = " ".join(call(100, next(line for line in ROWS if "fp32-master" in line)).split())
    for term in ("late", "lost", "EDQ", "v / exact", "distance to exact", "minus fp32-master", "-"):
        assert f" {term}: {terminal.SIMULATE[term]}" in trained
    assert "one-step error:" not in trained
    assert "codes in parentheses" in call(100, "inspect 1")


@pytest.mark.parametrize(
    ("patterns", "match"), [("dw_times*", r"dw_times"), ("sum", r".*sum"), ("*_SUM dot2", r".*_sum$|dot2$")]
)
def test_statements_are_listed_by_pattern(patterns, match, call):
    lines = call(None, f"verify --list {patterns}").splitlines()
    assert [line.split()[0] for line in lines[2:]] == [name for name in THEOREMS if re.match(match, name)]


def test_signs_are_explained_below_the_statements_and_no_match_is_refused(call):
    for width in (None, 60, 250):
        said = " ".join(call(width, "verify --list two_sum").split())
        assert {width is not None} == {f"{sign}: {meaning}" in said for sign, meaning in LEGEND.items()}
    for patterns in (["zzz"], ["two_sum", "zzz*"], ["[]"]):
        told = f"Error: no statement matches {patterns[-1]!r}"
        assert runner.refused("verify", "--list", *patterns).startswith(told)


def test_columns_side_by_side_are_as_many_as_fit(monkeypatch, capsys):
    rows = [{"what": f"row {i}", **{f"f{j}": f"{i}{j}" * 6 for j in range(5)}} for i in range(3)]
    for width, tables in ((40, 3), (60, 2), (200, 1)):
        set_width(monkeypatch, width)
        print_columns(rows, {})
        text = capsys.readouterr().out
        assert text.count("what") == tables
        check_lines(text, width)
        assert all(cell in text for row in rows for cell in row.values())
