"""The inputs of a step: parameters and their tensors, and checks of outside writes."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from mcfsim.kernels.torch_tensors import Tensors, check_dense
from mcfsim.optim.declaration import Declaration, Granularity
from mcfsim.random import RandomWords
from mcfsim.torch.change_log import ChangeLog
from mcfsim.torch.local import is_cut, is_spread, local, stretches
from mcfsim.torch.state_layout import StateLayout


# -- work, and what others write --------------------------------------------------------------------------
class ParameterPlace(NamedTuple):
    """The place of a parameter in an optimizer.

    Attributes
    ----------
    group : int
        The index of its group.
    within : int
        Its index in the group.
    parameter : tensor
    first : int
        The index of its first element among the elements of all parameters.
    """

    group: int
    within: int
    parameter: torch.Tensor
    first: int


def name_in(group: Mapping[str, Any], within: int) -> str:
    """Return the name of a parameter of a group; it is empty if the group has no names."""
    return str(group["param_names"][within]) if "param_names" in group else ""


class StepInputs(NamedTuple):
    """The inputs of a step besides tensors.

    Attributes
    ----------
    hyper : Declaration
    number : int
        The number of the step, from 1.
    rate : float
        The learning rate.
    scalars
        The scalars of the step, as `Declaration.scalars` returns them.
    """

    hyper: Declaration
    number: int
    rate: float
    scalars: Any

    @classmethod
    def of(cls, hyper: Declaration, number: int, rate: float, stores: StateLayout) -> StepInputs:
        """Return the inputs of a step; raise ValueError if no step can have its number or scalars."""
        if stores.draws:
            RandomWords(0, number)  # refuses steps that have no words
        scalars = hyper.scalars(stores.roles, stores.strategy, number, rate, decayed=True)
        return cls(hyper, number, rate, scalars)


#: Where the intended updates of a step go, vectors of float64; None if nobody asks for them.
Updates = list[torch.Tensor] | None


class StepRunner(Protocol):
    """A step runner: an object that makes steps, on the CPU or on a GPU."""

    stores: StateLayout

    def move(self, moved: Sequence[ParameterSlice], inputs: StepInputs, updates: Updates = None) -> None:
        """Make a step of parameters on one device.

        `updates`, if given, gets the intended update of each parameter with elements: a vector of float64.
        """


class Work(NamedTuple):
    """Parameters of one group that make one step together.

    Attributes
    ----------
    group : int
        The index of the group.
    on : StepRunner
    parameters : list of tensor
    states : list of dict
        The state of each, which the optimizer need not have yet.
    moved : list of ParameterSlice
        The local parts of the parameters.
    inputs : StepInputs
    """

    group: int
    on: StepRunner
    parameters: list[torch.Tensor]
    states: list[dict[str, Any]]
    moved: list[ParameterSlice]
    inputs: StepInputs


class Watching(Protocol):
    """An observer that sees steps before they are made."""

    def see(self, works: Sequence[Work]) -> None:
        """Look at all works of a step, and change nothing in them but their logs of changes."""


# -- others' writes ---------------------------------------------------------------------------------------
class OutsideWriteWarning(UserWarning):
    """Something other than the optimizer wrote into a parameter that the state holds a part of."""


class Writes:
    """Versions of parameters after an optimizer's steps; PyTorch counts all writes except through `data`."""

    def __init__(self) -> None:
        self._versions: dict[torch.Tensor, tuple[int, int]] = {}
        self._told = False

    def look(self, parameters: Tensors) -> None:
        """Warn, once, if a parameter was written to since the previous step."""
        if self._told:
            return
        for p in parameters:
            if self._versions.get(p, version := _version(p)) != version:
                self._told = True
                warnings.warn(
                    f"a parameter of shape {tuple(p.shape)} was written to since the previous step, but the "
                    "optimizer's state (a master copy, or what compensates roundings) still belongs to the "
                    "old numbers; if the new ones are to stay, call optimizer.resync() after writing them "
                    "(not if the old ones were put back)",
                    OutsideWriteWarning,
                    stacklevel=2,
                )
                return

    def made(self, parameters: Tensors, given: Tensors = ()) -> None:
        """Remember the versions of parameters after a step on the given tensors.

        The version of a parameter that is not among these is forgotten.
        """
        themselves = {id(x) for x in given}
        for p in parameters:
            if id(p) in themselves:
                self._versions[p] = _version(p)
            else:
                self._versions.pop(p, None)

    def forget(self) -> None:
        """Forget all versions, as after loading a state."""
        self._versions.clear()


def _version(parameter: torch.Tensor) -> tuple[int, int]:
    """Return the versions of a tensor and of its local part, which may count writes differently."""
    here = local(parameter.detach()) if is_spread(parameter) else parameter
    return int(parameter._version), int(here._version)


# -- what a step moves ------------------------------------------------------------------------------------
class WholeTensor(NamedTuple):
    """A parameter's name, and how many numbers of each granularity the parameters before it have."""

    name: str
    before: Mapping[Granularity, int]


