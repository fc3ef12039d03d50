"""Proofs of an algorithm's results and error for a family, at every precision from a first one on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from math import lcm
from typing import Any

from mcfsim.compile.program import flat
from mcfsim.rounding import Mode
from mcfsim.theorems.catalogue import THEOREMS
from mcfsim.theorems.every_p.trying import (
    FOUND,
    Decided,
    FamilyRun,
    exceeds,
    excess,
    holds_from,
    limit_of,
    measured,
)
from mcfsim.theorems.logic.propositions import Bound, predicates
from mcfsim.theorems.operands import OperandSpec
from mcfsim.theorems.statement import Theorem
from mcfsim.theorems.symbolic import (
    Families,
    Family,
    Obligation,
    Polynomial,
    Quotient,
    Relation,
    SymbolicArithmetic,
    UndecidedError,
)
from mcfsim.theorems.symbolic.operand_families import unit
from mcfsim.theorems.symbolic.polynomial_arithmetic import LinearExponent
from mcfsim.theorems.symbolic.symbolic_rounding import Exactly, binade, rounded

#: Up to this precision the oracle checks everything, too.
LAST = 60


class Sharpness(StrEnum):
    """How the error of a family compares with a bound.

    ``sharp``: the error tends to the bound and never exceeds it. ``gap``: it stays below, with a smaller
    limit. ``exceeded``: it refutes the bound, at precisions for which the bound is stated. ``open``: it is
    larger in a mode for which nothing is stated, the bound is not a function of u, or nothing is measured.
    """

    SHARP = "sharp"
    GAP = "gap"
    EXCEEDED = "exceeded"
    OPEN = "open"


@dataclass(frozen=True)
class Proof(FamilyRun):
    """A proof of an algorithm's results for a family, at every precision ``p >= first``; see `FamilyRun`.

    Attributes
    ----------
    obligations : tuple of Obligation
        The relations on which the results rest.
    decided : int
        The least p from which all obligations hold.
    first : int
        The least p from which results, error and signs are right. Below `decided` each p was checked singly.
    below : str
        What differs at the largest p below `first`, or that formats have no such p.
    undecided : tuple of str
        The hypotheses that are data and yet not decided for every p; they are checked only up to `LAST`.
    emin, emax : LinearExponent
        Exponents of a bounded format that gives the same results, from `decided` on.
    """

    obligations: tuple[Obligation, ...]
    decided: int
    first: int
    below: str
    undecided: tuple[str, ...]
    emin: LinearExponent
    emax: LinearExponent

    @property
    def bound(self) -> Bound:
        """The bound of the statement, which measures an error."""
        bound = self.theorem.claim.bound
        assert bound is not None
        return bound

    @property
    def in_unit(self) -> Quotient | None:
        """The magnitude of the error, in the statement's unit."""
        return None if self.error is None else abs(self.error).over_unit(self.bound.unit)

    @property
    def limit(self) -> Fraction | None:
        """The limit of the statement's constant as p grows, or None if unbounded or not measured."""
        return None if self.error is None else limit_of(self.error, self.bound)

    @property
    def sharpness(self) -> Sharpness:
        """How the error of the family compares with the bound."""
        beyond = None if self.error is None else excess(self.error, self.bound)
        if beyond is None:
            return Sharpness.OPEN
        holds, since = holds_from(beyond, strict=self.bound.strict)
        formula = self.bound.formula
        assert formula is not None
        if not holds or any(map(self._exceeds, range(self.first, since, self.family.over.step))):
            return Sharpness.EXCEEDED if self.mode in self.theorem.modes else Sharpness.OPEN
        return Sharpness.SHARP if self.limit == formula.limit is not None else Sharpness.GAP

    def _exceeds(self, p: int) -> bool:
        assert self.error is not None
        return p >= self.theorem.precision and exceeds(self.error, self.bound, p)

    @property
    def as_expected(self) -> bool:
        """Whether the family does not exceed a bound that is claimed to hold."""
        return not self.theorem.holds or self.sharpness is not Sharpness.EXCEEDED

    @property
    def unread(self) -> tuple[str, ...]:
        """The predicates on arrays in the statement, in words; they are not evaluated for every p."""
        parts = [hypothesis.said for hypothesis in self.theorem.where]
        unread = (node.text for part in (*parts, self.theorem.claim.said) for node in predicates(part))
        return tuple(dict.fromkeys(unread))

    def constant(self, p: int) -> Any:
        """Return the statement's constant at a precision: a Fraction, or an mpmath number if irrational."""
        if self.error is None:
            raise ValueError(f"{self.theorem.name!r} measures no error")
        return self.bound.size(self.error.at(p), p)

    def __str__(self) -> str:
        over = self.family.over
        precisions = "every p" if over.step == 1 else f"every p = {over}"
        also = "" if over.step == 1 else ", t = 2^-n"
        lines = [f"{self.theorem.name}, {precisions} >= {self.first}{also}, {self.mode}: {self.family}"]
        lines.append(f"results: {', '.join(map(str, self.results))}")
        if self.error is not None:
            unit = f"u^{self.bound.unit}" if self.bound.unit > 1 else "u"
            of = "(result / exact)^2 - 1" if self.bound.squared else "error"
            lines.append(f"|{of}| in {unit}: {self.in_unit}")
            limit = "none: it grows beyond all bounds" if self.limit is None else str(self.limit)
            bound = self.bound.formula
            lines.append(f"limit: {limit}, bound: {'none' if bound is None else bound}, {self.sharpness}")
            if self.mode not in self.theorem.modes:
                lines[-1] += f"; nothing is stated for {self.mode}"
        lines.append(f"{len(self.obligations)} obligations, all met from p = {self.decided}; {self.below}")
        lines += [
            f"not read: {text!r} is a predicate on arrays, which says nothing for every p"
            for text in self.unread
        ]
        lines += [f"supposed, and asked up to p = {LAST} alone: {text}" for text in self.undecided]
        lines.append(f"exponents: emin <= {self.emin}, emax >= {self.emax}")
        return "\n".join(lines)


