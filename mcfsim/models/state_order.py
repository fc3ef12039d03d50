"""Which state of an optimizer that numbers its parameters is that of which tensor of a model."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from mcfsim.models.samples import TensorSample
from mcfsim.storage.tensors import FileOfTensorsError

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
