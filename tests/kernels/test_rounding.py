"""Rounding into every format, in every mode and policy, against the definition and the libraries.

On hard numbers of each format, and exhaustively on all of binary32.
"""

import itertools
import pickle
from zlib import crc32

import numpy as np
import pytest

from mcfsim.codec import all_values
from mcfsim.compile.objects import is_available
from mcfsim.convert import round_to
from mcfsim.formats import FORMATS, Format, Grid, Posit, get_format
from mcfsim.kernels.blocks import get_kernel
from mcfsim.kernels.carriers import FLOAT32, FLOAT64, UnsupportedFormatError, holds, within
from mcfsim.kernels.element.element_rounding import round_element
from mcfsim.kernels.element.machine import F32, F64, recorded
from mcfsim.oracle import round_integers
from mcfsim.rounding import DETERMINISTIC, Mode, Overflow, Rounding, Underflow, get_rounding
from tests.oracle.operands import MODES, WIDE_FORMATS, label, magnitudes
from tests.shared.formats import ALL, by_definition, drawn, hard_numbers, in_arrays, roundings

# Custom formats, by the way in which numbers are rounded into them: by adding a power of two of the carrier
# ("aligned"), on the carrier's code ("bits"), and there by a fixed power below the smallest normal number
# ("small"); or with nothing cut off at all ("whole").
PATHS = {
    "float32 aligned": (FLOAT32, Format(precision=9, emin=-62, emax=63)),
    "float32 aligned, precision 2": (FLOAT32, Format(precision=2, emin=-1, emax=1)),
    "float32 aligned, large numbers only": (FLOAT32, Format(precision=5, emin=20, emax=30)),
    "float32 bits": (FLOAT32, Format(precision=9, emin=-126, emax=127)),
    "float32 bits, precision 23": (FLOAT32, Format(precision=23, emin=-126, emax=127)),
    "float32 bits, no infinity": (FLOAT32, Format(precision=6, emin=-126, emax=127, specials="fn")),
    "float32 bits, one zero": (FLOAT32, Format(precision=8, emin=-126, emax=127, specials="fnuz")),
    "float32 bits small": (FLOAT32, Format(precision=8, emin=-100, emax=127)),
    "float32 whole small": (FLOAT32, Format(precision=24, emin=-20, emax=20)),
    "float32 whole small, no specials": (FLOAT32, Format(precision=24, emin=-9, emax=127, specials="none")),
    "float32 whole, one zero": (FLOAT32, Format(precision=24, emin=-126, emax=127, specials="nuz")),
    "float64 aligned": (FLOAT64, Format(precision=20, emin=-200, emax=200)),
    "float64 aligned, precision 51": (FLOAT64, Format(precision=51, emin=-30, emax=30)),
    "float64 bits small": (FLOAT64, Format(precision=20, emin=-1000, emax=1000)),
    "float64 bits small, precision 52": (FLOAT64, Format(precision=52, emin=-900, emax=1023)),
    "float64 whole small": (FLOAT64, Format(precision=53, emin=-100, emax=100)),
    "float64 whole, one zero": (FLOAT64, Format(precision=53, emin=-1022, emax=1023, specials="nuz")),
    "float64 narrowed": (FLOAT64, FORMATS["float32"]),
    "float64 aligned, one zero": (FLOAT64, Format(precision=24, emin=-126, emax=127, specials="nuz")),
    "float64 bits": (FLOAT64, Format(precision=30, emin=-1022, emax=1023)),
}
HUGE = [Format(precision=4, emin=90, emax=100), Format(precision=4, emin=900, emax=910)]
HUGE += [Format(precision=24, emin=126, emax=127), Format(precision=53, emin=1023, emax=1023)]
KINDS = [*ALL, *(fmt for _, fmt in PATHS.values()), *HUGE, get_format("int24"), get_format("int32")]


@np.errstate(invalid="ignore")  # signalling NaNs
def check(x, fmt, rounding, assert_same):
    """Try all numbers, and those alone that are not subnormal, which may take another way."""
    if not in_arrays(fmt) and x.size > 500:  # drawn anew for each rounding, as fractions are slow
        x = np.random.default_rng(crc32(label(rounding).encode())).choice(x, 500, replace=False)
    expected = by_definition(x, fmt, rounding)
    for some in (np.full(x.size, True), np.abs(x.astype(np.float64)) >= float(fmt.smallest_normal)):
        found = round_to(x[some], fmt, rounding)
        assert_same(found, expected[some], x[some])
        nan = np.isnan(x[some])
        assert np.array_equal(np.signbit(found[nan]), np.signbit(x[some][nan]))


CASES = [*((f, r) for f in KINDS for r in roundings(f)), *map(drawn, range(60))]
CASES += [pytest.param(*drawn(seed), marks=pytest.mark.exhaustive) for seed in range(60, 240)]


