"""The page of an audit in a real browser: what clicks and keys do, that its pictures are the audit's numbers.

Nothing is fetched, and no name is obeyed.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from tests.browser.browser import each

pytest.importorskip("selenium", reason="needs the extra mcfsim[browser]")

from selenium.webdriver import ActionChains, Keys

from mcfsim.models.audit import EDGES
from mcfsim.models.product_rows import ProductRow
from mcfsim.report.audit_report import at_rates, audit_page
from mcfsim.report.audits import mix_offered, product_table, update_model
from mcfsim.report.plotting import ARRIVING, BEYOND
from tests.browser.browser import attributes, cells, click, open_page, sized, texts
from tests.models.pages import HOSTILE, beyond, some_audits

pytestmark = pytest.mark.slow

#: Of the peak rates of a page that of the plan itself, which is shown first.
MIDDLE = 2
#: Of a histogram's bars, how many lie below half a unit.
HALF = EDGES.tolist().index(-1)


@pytest.fixture
def audits():
    return some_audits()


@pytest.fixture
def shown(driver, tmp_path):
    """Return a function that writes a page, and opens it; at the end the console may hold no error."""

    def shown(audits, source="m", left_out=None):
        path = tmp_path / "page.html"
        path.write_text(audit_page(source, audits, left_out or {}), "utf-8")
        open_page(driver, path)
        return driver

    sized(driver, 1280, 900)
    yield shown
    assert [entry["message"] for entry in driver.get_log("browser") if entry["level"] == "SEVERE"] == []


@pytest.fixture
def page(shown, audits):
    return shown(audits, "model.safetensors", {"ids": "int64 holds no weights"})


def share(x):
    """Return a share as the page writes it."""
    return "-" if x is None or math.isnan(x) else f"{round(x, 4):.4f}"


def names_in(driver):
    return [row[0] for row in cells(driver, "tensors")]


def pick(driver, choice, place):
    """Choose one of the strategies or rates."""
    click(driver, f"#{choice} label:nth-child({place + 1})")


def numbers(driver, selector, name):
    return np.array(attributes(driver, selector, name), float)


def frame_of(driver, chart):
    """Return the heights of a drawing's axis and of the highest line of its grid."""
    (bottom,) = numbers(driver, f"#{chart} line.axis", "y1")
    return bottom, min(numbers(driver, f"#{chart} line.grid", "y1"))


def test_it_fetches_nothing(page):
    assert page.title == "Audit of model.safetensors"
    assert page.execute_script("return performance.getEntriesByType('resource').length") == 0
    events = [json.loads(entry["message"])["message"] for entry in page.get_log("performance")]
    sent = [event for event in events if event["method"] == "Network.requestWillBeSent"]
    assert [event["params"]["request"]["url"] for event in sent] == [page.current_url]


def test_products_are_shown_if_there_are_some(shown, audits, driver, tmp_path):
    rows = [
        ProductRow(1, "<b>a", "mxfp8", "forward", "x", 1, 8, error, 0.1, 0, 0, 0) for error in (0.5, 0.25)
    ]
    assert not shown(audits).find_element("id", "products-section").is_displayed()
    path = tmp_path / "products.html"
    path.write_text(audit_page("m", audits, {}, rows), "utf-8")
    open_page(driver, path)
    assert driver.find_element("id", "products-section").is_displayed()
    assert cells(driver, "products") == [list(row.values()) for row in product_table(rows)]


def test_it_shows_the_worst_first_under_the_cheapest_strategy(page, audits):
    found = audits[MIDDLE]
    worst, (chosen, why) = found.worst_first("plain"), found.recommended()
    assert names_in(page) == [item.name for item in worst]
    assert each(page, "input:checked", "node.parentElement.textContent") == ["plain", "0.001"]
    expected = {
        "#tensor-name": [worst[0].name],
        "#strategies label": ["plain", "collage-plus", "fp32-master"],
        "#rates label": ["0.00025", "0.0005", "0.001", "0.002", "0.004"],
        "#recommended": [f"Recommended at a peak rate of 0.001: {chosen.strategy.name}"],
        "#reason": [f"{why}."],
        "#left-out dt": ["ids"],
        "#recommendation #updates": [f"Supposed: {update_model(found)}"],
        "#recommendation #mix": [mix_offered(found)],
    }
    assert {selector: texts(page, selector) for selector in expected} == expected


