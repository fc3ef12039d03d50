"""Checks: a statement in one arithmetic, tried on one range of operands at a time."""

from __future__ import annotations

import hashlib
import json
import re
import time
from dataclasses import astuple, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from mcfsim.backends.factory import on_blocks
from mcfsim.checks import check_processor
from mcfsim.formats import Format
from mcfsim.kernels.carriers import UnsupportedFormatError
from mcfsim.rounding import Rounding
from mcfsim.storage.sealed import build
from mcfsim.storage.sweeps.installed import DIGEST, versions
from mcfsim.theorems.catalogue import THEOREMS
from mcfsim.theorems.cores import DRAWS
from mcfsim.theorems.domain import FEW, USUAL, cover
from mcfsim.theorems.findings import WITNESSES, Findings
from mcfsim.theorems.identity import Identity, NoIdentityError, by_identity, holding, identity_of
from mcfsim.theorems.judge import try_block
from mcfsim.theorems.parts import Domain, Selection
from mcfsim.theorems.statement import Scaling, Theorem
from mcfsim.theorems.symmetries import outcome, try_scaling

if TYPE_CHECKING:
    from mcfsim.theorems.device import Device, DeviceJudge

#: The most domains that are kept, and the most bytes of their tables; of others, only the last few are.
_MANY, _ROOM = 1 << 11, 1 << 28
#: A domain whose tables have more bytes is made again in each process; smaller ones travel with a check.
_LIGHT = 1 << 18
_INTEGER = re.compile("-?[0-9]{1,4000}")
#: Number of cases that are tried twice, before the work begins.
_ASKED_TWICE = 256


