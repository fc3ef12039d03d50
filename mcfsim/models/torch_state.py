"""What torch has saved of an optimizer's state, looked at entry by entry: anyone may have written it."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from zipfile import ZIP_STORED, ZipFile

import numpy as np

from mcfsim.models.coded import decoded
from mcfsim.models.directions import Table
from mcfsim.models.samples import TensorSample, places_of
from mcfsim.models.weights import not_finite, refuse_not_finite
from mcfsim.optim.strategy import SLOTS
from mcfsim.storage.files import open_regular
from mcfsim.storage.tensors import FileOfTensorsError

_Kind = TypeVar("_Kind")

#: What torch calls the moments.
MOMENTS = ("exp_avg", "exp_avg_sq")
#: Elements that are looked at together, and characters of others' text that an error repeats.
_BLOCK, _SHOWN = 1 << 20, 120


class _State(NamedTuple):
    """What is saved of one parameter, its place among all, its group, and the strategy that this names."""

    entries: Mapping[Any, Any]
    place: int
    group: int
    strategy: str | None


def torch_moments(path: Path, samples: Sequence[TensorSample]) -> list[tuple[Table, Table, float]]:
    """Return the moments of a saved ``state_dict()`` at the places of samples, and how many steps were made.

    It is one of torch's optimizers, or of AdamW of `mcfsim.torch`, whose moments may have several components,
    or lie as codes and scales.

    Raises
    ------
    FileOfTensorsError
        If it is no such file, is damaged, or holds anything but plain data; if it lacks the state of a
        tensor, or does not tell which is whose; or if a moment is not of the tensor's shape, or has a number
        that is NaN or infinite.
    ImportError
        If torch is not installed.
    OSError
        If it is not there or cannot be read.
    """
    saved = _loaded(path)
    try:
        states = _states(path, saved, samples)
        bad: dict[str, tuple[int, int]] = {}
        found = []
        for sample in samples:
            state = states[sample.name]
            m, v = (_moment(path, state, kind, sample, bad) for kind in _kinds(state))
            found.append((m, v, _step(path, state.entries, sample.name)))
    except FileOfTensorsError:
        raise
    except Exception as problem:  # whatever torch makes of tensors that anyone may have written
        raise FileOfTensorsError(path, f"is damaged: {_said(problem)}") from problem
    refuse_not_finite(path, bad)
    return found


def _loaded(path: Path) -> Any:
    """Return what torch finds in a file, whose checksums are right: torch does not look at them."""
    try:
        import torch
    except ImportError as problem:
        raise ImportError(f"{path} is read by torch: pip install 'mcfsim[torch]'") from problem
    with open_regular(path) as file:
        try:
            with ZipFile(file) as archive:
                if any(info.compress_type != ZIP_STORED for info in archive.infolist()):
                    raise ValueError("it is compressed, as torch compresses none")
                damaged = archive.testzip()
            if damaged is None:
                return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except Exception as problem:  # whatever zipfile and torch make of bytes that anyone may write
            what = f"is no file of torch's that holds tensors alone: {_said(problem)}"
            raise FileOfTensorsError(path, what) from problem
    raise FileOfTensorsError(path, f"is damaged: {damaged} has not its checksum, or was saved without")


def _states(path: Path, saved: Any, samples: Sequence[TensorSample]) -> Mapping[Any, _State]:
    """Return the state of each tensor, by name; without names by shape and order, if these tell."""
    registered = _registered(saved)
    for key in ("optimizer", "optimizer_state_dict"):
        if isinstance(saved, dict) and key in saved and "state" not in saved:
            saved = saved[key]
    if not isinstance(saved, dict) or not isinstance(states := saved.get("state"), dict):
        raise FileOfTensorsError(path, "holds no optimizer's state_dict(): it has no entry 'state'")
    named, groups = _names(path, saved.get("param_groups", [])), _groups(saved.get("param_groups", []))
    by_name: dict[Any, _State] = {}
    for key, state in states.items():
        name = named.get(key, key)
        if name in by_name:
            raise FileOfTensorsError(path, f"has two states of tensor {_shown(name)}")
        entries = _as(path, dict, state, f"the state of {_shown(name)}")
        place, group, strategy = groups.get(key, (len(groups), 0, None))
        by_name[name] = _State(entries, place, group, strategy)
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
    """Return what the moments are called: as torch has them, or as `mcfsim.torch` does."""
    return SLOTS if SLOTS[0] in state.entries else MOMENTS


def _registered(saved: Any) -> list[str]:
    """Return the names of a model's tensors that lie beside the state, in the order of the model."""
    for key in ("model", "model_state_dict", "state_dict"):
        if isinstance(saved, dict) and isinstance(model := saved.get(key), dict):
            return [name for name in model if isinstance(name, str)]
    return []