def test_a_click_on_a_heading_sorts_and_another_turns_it_round(page, audits):
    """By names, or by numbers: those without one are last, and as they were where it is the same."""
    numbers = {
        "shape": lambda item: item.size,
        "rms": lambda item: item.rms,
        "lost": lambda item: round(item.found["plain"].lost, 4),
        "EDQ": lambda item: round(item.found["plain"].edq, 4),
        "stops at": lambda item: item.found["plain"].stops,
        "decay idle": lambda item: item.found["plain"].idle,
        "bytes": lambda item: item.found["plain"].bytes,
    }
    keys = {"tensor": lambda item: item.name, **numbers}
    assert texts(page, "#tensors thead th") == [*keys]
    for place, (heading, key) in enumerate(keys.items()):
        for turned in (False, True):
            click(page, f"#tensors th:nth-child({place + 1}) button")
            have = [item for item in audits[MIDDLE].tensors if key(item) is not None]
            # Turned round, those of one number stay in order.
            have = sorted(have[::-1] if turned else have, key=key)[:: -1 if turned else 1]
            others = [item for item in audits[MIDDLE].tensors if key(item) is None]
            assert names_in(page) == [item.name for item in (*have, *others)], (heading, turned)
            sorts = [None] * len(keys)
            sorts[place] = "descending" if turned else "ascending"
            assert attributes(page, "#tensors th", "aria-sort") == sorts


def test_keys_sort_and_choose(page, audits):
    names = sorted(item.name for item in audits[MIDDLE].tensors)
    for selector, key in (
        ("#tensors th:nth-child(1) button", Keys.ENTER),
        ("#tensors tbody tr:nth-child(3) button", Keys.SPACE),
        ("#strategies input", Keys.ARROW_RIGHT),
    ):
        found = page.find_elements("css selector", selector)[0]
        page.execute_script("arguments[0].focus()", found)
        ActionChains(page).send_keys(key).perform()
        if key == Keys.ENTER:
            assert names_in(page) == names
            assert page.switch_to.active_element == found
    assert texts(page, "#tensor-name") == [names[2]]
    assert "under collage-plus" in texts(page, "#by-step-title")[0]


def test_strategies_and_rates_are_switched(page, audits):
    for rate, found in enumerate(audits):
        pick(page, "rates", rate)
        assert texts(page, "#reason") == [f"{found.recommended()[1]}."]
        for place, (row, total) in enumerate(zip(cells(page, "totals"), found.totals(), strict=True)):
            name = total.strategy.name
            stopped = f"{total.stopped} of {len(found.tensors)}"
            assert row[:1] + row[3:5] == [name, share(total.lost), share(total.edq)]
            assert row[6:8] == [total.worst, stopped]
            pick(page, "strategies", place)
            listed = {row[0]: row[3:7] for row in cells(page, "tensors")}
            ones = {item.name: item.found[name] for item in found.tensors}
            for tensor, one in ones.items():
                stops = str(one.stops or "-")
                assert listed.pop(tensor) == [share(one.lost), share(one.edq), stops, share(one.idle)]
            assert not listed
            assert texts(page, "#by-step-title") == [f"EDQ by step under {name}: {stopped} tensors stop"]


def test_hostile_names_are_shown_as_text(shown):
    evil = "<img src=x onerror='window.owned = true'>"
    driver = shown(some_audits(HOSTILE), evil, {evil: evil})
    names = names_in(driver)
    assert sorted(names) == sorted(HOSTILE)
    for place, name in enumerate(names):
        click(driver, f"#tensors tbody tr:nth-child({place + 1}) button")
        assert texts(driver, "#tensor-name") == [name]
    assert texts(driver, "h1, #left-out dt, #left-out dd") == [evil] * 3
    assert driver.title == f"Audit of {evil}"
    assert {row[6] for row in cells(driver, "totals")} <= set(HOSTILE)
    counted = "return [window.owned, document.images.length, document.scripts.length]"
    assert driver.execute_script(counted) == [None, 0, 2]


