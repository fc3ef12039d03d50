"""Attribution, bounds and blame of a block of inputs in one compiled loop.

NumPy goes through a block some fifty times for each operation (`mcfsim.analysis.attribution`). The loop takes
a few inputs at a time, whose numbers stay in the cache. It copies the rules of `secants`, `passed_errors` and
`own_errors`. A program is data: all programs of the same kinds of operations share a loop.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from inspect import getsource, isfunction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.analysis import attribution_loop, own_errors, passed_errors, secants
from mcfsim.analysis.blame import SUMMED, ShareSums
from mcfsim.analysis.bounds import ends, largest_unit, rounds
from mcfsim.analysis.own_errors import applies
from mcfsim.analysis.rounded_run import RoundedRun, exactly_selects
from mcfsim.compile.choice import is_available
from mcfsim.compile.numba_source import NJIT
from mcfsim.compile.program import Program, Register
from mcfsim.compile.sources import called, indented, is_cached, module_head
from mcfsim.kernels.real_numbers import as_float

Array = NDArray[np.float64]
#: From how many operations on inputs on the loop pays if it is in the cache, and if it must be compiled.
_LOADED, _COMPILED = 20_000_000, 300_000_000
#: What the loop finds of each input.
COLUMNS = ("computed", "error", "condition", "turned", "first order", "3 sigma", "running")


def pays(program: Program, inputs: int) -> bool:
    """Return whether the loop saves more time than it takes to compile or load it."""
    names, work = _names(program), inputs * len(program.steps)
    if names in _loaded:
        return True
    return work > _LOADED and is_available() and (work > _COMPILED or is_cached(source(names)))


def _names(program: Program) -> tuple[str, ...]:
    return tuple(sorted({x.operation for x in program.steps}))


class AttributionLoop:
    """The loop with the operations of a program.

    Parameters
    ----------
    program : Program
    outputs : sequence of Register
        The results whose sum is analysed.
    row_of : mapping of Register to int
        The row of the blame of each input and result.

    Notes
    -----
    The loop takes: of each step, the number of its operation, the places of its operands (inputs first, then
    results, then constants; -1 if there are fewer), the unit of its rounding (relative, and the least), the
    ends of its format's range, the share of the unit that counts as a standard deviation, whether it rounds,
    and whether the loop finds its own error; the places of outputs; constants; of each input and result,
    whether an output depends on it, and its row.
    """

    def __init__(self, program: Program, outputs: Any, row_of: Mapping[Register, int]) -> None:
        self._registers = [*program.inputs, *(step.result for step in program.steps)]
        place = {x: number for number, x in enumerate(self._registers)}
        constants: list[float] = []
        operands = np.full((len(program.steps), 3), -1, np.int64)
        reached = set(outputs)
        for number, step in reversed([*enumerate(program.steps)]):
            if step.result in reached:
                reached.update(step.registers)
            for n, x in enumerate(step.operands):
                if not isinstance(x, Register):
                    constants.append(float(as_float(x)))
                operands[number, n] = place.get(x, len(place) + len(constants) - 1)
        steps = program.steps
        names = _names(program)
        self._loop = _loop(names)
        of_steps: list[tuple[type, list[Any]]] = [
            (np.float64, [largest_unit(x, x.result.format) for x in steps]),
            (np.float64, [ends(x.result.format) for x in steps]),
            (np.float64, [0.5 if x.rounding.stochastic else 1.0 for x in steps]),
            (np.bool_, [rounds(x) for x in steps]),
            (np.bool_, [applies(x, {}) for x in steps]),
        ]
        self._others = [x for x in steps if not applies(x, {}) and not exactly_selects(x)]
        self._rows = 1 + max(row_of.values())
        self._tables = (
            np.array([names.index(x.operation) for x in steps], np.int64),
            operands,
            np.array([place[x] for x in outputs], np.int64),
            np.array(constants, np.float64),
            np.array([x in reached for x in self._registers], np.bool_),
            np.array([row_of[x] for x in self._registers], np.int64),
            *(np.array(x, dtype) for dtype, x in of_steps),
        )

    def __call__(
        self, run: RoundedRun, input_errors: Mapping[Register, Array]
    ) -> tuple[ShareSums, dict[str, Array]]:
        """Return the sums of a block for the blame, and columns of what is found of each input."""
        values = [run.carried[x] for x in self._registers]
        size = values[0].size
        errors = {step.result: run.error_of(step) for step in self._others} | dict(input_errors)
        columns, sample = np.empty((len(COLUMNS), size)), np.empty((self._rows, size))
        sums, totals = np.zeros((self._rows, len(SUMMED))), np.zeros(3)
        self._loop(
            *self._tables,
            np.array([_address(x) for x in values], np.int64),
            np.array([x.dtype == np.float64 for x in values], np.bool_),
            np.array([_address(errors[x]) if x in errors else 0 for x in self._registers], np.int64),
            *(len(input_errors) > 0, columns, sums, totals, sample),
        )
        usable = ~np.isnan(sample[0])
        return ShareSums(totals, sums, sample[:, usable]), dict(zip(COLUMNS, columns, strict=True))


def _address(x: NDArray[Any]) -> int:
    address: int = x.__array_interface__["data"][0]
    return address


# -- its source -------------------------------------------------------------------------------------------
_IMPORTS = """from math import erf, erfc

