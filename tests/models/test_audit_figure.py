"""The picture of an audit: the worst on top, colours of the audit's numbers, marks where tensors stop."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from matplotlib.colors import to_rgb

import mcfsim as mcf
from mcfsim.models.auditing import audit
from mcfsim.report.audit_figure import MOST, audit_figure
from mcfsim.report.plotting import BEYOND, COLOURS, save_one
from tests.models.pages import HOSTILE, beyond, plan, some_samples

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def found():
    return audit(some_samples(), plan(), mcf.get_format("bfloat16"))


def drawn(found, **options):
    """Return a figure's tables, labels of rows and columns, marks, texts and titles."""
    with audit_figure(found, **options) as figure:
        left, right = figure.axes[:2]
        for axes in (left, right):
            axes.collections[0].update_scalarmappable()
        return {
            "tables": [axes.collections[0].get_array().filled(np.nan) for axes in (left, right)],
            "rows": [label.get_text() for label in left.get_yticklabels()],
            "columns": [label.get_text() for label in right.get_xticklabels()],
            "bold": [label.get_fontweight() == "bold" for label in right.get_xticklabels()],
            "marks": [
                (round(float(np.mean(line.get_ydata()))), line.get_xdata()[0])
                for line in left.get_lines()
                if line.get_color() == COLOURS["blue"]
            ],
            "texts": [text.get_text() for text in right.texts],
            "faces": [axes.collections[0].get_facecolor() for axes in (left, right)],
            "title": left.get_title("left"),
            "below": left.get_xlabel(),
            "edges": left.collections[0].get_coordinates()[0, :, 0],
        }


def test_it_draws_the_audit_and_marks_where_tensors_stop(found):
    figure = drawn(found)
    worst, totals = found.worst_first("plain"), found.totals()
    assert figure["rows"] == [item.name for item in worst]
    names = [total.strategy.name for total in totals]
    by_step = [[min(max(edq, 0), 1) for edq in item.found["plain"].edq_by_step] for item in worst]
    by_strategy = [[min(max(item.found[name].edq, 0), 1) for name in names] for item in worst]
    assert np.array_equal(figure["tables"][0], by_step)
    assert np.array_equal(figure["tables"][1], by_strategy)
    assert figure["texts"] == [f"{item.found[name].edq:.2f}" for item in worst for name in names]
    expected = [f"{item.strategy.name}{item.strategy.bytes_per_parameter:g} B" for item in totals]
    assert [label.replace("\n", "") for label in figure["columns"]] == expected
    assert figure["bold"] == [total == found.recommended()[0] for total in totals]
    assert sum(figure["bold"]) == 1
    stops = [item.found["plain"].stops for item in worst]
    assert len(set(stops)) > 2
    assert figure["marks"] == [(row, stop) for row, stop in enumerate(stops) if stop is not None]
    assert f"{len(figure['marks'])} of {len(stops)} tensors stop" in figure["title"]
    # A step stands up to halfway to its neighbours.
    steps, edges = found.steps, figure["edges"].tolist()
    assert edges == [steps[0] - 0.5, *((a + b) / 2 for a, b in pairwise(steps)), steps[-1] + 0.5]


def many(found, names):
    tensors = tuple(replace(found.tensors[i % 5], name=name) for i, name in enumerate(names))
    return replace(found, tensors=tensors)


def test_of_many_the_worst_are_drawn_and_the_others_counted(found):
    names = [f"model.layers.{i}.attention.query_projection_with_a_long_name.weight" for i in range(100)]
    larger = many(found, names)
    figure = drawn(larger)
    shown, others = larger.worst_first("plain")[:MOST], larger.worst_first("plain")[MOST:]
    edqs = [item.found["plain"].edq for item in others]
    assert figure["below"] == f"step\nand 60 more, of EDQ {min(edqs):.2f} to {max(edqs):.2f} over the run"
    assert figure["rows"] == [f"…{item.name.split('.')[2]}…" for item in shown]
    assert len(set(figure["rows"])) == MOST
    assert drawn(larger, most=7)["tables"][0].shape[0] == 7


def test_long_names_without_common_parts_lose_their_middle(found):
    names = ["a" * 30 + "b" * 30, "c" * 60, "short"]
    figure = drawn(many(found, names))
    assert sorted(map(len, figure["rows"])) == [5, 43, 43]
    assert {"a" * 21 + "…" + "b" * 21, "c" * 21 + "…" + "c" * 21, "short"} == set(figure["rows"])
    same = drawn(many(found, ["x" * 50] * 2))
    assert same["rows"] == ["x" * 21 + "…" + "x" * 21] * 2


def test_names_are_no_formulas_and_need_no_other_font(tmp_path):
    """And a tensor alone under one strategy is drawn."""
    hostile = audit(some_samples(HOSTILE), plan(), mcf.get_format("bfloat16"))
    rows = drawn(hostile)["rows"]
    assert "<script>window.owned = true</script>" in rows
    assert "\\u4e2d\\u6587" in " ".join(rows)
    assert "\\u202e" in " ".join(rows)
    with audit_figure(hostile) as figure:
        save_one(figure, tmp_path / "x.svg")
    alone = audit(some_samples()[:1], plan(("plain",)), mcf.get_format("bfloat16"))
    assert drawn(alone)["tables"][1].shape == (1, 1)


def test_weights_out_of_range_have_a_colour_of_their_own():
    _, found = beyond()
    edge = found.tensors[0].found["collage-light"]
    figure = drawn(found)
    assert figure["rows"][0] == "edge"
    width = len(found.steps)
    purple = [tuple(face[:3]) == to_rgb(BEYOND) for face in figure["faces"][0][:width]]
    assert purple == [step >= edge.beyond for step in found.steps]
    assert True in purple
    assert False in purple
    assert figure["texts"][0] == "beyond"
    assert "purple: out of the format's range" in figure["title"]
