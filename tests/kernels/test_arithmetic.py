"""Emulated operations against exact integers and fractions: all pairs, hard pairs, modes, real scalars."""

import itertools
from fractions import Fraction
from functools import lru_cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mcfsim as mcf
from mcfsim.formats import FORMATS, Format, Specials
from mcfsim.kernels.carriers import UnsupportedFormatError
from mcfsim.oracle import operate, operate_integers, round_fraction, same
from mcfsim.protocol import Arithmetic, straight_line
from mcfsim.rounding import DETERMINISTIC, Mode, Rounding
from mcfsim.storage.buffers import BLOCK
from tests.oracle.operands import (
    FLUSHING,
    OVERFLOWS,
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

BINARY = ["add", "sub", "mul", "div"]
ARITY = {**dict.fromkeys(BINARY, 2), "sqrt": 1, "fma": 3}
E4M3FN, E5M2, BF16, FP16, TF32 = (
    FORMATS[name] for name in ("float8_e4m3fn", "float8_e5m2", "bfloat16", "float16", "tf32")
)
NEAREST = Rounding()
CHUNK = 2**20

# Formats too wide for the int64 oracle: each operation has an exact path in them, in the modes said.
WIDE_CUSTOM = {
    "float32": (FORMATS["float32"], list(DETERMINISTIC)),
    "precision 26": (Format(precision=26, emin=-300, emax=300), list(DETERMINISTIC)),
    "precision 27": (Format(precision=27, emin=-300, emax=300), list(DETERMINISTIC)),
    "precision 51": (Format(precision=51, emin=-400, emax=400), list(DETERMINISTIC)),
    "huge range": (Format(precision=20, emin=-1000, emax=1000), [Mode.NEAREST_EVEN, Mode.NEAREST_AWAY]),
}


def all_pairs(fmt):
    everything = values(fmt)
    return everything[:, None], everything[None, :]


def corner_pairs(fmt):
    return corners(fmt)[:, None], corners(fmt)[None, :]


# -- nearest even -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("fmt", SMALL_FORMATS, ids=label)
def test_all_pairs_of_small_formats_are_rounded_once(fmt, name, assert_same):
    a, b = all_pairs(fmt)
    result = getattr(mcf.arithmetic(fmt), name)(a, b)
    assert_same(result, operate_integers(name, a, b, fmt=fmt), a, b)


@pytest.mark.parametrize("fmt", [*SMALL_FORMATS, BF16, FP16, TF32], ids=label)
def test_all_square_roots_are_rounded_once(fmt, assert_same):
    x = values(fmt)
    assert_same(mcf.arithmetic(fmt).sqrt(x), operate_integers("sqrt", x, fmt=fmt), x)


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("fmt", WIDE_FORMATS, ids=label)
def test_all_pairs_of_corners_are_rounded_once(fmt, name, assert_same):
    a, b = corner_pairs(fmt)
    result = getattr(mcf.arithmetic(fmt), name)(a, b)
    assert_same(result, operate_integers(name, a, b, fmt=fmt), a, b)


@pytest.mark.parametrize(
    "seeds", [range(1), pytest.param(range(1, 10), marks=pytest.mark.exhaustive)], ids=len
)
@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("fmt", [BF16, FP16], ids=label)
@pytest.mark.sampled(4)
@pytest.mark.slow
def test_millions_of_hard_pairs_are_rounded_once(fmt, name, seeds, assert_same):
    ar = mcf.arithmetic(fmt)
    for seed in seeds:
        a, b = random_tuples(fmt, CHUNK, 2, seed)
        assert_same(getattr(ar, name)(a, b), operate_integers(name, a, b, fmt=fmt), a, b)


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.sampled(4, each=False)
@pytest.mark.slow
def test_two_million_hard_pairs_of_tf32_are_rounded_once(name, assert_same):
    ar = mcf.arithmetic(TF32)
    for seed in range(2):
        a, b = random_tuples(TF32, CHUNK, 2, seed)
        assert_same(getattr(ar, name)(a, b), operate_integers(name, a, b, fmt=TF32), a, b)


@pytest.mark.parametrize("name", ["mul", "div"])
@pytest.mark.parametrize("fmt", WIDE_FORMATS, ids=label)
def test_products_and_quotients_about_the_smallest_numbers_are_rounded_once(fmt, name, assert_same):
    rng = np.random.default_rng(1)
    significands = rng.integers(2 ** (fmt.precision - 1), 2**fmt.precision, (2, CHUNK)).astype(np.float64)
    # The result's exponent lies within a few of those of the smallest normal and subnormal numbers.
    total = fmt.emin - fmt.precision + rng.integers(-3, fmt.precision + 5, CHUNK)
    low, high = fmt.emin, fmt.emax
    first = rng.integers(np.maximum(low, total - high), np.minimum(high, total - low) + 1)
    a = np.ldexp(significands[0], first - fmt.precision + 1)
    second = total - first if name == "mul" else first - total
    second, first = np.clip(second, low, high), first
    b = np.ldexp(significands[1], second - fmt.precision + 1)
    result = getattr(mcf.arithmetic(fmt), name)(a, b)
    assert_same(result, operate_integers(name, a, b, fmt=fmt), a, b)
    assert np.mean(np.abs(result) < float(fmt.smallest_normal)) > 0.2


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["add", "mul", "div"])
@pytest.mark.parametrize("fmt", [BF16, FP16], ids=label)
def test_all_pairs_of_16_bits_are_rounded_once(fmt, name, assert_same):
    """The oracle judges one of the pairs that order and signs make alike: so must the others come out."""
    everything, ar = values(fmt), mcf.arithmetic(fmt)
    positive = everything[~np.signbit(everything)]
    assert 2 * positive.size - np.isnan(positive).sum() == everything.size

    def alike(inner, a, b):
        operate, minus_a, minus_b = getattr(inner, name), inner.neg(a), inner.neg(b)
        same_sign, opposite = [(a, b), (minus_a, minus_b)], [(minus_a, b), (a, minus_b)]
        if name == "add":
            opposite = []
        if name != "div":
            same_sign, opposite = ([*pairs, *((b, a) for a, b in pairs)] for pairs in (same_sign, opposite))
        return tuple(tuple(operate(*pair) for pair in pairs) for pairs in (same_sign, opposite))

    for rows in np.array_split(np.arange(positive.size), 2**13):
        a, b = positive[rows, None], positive if name == "div" else positive[: rows[-1] + 1]
        if name == "add":
            b = np.concatenate([b, -b])
        same_sign, opposite = ar.evaluate(alike, a, b)
        result, others = same_sign[0], same_sign[1:]
        assert_same(result, operate_integers(name, a, b, fmt=fmt), a, b)
        if (
            name == "add"
        ):  # of two negative zeros the sum is negative, and of all others that are zero positive
            mirrored = np.where(result == 0, np.where((a == 0) & ~np.signbit(b), -0.0, 0.0), -result)
            for found, expected in zip(others, (mirrored, result, mirrored), strict=True):
                assert_same(found, expected, a, b)
        else:
            for found in others:
                assert_same(found, result, a, b)
            for found in opposite:
                assert_same(found, -result, a, b)


