"""The one loop over elements: type, layout, blocks, threads and the place of results change nothing.

And it takes the memory of a few blocks beyond the result.
"""

import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from itertools import pairwise, product

import ml_dtypes
import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.codec import all_values, decode, encode, next_down, next_up, ulp
from mcfsim.kernels.blocks import for_each_block
from mcfsim.packing import pack, unpack
from mcfsim.rounding import Rounding
from mcfsim.scaled.rules import sum_of_magnitudes
from mcfsim.storage.buffers import BLOCK, LARGE_BLOCK
from tests.shared.layouts import LAYOUTS

WORDS, ARITHMETIC = mcf.RandomWords(5), mcf.arithmetic("e5m2")
SHAPES = [(), (1,), (3,), (2, 3), (2, 1), (2, 0)]


#: What is done to elements: values of e5m2, or codes of it.
FUNCTIONS = {
    "round": lambda x: mcf.round_to(x, "e4m3fn", "up"),
    "draw": lambda x: mcf.round_to(x, "e4m3fn", "stochastic", random=WORDS),
    "add": lambda x: ARITHMETIC.add(x, x[..., :1] if np.ndim(x) else x),
    "fma": lambda x: ARITHMETIC.fma(x, 0.3, x),
    "encode": lambda x: encode(x, "e5m2"),
    "decode": lambda x: decode(x, "e5m2"),
    "decode without a table": lambda x: decode(x, "tf32"),
    "next_up": lambda x: next_up(x, "e5m2"),
    "next_down": lambda x: next_down(x, "e5m2"),
    "ulp": lambda x: ulp(x, "e5m2"),
}
FLOATS = ["float16", "float32", "float64", "bfloat16"]
INTEGERS = ["int32", "uint64"]
CODES = ["uint8", "uint16", "int32", "int64", "uint64"]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.sampled(24)
def test_the_layout_of_an_array_changes_nothing(name, layout, assert_same):
    function, rng, coded = FUNCTIONS[name], np.random.default_rng(4), name.startswith("decode")
    given = CODES if coded else FLOATS + INTEGERS * (name in ("round", "encode", "ulp"))
    for dtype, shape in product(given, [*SHAPES, (7, 5, 3), (BLOCK + 1, 3)]):
        if np.prod(shape) > BLOCK and dtype not in ("float32", "uint16"):
            continue
        if dtype == "bfloat16" and layout == "swapped bytes":  # ml_dtypes has native byte order alone
            continue
        picked = rng.integers(0, 240 if dtype in FLOATS else 5, shape)
        values = np.asarray(all_values("e5m2")[picked] if dtype in FLOATS and not coded else picked)
        array = values.astype(getattr(ml_dtypes, dtype, dtype))
        source = LAYOUTS[layout](array)
        before, plain = source.copy(), np.array(source, dtype=array.dtype, order="C")
        found, expected = np.asarray(function(source)), np.asarray(function(plain))
        assert (found.shape, found.dtype) == (source.shape, expected.dtype)
        assert found.dtype.isnative
        assert_same(found, expected)
        assert source.tobytes() == before.tobytes()


@pytest.mark.parametrize("dtypes", [*product([np.float32, np.float64, np.int64], repeat=2)])
@pytest.mark.parametrize("first", SHAPES)
@pytest.mark.sampled(18)
@pytest.mark.slow
def test_operands_of_any_shape_type_and_layout_arrive_as_they_are(first, dtypes):
    def joined(start, a, b, out):
        out[...] = a + 1000 * b

    for second in SHAPES:
        if any(x != y and 1 not in (x, y) for x, y in zip(first[::-1], second[::-1], strict=False)):
            continue  # not to be broadcast
        shape = np.broadcast_shapes(first, second)
        for a, b in product(laid_out(first, dtypes[0]), laid_out(second, dtypes[1])):
            expected = a.astype(float) + 1000 * b.astype(float)
            for options in ({}, {"ordered": True}, {"out": np.full(shape, np.nan)}):
                (found,) = for_each_block(joined, [a, b], np.dtype(np.float64), 1, **options)
                np.testing.assert_array_equal(found, expected, strict=True)
                assert "out" not in options or found is options["out"]


def laid_out(shape, dtype):
    made = np.asarray(np.random.default_rng(0).integers(1, 100, shape)).astype(dtype)
    return [LAYOUTS[name](made) for name in list(LAYOUTS)[:7]]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", SHAPES)
def test_magnitudes_of_any_shape_and_layout_are_summed(shape, dtype):
    for x in laid_out(shape, dtype)[:6]:
        assert sum_of_magnitudes(-x) == Fraction(int(x.astype(np.float64).sum()))


