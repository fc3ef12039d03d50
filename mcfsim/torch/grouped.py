"""Moments whose numbers share scales, as two tensors each: codes, one a number, and scales, one a group."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from mcfsim.backends.factory import arithmetic
from mcfsim.backends.strung_tensors import TORCH_DTYPES, as_array, torch_dtype
from mcfsim.codec import encode
from mcfsim.compile.torch_loops import AT_ONCE, quotients
from mcfsim.formats import Format
from mcfsim.kernels.carriers import FLOAT32, carrier_of
from mcfsim.optim.edges import Edges
from mcfsim.optim.groups import Groups, text_of, why_not_packed
from mcfsim.optim.stored import FLOAT32 as SINGLE
from mcfsim.rounding import Overflow, Rounding
from mcfsim.scaled import ScaledFormat, ScaleRule
from mcfsim.scaled.quantisers import Quantiser
from mcfsim.torch.local import spread_beside

#: What follows a moment's name in that of its scales.
SCALES = "_scales"
#: The tensors of NumPy's arrays. Processes exchange both, as they do not all 8-bit floats.
_HELD = {np.dtype(np.uint8): torch.uint8, np.dtype(np.float32): torch.float32}
_SATURATING = Rounding(overflow=Overflow.SATURATE)


@dataclass(frozen=True)
class Grouped:
    """How a moment lies in tensors, group by group from its first element on.

    Parameters
    ----------
    kept : ScaledFormat or Quantiser
        Of codes and scales. A group that ends the tensor may be short.
    format : Format
        In which steps compute the numbers.
    """

    kept: ScaledFormat | Quantiser
    format: Format

    @classmethod
    def of(cls, kept: ScaledFormat | Quantiser | None, fmt: Format) -> Grouped | None:
        """Return how a moment lies, or None if it lies in tensors as the numbers of its format.

        So it does where groups do not stand each for itself, codes are longer than a byte or of no format.
        """
        if kept is None or carrier_of(fmt) != FLOAT32:
            return None
        if text_of(kept, fmt) is None and why_not_packed(kept):
            return None
        return cls(kept, fmt) if all(form in _HELD for form in Groups.forms(kept)) else None

    @property
    def dtypes(self) -> tuple[torch.dtype, torch.dtype]:
        """Of codes and scales."""
        codes, scales = Groups.forms(self.kept)
        return _HELD[codes], _HELD[scales]

    @property
    def size(self) -> int:
        """Elements of a group."""
        assert isinstance(self.kept.block, int)
        return self.kept.block

    @property
    def shared(self) -> int:
        """How many numbers a group has."""
        return Groups.shared(self.kept)

    @property
    def zero(self) -> int:
        """The code of zero."""
        return self.kept.zero if isinstance(self.kept, Quantiser) else 0

    def zero_scales(self, whole: torch.Tensor) -> torch.Tensor:
        """Return what the groups of a parameter have that are zero; see `zero_scales`."""
        return zero_scales(whole, self.size, self.dtypes[1], self.shared)

    def vector(self, codes: torch.Tensor, scales: torch.Tensor) -> Groups:
        """Return contiguous tensors of the CPU as a vector in the same memory."""
        edges = Edges([slice(0, codes.numel())], self.size)
        own, shared = as_array(codes).reshape(-1), as_array(scales)
        shared = shared.reshape(-1) if self.shared == 1 else shared.reshape(-1, self.shared)
        return Groups.whole(own, shared, self.kept, self.format, edges)

    @property
    def _scaled(self) -> ScaledFormat:
        assert isinstance(self.kept, ScaledFormat)
        return self.kept

    def numbers(self, codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        """Return the numbers as a vector in the format's dtype, on the device of codes and scales."""
        found = torch.empty(codes.numel(), dtype=torch_dtype(self.format), device=codes.device)
        if not self._there:
            found.copy_(torch.from_numpy(self.vector(codes.cpu(), scales.cpu()).numbers()))
            return found
        ar = arithmetic(self.format, backend="torch", device=codes.device)
        own = codes.reshape(-1).view(self._dtype)
        for part, groups in self._parts(codes.numel()):
            exact = own[part].to(torch.float64)
            exact *= self._spread(scales.reshape(-1)[groups], exact)
            found[part] = ar.round(exact)
        return found

    def keep(self, numbers: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor) -> None:
        """Quantise a vector of numbers of the format into codes and scales of its device.

        Elements are rounded to nearest even, and saturate. A group with an infinity or NaN becomes NaN.
        """
        numbers = numbers.to(torch.float32)
        if not self._there:
            made = codes.cpu().clone(), scales.cpu().clone()
            self.vector(*made).keep(as_array(numbers.cpu()))
            for x, y in zip((codes, scales), made, strict=True):
                x.copy_(y)
            return
        found = [torch.empty(x.numel(), dtype=x.dtype, device=x.device) for x in (codes, scales)]
        nan = torch.full_like(found[0][:1], int(encode(math.nan, self._scaled.element)))  # of any NaN
        for part, groups in self._parts(numbers.numel()):
            x = numbers[part].to(torch.float64)
            rows = torch.nn.functional.pad(x, (0, -x.numel() % self.size)).view(-1, self.size)
            largest = rows.abs().amax(1)
            largest = torch.where(largest.isfinite(), largest, torch.nan)
            whole = torch.full_like(largest, float(self._scaled.element.max))
            by = quotients(largest, whole, self._scaled.scale, _SATURATING)
            made = quotients(x, self._spread(by, x).to(torch.float64), self._scaled.element, _SATURATING)
            found[0][part] = torch.where(made.isnan(), nan, made.to(self._dtype).view(torch.uint8))
            found[1][groups] = by
        for y, z in zip((codes, scales), found, strict=True):
            y.copy_(z.view(y.shape))

    @cached_property
    def _there(self) -> bool:
        """Whether PyTorch's operations make codes and scales; otherwise NumPy's do."""
        if isinstance(self.kept, Quantiser):
            return False
        plain = self.kept.rule is ScaleRule.ABSMAX and self.kept.scale == SINGLE
        return plain and self._dtype is not None

    @cached_property
    def _dtype(self) -> Any:
        """PyTorch's dtype of the elements, if it has one."""
        found = [dtype for dtype, fmt in TORCH_DTYPES.items() if fmt == self._scaled.element]
        return found[0] if found else None

    def _parts(self, size: int) -> Iterator[tuple[slice, slice]]:
        """Yield whole groups of so many elements: the elements, and the groups."""
        count, together = -(-size // self.size), max(1, AT_ONCE // self.size)
        for first in range(0, count, together):
            groups = slice(first, min(first + together, count))
            yield slice(first * self.size, min(groups.stop * self.size, size)), groups

    def _spread(self, scales: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Return the scale of each of some elements, which begin with a group."""
        return scales.repeat_interleave(self.size)[: x.numel()]


def zero_scales(whole: torch.Tensor, size: int, dtype: torch.dtype, shared: int = 1) -> torch.Tensor:
    """Return a zero for each group of so many elements of a parameter, spread as the parameter is.

    Their shape is that of the parameter, if its rows have whole groups, and else that of a vector; where a
    group has several numbers, with an axis more for these.

    Raises
    ------
    ValueError
        If a process would have the scales of other groups than its elements are in.
    """
    shape = whole.shape
    rows = shape and shape[-1] and not shape[-1] % size
    groups = (*shape[:-1], shape[-1] // size) if rows else (-(-whole.numel() // size),)
    return spread_beside(whole, groups, size, dtype, shared)
