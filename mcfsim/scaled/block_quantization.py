"""Blocks of a scaled format in compiled loops: their scales, their elements, and what these stand for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from mcfsim.compile.group_loops import BlockLoops, block_loops
from mcfsim.compile.loops import draw, word_dtype
from mcfsim.convert import given_words
from mcfsim.kernels.carriers import FLOAT32, FLOAT64, carrier_of, holds
from mcfsim.kernels.element.floats import INFINITY, NAN
from mcfsim.kernels.element.machine import F32, Value, run
from mcfsim.kernels.element.operations import Into, change_element
from mcfsim.random import RandomWords
from mcfsim.rounding import NEAREST, Rounding
from mcfsim.scaled.block_views import BlockViews
from mcfsim.scaled.float32_rules import Float32Algorithm, ScaledAlgorithm, Shared, finite, line_of, overall
from mcfsim.scaled.formats import ScaledFormat
from mcfsim.scaled.rules import SATURATING, divisors, exponents, power_element
from mcfsim.scaled.scale_rules import FOUR_SIX, POWERS, ScaleRule
from mcfsim.storage.buffers import BLOCK

Array = NDArray[Any]
RandomSource = RandomWords | NDArray[np.unsignedinteger[Any]] | None


@dataclass(frozen=True)
class BlockAlgorithm(ScaledAlgorithm):
    """The algorithm of a scaled format of binary32 numbers in blocks of a fixed size.

    The first number that all blocks share is the divisor of a largest magnitude; for formats without a
    tensor scale it is the largest element.

    Notes
    -----
    Where scales are not powers of two, quotients are computed in binary64 and rounded once more. Let x be a
    number of 24 bits, s a divisor, and t a number where rounding changes: an element, a tie, or a number at
    which a random word decides. ``t s`` has at most 50 bits. Either ``x / s`` is t itself, or ``x - t s`` is
    a multiple of the last bit of x or of ``t s``, and no less than 2^-50 of the larger one. Binary64 moves a
    quotient by 2^-53 of it at most, so no other quotient becomes t.
    """

    #: The scale alone.
    shared = 1

    @classmethod
    def of(cls, fmt: ScaledFormat, rounding: Rounding) -> BlockAlgorithm | None:
        """Return the algorithm of a format and a rounding of its elements, or None if there is none."""
        powers = fmt.rule in POWERS
        scaled = powers or fmt.rule is ScaleRule.ABSMAX
        bits = fmt.element.precision + rounding.guard_bits + sum(x.precision for x in fmt.scales)
        short = carrier_of(fmt.element) == FLOAT32 and (powers or bits <= 50)
        _, lowest, highest = exponents(fmt)
        held = -149 <= lowest <= highest <= 127 if powers else holds(FLOAT32, fmt.scale)
        return cls(fmt, rounding) if scaled and short and held else None

    def shares(self, greatest: Value, *others: Value) -> tuple[Value, ...]:
        """Return the scale, or NaN if a number of the block is not finite."""
        largest, (divisor, _) = greatest.as_number(), others
        scale = (
            power_element(largest, self.format)
            if self.format.rule in POWERS
            else self._quotient(largest, divisor)
        )
        return ((largest < INFINITY).select(scale, NAN),)

    def _quotient(self, largest: Value, divisor: Value) -> Value:
        target = self.format.scale
        by = divisor.equals(0.0).select(0.0, largest.widen() / divisor)
        if not target.zero:
            smallest = float(target.smallest_normal)
            by = (by < smallest).select(smallest, by)
        return change_element("round", by, Into(target, SATURATING, F32))

    def encoded(self, x: Value, *shared: Value, word: Value | None = None) -> Value:
        """Return the element: the rounded quotient; if the scale is NaN, NaN or, without a NaN, 0."""
        (scale, _, tensor_scale), element = shared, self.format.element
        if self.format.rule not in POWERS:
            by = scale.widen()
            by = by if self.format.tensor_scale is None else by * tensor_scale
            quotient = quotient_element(x, by)
        else:
            inverse = (-scale.widen().bits() + (2046 << 52)).as_number()
            # To nearest, quotients below binary32's range are negligible beside elements; none overflows.
            _, lowest, highest = exponents(self.format)
            held = lowest >= -127 and 0 <= highest <= 127 and element.smallest_subnormal >= 2.0**-124
            # Without zero there are none of these: each number above zero has an element.
            near = self.rounding.mode in NEAREST and held and element.zero
            quotient = x * inverse.narrow() if near else x.widen() * inverse
        found = change_element("round", quotient, Into(element, self.rounding, F32, word))
        nothing: Any = 0.0
        if element.has_nan:  # that of the number itself, if it is one
            nothing = x.equals(x).select(NAN, (x.bits() | x.like(NAN).bits()).as_number())
        return scale.equals(scale).select(found, nothing)


def block_algorithm(fmt: ScaledFormat, rounding: Rounding) -> BlockAlgorithm | Float32Algorithm | None:
    """Return the algorithm of a format's blocks, whatever their shape, or None; see `BlockAlgorithm.of`."""
    if fmt.rule.exact:
        return BlockAlgorithm.of(fmt, rounding)
    alone = fmt.rule not in FOUR_SIX and fmt.rule is not ScaleRule.EDEN
    return Float32Algorithm(fmt, rounding) if alone else None


