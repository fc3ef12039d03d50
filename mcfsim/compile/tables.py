"""Sets of vectors as a table, in which a kernel looks them up, so that one launch works on all of them.

A row of the table is a set: the number of its first element, for random words; how many elements it has;
which instance of the kernel is its first; and the address of each vector. A second vector says which row each
instance works on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.compile.launch import EXACT, WARPS, Ready, elements_on, function, shared_by_all, text_on
from mcfsim.compile.triton_source import ALIGNMENT, FIRST_ADDRESS
from mcfsim.random import RandomWords

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Part:
    """What is worked on in one launch.

    Attributes
    ----------
    table : tensor of int64, shape (sets * (3 + vectors),)
    owners : tensor of int32, shape (instances,)
        Which row each instance works on.
    aligned : bool
        Whether all sizes and addresses are multiples of 16, so that 16 bytes are read and written at a time.
    """

    table: torch.Tensor
    owners: torch.Tensor
    aligned: bool


class Table:
    """Vectors of a device, which must live on as long as the table is used.

    Parameters
    ----------
    sets : sequence of sequences of tensor
        The operands, then the results, of one set after the other: contiguous, those of a set of one size.
    starts : sequence of int
        The number of each set's first element.

    Raises
    ------
    ValueError
        If they are a CPU's, and Triton does not interpret.

    Attributes
    ----------
    elements : int
        How many an instance works on.
    parts : list of Part
        The elements that lie aligned, and the others: those at the ends of vectors, and of vectors that begin
        anywhere.
    """

    def __init__(self, sets: Sequence[Sequence[torch.Tensor]], starts: Sequence[int]) -> None:
        self.device = sets[0][0].device
        sizes = np.array([vectors[0].numel() for vectors in sets], np.int64)
        self.elements = elements_on(self.device, int(sizes.max()))
        addresses = np.array([[x.data_ptr() for x in vectors] for vectors in sets], np.int64)
        lengths = np.array([[x.element_size() for x in vectors] for vectors in sets], np.int64)
        whole = np.where((addresses % ALIGNMENT == 0).all(1), sizes - sizes % ALIGNMENT, 0)
        first = np.array(starts, np.int64)
        later = addresses + whole[:, np.newaxis] * lengths
        made = (
            self._part(first, whole, addresses, aligned=True),
            self._part(first + whole, sizes - whole, later, aligned=False),
        )
        self.parts = [part for part in made if part.owners.numel()]

    def _part(
        self,
        first: NDArray[Any],
        sizes: NDArray[Any],
        addresses: NDArray[Any],
        *,
        aligned: bool,
    ) -> Part:
        kept = sizes > 0
        instances = -(-sizes[kept] // self.elements)
        begin = np.cumsum(instances) - instances
        rows = np.empty((kept.sum(), FIRST_ADDRESS + addresses.shape[1]), np.int64)
        rows[:, :FIRST_ADDRESS] = np.stack([first[kept], sizes[kept], begin], axis=1)
        rows[:, FIRST_ADDRESS:] = addresses[kept]
        owners = np.repeat(np.arange(len(rows), dtype=np.int32), instances)
        import torch

        table = torch.from_numpy(rows.reshape(-1)).to(self.device)
        return Part(table, torch.from_numpy(owners).to(self.device), aligned)


@dataclass(frozen=True)
class TableLauncher(Ready):
    """A kernel that works on many sets of vectors in one launch, with its real scalars put in."""

    def __call__(self, table: Table, words: Mapping[int, RandomWords] | None = None) -> None:
        """Fill results from operands, those of each set of a table.

        Random words go by the number that each set's first element has in the table. What is in the table was
        checked by `checked`; words raise as in `Launcher`.
        """
        import torch

        shared = shared_by_all(self, table.device, self.streams(words))
        kernel = function(text_on(self, table.device), interpreted=table.device.type == "cpu")
        fixed = {"ELEMENTS": table.elements, "num_warps": WARPS, **EXACT}
        for part in table.parts:
            with torch.cuda.device_of(part.table):  # where Triton launches; of a CPU's it does nothing
                kernel[part.owners.shape](part.table, part.owners, *shared, ALIGNED=part.aligned, **fixed)
