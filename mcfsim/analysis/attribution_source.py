"""Source of the compiled loop of an analysis: the rules of its operations, and the rounded run itself.

All steps of one kind take one branch of the loop. A branch performs the step, if it can be lowered to a line
of machine operations (`mcfsim.compile.lowering`), and then applies copies of the rules of `secants`, `bounds`
and `rounded_run`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from inspect import getsource, isfunction
from typing import Any, NamedTuple

from mcfsim.analysis import attribution_loop, secants
from mcfsim.analysis.bounds import PASSED
from mcfsim.analysis.numba_source import NJIT, constants_of, expression
from mcfsim.analysis.rounded_run import OWN_ERRORS, applies, exact_sum, is_exact
from mcfsim.compile.lowering import lower
from mcfsim.compile.program import Program, ProgramStep, Register
from mcfsim.compile.scalars import ScalarEncoding, encoding
from mcfsim.compile.sources import indented, module_head, statements
from mcfsim.eft import two_prod
from mcfsim.formats import Format, get_format
from mcfsim.kernels.carriers import FLOAT32, UnsupportedFormatError, carrier_of
from mcfsim.kernels.element.machine import F64, Value
from mcfsim.kernels.element.operations import BINARY64
from mcfsim.kernels.elementary import FUNCTIONS
from mcfsim.kernels.function_blocks import rest_key
from mcfsim.kernels.real_numbers import Scalars, exact_or_binary64
from mcfsim.rounding import Rounding, Underflow


class Branch(NamedTuple):
    """A branch of the loop.

    Attributes
    ----------
    operation : str
    run : str
        Source of a function that computes the rounded results, and the own errors that no rule gives; empty
        if the loop is given both.
    """

    operation: str
    run: str


# -- a step of the run ------------------------------------------------------------------------------------
#: The most numbers that stand for the real scalars of a step.
MOST_NUMBERS = 4
#: Real scalars up to this, and down to its inverse, have products with values that two binary64 numbers hold.
_COMFORT = 2.0**400
#: The statement for a step whose operands are all real scalars: its result and its error are known.
_KNOWN = "M[r, VALUE, j], M[r, OWN, j] = numbers[0], numbers[1]"
#: Operation, formats of the operands (None for real scalars), format of the result, and rounding of a step.
_About = tuple[str, tuple[Format | None, ...], Format, Rounding]


def performed(step: ProgramStep, scalars: Scalars) -> tuple[Branch, tuple[float, ...]] | None:
    """Return the branch of a step that the loop performs, and the numbers that stand for its real scalars.

    For a step without values as operands the numbers are its result and its error; these are not returned.
    None if the loop cannot perform the step, or find its error.
    """
    if step.rounding.stochastic:
        return None
    if not step.registers:
        return Branch(step.operation, _loop_of((), _KNOWN)), ()
    about: _About = (
        step.operation,
        tuple(x.format if isinstance(x, Register) else None for x in step.operands),
        step.result.format,
        step.rounding,
    )
    if None not in about[1]:
        return _of_values(about)
    numbers = [x for x in step.operands if not isinstance(x, Register)]
    judged = applies(step, {})
    factors = [] if judged else _factors(step)
    if not (judged or factors or is_exact(step)):
        return None
    try:
        found = [encoding(use, x, scalars) for use, x in zip(_alone(about).uses, numbers, strict=True)]
        text = _text(about, tuple(way for way, _ in found), scaled=bool(factors))
    except UnsupportedFormatError:
        return None
    return Branch(step.operation, text), (*(x for _, part in found for x in part), *factors)


@lru_cache(maxsize=1024)
def _of_values(about: _About) -> tuple[Branch, tuple[float, ...]] | None:
    operation, formats, fmt, rounding = about
    (step,) = _alone(about).steps
    function = operation in FUNCTIONS and formats == (fmt,) and rounding.underflow != Underflow.FLUSH_INPUTS
    if not (applies(step, {}) or is_exact(step) or operation == "round" or function):
        return None
    try:
        return Branch(operation, _text(about)), ()
    except UnsupportedFormatError:
        return None


def _factors(step: ProgramStep) -> list[float]:
    """Return the real scalar that multiplies or divides a value, if two numbers hold the product exactly."""
    scalars = [exact_or_binary64(x) for x in step.operands if not isinstance(x, Register)]
    fits = step.operation == "mul" or (step.operation == "div" and isinstance(step.operands[0], Register))
    short = all(carrier_of(x.format) == FLOAT32 for x in (step.result, *step.registers))
    known = [x for x in scalars if isinstance(x, float) and 1 / _COMFORT <= abs(x) <= _COMFORT]
    return known if fits and short else []


def entered(fmt: Format, rounding: Rounding) -> str | None:
    """Return the source of a function that rounds inputs in place and notes their errors; None if none."""
    branch = _of_values(("round", (get_format("float64"),), fmt, rounding))
    return None if branch is None else branch[0].run


def _alone(about: _About) -> Program:
    """Return a step as a program of its own."""
    operation, formats, fmt, rounding = about
    operands = [1.0 if x is None else Register(f"x{n}", x) for n, x in enumerate(formats)]
    step = ProgramStep(operation, rounding, tuple(operands), Register("y", fmt))
    return Program(operation, tuple(step.registers), (), (step,), step.result)


@lru_cache(maxsize=1024)
def _text(about: _About, ways: tuple[ScalarEncoding, ...] = (), *, scaled: bool = False) -> str:
    operation, formats, fmt, _ = about
    program = _alone(about)
    lowered = lower(program, ways, trusted=frozenset(range(len(program.inputs))))
    (y,) = (x.widen() for x in lowered.results)
    asked, numbers = [y], list(lowered.numbers)
    if scaled:
        numbers.append(lowered.line.input("scalar", F64))
        asked.append(_left_of_scaled(y, operation, lowered.operands[0].widen(), numbers[-1]))
    elif operation == "round":
        asked.append(y - lowered.operands[0].widen())
    elif operation in FUNCTIONS:
        asked.append(_left(y, operation, fmt))
    lowered = replace(lowered, results=tuple(asked), numbers=tuple(numbers))
    letters = [letter for letter, x in zip("abc", formats, strict=False) if x is not None]

    def read(value: Value) -> str:
        return f"{value.type}(M[{letters[lowered.operands.index(value)]}, VALUE, j])"

    made = statements(lowered, asked, read, expression)
    once = constants_of(made.constants).splitlines()
    once += [f"{x.constant} = {x.type}(numbers[{n}])" for n, x in enumerate(lowered.numbers)]
    places = ("M[r, VALUE, j]", "M[r, OWN, j]")
    body = [x for x in made.body if not x.startswith("#")]
    body += [f"{place} = {name}" for place, name in zip(places, made.results, strict=False)]
    return constants_of({}, lowered.tables) + _loop_of(once, *body)


def _left(y: Value, operation: str, fmt: Format) -> Value:
    """Return a rounded value of a function minus its exact value, as `function_blocks.residuals` does."""
    (odd,) = (x for x in y.line.values if x.verb == "look_up")
    coarse = ((odd.bits() + 4) & -8).as_number()
    left: Value = (y - coarse) - odd.operands[0].look_up(rest_key(operation, fmt))
    return left


def _left_of_scaled(y: Value, operation: str, x: Value, scalar: Value) -> Value:
    """Return a rounded product, or quotient, of a value and a scalar of binary64 minus the exact one."""
    near = x * scalar if operation == "mul" else x / scalar
    product, rest = two_prod(BINARY64, x if operation == "mul" else near, scalar)
    left: Value = (y - near) - (rest if operation == "mul" else ((x - product) - rest) / scalar)
    return left


def _loop_of(once: Sequence[str], *body: str) -> str:
    """Return the source of a function that runs some statements once, and the others for each input."""
    head = f"{NJIT}def NAME(M, a, b, c, r, numbers):\n    prefer_whole_vectors()\n"
    return f"{head}{indented(once)}    for j in range(LANES):\n{indented(body, 2)}"


# -- the source -------------------------------------------------------------------------------------------
_IMPORTS = """from math import erf, erfc

