"""Certificates checked again: true ones pass; what is altered, or forged by the hundred, is found out."""

import json
import math
import random
from dataclasses import replace
from math import comb

import numpy as np
import pytest
from scipy.special import rel_entr

from mcfsim.backends.block_arithmetic import BlockArithmetic
from mcfsim.formats import Format, get_format
from mcfsim.rounding import Mode, Rounding, Underflow
from mcfsim.theorems import THEOREMS, double_word, examine, hypothesis, recheck, retry, value, verify
from mcfsim.theorems.claims import relative_error, sum_of
from mcfsim.theorems.counterexamples import ShownNumber
from mcfsim.theorems.operands import belongs, finite_values, relaxed_pair
from mcfsim.theorems.retry import _surprise, is_of_kind
from tests.theorems.trying import add, mine

pytestmark = pytest.mark.slow

SMALL = {"limit": 1 << 12, "samples": 1 << 9}
FEW = {"limit": 1 << 12, "samples": 1 << 8}


#: Of those of the usual formats this is asked elsewhere.
UNUSUAL = [
    ("two_sum_flushed", "float8_e4m3fn", "nearest_even"),
    ("kahan_sum", "bfloat16", "nearest_even"),
    ("dw_times_dw2_commutes", "e5m4", "nearest_away"),
    *(("two_sum", fmt, "nearest_even") for fmt in ("posit8", "int8")),
    *(("two_sum", "float8_e5m2", Rounding(underflow=how)) for how in Underflow),
]


@pytest.mark.parametrize(("name", "fmt", "mode"), UNUSUAL)
@pytest.mark.sampled(5, each=False)
def test_nothing_is_wrong_with_a_true_one(name, fmt, mode, tmp_path):
    certificate = right(name, fmt, mode, **FEW)
    certificate.save(tmp_path / "c.json")
    assert recheck(tmp_path / "c.json") == []


# -- what is altered ----------------------------------------------------------------------------------------
def right(*of, **options):
    certificate = verify(*of, **options)
    assert recheck(certificate) == []
    return certificate


@pytest.fixture(scope="module")
def refuted():
    return right("fast_two_sum_unordered", "float8_e5m2")


@pytest.fixture(scope="module")
def bounded_error():
    return right("dw_plus_fp", "bfloat16", **FEW)


def numbers(*row):
    return tuple(map(ShownNumber.of, row))


def with_part(certificate, index, **fields):
    parts = list(certificate.parts)
    parts[index] = replace(parts[index], **fields)
    return replace(certificate, parts=tuple(parts))


def hidden(certificate, **fields):
    parts = tuple(replace(part, violations=0, **fields) for part in certificate.parts)
    return replace(certificate, parts=parts, witnesses=(), simplest=None)


def with_witness(certificate, place=2, **parts):
    witnesses = list(certificate.witnesses)
    witnesses[place] = replace(witnesses[place], **{name: numbers(*row) for name, row in parts.items()})
    return replace(certificate, witnesses=tuple(witnesses))


BACK = mine(lambda ar, a, b: ar.sub(ar.add(a, b), a), lambda t: t.results[0] == t["b"])


WRONG = [
    ((1.0, 16.0), (16.0, 1.0), "the results are [16.0, 0.0], not [16.0, 1.0]"),
    ((1.0, 16.0), (16.0, -0.0), "the results are [16.0, 0.0], not [16.0, -0.0]"),
    ((1.0, 16.0), (16.0,), "the results are"),
    ((1.0, 1.0), (2.0, 0.0), "the claim holds"),
    ((57344.0, 57344.0), (np.inf, -np.inf), "the hypotheses are not met"),
    ((1.0, 17.0), (16.0, 1.0), "17.0 is no value of float8_e5m2"),
    ((1.0, np.inf), (np.inf, np.nan), "inf is no value of float8_e5m2"),
    ((1.0,), (16.0, 0.0), "1 operands, not 2"),
]


@pytest.mark.parametrize(("operands", "results", "problem"), WRONG)
def test_altered_witnesses(refuted, operands, results, problem):
    (found,) = recheck(with_witness(refuted, operands=operands, results=results))
    assert found.startswith("witness 3: ")
    assert problem in found


