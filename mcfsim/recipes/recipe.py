"""Recipes as data: how operands of a linear layer's three products are quantised and multiplied."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field, replace
from enum import StrEnum
from fnmatch import fnmatchcase
from fractions import Fraction

from mcfsim.checks import check_int, chosen
from mcfsim.formats import FORMATS, Format, get_format
from mcfsim.formats.grids import Grid
from mcfsim.kernels.carriers import FLOAT32, holds, native_dtype, within
from mcfsim.products import Unit, get_unit
from mcfsim.products.unit_products import taken_blocks
from mcfsim.rounding import Overflow, Rounding, get_rounding
from mcfsim.scaled import SCALED, ScaledFormat, ScaleRule


class OperandSource(StrEnum):
    """The tensor from which an operand is quantised.

    ``given``: the tensor itself, in the precision in which it came. ``forward``: its quantised form, as the
    forward product took it, dequantised. The gradient then passes through the forward quantisation: it is
    zero where that clipped, and is rotated back if that rotated.
    """

    GIVEN = "given"
    FORWARD = "forward"


class Signs(StrEnum):
    """Signs by which elements are multiplied before a Hadamard transform.

    ``none``: all positive. ``fixed``: the published vector of 16. ``random``: drawn anew for each product.
    """

    NONE = "none"
    FIXED = "fixed"
    RANDOM = "random"


def format_of(spec: ScaledFormat | Format | str) -> ScaledFormat | Format:
    """Return the format that is meant: a scaled format, or a floating-point format of single numbers."""
    if isinstance(spec, ScaledFormat):
        return spec
    name = spec.strip().lower() if isinstance(spec, str) and spec.isascii() else ""
    if name in SCALED and not name.startswith("int"):
        return SCALED[name]
    return _single(spec)


def _single(spec: Format | str) -> Format:
    """Return a format of single numbers, all of binary32, or raise."""
    found = get_format(spec)
    if type(found) not in (Format, Grid) or not holds(FLOAT32, found):
        raise ValueError(
            f"{found} is no floating-point format of binary32 numbers, as operands and results are"
        )
    return found


@dataclass(frozen=True)
class OperandRecipe:
    """How one operand of a matrix product enters it.

    Parameters
    ----------
    format : ScaledFormat or Format or str or None, optional
        Its format, with the rule of its scales; blocks lie along the contracted axis. A name like int8 means
        integers without a scale; ``SCALED["int8"]`` has one. None leaves the operand as it is, in binary32.
    rounding : str or Rounding, optional
        How elements are rounded. With the name of a mode, overflow saturates.
    source : {"given", "forward"}, optional
        See `OperandSource`. Only products of the backward pass can take ``forward``.

    Raises
    ------
    ValueError
        If a name is unknown.

    Examples
    --------
    >>> OperandRecipe("mxfp4", "stochastic").stochastic
    True
    """

    format: ScaledFormat | Format | None = None
    rounding: Rounding = field(default_factory=lambda: Rounding(overflow=Overflow.SATURATE))
    _: KW_ONLY
    source: OperandSource = OperandSource.GIVEN

    def __post_init__(self) -> None:
        if self.format is not None:
            object.__setattr__(self, "format", format_of(self.format))
        if not isinstance(self.rounding, Rounding):
            object.__setattr__(self, "rounding", get_rounding(self.rounding, Overflow.SATURATE))
        object.__setattr__(self, "source", chosen("source", self.source, OperandSource))

    @property
    def stochastic(self) -> bool:
        """Whether quantising draws random words."""
        drawn = self.format is not None and self.rounding.stochastic
        return drawn or self._rule is ScaleRule.EDEN

    @property
    def clips(self) -> bool:
        """Whether the rule of its scales clips on purpose; gradients are then masked."""
        return self._rule is ScaleRule.QUEST

    @property
    def _rule(self) -> ScaleRule | None:
        return self.format.rule if isinstance(self.format, ScaledFormat) else None

    def __str__(self) -> str:
        name = "binary32" if self.format is None else str(self.format)
        rounded = "" if self.format is None else f", {self.rounding.mode}"
        return name + rounded + (", of the forward operand" if self.source is OperandSource.FORWARD else "")


@dataclass(frozen=True)
class ProductRecipe:
    """How one of the three products is computed.

    Parameters
    ----------
    left, right : OperandRecipe
        Forward: activations and weights. dgrad: gradients of the output and weights. wgrad: gradients of the
        output and activations.
    hadamard : int, optional
        Both operands are multiplied by signs and transformed by Hadamard matrices of this order along the
        contracted axis, which leaves the exact product as it is; 0 for none.
    signs : {"none", "fixed", "random"}, optional
        See `Signs`.
    unit : str or Unit or None, optional
        The matrix unit that multiplies, see `mcfsim.matmul`. None: a product in binary32, whose order of
        summation is the machine's; quantisation is then still bit-exact, but the sum is not specified.
    promote_every : int or None, optional
        After how many products a unit's partial sum is added in binary32. If operands have scales along the
        contracted axis that the unit does not take, it is the block's length, and partial sums are scaled.
    output : Format or str or None, optional
        The format to which the result is rounded, to nearest even; None for binary32.

    Raises
    ------
    TypeError
        If an argument is of the wrong type.
    ValueError
        If a name is unknown, a number is out of range, signs have no transform, or the unit does not go with
        the operands.
    """

    left: OperandRecipe = field(default_factory=OperandRecipe)
    right: OperandRecipe = field(default_factory=OperandRecipe)
    _: KW_ONLY
    hadamard: int = 0
    signs: Signs = Signs.NONE
    unit: Unit | str | None = None
    promote_every: int | None = None
    output: Format | None = field(default_factory=lambda: get_format("bfloat16"))

    def __post_init__(self) -> None:
        for label in ("left", "right"):
            if not isinstance(getattr(self, label), OperandRecipe):
                raise TypeError(f"{label} must be an OperandRecipe, not {getattr(self, label)!r}")
        check_int("hadamard", self.hadamard, 0)
        if self.hadamard & (self.hadamard - 1) or self.hadamard == 1:
            raise ValueError(f"hadamard = {self.hadamard} must be a power of two from 2 on, or 0 for none")
        object.__setattr__(self, "signs", chosen("signs", self.signs, Signs))
        if self.signs is not Signs.NONE and not self.hadamard:
            raise ValueError(f"signs {self.signs!s} are for a Hadamard transform, and hadamard is 0")
        if self.signs is Signs.FIXED and self.hadamard != 16:
            raise ValueError(f"the fixed signs are 16, and hadamard is {self.hadamard}")
        if self.promote_every is not None:
            check_int("promote_every", self.promote_every, 1)
            if self.unit is None:
                raise ValueError("promote_every is for a unit; binary32 has no partial sums")
        if self.unit is not None:
            check_unit(get_unit(self.unit), self.left.format, self.right.format, self.promote_every)
        if self.output is not None:
            object.__setattr__(self, "output", _single(self.output))

    @property
    def stochastic(self) -> bool:
        """Whether the product draws random words."""
        return self.signs is Signs.RANDOM or self.left.stochastic or self.right.stochastic

    def __str__(self) -> str:
        turned = f", Hadamard {self.hadamard} ({self.signs} signs)" if self.hadamard else ""
        return f"({self.left}) x ({self.right}){turned} by {self.unit or 'binary32'}"


@dataclass(frozen=True)
class Recipe:
    """How a linear layer is computed and differentiated in low precision.

    Parameters
    ----------
    name : str
        A label, ignored by comparison and hashing.
    forward : ProductRecipe
        ``Y = X W'`` with X of shape (tokens, inputs) and W of shape (outputs, inputs).
    dgrad : ProductRecipe
        ``dX = dY W``, contracted along the outputs.
    wgrad : ProductRecipe
        ``dW = dY' X``, contracted along the tokens.
    first, last : Fraction, optional
        The shares of a model's blocks, from either end, whose layers stay in high precision. The number of
        blocks is rounded to the nearest integer, halves up.
    high : tuple of str, optional
        Patterns of names of other layers that stay in high precision, as of `fnmatch`.
    source : str, optional
        Where it was published.

    Raises
    ------
    TypeError
        If an argument is of the wrong type.
    ValueError
        If a share is not from 0 to 1, or the forward product has an operand of source ``forward``.

    Examples
    --------
    >>> weights = OperandRecipe("mxfp8_e4m3")
    >>> gradients = OperandRecipe("mxfp8_e5m2")
    >>> mine = Recipe(
    ...     "mine",
    ...     forward=ProductRecipe(weights, weights),
    ...     dgrad=ProductRecipe(gradients, weights),
    ...     wgrad=ProductRecipe(gradients, weights, output=None),
    ... )
    >>> mine.stochastic
    False
    """

    name: str = field(compare=False)
    _: KW_ONLY
    forward: ProductRecipe
    dgrad: ProductRecipe
    wgrad: ProductRecipe
    first: Fraction = Fraction(0)
    last: Fraction = Fraction(0)
    high: tuple[str, ...] = ()
    source: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise TypeError(f"name must be a string, not {self.name!r}")
        for label, product in self.products.items():
            if not isinstance(product, ProductRecipe):
                raise TypeError(f"{label} must be a ProductRecipe, not {product!r}")
        for label in ("first", "last"):
            given = getattr(self, label)
            try:
                share = Fraction(given)
            except (TypeError, ValueError, ArithmeticError):  # no number, NaN, an infinity, or 1/0
                share = Fraction(-1)
            if not 0 <= share <= 1:
                raise ValueError(f"{label} = {given!s} must be a share of the blocks, from 0 to 1")
            object.__setattr__(self, label, share)
        high = self.high if isinstance(self.high, list | tuple) else [None]
        if not all(isinstance(item, str) for item in high):
            raise TypeError(f"high must be a tuple of patterns of names, not {self.high!r}")
        object.__setattr__(self, "high", tuple(high))
        taken = [self.forward.left, self.forward.right, self.dgrad.left, self.wgrad.left]
        if any(operand.source is OperandSource.FORWARD for operand in taken):
            raise ValueError(
                f"{self.name}: only weights in dgrad and activations in wgrad can be what the forward "
                "product took"
            )

    def __str__(self) -> str:
        return self.name

    @property
    def products(self) -> dict[str, ProductRecipe]:
        """The three products by their names."""
        return {"forward": self.forward, "dgrad": self.dgrad, "wgrad": self.wgrad}

    @property
    def stochastic(self) -> bool:
        """Whether a product draws random words."""
        return any(product.stochastic for product in self.products.values())

    def with_unit(self, unit: Unit | str | None, promote_every: int | None = None) -> Recipe:
        """Return the recipe with all three products made by a unit, or by binary32 for None."""
        changed = {
            label: replace(product, unit=unit, promote_every=promote_every)
            for label, product in self.products.items()
        }
        return replace(self, **changed)  # type: ignore[arg-type]  # the fields are those of the products

    def keeps(self, name: str, block: int | None = None, blocks: int = 0) -> bool:
        """Return whether a layer stays in high precision.

        Parameters
        ----------
        name : str
            Its name.
        block, blocks : int, optional
            The number of the block that it belongs to, from 0 on, and the number of blocks.

        Raises
        ------
        ValueError
            If there is no such block.
        """
        if any(fnmatchcase(name, pattern) for pattern in self.high):
            return True
        if block is None:
            return False
        if not 0 <= block < blocks:
            raise ValueError(f"block = {block} must be a number from 0 on, less than blocks = {blocks}")
        first, last = (int(share * blocks + Fraction(1, 2)) for share in (self.first, self.last))
        return block < first or block >= blocks - last


# -- units that go with operands ---------------------------------------------------------------------------
#: What an operand's format is; None is binary32.
Kind = ScaledFormat | Format | None


def scales_along(fmt: Kind) -> int:
    """Return how many neighbours along the contracted axis share a scale; 0 if a row or a tensor does."""
    block = fmt.block if isinstance(fmt, ScaledFormat) else None
    return block[1] if isinstance(block, tuple) else block if isinstance(block, int) else 0


def element_format(fmt: Kind) -> Format | Grid:
    """Return the format of the numbers that a unit without scales multiplies."""
    return fmt.element if isinstance(fmt, ScaledFormat) else fmt or FORMATS["float32"]


def check_unit(unit: Unit, left: Kind, right: Kind, promote_every: int | None) -> None:
    """Raise unless a unit multiplies operands of two formats, whatever their numbers and shapes.

    Raises
    ------
    ValueError
        If a unit with scales takes no such blocks; if a unit without scales lacks numbers of the elements; if
        binary32 does not hold the scales; if blocks differ in length, or are not a multiple of the unit's
        products; or if partial sums are added elsewhere.
    UnsupportedFormatError
        If a unit takes several formats, and no dtype of an array names that of the elements.
    """
    for label, fmt in (("left", left), ("right", right)):
        for scale in fmt.scales if isinstance(fmt, ScaledFormat) else ():
            if not within(scale, FORMATS["float32"]):
                raise ValueError(
                    f"{unit} does not go with the {label} operand, {fmt}: binary32, in which scales multiply "
                    f"sums, does not hold those of {scale}"
                )
        if unit.scales:
            _check_scaled(unit, fmt, label)
        elif not _takes(unit, element_format(fmt)):
            raise ValueError(
                f"{unit} does not go with the {label} operand, {fmt or 'binary32'}: it multiplies "
                f"{', '.join(map(str, unit.inputs))}, which lack numbers of {element_format(fmt)}"
            )
        elif element_format(fmt) in unit.inputs[1:]:
            native_dtype(element_format(fmt))
    sizes = set() if unit.scales else {scales_along(fmt) for fmt in (left, right)} - {0}
    if len(sizes) > 1 or any(size % unit.k for size in sizes):
        raise ValueError(
            f"the operands have scales for blocks of {' and '.join(map(str, sorted(sizes)))}; {unit} needs "
            f"blocks of one length, a multiple of its {unit.k} products"
        )
    if sizes and promote_every not in (None, *sizes):
        raise ValueError(
            f"promote_every = {promote_every}: sums of blocks are added after {sizes.pop()} products"
        )
    unit.check_parts(promote_every)


def _check_scaled(unit: Unit, fmt: Kind, label: str) -> None:
    """Raise unless a unit with scales takes such blocks."""
    takes = f"it takes {taken_blocks(unit)}"
    if not isinstance(fmt, ScaledFormat):
        raise ValueError(
            f"{unit} does not go with the {label} operand, {fmt or 'binary32'}, without scales: {takes}"
        )
    along = scales_along(fmt)
    if fmt.element not in unit.inputs or fmt.scale not in unit.scales or along not in unit.blocks:
        own = f"blocks of {along}" if along else "one block"
        raise ValueError(
            f"{unit} does not go with the {label} operand, {fmt}, which has {own} of {fmt.element} with "
            f"scales of {fmt.scale}: {takes}"
        )


def _takes(unit: Unit, element: Format | Grid) -> bool:
    """Return whether a unit has every number of a format: it is an input, or within the first input."""
    return element in unit.inputs or within(element, FORMATS["float32"] if unit.cut else unit.input)
