"""The samples of a whole model, kept in a file from which an interrupted reading goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mcfsim.models.samples import TensorSample, read_sample
from mcfsim.models.weights import Weights, refuse_not_finite
from mcfsim.storage.archive import Forms, read_archive, write_archive
from mcfsim.storage.files import Pathlike

_KIND = "samples of weights"


def scan(
    weights: Weights,
    samples: int,
    kept: Pathlike | None = None,
    told: Callable[[str, int, bool], None] | None = None,
) -> list[TensorSample]:
    """Read all tensors of a model, each element once, and return their samples.

    Parameters
    ----------
    weights : Weights
        The model.
    samples : int
        Elements taken of each tensor.
    kept : path, optional
        What has been read is saved here at the end, and when KeyboardInterrupt (Ctrl-C) or an error of a
        file ends it; if the file is there, tensors that are in it are not read again.
    told : callable, optional
        Gets a tensor's name, how many of its elements have been read since the last call, and whether they
        were read earlier.

    Raises
    ------
    FileOfTensorsError
        If a tensor cannot be read; or after all were read, if there are NaNs or infinities: by tensor and
        count.
    ValueError
        If the file is of other weights, or of other samples, or damaged.
    """
    found: dict[str, TensorSample] = {}
    bad: dict[str, tuple[int, int]] = {}
    if kept is not None and Path(kept).exists():
        found, bad = _load(kept, weights, samples)
    try:
        for name, weight in weights.items():
            if name in found:
                if told is not None:
                    told(name, weight.size, True)
                continue
            sample, counts = read_sample(weight, samples, lambda n, name=name: told and told(name, n, False))  # type: ignore[misc]
            found[name], bad[name] = sample, counts
    finally:
        if kept is not None:
            _save(kept, weights, samples, found, bad)
    refuse_not_finite(weights.path, bad)
    return [found[name] for name in weights]


def _about(weights: Weights, samples: int) -> dict[str, Any]:
    """Return what samples are a function of: the files as they lie there."""
    files = sorted({weight.stored.path for weight in weights.values()})
    stats = [(file.name, file.stat()) for file in files]
    return {
        "kind": _KIND,
        "samples": samples,
        "files": [[name, about.st_size, about.st_mtime_ns] for name, about in stats],
        "tensors": [[name, list(weight.shape), str(weight.format)] for name, weight in weights.items()],
    }


def _save(
    path: Pathlike,
    weights: Weights,
    samples: int,
    found: Mapping[str, TensorSample],
    bad: Mapping[str, tuple[int, int]],
) -> None:
    arrays = {
        "values": np.array([found[name].values for name in found]).reshape(len(found), samples),
        "rms": np.array([found[name].rms for name in found], dtype=np.float64),
        "zeros": np.array([found[name].zeros for name in found], dtype=np.float64),
        "bad": np.array([bad[name] for name in found], dtype=np.int64).reshape(len(found), 2),
    }
    write_archive(path, {**_about(weights, samples), "read": list(found)}, arrays)


def _load(
    path: Pathlike, weights: Weights, samples: int
) -> tuple[dict[str, TensorSample], dict[str, tuple[int, int]]]:
    """Return what was saved; refuse what is of other files."""
    wanted = _about(weights, samples)

    def check(about: dict[str, Any], forms: Forms) -> None:
        if about.get("kind") != _KIND:
            raise ValueError("holds no samples of weights")
        for label, said in wanted.items():
            if about.get(label) != said:
                raise ValueError(
                    f"is of other weights or samples: {label} differ; name another file, or remove it"
                )
        read = about.get("read")
        if not isinstance(read, list) or not set(map(str, read)) <= set(weights):
            raise ValueError("has read other tensors than there are")
        count = len(read)
        shapes = {"values": (count, samples), "rms": (count,), "zeros": (count,), "bad": (count, 2)}
        if {name: form.shape for name, form in forms.items()} != shapes:
            raise ValueError("holds other arrays than samples of weights")

    about, arrays = read_archive(path, check)
    found, bad = {}, {}
    for row, name in enumerate(about["read"]):
        weight = weights[name]
        numbers = float(arrays["rms"][row]), float(arrays["zeros"][row])
        found[name] = TensorSample(name, weight.shape, str(weight.format), arrays["values"][row], *numbers)
        bad[name] = int(arrays["bad"][row, 0]), int(arrays["bad"][row, 1])
    return found, bad
