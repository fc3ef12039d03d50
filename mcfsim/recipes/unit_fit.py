"""Whether a matrix unit goes with the operands of a product, by their formats alone."""

from __future__ import annotations

from mcfsim.formats import FORMATS, Format
from mcfsim.formats.grids import Grid
from mcfsim.kernels.carriers import native_dtype, within
from mcfsim.products import Unit
from mcfsim.products.unit_products import taken_blocks
from mcfsim.scaled import ScaledFormat

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
        If a unit with scales takes no such blocks; if another one lacks numbers of the elements; if binary32
        does not hold the scales; if blocks differ in length, or are no multiple of the unit's products; or if
        partial sums are added elsewhere.
    UnsupportedFormatError
        If a unit takes several formats, and no dtype of an array names that of the elements.
    """
    for label, fmt in (("left", left), ("right", right)):
        for scale in (fmt.scale, fmt.tensor_scale) if isinstance(fmt, ScaledFormat) else ():
            if scale is not None and not within(scale, FORMATS["float32"]):
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
