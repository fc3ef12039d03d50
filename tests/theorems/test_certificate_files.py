"""Files of certificates with other content under a right digest: refused by name, or found out."""

import hashlib
import json
import os

import numpy as np
import pytest

from mcfsim.theorems import Certificate, examine, verify
from mcfsim.theorems.cases import SHOWN, Number, Witness
from mcfsim.theorems.certificate import format_of, rounding_of
from tests.shared import mutations

pytestmark = pytest.mark.slow

#: What is almost right, beside what is wrong everywhere.
ALMOST = (
    "0x1p99999",
    "1e999999999",
    "1/0",
    ["up"],
    {"kind": "Format"},
    "Grid",
    "core",
    "holds",
    2**62,
    2**64,
)


def inner(about, way):
    """Return what lies at the end of a way into JSON data."""
    for key in way:
        about = about[key]
    return about


def signed(about):
    """Return the data with the digest, the sums and the verdict that its content has."""
    outside = ("layout", "tried", "applicable", "violations", "verdict", "digest", "seconds", "versions")
    content = {key: value for key, value in about.items() if key not in outside}
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return {**about, "digest": digest}


@pytest.fixture(scope="module")
def originals():
    checks = (
        ("fast_two_sum_unordered", "float8_e4m3fn"),
        ("dw_plus_fp", "bfloat16"),
        ("two_sum", "float6_e3m2fn", "up"),
        ("two_sum", "int4"),
    )
    return [verify(*check, limit=1 << 12, samples=1 << 8) for check in checks]


def as_its_settings_give(c):
    """Whether it is the one that its own settings give: some of them make no difference to the others."""
    place = format_of(c.arithmetic["format"]), rounding_of(c.arithmetic["rounding"])
    return verify(c.theorem, *place, extent=c.extent, limit=c.limit, samples=c.samples, seed=c.seed) == c


@pytest.mark.parametrize("count", [25, pytest.param(700, marks=pytest.mark.exhaustive)])
def test_exchanged_content_is_refused_or_found_out(count, originals, tmp_path, monkeypatch):
    """One thing is gone, new or another, under a digest that is right again."""
    monkeypatch.setattr(mutations, "NASTY", (*mutations.NASTY, *ALMOST, "float8_e4m3fn"))
    draw, path = np.random.default_rng(count), tmp_path / "c.json"
    for certificate in originals:
        certificate.save(path)
        about = json.loads(path.read_text())
        for _ in range(count):
            changed = signed(mutations.changed(about, draw))
            path.write_text(json.dumps(changed))
            try:
                found = Certificate.load(path)
            except ValueError as error:
                told = str(error)
                assert told.startswith(str(path))
                assert len(told) < len(str(path)) + 500
                continue
            try:
                problems = examine(found, samples=8, limit=1 << 17).problems
            except ValueError:
                continue
            assert problems or as_its_settings_give(found), changed


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"[" * 200_000, "nested too deeply"),
        (b'{"layout": ' * 50_000, "nested too deeply"),
        (b"9" * 5000, "digits"),
        (b"[]", "no JSON object"),
        (b'{"layout": 1, "layout": 2}', "'layout' is named twice"),
        (b"\xff\xfe", "decode"),
        (b"", "Expecting value"),
        (b" " * (1 << 24), "more than 8,388,608 bytes"),
    ],
    ids=range(8),
)
def test_what_is_no_certificate(content, problem, tmp_path):
    path = tmp_path / "c.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"c\.json is no certificate: .*{problem}"):
        Certificate.load(path)


def test_what_is_no_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", "/dev/zero"):
        with pytest.raises(ValueError, match="no regular file"):
            Certificate.load(path)
    with pytest.raises(FileNotFoundError):
        Certificate.load(tmp_path / "none")


OUT_OF_RANGE = [
    ("arithmetic", "format", "emax", 10**9),
    ("arithmetic", "run_in", "precision", 10**9),
    ("arithmetic", "rounding", "mode", "sideways"),
    ("arithmetic", "more", 1),
    ("worst", "case", "operands", 0, "hexadecimal", "0x1p+9999"),
    *(("worst", "bound", text) for text in ("1/0", "1" * 400 + "/1")),
    *(("worst", "ratio", text) for text in ("1e999999999", "2/4")),
    *(("worst", "constant", "nan"), ("worst", "decimal", "1e99999999")),
    *(("seconds", number) for number in (float("nan"), -1)),
    *(("limit", 10**30), ("covers", 0), ("seed", True)),
    *(("parts", 0, "violations", -1), ("parts", 0, "kind", "other"), ("versions", "mcfsim", None)),
]


@pytest.mark.parametrize("change", OUT_OF_RANGE, ids=lambda change: "-".join(map(str, change))[:40])
def test_fields_out_of_range_are_refused(change, originals, tmp_path):
    path, (*way, last, new) = tmp_path / "c.json", change
    originals[1].save(path)
    about = json.loads(path.read_text())
    inner(about, way)[last] = new
    path.write_text(json.dumps(signed(about)))
    with pytest.raises(ValueError, match=r"c\.json is no certificate"):
        Certificate.load(path)


def test_of_a_long_case_the_first_numbers_are_shown():
    words = tuple(map(Number.of, range(SHOWN + 3)))
    assert str(Witness(words, words[:1])).endswith(f", {SHOWN - 1}.0, ... {SHOWN + 3} in all) -> (0.0)")
