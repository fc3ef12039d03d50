"""Moments kept by tables and powers: by the judge, and at the edges of the published kernels."""

import math

import numpy as np
import pytest

from mcfsim.optim.stored import DYNAMIC as SIGNED
from mcfsim.optim.stored import DYNAMIC_UNSIGNED as UNSIGNED
from mcfsim.optim.stored import EXPANDED

from .reference import quantised

every_one = pytest.mark.parametrize("how", [SIGNED, UNSIGNED, EXPANDED], ids=str)


def hostile(seed, size):
    """Return numbers of many magnitudes, zeros among them."""
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal(size) * 2.0 ** rng.integers(-30, 4, size)).astype(np.float32)
    x[rng.random(size) < 0.1] = 0.0
    return x


@pytest.mark.parametrize("size", [1, 31, 128, 256, 300])
@every_one
def test_what_is_left_is_that_of_the_judge(how, size, assert_same):
    for seed in range(2):
        x = hostile(seed, size)
        x = np.abs(x) if how is UNSIGNED else x
        assert_same(how.through(x), quantised(x.tolist(), how))


def test_ties_of_a_table_go_up():
    middles = (SIGNED.table[:-1].astype(float) + SIGNED.table[1:]) / 2
    ties = np.flatnonzero(middles.astype(np.float32) == middles)
    assert len(ties) > 50
    for place in ties:
        codes, _ = SIGNED.encode(np.array([middles[place], 1.0], np.float32))
        assert codes[0] == place + 1


def test_the_table_is_that_of_pytorch_s_linspace():
    torch = pytest.importorskip("torch")
    for how in (SIGNED, UNSIGNED):
        rows = [torch.zeros(1), torch.ones(1)]
        for decade in range(7):
            edges = torch.linspace(0.1, 1, 2 ** (decade + (not how.signed)) + 1)
            middles = (edges[:-1] + edges[1:]) / 2.0 * 10 ** (decade - 6)
            rows += [middles, -middles] if how.signed else [middles]
        assert torch.cat(rows).sort().values.tolist() == how.table.tolist()


def test_a_power_of_a_group_at_the_edges_of_the_published_kernel():
    assert EXPANDED.through(np.zeros(5, np.float32)).tolist() == [float(np.float32(1e-30))] * 5
    spread = np.geomspace(1e-6, 1, 128).astype(np.float32)
    codes, scale, power, _ = EXPANDED.encode(spread)
    assert codes.dtype == np.uint8
    assert power.tolist() == [math.floor(16 * math.log2(100352) / math.log2(1e6)) / 16]
    assert scale.shape == (1,)
    # A zero in the place of a thread that receives is kept, and nothing lower than 1e-30 is found below it.
    first = spread.copy()
    first[0] = 0.0
    assert EXPANDED.encode(first)[2] < power
    # One in the place of a thread that hands over is passed over.
    last = spread.copy()
    last[-1] = 0.0
    assert EXPANDED.encode(last)[2] == power


def test_nan_stays_where_it_is_or_takes_its_group():
    x = np.append(np.ones(300, np.float32), np.float32(np.nan))
    assert np.isnan(SIGNED.through(x)).tolist() == [False] * 256 + [True] * 45
    x = np.append(np.linspace(1, 2, 128).astype(np.float32), np.float32(np.nan))
    x[3] = np.nan
    assert np.flatnonzero(np.isnan(EXPANDED.through(x))).tolist() == [3, 128]


@every_one
def test_the_sign_of_a_nan_is_no_matter(how):
    """Which one an operation gives depends on the processor, and where numbers lie in memory."""
    for other in (np.inf, 1.0, 0.0):
        x = np.array([np.nan, other, 3.0, np.nan], np.float32)
        y = np.where(np.isnan(x), -np.float32(np.nan), x)
        assert np.signbit(y[0]) != np.signbit(x[0])
        found, same = how.through(x), how.through(y)
        np.testing.assert_array_equal(found, same)
        numbers = ~np.isnan(found)
        assert np.array_equal(np.signbit(found)[numbers], np.signbit(same)[numbers])


@every_one
def test_codes_take_the_bits_that_are_declared(how):
    parts = how.encode(hostile(0, 4 * how.block))
    assert sum(x.nbytes for x in parts) * 8 == how.bits_per_element * 4 * how.block
