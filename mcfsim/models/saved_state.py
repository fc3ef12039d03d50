"""An optimizer's saved state, from which the updates follow that it would make."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mcfsim.models.directions import Directions, Steady, Table
from mcfsim.models.samples import Sample, elements_at, places_of
from mcfsim.models.updates import Updates
from mcfsim.models.weights import FORMAT_OF, Weight, open_tensors, refuse_not_finite
from mcfsim.optim.adamw import AdamW
from mcfsim.storage.files import Pathlike, open_regular
from mcfsim.storage.tensors import FileOfTensorsError
from mcfsim.training.schedule import Schedule

#: What tensors of an optimizer's state are called after the parameter's name: by torch, and in short.
_MOMENTS = (("exp_avg", "exp_avg_sq"), ("m", "v"))


@dataclass(frozen=True)
class SavedState(Updates):
    """Directions of AdamW as its saved moments give them, each with the weight that it belongs to.

    Parameters
    ----------
    path : Path
        A safetensors file, a folder of them or an ``.npz`` with tensors ``NAME.exp_avg`` and
        ``NAME.exp_avg_sq`` (or ``NAME.m``, ``NAME.v``) and the steps that were made, ``step`` or
        ``NAME.step``; or what torch has saved of an optimizer's ``state_dict()``, which is loaded with
        ``weights_only=True``.
    """

    path: Path

    @property
    def words(self) -> str:
        """Where they come from."""
        return f"directions by the optimizer's state in {self.path.name}, each with its own weight"

    def directions(
        self, samples: Sequence[Sample], hyper: AdamW, schedule: Schedule, steps: int
    ) -> Directions:
        """Return ``mhat / (sqrt(vhat) + eps)`` in binary64, at the places of the samples."""
        if self.path.suffix.lower() in (".pt", ".pth", ".bin"):
            moments = _by_torch(self.path, samples)
        else:
            moments = _by_tensors(self.path, samples)
        rows = []
        for m, v, step in moments:
            if (v < 0).any():
                raise FileOfTensorsError(self.path, "has a negative second moment")
            corrected = m / (1.0 - hyper.beta1**step), v / (1.0 - hyper.beta2**step)
            with np.errstate(invalid="ignore"):
                direction = corrected[0] / (np.sqrt(corrected[1]) + hyper.epsilon)
            rows.append(np.nan_to_num(direction, nan=0.0))  # 0 / 0, where eps is 0: no gradient ever came
        return Steady(np.array(rows), hyper.beta1)


def _by_tensors(path: Path, samples: Sequence[Sample]) -> list[tuple[Table, Table, float]]:
    """Return the moments at the places of samples, and how many steps were made."""
    tensors = open_tensors(path)
    kinds = next((pair for pair in _MOMENTS if f"{samples[0].name}.{pair[0]}" in tensors), _MOMENTS[0])
    bad: dict[str, tuple[int, int]] = {}

    def read(sample: Sample, kind: str) -> Table:
        label = f"{sample.name}.{kind}"
        if f"{label}.codes" in tensors:
            raise FileOfTensorsError(
                path, f"has {label!r} as codes that share scales; save the state of an optimizer not packed"
            )
        if label not in tensors:
            raise FileOfTensorsError(path, f"has no tensor {label!r}")
        stored = tensors[label]
        if stored.shape != sample.shape:
            raise FileOfTensorsError(
                path, f"{label!r} has shape {stored.shape}, and its weight {sample.shape}"
            )
        if stored.dtype not in FORMAT_OF:
            raise FileOfTensorsError(path, f"{label!r} is of dtype {stored.dtype}, and no floating numbers")
        values, bad[label] = elements_at(Weight(stored), sample.values.size)
        return values

    def made(sample: Sample) -> float:
        label = f"{sample.name}.step" if f"{sample.name}.step" in tensors else "step"
        if label not in tensors or tensors[label].size != 1:
            raise FileOfTensorsError(
                path, f"does not say how many steps were made: it has no tensor {label!r} of one number"
            )
        stored = tensors[label]
        number = Weight(stored).read() if stored.dtype in FORMAT_OF else stored.read()
        return _steps(path, float(number[0]))

    found = [(read(sample, kinds[0]), read(sample, kinds[1]), made(sample)) for sample in samples]
    refuse_not_finite(path, bad)
    return found


def _by_torch(path: Path, samples: Sequence[Sample]) -> list[tuple[Table, Table, float]]:
    """Return the same of what torch has saved."""
    try:
        import torch
    except ImportError as problem:
        raise ImportError(f"{path} is read by torch: pip install 'mcfsim[torch]'") from problem
    with open_regular(path):
        pass  # refuses what is no file
    try:
        saved = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as problem:  # whatever torch makes of bytes that anyone may write
        what = str(problem).splitlines()[0] if str(problem) else type(problem).__name__
        raise FileOfTensorsError(path, f"is no file of torch's that holds tensors alone: {what}") from problem
    states = _states(path, saved, samples)
    found, bad = [], {}
    for sample in samples:
        state = states[sample.name]
        pair: list[Table] = []
        for kind in _MOMENTS[0]:
            x = state.get(kind)
            if not isinstance(x, torch.Tensor) or tuple(x.shape) != sample.shape or not x.is_floating_point():
                shape = tuple(x.shape) if isinstance(x, torch.Tensor) else None
                raise FileOfTensorsError(
                    path, f"{kind} of {sample.name!r} has shape {shape}, and its weight {sample.shape}"
                )
            flat = x.reshape(-1)
            bad[f"{sample.name}.{kind}"] = int(flat.isnan().sum()), int(flat.isinf().sum())
            places = torch.from_numpy(places_of(sample.size, sample.values.size))
            pair.append(flat[places].to(torch.float64).numpy())
        found.append((pair[0], pair[1], _steps(path, float(state.get("step", math.nan)))))
    refuse_not_finite(path, bad)
    return found


def _states(path: Path, saved: Any, samples: Sequence[Sample]) -> Mapping[str, Mapping[str, Any]]:
    """Return the state of each tensor, by name; without names by shape, if that is unequivocal."""
    for key in ("optimizer", "optimizer_state_dict"):
        if isinstance(saved, dict) and key in saved and "state" not in saved:
            saved = saved[key]
    if not isinstance(saved, dict) or not isinstance(states := saved.get("state"), dict):
        raise FileOfTensorsError(path, "holds no optimizer's state_dict(): it has no entry 'state'")
    named: dict[Any, Any] = {}
    for group in saved.get("param_groups", ()):
        named |= dict(zip(group.get("params", ()), group.get("param_names", ()), strict=False))
    by_name: dict[Any, Mapping[str, Any]] = {
        named.get(key, key): state for key, state in states.items() if isinstance(state, dict)
    }
    if all(sample.name in by_name for sample in samples):
        return by_name
    if any(isinstance(name, str) for name in by_name):
        lacking = next(sample.name for sample in samples if sample.name not in by_name)
        raise FileOfTensorsError(
            path, f"has no state of tensor {lacking!r}; it has {sorted(map(str, by_name))[:5]}"
        )
    shapes: dict[tuple[int, ...], list[Any]] = {}
    for state in by_name.values():
        shapes.setdefault(tuple(np.shape(state.get("exp_avg", ()))), []).append(state)
    wanted = [sample.shape for sample in samples]
    if len(set(wanted)) < len(wanted) or any(len(shapes.get(shape, ())) != 1 for shape in wanted):
        raise FileOfTensorsError(
            path,
            "numbers its parameters, and shapes do not tell which is which; hand the optimizer names: "
            "torch.optim.AdamW(model.named_parameters())",
        )
    return {sample.name: shapes[sample.shape][0] for sample in samples}


def _steps(path: Pathlike, step: float) -> float:
    if not (math.isfinite(step) and step >= 1):
        raise FileOfTensorsError(path, f"says that {step} steps were made; at least one must have been")
    return step
