"""Verification as a user calls it: what is claimed where, certificates, refusals."""

import json
from dataclasses import replace
from fractions import Fraction

import pytest

import mcfsim as mcf
from mcfsim.rounding import Rounding
from mcfsim.theorems import THEOREMS, Theorem, value, verify
from mcfsim.theorems.certificate import Certificate
from mcfsim.theorems.claims import bounded


def test_threads_give_the_same_certificate():
    alone = verify("fast_two_sum_unordered", "float8_e5m2")
    assert verify("fast_two_sum_unordered", "float8_e5m2", workers=2, kind="threads") == alone
    assert not alone.holds
    assert 1 <= len(alone.witnesses) <= 8


def test_a_certificate_counts_every_pair_and_saves_itself(tmp_path):
    certificate = verify("two_sum", "float8_e5m2")
    assert certificate.tried == (2 * 124) ** 2
    certificate.save(tmp_path / "c.json")
    saved = json.loads((tmp_path / "c.json").read_text())
    assert saved["verdict"] == "verified"
    assert saved["digest"] == certificate.digest == replace(certificate, seconds=0.0).digest
    assert Certificate.load(tmp_path / "c.json") == certificate


def test_only_a_largest_first_operand_is_a_witness_that_two_sum_overflows():
    certificate = verify("two_sum_any", "float8_e5m2")
    largest = float(mcf.get_format("float8_e5m2").max)
    assert 0 < certificate.violations == len(certificate.witnesses)
    assert {abs(float(witness.operands[0])) for witness in certificate.witnesses} == {largest}


@pytest.mark.parametrize("fmt", ["posit8", "int8", "binary8p1se"])
def test_nothing_is_claimed_of_other_kinds_of_format(fmt):
    certificate = verify("two_sum", fmt)
    assert not certificate.claimed
    assert certificate.expected == "open"


def test_two_sum_fails_among_posits_where_exponent_bits_are_cut_off():
    assert not verify("two_sum", "posit8").holds
    ar = mcf.arithmetic("posit8")
    assert mcf.two_sum(ar, 2.0**18, 2.0**18) == (2.0**20, -(2.0**20))  # the sum rounds up by half its size


def test_nothing_is_claimed_where_small_numbers_are_flushed():
    certificate = verify("two_sum", "float8_e5m2", Rounding(underflow="flush_before"))
    assert not certificate.claimed
    assert not certificate.holds


def test_a_statement_about_flushing_is_tried_with_it():
    certificate = verify("two_sum_flushed", "float8_e5m2")
    assert certificate.underflow == "flush_after"
    assert (certificate.expected, certificate.holds) == ("fails", False)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("top", [-88, -40, 0, 24, 48, 80, 192])
def test_the_worst_of_hundreds_of_errors_that_binary64_cannot_tell_apart(top, sign):
    """The error is ``2**70 + a * (2 * top - a)``: a parabola, all of it within ``2**-50`` of its height."""

    def error(t):
        a = t.exact("a")
        return (a * (2 * top - a) + 2**70) * sign

    about = bounded(error, lambda t: t.exact("a") * 0 + 2**70, 2)
    theorem = Theorem("own", lambda ar, a: ar.sub(a, 0.0), (value("a"),), about)
    worst = verify(theorem, "float8_e4m3fn").worst
    assert [float(x) for x in worst.case.operands] == [top]
    assert Fraction(worst.ratio) == sign * (1 + Fraction(top**2, 2**70))


def test_refusals():
    with pytest.raises(ValueError, match=f"known theorems: {next(iter(THEOREMS))}"):
        verify("nosuch")
    with pytest.raises(ValueError, match="cannot all be tried: too many"):
        verify("two_sum", "float32", extent="all")
    with pytest.raises(ValueError, match="allowed: nearest_even"):
        verify("two_sum", "float8_e5m2", "sideways")
