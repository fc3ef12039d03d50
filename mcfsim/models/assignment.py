"""Which tensor is stored in which way, under a budget of bytes: by sensitivity, or by size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.optim.strategies import Strategy

#: Assignments a hair above the budget that the solver may find before it is given up.
_CUTS = 100
#: To what the largest loss is scaled: the solver tells objectives apart that differ by 1e-6.
_SCALE = 1e4


@dataclass(frozen=True, eq=False)
class Choices:
    """What may be chosen for each tensor, what it takes and what it loses.

    Parameters
    ----------
    names : tuple of str
        Of the tensors.
    sizes : tuple of int
        Their elements.
    candidates : tuple of Strategy
        Each with its format put in.
    bytes : tuple of Fraction
        What each of them takes for a parameter.
    losses : array, shape (tensors, candidates)
        What is lost of each tensor under each of them, not negative; infinite where one is out of the
        question.

    Raises
    ------
    ValueError
        If lengths do not fit, a size or a number of bytes is not positive, or a loss is NaN or negative; or
        if every candidate is out of the question for some tensor.
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    candidates: tuple[Strategy, ...]
    bytes: tuple[Fraction, ...]
    losses: NDArray[np.float64]

    def __post_init__(self) -> None:
        shape = len(self.names), len(self.candidates)
        if 0 in shape:
            raise ValueError(f"there are {shape[0]} tensors and {shape[1]} candidates; it takes one of each")
        if (len(self.sizes), len(self.bytes)) != shape or self.losses.shape != shape:
            raise ValueError(
                f"{len(self.sizes)} sizes, {len(self.bytes)} numbers of bytes and losses of shape "
                f"{self.losses.shape} do not fit {shape[0]} tensors and {shape[1]} candidates"
            )
        if min(self.sizes) < 1 or min(self.bytes) <= 0:
            raise ValueError("sizes and bytes must be positive")
        if not (self.losses >= 0).all():
            raise ValueError("losses must be numbers that are not negative, or infinite")
        for name, row in zip(self.names, self.losses, strict=True):
            if not np.isfinite(row).any():
                tried = ", ".join(item.name for item in self.candidates)
                raise ValueError(f"{name} can be stored in no way that is asked for: {tried}")

    @property
    def size(self) -> int:
        """Parameters in all."""
        return sum(self.sizes)

    def allowed(self, tensor: int) -> list[int]:
        """Return the candidates that a tensor may have."""
        return np.flatnonzero(np.isfinite(self.losses[tensor])).tolist()

    def bytes_of(self, chosen: Sequence[int]) -> Fraction:
        """Return what an assignment takes in all."""
        return sum(
            (self.bytes[item] * size for item, size in zip(chosen, self.sizes, strict=True)), Fraction(0)
        )

    def loss_of(self, chosen: Sequence[int]) -> float:
        """Return what an assignment loses in all, correctly rounded."""
        return math.fsum(row[item] for row, item in zip(self.losses, chosen, strict=True))

    def least(self) -> list[int]:
        """Return the assignment of the fewest bytes; of several the one that loses least."""
        return [
            min(self.allowed(tensor), key=lambda item: (self.bytes[item], row[item]))
            for tensor, row in enumerate(self.losses)
        ]

    def check_budget(self, budget: Fraction) -> None:
        """Raise ValueError if no assignment is within so many bytes a parameter."""
        needed = self.bytes_of(self.least()) / self.size
        if budget < needed:
            raise ValueError(
                f"a budget of {float(budget):g} bytes a parameter is less than the least, "
                f"{float(needed):.6g}, that these tensors take in any way asked for"
            )


