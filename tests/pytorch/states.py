"""States of optimizers as torch saves them, and damage of every sort to what is in them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.models.files import raw_safetensors
from tests.shared.mutations import NASTY

SHAPES: dict[str, tuple[int, ...]] = {"matrix": (5, 3), "bias": (3,), "gain": (), "other": (4, 2)}


def saved(path: Path, *, named: bool) -> dict[str, Any]:
    """Write the weights of a model; return what torch would save of its optimizer after two steps."""
    torch.manual_seed(0)
    params = {name: torch.nn.Parameter(torch.randn(shape)) for name, shape in SHAPES.items()}
    optimizer = torch.optim.AdamW(params.items() if named else params.values(), lr=1e-3)
    for _ in range(2):
        optimizer.zero_grad()
        sum((p**3).sum() for p in params.values()).backward()
        optimizer.step()
    raw_safetensors(path, {name: ("F32", p.detach().numpy()) for name, p in params.items()})
    return {"optimizer": optimizer.state_dict(), "epoch": 3}


def odd_tensors() -> list[torch.Tensor]:
    """Return tensors of every sort that a file may hold in another's place."""
    x = torch.arange(15.0).reshape(5, 3)
    return [
        *(x.double(), x.bfloat16(), x.to(torch.float8_e4m3fn), x.to(torch.complex64), x.int(), x > 3),
        *(x.t(), x.t().contiguous().t(), x[:1].expand(5, 3), x[0], x[0, 0], x[:0], x.to_sparse(), -x),
        *(x.to_sparse_csr(), x.to("meta"), x * float("nan"), x / 0, x * 1e300, torch.nn.Parameter(x)),
        *(
            torch.tensor(3),
            torch.tensor([3.0]),
            torch.tensor([3.0, 4.0]),
            torch.tensor(True),
            torch.tensor(1j),
        ),
        *(torch.tensor(float("inf")), torch.tensor(-1), torch.tensor(0), torch.tensor([[2]])),
        *(torch.nested.nested_tensor([x, x[0:2]]), torch.quantize_per_tensor(x, 0.1, 0, torch.quint8)),
    ]


#: Keys that a dictionary may have, too.
KEYS = (
    0,
    1,
    -1,
    None,
    True,
    2.5,
    (),
    (1, 2),
    "",
    "matrix",
    "exp_avg",
    "step",
    "state",
    "params",
    "optimizer",
)


def altered(data: Any, random: np.random.Generator, odd: list[torch.Tensor]) -> Any:
    """Return data with up to three entries put in others' place, left out, or added."""
    whole = _copied(data)
    for _ in range(int(random.integers(1, 4))):
        places = list(_places(whole))
        if not places:
            break
        parent, key = places[int(random.integers(len(places)))]
        pick = int(random.integers(len(NASTY) + len(odd)))
        value = _copied(NASTY[pick] if pick < len(NASTY) else odd[pick - len(NASTY)])
        match random.integers(6):
            case 0:
                del parent[key]
            case 1 if isinstance(parent, dict):
                parent[KEYS[int(random.integers(len(KEYS)))]] = value
            case 2:  # another entry of the same tree
                other, from_there = places[int(random.integers(len(places)))]
                parent[key] = _copied(other[from_there])
            case 3 if isinstance(parent, dict):
                parent[KEYS[int(random.integers(len(KEYS)))]] = parent.pop(key)
            case _:
                parent[key] = value
    return whole


def _copied(data: Any) -> Any:
    """Return new dictionaries and lists with the same in them."""
    if isinstance(data, dict):
        return {key: _copied(item) for key, item in data.items()}
    return [_copied(item) for item in data] if isinstance(data, list) else data


def _places(data: Any) -> Iterator[tuple[Any, Any]]:
    keys = list(data) if isinstance(data, dict) else range(len(data)) if isinstance(data, list) else ()
    for key in keys:
        yield data, key
        yield from _places(data[key])
