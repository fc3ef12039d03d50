"""States of other libraries' optimizers, as stored there: AdamW of each, and torch's AMSGrad and Muon."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple, TypeGuard

import torch

from mcfsim.checks import whole_number
from mcfsim.kernels.torch_tensors import TORCH_DTYPES, check_dense
from mcfsim.optim import adamw
from mcfsim.optim.stored import DYNAMIC, DYNAMIC_UNSIGNED, FLOAT8_GROUPS, FLOAT32, Stored
from mcfsim.optim.strategies import Addition, Strategy
from mcfsim.scaled.quantisers import DynamicMap
from mcfsim.torch.group import number
from mcfsim.torch.local import SCALES, is_spread, local
from mcfsim.torch.state_dicts import step_count
from mcfsim.torch.state_layout import Slots, StateLayout

# -- PyTorch's own ----------------------------------------------------------------------------------------
#: A parameter's state, or a group, by the names of a library or by those here.
Entries = Mapping[str, Any]
#: The names of AdamW's moments in PyTorch, and in libraries that follow it, by their names here.
MOMENTS = {"m": "exp_avg", "v": "exp_avg_sq"}
#: Hyperparameters that AdamW has both here and in PyTorch.
SHARED = ("lr", "betas", "eps", "weight_decay", "maximize")
#: What a group of any AdamW has.
OF_ADAMW = ("lr", "betas", "eps", "weight_decay")
#: Hyperparameters that Muon has here.
OF_MUON = ("lr", "momentum", "nesterov", "scale", "weight_decay", "iteration")
#: What a group of PyTorch's Muon has, and the least number of iterations that it refuses.
_ENTRIES = (
    "lr", "weight_decay", "momentum", "nesterov", "ns_coefficients", "ns_steps", "eps", "adjust_lr_fn",
)  # fmt: skip
_MOST = 100
#: What AMSGrad keeps in the place of v, in order: v itself, and the largest so far.
LARGEST = (MOMENTS["v"], "max_exp_avg_sq")


def check_entries(whose: str, group: Entries, entries: Sequence[str]) -> None:
    """Raise ValueError if a group lacks one of the entries that all groups of an optimizer have."""
    if missing := [name for name in entries if name not in group]:
        raise ValueError(f"a group of {whose} has {', '.join(entries)}; {missing} are missing")


class Moment(NamedTuple):
    """A moment as a library stores it: how it is stored, its tensor, and its scales if there are any."""

    stored: Stored
    numbers: torch.Tensor
    scales: torch.Tensor | None = None


def plain(x: torch.Tensor) -> Moment:
    """Return a moment stored as plain numbers; raise TypeError if no format here has their dtype."""
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
    """Return the moments of an AdamW that uses PyTorch's names; zeros before the first step."""
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

    In some versions of PyTorch, groups do not say whether it is; then `usual` holds. PyTorch's other
    optimizers, whose states may look the same, have no ``amsgrad``.
    """
    check_entries("torch.optim.AdamW", group, (*OF_ADAMW, "amsgrad"))
    if not group.get("decoupled_weight_decay", usual) and number(group["weight_decay"]):
        raise ValueError(
            f"weight_decay = {group['weight_decay']} of torch.optim.Adam is added to the gradient, and decay "
            "is decoupled here, as in AdamW"
        )
    return dict(group)


def as_muon(group: Entries, defaults: Entries) -> dict[str, Any]:
    """Return a group of torch.optim.Muon; its iteration has its eps and coefficients, and default sums."""
    check_entries("torch.optim.Muon", group, _ENTRIES)
    steps, triple = whole_number("ns_steps", group["ns_steps"], least=1), tuple(group["ns_coefficients"])
    if steps >= _MOST:
        raise ValueError(f"ns_steps = {steps} must be less than {_MOST}, as in torch.optim.Muon")
    iteration = type(defaults["iteration"])((triple,) * steps, epsilon=number(group["eps"]))
    scale = group.get("adjust_lr_fn") or "original"
    return {**group, "momentum": number(group["momentum"]), "scale": scale, "iteration": iteration}


# -- all libraries ----------------------------------------------------------------------------------------
class Held(NamedTuple):
    """The state of a parameter: how it is stored, its tensors by the names here, and the parts of slots."""

    stores: StateLayout
    state: dict[str, Any]
    slots: Slots | None = None


#: The tables of moments in 8 bits, which torchao and bitsandbytes use.
TABLES: Mapping[str, DynamicMap] = MappingProxyType({"m": DYNAMIC, "v": DYNAMIC_UNSIGNED})
#: The storage of torchao's moments in float8: in groups of 256.
FLOAT8_256 = replace(FLOAT8_GROUPS, name="float8_256", block=256)
#: For optimi, which keeps corrected moments: they are multiplied and divided by corrections in binary64.
WIDE = Stored("float64")  # type: ignore[arg-type]


def _as_they_are(group: Entries, defaults: Entries) -> dict[str, Any]:
    check_entries("an AdamW", group, OF_ADAMW)
    return dict(group)


class Library(NamedTuple):
    """An optimizer of a library, usually its AdamW, and how its state is read.

    Attributes
    ----------
    name : str
        The first part of its modules' names.
    classes : tuple of str
        Names of the library's classes whose runs can be taken over.
    read : callable
        ``(parameter, state, group)`` returns the moments by their names here.
    extra : dict of str to str
        What further tensors of the state are, by their names there: ``"compensation"`` or ``"remainder"``.
    kind : str
        The class here that goes on with a run, unless another one is named.
    hyperparameters : callable
        ``(group, defaults)`` returns the entries of a group by the names that the class here has for them;
        `defaults` are those of the class.
    entries : tuple of str
        The hyperparameters that are taken over.
    moments : tuple of str
        The names of the moments of a state that has begun; in a state they may continue after ``::``.
    counts : bool
        Whether it counts steps.
    """

    name: str
    classes: tuple[str, ...]
    read: Callable[[torch.Tensor, Entries, Entries], dict[str, Moment]]
    extra: Mapping[str, str] = MappingProxyType({})
    kind: str = "AdamW"
    hyperparameters: Callable[[Entries, Entries], dict[str, Any]] = _as_they_are
    entries: tuple[str, ...] = SHARED
    moments: tuple[str, ...] = tuple(MOMENTS.values())
    counts: bool = True


def _by_joint_betas(group: Entries, defaults: Entries) -> dict[str, Any]:
    check_entries("optimi's AdamW", group, ("lr", "beta1", "beta2", "eps", "weight_decay"))
    if not group.get("decouple_wd", True) and number(group["weight_decay"]):
        raise ValueError("optimi's decay here is added to the gradient, and decay is decoupled in AdamW")
    return {**group, "betas": (group["beta1"], group["beta2"])}


def _of_torchao(parameter: torch.Tensor, state: Entries, group: Entries) -> dict[str, Moment]:
    found = {}
    for name, theirs in MOMENTS.items():
        x = zeros_as(parameter) if theirs not in state else state[theirs]
        kind = type(x).__name__
        if kind == "OptimState8bit":
            found[name] = _by_table(name, x.codes, x.scale, x.qmap)
        elif kind == "OptimStateFp8":
            kept = replace(FLOAT8_256, block=_group_size(name, x.codes, x.scale))
            found[name] = Moment(Stored(FLOAT32, scaled=kept), x.codes.view(torch.uint8), x.scale)
        elif kind == "OptimState4bit":
            found[name] = plain(x.dequantize(torch.float32))
        else:
            found[name] = plain(x)
    return found


def _of_bitsandbytes(parameter: torch.Tensor, state: Entries, group: Entries) -> dict[str, Moment]:
    found = {}
    for place, name in enumerate(MOMENTS, 1):
        x = zeros_as(parameter).float() if f"state{place}" not in state else state[f"state{place}"]
        if x.dtype != torch.uint8:
            found[name] = plain(x)
        elif f"absmax{place}" in state:
            found[name] = _by_table(name, x, state[f"absmax{place}"], state[f"qmap{place}"])
        else:
            raise ValueError(
                "bitsandbytes keeps this state with one scale per tensor; block_wise=True has blocks"
            )
    return found


def _of_optimi(parameter: torch.Tensor, state: Entries, group: Entries) -> dict[str, Moment]:
    if group.get("decouple_lr") and group["weight_decay"]:
        raise ValueError("optimi's decay here goes by the rate's share of max_lr; set decouple_lr=False")
    step, found = step_count(_step_of(state, group, 0)), {}
    for (name, moment), beta in zip(
        of_torch(parameter, state, group).items(), (group["beta1"], group["beta2"]), strict=True
    ):
        uncorrected = moment.numbers.to(torch.float64) * (1.0 - float(beta) ** step)
        found[name] = Moment(WIDE, uncorrected)
    return found


def _of_flashoptim(parameter: torch.Tensor, state: Entries, group: Entries) -> dict[str, Moment]:
    """Return the moments in binary32, by the operations of FlashOptim's kernel, each rounded."""
    found = {}
    for name, theirs in MOMENTS.items():
        x = state.get(theirs)
        codes = state.get(f"{theirs}::quantized", getattr(x, "quantized", None))
        if codes is None:
            data = getattr(x, "data", x)
            found[name] = plain(zeros_as(parameter) if data is None else data)
            continue
        scales = state.get(f"{theirs}::scales", getattr(x, "scales", None))
        assert scales is not None
        scales = scales.view(torch.float16) if scales.dtype == torch.bfloat16 else scales
        each = scales.to(torch.float32).repeat_interleave(32)[: codes.numel()].view(codes.shape)
        y = codes.to(torch.float32) / (127.0 if name == "m" else 255.0)
        numbers = (y / (2.0 - y.abs()) if name == "m" else y) * each
        found[name] = plain(numbers if name == "m" else numbers * numbers)
    return found


