"""Texts at random that decide something by a value: no straight lines."""

import math
import operator

import numpy as np

#: A decision by two values, by the way in which Python is asked.
DECISIONS = {
    **{"==": operator.eq, "!=": operator.ne, "<": operator.lt, ">": operator.gt},
    **{"== 0": lambda x, y: x == 0, "0 !=": lambda x, y: 0 != x},  # noqa: SIM300
    "np.float64 ==": lambda x, y: np.float64(0) == x,
    **{"truth": lambda x, y: bool(x), "not": lambda x, y: not x, "and": lambda x, y: x and True},
    **{"any": lambda x, y: any([x, y]), "in": lambda x, y: x in (y,)},
    "index": lambda x, y: [x].index(y) == 0,
    "tuples": lambda x, y: (x, 1) == (y, 1),
    **{"min": lambda x, y: min(x, y) is x, "max": lambda x, y: max(x, y) is x},
    "hash": lambda x, y: hash(x) == hash(y),
    **{"key": lambda x, y: {x: True}.get(y, False), "set": lambda x, y: len({x, y}) == 1},
    **{"iterated": lambda x, y: list(x) == [], "len": lambda x, y: len(x) == 0},
    **{"float": lambda x, y: float(x) > 0, "complex": lambda x, y: complex(x).real > 0},
    **{"round": lambda x, y: round(x) == 0, "floor": lambda x, y: math.floor(x) == 0},
    "range": lambda x, y: range(x) == range(0),
    "copysign": lambda x, y: math.copysign(1, x) > 0,
    "np.sign": lambda x, y: bool(np.sign(x) == 1),
    "np.maximum": lambda x, y: np.maximum(x, y) is x,
    "matched": lambda x, y: _matched(x),
    **{".sign": lambda x, y: x.sign > 0, ".terms": lambda x, y: x.terms == y.terms},
    **{".leading": lambda x, y: x.leading == y.leading, ".at": lambda x, y: x.at(5) > 0},
}


def _matched(x):
    match x:
        case 0:
            return True
        case _:
            return False


def branching(draw, operands, *, decision=None):
    """Return a text of sums of two values or more that returns one of two pairs, as it decides."""
    steps, count = [], operands
    for _ in range(draw.randrange(4)):
        steps.append((draw.choice(("add", "sub", "neg")), draw.randrange(count), draw.randrange(count)))
        count += 1
    decide = DECISIONS[decision or draw.choice(list(DECISIONS))]
    asked = draw.sample(range(count), 2)
    one, other = (tuple(draw.sample(range(count), 2)) for _ in range(2))

    def text(ar, *given):
        values = list(given)
        for operation, i, j in steps:
            chosen = (values[i],) if operation == "neg" else (values[i], values[j])
            values.append(getattr(ar, operation)(*chosen))
        x, y = (values[i] for i in asked)
        return tuple(values[i] for i in (one if decide(x, y) else other))

    return text
