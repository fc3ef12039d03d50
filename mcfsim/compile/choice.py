"""Whether a text is carried out as a whole: compiled on demand, or by itself once that pays, or by NumPy."""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any

from mcfsim.compile.folds import Fold, trusted
from mcfsim.compile.joined import AsBits
from mcfsim.compile.lines import Sequel
from mcfsim.compile.loops import CompilationError, Filler, Loop, RowLoop
from mcfsim.compile.program import Program
from mcfsim.compile.rolling import RepeatedBody, Rolled, roll
from mcfsim.compile.scalars import uses
from mcfsim.compile.sources import is_switched_off
from mcfsim.compile.tracing import ProgramRecording
from mcfsim.kernels.carriers import UnsupportedFormatError, carrier_of
from mcfsim.kernels.operation_plan import Way, plan
from mcfsim.kernels.real_numbers import Scalars
from mcfsim.random import RandomWords

#: What an operation costs without compiling, in nanoseconds an element, roughly, as it is planned.
_COST = {Way.NATIVE: 1.0, Way.WIDE: 5.0, Way.EXACT: 6.0, Way.STICKY: 20.0, Way.REFUSED: 1.0}
_DRAWN = 8.0
#: And each time, however few elements there are.
_CALL = 8e3
#: What it costs to import Numba and to load a loop from its cache, in nanoseconds.
_IMPORT, _LOAD = 6e8, 1e8
#: What it costs to compile an operation, and one that draws random words; and to write it down.
_COMPILE, _COMPILE_DRAWN = 4.5e7, 1.6e8
_WRITE, _WRITE_DRAWN = 2e6, 8e6

#: What says that a text is not compiled: it is no straight line, or has no exact path in binary64.
_NOT_COMPILED = (TypeError, ValueError, AttributeError, UnsupportedFormatError)

_lock = threading.Lock()


@lru_cache(maxsize=1)
def _is_installed() -> bool:
    return all(find_spec(name) is not None for name in ("numba", "platformdirs"))


def is_available() -> bool:
    """Return whether Numba, and what else compiling needs, is installed and not switched off.

    Nothing is imported.
    """
    return _is_installed() and not is_switched_off()


def check_available() -> None:
    """Raise ImportError if Numba, or what else compiling needs, is not installed or is switched off."""
    if not is_available():
        if _is_installed() and is_switched_off():
            raise ImportError("compiled loops need Numba's compiler, which NUMBA_DISABLE_JIT switches off")
        raise ImportError("compiled loops need Numba: pip install 'mcfsim[jit]'")


def check_compiled(compiled: Any) -> None:
    """Raise unless `compiled` is True, False or None, and loops can be compiled where they must.

    Raises
    ------
    TypeError
        If it is something else.
    ImportError
        If it is True, and Numba is not installed, or is told by NUMBA_DISABLE_JIT to compile nothing.
    """
    if compiled is not None and not isinstance(compiled, bool):
        raise TypeError(f"compiled must be True, False or None, not {compiled!r}")
    if compiled:
        check_available()


@lru_cache(maxsize=16)
def loops(
    scalars: Scalars = "exact",
    *,
    checked: bool = False,
    wide: bool = False,
    packed: bool = False,
    apart: bool = False,
) -> Loops:
    """Return the loops that are compiled so far, of one kind; see `Loop`."""
    return Loops(scalars, checked=checked, wide=wide, packed=packed, apart=apart)


