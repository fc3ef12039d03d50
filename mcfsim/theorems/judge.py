"""Judging one block of operands: run a statement's algorithm, then test its hypotheses and its claim."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from reprlib import repr as shortened
from typing import Any

import numpy as np

from mcfsim.backends.block_arithmetic import BlockArithmetic
from mcfsim.backends.factory import arithmetic, on_blocks
from mcfsim.compile.choice import loops
from mcfsim.compile.program import Program, flat
from mcfsim.compile.rolling import MANY
from mcfsim.compile.tracing import trace
from mcfsim.formats import Format
from mcfsim.kernels.blocks import get_kernel
from mcfsim.kernels.carriers import UnsupportedFormatError, carrier_of
from mcfsim.kernels.elementary import FUNCTIONS
from mcfsim.protocol import Forwarding, RoundedNumber, Value
from mcfsim.rounding import Rounding
from mcfsim.theorems.homogeneity import NotHomogeneousError, scales_of
from mcfsim.theorems.identity import by_identity, identity_of
from mcfsim.theorems.logic import Proposition
from mcfsim.theorems.logic.of_trials import is_difference
from mcfsim.theorems.logic.on_arrays import holds
from mcfsim.theorems.operands import Block, OperandSpec, unscaled_reach
from mcfsim.theorems.paths import AllDraws, Paths
from mcfsim.theorems.statement import Scaling, Theorem, names_of
from mcfsim.theorems.trial import Measured, Sealed, Trial, all_hold, is_block

# -- whether the range was left ---------------------------------------------------------------------------
#: Precision of binary64.
_BITS = 53


def inside(theorem: Theorem, trial: Trial) -> Block | None:
    """Return where no operation left the range of the format, or None where none can.

    Only statements with unbounded exponents are checked. Where an operation overflows or underflows, the
    format that stands for unbounded exponents does not show what such a statement says.
    """
    if theorem.range == "bounded" or trial.rounding.stochastic or not may_leave(theorem, trial.format):
        return None
    watch = RangeWatch(on_blocks(trial.format, trial.rounding), trial.size)
    with np.errstate(all="ignore"):
        theorem.algorithm(watch, *(tuple(x) if isinstance(x, tuple) else x for x in trial.operands))
    return watch.inside


@by_identity(256)
def may_leave(theorem: Theorem, fmt: Format) -> bool:
    """Return whether operations may leave the range of the format; True if that cannot be excluded."""
    if theorem.range == "bounded":
        return False
    if theorem.scaling is Scaling.NONE or any(operand.kind == "sequence" for operand in theorem.operands):
        return True
    common, degree = theorem.scaling is not Scaling.EACH, 2 if theorem.scaling is Scaling.SQUARE else 1
    try:
        scales = scales_of(theorem.algorithm, theorem.operands, fmt, Rounding(), common=common, degree=degree)
    except NotHomogeneousError:
        return True
    # How deep low words lie depends on the parts of a domain, and is not known here.
    values = not any(operand.paired for operand in theorem.operands)
    low, high = theorem.gaps(fmt.precision) if common else (0, 1)
    return scales is None or any(
        high > x.safe_to or (values and min(low, -unscaled_reach(fmt.precision)) < x.safe_from)
        for x in scales.quantities
    )


#: Operations that are watched: how many of the first operands must not be zero where a result underflows.
_FACTORS = {"add": 0, "sub": 0, "mul": 2, "div": 1, "fma": 2, "round": 1, **dict.fromkeys(FUNCTIONS, 1)}
#: The poles of functions: only numbers above them have values.
_POLES = {"log": 0.0, "log1p": -1.0}


class RangeWatch(Forwarding):
    """An `mcfsim.protocol.Arithmetic` that notes where a result leaves the range of its format.

    Parameters
    ----------
    ar : Arithmetic
        Carries out every operation.
    size : int
        Number of elements.

    Attributes
    ----------
    inside : array of bool
        Where, so far, nothing overflowed, and underflow rounded nothing. Sums of subnormal numbers are exact.
        A division by zero, or the root of a negative number, does not count as overflow.
    """

    def __init__(self, ar: Any, size: int, inside: Block | None = None) -> None:
        self._ar = ar
        self.inside = np.ones(size, np.bool_) if inside is None else inside

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ar, name)

    def like(self, fmt: Format, rounding: Rounding) -> RangeWatch:
        """Return a watch for another format, which notes in the same array."""
        return RangeWatch(self._ar.like(fmt, rounding), self.inside.size, self.inside)

    def _operate(self, name: str, *operands: Value) -> Any:
        result, fmt = getattr(self._ar, name)(*operands), self._ar.format
        if name not in _FACTORS:
            return result
        given = list(map(_number, operands))
        finite = all_hold(*map(np.isfinite, given))
        if name == "div":
            finite = finite & (given[1] != 0)
        elif name in _POLES:
            finite = finite & (given[0] > _POLES[name])
        left = finite & ~np.isfinite(result)
        if factors := given[: _FACTORS[name]]:
            # A number below the smallest normal number may be rounded up to it, at the last bit of subnormal
            # numbers.
            small = np.abs(_number(result)) <= float(fmt.smallest_normal)
            small = all_hold(small, *(x != 0 for x in factors))
            if name == "log":
                small = small & (given[0] != 1)
            if name == "fma" and 2 * fmt.precision <= _BITS:  # binary64 holds the product
                a, b, c = given
                small = small & ~is_difference(a * np.float64(1) * b, np.float64(1) * result, c)
            left = left | small
        self.inside &= ~left
        return result


def _number(x: Value) -> Any:
    """Return a block unchanged, or a real scalar as a finite binary64 number of the same sign."""
    if isinstance(x, np.ndarray | np.floating):
        return x
    try:
        return np.float64(x)
    except OverflowError:
        largest = np.finfo(np.float64).max
        return np.float64(largest if x > 0 else -largest)


# -- the judgement ----------------------------------------------------------------------------------------
#: With fewer cases, it is not worth asking whether compiling pays.
LEAST_COMPILED = 1 << 12
#: The places of all operands, which come from tables of values: a loop need not check them for NaN.
ALL = range(1 << 10)
_USUAL = Rounding()


def try_block(theorem: Theorem, ar: Any, blocks: list[Block]) -> Trial:
    """Run the algorithm of a statement on a block of operands, given as one array per component.

    Under stochastic rounding it is run on every path.

    Raises
    ------
    TypeError
        If the algorithm returns anything but blocks, nested in tuples or not.
    ValueError
        If the algorithm raises an exception, which is the cause, or returns a number that is not a value of
        the format.
    """
    sealed, size = Sealed(), blocks[0].size
    given = sealed.copies(blocks)
    paths = AllDraws(ar, size) if ar.rounding.stochastic else None
    results = None if paths else run_compiled(theorem, ar, blocks)
    if results is None:
        with np.errstate(all="ignore"), blaming(theorem, "the algorithm"):
            results = tuple(
                flat(theorem.algorithm(paths or _rolling(ar, blocks), *structured(theorem.operands, given)))
            )
            sealed.check()
    if paths:
        results, size = tuple(map(paths.settled, results)), paths.whose.size
    for number, result in enumerate(results, 1):
        said = f"result {number} of the algorithm is"
        _check_block(theorem, result, "f", size, said, "it must be", ", made of operands by the arithmetic")
    if not results:
        raise TypeError(f"{theorem.name!r}: the algorithm returns no results")
    _check_values(theorem, results, ar.format)
    made = tuple(sealed.copies([result.copy() for result in results]))
    if not paths:
        return Trial(ar, names_of(theorem), structured(theorem.operands, given), made, sealed)
    operands = structured(theorem.operands, sealed.copies(list(map(paths.settled, given))))
    return Paths(
        ar, names_of(theorem), operands, made, sealed, whose=paths.whose, probability=paths.probability
    )


def _rolling(ar: Any, blocks: list[Block]) -> Any:
    """Return the arithmetic in which to run an algorithm: for many operands, one that rolls up its steps."""
    if type(ar) is not BlockArithmetic or len(blocks) < MANY:
        return ar
    return arithmetic(ar.format, ar.rounding, scalars=ar.scalars)


def run_compiled(theorem: Theorem, ar: Any, blocks: list[Block]) -> tuple[Block, ...] | None:
    """Return the algorithm's results from a compiled loop, or None if no loop is to be used.

    A loop is used if compiling pays, the arithmetic is the emulator, the algorithm is a straight line, and
    the statement has an identity.
    """
    size = blocks[0].size
    if type(ar) is not BlockArithmetic or size < LEAST_COMPILED or not identity_of(theorem).digest:
        return None
    bound_loop = loops(ar.scalars, trusted=ALL).bound_loop(
        lambda: recorded_algorithm(theorem, ar.format, ar.rounding), size, None
    )
    if bound_loop is None or [block.dtype for block in blocks] != list(bound_loop.operands):
        return None
    results = tuple(np.empty(size, dtype) for dtype in bound_loop.results)
    bound_loop([np.ascontiguousarray(block) for block in blocks], results)
    return results


@by_identity(256)
def recorded_algorithm(theorem: Theorem, fmt: Format, rounding: Rounding) -> Program:
    """Return the algorithm as a program.

    Raises
    ------
    TypeError
        If the algorithm is not a straight line, whatever it raises itself.
    """
    components = [f"x{place}" for place in range(theorem.components)]
    try:
        operands = structured(theorem.operands, components)
        return trace(theorem.algorithm, fmt, rounding, operands=operands, lines=False)
    except Exception as error:
        raise TypeError(f"{theorem.name!r}: the algorithm is no straight line") from error


def structured(operands: tuple[OperandSpec, ...], components: list[Any]) -> tuple[Any, ...]:
    """Return components grouped by operand: a value as it is, several components as a tuple."""
    rest = iter(components)
    return tuple(
        next(rest) if operand.kind == "value" else tuple(next(rest) for _ in range(operand.components))
        for operand in operands
    )


def applicable(theorem: Theorem, trial: Trial) -> Block | None:
    """Return where all hypotheses hold and no operation left the range; None if that is everywhere."""
    there = inside(theorem, trial)
    for hypothesis in theorem.where:
        held = _judged(theorem, f"the hypothesis {hypothesis.text!r}", hypothesis.said, trial)
        there = held if there is None else there & held
    return there


def violating(theorem: Theorem, trial: Trial, there: Block | None) -> Block:
    """Return where the claim fails among the cases that meet all hypotheses, given by `applicable`."""
    failing = ~_judged(theorem, f"the claim {theorem.claim.text!r}", theorem.claim.said, trial)
    return failing if there is None else failing & there


def _judged(theorem: Theorem, what: str, said: Proposition, trial: Trial) -> Block:
    """Return for each case whether a proposition holds for all of its elements."""
    with np.errstate(all="ignore"), blaming(theorem, what):
        held: Block = holds(said, trial)
        trial.sealed.check()
    _check_block(theorem, held, "b", trial.size, f"{what} gave", "its test must return")
    of_cases: Block = trial.throughout(held.copy())  # a test may keep what it returns
    return of_cases


def measured(theorem: Theorem, trial: Trial) -> Measured:
    """Return the errors that a statement measures; its claim must measure one."""
    measure, what = theorem.claim.measure, "the claim's measure"
    assert measure is not None
    with np.errstate(all="ignore"), blaming(theorem, what):
        found = measure(trial)
        ratio = found.ratio
        trial.sealed.check()
    _check_block(theorem, ratio, "f", trial.size, f"{what} gave quotients that are", "they must be")
    return found


def _check_block(
    theorem: Theorem, x: Any, kind: str, size: int, said: str, must: str, more: str = ""
) -> None:
    """Raise TypeError, with a description, unless an object is a block of a kind, one element per case."""
    if not is_block(x, kind, (size,)):
        wanted = f"a block of {size} {'numbers' if kind == 'f' else 'truth values'}, one per case{more}"
        raise TypeError(f"{theorem.name!r}: {said} {_described(x)}; {must} {wanted}")


def _check_values(theorem: Theorem, results: tuple[Block, ...], fmt: Format) -> None:
    """Raise ValueError unless results are only values of a format, infinities and NaN.

    Hypotheses and claim assume that results have its precision; values of another format may have more bits.
    """
    carrier = carrier_of(fmt)
    together = np.concatenate(results)  # blocks are often short
    if together.dtype == carrier and get_kernel(fmt, _USUAL, carrier).keeps(together):
        return
    for number, x in enumerate(results, 1):
        with np.errstate(all="ignore"):
            there = ~np.isfinite(x) | (on_blocks(fmt, _USUAL).round(x) == x)
        if not there.all():
            witness = float(x[np.argmin(there)])
            raise ValueError(
                f"{theorem.name!r}: result {number} of the algorithm is {witness!r} for some operands, which"
                f" is no value of {fmt}: round numbers that are computed otherwise, or in another format"
            )


def _described(x: Any) -> str:
    if isinstance(x, np.ndarray):
        kind = "" if type(x) is np.ndarray else f" of type {type(x).__name__}"
        return f"an array{kind} of {x.dtype}, shape {x.shape}"
    named = float if isinstance(x, RoundedNumber) else type(x)
    return f"{shortened(x)} of type {named.__name__}"


@contextmanager
def blaming(theorem: Theorem, what: str) -> Iterator[None]:
    """Turn an exception into a ValueError that says where it arose, but pass on `UnsupportedFormatError`."""
    try:
        yield
    except UnsupportedFormatError:
        raise
    except Exception as error:
        raise ValueError(f"{theorem.name!r}: {what} raised {type(error).__name__}: {error}") from error
