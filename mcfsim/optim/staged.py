"""Declarations of optimizers whose step has stages, with means or other numbers of matrices between them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import partial, wraps
from typing import Any, ClassVar, Literal, NoReturn

import numpy as np
from numpy.typing import NDArray

from mcfsim.compile.program import mapped
from mcfsim.kernels import native
from mcfsim.kernels.exact_dot import ODD_BITS, PIECE, Summands, dot_to_odd
from mcfsim.kernels.native import NativeArithmetic
from mcfsim.optim.declaration import Declaration, Granularity, Shape, components, stacked
from mcfsim.optim.state import State, Step, move, step_by
from mcfsim.optim.strategies import Roles, Strategy
from mcfsim.products import Accumulator, matmul
from mcfsim.protocol import Arithmetic, Value
from mcfsim.rounding import Mode
from mcfsim.scaled.rules import sum_of_magnitudes

#: The intermediate results of a step, by name: each a value, or a tuple of components.
Known = Mapping[str, Any]
#: A straight line ``(roles, strategy, known, scalars)`` that returns new results by name.
Algorithm = Callable[[Roles, Strategy, Known, Any], dict[str, Any]]


@dataclass(frozen=True)
class Stage:
    """A straight line of a step, run for each element, row, column, matrix or tensor.

    Parameters
    ----------
    algorithm : callable
        ``(roles, strategy, known, scalars)``, which returns its results by name. A result named like a part
        of the state, such as ``"parameter"``, is the new value of that part.
    over : Granularity
        What each number belongs to. A number of a coarser granularity is shared: a row's by its elements.
    takes : tuple of str
        The names that it may read: ``"gradient"``; ``"parameter"``, ``"extra"`` and parts of slots, which
        are tuples of components; and results of earlier stages and `Gathered` numbers.
    """

    algorithm: Algorithm
    over: Granularity
    takes: tuple[str, ...]

    @property
    def name(self) -> str:
        """Name of the stage's function."""
        return self.algorithm.__name__


@dataclass(frozen=True)
class Gathered(ABC):
    """Numbers made of whole rows, columns, matrices or tensors, which later stages can read.

    Parameters
    ----------
    name : str
        The name of the numbers.
    of : str
        The name of the numbers, computed by an earlier stage, from which these are made; of several
        components, the first is used.
    over : Granularity
        What each number belongs to.
    role : {"v", "update"}
        The role to whose arithmetic they belong.
    """

    name: str
    of: str
    over: Granularity
    role: Literal["v", "update"]

    @property
    @abstractmethod
    def what(self) -> str:
        """A description of the numbers."""

    @abstractmethod
    def taken(self, ar: Arithmetic, x: NDArray[Any], target: Shape) -> NDArray[Any]:
        """Return the numbers, an array of shape `target`, for an array of three axes; see `Granularity`."""

    @abstractmethod
    def check(self, ar: Arithmetic) -> None:
        """Raise an error if an arithmetic cannot be used."""


@dataclass(frozen=True)
class Mean(Gathered):
    """A mean over each row, column, matrix or the tensor, rounded once from the exact or accumulated sum.

    Parameters
    ----------
    name, of, over, role
        As for `Gathered`.
    accumulator : Accumulator, optional
        Sums the numbers, in row-major order; by default the sum is exact.
    """

    accumulator: Accumulator | None = None

    @property
    def what(self) -> str:
        """A description of the numbers."""
        return f"mean of {self.of}, rounded once"

    def taken(self, ar: Arithmetic, x: NDArray[Any], target: Shape) -> NDArray[Any]:
        """Return the means."""
        return mean(ar, x, target, self.accumulator)

    def check(self, ar: Arithmetic) -> None:
        """Raise an error unless the arithmetic can round means once; see `check_mean`."""
        check_mean(ar, self.accumulator)


class Staged(Declaration):
    """Hyperparameters of an optimizer whose step contains numbers made of whole rows, columns or matrices.

    `simulate` and the command line know a subclass in a module of `mcfsim.optim` by its name; a subclass from
    elsewhere must be passed to them. `mcfsim.torch` makes their steps on the CPU.
    """

    staged: ClassVar[bool] = True

    @abstractmethod
    def stages(self, shape: tuple[int, ...]) -> tuple[Stage | Gathered, ...]:
        """Return a tensor's step; it computes "parameter", "extra", "update" and the parts of slots."""

    def step(self, *given: Any) -> NoReturn:
        """Raise TypeError: the step is not a straight line."""
        raise TypeError(
            f"a step of {type(self).__name__} is no straight line: between its stages it takes numbers made "
            "of whole rows, columns or matrices"
        )


