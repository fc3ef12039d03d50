"""What steps ask of a sample of weights, in units of the learning rate, and how far it takes them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Table = NDArray[np.float64]


class Directions(ABC):
    """Directions of a sample, one row a tensor; weight decay is left out."""

    @abstractmethod
    def at(self, step: int) -> Table:
        """Return the directions of a step, counted from 1: shape (tensors, samples)."""

    @abstractmethod
    def walk(self, first: int, rates: Table) -> tuple[Table, Table]:
        """Return how far some steps take weights.

        Parameters
        ----------
        first : int
            The first of the steps.
        rates : array
            Their learning rates.

        Returns
        -------
        straight : array, shape (tensors, samples)
            What is known of the sum of ``rate * direction``.
        square : array, shape (tensors,)
            The variance of what is not known of it.
        """


@dataclass(frozen=True, eq=False)
class Steady(Directions):
    """The same directions at every step.

    As far as they are no longer than Adam's are where gradients are noise, they are taken for that: such
    directions follow each other so that the variance of their sum is that of as many independent ones of
    length 1. What is longer is taken to keep its sign.

    Parameters
    ----------
    table : array, shape (tensors, samples)
        The directions.
    beta1 : float
        Of the first moment.
    """

    table: Table
    beta1: float

    def at(self, step: int) -> Table:
        """Return the table."""
        return self.table

    def walk(self, first: int, rates: Table) -> tuple[Table, Table]:
        """Return the part that keeps its sign, times the sum of the rates, and the square of the noise."""
        noise, size = noise_rms(self.beta1), rms_of(self.table)
        # With beta1 = 0 noise has the length 1, and only what is longer still can keep its sign.
        longer, room = size**2 - noise**2, 1.0 - noise**2
        kept = np.sqrt(np.clip(longer / room if room > 0 else longer, 0.0, 1.0))
        signs = np.divide(self.table, size[:, None], out=np.zeros_like(self.table), where=size[:, None] > 0)
        square = np.square(np.minimum(size, noise) / noise) * np.square(rates).sum()
        return (kept * rates.sum())[:, None] * signs, square


def noise_rms(beta1: float) -> float:
    """Return the root mean square of Adam's directions where gradients are noise, without a mean.

    The average of independent numbers of unit variance by beta1 has the variance (1 - beta1) / (1 + beta1).
    """
    return math.sqrt((1.0 - beta1) / (1.0 + beta1))


def rms_of(table: Table) -> Table:
    """Return the root mean square of each row."""
    size: Table = np.sqrt(np.mean(np.square(table), axis=1))
    return size


@lru_cache(maxsize=4)
def normal_directions(tensors: int, samples: int) -> tuple[Table, Table]:
    """Return two tables of normal numbers, each row the quantiles of the distribution in another order."""
    from scipy.special import ndtri

    generator = np.random.default_rng(0)
    quantiles = ndtri((np.arange(samples) + 0.5) / samples)
    made = [np.tile(quantiles, (tensors, 1)) for _ in range(2)]
    first, second = (generator.permuted(table, axis=1) for table in made)
    for table in (first, second):
        table.flags.writeable = False
    return first, second
