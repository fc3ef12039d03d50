"""One strategy's part of a simulation: its optimizer and series, and what its steps should have done."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mcfsim.backends.factory import arithmetic
from mcfsim.kernels.native import NativeArithmetic
from mcfsim.optim.declaration import Declaration
from mcfsim.optim.layout import Layout, bytes_per_parameter, parts_of
from mcfsim.optim.on_grid import on_grid
from mcfsim.optim.optimizer import Optimizer
from mcfsim.optim.staged import Gathered, Stage, Staged, in_stages, stages_of
from mcfsim.optim.state import State
from mcfsim.optim.strategies import STRATEGIES, Roles, Strategy
from mcfsim.optim.strategy import SLOTS
from mcfsim.protocol import Arithmetic
from mcfsim.training import metrics
from mcfsim.training.gradients import Source
from mcfsim.training.schedule import all_finite, clipped
from mcfsim.training.setup import PrecisionSchedule, Setup

# -- the update that a step would have made in exact arithmetic, from the same state and gradients --------
EXACT = STRATEGIES["exact"]
#: Binary64: close enough to exact arithmetic, as `WideStep.judged` shows.
REFERENCE = NativeArithmetic(np.float64, fused=False)
REFERENCE_ROLES = Roles(*[REFERENCE] * 5)
#: The components whose sum is a vector of the state.
Components = Sequence[NDArray[Any]]


@dataclass(frozen=True)
class WideStep:
    """A step of an optimizer's own algorithm, in one arithmetic for all of it: binary64 or mpmath.

    Parameters
    ----------
    hyper : Declaration
        The optimizer.
    layout : Layout
        Layout of the parameters.
    state : mapping of str to sequence of array
        Components of ``"parameter"`` and of the slots, before the step.
    gradient : array, shape (size,)
    step : int
        Number of the step, from 1.
    rate : float
        Learning rate.
    """

    hyper: Declaration
    layout: Layout
    state: Mapping[str, Components]
    gradient: NDArray[Any]
    step: int
    rate: float

    def tensors(
        self, ar: Arithmetic, chosen: Iterable[str] | None = None
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the names of tensors, by default of all, and all results of their step by name.

        The results are arrays of three dimensions, or tuples of one array. Empty tensors make no step.
        """
        roles, layout = Roles(ar, ar, ar, ar, ar), self.layout
        slots = parts_of(self.hyper, layout)

        def total(label: str, part: slice) -> Any:
            first, *others = (ar.round(x[part]) for x in self.state[label])
            return (sum(others, first),)

        def gather(place: int, item: Gathered, x: Any, target: Any) -> NDArray[Any]:
            return item.taken(ar, x, target)

        for name in layout.slices if chosen is None else chosen:
            part, shape = layout.slices[name], self.hyper.viewed(name, layout.shapes[name])
            if part.start == part.stop:
                continue
            decayed = part.stop <= layout.decayed_size
            scalars = self.hyper.scalars(roles, EXACT, self.step, self.rate, decayed=decayed)
            scalars = self.hyper.of_shape(roles, scalars, shape)
            known: dict[str, Any] = {**dict.fromkeys(State._fields, ()), "gradient": self.gradient[part]}
            known["parameter"] = total("parameter", part)
            for slot, parts in slots.items():
                known |= {label: total(slot, place) for label, place in parts.slices[name].items()}

            def carry_out(place: int, stage: Stage, given: Any, scalars: Any = scalars) -> dict[str, Any]:
                return stage.algorithm(roles, EXACT, given, scalars)

            with np.errstate(all="ignore"):
                found = in_stages(self.hyper, shape, known, carry_out, gather)
            yield name, found

    def judged(self, sample: NDArray[np.int64], precision: int = 400) -> OneStep:
        """Return the update in binary64, judged by mpmath on a sample of parameters.

        Both run the optimizer's own algorithm, from the exact sums of the stored components.

        Parameters
        ----------
        sample : array of int
            Indices of the parameters that mpmath judges; may be empty. A mean needs a whole tensor, so for
            a step in stages it judges all elements of some tensors instead, see `whole_tensors`.
        precision : int, optional
            Bits of mpmath.
        """
        exact: Any = arithmetic(None, backend="exact", precision=precision)
        wide = np.zeros(self.layout.size)
        for name, found in self.tensors(REFERENCE):
            wide[self.layout.slices[name]] = found["update"].reshape(-1)
        judged, numbers = self, wide
        chosen = self.whole_tensors() if isinstance(self.hyper, Staged) else None
        if chosen is None:
            indices = np.sort(sample)
            judged, numbers = self.of_elements(indices), wide[indices]
        pairs: list[tuple[Any, Any]] = []
        try:
            for name, found in judged.tensors(exact, chosen):
                ours = exact.round(numbers[judged.layout.slices[name]])
                pairs += zip(found["update"].reshape(-1), ours, strict=True)
        except ZeroDivisionError:  # for example where epsilon and v are zero
            return OneStep(wide, math.nan)
        finite = [(truth, found) for truth, found in pairs if math.isfinite(truth) and math.isfinite(found)]
        scale = exact.sqrt(sum(truth * truth for truth, _ in finite) / max(1, len(finite)))
        gap = max((abs(truth - found) for truth, found in finite), default=math.nan)
        return OneStep(wide, float(gap / scale) if scale else math.nan)

    def whole_tensors(self) -> list[str]:
        """Return one tensor per kind of step: the smallest one whose gradient and state are finite."""
        chosen: dict[Any, str] = {}
        for name, shape in sorted(self.layout.shapes.items(), key=lambda item: math.prod(item[1])):
            if math.prod(shape) and self._is_finite(name):
                chosen.setdefault(stages_of(self.hyper, self.hyper.viewed(name, shape)), name)
        return list(chosen.values())

    def _is_finite(self, name: str) -> bool:
        """Return whether a tensor's gradient and state are finite; otherwise it has no exact step."""
        part = self.layout.slices[name]
        vectors = [self.gradient[part], *(x[part] for x in self.state["parameter"])]
        for slot, parts in parts_of(self.hyper, self.layout).items():
            vectors += [x[parts.tensor(name)] for x in self.state[slot]]
        return all(np.isfinite(np.asarray(x, np.float64)).all() for x in vectors)

    def of_elements(self, indices: NDArray[np.int64]) -> WideStep:
        """Return the step of some elements, for a step that is a straight line; decayed ones come first."""
        edge = np.searchsorted(indices, self.layout.decayed_size)
        layout = Layout({"decayed": indices[:edge], "others": indices[edge:]}, ["decayed"])
        state = {label: [x[indices] for x in components] for label, components in self.state.items()}
        return replace(self, layout=layout, state=state, gradient=self.gradient[indices])