def test_a_model_of_many_tensors_has_all_in_its_list(shown, audits):
    tensors = audits[MIDDLE].tensors * 201
    named = [replace(item, name=f"model.layers.{i}.weight") for i, item in enumerate(tensors)]
    found = replace(audits[MIDDLE], tensors=tuple(named))
    driver = shown([found])
    assert texts(driver, "#more") == ["805 more are drawn as you scroll."]
    for drawn in (200, 400, 600, 800, 1000, 1005, 1005):
        assert len(names_in(driver)) == drawn
        driver.execute_async_script("""
          const frame = document.getElementById("tensors").parentElement;
          const drawn = () => requestAnimationFrame(() => requestAnimationFrame(arguments[0]));
          frame.scrollTop = frame.scrollHeight;
          requestAnimationFrame(drawn);
        """)
    listed = names_in(driver)
    assert listed == [item.name for item in found.worst_first("plain")]
    assert not driver.find_element("id", "more").is_displayed()
    assert texts(driver, "#map-note") == ["5 more tensors are in the list, in its order."]
    assert texts(driver, "#rates label") == ["0.001"]
    click(driver, "#tensors tbody tr:nth-child(1005)")
    assert texts(driver, "#tensor-name, #tensors tr.chosen button") == [listed[-1]] * 2
    click(driver, "#tensors th:nth-child(1) button")
    assert names_in(driver) == sorted(listed)[:200]
    driver.execute_script("window.dispatchEvent(new Event('beforeprint'))")
    assert names_in(driver) == sorted(listed)


# -- pictures -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("rate", [0, 4])
def test_a_click_on_a_tensor_shows_its_histogram_and_its_numbers(page, audits, rate):
    pick(page, "rates", rate)
    found = audits[rate]
    for place, item in enumerate(found.tensors):
        row = names_in(page).index(item.name) + 1
        click(page, f"#tensors tbody tr:nth-child({row}) td:nth-child(4)")
        shares = [text.rpartition(": ")[2] for text in texts(page, "#histogram rect title")]
        assert shares == [share(x) for x in item.histogram]
        below = f"{100 * round(math.fsum(item.histogram[:HALF]), 4):.2f} % of the updates lie below 1/2 ulp"
        assert texts(page, "#below-half")[0].startswith(below)
        assert len(texts(page, "#histogram rect.lost")) == HALF
        assert f"peak rate {found.plan.schedule.peak:g}" in texts(page, "#histogram-title")[0]
        listed = dict(zip(texts(page, "#tensor-numbers dt"), texts(page, "#tensor-numbers dd"), strict=True))
        plain = item.found["plain"]
        expected = {f"EDQ, {name}": share(one.edq) for name, one in item.found.items()}
        expected |= {"stops at": str(plain.stops or "-"), "lost": share(plain.lost)}
        assert listed.items() >= expected.items()
        current = attributes(page, "#tensors tr[aria-current=true]", "data-tensor")
        assert (current, texts(page, "#tensor-name")) == ([str(place)], [item.name])


