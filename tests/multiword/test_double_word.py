"""Double-word algorithms: their bits on the oracle, their steps, costs, bounds and hardest operands."""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.formats import FORMATS, Format
from mcfsim.multiword import double_word
from mcfsim.oracle import OracleArithmetic, operate_integers, round_integers
from mcfsim.rounding import Rounding
from tests.oracle import steps
from tests.oracle.operands import MODES, label, magnitudes, random_tuples

BF16, E4M3FN, E5M2 = (FORMATS[name] for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"))
NEAREST = Rounding()


def unbounded(precision):
    """Return a format in whose range nothing below over- or underflows."""
    return Format(precision=precision, emin=-300, emax=300)


@dataclass(frozen=True)
class Algorithm:
    """What is claimed of an algorithm.

    ``bound`` is that of the relative error in units of u**2, of u; ``worst`` are the largest of all operands
    at p = 3 and 4, in the same unit; ``exact`` is the real function.
    """

    name: str
    operations: int
    bound: Callable
    worst: tuple[str, str]
    exact: Callable

    def __call__(self, ar, *operands):
        return getattr(double_word, self.name)(ar, *operands)

    def operands(self, x, y):
        """Return the double words x and y as this algorithm's operands: y may be a number, or none."""
        if self.name == "sqrt_dw":
            return (x,)
        return (x, y[0]) if "fp" in self.name else (x, y)

    @property
    def adds(self):
        return self.exact is add


def add(x, y):
    return x + y


def multiply(x, y):
    return x * y


def divide(x, y):
    return x / y


ALGORITHMS = [
    Algorithm("dw_plus_fp", 10, lambda u: 2, ("1.561", "1.766"), add),
    Algorithm("sloppy_dw_plus_dw", 11, lambda u: 3, ("1.461", "2.016"), add),  # of operands of the same sign
    Algorithm("accurate_dw_plus_dw", 20, lambda u: 3 / (1 - 4 * u), ("2.162", "2.498"), add),
    Algorithm("add222", 20, lambda u: Fraction(3, 2), ("1.406", "1.460"), add),
    Algorithm("dw_times_fp1", 10, lambda u: Fraction(3, 2) + 4 * u, ("1.199", "1.301"), multiply),
    Algorithm("dw_times_fp2", 7, lambda u: 3, ("1.461", "1.681"), multiply),
    Algorithm("dw_times_fp3", 6, lambda u: 2, ("1.164", "1.237"), multiply),
    Algorithm("dw_times_dw1", 9, lambda u: 5, ("2.226", "3.483"), multiply),
    Algorithm("dw_times_dw2", 8, lambda u: 5, ("2.226", "3.062"), multiply),
    Algorithm("dw_times_dw3", 9, lambda u: 4, ("2.220", "2.782"), multiply),
    Algorithm("dw_div_fp1", 16, lambda u: Fraction(7, 2), ("1.391", "1.709"), divide),
    Algorithm("dw_div_fp2", 10, lambda u: Fraction(7, 2), ("1.391", "1.709"), divide),
    Algorithm("dw_div_fp3", 10, lambda u: 3, ("1.391", "1.709"), divide),
    Algorithm("dw_div_dw1", 24, lambda u: 15 + 56 * u, ("4.164", "4.824"), divide),
    Algorithm("dw_div_dw2", 18, lambda u: 15 + 56 * u, ("4.164", "4.824"), divide),
    Algorithm("dw_div_dw2_fma", 14, lambda u: 15 + 56 * u, ("4.164", "5.198"), divide),
    Algorithm("dw_div_dw3", 31, lambda u: Fraction(98, 10), ("3.608", "3.802"), divide),
    Algorithm("sqrt_dw", 8, lambda u: Fraction(25, 8), ("1.562", "1.795"), None),
]
every_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda item: item.name)


