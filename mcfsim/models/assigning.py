"""Assignment of strategies and formats to a model's tensors, from the forecast of an audit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from mcfsim.checks import check_processor, finite_number
from mcfsim.convert import round_to
from mcfsim.formats import Format
from mcfsim.models.assignment import Choices, by_demotion, by_sensitivity
from mcfsim.models.audit import Audit
from mcfsim.models.forecast import frozen_share
from mcfsim.models.known import RecordedUpdates
from mcfsim.models.memory import footprint, possible
from mcfsim.models.plan import Plan, Table
from mcfsim.models.samples import TensorSample
from mcfsim.models.tensor_findings import AuditedTensor, TensorFinding
from mcfsim.optim.strategies import Strategy
from mcfsim.optim.strategy import SLOTS

#: Strategies tried by default. None rounds at random: such numbers wander about their mean, and no forecast
#: says what that costs.
SENSITIVITY = ("plain", "collage-light", "collage-plus", "split-master", "fp32-master")
#: The two strategies of demotion.
DEMOTION = ("fp32-master", "plain")
METHODS = ("sensitivity", "demotion")
#: If no gradients are known, formats whose exponents reach this far both ways are assumed to hold their
#: squares.
_REACH = 100
#: The least share of gradients or moments that must neither vanish nor overflow in their format.
_KEPT = 0.99


@dataclass(frozen=True, eq=False)
class Assignment:
    """An assignment of a strategy and format to each tensor, and how it was found.

    Parameters
    ----------
    audit : Audit
        The forecast for each tensor under each candidate.
    choices : Choices
        The candidates' bytes and losses that follow from it.
    budget : Fraction
        Bytes per parameter, in the mean.
    method : {"sensitivity", "demotion"}
        The method that found it.
    frozen_cost : float
        See `choices_of`.
    chosen : tuple of int
        The place of each tensor's candidate.
    asked : tuple of float
        What is asked of each tensor: its weight among the tensors.
    """

    audit: Audit
    choices: Choices
    budget: Fraction
    method: str
    frozen_cost: float
    chosen: tuple[int, ...]
    asked: tuple[float, ...]

    def tensors(self) -> list[tuple[AuditedTensor, Strategy, TensorFinding]]:
        """Return each tensor, its candidate, and the forecast for it under that candidate."""
        candidates = [self.choices.candidates[place] for place in self.chosen]
        return [
            (tensor, chosen, tensor.found[chosen.name])
            for tensor, chosen in zip(self.audit.tensors, candidates, strict=True)
        ]

    @property
    def words(self) -> str:
        """How tensors are weighed against each other, in words for a report."""
        if isinstance(self.audit.plan.updates, RecordedUpdates):
            return "Tensors are weighed by the descent of the loss that the recorded gradients promise"
        return "Tensors are weighed by the squares of their updates"

    @property
    def bytes(self) -> Fraction:
        """Bytes that the assignment takes in all."""
        return self.choices.bytes_of(self.chosen)

    def lost(self, chosen: Sequence[int] | None = None) -> float:
        """Return the lost share of all that is asked, under this assignment or another one.

        It is NaN if nothing is asked of any tensor.
        """
        whole = math.fsum(self.asked)
        return self.choices.loss_of(self.chosen if chosen is None else chosen) / whole if whole else math.nan


def candidates_of(
    lows: Sequence[Format], names: Sequence[str] = (), method: str = "sensitivity"
) -> tuple[Strategy, ...]:
    """Return every strategy in every format, none twice, with its parameter's format in its name.

    Parameters
    ----------
    lows : sequence of Format
        The low formats.
    names : sequence of str, optional
        The strategies; by default those of the method, except those that a format does not allow.
    method : {"sensitivity", "demotion"}, optional
        The method of the default.

    Raises
    ------
    ValueError
        If a strategy is unknown, stores exact numbers, or is not possible in a format; or if none is left.
    """
    found: dict[tuple[str, tuple[str, ...]], Strategy] = {}
    for name, item in possible(names, DEMOTION if method == "demotion" else SENSITIVITY, lows):
        if item.bytes_per_parameter is None:
            raise ValueError(f"strategy {name!r} stores exact numbers, which have no size")
        # Strategy fp32 is the same in every low format.
        key = name, tuple(str(stored) for stored in item.tensors.values())
        found.setdefault(key, replace(item, name=f"{name} {item.parameter.format}"))
    if not found:
        raise ValueError("an assignment needs at least one strategy and one format")
    return tuple(found.values())


def choices_of(audit: Audit, samples: Sequence[TensorSample], frozen_cost: float) -> tuple[Choices, Table]:
    """Return the bytes and losses of each candidate for each tensor, and what is asked of each tensor.

    A candidate loses ``|1 - EDQ|`` of what is asked of a tensor. What is asked is the size of the tensor's
    updates, the sum of squares of the directions d. If gradients g are recorded, it is the descent ``<g, d>``
    of the loss, to first order. A candidate is ruled out if weights leave the format's range under it, or if
    its formats do not hold gradients and moments. With recorded gradients they do not if more than one in a
    hundred would vanish or overflow; otherwise no format does whose range is less than about float32's and
    that has no scales.

    Parameters
    ----------
    audit : Audit
        The audit of the candidates.
    samples : sequence of TensorSample
        The samples that it was made from.
    frozen_cost : float
        The additional share lost if no significand of the second moment decays, from 0 to 1; in proportion
        less if only some do not.

    Raises
    ------
    ValueError
        If no candidate is left for some tensor.

    Notes
    -----
    If the optimizer keeps no second moment of a tensor, as of Muon's matrices, neither its bytes nor its
    format count, and a frozen one costs nothing.
    """
    plan, candidates = audit.plan, audit.plan.strategies
    moments = [plan.updates.kept(tensor.name, tensor.shape) for tensor in audit.tensors]
    costs = {kept: tuple(footprint(item, kept).total for item in candidates) for kept in {*moments}}
    names, sizes = zip(*((tensor.name, tensor.size) for tensor in audit.tensors), strict=True)
    if isinstance(plan.updates, RecordedUpdates):
        asked, held = _recorded(plan, plan.updates, samples)
        cure = "a format of float32's range does, as bfloat16"
    else:
        asked = np.array([item.size * item.direction_rms**2 for item in audit.tensors])
        reach = {kept: [_reaches(item, kept) for item in candidates] for kept in costs}
        held = np.array([reach[kept] for kept in moments])
        cure = "only recorded gradients could say that formats of less than float32's range do"
    for name, row in zip(names, held, strict=True):
        if not row.any():
            raise ValueError(f"{name}: no candidate holds its gradients and moments; {cure}")
    losses = np.empty((len(names), len(candidates)))
    for column, item in enumerate(candidates):
        frozen = frozen_cost * frozen_share(item, plan.hyper.beta2)
        share = [
            _unarrived(tensor.found[item.name]) + (frozen if "v" in kept else 0.0)
            for tensor, kept in zip(audit.tensors, moments, strict=True)
        ]
        # Where nothing is asked nothing is lost, but a candidate that is ruled out stays so.
        losses[:, column] = np.where(np.isinf(share), math.inf, asked * np.nan_to_num(share, posinf=0.0))
    losses[~held] = math.inf
    return Choices(names, sizes, candidates, tuple(costs[kept] for kept in moments), losses), asked


def check_request(budget: Fraction | float, method: str, frozen_cost: float) -> Fraction:
    """Return the budget exactly; raise as `assign` does if budget, method or cost is out of range."""
    if method not in METHODS:
        raise ValueError(f"unknown method {method!r}; known methods: {', '.join(METHODS)}")
    if not 0 <= finite_number("frozen_cost", frozen_cost) <= 1:
        raise ValueError(f"frozen_cost = {frozen_cost} must lie in [0, 1]")
    limit = budget if isinstance(budget, Fraction) else Fraction(finite_number("budget", budget))
    if limit <= 0:
        raise ValueError(f"budget = {budget} must be positive: it is bytes a parameter")
    return limit


def assign(
    audit: Audit,
    samples: Sequence[TensorSample],
    budget: Fraction | float,
    method: str = "sensitivity",
    frozen_cost: float = 0.05,
) -> Assignment:
    """Assign strategies and formats to tensors under a budget.

    Parameters
    ----------
    audit : Audit
        The audit of the candidates, see `candidates_of`.
    samples : sequence of TensorSample
        The samples that it was made from.
    budget : Fraction or float
        Bytes per parameter, in the mean of all parameters.
    method : {"sensitivity", "demotion"}
        See `mcfsim.models.assignment`. Demotion needs two candidates, and takes groups from `group_of`.
    frozen_cost : float, optional
        See `choices_of`.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range, the budget is less than the least possible, or no candidate is left
        for some tensor.
    RuntimeError
        If the solver finds nothing in its time.
    """
    check_processor()
    limit = check_request(budget, method, frozen_cost)
    choices, asked = choices_of(audit, samples, frozen_cost)
    if method == "sensitivity":
        chosen = by_sensitivity(choices, limit)
    elif len(choices.candidates) != 2:
        tried = ", ".join(item.name for item in choices.candidates)
        raise ValueError(f"demotion is from one strategy and format to another one, not among {tried}")
    else:
        chosen = by_demotion(choices, limit)
    return Assignment(audit, choices, limit, method, frozen_cost, tuple(chosen), tuple(asked.tolist()))


def _unarrived(found: TensorFinding) -> float:
    """Return ``|1 - EDQ|``, the share of updates that is missing or in excess; infinite beyond the range."""
    return math.inf if found.beyond is not None else abs(1.0 - found.edq)


def _formats(item: Strategy, moments: Sequence[str] = SLOTS) -> Mapping[str, Format]:
    """Return the formats that hold gradient and moments, except those that have scales."""
    kept = {label: item.tensors[label] for label in ("gradient", *moments)}
    return {label: stored.format for label, stored in kept.items() if stored.format and stored.scaled is None}


def _reaches(item: Strategy, moments: Sequence[str]) -> bool:
    """Return whether the formats of gradient and moments have about the range of float32."""
    return all(fmt.emin <= -_REACH and fmt.emax >= _REACH for fmt in _formats(item, moments).values())


def _recorded(
    plan: Plan, updates: RecordedUpdates, samples: Sequence[TensorSample]
) -> tuple[Table, NDArray[np.bool_]]:
    """Return the descent asked of each tensor, and which candidates hold its gradients and moments."""
    needed = {pair for item in plan.strategies for pair in _formats(item).items()}
    descent = np.zeros(len(samples))
    there = {pair: np.zeros((2, len(samples))) for pair in needed}
    for step, found in enumerate(updates.follow(samples, plan.hyper, plan.steps), start=1):
        descent += plan.schedule.rate(step, plan.steps) * (found.gradient * found.direction).sum(axis=1)
        for (label, fmt), counts in there.items():
            numbers = getattr(found, label)
            stored = round_to(numbers, fmt)
            counts += np.array([numbers != 0, (numbers != 0) & (stored != 0) & np.isfinite(stored)]).sum(
                axis=2
            )
    held = np.ones((len(samples), len(plan.strategies)), np.bool_)
    for column, item in enumerate(plan.strategies):
        for pair in _formats(item).items():
            all_of, kept = there[pair]
            held[:, column] &= kept >= _KEPT * all_of
    sizes = np.array([item.size / item.values.size for item in samples])
    return np.maximum(descent * sizes, 0.0), held
