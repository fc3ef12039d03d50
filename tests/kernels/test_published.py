"""The second oracle: gfloat in its modes. ml_dtypes and NumPy are in `test_rounding` and `test_backends`.

What it rounds otherwise than IEEE 754 is left out; the definition judges that.
"""

import itertools
from dataclasses import replace
from functools import cache

import gfloat
import numpy as np
import pytest
from gfloat import RoundMode, formats

from mcfsim import round_to
from mcfsim.formats import FORMATS, Parity, p3109
from mcfsim.rounding import Mode, Overflow, Rounding, Rule
from tests.oracle.operands import count, label, magnitudes
from tests.shared.formats import p3109_formats, p3109_of_gfloat

E8M0 = FORMATS["float8_e8m0fnu"]
INFO = {
    FORMATS["float8_e5m2"]: formats.format_info_ocp_e5m2,
    FORMATS["float8_e4m3fn"]: formats.format_info_ocp_e4m3,
    FORMATS["float6_e3m2fn"]: formats.format_info_ocp_e3m2,
    FORMATS["float6_e2m3fn"]: formats.format_info_ocp_e2m3,
    FORMATS["float4_e2m1fn"]: formats.format_info_ocp_e2m1,
    FORMATS["bfloat16"]: formats.format_info_bfloat16,
    FORMATS["float16"]: formats.format_info_binary16,
    FORMATS["float32"]: formats.format_info_binary32,
    replace(E8M0, parity=Parity.CODE): formats.format_info_ocp_e8m0,  # where 2 of 1, 2, 4 is even
}
MODES = {
    Mode.TOWARD_ZERO: RoundMode.TowardZero,
    Mode.UP: RoundMode.TowardPositive,
    Mode.DOWN: RoundMode.TowardNegative,
    Mode.NEAREST_EVEN: RoundMode.TiesToEven,
    Mode.NEAREST_AWAY: RoundMode.TiesToAway,
}
RULES = {
    Rule.NEAREST_FIRST: RoundMode.Stochastic,
    Rule.CENTRED: RoundMode.StochasticFast,
    Rule.TRUNCATE: RoundMode.StochasticFastest,
}
OVERFLOWS = (Overflow.IEEE, Overflow.SATURATE)


P3109 = {fmt: p3109_of_gfloat(fmt) for fmt in p3109_formats(range(3, 9))}
WIDE_P3109 = {
    p3109(bits, precision): formats.format_info_p3109(bits, precision)
    for bits, precision in ((10, 1), (12, 4), (14, 13), (16, 8), (16, 11))
}
ALL = INFO | P3109 | WIDE_P3109


@cache
def between(fmt, steps):
    """Return numbers of a format, what divides the gap above each into so many steps, also the last one's."""
    size = count(fmt)
    places = np.arange(min(size, 300))
    if size > 300:
        inner = np.random.default_rng(1).integers(0, size, 300)
        places = np.unique(np.concatenate([places, inner, size - 1 - places]))
    numbers = magnitudes(fmt, places)
    above = np.append(magnitudes(fmt, places[:-1] + 1), float(fmt.max) + float(fmt.max / fmt.max_significand))
    share = np.arange(0, 1, 1 / steps)
    return np.unique(numbers[:, None] + (above - numbers)[:, None] * share)


@cache
def boundaries(fmt):
    """Return values and midpoints, the float64 next to each, extreme numbers and NaN, negative ones too."""
    extreme = [2.0**-1000, 2.0**1000, 1.5 * float(fmt.max), 4 * float(fmt.max)]
    exact = np.concatenate([between(fmt, 2), extreme])
    source = np.unique(np.concatenate([exact, np.nextafter(exact, 0), np.nextafter(exact, np.inf)]))
    return np.concatenate([source, -source, [np.nan, np.inf, -np.inf]])


def comparable(x, fmt, saturates):
    """Return the numbers about which gfloat and we mean the same; the definition says the others."""
    if saturates or not fmt.has_nan:
        x = x[~np.isinf(x)]
    if not fmt.signed:
        x = x[~(np.signbit(x) & (x != 0))]
    if not fmt.has_nan and not saturates:
        x = x[~(np.abs(x) > float(fmt.max))]
    if not fmt.zero:
        x = x[~(np.abs(x) < float(fmt.smallest_normal))]
    return x


def by_gfloat(x, fmt, mode, overflow, *draw):
    with np.errstate(all="ignore"):
        return gfloat.round_ndarray(ALL[fmt], x, mode, overflow is Overflow.SATURATE, *draw)


# -- gfloat -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("fmt", ALL, ids=label)
@pytest.mark.sampled(16, each=False)
def test_every_boundary_rounds_as_in_gfloat(fmt, assert_same):
    for mode, overflow in itertools.product(MODES, OVERFLOWS):
        x = comparable(boundaries(fmt), fmt, overflow is Overflow.SATURATE)
        assert_same(round_to(x, fmt, mode, overflow), by_gfloat(x, fmt, MODES[mode], overflow), x)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("fmt", [*INFO, *p3109_formats((4, 8)), *WIDE_P3109], ids=label)
@pytest.mark.sampled(16, each=False)
def test_random_draws_round_as_in_gfloat(fmt, rule, assert_same):
    """Sixteenths of the gaps, ties of the rules among them; in gfloat their sums with the draws are exact."""
    for r, overflow in itertools.product((1, 3), OVERFLOWS):
        x = between(fmt, 16)
        x = comparable(np.concatenate([x, -x, [np.nan]]), fmt, overflow is Overflow.SATURATE)
        draws = np.random.default_rng(r).integers(0, 2**r, x.size)
        x, draws = np.concatenate([x, x]), np.concatenate([draws, 2**r - 1 - draws])
        words = (draws << (32 - r)).astype(np.uint32)
        rounding = Rounding("stochastic", overflow, random_bits=r, rule=rule)
        expected = by_gfloat(x, fmt, RULES[rule], overflow, draws, r)
        assert_same(round_to(x, fmt, rounding, random=words), expected, x, draws)
