"""Groups of numbers that share others, written and read by a text: in compiled loops, or by NumPy."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cached_property, lru_cache
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.checks.processor import check_processor
from mcfsim.compile.choice import is_available
from mcfsim.compile.group_source import group_source
from mcfsim.compile.group_text import GroupLine, GroupText, Warps
from mcfsim.compile.places import Places
from mcfsim.compile.sources import imported
from mcfsim.kernels.element.on_numpy import run

Array = NDArray[Any]

#: Elements after which it pays to load compiled loops, and after which to compile them; on a slow machine.
_WORTH_LOADING, _WORTH_COMPILING = 1 << 22, 1 << 25


class GroupLoops:
    """What writes and reads groups by a text.

    Groups lie in vectors of elements between bounds; what they have lies in an array with a row a group.
    """

    def __init__(self, text: GroupText) -> None:
        self.text = text
        self._line = GroupLine(text)
        self._places = None if text.places is None else Places(text.places)
        self._lock, self._done = Lock(), 0

    def encode(self, x: Array, bounds: Array, codes: Array, shared: Array) -> None:
        """Write codes, and what groups have, of float32 numbers.

        Parameters
        ----------
        x : array of float32, shape (elements,)
            Contiguous.
        bounds : array of int64, shape (groups + 1,)
            Where groups begin, and where the last one ends; none is empty.
        codes : array of uint8, shape (elements,)
        shared : array of float32, shape (groups,) or (groups, shared)
        """
        check_processor()
        if self._pays(x.size):
            self._loops[0](np.ascontiguousarray(x, np.float32), bounds, codes, self._rows(shared))
        elif x.size:
            self._encode(x, bounds, codes, self._rows(shared))

    def decode(self, codes: Array, shared: Array, bounds: Array, out: Array) -> None:
        """Write the numbers of codes into an array of float32; arguments as of `encode`."""
        check_processor()
        if self._pays(codes.size):
            self._loops[1](codes, self._rows(shared), bounds, out)
        elif codes.size:
            self._decode(codes, self._rows(shared), bounds, out)

    def source(self) -> str:
        """Return the module that is compiled."""
        return group_source(self._line, self._places)

    def _rows(self, shared: Array) -> Array:
        return shared.reshape(-1, self.text.shared)

    def _encode(self, x: Array, bounds: Array, codes: Array, shared: Array) -> None:
        own = self._line
        (measured,) = run(own.line, (own.measured,), x=x)
        found = {"greatest": np.maximum.reduceat(measured, bounds[:-1])}
        if self.text.warps is not None:
            found["least"] = self._least(np.abs(x), bounds, self.text.warps)
        for place, column in enumerate(run(own.line, own.made, **found)):
            shared[:, place] = column
        (made,) = run(own.line, (own.encoded,), x=x, **self._spread(shared, bounds))
        codes[...] = made if self._places is None else self._places.find(made)

    def _least(self, magnitudes: Array, bounds: Array, warps: Warps) -> Array:
        """Return what the threads find of each group."""
        lengths = np.diff(bounds)
        inside = np.arange(warps.block) < lengths[:, np.newaxis]
        rows = np.full(inside.shape, warps.beyond, np.float32)
        rows[inside] = magnitudes
        of_warps = self._halved(rows.reshape(len(rows), -1, warps.width))
        last = np.full((len(rows), warps.width), warps.idle, np.float32)
        last[:, : of_warps.shape[1]] = of_warps
        return self._halved(last)

    def _halved(self, x: Array) -> Array:
        own = self._line
        while x.shape[-1] > 1:
            least, other = np.split(x, 2, axis=-1)
            (x,) = run(own.line, own.lesser, least=least, other=other)
        return x[..., 0]

    def _decode(self, codes: Array, shared: Array, bounds: Array, out: Array) -> None:
        own, table = self._line, self.text.table
        taken = codes.astype(np.int32) if table is None else table[codes]
        (out[...],) = run(own.line, (own.decoded,), code=taken, **self._spread(shared, bounds))

    def _spread(self, shared: Array, bounds: Array) -> dict[str, Array]:
        """Return what groups have, for each of their elements."""
        lengths = np.diff(bounds)
        return {f"shared{place}": np.repeat(column, lengths) for place, column in enumerate(shared.T)}

    def _pays(self, size: int) -> bool:
        """Return whether the loops are compiled, or to be compiled now."""
        self._done += size
        if "_loops" in self.__dict__:
            return True
        if self._done < _WORTH_LOADING or not is_available():
            return False
        return "numba" in sys.modules or self._done >= _WORTH_COMPILING

    @cached_property
    def _loops(self) -> tuple[Callable[..., None], Callable[..., None]]:
        """Return the compiled functions, called once on no groups, at which Numba compiles them."""
        with self._lock:  # lest threads compile them twice
            module: Any = imported(self.source())
            bounds, shared = np.zeros(1, np.int64), np.empty((0, self.text.shared), np.float32)
            numbers, codes = np.empty(0, np.float32), np.empty(0, np.uint8)
            module.encode(numbers, bounds, codes, shared)
            module.decode(codes, shared, bounds, numbers)
            return module.encode, module.decode


@lru_cache(maxsize=64)
def group_loops(text: GroupText) -> GroupLoops:
    """Return what writes and reads groups by a text, made once."""
    return GroupLoops(text)


def uniform(size: int, group: int) -> Array:
    """Return where groups begin in so many elements, of which the last one may be shorter, and their end."""
    return np.append(np.arange(0, size, group, dtype=np.int64), np.int64(size))
