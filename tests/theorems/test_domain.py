"""What is tried: tables, parts and domains by their definitions; every statement in every kind of format."""

import itertools
import math
import pickle
import random
from fractions import Fraction

import numpy as np
import pytest

from mcfsim.formats import FORMATS, Format, get_format
from mcfsim.kernels.carriers import UnsupportedFormatError
from mcfsim.oracle import round_fraction
from mcfsim.rounding import Mode, Overflow, Rounding, Underflow
from mcfsim.storage.sweeps.sweep import Sweep
from mcfsim.theorems import THEOREMS, check, double_word, relaxed_pair, sequence, value, verify
from mcfsim.theorems.certificate import Verdict
from mcfsim.theorems.claims import bounded
from mcfsim.theorems.domain import cover
from mcfsim.theorems.operands import (
    belongs,
    every,
    finite_values,
    normal,
    normal_pairs,
    significands,
    sparse,
    unbounded,
)
from mcfsim.theorems.parts import Pairs, Part, Sample, Selection, anywhere
from mcfsim.theorems.verification import prepare, run, sort_out
from tests.shared import formats as shared
from tests.theorems.trying import PAIR, mine

TOY = Format("", precision=3, emin=-3, emax=3)


# -- tables of operands -------------------------------------------------------------------------------------
def half_ulp(x, fmt):
    return 0 if x == 0 else Fraction(2) ** (max(math.frexp(x)[1] - 1, fmt.emin) - fmt.precision)


def is_sum(high, low, fmt):
    return round_fraction(Fraction(high) + Fraction(low), fmt) == high


@pytest.mark.parametrize("fmt", [TOY, get_format("float6_e3m2fn")], ids=str)
@pytest.mark.slow
def test_every_pair_of_a_format_is_listed_once(fmt):
    values = finite_values(fmt)
    two = tuple(x.ravel() for x in np.meshgrid(values, values))
    cases = [(*pair, *np.signbit(pair)) for pair in zip(*(x.tolist() for x in two), strict=True)]
    for operand in (double_word("x"), relaxed_pair("x")):
        expected = [
            abs(low) <= half_ulp(high, fmt) and (operand.kind == "relaxed pair" or is_sum(high, low, fmt))
            for high, low, *_ in cases
        ]
        found = zip(*(x.tolist() for x in every(operand, fmt)), strict=True)
        listed = sorted((*pair, *np.signbit(pair)) for pair in found)
        assert listed == sorted(itertools.compress(cases, expected))
        assert belongs(operand, two, fmt).tolist() == expected  # what a pair is told by, too


@pytest.mark.parametrize("depth", [1, 2, 4])
@pytest.mark.slow
def test_normal_pairs_are_those_of_their_exponents_and_depth(depth):
    wide = Format("", precision=3, emin=-20, emax=20)
    high, low = normal(double_word("x"), wide, [0, 1], depth, signs=True, zero=False)
    lows = [0.0, *significands(wide, range(-20, 3), signs=True).tolist()]
    expected = [
        (h, x)
        for h in significands(wide, [0, 1], signs=True).tolist()
        for x in lows
        if is_sum(h, x, wide) and (x == 0 or abs(x) >= half_ulp(h, wide) / 2**depth)
    ]
    assert sorted(zip(high.tolist(), low.tolist(), strict=True)) == sorted(expected)


@pytest.mark.parametrize("specials", ["ieee", "fn", "fnuz", "nuz", "none"])
def test_significands_are_values_of_the_format(specials):
    fmt = Format("", precision=3, emin=-4, emax=5, specials=specials)
    found = significands(fmt, range(-4, 6), signs=True)
    assert np.isin(found, finite_values(fmt)).all()
    assert found.max() == fmt.max


