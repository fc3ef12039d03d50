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
#: One of each kind of operands, modes, claims and arithmetics.
SOME = [
    ("two_sum", "float8_e5m2", "nearest_even"),
    ("two_sum_any", "float8_e5m2", "nearest_even"),
    ("two_sum_directed", "float8_e4m3fn", "up"),
    ("two_sum_flushed", "float8_e4m3fn", "nearest_even"),
    ("fast_two_sum_faithful_error", "float8_e4m3fn", "to_odd"),
    ("div_remainder_any", "float8_e4m3fn", "toward_zero"),
    ("split", "float16", "nearest_away"),
    ("dw_plus_fp", "bfloat16", "nearest_even"),
    ("dw_plus_fp_relaxed_ties_away", "bfloat16", "nearest_away"),
    ("dw_times_dw2_commutes", "bfloat16", "nearest_even"),
    ("sqrt_dw", "float16", "nearest_even"),
    ("kahan_sum", "bfloat16", "nearest_even"),
    ("fma_via_float32_any", "bfloat16", "nearest_even"),
    ("lost_up_to_u", "float8_e4m3fn", "nearest_even"),
    ("two_sum", "posit8", "nearest_even"),
    ("two_sum", "int8", "nearest_even"),
]


@pytest.mark.parametrize(("name", "fmt", "mode"), SOME)
@pytest.mark.sampled(4, each=False)
def test_nothing_is_wrong_with_a_true_one(name, fmt, mode, tmp_path):
    certificate = verify(name, fmt, mode, **SMALL)
    assert recheck(certificate) == []
    certificate.save(tmp_path / "c.json")
    assert recheck(tmp_path / "c.json") == []


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", THEOREMS)
def test_nothing_is_wrong_with_any(name):
    theorem = THEOREMS[name]
    # A core of values in bfloat16 would hold millions of cases, whatever the limit.
    wider = "e5m4" if theorem.components == len(theorem.operands) < 3 else "bfloat16"
    for number, mode in enumerate(sorted(theorem.modes)):
        for fmt in (("float8_e4m3fn", "float8_e5m2")[number % 2], wider):
            if mode != "stochastic":
                certificate = verify(name, fmt, mode, **SMALL)
                # So few cases may miss the counterexample to a false statement.
                contradicts = f"{certificate.verdict} contradicts the catalogue, by which the statement fails"
                # Of eight bits every case is tried again.
                found = recheck(certificate, samples=8, limit=1 << (20 if fmt.startswith("float8") else 12))
                assert found == ([] if certificate.as_expected else [contradicts])


# -- what is altered ----------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def refuted():
    return verify("fast_two_sum_unordered", "float8_e5m2")


@pytest.fixture(scope="module")
def bounded():
    return verify("dw_plus_fp", "bfloat16", **SMALL)


def _with_witness(certificate, place=2, **parts):
    numbers = {name: tuple(map(Number.of, row)) for name, row in parts.items()}
    witnesses = list(certificate.witnesses)
    witnesses[place] = replace(witnesses[place], **numbers)
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
    assert recheck(refuted) == []
    altered = _with_witness(refuted, operands=operands, results=results)
    (found,) = recheck(altered)
    assert found.startswith("witness 3: ")
    assert problem in found


def test_an_altered_simplest_violation(refuted):
    simplest = replace(refuted.simplest, operands=tuple(map(Number.of, (1.0, 4.0))))
    assert recheck(replace(refuted, simplest=simplest)) == [
        "simplest violation: the results are [5.0, 0.0], not [16.0, 0.0]"
    ]


def test_pairs_that_are_none():
    certificate = verify("dw_times_dw2_commutes", "bfloat16", **SMALL)
    operands = [float(x) for x in certificate.witnesses[0].operands]
    operands[1] = operands[0] / 2
    (problem,) = recheck(_with_witness(certificate, 0, operands=operands))
    assert "is no double word" in problem
    certificate = verify("add222_relaxed", "bfloat16", **SMALL)
    operands = [float(x) for x in certificate.witnesses[0].operands]
    operands[1] = operands[0] / 2**7
    (problem,) = recheck(_with_witness(certificate, 0, operands=operands))
    assert "is no relaxed pair" in problem


@pytest.mark.parametrize(
    ("field", "value"),
    [("ratio", "1/65536"), ("constant", "2/1"), ("decimal", "1.9"), ("bound", "3/1")],
)
def test_altered_errors(bounded, field, value):
    assert recheck(bounded) == []
    (problem,) = recheck(replace(bounded, worst=replace(bounded.worst, **{field: value})))
    assert problem.startswith("worst case: the error comes out as")


