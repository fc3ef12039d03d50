"""Double-word algorithms: their bits on the oracle, their steps, costs, bounds and hardest operands."""

import itertools
import operator
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.formats import FORMATS, Format
from mcfsim.multiword import double_word
from mcfsim.oracle import OracleArithmetic, operate_integers, round_integers
from tests.multiword.words import all_double_words, double_words, fractions, total, unbounded
from tests.oracle import steps
from tests.oracle.operands import MODES, label, magnitudes, random_tuples

BF16, E4M3FN, E5M2 = (FORMATS[name] for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"))


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


ALGORITHMS = [
    Algorithm("dw_plus_fp", 10, lambda u: 2, ("1.561", "1.766"), operator.add),
    Algorithm(
        "sloppy_dw_plus_dw", 11, lambda u: 3, ("1.461", "2.016"), operator.add
    ),  # of operands of the same sign
    Algorithm("accurate_dw_plus_dw", 20, lambda u: 3 / (1 - 4 * u), ("2.162", "2.498"), operator.add),
    Algorithm("add222", 20, lambda u: Fraction(3, 2), ("1.406", "1.460"), operator.add),
    Algorithm("dw_times_fp1", 10, lambda u: Fraction(3, 2) + 4 * u, ("1.199", "1.301"), operator.mul),
    Algorithm("dw_times_fp2", 7, lambda u: 3, ("1.461", "1.681"), operator.mul),
    Algorithm("dw_times_fp3", 6, lambda u: 2, ("1.164", "1.237"), operator.mul),
    Algorithm("dw_times_dw1", 9, lambda u: 5, ("2.226", "3.483"), operator.mul),
    Algorithm("dw_times_dw2", 8, lambda u: 5, ("2.226", "3.062"), operator.mul),
    Algorithm("dw_times_dw3", 9, lambda u: 4, ("2.220", "2.782"), operator.mul),
    Algorithm("dw_div_fp1", 16, lambda u: Fraction(7, 2), ("1.391", "1.709"), operator.truediv),
    Algorithm("dw_div_fp2", 10, lambda u: Fraction(7, 2), ("1.391", "1.709"), operator.truediv),
    Algorithm("dw_div_fp3", 10, lambda u: 3, ("1.391", "1.709"), operator.truediv),
    Algorithm("dw_div_dw1", 24, lambda u: 15 + 56 * u, ("4.164", "4.824"), operator.truediv),
    Algorithm("dw_div_dw2", 18, lambda u: 15 + 56 * u, ("4.164", "4.824"), operator.truediv),
    Algorithm("dw_div_dw2_fma", 14, lambda u: 15 + 56 * u, ("4.164", "5.198"), operator.truediv),
    Algorithm("dw_div_dw3", 31, lambda u: Fraction(98, 10), ("3.608", "3.802"), operator.truediv),
    Algorithm("sqrt_dw", 8, lambda u: Fraction(25, 8), ("1.562", "1.795"), None),
]
every_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda item: item.name)


class IntegerArithmetic:
    """The oracle on int64 arrays, for formats of at most 11 bits."""

    def __init__(self, fmt, rounding=MODES[0]):
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


def positive(x):
    return tuple(np.copysign(1.0, x[0]) * part for part in x)


def of_same_sign(algorithm, x, y):
    """Return operands with the same sign if the algorithm is to be trusted with those alone."""
    return (positive(x), positive(y)) if algorithm.name in ("sloppy_dw_plus_dw", "sqrt_dw") else (x, y)


# -- the bits ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("rounding", MODES, ids=label)
@pytest.mark.parametrize("fmt", [E5M2, E4M3FN, BF16], ids=label)
@pytest.mark.sampled(3)
def test_arbitrary_operands_give_the_bits_of_the_oracle(fmt, rounding, assert_same):
    """Specials, subnormal numbers and pairs that are no double words included."""
    columns = random_tuples(fmt, 2**10, 4, seed=1)
    ar, truth = mcf.arithmetic(fmt, rounding), IntegerArithmetic(fmt, rounding)
    for xh, xl, yh, yl in (columns, columns[::-1]):
        for algorithm in ALGORITHMS:
            operands = algorithm.operands((xh, xl), (yh, yl))
            for found, expected in zip(algorithm(ar, *operands), algorithm(truth, *operands), strict=True):
                assert_same(found, expected, xh, xl, yh, yl)


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
    found, expected = algorithm(mcf.arithmetic(fmt), *operands), algorithm(IntegerArithmetic(fmt), *operands)
    for word, truth in zip(found, expected, strict=True):
        assert_same(word, truth, *x)


