"""Special tensors: those distributed over processes (DTensor), and moments stored with shared scales."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod
from typing import Any

import numpy as np
import torch

from mcfsim.compile.group_algorithm import GroupAlgorithm
from mcfsim.compile.torch_calls import check_machine
from mcfsim.compile.torch_loops import AT_ONCE
from mcfsim.formats import Format
from mcfsim.kernels.carriers import FLOAT32, carrier_of
from mcfsim.kernels.torch_tensors import as_array, torch_dtype
from mcfsim.optim.groups import GroupBoundaries, Groups, group_algorithm, why_not_packed
from mcfsim.scaled import ScaledFormat
from mcfsim.scaled.quantisers import Quantiser
from mcfsim.torch.tensor_scales import decoded, encoded


# -- spread over processes --------------------------------------------------------------------------------
def is_spread(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is distributed over processes, so that parts of it may be elsewhere."""
    if type(tensor) is torch.nn.Parameter or type(tensor) is torch.Tensor:
        return False
    module = sys.modules.get("torch.distributed.tensor")  # only this module makes such tensors
    return module is not None and isinstance(tensor, module.DTensor)


def is_first_process() -> bool:
    """Return whether this is the first process, or the only one."""
    ready = torch.distributed.is_available() and torch.distributed.is_initialized()
    return not ready or torch.distributed.get_rank() == 0


def is_first_copy(tensor: torch.Tensor, first_process: bool) -> bool:
    """Return whether this process is the first of those that hold its part of a tensor.

    `first_process` says whether it is the first of all.
    """
    if not is_spread(tensor):
        return first_process
    spread: Any = tensor
    place = spread.device_mesh.get_coordinate()
    return all(not i or not x.is_replicate() for i, x in zip(place, spread.placements, strict=True))


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return the local part of a tensor, in the same memory."""
    return tensor.to_local() if is_spread(tensor) else tensor


def spread_as(whole: torch.Tensor, here: torch.Tensor) -> torch.Tensor:
    """Return a tensor distributed like `whole`, whose local part is `here`."""
    if not is_spread(whole):
        return here
    given: Any = whole
    return _spread(here, given.device_mesh, given.placements, given.shape, given.stride())


def _spread(here: torch.Tensor, mesh: Any, placements: Any, shape: Any, stride: Any) -> torch.Tensor:
    """Return a tensor of a shape with strides, distributed over a mesh, whose local part is `here`."""
    from torch.distributed.tensor import DTensor

    spread: torch.Tensor = DTensor.from_local(
        here, mesh, placements, run_check=False, shape=shape, stride=stride
    )
    return spread


def spread_beside(
    whole: torch.Tensor,
    shape: tuple[int, ...],
    size: int,
    dtype: torch.dtype,
    each: int = 1,
    *,
    together: bool = False,
) -> torch.Tensor:
    """Return zeros, one row per group of consecutive elements of a tensor, distributed like the elements.

    Parameters
    ----------
    whole : tensor
    shape : tuple of int
        The shape of the rows, one entry per row.
    size : int
        The number of elements in a group.
    dtype : dtype
    each : int, optional
        The number of zeros per row; if several, they have an axis of their own.
    together : bool, optional
        Whether each process has all of them instead.

    Raises
    ------
    ValueError
        If they cannot be distributed so that each process has the rows of its elements.
    """
    full = shape if each == 1 else (*shape, each)
    if together or not is_spread(whole):
        return torch.zeros(full, dtype=dtype, device=local(whole).device)
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    given: Any = whole
    mesh, placements = given.device_mesh, given.placements
    if len(shape) < whole.ndim:  # a vector of all of them
        placements = tuple(Shard(0) if x.is_shard() else x for x in placements)
    here, _ = compute_local_shape_and_global_offset(full, mesh, placements)
    zeros = torch.zeros(here, dtype=dtype, device=local(whole).device)
    stride = torch.empty(full, device="meta").stride()
    made = _spread(zeros, mesh, placements, torch.Size(full), stride)
    if _runs(whole, size) != _runs(made, each):
        raise ValueError(
            f"a parameter of shape {tuple(whole.shape)}, spread by {given.placements}, has groups of {size} "
            "that share a scale in one process, and the scale in another; spread it otherwise, or choose "
            "another strategy"
        )
    return made


def _runs(tensor: torch.Tensor, size: int) -> list[list[int]]:
    """Return the groups of `size` elements in the local part, as ranges of group numbers."""
    found: list[list[int]] = []
    here = local(tensor)
    for first, place in stretches(tensor):
        begin, count = first // size, -(-here[place].numel() // size)
        if found and found[-1][1] == begin:
            found[-1][1] += count
        elif count:
            found.append([begin, begin + count])
    return found


def is_cut(tensor: torch.Tensor) -> bool:
    """Return whether processes have parts of a tensor, even if this one has all; all processes agree."""
    if not is_spread(tensor) or not tensor.numel():
        return False
    spread: Any = tensor
    sizes = zip(spread.device_mesh.shape, spread.placements, strict=True)
    return any(size > 1 and not x.is_replicate() for size, x in sizes)


def gathered(here: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return the whole of a tensor that is distributed like `like`, on its device, given its part here.

    All processes that have parts of it must call this.
    """
    sent = here.view(torch.uint8) if here.itemsize == 1 else here  # no process sends 8-bit floats
    spread: Any = spread_as(like, sent)
    found: torch.Tensor = spread.full_tensor()
    return found.view(here.dtype)


