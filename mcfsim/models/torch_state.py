"""Reading of an optimizer's state that torch saved; every entry is checked, as anyone may have written it."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from functools import reduce
from itertools import count, takewhile
from operator import add
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from zipfile import ZIP_STORED, ZipFile

import numpy as np

from mcfsim.models.plan import Table
from mcfsim.models.samples import TensorSample, places_of
from mcfsim.models.saving import decoded
from mcfsim.models.weights import Counts, not_finite, refuse_not_finite
from mcfsim.optim.strategy import SLOTS
from mcfsim.storage.files import open_regular
from mcfsim.storage.tensors import FileOfTensorsError

_Kind = TypeVar("_Kind")

#: Torch's names of the moments.
MOMENTS = ("exp_avg", "exp_avg_sq")
#: How many elements are checked together, and how many characters of a file's text an error repeats.
_BLOCK, _SHOWN = 1 << 20, 120


class _State(NamedTuple):
    """One parameter's saved entries, its place among all, its group, and the strategy its group names."""

    entries: Mapping[Any, Any]
    place: int
    group: int
    strategy: str | None


def torch_moments(path: Path, samples: Sequence[TensorSample]) -> list[tuple[Table, Table, float]]:
    """Return the moments in a saved ``state_dict()`` at the places of samples, and the number of steps made.

    It belongs to one of torch's optimizers, or to AdamW of `mcfsim.torch`. The moments of the latter may have
    several components, or be stored as codes and scales.

    Raises
    ------
    FileOfTensorsError
        If it is not such a file, is damaged, or holds anything but plain data; if it lacks a tensor's state,
        or does not tell which state belongs to which tensor; or if a moment does not have the tensor's shape,
        or has a number that is NaN or infinite.
    ImportError
        If torch is not installed.
    OSError
        If it is missing or cannot be read.
    """
    saved = _loaded(path)
    try:
        states = _states(path, saved, samples)
        bad: dict[str, Counts] = {}
        found = []
        for sample in samples:
            state = states[sample.name]
            m, v = (_moment(path, state, kind, sample, bad) for kind in _kinds(state))
            found.append((m, v, _step(path, state.entries, sample.name)))
    except FileOfTensorsError:
        raise
    except Exception as problem:  # torch may raise anything for tensors that anyone may have written
        raise FileOfTensorsError(path, f"is damaged: {_said(problem)}") from problem
    refuse_not_finite(path, bad)
    return found


def _loaded(path: Path) -> Any:
    """Return what torch loads from a file; check its checksums first, since torch does not."""
    try:
        import torch
    except ImportError as problem:
        raise ImportError(f"{path} is read by torch: pip install 'mcfsim[torch]'") from problem
    with open_regular(path) as file:
        try:
            with ZipFile(file) as archive:
                if any(info.compress_type != ZIP_STORED for info in archive.infolist()):
                    raise ValueError("it is compressed, which torch never does")
                damaged = archive.testzip()
            if damaged is None:
                return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except Exception as problem:  # zipfile and torch may raise anything for such bytes
            what = f"is no file of torch's that holds tensors alone: {_said(problem)}"
            raise FileOfTensorsError(path, what) from problem
    raise FileOfTensorsError(path, f"is damaged: {damaged} does not have its checksum, or was saved without")


def _states(path: Path, saved: Any, samples: Sequence[TensorSample]) -> Mapping[Any, _State]:
    """Return the state of each tensor by its name; without names, match by shape and order if possible."""
    registered = _registered(saved)
    for key in ("optimizer", "optimizer_state_dict"):
        if isinstance(saved, dict) and key in saved and "state" not in saved:
            saved = saved[key]
    if not isinstance(saved, dict) or not isinstance(states := saved.get("state"), dict):
        raise FileOfTensorsError(path, "holds no optimizer's state_dict(): it has no entry 'state'")
    named, groups = _groups(path, saved.get("param_groups", []))
    by_name: dict[Any, _State] = {}
    for key, state in states.items():
        name = named.get(key, key)
        if name in by_name:
            raise FileOfTensorsError(path, f"has two states of tensor {_shown(name)}")
        entries = _as(path, dict, state, f"the state of {_shown(name)}")
        by_name[name] = _State(entries, *groups.get(key, (len(groups), 0, None)))
    if all(sample.name in by_name for sample in samples):
        return by_name
    if any(isinstance(name, str) for name in by_name):
        lacking = next(sample.name for sample in samples if sample.name not in by_name)
        those = ", ".join(sorted(map(_shown, by_name))[:5])
        raise FileOfTensorsError(path, f"has no state of tensor {lacking!r}; it has {those}")
    numbered = [
        Numbered(key, state.group, tuple(getattr(state.entries.get(_kinds(state)[0]), "shape", ())))
        for key, state in sorted(by_name.items(), key=lambda item: item[1].place)
    ]
    return {name: by_name[key] for name, key in by_order(path, numbered, samples, registered).items()}


