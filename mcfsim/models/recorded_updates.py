"""Recorded gradients, from which the updates follow that AdamW made, or would have made, of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mcfsim.models.directions import Directions, Steady, Table
from mcfsim.models.forecast import points_of
from mcfsim.models.recording import check_shapes, open_recording
from mcfsim.models.samples import TensorSample, places_of
from mcfsim.models.updates import Updates
from mcfsim.optim.adamw import AdamW
from mcfsim.training.schedule import Schedule


@dataclass(frozen=True, eq=False)
class Followed(Directions):
    """Directions that were recorded, at some steps, and how far all of them until there took each weight.

    Parameters
    ----------
    tables : mapping of int to array
        Directions, by step.
    paths : mapping of int to array
        The sum of ``rate * direction`` over the steps before one, by step.
    end : array
        The same over all steps that were recorded.
    last : int
        The number of these steps. What follows goes on with the last directions.
    beta1 : float
        Of the first moment.
    """

    tables: Mapping[int, Table]
    paths: Mapping[int, Table]
    end: Table
    last: int
    beta1: float

    def at(self, step: int) -> Table:
        """Return the directions of a step that was kept, or after the last one those of the last."""
        return self.tables[min(step, self.last)]

    def walk(self, first: int, rates: Table) -> tuple[Table, Table]:
        """Return the sum that was followed; after the last step it goes on as `Steady` does."""
        follows = first + len(rates)
        straight = self._before(follows) - self._before(first)
        beyond = rates[max(0, self.last + 1 - first) :]
        more, square = Steady(self.tables[self.last], self.beta1).walk(self.last + 1, beyond)
        return straight + more, square

    def _before(self, step: int) -> Table:
        return self.end if step > self.last else self.paths[step]


class Moments(NamedTuple):
    """What a step makes of recorded gradients, one row a tensor; the next step changes m and v in place."""

    gradient: Table
    m: Table
    v: Table
    direction: Table


@dataclass(frozen=True)
class RecordedUpdates(Updates):
    """Directions of AdamW by recorded gradients, step by step, each with the weight that it belongs to.

    Parameters
    ----------
    path : Path
        A directory as `mcfsim.record` and `mcfsim.torch.record` make it.
    """

    path: Path

    @property
    def words(self) -> str:
        """Where they come from."""
        return f"those of AdamW by the gradients recorded in {self.path.name}, each with its own weight"

    def directions(
        self, samples: Sequence[TensorSample], hyper: AdamW, schedule: Schedule, steps: int
    ) -> Directions:
        """Return them, with both moments in binary64 from the first recorded step on.

        Raises
        ------
        FileOfTensorsError
            If the recording cannot be used, or is of other tensors than the samples.
        """
        last = min(steps, len(open_recording(self.path).steps))
        kept = {*points_of(schedule, steps).tolist(), last}
        path = np.zeros((len(samples), samples[0].values.size))
        tables, paths = {}, {}
        for step, found in enumerate(self.follow(samples, hyper, last), start=1):
            if step in kept:
                tables[step], paths[step] = found.direction, path.copy()
            path += schedule.rate(step, steps) * found.direction
        return Followed(tables, paths, path, last, hyper.beta1)

    def follow(self, samples: Sequence[TensorSample], hyper: AdamW, steps: int) -> Iterator[Moments]:
        """Yield gradients, moments and directions, step by step, up to so many of those recorded.

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
            corrected = m / (1.0 - hyper.beta1**step), v / (1.0 - hyper.beta2**step)
            with np.errstate(divide="ignore", invalid="ignore"):
                direction = np.nan_to_num(corrected[0] / (np.sqrt(corrected[1]) + hyper.epsilon))
            yield Moments(g, m, v, direction)


def _rows(gradients: Mapping[str, Table], samples: Sequence[TensorSample]) -> Table:
    """Return the gradients of samples, one row a tensor."""
    return np.array(
        [gradients[item.name].ravel()[places_of(item.size, item.values.size)] for item in samples],
        dtype=np.float64,
    )
