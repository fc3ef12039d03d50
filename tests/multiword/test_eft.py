"""Error-free transformations: sums and products checked in integers, where they are exact and where not."""

import itertools

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.formats import FORMATS, Format
from mcfsim.oracle import operate_integers, same
from mcfsim.rounding import Rounding
from mcfsim.storage.buffers import BLOCK
from tests.oracle.operands import MODES, SMALL_FORMATS, label, magnitudes, random_tuples, values

E4M3FN, E5M2, BF16, FP16, TF32 = (
    FORMATS[name] for name in ("float8_e4m3fn", "float8_e5m2", "bfloat16", "float16", "tf32")
)
NEARESTS = [Rounding("nearest_even"), Rounding("nearest_away")]
FAITHFUL = [rounding for rounding in MODES if rounding not in NEARESTS]
CHUNK = 2**20


def integers(x, unit):
    """Return floats as multiples of a power of two (an array of exponents), exactly."""
    scaled = np.ldexp(np.asarray(x, dtype=np.float64), -unit)
    whole = scaled.astype(np.int64)
    assert (whole == scaled).all()
    return whole


def exponent(x):
    return np.frexp(x)[1] - 1


def unit_of(fmt, a, b):
    """Return the exponent of the last place of the smaller of two numbers."""
    e = np.minimum(np.where(a == 0, fmt.emax, exponent(a)), np.where(b == 0, fmt.emax, exponent(b)))
    return np.maximum(e, fmt.emin) - fmt.precision + 1


def sum_is_exact(fmt, a, b, s, e):
    """Return where ``s + e == a + b``, for exponents at most 40 apart, in integers."""
    unit = unit_of(fmt, a, b)
    with np.errstate(over="ignore"):  # e may have bits below the unit if it is no exact error
        fits = np.abs(np.ldexp(s, -unit)) < 2.0**53
    assert fits.all()
    scaled = np.ldexp(e, -unit)
    whole = scaled == np.rint(scaled)
    total = integers(a, unit) + integers(b, unit)
    return whole & (integers(s, unit) + np.rint(scaled).astype(np.int64) == total)


def finite_pairs(fmt):
    """Return all pairs of finite numbers, as flat arrays."""
    x = values(fmt)
    x = x[np.isfinite(x)]
    return [part.ravel() for part in np.meshgrid(x, x, indexing="ij")]


def fixed_point(fmt, x):
    """Return numbers of a short format as multiples of its smallest subnormal."""
    return integers(x, fmt.emin - fmt.precision + 1)


# -- two_sum ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("rounding", NEARESTS, ids=label)
@pytest.mark.parametrize("fmt", SMALL_FORMATS, ids=label)
def test_two_sum_of_all_pairs_is_exact(fmt, rounding):
    a, b = finite_pairs(fmt)
    s, e = mcf.two_sum(mcf.arithmetic(fmt, rounding), a, b)
    exact = fixed_point(fmt, a) + fixed_point(fmt, b)
    # A sum in range of a first operand of the largest magnitude may overflow on the way; NaN tells of it.
    inside = np.abs(exact) <= fixed_point(fmt, float(fmt.max))
    robust = inside & (np.abs(a) < float(fmt.max))
    assert np.isfinite(e[robust]).all()
    sure = inside & np.isfinite(e)
    assert np.array_equal(fixed_point(fmt, s[sure]) + fixed_point(fmt, e[sure]), exact[sure])


