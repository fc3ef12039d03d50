"""Exact sums of products in binary64, rounded to odd, so that rounding them again amounts to one rounding.

There are two ways to find an exact sum. Both give binary64 terms that sum to it exactly:

``sliced``: cut each row of the left operand and each column of the right one into slices on a common quantum,
so short that every sum of products of two slices fits 53 bits. Matrix products in binary64 are then exact in
any order of addition (Ozaki, Ogita, Oishi, Rump, Numer. Algorithms 59, 2012). One slice each is enough for
formats of at most 8 bits, and where exponents vary little.
``direct``: compute all products one by one. This is used if pairs of slices would not be fewer, if a slice
would serve too few sums to pay, and if a number is not finite.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from mcfsim.kernels import native
from mcfsim.kernels.native import Wide

#: Significand bits to which the sums here are rounded to odd.
ODD_BITS = 52
#: Nonzero operands and carried numbers lie between 2 to this power and its inverse: no over- or underflow.
COMFORT = 450
#: The most sums computed at a time, and the most numbers of their operands, so that they stay in cache.
TILE, PIECE = 1 << 15, 1 << 17

#: Returns the operands between two places of the contracted axis, as stacks of matrices in binary64.
Operands = Callable[[int, int], tuple[Wide, Wide]]

_EXPONENT_BITS = 0x7FF << 52


class LongAccumulator:
    """An accumulator for exact elementwise sums of binary64 arrays, stored in limbs (after Kulisch).

    The limb at place k holds a multiple of its quantum ``q_k = 2**(k w)``. A term starts at the highest limb
    that it reaches. There it is rounded to a multiple of the quantum, which is added to the limb. The exact
    rest, at most half a quantum, goes to the next lower place. The width w is chosen so that `count` terms of
    at most ``2**w`` quanta stay below ``2**52``: all sums in a limb are exact.

    Parameters
    ----------
    count : int
        Terms that will be added, at most.
    """

    def __init__(self, count: int) -> None:
        self.width = 52 - count.bit_length()
        if self.width < 2:
            raise ValueError(f"{count} terms are too many for one exact sum")
        self.limbs: dict[int, Wide] = {}
        #: The sum of the terms that are infinite or NaN.
        self.beyond: Wide | float = 0.0

    def add(self, terms: Wide, exponent: int) -> None:
        """Add ``terms[0]``, ``terms[1]``, ...; finite ones have magnitudes of at most ``2**exponent``."""
        finite = np.isfinite(terms)
        if not finite.all():
            self.beyond = self.beyond + np.where(finite, 0.0, terms).sum(axis=0)
            terms = np.where(finite, terms, 0.0)
        place = -(-exponent // self.width) - 1
        if not self.limbs:
            self.limbs[place] = np.zeros(terms.shape[1:])
        while terms.any():
            whole = self._whole(terms, place)
            self.limbs[place] = self.limbs.get(place, 0.0) + whole.sum(axis=0)
            terms = terms - whole
            place -= 1

    def to_odd(self) -> Wide:
        """Return the sum rounded to odd, to 52 or 53 bits; the sign of a zero means nothing.

        Carries from the lowest place upward make each digit at most half the next quantum. So a nonzero digit
        is at least ``q``, all digits below it together are at most ``q / 2 (1 + 2**(1-w))``, and their sum
        falls at most one binade below the latter. So the lower digits may be replaced by their sum y rounded
        to odd: all points where a rounding to less than 52 bits changes are even multiples of y's last unit.
        """
        highest = max(self.limbs)
        y = carry = np.zeros_like(self.limbs[highest])
        for place in range(min(self.limbs), highest + 1):
            digit = self.limbs.get(place, 0.0) + carry
            if place < highest:
                carry = self._whole(digit, place + 1)
                digit = digit - carry
            y = native.make_odd(*native.add(digit, y))
        return np.where(np.equal(self.beyond, 0), y, self.beyond)

    def _whole(self, x: Wide, place: int) -> Wide:
        """Round x, at most ``2**51`` quanta of a place, to multiples of that quantum."""
        sigma = math.ldexp(1.5, 52 + place * self.width)  # zero below the range, where no bits are cut off
        whole: Wide = (x + sigma) - sigma
        return whole


class Summands(NamedTuple):
    """Products whose sums are wanted, and how they are summed.

    Attributes
    ----------
    operands : callable
        Returns parts ``(t, m, l)`` and ``(t, l, n)`` of the operands.
    shape : tuple of three int
        ``(t, m, n)``: the numbers of matrices, of rows and of columns.
    narrow : bool
        Whether products of two operands are exact in binary64, as they have at most 53 bits together.
    down : bool
        Whether an exactly zero sum is negative unless all its terms are positive; otherwise it is negative
        only if all terms are (IEEE 754-2019, 6.3, for any number of terms).
    round_products : callable or None
        Rounds products, ``(l, t, m, n)``, in place before they are summed.
    """

    operands: Operands
    shape: tuple[int, int, int]
    narrow: bool
    down: bool
    round_products: Callable[[Wide], None] | None = None


def dot_to_odd(summands: Summands, places: tuple[int, int], carried: Wide | None) -> Wide:
    """Return the sum of products and a carried number, rounded to odd to 52 bits or more.

    Parameters
    ----------
    summands : Summands
        The products.
    places : tuple of two int
        Where to start and to stop on the contracted axis: at least one place.
    carried : array or None
        One more term of their shape, or none.

    Returns
    -------
    array of float64
        Of that shape. NaN if a term is, or if infinities of both signs are among them; infinite if
        infinities of one sign are.
    """
    (start, stop), (operands, shape, narrow, down, round_products) = places, summands
    length = stop - start
    step = max(1, PIECE // (shape[0] * (shape[1] + shape[2])))
    y = None
    if length <= step and round_products is None:
        product = _one_product(*operands(start, stop), narrow)
        if product is not None:
            y = product if carried is None else native.make_odd(*native.add(product, carried))
    if y is None:
        total = LongAccumulator(2 * length + 1)
        if carried is not None:
            total.add(carried[np.newaxis], _exponent(carried))
        for first in range(start, stop, step):
            for terms, exponent in _terms(summands, first, min(first + step, stop)):
                total.add(terms, exponent)
        y = total.to_odd()
    zero = y == 0
    if zero.any():
        # The sum of all terms' signs, as +1 and -1, tells how many terms are negative.
        signs = np.zeros(shape) if carried is None else np.copysign(1.0, carried)
        for first in range(start, stop, step):
            a, b = operands(first, min(first + step, stop))
            signs += np.copysign(1.0, a) @ np.copysign(1.0, b)
        count = length + (carried is not None)
        negative = signs < count if down else signs == -count
        y = np.where(zero, np.where(negative, -0.0, 0.0), y)
    return y


def add_to_odd(x: Wide, y: Wide, *, down: bool) -> Wide:
    """Return ``x + y`` rounded to odd; see `dot_to_odd`."""
    if down:  # a zero sum then has the other sign
        return -native.make_odd(*native.add(-x, -y))
    return native.make_odd(*native.add(x, y))


def tiles(
    shape: tuple[int, int, int], block: int, *, contiguous: bool
) -> Iterator[tuple[slice, slice, slice]]:
    """Yield parts of a stack of matrices: several whole matrices, or some rows and columns of one.

    Parameters
    ----------
    shape : tuple of three int
        ``(t, m, n)``.
    block : int
        Places of the contracted axis needed at a time. Tiles of several matrices are so small that this takes
        at most `PIECE` numbers of the operands.
    contiguous : bool
        Whether tiles must be contiguous in row-major order.
    """
    count, m, n = shape
    if not count * m * n:
        return
    if m * n <= TILE:
        several = max(1, min(TILE // (m * n), PIECE // (max(1, block) * (m + n))))
        for first in range(0, count, several):
            yield slice(first, min(first + several, count)), slice(0, m), slice(0, n)
        return
    width = min(n, TILE if contiguous else max(math.isqrt(TILE), TILE // m))
    height = max(1, TILE // width)
    for matrix in range(count):
        for row in range(0, m, height):
            for column in range(0, n, width):
                rows, columns = slice(row, min(row + height, m)), slice(column, min(column + width, n))
                yield slice(matrix, matrix + 1), rows, columns


def _one_product(a: Wide, b: Wide, narrow: bool) -> Wide | None:
    """Return the sum of products if a single matrix product in binary64 gives it exactly, else None."""
    if a.shape[2] == 1:
        return a * b if narrow else None
    slices = _slices(a, b, 1)
    return slices[0][0] @ slices[1][0] if slices is not None else None


def _terms(summands: Summands, start: int, stop: int) -> Iterator[tuple[Wide, int]]:
    """Yield arrays of terms ``(l, t, m, n)`` that add up to the sum of products, with exponent bounds."""
    a, b = summands.operands(start, stop)
    length, round_products = stop - start, summands.round_products
    exponent = _exponent(a) + _exponent(b)
    if round_products is None and (slices := _slices(a, b, length - 1)) is not None:
        for left in slices[0]:
            for right in slices[1]:
                yield (left @ right)[np.newaxis], exponent + length.bit_length()
        return
    columns, rows = a.transpose(2, 0, 1)[..., np.newaxis], b.transpose(1, 0, 2)[:, :, np.newaxis, :]
    step = max(1, TILE // (a.shape[0] * a.shape[1] * b.shape[2]))
    for first in range(0, length, step):
        x, y = columns[first : first + step], rows[first : first + step]
        if summands.narrow:
            products, rest = x * y, None
        else:
            products, rest = native.mul(x, y)
            rest = np.where(np.isfinite(products), rest, 0.0)
        if round_products is not None:
            if rest is not None:
                products, rest = native.make_odd(products, rest), None
            round_products(products)
            yield products, _exponent(products)
        else:
            yield products, exponent
        if rest is not None:
            yield rest, exponent


def _slices(a: Wide, b: Wide, most: int) -> tuple[list[Wide], list[Wide]] | None:
    """Cut operands into slices with at most `most` pairs; return None if that is impossible or does not pay.

    With s bits per slice and ``2 s + ceil(log2(length)) <= 53``, any sum of products is a multiple of the
    product of the quanta, and at most ``2**53`` times that product.
    """
    rows, length, columns = a.shape[1], a.shape[2], b.shape[2]
    if rows * columns <= rows + columns:
        return None
    bits = (53 - (length - 1).bit_length()) // 2
    left = _cut(a, 2, bits, most)
    right = _cut(b, 1, bits, most // len(left)) if left is not None else None
    return None if left is None or right is None else (left, right)


def _cut(x: Wide, axis: int, bits: int, most: int) -> list[Wide] | None:
    """Cut numbers into slices of `bits` bits with a common quantum along the axis; None if not possible."""
    slices: list[Wide] = []
    while len(slices) < most:
        largest = np.abs(x).max(axis=axis, keepdims=True)
        if not np.isfinite(largest).all():
            return None
        power = (largest.view(np.int64) & _EXPONENT_BITS).view(np.float64)  # of two, and zero for zero
        sigma = power * math.ldexp(1.5, 53 - bits)  # of the quantum power * 2**(1 - bits)
        whole = (x + sigma) - sigma
        slices.append(whole)
        x = x - whole
        if not x.any():
            return slices
    return None


def _exponent(x: Wide) -> int:
    """Return an exponent e with ``|x| < 2**e`` for all finite numbers of an array."""
    largest = float(np.abs(x).max(initial=0.0))
    if not math.isfinite(largest):
        largest = float(np.abs(x).max(initial=0.0, where=np.isfinite(x)))
    return math.frexp(largest)[1]
