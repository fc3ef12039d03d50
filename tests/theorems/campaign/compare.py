"""The verifier's certificate against brute force."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

from mcfsim.theorems import cores, domain, operands, verify
from mcfsim.theorems.operands import finite_values
from tests.theorems.campaign import brute
from tests.theorems.campaign.declared import read_as_data, theorem
from tests.theorems.campaign.draw import UNBOUNDED, Case
from tests.theorems.campaign.statements import Statement

SAMPLES = 500


def certified(case: Case, *, data: bool = False) -> Any:
    """Return the certificate of a case, a core being tried where one is meant; or why there is none."""
    few, unbounded, sparse = domain.FEW, operands.UNBOUNDED, cores.sparse
    domain.FEW, operands.UNBOUNDED = 0 if case.core else few, UNBOUNDED
    # In so short a precision the significands that are tried at all exponents would be all there are.
    cores.sparse = powers_of_two
    try:
        return verify(theorem(case.statement, data=data), case.format, case.rounding, samples=SAMPLES)
    except ValueError as error:
        return error
    finally:
        domain.FEW, operands.UNBOUNDED, cores.sparse = few, unbounded, sparse


def powers_of_two(fmt: Any) -> Any:
    """Return the finite values of a format that are powers of two, and zero."""
    values = finite_values(fmt)
    return values[np.isin(np.abs(np.frexp(values)[0]), (0.0, 0.5))]


def judged(case: Case, *, data: bool = False) -> tuple[brute.Judged, brute.Tried]:
    """Return the truth, and all cases."""
    tried = brute.run(case.statement.line, brute.toy(case.format, case.rounding))
    return brute.judge(read_as_data(case.statement) if data else case.statement, tried), tried


def contradiction(case: Case, certificate: Any, truth: brute.Judged, tried: brute.Tried) -> str | None:
    """Return what a certificate says that is not so, or None."""
    if isinstance(certificate, ValueError):
        return f"refused: {certificate}" if case.valid else None
    verdict = str(certificate.verdict)
    complete = [part.kind for part in certificate.parts] == ["complete"]
    worst = None if certificate.worst is None else abs(Fraction(certificate.worst.ratio))
    if complete or not certificate.parts:
        counts = tuple(
            sum(getattr(part, key) for part in certificate.parts)
            for key in ("cases", "applicable", "violations")
        )
        right = (truth.cases if complete else 0, truth.applicable, truth.violations)
        if counts != right:
            return f"counts {counts}, not {right}"
    if certificate.covers:
        if verdict != truth.verdict:
            return f"{verdict}, not {truth.verdict} ({truth.violations} of {truth.applicable})"
        if worst != truth.worst:
            return f"worst {worst}, not {truth.worst}"
    elif verdict == "refuted" and truth.verdict != "refuted":
        return f"refuted, not {truth.verdict}"
    elif worst is not None and (truth.worst is None or worst > truth.worst):
        return f"worst {worst}, beyond {truth.worst}"
    elif verdict == "verified":
        return "verified without covering"
    return _of_witnesses(case.statement, certificate, truth, tried)


def _of_witnesses(
    statement: Statement, certificate: Any, truth: brute.Judged, tried: brute.Tried
) -> str | None:
    """Return which witness is none: its operands, and the results that go with them."""
    for witness in [*certificate.witnesses, *filter(None, [certificate.simplest])]:
        index = place(statement, tried, [float(x) for x in witness.operands])
        if index is None or not truth.failing[index]:
            return f"{witness} is no violation"
        results = [tried.toy.values[codes[index]] for codes in tried.results]
        if not np.array_equal(results, [float(x) for x in witness.results], equal_nan=True):
            return f"{witness}: the results are {results}"
    return None


def place(statement: Statement, tried: brute.Tried, operands: list[float]) -> int | None:
    """Return the number of a case, if there is one of these operands."""
    try:
        given, index = iter(tried.toy.codes(np.array(operands)).tolist()), 0
    except ValueError:
        return None
    for (_, kind), size in zip(statement.line.operands, tried.shape, strict=True):
        row = next(given)
        if kind != "value":
            high, low = tried.toy.pairs(kind)
            rows = np.flatnonzero((high == row) & (low == next(given)))
            row = int(rows[0]) if rows.size else size
        if row >= size:
            return None
        index = index * size + row
    return index


def reduced(certificate: Any, truth: brute.Judged) -> bool:
    """Return whether a certificate speaks of all operands, fewer of which were tried, samples aside."""
    if isinstance(certificate, ValueError) or not certificate.covers:
        return False
    tried = sum(part.cases for part in certificate.parts if part.kind != "sample")
    return 0 < tried < truth.cases
