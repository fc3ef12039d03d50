"""The documentation's code, the command, the page and the figures of an error analysis."""

import contextlib
import io
import json
import re
import shlex
import sys
from functools import partial
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import mcfsim as mcf
from mcfsim.analysis.curves import Curve, Point
from mcfsim.cli.application import app
from mcfsim.report.analysis_report import analysis_page, curve_figure, draw_curves, report_figure
from mcfsim.report.plotting import subplots
from tests.analysis.algorithms import bisection, softmax
from tests.shared.pages import examples, page

pytestmark = pytest.mark.slow

BLOCKS = examples("analyse")
MINE = '''def scaled(ar, x, y, k=2.0):
    """Not <b>markup</b> & such."""
    return ar.add(ar.mul(x, k), ar.exp(y))
'''


def command(*words):
    """Return the exit status and the output of a command."""
    found = CliRunner().invoke(app, list(words), env={"COLUMNS": "200"})
    return found.exit_code, found.output


@pytest.mark.exhaustive
@pytest.mark.parametrize("place", range(len(BLOCKS)))
def test_the_documentation_says_what_its_code_prints(place, tmp_path):
    """Also that the questions take at most 15 lines, imports and blank lines left out."""
    path = tmp_path / "example.py"
    path.write_text(BLOCKS[place])
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(BLOCKS[place], str(path), "exec"), {"__name__": "example"})
    text = printed.getvalue()
    lines = [x for x in BLOCKS[place].splitlines() if x.strip() and not x.startswith(("import", "from"))]
    assert len(lines) <= 15
    if "average" in BLOCKS[place] and "advise" in BLOCKS[place]:
        assert len(re.findall("with 2 expressions", text)) == 2
        assert "no smaller set does" in text
    if "iterative_refinement" in BLOCKS[place]:
        slopes = [float(x) for x in re.findall(r"slope of log2 error ([-0-9.]+)", text)]
        assert slopes[0] > 0.7
        third = text.split("'float32'}")[1].splitlines()[2:8]
        assert all(0.0010 < float(row.split()[1]) < 0.0018 for row in third)
    if "distillation" in BLOCKS[place]:
        names = "distillation_gradient", "cross_entropy_gradient"
        rates = {x: [float(y) for y in re.findall(rf"{x} ([0-9.]+)%", text)] for x in names}
        assert rates["distillation_gradient"] == sorted(rates["distillation_gradient"])
        assert 3 < rates["distillation_gradient"][0] < 8 < 14 < rates["distillation_gradient"][2] < 25
        assert max(rates["cross_entropy_gradient"]) < 1


@pytest.mark.costly("a whole analysis with advice")
def test_the_command_prints_what_the_documentation_shows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    mine, shown = re.search(
        r"```py\n(.*?)```\n\n```\n\$ (.*?)```", page("analyse").read_text(), re.DOTALL
    ).groups()
    (tmp_path / "mine.py").write_text(mine)
    line, _, printed = shown.partition("\n")
    status, text = command(*shlex.split(line)[1:])
    assert status == 0
    assert text == printed


@pytest.fixture
def unsaved(monkeypatch):
    """Let figures of pages be made, but not saved, which takes longest."""

    def made(figure, about):
        with figure:
            return ""

    monkeypatch.setattr("mcfsim.report.analysis_report._picture", made)


class _Page(HTMLParser):
    """The text of a page, and the titles and classes of its shades."""

    def __init__(self):
        super().__init__()
        self.text, self.shades, self.tags = "", [], []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        given = dict(attributes)
        if tag == "span" and given.get("title"):
            self.shades.append((given["class"], given["title"]))

    def handle_data(self, data):
        self.text += data


