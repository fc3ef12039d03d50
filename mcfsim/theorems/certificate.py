"""The record of a verification."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from fractions import Fraction
from pathlib import Path
from typing import Any

from mcfsim.files import write_text
from mcfsim.theorems.cases import Number, Witness

#: Version of the file's layout.
LAYOUT = "mcfsim-certificate-1"


class Verdict(StrEnum):
    """What a verification came to.

    ``verified``: every operand, or as many as stand for all by the reductions stated, without a violation.
    ``core verified``: every operand of a stated core, the rest sampled. ``no counterexample``: only a sample.
    ``refuted``: there is a counterexample. ``vacuous``: no operand met the hypotheses.
    """

    VERIFIED = "verified"
    CORE = "core verified"
    SAMPLED = "no counterexample"
    REFUTED = "refuted"
    VACUOUS = "vacuous"


@dataclass(frozen=True)
class Worst:
    """The largest error found.

    Attributes
    ----------
    ratio : str
        Signed quotient of error and reference that the statement measures, an exact rational.
    constant : str
        The number before the power of u in the statement: an exact rational, or 30 digits if irrational.
    decimal : str
        The same, rounded to 8 digits.
    bound : str
        The claimed bound on it.
    case : Witness
        Where it is reached first.
    """

    ratio: str
    constant: str
    decimal: str
    bound: str
    case: Witness


@dataclass(frozen=True)
class Tried:
    """A part of the operands: its kind and text, how many cases, how many applicable, how many violate."""

    kind: str
    text: str
    cases: int
    applicable: int
    violations: int


@dataclass(frozen=True)
class Certificate:
    """What was tried, and what came out.

    Attributes
    ----------
    theorem, statement, source : str
        The claim.
    hypotheses : tuple of str
        What is supposed of the operands.
    operands : tuple of str
        Name and kind of each.
    format, rounding, underflow : str
        Where it was checked.
    arithmetic : dict
        By ``format`` the fields of the format, by ``run_in`` those of the one that the algorithm was run in,
        which may have other exponents, and by ``rounding`` those of the rounding.
    extent, limit, samples, seed
        The choice of operands, with which the verification can be repeated.
    reductions : tuple of str
        Why the operands tried stand for others.
    parts : tuple of Tried
        What was tried.
    witnesses : tuple of Witness
        The first violations.
    simplest : Witness or None
        The simplest violation that the first one shrinks to.
    worst : Worst or None
        The largest error, if the statement is about one.
    covers : bool
        Whether the operands tried stand for all of the format.
    claimed : bool
        Whether the statement is claimed for this format and rounding mode.
    expected : str
        ``holds``, ``fails``, or ``open`` where nothing is claimed.
    seconds : float
        Duration, summed over all workers.
    versions : dict of str to str
        Of package, Python, NumPy; and the machine.
    """

    theorem: str
    statement: str
    source: str
    hypotheses: tuple[str, ...]
    operands: tuple[str, ...]
    format: str
    rounding: str
    underflow: str
    arithmetic: dict[str, Any]
    extent: str
    limit: int
    samples: int
    seed: int
    reductions: tuple[str, ...]
    parts: tuple[Tried, ...]
    witnesses: tuple[Witness, ...]
    simplest: Witness | None
    worst: Worst | None
    covers: bool
    claimed: bool
    expected: str
    seconds: float = field(compare=False)
    versions: dict[str, str] = field(compare=False)

    def __str__(self) -> str:
        lines = [f"{self.theorem}, {self.format}, {self.rounding}: {self.verdict}"]
        lines.append(f"{self.tried:,} cases, {self.applicable:,} applicable, {self.violations:,} violations")
        if self.simplest is not None:
            lines.append(f"simplest violation: {self.simplest}")
        if self.worst is not None:
            bound = f"{float(Fraction(self.worst.bound)):.8g}"
            lines.append(f"worst constant: {self.worst.decimal}, bound: {bound}, at {self.worst.case}")
        return "\n".join(lines)

    @property
    def name(self) -> str:
        """Statement, format and rounding in one word, for a file."""
        return f"{self.theorem}-{self.format}-{self.rounding}"

    @property
    def tried(self) -> int:
        """How many cases were tried."""
        return sum(part.cases for part in self.parts)

    @property
    def applicable(self) -> int:
        """How many of them meet the hypotheses."""
        return sum(part.applicable for part in self.parts)

    @property
    def violations(self) -> int:
        """How many of these fail the claim."""
        return sum(part.violations for part in self.parts)

    @property
    def holds(self) -> bool:
        """Whether the claim held for every case tried that meets the hypotheses."""
        return self.violations == 0

    @property
    def verdict(self) -> Verdict:
        """See `Verdict`."""
        if not self.holds:
            return Verdict.REFUTED
        if not self.applicable:
            return Verdict.VACUOUS
        if self.covers:
            return Verdict.VERIFIED
        sampled = all(part.kind in ("sample", "family") for part in self.parts)
        return Verdict.SAMPLED if sampled else Verdict.CORE

    @property
    def as_expected(self) -> bool:
        """Whether it holds if it is claimed to, and fails if it is known to be false."""
        return self.expected == "open" or self.holds == (self.expected == "holds")

    @property
    def rate(self) -> float:
        """Cases a second."""
        return self.tried / self.seconds if self.seconds else 0.0

    @property
    def digest(self) -> str:
        """SHA-256 of all but duration and versions."""
        content = {key: value for key, value in asdict(self).items() if key not in ("seconds", "versions")}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the certificate as JSON; an old file is replaced when all is written."""
        about = {
            "layout": LAYOUT,
            **asdict(self),
            "tried": self.tried,
            "applicable": self.applicable,
            "violations": self.violations,
            "verdict": self.verdict,
            "digest": self.digest,
        }
        write_text(path, json.dumps(about, indent=1) + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Certificate:
        """Read what `save` wrote.

        Raises
        ------
        ValueError
            If the file is no certificate, or its digest is not that of its content.
        """
        try:
            about = json.loads(Path(path).read_text())
            if about["layout"] != LAYOUT:
                raise ValueError(f"layout {about['layout']!r}, not {LAYOUT!r}")
            data = {item.name: about[item.name] for item in fields(cls)}
            for name in ("hypotheses", "operands", "reductions"):
                data[name] = tuple(data[name])
            data["parts"] = tuple(Tried(**part) for part in data["parts"])
            data["witnesses"] = tuple(map(_witness, data["witnesses"]))
            data["simplest"] = None if data["simplest"] is None else _witness(data["simplest"])
            if data["worst"] is not None:
                data["worst"] = Worst(**{**data["worst"], "case": _witness(data["worst"]["case"])})
            certificate = cls(**data)
            digest = about["digest"]
            for name in ("tried", "applicable", "violations", "verdict"):
                if about[name] != getattr(certificate, name):
                    raise ValueError(
                        f"{name} {about[name]!r}, but its parts say {getattr(certificate, name)}"
                    )
        except (KeyError, TypeError, AttributeError, ValueError) as problem:
            raise ValueError(f"{os.fspath(path)} is no certificate: {problem}") from problem
        if certificate.digest != digest:
            raise ValueError(f"{os.fspath(path)} was changed: its digest is not that of its content")
        return certificate


def rational(number: Fraction) -> str:
    """Write an exact rational as ``numerator/denominator``."""
    return f"{number.numerator}/{number.denominator}"


def _witness(data: dict[str, Any]) -> Witness:
    operands, results = ([Number(**number) for number in data[key]] for key in ("operands", "results"))
    return Witness(tuple(operands), tuple(results))
