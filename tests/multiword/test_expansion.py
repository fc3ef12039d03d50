"""Expansions: two components are double words; the errors of longer ones; and what renormalizing keeps."""

import itertools
from fractions import Fraction

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.formats import FORMATS
from mcfsim.multiword import double_word
from mcfsim.oracle import round_fraction
from tests.multiword.words import double_words, fractions, numbers, total, unbounded
from tests.oracle.operands import SMALL_FORMATS, UNUSUAL_FORMATS, label, values

BF16, FP16, TF32 = (FORMATS[name] for name in ("bfloat16", "float16", "tf32"))


# -- one component is a number, two are a double word -----------------------------------------------------
def test_one_component_is_computed_with_as_a_number(assert_same):
    a, b = (numbers(BF16, 1000, seed=seed, exponents=(-4, 4)) for seed in (23, 24))
    ar = mcf.arithmetic("bf16")
    for found, expected in (
        (mcf.grow(ar, (a,), b), ar.add(a, b)),
        (mcf.expansion_add(ar, (a,), (b,)), ar.add(a, b)),
        (mcf.expansion_scale(ar, (a,), b), ar.mul(a, b)),
        (mcf.expansion_mul(ar, (a,), (b,)), ar.mul(a, b)),
        (mcf.expansion_div(ar, (a,), (b,)), ar.div(a, b)),
        (mcf.expansion_sqrt(ar, (np.abs(a),)), ar.sqrt(np.abs(a))),
    ):
        (only,) = found
        assert_same(only, expected, a, b)


@pytest.mark.parametrize("fmt", [BF16, TF32], ids=label)
def test_two_components_are_computed_with_as_double_words(fmt, assert_same):
    """Bit for bit; only the factors of a product are exchanged, to give Collage's Mul."""
    x, y = (double_words(fmt, 2**12, seed=seed) for seed in (21, 22))
    a = numbers(fmt, 2**12, seed=4, exponents=(-2 * fmt.precision, 0))  # below x[0]
    ar = mcf.arithmetic(fmt)
    for found, expected in (
        (mcf.grow(ar, x, y[0]), double_word.dw_plus_fp(ar, x, y[0])),
        (mcf.grow(ar, x, a), double_word.dw_plus_fp(ar, x, a)),
        (mcf.grow(ar, x, a, ordered=True), double_word.dw_plus_fp(ar, x, a)),
        (mcf.expansion_add(ar, x, y), double_word.accurate_dw_plus_dw(ar, x, y)),
        (mcf.expansion_scale(ar, x, y[0]), double_word.dw_times_fp3(ar, x, y[0])),
        (mcf.expansion_mul(ar, x, y), double_word.dw_times_dw2(ar, y, x)),
        (mcf.expansion_div(ar, x, y), double_word.dw_div_dw2(ar, x, y)),
        (mcf.expansion_sqrt(ar, x), double_word.sqrt_dw(ar, x)),
        (mcf.renormalize(ar, (y[0], x[0])), mcf.two_sum(ar, y[0], x[0])),
    ):
        assert len(found) == 2
        for k in range(2):
            assert_same(found[k], expected[k], *x, *y, a)
    assert not np.array_equal(mcf.expansion_mul(ar, x, y), mcf.expansion_mul(ar, y, x))


def test_ordered_grow_of_unordered_operands_loses_the_compensation():
    ar, x = mcf.arithmetic("bf16"), (1.0, -(2.0**-9))
    assert mcf.grow(ar, x, 600.0, ordered=True) == (600.0, -(2.0**-9))
    assert mcf.grow(ar, x, 600.0) == (600.0, 1.0)
    x, a = (1.03125, -0.000732421875), -9.0625  # and is off by more than u
    off = abs(total(mcf.grow(ar, x, a, ordered=True)) / total((*x, a)) - 1)
    assert f"{float(off * 2**16):.2f}" == "256.97"


