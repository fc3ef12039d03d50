"""Forecasts: how much of its updates each tensor takes over a schedule, and which averages cannot decay."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.convert import round_to
from mcfsim.formats import Format
from mcfsim.models.plan import Directions, Table, normal_directions
from mcfsim.multiword import expansion
from mcfsim.multiword.expansion import expand
from mcfsim.optim.adamw import AdamW
from mcfsim.optim.state import State, decayed_update, move, split_master
from mcfsim.optim.strategies import Addition, Roles, Strategy
from mcfsim.optim.vectors import requantize
from mcfsim.rounding import Mode
from mcfsim.scaled import ScaledFormat
from mcfsim.scaled.quantisers import Quantiser
from mcfsim.training.metrics import effective_update
from mcfsim.training.schedule import Schedule

# -- averages that cannot decay ---------------------------------------------------------------------------
#: Formats of up to this many bits are tried with all significands, others with 2 to this power, spread
#: evenly.
_MOST_BITS = 14
#: How many numbers are tried if a whole tensor shares a scale.
_GROUP = 128


def significands(fmt: Format) -> NDArray[np.float64]:
    """Return the numbers of a format from 1 up to 2, which represent all normal numbers.

    Formats of more than 14 bits give 2**14 of them, spread evenly, with both ends.
    """
    bits = fmt.precision - 1
    if bits < _MOST_BITS:
        return 1.0 + np.arange(1 << bits) / (1 << bits)
    spread = np.linspace(0, (1 << bits) - 1, 1 << _MOST_BITS).astype(np.int64)
    return 1.0 + spread / (1 << bits)


@lru_cache
def frozen_share(strategy: Strategy, beta2: float, *, beside: bool = False) -> float:
    """Return the share of the second moment's significands that multiplication by beta2 does not change.

    If the share is 1, the second moment never decays: `RN(beta2 x) = x` for every normal number x. This is so
    in bfloat16 at beta2 = .999.

    Parameters
    ----------
    strategy : Strategy
        The strategy, with its low format filled in.
    beta2 : float
        The decay rate, in [0, 1).
    beside : bool, optional
        For numbers that share a scale: whether the largest of them stays, and the scale with it. By default
        all of them decay together, and the scale follows them if it can.

    Returns
    -------
    float
        For a single component, the share in its format; if it is rounded at random, the share that no draw
        moves. For an expansion whose components after the first start at zero, the share of its sums. For
        numbers that share a scale, as steps store them, the share of a group spread over five octaves. 0 for
        exact numbers.

    References
    ----------
    Yu et al., Collage, ICML 2024, on beta2 = .999 in bfloat16.
    """
    stored = strategy.tensors["v"]
    fmt = stored.format
    if fmt is None:
        return 0.0
    if stored.draws:  # truncation moves a product as far as any draw can
        stored = replace(stored, rounding=Mode.TOWARD_ZERO, random_bits=None, rule=None)
    ar: Any = replace(strategy, v=stored).roles().of("v")
    if stored.scaled is not None:
        return _frozen_in_group(ar, stored.scaled, fmt, beta2, beside=beside)
    # All significands, at an exponent in the middle of the range.
    x = ar.round(np.ldexp(significands(fmt), (fmt.emin + fmt.emax) // 2))
    components = (x, *([np.zeros_like(x)] * (stored.components - 1)))
    if strategy.beta2_components > 1:
        decayed = expansion.mul(ar, expand(ar, beta2, strategy.beta2_components), components)
    else:
        decayed = expansion.scale(ar, components, beta2)
    before, after = (
        np.sum([item.astype(np.float64) for item in parts], axis=0) for parts in (components, decayed)
    )
    return float(np.mean(before == after))


def _frozen_in_group(
    ar: Any, kept: ScaledFormat | Quantiser, fmt: Format, beta2: float, *, beside: bool
) -> float:
    """Return the share of a group's numbers that stay; `beside` holds the largest and does not count it."""
    size = kept.block if isinstance(kept.block, int) and kept.block > 1 else _GROUP
    before = np.array(ar.round(np.geomspace(1 / 32, 1, size)))
    requantize(before, [slice(0, size)], kept, fmt)
    after = np.array(ar.mul(before, beta2))
    if beside:
        after[-1] = before[-1]
    requantize(after, [slice(0, size)], kept, fmt)
    stays = after == before
    return float(np.mean(stays[:-1] if beside else stays))


# -- forecasts --------------------------------------------------------------------------------------------
#: How many times a step that rounds at random is made.
_DRAWS = 16
#: Below such a sum of squares, some of them may be subnormal.
_SMALL = 2.0**-900
#: How many steps of a schedule are tried, besides its ends and the end of its warm-up.
_POINTS = 64


