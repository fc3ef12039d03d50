"""A long line as several loops, each over a few elements at a time, with values kept between them.

A processor looks some hundred instructions ahead. In a long loop of binary64 operations these are of one
vector of elements, and each waits for those before it; in short loops they are of several, which do not wait
for one another. Lines of binary32 have twice as many elements in a vector: cut, they gain a tenth, and take
twice as long to compile.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from operator import attrgetter
from typing import NamedTuple

from mcfsim.compile.lowering import Lowered
from mcfsim.kernels.element.machine import F32, F64, I32, I64, TRUTH, Value

#: Elements between the loops: so few that what is kept stays in the first cache.
AT_ONCE = 512
#: The fewest and the most operations of a loop.
_LEAST, _MOST = 12, 30
#: The least share of operations in 64 bits.
_SHARE = 1 / 3
#: What is made anew in each loop, by so many operations of operands at most.
_CHEAP = 2
#: What a cut costs by itself, and for each value that is kept across it: truth values are no vectors.
_CUT, _KEPT = 4, {F32: 1, I32: 1, F64: 2, I64: 2, TRUTH: 16}


class LoopPart(NamedTuple):
    """A loop of its own.

    Attributes
    ----------
    values : list of Value
        What it reads and makes, in order.
    taken, kept : list of Value
        What it takes of the loops before it, and what it keeps for those after it.
    results : list of int
        The places of the results that it makes.
    """

    values: list[Value]
    taken: list[Value]
    kept: list[Value]
    results: list[int]


def whole(lowered: Lowered, results: Sequence[Value]) -> LoopPart:
    """Return a line as one part."""
    return LoopPart(list(lowered.line.needed(tuple(results))), [], [], list(range(len(results))))


def parts(lowered: Lowered, results: Sequence[Value]) -> list[LoopPart]:
    """Return a line in parts, one if it is short: cut where little is kept.

    Later parts read operands, too, after earlier ones have made results.
    """
    undivided = whole(lowered, results)
    cones = _cones(undivided.values)
    long = [x for x in undivided.values if _is_made(x) and x not in cones]
    wide = sum(any(y.type in (F64, I64) for y in (x, *x.operands)) for x in long)
    if len(long) <= _MOST or lowered.words or wide < _SHARE * len(long):
        return [undivided]
    places = {x: place for place, x in enumerate(long)}
    last = dict(places)
    for x in long:
        last |= dict.fromkeys(last.keys() & set(x.operands), places[x])
    bounds = [0, *_cuts([_KEPT[x.type] for x in long], [last[x] for x in long]), len(long)]
    found: list[LoopPart] = []
    for start, stop in pairwise(bounds):
        own = long[start:stop]
        made = [k for k, x in enumerate(results) if start <= places.get(x, len(long) - 1) < stop]
        asked = [*(y for x in own for y in x.operands), *(results[k] for k in made)]
        taken = {x for x in asked if places.get(x, start) < start}
        beside = {y for x in asked if x not in places for y in cones.get(x, {x})}
        values = sorted({*own, *beside}, key=attrgetter("number"))
        found.append(
            LoopPart(
                values, sorted(taken, key=attrgetter("number")), [x for x in own if last[x] >= stop], made
            )
        )
    return found


def _is_made(x: Value) -> bool:
    return x.verb not in ("input", "constant")


def _cones(needed: Sequence[Value]) -> dict[Value, set[Value]]:
    """Return what is made of operands by few operations, each with all that it is made of."""
    found: dict[Value, set[Value]] = {}
    for x in needed:
        if _is_made(x) and all(y in found or not _is_made(y) for y in x.operands):
            cone = {x, *(z for y in x.operands for z in found.get(y, {y}))}
            if sum(map(_is_made, cone)) <= _CHEAP:
                found[x] = cone
    return found


def _cuts(costs: Sequence[int], last: Sequence[int]) -> list[int]:
    """Return where to cut, by what it costs to keep each value up to where it is asked for last."""
    size = len(costs)
    steps = [0] * (size + 1)  # of the cost of a cut before each place, from the one before
    for place, (cost, end) in enumerate(zip(costs, last, strict=True)):
        steps[place + 1] += cost
        steps[end + 1] -= cost
    kept = list(accumulate(steps))
    best: list[tuple[float, int]] = [(0.0, 0)]
    for place in range(1, size + 1):
        before = [
            (best[start][0] + _CUT + kept[start], start)
            for start in range(max(0, place - _MOST), place - _LEAST + 1)
        ]
        best.append(min(before, default=(float("inf"), 0)))
    cuts, place = list[int](), best[size][1]
    while place:
        cuts.append(place)
        place = best[place][1]
    return cuts[::-1]
