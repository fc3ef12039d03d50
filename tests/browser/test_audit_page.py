"""The page of an audit in a real browser: what clicks and keys do, and that nothing is fetched or obeyed."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

pytest.importorskip("selenium", reason="needs the extra mcfsim[browser]")

from selenium.webdriver import ActionChains, Keys

from mcfsim.report.audit_page import audit_page
from tests.browser.browser import cells, click, open_page, pick, share, sized, texts
from tests.models.pages import HOSTILE, some_audits

pytestmark = pytest.mark.slow

#: Of the peak rates of a page that of the plan itself, which is shown first.
MIDDLE = 2


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


def by_number(tensors, number, descending):
    """Return names in the order of a number, those without one last, as they were where it is the same."""
    have = [item for item in tensors if number(item) is not None]
    lack = [item for item in tensors if number(item) is None]
    have.sort(key=lambda item: -number(item) if descending else number(item))
    return [item.name for item in have + lack]


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


def test_hostile_names_are_shown_as_text(driver, tmp_path):
    evil = "<img src=x onerror='window.owned = true'>"
    path = tmp_path / "hostile.html"
    path.write_text(audit_page(evil, some_audits(HOSTILE), {evil: evil}), "utf-8")
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


def test_a_model_of_many_tensors_has_all_in_its_list(driver, audits, tmp_path):
    found = audits[MIDDLE]
    tensors = tuple(replace(found.tensors[i % 5], name=f"layer.{i}") for i in range(1005))
    path = tmp_path / "many.html"
    path.write_text(audit_page("m", [replace(found, tensors=tensors)], {}), "utf-8")
    sized(driver, 1280, 900)
    open_page(driver, path)
    assert texts(driver, "#more") == ["805 more are drawn as you scroll."]
    assert drawn_to_the_end(driver) == [200, 400, 600, 800, 1000, 1005, 1005]
    shown = [row[0] for row in cells(driver, "tensors")]
    assert shown == [item.name for item in replace(found, tensors=tensors).worst_first("plain")]
    assert not driver.find_element("id", "more").is_displayed()
    assert texts(driver, "#map-note") == ["5 more tensors are in the list, in its order."]
    assert texts(driver, "#rates label") == ["0.001"]
    click(driver, "#tensors tbody tr:nth-child(1005)")
    assert texts(driver, "#tensor-name") == [shown[-1]]
    assert texts(driver, "#tensors tr.chosen button") == [shown[-1]]
    click(driver, "#tensors th:nth-child(1) button")
    assert [row[0] for row in cells(driver, "tensors")] == sorted(shown)[:200]
    driver.execute_script("window.dispatchEvent(new Event('beforeprint'))")
    assert [row[0] for row in cells(driver, "tensors")] == sorted(shown)
    assert driver.get_log("browser") == []


def test_ten_thousand_tensors_are_sorted_in_a_moment(driver, audits, tmp_path):
    found = audits[MIDDLE]
    tensors = tuple(replace(found.tensors[i % 5], name=f"model.layers.{i}.weight") for i in range(10_000))
    path = tmp_path / "many.html"
    path.write_text(audit_page("m", [replace(found, tensors=tensors)], {}), "utf-8")
    open_page(driver, path)
    taken = driver.execute_script("""
      const start = performance.now();
      for (const heading of document.querySelectorAll("#tensors th button")) heading.click();
      document.body.offsetHeight;
      return (performance.now() - start) / 8;
    """)
    assert len(cells(driver, "tensors")) == 200
    assert taken < 3000
