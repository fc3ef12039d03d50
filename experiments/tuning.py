"""The best learning rate of each option, chosen on seeds that are not reported."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from experiments.cells import NOTHING
from experiments.common import resumed

#: Rates, a factor of two apart; if the best is the first or the last, one beyond it is tried, too.
RATES = tuple(5e-4 * 2**k for k in range(6))
#: Seeds of the choice: all rates are tried on the first, the better half of them on the second, too.
SEEDS = (1000, 1001)
#: Returns the losses of trainings, given the option, rate and seed of each; None for one that diverged.
Losses = Callable[[list[tuple[Hashable, float, int]]], Sequence[float | None]]
#: For each option, the losses at each rate, one per seed.
Tuned = dict[Hashable, dict[float, list[float]]]


def losses(name: str, train: Callable[..., dict[str, Any]], jobs: list[Any]) -> list[float | None]:
    """Return the losses of trainings that measure more, as `experiments.common.resumed` makes them."""
    return [found["loss"] for found in resumed(name, train, jobs)]


def tune(options: Sequence[Hashable], losses: Losses) -> Tuned:
    """Train options at rates, and return what they lose.

    A run that diverged counts as a model that knows nothing.
    """

    def tried(jobs: list[tuple[Hashable, float, int]]) -> dict[tuple[Hashable, float], float]:
        made = losses(jobs)
        return {
            (option, rate): NOTHING if loss is None else loss
            for (option, rate, _), loss in zip(jobs, made, strict=True)
        }

    first = tried([(option, rate, SEEDS[0]) for option in options for rate in RATES])
    while more := [(option, rate, SEEDS[0]) for option in options for rate in _beyond(_of(first, option))]:
        first |= tried(more)
    kept = []
    for option in options:
        by_rate = _of(first, option)
        better = sorted(by_rate, key=lambda rate, found=by_rate: found[rate])  # type: ignore[misc]
        kept += [(option, rate, SEEDS[1]) for rate in better[: len(RATES) // 2]]
    second = tried(kept)
    return {
        option: {
            rate: [loss, second[option, rate]] if (option, rate) in second else [loss]
            for rate, loss in sorted(_of(first, option).items())
        }
        for option in options
    }


def _of(losses: dict[tuple[Hashable, float], float], option: Hashable) -> dict[float, float]:
    """Return an option's losses by rate."""
    return {rate: loss for (name, rate), loss in losses.items() if name == option}


def _beyond(by_rate: dict[float, float]) -> list[float]:
    """Return a rate beyond the end, if an option is best there."""
    best = min(by_rate, key=lambda rate: by_rate[rate])
    if best == min(by_rate):
        return [best / 2]
    return [best * 2] if best == max(by_rate) else []


def best_rate(by_rate: dict[float, list[float]]) -> float:
    """Return the rate with the least mean loss of those that all seeds of the choice have tried."""
    tried = [rate for rate in by_rate if len(by_rate[rate]) == len(SEEDS)]
    return min(tried, key=lambda rate: float(np.mean(by_rate[rate])))


def written(tuned: Tuned) -> dict[Hashable, dict[str, list[float]]]:
    """Return the losses with rates as results have them."""
    return {option: {f"{rate:g}": x for rate, x in by_rate.items()} for option, by_rate in tuned.items()}


def shown(losses: Sequence[float]) -> str:
    """Return losses, one a seed, as tables show them."""
    return ", ".join(f"{loss:.3f}" for loss in losses)
