"""Sets of vectors as a table, in which a kernel looks them up, so that one launch works on all of them.

A row of the table is a set: the number of its first element, for random words; how many elements it has;
which instance of the kernel is its first; and the address of each vector. A second vector says which row each
instance works on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mcfsim.compile.launch import EXACT, WARPS, Ready, elements_on, function, sent, shared_by_all, text_on
from mcfsim.compile.triton_source import ALIGNMENT, FIRST_ADDRESS
from mcfsim.random import RandomWords, counters

if TYPE_CHECKING:
    import torch


class Rows(NamedTuple):
    """What is worked on in one launch, in the host's memory.

    Attributes
    ----------
    table : array of int64, shape (sets * (3 + vectors),)
    owners : array of int32, shape (instances,)
        Which row each instance works on.
    aligned : bool
        Whether all sizes and addresses are multiples of 16, so that 16 bytes are read and written at a time.
    """

    table: NDArray[np.int64]
    owners: NDArray[np.int32]
    aligned: bool


class DevicePart(NamedTuple):
    """The same in the device's memory."""

    table: torch.Tensor
    owners: torch.Tensor
    aligned: bool


def tabulated(sets: Sequence[Sequence[torch.Tensor]], starts: Sequence[int], elements: int) -> list[Rows]:
    """Return the rows of sets of vectors: the elements that lie aligned, and the others.

    The others are those at the ends of vectors, and of vectors that begin anywhere.

    Parameters
    ----------
    sets : sequence of sequences of tensor
        The operands, then the results, of one set after the other: contiguous, those of a set of one size.
    starts : sequence of int
        The number of each set's first element.
    elements : int
        How many an instance works on.

    Raises
    ------
    ValueError
        If elements have numbers for which there are no random words.
    """
    sizes = np.array([vectors[0].numel() for vectors in sets], np.int64)
    addresses = np.array([[x.data_ptr() for x in vectors] for vectors in sets], np.int64)
    lengths = np.array([[x.element_size() for x in vectors] for vectors in sets], np.int64)
    whole = np.where((addresses % ALIGNMENT == 0).all(1), sizes - sizes % ALIGNMENT, 0)
    first = np.array(starts, np.int64)
    counters(0, int((first + sizes).max()), 32)
    later = addresses + whole[:, np.newaxis] * lengths
    made = (
        _rows(first, whole, addresses, elements, aligned=True),
        _rows(first + whole, sizes - whole, later, elements, aligned=False),
    )
    return [rows for rows in made if rows.owners.size]


def _rows(
    first: NDArray[Any], sizes: NDArray[Any], addresses: NDArray[Any], elements: int, *, aligned: bool
) -> Rows:
    kept = sizes > 0
    instances = -(-sizes[kept] // elements)
    begin = np.cumsum(instances) - instances
    table = np.empty((kept.sum(), FIRST_ADDRESS + addresses.shape[1]), np.int64)
    table[:, :FIRST_ADDRESS] = np.stack([first[kept], sizes[kept], begin], axis=1)
    table[:, FIRST_ADDRESS:] = addresses[kept]
    return Rows(table.reshape(-1), np.repeat(np.arange(len(table), dtype=np.int32), instances), aligned)


class Table:
    """Vectors of a device, which must live on as long as the table is used.

    Parameters
    ----------
    sets, starts
        As of `tabulated`.

    Raises
    ------
    ValueError
        If they are a CPU's, and Triton does not interpret.

    Attributes
    ----------
    elements : int
        How many an instance works on.
    parts : list of Part
    """

    def __init__(self, sets: Sequence[Sequence[torch.Tensor]], starts: Sequence[int]) -> None:
        import torch

        self.device = sets[0][0].device
        self.elements = elements_on(self.device, max(vectors[0].numel() for vectors in sets))
        self.parts = []
        for rows in tabulated(sets, starts, self.elements):
            table, owners = (sent(torch.from_numpy(x), self.device) for x in (rows.table, rows.owners))
            self.parts.append(DevicePart(table, owners, rows.aligned))


@dataclass(frozen=True)
class TableLauncher(Ready):
    """A kernel that works on many sets of vectors in one launch, with its real scalars put in."""

    def __call__(self, table: Table, words: Mapping[int, RandomWords] | None = None) -> None:
        """Fill results from operands, those of each set of a table.

        Random words go by the number that each set's first element has in the table. What is in the table was
        checked by `checked`; words raise as in `Launcher`.
        """
        shared = shared_by_all(self, table.device, self.streams(words))
        self.launch(table.parts, table.elements, shared)

    def launch(self, parts: Sequence[DevicePart], elements: int, shared: Sequence[torch.Tensor]) -> None:
        """Work on what a table has, with what all elements share."""
        import torch

        for part in parts:
            device = part.table.device
            kernel = function(text_on(self, device), interpreted=device.type == "cpu")
            fixed = {"ELEMENTS": elements, "num_warps": WARPS, **EXACT}
            with torch.cuda.device_of(part.table):  # where Triton launches; of a CPU's it does nothing
                kernel[part.owners.shape](part.table, part.owners, *shared, ALIGNED=part.aligned, **fixed)
