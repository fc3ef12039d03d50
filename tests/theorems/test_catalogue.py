"""Every statement of the catalogue: verdicts, counts, certificates that are read back and checked."""

from typing import get_args

import pytest

from mcfsim.formats import get_format
from mcfsim.theorems import THEOREMS, Certificate, examine, verify
from mcfsim.theorems.parts import Kind, Part
from mcfsim.theorems.selection import Selection
from mcfsim.theorems.verification import FORMATS, certify, plan, prepare

pytestmark = pytest.mark.slow

#: What is tried, up to so many cases; in the exhaustive run, all.
TRIED = 1 << 19


def read_back(certificate, folder):
    certificate.save(folder / "c.json")
    assert Certificate.load(folder / "c.json") == certificate


@pytest.mark.sampled(60, each=False)
@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("name", THEOREMS)
def test_every_statement_comes_out_as_expected_and_its_certificate_stands(name, fmt, tmp_path, request):
    """In one of its modes, by turns."""
    theorem, place = THEOREMS[name], get_format(fmt)
    chosen = Selection(samples=max((1 << 14) // theorem.components, 64), limit=1 << 16)
    checks = plan([name], [fmt], ["every"], chosen)
    check = checks[FORMATS.index(fmt) % len(checks)]
    if not theorem.possible(place, check.rounding) or check.refusal() is not None:
        return
    # Whatever comes of its cases, what is said of them is written down.
    read_back(certify(check, []), tmp_path)
    exhaustive = request.node.get_closest_marker("exhaustive") is not None
    if not exhaustive and check.domain().size > TRIED:
        return
    certificate = verify(name, fmt, check.rounding, samples=chosen.samples, limit=chosen.limit)
    read_back(certificate, tmp_path)
    assert certificate.as_expected
    assert certificate.applicable > 0
    if theorem.precision <= place.precision:
        assert certificate.claimed == theorem.holds
        assert certificate.expected == "holds" or not theorem.holds
    if not check.rounding.stochastic:  # of which no oracle repeats the results
        assert not examine(tmp_path / "c.json", samples=16, limit=1 << 12).problems


E4, E5, EVEN, AWAY = "float8_e4m3fn", "float8_e5m2", "nearest_even", "nearest_away"
#: Of all operands of a format: how many meet the hypotheses, and how many of them violate the claim.
COUNTS = {
    ("dw_plus_fp", E5, EVEN): (5_997_484, 0),
    ("dw_plus_fp_relaxed_ties_away", E4, AWAY): (4_307_084, 80),
    ("dw_plus_fp_ties_away", E4, AWAY): (4_207_224, 117_736),
    ("dw_times_fp3_in_range", E4, EVEN): (1_767_032, 0),
    ("dw_times_fp3_underflow", E4, EVEN): (2_925_236, 147_684),
    ("grow", E4, EVEN): (3_302_492, 0),
    ("grow_unordered", E4, EVEN): (910_994, 575_052),
    ("lost_sufficient", E4, EVEN): (15140, 0),
    ("not_lost", E4, EVEN): (45468, 0),
    ("lost_up_to_u", E4, EVEN): (18036, 1664),
    ("not_lost_from_half_u", E4, EVEN): (48364, 1232),
    # Of what rounds twice, all that are tried.
    ("innocuous_add_2p", E4, EVEN): (None, 312),
    ("innocuous_mul_2p_minus_1", E4, EVEN): (None, 660),
    ("innocuous_div_2p_minus_1", E4, EVEN): (None, 2036),
    ("innocuous_sqrt_2p1", E5, EVEN): (None, 15),
    ("round_to_odd_fma", E4, EVEN): (None, 0),
    ("round_to_odd_fma_p1", E4, EVEN): (None, 5806624),
    ("add_via_float32", "bfloat16", EVEN): (None, 0),
    ("mul_via_float32_flushed", "bfloat16", EVEN): (None, 8761953),
}


@pytest.mark.parametrize("case", COUNTS, ids="-".join)
@pytest.mark.sampled(20, each=False)
def test_counts(case, request):
    certificate = verify(*case)
    applicable, violations = COUNTS[case]
    assert certificate.covers
    assert certificate.applicable == (applicable or certificate.tried) > 0
    assert certificate.violations == violations


def test_every_kind_of_part_is_read_back_and_no_other_made(tmp_path):
    kinds = set()
    for name, fmt in (("two_sum", "bfloat16"), ("dw_plus_fp", E5), ("dw_times_dw1", "bfloat16")):
        made = certify(prepare(name, fmt, EVEN, Selection(samples=64, limit=1 << 12)), [])
        read_back(made, tmp_path)
        kinds |= {part.kind for part in made.parts}
    assert kinds == set(get_args(Kind))
    with pytest.raises(ValueError, match="unknown kind of part 'middle'; known kinds: complete, core, edge"):
        Part("middle", "", ())
