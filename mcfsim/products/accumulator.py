"""How a sum of products is accumulated, as data."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from enum import StrEnum

from mcfsim.checks.arguments import check_int
from mcfsim.formats import Format, get_format
from mcfsim.kernels.carriers import UnsupportedFormatError, carrier_of
from mcfsim.kernels.exact_dot import COMFORT, ODD_BITS
from mcfsim.rounding import Rounding, Underflow, get_rounding


class Order(StrEnum):
    """How the blocks of a sum come together.

    ``sequential``: each block is added to an accumulator as it stands. ``pairwise``: each block is summed by
    itself, and the sums are added two by two, neighbours first, until one is left; an odd one out at the end
    of a level waits, unrounded, for the next.
    """

    SEQUENTIAL = "sequential"
    PAIRWISE = "pairwise"


class Products(StrEnum):
    """Whether a product goes into its block's sum exactly, or rounded to the accumulator's format first."""

    EXACT = "exact"
    ROUNDED = "rounded"


@dataclass(frozen=True)
class Accumulator:
    """How a sum of products is accumulated.

    The products are taken in blocks along the contracted axis. The sum of a block's products and of the
    accumulator as it stands, as if computed exactly, is rounded once into the accumulator's format. With
    ``block=1`` that is a chain of fused multiply-adds, with ``block=None`` a dot product rounded once.

    Parameters
    ----------
    format : Format or str
        What the accumulator holds.
    rounding : Rounding or str, optional
        Mode and policies of all its roundings.
    block : int or None
        Products a block: at least 1, or None for all. The last block may be shorter.
    order : {"sequential", "pairwise"}, optional
        See `Order`.
    lanes : int, optional
        So many sequential accumulators take the blocks in turn; in the end they are added as if ``pairwise``.
    products : {"exact", "rounded"}, optional
        See `Products`. ``rounded`` with ``block=1`` is a separate multiplication and addition.

    Raises
    ------
    TypeError
        If `block` or `lanes` is no int.
    ValueError
        If a name is unknown, a number is out of range, more than one lane is to be added pairwise, or
        operands are to be flushed: their own formats are not stated, nor is which of them are small.
    UnsupportedFormatError
        If the sum cannot be rounded once: precision and guard bits exceed 52, or the format's range 2**+-450.

    Examples
    --------
    >>> Accumulator("bfloat16", block=4).roundings(10)
    3
    """

    format: Format
    rounding: Rounding = field(default_factory=Rounding)
    _: KW_ONLY
    block: int | None
    order: Order = Order.SEQUENTIAL
    lanes: int = 1
    products: Products = Products.EXACT

    def __post_init__(self) -> None:
        fmt, rounding = get_format(self.format), get_rounding(self.rounding)
        object.__setattr__(self, "format", fmt)
        object.__setattr__(self, "rounding", rounding)
        for label in ("block", "lanes"):
            number = getattr(self, label)
            if label == "block" and number is None:
                continue
            check_int(label, number, 1)
        for label, kind in (("order", Order), ("products", Products)):
            try:
                object.__setattr__(self, label, kind(getattr(self, label)))
            except ValueError:
                raise ValueError(
                    f"unknown {label} {getattr(self, label)!r}; allowed: {', '.join(kind)}"
                ) from None
        if self.lanes > 1 and self.order is Order.PAIRWISE:
            raise ValueError(f"lanes = {self.lanes} are for sequential accumulators; pairwise has no lanes")
        if rounding.underflow is Underflow.FLUSH_INPUTS:
            raise ValueError("underflow 'flush_inputs' is for operands, whose formats are not stated here")
        carrier_of(fmt)
        if fmt.precision + rounding.guard_bits > ODD_BITS:
            raise UnsupportedFormatError(
                f"sums in {fmt}, rounding {rounding.mode}, cannot be rounded once: its precision and "
                f"{rounding.guard_bits} guard bits exceed {ODD_BITS}"
            )
        if fmt.emax >= COMFORT or fmt.emin - fmt.precision + 1 < -COMFORT:
            raise UnsupportedFormatError(f"{fmt} has numbers beyond 2**+-{COMFORT}, whose sums are not exact")

    def roundings(self, length: int) -> int:
        """Return how many roundings a sum of so many products takes, each with words of its own.

        Parameters
        ----------
        length : int
            Of the contracted axis.

        Raises
        ------
        TypeError
            If it is no int.
        ValueError
            If it is negative.
        """
        check_int("length", length, 0)
        products = length if self.products is Products.ROUNDED else 0
        blocks = -(-length // (self.block or max(1, length)))
        parts = blocks if self.order is Order.PAIRWISE else min(blocks, self.lanes)
        return products + max(1, blocks) + max(0, parts - 1)
