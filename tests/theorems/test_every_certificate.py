"""Certificates of every statement, in each default format, are saved, read back, and checked."""

from pathlib import Path
from typing import get_args

import pytest

from mcfsim.theorems import THEOREMS, Certificate, examine
from mcfsim.theorems.parts import Kind, Part
from mcfsim.theorems.selection import Selection
from mcfsim.theorems.verification import FORMATS, certify, plan, verify

#: As few cases as there are where a core can be left out.
SMALL = Selection(samples=64, limit=1 << 12)
#: What is tried, up to so many cases; in the exhaustive run, all.
TRIED = 1 << 16


def check_of(name, fmt):
    """Return what is tried of a statement, or None where it has nothing to say of a format."""
    checks = plan([name], [fmt], None, SMALL)
    possible = checks and THEOREMS[name].possible(checks[0].format, checks[0].rounding)
    return checks[0] if possible else None


def read_back(certificate: Certificate, folder: Path) -> None:
    certificate.save(folder / "c.json")
    assert Certificate.load(folder / "c.json") == certificate


@pytest.mark.sampled(16, each=False)
@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("name", THEOREMS)
def test_every_certificate_is_read_back_and_checked(name, fmt, tmp_path, request):
    check = check_of(name, fmt)
    if check is None or check.refusal() is not None:
        return
    # Whatever comes of its cases, what is said of them is written down.
    read_back(certify(check, []), tmp_path)
    exhaustive = request.node.get_closest_marker("exhaustive") is not None
    if not exhaustive and check.domain().size > TRIED:
        return
    certificate = verify(name, fmt, check.rounding, samples=SMALL.samples, limit=SMALL.limit, workers=1)
    read_back(certificate, tmp_path)
    assert certificate.as_expected
    if check.rounding.stochastic:
        return  # no oracle repeats such results
    found = examine(tmp_path / "c.json", samples=16, limit=1 << 12)
    assert not found.problems


def test_every_kind_of_part_is_read_back(tmp_path):
    kinds = set()
    for name in ("two_sum", "dw_plus_fp", "dw_times_dw1"):
        for fmt in ("bfloat16", "float8_e5m2"):
            made = certify(check_of(name, fmt), [])
            read_back(made, tmp_path)
            kinds |= {part.kind for part in made.parts}
    assert kinds == set(get_args(Kind))


def test_parts_of_no_kind_are_not_made():
    with pytest.raises(ValueError, match="unknown kind of part 'middle'; known kinds: complete, core, edge"):
        Part("middle", "", ())
