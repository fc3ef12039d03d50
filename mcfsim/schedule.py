"""Learning rates by step."""

from __future__ import annotations

import math
from dataclasses import dataclass


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
    ValueError
        If one is out of range.
    """

    peak: float = 3e-4
    warmup: int = 50
    final: float = 0.1

    def __post_init__(self) -> None:
        if not self.peak > 0:
            raise ValueError(f"peak = {self.peak} must be positive")
        if self.warmup < 0:
            raise ValueError(f"warmup = {self.warmup} must not be negative")
        if not 0 <= self.final <= 1:
            raise ValueError(f"final = {self.final} must lie in [0, 1]")

    def rate(self, step: int, steps: int) -> float:
        """Return the learning rate of a step, counted from 1, of a run of so many steps."""
        if step < self.warmup:
            return self.peak * step / self.warmup
        progress = (step - self.warmup) / max(1, steps - self.warmup)
        return self.peak * (self.final + (1 - self.final) * 0.5 * (1 + math.cos(math.pi * progress)))
