"""The choice of how an algorithm runs as a whole: compiled on demand or once that pays, or by NumPy."""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any

from mcfsim.compile.ahead import COMPILER
from mcfsim.compile.folds import Fold, roll, trusted
from mcfsim.compile.lines import AsBits, Epilogue
from mcfsim.compile.loops import BoundLoop, CompilationError, Loop, RowLoop
from mcfsim.compile.program import Program
from mcfsim.compile.sources import is_switched_off
from mcfsim.compile.tracing import ProgramRecording
from mcfsim.kernels.carriers import UnsupportedFormatError, carrier_of
from mcfsim.kernels.operation_plan import Way, plan
from mcfsim.kernels.real_numbers import Scalars
from mcfsim.random import RandomWords

#: Rough cost of an operation without compiling, in nanoseconds per element, by its planned way.
_COST = {Way.NATIVE: 1.0, Way.WIDE: 5.0, Way.EXACT: 6.0, Way.STICKY: 20.0, Way.REFUSED: 1.0}
_DRAWN = 8.0
#: Fixed cost of a call, however few elements there are.
_CALL = 8e3
#: Cost of importing Numba and of loading a loop from its cache, in nanoseconds.
_IMPORT, _LOAD = 6e8, 1e8
#: Cost of compiling an operation, and one that draws random words; and of generating their source.
_COMPILE, _COMPILE_DRAWN = 4.5e7, 1.6e8
_WRITE, _WRITE_DRAWN = 2e6, 8e6

#: Cost of importing LLVM alone and of loading an object.
_LOAD_OBJECT = 4e7
#: Another process begins to compile after so much, and after this share of the cost of compiling.
_AHEAD, _SHARE = 1e8, 0.25

#: Errors that say why an algorithm is not compiled: no straight line, or no exact path in binary64.
_NOT_COMPILED = (TypeError, ValueError, AttributeError, UnsupportedFormatError)

_lock = threading.Lock()


@lru_cache(maxsize=1)
def _is_installed() -> bool:
    return find_spec("numba") is not None


def is_available() -> bool:
    """Return whether Numba, with all that compiling needs, is installed and not switched off.

    Nothing is imported.
    """
    return _is_installed() and not is_switched_off()


def check_compiled(compiled: Any) -> None:
    """Raise an error if `compiled` is not True, False or None, or is True and loops cannot be compiled.

    Raises
    ------
    TypeError
        If it is something else.
    ImportError
        If it is True, and Numba is not installed or is switched off by NUMBA_DISABLE_JIT.
    """
    if compiled is not None and not isinstance(compiled, bool):
        raise TypeError(f"compiled must be True, False or None, not {compiled!r}")
    if compiled and not is_available():
        if _is_installed() and is_switched_off():
            raise ImportError("compiled loops need Numba's compiler, which NUMBA_DISABLE_JIT switches off")
        raise ImportError("compiled loops need Numba: pip install 'mcfsim[jit]'")


@lru_cache(maxsize=16)
def loops(scalars: Scalars = "exact", **options: bool) -> Loops:
    """Return the collection of loops of one kind that are compiled so far; see `Loop`."""
    return Loops(scalars, **options)


@dataclass(eq=False)
class _Account:
    """A loop, what it costs in nanoseconds, and what became of it.

    Attributes
    ----------
    loop : Loop
    element, writing, compiling : float
        The cost of an element without compiling, of writing the loop, and of compiling it.
    spent : float
        The cost of all elements so far without compiling.
    look : float
        How much must be spent before files are looked for again.
    begun, paid, failed : bool
        Whether another process was asked to compile, whether compiling paid once, and whether it failed.
    """

    loop: Loop
    element: float
    writing: float
    compiling: float
    spent: float = 0.0
    look: float = _LOAD_OBJECT
    begun: bool = False
    paid: bool = False
    failed: bool = False

    @classmethod
    def of(cls, loop: Loop) -> _Account:
        """Return the account of a new loop."""
        drawn = sum(step.draw is not None for step in loop.program.steps)
        plain = len(loop.program.steps) - drawn
        cost = 0.0 if loop.epilogue is None else loop.epilogue.cost
        for step in loop.program.steps:
            fmt = step.result.format
            entry = plan(fmt, step.rounding, carrier_of(fmt)).values.get(step.operation)
            cost += _COST[Way.NATIVE if entry is None else entry.way] + (0.0 if step.draw is None else _DRAWN)
        writing, compiling = plain * _WRITE + drawn * _WRITE_DRAWN, plain * _COMPILE + drawn * _COMPILE_DRAWN
        return cls(loop, cost, writing, compiling)


