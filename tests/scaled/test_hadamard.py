"""Hadamard transforms against matrices of fractions, and their inverse."""

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.compile import objects
from mcfsim.formats import FORMATS
from mcfsim.oracle import round_fraction
from mcfsim.scaled import hadamard_transform
from mcfsim.scaled.hadamard_transform import TE_SIGNS


def sylvester(size):
    matrix = [[1]]
    while len(matrix) < size:
        matrix = [row + row for row in matrix] + [row + [-x for x in row] for row in matrix]
    return matrix


def by_definition(row, signs, fmt, inverse=False):
    """Return the transform of one group by butterflies, each operation rounded; -0 is not told apart."""
    size = len(row)
    x = [Fraction(a) * (1 if inverse else s) for a, s in zip(row, signs, strict=True)]
    stride = 1
    while stride < size:
        y = list(x)
        for i in range(size):
            if not i & stride:
                for place, value in ((i, x[i] + x[i | stride]), (i | stride, x[i] - x[i | stride])):
                    y[place] = Fraction(round_fraction(value, fmt))
        x, stride = y, 2 * stride
    factor = Fraction(round_fraction(Fraction(np.sqrt(1 / size)), fmt))
    x = [Fraction(round_fraction(a * factor, fmt)) for a in x]
    return [float(a * (s if inverse else 1)) for a, s in zip(x, signs, strict=True)]


@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize("size", [2, 16, 32, 128])
@pytest.mark.parametrize("name", ["float32", "bfloat16", "float64"])
@pytest.mark.sampled(3)
def test_butterflies_round_each_operation(name, size, inverse):
    rng, fmt = np.random.default_rng(size), FORMATS[name]
    x = np.asarray(mcf.round_to(rng.standard_normal((2, 2 * size)) * 2.0 ** rng.integers(-9, 9), name))
    signs = rng.choice([-1, 1], size)
    found = mcf.hadamard(x, size, signs=signs, fmt=name, inverse=inverse)
    for i, row in enumerate(x):
        for start in (0, size):
            part = slice(start, start + size)
            assert found[i, part].tolist() == by_definition(row[part].tolist(), signs.tolist(), fmt, inverse)


@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize("size", [2, 4, 8, 16, 32, 64, 128])
@pytest.mark.sampled(4, each=False)
def test_loops_have_the_numbers_of_numpy(size, inverse, monkeypatch):
    pytest.importorskip("llvmlite", reason="LLVM is not installed")
    rng = np.random.default_rng(size)
    x = (rng.standard_normal((9, 4 * size)) * 2.0 ** rng.integers(-140, 127, (9, 4 * size))).astype(
        np.float32
    )
    x[rng.random(x.shape) < 0.1] = -0.0
    x.reshape(-1, size)[::5, 1] = rng.choice([np.nan, np.inf, -np.inf, np.finfo(np.float32).max], 8)[0]
    options = {"signs": mcf.RandomWords(size), "inverse": inverse}
    used, by_loops = [], hadamard_transform._by_loops
    monkeypatch.setattr(hadamard_transform, "_by_loops", lambda *given, **options: False)
    expected = [mcf.hadamard(y, size, axis=axis, **options) for y, axis in ((x, 1), (x.T, 0), (x[:0], 1))]
    for name in ("_WORTH_LOADING", "_WORTH_COMPILING"):
        monkeypatch.setattr(objects, name, 0)

    def by(*given, **options):
        used.append(by_loops(*given, **options))
        return used[-1]

    monkeypatch.setattr(hadamard_transform, "_by_loops", by)
    found = [mcf.hadamard(y, size, axis=axis, **options) for y, axis in ((x, 1), (x.T, 0), (x[:0], 1))]
    assert used == [True] * 3
    for own, other in zip(found, expected, strict=True):
        assert np.array_equal(own, other, equal_nan=True)
        assert np.array_equal(np.signbit(own[own == 0]), np.signbit(other[other == 0]))


