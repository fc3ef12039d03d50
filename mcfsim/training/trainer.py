"""One strategy's part of a simulation: its optimizer, reference averages and series."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.optim.layout import bytes_per_parameter
from mcfsim.optim.on_grid import on_grid
from mcfsim.optim.optimizer import Optimizer
from mcfsim.optim.staged import Staged
from mcfsim.optim.state import State
from mcfsim.optim.strategies import Strategy
from mcfsim.optim.strategy import SLOTS
from mcfsim.training import metrics
from mcfsim.training.exact_step import (
    EXACT,
    REFERENCE,
    REFERENCE_ROLES,
    Components,
    WideStep,
    sample_indices,
)
from mcfsim.training.gradients import Source
from mcfsim.training.schedule import all_finite, clipped
from mcfsim.training.setup import PrecisionSchedule, Setup

#: The series of every trainer, the loss if there is one; and those that compare a step with the exact one.
BASE = ("loss", "rate", "gradient_norm")
COMPARED = ("one_step_error", "update_length", "binary64_gap")
DISTANCE = "distance"
#: How many elements of the averages are moved at a time, so that intermediate results stay in cache.
_BLOCK = 1 << 14


class Trainer:
    """One strategy's part of a simulation: its optimizer, reference averages and series.

    Parameters
    ----------
    source : Source
    optimizer : Optimizer
        At the start, of the first phase.
    phases : PrecisionSchedule
    """

    def __init__(self, source: Source, optimizer: Optimizer, phases: PrecisionSchedule) -> None:
        self.source, self.optimizer, self.phases = source, optimizer, phases
        self.phase = 0
        self.base = BASE if source.has_losses else BASE[1:]
        self.series: dict[str, list[float]] = {}
        #: The first step that met or left a number that is not finite; 0 while there is none.
        self.diverged_at = np.zeros(1, np.int64)
        sizes = {slot: parts.size for slot, parts in optimizer.parts.items()}
        self.averages: dict[str, NDArray[Any]] = {
            slot: np.zeros(sizes.get(slot, optimizer.layout.size)) for slot in SLOTS
        }

    def step(self, t: int, setup: Setup) -> None:
        """Make step number t, and record its measures if the setup records this step."""
        self.enter(t, setup)
        optimizer, rate, record = self.optimizer, setup.rate(t), setup.records(t)
        if record and not self.series:
            mixed = len({_kind(item) for item in self.phases.strategies}) > 1  # phases have other measures
            self.series = {name: [] for name in self.measures(setup, False)} if mixed else {}
        loss, gradients = self.source.gradient(optimizer.weights(), t, setup.seed)
        losses = () if loss is None else (loss,)
        finite = all_finite(*losses, *gradients.values())
        kept, norm = clipped(gradients, setup.clip)
        gradient = optimizer.receive(kept)
        if not self.phases.exact:
            self._average(gradient, t, rate)
        if record and not self.exact:
            before, leading = optimizer.represented(), optimizer.state.parameter[0].copy()
            exact = None
            if setup.truth_sample:
                indices = sample_indices(optimizer.layout.size, setup.truth_sample, setup.seed, t)
                state = {"parameter": before, "m": optimizer.state.m, "v": optimizer.state.v}
                wide = WideStep(optimizer.hyper, optimizer.layout, state, gradient, t, rate)
                exact = wide.judged(indices, setup.precision)
            update = optimizer.step(gradient, rate)
            self._measure(update, before, leading)
            if exact is not None:
                effective = metrics.effective_update(before, optimizer.represented())
                compared = (
                    metrics.relative_error(effective, exact.update),
                    metrics.normalized_edq(exact.update, update),
                    exact.gap,
                )
                self.put(dict(zip(COMPARED, compared, strict=True)))
        else:
            optimizer.step(gradient, rate)
        if not self.diverged_at[0] and not (finite and self._state_is_finite(self._parts(None))):
            self.diverged_at[0] = t
        if record:
            self.put(dict(zip(self.base, (*losses, rate, norm), strict=True)))
            # A measure that steps of this phase do not have is NaN.
            count = setup.recorded(t)
            short = [name for name, x in self.series.items() if len(x) < count and name != DISTANCE]
            self.put(dict.fromkeys(short, np.nan))

    @property
    def exact(self) -> bool:
        """Whether the optimizer of the present phase keeps exact numbers."""
        return self.optimizer.strategy.parameter.format is None

    def optimizer_at(self, step: int, setup: Setup) -> Optimizer:
        """Return the optimizer, switched if a step is of another phase."""
        if (index := self.phases.at(step)) == self.phase:
            return self.optimizer
        phase = self.phases.phases[index]
        return self.optimizer.switched(self.phases.strategies[index], rounding=setup.rounded(phase))

    def enter(self, step: int, setup: Setup) -> None:
        """Take the optimizer of a step in place of the present one."""
        self.optimizer, self.phase = self.optimizer_at(step, setup), self.phases.at(step)

    def measures(self, setup: Setup, distance: bool) -> list[str]:
        """Return the names of the series that this trainer records, in order.

        Parameters
        ----------
        setup : Setup
            Says whether steps are compared with the exact one.
        distance : bool
            Whether `record_distances` compares it with an exact trajectory.
        """
        found: dict[str, Any] = {}
        kinds = {_kind(item): item for item in self.phases.strategies}
        for kind, strategy in kinds.items():
            if kind == _EXACT:
                continue
            here = kind == _kind(self.optimizer.strategy)
            optimizer = self.optimizer if here else self.optimizer.switched(strategy)
            trial, state = Trainer(self.source, optimizer, self.phases), optimizer.state.parameter[0]
            trial._measure(np.zeros_like(state), optimizer.represented(), state)
            found |= dict.fromkeys(trial.series)
        compared = COMPARED if found and setup.truth_sample else ()
        return [*found, *compared, *self.base, *((DISTANCE,) if distance else ())]

    def results(self) -> dict[str, float]:
        """Return the numbers of the whole run."""
        results = self.source.results(self.optimizer.weights())
        if self.diverged_at[0]:
            results["diverged_at"] = int(self.diverged_at[0])
        if (grid := self.optimizer.grid) is not None:
            results["clipped_at_start"] = grid.clipped / max(1, self.optimizer.layout.size)
            if grid.grid.integers.bits > 2:
                weights = self.optimizer.weights()
                ternary = {name: on_grid(x, "ternary", grid.format) for name, x in weights.items()}
                results |= {f"ternary_{name}": x for name, x in self.source.results(ternary).items()}
        hyper, layout = self.optimizer.hyper, self.optimizer.layout
        sizes = [bytes_per_parameter(hyper, item, layout) for item in self.phases.strategies]
        if known := [size for size in sizes if size is not None]:
            results["bytes_per_parameter"] = max(known)
        return results

    def put(self, numbers: Mapping[str, Any]) -> None:
        """Append numbers to the series of their names."""
        for measure, number in numbers.items():
            self.series.setdefault(measure, []).append(float(number))

    def _state_is_finite(self, places: Mapping[str, slice]) -> bool:
        """Return whether slices of the state's vectors are finite."""
        named = self.optimizer.state._asdict().items()
        return all_finite(*(x[places[label]] for label, items in named for x in items))

    def _parts(self, tensor: str | None) -> dict[str, slice]:
        """Return the slice of each vector of the state, by its field of `State`, for a tensor or for all."""
        if tensor is None:
            return dict.fromkeys(State._fields, slice(None))
        part = self.optimizer.layout.slices[tensor]
        found = {"parameter": part, "extra": part}
        found |= {slot: parts.tensor(tensor) for slot, parts in self.optimizer.parts.items()}
        return found

    def _average(self, gradient: NDArray[Any], t: int, rate: float) -> None:
        """Move the reference averages by the optimizer's own algorithm in binary64."""
        hyper, g = self.optimizer.hyper, gradient.astype(np.float64)
        if isinstance(hyper, Staged):
            # The parameter is the run's own: updates follow from it.
            state: dict[str, Components] = {slot: (x,) for slot, x in self.averages.items()}
            state["parameter"] = [x.astype(np.float64) for x in self.optimizer.represented()]
            step = WideStep(hyper, self.optimizer.layout, state, g, t, rate)
            for name, found in step.tensors(REFERENCE):
                for field, parts in self.optimizer.parts.items():
                    for label, place in parts.slices[name].items():
                        self.averages[field][place] = found[label][0].reshape(-1)
            return
        scalars = hyper.scalars(REFERENCE_ROLES, EXACT, t, rate, decayed=True)
        for slot in hyper.slots:
            average = self.averages[slot.name]
            for start in range(0, g.size, _BLOCK):
                block = slice(start, start + _BLOCK)
                assert slot.average is not None
                (average[block],) = slot.average(REFERENCE, (average[block],), g[block], scalars)

    def _measure(self, update: NDArray[Any], before: Sequence[NDArray[Any]], leading: NDArray[Any]) -> None:
        optimizer = self.optimizer
        after, state = optimizer.represented(), optimizer.state
        averages = {
            label: (np.sum([item.astype(np.float64) for item in stored], axis=0), exact)
            for label, exact in self.averages.items()
            if (stored := getattr(state, label))
        }
        parts = {"": slice(0, optimizer.layout.size)}
        if len(optimizer.layout.slices) > 1:
            parts |= {f"/{name}": part for name, part in optimizer.layout.slices.items()}
        moved, fmt = (leading, state.parameter[0]), optimizer.strategy.parameter.format
        found = metrics.measure_parts(parts, update, before, after, moved, fmt)
        for suffix, numbers in found.items():
            places = self._parts(suffix[1:] if suffix else None)
            if optimizer.grid is not None:
                numbers |= optimizer.grid.measures(*moved, parts[suffix])
            if not self._state_is_finite(places):
                numbers |= dict.fromkeys(numbers, np.nan)
            for label, (stored, exact) in averages.items():
                pair = stored[places[label]], exact[places[label]]
                numbers[f"{label}_error"] = metrics.relative_error(*pair)
                numbers[f"{label}_ratio"] = metrics.median_ratio(*pair)
            self.put({measure + suffix: number for measure, number in numbers.items()})


_EXACT = "exact"


def _kind(strategy: Strategy) -> str:
    """Return the kind of a strategy, by what is measured of its steps."""
    if strategy.parameter.format is None:
        return _EXACT
    return "float" if strategy.parameter.grid is None else "grid"


def exact_one(trainers: Collection[Trainer]) -> Trainer | None:
    """Return the first trainer whose steps are all exact, with which the others are compared."""
    return next((trainer for trainer in trainers if trainer.phases.exact), None)


def record_distances(trainers: Collection[Trainer]) -> None:
    """Record the distance of every other strategy from the exact trajectory, relative to its norm."""
    if (truth := exact_one(trainers)) is None:
        return
    ar: Any = truth.optimizer.roles.parameter
    exact = truth.optimizer.state.parameter[0]
    norm = ar.sqrt((exact * exact).sum())
    for trainer in trainers:
        if trainer is not truth:
            difference = sum((ar.round(item) for item in trainer.optimizer.represented()), -exact)
            trainer.put({DISTANCE: ar.sqrt((difference * difference).sum()) / norm if norm else np.nan})
