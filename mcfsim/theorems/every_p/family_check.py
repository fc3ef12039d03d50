"""Check a certificate for every precision again: its obligations, every precision up to 60, and the whole."""

from __future__ import annotations

import os
from collections.abc import Iterator
from fractions import Fraction

from mcfsim.symbolic import Obligation, Quotient
from mcfsim.theorems.catalogue import THEOREMS
from mcfsim.theorems.every_p.family_certificate import EveryCertificate, polynomial
from mcfsim.theorems.every_p.family_proof import LAST, prove
from mcfsim.theorems.every_p.trying import difference
from mcfsim.theorems.statement import Theorem


def recheck(
    certificate: EveryCertificate | str | os.PathLike[str], theorem: Theorem | None = None
) -> list[str]:
    """Return what is wrong with a certificate.

    Each obligation is decided again in another way: at every p up to 60 by its value, and beyond by a bound
    on the terms after the first. At every p from the first one to 60 the algorithm is run on fractions by the
    oracle, and its results and error must be those of the polynomials; below the first, they must not. Last
    the proof is made again, and must come to the same certificate.

    Parameters
    ----------
    certificate : EveryCertificate or path
        The certificate, or the file that `EveryCertificate.save` wrote.
    theorem : Theorem, optional
        The statement, if it is none of `THEOREMS`.

    Raises
    ------
    ValueError
        If the file is no certificate or was changed, or the statement is unknown or another one than given.
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
    """Return why an obligation is not met from its first p on, or is met before it; None if all is right."""
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
    """Return whether what holds at ``t = 2**-n`` does so for every larger n, by a bound on each term."""
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
    over = certificate.over
    error = certificate.error and Quotient(*(polynomial(part, over) for part in certificate.error))
    results = tuple(polynomial(item, over) for item in certificate.results)
    if certificate.first not in over:
        yield f"p = {certificate.first} is none of the precisions {over}"
        return

    def problem_at(p: int) -> str | None:
        return difference(theorem, certificate.family, results, error, certificate.mode, p)

    for p in range(certificate.first, LAST + 1, over.step):
        if problem := problem_at(p):
            yield f"at p = {p}: {problem}"
    before = certificate.first - over.step
    if before >= over.precision(over.least) and problem_at(before) is None:
        yield f"p = {before} is as the polynomials say, too, and below the first"


def _of_proof(certificate: EveryCertificate, theorem: Theorem) -> Iterator[str]:
    try:
        again = EveryCertificate.of(prove(theorem, certificate.family, certificate.mode))
    except (ValueError, ZeroDivisionError) as problem:
        yield f"it cannot be proved again: {problem}"
        return
    for name in EveryCertificate.__dataclass_fields__:
        if getattr(again, name) != getattr(certificate, name):
            yield f"proved again, its {name} is another"