@pytest.mark.parametrize(
    "seeds", [range(1), pytest.param(range(1, 10), marks=pytest.mark.exhaustive)], ids=len
)
@pytest.mark.parametrize("rounding", NEARESTS, ids=label)
@pytest.mark.parametrize("fmt", [BF16, FP16, TF32], ids=label)
@pytest.mark.sampled(4)
@pytest.mark.slow
def test_two_sum_of_millions_of_pairs_is_exact(fmt, rounding, seeds, assert_same):
    ar = mcf.arithmetic(fmt, rounding)
    for seed in seeds:
        a, b = random_tuples(fmt, CHUNK, 2, seed)
        finite = np.isfinite(a) & np.isfinite(b) & (np.abs(a) < float(fmt.max))
        a, b = a[finite], b[finite]
        s, e = mcf.two_sum(ar, a, b)
        assert_same(s, operate_integers("add", a, b, fmt=fmt, rounding=rounding), a, b)
        finite = np.isfinite(s)
        a, b, s, e = (x[finite].astype(np.float64) for x in (a, b, s, e))
        near = (np.abs(exponent(a) - exponent(b)) <= 40) | (a == 0) | (b == 0)
        assert sum_is_exact(fmt, *(x[near] for x in (a, b, s, e))).all()
        # Further apart the larger operand is the sum and the smaller the error.
        a, b, s, e = (x[~near] for x in (a, b, s, e))
        larger = np.abs(a) > np.abs(b)
        assert_same(s, np.where(larger, a, b), a, b)
        assert_same(e, np.where(larger, b, a), a, b)


def test_two_sum_may_overflow_on_the_way_where_the_first_operand_is_the_largest_number():
    ar = mcf.arithmetic("fp16")
    s, e = mcf.two_sum(ar, np.float32([-65504]), np.float32([48]))
    assert s == -65472  # -65456 lies half-way between it and -65440
    assert np.isnan(e)
    assert [float(x) for x in mcf.two_sum(ar, 48.0, -65504.0)] == [-65472.0, 16.0]


@pytest.mark.parametrize("pair", [(np.inf, 1.0), (1.0, -np.inf), (np.nan, 1.0), (3e38, 3e38)])
def test_the_error_of_a_sum_that_is_not_finite_is_nan(pair):
    a, b = (np.asarray(mcf.round_to(np.array([x]), "bf16")) for x in pair)
    s, e = mcf.two_sum(mcf.arithmetic("bf16"), a, b)
    assert not np.isfinite(s)
    assert np.isnan(e)


@pytest.mark.parametrize("rounding", FAITHFUL, ids=label)
@pytest.mark.parametrize("fmt", [E4M3FN, E5M2], ids=label)
def test_in_directed_modes_the_error_of_two_sum_is_off_by_2_u2_of_the_sum_at_most(fmt, rounding):
    a, b = finite_pairs(fmt)
    s, e = mcf.two_sum(mcf.arithmetic(fmt, rounding), a, b)
    exact = fixed_point(fmt, a) + fixed_point(fmt, b)
    finite = np.isfinite(s) & np.isfinite(e) & (np.abs(exact) <= fixed_point(fmt, float(fmt.max)))
    assert finite.mean() > 0.9
    off = np.abs(fixed_point(fmt, s[finite]) + fixed_point(fmt, e[finite]) - exact[finite])
    assert (off << (2 * fmt.precision) <= 2 * np.abs(exact[finite])).all()
    assert off.any()


def test_in_directed_modes_the_error_of_a_sum_need_not_be_representable():
    # 1 + 129 * 2**-16 rounds up to 1 + 2**-7; the error is -383 * 2**-16, of 9 bits.
    a, b = np.float32([1.0]), np.float32([129 * 2.0**-16])
    s, e = mcf.two_sum(mcf.arithmetic("bf16", "up"), a, b)
    assert s == 1 + 2.0**-7
    assert mcf.round_to(np.array([-383 * 2.0**-16]), "bf16") != -383 * 2.0**-16
    assert s.astype(np.float64) + e != a.astype(np.float64) + b


