"""A statement on one block of operands: its algorithm run, its hypotheses and its claim asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from reprlib import repr as shortened
from typing import Any

import numpy as np

from mcfsim.backends.block_arithmetic import BlockArithmetic
from mcfsim.compile.choice import loops
from mcfsim.compile.program import Program
from mcfsim.compile.tracing import trace
from mcfsim.formats import Format
from mcfsim.kernels.carriers import UnsupportedFormatError
from mcfsim.protocol import RoundedNumber
from mcfsim.rounding import Rounding
from mcfsim.theorems.identity import by_identity, identity_of
from mcfsim.theorems.in_range import inside
from mcfsim.theorems.operands import Block, OperandSpec
from mcfsim.theorems.paths import EveryPath
from mcfsim.theorems.sealed_blocks import Sealed, is_block
from mcfsim.theorems.statement import Theorem
from mcfsim.theorems.trial import Measured, Trial, flat

#: Fewer cases are not worth looking whether compiling pays.
LEAST_COMPILED = 1 << 12


def try_block(theorem: Theorem, ar: Any, blocks: list[Block]) -> Trial:
    """Run the algorithm of a statement on a block of operands, one array a component.

    Under stochastic rounding it is run on every path.

    Raises
    ------
    TypeError
        If the algorithm returns something else than blocks, nested in tuples or not.
    ValueError
        If it raises an exception, which is the cause.
    """
    given = Sealed(blocks)
    operands, size = structured(theorem.operands, given.blocks), blocks[0].size
    paths = EveryPath(ar, size) if ar.rounding.stochastic else None
    results = None if paths else run_compiled(theorem, ar, blocks)
    if results is None:
        with np.errstate(all="ignore"), blaming(theorem, "the algorithm"):
            results = tuple(flat(theorem.algorithm(paths or ar, *operands)))
            given.check()
    if paths:
        results, size = tuple(map(paths.settled, results)), paths.whose.size
    for number, result in enumerate(results, 1):
        if not is_block(result, "f", (size,)):
            raise TypeError(
                f"{theorem.name!r}: result {number} of the algorithm is {_described(result)}; it must be a "
                f"block of {size} numbers, one a case, made of operands by the arithmetic"
            )
    if not results:
        raise TypeError(f"{theorem.name!r}: the algorithm returns no results")
    names = tuple(operand.name for operand in theorem.operands)
    made = Sealed([result.copy() for result in results])
    if not paths:
        return Trial(ar, names, operands, tuple(made.blocks), (given, made))
    trial = paths.trial(names, operands, tuple(made.blocks))
    shown = Sealed(flat(tuple(trial.operands)))
    return replace(trial, operands=structured(theorem.operands, shown.blocks), sealed=(given, shown, made))


def run_compiled(theorem: Theorem, ar: Any, blocks: list[Block]) -> tuple[Block, ...] | None:
    """Return the algorithm's results by a compiled loop, or None where there is to be none.

    That is where compiling pays, the arithmetic is the emulator, and the algorithm a straight line whose
    statement has an identity.
    """
    size = blocks[0].size
    if type(ar) is not BlockArithmetic or size < LEAST_COMPILED or not identity_of(theorem):
        return None
    filler = loops(ar.scalars).filler(lambda: recorded_algorithm(theorem, ar.format, ar.rounding), size, None)
    if filler is None or [block.dtype for block in blocks] != list(filler.operands):
        return None
    results = tuple(np.empty(size, dtype) for dtype in filler.results)
    filler([np.ascontiguousarray(block) for block in blocks], results)
    return results


@by_identity(256)
def recorded_algorithm(theorem: Theorem, fmt: Format, rounding: Rounding) -> Program:
    """Return the algorithm as a program.

    Raises
    ------
    TypeError
        If it is no straight line, whatever it raises itself.
    """
    components = [f"x{place}" for place in range(sum(item.components for item in theorem.operands))]
    try:
        operands = structured(theorem.operands, components)
        return trace(theorem.algorithm, fmt, rounding, operands=operands, lines=False)
    except Exception as error:
        raise TypeError(f"{theorem.name!r}: the algorithm is no straight line") from error


def structured(operands: tuple[OperandSpec, ...], components: list[Any]) -> tuple[Any, ...]:
    """Return components as values, and tuples of them for operands that have several."""
    rest = iter(components)
    return tuple(
        next(rest) if operand.kind == "value" else tuple(next(rest) for _ in range(operand.components))
        for operand in operands
    )


def applicable(theorem: Theorem, trial: Trial) -> Block | None:
    """Return where all hypotheses hold, within the range that is tried, or None if that is everywhere."""
    there = inside(theorem, trial)
    for hypothesis in theorem.where:
        held = _judged(theorem, f"the hypothesis {hypothesis.text!r}", hypothesis.test, trial)
        there = held if there is None else there & held
    return there


def violating(theorem: Theorem, trial: Trial, there: Block | None) -> Block:
    """Return where the claim fails, of the cases where all hypotheses hold, as `applicable` says."""
    failing = ~_judged(theorem, f"the claim {theorem.claim.text!r}", theorem.claim.test, trial)
    return failing if there is None else failing & there


def _judged(theorem: Theorem, what: str, test: Callable[[Trial], Any], trial: Trial) -> Block:
    """Return what a test says of each case: if that is so throughout."""
    with np.errstate(all="ignore"), blaming(theorem, what):
        held: Block = test(trial)
        trial.check()
    if not is_block(held, "b", (trial.size,)):
        raise TypeError(
            f"{theorem.name!r}: {what} gave {_described(held)}; its test must return a block of {trial.size} "
            "truth values, one a case"
        )
    of_cases: Block = trial.throughout(held.copy())  # a test may keep what it returns
    return of_cases


def measured(theorem: Theorem, trial: Trial) -> Measured:
    """Return the errors of a statement that has some."""
    measure, what = theorem.claim.measure, "the claim's measure"
    assert measure is not None
    with np.errstate(all="ignore"), blaming(theorem, what):
        found = trial.once(measure)
        ratio = found.ratio
        trial.check()
    if not is_block(ratio, "f", (trial.size,)):
        raise TypeError(
            f"{theorem.name!r}: {what} gave quotients that are {_described(ratio)}; they must be a block of "
            f"{trial.size} numbers, one a case"
        )
    return found


def _described(x: Any) -> str:
    if isinstance(x, np.ndarray):
        kind = "" if type(x) is np.ndarray else f" of type {type(x).__name__}"
        return f"an array{kind} of {x.dtype}, shape {x.shape}"
    named = float if isinstance(x, RoundedNumber) else type(x)
    return f"{shortened(x)} of type {named.__name__}"


@contextmanager
def blaming(theorem: Theorem, what: str) -> Iterator[None]:
    """Say whose fault an exception is; that there is no exact path for an operation says it itself."""
    try:
        yield
    except UnsupportedFormatError:
        raise
    except Exception as error:
        raise ValueError(f"{theorem.name!r}: {what} raised {type(error).__name__}: {error}") from error
