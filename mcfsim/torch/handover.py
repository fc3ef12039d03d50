"""Other libraries' optimizers: from which one a run is taken over, and how a run is given to one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import torch

from mcfsim.checks import hint
from mcfsim.kernels.torch_tensors import TORCH_DTYPES
from mcfsim.optim.adamw import AdamW
from mcfsim.optim.amsgrad import AMSGrad
from mcfsim.optim.declaration import Declaration
from mcfsim.optim.muon import Muon
from mcfsim.optim.stored import DYNAMIC, FLOAT32, Stored
from mcfsim.torch.foreign import (
    LARGEST,
    LIBRARIES,
    MOMENTS,
    MUON,
    OF_MUON,
    SHARED,
    TABLES,
    WIDE,
    Entries,
    Library,
    decoupled,
    layout,
    of_amsgrad,
)
from mcfsim.torch.group import LABELS, number
from mcfsim.torch.local import SCALES
from mcfsim.torch.optimizers import family
from mcfsim.torch.state_dicts import check_form
from mcfsim.torch.state_layout import Slots, StateLayout
from mcfsim.torch.step import StoredOptimizer

# -- taken over -------------------------------------------------------------------------------------------
#: The key under which a state dict of bitsandbytes has the tensors of a parameter.
_WRAPPED = "__bnb_optimizer_quant_state__"


def library_of(optimizer: Any, said: str | None) -> Library:
    """Return the library of an optimizer or its state, and its entry for such optimizers.

    Raises
    ------
    TypeError
        If it is of no known library, or is not an optimizer that can be taken over.
    ValueError
        If another library is named, or none for a state; or if only some groups are of AMSGrad, or they are
        not torch's.
    """
    library = LIBRARIES[_name_of(optimizer, said)]
    groups = optimizer.param_groups
    if library.name == "torch" and any("ns_steps" in group for group in groups):
        return MUON
    if type(optimizer).__name__ == "Adam":
        library = library._replace(hyperparameters=partial(decoupled, usual=False))
    largest = [bool(group.get("amsgrad")) for group in groups]
    if not any(largest):
        return library
    if library.name != "torch":
        raise ValueError(f"a group has amsgrad = True, and only torch's is taken over, not {library.name}'s")
    if not all(largest):
        raise ValueError("some groups have amsgrad = True, and some have not: no optimizer here makes both")
    return library._replace(read=of_amsgrad, kind="AMSGrad")


def _name_of(optimizer: Any, said: str | None) -> str:
    if said is not None and said not in LIBRARIES:
        near = hint(said, LIBRARIES)
        raise ValueError(f"unknown library {said!r}{near}; runs are taken over from {', '.join(LIBRARIES)}")
    if isinstance(optimizer, SavedRun):
        if said is None:
            raise ValueError(f"say whose state it is by from_: one of {', '.join(LIBRARIES)}")
        return said
    kind = type(optimizer)
    found = kind.__module__.partition(".")[0]
    if found not in LIBRARIES or kind.__name__ not in LIBRARIES[found].classes:
        able = "; ".join(f"{name}'s {', '.join(item.classes)}" for name, item in LIBRARIES.items())
        raise TypeError(
            f"only optimizers of mcfsim.torch and of these are taken over ({able}), not {found}'s "
            f"{kind.__name__}"
        )
    if said not in (None, found):
        raise ValueError(f"from_ = {said!r}, and the optimizer is of {found}")
    return found


class SavedRun:
    """A state dict of an optimizer with its parameters, to be read like the optimizer.

    Parameters
    ----------
    saved : mapping
        As `torch.optim.Optimizer.state_dict` returns it.
    params : iterable of tensor
        The parameters, in the order in which the optimizer had them.

    Raises
    ------
    TypeError
        If a parameter is no tensor.
    ValueError
        If it is not a state, or not of as many parameters; or if a parameter is given twice.
    """

    def __init__(self, saved: Entries, params: Iterable[torch.Tensor]) -> None:
        given = [x[1] if isinstance(x, tuple) else x for x in params]
        if not all(isinstance(x, torch.Tensor) for x in given):
            raise TypeError("params must be tensors, in the order in which the optimizer had them")
        check_form(saved)
        groups, state = saved["param_groups"], saved["state"]
        places = [place for group in groups for place in group["params"]]
        if len(places) != len(given):
            raise ValueError(f"the state is of {len(places)} parameters, and {len(given)} are given")
        by_place = dict(zip(places, given, strict=True))
        if len({*by_place.values()}) < len(by_place):
            raise ValueError("params has the same tensor in two places")
        self.param_groups = [
            {**group, "params": [by_place[place] for place in group["params"]]} for group in groups
        ]
        self.state = {by_place[place]: {**x, **x.get(_WRAPPED, {})} for place, x in state.items()}
        # Schedulers' entries and names have no defaults.
        self.defaults = {name: None for group in groups for name in group if name not in LABELS}


# -- given ------------------------------------------------------------------------------------------------
#: The least number of elements whose moments torchao and bitsandbytes keep in 8 bits.
_LEAST = 4096


@dataclass
class Giving:
    """The handing over of a run to PyTorch's AdamW; subclasses hand runs to other optimizers.

    Parameters
    ----------
    groups : sequence of dict
        Parameter groups with PyTorch's names of hyperparameters.
    defaults : dict
        The same, for groups that are added; left out if the library cannot have them.
    """

    groups: Sequence[dict[str, Any]]
    defaults: dict[str, Any]
    library: ClassVar[str] = "torch.optim"
    kind: ClassVar[str] = "AdamW"
    #: The hyperparameters of a group that are handed over.
    entries: ClassVar[tuple[str, ...]] = SHARED
    #: Whether it can maximize.
    maximizes: ClassVar[bool] = True
    make: Callable[..., Any] = field(init=False)

    def __post_init__(self) -> None:
        if not self.maximizes and any(group.get("maximize") for group in self.groups):
            raise ValueError(f"{self.library.partition('.')[0]}'s AdamW does not maximize")
        self.groups = [self.renamed(group) for group in self.groups]
        try:
            self.defaults = self.renamed(self.defaults)
        except ValueError:
            self.defaults = {}
        try:
            self.make = getattr(import_module(self.library), self.kind)
        except (ImportError, AttributeError) as error:
            raise ImportError(f"to give a run to {self.library}, install it: {error}") from error

    @staticmethod
    def of(optimizer: Any, library: str) -> type[Giving]:
        """Return the class that gives a run to a library.

        Raises
        ------
        TypeError
            If such an optimizer cannot be given back.
        ValueError
            If the library is unknown, or cannot take such an optimizer.
        """
        kind = type(optimizer)
        ways = _WAYS.get(family(kind)) if isinstance(optimizer, StoredOptimizer) else None
        if ways is None:
            known = ", ".join(x.__name__ for x in _WAYS)
            raise TypeError(f"only {known} of mcfsim.torch are given back, not {kind.__name__}")
        if library not in ways:
            known = ", ".join(ways)
            raise ValueError(
                f"no run of {kind.__name__} is given to {library!r}{hint(library, ways)}, but to {known}"
            )
        return ways[library]

    def renamed(self, group: Entries) -> dict[str, Any]:
        """Return a group with the library's entries; raise ValueError for what it cannot do."""
        entries = {*self.entries} - {"lr"}  # which schedulers change in place
        return {name: _plain(x) if name in entries else x for name, x in group.items()}

    def check_moments(self, parameter: torch.Tensor, slots: Slots | None) -> None:
        """Raise ValueError if the moments of a parameter, by their parts, cannot be handed over."""

    def check(self, steps: Iterable[int]) -> None:
        """Raise ValueError if parameters of a group cannot have these numbers of steps."""

    def stores(self, dtype: torch.dtype, parameter: torch.Tensor) -> StateLayout:
        """Return how a parameter and its state are to be stored."""
        own = Stored(TORCH_DTYPES[dtype])
        return layout(dtype, own, own)

    def made(self, states: Mapping[torch.Tensor, Entries]) -> torch.optim.Optimizer:
        """Return the optimizer with the states of its parameters."""
        made = self.begun()
        made.defaults.update({name: x for name, x in self.defaults.items() if name in made.defaults})
        for group in made.param_groups:
            for parameter in group["params"]:
                if parameter in states:
                    made.state[parameter] = self.dressed(parameter, states[parameter], group)
        return made

    def begun(self) -> torch.optim.Optimizer:
        """Return the optimizer before any step."""
        made: torch.optim.Optimizer = self.make(self.groups)
        return made

    def dressed(self, parameter: torch.Tensor, state: Entries, group: dict[str, Any]) -> dict[str, Any]:
        """Return a parameter's state by the library's names."""
        # As PyTorch does: in a shorter default dtype the count would be rounded, and would stop growing.
        dtype = torch.promote_types(torch.float32, torch.get_default_dtype())
        step = torch.tensor(float(state["step"]), dtype=dtype)
        return {"step": step, **{theirs: state[name] for name, theirs in MOMENTS.items()}}