class Loops:
    """The loops of programs: compiled on demand or once that pays, and run by NumPy until then if that pays.

    A program is compiled unasked by another process, once its uncompiled time exceeds `_AHEAD`, and its
    object is loaded once that exceeds the cost of loading. That time counts the elements of all calls so far,
    the current one and those known to follow. Without an object or such a process, it is compiled or loaded
    here once that time exceeds the estimated cost. So no work takes much more than twice the time that it
    would have taken had its amount been known.

    Parameters
    ----------
    scalars : {"exact", "rounded", "float32"}
        How real scalars enter.
    **options : bool
        See `Loop`.
    """

    def __init__(self, scalars: Scalars, **options: bool) -> None:
        self._scalars, self._options = scalars, options
        self._accounts: dict[Any, _Account] = {}

    def bound_loop(
        self,
        record: Callable[[], Program],
        elements: int,
        compiled: bool | None,
        scalars: Mapping[str, Any] = MappingProxyType({}),
        words: Callable[[Program], Mapping[int, RandomWords]] = lambda program: {},
        ahead: int = 0,
        *,
        by_numpy: bool = False,
        epilogue: Epilogue | None = None,
        joined: AsBits | None = None,
    ) -> BoundLoop | None:
        """Return a loop for an algorithm, or None if it is not to run as a loop.

        Parameters
        ----------
        record : callable
            Returns the program, recorded now or before.
        elements : int
            The number of elements to process.
        compiled : bool or None
            Whether it must be compiled; with None it is compiled if that pays and is possible.
        scalars : mapping of str to number, optional
            The program's real scalars, by name.
        words : callable, optional
            Returns the random words of a program's sources; called only if there is a loop.
        ahead : int, optional
            How many elements are sure to follow in other calls.
        by_numpy : bool, optional
            Whether NumPy may run the loop if it need not be compiled. Results must then share no memory with
            operands, and the operands are not checked for being values of their formats.
        epilogue : Epilogue, optional
            Processes the results in the same loop.
        joined : AsBits, optional
            The operand that is stored as bits; only a compiled loop reads it.

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
            also: Any = {"epilogue": epilogue, "joined": joined, **self._options}
            key = program.key, epilogue, joined
            account = self._kept(key, lambda: Loop(program, self._scalars, **also))
            by_numpy = by_numpy and joined is None
            found = self._ready(account, program, elements, compiled, scalars, ahead=ahead, by_numpy=by_numpy)
            return found.drawing(words(program)) if found is not None and program.drawn else found
        except _NOT_COMPILED:
            if compiled:
                raise
            return None

    def fold(
        self, record: Callable[[], ProgramRecording], elements: int, compiled: bool | None
    ) -> Fold | None:
        """Return a long algorithm as compiled loops over its repeated parts, or None if it is not compiled.

        Parameters and exceptions are those of `bound_loop`; if nothing repeats, the result is None.
        """
        if compiled is False or not is_available():
            return None
        try:
            rolled = roll(record())
            if rolled is None:
                return None
            bound_loops = {}
            for part in rolled.repeated():
                known = trusted(part, rolled)
                make = partial(RowLoop, part.body, self._scalars, trusted=known)
                account = self._kept((part.body.key, known), make)
                bound_loop = self._ready(account, part.body, elements, compiled, {}, rows=len(part.takes))
                if bound_loop is not None:
                    bound_loops[part.start] = bound_loop
            return Fold(rolled, bound_loops) if len(bound_loops) == len(rolled.repeated()) else None
        except _NOT_COMPILED:
            if compiled:
                raise
            return None

    def _kept(self, key: Any, make: Callable[[], Loop]) -> _Account:
        with _lock:
            account = self._accounts.get(key)  # once: hashing a whole program takes time
            if account is None:
                account = self._accounts[key] = _Account.of(make())
            return account

    def _ready(
        self,
        account: _Account,
        program: Program,
        elements: int,
        compiled: bool | None,
        scalars: Mapping[str, Any],
        *,
        ahead: int = 0,
        rows: int = 1,
        by_numpy: bool = False,
    ) -> BoundLoop | None:
        """Return a loop bound to a program's real scalars, if it must be compiled or if that pays.

        The algorithm's own numbers may differ from those in the program from which the loop was made.
        A refusal comes before random words are taken.
        """
        given, loop = program.reals(scalars), account.loop
        account.spent += (account.element * elements + _CALL * len(program.steps)) * rows
        spent = account.spent + account.element * ahead
        try:
            if compiled or _pays(account, given, spent):
                return loop.with_numbers(given)
        except CompilationError as error:
            if compiled:
                raise
            account.paid, account.failed = False, True
            warnings.warn(f"{error}; NumPy does the work", RuntimeWarning, stacklevel=4)
        if not by_numpy:
            return None
        # Outside of the line, an epilogue costs far more than its calls.
        pays = loop.epilogue is not None or spent > account.writing
        return loop.on_numpy(given) if pays else None


def _pays(account: _Account, numbers: list[Any], spent: float) -> bool:
    """Return whether compiling or loading pays after so many nanoseconds spent; see `Loops`."""
    if account.paid or account.failed or spent < account.look or not is_available():
        return account.paid
    account.look = 1.2 * spent  # to look for files at each call would cost more than small calls do
    loop, loaded = account.loop, "numba" in sys.modules
    start = _LOAD + _WRITE * len(loop.program.steps) + (0.0 if loaded else _IMPORT)
    waits = account.begun and COMPILER.is_running()
    if loaded:
        there = (waits or spent > start) and loop.is_cached(numbers)
    else:  # the other process saves an object soon after Numba has cached the loop
        there = loop.is_saved(numbers) or (spent > start and not waits and loop.is_cached(numbers))
    if not (there or account.begun) and spent > max(_AHEAD, _SHARE * account.compiling):
        account.begun = waits = loop.compile_ahead(numbers)
    account.paid = there or (not waits and spent > start + account.compiling)
    return account.paid
