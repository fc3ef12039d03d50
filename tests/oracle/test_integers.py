"""The int64 arithmetic against the definition, in full where that is short, on hard operands elsewhere."""

import itertools

import numpy as np
import pytest

from mcfsim.formats import Format, get_format
from mcfsim.oracle import operate, operate_integers, round_float, round_integers, same
from mcfsim.rounding import Rounding

from .operands import ROUNDINGS, SMALL_FORMATS, WIDE_FORMATS, corners, label, random_tuples, values

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
    assert not wrong.size, (name, columns[wrong[0]], float(actual[wrong[0]]), float(expected[wrong[0]]))


def corner_tuples(fmt, arity):
    return list(np.array(list(itertools.product(corners(fmt).tolist(), repeat=arity))).T)


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("fmt", [E4M3FN, pytest.param(E5M2, marks=pytest.mark.exhaustive)], ids=label)
@pytest.mark.sampled(4, each=False)
@pytest.mark.slow
def test_all_pairs(fmt, name):
    everything = values(fmt)
    check(name, [x.ravel() for x in np.meshgrid(everything, everything)], fmt)


@pytest.mark.exhaustive
@pytest.mark.parametrize("rounding", ROUNDINGS, ids=label)
@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("fmt", [E4M3FN, E5M2], ids=label)
def test_all_pairs_in_every_rounding(fmt, name, rounding):
    everything = values(fmt)
    check(name, [x.ravel() for x in np.meshgrid(everything, everything)], fmt, rounding)


@pytest.mark.parametrize("rounding", ROUNDINGS, ids=label)
@pytest.mark.parametrize("name", BINARY)
@pytest.mark.sampled(6)
def test_pairs_in_every_rounding(name, rounding):
    for fmt in SMALL_FORMATS:
        check(name, random_tuples(fmt, 200, 2, seed=1), fmt, rounding)


@pytest.mark.parametrize("fmt", [*SMALL_FORMATS, get_format("bf16"), get_format("fp16")], ids=label)
@pytest.mark.sampled(4, each=False)
def test_all_roots(fmt):
    check("sqrt", [values(fmt)], fmt)


@pytest.mark.parametrize("rounding", ROUNDINGS, ids=label)
@pytest.mark.parametrize("fmt", [*SMALL_FORMATS, *WIDE_FORMATS], ids=label)
def test_roots_in_every_rounding(fmt, rounding):
    check("sqrt", random_tuples(fmt, 200, 1, seed=2), fmt, rounding)


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("fmt", WIDE_FORMATS, ids=label)
def test_pairs_of_wide_formats(fmt, name):
    check(name, corner_tuples(fmt, 2), fmt)
    check(name, random_tuples(fmt, 4000, 2, seed=3), fmt)


@pytest.mark.parametrize("rounding", ROUNDINGS, ids=label)
@pytest.mark.parametrize("fmt", WIDE_FORMATS, ids=label)
@pytest.mark.sampled(6)
def test_pairs_of_wide_formats_in_every_rounding(fmt, rounding):
    for name in BINARY:
        check(name, random_tuples(fmt, 500, 2, seed=4), fmt, rounding)


@pytest.mark.parametrize("rounding", ROUNDINGS, ids=label)
@pytest.mark.parametrize("fmt", [E5M2, E4M3FN, *WIDE_FORMATS], ids=label)
@pytest.mark.sampled(6)
def test_fma(fmt, rounding):
    check("fma", random_tuples(fmt, 1500, 3, seed=5), fmt, rounding)


@pytest.mark.parametrize("fmt", [E5M2, *WIDE_FORMATS], ids=label)
@pytest.mark.sampled(4, each=False)
@pytest.mark.slow
def test_fma_of_corners(fmt):
    check("fma", corner_tuples(fmt, 3), fmt)


@pytest.mark.parametrize("name", ARITY)
@pytest.mark.slow
def test_operands_may_be_wider_than_the_result(name):
    operands = random_tuples(get_format("bf16"), 2000, ARITY[name], seed=6)
    for rounding in ROUNDINGS[::2]:
        check(name, operands, Format(precision=2, emin=-9, emax=9), rounding)


@pytest.mark.parametrize("rounding", ROUNDINGS, ids=label)
@pytest.mark.parametrize("name", ["e2m1fn", "e4m3fn", "e4m3fnuz", "e5m2", "bf16", "fp16", "tf32", "fp32"])
@pytest.mark.sampled(6)
def test_rounding_of_float64(name, rounding):
    fmt = get_format(name)
    rng = np.random.default_rng(8)
    patterns = rng.integers(0, 2**64, 500, dtype=np.uint64).view(np.float64)
    numbers = random_tuples(get_format("bf16" if fmt.precision > 11 else name), 300, 1, seed=9)[0]
    ulp = 2.0 ** (1 - fmt.precision)
    near = np.concatenate([numbers, numbers * (1 + ulp / 2), numbers * (1 + ulp / 3)])
    edges = np.array([float(fmt.max), float(fmt.smallest_normal), float(fmt.smallest_subnormal)])
    edges = np.concatenate([edges, edges * (1 + ulp / 2), edges / 2, edges / 4])
    near = np.concatenate([near, edges, -edges])
    x = np.concatenate([patterns, near, np.nextafter(near, np.inf), np.nextafter(near, -np.inf)])
    x = np.concatenate([x, [2.0**-1074, -(2.0**-1022), np.finfo(np.float64).max]])
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


@pytest.mark.parametrize("operand", [1 + 2.0**-11, 2.0**600, 2.0**-1074])
def test_operands_out_of_reach_are_refused(operand):
    with pytest.raises(ValueError, match="11 significant bits"):
        operate_integers("add", operand, 1.0, fmt=E5M2)


def test_integers_are_refused_as_operands():
    with pytest.raises(TypeError, match="must be floats"):
        round_integers(np.array([2**60 + 1]), E5M2)


def test_formats_and_operations_out_of_reach_are_refused():
    with pytest.raises(ValueError, match="float32 has more than 11"):
        operate_integers("add", 1.0, 1.0, fmt=get_format("fp32"))
    with pytest.raises(ValueError, match="float64 has numbers"):
        round_integers(1.0, get_format("fp64"))
    with pytest.raises(ValueError, match="no operation 'sqrt' of 2 operands"):
        operate_integers("sqrt", 1.0, 1.0, fmt=E5M2)
