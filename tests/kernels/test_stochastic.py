"""Stochastic rounding: every draw enumerated, exact probabilities, and the same words everywhere."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.codec import all_values, next_up
from mcfsim.oracle import round_fraction
from mcfsim.random import RandomWords
from mcfsim.rounding import Overflow, Rounding, Rule

#: Ups out of four draws (r = 2) for the fraction k / 16, k = 0..15.
UPS = {
    Rule.TRUNCATE: "0000111122223333",
    Rule.CENTRED: "0011112222333344",
    Rule.NEAREST_FIRST: "0001112222233344",
}


def ups_by_definition(rule, f, r):
    """Count the draws R in [0, 2**r) that round a fraction up, by the inequality of the rule."""
    whole = 2**r
    match rule:
        case Rule.TRUNCATE:
            return sum(math.floor(f * whole) + draw >= whole for draw in range(whole))
        case Rule.CENTRED:
            return sum(math.floor(2 * f * whole) + 2 * draw + 1 >= 2 * whole for draw in range(whole))
        case Rule.NEAREST_FIRST:
            return sum(round(f * whole) + draw >= whole for draw in range(whole))


def ups(x, fmt, rounding, carrier=np.float32):
    """Count the draws that move x away from its truncation, over all values of the top random bits."""
    r = rounding.random_bits
    words = (np.arange(2**r, dtype=np.uint64) << np.uint64(32 - r)).astype(np.uint32)
    result = mcf.round_to(np.full(words.size, x, dtype=carrier), fmt, rounding, random=words)
    below = mcf.round_to(float(x), fmt, "toward_zero")
    assert set(result.tolist()) <= {below, float(math.copysign(next_up(abs(below), fmt), x))}
    return int(np.count_nonzero(result != below))


@pytest.mark.parametrize("rule", Rule)
@pytest.mark.parametrize("sign", [1, -1])
def test_two_random_bits_give_the_published_counts(rule, sign):
    rounding = Rounding("stochastic", random_bits=2, rule=rule)
    counts = [ups(sign * (1 + k / 16 / 128), "bfloat16", rounding) for k in range(16)]
    assert "".join(map(str, counts)) == UPS[rule]


@pytest.mark.parametrize("rule", Rule)
@pytest.mark.parametrize("r", range(1, 9))
@pytest.mark.parametrize(
    ("fmt", "base", "quantum"),
    [
        ("bfloat16", 1.0, 2.0**-7),
        ("bfloat16", 2.0**-130, 2.0**-133),
        ("float8_e4m3fn", 3.5, 2.0**-2),
        ("float8_e5m2", 2.0**-15, 2.0**-16),
        ("float16", 0.0, 2.0**-24),
    ],
)
def test_all_draws_give_exactly_the_stated_probability(rule, r, fmt, base, quantum):
    rounding = Rounding("stochastic", random_bits=r, rule=rule)
    for k in (0, 1, 3, 31, 32, 33, 100, 127, 128, 129, 200, 255):
        f = Fraction(k, 256)
        x = base + float(f) * quantum
        assert ups(x, fmt, rounding, np.float64) == ups_by_definition(rule, f, r)


@pytest.mark.parametrize("rule", Rule)
@pytest.mark.parametrize("fmt", ["float8_e4m3fn", "float8_e5m2", "float6_e2m3fn", "float4_e2m1fn"])
def test_values_of_the_format_never_move(rule, fmt):
    values = all_values(fmt)
    for word in (0, 2**31, 2**32 - 1):
        words = np.full(values.shape, word, dtype=np.uint32)
        moved = mcf.round_to(values, fmt, Rounding("stochastic", rule=rule), random=words)
        assert moved.tobytes() == values.tobytes()


@pytest.mark.slow
def test_mean_of_ten_million_draws_is_within_five_standard_errors():
    n, f = 10_000_000, 0.3
    x = np.full(n, 1 + f / 128, dtype=np.float64)
    rounding = Rounding("stochastic", random_bits=16)
    mean = (mcf.round_to(x, "bfloat16", rounding, random=RandomWords(3)) - 1).mean() * 128
    expected = math.floor(f * 2**16) / 2**16
    assert abs(mean - expected) < 5 * math.sqrt(expected * (1 - expected) / n)


@pytest.mark.parametrize("overflow", [Overflow.IEEE, Overflow.SATURATE])
def test_overflow_is_that_of_the_unbounded_exponent(overflow):
    largest = float(mcf.get_format("float8_e5m2").max)
    quantum = 2.0**13
    x = np.array([largest + quantum / 2] * 2 + [largest + 2 * quantum, np.inf, np.nan])
    words = np.array([0, 2**31, 0, 0, 0], dtype=np.uint32)
    result = mcf.round_to(x, "float8_e5m2", Rounding("stochastic", overflow), random=words)
    beyond = np.inf if overflow is Overflow.IEEE else largest
    np.testing.assert_array_equal(result, [largest, beyond, beyond, np.inf, np.nan])


@pytest.mark.parametrize("rule", Rule)
@pytest.mark.parametrize("fmt", ["float8_e5m2", "float8_e4m3fn", "binary8p3se"])
def test_overflow_at_the_nearest_boundary_takes_the_fraction_of_half_a_quantum(fmt, rule):
    fmt, r = mcf.get_format(fmt), 4
    half = Fraction(2) ** (fmt.emax - fmt.precision)
    words = (np.arange(2**r, dtype=np.uint32) << np.uint32(32 - r)).astype(np.uint32)
    rounding = Rounding("stochastic", "nearest_boundary", random_bits=r, rule=rule)
    beyond = np.inf if fmt.has_infinity else np.nan
    for f in (Fraction(k, 64) for k in (0, 1, 2, 30, 31, 32, 33, 62, 63, 64, 65, 100, 10**6)):
        for sign in (1, -1):
            x = np.full(words.size, float(sign * (fmt.max + f * half)))
            rounded = mcf.round_to(x, fmt, rounding, random=words)
            outside = ~np.isfinite(rounded)
            assert np.array_equal(rounded[~outside], np.full((~outside).sum(), sign * float(fmt.max)))
            np.testing.assert_array_equal(rounded[outside], np.full(outside.sum(), sign * beyond))
            assert outside.sum() == (2**r if f >= 1 else ups_by_definition(rule, f, r))


def test_the_nearest_boundary_is_a_policy_of_stochastic_rounding_alone():
    with pytest.raises(ValueError, match="'nearest_boundary' is for stochastic rounding, not up"):
        Rounding("up", "nearest_boundary")


@pytest.mark.parametrize("r", [15, 16, 17])
def test_words_of_sixteen_bits_are_drawn_where_they_suffice(r):
    x = np.random.default_rng(0).standard_normal(1000)
    words = RandomWords(3, step=5).words(0, x.size, 16 if r <= 16 else 32)
    rounding = Rounding("stochastic", random_bits=r)
    drawn = mcf.round_to(x, "bfloat16", rounding, random=RandomWords(3, step=5))
    np.testing.assert_array_equal(drawn, mcf.round_to(x, "bfloat16", rounding, random=words))
    if r > 16:
        with pytest.raises(ValueError, match="17 random bits need words of 32 bits"):
            mcf.round_to(x, "bfloat16", rounding, random=words.astype(np.uint16))


def test_layout_threads_and_blocks_draw_the_same_words():
    x = np.random.default_rng(0).standard_normal((300, 400)).astype(np.float32)
    draw = {"rounding": "stochastic", "random": RandomWords(11)}
    expected = mcf.round_to(x, "bfloat16", **draw)
    words = RandomWords(11).words(0, x.size, 16).reshape(x.shape)
    np.testing.assert_array_equal(expected, mcf.round_to(x, "bfloat16", "stochastic", random=words))
    np.testing.assert_array_equal(expected, mcf.round_to(np.asfortranarray(x), "bfloat16", **draw))
    np.testing.assert_array_equal(expected, mcf.round_to(x[::-1].copy()[::-1], "bfloat16", **draw))
    np.testing.assert_array_equal(expected, mcf.round_to(x, "bfloat16", threads=2, **draw))


EXACTLY = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "fma": lambda a, b, c: a * b + c,
}


@pytest.mark.parametrize("name", EXACTLY)
@pytest.mark.parametrize("fmt", ["bfloat16", "float8_e4m3fn"])
def test_operations_draw_on_the_exact_result(name, fmt):
    """Each result is the truncation or its neighbour, as the word and the exact fraction decide."""
    fmt = mcf.get_format(fmt)
    arity = 3 if name == "fma" else 2
    rng = np.random.default_rng(1)
    operands = [mcf.round_to(rng.uniform(0.5, 4, 200) * rng.choice([-1, 1], 200), fmt) for _ in range(arity)]
    rounding = Rounding("stochastic", random_bits=32)
    ar = mcf.arithmetic(fmt, rounding, random=RandomWords(4, stream=9))
    results = getattr(ar, name)(*(operand.astype(ar.carrier) for operand in operands))
    words = RandomWords(4, stream=9).words(0, 200)
    for *values, result, word in zip(*operands, results, words, strict=True):
        exact = EXACTLY[name](*(Fraction(float(v)) for v in values))
        below = round_fraction(exact, fmt, Rounding("toward_zero"))
        above = math.copysign(float(next_up(abs(below), fmt)), exact)
        fraction = (abs(exact) - abs(Fraction(below))) / (abs(Fraction(above)) - abs(Fraction(below)))
        up = math.floor(fraction * 2**32) + int(word) >= 2**32
        assert result == (above if up else below)


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


@pytest.mark.parametrize("fmt", ["e3m2", "e3m3"])
def test_the_sum_of_both_parts_of_2sum_is_unbiased(fmt):
    """E[s + e] = a + b exactly: by enumeration of all draws, each weighted with its rational probability."""
    fmt = mcf.get_format(fmt)
    values = [Fraction(float(v)) for v in all_values(fmt) if 0.5 <= abs(v) <= 2]

    def outcomes(exact):
        below = Fraction(round_fraction(exact, fmt, Rounding("toward_zero")))
        if below == exact:
            return [(exact, Fraction(1))]
        above = Fraction(math.copysign(float(next_up(abs(float(below)), fmt)), exact))
        up = (exact - below) / (above - below)
        return [(below, 1 - up), (above, up)]

    for a, b in itertools.product(values[::3], values[1::4]):
        expected = Fraction(0)
        for s, p0 in outcomes(a + b):
            for a1, p1 in outcomes(s - b):
                for b1, p2 in outcomes(s - a1):
                    for d, p3 in outcomes(a - a1):
                        for c, p4 in outcomes(b - b1):
                            for e, p5 in outcomes(d + c):
                                expected += p0 * p1 * p2 * p3 * p4 * p5 * (s + e)
        assert expected == a + b


@pytest.mark.slow
def test_training_repeats_itself_and_resumes_to_the_same_bits(tmp_path):
    problem = mcf.get_problem("quadratic", dimension=10, condition_number=10.0)
    settings = {"strategies": ["plain", "fp32-optim"], "steps": 12, "rounding": "stochastic", "seed": 3}
    whole, again = (mcf.simulate(problem, **settings) for _ in range(2))
    assert whole.results == again.results
    other = mcf.simulate(problem, **{**settings, "seed": 4})
    assert whole.results != other.results
    path = tmp_path / "c.npz"
    mcf.simulate(problem, **settings, checkpoint=path, checkpoint_every=5)
    assert mcf.simulate(problem, **settings, checkpoint=path).results == whole.results


def test_refusals():
    with pytest.raises(ValueError, match="needs random="):
        mcf.round_to([1.1], "bfloat16", "stochastic")
    with pytest.raises(ValueError, match="needs random="):
        mcf.arithmetic("bfloat16", "stochastic")
    with pytest.raises(TypeError, match="must be uint32"):
        mcf.round_to([1.1], "bfloat16", "stochastic", random=np.array([1]))
    with pytest.raises(ValueError, match="do not fit"):
        mcf.round_to([1.1], "bfloat16", "stochastic", random=np.array([1, 2], dtype=np.uint32))
    with pytest.raises(ValueError, match="random_bits"):
        Rounding("stochastic", random_bits=33)
    with pytest.raises(ValueError, match="allowed: truncate, centred, nearest_first"):
        Rounding("stochastic", rule="fair")
    fine = Rounding("stochastic", random_bits=32)
    with pytest.raises(ValueError, match="34 bits more"):
        mcf.arithmetic("float32", fine, random=RandomWords(0)).div(np.float32([1.0]), np.float32([3.0]))
    with pytest.raises(ValueError, match="not verified"):
        mcf.verify("two_sum", "float8_e5m2", "stochastic")
