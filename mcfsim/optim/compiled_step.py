"""A step of an optimizer as one loop, by Numba or by NumPy, and carried out on a block of its vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.backends.factory import how_compiled
from mcfsim.compile.choice import loops
from mcfsim.compile.loops import Filler
from mcfsim.compile.program import Program
from mcfsim.formats import Format, get_format
from mcfsim.optim.declaration import Declaration
from mcfsim.optim.step_programs import StepPrograms, as_bits, numbers, words_of
from mcfsim.optim.strategies import Roles, Strategy
from mcfsim.optim.vectors import Vector, is_packed, read, write
from mcfsim.random import RandomWords
from mcfsim.storage.buffers import scratch

Array = NDArray[Any]

#: Fewer elements are not worth looking whether compiling pays.
_LEAST_COMPILED = 1 << 12


class CompiledStep:
    """The steps of an optimizer, recorded once, and made loops where that pays.

    Parameters
    ----------
    hyper, strategy
        Of the optimizer.
    packed : bool
        Whether its vectors hold codes.
    closed : bool, optional
        Whether a master copy lies as the bits that its parameter does not have, where the strategy says so.
    """

    def __init__(self, hyper: Declaration, strategy: Strategy, *, packed: bool, closed: bool = False) -> None:
        self.strategy, self.packed, self._closed = strategy, packed, closed
        self._programs = StepPrograms(hyper, strategy, closed=closed)

    def filler(
        self, roles: Roles, scalars: Any, gradient: Array, elements: int, count: int, ahead: int
    ) -> Filler | None:
        """Return the loop of a step with its scalars, if there is to be one.

        So many elements are sure to follow in other steps.
        """
        compiled = how_compiled(roles)
        if compiled is False or (compiled is None and elements < _LEAST_COMPILED):
            return None
        fmt: Format | None = None
        if self.packed and is_packed(gradient):
            fmt = self.strategy.gradient.format
        elif gradient.dtype in (np.float32, np.float64):
            fmt = get_format(str(gradient.dtype))
        if fmt is None:
            return None
        received = fmt

        def record() -> Program:
            return self._programs.of(roles, scalars, received)

        def words(program: Program) -> dict[int, RandomWords]:
            return words_of(roles, count)

        kept = loops(roles.moments.scalars, packed=self.packed, apart=True)  # type: ignore[attr-defined]
        given = numbers(scalars), words, ahead
        joined = as_bits(self.strategy, record()) if self._closed else None
        return kept.filler(record, elements, compiled, *given, by_numpy=True, joined=joined)


def fill_block(
    filler: Filler,
    block: slice,
    given: Sequence[tuple[Vector, Format | None]],
    asked: Sequence[tuple[Vector | None, Format | None]],
    first: int = 0,
) -> None:
    """Carry a loop out on a block of vectors, each with its format; it may ask for those that it is given.

    Where random words are drawn, the vectors' first element has the number `first`. A loop must not write
    where it reads. Of some formats it knows no codes, and NumPy's of none: these are read and written beside
    it. What is asked for no vector is not kept.
    """
    operands = [
        _operand(x[block], fmt, dtype) for (x, fmt), dtype in zip(given, filler.operands, strict=True)
    ]
    read_from = {id(x) for x, _ in given}
    results: list[Array] = []
    for place, ((x, _), dtype) in enumerate(zip(asked, filler.results, strict=True)):
        if isinstance(x, np.ndarray) and x.dtype == dtype and id(x) not in read_from:
            results.append(x[block])
        else:
            results.append(scratch(f"step{place}", operands[0].size, dtype))
    filler(operands, results, first + block.start)
    for (x, fmt), made in zip(asked, results, strict=True):
        if x is not None and not (isinstance(x, np.ndarray) and np.may_share_memory(x, made)):
            write(x[block], made, fmt)


def _operand(x: Vector, fmt: Format | None, dtype: np.dtype[Any]) -> Array:
    """Return a block as a loop takes it: as it is, as numbers, or as their codes."""
    if isinstance(x, np.ndarray) and x.dtype == dtype:
        return np.ascontiguousarray(x)
    numbers = read(x, fmt)
    if dtype.kind != "u":
        return numbers
    codes = np.empty(numbers.size, dtype)
    write(codes, numbers, fmt)
    return codes
