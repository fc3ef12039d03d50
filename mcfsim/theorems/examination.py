"""Checking a certificate again: by the oracle, which had no part in making it, and by the emulator."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass

from mcfsim.checks import check_int
from mcfsim.oracle import OracleArithmetic, same
from mcfsim.theorems.catalogue import THEOREMS
from mcfsim.theorems.certificate import Certificate, Worst, format_of, rounding_of
from mcfsim.theorems.check import Check
from mcfsim.theorems.counterexamples import Witness
from mcfsim.theorems.findings import WITNESSES
from mcfsim.theorems.identity import holding
from mcfsim.theorems.judge import applicable, measured, structured, violating
from mcfsim.theorems.parts import Selection
from mcfsim.theorems.retry import LIMIT, SAMPLES, Retried, is_of_kind, results_of, retry, trial_of
from mcfsim.theorems.statement import Theorem
from mcfsim.theorems.trial import Trial
from mcfsim.theorems.verification import about, worst_of


@dataclass(frozen=True)
class Examination:
    """The result of an examination: the problems of a certificate, and how much was tried again.

    Attributes
    ----------
    problems : tuple of str
        In words; empty if nothing was found.
    witnesses : int
        How many of the cases shown in the certificate, including the worst one, were run again.
    retried : tuple of Retried
        How many cases of each part were tried again; empty if a problem was found before that.
    """

    problems: tuple[str, ...]
    witnesses: int
    retried: tuple[Retried, ...]

    def __str__(self) -> str:
        shown = f"nothing is wrong, and every witness gives the recorded results ({self.witnesses} cases)"
        said = "; ".join(self.problems) or shown
        return "\n".join([said, *(f"tried again: {part}" for part in self.retried)])


def recheck(
    certificate: Certificate | str | os.PathLike[str], theorem: Theorem | None = None, **options: int
) -> list[str]:
    """Return the problems that `examine` finds in a certificate; it takes the same options."""
    return list(examine(certificate, theorem, **options).problems)


def examine(
    certificate: Certificate | str | os.PathLike[str],
    theorem: Theorem | None = None,
    *,
    samples: int = SAMPLES,
    limit: int = LIMIT,
    seed: int = 0,
) -> Examination:
    """Return the problems of a certificate, and how much of it was tried again.

    The certificate must describe the statement and the operands correctly. For a statement of the catalogue,
    its result must not contradict what is known. `OracleArithmetic`, which rounds by the definition, runs
    each witness, the simplest one and the worst case again, alone. The results must have the same bits, the
    hypotheses must hold, the claim must fail where the certificate says so, and the error must be the
    recorded rational.

    If no problem is found, other cases are tried again. The oracle tries random cases of every part. The
    emulator, which must give the same bits, tries every case of parts that are small enough, and random cases
    of the others. The outcome must be possible by the counts, and credible: no violation where none is
    counted, no share of applicable cases that chance would show less often than once in 10^15, no error
    beyond the worst. If every part was small enough, everything is compared.

    Parameters
    ----------
    certificate : Certificate or path
        The certificate, or the file that `Certificate.save` wrote.
    theorem : Theorem, optional
        The statement, if it is not in `THEOREMS`.
    samples : int, optional
        How many random cases of a part the oracle tries, or all if there are fewer; eight times as many in
        parts next to overflow and underflow.
    limit : int, optional
        The most cases that the emulator tries in whole parts. If the certificate has no more, it tries all.
    seed : int, optional
        Seed of the random cases, which also depend on the digest of the certificate.

    Returns
    -------
    Examination
        Its problems, and how many cases were tried again.

    Raises
    ------
    TypeError, ValueError
        If the file is not a certificate or was changed, the statement is unknown or is not the given one, an
        argument is not an int or is negative, or the rounding is stochastic: no oracle can repeat it.
    """
    for label, number in (("samples", samples), ("limit", limit), ("seed", seed)):
        check_int(label, number, 0)
    if not isinstance(certificate, Certificate):
        certificate = Certificate.load(certificate)
    theorem = _of(certificate, theorem)
    with holding(theorem):
        try:
            said, of = certificate, certificate.arithmetic
            selection = Selection(said.extent, said.limit, said.samples, said.seed)
            check = Check(theorem, format_of(of["format"]), rounding_of(of["rounding"]), selection)
            truth = OracleArithmetic(format_of(of["run_in"]), check.rounding)
            problems = [*_statement(certificate, check)]
        except MemoryError:
            raise ValueError("its operands do not fit in memory") from None
        except (KeyError, TypeError, ValueError) as problem:
            raise ValueError(f"{of!r} is no arithmetic of the oracle: {problem}") from problem
        problems += _counts(certificate)
        shown = _cases(certificate)
        for label, case in shown.items():
            try:
                _look_at(theorem, truth, case, refuted=not certificate.holds)
            except _Wrong as problem:
                problems.append(f"{label}: {problem}")
        if not problems and THEOREMS.get(theorem.name) is theorem and not certificate.as_expected:
            problems.append(
                f"{certificate.verdict} contradicts the catalogue, by which the statement "
                f"{certificate.expected}"
            )
        retried: tuple[Retried, ...] = ()
        if not problems:
            retried, problems = retry(certificate, check, samples=samples, limit=limit, seed=seed)
        return Examination(tuple(problems), len(shown), retried)


def _of(certificate: Certificate, theorem: Theorem | None) -> Theorem:
    """Return the statement that the certificate is about."""
    theorem = theorem or THEOREMS.get(certificate.theorem)
    if theorem is None:
        raise ValueError(
            f"{certificate.theorem!r} is not in the catalogue; give the statement, too: --theorem"
        )
    if theorem.name != certificate.theorem:
        raise ValueError(f"the certificate is one of {certificate.theorem!r}, not of {theorem.name!r}")
    return theorem


# -- the certificate as a whole -----------------------------------------------------------------------------
def _statement(certificate: Certificate, check: Check) -> Iterator[str]:
    domain = check.domain()
    for name, right in about(check, domain).items():
        if getattr(certificate, name) != right:
            yield f"{name}: {getattr(certificate, name)!r}, not {right!r}"
    said = [(part.kind, part.text, part.cases) for part in certificate.parts]
    right = [(part.kind, part.text, part.size) for part in domain.parts]
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
    """Raised to say what is wrong with a case."""


def _cases(certificate: Certificate) -> dict[str, Witness | Worst]:
    """Return the cases that a certificate shows, each with its name in problems."""
    cases: dict[str, Witness | Worst | None] = {
        f"witness {number}": case for number, case in enumerate(certificate.witnesses, 1)
    }
    cases |= {"simplest violation": certificate.simplest, "worst case": certificate.worst}
    return {label: case for label, case in cases.items() if case is not None}


def _look_at(theorem: Theorem, truth: OracleArithmetic, case: Witness | Worst, *, refuted: bool) -> None:
    """Raise `_Wrong` unless a case, run again, is the violation or has the error that is recorded."""
    trial, claim = _run(theorem, truth, case.case if isinstance(case, Worst) else case), theorem.claim
    fails = bool(violating(theorem, trial, None)[0])
    if isinstance(case, Witness):
        if not fails:
            raise _Wrong("the claim holds")
        return
    if fails and not refuted:
        raise _Wrong("the claim fails, and no violation is counted")
    if claim.measure is None:
        raise _Wrong("the statement measures no error")
    found = measured(theorem, trial)
    error, reference = found.error.fraction(0), found.reference.fraction(0)
    right = worst_of(claim, error / reference, truth.format.precision, case.case) if reference else None
    if case != right:
        raise _Wrong(f"the error comes out as {right!r}, not {case!r}")


def _run(theorem: Theorem, truth: OracleArithmetic, case: Witness) -> Trial:
    """Return the trial of a case that is run again; raise `_Wrong` if it is not as recorded."""
    numbers = [float(x) for x in case.operands]
    if len(numbers) != theorem.components:
        raise _Wrong(f"{len(numbers)} operands, not {theorem.components}")
    ar = OracleArithmetic(truth.format)  # it keeps subnormal numbers, which others flush
    strange = [x for x in numbers if not math.isfinite(x) or ar.round(x) != x]
    if strange:
        raise _Wrong(f"{strange[0]!r} is no value of {truth.format}")
    operands = structured(theorem.operands, numbers)
    for operand, words in zip(theorem.operands, operands, strict=True):
        if not is_of_kind(operand, words, truth.format):
            raise _Wrong(f"{operand.name} = {words} is no {operand.kind}")
    results = results_of(theorem, truth, numbers)
    said = [float(x) for x in case.results]
    if len(results) != len(said) or not same(results, said).all():
        raise _Wrong(f"the results are {results}, not {said}")
    trial = trial_of(theorem, truth, [numbers], [results])
    there = applicable(theorem, trial)
    if there is not None and not there[0]:
        raise _Wrong("the hypotheses are not met")
    return trial
