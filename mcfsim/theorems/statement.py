"""Statements: theorems about rounded algorithms, as data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from functools import cached_property
from itertools import compress
from typing import Any, ClassVar, Literal

from mcfsim.formats import Format
from mcfsim.rounding import DETERMINISTIC, NEAREST, Mode, Rounding, Rule, Underflow
from mcfsim.theorems.logic import AllOf, Bound, Proposition, Within, written
from mcfsim.theorems.logic.on_arrays import holds, measure
from mcfsim.theorems.logic.propositions import measured, possible
from mcfsim.theorems.operands import OperandSpec, has_all, unbounded
from mcfsim.theorems.trial import Measured, Trial, Truth

DIRECTED = frozenset({Mode.TOWARD_ZERO, Mode.UP, Mode.DOWN})
#: Modes that return a neighbour of the exact result, but not always the nearest one.
FAITHFUL = frozenset(DETERMINISTIC) - NEAREST
EVERY_MODE = frozenset(DETERMINISTIC)


class Scaling(StrEnum):
    """The powers of two by which operands may be multiplied without changing hypotheses and claim.

    ``common``: all operands by the same power, as in sums. ``each``: each operand by its own power, as in
    products and quotients. ``square``: all by the same even power, as under a root. ``none``: by no power.
    This holds as long as nothing overflows or underflows. A statement is refused if it is found not to scale
    as declared.
    """

    COMMON = "common"
    EACH = "each"
    SQUARE = "square"
    NONE = "none"


@dataclass(frozen=True)
class Condition:
    """A condition on the cases of a statement.

    Parameters
    ----------
    said : Proposition
        The condition as data, or a `Predicate`.
    """

    said: Proposition
    kind: ClassVar = "a condition"

    def __post_init__(self) -> None:
        check_proposition(self.kind, self.said)

    @cached_property
    def text(self) -> str:
        """The condition as mathematics."""
        return written(self.said)

    def test(self, t: Trial) -> Truth:
        """Return for each case whether the condition holds, exactly. Results may be infinite or NaN."""
        return holds(self.said, t)


class Hypothesis(Condition):
    """A condition on operands."""

    kind: ClassVar = "a hypothesis"

    def possible(self, fmt: Format, rounding: Rounding) -> bool:
        """Return whether it can hold in a format and rounding. If not, no operand need be tried."""
        return possible(self.said, fmt, rounding)


class Claim(Condition):
    """A condition on results. A statement measures the first error that its claim bounds."""

    kind: ClassVar = "a claim"

    @cached_property
    def measured(self) -> Within | None:
        """The error that is measured, and its bound; None if the claim measures nothing."""
        return measured(self.said)

    @property
    def measure(self) -> Callable[[Trial], Measured] | None:
        """A function that returns the error of each case, or None."""
        return None if self.measured is None else lambda t: t.once(measure, self.measured)

    @property
    def bound(self) -> Bound | None:
        """The bound on that error, or None."""
        return None if self.measured is None else self.measured.bound


def check_proposition(what: str, said: Any) -> None:
    """Raise TypeError if an object is not a proposition."""
    if not isinstance(said, Proposition):
        raise TypeError(
            f"{what} must be a Proposition, not {said!r}; "
            "claim() and hypothesis() make one of words and a test"
        )


def usual_gaps(p: int) -> tuple[int, int]:
    """Return the exponents between which operands interact in sums rounded to nearest."""
    return -p - 3, p + 3


def gaps_in_every_mode(p: int) -> tuple[int, int]:
    """Return the usual gaps, to declare that they also suffice in modes other than those to nearest."""
    return usual_gaps(p)


@dataclass(frozen=True)
class Theorem:
    """A claim about the results of an algorithm on all operands that meet its hypotheses.

    Parameters
    ----------
    name : str
        Its id.
    algorithm : callable
        ``algorithm(ar, *operands)`` for an `mcfsim.protocol.Arithmetic`; a double word comes as a tuple.
        It returns a value, or a tuple of values, nested or not.
    operands : sequence of OperandSpec
        See `mcfsim.theorems.operands`.
    claim : Claim
        See `mcfsim.theorems.claims`.
    where : sequence of Hypothesis, optional
        See `mcfsim.theorems.hypotheses`.
    source : str, optional
        Author, venue, theorem number.
    modes : iterable of Mode, optional
        The rounding modes for which it is claimed.
    precision : int, optional
        The least precision for which it is claimed.
    holds : bool, optional
        False for a false statement that is often made.
    witnesses : callable, optional
        For a false statement: ``witnesses(fmt, rounding)`` yields cases that refute it in a format that has
        all of their numbers. Each case is a tuple of exact numbers, one per component. If none is yielded,
        none is known. Without the function, the statement counts as refuted in every format.
    scaling : Scaling, optional
        The reduction of the operands that is valid for it.
    range : {"bounded", "unbounded"}, optional
        Whether it is about the format with its range, or about its precision alone, "barring overflow and
        underflow", as bounds for products and quotients are. If unbounded, it is tried with unbounded
        exponents.
    gaps : callable, optional
        ``gaps(p)``, for common scaling: the least and the largest exponent of a later operand relative to
        the first one's. Beyond them, operands do not interact, or the hypotheses exclude them. The default is
        used in modes to nearest only. In other modes even the smallest operand moves a sum to its neighbour,
        and later operations may reveal how small that operand is.
    variant : bool, optional
        Whether it adds little to another statement. Its core of pairs of words is then limited to an eighth
        of the usual number of cases.
    families : callable, optional
        ``families(p)``: operands known or conjectured to be extremal, each a tuple of exact numbers, one
        per component.
    worst : callable, optional
        ``worst(p)``: the worst constant as a published or conjectured formula.
    sharp : str, optional
        What is known about the sharpness of the bound.
    underflow : Underflow, optional
        The underflow policy that the statement is about.
    rules : sequence of Rule, optional
        The rules of stochastic rounding that it is about. The first one is used if none is given.
    """

    name: str
    algorithm: Callable[..., Any]
    operands: tuple[OperandSpec, ...]
    claim: Claim
    where: tuple[Hypothesis, ...] = ()
    source: str = ""
    modes: frozenset[Mode] = field(default=NEAREST)
    precision: int = 2
    holds: bool = True
    witnesses: Callable[[Format, Rounding], Iterable[Sequence[int | Fraction]]] | None = None
    scaling: Scaling = Scaling.NONE
    range: Literal["bounded", "unbounded"] = "bounded"
    gaps: Callable[[int], tuple[int, int]] = usual_gaps
    variant: bool = False
    families: Callable[[int], Iterable[tuple[Fraction, ...]]] = lambda p: ()
    worst: Callable[[int], Fraction] | None = None
    sharp: str = ""
    underflow: Underflow = Underflow.GRADUAL
    rules: tuple[Rule, ...] = tuple(Rule)

    def __post_init__(self) -> None:
        if not callable(self.algorithm):
            raise TypeError(f"{self.name!r}: the algorithm must be callable, not {self.algorithm!r}")
        if not isinstance(self.claim, Claim):
            raise TypeError(f"{self.name!r}: the claim must be a Claim, not {self.claim!r}")
        kinds: dict[str, type] = {"operands": OperandSpec, "where": Hypothesis, "modes": str}
        for label, kind in kinds.items():
            given = getattr(self, label)
            if isinstance(given, str | kind) or not all(isinstance(item, kind) for item in given):
                raise TypeError(
                    f"{self.name!r}: {label} must be several of type {kind.__name__}, not {given!r}"
                )
        if self.range not in ("bounded", "unbounded"):
            raise ValueError(f"{self.name!r}: unknown range {self.range!r}; known ranges: bounded, unbounded")
        object.__setattr__(self, "operands", tuple(self.operands))
        object.__setattr__(self, "where", tuple(self.where))
        object.__setattr__(self, "modes", frozenset(map(Mode, self.modes)))
        object.__setattr__(self, "scaling", Scaling(self.scaling))
        object.__setattr__(self, "rules", tuple(map(Rule, self.rules)))
        names = [operand.name for operand in self.operands]
        if not names or len(set(names)) < len(names):
            raise ValueError(f"{self.name!r} has the operands {names}; it needs some, with distinct names")
        low, high = self.gaps(self.precision)
        if low > high:
            raise ValueError(f"{self.name!r}: gaps must begin with the least, not be {low} to {high}")
        if not self.rules:
            raise ValueError(f"{self.name!r} has no rule; it needs at least one of {', '.join(Rule)}")

    @cached_property
    def statement(self) -> str:
        """Hypotheses and claim as mathematics."""
        claimed = self.written(self.claim.said)
        if not self.where:
            return claimed
        said = [hypothesis.said for hypothesis in self.where]
        return f"{self.written(said[0] if len(said) == 1 else AllOf(tuple(said)))}: {claimed}"

    @cached_property
    def supposed(self) -> tuple[str, ...]:
        """The hypotheses as mathematics."""
        return tuple(self.written(hypothesis.said) for hypothesis in self.where)

    def written(self, said: Proposition) -> str:
        """Return a proposition about the operands as mathematics, with words of pairs called by name."""
        return written(said, {operand.name: operand.kind for operand in self.operands})

    @property
    def status(self) -> str:
        """The status: ``false``, or ``claimed`` with the least precision if that is above 2."""
        if not self.holds:
            return "false"
        return f"claimed for p >= {self.precision}" if self.precision > 2 else "claimed"

    @property
    def components(self) -> int:
        """Number of components of a case."""
        return sum(operand.components for operand in self.operands)

    def claimed(self, fmt: Format, rounding: Rounding) -> bool:
        """Return whether it is claimed to hold; only floats with sign and zero qualify."""
        return self.holds and self.speaks_of(fmt, rounding)

    def speaks_of(self, fmt: Format, rounding: Rounding) -> bool:
        """Return whether the statement, true or false, is about this format and rounding."""
        usual = type(fmt) is Format and fmt.signed and fmt.zero and rounding.underflow is self.underflow
        ruled = not rounding.stochastic or rounding.rule in self.rules
        return usual and ruled and rounding.mode in self.modes and fmt.precision >= self.precision

    def possible(self, fmt: Format, rounding: Rounding) -> bool:
        """Return whether the hypotheses leave any operand in a format and rounding."""
        return all(each.possible(fmt, rounding) for each in self.where)

    def witness(self, fmt: Format, rounding: Rounding) -> tuple[Fraction, ...] | None:
        """Return the first known counterexample whose numbers the format has, or None."""
        if self.witnesses is None or not self.possible(fmt, rounding):
            return None
        cases = [tuple(map(Fraction, case)) for case in self.witnesses(fmt, rounding)]
        return next(compress(cases, has_all(fmt, cases)), None)

    def refuted(self, fmt: Format, rounding: Rounding | Mode) -> bool:
        """Return whether the statement is false for this format and rounding, by a known counterexample."""
        if not isinstance(rounding, Rounding):
            rounding = Rounding(rounding, underflow=self.underflow, rule=self.rules[0])
        if self.holds or not self.speaks_of(fmt, rounding) or not self.possible(fmt, rounding):
            return False
        tried_in = unbounded(fmt.precision) if self.range == "unbounded" else fmt
        return self.witnesses is None or self.witness(tried_in, rounding) is not None


def names_of(theorem: Theorem) -> tuple[str, ...]:
    """Return the names of a statement's operands."""
    return tuple(operand.name for operand in theorem.operands)


def propositions_of(theorem: Theorem) -> tuple[Proposition, ...]:
    """Return the propositions of a statement's claim and of each hypothesis, in this order."""
    return (theorem.claim.said, *(hypothesis.said for hypothesis in theorem.where))
