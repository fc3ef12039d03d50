"""The audit of a model: findings for each tensor under each strategy, totals, and a recommendation."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from operator import gt

import numpy as np

from mcfsim.checks import check_processor
from mcfsim.codec import next_down, next_up, ulp
from mcfsim.convert import round_to
from mcfsim.formats import Format
from mcfsim.models.forecast import TensorRows, forecast, frozen_share, points_of
from mcfsim.models.memory import footprint
from mcfsim.models.plan import Plan, Steady, Table, rms_of
from mcfsim.models.samples import TensorSample
from mcfsim.models.tensor_findings import AuditedTensor, TensorFinding, TensorKind, kind_of
from mcfsim.models.transfer import Encoding, expected_bytes
from mcfsim.optim.strategies import Strategy

#: Up to this many strategies are all shown.
_FEW = 6


@dataclass(frozen=True)
class Total:
    """The findings for all tensors together under one strategy.

    Parameters
    ----------
    strategy : Strategy
        The strategy.
    lost, edq, changed : float
        Means over all weights.
    worst : str
        The tensor of the smallest EDQ.
    of_worst : TensorFinding
        The findings for it.
    stopped : int
        How many tensors stop.
    frozen, beside : float
        Share of the second moment's numbers that beta2 does not move, and the same if numbers share a scale
        with a larger one that stays; see `forecast.frozen_share`.
    bytes : float
        Bytes stored for all parameters.
    sufficient : bool
        Whether each tensor's EDQ reaches the threshold within the format's range, and the second moment can
        decay.
    transfer : mapping of Encoding to float
        Bytes expected to send what a step changes, in each encoding of `mcfsim.models.transfer`.
    """

    strategy: Strategy
    lost: float
    edq: float
    changed: float
    worst: str
    of_worst: TensorFinding
    stopped: int
    frozen: float
    beside: float
    bytes: float
    sufficient: bool
    transfer: Mapping[Encoding, float]


@dataclass(frozen=True)
class Mix:
    """A strategy for each tensor.

    Parameters
    ----------
    strategies : mapping of str to Strategy
        The strategies, by tensor.
    bytes : float
        Bytes stored for all parameters.
    """

    strategies: Mapping[str, Strategy]
    bytes: float


@dataclass(frozen=True, eq=False)
class Audit:
    """The result of `audit`.

    Parameters
    ----------
    plan : Plan
        The plan that was audited.
    low : Format
        The format in which updates are compared with the ulp of weights.
    steps : tuple of int
        The steps of the schedule that were tried.
    tensors : tuple of AuditedTensor
        The tensors, in the order of the files.
    """

    plan: Plan
    low: Format
    steps: tuple[int, ...]
    tensors: tuple[AuditedTensor, ...]

    @property
    def size(self) -> int:
        """Number of parameters in all."""
        return sum(item.size for item in self.tensors)

    def by_kind(self) -> dict[TensorKind, Audit]:
        """Return an audit of the tensors of each kind, for the kinds that occur."""
        kept = {kind: tuple(x for x in self.tensors if x.kind is kind) for kind in TensorKind}
        return {kind: replace(self, tensors=tensors) for kind, tensors in kept.items() if tensors}

    def worst_first(self, strategy: str) -> list[AuditedTensor]:
        """Return the tensors, smallest EDQ under a strategy first."""
        return sorted(self.tensors, key=lambda item: _rank(item.found[strategy]))

    def total(self, strategy: Strategy) -> Total:
        """Return the findings for all tensors together under a strategy."""
        name = strategy.name
        sizes = np.array([item.size for item in self.tensors], float)
        found = [item.found[name] for item in self.tensors]
        lost, edq, changed = np.array([(item.lost, item.edq, item.changed) for item in found]).T
        there = ~np.isnan(edq)
        weights = sizes[there] / sizes[there].sum() if there.any() else np.array([])
        worst = self.worst_first(name)[0]
        fmt = strategy.parameter.format
        assert fmt is not None
        sent = [
            expected_bytes(size, share, -(-fmt.bits // 8))
            for size, share in zip(sizes.astype(int).tolist(), changed.tolist(), strict=True)
        ]
        frozen, beside = (
            frozen_share(strategy, self.plan.hyper.beta2, beside=beside) if self._keeps_v else 0.0
            for beside in (False, True)
        )
        return Total(
            strategy,
            lost=float(weights @ lost[there]) if there.any() else math.nan,
            edq=float(weights @ edq[there]) if there.any() else math.nan,
            changed=float(sizes @ changed / sizes.sum()),
            worst=worst.name,
            of_worst=worst.found[name],
            stopped=sum(item.stops is not None for item in found),
            frozen=frozen,
            beside=beside,
            bytes=sum(item.bytes for item in found),
            sufficient=all(map(self._reached, found)) and frozen == 0,
            transfer={encoding: sum(part[encoding] for part in sent) for encoding in Encoding},
        )

    @property
    def _keeps_v(self) -> bool:
        """Whether the optimizer keeps a second moment of any tensor."""
        return any(self.plan.updates.keeps("v", item.name, item.shape) for item in self.tensors)

    def _reached(self, found: TensorFinding) -> bool:
        """Return whether enough of a tensor's updates arrives, or none is asked, in the format's range."""
        return found.beyond is None and not found.edq < self.plan.threshold

    def shown(self) -> list[Total]:
        """Return the totals to show: all of a few strategies, otherwise those that no cheaper one matches.

        One matches another if its smallest EDQ, to four places, and its second moment are no worse.
        """
        totals, (chosen, _) = self.totals(), self.recommended()
        if len(totals) <= _FEW:
            return totals
        kept: list[Total] = []
        for item in totals:
            merit = _merit(item)
            if item == chosen or all(any(map(gt, merit, _merit(other))) for other in kept):
                kept.append(item)
        return kept

    def mixed(self) -> Mix | None:
        """Return the cheapest strategy of each tensor; None unless this takes less than one for all."""
        totals = self.totals()
        chosen: dict[str, Strategy] = {}
        size = Fraction(0)
        for tensor in self.tensors:
            kept = self.plan.updates.kept(tensor.name, tensor.shape)
            able = [total.strategy for total in totals if total.frozen == 0 or "v" not in kept]
            costs = {item.name: footprint(item, kept).total for item in able}
            edq = {name: np.nan_to_num(found.edq, nan=1.0) for name, found in tensor.found.items()}
            reached = [item for item in able if self._reached(tensor.found[item.name])]
            if not reached:
                return None
            best = min(reached, key=lambda item: (costs[item.name], abs(1.0 - edq[item.name])))
            chosen[tensor.name] = best
            size += costs[best.name] * tensor.size
        mix = Mix(chosen, float(size))
        alone, _ = self.recommended()
        return mix if alone is None or mix.bytes < alone.bytes else None

    def totals(self) -> list[Total]:
        """Return the total of each strategy, the cheapest first."""
        return sorted(map(self.total, self.plan.strategies), key=lambda item: item.bytes)

    def recommended(self) -> tuple[Total | None, str]:
        """Return the cheapest strategy that suffices, or None, and the reason."""
        totals = self.totals()
        chosen = next((item for item in totals if item.sufficient), None)
        reasons = [self._against(item) for item in totals[: totals.index(chosen) if chosen else None]]
        if chosen is None:
            return None, f"none of {_tried(len(totals))} suffices: " + "; ".join(reasons)
        why = f"{chosen.strategy.name} is the cheapest of {_tried(len(totals))} whose updates arrive: "
        if math.isnan(chosen.of_worst.edq):
            why += "none is asked for"
        else:
            why += (
                f"EDQ of every tensor is at least {self.plan.threshold:g} (the least, "
                f"{chosen.of_worst.edq:.4f}, is that of {chosen.worst})"
            )
        if self._keeps_v:
            why += f", and v decays at beta2 = {self.plan.hyper.beta2:g}"
        if chosen.beside:
            why += " where numbers that share a scale decay together"
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
            said.append(f"{100 * total.frozen:.0f} % of the numbers of v do not decay")
        return f"{total.strategy.name} does not do: {', and '.join(said)}"


def _merit(total: Total) -> tuple[float, float]:
    """Return a strategy's merit: its smallest EDQ, to four places and at most 1, and minus `frozen`."""
    return round(min(_rank(total.of_worst), 1.0), 4), -total.frozen


