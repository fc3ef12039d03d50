"""What `mcfsim.theorems` makes of a statement that is data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np

from mcfsim.theorems import Theorem, claim, double_word, hypothesis, relaxed_pair, value
from mcfsim.theorems import hypotheses as known
from mcfsim.theorems.claims import bounded, exact_sum
from mcfsim.theorems.logic import (
    Exponent,
    Finite,
    IsValue,
    OfFormat,
    Operand,
    Proposition,
    Result,
    Word,
    equal,
)
from mcfsim.theorems.logic.algebra import as_term
from mcfsim.theorems.logic.bits import is_representable
from mcfsim.theorems.statement import Claim, Hypothesis
from mcfsim.theorems.trial import Trial, flat
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
            return bounded(lambda t: _exact(error, t), lambda t: _exact(reference, t), Fraction(bound))
        case ("sum", a, b):
            return exact_sum(a, b)
        case _:
            return claim(repr(tree), lambda t: _truth(tree, t))


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
            return hypothesis(repr(tree), lambda t: _truth(tree, t))


def _shows(fmt: Any, _: Any) -> bool:
    return bool(fmt.has_nan or fmt.has_infinity)


# -- as data ------------------------------------------------------------------------------------------------
def proposition(tree: Tree) -> Proposition:
    """Return a predicate as data; an atom is false where a result that it speaks of is not finite."""
    match tree:
        case ("exact", op, e, f):
            return _compared(op, term(e), term(f))
        case ("is", op, u, v):
            return _compared(op, term(u), term(v))
        case ("zero", e):
            return equal(term(e), 0)
        case ("value", e):
            return IsValue(term(e))
        case ("finite",):
            return Finite()
        case ("within", error, reference, bound):
            return bounded(term(error), term(reference), Fraction(bound)).said
        case ("not", p):
            return ~proposition(p)
        case ("and", p, q):
            return proposition(p) & proposition(q)
        case ("or", p, q):
            return proposition(p) | proposition(q)
        case ("sum", *_):
            return as_claim(tree).said
        case _:
            return as_hypothesis(tree).said


def _compared(op: str, x: Any, y: Any) -> Proposition:
    match op:
        case "==":
            return equal(x, y)
        case "!=":
            return ~equal(x, y)
        case _:
            return COMPARE[op](x, y)


def term(tree: Any) -> Any:
    """Return an exact expression or a float as a term."""
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
        case ("+", e, f):
            return term(e) + term(f)
        case ("-", e, f):
            return term(e) - term(f)
        case ("*", e, f):
            return term(e) * term(f)
        case ("times", e, n):
            return term(e) * n
        case ("neg", e):
            return -term(e)
        case ("abs" | "size", e):
            return abs(term(e))
    raise ValueError(f"no term: {tree!r}")


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


# -- as predicates ------------------------------------------------------------------------------------------
def _truth(tree: Tree, t: Trial) -> Any:
    match tree:
        case ("exact", op, e, f):
            return COMPARE[op](_exact(e, t), _exact(f, t))
        case ("is", op, u, v):
            return COMPARE[op](_float(u, t), _float(v, t))
        case ("zero", e):
            return _exact(e, t).is_zero()
        case ("value", e):
            return is_representable(t, _exact(e, t))
        case ("finite",):
            return t.finite.copy()
        case ("sum", *_):
            return as_claim(tree).test(t)
        case ("not", p):
            return ~_truth(p, t)
        case ("and", p, q):
            return _truth(p, t) & _truth(q, t)
        case ("or", p, q):
            return _truth(p, t) | _truth(q, t)
        case _:
            return as_hypothesis(tree).test(t)


def _exact(tree: Tree, t: Trial) -> Any:
    match tree:
        case ("x", name):
            return t.exact(name)
        case ("r", i):
            return t.result(i, i + 1)
        case ("number", text):
            number = Fraction(text)
            return int(number) if number.denominator == 1 else number
        case ("+", e, f):
            return _exact(e, t) + _exact(f, t)
        case ("-", e, f):
            return _exact(e, t) - _exact(f, t)
        case ("*", e, f):
            return _exact(e, t) * _exact(f, t)
        case ("times", e, n):
            return _exact(e, t) * n
        case ("neg", e):
            return -_exact(e, t)
        case ("abs", e):
            return abs(_exact(e, t))
    raise ValueError(f"no exact expression: {tree!r}")


def _float(tree: Any, t: Trial) -> Any:
    match tree:
        case ("head", name):
            return t.head(name)
        case ("result", i):
            return t.results[i]
        case ("size", u):
            return np.abs(_float(u, t))
        case float():
            return tree
    raise ValueError(f"no float: {tree!r}")
