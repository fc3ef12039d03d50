"""Dot and matrix products with a stated accumulator, against the model computed with fractions."""

import math
from fractions import Fraction
from functools import partial
from itertools import cycle, product

import ml_dtypes
import numpy as np
import pytest

from mcfsim.convert import round_to
from mcfsim.formats import FORMATS, Format
from mcfsim.kernels import exact_dot
from mcfsim.kernels.carriers import UnsupportedFormatError
from mcfsim.oracle import round_fraction
from mcfsim.products import Accumulator, dot, matmul
from mcfsim.random import RandomWords
from mcfsim.rounding import Rounding
from tests.oracle.operands import FLUSHING, MODES, label
from tests.products.model import by_definition, hard_rows, number
from tests.shared.refusals import check, refusals, refused

ACCUMULATORS = [
    *(FORMATS[name] for name in ("float32", "float16", "bfloat16", "float8_e5m2", "float8_e4m3fn")),
    *(FORMATS[name] for name in ("float8_e8m0fnu", "float8_e4m3fnuz", "float4_e2m1fn")),
    *(Format(precision=50, emin=-300, emax=300), Format(precision=2, emin=-3, emax=3)),
]
FLUSHED = [rounding for rounding in FLUSHING if rounding.underflow != "flush_inputs"]
INPUTS = [FORMATS[name] for name in ("bfloat16", "float16", "float8_e5m2", "float8_e4m3fn", "float32")]
BLOCKS = (1, 2, 3, 4, 8, 16, None)
LENGTHS = (0, 1, 5, 16, 33)


@pytest.mark.parametrize("rounding", [*MODES, Rounding("nearest_even", "saturate"), *FLUSHED[::5]], ids=label)
@pytest.mark.parametrize("fmt", ACCUMULATORS, ids=label)
@pytest.mark.sampled(150, each=False)
@pytest.mark.slow
def test_dot_products_are_those_of_the_model(fmt, rounding, assert_same):
    for seed, (source, length) in enumerate(product(INPUTS, LENGTHS)):
        a, b = hard_rows(source, fmt, length, 4, seed)
        c = None if seed % 3 else number(fmt, np.random.default_rng(seed), 4, -20, 20)
        for choice, block in enumerate(BLOCKS[seed % 3 :: 3]):
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
        *(([-0.0, -0.0], "float32", mode, {}, -0.0) for mode in ("nearest_even", "down")),
        *(([1.0, -1.0], "float32", mode, {}, zero) for mode, zero in (("nearest_even", 0.0), ("down", -0.0))),
        ([1.0, -1.0], "float32", "down", {"block": 1, "order": "pairwise"}, -0.0),
        *(([], "float32", mode, {}, 0.0) for mode in ("nearest_even", "down")),
        # The spacing of bfloat16 is 2 at 256: an addition of 1 is a tie there, and stays.
        (ONES * 512, "bfloat16", "nearest_even", {"block": 1}, 256.0),
        (ONES * 512, "bfloat16", "nearest_even", {"block": 4}, 1024.0),
        (ONES * 512, "bfloat16", "nearest_even", {"block": 1, "order": "pairwise"}, 2048.0),
    ],
)
def test_by_hand(terms, fmt, rounding, options, expected, assert_same):
    accumulator = Accumulator(fmt, rounding, **{"block": None, **options})
    assert_same(dot(terms, np.ones(len(terms)), accumulator), expected)


def test_a_zero_is_added_with_its_sign(assert_same):
    plain = Accumulator("float32", block=None)
    assert_same([dot([-0.0], [1.0], plain, c=c) for c in (0.0, -0.0)], [0.0, -0.0])


# -- stochastic rounding ----------------------------------------------------------------------------------
def up_or_down(value, fmt, word, bits):
    """Round by the rule truncate: away from zero if the fraction, cut to so many bits, and the word carry."""
    low = round_fraction(value, fmt, Rounding("toward_zero"))
    if Fraction(low) == value:
        return low
    high = round_fraction(value, fmt, Rounding("up" if value > 0 else "down"))
    fraction = (value - Fraction(low)) / (Fraction(high) - Fraction(low))
    return high if math.floor(fraction * 2**bits) + word >= 2**bits else low


