"""Straight-line steps recorded as programs, and run as one loop over blocks by Numba or NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.backends.factory import how_compiled
from mcfsim.compile.choice import loops
from mcfsim.compile.lines import AsBits, Integer, SplitOperand
from mcfsim.compile.loops import BoundLoop
from mcfsim.compile.program import Program, Register, Scalar, flat
from mcfsim.compile.tracing import trace
from mcfsim.formats import Format, get_format
from mcfsim.optim.declaration import Declaration, check_addition
from mcfsim.optim.state import State, grid_of, opened
from mcfsim.optim.state import closed as close
from mcfsim.optim.strategies import FLOAT32, Roles, Strategy
from mcfsim.optim.strategy import SLOTS
from mcfsim.optim.vectors import Vector, is_packed, read, write
from mcfsim.protocol import Arithmetic
from mcfsim.random import RandomWords
from mcfsim.rounding import Mode
from mcfsim.storage.buffers import scratch


def symbols(scalars: Any) -> Any:
    """Return a named tuple of scalars with symbols in place of its numbers, also within expansions.

    Zeros stay numbers: a step leaves out operations with them. Other types are returned unchanged.
    """
    if not hasattr(scalars, "_fields"):
        return scalars
    pairs = zip(scalars._fields, scalars, strict=True)
    return type(scalars)(*(_symbol(name, number) for name, number in pairs))


def _symbol(name: str, number: Any) -> Any:
    if isinstance(number, tuple):
        return tuple(_symbol(f"{name}_{place}", part) for place, part in enumerate(number))
    return Scalar(name) if number else number


def numbers(scalars: Any) -> dict[str, Any]:
    """Return the numbers of a named tuple of scalars by the names that `symbols` gives them."""
    found: dict[str, Any] = {}
    if not hasattr(scalars, "_fields"):
        return found
    for name, number in zip(scalars._fields, scalars, strict=True):
        parts = number if isinstance(number, tuple) else ()
        found |= {f"{name}_{place}": part for place, part in enumerate(parts)} or {name: number}
    return found


def words_of(roles: Roles, count: int) -> dict[int, RandomWords]:
    """Return the random words of a recorded step's sources, by their place, for step number `count`."""
    sources = {id(role): role for role in roles}.values()
    drawing = [role.random for role in sources if role.rounding and role.rounding.stochastic]  # type: ignore[attr-defined]
    return {place: replace(words, step=count) for place, words in enumerate(drawing)}


def recorders(ar: Arithmetic, roles: Roles) -> Roles:
    """Return recording arithmetics in place of a step's arithmetics, made from the recording `ar`."""
    unique = {id(role): role for role in roles}  # each is a source of random words
    made = {key: ar.like(role.format, role.rounding) for key, role in unique.items()}  # type: ignore[arg-type]
    return Roles(*(made[id(role)] for role in roles))


def record_step(
    hyper: Declaration,
    strategy: Strategy,
    roles: Roles,
    scalars: Any,
    *,
    gradient: Format | None = None,
    lines: bool = False,
    closed: bool = False,
) -> Program:
    """Record one step.

    Parameters
    ----------
    hyper, strategy, roles
        The optimizer's hyperparameters, strategy and arithmetics.
    scalars
        The step's scalars, as `Declaration.scalars` returns them: Python numbers, or symbols for them.
    gradient : Format, optional
        The format of the gradient, which the step rounds; by default the strategy's format for it.
    lines : bool, optional
        Whether to record the source lines of the step.
    closed : bool, optional
        Whether the step reads and returns remainders in place of master copies, if the strategy keeps them.

    Returns
    -------
    Program
        Its inputs are the components of parameter, m, v and extra, and the gradient. Its results are the new
        components and the update.

    Raises
    ------
    TypeError, ValueError
        If the step is no straight line, computes with exact numbers, or lacks the feedback that the strategy
        asks for.
    """
    check_addition(type(hyper), strategy)
    if any(role.format is None or role.rounding is None for role in roles):
        raise ValueError("a step in exact numbers is no program")

    def registers(label: str, role: Arithmetic) -> tuple[Register, ...]:
        stored = strategy.tensors.get(label)
        count = 0 if stored is None or (label in SLOTS and not hyper.keeps(label)) else stored.components
        assert role.format is not None
        return tuple(Register(f"{label}{number}", role.format) for number in range(count))

    bits = strategy.extra.remainder if closed and strategy.extra else None
    state = State(
        parameter=registers("parameter", roles.model),
        m=registers("m", roles.moments),
        v=registers("v", roles.second_moment),
        extra=registers("extra", roles.parameter) if bits is None else (Register("extra0", grid_of(bits)),),
    )
    received = gradient or strategy.gradient.format or roles.moments.format
    assert received is not None

    def step(ar: Arithmetic, old: Any, received: Register) -> Any:
        made, given = recorders(ar, roles), State(*old)
        if bits is None:
            new, update = hyper.step(made, strategy, given, received, scalars)
        else:
            new, update = hyper.step(made, strategy.unshared, opened(made, bits, given), received, scalars)
            new = close(made, bits, new)
        return (*map(tuple, new), update)

    assert roles.moments.format is not None
    name = f"{type(hyper).__name__.lower()}, {strategy.name}"
    given = tuple(map(tuple, state)), Register("gradient", received)
    # The first arithmetic of the recording runs nothing and is no source of random words.
    program = trace(step, roles.moments.format, operands=given, lines=lines)
    operands = (x for step in program.steps for x in step.operands)
    named = dict.fromkeys(x.name for x in operands if isinstance(x, Scalar))
    return replace(program, name=name, scalars=tuple(named))