# -- fast_two_sum -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("rounding", NEARESTS, ids=label)
@pytest.mark.parametrize("fmt", SMALL_FORMATS, ids=label)
def test_fast_two_sum_is_exact_if_the_first_is_a_multiple_of_the_seconds_ulp(fmt, rounding):
    a, b = finite_pairs(fmt)
    s, e = mcf.fast_two_sum(mcf.arithmetic(fmt, rounding), a, b)
    x, y = fixed_point(fmt, a), fixed_point(fmt, b)
    inside = np.abs(x + y) <= fixed_point(fmt, float(fmt.max))
    ulp = np.int64(1) << np.maximum(np.where(b == 0, fmt.emin, exponent(b)) - fmt.emin, 0)
    multiple = (x % ulp == 0) & inside
    for condition in (
        (np.abs(a) >= np.abs(b)) | (a == 0),
        (exponent(a) >= exponent(b)) & (b != 0) & (a != 0),
    ):
        assert multiple[condition & inside].all()  # the stronger conditions imply the weakest
    assert np.isfinite(e[multiple]).all()
    exact = np.zeros(a.shape, bool)
    sure = inside & np.isfinite(e)
    exact[sure] = fixed_point(fmt, s[sure]) + fixed_point(fmt, e[sure]) == (x + y)[sure]
    assert exact[multiple].all()
    if fmt.precision > 2:
        assert not exact[inside & ~multiple].all()


@pytest.mark.parametrize("rounding", NEARESTS, ids=label)
@pytest.mark.parametrize("fmt", [BF16, FP16, TF32], ids=label)
@pytest.mark.sampled(4)
@pytest.mark.slow
def test_fast_two_sum_of_ordered_pairs_is_two_sum(fmt, rounding, assert_same):
    ar = mcf.arithmetic(fmt, rounding)
    a, b = random_tuples(fmt, CHUNK, 2, seed=11)
    a, b = np.where(np.abs(a) >= np.abs(b), a, b), np.where(np.abs(a) >= np.abs(b), b, a)
    ordered = np.isfinite(a) & np.isfinite(b) & (np.abs(a) < float(fmt.max))
    a, b = a[ordered], b[ordered]
    for fast, plain in zip(mcf.fast_two_sum(ar, a, b), mcf.two_sum(ar, a, b), strict=True):
        finite = np.isfinite(plain)
        assert finite.mean() > 0.5
        assert np.array_equal(fast[finite], plain[finite])


@pytest.mark.parametrize("fmt", [Format(precision=8, emin=-14, emax=15), E5M2], ids=label)
def test_fast_two_sum_of_ordered_pairs_overflows_only_if_the_sum_does(fmt):
    top = magnitudes(fmt)[-(2 ** (fmt.precision + 1)) :]
    a, b = (x.ravel() for x in np.meshgrid(np.concatenate([top, -top]), np.concatenate([top, -top])))
    a, b = a[np.abs(a) >= np.abs(b)], b[np.abs(a) >= np.abs(b)]
    s, e = mcf.fast_two_sum(mcf.arithmetic(fmt), a, b)
    finite = np.isfinite(s)
    assert 0 < finite.sum() < finite.size
    assert np.isfinite(e[finite]).all()


@pytest.mark.parametrize(
    ("a", "b", "s", "e"),
    [
        (1, 512, 512, 0),  # loses the 1 altogether
        (1, 258, 260, -2),  # the true error is -1
        (3, 258, 260, 2),  # and here 1
    ],
)
def test_fast_two_sum_of_unordered_operands_loses_the_error(a, b, s, e):
    ar = mcf.arithmetic("bf16")
    assert mcf.fast_two_sum(ar, float(a), float(b)) == (s, e)
    assert s + e != a + b
    assert sum(mcf.two_sum(ar, float(a), float(b))) == a + b


def test_fast_two_sum_of_unordered_operands_may_be_exact():
    assert mcf.fast_two_sum(mcf.arithmetic("bf16"), 1.0, 256.0) == (256.0, 1.0)


def test_fast_two_sum_of_unordered_operands_is_off_by_nearly_u():
    ar = mcf.arithmetic("bf16")
    s, e = mcf.fast_two_sum(ar, 1.0, -258.0)
    assert 0.996 < abs(s + e - (1 - 258)) * 2**8 / 257 < 0.9962
    significands = np.arange(128.0, 256.0)
    a = significands[:, None, None]
    b = significands[:, None] * 2.0 ** np.arange(1, 21) * np.array([1.0, -1.0])[:, None, None, None]
    s, e = (x.astype(np.float64) for x in mcf.fast_two_sum(ar, a, b))
    off = np.abs(s + e - (a + b)) * 2**8 / np.abs(a + b)  # sums of few bits are exact in binary64
    assert off.max() == abs(sum(mcf.fast_two_sum(ar, 1.0, -258.0)) + 257) * 2**8 / 257
    assert np.count_nonzero(off) / off.size == pytest.approx(614528 / 655360, abs=0)


