"""What a recipe does to the products of a linear layer: errors, underflow, clipping, outliers of blocks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.checks import check_processor
from mcfsim.formats import Format
from mcfsim.random import RandomWords
from mcfsim.recipes.linear_layer import Entered, LinearLayer, NumPyProducts
from mcfsim.recipes.named_recipes import get_recipe
from mcfsim.recipes.recipe import OperandRecipe, Recipe
from mcfsim.scaled import ScaledFormat
from mcfsim.scaled.block_views import BlockViews

Array = NDArray[Any]

#: The operands of the three products, left and right.
OPERANDS = {"forward": ("x", "weight"), "dgrad": ("dy", "weight"), "wgrad": ("dy", "x")}
#: A block's largest magnitude is an outlier if it is at least this many times the second largest.
OUTLIER = 4


@dataclass(frozen=True)
class OperandFinding:
    """What a recipe did to a product, and to one of its operands: sums, which add up over calls.

    Parameters
    ----------
    product_error, product_size : float
        Sums of squares, in binary64: of the recipe's product minus the product of the original operands, and
        of the latter. NaN or infinite if a number of theirs is.
    error, size : float
        The same for the operand: of the numbers that entered the product minus those before quantisation, and
        of the latter.
    nonzero : int
        Finite nonzero numbers before quantisation.
    underflowed : int
        How many of these entered as zero.
    saturated : int
        How many of these lay beyond the numbers of their block: the elements times the scales.
    blocks : int
        Blocks that share a scale, have at least two numbers and a nonzero one, and are finite. There are none
        where the operand's format has no scales.
    outliers : int
        How many of these have a largest magnitude of at least `OUTLIER` times the second largest, which may
        be zero: one number alone sets the scale.

    Notes
    -----
    Before quantisation an operand is rotated where the recipe rotates, and is what the forward product took
    where the recipe says so.
    """

    product_error: float = 0.0
    product_size: float = 0.0
    error: float = 0.0
    size: float = 0.0
    nonzero: int = 0
    underflowed: int = 0
    saturated: int = 0
    blocks: int = 0
    outliers: int = 0

    @classmethod
    def joined(cls, parts: Iterable[OperandFinding]) -> OperandFinding:
        """Return the sums of several."""
        found = list(parts)
        return cls(*(sum(getattr(x, item.name) for x in found) for item in fields(cls)))

    @property
    def relative_error(self) -> float:
        """The relative error of the product in the Frobenius norm."""
        return _ratio(self.product_error, self.product_size)

    @property
    def operand_error(self) -> float:
        """The relative error of the operand in the Frobenius norm."""
        return _ratio(self.error, self.size)

    @property
    def underflow(self) -> float:
        """The share of nonzero numbers that become zero; NaN if there are none."""
        return self.underflowed / self.nonzero if self.nonzero else math.nan

    @property
    def saturation(self) -> float:
        """The share of nonzero numbers that are clipped; NaN if there are none."""
        return self.saturated / self.nonzero if self.nonzero else math.nan

    @property
    def outlier_blocks(self) -> float:
        """The share of blocks whose scale one outlier sets; NaN if there are none."""
        return self.outliers / self.blocks if self.blocks else math.nan


def audit_products(
    recipe: Recipe | str,
    x: Any,
    weight: Any,
    dy: Any = None,
    words: RandomWords | None = None,
    products: Sequence[str] | None = None,
) -> dict[tuple[str, str], OperandFinding]:
    """Compute the products of a linear layer by a recipe, and compare them with those of the operands given.

    Parameters
    ----------
    recipe : Recipe or str
        The recipe, or a name of `RECIPES`.
    x : array of float32, shape (tokens, inputs)
    weight : array of float32, shape (outputs, inputs)
    dy : array of float32, shape (tokens, outputs), optional
        The gradient of the output, which dgrad and wgrad need.
    words : RandomWords, optional
        Random words of this layer at this step, which stochastic recipes need.
    products : sequence of {"forward", "dgrad", "wgrad"}, optional
        Which products; by default all, without `dy` the forward product alone.

    Returns
    -------
    dict
        An `OperandFinding` for each pair of a product and its operand ``"x"``, ``"weight"`` or ``"dy"``.

    Raises
    ------
    TypeError
        If an operand is not an array of real numbers.
    ValueError
        If a name is unknown, shapes do not match, random words are missing, or the gradient that a product
        needs is missing.

    Notes
    -----
    The reference product is computed in binary64 from the binary32 numbers given, whose products of two are
    exact there. Its sums err by about 2^-53 each, compared with 2^-9 for results in bfloat16.

    Examples
    --------
    >>> import numpy as np
    >>> x, weight = np.ones((2, 32), np.float32), np.full((3, 32), 0.3, np.float32)
    >>> found = audit_products("mxfp8", x, weight)
    >>> round(found["forward", "weight"].operand_error, 4), found["forward", "x"].operand_error
    (0.0417, 0.0)
    """
    check_processor()
    if products is None:
        products = tuple(OPERANDS) if dy is not None else ("forward",)
    odd = [name for name in products if name not in OPERANDS]
    if odd:
        raise ValueError(f"unknown product {odd[0]!r}; known: {', '.join(OPERANDS)}")
    if dy is None and (gradients := [name for name in products if name != "forward"]):
        raise ValueError(f"the products {', '.join(gradients)} need dy, the gradient of the output")
    made = _Observed()
    left, right = made.operands(x, weight)
    given = None if dy is None else made.gradient(dy, (len(left), len(right)))
    layer = LinearLayer(get_recipe(recipe), made, words)
    y, taken = layer.forward(left, right)
    found: dict[tuple[str, str], OperandFinding] = {}
    if "forward" in products:
        found |= _findings("forward", y, (left, right.T), made.seen)
    if given is not None:
        for name, one, other, factors in (
            ("dgrad", layer.dgrad, right, (given, right)),
            ("wgrad", layer.wgrad, left, (given.T, left)),
        ):
            if name in products:
                made.seen.clear()
                found |= _findings(name, one(given, other, taken), factors, made.seen)
    return found


class _Observed(NumPyProducts):
    """Products that record each operand: as it was given, its recipe, and as it entered."""

    def __init__(self) -> None:
        self.seen: list[tuple[Array, OperandRecipe, Entered]] = []

    def enter(self, x: Array, recipe: OperandRecipe, words: RandomWords | None) -> Entered:
        """Quantise a matrix whose contracted axis is the last."""
        found = super().enter(x, recipe, words)
        self.seen.append((x, recipe, found))
        return found


def _findings(
    name: str,
    product: Array,
    factors: tuple[Array, Array],
    seen: Sequence[tuple[Array, OperandRecipe, Entered]],
) -> dict[tuple[str, str], OperandFinding]:
    """Return the findings of both operands of a product."""
    with np.errstate(all="ignore"):
        exact = factors[0].astype(np.float64) @ factors[1].astype(np.float64)
        both = _square(product - exact), _square(exact)
        return {
            (name, operand): _finding(both, item) for operand, item in zip(OPERANDS[name], seen, strict=True)
        }


def _finding(squares: tuple[float, float], seen: tuple[Array, OperandRecipe, Entered]) -> OperandFinding:
    """Return the finding of a product and of one operand as it entered."""
    x, recipe, found = seen
    values, size = np.asarray(found.values), np.abs(x)
    nonzero = (size > 0) & (size < np.inf)
    clipped = nonzero & _clipped(x, recipe.format, found)
    blocks, outliers = _outliers(size, recipe.format)
    return OperandFinding(
        *squares,
        error=_square(values - x.astype(np.float64)),
        size=_square(x.astype(np.float64)),
        nonzero=int(nonzero.sum()),
        underflowed=int((nonzero & (values == 0)).sum()),
        saturated=int(clipped.sum()),
        blocks=blocks,
        outliers=outliers,
    )


def _clipped(x: Array, fmt: ScaledFormat | Format | None, found: Entered) -> Array:
    """Return where numbers lie beyond the range of their block, or of the format."""
    if found.scaled is not None:
        return found.scaled.clipped(x)
    if fmt is None or isinstance(fmt, ScaledFormat):
        return np.zeros(x.shape, np.bool_)
    return np.asarray((x > float(fmt.max)) | (x < float(fmt.lowest)))


def _outliers(size: Array, fmt: Any) -> tuple[int, int]:
    """Return how many blocks of magnitudes are examined, and in how many an outlier sets the scale."""
    if not isinstance(fmt, ScaledFormat):
        return 0, 0
    blocks = outliers = 0
    for part in BlockViews(size.shape, fmt.block, size.ndim - 1).parts(np.ascontiguousarray(size)):
        if part.shape[-1] < 2 or not part.size:
            continue
        second, largest = np.moveaxis(np.partition(part, (-2, -1), axis=-1)[..., -2:], -1, 0)
        looked = (largest > 0) & (largest < np.inf)
        blocks += int(looked.sum())
        outliers += int((looked & (largest >= OUTLIER * second.astype(np.float64))).sum())
    return blocks, outliers


def _square(x: Array) -> float:
    return float(np.vdot(x, x))


def _ratio(error: float, size: float) -> float:
    """Return the root of a ratio of sums of squares; a zero error gives 0, whatever the divisor."""
    if error == 0 or math.isnan(error):
        return error
    return math.sqrt(error / size) if size else math.inf
