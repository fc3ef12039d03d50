"""Verdicts and counts on all operands, on cores and on counterexamples: as the catalogue expects them."""

import itertools
import math
import random
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from typing import get_args

import numpy as np
import pytest

from mcfsim.formats import FORMATS, Format, get_format
from mcfsim.kernels.carriers import UnsupportedFormatError
from mcfsim.rounding import Mode, Overflow, Rounding, Underflow
from mcfsim.theorems import THEOREMS, Certificate, claim, examine, verification, verify
from mcfsim.theorems.catalogue import (
    accumulations,
    complex_plane,
    exact_products,
    lost,
    representability,
    sums,
)
from mcfsim.theorems.claims import Claim
from mcfsim.theorems.domain import cover
from mcfsim.theorems.logic import AllOf, Within
from mcfsim.theorems.logic.of_trials import half_step
from mcfsim.theorems.operands import unbounded
from mcfsim.theorems.parts import Kind, Part, Selection
from mcfsim.theorems.verification import about, certify, plan, prepare
from tests.theorems.trying import by_oracle, constant, on_core, on_domain, on_parts, rounding_of

pytestmark = pytest.mark.slow

BOTH = (Overflow.IEEE, Overflow.SATURATE)
#: All of it below 1, so that roots overflow; all of it above, so that they are subnormal; without NaN, in a
#: carrier that has its products and in one that has not.
ODD = [
    *(Format(precision=4, emin=-7, emax=-6), Format(precision=2, emin=4, emax=12)),
    *(Format(precision=2, emin=1, emax=emax, specials="none") for emax in (7, 13)),
]


def at_random(seed):
    rng = random.Random(seed)
    while True:
        emin = rng.randint(-9, 4)
        emax = emin + rng.choice([0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14])
        specials = rng.choice(["ieee", "fn", "fnuz", "nuz", "none"])
        fmt = Format(precision=rng.randint(2, 5), emin=emin, emax=emax, specials=specials)
        if fmt.bits <= 8:
            return fmt


SMALL = [
    fmt if fmt in ODD[::3] or fmt.bits <= 4 else pytest.param(fmt, marks=pytest.mark.exhaustive)
    for fmt in (*ODD, *FORMATS.values())
    if type(fmt) is Format and fmt.bits <= 8 and fmt.signed
]


DRAWN = [pytest.param(at_random(n), id=f"drawn {n}", marks=pytest.mark.exhaustive) for n in range(24)]


def in_every_mode(theorem, fmt, overflows=(Overflow.IEEE,)):
    """Yield the roundings in which a statement says something of a format."""
    for mode, overflow in itertools.product(sorted(theorem.modes), overflows):
        rounding = rounding_of(theorem, mode, overflow=overflow)
        if theorem.speaks_of(fmt, rounding):
            yield rounding


# -- all operands -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("part", range(3))
@pytest.mark.parametrize("fmt", [*SMALL, *DRAWN], ids=str)
@pytest.mark.sampled(28, each=False)
@pytest.mark.costly("a third of the catalogue in one format")
def test_verdicts_in_small_formats_are_as_expected(fmt, part):
    rng, held, most = random.Random(0), 0, 1 << (12 if fmt in ODD else 16)
    for theorem in [*THEOREMS.values()][part::3]:
        if theorem.range == "unbounded" or any(o.kind == "sequence" for o in theorem.operands):
            continue
        for rounding in in_every_mode(theorem, fmt, BOTH):
            if rounding.stochastic:
                rounding = rounding_of(theorem, rounding.mode, random_bits=rng.choice([1, 2, 5, 16]))
            check = prepare(theorem, fmt, rounding, Selection("all"))
            domain = check.domain()
            if domain.size > (most // 64 if rounding.stochastic else most):
                continue
            with suppress(UnsupportedFormatError):
                violations = on_parts(theorem, domain.format, rounding, [domain]).violations
                expected = about(check, domain)["expected"]
                wrong = {"holds": violations > 0, "fails": violations == 0, "open": False}[expected]
                assert not wrong, (theorem.name, rounding, expected)
                held += expected == "holds"
    assert held > 3


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("name", "fmt", "cases"),
    [("fast_two_sum", "bfloat16", 2_000_000_000), ("fma_error", "float8_e4m3fn", 10_000_000)],
)
def test_all_operands_of_larger_formats(name, fmt, cases):
    found = on_domain(THEOREMS[name], fmt, "nearest_even")
    assert (found.violations > 0) == (not THEOREMS[name].holds)
    assert found.applicable > cases


# -- cores --------------------------------------------------------------------------------------------------
CHAPTERS = [
    theorem for chapter in (representability, sums, exact_products, lost) for theorem in chapter.THEOREMS
]
WIDE_TOY = Format("wide toy", precision=3, emin=-14, emax=15)


def _altered(text, wrong):
    """Return a statement whose condition is altered where `wrong` says so."""
    theorem = THEOREMS["lost_iff"]
    said = claim(text, lambda t: theorem.claim.test(t) != wrong(t))
    return replace(theorem, name=text, claim=said, holds=False)


