"""Double rounding: what carriers need in toys, both ways and counterexamples judged by the oracle."""

import numpy as np
import pytest

from mcfsim.backends.block_arithmetic import BlockArithmetic
from mcfsim.formats import FORMATS, Format
from mcfsim.oracle import OracleArithmetic
from mcfsim.rounding import DETERMINISTIC, Mode, Rounding
from mcfsim.theorems import THEOREMS, verify
from mcfsim.theorems.catalogue import double_rounding
from mcfsim.theorems.claims import same_results
from mcfsim.theorems.domain import cover
from mcfsim.theorems.judge import try_block
from mcfsim.theorems.operands import value
from mcfsim.theorems.rounding_twice import NEEDS, twice, wider
from mcfsim.theorems.selection import Selection
from mcfsim.theorems.statement import EVERY_MODE, Theorem
from tests.theorems.trying import on_domain

pytestmark = pytest.mark.slow


def state(operation, widening, first=None):
    """Return the statement about an operation through any wider format."""
    names, scaling = double_rounding.OPERANDS[operation], double_rounding.SCALINGS[operation]
    algorithm, operands = twice(operation, widening, first), tuple(map(value, names))
    return Theorem("own", algorithm, operands, same_results("same"), scaling=scaling, modes=EVERY_MODE)


# -- what carriers need -------------------------------------------------------------------------------------
@pytest.mark.parametrize("operation", ["add", "mul", "div", "sqrt"])
def test_which_carriers_serve_which_formats(operation):
    both, fine = {"float32", "float64"}, {"bfloat16"} if operation in ("mul", "div") else set()
    for fmt, serving in {
        "bfloat16": both,
        "float16": both,
        "tf32": {"float64"} if operation == "mul" else both,
        "float8_e4m3fn": {*both, "float16", *fine},
        "float8_e5m2": {*both, "float16", "bfloat16"},
    }.items():
        for carrier in double_rounding.CARRIERS:
            (hypothesis,) = THEOREMS[f"{operation}_via_{carrier}"].where
            assert hypothesis.possible(FORMATS[fmt], Rounding()) == (carrier in serving), (fmt, carrier)


TOYS = [Format(precision=p, emin=-e, emax=e) for p, e in ((2, 2), (2, 5), (3, 2), (3, 7), (4, 5))]


def wrong_by(operation, fmt, fewer=0, higher=0):
    """Return how many operands go wrong in a carrier of what is needed, or of so much less."""
    bits, least = NEEDS[operation].bits(fmt) - fewer, NEEDS[operation].quantum(fmt) + higher
    carrier = Format(precision=bits, emin=least + bits - 1, emax=max(fmt.emax, least + bits - 1))
    return on_domain(state(operation, lambda _: carrier, Mode.NEAREST_EVEN), fmt, "nearest_even").violations


@pytest.mark.parametrize("operation", ["add", "mul", "div", "sqrt"])
def test_needs_suffice_and_one_bit_less_does_not(operation):
    assert [wrong_by(operation, fmt) for fmt in TOYS] == [0] * len(TOYS)
    assert any(wrong_by(operation, fmt, fewer=1) for fmt in TOYS)
    # A carrier whose smallest number is larger than the format's holds no sums.
    higher = [wrong_by(operation, fmt, higher=1) > 0 for fmt in TOYS]
    assert operation == "add" or any(higher)
    assert operation != "div" or all(higher)


@pytest.mark.parametrize(
    ("e", "bits", "found"), [(5, 13, 76), pytest.param(6, 15, 88, marks=pytest.mark.exhaustive)]
)
def test_bits_that_an_fma_needs_are_the_fewest(e, bits, found):
    fmt = Format(precision=3, emin=-e, emax=e)
    assert NEEDS["fma"].bits(fmt) == bits
    assert (wrong_by("fma", fmt), wrong_by("fma", fmt, fewer=1)) == (0, found)


# -- results ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("operation", list(double_rounding.OPERANDS))
@pytest.mark.parametrize("mode", list(DETERMINISTIC))
@pytest.mark.sampled(6)
def test_both_ways_are_those_of_the_oracle(operation, mode):
    """Of an fma, a random share."""
    fmt, rounding = FORMATS["float6_e3m2fn"], Rounding(mode)
    ar, truth = BlockArithmetic(fmt, rounding, "exact"), OracleArithmetic(fmt, rounding)
    carriers = [wider(lambda p: p + 1), wider(lambda p: 2 * p), lambda _: FORMATS["float16"]]
    for widening, first in zip(carriers, (None, Mode.TO_ODD, Mode.NEAREST_EVEN), strict=True):
        theorem = state(operation, widening, first)
        ((_, blocks), *_) = cover(theorem, fmt, rounding, Selection("all")).blocks(0, 1 << 18)
        blocks = [block[:: max(1, block.size // 40)] for block in blocks]
        results = try_block(theorem, ar, blocks).results
        for i, case in enumerate(zip(*map(np.ndarray.tolist, blocks), strict=True)):
            expected = theorem.algorithm(truth, *case)
            np.testing.assert_array_equal([x[i] for x in results], expected)
            np.testing.assert_array_equal(getattr(truth, operation)(*case), expected[0])


@pytest.mark.parametrize(
    ("name", "fmt", "operands", "once", "twice"),
    [
        ("add_via_bfloat16_any", "float8_e4m3fn", (416.0, 15.0), 416.0, 448.0),
        ("innocuous_mul_2p_minus_1", "float8_e4m3fn", (13.0, 13.0), 176.0, 160.0),
        ("innocuous_div_2p_minus_1", "float8_e4m3fn", (8.0, 15.0), 0.5625, 0.5),
        ("innocuous_sqrt_2p1", "float8_e4m3fn", (15.0,), 3.75, 4.0),
        ("fma_via_float16_any", "float8_e4m3fn", (3.5, 1.5, 2.0**-9), 5.5, 5.0),
        ("fma_via_float64_any", "bfloat16", (7.0, 37.0, -(2.0**-50)), 258.0, 260.0),
        ("mul_via_float32_any", "tf32", (1044 * 2.0**-79, 2009 * 2.0**-79), 2.0**-136, 0.0),
        ("mul_via_float32_flushed", "bfloat16", (129 * 2.0**-70, 255 * 2.0**-79), 2.0**-133, 0.0),
    ],
)
def test_published_counterexamples(name, fmt, operands, once, twice):
    fmt = FORMATS[fmt]
    assert THEOREMS[name].algorithm(OracleArithmetic(fmt), *operands) == (once, twice)
    ar = BlockArithmetic(fmt, Rounding(), "exact")
    blocks = [np.array([x], dtype=ar.carrier) for x in operands]
    assert [x[0] for x in try_block(THEOREMS[name], ar, blocks).results] == [once, twice]


@pytest.mark.parametrize("fmt", ["float16", "bfloat16", "tf32"])
@pytest.mark.parametrize("carrier", ["float32", "float64"])
def test_operands_known_to_break_an_fma_do(carrier, fmt):
    certificate = verify(f"fma_via_{carrier}_any", fmt, samples=1)
    assert certificate.parts[0].kind == "family"
    # float16 in float64 is safe: its sums have no bits so far apart.
    assert (certificate.parts[0].violations > 0) == ((fmt, carrier) != ("float16", "float64"))