@pytest.mark.parametrize(("name", "depth"), [("dw_times_dw2_commutes", 1), ("add222_relaxed", 7)])
def test_pairs_that_are_none(name, depth):
    certificate = verify(name, "bfloat16", **FEW)
    operands = [float(x) for x in certificate.witnesses[0].operands]
    operands[1] = operands[0] / 2**depth
    (found,) = recheck(with_witness(certificate, 0, operands=operands))
    assert ("is no double word" if depth == 1 else "is no relaxed pair") in found


@pytest.mark.parametrize("fmt", ["float4_e2m1fn", "float6_e3m2fn", "float8_e4m3fn", "posit5es0"])
def test_pairs_are_those_that_are_tried(fmt):
    """Also where sums saturate, and the largest number is the sum of itself and any other."""
    fmt = get_format(fmt)
    values = finite_values(fmt)[:: 1 if fmt.bits < 8 else 5]
    for operand in (double_word("x"), relaxed_pair("x")):
        highs, lows = (x.ravel() for x in np.meshgrid(values, values))
        found = [is_of_kind(operand, pair, fmt) for pair in zip(highs.tolist(), lows.tolist(), strict=True)]
        assert found == belongs(operand, (highs, lows), fmt).tolist()


#: Each is named as what is altered.
FIELDS = {"source": "unknown", "statement": "s + e = a + b", "hypotheses": (), "operands": ("a: value",)}
FIELDS |= {"format": "bfloat16", "rounding": "up", "covers": False, "expected": "holds"}
FIELDS |= {"reductions": ("sign",)}
ANOTHER = "simplest violation: the results are [5.0, 0.0], not [16.0, 0.0]"
MORE = "every operand of float8_e5m2: 26896 violations of 26895 of 61504 cases"
ALTERED = [
    *((lambda c, name=name, x=x: replace(c, **{name: x}), f"{name}: ") for name, x in FIELDS.items()),
    (lambda c: replace(c, witnesses=()), "0 different witnesses for 26896 violations"),
    (lambda c: replace(c, simplest=None), "simplest: None, with 26896 violations"),
    (lambda c: replace(c, simplest=replace(c.simplest, operands=numbers(1.0, 4.0))), ANOTHER),
    (lambda c: with_part(c, 0, cases=c.parts[0].cases + 1), "parts: "),
    (lambda c: with_part(c, 0, applicable=26895), MORE),
]


@pytest.mark.parametrize(("change", "problem"), ALTERED, ids=range(14))
def test_altered_fields(refuted, change, problem):
    (found,) = recheck(change(refuted))
    assert found.startswith(problem)


@pytest.mark.parametrize(
    ("field", "given"), [("ratio", "1/65536"), ("constant", "2/1"), ("decimal", "1.9"), ("bound", "3/1")]
)
def test_altered_errors(bounded_error, field, given):
    (problem,) = recheck(replace(bounded_error, worst=replace(bounded_error.worst, **{field: given})))
    assert problem.startswith("worst case: the error comes out as")


def test_a_worst_case_that_is_none(bounded_error):
    case = replace(bounded_error.worst.case, results=numbers(1.0, 0.0))
    (problem,) = recheck(replace(bounded_error, worst=replace(bounded_error.worst, case=case)))
    assert problem.startswith("worst case: the results are")
    theorem = replace(THEOREMS["dw_plus_fp"], claim=relative_error(1, sum_of("x", "y")))
    failing = verify(theorem, "bfloat16", **FEW)
    assert recheck(failing, theorem) == []
    assert recheck(hidden(failing), theorem) == ["worst case: the claim fails, and no violation is counted"]


# -- files --------------------------------------------------------------------------------------------------
def number_of(about):
    return about["witnesses"][0]["operands"][0]


CHANGED = "was changed: its digest is not that of its content"
UNEQUAL = "'-0x1.4000000000000p+14' and '1.5' are not one number"
FILES = [
    (lambda about: about.update(seed=1), CHANGED),
    (lambda about: about.update(digest="0" * 64), CHANGED),
    (lambda about: about.update(verdict="verified"), "verdict 'verified', but its parts say refuted"),
    (lambda about: about.update(violations=0), "violations 0, but its parts say 26896"),
    (lambda about: number_of(about).update(decimal="1.5"), UNEQUAL),
    (lambda about: about.pop("worst"), "is no certificate: 'worst'"),
]


