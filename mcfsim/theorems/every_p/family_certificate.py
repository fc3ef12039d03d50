"""The record of a proof for every precision."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from fractions import Fraction
from pathlib import Path
from typing import Any

from mcfsim.rounding import Mode
from mcfsim.storage.files import read_text, write_text
from mcfsim.storage.schema import build, parse
from mcfsim.symbolic import Family, Obligation, Polynomial, Precisions, Quotient, Relation
from mcfsim.theorems.every_p.family_proof import LAST, Proof, Sharpness

#: Version of the file's layout.
LAYOUT = "mcfsim-every-p-1"
#: A file of more bytes is no certificate of this kind: one of a hundred obligations has a fiftieth of it.
_LARGEST = 1 << 21
#: What powers and precisions of a sound certificate stay far below.
_POWER = 1 << 10
_COEFFICIENT = re.compile(r"-?[1-9][0-9]{0,200}(/[1-9][0-9]{0,200})?")
#: How much of a problem is told.
_SAID = 300

#: A polynomial as data: each power of t with its coefficient, powers ascending.
Terms = tuple[tuple[int, str], ...]


@dataclass(frozen=True)
class Demand:
    """An obligation as data: see `mcfsim.symbolic.Obligation`."""

    about: str
    relation: str
    polynomial: Terms
    first: int


@dataclass(frozen=True)
class EveryCertificate:
    """What an algorithm returns for a family of operands at every precision, and what that rests on.

    Attributes
    ----------
    theorem, statement, source : str
        The statement.
    rounding : str
        The mode.
    step, rest : int
        The precisions ``p = step n + rest``; polynomials are in ``t = 2**-n``.
    operands : dict of str to tuple
        Of each operand a polynomial for each component.
    results : tuple
        The polynomials that the algorithm returns.
    error : tuple or None
        Numerator and denominator of the relative error, of squares for a root.
    unit : int
        The power of u in the statement's unit.
    limit : str or None
        Of the statement's constant; None if it grows beyond all bounds, or nothing is measured.
    bound : tuple or None
        Numerator and denominator of the claimed bound, if it is a function of u.
    sharpness : str
        ``sharp``, ``gap``, ``exceeded`` or ``open``.
    first, decided : int
        From which p on the results are right, and from which on every obligation holds.
    below : str
        What is different below `first`.
    tried_to : int
        Up to which p the oracle gave the same.
    exponents : tuple
        ``(slope, offset)`` of emin and emax in n, with which a bounded format does, from `decided` on.
    obligations : tuple of Demand
    """

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
        """Return the record of a proof."""
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
        """Statement, precisions and mode in one word, for a file."""
        known = {(1, 0): "every_p", (2, 0): "every_even_p", (2, 1): "every_odd_p"}
        precisions = known.get((self.step, self.rest), f"every_p_{self.rest}_mod_{self.step}")
        return f"{self.theorem}-{precisions}-{self.rounding}"

    @property
    def over(self) -> Precisions:
        """The precisions that the polynomials are over."""
        return Precisions(self.step, self.rest)

    @property
    def family(self) -> Family:
        """The operands."""
        parts = {
            name: tuple(polynomial(item, self.over) for item in items)
            for name, items in self.operands.items()
        }
        return Family(tuple(parts.items()), self.over)

    @property
    def mode(self) -> Mode:
        """The rounding mode."""
        return Mode(self.rounding)

    @property
    def digest(self) -> str:
        """SHA-256 of all of it."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()

    def demands(self) -> Iterable[Obligation]:
        """Yield the obligations."""
        for one in self.obligations:
            yield Obligation(
                one.about, Relation(one.relation), polynomial(one.polynomial, self.over), one.first
            )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the certificate as JSON; an old file is replaced when all is written."""
        about = {"layout": LAYOUT, **asdict(self), "digest": self.digest}
        write_text(path, json.dumps(about, indent=1) + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> EveryCertificate:
        """Read what `save` wrote.

        Raises
        ------
        ValueError
            If the file is no such certificate, or its digest is not that of its content.
        """
        try:
            about = parse(read_text(Path(path), _LARGEST))
            if not isinstance(about, dict) or about.get("layout") != LAYOUT:
                raise ValueError(f"its layout is not {LAYOUT!r}")
            own = {item.name for item in fields(cls)}
            certificate: EveryCertificate = build(cls, {k: v for k, v in about.items() if k in own}, "")
            if stray := about.keys() - own - {"layout", "digest"}:
                raise ValueError(f"{min(stray)!r} is not known")
            certificate._check()
        except (ValueError, ZeroDivisionError) as problem:
            said = str(problem) if len(str(problem)) <= _SAID else f"{str(problem)[:_SAID]}..."
            raise ValueError(f"{os.fspath(path)} is no certificate for every p: {said}") from problem
        if certificate.digest != about.get("digest"):
            raise ValueError(f"{os.fspath(path)} was changed: its digest is not that of its content")
        return certificate

    def _check(self) -> None:
        """Refuse what no proof can come to; reading all polynomials refuses the rest."""
        over, mode, _ = self.over, self.mode, Sharpness(self.sharpness)
        if mode is Mode.STOCHASTIC:
            raise ValueError("stochastic rounding has no one result")
        for name in ("first", "decided", "tried_to"):
            if not over.precision(over.least) <= getattr(self, name) <= _POWER:
                raise ValueError(f"{name} = {getattr(self, name)} is out of range")
        for pair in (self.error, self.bound):
            if pair is not None:
                Quotient(*(polynomial(part, over) for part in pair))
        _ = self.family, [polynomial(item, over) for item in self.results], list(self.demands())


def terms(one: Polynomial) -> Terms:
    """Return a polynomial as data."""
    return tuple((power, str(coefficient)) for power, coefficient in one.terms)


def polynomial(data: Terms, over: Precisions) -> Polynomial:
    """Return the polynomial of data.

    Raises
    ------
    ValueError
        If it is none, or larger than any of a proof.
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
    """Return whether a file says that it is a certificate of this kind."""
    try:
        about: Any = parse(read_text(path, _LARGEST))
    except (OSError, ValueError):
        return False
    return isinstance(about, dict) and about.get("layout") == LAYOUT
