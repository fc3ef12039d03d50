"""Formulas as the solver takes them: linear real arithmetic, each power of u times an unknown a variable."""

from __future__ import annotations

import time
from typing import Any

from mcfsim.theorems.solver.linear_forms import (
    Comparison,
    Conjunction,
    Disjunction,
    Formula,
    LinearForm,
    Term,
)

#: The powers of u by which each comparison is multiplied, so that it bears on products with u**0 to u**_TOP.
_TOP = 2


class Solver:
    """Z3, asked whether formulas have a model.

    Products of unknowns with powers of u are variables of their own, and a comparison is said of all its
    products with them. What holds for some u > 0 has a model, so formulas without a model hold for no u.

    Parameters
    ----------
    until : float
        When it must have answered, by `time.monotonic`.

    Raises
    ------
    ImportError
        If z3 is not installed.
    """

    def __init__(self, until: float) -> None:
        try:
            import z3
        except ImportError as missing:
            raise ImportError("theorems for every p need z3: pip install 'mcfsim[solver]'") from missing
        self._z3, self._until = z3, until
        self._solver = z3.SolverFor("QF_LRA")
        self._variables: dict[Term, Any] = {}
        self._comparisons: dict[tuple[Any, bool], Any] = {}

    @property
    def version(self) -> str:
        """Its name and version."""
        return f"Z3 {self._z3.get_version_string()}"

    @property
    def comparisons(self) -> int:
        """How many comparisons it was told of."""
        return len(self._comparisons)

    @property
    def left(self) -> float:
        """Seconds that it still has."""
        return self._until - time.monotonic()

    def add(self, formula: Formula) -> None:
        """Suppose that a formula holds."""
        self._solver.add(self._translated(formula))

    @property
    def told(self) -> int:
        """How many assertions it has."""
        return len(self._solver.assertions())

    def before(self, told: int) -> Solver:
        """Return another one that has the first assertions alone."""
        other = Solver(self._until)
        other._solver.add(*self._solver.assertions()[:told])
        return other

    def has_model(self) -> bool | None:
        """Return whether all formulas can hold at once; None if it could not tell in time."""
        self._solver.set("timeout", max(1, int(1000 * self.left)))
        found = self._solver.check()
        if found == self._z3.unknown:
            return None
        return bool(found == self._z3.sat)

    def _translated(self, formula: Formula) -> Any:
        if isinstance(formula, Comparison):
            return self._comparison(formula)
        assert isinstance(formula, Conjunction | Disjunction)
        combine = self._z3.And if isinstance(formula, Conjunction) else self._z3.Or
        return combine([self._translated(part) for part in formula.parts])

    def _comparison(self, comparison: Comparison) -> Any:
        """Return a truth value that is that of the comparison times each power of u."""
        form, strict = comparison.form.primitive, comparison.strict
        if not form.terms:
            return self._z3.BoolVal(not strict)
        # One truth value for a comparison and its contrary.
        if negative := form.terms[0][1] < 0:
            form, strict = -form, not strict
        key = form.terms, strict
        if key not in self._comparisons:
            truth = self._z3.Bool(f"comparison {len(self._comparisons)}")
            for power in range(max(_TOP + 2 - form.powers.stop, 1)):
                side = self._sum(form.times_u(power))
                self._solver.add(truth == (side > 0 if strict else side >= 0))
            self._comparisons[key] = truth
        truth = self._comparisons[key]
        return self._z3.Not(truth) if negative else truth

    def _sum(self, form: LinearForm) -> Any:
        z3 = self._z3
        return z3.Sum([z3.Q(c.numerator, c.denominator) * self._variable(term) for term, c in form.terms])

    def _variable(self, term: Term) -> Any:
        if term not in self._variables:
            name, power = term
            self._variables[term] = self._z3.Real(f"u^{power} {name}")
        return self._variables[term]
