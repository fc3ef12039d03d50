"""Real numbers as components of every kind of format, and where arithmetic on several is refused.

Every component is compared with the oracle's rounding of what is left, in fractions; and what is refused with
the oracle's rounding in a format that goes on where this one ends.
"""

import itertools
import math
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from functools import cache

import mpmath
import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.codec import all_values, encode
from mcfsim.formats import FORMATS, Format, Grid, Posit, get_format
from mcfsim.kernels.carriers import UnsupportedFormatError
from mcfsim.models.memory import Model
from mcfsim.oracle import round_fraction
from mcfsim.report.tables import memory_table
from tests.oracle.operands import SMALL_FORMATS, UNUSUAL_FORMATS, label
from tests.shared.formats import GRIDS

ODD_ONES = [
    Format("p1code", precision=1, emin=-3, emax=2, specials="none", parity="code"),
    Format("unsigned_p1", precision=1, emin=-3, emax=3, specials="none", signed=False),
    Format("unsigned_nozero", precision=3, emin=-3, emax=3, specials="fn", signed=False, zero=False),
    Format("nozero_p1", precision=1, emin=-3, emax=3, specials="none", zero=False),
    get_format("binary8p4uf"),
    *(Grid(low=-2, high=7), Grid(low=-8, high=8, fraction_bits=-2), Grid(low=-3, high=1, fraction_bits=5)),
    *(Posit(3), Posit(6, es=0), Posit(8), Posit(8, es=3)),
]
SMALL = [*SMALL_FORMATS, *UNUSUAL_FORMATS, *ODD_ONES, *GRIDS]


@cache
def finite_values(fmt):
    values = all_values(fmt)
    return sorted({Fraction(float(x)) for x in values[np.isfinite(values)]})


def rounding(exact, fmt):
    """Return the rounding to nearest even in a format that goes on past the ends, and has sign and zero."""
    if isinstance(fmt, Grid):
        return round(exact / fmt.quantum) * fmt.quantum
    if isinstance(fmt, Posit):
        *_, before, last = finite_values(fmt)
        past = abs(exact) >= last + (last - before) / 2
        return (2 * last if exact > 0 else -2 * last) if past else Fraction(round_fraction(exact, fmt))
    wider = replace(fmt, emax=fmt.emax + 400, specials="none", signed=True)
    return Fraction(round_fraction(exact, wider)) if exact else Fraction(0)


def expected(exact, fmt, n):
    """Return the components, or the word that says why there are none."""
    parts, rest = [], exact
    for _ in range(n):
        nearest = rounding(rest, fmt)
        if nearest == 0 and not fmt.zero:
            return "zero"
        if nearest < 0 and not fmt.signed:
            return "negative"
        if nearest > fmt.max:
            return "exceeds the maximum"
        if nearest < fmt.lowest:
            return "below the least value"
        parts.append(nearest)
        rest -= nearest
    return tuple(parts)


def reals(fmt, seed, size):
    """Return values, ties, what lies next to them, and sums: within the range, at its ends and beyond."""
    rng = np.random.default_rng(seed)
    values = finite_values(fmt)
    if len(values) > 60:
        chosen = rng.choice(len(values), 30, replace=False)
        values = sorted([*values[:9], *values[-9:], *(values[i] for i in chosen)])
    step = values[-1] - values[-2]
    values = [values[0] - 3 * step, values[0] - step, *values, values[-1] + step, values[-1] + 3 * step]
    ties = [(a + b) / 2 for a, b in itertools.pairwise(values)]
    near = [x + sign * Fraction(1, 2**200) for x in ties for sign in (-1, 1)]
    wild = [Fraction(sign) * Fraction(2) ** e for e in (-300, -20, 40, 300) for sign in (-1, 1)]
    picks = rng.integers(len(values), size=(size, 3)).tolist()
    sums = [values[a] + values[b] / 2**5 + values[c] * Fraction(1, 3 * 2**11) for a, b, c in picks]
    return [Fraction(0), *values, *ties, *near, *wild, *sums]


@pytest.mark.parametrize("fmt", SMALL, ids=label)
@pytest.mark.sampled(40, each=False)
@pytest.mark.slow
def test_each_component_is_the_rest_rounded_or_the_reason_is_right(fmt):
    ar, kinds = mcf.arithmetic(fmt), set()
    for n, exact in [(k, x) for k in (1, 3) for x in reals(fmt, seed=k, size=20)]:
        right = expected(exact, fmt, n)
        kinds.add(type(right))
        if isinstance(right, str):
            with pytest.raises(ValueError, match=right):
                mcf.expand(ar, exact, n)
            continue
        found = mcf.expand(ar, exact, n)
        assert tuple(map(Fraction, found)) == right, exact
        encode(list(found), fmt)  # every component has a code
    assert kinds == {tuple, str}


