"""What torch has saved of an optimizer's state, looked at entry by entry: anyone may have written it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar
from zipfile import ZIP_STORED, ZipFile

import numpy as np

from mcfsim.models.directions import Table
from mcfsim.models.samples import Sample, places_of
from mcfsim.models.weights import not_finite, refuse_not_finite
from mcfsim.storage.files import open_regular
from mcfsim.storage.tensors import FileOfTensorsError

_Kind = TypeVar("_Kind")

#: What torch calls the moments.
MOMENTS = ("exp_avg", "exp_avg_sq")
#: Elements that are looked at together, and characters of others' text that an error repeats.
_BLOCK, _SHOWN = 1 << 20, 120


def torch_moments(path: Path, samples: Sequence[Sample]) -> list[tuple[Table, Table, float]]:
    """Return the moments of a saved ``state_dict()`` at the places of samples, and how many steps were made.

    Raises
    ------
    FileOfTensorsError
        If it is no such file, is damaged, or holds anything but plain data; if it lacks the state of a
        tensor, or does not tell which is whose; or if a moment is not of the tensor's shape, or has a number
        that is NaN or infinite.
    ImportError
        If torch is not installed.
    OSError
        If it is not there or cannot be read.
    """
    saved = _loaded(path)
    try:
        states = _states(path, saved, samples)
        bad: dict[str, tuple[int, int]] = {}
        found = []
        for sample in samples:
            m, v = (_moment(path, states[sample.name], kind, sample, bad) for kind in MOMENTS)
            found.append((m, v, _step(path, states[sample.name], sample.name)))
    except FileOfTensorsError:
        raise
    except Exception as problem:  # whatever torch makes of tensors that anyone may have written
        raise FileOfTensorsError(path, f"is damaged: {_said(problem)}") from problem
    refuse_not_finite(path, bad)
    return found


def _loaded(path: Path) -> Any:
    """Return what torch finds in a file, whose checksums are right: torch does not look at them."""
    try:
        import torch
    except ImportError as problem:
        raise ImportError(f"{path} is read by torch: pip install 'mcfsim[torch]'") from problem
    with open_regular(path) as file:
        try:
            with ZipFile(file) as archive:
                if any(info.compress_type != ZIP_STORED for info in archive.infolist()):
                    raise ValueError("it is compressed, as torch compresses none")
                damaged = archive.testzip()
            if damaged is None:
                return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except Exception as problem:  # whatever zipfile and torch make of bytes that anyone may write
            what = f"is no file of torch's that holds tensors alone: {_said(problem)}"
            raise FileOfTensorsError(path, what) from problem
    raise FileOfTensorsError(path, f"is damaged: {damaged} has not its checksum, or was saved without")


def _states(path: Path, saved: Any, samples: Sequence[Sample]) -> Mapping[str, Mapping[Any, Any]]:
    """Return the state of each tensor, by name; without names by shape, if that is unequivocal."""
    for key in ("optimizer", "optimizer_state_dict"):
        if isinstance(saved, dict) and key in saved and "state" not in saved:
            saved = saved[key]
    if not isinstance(saved, dict) or not isinstance(states := saved.get("state"), dict):
        raise FileOfTensorsError(path, "holds no optimizer's state_dict(): it has no entry 'state'")
    named = _names(path, saved.get("param_groups", []))
    by_name: dict[Any, Mapping[Any, Any]] = {}
    for key, state in states.items():
        name = named.get(key, key)
        if name in by_name:
            raise FileOfTensorsError(path, f"has two states of tensor {_shown(name)}")
        by_name[name] = _as(path, dict, state, f"the state of {_shown(name)}")
    if all(sample.name in by_name for sample in samples):
        return by_name
    if any(isinstance(name, str) for name in by_name):
        lacking = next(sample.name for sample in samples if sample.name not in by_name)
        those = ", ".join(sorted(map(_shown, by_name))[:5])
        raise FileOfTensorsError(path, f"has no state of tensor {lacking!r}; it has {those}")
    shapes: dict[tuple[int, ...], list[Mapping[Any, Any]]] = {}
    for state in by_name.values():
        shapes.setdefault(tuple(getattr(state.get(MOMENTS[0]), "shape", ())), []).append(state)
    wanted = [sample.shape for sample in samples]
    if len(set(wanted)) < len(wanted) or any(len(shapes.get(shape, ())) != 1 for shape in wanted):
        raise FileOfTensorsError(
            path,
            "numbers its parameters, and shapes do not tell which is which; hand the optimizer names: "
            "torch.optim.AdamW(model.named_parameters())",
        )
    return {sample.name: shapes[sample.shape][0] for sample in samples}


def _names(path: Path, groups: Any) -> dict[Any, Any]:
    """Return the names of the parameters that groups number."""
    named: dict[Any, Any] = {}
    for place, item in enumerate(_as(path, list, groups, "'param_groups'")):
        group = _as(path, dict, item, f"group {place}")
        if group.get("param_names") is None:
            continue
        lists = [
            _as(path, list, group.get(key), f"{key!r} of group {place}") for key in ("params", "param_names")
        ]
        numbers, names = lists
        if len(numbers) != len(names):
            raise FileOfTensorsError(
                path, f"group {place} has {len(numbers)} parameters and {len(names)} names of them"
            )
        for number, name in zip(numbers, names, strict=True):
            if not isinstance(number, int | str):
                _as(path, int, number, f"a parameter of group {place}")
            if named.setdefault(number, _as(path, str, name, f"a name of group {place}")) != name:
                raise FileOfTensorsError(path, f"has two names of parameter {number}")
    return named


def _moment(
    path: Path, state: Mapping[Any, Any], kind: str, sample: Sample, bad: dict[str, tuple[int, int]]
) -> Table:
    """Return a moment at the places of a sample in binary64, and note how many numbers are not finite."""
    import torch

    x, label = state.get(kind), f"{kind} of {sample.name!r}"
    if not isinstance(x, torch.Tensor):
        raise FileOfTensorsError(path, f"{label} is no tensor: {_shown(x)}")
    plain = x.layout == torch.strided and x.device.type == "cpu" and not (x.is_nested or x.is_quantized)
    if not (plain and x.is_floating_point()):
        raise FileOfTensorsError(path, f"{label} has no floating numbers as they are: it is of {x.dtype}")
    if tuple(x.shape) != sample.shape:
        raise FileOfTensorsError(path, f"{label} has shape {tuple(x.shape)}, and its weight {sample.shape}")
    flat = x.detach().reshape(-1)
    counts = [not_finite(_numbers(part)) for part in flat.split(_BLOCK)]
    bad[f"{sample.name}.{kind}"] = sum(nans for nans, _ in counts), sum(inf for _, inf in counts)
    return _numbers(flat[torch.from_numpy(places_of(sample.size, sample.values.size))])


def _step(path: Path, state: Mapping[Any, Any], name: str) -> float:
    """Return how many steps were made, which must be a whole number."""
    import torch

    step = state.get("step")
    if isinstance(step, torch.Tensor) and step.numel() == 1:
        step = step.item()
    if isinstance(step, bool) or not isinstance(step, int | float):
        raise FileOfTensorsError(path, f"does not say how many steps were made of {name!r}: {_shown(step)}")
    return check_steps(path, step)


def check_steps(path: Path, step: float) -> float:
    """Return a number of steps; raise FileOfTensorsError unless it is one from 1 on that binary64 holds."""
    if not 1 <= step < 2**53 or step != int(step):
        raise FileOfTensorsError(
            path,
            f"says that {_shown(step)} steps were made; at least one must have been, and a whole number",
        )
    return float(step)


def _numbers(x: Any) -> Table:
    """Return elements of a tensor in binary64."""
    import torch

    return np.asarray(x.to(torch.float64).numpy())


def _as(path: Path, kind: type[_Kind], item: Any, label: str) -> _Kind:
    """Return an entry that must be of a type."""
    if not isinstance(item, kind):
        raise FileOfTensorsError(
            path, f"holds no optimizer's state_dict(): {label} is no {kind.__name__}: {_shown(item)}"
        )
    return item


def _shown(item: Any) -> str:
    """Return what an entry looks like, in short and on one line."""
    text = repr(item) if isinstance(item, str | int | float | bool | tuple | None) else type(item).__name__
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _said(problem: Exception) -> str:
    lines = str(problem).splitlines()
    return lines[0] if lines else type(problem).__name__