def _groups(groups: Any) -> dict[Any, tuple[int, int, str | None]]:
    """Return for each parameter its place among all, its group, and the strategy that this names."""
    found: dict[Any, tuple[int, int, str | None]] = {}
    for group, item in enumerate(groups):
        strategy, numbers = item.get("strategy"), item.get("params", ())
        for number in numbers if isinstance(numbers, list) else ():
            if isinstance(number, int | str):
                found[number] = len(found), group, strategy if isinstance(strategy, str) else None
    return found


def _names(path: Path, groups: Any) -> dict[Any, Any]:
    """Return the names of the parameters that groups number."""
    named: dict[Any, Any] = {}
    for place, item in enumerate(_as(path, list, groups, "'param_groups'")):
        group = _as(path, dict, item, f"group {place}")
        if group.get("param_names") is None:
            continue
        lists = [
            _as(path, list, group.get(key), f"{key!r} of group {place}") for key in ("params", "param_names")
        ]
        numbers, names = lists
        if len(numbers) != len(names):
            raise FileOfTensorsError(
                path, f"group {place} has {len(numbers)} parameters and {len(names)} names of them"
            )
        for number, name in zip(numbers, names, strict=True):
            if not isinstance(number, int | str):
                _as(path, int, number, f"a parameter of group {place}")
            if named.setdefault(number, _as(path, str, name, f"a name of group {place}")) != name:
                raise FileOfTensorsError(path, f"has two names of parameter {number}")
    return named


def _moment(
    path: Path, state: _State, kind: str, sample: TensorSample, bad: dict[str, tuple[int, int]]
) -> Table:
    """Return a moment at the places of a sample in binary64, and note how many numbers are not finite.

    It is the sum of its components, if it has several, or what codes and scales stand for.
    """
    if f"{kind}_scales" in state.entries:
        codes, scales = (
            np.asarray(state.entries[name].detach().cpu().numpy()) for name in (kind, f"{kind}_scales")
        )
        label = f"{kind} of {sample.name!r}"
        numbers = decoded(path, label, state.strategy, kind, codes, scales, sample.shape)
        bad[f"{sample.name}.{kind}"] = not_finite(numbers)
        return numbers[places_of(sample.size, sample.values.size)]
    total = _component(path, state.entries, kind, sample, bad)
    following = 1
    while (name := f"{kind}_{following}") in state.entries:
        total = total + _component(path, state.entries, name, sample, bad)
        following += 1
    return total


def _component(
    path: Path, state: Mapping[Any, Any], kind: str, sample: TensorSample, bad: dict[str, tuple[int, int]]
) -> Table:
    """Return one tensor of a moment at the places of a sample in binary64."""
    import torch

    x, label = state.get(kind), f"{kind} of {sample.name!r}"
    if not isinstance(x, torch.Tensor):
        raise FileOfTensorsError(path, f"{label} is no tensor: {_shown(x)}")
    plain = x.layout == torch.strided and x.device.type == "cpu" and not (x.is_nested or x.is_quantized)
    if not (plain and x.is_floating_point()):
        raise FileOfTensorsError(path, f"{label} has no floating numbers as they are: it is of {x.dtype}")
    if tuple(x.shape) != sample.shape:
        raise FileOfTensorsError(path, f"{label} has shape {tuple(x.shape)}, and its weight {sample.shape}")
    flat = x.detach().reshape(-1)
    counts = [not_finite(_numbers(part)) for part in flat.split(_BLOCK)]
    bad[f"{sample.name}.{kind}"] = sum(nans for nans, _ in counts), sum(inf for _, inf in counts)
    return _numbers(flat[torch.from_numpy(places_of(sample.size, sample.values.size))])


def _step(path: Path, state: Mapping[Any, Any], name: str) -> float:
    """Return how many steps were made, which must be a whole number."""
    import torch

    step = state.get("step")
    if isinstance(step, torch.Tensor) and step.numel() == 1:
        step = step.item()
    if isinstance(step, bool) or not isinstance(step, int | float):
        raise FileOfTensorsError(path, f"does not say how many steps were made of {name!r}: {_shown(step)}")
    return check_steps(path, step)