class ParameterSlice(NamedTuple):
    """A part of a parameter that a step moves, with its state and gradient.

    Attributes
    ----------
    tensors : mapping of str to tensor
        The parameter and its state, by name, of one shape except for scales; written in place.
    gradient : tensor
    first : int
        The index of the first element, used where random words are drawn.
    counted : bool
        Whether this process is the first of those that have these elements.
    whole : WholeTensor or None
        What a step in stages has to know of the parameter; None for steps that are straight lines.
    log : ChangeLog or None
        The log of the codes that the step changes, if one is kept.
    cut : tuple of str
        The names of tensors of which other processes have parts, if the step needs the whole; the gradient is
        then cut like them.
    like : tensor or None
        A tensor that is distributed as these are.
    """

    tensors: Mapping[str, torch.Tensor]
    gradient: torch.Tensor
    first: int
    counted: bool = True
    whole: WholeTensor | None = None
    log: ChangeLog | None = None
    cut: tuple[str, ...] = ()
    like: torch.Tensor | None = None

    def copied(self) -> ParameterSlice:
        """Return a slice with copies of its tensors, whose changes are not logged."""
        return self._replace(log=None, tensors={name: x.clone() for name, x in self.tensors.items()})

    @property
    def size(self) -> int:
        """The number of elements that a step has in memory; the same in each process if the slice is cut."""
        return int((self.gradient if self.like is None else self.like).numel())


def log_of(moved: Iterable[ParameterSlice]) -> ChangeLog | None:
    """Return the log of the first slice that has one, or None; if one has a log, all nonempty ones have."""
    return next((x.log for x in moved if x.log is not None), None)


def check_memory(
    parameters: Iterable[torch.Tensor], places: MutableMapping[tuple[int, int], torch.Tensor]
) -> None:
    """Raise ValueError if parameters share elements in memory; otherwise add them to `places`."""
    fresh = [(_place(here), p) for p in parameters if (here := local(p.detach())).numel()]
    near: list[tuple[tuple[int, int], torch.Tensor]] = []  # whose places may reach into the next ones
    for place, p in sorted([*places.items(), *fresh], key=lambda item: item[0]):
        near = [x for x in near if x[0][1] > place[0]]
        for _, other in near:
            if other is not p and _share_elements(local(other.detach()), local(p.detach())):
                raise ValueError(
                    f"a parameter of shape {tuple(p.shape)} has the memory of another, and both would move "
                    "it, each by a state of its own; make them one, as by head.weight = table.weight"
                )
        near.append((place, p))
    places.update(fresh)


def _place(x: torch.Tensor) -> tuple[int, int]:
    """Return the addresses where a tensor with elements begins and ends."""
    begin = x.data_ptr()
    last = sum((length - 1) * step for length, step in zip(x.shape, x.stride(), strict=True))
    return begin, begin + (last + 1) * x.itemsize


def _share_elements(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two tensors share memory now; NumPy tells from addresses, on any device."""

    def there(x: torch.Tensor) -> NDArray[Any]:
        steps = tuple(step * x.itemsize for step in x.stride())
        about = {"shape": tuple(x.shape), "strides": steps, "typestr": f"|V{x.itemsize}", "version": 3}
        return np.asarray(SimpleNamespace(__array_interface__={**about, "data": (x.data_ptr(), True)}))

    return bool(np.shares_memory(there(one), there(other)))


def check_gradient(parameter: torch.Tensor, gradient: torch.Tensor) -> None:
    """Raise TypeError or ValueError unless a gradient is a dense tensor of floats, of a parameter's shape."""
    if gradient.shape != parameter.shape:
        one, other = tuple(gradient.shape), tuple(parameter.shape)
        raise ValueError(f"a parameter of shape {other} has a gradient of shape {one}")
    check_dense(local(gradient))
    if not gradient.is_floating_point():
        raise TypeError(f"a gradient of dtype {gradient.dtype} holds no floating-point numbers")


def opposite(gradient: torch.Tensor) -> torch.Tensor:
    """Return the negated gradient as a new tensor, with which a step ascends instead of descending."""
    if gradient.itemsize > 1:
        return gradient.neg()
    return gradient.to(torch.float32).neg_().to(gradient.dtype)  # torch cannot negate 8-bit floats


def whole_slice(
    tensors: Mapping[str, Any],
    gradient: torch.Tensor,
    first: int,
    counted: bool = True,
    whole: WholeTensor | None = None,
) -> ParameterSlice:
    """Return a slice for a step of a whole parameter, of which other processes may have parts."""
    like, here = tensors["parameter"], local_tensors(tensors)
    if not is_cut(like):
        return ParameterSlice(here, gradient, first, counted, whole)
    cut = tuple(name for name in here if is_spread(tensors[name]))
    return ParameterSlice(here, gradient, first, counted, whole, cut=cut, like=like)


def local_parts(
    stores: StateLayout, tensors: Mapping[str, Any], gradient: torch.Tensor, first: int, counted: bool
) -> Iterator[ParameterSlice]:
    """Yield the local part of a parameter and its state, one slice per run of consecutive elements."""
    here = local_tensors(tensors)
    grouped = {name: kept for name in here if (kept := stores.scales(name))}
    done = 0
    for begin, place in stretches(tensors["parameter"]):
        given = gradient[place]
        part = {name: x[place] for name, x in here.items() if name not in grouped}
        for name, kept in grouped.items():
            rows = here[name].reshape(-1, kept.shared)
            part[name] = rows[done // kept.size : -(-(done + given.numel()) // kept.size)]
        done += given.numel()
        yield ParameterSlice(part, given, first + begin, counted)


def local_tensors(tensors: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return the local parts of a parameter and its state, by name, in the same memory."""
    spread = is_spread(tensors["parameter"])
    return {name: local(x) if spread else x for name, x in tensors.items() if name != "step"}
