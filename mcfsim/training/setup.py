"""All that a simulation depends on: problem or recording, optimizer, strategies, length and so on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from reprlib import repr as shortened
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from mcfsim.checks import finite_number, lacks, whole_number
from mcfsim.convert import round_to
from mcfsim.formats import Format, get_format
from mcfsim.optim.declaration import Declaration, Interval, check_hyperparameters, optimizers
from mcfsim.optim.optimizer import Optimizer
from mcfsim.optim.strategies import Strategy
from mcfsim.random import RandomWords
from mcfsim.rounding import Rounding, get_rounding
from mcfsim.training.all_reduce import Reduction
from mcfsim.training.phases import Phase, PrecisionSchedule
from mcfsim.training.problems import Problem, get_problem
from mcfsim.training.problems.base import Tensors, check_loss, loss_and_gradient_of, start_of
from mcfsim.training.schedule import RecordedRates, Schedule


# -- where gradients come from ----------------------------------------------------------------------------
class Source(Protocol):
    """A source of the start and of one gradient per step, the same for the same arguments."""

    @property
    def decayed(self) -> frozenset[str]:
        """Names of the tensors that weight decay applies to."""

    @property
    def has_losses(self) -> bool:
        """Whether a loss comes with each gradient."""

    def check_exact(self) -> None:
        """Raise ValueError if the source has no gradients for weights in mpmath's numbers."""

    def settings(self) -> dict[str, Any]:
        """Return what a run's settings say about the source: JSON data, under its name."""

    def start(self, seed: int) -> Tensors:
        """Return the weights before the first step."""

    def gradient(self, weights: Tensors, step: int, seed: int) -> tuple[float | None, Tensors]:
        """Return the loss (None if there is none) and the gradient of a step, by tensor."""

    def try_out(self, seed: int) -> None:
        """Raise TypeError or ValueError, before the first step, if `results` cannot be computed."""

    def results(self, weights: Tensors) -> dict[str, float]:
        """Return named numbers about the weights after the last step."""

    def fingerprint(self, seed: int) -> str:
        """Return a digest of data that the settings need not name."""


@dataclass(frozen=True)
class ComputedGradients:
    """A source of gradients that a problem computes, in its own precision, at the weights given.

    Parameters
    ----------
    problem : Problem
        The objective.
    reduction : Reduction, optional
        If given, step t reduces the gradients of batches ``k (t - 1) + 1`` to ``k t`` of k parts to one.
    """

    problem: Problem
    reduction: Reduction | None = None
    has_losses = True

    @classmethod
    def of(cls, given: Any, reduction: Any = None) -> ComputedGradients:
        """Make a source of a problem or its name; raise TypeError for anything else."""
        problem = get_problem(given) if isinstance(given, str) else given
        if isinstance(problem, type) or (lacking := lacks(problem, Problem)):
            why = "" if isinstance(problem, type) else f", which lacks {', '.join(lacking)}"
            raise TypeError(
                f"problem must be a Problem, as mcfsim.get_problem('quadratic'), not {problem!r}{why}"
            )
        return cls(problem, Reduction.of(reduction))

    @property
    def decayed(self) -> frozenset[str]:
        """Names of the tensors that weight decay applies to."""
        return self.problem.decayed

    def check_exact(self) -> None:
        """Raise ValueError if the problem does not compute with mpmath's numbers."""
        if not self.problem.exact_capable:
            raise ValueError(
                f"problem {self.problem.name!r} cannot be trained in exact arithmetic; leave out 'exact'"
            )

    def settings(self) -> dict[str, Any]:
        """Return the problem's settings, and those of a reduction if there is one."""
        reduced = {} if self.reduction is None else {"reduction": _as_data(self.reduction, "reduction")}
        return {"problem": _as_data(self.problem.settings(), "problem"), **reduced}

    def start(self, seed: int) -> Tensors:
        """Return the problem's starting point."""
        return start_of(self.problem, seed)

    def gradient(self, weights: Tensors, step: int, seed: int) -> tuple[float | None, Tensors]:
        """Return the loss and the gradient at these weights."""
        reduction = self.reduction
        if reduction is None:
            return loss_and_gradient_of(self.problem, self._taken(weights), step, seed)
        last = reduction.parts * step
        losses, parts = [], []
        for batch in range(last - reduction.parts + 1, last + 1):
            loss, gradient = loss_and_gradient_of(self.problem, self._taken(weights), batch, seed)
            losses.append(loss)
            parts.append({name: x.copy() for name, x in gradient.items()})  # it may be one buffer each time
        mean = sum(losses) / reduction.parts
        return mean, {name: reduction([part[name] for part in parts]) for name in parts[0]}

    def try_out(self, seed: int) -> None:
        """Raise an error if a custom problem has no validation loss at its start."""
        if not type(self.problem).__module__.startswith("mcfsim."):
            self.results(self.start(seed))

    def results(self, weights: Tensors) -> dict[str, float]:
        """Return the validation loss."""
        loss = self.problem.validation_loss(self._taken(weights))
        check_loss(f"validation_loss of problem {self.problem.name!r}", loss)
        return {"validation_loss": float(loss)}

    def fingerprint(self, seed: int) -> str:
        """Return a SHA-256 of what the problem computes at its start.

        It covers the start, the loss on the first batch and its gradient, and the validation loss, with
        names, shapes and all bits.
        """
        start = self.start(seed)
        loss, gradients = loss_and_gradient_of(self.problem, self._taken(start), 1, seed)
        losses = np.array([loss, *self.results(start).values()], dtype=np.float64)
        digest = hashlib.sha256()
        for part in (start, gradients, {"losses": losses}):
            for name in sorted(part):
                array = np.asarray(part[name])
                digest.update(json.dumps([name, array.dtype.str, array.shape]).encode())
                digest.update(array.tobytes())
        return digest.hexdigest()

    @property
    def _dtype(self) -> Any:
        """The dtype that the problem computes in."""
        return np.float64 if self.problem.exact_capable else np.float32

    def _taken(self, weights: Tensors) -> dict[str, NDArray[Any]]:
        """Return copies of weights in the dtype that the problem computes in, or of numbers of mpmath."""
        return {name: x.astype(object if x.dtype == object else self._dtype) for name, x in weights.items()}


