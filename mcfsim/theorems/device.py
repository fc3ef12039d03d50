"""Judges that run on a device, which makes the operands and returns counts and open cases.

The line that the CPU runs as a loop (`mcfsim.theorems.compiled`) runs there as a kernel. It settles cases or
leaves them open, as the loop does. Its quotients show where an error may be the largest so far.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mcfsim.compile.kernel import Kernel, check_triton
from mcfsim.compile.launch import Launcher
from mcfsim.compile.triton_source import check_gpu
from mcfsim.formats import Format
from mcfsim.rounding import Rounding
from mcfsim.theorems.compiled import CaseCounts, Predicates, nearer_zero, recordable
from mcfsim.theorems.identity import identity_of
from mcfsim.theorems.operands import Block, Columns
from mcfsim.theorems.parts import Domain, Pairs, Part, Pieces, Sample
from mcfsim.theorems.statement import Theorem

if TYPE_CHECKING:
    import torch

#: With fewer cases, a loop on the CPU finishes before a kernel is compiled.
LEAST = 1 << 22
#: How many numbers of operands are on a device at once, and how many cases are a unit of work.
AT_ONCE, UNIT = 1 << 25, 1 << 28


def find_device(name: str, *, workers: int | None = 1, dask: str | None = None) -> Device | None:
    """Return the device with a given name, or None for the CPU.

    Parameters
    ----------
    name : str
        ``"cpu"``, ``"cuda"``, or ``"cuda:1"`` for the second of several GPUs.
    workers, dask : optional
        As for `mcfsim.storage.sweeps.sweep.Sweep`; only this process may work with a device.

    Raises
    ------
    TypeError, ValueError
        If the name is unknown, there is no such device, the device does not compute as IEEE 754 requires or
        is not a GPU that kernels are made for, or other workers are to use it.
    ImportError
        If PyTorch or Triton is not installed, or Triton is too old to divide exactly.
    """
    if not isinstance(name, str):
        raise TypeError(f"device must be a str, not {name!r}")
    if name == "cpu":
        return None
    kind, colon, number = name.partition(":")
    if kind != "cuda" or (colon and not (number.isascii() and number.isdigit())):
        raise ValueError(f"unknown device {name!r}; allowed: 'cpu', 'cuda', or 'cuda:N' for GPU number N")
    if workers not in (None, 1) or dask is not None:
        raise ValueError(f"one process works with device {name!r}: leave out workers and dask")
    if find_spec("torch") is None:
        raise ImportError(f"device {name!r} needs PyTorch: pip install 'mcfsim[torch]'")
    try:
        check_triton()
    except ImportError as error:
        raise ImportError(f"device {name!r} cannot be used: {error}; 'cpu' needs no Triton") from None
    from mcfsim.backends.torch_device import found_device

    found = found_device(name)
    check_gpu(found)
    return Device(found)


class Batch(NamedTuple):
    """A range of cases of one part, and the number of its first case in the domain."""

    first: int
    part: Part
    start: int
    stop: int

    @property
    def size(self) -> int:
        """Number of cases."""
        return self.stop - self.start


class Device:
    """A device whose kernels judge statements.

    Parameters
    ----------
    device : torch.device
        A GPU, or the CPU where Triton interprets kernels.
    least, at_once, unit : int, optional
        With fewer than `least` cases, the CPU judges; at most `at_once` numbers of operands are on the device
        at once; a unit of work has `unit` cases.

    Attributes
    ----------
    name : str
        Description of the device, for a journal.
    """

    def __init__(
        self, device: torch.device, *, least: int = LEAST, at_once: int = AT_ONCE, unit: int = UNIT
    ) -> None:
        import torch
        import triton

        self.device, self.least, self.at_once, self.unit = device, least, at_once, unit
        model = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
        self.name = f"{model}, Triton {triton.__version__}"

    def judge(self, theorem: Theorem, fmt: Format, rounding: Rounding, cases: int) -> DeviceJudge | None:
        """Return the judge of a statement here, or None if it has no line, or there are few cases."""
        # Stochastic rounding tries every path, and no line does that.
        if cases < self.least or rounding.stochastic or not identity_of(theorem):
            return None
        launcher = _launcher(Predicates(theorem, fmt, rounding, quotients=True))
        return None if launcher is None else DeviceJudge(self, theorem, launcher)


@lru_cache(maxsize=256)
def _launcher(predicates: Predicates) -> Launcher | None:
    program = recordable(predicates)
    if program is None:
        return None
    return Kernel(program, epilogue=predicates).with_numbers(program.reals())


class DeviceJudge:
    """A judge of one statement on a device.

    Parameters
    ----------
    device : Device
    theorem : Theorem
    launcher : Launcher
        Launches the kernel made of the statement's line.
    """

    def __init__(self, device: Device, theorem: Theorem, launcher: Launcher) -> None:
        self._device, self._theorem, self._launcher = device, theorem, launcher
        self._columns: dict[int, tuple[Block, torch.Tensor]] = {}

    def batches(self, domain: Domain, start: int, stop: int) -> Iterator[Batch]:
        """Yield a range of cases in batches, each as large as the device may hold at once."""
        size = max(1, self._device.at_once // max(1, self._theorem.components))
        for first, part, a, b in domain.ranges(start, stop):
            for begin in range(a, b, size):
                yield Batch(first + begin, part, begin, min(begin + size, b))

    def __call__(self, batch: Batch, extremes: tuple[float, float], wanted: int) -> CaseCounts:
        """Return the kernel's counts and open cases of a batch.

        Parameters
        ----------
        batch : Batch
        extremes : tuple of float
            The least and the largest quotient of error and reference so far, in binary64. A case is left open
            if its error may be beyond these, and beyond those of the rest of the batch.
        wanted : int
            How many of the first violations to return.
        """
        import torch

        operands, where = self._operands(batch.part, batch.start, batch.stop), self._device.device
        kinds = [torch.bool] * 3 + [torch.float64] * (self._theorem.claim.measured is not None)
        results = [torch.empty(batch.size, dtype=kind, device=where) for kind in kinds]
        self._launcher(operands, results)
        applicable, failing, left, *quotients = results
        if quotients:
            # Cases stay open if their errors may be beyond those so far and those of the other cases.
            found = quotients[0].aminmax()
            least, most = min(extremes[0], float(found.min)), max(extremes[1], float(found.max))
            beyond = (quotients[0] < nearer_zero(least)) | (quotients[0] > nearer_zero(most))
            left |= beyond
            applicable &= ~beyond
            failing &= ~beyond
        counts = torch.stack([x.sum() for x in (applicable, failing, left)]).tolist()
        places = left.nonzero().view(-1) if counts[2] else left.new_empty(0, dtype=torch.int64)
        return CaseCounts(
            cases=batch.size,
            applicable=counts[0],
            violations=counts[1],
            first=failing.nonzero().view(-1)[:wanted].tolist() if counts[1] and wanted else [],
            open=[x.cpu().numpy() for x in (places, *(x[places] for x in operands))],
        )

    def _operands(self, part: Part, start: int, stop: int) -> list[torch.Tensor]:
        """Return the operands of a range of a part's cases, one tensor per component."""
        import torch

        if isinstance(part, Sample | Pairs):  # the CPU draws or lists these
            blocks = zip(*(block for _, block in part.blocks(start, stop)), strict=True)
            return [torch.from_numpy(np.concatenate(x)).to(self._device.device) for x in blocks]
        if isinstance(part, Pieces):
            found = [self._operands(piece, a, b) for _, piece, a, b in part.ranges(start, stop)]
            return [torch.cat(column) for column in zip(*found, strict=True)]
        cases = torch.arange(start, stop, dtype=torch.int64, device=self._device.device)
        columns: list[torch.Tensor] = []
        for table in reversed(part.tables):  # the row of the last table changes with each case
            rows = len(table[0])
            columns = [*(x[cases % rows] for x in self._table(table)), *columns]
            cases = cases // rows
        return columns

    def _table(self, table: Columns) -> list[torch.Tensor]:
        """Return the columns of a table on the device."""
        import torch

        for x in table:
            if id(x) not in self._columns:
                self._columns[id(x)] = x, torch.tensor(x, device=self._device.device)
        return [self._columns[id(x)][1] for x in table]
