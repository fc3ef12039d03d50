"""Numbers in the place of unknowns: what the solver's facts and questions say of them, in fractions."""

import random
from fractions import Fraction

from mcfsim.formats import Format
from mcfsim.oracle import round_fraction
from mcfsim.rounding import Mode, Rounding
from mcfsim.theorems.solver.arithmetic import UnknownArithmetic
from mcfsim.theorems.solver.numbers import Number

#: The unit in which numbers are integers, and a power of two beyond all others.
UNIT, ABOVE = Fraction(1, 1 << 500), Fraction(1 << 500)
#: Rules by which a tie between two neighbours is decided: the even one, the lower, ...
TIES = ("even", "away", "odd", "zero", "up", "mixed")


def rounded(t, p, ties):
    """Return a fraction to nearest p bits, its neighbours found by the oracle."""
    fmt = Format(f"p{p}", precision=p, emin=-900, emax=900)
    low, high = (Fraction(round_fraction(t, fmt, Rounding(mode))) for mode in (Mode.DOWN, Mode.UP))
    if t - low != high - t or low == high:
        return low if t - low < high - t else high
    even = Fraction(round_fraction(t, fmt, Rounding(Mode.NEAREST_EVEN)))
    less, more = sorted((low, high), key=abs)
    return {
        "even": even,
        "away": more,
        "odd": low + high - even,
        "zero": less,
        "up": high,
        "mixed": low if hash((t.numerator, t.denominator)) % 3 else high,
    }[ties]


class Nearest:
    """An arithmetic of fractions, rounded to nearest p bits."""

    format = rounding = None

    def __init__(self, p, ties):
        self.p, self.ties = p, ties

    def add(self, a, b):
        return rounded(a + b, self.p, self.ties)

    def sub(self, a, b):
        return rounded(a - b, self.p, self.ties)

    def neg(self, a):
        return -a

    def evaluate(self, function, /, *operands, **options):
        return function(self, *operands, **options)


class Assigned(dict):
    """The values of all unknowns of an arithmetic, in units, where those of its operands are known.

    Others are computed on demand.
    """

    def __init__(self, ar: UnknownArithmetic, operands, p, ties):
        super().__init__()
        self.p, self.nearest = p, Nearest(p, ties)
        self.sums = {name_of(r.result): r for r in ar.sums}
        self.made = {name_of(x): (call, i) for call in ar.called for i, x in enumerate(call.results)}
        for name, value in operands.items():
            self.give(name, value)

    def __missing__(self, name):
        number = name.split(".")[0]
        if number in self.sums:
            exact = sum(self.of(x) for x in self.sums[number].terms)
            self.give(number, rounded(exact, self.p, self.nearest.ties))
        else:
            call, i = self.made[number]
            self.give(number, call.text(self.nearest, *map(self.of, call.operands))[i])
        return self[name]

    def of(self, x: Number):
        (((name, _), c),) = x.value.terms
        return c * self[name] * UNIT

    def give(self, name, value):
        for part, number in zip(("", ".first", ".last"), (value, *bits(value)), strict=True):
            units = number / UNIT
            assert units.denominator == 1
            self[name + part] = units.numerator

    def meet(self, formula):
        return formula.holds(self, self.p)


def bits(value):
    """Return the powers of two of the first and the last bit that is not zero."""
    if value == 0:
        return UNIT, ABOVE
    n, d = abs(value.numerator), value.denominator
    return Fraction(1 << (n.bit_length() - 1), d), Fraction(n & -n, d)


def name_of(x: Number):
    (((name, _), _),) = x.value.terms
    return name


def number(draw: random.Random, p, near=()):
    """Return a number of p bits, often one that is close to a power of two, a tie or another number."""
    match draw.randrange(12):
        case 0:
            return Fraction(0)
        case 1 | 2 | 3 if near:
            other = draw.choice(near) or Fraction(1)
            first, _ = bits(other)
            ulp = 2 * first / 2**p
            shift = draw.choice((Fraction(0), ulp, -ulp, ulp / 2, -ulp / 2, first, -first, other))
            return rounded(draw.choice((1, -1)) * (other + shift), p, "even")
        case 4 | 5 if near:
            first, _ = bits(draw.choice(near) or Fraction(1))
            size = first / 2 ** draw.choice((p - 1, p, p + 1, 2 * p - 1, 2 * p, 1, 2))
            few = draw.choice((Fraction(1), 1 + Fraction(2, 2**p), 1 - Fraction(1, 2**p), Fraction(3, 2)))
            return draw.choice((1, -1)) * rounded(size * few, p, "even")
    top = 1 << (p - 1)
    significand = draw.choice(
        (top, 2 * top - 1, top + 1, draw.randrange(top, 2 * top), draw.randrange(1, top + 1))
    )
    return draw.choice((1, -1)) * significand * Fraction(2) ** draw.randint(-2 * p - 3, 2 * p + 3)


def operands_of(question, draw: random.Random, p):
    """Return values for the operands of a question, by the names of their unknowns."""
    values = {}
    for operand in question.operands:
        high = number(draw, p, tuple(values.values()))
        if not operand.paired:
            values[operand.name] = high
            continue
        low, ties = Fraction(0) if high == 0 else number(draw, p, (high,)), draw.choice(TIES)
        half = bits(high)[0] / 2**p
        while abs(low) > half if operand.kind == "relaxed pair" else rounded(high + low, p, ties) != high:
            low /= draw.choice((2, 4, 2**p))
        values |= {f"{operand.name}h": high, f"{operand.name}l": low}
    return values
