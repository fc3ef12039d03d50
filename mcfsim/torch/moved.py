"""The inputs of a step: parameters and their tensors, their storage layout, and checks of outside writes."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from mcfsim.backends.factory import arithmetic
from mcfsim.formats import Format
from mcfsim.kernels.real_numbers import Scalars
from mcfsim.kernels.torch_tensors import TORCH_DTYPES, Tensors, as_array, torch_dtype
from mcfsim.optim.declaration import Declaration, check_addition
from mcfsim.optim.state import State
from mcfsim.optim.step_programs import size_of
from mcfsim.optim.strategies import Addition, Roles, Stored, Strategy
from mcfsim.optim.vectors import Remainder, Split, requantize
from mcfsim.rounding import Mode
from mcfsim.scaled import ScaledFormat
from mcfsim.scaled.quantisers import Quantiser
from mcfsim.torch.change_log import ChangeLog
from mcfsim.torch.local import SCALES, Grouped, check_whole, is_spread, local


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


class StepInputs(NamedTuple):
    """The inputs of a step besides tensors.

    Attributes
    ----------
    hyper : Declaration
    number : int
        The number of the step, from 1.
    rate : float
        The learning rate.
    """

    hyper: Declaration
    number: int
    rate: float

    def scalars(self, stores: StateLayout) -> Any:
        """Return the scalars of the step; raise ValueError if it cannot be made with them."""
        return self.hyper.scalars(stores.roles, stores.strategy, self.number, self.rate, decayed=True)


class StepRunner(Protocol):
    """A step runner: an object that makes steps, on the CPU or on a GPU."""

    stores: StateLayout

    def move(self, moved: Sequence[ParameterSlice], inputs: StepInputs) -> None:
        """Make a step of parameters on one device."""

    def asked(self, moved: Sequence[ParameterSlice], inputs: StepInputs) -> list[torch.Tensor]:
        """Return the intended update of a step: one float64 vector per parameter."""


class Work(NamedTuple):
    """Parameters of one group that make one step together.

    Attributes
    ----------
    group : int
        The index of the group.
    on : StepRunner
    parameters : list of tensor
    moved : list of ParameterSlice
        The local parts of the parameters.
    inputs : StepInputs
    """

    group: int
    on: StepRunner
    parameters: list[torch.Tensor]
    moved: list[ParameterSlice]
    inputs: StepInputs


class Watching(Protocol):
    """An observer that sees steps before they are made."""

    def see(self, works: Sequence[Work]) -> None:
        """Look at all works of a step, and change nothing of them but where changes are logged."""


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
                    f"a parameter of shape {tuple(p.shape)} was written to since the step before, and the "
                    "optimizer's state, a master copy or what compensates roundings, is still that of the "
                    "numbers before; if the new ones are to stay, call optimizer.resync() after writing them "
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


# -- tensors ----------------------------------------------------------------------------------------------
#: The dtype that stores 16 bits that are no number. Of torch's formats only bfloat16 leads float32, so 16
#: bits follow. Processes cannot exchange tensors of 16-bit integers, neither by NCCL nor by Gloo.
BITS = torch.bfloat16


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
    log : ChangeLog or None
        The log of the codes that the step changes, if one is kept.
    """

    tensors: Mapping[str, torch.Tensor]
    gradient: torch.Tensor
    first: int
    counted: bool = True
    log: ChangeLog | None = None


def log_of(moved: Iterable[ParameterSlice]) -> ChangeLog | None:
    """Return the log of one of some slices, all of which have one that are not empty; None if none has."""
    return next((x.log for x in moved if x.log is not None), None)