# -- split ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("precision", range(3, 13))
def test_split_gives_halves_that_are_short_and_sum_to_the_number(precision):
    fmt = Format(precision=precision, emin=-60, emax=60)
    s = (precision + 1) // 2
    m = np.arange(2 ** (precision - 1), 2**precision)
    m = np.concatenate([m, -m])
    high, low = (integers(part, 0) for part in mcf.split(mcf.arithmetic(fmt), m.astype(np.float64)))
    assert np.array_equal(high + low, m)
    quotient, rest = np.divmod(m, 2**s)  # high is m rounded to p - s bits, ties to even
    quotient += (2 * rest > 2**s) | ((2 * rest == 2**s) & (quotient % 2 == 1))
    assert np.array_equal(high, quotient * 2**s)
    assert (np.abs(low) <= 2 ** (s - 1)).all()  # of s - 1 bits, or a power of two


def test_split_overflows_to_nan_near_the_top():
    high, low = mcf.split(mcf.arithmetic("bf16"), np.float32([2.0**124]))
    assert np.isnan([high, low]).all()
    high, low = mcf.split(mcf.arithmetic("bf16"), np.float32([2.0**122 * 1.5]))
    assert (high, low) == (2.0**122 * 1.5, 0)


def test_split_needs_a_format():
    with pytest.raises(ValueError, match="needs an arithmetic with a format"):
        mcf.split(mcf.arithmetic(None, backend="exact"), 1.0)


@pytest.mark.parametrize("bits", range(1, 8))
def test_split_cuts_off_as_many_bits_as_it_is_told(bits):
    fmt = Format(precision=8, emin=-60, emax=60)
    m = np.arange(2**7, 2**8)
    high, low = (integers(part, 0) for part in mcf.split(mcf.arithmetic(fmt), m.astype(float), bits=bits))
    assert np.array_equal(high + low, m)
    assert (high % 2**bits == 0).all()
    assert (np.abs(low) <= 2 ** (bits - 1)).all()
    assert np.array_equal(high, 2**bits * np.rint(m / 2**bits).astype(np.int64))


@pytest.mark.parametrize("transform", [mcf.split, mcf.two_prod], ids=lambda f: f.__name__)
def test_bits_to_cut_off_are_an_int_within_the_precision(transform):
    operands = (1.0,) if transform is mcf.split else (1.0, 1.0)
    for wrong in (0, -1, 8, 9):
        with pytest.raises(ValueError, match=f"bits = {wrong}: numbers of 8 bits are split off 1 to 7"):
            transform(mcf.arithmetic("bf16"), *operands, bits=wrong)
    for wrong in (4.0, True, "4"):
        with pytest.raises(TypeError, match="bits must be an int, not "):
            transform(mcf.arithmetic("bf16"), *operands, bits=wrong)


# -- products ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("precision", range(3, 12))
def test_two_prod_of_all_significands_is_exact(precision):
    fmt = Format(precision=precision, emin=-60, emax=60)
    m = np.arange(2.0 ** (precision - 1), 2.0**precision)
    ar = mcf.arithmetic(fmt)
    for transform in (mcf.two_prod, mcf.two_prod_fma):
        p, e = transform(ar, m[:, None], -m)
        assert np.array_equal(integers(p, 0) + integers(e, 0), integers(m[:, None] * -m, 0))
        assert np.array_equal(p, operate_integers("mul", m[:, None], -m, fmt=fmt))


