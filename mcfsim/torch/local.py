"""What lies in this process of a tensor spread over several, a `DTensor`, and which elements these are."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import product
from math import prod
from typing import Any, NamedTuple

import torch


class Stretch(NamedTuple):
    """Elements that follow one another, here and in the whole tensor.

    Attributes
    ----------
    first : int
        The number of the first one in the whole tensor, row by row.
    place : tuple of int
        Where they lie here: the leading indices.
    """

    first: int
    place: tuple[int, ...]


def is_spread(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is spread over processes, so that a part of it may lie elsewhere."""
    module = sys.modules.get("torch.distributed.tensor")  # nobody else makes such tensors
    return module is not None and isinstance(tensor, module.DTensor)


def is_first_process() -> bool:
    """Return whether this is the first of the processes, or the only one."""
    ready = torch.distributed.is_available() and torch.distributed.is_initialized()
    return not ready or torch.distributed.get_rank() == 0


def is_first_copy(tensor: torch.Tensor) -> bool:
    """Return whether this process is the first of those that have these elements of a tensor."""
    if not is_spread(tensor):
        return is_first_process()
    spread: Any = tensor
    place = spread.device_mesh.get_coordinate()
    return all(not i or not x.is_replicate() for i, x in zip(place, spread.placements, strict=True))


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return what lies here of a tensor, in the same memory."""
    return tensor.to_local() if is_spread(tensor) else tensor


def spread_as(whole: torch.Tensor, here: torch.Tensor) -> torch.Tensor:
    """Return a tensor that is spread as another one is, with what lies here of it."""
    if not is_spread(whole):
        return here
    from torch.distributed.tensor import DTensor

    given: Any = whole
    made: torch.Tensor = DTensor.from_local(
        here, given.device_mesh, given.placements, run_check=False, shape=given.shape, stride=given.stride()
    )
    return made


def spread_beside(
    whole: torch.Tensor, shape: tuple[int, ...], size: int, dtype: torch.dtype, each: int = 1
) -> torch.Tensor:
    """Return zeros, a row of some for so many elements of a tensor that follow one another, spread as these.

    Parameters
    ----------
    whole : tensor
    shape : tuple of int
        Of the rows.
    size : int
        How many elements share a row.
    dtype : dtype
    each : int, optional
        Zeros a row; of several each row is an axis of the zeros.

    Raises
    ------
    ValueError
        If they cannot be spread so that each process has those of its elements.
    """
    full = shape if each == 1 else (*shape, each)
    if not is_spread(whole):
        return torch.zeros(full, dtype=dtype, device=whole.device)
    from torch.distributed.tensor import DTensor, Shard
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    given: Any = whole
    mesh, placements = given.device_mesh, given.placements
    if len(shape) < whole.ndim:  # a vector of all of them
        placements = tuple(Shard(0) if x.is_shard() else x for x in placements)
    here, _ = compute_local_shape_and_global_offset(full, mesh, placements)
    zeros = torch.zeros(here, dtype=dtype, device=local(whole).device)
    stride = torch.empty(full, device="meta").stride()
    made: torch.Tensor = DTensor.from_local(
        zeros, mesh, placements, run_check=False, shape=torch.Size(full), stride=stride
    )
    if _runs(whole, size) != _runs(made, each):
        raise ValueError(
            f"a parameter of shape {tuple(whole.shape)}, spread by {given.placements}, has groups of {size} "
            "that share a scale in one process, and the scale in another; spread it otherwise, or choose "
            "another strategy"
        )
    return made


def _runs(tensor: torch.Tensor, size: int) -> list[list[int]]:
    """Return which groups of so many elements lie here, as ranges."""
    found: list[list[int]] = []
    here = local(tensor)
    for first, place in stretches(tensor):
        begin, count = first // size, -(-here[place].numel() // size)
        if found and found[-1][1] == begin:
            found[-1][1] += count
        elif count:
            found.append([begin, begin + count])
    return found


def placed_as(whole: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """Return what lies here of a tensor, once it is spread as another one is.

    Where it is spread otherwise, as a sum of which each process has a part, the processes exchange it.

    Raises
    ------
    TypeError
        If only one of the two is spread.
    """
    if is_spread(tensor) is not is_spread(whole):
        kinds = ["a DTensor" if is_spread(x) else "no DTensor" for x in (tensor, whole)]
        raise TypeError(f"a gradient is {kinds[0]}, and its parameter is {kinds[1]}")
    if is_spread(whole):
        given: Any = tensor
        goal: Any = whole
        if given.placements != goal.placements:
            tensor = given.redistribute(goal.device_mesh, goal.placements)
    return local(tensor)


def stretches(tensor: torch.Tensor) -> Iterator[Stretch]:
    """Yield what lies here of a tensor as stretches of the whole one."""
    if not is_spread(tensor):
        yield Stretch(0, ())
        return
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    spread: Any = tensor
    shape = tuple(spread.shape)
    here, offset = compute_local_shape_and_global_offset(shape, spread.device_mesh, spread.placements)
    if not prod(here):
        return
    cut = max((place for place, size in enumerate(here) if size != shape[place]), default=0)
    steps = [prod(shape[place + 1 :]) for place in range(len(shape))]
    begin = sum(first * step for first, step in zip(offset, steps, strict=True))
    for place in product(*(range(size) for size in here[:cut])):
        yield Stretch(begin + sum(i * step for i, step in zip(place, steps, strict=False)), place)


def check_whole(tensor: torch.Tensor, size: Any) -> None:
    """Raise ValueError if a process has a part of a group of so many elements; None: of all of a tensor."""
    count = tensor.numel()
    size = size or max(count, 1)
    here = local(tensor)
    for first, place in stretches(tensor):
        end = first + here[place].numel()
        if first % size or (end % size and end != count):
            raise ValueError(
                f"a process has elements {first} to {end - 1} of a parameter of {count}, which cuts a group "
                f"of {size} that share a scale; spread it by whole groups, or choose another strategy"
            )
