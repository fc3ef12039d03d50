"""Compiled loops on all operands there are, or a hundred million: the bits of NumPy, and of the oracle."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("numba", reason="Numba is not installed")
pytest.importorskip("platformdirs", reason="platformdirs is not installed")

import mcfsim as mcf
from mcfsim.formats import get_format
from mcfsim.kernels.carriers import carrier_of
from mcfsim.oracle import operate_integers, round_integers
from mcfsim.rounding import DETERMINISTIC, Rounding
from tests.oracle.operands import SMALL_FORMATS, label, random_tuples, values

ARITY = {"add": 2, "sub": 2, "mul": 2, "div": 2, "sqrt": 1, "fma": 3}
PAIRED = [name for name, arity in ARITY.items() if arity == 2]
CHUNK, PIECE = 1 << 24, 1 << 21


def both(fmt, mode):
    return (mcf.arithmetic(fmt, mode, compiled=compiled) for compiled in (True, False))


def steps(fmt, rounding, sign):
    """Return where the results of rounding change, by the oracle, and what they are from there on.

    Rounding is monotone. So between two codes of one sign that round alike all do, and others are halved.
    """

    def by_oracle(codes):
        numbers = (codes | sign).astype(np.uint32).view(np.float32)
        return round_integers(numbers.astype(np.float64), fmt, rounding).astype(np.float32).view(np.int32)

    first, last = np.array([0]), np.array([0x7F800000])
    found = [first, last]
    while first.size:
        differ = (by_oracle(first) != by_oracle(last)) & (last - first > 1)
        first, last = first[differ], last[differ]
        middle = (first + last) // 2
        found.append(middle)
        first, last = np.concatenate([first, middle]), np.concatenate([middle, last])
    codes = np.unique(np.concatenate(found))
    results = by_oracle(codes)
    new = np.flatnonzero(np.diff(results, prepend=~results[0]))
    return codes[new], results[new]


@pytest.mark.parametrize("mode", DETERMINISTIC)
@pytest.mark.parametrize("fmt", ["bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"])
@pytest.mark.exhaustive
def test_all_numbers_of_binary32_are_rounded_as_by_the_oracle(fmt, mode, assert_same):
    for sign in (0, 1 << 31):
        starts, results = steps(get_format(fmt), Rounding(mode), sign)
        for start in range(0, 1 << 31, PIECE):
            x = np.arange(sign + start, sign + start + PIECE, dtype=np.uint32).view(np.float32)
            stop = min(start + PIECE, 0x7F800001)  # what follows is NaN
            edges = np.clip(np.append(starts, stop), start, max(start, stop))
            expected = np.full(PIECE, np.nan, np.float32)
            known = np.repeat(results, np.diff(edges))
            expected[: known.size] = known.view(np.float32)
            for compiled in (True, False):
                with np.errstate(all="ignore"):
                    found = mcf.round_to(x, fmt, mode, compiled=compiled)
                if not np.array_equal(found.view(np.int32), expected.view(np.int32)):  # as NaN need not be
                    assert_same(found, expected, x)


def test_the_steps_of_rounding_are_those_of_the_oracle():
    fmt, rng = get_format("float8_e4m3fn"), np.random.default_rng(3)
    for mode in DETERMINISTIC:
        for sign in (0, 1 << 31):
            starts, results = steps(fmt, Rounding(mode), sign)
            beside = [starts - 1, starts, starts + 1, rng.integers(0, 0x7F800000, 10_000)]
            codes = np.clip(np.concatenate(beside), 0, 0x7F800000)
            x = (codes | sign).astype(np.uint32).view(np.float32)
            expected = round_integers(x.astype(np.float64), fmt, Rounding(mode)).astype(np.float32)
            found = results[np.searchsorted(starts, codes, side="right") - 1]
            assert np.array_equal(found, expected.view(np.int32))


@pytest.mark.parametrize("name", ARITY)
@pytest.mark.parametrize("mode", DETERMINISTIC)
@pytest.mark.parametrize("fmt", SMALL_FORMATS, ids=label)
@pytest.mark.sampled(60, each=False)
def test_all_pairs_of_a_small_format(fmt, mode, name, assert_same):
    """And of an fma all triples whose last operand is one of some."""
    every, compiled = values(fmt).astype(np.float32), mcf.arithmetic(fmt, mode, compiled=True)
    grids = [every] * ARITY[name]
    if name == "fma":
        grids[2] = np.random.default_rng(0).choice(every, 20)
    operands = [x.reshape(-1) for x in np.meshgrid(*grids, indexing="ij")]
    exact = operate_integers(
        name, *(x.astype(np.float64) for x in operands), fmt=fmt, rounding=Rounding(mode)
    )
    assert_same(getattr(compiled, name)(*operands), exact, *operands)


@pytest.mark.parametrize("mode", DETERMINISTIC)
@pytest.mark.exhaustive
def test_all_triples_of_an_fma(mode, assert_same):
    fmt = get_format("float8_e5m2")
    every, ar = values(fmt).astype(np.float32), mcf.arithmetic(fmt, mode, compiled=True)
    for c in every:
        a, b = (x.reshape(-1) for x in np.meshgrid(every, every))
        last = np.full(a.size, c)
        wide = (x.astype(np.float64) for x in (a, b, last))
        assert_same(
            ar.fma(a, b, last), operate_integers("fma", *wide, fmt=fmt, rounding=Rounding(mode)), a, b, last
        )


@pytest.mark.parametrize("mode", DETERMINISTIC)
@pytest.mark.parametrize("name", ARITY)
@pytest.mark.parametrize("fmt", ["bfloat16", "float16", "tf32"])
@pytest.mark.exhaustive
def test_hundred_million_hard_and_random_operands(fmt, name, mode, assert_same):
    """In all modes together, some 17 million each; a million of them by the oracle as well."""
    compiled, plain = both(fmt, mode)
    spec, rng = get_format(fmt), np.random.default_rng(0)
    carrier = carrier_of(spec)
    for part in range(4):
        hard = [x.astype(carrier) for x in random_tuples(spec, 1 << 21, ARITY[name], part)]
        with np.errstate(all="ignore"):
            drawn = [
                mcf.round_to(rng.integers(0, 2**32, 1 << 21, dtype=np.uint32).view(np.float32), fmt)
                for _ in hard
            ]
        operands = [np.concatenate(pair) for pair in zip(hard, drawn, strict=True)]
        found = getattr(compiled, name)(*operands)
        assert_same(found, getattr(plain, name)(*operands), *operands)
        some = slice(0, 1 << 18)
        wide = [x[some].astype(np.float64) for x in operands]
        exact = operate_integers(name, *wide, fmt=spec, rounding=Rounding(mode))
        assert_same(found[some], exact, *wide)


@pytest.mark.parametrize("mode", DETERMINISTIC)
@pytest.mark.parametrize("name", ["posit8", "posit16", "int8", "int4", "ternary"])
@pytest.mark.sampled(20, each=False)
@pytest.mark.slow
def test_posits_and_grids(name, mode, assert_same):
    compiled, plain = both(name, mode)
    every = np.unique(mcf.round_to(np.linspace(-200, 200, 20001) ** 3 / 1e4, name)).astype(np.float32)
    rng = np.random.default_rng(0)
    operands = [rng.choice(every, 1 << 16) for _ in range(3)]
    for operation, arity in ARITY.items():
        with np.errstate(all="ignore"):
            found, expected = (getattr(ar, operation)(*operands[:arity]) for ar in (compiled, plain))
        assert_same(found, expected, *operands[:arity])
