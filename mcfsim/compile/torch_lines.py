"""Programs on tensors as they lie, by PyTorch's operations: where no kernel can be launched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from mcfsim.compile.joined import AsBits
from mcfsim.compile.launch import Ready
from mcfsim.compile.lines import Lines
from mcfsim.compile.lowering import Lowered
from mcfsim.compile.program import Program
from mcfsim.compile.scalars import Entering
from mcfsim.compile.torch_calls import TorchCalls, constant, drawn, scalar
from mcfsim.compile.torch_loops import AT_ONCE
from mcfsim.kernels.element.machine import I32
from mcfsim.kernels.real_numbers import Scalars
from mcfsim.random import RandomWords


@dataclass(frozen=True)
class TensorFiller(Ready):
    """A line with its real scalars put in, carried out by PyTorch's operations."""

    calls: TorchCalls = field(kw_only=True)

    def __call__(
        self,
        operands: Sequence[torch.Tensor],
        results: Sequence[torch.Tensor],
        start: int = 0,
        words: Mapping[int, RandomWords] | None = None,
    ) -> None:
        """Fill results from operands, as `mcfsim.compile.launch.Launcher` does, which says what it raises."""
        vectors, streams = self.checked(operands, results), self.streams(words)
        taken, filled = vectors[: len(operands)], vectors[len(operands) :]
        device, size = vectors[0].device, vectors[0].numel()
        pairs = zip(self._numbers, self.lowered.numbers, strict=True)
        numbers = [scalar(number, value.type, device) for number, value in pairs]
        for first in range(0, size, AT_ONCE):
            part = slice(first, min(first + AT_ONCE, size))
            given = [
                self._read(x[part], value) for x, value in zip(taken, self.lowered.operands, strict=True)
            ]
            for stream, bits in zip(streams, self.lowered.draws.values(), strict=True):
                given.append(drawn(stream, start + first, part.stop - first, bits, device))
            # Copies, for a result may be an operand, and lie where another one is read; of integers the
            # lower bits.
            made = self.calls([*given, *numbers])
            kept = [y.to(x.dtype, copy=True) for x, y in zip(filled, made, strict=True)]
            for x, y in zip(filled, kept, strict=True):
                x[part].copy_(y)

    def _read(self, x: torch.Tensor, value: Any) -> torch.Tensor:
        """Return a stretch of a vector as the line takes it."""
        dtype = self.lowered.packed.get(value)
        if dtype is None:
            return x
        return torch.bitwise_and(x.to(torch.int32), constant(2 ** (8 * dtype.itemsize) - 1, I32, x.device))


class TensorLines(Lines):
    """A program on codes, carried out by PyTorch's operations.

    Parameters
    ----------
    program, scalars, joined
        As of `mcfsim.compile.kernel.TableKernel`.
    """

    def __init__(self, program: Program, scalars: Scalars = "exact", joined: AsBits | None = None) -> None:
        super().__init__(program, scalars, None, joined, packed=True, clean=False)
        self._calls: dict[tuple[Entering, ...], TorchCalls] = {}

    def with_numbers(self, numbers: Sequence[Any]) -> TensorFiller:
        """Return the line for some real scalars, as `mcfsim.compile.kernel.TableKernel.with_numbers` does."""
        ways, found = self._entering(numbers)
        lowered, _ = self._lowered(ways)
        if ways not in self._calls:
            self._calls[ways] = TorchCalls(
                lowered.results, [*lowered.operands, *lowered.words, *lowered.numbers]
            )
        return TensorFiller("", lowered, tuple(found), calls=self._calls[ways])

    def _source(self, lowered: Lowered, about: str) -> str:
        return ""