@pytest.mark.parametrize("precision", [3, 4, 8, 24])
@every_algorithm
def test_the_steps_are_those_of_exact_rationals(algorithm, precision):
    """Even where Fast2Sum takes the place of 2Sum: the errors are the exact ones."""
    if precision == 24:  # too long for the integer oracle that makes double words
        drawn = np.random.default_rng(5).integers(0, 2**23, (2, 2, 30))
        x, y = ((1 + high * 2.0**-23, (2 * low - 2**24 + 1) * 2.0**-49) for high, low in drawn)
    else:
        x, y = (double_words(unbounded(precision), 60, seed, exponents=(-4, 5)) for seed in (6, 7))
    operands = algorithm.operands(*of_same_sign(algorithm, x, y))
    rows = zip(*map(fractions, operands), strict=True)
    expected = [getattr(steps, algorithm.name)(steps.Nearest(precision), *row) for row in rows]
    assert fractions(algorithm(mcf.arithmetic(unbounded(precision)), *operands)) == expected


@every_algorithm
def test_the_operations_are_as_many_as_its_docstring_says(algorithm):
    meter = mcf.Meter(mcf.arithmetic("bf16"))
    algorithm(meter, *algorithm.operands((3.0, 2.0**-9), (1.5, 2.0**-10)))
    assert len([operation for operation in meter.trace if operation != "neg"]) == algorithm.operations
    assert f" {algorithm.operations} operations" in getattr(double_word, algorithm.name).__doc__


def test_every_algorithm_is_handed_on():
    assert {algorithm.name for algorithm in ALGORITHMS} | {"DoubleWord"} == set(double_word.__all__)


# -- the errors -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("precision", [3, 11])
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
    ar = mcf.arithmetic(unbounded(precision))
    high, low, numbers = all_double_words(unbounded(precision), below=4)
    x, y = (high[:, None], low[:, None]), (numbers,) if "fp" in algorithm.name else (high, low)
    # A sum depends on how the exponents differ, a root on their parity; products and quotients on neither.
    scales = [1.0]
    if algorithm.exact is operator.add:
        scales = [s * 2.0**e for e in range(-2 * precision - 4, 2 * precision + 4) for s in (1, -1)]
    if algorithm.name == "sloppy_dw_plus_dw":
        scales = scales[::2]
    worst = 0.0
    for scale in scales:
        operands = algorithm.operands(x, tuple(scale * part for part in y))
        if algorithm.name == "sqrt_dw":
            operands = ((np.outer([1.0, 2.0], high), np.outer([1.0, 2.0], low)),)
        found = sum(part.astype(np.float64) for part in algorithm(ar, *operands))
        wholes = [sum(x) if isinstance(x, tuple) else x for x in operands]
        exact = algorithm.exact(*wholes) if algorithm.exact else np.sqrt(*wholes)
        off = np.abs(found - exact)
        worst = max(worst, np.divide(off, np.abs(exact), out=np.zeros_like(off), where=exact != 0).max())
    assert f"{worst * 4**precision:.3f}" == algorithm.worst[precision - 3]


def relative_error(result, exact):
    return abs(total(result) - exact) / abs(exact)


@pytest.mark.parametrize("precision", [4, 5, 6, 8, 11, 24])
def test_the_worst_known_sums(precision):
    """The bounds are attained in the limit: Muller and Rideau, ACM TOMS 48(1), 2022, Property 2.1."""
    u = Fraction(1, 2**precision)
    for add, x, y, expected in (
        (double_word.dw_plus_fp, (1, u / 2 + u**2), -(1 - u) / 2, 2 * u**2 / (1 + 2 * u + 2 * u**2)),
        # No double word, though |y| <= ulp / 2.
        (double_word.dw_plus_fp, (1, -u + u**2), -(1 - 3 * u) / 2, 2 * u**2 / (1 + u + 2 * u**2)),
        (
            double_word.accurate_dw_plus_dw,
            (1, u - u**2),
            (-Fraction(1, 2) + u / 2, -(u**2) / 2 + u**3),
            (3 - 2 * u) * u**2 / (1 + 3 * u - 3 * u**2 + 2 * u**3),
        ),
    ):
        exact = total(x) + total(y)
        operands = (tuple(map(float, z)) if isinstance(z, tuple) else float(z) for z in (x, y))
        result = add(mcf.arithmetic(unbounded(precision)), *operands)
        assert relative_error(result, exact) == expected


