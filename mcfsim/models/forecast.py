"""How much of its updates each tensor takes over a schedule: one strategy's addition, tried on a sample.

A step asks a weight for ``-lr (d + lambda theta)``; `mcfsim.models.directions` says what is known of d. From
step to step weights walk by what arrives.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.convert import round_to
from mcfsim.models.directions import Directions, Table, normal_directions
from mcfsim.optim.adamw import AdamW
from mcfsim.optim.optimizer import block_roles
from mcfsim.optim.state import State, along, move, of_master
from mcfsim.optim.strategies import Addition, Roles, Strategy
from mcfsim.training.metrics import effective_update
from mcfsim.training.schedule import Schedule

#: Times that a step is made which rounds at random.
_DRAWS = 16
#: Steps of a schedule that are tried, but for its ends and the end of its warm-up.
_POINTS = 64


@dataclass(frozen=True, eq=False)
class TensorRows:
    """What is tried: weights and directions, one row a tensor.

    Parameters
    ----------
    weights : array, shape (tensors, samples)
        Elements.
    directions : Directions
        What steps ask of each.
    decayed : array of bool, shape (tensors,)
        Whether weight decay applies.
    """

    weights: Table
    directions: Directions
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
        weight = self.rates * lengths(self.steps)
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


def points_of(schedule: Schedule, steps: int) -> NDArray[np.int64]:
    """Return the steps of a schedule that are tried: first, last, where it turns, and some between."""
    spread = np.linspace(1, steps, min(steps, _POINTS)).astype(np.int64)
    turns = [step for step in (schedule.warmup, schedule.warmup + 1) if 1 <= step <= steps]
    return np.unique(np.concatenate([spread, turns, [1, steps]]).astype(np.int64))


def forecast(trial: TensorRows, hyper: AdamW, strategy: Strategy, schedule: Schedule, steps: int) -> Course:
    """Try a strategy's addition on a sample, at steps of a schedule.

    Parameters
    ----------
    trial : Trial
        The sample.
    hyper : AdamW
        Its weight decay is part of the update.
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
    tensors = len(trial.weights)
    _, wandering = normal_directions(*trial.weights.shape)
    shift, variance, arriving = np.zeros(trial.weights.shape), np.zeros(tensors), np.ones(tensors)
    lost, edq = np.empty((2, tensors, points.size))
    beyond = np.zeros((tensors, points.size), np.bool_)
    done = 0
    for place, step in enumerate(points.tolist()):
        with np.errstate(over="ignore", invalid="ignore"):
            straight, square = trial.directions.walk(done + 1, rates[done : step - 1])
            shift -= arriving[:, None] * straight
            variance += arriving**2 * square
            weights = trial.weights + shift + np.sqrt(variance)[:, None] * wandering
        done = step - 1
        rate = float(rates[step - 1])
        found = _tried(trial, weights, hyper, strategy, roles, step, rate)
        lost[:, place], edq[:, place], beyond[:, place] = found
        arriving = np.clip(np.nan_to_num(edq[:, place]), 0.0, 1.0)
    return Course(points, rates[points - 1], lost, edq, beyond)


def _tried(
    trial: TensorRows, weights: Table, hyper: AdamW, strategy: Strategy, roles: Roles, step: int, rate: float
) -> tuple[Table, Table, NDArray[np.bool_]]:
    """Return the lost share and EDQ of each tensor in one step, and which ones are beyond."""
    directions = trial.directions.at(step)
    lost, edq = np.empty((2, len(weights)))
    beyond = np.zeros(len(weights), np.bool_)
    for decayed in (True, False):
        rows = np.flatnonzero(trial.decayed == decayed)
        if not rows.size:
            continue
        scalars = hyper.scalars(roles, strategy, step, rate, decayed=decayed)
        with np.errstate(all="ignore"):
            state = stored(strategy, roles, weights[rows].ravel())
            before = state.represented(strategy)
            meant = np.sum([np.asarray(x, np.float64) for x in before], axis=0).reshape(rows.size, -1)
            asked = -(directions[rows] + scalars.decay * meant)  # in units of the rate
        given = directions[rows].ravel()
        moved, still = _moved(strategy, roles, state, given, scalars, step).reshape(2, rows.size, -1)
        beyond[rows] = ~np.isfinite(meant + moved).all(axis=1)
        there = (asked != 0) & (rate > 0) & ~beyond[rows, None]
        count = there.sum(axis=1)
        nothing = np.full(rows.size, np.nan)
        lost[rows] = np.divide((there * still).sum(axis=1), count, out=nothing.copy(), where=count > 0)
        with np.errstate(all="ignore"):
            squares = np.square(asked).sum(axis=1)
            arrived = (asked * (moved / rate if rate else moved)).sum(axis=1)
        edq[rows] = np.divide(arrived, squares, out=nothing, where=count > 0)
    return lost, edq, beyond


def _moved(
    strategy: Strategy, roles: Roles, state: State, directions: Table, scalars: Any, step: int
) -> Table:
    """Return the change of each weight in one step, and whether there is none: means over draws."""
    draws = _DRAWS if any(role.rounding and role.rounding.stochastic for role in roles) else 1
    before = state.represented(strategy)
    moved, still = found = np.zeros((2, directions.size))
    for draw in range(draws):
        drawn = roles if draws == 1 else block_roles(roles, step * draws + draw, 0)
        with np.errstate(all="ignore"):
            direction: Any = drawn.update.round(directions)
            update = along(drawn.update, strategy, state, direction, scalars)
            parameter, extra = move(drawn, strategy, state, update)
        after = State(parameter, (), (), extra).represented(strategy)
        change = effective_update(before, after)
        moved += change / draws
        still += (change == 0) / draws
    return found


def stored(strategy: Strategy, roles: Roles, weights: Table) -> State:
    """Return weights as a strategy stores them: what one component cannot hold, the next ones take."""

    def components(ar: Any, count: int) -> tuple[Any, ...]:
        rest, made = weights, []
        for _ in range(count):
            made.append(round_to(rest, ar.format).astype(ar.carrier))
            rest = rest - made[-1]
        return tuple(made)

    if strategy.addition is Addition.MASTER:
        parameter, extra = of_master(roles, strategy, components(roles.parameter, 1)[0])
        return State(tuple(map(np.asarray, parameter)), (), (), tuple(map(np.asarray, extra)))
    if strategy.addition is Addition.KAHAN:
        theta, rest = components(roles.parameter, 2)
        return State((theta,), (), (), (rest,))
    return State(components(roles.parameter, strategy.parameter.components), (), (), ())


def lengths(steps: NDArray[np.int64]) -> Table:
    """Return how many steps each of those that were tried stands for: up to halfway to its neighbours."""
    edges = np.concatenate([[steps[0] - 0.5], (steps[1:] + steps[:-1]) / 2, [steps[-1] + 0.5]])
    return np.diff(edges)
