"""What an audit finds for a tensor: the tensor, and the findings under each strategy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from mcfsim.models.kinds import TensorKind


@dataclass(frozen=True)
class TensorFinding:
    """The findings for one tensor under one strategy.

    Parameters
    ----------
    lost : float
        Share of its elements whose updates do nothing, averaged over the run with each step weighted by its
        rate; NaN if nothing is asked.
    edq : float
        Normalised effective descent quality <D, E> / <D, D>, averaged in the same way: 1 if all arrives.
    at_first : float
        Share of its elements that the first update leaves unchanged, at the largest rate; NaN if nothing is
        asked.
    stops : int or None
        The first step from which less than `Plan.stopped` of each update arrives until the end.
    idle : float or None
        Share of its weights that decay alone does not move at the largest rate; None without decay.
    beyond : int or None
        The first step at which its weights are out of the format's range; later steps have no EDQ.
    changed : float
        Share of its codes that a step changes, averaged over the steps.
    bytes : float
        Bytes stored for it.
    lost_by_step, edq_by_step : tuple of float
        The same at each of `Audit.steps`.
    """

    lost: float
    edq: float
    at_first: float
    stops: int | None
    idle: float | None
    beyond: int | None
    changed: float
    bytes: float
    lost_by_step: tuple[float, ...]
    edq_by_step: tuple[float, ...]


@dataclass(frozen=True)
class AuditedTensor:
    """One tensor and the findings for it.

    Parameters
    ----------
    name, shape, format
        Name, shape and format of the tensor in its file.
    kind : TensorKind
        A factor of an adapter, a magnitude, a gain, or another one.
    decayed : bool
        Whether weight decay applies.
    rms, zeros : float
        Root mean square of its weights, and the share that is zero.
    direction_rms : float
        Root mean square of a step's directions, in units of the learning rate, without decay.
    stays_below : tuple of float
        The rates below which steps as long as the rate leave half of its weights or more unchanged, toward
        zero and away from it, if a weight is one number of the low format: half the distance to their
        neighbours.
    histogram : tuple of float
        Shares of |update| / ulp(weight) in the low format at the largest rate, in the bins of `EDGES`.
    found : mapping of str to TensorFinding
        The findings, by strategy.
    """

    name: str
    shape: tuple[int, ...]
    format: str
    kind: TensorKind
    decayed: bool
    rms: float
    zeros: float
    direction_rms: float
    stays_below: tuple[float, float]
    histogram: tuple[float, ...]
    found: Mapping[str, TensorFinding]

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))
