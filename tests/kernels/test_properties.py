"""Properties of every format, mode and operation, on operands that are generated to be hard."""

import math
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mcfsim import Accumulator, RandomWords, arithmetic, codec, dot, round_to
from mcfsim.codec import packing
from mcfsim.formats import FORMATS, Format, Grid, Parity, Posit, Specials, get_format
from mcfsim.oracle import operate, round_float, round_fraction
from mcfsim.rounding import DETERMINISTIC, Mode, Overflow, Rounding, Rule, Underflow

pytestmark = pytest.mark.slow

BOUNDED = settings(max_examples=60, derandomize=True, deadline=None, database=None)
ARITY = {"add": 2, "sub": 2, "mul": 2, "div": 2, "fma": 3, "sqrt": 1}
SIMPLE = {name: fmt for name, fmt in FORMATS.items() if fmt.precision <= 12}

#: The rule of a stochastic rounding, by its definition: a fraction, the word's highest r bits, and r.
UPWARD = {
    Rule.TRUNCATE: lambda f, word, r: math.floor(f * 2**r) + word >= 2**r,
    Rule.CENTRED: lambda f, word, r: math.floor(f * 2 ** (r + 1)) + 2 * word + 1 >= 2 ** (r + 1),
    Rule.NEAREST_FIRST: lambda f, word, r: round(f * 2**r) + word >= 2**r,
}


# -- what is generated ------------------------------------------------------------------------------------
@st.composite
def floats_of_any_kind(draw, least=-150, greatest=150):
    specials = draw(st.sampled_from(Specials))
    signed = draw(st.booleans()) or specials is Specials.FNUZ
    zero = (signed and specials in (Specials.FNUZ, Specials.NUZ)) or draw(st.booleans())
    precision = draw(st.integers(1 + (specials is Specials.IEEE), 12))
    emin = draw(st.integers(least, greatest - 1))
    alone = precision == 1 and not (signed or zero) and specials is Specials.NONE  # one number has no code
    emax = draw(st.integers(emin + alone, min(greatest, emin + 40)))
    parity = draw(st.sampled_from(Parity))
    return Format(
        precision=precision, emin=emin, emax=emax, specials=specials, signed=signed, zero=zero, parity=parity
    )


@st.composite
def p3109_formats(draw):
    bits = draw(st.integers(3, 10))
    signed = draw(st.booleans())
    precision = draw(st.integers(1, bits - 1))
    try:
        fmt = get_format(f"binary{bits}p{precision}{'su'[not signed]}{draw(st.sampled_from('ef'))}")
    except ValueError:  # one without a normal number
        assume(False)
    assume(fmt.emin > -300)  # where products are refused
    return fmt


GRIDS = st.builds(
    lambda low, high, fraction_bits: Grid(low=-low, high=high, fraction_bits=fraction_bits),
    st.integers(0, 5000),
    st.integers(1, 5000),
    st.integers(-20, 20),
)
POSITS = st.builds(Posit, st.integers(3, 16), st.integers(0, 3))
NAMED = st.sampled_from(list(SIMPLE.values()))
FLOATS = NAMED | floats_of_any_kind() | p3109_formats()
FORMATS_OF_ALL_KINDS = FLOATS | POSITS | GRIDS
ROUNDABLE = FORMATS_OF_ALL_KINDS | floats_of_any_kind(-1022, 950)  # near the ends of binary32 and binary64
OVERFLOWS = st.sampled_from([Overflow.IEEE, Overflow.SATURATE])
WORDS = st.integers(0, 2**32 - 1)


@st.composite
def roundings(draw, fmt):
    flushes = type(fmt) is Format  # posits and grids have nothing to flush
    underflow = draw(st.sampled_from(Underflow)) if flushes else Underflow.GRADUAL
    return Rounding(draw(st.sampled_from(DETERMINISTIC)), draw(OVERFLOWS), underflow=underflow)


