"""A statement as one loop: its algorithm, hypotheses and claim carried out together.

The predicates are recorded (`mcfsim.theorems.recorded`) on the line that the algorithm is lowered to. The
loop, compiled or as NumPy's calls, tells of each case whether the hypotheses hold, whether the claim then
fails, and where it cannot tell or the error may be the largest so far: these few cases are judged by exact
integers, as all are where there is no such line.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from mcfsim.backends.block_arithmetic import BlockArithmetic
from mcfsim.compile.choice import loops
from mcfsim.compile.loops import Filler, Loop
from mcfsim.compile.lowering import Lowered, lower
from mcfsim.compile.program import Program
from mcfsim.compile.scalars import uses
from mcfsim.compile.tracing import trace
from mcfsim.formats import Format
from mcfsim.kernels.carriers import carrier_of
from mcfsim.kernels.element.machine import F64, TRUTH, Value
from mcfsim.rounding import Rounding
from mcfsim.storage.buffers import scratch
from mcfsim.theorems.identity import Identity, check_same, identity_of
from mcfsim.theorems.in_range import may_leave
from mcfsim.theorems.judge import LEAST_COMPILED, recorded_algorithm, structured
from mcfsim.theorems.logic import Nonoverlapping, Predicate, Results, StronglyNonoverlapping, Within
from mcfsim.theorems.logic.propositions import nodes
from mcfsim.theorems.operands import Block
from mcfsim.theorems.recorded import PredicateRecorder, Recorded
from mcfsim.theorems.recorded_exact import RecordedExact
from mcfsim.theorems.statement import Theorem
from mcfsim.theorems.trial import Trial, flat

#: What a term or proposition costs without compiling, in nanoseconds a case, roughly; and one of several
#: numbers, or of anybody's.
_COST, _LARGE_COST = 1.0, 15.0
_LARGE = (Predicate, Nonoverlapping, StronglyNonoverlapping, Results, Within)
#: Fewer cases are not worth recording the predicates, nor are longer algorithms.
_LEAST_RECORDED, _LONGEST = 1 << 18, 256
#: So many cases each was asked of, before it was compiled.
_seen: Counter[Predicates] = Counter()
#: Quotients in binary64 are wrong by less than this share.
_SHARE = 2.0**-45


@dataclass(frozen=True)
class CaseCounts:
    """What is said of a batch of cases, counted.

    Attributes
    ----------
    cases : int
    applicable, violations : int
        How many meet the hypotheses, and how many of them fail the claim; of the settled ones.
    first : list of int
        The places of the first violations, as many as were wanted.
    open : list of array
        The places of the cases that are not settled, and a block a component.
    """

    cases: int
    applicable: int
    violations: int
    first: list[int]
    open: list[Block]


@dataclass(frozen=True)
class Judgement:
    """What is said of each case of a block.

    Attributes
    ----------
    applicable, failing : array of bool
        Where the hypotheses hold, and where the claim then fails; nowhere among the open cases.
    open : array of bool
        Where that is not settled, or the error is no smaller than those that were given.
    """

    applicable: NDArray[np.bool_]
    failing: NDArray[np.bool_]
    open: NDArray[np.bool_]

    def tally(self, blocks: list[Block], wanted: int) -> CaseCounts:
        """Return the counts, with the first violations, as many as are wanted, and the open cases."""
        violations, places = int(np.count_nonzero(self.failing)), np.flatnonzero(self.open)
        return CaseCounts(
            cases=self.open.size,
            applicable=int(np.count_nonzero(self.applicable)),
            violations=violations,
            first=np.flatnonzero(self.failing)[:wanted].tolist() if violations and wanted else [],
            open=[places, *(block[places] for block in blocks)],
        )


class Judge:
    """A statement under an arithmetic, compiled where that pays.

    Parameters
    ----------
    theorem : Theorem
    ar : BlockArithmetic
        Of other arithmetics there is no line, nor of stochastic rounding.
    cases : int
        How many there are to come.
    """

    def __init__(self, theorem: Theorem, ar: Any, cases: int) -> None:
        self._theorem, self._ar, self._cases = theorem, ar, cases
        self._filler: Filler | None = None
        self._predicates: Predicates | None = None
        # Of stochastic rounding every path is tried, and no line is one.
        if type(ar) is BlockArithmetic and not ar.rounding.stochastic and identity_of(theorem):
            self._predicates = Predicates(theorem, ar.format, ar.rounding)

    def __call__(self, blocks: list[Block], extremes: tuple[float, float]) -> Judgement | None:
        """Return what a loop says of a block of cases, or None where there is to be none.

        Parameters
        ----------
        blocks : list of array
            One a component.
        extremes : tuple of float
            The least and the largest quotient of error and reference so far, in binary64: of cases certainly
            between them, the error is not asked for.
        """
        size, predicates = blocks[0].size, self._predicates
        if predicates is None or size < LEAST_COMPILED:
            return None
        if self._filler is None:
            ahead = max(0, self._cases - size)
            _seen[predicates] += size
            program = recordable(predicates) if _seen[predicates] + ahead > _LEAST_RECORDED else None
            if program is not None:
                self._filler = loops(self._ar.scalars).filler(
                    lambda: program, size, None, ahead=ahead, by_numpy=True, sequel=predicates
                )
        filler = self._filler
        if filler is None or [block.dtype for block in blocks] != list(filler.operands):
            return None
        result = Judgement(*(scratch(f"judged {place}", size, np.bool_) for place in range(3)))
        taken = [np.ascontiguousarray(block) for block in blocks]
        numbers = [np.float64(nearer_zero(x)) for x in extremes] if measures(self._theorem) else []
        filler(taken, (result.applicable, result.failing, result.open), numbers=numbers)
        return result


def nearer_zero(ratio: float) -> float:
    """Return a number that no quotient in binary64 is below in magnitude whose exact one is not."""
    return ratio - _SHARE * ratio


@lru_cache(maxsize=1024)
def recordable(sequel: Predicates) -> Program | None:
    """Return the algorithm as a program, if it and predicates can be recorded, and no range is left."""
    if may_leave(sequel.theorem, sequel.format):
        return None
    try:
        program = recorded_algorithm(sequel.theorem, sequel.format, sequel.rounding)
        if len(program.steps) > _LONGEST:
            return None
        Loop(program, sequel=sequel).line([use.number({}) for use in uses(program)])
    except Exception:  # predicates may be anybody's, and raise anything: NumPy then says what is wrong
        return None
    return program


def measures(theorem: Theorem) -> bool:
    """Return whether a statement has errors that are compared, to find the worst."""
    return theorem.claim.measured is not None


@dataclass(frozen=True)
class Predicates:
    """The `mcfsim.compile.lines.Sequel` that asks hypotheses and claim of the results.

    Those of statements of one identity are equal.

    Attributes
    ----------
    theorem : Theorem
        One that has an identity.
    format : Format
    rounding : Rounding
    quotients : bool
        Whether the line returns the quotient of error and reference, where there is one that counts, else 0.
        If not, the quotient is compared with two further numbers, and open where it is not between them.
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
        """What they cost without compiling."""
        said = [self.theorem.claim.said, *(hypothesis.said for hypothesis in self.theorem.where)]
        return sum(_LARGE_COST if isinstance(x, _LARGE) else _COST for part in said for x in nodes(part))

    def __call__(self, lowered: Lowered) -> Lowered:
        """Return the line whose results are a `Judgement`, and quotients if these are asked for."""
        theorem, line = self.theorem, lowered.line
        check_same(theorem, self._identity)  # a loop may be kept longer than what it reads stays as it is
        recorder = PredicateRecorder(line, RecordedExact.of, clean=lowered.clean)

        def block(value: Value) -> Any:
            return Recorded(recorder, value, self.format)

        operands = structured(theorem.operands, list(map(block, lowered.operands)))
        names = tuple(operand.name for operand in theorem.operands)
        ar: Any = _OnLine(self.format, self.rounding, clean=lowered.clean)
        trial = RecordedTrial(ar, names, operands, tuple(map(block, lowered.results)))
        with np.errstate(all="ignore"):
            there = recorder.truth(True)
            for hypothesis in theorem.where:
                there = there & _truth(hypothesis.test(trial))
            unsure = recorder.doubts()
            failing = ~_truth(theorem.claim.test(trial)) & there
            numbers: tuple[Value, ...] = ()
            ratio: Any = None
            if measures(theorem):
                assert theorem.claim.measure is not None
                measured: Any = trial.once(theorem.claim.measure)
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
    """Operands and results of one case, which stands for all."""

    @property
    def size(self) -> NoReturn:
        """Refuse: it depends on the block."""
        raise TypeError("a statement of single cases does not depend on how many there are")

    def only(self, there: Any, test: Callable[[Trial], Any]) -> Any:
        """Return where `there` and a test of trials hold."""
        return there.only(test, self)

    numbers = RecordedExact

    def truth(self, held: Any) -> Any:
        """Return what a test says, if that is a truth value for every case."""
        _truth(held)
        return held

    def rarely(self, there: Any, test: Callable[[Trial], Any]) -> Any:
        """Leave the cases `there` to NumPy."""
        return there.rarely(test, self)

    def everywhere(self, held: bool) -> Any:
        """Return a truth value for every case."""
        one: Any = flat(self.operands)[0]
        recorder: PredicateRecorder = one.recorder
        return Recorded(recorder, recorder.truth(held))

    def result(self, first: int = 0, stop: int | None = None) -> Any:
        """Return the exact sum of results ``[first:stop]``; a result that is not finite counts as zero."""
        parts = self.results[first:stop]
        return self._sum([np.where(np.isfinite(part), part, part.dtype.type(0)) for part in parts])

    def under(self, rounding: Rounding) -> Any:
        """Return the arithmetic of the format under another rounding."""
        ar: Any = self.ar
        return _OnLine(self.format, rounding, clean=ar.clean)

    def at(self, index: Any) -> NoReturn:
        """Refuse: there is one case."""
        raise TypeError("a recorded trial has one case")


class _OnLine:
    """The arithmetic that predicates may ask: its operations go on with their operands' line."""

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
