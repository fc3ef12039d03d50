"""The page of an audit as a file: its data are the audit's, nothing is fetched, and no name is markup."""

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

import mcfsim as mcf
from mcfsim.models.auditing import EDGES, audit
from mcfsim.report import legends
from mcfsim.report.audit_page import at_rates, audit_page, page_data
from mcfsim.report.audits import update_model
from tests.models.pages import HOSTILE, STRATEGIES, beyond, plan, some_audits, some_samples

pytestmark = pytest.mark.slow

PACKAGE = Path(mcf.__file__).parent


class Parsed(HTMLParser):
    """The tags of a page in order, with their attributes."""

    def __init__(self, text):
        super().__init__()
        self.tags = []
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


def rounded(x):
    """Return what stands on the page for a number, or for what is none."""
    if not isinstance(x, float):
        return x
    return None if math.isnan(x) else round(x, 4)


def test_its_numbers_are_the_audits(page, audits):
    data = data_of(page)
    assert data["edges"] == EDGES.tolist()
    assert data["steps"] == list(audits[0].steps)
    assert [item["name"] for item in data["strategies"]] == ["plain", "collage-plus", "fp32-master"]
    assert data["parameters"] == sum(math.prod(item["shape"]) for item in data["tensors"])
    assert len(data["runs"]) == len(audits) == 5
    for run, found in zip(data["runs"], audits, strict=True):
        assert run["peak"] == found.plan.schedule.peak
        rates = [found.plan.schedule.rate(step, found.plan.steps) for step in found.steps]
        np.testing.assert_allclose(run["rates"], rates, rtol=5e-4)
        for shown, item in zip(run["tensors"], found.tensors, strict=True):
            assert shown["histogram"] == [round(share, 4) for share in item.histogram]
            below = [x for x, end in zip(item.histogram, EDGES[1:], strict=True) if end <= np.log2(0.5)]
            assert shown["below_half"] == round(sum(below), 4)
            for here, name in zip(shown["found"], STRATEGIES, strict=True):
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


def test_the_rates_differ_and_the_same_audits_give_the_same_page(audits, page):
    fates = {tuple(item.found["plain"].edq for item in found.tensors) for found in audits}
    assert len(fates) == 5
    samples = some_samples()
    for times, found in ((0.25, audits[0]), (4, audits[4])):
        expected = audit(samples, plan(rate=1e-3 * times), mcf.get_format("bfloat16"))
        assert page_data("", [found], {}) == page_data("", [expected], {})
    again = at_rates(samples, audits[2])
    assert again[2] is audits[2]
    assert audit_page("model.safetensors", again, {"ids": "int64 holds no weights"}) == page


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


def test_no_name_is_markup(page, audits):
    evil = "</script><script>window.owned = true</script>"
    renamed = [
        replace(found, tensors=tuple(map(lambda x, name: replace(x, name=name), found.tensors, HOSTILE)))
        for found in audits
    ]
    hostile = audit_page(evil, renamed, {evil: evil})
    assert Parsed(hostile).tags == Parsed(page).tags
    assert "owned" not in hostile.replace(data_block(hostile), "")
    data = data_of(hostile)
    assert tuple(item["name"] for item in data["tensors"]) == HOSTILE
    assert data["source"] == evil
    assert data["left_out"] == [[evil, evil]]
    half = replace(audits[2], tensors=(replace(audits[2].tensors[0], name="half \ud800"),))
    assert data_of(audit_page("file \udcff", [half], {}))["tensors"][0]["name"] == "half \ud800"
    scripts = "".join(script.read_text() for script in (PACKAGE / "report" / "page").glob("*.js"))
    assert not re.findall(r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b", scripts)


def test_what_has_no_number_is_null():
    _, found = beyond()
    data = page_data("", [found], {})
    collage, master = data["runs"][0]["tensors"][0]["found"]
    assert collage["beyond"] == found.tensors[0].found["collage-light"].beyond
    assert collage["beyond"] is not None
    assert master["beyond"] is None
    assert None in collage["course"]
    json.dumps(data, allow_nan=False)


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