class OneStep(NamedTuple):
    """The exact update of a step, as binary64 computes it, and the error of binary64.

    Attributes
    ----------
    update : array of float64, shape (size,)
        The update of all parameters, in binary64.
    gap : float
        Largest difference between `update` and the update in mpmath over a sample, relative to the root
        mean square of the latter: the error of binary64 itself. (An element's own relative error has no
        bound, since ``beta1 m`` may cancel ``(1 - beta1) g``.) NaN without a finite nonzero sample, or if the
        exact step of one divides by zero.
    """

    update: NDArray[np.float64]
    gap: float


def sample_indices(size: int, sample: int, seed: int, step: int) -> NDArray[np.int64]:
    """Return at most `sample` distinct parameter indices, the same for the same seed and step."""
    generator = np.random.default_rng([seed, step])
    return np.sort(generator.choice(size, size=min(sample, size), replace=False))


# -- trainers ---------------------------------------------------------------------------------------------
#: The series of every trainer, the loss if there is one; and those that compare a step with the exact one.
BASE = ("loss", "rate", "gradient_norm")
COMPARED = ("one_step_error", "update_length", "binary64_gap")
DISTANCE = "distance"
#: How many elements of the averages are updated at a time, so that intermediate results stay in cache.
_BLOCK = 1 << 14


class Trainer:
    """One strategy's part of a simulation: its optimizer, reference averages and series.

    Parameters
    ----------
    source : Source
    optimizer : Optimizer
        The optimizer of the first phase, at its start.
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