@pytest.mark.parametrize("name", ["bfloat16", "float16", "float32", "float64", "posit32"])
def test_components_of_wide_formats(name):
    fmt, rng = get_format(name), np.random.default_rng(5)
    for a, b, e in zip(*rng.integers(1, 2**62, (2, 30)).tolist(), rng.integers(-20, 10, 30), strict=True):
        rest = exact = Fraction(a, -b) * Fraction(2) ** int(e)
        for component in mcf.expand(mcf.arithmetic(fmt), exact, 4):
            assert component == round_fraction(rest, fmt)
            rest -= Fraction(component)


TOP = FORMATS["float64"].max
BY_HAND = [
    *(("bf16", x("0.15625"), 2, (0.15625, 0.0)) for x in (float, Decimal, Fraction, mpmath.mpf, np.float32)),
    # 1 is beyond what the components of beta say: an e4m3 pair for 0.999 is 0.998.
    ("e4m3fn", Decimal("0.999"), 3, (1.0, -(2.0**-9), 0.0)),
    ("bf16", 0.999, 3, (1.0, -131 * 2.0**-17, -147 * 2.0**-28)),  # the pair is that of Collage
    ("e8m0fnu", 1.25, 2, (1.0, 0.25)),
    ("posit8", 2**24 + 1, 2, (2.0**24, 1.0)),
    ("float64", TOP + Fraction(2) ** 969, 2, (float(TOP), 2.0**969)),
    (None, Fraction(1, 4), 3, (0.25, 0, 0)),
]


@pytest.mark.parametrize(("fmt", "number", "n", "components"), BY_HAND)
def test_by_hand(fmt, number, n, components):
    ar = mcf.arithmetic(fmt) if fmt else mcf.arithmetic(None, backend="exact")
    assert mcf.expand(ar, number, n) == components


@pytest.mark.parametrize(
    ("fmt", "number", "n", "message"),
    [
        ("bf16", 0.5, 0, "at least one component"),
        *(("bf16", 0.5, bad, "n must be an int") for bad in (0.5, "2", True, None)),
        ("bf16", math.nan, 2, "not finite"),
        (None, math.inf, 2, "not finite"),
        ("float64", TOP + Fraction(2) ** 970, 2, "exceeds the maximum"),
        ("int8", 128, 2, "it exceeds the maximum 127.0"),
        (Grid(low=-2, high=7), -5, 1, "it lies below the least value -2.0"),
        ("binary8p4uf", 0.999, 2, r"what 1.0 leaves is negative, and the format has no negative numbers"),
        ("e8m0fnu", 1.25, 3, r"what 1.0 \+ 0.25 leaves is zero, which the format lacks"),
        ("bfloat16", Fraction(10) ** 5000, 2, "some 1.00000e.5000 in 2 of bfloat16: it exceeds the maximum"),
    ],
)
def test_the_reason_is_said(fmt, number, n, message):
    ar = mcf.arithmetic(fmt) if fmt else mcf.arithmetic(None, backend="exact")
    with pytest.raises(ValueError if type(n) is int else TypeError, match=message):
        mcf.expand(ar, number, n)


# -- arithmetic on them -----------------------------------------------------------------------------------
def calls(ar, x):
    """Return every function of expansions, to be called."""
    return {
        "renormalize": lambda: mcf.renormalize(ar, x),
        "grow": lambda: mcf.grow(ar, x, x[0]),
        "add": lambda: mcf.expansion_add(ar, x, x),
        "scale": lambda: mcf.expansion_scale(ar, x, x[0]),
        "mul": lambda: mcf.expansion_mul(ar, x, x),
        "div": lambda: mcf.expansion_div(ar, x, x),
        "sqrt": lambda: mcf.expansion_sqrt(ar, x),
    }


NOT_FOR_SEVERAL = [get_format("posit8"), get_format("int8"), *(UNUSUAL_FORMATS[i] for i in (0, 4, -2))]


@pytest.mark.parametrize("fmt", NOT_FOR_SEVERAL, ids=label)
def test_several_components_are_refused_where_errors_are_no_values_and_one_is_not(fmt):
    ar, one = mcf.arithmetic(fmt), np.ones(3, dtype=np.float32)
    several = [*calls(ar, (one,) * 2).values(), calls(ar, (one,) * 3)["add"], calls(ar, (one,) * 3)["mul"]]
    for call in several:
        with pytest.raises(UnsupportedFormatError, match=f"{fmt} is no format for several components: "):
            call()
    for name, call in calls(ar, (one,)).items():
        (result,) = call()
        assert result.tolist() == [round_fraction(Fraction(1 + (name in ("grow", "add"))), fmt)] * 3, name


def test_a_strategy_of_several_components_is_refused_in_such_a_format():
    low, several = "posit16", {"collage-light", "collage-plus", "mcf-2", "mcf-3"}
    for name in several:
        with pytest.raises(UnsupportedFormatError, match=f"{low} is no format for several components"):
            mcf.strategy(name, low)
    listed = [row["strategy"] for row in memory_table([Model("1e9", 10**9)], low)]
    refused = {*several, "split-master", "split-truncated", "remainder-8", "remainder-16", "exact"}
    assert listed == [name for name in mcf.STRATEGIES if name not in refused]
