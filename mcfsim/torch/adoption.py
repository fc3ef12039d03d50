"""Taking over a run of another library's optimizer, or of another strategy, and giving it back."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

import torch
from numpy.typing import NDArray

from mcfsim.checks import Whole
from mcfsim.convert import round_to
from mcfsim.kernels.torch_tensors import TORCH_DTYPES, Tensors, as_array, check_dense, torch_dtype
from mcfsim.optim.start import alike, split_sum, stored_parameter
from mcfsim.optim.strategies import Strategy
from mcfsim.optim.strategies import strategy as get_strategy
from mcfsim.optim.strategy import SLOTS
from mcfsim.torch.foreign import Held, Library, held
from mcfsim.torch.group import LABELS
from mcfsim.torch.handover import Giving, SavedRun, library_of
from mcfsim.torch.local import SCALES, is_cut, is_spread, local, spread_as
from mcfsim.torch.moved import check_memory, local_tensors
from mcfsim.torch.optimizers import declared_optimizer, family
from mcfsim.torch.state_dicts import NAMES
from mcfsim.torch.state_layout import SCALE, Slots, StateLayout, packed, summed
from mcfsim.torch.step import StoredOptimizer
from mcfsim.torch.whole_step import grid_of


def adopt(
    optimizer: torch.optim.Optimizer | Mapping[str, Any],
    strategy: Strategy | str = "collage-plus",
    *,
    kind: type[StoredOptimizer] | None = None,
    from_: str | None = None,
    params: Iterable[torch.Tensor] | None = None,
    **options: Any,
) -> StoredOptimizer:
    """Take over a run: its parameters, moments, steps and groups go on under a strategy.

    Parameters
    ----------
    optimizer : an optimizer of mcfsim.torch, an AdamW, PyTorch's Adam or Muon, or its state dict
        The AdamW is that of PyTorch, torchao, bitsandbytes, optimi or FlashOptim, see
        `mcfsim.torch.foreign.LIBRARIES`. PyTorch's may have ``amsgrad``; Adam's decay, if any, must be
        decoupled. Do not use the optimizer afterwards; one of mcfsim.torch then raises. Its parameters change
        their dtype in place if the strategy stores them in another one, and lose their gradients. Its state
        is moved piece by piece, so little extra memory is needed.
    strategy : Strategy or str, optional
        The strategy of the new optimizer, in all groups.
    kind : type, optional
        The class of the new optimizer: by default that of the old one. Another library's AdamW becomes an
        `AdamW`, PyTorch's with ``amsgrad`` an `AMSGrad`, and its Muon a `TorchMuon`, which has its bits.
        Classes that differ only in rounding points, such as `AdamW` and `TorchAdamW`, may replace each other.
    from_ : str, optional
        The library of a state dict: ``"torch"``, ``"torchao"``, ``"bitsandbytes"``, ``"optimi"`` or
        ``"flashoptim"``.
    params : iterable of tensor, optional
        The parameters of the state dict, in its order.
    **options
        Arguments of the new optimizer, such as ``low``, ``rounding`` or ``random``. By default, all but `low`
        are those of the old optimizer's groups.

    Returns
    -------
    StoredOptimizer
        The new optimizer, with the current learning rates of the groups, and with the old one's defaults for
        groups that are added. A scheduler continues with it once the scheduler's ``optimizer`` is set to it.

    Raises
    ------
    TypeError
        If `optimizer` is none of these, `kind` makes other steps, an option is unknown, or `params` are
        missing for a state dict.
    ValueError
        If only some groups have ``amsgrad``, or decay is part of Adam's gradient; if a setting is refused, or
        gives a parameter another kind of step, or a number is too large for its format; or if processes share
        a parameter whose dtype would change. Nothing has changed then.
    SpoiltStateError
        If a step of `optimizer` was broken off half-way, or it was taken over before.

    Notes
    -----
    Nothing that the formats can hold is lost. State is carried over as `mcfsim.Optimizer.switched` says, to
    the same bits: what it represents, parameter or moment, is summed exactly, and rounded once to nearest
    even. Further components, Kahan's compensation or the master copy hold the rest, as far as they reach. If
    the new strategy has a grid of other integers, weights are put on it as at the start of a run.

    PyTorch's Muon counts no steps, so steps count from the adoption. Its ``eps`` is that of the iteration.
    """
    if isinstance(optimizer, Mapping) != (params is not None):
        raise TypeError("params are the parameters of a state dict: give both or neither")
    given: Any = optimizer if params is None else SavedRun(cast("Mapping[str, Any]", optimizer), params)
    library = None
    if isinstance(given, StoredOptimizer):
        if from_ is not None:
            raise ValueError(f"from_ = {from_!r}, and the optimizer is of mcfsim.torch")
        given.whole.check()
        entries, groups = {*given.defaults} - {"strategy", "low"}, given.param_groups
        own: type[StoredOptimizer] | None = type(given)
    else:
        library = library_of(given, from_)
        entries, groups = {*library.entries}, given.param_groups
        own = declared_optimizer(library.kind)
    assert own is not None
    chosen, kept = _kind(own, kind), entries - {*options}
    usual = given.defaults
    if library is not None:
        defaults = chosen._hyperparameters.defaults
        groups = [library.hyperparameters(group, defaults) for group in groups]
        if params is None:
            with suppress(ValueError):  # of defaults that no group has
                usual = library.hyperparameters(usual, defaults)
    said = [_shared(group, given.defaults, kept) for group in groups]
    taken = [{name: x for name, x in group.items() if name in (*kept, *LABELS)} for group in said]
    with warnings.catch_warnings(record=True) as told:  # they come before anything changes
        warnings.simplefilter("always")
        trial = _trial(chosen, taken, strategy, options)
    stores = trial.steps_of(trial.param_groups[0]).stores
    check_memory((p for group in groups for p in group["params"]), {})
    for group, there in zip(groups, trial.param_groups, strict=True):
        there.update({name: group[name] for name in ("params", "param_names") if name in group})
        for parameter in group["params"]:
            found = _held(given, library, group, parameter, trial)
            if found.slots != trial._slots(parameter, there):
                raise ValueError(
                    f"a parameter of shape {tuple(parameter.shape)} has moments for another step than "
                    "the new options (such as Muon's others) give it; leave these options as they are"
                )
            _check(stores, parameter, found)
    for warning in told:
        warnings.warn(warning.message, stacklevel=2)
    _start_on_grids(given)
    left = given.whole if isinstance(given, StoredOptimizer) else Whole("")
    left.begin("an adoption")
    states: dict[torch.Tensor, dict[str, Any]] = {}
    with torch.no_grad():
        for group in groups:
            for parameter in group["params"]:
                found = _held(given, library, group, parameter, trial)
                given.state.pop(parameter, None)
                states[parameter] = _taken(stores, parameter, found)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ours = chosen(taken, strategy=strategy, **options)
        for group, whole in zip(ours.param_groups, said, strict=True):
            group.update({name: x for name, x in whole.items() if name not in group})
        ours.defaults.update({name: x for name, x in usual.items() if name in kept and x is not None})
        ours.state.update(states)
    left.give_away("the optimizer that adopt returned")
    return ours


def release(
    optimizer: StoredOptimizer, dtype: torch.dtype = torch.float32, to: str = "torch"
) -> torch.optim.Optimizer:
    """Give a run back to an optimizer of PyTorch or of another library: the reverse of `adopt`.

    Parameters
    ----------
    optimizer : AdamW, AMSGrad or Muon
        Or a counterpart with PyTorch's rounding points. Do not use the optimizer afterwards: its parameters
        become tensors of `dtype`, in place.
    dtype : dtype, optional
        The floating dtype of the parameters.
    to : {"torch", "torchao", "bitsandbytes", "optimi"}, optional
        The library. Its AdamW keeps moments in `dtype`; ``AdamW8bit`` of torchao and bitsandbytes keeps
        those of at least 4096 numbers in 8 bits. AMSGrad and Muon are given to PyTorch alone.

    Returns
    -------
    optimizer
        An AdamW of the library, or PyTorch's Muon. Each of its numbers is the sum of the components, rounded
        once to nearest even, and then quantised if the library stores it in groups that share a scale.
        Kahan's compensation becomes optimi's. Groups that are added have the old optimizer's defaults.

    Raises
    ------
    TypeError
        If `optimizer` is none of these, or `dtype` no floating dtype.
    ValueError
        If the library is unknown, or has no such optimizer; if a number is too large for `dtype`; if
        processes share a parameter whose dtype would change; if parameters of a group that is given to optimi
        have made different numbers of steps; if Muon moves some parameters by AdamW, or in a way that
        PyTorch's Muon lacks; or if a group maximizes, and the library cannot. Nothing has changed then.
    ImportError
        If the library is not installed.
    SpoiltStateError
        If a step of `optimizer` was broken off half-way, or it was taken over before.
    """
    giving_to = Giving.of(optimizer, to)
    if dtype not in TORCH_DTYPES:
        known = ", ".join(map(str, TORCH_DTYPES))
        raise TypeError(f"dtype = {dtype!r} is no floating dtype of parameters; it may be {known}")
    optimizer.whole.check()
    given = [*optimizer.param_groups, optimizer.defaults]
    *groups, defaults = (_shared(x, optimizer.defaults, giving_to.entries) for x in given)
    giving = giving_to(groups, defaults)
    for own in optimizer.param_groups:
        giving.check(optimizer.state.get(parameter, {}).get("step", 0) for parameter in own["params"])
        for parameter in own["params"]:
            giving.check_moments(parameter, optimizer._slots(parameter, own))
            _check(
                giving.stores(dtype, parameter), parameter, _held(optimizer, None, own, parameter, optimizer)
            )
    _start_on_grids(optimizer)
    optimizer.whole.begin("a release")
    states: dict[torch.Tensor, dict[str, Any]] = {}
    with torch.no_grad():
        for own in optimizer.param_groups:
            for parameter in own["params"]:
                found = _held(optimizer, None, own, parameter, optimizer)
                begun = optimizer.state.pop(parameter, None)
                state = _taken(giving.stores(dtype, parameter), parameter, found)
                if begun:
                    states[parameter] = state
        made = giving.made(states)
    optimizer.whole.give_away("the optimizer that release returned")
    return made


def _start_on_grids(optimizer: Any) -> None:
    """Put weights that have made no step yet on their grids."""
    groups = optimizer.param_groups if isinstance(optimizer, StoredOptimizer) else ()
    if any(optimizer.steps_of(group).on_grid for group in groups):
        optimizer.start()


def _kind(own: type[StoredOptimizer], kind: type[StoredOptimizer] | None) -> type[StoredOptimizer]:
    """Return the class of the new optimizer; raise TypeError if its steps have other hyperparameters."""
    if kind is None or kind is own:
        return own
    if not (isinstance(kind, type) and issubclass(kind, StoredOptimizer) and family(kind) is family(own)):
        raise TypeError(f"a run of {own.__name__} does not go on by {getattr(kind, '__name__', kind)}")
    return kind


def _shared(group: Mapping[str, Any], defaults: Mapping[str, Any], kept: Iterable[str]) -> dict[str, Any]:
    """Return the entries of a group that are kept, and those that schedulers added, but no count of steps."""
    others = {*defaults, *NAMES, "step"}
    return {name: x for name, x in group.items() if name in kept or name not in others}


def _trial(
    kind: type[StoredOptimizer],
    groups: Sequence[Mapping[str, Any]],
    strategy: Strategy | str,
    options: dict[str, Any],
) -> StoredOptimizer:
    """Return the new optimizer with empty parameters, so that what it refuses raises before any change."""
    fmt = get_strategy(strategy, options.get("low", "bfloat16")).parameter.format
    dtype = torch.float32 if fmt is None else torch_dtype(fmt)
    empty = torch.zeros(0, dtype=dtype, device="cpu")
    empty_groups = [
        {**group, "params": [empty.clone()], **({"param_names": [""]} if "param_names" in group else {})}
        for group in groups
    ]
    return kind(empty_groups, strategy=strategy, **options)


def _held(
    optimizer: Any,
    library: Library | None,
    group: Mapping[str, Any],
    parameter: torch.Tensor,
    taking: StoredOptimizer,
) -> Held:
    """Return a parameter's state, which need not have begun; another library's in the parts of `taking`."""
    state = optimizer.state.get(parameter, {})
    if library is not None:
        slots = taking._slots(parameter, taking.group_of(parameter))
        return held(library, parameter, state, group, slots)
    begun = state or optimizer._start(parameter, group)
    found = Held(optimizer.steps_of(group).stores, begun, optimizer._slots(parameter, group))
    found.stores.check_state(parameter, begun, found.slots)
    return found


def _check(stores: StateLayout, parameter: torch.Tensor, source: Held) -> None:
    """Raise unless a parameter and its state can be taken over."""
    old, state, slots = source
    _check_spread(parameter, stores.dtypes["parameter"], old, stores)
    stores.check_groups(parameter)
    stores.check_scales(parameter)
    here = local_tensors({**state, "parameter": parameter.detach()})
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


def _check_spread(parameter: torch.Tensor, dtype: torch.dtype, *stores: StateLayout) -> None:
    """Raise ValueError if processes share a parameter that cannot be taken over a part at a time."""
    if is_cut(parameter) and any(x.together for x in stores):
        raise ValueError(
            f"processes share a parameter of shape {tuple(parameter.shape)}, and its steps need the whole; "
            "change the optimizer before the model is spread"
        )
    if parameter.dtype != dtype and is_spread(parameter):
        raise ValueError(
            f"processes share a parameter of {parameter.dtype} that is to become {dtype}; change the "
            "optimizer before the model is spread, or spread it anew"
        )


def _taken(stores: StateLayout, parameter: torch.Tensor, source: Held) -> dict[str, Any]:
    """Store a parameter, until now stored as in `source`, as `stores` says; return its state."""
    old, state, slots = source
    given = {**state, "parameter": parameter.detach()}
    here, same, made = local_tensors(given), dict[str, torch.Tensor](), dict[str, torch.Tensor]()

    def is_same(label: str, names: Sequence[str]) -> bool:
        """Keep tensors if both strategies store them in the same way; return whether they do."""
        found = alike(old.strategy, stores.strategy, label)
        if not found or any(here[name].dtype != stores.dtypes[name] for name in names):
            return False
        scales = [name + SCALES for name in names if name in stores.grouped]
        of_grid = [SCALE] if label == "parameter" and SCALE in given else []
        same.update({name: given[name].contiguous() for name in (*names, *scales, *of_grid)})
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
        if SCALE in stores.dtypes:
            grid = grid_of(stores, leading[0].size)
            grid.begin(leading[0])
            same[SCALE] = stores.begun(parameter, [SCALE])[SCALE].fill_(float(grid.scales[0]))
        made |= {name: tensor(x, name) for name, x in zip(stores.names.parameter, leading, strict=True)}
        for name, numbers in zip(stores.names.extra, extra, strict=True):
            if name == "remainder":
                rest = torch.empty(here["parameter"].shape, dtype=stores.dtypes[name], device="cpu")
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
    stored = {**{name: spread_as(parameter, x) for name, x in made.items()}, **same}
    _put(parameter, stored.pop("parameter"))
    return {"step": state["step"], **stored}


def _arrays(tensors: Tensors) -> list[NDArray[Any]]:
    return [as_array(x.cpu().contiguous()).reshape(-1) for x in tensors]


def _put(parameter: torch.Tensor, numbers: torch.Tensor) -> None:
    """Let a parameter hold numbers of any dtype; drop its gradient, which has the old dtype."""
    parameter.grad = None
    if parameter.dtype == numbers.dtype:
        parameter.copy_(numbers)
    else:
        parameter.data = numbers