# -- every mode and policy --------------------------------------------------------------------------------
@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("fmt", [*SMALL_FORMATS, *UNUSUAL_FORMATS], ids=label)
@pytest.mark.sampled(4)
def test_all_pairs_are_rounded_once_in_every_mode(fmt, name, assert_same):
    a, b = all_pairs(fmt)
    for rounding in ROUNDINGS:
        result = getattr(mcf.arithmetic(fmt, rounding), name)(a, b)
        assert_same(result, operate_integers(name, a, b, fmt=fmt, rounding=rounding), a, b)


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("fmt", [E4M3FN, E5M2, *UNUSUAL_FORMATS], ids=label)
@pytest.mark.sampled(6)
def test_all_pairs_are_flushed_as_the_policy_says(fmt, name, assert_same):
    a, b = all_pairs(fmt)
    for rounding in FLUSHING:
        result = getattr(mcf.arithmetic(fmt, rounding), name)(a, b)
        assert_same(result, operate_integers(name, a, b, fmt=fmt, rounding=rounding), a, b)


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("fmt", [BF16, FP16], ids=label)
def test_a_hundred_million_pairs_are_rounded_once_in_the_other_modes(fmt, part, assert_same):
    for seed in range(part, 100, 4):
        a, b = random_tuples(fmt, CHUNK, 2, seed)
        for name, mode in itertools.product(BINARY, DETERMINISTIC):
            if mode is not Mode.NEAREST_EVEN:
                expected = operate_integers(name, a, b, fmt=fmt, rounding=Rounding(mode))
                assert_same(getattr(mcf.arithmetic(fmt, mode), name)(a, b), expected, a, b)


