"""Verification of statements: split operands into units of work, run these anywhere, merge the results."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from fnmatch import fnmatchcase
from fractions import Fraction
from functools import lru_cache, partial
from inspect import signature
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

import mpmath
import numpy as np

from mcfsim.backends.factory import on_blocks
from mcfsim.checks import check_processor, hint
from mcfsim.formats import Format, get_format
from mcfsim.protocol import Emulation
from mcfsim.rounding import Mode, Rounding, Rule, Underflow, get_rounding
from mcfsim.storage.sweeps.installed import versions
from mcfsim.storage.sweeps.sweep import Job, Sweep
from mcfsim.theorems.catalogue import THEOREMS, named
from mcfsim.theorems.certificate import Certificate, Expectation, Tried, Worst, rational
from mcfsim.theorems.check import Check
from mcfsim.theorems.counterexamples import ShownNumber, Witness
from mcfsim.theorems.device import Device, find_device
from mcfsim.theorems.domain import USUAL
from mcfsim.theorems.findings import Findings
from mcfsim.theorems.identity import check_same, holding, identity_of
from mcfsim.theorems.judge import try_block
from mcfsim.theorems.operands import Block
from mcfsim.theorems.parts import LIMIT, SAMPLES, Domain, Extent, Selection
from mcfsim.theorems.shrink import shrink, violates
from mcfsim.theorems.statement import Claim, Theorem

#: Cases per unit of work: a fraction of a second.
UNIT = 1 << 24
#: Formats in which statements are tried by default.
FORMATS = ("float8_e4m3fn", "float8_e5m2", "bfloat16", "float16")


def verify(
    theorem: Theorem | str,
    format: Format | str = "bfloat16",
    rounding: Rounding | str = "nearest_even",
    *,
    extent: Extent = "core",
    limit: int = LIMIT,
    samples: int = SAMPLES,
    seed: int = 0,
    workers: int = 1,
    kind: Literal["threads", "processes"] = "processes",
    dask: str | None = None,
    journal: str | os.PathLike[str] | None = None,
    resume: bool | None = None,
    progress: bool = False,
    device: str = "cpu",
) -> Certificate:
    """Verify a statement on every operand of a format, on operands that stand for all, a core or a sample.

    Parameters
    ----------
    theorem : Theorem or str
        A statement, or its id in `THEOREMS`.
    format : Format or str, optional
        A binary floating-point format with sign and zero.
    rounding : str or Rounding, optional
        A rounding, or a name of `mcfsim.rounding.Mode`.
    extent : {"core", "all"}, optional
        Which operands: those that stand for all by the reductions of the statement, or literally all.
    limit : int, optional
        The most cases of a core of pairs of words.
    samples, seed : int, optional
        Number of random cases, unless every operand is tried, and their seed.
    workers, kind, dask, journal, resume, progress : optional
        As for `mcfsim.storage.sweeps.sweep.Sweep`.
    device : str, optional
        With ``"cuda"`` or ``"cuda:1"``, kernels on this GPU judge the cases, if these are many and the
        statement can be recorded; the CPU judges what they leave open. Only one process works with it.

    Returns
    -------
    Certificate
        Exact counts of operands, witnesses of failures, and the worst error. Except for its duration and
        versions, it does not depend on how the work was run.

    Raises
    ------
    TypeError
        If an argument is of the wrong type, or the algorithm or a test returns anything but blocks.
    ValueError
        If the statement is unknown or raises exceptions, its algorithm returns a number that is not a value
        of the format, an argument is out of range, the rounding is stochastic and the statement is not about
        that, there are too many operands to try all, or none to try, the journal file is not a journal, is
        damaged or is in use, there is no such device, or several workers are to use it. Also, as
        `mcfsim.theorems.identity.NoIdentityError`, if the statement gives two answers to one question or is
        changed while it is tried; or if there is a journal, and the statement depends on something without a
        name, such as an open file or a random generator.
    ImportError
        If a device is asked for, and PyTorch or Triton is not installed, or too old.
    UnsupportedFormatError
        If the statement cannot be run there: for example, the format has no sign or no zero, or an operation
        has no exact path.
    """
    found = find_device(device, workers=workers, dask=dask)
    check = prepare(theorem, format, rounding, Selection(extent, limit, samples, seed))
    with holding(check.theorem):
        if (refusal := check.refusal()) is not None:
            raise refusal
        if journal is not None:
            check.key  # noqa: B018  # refuses before a journal is made
        with Sweep(
            workers, kind=kind, dask=dask, journal=journal and Path(journal), resume=resume, progress=progress
        ) as sweep:
            return next(run([check], sweep, device=found))


def prepare(
    theorem: Theorem | str, format: Format | str, rounding: Rounding | str, selection: Selection = USUAL
) -> Check:
    """Return the check of a statement, named or given.

    Raises
    ------
    TypeError, ValueError
        If a name is unknown, an argument out of range, or the rounding stochastic and the statement not.
    """
    theorem = named(theorem)
    fmt, policy = get_format(format), get_rounding(rounding)
    if not isinstance(rounding, Rounding):
        policy = _policy(policy.mode, theorem.underflow, theorem.rules[0])
    if policy.stochastic and Mode.STOCHASTIC not in theorem.modes:
        raise ValueError(
            f"{theorem.name!r} says nothing about stochastic rounding and is not verified in that mode; "
            f"it is claimed for {', '.join(mode for mode in Mode if mode in theorem.modes)}"
        )
    return Check(theorem, fmt, policy, selection)


@lru_cache(maxsize=64)
def _policy(mode: Mode, underflow: Underflow, rule: Rule) -> Rounding:
    return Rounding(mode, underflow=underflow, rule=rule)


def matching(patterns: Iterable[str]) -> list[str]:
    """Return the ids of the statements that match one of the patterns, in their order.

    Parameters
    ----------
    patterns : iterable of str
        Globs such as ``dw_*``, or parts of an id; case is ignored.

    Raises
    ------
    ValueError
        If a pattern matches none.
    """
    found: set[str] = set()
    for pattern in patterns:
        glob = pattern.lower()
        own = {name for name in THEOREMS if glob in name or fnmatchcase(name, glob)}
        if not own:
            meant = hint(re.sub(r"[*?]", "", pattern), THEOREMS, most=3)
            raise ValueError(f"no statement matches {pattern!r}{meant}; --list without a pattern shows all")
        found |= own
    return [name for name in THEOREMS if name in found]


def plan(
    theorems: Iterable[Theorem | str] | None = None,
    formats: Iterable[Format | str] | None = None,
    roundings: Iterable[str] | None = None,
    selection: Selection = USUAL,
) -> list[Check]:
    """Return the checks of statements, by default all, in formats and rounding modes.

    Parameters
    ----------
    theorems, formats : iterable, optional
        Statements or their ids, and formats or their names; by default all statements whose
        hypotheses leave operands in a format, and `FORMATS`.
    roundings : iterable of str, optional
        Names of modes; ``every`` stands for all modes for which a statement is claimed. By default nearest
        even, or the first of those modes.
    selection : Selection, optional
        Which operands.
    """
    chosen = [named(theorem) for theorem in theorems or THEOREMS]
    said = list(roundings or ())
    checks = []
    for fmt in map(get_format, formats or FORMATS):
        for found in chosen:
            if not theorems and not found.possible(fmt, Rounding()):
                continue
            own = [mode for mode in Mode if mode in found.modes]
            wanted = said or own[:1]
            modes = [mode for name in wanted for mode in (own if name == "every" else [name])]
            checks += [prepare(found, fmt, mode, selection) for mode in dict.fromkeys(modes)]
    return checks


def sort_out(checks: Iterable[Check]) -> tuple[list[Check], list[tuple[Check, ValueError]]]:
    """Return the checks that can be run, and those that are refused with the reason: see `Check.refusal`."""
    given = list(checks)
    with ThreadPoolExecutor(_cores()) as pool:
        found = list(zip(given, pool.map(Check.refusal, given), strict=True))
    good = [check for check, reason in found if reason is None]
    return good, [(check, reason) for check, reason in found if reason is not None]


def workers_for(checks: Iterable[Check]) -> int:
    """Return how many workers the work is worth: one per core, or a single one for a second's work."""
    sizes = accumulate(check.domain().size for check in checks)
    return _cores() if any(cases > UNIT for cases in sizes) else 1


