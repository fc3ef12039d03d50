"""The choice of how an algorithm runs as a whole: compiled on demand or once that pays, or by NumPy.

Where compiling is not worth waiting for, a thread does it while NumPy serves: LLVM works without the
interpreter's lock.
"""

from __future__ import annotations

import os
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from types import MappingProxyType
from typing import Any

from mcfsim.compile.folds import Fold
from mcfsim.compile.lines import AsBits, Epilogue
from mcfsim.compile.loops import BoundLoop, CompilationError, Loop
from mcfsim.compile.objects import is_available
from mcfsim.compile.program import Program
from mcfsim.compile.rolling import Rolled, is_long, roll
from mcfsim.compile.tracing import ProgramRecording
from mcfsim.kernels.carriers import UnsupportedFormatError, carrier_of
from mcfsim.kernels.operation_plan import Way, plan
from mcfsim.kernels.real_numbers import Scalars
from mcfsim.random import RandomWords

#: Rough cost of an operation without compiling, in nanoseconds per element, by its planned way.
_COST = {Way.NATIVE: 1.0, Way.WIDE: 5.0, Way.EXACT: 6.0, Way.STICKY: 20.0, Way.REFUSED: 1.0}
_DRAWN = 8.0
#: The same for numbers that are only encoded, or codes that are only decoded.
_CODED = 4.0
#: Fixed cost of a call, however few elements there are.
_CALL = 8e3
#: Cost of importing LLVM, of loading an object, and of compiling: a loop, an operation by its way, and words.
_IMPORT, _LOAD, _COMPILE = 4e7, 3e6, 2e7
_COMPILED = {Way.NATIVE: 2e6, Way.WIDE: 5e6, Way.EXACT: 5e6, Way.STICKY: 1.5e7, Way.REFUSED: 2e6}
_COMPILED_DRAWN = 1e7
#: Cost of writing the calls of an operation, and of one that draws random words.
_WRITE, _WRITE_DRAWN = 2e6, 8e6
#: A thread begins to compile after this share of what that costs.
_SHARE = 0.25
#: The most operations of a loop: compiling more would take gigabytes.
MOST = 1500

#: Errors that say why an algorithm is not compiled: no straight line, or no exact path in binary64.
_NOT_COMPILED = (TypeError, ValueError, AttributeError, UnsupportedFormatError)

#: How many rolled algorithms are kept.
_MANY = 64

_lock = threading.Lock()


def check_wanted(label: str, wanted: Any) -> None:
    """Raise TypeError unless a setting is True, False or None."""
    if wanted is not None and not isinstance(wanted, bool):
        raise TypeError(f"{label} must be True, False or None, not {wanted!r}")


def check_compiled(compiled: Any) -> None:
    """Raise an error if `compiled` is not True, False or None, or is True and loops cannot be compiled.

    Raises
    ------
    TypeError
        If it is something else.
    ImportError
        If it is True, and llvmlite is not installed.
    """
    check_wanted("compiled", compiled)
    if compiled and not is_available():
        raise ImportError("compiled loops need LLVM (llvmlite): pip install 'mcfsim[jit]'")


# -- the thread that compiles -----------------------------------------------------------------------------
class Compiler:
    """A thread that does tasks in order; it begins with a task and ends with the last one.

    When the program ends, it waits for the task that is under way, and drops the others. A fork waits for
    that task, too, as the new process would otherwise find LLVM's lock taken; the new process has no tasks.
    """

    def __init__(self) -> None:
        self._tasks: deque[Callable[[], object]] = deque()
        self._lock, self._busy = threading.Lock(), threading.Lock()
        self._thread: threading.Thread | None = None
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(before=self._hold, after_in_parent=self._release, after_in_child=self._renew)

    def ask(self, task: Callable[[], object]) -> bool:
        """Queue a task, which must not raise; return whether there is a thread for it."""
        with self._lock:
            self._tasks.append(task)
            if self._thread is None:
                thread = threading.Thread(target=self._work, name="mcfsim compiles")
                try:
                    thread.start()
                except RuntimeError:  # as where the program ends, or has too many threads
                    self._tasks.clear()
                    return False
                self._thread = thread
            return True

    def wait(self) -> None:
        """Wait until all tasks are done."""
        thread = self._thread
        if thread is not None:
            thread.join()

    def _work(self) -> None:
        while True:
            with self._busy:
                with self._lock:
                    if not self._tasks or not threading.main_thread().is_alive():
                        self._thread = None
                        return
                    task = self._tasks.popleft()
                task()

    def _hold(self) -> None:
        self._busy.acquire()
        self._lock.acquire()

    def _release(self) -> None:
        self._lock.release()
        self._busy.release()

    def _renew(self) -> None:
        self._tasks.clear()
        self._thread = None
        self._release()


COMPILER = Compiler()


# -- loops, and what they cost ----------------------------------------------------------------------------
@lru_cache(maxsize=16)
def loops(scalars: Scalars = "exact", **options: Any) -> Loops:
    """Return the collection of loops of one kind that are compiled so far; see `Loop`."""
    return Loops(scalars, **options)


