"""Solvers that choose how to store each tensor under a budget of bytes: by sensitivity, or by size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: How many assignments slightly above the budget the solver may find before the search is given up.
_CUTS = 100
#: The largest loss is scaled to this: the solver distinguishes objectives that differ by 1e-6.
_SCALE = 1e4


@dataclass(frozen=True, eq=False)
class Choices:
    """The candidates for each tensor, with the bytes that they take and the losses that they cause.

    Parameters
    ----------
    names : tuple of str
        Names of the tensors.
    sizes : tuple of int
        Their numbers of elements.
    candidates : tuple of Strategy
        The strategies, each with its format filled in; or other candidates that have a name.
    bytes : tuple of tuple of Fraction
        Bytes per parameter of each tensor under each candidate.
    losses : array, shape (tensors, candidates)
        Loss of each tensor under each candidate, not negative; infinite where a candidate is ruled out.

    Raises
    ------
    ValueError
        If lengths do not fit, a size or a number of bytes is not positive, or a loss is NaN or negative; or
        if every candidate is ruled out for some tensor.
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    candidates: tuple[Any, ...]
    bytes: tuple[tuple[Fraction, ...], ...]
    losses: NDArray[np.float64]

    def __post_init__(self) -> None:
        shape = len(self.names), len(self.candidates)
        if 0 in shape:
            raise ValueError(f"there are {shape[0]} tensors and {shape[1]} candidates; it takes one of each")
        lengths = [len(row) for row in self.bytes]
        if lengths != [shape[1]] * shape[0] or len(self.sizes) != shape[0] or self.losses.shape != shape:
            raise ValueError(
                f"{len(self.sizes)} sizes, {lengths} numbers of bytes and losses of shape "
                f"{self.losses.shape} do not fit {shape[0]} tensors and {shape[1]} candidates"
            )
        if min(self.sizes) < 1 or min(map(min, self.bytes)) <= 0:
            raise ValueError("sizes and bytes must be positive")
        if not (self.losses >= 0).all():
            raise ValueError("losses must be numbers that are not negative, or infinite")
        for name, row in zip(self.names, self.losses, strict=True):
            if not np.isfinite(row).any():
                tried = ", ".join(item.name for item in self.candidates)
                raise ValueError(f"{name} can be stored in no way that is asked for: {tried}")

    @property
    def size(self) -> int:
        """Number of parameters in all."""
        return sum(self.sizes)

    def front(self, tensor: int) -> list[int]:
        """Return a tensor's candidates without dominated ones, fewest bytes first; of equals the first."""
        row, taken = self.losses[tensor], self.bytes[tensor]
        allowed = np.flatnonzero(np.isfinite(row)).tolist()
        kept: list[int] = []
        for item in sorted(allowed, key=lambda item: (taken[item], row[item], item)):
            if not kept or row[item] < row[kept[-1]]:
                kept.append(item)
        return kept

    def bytes_of(self, chosen: Sequence[int]) -> Fraction:
        """Return the bytes that an assignment takes in all."""
        each = zip(self.bytes, chosen, self.sizes, strict=True)
        return sum((row[item] * size for row, item, size in each), Fraction(0))

    def loss_of(self, chosen: Sequence[int]) -> float:
        """Return the total loss of an assignment, correctly rounded."""
        return math.fsum(row[item] for row, item in zip(self.losses, chosen, strict=True))

    def least(self) -> list[int]:
        """Return the assignment of fewest bytes and, among several, the one of least loss."""
        return [self.front(tensor)[0] for tensor in range(len(self.names))]

    def check_budget(self, budget: Fraction, least: Sequence[int], why: str) -> None:
        """Raise ValueError if an assignment, the least, exceeds a budget of bytes per parameter."""
        needed = self.bytes_of(least) / self.size
        if budget < needed:
            raise ValueError(
                f"a budget of {float(budget):g} bytes a parameter is less than the least, "
                f"{float(needed):.6g}{why}"
            )


def by_sensitivity(choices: Choices, budget: Fraction, seconds: float = 60.0) -> list[int]:
    """Return the assignment of least total loss within a budget.

    Minimise the sum of losses subject to the sum of bytes, with one candidate per tensor. This integer
    program is solved by branch and bound (HiGHS). A candidate that takes and loses at least as much as
    another one of the same tensor is removed first. The solver's result is added up exactly. If
    it exceeds the budget by less than the solver's tolerance, it is forbidden, and the next one is sought.

    Parameters
    ----------
    choices : Choices
        Tensors and candidates.
    budget : Fraction
        Bytes per parameter, in the mean of all parameters.
    seconds : float, optional
        Time limit; after it the best assignment found so far is taken.

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
    Strategies here replace their widths, and the share of each update that arrives their bits' gradients.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array

    choices.check_budget(budget, choices.least(), ", that these tensors take in any way asked for")
    places = [(tensor, item) for tensor in range(len(choices.names)) for item in choices.front(tensor)]
    row, column = np.array(places).T
    loss = choices.losses[row, column]
    largest = loss.max()
    share = np.array([float(choices.bytes[t][item] * choices.sizes[t] / choices.size) for t, item in places])
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
    raise RuntimeError(f"{_CUTS} assignments at the budget of {float(budget):g} bytes are slightly above it")


def by_demotion(choices: Choices, budget: Fraction) -> list[int]:
    """Return the assignment that demotes the largest groups of tensors until the budget is kept.

    All tensors begin high: under the candidate that takes more bytes. Whole groups, by `group_of`, are
    demoted in order of their elements, most first, and among equal ones in the order of the tensors. A tensor
    that cannot be low, because it overflows there, is promoted: it stays high, and more groups are demoted
    instead.

    Parameters
    ----------
    choices : Choices
        Tensors and two candidates.
    budget : Fraction
        Bytes per parameter, in the mean of all parameters.

    Returns
    -------
    list of int
        The place of each tensor's candidate.

    Raises
    ------
    ValueError
        If high takes no more bytes than low for some tensor, or the budget is exceeded even when all tensors
        that can be low are.

    References
    ----------
    Lee, Sharma, Aiken, arXiv 2301.13464. They promote tensors while the network is trained; here promotion
    follows from the forecast, before training.
    """
    high, low = (0, 1) if choices.bytes[0][0] > choices.bytes[0][1] else (1, 0)
    for name, row in zip(choices.names, choices.bytes, strict=True):
        if row[high] <= row[low]:
            above, below = choices.candidates[high].name, choices.candidates[low].name
            raise ValueError(f"demotion must save bytes, but {above} takes no more than {below} for {name}")
    able, groups = np.isfinite(choices.losses), [group_of(name) for name in choices.names]
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
    choices.check_budget(budget, chosen, ": all is demoted that does not overflow")
    return chosen


def group_of(name: str) -> str:
    """Return the group of a tensor: its name up to the last dot, which a layer's weight and bias share."""
    return name.rpartition(".")[0] or name
