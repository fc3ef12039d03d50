"""Steps in stages, with means between them: what an optimizer declares that is no straight line."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, NoReturn

import numpy as np
from numpy.typing import NDArray

from mcfsim.optim.declaration import Declaration
from mcfsim.optim.over import Over, Shape, stacked
from mcfsim.optim.strategies import Roles, Strategy
from mcfsim.products import Accumulator

#: What a step knows so far, by name: a value, or a tuple of components.
Known = Mapping[str, Any]
#: What becomes of it: ``(roles, strategy, known, scalars)``, a straight line that gives values by name.
Text = Callable[[Roles, Strategy, Known, Any], dict[str, Any]]


@dataclass(frozen=True)
class Stage:
    """A straight line of a step, for each element, row, column, matrix or tensor.

    Parameters
    ----------
    text : callable
        ``(roles, strategy, known, scalars)``, which returns what it makes by name. A name of the state, as
        ``"parameter"``, is what becomes of that.
    over : Over
        Of what each number is. What is taken of more is the same for all of it, as a row's for its elements.
    takes : tuple of str
        What it may know: ``"gradient"``; ``"parameter"``, ``"extra"`` and parts of slots, tuples of
        components; what earlier stages and means have made.
    """

    text: Text
    over: Over
    takes: tuple[str, ...]

    @property
    def name(self) -> str:
        """Of its text."""
        return self.text.__name__


@dataclass(frozen=True)
class Mean:
    """A mean of numbers that an earlier stage has made, which later ones take for a number.

    Parameters
    ----------
    name : str
        What it is called.
    of : str
        The numbers; of components, the first.
    over : Over
        Over all of what each mean is.
    role : {"v", "update"}
        Whose arithmetic rounds it: once, from the exact sum, or from that of the accumulator.
    accumulator : Accumulator, optional
        By which the numbers are summed, in row-major order; by default exactly.
    """

    name: str
    of: str
    over: Over
    role: Literal["v", "update"]
    accumulator: Accumulator | None = None


class Staged(Declaration):
    """Hyperparameters of an optimizer whose step has means in it, over rows, columns or whole tensors.

    A subclass in a module of `mcfsim.optim` is known by its name to `simulate` and the command line, and so
    is one from elsewhere that is handed to them. `mcfsim.torch` has no such optimizers.
    """

    staged: ClassVar[bool] = True

    @abstractmethod
    def stages(self, shape: tuple[int, ...]) -> tuple[Stage | Mean, ...]:
        """Return a tensor's step, which makes "parameter", "extra", "update" and the parts of slots."""

    def step(self, *given: Any) -> NoReturn:
        """Raise TypeError: it is no straight line."""
        raise TypeError(
            f"a step of {type(self).__name__} is no straight line: between its stages there are means over "
            "whole rows, columns or tensors"
        )


#: Carries out a stage on what it takes, arrays of one shape, and a mean of an array; both know the place of
#: that in the step.
CarryOut = Callable[[int, Stage, dict[str, Any]], dict[str, Any]]
TakeMean = Callable[[int, Mean, NDArray[Any], Shape], NDArray[Any]]


def in_stages(
    hyper: Staged, shape: tuple[int, ...], known: Known, carry_out: CarryOut, take_mean: TakeMean
) -> dict[str, Any]:
    """Make the step of one tensor, and return all that is known then.

    Parameters
    ----------
    hyper : Staged
        The optimizer.
    shape : tuple of int
        Of the tensor, which is not empty.
    known : mapping of str to array, or tuple of arrays
        Vectors: the gradient, and the state.
    carry_out, take_mean : callable
        What is done: with arrays of three indices, see `Over`.

    Returns
    -------
    dict of str to array, or tuple of arrays
        Of three indices.
    """
    whole = stacked(shape)
    places = {name: over for slot in hyper.slots for name, over in hyper.parts(slot.name, shape).items()}
    found = {
        name: mapped(value, partial(_laid, shape=places.get(name, Over.ELEMENT).shape(whole)))
        for name, value in known.items()
    }
    for place, item in enumerate(hyper.stages(shape)):
        target = item.over.shape(whole)
        if isinstance(item, Mean):
            numbers = found[item.of]
            leading = numbers[0] if isinstance(numbers, tuple) else numbers
            found[item.name] = take_mean(place, item, leading, target)
        else:
            given = {name: mapped(found[name], partial(np.broadcast_to, shape=target)) for name in item.takes}
            found |= carry_out(place, item, given)
    return found


def mapped(value: Any, function: Callable[[Any], Any]) -> Any:
    """Apply a function to a value, or to each component of one."""
    return tuple(map(function, value)) if isinstance(value, tuple) else function(value)


def _laid(x: NDArray[Any], shape: Shape) -> NDArray[Any]:
    return x.reshape(shape)
