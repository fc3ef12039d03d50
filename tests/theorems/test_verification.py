"""Verification as a user calls it: what is claimed where, what is refused or not tried, certificates."""

import itertools
import json
import random
from dataclasses import replace
from fractions import Fraction

import pytest

from mcfsim.formats import FORMATS, Format, get_format
from mcfsim.kernels.carriers import UnsupportedFormatError
from mcfsim.rounding import Mode, Overflow, Rounding, Underflow
from mcfsim.sweeps.sweep import Sweep
from mcfsim.theorems import THEOREMS, Theorem, value, verify
from mcfsim.theorems.certificate import Certificate, Verdict
from mcfsim.theorems.claims import bounded
from mcfsim.theorems.domain import cover
from mcfsim.theorems.operands import finite_values
from mcfsim.theorems.selection import Selection
from mcfsim.theorems.verification import prepare, run, sort_out
from tests.shared import formats as shared


# -- certificates -------------------------------------------------------------------------------------------
def test_a_certificate_counts_every_pair_and_saves_itself(tmp_path):
    certificate = verify("two_sum_any", "float8_e5m2", workers=2, kind="threads")
    assert certificate == verify("two_sum_any", "float8_e5m2")
    assert certificate.tried == (2 * 124) ** 2
    assert 0 < certificate.violations == len(certificate.witnesses)
    certificate.save(tmp_path / "c.json")
    saved = json.loads((tmp_path / "c.json").read_text())
    assert saved["verdict"] == "refuted"
    assert saved["digest"] == certificate.digest == replace(certificate, seconds=0.0).digest
    assert Certificate.load(tmp_path / "c.json") == certificate


@pytest.mark.parametrize(
    ("name", "fmt", "underflow", "expected", "holds"),
    [
        ("two_sum", "posit8", "gradual", "open", False),  # where exponent bits are cut off, it fails
        ("two_sum", "int8", "gradual", "open", None),
        ("two_sum", "binary8p1se", "gradual", "open", None),
        ("two_sum", "float8_e5m2", "flush_before", "open", False),
        ("two_sum_flushed", "float8_e5m2", None, "fails", False),
        ("two_sum", "float8_e5m2", None, "holds", True),
    ],
)
def test_what_is_claimed_where(name, fmt, underflow, expected, holds):
    certificate = verify(name, fmt, *([Rounding(underflow=underflow)] if underflow else []))
    assert (certificate.expected, certificate.claimed) == (expected, expected == "holds")
    assert holds is None or certificate.holds == holds
    assert certificate.underflow == (underflow or THEOREMS[name].underflow)


@pytest.mark.parametrize("top", [-88, -40, 0, 24, 192])
def test_the_worst_of_hundreds_of_errors_that_binary64_cannot_tell_apart(top):
    """The error is ``2**70 + a * (2 * top - a)``: a parabola, all of it within ``2**-50`` of its height."""
    for sign in (1, -1):
        about = bounded(
            lambda t, sign=sign: (t.exact("a") * (2 * top - t.exact("a")) + 2**70) * sign,
            lambda t: t.exact("a") * 0 + 2**70,
            2,
        )
        theorem = Theorem("own", lambda ar, a: ar.sub(a, 0.0), (value("a"),), about)
        worst = verify(theorem, "float8_e4m3fn").worst
        assert [float(x) for x in worst.case.operands] == [top]
        assert Fraction(worst.ratio) == sign * (1 + Fraction(top**2, 2**70))


# -- every kind of format -----------------------------------------------------------------------------------
#: By name, one of every kind; and others.
NAMED = [
    *FORMATS,
    *("posit6", "posit8", "posit32", "posit5es0", "posit8es3"),
    *("ternary", "int4", "int8", "int8_symmetric", "int16"),
    *("binary8p1", "binary8p1uf", "binary4p1sf", "binary8p4ue", "binary6p3se", "binary6p5sf", "binary12p1"),
]


OTHERS = [*shared.FLOATS, *shared.SMALL_POSITS, *shared.GRIDS, *shared.VARIANTS]
OTHERS += shared.p3109_formats(range(3, 10))


