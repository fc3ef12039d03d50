"""Memory taken beyond the result: a few blocks, whatever the size of the array."""

import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.rounding import Mode, Rounding

SIZE = 1 << 22
LIMIT = 12 * 2**20

SOURCES = {
    "float32": lambda: np.random.default_rng(0).standard_normal(SIZE, dtype=np.float32),
    "float64": lambda: np.random.default_rng(0).standard_normal(SIZE),
    "strided": lambda: np.random.default_rng(0).standard_normal((SIZE, 2), dtype=np.float32)[:, 0],
    "big-endian": lambda: np.random.default_rng(0).standard_normal(SIZE).astype(">f4"),
    "with NaN and overflow": lambda: np.resize(np.float32([1e9, np.nan, np.inf, 1.1, 1e-9]), SIZE),
}


@lru_cache(maxsize=1)
def made(source):
    return SOURCES[source]()


def peak_beyond_result(function) -> int:
    """Return how many bytes more than its result a call holds at once, in a thread that has kept none."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        with ThreadPoolExecutor(1) as pool:
            result = pool.submit(function).result()
        return tracemalloc.get_traced_memory()[1] - before - result.nbytes
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("fmt", ["bfloat16", "float8_e4m3fn", "posit16", "int8"])
@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.sampled(8)
def test_rounding_takes_no_more_than_twelve_megabytes(fmt, source, mode):
    x = made(source)
    rounding = Rounding(mode)
    random = mcf.RandomWords(1) if rounding.stochastic else None
    assert peak_beyond_result(lambda: mcf.round_to(x, fmt, rounding, random=random)) <= LIMIT


def test_the_measure_sees_a_copy():
    x = np.ones(SIZE, dtype=np.float32)
    assert peak_beyond_result(lambda: (x + 1)[:10].copy()) > LIMIT
