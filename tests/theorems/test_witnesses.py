"""Counterexamples as data: each refutes by the oracle, and none is said to be where there is none."""

import itertools
import random

import pytest

from mcfsim.backends.block_arithmetic import BlockArithmetic
from mcfsim.formats import FORMATS, Format, get_format
from mcfsim.kernels.carriers import UnsupportedFormatError
from mcfsim.rounding import Mode, Overflow, Rounding
from mcfsim.theorems import THEOREMS, verify
from mcfsim.theorems.domain import cover
from mcfsim.theorems.findings import Findings
from mcfsim.theorems.judge import try_block
from mcfsim.theorems.operands import unbounded
from mcfsim.theorems.selection import Selection
from mcfsim.theorems.verification import about, prepare
from tests.theorems.trying import by_oracle, rounding_of

pytestmark = pytest.mark.slow

FALSE = [theorem for theorem in THEOREMS.values() if not theorem.holds]
NAMED = [fmt for fmt in FORMATS.values() if fmt.signed and fmt.precision <= 24]
#: Of every precision up to that of float16, with the least range, a middling one and a wide one.
OTHERS = [
    Format(precision=p, emin=-reach, emax=reach + 1)
    for p in (2, 3, 4, 5, 7, 10)
    for reach in (p // 2, p + 3, 100)
]
LARGE = ["bfloat16", "float16", "tf32"]
#: What is not refuted in these larger formats, and why: the formats in which it fails are others.
SAFE = {
    "bfloat16": {
        "two_prod_floor_split",  # p is even
        "add_via_bfloat16_any",
        "sqrt_via_bfloat16_any",
        "mul_via_float32_any",  # float32 serves
        "fma_via_float16_any",  # float16 has not its range
    },
    "float16": {
        "neumaier_sum_of_many",
        "add_via_bfloat16_any",
        "sqrt_via_bfloat16_any",
        "mul_via_float32_any",
        "mul_via_float32_flushed",
        "fma_via_float16_any",
        "fma_via_float64_any",  # a sum has 40 bits at most
        "sr_unbiased_any",  # 16 random bits resolve what it has
    },
    "tf32": {
        "neumaier_sum_of_many",
        "add_via_bfloat16_any",
        "sqrt_via_bfloat16_any",
        "fma_via_float16_any",
        "mul_via_float32_flushed",  # float32 has too few bits for it, flushed or not
    },
}


def _in_every_mode(theorem, fmt, overflows=(Overflow.IEEE,)):
    """Yield the roundings in which a statement says something of a format."""
    for mode, overflow in itertools.product(sorted(theorem.modes), overflows):
        rounding = rounding_of(theorem, mode, overflow=overflow)
        if theorem.speaks_of(fmt, rounding):
            yield rounding


def _long(theorem):
    """Leave sums of thousands of numbers to the exhaustive tests."""
    long = theorem.name == "neumaier_sum_of_many"
    return pytest.param(theorem, marks=pytest.mark.exhaustive) if long else theorem


def _refutes(theorem, fmt, rounding):
    """Return whether the written counterexample is one, or None if there is none."""
    tried_in = unbounded(fmt.precision) if theorem.range == "unbounded" else fmt
    case = theorem.witness(tried_in, rounding)
    assert (case is not None) == theorem.refuted(fmt, rounding)
    return None if case is None else by_oracle(theorem, tried_in, rounding, case)


@pytest.mark.parametrize("theorem", [_long(theorem) for theorem in FALSE], ids=lambda theorem: theorem.name)
def test_every_false_statement_is_refuted_by_what_is_written_down(theorem):
    assert theorem.witnesses is not None
    found = 0
    for fmt in (*NAMED, *OTHERS):
        for rounding in _in_every_mode(theorem, fmt, (Overflow.IEEE, Overflow.SATURATE)):
            refutes = _refutes(theorem, fmt, rounding)
            assert refutes is None or refutes, (fmt, rounding)
            found += bool(refutes)
    assert found > 0


@pytest.mark.parametrize("name", LARGE)
def test_which_false_statements_are_refuted_in_larger_formats(name):
    fmt, not_refuted = get_format(name), set()
    for theorem in FALSE:
        for rounding in _in_every_mode(theorem, fmt):
            if not theorem.refuted(fmt, rounding):
                not_refuted.add(theorem.name)
    assert not_refuted == SAFE[name]


@pytest.mark.parametrize(
    "name", ["tf32", *(pytest.param(name, marks=pytest.mark.exhaustive) for name in ("bfloat16", "float16"))]
)
def test_no_luck_is_needed_in_larger_formats(name):
    fmt = get_format(name)
    for theorem in FALSE:
        for rounding in _in_every_mode(theorem, fmt):
            # A core that stands for all is tried elsewhere.
            domain = cover(theorem, fmt, rounding, Selection(limit=1, samples=0))
            if theorem.refuted(fmt, rounding) and not domain.covers:
                (part,) = (part for part in domain.parts if part.kind == "family")
                ar, found = (
                    BlockArithmetic(domain.format, rounding, "exact"),
                    Findings(theorem, fmt.precision),
                )
                for first, blocks in part.blocks(0, part.size):
                    found.look_at(first, try_block(theorem, ar, blocks))
                assert found.violations, (theorem.name, rounding)


def test_a_statement_without_witnesses_counts_as_refuted_wherever_it_speaks():
    theorem = next(theorem for theorem in THEOREMS.values() if theorem.name == "two_sum")
    assert not theorem.refuted(get_format("bfloat16"), Mode.NEAREST_EVEN)
    assert THEOREMS["two_prod_fma_any"].refuted(get_format("bfloat16"), Mode.UP)
    assert not THEOREMS["two_prod_fma_any"].refuted(get_format("posit16"), Mode.UP)


# -- brute force --------------------------------------------------------------------------------------------
def _random_format(rng):
    while True:
        emin = rng.randint(-9, 4)
        emax = emin + rng.choice([0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14])
        specials = rng.choice(["ieee", "fn", "fnuz", "nuz", "none"])
        fmt = Format(precision=rng.randint(2, 5), emin=emin, emax=emax, specials=specials)
        if fmt.bits <= 8:
            return fmt


def _verdicts(fmt, rng, most):
    """Yield what is expected of every statement that can be tried on all operands, and whether it failed."""
    for theorem in THEOREMS.values():
        for rounding in _in_every_mode(theorem, fmt, (Overflow.IEEE, Overflow.SATURATE)):
            if rounding.stochastic:
                rounding = rounding_of(theorem, rounding.mode, random_bits=rng.choice([1, 2, 5, 16]))
            check = prepare(theorem, fmt, rounding, Selection(extent="all"))
            if theorem.range == "unbounded" or any(o.kind == "sequence" for o in theorem.operands):
                continue
            domain = cover(theorem, fmt, rounding, Selection("all"))
            if domain.size > (most // 64 if rounding.stochastic else most):
                continue
            found = Findings(theorem, fmt.precision)
            try:
                for first, blocks in domain.blocks(0, domain.size):
                    ar = BlockArithmetic(domain.format, rounding, "exact")
                    found.look_at(first, try_block(theorem, ar, blocks))
            except UnsupportedFormatError:
                continue
            yield theorem, rounding, about(check)["expected"], found


def _judge(seed, formats, most):
    rng, counts = random.Random(seed), dict.fromkeys(("holds", "fails", "open"), 0)
    for _ in range(formats):
        fmt = _random_format(rng)
        for theorem, rounding, expected, found in _verdicts(fmt, rng, most):
            assert expected != "holds" or not found.violations, (theorem.name, fmt, rounding)
            assert expected != "fails" or found.violations, (theorem.name, fmt, rounding)
            counts[expected] += 1
    return counts


def test_verdicts_in_random_formats_are_as_expected():
    counts = _judge(1, 4, 1 << 12)
    assert min(counts.values()) > 10


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(2, 6))
def test_verdicts_in_many_random_formats_are_as_expected(seed):
    counts = _judge(seed, 30, 1 << 18)
    assert min(counts.values()) > 100


@pytest.mark.parametrize("name", ["float4_e2m1fn", "float6_e3m2fn", "float6_e2m3fn"])
def test_verdicts_in_the_smallest_named_formats_are_as_expected(name):
    fmt = get_format(name)
    for theorem, rounding, expected, found in _verdicts(fmt, random.Random(0), 1 << 16):
        assert (expected, bool(found.violations)) in {
            ("holds", False),
            ("fails", True),
            ("open", False),
            ("open", True),
        }, (theorem.name, rounding)


@pytest.mark.parametrize("name", ["lost_iff", "lost_iff_away", "not_lost"])
@pytest.mark.parametrize(
    ("fmt", "overflow"), [("e2m1fn", "ieee"), ("e3m2fn", "ieee"), ("e4m3fn", "saturate")]
)
def test_what_saturates_is_not_taken_for_lost(name, fmt, overflow):
    for mode in THEOREMS[name].modes:
        certificate = verify(name, fmt, Rounding(mode, overflow))
        assert certificate.verdict == "verified"
        assert certificate.applicable > 50


@pytest.mark.parametrize("mode", ["nearest_even", "nearest_away"])
def test_a_root_outside_the_range_has_no_remainder(mode):
    # All of it below 1, so that roots overflow; and all of it above, so that they are subnormal.
    for fmt in (Format(precision=5, emin=-7, emax=-6), Format(precision=2, emin=4, emax=12)):
        certificate = verify("sqrt_remainder", fmt, mode)
        assert certificate.violations == 0
        assert certificate.applicable < certificate.tried


def test_a_carrier_must_have_the_products_of_a_format_that_saturates_for_want_of_nan():
    theorem = THEOREMS["mul_via_float16"]
    narrow, beyond = (Format(precision=2, emin=1, emax=emax, specials="none") for emax in (7, 13))
    assert theorem.possible(narrow, Rounding())
    assert not theorem.possible(beyond, Rounding())
    assert theorem.possible(Format(precision=2, emin=1, emax=13), Rounding())
    assert verify(theorem, narrow).verdict == "verified"
