"""Long lines as several loops in sequence, so that few values are alive at once."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from operator import attrgetter
from typing import NamedTuple

from mcfsim.compile.lowering import Lowered
from mcfsim.kernels.element.machine import F32, F64, I32, I64, TRUTH, Value

#: Elements processed by one loop before the next: so few that the values kept stay in the L1 cache.
AT_ONCE = 512
#: The fewest and the most operations of a loop.
_LEAST, _MOST = 12, 30
#: The least share of operations in 64 bits.
_SHARE = 1 / 3
#: Values are recomputed in each loop if they take at most so many operations on operands.
_CHEAP = 2
#: The cost of a cut, and of each value kept across it; truth values cost more, as they are not vectorized.
_CUT, _KEPT = 4, {F32: 1, I32: 1, F64: 2, I64: 2, TRUTH: 16}


class LoopPart(NamedTuple):
    """A part of a line that becomes a loop of its own.

    Attributes
    ----------
    values : list of Value
        The values that it reads and computes, in order.
    taken, kept : list of Value
        The values that it takes from earlier loops, and those that it keeps for later ones.
    results : list of int
        The places of the results that it computes.
    """

    values: list[Value]
    taken: list[Value]
    kept: list[Value]
    results: list[int]


def whole(lowered: Lowered, results: Sequence[Value]) -> LoopPart:
    """Return a line as one part."""
    return LoopPart(list(lowered.line.needed(tuple(results))), [], [], list(range(len(results))))


def parts(lowered: Lowered, results: Sequence[Value]) -> list[LoopPart]:
    """Cut a line into parts where few values must be kept; a short line is one part.

    The last part computes or takes all results, so that they may be written where operands were read.
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
    last |= dict.fromkeys(places.keys() & set(results), len(long) - 1)
    bounds = [0, *_cuts([_KEPT[x.type] for x in long], [last[x] for x in long]), len(long)]
    found: list[LoopPart] = []
    for start, stop in pairwise(bounds):
        own = long[start:stop]
        made = list(range(len(results))) if stop == len(long) else []
        asked = [*(y for x in own for y in x.operands), *(results[k] for k in made)]
        taken = {x for x in asked if places.get(x, start) < start}
        beside = {y for x in asked if x not in places for y in cones.get(x, {x})}
        values = sorted({*own, *beside}, key=attrgetter("number"))
        kept = [x for x in own if last[x] >= stop]
        found.append(LoopPart(values, sorted(taken, key=attrgetter("number")), kept, made))
    return found


def _is_made(x: Value) -> bool:
    return x.verb not in ("input", "constant")


def _cones(needed: Sequence[Value]) -> dict[Value, set[Value]]:
    """Return the values that take few operations on operands, each with all values that it depends on."""
    found: dict[Value, set[Value]] = {}
    for x in needed:
        if _is_made(x) and all(y in found or not _is_made(y) for y in x.operands):
            cone = {x, *(z for y in x.operands for z in found.get(y, {y}))}
            if sum(map(_is_made, cone)) <= _CHEAP:
                found[x] = cone
    return found


def _cuts(costs: Sequence[int], last: Sequence[int]) -> list[int]:
    """Return where to cut, given the cost of keeping each value and the place of its last use."""
    size = len(costs)
    steps = [0] * (size + 1)  # changes in the cost of a cut from one place to the next
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
