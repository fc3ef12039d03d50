"""State dicts of the optimizers: they save a state as plain data, and continue from it with the same bits."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any, ClassVar

import numpy as np
import torch

from mcfsim.checks import Whole, whole_number
from mcfsim.kernels.torch_tensors import check_dense
from mcfsim.torch.group import Hyperparameters, Settings, Steps, number, without_absent
from mcfsim.torch.local import is_spread, local
from mcfsim.torch.moved import Writes

#: The names of the settings in a group.
NAMES = Settings._fields


class SavedOptimizer(torch.optim.Optimizer):  # type: ignore[misc]
    """The base class of an optimizer whose state dict records its arithmetic."""

    whole: Whole
    _hyperparameters: ClassVar[Hyperparameters]
    param_groups: list[dict[str, Any]]
    _writes: Writes

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for copies and pickles; raise SpoiltStateError if a step was broken off."""
        self.whole.check()
        return super().__getstate__()  # type: ignore[no-any-return]

    @abstractmethod
    def steps_of(self, group: Mapping[str, Any]) -> Steps:
        """Return the object that makes the steps of a group."""

    @abstractmethod
    def _check_group(self, group: Mapping[str, Any]) -> None:
        """Raise TypeError or ValueError if a number or flag of a group is out of range."""

    @abstractmethod
    def _start(self, parameter: torch.Tensor, group: Mapping[str, Any]) -> dict[str, Any]:
        """Return a parameter's state before the first step."""

    def state_dict(self) -> dict[str, Any]:
        """Return state and groups as torch does, each group with its settings as strings and numbers.

        A group's ``random`` has the fields of the `mcfsim.RandomWords` that stochastic rounding draws, or is
        None. The result can be loaded with ``weights_only=True``. If a step was broken off, this raises
        SpoiltStateError.
        """
        self.whole.check()

        def describe(_: Any, saved: dict[str, Any]) -> dict[str, Any]:
            for group, live in zip(saved["param_groups"], self.param_groups, strict=True):
                group.update({**described(live), **Settings.of(live).described()})
            return {**saved, "optimizer": type(self).__name__}

        with self.register_state_dict_post_hook(describe, prepend=True):
            saved: dict[str, Any] = super().state_dict()
        return saved

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a `state_dict` with the same bits; its tensors are copied.

        Existing tensors of this optimizer, of its state and of learning rates, are written in place, so that
        holders of their addresses see the new values. A tensor that cannot hold the rate, or that groups
        with different rates share, stays as it is, and these groups get the rates of the state. Random words
        continue those of the loaded state, whatever this optimizer began with. A state of another optimizer,
        strategy or rounding, of other parameters, or of the same names in another order, raises ValueError;
        then nothing has changed. If loading is broken off half-way, the optimizer is spoilt until a state is
        loaded. If a hook raises after loading, the loaded state stays, as in PyTorch.
        """
        own, groups = type(self).__name__, self.param_groups
        taken: list[dict[str, Any]] = []
        pairs: dict[torch.Tensor, tuple[dict[str, Any], dict[str, Any]]] = {}
        settings: list[Settings] = []

        def check(_: Any, given: dict[str, Any]) -> dict[str, Any]:
            check_form(given)
            if (found := given.get("optimizer", own)) != own:
                raise ValueError(f"the state is of {found}, and this optimizer is {own}")
            check_names(groups, given["param_groups"])
            # torch itself refuses other numbers of groups and parameters.
            for place, (group, saved) in enumerate(zip(groups, given["param_groups"], strict=False)):
                settings.append(Settings.of(group).gone_on(saved))
                with _told_of(f"the state's group {place}"):
                    if "low" in saved:
                        raise ValueError("it has low, which optimizers take, and no state has")
                    taken.append(without_absent("it", restored(group, saved), self._hyperparameters.defaults))
                    self._check_group({**group, **taken[-1]})
            pairs.update(self._paired(given))
            # torch casts all state to the parameter's dtype, which would round numbers in a longer one.
            groups_given = [*taken, *given["param_groups"][len(taken) :]]
            return {**given, "state": {}, "param_groups": groups_given}

        def write(_: Any) -> None:
            nonlocal groups
            for group, old, found in zip(self.param_groups, groups, settings, strict=True):
                missing = {name: x for name, x in old.items() if name not in group}  # older states lack some
                group.update({**missing, **{name: getattr(found, name) for name in NAMES}})
            self._writes.forget()
            with torch.no_grad():  # a rate, too, may ask for a gradient
                _keep_rates(groups, self.param_groups)
                for parameter, (target, saved) in pairs.items():
                    self.state[parameter] = {name: _written(target[name], x) for name, x in saved.items()}
            groups = self.param_groups  # all is loaded, whatever others' hooks raise now
            self.whole.end()

        if not isinstance(state_dict, Mapping):
            raise ValueError(f"a {type(state_dict).__name__} is no state of an optimizer")
        # After others' hooks that change the loaded state, and before those that look at the result.
        with (
            self.register_load_state_dict_pre_hook(check),
            self.register_load_state_dict_post_hook(write, prepend=True),
        ):
            try:
                super().load_state_dict(state_dict)
            except BaseException:
                self.param_groups = groups  # their settings are whole, so that a state can be loaded
                raise

    def _paired(self, given: dict[str, Any]) -> dict[torch.Tensor, tuple[dict[str, Any], dict[str, Any]]]:
        """Return, by parameter, the state to write and the saved one; check that they fit."""
        places = list(chain.from_iterable(group["params"] for group in given["param_groups"]))
        parameters = ((p, group) for group in self.param_groups for p in group["params"])
        pairs = {}
        for place, (parameter, group) in zip(places, parameters, strict=False):
            if saved := given["state"].get(place):
                target = self.state.get(parameter)
                if not target or self.steps_of(group).stores.apart(parameter, target):
                    target = self._start(parameter, group)
                with _told_of(f"the state of parameter {place}"):
                    pairs[parameter] = target, _readable(saved, target)
        return pairs


@contextmanager
def _told_of(what: str) -> Iterator[None]:
    """Turn an error into a ValueError that says what it is about."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise ValueError(f"{what}: {error}") from error


