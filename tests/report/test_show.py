"""Texts shown by the command line: as pseudocode, Python, generated source, costs and drawings."""

from __future__ import annotations

import inspect
import io
import itertools
import re
import subprocess
import sys
from collections import Counter
from contextlib import redirect_stdout
from functools import cache
from itertools import pairwise

import pytest

import mcfsim as mcf
from mcfsim import eft
from mcfsim.cli.show import VIEWS
from mcfsim.compile.loops import Loop
from mcfsim.compile.lowering import lower
from mcfsim.compile.program import Register
from mcfsim.compile.scalars import encoding
from mcfsim.compile.tracing import trace
from mcfsim.formats import get_format
from mcfsim.kernels.element.machine import TRUTH
from mcfsim.multiword import double_word
from mcfsim.optim.declaration import straight_optimizers
from mcfsim.report.algorithms import algorithms, is_optimizer, record
from mcfsim.report.program_report import machine_operations, network_figure
from mcfsim.report.wiring import network_text, staves, wired
from mcfsim.rounding import get_rounding
from tests.cli.runner import call, refused
from tests.shared.kinds import STORED, feeding, feeds

POLICIES = get_rounding("up", "saturate", "flush_after")
COLLAGE = {"strategy": "collage-plus"}
every_algorithm = pytest.mark.parametrize("name", algorithms())


@cache
def recorded(name, mode="nearest_even", fmt="bfloat16", **options):
    return record(name, get_format(fmt), get_rounding(mode), **options)


def shown(view, found):
    """Return what the command prints of a program, without what the command line costs each time."""
    with redirect_stdout(io.StringIO()) as out:
        VIEWS[view](found)
    return out.getvalue()


@pytest.mark.slow
def test_the_command_shows_the_program_that_its_options_mean():
    """Two algorithms in each view, the six of them in turn."""
    flushed = record("two_sum", get_format("bfloat16"), POLICIES)
    given = itertools.cycle(
        {
            "two_sum --rounding up --overflow saturate --underflow flush_after": flushed,
            "two_sum": recorded("two_sum"),
            "dw_times_fp1 --rounding up --format e4m3fn": recorded("dw_times_fp1", "up", "e4m3fn"),
            "adamw --strategy collage-plus --rounding stochastic": recorded("adamw", "stochastic", **COLLAGE),
            "vec_sum --components 3": recorded("vec_sum", components=3),
            "adamw": recorded("adamw", strategy="plain"),
        }.items()
    )
    for view in VIEWS:
        for words, found in itertools.islice(given, 2):
            assert call("show", *words.split(), "--as", view).stdout == shown(view, found), (words, view)


# -- names --------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_every_straight_line_of_the_literature_has_its_name_and_is_listed():
    lines = {name for name in double_word.__all__ if name != "DoubleWord"}
    lines |= {name for name, item in vars(eft).items() if hasattr(item, "__wrapped__")}
    assert len(lines) > 20
    assert lines | set(straight_optimizers()) <= set(algorithms())
    families = {name.partition(".")[0] for name in algorithms() if "." in name}
    assert families == {
        "expansion",
        "shewchuk",
        "adafactor",
        "momentumadafactor",
        "muon",
        "torchmuon",
        "amsgrad",
        "torchamsgrad",
    }
    listed = [line.split()[0] for line in call("show").stdout.splitlines() if line.split()]
    assert [name for name in listed if name in algorithms()] == list(algorithms())


# -- pseudocode, text and generated source ------------------------------------------------------------------
@every_algorithm
def test_pseudocode_costs_and_text_are_those_of_the_program(name):
    for mode in ("nearest_even", "stochastic"):
        program = (found := recorded(name, mode)).program
        lines = shown("pseudocode", found).splitlines()
        steps = [match for line in lines if (match := re.match(r"    (t\d+) = (\w+)\(", line))]
        kinds = Counter(operation for operation, _ in program.count().elements())
        assert Counter(match[2] for match in steps) == kinds, mode
        assert len(steps) == len(program.steps) > 0, mode
        assert lines[-1].startswith("    return ")
        first = program.steps[0]
        assert f"# {first.result.format}, {first.rounding.mode}" in lines[1]
        assert any(f"# bfloat16, {mode}" in line for line in lines)
        out = shown("text", found)
        assert f"def {name.rpartition('.')[2]}(" in out
        if not is_optimizer(algorithms()[name]):
            assert out.strip() == inspect.getsource(inspect.unwrap(algorithms()[name])).strip()
    lines, program = shown("cost", recorded(name)).splitlines(), recorded(name).program
    counted = Counter()
    for operation, fmt, _, many, *_ in table(lines, "operation"):
        counted[operation, fmt] += int(many)
    assert counted == program.count()
    numbers = dict(table(lines, "program"))
    assert int(numbers["operations"]) == len(program.steps)
    assert int(numbers["depth"]) == program.depth()
    assert int(numbers["live registers"]) == program.registers()
    assert "random words" not in numbers
    machine = {label: int(number) for label, number in table(lines, "machine")}
    assert machine.pop("all") == sum(machine.values()) > 0


