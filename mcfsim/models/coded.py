"""Moments that lie in files as codes and scales, by a strategy that is known by its name."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.models.directions import Table
from mcfsim.optim.edges import Edges
from mcfsim.optim.groups import Groups
from mcfsim.optim.strategies import STRATEGIES
from mcfsim.storage.tensors import FileOfTensorsError


def decoded(
    path: Path,
    label: str,
    strategy: str | None,
    slot: str,
    codes: NDArray[Any],
    scales: NDArray[Any],
    shape: tuple[int, ...],
) -> Table:
    """Return what codes and scales of a moment stand for, as a vector in binary64.

    Parameters
    ----------
    path, label
        For errors: the file, and what it calls the moment.
    strategy : str or None
        The name of the one that they were stored by.
    slot : {"m", "v"}
        Which moment it is.
    codes, scales : array
        As `mcfsim.optim.groups.Groups` has them.
    shape : tuple of int
        Of the weight.

    Raises
    ------
    FileOfTensorsError
        If the strategy is not known, or stores no codes; or if they are others than it stores.
    """
    known = None if strategy is None else STRATEGIES.get(strategy)
    kept = None if known is None else known.tensors[slot]
    if kept is None or kept.scaled is None or kept.format is None:
        raise FileOfTensorsError(
            path, f"has {label} as codes and scales of strategy {strategy!r}, which has none that are known"
        )
    count = math.prod(shape)
    size = kept.scaled.block if isinstance(kept.scaled.block, int) else count
    edges = Edges([slice(0, count)], size)
    forms, shared = Groups.forms(kept.scaled), Groups.shared(kept.scaled)
    rows = (edges.count,) if shared == 1 else (edges.count, shared)
    if codes.shape != shape or scales.shape != rows or (codes.dtype, scales.dtype) != forms:
        raise FileOfTensorsError(
            path,
            f"{label} has codes of shape {codes.shape} and scales of shape {scales.shape}, and its weight "
            f"shape {shape}, of which {size} elements share a scale",
        )
    whole = Groups.whole(codes.reshape(-1), scales, kept.scaled, kept.format, edges)
    return whole.numbers().astype(np.float64)