@pytest.mark.parametrize(("fmt", "rounding"), CASES, ids=label)
@pytest.mark.sampled(70, each=False)
def test_hard_numbers_round_by_the_definition(fmt, rounding, assert_same):
    """Values, boundaries, what is beside them, and any bits."""
    for dtype in (np.float32, np.float64):
        x = hard_numbers(fmt, dtype, 300)
        check(x, fmt, rounding, assert_same)


@pytest.mark.exhaustive
@pytest.mark.parametrize("fmt", WIDE_FORMATS, ids=label)
def test_float32_beside_every_boundary_rounds_by_the_definition(fmt, assert_same):
    numbers = magnitudes(fmt)
    exact = np.concatenate([numbers, numbers[1:] / 2 + numbers[:-1] / 2]).astype(np.float32)
    x = np.concatenate([exact, *(np.nextafter(exact, np.float32(end)) for end in (0, np.inf))])
    for rounding in roundings(fmt):
        check(np.concatenate([x, -x]), fmt, rounding, assert_same)


def test_the_custom_formats_take_every_way_through_the_text():
    for path, (carrier, fmt) in PATHS.items():
        kind = F32 if carrier == FLOAT32 else F64
        line, results = recorded(lambda x, fmt=fmt: round_element(x, fmt, Rounding()), x=kind)
        compared = [value.operands for value in line.needed(results) if value.verb == "lt"]
        aligned = any(a.type.is_integer for a, _ in compared)  # the power is kept within bounds
        small = any(b.constant == fmt.smallest_normal for _, b in compared)
        narrowed = any(value.verb == "narrow" for value in line.needed(results))
        whole = fmt.precision > np.finfo(carrier).nmant
        way = "narrowed" if narrowed else "aligned" if aligned else "whole" if whole else "bits"
        assert path.split(",")[0] == f"{carrier} {way}{' small' if small else ''}"


@pytest.mark.parametrize("mode", DETERMINISTIC)
def test_what_a_carrier_holds_itself_stays(mode, assert_same):
    for name, dtype in (("float32", np.float32), ("float64", np.float64)):
        x = hard_numbers(FORMATS["float32"], dtype, 20_000)
        assert_same(round_to(x, name, mode), x)


@pytest.mark.parametrize("mode", ["nearest_even", "to_odd"])
def test_precision_one_at_the_end_of_binary32(mode, assert_same):
    fmt = Format(precision=1, emin=-126, emax=127, specials="none")
    x = np.float32([2.0**-127, 2.0**-128])
    assert_same(round_to(x, fmt, mode), round_integers(x, fmt, Rounding(mode)))


@pytest.mark.parametrize("mode", ["nearest_even", "up"])
def test_what_is_small_may_be_next_to_the_end_of_a_carrier(mode, assert_same):
    for fmt in HUGE[2:]:
        check(hard_numbers(fmt, np.float64, 30), fmt, Rounding(mode, underflow="flush_after"), assert_same)


def test_a_format_within_another_has_only_numbers_of_it():
    """Also without zero, where a format has no numbers below its least normal one."""
    formats = [
        Format(precision=p, emin=emin, emax=emin + 3, specials="none", zero=zero)
        for p in (1, 2, 3, 4)
        for emin in (-5, -4, -3, -2)
        for zero in (False, True)
    ]
    numbers = {fmt: {float(x) for x in all_values(fmt)} for fmt in formats}
    for fmt, other in itertools.product(formats, repeat=2):
        assert within(fmt, other) == (numbers[fmt] <= numbers[other]), (fmt, other)


# -- all of binary32 --------------------------------------------------------------------------------------
PIECE = 1 << 21
COMPILED = is_available() or None


def steps(fmt, rounding, sign):
    """Return where the results of rounding change, by the oracle, and what they are from there on.

    Rounding is monotone. So between two codes of one sign that round alike all do, and others are halved.
    """

    def by_oracle(codes):
        numbers = (codes | sign).astype(np.uint32).view(np.float32)
        return round_integers(numbers.astype(np.float64), fmt, rounding).astype(np.float32).view(np.int32)

    first, last = np.array([0]), np.array([0x7F800000])
    found = [first, last]
    while first.size:
        differ = (by_oracle(first) != by_oracle(last)) & (last - first > 1)
        first, last = first[differ], last[differ]
        middle = (first + last) // 2
        found.append(middle)
        first, last = np.concatenate([first, middle]), np.concatenate([middle, last])
    codes = np.unique(np.concatenate(found))
    results = by_oracle(codes)
    new = np.flatnonzero(np.diff(results, prepend=~results[0]))
    return codes[new], results[new]


