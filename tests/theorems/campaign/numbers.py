"""Random expressions of exact numbers, on arrays of every width and range, against fractions."""

from __future__ import annotations

import itertools
from fractions import Fraction
from random import Random
from typing import Any

import numpy as np

from mcfsim.theorems.exact import Exact
from mcfsim.theorems.two_words import TwoWords
from tests.theorems.campaign.statements import COMPARE

SIZE = 24
#: Integers of so many bits are not turned into binary64.
LONGEST = 1000
FACTORS = (
    *(2, -3, 2**31 - 1, -(2**53) - 1, 2**61 + 1, 2**70 - 1, -(2**124) - 5, Fraction(-3, 2**40), 0.375),
    *(2**124, 3**250, np.int8(-7), np.float32(0.1)),
)
DYADIC = (0, 1, -1, 0.5, 2.0**-1074, 2.0**70, -0.0, 0.1, 10**30, -(2**1100), np.int64(-2), np.float32(0.1))
NUMBERS = (*DYADIC, Fraction(1, 3), Fraction(-7, 5), Fraction(2**80 + 1, 3 * 2**60))

#: Exact numbers, and each of them as a fraction.
Both = tuple[Exact, list[Fraction]]


def _fraction(number: Any) -> Fraction:
    return Fraction(number.item() if isinstance(number, np.generic) else number)


def operands(random: Random) -> list[Both]:
    """Draw three arrays of floats."""
    dtype = random.choice((np.float32, np.float64))
    info = np.finfo(dtype)
    precision = random.choice((2, 4, 8, 11, 20, 24) if dtype is np.float32 else (3, 11, 24, 30, 50, 53))
    span = random.choice((0, 2, 10, 30, 60, 200))
    edge = int(info.minexp) + precision + random.randint(-3, 3)  # where powers end
    middle = random.choice((0, 0, 0, 20, -40, edge, edge, int(info.maxexp) - 1))
    drawn = []
    for _ in range(3):
        n = np.array([random.randrange(1 - 2**precision, 2**precision) for _ in range(SIZE)], np.float64)
        n[random.randrange(SIZE) :: random.choice((3, 9))] *= random.randrange(2)  # zeros
        if random.random() < 0.2:
            n = np.copysign(2.0 ** (precision - 1), n)  # powers of two
        if random.random() < 0.05:
            n *= 0
        exponents = np.array([middle + random.randint(-span, span) for _ in range(SIZE)]) - precision
        with np.errstate(all="ignore"):
            x = np.ldexp(n, exponents).astype(dtype)  # to what is left of it among subnormal numbers
        x[~np.isfinite(x)] = info.max if precision >= info.nmant + 1 else 0
        drawn.append((Exact.of(x, precision), [Fraction(float(item)) for item in x]))
    return drawn


def expression(random: Random, given: list[Both]) -> Both:
    """Draw an expression."""
    x, exact = random.choice(given)
    for _ in range(random.randrange(5)):
        y, other = random.choice(given)
        match random.randrange(8):
            case 0 | 1:
                x, exact = x + y, [a + b for a, b in zip(exact, other, strict=True)]
            case 2:
                x, exact = x - y, [a - b for a, b in zip(exact, other, strict=True)]
            case 3 | 4:
                x, exact = x * y, [a * b for a, b in zip(exact, other, strict=True)]
            case 5:
                factor: Any = random.choice(FACTORS)
                x = x * factor if random.random() < 0.5 else factor * x
                exact = [a * _fraction(factor) for a in exact]
            case 6:
                size = random.random() < 0.5
                x, exact = (abs(x), [*map(abs, exact)]) if size else (-x, [-a for a in exact])
            case 7:
                number: Any = random.choice(DYADIC)
                place, p = random.randrange(4), _fraction(number)
                x = (x + number, number + x, x - number, number - x)[place]
                exact = [(a + p, a + p, a - p, p - a)[place] for a in exact]
    return x, exact


def wrong(number: int) -> str | None:
    """Return what exact numbers say that is not so, in a drawn case."""
    random = Random(f"numbers {number}")
    given = operands(random)
    (x, a), (y, b) = (expression(random, given) for _ in range(2))
    if random.random() < 0.3:
        y, b = x + y * 0, a  # equal numbers
    for found, exact in ((x, a), (y, b)):
        problem = _differs(found, exact)
        if problem:
            return problem
    for name, compare in COMPARE.items():
        if compare(x, y).tolist() != [compare(p, q) for p, q in zip(a, b, strict=True)]:
            return f"{name} of exact numbers"
        other: Any = random.choice((*NUMBERS, random.choice(a)))
        right = _fraction(other)
        if compare(x, other).tolist() != [compare(p, right) for p in a]:
            return f"{name} {other}"
        if compare(other, x).tolist() != [compare(right, p) for p in a]:
            return f"{other} {name}"
    if x.is_zero().tolist() != [not p for p in a]:
        return "is_zero"
    return _of_ratio(x, y, a, b) if max(x.bits, y.bits) < LONGEST else None


def _differs(x: Exact, exact: list[Fraction]) -> str | None:
    if [x.fraction(i) for i in range(SIZE)] != exact:
        return "fractions"
    q = x.q if isinstance(x.q, int) else x.q.tolist()
    qs = [q] * SIZE if isinstance(q, int) else q
    integers = [int(n) for n in x.integers()]
    if [n and n * Fraction(2) ** e for n, e in zip(integers, qs, strict=True)] != exact:
        return "integers"
    if x.lengths().tolist() != [n.bit_length() for n in integers]:
        return "lengths"
    # The contract by which types are chosen.
    if max(map(abs, integers)) > 2**x.bits:
        return f"{max(map(abs, integers))} has more than {x.bits} bits"
    kept = 124 if isinstance(x.n, TwoWords) else {"f": 53, "i": 62, "O": 10**9}[x.n.dtype.kind]
    if x.bits > kept:
        return f"{x.bits} bits in {kept}"
    some = x[[3, 0, 7]]
    if [some.fraction(i) for i in range(3)] != [exact[3], exact[0], exact[7]]:
        return "elements"
    return _of_numbers(x, exact)


def _of_numbers(x: Exact, exact: list[Fraction]) -> str | None:
    if x.bits >= LONGEST or not all(item == 0 or -1000 < _log2(item) < 1000 for item in exact):
        return None
    held = all(Fraction(float(item)) == item for item in exact)
    try:
        found = x.numbers().tolist()
    except OverflowError:
        return "numbers refused" if held else None
    return None if held and [Fraction(item) for item in found] == exact else "numbers"


def _of_ratio(x: Exact, y: Exact, a: list[Fraction], b: list[Fraction]) -> str | None:
    with np.errstate(over="ignore"):
        ratio = x.ratio(y)
    for r, p, q in zip(ratio.tolist(), a, b, strict=True):
        if q == 0:
            if not (r == 0 if p == 0 else np.isinf(r)):
                return "a quotient by zero"
        elif (p == 0 or -900 < _log2(p / q) < 900) and abs(Fraction(r) - p / q) * 2**50 > abs(p / q):
            return "a quotient"
    return None


def _log2(p: Fraction) -> int:
    return abs(p.numerator).bit_length() - p.denominator.bit_length()


def first_wrong(count: int) -> str | None:
    """Return what is wrong in the first of so many cases that has a fault."""
    found = ((i, wrong(i)) for i in itertools.count())
    return next((f"numbers {i}: {what}" for i, what in itertools.islice(found, count) if what), None)
