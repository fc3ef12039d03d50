"""The fused multiply-add, which no wider fma replaces: all triples of a format, hard triples, every mode."""

import itertools
from fractions import Fraction
from functools import cache

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.formats import FORMATS, Format
from mcfsim.oracle import operate, operate_integers
from mcfsim.rounding import DETERMINISTIC, Rounding
from tests.oracle.operands import ROUNDINGS, WIDE_FORMATS, corners, count, label, magnitudes, values

E4M3FN, E5M2, BF16, FP16, TF32 = (
    FORMATS[name] for name in ("float8_e4m3fn", "float8_e5m2", "bfloat16", "float16", "tf32")
)
CHUNK = 2**20


def hard_triples(fmt, size, seed):
    """Return factors whose product mostly stays in range, and addends at, beside or far from its ties.

    A third of the first factors are short, so that a product is often a value or midpoint of the format, and
    then an addend of any size decides; others are placed to cancel the product's leading bits.
    """
    rng = np.random.default_rng(seed)
    p = fmt.precision

    def number(exponents, short):
        significands = rng.integers(2 ** (p - 1), 2**p, size)
        cleared = np.where(rng.random(size) < short, rng.integers(0, p, size), 0)
        places = np.maximum(exponents - fmt.emin, 0) * 2 ** (p - 1) + (significands >> cleared << cleared)
        chosen = magnitudes(fmt, np.clip(places, 0, count(fmt) - 1))
        return chosen * rng.choice([-1.0, 1.0], size)

    low, high = fmt.emin - p, fmt.emax + 1
    total = rng.integers(low, high, size)
    first = rng.integers(np.maximum(low, total - high), np.minimum(high, total - low) + 1)
    a, b = number(first, 0.6), number(total - first, 0.3)
    with np.errstate(all="ignore"):
        gap = rng.integers(-3 * p - 4, 2 * p + 4, size)
        far = rng.integers(low, high, size)
        c = number(np.where(rng.random(size) < 0.1, far, total + gap), 0.5)
        near = np.asarray(mcf.round_to(a * b, fmt, "toward_zero", "saturate"))  # only where to put an addend
    return a, b, np.where(rng.random(size) < 0.15, -near + 0.0, c)


@cache
def specials(fmt):
    """Return all triples of zeros, ones, the extremes and what is not finite."""
    numbers = [0.0, 1.0, float(fmt.max), float(fmt.smallest_subnormal), float(fmt.smallest_normal)]
    numbers += [-x for x in numbers] if fmt.has_negative_zero else [-x for x in numbers[1:]]
    numbers += [np.inf, -np.inf] * fmt.has_infinity + [np.nan] * fmt.has_nan
    return np.array(list(itertools.product(numbers, repeat=3))).T


def check(fmt, operands, assert_same, rounding=None):
    rounding = rounding or Rounding()
    result = mcf.arithmetic(fmt, rounding).fma(*operands)
    assert_same(result, operate_integers("fma", *operands, fmt=fmt, rounding=rounding), *operands)


@pytest.mark.parametrize("fmt", [E5M2, E4M3FN], ids=label)
@pytest.mark.sampled(4, each=False)
@pytest.mark.slow
def test_all_triples_are_rounded_once(fmt, assert_same):
    everything = values(fmt)
    for rows in np.array_split(everything, 16):
        check(fmt, (rows[:, None, None], everything[:, None], everything), assert_same)


@pytest.mark.parametrize("mode", list(DETERMINISTIC)[1:])
@pytest.mark.sampled(6, each=False)
@pytest.mark.slow
def test_all_triples_of_e5m2_are_rounded_once_in_every_mode(mode, assert_same):
    everything = values(E5M2)
    for rows in np.array_split(everything, 16):
        check(E5M2, (rows[:, None, None], everything[:, None], everything), assert_same, Rounding(mode))


@pytest.mark.exhaustive
@pytest.mark.parametrize("rounding", ROUNDINGS[1:], ids=label)
@pytest.mark.parametrize("fmt", [E5M2, E4M3FN], ids=label)
def test_all_triples_are_rounded_once_in_every_mode_and_policy(fmt, rounding, assert_same):
    everything = values(fmt)
    for rows in np.array_split(everything, 16):
        check(fmt, (rows[:, None, None], everything[:, None], everything), assert_same, rounding)


@pytest.mark.parametrize("rounding", ROUNDINGS, ids=label)
@pytest.mark.parametrize("specials", ["ieee", "fn", "fnuz", "none"])
def test_all_triples_of_a_custom_format_are_rounded_once_in_every_mode(specials, rounding, assert_same):
    fmt = Format(precision=3, emin=-2, emax=2, specials=specials)
    everything = values(fmt)
    check(fmt, (everything[:, None, None], everything[:, None], everything), assert_same, rounding)


@pytest.mark.parametrize(
    "seeds", [range(1), pytest.param(range(1, 10), marks=pytest.mark.exhaustive)], ids=len
)
@pytest.mark.parametrize("fmt", [BF16, FP16], ids=label)
@pytest.mark.slow
def test_millions_of_hard_triples_are_rounded_once(fmt, seeds, assert_same):
    for seed in seeds:
        check(fmt, hard_triples(fmt, CHUNK, seed), assert_same)


