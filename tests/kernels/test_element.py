"""The text for one element on the fastest machine: all numbers of binary32."""

from __future__ import annotations

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.compile.choice import is_available
from mcfsim.formats import get_format
from mcfsim.oracle import round_integers
from mcfsim.rounding import DETERMINISTIC, Rounding

PIECE = 1 << 21
COMPILED = is_available() or None


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
            with np.errstate(all="ignore"):
                found = mcf.round_to(x, fmt, mode, compiled=COMPILED)
            if not np.array_equal(found.view(np.int32), expected.view(np.int32)):  # as NaN need not be
                assert_same(found, expected, x)


@pytest.mark.parametrize("mode", DETERMINISTIC)
def test_where_rounding_changes_it_is_that_of_the_oracle(mode, assert_same):
    """And the changes that the oracle is asked for are all that there are."""
    fmt, rng = get_format("float8_e4m3fn"), np.random.default_rng(3)
    for sign in (0, 1 << 31):
        starts, results = steps(fmt, Rounding(mode), sign)
        beside = [starts - 1, starts, starts + 1, rng.integers(0, 0x7F800000, 10_000)]
        codes = np.clip(np.concatenate(beside), 0, 0x7F800000)
        x = (codes | sign).astype(np.uint32).view(np.float32)
        expected = round_integers(x.astype(np.float64), fmt, Rounding(mode)).astype(np.float32)
        known = results[np.searchsorted(starts, codes, side="right") - 1]
        assert np.array_equal(known, expected.view(np.int32))
        with np.errstate(all="ignore"):
            assert_same(mcf.round_to(x, fmt, mode), expected, x)
