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


_BF16 = OperandRecipe(FORMATS["bfloat16"])
_MXFP8 = OperandRecipe(_scaled("mxfp8_e4m3", ScaleRule.ROUND_UP))
_E4M3, _E5M2 = (OperandRecipe(SCALED[f"fp8_{kind}_tensor"]) for kind in ("e4m3", "e5m2"))
_FP8_ROWS = OperandRecipe(SCALED["fp8_e4m3_1x128"].with_rule(ScaleRule.DEEPSEEK))
_FP8_TILES = OperandRecipe(SCALED["fp8_e4m3_128x128"].with_rule(ScaleRule.DEEPSEEK))
#: NVFP4 as Transformer Engine has it: rows of 16, or tiles of 16x16 for weights.
_ROWS = OperandRecipe(_scaled("nvfp4", ScaleRule.TRANSFORMER_ENGINE))
_TILES = OperandRecipe(_scaled("nvfp4_16x16", ScaleRule.TRANSFORMER_ENGINE))
_DRAWN_ROWS = replace(_ROWS, rounding=_SR)
_NVFP4 = OperandRecipe(SCALED["nvfp4"])
_DRAWN_NVFP4 = replace(_NVFP4, rounding=_SR)
_QUEST = OperandRecipe(_scaled("mxfp4", ScaleRule.QUEST))
_QUARTET = OperandRecipe(SCALED["mxfp4_quartet"], _SR)
_FOUR_SIX = OperandRecipe(_scaled("nvfp4", ScaleRule.FOUR_SIX_MSE))
_EDEN = OperandRecipe(SCALED["nvfp4_eden"])


def _taken(operand: OperandRecipe) -> OperandRecipe:
    """Return the recipe of an operand with what the forward product took as its source."""
    return replace(operand, source=OperandSource.FORWARD)


def _recipe(
    name: str,
    forward: ProductRecipe,
    dgrad: ProductRecipe | None = None,
    wgrad: ProductRecipe | None = None,
    **others: Any,
) -> Recipe:
    """Return a recipe with gradients of weights in binary32; a product not given is like the one before."""
    dgrad = dgrad or forward
    wgrad = replace(wgrad or dgrad, output=None)
    return Recipe(name, forward=forward, dgrad=dgrad, wgrad=wgrad, **others)


_ALL = (
    _recipe("bf16", ProductRecipe(_BF16, _BF16), source="mixed precision with bfloat16 operands"),
    _recipe(
        "bf16-truncating",
        ProductRecipe(_BF16, _BF16, unit="hopper_bf16"),
        source="the same, summed by a tensor core of Hopper",
    ),
    _recipe("mxfp8", ProductRecipe(_MXFP8, _MXFP8), source="Mishra et al., arXiv 2506.08027, 2025"),
    _recipe(
        "fp8-tensor",
        forward=ProductRecipe(_E4M3, _E4M3),
        dgrad=ProductRecipe(_E5M2, _E4M3),
        source="Transformer Engine, Float8CurrentScaling with Format.HYBRID",
    ),
    _recipe(
        "fp8-blocks",
        forward=ProductRecipe(_FP8_ROWS, _FP8_TILES),
        wgrad=ProductRecipe(_FP8_ROWS, _taken(_FP8_ROWS)),
        source="DeepSeek-AI, DeepSeek-V3 technical report, arXiv 2412.19437, 2024, sections 3.3 and 3.5.2",
    ),
    _recipe(
        "nvfp4",
        forward=ProductRecipe(_ROWS, _TILES),
        dgrad=ProductRecipe(_DRAWN_ROWS, _TILES),
        wgrad=ProductRecipe(_DRAWN_ROWS, _ROWS, hadamard=16, signs=Signs.FIXED),
        first=Fraction(2, 62),
        last=Fraction(8, 62),
        source="NVIDIA, Pretraining large language models with NVFP4, arXiv 2509.25149, 2025, section 4",
    ),
    _recipe(
        "fp4-all",
        forward=ProductRecipe(_NVFP4, _NVFP4),
        dgrad=ProductRecipe(_DRAWN_NVFP4, _NVFP4),
        wgrad=ProductRecipe(_DRAWN_NVFP4, _DRAWN_NVFP4),
        source="Chmiel, Fishman, Banner, Soudry, FP4 all the way, arXiv 2505.19115, 2025",
    ),
    _recipe(
        "quartet",
        forward=ProductRecipe(_QUEST, _QUEST, hadamard=32),
        dgrad=ProductRecipe(_QUARTET, _taken(_QUARTET), hadamard=32, signs=Signs.RANDOM),
        source="Castro et al., Quartet, arXiv 2505.14669, 2025",
    ),
    _recipe(
        "quartet2",
        forward=ProductRecipe(_FOUR_SIX, _FOUR_SIX),
        dgrad=ProductRecipe(_EDEN, _taken(_EDEN), hadamard=128, signs=Signs.RANDOM),
        source="Panferov et al., Quartet II, arXiv 2601.22813, 2026",
    ),
)

#: The named recipes.
RECIPES: Mapping[str, Recipe] = MappingProxyType({item.name: item for item in _ALL})


def get_recipe(spec: Recipe | str) -> Recipe:
    """Return the recipe with a name of `RECIPES`; return a `Recipe` unchanged.

    Raises
    ------
    TypeError
        If it is neither a recipe nor a name.
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
    """Return whether the name of an operand's format means this very format; comparison ignores names."""
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
