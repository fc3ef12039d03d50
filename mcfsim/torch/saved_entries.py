"""The form of state dicts: groups with entries as plain data, all else as text; counts of steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from mcfsim.checks import whole_number
from mcfsim.torch.group import Settings, number

#: The types that a state dict holds as they are; PyTorch reads no others with ``weights_only=True``.
_PLAIN = (bool, int, float, str)
#: A step count that nobody reaches; smaller counts are exact in binary64.
_COUNTS = 2**53


def check_form(given: Mapping[str, Any]) -> None:
    """Raise ValueError unless a state dict has states, and groups of the parameters that these are of."""
    states, groups = given.get("state"), given.get("param_groups")
    grouped = isinstance(groups, list | tuple) and all(
        isinstance(group, Mapping) and isinstance(group.get("params"), list | tuple) for group in groups
    )
    if not isinstance(states, Mapping) or not grouped:
        wanted = (
            "param_groups, a list of groups with params" if isinstance(states, Mapping) else "state, a dict"
        )
        raise ValueError(f"this is no state of an optimizer: it has no {wanted}")
    assert isinstance(states, Mapping)
    assert isinstance(groups, list | tuple)
    places = [place for group in groups for place in group["params"]]
    if stray := [place for place in states if place not in places]:
        raise ValueError(f"the state has parameter {stray[0]!r}, which is in none of its groups")


def check_names(groups: Sequence[Mapping[str, Any]], saved: Sequence[Mapping[str, Any]]) -> None:
    """Raise ValueError if a parameter that both name is at another place in the saved groups.

    Other names do not matter, such as those prefixed by a wrapper of the model.
    """
    own, there = (
        {str(name): (which, at) for which, x in enumerate(given) for at, name in enumerate(_names(x))}
        for given in (groups, saved)
    )
    for name, place in there.items():
        if own.get(name, place) != place:
            raise ValueError(
                f"the state has {name!r} as parameter {place[1]} of group {place[0]}, and this optimizer as "
                f"parameter {own[name][1]} of group {own[name][0]}; give it parameters in the state's order"
            )


def _names(group: Mapping[str, Any]) -> Sequence[Any]:
    names = group.get("param_names")
    return names if isinstance(names, list | tuple) else ()


def step_count(step: Any) -> int:
    """Return a step count as an int; like torch's, it may be a float or a tensor with an integer value."""
    counted = number(step)
    if isinstance(counted, float) and counted.is_integer():
        counted = int(counted)
    if whole_number("step", counted, least=0) >= _COUNTS:
        raise ValueError(f"step = {counted} is no count of steps")
    return int(counted)


def described(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of a group that are saved otherwise than they are: as plain data, or as a text."""
    return {name: saved for name, x in group.items() if (saved := _saved(x)) is not x}


def restored(group: Mapping[str, Any], saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of a saved group, with those that were saved as their text taken from a group.

    Raises
    ------
    ValueError
        If the text is not that of the group's own entry.
    """
    found = dict(saved)
    for name in found.keys() - set(Settings._fields):
        if not _is_data(own := group.get(name)):
            if found[name] != repr(own):
                raise ValueError(f"it has {name} = {found[name]}, and this optimizer {own!r}")
            found[name] = own
    return found


def _saved(x: Any) -> Any:
    """Return an entry as it is saved: itself if that is plain, or what it holds as plain data, or a text."""
    return _plain(x) if _is_data(x) else repr(x)


def _is_data(x: Any) -> bool:
    """Return whether a state dict can hold what an entry holds."""
    if type(x) in (list, tuple):
        return all(map(_is_data, x))
    if type(x) is dict:
        return all(type(name) in _PLAIN for name in x) and all(map(_is_data, x.values()))
    if isinstance(x, np.generic | np.ndarray):
        return x.dtype.kind in "biufU" and x.dtype != np.longdouble  # of which no plain number is
    return x is None or isinstance(x, (torch.Tensor, *_PLAIN))


def _plain(x: Any) -> Any:
    """Return data of plain types; itself if it is of them."""
    if type(x) is dict:
        parts = {name: _plain(y) for name, y in x.items()}
        return x if all(y is x[name] for name, y in parts.items()) else parts
    if type(x) in (list, tuple):
        items = [_plain(y) for y in x]
        return x if all(y is z for y, z in zip(items, x, strict=True)) else type(x)(items)
    if isinstance(x, np.generic | np.ndarray):
        x = x.tolist()
    if x is None or type(x) is list or isinstance(x, torch.Tensor) or type(x) in _PLAIN:
        return x
    kind = next(kind for kind in (int, float, str) if isinstance(x, kind))
    return str(x) if kind is str else kind(x)
