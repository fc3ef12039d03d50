"""How much of its updates each tensor takes over a schedule: one strategy's addition, tried on a sample.

The model of updates: a step asks a weight for ``-lr (d + lambda theta)``. The direction d has a stated size;
its distribution over weights is normal, or that of directions that were given. From step to step weights
walk by what arrives: the noise of Adam's directions adds up to a step of ``lr`` in the square, and what
they are longer than noise is taken to keep its sign.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.convert import round_to
from mcfsim.optim.adamw import AdamW
from mcfsim.optim.state import State, along, move
from mcfsim.optim.strategies import Addition, Roles, Strategy
from mcfsim.training.metrics import effective_update
from mcfsim.training.schedule import Schedule

Table = NDArray[np.float64]

#: Steps of a schedule that are tried, but for its ends and the end of its warm-up.
_POINTS = 64


@dataclass(frozen=True, eq=False)
class Trial:
    """What is tried: weights and directions, one row a tensor.

    Parameters
    ----------
    weights, directions : array, shape (tensors, samples)
        Elements, and what a step asks of each, in units of the learning rate, without decay.
    decayed : array of bool, shape (tensors,)
        Whether weight decay applies.
    """

    weights: Table
    directions: Table
    decayed: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Course:
    """What comes of the updates under one strategy, at some steps of a schedule.

    Parameters
    ----------
    steps : array of int, shape (points,)
        Numbers of the steps, from 1, in order, the last one included.
    rates : array, shape (points,)
        Their learning rates.
    lost, edq : array, shape (tensors, points)
        Share of elements that were to change and did not; normalised EDQ. NaN where nothing is asked, or
        weights are beyond.
    beyond : array of bool, shape (tensors, points)
        Whether weights have left the format's range, or a step takes them out of it.
    """

    steps: NDArray[np.int64]
    rates: Table
    lost: Table
    edq: Table
    beyond: NDArray[np.bool_]

    def over_run(self, measure: Table) -> Table:
        """Return a measure's mean over the schedule, each step weighted by its learning rate.

        So it is the share of the way: what arrives of all that is asked. NaN for a tensor of which nothing
        is asked.
        """
        weight = self.rates * _lengths(self.steps)
        there = ~np.isnan(measure)
        total = (there * weight).sum(axis=1)
        sums = np.where(there, measure, 0.0) @ weight
        mean: Table = np.divide(sums, total, out=np.full(len(measure), np.nan), where=total > 0)
        return mean

    def stops(self, least: float) -> list[int | None]:
        """Return for each tensor the step from which to the end its EDQ stays below a limit; None if none is.

        Between two steps that were tried it is interpolated.
        """
        return [stop_of(self.steps, row, least) for row in self.edq]


def stop_of(steps: Sequence[int] | NDArray[Any], edq: Sequence[float] | Table, least: float) -> int | None:
    """Return the step from which on a series of EDQ stays below a limit; None if its end does not."""
    below = np.asarray(edq) < least
    if not below[-1]:
        return None
    above = np.flatnonzero(~below)
    if not above.size:
        return int(steps[0])
    last = int(above[-1])
    (before, after), (high, low) = steps[last : last + 2], edq[last : last + 2]
    share = (high - least) / (high - low) if high > low else 1.0  # NaN: nothing was asked before
    return min(int(after), int(before) + max(1, math.ceil(share * (after - before))))


def noise_rms(beta1: float) -> float:
    """Return the root mean square of Adam's directions where gradients are noise, without a mean.

    The average of independent numbers of unit variance by beta1 has the variance (1 - beta1) / (1 + beta1).
    """
    return math.sqrt((1.0 - beta1) / (1.0 + beta1))


@lru_cache
def normal_directions(tensors: int, samples: int) -> tuple[Table, Table]:
    """Return two tables of normal numbers, each row the quantiles of the distribution in another order."""
    from scipy.special import ndtri

    generator = np.random.default_rng(0)
    quantiles = ndtri((np.arange(samples) + 0.5) / samples)
    made = [np.tile(quantiles, (tensors, 1)) for _ in range(2)]
    first, second = (generator.permuted(table, axis=1) for table in made)
    return first, second


def points_of(schedule: Schedule, steps: int) -> NDArray[np.int64]:
    """Return the steps of a schedule that are tried: first, last, where it turns, and some between."""
    spread = np.linspace(1, steps, min(steps, _POINTS)).astype(np.int64)
    turns = [step for step in (schedule.warmup, schedule.warmup + 1) if 1 <= step <= steps]
    return np.unique(np.concatenate([spread, turns, [1, steps]]).astype(np.int64))


def forecast(trial: Trial, hyper: AdamW, strategy: Strategy, schedule: Schedule, steps: int) -> Course:
    """Try a strategy's addition on a sample, at steps of a schedule.

    Parameters
    ----------
    trial : Trial
        The sample.
    hyper : AdamW
        Its beta1 says how long directions of noise are; its weight decay is part of the update.
    strategy : Strategy
        With its low format put in. Weights start as its parameter stores them.
    schedule : Schedule
        The learning rates.
    steps : int
        Length of the run.

    Returns
    -------
    Course
        D is ``-lr (d + lambda theta)`` in binary64, E the exact change of the represented weight, made by
        the optimizer's own text, each operation rounded.
    """
    roles, points = strategy.roles(), points_of(schedule, steps)
    rates = np.array([schedule.rate(step, steps) for step in range(1, steps + 1)])
    noise = noise_rms(hyper.beta1)
    size = np.sqrt(np.mean(np.square(trial.directions), axis=1))
    coherent = np.sqrt(np.clip((size**2 - noise**2) / (1.0 - noise**2), 0.0, 1.0))
    walked = np.minimum(size, noise) / noise
    _, wandering = normal_directions(*trial.weights.shape)
    along_signs = -np.divide(
        trial.directions, size[:, None], out=np.zeros_like(trial.directions), where=size[:, None] > 0
    )
    straight, square, arriving = np.zeros(len(size)), np.zeros(len(size)), np.ones(len(size))
    lost, edq = np.empty((2, len(size), points.size))
    beyond = np.zeros((len(size), points.size), np.bool_)
    done = 0
    for place, step in enumerate(points):
        passed = rates[done : step - 1]
        straight += coherent * arriving * passed.sum()
        square += (walked * arriving) ** 2 * np.square(passed).sum()
        done = int(step) - 1
        with np.errstate(over="ignore", invalid="ignore"):
            weights = trial.weights + straight[:, None] * along_signs + np.sqrt(square)[:, None] * wandering
        rate = float(rates[step - 1])
        found = _tried(trial, weights, hyper, strategy, roles, int(step), rate)
        lost[:, place], edq[:, place], beyond[:, place] = found
        arriving = np.clip(np.nan_to_num(edq[:, place]), 0.0, 1.0)
    return Course(points, rates[points - 1], lost, edq, beyond)


def _tried(
    trial: Trial, weights: Table, hyper: AdamW, strategy: Strategy, roles: Roles, step: int, rate: float
) -> tuple[Table, Table, NDArray[np.bool_]]:
    """Return the lost share and EDQ of each tensor in one step, and which ones are beyond."""
    lost, edq = np.empty((2, len(weights)))
    beyond = np.zeros(len(weights), np.bool_)
    for decayed in (True, False):
        rows = np.flatnonzero(trial.decayed == decayed)
        if not rows.size:
            continue
        scalars = hyper.scalars(roles, strategy, step, rate, decayed=decayed)
        with np.errstate(all="ignore"):
            state = stored(strategy, roles, weights[rows])
            before = state.represented(strategy)
            meant = np.sum([np.asarray(x, np.float64) for x in before], axis=0)
            asked = -(trial.directions[rows] + scalars.decay * meant)  # in units of the rate
            direction: Any = roles.update.round(trial.directions[rows])
            update = along(roles.update, strategy, state, direction, scalars)
            parameter, extra = move(roles, strategy, state, update)
        after = State(parameter, (), (), extra).represented(strategy)
        moved = effective_update(before, after).reshape(asked.shape)
        beyond[rows] = ~np.isfinite(meant + moved).all(axis=1)
        there = (asked != 0) & (rate > 0) & ~beyond[rows, None]
        count = there.sum(axis=1)
        nothing = np.full(rows.size, np.nan)
        lost[rows] = np.divide((there & (moved == 0)).sum(axis=1), count, out=nothing.copy(), where=count > 0)
        with np.errstate(all="ignore"):
            squares = np.square(asked).sum(axis=1)
            arrived = (asked * (moved / rate if rate else moved)).sum(axis=1)
        edq[rows] = np.divide(arrived, squares, out=nothing, where=count > 0)
    return lost, edq, beyond


def stored(strategy: Strategy, roles: Roles, weights: Table) -> State:
    """Return weights as a strategy stores them: what one component cannot hold, the next ones take."""

    def components(ar: Any, count: int) -> tuple[Any, ...]:
        rest, made = weights, []
        for _ in range(count):
            made.append(round_to(rest, ar.format).astype(ar.carrier))
            rest = rest - made[-1]
        return tuple(made)

    if strategy.addition is Addition.MASTER:
        (master,) = components(roles.parameter, 1)
        return State((np.asarray(roles.model.round(master)),), (), (), (master,))
    if strategy.addition is Addition.KAHAN:
        theta, rest = components(roles.parameter, 2)
        return State((theta,), (), (), (rest,))
    return State(components(roles.parameter, strategy.parameter.components), (), (), ())


def _lengths(steps: NDArray[np.int64]) -> Table:
    """Return how many steps each of those that were tried stands for: up to halfway to its neighbours."""
    edges = np.concatenate([[steps[0] - 0.5], (steps[1:] + steps[:-1]) / 2, [steps[-1] + 0.5]])
    return np.diff(edges)
