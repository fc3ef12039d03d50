"""Precision schedules: strategies and roundings that replace each other during training."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from mcfsim.checks import whole_number
from mcfsim.formats import Format
from mcfsim.optim.strategies import Strategy
from mcfsim.optim.strategies import strategy as get_strategy
from mcfsim.rounding import Rounding, get_rounding
from mcfsim.storage.archive import check_name

#: The separators of phases, and of a strategy and its first step, in a text.
_NEXT, _FROM = ",", "@"


@dataclass(frozen=True)
class Phase:
    """A part of a training: steps under one strategy.

    Parameters
    ----------
    strategy : Strategy or str
        The strategy; a name, or an open low format, takes that of the run.
    first : int, optional
        The first step, counted from 1.
    rounding : Rounding or str, optional
        The rounding of the optimizer's operations; by default that of the run.

    Raises
    ------
    TypeError, ValueError
        If a step is no whole number from 1 on, or a rounding is unknown.
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
        The name in a run; by default the names of strategies with first steps, as ``plain,fp32@201``.

    Raises
    ------
    TypeError
        If an element is no `Phase`, or the name is no string.
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
                    f"a precision schedule consists of Phases, as Phase('fp32', 201), not {phase!r}"
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
        """Return the schedule of a run, with its low format put in; a strategy, or its name, is one phase.

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
            raise ValueError(f"{given.name}: step {phases[-1].first} begins a phase, and the run has {steps}")
        return replace(given, phases=phases)

    @property
    def strategies(self) -> tuple[Strategy, ...]:
        """The strategies of a settled schedule, in order."""
        return tuple(item.strategy for item in self.phases if isinstance(item.strategy, Strategy))

    @property
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
                    f"{text!r} is no precision schedule: {part!r} must be a strategy and its first step, as "
                    f"fp32{_FROM}201"
                )
            phases.append(Phase(name, int(step)))
        return cls(tuple(phases))
