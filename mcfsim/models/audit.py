"""Which of a model's tensors would stop learning under a plan of training, and what keeps them going."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from mcfsim.checks.arguments import finite_number, whole_number
from mcfsim.codec import ulp
from mcfsim.convert import round_to
from mcfsim.formats import Format
from mcfsim.models.forecast import Course, Table, Trial, forecast, stop_of
from mcfsim.models.freezes import frozen_share
from mcfsim.models.samples import Sample
from mcfsim.models.updates import Model, Updates
from mcfsim.optim.adamw import AdamW
from mcfsim.optim.strategies import Strategy
from mcfsim.training.schedule import Schedule

#: Strategies that are compared unless others are named.
DEFAULT_STRATEGIES = ("plain", "collage-light", "collage-plus", "fp32-master")
#: Edges of the histogram of |update| / ulp(weight), as binary logarithms.
EDGES = np.arange(-16.0, 9.0)


@dataclass(frozen=True)
class Plan:
    """How a model is to be trained.

    Parameters
    ----------
    hyper : AdamW
        Of the optimizer. Weight decay applies to tensors of two dimensions and more.
    schedule : Schedule
        Learning rates.
    steps : int
        Length of the run.
    strategies : tuple of Strategy
        To compare, with their low format put in.
    updates : Updates
        What is known of the updates.
    threshold : float
        Least share of its updates that must reach each tensor for a strategy to be recommended.
    stopped : float
        A tensor has stopped where its EDQ stays below this to the end.

    Raises
    ------
    TypeError, ValueError
        If one is of the wrong type, or out of range, or a strategy named twice or exact.
    """

    hyper: AdamW
    schedule: Schedule
    steps: int
    strategies: tuple[Strategy, ...]
    updates: Updates = field(default_factory=Model)
    threshold: float = 0.95
    stopped: float = 0.5

    def __post_init__(self) -> None:
        whole_number("steps", self.steps, least=1)
        for label in ("threshold", "stopped"):
            if not 0 < finite_number(label, getattr(self, label)) <= 1:
                raise ValueError(f"{label} = {getattr(self, label)} must lie in (0, 1]")
        names = [item.name for item in self.strategies]
        if not names or len(set(names)) < len(names):
            raise ValueError(f"strategies must be at least one, and each named once: {names}")
        for item in self.strategies:
            if item.parameter.format is None:
                raise ValueError(
                    f"strategy {item.name!r} stores exact numbers: nothing is lost, and no size known"
                )

    def decays(self, shape: Sequence[int]) -> bool:
        """Whether weight decay applies to a tensor: to matrices, not to gains and biases."""
        return len(shape) > 1


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
    bytes : float
        What is stored for it.
    lost_by_step, edq_by_step : tuple of float
        At `Audit.steps`.
    """

    lost: float
    edq: float
    stops: int | None
    idle: float | None
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
    stopped : int
        How many tensors stop.
    frozen : float or None
        Share of significands of its second moment that beta2 does not move; see `freezes.frozen_share`.
    bytes : float
        Stored for all parameters.
    sufficient : bool
        Whether each tensor's EDQ reaches the threshold, and the second moment can decay.
    """

    strategy: Strategy
    lost: float
    edq: float
    worst: str
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
        return sorted(self.tensors, key=lambda item: _or_one(item.found[strategy].edq))

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
        return Total(
            strategy,
            lost=float(weights @ lost[there]) if there.any() else math.nan,
            edq=float(weights @ edq[there]) if there.any() else math.nan,
            worst=worst.name,
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
            f"{self.plan.threshold:g} (the least, {self._edq(chosen):.4f}, is that of {chosen.worst}), "
            f"and v decays at beta2 = {self.plan.hyper.beta2:g}"
        )
        return chosen, "; ".join([why, *reasons])

    def _edq(self, total: Total) -> float:
        return next(item.found[total.strategy.name].edq for item in self.tensors if item.name == total.worst)

    def _against(self, total: Total) -> str:
        """Say why a strategy does not suffice."""
        name, said = total.strategy.name, []
        if (edq := self._edq(total)) < self.plan.threshold:
            said.append(f"EDQ of {total.worst} is {edq:.3f}")
        if total.frozen:
            said.append(f"{100 * total.frozen:.0f} % of the significands of v do not decay")
        return f"{name} does not do: {', and '.join(said)}"


def audit(samples: Iterable[Sample], plan: Plan, low: Format) -> Audit:
    """Try a plan of training on samples of a model's tensors.

    Parameters
    ----------
    samples : iterable of Sample
        From `mcfsim.models.samples.read_samples`.
    plan : Plan
        How the model is to be trained.
    low : Format
        For the histograms; usually that of the strategies.

    Returns
    -------
    Audit
        A forecast by the model of updates that `mcfsim.models.forecast` states.

    Raises
    ------
    ValueError
        If the updates that are known do not fit the tensors.
    """
    kept = list(samples)
    decayed = np.array([plan.decays(item.shape) for item in kept])
    weights = np.array([item.values for item in kept])
    trial = Trial(weights, plan.updates.directions(kept, plan.hyper), decayed)
    courses = {
        item.name: forecast(trial, plan.hyper, item, plan.schedule, plan.steps) for item in plan.strategies
    }
    still = Trial(weights, np.zeros_like(weights), decayed)
    peak = Schedule(plan.schedule.peak, warmup=0, final=1.0)
    idle = {item.name: forecast(still, plan.hyper, item, peak, 1).lost[:, 0] for item in plan.strategies}
    found = [_found(plan, courses, idle, row, item) for row, item in enumerate(kept)]
    stored = round_to(weights, low)
    asked = plan.schedule.peak * (
        trial.directions + np.where(decayed, plan.hyper.weight_decay, 0.0)[:, None] * stored
    )
    tensors = tuple(
        AuditedTensor(
            *(item.name, item.shape, item.format, bool(decayed[row]), item.rms, item.zeros),
            direction_rms=float(np.sqrt(np.mean(np.square(trial.directions[row])))),
            histogram=tuple(histogram(asked[row], ulp(stored[row], low), EDGES)),
            found=found[row],
        )
        for row, item in enumerate(kept)
    )
    steps = tuple(map(int, next(iter(courses.values())).steps))
    return Audit(plan, low, steps, tensors)


def _found(
    plan: Plan, courses: Mapping[str, Course], idle: Mapping[str, Table], row: int, sample: Sample
) -> dict[str, Found]:
    """Return what was found of one tensor, by strategy."""
    made = {}
    for item in plan.strategies:
        course = courses[item.name]
        part = Course(course.steps, course.rates, course.lost[row : row + 1], course.edq[row : row + 1])
        decayed = plan.decays(sample.shape) and plan.hyper.weight_decay > 0
        made[item.name] = Found(
            lost=float(part.over_run(part.lost)[0]),
            edq=float(part.over_run(part.edq)[0]),
            stops=stop_of(part.steps, part.edq[0], plan.stopped),
            idle=float(idle[item.name][row]) if decayed else None,
            bytes=(item.bytes_per_parameter or 0.0) * sample.size,
            lost_by_step=tuple(part.lost[0].tolist()),
            edq_by_step=tuple(part.edq[0].tolist()),
        )
    return made


def _or_one(edq: float) -> float:
    """Return an EDQ; of a tensor of which nothing is asked that of one to which all arrives."""
    return 1.0 if np.isnan(edq) else edq


def histogram(directions: Table, spacing: Table, edges: Table) -> list[float]:
    """Return shares of updates by the binary logarithm of |update| / ulp(weight), in bins with these edges.

    What is below the first edge counts for the first bin, what is above the last for the last one.
    """
    asked = np.abs(directions)
    with np.errstate(divide="ignore"):
        ratio = np.log2(asked / spacing)
    counts, _ = np.histogram(np.clip(ratio, edges[0], np.nextafter(edges[-1], 0)), edges)
    return [float(share) for share in counts / max(1, asked.size)]
