"""The library's straight-line algorithms by name: their operands, and their recorded programs."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple, get_args, get_origin

from mcfsim.checks import hint
from mcfsim.compile.program import Program
from mcfsim.compile.tracing import trace
from mcfsim.formats import Format
from mcfsim.optim.declaration import Declaration, optimizers
from mcfsim.optim.staged import Gathered, Stage, Staged
from mcfsim.optim.state import State
from mcfsim.optim.step_programs import numbers, record_stages, record_step, symbols
from mcfsim.optim.strategies import strategy as strategy_named
from mcfsim.random import RandomWords
from mcfsim.rounding import Rounding

#: Suffixes for the names of the two words of a double word.
_WORDS = ("h", "l")
#: Learning rate of an optimizer's recorded step; it represents all others.
_RATE = 1e-3
#: Shapes that represent all others: a matrix and a vector.
_SHAPES = ((2, 2), (2,))


class StageAlgorithm(NamedTuple):
    """A stage of an optimizer's step: the optimizer, a shape whose step has it, and its index."""

    kind: type[Staged]
    shape: tuple[int, ...]
    place: int
    stage: Stage


@dataclass(frozen=True)
class RecordedAlgorithm:
    """An algorithm recorded as a program, with its source and the names of its results.

    Attributes
    ----------
    program : Program
    source : str
        The algorithm, in Python.
    numbers : mapping of str to number
        Real scalars that represent all others, by their names in the program.
    results : tuple of str
        Names of the program's results, with tuples flattened.
    """

    program: Program
    source: str
    numbers: Mapping[str, Any]
    results: tuple[str, ...]


@lru_cache(maxsize=1)
def algorithms() -> Mapping[str, Any]:
    """Return all algorithms by name: optimizers, and straight lines whose signatures give their operands.

    Functions of `mcfsim.eft` and of double words have their own names. Other names start with the module's
    name, and those of stages (`StageAlgorithm`) with the optimizer's.
    """
    from mcfsim import eft
    from mcfsim.multiword import double_word, expansion, shewchuk

    found: dict[str, Any] = {}
    for module in (eft, double_word, expansion, shewchuk):
        own = module in (eft, double_word)
        for name, item in vars(module).items():
            home = str(getattr(item, "__module__", ""))
            if not name.startswith("_") and home.startswith(module.__name__) and _is_algorithm(item):
                found[name if own else f"{module.__name__.rpartition('.')[2]}.{name}"] = item
    for label, kind in optimizers().items():
        found |= _stages(label, kind) if issubclass(kind, Staged) else {label: kind}
    return MappingProxyType(found)


def _stages(label: str, kind: type[Staged]) -> dict[str, Any]:
    """Return the stages of an optimizer by name: those of a matrix, then those that only a vector has."""
    found: dict[str, Any] = {}
    for shape in _SHAPES:
        for place, item in enumerate(kind().stages(shape)):
            if isinstance(item, Stage):
                found.setdefault(f"{label}.{item.name}", StageAlgorithm(kind, shape, place, item))
    return found


def get_algorithm(name: str) -> tuple[str, Any]:
    """Return the full name of an algorithm and the algorithm, by its name or the last part of it.

    Raises
    ------
    ValueError
        If there is none, or it is a step in stages; the message lists the names.
    """
    known = algorithms()
    if is_staged(name):
        own = ", ".join(item for item in known if item.startswith(f"{name}."))
        raise ValueError(f"a step of {name} is made in stages, each an algorithm of its own: {own}")
    whole = [item for item in known if name == item or name == item.rpartition(".")[2]]
    if not whole:
        raise ValueError(
            f"unknown algorithm {name!r}{hint(name, known)}; known algorithms: {', '.join(known)}"
        )
    return whole[0], known[whole[0]]


def is_staged(name: str) -> bool:
    """Return whether a name is that of an optimizer whose step has stages."""
    return name in optimizers() and optimizers()[name].staged


def is_optimizer(algorithm: Any) -> bool:
    """Return whether an algorithm is an optimizer's step or a stage of one."""
    return isinstance(algorithm, StageAlgorithm) or (
        isinstance(algorithm, type) and issubclass(algorithm, Declaration)
    )


def operands_of(algorithm: Callable[..., Any], components: int = 2) -> tuple[Any, ...]:
    """Return the names of an algorithm's operands, in tuples where it takes tuples.

    Parameters
    ----------
    algorithm : callable
        A straight line.
    components : int, optional
        Length of tuples of variable length.
    """
    signature = inspect.signature(algorithm, eval_str=True)
    _, *operands = (item for item in signature.parameters.values() if item.kind is not item.KEYWORD_ONLY)

    def named(item: inspect.Parameter) -> Any:
        if get_origin(item.annotation) is not tuple:
            return item.name
        ends = range(components) if Ellipsis in get_args(item.annotation) else _WORDS
        return tuple(f"{item.name}{end}" for end in ends)

    return tuple(map(named, operands))


