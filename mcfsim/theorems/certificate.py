"""The record of a verification."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

from mcfsim.formats import Format, Grid, Posit
from mcfsim.rounding import Rounding
from mcfsim.storage.files import write_text
from mcfsim.storage.schema import build, parse
from mcfsim.theorems.cases import Witness
from mcfsim.theorems.parts import Kind
from mcfsim.theorems.selection import Extent

#: Version of the file's layout.
LAYOUT = "mcfsim-certificate-1"
#: A file of more bytes is no certificate: eight witnesses of a thousand operands are a tenth of it.
_LARGEST = 1 << 23
#: What a sound certificate stays far below, so that checking it needs no more than a verification.
_CASES, _EXPONENT, _WHOLE = 1 << 60, 1 << 14, 1 << 53
#: How much of a problem is told: what a file has in the place of a number may fill pages.
_SAID = 300
_RATIONAL = re.compile(r"-?[0-9]{1,2000}/[0-9]{1,2000}")
_DECIMAL = re.compile(r"-?[0-9]{1,40}(\.[0-9]{1,40})?(e[+-]?[0-9]{1,4})?")


#: Of a statement, where it is tried: nothing is claimed where it is open.
Expectation = Literal["holds", "fails", "open"]


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

    kind: Kind
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
    extent: Extent
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
    expected: Expectation
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
            about = parse(_text(Path(path)))
            if not isinstance(about, dict):
                raise ValueError("it is no JSON object")
            if about.get("layout") != LAYOUT:
                raise ValueError(f"layout {about.get('layout')!r}, not {LAYOUT!r}")
            own = [item.name for item in fields(cls)]
            certificate: Certificate = build(cls, {name: about[name] for name in own if name in about}, "")
            summary = {name: item for name, item in about.items() if name not in own}
            summed: _Summary = build(_Summary, summary, "")
            if problem := next(_out_of_range(certificate), None):
                raise ValueError(problem)
            for name in ("tried", "applicable", "violations", "verdict"):
                if getattr(summed, name) != getattr(certificate, name):
                    raise ValueError(
                        f"{name} {getattr(summed, name)!r}, but its parts say {getattr(certificate, name)}"
                    )
        except ValueError as problem:
            said = str(problem) if len(str(problem)) <= _SAID else f"{str(problem)[:_SAID]}..."
            raise ValueError(f"{os.fspath(path)} is no certificate: {said}") from problem
        if certificate.digest != summed.digest:
            raise ValueError(f"{os.fspath(path)} was changed: its digest is not that of its content")
        return certificate


@dataclass(frozen=True)
class _Summary:
    """What a file says besides the fields of a certificate."""

    layout: str
    tried: int
    applicable: int
    violations: int
    verdict: str
    digest: str


def rational(number: Fraction) -> str:
    """Write an exact rational as ``numerator/denominator``."""
    return f"{number.numerator}/{number.denominator}"


def format_of(fields: dict[str, Any]) -> Format:
    """Return the format of which a certificate keeps the kind and the fields.

    Raises
    ------
    ValueError
        If they are those of no format.
    """
    kinds: dict[Any, type[Format]] = {kind.__name__: kind for kind in (Format, Grid, Posit)}
    try:
        kind = kinds[fields["kind"]]
        given = {name: field for name, field in fields.items() if name != "kind"}
        for name, number in given.items():
            most = _WHOLE if name in ("low", "high") else _EXPONENT
            if isinstance(number, int) and abs(number) > most:
                raise ValueError(f"{name} is beyond {most}")
        return kind(**given)
    except (AttributeError, KeyError, TypeError, ValueError) as problem:
        raise ValueError(f"no format: {problem}") from problem


def rounding_of(fields: dict[str, Any]) -> Rounding:
    """Return the rounding of which a certificate keeps the fields.

    Raises
    ------
    ValueError
        If they are those of no rounding.
    """
    try:
        return Rounding(**fields)
    except (TypeError, ValueError) as problem:
        raise ValueError(f"no rounding: {problem}") from problem


def _text(path: Path) -> str:
    if path.exists() and not path.is_file():
        raise ValueError("it is no regular file")
    with open(path, "rb") as file:
        content = file.read(_LARGEST + 1)
    if len(content) > _LARGEST:
        raise ValueError(f"it has more than {_LARGEST:,} bytes")
    return content.decode()


def _out_of_range(certificate: Certificate) -> Iterator[str]:
    """Say what no verification can come to, whatever the statement."""
    c = certificate
    for name, least in (("limit", 1), ("samples", 0), ("seed", 0)):
        number = getattr(c, name)
        if not least <= number < (1 << 64 if name == "seed" else _CASES):
            yield f"{name} is out of range"
    if c.seconds < 0:
        yield f"it took {c.seconds} seconds"
    for part in c.parts:
        if not 0 <= part.violations <= part.applicable <= part.cases < _CASES:
            yield f"{part.text!r}: {part.violations} violations of {part.applicable} of {part.cases} cases"
    for name in ("format", "run_in"):
        format_of(c.arithmetic.get(name))  # type: ignore[arg-type]
    rounding_of(c.arithmetic.get("rounding"))  # type: ignore[arg-type]
    if len(c.arithmetic) != 3:
        yield "arithmetic: format, run_in and rounding are all there is"
    if c.worst is not None:
        yield from _no_number(c.worst)


def _no_number(worst: Worst) -> Iterator[str]:
    for name in ("ratio", "bound", "constant"):
        text = getattr(worst, name)
        if not (_is_rational(text) or (name == "constant" and _DECIMAL.fullmatch(text))):
            yield f"worst.{name} is no number"
    if not _DECIMAL.fullmatch(worst.decimal):
        yield "worst.decimal is no number"


def _is_rational(text: str) -> bool:
    """Whether it is one as `rational` writes it, and not too large to be printed."""
    if not _RATIONAL.fullmatch(text) or int(text.split("/")[1]) == 0:
        return False
    number = Fraction(text)
    return rational(number) == text and abs(number) < 1 << 1000
