"""Orders in which PyTorch sums, restated term by term in fractions: what is stated, on any processor."""

from fractions import Fraction

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.kernels.torch_products import LANES, matmul, norm
from mcfsim.oracle import round_fraction

FLOAT32 = mcf.get_format("float32")
TINY = Fraction(2) ** -126


def fused(x, y, total):
    """Return ``x y + total``, rounded once."""
    return Fraction(round_fraction(x * y + total, FLOAT32))


def added(*terms):
    total, *others = terms
    for term in others:
        total = Fraction(round_fraction(total + term, FLOAT32))
    return total


def chain(x, y, places, total=Fraction(0), *, flush=False):
    for j in places:
        small = flush and abs(x[j] * y[j]) < TINY
        total = total if small else fused(x[j], y[j], total)
    return total


def by_onednn(x, y, rows):
    x, y = ([0 if abs(e) < TINY else e for e in z] for z in (x, y))
    size = 1024 if rows[0] and len(x) > 1024 else 512
    parts = []
    for start in range(0, len(x), size):
        places = list(range(start, min(start + size, len(x))))
        for i in range(0, len(places) - 1, 2):
            places[i], places[i + 1] = places[i + 1], places[i]
        parts.append(chain(x, y, places, flush=True))
    return added(*parts)


def by_aten(x, y, rows):
    k = len(x)
    if rows == (False, True):
        return chain(x, y, range(k))
    if rows != (True, False):
        end = k // 4 * 4
        return added(
            *(chain(x, y, [*range(i, end, 4), *(range(end, k) if i == 0 else ())]) for i in range(4))
        )
    long, middle = k // 64 * 64, k // 16 * 16
    total = Fraction(0)
    if long:
        registers = [[chain(x, y, range(8 * r + i, long, 64)) for i in range(8)] for r in range(8)]
        while len(registers) > 1:  # 4, 2, 1 apart
            half = len(registers) // 2
            pairs = zip(registers[:half], registers[half:], strict=True)
            registers = [[added(p, q) for p, q in zip(*pair, strict=True)] for pair in pairs]
        total = halved(registers[0])
    if middle > long:
        total = added(total, halved([chain(x, y, range(long + i, middle, 8)) for i in range(8)]))
    return chain(x, y, range(middle, k), total)


def halved(lanes):
    while len(lanes) > 1:
        half = len(lanes) // 2
        lanes = [added(p, q) for p, q in zip(lanes[:half], lanes[half:], strict=True)]
    return lanes[0]


def drawn(random, shape, spread=6):
    x = random.standard_normal(shape) * 2.0 ** random.integers(-spread, spread, shape)
    return mcf.round_to(x.astype(np.float32), "bfloat16")


@pytest.mark.parametrize("rows", [(True, True), (True, False), (False, True), (False, False)])
@pytest.mark.parametrize(
    "size", [(2, 1, 2), (2, 7, 3), (3, 18, 2), (2, 83, 2), (2, 150, 2), (2, 1100, 2), (40, 3, 40)]
)
@pytest.mark.sampled(2)
def test_products_are_those_of_the_orders_that_are_stated(rows, size):
    m, k, n = size
    random = np.random.default_rng(size)
    a, b = drawn(random, (m, k)), drawn(random, (k, n))
    if k == 3:
        a[0], b[:, 0] = a[0] * 2.0**-66, b[:, 0] * 2.0**-66  # flushed
        a[1, 0] = 2.0**-127
    found = matmul(a, b, rows=rows)
    judge = by_onednn if m * k * n > 4096 else by_aten
    for i in range(0, m, max(1, m // 3)):
        for j in range(0, n, max(1, n // 3)):
            x, y = ([Fraction(float(e)) for e in z] for z in (a[i], b[:, j]))
            assert Fraction(float(found[i, j])) == judge(x, y, rows), (i, j)


@pytest.mark.slow
def test_long_rows_are_summed_in_longer_blocks():
    random = np.random.default_rng(5)
    a, b = drawn(random, (2, 2100)), drawn(random, (2100, 2))
    for rows in ((True, True), (False, True)):
        x, y = ([Fraction(float(e)) for e in z] for z in (a[1], b[:, 1]))
        assert Fraction(float(matmul(a, b, rows=rows)[1, 1])) == by_onednn(x, y, rows)
    assert (matmul(a, b) != matmul(a, b, rows=(False, True))).any()


@pytest.mark.parametrize("size", [1, 15, 16, 17, 200])
def test_norms_are_those_of_the_order_that_is_stated(size):
    x = drawn(np.random.default_rng(size), size, spread=2)
    squares = [Fraction(float(e)) ** 2 for e in x]
    end = size // (2 * LANES) * (2 * LANES)
    lanes = [added(Fraction(0), *squares[i:end:LANES]) for i in range(LANES)]
    total = added(*lanes, *squares[end:])
    assert norm(x) == np.sqrt(np.float32(float(total)))


def test_what_is_not_finite_comes_out():
    a = np.float32([[np.inf, 1.0], [np.nan, 1.0], [3e38, 3e38]])
    b = np.float32([[2.0, -1.0], [1.0, 1.0]])
    expected = [[np.inf, -np.inf], [np.nan, np.nan], [np.inf, 0.0]]
    for rows in ((True, True), (True, False), (False, True)):
        found = matmul(a, b, rows=rows)
        np.testing.assert_array_equal(found[:2], expected[:2])
        assert np.isposinf(found[2, 0])
    assert np.isposinf(norm(a[:1]))
    assert np.isnan(norm(a[1]))