def _plain(x: Any) -> Any:
    """Return a hyperparameter as Python numbers, as libraries take them."""
    if isinstance(x, torch.Tensor | np.ndarray) and x.ndim == 1:
        x = x.tolist()
    return tuple(map(number, x)) if isinstance(x, list | tuple) else number(x)


class _ToAMSGrad(Giving):
    """PyTorch's AdamW with ``amsgrad``."""

    def renamed(self, group: Entries) -> dict[str, Any]:
        return {**super().renamed(group), "amsgrad": True}

    def dressed(self, parameter: torch.Tensor, state: Entries, group: dict[str, Any]) -> dict[str, Any]:
        both = state["v"].reshape(len(LARGEST), *parameter.shape)
        found = super().dressed(parameter, state, group)
        return {**found, **{name: x.clone() for name, x in zip(LARGEST, both, strict=True)}}


class _ToMuon(Giving):
    """PyTorch's Muon, which has one triple of coefficients, and no count of steps."""

    kind = "Muon"
    entries = (*OF_MUON, "averaged", "maximize")

    def renamed(self, group: Entries) -> dict[str, Any]:
        """Return a group with the entries of torch.optim.Muon; raise ValueError for what it cannot do."""
        found = super().renamed(group)
        scale, iteration = (found.pop(name) for name in ("scale", "iteration"))
        averaged, maximize = (found.pop(name) for name in ("averaged", "maximize"))
        one = len({*iteration.iterations}) == 1 and iteration.margin == 1 and not iteration.added
        for fault, what in (
            (not averaged, "averaged = False"),
            (maximize, "maximize = True"),
            (scale not in ("original", "match_rms_adamw"), f"scale = {str(scale)!r}"),
            (not one, f"iteration = {iteration}"),
        ):
            if fault:
                raise ValueError(f"torch.optim.Muon has no counterpart of {what}")
        return {
            **found,
            "adjust_lr_fn": str(scale),
            "ns_coefficients": iteration.iterations[0],
            "ns_steps": len(iteration.iterations),
            "eps": iteration.epsilon,
        }

    def check_moments(self, parameter: torch.Tensor, slots: Slots | None) -> None:
        beside = slots is not None and slots["v"].size > 0
        if parameter.ndim != 2 or beside:
            shape, by = tuple(parameter.shape), ", which AdamW moves here" if beside else ""
            raise ValueError(f"torch.optim.Muon moves matrices, and no parameter of shape {shape}{by}")

    def dressed(self, parameter: torch.Tensor, state: Entries, group: dict[str, Any]) -> dict[str, Any]:
        return {"momentum_buffer": state["m"]}