def prove(theorem: Theorem, family: Family | None = None, mode: str | Mode | None = None) -> Proof:
    """Prove an algorithm's results for a family at every precision at once, by one run on polynomials.

    Parameters
    ----------
    theorem : Theorem
        The statement that gives algorithm, operands and claim. It need not be true.
    family : Family, optional
        The operands, by their names in the statement. By default the `best` of the statement's families.
    mode : str or Mode, optional
        By default to nearest even, or the first mode for which the statement is claimed.

    Raises
    ------
    UndecidedError
        If an operand is not of its kind for every large p, or some result is not a polynomial.
    ValueError
        If the family's operands are not the statement's, a hypothesis fails for large p, or the polynomials
        differ from rounding by the definition where they must not.
    """
    if family is None:
        return best(theorem, mode)
    chosen = _mode(theorem, mode)
    _check_shape(theorem, family)
    ar = SymbolicArithmetic(chosen, family.over)
    given: Any = family.structured()
    for operand, words in zip(theorem.operands, given, strict=True):
        _demand_kind(ar, operand, flat(words))
    results: Any = tuple(flat(ar.run(theorem.algorithm, *given)))
    run = FamilyRun(theorem, family, chosen, results, _error(theorem, ar, given, results))
    first, below = _least(run, ar.first)
    return Proof(
        **vars(run),
        obligations=tuple(ar.ledger.obligations),
        decided=ar.first,
        first=first,
        below=below,
        undecided=tuple(_undecided(run)),
        emin=ar.range.emin(ar.first),
        emax=ar.range.emax(ar.first),
    )


def best(theorem: Theorem, mode: str | Mode | None = None) -> Proof:
    """Return the proof of the statement's family with the largest error for large p.

    Raises
    ------
    ValueError
        If the statement has no families of polynomials.
    """
    proofs = [prove(theorem, member, mode) for member in members(theorem)]
    return max(proofs, key=_size)


def covering(theorem: Theorem, mode: str | Mode | None = None) -> tuple[Proof, ...]:
    """Return the best proofs that together cover every large p: one, or one for each parity.

    Raises
    ------
    ValueError
        If the statement has no families of polynomials.
    """
    proofs = [prove(theorem, member, mode) for member in members(theorem)]
    steps = lcm(*(proof.family.over.step for proof in proofs))
    chosen = [
        max(speaking, key=_size)
        for rest in range(steps)
        if (speaking := [proof for proof in proofs if 8 * steps + rest in proof.family.over])
    ]
    return tuple(proof for i, proof in enumerate(chosen) if proof not in chosen[:i])


def with_families() -> tuple[Theorem, ...]:
    """Return the statements of the catalogue that have families of polynomials."""
    return tuple(theorem for theorem in THEOREMS.values() if _members(theorem))


def members(theorem: Theorem) -> tuple[Family, ...]:
    """Return the families of polynomials of a statement.

    Raises
    ------
    ValueError
        If it has none.
    """
    found = _members(theorem)
    if not found:
        raise ValueError(f"{theorem.name!r} has no family of operands that are polynomials in u")
    return found


