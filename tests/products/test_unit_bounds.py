"""What is proved of matrix units: bounds and monotony, against fractions, and what is false of them."""

from fractions import Fraction
from functools import partial

import ml_dtypes
import numpy as np
import pytest

from mcfsim.products import UNITS, dot, error_bound, get_unit, is_monotone
from tests.products.units_by_definition import values
from tests.shared.refusals import check, refusals, refused

#: Units of which something is proved.
PROVED = [x for x, unit in UNITS.items() if str(unit.sums) == "aligned" and not unit.scales]


# -- bounds -----------------------------------------------------------------------------------------------
def shares(unit, a, b, c, **options):
    """Return the errors of finite dot products, relative to the sums of their terms' magnitudes, exactly."""
    made, found = dot(a, b, unit=unit, c=c, **options), []
    for row in np.flatnonzero(np.isfinite(made)):
        terms = [Fraction(x) * Fraction(y) for x, y in zip(a[row].tolist(), b[row].tolist(), strict=True)]
        terms.append(Fraction(float(c[row])))
        found.append(abs(Fraction(float(made[row])) - sum(terms)) / (sum(map(abs, terms)) or 1))
    return found


def operands(unit, length, rows, seed, addend):
    """Return normal numbers, some of one sign, some small beside the addend, some zero."""
    rng, fmt = np.random.default_rng(seed), unit.inputs[seed % len(unit.inputs)]
    a, b = (values(fmt, rng, (rows, length), 4, -2) for _ in range(2))
    least = float(fmt.smallest_normal)
    a, b = (np.where(abs(x) < least, np.copysign(least, x), x) for x in (a, b))
    a[::3], b[::3] = abs(a[::3]), abs(b[::3])
    a[1::3] = np.where(rng.random(a[1::3].shape) < 0.5, 0.0, a[1::3])
    c = values(unit.added, rng, rows, 6) if addend else np.zeros(rows)
    return a.astype(dtype(fmt)), b.astype(dtype(fmt)), c


def dtype(fmt):
    """Return a dtype by whose name a unit knows a format."""
    return getattr(ml_dtypes, str(fmt), np.float32)


@pytest.mark.parametrize("name", PROVED)
@pytest.mark.sampled(13, each=False)
@pytest.mark.slow
def test_no_error_exceeds_the_bound(name):
    unit = get_unit(name)
    for seed, length in enumerate((1, unit.k, unit.k + 1, 3 * unit.k, 5 * unit.k - 1)):
        for addend in (False, True):
            given = operands(unit, length, 24, seed, addend)
            for options in ({}, {"promote_every": 2 * unit.k}):
                found = shares(name, *given, **options)
                assert len(found) > 6
                assert max(found) <= error_bound(name, length, addend=addend, **options)


def all_lost(unit, groups):
    """Return operands whose products beside C = 1 lose nearly all that they may, and again in each group."""
    a, b = np.zeros((1, unit.k * groups)), np.ones((1, unit.k * groups))
    fmt, bits, p = unit.inputs[0], unit.fraction_bits, unit.output.precision
    almost = 2.0 - 2.0 ** (1 - fmt.precision)
    half = (-bits - 1) // 2
    a[:], b[:] = almost * 2.0**half, 2.0 ** (-bits - 1 - half)
    if p - 1 < bits:  # the first product is just below what would count in the result
        b[0, :: unit.k] *= 2.0 ** (bits - p + 1)
    return a, b, np.ones(1)


@pytest.mark.parametrize("name", ["volta_fp16", "ampere_fp16", "ampere_tf32", "hopper_fp16", "hopper_bf16"])
def test_the_bound_is_sharp(name):
    # What is lost is (1 - u) of the bound; of M, some 2^-20 more than C.
    unit = get_unit(name)
    sharp = 1 - Fraction(2) ** -unit.inputs[0].precision - Fraction(2) ** -12
    for groups in (1, 7):
        given, length = all_lost(unit, groups), groups * unit.k
        (found,), bound = shares(name, *given), error_bound(name, length, addend=True)
        assert sharp * bound <= found <= bound
        # A bound in which one product fewer loses, or in which the result is rounded to nearest, is false.
        for wrong in (
            bound - groups * Fraction(2) ** -unit.fraction_bits,
            bound - groups * Fraction(2) ** -unit.output.precision,
            error_bound(name, length - unit.k, addend=True),
        ):
            assert wrong < found


def test_bounds_grow_with_groups_and_not_with_promoted_ones():
    assert error_bound("hopper_fp8", 0) == error_bound("hopper_fp16", 0, addend=True) == 0
    assert shares("hopper_fp8", *np.zeros((2, 1, 0)), np.float32([2 - 2.0**-23]))[0] < Fraction(1, 2**13)
    assert error_bound("hopper_fp8", 0, addend=True) == Fraction(1, 2**13)
    assert error_bound("hopper_fp8", 32) == Fraction(31, 2**13)
    assert error_bound("hopper_fp8", 33) == Fraction(31 + 1, 2**13)
    assert error_bound("hopper_fp8", 64) == Fraction(31 + 32, 2**13)
    # C of 24 bits may be cut itself, what is carried has 14.
    assert error_bound("hopper_fp8", 64, addend=True) == Fraction(33 + 32, 2**13)
    # To nearest, half of an ulp of 2^-10 and what the carried sum may have grown by.
    one = Fraction(3, 2**23) + Fraction(1, 2**11)
    assert error_bound("volta_fp16_to_fp16", 4) == one
    assert error_bound("volta_fp16_to_fp16", 8) == (2 * one + Fraction(1, 2**23)) * (1 + Fraction(1, 2**11))
    assert error_bound("hopper_fp8", 2**16, promote_every=128) < error_bound("hopper_fp8", 160)


@refusals(
    refused(ValueError, "is chain: bounds are proved for aligned", error_bound, ("hopper_fp64", 4)),
    refused(ValueError, "is scaled", error_bound, ("blackwell_mxfp8", 4)),
    refused(ValueError, "is floored", is_monotone, ("cdna3_fp16", "factors")),
    refused(ValueError, "length = -1", error_bound, ("hopper_fp8", -1)),
    refused(TypeError, "length must be an int", error_bound, ("hopper_fp8", 2.0)),
    refused(ValueError, "no multiple of", partial(error_bound, promote_every=3), ("hopper_fp8", 4)),
    refused(ValueError, "of = 'c' must be", is_monotone, ("hopper_fp8", "c")),
)
def test_questions_that_have_no_answer_are_refused(rows):
    check(rows)