import numpy as np
from numba import njit

from mcfsim.analysis.attribution_loop import BOUND, ERROR, FACTOR, FIELDS, LANES, MARGIN
from mcfsim.analysis.attribution_loop import OWN, SENSITIVITY, VALUE
from mcfsim.analysis.secants import NODES, WEIGHTS
from mcfsim.analysis.intrinsics import bits32, bits64, f32, f64, i32, i64, number32, number64
from mcfsim.analysis.intrinsics import prefer_whole_vectors, row_float32, row_float64, select, sqrt
from mcfsim.analysis.intrinsics import u32, u64


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
#: Functions of the copied modules that the compiled module replaces by its own.
_OTHERS = ("erf", "erfc", "exact_sum")


@lru_cache(maxsize=256)  # each loop has some thirty of them
def _copied(function: Callable[..., Any], name: str = "") -> str:
    """Return the source of a function, with the decorator that compiles it."""
    part = ast.parse(getsource(function)).body[0]
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
    """Return the statements that apply an operation's rules to the inputs that are taken at a time."""
    slope, passed = secants.SLOPES[name], PASSED[name].__name__
    count = (slope.__code__.co_argcount - 1) // 2
    h, d, bound = (", ".join(f"M[{o}, {x}, j]" for o in "abc"[:count]) for x in ("VALUE", "ERROR", "BOUND"))
    exact = ", ".join(f"M[{o}, VALUE, j] - M[{o}, ERROR, j]" for o in "abc"[:count])
    zeros = ", ".join(["0.0"] * count)
    body, before, after = ["y = M[r, VALUE, j] - M[r, OWN, j]"], list[str](), list[str]()
    if name == "choose":
        before, after = ["flips = 0"], ["sums[row, 6] += flips"]
        body += [f"went, more = flipped({h}, M[a, ERROR, j])", "flips += went & there[j]"]
        body += ["found[3, j] += went"]
        body += ["M[r, OWN, j] = select(errors[r] != 0, M[r, OWN, j], 0.0) + more"]
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
        "M[r, ERROR, j] = total",
    ]
    for n in range(count):
        body += [f"K[s, {2 * n}, j], K[s, {2 * n + 1}, j] = k[{n}], g[{n}]"]
    if name in OWN_ERRORS:
        before += ["if judged[s]:", "    for j in range(LANES):"]
        before += [f"        M[r, OWN, j] = own{OWN_ERRORS[name].__name__}(M[r, VALUE, j], {h})"]
    return [*before, "for j in range(LANES):", *(f"    {x}" for x in body), *after]


