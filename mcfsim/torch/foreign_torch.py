"""Runs of PyTorch's own optimizers: states of AdamW, AMSGrad and Muon, and entries of groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from mcfsim.checks import whole_number
from mcfsim.kernels.torch_tensors import TORCH_DTYPES, check_dense
from mcfsim.optim.stored import Stored
from mcfsim.torch.group import number
from mcfsim.torch.local import local

#: The moments of AdamW in PyTorch, and in what follows it, by their names here.
MOMENTS = {"m": "exp_avg", "v": "exp_avg_sq"}
#: Hyperparameters that AdamW has both here and in PyTorch.
SHARED = ("lr", "betas", "eps", "weight_decay", "maximize")
#: What a group of any AdamW has.
OF_ADAMW = ("lr", "betas", "eps", "weight_decay")
#: Those of Muon.
OF_MUON = ("lr", "momentum", "nesterov", "scale", "weight_decay", "iteration")
#: What a group of PyTorch's Muon has, and the number of iterations that it refuses.
_ENTRIES = (
    "lr", "weight_decay", "momentum", "nesterov", "ns_coefficients", "ns_steps", "eps", "adjust_lr_fn",
)  # fmt: skip
_MOST = 100
#: What AMSGrad keeps in the place of v, in order: v itself, and the largest so far.
LARGEST = (MOMENTS["v"], "max_exp_avg_sq")


def check_entries(whose: str, group: Entries, entries: Sequence[str]) -> None:
    """Raise ValueError if a group lacks one of the entries that those of an optimizer have."""
    if missing := [name for name in entries if name not in group]:
        raise ValueError(f"a group of {whose} has {', '.join(entries)}; {missing} are missing")


#: A parameter's state, or a group, by the names of a library or by those here.
Entries = Mapping[str, Any]


class Moment(NamedTuple):
    """A moment as a library stores it: how, and its tensor, with scales if there are any."""

    stored: Stored
    numbers: torch.Tensor
    scales: torch.Tensor | None = None


def plain(x: torch.Tensor) -> Moment:
    """Return a moment in a dtype of its own; raise TypeError if no format here has it."""
    check_dense(local(x))
    if x.dtype not in TORCH_DTYPES:
        able = ", ".join(map(str, TORCH_DTYPES))
        raise TypeError(f"moments are taken over of dtype {able}, not {x.dtype}")
    return Moment(Stored(TORCH_DTYPES[x.dtype]), x)


def zeros_as(parameter: torch.Tensor) -> torch.Tensor:
    """Return a moment before the first step."""
    return torch.zeros_like(parameter.detach())


def _there(parameter: torch.Tensor, state: Entries, name: str) -> torch.Tensor:
    """Return a tensor of a state, zeros before the first step; raise ValueError if it has another shape."""
    x = state.get(name)
    if x is None:
        return zeros_as(parameter)
    if not isinstance(x, torch.Tensor) or x.shape != parameter.shape:
        shape = tuple(x.shape) if isinstance(x, torch.Tensor) else repr(x)
        raise ValueError(f"{name} of a parameter of shape {tuple(parameter.shape)} is of another: {shape}")
    check_dense(local(x))
    return x


def of_torch(parameter: torch.Tensor, state: Entries, group: Entries) -> dict[str, Moment]:
    """Return the moments of AdamW, and of what follows its names; zeros before the first step."""
    return {name: plain(_there(parameter, state, theirs)) for name, theirs in MOMENTS.items()}


def of_amsgrad(parameter: torch.Tensor, state: Entries, group: Entries) -> dict[str, Moment]:
    """Return the moments of AdamW with amsgrad: v is both second moments, one after the other."""
    if len(there := [name for name in LARGEST if state.get(name) is not None]) == 1:
        raise ValueError(f"a state of amsgrad has {' and '.join(LARGEST)}, and this one only {there[0]}")
    whole = torch.cat([local(_there(parameter, state, name)).reshape(-1) for name in LARGEST])
    return {"m": plain(_there(parameter, state, MOMENTS["m"])), "v": plain(whole)}


def of_muon(parameter: torch.Tensor, state: Entries, group: Entries) -> dict[str, Moment]:
    """Return the momentum of Muon, and no second moment."""
    momentum = plain(_there(parameter, state, "momentum_buffer"))
    return {"m": momentum, "v": plain(local(parameter.detach()).new_zeros(0))}


def decoupled(group: Entries, defaults: Entries, *, usual: bool = True) -> dict[str, Any]:
    """Return a group of Adam or AdamW; raise ValueError if its decay is part of the gradient.

    In some versions of PyTorch groups do not say so; then it is as usual. Its other optimizers, whose states
    may look alike, have no ``amsgrad``.
    """
    check_entries("torch.optim.AdamW", group, (*OF_ADAMW, "amsgrad"))
    if not group.get("decoupled_weight_decay", usual) and number(group["weight_decay"]):
        raise ValueError(
            f"weight_decay = {group['weight_decay']} of torch.optim.Adam is added to the gradient, and decay "
            "is decoupled here, as in AdamW"
        )
    return dict(group)


def as_muon(group: Entries, defaults: Entries) -> dict[str, Any]:
    """Return a group of torch.optim.Muon, whose eps is that of the iteration; its sums are the default's."""
    check_entries("torch.optim.Muon", group, _ENTRIES)
    steps, triple = whole_number("ns_steps", group["ns_steps"], least=1), tuple(group["ns_coefficients"])
    if steps >= _MOST:
        raise ValueError(f"ns_steps = {steps} must be less than {_MOST}, as in torch.optim.Muon")
    iteration = type(defaults["iteration"])((triple,) * steps, epsilon=number(group["eps"]))
    scale = group.get("adjust_lr_fn") or "original"
    return {**group, "momentum": number(group["momentum"]), "scale": scale, "iteration": iteration}
