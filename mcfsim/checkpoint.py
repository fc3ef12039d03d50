"""Checkpoints of a simulation: everything that the next step depends on, and the series so far."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.lane import Lane
from mcfsim.reals import to_fraction
from mcfsim.run import Run, read_arrays, write_arrays

FORMAT = "mcfsim-checkpoint-1"


def save_checkpoint(path: str | os.PathLike[str], run: Run, lanes: Mapping[str, Lane], step: int) -> None:
    """Write the state after a step, replacing an older checkpoint at once."""
    arrays: dict[str, NDArray[Any]] = {}
    for name, lane in lanes.items():
        for key, array in _states(lane).items():
            arrays[f"{name}|{key}"] = _pack(array)
        for measure, numbers in lane.series.items():
            arrays[f"{name}|series|{measure}"] = np.array(numbers)
    about = {"format": FORMAT, "settings": run.settings, "versions": run.versions, "step": step}
    write_arrays(path, about, arrays)


def load_checkpoint(path: str | os.PathLike[str], run: Run, lanes: Mapping[str, Lane]) -> int:
    """Put a checkpoint's state into the lanes and return its step; 0 if there is no file.

    Raises
    ------
    ValueError
        If the file is of another run, or of other versions, whose bits might differ.
    """
    if not Path(path).exists():
        return 0
    about, arrays = read_arrays(path)
    if about.get("format") != FORMAT:
        raise ValueError(f"{os.fspath(path)} is no checkpoint of a simulation")
    for part, ours in (("settings", run.settings), ("versions", run.versions)):
        theirs = about[part]
        if differing := sorted(key for key in {*ours, *theirs} if _plain(ours.get(key)) != theirs.get(key)):
            raise ValueError(
                f"checkpoint {os.fspath(path)} is of another run: {part} differ in {', '.join(differing)}; "
                "remove it or choose another path"
            )
    for name, lane in lanes.items():
        for key, array in _states(lane).items():
            array[...] = _unpack(arrays[f"{name}|{key}"], array, lane)
        lane.optimizer.count = int(about["step"])
        prefix = f"{name}|series|"
        lane.series = {
            key.removeprefix(prefix): array.tolist()
            for key, array in arrays.items()
            if key.startswith(prefix)
        }
    return int(about["step"])


def _states(lane: Lane) -> dict[str, NDArray[Any]]:
    """Every array that the next step reads, by a name; filled in place on loading."""
    named: dict[str, NDArray[Any]] = {}
    for field, components in lane.optimizer.state._asdict().items():
        named |= {f"{field}{i}": array for i, array in enumerate(components)}
    averages = {f"average{i}": array for i, array in enumerate(lane.averages)}
    return named | averages | {"diverged_at": lane.diverged_at}


def _pack(array: NDArray[Any]) -> NDArray[Any]:
    """Return a plain array: exact numbers become the text of a fraction."""
    if array.dtype != object:
        return array
    return np.array([str(to_fraction(number)) for number in array])


def _unpack(packed: NDArray[Any], like: NDArray[Any], lane: Lane) -> NDArray[Any]:
    if like.dtype != object:
        return packed
    exact: NDArray[Any] = lane.optimizer.roles.moments.round(
        np.array([Fraction(str(text)) for text in packed])
    )
    return exact


def _plain(value: Any) -> Any:
    """Return what JSON makes of a value."""
    return json.loads(json.dumps(value))