def test_bars_are_as_high_as_their_shares_and_the_curve_is_the_edq_by_step(page, audits):
    found = audits[MIDDLE]
    shares = np.round(found.worst_first("plain")[0].histogram, 4)
    bottom, top = frame_of(page, "histogram")
    heights = numbers(page, "#histogram rect", "height") / (bottom - top)
    assert heights == pytest.approx(shares / max(shares), rel=1e-9)
    (half,) = numbers(page, "#histogram line.half", "x1")
    ends = numbers(page, "#histogram rect", "x") + numbers(page, "#histogram rect", "width")
    assert ends[HALF - 1] < half < ends[HALF - 1] + 1.01
    item = next(item for item in found.tensors if (item.found["plain"].stops or 0) > 1)
    click(page, f"#tensors tbody tr:nth-child({names_in(page).index(item.name) + 1})")
    edqs = np.round(item.found["plain"].edq_by_step, 4)
    assert min(edqs) >= 0
    ends = [numbers(page, "#course line.axis", name)[0] for name in ("x1", "x2")]
    steps, (bottom, top) = found.steps, frame_of(page, "course")
    places = dict(zip(steps, np.interp(steps, (steps[0], steps[-1]), ends), strict=True))
    (curve,) = attributes(page, "#course polyline", "points")
    points = np.array([pair.split(",") for pair in curve.split()], float)
    assert points[:, 0] == pytest.approx([*places.values()], rel=1e-9)
    assert points[:, 1] == pytest.approx(bottom + (top - bottom) * edqs, rel=1e-9)
    assert numbers(page, "#course line.stop", "x1") == pytest.approx([places[item.found["plain"].stops]])


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


@pytest.mark.parametrize("copies", [1, 40])
def test_rows_of_the_maps_are_named(shown, copies):
    """All of them; of more than there is room for as many as there is."""
    (found,) = some_audits(("t0", "t1", "t2", "t3", "t4"))[:1]
    tensors = [replace(item, name=f"{item.name}.{copy}") for copy in range(copies) for item in found.tensors]
    driver = shown([replace(found, tensors=tuple(tensors))])
    every = 1 if copies == 1 else 3  # of rows of 4 pixels, and names of 11
    for canvas in ("by-step", "by-strategy"):
        assert driver.execute_script(WRITTEN, canvas) == names_in(driver)[::every], canvas


#: The colour of a cell, by its row and its column of so many, beside the number in it.
PIXEL = """
  const [row, column, columns] = arguments;
  const canvas = document.getElementById("by-strategy");
  const [left, scale] = [Number(canvas.dataset.left), canvas.width / canvas.clientWidth];
  const x = left + (column + 0.1) * (canvas.clientWidth - left - 4) / columns;
  const pen = canvas.getContext("2d");
  return [...pen.getImageData(Math.round(x * scale), Math.round((20 * row + 10) * scale), 1, 1).data];
"""


def parts(colour):
    return np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)])


def mixed(edq):
    """Return the colour of an EDQ, between those of the scale."""
    place = min(max(edq, 0.0), 1.0) * (len(ARRIVING) - 1)
    low = min(math.floor(place), len(ARRIVING) - 2)
    below, above = map(parts, ARRIVING[low : low + 2])
    return np.floor(below + (place - low) * (above - below) + 0.5).tolist()


def test_colours_of_the_map_are_the_audits_numbers(page, audits):
    names = [total.strategy.name for total in audits[MIDDLE].totals()]
    for row, item in enumerate(audits[MIDDLE].worst_first("plain")):
        for column, name in enumerate(names):
            pixel = page.execute_script(PIXEL, row, column, len(names))
            assert pixel == [*mixed(round(item.found[name].edq, 4)), 255], (item.name, name)


def test_weights_out_of_range_are_said_and_coloured(shown):
    samples, found = beyond()
    driver = shown(at_rates(samples, found))
    place = names_in(driver).index("edge")
    assert cells(driver, "tensors")[place][5] == f"beyond at {found.tensors[0].found['collage-light'].beyond}"
    assert driver.execute_script(PIXEL, place, 0, len(found.totals())) == [*parts(BEYOND), 255]
    assert "out of the format's range" in texts(driver, "#scale")[0]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 800, 1280])
def test_no_page_is_wider_than_its_window(driver, shown, width, scheme):
    names = tuple(f"model.layers.{i}.{'a_long_word_' * 12}weight" for i in range(5))
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    sized(driver, width, 900)
    shown(some_audits(names)[:1], "long/" * 40, {names[0]: "left out"})
    assert driver.execute_script("return document.documentElement.scrollWidth") == width
    ground = driver.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(21, 23, 26)")
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
