"""Entries of parameter groups as state dicts hold them: plain data, and texts of all else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from mcfsim.torch.group import Settings

#: What a state dict holds as it is; PyTorch reads no others with ``weights_only=True``.
_PLAIN = (bool, int, float, str)


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
    if isinstance(x, np.generic):
        return isinstance(x.item(), _PLAIN)
    return x is None or isinstance(x, (torch.Tensor, *_PLAIN))


def _plain(x: Any) -> Any:
    """Return data of plain types; itself if it is of them."""
    if type(x) is dict:
        parts = {name: _plain(y) for name, y in x.items()}
        return x if all(y is x[name] for name, y in parts.items()) else parts
    if type(x) in (list, tuple):
        items = [_plain(y) for y in x]
        return x if all(y is z for y, z in zip(items, x, strict=True)) else type(x)(items)
    if isinstance(x, np.generic):
        x = x.item()
    if x is None or isinstance(x, torch.Tensor) or type(x) in _PLAIN:
        return x
    kind = next(kind for kind in (int, float, str) if isinstance(x, kind))
    return str(x) if kind is str else kind(x)
