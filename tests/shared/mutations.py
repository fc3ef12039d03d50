"""Damage of every sort to bytes, and to JSON data: for files that must be refused or read as they were."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np

#: What may stand in the place of any value.
NASTY = (
    *(None, True, False, 0, 1, -1, -5, 10**6, 2**31, 2**63, -(2**63) - 1, 10**400, 0.5, -0.0, 1e308),
    *(float("nan"), float("inf"), "", "x", "0", "-1/3", "a|b", "\0", "\ud800", "x" * 10_000),
    *([], [0], [[]], [None], {}, {"": 0}, {"name": 1}, {"x": {"y": []}}),
)


def damaged(data: bytes, random: np.random.Generator) -> bytes:
    """Return bytes with one random damage; at times it is none."""
    out = bytearray(data)
    place = int(random.integers(len(data)))
    length = int(random.integers(1, 64))
    match random.integers(8):
        case 0 | 1:
            out[place] ^= 1 << int(random.integers(8))
        case 2:
            out[place] = int(random.integers(256))
        case 3:
            del out[place:]
        case 4:
            del out[place : place + length]
        case 5:
            out[place:place] = random.bytes(length)
        case 6:
            out[place : place + length] = bytes([int(random.choice([0, 255]))]) * length
        case 7:
            other = int(random.integers(len(data)))
            out[place : place + length] = data[other : other + length]
    return bytes(out)


def changed(data: Any, random: np.random.Generator) -> Any:
    """Return JSON data with one value put in another's place, left out, or added."""
    whole = copy.deepcopy(data)
    places = list(_places(whole))
    parent, key = places[int(random.integers(len(places)))]
    value = copy.deepcopy(NASTY[int(random.integers(len(NASTY)))])
    match random.integers(5):
        case 0:
            del parent[key]
        case 1 if isinstance(parent, dict):
            parent[str(value)[:20]] = value
        case 2 if isinstance(parent[key], int | float) and not isinstance(parent[key], bool):
            x = parent[key]
            parent[key] = (x + 1, x - 1, -x, float(x))[int(random.integers(4))]
        case _:
            parent[key] = value
    return whole


def _places(data: Any) -> Iterator[tuple[Any, Any]]:
    keys = data if isinstance(data, dict) else range(len(data)) if isinstance(data, list) else ()
    for key in keys:
        yield data, key
        yield from _places(data[key])
