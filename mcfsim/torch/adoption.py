"""Taking over a run of PyTorch's own AdamW, or of another strategy, and giving it back."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray

from mcfsim.convert import round_to
from mcfsim.kernels.torch_tensors import TORCH_DTYPES, Tensors, as_array, check_dense, torch_dtype
from mcfsim.optim import adamw
from mcfsim.optim.strategies import Stored, Strategy
from mcfsim.optim.strategies import strategy as get_strategy
from mcfsim.optim.strategy import SLOTS, VanishingScalarWarning
from mcfsim.optim.switch import alike, check_no_grid, split_sum, stored_parameter
from mcfsim.torch.group import LABELS
from mcfsim.torch.local import SCALES, is_spread, local, spread_as
from mcfsim.torch.optimizers import AdamW
from mcfsim.torch.state_dicts import NAMES
from mcfsim.torch.state_layout import Slots, StateLayout, packed, summed
from mcfsim.torch.step import StoredOptimizer

#: The names of the moments in torch, by their names here.
MOMENTS = {"m": "exp_avg", "v": "exp_avg_sq"}
#: Hyperparameters that both optimizers have.
_SHARED = ("lr", "betas", "eps", "weight_decay", "maximize")


def adopt(
    optimizer: torch.optim.Optimizer,
    strategy: Strategy | str = "collage-plus",
    *,
    kind: type[StoredOptimizer] | None = None,
    **options: Any,
) -> StoredOptimizer:
    """Take over a run: its parameters, moments, steps and groups go on under a strategy.

    Parameters
    ----------
    optimizer : torch.optim.AdamW, or an optimizer of mcfsim.torch
        Do not use it afterwards. Its parameters change their dtype in place if the strategy stores them in
        another one. Its state is moved piece by piece, so that little memory is needed for both.
    strategy : Strategy or str, optional
        The strategy of the new optimizer, in all groups.
    kind : type, optional
        The class of the new optimizer: by default that of the old one, and of PyTorch's `AdamW`. Those of
        AdamW with other rounding points may take each other's place.
    **options
        ``low``, ``rounding``, ``scalars``, ``random``, ``capturable`` of `mcfsim.torch.AdamW`. All but `low`
        are by default those of the old optimizer's groups.

    Returns
    -------
    StoredOptimizer
        The new optimizer, with the current learning rates of the groups. A scheduler continues with it once
        the scheduler's ``optimizer`` is set to it.

    Raises
    ------
    TypeError
        If `optimizer` is none of these, `kind` makes other steps, or an option is unknown.
    ValueError
        If it uses ``amsgrad``, which has no counterpart here; if a setting is refused, or a number is too
        large for its format; or if processes share a parameter whose dtype would change. Nothing has changed
        then.
    SpoiltStateError
        If a step of `optimizer` was broken off half-way.

    Notes
    -----
    Nothing that the formats can hold is lost. State is carried over as `mcfsim.Optimizer.switched` says, to
    the same bits: what it represents, parameter or moment, is summed exactly, and rounded once to nearest
    even. Further components, Kahan's compensation or the master copy hold the rest, as far as they reach.
    """
    groups = optimizer.param_groups
    kept: Iterable[str] = _SHARED
    if isinstance(optimizer, StoredOptimizer):
        optimizer.whole.check()
        kept = {*optimizer.defaults} - {"strategy", "low", *options}
    elif type(optimizer) is not torch.optim.AdamW:
        raise TypeError(
            f"only torch.optim.AdamW and optimizers of mcfsim.torch are taken over, not "
            f"{type(optimizer).__name__}"
        )
    elif any(group["amsgrad"] for group in groups):
        raise ValueError("a group has amsgrad = True, which has no counterpart here")
    chosen = _kind(optimizer, kind)
    check_no_grid(get_strategy(strategy), *(group["strategy"] for group in groups if "strategy" in group))
    said = [_shared(group, optimizer.defaults, kept) for group in groups]
    taken = [{name: x for name, x in group.items() if name in (*kept, *LABELS)} for group in said]
    stores = _stores(chosen, taken, strategy, options)
    for group in groups:
        for parameter in group["params"]:
            _check(stores, parameter, _held(optimizer, group, parameter))
    states: dict[torch.Tensor, dict[str, Any]] = {}
    with torch.no_grad():
        for group in groups:
            for parameter in group["params"]:
                held = _held(optimizer, group, parameter)
                optimizer.state.pop(parameter, None)
                made = _taken(stores, parameter, held)
                _put(parameter, made.pop("parameter"))
                states[parameter] = {"step": held.state["step"], **made}
        ours = chosen(taken, strategy=strategy, **options)
        for group, whole in zip(ours.param_groups, said, strict=True):
            group.update({name: x for name, x in whole.items() if name not in group})
        ours.state.update(states)
    return ours


def release(optimizer: StoredOptimizer, dtype: torch.dtype = torch.float32) -> torch.optim.AdamW:
    """Give a run back to `torch.optim.AdamW`: the reverse of `adopt`.

    Parameters
    ----------
    optimizer : AdamW
        Do not use it afterwards: its parameters become tensors of `dtype`, in place.
    dtype : dtype, optional
        The dtype of the parameters, and so of the moments.

    Returns
    -------
    torch.optim.AdamW
        Each of its numbers is the sum of the components, rounded once to nearest even.

    Raises
    ------
    TypeError
        If `optimizer` is no AdamW of this package.
    ValueError
        If processes share a parameter whose dtype would change. Nothing has changed then.
    """
    if not isinstance(optimizer, AdamW):
        raise TypeError(f"only an AdamW of mcfsim.torch is given back, not {type(optimizer).__name__}")
    groups = [_shared(group, optimizer.defaults, _SHARED) for group in optimizer.param_groups]
    for parameter in _parameters(groups):
        _check_dtype(parameter, dtype)
    states: dict[torch.Tensor, dict[str, Any]] = {}
    with torch.no_grad():
        for own in optimizer.param_groups:
            stores = optimizer.steps_of(own).stores
            for parameter in own["params"]:
                whole = optimizer.represented(parameter).to(dtype)
                if state := optimizer.state.pop(parameter, {}):
                    moments = (_moment(stores, parameter, state, of).to(dtype) for of in stores.names[1:3])
                    step = torch.tensor(float(state["step"]))
                    states[parameter] = {"step": step, **dict(zip(MOMENTS.values(), moments, strict=True))}
                _put(parameter, whole)
        theirs = torch.optim.AdamW(groups)
        theirs.state.update(states)
    return theirs


def _moment(
    stores: StateLayout, parameter: torch.Tensor, state: Mapping[str, Any], names: Sequence[str]
) -> torch.Tensor:
    """Return the sum of the components of a moment, distributed like the parameter."""
    here = {name: local(x) for name, x in state.items() if name != "step"}
    components = [stores.numbers(here, name) for name in names]
    return spread_as(parameter, summed(components).view(local(parameter.detach()).shape))


def _kind(optimizer: torch.optim.Optimizer, kind: type[StoredOptimizer] | None) -> type[StoredOptimizer]:
    """Return the class of the new optimizer; raise TypeError if its steps are of other hyperparameters."""
    own = type(optimizer) if isinstance(optimizer, StoredOptimizer) else AdamW
    if kind is None or kind is own:
        return own
    if not (isinstance(kind, type) and issubclass(kind, AdamW) and issubclass(own, AdamW)):
        raise TypeError(f"a run of {own.__name__} does not go on by {getattr(kind, '__name__', kind)}")
    return kind


def _shared(group: Mapping[str, Any], defaults: Mapping[str, Any], kept: Iterable[str]) -> dict[str, Any]:
    """Return the entries of a group that are kept, and those that schedulers added."""
    return {name: x for name, x in group.items() if name in kept or name not in {*defaults, *NAMES}}


def _parameters(groups: Iterable[Mapping[str, Any]]) -> Iterator[torch.Tensor]:
    return (parameter for group in groups for parameter in group["params"])


def _stores(
    kind: type[StoredOptimizer],
    groups: Sequence[Mapping[str, Any]],
    strategy: Strategy | str,
    options: dict[str, Any],
) -> StateLayout:
    """Return the layout of the new optimizer's state; raise what that would raise, before any change."""
    fmt = get_strategy(strategy, options.get("low", "bfloat16")).parameter.format
    empty = torch.zeros(0, dtype=torch.float32 if fmt is None else torch_dtype(fmt))
    empty_groups = [
        {**{name: x for name, x in group.items() if name != "param_names"}, "params": [empty.clone()]}
        for group in groups
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", VanishingScalarWarning)  # it comes when the groups are added
        trial = kind(empty_groups, strategy=strategy, **options)
    return trial.steps_of(trial.param_groups[0]).stores


@lru_cache
def _torchs(dtype: torch.dtype) -> StateLayout:
    """Return the layout of torch's AdamW as a strategy: parameter and moments in the same format."""
    own = Stored(TORCH_DTYPES[dtype])
    plain = Strategy("torch", own, own, own, own)
    return StateLayout.of(adamw.AdamW, plain, plain.roles(), "exact")


class _Held(NamedTuple):
    """The state of a parameter: how it is stored, its tensors by the names here, and the parts of slots."""

    stores: StateLayout
    state: dict[str, Any]
    slots: Slots | None = None


def _held(optimizer: torch.optim.Optimizer, group: Mapping[str, Any], parameter: torch.Tensor) -> _Held:
    """Return the state of a parameter, which need not have begun."""
    state = optimizer.state.get(parameter, {})
    if isinstance(optimizer, StoredOptimizer):
        begun = state or optimizer._start(parameter, group)
        return _Held(optimizer.steps_of(group).stores, begun, optimizer._slots(parameter, group))
    check_dense(local(parameter.detach()))
    start = parameter.detach()
    moments = {name: state[x] if x in state else torch.zeros_like(start) for name, x in MOMENTS.items()}
    return _Held(_torchs(parameter.dtype), {"step": int(state.get("step", 0)), **moments})


def _here(parameter: torch.Tensor, state: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return the local parts of a parameter and its state, by name."""
    return {
        name: local(x) for name, x in {**state, "parameter": parameter.detach()}.items() if name != "step"
    }


def _check(stores: StateLayout, parameter: torch.Tensor, held: _Held) -> None:
    """Raise unless a parameter and its state can be taken over."""
    old, state, slots = held
    _check_dtype(parameter, stores.dtypes["parameter"])
    stores.check_groups(parameter)
    stores.check_scales(parameter)
    here = _here(parameter, state)
    for x in here.values():
        check_dense(x)
    parts: dict[str, Tensors] = {slot: _moment_parts(old, here, slot, slots) for slot in SLOTS}
    parts["parameter"] = old.represented(here)
    for name, found in parts.items():
        if not found:
            continue
        whole, fmt = summed(found), stores.formats[name]
        lost = whole.isfinite() & ~round_to(whole, fmt).isfinite()
        if count := int(lost.sum()):
            raise ValueError(
                f"{count} numbers of {name} of a parameter of shape {tuple(parameter.shape)} are too large "
                f"for {fmt}"
            )


def _moment_parts(
    stores: StateLayout, here: Mapping[str, torch.Tensor], slot: str, slots: Slots | None
) -> tuple[torch.Tensor, ...]:
    """Return the components of a moment as vectors; none if there is no such moment."""
    return tuple(stores.numbers(here, name, slots) for name in getattr(stores.names, slot))


def _check_dtype(parameter: torch.Tensor, dtype: torch.dtype) -> None:
    if parameter.dtype != dtype and is_spread(parameter):
        raise ValueError(
            f"processes share a parameter of {parameter.dtype} that is to become {dtype}; change the "
            "optimizer before the model is spread, or spread it anew"
        )


def _taken(stores: StateLayout, parameter: torch.Tensor, held: _Held) -> dict[str, torch.Tensor]:
    """Return a parameter and its state as they are stored here, from how they were."""
    old, state, slots = held
    here, same = _here(parameter, state), dict[str, torch.Tensor]()
    given = {**state, "parameter": parameter.detach()}
    made: dict[str, torch.Tensor] = {}

    def is_same(label: str, names: Sequence[str]) -> bool:
        """Keep tensors, if both strategies store them in the same way."""
        found = alike(old.strategy, stores.strategy, label)
        if not found or any(here[name].dtype != stores.dtypes[name] for name in names):
            return False
        scales = [name + SCALES for name in names if name in stores.grouped]
        same.update({name: given[name].contiguous() for name in (*names, *scales)})
        return True

    def tensor(numbers: NDArray[Any], name: str) -> torch.Tensor:
        x = blank.get(name, here["parameter"])
        return torch.from_numpy(numbers).to(x.device, torch_dtype(stores.formats[name])).view(x.shape)

    moments = [name for slot in SLOTS for name in getattr(stores.names, slot)]
    scales = [name + SCALES for name in moments if name in stores.grouped]
    begun = stores.begun(parameter, [*moments, *scales], slots)
    blank = {name: local(x) for name, x in begun.items()}
    if not is_same("parameter", ("parameter", *stores.compensating)):
        leading, extra = stored_parameter(_arrays(old.represented(here)), stores.strategy, stores.roles)
        made |= {name: tensor(x, name) for name, x in zip(stores.names.parameter, leading, strict=True)}
        for name, numbers in zip(stores.names.extra, extra, strict=True):
            if name == "remainder":
                rest = torch.empty(here["parameter"].shape, dtype=stores.dtypes[name])
                stores.beside(packed(made["parameter"].cpu()), packed(rest)).keep(numbers)
                made[name] = rest.to(here["parameter"].device)
            else:
                made[name] = tensor(numbers, name)
    for slot in SLOTS:
        names = getattr(stores.names, slot)
        if not is_same(slot, names):
            moment = _arrays(_moment_parts(old, here, slot, slots))
            components = split_sum(moment, stores.roles.of(slot), len(names))
            made |= {name: tensor(x, name) for name, x in zip(names, components, strict=True)}
    for name, kept in stores.grouped.items():
        if name in made:
            same[name + SCALES], codes = begun[name + SCALES], blank[name]
            parts = slots[name].every() if slots else ()
            kept.keep(made[name].reshape(-1), codes, blank[name + SCALES], parts)
            made[name] = codes
    stores.requantize(made, slots)
    return {**{name: spread_as(parameter, x) for name, x in made.items()}, **same}


def _arrays(tensors: Tensors) -> list[NDArray[Any]]:
    return [as_array(x.cpu().contiguous()).reshape(-1) for x in tensors]


def _put(parameter: torch.Tensor, numbers: torch.Tensor) -> None:
    """Let a parameter hold numbers of any dtype; drop its gradient, which has the old dtype."""
    parameter.grad = None
    if parameter.dtype == numbers.dtype:
        parameter.copy_(numbers)
    else:
        parameter.data = numbers
