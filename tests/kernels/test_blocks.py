"""The one loop over elements: operands of any shape, type and layout arrive as they are."""

from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from mcfsim.kernels.blocks import for_each_block
from mcfsim.scaled.mean import sum_of_magnitudes

SHAPES = [(), (1,), (3,), (2, 3), (2, 1), (2, 0)]


def layouts(shape, dtype, rng):
    """Yield arrays of one shape and dtype: whole, by columns, with gaps, backward, repeated, swapped."""
    made = np.asarray(rng.integers(1, 100, shape)).astype(dtype)
    yield made
    yield np.array(made, order="F")
    yield np.repeat(made, 2, -1)[..., ::2] if shape else made
    yield made[(..., *[slice(None, None, -1)] * made.ndim)]
    yield np.broadcast_to(np.asarray(7, dtype), shape)
    yield made.astype(made.dtype.newbyteorder())


@pytest.mark.parametrize("dtypes", list(product([np.float32, np.float64, np.int64], repeat=2)))
@pytest.mark.parametrize("first", SHAPES)
def test_operands_of_any_shape_type_and_layout_arrive_as_they_are(first, dtypes):
    rng, dtype = np.random.default_rng(0), np.dtype(np.float64)

    def joined(start, a, b, out):
        out[...] = a + 1000 * b

    for second in SHAPES:
        try:
            shape = np.broadcast_shapes(first, second)
        except ValueError:
            continue
        for a, b in product(layouts(first, dtypes[0], rng), layouts(second, dtypes[1], rng)):
            expected = a.astype(dtype) + 1000 * b.astype(dtype)
            for options in ({}, {"ordered": True}, {"out": np.full(shape, np.nan)}):
                (found,) = for_each_block(joined, [a, b], dtype, 1, **options)
                assert found.shape == shape
                assert np.array_equal(found, expected)
                assert "out" not in options or found is options["out"]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", SHAPES)
def test_magnitudes_of_any_shape_and_layout_are_summed(shape, dtype):
    for x in layouts(shape, dtype, np.random.default_rng(0)):
        assert sum_of_magnitudes(-x) == Fraction(int(x.astype(np.float64).sum()))
