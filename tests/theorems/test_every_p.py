"""Statements at every precision: error functions, limits, least precisions, certificates."""

import json
import re
from dataclasses import replace
from fractions import Fraction

import pytest

from experiments.common import ROOT, read_result
from mcfsim.formats import Format
from mcfsim.multiword import double_word as dw
from mcfsim.oracle import FractionArithmetic, OracleArithmetic
from mcfsim.rounding import DETERMINISTIC, Rounding
from mcfsim.symbolic import Families, Family, Quotient, UndecidedError, family, u
from mcfsim.theorems import THEOREMS, Theorem, claim, double_word, relative_error, value
from mcfsim.theorems.claims import product_of, sum_of
from mcfsim.theorems.every_p import EveryCertificate, Sharpness, covering, prove, recheck
from mcfsim.theorems.every_p.proof import LAST, members, with_families
from mcfsim.theorems.every_p.trying import difference
from mcfsim.theorems.trial import flat

pytestmark = pytest.mark.slow

CONSTANTS = read_result("worst_constants")["statements"]


def own(theorem):
    """Return those of its own cases that are polynomials."""
    known = theorem.families
    return known.members if isinstance(known, Families) else (known,) if isinstance(known, Family) else ()


@pytest.mark.parametrize(
    ("name", "numerator", "denominator", "in_print"),
    [
        ("dw_times_dw1", (5, -8, 1), (1, 8, 13, -8, 1), None),
        ("dw_times_dw2", (5, -12, 3), (1, 6, 5, -12, 3), lambda u: 5 / (1 + u) ** 2),
        ("dw_times_dw3", (4, -15, 6), (1, 6, 4, -15, 6), lambda u: (4 + u / 2) / (1 + u) ** 2),
    ],
    ids=lambda x: getattr(x, "__name__", str(x)),
)
def test_the_bounds_of_products_are_sharp(name, numerator, denominator, in_print):
    """The error is this quotient, the worst of all operands tried, and below tighter bounds in print."""
    proof = prove(THEOREMS[name])
    error = Quotient.of(*(sum(c * u**k for k, c in enumerate(cs)) for cs in (numerator, denominator)))
    assert (proof.in_unit, proof.limit, proof.sharpness) == (error, numerator[0], Sharpness.SHARP)
    exhaustive = {row["p"]: row for row in CONSTANTS[name]["worst"]}
    for p in (6, 7, 8):
        assert exhaustive[p]["exhaustive"]
        assert Fraction(exhaustive[p]["constant"]) == proof.constant(p) == error.at(p)
    if in_print:
        assert in_print(Fraction(0)) == proof.limit
        for p in range(3, 200):
            assert proof.in_unit.at(p) < in_print(Fraction(1, 2**p)) < proof.theorem.claim.bound.at(p)


def test_what_is_said_to_be_the_worst_of_all_tried_names_what_was_tried():
    """Of products of double words not all low words were tried, and the catalogue says how many."""
    words = {1: "one binade", 5: "five binades"}
    for name in ("dw_times_dw1", "dw_times_dw2", "dw_times_dw3"):
        sharp = THEOREMS[name].sharp
        assert "of all operands tried" in sharp
        for row in CONSTANTS[name]["worst"]:
            if row["p"] in (6, 7, 8):
                depth = int(row["core"].split("low words zero or in the ")[1].split()[0])
                assert words[depth] in sharp
    said = [text for theorem in THEOREMS.values() for text in (theorem.sharp, theorem.source)]
    said += [(ROOT / page).read_text() for page in ("README.md", "docs/every_p.md", "docs/theorems.md")]
    for text in said:
        assert "worst wherever all were tried" not in text
        assert not re.search(r"worst of\s+all\s+operands(?!,?\s+tried)", text)


def test_what_the_solver_proves_is_called_proved_wherever_the_statement_stands():
    """A statement says that it is proved here exactly if the solver proved it and its source has no proof."""
    answers = read_result("every_p_bounds")["answers"]
    assert {"grow_relaxed", "dw_plus_fp_relaxed"} <= answers.keys()
    for name, theorem in THEOREMS.items():
        proved = answers.get(name, {}).get("found") == "proved"
        assert not (proved and re.search("measured|no proof|conjecture", theorem.source)), name
        if here := re.search(r"proved here for every p >= (\d+) by a solver, ties to even", theorem.source):
            assert proved
            assert (answers[name]["least"], answers[name]["ties"]) == (int(here[1]), "to even")