def test_sparse_values_are_a_few_of_every_exponent():
    fmt = Format("", precision=4, emin=-3, emax=3)
    few = [s * m * 2.0**e for s in (1, -1) for m in (1, 1.125, 1.5, 1.875) for e in range(-3, 4)]
    few += [s * m * 2.0**e for s in (1, -1) for m, e in ((1, -4), (1.5, -4), (1, -5), (1.5, -5), (1, -6))]
    assert sorted(sparse(fmt).tolist()) == sorted([*few, 0.0, -0.0])


# -- parts --------------------------------------------------------------------------------------------------
TABLES = [
    [(np.arange(5.0),)],
    [(np.arange(4.0),), (np.arange(5.0),), (np.arange(6.0), np.arange(6.0) * 2)],
    [(np.arange(3.0),), (np.arange(200_000.0),)],
    [(np.arange(2.0),), (np.arange(3.0),), (np.arange(100_000.0),)],
]


def whole(part, start=0, stop=None):
    """Return the columns of a range of cases, which come in blocks one after the other."""
    columns, at = [], start
    for first, blocks in part.blocks(start, part.size if stop is None else stop):
        assert first == at
        at += blocks[0].size
        columns.append(blocks)
    assert at == (part.size if stop is None else stop)
    return [np.concatenate(column) for column in zip(*columns, strict=True)]


@pytest.mark.parametrize("tables", TABLES, ids=range(len(TABLES)))
def test_blocks_of_any_range_are_that_part_of_the_product(tables, assert_same):
    part = Part("complete", "", tuple(tables))
    sizes = [table[0].size for table in tables]
    assert part.size == np.prod(sizes)
    rng = np.random.default_rng(1)
    some = (sorted(rng.choice(part.size + 1, 2, replace=False).tolist()) for _ in range(5))
    short = ((start, start + 2) for start in rng.choice(part.size - 1, 5).tolist())
    for start, stop in ((0, part.size), *some, *short):
        places = np.unravel_index(np.arange(start, stop), sizes)
        expected = [column[at] for table, at in zip(tables, places, strict=True) for column in table]
        for found, right in zip(whole(part, start, stop), expected, strict=True):
            assert_same(found, right)
    assert not list(part.blocks(part.size, part.size))


@pytest.mark.parametrize(
    "operand", [double_word("x"), relaxed_pair("x")], ids=["double word", "relaxed pair"]
)
@pytest.mark.parametrize("zero", [False, True])
def test_pairs_that_are_not_listed_are_those_of_the_list(operand, zero, assert_same):
    listed = normal(operand, unbounded(8), [0, 1, 5], 4, signs=zero, zero=zero)
    part = Pairs("core", "", (), normal_pairs(operand, unbounded(8), [0, 1, 5], 4, signs=zero, zero=zero))
    assert part.size == listed[0].size
    assert part.nbytes < listed[0].nbytes / 20
    rng = np.random.default_rng(1)
    some = (sorted(rng.choice(part.size + 1, 2, replace=False).tolist()) for _ in range(5))
    for start, stop in ((0, part.size), (0, 1), (part.size - 1, part.size), *some):
        for found, right in zip(whole(part, start, stop), listed, strict=True):
            assert_same(found, right[start:stop])
    assert not list(part.blocks(part.size, part.size))


@pytest.mark.parametrize("name", ["two_prod_fma", "div_remainder", "two_sum", "sqrt_dw"])
@pytest.mark.slow
def test_single_cases_are_those_of_the_blocks(name):
    for part in cover(THEOREMS[name], TOY, Rounding(), Selection(samples=1600), few=0).parts:
        cases = np.random.default_rng(3).choice(part.size, 100)
        for column, some in zip(whole(part), part.at(cases), strict=True):
            assert (some == column[cases]).all()