def _members(theorem: Theorem) -> tuple[Family, ...]:
    known = theorem.families
    own = known.members if isinstance(known, Families) else (known,) if isinstance(known, Family) else ()
    return (*own, *FOUND.get(theorem.name, ()))


def _size(proof: Proof) -> tuple[bool, Fraction, Fraction]:
    """Return the sort key of a proof: its limit, and for equal limits the error at a large p."""
    if proof.error is None or proof.in_unit is None:
        return False, Fraction(0), Fraction(0)
    far = proof.family.over.precision(LAST)
    return proof.limit is None, proof.limit or Fraction(0), proof.in_unit.at(far)


def _mode(theorem: Theorem, mode: str | Mode | None) -> Mode:
    if mode is not None:
        return Mode(mode)
    return Mode.NEAREST_EVEN if Mode.NEAREST_EVEN in theorem.modes else min(theorem.modes)


def _check_shape(theorem: Theorem, family: Family) -> None:
    wanted = [(operand.name, operand.components) for operand in theorem.operands]
    given = [(name, len(parts)) for name, parts in family.operands]
    if given != wanted:
        raise ValueError(f"{theorem.name!r} takes operands (name, components) {wanted}, not {given}")


def _demand_kind(ar: SymbolicArithmetic, operand: OperandSpec, parts: Any) -> None:
    """Require that polynomials form an operand of its kind at every precision."""
    for part in parts:
        ar.value(part, operand.name)
    if not operand.paired:
        return
    high, low = parts
    with ar.ledger.about(f"{operand.name} is a {operand.kind}"):
        if operand.kind == "double word":
            total = high + low
            if total and rounded(Exactly(abs(total)), Mode.NEAREST_EVEN, ar.ledger) * total.sign == high:
                return
            if total or high:
                raise UndecidedError(f"{operand.name} = ({high}, {low}) is no double word for every large p")
        elif not high:
            ar.ledger.require(Relation.NOT_NEGATIVE, -abs(low), "low word")
        else:
            half = binade(Exactly(abs(high))) * unit(high.over)
            ar.ledger.require(Relation.NOT_NEGATIVE, half - abs(low), "low word")
            # `abs` is the magnitude at p only where the polynomial has its sign for large p.
            ar.ledger.require(Relation.NOT_NEGATIVE, abs(low), "sign of the low word")


def _error(
    theorem: Theorem, ar: SymbolicArithmetic, given: tuple[Any, ...], results: tuple[Any, ...]
) -> Quotient | None:
    """Return the relative error, and require the signs that it supposes."""
    found = measured(theorem, given, results, ar.over)
    if found is None:
        return None
    error, reference = found
    # Claims take magnitudes of operands. These are polynomials where signs are those of leading terms.
    for operand, words in zip(theorem.operands, given, strict=True):
        parts: Any = flat(words)
        total: Polynomial = sum(parts, Polynomial((), ar.over))
        ar.ledger.require(Relation.NOT_NEGATIVE, abs(total), f"sign of {operand.name}")
    if not reference:
        raise UndecidedError("what the error is relative to is zero for every large p")
    ar.ledger.require(Relation.POSITIVE, abs(reference), "sign of what the error is relative to")
    ar.ledger.require(Relation.NOT_NEGATIVE, abs(error), "sign of the error")
    return Quotient(error, reference)


def _least(run: FamilyRun, decided: int) -> tuple[int, str]:
    """Return the least p from which the polynomials are right, and what differs just below it."""
    over, p = run.family.over, decided
    for higher in range(decided, LAST + 1, over.step):
        if problem := run.difference(higher):
            raise ValueError(f"{run.theorem.name!r} at p = {higher}, where obligations are met: {problem}")
    while p - over.step >= over.precision(over.least):
        if problem := run.difference(p - over.step):
            return p, f"at p = {p - over.step} {problem}"
        p -= over.step
    return p, "formats have no smaller such precision"


def _undecided(run: FamilyRun) -> Iterator[str]:
    """Yield the hypotheses that are not decided for every large p; refuse one that fails beyond `LAST`."""
    for one in run.theorem.where:
        decided = Decided(run)
        try:
            held = decided.holds(one.said)
        except ValueError:
            if not list(predicates(one.said)):
                yield one.text
            continue
        if not held or decided.ledger.first > LAST:
            where = f"between p = {LAST} and {decided.ledger.first}" if held else "for large p"
            raise ValueError(f"{run.theorem.name!r}: a hypothesis fails {where}: {one.text}")