@pytest.mark.parametrize("fmt", [E4M3FN, E5M2, FORMATS["float8_e3m4"]], ids=label)
def test_two_prod_is_exact_from_2_to_the_emin_plus_p(fmt):
    a, b = finite_pairs(fmt)
    p, e = mcf.two_prod(mcf.arithmetic(fmt), a, b)
    product = a * b  # exact in binary64
    least = 2.0 ** (fmt.emin + fmt.precision)
    s = (fmt.precision + 1) // 2
    room = float(fmt.max) / (2**s + 2)
    inside = (np.abs(a) <= room) & (np.abs(b) <= room) & (np.abs(product) <= float(fmt.max) / 2)
    covered = inside & ((product == 0) | (np.abs(product) >= least))
    assert covered.any()
    assert np.array_equal((p.astype(np.float64) + e)[covered], product[covered])
    below = inside & ~covered
    assert not np.array_equal((p.astype(np.float64) + e)[below], product[below])


@pytest.mark.parametrize("rounding", MODES, ids=label)
@pytest.mark.parametrize("fmt", SMALL_FORMATS, ids=label)
def test_two_prod_fma_is_exact_if_and_only_if_the_product_is_a_multiple_of_the_smallest_number(fmt, rounding):
    a, b = finite_pairs(fmt)
    p, e = (x.astype(np.float64) for x in mcf.two_prod_fma(mcf.arithmetic(fmt, rounding), a, b))
    product = a * b  # of at most 10 bits, exact in binary64, and so is p + e
    inside = np.isfinite(p) & (np.abs(product) <= float(fmt.max))
    exact = p[inside] + e[inside] == product[inside]
    multiple = (product % float(fmt.smallest_subnormal) == 0)[inside]
    assert np.array_equal(exact, multiple)
    assert 0 < exact.sum() < exact.size


@pytest.mark.parametrize("fmt", [BF16, FP16, TF32], ids=label)
@pytest.mark.sampled(6, each=False)
@pytest.mark.slow
def test_two_prod_fma_of_millions_of_pairs_is_the_product_and_its_error_rounded(fmt, assert_same):
    ar = mcf.arithmetic(fmt)
    for seed in range(2):
        a, b = random_tuples(fmt, CHUNK, 2, seed)
        p, e = mcf.two_prod_fma(ar, a, b)
        assert_same(p, operate_integers("mul", a, b, fmt=fmt), a, b)
        assert_same(e, operate_integers("fma", a, b, -p.astype(np.float64), fmt=fmt), a, b)
        a, b, p, e = (x[np.isfinite(p) & np.isfinite(e)].astype(np.float64) for x in (a, b, p, e))
        product = a * b  # of at most 22 bits, exact in binary64, as are p + e and the quotient
        quotient = np.ldexp(product, -(fmt.emin - fmt.precision + 1))
        multiple = quotient == np.rint(quotient)
        assert min(multiple.sum(), (~multiple).sum()) > CHUNK // 20
        assert np.array_equal(p + e == product, multiple)


