"""Findings: the counts, the first violations and the worst error of the cases tried."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.protocol import Emulation
from mcfsim.storage.buffers import LARGE_BLOCK
from mcfsim.theorems.compiled import CaseCounts, Judge
from mcfsim.theorems.judge import applicable, measured, try_block, violating
from mcfsim.theorems.operands import Block
from mcfsim.theorems.parts import Domain
from mcfsim.theorems.statement import Theorem
from mcfsim.theorems.trial import Measured, Trial

if TYPE_CHECKING:
    from mcfsim.theorems.device import DeviceJudge

#: Most violations that a certificate shows.
WITNESSES = 8
#: Quotients in binary64 within this relative distance of the largest are compared exactly.
_SHARE = 2.0**-45
#: How many cases are measured before loops compare others with them, and how many may stay open for a while.
_FIRST, _OPEN = 1 << 8, 1 << 12
#: Loops are kept for at least this many cases, however many they leave open.
_TRUSTED = 1 << 20


class Findings:
    """The findings of a number of cases, to which others can be added."""

    def __init__(self, theorem: Theorem, precision: int) -> None:
        self.theorem, self.precision = theorem, precision
        self.applicable = self.violations = 0
        self.witnesses: list[int] = []
        #: The signed quotient of the largest error, and its case; and the constant that it amounts to.
        self.worst: tuple[Fraction, int] | None = None
        self.constant: Any = 0
        # The least and the largest quotient in binary64 so far.
        self._extremes = (0.0, 0.0)
        # How many cases loops have judged, and how many of these they have left open.
        self._judged = self._left = 0
        # The open cases: their numbers, and one block per component.
        self._open: list[list[Block]] = []
        self._many = 0

    def judge(self, ar: Emulation, blocks: Iterable[tuple[int, list[Block]]], ahead: int = 0) -> None:
        """Run the algorithm on blocks of cases, given with the number of their first case, and add them.

        The number of cases ahead, these included, decides whether compiling pays.
        """
        judge = Judge(self.theorem, ar, ahead)
        for first, block in blocks:
            # Before any error is known, some cases are measured, and others are compared with them.
            start = _FIRST if self.theorem.claim.measured is not None and self.worst is None else 0
            for part in (slice(0, start), slice(start, None)):
                some = [column[part] for column in block]
                if not some[0].size:
                    continue
                found = judge(some, self._extremes, self._wanted()) if self._settles() else None
                if found is None:
                    self.look_at(first + part.start, try_block(self.theorem, ar, some))
                else:
                    self._add(first + part.start, found, ar)
        self._look_at_open(ar)

    def judge_on(self, judge: DeviceJudge, ar: Emulation, domain: Domain, start: int, stop: int) -> None:
        """Judge a range of cases as `judge` does, but on a device; judge here what it leaves open."""
        for batch in judge.batches(domain, start, stop):
            if not self._settles():
                break
            self._add(batch.first, judge(batch, self._extremes, self._wanted()), ar)
            start = batch.first + batch.size
        self._look_at_open(ar)
        if start < stop:
            self.judge(ar, domain.blocks(start, stop), domain.size - start)

    def _settles(self) -> bool:
        """Return whether loops settle more cases than they leave open; true for a few blocks at the start."""
        return 2 * self._left < self._judged + _TRUSTED

    def _wanted(self) -> int:
        """Return how many violations of the next cases may be among the first ones."""
        return WITNESSES if len(self.witnesses) < WITNESSES else 0

    def _add(self, first: int, found: CaseCounts, ar: Emulation) -> None:
        """Add the judgement of a batch of cases by a loop or a kernel."""
        self.applicable += found.applicable
        self.violations += found.violations
        if found.first:
            self._add_witnesses(first + place for place in found.first)
        places, *blocks = found.open
        self._judged += found.cases
        self._left += places.size
        if places.size:
            self._open.append([first + places, *blocks])
            self._many += places.size
            if self._many > _OPEN:
                self._look_at_open(ar)

    def _look_at_open(self, ar: Emulation) -> None:
        """Judge the cases that loops have left open, from many blocks at once."""
        if self._open:
            cases, *blocks = (np.concatenate(column) for column in zip(*self._open, strict=True))
            self._open.clear()
            self._many = 0
            for start in range(0, cases.size, LARGE_BLOCK):  # a batch of a device has many blocks
                part = slice(start, start + LARGE_BLOCK)
                self.look_at(cases[part], try_block(self.theorem, ar, [block[part] for block in blocks]))

    def look_at(self, first: int | NDArray[np.int64], trial: Trial) -> None:
        """Add a block of cases; `first` is the number of its first case, or an array of all numbers."""
        cases = first + np.arange(trial.cases) if np.ndim(first) == 0 else np.asarray(first)
        with np.errstate(all="ignore"):
            there = applicable(self.theorem, trial)
            failing = violating(self.theorem, trial, there)
            self.applicable += trial.cases if there is None else int(np.count_nonzero(there))
            places = np.flatnonzero(failing)
            self.violations += places.size
            self._add_witnesses(cases[places[:WITNESSES]].tolist())
            if self.theorem.claim.measured is not None:
                self._measure(cases, trial, there)

    def add(self, data: dict[str, Any]) -> None:
        """Add the findings that `as_data` returned for other cases."""
        self.applicable += data["applicable"]
        self.violations += data["violations"]
        self._add_witnesses(data["witnesses"])
        if data["worst"] is not None:
            numerator, denominator, case = data["worst"]
            self._compare(Fraction(int(numerator), int(denominator)), case)

    def as_data(self) -> dict[str, Any]:
        """Return the findings as JSON data."""
        worst = None if self.worst is None else [*map(str, self.worst[0].as_integer_ratio()), self.worst[1]]
        return {
            "applicable": self.applicable,
            "violations": self.violations,
            "witnesses": self.witnesses,
            "worst": worst,
        }

    def _add_witnesses(self, cases: Iterable[int]) -> None:
        self.witnesses = sorted({*self.witnesses, *cases})[:WITNESSES]

    def _measure(self, cases: NDArray[np.int64], trial: Trial, there: Block | None) -> None:
        found = measured(self.theorem, trial)
        usable = np.isfinite(found.ratio) & trial.finite
        ratio = np.where(usable if there is None else usable & trial.each(there), found.ratio, 0)
        extremes = ratio.min(initial=0), ratio.max(initial=0)
        least, most = self._extremes
        self._extremes = min(least, float(extremes[0])), max(most, float(extremes[1]))
        for extreme in reversed(extremes):
            # Most blocks hold nothing new: the constant grows with the quotient on either side of zero.
            if extreme == 0 or self._below(extreme):
                continue
            near = np.flatnonzero(np.abs(ratio - extreme) <= _SHARE * abs(extreme))
            place = _largest(found, near)
            one = found[np.array([place])]
            exact = one.error.fraction(0) / one.reference.fraction(0)
            self._compare(exact, int(cases[trial.case(place)]))

    def _below(self, ratio: float) -> bool:
        """Return whether an inexact quotient is certainly a smaller error than the worst so far."""
        if self.worst is None:
            return False
        return bool(self.size(Fraction(ratio) * (1 + Fraction(1, 1 << 44))) < self.constant)

    def _compare(self, ratio: Fraction, case: int) -> None:
        size = self.size(ratio)
        if self.worst is None or size > self.constant or (size == self.constant and case < self.worst[1]):
            self.worst, self.constant = (ratio, case), size

    def size(self, ratio: Fraction) -> Any:
        """Return the constant that a signed quotient of error and reference amounts to."""
        bound = self.theorem.claim.bound
        assert bound is not None
        return bound.size(ratio, self.precision)


def _largest(measured: Measured, places: NDArray[np.int64]) -> int:
    """Return the first of some places at which the exact quotient is largest in magnitude."""
    # Usually, at most half of them are larger than the one in the middle.
    while True:
        some = measured[places]
        error, reference = abs(some.error), abs(some.reference)
        middle = places.size // 2
        there, unit = error.fraction(middle), reference.fraction(middle)
        ours, theirs = error * unit, reference * there
        larger = ~(ours <= theirs)
        if not larger.any():
            return int(places[np.argmax(ours == theirs)])
        places = places[larger]