class _InEightBits(Giving):
    """A library that keeps moments of many numbers as codes of a table, with a scale for each 256."""

    plain: ClassVar[torch.dtype | None] = None
    maximizes = False

    def stores(self, dtype: torch.dtype, parameter: torch.Tensor) -> StateLayout:
        if not self.quantised(parameter):
            own = Stored(TORCH_DTYPES[self.plain or dtype])
            return layout(dtype, own, own)
        return layout(dtype, *(Stored(FLOAT32, scaled=kept) for kept in TABLES.values()))

    def quantised(self, parameter: torch.Tensor) -> bool:
        """Return whether the moments of a parameter are kept in 8 bits."""
        return bool(parameter.numel() >= _LEAST)


class _ToTorchao(_InEightBits):
    library = "torchao.optim"
    kind = "AdamW8bit"

    def quantised(self, parameter: torch.Tensor) -> bool:
        return super().quantised(parameter) and parameter.numel() % DYNAMIC.block == 0

    def dressed(self, parameter: torch.Tensor, state: Entries, group: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = super().dressed(parameter, state, group)
        if self.quantised(parameter):
            held = import_module("torchao.optim.subclass_8bit").OptimState8bit
            for name, theirs in MOMENTS.items():
                table = torch.tensor(TABLES[name].table, device=parameter.device)
                scales = state[name + SCALES].reshape(-1)
                found[theirs] = held(state[name], scales, table, name == "m", parameter.dtype)
        return found


class _ToBitsandbytes(_InEightBits):
    library = "bitsandbytes.optim"
    kind = "AdamW8bit"
    plain = torch.float32

    def dressed(self, parameter: torch.Tensor, state: Entries, group: dict[str, Any]) -> dict[str, Any]:
        found = {"step": state["step"]}
        for place, name in enumerate(MOMENTS, 1):
            found[f"state{place}"] = state[name]
            if self.quantised(parameter):
                table = torch.tensor(TABLES[name].table, device=parameter.device)
                found |= {f"qmap{place}": table, f"absmax{place}": state[name + SCALES].reshape(-1)}
        return found


class _ToOptimi(Giving):
    library = "optimi"
    maximizes = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._steps: list[int] = []

    def renamed(self, group: Entries) -> dict[str, Any]:
        """Return a group with ``beta1`` and ``beta2`` in place of ``betas``, and without ``maximize``."""
        found = super().renamed(group)
        split = {**found, "beta1": found["betas"][0], "beta2": found["betas"][1]}
        return {name: x for name, x in split.items() if name not in ("betas", "maximize")}

    def check(self, steps: Iterable[int]) -> None:
        counts = set(steps)
        if len(counts) > 1:
            raise ValueError(f"optimi counts steps by group, and parameters of one made {sorted(counts)}")
        self._steps.append(counts.pop() if counts else 0)

    def stores(self, dtype: torch.dtype, parameter: torch.Tensor) -> StateLayout:
        low = dtype in (torch.bfloat16, torch.float16)
        return layout(dtype, WIDE, WIDE, "compensation" if low else None)

    def begun(self) -> torch.optim.Optimizer:
        found: torch.optim.Optimizer = self.make(self.groups, lr=number(self.groups[0]["lr"]))
        for group, step in zip(found.param_groups, self._steps, strict=True):
            begun = torch.tensor(step, dtype=torch.int32)
            # Once a state has begun, optimi no longer determines whether it keeps a compensation.
            group.update(setup=step > 0, step=begun, triton=False, kahan_sum=True)
        return found

    def dressed(self, parameter: torch.Tensor, state: Entries, group: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {"kahan_comp": state.get("compensation")}
        for (name, theirs), beta in zip(MOMENTS.items(), (group["beta1"], group["beta2"]), strict=True):
            # Before the first step nothing is corrected.
            corrected = state[name] / (1.0 - float(beta) ** state["step"] or 1.0)
            found[theirs] = corrected.to(parameter.dtype)
        return found


#: How runs are given back, by the optimizer and the library.
_WAYS: Mapping[type[Declaration], Mapping[str, type[Giving]]] = MappingProxyType(
    {
        AdamW: {
            "torch": Giving,
            "torchao": _ToTorchao,
            "bitsandbytes": _ToBitsandbytes,
            "optimi": _ToOptimi,
        },
        AMSGrad: {"torch": _ToAMSGrad},
        Muon: {"torch": _ToMuon},
    }
)
