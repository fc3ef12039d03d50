"""Properties of every format, mode and operation, on operands that are generated to be hard."""

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mcfsim import arithmetic, round_to
from mcfsim.formats import FORMATS, Format, Grid, Parity, Posit, Specials, get_format
from mcfsim.oracle import operate, round_float
from mcfsim.rounding import DETERMINISTIC, Mode, Overflow, Rounding, Rule, Underflow

pytestmark = pytest.mark.slow

BOUNDED = settings(max_examples=20, derandomize=True, deadline=None, database=None)
ARITY = {"add": 2, "sub": 2, "mul": 2, "div": 2, "fma": 3, "sqrt": 1}
SIMPLE = {name: fmt for name, fmt in FORMATS.items() if fmt.precision <= 12}


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
    rounding, wide = data.draw(roundings(fmt)), data.draw(arrays_of(numbers(fmt)))
    short = data.draw(arrays_of(st.integers(0, 2**32 - 1), np.uint32)).view(np.float32)
    for x in (wide, short):
        expected = [round_float(number, fmt, rounding) for number in x.tolist()]
        assert_same(rounded(x, fmt, rounding), expected, x)


@settings(BOUNDED, max_examples=25)
@given(data=st.data())
def test_numbers_stay_between_neighbours_in_order_whatever_is_drawn(data, assert_same):
    """What is rounded stays; and by the same words ``-x`` becomes minus what x does."""
    fmt = data.draw(ROUNDABLE)
    rounding = data.draw(stochastic_roundings(fmt))
    x = np.sort(data.draw(arrays_of(numbers(fmt).filter(lambda x: not math.isnan(x)))))
    first, second = (data.draw(st.lists(WORDS, min_size=x.size, max_size=x.size)) for _ in range(2))
    words = np.array(first, np.uint32)
    once = rounded(x, fmt, rounding, words)
    assert_same(rounded(once, fmt, rounding, np.array(second, np.uint32)), once, x)
    if rounding.overflow is not Overflow.NEAREST_BOUNDARY:
        policies = {"overflow": rounding.overflow, "underflow": rounding.underflow}
        sides = [rounded(x, fmt, Rounding(mode, **policies)) for mode in ("down", "up")]
        alike = [(once == side) | (np.isnan(once) & np.isnan(side)) for side in sides]
        assert (alike[0] | alike[1]).all(), (x, once, sides)
    by_one_word = rounded(x, fmt, rounding, np.full(x.size, first[0], np.uint32))
    by_one_word = by_one_word[~np.isnan(by_one_word)]
    assert (np.diff(by_one_word[np.isfinite(by_one_word)]) >= 0).all(), (x, by_one_word)
    if fmt.signed and not isinstance(fmt, Grid):
        opposite = -rounded(-x, fmt, rounding, words)
        assert_same(opposite if fmt.has_negative_zero else opposite + 0.0, once, x)


# -- operations -------------------------------------------------------------------------------------------
@settings(BOUNDED, max_examples=8)
@given(data=st.data())
@pytest.mark.parametrize("name", ARITY)
def test_operations_round_the_exact_result_once(name, data, assert_same):
    fmt = data.draw(FORMATS_OF_ALL_KINDS)
    rounding = data.draw(roundings(fmt))
    tuples = data.draw(st.lists(st.tuples(*[values(fmt)] * ARITY[name]), min_size=1, max_size=12))
    operands = np.array(tuples).T
    expected = [operate(name, each, fmt, rounding) for each in tuples]
    assert_same(getattr(arithmetic(fmt, rounding), name)(*operands), expected, *operands)