@lru_cache(maxsize=8)
def hard_tuples_and_corners(fmt, arity):
    hard = random_tuples(fmt, 20_000, arity, seed=2)
    pairs = np.array(list(itertools.product(corners(fmt).tolist(), repeat=min(arity, 2)))).T
    return [np.concatenate(parts) for parts in zip(hard, pairs[[0, -1, 0][:arity]], strict=True)]


@pytest.mark.parametrize("rounding", [*ROUNDINGS, *FLUSHING], ids=label)
@pytest.mark.parametrize("fmt", [*SMALL_FORMATS, *UNUSUAL_FORMATS, *WIDE_FORMATS], ids=label)
@pytest.mark.sampled(8)
def test_every_operation_is_rounded_once_in_every_mode(fmt, rounding, assert_same):
    ar = mcf.arithmetic(fmt, rounding)
    for name, arity in ARITY.items():
        operands = hard_tuples_and_corners(fmt, arity)
        expected = operate_integers(name, *operands, fmt=fmt, rounding=rounding)
        assert_same(getattr(ar, name)(*operands), expected, *operands)


@pytest.mark.parametrize("rounding", ROUNDINGS, ids=label)
@pytest.mark.parametrize("fmt", [BF16, FP16, TF32], ids=label)
def test_all_square_roots_are_rounded_once_in_every_mode(fmt, rounding, assert_same):
    x = values(fmt)[:: 1 if fmt.bits == 16 else 7]
    result = mcf.arithmetic(fmt, rounding).sqrt(x)
    assert_same(result, operate_integers("sqrt", x, fmt=fmt, rounding=rounding), x)


@pytest.mark.parametrize("specials", Specials)
@pytest.mark.parametrize("name", BINARY)
def test_all_pairs_of_a_custom_format_are_rounded_once_in_every_mode(name, specials, assert_same):
    fmt = Format(precision=3, emin=-3, emax=4, specials=specials)
    a, b = all_pairs(fmt)
    for rounding in ROUNDINGS:
        result = getattr(mcf.arithmetic(fmt, rounding), name)(a, b)
        assert_same(result, operate_integers(name, a, b, fmt=fmt, rounding=rounding), a, b)


@pytest.mark.parametrize("name", ARITY)
@pytest.mark.parametrize("case", WIDE_CUSTOM)
def test_operations_of_wide_formats_are_rounded_once(case, name, assert_same):
    fmt, modes = WIDE_CUSTOM[case]
    if name == "fma" and case == "huge range":
        modes = []
    rng = np.random.default_rng(3)
    for mode in modes:
        operands = [x[:150] for x in wide_operands(fmt, ARITY[name], rng)]
        rows = zip(*(x.tolist() for x in operands), strict=True)
        expected = [operate(name, row, fmt, Rounding(mode)) for row in rows]
        assert_same(getattr(mcf.arithmetic(fmt, mode), name)(*operands), expected, *operands)


