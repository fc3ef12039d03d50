"""Domains: every case once, whatever the range; tables of operands against their definitions."""

import itertools
import sys
from fractions import Fraction

import numpy as np
import pytest

from mcfsim.convert import round_to
from mcfsim.formats import Format, get_format
from mcfsim.oracle import round_fraction
from mcfsim.rounding import Rounding
from mcfsim.theorems import THEOREMS, Theorem, claim, double_word, relaxed_pair, sequence, value
from mcfsim.theorems.domain import cover
from mcfsim.theorems.operands import belongs, every, finite_values, normal, significands
from mcfsim.theorems.parts import Part, Sample
from mcfsim.theorems.selection import Selection

TOY = Format("", precision=3, emin=-3, emax=3)
ANYTHING = claim("anything", lambda t: np.ones(t.size, bool))


def _half_ulp(x, fmt):
    exponent = fmt.emin if x == 0 else max(int(np.floor(np.log2(abs(x)))), fmt.emin)
    return 0 if x == 0 else Fraction(2) ** (exponent - fmt.precision)


def _pairs(fmt, normalised):
    values = [float(v) for v in finite_values(fmt)]
    for high, low in itertools.product(values, values):
        if abs(low) > _half_ulp(high, fmt):
            continue
        total = Fraction(high) + Fraction(low)
        if not normalised or round_fraction(total, fmt) == high:
            yield high, low


@pytest.mark.parametrize("fmt", [TOY, get_format("float6_e3m2fn"), get_format("e3m3")], ids=str)
def test_every_pair_of_a_format_is_listed_once(fmt):
    for operand, normalised in ((double_word("x"), True), (relaxed_pair("x"), False)):
        high, low = every(operand, fmt)
        found = [(*pair, *np.signbit(pair)) for pair in zip(high.tolist(), low.tolist(), strict=True)]
        expected = [(*pair, *np.signbit(pair)) for pair in _pairs(fmt, normalised)]
        assert sorted(found) == sorted(expected)
        # What a pair is told by, too.
        two = tuple(x.ravel() for x in np.meshgrid(*2 * [finite_values(fmt)]))
        there, known = belongs(operand, two, fmt), {*expected}
        for *pair, told in zip(*(x.tolist() for x in (*two, there)), strict=True):
            assert told == ((*pair, *np.signbit(pair)) in known)


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_normal_pairs_are_those_of_their_exponents_and_depth(depth):
    wide = Format("", precision=3, emin=-20, emax=20)
    high, low = normal(double_word("x"), wide, [0, 1], depth, signs=True, zero=False)
    found = list(zip(high.tolist(), low.tolist(), strict=True))
    lows = [0.0, *significands(wide, range(-20, 3), signs=True).tolist()]
    expected = [
        (h, x)
        for h in significands(wide, [0, 1], signs=True).tolist()
        for x in lows
        if round_fraction(Fraction(h) + Fraction(x), wide) == h
        and (x == 0 or abs(x) >= _half_ulp(h, wide) / 2**depth)
    ]
    assert sorted(found) == sorted(expected)
    assert len(set(found)) == len(found)


