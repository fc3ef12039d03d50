"""The pictures on the page of an audit: histograms, curves and heat maps are the audit's numbers."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("selenium", reason="needs the extra mcfsim[browser]")

from selenium.webdriver import ActionChains

import mcfsim as mcf
from mcfsim.models.auditing import EDGES, audit
from mcfsim.report.audit_page import at_rates, audit_page
from mcfsim.report.audits import mix_offered, update_model
from mcfsim.report.plotting import ARRIVING, BEYOND
from tests.browser.browser import cells, click, open_page, pick, share, sized, texts
from tests.models.pages import beyond, plan, some_audits, some_samples

pytestmark = pytest.mark.slow

#: Of the peak rates of a page that of the plan itself, which is shown first.
MIDDLE = 2


@pytest.mark.parametrize("rate", [0, 4])
def test_a_click_on_a_tensor_shows_its_histogram_and_its_numbers(page, audits, rate):
    pick(page, "rates", rate)
    found = audits[rate]
    half = EDGES.tolist().index(-1)
    for item in found.tensors:
        row = [line[0] for line in cells(page, "tensors")].index(item.name)
        click(page, f"#tensors tbody tr:nth-child({row + 1}) td:nth-child(4)")
        assert texts(page, "#tensor-name") == [item.name]
        shares = [text.rpartition(": ")[2] for text in texts(page, "#histogram rect title")]
        assert shares == [share(x) for x in item.histogram]
        below = round(math.fsum(item.histogram[:half]), 4)
        assert texts(page, "#below-half")[0].startswith(
            f"{100 * below:.2f} % of the updates lie below 1/2 ulp"
        )
        assert len(page.find_elements("css selector", "#histogram rect.lost")) == half
        assert f"peak rate {found.plan.schedule.peak:g}" in texts(page, "#histogram-title")[0]
        numbers = dict(zip(texts(page, "#tensor-numbers dt"), texts(page, "#tensor-numbers dd"), strict=True))
        for name, one in item.found.items():
            assert numbers[f"EDQ, {name}"] == share(one.edq)
        assert numbers["stops at"] == (
            "-" if item.found["plain"].stops is None else str(item.found["plain"].stops)
        )
        assert numbers["lost"] == share(item.found["plain"].lost)
        current = page.find_elements("css selector", "#tensors tr[aria-current=true]")
        assert [node.get_attribute("data-tensor") for node in current] == [str(found.tensors.index(item))]


def test_bars_are_as_high_as_their_shares(page, audits):
    script = """return [...document.querySelectorAll('#histogram rect')].map((bar) => [
      bar.getAttribute('height'), bar.getAttribute('x'), bar.getAttribute('width')].map(Number))"""
    bars = page.execute_script(script)
    item = audits[MIDDLE].worst_first("plain")[0]
    shares = [round(x, 4) for x in item.histogram]
    bottom, top = frame_of(page, "histogram")
    heights = [height / (bottom - top) for height, _, _ in bars]
    assert heights == pytest.approx([x / max(shares) for x in shares], rel=1e-9)
    half = page.find_element("css selector", "#histogram line.half").get_attribute("x1")
    left = [x + width for _, x, width in bars][EDGES.tolist().index(-1) - 1]
    assert left < float(half) < left + 1.01


def test_the_curve_is_the_edq_by_step(page, audits):
    found = audits[MIDDLE]
    item = next(item for item in found.tensors if (item.found["plain"].stops or 0) > 1)
    row = [line[0] for line in cells(page, "tensors")].index(item.name)
    click(page, f"#tensors tbody tr:nth-child({row + 1})")
    edqs = [round(edq, 4) for edq in item.found["plain"].edq_by_step]
    assert min(edqs) >= 0
    (curve,) = page.find_elements("css selector", "#course polyline")
    points = [tuple(map(float, pair.split(","))) for pair in curve.get_attribute("points").split()]
    axis = page.find_element("css selector", "#course line.axis")
    left, right = (float(axis.get_attribute(name)) for name in ("x1", "x2"))
    bottom, top = frame_of(page, "course")
    first, last = found.steps[0], found.steps[-1]
    expected = [
        (left + (right - left) * (at - first) / (last - first), bottom + (top - bottom) * edq)
        for at, edq in zip(found.steps, edqs, strict=True)
    ]
    assert np.array(points) == pytest.approx(np.array(expected), rel=1e-9)
    stop = float(page.find_element("css selector", "#course line.stop").get_attribute("x1"))
    stops = item.found["plain"].stops
    assert stop == pytest.approx(left + (right - left) * (stops - first) / (last - first), rel=1e-9)


def frame_of(page, chart):
    """Return the heights of a drawing's axis and of the highest line of its grid."""
    script = "return [...document.querySelectorAll(arguments[0])].map((x) => Number(x.getAttribute('y1')))"
    (bottom,) = page.execute_script(script, f"#{chart} line.axis")
    return bottom, min(page.execute_script(script, f"#{chart} line.grid"))


