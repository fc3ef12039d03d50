"""Programs as kernels of Triton."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from mcfsim.compile.joined import AsBits
from mcfsim.compile.launch import Launcher
from mcfsim.compile.lines import Lines, Sequel
from mcfsim.compile.lowering import Lowered
from mcfsim.compile.program import Program
from mcfsim.compile.scalars import Entering
from mcfsim.compile.triton_source import kernel_source
from mcfsim.compile.vector_tables import TableLauncher
from mcfsim.kernels.real_numbers import Scalars

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


class Kernel(Lines):
    """A program as one kernel: each vector is read once, and written once.

    Parameters
    ----------
    program : Program
    scalars : {"exact", "rounded"}, optional
        How real scalars enter. They lie in the device's memory: nothing is compiled again for others.
    joined : AsBits, optional
        Which operand lies in two vectors, if one does.
    hardware : bool, optional
        Whether GPUs that have instructions for roundings and operations of 16 bits
        (`mcfsim.compile.hardware`) carry them out by these. The bits are the same.
    checked, packed : bool, optional
        As of `mcfsim.compile.loops.Loop`.
    sequel : Sequel, optional
        What is made of the results in the same kernel; it asks for no further numbers.

    Notes
    -----
    What a GPU makes of a NaN has all bits set, so a line does not count on a clean code.
    """

    #: Whether it works on many sets of vectors.
    _many = False

    def __init__(
        self,
        program: Program,
        scalars: Scalars = "exact",
        joined: AsBits | None = None,
        *,
        hardware: bool = False,
        checked: bool = False,
        packed: bool = False,
        sequel: Sequel | None = None,
    ) -> None:
        super().__init__(program, scalars, sequel, joined, checked=checked, packed=packed, clean=False)
        self._hardware = hardware
        self._by_hardware: dict[tuple[Entering, ...], str] = {}

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
        return Launcher(*self._ready(numbers))

    def source(self, numbers: Sequence[Any]) -> str:
        """Return the module that is compiled for some real scalars; by instructions, if that is asked for."""
        if not self._hardware:
            return super().source(numbers)
        return self._by_instructions(self._entering(numbers)[0])

    def _by_instructions(self, ways: tuple[Entering, ...]) -> str:
        if ways not in self._by_hardware:
            lowered, _ = self._lowered(ways)
            self._by_hardware[ways] = kernel_source(lowered, self._about(), many=self._many, hardware=True)
        return self._by_hardware[ways]

    def _ready(
        self, numbers: Sequence[Any], given: Sequence[Entering] | None = None
    ) -> tuple[str, Lowered, tuple[float, ...], str | None]:
        """Return the source, the line, its numbers, and the source by instructions, if that is asked for."""
        check_triton()
        ways, found = self._entering(numbers, given)
        lowered, text = self._lowered(ways)
        return text, lowered, tuple(found), self._by_instructions(ways) if self._hardware else None

    def _source(self, lowered: Lowered, about: str) -> str:
        return kernel_source(lowered, about, many=self._many)


class TableKernel(Kernel):
    """A program as one kernel that works on many sets of vectors in one launch; as `Kernel` otherwise."""

    _many = True

    def with_numbers(  # type: ignore[override]
        self, numbers: Sequence[Any], ways: Sequence[Entering] | None = None
    ) -> TableLauncher:
        """Return the kernel for some real scalars, in the order of `mcfsim.compile.scalars.uses`.

        Raises
        ------
        UnsupportedFormatError
            As `Kernel.with_scalars`; or if a scalar does not enter in the given way.
        """
        return TableLauncher(*self._ready(numbers, ways))