@pytest.mark.costly("an analysis with advice, search and a page")
def test_a_page_shows_the_text_as_text_with_a_shade_behind_each_expression(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    page, data = tmp_path / "page.html", tmp_path / "found.json"
    status, text = command(
        *(
            "analyse",
            f"{path}:scaled",
            "--input",
            "x=uniform(1, 2)",
            "--input",
            "y=normal()",
            "--count",
            "300",
        ),
        *("--option", "k=3.0", "--target", "0.02", "--search", "--html", str(page), "--json", str(data)),
    )
    assert status == 0, text
    assert "ar.add(ar.mul(x, k), ar.exp(y))" in text
    read = _Page()
    read.feed(page.read_text())
    assert "Not <b>markup</b> & such." in read.text
    assert not {"script", "b"} & {*read.tags}
    found = json.loads(data.read_text())
    assert {row["expression"]["text"] for row in found["blame"]} >= {"ar.mul(x, k)", "ar.exp(y)"}
    worst = max(found["blame"], key=lambda row: row["rms"])
    shades = {title: int(shade[1:]) for shade, title in read.shades}
    assert max(shades, key=shades.get).startswith(f"rms {worst['rms']:.3g} u")
    assert sum(row["explains"] for row in found["blame"]) == pytest.approx(1)
    assert found["truth"]["off"] < 1e-12
    assert found["advice"]["reached"] in (True, False)
    assert found["found"]["value"] > 0


@pytest.mark.costly("it draws six figures")
@pytest.mark.exhaustive
def test_figures_are_drawn_of_reports_and_of_every_curve():
    report = mcf.analyse(softmax, {"x": "normal()*4"}, count=100)
    exact = mcf.analyse(lambda ar, x: ar.neg(x), {"x": "normal()"}, count=10)
    unbounded = mcf.analyse(softmax, {"x": "normal()*4"}, "posit8", count=10)
    unknown = [mcf.analyse(f, {"x": "normal()"}, count=9) for f in (of_format, zero, nothing)]
    for drawn in (report, exact, unbounded, *unknown):
        with report_figure(drawn) as figure:
            figure.draw_without_rendering()
    with curve_figure(mcf.curve(exact.rounded.function, {"x": "normal()"}, "condition", count=10)) as figure:
        figure.draw_without_rendering()
    given = {"precision": [5, 8, 11], "length": [2, 4, 8], "condition": None, "rounding": None}
    for along, at in given.items():
        curve = mcf.curve(softmax, {"x": "normal()*4"}, along, at, count=60)
        with curve_figure(curve) as figure:
            figure.draw_without_rendering()
        assert len(curve.points) == len(at or curve.points)
    text = analysis_page(report, report.advise("3u"), report.search(steps=3), curve)
    assert text.count("<img") == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["sofmax"], "no function 'sofmax'.*softmax"),
        (["nothing.py:f"], "there is no file nothing.py"),
        (["nomodule:f"], "nomodule cannot be imported"),
        (["softmax"], "has no inputs for x"),
        (["softmax", "--input", "x=normal(*4"], "is no sampler"),
        (["softmax", "--input", "normal()"], "is no name with a value"),
        (
            ["softmax", "--input", "x=normal()*3", "--input", "x=normal()*4"],
            r"'x=normal\(\)\*4': x has a value already, normal\(\)\*3$",
        ),
        (["softmax", "--input", "y=normal()*3"], "no operand 'y'"),
        (["softmax", "--input", "x=normal()*3", "--format", "bf17"], "bf17"),
        (["softmax", "--input", "x=normal()*3", "--target", "0.1u"], "below u"),
        (["softmax", "--input", "x=normal()*3", "--target", "much"], "a target is a number"),
        (["softmax", "--input", "x=normal()*3", "--target", "1.2.3"], "a target is a number"),
        (["softmax", "--input", "x=normal()*70000"], "is too long"),
        (["softmax", "--input", "x=normal(sigma=1)*3"], r"'sigma'; it is normal\(mean, deviation\)$"),
        (["softmax", "--input", "x=values('none.npy')*3"], "there is no file none.npy"),
        (["softmax", "--input", "x=normal()*3", "--option", "x=1"], "an operand or an option, and not both"),
        (["mine.py"], "which function of mine.py"),
        ([":softmax"], "names no function"),
        (["softmax", "--input", "x=normal()*3", "--target", "2u", "--wide", "e4m3"], "not wider"),
        (["softmax", "--input", "x=normal()*3", "--wide", "float32"], "--wide needs --target"),
        (["softmax", "--input", "x=normal()*3", "--target", "2u", "--wide", ""], "unknown format ''"),
        (["softmax", "--input", "x=normal()*3", "--along", "speed"], "no curve along 'speed'"),
        (["softmax", "--input", "x=normal()*3", "--along", "length=8:2"], "no values"),
        (["softmax", "--input", "x=normal()*3", "--along", "length=8:2:0"], "write values as"),
        (["softmax", "--input", "x=normal()*3", "--along", "precision=1:3"], "precision = 1 must be at"),
        (["softmax", "--input", "x=normal()*3", "--along", "condition=1:3"], "follow from the inputs"),
        (["softmax", "--input", "x=normal()*3", "--along", "components"], "no option 'k'"),
        (["softmax", "--input", "x=normal()*3", "--along", "rounding=1:3"], "unknown rounding 1"),
        (["softmax", "--input", "x=normal()*3", "--output", "7"], "no result 7"),
        (["softmax", "--input", "x=normal()*3", "--output", "one"], "place of a result"),
        ([], "name a function"),
    ],
)
def test_a_line_that_asks_nothing_is_refused_in_one_line(words, message):
    status, text = command("analyse", *words)
    assert status == 2
    assert re.search(message, text), text
    assert text.count("\n") == 1