@dataclass(eq=False)
class _Account:
    """A loop, what it costs in nanoseconds, and what became of it.

    Attributes
    ----------
    loop : Loop
    element, writing, compiling : float
        The cost of an element without compiling, of writing its calls, and of compiling it.
    spent : float
        The cost of all elements so far without compiling.
    look : float
        How much must be spent before files are looked for again.
    begun : int
        The process whose thread was asked to compile; 0 if none was.
    paid, failed : bool
        Whether compiling paid once, and whether it failed.
    error : Exception, optional
        Why a thread failed to compile.
    """

    loop: Loop
    element: float
    writing: float
    compiling: float
    spent: float = 0.0
    look: float = 0.0
    begun: int = 0
    paid: bool = False
    failed: bool = False
    error: Exception | None = None

    @classmethod
    def of(cls, loop: Loop) -> _Account:
        """Return the account of a new loop."""
        cost = 0.0 if loop.epilogue is None else loop.epilogue.cost
        cost += _CODED if loop.program.steps == () else 0.0
        writing, compiling = 0.0, _COMPILE
        for step in loop.program.steps:
            fmt, drawn = step.result.format, step.draw is not None
            entry = plan(fmt, step.rounding, carrier_of(fmt)).values.get(step.operation)
            way = Way.NATIVE if entry is None else entry.way
            cost += _COST[way] + _DRAWN * drawn
            writing += _WRITE_DRAWN if drawn else _WRITE
            compiling += _COMPILED[way] + _COMPILED_DRAWN * drawn
        return cls(loop, cost, writing, compiling)

    def compile(self, numbers: list[Any]) -> None:
        """Compile or load the loop, in a thread."""
        try:
            self.loop.with_numbers(numbers)
        except Exception as error:
            self.error = error

    def pays(self, numbers: list[Any], now: float) -> bool:
        """Return whether the loop is ready, or is to be compiled or loaded here; see `Loops`.

        `now` is what the current call, and those sure to follow, cost without the loop.

        Raises
        ------
        CompilationError
            If a thread failed to compile it.
        """
        if self.error is not None and not self.failed:
            raise CompilationError(str(self.error)) from self.error
        if self.paid or self.failed or not is_available():
            return self.paid
        cost, spent = self.compiling + (0.0 if "llvmlite" in sys.modules else _IMPORT), self.spent + now
        if now > cost:  # also while the thread compiles: it is waited for
            self.paid = True
        elif self.begun == os.getpid():
            self.paid = self.loop.is_ready(numbers)
        elif spent > max(_LOAD, self.look):
            self.look = 1.2 * spent  # to look for files at each call would cost more than small calls do
            self.paid = self.loop.is_saved(numbers)
            if not self.paid and spent > _SHARE * cost:
                self.begun = os.getpid() if COMPILER.ask(partial(self.compile, numbers)) else 0
                self.paid = not self.begun and spent > cost
        return self.paid


class Loops:
    """The loops of programs: compiled on demand or once that pays, and run by NumPy until then if that pays.

    Without being told to, a program is compiled or loaded at once if the current call and those known to
    follow, run without a loop, cost more than compiling. Otherwise it is loaded once all calls so far have
    cost more than loading, or else compiled by a thread once they have cost `_SHARE` of compiling. So no work
    takes much more time than it would have taken had its amount been known.

    Parameters
    ----------
    scalars : {"exact", "rounded", "float32"}
        How real scalars enter.
    **options
        See `Loop`.
    """

    def __init__(self, scalars: Scalars, **options: Any) -> None:
        self._scalars, self._options = scalars, options
        self._accounts: dict[Any, _Account] = {}
        self._rolled: dict[Any, Rolled | None] = {}  # the most recent ones

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
            How many elements are sure to follow, in further calls of the same size.
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
            If it must be compiled, and LLVM fails.

        Warns
        -----
        RuntimeWarning
            If it is too long to be compiled, or need not be compiled and LLVM fails; NumPy does the work.
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
            recording = record()
            rolled = self._rolled_up(recording) if is_long(recording) else None
            if rolled is None:
                return None
            bound_loops = {}
            for part in rolled.repeated():
                options: Any = {"checked": True, "trusted": part.trusted, "rows": True}
                make = partial(Loop, part.body, self._scalars, **options)
                account = self._kept((part.body.key, part.trusted), make)
                bound_loop = self._ready(account, part.body, elements, compiled, {}, rows=len(part.takes))
                if bound_loop is not None:
                    bound_loops[part.start] = bound_loop
            return Fold(rolled, bound_loops) if len(bound_loops) == len(rolled.repeated()) else None
        except _NOT_COMPILED:
            if compiled:
                raise
            return None

    def _rolled_up(self, recording: ProgramRecording) -> Rolled | None:
        """Return a recording rolled up, now or before; recordings themselves are not kept."""
        key = recording.key
        with _lock:
            if key not in self._rolled:
                if len(self._rolled) >= _MANY:
                    self._rolled.pop(next(iter(self._rolled)))
                self._rolled[key] = roll(recording)
            return self._rolled[key]

    def _kept(self, key: Any, make: Callable[[], Loop]) -> _Account:
        with _lock:
            account = self._accounts.get(key)
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
        once = (account.element * elements + _CALL * len(program.steps)) * rows
        now = once * (1 + ahead / max(elements, 1))
        long = len(program.steps) > MOST
        try:
            if long and compiled:
                raise CompilationError(f"{program.name} has more than {MOST} operations that do not repeat")
            if compiled or (not long and account.pays(given, now)):
                return loop.with_numbers(given)
        except CompilationError as error:
            if compiled and not long:
                raise
            account.paid, account.failed = False, True
            warnings.warn(f"{error}; NumPy does the work", RuntimeWarning, stacklevel=4)
        finally:
            account.spent += once
        if not by_numpy:
            return None
        # Outside of the line, an epilogue costs far more than its calls.
        pays = loop.epilogue is not None or account.spent + account.element * ahead > account.writing
        return loop.on_numpy(given) if pays else None
