"""Declarations of optimizers: hyperparameters, the state that is kept, and the step."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, is_dataclass
from enum import Enum
from functools import lru_cache
from importlib import import_module
from inspect import get_annotations, isabstract
from pkgutil import iter_modules
from types import FunctionType, MappingProxyType, ModuleType
from typing import Any, ClassVar

from mcfsim.checks import finite_number
from mcfsim.optim.state import State, Step
from mcfsim.optim.strategies import Addition, Roles, Strategy
from mcfsim.optim.strategy import SLOTS, SlotName
from mcfsim.protocol import Arithmetic, Value

# -- granularity of numbers in a tensor -------------------------------------------------------------------
#: A tensor as a stack of matrices: number of matrices, rows, columns.
Shape = tuple[int, int, int]


class Granularity(Enum):
    """The parts of a tensor that have one number each: elements, rows, columns, matrices or the tensor.

    The last two axes of a tensor are its rows and columns; the axes before them count matrices. Shared
    numbers form an array of three axes. Axes that do not matter have length 1, so that NumPy broadcasts the
    array.
    """

    ELEMENT = (True, True, True)
    ROW = (True, True, False)
    COLUMN = (True, False, True)
    MATRIX = (True, False, False)
    TENSOR = (False, False, False)

    @property
    def place(self) -> int:
        """The place of the granularity in the order of the enumeration."""
        return list(Granularity).index(self)

    def shape(self, whole: Shape) -> Shape:
        """Return the shape of the array of numbers for a tensor of shape `whole`."""
        stack, rows, columns = (
            size if matters else 1 for size, matters in zip(whole, self.value, strict=True)
        )
        return stack, rows, columns

    def count(self, shape: tuple[int, ...]) -> int:
        """Return how many numbers a tensor of a shape has; an empty tensor has none."""
        whole = stacked(shape)
        return math.prod(self.shape(whole)) if math.prod(whole) else 0


def stacked(shape: tuple[int, ...]) -> Shape:
    """Return a tensor's shape as a stack of matrices; a scalar or a vector is one row."""
    *stack, rows, columns = (1, 1, *shape)[-max(2, len(shape)) :]
    return math.prod(stack), rows, columns


# -- declarations -----------------------------------------------------------------------------------------
#: A function ``(ar, average, gradient, scalars)`` that returns the new average of gradients.
Average = Callable[[Arithmetic, tuple[Value, ...], Value, Any], tuple[Value, ...]]


