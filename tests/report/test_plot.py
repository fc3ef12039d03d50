"""Figures of runs, analyses, curves and certificates: what is drawn is what they hold."""

from dataclasses import replace
from fractions import Fraction
from subprocess import run as start
from sys import executable

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.report.plot import PANELS, certificate_figure
from tests.cli.runner import call, refused

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def trained():
    problem = mcf.get_problem("quadratic", dimension=4, condition_number=10.0)
    return mcf.simulate(problem, "sgd", ["plain", "collage-plus", "exact"], steps=12, record_every=3)


@pytest.fixture(scope="module")
def certificates():
    return [mcf.verify(name, "float4_e2m1fn") for name in ("two_sum", "fast_two_sum_unordered", "grow")]


def lines(axes):
    return {line.get_label(): line.get_xydata() for line in axes.get_lines()}


def test_a_run_is_drawn_measure_by_measure(trained, tmp_path):
    figure = trained.plot(tmp_path / "run.png")
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")
    assert [axes.get_title(loc="left") for axes in figure.axes] == [title for title, _ in PANELS.values()]
    for axes, measure in zip(figure.axes, PANELS, strict=True):
        drawn = lines(axes)
        there = [name for name, series in trained.series.items() if measure in series]
        assert list(drawn) == there
        for name in there:
            expected = np.stack([trained.steps, trained.series[name][measure]], axis=1)
            assert np.array_equal(drawn[name], expected, equal_nan=True)


def test_a_run_with_few_measures_of_an_own_strategy_that_diverged_is_drawn(trained):
    losses = np.array([3.0, np.inf, np.nan, np.nan, np.nan])
    run = replace(trained, series={"mine": {"loss": losses}}, results={"mine": {"diverged_at": 3.0}})
    (axes,) = run.plot().axes
    assert np.array_equal(lines(axes)["mine"][:, 1], losses, equal_nan=True)
    assert [text.get_text() for text in axes.texts] == ["mine (not finite)"]


def test_certificates_are_drawn_with_verdict_and_worst_error(certificates):
    (axes,) = mcf.plot(certificates).axes
    bars = {round(bar.get_y() + bar.get_height() / 2): bar.get_width() for bar in axes.patches}
    for place, item in enumerate(certificates):
        found = item.worst
        assert bars[place] == (float(Fraction(found.constant) / Fraction(found.bound)) if found else 0)
        assert axes.texts[place].get_text().startswith(f"{item.verdict}: {item.violations:,} of ")
    assert [item.holds for item in certificates] == [True, False, True]
    assert len({text.get_color() for text in axes.texts}) == 2
    assert "3 tried, 1 violated" in axes.figure.get_suptitle()
    (axes,) = certificates[0].plot().axes
    assert len(axes.texts) == 1


def multiply_and_add(ar, x, y):
    return ar.add(ar.mul(x, y), x)


def test_analyses_and_curves_are_drawn(tmp_path):
    inputs = {"x": "normal()", "y": "normal()"}
    report = mcf.analyse(multiply_and_add, inputs, count=50)
    assert len(mcf.plot(report).axes) == 2
    mcf.plot(mcf.curve(multiply_and_add, inputs, "precision", [5, 8, 11], count=40), tmp_path / "curve.svg")
    assert "</svg>" in (tmp_path / "curve.svg").read_text()


@pytest.mark.parametrize("thing", [None, [], [1], "run.npz", np.ones(3)], ids=repr)
def test_what_has_no_figure_is_refused(thing):
    with pytest.raises(TypeError, match=r"cannot draw a .*a Run, Report, Curve, Certificate"):
        mcf.plot(thing)


def test_nothing_is_drawn_of_nothing_or_into_a_file_of_another_type(trained, certificates, tmp_path):
    with pytest.raises(ValueError, match="nothing that can be drawn: loss"):
        replace(trained, series={}).plot()
    with pytest.raises(TypeError, match="cannot draw a list"):
        mcf.plot([*certificates, trained])
    with pytest.raises(ValueError, match="there is no certificate to draw"), certificate_figure([]):
        pass
    with pytest.raises(TypeError, match="as one list"):
        mcf.plot(*certificates[:2])
    with pytest.raises(ValueError, match=r"ends in \.svg or \.png"):
        trained.plot(tmp_path / "run.jpg")
    assert not list(tmp_path.iterdir())


def test_no_window_is_opened_and_no_backend_chosen():
    code = (
        "import sys, matplotlib as m, mcfsim as mcf; m.use('svg')\n"
        "mcf.verify('two_sum', 'float4_e2m1fn').plot()\n"
        "print(m.get_backend(), 'matplotlib.pyplot' in sys.modules)"
    )
    done = start([executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["svg", "False"]


def test_the_command_draws_and_refuses_before_it_trains(tmp_path):
    words = ["simulate", "--problem", "quadratic", "--steps", "5", "--strategy", "plain", "--png"]
    assert "saved" in call(*words, tmp_path / "run.svg").stdout
    assert "</svg>" in (tmp_path / "run.svg").read_text()
    assert "ends in .svg or .png" in refused(*words, tmp_path / "run.pdf")
    assert [path.name for path in tmp_path.iterdir()] == ["run.svg"]