@pytest.mark.parametrize(("alter", "problem"), FILES, ids=range(6))
def test_altered_files(refuted, alter, problem, tmp_path):
    path = tmp_path / "c.json"
    refuted.save(path)
    about = json.loads(path.read_text())
    alter(about)
    path.write_text(json.dumps(about))
    with pytest.raises(ValueError, match=r"c\.json") as error:
        recheck(path)
    assert problem in str(error.value)


def test_no_format_goes_by_the_name_of_another(tmp_path):
    certificate = verify("two_sum", Format("float64", precision=3, emin=-3, emax=3))
    certificate.save(tmp_path / "c.json")
    for forged in (certificate, tmp_path / "c.json"):
        with pytest.raises(ValueError, match="'float64' is the name of another format"):
            recheck(forged)


@pytest.mark.parametrize("facts", [{}, {"range": "unbounded", "scaling": "common"}], ids=str)
def test_a_certificate_of_an_own_statement_is_checked_beside_it(facts):
    theorem = replace(BACK, **facts)
    certificate = verify(theorem, Format("" if facts else "mine", precision=3, emin=-3, emax=3))
    assert certificate.violations
    assert recheck(certificate, theorem) == []
    with pytest.raises(ValueError, match="'mine' is not in the catalogue; give the statement, too"):
        recheck(certificate)
    with pytest.raises(ValueError, match="the certificate is one of 'mine', not of 'other'"):
        recheck(certificate, replace(theorem, name="other"))


def test_what_the_oracle_cannot_repeat():
    with pytest.raises(ValueError, match="stochastic rounding has no one result"):
        recheck(verify("two_sum_sr", "float4_e2m1fn", Rounding("stochastic", random_bits=4)))
    arrays = replace(BACK, algorithm=lambda ar, a, b: np.maximum(a, b).astype(a.dtype))
    with pytest.raises(ValueError, match="'mine': the algorithm, run by the oracle, raised AttributeError"):
        recheck(verify(arrays, "float4_e2m1fn"), arrays)


def forgeries(c, draw):
    """Yield certificates with one falsehood each, as coherent otherwise as they can be."""
    yield hidden(c)
    yield replace(hidden(c, applicable=0), worst=None)
    yield replace(c, covers=not c.covers)
    yield replace(c, claimed=not c.claimed)
    yield replace(c, expected=draw.choice(["holds", "fails", "open"]))
    yield replace(c, reductions=c.reductions[1:] or ("sign",))
    yield replace(c, statement=c.statement + ".")
    yield replace(c, worst=None)
    yield replace(c, simplest=c.witnesses[-1] if c.witnesses else None)
    yield replace(c, witnesses=c.witnesses[1:])
    yield replace(c, witnesses=c.witnesses[::-1])
    yield replace(c, witnesses=c.witnesses[:-1] + c.witnesses[:1])
    if c.worst is not None:
        yield replace(c, worst=replace(c.worst, ratio="-" + c.worst.ratio.lstrip("-")))
        yield replace(c, worst=replace(c.worst, bound="1000/1"))
    for index, part in enumerate(c.parts):
        yield replace(c, parts=c.parts[:index] + c.parts[index + 1 :])
        yield with_part(c, index, kind=draw.choice(["complete", "core", "edge", "family", "sample"]))
        yield with_part(c, index, text="every operand")
        if not part.cases:
            continue
        yield with_part(c, index, cases=part.cases + draw.choice([1, 10**6]))
        yield with_part(c, index, applicable=draw.randint(part.violations, part.cases))
        yield with_part(c, index, applicable=min(part.applicable + 1, part.cases))
        yield with_part(c, index, applicable=max(part.applicable - 1, part.violations))
        yield with_part(c, index, violations=draw.randint(0, part.applicable))
        yield with_part(c, index, violations=min(part.violations + 1, part.applicable))
        yield with_part(c, index, violations=max(part.violations - 1, 0))
        yield with_part(c, index, applicable=0, violations=0)
        yield with_part(c, index, applicable=part.cases, violations=part.cases)


