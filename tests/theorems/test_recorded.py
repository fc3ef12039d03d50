"""Each function of NumPy's that is recorded, on numbers of every kind, against NumPy on arrays."""

import itertools

import numpy as np
import pytest

from mcfsim.kernels.element.machine import Line
from mcfsim.kernels.element.on_numpy import DTYPES, run
from mcfsim.oracle import same
from mcfsim.theorems import Theorem, claim, value, verify
from mcfsim.theorems.recorded import _VERBS, Recorded, Recorder

TYPES = {dtype: kind for kind, dtype in DTYPES.items()}


def numbers(dtype):
    """Return numbers of every kind: zeros, ties, ends of ranges and what is next to them, NaN."""
    if dtype.kind == "b":
        return np.array([False, True])
    if dtype.kind == "i":
        info = np.iinfo(dtype)
        few = [0, 1, -1, 2, 7, -1022, -1023, -1100, 1023, 1024, 60]
        return np.array([*few, info.max, info.min, info.min + 1], dtype)
    info = np.finfo(dtype)
    halves = [0.5, 1.5, 2.5, 1 - info.eps / 2, 1 + info.eps, 0.5 - info.eps / 4, 2.0**23 + 0.5, 2.0**52 - 0.5]
    sizes = [0, 1, 2, 3, *halves, info.smallest_subnormal, info.tiny, info.tiny * (1 - info.eps), info.max]
    sizes += [info.tiny / 2, info.max / 2, 2.0**31, 2.0**52, 2.0**53 + 2, 1 / 3, np.inf, np.nan]
    found = np.array(sizes, dtype)
    return np.concatenate([found, -found])


def recorded(function, arrays):
    """Return what the line of a function gives, and where it is in doubt."""
    line = Line()
    recorder = Recorder(line, lambda x: x)
    names = "abc"[: len(arrays)]
    given = [
        Recorded(recorder, line.input(name, TYPES[x.dtype])) for name, x in zip(names, arrays, strict=True)
    ]
    results = function(*given)
    results = results if isinstance(results, tuple) else (results,)
    values = (*(x.value for x in results), recorder.doubts())
    *found, doubt = run(line, values, **dict(zip(names, arrays, strict=True)))
    return found, doubt


def compared(function, arrays):
    """Return in how many cases they agree, and in how many there is doubt; None if it is not recorded."""
    with np.errstate(all="ignore"):
        try:
            truth = function(*arrays)
        except TypeError:
            return None
        try:
            found, doubt = recorded(function, arrays)
        except (TypeError, ValueError):  # what no register holds is left to NumPy
            return None
    for mine, right in zip(found, truth if isinstance(truth, tuple) else (truth,), strict=True):
        assert mine.dtype == right.dtype
        wrong = ~(same(mine, right) if mine.dtype.kind == "f" else mine == right) & ~doubt
        assert not wrong.any(), [(*(x[wrong][0] for x in arrays), mine[wrong][0], right[wrong][0])]
    return int((~doubt).sum()), int(doubt.sum())


@pytest.mark.parametrize("function", sorted(_VERBS, key=str), ids=lambda function: function.__name__)
def test_a_recorded_function_is_that_of_numpy(function):
    recorded_for = {}
    for dtypes in itertools.product(DTYPES.values(), repeat=function.nin):
        grids = np.meshgrid(*map(numbers, dtypes), indexing="ij")
        counts = compared(function, [grid.ravel() for grid in grids])
        if counts is not None:
            recorded_for[dtypes] = counts
    assert recorded_for
    for sure, doubtful in recorded_for.values():
        assert doubtful <= sure, recorded_for  # it does not doubt everything


def exponent(x):
    """Return the exponent of finite numbers, and zero."""
    return np.where(np.isfinite(x), np.frexp(x)[1], 0)


@pytest.mark.parametrize("dtype", [np.dtype(np.float32), np.dtype(np.float64)])
def test_choices_and_comparisons_with_numbers(dtype):
    x, y = (grid.ravel() for grid in np.meshgrid(numbers(dtype), numbers(dtype)))
    for function in (
        lambda x, y: np.where(x < y, x, y),
        lambda x, y: np.where(np.signbit(x), 0, y),
        lambda x, y: abs(x) - 1.5 >= y * 2,
        lambda x, y: x.astype(np.float64) + y,
        lambda x, y: ~((x == y) & (0 < x)) | (y != 0),  # noqa: SIM300
        lambda x, y: np.where(np.isfinite(x), np.frexp(x)[0], 0),
        lambda x, y: np.ldexp(x.astype(np.float64), exponent(y)),
        lambda x, y: np.multiply(x, y, dtype=np.float64),
        lambda x, y: (x * np.float64(3) + 0.1, x * 0.1 - 2),
        lambda x, y: 1 * (x > y) + 2 * (x < y) - abs(exponent(y)),
        lambda x, y: np.maximum(exponent(x), exponent(y)) - np.minimum(exponent(x), 3),
        lambda x, y: x.view(f"i{x.dtype.itemsize}") & 255,
    ):
        sure, doubtful = compared(function, [x, y])
        assert doubtful < sure


@pytest.mark.parametrize("extreme", [np.minimum, np.maximum])
def test_which_zero_numpy_takes_is_in_doubt_and_a_claim_on_it_is_judged_as_numpy_judges_it(extreme):
    """Whichever a processor takes, in formats so small that nothing is recorded, and in others."""
    zeros = np.array([0.0, -0.0], np.float32)
    x, y = zeros[[0, 0, 1, 1]], zeros[[0, 1, 0, 1]]
    found, doubt = recorded(extreme, [x, y])
    assert doubt.tolist() == [False, True, True, False]
    assert np.signbit(found[0])[[0, 3]].tolist() == [False, True]
    for wanted, fmt in ((True, "float6_e3m2fn"), (False, "e5m6")):

        def test(t, wanted=wanted):
            there = (t["a"] == 0) & (t["b"] == 0)
            return ~there | (np.signbit(extreme(t["a"], t["b"])) == wanted)

        pair = (value("a"), value("b"))
        certificate = verify(Theorem("zeros", lambda ar, a, b: ar.add(a, b), pair, claim("sign", test)), fmt)
        assert certificate.violations == (np.signbit(extreme(x, y)) != wanted).sum() > 0
        shown = np.float32([float.fromhex(x.hexadecimal) for x in certificate.simplest.operands])
        assert (shown == 0).all()
        assert np.signbit(extreme(*shown)) != wanted