# Sums of opposite signs, and the hardest known product; errors in units of u**2.
HARD = [
    ("sloppy_dw_plus_dw", (1.9765625, 0.0038909912109375), (-1.984375, 0.00390625), "65536.00000"),
    ("accurate_dw_plus_dw", (1.9765625, 0.0038909912109375), (-1.984375, 0.00390625), "0.00000"),
    ("dw_times_dw2", (1.0078125, 0.0038604736328125), (1.0078125, 0.0038909912109375), "4.83938"),
]


@pytest.mark.parametrize(("name", "x", "y", "error"), HARD)
def test_hard_operands_in_bfloat16(name, x, y, error):
    algorithm = next(item for item in ALGORITHMS if item.name == name)
    result = algorithm(mcf.arithmetic("bf16"), x, y)
    off = relative_error(result, algorithm.exact(total(x), total(y))) * 2**16
    assert f"{float(off):.5f}" == error


# -- what is equal ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(("first", "second"), [("dw_div_fp1", "dw_div_fp2"), ("dw_div_dw1", "dw_div_dw2")])
@pytest.mark.parametrize("precision", [3, 8])
def test_the_longer_quotients_have_the_bits_of_the_shorter(first, second, precision, assert_same):
    fmt = unbounded(precision)
    x, y = (double_words(fmt, 2**14, seed, exponents=(-9, 10)) for seed in (12, 13))
    y = y[0] if "fp" in first else y
    results = (getattr(double_word, name)(mcf.arithmetic(fmt), x, y) for name in (first, second))
    for longer, shorter in zip(*results, strict=True):
        assert_same(longer, shorter, *x)


# -- specials and refusals --------------------------------------------------------------------------------
@every_algorithm
def test_specials_and_overflow_leave_nans(algorithm):
    one, zero = (1.5, 0.0), (0.0, 0.0)
    binary, quotient = algorithm.name != "sqrt_dw", algorithm.exact is operator.truediv
    for fmt in (BF16, E5M2, E4M3FN):
        ar = mcf.arithmetic(fmt)

        def results(x, y, ar=ar):
            return algorithm(ar, *algorithm.operands(x, y))

        for special in (np.nan, np.inf, -np.inf)[: 3 if fmt.has_infinity else 1]:
            assert np.isnan(results((special, 0.0), one)).all(), special
            assert not binary or np.isnan(results(one, (special, 0.0))).all(), special
        assert np.isnan(results((1.5, np.nan), one)).all()
        if binary and "fp" not in algorithm.name:
            assert np.isnan(results(one, (1.5, np.nan))).all()
        if quotient:
            for x, y in itertools.product((one, zero), (zero, (-0.0, 0.0))):
                assert np.isnan(results(x, y)).all(), (x, y)
            assert results(zero, one) == zero
        largest = float(fmt.max)
        if binary:  # where the result overflows the low word is not finite
            y = float(fmt.smallest_normal) if quotient else largest
            assert not np.isfinite(results((largest, 0.0), (y, 0.0))[1])
            continue
        assert np.isfinite(results((largest, 0.0), None)).all()
        for high in (0.0, -0.0, -1.5):
            assert np.isnan(results((high, 0.0), None)).all()
        with pytest.raises(ZeroDivisionError):
            algorithm(mcf.arithmetic(None, backend="exact"), zero)


@every_algorithm
def test_what_is_no_pair_of_words_is_refused(algorithm):
    good = (1.5, 0.0)
    for ar in (mcf.arithmetic("bf16"), OracleArithmetic(BF16)):
        for bad, error, message in (
            ((1.0, 0.0, 0.0), ValueError, r"a tuple \(high, low\), not one of 3 components"),
            (1.5, TypeError, r"a tuple \(high, low\), not of type float"),
            (np.array([1.5, 0.0]), TypeError, "not of type ndarray"),
        ):
            with pytest.raises(error, match=message):
                algorithm(ar, *algorithm.operands(bad, good))
        if algorithm.operands(good, good)[1:] == (good,):
            with pytest.raises(ValueError, match="not one of 1 components"):
                algorithm(ar, good, (1.0,))
