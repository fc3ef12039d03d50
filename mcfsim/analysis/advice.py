"""Advice: the fewest expressions that, in a wider format, bring a function's error below a target."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.analysis.attribution import RoundedFunction
from mcfsim.analysis.blame import INPUTS, Blame
from mcfsim.analysis.expressions import Expression
from mcfsim.analysis.rounded_run import Formats
from mcfsim.analysis.samplers import Inputs
from mcfsim.checks import finite_number, whole_number
from mcfsim.convert import round_to
from mcfsim.formats import Format, get_format
from mcfsim.kernels.carriers import within
from mcfsim.random import RandomWords

#: How many inputs a set is tried on first, how many fresh ones last, and the most smaller sets to try.
_FEW, _MANY, _MOST_SETS = 128, 4096, 4000
#: The most rounds of the search; after each, the inputs on which the set failed join those it must serve.
_ROUNDS = 4


@dataclass(frozen=True)
class Advice:
    """Which expressions to compute in a wider format.

    Attributes
    ----------
    target : float
        The relative error not to be exceeded.
    before, after : float
        The largest relative error without and with these expressions in the wider format, over all inputs of
        the report. Each result is first rounded back into its own format, as the function rounds.
    fresh : float
        As `after`, on other inputs from the same samplers, which were not used for the choice; NaN if there
        is no sampler.
    expressions : tuple of Expression
        The expressions to widen; every expression, if even widening all of them misses the target.
    wide : Format
    reached : bool
        Whether the target is met, on fresh inputs too.
    smallest : bool
        Whether all smaller sets were tried, and failed.
    """

    target: float
    before: float
    after: float
    fresh: float
    expressions: tuple[Expression, ...]
    wide: Format
    reached: bool
    smallest: bool

    def __str__(self) -> str:
        names, count = ", ".join(map(str, self.expressions)), len(self.expressions)
        with_these = f"with {count} expression{'s' * (count != 1)} in {self.wide}"
        if not self.reached:
            found = np.fmax(self.after, self.fresh)
            return f"the target {self.target:.3g} is missed: {with_these} the largest error is {found:.3g}"
        fresh = "" if np.isnan(self.fresh) else f" ({self.fresh:.3g} on fresh inputs)"
        if not self.expressions:
            return f"largest error {self.before:.3g}{fresh} meets the target {self.target:.3g} already"
        proof = "no smaller set does" if self.smallest else "not all smaller sets were tried"
        return (
            f"largest error {self.before:.3g} becomes {self.after:.3g}{fresh} {with_these}: {names}; {proof}"
        )


def target_of(target: float | str, fmt: Format) -> float:
    """Return a target as a relative error; ``"2u"`` is two units roundoff of a format.

    Raises
    ------
    ValueError
        If it is not a number, or is below u, the error that rounding the result alone may cause.
    """
    u = 2.0**-fmt.precision
    if isinstance(target, str):
        found = re.fullmatch(r"\s*((?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)\s*(u?)\s*", target)
        if found is None:
            raise ValueError(f"a target is a number, or a number of units as '2u', not {target!r}")
        target = float(found[1]) * (u if found[2] else 1.0)
    if finite_number("target", target) < u:
        raise ValueError(
            f"target = {target:g} is below u = {u:g} of {fmt}, which rounding the result alone may cost"
        )
    return float(target)


def wider_format(wide: Format | str, fmt: Format) -> Format:
    """Return the wider format by name; ``"two components"`` stands for one of twice the precision.

    Raises
    ------
    ValueError
        If its precision is not larger, or its range does not contain that of the narrow format.
    """
    found = doubled(fmt) if wide == "two components" else get_format(wide)
    if found.precision <= fmt.precision or not within(fmt, found):
        raise ValueError(
            f"{found} is not wider than {fmt}: it needs more digits, and must reach as far at both ends"
        )
    return found


def doubled(fmt: Format) -> Format:
    """Return a format of twice the precision: what two components of a format hold."""
    return Format(f"two of {fmt}", precision=2 * fmt.precision, emin=fmt.emin - fmt.precision, emax=fmt.emax)


#: The numbers of a block of inputs, and the index of its first input, which selects the random words.
_Sample = tuple[list[Any], int]


class _Trial:
    """Runs of a function with some expressions in a wider format."""

    def __init__(self, rounded: RoundedFunction, wide: Format) -> None:
        self.rounded, self.wide = rounded, wide
        self.blame = Blame(rounded.program)
        self.samples: list[_Sample] = [(rounded.inputs.block(0), 0)]
        self.few = [x[:_FEW] for x in self.samples[0][0]]
        stochastic = rounded.rounding.stochastic
        self.random = RandomWords(rounded.inputs.seed).of(len(rounded.program.steps)) if stochastic else None

    def formats(self, rows: Iterable[Any]) -> Formats:
        steps = self.blame.steps_of(list(rows))
        return {x.result: self.wide for x in steps if within(x.result.format, self.wide)}

    def worst(self, rows: Sequence[Any], numbers: list[Any], start: int) -> float:
        """Return the largest relative error of the result, rounded back into its own format."""
        rounded = self.rounded
        found = rounded.at(numbers, self.formats(rows), start=start)
        with np.errstate(all="ignore"):
            values, policy = found.run.values, rounded.rounding
            parts = [round_to(values[x], x.format, policy, random=self.random) for x in rounded.outputs]
            back = np.sum(parts, axis=0, dtype=np.float64)
            relative = np.abs((back - found.computed + found.error) / found.exact)
        known: NDArray[Any] = relative[(found.exact != 0) & ~np.isnan(found.exact)]
        lost = ~np.isfinite(found.computed).all() or np.isnan(known).any()
        return float("inf") if lost else float(known.max(initial=0.0))

    def worst_block(self, rows: Sequence[Any], inputs: Inputs | None) -> tuple[float, _Sample]:
        """Return the largest error over inputs, and the block that has it; NaN if there are none."""
        if inputs is None:
            return float("nan"), ([], 0)
        blocks = ((inputs.block(k), k * Inputs.BLOCK) for k in range(inputs.blocks))
        return max(((self.worst(rows, *x), x) for x in blocks), key=itemgetter(0))

    def serves(self, rows: Sequence[Any], target: float) -> bool:
        return self.worst(rows, self.few, 0) <= target and all(
            self.worst(rows, *x) <= target for x in self.samples
        )

    def shares(self, rows: Sequence[Any]) -> list[Any]:
        """Return all other expressions, the one with the largest share first."""
        blame = Blame(self.rounded.program)
        blame.add(blame.summed(self.rounded.at(self.few, self.formats(rows))))
        ordered = [row for row in blame.rows(1.0) if row.expression != INPUTS and row.operations]
        return [row.expression for row in ordered if row.expression not in rows]


def advise(
    rounded: RoundedFunction, target: float | str, wide: Format | str = "float32", *, seed: int | None = None
) -> Advice:
    """Find the smallest set of expressions that brings the largest error below a target, and run it.

    Expressions are widened greedily by their shares; those that prove unnecessary are removed; then all
    smaller sets are tried, if there are not too many. Each set is run, with its result rounded back. The set
    must also meet the target on all inputs of the report, and on fresh ones; inputs on which it fails are
    added, and the search goes on.

    Parameters
    ----------
    rounded : RoundedFunction
        A function with its format and inputs, as a report has it.
    target : float or str
        The relative error, or a number of units as ``"2u"``.
    wide : Format or str, optional
        The wider format; ``"two components"`` stands for twice the precision.
    seed : int, optional
        Seed of the fresh inputs; by default one other than the report's.

    Raises
    ------
    ValueError
        If the target is below u, the seed is negative, or the format is not wider: in precision, and at both
        ends of its range.
    """
    fresh_seed = rounded.inputs.seed + 1 if seed is None else whole_number("seed", seed, least=0)
    limit = target_of(target, rounded.format)
    chosen_format = wider_format(wide, rounded.format)
    trial = _Trial(rounded, chosen_format)
    before, _ = trial.worst_block((), rounded.inputs)
    every = trial.shares(())
    for attempt in range(_ROUNDS):
        others = rounded.inputs.fresh(_MANY, fresh_seed + attempt)
        enough = _greedy(trial, limit)
        if enough is None:
            after, _ = trial.worst_block(every, rounded.inputs)
            worst, _ = trial.worst_block(every, others)
            if others is not None:
                worst = max([worst, *(trial.worst(every, *x) for x in trial.samples[1:])])
            return Advice(limit, before, after, worst, tuple(every), chosen_format, False, False)
        chosen, smallest = _smaller(trial, limit, enough, every)
        after, hard = trial.worst_block(chosen, rounded.inputs)
        worst, fresh = trial.worst_block(chosen, others)
        missed = [x for x, most in ((hard, after), (fresh, worst)) if most > limit]
        if not missed:
            break
        trial.samples += missed
    in_order = tuple(sorted(chosen, key=lambda x: (x.file, x.line)))
    return Advice(limit, before, after, worst, in_order, chosen_format, not missed, smallest)


def _greedy(trial: _Trial, limit: float) -> list[Any] | None:
    """Return a set that meets the target and loses it without any one member; None if no set meets it."""
    chosen: list[Any] = []
    while not trial.serves(chosen, limit):
        left = trial.shares(chosen)
        if not left:
            return None
        chosen.append(left[0])
    for row in list(chosen):
        rest = [x for x in chosen if x != row]
        if trial.serves(rest, limit):
            chosen = rest
    return chosen


def _smaller(trial: _Trial, limit: float, chosen: list[Any], every: list[Any]) -> tuple[list[Any], bool]:
    """Return the first smaller set that meets the target, else the given one; and whether all were tried."""
    tried = 0
    for size in range(len(chosen)):
        for rows in combinations(every, size):
            tried += 1
            if tried > _MOST_SETS:
                return chosen, False
            if trial.serves(rows, limit):
                return list(rows), True
    return chosen, True
