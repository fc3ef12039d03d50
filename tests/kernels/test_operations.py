"""Operations against exact integers and fractions: all operands, hard ones, every kind of format and mode."""

import itertools
from functools import cache

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.codec import all_values, decode
from mcfsim.formats import FORMATS, Format, Specials, get_format
from mcfsim.kernels import native, real_numbers
from mcfsim.kernels.carriers import UnsupportedFormatError
from mcfsim.oracle import OracleArithmetic, operate, operate_integers
from mcfsim.rounding import DETERMINISTIC, Mode, Rounding
from tests.oracle.operands import (
    MODES,
    ROUNDINGS,
    SMALL_FORMATS,
    UNUSUAL_FORMATS,
    WIDE_FORMATS,
    corners,
    count,
    label,
    magnitudes,
    random_tuples,
    values,
)
from tests.shared.formats import drawn, roundings

BINARY = ["add", "sub", "mul", "div"]
ARITY = {**dict.fromkeys(BINARY, 2), "sqrt": 1, "fma": 3}
E5M2, E4M3FN, BF16, FP16 = (get_format(name) for name in ("e5m2", "e4m3fn", "bfloat16", "float16"))
CHUNK = 2**20
#: Of few values, and no operation of which tells them from a short float of all specials.
CUSTOM = [
    *(Format(precision=3, emin=-3, emax=4, specials=specials) for specials in Specials),
    Format("below", precision=3, emin=-9, emax=-2),  # neither holds 1, so that a sign is rounded
    Format("above", precision=3, emin=3, emax=6),
]
TINY = [
    *map(get_format, ("posit4es1", "posit5", "posit5es0", "posit6es3")),
    *map(get_format, ("int3", "int4", "int4_symmetric", "ternary")),
]
BYTES = [*map(get_format, ("posit8", "posit8es0", "int8"))]
#: Formats too wide for the oracle of arrays: each operation has an exact path in them, in the modes said.
TOO_WIDE = {
    **{f"precision {p}": (Format(precision=p, emin=-300, emax=300), DETERMINISTIC) for p in (26, 27, 40, 51)},
    "float32": (FORMATS["float32"], DETERMINISTIC),
    "precision 27, short": (Format(precision=27, emin=-126, emax=127), DETERMINISTIC),
    "sums of 55 bits": (Format(precision=27, emin=-14, emax=13), DETERMINISTIC),
    "huge range": (Format(precision=20, emin=-1000, emax=1000), [Mode.NEAREST_EVEN, Mode.NEAREST_AWAY]),
}
#: Formats at random, with a rounding each.
DRAWN = [x for x in map(drawn, range(240)) if type(x[0]) is Format]


def by_oracle(name, operands, fmt, rounding):
    """Return results by the oracle of arrays, or for a format that it does not take of single numbers."""
    if type(fmt) is Format and fmt.precision <= 11:
        return operate_integers(name, *operands, fmt=fmt, rounding=rounding)
    rows = zip(*(np.asarray(x).tolist() for x in operands), strict=True)
    return [operate(name, row, fmt, rounding) for row in rows]


def check(name, operands, fmt, rounding, assert_same):
    found = getattr(mcf.arithmetic(fmt, rounding), name)(*operands)
    assert_same(found, by_oracle(name, operands, fmt, rounding), *operands)


# -- hard operands ----------------------------------------------------------------------------------------
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


def long_runs(fmt, arity, size, seed):
    """Return operands with long runs of equal bits, so that results lie near values and midpoints."""
    rng, p = np.random.default_rng(seed), fmt.precision
    first, operands = rng.integers(fmt.emin, fmt.emax + 1, size), []
    for place in range(arity):
        heads, runs = rng.integers(2 ** (p - 1), 2**p, size), rng.integers(0, p, size)
        ends = np.choose(rng.integers(0, 3, size), [heads, heads >> runs << runs, heads | ((1 << runs) - 1)])
        beside = np.where(rng.random(size) < 0.5, first, -first) + rng.integers(-p, p, size)
        exponents = np.clip(first if place == 0 else beside, fmt.emin, fmt.emax)
        operands.append(rng.choice([-1.0, 1.0], size) * np.ldexp(ends.astype(np.float64), exponents - p + 1))
    return operands


def specials(fmt, arity):
    """Return all tuples of zeros, ones, the extremes and what is not finite."""
    numbers = [1.0, float(fmt.max), float(fmt.smallest_normal)]
    numbers += [0.0, float(fmt.smallest_subnormal)] * fmt.zero
    numbers += [-x for x in numbers if x or fmt.has_negative_zero] * fmt.signed
    numbers += [np.inf, -np.inf][: 1 + fmt.signed] * fmt.has_infinity + [np.nan] * fmt.has_nan
    numbers = [x for x in numbers if np.isinf(x) or np.isnan(x) or mcf.round_to(x, fmt) == x]
    return np.array(list(itertools.product(numbers, repeat=arity))).T


