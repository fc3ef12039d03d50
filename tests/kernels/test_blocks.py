"""The one loop over elements: type, layout, blocks, threads and the place of results change nothing."""

from fractions import Fraction
from itertools import pairwise, product

import ml_dtypes
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import mcfsim as mcf
from mcfsim.codec import all_values, decode, encode, next_down, next_up, ulp
from mcfsim.kernels.blocks import for_each_block
from mcfsim.rounding import Rounding
from mcfsim.scaled.mean import sum_of_magnitudes
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
@pytest.mark.sampled(12)
def test_the_layout_of_an_array_changes_nothing(name, layout, assert_same):
    function, rng = FUNCTIONS[name], np.random.default_rng(4)
    coded = name.startswith("decode")
    given = CODES if coded else FLOATS + INTEGERS * (name in ("round", "encode", "ulp"))
    for dtype, shape in product(given, [*SHAPES, (7, 5, 3), (BLOCK + 1, 3)]):
        if np.prod(shape) > BLOCK and dtype not in ("float32", "uint16"):
            continue
        picked = rng.integers(0, 240 if dtype in FLOATS else 5, shape)
        values = np.asarray(picked if coded else all_values("e5m2")[picked] if dtype in FLOATS else picked)
        array = values.astype(getattr(ml_dtypes, dtype, dtype))
        if dtype == "bfloat16" and layout == "swapped bytes":  # ml_dtypes has native byte order alone
            continue
        source = LAYOUTS[layout](array)
        before = source.copy()
        plain = np.array(source, dtype=array.dtype, order="C")
        found, expected = function(source), function(plain)
        assert np.shape(found) == source.shape
        assert np.asarray(found).dtype == np.asarray(expected).dtype
        assert np.asarray(found).dtype.isnative
        assert_same(found, expected)
        assert np.array_equal(source, before, equal_nan=dtype in FLOATS and dtype != "bfloat16")


@pytest.mark.parametrize("dtypes", [*product([np.float32, np.float64, np.int64], repeat=2)])
@pytest.mark.parametrize("first", SHAPES)
@pytest.mark.sampled(9)
def test_operands_of_any_shape_type_and_layout_arrive_as_they_are(first, dtypes):
    def joined(start, a, b, out):
        out[...] = a + 1000 * b

    def laid_out(shape, dtype):
        made = np.asarray(np.random.default_rng(0).integers(1, 100, shape)).astype(dtype)
        return [LAYOUTS[name](made) for name in list(LAYOUTS)[:7]]

    for second in SHAPES:
        try:
            shape = np.broadcast_shapes(first, second)
        except ValueError:
            continue
        for a, b in product(laid_out(first, dtypes[0]), laid_out(second, dtypes[1])):
            expected = a.astype(float) + 1000 * b.astype(float)
            for options in ({}, {"ordered": True}, {"out": np.full(shape, np.nan)}):
                (found,) = for_each_block(joined, [a, b], np.dtype(np.float64), 1, **options)
                assert found.shape == shape
                assert np.array_equal(found, expected)
                assert "out" not in options or found is options["out"]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", SHAPES)
def test_magnitudes_of_any_shape_and_layout_are_summed(shape, dtype):
    made = np.asarray(np.random.default_rng(0).integers(1, 100, shape)).astype(dtype)
    for x in [LAYOUTS[name](made) for name in list(LAYOUTS)[:6]]:
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
    for threads in (1, 2, 7):
        for source in (x.reshape(1, -1), np.repeat(x, 2)[::2]):
            given = stream if mode == "stochastic" else None
            found = mcf.round_to(source, fmt, whole, random=given, threads=threads)
            assert_same(found.reshape(-1), expected, x)
    v = np.asarray(mcf.round_to(x, fmt), np.float64)
    for name, operands in (("fma", (v, v[::-1], v)), ("div", (v, v[::-1]))):
        alone, *shared = (
            getattr(mcf.arithmetic(fmt, whole, threads=threads, random=stream), name)(*operands)
            for threads in (1, 3)
        )
        for found in shared:
            assert_same(found, alone, *operands)
        if mode != "stochastic":
            ar = mcf.arithmetic(fmt, whole)
            parts = [getattr(ar, name)(*(y[piece] for y in operands)) for piece in pieces]
            assert_same(alone, np.concatenate(parts), *operands)


# -- where results go -------------------------------------------------------------------------------------
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("mode", ["nearest_even", "up"])
def test_out_takes_the_result_and_may_be_the_source(mode, threads, assert_same):
    for shape in ((), (5,), (3, BLOCK), (0,)):
        source = np.asarray(np.random.default_rng(5).standard_normal(shape))
        expected = mcf.round_to(source, "bfloat16", mode)
        for out in (np.empty(shape), np.empty(shape[::-1]).T, np.empty((*shape, 2))[..., 0], source):
            result = mcf.round_to(source, "bfloat16", mode, out=out, threads=threads)
            assert result is out
            assert_same(out, expected)
    out = np.empty(2, np.float32)
    assert mcf.round_to(np.array([257, 259]), "bfloat16", out=out) is out
    assert out.tolist() == [256.0, 260.0]


@settings(max_examples=40, derandomize=True, deadline=None, database=None)
@given(
    size=st.integers(0, 40),
    shift=st.integers(0, 9),
    step_in=st.sampled_from([1, 2, -1, -2]),
    step_out=st.sampled_from([1, 2, -1, -2]),
    mode=st.sampled_from(["nearest_even", "stochastic"]),
    fmt=st.sampled_from(["bfloat16", "posit8", "int8"]),
)
@pytest.mark.slow
def test_results_may_go_where_the_operand_is(fmt, size, shift, step_in, step_out, mode, assert_same):
    memory = np.random.default_rng(3).normal(size=2 * (size + shift) + 2) * 4
    x = memory[: 2 * size][::step_in][:size]
    out = memory[shift : shift + 2 * size][::step_out][: x.size]
    assume(x.size == out.size)
    expected = mcf.round_to(x.copy(), fmt, mode, random=mcf.RandomWords(1))
    assert mcf.round_to(x, fmt, mode, random=mcf.RandomWords(1), out=out) is out
    assert_same(out, expected)


@pytest.mark.parametrize("shift", [-1000, -1, 0, 1, 1000])
@pytest.mark.parametrize("step", [1, -1])
def test_a_large_operand_is_read_before_it_is_overwritten(shift, step, assert_same):
    size = 2 * LARGE_BLOCK + 11
    memory = np.random.default_rng(4).normal(size=size + 2000)
    x, out = memory[1000 : 1000 + size], memory[1000 + shift : 1000 + shift + size][::step]
    expected = mcf.round_to(x.copy(), "bfloat16")
    mcf.round_to(x, "bfloat16", out=out)
    assert_same(out, expected)
