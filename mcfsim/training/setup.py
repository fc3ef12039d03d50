"""What a simulation is a function of: problem, optimizer, strategies, length and what is recorded."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from mcfsim.checks.arguments import finite_number, whole_number
from mcfsim.convert import round_to
from mcfsim.formats import Format, get_format
from mcfsim.optim.declaration import Declaration, check_hyperparameters, optimizers
from mcfsim.optim.optimizer import Optimizer
from mcfsim.optim.strategies import Strategy, strategy
from mcfsim.random import RandomWords
from mcfsim.rounding import Rounding, get_rounding
from mcfsim.training.schedule import RecordedRates, Schedule
from mcfsim.training.source import Source


@dataclass(frozen=True, eq=False)
class Setup:
    """The arguments of `mcfsim.simulate` on which the numbers depend, see there; its problem is a source."""

    source: Source
    optimizer: Declaration
    strategies: tuple[Strategy, ...]
    steps: int
    schedule: Schedule | RecordedRates
    seed: int
    low: Format
    clip: float | None
    rounding: Rounding | str
    scalars: str
    record_every: int
    truth_sample: int
    precision: int

    @classmethod
    def of(cls, **given: Any) -> Setup:
        """Look up what is given by its name, and check the rest.

        Raises
        ------
        TypeError, ValueError
            As `mcfsim.simulate` does.
        """
        low = get_format(given["low"])
        least = {"steps": 1, "record_every": 1, "truth_sample": 0, "precision": 64, "seed": 0}
        whole = {label: whole_number(label, given[label], least=number) for label, number in least.items()}
        checked = {
            "clip": _clip(given["clip"]),
            "optimizer": _optimizer(given["optimizer"]),
            "low": low,
            "schedule": _schedule(given["schedule"]),
            "strategies": _strategies(given["strategies"], low),
        }
        setup = cls(**given | whole | checked)
        if any(item.parameter.format is None for item in setup.strategies):
            setup.source.check_exact()
        return setup

    def optimizers(self) -> dict[str, Optimizer]:
        """Return each strategy's optimizer, all at the same start: the source's, in the low format."""
        tensors = self.source.start(self.seed)
        start: dict[str, NDArray[Any]] = {
            name: round_to(np.asarray(tensor), self.low) for name, tensor in tensors.items()
        }
        policy = get_rounding(self.rounding)
        options: dict[str, Any] = {
            "scalars": self.scalars,
            "precision": self.precision,
            "steps": self.steps,
        }
        if policy.stochastic or any(item.draws for item in self.strategies):
            options["random"] = RandomWords(self.seed)
        return {
            item.name: Optimizer(self.optimizer, item, start, self.source.decayed, policy, **options)
            for item in self.strategies
        }

    def rate(self, step: int) -> float:
        """Return the learning rate of a step."""
        return self.schedule.rate(step, self.steps)

    def records(self, step: int) -> bool:
        """Whether a step is recorded: the first, multiples of `record_every`, and the last."""
        return step in (1, self.steps) or step % self.record_every == 0

    def recorded(self, step: int) -> int:
        """Return how many steps are recorded until one, that included."""
        every, last = self.record_every, step == self.steps > 1
        return step // every + (every > 1 <= step) + (last and step % every > 0)

    def settings(self) -> dict[str, Any]:
        """Return it as JSON data, from which a run can be repeated."""
        rounding = self.rounding
        return {
            **self.source.settings(),
            "optimizer": {"name": type(self.optimizer).__name__.lower(), **asdict(cast(Any, self.optimizer))},
            "strategies": [asdict(item) for item in self.strategies],
            "steps": self.steps,
            "schedule": asdict(self.schedule),
            "seed": self.seed,
            "low": asdict(self.low),
            "clip": self.clip,
            "rounding": asdict(rounding) if isinstance(rounding, Rounding) else rounding,
            "scalars": self.scalars,
            "record_every": self.record_every,
            "truth_sample": self.truth_sample,
            "precision": self.precision,
        }


def _clip(clip: Any) -> float | None:
    if clip is None or clip == np.inf:
        return None
    if not (norm := finite_number("clip", clip)) > 0:
        raise ValueError(f"clip = {norm} must be positive, or None")
    return norm


def _optimizer(given: Any) -> Declaration:
    if isinstance(given, str):
        if given not in (known := optimizers()):
            raise ValueError(f"unknown optimizer {given!r}; known optimizers: {', '.join(known)}")
        given = known[given]()
    check_hyperparameters(given, "optimizer")
    return cast(Declaration, given)


def _schedule(given: Any) -> Schedule | RecordedRates:
    schedule = Schedule() if given is None else given
    if not isinstance(schedule, Schedule | RecordedRates):
        raise TypeError(f"schedule must be a Schedule, as mcfsim.Schedule(peak=1e-3), not {schedule!r}")
    return schedule


def _strategies(given: Any, low: Format) -> tuple[Strategy, ...]:
    if isinstance(given, Strategy | str):
        given = [given]
    if not isinstance(given, Iterable):
        raise TypeError(f"strategies must be a sequence of names or Strategies, not {given!r}")
    chosen = tuple(strategy(item, low) for item in given)
    names = [item.name for item in chosen]
    if not names or len(set(names)) < len(names):
        raise ValueError(f"strategies must be at least one, and each named once: {names}")
    return chosen