def _cores() -> int:
    """Return how many cores this process may use, or all of the machine's if the system does not tell."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run(
    checks: Iterable[Check], sweep: Sweep, unit: int = UNIT, device: Device | None = None
) -> Iterator[Certificate]:
    """Yield the certificate of each check, in order.

    Parameters
    ----------
    checks : iterable of Check
        None of them is refused: see `Check.refusal`.
    sweep : Sweep
        It has one worker, if there is a device.
    unit : int, optional
        Cases per unit of work on the CPU.
    device : Device, optional
        It judges the checks for which it has kernels; see `mcfsim.theorems.device.find_device`.
    """
    check_processor()
    given = list(checks)
    for check in given:
        if not check.of_catalogue:
            check.try_reductions()
    identities = [identity_of(check.theorem) for check in given]
    keys = [
        check.key if identity.digest or sweep.has_journal else f"{place}, without identity"
        for place, (check, identity) in enumerate(zip(given, identities, strict=True))
    ]
    jobs = [_job(check, key, unit, device) for check, key in zip(given, keys, strict=True)]
    for check, identity, (job, results) in zip(given, identities, sweep.run(jobs), strict=True):
        certificate = certify(check, list(zip(job.units, results, strict=True)))
        check_same(check.theorem, identity)
        yield certificate


def _job(check: Check, key: str, unit: int, device: Device | None) -> Job:
    label = f"{check.theorem.name} {check.format} {check.rounding.mode}"
    if device is None or check.judge_on(device) is None:
        return Job(key, label, check, check.domain().units(unit), check.validate)
    # A journal keeps the results of a device apart, since they depend on that device, too.
    work, key = partial(check, device=device), f"{key} on {device.name}"
    return Job(key, label, work, check.domain().units(device.unit), check.validate)


def certify(check: Check, results: list[tuple[tuple[int, int], dict[str, Any]]]) -> Certificate:
    """Return the certificate that combines the results of all units."""
    domain, theorem = check.domain(), check.theorem
    total = Findings(theorem, domain.format.precision)
    parts = []
    for first, part in zip(domain.starts(), domain.parts, strict=True):
        size = part.size
        own = [data for (start, _), data in results if first <= start < first + size]
        for data in own:
            total.add(data)
        counts = (sum(data[key] for data in own) for key in ("applicable", "violations"))
        parts.append(Tried(part.kind, part.text, size, *counts))
    shown = _shown(check, total.witnesses) if total.witnesses else ()
    worst = None
    if total.worst is not None:
        ratio, case = total.worst
        worst = worst_of(theorem.claim, ratio, total.precision, *_shown(check, [case]))
    return Certificate(
        **about(check, domain),
        parts=tuple(parts),
        witnesses=shown,
        simplest=_simplest(check, shown[0]) if shown else None,
        worst=worst,
        seconds=sum(data["seconds"] for _, data in results),
        versions=versions(),
    )


def about(check: Check, domain: Domain) -> dict[str, Any]:
    """Return the fields of a check's certificate that do not depend on results."""
    theorem = check.theorem
    claimed = theorem.claimed(check.format, check.rounding)
    refuted = theorem.refuted(check.format, check.rounding)
    expected: Expectation = "holds" if claimed else "fails" if refuted else "open"
    return {
        "theorem": theorem.name,
        "statement": theorem.statement,
        "source": theorem.source,
        "hypotheses": theorem.supposed,
        "operands": tuple(f"{operand.name}: {operand.kind}" for operand in theorem.operands),
        "format": str(check.format),
        "rounding": str(check.rounding.mode),
        "underflow": str(check.rounding.underflow),
        "arithmetic": {
            "format": _fields(check.format),
            "run_in": _fields(domain.format),
            "rounding": asdict(check.rounding),
        },
        **asdict(check.selection),
        "reductions": domain.reductions,
        "covers": domain.covers,
        "claimed": claimed,
        "expected": expected,
    }


