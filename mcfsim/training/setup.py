"""All that a simulation depends on: its strategies, one after another, optimizer, rates, length and so on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from functools import cached_property
from reprlib import repr as shortened
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from mcfsim.checks import finite_number, whole_number
from mcfsim.convert import round_to
from mcfsim.formats import Format, get_format
from mcfsim.optim.declaration import Declaration, Interval, check_hyperparameters, optimizers
from mcfsim.optim.optimizer import Optimizer
from mcfsim.optim.strategies import Strategy
from mcfsim.optim.strategies import strategy as get_strategy
from mcfsim.random import RandomWords
from mcfsim.rounding import Rounding, get_rounding
from mcfsim.storage.archive import check_name
from mcfsim.training.gradients import Source
from mcfsim.training.schedule import RecordedRates, Schedule

# -- precision schedules: strategies and roundings that replace each other during training -----------------
#: The separators of phases, and of a strategy and its first step, in a text.
_NEXT, _FROM = ",", "@"


@dataclass(frozen=True)
class Phase:
    """A part of a training: steps under one strategy.

    Parameters
    ----------
    strategy : Strategy or str
        The strategy; for a name, or an open low format, the low format is that of the run.
    first : int, optional
        The first step, counted from 1.
    rounding : Rounding or str, optional
        The rounding of the optimizer's operations; by default that of the run.

    Raises
    ------
    TypeError, ValueError
        If a step is not a whole number from 1 on, or a rounding is unknown.
    """

    strategy: Strategy | str
    first: int = 1
    rounding: Rounding | str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "first", whole_number("first", self.first, least=1))
        if self.rounding is not None:
            object.__setattr__(self, "rounding", get_rounding(self.rounding))


@dataclass(frozen=True)
class PrecisionSchedule:
    """A training that changes its strategy, format or rounding at given steps.

    Between phases the state is carried over as `mcfsim.Optimizer.switched` says.

    Parameters
    ----------
    phases : sequence of Phase
        In order; the first begins at step 1.
    name : str, optional
        The name in a run; by default the names of strategies with first steps, such as ``plain,fp32@201``.

    Raises
    ------
    TypeError
        If an element is not a `Phase`, or the name is not a string.
    ValueError
        If there is none, or their first steps do not increase from 1; or if no file can have the name.

    Examples
    --------
    >>> late = PrecisionSchedule([Phase("plain"), Phase("fp32", 201)])
    >>> late.name
    'plain,fp32@201'
    >>> late == PrecisionSchedule.read("plain,fp32@201")
    True
    """

    phases: tuple[Phase, ...]
    name: str = ""

    def __post_init__(self) -> None:
        phases = tuple(self.phases) if isinstance(self.phases, Iterable) else (self.phases,)
        for phase in phases:
            if not isinstance(phase, Phase):
                raise TypeError(
                    f"a precision schedule consists of Phases, like Phase('fp32', 201), not {phase!r}"
                )
        steps = [phase.first for phase in phases]
        if steps[:1] != [1] or steps != sorted(set(steps)):
            raise ValueError(f"the first steps of phases must increase from 1, not {steps}")
        if not isinstance(self.name, str):
            raise TypeError(f"a schedule's name must be a string, not {self.name!r}")
        object.__setattr__(self, "phases", phases)
        if not self.name:
            names = [str(getattr(phase.strategy, "name", phase.strategy)) for phase in phases]
            rest = [f"{name}{_FROM}{step}" for name, step in zip(names[1:], steps[1:], strict=True)]
            object.__setattr__(self, "name", _NEXT.join([*names[:1], *rest]))
        if "|" in self.name:
            raise ValueError(f"a schedule's name must not have a '|': {self.name!r}")
        check_name("schedule", self.name, last=False)

    @classmethod
    def settled(cls, given: PrecisionSchedule | Strategy | str, low: Format, steps: int) -> PrecisionSchedule:
        """Return the schedule of a run, with its low format filled in; a strategy, or its name, is one phase.

        Raises
        ------
        TypeError
            If it is none of these.
        ValueError
            If a name is unknown, or a phase begins after the last step.
        """
        if isinstance(given, str) and _FROM in given:
            given = cls.read(given)
        if not isinstance(given, PrecisionSchedule):
            chosen = get_strategy(given, low)
            return cls((Phase(chosen),), chosen.name)
        phases = tuple(replace(item, strategy=get_strategy(item.strategy, low)) for item in given.phases)
        if phases[-1].first > steps:
            raise ValueError(
                f"{given.name}: step {phases[-1].first} begins a phase, and the run has {steps} steps"
            )
        return replace(given, phases=phases)

    @cached_property
    def strategies(self) -> tuple[Strategy, ...]:
        """The strategies of a settled schedule, in order."""
        return tuple(item.strategy for item in self.phases if isinstance(item.strategy, Strategy))

    @cached_property
    def exact(self) -> bool:
        """Whether all steps of a settled schedule are exact, so that others are compared with it."""
        return all(item.parameter.format is None for item in self.strategies)

    @property
    def plainly(self) -> PrecisionSchedule | Strategy:
        """The form that a run's settings keep: the strategy alone, if there is nothing else."""
        alone = len(self.phases) == 1 and self.phases[0].rounding is None
        return self.strategies[0] if alone and self.strategies[0].name == self.name else self

    @property
    def draws(self) -> bool:
        """Whether a phase rounds at random by itself, whatever the run's rounding."""
        own = [item.rounding for item in self.phases if isinstance(item.rounding, Rounding)]
        return any(item.draws for item in self.strategies) or any(item.stochastic for item in own)

    def at(self, step: int) -> int:
        """Return the index of the phase of a step; before the first step, that of the first."""
        return sum(phase.first <= step for phase in self.phases[1:])

    @classmethod
    def read(cls, text: str) -> PrecisionSchedule:
        """Return the schedule that a text like ``plain,collage-plus@101,fp32@201`` names.

        Raises
        ------
        ValueError
            If a first step is missing, or no whole number.
        """
        first, *others = text.split(_NEXT)
        phases = [Phase(first)]
        for part in others:
            name, _, step = part.rpartition(_FROM)
            if not name or not step.isdecimal():
                raise ValueError(
                    f"{text!r} is no precision schedule: {part!r} must be a strategy and its first step, "
                    f"like fp32{_FROM}201"
                )
            phases.append(Phase(name, int(step)))
        return cls(tuple(phases))


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
        """Return each schedule's first optimizer, all at the source's start rounded to the low format."""
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

        # Make those of later phases, too, so that they raise their errors before the first step.
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
        """Return how many steps are recorded up to and including this one."""
        every, last = self.record_every, step == self.steps > 1
        return step // every + (every > 1 <= step) + (last and step % every > 0)

    def settings(self) -> dict[str, Any]:
        """Return the setup as JSON data from which a run can be repeated."""
        _, *names = (item.name for item in fields(self))
        given = self.source.settings() | {name: getattr(self, name) for name in names}
        given["strategies"] = [item.plainly for item in self.strategies]
        parts = {name: _as_data(item, name) for name, item in given.items()}
        parts["optimizer"] = {"name": type(self.optimizer).__name__.lower(), **parts["optimizer"]}
        return parts


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
    """Return the name of the mode if a rounding has nothing else: both ways to write it are the same run."""
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
            "schedule must be a Schedule, like mcfsim.Schedule(peak=1e-3), or a list of rates, one per step, "
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