class IntegerArithmetic:
    """The oracle on int64 arrays, for formats of at most 11 bits."""

    def __init__(self, fmt, rounding=NEAREST):
        self.format, self.rounding = fmt, rounding

    def __getattr__(self, name):
        return lambda *operands: operate_integers(
            name,
            *(np.asarray(x, dtype=np.float64) for x in operands),
            fmt=self.format,
            rounding=self.rounding,
        )

    def neg(self, a):
        return -a

    def evaluate(self, function, *operands, **options):
        return function(self, *operands, **options)


def double_words(fmt, size, seed, exponents=(0, 1)):
    """Return random double words whose words are seldom round numbers, and as seldom zero."""
    rng = np.random.default_rng(seed)
    p = fmt.precision
    high, low = (rng.integers(2 ** (p - 1), 2**p, size) * 2.0 ** (1 - p) for _ in range(2))
    low = np.where(rng.random(size) < 0.2, 1.0, low) * 2.0 ** -(p + rng.integers(0, 5, size))
    low = np.where(rng.random(size) < 0.05, 0.0, low) * rng.choice([-1.0, 1.0], size)
    low = np.where(round_integers(high + low, fmt) == high, low, 0.0)
    scale = 2.0 ** rng.integers(*exponents, size) * rng.choice([-1.0, 1.0], size)
    return scale * high, scale * low


def positive(x):
    return tuple(np.copysign(1.0, x[0]) * part for part in x)


def all_double_words(precision, below):
    """Return all double words in [1, 2) with a low word of 2**-(p + below) or more, and all numbers there."""
    numbers = np.arange(2.0 ** (precision - 1), 2.0**precision) * 2.0 ** (1 - precision)
    lows = [s * numbers * 2.0**-e for e in range(precision, precision + below + 1) for s in (1, -1)]
    high, low = (x.ravel() for x in np.meshgrid(numbers, np.concatenate([[0.0], *lows]), indexing="ij"))
    normalised = round_integers(high + low, unbounded(precision)) == high
    return high[normalised], low[normalised], numbers


def fractions(x):
    """Return columns of numbers, or of tuples of numbers, as rows of Fractions."""
    if isinstance(x, tuple):
        return list(zip(*map(fractions, x), strict=True))
    return [Fraction(item) for item in np.asarray(x, dtype=np.float64).tolist()]


def total(x):
    return sum(x) if isinstance(x, tuple) else x


def of_same_sign(algorithm, x, y):
    """Return operands with the same sign if the algorithm is to be trusted with those alone."""
    return (positive(x), positive(y)) if algorithm.name in ("sloppy_dw_plus_dw", "sqrt_dw") else (x, y)


# -- the bits ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("fmt", [BF16, E4M3FN, E5M2], ids=label)
@every_algorithm
@pytest.mark.sampled(6)
def test_arbitrary_operands_give_the_bits_of_the_oracle(algorithm, fmt, assert_same):
    """Specials, subnormal numbers and pairs that are no double words included."""
    columns = random_tuples(fmt, 2**13, 4, seed=1)
    for xh, xl, yh, yl in (columns, columns[::-1]):
        operands = algorithm.operands((xh, xl), (yh, yl))
        found = algorithm(mcf.arithmetic(fmt), *operands)
        expected = algorithm(IntegerArithmetic(fmt), *operands)
        for word, truth in zip(found, expected, strict=True):
            assert_same(word, truth, xh, xl, yh, yl)


