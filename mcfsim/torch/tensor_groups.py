"""Numbers in groups as codes and shared numbers, on a tensor's device, by the line of a `GroupText`.

The codes and numbers are those of `mcfsim.compile.group_loops`.
"""

from __future__ import annotations

from functools import lru_cache

import torch

from mcfsim.compile.group_text import GroupText, Warps, halved
from mcfsim.torch.tensor_scales import TextCalls, text_calls


def encoded(text: GroupText, numbers: torch.Tensor, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the codes of a vector of float32 as uint8, and a row of shared numbers for each group.

    Groups have a size; the last one may be shorter.
    """
    calls, count = text_calls(text), numbers.numel()
    rows = torch.nn.functional.pad(numbers, (0, -count % size)).view(-1, size)
    given = [calls.measure([rows])[0].amax(1)]  # a magnitude of a zero is the least
    if text.warps is not None:
        given.append(_least(calls, rows.abs(), count, text.warps))
    shared = [x.expand(len(rows)) for x in calls.share(given)]
    made = calls.encode([rows, *(x[:, None] for x in shared)])[0].expand(rows.shape)
    if text.places is not None:
        bounds = _places_on(text, numbers.device)
        made = torch.where(made.isnan(), 0, torch.searchsorted(bounds, made.contiguous(), right=True))
    return made.to(torch.uint8).view(-1)[:count], torch.stack(shared, 1)


def decoded(text: GroupText, codes: torch.Tensor, shared: torch.Tensor, size: int) -> torch.Tensor:
    """Return the float32 numbers of a vector of codes, given a row of shared numbers for each group."""
    count = codes.numel()
    rows = torch.nn.functional.pad(codes, (0, -count % size)).view(-1, size).to(torch.int32)
    taken = rows if text.table is None else _table_on(text, codes.device)[rows]
    columns = shared.view(len(rows), -1).unbind(1)
    made = text_calls(text).decode([taken, *(x[:, None] for x in columns)])[0]
    return made.expand(rows.shape).reshape(-1)[:count]


def _least(calls: TextCalls, magnitudes: torch.Tensor, count: int, warps: Warps) -> torch.Tensor:
    """Return the least magnitude that threads find in each group; some have no element."""
    inside = torch.arange(magnitudes.numel(), device=magnitudes.device).view(magnitudes.shape) < count
    rows = torch.where(inside, magnitudes, warps.beyond)
    of_warps = _halved(calls, rows.view(len(rows), -1, warps.width))
    last = of_warps.new_full((len(rows), warps.width), warps.idle)
    last[:, : of_warps.shape[1]] = of_warps
    return _halved(calls, last)


def _halved(calls: TextCalls, x: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = halved(x, lambda *pair: calls.lesser(pair)[0])[..., 0]
    return found


@lru_cache(maxsize=32)
def _places_on(text: GroupText, device: torch.device) -> torch.Tensor:
    """Return the bounds between places on a device, copied there once."""
    return torch.from_numpy(text.places).to(device)


@lru_cache(maxsize=32)
def _table_on(text: GroupText, device: torch.device) -> torch.Tensor:
    """Return the numbers of a table on a device, copied there once."""
    return torch.from_numpy(text.table).to(device)
