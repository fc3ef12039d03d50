"""Dot products and matrix products with a stated accumulator: what is summed exactly, what rounded when."""

from mcfsim.products.accumulator import Accumulator, Order, Products
from mcfsim.products.dot_products import dot, matmul

__all__ = ["Accumulator", "Order", "Products", "dot", "matmul"]
