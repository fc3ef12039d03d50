"""JSON from a file that anyone may have altered: parsed, and every type checked against annotations."""

from __future__ import annotations

import json
import math
from dataclasses import is_dataclass
from functools import lru_cache
from reprlib import repr as shortened
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints


def parse(text: str) -> Any:
    """Return the data of JSON text.

    Raises
    ------
    ValueError
        If it is no JSON, names something twice in one object, or is nested too deeply.
    """
    try:
        return json.loads(text, object_pairs_hook=_unique)
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None


def build(kind: Any, data: Any, place: str) -> Any:
    """Return JSON data as the type that an annotation names.

    Parameters
    ----------
    kind : annotation
        A dataclass, of which every field is built; ``tuple[X, ...]``, ``tuple[X, Y]``, ``dict[str, X]``,
        ``X | None``, a Literal of texts, int, float, str, bool, or Any.
    data : JSON data
        A float must be finite; a bool is no int.
    place : str
        What an error calls the data; nothing for a whole file.

    Raises
    ------
    ValueError
        If something is missing, of another type, or not asked for; or a dataclass refuses its fields.
    """
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any:
        return data
    if origin in (Union, UnionType):
        (other,) = (item for item in inner if item is not NoneType)
        return None if data is None else build(other, data, place)
    if origin is Literal:
        _demand(isinstance(data, str) and data in inner, data, place, f"one of {', '.join(inner)}")
        return data
    if is_dataclass(kind):
        return _built(kind, data, place)
    if origin is tuple:
        _demand(isinstance(data, list), data, place, "a list")
        if inner[-1] is not Ellipsis:
            _demand(len(data) == len(inner), data, place, f"a list of {len(inner)}")
        kinds = inner[:1] * len(data) if inner[-1] is Ellipsis else inner
        return tuple(
            build(item, x, f"{place}[{i}]") for i, (item, x) in enumerate(zip(kinds, data, strict=True))
        )
    if origin is dict:
        _demand(isinstance(data, dict), data, place, "an object")
        return {name: build(inner[1], x, f"{place}.{name}") for name, x in data.items()}
    if kind is float:
        number = isinstance(data, int | float) and not isinstance(data, bool)
        _demand(number and math.isfinite(data), data, place, "a finite number")
    else:
        _demand(type(data) is kind, data, place, f"of type {kind.__name__}")
    return data


def _built(kind: Any, data: Any, place: str) -> Any:
    fields = _hints(kind)
    _demand(isinstance(data, dict), data, place or "the whole", "an object")
    within = f" in {place}" if place else ""
    if missing := [name for name in fields if name not in data]:
        raise ValueError(f"{missing[0]!r} is missing{within}")
    if stray := [name for name in data if name not in fields]:
        raise ValueError(f"{shortened(stray[0])} is not known{within}")
    prefix = place and f"{place}."
    built = {name: build(field, data[name], f"{prefix}{name}") for name, field in fields.items()}
    try:
        return kind(**built)
    except (TypeError, ValueError) as problem:
        raise ValueError(f"{problem}{within}") from problem


@lru_cache
def _hints(kind: Any) -> dict[str, Any]:
    """Return what each field of a dataclass is annotated with."""
    hints = get_type_hints(kind)
    return {name: hints[name] for name in kind.__dataclass_fields__}


def _demand(met: bool, data: Any, place: str, wanted: str) -> None:
    if not met:
        raise ValueError(f"{place} must be {wanted}, not {shortened(data)}")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{shortened(max(names, key=names.count))} is named twice")
    return made