def own_part(whole: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return the part that this process has of a tensor distributed like another: a view of the whole."""
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    spread: Any = like
    shape = tuple(spread.shape)
    here, offset = compute_local_shape_and_global_offset(shape, spread.device_mesh, spread.placements)
    return whole[tuple(slice(first, first + size) for first, size in zip(offset, here, strict=True))]


def placed_as(whole: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """Return the local part of a tensor once it is distributed like `whole`.

    If it is distributed otherwise, for example as partial sums, the processes exchange its elements.

    Raises
    ------
    TypeError
        If only one of the two is distributed.
    """
    spread = is_spread(whole)
    if is_spread(tensor) is not spread:
        kinds = ["a DTensor" if is_spread(x) else "no DTensor" for x in (tensor, whole)]
        raise TypeError(f"a gradient is {kinds[0]}, and its parameter is {kinds[1]}")
    if not spread:
        return tensor
    given: Any = tensor
    goal: Any = whole
    if given.placements != goal.placements:
        given = given.redistribute(goal.device_mesh, goal.placements)
    return local(given)


def stretches(tensor: torch.Tensor) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield the local part of a tensor as stretches, consecutive both in it and in the whole tensor.

    Yields
    ------
    int
        The row-major index of the first element in the whole tensor.
    tuple of int
        The leading indices of the stretch in the local part.
    """
    if not is_spread(tensor):
        yield 0, ()
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
        yield begin + sum(i * step for i, step in zip(place, steps, strict=False)), place


def check_whole(tensor: torch.Tensor, size: Any) -> None:
    """Raise ValueError if a process has only part of a group of `size` (None: all) elements of a tensor."""
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


# -- codes and scales -------------------------------------------------------------------------------------
#: The suffix that turns a moment's name into that of its scales.
SCALES = "_scales"
#: PyTorch's dtypes for NumPy's. Processes can exchange both, but not all 8-bit floats.
_HELD = {np.dtype(np.uint8): torch.uint8, np.dtype(np.float32): torch.float32}


@dataclass(frozen=True)
class Grouped:
    """A moment's storage as codes and scales, in groups that are counted from its first element.

    Parameters
    ----------
    kept : ScaledFormat or Quantiser
        The format of codes and scales. The last group of a tensor may be short.
    format : Format
        The format in which steps compute the numbers.
    """

    kept: ScaledFormat | Quantiser
    format: Format

    @classmethod
    def of(cls, kept: ScaledFormat | Quantiser | None, fmt: Format) -> Grouped | None:
        """Return a moment's storage, or None if it is stored as numbers of its format.

        The latter holds if groups depend on each other, or codes are longer than a byte or of no format.
        """
        if kept is None or carrier_of(fmt) != FLOAT32:
            return None
        if group_algorithm(kept, fmt) is None and why_not_packed(kept):
            return None
        codes, scales = Groups.forms(kept)
        return cls(kept, fmt) if codes == np.uint8 and scales in _HELD else None

    @property
    def dtypes(self) -> tuple[torch.dtype, torch.dtype]:
        """The dtypes of codes and scales."""
        codes, scales = Groups.forms(self.kept)
        return _HELD[codes], _HELD[scales]

    @property
    def size(self) -> int:
        """The number of elements in a group."""
        assert isinstance(self.kept.block, int)
        return self.kept.block

    @property
    def shared(self) -> int:
        """The number of shared numbers per group."""
        return Groups.shared(self.kept)

    @property
    def zero(self) -> int:
        """The code of zero."""
        return self.kept.zero if isinstance(self.kept, Quantiser) else 0

    def zero_scales(self, whole: torch.Tensor, *, together: bool = False) -> torch.Tensor:
        """Return a zero for each group of elements of a parameter, distributed like it unless all lie here.

        If the parameter's rows consist of whole groups, the zeros have its shape, with groups along the last
        axis; otherwise they are a vector. Several numbers per group have one more axis.

        Raises
        ------
        ValueError
            If a process would have the scales of other groups than those of its elements.
        """
        shape, size = whole.shape, self.size
        rows = shape and shape[-1] and not shape[-1] % size
        groups = (*shape[:-1], shape[-1] // size) if rows else (-(-whole.numel() // size),)
        return spread_beside(whole, groups, size, self.dtypes[1], self.shared, together=together)

    def vector(self, codes: torch.Tensor, scales: torch.Tensor, parts: Sequence[slice] = ()) -> Groups:
        """Return contiguous CPU tensors of codes and scales as one vector in the same memory.

        If these were joined from several tensors, `parts` says where the elements of each are.
        """
        edges = GroupBoundaries(parts or [slice(0, codes.numel())], self.size)
        own, shared = as_array(codes).reshape(-1), as_array(scales)
        shared = shared.reshape(-1) if self.shared == 1 else shared.reshape(-1, self.shared)
        return Groups.whole(own, shared, self.kept, self.format, edges)

    def numbers(self, codes: torch.Tensor, scales: torch.Tensor, parts: Sequence[slice] = ()) -> torch.Tensor:
        """Return the decoded numbers as a vector in the format's dtype, on the device of the codes.

        If they were joined from several parts, `parts` says where these are.
        """
        found = torch.empty(codes.numel(), dtype=torch_dtype(self.format), device=codes.device)
        if self.algorithm is None or len(parts) > 1:
            found.copy_(torch.from_numpy(self.vector(codes.cpu(), scales.cpu(), parts).numbers()))
            return found
        check_machine(codes.device)
        own, shared = codes.reshape(-1), scales.reshape(-1, self.shared)
        for part, groups in self._parts(codes.numel()):
            found[part] = decoded(self.algorithm, own[part], shared[groups], self.size)
        return found

    def keep(
        self, numbers: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, parts: Sequence[slice] = ()
    ) -> None:
        """Quantise a vector of numbers of the format into codes and scales on its device.

        Elements are rounded to nearest even, and saturate. A group with an infinity or NaN becomes NaN. If
        the numbers were joined from several parts, `parts` says where these are.
        """
        numbers = numbers.to(torch.float32)
        if self.algorithm is None or len(parts) > 1:
            made = codes.cpu().clone(), scales.cpu().clone()
            self.vector(*made, parts).keep(as_array(numbers.cpu()))
            for x, y in zip((codes, scales), made, strict=True):
                x.copy_(y)
            return
        check_machine(codes.device)
        found = [torch.empty(x.numel(), dtype=x.dtype, device=x.device) for x in (codes, scales)]
        shared = found[1].view(-1, self.shared)
        for part, groups in self._parts(numbers.numel()):
            found[0][part], shared[groups] = encoded(self.algorithm, numbers[part], self.size)
        for y, z in zip((codes, scales), found, strict=True):
            y.copy_(z.view(y.shape))

    @cached_property
    def algorithm(self) -> GroupAlgorithm | None:
        """The algorithm by which PyTorch's operations make codes and scales; None if NumPy does."""
        return group_algorithm(self.kept, self.format)

    def _parts(self, size: int) -> Iterator[tuple[slice, slice]]:
        """Yield slices of whole groups of a vector: of its elements, and of its groups."""
        count, together = -(-size // self.size), max(1, AT_ONCE // self.size)
        for first in range(0, count, together):
            groups = slice(first, min(first + together, count))
            yield slice(first * self.size, min(groups.stop * self.size, size)), groups
