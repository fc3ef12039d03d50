"""Rounding of blocks of carrier numbers to a format of any kind: the element text, as NumPy's calls."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.formats import Format
from mcfsim.kernels.carriers import FLOAT32, UnsupportedFormatError, holds, is_filled
from mcfsim.kernels.element.calls import Calls
from mcfsim.kernels.element.choices import foreseen
from mcfsim.kernels.element.element_rounding import is_kept, round_element
from mcfsim.kernels.element.floats import SHORT
from mcfsim.kernels.element.machine import BITS_OF, F32, F64, I32, I64, recorded
from mcfsim.kernels.element.on_numpy import DTYPES
from mcfsim.random import Words
from mcfsim.rounding import Rounding, Underflow
from mcfsim.storage.buffers import scratch

Block = NDArray[Any]

#: Bytes of an array that are worked on at once: what lies between fits into the second cache with it.
_AT_ONCE = 1 << 18
#: Elements of which it costs more to look whether they share memory than it saves.
_FEW = 1 << 11


class RoundingKernel:
    """Rounding of blocks from one carrier type to a format, once and exactly.

    Parameters
    ----------
    fmt : Format
        The target.
    rounding : Rounding
        Mode and policies. Here ``flush_inputs`` is ``flush_before``: what is rounded is the operand.
    carrier : dtype
        ``float32`` or ``float64``; every value of the format must be one of the carrier.

    Raises
    ------
    UnsupportedFormatError
        If the carrier does not hold the format.
    """

    def __init__(self, fmt: Format, rounding: Rounding, carrier: np.dtype[Any]) -> None:
        if not holds(carrier, fmt):
            raise UnsupportedFormatError(f"{fmt} has values that {carrier} cannot hold")
        self.fmt, self.rounding, self.carrier = fmt, rounding, carrier
        #: Whether every number of the carrier is a value of the format, and nothing is ever changed.
        self.exact = is_filled(carrier, fmt) and rounding.underflow is Underflow.GRADUAL
        self._type = F32 if carrier == FLOAT32 else F64
        self._word = I32 if rounding.random_bits <= SHORT else I64
        self._draw_bits = rounding.random_bits if rounding.stochastic else 0
        # At random nearly all blocks have subnormal numbers, a few, for which the calls are made anew.
        self._at_once = _AT_ONCE // carrier.itemsize * (2 if rounding.stochastic else 1)

    def __reduce__(self) -> tuple[Callable[..., RoundingKernel], tuple[Any, ...]]:
        return RoundingKernel, (self.fmt, self.rounding, self.carrier)

    def __call__(self, x: Block, out: Block, words: Words | None = None) -> None:
        """Round the one-dimensional contiguous ``x`` into ``out``, which may be ``x`` itself.

        Stochastic rounding takes one random word an element.
        """
        if self.exact:
            if out is not x:
                np.copyto(out, x)
            return
        given = [x]
        if self._draw_bits:
            if words is None or words.shape != x.shape:
                raise ValueError("stochastic rounding needs a random word for each element")
            given.append(self._draws(words, self._draw_bits))
        size = self._at_once
        if x.size <= _FEW:
            self._in_place(given, [out])
            return
        calls = self._in_place if np.may_share_memory(x, out) else self._calls
        if x.size <= size:
            calls(given, [out])
            return
        for start in range(0, x.size, size):
            part = slice(start, start + size)
            calls([array[part] for array in given], [out[part]])

    def keeps(self, x: Block) -> bool:
        """Return whether a block holds NaN and values of the format alone; the sign of zero is not judged."""
        if self.exact:
            return True
        look, kept_in = self._kept
        size = self._at_once
        for start in range(0, x.size, size):
            part = x[start : start + size]
            if look is not None and look(part.view(DTYPES[BITS_OF[self._type]])):
                continue
            kept = scratch("kept", part.size, np.bool_)
            kept_in([part], [kept])
            if not (kept.all() or (kept | np.isnan(part)).all()):
                return False
        return True

    @cached_property
    def _calls(self) -> Calls:
        return self._written(apart=True)

    @cached_property
    def _in_place(self) -> Calls:
        return self._written(apart=False)

    def _written(self, *, apart: bool) -> Calls:
        words = {"word": self._word} if self._draw_bits else {}
        line, results = recorded(
            lambda x, *word: round_element(x, self.fmt, self.rounding, *word), x=self._type, **words
        )
        return Calls(results, [value for value in line.values if value.verb == "input"], apart=apart)

    @cached_property
    def _kept(self) -> tuple[Callable[[Block], bool | None] | None, Calls]:
        """What tells if numbers are values: a look at all their codes, where that does, and at each."""
        line, results = recorded(lambda x: is_kept(x, self.fmt), x=self._type)
        look = foreseen(results[0])
        of_codes = look is not None and look[1].verb == "bits"
        return look[0] if look is not None and of_codes else None, Calls(results, line.values[:1])

    def _draws(self, words: Words, bits: int) -> Block:
        """Return the highest bits of random words, as integers."""
        size = 8 * words.dtype.itemsize
        if size < bits:
            raise ValueError(f"words of {size} bits are too short for {bits} random bits")
        highest = words >> words.dtype.type(size - bits) if size > bits else words
        draws = scratch("draws", words.size, DTYPES[self._word])
        np.copyto(draws, highest, casting="unsafe")
        return draws