def source(branches: Sequence[Branch], entering: str = "") -> str:
    """Return the source of the compiled module with some branches, numbered in this order.

    Parameters
    ----------
    branches : sequence of Branch
    entering : str, optional
        How inputs are rounded, as `entered` returns it; by default they are given rounded.
    """
    names = sorted({branch.operation for branch in branches})
    text = _copied(exact_sum, "exact_sum")
    text = re.sub(r"\bar\.(\w+)", r"\1", re.sub(r"\bar, ", "", text))
    tables = {"slope": secants.SLOPES, "passed": PASSED, "own": OWN_ERRORS}
    text += "".join(_copied_rules(table, names, prefix) for prefix, table in tables.items())
    if "choose" in names:
        text += _copied(secants.flipped)
    # Derivatives are slopes at errors of zero, known when this is compiled.
    text = (
        text.replace("BINARY64, ", "").replace("np.expm1", "expm1")
        + _copied(attribution_loop.times)
        + _copied(attribution_loop.attribution)
    )
    texts = dict.fromkeys(x for x in (entering, *(branch.run for branch in branches)) if x)
    runs = {run: f"run{number}" for number, run in enumerate(texts)}
    cases = indented(["a, b, c = operands[s, 0], operands[s, 1], operands[s, 2]"], 3)
    for number, branch in enumerate(branches):
        cases += indented([f"{'el' * (number > 0)}if operations[s] == {number}:"], 3)
        call = [f"{runs[branch.run]}(M, a, b, c, r, numbers[s])"] if branch.run else []
        cases += indented([*call, *_rules(branch.operation)], 4)
    enter = [f"{runs[entering]}(M, x, -1, -1, x, numbers[0])"] if entering else []
    enter += ["if not given:", "    M[x, OWN, :] = 0.0"] if entering else []
    about = "The attribution of errors to operations, their bounds and their sums over inputs."
    text = text.replace(indented(["performed()"], 3), cases)
    text = text.replace(indented(["entered()"], 3), indented(enter, 3))
    functions = "".join(f"\n\n{run.replace('NAME', name)}" for run, name in runs.items())
    return module_head(about, _IMPORTS) + functions + text
