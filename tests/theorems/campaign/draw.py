"""The campaign's cases: a statement, where it is tried, and whether its reduction holds by construction.

Of each line that is drawn, brute force tells which predicates hold often, so that a fair share of the
statements is true, or false in a few cases only: those are the ones that a core could miss.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from fractions import Fraction
from random import Random
from typing import Any

import numpy as np

from mcfsim.formats import Format
from mcfsim.rounding import Overflow, Rounding, Underflow
from tests.theorems.campaign import brute
from tests.theorems.campaign.generator import Maker, rules
from tests.theorems.campaign.statements import Line, Statement, Tree, operands_of

MODES = ("nearest_even", "nearest_away", "toward_zero", "up", "down", "to_odd")
SPECIALS = ("ieee", "ieee", "fn", "none", "fnuz", "nuz")


@dataclass(frozen=True)
class Case:
    """What is verified, and where."""

    name: str
    statement: Statement
    format: Format
    rounding: Rounding
    #: Whether the reduction holds by construction: then it may not be refused.
    valid: bool
    #: Whether the reduction is used, however small the format.
    core: bool


#: Factors of up to 150 bits.
LONG = (3, -(2**53) - 1, 2**60, 2**70 - 1, -(3**40), 2**124 + 1, 5**65)
#: Exponents that stand for unbounded ones in the campaign, few enough for brute force.
UNBOUNDED = (-14, 14)
#: Of each group: the reduction, how many operands, and its formats, by precision, emin and emax.
GROUPS: dict[str, tuple[str, tuple[int, ...], tuple[tuple[int, int, int], ...]]] = {
    # Complete domains: what is counted must agree.
    "complete": ("any", (1, 2, 2, 3), ((2, -2, 2), (3, -2, 1), (2, -3, 1))),
    "complete pairs": ("any", (2, 2, 3), ((2, -2, 2), (3, -3, 2), (3, -1, 3))),
    # Exact numbers of many bits.
    "long": ("none", (1, 1, 1, 2), ((2, -18, 18), (2, -24, 10))),
    "long single": ("none", (1,), ((4, -28, 28), (6, -24, 20), (3, -36, 20))),
    # Gaps by a hypothesis, in any mode; wide gaps, of which the rest cannot matter; the default.
    "common": ("common", (1, 2, 2, 2), ((2, -9, 9), (2, -12, 6), (3, -9, 8))),
    "common wide": ("common", (2,), ((2, -16, 15), (2, -18, 12))),
    "common default": ("common", (2,), ((2, -9, 9), (3, -9, 9), (4, -9, 9))),
    "common three": ("common", (3,), ((2, -5, 4), (2, -3, 4))),
    # What scales, but overflows and underflows far from where its operands do.
    "common products": ("common", (2,), ((2, -9, 9), (3, -6, 6))),
    "each": ("each", (1, 2, 2, 2), ((2, -7, 7), (3, -8, 6), (3, -5, 9))),
    "each three": ("each", (3,), ((2, -4, 4), (2, -6, 2))),
    "square": ("square", (1, 2, 2), ((2, -9, 9), (3, -9, 8), (2, -8, 10))),
    # What scales, but is not the same of operands of other signs.
    "signs": ("signed", (2,), ((2, -9, 9), (3, -8, 6))),
    # Cores of unbounded exponents, values and pairs: they do not cover.
    "unbounded": ("ranged", (1, 2, 2), ((2, *UNBOUNDED),)),
    "unbounded pairs": ("ranged", (2, 3), ((2, *UNBOUNDED),)),
    # Statements made without types: whatever they are declared with need not hold.
    "false common": ("common", (1, 2, 2), ((2, -9, 9), (3, -9, 8))),
    "false each": ("each", (1, 2, 2, 3), ((2, -5, 4), (2, -4, 6))),
    "false square": ("square", (1, 2, 2), ((2, -9, 9), (3, -9, 8))),
}


def draw(group: str, number: int) -> Case:
    """Return a case of a group by its number."""
    name = f"{group} {number}"
    random = Random(name)
    scaling, counts, formats = GROUPS[group]
    fmt, rounding = _where(random, formats, group)
    false = group.startswith("false")
    if scaling == "any":
        scaling = random.choice(("none", "none", "common", "each", "square"))
    if scaling == "signed":
        scaling = random.choice(("common", "each"))
    if scaling == "ranged":
        scaling = random.choice(("common", "each", "square"))
    operands = _operands(random, random.choice(counts), group)
    own = rules(
        scaling, str(rounding.mode), typed=not false, sums=group != "common products", signs=group != "signs"
    )
    maker = Maker(random, own, operands)
    most = 3 if group == "common wide" else 1 if group == "common default" else 8
    if group.startswith("long"):
        maker.factors, maker.longest, maker.numbers = LONG, 90, 0.15
    line = maker.line(random.randint(1, most))
    where, gap = [], None
    if scaling in ("common", "square") and not group.startswith(("common default", "complete", "unbounded")):
        if group == "common wide":
            gap = 2 * fmt.precision + 2 * len(line.steps) + 2
        elif len(operands) > 1 and (not false or random.random() < 0.5):
            gap = random.randint(0, 3)
            where += [("exponent_gap", operands[0][0], other, gap) for other, _ in operands[1:]]
    toy = brute.toy(fmt, rounding)
    tried = brute.run(line, toy)
    statement = _stated(random, maker, line, tried, tuple(where), group)
    range = "unbounded" if group.startswith("unbounded") else "bounded"
    statement = replace(statement, scaling=scaling, gap=gap, range=range)
    return Case(name, statement, fmt, rounding, not false, not group.startswith(("complete", "long")))


def _where(random: Random, formats: Any, group: str) -> tuple[Format, Rounding]:
    p, emin, emax = random.choice(formats)
    fmt = Format("", precision=p, emin=emin, emax=emax, specials=random.choice(SPECIALS))
    if group.startswith("unbounded"):
        fmt = replace(fmt, name="", specials="ieee")  # as the verifier's own format has it
    modes = MODES[:2] if group in ("common wide", "common default") else MODES
    overflow = random.choice((Overflow.IEEE, Overflow.IEEE, Overflow.SATURATE))
    underflow = Underflow.GRADUAL
    if random.random() < 0.25 and not group.startswith("unbounded"):
        underflow = random.choice(tuple(Underflow)[1:])
    return fmt, Rounding(random.choice((*modes, modes[0])), overflow, underflow=underflow)


def _operands(random: Random, count: int, group: str) -> tuple[tuple[str, str], ...]:
    operands = operands_of(*"abc"[:count])
    if group.endswith(" pairs"):
        # At most three components: a pair and a value, or a pair alone.
        first = random.choice(("double word", "relaxed pair"))
        operands = (("x", first),) if count == 2 else (("x", first), ("b", "value"))
        if count == 3 and random.random() < 0.5:
            operands = operands[::-1]
    return operands


def _stated(
    random: Random, maker: Maker, line: Line, tried: brute.Tried, where: tuple[Tree, ...], group: str
) -> Statement:
    """Choose hypotheses and a claim of which brute force says that they are worth trying."""
    measured = random.random() < 0.3 and group not in ("common wide", "common default")
    for _ in range(6):
        more = tuple(maker.hypothesis() for _ in range(random.choice((0, 0, 1, 1, 2))))
        if group.startswith("false") and random.random() < 0.4:
            more += (maker.unsound(),)
        statement = Statement(line, ("finite",), where + more)
        there = brute.judge(statement, tried).there
        if there.any() or random.random() < 0.1:
            break
    if measured:
        found = _measured(random, maker, statement, tried)
        if found is not None:
            return found
    return replace(statement, claim=_claimed(random, maker, tried, there, group))


def _claimed(random: Random, maker: Maker, tried: brute.Tried, there: Any, group: str) -> Tree:
    atoms = list({maker.atom(): None for _ in range(7)})
    if group.startswith("false") and random.random() < 0.5:
        atoms.append(maker.unsound())
    sums = [(name, "value") for name in "ab"] == list(maker.operands) and maker.rules.scaling != "each"
    if sums and len(maker.results) == 2 and all(maker.rules.alike(maker.types[0], x) for x in maker.results):
        atoms.append(("sum", "a", "b"))
    failing = {atom: there & ~tried.truth(atom) for atom in atoms}
    choices: list[tuple[int, Tree]] = [(int(np.count_nonzero(bad)), atom) for atom, bad in failing.items()]
    for p, q in itertools.combinations(atoms, 2):
        choices.append((int(np.count_nonzero(failing[p] & failing[q])), ("or", p, q)))
        bad = failing[p] & ~failing[q] & there
        choices.append((int(np.count_nonzero(bad)), ("or", p, ("not", q))))
    wanted = random.random()
    true = [tree for count, tree in choices if count == 0]
    # A disjunction of which either holds says no more than that.
    telling = [tree for tree in true if tree[0] != "or" or not {tree[1], tree[2]} & set(true)]
    few = sorted((item for item in choices if item[0]), key=lambda item: item[0])
    if wanted < 0.55 and telling:
        return random.choice(telling)
    if wanted < 0.9 and few:
        return random.choice(few[:2])[1]
    return random.choice(choices)[1]


def _measured(random: Random, maker: Maker, statement: Statement, tried: brute.Tried) -> Statement | None:
    """Bound an error by its largest value, or by a little less."""
    pair = maker.both()
    if pair is None or pair[1][0] == "number":
        return None
    result, target, kind = pair
    error, reference = ("-", result, target), target
    for _ in range(4):
        other, its = maker.exact()
        if its[0] == kind[0] or not maker.rules.typed:
            reference = other
            break
    where = (*statement.where, ("results_finite",), ("not", ("zero", reference)))
    there = brute.judge(replace(statement, where=where), tried).there
    worst = tried.worst(error, reference, there)
    if worst is None:
        return None
    share = random.choice((Fraction(1), Fraction(1), 1 - Fraction(1, 2**24), Fraction(1, 2), Fraction(2)))
    return replace(statement, where=where, claim=("within", error, reference, str(worst * share)))