@dataclass(frozen=True, eq=False)
class TensorRows:
    """The input of a forecast: weights and directions, one row per tensor.

    Parameters
    ----------
    weights : array, shape (tensors, samples)
        Elements of the tensors.
    directions : Directions
        What steps ask of each element.
    decayed : array of bool, shape (tensors,)
        Whether weight decay applies.
    """

    weights: Table
    directions: Directions
    decayed: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Course:
    """Measures of the updates that arrive under one strategy, at some steps of a schedule.

    Parameters
    ----------
    steps : array of int, shape (points,)
        Numbers of the steps, from 1, in order, the last one included.
    rates : array, shape (points,)
        Their learning rates.
    lost, edq : array, shape (tensors, points)
        Share of elements that were to change and did not; normalised EDQ. NaN where nothing is asked, or
        weights are beyond the range.
    changed : array, shape (tensors, points)
        Share of elements whose parameter, as others read it, has another code after the step; NaN where
        weights are beyond the range.
    beyond : array of bool, shape (tensors, points)
        Whether weights have left the format's range, or a step takes them out of it.
    """

    steps: NDArray[np.int64]
    rates: Table
    lost: Table
    edq: Table
    changed: Table
    beyond: NDArray[np.bool_]

    def over_run(self, measure: Table) -> Table:
        """Return a measure's mean over the schedule, each step weighted by its learning rate.

        The mean is a share of the whole way: how much arrives of all that is asked. It is NaN if nothing is
        asked of a tensor.
        """
        return self._mean(measure, self.rates * lengths(self.steps))

    def per_step(self, measure: Table) -> Table:
        """Return a measure's mean over the steps, all of equal weight."""
        return self._mean(measure, lengths(self.steps))

    def _mean(self, measure: Table, weight: Table) -> Table:
        there = ~np.isnan(measure)
        total = (there * weight).sum(axis=1)
        sums = np.where(there, measure, 0.0) @ weight
        mean: Table = np.divide(sums, total, out=np.full(len(measure), np.nan), where=total > 0)
        return mean

    def stops(self, least: float) -> list[int | None]:
        """Return for each tensor the step after which its EDQ stays below a limit; None if there is none.

        The step is interpolated between two steps that were tried. Steps at the rate 0, as a cosine may end
        in, ask for nothing, and do not count.
        """
        asking = self.rates > 0
        return [stop_of(self.steps[asking], row[asking], least) for row in self.edq]


def stop_of(steps: Sequence[int] | NDArray[Any], edq: Sequence[float] | Table, least: float) -> int | None:
    """Return the step at which a series of EDQ falls below a limit for good; None if its end is not below."""
    below = np.asarray(edq) < least
    if not below[-1:].any():
        return None
    above = np.flatnonzero(~below)
    if not above.size:
        return int(steps[0])
    last = int(above[-1])
    (before, after), (high, low) = steps[last : last + 2], edq[last : last + 2]
    share = (high - least) / (high - low) if high > low else 1.0  # NaN: nothing was asked before
    return min(int(after), int(before) + max(1, math.ceil(share * (after - before))))


def points_of(schedule: Schedule, steps: int) -> NDArray[np.int64]:
    """Return the steps of a schedule to try: the first, the last, where it turns, and some between."""
    spread = np.linspace(1, steps, min(steps, _POINTS)).astype(np.int64)
    turns = [step for step in (schedule.warmup, schedule.warmup + 1) if 1 <= step <= steps]
    return np.unique(np.concatenate([spread, turns, [1, steps]]).astype(np.int64))


def forecast(
    trial: TensorRows, hyper: AdamW, strategy: Strategy, points: NDArray[np.int64], rates: Table
) -> Course:
    """Forecast how a strategy's addition treats the updates of a sample, at some steps of a run.

    Parameters
    ----------
    trial : TensorRows
        The sample.
    hyper : AdamW
        Its weight decay is part of the update.
    strategy : Strategy
        The strategy, with its low format filled in. Weights start as its parameter stores them.
    points : array of int
        The steps to try, from 1, in order; see `points_of`.
    rates : array, shape (steps,)
        The learning rates of all steps of the run.

    Returns
    -------
    Course
        D is ``-lr (d + lambda theta)`` in binary64. E is the exact change of the represented weight, made by
        the optimizer's own algorithm with each operation rounded.
    """
    roles, tensors = strategy.roles(), len(trial.weights)
    _, wandering = normal_directions(*trial.weights.shape)
    shift, variance, arriving = np.zeros(trial.weights.shape), np.zeros(tensors), np.ones(tensors)
    lost, edq, changed = np.empty((3, tensors, points.size))
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
        lost[:, place], edq[:, place], changed[:, place], beyond[:, place] = found
        arriving = np.clip(np.nan_to_num(edq[:, place]), 0.0, 1.0)
    return Course(points, rates[points - 1], lost, edq, changed, beyond)