# -- settings ---------------------------------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class Setup:
    """The arguments of `mcfsim.simulate` that determine the numbers, with a source for the problem."""

    source: Source
    optimizer: Declaration
    strategies: tuple[PrecisionSchedule, ...]
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
        """Make a setup: look up arguments given by name, and check the others.

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
            "rounding": _rounding(given["rounding"]),
            "schedule": _schedule(given["schedule"], whole["steps"]),
            "strategies": _strategies(given["strategies"], low, whole["steps"]),
        }
        setup = cls(**given | whole | checked)
        if any(x.parameter.format is None for item in setup.strategies for x in item.strategies):
            setup.source.check_exact()
        return setup

    def optimizers(self) -> dict[str, Optimizer]:
        """Return each one's first optimizer, all at the source's start rounded to the low format."""
        tensors = self.source.start(self.seed)
        start: dict[str, NDArray[Any]] = {
            name: round_to(np.asarray(tensor), self.low) for name, tensor in tensors.items()
        }
        options: dict[str, Any] = {"scalars": self.scalars, "precision": self.precision, "steps": self.steps}
        if get_rounding(self.rounding).stochastic or any(item.draws for item in self.strategies):
            options["random"] = RandomWords(self.seed)

        def made(strategy: Strategy, phase: Phase) -> Optimizer:
            given = self.optimizer, strategy, start, self.source.decayed, self.rounded(phase)
            return Optimizer(*given, **options)

        # Those of later phases, too: what they refuse is refused before the first step.
        begun = {x.name: list(map(made, x.strategies, x.phases)) for x in self.strategies}
        return {name: first for name, (first, *_) in begun.items()}

    def rounded(self, phase: Phase) -> Rounding:
        """Return the rounding of a phase."""
        return get_rounding(self.rounding if phase.rounding is None else phase.rounding)

    def fingerprint(self) -> str:
        """Return a SHA-256 of what the problem computes at its start, and two steps of a custom optimizer."""
        found = self.source.fingerprint(self.seed)
        if type(self.optimizer) in optimizers().values():
            return found
        digest, random = hashlib.sha256(found.encode()), np.random.default_rng(0)
        formats = ((item, item.strategies[0].parameter.format) for item in self.strategies)
        low = next((item for item, fmt in formats if fmt is not None), None)
        for optimizer in replace(self, strategies=() if low is None else (low,)).optimizers().values():
            for step in range(1, min(2, self.steps) + 1):
                start = optimizer.weights()
                gradients = {name: random.standard_normal(np.shape(x)) for name, x in start.items()}
                optimizer.step(optimizer.receive(gradients), self.rate(step))
            for x in optimizer.represented():
                digest.update(np.asarray(x).tobytes())
        return digest.hexdigest()

    def rate(self, step: int) -> float:
        """Return the learning rate of a step."""
        return self.schedule.rate(step, self.steps)

    def records(self, step: int) -> bool:
        """Return whether a step is recorded: the first, multiples of `record_every`, and the last."""
        return step in (1, self.steps) or step % self.record_every == 0

    def recorded(self, step: int) -> int:
        """Return how many steps are recorded up to and including one."""
        every, last = self.record_every, step == self.steps > 1
        return step // every + (every > 1 <= step) + (last and step % every > 0)

    def settings(self) -> dict[str, Any]:
        """Return the setup as JSON data from which a run can be repeated."""
        _, *names = (item.name for item in fields(self))
        given = {name: getattr(self, name) for name in names}
        given["strategies"] = [item.plainly for item in self.strategies]
        parts = {name: _as_data(item, name) for name, item in given.items()}
        parts["optimizer"] = {"name": type(self.optimizer).__name__.lower(), **parts["optimizer"]}
        return {**self.source.settings(), **parts}


def _as_data(value: Any, place: str) -> Any:
    """Return a part of a setup as JSON data; raise TypeError, with the place, if it cannot be converted."""
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, Mapping):
        return {
            _as_leaf(name, f"a name in {place}"): _as_data(item, f"{place}.{name}")
            for name, item in value.items()
        }
    if isinstance(value, tuple | list):
        return [_as_data(item, f"{place}[{number}]") for number, item in enumerate(value)]
    return _as_leaf(value, place)


def _as_leaf(value: Any, place: str) -> Any:
    """Return a NumPy number as a Python number, and JSON data unchanged."""
    if isinstance(value, np.generic):
        value = value.item()
    shown: Callable[[Any], str] = shortened
    if value is None or isinstance(value, str | int | float):
        try:
            json.dumps(value)
            return value
        except ValueError:  # more digits than Python writes out
            shown = hex
    raise TypeError(
        f"{place} is {shown(value):.40}, which cannot be written into a run's settings: they have texts, "
        "numbers, True, False, None, and lists and mappings of these"
    )


def _clip(clip: Any) -> float | None:
    if clip is None or clip == np.inf:
        return None
    if not (norm := finite_number("clip", clip)) > 0:
        raise ValueError(f"clip = {norm} must be positive, or None")
    return norm


def _rounding(given: Any) -> Rounding | str:
    """Return the name of a mode, if a rounding is nothing else: both ways to write it are the same run."""
    rounding = get_rounding(given)
    return str(rounding.mode) if rounding == get_rounding(rounding.mode) else rounding


def _optimizer(given: Any) -> Declaration:
    if isinstance(given, str):
        if given not in (known := optimizers()):
            raise ValueError(f"unknown optimizer {given!r}; known optimizers: {', '.join(known)}")
        given = known[given]()
    check_hyperparameters(given, "optimizer")
    return cast(Declaration, given)


def _schedule(given: Any, steps: int) -> Schedule | RecordedRates:
    """Return a schedule; one of another class, or rates, as the rates of all steps, which settings keep."""
    if given is None:
        return Schedule()
    if type(given) in (Schedule, RecordedRates):
        return cast(Schedule | RecordedRates, given)
    if isinstance(given, Schedule):
        given = given.rates(steps)
    if not isinstance(given, list | tuple | np.ndarray) or getattr(given, "ndim", 1) != 1:
        raise TypeError(
            "schedule must be a Schedule, as mcfsim.Schedule(peak=1e-3), or a list of rates, one a step, "
            f"not {given!r}"
        )
    rates = tuple(Interval.NOT_NEGATIVE.number("a rate", rate) for rate in given)
    if len(rates) != steps:
        raise ValueError(f"schedule has {len(rates)} rates, and the run {steps} steps")
    return RecordedRates(rates)


def _strategies(given: Any, low: Format, steps: int) -> tuple[PrecisionSchedule, ...]:
    if isinstance(given, PrecisionSchedule | Strategy | str):
        given = [given]
    if not isinstance(given, Iterable):
        raise TypeError(f"strategies must be a sequence of names or Strategies, not {given!r}")
    chosen = tuple(PrecisionSchedule.settled(item, low, steps) for item in given)
    names = [item.name for item in chosen]
    if not names or len(set(names)) < len(names):
        raise ValueError(f"strategies must be at least one, and each named once: {names}")
    return chosen
