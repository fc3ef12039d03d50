"""How a model is to be trained: what an audit is a function of, beside the weights."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from mcfsim.checks.arguments import finite_number, whole_number
from mcfsim.formats import Format
from mcfsim.models.updates import NoiseModel, Updates
from mcfsim.optim.adamw import AdamW
from mcfsim.optim.strategies import STRATEGIES, Strategy, strategy
from mcfsim.training.schedule import Schedule


def forecast_in(low: Format) -> tuple[Strategy, ...]:
    """Return the strategies that are tried unless others are named: all whose losses are forecast.

    What is rounded at random walks about its mean, and moments in a scaled format lose bits themselves: what
    that costs no forecast says. Left out are those, too, that cannot be had in the low format.
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


@dataclass(frozen=True)
class Plan:
    """How a model is to be trained.

    Parameters
    ----------
    hyper : AdamW
        Of the optimizer, with its own rounding points: no `TorchAdamW`, which adds updates in another way.
        Weight decay applies to tensors of two dimensions and more.
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
        If one is of the wrong type, or out of range, or a strategy named twice or exact, or one
        whose weights lie on a grid.
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
            if item.parameter.grid is not None:
                raise ValueError(
                    f"strategy {item.name!r} keeps its weights on a grid, of which an audit forecasts nothing"
                )

    def decays(self, shape: Sequence[int]) -> bool:
        """Whether weight decay applies to a tensor: to matrices, not to gains and biases."""
        return len(shape) > 1
