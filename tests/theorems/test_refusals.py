"""What cannot be tried is refused with its reason, and the rest goes on; what is not tried is said."""

import random
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from mcfsim.cli import app
from mcfsim.formats import FORMATS, Format, Grid, Posit, get_format
from mcfsim.kernels.carriers import UnsupportedFormatError
from mcfsim.rounding import Mode, Overflow, Rounding, Underflow
from mcfsim.sweeps.sweep import Sweep
from mcfsim.theorems import THEOREMS, verify
from mcfsim.theorems.certificate import Verdict
from mcfsim.theorems.domain import cover
from mcfsim.theorems.operands import finite_values
from mcfsim.theorems.selection import Selection
from mcfsim.theorems.verification import plan, prepare, run, sort_out

pytestmark = pytest.mark.slow

#: By name, one of every kind.
NAMED = [
    *FORMATS,
    *("posit6", "posit8", "posit32", "posit5es0", "posit8es3"),
    *("ternary", "int4", "int8", "int8_symmetric", "int16"),
    *("binary8p1", "binary8p1uf", "binary4p1sf", "binary8p4ue", "binary6p3se", "binary6p5sf", "binary12p1"),
]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Keep the journal out of the user's folder."""
    monkeypatch.setattr("typer.get_app_dir", lambda name: str(tmp_path / name))


def call(*arguments, status=0):
    result = CliRunner().invoke(app, ["verify", *arguments])
    assert result.exit_code == status, result.output
    return result.output


# -- every kind of format -----------------------------------------------------------------------------------
def _random_format(rng):
    while True:
        kind, emin = rng.random(), rng.randint(-20, 9)
        try:
            if kind < 0.2:
                return Posit(rng.randint(3, 9), rng.randint(0, 3))
            if kind < 0.4:
                low, high = -rng.randint(0, 99), rng.randint(1, 99)
                return Grid(low=low, high=high, fraction_bits=rng.randint(-5, 9))
            if kind < 0.6:
                bits = rng.randint(3, 9)
                return get_format(f"binary{bits}p{rng.randint(1, bits)}{rng.choice('su')}{rng.choice('ef')}")
            return Format(
                precision=rng.randint(1, 7),
                emin=emin,
                emax=emin + rng.randint(0, 25),
                specials=rng.choice(["ieee", "fn", "fnuz", "nuz", "none"]),
                signed=rng.random() < 0.9,
                zero=rng.random() < 0.9,
            )
        except ValueError:
            continue


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


def _try_all(formats, rng, theorems):
    """Try statements with few cases; return how many were tried, refused and refuted as expected."""
    tried = refused = fails = 0
    with Sweep(1) as sweep:
        for fmt in formats:
            for theorem in theorems(fmt):
                rounding, samples = _random_rounding(theorem, rng), rng.choice([0, 1, 16])
                check = prepare(
                    theorem, fmt, rounding, Selection(limit=rng.choice([1, 4096]), samples=samples)
                )
                reason = check.refusal()
                if reason is not None:
                    refused += 1
                    assert str(reason)
                    supported = isinstance(reason, UnsupportedFormatError)
                    assert supported or samples == 0
                    continue
                if check.domain().size > 1 << 14:
                    check(0, 64)
                    continue
                (certificate,) = run([check], sweep)
                assert certificate.as_expected, (theorem.name, fmt, rounding, certificate.simplest)
                tried, fails = tried + 1, fails + (certificate.expected == "fails")
    return tried, refused, fails


def test_some_statements_are_tried_or_refused_in_every_kind_of_format():
    rng = random.Random(3)
    formats = [*map(get_format, NAMED), *(_random_format(rng) for _ in range(40))]
    some = [theorem for theorem in THEOREMS.values() if theorem.components < 16]
    tried, refused, fails = _try_all(formats, rng, lambda fmt: rng.sample(some, 2 if fmt.bits > 9 else 8))
    assert min(tried, refused) > 100
    assert fails > 5


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(3))
def test_every_statement_is_tried_or_refused_in_every_kind_of_format(seed):
    rng = random.Random(seed)
    named = map(get_format, NAMED[seed::3])
    formats = [*named, *(_random_format(rng) for _ in range(20))]
    tried, refused, fails = _try_all(formats, rng, lambda fmt: THEOREMS.values())
    assert min(tried, refused) > 1000
    assert fails > 50


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
def test_reasons(name, fmt, reason):
    with pytest.raises(UnsupportedFormatError, match=reason):
        verify(name, fmt, samples=16)