@pytest.mark.parametrize("theorem", with_families(), ids=lambda t: t.name)
@pytest.mark.sampled(12, each=False)
def test_every_family(theorem):
    """Reproduced from the least precision on and in the range stated; as good as the statement says."""
    for one in members(theorem):
        proof = prove(theorem, one)
        latest = 19 if theorem.name == "dw_div_dw3" else 16
        assert 2 <= proof.first <= proof.decided <= latest
        for p in range(2, LAST + 1):
            if p in one.over and p >= proof.first - one.over.step:
                problem = difference(theorem, one, proof.results, proof.error, proof.mode, p)
                assert (problem is None) == (p >= proof.first), p
        assert prove(theorem, one, proof.mode) == proof
        for p in (p for p in range(proof.decided, 25) if p in one.over):
            least = proof.emin.at(p)
            fmt = Format(precision=p, emin=least, emax=max(proof.emax.at(p), least + 1))
            given = [tuple(map(float, x)) if isinstance(x, tuple) else float(x) for x in one.structured(p)]
            found = flat(theorem.algorithm(OracleArithmetic(fmt, Rounding(proof.mode)), *given))
            assert list(map(Fraction, found)) == [result.at(p) for result in proof.results]
    proofs, bound = covering(theorem), theorem.claim.bound
    assert all(proof.as_expected for proof in proofs)
    if bound is not None and bound.unit and bound.formula is not None:
        exceeded = any(proof.sharpness is Sharpness.EXCEEDED for proof in proofs)
        assert exceeded != theorem.holds
    if theorem.worst and own(theorem):
        proof = prove(theorem)
        assert all(proof.constant(p) == theorem.worst(p) for p in range(max(proof.first, 3), LAST + 1))
    for p in range(2, 12) if own(theorem) else ():
        assert list(theorem.families(p)) == [one.at(p) for one in own(theorem) if p >= one.first]


def test_an_own_theorem():
    def square(ar, x):
        high, low = x
        p = ar.mul(high, high)
        return p, ar.fma(ar.add(high, high), low, ar.fma(high, high, ar.neg(p)))

    near = relative_error(5, product_of("x", "x"))
    theorem = Theorem("square", square, [double_word("x")], near, range="unbounded")
    proof = prove(theorem, family(x=(1 + 2 * u, u - u**2)))
    assert proof.limit is not None
    assert recheck(EveryCertificate.of(proof), theorem) == []
    with pytest.raises(ValueError, match="no family of operands"):
        prove(theorem)


NUMBERS = Theorem(
    "sum",
    lambda ar, a, b: ar.add(a, b),
    [value("a"), value("b")],
    relative_error(1, sum_of("a", "b"), unit=1),
)


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda: prove(NUMBERS, family(a=1, c=u)), "takes operands"),
        (lambda: prove(NUMBERS, family(a=(1, u), b=u)), "takes operands"),
        (lambda: prove(NUMBERS, family(a=1 + u, b=1)), "a = 1 [+] u is no value"),
        (lambda: prove(NUMBERS, family(a=1 + 2 * u, b=-1 - 2 * u)), "is zero for every large p"),
        (lambda: prove(NUMBERS, family(a=1, b=u), "stochastic"), "stochastic"),
        (lambda: prove(NUMBERS, family(a=1, b=u), "upwards"), "upwards"),
        (lambda: prove(THEOREMS["dw_times_fp3"], family(x=(1, u + 2 * u**2), y=1)), "no double word"),
        (lambda: prove(THEOREMS["grow_relaxed"], family(x=(1, u + 2 * u**2), a=1)), "is a relaxed pair"),
        (lambda: prove(THEOREMS["grow"], family(x=(1, 0), a=4)), "a hypothesis fails"),
        (lambda: prove(THEOREMS["sqrt_dw"], family(x=(2, 0))), "no rational root"),
        (lambda: prove(THEOREMS["sqrt_dw"], family(x=(-1, 0))), "negative"),
        (lambda: prove(THEOREMS["dw_div_fp3"], family(x=(1, 0), y=3)), "not dyadic"),
        (lambda: prove(THEOREMS["dw_div_fp3"], family(x=(1, 0), y=0)), "zero"),
        (lambda: prove(THEOREMS["two_sum"]), "no family of operands"),
    ],
    ids=range(14),
)
def test_refusals(call, problem):
    with pytest.raises((ValueError, ZeroDivisionError), match=problem):
        call()


