"""An optimizer's saved state, from which the updates follow that it would make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mcfsim.models.coded import decoded
from mcfsim.models.directions import Directions, Steady, Table
from mcfsim.models.samples import TensorSample, elements_at, places_of
from mcfsim.models.torch_state import MOMENTS, check_steps, torch_moments
from mcfsim.models.updates import Updates
from mcfsim.models.weights import FORMAT_OF, Weight, not_finite, open_tensors, refuse_not_finite
from mcfsim.optim.adamw import AdamW
from mcfsim.optim.strategy import SLOTS
from mcfsim.storage.sealed import STATE
from mcfsim.storage.shards import read_metadata
from mcfsim.storage.tensors import FileOfTensorsError
from mcfsim.training.schedule import Schedule

#: What tensors of an optimizer's state are called after the parameter's name: by torch, and in short.
_MOMENTS = (MOMENTS, ("m", "v"))


@dataclass(frozen=True)
class SavedState(Updates):
    """Directions of AdamW as its saved moments give them, each with the weight that it belongs to.

    Parameters
    ----------
    path : Path
        A safetensors file, a folder of them or an ``.npz`` with tensors ``NAME.exp_avg`` and
        ``NAME.exp_avg_sq`` (or ``NAME.m``, ``NAME.v``) and the steps that were made, ``step`` or
        ``NAME.step``; or what torch has saved of a ``state_dict()`` of its AdamW or of that of
        `mcfsim.torch`, which is loaded with ``weights_only=True``.
    """

    path: Path

    @property
    def words(self) -> str:
        """Where they come from."""
        return f"directions by the optimizer's state in {self.path.name}, each with its own weight"

    def directions(
        self, samples: Sequence[TensorSample], hyper: AdamW, schedule: Schedule, steps: int
    ) -> Directions:
        """Return ``mhat / (sqrt(vhat) + eps)`` in binary64, at the places of the samples."""
        if self.path.suffix.lower() in (".pt", ".pth", ".bin"):
            moments = torch_moments(self.path, samples)
        else:
            moments = _by_tensors(self.path, samples)
        rows = []
        for m, v, step in moments:
            if (v < 0).any():
                raise FileOfTensorsError(self.path, "has a negative second moment")
            corrected = m / (1.0 - hyper.beta1**step), v / (1.0 - hyper.beta2**step)
            with np.errstate(divide="ignore", invalid="ignore"):
                direction = corrected[0] / (np.sqrt(corrected[1]) + hyper.epsilon)
            rows.append(np.nan_to_num(direction, nan=0.0))  # 0 / 0, where eps is 0: no gradient ever came
        return Steady(np.array(rows), hyper.beta1)


def _by_tensors(path: Path, samples: Sequence[TensorSample]) -> list[tuple[Table, Table, float]]:
    """Return the moments at the places of samples, and how many steps were made."""
    tensors = open_tensors(path)
    kinds = next((pair for pair in _MOMENTS if f"{samples[0].name}.{pair[0]}" in tensors), _MOMENTS[0])
    about = read_metadata(path) if path.suffix.lower() != ".npz" else {}
    own = about.get("format") == STATE
    bad: dict[str, tuple[int, int]] = {}

    def read(sample: TensorSample, kind: str, slot: str) -> Table:
        label = f"{sample.name}.{kind}"
        if f"{label}.codes" in tensors and f"{label}.scales" in tensors:
            codes, scales = (tensors[f"{label}.{part}"] for part in ("codes", "scales"))
            given = codes.read().reshape(codes.shape), scales.read().reshape(scales.shape)
            numbers = decoded(path, repr(label), about.get("strategy"), slot, *given, sample.shape)
            bad[label] = not_finite(numbers)
            return numbers[places_of(sample.size, sample.values.size)]
        total, following = component(sample, label), 1
        while own and (label := f"{sample.name}.{slot}{following}") in tensors:
            total = total + component(sample, label)
            following += 1
        return total

    def component(sample: TensorSample, label: str) -> Table:
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

    def made(sample: TensorSample) -> float:
        label = f"{sample.name}.step" if f"{sample.name}.step" in tensors else "step"
        if label not in tensors or tensors[label].size != 1:
            raise FileOfTensorsError(
                path, f"does not say how many steps were made: it has no tensor {label!r} of one number"
            )
        stored = tensors[label]
        number = Weight(stored).read() if stored.dtype in FORMAT_OF else stored.read()
        return check_steps(path, float(number[0]))

    pairs = list(zip(kinds, SLOTS, strict=True))
    found = []
    for sample in samples:
        m, v = (read(sample, kind, slot) for kind, slot in pairs)
        found.append((m, v, made(sample)))
    refuse_not_finite(path, bad)
    return found
