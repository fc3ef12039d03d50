"""What is known of a model's updates, and the model of them where nothing is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from mcfsim.checks.arguments import finite_number
from mcfsim.models.directions import Directions, Steady, noise_rms, normal_directions
from mcfsim.models.samples import TensorSample
from mcfsim.optim.adamw import AdamW
from mcfsim.training.schedule import Schedule


class Updates(ABC):
    """What a step asks of each weight, in units of the learning rate, decay left out."""

    @property
    @abstractmethod
    def words(self) -> str:
        """Where the directions come from, as a report says it."""

    @abstractmethod
    def directions(
        self, samples: Sequence[TensorSample], hyper: AdamW, schedule: Schedule, steps: int
    ) -> Directions:
        """Return the directions of samples, one row a tensor, in a run of so many steps.

        Raises
        ------
        ValueError
            If what is known does not fit the model's tensors, or is not finite.
        """


@dataclass(frozen=True)
class NoiseModel(Updates):
    """Directions that are normally distributed, of one size in all tensors, whatever the weight.

    Parameters
    ----------
    rms : float, optional
        Their root mean square. By default that of Adam where gradients are noise, by its beta1.

    Raises
    ------
    TypeError
        If it is no number.
    ValueError
        If it is not positive and finite.
    """

    rms: float | None = None

    def __post_init__(self) -> None:
        if self.rms is not None and not finite_number("update_rms", self.rms) > 0:
            raise ValueError(f"update_rms = {self.rms} must be positive")

    @property
    def words(self) -> str:
        """What is supposed."""
        size = (
            "sqrt((1 - beta1) / (1 + beta1)), as of Adam where gradients are noise"
            if self.rms is None
            else f"{self.rms:g}, as given"
        )
        return f"normally distributed directions, whatever the weight; their root mean square is {size}"

    def directions(
        self, samples: Sequence[TensorSample], hyper: AdamW, schedule: Schedule, steps: int
    ) -> Directions:
        """Return normal numbers of the model's size."""
        found, _ = normal_directions(len(samples), samples[0].values.size)
        return Steady(found * (noise_rms(hyper.beta1) if self.rms is None else self.rms), hyper.beta1)