def test_what_measures_nothing_has_results_all_the_same():
    adds = Theorem(
        "adds",
        lambda ar, a, b: ar.add(a, b),
        [value("a"), value("b")],
        claim("so", lambda t: t.results[0] > 0),
    )
    proof = prove(adds, family(a=1, b=3 * u))
    assert (proof.results, proof.error, proof.sharpness) == ((1 + 4 * u,), None, Sharpness.OPEN)
    assert recheck(EveryCertificate.of(proof), adds) == []
    with pytest.raises(ValueError, match="measures no error"):
        proof.constant(8)


def test_the_bound_of_the_root_is_sharp():
    proof = prove(THEOREMS["sqrt_dw"])
    assert (proof.limit, proof.sharpness) == (Fraction(25, 8), Sharpness.SHARP)
    rows = [row for row in CONSTANTS["sqrt_dw"]["worst"] if row["p"] >= 7]
    assert len(rows) == 5
    for row in rows:
        assert row["exhaustive"]
        x, oracle = [Fraction(float.fromhex(text)) for text in row["operands"]], FractionArithmetic(row["p"])
        assert sum(dw.sqrt_dw(oracle, tuple(x))) ** 2 / sum(x) - 1 == proof.error.at(row["p"])


@pytest.fixture(scope="module")
def proved():
    return prove(THEOREMS["dw_times_dw3"])


@pytest.fixture
def certificate(tmp_path, proved):
    EveryCertificate.of(proved).save(tmp_path / "proof.json")
    return tmp_path / "proof.json"


def test_certificates_go_through_files(certificate, proved):
    loaded = EveryCertificate.load(certificate)
    assert loaded == EveryCertificate.of(proved)
    assert loaded.name == "dw_times_dw3-every_p-nearest_even"
    assert list(loaded.demands()) == list(proved.obligations)
    assert loaded.family.operands == proved.family.operands
    assert recheck(certificate) == []


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda about: about.update(limit="5"), "was changed"),
        (lambda about: about.update(layout="mcfsim-certificate-1"), "its layout is not"),
        (lambda about: about.pop("results"), "'results' is missing"),
        (lambda about: about.update(more=1), "'more' is not known"),
        (lambda about: about.update(step=9), "allowed"),
        (lambda about: about.update(rounding="stochastic"), "stochastic"),
        (lambda about: about.update(first=1), "out of range"),
        (lambda about: about["results"].append([[0, "1/3"]]), "not dyadic"),
        (lambda about: about["results"].append([[1, "1"], [0, "1"]]), "ascending"),
        (lambda about: about["results"].append([[1 << 20, "1"]]), "is no term"),
        (lambda about: about["results"].append([[0, "1e9"]]), "is no term"),
        (lambda about: about["obligations"][0].update(relation="is large"), "is large"),
        (lambda about: about.update(error=[[], []]), "a quotient by the polynomial zero"),
    ],
    ids=range(13),
)
def test_damaged_files_are_refused(certificate, change, problem):
    about = json.loads(certificate.read_text())
    change(about)
    certificate.write_text(json.dumps(about))
    with pytest.raises(ValueError, match=problem):
        EveryCertificate.load(certificate)


def test_a_certificate_of_another_statement_is_refused(certificate):
    with pytest.raises(ValueError, match="not about 'sum'"):
        recheck(certificate, NUMBERS)
    loaded = EveryCertificate.load(certificate)
    with pytest.raises(ValueError, match="'mine' is not in the catalogue"):
        recheck(replace(loaded, theorem="mine"))
    other = replace(loaded, theorem="dw_times_dw2")
    assert recheck(other)


@pytest.mark.parametrize("mode", DETERMINISTIC)
@pytest.mark.sampled(3, each=False)
def test_directed_modes_and_ties_away(mode):
    one = family(x=(1 + 2 * u, u - u**2), y=(1 + 4 * u, u - u**2))
    assert recheck(EveryCertificate.of(prove(THEOREMS["dw_times_dw1"], one, mode))) == []


def test_a_kind_is_tried_at_every_precision():
    # (1, u) is a double word, as the tie goes to 1; (1 + 2 u, u) is none.
    assert prove(THEOREMS["dw_times_fp3"], family(x=(1, u), y=1)).first == 2
    with pytest.raises(UndecidedError, match="no double word"):
        prove(THEOREMS["dw_times_fp3"], family(x=(1 + 2 * u, u), y=1))
    assert dw.dw_times_fp3 is THEOREMS["dw_times_fp3"].algorithm