@st.composite
def stochastic_roundings(draw, fmt):
    flushes = type(fmt) is Format
    return Rounding(
        Mode.STOCHASTIC,
        draw(st.sampled_from(Overflow)),
        random_bits=draw(st.integers(1, 32)),
        rule=draw(st.sampled_from(Rule)),
        underflow=draw(st.sampled_from(Underflow)) if flushes else Underflow.GRADUAL,
    )


@st.composite
def numbers(draw, fmt):
    """Draw a binary64 number: any bits, or a value of the format, the middle of two, or next to one."""
    kind = draw(st.integers(0, 9))
    if kind == 0:
        return float(np.uint64(draw(st.integers(0, 2**64 - 1))).view(np.float64))
    if kind == 1:
        return draw(st.sampled_from([0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, float(fmt.max)]))
    exponent = draw(st.integers(fmt.emin - fmt.precision - 2, fmt.emax + 2))
    halves = draw(st.integers(0, 2 ** (fmt.precision + 2)))
    number = math.ldexp(halves, max(-1070, min(1000, exponent - fmt.precision)))
    toward = draw(st.sampled_from([number, number, 0.0, math.inf]))
    number = math.nextafter(number, toward)
    return -number if draw(st.booleans()) else number


def values(fmt, specials=True):
    """Draw a value of the format."""
    overflow = Rounding(overflow=Overflow.SATURATE)
    drawn = numbers(fmt).map(lambda x: round_float(x, fmt, overflow))
    return drawn.filter(lambda x: (specials or math.isfinite(x)) and (not math.isnan(x) or fmt.has_nan))


def arrays_of(strategy, dtype=np.float64):
    return st.lists(strategy, min_size=5, max_size=12).map(lambda items: np.array(items, dtype))


def rounded(x, fmt, rounding, words=None):
    return np.asarray(round_to(x, fmt, rounding, random=words), np.float64)


def comparable(x):
    """Return numbers without the sign of zero."""
    return np.asarray(x, np.float64) + 0.0


# -- one rounding -----------------------------------------------------------------------------------------
@BOUNDED
@given(data=st.data())
def test_arrays_are_rounded_by_the_definition(data, assert_same):
    fmt = data.draw(ROUNDABLE)
    rounding, x = data.draw(roundings(fmt)), data.draw(arrays_of(numbers(fmt)))
    assert_same(rounded(x, fmt, rounding), [round_float(float(item), fmt, rounding) for item in x], x)


@BOUNDED
@given(data=st.data())
def test_float32_bits_are_rounded_by_the_definition(data, assert_same):
    fmt = data.draw(ROUNDABLE)
    rounding = data.draw(roundings(fmt))
    x = data.draw(arrays_of(st.integers(0, 2**32 - 1), np.uint32)).view(np.float32)
    with np.errstate(invalid="ignore"):  # signalling NaNs
        wide = x.astype(np.float64)
    assert_same(rounded(x, fmt, rounding), [round_float(float(item), fmt, rounding) for item in wide], wide)


@BOUNDED
@given(data=st.data())
def test_real_numbers_of_any_kind_are_rounded_once(data, assert_same):
    fmt = data.draw(ROUNDABLE)
    rounding = data.draw(roundings(fmt))
    near = data.draw(st.lists(numbers(fmt).filter(math.isfinite), min_size=5, max_size=12))
    off = [1 + Fraction(sign, 10**digits) for sign in (-1, 1) for digits in (20, 400)]
    fractions = [Fraction(number) * factor for number in near for factor in off]
    integer = data.draw(st.integers(-(2**70), 2**70)) << data.draw(st.sampled_from([0, 5, 1200]))
    decimal = Decimal(data.draw(st.integers(-(10**40), 10**40))).scaleb(data.draw(st.integers(-360, 360)))
    for x in (*fractions, integer, decimal):
        assert_same(round_to(x, fmt, rounding), round_fraction(Fraction(x), fmt, rounding))


@BOUNDED
@given(data=st.data())
def test_integers_of_every_width_are_rounded_once(data, assert_same):
    fmt = data.draw(ROUNDABLE)
    rounding = data.draw(roundings(fmt))
    dtype = np.dtype(data.draw(st.sampled_from(["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", ">i8"])))
    limits = np.iinfo(dtype)
    x = data.draw(arrays_of(st.integers(limits.min, limits.max), dtype))
    assert_same(rounded(x, fmt, rounding), [round_fraction(Fraction(int(i)), fmt, rounding) for i in x], x)