@pytest.mark.parametrize("rounding", ROUNDINGS, ids=label)
@pytest.mark.parametrize("fmt", WIDE_FORMATS, ids=label)
@pytest.mark.sampled(6)
def test_hard_triples_are_rounded_once_in_every_mode(fmt, rounding, assert_same):
    check(fmt, hard_triples(fmt, CHUNK // 8, seed=20), assert_same, rounding)


@pytest.mark.parametrize("fmt", [E4M3FN, *WIDE_FORMATS], ids=label)
def test_all_triples_of_corners_are_rounded_once(fmt, assert_same):
    x = corners(fmt)
    check(fmt, (x[:, None, None], x[:, None], x), assert_same)


@pytest.mark.parametrize("rounding", ROUNDINGS, ids=label)
@pytest.mark.parametrize("fmt", [E5M2, FORMATS["float8_e4m3fnuz"], FORMATS["float6_e3m2fn"], BF16], ids=label)
def test_zeros_infinities_and_nans_are_those_of_ieee(fmt, rounding, assert_same):
    check(fmt, specials(fmt), assert_same, rounding)


@pytest.mark.parametrize("fmt", [BF16, E5M2], ids=label)
@pytest.mark.slow
def test_the_hard_triples_tell_an_fma_in_binary64_or_float32_from_one_rounding(fmt):
    a, b, c = hard_triples(fmt, CHUNK, seed=0)
    right = np.asarray(mcf.arithmetic(fmt).fma(a, b, c))
    with np.errstate(all="ignore"):
        twice = np.asarray(mcf.round_to((a * b).astype(np.float32) + c.astype(np.float32), fmt))
        wide = np.asarray(mcf.round_to(a * b + c, fmt))  # the product is exact in binary64
    assert np.count_nonzero(right != twice) > 100
    if fmt is BF16:  # binary64 holds the sums of 8-bit formats
        assert np.count_nonzero(right != wide) > 100


@pytest.mark.parametrize("mode", DETERMINISTIC)
@pytest.mark.parametrize("precision", [24, 27, 40, 51])
def test_precisions_whose_products_binary64_does_not_hold_are_rounded_once(precision, mode, assert_same):
    fmt = Format(precision=precision, emin=-126, emax=127)
    a, b, c = hard_triples(fmt, 400, seed=precision)
    # Addends that leave of the product only what a binary64 product would have lost, and ties from there.
    with np.errstate(all="ignore"):
        c[:100] = -np.asarray(mcf.round_to(a[:100] * b[:100], fmt, "toward_zero", "saturate"))
    operands = [np.concatenate([x, extra[::5]]) for x, extra in zip((a, b, c), specials(fmt), strict=True)]
    rows = list(zip(*(x.tolist() for x in operands), strict=True))
    expected = [operate("fma", row, fmt, Rounding(mode)) for row in rows]
    assert_same(mcf.arithmetic(fmt, mode).fma(*operands), expected, *operands)


@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("mode", DETERMINISTIC)
@pytest.mark.sampled(6)
def test_real_scalars_that_cancel_the_product_are_exact(place, mode, assert_same):
    """The result is then made of bits that a product of 53 bits by p has beyond binary64."""
    fmt, rng = TF32, np.random.default_rng(6)
    ar, results, expected = mcf.arithmetic(fmt, mode), [], []
    for _ in range(300):
        scalar = float(rng.standard_normal())
        x = float(mcf.round_to(rng.standard_normal(), fmt))
        row = [x, x, x]
        row[place] = scalar
        if place < 2:
            row[2] = -float(mcf.round_to(row[0] * row[1], fmt, "nearest_even"))
        else:
            row[1] = float(mcf.round_to(rng.standard_normal(), fmt))
            row[2] = scalar = float(np.nextafter(-row[0] * row[1], rng.choice([-9.0, 9.0])))
        arrays = [value if i == place else np.array([value]) for i, value in enumerate(row)]
        results.append(ar.fma(*arrays)[0])
        expected.append(operate("fma", row, fmt, Rounding(mode)))
    assert_same(results, expected)
    assert np.count_nonzero(results) > 100


@pytest.mark.parametrize("mode", DETERMINISTIC)
@pytest.mark.parametrize("fmt", [BF16, TF32, E4M3FN], ids=label)
@pytest.mark.sampled(6)
def test_two_real_scalars_that_cancel_down_to_a_value_or_a_tie_are_exact(fmt, mode, assert_same):
    """The product has 54 bits and the addend, exactly its distance from the target, 53.

    Rounded to binary64 by itself the product puts the sum beside the target, on either side.
    """
    rng = np.random.default_rng(7)
    ar, p, results, expected = mcf.arithmetic(fmt, mode), fmt.precision, [], []
    for i in range(400):
        target = int(rng.integers(2**p, 2 ** (p + 1))) << (52 - p - i % 30)  # a value or the middle of two
        x = int(rng.integers(2 ** (p - 2), 2 ** (p - 1))) * 2 + 1
        factor = (2**53 // x + 1 + int(rng.integers(0, target // (2 * x)))) | 1
        product = factor * x
        assert 2**53 < product < 2**53 + target
        assert product % 2 == 1
        row = [x * 2.0 ** (1 - p), factor * 2.0**-50, float(target - product) * 2.0 ** (-49 - p)]
        assert Fraction(row[0]) * Fraction(row[1]) + Fraction(row[2]) == Fraction(target, 2 ** (49 + p))
        results.append(ar.fma(np.array([row[0]]), *row[1:])[0])
        expected.append(operate("fma", row, fmt, Rounding(mode)))
    assert_same(results, expected)


def test_operands_broadcast():
    ar = mcf.arithmetic("bf16")
    assert ar.fma(np.float32([[1], [2]]), np.float32([3, 4]), 1.0).tolist() == [[4, 5], [7, 9]]