def wide_operands(fmt, arity, rng):
    """Return operands with long runs of equal bits, so that results lie near values and midpoints."""
    size, p = 150, fmt.precision

    def significands():
        heads = rng.integers(2 ** (p - 1), 2**p, size)
        runs = rng.integers(0, p, size)
        kind = rng.integers(0, 3, size)
        return np.where(
            kind == 0, heads, np.where(kind == 1, heads >> runs << runs, heads | ((1 << runs) - 1))
        )

    first = rng.integers(fmt.emin, fmt.emax + 1, size)
    operands = []
    for i in range(arity):
        exponents = (
            first if i == 0 else np.where(rng.random(size) < 0.5, first, -first) + rng.integers(-p, p, size)
        )
        exponents = np.clip(exponents, fmt.emin, fmt.emax)
        signs = rng.choice([-1.0, 1.0], size)
        operands.append(signs * np.ldexp(significands().astype(np.float64), exponents - p + 1))
    specials = np.array(list(itertools.product([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0], repeat=arity)))
    chosen = specials[rng.integers(0, len(specials), 20)].T
    return [np.concatenate([extra, x]) for x, extra in zip(operands, chosen, strict=True)]


@settings(max_examples=200, deadline=None)
@given(data=st.data())
@pytest.mark.slow
def test_any_operation_of_any_small_format_is_rounded_once(data):
    precision, emin = data.draw(st.integers(2, 12)), data.draw(st.integers(-40, 5))
    fmt = Format(
        precision=precision,
        emin=emin,
        emax=emin + data.draw(st.integers(1, 45)),
        specials=data.draw(st.sampled_from(Specials)),
    )
    rounding = Rounding(data.draw(st.sampled_from(DETERMINISTIC)), data.draw(st.sampled_from(OVERFLOWS)))
    name = data.draw(st.sampled_from(sorted(ARITY)))
    place = st.integers(0, count(fmt) - 1)
    specials = [
        0.0,
        *[-0.0] * fmt.has_negative_zero,
        *[np.inf, -np.inf] * fmt.has_infinity,
        *[np.nan] * fmt.has_nan,
    ]
    number = st.one_of(
        st.builds(
            lambda i, sign: sign * float(magnitudes(fmt, np.array([i]))[0]) + 0.0,
            place,
            st.sampled_from([-1, 1]),
        ),
        st.sampled_from(specials),
    )
    operands = [data.draw(number) for _ in range(ARITY[name])]
    result = getattr(mcf.arithmetic(fmt, rounding), name)(*(np.array([x]) for x in operands))
    assert same(result, [operate(name, operands, fmt, rounding)]).all()


# -- real scalars -----------------------------------------------------------------------------------------
def adversarial_scalar(name, place, others, fmt, target):
    """Return the double that brings the operation's result closest to the target, in the given place."""
    x, t = Fraction(others[0]), target
    match name, place:
        case "add", _:
            return float(t - x)
        case "sub", 0:
            return float(t + x)
        case "sub", 1:
            return float(x - t)
        case "mul", _:
            return float(t / x)
        case "div", 0:
            return float(t * x)
        case "div", 1:
            return float(x / t)
        case "fma", 2:
            return float(t - x * Fraction(others[1]))
        case "fma", _:
            return float((t - Fraction(others[1])) / x)


def scalar_cases(name, place, fmt, seed, size):
    """Return the other operands and a scalar each: results beside ties and values, and any."""
    rng = np.random.default_rng(seed)
    p = fmt.precision
    arity = ARITY[name]
    rows = []
    for _ in range(size):
        others = []
        for _ in range(arity - 1):
            significand = float(rng.integers(2 ** (p - 1), 2**p)) * rng.choice([-1, 1])
            others.append(
                significand * 2.0 ** int(rng.integers(max(fmt.emin, -20), min(fmt.emax, 20)) - p + 1)
            )
        kind = rng.integers(0, 4)
        if kind == 0:
            scalar = float(rng.standard_normal()) * 2.0 ** int(rng.integers(-20, 20))
        else:
            half = Fraction(2) ** int(rng.integers(max(fmt.emin, -12) - 2, min(fmt.emax, 12)) - p)
            target = int(rng.integers(2**p, 2 ** (p + 1))) * half
            scalar = adversarial_scalar(name, place, others, fmt, target)
            scalar = float(np.nextafter(scalar, rng.choice([-np.inf, np.inf]))) if kind == 2 else scalar
        rows.append((others, scalar))
    return rows


