"""What `mcfsim.theorems` makes of a statement that is data."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np

from mcfsim.theorems import Theorem, claim, double_word, hypothesis, relaxed_pair, value
from mcfsim.theorems import hypotheses as known
from mcfsim.theorems.claims import bounded, exact_sum, is_representable
from mcfsim.theorems.trial import Measured, Trial, flat
from tests.theorems.campaign.statements import COMPARE, Statement, Tree

KINDS = {"value": value, "double word": double_word, "relaxed pair": relaxed_pair}


def theorem(statement: Statement) -> Theorem:
    """Return a statement as one verifies it."""
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
        as_claim(statement.claim),
        tuple(as_hypothesis(tree) for tree in statement.where),
        scaling=statement.scaling,
        range=statement.range,
        **({} if gap is None else {"gaps": lambda p: (-gap, gap)}),
    )


def as_claim(tree: Tree) -> Any:
    """Return a claim of `mcfsim.theorems`."""
    match tree:
        case ("within", error, reference, bound):
            return bounded(
                lambda t: Measured(_exact(error, t), _exact(reference, t)), Fraction(bound), 0, repr(tree)
            )
        case ("sum", a, b):
            return exact_sum(a, b)
        case _:
            return claim(repr(tree), lambda t: _truth(tree, t))


def as_hypothesis(tree: Tree) -> Any:
    """Return a hypothesis of `mcfsim.theorems`, one of the catalogue's where the tree names it."""
    match tree:
        case ("results_finite",):
            # The catalogue's is never met where a rounding lets overflow saturate.
            return replace(known.RESULTS_FINITE, of_rounding=lambda rounding: True)
        case ("exponent_gap", a, b, most):
            return known.exponent_gap(a, b, lambda p: most, str(most))
        case (str(name), *given) if hasattr(known, name):
            return getattr(known, name)(*given)
        case _:
            return hypothesis(repr(tree), lambda t: _truth(tree, t))


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
