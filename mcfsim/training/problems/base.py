"""The interface of a problem to an optimizer, and the few helpers that all problems need."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from enum import IntEnum
from importlib import import_module
from inspect import signature
from numbers import Real
from reprlib import repr as shortened
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from mcfsim.checks import check_int, is_masked, is_real, real_array
from mcfsim.kernels.real_numbers import is_mpf
from mcfsim.storage.archive import check_name


# -- matrices ---------------------------------------------------------------------------------------------
class DataMatrix:
    """A float64 matrix for products ``matrix @ vector``.

    Entries of a product with mpmath numbers are rounded once, to the working precision of the numbers'
    context.
    """

    def __init__(self, entries: NDArray[np.float64]) -> None:
        self.entries = entries
        self._rows: dict[Any, list[list[Any]]] = {}  # the entries as numbers of each context met so far

    def __matmul__(self, vector: NDArray[Any]) -> NDArray[Any]:
        if vector.dtype != object:
            product: NDArray[Any] = self.entries @ vector
            return product
        context = vector[0].context
        if context not in self._rows:
            # convert(), unlike the constructor mpf(), never rounds a float to the working precision.
            self._rows[context] = [list(map(context.convert, row)) for row in self.entries.tolist()]
        numbers = vector.tolist()
        return np.array([context.fdot(row, numbers) for row in self._rows[context]], dtype=object)

    def __reduce__(self) -> tuple[type[DataMatrix], tuple[NDArray[np.float64]]]:
        return DataMatrix, (self.entries,)  # contexts of mpmath cannot be pickled


# -- problems ---------------------------------------------------------------------------------------------
#: Parameters or gradients by tensor name. An array of dtype object holds mpmath numbers.
Tensors = Mapping[str, NDArray[Any]]
LossAndGradient = tuple[float, dict[str, NDArray[Any]]]


@runtime_checkable
class Problem(Protocol):
    """An objective with gradients, deterministic to the last bit, for comparing optimizers.

    A problem has no state: whatever is random depends on the ``seed`` and ``step`` of a call alone. So
    every strategy sees the same batches, and so does a resumed run.
    """

    @property
    def name(self) -> str:
        """The name by which `get_problem` knows the problem."""

    @property
    def exact_capable(self) -> bool:
        """Whether the problem takes mpmath numbers as parameters, and computes at their precision."""

    @property
    def decayed(self) -> frozenset[str]:
        """Names of the tensors that weight decay applies to."""

    def settings(self) -> dict[str, object]:
        """Return JSON-able data from which `get_problem` makes an equal problem."""

    def initial_parameters(self, seed: int) -> dict[str, NDArray[Any]]:
        """Return the starting point of a seed, in float64 or float32."""

    def loss_and_gradient(self, parameters: Tensors, step: int, seed: int) -> LossAndGradient:
        """Return the loss on the batch of (seed, step) and its gradient, in the parameters' dtype.

        Problems without batches ignore step and seed. The loss of mpmath parameters is an mpmath number.
        The loss of a run that diverged is inf or NaN, without a warning.
        """

    def validation_loss(self, parameters: Tensors) -> float:
        """Return the loss on held-out data, the same at every call; without such data, the objective.

        A custom problem is also asked for it once at the start, so that a run does not fail at its end.
        """


class DescribedProblem:
    """A problem that keeps each argument of its constructor in an attribute of the same name."""

    name: str

    def settings(self) -> dict[str, Any]:
        """Return the kind and the arguments of the constructor, except a calculation of None."""
        arguments = {label: getattr(self, label) for label in signature(type(self)).parameters}
        if (calculation := arguments.pop("calculation", None)) is not None:
            arguments["calculation"] = calculation.settings()
        return {"kind": self.name, **arguments}


class DataStream(IntEnum):
    """The independent random streams of a seed."""

    DATA = 0
    PARAMETERS = 1
    BATCH = 2
    CALCULATION = 3


def generator(seed: int, stream: DataStream, *key: int) -> np.random.Generator:
    """Return a generator that depends on all of its arguments and on nothing else."""
    sequence = np.random.SeedSequence(seed, spawn_key=(int(stream), *key))
    return np.random.Generator(np.random.PCG64(sequence))


def labelled(problem: str, loader: str) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.bool_]]:
    """Return data of scikit-learn: one row of features per sample, the labels, and whether it is held out.

    Raises
    ------
    ImportError
        If scikit-learn is missing; the message names the problem.
    """
    try:
        datasets = import_module("sklearn.datasets")
    except ImportError as error:
        raise ImportError(
            f"the {problem} problem takes its data from scikit-learn: pip install scikit-learn"
        ) from error
    features, labels = getattr(datasets, loader)(return_X_y=True)
    return features, labels, np.arange(len(labels)) % 5 == 4


# -- what a custom problem returns -------------------------------------------------------------------------
def start_of(problem: Problem, seed: int) -> dict[str, NDArray[Any]]:
    """Return a problem's starting point as plain arrays.

    Raises
    ------
    TypeError
        If it is not a mapping of names to arrays of real numbers.
    ValueError
        If a file of the run cannot hold a name.
    """
    label, found = f"initial_parameters of problem {problem.name!r}", problem.initial_parameters(seed)
    if not isinstance(found, Mapping):
        raise TypeError(f"{label} must return a mapping of names to arrays, not {shortened(found)}")
    for name in found:
        if not isinstance(name, str):
            raise TypeError(f"{label} must name tensors by strings, not {name!r}")
        if len(found) > 1:  # the series of a single one are those of the whole
            check_name(f"{label}: tensor", name)
    return {name: real_array(x, f"tensor {name!r} of {label}") for name, x in found.items()}


def loss_and_gradient_of(problem: Problem, weights: Tensors, step: int, seed: int) -> LossAndGradient:
    """Return a problem's loss and gradient, which is made of arrays.

    Raises
    ------
    TypeError
        If it is not a pair of a number and a mapping of names to arrays of real numbers, or of mpmath's.
    ValueError
        If the loss is beyond binary64, or the gradient has other names or shapes than the weights.
    """
    label = f"loss_and_gradient of problem {problem.name!r}"
    found: Any = problem.loss_and_gradient(weights, step, seed)
    if not isinstance(found, tuple | list) or len(found) != 2 or not isinstance(found[1], Mapping):
        raise TypeError(
            f"{label} must return a loss and a mapping of names to arrays, not {shortened(found)}"
        )
    loss, gradient = found
    check_loss(label, loss)
    if gradient.keys() != weights.keys():
        names = [sorted(map(str, tensors)) for tensors in (weights, gradient)]
        raise ValueError(f"{label}: expected the tensors {names[0]}, not {names[1]}")
    return loss, {
        name: _gradient(f"{label}: the gradient of {name!r}", x, weights[name])
        for name, x in gradient.items()
    }


def check_loss(label: str, loss: Any) -> None:
    """Raise TypeError unless a loss is one real number, and ValueError if binary64 has no such number."""
    try:
        single = np.shape(loss) == () and np.asarray(loss).dtype.kind not in "bcmMSU"
        if single:
            float(loss)
    except OverflowError:
        raise ValueError(f"{label}: the loss is an integer beyond binary64") from None
    except (TypeError, ValueError):
        single = False
    if not single:
        raise TypeError(f"{label}: the loss must be one real number, not {shortened(loss)}")


def _gradient(label: str, x: Any, weights: NDArray[Any]) -> NDArray[Any]:
    """Return the gradient of a tensor as an array.

    It may be a number of NumPy's or mpmath's, which is what operations on arrays without axes return.
    """
    if is_masked(x) or not (isinstance(x, np.ndarray | np.generic) or is_mpf(x)):
        what = "a masked array" if is_masked(x) else shortened(x)
        raise TypeError(f"{label} must be an array, not {what}")
    array = np.asarray(x)
    if not is_real(array.dtype) and not array.dtype == weights.dtype == object:
        raise TypeError(f"{label}, of dtype {array.dtype}, must hold real numbers of at most 64 bits")
    if array.shape != weights.shape:
        raise ValueError(f"{label} must have shape {weights.shape}, not {array.shape}")
    return array


# -- checks of arguments ----------------------------------------------------------------------------------
def check_tensors(tensors: Tensors, shapes: Mapping[str, tuple[int, ...]], *dtypes: type) -> None:
    """Raise unless the tensors have exactly these names and shapes, and all have the same allowed dtype."""
    if tensors.keys() != shapes.keys():
        raise ValueError(f"expected the tensors {sorted(shapes)}, not {sorted(tensors)}")
    for name, shape in shapes.items():
        if tensors[name].shape != shape:
            raise ValueError(f"{name!r} must have shape {shape}, not {tensors[name].shape}")
    found = {tensor.dtype for tensor in tensors.values()}
    if len(found) != 1 or not found.issubset(map(np.dtype, dtypes)):
        allowed = " or all ".join(np.dtype(dtype).name for dtype in dtypes)
        raise TypeError(f"the tensors must be all {allowed}, not {', '.join(sorted(map(str, found)))}")


def check_size(label: str, value: int, least: int = 1) -> int:
    """Return the value if it is an int of at least this size, else raise."""
    check_int(label, value)
    if value < least:
        raise ValueError(f"{label} = {value} must be at least {least}")
    return value


def check_number(label: str, value: object) -> float:
    """Return the value as a float if it is a real number (infinite if beyond float), else raise."""
    if not isinstance(value, Real) or isinstance(value, bool | np.bool_):
        raise TypeError(f"{label} must be a real number, not {value!r}")
    try:
        return float(value)
    except OverflowError:
        return math.inf


def check_memory(label: str, numbers: int, size: int = 8) -> None:
    """Raise MemoryError if `numbers` numbers of `size` bytes exceed the machine's memory.

    A system that promises more memory than it has would silently end the process when the memory is used.
    """
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # this system does not say
        return
    if numbers * size > memory:
        raise MemoryError(
            f"{label} needs {numbers * size >> 30} GiB, and this machine has {memory >> 30} GiB"
        )


def as_scalar(value: Any) -> float:
    """Return a NumPy scalar as a Python float, and an mpmath number unchanged."""
    scalar: float = float(value) if isinstance(value, np.floating) else value
    return scalar
