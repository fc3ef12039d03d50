"""What a step is made of: the tensors of a parameter, and how they are stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from mcfsim.backends.strung_tensors import as_array, torch_dtype
from mcfsim.codec import encode
from mcfsim.formats import Format
from mcfsim.kernels.real_numbers import Scalars
from mcfsim.optim.beside import Remainder
from mcfsim.optim.declaration import Declaration, check_addition
from mcfsim.optim.state import State
from mcfsim.optim.step_programs import size_of
from mcfsim.optim.strategies import Addition, Roles, Stored, Strategy
from mcfsim.optim.vectors import Split, requantize
from mcfsim.rounding import Mode
from mcfsim.scaled import ScaledFormat
from mcfsim.scaled.quantisers import Quantiser
from mcfsim.torch.grouped import SCALES, Grouped
from mcfsim.torch.local import check_whole

#: As what 16 bits that are no number lie in memory. Of torch's formats bfloat16 alone leads float32, so 16
#: bits follow. Processes cannot exchange tensors of 16-bit integers, neither by NCCL nor by Gloo.
BITS = torch.bfloat16


class Moved(NamedTuple):
    """A parameter that a step moves.

    Attributes
    ----------
    tensors : mapping of str to tensor
        The parameter and its state, by name, of one shape but for scales; written in place.
    gradient : tensor
    first : int
        The number of its first element, where random words are drawn.
    counted : bool
        Whether the process is the first of those that have these elements.
    """

    tensors: Mapping[str, torch.Tensor]
    gradient: torch.Tensor
    first: int
    counted: bool = True


@dataclass(frozen=True)
class Stores:
    """What an optimizer stores for each parameter.

    Attributes
    ----------
    strategy : Strategy
    roles : Roles
        Its arithmetics.
    scalars : {"exact", "rounded"}
        How hyperparameters enter.
    names : State of str
        What the tensors are called, in the places of a state's components.
    formats : dict of str to Format
        Of each, in the same order.
    dtypes : dict of str to dtype
        Of the tensors, among them the scales of moments whose numbers share some.
    grouped : dict of str to Grouped
        The moments that lie as codes and scales.
    """

    strategy: Strategy
    roles: Roles
    scalars: Scalars
    names: State
    formats: Mapping[str, Format]
    dtypes: Mapping[str, torch.dtype]
    grouped: Mapping[str, Grouped]

    @classmethod
    def of(cls, declaration: type[Declaration], strategy: Strategy, roles: Roles, scalars: Scalars) -> Stores:
        """Return what an optimizer stores by a strategy.

        Raises
        ------
        UnsupportedFormatError
            If torch has no dtype for a format.
        ValueError
            If the strategy asks for a feedback that the optimizer does not have.
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
            dtypes["remainder"] = _bits_beside(strategy)
        scaled = {"m": strategy.m.scaled, "v": strategy.v.scaled}
        found = {name: Grouped.of(scaled.get(name), fmt) for name, fmt in formats.items()}
        grouped = {name: item for name, item in found.items() if item is not None}
        for name, item in grouped.items():
            dtypes[name], dtypes[name + SCALES] = item.dtypes
        return cls(strategy, roles, scalars, names, formats, dtypes, grouped)

    @property
    def gradient(self) -> Format:
        """Of the gradients."""
        fmt = self.strategy.gradient.format
        assert fmt is not None
        return fmt

    @property
    def compensating(self) -> tuple[str, ...]:
        """What holds, beside the parameter, what rounding cuts off of it: the tensors' names."""
        return (*self.names.parameter[1:], *self.names.extra)

    @property
    def scaled(self) -> dict[str, ScaledFormat | Quantiser]:
        """As what moments are kept between steps, if not in their format, by name."""
        moments = {"m": self.strategy.m.scaled, "v": self.strategy.v.scaled}
        return {name: kept for name, kept in moments.items() if kept is not None and name in self.formats}

    def group(self, name: str) -> int | None:
        """Return how many elements share a row of a tensor; None if each has its own."""
        kept = self.grouped.get(name.removesuffix(SCALES)) if name.endswith(SCALES) else None
        return None if kept is None else kept.size

    def numbers(self, tensors: Mapping[str, torch.Tensor], name: str) -> torch.Tensor:
        """Return a tensor's numbers as a vector: its own elements, or what codes and scales stand for."""
        if name not in self.grouped:
            return tensors[name].reshape(-1).contiguous()
        return self.grouped[name].numbers(tensors[name], tensors[name + SCALES])

    def keep(self, tensors: Mapping[str, torch.Tensor], name: str, numbers: torch.Tensor) -> None:
        """Put a vector of numbers in a tensor, or its codes and scales in two."""
        if name in self.grouped:
            self.grouped[name].keep(numbers, tensors[name], tensors[name + SCALES])
        elif tensors[name].data_ptr() != numbers.data_ptr():
            tensors[name].copy_(numbers.view(tensors[name].shape))

    def requantize(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Put in place of moments that lie as numbers what a scaled format leaves of them; on the host."""
        for name, kept in self.scaled.items():
            if name not in self.grouped:
                x = tensors[name]
                numbers = as_array(x.cpu().contiguous()).reshape(-1)
                requantize(numbers, [slice(0, numbers.size)], kept, self.formats[name])
                x.copy_(torch.from_numpy(numbers).view(x.shape))

    def check_scales(self, parameter: torch.Tensor) -> None:
        """Raise ValueError if a process would have scales of other groups than its elements are in."""
        for kept in self.grouped.values():
            kept.zero_scales(parameter)

    def check_groups(self, parameter: torch.Tensor) -> None:
        """Raise ValueError if a process has a part of a group that shares a scale."""
        for kept in self.scaled.values():
            alone = isinstance(kept, Quantiser) or (isinstance(kept.block, int) and kept.tensor_scale is None)
            check_whole(parameter, kept.block if alone else None)

    @property
    def _rounded(self) -> bool:
        """Whether codes that lead a master copy are rounded."""
        return self.strategy.parameter.rounding is Mode.NEAREST_AWAY

    @property
    def remainder(self) -> int | None:
        """How many bits of a master copy lie beside the parameter, if they do not follow its codes."""
        return self.strategy.extra.remainder if self.strategy.extra else None

    def represented(self, tensors: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Return the numbers whose sum is the parameter that the optimizer means, the leading ones first."""
        if "remainder" not in self.formats:
            return tuple(tensors[name] for name in self.names.represented(self.strategy))
        parameter, rest = (as_array(tensors[name].cpu()) for name in ("parameter", "remainder"))
        numbers = self.beside(parameter.reshape(-1), bits_of(rest).reshape(-1)).numbers()
        whole = torch.from_numpy(np.array(numbers).reshape(parameter.shape))
        return (whole.to(tensors["parameter"].device),)

    def beside(self, parameter: NDArray[Any], rest: NDArray[Any]) -> Split | Remainder:
        """Return the master copy of which a parameter has the leading bits, with the others."""
        low = self.formats["parameter"]
        if self.remainder is not None:
            return Remainder(parameter, rest, low, self.remainder)
        return Split.beside(encode(parameter, low), rest, low, rounded=self._rounded)


def _bits_beside(strategy: Strategy) -> torch.dtype:
    """Return as what the bits of a master copy lie that are stored beside the parameter."""
    bits = strategy.extra.remainder if strategy.extra else None
    return torch.uint8 if bits is not None and size_of(bits) == 8 else BITS


def bits_of(x: NDArray[Any]) -> NDArray[Any]:
    """Return an array as unsigned integers in the same memory."""
    return x.view(f"u{x.itemsize}")


def summed(components: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the sum of components, from the last one on, as a new tensor of float64."""
    total = torch.zeros_like(components[0], dtype=torch.float64)
    for x in reversed(components):
        total += x.to(torch.float64)
    return total


def opposite(gradient: torch.Tensor) -> torch.Tensor:
    """Return a new tensor of the numbers with the other sign, by which a step that descends ascends."""
    if gradient.itemsize > 1:
        return gradient.neg()
    return gradient.to(torch.float32).neg_().to(gradient.dtype)  # torch has no sign operation on 8 bits