@pytest.mark.parametrize("mode", DETERMINISTIC)
@pytest.mark.parametrize(
    ("name", "place"), [(name, place) for name, arity in ARITY.items() if arity > 1 for place in range(arity)]
)
@pytest.mark.sampled(8)
def test_a_real_scalar_enters_exactly_and_the_result_is_rounded_once(name, place, mode, assert_same):
    for fmt in (BF16, FP16, TF32, E4M3FN, E5M2):
        ar, rounding = mcf.arithmetic(fmt, mode), Rounding(mode)
        results, expected = [], []
        for others, scalar in scalar_cases(name, place, fmt, seed=4, size=60):
            arrays = [np.array([x]) for x in others]
            results.append(getattr(ar, name)(*arrays[:place], scalar, *arrays[place:])[0])
            expected.append(operate(name, [*others[:place], scalar, *others[place:]], fmt, rounding))
        assert_same(results, expected)


@pytest.mark.parametrize("scalar", [0.999, 0.001, 1 - 2.0**-53, 1e-8, 3.0000000000000004, -1 / 3, 1e100])
@pytest.mark.parametrize("name", BINARY)
@pytest.mark.sampled(6)
def test_all_values_with_a_real_scalar_are_rounded_once(name, scalar, assert_same):
    for fmt in (E4M3FN, E5M2):
        x = values(fmt)
        for mode, first in itertools.product(DETERMINISTIC, (False, True)):
            ar = mcf.arithmetic(fmt, mode)
            rows = [(scalar, v) if first else (v, scalar) for v in x.tolist()]
            result = getattr(ar, name)(scalar, x) if first else getattr(ar, name)(x, scalar)
            assert_same(result, [operate(name, row, fmt, Rounding(mode)) for row in rows], x)


@pytest.mark.parametrize("mode", DETERMINISTIC)
@pytest.mark.parametrize("name", ARITY)
@pytest.mark.sampled(6)
def test_under_the_policy_rounded_a_scalar_is_rounded_first(name, mode, assert_same):
    rng = np.random.default_rng(5)
    for fmt in (BF16, E4M3FN, FP16):
        ar, rounding = mcf.arithmetic(fmt, mode, scalars="rounded"), Rounding(mode)
        for scalar in [0.999, -1 / 3, 1e-9, 1e9, *rng.standard_normal(20).tolist()]:
            entered = round_fraction(Fraction(scalar), fmt, rounding)
            x = random_tuples(fmt, 50, ARITY[name] - 1, seed=6) if ARITY[name] > 1 else []
            result = getattr(ar, name)(*x, scalar)
            expected = operate_integers(name, *x, entered, fmt=fmt, rounding=rounding)
            assert_same(np.asarray(result), expected)


def test_the_scalar_policy_makes_a_difference():
    assert mcf.arithmetic("bf16").mul(np.float32([3]), 1.004) == 3.015625  # 3.012, half-way: 3.0078125
    assert mcf.arithmetic("bf16", scalars="rounded").mul(np.float32([3]), 1.004) == 3.03125  # 3 * 1.0078125


def test_python_numbers_alone_give_a_python_number():
    ar = mcf.arithmetic("bf16")
    for result in (ar.add(0.1, 0.2), ar.sqrt(2), ar.fma(1, 2, 3), ar.neg(1.5), ar.round(0.1)):
        assert type(result) is float