import numpy as np
from numba import njit

from mcfsim.analysis.attribution_loop import BOUND, DERIVATIVES, ERROR, EXACT, FACTOR, FIELDS, LANES
from mcfsim.analysis.attribution_loop import MARGIN, OWN, SENSITIVITY, SLOPES, VALUE
from mcfsim.analysis.secants import NODES, WEIGHTS
from mcfsim.compile.intrinsics import row_float32, row_float64, select


@njit
def add(a, b):
    return a + b


@njit
def sub(a, b):
    return a - b


@njit
def expm1(x):
    return x if x == 0 else np.expm1(x)
"""
#: Functions of the copied modules that the compiled one has otherwise.
_OTHERS = ("erf", "erfc", "exact_sum")


def _copied(function: Callable[..., Any] | ast.FunctionDef, name: str = "") -> str:
    """Return a function as a compiled one."""
    part = function if isinstance(function, ast.FunctionDef) else ast.parse(getsource(function)).body[0]
    assert isinstance(part, ast.FunctionDef)
    part.name, part.decorator_list, part.returns = name or part.name, [], None
    for x in part.args.args:
        x.annotation = None
    return f"\n\n{NJIT}{ast.unparse(part)}\n"


def _copied_rules(table: Mapping[str, Callable[..., Any]], names: Iterable[str], prefix: str) -> str:
    """Return the rules of some operations, with the functions that they call, under names with a prefix."""
    found: dict[str, str] = {}

    def copy(function: Callable[..., Any]) -> None:
        if function.__name__ in found:
            return
        used = {x: function.__globals__[x] for x in function.__code__.co_names if x in function.__globals__}
        for name, x in used.items():
            if isfunction(x) and x.__module__ == function.__module__ and name not in _OTHERS:
                copy(x)
        found[function.__name__] = _copied(function)

    for name in names:
        if name in table:
            copy(table[name])
    return re.sub(r"\b_(\w+)\(", rf"{prefix}_\1(", "".join(found.values()))


def _rules(name: str) -> list[str]:
    """Return the statements that perform an operation on the inputs that are taken at a time."""
    slope, passed = secants.SLOPES[name], passed_errors.PASSED[name].__name__
    count = (slope.__code__.co_argcount - 1) // 2
    h, d, exact, bound = (
        ", ".join(f"M[{o}, {x}, j]" for o in "abc"[:count]) for x in ("VALUE", "ERROR", "EXACT", "BOUND")
    )
    zeros = ", ".join(["0.0"] * count)
    body, before, after = ["y = M[r, VALUE, j] - M[r, OWN, j]"], list[str](), list[str]()
    if name == "choose":
        before, after = ["flips = 0"], ["sums[row, 6] += flips"]
        body += [f"went, more = flipped({h}, M[a, ERROR, j])", "flips += went & there[j]"]
        body += ["found[3, j] += went", "M[r, OWN, j] = select(errors[r] != 0, M[r, OWN, j], 0.0) + more"]
    if name in ("add", "sub"):
        before, after = ["stuck = 0"], ["sums[row, 5] += stuck"]
        other = "M[b, VALUE, j]" if name == "add" else "-M[b, VALUE, j]"
        kept = f"(M[r, VALUE, j] == M[a, VALUE, j]) | (M[r, VALUE, j] == {other})"
        body += [f"stuck += ({kept}) & (M[r, OWN, j] != 0) & there[j]"]
    body += [f"k = slope{slope.__name__}(y, {h}, {d})", "total = M[r, OWN, j]"]
    body += [f"total += times(k[{n}], M[{o}, ERROR, j])" for n, o in enumerate("abc"[:count])]
    body += ["exact = M[r, VALUE, j] - total", f"g = slope{slope.__name__}(exact, {exact}, {zeros})"]
    body += [
        f"M[r, BOUND, j] = passed{passed}(y, {h}, {bound})",
        "M[r, ERROR, j], M[r, EXACT, j] = total, exact",
    ]
    for n in range(count):
        body += [f"M[r, SLOPES + {n}, j], M[r, DERIVATIVES + {n}, j] = k[{n}], g[{n}]"]
    if name in own_errors.OWN_ERRORS:
        before += ["if judged[s]:", "    for j in range(LANES):"]
        before += [f"        M[r, OWN, j] = own{own_errors.OWN_ERRORS[name].__name__}(M[r, VALUE, j], {h})"]
    return [*before, "for j in range(LANES):", *(f"    {x}" for x in body), *after]


def source(names: Sequence[str]) -> str:
    """Return the source of the compiled module for programs with some operations, numbered in this order."""
    text = _copied(own_errors.exact_sum, "exact_sum")
    text = re.sub(r"\bar\.(\w+)", r"\1", re.sub(r"\bar, ", "", text))
    tables = {"slope": secants.SLOPES, "passed": passed_errors.PASSED, "own": own_errors.OWN_ERRORS}
    text += "".join(_copied_rules(table, names, prefix) for prefix, table in tables.items())
    if "choose" in names:
        text += _copied(secants.flipped)
    # Derivatives are slopes at errors of zero, known when this is compiled.
    text = (
        text.replace("BINARY64, ", "").replace("np.expm1", "expm1")
        + _copied(attribution_loop.times)
        + _copied(attribution_loop.attribution)
    )
    cases = indented(["a, b, c = operands[s, 0], operands[s, 1], operands[s, 2]"], 3)
    for number, name in enumerate(names):
        cases += indented([f"{'el' * (number > 0)}if operations[s] == {number}:"], 3)
        cases += indented(_rules(name), 4)
    about = "The attribution of errors to operations, their bounds and their sums over inputs."
    return module_head(about, _IMPORTS) + text.replace(indented(["performed()"], 3), cases)


_loaded: dict[tuple[str, ...], Any] = {}


def _loop(names: tuple[str, ...]) -> Any:
    if names not in _loaded:
        whole, numbers, flags = np.zeros(0, np.int64), np.zeros(0), np.zeros(0, np.bool_)
        pairs = np.zeros((0, 2))
        _loaded[names] = called(
            source(names),
            "attribution",
            *(whole, np.zeros((0, 3), np.int64), whole, numbers, flags, whole),
            *(pairs, pairs, numbers, flags, flags, whole, flags, whole, False),
            *(np.zeros((len(COLUMNS), 0)), np.zeros((0, len(SUMMED))), np.zeros(3), np.zeros((0, 0))),
        )
    return _loaded[names]