@pytest.mark.parametrize("rounding", NEARESTS, ids=label)
@pytest.mark.parametrize("precision", [3, 4, 8, 11])
def test_the_error_of_a_fused_multiply_add_is_a_double_word(precision, rounding, assert_same):
    fmt = Format(precision=precision, emin=-60, emax=60)
    rng = np.random.default_rng(precision)
    a, b, c = (rng.integers(2 ** (precision - 1), 2**precision, CHUNK // 4) for _ in range(3))
    a, b, c = a.astype(float), -b.astype(float), np.ldexp(c, rng.integers(-20, 21, c.size))
    cancelling = rng.random(a.size) < 0.3
    near = operate_integers("mul", a, -b, fmt=fmt, rounding=Rounding("toward_zero"))
    c = np.where(cancelling, near, c)
    ar = mcf.arithmetic(fmt, rounding)
    r, e, f = mcf.eft.err_fma(ar, a, b, c)
    assert_same(r, operate_integers("fma", a, b, c, fmt=fmt, rounding=rounding), a, b, c)
    exact = integers(a * b, -20) + integers(c, -20)
    assert np.array_equal(sum(integers(part, -20) for part in (r, e, f)), exact)
    assert_same(operate_integers("add", e, f, fmt=fmt, rounding=rounding), e, a, b, c)
    assert 0.1 < (f != 0).mean() < 0.9


def test_the_error_of_a_fused_multiply_add_that_overflows_is_not_finite():
    parts = mcf.eft.err_fma(mcf.arithmetic("bf16"), 2.0**64, 2.0**64, 1.0)
    assert not np.isfinite(parts).any()


# -- blocks -----------------------------------------------------------------------------------------------
TRANSFORMS = [mcf.two_sum, mcf.fast_two_sum, mcf.two_prod, mcf.two_prod_fma]


@pytest.mark.parametrize("mode", ["nearest_even", "down"])
@pytest.mark.parametrize("transform", TRANSFORMS, ids=lambda f: f.__name__)
@pytest.mark.sampled(4)
@pytest.mark.slow
def test_large_arrays_give_the_bits_of_small_ones(transform, mode, assert_same):
    a, b = random_tuples(BF16, 3 * BLOCK + 1234, 2, seed=12)
    whole = transform(mcf.arithmetic("bf16", mode), a, b)
    shared = transform(mcf.arithmetic("bf16", mode, threads=2), a, b)
    pieces = [
        transform(mcf.arithmetic("bf16", mode), x, y)
        for x, y in zip(np.array_split(a, 100), np.array_split(b, 100), strict=True)
    ]
    for i in range(2):
        assert_same(np.concatenate([piece[i] for piece in pieces]), whole[i], a, b)
        assert_same(shared[i], whole[i], a, b)


@pytest.mark.parametrize("transform", TRANSFORMS, ids=lambda f: f.__name__)
def test_a_block_at_a_time_is_the_bare_text_on_whole_arrays(transform, assert_same):
    a, b = random_tuples(FP16, BLOCK + 7, 2, seed=13)
    ar = mcf.arithmetic("fp16")
    for result, bare in zip(transform(ar, a, b), transform.__wrapped__(ar, a, b), strict=True):
        assert_same(result, bare, a, b)


def test_operands_broadcast_and_numbers_give_numbers():
    ar = mcf.arithmetic("bf16")
    s, e = mcf.two_sum(ar, np.float32([[1], [256]]), np.float32([1, 3]))
    assert (s.tolist(), e.tolist()) == ([[2, 4], [256, 260]], [[0, 0], [1, -1]])
    assert mcf.two_sum(ar, 256.0, 1.0) == (256.0, 1.0)
    assert all(type(x) is float for x in mcf.two_sum(ar, 256.0, 1.0))


def test_exact_arithmetic_leaves_no_error():
    exact = mcf.arithmetic(None, backend="exact")
    for transform, (a, b) in itertools.product(
        [mcf.two_sum, mcf.fast_two_sum, mcf.two_prod_fma], [(0.1, 3e-40)]
    ):
        assert transform(exact, a, b)[1] == 0


@pytest.mark.parametrize("a", [2.0**64, -(2.0**64)])
def test_the_error_of_a_product_that_overflows_is_the_opposite_infinity(a):
    p, e = mcf.two_prod_fma(mcf.arithmetic("bf16"), a, 2.0**64)
    assert np.isinf(p)
    assert e == -p


@pytest.mark.parametrize("name", ["bfloat16", "float16", "float8_e5m2"])
def test_the_native_type_gives_the_same_bits_in_two_sum(name):
    fmt = FORMATS[name]
    native = mcf.arithmetic(name, backend="native")
    a, b = random_tuples(fmt, CHUNK // 4, 2, seed=14)
    with np.errstate(all="ignore"):
        results = mcf.two_sum(native, a.astype(native.dtype), b.astype(native.dtype))
        for ours, theirs in zip(mcf.two_sum(mcf.arithmetic(name), a, b), results, strict=True):
            assert same(ours, theirs.astype(np.float32)).all()
