"""The format explorer in a real browser: its arithmetic is the package's; it is used by keys, and narrow."""

import numpy as np
import pytest

import mcfsim as mcf
from experiments.common import ROOT
from mcfsim.rounding import DETERMINISTIC

pytest.importorskip("selenium", reason="needs the extra mcfsim[browser]")

from selenium.webdriver import Keys

from tests.browser.browser import cells, open_page, sized, texts

pytestmark = pytest.mark.slow
PAGE = ROOT / "docs" / "explorer" / "explorer.html"
#: What the page calls a number of binary64, and a code that it returns; none is a number without a code.
READ = "const read = (x) => fromNumber(typeof x === 'string' ? Number(x) : x);"
SHORT = [name for name, fmt in mcf.FORMATS.items() if fmt.bits <= 8 and fmt.signed]


@pytest.fixture
def page(driver):
    sized(driver, 1280, 900)
    open_page(driver, PAGE)
    yield driver
    assert [entry["message"] for entry in driver.get_log("browser") if entry["level"] == "SEVERE"] == []


def given(x):
    """Return numbers as JSON has them, zeros and what is not finite as text."""
    named = {"inf": "Infinity", "-inf": "-Infinity"}
    return [number if number and np.isfinite(number) else named.get(str(number), str(number)) for number in x]


def fields(fmt):
    return {"p": fmt.precision, "emin": fmt.emin, "emax": fmt.emax, "specials": str(fmt.specials)}


def codes(driver, fmt, expression, *columns):
    """Return the codes of what an expression of the page's functions makes of each row of numbers."""
    script = (
        f"{READ} const f = makeFormat(arguments[0]);"
        f"return arguments[1].map((row) => [...{expression}].map((x) => String(encode(x, f))))"
    )
    rows = [*zip(*map(given, columns), strict=True)]
    found = driver.execute_script(script, fields(fmt), rows)
    return [np.array(column) for column in zip(*found, strict=True)]


def expected(fmt, x):
    """Return the codes of values, those that have none as the page says it."""
    x, has = np.asarray(x, np.float64), np.ones(np.shape(x), bool)
    if not fmt.has_nan:
        has = ~np.isnan(x)
    made = mcf.codec.encode(np.where(has, x, 0), fmt).astype(int).astype(str)
    return np.where(has, made, "null")


def hard(fmt):
    """Return all values, the midpoints between neighbours, numbers beside these, and what lies beyond."""
    values = mcf.codec.all_values(fmt).astype(np.float64)
    values = np.unique(values[np.isfinite(values)])
    middles = (values[1:] + values[:-1]) / 2
    beside = [np.nextafter(x, to) for x in (values, middles) for to in (-np.inf, np.inf)]
    top = float(fmt.max)
    beyond = [
        top * 1.01,
        top * 1.25,
        top * 4,
        -top * 1.25,
        1e300,
        -1e300,
        5e-324,
        -0.0,
        np.inf,
        -np.inf,
        np.nan,
    ]
    return np.concatenate([values, middles, *beside, beyond])


@pytest.mark.parametrize("name", SHORT)
def test_all_codes_values_and_midpoints_are_those_of_the_package(page, name):
    fmt = mcf.get_format(name)
    every = np.arange(2**fmt.bits)
    values = mcf.codec.decode(every.astype(np.uint8), fmt).astype(np.float64)
    script = (
        "const f = makeFormat(arguments[0]);"
        "return arguments[1].map((n) => String(toNumber(decode(BigInt(n), f))).replace('-0', '-0'))"
    )
    read = [float(x) for x in page.execute_script(script, fields(fmt), every.tolist())]
    assert np.array_equal(read, values, equal_nan=True)
    x = hard(fmt)
    for mode in DETERMINISTIC:
        (found,) = codes(page, fmt, f"[round(read(row[0]), f, '{mode}')]", x)
        right = expected(fmt, mcf.round_to(x, fmt, mode))
        assert (found == right).all(), (mode, x[found != right][:3], found[found != right][:3])
    finite = values[np.isfinite(values)]
    up, down = codes(
        page, fmt, "[neighbour(read(row[0]), f, true), neighbour(read(row[0]), f, false)]", finite
    )
    inside = finite < float(fmt.max)
    assert (up[inside] == expected(fmt, mcf.codec.next_up(finite[inside], fmt))).all()
    inside = finite > -float(fmt.max)
    assert (down[inside] == expected(fmt, mcf.codec.next_down(finite[inside], fmt))).all()


@pytest.mark.parametrize("name", SHORT)
@pytest.mark.sampled(12, each=False)
def test_sums_of_all_pairs_are_those_of_the_package(page, name):
    fmt = mcf.get_format(name)
    values = mcf.codec.all_values(fmt).astype(np.float64)
    a, b = (x.ravel() for x in np.meshgrid(values, values))
    check_sums(page, fmt, a, b)


def check_sums(driver, fmt, a, b):
    ar = mcf.arithmetic(fmt)
    for algorithm, text in (("twoSum", mcf.two_sum), ("fastTwoSum", mcf.fast_two_sum)):
        expression = f"((x) => [x.s, x.e])({algorithm}(read(row[0]), read(row[1]), f, 'nearest_even'))"
        for found, right in zip(codes(driver, fmt, expression, a, b), text(ar, a, b), strict=True):
            assert (found == expected(fmt, right)).all(), (algorithm, a[found != expected(fmt, right)][:3])