@pytest.mark.parametrize("name", ["neg", "abs", "round"])
@pytest.mark.parametrize("scalars", ["exact", "rounded"])
def test_a_real_scalar_alone_leaves_as_a_value_of_the_format(name, scalars):
    """Its sign changes before the rounding, but by the policy rounded after it."""
    sign = -1 if name == "neg" else 1
    before, after = (1, sign) if scalars == "rounded" else (sign, 1)
    for mode in DETERMINISTIC:
        result = getattr(mcf.arithmetic("bf16", mode, scalars=scalars), name)(0.1)
        assert result == after * round_fraction(before * Fraction(0.1), BF16, Rounding(mode))


# -- operands ---------------------------------------------------------------------------------------------
def test_operands_broadcast_and_keep_the_carrier():
    ar = mcf.arithmetic("bf16")
    column, row = np.float32([[1], [2], [3]]), np.float32([10, 20])
    assert ar.add(column, row).tolist() == [[11, 21], [12, 22], [13, 23]]
    assert ar.add(column.astype(np.float64), row).dtype == np.float32
    assert ar.mul(np.float32(3), row).shape == (2,)
    assert ar.add(np.empty((0, 2), np.float32), row).shape == (0, 2)
    wide = mcf.arithmetic(Format(precision=30, emin=-100, emax=100))
    assert wide.add(column, row).dtype == np.float64


def test_shapes_that_do_not_broadcast_are_refused():
    with pytest.raises(ValueError, match="broadcast"):
        mcf.arithmetic("bf16").add(np.ones(3), np.ones(2))


@pytest.mark.parametrize("layout", ["strided", "Fortran", "swapped bytes", "broadcast"])
@pytest.mark.slow
def test_the_layout_of_operands_makes_no_difference(layout, assert_same):
    a, b = (x.reshape(64, -1) for x in random_tuples(FP16, 4 * BLOCK, 2, seed=7))
    make = {
        "strided": lambda x: np.repeat(x, 2, axis=1)[:, ::2],
        "Fortran": np.asfortranarray,
        "swapped bytes": lambda x: x.astype(x.dtype.newbyteorder()),
        "broadcast": lambda x: np.broadcast_to(x[0], x.shape),
    }[layout]
    a, b = make(a), make(b)
    assert_same(mcf.arithmetic("fp16").mul(a, b), operate_integers("mul", a, b, fmt=FP16), a, b)


@pytest.mark.parametrize("name", ARITY)
@pytest.mark.parametrize("mode", ["nearest_even", "down"])
@pytest.mark.sampled(4)
@pytest.mark.slow
def test_threads_give_the_same_bits(name, mode, assert_same):
    operands = random_tuples(BF16, 5 * BLOCK + 13, ARITY[name], seed=8)
    alone = getattr(mcf.arithmetic("bf16", mode), name)(*operands)
    for threads in (2, 5):
        shared = getattr(mcf.arithmetic("bf16", mode, threads=threads), name)(*operands)
        assert_same(shared, alone, *operands)


def test_results_are_the_callers_to_write_to():
    ar = mcf.arithmetic("bf16")
    for size in (1, 3, BLOCK + 1):
        x = np.ones(size, np.float32)
        for result in (ar.add(x, x), ar.add(x[:1], x), ar.neg(x), ar.round(x)):
            result += 1
        assert (x == 1).all()


@pytest.mark.parametrize(
    "array", [np.array([1.0, 1.001]), np.array([1.0, 257]), np.array([1, 257]), np.array([0, 1e39])]
)
def test_an_operand_that_is_no_value_of_the_format_is_refused(array):
    ar = mcf.arithmetic("bf16")
    for call in (lambda: ar.add(array, 1.0), lambda: ar.sqrt(array), lambda: ar.fma(1.0, 1.0, array)):
        with pytest.raises(ValueError, match=r"operand element \(1,\) = .* is no value of bfloat16.*\.round"):
            call()


