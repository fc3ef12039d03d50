"""Texts shown by the command line: as pseudocode, Python, generated source, costs and drawings."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

import mcfsim as mcf
from mcfsim.compile.lowering import lower
from mcfsim.compile.program import Register
from mcfsim.compile.scalars import entering, uses
from mcfsim.formats import get_format
from mcfsim.kernels.element.machine import TRUTH
from mcfsim.optim.declaration import straight_optimizers
from mcfsim.report.costs import machine_operations
from mcfsim.report.network import network_text
from mcfsim.report.staves import staves
from mcfsim.report.texts import is_optimizer, operands_of, record, texts
from mcfsim.report.wiring import wired
from mcfsim.rounding import Mode, get_rounding
from tests.cli.test_cli import call, refused

MODES = [str(mode) for mode in Mode]
STRATEGIES = (
    "plain",
    "kahan",
    "collage-light",
    "collage-plus",
    "fp32-optim",
    "fp32-master",
    "split-master",
    "stochastic-parameter",
    "stochastic",
    "fp32",
)
every_text = pytest.mark.parametrize("name", texts())


def recorded(name, mode="nearest_even", fmt="bfloat16", **options):
    return record(name, get_format(fmt), get_rounding(mode), **options)


# -- names --------------------------------------------------------------------------------------------------
def test_every_straight_line_of_the_literature_has_its_name():
    from mcfsim import eft
    from mcfsim.multiword import double_word

    lines = {name for name in double_word.__all__ if name != "DoubleWord"}
    lines |= {name for name, item in vars(eft).items() if hasattr(item, "__wrapped__")}
    assert len(lines) > 20
    assert lines | set(straight_optimizers()) <= set(texts())
    assert {name.partition(".")[0] for name in texts() if "." in name} == {
        *("expansion", "shewchuk", "adafactor", "momentumadafactor")
    }


def test_operands_follow_from_the_signature():
    found = {name: operands_of(text) for name, text in texts().items() if not is_optimizer(text)}
    assert found["two_sum"] == ("a", "b")
    assert found["split"] == ("x",)
    assert found["dw_times_dw2"] == (("xh", "xl"), ("yh", "yl"))
    assert found["dw_plus_fp"] == (("xh", "xl"), "y")
    assert operands_of(texts()["expansion.grow"], 3) == (("x0", "x1", "x2"), "a")


def test_texts_are_listed():
    lines = call("show").stdout.splitlines()
    assert [line.split()[0] for line in lines if line.split() and line.split()[0] in texts()] == list(texts())


# -- pseudocode and text ------------------------------------------------------------------------------------
@every_text
@pytest.mark.parametrize("mode", MODES)
def test_pseudocode_has_a_line_for_each_operation(name, mode):
    lines = call("show", name, "--rounding", mode).stdout.splitlines()
    program = recorded(name, mode).program
    steps = [match for line in lines if (match := re.match(r"    (t\d+) = (\w+)\(", line))]
    kinds = Counter(operation for operation, _ in program.count().elements())
    assert Counter(match[2] for match in steps) == kinds
    assert len(steps) == len(program.steps) > 0
    assert lines[-1].startswith("    return ")
    first = program.steps[0]
    assert f"# {first.result.format}, {first.rounding.mode}" in lines[1]
    assert any(f"# bfloat16, {mode}" in line for line in lines)


@every_text
def test_the_text_is_that_of_the_library(name):
    out = call("show", name, "--as", "text").stdout
    assert f"def {name.rpartition('.')[2]}(" in out
    if not is_optimizer(texts()[name]):
        assert out.strip() == inspect.getsource(inspect.unwrap(texts()[name])).strip()


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", straight_optimizers())
def test_a_step_is_that_of_its_strategy(name, strategy):
    found = recorded(name, strategy=strategy)
    stored = mcf.strategy(strategy, "bfloat16")
    slots = [slot.name for slot in straight_optimizers()[name].slots]
    state = sum(
        item.components for label, item in stored.tensors.items() if label not in ("gradient", "m", "v")
    ) + sum(stored.tensors[slot].components for slot in slots)
    assert len(found.program.inputs) == state + 1
    assert len(found.results) == len(found.program.outputs()) == state + 1
    assert found.results[-1] == "update"
    assert set(found.numbers) == set(found.program.scalars)
    out = call("show", name, "--strategy", strategy).stdout
    assert out.startswith(f"{name}, {strategy}(")
    assert all(scalar in out for scalar in found.program.scalars)


def test_an_optimizer_is_plain_unless_a_strategy_is_given():
    assert call("show", "adamw").stdout == call("show", "adamw", "--strategy", "plain").stdout


def test_a_decay_of_zero_falls_away():
    assert "decay" in recorded("adamw").program.scalars
    assert "decay" not in recorded("sgd").program.scalars


def test_policies_and_formats_are_those_given():
    out = call(
        "show", "two_sum", "--format", "e4m3fn", "--underflow", "flush_after", "--overflow", "saturate"
    )
    assert "# float8_e4m3fn, nearest_even" in out.stdout
    (first, *_) = recorded("two_sum", fmt="e4m3fn").program.steps
    assert first.result.format == get_format("e4m3fn")
    policies = get_rounding("up", "saturate", "flush_after")
    assert {step.rounding for step in record("adamw", get_format("e5m2"), policies).program.steps} == {
        policies
    }


def test_components():
    three = call("show", "expansion.grow", "--components", "3").stdout
    assert three.startswith("grow(x0, x1, x2, a):")
    assert call("show", "vec_sum", "--components", "3").stdout.count(" = ") >= 12


# -- generated source ---------------------------------------------------------------------------------------
@every_text
@pytest.mark.parametrize("mode", ["nearest_even", "up", "stochastic"])
def test_the_generated_source_is_python(name, mode):
    out = call("show", name, "--as", "numba", "--rounding", mode).stdout
    compile(out, name, "exec")
    assert f"{len(recorded(name, mode).program.steps)} operations." in out
    assert "def loop(" in out


@every_text
@pytest.mark.parametrize("mode", ["nearest_even", "stochastic"])
@pytest.mark.sampled(4)
def test_the_generated_kernel_is_python(name, mode):
    out = call("show", name, "--as", "triton", "--rounding", mode).stdout
    compile(out, name, "exec")
    assert f"{len(recorded(name, mode).program.steps)} operations." in out
    assert "@triton.jit(do_not_specialize" in out


def test_the_generated_source_is_what_is_compiled():
    pytest.importorskip("numba")
    from mcfsim.compile.loops import Loop

    for name, mode, options in (
        ("two_sum", "nearest_even", {}),
        ("two_sum", "stochastic", {}),
        ("adamw", "nearest_even", {"strategy": "collage-plus"}),
    ):
        found = recorded(name, mode, **options)
        words = [word for key, value in options.items() for word in (f"--{key}", value)]
        out = call("show", name, *words, "--rounding", mode, "--as", "numba").stdout
        assert Loop(found.program).with_scalars(found.numbers).source == out


@pytest.mark.slow
def test_the_generated_source_needs_no_numba():
    code = (
        "import sys; sys.modules['numba'] = sys.modules['platformdirs'] = None\n"
        "from mcfsim.cli import app; app(['show', 'adamw', '--as', 'numba'], standalone_mode=False)\n"
        "assert 'matplotlib' not in sys.modules and 'llvmlite' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "from numba import njit" in done.stdout


# -- random words --------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "strategy"),
    [(name, None) for name in texts()] + [("adamw", strategy) for strategy in STRATEGIES],
)
def test_random_words_have_the_same_names_wherever_they_are_shown(name, strategy):
    found = recorded(name, "stochastic", strategy=strategy)
    words = list(found.program.words.values())
    assert len(words) == sum(step.draw is not None for step in found.program.steps) > 0
    options = ["--rounding", "stochastic", *(["--strategy", strategy] if strategy else [])]
    shown = {view: call("show", name, *options, "--as", view).stdout for view in ("pseudocode", "numba")}
    assert re.findall(r"^    t\d+ = .*; (word\d+)\)", shown["pseudocode"], re.M) == words
    (taken,) = re.findall(r"^def loop\((.*)\):$", shown["numba"], re.M)
    assert [x for x in taken.split(", ") if x.startswith("word")] == words
    assert re.findall(r"^        # t\d+ = .*?; (word\d+)\)", shown["numba"], re.M) == words
    drawn = network_text(wired(found.program, found.results))
    assert sorted(re.findall(r"\[[^]]+ (word\d+)\]", drawn)) == sorted(words)
    assert call("show", name, *options, "--as", "text").stdout == call("show", name, "--as", "text").stdout
    costs = dict(table(call("show", name, *options, "--as", "cost").stdout.splitlines(), "program"))
    assert int(costs["random words"]) == len(words)


def test_a_drawing_at_random_names_its_words():
    out = call("show", "fast_two_sum", "--rounding", "stochastic", "--as", "network").stdout
    assert out.splitlines() == [
        "a ───────●──────○[− word1]───────○",
        "         │           │           │",
        "b ───────●───────────┼───────[− word2]─ e",
        "         │           │",
        "     [+ word0]───────●───────────────── s",
    ]
    head, *_ = call("show", "two_sum", "--rounding", "stochastic").stdout.splitlines()
    assert head == "two_sum(a, b; word0 ... word5):"
    assert "random words" not in call("show", "two_sum", "--as", "cost").stdout


# -- costs --------------------------------------------------------------------------------------------------
def table(lines, heading):
    """Return the rows of a table as lists of words, by the first heading."""
    start = next(place for place, line in enumerate(lines) if line.startswith(heading))
    rows = []
    for line in lines[start + 2 :]:
        if not line.strip():
            break
        rows.append(re.split(r" {2,}", line.strip()))
    return rows


@every_text
def test_the_costs_agree_with_the_program(name):
    lines = call("show", name, "--as", "cost").stdout.splitlines()
    program = recorded(name).program
    counted = Counter()
    for operation, fmt, _, many, *_ in table(lines, "operation"):
        counted[operation, fmt] += int(many)
    assert counted == program.count()
    numbers = dict(table(lines, "program"))
    assert int(numbers["operations"]) == len(program.steps)
    assert int(numbers["depth"]) == program.depth()
    assert int(numbers["live registers"]) == program.registers()
    machine = {label: int(number) for label, number in table(lines, "machine")}
    assert machine.pop("all") == sum(machine.values()) > 0


def test_bytes_are_those_of_carriers_and_of_codes():
    rows = table(call("show", "two_sum", "--as", "cost").stdout.splitlines(), "memory")
    assert rows == [["read", "2", "8", "4"], ["written", "2", "8", "4"], ["all", "4", "16", "8"]]
    stored = call("show", "adamw", "--strategy", "collage-plus", "--as", "cost").stdout.splitlines()
    rows = {label: numbers for label, *numbers in table(stored, "memory")}
    # Parameter, m and v, the gradient read besides, and the update written.
    assert rows["read"] == ["6", "24", f"{mcf.strategy('collage-plus').bytes_per_parameter:g}"]
    assert rows["written"] == ["5", "20", "10"]
    assert rows["written, the update"] == ["1", "4", "2"]


def test_machine_operations_are_those_of_the_generated_source():
    found = recorded("two_prod", "up")
    ways = tuple(entering(use, use.number({}), "exact")[0] for use in uses(found.program))
    lowered = lower(found.program, ways)
    counted = machine_operations(lowered)
    statements = re.findall(
        r"^        r\d+ = (.*)$", call("show", "two_prod", "--rounding", "up", "--as", "numba").stdout, re.M
    )
    moved = [text for text in statements if re.match(r"\w+\[i\]|bits\d|number\d", text)]
    assert sum(counted.values()) == len(statements) - len(moved)
    assert counted[TRUTH] <= sum(counted.values())


def test_what_the_machine_cannot_do_is_said():
    out = call("show", "two_prod", "--format", "float64", "--rounding", "up", "--as", "cost").stdout
    assert "refused" in out
    assert "There is no line for the machine: mul in float64, rounding up, has no exact path" in out
    words = ("two_prod", "--format", "float64", "--rounding", "up", "--as", "numba")
    assert "has no exact path" in refused("show", *words)


# -- drawings -----------------------------------------------------------------------------------------------
def test_two_sum_is_drawn():
    assert call("show", "two_sum", "--as", "network").stdout.splitlines() == [
        "a ────●────────────────[−]─────────[+]─ e",
        "      │                 │           │",
        "b ────●─────○───────────┼────[−]────●",
        "      │     │           │     │",
        "     [+]────●─────●─────┼─────┼──────── s",
        "            │     │     │     │",
        "           [−]────○─────○     │",
        "                  │           │",
        "                 [−]──────────○",
    ]


@every_text
def test_a_drawing_has_a_box_for_each_operation(name):
    found = recorded(name)
    text = network_text(wired(found.program, found.results))
    assert text.count("[") == text.count("]") == len(found.program.steps)
    assert all(result in text for result in found.results)


@pytest.mark.parametrize(
    ("name", "strategy"), [(name, None) for name in texts()] + [("adamw", "collage-plus"), ("sgd", "kahan")]
)
def test_gates_take_the_values_of_their_steps(name, strategy):
    """What a gate finds in the rows that it takes is its operands, and no two lines meet."""
    found = recorded(name, strategy=strategy)
    drawing = wired(found.program, found.results)
    for gate in drawing.gates:
        names = {str(x) for x in gate.step.operands if isinstance(x, Register)}
        arriving = {wire.name: wire.row for wire in drawing.wires if wire.start < gate.column <= wire.end}
        assert names == {label for label, row in arriving.items() if row in dict(gate.taken)}
        assert [row for row, _ in gate.taken] == list(
            dict.fromkeys(arriving[str(x)] for x in gate.step.operands if isinstance(x, Register))
        )
        (made,) = [wire for wire in drawing.wires if wire.name == str(gate.step.result)]
        assert (made.row, made.start) == (gate.row, gate.column)
    for column in range(drawing.columns):
        spans = sorted((min(x.rows), max(x.rows)) for x in drawing.gates if x.column == column)
        assert all(a[1] < b[0] for a, b in pairwise(spans))
        assert len({gate.depth for gate in drawing.gates if gate.column == column}) == 1
    for row in range(drawing.rows):
        wires = sorted((wire.start, wire.end) for wire in drawing.wires if wire.row == row)
        assert all(a[1] <= b[0] for a, b in pairwise(wires))


@pytest.mark.parametrize("width", [1, 60, 100, 200])
def test_a_long_drawing_has_several_staves(width):
    found = recorded("adamw", strategy="collage-plus")
    drawing = wired(found.program, found.results)
    text = network_text(drawing, width)
    assert text.count("[") == len(found.program.steps)
    parts = list(staves(drawing, width))
    assert [part.first for part in parts[1:]] == [part.last + 1 for part in parts[:-1]]
    assert len(parts) > 1
    if width > 50:
        assert max(map(len, text.splitlines())) <= width
    assert [part.last for part in parts][-1] == drawing.columns - 1


def test_a_drawing_is_as_wide_as_the_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    out = call("show", "dw_div_dw3", "--as", "network").stdout
    assert max(map(len, out.splitlines())) <= 80
    assert "subtrahend" in out


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".svg", ".png"])
@pytest.mark.parametrize("words", [("two_sum",), ("adamw", "--strategy", "fp32-master")])
def test_pictures_are_written(words, suffix, tmp_path: Path):
    path = tmp_path / f"drawing{suffix}"
    out = call("show", *words, "--as", "network", "--output", str(path)).stdout
    assert out == f"saved {path}\n"
    first = path.read_bytes()
    assert first.startswith(b"\x89PNG" if suffix == ".png" else b"<?xml")
    call("show", *words, "--as", "network", "--output", str(path))
    assert path.read_bytes() == first
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "mode", "strategy"),
    [
        ("two_sum", "nearest_even", None),
        ("dw_times_dw2", "nearest_even", None),
        ("adamw", "nearest_even", "collage-plus"),
        ("adamw", "stochastic", "fp32-master"),
    ],
)
def test_nothing_in_a_picture_overlaps(name, mode, strategy):
    from mcfsim.report.network_figure import network_figure

    found = recorded(name, mode, strategy=strategy)
    with network_figure(wired(found.program, found.results), name) as figure:
        figure.canvas.draw()
        (page,) = figure.axes
        boxes = [patch.get_window_extent() for patch in page.patches if hasattr(patch, "get_boxstyle")]
        labels = [text.get_window_extent() for text in page.texts if text.get_text()]
        assert len(boxes) == len(found.program.steps)
    for group in (boxes, labels):
        for place, one in enumerate(group):
            assert not any(one.overlaps(other) for other in group[:place])
    inside = [
        sum(box.contains(*point) for point in (label.min, label.max)) for box in boxes for label in labels
    ]
    assert inside.count(2) == len(boxes)  # the sign of each, and no box cuts through a label
    assert inside.count(1) == 0


# -- refusals -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("two_summ", "unknown text 'two_summ' (did you mean 'two_sum'?); known texts: two_sum, fast_two_sum"),
        ("two_sum --as pictures", "unknown --as 'pictures'; allowed: pseudocode, text, network"),
        ("two_sum --as nmba", "unknown --as 'nmba' (did you mean 'numba'?)"),
        ("two_sum --format bf17", "unknown format 'bf17'"),
        ("two_sum --rounding x", "unknown rounding 'x'"),
        ("two_sum --strategy plain", "two_sum is no optimizer and takes no strategy"),
        ("two_sum --components 3", "two_sum takes no tuples of any length"),
        ("adamw --components 3", "adamw takes a strategy, which says how many components"),
        ("adamw --strategy collage", "unknown strategy 'collage' (did you mean"),
        ("adamw --strategy exact", "strategy 'exact' computes with exact numbers"),
        ("adamw --strategy collage-plus --format posit16", "posit16"),
        ("expansion.div --components 3", "an expansion of 3 components cannot be divided"),
        ("two_sum --output x.svg", "--output takes a drawing: give --as network with it"),
        ("two_sum --as network --output x.pdf", "cannot draw x.pdf: a figure's name ends in .svg or .png"),
        ("two_sum --as network --output no/such/x.svg", "cannot write no/such/x.svg: there is no folder"),
        ("--strategy plain", "name a text"),
    ],
)
def test_refusals(words, message):
    assert message in refused("show", *words.split())