def record(
    name: str, fmt: Format, rounding: Rounding, *, strategy: str | None = None, components: int | None = None
) -> RecordedAlgorithm:
    """Return the recorded program of an algorithm, by its name.

    Parameters
    ----------
    name : str
        See `get_algorithm`.
    fmt : Format
        Format of operands and operations; the low format of an optimizer.
    rounding : Rounding
        Rounding of all operations.
    strategy : str, optional
        Strategy of an optimizer, by default "plain".
    components : int, optional
        Length of tuples of variable length, by default 2.

    Raises
    ------
    ValueError
        If there is no such algorithm, it takes no strategy or no number of components, or it is no program,
        because it computes with exact numbers.
    """
    whole, algorithm = get_algorithm(name)
    if is_optimizer(algorithm):
        if components is not None:
            raise ValueError(f"{whole} takes a strategy, which says how many components there are")
        return _step(whole, algorithm, fmt, rounding, strategy or "plain")
    if strategy is not None:
        raise ValueError(f"{whole} is no optimizer and takes no strategy")
    if components is not None and operands_of(algorithm, 2) == operands_of(algorithm, 3):
        raise ValueError(f"{whole} takes no tuples of variable length, so its number of components is fixed")
    program = trace(algorithm, fmt, rounding, operands=operands_of(algorithm, components or 2))
    source = inspect.getsource(inspect.unwrap(algorithm))
    return RecordedAlgorithm(program, source, {}, _result_names(algorithm, len(program.outputs())))


def algorithm_table() -> list[dict[str, str]]:
    """Return one row of strings per algorithm: its name, its operands, and its summary."""

    def taken(algorithm: Any) -> str:
        if is_optimizer(algorithm):
            return "a strategy"
        parts = (x if isinstance(x, str) else f"({', '.join(x)})" for x in operands_of(algorithm))
        return ", ".join(parts)

    return [
        {"algorithm": name, "takes": taken(algorithm), "what": _about(algorithm)}
        for name, algorithm in algorithms().items()
    ]


def stage_table(name: str) -> list[dict[str, str]]:
    """Return one row of strings per part of an optimizer's step: of a matrix, then of a vector."""
    kind: Any = optimizers()[name]
    rows = []
    for shape in _SHAPES:
        for item in kind().stages(shape):
            gathered = isinstance(item, Gathered)
            rows.append(
                {
                    "of a": "matrix" if len(shape) > 1 else "vector",
                    "made": item.name if gathered else f"{name}.{item.name}",
                    "for each": item.over.name.lower(),
                    "what": item.what if gathered else _about(item.algorithm),
                }
            )
    return rows


def _about(algorithm: Any) -> str:
    """Return the first line of an algorithm's docstring."""
    described = algorithm.stage.algorithm if isinstance(algorithm, StageAlgorithm) else algorithm
    return (inspect.getdoc(described) or "").partition("\n")[0]


def _step(name: str, algorithm: Any, fmt: Format, rounding: Rounding, strategy: str) -> RecordedAlgorithm:
    """Return the recorded step of an optimizer, or a stage of it."""
    stored = strategy_named(strategy, fmt)
    if any(item.format is None for item in stored.tensors.values()):
        raise ValueError(f"strategy {strategy!r} computes with exact numbers, and its step is no program")
    staged = isinstance(algorithm, StageAlgorithm)
    if not staged and stored.parameter.grid is not None:
        raise ValueError(
            f"strategy {strategy!r} puts its weights on a grid after each step, by scales of whole "
            "tensors, and its step is no program"
        )
    hyper = (algorithm.kind if staged else algorithm)()
    # The program does not depend on which words are drawn.
    roles = stored.roles(rounding, random=RandomWords(0))
    scalars = hyper.scalars(roles, stored, 2 if staged else 1, rate=_RATE, decayed=True)
    made: dict[str, Any]
    if staged:
        recorded = record_stages(hyper, stored, roles, symbols(scalars), algorithm.shape, lines=True)
        program, made = recorded[algorithm.place]
        source = inspect.getsource(algorithm.stage.algorithm)
    else:
        program = record_step(hyper, stored, roles, symbols(scalars), lines=True)
        made = {**State(*program.results[:-1])._asdict(), "update": program.results[-1]}
        source = inspect.getsource(getattr(sys.modules[algorithm.__module__], name, algorithm.step))
    labels: list[str] = []
    for label, x in made.items():
        labels += [f"{label}{place}" for place, _ in enumerate(x)] if isinstance(x, tuple) else [label]
    given = numbers(scalars)
    return RecordedAlgorithm(program, source, {x: given[x] for x in program.scalars}, tuple(labels))


def _result_names(algorithm: Callable[..., Any], count: int) -> tuple[str, ...]:
    """Return the names of the results in the docstring, or default names."""
    found = re.search(r"Returns\n *-+\n *([\w, ]+?) : value\n", algorithm.__doc__ or "")
    names = tuple(found[1].split(", ")) if found else ()
    if len(names) == count:
        return names
    if get_args(inspect.signature(algorithm, eval_str=True).return_annotation) == (Any, Any):
        return ("high", "low")
    return tuple(f"result{place}" for place in range(count))


def _is_algorithm(item: Any) -> bool:
    """Return whether a function is a straight line whose signature gives its operands."""
    if not inspect.isfunction(item) or not hasattr(item, "__wrapped__"):
        return False
    parameters = list(inspect.signature(item, eval_str=True).parameters.values())[1:]
    given = (x.annotation for x in parameters if x.kind is not x.KEYWORD_ONLY)
    return all(x is Any or (get_origin(x) is tuple and {*get_args(x)} <= {Any, Ellipsis}) for x in given)