@BOUNDED
@given(data=st.data())
def test_rounding_again_changes_nothing(data, assert_same):
    fmt = data.draw(ROUNDABLE)
    rounding = data.draw(roundings(fmt) | stochastic_roundings(fmt))
    x = data.draw(arrays_of(numbers(fmt)))
    first, second = (data.draw(st.lists(WORDS, min_size=x.size, max_size=x.size)) for _ in range(2))
    once = rounded(x, fmt, rounding, np.array(first, np.uint32))
    assert_same(rounded(once, fmt, rounding, np.array(second, np.uint32)), once, x)


@BOUNDED
@given(data=st.data())
def test_rounding_keeps_the_order(data):
    fmt = data.draw(ROUNDABLE)
    rounding = data.draw(roundings(fmt) | stochastic_roundings(fmt))
    x = np.sort(data.draw(arrays_of(numbers(fmt).filter(lambda x: not math.isnan(x)))))
    words = np.full(x.size, data.draw(WORDS), np.uint32)
    y = rounded(x, fmt, rounding, words)
    y = y[~np.isnan(y)]
    assert (y[1:] >= y[:-1]).all(), (x, y)


@BOUNDED
@given(data=st.data())
def test_rounding_is_symmetric(data, assert_same):
    fmt = data.draw((FLOATS | POSITS).filter(lambda fmt: fmt.signed))
    rounding = data.draw(roundings(fmt) | stochastic_roundings(fmt))
    mirrored = {Mode.UP: Mode.DOWN, Mode.DOWN: Mode.UP}.get(rounding.mode, rounding.mode)
    opposite = Rounding(mirrored, rounding.overflow, rounding.random_bits, rounding.rule, rounding.underflow)
    x = data.draw(arrays_of(numbers(fmt)))
    words = np.array(data.draw(st.lists(WORDS, min_size=x.size, max_size=x.size)), np.uint32)
    positive, negative = rounded(x, fmt, rounding, words), rounded(-x, fmt, opposite, words)
    if not fmt.has_negative_zero:
        positive, negative = comparable(positive), comparable(negative)
        assert_same(comparable(-negative), positive, x)
    else:
        assert_same(-negative, positive, x)


@BOUNDED
@given(data=st.data())
def test_stochastic_rounding_takes_a_neighbour(data):
    fmt = data.draw(ROUNDABLE)
    stochastic = data.draw(
        stochastic_roundings(fmt).filter(lambda r: r.overflow is not Overflow.NEAREST_BOUNDARY)
    )
    x = data.draw(arrays_of(numbers(fmt)))
    words = np.array(data.draw(st.lists(WORDS, min_size=x.size, max_size=x.size)), np.uint32)
    policies = {"overflow": stochastic.overflow, "underflow": stochastic.underflow}
    below, above = (rounded(x, fmt, Rounding(mode, **policies)) for mode in ("down", "up"))
    y = rounded(x, fmt, stochastic, words)
    alike = [(y == side) | (np.isnan(y) & np.isnan(side)) for side in (below, above)]
    assert (alike[0] | alike[1]).all(), (x, y, below, above)


@BOUNDED
@given(data=st.data())
def test_stochastic_rounding_follows_its_rule(data, assert_same):
    fmt = data.draw((FLOATS | GRIDS).filter(lambda fmt: fmt.zero and fmt.signed))
    rounding = Rounding(
        "stochastic", random_bits=data.draw(st.integers(1, 32)), rule=data.draw(st.sampled_from(Rule))
    )
    x = data.draw(arrays_of(numbers(fmt).filter(lambda x: abs(x) < min(fmt.max, -fmt.lowest))))
    words = np.array(data.draw(st.lists(WORDS, min_size=x.size, max_size=x.size)), np.uint32)
    expected = []
    for number, word in zip(x.tolist(), words.tolist(), strict=True):
        exponent = max(math.frexp(number)[1] - 1 if number else fmt.emin, fmt.emin)
        quantum = Fraction(2) ** (exponent - fmt.precision + 1)
        whole, fraction = divmod(abs(Fraction(number)) / quantum, 1)
        r = rounding.random_bits
        away = fraction != 0 and UPWARD[rounding.rule](fraction, word >> (32 - r), r)
        magnitude = float((whole + away) * quantum)
        zero = magnitude == 0 and not fmt.has_negative_zero
        expected.append(magnitude if zero else math.copysign(magnitude, number))
    assert_same(rounded(x, fmt, rounding, words), expected, x, words)


