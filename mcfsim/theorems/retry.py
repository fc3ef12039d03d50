"""Trying cases of a certificate again, by the oracle and by the emulator, to check its counts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from itertools import accumulate
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.backends.factory import on_blocks
from mcfsim.compile.program import flat
from mcfsim.formats import Format
from mcfsim.kernels.carriers import carrier_of
from mcfsim.oracle import OracleArithmetic, same
from mcfsim.protocol import Arithmetic
from mcfsim.storage.buffers import BLOCK
from mcfsim.theorems.certificate import Certificate, Tried
from mcfsim.theorems.check import Check
from mcfsim.theorems.findings import Findings
from mcfsim.theorems.judge import blaming, structured, try_block
from mcfsim.theorems.operands import OperandSpec
from mcfsim.theorems.parts import Part, Sample
from mcfsim.theorems.statement import Theorem, names_of
from mcfsim.theorems.trial import Block, Sealed, Trial
from mcfsim.theorems.verification import certify


# -- by the oracle ----------------------------------------------------------------------------------------
def results_of(theorem: Theorem, truth: OracleArithmetic, case: list[float]) -> list[float]:
    """Return the algorithm's results for a case, component by component.

    Raises
    ------
    ValueError
        If the algorithm raises an exception, which is the cause.
    """
    with blaming(theorem, "the algorithm, run by the oracle,"):
        return [float(x) for x in flat(theorem.algorithm(truth, *structured(theorem.operands, case)))]


def trial_of(
    theorem: Theorem, truth: OracleArithmetic, cases: list[list[float]], results: list[list[float]]
) -> Trial:
    """Return the trial of cases and their results, given one per row; it has one block per component."""
    carrier, sealed = carrier_of(truth.format), Sealed()
    blocks, made = (
        sealed.copies([np.array(column, dtype=carrier) for column in zip(*rows, strict=True)])
        for rows in (cases, results)
    )
    in_blocks: Any = _InBlocks(truth)
    return Trial(in_blocks, names_of(theorem), structured(theorem.operands, blocks), tuple(made), sealed)


def is_of_kind(operand: OperandSpec, words: Any, fmt: Format) -> bool:
    """Return whether values of a format form an operand of its kind."""
    if not operand.paired:
        return True
    high, low = words
    exponent = max(math.frexp(high)[1] - 1, fmt.emin)
    small = abs(low) <= math.ldexp(1.0, exponent - fmt.precision) if high else low == 0
    # Where sums saturate, the largest number is the sum of itself and any other.
    normalised = operand.kind != "double word" or OracleArithmetic(fmt).add(high, low) == high
    return bool(small and normalised)


class _InBlocks:
    """The oracle's arithmetic on blocks, one number at a time, for use by predicates."""

    def __init__(self, truth: OracleArithmetic) -> None:
        self._truth, self.format, self.rounding = truth, truth.format, truth.rounding

    def __getattr__(self, operation: str) -> Callable[..., Block]:
        return np.vectorize(getattr(self._truth, operation), otypes=[carrier_of(self.format)])


# -- against the counts -----------------------------------------------------------------------------------
#: Indices of cases in a part.
Cases = NDArray[np.int64]

#: How many random cases of a part the oracle tries again: about a quarter of a second's work.
SAMPLES = 256
#: Next to overflow and underflow, where reductions end, this many times as many are tried.
EDGES = 8
#: How many cases the emulator tries again, whole parts first: seconds of work.
LIMIT = 1 << 24
#: How many random cases the emulator tries of each part that is too large to be tried whole.
SPOTS = 1 << 18
#: Random operands are tried in runs of this many cases.
RUN = 1 << 10
#: Counts are called wrong if a sound certificate would show them with a probability below e**-35 = 6e-16.
_SURPRISE = 35.0


@dataclass(frozen=True)
class Retried:
    """How many cases of a part were tried again, by the oracle and by the emulator."""

    text: str
    cases: int
    by_oracle: int
    by_emulator: int

    def __str__(self) -> str:
        return (
            f"{self.text}: {self.by_oracle:,} of {self.cases:,} cases by the oracle, "
            f"{'all' if self.by_emulator == self.cases else f'{self.by_emulator:,}'} by the emulator"
        )