def _random_rounding(theorem, rng):
    modes = [mode for mode in Mode if mode is not Mode.STOCHASTIC or mode in theorem.modes]
    mode = rng.choice(sorted(theorem.modes) if rng.random() < 0.7 else modes)
    return Rounding(
        mode,
        overflow=rng.choice([Overflow.IEEE, Overflow.SATURATE]),
        underflow=theorem.underflow if rng.random() < 0.7 else rng.choice(list(Underflow)),
        rule=rng.choice(theorem.rules),
        random_bits=rng.choice([1, 2, 16]),
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "drawn", "share", "enough"),
    [
        (3, 10, 0.012, 6),
        *(pytest.param(seed, 8, 0.4, 150, marks=pytest.mark.exhaustive) for seed in range(3)),
    ],
)
def test_every_statement_is_tried_or_refused_in_every_kind_of_format(seed, drawn, share, enough):
    """A share of the statements in each of a third of the named formats, and in some that are drawn."""
    rng = random.Random(seed)
    formats = [*map(get_format, NAMED[seed % 3 :: 3]), *rng.sample(OTHERS, drawn)]
    tried = refused = fails = 0
    with Sweep(1) as sweep:
        for fmt, theorem in itertools.product(formats, THEOREMS.values()):
            if rng.random() > share:
                continue
            rounding, samples = _random_rounding(theorem, rng), rng.choice([0, 1, 16])
            check = prepare(theorem, fmt, rounding, Selection(limit=rng.choice([1, 4096]), samples=samples))
            reason = check.refusal()
            if reason is not None:
                refused += 1
                assert str(reason)
                assert isinstance(reason, UnsupportedFormatError) or samples == 0
            elif check.domain().size > 1 << 14:
                check(0, 64)
            else:
                (certificate,) = run([check], sweep)
                assert certificate.as_expected, (theorem.name, fmt, rounding, certificate.simplest)
                tried, fails = tried + 1, fails + (certificate.expected == "fails")
    assert min(tried, refused, 20 * fails) > enough


@pytest.mark.parametrize(
    ("name", "fmt", "reason"),
    [
        ("sterbenz", "float8_e8m0fnu", "formats with sign and zero, and float8_e8m0fnu has no sign"),
        ("sterbenz", "binary8p4ue", "has no sign"),
        ("two_sum", Format(precision=3, emin=-2, emax=3, zero=False), "has no zero"),
        ("two_sum_flushed", "posit8", "does not underflow"),
        ("two_sum_flushed", "int4", "no subnormal numbers to flush"),
        ("dw_times_fp3", "posit16", "unbounded exponents in floats of at least 2 bits, and posit16 is none"),
        ("dw_times_fp3", "binary8p1", "unbounded exponents in floats of at least 2 bits"),
        ("innocuous_mul_2p_minus_1", "binary8p1", "precision = 1 has no fraction bit"),
        ("fma_error", "float64", "has no exact path"),
    ],
)
@pytest.mark.costly("the first one reads what statements are made of")
def test_reasons(name, fmt, reason):
    with pytest.raises(UnsupportedFormatError, match=reason):
        verify(name, fmt, samples=16)


@pytest.mark.slow
@pytest.mark.parametrize("exponents", [(4, 4), (6, 9), (-9, -8), (-30, -30), (-126, 127)])
def test_samples_lie_in_the_range_of_the_format_and_no_samples_are_none(exponents):
    fmt = Format(precision=8, emin=exponents[0], emax=exponents[1])
    values = set(finite_values(fmt).tolist())
    for name in ("vec_sum", "fma_error", "dw_div_dw2", "sr_unbiased"):
        theorem = THEOREMS[name]
        for samples in (0, 1, 256):
            selection = Selection(limit=1, samples=samples)
            domain = cover(theorem, fmt, Rounding(min(theorem.modes)), selection)
            sampled = [part for part in domain.parts if part.kind == "sample"]
            assert sampled or fmt.emax < 99
            for part in sampled:
                assert bool(samples) <= part.size <= samples
                for _, blocks in part.blocks(0, part.size) if theorem.range == "bounded" else ():
                    assert values.issuperset(x for block in blocks for x in block.tolist())


# -- what is not tried --------------------------------------------------------------------------------------
@pytest.mark.slow
def test_a_certificate_says_that_a_limit_left_no_core():
    certificate = verify("dw_div_dw3", "bfloat16", limit=1_100_000_000, samples=64)
    assert certificate.verdict is Verdict.SAMPLED
    (text,) = (text for text in certificate.reductions if text.startswith("no core"))
    assert text == f"no core: it would have {2**30} cases or more, and at most 137500000 are allowed"
    domain = cover(THEOREMS["dw_div_dw3"], get_format("e3m2"), Rounding(), Selection(samples=64))
    assert domain.parts[0].kind == "core"
    assert not any("no core" in text for text in domain.reductions)


@pytest.mark.slow
@pytest.mark.costly("all operands of a format")
def test_nothing_to_try_is_refused():
    with pytest.raises(ValueError, match="nothing would be tried: limit = 1 leaves no core, and samples = 0"):
        verify("dw_div_dw3", "bfloat16", limit=1, samples=0)


def test_a_statement_that_says_nothing_of_a_format_is_vacuous_and_not_refused():
    good, refused = sort_out([prepare("mul_via_float32", "tf32", "nearest_even")])
    assert (len(good), refused) == (1, [])
    assert verify("mul_via_float32", "tf32").verdict is Verdict.VACUOUS
