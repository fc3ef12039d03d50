"""Attribution, bounds and blame of a block of inputs in one compiled loop.

NumPy goes through a block some fifty times for each operation (`mcfsim.analysis.attribution`). The loop takes
a few inputs at a time, whose numbers stay in the cache. It copies the rules of `secants`, `rounded_run` and
`bounds`. A program is data: all programs with steps of the same kinds share a loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mcfsim.analysis import attribution_source
from mcfsim.analysis.attribution import RoundedFunction
from mcfsim.analysis.attribution_source import MOST_NUMBERS, Branch, source
from mcfsim.analysis.blame import SUMMED, ShareSums
from mcfsim.analysis.bounds import ends, largest_unit
from mcfsim.analysis.numba_source import called, is_available, is_cached
from mcfsim.analysis.rounded_run import applies, is_exact, run
from mcfsim.checks import check_processor
from mcfsim.compile.program import ProgramStep, Register
from mcfsim.kernels.real_numbers import Scalars, as_float

Array = NDArray[np.float64]
#: The fewest operations on inputs for which the loop pays: if it is in the cache, and if it must be compiled.
_LOADED, _COMPILED = 20_000_000, 300_000_000
#: What the loop finds for each input.
COLUMNS = ("computed", "error", "condition", "turned", "first order", "3 sigma", "running")


class LoopPlan(NamedTuple):
    """The data by which one loop carries out a program.

    Attributes
    ----------
    branches : tuple of Branch
    entering : str
        Source of the function that rounds inputs; empty unless the loop performs the program.
    of_steps : list of Branch
        The branch of each step.
    numbers : list of tuple of float
        For each step, the numbers that stand for its real scalars.
    """

    branches: tuple[Branch, ...]
    entering: str
    of_steps: list[Branch]
    numbers: list[tuple[float, ...]]

    @classmethod
    def of(cls, rounded: RoundedFunction, *, performs: bool = True) -> LoopPlan:
        """Return the plan: the loop performs all steps, if `performs` and it can perform each; else none."""
        steps = rounded.program.steps
        found = [attribution_source.performed(x, rounded.scalars) for x in steps] if performs else []
        made = [x for x in found if x is not None]
        whole = performs and len(made) == len(steps)
        entering = attribution_source.entered(rounded.format, rounded.of_inputs) if whole else None
        if entering is None:
            made = [(Branch(x.operation, ""), ()) for x in steps]
        branches = [branch for branch, _ in made]
        return cls(tuple(sorted({*branches})), entering or "", branches, [numbers for _, numbers in made])


def pays(rounded: RoundedFunction) -> bool:
    """Return whether the loop saves more time than it takes to compile or load it."""
    work = rounded.inputs.size * len(rounded.program.steps)
    enough = work > _LOADED and is_available()
    if not (_loaded or enough):
        return False
    text = LoopPlan.of(rounded)[:2]
    return text in _loaded or (enough and (work > _COMPILED or is_cached(source(*text))))


class AttributionLoop:
    """The loop with the operations of a program.

    Parameters
    ----------
    rounded : RoundedFunction
    row_of : mapping of Register to int
        The row of the blame of each input and result.
    performs : bool, optional
        Whether the loop performs the program where it can; otherwise NumPy does, before it.

    Notes
    -----
    The loop takes: for each step, the number of its branch, the places of its operands (inputs first, then
    results, then constants; -1 if there are fewer), the unit of its rounding (relative, and the least), the
    ends of its format's range, the share of the unit that counts as a standard deviation, whether it rounds,
    whether a rule finds its own error, and numbers that stand for its real scalars; the places of outputs;
    constants; for each input and result, whether an output depends on it, its row, and the addresses of its
    given data.
    """

    def __init__(
        self, rounded: RoundedFunction, row_of: Mapping[Register, int], *, performs: bool = True
    ) -> None:
        program = rounded.program
        self._registers = [*program.inputs, *(step.result for step in program.steps)]
        steps, reached, constants = program.steps, set(rounded.outputs), list[float]()
        place = {x: number for number, x in enumerate(self._registers)}
        operands = np.full((len(steps), 3), -1, np.int64)
        for number, step in reversed([*enumerate(steps)]):
            if step.result in reached:
                reached.update(step.registers)
            for n, x in enumerate(step.operands):
                operands[number, n] = place.get(x, len(place) + len(constants))
                if not isinstance(x, Register):
                    constants.append(float(as_float(x)))
        plan = LoopPlan.of(rounded, performs=performs)
        self._rounded, self._performs = rounded, bool(plan.entering)
        self._loop = _loop(plan.branches, plan.entering)
        numbers = np.zeros((len(steps), MOST_NUMBERS))
        if self._performs:
            known = tuple(x for x in steps if not x.registers)
            once = run(replace(program, inputs=(), steps=known), [], scalars=rounded.scalars)
            for step, row, own in zip(steps, numbers, plan.numbers, strict=True):
                row[: len(own)] = own
                if not step.registers:
                    row[:2] = once.values[step.result].item(), once.errors[step.result].item()
        facts = _facts(steps, rounded.scalars)
        pairs = zip(steps, facts, strict=True)
        self._others = [x for x, of_step in pairs if of_step.rounded and not of_step.judged]
        self._rows = 1 + max(row_of.values())
        self._tables = (
            np.array([plan.branches.index(x) for x in plan.of_steps], np.int64),
            operands,
            np.array([place[x] for x in rounded.outputs], np.int64),
            np.array(constants, np.float64),
            np.array([x in reached for x in self._registers], np.bool_),
            np.array([row_of[x] for x in self._registers], np.int64),
            *(np.array([x[n] for x in facts], kind) for n, kind in enumerate(_KINDS)),
            numbers,
        )

    def __call__(self, number: int) -> tuple[ShareSums, dict[str, Array]]:
        """Return the sums of a block for the blame, and columns of the findings for each input."""
        errors: Mapping[Register, Array] = {}
        values: Mapping[Register, NDArray[Any]]
        if self._performs:
            check_processor()
            block = map(np.ascontiguousarray, self._rounded.inputs.block(number))
            values = dict(zip(self._rounded.program.inputs, block, strict=True))
        else:
            found = self._rounded.block(number)
            values = found.run.carried
            errors = {x.result: found.run.error_of(x) for x in self._others} | dict(found.input_errors)
        size = values[self._registers[0]].size
        columns, sample = np.empty((len(COLUMNS), size)), np.empty((self._rows, size))
        sums, totals = np.zeros((self._rows, len(SUMMED))), np.zeros(3)
        self._loop(
            *self._tables,
            np.array([_address(values[x]) if x in values else 0 for x in self._registers], np.int64),
            np.array([x in values and values[x].dtype == np.float64 for x in self._registers], np.bool_),
            np.array([_address(errors[x]) if x in errors else 0 for x in self._registers], np.int64),
            *(self._rounded.data == "real", columns, sums, totals, sample),
        )
        usable = ~np.isnan(sample[0])
        return ShareSums(totals, sums, sample[:, usable]), dict(zip(COLUMNS, columns, strict=True))


class _Facts(NamedTuple):
    """What the loop needs to know of a step; `judged` says whether a rule gives its own error."""

    unit: tuple[float, float]
    ends: tuple[float, float]
    spread: float
    rounded: bool
    judged: bool


#: The types of a step's facts.
_KINDS = (np.float64, np.float64, np.float64, np.bool_, np.bool_)


def _facts(steps: Iterable[ProgramStep], scalars: Scalars) -> list[_Facts]:
    """Return the facts of steps; equal steps whose operands are all values share them."""
    known, found = dict[Any, _Facts](), []
    for step in steps:
        values = len(step.registers) == len(step.operands)
        formats = tuple(x.format for x in (step.result, *step.registers))
        key = (step.operation, formats, step.rounding) if values else step
        if key not in known:
            known[key] = _Facts(
                largest_unit(step, scalars),
                ends(step.result.format),
                0.5 if step.rounding.stochastic else 1.0,
                not is_exact(step),
                applies(step, {}),
            )
        found.append(known[key])
    return found


def _address(x: NDArray[Any]) -> int:
    address: int = x.__array_interface__["data"][0]
    return address


_loaded: dict[tuple[tuple[Branch, ...], str], Any] = {}


def _loop(branches: tuple[Branch, ...], entering: str) -> Any:
    if (branches, entering) not in _loaded:
        whole, numbers, flags = np.zeros(0, np.int64), np.zeros(0), np.zeros(0, np.bool_)
        pairs = np.zeros((0, 2))
        _loaded[branches, entering] = called(
            source(branches, entering),
            "attribution",
            *(whole, np.zeros((0, 3), np.int64), whole, numbers, flags, whole),
            *(pairs, pairs, numbers, flags, flags, pairs, whole, flags, whole, False),
            *(np.zeros((len(COLUMNS), 0)), np.zeros((0, len(SUMMED))), np.zeros(3), np.zeros((0, 0))),
        )
    return _loaded[branches, entering]
