"""Programs as Triton kernels, on vectors and on tables of vectors, and launches for CUDA graphs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mcfsim.compile.launch import Launcher, SourceWords, elements_on, launch, sent
from mcfsim.compile.lines import AsBits, Epilogue, Lines
from mcfsim.compile.lowering import Lowered
from mcfsim.compile.program import Program
from mcfsim.compile.scalars import ScalarEncoding
from mcfsim.compile.triton_source import ALIGNMENT, FIRST_ADDRESS, kernel_source
from mcfsim.kernels.carriers import UnsupportedFormatError
from mcfsim.kernels.real_numbers import Scalars
from mcfsim.random import counters

if TYPE_CHECKING:
    import torch

    from mcfsim.kernels.torch_tensors import Tensors


# -- tables of vectors ------------------------------------------------------------------------------------
class Rows(NamedTuple):
    """A table of sets of vectors for one launch: arrays in host memory, or tensors in device memory.

    Attributes
    ----------
    table : array or tensor of int64, shape (sets * (3 + vectors),)
    owners : array or tensor of int32, shape (instances,)
        The row that each instance processes.
    aligned : bool
        Whether all sizes and addresses are multiples of 16, so that 16 bytes are read and written at a time.
    """

    table: Any
    owners: Any
    aligned: bool

    def launch(self, launcher: Launcher, elements: int, shared: Tensors) -> None:
        """Process the vectors by a kernel, given the tensors that all elements share."""
        text, given = launcher.text_on(self.table.device), (self.table, self.owners, *shared)
        launch(text, self.owners.shape, elements, *given, ALIGNED=self.aligned)


def tabulated(sets: Sequence[Tensors], starts: Sequence[int], elements: int) -> list[Rows]:
    """Return the rows of sets of vectors: those of aligned elements, and those of the others.

    The others are the ends of vectors, and all elements of vectors at unaligned addresses.

    Parameters
    ----------
    sets : sequence of sequences of tensor
        The operands and then the results of each set: contiguous vectors, of one size within a set.
    starts : sequence of int
        The number of each set's first element.
    elements : int
        The number of elements that an instance processes.

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
    """A table of vectors on a device; the vectors must live as long as the table is used.

    The vectors were checked by `Launcher.checked`.

    Parameters
    ----------
    sets, starts
        As for `tabulated`.

    Raises
    ------
    ValueError
        If the vectors are on a CPU, and Triton does not interpret.

    Attributes
    ----------
    elements : int
        The number of elements that an instance processes.
    parts : list of Rows
    """

    def __init__(self, sets: Sequence[Tensors], starts: Sequence[int]) -> None:
        import torch

        self.device = sets[0][0].device
        self.elements = elements_on(self.device, max(vectors[0].numel() for vectors in sets))
        self.parts = []
        for rows in tabulated(sets, starts, self.elements):
            table, owners = (sent(torch.from_numpy(x), self.device) for x in (rows.table, rows.owners))
            self.parts.append(Rows(table, owners, rows.aligned))

    def fill(self, launcher: Launcher, words: SourceWords | None = None) -> None:
        """Fill the results of each set from its operands, by a kernel on many sets.

        Random words depend on the number of each set's first element; they raise as in `Launcher`.
        """
        shared = launcher.shared(self.device, launcher.streams(words))
        for part in self.parts:
            part.launch(launcher, self.elements, shared)


# -- kernels ----------------------------------------------------------------------------------------------
#: Before this version division and square root flush subnormal numbers.
LEAST_TRITON = 3, 6


@lru_cache(maxsize=1)
def _triton() -> str | None:
    """Return the version of Triton, if it is installed."""
    try:
        return version("triton")
    except PackageNotFoundError:
        return None


def check_triton() -> None:
    """Raise ImportError if Triton is not installed, or too old to divide exactly."""
    found = _triton()
    if found is None:
        raise ImportError("kernels need Triton, which comes with PyTorch for CUDA")
    if tuple(int(part) for part in found.split(".")[:2]) < LEAST_TRITON:
        least = ".".join(map(str, LEAST_TRITON))
        raise ImportError(f"Triton {found} divides inexactly near zero; kernels need {least} or newer")