def retry(
    certificate: Certificate, check: Check, *, samples: int, limit: int, seed: int
) -> tuple[tuple[Retried, ...], list[str]]:
    """Try cases of each part again; return how many, and the contradictions to the certificate.

    The certificate must belong to the check: its parts are those of the check's domain.
    """
    domain, retried = check.domain(), []
    problems: list[str] = []
    draw = Random(f"{certificate.digest} {seed}")
    whole = _affordable([part.size for part in domain.parts], limit)
    truth = OracleArithmetic(domain.format, check.rounding)
    emulator = on_blocks(domain.format, check.rounding)
    results = []
    for index, (first, part, said) in enumerate(
        zip(domain.starts(), domain.parts, certificate.parts, strict=True)
    ):
        look = partial(_contradictions, certificate, said)
        many = min(part.size, samples * (EDGES if part.kind == "edge" else 1))
        if many > 0:
            cases = _chosen(draw, part.size, many)
            problems += _ask_oracle(look, check.theorem, truth, emulator, part, cases)
        found = Findings(check.theorem, domain.format.precision)
        if index in whole:
            spots, unit = part.size, (first, first + part.size)
            results.append((unit, check(*unit)))
            found.add(results[-1][1])
        else:
            cases = _spots(draw, part, min(SPOTS, limit, part.size))
            spots, starts = cases.size, range(0, cases.size, BLOCK)
            found.judge(emulator, ((start, part.at(cases[start : start + BLOCK])) for start in starts))
        problems += look(spots, found)
        retried.append(Retried(part.text, part.size, many, spots))
    if len(whole) == len(domain.parts) and not problems:
        problems += _differences(certificate, certify(check, results))
    return tuple(retried), list(dict.fromkeys(problems))


def _affordable(sizes: list[int], limit: int) -> set[int]:
    """Return the parts that are tried whole: the smallest ones, with at most `limit` cases together."""
    order = sorted(range(len(sizes)), key=sizes.__getitem__)
    totals = accumulate(sizes[index] for index in order)
    return {index for index, total in zip(order, totals, strict=True) if total <= limit}


def _chosen(draw: Random, size: int, count: int) -> Cases:
    """Return `count` different random cases, in order."""
    return np.array(sorted(draw.sample(range(size), count)), dtype=np.int64)


def _spots(draw: Random, part: Part, count: int) -> Cases:
    """Return cases for the emulator; random operands come in runs, which are drawn faster."""
    if not isinstance(part, Sample) or count < RUN:
        return _chosen(draw, part.size, count)
    runs = _chosen(draw, part.size // RUN, count // RUN)
    return (runs[:, None] * RUN + np.arange(RUN)).ravel()


def _ask_oracle(
    look: Callable[[int, Findings], Iterator[str]],
    theorem: Theorem,
    truth: OracleArithmetic,
    emulator: Arithmetic,
    part: Part,
    cases: Cases,
) -> Iterator[str]:
    """Yield how the oracle's results contradict the emulator's, or its findings the counts."""
    blocks = part.at(cases)
    rows = [list(map(float, row)) for row in zip(*blocks, strict=True)]
    made = [results_of(theorem, truth, row) for row in rows]
    emulated = zip(*(block.tolist() for block in try_block(theorem, emulator, blocks).results), strict=True)
    for row, right, other in zip(rows, made, emulated, strict=True):
        if len(right) != len(other) or not same(right, list(other)).all():
            yield f"{part.text}: of {row} the oracle makes {right}, the emulator {list(other)}"
            return
    found = Findings(theorem, truth.format.precision)
    found.look_at(0, trial_of(theorem, truth, rows, made))
    yield from look(len(rows), found)


def _contradictions(certificate: Certificate, said: Tried, cases: int, found: Findings) -> Iterator[str]:
    """Yield how some cases of a part contradict the certificate's counts of it, or its worst error."""
    if not cases:
        return
    both: tuple[Any, Any] = found, said
    kinds = ("applicable", "violations", "applicable without violation")
    counts = ((x.applicable, x.violations, x.applicable - x.violations) for x in both)
    for what, seen, counted in zip(kinds, *counts, strict=True):
        # Cases of this kind must be among those counted, and all others among those not counted.
        possible = seen <= counted and cases - seen <= said.cases - counted
        if not possible or _surprise(seen, cases, counted, said.cases) > _SURPRISE:
            yield (
                f"{said.text}: {counted:,} of {said.cases:,} cases are recorded as {what}; "
                f"of {cases:,} tried again {seen:,} are"
            )
            break
    worst = certificate.worst
    if found.worst is not None and (worst is None or found.constant > found.size(Fraction(worst.ratio))):
        yield (
            f"{said.text}: a case tried again has the constant {float(found.constant):.8g}, more than "
            f"the worst, {'none' if worst is None else worst.decimal}"
        )


def _surprise(seen: int, cases: int, counted: int, all_cases: int) -> float:
    """Return -log of a bound on the probability that a share deviates this far from the true one.

    By W. Hoeffding, J. Amer. Statist. Assoc. 58 (1963), theorem 1 and section 6: draws without replacement
    deviate from the mean of a population no more than draws with replacement.
    """
    share, true = seen / cases, counted / all_cases
    terms = ((share, true), (1 - share, 1 - true))
    return cases * sum(x * math.log(x / p) for x, p in terms if x and p)


def _differences(certificate: Certificate, right: Certificate) -> Iterator[str]:
    for name in ("parts", "witnesses", "worst", "simplest"):
        said, found = getattr(certificate, name), getattr(right, name)
        if said != found:
            yield f"{name}: {said!r}, but every case tried again gives {found!r}"