def _kinds(state: _State) -> tuple[str, ...]:
    """Return the names of the moments: torch's, or those of `mcfsim.torch`."""
    return SLOTS if SLOTS[0] in state.entries else MOMENTS


def _registered(saved: Any) -> list[str]:
    """Return the names of a model's tensors, if saved beside the state, in the order of the model."""
    for key in ("model", "model_state_dict", "state_dict"):
        if isinstance(saved, dict) and isinstance(model := saved.get(key), dict):
            return [name for name in model if isinstance(name, str)]
    return []


def _groups(path: Path, groups: Any) -> tuple[dict[Any, Any], dict[Any, tuple[int, int, str | None]]]:
    """Return the names of parameters; and of each its place among all, its group and the group's strategy."""
    named: dict[Any, Any] = {}
    found: dict[Any, tuple[int, int, str | None]] = {}
    for place, item in enumerate(_as(path, list, groups, "'param_groups'")):
        group = _as(path, dict, item, f"group {place}")
        strategy, numbers = group.get("strategy"), group.get("params", ())
        for number in numbers if isinstance(numbers, list) else ():
            if isinstance(number, int | str):
                found[number] = len(found), place, strategy if isinstance(strategy, str) else None
        if group.get("param_names") is None:
            continue
        numbers, names = (
            _as(path, list, group.get(key), f"{key!r} of group {place}") for key in ("params", "param_names")
        )
        if len(numbers) != len(names):
            raise FileOfTensorsError(
                path, f"group {place} has {len(numbers)} parameters and {len(names)} names of them"
            )
        for number, name in zip(numbers, names, strict=True):
            if not isinstance(number, int | str):
                _as(path, int, number, f"a parameter of group {place}")
            if named.setdefault(number, _as(path, str, name, f"a name of group {place}")) != name:
                raise FileOfTensorsError(path, f"has two names of parameter {number}")
    return named, found


def _moment(path: Path, state: _State, kind: str, sample: TensorSample, bad: dict[str, Counts]) -> Table:
    """Return a moment at the places of a sample in binary64, and note in `bad` how many are not finite.

    Several components are added up; codes and scales are decoded.
    """
    if f"{kind}_scales" in state.entries:
        codes, scales = (
            np.asarray(state.entries[name].detach().cpu().numpy()) for name in (kind, f"{kind}_scales")
        )
        label = f"{kind} of {sample.name!r}"
        moment, counts = decoded(path, label, state.strategy, kind, codes, scales, sample)
        bad[f"{sample.name}.{kind}"] = counts
        return moment
    others = takewhile(state.entries.__contains__, (f"{kind}_{place}" for place in count(1)))
    return reduce(add, (_component(path, state, name, sample, bad) for name in (kind, *others)))


def _component(path: Path, state: _State, kind: str, sample: TensorSample, bad: dict[str, Counts]) -> Table:
    """Return one tensor of a moment at the places of a sample in binary64."""
    import torch

    x, label = state.entries.get(kind), f"{kind} of {sample.name!r}"
    if not isinstance(x, torch.Tensor):
        raise FileOfTensorsError(path, f"{label} is no tensor: {_shown(x)}")
    plain = x.layout == torch.strided and x.device.type == "cpu" and not (x.is_nested or x.is_quantized)
    if not (plain and x.is_floating_point()):
        raise FileOfTensorsError(path, f"{label} has no floating numbers as they are: it is of {x.dtype}")
    if tuple(x.shape) != sample.shape:
        raise FileOfTensorsError(path, f"{label} has shape {tuple(x.shape)}, and its weight {sample.shape}")
    flat = x.detach().reshape(-1)
    nans, infinite = zip(*(not_finite(_numbers(part)) for part in flat.split(_BLOCK)), strict=True)
    bad[f"{sample.name}.{kind}"] = sum(nans), sum(infinite)
    return _numbers(flat[torch.from_numpy(places_of(sample.size, sample.values.size))])


def _step(path: Path, state: Mapping[Any, Any], name: str) -> float:
    """Return the number of steps made; raise unless it is a whole number."""
    import torch

    step = state.get("step")
    if isinstance(step, torch.Tensor) and step.numel() == 1:
        step = step.item()
    if isinstance(step, bool) or not isinstance(step, int | float):
        raise FileOfTensorsError(path, f"does not say how many steps were made of {name!r}: {_shown(step)}")
    return check_steps(path, step)


def check_steps(path: Path, step: float) -> float:
    """Return a number of steps; raise FileOfTensorsError unless it is whole, from 1 to below 2**53."""
    if not 1 <= step < 2**53 or step != int(step):
        raise FileOfTensorsError(
            path,
            f"says that {_shown(step)} steps were made; their number must be whole, and at least one",
        )
    return float(step)