# -- blocks and threads -----------------------------------------------------------------------------------
@pytest.mark.parametrize("fmt", ["bfloat16", "tf32", "posit8", "int8"])
@pytest.mark.parametrize("mode", ["nearest_even", "down", "stochastic"])
@pytest.mark.sampled(12, each=False)
@pytest.mark.slow
def test_blocks_and_threads_change_nothing(fmt, mode, assert_same):
    size = 2 * LARGE_BLOCK + 11
    x = np.random.default_rng(2).normal(size=size) * 3
    stream = mcf.RandomWords(7)
    words = stream.words(0, size) if mode == "stochastic" else np.zeros(size, np.uint32)
    whole = Rounding(mode, random_bits=24)
    pieces = [slice(*pair) for pair in pairwise([0, 1000, 2**17 - 1, 2**17 + 5, size])]
    expected = np.concatenate([mcf.round_to(x[piece], fmt, whole, random=words[piece]) for piece in pieces])
    for threads, source in product((1, 2, 7), (x.reshape(1, -1), np.repeat(x, 2)[::2])):
        given = stream if mode == "stochastic" else None
        found = mcf.round_to(source, fmt, whole, random=given, threads=threads)
        assert_same(found.reshape(-1), expected, x)
    v = np.asarray(mcf.round_to(x, fmt), np.float64)
    for name, operands in (("fma", (v, v[::-1], v)), ("div", (v, v[::-1]))):
        ars = [mcf.arithmetic(fmt, whole, threads=threads, random=stream) for threads in (1, 3)]
        alone, shared = (getattr(ar, name)(*operands) for ar in ars)
        assert_same(shared, alone, *operands)
        if mode != "stochastic":
            parts = [getattr(ars[0], name)(*(y[piece] for y in operands)) for piece in pieces]
            assert_same(alone, np.concatenate(parts), *operands)


# -- where results go -------------------------------------------------------------------------------------
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("mode", ["nearest_even", "up"])
def test_out_takes_the_result_and_may_be_the_source(mode, threads, assert_same):
    for shape in ((), (5,), (3, BLOCK), (0,)):
        source = np.asarray(np.random.default_rng(5).standard_normal(shape))
        expected = mcf.round_to(source, "bfloat16", mode)
        for out in (np.empty(shape), np.empty(shape[::-1]).T, np.empty((*shape, 2))[..., 0], source):
            assert mcf.round_to(source, "bfloat16", mode, out=out, threads=threads) is out
            assert_same(out, expected)
    out = np.empty(2, np.float32)
    assert mcf.round_to(np.array([257, 259]), "bfloat16", out=out) is out
    assert out.tolist() == [256.0, 260.0]


@pytest.mark.parametrize("mode", ["nearest_even", "stochastic"])
@pytest.mark.parametrize("size", [1, 7, 40, 2 * LARGE_BLOCK + 11])
@pytest.mark.sampled(2)
@pytest.mark.slow
def test_results_may_go_where_the_operand_is(size, mode, assert_same):
    """It is read before it is overwritten."""
    rng = np.random.default_rng(3)
    strides = product((1, -1, 2, -2), repeat=2) if size < 100 else ((1, -1), (1, 1))
    for shift, steps in product((0, 1, 1000), strides):
        memory = rng.normal(size=2 * (size + shift)) * 4
        x, out = memory[: 2 * size][:: steps[0]][:size], memory[shift : shift + 2 * size][:: steps[1]][:size]
        expected = mcf.round_to(x.copy(), "bfloat16", mode, random=mcf.RandomWords(1))
        assert mcf.round_to(x, "bfloat16", mode, random=mcf.RandomWords(1), out=out) is out
        assert_same(out, expected)


# -- memory beyond the result: a few blocks, whatever the size of the array -------------------------------
SIZE, LIMIT = 1 << 22, 12 * 2**20
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


def peak_beyond_result(function, *given, **options) -> int:
    """Return how many bytes more than its result a call holds at once, in a thread that has kept none."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        with ThreadPoolExecutor(1) as pool:
            result = pool.submit(function, *given, **options).result()
        return tracemalloc.get_traced_memory()[1] - before - result.nbytes
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("fmt", ["bfloat16", "float8_e4m3fn", "posit16", "int8"])
@pytest.mark.parametrize("mode", ["nearest_even", "to_odd", "stochastic"])
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.sampled(30)
@pytest.mark.slow
def test_rounding_takes_no_more_than_twelve_megabytes(fmt, source, mode):
    x = SOURCES[source](np.resize(np.random.default_rng(0).standard_normal(1000, np.float32), SIZE))
    random = mcf.RandomWords(1) if mode == "stochastic" else None
    assert peak_beyond_result(mcf.round_to, x, fmt, mode, random=random) <= LIMIT


@pytest.mark.parametrize("name", CODED)
def test_coding_takes_a_few_blocks(name):
    function, *given = CODED[name](np.tile(all_values("e5m2"), (1000, 8)).T)
    assert peak_beyond_result(function, *given) <= LIMIT / (8 if function in (pack, unpack) else 2)


def test_the_measure_sees_a_copy():
    x = np.ones(SIZE, dtype=np.float32)
    assert peak_beyond_result(lambda: (x + 1)[:10].copy()) > LIMIT