@dataclass(frozen=True)
class StateLayout:
    """The tensors that an optimizer stores for each parameter: their names, formats and dtypes.

    Attributes
    ----------
    strategy : Strategy
    roles : Roles
        The arithmetics of the strategy.
    scalars : {"exact", "rounded", "float32"}
        How hyperparameters enter.
    names : State of str
        The names of the tensors, in the places of a state's components.
    formats : dict of str to Format
        The format of each, in the same order.
    dtypes : dict of str to dtype
        The dtypes of the tensors, including the scales of moments.
    grouped : dict of str to Grouped
        The moments stored as codes and scales.
    """

    strategy: Strategy
    roles: Roles
    scalars: Scalars
    names: State
    formats: Mapping[str, Format]
    dtypes: Mapping[str, torch.dtype]
    grouped: Mapping[str, Grouped]

    @classmethod
    def of(
        cls, declaration: type[Declaration], strategy: Strategy, roles: Roles, scalars: Scalars
    ) -> StateLayout:
        """Return the layout of an optimizer's state under a strategy.

        Raises
        ------
        UnsupportedFormatError
            If torch has no dtype for a format.
        ValueError
            If the strategy needs error feedback, which the optimizer does not have.
        """
        check_addition(declaration, strategy)
        formats: dict[str, Format] = {}

        def declare(name: str, stored: Stored | None) -> tuple[str, ...]:
            if stored is None or stored.format is None:
                return ()
            names = (name, *(f"{name}_{k}" for k in range(1, stored.components)))
            formats.update(dict.fromkeys(names, stored.format))
            return names

        few = strategy.extra is not None and (strategy.extra.shared or strategy.extra.remainder is not None)
        master = "remainder" if few else "master"
        names = State(
            parameter=declare("parameter", strategy.parameter),
            m=declare("m", strategy.m if declaration.keeps("m") else None),
            v=declare("v", strategy.v if declaration.keeps("v") else None),
            extra=declare(master if strategy.addition is Addition.MASTER else "compensation", strategy.extra),
        )
        dtypes = {name: torch_dtype(fmt) for name, fmt in formats.items()}
        if few:
            bits = strategy.extra.remainder if strategy.extra else None
            dtypes["remainder"] = torch.uint8 if bits is not None and size_of(bits) == 8 else BITS
        scaled = {"m": strategy.m.scaled, "v": strategy.v.scaled}
        found = {name: Grouped.of(scaled.get(name), fmt) for name, fmt in formats.items()}
        grouped = {name: item for name, item in found.items() if item}
        for name, item in grouped.items():
            dtypes[name], dtypes[name + SCALES] = item.dtypes
        return cls(strategy, roles, scalars, names, formats, dtypes, grouped)

    @property
    def gradient(self) -> Format:
        """The format of the gradients."""
        fmt = self.strategy.gradient.format
        assert fmt is not None
        return fmt

    @property
    def compensating(self) -> tuple[str, ...]:
        """The names of the tensors that hold what rounding cuts off the parameter."""
        return (*self.names.parameter[1:], *self.names.extra)

    @property
    def scaled(self) -> dict[str, ScaledFormat | Quantiser]:
        """The scaled formats or quantisers of moments that have one, by name."""
        moments = {"m": self.strategy.m.scaled, "v": self.strategy.v.scaled}
        return {name: kept for name, kept in moments.items() if kept is not None and name in self.formats}

    def scales(self, name: str) -> Grouped | None:
        """Return how the moment is stored whose scales a tensor holds; None for other tensors."""
        return self.grouped.get(name.removesuffix(SCALES)) if name.endswith(SCALES) else None

    def received(self, gradient: torch.Tensor) -> torch.Tensor:
        """Return a gradient in the strategy's format, rounded if it has another."""
        if gradient.requires_grad:
            gradient = gradient.detach()
        if gradient.is_neg():
            gradient = gradient.resolve_neg()
        if TORCH_DTYPES.get(gradient.dtype) == self.gradient:
            return gradient
        ar = arithmetic(self.gradient, backend="torch", device=gradient.device)
        return ar.round(gradient).to(torch_dtype(self.gradient))

    def numbers(self, tensors: Mapping[str, torch.Tensor], name: str) -> torch.Tensor:
        """Return a tensor's numbers as a vector: its elements, or the decoded codes and scales."""
        if name not in self.grouped:
            return tensors[name].reshape(-1).contiguous()
        return self.grouped[name].numbers(tensors[name], tensors[name + SCALES])

    def keep(self, tensors: Mapping[str, torch.Tensor], name: str, numbers: torch.Tensor) -> None:
        """Write a vector of numbers into a tensor, or its codes and scales into two tensors."""
        if name in self.grouped:
            self.grouped[name].keep(numbers, tensors[name], tensors[name + SCALES])
        elif tensors[name].data_ptr() != numbers.data_ptr():
            tensors[name].copy_(numbers.view(tensors[name].shape))

    def requantize(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Quantise, in place, the moments with a scaled format that are stored as numbers; on the host."""
        for name, kept in self.scaled.items():
            if name not in self.grouped:
                x = tensors[name]
                numbers = as_array(x.cpu().contiguous()).reshape(-1)
                requantize(numbers, [slice(0, numbers.size)], kept, self.formats[name])
                x.copy_(torch.from_numpy(numbers).view(x.shape))

    def check_scales(self, parameter: torch.Tensor) -> None:
        """Raise ValueError if a process would have the scales of other groups than those of its elements."""
        for kept in self.grouped.values():
            kept.zero_scales(parameter)

    def check_groups(self, parameter: torch.Tensor) -> None:
        """Raise ValueError if a process has only part of a group that shares a scale."""
        for kept in self.scaled.values():
            alone = isinstance(kept, Quantiser) or (isinstance(kept.block, int) and kept.tensor_scale is None)
            check_whole(parameter, kept.block if alone else None)

    def represented(self, tensors: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Return the numbers that add up to the represented parameter, the leading ones first."""
        if "remainder" not in self.formats:
            return tuple(tensors[name] for name in self.names.represented(self.strategy))
        parameter = tensors["parameter"]
        numbers = self.beside(packed(parameter.cpu()), packed(tensors["remainder"].cpu())).numbers()
        whole = torch.from_numpy(np.array(numbers).reshape(parameter.shape))
        return (whole.to(parameter.device),)

    def beside(self, parameter: Any, rest: Any) -> Split | Remainder:
        """Return the master copy that the codes of a parameter lead, given the bits of the rest."""
        low, extra = self.formats["parameter"], self.strategy.extra
        if extra is not None and extra.remainder is not None:
            return Remainder(parameter, rest, low, extra.remainder)
        rounded = self.strategy.parameter.rounding is Mode.NEAREST_AWAY  # and not truncated
        return Split.beside(parameter, rest, low, rounded=rounded)


def packed(tensor: torch.Tensor) -> NDArray[Any]:
    """Return a CPU tensor as a vector, of codes if they have at most 16 bits.

    It has the same memory if the tensor is contiguous.
    """
    vector = as_array(tensor.contiguous()).reshape(-1)
    return vector if vector.itemsize > 2 else vector.view(f"u{vector.itemsize}")


def summed(components: Tensors) -> torch.Tensor:
    """Return the sum of components, starting from the last, as a new float64 tensor."""
    total = torch.zeros_like(components[0], dtype=torch.float64)
    for x in reversed(components):
        total += x.to(torch.float64)
    return total


def opposite(gradient: torch.Tensor) -> torch.Tensor:
    """Return the negated gradient as a new tensor, with which a step ascends instead of descending."""
    if gradient.itemsize > 1:
        return gradient.neg()
    return gradient.to(torch.float32).neg_().to(gradient.dtype)  # torch cannot negate 8-bit floats