class Kernel(Lines[Launcher]):
    """A program as one kernel: each vector is read once, and written once.

    Parameters
    ----------
    program : Program
    scalars : {"exact", "rounded", "float32"}, optional
        How real scalars enter. They are in device memory: other scalars need no new compilation.
    joined : AsBits, optional
        The operand that is stored as bits, if there is one.
    hardware : bool, optional
        Whether GPUs with instructions for 16-bit roundings and operations use these
        (`mcfsim.compile.triton_source`). The bits are the same.
    checked, packed : bool, optional
        As for `mcfsim.compile.loops.Loop`.
    epilogue : Epilogue, optional
        Processes the results in the same kernel; it takes no further numbers.
    many : bool, optional
        Whether one launch processes many sets of vectors: see `Table.fill`.

    Notes
    -----
    A GPU's NaN has all bits set, so a line does not rely on clean codes.
    """

    def __init__(
        self,
        program: Program,
        scalars: Scalars = "exact",
        joined: AsBits | None = None,
        *,
        hardware: bool = False,
        checked: bool = False,
        packed: bool = False,
        epilogue: Epilogue | None = None,
        many: bool = False,
    ) -> None:
        options = {"checked": checked, "packed": packed, "clean": False}
        super().__init__(program, scalars, joined, epilogue=epilogue, **options)
        self._hardware, self._many = hardware, many

    def with_numbers(self, numbers: Sequence[Any], ways: Sequence[ScalarEncoding] | None = None) -> Launcher:
        """Return the kernel bound to real scalars; see `Lines.with_numbers`.

        Raises
        ------
        ImportError
            If Triton is not installed, or too old.
        UnsupportedFormatError
            As `Lines.with_numbers` does.
        """
        check_triton()
        return super().with_numbers(numbers, ways)

    def source(self, numbers: Sequence[Any]) -> str:
        """Return the source compiled for real scalars; with GPU instructions if `hardware` was set."""
        sources: tuple[str, str | None] = self._lowered(self.ways(numbers))[1]
        return sources[1] or sources[0]

    def _bound(self, ways: tuple[ScalarEncoding, ...], numbers: tuple[float, ...]) -> Launcher:
        lowered, sources = self._lowered(ways)
        return Launcher(lowered, numbers, *sources)

    def _emitted(self, lowered: Lowered, about: str) -> tuple[str, str | None]:
        make = partial(kernel_source, lowered, about, many=self._many)
        return make(), make(hardware=True) if self._hardware else None


# -- launches that a graph repeats ------------------------------------------------------------------------
#: The place of one of a graph launch's kernels, and this kernel bound to the real scalars of the next launch.
Chosen = tuple[int, Launcher]


class GraphLaunch:
    """A launch of a kernel that a captured graph may repeat.

    After each launch its tables are empty. So a launch without a preceding `hand_over` changes nothing.

    Parameters
    ----------
    kernel : Kernel
        On many sets of vectors.
    numbers : sequence of number
        The real scalars of a launch, as `Kernel.with_numbers` takes them.
    rows : sequence of Rows
        The vectors that it processes.
    elements : int
        The number of elements that an instance processes.
    words : mapping of int to RandomWords
        Those of each source of the program.
    device : device
    """

    def __init__(
        self,
        kernel: Kernel,
        numbers: Sequence[Any],
        rows: Sequence[Rows],
        elements: int,
        words: SourceWords,
        device: torch.device,
    ) -> None:
        import torch

        self._kernel, self._rows, self._elements = kernel, rows, elements
        self._ways = list(dict.fromkeys((kernel.ways(numbers), kernel.general(numbers))))
        self._ready = [kernel.with_numbers(numbers, ways) for ways in self._ways]
        self._shared = [ready.shared(device, ready.streams(words)) for ready in self._ready]
        owners = [sent(torch.from_numpy(part.owners), device) for part in rows]
        self._parts = [
            [
                Rows(torch.zeros(part.table.size, dtype=torch.int64, device=device), kept, part.aligned)
                for part, kept in zip(rows, owners, strict=True)
            ]
            for _ in self._ways
        ]

    def fits(self, rows: Sequence[Rows], elements: int) -> bool:
        """Return whether it can process other rows: same sizes, alignment and division among instances."""
        return (len(rows), elements) == (len(self._rows), self._elements) and all(
            one.aligned == other.aligned
            and one.table.size == other.table.size
            and np.array_equal(one.owners, other.owners)
            for one, other in zip(rows, self._rows, strict=True)
        )

    def chosen(self, numbers: Sequence[Any]) -> Chosen | None:
        """Return the kernel that takes the given real scalars, bound to them; None if none does."""
        try:
            ways = self._kernel.ways(numbers)
            place = self._ways.index(ways) if ways in self._ways else len(self._ways) - 1
            return place, self._kernel.with_numbers(numbers, self._ways[place])
        except UnsupportedFormatError:
            return None

    def hand_over(self, chosen: Chosen, rows: Sequence[Rows], words: SourceWords) -> None:
        """Set the vectors, numbers and random words of the next launch."""
        import torch

        place, ready = chosen
        self._empty()
        parts = self._parts[place]
        shared = ready.shared(parts[0].table.device, ready.streams(words))
        for kept, given in zip(self._shared[place], shared, strict=True):
            kept.copy_(given)
        for part, given in zip(parts, rows, strict=True):
            part.table.copy_(sent(torch.from_numpy(given.table), part.table.device))

    def launch(self) -> None:
        """Process the vectors that were handed over."""
        for ready, parts, shared in zip(self._ready, self._parts, self._shared, strict=True):
            for part in parts:
                part.launch(ready, self._elements, shared)
        self._empty()

    def _empty(self) -> None:
        for parts in self._parts:
            for part in parts:
                part.table.zero_()