@pytest.mark.parametrize(
    ("fmt", "mode"),
    [*(("float16", mode) for mode in DETERMINISTIC), *(("float8_e4m3fn", x) for x in DETERMINISTIC[::2])],
)
@pytest.mark.exhaustive
def test_all_numbers_of_binary32_are_rounded_as_by_the_oracle(fmt, mode, assert_same):
    for sign in (0, 1 << 31):
        starts, results = steps(get_format(fmt), Rounding(mode), sign)
        for start in range(0, 1 << 31, PIECE):
            x = np.arange(sign + start, sign + start + PIECE, dtype=np.uint32).view(np.float32)
            stop = min(start + PIECE, 0x7F800001)  # what follows is NaN
            edges = np.clip(np.append(starts, stop), start, max(start, stop))
            expected = np.full(PIECE, np.nan, np.float32)
            known = np.repeat(results, np.diff(edges))
            expected[: known.size] = known.view(np.float32)
            with np.errstate(all="ignore"):
                found = round_to(x, fmt, mode, compiled=COMPILED)
            if not np.array_equal(found.view(np.int32), expected.view(np.int32)):  # as NaN need not be
                assert_same(found, expected, x)


# -- kernels ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("rounding", [Rounding(), Rounding("stochastic")], ids=label)
@pytest.mark.parametrize("fmt", KINDS, ids=label)
@pytest.mark.sampled(47, each=False)
def test_keeps_tells_values_and_nan_from_other_numbers(fmt, rounding):
    for carrier in (FLOAT32, FLOAT64):
        if not holds(carrier, fmt):
            continue
        kernel, x = get_kernel(fmt, rounding, carrier), hard_numbers(fmt, carrier.type)
        with np.errstate(all="ignore"):  # as those who call it have it
            value = by_definition(x, fmt, Rounding()) == x
            others = np.random.default_rng(0).permutation(x[~value & ~np.isnan(x)])[:10]
            assert kernel.keeps(x[value | np.isnan(x)])
            for number in others:
                assert not kernel.keeps(np.array([number])), number
                assert not kernel.keeps(np.append(x[value], number)), number


def test_a_kernel_is_pickled_by_what_it_rounds_to():
    kernel = pickle.loads(pickle.dumps(get_kernel(Posit(8), Rounding("up"), FLOAT32)))
    assert (kernel.fmt, kernel.rounding, kernel.carrier) == (Posit(8), Rounding("up"), FLOAT32)
    # A grid of as many bits as a carrier is carried by the next.
    assert (holds(FLOAT32, get_format("int23")), holds(FLOAT32, get_format("int24"))) == (True, False)


FLUSHES = {"posit8": "posit8 does not underflow: .*not flush", "int8": "no subnormal numbers"}
REFUSED = [
    *((fmt, Rounding(underflow=x), FLOAT64, FLUSHES[fmt]) for fmt in FLUSHES for x in list(Underflow)[1:]),
    *((x, Rounding(), FLOAT32, f"{x} has values that float32 cannot hold") for x in ("posit32", "int32")),
    *((fmt, Rounding(), FLOAT64, "float64 cannot hold") for fmt in ("posit64", "posit58", "posit40es5")),
]


@pytest.mark.parametrize(("fmt", "rounding", "carrier", "message"), REFUSED, ids=str)
def test_what_no_kernel_rounds_to_is_refused(fmt, rounding, carrier, message):
    with pytest.raises(UnsupportedFormatError, match=message):
        get_kernel(get_format(fmt), rounding, carrier)


@pytest.mark.parametrize("fmt", [Posit(8), Grid(low=-8, high=7), FORMATS["bfloat16"]], ids=label)
def test_a_word_is_needed_for_each_element_and_of_enough_bits(fmt):
    x = np.ones(3, np.float32)
    for words in (None, np.zeros(2, np.uint16)):
        with pytest.raises(ValueError, match="a random word for each element"):
            get_kernel(fmt, Rounding("stochastic"), FLOAT32)(x, x, words)
    with pytest.raises(ValueError, match="words of 16 bits are too short for 17 random bits"):
        get_kernel(fmt, Rounding("stochastic", random_bits=17), FLOAT32)(x, x, np.zeros(3, np.uint16))


def test_names_make_a_rounding_and_the_default_is_to_nearest_even_with_the_overflow_of_ieee():
    assert Rounding() == Rounding("nearest_even", "ieee") == get_rounding("nearest_even") == MODES[0]
    assert (Rounding().mode, Rounding().overflow) == (Mode.NEAREST_EVEN, Overflow.IEEE)
    up = Rounding("up", "saturate")
    assert get_rounding(up) is up
    assert get_rounding("up", "saturate") == up
    assert hash(get_rounding("up", "saturate")) == hash(up)
    modes = r"nearest_even, nearest_away, toward_zero, up, down, to_odd"
    for name in ("nearest", "RNE", "", None, 1):
        with pytest.raises(ValueError, match=rf"unknown rounding .*allowed: {modes}"):
            get_rounding(name)
        with pytest.raises(ValueError, match=r"unknown overflow .*allowed: ieee, saturate"):
            get_rounding("up", name)