@dataclass(frozen=True)
class Slot:
    """An average that an optimizer keeps for each tensor, and that starts from zero.

    Parameters
    ----------
    name : {"m", "v"}
        The field of `State` that holds it, and the field of `Strategy` that says how it is stored.
    average : callable, optional
        ``(ar, average, gradient, scalars)``: the part of the step that computes the new average. The
        simulation also runs it in binary64, to see what the stored average has lost. Only an optimizer whose
        step is in stages (`mcfsim.optim.staged`) goes without; the simulation then runs the whole step.

    Raises
    ------
    ValueError
        If `name` is neither of these: no strategy stores more than two averages.
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
    """An interval in which a number must lie; its value is the end of the error message."""

    SHARE = "must lie in [0, 1)"
    POSITIVE = "must be positive"
    NOT_NEGATIVE = "must not be negative"

    def number(self, label: str, x: Any) -> float:
        """Return a number as a float; raise an error unless it is finite and lies in the interval."""
        number, end = finite_number(label, x), 1 if self is Interval.SHARE else math.inf
        if not (0 <= number < end) or (self is Interval.POSITIVE and not number):
            raise ValueError(f"{label} = {number} {self.value}")
        return number


class Declaration(ABC):
    """An optimizer: its hyperparameters, as a frozen dataclass, its state, and its step.

    `simulate`, the command line and `mcfsim.torch` know a subclass in a module of `mcfsim.optim` by its name;
    a subclass from elsewhere must be passed to them.

    Attributes
    ----------
    slots : tuple of Slot
        The state that it keeps, besides the parameter and the strategy's `extra`; each name once.
    feeds_back : bool
        Whether its step feeds back the rounding error of the parameter, as the addition ``feedback`` asks.
    ranges : mapping of str to Interval
        The numeric hyperparameters and their intervals, checked when an instance is made.
    staged : bool
        Whether its step consists of stages instead of one straight line; see `mcfsim.optim.staged.Staged`.
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
                f"{cls.__name__}: slot {without[0]!r} needs an average; only steps in stages go without"
            )

    def __post_init__(self) -> None:
        for name, interval in self.ranges.items():
            object.__setattr__(self, name, interval.number(name, getattr(self, name)))

    @abstractmethod
    def scalars(self, roles: Roles, strategy: Strategy, step: int, rate: float, *, decayed: bool) -> Any:
        """Return the scalars of step number `step`, counted from 1, at learning rate `rate`."""

    @abstractmethod
    def rounded_hyperparameters(self) -> Mapping[str, Mapping[str, float]]:
        """Return the scalars that enter every step, by the role of their arithmetic and by name."""

    @abstractmethod
    def step(self, roles: Roles, strategy: Strategy, state: State, gradient: Value, scalars: Any) -> Step:
        """Make one step: a branch-free algorithm of the given arithmetics."""

    def parts(self, slot: str, shape: tuple[int, ...]) -> Mapping[str, Granularity]:
        """Return the parts that a slot keeps for a tensor of this shape: granularities by name, in order."""
        return {slot: Granularity.ELEMENT}

    @property
    def by_name(self) -> bool:
        """Whether the step of a tensor depends on the tensor's name."""
        return False

    def viewed(self, name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape in which a step sees a tensor: its own, or another of equal size."""
        return shape

    def of_shape(self, roles: Roles, scalars: Any, shape: tuple[int, ...]) -> Any:
        """Return the scalars of one tensor's step, given those that `scalars` returns for all tensors."""
        return scalars

    @classmethod
    def keeps(cls, slot: str) -> bool:
        """Return whether the optimizer has a slot of this name."""
        return any(item.name == slot for item in cls.slots)


def components(hyper: Declaration, strategy: Strategy) -> dict[str, int]:
    """Return how many components each tensor of the state has, by its field of `State`; 0 if it has none."""
    tensors = strategy.tensors
    kept = tensors.keys() - {slot for slot in SLOTS if not hyper.keeps(slot)}
    return {label: tensors[label].components if label in kept else 0 for label in State._fields}


def _is_method(item: Any) -> bool:
    return isinstance(item, FunctionType | classmethod | property)


def modules_of(package: str) -> list[ModuleType]:
    """Import the modules of a package, in the order of their names, and return them."""
    names = sorted(module.name for module in iter_modules(import_module(package).__path__))
    return [import_module(f"{package}.{name}") for name in names]


def declared(package: str, is_meant: Callable[[type], bool]) -> dict[str, type]:
    """Return the classes that a package's files define and `is_meant` accepts, by name, in file order."""
    found = {}
    for module in modules_of(package):
        for label, item in vars(module).items():
            if isinstance(item, type) and item.__module__ == module.__name__ and is_meant(item):
                found[label] = item
    return found


@lru_cache(maxsize=1)
def optimizers() -> Mapping[str, type[Declaration]]:
    """Return the optimizers that the modules of `mcfsim.optim` declare, by name in lower case."""
    found = declared("mcfsim.optim", lambda kind: issubclass(kind, Declaration) and not isabstract(kind))
    return MappingProxyType({label.lower(): item for label, item in found.items()})


def straight_optimizers() -> Mapping[str, type[Declaration]]:
    """Return the optimizers whose step is one straight line per element, by name in lower case."""
    return MappingProxyType({label: item for label, item in optimizers().items() if not item.staged})


def check_addition(declaration: type[Declaration], strategy: Strategy) -> None:
    """Raise ValueError if a strategy asks for feedback and the optimizer's step has none."""
    if strategy.addition is Addition.FEEDBACK and not declaration.feeds_back:
        able = ", ".join(item.__name__ for item in optimizers().values() if item.feeds_back)
        raise ValueError(
            f"strategy {strategy.name!r} feeds errors back into the momentum, and {declaration.__name__} has "
            f"no formula for that; these have: {able}"
        )


def check_hyperparameters(given: Any, label: str) -> None:
    """Raise TypeError unless `given` is an instance of a `Declaration`, and its class a dataclass."""
    if not isinstance(given, Declaration):
        what = f"the class {given.__name__}" if isinstance(given, type) else repr(given)
        raise TypeError(
            f"{label} must be hyperparameters, such as mcfsim.AdamW() or mcfsim.SGD(), not {what}"
        )
    if not is_dataclass(given):
        raise TypeError(
            f"{label} is a {type(given).__name__}, which must be declared with @dataclass(frozen=True)"
        )