def shared_by_all(
    algorithm: BlockAlgorithm | Float32Algorithm, found: NDArray[np.int32]
) -> tuple[float, float]:
    """Return the two numbers that all blocks share, given the greatest measures of blocks."""
    if isinstance(algorithm, Float32Algorithm):
        return algorithm.both(overall([found]))
    divisor, tensor_scale = divisors(finite(found), algorithm.format)
    return divisor, 1.0 if tensor_scale is None else tensor_scale


def _blocks(
    x: Array, fmt: ScaledFormat, rounding: Rounding, views: BlockViews, name: str
) -> tuple[Array, BlockAlgorithm | Float32Algorithm, BlockLoops] | None:
    """Return an array's blocks, their algorithm and loops over them, if all are whole and the method pays."""
    algorithm = block_algorithm(fmt, rounding)
    if algorithm is None or not x.ndim or x.dtype != FLOAT32:
        return None
    part, *others = views.parts(x)
    loops = None if others else _loops_of(part, algorithm, name)
    return None if loops is None else (part, algorithm, loops)


def decoded(
    elements: Array, scale: Array, fmt: ScaledFormat, tensor_scale: float | None, axis: int
) -> Array | None:
    """Return the numbers of elements by compiled loops; None as for `encoded`."""
    views = BlockViews(elements.shape, fmt.block, axis)
    given = _blocks(elements, fmt, SATURATING, views, "decode")
    if given is None or fmt.carrier != FLOAT64:
        return None
    part, algorithm, loops = given
    (by,) = views.shared(scale)
    out, found = _place(elements.shape, np.float64, views)
    rows = np.ones((scale.size, algorithm.shared), np.float32)
    rows[:, 0] = by.reshape(-1)
    same = 0.0, 1.0 if tensor_scale is None else tensor_scale
    loops.decode(_vector(part), rows, found.reshape(-1), *same)
    return _put_back(found, out, views)


def encoded(
    x: Array, fmt: ScaledFormat, rounding: Rounding, axis: int, random: RandomSource = None
) -> tuple[Array, Array, float | None] | None:
    """Return elements, scales and the tensor scale of an array by compiled loops.

    The result is None if there is no loop for its blocks, some are not whole, or it does not pay.
    Words and errors are those of `mcfsim.quantize`.
    """
    views = BlockViews(x.shape, fmt.block, axis)
    given = _blocks(x, fmt, rounding, views, "encode")
    if given is None:
        return None
    part, algorithm, loops = given
    words = _words(x.shape, rounding, random, views)
    vector, blocks = _vector(part), part.shape[:-1]
    found = np.empty(math.prod(blocks) if fmt.tensor_scale else 0, np.int32)
    if fmt.tensor_scale is not None:
        loops.measure(vector, found, 1.0, 1.0)
    numbers = shared_by_all(algorithm, found)
    out, elements = _place(x.shape, np.float32, views)
    rows = np.empty((math.prod(blocks), algorithm.shared), np.float32)
    loops.encode(vector, elements.reshape(-1), rows, *numbers, words=words)
    scale = views.joined([rows[:, 0].astype(carrier_of(fmt.scale)).reshape(blocks)])
    tensor_scale = None if fmt.tensor_scale is None else numbers[1]
    return _put_back(elements, out, views), scale, tensor_scale


def measures(part: Array, algorithm: Float32Algorithm) -> NDArray[np.int32]:
    """Return the greatest measure of each block, by compiled loops or by NumPy."""
    loops = _loops_of(part, algorithm, "measure")
    if loops is None:
        line = line_of(algorithm)[0]
        (found,) = run(line.line, (line.measured,), x=part)
        return np.asarray(found.max(axis=-1, initial=0), np.int32)
    greatest = np.empty(part.shape[:-1], np.int32)
    loops.measure(_vector(part), greatest.reshape(-1), 1.0, 1.0)
    return greatest