class Loops:
    """Loops, by program: compiled when they must be, or when that pays; before that by NumPy, when that does.

    By itself a program is compiled once the time that its elements would have taken without, in all calls so
    far, the one at hand and those known to follow, exceeds what compiling is thought to cost, or loading, if
    it was compiled before. So no work takes much more than twice what it would have taken had one known how
    much there is.

    Parameters
    ----------
    scalars : {"exact", "rounded"}
        How real scalars enter.
    **options : bool
        See `Loop`.
    """

    def __init__(self, scalars: Scalars, **options: bool) -> None:
        self._scalars, self._options = scalars, options
        self._loops: dict[Any, Loop] = {}
        self._spent: dict[Loop, float] = {}
        self._costs: dict[Loop, float] = {}
        self._paid: set[Loop] = set()
        self._failed: set[Loop] = set()

    def filler(
        self,
        record: Callable[[], Program],
        elements: int,
        compiled: bool | None,
        scalars: Mapping[str, Any] = MappingProxyType({}),
        words: Callable[[Program], Mapping[int, RandomWords]] = lambda program: {},
        ahead: int = 0,
        *,
        by_numpy: bool = False,
        sequel: Sequel | None = None,
        joined: AsBits | None = None,
    ) -> Filler | None:
        """Return a loop for a text, or None where there is to be none.

        Parameters
        ----------
        record : callable
            Returns the program, recorded now or before.
        elements : int
            How many there are to work on.
        compiled : bool or None
            Whether it must be compiled; None where it is if that pays, and it can be.
        scalars : mapping of str to number, optional
            The program's real scalars, by name.
        words : callable, optional
            Returns the random words of a program's sources; called only if there is a loop.
        ahead : int, optional
            How many elements are sure to follow in other calls.
        by_numpy : bool, optional
            Whether NumPy may carry the loop out where it need not be compiled. Its results then must share no
            memory with operands, and whether these are values of their formats is not looked at.
        sequel : Sequel, optional
            What is made of the results in the same loop.
        joined : AsBits, optional
            Which operand lies as bits; only a compiled loop reads them.

        Raises
        ------
        TypeError, ValueError, UnsupportedFormatError
            If it must be compiled and cannot be: it is no straight line, or has no exact path in binary64.
        CompilationError
            If it must be compiled, and Numba fails.

        Warns
        -----
        RuntimeWarning
            If it need not be compiled, and Numba fails; NumPy then does the work.
        """
        if compiled is False or not (is_available() or by_numpy):
            return None
        try:
            program = record()
            key = program.key if sequel is None and joined is None else (program.key, sequel, joined)
            also: Any = {"sequel": sequel, "joined": joined, **self._options}
            loop = self._kept(key, lambda: Loop(program, self._scalars, **also))
            by_numpy = by_numpy and joined is None
            filler = self._ready(loop, program, elements, compiled, scalars, ahead=ahead, by_numpy=by_numpy)
            return filler.drawing(words(program)) if filler is not None and program.drawn else filler
        except _NOT_COMPILED:
            if compiled:
                raise
            return None

    def fold(
        self, record: Callable[[], ProgramRecording], elements: int, compiled: bool | None
    ) -> Fold | None:
        """Return a long text as compiled loops over what repeats in it, or None where there are to be none.

        Parameters and exceptions are those of `filler`; where nothing repeats, there is no such loop.
        """
        if compiled is False or not is_available():
            return None
        try:
            rolled = roll(record())
            if rolled is None:
                return None
            fillers = {}
            for part in rolled.repeated():
                key, make = (part.body.key, trusted(part, rolled)), partial(self._rows, part, rolled)
                kept = self._kept(key, make)
                filler = self._ready(kept, part.body, elements, compiled, {}, rows=len(part.takes))
                if filler is not None:
                    fillers[part.start] = filler
            return Fold(rolled, fillers) if len(fillers) == len(rolled.repeated()) else None
        except _NOT_COMPILED:
            if compiled:
                raise
            return None

    def _rows(self, part: RepeatedBody, rolled: Rolled) -> RowLoop:
        return RowLoop(part.body, self._scalars, trusted=trusted(part, rolled))

    def _kept(self, key: Any, make: Callable[[], Loop]) -> Loop:
        with _lock:
            loop = self._loops.get(key)  # once: to hash a whole program takes its time
            if loop is None:
                loop = self._loops[key] = make()
            return loop

    def _ready(
        self,
        loop: Loop,
        program: Program,
        elements: int,
        compiled: bool | None,
        scalars: Mapping[str, Any],
        *,
        ahead: int = 0,
        rows: int = 1,
        by_numpy: bool = False,
    ) -> Filler | None:
        """Return a loop with a program's real scalars put in, if it must be compiled, or if that pays.

        The numbers that the text itself has may be others than in the program from which the loop was made.
        What is refused is so before words are taken.
        """
        given = [use.number(scalars) for use in uses(program)]
        if (cost := self._costs.get(loop)) is None:
            cost = self._costs[loop] = _cost(loop)
        once = cost * elements + _CALL * len(program.steps)
        spent = self._spent[loop] = self._spent.get(loop, 0.0) + once * rows
        spent += cost * ahead
        try:
            if compiled or self._pays(loop, given, spent):
                return loop.with_numbers(given)
        except CompilationError as error:
            if compiled:
                raise
            self._failed.add(loop)
            self._paid.discard(loop)
            warnings.warn(f"{error}; NumPy does the work", RuntimeWarning, stacklevel=4)
        if not by_numpy:
            return None
        # What a sequel asks costs far more than its calls do, where it is not part of the line.
        pays = loop.sequel is not None or spent > _by_step(program, _WRITE, _WRITE_DRAWN)
        return loop.on_numpy(given) if pays else None

    def _pays(self, loop: Loop, numbers: list[Any], spent: float) -> bool:
        """Return whether compiling pays."""
        if loop in self._paid:
            return True
        if loop in self._failed or not is_available():
            return False
        start = _LOAD + _WRITE * len(loop.program.steps) + (0.0 if "numba" in sys.modules else _IMPORT)
        pays = spent > start and (
            spent > start + _by_step(loop.program, _COMPILE, _COMPILE_DRAWN) or loop.is_cached(numbers)
        )
        if pays:
            self._paid.add(loop)
        return pays


def _by_step(program: Program, cost: float, drawn: float) -> float:
    """Return the sum of a cost an operation, which is another one where random words are drawn."""
    return sum(cost if step.draw is None else drawn for step in program.steps)


def _cost(loop: Loop) -> float:
    """Return the nanoseconds that an element takes without compiling."""
    cost = 0.0 if loop.sequel is None else loop.sequel.cost
    for step in loop.program.steps:
        fmt = step.result.format
        entry = plan(fmt, step.rounding, carrier_of(fmt)).values.get(step.operation)
        cost += _COST[Way.NATIVE if entry is None else entry.way] + (0.0 if step.draw is None else _DRAWN)
    return cost