def straight(step: Callable[..., Step]) -> Stage:
    """Return a step that is a straight line as one stage, which takes the state by its fields' names."""

    @wraps(step)
    def by_name(roles: Roles, strategy: Strategy, known: Known, scalars: Any) -> dict[str, Any]:
        old = State(*(known[label] for label in State._fields))
        new, update = step_by(step, roles, strategy, old, known["gradient"], scalars)
        return {**{label: tuple(part) for label, part in new._asdict().items()}, "update": update}

    return Stage(by_name, Granularity.ELEMENT, (*State._fields, "gradient"))


def parameter_of(known: Known) -> State:
    """Return the parameter, with what is stored beside it, as a state without moments."""
    return State(known["parameter"], (), (), known["extra"])


def moved_by(roles: Roles, strategy: Strategy, known: Known, update: Value) -> dict[str, Any]:
    """Return what the last stage of a step gives: the update, and the parameter after its addition."""
    parameter, extra = move(roles, strategy, parameter_of(known), update)
    return {"parameter": parameter, "extra": extra, "update": update}


def stages_of(hyper: Declaration, shape: tuple[int, ...]) -> tuple[Stage | Gathered, ...]:
    """Return a tensor's step; a straight line is one stage."""
    return hyper.stages(shape) if isinstance(hyper, Staged) else (straight(hyper.step),)


def known_state(
    hyper: Declaration, strategy: Strategy, shape: tuple[int, ...], each: Mapping[str, Any]
) -> dict[str, tuple[Any, ...]]:
    """Return the state of a tensor as its step knows it, with the entry of a field for each component."""
    found: dict[str, tuple[Any, ...]] = {}
    for label, count in components(hyper, strategy).items():
        names = hyper.parts(label, shape) if hyper.keeps(label) else (label,)
        found |= dict.fromkeys(names, (each[label],) * count)
    return found


def check_step(hyper: Declaration, strategy: Strategy, roles: Roles, shape: tuple[int, ...]) -> None:
    """Make the step of a tensor on arrays without elements, to raise the errors of an arithmetic.

    Raises
    ------
    ValueError, UnsupportedFormatError
        If the arithmetic refuses an operation, or cannot gather the numbers between stages (see `Gathered`).
    """
    scalars = hyper.of_shape(roles, hyper.scalars(roles, strategy, 1, 1.0, decayed=True), shape)
    empty = {label: np.empty(0, role.carrier) for label, role in roles.stored.items()}
    known: dict[str, Any] = {"gradient": empty["m"], **known_state(hyper, strategy, shape, empty)}
    for item in stages_of(hyper, shape):
        if isinstance(item, Gathered):
            item.check(ar := roles.of(item.role))
            known[item.name] = np.empty(0, ar.carrier)
        else:
            given = {name: known[name] for name in item.takes}
            known |= item.algorithm(roles.on_block(1, 0), strategy, given, scalars)


#: Functions that run a stage on arrays of one shape, given by name, and compute numbers from a whole array;
#: the first argument is the place in the step.
CarryOut = Callable[[int, Stage, dict[str, Any]], dict[str, Any]]
Gather = Callable[[int, Gathered, NDArray[Any], Shape], NDArray[Any]]


def in_stages(
    hyper: Declaration, shape: tuple[int, ...], known: Known, carry_out: CarryOut, gather: Gather
) -> dict[str, Any]:
    """Make the step of one tensor, and return all of its results by name.

    Parameters
    ----------
    hyper : Declaration
        The optimizer.
    shape : tuple of int
        The shape of the tensor, which is not empty.
    known : mapping of str to array, or tuple of arrays
        The gradient and the state, as vectors.
    carry_out, gather : callable
        Functions that run stages and gather numbers, on arrays of three axes (see `Granularity`).

    Returns
    -------
    dict of str to array, or tuple of arrays
        Arrays of three axes.
    """
    whole = stacked(shape)
    places = {name: over for slot in hyper.slots for name, over in hyper.parts(slot.name, shape).items()}
    found = {
        name: mapped(partial(np.reshape, shape=places.get(name, Granularity.ELEMENT).shape(whole)), value)
        for name, value in known.items()
    }
    for place, item in enumerate(stages_of(hyper, shape)):
        target = item.over.shape(whole)
        if isinstance(item, Gathered):
            numbers = found[item.of]
            leading = numbers[0] if isinstance(numbers, tuple) else numbers
            found[item.name] = gather(place, item, leading, target)
        else:
            given = {name: mapped(partial(np.broadcast_to, shape=target), found[name]) for name in item.takes}
            found |= carry_out(place, item, given)
    return found