@dataclass(frozen=True)
class Check:
    """A statement, an arithmetic and a choice of operands: all that the results depend on.

    Calling it with a range of case numbers tries these cases and returns JSON data: how many cases meet the
    hypotheses, how many of them violate the claim, the first violations, the worst error, and the seconds.
    """

    theorem: Theorem
    format: Format
    rounding: Rounding
    selection: Selection = USUAL
    _own: dict[Any, Domain] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __reduce__(self) -> tuple[Any, ...]:
        identity = identity_of(self.theorem)
        found = _kept.domains.get(self._place(identity))
        light = found if found is not None and found.nbytes <= _LIGHT else None
        return _arrived, (identity, light, self.theorem, self.format, self.rounding, self.selection)

    def _place(self, identity: Identity) -> tuple[Any, ...]:
        """Return the key of the domain, which includes the format's name: equal formats may differ in it."""
        return identity, self.format.name, self.format, self.rounding, self.selection

    @property
    def of_catalogue(self) -> bool:
        """Whether the statement is one of the catalogue."""
        return THEOREMS.get(self.theorem.name) is self.theorem

    def domain(self) -> Domain:
        """Return the domain: the operands to try."""
        identity = identity_of(self.theorem)
        place = self._place(identity)
        # A statement without identity may change at any time, so its operands are fixed at the first call.
        if not identity.digest:
            if place not in self._own:
                self._own[place] = _cover(self.theorem, *place[1:])
            return self._own[place]
        if (found := _kept.domains.get(place)) is None:
            found = _cover(self.theorem, *place[1:])
            _kept.add(place, found)
        return found

    @property
    def key(self) -> str:
        """Digest of all that the results depend on.

        Raises
        ------
        NoIdentityError
            If some part of the statement cannot be named.
        """
        identity = identity_of(self.theorem)
        if not identity.digest:
            raise NoIdentityError(
                f"{self.theorem.name!r} cannot be kept in a journal, which could not tell it from others: "
                f"{identity.lack}"
            )
        content = {
            "statement": [self.theorem.name, self.theorem.statement, identity.digest],
            "format": repr(self.format),
            "rounding": repr(self.rounding),
            "operands": astuple(self.selection),
            "domain": [[part.kind, part.text, part.size] for part in self.domain().parts],
            "versions": [versions()["mcfsim"], DIGEST, np.__version__],
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def refusal(self) -> ValueError | None:
        """Return the reason why the check cannot be run, or None if it can.

        An `UnsupportedFormatError` means that the statement is about other formats or roundings, or that an
        operation has no exact path. Another error means that limit and samples leave nothing to try.
        """
        fmt = self.format
        if not (fmt.signed and fmt.zero):
            lack = "zero" if fmt.signed else "sign"
            return UnsupportedFormatError(f"it is about formats with sign and zero, and {fmt} has no {lack}")
        if self.theorem.range == "unbounded" and (type(fmt) is not Format or fmt.precision == 1):
            return UnsupportedFormatError(
                f"it is tried with unbounded exponents in floats of at least 2 bits, which {fmt} is not"
            )
        try:
            domain = self.domain()
            if not domain.size and not domain.covers:
                few = f"limit = {self.selection.limit} leaves no core, and samples = {self.selection.samples}"
                return ValueError(f"nothing would be tried: {few}")
            self.rehearse()
        except UnsupportedFormatError as error:
            return error
        except NoIdentityError:
            raise
        except ValueError as error:
            # In an arithmetic that a statement is about, it must run. Another one may lack some operation.
            if self.theorem.speaks_of(fmt, self.rounding):
                raise
            return UnsupportedFormatError(str(error))
        return None

    def rehearse(self) -> None:
        """Try two cases, so that a faulty statement raises its error before the work begins.

        They are tried only once as long as the domain is kept. A statement outside the catalogue is also
        asked twice about a few more cases, on every call.

        Raises
        ------
        NoIdentityError
            If the statement gives two different answers, or changes when it is asked.
        """
        with holding(self.theorem) as identity:
            place = self._place(identity)
            if place not in _kept.rehearsed:
                self._of(self.domain(), 0, 2)
            if not self.of_catalogue and self._answers() != self._answers():
                raise NoIdentityError(
                    f"{self.theorem.name!r} gave two answers to the same question: its algorithm, hypotheses "
                    "and claim must depend on operands, results and what does not change"
                )
        # Only now is it known that asking has not changed the statement.
        if place in _kept.domains:
            _kept.rehearsed.add(place)

    def _answers(self) -> list[bytes]:
        """Return the answers for the first cases, as bytes: results, hypotheses, claim and errors."""
        domain, found = self.domain(), []
        ar = on_blocks(domain.format, self.rounding)
        for _, blocks in domain.blocks(0, _ASKED_TWICE):
            trial = try_block(self.theorem, ar, blocks)
            found += [x.tobytes() for x in (*trial.results, *outcome(self.theorem, trial))]
        return found

    def try_reductions(self) -> None:
        """Test the scaling by powers of two that the statement declares, if a reduction depends on it.

        Raises
        ------
        ValueError
            If trials show that the scaling is not valid.
        """
        # Under stochastic rounding all draws are tried without reductions.
        if self.rounding.stochastic or self.theorem.scaling is Scaling.NONE:
            return
        with holding(self.theorem):
            if self.domain().reductions:
                try_scaling(self.theorem, self.format, self.rounding)
                self._try_toy()

    def _try_toy(self) -> None:
        """Compare the findings on a core with those on all operands, in a format that has few."""
        p = max(4, self.theorem.precision)
        reach = max(18, 2 * p + 4, *map(abs, self.theorem.gaps(p)))
        toy = replace(self.format, name="", precision=p, emin=-reach, emax=reach)
        options = (self.theorem, toy, self.rounding)
        try:
            core = cover(*options, Selection(samples=0), few=0)
            if not (core.reductions and core.covers):
                return
            whole = cover(*options, Selection("all"))
            if whole.size > FEW:
                return
            found, right = (self._of(domain) for domain in (core, whole))
        except ValueError:
            return  # such a format has no list of all operands, or no exact path
        for what, ours, theirs in (
            ("operands that meet the hypotheses", found.applicable > 0, right.applicable > 0),
            ("violations", found.violations > 0, right.violations > 0),
            ("the worst constant", found.constant, right.constant),
        ):
            if ours != theirs:
                raise ValueError(
                    f"scaling={str(self.theorem.scaling)!r} is not valid for {self.theorem.name!r}: of all "
                    f"operands of {toy}, {what}: {theirs}; of those that should stand for all: {ours}"
                )

    def __call__(self, start: int, stop: int, device: Device | None = None) -> dict[str, Any]:
        """Try a range of cases and return JSON data; use a device where it has a kernel for them."""
        check_processor()  # in each thread and process that works on it
        with holding(self.theorem):
            domain, begun = self.domain(), time.perf_counter()
            found = self._of(domain, start, stop, device)
            return {**found.as_data(), "seconds": time.perf_counter() - begun}

    def judge_on(self, device: Device) -> DeviceJudge | None:
        """Return the judge of the cases on a device, or None if the CPU judges them."""
        domain = self.domain()
        return device.judge(self.theorem, domain.format, self.rounding, domain.size)

    def _of(
        self, domain: Domain, start: int = 0, stop: int | None = None, device: Device | None = None
    ) -> Findings:
        ar = on_blocks(domain.format, self.rounding)
        found = Findings(self.theorem, domain.format.precision)
        stop = domain.size if stop is None else stop
        judge = None if device is None else self.judge_on(device)
        if judge is None:
            found.judge(ar, domain.blocks(start, stop), domain.size - start)
        else:
            found.judge_on(judge, ar, domain, start, stop)
        return found

    def validate(self, start: int, stop: int, data: Any) -> None:
        """Raise ValueError if data cannot be the result of trying a range of cases."""
        found: _Found = build(_Found, data, "")
        if not 0 <= found.violations <= found.applicable <= stop - start:
            raise ValueError(
                f"{found.violations} violations of {found.applicable} of {stop - start} cases are impossible"
            )
        cases = list(found.witnesses)
        if cases != sorted(set(cases)) or len(cases) != min(found.violations, WITNESSES):
            raise ValueError(f"witnesses {cases} are not the first ones of {found.violations} violations")
        if found.worst is not None:
            if self.theorem.claim.measured is None:
                raise ValueError("it has a worst error, which the statement does not measure")
            numerator, denominator, case = found.worst
            if not all(map(_INTEGER.fullmatch, (numerator, denominator))) or int(denominator) < 1:
                raise ValueError("its worst error is no fraction")
            cases.append(case)
        if any(not start <= case < stop for case in cases):
            raise ValueError(f"its cases {cases} are not all in the range [{start}, {stop})")
        if found.seconds < 0:
            raise ValueError(f"it took {found.seconds} seconds")


def _arrived(identity: Identity, domain: Domain | None, theorem: Theorem, *others: Any) -> Check:
    """Return a check sent by another process, if its statement is the same here."""
    if identity and identity_of(theorem) != identity:
        raise ValueError(
            f"{theorem.name!r} is another statement in this process: what it reads was changed in the first "
            "one"
        )
    check = Check(theorem, *others)
    if domain is not None:
        _kept.add(check._place(identity), domain)
    return check


@dataclass(frozen=True)
class _Found:
    """The data of a range of cases."""

    applicable: int
    violations: int
    witnesses: tuple[int, ...]
    worst: tuple[str, str, int] | None
    seconds: float


class _Domains:
    """Domains by statement and arithmetic, up to a limit; and the keys of those already rehearsed."""

    def __init__(self) -> None:
        self.domains: dict[Any, Domain] = {}
        self.rehearsed: set[Any] = set()
        self._room = _ROOM

    def add(self, place: Any, found: Domain) -> None:
        """Keep a domain if there is room."""
        if place not in self.domains and found.nbytes <= self._room and len(self.domains) < _MANY:
            self.domains[place] = found
            self._room -= found.nbytes


_kept = _Domains()


@by_identity(4)
def _cover(theorem: Theorem, _: str, fmt: Format, rounding: Rounding, selection: Selection) -> Domain:
    domain = cover(theorem, fmt, rounding, selection)
    if not rounding.stochastic:
        return domain
    return replace(domain, reductions=(*domain.reductions, DRAWS.format(rounding.random_bits, rounding.rule)))
