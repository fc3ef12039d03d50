"""Recipes of training in low precision: how the three matrix products of a linear layer are computed.

`recipe` says how operands enter a product, as data; `named_recipes` are published; `linear_layer` has the
three products, on NumPy by `NumPyProducts`; `product_findings` says what they lose. Imports `products`,
`scaled` and below. Begin with `recipe`.
"""

from mcfsim.recipes.linear_layer import linear
from mcfsim.recipes.named_recipes import RECIPES, get_recipe
from mcfsim.recipes.product_findings import OperandFinding, audit_products
from mcfsim.recipes.recipe import OperandRecipe, ProductRecipe, Recipe

__all__ = [
    "RECIPES",
    "OperandFinding",
    "OperandRecipe",
    "ProductRecipe",
    "Recipe",
    "audit_products",
    "get_recipe",
    "linear",
]
