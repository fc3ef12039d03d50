"""The page of an audit in a real browser: what clicks and keys do, and that nothing is fetched or obeyed."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("selenium", reason="needs the extra mcfsim[browser]")

from selenium.webdriver import ActionChains, Keys

from mcfsim.models.auditing import EDGES
from mcfsim.report.audit_page import at_rates, audit_page
from mcfsim.report.plotting import ARRIVING, BEYOND
from tests.browser.browser import chromium, missing, open_page, sized
from tests.models.pages import HOSTILE, beyond, some_audits

pytestmark = pytest.mark.slow

#: Of the peak rates of a page that of the plan itself, which is shown first.
MIDDLE = 2


@pytest.fixture(scope="module")
def driver():
    if (lacking := missing()) is not None:
        pytest.skip(lacking)
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def audits():
    return some_audits()


@pytest.fixture(scope="module")
def file(audits, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "audit.html"
    path.write_text(audit_page("model.safetensors", audits, {"ids": "int64 holds no weights"}), "utf-8")
    return path


@pytest.fixture
def page(driver, file):
    for kind in ("browser", "performance"):
        driver.get_log(kind)
    sized(driver, 1280, 900)
    open_page(driver, file)
    return driver


def texts(driver, selector):
    """Return the texts of elements as they stand in the page, untrimmed."""
    script = "return [...document.querySelectorAll(arguments[0])].map((node) => node.textContent)"
    return driver.execute_script(script, selector)


def cells(driver, table):
    script = """return [...document.getElementById(arguments[0]).tBodies[0].rows].map((row) =>
      [...row.cells].map((cell) => cell.textContent))"""
    return driver.execute_script(script, table)


def click(driver, selector):
    (found,) = driver.find_elements("css selector", selector)
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", found)
    found.click()


def pick(driver, choice, place):
    click(driver, f"#{choice} label:nth-child({place + 1})")


def share(x):
    return "-" if x is None or math.isnan(x) else f"{round(x, 4):.4f}"


def by_number(tensors, number, descending):
    """Return names in the order of a number, those without one last, as they were where it is the same."""
    have = [item for item in tensors if number(item) is not None]
    lack = [item for item in tensors if number(item) is None]
    have.sort(key=lambda item: -number(item) if descending else number(item))
    return [item.name for item in have + lack]


# -- what it is ----------------------------------------------------------------------------------------------
def test_it_opens_without_an_error_and_fetches_nothing(page, file):
    assert page.title == "Audit of model.safetensors"
    assert page.get_log("browser") == []
    assert page.execute_script("return performance.getEntriesByType('resource').length") == 0
    events = [json.loads(entry["message"])["message"] for entry in page.get_log("performance")]
    asked = [
        event["params"]["request"]["url"]
        for event in events
        if event["method"] == "Network.requestWillBeSent"
    ]
    assert asked == [file.resolve().as_uri()]


def test_its_policy_lets_no_other_script_run_and_nothing_be_fetched(page):
    tried = page.execute_async_script("""
      const done = arguments[arguments.length - 1];
      const script = document.createElement("script");
      script.textContent = "window.owned = true";
      document.body.append(script);
      const image = document.createElement("img");
      image.setAttribute("onerror", "window.owned = true");
      image.src = "data:image/gif;base64,R0lGODlhAQABAAAAACw=";
      document.body.append(image);
      fetch("http://127.0.0.1:9/").then(() => "fetched", (error) => error.name)
        .then((said) => setTimeout(() => done([said, window.owned === undefined]), 200));
    """)
    assert tried == ["TypeError", True]
    said = " ".join(entry["message"] for entry in page.get_log("browser"))
    assert said.count("Content Security Policy") >= 3


def test_it_shows_the_worst_first_under_the_cheapest_strategy(page, audits):
    found = audits[MIDDLE]
    worst = found.worst_first("plain")
    assert [row[0] for row in cells(page, "tensors")] == [item.name for item in worst]
    assert texts(page, "#tensor-name") == [worst[0].name]
    assert texts(page, "#strategies label") == ["plain", "collage-plus", "fp32-master"]
    assert texts(page, "#rates label") == ["0.00025", "0.0005", "0.001", "0.002", "0.004"]
    checked = "return [...document.querySelectorAll('input:checked')].map((x) => x.parentElement.textContent)"
    assert page.execute_script(checked) == ["plain", "0.001"]
    chosen, why = found.recommended()
    assert texts(page, "#recommended") == [f"Recommended at a peak rate of 0.001: {chosen.strategy.name}"]
    assert texts(page, "#reason") == [f"{why}."]
    assert texts(page, "#left-out dt") == ["ids"]


# -- sorting -------------------------------------------------------------------------------------------------
def test_a_click_on_a_heading_sorts_and_another_turns_it_round(page, audits):
    numbers = {
        "shape": lambda item: item.size,
        "rms": lambda item: item.rms,
        "lost": lambda item: round(item.found["plain"].lost, 4),
        "EDQ": lambda item: round(item.found["plain"].edq, 4),
        "stops at": lambda item: item.found["plain"].stops,
        "decay idle": lambda item: item.found["plain"].idle,
        "bytes": lambda item: item.found["plain"].bytes,
    }
    tensors = audits[MIDDLE].tensors
    headings = texts(page, "#tensors thead th")
    assert headings == ["tensor", *numbers]
    for place, heading in enumerate(headings):
        for descending in (False, True):
            click(page, f"#tensors th:nth-child({place + 1}) button")
            shown = [row[0] for row in cells(page, "tensors")]
            if heading == "tensor":
                assert shown == sorted((item.name for item in tensors), reverse=descending)
            else:
                assert shown == by_number(tensors, numbers[heading], descending), (heading, descending)
            sorts = page.execute_script(
                "return [...document.querySelectorAll('#tensors th')].map((x) => x.getAttribute('aria-sort'))"
            )
            expected = [None] * len(headings)
            expected[place] = "descending" if descending else "ascending"
            assert sorts == expected


def test_keys_sort_and_choose(page, audits):
    heading = page.find_element("css selector", "#tensors th:nth-child(1) button")
    page.execute_script("arguments[0].focus()", heading)
    ActionChains(page).send_keys(Keys.ENTER).perform()
    names = sorted(item.name for item in audits[MIDDLE].tensors)
    assert [row[0] for row in cells(page, "tensors")] == names
    assert page.switch_to.active_element == heading
    row = page.find_element("css selector", "#tensors tbody tr:nth-child(3) button")
    page.execute_script("arguments[0].focus()", row)
    ActionChains(page).send_keys(Keys.SPACE).perform()
    assert texts(page, "#tensor-name") == [names[2]]
    strategy = page.find_element("css selector", "#strategies input")
    page.execute_script("arguments[0].focus()", strategy)
    ActionChains(page).send_keys(Keys.ARROW_RIGHT).perform()
    assert "under collage-plus" in texts(page, "#by-step-title")[0]


# -- a tensor ------------------------------------------------------------------------------------------------
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


# -- strategies and rates ------------------------------------------------------------------------------------
def test_strategies_and_rates_are_switched(page, audits):
    for rate, found in enumerate(audits):
        pick(page, "rates", rate)
        assert texts(page, "#reason") == [f"{found.recommended()[1]}."]
        for row, total in zip(cells(page, "totals"), found.totals(), strict=True):
            assert row[0] == total.strategy.name
            assert row[3:5] == [share(total.lost), share(total.edq)]
            assert row[6:8] == [total.worst, f"{total.stopped} of {len(found.tensors)}"]
        for place, total in enumerate(found.totals()):
            name = total.strategy.name
            pick(page, "strategies", place)
            items = {item.name: item.found[name] for item in found.tensors}
            shown = cells(page, "tensors")
            assert len(shown) == len(items)
            for row in shown:
                one = items[row[0]]
                assert row[3:5] == [share(one.lost), share(one.edq)]
                assert row[5] == ("-" if one.stops is None else str(one.stops))
                assert row[6] == share(one.idle)
            title = f"EDQ by step under {name}: {total.stopped} of {len(items)} tensors stop"
            assert texts(page, "#by-step-title") == [title]
    assert page.get_log("browser") == []


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


def test_colours_of_the_map_are_the_audits_numbers(page, audits):
    worst = audits[MIDDLE].worst_first("plain")
    width = page.execute_script("return document.getElementById('by-strategy').clientWidth")
    names = [total.strategy.name for total in audits[MIDDLE].totals()]
    for row, item in enumerate(worst):
        for column, name in enumerate(names):
            x = 4 + (column + 0.1) * (width - 8) / len(names)  # beside the number
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
    assert driver.execute_script(PIXEL, "by-strategy", 12, 20 * rows.index("edge") + 10) == [*purple, 255]
    assert "out of the format's range" in texts(driver, "#scale")[0]


# -- hostile names, narrow and dark pages --------------------------------------------------------------------
def test_hostile_names_are_shown_as_text(driver, tmp_path):
    evil = "<img src=x onerror='window.owned = true'>"
    path = tmp_path / "hostile.html"
    path.write_text(audit_page(evil, some_audits(HOSTILE), {evil: evil}), "utf-8")
    driver.get_log("browser")
    open_page(driver, path)
    assert sorted(row[0] for row in cells(driver, "tensors")) == sorted(HOSTILE)
    for place in range(len(HOSTILE)):
        click(driver, f"#tensors tbody tr:nth-child({place + 1}) button")
        assert texts(driver, "#tensor-name")[0] == cells(driver, "tensors")[place][0]
    assert texts(driver, "h1") == [evil]
    assert driver.title == f"Audit of {evil}"
    assert texts(driver, "#left-out dt, #left-out dd") == [evil, evil]
    assert {row[6] for row in cells(driver, "totals")} <= set(HOSTILE)
    assert driver.execute_script(
        "return [window.owned, document.images.length, document.scripts.length]"
    ) == [
        *(None, 0, 2),
    ]
    assert driver.get_log("browser") == []


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


def test_a_model_of_many_tensors_has_all_in_its_list(driver, audits, tmp_path):
    found = audits[MIDDLE]
    tensors = tuple(replace(found.tensors[i % 5], name=f"layer.{i}") for i in range(1005))
    path = tmp_path / "many.html"
    path.write_text(audit_page("m", [replace(found, tensors=tensors)], {}), "utf-8")
    sized(driver, 1280, 900)
    open_page(driver, path)
    shown = [row[0] for row in cells(driver, "tensors")]
    assert shown == [item.name for item in replace(found, tensors=tensors).worst_first("plain")]
    assert texts(driver, "#map-note") == ["5 more tensors are in the list, in its order."]
    assert texts(driver, "#rates label") == ["0.001"]
    click(driver, "#tensors tbody tr:nth-child(1005)")
    assert texts(driver, "#tensor-name") == [shown[-1]]
