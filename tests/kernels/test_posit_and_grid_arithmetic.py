"""Operations on posits and on grids, which round by their own rules: all pairs against the definition."""

import itertools

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.codec import all_values
from mcfsim.kernels.carriers import UnsupportedFormatError
from mcfsim.oracle import operate
from mcfsim.rounding import Rounding
from tests.oracle.operands import MODES, label

BINARY = ["add", "sub", "mul", "div"]
TINY = ["posit5", "posit6", "posit6es0", "posit6es3", "int4", "int4_symmetric", "ternary"]
BYTES = ["posit8", "posit8es0", "posit8es1", "posit8es3", "int8"]


def check(fmt, rounding, names, assert_same):
    fmt = mcf.get_format(fmt)
    numbers = all_values(fmt).astype(np.float64)
    ar = mcf.arithmetic(fmt, rounding)
    pairs = np.array(list(itertools.product(numbers, repeat=2)))
    for name in names:
        expected = [operate(name, pair, fmt, rounding) for pair in pairs.tolist()]
        assert_same(getattr(ar, name)(*pairs.T), expected, *pairs.T)
    roots = [operate("sqrt", [x], fmt, rounding) for x in numbers.tolist()]
    assert_same(ar.sqrt(numbers), roots, numbers)


@pytest.mark.parametrize("rounding", MODES, ids=label)
@pytest.mark.parametrize("fmt", TINY)
@pytest.mark.sampled(6)
def test_all_pairs_are_rounded_once_in_every_mode(fmt, rounding, assert_same):
    check(fmt, rounding, BINARY, assert_same)


@pytest.mark.exhaustive
@pytest.mark.parametrize("rounding", MODES, ids=label)
@pytest.mark.parametrize("fmt", BYTES)
def test_all_pairs_of_a_byte_are_rounded_once_in_every_mode(fmt, rounding, assert_same):
    check(fmt, rounding, BINARY, assert_same)


@pytest.mark.parametrize("name", ["add", "mul", "div"])
@pytest.mark.parametrize("fmt", ["posit8", "int8"])
@pytest.mark.sampled(6, each=False)
@pytest.mark.slow
def test_all_pairs_of_a_byte_are_rounded_once(fmt, name, assert_same):
    check(fmt, Rounding(), [name], assert_same)


@pytest.mark.parametrize("rounding", MODES, ids=label)
@pytest.mark.parametrize("fmt", ["posit5", "posit5es0", "int3", "ternary"])
@pytest.mark.sampled(6)
def test_all_triples_are_rounded_once_in_every_mode(fmt, rounding, assert_same):
    fmt = mcf.get_format(fmt)
    triples = np.array(list(itertools.product(all_values(fmt).astype(np.float64), repeat=3)))
    triples = triples[:: max(1, len(triples) // 4000)]
    expected = [operate("fma", triple, fmt, rounding) for triple in triples.tolist()]
    assert_same(mcf.arithmetic(fmt, rounding).fma(*triples.T), expected, *triples.T)


@pytest.mark.parametrize("fmt", ["posit16", "int8"])
@pytest.mark.parametrize("underflow", ["flush_inputs", "flush_before", "flush_after"])
def test_there_is_nothing_to_flush(fmt, underflow):
    with pytest.raises(UnsupportedFormatError, match="underflow must be 'gradual'"):
        mcf.arithmetic(fmt, underflow=underflow)
