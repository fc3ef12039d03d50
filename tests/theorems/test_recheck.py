"""Certificates checked again: true ones pass, and whatever is altered is found out."""

import json
from dataclasses import replace

import numpy as np
import pytest

from mcfsim.formats import Format
from mcfsim.rounding import Rounding
from mcfsim.theorems import THEOREMS, Certificate, Theorem, claim, recheck, value, verify
from mcfsim.theorems.cases import Number
from mcfsim.theorems.claims import relative_error, sum_of

pytestmark = pytest.mark.slow

SMALL = {"limit": 1 << 12, "samples": 1 << 8}


@pytest.mark.parametrize(
    ("name", "fmt", "mode"),
    [
        # Of those of the usual formats this is asked elsewhere.
        ("two_sum_flushed", "float8_e4m3fn", "nearest_even"),
        ("kahan_sum", "bfloat16", "nearest_even"),
        ("dw_times_dw2_commutes", "e5m4", "nearest_away"),
        ("two_sum", "posit8", "nearest_even"),
        ("two_sum", "int8", "nearest_even"),
    ],
)
def test_nothing_is_wrong_with_a_true_one(name, fmt, mode, tmp_path):
    certificate = verify(name, fmt, mode, **SMALL)
    assert recheck(certificate) == []
    certificate.save(tmp_path / "c.json")
    assert recheck(tmp_path / "c.json") == []


# -- what is altered ----------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def refuted():
    certificate = verify("fast_two_sum_unordered", "float8_e5m2")
    assert recheck(certificate) == []
    return certificate


@pytest.fixture(scope="module")
def bounded():
    certificate = verify("dw_plus_fp", "bfloat16", **SMALL)
    assert recheck(certificate) == []
    return certificate


def numbers(*row):
    return tuple(map(Number.of, row))


def with_witness(certificate, place=2, **parts):
    witnesses = list(certificate.witnesses)
    witnesses[place] = replace(witnesses[place], **{name: numbers(*row) for name, row in parts.items()})
    return replace(certificate, witnesses=tuple(witnesses))


@pytest.mark.parametrize(
    ("operands", "results", "problem"),
    [
        ((1.0, 16.0), (16.0, 1.0), "the results are [16.0, 0.0], not [16.0, 1.0]"),
        ((1.0, 16.0), (16.0, -0.0), "the results are [16.0, 0.0], not [16.0, -0.0]"),
        ((1.0, 16.0), (16.0,), "the results are"),
        ((1.0, 1.0), (2.0, 0.0), "the claim holds"),
        ((57344.0, 57344.0), (np.inf, -np.inf), "the hypotheses are not met"),
        ((1.0, 17.0), (16.0, 1.0), "17.0 is no value of float8_e5m2"),
        ((1.0, np.inf), (np.inf, np.nan), "inf is no value of float8_e5m2"),
        ((1.0,), (16.0, 0.0), "1 operands, not 2"),
    ],
)
def test_altered_witnesses(refuted, operands, results, problem):
    (found,) = recheck(with_witness(refuted, operands=operands, results=results))
    assert found.startswith("witness 3: ")
    assert problem in found


@pytest.mark.parametrize(
    ("name", "depth", "problem"),
    [("dw_times_dw2_commutes", 1, "is no double word"), ("add222_relaxed", 7, "is no relaxed pair")],
)
def test_pairs_that_are_none(name, depth, problem):
    certificate = verify(name, "bfloat16", **SMALL)
    operands = [float(x) for x in certificate.witnesses[0].operands]
    operands[1] = operands[0] / 2**depth
    (found,) = recheck(with_witness(certificate, 0, operands=operands))
    assert problem in found


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"statement": "s + e = a + b"}, "statement: "),
        ({"source": "unknown"}, "source: "),
        ({"hypotheses": ()}, "hypotheses: "),
        ({"operands": ("a: value",)}, "operands: "),
        ({"format": "bfloat16"}, "format: "),
        ({"rounding": "up"}, "rounding: "),
        ({"covers": False}, "covers: "),
        ({"expected": "holds"}, "expected: "),
        ({"reductions": ("sign",)}, "reductions: "),
        ({"witnesses": ()}, "0 different witnesses for 26896 violations"),
        ({"simplest": None}, "simplest: None, with 26896 violations"),
        (
            lambda c: {"simplest": replace(c.simplest, operands=numbers(1.0, 4.0))},
            "simplest violation: the results are [5.0, 0.0], not [16.0, 0.0]",
        ),
        (lambda c: {"parts": (replace(c.parts[0], cases=c.parts[0].cases + 1),)}, "parts: "),
        (
            lambda c: {"parts": (replace(c.parts[0], applicable=26895),)},
            "every operand of float8_e5m2: 26896 violations of 26895 of 61504 cases",
        ),
    ],
    ids=range(14),
)
def test_altered_fields(refuted, change, problem):
    (found,) = recheck(replace(refuted, **(change(refuted) if callable(change) else change)))
    assert found.startswith(problem)