@every_algorithm
@pytest.mark.parametrize(("view", "says"), [("llvm", "i32 @loop("), ("triton", "@triton.jit(do_not_special")])
@pytest.mark.sampled(16, each=False)
@pytest.mark.slow
def test_the_generated_source_is_what_is_compiled(name, view, says):
    for mode in ("nearest_even", "up", "stochastic"):
        found = recorded(name, mode)
        out = shown(view, found)
        assert f"{len(found.program.steps)} operations." in out, mode
        assert says in out, mode
        if view == "triton":
            compile(out, name, "exec")
        else:
            numbers = found.program.reals(found.numbers)
            assert Loop(found.program).source(numbers) == out, mode


@pytest.mark.parametrize(("name", "strategy"), feeding(STORED))
@pytest.mark.sampled(4)
def test_a_step_is_that_of_its_strategy(name, strategy):
    found, stored = recorded(name, strategy=strategy), mcf.strategy(strategy, "bfloat16")
    slots = [slot.name for slot in straight_optimizers()[name].slots]
    kept = [label for label in stored.tensors if label in slots or label not in ("gradient", "m", "v")]
    state = sum(stored.tensors[label].components for label in kept)
    assert len(found.program.inputs) == state + 1
    assert len(found.results) == len(found.program.outputs()) == state + 1
    assert found.results[-1] == "update"
    assert set(found.numbers) == set(found.program.scalars)
    out = shown("pseudocode", found)
    assert out.startswith(f"{name}, {strategy}(")
    assert all(scalar in out for scalar in found.program.scalars)


def test_policies_are_those_given_and_a_decay_of_zero_falls_away():
    steps = record("adamw", get_format("e5m2"), POLICIES).program.steps
    assert {step.rounding for step in steps} == {POLICIES}
    assert "decay" in recorded("adamw").program.scalars
    assert "decay" not in recorded("sgd").program.scalars