@pytest.mark.parametrize("fmt", [BF16, E4M3FN, E5M2], ids=label)
@every_algorithm
@pytest.mark.sampled(6)
def test_double_words_one_by_one_give_the_bits_of_the_oracle(algorithm, fmt, assert_same):
    span = min(-fmt.emin, fmt.emax) // 2
    x, y = (double_words(fmt, 40, seed, exponents=(-span, span)) for seed in (2, 3))
    x, y = (tuple(round_integers(part, fmt) for part in pair) for pair in (x, y))
    operands = algorithm.operands(*of_same_sign(algorithm, x, y))
    truth = OracleArithmetic(fmt)
    rows = zip(
        *(zip(*o, strict=True) if isinstance(o, tuple) else o for o in map(listed, operands)), strict=True
    )
    expected = [algorithm(truth, *row) for row in rows]
    for word, column in zip(
        algorithm(mcf.arithmetic(fmt), *operands), zip(*expected, strict=True), strict=True
    ):
        assert_same(word, column, *x, *y)


def listed(x):
    return tuple(part.tolist() for part in x) if isinstance(x, tuple) else x.tolist()


@every_algorithm
def test_all_double_words_of_a_toy_format_give_the_bits_of_the_oracle(algorithm, assert_same):
    fmt = Format(precision=3, emin=-2, emax=2)
    numbers = magnitudes(fmt)
    numbers = np.concatenate([-numbers[1:], numbers])
    pairs = np.stack(np.meshgrid(numbers, numbers), axis=-1).reshape(-1, 2)
    pairs = pairs[round_integers(pairs.sum(axis=1), fmt) == pairs[:, 0]]
    assert len(pairs) > 200
    x = tuple(part[:, None] for part in pairs.T)
    y = (numbers,) if "fp" in algorithm.name else tuple(pairs.T)
    operands = algorithm.operands(x, y)
    found = algorithm(mcf.arithmetic(fmt), *operands)
    expected = algorithm(IntegerArithmetic(fmt), *operands)
    for word, truth in zip(found, expected, strict=True):
        assert_same(word, truth, *x)


@pytest.mark.parametrize("rounding", MODES[1:], ids=label)
def test_every_mode_gives_the_bits_of_the_oracle(rounding, assert_same):
    columns = random_tuples(E5M2, 2**11, 4, seed=4)
    for algorithm in ALGORITHMS:
        operands = algorithm.operands(tuple(columns[:2]), tuple(columns[2:]))
        found = algorithm(mcf.arithmetic(E5M2, rounding), *operands)
        for word, truth in zip(found, algorithm(IntegerArithmetic(E5M2, rounding), *operands), strict=True):
            assert_same(word, truth, *columns)


@pytest.mark.parametrize("precision", [3, 4, 8, 24])
@every_algorithm
def test_the_steps_are_those_of_exact_rationals(algorithm, precision):
    """Even where Fast2Sum takes the place of 2Sum: the errors are the exact ones."""
    fmt = unbounded(precision)
    if precision == 24:  # too long for the integer oracle that makes double words
        rng = np.random.default_rng(5)
        x, y = (
            (1 + high * 2.0**-23, (2 * low - 2**24 + 1) * 2.0**-49)
            for high, low in rng.integers(0, 2**23, (2, 2, 30))
        )
    else:
        x, y = (double_words(fmt, 60, seed, exponents=(-4, 5)) for seed in (6, 7))
    operands = algorithm.operands(*of_same_sign(algorithm, x, y))
    rows = zip(*map(fractions, operands), strict=True)
    expected = [getattr(steps, algorithm.name)(steps.Nearest(precision), *row) for row in rows]
    assert fractions(algorithm(mcf.arithmetic(fmt), *operands)) == expected


# -- the costs --------------------------------------------------------------------------------------------
@every_algorithm
def test_the_operations_are_as_many_as_its_docstring_says(algorithm):
    meter = mcf.Meter(mcf.arithmetic("bf16"))
    algorithm(meter, *algorithm.operands((3.0, 2.0**-9), (1.5, 2.0**-10)))
    assert len([operation for operation in meter.trace if operation != "neg"]) == algorithm.operations
    assert f" {algorithm.operations} operations" in getattr(double_word, algorithm.name).__doc__