@pytest.mark.parametrize("count", [10_000, pytest.param(100_000, marks=pytest.mark.exhaustive)])
def test_bfloat16_is_that_of_the_package(page, count):
    fmt, rng = mcf.get_format("bfloat16"), np.random.default_rng(3)
    x = rng.standard_normal(count) * 2.0 ** rng.integers(-135, 124, count)
    x[::2] = (halves := mcf.round_to(x[::2], fmt)) + 0.5 * (
        mcf.codec.next_up(halves, fmt) - halves
    )  # midpoints
    modes = " , ".join(f"round(read(row[0]), f, '{mode}')" for mode in DETERMINISTIC)
    for mode, found in zip(DETERMINISTIC, codes(page, fmt, f"[{modes}]", x), strict=True):
        right = expected(fmt, mcf.round_to(x, fmt, mode))
        assert (found == right).all(), (mode, x[found != right][:3])
    a, b = mcf.round_to(x[: count // 2], fmt), mcf.round_to(x[count // 2 :], fmt)
    check_sums(page, fmt, a, b)
    check_sums(page, fmt, a, mcf.round_to(a * rng.standard_normal(a.size), fmt))


def test_names_are_those_of_the_package(page):
    listed = page.execute_script("return FORMATS")
    known = {n: f for n, f in mcf.FORMATS.items() if f.signed and n != "float64"}
    assert {name: tuple(row) for name, row in listed.items()} == {
        name: tuple(fields(fmt).values()) for name, fmt in known.items()
    }
    for name, fmt in known.items():
        found = page.execute_script(
            "const f = makeFormat(arguments[0]); return [f.bits, f.hasInfinity, f.hasNan, f.hasNegativeZero]",
            fields(fmt),
        )
        assert found == [fmt.bits, fmt.has_infinity, fmt.has_nan, fmt.has_negative_zero], name


def write(driver, name, text, by="id"):
    field = driver.find_element(by, name)
    field.send_keys(Keys.CONTROL, "a")
    field.send_keys(text)


def test_what_is_written_is_shown_in_every_mode(page):
    write(page, "number", "-1/3")
    rows = {row[0]: row[1:] for row in cells(page, "modes")}
    for mode, (value, code, bits) in rows.items():
        right = mcf.round_to(-1 / 3, "bfloat16", mode.replace(" ", "_"))
        assert float(value) == right
        assert int(code, 16) == mcf.codec.encode(right, "bfloat16")
        assert int(bits.replace(" | ", ""), 2) == int(code, 16)
    for text in ("0.25.1", "one", ""):
        write(page, "number", text or Keys.BACK_SPACE)
        assert "this is no number" in texts(page, "#number-wrong")[0]
        assert page.find_element("id", "number").get_attribute("aria-invalid") == "true"
    for text, value in {
        "0x1.8p3": "12",
        "2^-9": "0.001953125",
        "1e39": "inf",
        "nan": "NaN",
        "-0": "-0",
    }.items():
        write(page, "number", text)
        assert cells(page, "modes")[0][1] == value


def test_a_format_of_ones_own_and_keys_alone(page):
    page.find_element("id", "name").send_keys("float8_e4m3fn")
    assert cells(page, "facts")[0][1].startswith("8: 1 sign, 4 exponent")
    write(page, "p", "5")
    assert page.find_element("id", "name").get_attribute("value") == "custom"
    assert cells(page, "facts")[0][1].startswith("9: ")
    write(page, "emin", "9")
    assert "must not exceed" in texts(page, "#format-wrong")[0]
    write(page, "emin", "-6")
    write(page, "number", "1")
    for key, value in (("above", "1.0625"), ("below", "1")):
        page.find_element("id", key).send_keys(Keys.ENTER)
        assert page.find_element("id", "number").get_attribute("value") == value
    write(page, "a", "1")
    write(page, "b", "448")
    page.find_element("id", "algorithm").send_keys("Fast2Sum")
    assert "is not what that lost" in texts(page, "#sum-says")[0]


@pytest.mark.parametrize("width", [400, 1280])
def test_the_page_is_no_wider_than_the_screen_and_every_field_has_a_name(page, width):
    sized(page, width, 900)
    assert page.execute_script("return document.documentElement.scrollWidth") <= width
    unnamed = page.execute_script(
        "return [...document.querySelectorAll('input, select')].filter((x) => !x.labels.length).length"
    )
    assert unnamed == 0
    loaded = page.execute_script("return performance.getEntriesByType('resource').map((x) => x.name)")
    assert [name for name in loaded if not name.startswith("file:")] == []


def test_statements_are_found_by_their_words(driver, tmp_path):
    """By what `docs/_static/cards.js` adds to a page with such a mark."""
    cards = "".join(f"<section><h3>{name}</h3>{text}</section>" for name, text in CARDS.items())
    script = (ROOT / "docs" / "_static" / "cards.js").as_uri()
    page = tmp_path / "page.html"
    page.write_text(
        f"<script src={script}></script><h1>a</h1><section><p id=cards></p>{cards}</section>", "utf-8"
    )
    open_page(driver, page)
    for words, left in {
        "dekker": ["two", "three"],
        "DEKKER  bf16": ["three"],
        "zzz": [],
        "": [*CARDS],
    }.items():
        write(driver, "#cards input", words or Keys.BACK_SPACE, by="css selector")
        shown = "[...document.querySelectorAll('section.card:not([hidden]) h3')].map((x) => x.textContent)"
        assert driver.execute_script(f"return {shown}") == left
        assert texts(driver, "#cards output") == [f" {len(left)} of {len(CARDS)}"]


CARDS = {"one": "Knuth, bf16", "two": "Dekker", "three": "Dekker, bf16"}