def _at(exponent):
    return lambda t: (np.abs(t["a"]) == 2.0 ** exponent(t.format)) & (np.abs(t["b"]) <= np.abs(t["a"]))


#: Conditions that are wrong in one place alone: next to underflow, at the top, at one gap.
ALTERED = [
    _altered("wrong at the least normal number", _at(lambda fmt: fmt.emin)),
    _altered("wrong above it", _at(lambda fmt: fmt.emin + 1)),
    _altered("wrong at the largest", lambda t: np.abs(t["a"]) == float(t.format.max)),
    _altered("on ties", lambda t: np.abs(t["b"]) == half_step(t["a"].astype(np.float64), t["b"], t.format)),
    _altered("wrong far off", lambda t: np.abs(t["b"]) * 2.0 ** (t.format.precision + 2) == np.abs(t["a"])),
]


@pytest.mark.parametrize(
    "theorem",
    [*(t for t in CHAPTERS if t.scaling != "none" and len(t.operands) < 3), *ALTERED],
    ids=lambda theorem: theorem.name,
)
@pytest.mark.parametrize("fmt", [WIDE_TOY, Format("", precision=4, emin=-8, emax=8)], ids=str)
@pytest.mark.sampled(40, each=False)
def test_a_core_tells_what_all_operands_tell(theorem, fmt):
    for mode in theorem.modes:
        core, whole = on_core(theorem, fmt, mode), on_domain(theorem, fmt, mode)
        assert 0 < core.applicable != whole.applicable
        assert (core.violations > 0) == (whole.violations > 0)
        assert whole.violations or theorem not in ALTERED
        if theorem.name.endswith("two_sum_faithful_error"):  # which grow with the gap
            assert 1.5 < constant(core) <= constant(whole) < 2
        else:
            assert constant(core) == constant(whole)


@pytest.mark.parametrize("fmt", ["bfloat16", "float16"])
def test_cores_of_sixteen_bits_cover_the_format(fmt):
    for turn, theorem in enumerate(sums.THEOREMS):
        mode = sorted(theorem.modes)[turn % len(theorem.modes)]
        domain = cover(theorem, get_format(fmt), Rounding(mode, underflow=theorem.underflow))
        # What flushing leaves of a large and a small operand is not tried.
        assert domain.covers == (theorem.underflow is Underflow.GRADUAL)
        assert domain.size < 2**32  # no more than all pairs