def check_steps(path: Path, step: float) -> float:
    """Return a number of steps; raise FileOfTensorsError unless it is one from 1 on that binary64 holds."""
    if not 1 <= step < 2**53 or step != int(step):
        raise FileOfTensorsError(
            path,
            f"says that {_shown(step)} steps were made; at least one must have been, and a whole number",
        )
    return float(step)


def _numbers(x: Any) -> Table:
    """Return elements of a tensor in binary64."""
    import torch

    return np.asarray(x.to(torch.float64).numpy())


def _as(path: Path, kind: type[_Kind], item: Any, label: str) -> _Kind:
    """Return an entry that must be of a type."""
    if not isinstance(item, kind):
        raise FileOfTensorsError(
            path, f"holds no optimizer's state_dict(): {label} is no {kind.__name__}: {_shown(item)}"
        )
    return item


def _shown(item: Any) -> str:
    """Return what an entry looks like, in short and on one line."""
    text = repr(item) if isinstance(item, str | int | float | bool | tuple | None) else type(item).__name__
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _said(problem: Exception) -> str:
    lines = str(problem).splitlines()
    return lines[0] if lines else type(problem).__name__


# -- which state is whose ---------------------------------------------------------------------------------
Shape = tuple[int, ...]
_NUMBER = re.compile(r"([0-9]+)")


class Numbered(NamedTuple):
    """A state as its optimizer numbers it.

    Attributes
    ----------
    key : hashable
        Its number.
    group : int
        The group that its parameter is in.
    shape : tuple of int
        Of the parameter.
    """

    key: Hashable
    group: int
    shape: Shape


def by_order(
    path: Path, states: Sequence[Numbered], samples: Sequence[TensorSample], registered: Sequence[str] = ()
) -> dict[str, Hashable]:
    """Return the number of each tensor's state, by the shapes, and by an order of tensors of one shape.

    An optimizer numbers parameters in the order that the model has them in. That is the order of
    `registered`, if the file of the state holds the model, too. Else it is that of the weights' file, unless
    this lists them by name, as safetensors does; and of names that differ in numbers alone that of the
    numbers.

    Parameters
    ----------
    path : Path
        Of the states, for errors.
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
        two, or their states are in several groups.
    """
    found: dict[str, Hashable] = {}
    alike: dict[Shape, list[str]] = {}
    for sample in samples:
        alike.setdefault(sample.shape, []).append(sample.name)
    telling = _tells(states, samples)
    for shape, names in alike.items():
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
    """Return the orders that tensors of one shape may have in their model, each once."""
    places: Mapping[str, int] = {name: place for place, name in enumerate(registered)}
    if all(name in places for name in names):
        return [sorted(names, key=places.__getitem__)]
    orders = [names] if telling else []
    if len({_NUMBER.sub("#", name) for name in names}) == 1:
        by_number = sorted(names, key=lambda name: [int(part) for part in _NUMBER.findall(name)])
        orders += [by_number] if by_number not in orders else []
    return orders


def _why(orders: list[list[str]]) -> str:
    """Say why not one order is left."""
    if not orders:
        return "no order of them is known"
    by_file, by_number = next(pair for pair in zip(*orders, strict=True) if pair[0] != pair[1])
    return f"where their file has {by_file!r} their numbers have {by_number!r}"


def _tells(states: Sequence[Numbered], samples: Sequence[TensorSample]) -> bool:
    """Whether the order of a file may be that of the model: not one by name, and one that fits the states.

    It fits if in each group shapes that no other group has follow each other as they do in the file.
    """
    seen: dict[str, list[str]] = {}
    for sample in samples:
        seen.setdefault(sample.format, []).append(sample.name)
    if all(names == sorted(names) for names in seen.values()):
        return False
    groups: dict[int, list[Shape]] = {}
    for state in states:
        groups.setdefault(state.group, []).append(state.shape)
    for group, shapes in groups.items():
        elsewhere = {shape for other, found in groups.items() if other != group for shape in found}
        own = set(shapes) - elsewhere
        if [shape for shape in shapes if shape in own] != [
            item.shape for item in samples if item.shape in own
        ]:
            return False
    return True