class StepPrograms:
    """The steps of an optimizer as programs, recorded once for all values of the scalars.

    Parameters
    ----------
    hyper, strategy
        The optimizer's hyperparameters and strategy.
    closed : bool, optional
        See `record_step`.
    """

    def __init__(self, hyper: Declaration, strategy: Strategy, *, closed: bool = False) -> None:
        self._given, self._closed = (hyper, strategy), closed
        self._programs: dict[Any, Program] = {}

    def of(self, roles: Roles, scalars: Any, gradient: Format) -> Program:
        """Return the step for a gradient of a format, with its scalars as symbols.

        A step that computes with scalars is recorded anew each time, with the scalars as numbers.
        """
        symbolic = symbols(scalars)
        key = gradient, *("" if isinstance(x, Scalar) else repr(x) for x in flat(symbolic))
        if key not in self._programs:
            try:
                self._programs[key] = self._recorded(roles, symbolic, gradient)
            except TypeError:
                return self._recorded(roles, scalars, gradient)
        return self._programs[key]

    def _recorded(self, roles: Roles, scalars: Any, gradient: Format) -> Program:
        return record_step(*self._given, roles, scalars, gradient=gradient, closed=self._closed)


def as_bits(strategy: Strategy, program: Program) -> AsBits | None:
    """Return how a closed step's master copy is stored as bits beside its parameter; None if it is not."""
    extra, low = strategy.extra, strategy.parameter.format
    place = len(program.inputs) - 2  # before the gradient
    if extra is None or low is None or not (extra.shared or extra.remainder):
        return None
    if extra.remainder:
        return Integer(place, size_of(extra.remainder))
    rounded = strategy.parameter.rounding is Mode.NEAREST_AWAY
    return SplitOperand(place, FLOAT32.precision - low.precision, leading=0, rounded=rounded)


def size_of(bits: int) -> int:
    """Return the size in bits, 8 or 16, of the integer in memory that holds a remainder of `bits` bits."""
    return 8 if bits <= 8 else 16


# -- one loop ---------------------------------------------------------------------------------------------
Array = NDArray[Any]

#: With fewer elements, it is not worth asking whether compiling pays.
_LEAST_COMPILED = 1 << 12


class CompiledStep:
    """The steps of an optimizer, recorded once, and run as loops if that pays.

    Parameters
    ----------
    hyper, strategy
        The optimizer's hyperparameters and strategy.
    packed : bool
        Whether its vectors hold codes.
    closed : bool, optional
        Whether a master copy is stored as bits beside its parameter, if the strategy says so.
    """

    def __init__(self, hyper: Declaration, strategy: Strategy, *, packed: bool, closed: bool = False) -> None:
        self.strategy, self.packed, self._closed = strategy, packed, closed
        self._programs = StepPrograms(hyper, strategy, closed=closed)

    def bound_loop(
        self, roles: Roles, scalars: Any, gradient: Array, elements: int, count: int, ahead: int
    ) -> BoundLoop | None:
        """Return the loop of step number `count`, bound to its scalars, or None if no loop is to be used.

        Later steps are sure to process `ahead` more elements.
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

        @lru_cache(maxsize=1)
        def record() -> Program:
            return self._programs.of(roles, scalars, received)

        def words(program: Program) -> dict[int, RandomWords]:
            return words_of(roles, count)

        kept = loops(roles.moments.scalars, packed=self.packed, apart=True)  # type: ignore[attr-defined]
        given = numbers(scalars), words, ahead
        joined = as_bits(self.strategy, record()) if self._closed else None
        return kept.bound_loop(record, elements, compiled, *given, by_numpy=True, joined=joined)


def fill_block(
    bound_loop: BoundLoop,
    block: slice,
    given: Sequence[tuple[Vector, Format | None]],
    asked: Sequence[tuple[Vector | None, Format | None]],
    first: int = 0,
) -> None:
    """Run a loop on a block of vectors, each with its format; `asked` may have vectors of `given`.

    For random words, the first element of the vectors has number `first`. A loop must not write where it
    reads, and knows the codes of some formats only, or of none if it runs by NumPy: then numbers are read and
    written outside the loop. A result whose vector is None is dropped.
    """
    operands = [
        _operand(x[block], fmt, dtype) for (x, fmt), dtype in zip(given, bound_loop.operands, strict=True)
    ]
    read_from = {id(x) for x, _ in given}
    results: list[Array] = []
    for place, ((x, _), dtype) in enumerate(zip(asked, bound_loop.results, strict=True)):
        if isinstance(x, np.ndarray) and x.dtype == dtype and id(x) not in read_from:
            results.append(x[block])
        else:
            results.append(scratch(f"step{place}", operands[0].size, dtype))
    bound_loop(operands, results, first + block.start)
    for (x, fmt), made in zip(asked, results, strict=True):
        if x is not None and not (isinstance(x, np.ndarray) and np.may_share_memory(x, made)):
            write(x[block], made, fmt)


def _operand(x: Vector, fmt: Format | None, dtype: np.dtype[Any]) -> Array:
    """Return a block in the form that a loop reads: unchanged, as numbers, or as codes."""
    if isinstance(x, np.ndarray) and x.dtype == dtype:
        return np.ascontiguousarray(x)
    numbers = read(x, fmt)
    if dtype.kind != "u":
        return numbers
    codes = np.empty(numbers.size, dtype)
    write(codes, numbers, fmt)
    return codes
