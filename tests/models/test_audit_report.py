"""An audit as a page and as a picture: both have its numbers, and no name is markup; nothing is fetched."""

import base64
import hashlib
import json
import math
import re
import tomllib
import zlib
from dataclasses import replace
from fnmatch import fnmatch
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_rgb

import mcfsim as mcf
from mcfsim.models.audit import EDGES, audit
from mcfsim.models.product_rows import ProductRow
from mcfsim.report import terminal
from mcfsim.report.audit_report import MOST, at_rates, audit_figure, audit_page, page_data
from mcfsim.report.audits import product_table, update_model
from mcfsim.report.plotting import BEYOND, COLOURS, save_one
from tests.models.pages import BFLOAT16, HOSTILE, beyond, plan, some_audits, some_samples

pytestmark = pytest.mark.slow

PACKAGE = Path(mcf.__file__).parent
ROOT = Path(__file__).parents[2]
LEFT_OUT = {"ids": "int64 holds no weights"}


def tags_of(page):
    """Return the tags of a page in order, with their attributes."""
    tags, parser = [], HTMLParser()
    parser.handle_starttag = lambda tag, attributes: tags.append((tag, dict(attributes)))
    parser.feed(page)
    parser.close()
    return tags


@pytest.fixture(scope="module")
def audits():
    return some_audits()


@pytest.fixture(scope="module")
def page(audits):
    return audit_page("model.safetensors", audits, LEFT_OUT)


def blocks(page, tag):
    """Return the texts of elements that begin so."""
    return re.findall(rf"<{tag}>(.*?)</{tag.split()[0]}>", page, re.DOTALL)


def data_block(page):
    (data,) = blocks(page, 'script type="text/plain" id="data"')
    return data


def data_of(page):
    return json.loads(zlib.decompress(base64.b64decode(data_block(page), validate=True)))


def rounded(x):
    """Return what stands on the page for a number, or for what is none."""
    if not isinstance(x, float):
        return x
    return None if math.isnan(x) else round(x, 4)


def many(found, names):
    """Return an audit of so many of its tensors, in turn, under other names."""
    tensors = tuple(replace(found.tensors[i % 5], name=name) for i, name in enumerate(names))
    return replace(found, tensors=tensors)


@pytest.mark.parametrize("out_of_range", [False, True])
def test_its_numbers_are_the_audits(audits, out_of_range):
    """What has none is null."""
    audits = [beyond()[1]] if out_of_range else audits
    data = data_of(audit_page("", audits, {}))
    names = [item.name for item in audits[0].plan.strategies]
    assert (data["edges"], data["steps"]) == (EDGES.tolist(), list(audits[0].steps))
    assert [item["name"] for item in data["strategies"]] == names
    assert data["parameters"] == sum(math.prod(item["shape"]) for item in data["tensors"])
    for run, found in zip(data["runs"], audits, strict=True):
        assert run["peak"] == found.plan.schedule.peak
        rates = [found.plan.schedule.rate(step, found.plan.steps) for step in found.steps]
        np.testing.assert_allclose(run["rates"], rates, rtol=5e-4)
        for shown, item in zip(run["tensors"], found.tensors, strict=True):
            assert shown["histogram"] == [round(share, 4) for share in item.histogram]
            below = [x for x, end in zip(item.histogram, EDGES[1:], strict=True) if end <= np.log2(0.5)]
            assert shown["below_half"] == round(sum(below), 4)
            for here, name in zip(shown["found"], names, strict=True):
                there = item.found[name]
                for label in ("edq", "lost", "idle", "stops", "beyond", "bytes"):
                    assert here[label] == rounded(getattr(there, label)), label
                assert here["course"] == [rounded(edq) for edq in there.edq_by_step]
        for shown, total in zip(run["totals"], found.totals(), strict=True):
            for label in ("edq", "lost", "worst", "stopped", "sufficient", "bytes"):
                assert shown[label] == rounded(getattr(total, label)), label
        chosen, why = found.recommended()
        assert run["reason"] == why
        assert data["strategies"][run["recommended"]]["name"] == chosen.strategy.name
    if out_of_range:
        collage, master = data["runs"][0]["tensors"][0]["found"]
        assert master["beyond"] is None in collage["course"]
        assert collage["beyond"] is not None


