"""Memory taken beyond the result: a few blocks, whatever the size of the array."""

import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.codec import all_values, decode, encode
from mcfsim.codec.packing import pack, unpack
from mcfsim.rounding import Rounding

SIZE = 1 << 22
LIMIT = 12 * 2**20

SOURCES = {
    "float32": lambda x: x,
    "float64": lambda x: x.astype(np.float64),
    "strided": lambda x: np.repeat(x, 2)[::2],
    "big-endian": lambda x: x.astype(">f4"),
    "with NaN and overflow": lambda x: np.resize(np.float32([1e9, np.nan, np.inf, 1.1, 1e-9]), x.size),
}
#: Of codes: what is called, and with what.
CODED = {
    "encode": lambda values: (encode, values, "e5m2"),
    "decode": lambda values: (decode, encode(values, "e5m2"), "e5m2"),
    "pack": lambda values: (pack, np.ones(values.shape[::-1], np.uint8).T, 6),
    "unpack": lambda values: (unpack, pack(np.ones(values.size, np.uint8), 6), 6, values.shape),
}


@cache
def drawn():
    return np.random.default_rng(0).standard_normal(SIZE, dtype=np.float32)


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
@pytest.mark.parametrize("mode", ["nearest_even", "to_odd", "stochastic"])
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.sampled(30)
def test_rounding_takes_no_more_than_twelve_megabytes(fmt, source, mode):
    x = SOURCES[source](drawn())
    rounding = Rounding(mode)
    random = mcf.RandomWords(1) if rounding.stochastic else None
    assert peak_beyond_result(lambda: mcf.round_to(x, fmt, rounding, random=random)) <= LIMIT


@pytest.mark.parametrize("name", CODED)
def test_coding_takes_a_few_blocks(name):
    function, *given = CODED[name](np.tile(all_values("e5m2"), (1000, 8)).T)
    assert peak_beyond_result(lambda: function(*given)) <= LIMIT / (8 if function in (pack, unpack) else 2)


def test_the_measure_sees_a_copy():
    x = np.ones(SIZE, dtype=np.float32)
    assert peak_beyond_result(lambda: (x + 1)[:10].copy()) > LIMIT
