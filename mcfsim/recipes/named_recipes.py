"""The published recipes of training in low precision, by name, and recipes as JSON-able data and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from fractions import Fraction
from types import MappingProxyType
from typing import Any

from mcfsim.checks import hint
from mcfsim.formats import FORMATS, Format
from mcfsim.formats.grids import Grid
from mcfsim.products import Unit
from mcfsim.recipes.recipe import OperandRecipe, OperandSource, ProductRecipe, Recipe, Signs, format_of
from mcfsim.rounding import Mode, Overflow, Rounding
from mcfsim.scaled import SCALED, ScaledFormat, ScaleRule

_SR = Rounding(Mode.STOCHASTIC, overflow=Overflow.SATURATE)


def _scaled(base: str, rule: ScaleRule) -> ScaledFormat:
    """Return a named format with another rule, which its name tells."""
    return replace(SCALED[base], name=f"{base}, {rule}", rule=rule)


#: NVFP4 as Transformer Engine has it: rows of 16, or tiles of 16x16 for weights.
_ROWS = _scaled("nvfp4", ScaleRule.TRANSFORMER_ENGINE)
_TILES = _scaled("nvfp4_16x16", ScaleRule.TRANSFORMER_ENGINE)
_FOUR_SIX = _scaled("nvfp4", ScaleRule.FOUR_SIX_MSE)
_EDEN = SCALED["nvfp4_eden"]
_QUEST = _scaled("mxfp4", ScaleRule.QUEST)
_QUARTET = SCALED["mxfp4_quartet"]
_MXFP8 = _scaled("mxfp8_e4m3", ScaleRule.ROUND_UP)


def _same(name: str, operand: OperandRecipe, unit: str | None, source: str) -> Recipe:
    """Return a recipe that takes all operands alike; gradients of weights stay in binary32."""
    product = ProductRecipe(operand, operand, unit=unit)
    return Recipe(name, forward=product, dgrad=product, wgrad=replace(product, output=None), source=source)


def _fp8_tensor() -> Recipe:
    forward, backward = (OperandRecipe(SCALED[f"fp8_{kind}_tensor"]) for kind in ("e4m3", "e5m2"))
    return Recipe(
        "fp8-tensor",
        forward=ProductRecipe(forward, forward),
        dgrad=ProductRecipe(backward, forward),
        wgrad=ProductRecipe(backward, forward, output=None),
        source="Transformer Engine, Float8CurrentScaling with Format.HYBRID",
    )


def _fp8_blocks() -> Recipe:
    rows = OperandRecipe(SCALED["fp8_e4m3_1x128"].with_rule(ScaleRule.DEEPSEEK))
    tiles = OperandRecipe(SCALED["fp8_e4m3_128x128"].with_rule(ScaleRule.DEEPSEEK))
    return Recipe(
        "fp8-blocks",
        forward=ProductRecipe(rows, tiles),
        dgrad=ProductRecipe(rows, tiles),
        wgrad=ProductRecipe(rows, replace(rows, source=OperandSource.FORWARD), output=None),
        source="DeepSeek-AI, DeepSeek-V3 technical report, arXiv 2412.19437, 2024, sections 3.3 and 3.5.2",
    )


def _nvfp4() -> Recipe:
    rows, tiles = OperandRecipe(_ROWS), OperandRecipe(_TILES)
    drawn = OperandRecipe(_ROWS, _SR)
    return Recipe(
        "nvfp4",
        forward=ProductRecipe(rows, tiles),
        dgrad=ProductRecipe(drawn, tiles),
        wgrad=ProductRecipe(drawn, rows, hadamard=16, signs=Signs.FIXED, output=None),
        first=Fraction(2, 62),
        last=Fraction(8, 62),
        source="NVIDIA, Pretraining large language models with NVFP4, arXiv 2509.25149, 2025, section 4",
    )


def _fp4_all() -> Recipe:
    nearest = OperandRecipe(SCALED["nvfp4"])
    drawn = OperandRecipe(SCALED["nvfp4"], _SR)
    return Recipe(
        "fp4-all",
        forward=ProductRecipe(nearest, nearest),
        dgrad=ProductRecipe(drawn, nearest),
        wgrad=ProductRecipe(drawn, drawn, output=None),
        source="Chmiel, Fishman, Banner, Soudry, FP4 all the way, arXiv 2505.19115, 2025",
    )


def _quartet() -> Recipe:
    forward = OperandRecipe(_QUEST)
    given = OperandRecipe(_QUARTET, _SR)
    taken = OperandRecipe(_QUARTET, _SR, source=OperandSource.FORWARD)
    back = ProductRecipe(given, taken, hadamard=32, signs=Signs.RANDOM)
    return Recipe(
        "quartet",
        forward=ProductRecipe(forward, forward, hadamard=32),
        dgrad=back,
        wgrad=replace(back, output=None),
        source="Castro et al., Quartet, arXiv 2505.14669, 2025",
    )


def _quartet2() -> Recipe:
    forward = OperandRecipe(_FOUR_SIX)
    given, taken = OperandRecipe(_EDEN), OperandRecipe(_EDEN, source=OperandSource.FORWARD)
    back = ProductRecipe(given, taken, hadamard=128, signs=Signs.RANDOM)
    return Recipe(
        "quartet2",
        forward=ProductRecipe(forward, forward),
        dgrad=back,
        wgrad=replace(back, output=None),
        source="Panferov et al., Quartet II, arXiv 2601.22813, 2026",
    )


_BF16 = OperandRecipe(FORMATS["bfloat16"])
_ALL = (
    _same("bf16", _BF16, None, "mixed precision with bfloat16 operands"),
    _same("bf16-truncating", _BF16, "hopper_bf16", "the same, summed by a tensor core of Hopper"),
    _same("mxfp8", OperandRecipe(_MXFP8), None, "Mishra et al., arXiv 2506.08027, 2025"),
    _fp8_tensor(),
    _fp8_blocks(),
    _nvfp4(),
    _fp4_all(),
    _quartet(),
    _quartet2(),
)

#: The named recipes.
RECIPES: Mapping[str, Recipe] = MappingProxyType({item.name: item for item in _ALL})


def get_recipe(spec: Recipe | str) -> Recipe:
    """Return the recipe with a name of `RECIPES`; return a `Recipe` unchanged.

    Raises
    ------
    TypeError
        If it is neither.
    ValueError
        If the name is unknown; the message lists the known ones.
    """
    if isinstance(spec, Recipe):
        return spec
    if not isinstance(spec, str):
        raise TypeError(f"recipe must be a Recipe or a name, not {spec!r}")
    if spec not in RECIPES:
        raise ValueError(f"unknown recipe {spec!r}{hint(spec, RECIPES)}; known: {', '.join(RECIPES)}")
    return RECIPES[spec]


# -- recipes as data --------------------------------------------------------------------------------------
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
