"""Programs as kernels of Triton."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from mcfsim.compile.joined import Joined
from mcfsim.compile.launch import Launcher
from mcfsim.compile.lines import Lines
from mcfsim.compile.lowering import Lowered
from mcfsim.compile.program import Program
from mcfsim.compile.tables import TableLauncher
from mcfsim.compile.triton_source import kernel_source
from mcfsim.kernels.real_numbers import Scalars

#: Before this version division and square root flush subnormal numbers.
LEAST_TRITON = 3, 6


def check_triton() -> None:
    """Raise ImportError if Triton is not installed, or too old to divide exactly."""
    try:
        found = version("triton")
    except PackageNotFoundError:
        raise ImportError("kernels need Triton, which comes with PyTorch for CUDA") from None
    if tuple(int(part) for part in found.split(".")[:2]) < LEAST_TRITON:
        least = ".".join(map(str, LEAST_TRITON))
        raise ImportError(f"Triton {found} divides inexactly near zero; kernels need {least} or newer")


class Kernel(Lines):
    """A program as one kernel: each vector is read once, and written once.

    Parameters
    ----------
    program : Program
    scalars : {"exact", "rounded"}, optional
        How real scalars enter. They lie in the device's memory: nothing is compiled again for others.
    checked, packed : bool, optional
        As of `mcfsim.compile.loops.Loop`.

    Notes
    -----
    What a GPU makes of a NaN has all bits set, so a line does not count on a clean code.
    """

    def __init__(
        self, program: Program, scalars: Scalars = "exact", *, checked: bool = False, packed: bool = False
    ) -> None:
        super().__init__(program, scalars, None, checked=checked, packed=packed, clean=False)

    def with_scalars(self, scalars: Mapping[str, Any]) -> Launcher:
        """Return the kernel for some real scalars, given by name.

        Raises
        ------
        ImportError
            If Triton is not installed, or too old.
        UnsupportedFormatError
            If an operation of the program has no exact path in binary64, or a scalar leads beyond that.
        """
        return self.with_numbers(self._numbers(scalars))

    def with_numbers(self, numbers: Sequence[Any]) -> Launcher:
        """Return the kernel for some real scalars, in the order of `mcfsim.compile.scalars.uses`."""
        check_triton()
        ways, found = self._entering(numbers)
        lowered, text = self._lowered(ways)
        return Launcher(text, lowered, tuple(found))

    def _source(self, lowered: Lowered, about: str) -> str:
        return kernel_source(lowered, about)


class TableKernel(Lines):
    """A program as one kernel on codes that works on many sets of vectors in one launch.

    Parameters
    ----------
    program, scalars
        As of `Kernel`.
    joined : Joined, optional
        Which operand lies in two vectors, if one does.
    """

    def __init__(self, program: Program, scalars: Scalars = "exact", joined: Joined | None = None) -> None:
        super().__init__(program, scalars, None, joined, packed=True, clean=False)

    def with_numbers(self, numbers: Sequence[Any]) -> TableLauncher:
        """Return the kernel for some real scalars, as `Kernel.with_numbers` does."""
        check_triton()
        ways, found = self._entering(numbers)
        lowered, text = self._lowered(ways)
        return TableLauncher(text, lowered, tuple(found))

    def _source(self, lowered: Lowered, about: str) -> str:
        return kernel_source(lowered, about, many=True)