def test_an_ordered_sum_of_a_number_takes_three_operations_less_and_gives_the_same_bits(assert_same):
    x, (y, _) = double_words(BF16, 2**12, seed=8), double_words(BF16, 2**12, seed=9, exponents=(-20, 0))
    meter = mcf.Meter(mcf.arithmetic("bf16"))
    ordered = double_word.dw_plus_fp(meter, x, y, ordered=True)
    assert len(meter.trace) == 7
    for word, plain in zip(ordered, double_word.dw_plus_fp(mcf.arithmetic("bf16"), x, y), strict=True):
        assert_same(word, plain, *x, y)


# -- the errors -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("precision", [3, 4, 8])
@every_algorithm
def test_the_error_of_double_words_is_within_the_bound_and_the_result_a_double_word(algorithm, precision):
    fmt, u = unbounded(precision), Fraction(1, 2**precision)
    x, y = (double_words(fmt, 300, seed, exponents=(-6, 7)) for seed in (10, 11))
    operands = algorithm.operands(*of_same_sign(algorithm, x, y))
    found = algorithm(mcf.arithmetic(fmt), *operands)
    high, low = (part.astype(np.float64) for part in found)
    assert np.array_equal(round_integers(high + low, fmt), high)
    bound = algorithm.bound(u) * u**2
    for row, result in zip(zip(*map(fractions, operands), strict=True), fractions(found), strict=True):
        if algorithm.exact:
            exact = algorithm.exact(*map(total, row))
            assert abs(total(result) - exact) <= bound * abs(exact)
        else:  # the square root, which is not rational
            assert (1 - bound) ** 2 * total(row[0]) <= total(result) ** 2 <= (1 + bound) ** 2 * total(row[0])


@pytest.mark.parametrize("precision", [3, 4])
@every_algorithm
@pytest.mark.sampled(4, each=False)
def test_the_worst_of_all_operands(algorithm, precision):
    high, low, numbers = all_double_words(precision, below=4)
    x, y = (high[:, None], low[:, None]), (numbers,) if "fp" in algorithm.name else (high, low)
    # A sum depends on how the exponents differ, a root on their parity; products and quotients on neither.
    scales = [Fraction(1)]
    if algorithm.adds:
        scales = [s * Fraction(2) ** e for e in range(-2 * precision - 4, 2 * precision + 4) for s in (1, -1)]
    if algorithm.name == "sloppy_dw_plus_dw":
        scales = scales[::2]
    if algorithm.name == "sqrt_dw":
        x, scales = (high, low), [Fraction(1), Fraction(2)]
    worst = 0.0
    for scale in map(float, scales):
        operands = algorithm.operands(
            *(
                (tuple(scale * part for part in x), y)
                if algorithm.name == "sqrt_dw"
                else (x, tuple(scale * part for part in y))
            )
        )
        found = sum(
            part.astype(np.float64) for part in algorithm(mcf.arithmetic(unbounded(precision)), *operands)
        )
        exact = algorithm.exact(*map(total, operands)) if algorithm.exact else np.sqrt(total(operands[0]))
        off = np.abs(found - exact)
        worst = max(worst, np.divide(off, np.abs(exact), out=np.zeros_like(off), where=exact != 0).max())
    assert f"{worst * 4**precision:.3f}" == algorithm.worst[precision - 3]


def relative_error(result, exact):
    return abs(total(tuple(map(Fraction, result))) - exact) / abs(exact)


@pytest.mark.parametrize("precision", [3, 4, 5, 6, 8, 11])
def test_the_worst_known_sum_with_a_number(precision):
    u = Fraction(1, 2**precision)
    x, y = (Fraction(1), u / 2 + u**2), -(1 - u) / 2
    result = double_word.dw_plus_fp(OracleArithmetic(unbounded(precision)), tuple(map(float, x)), float(y))
    assert relative_error(result, sum(x) + y) == 2 * u**2 / (1 + 2 * u + 2 * u**2)


