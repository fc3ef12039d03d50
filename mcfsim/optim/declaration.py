"""What an optimizer declares: hyperparameters, the state that it keeps, and its step."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from importlib import import_module
from inspect import get_annotations, isabstract
from pkgutil import iter_modules
from types import FunctionType, MappingProxyType
from typing import Any, ClassVar

from mcfsim.checks.arguments import finite_number
from mcfsim.optim.over import Over
from mcfsim.optim.state import State, Step
from mcfsim.optim.strategies import Addition, Roles, Strategy
from mcfsim.optim.strategy import SLOTS, SlotName
from mcfsim.protocol import Arithmetic, Value

#: An average of gradients so far, moved by a new one: ``(ar, average, gradient, scalars)``.
Average = Callable[[Arithmetic, tuple[Value, ...], Value, Any], tuple[Value, ...]]


@dataclass(frozen=True)
class Slot:
    """What an optimizer keeps of each tensor, an average that starts from zero.

    Parameters
    ----------
    name : {"m", "v"}
        Its place in a `State`, and its storage in a `Strategy`.
    average : callable, optional
        What a step makes of it, ``(ar, average, gradient, scalars)``: part of the step's text, which the
        simulation also runs in binary64, to see what the stored average has lost. A step in stages
        (`mcfsim.optim.staged`) is run there as a whole, and alone goes without.

    Raises
    ------
    ValueError
        If the name is another: no strategy stores more than two averages.
    """

    name: SlotName
    average: Average | None = None

    def __post_init__(self) -> None:
        if self.name not in SLOTS:
            raise ValueError(
                f"a slot is named {' or '.join(map(repr, SLOTS))}, not {self.name!r}: these are the averages "
                "that a strategy stores, and an optimizer that keeps more of them cannot be declared"
            )


class Interval(Enum):
    """Where a hyperparameter must lie, as an error says it."""

    SHARE = "must lie in [0, 1)"
    POSITIVE = "must be positive"
    NOT_NEGATIVE = "must not be negative"

    def admits(self, x: float) -> bool:
        """Whether a finite number lies there."""
        return x > 0 if self is Interval.POSITIVE else 0 <= x < (1 if self is Interval.SHARE else math.inf)


class Declaration(ABC):
    """Hyperparameters of an optimizer, as a frozen dataclass, and what is to be known of it.

    A subclass in a module of `mcfsim.optim` is known by its name to `simulate`, the command line and
    `mcfsim.torch`; one from elsewhere is handed to them.

    Attributes
    ----------
    slots : tuple of Slot
        The state that it keeps, beside the parameter and what the strategy adds to it; each name once.
    feeds_back : bool
        Whether its step feeds back what rounding the parameter loses, as the addition ``feedback`` asks.
    ranges : mapping of str to Range
        The hyperparameters that are numbers, each checked when one is made.
    staged : bool
        Whether its step has means in it, and is no straight line; see `mcfsim.optim.staged.Staged`.
    """

    slots: ClassVar[tuple[Slot, ...]] = ()
    feeds_back: ClassVar[bool] = False
    ranges: ClassVar[Mapping[str, Interval]] = MappingProxyType({})
    staged: ClassVar[bool] = False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        methods = {name for base in cls.__mro__[1:] for name, item in vars(base).items() if _is_method(item)}
        if hidden := sorted(name for name in get_annotations(cls) if name in methods):
            raise TypeError(
                f"{cls.__name__}: a field called {' or '.join(hidden)} would hide a declaration's method; "
                "give it another name"
            )
        if not all(isinstance(slot, Slot) for slot in cls.slots):
            raise TypeError(f"{cls.__name__}: slots must be Slot(name, average), not {cls.slots}")
        names = [slot.name for slot in cls.slots]
        if len(set(names)) < len(names):
            raise ValueError(f"{cls.__name__}: each slot of state is named once, not {names}")
        if without := [slot.name for slot in cls.slots if slot.average is None and not cls.staged]:
            raise ValueError(
                f"{cls.__name__}: slot {without[0]!r} must say its average; only stages go without"
            )

    def __post_init__(self) -> None:
        numbers = {name: finite_number(name, getattr(self, name)) for name in self.ranges}
        for name, number in numbers.items():
            if not self.ranges[name].admits(number):
                raise ValueError(f"{name} = {number} {self.ranges[name].value}")
            object.__setattr__(self, name, number)

    @abstractmethod
    def scalars(self, roles: Roles, strategy: Strategy, step: int, rate: float, *, decayed: bool) -> Any:
        """Return the scalars of step number `step`, counted from 1, at learning rate `rate`."""

    @abstractmethod
    def entering(self) -> Mapping[str, Mapping[str, float]]:
        """Return the scalars that enter every step: by the role of their arithmetic, and by name."""

    @abstractmethod
    def step(self, roles: Roles, strategy: Strategy, state: State, gradient: Value, scalars: Any) -> Step:
        """Make one step: a branch-free text of the arithmetics that it is handed."""

    def parts(self, slot: str, shape: tuple[int, ...]) -> Mapping[str, Over]:
        """Return what a slot keeps of a tensor of a shape: numbers for what, by name, in this order."""
        return {slot: Over.ELEMENT}

    @classmethod
    def keeps(cls, slot: str) -> bool:
        """Whether it has a slot of a name."""
        return any(item.name == slot for item in cls.slots)


def _is_method(item: Any) -> bool:
    return isinstance(item, FunctionType | classmethod | property)


@lru_cache(maxsize=1)
def optimizers() -> Mapping[str, type[Declaration]]:
    """Return the optimizers that the modules of `mcfsim.optim` declare, by name in small letters."""
    package = import_module("mcfsim.optim")
    found = {}
    for name in sorted(module.name for module in iter_modules(package.__path__)):
        module = import_module(f"{package.__name__}.{name}")
        for label, item in vars(module).items():
            if (
                isinstance(item, type)
                and issubclass(item, Declaration)
                and item.__module__ == module.__name__
                and not isabstract(item)
            ):
                found[label.lower()] = item
    return MappingProxyType(found)


def straight_optimizers() -> Mapping[str, type[Declaration]]:
    """Return those of `optimizers` whose step is one straight line for each element."""
    return MappingProxyType({label: item for label, item in optimizers().items() if not item.staged})


def check_addition(declaration: type[Declaration], strategy: Strategy) -> None:
    """Raise ValueError if a strategy asks an optimizer for a feedback that its step does not have."""
    if strategy.addition is Addition.FEEDBACK and not declaration.feeds_back:
        able = ", ".join(item.__name__ for item in optimizers().values() if item.feeds_back)
        raise ValueError(
            f"strategy {strategy.name!r} feeds errors back into the momentum, and {declaration.__name__} has "
            f"no formula for that; these have: {able}"
        )


def check_hyperparameters(given: Any, label: str) -> None:
    """Raise TypeError unless something is hyperparameters, and not the class or the name of some."""
    if not isinstance(given, Declaration):
        what = f"the class {given.__name__}" if isinstance(given, type) else repr(given)
        raise TypeError(f"{label} must be hyperparameters, as mcfsim.AdamW() or mcfsim.SGD(), not {what}")


def learning_rate(label: str, rate: Any) -> float:
    """Return a learning rate as a float; raise unless it is finite and not negative."""
    if (number := finite_number(label, rate)) < 0:
        raise ValueError(f"{label} = {rate} must not be negative")
    return number
