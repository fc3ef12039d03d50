"""The record of a verification."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Witness:
    """Operands for which a claim fails, and what the algorithm returned, in hexadecimal."""

    operands: tuple[str, ...]
    results: tuple[str, ...]


@dataclass(frozen=True)
class Certificate:
    """What was tried, and what came out.

    Attributes
    ----------
    theorem, statement, source : str
        The claim.
    format, rounding : str
        Where it was checked.
    tried : int
        Tuples of operands: every finite value of the format for every operand.
    applicable : int
        Those that meet the hypothesis.
    violations : int
        Those of them that fail the claim.
    witnesses : tuple of Witness
        The first few violations.
    claimed : bool
        Whether the statement is claimed for this format and rounding mode.
    seconds : float
        Duration; no part of the digest.
    versions : dict of str to str
        Of package, Python and NumPy.
    """

    theorem: str
    statement: str
    source: str
    format: str
    rounding: str
    tried: int
    applicable: int
    violations: int
    witnesses: tuple[Witness, ...]
    claimed: bool
    seconds: float = field(compare=False)
    versions: dict[str, str] = field(compare=False)

    @property
    def holds(self) -> bool:
        """Whether the claim held for every operand that meets the hypothesis."""
        return self.violations == 0

    @property
    def as_expected(self) -> bool:
        """Whether it holds if it is claimed to; where nothing is claimed, any verdict will do."""
        return self.holds or not self.claimed

    @property
    def digest(self) -> str:
        """SHA-256 of all but duration and versions."""
        content = {key: value for key, value in asdict(self).items() if key not in ("seconds", "versions")}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the certificate as JSON."""
        text = json.dumps({**asdict(self), "holds": self.holds, "digest": self.digest}, indent=1)
        Path(path).write_text(text + "\n")
