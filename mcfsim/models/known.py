"""Updates known from a user's data: from recorded gradients, or from an optimizer's saved state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import count, takewhile
from operator import add
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mcfsim.models.forecast import points_of
from mcfsim.models.plan import Directions, MuonModel, NoiseModel, Plan, Steady, Table, Updates
from mcfsim.models.recording import check_shapes, open_recording
from mcfsim.models.samples import TensorSample, elements_at, places_of
from mcfsim.models.saving import decoded
from mcfsim.models.torch_state import MOMENTS, check_steps, torch_moments
from mcfsim.models.weights import FORMAT_OF, Counts, Weight, metadata_of, open_tensors, refuse_not_finite
from mcfsim.optim.adamw import AdamW
from mcfsim.optim.muon import Muon
from mcfsim.optim.strategy import SLOTS
from mcfsim.storage.files import Pathlike
from mcfsim.storage.sealed import STATE
from mcfsim.storage.tensors import FileOfTensorsError


# -- recorded gradients -----------------------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class Followed(Directions):
    """Recorded directions at some steps, and how far all directions before took each weight.

    Parameters
    ----------
    tables : mapping of int to array
        Directions, by step.
    paths : mapping of int to array
        The sum of ``rate * direction`` over all earlier steps, by step.
    end : array
        The same sum over all recorded steps.
    last : int
        The number of recorded steps. Later steps repeat the last directions.
    beta1 : float
        Decay rate of the first moment.
    """

    tables: Mapping[int, Table]
    paths: Mapping[int, Table]
    end: Table
    last: int
    beta1: float

    def at(self, step: int) -> Table:
        """Return the directions of a kept step; after the last step, return those of the last."""
        return self.tables[min(step, self.last)]

    def walk(self, first: int, rates: Table) -> tuple[Table, Table]:
        """Return the recorded sum; after the last step, continue it as `Steady` does."""
        follows = first + len(rates)
        straight = self._before(follows) - self._before(first)
        beyond = rates[max(0, self.last + 1 - first) :]
        more, square = Steady(self.tables[self.last], self.beta1).walk(self.last + 1, beyond)
        return straight + more, square

    def _before(self, step: int) -> Table:
        return self.end if step > self.last else self.paths[step]


class Moments(NamedTuple):
    """Gradients, moments and directions of a step, a row per tensor; the next step overwrites m and v."""

    gradient: Table
    m: Table
    v: Table
    direction: Table


@dataclass(frozen=True)
class RecordedUpdates(Updates):
    """Directions of AdamW from recorded gradients, step by step, each paired with its own weight.

    Parameters
    ----------
    path : Path
        A directory that `mcfsim.record` or `mcfsim.torch.record` made.
    """

    path: Path

    @property
    def words(self) -> str:
        """The source of the directions, in words for a report."""
        return f"those of AdamW by the gradients recorded in {self.path.name}, each with its own weight"

    def directions(self, samples: Sequence[TensorSample], plan: Plan) -> Directions:
        """Return the directions, with both moments in binary64 from the first recorded step on.

        Raises
        ------
        FileOfTensorsError
            If the recording cannot be used, or is of other tensors than the samples.
        """
        last = min(plan.steps, len(open_recording(self.path).steps))
        kept = {*points_of(plan.schedule, plan.steps).tolist(), last}
        path = np.zeros((len(samples), samples[0].values.size))
        tables, paths = {}, {}
        for step, found in enumerate(self.follow(samples, plan.hyper, last), start=1):
            if step in kept:
                tables[step], paths[step] = found.direction, path.copy()
            path += plan.schedule.rate(step, plan.steps) * found.direction
        return Followed(tables, paths, path, last, plan.hyper.beta1)

    def follow(self, samples: Sequence[TensorSample], hyper: AdamW, steps: int) -> Iterator[Moments]:
        """Yield gradients, moments and directions of the first `steps` recorded steps.

        Raises
        ------
        FileOfTensorsError
            If the recording cannot be used, or is of other tensors than the samples.
        """
        recording = open_recording(self.path)
        shapes = {sample.name: sample.shape for sample in samples}
        check_shapes(self.path, shapes, recording.steps[0].shapes, "the model")
        m, v = np.zeros((2, len(samples), samples[0].values.size))
        for step, recorded in enumerate(recording.steps[:steps], start=1):
            g = _rows(recorded.read(), samples)
            m += (1.0 - hyper.beta1) * (g - m)
            v += (1.0 - hyper.beta2) * (g * g - v)
            yield Moments(g, m, v, _direction(m, v, step, hyper))


def _direction(m: Table, v: Table, step: float, hyper: AdamW) -> Table:
    """Return the direction of Adam's step from its moments; 0 for 0 / 0, where no gradient ever came."""
    corrected = m / (1.0 - hyper.beta1**step), v / (1.0 - hyper.beta2**step)
    with np.errstate(divide="ignore", invalid="ignore"):
        found: Table = np.nan_to_num(corrected[0] / (np.sqrt(corrected[1]) + hyper.epsilon))
    return found