def test_what_is_wrong_with_a_statement_is_no_refusal():
    broken = replace(THEOREMS["two_sum"], algorithm=lambda ar, a, b: ar.addd(a, b))
    with pytest.raises(ValueError, match="the algorithm raised AttributeError") as error:
        verify(broken, "float4_e2m1fn")
    assert not isinstance(error.value, UnsupportedFormatError)


@pytest.mark.parametrize(
    "fmt",
    [
        *("int4", "ternary", "float8_e8m0fnu", "float4_e2m1fn"),
        *(
            pytest.param(fmt, marks=pytest.mark.exhaustive)
            for fmt in ("posit4", "posit6", "binary4p1se", "binary6p1se")
        ),
    ],
)
def test_the_whole_catalogue_ends_with_a_word_on_every_statement(fmt):
    text = call("--format", fmt, "--samples", "16", "--limit", "4096", "--workers", "1")
    rows = {line.split()[0] for line in text.splitlines() if fmt in line and not line.startswith("refused")}
    refused = {
        line.removeprefix("refused: ").split(",")[0]
        for line in text.splitlines()
        if line.startswith("refused: ")
    }
    asked = {check.theorem.name for check in plan(None, [fmt])}
    assert rows | refused == asked
    assert not rows & refused
    assert bool(rows) == (fmt != "float8_e8m0fnu")
    assert bool(refused) == (fmt != "float4_e2m1fn")
    assert "unexpected" not in text


# -- what is not tried --------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["vec_sum", "dw_div_dw2", "kahan_sum", "sr_unbiased"])
def test_no_samples_are_none(name):
    theorem = THEOREMS[name]
    (mode, *_) = sorted(theorem.modes)
    for samples in (0, 1, 5):
        domain = cover(theorem, get_format("bfloat16"), Rounding(mode), Selection(limit=1, samples=samples))
        (sample,) = (part for part in domain.parts if part.kind == "sample")
        assert (sample.size > 0) == (samples > 0)
        assert sample.size <= samples


def test_a_certificate_says_that_a_limit_left_no_core():
    certificate = verify("dw_div_dw3", "bfloat16", limit=1_100_000_000, samples=64)
    assert certificate.verdict is Verdict.SAMPLED
    (text,) = (text for text in certificate.reductions if text.startswith("no core"))
    assert text == f"no core: it would have {2**30} cases or more, and at most 137500000 are allowed"
    domain = cover(THEOREMS["dw_div_dw3"], get_format("e3m2"), Rounding(), Selection(samples=64))
    assert domain.parts[0].kind == "core"
    assert not any("no core" in text for text in domain.reductions)


def test_nothing_to_try_is_refused():
    with pytest.raises(ValueError, match="nothing would be tried: limit = 1 leaves no core, and samples = 0"):
        verify("dw_div_dw3", "bfloat16", limit=1, samples=0)
    text = call("dw_div_dw3", "two_sum", "--format", "bfloat16", "--limit", "1", "--samples", "0", status=1)
    assert "refused: dw_div_dw3, bfloat16, nearest_even: nothing would be tried" in text
    assert "two_sum" in text


def test_a_statement_that_says_nothing_of_a_format_is_vacuous_and_not_refused():
    good, refused = sort_out([prepare("mul_via_float32", "tf32", "nearest_even")])
    assert (len(good), refused) == (1, [])
    assert verify("mul_via_float32", "tf32").verdict is Verdict.VACUOUS


def test_samples_lie_in_the_range_of_any_format():
    for emin, emax in ((4, 4), (6, 9), (-9, -8), (-30, -30)):
        fmt = Format(precision=12, emin=emin, emax=emax)
        values = set(finite_values(fmt).tolist())
        for name in ("vec_sum", "fma_error", "two_prod", "sr_unbiased"):
            theorem = THEOREMS[name]
            (mode, *_) = sorted(theorem.modes)
            domain = cover(theorem, fmt, Rounding(mode), Selection(samples=256))
            for _, blocks in domain.blocks(0, min(domain.size, 256)):
                assert values.issuperset(x for block in blocks for x in block.tolist())
