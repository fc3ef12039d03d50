"""Moments kept as posits: no square of a gradient vanishes, and at the ends of the range none decays."""

from fractions import Fraction

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.codec import decode
from mcfsim.formats import Posit
from mcfsim.optim.adamw import second_moment
from mcfsim.oracle.posits import posit_value, round_posit


def next_v(fmt, v, g, beta2):
    """Return the second moment after a gradient, by the text of AdamW's step."""
    ar = mcf.arithmetic(fmt)
    strategy = mcf.strategy("plain", fmt)
    scalars = mcf.AdamW(beta2=beta2).scalars(strategy.roles(), strategy, 1, 1e-3, decayed=False)
    (moved,) = second_moment(ar, (ar.round(v),), ar.round(g), scalars)
    return moved


@pytest.mark.parametrize("beta2", [0.9, 0.999])
@pytest.mark.parametrize("fmt", [Posit(8), Posit(8, 0), Posit(12)], ids=str)
@pytest.mark.sampled(2)
def test_no_square_vanishes_and_v_decays_where_beta2_v_lies_below_the_boundary_under_v(fmt, beta2):
    values = decode(np.arange(1, 2 ** (fmt.bits - 1), dtype=np.uint64), fmt)
    zero = np.zeros_like(values)
    squares = [round_posit(Fraction(x) ** 2, fmt) for x in values.tolist()]
    expected = [float(round_posit(Fraction(1.0 - beta2) * x, fmt)) for x in squares]
    assert next_v(fmt, zero, values, beta2).tolist() == expected
    assert min(expected) >= float(fmt.smallest_normal)
    decays = next_v(fmt, values, zero, beta2) < values
    for code in range(2, len(values) + 1, max(1, len(values) // 500)):
        v = posit_value(code, fmt)
        # The boundary is the posit of one bit more, below; a tie goes to the even code.
        below = Fraction(beta2) * v - posit_value(2 * code - 1, Posit(fmt.bits + 1, fmt.es))
        assert decays[code - 1] == (below < 0 or (below == 0 and code % 2 == 1)), (code, v)
    assert not decays[[0, -1]].any()
    assert decays[len(values) // 2] == (beta2 == 0.9)
