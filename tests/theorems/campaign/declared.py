"""What `mcfsim.theorems` makes of a statement that is data."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any

from mcfsim.compile.program import flat
from mcfsim.theorems import Theorem, claim, double_word, hypothesis, relaxed_pair, value
from mcfsim.theorems import hypotheses as known
from mcfsim.theorems.claims import bounded, exact_sum
from mcfsim.theorems.logic import Exponent, Finite, IsValue, OfFormat, Operand, Result, Word, equal
from mcfsim.theorems.logic.of_trials import is_representable
from mcfsim.theorems.logic.terms import as_term
from mcfsim.theorems.statement import Claim, Hypothesis
from mcfsim.theorems.trial import Trial
from tests.theorems.campaign.statements import COMPARE, Statement, Tree

KINDS = {"value": value, "double word": double_word, "relaxed pair": relaxed_pair}


def theorem(statement: Statement, *, data: bool = False) -> Theorem:
    """Return a statement as one verifies it, its hypotheses and claim as predicates or as data."""
    line, gap = statement.line, statement.gap

    def algorithm(ar: Any, *operands: Any) -> Any:
        registers = flat(operands)
        for name, *given in line.steps:
            registers.append(getattr(ar, name)(*(x if isinstance(x, float) else registers[x] for x in given)))
        return tuple(registers[i] for i in line.results)

    return Theorem(
        "campaign",
        algorithm,
        tuple(KINDS[kind](name) for name, kind in line.operands),
        Claim(proposition(statement.claim)) if data else as_claim(statement.claim),
        tuple(Hypothesis(proposition(tree)) if data else as_hypothesis(tree) for tree in statement.where),
        scaling=statement.scaling,
        range=statement.range,
        **({} if gap is None else {"gaps": lambda p: (-gap, gap)}),
    )


def as_claim(tree: Tree) -> Any:
    """Return a claim of `mcfsim.theorems`."""
    match tree:
        case ("within", error, reference, bound):
            return bounded(lambda t: OnTrial(t)(error), lambda t: OnTrial(t)(reference), Fraction(bound))
        case ("sum", a, b):
            return exact_sum(a, b)
        case _:
            return claim(repr(tree), lambda t: OnTrial(t)(tree))


def as_hypothesis(tree: Tree) -> Any:
    """Return a hypothesis of `mcfsim.theorems`, one of the catalogue's where the tree names it."""
    match tree:
        case ("results_finite",):
            # The catalogue's is never met where a rounding lets overflow saturate.
            return hypothesis(Finite() & known.of_format("overflow shows", _shows).said)
        case ("exponent_gap", a, b, most):
            x, y = Word(a), Word(b)
            gap = abs(Exponent(x) - Exponent(y)) <= OfFormat(str(most), lambda fmt, _: most)
            return hypothesis(gap | equal(x, 0) | equal(y, 0))
        case (str(name), *given) if hasattr(known, name):
            return getattr(known, name)(*given)
        case _:
            return hypothesis(repr(tree), lambda t: OnTrial(t)(tree))


def _shows(fmt: Any, _: Any) -> bool:
    return bool(fmt.has_nan or fmt.has_infinity)


# -- as data, and as predicates -----------------------------------------------------------------------------
#: What is made of the parts of an expression or a predicate, whatever these are.
MADE: dict[str, Callable[..., Any]] = {
    **{"+": operator.add, "-": operator.sub, "*": operator.mul, "neg": operator.neg},
    **{"abs": abs, "size": abs, "not": operator.invert, "and": operator.and_, "or": operator.or_},
}


class AsData:
    """Reads expressions as terms, and predicates as propositions.

    An atom is false where a result that it speaks of is not finite.
    """

    def __call__(self, tree: Any) -> Any:
        match tree:
            case ("exact" | "is", op, e, f):
                return self.compared(op, self(e), self(f))
            case ("times", e, n):
                return self(e) * n
            case (name, *parts) if name in MADE:
                return MADE[name](*map(self, parts))
            case _:
                return self.atom(tree)

    def compared(self, op: str, x: Any, y: Any) -> Any:
        match op:
            case "==":
                return equal(x, y)
            case "!=":
                return ~equal(x, y)
            case _:
                return COMPARE[op](x, y)

    def atom(self, tree: Any) -> Any:
        match tree:
            case ("x", name):
                return Operand(name)
            case ("r" | "result", i):
                return Result(i)
            case ("head", name):
                return Word(name)
            case ("number", text):
                return as_term(Fraction(text))
            case float():
                return as_term(Fraction(tree))
            case ("zero", e):
                return equal(self(e), 0)
            case ("value", e):
                return IsValue(self(e))
            case ("finite",):
                return Finite()
            case ("within", error, reference, bound):
                return bounded(self(error), self(reference), Fraction(bound)).said
            case ("sum", *_):
                return as_claim(tree).said
            case _:
                return as_hypothesis(tree).said


class OnTrial(AsData):
    """Reads both on the arrays of a trial."""

    def __init__(self, trial: Trial) -> None:
        self.trial = trial

    def compared(self, op: str, x: Any, y: Any) -> Any:
        return COMPARE[op](x, y)

    def atom(self, tree: Any) -> Any:
        t = self.trial
        match tree:
            case ("x", name):
                return t.exact(name)
            case ("r", i):
                return t.result(i, i + 1)
            case ("result", i):
                return t.results[i]
            case ("head", name):
                return t.head(name)
            case ("number", text):
                number = Fraction(text)
                return int(number) if number.denominator == 1 else number
            case float():
                return tree
            case ("zero", e):
                return self(e).is_zero()
            case ("value", e):
                return is_representable(t, self(e))
            case ("finite",):
                return t.finite.copy()
            case ("sum", *_):
                return as_claim(tree).test(t)
            case _:
                return as_hypothesis(tree).test(t)


proposition = AsData()


def read_as_data(statement: Statement) -> Statement:
    """Return a statement whose predicates are true where those that are data are."""
    where = tuple(map(_finite_atoms, statement.where))
    return replace(statement, claim=_finite_atoms(statement.claim), where=where)


def _finite_atoms(tree: Tree) -> Tree:
    match tree:
        case ("not", p):
            return ("not", _finite_atoms(p))
        case ("and" | "or" as joined, p, q):
            return (joined, _finite_atoms(p), _finite_atoms(q))
        case ("exact" | "is" as kind, "!=", x, y):
            return ("not", _finite_atoms((kind, "==", x, y)))
        case ("exact" | "is" | "zero" | "value", *_):
            spoken = sorted(set(_spoken_of(tree)))
            return ("and", tree, ("finite_results", *spoken)) if spoken else tree
    return tree


def _spoken_of(tree: Any) -> Iterator[int]:
    match tree:
        case ("r" | "result", int(i)):
            yield i
        case tuple():
            for part in tree:
                yield from _spoken_of(part)