@pytest.mark.parametrize(
    ("field", "given"),
    [("ratio", "1/65536"), ("constant", "2/1"), ("decimal", "1.9"), ("bound", "3/1")],
)
def test_altered_errors(bounded, field, given):
    (problem,) = recheck(replace(bounded, worst=replace(bounded.worst, **{field: given})))
    assert problem.startswith("worst case: the error comes out as")


def test_a_worst_case_that_is_none(bounded):
    case = replace(bounded.worst.case, results=numbers(1.0, 0.0))
    (problem,) = recheck(replace(bounded, worst=replace(bounded.worst, case=case)))
    assert problem.startswith("worst case: the results are")
    theorem = replace(THEOREMS["dw_plus_fp"], claim=relative_error(1, sum_of("x", "y")))
    failing = verify(theorem, "bfloat16", **SMALL)
    assert recheck(failing, theorem) == []
    parts = tuple(replace(part, violations=0) for part in failing.parts)
    hidden = replace(failing, parts=parts, witnesses=(), simplest=None)
    assert recheck(hidden, theorem) == ["worst case: the claim fails, and no violation is counted"]


# -- files --------------------------------------------------------------------------------------------------
CHANGED = "was changed: its digest is not that of its content"


@pytest.mark.parametrize(
    ("alter", "problem"),
    [
        (lambda about: about.update(seed=1), CHANGED),
        (lambda about: about.update(digest="0" * 64), CHANGED),
        (lambda about: about.update(verdict="verified"), "verdict 'verified', but its parts say refuted"),
        (lambda about: about.update(violations=0), "violations 0, but its parts say 26896"),
        (
            lambda about: about["witnesses"][0]["operands"][0].update(decimal="1.5"),
            "'-0x1.4000000000000p+14' and '1.5' are not one number",
        ),
        (lambda about: about.pop("worst"), "is no certificate: 'worst'"),
    ],
    ids=range(6),
)
def test_altered_files(refuted, alter, problem, tmp_path):
    path = tmp_path / "c.json"
    refuted.save(path)
    about = json.loads(path.read_text())
    alter(about)
    path.write_text(json.dumps(about))
    with pytest.raises(ValueError, match=r"c\.json") as error:
        recheck(path)
    assert problem in str(error.value)


def test_a_new_digest_does_not_hide_a_change(refuted, tmp_path):
    altered = with_witness(refuted, results=(16.0, 1.0))
    altered.save(tmp_path / "c.json")
    assert Certificate.load(tmp_path / "c.json") == altered
    assert len(recheck(tmp_path / "c.json")) == 1


# -- own statements -----------------------------------------------------------------------------------------
PAIR = (value("a"), value("b"))
OWN = Theorem(
    "own",
    lambda ar, a, b: ar.sub(ar.add(a, b), a),
    PAIR,
    claim("b comes back", lambda t: t.results[0] == t["b"]),
)


@pytest.mark.parametrize("facts", [{}, {"range": "unbounded", "scaling": "common"}], ids=str)
def test_own_statements_and_formats(facts):
    theorem = replace(OWN, **facts)
    certificate = verify(theorem, Format("" if facts else "mine", precision=3, emin=-3, emax=3))
    assert certificate.violations
    assert recheck(certificate, theorem) == []
    with pytest.raises(ValueError, match="'own' is not in the catalogue; give the statement, too"):
        recheck(certificate)
    with pytest.raises(ValueError, match="the certificate is one of 'own', not of 'other'"):
        recheck(certificate, replace(theorem, name="other"))


def test_what_the_oracle_cannot_repeat():
    with pytest.raises(ValueError, match="stochastic rounding has no one result"):
        recheck(verify("two_sum_sr", "float4_e2m1fn", Rounding("stochastic", random_bits=4)))
    arrays = replace(OWN, algorithm=lambda ar, a, b: np.maximum(a, b).astype(a.dtype))
    with pytest.raises(ValueError, match="'own': the algorithm, run by the oracle, raised AttributeError"):
        recheck(verify(arrays, "float4_e2m1fn"), arrays)
