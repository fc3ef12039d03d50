"""Steps recorded as programs, stage by stage, and run as loops over blocks by LLVM or NumPy."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache, partial
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mcfsim.backends.factory import how_compiled
from mcfsim.compile.choice import loops
from mcfsim.compile.lines import AsBits
from mcfsim.compile.loops import BoundLoop
from mcfsim.compile.program import Program, Register, Scalar, flat, mapped
from mcfsim.compile.tracing import trace
from mcfsim.formats import FORMATS, Format
from mcfsim.optim.declaration import Declaration, check_addition
from mcfsim.optim.staged import Algorithm, Gathered, Known, Stage, Staged, known_state, stages_of
from mcfsim.optim.state import grid_of, steps_of, with_steps
from mcfsim.optim.strategies import FLOAT32, Roles, Strategy
from mcfsim.optim.vectors import is_packed
from mcfsim.protocol import Arithmetic
from mcfsim.random import RandomWords
from mcfsim.rounding import Mode


def symbols(scalars: Any) -> Any:
    """Return a named tuple or dict of scalars with symbols in place of its numbers, also within expansions.

    Zeros stay numbers: a step leaves out operations with them. Other types are returned unchanged.
    """
    found = {name: _symbol(name, number) for name, number in _by_name(scalars).items()}
    return type(scalars)(**found) if found else scalars


def _by_name(scalars: Any) -> dict[str, Any]:
    return scalars if isinstance(scalars, dict) else getattr(scalars, "_asdict", dict)()


def _symbol(name: str, number: Any) -> Any:
    if isinstance(number, tuple):
        return tuple(_symbol(f"{name}_{place}", part) for place, part in enumerate(number))
    return Scalar(name) if number else number


def numbers(scalars: Any) -> dict[str, Any]:
    """Return the numbers of scalars by the names that `symbols` gives them."""
    found: dict[str, Any] = {}
    for name, number in _by_name(scalars).items():
        parts = number if isinstance(number, tuple) else ()
        found |= {f"{name}_{place}": part for place, part in enumerate(parts)} or {name: number}
    return found


def words_of(roles: Roles, count: int) -> dict[int, RandomWords]:
    """Return the random words of a recorded step's sources, by their place, for step number `count`."""
    sources = roles.distinct().values()
    drawing = [role.random for role in sources if role.rounding and role.rounding.stochastic]  # type: ignore[attr-defined]
    return {place: replace(words, step=count) for place, words in enumerate(drawing)}


class RecordedStage(NamedTuple):
    """A stage of a step as a program.

    Attributes
    ----------
    program : Program
    results : dict
        Registers of the program's results, by the names that the stage gives them.
    """

    program: Program
    results: dict[str, Any]


def record_stages(
    hyper: Declaration,
    strategy: Strategy,
    roles: Roles,
    scalars: Any,
    shape: tuple[int, ...],
    *,
    gradient: Format | None = None,
    lines: bool = False,
    closed: bool = False,
) -> dict[int, RecordedStage]:
    """Record the stages of one tensor's step.

    Parameters
    ----------
    hyper, strategy, roles
        The optimizer's hyperparameters, strategy and arithmetics.
    scalars
        The step's scalars, as `Declaration.scalars` returns them: Python numbers, or symbols for them.
    shape : tuple of int
        The shape of the tensor.
    gradient : Format, optional
        The format of the gradient, which the step rounds; by default the strategy's format for it.
    lines : bool, optional
        Whether to record the source lines of the stages.
    closed : bool, optional
        Whether a straight line reads and returns remainders in place of master copies, if the strategy keeps
        them.

    Returns
    -------
    dict of int to RecordedStage
        By the place in the step, see `mcfsim.optim.staged.stages_of`.

    Raises
    ------
    TypeError, ValueError
        If a stage is not a straight line, or computes with exact numbers.
    """
    if any(role.format is None or role.rounding is None for role in roles):
        raise ValueError("a step in exact numbers cannot be recorded as a program")
    formats: dict[str, Any] = {"gradient": gradient or strategy.gradient.format or roles.moments.format}
    formats |= known_state(hyper, strategy, shape, {x: role.format for x, role in roles.stored.items()})
    bits = strategy.extra.remainder if closed and strategy.extra else None
    if bits is not None:
        formats["extra"] = (grid_of(bits),)
    kind, found = type(hyper).__name__.lower(), {}
    for place, item in enumerate(stages_of(hyper, shape)):
        if isinstance(item, Gathered):
            formats[item.name] = roles.of(item.role).format
            continue
        name = f"{kind}.{item.name}" if hyper.staged else kind
        stage = item if bits is None else replace(item, algorithm=partial(_closed, item.algorithm, bits))
        program, results = _recorded(stage, strategy, roles, scalars, formats, lines=lines)
        found[place] = RecordedStage(replace(program, name=f"{name}, {strategy.name}"), results)
        formats |= {label: mapped(lambda x: getattr(x, "format", None), x) for label, x in results.items()}
    return found


