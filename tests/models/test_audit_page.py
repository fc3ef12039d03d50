"""The page of an audit as a file: its data are the audit's, nothing is fetched, and no name is markup."""

from __future__ import annotations

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
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import mcfsim as mcf
from mcfsim.cli import app
from mcfsim.models.auditing import EDGES, audit
from mcfsim.models.scan import scan
from mcfsim.models.weights import open_weights
from mcfsim.report import legends
from mcfsim.report.audit_page import at_rates, audit_page, page_data
from mcfsim.report.audits import update_model
from tests.models.files import checkpoint
from tests.models.pages import HOSTILE, STRATEGIES, beyond, plan, some_audits, some_samples

pytestmark = pytest.mark.slow

PACKAGE = Path(mcf.__file__).parent


class Parsed(HTMLParser):
    """The tags of a page in order, with their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))


@pytest.fixture(scope="module")
def audits():
    return some_audits()


@pytest.fixture(scope="module")
def page(audits):
    return audit_page("model.safetensors", audits, {"ids": "int64 holds no weights"})


def data_block(page):
    (data,) = re.findall(r'<script type="text/plain" id="data">(.*?)</script>', page, re.DOTALL)
    return data


def data_of(page):
    return json.loads(zlib.decompress(base64.b64decode(data_block(page), validate=True)))


def rounded(x, places=4):
    return None if x is None or math.isnan(x) else round(x, places)


def test_its_numbers_are_the_audits(page, audits):
    data = data_of(page)
    assert data["edges"] == EDGES.tolist()
    assert data["steps"] == list(audits[0].steps)
    assert [item["name"] for item in data["strategies"]] == ["plain", "collage-plus", "fp32-master"]
    assert len(data["runs"]) == len(audits) == 5
    for run, found in zip(data["runs"], audits, strict=True):
        assert run["peak"] == found.plan.schedule.peak
        rates = [found.plan.schedule.rate(step, found.plan.steps) for step in found.steps]
        np.testing.assert_allclose(run["rates"], rates, rtol=5e-4)
        for shown, item in zip(run["tensors"], found.tensors, strict=True):
            assert shown["histogram"] == [round(share, 4) for share in item.histogram]
            below = [x for x, end in zip(item.histogram, EDGES[1:], strict=True) if end <= np.log2(0.5)]
            assert shown["below_half"] == round(sum(below), 4)
            for place, name in enumerate(STRATEGIES):
                here, there = shown["found"][place], item.found[name]
                assert here["edq"] == rounded(there.edq)
                assert here["lost"] == rounded(there.lost)
                assert here["idle"] == rounded(there.idle)
                assert here["course"] == [rounded(edq) for edq in there.edq_by_step]
                assert (here["stops"], here["beyond"], here["bytes"]) == (
                    *(there.stops, there.beyond, there.bytes),
                )
        for shown, total in zip(run["totals"], found.totals(), strict=True):
            assert (shown["edq"], shown["lost"]) == (rounded(total.edq), rounded(total.lost))
            assert (shown["worst"], shown["stopped"]) == (total.worst, total.stopped)
            assert (shown["sufficient"], shown["bytes"]) == (total.sufficient, total.bytes)
        chosen, why = found.recommended()
        assert run["reason"] == why
        assert chosen is not None
        assert data["strategies"][run["recommended"]]["name"] == chosen.strategy.name
    assert data["parameters"] == sum(math.prod(item["shape"]) for item in data["tensors"])


def test_the_rates_differ_and_the_plans_own_audit_is_among_them(audits):
    fates = {tuple(item.found["plain"].edq for item in found.tensors) for found in audits}
    assert len(fates) == 5
    samples = some_samples()
    for times, found in zip((0.25, 0.5, 1, 2, 4), audits, strict=True):
        expected = audit(samples, plan(rate=1e-3 * times), mcf.get_format("bfloat16"))
        assert page_data("", [found], {}) == page_data("", [expected], {})
    own = audits[2]
    assert at_rates(samples, own)[2] is own


def test_it_says_what_it_rests_on(page, audits):
    data = data_of(page)
    assert data["updates"] == update_model(audits[0])
    assert data["terms"] == [list(pair) for pair in legends.AUDIT.items()]
    assert data["left_out"] == [["ids", "int64 holds no weights"]]
    assert data["source"] == "model.safetensors"
    said = dict(data["plan"])
    assert "beta2 = 0.95" in said["optimizer"]
    assert "15 steps, 3 of them warm-up, then cosine to 0.01 of the peak rate" in said["schedule"]
    constant = replace(audits[2], plan=replace(audits[2].plan, schedule=mcf.Schedule(1e-3, 0, 1.0)))
    assert dict(page_data("", [constant], {})["plan"])["schedule"].endswith("then constant")


def test_nothing_is_fetched_and_only_its_own_script_may_run(page):
    parsed = Parsed(page)
    for tag, attributes in parsed.tags:
        assert not {"src", "href", "srcset", "action", "style"} & set(attributes), tag
        assert not [name for name in attributes if name.startswith("on")], tag
        assert tag not in ("link", "iframe", "object", "embed", "base")
    assert set(re.findall(r"\w+://[\w./]+", page)) == {"http://www.w3.org/2000/svg"}
    (policy,) = [
        attributes["content"]
        for tag, attributes in parsed.tags
        if attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    script = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    style = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    assert len(script) == len(style) == 1

    def hashed(text):
        return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

    assert policy.split("; ") == [
        "default-src 'none'",
        f"script-src {hashed(script[0])}",
        f"style-src {hashed(style[0])}",
        "base-uri 'none'",
        "form-action 'none'",
    ]


def test_no_name_is_markup(page):
    evil = "</script><script>window.owned = true</script>"
    hostile = audit_page(evil, some_audits(HOSTILE), {evil: evil})
    assert Parsed(hostile).tags == Parsed(page).tags
    assert "owned" not in hostile.replace(data_block(hostile), "")
    data = data_of(hostile)
    assert tuple(item["name"] for item in data["tensors"]) == HOSTILE
    assert data["source"] == evil
    assert data["left_out"] == [[evil, evil]]


def test_scripts_make_no_markup_of_text():
    scripts = sorted((PACKAGE / "report" / "page").glob("*.js"))
    assert len(scripts) == 5
    for script in scripts:
        found = re.findall(r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b", script.read_text())
        assert not found, script


def test_a_name_that_is_no_text_is_kept(audits):
    item = audits[2].tensors[0]
    found = replace(audits[2], tensors=(replace(item, name="half \ud800"),))
    page = audit_page("file \udcff", [found], {})
    assert "half" in page.encode().decode()
    assert data_of(page)["tensors"][0]["name"] == "half \ud800"


def test_what_has_no_number_is_null():
    samples, found = beyond()
    data = page_data("", at_rates(samples, found), {})
    (edge, _) = data["runs"][2]["tensors"]
    collage = edge["found"][0]
    assert collage["beyond"] == found.tensors[0].found["collage-light"].beyond is not None
    assert None in collage["course"]
    assert edge["found"][1]["beyond"] is None
    json.dumps(data, allow_nan=False)


def test_three_hundred_tensors_stay_under_two_megabytes(audits):
    rng = np.random.default_rng(0)
    strategies = tuple(mcf.strategy(name, "bfloat16") for name in (*STRATEGIES, "collage-light"))
    steps = tuple(range(1, 68))

    def enlarged(found):
        def tensor(number):
            item = found.tensors[number % 5]
            one = item.found["plain"]
            course = {
                each.name: replace(one, edq_by_step=tuple(rng.random(67).tolist()), lost_by_step=())
                for each in strategies
            }
            name = f"model.decoder.layers.{number}.self_attention.query_projection.weight"
            return replace(item, name=name, found=course)

        tensors = tuple(map(tensor, range(300)))
        longer = replace(found.plan, strategies=strategies, steps=67)
        return replace(found, tensors=tensors, steps=steps, plan=longer)

    page = audit_page("m", [enlarged(found) for found in audits], {})
    assert len(data_of(page)["tensors"]) == 300
    assert 5e5 < len(page.encode()) < 2e6


def test_the_same_audits_give_the_same_page(audits, page):
    assert audit_page("model.safetensors", some_audits(), {"ids": "int64 holds no weights"}) == page


def test_what_cannot_be_shown_together_is_refused(audits):
    first, second = audits[:2]
    with pytest.raises(ValueError, match="at least one audit"):
        audit_page("", [], {})
    with pytest.raises(ValueError, match="at least one tensor"):
        audit_page("", [replace(first, tensors=())], {})
    with pytest.raises(ValueError, match="the same tensors"):
        audit_page("", [first, replace(second, tensors=second.tensors[1:])], {})
    with pytest.raises(ValueError, match="the same steps"):
        audit_page("", [first, replace(second, steps=second.steps[1:])], {})
    fewer = replace(second.plan, strategies=second.plan.strategies[1:])
    with pytest.raises(ValueError, match="the same strategies"):
        audit_page("", [first, replace(second, plan=fewer)], {})


def test_every_file_of_the_package_is_installed():
    about = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())
    patterns = about["tool"]["setuptools"]["package-data"]["mcfsim"]
    others = [
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*")
        if path.is_file() and path.suffix not in (".py", ".pyc")
    ]
    assert "report/page/audit.html" in others
    for name in others:
        assert any(fnmatch(name, pattern) for pattern in patterns), name


# -- the command ---------------------------------------------------------------------------------------------
@pytest.fixture
def model(tmp_path):
    path = tmp_path / "m.safetensors"
    checkpoint(path)
    return path


def run(*words, status=0):
    result = CliRunner().invoke(app, ["audit", *map(str, words)])
    assert result.exit_code == status, (result.output, result.exception)
    return result.output


def test_the_command_writes_the_page_and_the_picture(model, tmp_path):
    page, picture = tmp_path / "x.html", tmp_path / "x.png"
    options = ("--steps", 15, "--warmup", 3, "--final", 0.01, "--lr", 1e-3, "--weight-decay", 0.1)
    which = [word for name in STRATEGIES for word in ("--strategy", name)]
    text = run(
        model, *options, *which, "--betas", 0.9, 0.95, "--samples", 64, "--html", page, "--png", picture
    )
    assert f"saved {page}" in text
    assert f"saved {picture}" in text
    samples = scan(open_weights(model), 64)
    found = audit(samples, plan(), mcf.get_format("bfloat16"))
    assert page.read_text() == audit_page(str(model), at_rates(samples, found), {})
    assert picture.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--png", "{}/x.pdf"), "a figure's name ends in .svg or .png"),
        (("--html", "{}/none/x.html"), "no folder"),
        (("--html", "{0}/x.png", "--png", "{0}/x.png"), "one and the same file"),
        (("--json", "{}/x.json", "--html", "{}/x.html", "--lr", 1e308, "--warmup", 9), "must be finite"),
    ],
)
def test_what_cannot_be_written_is_refused_and_nothing_else_is_written(model, tmp_path, options, text):
    before = sorted(tmp_path.iterdir())
    words = [str(word).format(tmp_path) for word in options]
    output = run(model, "--steps", 3, "--samples", 16, *words, status=2)
    assert text in output
    assert sorted(tmp_path.iterdir()) == before
