"""Programs as kernels of Triton, launched on tensors of a GPU, or interpreted on those of a CPU."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from mcfsim.compile.lines import Lines
from mcfsim.compile.lowering import Lowered
from mcfsim.compile.program import Program
from mcfsim.compile.sources import imported
from mcfsim.compile.triton_source import kernel_source
from mcfsim.kernels.element.machine import F32, F64
from mcfsim.kernels.real_numbers import Scalars
from mcfsim.random import RandomWords

if TYPE_CHECKING:
    import torch

#: Before this version division and square root flush subnormal numbers.
LEAST_TRITON = 3, 6
#: What keeps a compiler from fusing, and from flushing subnormal numbers.
EXACT = {"enable_fp_fusion": False, "enable_reflect_ftz": False}
#: Elements of an instance, and warps that share them; and elements at once where Triton interprets.
ELEMENTS, WARPS, INTERPRETED = 1024, 4, 1 << 16


def check_triton() -> None:
    """Raise ImportError if Triton is not installed, or too old to divide exactly."""
    try:
        found = version("triton")
    except PackageNotFoundError:
        raise ImportError("kernels need Triton, which comes with PyTorch for CUDA") from None
    if tuple(int(part) for part in found.split(".")[:2]) < LEAST_TRITON:
        least = ".".join(map(str, LEAST_TRITON))
        raise ImportError(f"Triton {found} divides inexactly near zero; kernels need {least} or newer")


@dataclass(frozen=True)
class Launcher:
    """A kernel with its real scalars put in.

    Attributes
    ----------
    source : str
        Of the module that was compiled.
    lowered : Lowered
        What it does for each element.
    """

    source: str
    lowered: Lowered
    _numbers: tuple[float, ...]

    def __call__(
        self,
        operands: Sequence[torch.Tensor],
        results: Sequence[torch.Tensor],
        start: int = 0,
        words: Mapping[int, RandomWords] | None = None,
    ) -> bool:
        """Fill results from operands, contiguous vectors of one length on one device.

        Parameters
        ----------
        operands, results : sequence of tensor
            In the carriers; or codes, as tensors of any dtype of as many bytes. A result may be an operand.
        start : int, optional
            The index of the first element, where random words are drawn.
        words : mapping of int to RandomWords, optional
            Of each source of the program.

        Returns
        -------
        bool
            Whether all operands are values of their formats, if that was to be looked at; else true.

        Raises
        ------
        TypeError, ValueError
            If a tensor is of another dtype, size or device, or is not contiguous; if a source has no words,
            or words are of several seeds; or if the tensors are a CPU's, and Triton does not interpret.
            Nothing was written then.
        """
        import torch

        given = [*operands, *results]
        values = [*self.lowered.operands, *self.lowered.results]
        if len(given) != len(values):
            raise ValueError(f"the kernel takes {len(values)} vectors, not {len(given)}")
        vectors = [self._checked(x, value, given[0]) for x, value in zip(given, values, strict=True)]
        size, device, interpreted = given[0].numel(), given[0].device, _interprets()
        if device.type == "cpu" and not interpreted:
            raise ValueError(
                "kernels take tensors of a GPU; on a CPU Triton interprets them if TRITON_INTERPRET=1"
            )
        key = self._key(words or {})
        if not size:
            return True
        elements = INTERPRETED if interpreted else ELEMENTS
        grid = (-(-size // elements),)
        found = torch.zeros(1, dtype=torch.int32, device=device)
        pairs = list(zip(self.lowered.numbers, self._numbers, strict=True))
        more = [found] if self.lowered.strange is not None else []
        for kind, dtype in ((F32, torch.float32), (F64, torch.float64)):
            if numbers := [number for value, number in pairs if value.type is kind]:
                more.append(torch.tensor(numbers, dtype=dtype, device=device))
        if key:
            more.append(torch.tensor(key, dtype=torch.int64, device=device))
        kernel = function(self.source, interpreted=interpreted)
        kernel[grid](*vectors, *more, start, size, ELEMENTS=elements, num_warps=WARPS, **EXACT)
        return not (self.lowered.strange is not None and bool(found.item()))

    def _checked(self, x: torch.Tensor, value: Any, first: torch.Tensor) -> torch.Tensor:
        """Return a tensor as the kernel takes it."""
        import torch

        wanted = self.lowered.dtype(value)
        if x.ndim != 1 or not x.is_contiguous():
            raise ValueError(f"a kernel takes contiguous vectors, not a tensor of shape {tuple(x.shape)}")
        if x.numel() != first.numel() or x.device != first.device:
            raise ValueError(
                f"vectors have {first.numel()} elements on {first.device}, and {x.numel()} on {x.device}"
            )
        if value in self.lowered.packed:
            if x.element_size() != wanted.itemsize:
                raise TypeError(f"codes of {wanted.itemsize} bytes cannot lie in a tensor of {x.dtype}")
            return x.view({1: torch.int8, 2: torch.int16}[wanted.itemsize])
        if str(x.dtype) != f"torch.{wanted}":
            raise TypeError(f"the kernel takes a tensor of {wanted}, not of {x.dtype}")
        return x

    def _key(self, words: Mapping[int, RandomWords]) -> list[int]:
        """Return the seed's halves, the step, and the stream of each operation that draws, if any does."""
        if missing := sorted({draw.source for draw in self.lowered.draws} - words.keys()):
            raise ValueError(f"the kernel draws random words: words must have those of source {missing[0]}")
        streams = [words[draw.source].of(draw.operation) for draw in self.lowered.draws]
        if len({(x.seed, x.step) for x in streams}) > 1:
            raise ValueError("all random words of a kernel are of one seed and step")
        return [*streams[0].key, streams[0].step, *(x.stream for x in streams)] if streams else []


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


@lru_cache(maxsize=256)
def function(text: str, *, interpreted: bool) -> Any:
    """Return the kernel of a generated module, to be interpreted by NumPy or not, as Triton is set now."""
    return imported(text).kernel


def _interprets() -> bool:
    """Return whether Triton interprets kernels by NumPy, as it does where TRITON_INTERPRET is set."""
    return os.environ.get("TRITON_INTERPRET", "0") not in ("", "0")
