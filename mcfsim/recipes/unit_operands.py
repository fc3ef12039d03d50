"""Operands as they entered a product, and their product by a matrix unit, which may take no scales itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mcfsim.backends.factory import arithmetic
from mcfsim.kernels.carriers import native_dtype
from mcfsim.products import Unit, get_unit, matmul
from mcfsim.recipes.recipe import ProductRecipe
from mcfsim.recipes.unit_fit import Kind, element_format, scales_along
from mcfsim.scaled import Scaled

Array = NDArray[Any]
Single = NDArray[np.float32]


class Entered(NamedTuple):
    """An operand as it entered a product; the contracted axis is the last.

    Attributes
    ----------
    values : array, shape (rows, contracted)
        Its numbers in binary32: elements times scales, rounded once where binary32 does not hold them.
    scaled : Scaled or None
        Elements and scales, which matrix units take; None if it has no scales.
    inside : array of bool or None
        Where the rule of the scales did not clip it, if the rule clips on purpose.
    """

    values: Any
    scaled: Scaled | None = None
    inside: Any = None


def by_unit(a: Entered, b: Entered, product: ProductRecipe, multiply: Callable[..., Any] = matmul) -> Single:
    """Return ``a b'`` as a matrix unit computes it.

    A unit with scales takes elements and scales. Another one multiplies elements. Then scales that a tensor
    or a row shares multiply the result, their own product rounded to binary32 first. Scales of blocks
    multiply the sum of each block, which starts from zero: it is added to those before by a fused
    multiply-add in binary32, as DeepGEMM does. Second scales, of tensors, come last, by their product, too.

    `ProductRecipe` checks that a unit goes with the operands. `multiply` does what `mcfsim.matmul` does.
    """
    unit = get_unit(product.unit or "")
    if unit.scales:
        left, right = _of_rows(a), _of_rows(b)
        turned = replace(right, elements=right.elements.T, scale=right.scale.T, axis=0)
        return _single(multiply(left, turned, unit=unit, promote_every=product.promote_every))
    x, y = _elements(a, product.left.format, unit), _elements(b, product.right.format, unit)
    size = max(scales_along(product.left.format), scales_along(product.right.format))
    if size:
        found = _promoted((a, b), (x, y), size, partial(multiply, unit=unit))
    else:
        found = _single(multiply(x, y.T, unit=unit, promote_every=product.promote_every))
        found = _times(found, *(None if z.scaled is None else z.scaled.scale for z in (a, b)))
    return _times(found, *(None if z.scaled is None else z.scaled.tensor_scale for z in (a, b)))


def _promoted(
    operands: tuple[Entered, Entered], elements: tuple[Array, Array], size: int, multiply: Callable[..., Any]
) -> Single:
    """Return a product of operands with scales of blocks, block by block."""
    left, right = elements
    scales = [_row_scales(x, size) for x in operands]
    fma = arithmetic("float32").fma
    total = np.zeros((len(left), len(right)), np.float32)
    for place, start in enumerate(range(0, left.shape[1], size)):
        block = slice(start, start + size)
        part = _single(multiply(left[:, block], right[:, block].T))
        by = np.multiply.outer(scales[0][:, place], scales[1][:, place])
        total = fma(by, part, total)
    return total


def _elements(entered: Entered, fmt: Kind, unit: Unit) -> Array:
    """Return elements, in the dtype that names their format to a unit if it takes several."""
    numbers = entered.values if entered.scaled is None else entered.scaled.elements
    own = element_format(fmt)
    return numbers.astype(native_dtype(own)) if own in unit.inputs[1:] else numbers


def _row_scales(entered: Entered, size: int) -> Single:
    """Return the scales of each row's blocks."""
    rows, length = entered.values.shape
    count = -(-length // size)
    if entered.scaled is None:
        return np.ones((rows, count), np.float32)
    scale, block = np.asarray(entered.scaled.scale, np.float32), entered.scaled.format.block
    if isinstance(block, tuple):
        return np.repeat(scale, block[0], axis=0)[:rows]
    return np.broadcast_to(scale, (rows, scale.shape[-1] if isinstance(block, int) else count))


def _of_rows(entered: Entered) -> Scaled:
    """Return an operand whose blocks are runs along rows; those of tiles share their scales."""
    scaled = entered.scaled
    assert scaled is not None
    block = scaled.format.block
    if not isinstance(block, tuple):
        return scaled
    alike = replace(scaled.format, block=block[1])
    return replace(scaled, format=alike, scale=_row_scales(entered, block[1]), axis=1)


def _times(found: Single, left: Array | float | None, right: Array | float | None) -> Single:
    """Return a product times the scales that tensors or rows of its operands share, if any."""
    if left is None and right is None:
        return found
    by = [np.asarray(1 if x is None else x, np.float32) for x in (left, right)]
    with np.errstate(all="ignore"):
        return found * (by[0] * by[1].T)


def _single(x: Any) -> Single:
    with np.errstate(all="ignore"):
        return np.asarray(x).astype(np.float32, copy=False)
