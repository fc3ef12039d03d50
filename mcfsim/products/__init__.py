"""Sums of products: dot and matrix products, by an accumulator or a matrix unit (tensor core).

`units` are data, `unit_lines` says what a unit does with a group of products, `unit_products` handles its
operands and groups, `unit_bounds` has its proved bounds. `accumulator` is a model with one rounding per
block. Imports `scaled` and below. Begin with `matrix_products`.
"""

from mcfsim.products.accumulator import Accumulator, Order, Products
from mcfsim.products.matrix_products import dot, matmul
from mcfsim.products.unit_bounds import error_bound, is_monotone
from mcfsim.products.units import UNITS, Unit, UnitSums, get_unit

__all__ = [
    "UNITS",
    "Accumulator",
    "Order",
    "Products",
    "Unit",
    "UnitSums",
    "dot",
    "error_bound",
    "get_unit",
    "is_monotone",
    "matmul",
]
