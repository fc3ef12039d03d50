"""The tensors that an optimizer stores for each parameter: their names, formats, dtypes and first numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mcfsim.backends.factory import arithmetic
from mcfsim.formats import Format
from mcfsim.kernels.real_numbers import Scalars
from mcfsim.kernels.torch_tensors import TORCH_DTYPES, Tensors, as_array, check_dense, torch_dtype
from mcfsim.optim.declaration import Declaration, check_addition
from mcfsim.optim.layout import StateSlices
from mcfsim.optim.state import State
from mcfsim.optim.step_programs import size_of
from mcfsim.optim.strategies import Addition, Roles, Stored, Strategy
from mcfsim.optim.strategy import draws
from mcfsim.optim.vectors import Formats, Remainder, Split, Vector, requantize
from mcfsim.rounding import Mode
from mcfsim.scaled import ScaledFormat
from mcfsim.scaled.quantisers import Quantiser
from mcfsim.storage.buffers import overlaps_itself
from mcfsim.torch.local import SCALES, Grouped, check_whole, is_spread, local

#: The dtype that stores 16 bits that are no number. Of torch's formats, only bfloat16 is the upper part of
#: float32, so 16 bits remain. Processes cannot exchange tensors of 16-bit integers, neither by NCCL nor by
#: Gloo.
BITS = torch.bfloat16

#: The name of the scale of a parameter on a grid: of its last step, or zero before it was put there.
SCALE = "scale"
#: The parts that each slot keeps of a parameter.
Slots = Mapping[str, StateSlices]


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
    together : bool
        Whether a step needs the whole of a parameter, for its rows, columns or grid.
    """

    strategy: Strategy
    roles: Roles
    scalars: Scalars
    names: State
    formats: Mapping[str, Format]
    dtypes: Mapping[str, torch.dtype]
    grouped: Mapping[str, Grouped]
    together: bool = False

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
        if strategy.parameter.grid is not None:
            dtypes[SCALE] = dtypes["parameter"]
        scaled = {"m": strategy.m.scaled, "v": strategy.v.scaled}
        found = {name: Grouped.of(scaled.get(name), fmt) for name, fmt in formats.items()}
        grouped = {name: item for name, item in found.items() if item}
        for name, item in grouped.items():
            dtypes[name], dtypes[name + SCALES] = item.dtypes
        together = declaration.staged or strategy.parameter.grid is not None
        return cls(strategy, roles, scalars, names, formats, dtypes, grouped, together)

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

    @cached_property
    def draws(self) -> bool:
        """Whether steps draw random words."""
        return draws(self.strategy, self.roles)

    @cached_property
    def scaled(self) -> dict[str, ScaledFormat | Quantiser]:
        """The scaled formats or quantisers of moments that have one, by name."""
        moments = {"m": self.strategy.m.scaled, "v": self.strategy.v.scaled}
        return {name: kept for name, kept in moments.items() if kept is not None and name in self.formats}

    def scales(self, name: str) -> Grouped | None:
        """Return the storage of the moment whose scales a tensor holds; None for other tensors."""
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

    def numbers(
        self, tensors: Mapping[str, torch.Tensor], name: str, slots: Slots | None = None
    ) -> torch.Tensor:
        """Return a tensor's numbers as a vector: its elements, or the decoded codes and scales."""
        if name not in self.grouped:
            return tensors[name].reshape(-1).contiguous()
        parts = slots[name].every() if slots else ()
        return self.grouped[name].numbers(tensors[name], tensors[name + SCALES], parts)

    def keep(self, tensors: Mapping[str, torch.Tensor], name: str, numbers: torch.Tensor) -> None:
        """Write a vector of numbers into a tensor, or its codes and scales into two tensors."""
        if name in self.grouped:
            self.grouped[name].keep(numbers, tensors[name], tensors[name + SCALES])
        elif tensors[name].data_ptr() != numbers.data_ptr():
            tensors[name].copy_(numbers.view(tensors[name].shape))

    def requantize(self, tensors: Mapping[str, torch.Tensor], slots: Slots | None = None) -> None:
        """Quantise on the host, in place, the moments with a scaled format that are stored as numbers."""
        for name, kept in self.scaled.items():
            if name in tensors and name not in self.grouped:
                x = tensors[name]
                numbers = as_array(x.cpu().contiguous()).reshape(-1)
                parts = [slice(0, numbers.size)] if slots is None else slots[name].every()
                requantize(numbers, parts, kept, self.formats[name])
                x.copy_(torch.from_numpy(numbers).view(x.shape))

    def begun(
        self, parameter: torch.Tensor, names: Sequence[str] | None = None, slots: Slots | None = None
    ) -> dict[str, torch.Tensor]:
        """Return tensors of a parameter's state before the first step: zeros, and the master copy.

        Parameters
        ----------
        parameter : tensor
        names : sequence of str, optional
            The tensors; by default all of the state.
        slots : mapping of str to StateSlices, optional
            The parts that moments keep of the parameter, if they are not one number per element. Such a
            moment is a vector of its parts, one after another, each with scales of its own.

        Notes
        -----
        If a step needs whole parameters, scales and such vectors lie whole in each process.
        """
        whole = parameter.detach()
        device = local(whole).device
        state: dict[str, torch.Tensor] = {}
        for name in [name for name in self.dtypes if name != "parameter"] if names is None else names:
            slot = name.partition("_")[0]
            parts = slots[slot].every() if slots and slot in slots else [slice(0, whole.numel())]
            sizes = [part.stop - part.start for part in parts]
            like = sizes == [whole.numel()]
            dtype, kept = self.dtypes[name], self.scales(name)
            if name == SCALE:
                state[name] = torch.zeros((), dtype=dtype, device=device)
            elif not like:
                rows = _rows(kept, sizes)
                several = () if kept is None or kept.shared == 1 else (kept.shared,)
                state[name] = torch.zeros((rows, *several), dtype=dtype, device=device)
            elif kept is not None:
                state[name] = kept.zero_scales(whole, together=self.together)
            else:
                state[name] = torch.zeros_like(whole, dtype=dtype, memory_format=torch.contiguous_format)
            if name in self.grouped:
                state[name].fill_(self.grouped[name].zero)
        if "master" in state:
            here = local(whole)
            ar = arithmetic(self.formats["master"], backend="torch", device=here.device)
            local(state["master"]).copy_(ar.round(here))
        return state

    def vectors(
        self, tensors: Mapping[str, torch.Tensor], parts: Mapping[str, Sequence[slice]]
    ) -> dict[str, Vector]:
        """Return contiguous CPU tensors as vectors in the same memory, grouped moments by the given parts."""
        found: dict[str, Vector] = {name: packed(tensors[name]) for name in self.formats}
        for name, kept in self.grouped.items():
            found[name] = kept.vector(tensors[name], tensors[name + SCALES], parts[name])
        return found

    def state_of(self, vectors: Mapping[str, Any]) -> tuple[State, Formats]:
        """Return vectors, given by name, as a state with its formats; a remainder becomes the master copy."""
        found = dict(vectors)
        if "remainder" in found:
            found["remainder"] = self.beside(found["parameter"], found["remainder"])
        state = State(*(tuple(found[name] for name in names) for names in self.names))
        return state, tuple(self.formats[names[0]] if names else None for names in self.names)

    def check_parameter(self, parameter: torch.Tensor) -> None:
        """Raise TypeError or ValueError unless a parameter is a tensor that this layout can store."""
        self._check_dtype(parameter)
        if parameter.is_inference():
            raise TypeError("a parameter was made in torch.inference_mode; make it a usual one by .clone()")
        here = local(parameter.detach())
        check_dense(here)
        if not here.is_contiguous() and overlaps_itself(here.shape, here.stride()):
            raise TypeError("elements of the parameter share memory; make it a tensor of its own by .clone()")
        self.check_groups(parameter)

    def _check_dtype(self, parameter: torch.Tensor) -> None:
        expected = self.dtypes["parameter"]
        if parameter.dtype != expected:
            raise TypeError(
                f"strategy {self.strategy.name!r} stores parameters as {expected}, not {parameter.dtype}; "
                f"convert the model with .to({expected}), or choose another strategy or low format"
            )

    @cached_property
    def _sized(self) -> list[tuple[str, Grouped | None]]:
        """The tensors of a state whose size follows from the parameter's, and the storage of scales."""
        return [(name, self.scales(name)) for name in self.dtypes if name not in ("parameter", SCALE)]

    def apart(self, parameter: torch.Tensor, state: Mapping[str, Any]) -> str | None:
        """Return the name of a tensor that something else moved to another device or dtype, or None."""
        device = parameter.device
        for name, dtype in self.dtypes.items():
            x = state.get(name)
            if x is not None and (x.dtype is not dtype or x.device != device):
                return name
        return None

    def check_state(self, parameter: torch.Tensor, state: Mapping[str, Any], slots: Slots | None) -> None:
        """Raise ValueError unless the tensors of a state have the right device, dtype and shape.

        If processes share the parameter, shapes are not checked.
        """
        if (apart := self.apart(parameter, state)) is not None:
            x = state[apart]
            raise ValueError(
                f"{apart} of a state is of {x.dtype} on {x.device}, and must be of {self.dtypes[apart]} on "
                f"{parameter.device}; load a state that was saved"
            )
        if is_spread(parameter):
            return
        size = parameter.numel()
        for name, kept in self._sized:
            sizes = [size]
            if slots is not None and (slot := name.partition("_")[0]) in slots:
                sizes = [x.stop - x.start for x in slots[slot].every()]
            if name not in state:
                raise ValueError(f"a state has no {name}, which strategy {self.strategy.name!r} keeps")
            found, expected = state[name], _rows(kept, sizes) * (1 if kept is None else kept.shared)
            like = kept is None and sizes == [size]  # so that its elements have the places of the parameter's
            if found.numel() != expected or (like and found.shape != parameter.shape):
                raise ValueError(
                    f"a parameter of shape {tuple(parameter.shape)} has a state of another one, whose {name} "
                    f"has shape {tuple(found.shape)}; give the optimizer the new parameter instead"
                )

    def check_scales(self, parameter: torch.Tensor) -> None:
        """Raise ValueError if a process would have the scales of other groups than those of its elements."""
        for kept in self.grouped.values():
            kept.zero_scales(parameter, together=self.together)

    def check_groups(self, parameter: torch.Tensor) -> None:
        """Raise ValueError if a process has only part of a group that shares a scale."""
        for kept in () if self.together else self.scaled.values():
            alone = isinstance(kept, Quantiser) or (isinstance(kept.block, int) and kept.tensor_scale is None)
            check_whole(parameter, kept.block if alone else None)

    def represented(self, tensors: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Return the numbers that add up to the represented parameter, the leading ones first.

        Raises
        ------
        TypeError
            If the parameter, whose bits lead those of a master copy, has changed its dtype.
        """
        if "remainder" not in self.formats:
            return tuple(tensors[name] for name in self.names.represented(self.strategy))
        parameter, extra = tensors["parameter"], self.strategy.extra
        if extra is not None and extra.shared:
            self._check_dtype(parameter)
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


def _rows(kept: Grouped | None, sizes: Sequence[int]) -> int:
    """Return how many numbers, or groups that share scales, parts of these sizes have."""
    return sum(sizes) if kept is None else sum(-(-size // kept.size) for size in sizes)


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