# -- counterexamples as data --------------------------------------------------------------------------------
FALSE = [theorem for theorem in THEOREMS.values() if not theorem.holds]
NAMED = [fmt for fmt in FORMATS.values() if fmt.signed and fmt.precision <= 24]
#: Of every precision up to that of float16, with the least range, a middling one and a wide one.
REACHES = [(p, reach) for p in (2, 3, 4, 5, 7, 10) for reach in (p // 2, p + 3, 100)]
OTHERS = [Format(precision=p, emin=-reach, emax=reach + 1) for p, reach in REACHES]
LARGE = ["bfloat16", "float16", "tf32"]


#: What is not refuted in these larger formats, as it fails in others: in any of them, ...
NOWHERE = {"add_via_bfloat16_any", "sqrt_via_bfloat16_any", "fma_via_float16_any"}
#: What is not refuted in these larger formats, and why: the formats in which it fails are others.
SAFE = {
    # ... as p is even, and float32 serves, ...
    "bfloat16": {"two_prod_floor_split", "mul_via_float32_any"},
    # ... as a sum has 40 bits at most, and 16 random bits resolve what it has, ...
    "float16": {
        *("neumaier_sum_of_many", "mul_via_float32_any", "mul_via_float32_flushed"),
        *("fma_via_float64_any", "sr_unbiased_any"),
    },
    # ... and as float32 has too few bits for it, flushed or not.
    "tf32": {"neumaier_sum_of_many", "mul_via_float32_flushed"},
}


@pytest.mark.parametrize("name", LARGE)
def test_what_is_false_is_refuted_in_larger_formats_but_for_good_reasons(name):
    fmt = get_format(name)
    assert SAFE[name] | NOWHERE == {
        theorem.name
        for theorem in FALSE
        for rounding in in_every_mode(theorem, fmt)
        if not theorem.refuted(fmt, rounding)
    }


def long(theorem):
    """Leave sums of thousands of numbers to the exhaustive tests."""
    many = theorem.name == "neumaier_sum_of_many"
    return pytest.param(theorem, marks=pytest.mark.exhaustive) if many else theorem


@pytest.mark.parametrize("every", [8, pytest.param(1, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("theorem", [long(theorem) for theorem in FALSE], ids=lambda theorem: theorem.name)
@pytest.mark.sampled(2, each=False)
def test_every_false_statement_is_refuted_by_what_is_written_down(theorem, every):
    """By the oracle, in some formats; and where there is no counterexample, none is said to be."""
    assert theorem.witnesses is not None
    found = tried = 0
    for fmt in (*NAMED, *OTHERS):
        for rounding in in_every_mode(theorem, fmt, BOTH if fmt in NAMED else BOTH[:1]):
            tried_in = unbounded(fmt.precision) if theorem.range == "unbounded" else fmt
            case = theorem.witness(tried_in, rounding)
            assert (case is not None) == theorem.refuted(fmt, rounding)
            tried += case is not None
            if case is not None and tried % every == 1 % every:
                assert by_oracle(theorem, tried_in, rounding, case), (fmt, rounding)
                found += 1
    assert found > 0


@pytest.mark.parametrize("theorem", [long(theorem) for theorem in FALSE], ids=lambda theorem: theorem.name)
@pytest.mark.parametrize("name", LARGE)
@pytest.mark.sampled(60, each=False)
def test_no_luck_is_needed_in_larger_formats(name, theorem):
    fmt = get_format(name)
    for rounding in in_every_mode(theorem, fmt):
        # A core that stands for all is tried elsewhere.
        domain = cover(theorem, fmt, rounding, Selection(limit=1, samples=0))
        if theorem.refuted(fmt, rounding) and not domain.covers:
            (part,) = (part for part in domain.parts if part.kind == "family")
            found = on_parts(theorem, domain.format, rounding, [part])
            assert found.violations, (theorem.name, rounding)


def test_a_statement_without_witnesses_counts_as_refuted_wherever_it_speaks():
    assert not THEOREMS["two_sum"].refuted(get_format("bfloat16"), Mode.NEAREST_EVEN)
    for fmt, refuted in (("bfloat16", True), ("posit16", False)):
        assert THEOREMS["two_prod_fma_any"].refuted(get_format(fmt), Mode.UP) == refuted


#: What is tried, up to so many cases; in the exhaustive run more, and of the longest counts two.
TRIED, MORE, LONGEST = 1 << 19, 1 << 27, ("two_prod_fma", "round_to_odd_div")


def read_back(certificate, folder):
    certificate.save(folder / "c.json")
    assert Certificate.load(folder / "c.json") == certificate


@pytest.mark.sampled(120, each=False)
@pytest.mark.parametrize("fmt", verification.FORMATS)
@pytest.mark.parametrize("name", THEOREMS)
def test_every_statement_comes_out_as_expected_and_its_certificate_stands(name, fmt, tmp_path, request):
    theorem, place = THEOREMS[name], get_format(fmt)
    chosen = Selection(samples=max((1 << 14) // theorem.components, 64), limit=1 << 16)
    checks = plan([name], [fmt], ["every"], chosen)
    check = checks[verification.FORMATS.index(fmt) % len(checks)]
    if not theorem.possible(place, check.rounding) or check.refusal() is not None:
        return
    # Whatever comes of its cases, what is said of them is written down.
    read_back(certify(check, []), tmp_path)
    exhaustive = request.node.get_closest_marker("exhaustive") is not None
    most = math.inf if name in LONGEST else MORE
    if check.domain().size > (most if exhaustive else TRIED):
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
    ("mul_via_float32_flushed", "bfloat16", EVEN): (None, 17648631),
}


@pytest.mark.parametrize("case", COUNTS, ids="-".join)
@pytest.mark.sampled(20, each=False)
def test_counts(case):
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


# -- statements on functions ---------------------------------------------------------------------------------
#: Few bits, and room for all products.
FEW = Format("p5", precision=5, emin=-40, emax=40)
OF_FUNCTIONS = (*accumulations.THEOREMS, *complex_plane.THEOREMS)
BOUNDED = [x.name for x in OF_FUNCTIONS if x.holds and x.claim.measured is not None]
#: The share of its bound that an error reaches, where that is less than a half.
REACHED = {"doubly_compensated_sum": Fraction(2, 5), "compensated_horner": Fraction(1, 10)}
REACHED |= {"horner": Fraction(1, 3)}


def sharper(said, factor):
    """Return a proposition whose error bounds are multiplied by a factor."""
    if isinstance(said, AllOf):
        return AllOf(tuple(sharper(part, factor) for part in said.parts))
    if isinstance(said, Within):
        constant = factor * said.bound.at(FEW.precision)
        return replace(said, bound=replace(said.bound, constant=constant, text=""))
    return said


@pytest.mark.parametrize("name", BOUNDED)
@pytest.mark.sampled(6, each=False)
def test_a_bound_holds_and_no_small_share_of_it_does(name):
    theorem = THEOREMS[name]
    assert not verify(theorem, FEW, samples=1 << 14, limit=1 << 20).violations
    less = Claim(sharper(theorem.claim.said, REACHED.get(name, Fraction(1, 2))))
    wrong = replace(theorem, name=f"{name}_sharper", claim=less, sharp="", worst=None)
    assert verify(wrong, FEW, samples=1 << 14, limit=1 << 20).violations