def _recorded(
    stage: Stage, strategy: Strategy, roles: Roles, scalars: Any, formats: dict[str, Any], *, lines: bool
) -> tuple[Program, dict[str, Any]]:
    """Return a stage as a program, and its results by name."""
    names: list[str] = []

    def record(ar: Arithmetic, *given: Any) -> Any:
        recorders = roles.mapped(lambda role: ar.like(role.format, role.rounding))
        made = stage.algorithm(recorders, strategy, dict(zip(stage.takes, given, strict=True)), scalars)
        names[:] = made
        return tuple(made.values())

    def register(name: str) -> Any:
        fmt = formats[name]
        if not isinstance(fmt, tuple):
            return Register(name, fmt)
        return tuple(Register(f"{name}{place}", one) for place, one in enumerate(fmt))

    assert roles.moments.format is not None
    # The first arithmetic of the recording runs nothing and is not a source of random words.
    program = trace(record, roles.moments.format, operands=tuple(map(register, stage.takes)), lines=lines)
    operands = (x for step in program.steps for x in step.operands)
    named = dict.fromkeys(x.name for x in operands if isinstance(x, Scalar))
    return replace(program, scalars=tuple(named)), dict(zip(names, program.results, strict=True))


def _closed(
    algorithm: Algorithm, bits: int, roles: Roles, strategy: Strategy, known: Known, scalars: Any
) -> dict[str, Any]:
    """Run a step's algorithm on a remainder of `bits` bits in place of the master copy."""
    ar, low = roles.parameter, roles.model.format
    assert low is not None
    master = with_steps(ar, low, bits, known["parameter"][0], known["extra"][0])
    made = algorithm(roles, strategy.unshared, {**known, "extra": (master,)}, scalars)
    return {**made, "extra": (steps_of(ar, low, bits, made["parameter"][0], made["extra"][0]),)}


def record_step(
    hyper: Declaration,
    strategy: Strategy,
    roles: Roles,
    scalars: Any,
    *,
    gradient: Format | None = None,
    lines: bool = False,
) -> Program:
    """Record a step that is a straight line.

    Parameters
    ----------
    hyper, strategy, roles, scalars, gradient, lines
        As for `record_stages`.

    Returns
    -------
    Program
        Its inputs are the components of parameter, m, v and extra, and the gradient. Its results are the new
        components and the update.

    Raises
    ------
    TypeError, ValueError
        If the step is not a straight line, computes with exact numbers, or lacks the feedback that the
        strategy asks for.
    """
    check_addition(type(hyper), strategy)
    if isinstance(hyper, Staged):
        hyper.step()
    return record_stages(hyper, strategy, roles, scalars, (), gradient=gradient, lines=lines)[0].program


class StepPrograms:
    """The steps of an optimizer as programs, recorded once for all values of the scalars.

    Parameters
    ----------
    hyper, strategy
        The optimizer's hyperparameters and strategy.
    closed : bool, optional
        See `record_stages`.
    """

    def __init__(self, hyper: Declaration, strategy: Strategy, *, closed: bool = False) -> None:
        self.hyper, self._record = hyper, partial(record_stages, hyper, strategy, closed=closed)
        self._programs: dict[Any, dict[int, RecordedStage]] = {}
        #: Whether what was recorded last serves later steps, too.
        self.lasting = True

    def of(self, roles: Roles, scalars: Any, gradient: Format) -> Program:
        """Return the step that is a straight line, as `stages` does."""
        return self.stages(roles, scalars, gradient)[0].program

    def stages(
        self, roles: Roles, scalars: Any, gradient: Format, shape: tuple[int, ...] = ()
    ) -> dict[int, RecordedStage]:
        """Return the stages of a tensor's step for a gradient of a format, with its scalars as symbols.

        If a stage computes with scalars, all are recorded anew each time, with the scalars as numbers.
        """
        symbolic = symbols(scalars)
        self.lasting = symbolic is not scalars
        numbers = ("" if isinstance(x, Scalar) else repr(x) for x in flat(symbolic))
        key = self.hyper.stages(shape) if isinstance(self.hyper, Staged) else (), gradient, *numbers
        if key not in self._programs:
            try:
                self._programs[key] = self._record(roles, symbolic, shape, gradient=gradient)
            except TypeError:
                self.lasting = False
                return self._record(roles, scalars, shape, gradient=gradient)
            if len(self._programs) > 64:  # numbers without names differ from step to step
                del self._programs[next(iter(self._programs))]
        return self._programs[key]


