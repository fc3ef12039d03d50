"""The inputs of an audit: how a model is to be trained, and what is known of its updates."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.checks import finite_number, whole_number
from mcfsim.formats import Format
from mcfsim.models.samples import TensorSample
from mcfsim.optim.adamw import AdamW
from mcfsim.optim.muon import Muon
from mcfsim.optim.strategies import STRATEGIES, Strategy, strategy
from mcfsim.optim.strategy import SLOTS
from mcfsim.training.schedule import Schedule

# -- directions: updates in units of the learning rate ----------------------------------------------------
Table = NDArray[np.float64]


class Directions(ABC):
    """The directions of a sample's updates, one row per tensor, without weight decay."""

    @abstractmethod
    def at(self, step: int) -> Table:
        """Return the directions of a step, counted from 1: shape (tensors, samples)."""

    @abstractmethod
    def walk(self, first: int, rates: Table) -> tuple[Table, Table]:
        """Return how far a stretch of steps moves weights.

        Parameters
        ----------
        first : int
            The first of the steps.
        rates : array
            Their learning rates.

        Returns
        -------
        straight : array, shape (tensors, samples)
            The known part of the sum of ``rate * direction``.
        square : array, shape (tensors,)
            The variance of the unknown part.
        """


@dataclass(frozen=True, eq=False)
class Steady(Directions):
    """Directions that are the same at every step.

    Directions as short as Adam's on pure noise are treated as noise: the variance of their sum is that of as
    many independent directions of length 1. The excess of longer directions is assumed to keep its sign.

    Parameters
    ----------
    table : array, shape (tensors, samples)
        The directions, as of Adam.
    beta1 : float or array, shape (tensors,)
        Decay rate of the first moment.
    scale : array, shape (tensors,), optional
        A factor for the directions of each tensor; by default there is none.
    """

    table: Table
    beta1: float | Table
    scale: Table | None = None

    def at(self, step: int) -> Table:
        """Return the table, scaled."""
        return self.table if self.scale is None else self.table * self.scale[:, None]

    def walk(self, first: int, rates: Table) -> tuple[Table, Table]:
        """Return the part that keeps its sign, times the sum of the rates, and the variance of the noise."""
        noise, size = noise_rms(self.beta1), rms_of(self.table)
        # With beta1 = 0 noise has length 1, and only longer directions can keep their sign.
        longer, room = size**2 - noise**2, 1.0 - noise**2
        kept = np.sqrt(np.clip(longer / np.where(room > 0, room, 1.0), 0.0, 1.0))
        signs = np.divide(self.table, size[:, None], out=np.zeros_like(self.table), where=size[:, None] > 0)
        square = np.square(np.minimum(size, noise) / noise) * np.square(rates).sum()
        straight = (kept * rates.sum())[:, None] * signs
        if self.scale is None:
            return straight, square
        return straight * self.scale[:, None], square * self.scale**2


def noise_rms(beta1: float | Table) -> Any:
    """Return the root mean square of Adam's directions if gradients are noise of mean zero.

    The moving average by beta1 of independent numbers of variance 1 has variance (1 - beta1) / (1 + beta1).
    """
    return np.sqrt((1.0 - beta1) / (1.0 + beta1))


def rms_of(table: Table) -> Table:
    """Return the root mean square of each row."""
    size: Table = np.sqrt(np.mean(np.square(table), axis=1))
    return size


@lru_cache(maxsize=4)
def normal_directions(tensors: int, samples: int) -> tuple[Table, Table]:
    """Return two tables of normal numbers; each row holds the normal quantiles in its own random order."""
    from scipy.special import ndtri

    generator = np.random.default_rng(0)
    quantiles = ndtri((np.arange(samples) + 0.5) / samples)
    made = [np.tile(quantiles, (tensors, 1)) for _ in range(2)]
    first, second = (generator.permuted(table, axis=1) for table in made)
    for table in (first, second):
        table.flags.writeable = False
    return first, second


# -- updates ----------------------------------------------------------------------------------------------
class Updates(ABC):
    """A model of the updates that steps ask for, in units of the learning rate and without decay."""

    @property
    @abstractmethod
    def words(self) -> str:
        """The source of the directions, in words for a report."""

    def keeps(self, slot: str, name: str, shape: Sequence[int]) -> bool:
        """Return whether the optimizer keeps a moment, m or v, of a tensor."""
        return True

    def kept(self, name: str, shape: Sequence[int]) -> tuple[str, ...]:
        """Return the moments of a tensor that the optimizer keeps."""
        return tuple(slot for slot in SLOTS if self.keeps(slot, name, shape))

    @abstractmethod
    def directions(self, samples: Sequence[TensorSample], plan: Plan) -> Directions:
        """Return the directions of samples, one row per tensor, in the run of a plan.

        Raises
        ------
        ValueError
            If what is known does not fit the model's tensors, or is not finite.
        """


@dataclass(frozen=True)
class NoiseModel(Updates):
    """Normally distributed directions, of one size in all tensors and independent of the weights.

    Parameters
    ----------
    rms : float, optional
        Their root mean square. By default that of Adam with its beta1 if gradients are noise.

    Raises
    ------
    TypeError
        If it is not a number.
    ValueError
        If it is not positive and finite.
    """

    rms: float | None = None

    def __post_init__(self) -> None:
        if self.rms is not None and not finite_number("update_rms", self.rms) > 0:
            raise ValueError(f"update_rms = {self.rms} must be positive")

    @property
    def words(self) -> str:
        """The assumption, in words for a report."""
        size = (
            "sqrt((1 - beta1) / (1 + beta1)), as of Adam where gradients are noise"
            if self.rms is None
            else f"{self.rms:g}, as given"
        )
        return f"normally distributed directions, whatever the weight; their root mean square is {size}"

    def directions(self, samples: Sequence[TensorSample], plan: Plan) -> Directions:
        """Return normal numbers of the assumed size."""
        found, _ = normal_directions(len(samples), samples[0].values.size)
        beta1 = plan.hyper.beta1
        return Steady(found * (noise_rms(beta1) if self.rms is None else self.rms), beta1)