@pytest.mark.slow
def test_samples_are_of_their_kinds_and_do_not_depend_on_the_range():
    fmt = get_format("bfloat16")
    operands = (double_word("x"), value("a"), relaxed_pair("y"), sequence("z", 3))
    given = "sample", "", (), operands, fmt, ((0, 0), (-5, 5), (-3, 2), (0, 9)), 300_000
    part = Sample(*given, 7)
    columns = whole(part)
    assert len(columns) == 8
    for column, some in zip(columns, whole(part, 131_000, 140_000), strict=True):
        assert (some == column[131_000:140_000]).all()
    high, low, a, first, second = (column[:2000].tolist() for column in columns[:5])
    assert all(is_sum(*pair, fmt) for pair in zip(high, low, strict=True))
    shares = [abs(Fraction(x)) / half_ulp(h, fmt) for h, x in zip(first, second, strict=True)]
    assert Fraction(19, 20) < max(shares) <= 1
    a, exponents = columns[2], np.frexp(columns[2])[1] - 1
    assert (exponents.min(), exponents.max()) == (-5, 5)
    # All significands and both signs come.
    assert np.unique(np.abs(np.ldexp(a, -exponents))).size == 128
    assert 0.49 < (a > 0).mean() < 0.51
    assert (next(Sample(*given, 8).blocks(0, 100))[1][0] != columns[0][:100]).any()


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
@pytest.mark.slow
def test_samples_are_values_of_the_format_down_to_its_subnormal_numbers(name):
    fmt, operands = get_format(name), (double_word("x"), value("a"))
    columns = whole(Sample("sample", "", (), operands, fmt, ((fmt.emin, fmt.emin + 20),) * 2, 2000, 1))
    for column in columns:
        assert all(round_fraction(Fraction(x), fmt) == x for x in column.tolist())
    assert np.count_nonzero(np.abs(columns[1]) < 2.0**fmt.emin) > 400
    assert all(is_sum(*pair, fmt) for pair in zip(*(x.tolist() for x in columns[:2]), strict=True))


@pytest.mark.parametrize("name", ["posit16", "posit32", "int16", "int32", "int16_symmetric"])
def test_samples_of_posits_and_grids_are_values_of_theirs_and_integers_of_all_lengths(name):
    fmt = get_format(name)
    for column in whole(Sample("sample", "", (), PAIR, fmt, (anywhere(fmt),) * 2, 500, 1)):
        assert all(round_fraction(Fraction(x), fmt) == x for x in column.tolist())
        lengths = set(np.frexp(np.abs(column))[1].tolist())
        assert name.startswith("posit") or lengths == {*range(1, fmt.bits)}


# -- domains ------------------------------------------------------------------------------------------------
def covered(operands, fmt, *selection, **options):
    theorem = mine(lambda ar, *given: given, lambda t: np.ones(t.size, bool), operands, **options)
    return cover(theorem, get_format(fmt), Rounding(), *selection)


def test_domains_are_complete_where_they_can_be():
    assert covered(PAIR, "e4m3fn").size == 254**2
    domain = covered(PAIR, "bfloat16")
    assert (domain.covers, domain.size) == (True, 65_280**2)
    assert [part.kind for part in domain.parts] == ["complete"]
    many = covered([sequence("x", 4)], "e4m3fn", Selection(samples=100))
    assert (many.covers, [part.kind for part in many.parts]) == (False, ["sample"])
    with pytest.raises(ValueError, match="operands of mine in bfloat16 cannot all be tried: too many"):
        covered([double_word("x"), value("a")], "bfloat16", Selection("all"))


@pytest.mark.parametrize(("light", "made"), [(1 << 18, 1), (0, 2)])
def test_a_light_domain_travels_with_its_check(light, made, monkeypatch):
    found, right = [], check._cover
    monkeypatch.setattr(check, "_cover", lambda *given: found.append(given) or right(*given))
    monkeypatch.setattr(check, "_LIGHT", light)
    monkeypatch.setattr(check, "_kept", check._Domains())
    ours = prepare("two_prod", "float8_e4m3fn", "nearest_even", Selection(seed=123))
    sizes = [(part.text, part.size) for part in ours.domain().parts]
    sent = pickle.dumps(ours)
    monkeypatch.setattr(check, "_kept", check._Domains())  # as in another process
    theirs = pickle.loads(sent)
    assert [(part.text, part.size) for part in theirs.domain().parts] == sizes
    assert theirs.key == ours.key
    assert len(found) == made