@pytest.mark.slow
def test_stochastic_roundings_take_a_stream_each_in_order(assert_same):
    a, b = round_to(np.random.default_rng(7).standard_normal((2, 300, 10)), "bfloat16")
    accumulator = Accumulator("bfloat16", Rounding("stochastic", random_bits=8), block=3)
    random = RandomWords(1, 2, 3)
    total = [0.0] * len(a)
    for place in range(4):
        part, words = slice(3 * place, 3 * place + 3), random.of(place).draws(0, len(a), 8)
        for i, (p, q) in enumerate(zip(a[:, part].tolist(), b[:, part].tolist(), strict=True)):
            exact = Fraction(total[i]) + sum(Fraction(x) * Fraction(y) for x, y in zip(p, q, strict=True))
            total[i] = up_or_down(exact, accumulator.format, int(words[i]) >> 8, 8)
    assert_same(dot(a, b, accumulator, random=random), total)
    assert not np.array_equal(total, dot(a, b, accumulator, random=RandomWords(2)))


@pytest.mark.parametrize("order", ["sequential", "pairwise"])
@pytest.mark.parametrize("products", ["exact", "rounded"])
@pytest.mark.sampled(4, each=False)
@pytest.mark.slow
def test_stochastic_results_depend_on_no_tile_or_thread(order, products, monkeypatch, assert_same):
    rng = np.random.default_rng(8)
    a, b = round_to(rng.standard_normal((2, 9, 12)), "fp16"), round_to(rng.standard_normal((12, 7)), "fp16")
    accumulator = Accumulator("float16", "stochastic", block=5, order=order, products=products)
    whole = matmul(a, b, accumulator, random=RandomWords(4))
    for tile in (5, 7, 63):
        monkeypatch.setattr(exact_dot, "TILE", tile)
        assert_same(matmul(a, b, accumulator, random=RandomWords(4), threads=3), whole)


@pytest.mark.parametrize(
    ("length", "expected", "options"),
    [
        *((10, 4, {"block": 3}), (10, 5, {"block": 3, "lanes": 2}), (10, 1, {"block": None})),
        *((10, 7, {"block": 3, "order": "pairwise"}), (10, 14, {"block": 3, "products": "rounded"})),
        (0, 1, {"block": 4}),
        (2, 3, {"block": 2, "products": "rounded", "lanes": 9}),
    ],
)
def test_the_count_of_roundings_is_that_of_the_streams(length, expected, options, monkeypatch):
    accumulator, drawn, draws = Accumulator("float16", "stochastic", **options), [], RandomWords.draws
    watched = lambda self, *place: drawn.append(self.operation) or draws(self, *place)  # noqa: E731
    monkeypatch.setattr(RandomWords, "draws", watched)
    dot(np.ones(length), np.ones(length), accumulator, random=RandomWords(0))
    assert drawn == list(range(expected))
    assert accumulator.roundings(length) == expected


# -- shapes, layouts and types ------------------------------------------------------------------------------
SHAPES = [
    *(((3,), (3,)), ((4, 3), (3,)), ((3,), (3, 5)), ((4, 3), (3, 5)), ((2, 4, 3), (3, 5))),
    *(((4, 3), (2, 3, 5)), ((2, 1, 4, 3), (6, 3, 5)), ((2, 4, 3), (3,)), ((3,), (2, 3, 5))),
    *(((0, 3), (3, 5)), ((2, 4, 0), (0, 5)), ((4, 0), (0, 5)), ((0, 4, 3), (3, 5)), ((2, 4, 3), (2, 3, 0))),
]


@pytest.mark.parametrize(("left", "right"), SHAPES, ids=str)
def test_shapes_broadcast_as_those_of_numpy(left, right, monkeypatch):
    rng = np.random.default_rng(9)
    a, b = (rng.integers(-9, 9, shape).astype(np.float32) for shape in (left, right))
    whole = a @ b  # integers, so that NumPy's sums are exact
    # Summands: one number, and of every shape that broadcasts to the result's.
    added = [1.0, *(rng.integers(-9, 9, np.shape(whole)[i:]) for i in range(np.ndim(whole) + 1))]
    for tile, c in zip(cycle((7, 1, 1 << 15)), added, strict=False):
        monkeypatch.setattr(exact_dot, "TILE", tile)
        result = matmul(a, b, Accumulator("float32", block=2), c=c)
        assert np.shape(result) == np.shape(whole)
        assert np.array_equal(result, whole + c)
        assert result.dtype == np.float32


