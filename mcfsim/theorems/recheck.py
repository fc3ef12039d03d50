"""Check a certificate again: single cases by the oracle, which had no part in finding them."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from mcfsim.backends.carriers import carrier_of
from mcfsim.formats import Format, Grid, Posit
from mcfsim.rounding import Rounding
from mcfsim.theorems.cases import Witness
from mcfsim.theorems.catalogue import THEOREMS
from mcfsim.theorems.certificate import Certificate, Worst
from mcfsim.theorems.check import WITNESSES, Check
from mcfsim.theorems.judge import applicable, blaming, structured, violating
from mcfsim.theorems.operands import Operand
from mcfsim.theorems.statement import Theorem
from mcfsim.theorems.trial import Block, Trial, flat
from mcfsim.theorems.verification import about, worst_of
from mcfsim.truth import TruthArithmetic, same


def recheck(certificate: Certificate | str | os.PathLike[str], theorem: Theorem | None = None) -> list[str]:
    """Return what is wrong with a certificate.

    Each witness, the simplest one, and the worst case are run again, alone, by `TruthArithmetic`, which
    rounds by the definition: the results must be the same bits, the hypotheses must hold, the claim must fail
    where it is said to, and the error must come out as the rational that is written down. What the
    certificate says of the statement and of the operands tried must be so. That no other case fails is for a
    verification to tell.

    Parameters
    ----------
    certificate : Certificate or path
        The certificate, or the file that `Certificate.save` wrote.
    theorem : Theorem, optional
        The statement, if it is none of `THEOREMS`.

    Returns
    -------
    list of str
        The problems, in words; none if all is well.

    Raises
    ------
    ValueError
        If the file is no certificate or was changed, the statement is unknown or another one than given, or
        the rounding is stochastic: such results are for no oracle to repeat.
    """
    if not isinstance(certificate, Certificate):
        certificate = Certificate.load(certificate)
    if theorem is None:
        theorem = THEOREMS.get(certificate.theorem)
        if theorem is None:
            raise ValueError(f"{certificate.theorem!r} is not in the catalogue; give the statement, too")
    if theorem.name != certificate.theorem:
        raise ValueError(f"the certificate is one of {certificate.theorem!r}, not of {theorem.name!r}")
    try:
        check = _check(certificate, theorem)
        truth = TruthArithmetic(_format(certificate.arithmetic["run_in"]), check.rounding)
    except (KeyError, TypeError, ValueError) as problem:
        raise ValueError(f"{certificate.arithmetic!r} is no arithmetic of the oracle: {problem}") from problem
    problems = [*_statement(certificate, check), *_counts(certificate)]
    for label, case in _cases(certificate):
        try:
            if isinstance(case, Worst):
                _look_at_worst(theorem, truth, case, refuted=not certificate.holds)
            else:
                _look_at_violation(theorem, truth, case)
        except _Wrong as problem:
            problems.append(f"{label}: {problem}")
    return problems


def _check(certificate: Certificate, theorem: Theorem) -> Check:
    """Return the check that the certificate is about."""
    c = certificate
    fmt, rounding = _format(c.arithmetic["format"]), Rounding(**c.arithmetic["rounding"])
    return Check(theorem, fmt, rounding, c.extent, c.limit, c.samples, c.seed)  # type: ignore[arg-type]


def _format(fields: dict[str, Any]) -> Format:
    kinds: dict[str, type[Format]] = {kind.__name__: kind for kind in (Format, Grid, Posit)}
    return kinds[fields["kind"]](**{name: field for name, field in fields.items() if name != "kind"})


# -- what is said of the whole ------------------------------------------------------------------------------
def _statement(certificate: Certificate, check: Check) -> Iterator[str]:
    for name, right in about(check).items():
        if getattr(certificate, name) != right:
            yield f"{name}: {getattr(certificate, name)!r}, not {right!r}"
    said = [(part.kind, part.text, part.cases) for part in certificate.parts]
    right = [(part.kind, part.text, part.size) for part in check.domain().parts]
    if said != right:
        yield f"parts: {said!r}, not {right!r}"


def _counts(certificate: Certificate) -> Iterator[str]:
    for part in certificate.parts:
        if not 0 <= part.violations <= part.applicable <= part.cases:
            yield f"{part.text}: {part.violations} violations of {part.applicable} of {part.cases} cases"
    shown, different = len(certificate.witnesses), len(set(certificate.witnesses))
    # The same operands may be a case of a core and of a family.
    repeated = different < shown and len(certificate.parts) == 1
    if repeated or shown != min(certificate.violations, WITNESSES):
        yield f"{different} different witnesses for {certificate.violations} violations"
    if (certificate.simplest is None) != (certificate.violations == 0):
        yield f"simplest: {certificate.simplest!r}, with {certificate.violations} violations"


# -- single cases -------------------------------------------------------------------------------------------
class _Wrong(Exception):
    """What is wrong with a case."""


def _cases(certificate: Certificate) -> Iterator[tuple[str, Witness | Worst]]:
    for number, case in enumerate(certificate.witnesses, 1):
        yield f"witness {number}", case
    if certificate.simplest is not None:
        yield "simplest violation", certificate.simplest
    if certificate.worst is not None:
        yield "worst case", certificate.worst


def _look_at_violation(theorem: Theorem, truth: TruthArithmetic, case: Witness) -> None:
    if not _fails(theorem, _run(theorem, truth, case)):
        raise _Wrong("the claim holds")


def _look_at_worst(theorem: Theorem, truth: TruthArithmetic, worst: Worst, *, refuted: bool) -> None:
    trial, claim = _run(theorem, truth, worst.case), theorem.claim
    if _fails(theorem, trial) and not refuted:
        raise _Wrong("the claim fails, and no violation is counted")
    if claim.measure is None:
        raise _Wrong("the statement measures no error")
    with np.errstate(all="ignore"):
        measured = claim.measure(trial)
    error, reference = measured.error.fraction(0), measured.reference.fraction(0)
    right = worst_of(claim, error / reference, truth.format.precision, worst.case) if reference else None
    if worst != right:
        raise _Wrong(f"the error comes out as {right!r}, not {worst!r}")


def _run(theorem: Theorem, truth: TruthArithmetic, case: Witness) -> Trial:
    """Run the algorithm on a case again, which must give its results and meet the hypotheses."""
    numbers = [float(x) for x in case.operands]
    if len(numbers) != theorem.components:
        raise _Wrong(f"{len(numbers)} operands, not {theorem.components}")
    strange = [x for x in numbers if not math.isfinite(x) or truth.round(x) != x]
    if strange:
        raise _Wrong(f"{strange[0]!r} is no value of {truth.format}")
    operands = structured(theorem.operands, numbers)
    for operand, words in zip(theorem.operands, operands, strict=True):
        if not _is_of_kind(operand, words, truth.format):
            raise _Wrong(f"{operand.name} = {words} is no {operand.kind}")
    with blaming(theorem, "the algorithm, run by the oracle,"):
        results = flat(theorem.algorithm(truth, *operands))
    said = [float(x) for x in case.results]
    if len(results) != len(said) or not same(results, said).all():
        raise _Wrong(f"the results are {results}, not {said}")
    trial = _trial(theorem, truth, numbers, results)
    there = applicable(theorem, trial)
    if there is not None and not there[0]:
        raise _Wrong("the hypotheses are not met")
    return trial


def _is_of_kind(operand: Operand, words: Any, fmt: Format) -> bool:
    if not operand.paired:
        return True
    high, low = words
    if operand.kind == "double word":
        return bool(TruthArithmetic(fmt).add(high, low) == high)
    exponent = max(math.frexp(high)[1] - 1, fmt.emin)
    return bool(abs(low) <= math.ldexp(1.0, exponent - fmt.precision) if high else low == 0)


def _fails(theorem: Theorem, trial: Trial) -> bool:
    return bool(violating(theorem, trial, None)[0])


def _trial(theorem: Theorem, truth: TruthArithmetic, numbers: list[float], results: list[Any]) -> Trial:
    """Return a case as predicates see it: in blocks of one."""
    carrier = carrier_of(truth.format)
    blocks, made = ([np.array([x], dtype=carrier) for x in row] for row in (numbers, results))
    names = tuple(operand.name for operand in theorem.operands)
    return Trial(_InBlocks(truth), names, structured(theorem.operands, blocks), tuple(made))


class _InBlocks:
    """The oracle on blocks, a number at a time: the arithmetic that predicates may ask."""

    def __init__(self, truth: TruthArithmetic) -> None:
        self._truth, self.format, self.rounding = truth, truth.format, truth.rounding

    def __getattr__(self, operation: str) -> Callable[..., Block]:
        return np.vectorize(getattr(self._truth, operation), otypes=[carrier_of(self.format)])