def test_an_integer_operand_beyond_binary64_is_refused():
    with pytest.raises(ValueError, match="no value of bfloat16"):
        mcf.arithmetic("bf16").add(np.array([2**60 + 1]), 1.0)
    assert mcf.arithmetic("bf16").add(np.array([2**60]), 0.0) == 2.0**60


def test_an_infinity_is_no_operand_where_there_is_none():
    with pytest.raises(ValueError, match="no value of float8_e4m3fn"):
        mcf.arithmetic("e4m3fn").add(np.array([np.inf]), 1.0)


@pytest.mark.parametrize(
    "operand",
    [np.array([1j]), np.array([True]), np.array(["1"]), np.array([Fraction(1)]), None, "1", 1j, True],
)
def test_an_operand_that_is_no_real_number_is_refused(operand):
    with pytest.raises(TypeError, match="no array of real numbers"):
        mcf.arithmetic("bf16").add(operand, np.float32([1]))


# -- what has no exact path -------------------------------------------------------------------------------
@pytest.mark.parametrize("mode", [mode for mode in DETERMINISTIC if mode is not Mode.NEAREST_EVEN])
@pytest.mark.parametrize("name", ARITY)
def test_float64_is_refused_in_other_modes_than_nearest_even(name, mode):
    with pytest.raises(UnsupportedFormatError, match=f"{name} in float64, rounding {mode}"):
        getattr(mcf.arithmetic("float64", mode), name)(*[np.ones(2)] * ARITY[name])


@pytest.mark.parametrize("name", [*BINARY, "sqrt"])
def test_float64_to_nearest_even_is_the_hardwares(name, assert_same):
    rng = np.random.default_rng(9)
    operands = rng.integers(0, 2**64, (ARITY[name], 2**16), dtype=np.uint64).view(np.float64)
    with np.errstate(all="ignore"):
        expected = getattr(
            np, {"add": "add", "sub": "subtract", "mul": "multiply", "div": "divide"}.get(name, name)
        )
        expected = expected(*operands)
    assert_same(getattr(mcf.arithmetic("float64"), name)(*operands), expected, *operands)


def test_a_fused_multiply_add_of_float64_is_refused():
    with pytest.raises(UnsupportedFormatError, match="fma in float64"):
        mcf.arithmetic("float64").fma(np.ones(2), np.ones(2), np.ones(2))


@pytest.mark.parametrize("name", ["mul", "div", "fma"])
def test_products_that_leave_binary64_are_refused(name):
    fmt = Format("long", precision=30, emin=-1022, emax=1023)
    with pytest.raises(UnsupportedFormatError, match=f"{name} in long.*leave the range of binary64"):
        getattr(mcf.arithmetic(fmt), name)(*[np.ones(2)] * ARITY[name])
    assert mcf.arithmetic(fmt).add(np.ones(2), np.ones(2)).tolist() == [2.0, 2.0]


@pytest.mark.parametrize("mode", DETERMINISTIC)
@pytest.mark.parametrize("name", ["add", "mul", "div", "fma"])
def test_scalars_so_extreme_that_results_leave_binary64_are_rounded_once(name, mode, assert_same):
    for fmt, scalar in itertools.product((BF16, E5M2), (1e300, -1e300, 1e-300, 2.0**481, -(2.0**-1074))):
        x = corners(fmt)
        result = getattr(mcf.arithmetic(fmt, mode), name)(*[x] * (ARITY[name] - 1), scalar)
        expected = [
            operate(name, [*[v] * (ARITY[name] - 1), scalar], fmt, Rounding(mode)) for v in x.tolist()
        ]
        assert_same(result, expected, x)


# -- the interface ----------------------------------------------------------------------------------------
def test_every_backend_is_an_arithmetic():
    for ar in (
        mcf.arithmetic("bf16"),
        mcf.arithmetic("fp16", backend="native"),
        mcf.arithmetic(None, backend="exact"),
    ):
        assert isinstance(ar, Arithmetic)
    assert not isinstance(np.float32, Arithmetic)


