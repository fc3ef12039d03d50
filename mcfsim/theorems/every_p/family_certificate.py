"""Certificates of proofs for every precision, and their check."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, ClassVar

from mcfsim.rounding import Mode
from mcfsim.storage.files import read_text
from mcfsim.storage.sealed import SealedRecord, parse
from mcfsim.theorems.catalogue import THEOREMS
from mcfsim.theorems.every_p.family_proof import LAST, Proof, Sharpness, prove
from mcfsim.theorems.every_p.trying import FamilyRun
from mcfsim.theorems.statement import Theorem
from mcfsim.theorems.symbolic import Family, Obligation, Polynomial, Precisions, Quotient, Relation

#: Limit that powers and precisions of a sound certificate stay far below.
_POWER = 1 << 10
_COEFFICIENT = re.compile(r"-?[1-9][0-9]{0,200}(/[1-9][0-9]{0,200})?")

#: A polynomial as data: powers of t in ascending order, each with its coefficient.
Terms = tuple[tuple[int, str], ...]


@dataclass(frozen=True)
class Demand:
    """An obligation as data; see `mcfsim.theorems.symbolic.Obligation`."""

    about: str
    relation: str
    polynomial: Terms
    first: int


@dataclass(frozen=True)
class EveryCertificate(SealedRecord):
    """A certificate of an algorithm's results for a family of operands at every precision.

    Attributes
    ----------
    theorem, statement, source : str
        The statement.
    rounding : str
        The rounding mode.
    step, rest : int
        The precisions ``p = step n + rest``; polynomials are in ``t = 2**-n``.
    operands : dict of str to tuple
        The polynomials of each operand, one per component.
    results : tuple
        The polynomials that the algorithm returns.
    error : tuple or None
        Numerator and denominator of the relative error; that of squares for a root.
    unit : int
        The power of u in the statement's unit.
    limit : str or None
        The limit of the statement's constant; None if it is unbounded, or nothing is measured.
    bound : tuple or None
        Numerator and denominator of the claimed bound, if it is a function of u.
    sharpness : str
        ``sharp``, ``gap``, ``exceeded`` or ``open``.
    first, decided : int
        The least p from which the results are right, and from which every obligation holds.
    below : str
        What differs below `first`.
    tried_to : int
        The largest p for which the oracle checked the results.
    exponents : tuple
        ``(slope, offset)`` of emin and emax in n, for a bounded format that suffices, from `decided` on.
    obligations : tuple of Demand
    """

    layout: ClassVar = "mcfsim-every-p-1"
    kind: ClassVar = "certificate for every p"
    largest: ClassVar = 1 << 21  # a certificate of a hundred obligations takes a fiftieth of this

    theorem: str
    statement: str
    source: str
    rounding: str
    step: int
    rest: int
    operands: dict[str, tuple[Terms, ...]]
    results: tuple[Terms, ...]
    error: tuple[Terms, Terms] | None
    unit: int
    limit: str | None
    bound: tuple[Terms, Terms] | None
    sharpness: str
    first: int
    decided: int
    below: str
    tried_to: int
    exponents: tuple[tuple[int, int], tuple[int, int]]
    obligations: tuple[Demand, ...]

    @staticmethod
    def of(proof: Proof) -> EveryCertificate:
        """Return the certificate of a proof."""
        bound, over = proof.theorem.claim.bound, proof.family.over
        return EveryCertificate(
            theorem=proof.theorem.name,
            statement=proof.theorem.statement,
            source=proof.theorem.source,
            rounding=str(proof.mode),
            step=over.step,
            rest=over.rest,
            operands={name: tuple(map(terms, parts)) for name, parts in proof.family.operands},
            results=tuple(map(terms, proof.results)),
            error=_pair(proof.error and proof.error.reduced),
            unit=0 if bound is None else bound.unit,
            limit=None if proof.limit is None else str(proof.limit),
            bound=_pair(None if bound is None else bound.formula),
            sharpness=str(proof.sharpness),
            first=proof.first,
            decided=proof.decided,
            below=proof.below,
            tried_to=LAST,
            exponents=((proof.emin.slope, proof.emin.offset), (proof.emax.slope, proof.emax.offset)),
            obligations=tuple(map(_demand, proof.obligations)),
        )

    @property
    def name(self) -> str:
        """A name for a file, from statement, precisions and mode."""
        known = {(1, 0): "every_p", (2, 0): "every_even_p", (2, 1): "every_odd_p"}
        precisions = known.get((self.step, self.rest), f"every_p_{self.rest}_mod_{self.step}")
        return f"{self.theorem}-{precisions}-{self.rounding}"

    @property
    def over(self) -> Precisions:
        """The precisions for which the polynomials stand."""
        return Precisions(self.step, self.rest)

    @property
    def family(self) -> Family:
        """The family of operands."""
        return Family(tuple((name, self.read(items)) for name, items in self.operands.items()), self.over)

    @property
    def mode(self) -> Mode:
        """The rounding mode."""
        return Mode(self.rounding)

    def read(self, items: Iterable[Terms]) -> tuple[Polynomial, ...]:
        """Return polynomials from their data."""
        return tuple(polynomial(item, self.over) for item in items)

    def demands(self) -> Iterable[Obligation]:
        """Yield the obligations."""
        for one in self.obligations:
            demanded = polynomial(one.polynomial, self.over)
            yield Obligation(one.about, Relation(one.relation), demanded, one.first)

    def check(self) -> None:
        """Raise ValueError for content that no proof can have; this also reads all polynomials."""
        over, mode, _ = self.over, self.mode, Sharpness(self.sharpness)
        if mode is Mode.STOCHASTIC:
            raise ValueError("stochastic rounding has no one result")
        for name in ("first", "decided", "tried_to"):
            if not over.precision(over.least) <= getattr(self, name) <= _POWER:
                raise ValueError(f"{name} = {getattr(self, name)} is out of range")
        for pair in (self.error, self.bound):
            if pair is not None:
                Quotient(*self.read(pair))
        _ = self.family, self.read(self.results), list(self.demands())


def terms(one: Polynomial) -> Terms:
    """Return a polynomial as data."""
    return tuple((power, str(coefficient)) for power, coefficient in one.terms)


def polynomial(data: Terms, over: Precisions) -> Polynomial:
    """Return a polynomial from its data.

    Raises
    ------
    ValueError
        If it is not a polynomial, or is larger than any in a proof.
    """
    for power, coefficient in data:
        if abs(power) > _POWER or not _COEFFICIENT.fullmatch(coefficient):
            raise ValueError(f"{coefficient[:40]} t^{power} is no term")
    return Polynomial(tuple((power, Fraction(coefficient)) for power, coefficient in data), over)


def _pair(quotient: Quotient | None) -> tuple[Terms, Terms] | None:
    return None if quotient is None else (terms(quotient.numerator), terms(quotient.denominator))


def _demand(one: Obligation) -> Demand:
    return Demand(one.about, str(one.relation), terms(one.polynomial), one.first)


def is_every(path: Path) -> bool:
    """Return whether a file has the layout of these certificates."""
    try:
        about: Any = parse(read_text(path, EveryCertificate.largest))
    except (OSError, ValueError):
        return False
    return isinstance(about, dict) and about.get("layout") == EveryCertificate.layout


# -- the check --------------------------------------------------------------------------------------------
def recheck(
    certificate: EveryCertificate | str | os.PathLike[str], theorem: Theorem | None = None
) -> list[str]:
    """Check a certificate and return the problems found.

    Each obligation is decided again in another way: at every p up to 60 by its value, and beyond by a bound
    on the terms after the first. At every p from `first` to 60, the oracle runs the algorithm on fractions.
    Its results and error must be those of the polynomials, and just below `first` they must not be. Last, the
    proof is made again and must give the same certificate.

    Parameters
    ----------
    certificate : EveryCertificate or path
        The certificate, or the file that `EveryCertificate.save` wrote.
    theorem : Theorem, optional
        The statement, if it is not in `THEOREMS`.

    Raises
    ------
    ValueError
        If the file is not a certificate or was changed, or the statement is unknown or not the given one.
    """
    if not isinstance(certificate, EveryCertificate):
        certificate = EveryCertificate.load(certificate)
    known = theorem or THEOREMS.get(certificate.theorem)
    if known is None:
        raise ValueError(f"{certificate.theorem!r} is not in the catalogue; give the statement: --theorem")
    if known.name != certificate.theorem:
        raise ValueError(f"it is about {certificate.theorem!r}, not about {known.name!r}")
    return [
        *_of_obligations(certificate),
        *_of_precisions(certificate, known),
        *_of_proof(certificate, known),
    ]


def _of_obligations(certificate: EveryCertificate) -> Iterator[str]:
    for one in certificate.demands():
        if problem := unmet(one):
            yield problem
        if one.first > certificate.decided:
            yield f"{one}: it is decided from p = {certificate.decided} on"


def unmet(one: Obligation) -> str | None:
    """Return how an obligation fails from its first p on, or that it holds before it; None if neither."""
    over = one.polynomial.over
    if one.first not in over or one.first > LAST:
        return f"{one}: there is no such p up to {LAST}"
    for p in range(one.first, LAST + 1, over.step):
        if not one.relation.holds(one.polynomial.at(p)):
            return f"{one}: it fails at p = {p}"
    before = one.first - over.step
    if before >= over.precision(over.least) and one.relation.holds(one.polynomial.at(before)):
        return f"{one}: it holds at p = {before} as well"
    if not _stays(one, over.index(over.rest + (LAST - over.rest) // over.step * over.step)):
        return f"{one}: beyond p = {LAST} it is not shown"
    return None


def _stays(one: Obligation, n: int) -> bool:
    """Return whether a relation that holds at ``t = 2**-n`` holds for larger n, by a bound on each term."""
    if ">" in one.relation:
        # Each term after the first loses at least a factor 2 against it from n to n + 1.
        rest = [abs(c) * Fraction(2) ** (-n * k) for k, c in one.polynomial.terms]
        return not rest or sum(rest[1:], Fraction(0)) < rest[0]
    # Each term but the constant one is an even integer at n, and a multiple of itself from there on.
    moving = [c * Fraction(2) ** (-n * k) for k, c in one.polynomial.terms if k]
    return all(k <= 0 for k, _ in one.polynomial.terms) and all(
        value.denominator == 1 and value.numerator % 2 == 0 for value in moving
    )


def _of_precisions(certificate: EveryCertificate, theorem: Theorem) -> Iterator[str]:
    over, results = certificate.over, certificate.read(certificate.results)
    error = certificate.error and Quotient(*certificate.read(certificate.error))
    if certificate.first not in over:
        yield f"p = {certificate.first} is none of the precisions {over}"
        return
    run = FamilyRun(theorem, certificate.family, certificate.mode, results, error)
    for p in range(certificate.first, LAST + 1, over.step):
        if problem := run.difference(p):
            yield f"at p = {p}: {problem}"
    before = certificate.first - over.step
    if before >= over.precision(over.least) and run.difference(before) is None:
        yield f"p = {before} is as the polynomials say, too, and below the first"


def _of_proof(certificate: EveryCertificate, theorem: Theorem) -> Iterator[str]:
    try:
        again = EveryCertificate.of(prove(theorem, certificate.family, certificate.mode))
    except (ValueError, ZeroDivisionError) as problem:
        yield f"it cannot be proved again: {problem}"
        return
    for name in EveryCertificate.__dataclass_fields__:
        if getattr(again, name) != getattr(certificate, name):
            yield f"proved again, its {name} is different"
