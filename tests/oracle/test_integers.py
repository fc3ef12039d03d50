"""The int64 arithmetic against the definition, in full where that is short, on hard operands elsewhere."""

import itertools
from functools import partial

import numpy as np
import pytest

from mcfsim.formats import Format, get_format
from mcfsim.oracle import operate, operate_integers, round_float, round_integers, same
from mcfsim.rounding import Rounding
from tests.shared.refusals import check as check_refusals
from tests.shared.refusals import refusals, refused

from .operands import MODES, ROUNDINGS, SMALL_FORMATS, WIDE_FORMATS, corners, label, random_tuples, values

ARITY = {"add": 2, "sub": 2, "mul": 2, "div": 2, "sqrt": 1, "fma": 3}
BINARY = [name for name, arity in ARITY.items() if arity == 2]
E4M3FN, E5M2 = get_format("e4m3fn"), get_format("e5m2")
NEAREST = Rounding()


def check(name, operands, fmt, rounding=NEAREST):
    """Assert that both give the same; name the first operands for which they do not."""
    actual = operate_integers(name, *operands, fmt=fmt, rounding=rounding)
    columns = list(zip(*(x.tolist() for x in operands), strict=True))
    expected = np.array([operate(name, column, fmt, rounding) for column in columns])
    wrong = np.flatnonzero(~same(actual, expected))
    assert not wrong.size, (name, fmt, rounding, *(x[wrong[0]] for x in (columns, actual, expected)))


@pytest.mark.parametrize(
    ("fmt", "rounding"), [*((E4M3FN, mode) for mode in MODES), (E5M2, NEAREST)], ids=label
)
@pytest.mark.parametrize("name", BINARY)
@pytest.mark.exhaustive
def test_all_pairs(name, fmt, rounding):
    everything = values(fmt)
    check(name, [x.ravel() for x in np.meshgrid(everything, everything)], fmt, rounding)


@pytest.mark.parametrize("part", range(37))
@pytest.mark.sampled(37, each=False)
@pytest.mark.slow
def test_hard_operands_in_every_rounding(part):
    for name, fmt, rounding in [*itertools.product(ARITY, [*SMALL_FORMATS, *WIDE_FORMATS], ROUNDINGS)][
        part::37
    ]:
        check(name, random_tuples(fmt, 300, ARITY[name], seed=3), fmt, rounding)


@pytest.mark.parametrize("fmt", [*SMALL_FORMATS, *WIDE_FORMATS[:2]], ids=label)
@pytest.mark.sampled(4, each=False)
def test_all_roots(fmt):
    check("sqrt", [values(fmt)[:: 1 if fmt.bits <= 8 else 11]], fmt)


@pytest.mark.parametrize("fmt", [E5M2, *WIDE_FORMATS], ids=label)
@pytest.mark.parametrize("name", [*BINARY, "fma"])
@pytest.mark.sampled(3)
def test_corners(name, fmt):
    every = np.array([*itertools.product(corners(fmt).tolist(), repeat=ARITY[name])])
    check(name, list(every[:: 1 if name != "fma" else 23].T), fmt)


@pytest.mark.parametrize("name", ARITY)
def test_operands_may_be_wider_than_the_result(name):
    operands = random_tuples(get_format("bf16"), 400, ARITY[name], seed=6)
    for rounding in ROUNDINGS[::2]:
        check(name, operands, Format(precision=2, emin=-9, emax=9), rounding)


@pytest.mark.parametrize("rounding", ROUNDINGS, ids=label)
@pytest.mark.parametrize("name", ["e2m1fn", "e4m3fn", "e4m3fnuz", "e5m2", "bf16", "fp16", "tf32", "fp32"])
@pytest.mark.sampled(24, each=False)
def test_rounding_of_float64(name, rounding):
    fmt = get_format(name)
    rng = np.random.default_rng(8)
    patterns = rng.integers(0, 2**64, 500, dtype=np.uint64).view(np.float64)
    numbers = random_tuples(get_format("bf16" if fmt.precision > 11 else name), 300, 1, seed=9)[0]
    ulp = 2.0 ** (1 - fmt.precision)
    edges = np.array([float(fmt.max), float(fmt.smallest_normal), float(fmt.smallest_subnormal)])
    near = np.concatenate([numbers, edges, -edges, edges / 2, -edges / 4])
    near = np.concatenate([near, near * (1 + ulp / 2), near * (1 + ulp / 3)])
    extremes = [2.0**-1074, -(2.0**-1022), np.finfo(np.float64).max]
    x = np.concatenate([patterns, near, *(np.nextafter(near, end) for end in (np.inf, -np.inf)), extremes])
    expected = [round_float(value, fmt, rounding) for value in x.tolist()]
    assert same(round_integers(x, fmt, rounding), expected).all()


def test_operands_are_broadcast_across_blocks():
    fmt = get_format("fp16")
    column, row = values(fmt)[::97, None], values(fmt)[::89]
    table = operate_integers("mul", column, row, fmt=fmt)
    assert table.shape == (column.size, row.size)
    with np.errstate(all="ignore"):
        assert same(table, column.astype(np.float16) * row.astype(np.float16)).all()
    assert operate_integers("mul", column[:0], row, fmt=fmt).shape == (0, row.size)


def test_same_tells_zeros_apart_and_nans_alike():
    assert same([0.0, -0.0, np.nan, -np.nan, 1.0], [0.0, -0.0, -np.nan, np.nan, 1.0]).all()
    assert not same([0.0, np.nan, 1.0, np.inf], [-0.0, 1.0, np.nan, -np.inf]).any()
    signalling = np.array([0x7F800001], dtype=np.uint32).view(np.float32)
    assert same(signalling, np.nan).all()


@refusals(
    refused(
        ValueError,
        "11 significant bits",
        partial(operate_integers, "add", fmt=E5M2),
        *((x, 1.0) for x in (1 + 2.0**-11, 2.0**600, 2.0**-1074)),
    ),
    refused(TypeError, "must be floats", round_integers, (np.array([2**60 + 1]), E5M2)),
    refused(
        ValueError, "has more than 11", partial(operate_integers, "add", fmt=get_format("fp32")), (1.0, 1.0)
    ),
    refused(ValueError, "float64 has numbers", round_integers, (1.0, get_format("fp64"))),
    refused(ValueError, "no operation 'sqrt' of 2", partial(operate_integers, "sqrt", fmt=E5M2), (1.0, 1.0)),
)
def test_what_is_out_of_reach_is_refused(rows):
    check_refusals(rows)
