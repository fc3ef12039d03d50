"""Stochastic rounding by the definition: draws enumerated, exact probabilities, every policy and range."""

import itertools
import math
import operator
from fractions import Fraction

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.formats import Format, Grid, Posit, get_format
from mcfsim.kernels.carriers import holds
from mcfsim.kernels.element.floats import random_bits
from mcfsim.oracle.posits import posit_value, round_posit, truncated_code
from mcfsim.random import RandomWords
from mcfsim.rounding import Overflow, Rounding, Rule
from tests.oracle.operands import label
from tests.shared.formats import drawn, hard_numbers
from tests.shared.rationals import floor_log2
from tests.shared.refusals import check, refusals, refused

#: Whether a fraction rounds up, by a draw of r bits.
GOES_UP = {
    Rule.TRUNCATE: lambda f, r, draw: math.floor(f * 2**r) + draw >= 2**r,
    Rule.CENTRED: lambda f, r, draw: math.floor(f * 2 ** (r + 1)) + 2 * draw + 1 >= 2 ** (r + 1),
    Rule.NEAREST_FIRST: lambda f, r, draw: round(f * 2**r) + draw >= 2**r,
}
FORMATS = [
    *map(get_format, ("bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "binary8p3se", "float4_e2m1fn")),
    *map(get_format, ("int4", "ternary", "int4_symmetric")),
    *(
        Format(precision=p, emin=-1022, emax=1023, specials=specials)
        for p, specials in ((2, "ieee"), (8, "fn"), (20, "none"))
    ),
    Format(precision=5, emin=-1000, emax=1000),
    Format(precision=24, emin=-126, emax=-126),
]


def by_definition(x, fmt, rounding, draw):
    """Round a rational number stochastically, the exponent unbounded above, and judge overflow then."""
    magnitude, up, r = abs(x), GOES_UP[rounding.rule], rounding.random_bits
    step = None if isinstance(fmt, Grid) else max(floor_log2(x), fmt.emin) - fmt.precision + 1
    quantum = fmt.quantum if step is None else Fraction(2) ** step
    whole, f = divmod(magnitude / quantum, 1)
    sign, most = (-1.0, -fmt.lowest) if x < 0 else (1.0, fmt.max)
    rounded = (whole + up(f, r, draw)) * quantum
    over = rounded > most
    if rounding.overflow is Overflow.NEAREST_BOUNDARY and magnitude > most and type(fmt) is Format:
        half = Fraction(2) ** (fmt.emax - fmt.precision)
        over = up(min((magnitude - most) / half, Fraction(1)), r, draw)
        rounded = most
    if over and rounding.overflow is not Overflow.SATURATE and fmt.has_nan:
        return sign * math.inf if fmt.has_infinity else math.nan
    return sign * float(min(rounded, most)) if rounded or fmt.has_negative_zero else 0.0


def numbers(fmt, r):
    """Return numbers on, between and beside values, about both ends of the range, and beyond binary64."""
    least, top = fmt.smallest_subnormal, Fraction(2) ** 1024
    last = fmt.quantum if isinstance(fmt, Grid) else Fraction(2) ** (fmt.emax - fmt.precision + 1)
    one = Fraction(1) if 1 + 2 * last / 2**fmt.precision <= fmt.max else Fraction(0)
    step = Fraction(2) ** (1 - fmt.precision) if one else least
    found = [fmt.max + Fraction(k, 8) * last for k in range(-9, 13)]
    found += [least * Fraction(k, 7) for k in range(1, 15)]
    found += [one + step * Fraction(k, 16) for k in range(33)]
    found += [one + step * (Fraction(k, 2**r) + d) for k in (1, 2**r - 1) for d in (0, Fraction(1, 2**40))]
    found += [least / 2**r, least / 2 ** (r + 1), least / 2 ** (r + 1) + least / 2**200, least / 2**300]
    found += [fmt.max + last * 10**6, top, top - 1, top - Fraction(1, 3), top * Fraction(4, 3), 2**1100]
    return [sign * Fraction(x) for x in (*found, Fraction(10) ** 400) for sign in (1, -1)]


def words_of(draws, r, dtype, rng):
    """Return words that begin with the draws; lower bits play no part."""
    spare = 8 * np.dtype(dtype).itemsize - r
    return (np.array(draws, np.int64) << spare | rng.integers(0, 2**spare, len(draws))).astype(dtype)


@pytest.mark.parametrize("overflow", Overflow)
@pytest.mark.parametrize("rule", Rule)
@pytest.mark.parametrize("fmt", FORMATS, ids=label)
@pytest.mark.sampled(117, each=False)
@pytest.mark.slow
def test_every_draw_rounds_by_the_definition(fmt, rule, overflow, assert_same):
    """Single numbers, and those that a carrier holds in arrays as well, by words of either length."""
    rng = np.random.default_rng(1)
    for r in (1, 3, 16):
        rounding = Rounding("stochastic", overflow, random_bits=r, rule=rule)
        draws = range(2**r) if r < 16 else [0, 1, 2**15, 2**r - 2, 2**r - 1]
        rows = [(x, draw) for x in numbers(fmt, r) for draw in draws]
        expected = np.array([by_definition(x, fmt, rounding, draw) for x, draw in rows])
        for i in range(0, len(rows), 11 if r > 1 else 3):
            x, draw = rows[i]
            found = mcf.round_to(x, fmt, rounding, random=words_of([draw], r, np.uint16, rng)[0])
            assert_same(found, expected[i], float(draw))
        for dtype, word in ((np.float32, np.uint16), (np.float64, np.uint32)):
            most, unit = float(np.finfo(dtype).max), float(np.finfo(dtype).smallest_subnormal)
            if not holds(np.dtype(dtype), fmt):
                continue
            near = [(i, abs(x)) for i, (x, _) in enumerate(rows) if unit <= abs(x) <= most]
            held = [i for i, x in near if Fraction(float(dtype(float(x)))) == x]
            x = np.array([float(rows[i][0]) for i in held] + [np.inf, -np.inf, np.nan], dtype)
            words = words_of([rows[i][1] for i in held] + [0, 1, 1], r, word, rng)
            infinity = np.inf if fmt.has_infinity else np.nan
            right = np.append(expected[held], [infinity, -infinity, np.nan])
            assert_same(mcf.round_to(x, fmt, rounding, random=words), right, x, words)


def test_half_a_quantum_may_be_below_a_carrier():
    fmt, policies = FORMATS[-1], Rounding("stochastic", "nearest_boundary", random_bits=1)
    last, beyond = np.float32([fmt.max]), np.array([float(fmt.max + fmt.smallest_subnormal / 4)])
    for x, draw, right in ((last, 1, fmt.max), (beyond, 0, fmt.max), (beyond, 1, math.inf)):
        assert mcf.round_to(x, fmt, policies, random=np.array([draw << 15], np.uint16)) == float(right)


@pytest.mark.parametrize("seed", range(120))
@pytest.mark.sampled(8, each=False)
def test_numbers_stay_between_neighbours_in_order_whatever_is_drawn(seed, assert_same):
    """Of formats at random. What is rounded stays; and by the same words ``-x`` becomes minus what x does."""
    (fmt, usual), rng = drawn(seed), np.random.default_rng(seed)
    policies = {"overflow": usual.overflow, "underflow": usual.underflow}
    rule, bits = list(Rule)[seed % 3], int(rng.integers(1, 33))
    rounding = Rounding("stochastic", **policies, random_bits=bits, rule=rule)
    x = np.sort(rng.choice(hard_numbers(fmt, np.float64, 100), 300))
    x = x[~np.isnan(x)]
    words, others = rng.integers(0, 2**32, (2, x.size), np.uint32)

    def rounded(x, rounding, words=None):
        return np.asarray(mcf.round_to(x, fmt, rounding, random=words), np.float64)

    once = rounded(x, rounding, words)
    assert_same(rounded(once, rounding, others), once, x)
    sides = [rounded(x, Rounding(mode, **policies)) for mode in ("down", "up")]
    alike = [(once == side) | (np.isnan(once) & np.isnan(side)) for side in sides]
    assert (alike[0] | alike[1]).all(), (x, once, sides)
    by_one_word = rounded(x, rounding, np.full(x.size, words[0]))
    assert (np.diff(by_one_word[np.isfinite(by_one_word)]) >= 0).all(), (x, by_one_word)
    if fmt.signed and not isinstance(fmt, Grid):
        opposite = -rounded(-x, rounding, words)
        assert_same(opposite if fmt.has_negative_zero else opposite + 0.0, once, x)


# -- posits -----------------------------------------------------------------------------------------------
def outward_draws(magnitude, fmt, bits, rule):
    """Return which of the 2**bits draws round a number between posits away from zero, by the definition."""
    below = truncated_code(magnitude, fmt)
    longer, one_more = Posit(fmt.bits + bits, fmt.es), Posit(fmt.bits + bits + 1, fmt.es)
    truncated = truncated_code(magnitude, longer) - (below << bits)
    truncated_further = truncated_code(magnitude, one_more) - (below << (bits + 1))
    nearest = truncated + (round_posit(magnitude, longer) > posit_value((below << bits) + truncated, longer))
    carries = {
        Rule.TRUNCATE: lambda draw: truncated + draw >= 2**bits,
        Rule.CENTRED: lambda draw: truncated_further + 2 * draw + 1 >= 2 ** (bits + 1),
        Rule.NEAREST_FIRST: lambda draw: nearest + draw >= 2**bits,
    }[rule]
    return [carries(draw) for draw in range(2**bits)]


@pytest.mark.parametrize("bits", [1, 2, 3, 4])
@pytest.mark.parametrize("rule", Rule)
@pytest.mark.parametrize("fmt", [Posit(4, 0), Posit(5, 1), Posit(6, 3), Posit(8)], ids=str)
@pytest.mark.sampled(12)
def test_every_draw_rounds_posits_as_the_rule_says(fmt, rule, bits):
    """Between every two neighbours, on the boundaries that so many bits make, and beside them."""
    finer, rng = Posit(fmt.bits + bits + 2, fmt.es), np.random.default_rng(bits)
    codes = range(1 << (bits + 2), (2 ** (fmt.bits - 1) - 1) << (bits + 2))
    exact = np.array([float(posit_value(code, finer)) for code in codes])
    x = np.unique(np.concatenate([exact, np.nextafter(exact, 0), np.nextafter(exact, np.inf)]))
    x = rng.choice(x[x >= float(fmt.smallest_normal)], 120)
    expected = np.array([outward_draws(Fraction(item), fmt, bits, rule) for item in x.tolist()])
    below = mcf.round_to(x, fmt, "toward_zero")
    rounding = Rounding("stochastic", random_bits=bits, rule=rule)
    for draw, (dtype, word), sign in itertools.product(
        range(2**bits), ((np.float64, np.uint16), (np.float32, np.uint32)), (1, -1)
    ):
        kept = x.astype(dtype) == x
        words = words_of([draw] * np.count_nonzero(kept), bits, word, rng)
        found = mcf.round_to((sign * x[kept]).astype(dtype), fmt, rounding, random=words)
        assert np.array_equal(found != sign * below[kept], expected[kept, draw]), draw


@pytest.mark.parametrize("rule", Rule)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_more_random_bits_than_are_cut_off_give_the_exact_probability(dtype, rule):
    """float32 has 11 bits more than posit16 next to 1, and fewer than the 32 random bits anywhere."""
    rounding = Rounding("stochastic", random_bits=32, rule=rule)
    fractions = {1 + 2.0**-12: 1 / 2, 1 + 3 * 2.0**-13: 3 / 4, 2.0**54: 1 / 2, 1 + 2.0**-23: 2.0**-12}
    for number, fraction in fractions.items():
        last_down = int(2**32 * (1 - fraction)) - 1
        draws = np.array([0, last_down, last_down + 1, 2**32 - 1], np.uint32)
        found = mcf.round_to(np.full(4, number, dtype), Posit(16), rounding, random=draws)
        assert (found > number).tolist() == [False, False, True, True]


@pytest.mark.parametrize("overflow", Overflow)
@pytest.mark.parametrize("rule", Rule)
def test_no_posit_underflows_to_zero_or_overflows(rule, overflow):
    x = np.array([5e-324, 2.0**-25, 2.0**-1000, 2.0**25, 1.7e308])
    rounding = Rounding("stochastic", overflow, rule=rule)
    for word in (0, 2**16 - 1):
        found = mcf.round_to(np.append(x, -x), Posit(8), rounding, random=np.full(10, word, np.uint16))
        ends = [2.0**-24] * 3 + [2.0**24] * 2
        assert found.tolist() == [*ends, *(-end for end in ends)]


# -- operations -------------------------------------------------------------------------------------------
EXACTLY = {name: getattr(operator, name) for name in ("add", "sub", "mul")}
EXACTLY |= {"div": operator.truediv, "fma": lambda a, b, c: a * b + c}
#: A format whose sums leave binary64.
LONG = Format(precision=20, emin=-1000, emax=1023)


CASES = [*itertools.product(FORMATS[:3], EXACTLY), (LONG, "add"), (LONG, "sub")]


@pytest.mark.parametrize(("fmt", "name"), CASES, ids=label)
@pytest.mark.parametrize("overflow", ["ieee", "saturate"])
def test_operations_draw_on_the_exact_result(fmt, name, overflow):
    """Each result is the truncation or its neighbour, as the word and the exact fraction decide."""
    rng, size, bits = np.random.default_rng(1), 50, 16 if fmt == LONG else 32
    numbers = rng.uniform(0.5, 4, (3, size)) * rng.choice([-1, 1], (3, size)) * 2.0 ** (1022 * (fmt == LONG))
    operands = [mcf.round_to(x, fmt, "toward_zero", "saturate") for x in numbers[: 3 if name == "fma" else 2]]
    rounding = Rounding("stochastic", overflow, random_bits=bits)
    ar = mcf.arithmetic(fmt, rounding, random=RandomWords(4, stream=9))
    results = getattr(ar, name)(*(operand.astype(ar.carrier) for operand in operands))
    words = RandomWords(4, stream=9).words(0, size, bits)
    for *values, result, word in zip(*operands, results, words, strict=True):
        exact = EXACTLY[name](*(Fraction(float(v)) for v in values))
        assert result == by_definition(exact, fmt, rounding, int(word)), (values, word)


def test_operations_take_one_stream_after_the_other_in_whatever_blocks():
    a = mcf.round_to(np.random.default_rng(0).standard_normal(100_000), "bfloat16").astype(np.float32)
    b = a[::-1].copy()
    first, second = (mcf.arithmetic("bf16", "stochastic", random=RandomWords(1)) for _ in range(2))
    s, e = mcf.two_sum(first, a, b)  # blockwise
    t, f = mcf.two_sum.__wrapped__(second, a, b)  # operation by operation
    np.testing.assert_array_equal(s, t)
    np.testing.assert_array_equal(e, f)
    assert (first.add(a, b) != s).any()  # a later operation has words of its own
    threaded = mcf.arithmetic("bf16", "stochastic", random=RandomWords(1), threads=2)
    np.testing.assert_array_equal(mcf.two_sum(threaded, a, b)[0], s)


# -- words ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("r", [15, 16, 17])
def test_words_of_sixteen_bits_are_drawn_where_they_suffice(r):
    x = np.random.default_rng(0).standard_normal(1000)
    words = RandomWords(3, step=5).words(0, x.size, 16 if r <= 16 else 32)
    rounding = Rounding("stochastic", random_bits=r)
    drawn = mcf.round_to(x, "bfloat16", rounding, random=RandomWords(3, step=5))
    np.testing.assert_array_equal(drawn, mcf.round_to(x, "bfloat16", rounding, random=words))


W16, W32 = (np.array([1], dtype=dtype) for dtype in (np.uint16, np.uint32))


def drawn_with(words=None, bits=16):
    return mcf.round_to([1.1], "bf16", Rounding("stochastic", random_bits=bits), random=words)


def divided():
    ar = mcf.arithmetic("float32", Rounding("stochastic", random_bits=32), random=RandomWords(0))
    ar.div(np.float32([1.0]), np.float32([3.0]))


def in_a_second_format(compiled):
    def text(ar, x):
        return ar.round(ar.like(get_format("float8_e4m3fn"), Rounding("stochastic")).round(x))

    ar = mcf.arithmetic("bfloat16", compiled=compiled, random=RandomWords(1))
    ar.evaluate(text, np.ones(10, np.float32))


@refusals(
    refused(ValueError, "is for stochastic rounding, not up", Rounding, ("up", "nearest_boundary")),
    refused(ValueError, "random_bits", Rounding, ("stochastic", "ieee", 33), ("stochastic", "ieee", 0)),
    refused(ValueError, "truncate, centred, nearest_first", Rounding, ("stochastic", "ieee", 16, "fair")),
    refused(ValueError, "needs random=", drawn_with, ()),
    refused(ValueError, "needs random=", mcf.arithmetic, ("bfloat16", "stochastic")),
    refused(ValueError, "17 random bits need words of 32 bits", drawn_with, (W16, 17)),
    refused(TypeError, "must be uint32", drawn_with, W32.astype(int)),
    refused(ValueError, "do not fit", drawn_with, np.append(W32, W32)),
    refused(ValueError, "34 bits more", divided, ()),
    refused(ValueError, "of a second format needs random words of its own", in_a_second_format, (True,)),
    refused(ValueError, "needs random=", in_a_second_format, (False,)),
    refused(ValueError, "needs a random word of 64 bits", random_bits, (None, Rounding("stochastic"))),
    refused(ValueError, "not verified", mcf.verify, ("two_sum", "float8_e5m2", "stochastic")),
)
def test_refusals(rows):
    check(rows)
