"""What an audit found: of each tensor under each strategy, of all together, and what follows from it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from mcfsim.formats import Format
from mcfsim.models.freezes import frozen_share
from mcfsim.models.plan import Plan
from mcfsim.optim.strategies import Strategy


@dataclass(frozen=True)
class Found:
    """What was found of one tensor under one strategy.

    Parameters
    ----------
    lost : float
        Share of its elements whose updates do nothing, over the run, each step weighted by its rate; NaN if
        nothing is asked.
    edq : float
        Normalised effective descent quality <D, E> / <D, D> in the same mean: 1 if all arrives.
    stops : int or None
        The step from which to the end less than `Plan.stopped` of each update arrives.
    idle : float or None
        Share of its weights that decay alone does not move at the largest rate; None without decay.
    beyond : int or None
        The first step at which its weights are out of the format's range; there is no EDQ from there on.
    bytes : float
        What is stored for it.
    lost_by_step, edq_by_step : tuple of float
        At `Audit.steps`.
    """

    lost: float
    edq: float
    stops: int | None
    idle: float | None
    beyond: int | None
    bytes: float
    lost_by_step: tuple[float, ...]
    edq_by_step: tuple[float, ...]


@dataclass(frozen=True)
class AuditedTensor:
    """One tensor, and what was found of it.

    Parameters
    ----------
    name, shape, format
        Of the tensor, as its file has it.
    decayed : bool
        Whether weight decay applies.
    rms, zeros : float
        Of its weights.
    direction_rms : float
        Of what a step asks, in units of the learning rate, without decay.
    histogram : tuple of float
        Shares of |update| / ulp(weight) in the low format at the largest rate, by `EDGES`.
    found : mapping of str to Found
        By strategy.
    """

    name: str
    shape: tuple[int, ...]
    format: str
    decayed: bool
    rms: float
    zeros: float
    direction_rms: float
    histogram: tuple[float, ...]
    found: Mapping[str, Found]

    @property
    def size(self) -> int:
        """Elements."""
        return int(np.prod(self.shape, dtype=np.int64))


@dataclass(frozen=True)
class Total:
    """What was found of all tensors under one strategy.

    Parameters
    ----------
    strategy : Strategy
        Which one.
    lost, edq : float
        Means over all weights.
    worst : str
        The tensor of the smallest EDQ.
    of_worst : Found
        What was found of it.
    stopped : int
        How many tensors stop.
    frozen : float or None
        Share of significands of its second moment that beta2 does not move; see `freezes.frozen_share`.
    bytes : float
        Stored for all parameters.
    sufficient : bool
        Whether each tensor's EDQ reaches the threshold within the format's range, and the second moment can
        decay.
    """

    strategy: Strategy
    lost: float
    edq: float
    worst: str
    of_worst: Found
    stopped: int
    frozen: float
    bytes: float
    sufficient: bool


@dataclass(frozen=True, eq=False)
class Audit:
    """What `audit` found.

    Parameters
    ----------
    plan : Plan
        What was asked.
    low : Format
        In which updates are compared with weights' ulp.
    steps : tuple of int
        Of the schedule, that were tried.
    tensors : tuple of AuditedTensor
        In the order of the files.
    """

    plan: Plan
    low: Format
    steps: tuple[int, ...]
    tensors: tuple[AuditedTensor, ...]

    @property
    def size(self) -> int:
        """Parameters in all."""
        return sum(item.size for item in self.tensors)

    def worst_first(self, strategy: str) -> list[AuditedTensor]:
        """Return the tensors, those of the smallest EDQ under a strategy first."""
        return sorted(self.tensors, key=lambda item: _rank(item.found[strategy]))

    def total(self, strategy: Strategy) -> Total:
        """Return what was found of all tensors together."""
        name = strategy.name
        sizes = np.array([item.size for item in self.tensors], float)
        lost, edq = (
            np.array([getattr(item.found[name], label) for item in self.tensors]) for label in ("lost", "edq")
        )
        there = ~np.isnan(edq)
        weights = sizes[there] / sizes[there].sum() if there.any() else np.array([])
        worst = self.worst_first(name)[0]
        frozen = frozen_share(strategy, "v", self.plan.hyper.beta2)
        reached = bool((edq[there] >= self.plan.threshold).all())
        reached &= all(item.found[name].beyond is None for item in self.tensors)
        return Total(
            strategy,
            lost=float(weights @ lost[there]) if there.any() else math.nan,
            edq=float(weights @ edq[there]) if there.any() else math.nan,
            worst=worst.name,
            of_worst=worst.found[name],
            stopped=sum(item.found[name].stops is not None for item in self.tensors),
            frozen=frozen,
            bytes=sum(item.found[name].bytes for item in self.tensors),
            sufficient=reached and frozen == 0,
        )

    def totals(self) -> list[Total]:
        """Return what was found under each strategy, the cheapest first."""
        return sorted(map(self.total, self.plan.strategies), key=lambda item: item.bytes)

    def recommended(self) -> tuple[Total | None, str]:
        """Return the cheapest strategy that suffices, and why it is this one."""
        totals = self.totals()
        chosen = next((item for item in totals if item.sufficient), None)
        reasons = [self._against(item) for item in totals[: totals.index(chosen) if chosen else None]]
        if chosen is None:
            return None, "none of them suffices: " + "; ".join(reasons)
        why = (
            f"{chosen.strategy.name} is the cheapest whose updates arrive: EDQ of every tensor is at least "
            f"{self.plan.threshold:g} (the least, {chosen.of_worst.edq:.4f}, is that of {chosen.worst}), "
            f"and v decays at beta2 = {self.plan.hyper.beta2:g}"
        )
        return chosen, "; ".join([why, *reasons])

    def _against(self, total: Total) -> str:
        """Say why a strategy does not suffice."""
        worst, said = total.of_worst, []
        if worst.beyond is not None:
            fmt = total.strategy.parameter.format
            said.append(f"weights of {total.worst} leave the range of {fmt} at step {worst.beyond}")
        elif worst.edq < self.plan.threshold:
            said.append(f"EDQ of {total.worst} is {worst.edq:.3f}")
        if total.frozen:
            said.append(f"{100 * total.frozen:.0f} % of the significands of v do not decay")
        return f"{total.strategy.name} does not do: {', and '.join(said)}"


def _rank(found: Found) -> float:
    """Return an EDQ; of a tensor that is beyond less than any, of one of which nothing is asked 1."""
    if found.beyond is not None:
        return -math.inf
    return 1.0 if math.isnan(found.edq) else found.edq