def as_bits(strategy: Strategy, program: Program) -> AsBits | None:
    """Return how a closed step's master copy is stored as bits beside its parameter; None if it is not."""
    extra, low = strategy.extra, strategy.parameter.format
    place = len(program.inputs) - 2  # before the gradient
    if extra is None or low is None or not (extra.shared or extra.remainder):
        return None
    if extra.remainder:
        return AsBits(place, size_of(extra.remainder))
    rounded = strategy.parameter.rounding is Mode.NEAREST_AWAY
    return AsBits(place, FLOAT32.precision - low.precision, leading=0, rounded=rounded)


def size_of(bits: int) -> int:
    """Return the size in bits, 8 or 16, of the integer in memory that holds a remainder of `bits` bits."""
    return 8 if bits <= 8 else 16


# -- one loop ---------------------------------------------------------------------------------------------
Array = NDArray[Any]
#: With fewer elements in all steps that a recording serves, it is not worth asking whether compiling pays.
_LEAST_COMPILED = 1 << 12
#: Formats of gradients that are numbers, by their dtype.
_RECEIVED = {np.dtype(name): FORMATS[name] for name in ("float32", "float64")}


class BoundStage(NamedTuple):
    """The loop of a stage, bound to its scalars, and the registers of its results by name."""

    loop: BoundLoop
    results: dict[str, Any]


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
    **options
        As for `mcfsim.compile.choice.Loops.bound_loop`.
    """

    def __init__(
        self, hyper: Declaration, strategy: Strategy, *, packed: bool, closed: bool = False, **options: Any
    ) -> None:
        self.hyper, self.strategy, self.packed, self._closed = hyper, strategy, packed, closed
        self._options = {"by_numpy": True, **options}
        self._programs = StepPrograms(hyper, strategy, closed=closed)
        self._stages = lru_cache(maxsize=64)(partial(stages_of, hyper))

    def received(self, gradient: Array) -> Format | None:
        """Return the format of a gradient's numbers; None unless they are codes, float32 or float64."""
        if self.packed and is_packed(gradient):
            return self.strategy.gradient.format
        return _RECEIVED.get(gradient.dtype)

    def bound_loops(
        self, roles: Roles, scalars: Any, gradient: Array, shape: tuple[int, ...], count: int, ahead: int
    ) -> dict[int, BoundStage]:
        """Return the loops of step number `count` of a tensor; stages that do not run as loops are left out.

        Parameters
        ----------
        roles, scalars
            The arithmetics and the scalars of the step.
        gradient : array
            An array with the dtype of the gradient.
        shape : tuple of int
            The shape of the tensor. A step that is a straight line takes a vector of any tensors.
        count, ahead : int
            The number of the step, and how many such steps are sure to follow.

        Returns
        -------
        dict of int to BoundStage
            By the place in the step.
        """
        compiled, staged = how_compiled(roles), self.hyper.staged
        least = 1 if compiled else _LEAST_COMPILED / (count + ahead if self._programs.lasting else 1)
        if compiled is False or not (staged or prod(shape) >= least):
            return {}
        sizes = [stage.over.count(shape) if isinstance(stage, Stage) else 0 for stage in self._stages(shape)]
        if (received := self.received(gradient)) is None:
            return {}
        recorded = lru_cache(maxsize=1)(partial(self._programs.stages, roles, scalars, received, shape))
        if staged:
            recorded()  # between means there are straight lines, whether they run as loops or not

        packed = self.packed and not staged  # results of stages between means are numbers in carriers
        kept = loops(roles.moments.scalars, packed=packed, apart=True)  # type: ignore[attr-defined]
        found, named = {}, numbers(scalars)
        for place, elements in enumerate(sizes):
            if elements < least:
                continue
            given = named, lambda program: words_of(roles, count), elements * ahead
            joined = as_bits(self.strategy, recorded()[place].program) if self._closed else None
            record = partial(lambda place: recorded()[place].program, place)
            loop = kept.bound_loop(record, elements, compiled, *given, joined=joined, **self._options)
            if loop is not None:
                found[place] = BoundStage(loop, recorded()[place].results)
        return found