# -- three and four components ----------------------------------------------------------------------------
@pytest.mark.parametrize("n", [3, 4])
@pytest.mark.parametrize("precision", [8, 11])
def test_the_error_of_longer_expansions_is_of_the_order_of_u_to_the_n(precision, n):
    """By 4 u**n of the product, or of the sum of magnitudes."""
    ar, bound = mcf.arithmetic(unbounded(precision)), Fraction(4, 2 ** (n * precision))
    rng = np.random.default_rng(n)
    reals = [
        (Fraction(int(rng.integers(2**62)), 2**61) - 1 + Fraction(int(rng.integers(2**62)), 2**124))
        * Fraction(2) ** int(rng.integers(-3, 4))
        for _ in range(100)
    ]
    expanded = [mcf.expand(ar, v, n) for v in reals]
    x, y = (tuple(map(np.array, zip(*part, strict=True))) for part in (expanded[::2], expanded[1::2]))
    wholes = list(zip(map(total, fractions(x)), map(total, fractions(y)), strict=True))
    firsts = [(a, b) for (a, _), b in zip(wholes, fractions(y[0]), strict=True)]
    for result, operands, added in (
        (mcf.grow(ar, x, y[0]), firsts, True),
        (mcf.expansion_add(ar, x, y), wholes, True),
        (mcf.expansion_scale(ar, x, y[0]), firsts, False),
        (mcf.expansion_mul(ar, x, y), wholes, False),
    ):
        assert len(result) == n
        off = [
            abs(total(r) - (a + b if added else a * b))
            for r, (a, b) in zip(fractions(result), operands, strict=True)
        ]
        sizes = [abs(a) + abs(b) if added else abs(a * b) for a, b in operands]
        assert all(o <= bound * size for o, size in zip(off, sizes, strict=True))
        assert any(off)


# -- renormalizing ----------------------------------------------------------------------------------------
def some_values(fmt, n):
    """Return n components of values of any kind: sums of them stay within half the range."""
    if fmt in (BF16, FP16):
        rng = np.random.default_rng(n)
        parts = (numbers(fmt, 150, seed=n + i, exponents=(-9, 9)) for i in range(n))
        return tuple(np.where(rng.random(150) < 0.1, 0.0, part) for part in parts)
    known = values(fmt)
    return tuple(np.random.default_rng(3).choice(known[np.abs(known) <= float(fmt.max) / 4], (n, 150)))


@pytest.mark.parametrize(
    "fmt",
    [BF16, FP16, *(x for x in (*SMALL_FORMATS, *UNUSUAL_FORMATS) if x.signed and x.zero and x.precision > 1)],
    ids=label,
)
def test_renormalizing_keeps_the_sum_exactly_in_every_format_that_it_takes(fmt):
    for n in (2, 3) if fmt.bits <= 8 else (2, 3, 4, 5):
        parts = some_values(fmt, n)
        result = mcf.renormalize(mcf.arithmetic(fmt), parts)
        assert len(result) == n
        for before, after in zip(fractions(parts), fractions(result), strict=True):
            assert total(after) == total(before), before


@pytest.mark.parametrize("n", [2, 3, 4, 5])
@pytest.mark.sampled(4, each=False)
def test_a_renormalized_component_is_the_rounding_of_itself_and_the_next(n, assert_same):
    ar = mcf.arithmetic("bf16")
    parts = tuple(numbers(BF16, 20_000, seed=90 + n + i, exponents=(-9, 9)) for i in range(n))
    hard = [np.full(1, part) for part in (-507904.0, 679936.0, 68608.0, *(0.0,) * (n - 3))][:n]
    parts = tuple(np.concatenate(pair) for pair in zip(parts, hard, strict=True))
    for component, following in itertools.pairwise(mcf.renormalize(ar, parts)):
        assert_same(ar.add(component, following), component, *parts)
    # Without cancellation the first one is the sum rounded, or a neighbour.
    parts = tuple(np.abs(part[:500]) for part in parts)
    first = mcf.renormalize(ar, parts)[0]
    rounded = np.array([round_fraction(total(row), BF16) for row in fractions(parts)])
    assert (first >= mcf.codec.next_down(rounded, BF16)).all()
    assert (first <= mcf.codec.next_up(rounded, BF16)).all()


# -- refused ----------------------------------------------------------------------------------------------
TWO, THREE = (1.0, 0.0), (1.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("function", "operands", "message"),
    [
        *(
            (function, (TWO, THREE), f"expansions of 2 and 3 components cannot be {done}")
            for function, done in (
                (mcf.expansion_add, "added"),
                (mcf.expansion_mul, "multiplied"),
                (mcf.expansion_div, "divided"),
            )
        ),
        (
            mcf.expansion_div,
            (THREE, THREE),
            "an expansion of 3 components cannot be divided; allowed: 1 or 2",
        ),
        (mcf.expansion_sqrt, (THREE,), "of 3 components cannot be put under a square root; allowed: 1 or 2"),
    ],
)
def test_lengths_that_no_algorithm_takes_are_refused(function, operands, message):
    with pytest.raises(ValueError, match=message):
        function(mcf.arithmetic("bf16"), *operands)


def test_the_value_of_an_expansion_is_its_exact_sum():
    assert mcf.expansion.value((1.0, 2.0**-100, -(2.0**-200))) == 1 + Fraction(1, 2**100) - Fraction(
        1, 2**200
    )