def _rows(gradients: Mapping[str, Table], samples: Sequence[TensorSample]) -> Table:
    """Return the gradients at the places of samples, one row per tensor."""
    return np.array(
        [gradients[item.name].ravel()[places_of(item.size, item.values.size)] for item in samples],
        dtype=np.float64,
    )


# -- a saved state ----------------------------------------------------------------------------------------
@dataclass(frozen=True)
class SavedState(Updates):
    """Directions of AdamW from its saved moments, each paired with its own weight.

    Parameters
    ----------
    path : Path
        A safetensors file, a folder of them or an ``.npz`` with tensors ``NAME.exp_avg`` and
        ``NAME.exp_avg_sq`` (or ``NAME.m``, ``NAME.v``) and the number of steps made, ``step`` or
        ``NAME.step``; or a ``state_dict()`` that torch saved, of its own AdamW or that of `mcfsim.torch`,
        which is loaded with ``weights_only=True``.
    """

    path: Path

    @property
    def words(self) -> str:
        """The source of the directions, in words for a report."""
        return f"directions by the optimizer's state in {self.path.name}, each with its own weight"

    def directions(self, samples: Sequence[TensorSample], plan: Plan) -> Directions:
        """Return ``mhat / (sqrt(vhat) + eps)`` in binary64, at the places of the samples."""
        if self.path.suffix.lower() in (".pt", ".pth", ".bin"):
            moments = torch_moments(self.path, samples)
        else:
            moments = _by_tensors(self.path, samples)
        rows = []
        for m, v, step in moments:
            if (v < 0).any():
                raise FileOfTensorsError(self.path, "has a negative second moment")
            rows.append(_direction(m, v, step, plan.hyper))
        return Steady(np.array(rows), plan.hyper.beta1)


def _by_tensors(path: Path, samples: Sequence[TensorSample]) -> list[tuple[Table, Table, float]]:
    """Return the moments at the places of samples, and the number of steps made."""
    tensors = open_tensors(path)
    # Names of moments end in torch's names, or in short ones.
    kinds = next((pair for pair in (MOMENTS, SLOTS) if f"{samples[0].name}.{pair[0]}" in tensors), MOMENTS)
    about = metadata_of(path)
    own = about.get("format") == STATE
    bad: dict[str, Counts] = {}

    def read(sample: TensorSample, kind: str, slot: str) -> Table:
        label = f"{sample.name}.{kind}"
        if f"{label}.codes" in tensors and f"{label}.scales" in tensors:
            codes, scales = (tensors[f"{label}.{part}"] for part in ("codes", "scales"))
            given = codes.read().reshape(codes.shape), scales.read().reshape(scales.shape)
            moment, bad[label] = decoded(path, repr(label), about.get("strategy"), slot, *given, sample)
            return moment
        others = takewhile(tensors.__contains__, (f"{sample.name}.{slot}{place}" for place in count(1)))
        return reduce(add, (component(sample, one) for one in (label, *(others if own else ()))))

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


# -- either -----------------------------------------------------------------------------------------------
def updates_of(
    rms: float | None = None,
    state: Pathlike | None = None,
    gradients: Pathlike | None = None,
    muon: Muon | None = None,
) -> Updates:
    """Return the model of the updates from the one source given, or by default the model of noise.

    Parameters
    ----------
    rms : float, optional
        Size of the updates, see `NoiseModel`.
    state : path, optional
        An optimizer's saved state, see `SavedState`.
    gradients : path, optional
        A directory of recorded gradients, see `RecordedUpdates`.
    muon : Muon, optional
        Muon, whose updates follow from shapes, see `mcfsim.models.plan.MuonModel`.

    Raises
    ------
    ValueError
        If several sources are given.
    """
    given = {"their size": rms, "a state": state, "gradients": gradients, "Muon": muon}
    if len(several := [label for label, item in given.items() if item is not None]) > 1:
        raise ValueError(f"updates come from one source, not from {' and '.join(several)}; give one of them")
    if muon is not None:
        return MuonModel(muon)
    if state is not None:
        return SavedState(Path(state))
    return NoiseModel(rms) if gradients is None else RecordedUpdates(Path(gradients))
