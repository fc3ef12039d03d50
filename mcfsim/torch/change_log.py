"""Logs of the codes that steps change: a bit for each, and the old code if requested."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mcfsim.compile.lines import Difference
from mcfsim.storage.buffers import scratch

#: The integers that hold the codes of tensors, by the bytes of an element.
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class ChangeLog:
    """The codes that steps change in consecutive elements of a parameter, since the last `clear`.

    Parameters
    ----------
    like : tensor
        The elements.
    before : bool
        Whether to keep the old codes of those that change.

    Attributes
    ----------
    size : int
        The number of elements.
    epilogue : Difference
        Makes what a step's line writes beside the parameter.
    """

    def __init__(self, like: torch.Tensor, *, before: bool) -> None:
        self.size, self.epilogue = like.numel(), Difference(bits=before)
        self._bits = torch.zeros(-(-self.size // 8), dtype=torch.uint8, device=like.device)
        self._kept: list[tuple[torch.Tensor, torch.Tensor]] = []

    @property
    def _before(self) -> bool:
        return self.epilogue.bits

    def clear(self) -> None:
        """Forget all changes."""
        self._bits.zero_()
        self._kept = []

    def apart(self, parameter: torch.Tensor) -> torch.Tensor:
        """Return a new vector in which a step of a parameter, a vector, stores where codes differ."""
        return torch.empty_like(parameter, dtype=INTEGERS[parameter.itemsize] if self._before else torch.bool)

    def note(self, codes: torch.Tensor, differing: torch.Tensor) -> None:
        """Note what a step has changed, given vectors of the new codes and of where they differ."""
        changed = differing if differing.dtype == torch.bool else differing != 0
        bits = packed_bits(changed)
        if self._before:
            fresh = unpacked_bits(bits & ~self._bits, self.size) if self._kept else changed
            places = places_of(fresh)
            if places.numel():
                new, apart = (x.index_select(0, places) for x in (codes.view(differing.dtype), differing))
                short = self.size <= torch.iinfo(torch.int32).max
                self._kept.append((places.int() if short else places, new ^ apart))
        self._bits |= bits

    def touched(self) -> torch.Tensor:
        """Return where a step has changed a code: a vector of bool."""
        return unpacked_bits(self._bits, self.size)

    def before(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the places of codes that steps have changed, ascending, and the codes before all steps."""
        if len(self._kept) > 1:
            places, codes = (torch.cat(parts) for parts in zip(*self._kept, strict=True))
            places, order = torch.sort(places)
            self._kept = [(places, codes[order])]
        if not self._kept:
            return self._bits[:0].long(), self._bits[:0]
        places, codes = self._kept[0]
        return places.long(), codes


@contextmanager
def noted(x: Any) -> Iterator[None]:
    """Log what a ``with`` block changes in the parameter of a `ParameterSlice` with a log, using a copy."""
    if x.log is None:
        yield
        return
    old = x.tensors["parameter"].detach().clone(memory_format=torch.contiguous_format).view(-1)
    yield
    new = x.tensors["parameter"].resolve_neg().contiguous().view(-1)
    own = INTEGERS[new.itemsize]
    apart = x.log.apart(new)
    differing = old.view(own) != new.view(own) if apart.dtype == torch.bool else old.view(own) ^ new.view(own)
    x.log.note(new, differing)


def places_of(mask: torch.Tensor) -> torch.Tensor:
    """Return where a vector of bool is true; on a CPU by NumPy, which takes a fifth of PyTorch's time."""
    return torch.from_numpy(mask.numpy().nonzero()[0]) if mask.is_cpu else mask.nonzero().view(-1)


def packed_bits(x: torch.Tensor) -> torch.Tensor:
    """Return a vector of bool as bits, the lowest of a byte first."""
    return torch.from_numpy(np.packbits(x.numpy(), bitorder="little")) if x.is_cpu else _packed_there(x)


def unpacked_bits(bits: torch.Tensor, size: int) -> torch.Tensor:
    """Return bits as a vector of bool."""
    if not bits.is_cpu:
        return _unpacked_there(bits, size)
    return torch.from_numpy(np.unpackbits(bits.numpy(), count=size, bitorder="little").view(np.bool_))


def _packed_there(x: torch.Tensor) -> torch.Tensor:
    rows = torch.nn.functional.pad(x.to(torch.uint8), (0, -x.numel() % 8)).view(-1, 8)
    places = torch.arange(8, dtype=torch.uint8, device=x.device)
    return torch.bitwise_left_shift(rows, places).sum(1, dtype=torch.uint8)


def _unpacked_there(bits: torch.Tensor, size: int) -> torch.Tensor:
    places = torch.arange(8, dtype=torch.uint8, device=bits.device)
    return (torch.bitwise_right_shift(bits[:, None], places) & 1).view(-1)[:size].bool()


def noting(
    work: Callable[[slice], object], codes: NDArray[Any], differing: NDArray[Any]
) -> Callable[[slice], None]:
    """Return a function that does the work on a block of a vector, and stores where its codes differ."""
    own = codes.view(f"u{codes.itemsize}")
    flags = differing.dtype == np.bool_
    compare, out = (np.not_equal, differing) if flags else (np.bitwise_xor, differing.view(own.dtype))

    def whole(block: slice) -> None:
        old = scratch("old codes", block.stop - block.start, own.dtype)
        np.copyto(old, own[block])
        work(block)
        compare(old, own[block], out=out[block])

    return whole