def _by_table(name: str, codes: torch.Tensor, scales: torch.Tensor, table: torch.Tensor) -> Moment:
    """Return a moment of codes and scales: as it is if its table and groups are those here, else decoded."""
    kept, size = TABLES[name], _group_size(name, codes, scales)
    if size == kept.block and torch.equal(table.cpu(), torch.from_numpy(kept.table)):
        return Moment(Stored(FLOAT32, scaled=kept), codes, scales)
    each = scales.reshape(-1).repeat_interleave(size)[: codes.numel()].view(codes.shape)
    return plain(table.to(codes.device)[codes.long()] * each)


def _group_size(name: str, codes: torch.Tensor, scales: torch.Tensor) -> int:
    """Return how many codes share a scale: a power of two, and the last group may be short."""
    count, groups = codes.numel(), scales.numel()
    size: int = 1 << (-(-count // max(groups, 1)) - 1).bit_length()
    if count <= groups * 256 < count + 256:
        size = 256  # of the sizes that fit; there are several if numbers are few
    if not count <= groups * size < count + size:
        raise ValueError(f"{count} codes of {name} have {groups} scales, which are not those of equal groups")
    return size


_TORCH = Library("torch", ("AdamW", "Adam", "Muon"), of_torch, hyperparameters=decoupled)
_KNOWN = (
    _TORCH,
    Library("torchao", ("AdamW8bit", "AdamWFp8", "AdamW4bit", "_AdamW"), _of_torchao),
    Library(
        "bitsandbytes",
        tuple(f"{paged}AdamW{bits}" for paged in ("", "Paged") for bits in ("", "8bit", "32bit")),
        _of_bitsandbytes,
        moments=("state1", "state2"),
    ),
    Library(
        "optimi",
        ("AdamW",),
        _of_optimi,
        MappingProxyType({"kahan_comp": "compensation"}),
        hyperparameters=_by_joint_betas,
    ),
    Library("flashoptim", ("FlashAdamW",), _of_flashoptim, MappingProxyType({"error_bits": "remainder"})),
)
#: The libraries whose runs are taken over, by the first part of a module's name.
LIBRARIES: Mapping[str, Library] = MappingProxyType({library.name: library for library in _KNOWN})
#: The entry of PyTorch's Muon.
MUON = _TORCH._replace(
    read=of_muon,
    kind="TorchMuon",
    hyperparameters=as_muon,
    entries=OF_MUON,
    moments=("momentum_buffer",),
    counts=False,
)


def held(
    of: Library,
    parameter: torch.Tensor,
    state: Entries,
    group: Entries,
    slots: Slots | None = None,
) -> Held:
    """Return a parameter's state as it lies in a library's optimizer; it need not have begun.

    Raises
    ------
    TypeError, ValueError
        If a tensor is not dense, or the state cannot be read: it lacks a step or a moment, or a moment has
        another shape, or not the parts of its slot.
    """
    if is_spread(parameter) and of.name != "torch":
        raise ValueError(f"the state of a parameter that processes share is taken from torch, not {of.name}")
    check_dense(local(parameter.detach()))
    shape, begun = tuple(parameter.shape), {name for name, x in state.items() if x is not None}
    if begun and not {*of.moments} <= {str(name).partition("::")[0] for name in begun}:
        raise ValueError(
            f"a parameter of shape {shape} has a state with {', '.join(map(str, state))}, and one of "
            f"{of.name} has {', '.join(of.moments)}"
        )
    moments = of.read(parameter, state, group)
    if (step := _step_of(state, group, None if begun and of.counts else 0)) is None:
        raise ValueError(f"a parameter of shape {shape} has a state without a step")
    found: dict[str, Any] = {"step": step_count(step)}
    for name, moment in moments.items():
        parts, numbers = (slots or {}).get(name), moment.numbers
        if parts is not None and numbers.numel() != parts.size:
            raise ValueError(
                f"mcfsim keeps {parts.size} numbers of {name} for a parameter of shape {shape}, and the "
                f"state has {numbers.numel()}"
            )
        found[name] = numbers if parts is not None else _shaped(name, numbers, parameter)
    kept = {name: state.get(theirs) for theirs, name in of.extra.items()}
    extra = {name: _shaped(name, x, parameter) for name, x in kept.items() if _is_kept(name, x)}
    dtypes = parameter.dtype, moments["m"].stored, moments["v"].stored
    stores = layout(*dtypes, *(y for name, x in extra.items() for y in (name, x.element_size())))
    for name, moment in moments.items():
        if moment.scales is not None:
            blank = stores.begun(parameter, [name + SCALES])[name + SCALES]
            found[name + SCALES] = moment.scales.reshape(blank.shape)
    for name, x in extra.items():
        found[name] = x if name == "compensation" else x.view(stores.dtypes[name])
    return Held(stores, found, slots)


def _step_of(state: Entries, group: Entries, unsaid: int | None) -> Any:
    """Return the count of steps, which most libraries keep by parameter, and optimi mostly by group."""
    return state.get("step", group.get("step", unsaid))


def _is_kept(name: str, x: Any) -> TypeGuard[torch.Tensor]:
    """Return whether a state has a further tensor; optimi has one byte in place of a missing one."""
    return isinstance(x, torch.Tensor) and (name != "compensation" or x.dtype is not torch.uint8)


def _shaped(name: str, x: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """Return a tensor in a parameter's shape; raise ValueError unless it has it, or is a vector as long."""
    if x.shape == parameter.shape:
        return x
    if x.ndim != 1 or x.numel() != parameter.numel():
        raise ValueError(
            f"{name} of a parameter of shape {tuple(parameter.shape)} is of another: {tuple(x.shape)}"
        )
    return x.reshape(parameter.shape)


@lru_cache
def layout(dtype: torch.dtype, m: Stored, v: Stored, extra: str | None = None, size: int = 0) -> StateLayout:
    """Return the layout of a library's storage: its dtype, both moments, and what it has beside them."""
    own = Stored(TORCH_DTYPES[dtype])
    kept, addition = None, Addition.PLAIN
    if extra == "compensation":
        kept, addition = own, Addition.KAHAN
    elif extra == "remainder":
        kept, addition = Stored(FLOAT32, remainder=8 * size), Addition.MASTER
    strategy = Strategy("theirs", own, m, v, own, kept, addition)
    return StateLayout.of(adamw.AdamW, strategy, strategy.roles(), "exact")