@pytest.mark.slow
def test_the_generated_source_needs_no_llvm():
    code = (
        "import sys; sys.modules['llvmlite'] = None\n"
        "from mcfsim.cli import app; app(['show', 'adamw', '--as', 'llvm'], standalone_mode=False)\n"
        "assert 'matplotlib' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "define i32 @loop(" in done.stdout


# -- random words --------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "strategy"),
    [(name, None) for name in algorithms()]
    + [("adamw", item) for item in STORED if feeds("adamw", item) and item != "mcf-3"]
    + [pytest.param("adamw", "mcf-3", marks=pytest.mark.exhaustive)],  # 7,600 operations
)
@pytest.mark.sampled(76, each=False)
def test_random_words_have_the_same_names_wherever_they_are_shown(name, strategy):
    found = recorded(name, "stochastic", strategy=strategy)
    words = list(found.program.words.values())
    assert len(words) == sum(step.draw is not None for step in found.program.steps) > 0
    assert re.findall(r"^    t\d+ = .*; (word\d+)\)", shown("pseudocode", found), re.M) == words
    source = shown("llvm", found)
    (taken,) = re.findall(r"^define i32 @loop\((.*)\) nounwind", source, re.M)
    assert re.findall(r"ptr %(word\d+)", taken) == words
    assert re.findall(r"^  ; t\d+ = .*?; (word\d+)\)", source, re.M) == words
    drawn = network_text(wired(found.program, found.results))
    assert sorted(re.findall(r"\[[^]]+ (word\d+)\]", drawn)) == sorted(words)
    costs = dict(table(shown("cost", found).splitlines(), "program"))
    assert int(costs["random words"]) == len(words)


# -- costs --------------------------------------------------------------------------------------------------
def table(lines, heading):
    """Return the rows of a table as lists of words, by the first heading."""
    start = next(place for place, line in enumerate(lines) if line.startswith(heading))
    rows = itertools.takewhile(str.strip, lines[start + 2 :])
    return [re.split(r" {2,}", line.strip()) for line in rows]


def test_bytes_are_those_of_carriers_and_of_codes():
    rows = table(shown("cost", recorded("two_sum")).splitlines(), "memory")
    assert rows == [["read", "2", "8", "4"], ["written", "2", "8", "4"], ["all", "4", "16", "8"]]
    lines = shown("cost", recorded("adamw", **COLLAGE)).splitlines()
    rows = {label: numbers for label, *numbers in table(lines, "memory")}
    # Parameter, m and v, the gradient read besides, and the update written.
    assert rows["read"] == ["6", "24", f"{mcf.strategy('collage-plus').bytes_per_parameter:g}"]
    assert rows["written"] == ["5", "20", "10"]
    assert rows["written, the update"] == ["1", "4", "2"]


def test_machine_operations_are_those_of_the_generated_source():
    found = recorded("two_prod", "up")
    ways = tuple(
        encoding(use, x, "exact")[0] for use, x in zip(found.program.uses, found.program.reals(), strict=True)
    )
    counted = machine_operations(lower(found.program, ways))
    whole = shown("llvm", found)
    (body,) = re.findall(r"^each\d+:$(.*?)^after", whole, re.M | re.S)
    statements = re.findall(r"^  %v\d+ = (\w+)", body, re.M)
    moved = [verb for verb in statements if verb in ("getelementptr", "load", "bitcast")]
    assert sum(counted.values()) == len(statements) - len(moved)
    assert counted[TRUTH] <= sum(counted.values())


def test_what_the_machine_cannot_do_is_said():
    out = shown("cost", recorded("two_prod", "up", "float64"))
    assert "refused" in out
    assert "There is no line for the machine: mul in float64, rounding up, has no exact path" in out


# -- drawings -----------------------------------------------------------------------------------------------
FAST_TWO_SUM = """
a ───────●──────○[− word1]───────○
         │           │           │
b ───────●───────────┼───────[− word2]─ e
         │           │
     [+ word0]───────●───────────────── s
"""


def test_operands_follow_from_the_signature():
    for found, head in (
        (recorded("two_sum", "stochastic"), "two_sum(a, b; word0 ... word5):"),
        (recorded("split", "up"), "split(x):"),
        (recorded("dw_times_dw2", "up"), "dw_times_dw2(xh, xl, yh, yl):"),
        (recorded("expansion.grow", "up", components=3), "grow(x0, x1, x2, a):"),
    ):
        assert shown("pseudocode", found).splitlines()[0] == head


def test_what_is_drawn():
    assert shown("network", recorded("fast_two_sum", "stochastic")).strip("\n") == FAST_TWO_SUM.strip("\n")


@pytest.mark.parametrize(
    ("name", "strategy"),
    [(name, None) for name in algorithms()] + [("adamw", "collage-plus"), ("sgd", "kahan")],
)
@pytest.mark.sampled(3, each=False)
def test_gates_take_the_values_of_their_steps(name, strategy):
    """What a gate finds in the rows that it takes is its operands, and no two lines meet; all are drawn."""
    found = recorded(name, strategy=strategy)
    drawing = wired(found.program, found.results)
    text = network_text(drawing)
    assert text.count("[") == text.count("]") == len(drawing.gates) == len(found.program.steps)
    assert all(result in text for result in found.results)
    for gate in drawing.gates:
        names = {str(x) for x in gate.step.operands if isinstance(x, Register)}
        arriving = {wire.name: wire.row for wire in drawing.wires if wire.start < gate.column <= wire.end}
        assert names == {label for label, row in arriving.items() if row in dict(gate.taken)}
        rows = dict.fromkeys(arriving[str(x)] for x in gate.step.operands if isinstance(x, Register))
        assert [row for row, _ in gate.taken] == list(rows)
        (made,) = [wire for wire in drawing.wires if wire.name == str(gate.step.result)]
        assert (made.row, made.start) == (gate.row, gate.column)
    for column in range(drawing.columns):
        spans = sorted((min(x.rows), max(x.rows)) for x in drawing.gates if x.column == column)
        assert all(a[1] < b[0] for a, b in pairwise(spans))
        assert len({gate.depth for gate in drawing.gates if gate.column == column}) == 1
    for row in range(drawing.rows):
        wires = sorted((wire.start, wire.end) for wire in drawing.wires if wire.row == row)
        assert all(a[1] <= b[0] for a, b in pairwise(wires))


@pytest.mark.parametrize("width", [1, 100])
def test_a_long_drawing_has_several_staves(width):
    found = recorded("adamw", **COLLAGE)
    drawing = wired(found.program, found.results)
    text, parts = network_text(drawing, width), list(staves(drawing, width))
    assert text.count("[") == len(found.program.steps)
    assert [part.first for part in parts[1:]] == [part.last + 1 for part in parts[:-1]]
    assert len(parts) > 1
    for part in parts:  # there is room for what comes from the staves before
        assert all(len(wire.name) < part.left for wire in part.wires if wire.start < part.first)
    assert width < 50 or max(map(len, text.splitlines())) <= width
    assert [part.last for part in parts][-1] == drawing.columns - 1


def test_a_drawing_is_as_wide_as_the_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    out = call("show", "dw_div_dw3", "--as", "network").stdout
    assert max(map(len, out.splitlines())) <= 80
    assert "subtrahend" in out


@pytest.mark.slow
@pytest.mark.parametrize(("suffix", "start"), [(".png", b"\x89PNG"), (".svg", b"<?xml")])
def test_pictures_are_written(suffix, start, tmp_path):
    """The same bytes each time."""
    path, found = tmp_path / f"drawing{suffix}", set()
    for _ in range(2):
        assert call("show", "two_sum", "--as", "network", "--output", path).stdout == f"saved {path}\n"
        found.add(path.read_bytes())
    assert [content[: len(start)] for content in found] == [start]
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.slow
def test_choices_and_functions_are_drawn_too():
    def chosen(ar, x, y):
        return ar.choose(x, ar.maximum(x, y), ar.exp(y))

    program = trace(chosen, "bfloat16", operands=("x", "y"))
    with network_figure(wired(program, ("z",)), "mine") as figure:
        (page,) = figure.axes
        said = [text.get_text() for text in page.get_legend().get_texts()]
    assert said == ["choice", "function"]


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["kahan", "fp32-optim"])
def test_nothing_in_a_picture_overlaps(strategy):
    found = recorded("sgd", "stochastic", strategy=strategy)
    with network_figure(wired(found.program, found.results), "sgd") as figure:
        figure.canvas.draw()
        (page,) = figure.axes
        boxes = [patch.get_window_extent() for patch in page.patches if hasattr(patch, "get_boxstyle")]
        labels = [text.get_window_extent() for text in page.texts if text.get_text()]
    assert len(boxes) == len(found.program.steps)
    for group in (boxes, labels):
        for place, one in enumerate(group):
            assert not any(one.overlaps(other) for other in group[:place])
    ends = [(label.min, label.max) for label in labels]
    inside = [sum(box.contains(*point) for point in both) for box in boxes for both in ends]
    assert inside.count(2) == len(boxes)  # the sign of each, and no box cuts through a label
    assert inside.count(1) == 0


