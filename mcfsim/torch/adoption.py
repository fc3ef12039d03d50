"""A run of PyTorch's own AdamW taken over, and given back."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from numpy.typing import NDArray

from mcfsim.backends.strung_tensors import as_array, check_dense, torch_dtype
from mcfsim.convert import round_to
from mcfsim.formats import Format
from mcfsim.optim.strategies import Addition, Strategy
from mcfsim.optim.strategies import strategy as get_strategy
from mcfsim.optim.vanishing import VanishingScalarWarning
from mcfsim.rounding import Rounding
from mcfsim.torch.group import LABELS
from mcfsim.torch.grouped import SCALES
from mcfsim.torch.local import is_spread, local, spread_as
from mcfsim.torch.moved import Stores, bits_of, summed
from mcfsim.torch.optimizers import AdamW
from mcfsim.torch.state_dicts import NAMES

#: What torch calls the moments, by what they are called here.
MOMENTS = {"m": "exp_avg", "v": "exp_avg_sq"}
#: Hyperparameters that both have.
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
        It must not be used any more: its parameters change their dtype, in place, if the strategy stores them
        in another one, and its state goes over piece by piece, so that little memory is needed for both.
    strategy : Strategy or str, optional
        Of the optimizer that goes on.
    kind : type, optional
        That optimizer: `AdamW`, or one with other rounding points.
    **options
        ``low``, ``rounding``, ``scalars``, ``random``, ``capturable`` of `mcfsim.torch.AdamW`.

    Returns
    -------
    AdamW
        Its learning rates are what the groups' are now; a scheduler goes on with it once its ``optimizer`` is
        this one.

    Raises
    ------
    TypeError
        If it is no AdamW of torch, or an option is unknown.
    ValueError
        If it is one with ``amsgrad``, which has no counterpart here; if a setting is refused, or a number is
        too large for its format; or if processes share a parameter whose dtype would change. Nothing has
        changed then.

    Notes
    -----
    Nothing is lost that the formats can hold. The parameter is rounded to nearest even into its format; what
    that cuts off is kept by its further components, by Kahan's compensation, or by the master copy, as far as
    these reach. So are the moments by their components.
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
    """Give a run back to `torch.optim.AdamW`, what `adopt` undoes and is undone by.

    Parameters
    ----------
    optimizer : AdamW
        It must not be used any more: its parameters become tensors of `dtype`, in place.
    dtype : dtype, optional
        Of the parameters, and so of the moments.

    Returns
    -------
    torch.optim.AdamW
        Each number is what its components add up to, rounded once to nearest even.

    Raises
    ------
    TypeError
        If it is no AdamW of this package.
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
    stores: Stores, parameter: torch.Tensor, state: Mapping[str, Any], names: Sequence[str]
) -> torch.Tensor:
    """Return what the components of a moment add up to, spread as the parameter is."""
    here = {name: local(x) for name, x in state.items() if name != "step"}
    components = [stores.numbers(here, name) for name in names]
    return spread_as(parameter, summed(components).view(local(parameter.detach()).shape))


def _shared(group: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a group of either kind says that the other understands, and what schedulers left in it."""
    return {name: x for name, x in group.items() if name in _SHARED or name not in {*defaults, *NAMES}}


def _parameters(groups: Iterable[Mapping[str, Any]]) -> Iterator[torch.Tensor]:
    return (parameter for group in groups for parameter in group["params"])


def _stores(
    kind: type[AdamW], groups: Sequence[Mapping[str, Any]], strategy: Strategy | str, options: dict[str, Any]
) -> Stores:
    """Return what the optimizer that goes on will store; raise what it would, before anything changes."""
    fmt = get_strategy(strategy, options.get("low", "bfloat16")).parameter.format
    empty = torch.zeros(0, dtype=torch.float32 if fmt is None else torch_dtype(fmt))
    alike = [
        {**{name: x for name, x in group.items() if name != "param_names"}, "params": [empty.clone()]}
        for group in groups
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", VanishingScalarWarning)  # it comes when the groups are taken
        trial = kind(alike, strategy=strategy, **options)
    return trial.steps_of(trial.param_groups[0]).stores


def _check(stores: Stores, parameter: torch.Tensor, state: Mapping[str, Any]) -> None:
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


def _taken(stores: Stores, parameter: torch.Tensor, theirs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return the parameter and its state as they are stored, made of those of torch's AdamW."""
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


def _held(stores: Stores, x: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return a parameter as it is stored, with what holds the rest of it."""
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
    kept = bits_of(as_array(rest)).reshape(-1)  # in the same memory
    stores.beside(_array(parameter), kept).keep(_array(master))
    return {"parameter": parameter, extra: rest.to(x.device)}


def _components(x: torch.Tensor, fmt: Format, count: int) -> list[torch.Tensor]:
    """Return numbers as sums of values of a format, each of them the rest, rounded to nearest even."""
    rest, found = x.to(torch.float64), []
    for _ in range(count):
        part = round_to(rest, fmt)
        found.append(part.to(torch_dtype(fmt)).contiguous())
        rest = torch.where(part.isfinite(), rest - part, torch.zeros_like(rest))
    return found


def _array(x: torch.Tensor) -> NDArray[Any]:
    return as_array(x.cpu()).reshape(-1)


def _put(parameter: torch.Tensor, numbers: torch.Tensor) -> None:
    """Let a parameter hold numbers of any dtype; its gradient, of the old one, goes."""
    parameter.grad = None
    if parameter.dtype == numbers.dtype:
        parameter.copy_(numbers)
    else:
        parameter.data = numbers