@dataclass(frozen=True)
class MuonModel(Updates):
    """Normally distributed directions, whose size in a matrix follows from its shape, whatever the gradients.

    An orthogonal factor of r rows and c columns has r c numbers with a mean square of ``1 / max(r, c)``; the
    rate's factor, `mcfsim.optim.muon.Scale`, multiplies them. Published iterations leave singular values
    between .7 and 1.2, which the model takes for 1. A matrix's directions hold together from step to step as
    momentum of noise does; those of the rest are AdamW's, as in `NoiseModel`.

    Parameters
    ----------
    muon : Muon
        The hyperparameters; those of its AdamW are the plan's.

    Raises
    ------
    TypeError
        If it is not a `Muon`.
    ValueError
        If its AdamW moves at a share of the rate, for which an audit has no decay of its own.
    """

    muon: Muon

    def __post_init__(self) -> None:
        if type(self.muon) is not Muon:
            raise TypeError(f"updates are those of mcfsim.Muon(...), not of {self.muon!r}")
        if self.muon.share != 1:
            raise ValueError(f"share = {self.muon.share}: an audit takes AdamW at the rate of Muon, share=1")

    @property
    def words(self) -> str:
        """The assumption, in words for a report."""
        return (
            "normally distributed; in a matrix of r rows and c columns of root mean square "
            "1 / sqrt(max(r, c)), "
            f"as of Muon, by its scale {self.muon.scale!s}; in the rest as of AdamW where gradients are noise"
        )

    def keeps(self, slot: str, name: str, shape: Sequence[int]) -> bool:
        """Return whether the optimizer keeps a moment of a tensor: Muon has no second one of matrices."""
        return bool(self.muon.parts(slot, self.muon.viewed(name, tuple(shape))))

    def directions(self, samples: Sequence[TensorSample], plan: Plan) -> Directions:
        """Return normal numbers of the sizes that shapes give."""
        found, _ = normal_directions(len(samples), samples[0].values.size)
        matrices = [not self.keeps("v", item.name, item.shape) for item in samples]
        decays = np.where(matrices, self.muon.momentum, plan.hyper.beta1)
        noise = noise_rms(decays)
        scales = [
            self.muon.factor(item.shape) / math.sqrt(max(1, *item.shape[-2:])) / size if matrix else 1.0
            for item, matrix, size in zip(samples, matrices, noise.tolist(), strict=True)
        ]
        return Steady(found * noise[:, None], decays, np.array(scales))


# -- the plan ---------------------------------------------------------------------------------------------
def forecast_in(low: Format) -> tuple[Strategy, ...]:
    """Return the strategies tried by default in a low format: all whose losses can be forecast.

    Numbers rounded at random wander about their mean, and moments in a scaled format lose bits themselves; no
    forecast says what that costs. Strategies that the low format does not allow are left out, too.
    """
    found = []
    for name, item in STRATEGIES.items():
        if item.parameter.format is None or item.draws or any(x.scaled for x in item.tensors.values()):
            continue
        with suppress(ValueError):
            made = strategy(name, low)
            made.roles()
            found.append(made)
    return tuple(found)


#: Steps of the longest run that is audited: their rates, all of them, take 14 seconds and .8 GB.
MOST_STEPS = 10**8


@dataclass(frozen=True)
class Plan:
    """A plan for training a model.

    Parameters
    ----------
    hyper : AdamW
        The optimizer, with its own rounding points. `TorchAdamW` is refused: it adds updates in another way.
        Weight decay applies to tensors of two dimensions and more.
    schedule : Schedule
        Learning rates.
    steps : int
        Length of the run, at most 1e8.
    strategies : tuple of Strategy
        Strategies to compare, with their low format filled in.
    updates : Updates
        What is known of the updates.
    threshold : float
        The least share of updates that must arrive in each tensor for a strategy to be recommended.
    stopped : float
        A tensor has stopped where its EDQ stays below this to the end.

    Raises
    ------
    TypeError, ValueError
        If an argument is of the wrong type or out of range; or if a strategy is named twice, is exact, or
        keeps its weights on a grid.
    """

    hyper: AdamW
    schedule: Schedule
    steps: int
    strategies: tuple[Strategy, ...]
    updates: Updates = field(default_factory=NoiseModel)
    threshold: float = 0.95
    stopped: float = 0.5

    def __post_init__(self) -> None:
        if type(self.hyper) is not AdamW:
            raise TypeError(f"an audit is of mcfsim.AdamW(...), not of {self.hyper!r}")
        if whole_number("steps", self.steps, least=1) > MOST_STEPS:
            raise ValueError(f"steps = {self.steps} must be at most {MOST_STEPS}")
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
            if item.parameter.grid is not None:
                raise ValueError(
                    f"strategy {item.name!r} keeps its weights on a grid, and an audit forecasts nothing "
                    "about such weights"
                )

    def decays(self, shape: Sequence[int]) -> bool:
        """Return whether weight decay applies to a tensor: to matrices, but not to gains and biases."""
        return len(shape) > 1
