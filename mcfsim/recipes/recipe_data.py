"""Recipes as JSON-able data and back: a name, or every field."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from fractions import Fraction
from typing import Any

from mcfsim.formats import Format
from mcfsim.formats.grids import Grid
from mcfsim.products import Unit
from mcfsim.recipes.named_recipes import RECIPES, get_recipe
from mcfsim.recipes.recipe import OperandRecipe, ProductRecipe, Recipe, format_of
from mcfsim.rounding import Rounding
from mcfsim.scaled import ScaledFormat

_MADE_OF = (Format, Grid, ScaledFormat, Rounding, Unit, OperandRecipe, ProductRecipe)
_KINDS: dict[str, type] = {kind.__name__: kind for kind in _MADE_OF}


def recipe_data(recipe: Recipe) -> str | dict[str, Any]:
    """Return the name of a named recipe, or the fields of another one, JSON-able."""
    return recipe.name if RECIPES.get(recipe.name) == recipe else _fields(recipe)


def recipe_from(data: Recipe | str | Mapping[str, Any]) -> Recipe:
    """Return a recipe given as such, by its name, or by the fields that `recipe_data` returned.

    Raises
    ------
    TypeError, ValueError
        If it is none of these, or a field is missing, unknown or out of range.
    """
    if not isinstance(data, Mapping):
        return get_recipe(data)
    names = {item.name for item in fields(Recipe)}
    if data.keys() != names:
        odd = sorted(names ^ data.keys())
        raise ValueError(
            f"data of a recipe have the entries {sorted(names)}; {odd[0]!r} is missing or not one of them"
        )
    return Recipe(**{name: _made(value) for name, value in data.items()})


def _fields(x: Any) -> dict[str, Any]:
    return {item.name: _plain(getattr(x, item.name)) for item in fields(x) if item.init}


def _plain(x: Any) -> Any:
    if isinstance(x, Format | ScaledFormat) and _is_named(x):
        return x.name
    if is_dataclass(x):
        return {"kind": type(x).__name__, **_fields(x)}
    if isinstance(x, Enum):
        return str(x.value)
    if isinstance(x, Fraction):
        return str(x)
    return [_plain(item) for item in x] if isinstance(x, tuple) else x


def _is_named(x: Format | ScaledFormat) -> bool:
    """Return whether an operand's format given by this name is this very format; comparison ignores names."""
    try:
        return format_of(x.name) == x
    except ValueError:
        return False


def _made(x: Any) -> Any:
    if isinstance(x, list | tuple):
        return tuple(map(_made, x))
    if not isinstance(x, Mapping):
        return x
    given = {name: _made(value) for name, value in x.items() if name != "kind"}
    kind = x.get("kind")
    if kind not in _KINDS:
        raise ValueError(f"unknown kind {kind!r} in a recipe; known: {', '.join(_KINDS)}")
    return _KINDS[str(kind)](**given)