def _tried(count: int) -> str:
    return "the one tried" if count == 1 else f"the {count} tried"


def _rank(found: TensorFinding) -> float:
    """Return an EDQ to sort by: -inf for a tensor beyond the range, inf if nothing is asked of it."""
    if found.beyond is not None:
        return -math.inf
    return math.inf if math.isnan(found.edq) else found.edq


# -- the audit -----------------------------------------------------------------------------------------------
#: Edges of the histogram of |update| / ulp(weight), as binary logarithms.
EDGES = np.arange(-16.0, 9.0)


def audit(samples: Iterable[TensorSample], plan: Plan, low: Format) -> Audit:
    """Audit a plan of training on samples of a model's tensors.

    Parameters
    ----------
    samples : iterable of TensorSample
        From `mcfsim.models.samples.scan`.
    plan : Plan
        How the model is to be trained.
    low : Format
        Format of the histograms; usually that of the strategies.

    Returns
    -------
    Audit
        A forecast by the model of updates that `mcfsim.models.forecast` states.

    Raises
    ------
    ValueError
        If the known updates do not fit the tensors, or a strategy stores exact numbers, which have no size.
    """
    check_processor()
    kept = list(samples)
    decayed = np.array([plan.decays(item.shape) for item in kept])
    weights = np.array([item.values for item in kept])
    directions = plan.updates.directions(kept, plan)
    trial = TensorRows(weights, directions, decayed)
    still = TensorRows(weights, Steady(np.zeros_like(weights), plan.hyper.beta1), decayed)
    points, rates = points_of(plan.schedule, plan.steps), plan.schedule.rates(plan.steps)
    highest = int(rates.argmax())  # where the warm-up ends, or the run within it
    once = np.array([1]), rates[highest : highest + 1]
    found: list[dict[str, TensorFinding]] = [{} for _ in kept]
    for item in plan.strategies:
        course = forecast(trial, plan.hyper, item, points, rates)
        idle, at_first = (forecast(rows, plan.hyper, item, *once).lost[:, 0] for rows in (still, trial))
        lost, edq = course.over_run(course.lost), course.over_run(course.edq)
        stops, changed = course.stops(plan.stopped), course.per_step(course.changed)
        for row, (sample, beyond) in enumerate(zip(kept, course.beyond, strict=True)):
            moments = plan.updates.kept(sample.name, sample.shape)
            found[row][item.name] = TensorFinding(
                lost=float(lost[row]),
                edq=float(edq[row]),
                at_first=float(at_first[row]),
                stops=stops[row],
                idle=None if np.isnan(idle[row]) else float(idle[row]),
                beyond=int(course.steps[beyond.argmax()]) if beyond.any() else None,
                changed=float(changed[row]),
                bytes=float(footprint(item, moments).total * sample.size),
                lost_by_step=tuple(course.lost[row].tolist()),
                edq_by_step=tuple(course.edq[row].tolist()),
            )
    stored = round_to(weights, low)
    largest = directions.at(highest + 1)
    with np.errstate(invalid="ignore"):  # of numbers beyond the range
        asked = rates[highest] * (largest + np.where(decayed, plan.hyper.weight_decay, 0.0)[:, None] * stored)
    size = rms_of(largest)
    tensors = tuple(
        AuditedTensor(
            *(item.name, item.shape, item.format, kind_of(item.name, item.shape, item.values)),
            *(bool(decayed[row]), item.rms, item.zeros),
            direction_rms=float(size[row]),
            stays_below=_middles(stored[row], low),
            histogram=histogram(asked[row], ulp(stored[row], low)),
            found=found[row],
        )
        for row, item in enumerate(kept)
    )
    return Audit(plan, low, tuple(points.tolist()), tensors)


def _middles(stored: Table, low: Format) -> tuple[float, float]:
    """Return half the median distance from a number to its neighbour, toward zero and away from it."""
    size = np.abs(stored).astype(np.float64)
    with np.errstate(invalid="ignore"):  # of numbers beyond the range
        gaps = size - next_down(size, low), next_up(size, low) - size
    toward, away = (float(np.quantile(gap, 0.5, method="higher")) / 2 for gap in gaps)
    return toward, away


def histogram(directions: Table, spacing: Table) -> tuple[float, ...]:
    """Return shares of updates by the binary logarithm of |update| / ulp(weight), in the bins of `EDGES`.

    Numbers below the first edge count in the first bin, numbers above the last edge in the last bin.
    """
    asked = np.abs(directions)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        ratio = np.log2(asked / spacing)
    counts, _ = np.histogram(np.clip(ratio, EDGES[0], np.nextafter(EDGES[-1], 0)), EDGES)
    return tuple((counts / max(1, asked.size)).tolist())