def _keep_rates(before: list[dict[str, Any]], groups: list[dict[str, Any]]) -> None:
    """Put loaded learning rates into the tensors that groups had before, as far as these hold them."""
    wanted: dict[int, set[float]] = {}
    for old, group in zip(before, groups, strict=True):
        wanted.setdefault(id(old["lr"]), set()).add(number(group["lr"]))
    for old, group in zip(before, groups, strict=True):
        own, rate = old["lr"], number(group["lr"])
        if isinstance(own, torch.Tensor) and len(wanted[id(own)]) == 1 and _held(own, rate):
            group["lr"] = own.fill_(rate)


def _held(tensor: torch.Tensor, x: float) -> bool:
    """Return whether a tensor can hold a number exactly."""
    return bool(torch.full((), x, dtype=tensor.dtype, device="cpu").item() == x)


def _readable(saved: Any, target: Mapping[str, Any]) -> dict[str, Any]:
    """Return a parameter's saved state, with its step as an int, checked against the state to write."""
    if not isinstance(saved, Mapping):
        raise TypeError(f"a {type(saved).__name__} is no state")
    found, expected = _described(saved), _described(target)
    if found != expected:
        raise ValueError(f"it has {found}, not {expected}")
    for x in saved.values():
        if isinstance(x, torch.Tensor):
            check_dense(local(x.detach()))
    return {**saved, "step": step_count(saved["step"])}


def _described(state: Mapping[str, Any]) -> dict[str, str]:
    return {name: "a count" if name == "step" else _kind(item) for name, item in state.items()}


def _kind(item: Any) -> str:
    if not isinstance(item, torch.Tensor):
        return type(item).__name__
    parts = f" in parts by {item.placements}" if is_spread(item) else ""
    return f"{item.dtype} {tuple(item.shape)}{parts}"


def _written(target: Any, item: Any) -> Any:
    """Copy a saved tensor into a target and return the target; return a number as it is."""
    return target.copy_(item) if isinstance(target, torch.Tensor) else item


# -- the form of state dicts ------------------------------------------------------------------------------
#: The types that a state dict holds as they are; PyTorch reads no others with ``weights_only=True``.
_PLAIN = (bool, int, float, str)
#: A step count that nobody reaches; smaller counts are exact in binary64.
_COUNTS = 2**53