def attack(names, formats, draw, path):
    """Return how many forgeries of certificates were tried; none goes undetected."""
    count = 0
    for name in names:
        theorem = THEOREMS[name]
        mode = draw.choice(sorted(theorem.modes - {Mode.STOCHASTIC}) or [Mode.NEAREST_EVEN])
        certificate = verify(name, draw.choice(formats), mode, **SMALL)
        if not certificate.as_expected:
            assert examine(certificate).problems
            continue
        assert recheck(certificate) == []
        for forged in forgeries(certificate, draw):
            if forged == certificate:
                continue
            forged.save(path)
            # The emulator tries all; a few cases are enough for the oracle.
            assert recheck(path, samples=16) != [], (name, certificate.name, forged)
            count += 1
    return count


def few(theorem):
    """Of three operands of 8 bits, or two of 16, there are millions of cases, a second for each forgery."""
    return theorem.components <= 2


EIGHT = ["float8_e4m3fn", "float8_e5m2", "float6_e3m2fn", "float6_e2m3fn"]
ALL = {"float8_e4m3fn": few, "float6_e3m2fn": lambda t: True, "bfloat16": lambda t: t.range != "bounded"}
MANY = [pytest.param([fmt], fits, 10, marks=pytest.mark.exhaustive) for fmt, fits in ALL.items()]


@pytest.mark.parametrize(("formats", "fits", "many"), [(EIGHT, few, 4), *MANY])
def test_forgeries_are_found_out(formats, fits, many, tmp_path):
    draw = random.Random(formats[0])
    names = [name for name, theorem in THEOREMS.items() if fits(theorem)]
    # One that measures an error: of 16 bits that takes ten seconds for each forgery.
    first = [] if formats == ["bfloat16"] else ["fast_two_sum_unordered_error"]
    chosen = [*first, *draw.sample(names, many - len(first))]
    assert attack(chosen, formats, draw, tmp_path / "c.json") > 12 * many


# -- parts that are too large to be tried whole ------------------------------------------------------------
@pytest.fixture(scope="module")
def edged():
    """A certificate of a core and its edges: no more than a share is tried again."""
    return verify("fast_two_sum", "e8m4", samples=1 << 14)


def gross(certificate, parts):
    """Forge counts by as much as is to be seen in random cases."""
    for index in parts:
        part = certificate.parts[index]
        yield with_part(certificate, index, applicable=part.violations)
        yield with_part(certificate, index, applicable=part.cases)
        shift = part.cases // 3
        yield with_part(certificate, index, applicable=(part.applicable + shift) % part.cases)


@pytest.mark.parametrize(
    ("options", "parts"), [({"samples": 40, "limit": 0}, [1]), ({"samples": 0, "limit": 1 << 12}, [0, 3])]
)
@pytest.mark.sampled(2, each=False)
def test_shares_that_chance_would_not_show_are_found_by_either(edged, options, parts):
    assert recheck(edged, **options) == []
    for forged in gross(edged, parts):
        assert forged == edged or any("tried again" in text for text in recheck(forged, **options))


def test_no_share_is_less_likely_than_is_said():
    """Draws without replacement are counted in integers; what is said is the entropy of two shares."""
    for whole, counted, cases in ((60, 20, 30), (200, 3, 50), (90, 89, 40)):
        counts = [comb(counted, n) * comb(whole - counted, cases - n) for n in range(cases + 1)]
        for seen in range(cases + 1):
            said = _surprise(seen, cases, counted, whole)
            beyond = counts[seen:] if seen * whole > counted * cases else counts[: seen + 1]
            assert sum(beyond) / comb(whole, cases) <= math.exp(-said) * (1 + 1e-12)
            share, true = (np.array([n / of, 1 - n / of]) for n, of in ((seen, cases), (counted, whole)))
            assert said == pytest.approx(cases * rel_entr(share, true).sum(), rel=1e-9, abs=1e-12)


def test_hidden_violations_are_found_by_either():
    certificate = verify(BACK, "float8_e5m2")
    for options in ({"limit": 0}, {"samples": 0, "limit": 1 << 10}, {}):
        assert recheck(certificate, BACK, **options) == []
        assert recheck(hidden(certificate), BACK, **options)
        assert recheck(hidden(certificate, applicable=0), BACK, **options)