def test_the_rates_differ_and_the_same_audits_give_the_same_page(audits, page):
    fates = {tuple(item.found["plain"].edq for item in found.tensors) for found in audits}
    assert len(fates) == 5
    samples = some_samples()
    for times, found in ((0.25, audits[0]), (4, audits[4])):
        expected = audit(samples, plan(schedule=(1e-3 * times, 3, 0.01)), BFLOAT16)
        assert page_data("", [found], {}) == page_data("", [expected], {})
    again = at_rates(samples, audits[2])
    assert again[2] is audits[2]
    assert audit_page("model.safetensors", again, LEFT_OUT) == page


def test_it_says_what_it_rests_on(page, audits):
    data = data_of(page)
    assert data["updates"] == update_model(audits[0])
    assert data["terms"] == [list(pair) for pair in terminal.AUDIT.items()]
    assert (data["left_out"], data["source"]) == ([[*pair] for pair in LEFT_OUT.items()], "model.safetensors")
    said = dict(data["plan"])
    assert "beta2 = 0.95" in said["optimizer"]
    assert "15 steps, 3 of them warm-up, then cosine to 0.01 of the peak rate" in said["schedule"]
    constant = replace(audits[2], plan=plan(schedule=(1e-3, 0, 1.0)))
    assert dict(page_data("", [constant], {})["plan"])["schedule"].endswith("then constant")


def test_nothing_is_fetched_and_only_its_own_script_may_run(page):
    tags = tags_of(page)
    for tag, attributes in tags:
        assert not {"src", "href", "srcset", "action", "style"} & set(attributes), tag
        assert not [name for name in attributes if name.startswith("on")], tag
        assert tag not in ("link", "iframe", "object", "embed", "base")
    assert set(re.findall(r"\w+://[\w./]+", page)) == {"http://www.w3.org/2000/svg"}
    policies = [about["content"] for _, about in tags if about.get("http-equiv") == "Content-Security-Policy"]

    def hashed(tag):
        (text,) = blocks(page, tag)
        return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

    own = f"script-src {hashed('script')}; style-src {hashed('style')}"
    assert policies == [f"default-src 'none'; {own}; base-uri 'none'; form-action 'none'"]