# -- means with a specified summation ---------------------------------------------------------------------
Array = NDArray[Any]


def check_mean(ar: Arithmetic, accumulator: Accumulator | None) -> None:
    """Raise an error unless an arithmetic can round means once.

    Raises
    ------
    ValueError
        If operands are to be flushed, or the accumulator rounds at random.
    UnsupportedFormatError
        If the significands of the arithmetic's format are too long, or its range too wide, for exact sums.
    """
    if accumulator is not None and accumulator.rounding.stochastic:
        raise ValueError(
            "the sums of a mean are not rounded at random, since an accumulator has no random words; only "
            "the mean itself is, if its arithmetic rounds so"
        )
    fmt, rounding = ar.format, ar.rounding
    if fmt is not None and rounding is not None and not isinstance(ar, NativeArithmetic):
        Accumulator(fmt, rounding, block=None)  # refuses formats whose sums are not exact


def mean(ar: Arithmetic, x: Array, target: Shape, accumulator: Accumulator | None = None) -> Array:
    """Return means of numbers over the axes that have length 1 in the result.

    Parameters
    ----------
    ar : Arithmetic
        The arithmetic of one block. It rounds each quotient of sum and count once, correctly, for the
        specified sum. In mpmath, sums are mpmath's; in binary64, by `NativeArithmetic`, they are NumPy's.
    x : array
        Array of three axes, not empty, with values of a format that `check_mean` accepts.
    target : tuple of three int
        Shape of the result.
    accumulator : Accumulator, optional
        Sums the numbers, in row-major order; by default the sum is exact.

    Returns
    -------
    array
        NaN where a number is NaN, or infinities of both signs are among them; otherwise infinite where a
        number is. A count enters exactly, whatever the policy for real scalars.

    Notes
    -----
    Let the exact sum S be rounded to odd in 52 bits. The result lies on the same side of every 52-bit number
    as S. The rounding of S / n changes at numbers B of p bits plus guard bits, and S / n lies above B if and
    only if S lies above n B. So the rounded quotient is correct if n B has at most 52 bits. Otherwise the
    mean is computed with fractions.
    """
    rest = tuple(axis for axis in range(3) if target[axis] != x.shape[axis])
    count = x.size // math.prod(target)
    if ar.format is None or isinstance(ar, NativeArithmetic):
        total = x.sum(axis=rest, keepdims=True)
        return np.asarray(ar.div(total, float(count)))
    assert ar.rounding is not None
    kept = tuple(axis for axis in range(3) if axis not in rest)
    numbers = x.transpose(*kept, *rest).reshape(-1, count)
    if accumulator is None:
        total = _exact(numbers, down=ar.rounding.mode is Mode.DOWN)
    else:
        total = matmul(numbers, np.ones(count, np.float32), accumulator).astype(np.float64)
    with np.errstate(all="ignore"):
        quotients = native.make_odd(*native.div(total, np.float64(count)))
    # The numbers at which the rounding changes its result have this many bits.
    bits = ar.format.precision + ar.rounding.guard_bits
    if accumulator is None and bits + count.bit_length() > ODD_BITS:
        finite = np.flatnonzero(np.isfinite(quotients) & (quotients != 0))
        quotients[finite] = _by_fractions(numbers[finite])
    return np.asarray(ar.round(quotients)).reshape(target)


def _exact(numbers: Array, *, down: bool) -> NDArray[np.float64]:
    """Return the exact sums of rows, rounded to odd in 52 bits."""
    rows, count = numbers.shape
    sums = np.empty(rows)
    step = max(1, PIECE // count)
    for first in range(0, rows, step):
        part = numbers[first : first + step]

        def operands(start: int, stop: int, part: Array = part) -> tuple[Array, Array]:
            left = part[np.newaxis, :, start:stop].astype(np.float64)
            return left, np.ones((1, stop - start, 1))

        summands = Summands(operands, (1, len(part), 1), narrow=True, down=down)
        with np.errstate(all="ignore"):
            found = dot_to_odd(summands, (0, count), None)
        sums[first : first + step] = found[0, :, 0]
    return sums


def _by_fractions(numbers: Array) -> NDArray[np.float64]:
    """Return the means of rows of finite numbers, rounded to odd in binary64."""
    found = np.empty((2, len(numbers)))
    for place, row in enumerate(numbers):
        above, below = (sum_of_magnitudes(row[chosen]) or 0 for chosen in (row > 0, row < 0))
        exact = Fraction(above - below) / row.size
        nearest = float(exact)
        found[:, place] = nearest, (exact > nearest) - (exact < nearest)
    return native.make_odd(*found)
