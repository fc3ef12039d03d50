"""The page of an audit in a real browser: what clicks and keys do, that its pictures are the audit's numbers.

Nothing is fetched, and no name is obeyed.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("selenium", reason="needs the extra mcfsim[browser]")

from selenium.webdriver import ActionChains, Keys

import mcfsim as mcf
from mcfsim.models.auditing import EDGES, audit
from mcfsim.report.audit_page import at_rates, audit_page
from mcfsim.report.audits import mix_offered, update_model
from mcfsim.report.plotting import ARRIVING, BEYOND
from tests.browser.browser import cells, click, frame_of, open_page, pick, share, sized, texts
from tests.models.pages import HOSTILE, beyond, plan, some_audits, some_samples

pytestmark = pytest.mark.slow

#: Of the peak rates of a page that of the plan itself, which is shown first.
MIDDLE = 2


def names_in(driver):
    """Return the names in the list of tensors, in its order."""
    return [row[0] for row in cells(driver, "tensors")]


def shown(driver, folder, audits, source="m", left_out=None):
    """Write a page, and open it."""
    path = folder / "page.html"
    path.write_text(audit_page(source, audits, left_out or {}), "utf-8")
    open_page(driver, path)


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
    assert names_in(page) == [item.name for item in worst]
    assert texts(page, "#tensor-name") == [worst[0].name]
    assert texts(page, "#strategies label") == ["plain", "collage-plus", "fp32-master"]
    assert texts(page, "#rates label") == ["0.00025", "0.0005", "0.001", "0.002", "0.004"]
    checked = "return [...document.querySelectorAll('input:checked')].map((x) => x.parentElement.textContent)"
    assert page.execute_script(checked) == ["plain", "0.001"]
    chosen, why = found.recommended()
    assert texts(page, "#recommended") == [f"Recommended at a peak rate of 0.001: {chosen.strategy.name}"]
    assert texts(page, "#reason") == [f"{why}."]
    assert texts(page, "#left-out dt") == ["ids"]
    assert texts(page, "#recommendation #updates") == [f"Supposed: {update_model(found)}"]
    assert texts(page, "#recommendation #mix") == [mix_offered(found)]


def by_number(tensors, number, descending):
    """Return names in the order of a number, those without one last, as they were where it is the same."""
    have = [item for item in tensors if number(item) is not None]
    have.sort(key=lambda item: -number(item) if descending else number(item))
    return [item.name for item in (*have, *(item for item in tensors if number(item) is None))]


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
            listed = names_in(page)
            if heading == "tensor":
                assert listed == sorted((item.name for item in tensors), reverse=descending)
            else:
                assert listed == by_number(tensors, numbers[heading], descending), (heading, descending)
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
    assert names_in(page) == names
    assert page.switch_to.active_element == heading
    row = page.find_element("css selector", "#tensors tbody tr:nth-child(3) button")
    page.execute_script("arguments[0].focus()", row)
    ActionChains(page).send_keys(Keys.SPACE).perform()
    assert texts(page, "#tensor-name") == [names[2]]
    strategy = page.find_element("css selector", "#strategies input")
    page.execute_script("arguments[0].focus()", strategy)
    ActionChains(page).send_keys(Keys.ARROW_RIGHT).perform()
    assert "under collage-plus" in texts(page, "#by-step-title")[0]


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
            listed = cells(page, "tensors")
            assert len(listed) == len(items)
            for row in listed:
                one = items[row[0]]
                assert row[3:5] == [share(one.lost), share(one.edq)]
                assert row[5] == str(one.stops or "-")
                assert row[6] == share(one.idle)
            title = f"EDQ by step under {name}: {total.stopped} of {len(items)} tensors stop"
            assert texts(page, "#by-step-title") == [title]
    assert page.get_log("browser") == []


def test_hostile_names_are_shown_as_text(driver, tmp_path):
    evil = "<img src=x onerror='window.owned = true'>"
    shown(driver, tmp_path, some_audits(HOSTILE), evil, {evil: evil})
    assert sorted(names_in(driver)) == sorted(HOSTILE)
    for place in range(len(HOSTILE)):
        click(driver, f"#tensors tbody tr:nth-child({place + 1}) button")
        assert texts(driver, "#tensor-name")[0] == names_in(driver)[place]
    assert texts(driver, "h1") == [evil]
    assert driver.title == f"Audit of {evil}"
    assert texts(driver, "#left-out dt, #left-out dd") == [evil, evil]
    assert {row[6] for row in cells(driver, "totals")} <= set(HOSTILE)
    counted = "return [window.owned, document.images.length, document.scripts.length]"
    assert driver.execute_script(counted) == [None, 0, 2]
    assert driver.get_log("browser") == []


def drawn_to_the_end(driver):
    """Scroll the list until nothing more is drawn; return how many rows were drawn each time."""
    lengths = []
    while not lengths or len(lengths) < 2 or lengths[-1] > lengths[-2]:
        lengths.append(len(cells(driver, "tensors")))
        driver.execute_async_script("""
          const frame = document.getElementById("tensors").parentElement;
          frame.scrollTop = frame.scrollHeight;
          setTimeout(arguments[0], 200);
        """)
    return lengths


def many(found, count):
    tensors = tuple(replace(found.tensors[i % 5], name=f"model.layers.{i}.weight") for i in range(count))
    return replace(found, tensors=tensors)


def test_a_model_of_many_tensors_has_all_in_its_list(driver, audits, tmp_path):
    found = many(audits[MIDDLE], 1005)
    sized(driver, 1280, 900)
    shown(driver, tmp_path, [found])
    assert texts(driver, "#more") == ["805 more are drawn as you scroll."]
    assert drawn_to_the_end(driver) == [200, 400, 600, 800, 1000, 1005, 1005]
    listed = names_in(driver)
    assert listed == [item.name for item in found.worst_first("plain")]
    assert not driver.find_element("id", "more").is_displayed()
    assert texts(driver, "#map-note") == ["5 more tensors are in the list, in its order."]
    assert texts(driver, "#rates label") == ["0.001"]
    click(driver, "#tensors tbody tr:nth-child(1005)")
    assert texts(driver, "#tensor-name") == [listed[-1]]
    assert texts(driver, "#tensors tr.chosen button") == [listed[-1]]
    click(driver, "#tensors th:nth-child(1) button")
    assert names_in(driver) == sorted(listed)[:200]
    driver.execute_script("window.dispatchEvent(new Event('beforeprint'))")
    assert names_in(driver) == sorted(listed)
    assert driver.get_log("browser") == []


@pytest.mark.costly("a page of ten thousand rows is made and opened")
def test_ten_thousand_tensors_are_sorted_in_a_moment(driver, audits, tmp_path):
    shown(driver, tmp_path, [many(audits[MIDDLE], 10_000)])
    taken = driver.execute_script("""
      const start = performance.now();
      for (const heading of document.querySelectorAll("#tensors th button")) heading.click();
      document.body.offsetHeight;
      return (performance.now() - start) / 8;
    """)
    assert len(cells(driver, "tensors")) == 200
    assert taken < 3000


# -- pictures -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("rate", [0, 4])
def test_a_click_on_a_tensor_shows_its_histogram_and_its_numbers(page, audits, rate):
    pick(page, "rates", rate)
    found = audits[rate]
    half = EDGES.tolist().index(-1)
    for item in found.tensors:
        row = names_in(page).index(item.name)
        click(page, f"#tensors tbody tr:nth-child({row + 1}) td:nth-child(4)")
        assert texts(page, "#tensor-name") == [item.name]
        shares = [text.rpartition(": ")[2] for text in texts(page, "#histogram rect title")]
        assert shares == [share(x) for x in item.histogram]
        below = round(math.fsum(item.histogram[:half]), 4)
        said = f"{100 * below:.2f} % of the updates lie below 1/2 ulp"
        assert texts(page, "#below-half")[0].startswith(said)
        assert len(page.find_elements("css selector", "#histogram rect.lost")) == half
        assert f"peak rate {found.plan.schedule.peak:g}" in texts(page, "#histogram-title")[0]
        numbers = dict(zip(texts(page, "#tensor-numbers dt"), texts(page, "#tensor-numbers dd"), strict=True))
        for name, one in item.found.items():
            assert numbers[f"EDQ, {name}"] == share(one.edq)
        assert numbers["stops at"] == str(item.found["plain"].stops or "-")
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
    row = names_in(page).index(item.name)
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


@pytest.mark.parametrize("copies", [1, 40])
def test_rows_of_the_maps_are_named(driver, tmp_path, copies):
    """All of them; of more than there is room for as many as there is."""
    made = some_samples(tuple(f"t{number}" for number in range(5)))
    samples = [replace(item, name=f"{item.name}.{copy}") for copy in range(copies) for item in made]
    shown(driver, tmp_path, at_rates(samples, audit(samples, plan(), mcf.get_format("bfloat16"))))
    every = 1 if copies == 1 else 3  # of rows of 4 pixels, and names of 11
    for canvas in ("by-step", "by-strategy"):
        assert driver.execute_script(WRITTEN, canvas) == names_in(driver)[::every], canvas


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
    shown(driver, tmp_path, at_rates(samples, found))
    edge = found.tensors[0].found["collage-light"]
    row = next(row for row in cells(driver, "tensors") if row[0] == "edge")
    assert row[5] == f"beyond at {edge.beyond}"
    rows = names_in(driver)
    purple = [int(BEYOND[i : i + 2], 16) for i in (1, 3, 5)]
    x = begin(driver, "by-strategy") + 8
    assert driver.execute_script(PIXEL, "by-strategy", x, 20 * rows.index("edge") + 10) == [*purple, 255]
    assert "out of the format's range" in texts(driver, "#scale")[0]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 800, 1280])
def test_no_page_is_wider_than_its_window(driver, tmp_path, width, scheme):
    names = tuple(f"model.layers.{i}.{'a_long_word_' * 12}weight" for i in range(5))
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    sized(driver, width, 900)
    shown(driver, tmp_path, some_audits(names)[:1], "long/" * 40, {names[0]: "left out"})
    assert driver.execute_script("return document.documentElement.scrollWidth") == width
    ground = driver.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(21, 23, 26)")
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert driver.get_log("browser") == []