def test_no_name_is_markup(page, audits):
    evil = "</script><script>window.owned = true</script>"
    renamed = [many(found, HOSTILE) for found in audits]
    hostile = audit_page(evil, renamed, {evil: evil})
    assert tags_of(hostile) == tags_of(page)
    assert "owned" not in hostile.replace(data_block(hostile), "")
    data = data_of(hostile)
    assert tuple(item["name"] for item in data["tensors"]) == HOSTILE
    assert (data["source"], data["left_out"]) == (evil, [[evil, evil]])
    half = many(audits[2], ["half \ud800"])
    assert data_of(audit_page("file \udcff", [half], {}))["tensors"][0]["name"] == "half \ud800"
    scripts = "".join(script.read_text() for script in (PACKAGE / "report" / "page").glob("*.js"))
    assert not re.findall(r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b", scripts)


def test_products_are_a_table_of_their_own(audits):
    evil = "</script><script>window.owned = true</script>"
    rows = [ProductRow(1, evil, "mxfp8", "forward", "x", 1, 8, 0.5, 0.1, 0.25, 0.0, math.nan)]
    hostile = audit_page("m", audits, {}, rows)
    assert data_of(hostile)["products"] == product_table(rows)
    assert product_table(rows)[0]["layer"] == evil
    assert "owned" not in hostile.replace(data_block(hostile), "")
    assert data_of(audit_page("m", audits, {}))["products"] == []


def test_what_cannot_be_shown_together_is_refused(audits):
    first, second = audits[:2]
    fewer = replace(second.plan, strategies=second.plan.strategies[1:])
    for given, text in (
        ([], "at least one audit"),
        ([replace(first, tensors=())], "at least one tensor"),
        ([first, replace(second, tensors=second.tensors[1:])], "the same tensors"),
        ([first, replace(second, steps=second.steps[1:])], "the same steps"),
        ([first, replace(second, plan=fewer)], "the same strategies"),
    ):
        with pytest.raises(ValueError, match=text):
            audit_page("", given, {})


def test_every_file_of_the_package_is_installed():
    about = tomllib.loads((ROOT / "pyproject.toml").read_text())
    patterns = about["tool"]["setuptools"]["package-data"]["mcfsim"]
    files = [path for path in PACKAGE.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")]
    names = [path.relative_to(PACKAGE).as_posix() for path in files]
    assert "report/page/audit.html" in names
    assert [name for name in names if not any(fnmatch(name, pattern) for pattern in patterns)] == []


# -- the picture --------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def found(audits):
    return audits[2]


def drawn(found, **options):
    """Return a figure's tables, labels of rows and columns, marks, texts and titles."""
    with audit_figure(found, **options) as figure:
        left, right = figure.axes[:2]
        tables = [axes.collections[0] for axes in (left, right)]
        tables[0].update_scalarmappable()
        marks = [line for line in left.get_lines() if line.get_color() == COLOURS["blue"]]
        return {
            "tables": [table.get_array().filled(np.nan) for table in tables],
            "rows": [label.get_text() for label in left.get_yticklabels()],
            "columns": [label.get_text() for label in right.get_xticklabels()],
            "bold": [label.get_fontweight() == "bold" for label in right.get_xticklabels()],
            "marks": [(round(float(np.mean(line.get_ydata()))), line.get_xdata()[0]) for line in marks],
            "texts": [text.get_text() for text in right.texts],
            "faces": tables[0].get_facecolor(),
            "title": left.get_title("left"),
            "below": left.get_xlabel(),
            "edges": tables[0].get_coordinates()[0, :, 0],
        }


def test_it_draws_the_audit_and_marks_where_tensors_stop(found):
    figure, worst, totals = drawn(found), found.worst_first("plain"), found.totals()
    assert figure["rows"] == [item.name for item in worst]
    names = [total.strategy.name for total in totals]
    by_step = [item.found["plain"].edq_by_step for item in worst]
    by_strategy = [[item.found[name].edq for name in names] for item in worst]
    for table, edqs in zip(figure["tables"], (by_step, by_strategy), strict=True):
        assert np.array_equal(table, np.clip(edqs, 0, 1))
    assert figure["texts"] == [f"{edq:.2f}" for edqs in by_strategy for edq in edqs]
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


def test_of_many_the_worst_are_drawn_and_the_others_counted(found):
    larger = many(found, [f"model.layers.{i}.attention.query_projection_of_long_name" for i in range(100)])
    figure, worst = drawn(larger), larger.worst_first("plain")
    edqs = [item.found["plain"].edq for item in worst[MOST:]]
    assert figure["below"] == f"step\nand 60 more, of EDQ {min(edqs):.2f} to {max(edqs):.2f} over the run"
    assert figure["rows"] == [f"…{item.name.split('.')[2]}…" for item in worst[:MOST]]
    assert len(set(figure["rows"])) == MOST
    assert drawn(larger, most=7)["tables"][0].shape[0] == 7


def test_long_names_without_common_parts_lose_their_middle(found):
    figure = drawn(many(found, ["a" * 30 + "b" * 30, "c" * 60, "short"]))
    assert sorted(figure["rows"]) == ["a" * 21 + "…" + "b" * 21, "c" * 21 + "…" + "c" * 21, "short"]
    assert drawn(many(found, ["x" * 50] * 2))["rows"] == ["x" * 21 + "…" + "x" * 21] * 2


def test_names_are_no_formulas_and_need_no_other_font(found, tmp_path):
    """And a tensor alone under one strategy is drawn."""
    hostile = many(found, HOSTILE)
    rows = drawn(hostile)["rows"]
    assert "<script>window.owned = true</script>" in rows
    assert {"\\u4e2d\\u6587", "\\u202e"} <= set(re.findall(r"\\u4e2d\\u6587|\\u202e", " ".join(rows)))
    with audit_figure(hostile) as figure:
        save_one(figure, tmp_path / "x.svg")
    alone = audit(some_samples()[:1], plan(("plain",)), BFLOAT16)
    assert drawn(alone)["tables"][1].shape == (1, 1)


def test_weights_out_of_range_have_a_colour_of_their_own():
    _, found = beyond()
    figure, edge = drawn(found), found.tensors[0].found["collage-light"]
    assert (figure["rows"][0], figure["texts"][0]) == ("edge", "beyond")
    purple = [tuple(face[:3]) == to_rgb(BEYOND) for face in figure["faces"][: len(found.steps)]]
    assert purple == [step >= edge.beyond for step in found.steps]
    assert len(set(purple)) == 2
    assert "purple: out of the format's range" in figure["title"]
