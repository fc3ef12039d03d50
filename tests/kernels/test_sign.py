"""Signs as numbers: every backend beside the oracle, on every value of small formats and on real scalars."""

from fractions import Fraction

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.codec import all_values
from mcfsim.formats import Format, get_format
from mcfsim.oracle import OracleArithmetic
from mcfsim.rounding import DETERMINISTIC, Rounding

#: The last ones hold neither 1 nor -1, so that a sign is rounded.
FORMATS = [
    *map(get_format, ("e4m3fn", "e5m2", "posit8", "int4", "ternary", "float8_e8m0fnu", "binary8p3se")),
    Format("below", precision=3, emin=-9, emax=-2),
    Format("above", precision=3, emin=3, emax=6),
    Format("unsigned", precision=3, emin=-3, emax=3, signed=False),
]
REALS = [0.3, -0.0, 0.0, -7, Fraction(-1, 3), Fraction(1, 10**400), float("inf"), float("-inf"), float("nan")]


@pytest.mark.parametrize("mode", list(DETERMINISTIC))
@pytest.mark.parametrize("fmt", FORMATS, ids=str)
def test_signs_are_those_of_the_oracle(fmt, mode, assert_same):
    ar, oracle = mcf.arithmetic(fmt, mode), OracleArithmetic(fmt, Rounding(mode))
    values = all_values(fmt).astype(ar.carrier)
    assert_same(ar.sign(values), [oracle.sign(float(x)) for x in values], values)
    for x in REALS:
        assert_same(ar.sign(x), oracle.sign(x))


@pytest.mark.parametrize("backend", ["numpy", "native", "exact"])
def test_signs_of_every_backend(backend):
    ar = mcf.arithmetic("bfloat16", backend=backend)
    signs = ar.sign(ar.round(np.array([3.0, -0.25, 0.0, -1e-38])))
    assert [float(x) for x in signs] == [1, -1, 0, -1]
    assert float(ar.sign(-0.1)) == -1


def test_a_zero_and_nan_stay_as_they_are_and_nothing_is_drawn():
    ar = mcf.arithmetic("bfloat16", "stochastic", random=mcf.RandomWords(1))
    found = ar.sign(np.float32([-0.0, 0.0, np.nan, -np.inf]))
    assert np.signbit(found).tolist()[:2] == [True, False]
    assert np.isnan(found[2])
    assert found[3] == -1
    meter = mcf.Meter(mcf.arithmetic("bfloat16"))
    meter.sign(np.float32([2.0, -3.0]))
    assert (meter.tallies["sign"].elements, meter.tallies["sign"].inexact) == (2, 0)


def test_torch_has_the_same():
    torch = pytest.importorskip("torch")
    ar = mcf.arithmetic("bfloat16", backend="torch")
    assert ar.sign(torch.tensor([2.0, -1.0, 0.0], dtype=torch.bfloat16)).tolist() == [1, -1, 0]


@pytest.mark.parametrize("backend", ["numpy", "native", "exact"])
def test_arithmetics_of_the_same_kind_in_another_format(backend):
    ar = mcf.arithmetic("bfloat16", backend=backend)
    other = ar.like(get_format("float16"), Rounding())
    assert type(other) is type(ar)
    if backend == "exact":
        assert other is ar
    else:
        assert (other.format, other.rounding) == (get_format("float16"), Rounding())
        assert float(other.round(np.array([1 + 2.0**-10]))[0]) == 1 + 2.0**-10
    metered = mcf.Meter(ar).like(get_format("float16"), Rounding())
    assert (type(metered), metered.format) == (mcf.Meter, other.format)


def test_a_dtype_rounds_in_its_own_way_alone():
    with pytest.raises(ValueError, match="native arithmetic rounds to nearest even"):
        mcf.arithmetic("bfloat16", backend="native").like(get_format("float16"), Rounding("up"))