def test_a_click_on_a_row_of_the_map_chooses_its_tensor(page, audits):
    worst = audits[MIDDLE].worst_first("plain")
    for canvas in ("by-step", "by-strategy"):
        for row in (len(worst) - 1, 1):
            map_ = page.find_element("id", canvas)
            page.execute_script("arguments[0].scrollIntoView({block: 'center'})", map_)
            size = map_.size
            aim = round(20 * (row + 0.5) - size["height"] / 2)  # from its middle; a row has 20 pixels
            ActionChains(page).move_to_element_with_offset(map_, size["width"] // 4, aim).perform()
            assert texts(page, "#tip")[0].startswith(f"{worst[row].name}\n")
            ActionChains(page).click().perform()
            assert texts(page, "#tensor-name") == [worst[row].name]


def mixed(edq):
    """Return the colour of an EDQ, between those of the scale."""
    place = min(max(edq, 0.0), 1.0) * (len(ARRIVING) - 1)
    low = min(math.floor(place), len(ARRIVING) - 2)
    pair = [[int(text[i : i + 2], 16) for i in (1, 3, 5)] for text in ARRIVING[low : low + 2]]
    return [math.floor(a + (place - low) * (b - a) + 0.5) for a, b in zip(*pair, strict=True)]


PIXEL = """
  const [id, x, y] = arguments;
  const canvas = document.getElementById(id);
  const scale = canvas.width / canvas.clientWidth;
  return [...canvas.getContext("2d").getImageData(Math.round(x * scale), Math.round(y * scale), 1, 1).data];
"""


def begin(page, canvas):
    """Return where the cells of a map begin, beside the names of its rows."""
    return float(page.execute_script("return document.getElementById(arguments[0]).dataset.left", canvas))


#: All that a map writes beside its cells, in order.
WRITTEN = """
  const [canvas, found] = [document.getElementById(arguments[0]), []];
  const pen = CanvasRenderingContext2D.prototype, own = pen.fillText;
  pen.fillText = function (text, x, y) {
    const beside = x < Number(canvas.dataset.left) && y < canvas.clientHeight - 38;
    if (this.canvas === canvas && beside) found.push(text);
    return own.call(this, text, x, y);
  };
  drawMaps(ordered());
  pen.fillText = own;
  return found.filter((text) => text);
"""


@pytest.mark.parametrize("canvas", ["by-step", "by-strategy"])
@pytest.mark.parametrize("copies", [1, 40])
def test_rows_of_the_maps_are_named(driver, tmp_path, canvas, copies):
    """All of them; of more than there is room for as many as there is."""
    names = tuple(f"t{number}" for number in range(5))
    made = some_samples(names)
    samples = [replace(item, name=f"{item.name}.{copy}") for copy in range(copies) for item in made]
    path = tmp_path / "named.html"
    audits = at_rates(samples, audit(samples, plan(), mcf.get_format("bfloat16")))
    path.write_text(audit_page("m", audits, {}), "utf-8")
    open_page(driver, path)
    rows = [row[0] for row in cells(driver, "tensors")]
    found = driver.execute_script(WRITTEN, canvas)
    every = 1 if copies == 1 else 3  # of rows of 4 pixels, and names of 11
    assert found == rows[::every]


def test_the_recommendation_says_what_it_supposes(page, audits):
    section = "#recommendation "
    assert texts(page, section + "#updates") == [f"Supposed: {update_model(audits[MIDDLE])}"]
    assert texts(page, section + "#mix") == [mix_offered(audits[MIDDLE])]


def test_colours_of_the_map_are_the_audits_numbers(page, audits):
    worst = audits[MIDDLE].worst_first("plain")
    width = page.execute_script("return document.getElementById('by-strategy').clientWidth")
    left = begin(page, "by-strategy")
    names = [total.strategy.name for total in audits[MIDDLE].totals()]
    for row, item in enumerate(worst):
        for column, name in enumerate(names):
            x = left + (column + 0.1) * (width - left - 4) / len(names)  # beside the number
            pixel = page.execute_script(PIXEL, "by-strategy", x, 20 * row + 10)
            assert pixel == [*mixed(round(item.found[name].edq, 4)), 255], (item.name, name)


def test_weights_out_of_range_are_said_and_coloured(driver, tmp_path):
    samples, found = beyond()
    path = tmp_path / "beyond.html"
    path.write_text(audit_page("m", at_rates(samples, found), {}), "utf-8")
    open_page(driver, path)
    edge = found.tensors[0].found["collage-light"]
    row = next(row for row in cells(driver, "tensors") if row[0] == "edge")
    assert row[5] == f"beyond at {edge.beyond}"
    rows = [row[0] for row in cells(driver, "tensors")]
    purple = [int(BEYOND[i : i + 2], 16) for i in (1, 3, 5)]
    x = begin(driver, "by-strategy") + 8
    assert driver.execute_script(PIXEL, "by-strategy", x, 20 * rows.index("edge") + 10) == [*purple, 255]
    assert "out of the format's range" in texts(driver, "#scale")[0]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 800, 1280])
def test_no_page_is_wider_than_its_window(driver, tmp_path, width, scheme):
    names = tuple(f"model.layers.{i}.{'a_long_word_' * 12}weight" for i in range(5))
    path = tmp_path / "long.html"
    path.write_text(audit_page("long/" * 40, some_audits(names)[:1], {names[0]: "left out"}), "utf-8")
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    sized(driver, width, 900)
    open_page(driver, path)
    assert driver.execute_script("return document.documentElement.scrollWidth") == width
    ground = driver.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(21, 23, 26)")
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert driver.get_log("browser") == []