def test_a_worst_case_that_is_none(bounded):
    case = replace(bounded.worst.case, results=tuple(map(Number.of, (1.0, 0.0))))
    (problem,) = recheck(replace(bounded, worst=replace(bounded.worst, case=case)))
    assert problem.startswith("worst case: the results are")
    theorem = replace(THEOREMS["dw_plus_fp"], claim=relative_error(1, sum_of("x", "y")))
    failing = verify(theorem, "bfloat16", **SMALL)
    assert recheck(failing, theorem) == []
    parts = tuple(replace(part, violations=0) for part in failing.parts)
    hidden = replace(failing, parts=parts, witnesses=(), simplest=None)
    assert recheck(hidden, theorem) == ["worst case: the claim fails, and no violation is counted"]


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
    ],
)
def test_altered_fields(refuted, change, problem):
    (found,) = recheck(replace(refuted, **change))
    assert found.startswith(problem)


def test_altered_counts(refuted):
    (part,) = refuted.parts
    (problem,) = recheck(replace(refuted, parts=(replace(part, cases=part.cases + 1),)))
    assert problem.startswith("parts: ")
    (problem,) = recheck(replace(refuted, parts=(replace(part, applicable=26895),)))
    assert problem == "every operand of float8_e5m2: 26896 violations of 26895 of 61504 cases"


# -- files --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("alter", "problem"),
    [
        (lambda about: about.update(seed=1), "was changed: its digest is not that of its content"),
        (lambda about: about.update(digest="0" * 64), "was changed: its digest is not that of its content"),
        (lambda about: about.update(verdict="verified"), "verdict 'verified', but its parts say refuted"),
        (lambda about: about.update(violations=0), "violations 0, but its parts say 26896"),
        (
            lambda about: about["witnesses"][0]["operands"][0].update(decimal="1.5"),
            "'-0x1.4000000000000p+14' and '1.5' are not one number",
        ),
        (lambda about: about.pop("worst"), "is no certificate: 'worst'"),
    ],
)
def test_altered_files(refuted, alter, problem, tmp_path):
    path = tmp_path / "c.json"
    refuted.save(path)
    assert recheck(path) == []
    about = json.loads(path.read_text())
    alter(about)
    path.write_text(json.dumps(about))
    with pytest.raises(ValueError, match=r"c\.json") as error:
        recheck(path)
    assert problem in str(error.value)


def test_a_new_digest_does_not_hide_a_change(refuted, tmp_path):
    altered = _with_witness(refuted, results=(16.0, 1.0))
    altered.save(tmp_path / "c.json")
    assert Certificate.load(tmp_path / "c.json") == altered
    assert len(recheck(tmp_path / "c.json")) == 1


# -- statements ---------------------------------------------------------------------------------------------
def _own(name="own"):
    return Theorem(
        name,
        lambda ar, a, b: ar.sub(ar.add(a, b), a),
        (value("a"), value("b")),
        claim("b comes back", lambda t: t.results[0] == t["b"]),
    )


def test_own_statements_and_formats():
    theorem = _own()
    certificate = verify(theorem, Format("mine", precision=3, emin=-3, emax=3))
    assert certificate.violations
    assert recheck(certificate, theorem) == []
    unbounded = verify(
        replace(_own(), range="unbounded", scaling="common"), Format(precision=3, emin=-3, emax=3)
    )
    assert recheck(unbounded, replace(_own(), range="unbounded", scaling="common")) == []
    with pytest.raises(ValueError, match="'own' is not in the catalogue; give the statement, too"):
        recheck(certificate)
    with pytest.raises(ValueError, match="the certificate is one of 'own', not of 'other'"):
        recheck(certificate, _own("other"))


def test_what_the_oracle_cannot_repeat():
    with pytest.raises(ValueError, match="stochastic rounding has no one result"):
        recheck(verify("two_sum_sr", "float4_e2m1fn", Rounding("stochastic", random_bits=4)))


def test_an_algorithm_that_needs_arrays_is_named():
    theorem = replace(_own(), algorithm=lambda ar, a, b: np.maximum(a, b).astype(a.dtype))
    certificate = verify(theorem, "float4_e2m1fn")
    with pytest.raises(ValueError, match="'own': the algorithm, run by the oracle, raised AttributeError"):
        recheck(certificate, theorem)
