"""Statements compiled to one loop that runs the algorithm, the hypotheses and the claim together.

The predicates are recorded (`mcfsim.theorems.recorded`) on the line that the algorithm is lowered to. For
each case the loop, compiled or as NumPy calls, says whether the hypotheses hold and whether the claim then
fails. It leaves a case open if it cannot tell, or if the error may be the largest so far. Exact integers
judge these few cases, and all cases if there is no such line.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from mcfsim.backends.block_arithmetic import BlockArithmetic
from mcfsim.compile.choice import loops
from mcfsim.compile.loops import BoundLoop, Loop
from mcfsim.compile.lowering import Lowered, lower
from mcfsim.compile.program import Program, flat
from mcfsim.compile.tracing import trace
from mcfsim.formats import Format
from mcfsim.kernels.carriers import carrier_of
from mcfsim.kernels.element.machine import F64, TRUTH, Value
from mcfsim.rounding import Rounding
from mcfsim.storage.buffers import scratch
from mcfsim.theorems.identity import Identity, check_same, identity_of
from mcfsim.theorems.judge import ALL, LEAST_COMPILED, may_leave, recorded_algorithm, structured
from mcfsim.theorems.logic import Nonoverlapping, Predicate, Results, StronglyNonoverlapping, Within
from mcfsim.theorems.logic.terms import nodes
from mcfsim.theorems.operands import Block
from mcfsim.theorems.recorded import PredicateRecorder, Recorded, RecordedExact
from mcfsim.theorems.statement import Theorem, names_of, propositions_of
from mcfsim.theorems.trial import Trial

#: Rough cost of a term or proposition without compiling, in nanoseconds per case; and the cost of one that
#: has several numbers, or is a user's predicate.
_COST, _LARGE_COST = 1.0, 15.0
_LARGE = (Predicate, Nonoverlapping, StronglyNonoverlapping, Results, Within)
#: Recording the predicates does not pay for fewer cases, or for longer algorithms.
_LEAST_RECORDED, _LONGEST = 1 << 18, 256
#: How many cases each statement was asked about before it was compiled.
_seen: Counter[Predicates] = Counter()
#: The relative error of quotients in binary64 is below this.
_SHARE = 2.0**-45


@dataclass(frozen=True)
class CaseCounts:
    """The counts of a batch of judged cases.

    Attributes
    ----------
    cases : int
    applicable, violations : int
        How many of the settled cases meet the hypotheses, and how many of these fail the claim.
    first : list of int
        Places of the first violations, up to the number wanted.
    open : list of array
        Places of the cases that are not settled, then their operands, one block per component.
    """

    cases: int
    applicable: int
    violations: int
    first: list[int]
    open: list[Block]


class Judge:
    """A judge of one statement under one arithmetic, compiled where that pays.

    Parameters
    ----------
    theorem : Theorem
    ar : BlockArithmetic
        Other arithmetics and stochastic rounding have no line.
    cases : int
        Number of cases to come.
    """

    def __init__(self, theorem: Theorem, ar: Any, cases: int) -> None:
        self._theorem, self._ar, self._cases = theorem, ar, cases
        self._bound_loop: BoundLoop | None = None

    @cached_property
    def _predicates(self) -> Predicates | None:
        ar, theorem = self._ar, self._theorem
        # Stochastic rounding tries every path, and no line does that.
        if type(ar) is BlockArithmetic and not ar.rounding.stochastic and identity_of(theorem).digest:
            return Predicates(theorem, ar.format, ar.rounding)
        return None

    def __call__(self, blocks: list[Block], extremes: tuple[float, float], wanted: int) -> CaseCounts | None:
        """Return a loop's counts and open cases of a block, or None if no loop is to be used.

        Parameters
        ----------
        blocks : list of array
            One per component.
        extremes : tuple of float
            The least and the largest quotient of error and reference so far, in binary64. A case whose
            quotient is certainly between them is not left open because of its error.
        wanted : int
            How many of the first violations to return.
        """
        size = blocks[0].size
        if size < LEAST_COMPILED or (predicates := self._predicates) is None:
            return None
        if self._bound_loop is None:
            ahead = max(0, self._cases - size)
            _seen[predicates] += size
            program = recordable(predicates) if _seen[predicates] + ahead > _LEAST_RECORDED else None
            if program is not None:
                self._bound_loop = loops(self._ar.scalars, trusted=ALL).bound_loop(
                    lambda: program, size, None, ahead=ahead, by_numpy=True, epilogue=predicates
                )
        bound_loop = self._bound_loop
        if bound_loop is None or [block.dtype for block in blocks] != list(bound_loop.operands):
            return None
        applicable, failing, left = (scratch(f"judged {place}", size, np.bool_) for place in range(3))
        taken = [np.ascontiguousarray(block) for block in blocks]
        measured = self._theorem.claim.measured is not None
        numbers = [np.float64(nearer_zero(x)) for x in extremes] if measured else []
        bound_loop(taken, (applicable, failing, left), numbers=numbers)
        violations, places = int(np.count_nonzero(failing)), np.flatnonzero(left)
        return CaseCounts(
            cases=size,
            applicable=int(np.count_nonzero(applicable)),
            violations=violations,
            first=np.flatnonzero(failing)[:wanted].tolist() if violations and wanted else [],
            open=[places, *(block[places] for block in blocks)],
        )


def nearer_zero(ratio: float) -> float:
    """Return `ratio` moved toward zero by more than the relative error of quotients in binary64."""
    return ratio - _SHARE * ratio


@lru_cache(maxsize=1024)
def recordable(epilogue: Predicates) -> Program | None:
    """Return the algorithm as a program; None if it is long, may leave the range, or cannot be recorded."""
    if may_leave(epilogue.theorem, epilogue.format):
        return None
    try:
        program = recorded_algorithm(epilogue.theorem, epilogue.format, epilogue.rounding)
        if len(program.steps) > _LONGEST or any(x.format != epilogue.format for x in program.outputs()):
            return None
        Loop(program, epilogue=epilogue).line(program.reals())
    except Exception:  # predicates are users' code and may raise anything: the run in NumPy will report it
        return None
    return program


@dataclass(frozen=True)
class Predicates:
    """The `mcfsim.compile.lines.Epilogue` that evaluates hypotheses and claim on the results.

    Statements are compared by their identity.

    Attributes
    ----------
    theorem : Theorem
        A statement that has an identity.
    format : Format
    rounding : Rounding
    quotients : bool
        If True, the line returns the quotient of error and reference where it counts, and 0 elsewhere. If
        False, a case is open unless the quotient is between two further inputs.
    """

    theorem: Theorem = field(compare=False)
    format: Format
    rounding: Rounding
    quotients: bool = False
    _identity: Identity = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_identity", identity_of(self.theorem))

    @property
    def cost(self) -> float:
        """Rough cost without compiling, in nanoseconds per case."""
        return sum(
            _LARGE_COST if isinstance(x, _LARGE) else _COST
            for part in propositions_of(self.theorem)
            for x in nodes(part)
        )

    def __call__(self, lowered: Lowered) -> Lowered:
        """Return the line with three results in place of its own, then quotients if these are asked for.

        The three say where the hypotheses hold, where the claim then fails, and where the case is left open.
        """
        theorem, line = self.theorem, lowered.line
        check_same(theorem, self._identity)  # what the statement reads may have changed since
        recorder = PredicateRecorder(line, clean=lowered.clean)

        def block(value: Value) -> Any:
            return Recorded(recorder, value, self.format)

        operands = structured(theorem.operands, list(map(block, lowered.operands)))
        ar: Any = _OnLine(self.format, self.rounding, clean=lowered.clean)
        trial = RecordedTrial(ar, names_of(theorem), operands, tuple(map(block, lowered.results)))
        with np.errstate(all="ignore"):
            there = recorder.truth(True)
            for hypothesis in theorem.where:
                there = there & _truth(hypothesis.test(trial))
            unsure = recorder.doubts()
            failing = ~_truth(theorem.claim.test(trial)) & there
            numbers: tuple[Value, ...] = ()
            ratio: Any = None
            if (measure := theorem.claim.measure) is not None:
                measured: Any = measure(trial)
                ratio = measured.ratio.value
                if not self.quotients:
                    numbers = (line.input("least", F64), line.input("most", F64))
                    beyond = (ratio < numbers[0]) | (ratio > numbers[1])
                    recorder.doubt(beyond & (abs(ratio) < np.inf) & _truth(trial.finite))
            unsure = unsure | (there & recorder.doubts())
        results = [there & ~unsure, failing & ~unsure, unsure]
        if self.quotients and ratio is not None:
            counts = results[0] & (abs(ratio) < np.inf) & _truth(trial.finite)
            results.append(counts.select(ratio, ratio.like(0.0)))
        return replace(lowered, numbers=(*lowered.numbers, *numbers), results=tuple(results))


class RecordedTrial(Trial):
    """The operands and results of one recorded case, which stands for all cases."""

    numbers = RecordedExact

    def truth(self, held: Any) -> Any:
        """Return the result of a test; raise TypeError unless it is a truth value for every case."""
        _truth(held)
        return held

    def everywhere(self, held: bool) -> Any:
        """Return a truth value for every case."""
        recorder = flat(self.operands)[0].recorder
        return Recorded(recorder, recorder.truth(held))

    def under(self, rounding: Rounding) -> Any:
        """Return the arithmetic of the format under another rounding."""
        ar: Any = self.ar
        return _OnLine(self.format, rounding, clean=ar.clean)


class _OnLine:
    """The arithmetic that predicates may use: it appends operations to the line of their operands."""

    def __init__(self, fmt: Format, rounding: Rounding, *, clean: bool) -> None:
        self.format, self.rounding, self.carrier, self.clean = fmt, rounding, carrier_of(fmt), clean

    def __getattr__(self, operation: str) -> Callable[..., Recorded]:
        def carry_out(*operands: Recorded) -> Recorded:
            names = tuple(f"x{place}" for place in range(len(operands)))
            program = trace(
                lambda ar, *given: getattr(ar, operation)(*given),
                self.format,
                self.rounding,
                operands=names,
                lines=False,
            )
            made = lower(program, (), onto=tuple(x.value for x in operands), clean=self.clean)
            return Recorded(operands[0].recorder, made.results[0], self.format)

        return carry_out


def _truth(held: Any) -> Value:
    if not isinstance(held, Recorded) or held.value.type is not TRUTH:
        raise TypeError(f"a test gave {held!r}")
    return held.value