def _tried(
    trial: TensorRows, weights: Table, hyper: AdamW, strategy: Strategy, roles: Roles, step: int, rate: float
) -> tuple[Table, Table, Table, NDArray[np.bool_]]:
    """Return lost share, EDQ and changed share of each tensor in one step, and which leave the range."""
    directions = trial.directions.at(step)
    lost, edq, changed = np.empty((3, len(weights)))
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
        found = _moved(strategy, roles, state, given, scalars, step).reshape(3, rows.size, -1)
        moved, still, other = found
        beyond[rows] = ~np.isfinite(meant + moved).all(axis=1)
        there = (asked != 0) & (rate > 0) & ~beyond[rows, None]
        count = there.sum(axis=1)
        nothing = np.full(rows.size, np.nan)
        lost[rows] = np.divide((there * still).sum(axis=1), count, out=nothing.copy(), where=count > 0)
        with np.errstate(all="ignore"):
            effective = moved / rate if rate else moved
            squares, arrived = np.square(asked).sum(axis=1), (asked * effective).sum(axis=1)
            far = (count > 0) & ~((squares > _SMALL) & np.isfinite(squares + np.abs(arrived)))
            if far.any():  # squares overflow or underflow, and their quotient need not
                exponents = np.frexp(np.abs(asked[far]).max(axis=1))[1][:, None]
                d, e = np.ldexp(asked[far], -exponents), np.ldexp(effective[far], -exponents)
                squares[far], arrived[far] = np.square(d).sum(axis=1), (d * e).sum(axis=1)
        edq[rows] = np.divide(arrived, squares, out=nothing, where=count > 0)
        changed[rows] = np.where(beyond[rows], np.nan, other.mean(axis=1))
    return lost, edq, changed, beyond


def _moved(
    strategy: Strategy, roles: Roles, state: State, directions: Table, scalars: Any, step: int
) -> Table:
    """Return means over draws: the change of each weight, 1 if there is none, 1 if its code changes."""
    draws = _DRAWS if any(role.rounding and role.rounding.stochastic for role in roles) else 1
    before = state.represented(strategy)
    moved, still, other = found = np.zeros((3, directions.size))
    code = state.parameter[0]
    for draw in range(draws):
        drawn = roles if draws == 1 else roles.on_block(step * draws + draw, 0)
        with np.errstate(all="ignore"):
            direction: Any = drawn.update.round(directions)
            update = decayed_update(drawn.update, strategy, state, direction, scalars)
            parameter, extra = move(drawn, strategy, state, update)
        after = State(parameter, (), (), extra).represented(strategy)
        change = effective_update(before, after)
        moved += change / draws
        still += (change == 0) / draws
        other += ((parameter[0] != code) | (np.signbit(parameter[0]) != np.signbit(code))) / draws
    return found


def stored(strategy: Strategy, roles: Roles, weights: Table) -> State:
    """Return weights as a strategy stores them: each component takes what the ones before cannot hold."""

    def components(ar: Any, count: int) -> tuple[Any, ...]:
        rest, made = weights, []
        for _ in range(count):
            made.append(round_to(rest, ar.format).astype(ar.carrier))
            rest = rest - made[-1]
        return tuple(made)

    if strategy.addition is Addition.MASTER:
        parameter, extra = split_master(roles, strategy, components(roles.parameter, 1)[0])
        return State(tuple(map(np.asarray, parameter)), (), (), tuple(map(np.asarray, extra)))
    if strategy.addition is Addition.KAHAN:
        theta, rest = components(roles.parameter, 2)
        return State((theta,), (), (), (rest,))
    return State(components(roles.parameter, strategy.parameter.components), (), (), ())


def edges_of(steps: NDArray[np.int64]) -> Table:
    """Return where the steps that each tried step represents begin and end: halfway to its neighbours."""
    return np.concatenate([[steps[0] - 0.5], (steps[1:] + steps[:-1]) / 2, [steps[-1] + 0.5]])


def lengths(steps: NDArray[np.int64]) -> Table:
    """Return how many steps each tried step represents."""
    return np.diff(edges_of(steps))