def _numbers(x: Any) -> Table:
    """Return elements of a tensor in binary64."""
    import torch

    return np.asarray(x.to(torch.float64).numpy())


def _as(path: Path, kind: type[_Kind], item: Any, label: str) -> _Kind:
    """Return an entry; raise FileOfTensorsError unless it is of the given type."""
    if not isinstance(item, kind):
        raise FileOfTensorsError(
            path, f"holds no optimizer's state_dict(): {label} is no {kind.__name__}: {_shown(item)}"
        )
    return item


def _shown(item: Any) -> str:
    """Return a short description of an entry on one line."""
    text = repr(item) if isinstance(item, str | int | float | bool | tuple | None) else type(item).__name__
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _said(problem: Exception) -> str:
    return next(iter(str(problem).splitlines()), type(problem).__name__)


# -- which state is whose ---------------------------------------------------------------------------------
Shape = tuple[int, ...]
_NUMBER = re.compile(r"([0-9]+)")


class Numbered(NamedTuple):
    """A state with the number that its optimizer gave it.

    Attributes
    ----------
    key : hashable
        Its number.
    group : int
        The group that its parameter is in.
    shape : tuple of int
        Shape of the parameter.
    """

    key: Hashable
    group: int
    shape: Shape


def by_order(
    path: Path, states: Sequence[Numbered], samples: Sequence[TensorSample], registered: Sequence[str] = ()
) -> dict[str, Hashable]:
    """Return the number of each tensor's state: match by shape, and tensors of one shape by their order.

    An optimizer numbers parameters in the order of the model. That is the order of `registered`, if the
    state's file holds the model, too. Otherwise it is the order of the weights' file, unless that file lists
    tensors by name, as safetensors does. For names that differ in numbers alone it is also the order of the
    numbers.

    Parameters
    ----------
    path : Path
        The file of the states, for error messages.
    states : sequence of Numbered
        In their order, group by group.
    samples : sequence of TensorSample
        The tensors, in the order of their file.
    registered : sequence of str, optional
        Names of tensors in the order of the model.

    Raises
    ------
    FileOfTensorsError
        If a shape has more states than tensors or fewer; or if tensors of one shape have no such order, or
        two different ones, or their states are in several groups.
    """
    found: dict[str, Hashable] = {}
    telling = _tells(states, samples)
    for shape in dict.fromkeys(sample.shape for sample in samples):
        names = [sample.name for sample in samples if sample.shape == shape]
        own = [state for state in states if state.shape == shape]
        if len(own) != len(names):
            raise FileOfTensorsError(
                path,
                f"numbers its parameters, and has {len(own)} states of shape {shape}, while the model has "
                f"{len(names)} tensors, {names[0]!r} first",
            )
        orders = [names] if len(names) == 1 else _orders(names, registered, telling=telling)
        several = len({state.group for state in own}) > 1
        if several or len(orders) != 1:
            why = "they are in several groups" if several else _why(orders)
            raise FileOfTensorsError(
                path,
                f"numbers its parameters, and {names[0]!r} and {names[1]!r} have one shape, so it does not "
                f"tell which is which: {why}. Hand the optimizer names: "
                "torch.optim.AdamW(model.named_parameters())",
            )
        found |= {name: state.key for name, state in zip(orders[0], own, strict=True)}
    return found


def _orders(names: list[str], registered: Sequence[str], *, telling: bool) -> list[list[str]]:
    """Return the possible orders of tensors of one shape in their model, each once."""
    places: Mapping[str, int] = {name: place for place, name in enumerate(registered)}
    if all(name in places for name in names):
        return [sorted(names, key=places.__getitem__)]
    orders = [names] if telling else []
    if len({_NUMBER.sub("#", name) for name in names}) == 1:
        by_number = sorted(names, key=lambda name: [int(part) for part in _NUMBER.findall(name)])
        orders += [by_number] if by_number not in orders else []
    return orders


def _why(orders: list[list[str]]) -> str:
    """Say why there is not exactly one order."""
    if not orders:
        return "no order of them is known"
    by_file, by_number = next(pair for pair in zip(*orders, strict=True) if pair[0] != pair[1])
    return f"where their file has {by_file!r} their numbers have {by_number!r}"


def _tells(states: Sequence[Numbered], samples: Sequence[TensorSample]) -> bool:
    """Return whether a file's order may be the model's: it is not sorted by name, and it fits the states.

    It fits if, in each group, the shapes that no other group has come in the same order as in the file.
    """
    formats = {item.format for item in samples}
    by_format = [[item.name for item in samples if item.format == fmt] for fmt in formats]
    if all(names == sorted(names) for names in by_format):
        return False
    for group in {state.group for state in states}:
        shapes = [state.shape for state in states if state.group == group]
        own = set(shapes) - {state.shape for state in states if state.group != group}
        if [shape for shape in shapes if shape in own] != [x.shape for x in samples if x.shape in own]:
            return False
    return True