@pytest.mark.slow
def test_matrix_products_are_dot_products_of_rows_and_columns_in_any_layout(assert_same):
    rng = np.random.default_rng(10)
    a = round_to(rng.standard_normal((190, 21)), "bfloat16")
    b = round_to(rng.standard_normal((21, 210)), "bfloat16")
    a[3, 4], a[5, 6], b[4, 9], b[6, 209] = np.inf, np.nan, 0.0, -np.inf
    accumulator = Accumulator("float32", "toward_zero", block=8)
    assert a.shape[0] * b.shape[1] > exact_dot.TILE
    result = matmul(a, b, accumulator, threads=2)
    assert_same(result, dot(a[:, np.newaxis], b.T, accumulator))
    assert_same(result[::40, 7], by_definition(a[::40], np.tile(b[:, 7], (5, 1)), accumulator))
    assert_same(matmul(np.asfortranarray(a), b[:, ::-1], accumulator)[:, ::-1], result)
    assert_same(matmul(a.astype(ml_dtypes.bfloat16), b.astype(">f8"), accumulator), result)


def test_integers_are_taken_as_they_are(assert_same):
    a, b = np.random.default_rng(12).integers(-128, 128, (2, 20, 50)).astype(np.int8)
    assert_same(dot(a, b, Accumulator("float32", block=16)), (a.astype(int) * b).sum(axis=1))
    assert dot(np.array([2**53]), np.array([1]), Accumulator("float32", block=1)) == 2.0**53


def test_the_result_is_rounded_once_more_into_the_output_format_and_has_its_carrier(assert_same):
    a, b = round_to(np.random.default_rng(13).standard_normal((2, 400, 9)), "float8_e4m3fn")
    accumulator = Accumulator("float32", block=4)
    result = dot(a, b, accumulator, out_format="float8_e5m2", out_rounding="up")
    assert_same(result, round_to(dot(a, b, accumulator), "float8_e5m2", "up"))
    wide = Accumulator(Format(precision=30, emin=-100, emax=100), block=1)
    assert dot(a, a, wide).dtype == np.float64
    assert dot(a, a, wide, out_format="bf16").dtype == np.float32
    assert isinstance(dot(a[0], a[0], Accumulator("bf16", block=1)), np.float32)


# -- what is refused ----------------------------------------------------------------------------------------
BLOCK_1 = Accumulator("float32", block=1)
TWO, THREE, SQUARE, TALL = np.ones(2), np.ones(3), np.ones((2, 2)), np.ones((2, 3))


@refusals(
    refused(ValueError, "3 columns on the left, 2 rows on the right", matmul, (TALL, TALL, BLOCK_1)),
    refused(ValueError, "stacks of .* do not broad", matmul, (TALL[:, None], np.ones((4, 3, 1)), BLOCK_1)),
    refused(ValueError, "b is a number", matmul, (THREE, 2.0, BLOCK_1)),
    refused(ValueError, r"shapes \(3,\) and \(2,\) .*length of a last axis", dot, (THREE, TWO, BLOCK_1)),
    refused(ValueError, r"shapes \(2, 3\) and \(4, 3\) do not", dot, (TALL, np.ones((4, 3)), BLOCK_1)),
    refused(ValueError, r"c of .* \(2, 2\)", partial(matmul, c=THREE), (SQUARE, SQUARE, BLOCK_1)),
    refused(ValueError, r"c of .*\(3,\) does not .*\(2,\)", partial(dot, c=THREE), (TALL, THREE, BLOCK_1)),
    refused(ValueError, "is for an out_format", partial(dot, out_rounding="up"), (TWO, TWO, BLOCK_1)),
    refused(ValueError, "threads = 0", partial(dot, threads=0), (TWO, TWO, BLOCK_1)),
    refused(ValueError, r"b\[1\] = .*within 2\*\*\+-450", dot, (TWO, [1.0, 2.0**451], BLOCK_1)),
    refused(ValueError, r"b\[1\] = .*within 2\*\*\+-450", dot, (TWO, [1.0, 2.0**-451], BLOCK_1)),
    refused(ValueError, r"a\[1\] = .*2\*\*53 at most", dot, (np.array([1, 2**53 + 1]), TWO, BLOCK_1)),
)
def test_operands_of_no_use_are_named(rows):
    check(rows)


LONG = Rounding("stochastic", random_bits=32)


@refusals(
    refused(TypeError, "must be an Accumulator, not 'float32'", dot, (TWO, TWO, "float32")),
    refused(ValueError, "needs random", dot, (TWO, TWO, Accumulator("float32", "stochastic", block=1))),
    *(
        refused(error, message, lambda x=options: Accumulator(**{"format": "float32", "block": 1, **x}), ())
        for error, message, options in (
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
        )
    ),
)
def test_an_accumulator_that_makes_no_sense_is_refused(rows):
    check(rows)