TABLES = [
    [(np.arange(5.0),)],
    [(np.arange(7.0),), (np.arange(3.0), np.arange(3.0) + 10)],
    [(np.arange(4.0),), (np.arange(5.0),), (np.arange(6.0), np.arange(6.0) * 2)],
    [(np.arange(3.0),), (np.arange(200_000.0),)],
    [(np.arange(300.0),), (np.arange(1000.0),)],
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


@pytest.mark.parametrize(
    "tables", TABLES, ids=lambda tables: "x".join(str(table[0].size) for table in tables)
)
def test_blocks_of_any_range_are_that_part_of_the_product(tables, assert_same):
    part = Part("complete", "", tuple(tables))
    sizes = [table[0].size for table in tables]
    assert part.size == np.prod(sizes)
    rng = np.random.default_rng(1)
    ranges = [
        (0, part.size),
        *(sorted(rng.choice(part.size + 1, 2, replace=False).tolist()) for _ in range(5)),
    ]
    for start, stop in ranges:
        places = np.unravel_index(np.arange(start, stop), sizes)
        expected = [column[at] for table, at in zip(tables, places, strict=True) for column in table]
        for found, right in zip(whole(part, start, stop), expected, strict=True):
            assert_same(found, right)
    assert not list(part.blocks(part.size, part.size))


@pytest.mark.parametrize("fmt", ["float64", "bfloat16", "float8_e4m3fn", "posit16"])
@pytest.mark.slow
def test_samples_do_not_depend_on_how_their_words_are_drawn(fmt, monkeypatch):
    pytest.importorskip("numba")
    fmt = get_format(fmt)
    part = Sample("sample", "", (), (double_word("x"), value("a")), fmt, ((0, 3), (-2, 5)), 2500, 7)
    compiled = whole(part, 5, 2400)
    monkeypatch.delitem(sys.modules, "numba")
    numpy = whole(part, 5, 2400)
    for one, other in zip(compiled, numpy, strict=True):
        np.testing.assert_array_equal(one, other)
        assert np.unique(one).size > 8


@pytest.mark.slow
def test_samples_do_not_depend_on_the_range():
    fmt = get_format("bfloat16")
    operands = (double_word("x"), value("a"), relaxed_pair("y"), sequence("z", 3))
    ranges = ((0, 0), (-5, 5), (-3, 2), (0, 9))
    part = Sample("sample", "", (), operands, fmt, ranges, 300_000, 7)
    columns = whole(part)
    assert len(columns) == 8
    for column, some in zip(columns, whole(part, 131_000, 140_000), strict=True):
        assert (some == column[131_000:140_000]).all()
    high, low, a = columns[:3]
    assert all(
        round_fraction(Fraction(float(h)) + Fraction(float(x)), fmt) == h
        for h, x in zip(high[:2000], low, strict=False)
    )
    shares = [
        abs(Fraction(float(x))) / _half_ulp(float(h), fmt)
        for h, x in zip(columns[3][:2000], columns[4], strict=False)
    ]
    assert Fraction(19, 20) < max(shares) <= 1
    exponents = np.frexp(a)[1] - 1
    assert (exponents.min(), exponents.max()) == (-5, 5)
    # All significands and both signs come.
    assert np.unique(np.abs(np.ldexp(a, -exponents))).size == 128
    assert 0.49 < (a > 0).mean() < 0.51
    other = Sample("sample", "", (), operands, fmt, ranges, 300_000, 8)
    assert (next(other.blocks(0, 100))[1][0] != columns[0][:100]).any()


def _theorem(*operands, **options):
    return Theorem("toy", lambda ar, *given: given, operands, ANYTHING, **options)


def test_domains_are_complete_where_they_can_be():
    rounding = Rounding()
    pair = _theorem(value("a"), value("b"))
    assert cover(pair, get_format("e4m3fn"), rounding).size == 254**2
    whole = cover(pair, get_format("bfloat16"), rounding)
    assert whole.covers
    assert whole.size == 65_280**2
    assert [part.kind for part in whole.parts] == ["complete"]
    many = cover(_theorem(sequence("x", 4)), get_format("e4m3fn"), rounding, Selection(samples=100))
    assert not many.covers
    assert [part.kind for part in many.parts] == ["sample"]


@pytest.mark.slow
def test_units_cover_each_part_once():
    domain = cover(
        _theorem(double_word("x"), value("a"), scaling="each"),
        get_format("bfloat16"),
        Rounding(),
        Selection(limit=10**9),
    )
    units = domain.units(1 << 22)
    assert units[0][0] == 0
    assert units[-1][1] == domain.size
    assert all(a[1] == b[0] for a, b in itertools.pairwise(units))
    starts = domain.starts()
    assert all(not (a < start < b) for a, b in units for start in starts)


def test_too_many_operands_are_refused():
    with pytest.raises(ValueError, match="operands of toy in bfloat16 cannot all be tried: too many"):
        cover(_theorem(double_word("x"), value("a")), get_format("bfloat16"), Rounding(), Selection("all"))


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
@pytest.mark.slow
def test_samples_are_values_of_the_format_down_to_its_subnormal_numbers(name):
    fmt = get_format(name)
    operands, ranges = (double_word("x"), value("a")), ((fmt.emin, fmt.emin + 20),) * 2
    part = Sample("sample", "", (), operands, fmt, ranges, 5000, 1)
    columns = whole(part)
    for column in columns:
        assert all(round_fraction(Fraction(float(x)), fmt) == x for x in column)
    high, low = columns[:2]
    assert np.count_nonzero(np.abs(low) < 2.0**fmt.emin) > 1000
    assert (round_to(high.astype(np.float64) + low, fmt) == high).all()


@pytest.mark.parametrize("name", ["two_prod_fma", "div_remainder", "two_sum"])
def test_single_cases_are_those_of_the_blocks(name):
    domain = cover(THEOREMS[name], TOY, Rounding(), Selection(samples=1600), few=0)
    for part in domain.parts:
        cases = np.random.default_rng(3).choice(part.size, 300)
        for column, some in zip(whole(part), part.at(cases), strict=True):
            assert (some == column[cases]).all()


@pytest.mark.parametrize("name", ["posit8", "int8", "float8_e8m0fnu", "unsigned"])
@pytest.mark.parametrize("theorem", ["two_sum_any", "innocuous_mul_2p"])
def test_reductions_are_of_signed_floats_with_a_zero(name, theorem):
    """Elsewhere all operands are tried, if they are asked for or not."""
    fmt = Format("", precision=4, emin=-3, emax=4, signed=False) if name == "unsigned" else get_format(name)
    (part,) = (domain := cover(THEOREMS[theorem], fmt, Rounding(), few=0)).parts
    assert (part.kind, part.size, domain.reductions) == ("complete", finite_values(fmt).size ** 2, ())


@pytest.mark.parametrize("specials", ["ieee", "fn", "fnuz", "nuz", "none"])
def test_significands_are_values_of_the_format(specials):
    fmt = Format("", precision=3, emin=-4, emax=5, specials=specials)
    found = significands(fmt, range(-4, 6), signs=True)
    assert np.isin(found, finite_values(fmt)).all()
    assert found.max() == fmt.max
