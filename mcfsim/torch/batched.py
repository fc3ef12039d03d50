"""Steps of many small tensors of the CPU, strung together: what a step costs for each, it costs once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from mcfsim.optim.declaration import Declaration
from mcfsim.storage.buffers import BLOCK
from mcfsim.torch.moved import Moved
from mcfsim.torch.work import StepRunner

#: Elements of a tensor that is small: to copy them, there and back, takes less than a step of its own.
SMALL = BLOCK // 8


class Batched:
    """Another carrier's steps, in which small tensors that follow one another are one.

    Parameters
    ----------
    carrier : Carrier
        Its steps.
    """

    def __init__(self, carrier: StepRunner) -> None:
        self.stores = carrier.stores
        self._carrier = carrier

    def move(self, moved: Sequence[Moved], hyper: Declaration, count: int, rate: float) -> None:
        """Make step number `count` of these parameters."""
        whole: list[Moved] = []
        copies: list[tuple[torch.Tensor, list[torch.Tensor]]] = []
        for batch in self._batches(moved):
            if len(batch) == 1:
                whole += batch
                continue
            vectors = {name: [x.tensors[name].view(-1) for x in batch] for name in batch[0].tensors}
            joined = {name: torch.cat(parts) for name, parts in vectors.items()}
            gradient = torch.cat([x.gradient.detach().view(-1) for x in batch])
            whole.append(Moved(joined, gradient, batch[0].first))
            copies += ((joined[name], parts) for name, parts in vectors.items())
        self._carrier.move(whole, hyper, count, rate)
        for joint, parts in copies:
            torch._foreach_copy_(parts, joint.split([part.numel() for part in parts]))

    def asked(
        self, moved: Sequence[Moved], hyper: Declaration, count: int, rate: float
    ) -> list[torch.Tensor]:
        """Return the update that step number `count` asks for, for each parameter a vector of float64."""
        return self._carrier.asked(moved, hyper, count, rate)

    def _batches(self, moved: Sequence[Moved]) -> Iterator[list[Moved]]:
        """Yield parameters, in their order, those together that can be one; each batch fits a block."""
        batch: list[Moved] = []
        open_ = False
        for x in moved:
            small = self._is_small(x)
            if batch and not (open_ and small and _follows(batch, x)):
                yield batch
                batch = []
            batch.append(x)
            open_ = small
        if batch:
            yield batch

    def _is_small(self, x: Moved) -> bool:
        """Return whether a parameter is small, and each tensor of it has a number for each element."""
        size = x.gradient.numel()
        return (
            size <= SMALL
            and not self.stores.scaled
            and all(
                y.numel() == size and y.is_contiguous() and not y.is_neg()
                for y in (x.gradient, *x.tensors.values())
            )
        )


def _follows(batch: Sequence[Moved], x: Moved) -> bool:
    """Return whether a parameter's elements are numbered on from a batch's, and have room in a block."""
    first, last = batch[0], batch[-1]
    end = last.first + last.gradient.numel()
    room = end + x.gradient.numel() - first.first <= BLOCK
    return bool(x.gradient.dtype == last.gradient.dtype and x.first == end and room)
