"""Taking over a run of PyTorch's own AdamW, and giving it back."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from mcfsim.convert import round_to
from mcfsim.formats import Format
from mcfsim.kernels.torch_tensors import check_dense, torch_dtype
from mcfsim.optim.strategies import Addition, Strategy
from mcfsim.optim.strategies import strategy as get_strategy
from mcfsim.optim.strategy import VanishingScalarWarning
from mcfsim.rounding import Rounding
from mcfsim.torch.group import LABELS
from mcfsim.torch.local import SCALES, is_spread, local, spread_as
from mcfsim.torch.optimizers import AdamW
from mcfsim.torch.state_dicts import NAMES
from mcfsim.torch.state_layout import StateLayout, packed, summed

#: The names of the moments in torch, by their names here.
MOMENTS = {"m": "exp_avg", "v": "exp_avg_sq"}
#: Hyperparameters that both optimizers have.
_SHARED = ("lr", "betas", "eps", "weight_decay", "maximize")


def adopt(
    optimizer: torch.optim.Optimizer,
    strategy: Strategy | str = "collage-plus",
    *,
    kind: type[AdamW] = AdamW,
    **options: Any,
) -> AdamW:
    """Take over a run of `torch.optim.AdamW`: its parameters, moments, steps and groups.

    Parameters
    ----------
    optimizer : torch.optim.AdamW
        Do not use it afterwards. Its parameters change their dtype in place if the strategy stores them in
        another one. Its state is moved piece by piece, so that little memory is needed for both.
    strategy : Strategy or str, optional
        The strategy of the new optimizer.
    kind : type, optional
        The class of the new optimizer: `AdamW`, or one with other rounding points.
    **options
        ``low``, ``rounding``, ``scalars``, ``random``, ``capturable`` of `mcfsim.torch.AdamW`.

    Returns
    -------
    AdamW
        The new optimizer, with the current learning rates of the groups. A scheduler continues with it once
        the scheduler's ``optimizer`` is set to it.

    Raises
    ------
    TypeError
        If `optimizer` is no AdamW of torch, or an option is unknown.
    ValueError
        If it uses ``amsgrad``, which has no counterpart here; if a setting is refused, or a number is too
        large for its format; or if processes share a parameter whose dtype would change. Nothing has changed
        then.

    Notes
    -----
    Nothing that the formats can hold is lost. The parameter is rounded to nearest even into its format. Its
    further components, Kahan's compensation or the master copy hold the rest, as far as they reach. Moments
    are split into components in the same way.
    """
    if type(optimizer) is not torch.optim.AdamW:
        raise TypeError(f"only torch.optim.AdamW is taken over, not {type(optimizer).__name__}")
    if any(group["amsgrad"] for group in optimizer.param_groups):
        raise ValueError("a group has amsgrad = True, which has no counterpart here")
    said = [_shared(group, optimizer.defaults) for group in optimizer.param_groups]
    groups = [{name: x for name, x in group.items() if name in (*_SHARED, *LABELS)} for group in said]
    stores = _stores(kind, groups, strategy, options)
    for parameter in _parameters(groups):
        _check(stores, parameter, optimizer.state.get(parameter, {}))
    states: dict[torch.Tensor, dict[str, Any]] = {}
    with torch.no_grad():
        for parameter in _parameters(groups):
            theirs = optimizer.state.pop(parameter, {})
            made = _taken(stores, parameter, theirs)
            _put(parameter, made.pop("parameter"))
            states[parameter] = {"step": int(theirs.get("step", 0)), **made}
        ours = kind(groups, strategy=strategy, **options)
        for group, whole in zip(ours.param_groups, said, strict=True):
            group.update({name: x for name, x in whole.items() if name not in group})
        ours.state.update(states)
    return ours


def release(optimizer: AdamW, dtype: torch.dtype = torch.float32) -> torch.optim.AdamW:
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
    groups = [_shared(group, optimizer.defaults) for group in optimizer.param_groups]
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


def _shared(group: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of a group that both optimizers understand, and those that schedulers added."""
    return {name: x for name, x in group.items() if name in _SHARED or name not in {*defaults, *NAMES}}


def _parameters(groups: Iterable[Mapping[str, Any]]) -> Iterator[torch.Tensor]:
    return (parameter for group in groups for parameter in group["params"])


