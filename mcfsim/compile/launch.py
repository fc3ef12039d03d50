"""Lines launched as kernels: on vectors of a GPU, or interpreted on those of a CPU."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from mcfsim.compile.hardware import check_gpu
from mcfsim.compile.hardware_trials import InstructionError, check_instructions
from mcfsim.compile.lowering import Lowered
from mcfsim.compile.sources import imported
from mcfsim.compile.triton_source import ALIGNMENT
from mcfsim.kernels.element.machine import F32, F64, TRUTH, Type, Value
from mcfsim.random import RandomWords, counters, word_bits

if TYPE_CHECKING:
    import torch

#: What keeps a compiler from fusing, and from flushing subnormal numbers.
EXACT = {"enable_fp_fusion": False, "enable_reflect_ftz": False}
#: Elements of an instance, and warps that share them; and elements at once where Triton interprets.
ELEMENTS, WARPS, INTERPRETED = 1024, 4, 1 << 18


@dataclass(frozen=True)
class Ready:
    """A line with its real scalars put in, to be carried out on tensors.

    Attributes
    ----------
    source : str
        Of the module that was compiled; empty if none was.
    lowered : Lowered
        What is done for each element.
    by_hardware : str, optional
        The same by instructions of GPUs, where these have them.
    """

    source: str
    lowered: Lowered
    _numbers: tuple[float, ...]
    by_hardware: str | None = None

    def checked(
        self, operands: Sequence[torch.Tensor], results: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        """Return vectors as the line takes them; raise where one is of another dtype, size or device."""
        given, values = [*operands, *results], [*self.lowered.operands, *self.lowered.results]
        if len(given) != len(values):
            raise ValueError(f"the kernel takes {len(values)} vectors, not {len(given)}")
        return [self._checked(x, value, given[0]) for x, value in zip(given, values, strict=True)]

    def _checked(self, x: torch.Tensor, value: Value, first: torch.Tensor) -> torch.Tensor:
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
        return x.view(torch.int8) if value.type is TRUTH else x

    def streams(self, words: Mapping[int, RandomWords] | None) -> list[RandomWords]:
        """Return the stream of each operation that draws; raise if words of a source are missing."""
        words = words or {}
        if missing := sorted({draw.source for draw in self.lowered.draws} - words.keys()):
            raise ValueError(f"the kernel draws random words: words must have those of source {missing[0]}")
        streams = [words[draw.source].of(draw.operation) for draw in self.lowered.draws]
        if len({(x.seed, x.step) for x in streams}) > 1:
            raise ValueError("all random words of a kernel are of one seed and step")
        return streams

    def numbers(self, kind: Type) -> list[float]:
        """Return the numbers of a type that are the same for all elements."""
        pairs = zip(self.lowered.numbers, self._numbers, strict=True)
        return [number for value, number in pairs if value.type is kind]


@dataclass(frozen=True)
class Launcher(Ready):
    """A kernel with its real scalars put in."""

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
            In the carriers; or codes, as tensors of any dtype of as many bytes; or, of truth values that a
            sequel makes, tensors of bool. A result may be an operand.
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

        Warns
        -----
        RuntimeWarning
            If instructions of the GPU are asked for, and do not make what they must: the text does, then.
        """
        import torch

        vectors, streams = self.checked(operands, results), self.streams(words)
        device, size = vectors[0].device, vectors[0].numel()
        elements = elements_on(device, size)
        for bits in self.lowered.draws.values():
            counters(start, size, word_bits(bits))  # which raises where there are none
        if not size:
            return True
        shared = shared_by_all(self, device, streams)
        kernel = function(text_on(self, device), interpreted=device.type == "cpu")
        whole = size - size % ALIGNMENT  # vectors of which are read and written many bytes at a time
        for part in (slice(0, whole), slice(whole, size)):
            if count := part.stop - part.start:
                given = (x[part] for x in vectors)
                grid, fixed = (-(-count // elements),), {"ELEMENTS": elements, "num_warps": WARPS, **EXACT}
                with torch.cuda.device_of(vectors[0]):  # where Triton launches; of a CPU's it does nothing
                    kernel[grid](*given, *shared, start + part.start, count, **fixed)
        return not (self.lowered.strange is not None and bool(shared[0].item()))


def text_on(ready: Ready, device: torch.device) -> str:
    """Return the module for a device: by its own instructions if that is asked for, and it has them.

    Warns
    -----
    RuntimeWarning
        If these do not make what they must: then the device goes without.
    """
    if ready.by_hardware is None or not _has_good_instructions(device):
        return ready.source
    return ready.by_hardware


@lru_cache(maxsize=64)
def _has_good_instructions(device: torch.device) -> bool:
    """Return whether a device has the instructions, and they make of hard operands what they must."""
    try:
        check_gpu(device)
    except ValueError:
        return False
    try:
        check_instructions(device, Launcher)
    except InstructionError as error:  # what else goes wrong is no matter of instructions
        warnings.warn(f"{error}; kernels on it do without such instructions", RuntimeWarning, stacklevel=4)
        return False
    return True


def elements_on(device: torch.device, largest: int) -> int:
    """Return how many elements an instance works on, on a device, of vectors that have no more than so many.

    Raises
    ------
    ValueError
        If it is a CPU, and Triton does not interpret.
    """
    if device.type != "cpu":
        return ELEMENTS
    if not interprets():
        raise ValueError(
            "kernels take tensors of a GPU; on a CPU Triton interprets them if TRITON_INTERPRET=1"
        )
    return min(INTERPRETED, 1 << max(largest - 1, 0).bit_length())


def shared_by_all(ready: Ready, device: torch.device, streams: Sequence[RandomWords]) -> list[torch.Tensor]:
    """Return what all elements share, in the device's memory: what is found, numbers, and the random key."""
    import torch

    shared = []
    if ready.lowered.strange is not None:
        shared.append(torch.zeros(1, dtype=torch.int32, device=device))
    for kind, dtype in ((F32, torch.float32), (F64, torch.float64)):
        if numbers := ready.numbers(kind):
            shared.append(sent(torch.tensor(numbers, dtype=dtype), device))
    if streams:
        key = [*streams[0].key, streams[0].step, *(x.place for x in streams)]
        shared.append(sent(torch.tensor(key, dtype=torch.int64), device))
    return shared


def sent(x: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a tensor of the CPU on a device; a GPU takes it when it comes to it, and nobody waits."""
    if device.type != "cuda":
        return x.to(device)
    return x.pin_memory().to(device, non_blocking=True)


@lru_cache(maxsize=256)
def function(text: str, *, interpreted: bool) -> Any:
    """Return the kernel of a generated module, to be interpreted by NumPy or not, as Triton is set now."""
    return imported(text).kernel


def interprets() -> bool:
    """Return whether Triton interprets kernels by NumPy, as it does where TRITON_INTERPRET is set."""
    return os.environ.get("TRITON_INTERPRET", "0") not in ("", "0")
