"""Learning rates by step."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mcfsim.checks.arguments import finite_number, whole_number
from mcfsim.checks.processor import check_processor


@dataclass(frozen=True)
class Schedule:
    """Linear warm-up to a peak, then a cosine or nothing.

    Parameters
    ----------
    peak : float
        The largest learning rate; positive.
    warmup : int
        Steps of linear warm-up; the first step has ``peak / warmup``.
    final : float
        What the cosine ends at, as a share of the peak; 1 keeps the rate constant.

    Raises
    ------
    TypeError
        If one is no number, or the warm-up no int.
    ValueError
        If one is out of range, or not finite.

    Examples
    --------
    >>> schedule = Schedule(peak=0.5, warmup=2, final=0.0)
    >>> [schedule.rate(step, steps=4) for step in (1, 2, 3, 4)]
    [0.25, 0.5, 0.25, 0.0]
    """

    peak: float = 3e-4
    warmup: int = 50
    final: float = 0.1

    def __post_init__(self) -> None:
        for label in ("peak", "final"):
            object.__setattr__(self, label, finite_number(label, getattr(self, label)))
        object.__setattr__(self, "warmup", whole_number("warmup", self.warmup, least=0))
        if not self.peak > 0:
            raise ValueError(f"peak = {self.peak} must be positive")
        if not 0 <= self.final <= 1:
            raise ValueError(f"final = {self.final} must lie in [0, 1]")

    def rate(self, step: int, steps: int) -> float:
        """Return the learning rate of a step of a run of so many steps.

        Parameters
        ----------
        step, steps : int
            ``1 <= step <= steps``.

        Raises
        ------
        TypeError
            If one is no int.
        ValueError
            If the run has no such step.
        """
        check_processor()
        step, steps = whole_number("step", step, least=1), whole_number("steps", steps, least=1)
        if step > steps:
            raise ValueError(f"step = {step} is beyond the last of {steps}")
        if step < self.warmup:
            rate = self.peak * step / self.warmup
            return rate if rate < math.inf else self.peak * (step / self.warmup)
        progress = (step - self.warmup) / max(1, steps - self.warmup)
        return self.peak * (self.final + (1 - self.final) * 0.5 * (1 + math.cos(math.pi * progress)))


@dataclass(frozen=True)
class RecordedRates:
    """Learning rates as a training loop had them.

    Parameters
    ----------
    rates : tuple of float
        One a step.
    """

    rates: tuple[float, ...]

    def rate(self, step: int, steps: int) -> float:
        """Return the learning rate of a step, from 1, of a run of so many steps, which are recorded."""
        return self.rates[step - 1]