def _stores(
    kind: type[AdamW], groups: Sequence[Mapping[str, Any]], strategy: Strategy | str, options: dict[str, Any]
) -> StateLayout:
    """Return the layout of the new optimizer's state; raise what that would raise, before any change."""
    fmt = get_strategy(strategy, options.get("low", "bfloat16")).parameter.format
    empty = torch.zeros(0, dtype=torch.float32 if fmt is None else torch_dtype(fmt))
    alike = [
        {**{name: x for name, x in group.items() if name != "param_names"}, "params": [empty.clone()]}
        for group in groups
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", VanishingScalarWarning)  # it comes when the groups are added
        trial = kind(alike, strategy=strategy, **options)
    return trial.steps_of(trial.param_groups[0]).stores


def _check(stores: StateLayout, parameter: torch.Tensor, state: Mapping[str, Any]) -> None:
    """Raise unless a parameter and its state can be taken over."""
    _check_dtype(parameter, stores.dtypes["parameter"])
    stores.check_groups(parameter)
    stores.check_scales(parameter)
    given = {"parameter": parameter.detach(), **{name: state.get(x) for name, x in MOMENTS.items()}}
    for name, x in given.items():
        if x is None:
            continue
        here = local(x)
        check_dense(here)
        lost = here.isfinite() & ~round_to(here, stores.formats[name]).isfinite()
        if count := int(lost.sum()):
            raise ValueError(
                f"{count} numbers of {name} of a parameter of shape {tuple(parameter.shape)} are too large "
                f"for {stores.formats[name]}"
            )


def _check_dtype(parameter: torch.Tensor, dtype: torch.dtype) -> None:
    if parameter.dtype != dtype and is_spread(parameter):
        raise ValueError(
            f"processes share a parameter of {parameter.dtype} that is to become {dtype}; change the "
            "optimizer before the model is spread, or spread it anew"
        )


def _taken(
    stores: StateLayout, parameter: torch.Tensor, theirs: Mapping[str, Any]
) -> dict[str, torch.Tensor]:
    """Return a parameter and its state as they are stored here, made from those of torch's AdamW."""
    x = local(parameter.detach())
    made, spread = _held(stores, x), dict[str, torch.Tensor]()
    for names, torchs in zip((stores.names.m, stores.names.v), MOMENTS.values(), strict=True):
        moment = local(theirs[torchs]) if torchs in theirs else torch.zeros_like(x)
        made |= zip(names, _components(moment, stores.formats[names[0]], len(names)), strict=True)
    for name, kept in stores.grouped.items():
        scales = kept.zero_scales(parameter)
        codes = torch.empty(x.shape, dtype=kept.dtypes[0], device=x.device)
        kept.keep(made[name].reshape(-1), codes, local(scales))
        made[name], spread[name + SCALES] = codes, scales
    stores.requantize(made)
    return {**{name: spread_as(parameter, y) for name, y in made.items()}, **spread}


def _held(stores: StateLayout, x: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return a parameter as it is stored, with the tensors that hold the rest of it."""
    names, fmt = stores.names.parameter, stores.formats["parameter"]
    if stores.strategy.addition is not Addition.MASTER:
        names = stores.names.represented(stores.strategy)
        return dict(zip(names, _components(x, fmt, len(names)), strict=True))
    (extra,) = stores.names.extra
    (master,) = _components(x, stores.formats[extra], 1)
    own = stores.strategy.parameter.rounding if extra == "remainder" else None
    parameter = round_to(master, fmt, Rounding(own) if own else Rounding()).to(stores.dtypes["parameter"])
    if extra == "master":
        return {"parameter": parameter, extra: master}
    rest = torch.empty(x.shape, dtype=stores.dtypes[extra])
    stores.beside(packed(parameter.cpu()), packed(rest)).keep(packed(master.cpu()))
    return {"parameter": parameter, extra: rest.to(x.device)}


def _components(x: torch.Tensor, fmt: Format, count: int) -> list[torch.Tensor]:
    """Split numbers into components: each is the rest so far, rounded to nearest even into a format."""
    rest, found = x.to(torch.float64), []
    for _ in range(count):
        part = round_to(rest, fmt)
        found.append(part.to(torch_dtype(fmt)).contiguous())
        rest = torch.where(part.isfinite(), rest - part, torch.zeros_like(rest))
    return found


def _put(parameter: torch.Tensor, numbers: torch.Tensor) -> None:
    """Let a parameter hold numbers of any dtype; drop its gradient, which has the old dtype."""
    parameter.grad = None
    if parameter.dtype == numbers.dtype:
        parameter.copy_(numbers)
    else:
        parameter.data = numbers