def check_form(given: Mapping[str, Any]) -> None:
    """Raise ValueError unless a state dict has states, and groups that contain their parameters."""
    states, groups = given.get("state"), given.get("param_groups")
    if not isinstance(states, Mapping):
        raise ValueError("this is no state of an optimizer: it has no state, a dict")
    if not isinstance(groups, list | tuple) or not all(map(_has_parameters, groups)):
        raise ValueError(
            "this is no state of an optimizer: it has no param_groups, a list of groups with params"
        )
    places = [place for group in groups for place in group["params"]]
    if stray := [place for place in states if place not in places]:
        raise ValueError(f"the state has parameter {stray[0]!r}, which is in none of its groups")


def _has_parameters(group: Any) -> bool:
    return isinstance(group, Mapping) and isinstance(group.get("params"), list | tuple)


def check_names(groups: Sequence[Mapping[str, Any]], saved: Sequence[Mapping[str, Any]]) -> None:
    """Raise ValueError if a parameter that both name is at another place in the saved groups.

    Other names do not matter, such as those prefixed by a wrapper of the model.
    """
    own, there = (
        {str(name): (which, at) for which, x in enumerate(given) for at, name in enumerate(_names(x))}
        for given in (groups, saved)
    )
    for name, place in there.items():
        if own.get(name, place) != place:
            raise ValueError(
                f"the state has {name!r} as parameter {place[1]} of group {place[0]}, and this optimizer as "
                f"parameter {own[name][1]} of group {own[name][0]}; give it parameters in the state's order"
            )


def _names(group: Mapping[str, Any]) -> Sequence[Any]:
    names = group.get("param_names")
    return names if isinstance(names, list | tuple) else ()


def step_count(step: Any) -> int:
    """Return a step count as an int; like torch's, it may be a float or a tensor with an integer value."""
    counted = number(step)
    if isinstance(counted, float) and counted.is_integer():
        counted = int(counted)
    if whole_number("step", counted, least=0) >= _COUNTS:
        raise ValueError(f"step = {counted} is no count of steps")
    return int(counted)


def described(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of a group that are saved in another form, in that form: plain data, or a text."""
    return {name: saved for name, x in group.items() if (saved := _saved(x)) is not x}


def restored(group: Mapping[str, Any], saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of a saved group, but take those that were saved as text from a given group.

    Raises
    ------
    ValueError
        If the text is not that of the group's own entry.
    """
    found = dict(saved)
    for name in found.keys() - set(Settings._fields):
        if not _is_data(own := group.get(name)):
            if found[name] != repr(own):
                raise ValueError(f"it has {name} = {found[name]}, and this optimizer {own!r}")
            found[name] = own
    return found


def _saved(x: Any) -> Any:
    """Return an entry as it is saved: itself if it is plain, else its content as plain data, or a text."""
    return _plain(x) if _is_data(x) else repr(x)


def _is_data(x: Any) -> bool:
    """Return whether a state dict can hold what an entry holds."""
    if type(x) in (list, tuple):
        return all(map(_is_data, x))
    if type(x) is dict:
        return all(type(name) in _PLAIN for name in x) and all(map(_is_data, x.values()))
    if isinstance(x, np.generic | np.ndarray):
        return x.dtype.kind in "biufU" and x.dtype != np.longdouble  # which no plain number can hold
    return x is None or isinstance(x, (torch.Tensor, *_PLAIN))


def _plain(x: Any) -> Any:
    """Return data as plain types; the object itself if it consists of them."""
    if type(x) is dict:
        parts = {name: _plain(y) for name, y in x.items()}
        return x if all(y is x[name] for name, y in parts.items()) else parts
    if type(x) in (list, tuple):
        items = [_plain(y) for y in x]
        return x if all(y is z for y, z in zip(items, x, strict=True)) else type(x)(items)
    if isinstance(x, np.generic | np.ndarray):
        x = x.tolist()
    if x is None or type(x) is list or isinstance(x, torch.Tensor) or type(x) in _PLAIN:
        return x
    kind = next(kind for kind in (int, float, str) if isinstance(x, kind))
    return str(x) if kind is str else kind(x)