@cache
def hard_operands(name, fmt, size, seed=2):
    """Return all that is hard for an operation of a format."""
    arity = ARITY[name]
    parts = [specials(fmt, arity)]
    if fmt.precision <= 11:
        grid = np.array(list(itertools.product(corners(fmt).tolist(), repeat=min(arity, 2)))).T
        parts += [random_tuples(fmt, size, arity, seed), [grid[i % len(grid)] for i in range(arity)]]
    else:
        parts.append(long_runs(fmt, arity, size, seed))
    if name == "fma" and fmt.signed and fmt.zero:
        parts.append(hard_triples(fmt, size, seed))
    return [np.concatenate(columns) for columns in zip(*parts, strict=True)]


# -- every operation --------------------------------------------------------------------------------------
def pairs_of(x):
    return [y.ravel() for y in np.meshgrid(x, x)]


@pytest.mark.parametrize(
    ("fmt", "rounding"),
    [
        *((fmt, r) for fmt in [*SMALL_FORMATS, *UNUSUAL_FORMATS, *CUSTOM, *TINY] for r in roundings(fmt)),
        *(pytest.param(fmt, r, marks=pytest.mark.exhaustive) for fmt in BYTES for r in MODES),
    ],
    ids=label,
)
@pytest.mark.sampled(68, each=False)
@pytest.mark.slow
def test_all_pairs_of_small_formats_are_rounded_once(fmt, rounding, assert_same):
    floating = type(fmt) is Format
    x = values(fmt) if floating else np.append(all_values(fmt).astype(np.float64), [np.nan] * fmt.has_nan)
    some = x if x.size <= 9 else np.append(x[:: x.size // 9], corners(fmt) if floating else [])
    for name in BINARY:
        check(name, pairs_of(x), fmt, rounding, assert_same)
    check("sqrt", [x], fmt, rounding, assert_same)
    check("fma", [y.ravel() for y in np.meshgrid(some, some, some)], fmt, rounding, assert_same)
    ar, oracle = mcf.arithmetic(fmt, rounding), OracleArithmetic(fmt, rounding)
    for name in ("neg", "abs", "sign"):
        assert_same(getattr(ar, name)(x), [getattr(oracle, name)(v) for v in x.tolist()], x)


@pytest.mark.parametrize("policy", ["flush_inputs", "flush_before", "flush_after"])
def test_a_sign_is_not_flushed(policy, assert_same):
    fmt = Format(precision=3, emin=2, emax=5)  # of which 1 is subnormal
    ar, oracle = mcf.arithmetic(fmt, underflow=policy), OracleArithmetic(fmt, Rounding(underflow=policy))
    x = all_values(fmt)
    assert_same(ar.sign(x), [oracle.sign(v) for v in x.tolist()], x)
    assert ar.sign(8.0) == 1


@pytest.mark.parametrize(("fmt", "rounding"), DRAWN, ids=label)
@pytest.mark.sampled(40, each=False)
def test_hard_operands_of_formats_at_random_are_rounded_once(fmt, rounding, assert_same):
    for name, arity in ARITY.items():
        operands = random_tuples(fmt, 30, arity, seed=1)
        try:
            found = getattr(mcf.arithmetic(fmt, rounding), name)(*operands)
        except UnsupportedFormatError:
            assert max(-fmt.emin, fmt.emax) > 300
            continue
        rows = zip(*(x.tolist() for x in operands), strict=True)
        assert_same(found, [operate(name, row, fmt, rounding) for row in rows], *operands)


@pytest.mark.parametrize("name", [*(f"posit{x}" for x in (8, "10es3", 16, "16es1", 32, "32es3")), "int8"])
@pytest.mark.sampled(4, each=False)
def test_hard_operands_of_posits_are_rounded_once(name, assert_same):
    """Half of the operands are of codes near those of the first, or of its inverse."""
    fmt, rng = get_format(name), np.random.default_rng(5)
    top, size = 2 ** (fmt.bits - 1) - 1, 40
    first = rng.integers(1, top + 1, size)
    for place, (operation, arity) in enumerate(ARITY.items()):
        codes = [first]
        for _ in range(arity - 1):
            near = first + rng.integers(-(top // 8) - 2, top // 8 + 3, size)
            inverse = top + 1 - first + rng.integers(-2, 3, size)
            picked = np.choose(rng.integers(0, 3, size), [near, inverse, rng.integers(1, top + 1, size)])
            codes.append(np.clip(picked, 1, top))
        numbers = [decode(x.astype(np.uint64), fmt).astype(np.float64) for x in codes]
        numbers = [x * rng.choice([-1.0, 1.0], size) if operation != "sqrt" else x for x in numbers]
        for rounding in (Rounding(), MODES[1 + place % 5]):
            check(operation, numbers, fmt, rounding, assert_same)


@pytest.mark.parametrize(("fmt", "rounding"), [(f, r) for f in WIDE_FORMATS for r in roundings(f)], ids=label)
@pytest.mark.sampled(18, each=False)
def test_hard_operands_of_wide_formats_are_rounded_once(fmt, rounding, assert_same):
    for name in ARITY:
        check(name, hard_operands(name, fmt, 6000), fmt, rounding, assert_same)
    x = values(fmt)[:: 1 if rounding == Rounding() else 97]
    check("sqrt", [x], fmt, rounding, assert_same)


@pytest.mark.parametrize("name", ARITY)
@pytest.mark.parametrize("case", TOO_WIDE)
@pytest.mark.sampled(2)
def test_operations_of_wider_formats_are_rounded_once(case, name, assert_same):
    fmt, modes = TOO_WIDE[case]
    if name == "fma" and case == "huge range":
        with pytest.raises(UnsupportedFormatError, match=r"fma in .* has no exact path"):
            check(name, np.ones((3, 1)), fmt, Rounding(modes[0]), assert_same)
        return
    operands = hard_operands(name, fmt, 60)
    few = np.random.default_rng(1).permutation(len(operands[0]))[:40]
    for mode in modes:
        check(name, [x[few] for x in operands], fmt, Rounding(mode), assert_same)


def test_an_infinity_outweighs_products_that_binary64_does_not_hold():
    huge = np.float64(1e300)
    for sign in (1.0, -1.0):
        operands = (np.array([x]) for x in (sign * huge, huge, -sign * np.inf))
        assert real_numbers.decided("fma", *operands).tolist() == [-sign * np.inf]


@pytest.mark.parametrize("name", ["add", "mul", "div", "sqrt", "fma"])
def test_residuals_make_binary64_odd(name, assert_same):
    """As the definition rounds the exact result to odd."""
    rng, shape, fmt = np.random.default_rng(8), (ARITY[name], 100), get_format("float64")
    operands = rng.integers(2**52, 2**53, shape) * 2.0 ** rng.integers(-60, 0, shape)
    operands *= rng.choice([-1.0, 1.0], shape) if name != "sqrt" else 1.0
    found = native.make_odd(*getattr(native, name)(*operands))
    expected = [operate(name, row, fmt, Rounding("to_odd")) for row in operands.T.tolist()]
    assert_same(found, expected, *operands)


@pytest.mark.exhaustive
@pytest.mark.parametrize("mode", DETERMINISTIC)
@pytest.mark.parametrize("fmt", [E5M2, E4M3FN], ids=label)
def test_all_triples_of_a_byte_are_rounded_once(fmt, mode, assert_same):
    everything = values(fmt)
    for rows in np.array_split(everything, 16):
        operands = np.broadcast_arrays(rows[:, None, None], everything[:, None], everything)
        check("fma", operands, fmt, Rounding(mode), assert_same)


@pytest.mark.exhaustive
@pytest.mark.parametrize("mode", DETERMINISTIC)
@pytest.mark.parametrize("fmt", WIDE_FORMATS, ids=label)
def test_millions_of_hard_operands_are_rounded_once(fmt, mode, assert_same):
    for name, seed in itertools.product(ARITY, range(2 if mode is Mode.NEAREST_EVEN else 1)):
        check(name, hard_operands.__wrapped__(name, fmt, CHUNK, seed), fmt, Rounding(mode), assert_same)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["add", "mul", "div"])
@pytest.mark.parametrize(("fmt", "step"), [(BF16, 8), (FP16, 16)], ids=label)
def test_pairs_of_16_bits_are_rounded_once(fmt, step, name, assert_same):
    """One magnitude is every eighth or sixteenth; signs and order are drawn."""
    positive, rng = magnitudes(fmt), np.random.default_rng(1)
    for rows in np.array_split(positive[1::step], 2**13 // step):
        a, b = (x * rng.choice([-1.0, 1.0], x.shape) for x in np.broadcast_arrays(rows[:, None], positive))
        check(name, [a, b] if rng.random() < 0.5 else [b, a], fmt, Rounding(), assert_same)


@pytest.mark.parametrize("specials", ["ieee", "fn"])
@pytest.mark.parametrize("rounding", ROUNDINGS, ids=label)
@pytest.mark.sampled(3)
def test_sums_beyond_binary64_overflow_as_the_mode_and_the_policy_say(rounding, specials, assert_same):
    fmt = Format(precision=20, emin=-1000, emax=1023, specials=specials)
    largest = float(fmt.max)
    numbers = np.array([largest, largest / 2, 2.0**1000, 1.0])
    for name in ("add", "sub"):
        check(name, pairs_of(np.append(numbers, -numbers)), fmt, rounding, assert_same)
