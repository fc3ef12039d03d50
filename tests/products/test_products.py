"""Dot and matrix products with a stated accumulator, against the model computed with fractions."""

import math
from fractions import Fraction
from itertools import product

import ml_dtypes
import numpy as np
import pytest

from mcfsim.convert import round_to
from mcfsim.formats import FORMATS, Format
from mcfsim.kernels import exact_dot
from mcfsim.kernels.carriers import UnsupportedFormatError
from mcfsim.oracle import round_fraction
from mcfsim.oracle.definition import infinity_value
from mcfsim.products import Accumulator, dot, matmul
from mcfsim.random import RandomWords
from mcfsim.rounding import Mode, Rounding
from tests.oracle.operands import MODES, label

ACCUMULATORS = [FORMATS[name] for name in ("float32", "float16", "bfloat16", "float8_e5m2", "float8_e4m3fn")]
INPUTS = [FORMATS[name] for name in ("bfloat16", "float16", "float8_e5m2", "float8_e4m3fn", "float32")]
BLOCKS = (1, 2, 3, 4, 8, 16, None)


# -- the model, by its definition -----------------------------------------------------------------------
def negative(x):
    return math.copysign(1.0, x) < 0


def sum_once(terms, fmt, rounding):
    """Round the exact sum of terms once; each is a product of two floats."""
    floats = [x * y for x, y in terms]  # for NaN and infinity only
    if any(map(math.isnan, floats)) or {math.inf, -math.inf} <= set(floats):
        return math.nan
    for x, y in terms:
        if math.isinf(x) or math.isinf(y):
            return infinity_value(negative(x) != negative(y), fmt)
    signs = [negative(x) != negative(y) for x, y in terms]
    share = any if rounding.mode is Mode.DOWN else all
    total = sum((Fraction(x) * Fraction(y) for x, y in terms), Fraction(0))
    return round_fraction(total, fmt, rounding, negative_zero=bool(signs) and share(signs))


def model(a, b, accumulator, c=None):
    """Return one dot product of lists of floats, as `Accumulator` describes it."""
    fmt, rounding = accumulator.format, accumulator.rounding

    def add(*terms):
        return sum_once(terms, fmt, rounding)

    terms = list(zip(a, b, strict=True))
    if accumulator.products == "rounded":
        terms = [(add(term), 1.0) for term in terms]
    length = accumulator.block or max(1, len(terms))
    blocks = [terms[i : i + length] for i in range(0, len(terms), length)]
    first = [] if c is None else [(c, 1.0)]
    if not blocks:
        return add(*first)
    if accumulator.order == "pairwise":
        level = [add(*(first if not i else []), *block) for i, block in enumerate(blocks)]
    else:
        level = []
        for lane in range(min(accumulator.lanes, len(blocks))):
            carried = [] if lane else first
            for block in blocks[lane :: accumulator.lanes]:
                carried = [(add(*carried, *block), 1.0)]
            level.append(carried[0][0])
    while len(level) > 1:
        pairs = [level[i : i + 2] for i in range(0, len(level), 2)]
        level = [add(*((x, 1.0) for x in pair)) if len(pair) == 2 else pair[0] for pair in pairs]
    return level[0]


def by_definition(a, b, accumulator, c=None):
    """Return dot products of rows."""
    a, b = np.asarray(a, dtype=np.float64).tolist(), np.asarray(b, dtype=np.float64).tolist()
    c = [None] * len(a) if c is None else np.asarray(c, dtype=np.float64).tolist()
    return [model(x, y, accumulator, z) for x, y, z in zip(a, b, c, strict=True)]


def assert_products(a, b, accumulator, assert_same):
    """Assert that dot products of rows are those of the model, and of matrices, which go another way."""
    expected = by_definition(a, b, accumulator)
    assert_same(dot(a, b, accumulator), expected)
    assert_same(matmul(a, b.T, accumulator).diagonal(), expected)