def test_domains_are_kept_while_there_is_room(monkeypatch):
    monkeypatch.setattr(check, "_kept", check._Domains())
    small, large = (prepare("two_sum", fmt, "nearest_even") for fmt in ("float8_e4m3fn", "float16"))
    monkeypatch.setattr(check._kept, "_room", small.domain().nbytes + 10)
    assert small.domain() is small.domain()
    large.domain()
    assert len(check._kept.domains) == 1


def test_a_domain_names_the_format_that_is_asked_for():
    """Not another one, which is equal but for its name, and was tried before."""
    for name in ("one", "other"):
        certificate = verify("two_sum", Format(name, precision=3, emin=-3, emax=3))
        assert certificate.arithmetic["run_in"] == certificate.arithmetic["format"]
        assert [part.text for part in certificate.parts] == [f"every operand of {name}"]


@pytest.mark.slow
def test_units_cover_each_part_once():
    domain = covered([double_word("x"), value("a")], "bfloat16", Selection(limit=10**9), scaling="each")
    units = domain.units(1 << 22)
    assert (units[0][0], units[-1][1]) == (0, domain.size)
    assert all(a[1] == b[0] for a, b in itertools.pairwise(units))
    assert all(not (a < start < b) for a, b in units for start in domain.starts())


@pytest.mark.parametrize("name", ["posit8", "int8", "float8_e8m0fnu", "unsigned"])
@pytest.mark.parametrize("theorem", ["two_sum_any", "innocuous_mul_2p"])
def test_reductions_are_of_signed_floats_with_a_zero(name, theorem):
    """Elsewhere all operands are tried, if they are asked for or not."""
    fmt = Format("", precision=4, emin=-3, emax=4, signed=False) if name == "unsigned" else get_format(name)
    (part,) = (domain := cover(THEOREMS[theorem], fmt, Rounding(), few=0)).parts
    assert (part.kind, part.size, domain.reductions) == ("complete", finite_values(fmt).size ** 2, ())


# -- certificates -------------------------------------------------------------------------------------------
CLAIMED = [
    ("two_sum", "posit8", "gradual", "open", False),  # where exponent bits are cut off, it fails
    ("two_sum", "int8", "gradual", "open", None),
    ("two_sum", "binary8p1se", "gradual", "open", None),
    ("two_sum", "float8_e5m2", "flush_before", "open", False),
    ("two_sum_flushed", "float8_e5m2", None, "fails", False),
    ("two_sum", "float8_e5m2", None, "holds", True),
]


@pytest.mark.parametrize(("name", "fmt", "underflow", "expected", "holds"), CLAIMED)
def test_what_is_claimed_where(name, fmt, underflow, expected, holds):
    certificate = verify(name, fmt, *([Rounding(underflow=underflow)] if underflow else []))
    assert (certificate.expected, certificate.claimed) == (expected, expected == "holds")
    assert holds is None or certificate.holds == holds
    assert certificate.underflow == (underflow or THEOREMS[name].underflow)


@pytest.mark.parametrize("top", [-88, -40, 0, 24, 192])
def test_the_worst_of_hundreds_of_errors_that_binary64_cannot_tell_apart(top):
    """The error is ``2**70 + a * (2 * top - a)``: a parabola, all of it within ``2**-50`` of its height."""
    for sign in (1, -1):

        def error(t, sign=sign):
            return (t.exact("a") * (2 * top - t.exact("a")) + 2**70) * sign

        about = bounded(error, lambda t: t.exact("a") * 0 + 2**70, 2)
        worst = verify(mine(lambda ar, a: ar.sub(a, 0.0), about, PAIR[:1]), "float8_e4m3fn").worst
        assert [float(x) for x in worst.case.operands] == [top]
        assert Fraction(worst.ratio) == sign * (1 + Fraction(top**2, 2**70))