def test_a_straight_line_runs_the_same_on_one_element_and_on_blocks(assert_same):
    @straight_line
    def polynomial(ar, x, *, degree):
        total = x
        for _ in range(degree):
            total = ar.fma(total, x, 1.0)
        return total, (ar.neg(total), ar.mul(x, 0.1))

    ar = mcf.arithmetic("bf16")
    x = np.asarray(
        mcf.round_to(np.random.default_rng(10).standard_normal((3, BLOCK)), "bf16"), dtype=np.float32
    )
    total, (negative, tenth) = polynomial(ar, x, degree=3)
    assert total.shape == negative.shape == tenth.shape == x.shape
    assert_same(negative, -total)
    singly = [polynomial(ar, float(v), degree=3)[0] for v in x[:, ::1111].ravel()]
    assert_same(total[:, ::1111].ravel(), singly)
    assert polynomial.__wrapped__(ar, 2.0, degree=1)[0] == 5.0


def test_the_repr_tells_format_and_policies():
    text = repr(mcf.arithmetic("bf16", "up", "saturate", scalars="rounded"))
    assert all(word in text for word in ("bfloat16", "up", "saturate", "rounded"))


@pytest.mark.parametrize(
    ("option", "message"), [({"scalars": "float"}, "unknown scalar policy"), ({"threads": 0}, "threads = 0")]
)
def test_impossible_options_are_refused(option, message):
    with pytest.raises(ValueError, match=message):
        mcf.arithmetic("bf16", **option)


@pytest.mark.parametrize("specials", ["ieee", "fn"])
@pytest.mark.parametrize("rounding", ROUNDINGS, ids=label)
def test_sums_beyond_binary64_overflow_as_the_mode_and_the_policy_say(rounding, specials, assert_same):
    fmt = Format(precision=20, emin=-1000, emax=1023, specials=specials)
    largest = float(fmt.max)
    numbers = [largest, largest / 2, 2.0**1000, 1.0, -1.0, -(2.0**1000), -largest / 2, -largest]
    pairs = np.array(list(itertools.product(numbers, repeat=2)))
    for name in ("add", "sub"):
        expected = [operate(name, pair, fmt, rounding) for pair in pairs.tolist()]
        assert_same(getattr(mcf.arithmetic(fmt, rounding), name)(*pairs.T), expected, *pairs.T)


@pytest.mark.parametrize("overflow", ["ieee", "saturate"])
@pytest.mark.parametrize("compiled", [False, True])
def test_sums_beyond_binary64_overflow_whatever_is_drawn(overflow, compiled):
    fmt = Format(precision=20, emin=-1000, emax=1023)
    words = mcf.RandomWords(0)
    ar = mcf.arithmetic(fmt, "stochastic", overflow=overflow, random=words, compiled=compiled)
    largest = float(fmt.max)
    numbers = [largest, largest / 2, largest / 2 + 2.0**1003, 2.0**1023, 1.5 * 2.0**1004, 2.0**1000, 1.0]
    signed = [*numbers, *(-x for x in numbers)]
    pairs = np.array([*itertools.product(signed, repeat=2)] * 20)
    below, above = (
        [operate("add", pair, fmt, Rounding(mode=mode, overflow="saturate")) for pair in pairs.tolist()]
        for mode in ("down", "up")
    )
    got = ar.add(*pairs.T)
    beyond = np.array([abs(Fraction(a) + Fraction(b)) >= 2**1024 for a, b in pairs.tolist()])
    most = np.inf if overflow == "ieee" else largest
    assert beyond.any()
    assert (got[beyond] == np.copysign(most, pairs[beyond, 0])).all()
    inside = np.isfinite(got) & ~beyond
    assert ((got == below) | (got == above))[inside].all()
    assert (np.abs(got[~beyond & ~inside]) == np.inf).all()