def test_an_error_beyond_the_worst_is_found_by_either():
    said, fmt = relative_error(2, sum_of("x", "y")), "float6_e3m2fn"
    theorem = mine(lambda ar, x, y: ar.add(x[0], ar.add(x[1], y)), said, (double_word("x"), value("y")))
    certificate = verify(theorem, fmt)
    # A true case with its true error, but not the largest one.
    large = hypothesis("both are large", lambda t: (t["y"] > 4) & (t["x"][0] > 4))
    lesser = verify(replace(theorem, where=(large,)), fmt).worst
    forged = replace(certificate, worst=lesser)
    assert forged != certificate
    for options in ({"limit": 0}, {"samples": 0, "limit": 1 << 12}, {}):
        assert recheck(certificate, theorem, **options) == []
        assert any("more than the worst" in text for text in recheck(forged, theorem, **options))
        assert recheck(replace(certificate, worst=None), theorem, **options)


def test_an_emulator_that_errs_is_found_by_the_oracle(monkeypatch):
    """Certificate and emulator agree, and are wrong: a worker with another `add`, say."""
    emulated = BlockArithmetic.add

    def wrong(self, a, b):
        found = emulated(self, a, b)
        return np.where(abs(found) == 6, found * 0, found)

    theorem = mine(add, lambda t: ~np.isinf(t.results[0]))
    monkeypatch.setattr(BlockArithmetic, "add", wrong)
    certificate = verify(theorem, "float8_e4m3fn")
    (problem,) = recheck(certificate, theorem)
    assert "the oracle makes [6.0], the emulator [0.0]" in problem.replace("-", "")
    monkeypatch.undo()
    assert recheck(certificate, theorem) == []


def test_what_contradicts_the_catalogue_is_refused():
    right("two_sum", "float8_e5m2")
    (problem,) = recheck(hidden(verify("fast_two_sum_unordered", "float8_e5m2")))
    assert problem == "verified contradicts the catalogue, by which the statement fails"
    # Of an own statement the catalogue knows nothing, whatever it is called.
    theorem = replace(THEOREMS["fast_two_sum_unordered"], holds=True)
    own = verify(theorem, "float8_e5m2")
    assert (own.expected, own.holds) == ("holds", False)
    assert recheck(own, theorem) == []


# -- how much was tried again -------------------------------------------------------------------------------
def test_it_is_told_how_much_was_tried_again(edged):
    sizes = [part.cases for part in edged.parts]
    found = examine(edged, samples=10, limit=min(sizes))
    assert (found.problems, found.witnesses) == ((), 0)
    kinds = [part.kind for part in edged.parts]
    assert kinds.count("edge") == 1
    assert [part.by_oracle for part in found.retried] == [80 if kind == "edge" else 10 for kind in kinds]
    # All of the smallest part, and spots of the others.
    spots = min([*sizes, retry.SPOTS])
    assert [part.by_emulator for part in found.retried] == [x if x == min(sizes) else spots for x in sizes]
    assert "every witness gives the recorded results" in str(found)
    for part in found.retried:
        assert f"tried again: {part.text}: {part.by_oracle} of {part.cases:,} cases by the" in str(found)
    # With as many cases as there are, all of it.
    assert all(part.by_emulator == part.cases for part in examine(edged, samples=1).retried)


def test_nothing_is_tried_again_where_a_problem_shows_at_once(refuted):
    found = examine(replace(refuted, covers=False))
    assert (len(found.problems), found.retried) == (1, ())


def test_cases_depend_on_the_digest_and_on_the_seed(refuted, monkeypatch):
    chosen = []
    take = retry._chosen
    monkeypatch.setattr(retry, "_chosen", lambda *a: chosen.append(take(*a).tolist()) or take(*a))
    for certificate, seed in ((refuted, 0), (refuted, 0), (refuted, 1), (replace(refuted, seed=1), 0)):
        examine(certificate, seed=seed)
    first, again, other, altered = chosen
    assert first == again
    assert first != other
    assert first != altered


def test_bad_options_are_refused(refuted):
    bad = {"samples": (-1, ValueError), "limit": (1.5, TypeError), "seed": (True, TypeError)}
    for name, (given, error) in bad.items():
        with pytest.raises(error, match=name):
            examine(refuted, **{name: given})