# -- operations -------------------------------------------------------------------------------------------
@BOUNDED
@given(data=st.data())
@pytest.mark.parametrize("name", ARITY)
def test_operations_round_the_exact_result_once(name, data, assert_same):
    fmt = data.draw(FORMATS_OF_ALL_KINDS)
    rounding = data.draw(roundings(fmt))
    tuples = data.draw(st.lists(st.tuples(*[values(fmt)] * ARITY[name]), min_size=1, max_size=12))
    operands = np.array(tuples).T
    expected = [operate(name, each, fmt, rounding) for each in tuples]
    assert_same(getattr(arithmetic(fmt, rounding), name)(*operands), expected, *operands)


@BOUNDED
@given(data=st.data())
@pytest.mark.parametrize("name", [name for name, arity in ARITY.items() if arity > 1])
def test_real_scalars_enter_exactly(name, data, assert_same):
    fmt = data.draw(FORMATS_OF_ALL_KINDS.filter(lambda fmt: fmt.has_nan))
    rounding = data.draw(roundings(fmt).filter(lambda r: r.underflow is Underflow.GRADUAL))
    x = data.draw(arrays_of(values(fmt)))
    others = [data.draw(st.floats(2.0**-100, 2.0**100) | st.just(0.0)) for _ in range(ARITY[name] - 1)]
    place = data.draw(st.integers(0, len(others)))
    result = getattr(arithmetic(fmt, rounding), name)(*others[:place], x, *others[place:])
    expected = [operate(name, [*others[:place], item, *others[place:]], fmt, rounding) for item in x.tolist()]
    assert_same(result, expected, x)


@BOUNDED
@given(data=st.data())
def test_signs_are_changed_exactly(data, assert_same):
    fmt = data.draw((FLOATS | POSITS).filter(lambda fmt: fmt.signed))
    ar, x = arithmetic(fmt), data.draw(arrays_of(values(fmt)))
    assert_same(ar.neg(x), -x if fmt.has_negative_zero else comparable(-x), x)
    assert_same(ar.abs(x), np.abs(x), x)


@BOUNDED
@given(data=st.data())
def test_a_dot_product_of_one_block_is_rounded_once(data, assert_same):
    fmt = data.draw(FORMATS_OF_ALL_KINDS)
    rounding = data.draw(roundings(fmt).filter(lambda r: r.underflow is not Underflow.FLUSH_INPUTS))
    terms = st.floats(width=32, allow_nan=False, allow_infinity=False)
    pairs = data.draw(st.lists(st.tuples(terms, terms), min_size=1, max_size=9))
    pairs += [(-a, b) for a, b in pairs[: data.draw(st.integers(0, len(pairs)))]]  # sums that cancel
    a, b = np.array(pairs).T
    products = [Fraction(x) * Fraction(y) for x, y in pairs]
    negative = {math.copysign(1, x) != math.copysign(1, y) for x, y in pairs}
    c = data.draw(st.none() | terms)
    if c is not None:
        products.append(Fraction(c))
        negative.add(math.copysign(1, c) < 0)
    minus = (any if rounding.mode is Mode.DOWN else all)(negative)
    expected = round_fraction(sum(products), fmt, rounding, negative_zero=minus)
    assert_same(dot(a, b, Accumulator(fmt, rounding, block=None), c=c), expected)