# -- every kind of format -----------------------------------------------------------------------------------
#: By name, one of every kind; and others.
NAMED = [
    *FORMATS,
    *("posit6", "posit8", "posit32", "posit5es0", "posit8es3", "ternary", "int4", "int8", "int8_symmetric"),
    *("int16", "binary8p1", "binary8p1uf", "binary4p1sf", "binary8p4ue", "binary6p3se", "binary6p5sf"),
    "binary12p1",
]


OTHERS = [*shared.FLOATS, *shared.SMALL_POSITS, *shared.GRIDS, *shared.VARIANTS]
OTHERS += shared.p3109_formats(range(3, 10))
MANY = [pytest.param(seed, 8, 0.4, 150, marks=pytest.mark.exhaustive) for seed in range(3)]


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
@pytest.mark.parametrize(("seed", "drawn", "share", "enough"), [(3, 10, 0.012, 6), *MANY])
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


@pytest.mark.parametrize("fmt", ["float64", "float32", "tf32", "posit32"])
@pytest.mark.parametrize("part", range(4))
@pytest.mark.sampled(16, each=False)
@pytest.mark.slow
def test_every_statement_begins_or_is_refused_in_large_formats(fmt, part):
    """As above, but in each mode for which it is claimed, and by the first cases of each part."""
    begun = 0
    for theorem in [*THEOREMS.values()][part::4]:
        for mode in theorem.modes:
            check = prepare(theorem, fmt, mode, Selection(limit=1 << 14, samples=64))
            reason = check.refusal()
            assert reason is None or (str(reason) and isinstance(reason, UnsupportedFormatError))
            if reason is None:
                domain, begun = check.domain(), begun + 1
                for start, tried in zip(domain.starts(), domain.parts, strict=True):
                    check(start, start + min(tried.size, 64))
    assert begun > 15


REASONS = [
    ("sterbenz", "float8_e8m0fnu", "formats with sign and zero, and float8_e8m0fnu has no sign"),
    ("sterbenz", "binary8p4ue", "has no sign"),
    ("two_sum", Format(precision=3, emin=-2, emax=3, zero=False), "has no zero"),
    ("two_sum_flushed", "posit8", "does not underflow"),
    ("two_sum_flushed", "int4", "no subnormal numbers to flush"),
    ("lost_iff", "posit8", "to neighbours are known in floats and grids, and posit8 is neither"),
    ("dw_times_fp3", "posit16", "unbounded exponents in floats of at least 2 bits, which posit16 is not"),
    ("dw_times_fp3", "binary8p1", "unbounded exponents in floats of at least 2 bits"),
    ("innocuous_mul_2p_minus_1", "binary8p1", "precision = 1 has no fraction bit"),
    ("fma_error", "float64", "has no exact path"),
]


@pytest.mark.parametrize(("name", "fmt", "reason"), REASONS)
@pytest.mark.costly("the first one reads what statements are made of")
def test_reasons(name, fmt, reason):
    with pytest.raises(UnsupportedFormatError, match=reason):
        verify(name, fmt, samples=16)


@pytest.mark.slow
@pytest.mark.parametrize("exponents", [(4, 4), (6, 9), (-9, -8), (-30, -30), (-126, 127)])
@pytest.mark.sampled(2, each=False)
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


def test_a_statement_that_says_nothing_of_a_format_is_vacuous_and_not_refused():
    good, refused = sort_out([prepare("mul_via_float32", "tf32", "nearest_even")])
    assert (len(good), refused) == (1, [])
    assert verify("mul_via_float32", "tf32").verdict is Verdict.VACUOUS