# -- refusals -----------------------------------------------------------------------------------------------
#: What a command is asked, and what is said.
REFUSED = {
    "two_summ": "unknown algorithm 'two_summ' (did you mean 'two_sum'?); known algorithms: two_sum, ",
    "two_sum --as pictures": "unknown --as 'pictures'; allowed: pseudocode, text, network",
    "two_sum --as lvm": "unknown --as 'lvm' (did you mean 'llvm'?)",
    "two_sum --strategy plain": "two_sum is no optimizer and takes no strategy",
    "two_sum --components 3": "two_sum takes no tuples of variable length",
    "adamw --components 3": "adamw takes a strategy, which says how many components",
    "adamw --strategy collage": "unknown strategy 'collage' (did you mean",
    "adamw --strategy exact": "strategy 'exact' computes with exact numbers",
    "adamw --strategy collage-plus --format posit16": "posit16",
    "two_prod --format float64 --rounding up --as llvm": "has no exact path",
    "expansion.div --components 3": "an expansion of 3 components cannot be divided",
    "two_sum --output x.svg": "--output takes a drawing: give --as network with it",
    "two_sum --as network --output x.pdf": "cannot draw x.pdf: a figure's name ends in .svg or .png",
    "two_sum --as network --output no/such/x.svg": "cannot write no/such/x.svg: there is no folder",
    "--strategy plain": "name an algorithm",
}


@pytest.mark.parametrize("words", REFUSED)
def test_refusals(words):
    assert REFUSED[words] in refused("show", *words.split())