# -- codes and neighbours ---------------------------------------------------------------------------------
@BOUNDED
@given(data=st.data())
def test_values_have_codes_and_codes_values(data, assert_same):
    fmt = data.draw(FORMATS_OF_ALL_KINDS)
    x = data.draw(arrays_of(values(fmt)))
    codes = codec.encode(x, fmt)
    again = codec.decode(codes, fmt)
    assert_same(again, x)
    assert (codec.encode(again, fmt) == codes).all()
    assume(fmt.bits)  # a single number takes none
    packed = packing.pack(codes, fmt.bits)
    assert packed.size == packing.packed_size(codes.size, fmt.bits)
    assert (packing.unpack(packed, fmt.bits, codes.shape) == codes).all()


@BOUNDED
@given(memory=st.binary(min_size=16, max_size=80))
def test_packed_codes_are_the_bits_of_one_integer(memory):
    stream = int.from_bytes(memory, "little")
    for bits in range(1, 65):
        count = 8 * len(memory) // bits
        codes = [stream >> (place * bits) & (2**bits - 1) for place in range(count)]
        whole = stream & (2 ** (count * bits) - 1)
        packed = packing.pack(np.array(codes, np.uint64), bits)
        assert packed.tobytes() == whole.to_bytes(packing.packed_size(count, bits), "little")
        assert packing.unpack(packed, bits, count).tolist() == codes


@BOUNDED
@given(data=st.data())
def test_neighbours_are_the_nearest_values_on_either_side(data, assert_same):
    fmt = data.draw(FORMATS_OF_ALL_KINDS.filter(lambda fmt: fmt.bits <= 12))
    x = data.draw(arrays_of(numbers(fmt).filter(math.isfinite)))
    every = codec.all_values(fmt).astype(np.float64)
    up, down = codec.next_up(x, fmt), codec.next_down(x, fmt)
    above = [min((v for v in every if v > item), default=every[-1]) for item in x]
    below = [max((v for v in every if v < item), default=every[0]) for item in x]
    assert_same(comparable(up), comparable(above), x)
    assert_same(comparable(down), comparable(below), x)
    inside = (below != every[0]) & (above != every[-1]) & np.isin(x, every)
    assert (codec.next_down(up, fmt)[inside] == x[inside]).all()
    assert (codec.next_up(down, fmt)[inside] == x[inside]).all()


@BOUNDED
@given(data=st.data())
def test_ulps_are_distances(data, assert_same):
    fmt = data.draw(FORMATS_OF_ALL_KINDS)
    x = data.draw(arrays_of(values(fmt, specials=False)))
    x = np.abs(x[np.abs(x) < float(fmt.max)])
    step = codec.ulp(x, fmt)
    assert_same(codec.ulp(-x, fmt), step, x)
    if fmt.zero or not x.size:
        assert_same(codec.next_up(x, fmt).astype(np.float64) - x, step, x)
    assert (np.frexp(step)[0] == 0.5).all() or isinstance(fmt, Posit)


# -- memory -----------------------------------------------------------------------------------------------
def layouts(x):
    """Return arrays with the same elements that lie differently in memory."""
    spread = np.zeros((*x.shape, 2), x.dtype)[..., 1]
    spread[...] = x
    return [x, x.astype(x.dtype.newbyteorder(">")), spread, x[::-1].copy()[::-1], np.asfortranarray(x), x[:]]