def shared_numbers(
    found: NDArray[np.int32], algorithm: Float32Algorithm, numbers: tuple[float, float]
) -> Shared:
    """Return the shared numbers of blocks from their greatest measures, as `measures` finds them."""
    size = algorithm.format.block_size
    if size is not None and (loops := block_loops(algorithm, size)).pays(found.size * size, "share"):
        rows = np.empty((found.size, 2), np.float32)
        loops.share(found.reshape(-1), rows, *numbers)
        scale, by = np.ascontiguousarray(rows.T)
    else:
        line = line_of(algorithm)[0]
        given = {f"number{place}": np.array([x], np.float64) for place, x in enumerate(numbers)}
        scale, by = run(line.line, line.made, greatest=found, **given)
    return scale.reshape(found.shape), by.reshape(found.shape)


def _loops_of(part: Array, algorithm: ScaledAlgorithm, name: str) -> BlockLoops | None:
    """Return loops over blocks along the last axis, if the method of a name pays."""
    if part.dtype != FLOAT32 or part.shape[-1] != algorithm.format.block_size:
        return None
    loops = block_loops(algorithm, part.shape[-1])
    return loops if loops.pays(part.size, name) else None


def filled(
    part: Array,
    shared: Shared,
    algorithm: Float32Algorithm,
    words: Array | None = None,
    numbers: tuple[float, float] = (1.0, 1.0),
) -> Array | None:
    """Return the elements of blocks whose scales are known, by compiled loops; None as for `encoded`.

    Parameters
    ----------
    part : array, shape (..., elements of a block)
    shared : (array, array), shape (...)
    algorithm : Float32Algorithm
    words : array, in the shape of the part, optional
        For stochastic rounding.
    numbers : (float, float), optional
        The same for all blocks, if the algorithm takes them for its elements.
    """
    loops = _loops_of(part, algorithm, "fill")
    if loops is None:
        return None
    rows, out = np.stack([x.reshape(-1) for x in shared], axis=1), np.empty(part.shape, np.float32)
    lying = None if words is None else _vector(_shortest(words, algorithm.random_bits))
    loops.fill(_vector(part), out.reshape(-1), rows, *numbers, words=lying)
    return out


def of_each(
    part: Array, shared: Shared, algorithm: Float32Algorithm, numbers: tuple[float, float] = (1.0, 1.0)
) -> Array:
    """Return what an algorithm computes in place of each element, without words, by loops or by NumPy."""
    found = filled(part, shared, algorithm, None, numbers)
    if found is None:
        line = line_of(algorithm)[0]
        given = {f"shared{place}": x[..., np.newaxis] for place, x in enumerate(shared)}
        given |= {f"number{place}": np.array([x]) for place, x in enumerate(numbers)}
        (found,) = run(line.line, (line.encoded,), x=part, **given)
    return found


def _words(
    shape: tuple[int, ...], rounding: Rounding, random: RandomSource, views: BlockViews
) -> Array | None:
    """Return the shortest words with the random bits of each element, one block after another."""
    if not rounding.stochastic:
        return None
    bits = rounding.random_bits
    if isinstance(random, RandomWords):
        words = draw(random, 0, math.prod(shape), bits, "words of blocks")
    else:
        words = given_words(random, rounding, shape)
    (part,) = views.parts(_shortest(words, bits).reshape(shape))
    return _vector(part)


def _shortest(words: Array, bits: int) -> Array:
    """Return the upper halves of words, if these have so many bits."""
    dtype = word_dtype(bits)
    return (words >> 8 * (words.dtype.itemsize - dtype.itemsize)).astype(dtype, copy=False)


def _place(shape: tuple[int, ...], dtype: DTypeLike, views: BlockViews) -> tuple[Array, Array]:
    """Return an array to be filled, and a place for its only part: in it, if its blocks lie in order."""
    out = np.empty(shape, dtype)
    (part,) = views.parts(out)
    inside = part.flags.c_contiguous and np.shares_memory(part, out)
    return out, part if inside else np.empty(part.shape, dtype)


def _put_back(part: Array, out: Array, views: BlockViews) -> Array:
    """Return an array with the numbers of its only part."""
    if not np.shares_memory(part, out):
        (target,) = views.parts(out)
        _copy(part, target)
        views.put([part], out)
    return out


def _vector(part: Array) -> Array:
    """Return blocks one after another, as a vector."""
    if part.flags.c_contiguous and part.flags.aligned:
        return part.reshape(-1)
    found = np.empty(part.shape, part.dtype)
    _copy(part, found)
    return found.reshape(-1)


def _copy(part: Array, target: Array) -> None:
    """Copy an array into another of its shape, a few blocks of each run at a time, which stay in cache."""
    blocks = part.shape[-2]
    some = max(1, BLOCK * blocks // max(part.size, 1))
    for start in range(0, blocks, some):
        target[..., start : start + some, :] = part[..., start : start + some, :]


def quotient_element(x: Value, by: Value) -> Value:
    """Return a binary32 number divided by a binary64 number, in binary64; by zero, a zero of x's sign."""
    return by.equals(0.0).select(x.widen() * 0.0, x.widen() / by)