def _fields(fmt: Format) -> dict[str, Any]:
    """Return the kind and the fields of a format as data."""
    names = signature(type(fmt)).parameters
    return {"kind": type(fmt).__name__, **{name: getattr(fmt, name) for name in names}}


def _shown(check: Check, cases: list[int]) -> tuple[Witness, ...]:
    """Return the cases with given numbers, as witnesses."""
    blocks = check.domain().blocks
    return _tried(check, [next(blocks(case, case + 1))[1] for case in cases])


def _tried(check: Check, cases: list[list[Block]]) -> tuple[Witness, ...]:
    """Return cases, each given as blocks of one element, as witnesses."""
    blocks = [np.concatenate(column) for column in zip(*cases, strict=True)]
    trial = try_block(check.theorem, _emulation(check), blocks)
    # If a case has several paths, their results follow one another.
    results: list[list[ShownNumber]] = [[] for _ in cases]
    for element, path in enumerate(zip(*trial.results, strict=True)):
        results[trial.case(element)] += map(ShownNumber.of, path)
    operands = (tuple(map(ShownNumber.of, case)) for case in zip(*blocks, strict=True))
    return tuple(map(Witness, operands, map(tuple, results)))


def _emulation(check: Check) -> Emulation:
    return on_blocks(check.domain().format, check.rounding)


def _simplest(check: Check, first: Witness) -> Witness:
    ar, operands = _emulation(check), list(map(float, first.operands))
    if not violates(check.theorem, ar, operands):  # the claim is not about the case alone
        return first
    case = shrink(check.theorem, ar, operands)
    return _tried(check, [[np.array([x], dtype=ar.carrier) for x in case]])[0]


def worst_of(claim: Claim, ratio: Fraction, precision: int, case: Witness) -> Worst:
    """Return the record of the largest error, from its quotient and its case; the claim must bound one."""
    assert claim.bound is not None
    constant = claim.bound.size(ratio, precision)
    exact = rational(constant) if isinstance(constant, Fraction) else str(mpmath.nstr(constant, 30))
    bound = rational(claim.bound.at(precision))
    return Worst(rational(ratio), exact, f"{float(constant):.8g}", bound, case)