@pytest.mark.parametrize("size", [2, 16, 64, 128])
def test_it_is_the_product_with_sylvesters_matrix_on_whole_numbers(size):
    x = np.random.default_rng(0).integers(-99, 99, (3, size)).astype(np.float64)
    signs = np.random.default_rng(1).choice([-1.0, 1.0], size)
    exact = (x * signs).astype(int) @ np.array(sylvester(size))
    found = mcf.hadamard(x, size, signs=signs, fmt="float64")
    assert (found == exact * np.sqrt(1 / size)).all()


def test_signs_by_name_and_by_words_and_their_inverse():
    x = np.random.default_rng(0).integers(-99, 99, (32, 5)).astype(np.float32)
    named = mcf.hadamard(x, axis=0, signs="transformer_engine")
    assert np.array_equal(named, mcf.hadamard(x, axis=0, signs=list(TE_SIGNS)))
    assert np.array_equal(mcf.hadamard(named, axis=0, signs="transformer_engine", inverse=True), x)
    words = mcf.RandomWords(3)
    signs = [-1 if word >= 2**31 else 1 for word in words.words(0, 32)]
    assert sum(signs) not in (-32, 32)
    assert np.array_equal(mcf.hadamard(x, 32, axis=0, signs=words), mcf.hadamard(x, 32, axis=0, signs=signs))


def test_results_are_rounded_once_more():
    x = np.random.default_rng(0).standard_normal((4, 16)).astype(np.float32)
    assert np.array_equal(mcf.hadamard(x, result="bfloat16"), mcf.round_to(mcf.hadamard(x), "bfloat16"))
    assert mcf.hadamard(np.zeros((0, 16), np.float32)).shape == (0, 16)


def test_what_is_no_number_stays_none():
    x = np.ones((3, 32), np.float32)
    x[0, 3], x[1, 17], x[2, 0], x[2, 1] = np.nan, np.inf, np.inf, -np.inf
    found = mcf.hadamard(x)
    assert np.isnan(found[0, :16]).all()
    assert np.isfinite(found[0, 16:]).all()
    assert np.isinf(found[1, 16:]).all()
    assert not np.isfinite(found[2, :16]).any()


def test_signs_are_of_any_real_dtype():
    signs = np.resize([1, -1, -1], 16)
    for dtype in ("i1", "f8", ml_dtypes.bfloat16, ml_dtypes.int4):
        found = mcf.hadamard(np.arange(16, dtype="f4"), signs=signs.astype(dtype))
        assert np.array_equal(found, mcf.hadamard(np.arange(16, dtype="f4"), signs=signs))


@pytest.mark.parametrize(
    ("x", "options", "error", "message"),
    [
        (np.ones(16), {"size": 12}, ValueError, "power of two"),
        (np.ones(16), {"size": 1}, ValueError, "power of two"),
        (np.ones(16), {"size": 16.0}, TypeError, "size"),
        (np.ones(24, "f4"), {}, ValueError, "length 24 is no multiple of size = 16"),
        (np.ones(16, int), {}, TypeError, "no array of floating-point numbers"),
        (np.ones(16, ml_dtypes.int4), {}, TypeError, "no array of floating-point numbers"),
        (np.ones(16, "f4"), {"signs": np.ones(16, bool)}, TypeError, "signs of dtype bool"),
        (np.float32(1), {}, np.exceptions.AxisError, "axis"),
        (np.ones(16, "f4"), {"signs": [1] * 15}, ValueError, "do not fit"),
        (np.ones(16, "f4"), {"signs": [1] * 15 + [0]}, ValueError, r"\+1 and -1"),
        (np.ones(16, "f4"), {"signs": "random"}, ValueError, "unknown signs 'random'"),
        (np.ones(32, "f4"), {"size": 32, "signs": "transformer_engine"}, ValueError, "do not fit"),
        (np.full(16, 1.001, "f4"), {"fmt": "bfloat16"}, ValueError, "no values of bfloat16"),
        (np.full(16, 0.1), {}, ValueError, "no values of float32"),
        (np.full(16, 1e300), {}, ValueError, "no values of float32"),
    ],
)
def test_what_makes_no_sense_is_refused(x, options, error, message):
    with pytest.raises(error, match=message):
        mcf.hadamard(x, **options)
