"""Certificates: what a verification tried and what came out, kept as JSON."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from mcfsim.formats import Format, Grid, Posit, get_format
from mcfsim.rounding import Rounding
from mcfsim.storage.sealed import SealedRecord
from mcfsim.theorems.counterexamples import Witness
from mcfsim.theorems.parts import Extent, Kind

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Limits that a sound certificate stays far below, so that checking it needs no more than a verification.
_CASES, _EXPONENT, _WHOLE = 1 << 60, 1 << 14, 1 << 53
_RATIONAL = re.compile(r"-?[0-9]{1,2000}/[0-9]{1,2000}")
_DECIMAL = re.compile(r"-?[0-9]{1,40}(\.[0-9]{1,40})?(e[+-]?[0-9]{1,4})?")


#: Whether a statement should hold where it is tried; ``open`` if nothing is claimed there.
Expectation = Literal["holds", "fails", "open"]


class Verdict(StrEnum):
    """The result of a verification.

    ``verified``: no violation among all operands, or among those that stand for all by the stated reductions.
    ``core verified``: none in the whole of a stated core, while the rest was sampled. ``no counterexample``:
    none in a sample. ``refuted``: there is a counterexample. ``vacuous``: no operand met the hypotheses.
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
        Signed quotient of the error and the reference that the statement measures, an exact rational.
    constant : str
        The error as a multiple of the statement's power of u: an exact rational, or 30 digits if irrational.
    decimal : str
        The constant, rounded to 8 digits.
    bound : str
        The claimed bound on the constant.
    case : Witness
        The first case that reaches it.
    """

    ratio: str
    constant: str
    decimal: str
    bound: str
    case: Witness


@dataclass(frozen=True)
class Tried:
    """One part of the operands: its kind, text, and numbers of cases, applicable cases and violations."""

    kind: Kind
    text: str
    cases: int
    applicable: int
    violations: int


@dataclass(frozen=True)
class Certificate(SealedRecord):
    """The record of one verification: what was tried, and what came out.

    Attributes
    ----------
    theorem, statement, source : str
        Id of the statement, the statement as mathematics, and its source.
    hypotheses : tuple of str
        What the statement supposes of the operands.
    operands : tuple of str
        Name and kind of each operand.
    format, rounding, underflow : str
        The format, rounding mode and underflow policy it was checked in.
    arithmetic : dict
        ``format``: the fields of the format. ``run_in``: the fields of the format that the algorithm ran in,
        which may have other exponents. ``rounding``: the fields of the rounding.
    extent, limit, samples, seed
        The choice of operands. With it, the verification can be repeated.
    reductions : tuple of str
        Why the operands tried stand for others.
    parts : tuple of Tried
        The parts of the operands that were tried.
    witnesses : tuple of Witness
        The first violations.
    simplest : Witness or None
        The simplest violation to which the first one shrinks.
    worst : Worst or None
        The largest error, if the statement measures one.
    covers : bool
        Whether the operands tried stand for all of the format.
    claimed : bool
        Whether the statement is claimed for this format and rounding mode.
    expected : str
        ``holds``, ``fails``, or ``open`` where nothing is claimed.
    seconds : float
        Duration, summed over all workers.
    versions : dict of str to str
        Versions of the package, Python and NumPy; and the machine.
    """

    layout: ClassVar = "mcfsim-certificate-1"
    kind: ClassVar = "certificate"
    largest: ClassVar = 1 << 23  # eight witnesses of a thousand operands take a tenth of this

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
        """Statement, format and rounding joined in one word, for a file name."""
        return f"{self.theorem}-{self.format}-{self.rounding}"

    @property
    def tried(self) -> int:
        """Number of cases tried."""
        return sum(part.cases for part in self.parts)

    @property
    def applicable(self) -> int:
        """Number of cases that meet the hypotheses."""
        return sum(part.applicable for part in self.parts)

    @property
    def violations(self) -> int:
        """Number of applicable cases that fail the claim."""
        return sum(part.violations for part in self.parts)

    @property
    def holds(self) -> bool:
        """Whether the claim held for every case tried that meets the hypotheses."""
        return self.violations == 0

    @property
    def verdict(self) -> Verdict:
        """The result of the verification: see `Verdict`."""
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
        """Whether it holds if it is claimed, and fails if it is known to be false; True if it is open."""
        return self.expected == "open" or self.holds == (self.expected == "holds")

    @property
    def rate(self) -> float:
        """Cases per second; 0 if there is no duration."""
        return self.tried / self.seconds if self.seconds else 0.0

    def plot(self, path: str | os.PathLike[str] | None = None) -> Figure:
        """Draw the certificate, and write the figure to a path if one is given; see `mcfsim.plot`."""
        figure: Figure = import_module("mcfsim").plot(self, path)  # figures are made in a higher layer
        return figure

    def summary(self) -> dict[str, Any]:
        """Return the counts and the verdict."""
        return {name: getattr(self, name) for name in ("tried", "applicable", "violations", "verdict")}

    def check(self) -> None:
        """Raise ValueError for content that no verification can give, whatever the statement."""
        for name, least, end in (("limit", 1, _CASES), ("samples", 0, _CASES), ("seed", 0, 1 << 64)):
            if not least <= getattr(self, name) < end:
                raise ValueError(f"{name} is out of range")
        if self.seconds < 0:
            raise ValueError(f"it took {self.seconds} seconds")
        for part in self.parts:
            if not 0 <= part.violations <= part.applicable <= part.cases < _CASES:
                counts = f"{part.violations} violations of {part.applicable} of {part.cases} cases"
                raise ValueError(f"{part.text!r}: {counts}")
        for name in ("format", "run_in"):
            format_of(self.arithmetic.get(name))  # type: ignore[arg-type]
        rounding_of(self.arithmetic.get("rounding"))  # type: ignore[arg-type]
        if len(self.arithmetic) != 3:
            raise ValueError("arithmetic must have format, run_in and rounding, and nothing else")
        if self.worst is not None:
            _check_numbers(self.worst)


def rational(number: Fraction) -> str:
    """Return an exact rational as ``numerator/denominator``."""
    return f"{number.numerator}/{number.denominator}"


def format_of(fields: dict[str, Any]) -> Format:
    """Return the format whose kind and fields a certificate keeps.

    Raises
    ------
    ValueError
        If no format has these fields, or they have the name of another format.
    """
    kinds: dict[Any, type[Format]] = {kind.__name__: kind for kind in (Format, Grid, Posit)}
    try:
        kind = kinds[fields["kind"]]
        given = {name: field for name, field in fields.items() if name != "kind"}
        for name, number in given.items():
            most = _WHOLE if name in ("low", "high") else _EXPONENT
            if isinstance(number, int) and abs(number) > most:
                raise ValueError(f"{name} is beyond {most}")
        found = kind(**given)
    except (AttributeError, KeyError, TypeError, ValueError) as problem:
        raise ValueError(f"no format: {problem}") from problem
    known = found
    with suppress(ValueError):  # a custom name
        known = get_format(found.name)
    if known != found:
        raise ValueError(f"no format: {found.name!r} is the name of another format")
    return found


def rounding_of(fields: dict[str, Any]) -> Rounding:
    """Return the rounding whose fields a certificate keeps.

    Raises
    ------
    ValueError
        If no rounding has these fields.
    """
    try:
        return Rounding(**fields)
    except (TypeError, ValueError) as problem:
        raise ValueError(f"no rounding: {problem}") from problem


def _check_numbers(worst: Worst) -> None:
    for name in ("ratio", "bound", "constant"):
        text = getattr(worst, name)
        if not (_is_rational(text) or (name == "constant" and _DECIMAL.fullmatch(text))):
            raise ValueError(f"worst.{name} is no number")
    if not _DECIMAL.fullmatch(worst.decimal):
        raise ValueError("worst.decimal is no number")


def _is_rational(text: str) -> bool:
    """Return whether a text is a rational as `rational` writes it, and not too large to be printed."""
    if not _RATIONAL.fullmatch(text) or int(text.split("/")[1]) == 0:
        return False
    number = Fraction(text)
    return rational(number) == text and abs(number) < 1 << 1000