@pytest.mark.parametrize("shape", [(), (0,), (1,), (7,), (3, 4), (2, 0, 3), (2, 3, 4)])
@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "posit8", "int4", "float64"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_layout_of_an_array_changes_nothing(shape, name, dtype, assert_same):
    fmt = get_format(name)
    x = np.random.default_rng(1).normal(size=shape).astype(dtype)
    v = np.asarray(round_to(x, fmt), dtype=dtype if name != "float64" else np.float64)
    ar, random = arithmetic(fmt), RandomWords(5)
    stochastic = Rounding("stochastic")
    functions = {
        "round": lambda x, v: round_to(x, fmt, "up"),
        "stochastic": lambda x, v: round_to(x, fmt, stochastic, random=random),
        "add": lambda x, v: ar.add(v, v),
        "encode": lambda x, v: codec.encode(v, fmt),
        "decode": lambda x, v: codec.decode(codec.encode(v, fmt), fmt),
        "next_up": lambda x, v: codec.next_up(x, fmt),
        "ulp": lambda x, v: codec.ulp(x, fmt),
    }
    for label, function in functions.items():
        expected = np.asarray(function(x, v))
        assert expected.shape == shape, label
        for other, value in zip(layouts(np.atleast_1d(x)), layouts(np.atleast_1d(v)), strict=True):
            result = np.asarray(function(other, value)).reshape(shape)
            assert_same(result, expected)
            assert result.dtype == expected.dtype


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "tf32", "posit8", "int8"])
@pytest.mark.parametrize("mode", ["nearest_even", "down", "stochastic"])
@pytest.mark.sampled(6)
def test_blocks_and_threads_change_nothing(name, mode, assert_same):
    fmt, size = get_format(name), 2**18 + 11  # more than two of the largest blocks
    x = np.random.default_rng(2).normal(size=size) * 3
    stream = RandomWords(7)
    words = stream.words(0, size) if mode == "stochastic" else np.zeros(size, np.uint32)
    whole = Rounding(mode, random_bits=24)
    cuts = [0, 1000, 2**17 - 1, 2**17 + 5, size]
    pieces = [slice(*pair) for pair in pairwise(cuts)]
    expected = np.concatenate([round_to(x[piece], fmt, whole, random=words[piece]) for piece in pieces])
    for threads in (1, 2, 3, 7):
        given = stream if mode == "stochastic" else None
        assert_same(round_to(x, fmt, whole, random=given, threads=threads), expected, x)
        strided = np.repeat(x, 2)[::2].reshape(1, -1)
        assert_same(round_to(strided, fmt, whole, random=given, threads=threads)[0], expected, x)
    v = np.asarray(round_to(x, fmt), np.float64)
    results = [
        arithmetic(fmt, whole, threads=threads, random=stream).fma(v, v[::-1], v) for threads in (1, 2, 5)
    ]
    assert_same(results[1], results[0], v)
    assert_same(results[2], results[0], v)
    if mode != "stochastic":
        ar = arithmetic(fmt, whole)
        parts = [ar.fma(v[piece], v[::-1][piece], v[piece]) for piece in pieces]
        assert_same(results[0], np.concatenate(parts), v)


@BOUNDED
@given(
    size=st.integers(0, 40),
    shift=st.integers(0, 9),
    step_in=st.sampled_from([1, 2, -1, -2]),
    step_out=st.sampled_from([1, 2, -1, -2]),
    mode=st.sampled_from(["nearest_even", "stochastic"]),
)
@pytest.mark.parametrize("name", ["bfloat16", "posit8", "int8"])
def test_results_may_go_where_the_operand_is(name, size, shift, step_in, step_out, mode, assert_same):
    memory = np.random.default_rng(3).normal(size=2 * (size + shift) + 2) * 4
    x = memory[: 2 * size][::step_in][:size]
    out = memory[shift : shift + 2 * size][::step_out][: x.size]
    assume(x.size == out.size)
    expected = round_to(x.copy(), name, mode, random=RandomWords(1))
    returned = round_to(x, name, mode, random=RandomWords(1), out=out)
    assert returned is out
    assert_same(out, expected)
    own = memory.copy()[::step_in]
    expected = round_to(own.copy(), name, mode, random=RandomWords(1))
    assert round_to(own, name, mode, random=RandomWords(1), out=own) is own
    assert_same(own, expected)


@pytest.mark.parametrize("shift", [-1000, -1, 1, 1000])
@pytest.mark.parametrize("step", [1, -1])
def test_a_large_operand_is_read_before_it_is_overwritten(shift, step, assert_same):
    size = 2**18 + 11  # more than two of the largest blocks
    memory = np.random.default_rng(4).normal(size=size + 2000)
    x, out = memory[1000 : 1000 + size], memory[1000 + shift : 1000 + shift + size][::step]
    expected = round_to(x.copy(), "bfloat16")
    round_to(x, "bfloat16", out=out)
    assert_same(out, expected)
