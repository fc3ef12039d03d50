"""Statements verified by trying every operand, and the verdicts themselves judged in fractions."""

import itertools
import json
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.codec import all_values
from mcfsim.rounding import DETERMINISTIC, Rounding
from mcfsim.theorems import THEOREMS, verify
from mcfsim.truth import operate

EIGHT_BITS = (
    *("float8_e4m3fn", "float8_e5m2", "float8_e4m3", "float8_e3m4"),
    *("float8_e4m3fnuz", "float8_e5m2fnuz"),
)


@pytest.mark.parametrize("fmt", [*EIGHT_BITS, "float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn", "e3m1"])
@pytest.mark.parametrize("mode", list(DETERMINISTIC))
def test_what_is_claimed_holds_for_every_operand(fmt, mode):
    for name in THEOREMS:
        certificate = verify(name, fmt, mode)
        assert certificate.as_expected, (name, certificate.witnesses)


@pytest.mark.parametrize("name", ["fast_two_sum_unordered", "two_sum_any", "two_prod_fma_any"])
def test_false_statements_fail_with_witnesses(name):
    certificate = verify(name, "float8_e5m2")
    assert not certificate.holds
    assert 1 <= len(certificate.witnesses) <= 8


def test_two_sum_overflows_on_the_way_only_where_the_first_operand_is_the_largest_number():
    certificate = verify("two_sum_any", "float8_e5m2")
    largest = float(mcf.get_format("float8_e5m2").max)
    assert certificate.violations == len(certificate.witnesses)
    assert {abs(float.fromhex(w.operands[0])) for w in certificate.witnesses} == {largest}


def _sum_by_fractions(fmt, mode, ordered):
    """Count applicable pairs and violations of the 2Sum or Fast2Sum statement, one pair at a time."""
    rounding = Rounding(mode)
    values = [float(v) for v in all_values(fmt) if np.isfinite(v)]

    def add(x, y):
        return operate("add", (x, y), fmt, rounding)

    applicable = violations = 0
    for a, b in itertools.product(values, values):
        exact = Fraction(a) + Fraction(b)
        if abs(exact) > fmt.max or (abs(a) < abs(b) if ordered else abs(a) == float(fmt.max)):
            continue
        applicable += 1
        s = add(a, b)
        if ordered:
            e = add(b, -add(s, -a))
        else:
            a1 = add(s, -b)
            e = add(add(a, -a1), add(b, -add(s, -a1)))
        violations += not (np.isfinite(e) and Fraction(s) + Fraction(e) == exact)
    return applicable, violations


@pytest.mark.parametrize("fmt", ["float6_e3m2fn", "e3m1"])
@pytest.mark.parametrize("mode", ["nearest_even", "toward_zero", "up"])
@pytest.mark.parametrize(("name", "ordered"), [("two_sum", False), ("fast_two_sum", True)])
def test_counts_are_those_of_fractions(fmt, mode, name, ordered):
    fmt = mcf.get_format(fmt)
    certificate = verify(name, fmt, mode)
    assert (certificate.applicable, certificate.violations) == _sum_by_fractions(fmt, mode, ordered)


def _without_last_addition(ar, a, b):
    s = ar.add(a, b)
    a1 = ar.sub(s, b)
    return s, ar.sub(a, a1)


def _with_operands_exchanged(ar, a, b):
    s = ar.add(a, b)
    return s, ar.sub(a, ar.sub(s, b))


def _product_without_fma(ar, a, b):
    p = ar.mul(a, b)
    return p, ar.sub(ar.mul(a, b), p)


@pytest.mark.parametrize(
    ("name", "mutant"),
    [
        ("two_sum", _without_last_addition),
        ("fast_two_sum", _with_operands_exchanged),
        ("two_prod_fma", _product_without_fma),
    ],
)
def test_an_altered_algorithm_is_caught(name, mutant):
    certificate = verify(replace(THEOREMS[name], algorithm=mutant), "float8_e4m3fn")
    assert certificate.claimed
    assert certificate.violations > 0


def test_threads_give_the_same_certificate():
    assert verify("fast_two_sum_unordered", "float8_e5m2", workers=2) == verify(
        "fast_two_sum_unordered", "float8_e5m2"
    )


def test_certificate_counts_every_pair_and_saves_itself(tmp_path):
    certificate = verify("two_sum", "float8_e5m2")
    assert certificate.tried == (2 * 124) ** 2
    certificate.save(tmp_path / "c.json")
    saved = json.loads((tmp_path / "c.json").read_text())
    assert saved["holds"] is True
    assert saved["digest"] == certificate.digest == replace(certificate, seconds=0.0).digest


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["two_sum", "fast_two_sum"])
def test_all_pairs_of_bfloat16(name):
    certificate = verify(name, "bfloat16", workers=2)
    assert certificate.tried == (2 * 255 * 128) ** 2
    assert certificate.holds


def test_refusals():
    with pytest.raises(ValueError, match="known theorems: sterbenz"):
        verify("nosuch")
    with pytest.raises(ValueError, match="at most 16 bits"):
        verify("two_sum", "float32")
    with pytest.raises(ValueError, match="allowed: nearest_even"):
        verify("two_sum", "float8_e5m2", "sideways")


@pytest.mark.parametrize("fmt", ["posit8", "int8", "float8_e8m0fnu", "binary8p1se"])
def test_nothing_is_claimed_of_other_kinds_of_format(fmt):
    assert not mcf.verify("two_sum", fmt).claimed


def test_two_sum_fails_among_posits_where_exponent_bits_are_cut_off():
    certificate = mcf.verify("two_sum", "posit8")
    assert not certificate.holds
    ar = mcf.arithmetic("posit8")
    assert mcf.two_sum(ar, 2.0**18, 2.0**18) == (2.0**20, -(2.0**20))  # the sum rounds up by half its size


def test_nothing_is_claimed_where_small_numbers_are_flushed():
    certificate = mcf.verify("two_sum", "float8_e5m2", Rounding(underflow="flush_before"))
    assert not certificate.claimed
    assert not certificate.holds
