"""Search for a family of extremal operands: fit and climb to guess, prove to know."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from experiments.families.climb import Grid, climb
from experiments.families.fit import NoFitError, fit
from mcfsim.rounding import Mode
from mcfsim.theorems.every_p.family_proof import Proof, prove
from mcfsim.theorems.statement import Scaling, Theorem
from mcfsim.theorems.symbolic import EVEN, EVERY, ODD, Family, Polynomial, Precisions

#: Of families with one limit the better one has the larger error at the first of these precisions.
_COMPARED = (12, 13)
#: Errors there count as equal within such a share of a unit.
_EQUAL = Fraction(1, 64)
#: By so much a coefficient is moved.
_STEPS = (Fraction(1, 4), Fraction(1), Fraction(2))


@dataclass(frozen=True)
class Search:
    """What was searched, and the best that was found and proved.

    Attributes
    ----------
    theorem : Theorem
    best : mapping of Precisions to Proof
        The best family over every precision, and over those of one parity, where there is one.
    origin : mapping of Precisions to str
        Where it is from: "guess", "fit" or "climb".
    tried : mapping of Precisions to int
        How many families the climbs tried.
    refused : tuple of str
        The guesses that were not proved, and why; why there was no guess.
    """

    theorem: Theorem
    best: Mapping[Precisions, Proof]
    origin: Mapping[Precisions, str]
    tried: Mapping[Precisions, int]
    refused: tuple[str, ...]

    @property
    def limit(self) -> Fraction | None:
        """The largest limit, in the statement's unit, that is approached at every precision; None if none.

        That is the limit of the family over every precision, or the smaller one of those of both parities.
        """
        parities = [self.best[over].limit for over in (EVEN, ODD) if over in self.best]
        known = [self.best[EVERY].limit] if EVERY in self.best else []
        if len(parities) == 2 and None not in parities:
            known.append(min(limit for limit in parities if limit is not None))
        return max((limit for limit in known if limit is not None), default=None)


@dataclass
class _Found:
    """The best proofs so far."""

    theorem: Theorem
    mode: Mode | None
    best: dict[Precisions, Proof] = field(default_factory=dict)
    origin: dict[Precisions, str] = field(default_factory=dict)
    tried: dict[Precisions, int] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)

    def take(self, guess: Family, origin: str) -> None:
        """Prove a guess, make it simpler, and keep it if it is better."""
        try:
            found = prove(self.theorem, guess, self.mode)
        except (ValueError, ZeroDivisionError) as reason:
            self.refused.append(f"{origin}: {guess}: {reason}")
            return
        if origin != "fit":
            found = tidied(found)
        if guess.over not in self.best or quality(found) > quality(self.best[guess.over]):
            self.best[guess.over], self.origin[guess.over] = found, origin


def search(
    theorem: Theorem,
    cases: Mapping[int, Sequence[Fraction]] | None = None,
    *,
    guesses: Iterable[Family] = (),
    over: Iterable[Precisions] = (EVERY, EVEN, ODD),
    seeds: Iterable[int] = (0,),
    chains: int = 4096,
    steps: int = 2000,
    keep: int = 4,
    mode: str | Mode | None = None,
) -> Search:
    """Search for a statement's families.

    Parameters
    ----------
    theorem : Theorem
        The statement, whose claim measures an error in powers of u.
    cases : mapping of int to sequence of Fraction, optional
        Worst cases at several precisions, for `fit`.
    guesses : iterable of Family, optional
        Families to prove and make simpler beside those, whatever they are over.
    over : iterable of Precisions, optional
        Over which precisions: polynomials in u, or in its square root over those of one parity.
    seeds : iterable of int, optional
        One climb each, where operands scale one by one: see `climb`. Without any there are none.
    chains, steps, keep : int, optional
        See `climb`; as many of its families as are kept are proved.
    mode : str or Mode, optional
        How results are rounded; by default to nearest even if the statement speaks of that.

    Returns
    -------
    Search
        Every family in it is proved. That there is no better one is not said.
    """
    chosen = None if mode is None else Mode(mode)
    found = _Found(theorem, chosen)
    wanted, starts = tuple(over), tuple(seeds)
    climbable = theorem.scaling in (Scaling.EACH, Scaling.SQUARE)
    for precisions in wanted:
        if cases:
            try:
                found.take(fit(theorem, cases, precisions).family, "fit")
            except NoFitError as reason:
                found.refused.append(f"fit: {reason}")
        for seed in starts if climbable else ():
            climbed = climb(
                Grid(theorem, precisions),
                seed=seed,
                chains=chains,
                steps=steps,
                keep=keep,
                mode=chosen or _usual(theorem),
            )
            found.tried[precisions] = found.tried.get(precisions, 0) + climbed.tried
            for guess in climbed.families:
                found.take(guess, "climb")
    for guess in guesses:
        found.take(guess, "guess")
    for precisions in (EVEN, ODD):
        if precisions in found.best and (lifted := in_u(found.best[precisions].family)):
            found.take(lifted, found.origin[precisions])
    return Search(theorem, found.best, found.origin, found.tried, tuple(found.refused))


def quality(proof: Proof) -> tuple[bool, Fraction, Fraction, int, int]:
    """Return what orders proofs, better ones last.

    That is the limit, an infinite one last; the error at p = 12 or 13, in 64ths of a unit; then a smaller
    first precision; and then simpler coefficients.
    """
    if proof.in_unit is None:
        return False, Fraction(0), Fraction(0), 0, 0
    over = proof.family.over
    p = next(p for p in (*_COMPARED, over.precision(12)) if p in over)
    soon = proof.in_unit.at(p) / (2 if proof.bound.squared else 1)
    # From a larger first precision on the formula says nothing of the error there.
    share = soon // _EQUAL * _EQUAL if proof.first <= p else Fraction(0)
    return proof.limit is None, proof.limit or Fraction(0), share, -proof.first, -_weight(proof.family)


def tidied(proof: Proof, rounds: int = 6) -> Proof:
    """Return a proof of a family nearby that is no worse by `quality`: a climb with proofs for its judge.

    One coefficient at a time is left out, halved, or moved by a power of two, as long as that is better.
    """
    for _ in range(rounds):
        before = proof
        for place in list(_places(proof.family)):
            for other in _neighbours(proof.family, *place):
                try:
                    tried = prove(proof.theorem, other, proof.mode)
                except (ValueError, ZeroDivisionError):
                    continue
                if quality(tried) > quality(proof):
                    proof = tried
        if proof is before:
            break
    return proof


def in_u(family: Family) -> Family | None:
    """Return a family over one parity as one over every precision, if its polynomials are in u alone."""
    step, share = family.over.unit
    if any(power % step for _, parts in family.operands for part in parts for power, _ in part.terms):
        return None
    operands = tuple(
        (
            name,
            tuple(
                Polynomial.of({k // step: c / share ** (k // step) for k, c in part.terms}, EVERY)
                for part in parts
            ),
        )
        for name, parts in family.operands
    )
    return Family(operands, EVERY)


def _places(family: Family) -> Iterator[tuple[int, int, int]]:
    """Yield the coefficients that may change: not what high words begin with."""
    for i, (_, parts) in enumerate(family.operands):
        for j, part in enumerate(parts):
            powers = {power for power, _ in part.terms}
            begins = min(powers, default=0)
            # A word ends with the power of u after the one that it begins with; its root lies between.
            for power in sorted(powers | set(range(begins, begins + family.over.step + 1))):
                if j > 0 or power > begins:
                    yield i, j, power


def _neighbours(family: Family, i: int, j: int, power: int) -> Iterator[Family]:
    """Yield families that differ in one coefficient."""
    name, parts = family.operands[i]
    terms = dict(parts[j].terms)
    c = terms.get(power, Fraction(0))
    for value in dict.fromkeys(
        (Fraction(0), c / 2, *(c + sign * step for step in _STEPS for sign in (1, -1)))
    ):
        if value != c:
            changed = Polynomial.of({**terms, power: value}, family.over)
            words = (*parts[:j], changed, *parts[j + 1 :])
            yield Family((*family.operands[:i], (name, words), *family.operands[i + 1 :]), family.over)


def _weight(family: Family) -> int:
    """Return how many bits the coefficients have."""
    terms = [c for _, parts in family.operands for part in parts for _, c in part.terms]
    return sum(abs(c.numerator).bit_length() + c.denominator.bit_length() for c in terms)


def _usual(theorem: Theorem) -> Mode:
    return Mode.NEAREST_EVEN if Mode.NEAREST_EVEN in theorem.modes else min(theorem.modes)