def by_sensitivity(choices: Choices, budget: Fraction, seconds: float = 60.0) -> list[int]:
    """Return the candidate of each tensor so that the least is lost within a budget.

    Minimise the sum of losses subject to the sum of bytes, one candidate a tensor: an integer program, solved
    by branch and bound (HiGHS). Candidates that take as much as another one of the same tensor, and lose as
    much, are left out before. What the solver finds is added up exactly; an assignment that is over the
    budget by less than its tolerance is forbidden, and the next one looked for.

    Parameters
    ----------
    choices : Choices
        Tensors and candidates.
    budget : Fraction
        Bytes a parameter, in the mean of all parameters.
    seconds : float, optional
        After which the best assignment found so far is taken.

    Returns
    -------
    list of int
        The place of each tensor's candidate.

    Raises
    ------
    ValueError
        If the budget is less than the least.
    RuntimeError
        If the solver finds nothing in the time.

    References
    ----------
    Kundu et al., BMPQ, arXiv 2112.13843: an integer program over sensitivities that are measured in training.
    Their widths become strategies here, and their bits' gradients what arrives of each update.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array

    choices.check_budget(budget)
    places = [(tensor, item) for tensor in range(len(choices.names)) for item in _front(choices, tensor)]
    row, column = np.array(places).T
    loss = choices.losses[row, column]
    largest = loss.max()
    share = np.array([float(choices.bytes[item] * choices.sizes[t] / choices.size) for t, item in places])
    here = np.arange(len(places))
    one_each = csr_array((np.ones(len(places)), (row, here)), shape=(len(choices.names), len(places)))
    rules: list[Any] = [
        LinearConstraint(one_each, 1, 1),
        LinearConstraint(share[None, :], -np.inf, float(budget)),
    ]
    for _ in range(_CUTS):
        found = milp(
            loss / largest * _SCALE if largest > 0 else loss,
            integrality=np.ones(len(places)),
            bounds=Bounds(0, 1),
            constraints=rules,
            options={"mip_rel_gap": 0.0, "time_limit": seconds},
        )
        if found.x is None:
            raise RuntimeError(f"no assignment was found in {seconds:g} s: {found.message}")
        taken = found.x > 0.5
        chosen: list[int] = column[taken].tolist()
        if choices.bytes_of(chosen) <= budget * choices.size:
            return chosen
        rules.append(LinearConstraint(taken[None, :].astype(float), -np.inf, len(choices.names) - 1))
    raise RuntimeError(f"{_CUTS} assignments at the budget of {float(budget):g} bytes are a hair above it")


def by_demotion(
    choices: Choices, budget: Fraction, groups: Sequence[str], high: int = 0, low: int = 1
) -> list[int]:
    """Return the candidate of each tensor when the largest groups are demoted until the rest fits.

    All tensors begin high. Groups are demoted whole, those of the most elements first and of equal ones the
    first, until the budget is kept. A tensor that cannot be low, because it overflows there, is promoted:
    it stays high, and more groups are demoted for it.

    Parameters
    ----------
    choices : Choices
        Tensors and candidates.
    budget : Fraction
        Bytes a parameter, in the mean of all parameters.
    groups : sequence of str
        The group of each tensor.
    high, low : int, optional
        Places of the two candidates.

    Returns
    -------
    list of int
        The place of each tensor's candidate, `high` or `low`.

    Raises
    ------
    ValueError
        If the groups do not fit, high takes no more than low, a tensor that cannot be low cannot be high
        either, or the budget is not kept when all that can be low is.

    References
    ----------
    Lee, Sharma, Aiken, arXiv 2301.13464. There tensors are promoted while the network is trained; here
    before, by the forecast.
    """
    if len(groups) != len(choices.names):
        raise ValueError(f"{len(groups)} groups do not fit {len(choices.names)} tensors")
    if choices.bytes[high] <= choices.bytes[low]:
        above, below = choices.candidates[high].name, choices.candidates[low].name
        raise ValueError(f"demotion is to fewer bytes, and {above} takes no more than {below}")
    able = np.isfinite(choices.losses)
    for name, (is_high, is_low) in zip(choices.names, able[:, [high, low]], strict=True):
        if not (is_high or is_low):
            raise ValueError(f"{name} can be neither high nor low")
    chosen = [high if ok else low for ok in able[:, high]]
    sizes: dict[str, int] = dict.fromkeys(groups, 0)
    for group, size in zip(groups, choices.sizes, strict=True):
        sizes[group] += size
    for group in sorted(sizes, key=lambda name: -sizes[name]):
        if choices.bytes_of(chosen) <= budget * choices.size:
            return chosen
        chosen = [
            low if mine == group and able[tensor, low] else now
            for tensor, (mine, now) in enumerate(zip(groups, chosen, strict=True))
        ]
    if choices.bytes_of(chosen) > budget * choices.size:
        raise ValueError(
            f"a budget of {float(budget):g} bytes a parameter is less than the least, "
            f"{float(choices.bytes_of(chosen) / choices.size):.6g}: all is demoted that does not overflow"
        )
    return chosen


def group_of(name: str) -> str:
    """Return the group of a tensor: its name up to the last dot, as of a layer's weight and bias."""
    return name.rpartition(".")[0] or name


def _front(choices: Choices, tensor: int) -> list[int]:
    """Return a tensor's candidates that no other one beats, or equals before it: the fewest bytes first."""
    row = choices.losses[tensor]
    kept: list[int] = []
    for item in sorted(choices.allowed(tensor), key=lambda item: (choices.bytes[item], row[item], item)):
        if not kept or row[item] < row[kept[-1]]:
            kept.append(item)
    return kept