def test_what_a_file_raises_is_told_with_its_name(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("int('x')\n")
    status, text = command("analyse", f"{path}:f")
    assert status == 2
    assert f"{path} cannot be imported: ValueError: invalid literal" in text


def test_the_library_is_listed_and_benchmarks_bring_their_inputs():
    status, text = command("analyse", "--list")
    assert status == 0
    assert {"softmax", "compensated_horner", "doppler1"} <= {
        line.split()[0] for line in text.splitlines() if line
    }
    status, text = command("analyse", "doppler1", "--format", "float32", "--count", "50")
    assert status == 0
    assert "u: uniform(-100, 100)" in text


def test_values_that_fall_reach_their_end():
    words = ["softmax", "--input", "x=normal()*3", "--count", "5", "--truth", "0"]
    status, text = command("analyse", *words, "--along", "precision=9:5:-2")
    assert status == 0
    assert re.findall(r"^ +(\d) .*$", text, re.MULTILINE)[-3:] == ["9", "7", "5"]


def test_a_curve_is_of_the_result_that_is_asked_for_in_each_format():
    words = ["givens", "--input", "a=uniform(1, 2)", "--input", "b=uniform(1, 2)", "--count", "50"]
    words += ["--truth", "0", "--along", "rounding=up,down", "--format", "bf16", "--format", "fp16"]
    tables = []
    for output in ("0", "1"):
        status, text = command("analyse", *words, "--output", output)
        assert status == 0, text
        assert text.count("givens along rounding") == 2
        tables.append(re.findall(r"^ +(?:up|down) +(.*)$", text, re.MULTILINE))
    assert len({*tables[0], *tables[1]}) == 8


@pytest.mark.parametrize("fmt", ["bfloat16", "posit16"])  # bounds in posits are infinite
def test_exact_results_have_a_place_on_the_axis(fmt):
    def doubled(ar, x, k):
        return (ar.add(x, x), *(ar.mul(x, 0.1),) * (k == 1))

    inputs = {"x": "uniform(1, 2)"}
    curve = mcf.curve(doubled, inputs, "components", [1, 2], formats=fmt, count=20)
    assert curve.points[0].median > curve.points[1].median == 0
    with curve_figure(curve) as figure:
        (panel,) = figure.axes
        *_, (place, label) = zip(panel.get_yticks(), panel.get_yticklabels(), strict=True)
        assert label.get_text() == "exact"
        assert [float(y) for y in panel.lines[1].get_ydata()] == [curve.points[0].median, place]
        assert panel.get_ylim()[0] < place < curve.points[0].median


def test_more_curves_than_colours_have_other_markers():
    curve = Curve("f", "precision", (Point(8, 1.0, 1.0, 1.0, 1.0, 1),), np.nan, (np.nan, np.nan))
    with subplots(1, 1) as (_, axes):
        draw_curves(axes[0][0], {str(k): curve for k in range(10)})
        assert len({(x.get_color(), x.get_marker()) for x in axes[0][0].lines}) == 10


def test_a_report_is_text_and_reports_of_formats_are_several():
    reports = mcf.analyse(bisection, {"a": "uniform(1, 4)"}, ["e4m3fn", "bf16"], count=50, truth=1)
    assert [str(x.format) for x in reports] == ["float8_e4m3fn", "bfloat16"]
    several = mcf.analyse(bisection, {"a": "uniform(1, 4)"}, precisions=range(6, 9), count=50, truth=0)
    assert [x.format.precision for x in several] == [6, 7, 8]
    assert "choices turned" in str(reports[0])
    assert repr(reports[0]) == str(reports[0])


def test_a_file_is_imported_beside_its_neighbours_and_hides_no_module(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "beside_it.py").write_text("def twice(ar, x):\n    return ar.add(x, x)\n")
    mine = "from beside_it import twice\n\ndef f(ar, x):\n    return ar.mul(twice(ar, x), 0.3)\n"
    (tmp_path / "statistics.py").write_text(mine)
    status, text = command(
        "analyse", f"{tmp_path / 'statistics.py'}:f", "--input", "x=normal()", "--count", "20"
    )
    assert status == 0, text
    assert "statistics.py:4" in text
    assert not hasattr(sys.modules.get("statistics"), "twice")


def scaled(ar, x, y, k=2.0):
    return ar.add(ar.mul(x, k), y)


class Scaled:
    def __call__(self, ar, x, y, k=2.0):
        return scaled(ar, x, y, k)


def test_a_report_names_a_tuple_as_the_function_does():
    report = mcf.analyse(lambda ar, x1: ar.add(*x1), {"x1": "normal()*2"}, count=5, truth=0)
    assert str(report.rounded.inputs) == "x1*2: normal()"


@pytest.mark.parametrize(
    ("function", "name"), [(partial(scaled), "scaled"), (Scaled(), "Scaled"), (Scaled().__call__, "__call__")]
)
def test_partial_functions_methods_and_callable_objects_are_analysed_by_their_names(function, name):
    found, wanted = (mcf.analyse(x, {"x": "normal()", "y": "normal()"}, count=20) for x in (function, scaled))
    assert str(found) == str(wanted).replace("scaled", name, 1)
    assert found.truth.off < 1e-12


@pytest.mark.parametrize(
    ("function", "options"),
    [
        (lambda ar, y=0.5, x=0.5, k=2.0: scaled(ar, x, y, k), {}),
        (lambda ar, k, x, y, **rest: scaled(ar, x, y, k), {"k": 2.0}),
        (lambda ar, x, *, k=2.0, y: scaled(ar, x, y, k), {}),
    ],
)
def test_operands_are_found_by_name(function, options):
    inputs = {"x": [0.1, 0.2], "y": [0.3, 0.7]}
    found = mcf.analyse(function, inputs, options=options)
    assert found.error.tolist() == mcf.analyse(scaled, inputs).error.tolist()
    assert found.truth.off < 1e-12


REFUSED = {
    "if x > 0:\n        return x": "if x > 0: .*ar.choose",
    "return x + y": "return x .*unsupported operand",
    "return float(x)": r"float\(\) argument",
    "return math.exp(x)": "must be real number",
    "return np.exp(x)": "does not support ufuncs",
    "return len(x)": "has no len",
    "return ar.pow(x, 2.0)": "there is no operation pow",
    "return ar.mull(x, y)": r"mull \(did you mean 'mul'\?\)",
    "return ar.add(x)": "missing 1 required",
    "return {}[0]": "KeyError: 0",
    "return f(ar, x, y)": "RecursionError",
    "return np.sum([x, y])": r"return np.sum\(\[x, y\]\): unsupported operand",
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_no_straight_line_is_refused_where_it_stands(text, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(f"import math\nimport numpy as np\n\ndef f(ar, x, y):\n    {text}\n")
    status, printed = command("analyse", f"{path}:f", "--input", "x=normal()", "--input", "y=normal()")
    assert status == 2
    assert re.search(f"^Error: mine.py:5: .*{REFUSED[text]}", printed), printed
    assert printed.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("complex.npy", np.ones(3, complex)),
        ("words.npy", np.array(["a"])),
        ("nan.npy", np.array([np.nan])),
        ("picture.npz", b"PK\3\4\xff\xfe"),
        ("broken.npy", b"hello"),
        ("head.csv", b"x,y\n1,2\n"),
        ("empty.txt", b""),
        ("empty.npy", b""),
        ("picture.npy", b"PK\3\4\xff\xfe"),
    ],
)
def test_a_file_without_numbers_is_refused_by_its_name(name, content, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if isinstance(content, bytes):
        Path(name).write_bytes(content)
    else:
        np.save(name, content)
    status, printed = command("analyse", "softmax", "--input", f"x=values('{name}')*3")
    assert status == 2
    assert re.fullmatch(rf"Error: values\('{name}'\).*\n", printed), printed


def corrected(ar, x, y):
    s, e = mcf.two_sum(ar, x, y)
    return ar.add(ar.mul(s, 0.3), e)


def test_a_row_that_calls_others_opens_to_them(unsaved):
    report = mcf.analyse(corrected, {"x": "normal()", "y": "normal()"}, count=200)
    ((place, within),) = report.opened().items()
    row = next(row for row in report.blame() if row.expression == place)
    assert place.text == "mcf.two_sum(ar, x, y)"
    assert len(within) == 6
    assert {x.expression.function for x in within} == {"two_sum"}
    assert sum(x.explains for x in within) == pytest.approx(row.explains)
    assert sum(x.operations for x in within) == row.operations == 6
    (data,) = (x for x in report.as_json()["blame"] if x["within"])
    assert [x["rms"] for x in data["within"]] == [x.rms for x in within]
    assert analysis_page(report).count("<details>") == 1
    assert mcf.analyse(softmax, {"x": "normal()*3"}, count=9).opened() == {}


def of_format(ar, x):
    return ar.mul(x, 1 - 0.1 * ar.format.precision)


def zero(ar, x):
    return ar.sub(x, x)


def nothing(ar, x):
    return ar.sqrt(ar.sub(-1.0, ar.mul(x, x)))


@pytest.mark.parametrize(
    ("function", "fmt", "lines"),
    [
        (of_format, "bfloat16", ["the function itself does not run in exact arithmetic"]),
        (zero, "bfloat16", ["error    absolute: median 0, largest 0; 9 with an exact", "first order: holds"]),
        (nothing, "bfloat16", ["error    no result is a number; 9 infinite", "first order: says nothing"]),
        (scaled, "posit8", ["first order: says nothing", "interval: .*; holds"]),
    ],
)
def test_what_is_not_known_is_said_in_words(function, fmt, lines, unsaved):
    names = "xy" if function is scaled else "x"
    report = mcf.analyse(function, dict.fromkeys(names, "normal()"), fmt, count=9)
    for line in lines:
        assert re.search(line, str(report)), str(report)
    assert not re.search(r"\bnan\b", str(report))
    json.dumps(report.as_json(), allow_nan=False)
    page = _Page()
    page.feed(analysis_page(report))
    assert not re.search(r"\bnan\b", page.text)


def test_shares_whose_squares_are_infinite_have_the_darkest_shade():
    def lost(ar, x, y):
        return ar.add(ar.sub(ar.mul(ar.div(1.0, x), x), 1.0), y)

    report = mcf.analyse(lost, {"x": [3.0], "y": [1e-300]}, "float64", truth=0)
    assert np.isinf(report.blame()[0].rms)
    page = analysis_page(report)
    assert 'class="h8" title="rms inf u, explains -"' in page


def test_quantiles_are_those_of_each_input():
    report = mcf.analyse(softmax, {"x": "normal()*3"}, count=40)
    found = report.quantiles((0.5, 1.0))
    assert found["relative"] == [report.median(), report.worst()]
    assert found["ulps"][1] == report.ulps.max()
    assert found["condition"][0] == np.median(report.condition)


def remainder(ar, x, y):
    return ar.sub(ar.sub(ar.add(x, y), 1.0), y)


@pytest.mark.parametrize(
    ("function", "fmt", "x", "expected"),
    [
        (remainder, "bfloat16", 1.0, 2.0**-9 / 2.0**-133),  # of zero, which has the ulp of the least numbers
        (scaled, "posit16", 999_424.0, 819.2 / 2048),
    ],
)
def test_ulps_are_those_of_the_format(function, fmt, x, expected):
    options = {"k": 0.3} if function is scaled else {}
    report = mcf.analyse(function, {"x": [x], "y": [2.0**-9]}, fmt, options=options, truth=0)
    assert report.ulps == pytest.approx([expected], rel=1e-3)