# -- operands that are hard to sum ------------------------------------------------------------------------
def number(fmt, rng, size, low, high):
    """Return numbers of a format with exponents in a range, few of their significand bits set."""
    significand = rng.integers(2 ** (fmt.precision - 1), 2**fmt.precision, size).astype(np.float64)
    significand = np.where(rng.random(size) < 0.5, 2.0 ** (fmt.precision - 1), significand)
    x = np.ldexp(
        significand, rng.integers(max(low, fmt.emin), min(high, fmt.emax) + 1, size) - fmt.precision + 1
    )
    x = np.minimum(x, float(fmt.max)) * rng.choice([-1.0, 1.0], size)
    return np.asarray(round_to(x, fmt, "toward_zero"), dtype=np.float64)


def hard_rows(fmt, target, length, rows, seed):
    """Return rows whose products cancel, tie for the target, go beyond its range, or are special."""
    rng = np.random.default_rng(seed)
    shape = (rows, length)
    spread = rng.choice([1, 4, 12, 60, 400], (rows, 1))
    centre = np.where(rng.random((rows, 1)) < 0.3, rng.integers(-90, 90, (rows, 1)), 0)
    a = np.empty(shape)
    b = np.empty(shape)
    for row in range(rows):
        low, high = int(centre[row, 0] - spread[row, 0]), int(centre[row, 0] + spread[row, 0])
        low, high = min(low, fmt.emax), max(high, fmt.emin)
        a[row], b[row] = number(fmt, rng, length, low, high), number(fmt, rng, length, low, high)
        kind = rng.integers(0, 8)
        half = length // 2
        if kind == 0:  # cancels exactly but for a few terms
            a[row, half : 2 * half], b[row, half : 2 * half] = a[row, :half], -b[row, :half]
            order = rng.permutation(length)
            a[row], b[row] = a[row, order], b[row, order]
        elif kind == 1 and length:  # a tie of the target near 1, and something small that may decide it
            a[row], b[row] = 0.0, rng.choice([1.0, -1.0])
            decider = rng.choice([0.0, float(fmt.smallest_subnormal), -float(fmt.smallest_subnormal)])
            tie = [1.0, 2.0 ** -(target.precision // 2), decider]
            factors = [1.0, 2.0 ** (target.precision // 2 - target.precision), float(fmt.smallest_normal)]
            for place, x, y in zip(rng.permutation(length)[:3], tie, factors, strict=False):
                a[row, place], b[row, place] = round_to(x, fmt), round_to(y, fmt)
        elif kind == 2:  # zeros of both signs
            a[row] = np.copysign(0.0, rng.choice([-1.0, 1.0, 1.0], length))
            if rng.random() < 0.5:
                a[row], b[row] = -0.0, np.abs(b[row])
        elif kind == 3 and length:  # specials
            specials = [math.inf, -math.inf, math.nan, 0.0] if fmt.has_infinity else [math.nan, 0.0]
            places = rng.integers(0, length, 2)
            a[row, places[0]] = rng.choice(specials)
            (a if rng.random() < 0.5 else b)[row, places[1]] = rng.choice(specials)
        elif kind == 4 and length:  # overflows, and would come back
            a[row, :] = float(fmt.max) * rng.choice([1.0, -1.0], length)
    return a, b


LENGTHS = (0, 1, 5, 16, 33)


@pytest.mark.parametrize("rounding", [*MODES, Rounding("nearest_even", "saturate")], ids=label)
@pytest.mark.parametrize("fmt", ACCUMULATORS, ids=label)
@pytest.mark.sampled(8)
@pytest.mark.slow
def test_dot_products_are_those_of_the_model(fmt, rounding, assert_same):
    for seed, (source, length) in enumerate(product(INPUTS, LENGTHS)):
        a, b = hard_rows(source, fmt, length, 8, seed)
        c = None if seed % 3 else number(fmt, np.random.default_rng(seed), 8, -20, 20)
        for choice, block in enumerate(BLOCKS[seed % 2 :: 2]):
            order, lanes = [("sequential", 1), ("pairwise", 1), ("sequential", 3)][(seed + choice) % 3]
            products = "rounded" if (seed + choice) % 4 == 3 else "exact"
            accumulator = Accumulator(fmt, rounding, block=block, order=order, lanes=lanes, products=products)
            expected = np.array(by_definition(a, b, accumulator, c))
            assert_same(dot(a, b, accumulator, c=c), expected, range(len(a)))
            # As matrices of finite rows they go another way to their sums.
            finite = np.isfinite(a).all(axis=1) & np.isfinite(b).all(axis=1)
            added = None if c is None else c[finite, np.newaxis]
            square = matmul(a[finite], b[finite].T, accumulator, c=added)
            assert_same(square.diagonal(), expected[finite], np.flatnonzero(finite))


@pytest.mark.parametrize("underflow", ["flush_before", "flush_after"])
@pytest.mark.parametrize("products", ["exact", "rounded"])
def test_small_sums_are_flushed_by_the_policy(products, underflow, assert_same):
    for mode in ("nearest_even", "up", "down", "to_odd"):
        rounding = Rounding(mode, underflow=underflow)
        accumulator = Accumulator("float16", rounding, block=3, products=products)
        rng = np.random.default_rng(0)
        a, b = (number(FORMATS["float16"], rng, (200, 7), -9, -6) for _ in range(2))
        assert_same(dot(a, b, accumulator), by_definition(a, b, accumulator))


@pytest.mark.parametrize(
    "fmt",
    [
        Format(precision=50, emin=-300, emax=300),
        Format(precision=2, emin=-3, emax=3),
        FORMATS["float8_e8m0fnu"],
        FORMATS["float8_e4m3fnuz"],
        FORMATS["float4_e2m1fn"],
    ],
    ids=label,
)
@pytest.mark.slow
def test_unusual_accumulators_follow_the_model(fmt, assert_same):
    for seed, rounding in enumerate(MODES):
        a, b = hard_rows(FORMATS["bfloat16"], fmt, 9, 24, seed)
        for block, products in product((1, 4, None), ("exact", "rounded")):
            accumulator = Accumulator(fmt, rounding, block=block, products=products)
            assert_same(dot(a, b, accumulator), by_definition(a, b, accumulator), range(len(a)))


# -- exact sums -------------------------------------------------------------------------------------------
def to_odd(total, y, bits):
    """Whether y is the rational number total, or its neighbour of so many bits with an odd significand."""
    if Fraction(y) == total:
        return True
    unit = Fraction(2) ** (math.frexp(y)[1] - bits)
    return abs(total - Fraction(y)) < unit and Fraction(y) / unit % 2 == 1


@pytest.mark.parametrize("spread", [5, 40, 120, 440])
def test_a_long_accumulator_rounds_the_exact_sum_to_odd(spread):
    rng = np.random.default_rng(spread)
    terms = np.ldexp(rng.integers(-(2**53) + 1, 2**53, (12, 2000)), rng.integers(-spread, spread, (12, 2000)))
    terms[6:10] = -terms[2:6]  # what is left is two terms and what the next lines add
    terms[10] = np.ldexp(rng.choice([0.0, 1.0, -1.0, 3.0], 2000), -900)
    terms[11] = -terms[0] * rng.choice([0.0, 1.0], 2000)
    total = exact_dot.LongAccumulator(len(terms))
    for part in (terms[:1], terms[1:7], terms[7:]):
        total.add(part, math.frexp(np.abs(part).max())[1])
    for y, column in zip(total.to_odd().tolist(), terms.T.tolist(), strict=True):
        exact = sum(map(Fraction, column))
        assert to_odd(exact, y, 53) or to_odd(exact, y, exact_dot.ODD_BITS)


def test_a_sum_that_falls_a_binade_below_its_lower_digits_keeps_52_bits():
    # A digit of one quantum, minus half of it in the next, and what is lower still.
    total = exact_dot.LongAccumulator(8)
    terms = [2.0**total.width, -(2.0 ** (total.width - 1)), -(2.0**-60), 3 * 2.0**-130]
    for term in terms:
        total.add(np.array([[term]]), math.frexp(abs(term))[1])
    assert {0, 1} <= set(total.limbs)
    (y,) = total.to_odd().tolist()
    exact = sum(map(Fraction, terms))
    assert not to_odd(exact, y, 53)
    assert to_odd(exact, y, exact_dot.ODD_BITS)


@pytest.mark.parametrize("wide", [False, True])
def test_long_sums_taken_in_pieces_are_exact(wide, monkeypatch, assert_same):
    monkeypatch.setattr(exact_dot, "PIECE", 64)
    monkeypatch.setattr(exact_dot, "TILE", 8)
    rng = np.random.default_rng(1)
    a, b = (np.ldexp(rng.standard_normal((5, 300)), rng.integers(-30, 30, (5, 300))) for _ in range(2))
    if not wide:
        a, b = np.float32(a), np.float32(b)
    a[:, 150:], b[:, 150:] = a[:, :150], -b[:, :150]
    a[0, 7], b[2, :] = 0.0, -0.0
    for block, mode in product((None, 100), ("nearest_even", "down")):
        accumulator = Accumulator("float32", mode, block=block)
        assert_same(dot(a, b, accumulator), by_definition(a, b, accumulator))


def test_float64_operands_enter_exactly(assert_same):
    rng = np.random.default_rng(2)
    a, b = (rng.standard_normal((40, 9)) * np.ldexp(1.0, rng.integers(-400, 400, (40, 9))) for _ in range(2))
    for block, products in product((1, 2, 4, None), ("exact", "rounded")):
        accumulator = Accumulator(
            Format(precision=30, emin=-400, emax=400), "up", block=block, products=products
        )
        assert_same(dot(a, b, accumulator), by_definition(a, b, accumulator))


@pytest.mark.parametrize(
    ("fmt", "scale", "pairs"),
    [("float8_e4m3fn", 1.0, 1), ("bfloat16", 2.0**-6, 1), ("bfloat16", 2.0**-20, 4)],
)
def test_both_ways_to_an_exact_sum_agree(fmt, scale, pairs, monkeypatch, assert_same):
    rng = np.random.default_rng(3)
    a, b = round_to(rng.standard_normal((40, 64)), fmt), round_to(rng.standard_normal((64, 30)), fmt)
    a[3], b[:, 4], a[:, 5], b[7] = 0.0, -0.0, a[:, 5] * scale, b[7] * scale
    taken = []
    sliced = exact_dot._slices

    def watched(a, b, most):
        slices = sliced(a, b, most)
        taken.append(len(slices[0]) * len(slices[1]) if slices is not None else 0)
        return slices

    monkeypatch.setattr(exact_dot, "_slices", watched)
    accumulator = Accumulator("float32", "down", block=32)
    by_slices = matmul(a, b, accumulator)
    assert max(taken) == pairs
    monkeypatch.setattr(exact_dot, "_slices", lambda a, b, most: None)
    assert_same(by_slices, matmul(a, b, accumulator))


@pytest.mark.parametrize("length", [6, 32, 200])
def test_slices_are_short_enough_for_what_cancels(length, assert_same):
    rng = np.random.default_rng(14)
    half = rng.integers(2**23, 2**24, (2, 20, length // 2)) * 2.0 ** rng.integers(-3, 3, (2, 20, length // 2))
    a, b = np.concatenate([half[0], half[0] + 0.125], axis=1), np.concatenate([half[1], -half[1]], axis=1)
    assert_products(
        a, b, Accumulator(Format(precision=45, emin=-100, emax=200), "up", block=None), assert_same
    )


def test_slices_are_short_enough_for_a_sum_that_fills_them(assert_same):
    a, b = np.random.default_rng(15).integers(2**25 - 2**16, 2**25, (2, 200, 32))  # sums of 55 bits
    assert_products(
        a, b, Accumulator(Format(precision=50, emin=-100, emax=200), "up", block=None), assert_same
    )


# -- special cases of the model ---------------------------------------------------------------------------
ONES = [1.0, 1.0, 1.0, 1.0]
BIG = [60000.0, 60000.0, -60000.0, -60000.0]
#: 2048 + 1 + 1 + 1 + 1; in pairs ((2048 + 1) + (1 + 1)) + 1: 11 bits lose 2049's last bit.
FIVE = [2048.0, *ONES]


@pytest.mark.parametrize(
    ("terms", "fmt", "rounding", "options", "expected"),
    [
        # An overflow within a block comes back, and one at its end stays.
        (BIG, "float16", "nearest_even", {"block": 4}, 0.0),
        (BIG, "float16", "nearest_even", {"block": 2}, math.inf),
        (BIG, "float16", "nearest_even", {"block": 2, "order": "pairwise"}, math.nan),
        (BIG, "float16", Rounding(overflow="saturate"), {"block": 2}, 65504.0 - 120000.0),
        # An odd one out waits for the next level.
        (FIVE, "float16", "toward_zero", {"block": 1, "order": "pairwise"}, 2050.0),
        (FIVE, "float16", "toward_zero", {"block": 1}, 2048.0),
        (FIVE, "float16", "toward_zero", {"block": 1, "lanes": 2}, 2050.0),
        # The sign of a sum that is zero.
        ([-0.0, -0.0], "float32", "nearest_even", {}, -0.0),
        ([0.0, -0.0], "float32", "nearest_even", {}, 0.0),
        ([1.0, -1.0], "float32", "nearest_even", {}, 0.0),
        ([], "float32", "nearest_even", {}, 0.0),
        ([-0.0, -0.0], "float32", "down", {}, -0.0),
        ([0.0, -0.0], "float32", "down", {}, -0.0),
        ([0.0, 0.0], "float32", "down", {}, 0.0),
        ([1.0, -1.0], "float32", "down", {}, -0.0),
        ([], "float32", "down", {}, 0.0),
        # The spacing of bfloat16 is 2 at 256: an addition of 1 is a tie there, and stays.
        (ONES * 512, "bfloat16", "nearest_even", {"block": 1}, 256.0),
        (ONES * 512, "bfloat16", "nearest_even", {"block": 4}, 1024.0),
        (ONES * 512, "bfloat16", "nearest_even", {"block": 1, "order": "pairwise"}, 2048.0),
    ],
)
def test_by_hand(terms, fmt, rounding, options, expected, assert_same):
    accumulator = Accumulator(fmt, rounding, **{"block": None, **options})
    assert_same(dot(terms, np.ones(len(terms)), accumulator), expected)


def test_a_zero_is_added_with_its_sign_and_products_of_float64_are_rounded_once(assert_same):
    plain = Accumulator("float32", block=None)
    assert_same([dot([-0.0], [1.0], plain, c=c) for c in (0.0, -0.0)], [0.0, -0.0])
    wide = Format(precision=30, emin=-99, emax=99)
    accumulator = Accumulator(wide, "toward_zero", block=1, products="rounded")
    assert dot([1 + 2.0**-30], [1 - 2.0**-30], accumulator) == 1 - 2.0**-30


# -- stochastic rounding ----------------------------------------------------------------------------------
def chain_of_words(a, b, accumulator, random):
    """Return sequential dot products, each rounding with the words of the next stream."""
    total, bits = [0.0] * len(a), accumulator.rounding.random_bits
    for place, start in enumerate(range(0, a.shape[1], accumulator.block)):
        part = slice(start, start + accumulator.block)
        words = random.of(place).draws(0, len(a), bits)
        for i, (p, q) in enumerate(zip(a[:, part].tolist(), b[:, part].tolist(), strict=True)):
            exact = Fraction(total[i]) + sum(Fraction(x) * Fraction(y) for x, y in zip(p, q, strict=True))
            total[i] = up_or_down(exact, accumulator.format, int(words[i]) >> 16 - bits)
    return total


def up_or_down(value, fmt, word, bits=8):
    """Round by the rule truncate: away from zero if the fraction, cut to so many bits, and the word carry."""
    low = round_fraction(value, fmt, Rounding("toward_zero"))
    if Fraction(low) == value:
        return low
    high = round_fraction(value, fmt, Rounding("up" if value > 0 else "down"))
    fraction = (value - Fraction(low)) / (Fraction(high) - Fraction(low))
    return high if math.floor(fraction * 2**bits) + word >= 2**bits else low


def test_stochastic_roundings_take_a_stream_each_in_order(assert_same):
    rng = np.random.default_rng(7)
    a, b = round_to(rng.standard_normal((2, 300, 10)), "bfloat16")
    accumulator = Accumulator("bfloat16", Rounding("stochastic", random_bits=8), block=3)
    random = RandomWords(1, 2, 3)
    result = dot(a, b, accumulator, random=random)
    assert_same(result, chain_of_words(a, b, accumulator, random))
    assert not np.array_equal(result, dot(a, b, accumulator, random=RandomWords(2)))


@pytest.mark.parametrize("order", ["sequential", "pairwise"])
@pytest.mark.parametrize("products", ["exact", "rounded"])
@pytest.mark.sampled(4)
@pytest.mark.slow
def test_stochastic_results_depend_on_no_tile_or_thread(order, products, monkeypatch, assert_same):
    rng = np.random.default_rng(8)
    a, b = round_to(rng.standard_normal((3, 17, 12)), "fp16"), round_to(rng.standard_normal((12, 13)), "fp16")
    accumulator = Accumulator("float16", "stochastic", block=5, order=order, products=products)
    whole = matmul(a, b, accumulator, random=RandomWords(4))
    for tile in (5, 13, 221):
        monkeypatch.setattr(exact_dot, "TILE", tile)
        assert_same(matmul(a, b, accumulator, random=RandomWords(4), threads=3), whole)


@pytest.mark.parametrize(
    ("length", "expected", "options"),
    [
        (10, 4, {"block": 3}),
        (10, 7, {"block": 3, "order": "pairwise"}),
        (10, 5, {"block": 3, "lanes": 2}),
        (10, 14, {"block": 3, "products": "rounded"}),
        (10, 1, {"block": None}),
        (0, 1, {"block": 4}),
        (2, 3, {"block": 2, "products": "rounded", "lanes": 9}),
    ],
)
def test_the_count_of_roundings_is_that_of_the_streams(length, expected, options, monkeypatch):
    accumulator = Accumulator("float16", "stochastic", **options)
    drawn = []
    original = RandomWords.draws
    monkeypatch.setattr(
        RandomWords, "draws", lambda self, *place: (drawn.append(self.operation), original(self, *place))[1]
    )
    dot(np.ones(length), np.ones(length), accumulator, random=RandomWords(0))
    assert drawn == list(range(expected))
    assert accumulator.roundings(length) == expected


# -- shapes, layouts and types ------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((3,), (3,)),
        ((4, 3), (3,)),
        ((3,), (3, 5)),
        ((4, 3), (3, 5)),
        ((2, 4, 3), (3, 5)),
        ((4, 3), (2, 3, 5)),
        ((2, 1, 4, 3), (6, 3, 5)),
        ((2, 4, 3), (2, 3)[1:]),
        ((3,), (2, 3, 5)),
        ((0, 3), (3, 5)),
        ((2, 4, 0), (0, 5)),
        ((4, 0), (0, 5)),
        ((0, 4, 3), (3, 5)),
        ((2, 4, 3), (2, 3, 0)),
    ],
    ids=str,
)
def test_shapes_broadcast_as_those_of_numpy(left, right, monkeypatch):
    rng = np.random.default_rng(9)
    a, b = (rng.integers(-9, 9, shape).astype(np.float32) for shape in (left, right))
    expected = a @ b  # integers, so that NumPy's sums are exact
    for tile in (1, 7, 1 << 15):
        monkeypatch.setattr(exact_dot, "TILE", tile)
        result = matmul(a, b, Accumulator("float32", block=2), c=1.0)
        assert np.shape(result) == expected.shape
        assert np.array_equal(result, expected + 1)
        assert result.dtype == np.float32


def test_c_broadcasts_to_the_result():
    a, b = np.ones((2, 4, 3)), np.ones((2, 3, 5))
    for shape in ((), (5,), (4, 1), (2, 1, 1), (2, 4, 5)):
        c = np.arange(math.prod(shape), dtype=np.float32).reshape(shape)
        assert np.array_equal(matmul(a, b, Accumulator("float32", block=1), c=c), a @ b + c)
    assert np.array_equal(dot(a[0], a[0], Accumulator("float32", block=1), c=[1, 2, 3, 4]), [4, 5, 6, 7])


def test_matrix_products_are_dot_products_of_rows_and_columns(assert_same):
    rng = np.random.default_rng(10)
    a = round_to(rng.standard_normal((190, 21)), "bfloat16")
    b = round_to(rng.standard_normal((21, 210)), "bfloat16")
    a[3, 4], a[5, 6], b[4, 9], b[6, 209] = np.inf, np.nan, 0.0, -np.inf
    accumulator = Accumulator("float32", "toward_zero", block=8)
    assert a.shape[0] * b.shape[1] > exact_dot.TILE
    result = matmul(a, b, accumulator, threads=2)
    assert_same(result, dot(a[:, np.newaxis], b.T, accumulator))
    assert_same(result[::40, 7], by_definition(a[::40], np.tile(b[:, 7], (5, 1)), accumulator))


def test_layout_and_byte_order_do_not_matter(assert_same):
    rng = np.random.default_rng(11)
    a, b = round_to(rng.standard_normal((6, 9)), "bf16"), round_to(rng.standard_normal((9, 7)), "bf16")
    accumulator = Accumulator("bfloat16", block=2)
    expected = matmul(a, b, accumulator)
    assert_same(matmul(np.asfortranarray(a), b[:, ::-1], accumulator)[:, ::-1], expected)
    assert_same(matmul(np.repeat(a, 2, axis=1)[:, ::2], b.astype(">f4"), accumulator), expected)
    assert_same(matmul(a.astype(ml_dtypes.bfloat16), b.astype(np.float64), accumulator), expected)


def test_integers_are_taken_as_they_are(assert_same):
    rng = np.random.default_rng(12)
    a, b = rng.integers(-128, 128, (2, 20, 50)).astype(np.int8)
    assert_same(dot(a, b, Accumulator("float32", block=16)), (a.astype(int) * b).sum(axis=1))
    assert dot(np.array([2**53]), np.array([1]), Accumulator("float32", block=1)) == 2.0**53


def test_the_result_is_rounded_once_more_into_the_output_format_and_has_its_carrier(assert_same):
    a, b = round_to(np.random.default_rng(13).standard_normal((2, 400, 9)), "float8_e4m3fn")
    accumulator = Accumulator("float32", block=4)
    result = dot(a, b, accumulator, out_format="float8_e5m2", out_rounding="up")
    assert_same(result, round_to(dot(a, b, accumulator), "float8_e5m2", "up"))
    wide = Accumulator(Format(precision=30, emin=-100, emax=100), block=1)
    assert matmul(a, a.T, wide).dtype == np.float64
    assert matmul(a, a.T, wide, out_format="bf16").dtype == np.float32
    assert isinstance(dot(a[0], a[0], Accumulator("bf16", block=1)), np.float32)


# -- what is refused ----------------------------------------------------------------------------------------
BLOCK_1 = Accumulator("float32", block=1)


def ones(*shape):
    return np.ones(shape)


@pytest.mark.parametrize(
    ("call", "operands", "options", "message"),
    [
        (
            matmul,
            (ones(2, 3), ones(2, 3)),
            {},
            r"\(2, 3\) and \(2, 3\) .*3 columns on the left, 2 rows on the right",
        ),
        (
            matmul,
            (ones(2, 1, 1), ones(3, 1, 1)),
            {},
            r"stacks of shapes \(2, 1, 1\) and \(3, 1, 1\) do not broad",
        ),
        (matmul, (ones(3), 2.0), {}, "b is a number"),
        (
            matmul,
            (ones(2, 2), ones(2, 2)),
            {"c": ones(3)},
            r"c of shape \(3,\) does not broadcast to .*\(2, 2\)",
        ),
        (dot, (ones(3), ones(4)), {}, r"shapes \(3,\) and \(4,\) .*length of a last axis"),
        (dot, (ones(2, 3), ones(4, 3)), {}, r"shapes \(2, 3\) and \(4, 3\) do not broadcast"),
        (dot, (ones(2, 3), ones(3)), {"c": ones(3)}, r"c of shape \(3,\) does not broadcast to .*\(2,\)"),
        (dot, (ones(3), ones(3)), {"out_rounding": "up"}, "out_rounding='up' is for an out_format"),
        (dot, (ones(3), ones(3)), {"threads": 0}, "threads = 0"),
        (dot, (ones(2), [1.0, 2.0**451]), {}, r"b\[1\] = .*within 2\*\*\+-450"),
        (dot, (ones(2), [1.0, 2.0**-451]), {}, r"b\[1\] = .*within 2\*\*\+-450"),
        (dot, (np.array([1, 2**53 + 1]), np.array([1, 1])), {}, r"a\[1\] = .*2\*\*53 at most"),
    ],
)
def test_operands_of_no_use_are_named(call, operands, options, message):
    with pytest.raises(ValueError, match=message):
        call(*operands, BLOCK_1, **options)


def test_what_is_no_operand_or_accumulator_is_refused():
    for bad in (np.ones(2, complex), np.ones(2, bool), ["a", "b"], np.ones(2, np.longdouble)):
        with pytest.raises(TypeError, match=r"a of dtype .* does not hold real numbers"):
            dot(bad, np.ones(2), BLOCK_1)
    with pytest.raises(TypeError, match="must be an Accumulator, not 'float32'"):
        dot(np.ones(2), np.ones(2), "float32")
    with pytest.raises(ValueError, match="stochastic rounding needs random"):
        dot(np.ones(2), np.ones(2), Accumulator("float32", "stochastic", block=1))


LONG = Rounding("stochastic", random_bits=32)


@pytest.mark.parametrize(
    ("error", "message", "options"),
    [
        (ValueError, "block = 0 must be at least 1", {"block": 0}),
        (TypeError, "block must be an int, not 2.0", {"block": 2.0}),
        (TypeError, "lanes must be an int, not None", {"lanes": None}),
        (ValueError, "unknown order 'tree'; allowed: sequential, pairwise", {"order": "tree"}),
        (ValueError, "unknown products 'once'; allowed: exact, rounded", {"products": "once"}),
        (ValueError, "lanes = 2 are for sequential", {"lanes": 2, "order": "pairwise"}),
        (ValueError, "flush_inputs", {"rounding": Rounding(underflow="flush_inputs")}),
        # Formats whose sums are not exact in binary64.
        (UnsupportedFormatError, "34 guard bits exceed 52", {"rounding": LONG}),
        (UnsupportedFormatError, "float64.* 2 guard bits exceed 52", {"format": "float64"}),
        (UnsupportedFormatError, "beyond", {"format": Format(precision=10, emin=-500, emax=10)}),
    ],
)
def test_an_accumulator_that_makes_no_sense_is_refused(error, message, options):
    with pytest.raises(error, match=message):
        Accumulator(**{"format": "float32", "block": 1, **options})
