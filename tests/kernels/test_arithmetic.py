"""Operands and results of operations, what is refused, and what every arithmetic offers."""

from fractions import Fraction
from functools import partial
from itertools import product

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.formats import Format, Posit, get_format
from mcfsim.kernels.carriers import UnsupportedFormatError
from mcfsim.protocol import Arithmetic
from mcfsim.rounding import DETERMINISTIC, Rounding
from mcfsim.storage.buffers import BLOCK
from tests.kernels.test_operations import ARITY
from tests.shared.refusals import check, refusals, refused

FP16 = get_format("float16")


def test_operands_broadcast_and_keep_the_carrier():
    ar = mcf.arithmetic("bf16")
    column, row = np.float32([[1], [2], [3]]), np.float32([10, 20])
    assert ar.add(column, row).tolist() == [[11, 21], [12, 22], [13, 23]]
    assert ar.fma(column[:2], row[:1], 1.0).tolist() == [[11], [21]]
    assert ar.add(column.astype(np.float64), row).dtype == np.float32
    assert ar.mul(np.float32(3), row).shape == (2,)
    assert ar.add(np.empty((0, 2), np.float32), row).shape == (0, 2)
    assert mcf.arithmetic(Format(precision=30, emin=-100, emax=100)).add(column, row).dtype == np.float64
    assert ar.add(np.array([2**60]), 0.0) == 2.0**60


def test_results_are_the_callers_to_write_to():
    ar = mcf.arithmetic("bf16")
    for size in (1, 3, BLOCK + 1):
        x = np.ones(size, np.float32)
        for result in (ar.add(x, x), ar.add(x[:1], x), ar.neg(x), ar.round(x)):
            result += 1
        assert (x == 1).all()


LONG = Format("long", precision=30, emin=-1022, emax=1023)
flushing = partial(mcf.arithmetic, underflow="flush_after")
NO_VALUES = product(["bf16"], ("add", "sqrt", "fma"), map(np.array, ([1.0, 1.001], [1, 257], [0, 1e39])))
NO_REALS = [("bf16", "add", np.array([x]), np.float32([1])) for x in (1j, True, "1", Fraction(1))]
IN_LONG = product([LONG], ("mul", "div", "fma"), [np.ones(2)])


def called(fmt, name, *given, **options):
    """Call an operation on all that is given, or on one operand as often as it takes."""
    given = given if len(given) > 1 else given * ARITY[name]
    return getattr(mcf.arithmetic(fmt, **options), name)(*given)


@refusals(
    refused(ValueError, r"operand element \(1,\) = .* is no value of bfloat16.*\.round", called, *NO_VALUES),
    refused(ValueError, "broadcast", called, ("bf16", "add", np.ones(3), np.ones(2))),
    refused(ValueError, "no value of bfloat16", called, ("bf16", "add", np.array([2**60 + 1]), 1.0)),
    refused(ValueError, "no value of float64", called, ("float64", "add", np.array([2**60 + 1]), 1.0)),
    refused(ValueError, "no value of float8_e4m3fn", called, ("e4m3fn", "add", np.array([np.inf]), 1.0)),
    refused(TypeError, "no array of real numbers", called, *NO_REALS),
    refused(UnsupportedFormatError, "fma in float64", called, ("float64", "fma", np.ones(2))),
    refused(UnsupportedFormatError, "in long.*leave the range of binary64", called, *IN_LONG),
    refused(ValueError, "unknown scalar policy", partial(mcf.arithmetic, scalars="float"), "bf16"),
    refused(ValueError, "threads = 0", partial(mcf.arithmetic, threads=0), "bf16"),
    refused(UnsupportedFormatError, "underflow must be 'gradual'", flushing, Posit(16), "int8"),
)
def test_refusals(rows):
    check(rows)


@pytest.mark.parametrize("name", ARITY)
def test_float64_is_the_hardwares_to_nearest_even_and_refused_in_other_modes(name, assert_same):
    for mode in DETERMINISTIC[1:]:
        with pytest.raises(UnsupportedFormatError, match=f"{name} in float64, rounding {mode}"):
            getattr(mcf.arithmetic("float64", mode), name)(*[np.ones(2)] * ARITY[name])
    if name == "fma":  # refused as well
        return
    rng = np.random.default_rng(9)
    operands = rng.integers(0, 2**64, (ARITY[name], 2**14), dtype=np.uint64).view(np.float64)
    numpys = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "sqrt": np.sqrt}[name]
    with np.errstate(all="ignore"):
        expected = numpys(*operands)
    assert_same(getattr(mcf.arithmetic("float64"), name)(*operands), expected, *operands)


# -- the interface ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("backend", ["numpy", "native", "exact", "torch"])
def test_every_backend_is_an_arithmetic_with_signs_and_others_like_it(backend):
    if backend == "torch":
        pytest.importorskip("torch")
    ar = mcf.arithmetic("bfloat16" if backend != "exact" else None, backend=backend)
    assert isinstance(ar, Arithmetic)
    signs = ar.sign(ar.round(np.array([3.0, -0.25, 0.0, -1e-38])))
    assert [float(x) for x in signs] == [1, -1, 0, -1]
    assert float(ar.sign(-0.1)) == -1
    other = ar.like(FP16, Rounding())
    assert type(other) is type(ar)
    assert (other is ar) == (backend == "exact")
    if backend != "exact":
        assert (other.format, other.rounding) == (FP16, Rounding())
        assert float(other.round(np.array([1 + 2.0**-10]))[0]) == 1 + 2.0**-10
    if backend != "torch":
        metered = mcf.Meter(ar).like(FP16, Rounding())
        assert (type(metered), metered.format) == (mcf.Meter, other.format)
    if backend == "native":
        with pytest.raises(ValueError, match="native arithmetic rounds to nearest even"):
            ar.like(FP16, Rounding("up"))


def test_a_zero_and_nan_have_their_own_sign_and_nothing_is_drawn():
    ar = mcf.arithmetic("bfloat16", "stochastic", random=mcf.RandomWords(1))
    found = ar.sign(np.float32([-0.0, 0.0, np.nan, -np.inf]))
    assert np.signbit(found).tolist()[:2] == [True, False]
    assert np.isnan(found[2])
    assert found[3] == -1
    meter = mcf.Meter(mcf.arithmetic("bfloat16"))
    meter.sign(np.float32([2.0, -3.0]))
    assert (meter.tallies["sign"].elements, meter.tallies["sign"].inexact) == (2, 0)


def test_options_are_told():
    text = repr(mcf.arithmetic("bf16", "up", "saturate", scalars="rounded"))
    assert all(word in text for word in ("bfloat16", "up", "saturate", "rounded"))