@pytest.mark.parametrize("precision", [4, 5, 6, 8, 11, 24])
def test_the_worst_known_sum(precision):
    """Muller and Rideau, ACM TOMS 48(1), 2022, Property 2.1."""
    u = Fraction(1, 2**precision)
    x, y = (Fraction(1), u - u**2), (-Fraction(1, 2) + u / 2, -(u**2) / 2 + u**3)
    operands = (tuple(map(float, x)), tuple(map(float, y)))
    expected = (3 - 2 * u) * u**2 / (1 + 3 * u - 3 * u**2 + 2 * u**3)
    for ar in (OracleArithmetic(unbounded(precision)), mcf.arithmetic(unbounded(precision))):
        result = double_word.accurate_dw_plus_dw(ar, *operands)
        assert relative_error(result, sum(x) + sum(y)) == expected


def test_a_sloppy_sum_of_opposite_signs_may_be_nothing_but_error():
    x, y = (1.9765625, 0.0038909912109375), (-1.984375, 0.00390625)
    ar = mcf.arithmetic("bf16")
    exact = sum(map(Fraction, (*x, *y)))
    assert relative_error(double_word.sloppy_dw_plus_dw(ar, x, y), exact) == 1
    assert relative_error(double_word.accurate_dw_plus_dw(ar, x, y), exact) == 0


# -- what is equal ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(("first", "second"), [("dw_div_fp1", "dw_div_fp2"), ("dw_div_dw1", "dw_div_dw2")])
@pytest.mark.parametrize("precision", [3, 5, 8, 11])
def test_the_longer_quotients_have_the_bits_of_the_shorter(first, second, precision, assert_same):
    fmt = unbounded(precision)
    x, y = (double_words(fmt, 2**16, seed, exponents=(-9, 10)) for seed in (12, 13))
    y = y[0] if "fp" in first else y
    results = (getattr(double_word, name)(mcf.arithmetic(fmt), x, y) for name in (first, second))
    for longer, shorter in zip(*results, strict=True):
        assert_same(longer, shorter, *x)


@pytest.mark.parametrize("fmt", [BF16, E4M3FN, E5M2], ids=label)
def test_the_first_product_is_symmetric_and_the_others_are_not(fmt, assert_same):
    xh, xl, yh, yl = random_tuples(fmt, 2**14, 4, seed=14)
    ar = mcf.arithmetic(fmt)
    x, y = (xh, xl), (yh, yl)
    for word, exchanged in zip(
        double_word.dw_times_dw1(ar, x, y), double_word.dw_times_dw1(ar, y, x), strict=True
    ):
        assert_same(word, exchanged, xh, xl, yh, yl)
    x, y = double_words(BF16, 2**10, seed=15), double_words(BF16, 2**10, seed=16)
    for times in (double_word.dw_times_dw2, double_word.dw_times_dw3):
        ar = mcf.arithmetic("bf16")
        assert not np.array_equal(times(ar, x, y), times(ar, y, x))


def test_without_rounding_sums_are_exact_and_products_miss_what_they_leave_out():
    ar = mcf.arithmetic(None, backend="exact")
    x, y = (0.75, 2.0**-10), (-1.25, 3 * 2.0**-11)
    for algorithm in ALGORITHMS[:10]:
        exact = algorithm.exact(
            *map(
                total,
                [
                    tuple(map(Fraction, o)) if isinstance(o, tuple) else Fraction(o)
                    for o in algorithm.operands(x, y)
                ],
            )
        )
        left_out = (
            Fraction(x[1]) * Fraction(y[1]) if algorithm.name in ("dw_times_dw1", "dw_times_dw2") else 0
        )
        found = [mcf.expansion.to_fraction(part) for part in algorithm(ar, *algorithm.operands(x, y))]
        assert sum(found) == exact - left_out


# -- specials and refusals --------------------------------------------------------------------------------
@pytest.mark.parametrize("fmt", [BF16, E5M2, E4M3FN], ids=label)
@every_algorithm
def test_nan_and_infinite_operands_leave_two_nans(algorithm, fmt):
    ar = mcf.arithmetic(fmt)
    specials = [np.nan, np.inf, -np.inf] if fmt.has_infinity else [np.nan]
    for special in specials:
        for x, y in (((special, 0.0), (1.5, 0.0)), ((1.5, 0.0), (special, 0.0))):
            if algorithm.name == "sqrt_dw" and x[0] == 1.5:
                continue
            assert np.isnan(algorithm(ar, *algorithm.operands(x, y))).all(), (x, y)
    for x, y in (((np.float64(1.5), np.nan), (1.5, 0.0)), ((1.5, 0.0), (1.5, np.nan))):
        operands = algorithm.operands(x, y)
        if any(np.isnan(part) for o in operands for part in np.atleast_1d(o)):
            assert np.isnan(algorithm(ar, *operands)).all(), (x, y)


@pytest.mark.parametrize("fmt", [BF16, E5M2, E4M3FN], ids=label)
@pytest.mark.parametrize("algorithm", ALGORITHMS[10:17], ids=lambda item: item.name)
def test_division_by_zero_leaves_two_nans_and_zero_divided_is_zero(algorithm, fmt):
    ar = mcf.arithmetic(fmt)
    for x in ((1.5, 0.0), (0.0, 0.0)):
        for zero in (0.0, -0.0):
            assert np.isnan(algorithm(ar, *algorithm.operands(x, (zero, 0.0)))).all()
    assert algorithm(ar, *algorithm.operands((0.0, 0.0), (1.5, 0.0))) == (0.0, 0.0)


def test_the_root_of_zero_and_of_negative_numbers_is_two_nans():
    for fmt in (BF16, E5M2, E4M3FN):
        for high in (0.0, -0.0, -1.5):
            assert np.isnan(double_word.sqrt_dw(mcf.arithmetic(fmt), (high, 0.0))).all()
    with pytest.raises(ZeroDivisionError):
        double_word.sqrt_dw(mcf.arithmetic(None, backend="exact"), (0.0, 0.0))


@pytest.mark.parametrize("fmt", [BF16, E5M2, E4M3FN], ids=label)
@every_algorithm
def test_where_the_result_overflows_the_low_word_is_not_finite(algorithm, fmt):
    largest = float(fmt.max)
    y = float(fmt.smallest_normal) if algorithm.exact is divide else largest
    if algorithm.name == "sqrt_dw":
        assert np.isfinite(algorithm(mcf.arithmetic(fmt), (largest, 0.0))).all()
    else:
        assert not np.isfinite(
            algorithm(mcf.arithmetic(fmt), *algorithm.operands((largest, 0.0), (y, 0.0)))[1]
        )


@every_algorithm
def test_what_is_no_pair_of_words_is_refused(algorithm):
    ar, good = mcf.arithmetic("bf16"), (1.5, 0.0)
    for backend in (ar, OracleArithmetic(BF16)):
        with pytest.raises(ValueError, match=r"a tuple \(high, low\), not one of 3 components"):
            algorithm(backend, *algorithm.operands((1.0, 0.0, 0.0), good))
        with pytest.raises(TypeError, match=r"a tuple \(high, low\), not of type float"):
            algorithm(backend, *algorithm.operands(1.5, good))
        if algorithm.operands(good, good)[1:] == (good,):
            with pytest.raises(ValueError, match="not one of 1 components"):
                algorithm(backend, good, (1.0,))
    with pytest.raises(TypeError, match="not of type ndarray"):
        algorithm(ar, *algorithm.operands(np.array([1.5, 0.0]), good))


def test_every_algorithm_is_handed_on():
    names = {algorithm.name for algorithm in ALGORITHMS}
    assert names | {"DoubleWord"} == set(double_word.__all__)
