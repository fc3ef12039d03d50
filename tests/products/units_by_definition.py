"""Matrix units by their definition, an element at a time in fractions; and operands hard for them."""

import math
from fractions import Fraction

import numpy as np

from tests.shared.rationals import floor_log2, rounded

#: The exponent of a zero.
_OF_ZERO = -126


def exponent(x, emin):
    """Return floor(log2 |x|), at least emin; a zero has its own."""
    return max(floor_log2(x), emin) if x else _OF_ZERO


def quanta(x, quantum):
    """Return how many times a fraction, cut toward zero, has a quantum."""
    return x // quantum if x >= 0 else -(-x // quantum)


def cut(x, quantum):
    """Return a fraction cut toward zero to a multiple of a quantum."""
    return quanta(x, quantum) * quantum


def floor(x, quantum):
    """Return a fraction rounded down to a multiple of a quantum."""
    return (x // quantum) * quantum


def to_format(x, precision, emin, emax, nearest):
    """Return a fraction as a float: to nearest even or cut, infinite from 2^(emax + 1) on; a zero is +0."""
    return (x and rounded(x, precision, emin, emax, nearest=nearest)) or 0.0


class Definition:
    """A unit, by the data of a `mcfsim.Unit`."""

    def __init__(self, unit):
        self.unit, self.sums, self.bits = unit, str(unit.sums), unit.fraction_bits
        self.output, self.added, self.least = unit.output, unit.added, unit.least_exponent
        self.of_c = min(self.added.emin, self.output.emin)
        self.nearest = str(unit.rounding) == "nearest_even"

    def rounded(self, x, negative=False):
        """Return a fraction in the output format; a chain's zeros have signs."""
        fmt = self.output
        y = to_format(x, fmt.precision, fmt.emin, fmt.emax, self.nearest)
        return math.copysign(0.0, -1.0) if y == 0 and negative else y

    def element(self, a, b, c, formats, scales=None, block=None):
        """Return one element of the result, of lists of floats; `scales` are lists for both operands."""
        k = self.unit.k
        full = -(-len(a) // k) * k
        a, b = a + [0.0] * (full - len(a)), b + [0.0] * (full - len(b))
        if self.unit.cut:
            a, b = ([_without_low_bits(x) for x in y] for y in (a, b))
        if self.unit.flush:
            a, b = ([_flushed(x, 2.0**fmt.emin) for x in y] for y, fmt in zip((a, b), formats, strict=True))
            c = _flushed(c, 2.0**self.added.emin)
        for start in range(0, full, k):
            places = range(start, start + k)
            shared = None
            if scales is not None:
                zero = [self.unit.scales[0].smallest_subnormal, 0.0][self.unit.scales[0].zero]
                size = len(scales[0])
                chosen = [i // block for i in places]
                shared = [[float(s[i] if i < size else zero) for i in chosen] for s in scales]
            group = [a[i] for i in places], [b[i] for i in places]
            c = getattr(self, "_" + self.sums)(*group, c, formats, shared)
        return c

    # -- kinds of sums ------------------------------------------------------------------------------------
    def _terms(self, a, b, formats, shared):
        terms, exponents = [], []
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            e = exponent(x, formats[0].emin) + exponent(y, formats[1].emin)
            term = Fraction(x) * Fraction(y)
            if shared is not None:
                for s in (shared[0][i], shared[1][i]):
                    e += exponent(s, self.unit.scales[0].emin)
                    term *= Fraction(s)
            terms.append(term)
            exponents.append(e if term or self.least is None else self.least)
        return terms, exponents

    def _special(self, a, b, c, shared=None):
        """Return the sum as floats have it if it is NaN or infinite, else None."""
        total = c
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            by = 1.0 if shared is None else math.copysign(shared[0][i], 1) * math.copysign(shared[1][i], 1)
            if not (math.isfinite(x) and math.isfinite(y) and math.isfinite(by)):
                total += x * y * by
        return None if math.isfinite(total) else total

    def _aligned(self, a, b, c, formats, shared):
        special = self._special(a, b, c, shared)
        if special is not None:
            return special
        terms, exponents = self._terms(a, b, formats, shared)
        of_c = exponent(c, self.of_c) if c or self.least is None else self.least
        return self._cut_and_rounded([Fraction(c), *terms], [of_c, *exponents])

    def _cut_and_rounded(self, terms, exponents):
        least = exponents if self.least is None else [*exponents, self.least]
        quantum = Fraction(2) ** (max(least) - self.bits)
        return self.rounded(sum(quanta(x, quantum) for x in terms) * quantum)

    def _aligned_sums(self, a, b, c, formats, shared):
        if not math.isfinite(c) or any(math.isnan(x) for y in shared for x in y):
            return c if all(not math.isnan(x) for y in shared for x in y) else math.nan
        terms, exponents = [Fraction(c)], [exponent(c, self.of_c)]
        for start in range(0, len(a), 16):
            part = slice(start, start + 16)
            s, t = (abs(x[start]) for x in shared)
            total = sum(Fraction(x) * Fraction(y) for x, y in zip(a[part], b[part], strict=True))
            terms.append(total * Fraction(s) * Fraction(t))
            exponents.append(sum(exponent(x, self.unit.scales[0].emin) for x in (s, t)))
        return self._cut_and_rounded(terms, exponents)

    def _floored(self, a, b, c, formats, shared, halves=False):
        special = self._special(a, b, c)
        if special is not None:
            return special
        terms, exponents = self._terms(a, b, formats, None)
        signs = {x > 0 for x in terms if abs(x) >= Fraction(2) ** 128}
        if signs:
            return math.nan if len(signs) == 2 else math.copysign(math.inf, 1 if True in signs else -1)
        most = max(exponents)
        if halves:
            total = Fraction(0)
            for part in (slice(0, None, 2), slice(1, None, 2)):
                quantum = Fraction(2) ** (max(exponents[part]) - self.bits)
                own = sum(quanta(x, quantum) for x in terms[part]) * quantum
                total += floor(own, Fraction(2) ** (most - self.bits))
        else:
            quantum = Fraction(2) ** (most - self.bits)
            total = sum(quanta(x, quantum) for x in terms) * quantum
        of_c = exponent(c, self.of_c)
        top = max(most, of_c)
        total = floor(total, Fraction(2) ** (top - self.bits - 7))
        if not (halves and of_c < top - self.bits - 1):
            total += floor(Fraction(c), Fraction(2) ** (top - self.bits))
        return self.rounded(total, negative=total < 0)

    def _floored_halves(self, a, b, c, formats, shared):
        return self._floored(a, b, c, formats, shared, halves=True)

    def _chain(self, a, b, c, formats, shared):
        for x, y in zip(a, b, strict=True):
            c = self._fused(x, y, c)
        return c

    def _fused(self, x, y, z):
        """Return ``x y + z`` rounded once, as IEEE 754 has it."""
        special = self._special([x], [y], z)
        if special is not None:
            return special
        (a, under_x), (b, under_y), (c, under_z) = (number.as_integer_ratio() for number in (x, y, z))
        under = math.lcm(under_x * under_y, under_z)
        total = a * b * (under // (under_x * under_y)) + c * (under // under_z)
        if total == 0:
            negative = math.copysign(1, x) * math.copysign(1, y) < 0
            exact = a * b == c == 0
            return -0.0 if exact and negative and math.copysign(1, z) < 0 else 0.0
        return self.rounded(Fraction(total, under), negative=total < 0)

    def _pairwise(self, a, b, c, formats, shared):
        terms = [self._kept(self._fused(x, y, 0.0)) for x, y in zip(a, b, strict=True)]
        while len(terms) > 1:
            terms = [self._kept(self._fused(*pair)) for pair in self._pairs(terms)]
        return self._kept(self._fused(c, 1.0, terms[0]))

    @staticmethod
    def _pairs(terms):
        return [(terms[i], 1.0, terms[i + 1]) for i in range(0, len(terms), 2)]

    def _kept(self, x):
        return math.copysign(0.0, x) if self.unit.flush and abs(x) < 2.0**-126 else x


def _flushed(x, least):
    return 0.0 if abs(x) < least else x


def _without_low_bits(x):
    return float((np.array(x, np.float32).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32))


def least_published(unit):
    """Return the least E of a unit in the models of Khattak and Mikaitis, who tell it by architecture."""
    bits = unit.fraction_bits if unit.fraction_bits > 13 else 25
    return unit.output.emin + 18 - bits


# -- operands ---------------------------------------------------------------------------------------------
def values(fmt, rng, shape, spread, centre=0):
    """Return numbers of a floating-point format: short or full significands, and exponents in a range."""
    low = np.minimum(np.maximum(fmt.emin - fmt.precision + 1, centre - spread), fmt.emax)
    high = np.maximum(np.minimum(fmt.emax, centre + spread), fmt.emin)
    exponents = rng.integers(low, high + 1, shape)
    significand = 1 + rng.integers(0, 2 ** (fmt.precision - 1), shape) * 2.0 ** (1 - fmt.precision)
    significand = np.where(rng.random(shape) < 0.3, 1.0, significand)
    quantum = np.ldexp(1.0, np.maximum(exponents, fmt.emin) - fmt.precision + 1)
    x = np.floor(np.ldexp(significand, exponents) / quantum) * quantum
    return np.minimum(x, float(fmt.max)) * rng.choice([-1.0, 1.0], shape)


def specials(fmt):
    """Return zeros, the ends of the range, and infinity and NaN where there are some."""
    found = [0.0, -0.0, float(fmt.max), -float(fmt.max), float(fmt.smallest_subnormal)]
    found += [-float(fmt.smallest_subnormal), float(fmt.smallest_normal), 1.0]
    return found + [math.inf, -math.inf] * fmt.has_infinity + [math.nan] * fmt.has_nan


def decided(unit, formats, a, b, rng, tie, largest):
    """Write factors of a tie, and of a product at the last bit that is kept below an exponent or the next."""
    a[:], b[:] = 0.0, 1.0
    last = largest - unit.fraction_bits - int(rng.integers(0, 2))
    for place, exponent in zip(rng.permutation(len(a)), (tie, last), strict=False):
        least = [x.emin - x.precision + 1 for x in formats]
        half = max(exponent // 2, least[0])
        a[place] = 2.0**half * rng.choice([-1, 1])
        b[place] = 2.0 ** max(exponent - half, least[1])


def hostile(unit, formats, length, rows, rng):
    """Return rows of both operands, and an addend for each, of which most are hard for an aligned sum."""
    added, half = unit.added, length // 2
    spread = rng.choice([0, 1, 3, 8, 30, 300], (rows, 1))
    centre = np.where(rng.random((rows, 1)) < 0.5, rng.integers(-20, 20, (rows, 1)), 0)
    a = values(formats[0], rng, (rows, length), spread, centre)
    b = values(formats[1], rng, (rows, length), spread, -centre)
    c = values(added, rng, rows, rng.choice([2, 12, 40], rows), rng.integers(-8, 8, rows))
    for row in range(rows):
        kind = row % 10
        if kind == 1:  # cancels but for a little
            a[row, half : 2 * half], b[row, half : 2 * half] = -a[row, :half], b[row, :half]
            order = rng.permutation(length)
            a[row], b[row] = a[row, order], b[row, order]
            c[row] = values(added, rng, (), 30, -20)
        elif kind == 2:  # zeros of both signs beside few numbers
            zeros = rng.random(length) < rng.choice([0.8, 1.0])
            a[row] = np.where(zeros, np.copysign(0.0, rng.standard_normal(length)), a[row])
            b[row] = values(formats[1], rng, length, 300)
            c[row] = values(added, rng, (), 40, int(rng.choice([-110, 0])))
        elif kind == 3:  # the ends of the ranges
            a[row] = rng.choice(specials(formats[0])[:8], length)
            b[row] = rng.choice(specials(formats[1])[:8], length)
        elif kind == 4:  # infinity and NaN
            for x, fmt in ((a, formats[0]), (b, formats[1])):
                some = rng.random(length) < rng.choice([0.0, 0.1])
                x[row] = np.where(some, rng.choice(specials(fmt), length), x[row])
            c[row] = rng.choice(specials(added))
        elif kind == 5:  # C huge, tiny or special
            c[row] = rng.choice([*specials(added), *values(added, rng, 4, 2000)])
        elif kind == 6 and length:  # ties of the output, and what would decide them
            a[row] = np.where(rng.random(length) < 0.7, 0.0, a[row])
            c[row] = 1.0 + rng.integers(0, 4) * 2.0 ** (1 - added.precision)
            a[row, 0] = 2.0 ** max(-(unit.output.precision // 2), formats[0].emin)
            b[row, 0] = 2.0 ** max(unit.output.precision // 2 - unit.output.precision, formats[1].emin)
            if (
                unit.sums.aligns and length > 1
            ):  # and a number at the last place that the unit keeps, or below
                decided(unit, formats, a[row], b[row], rng, 12 - unit.output.precision, 12)
                c[row] *= 2.0**12
        elif kind == 7:  # the same exponent everywhere: products in [1, 4)
            a[row], b[row] = values(formats[0], rng, length, 0), values(formats[1], rng, length, 0)
        elif kind == 8:
            c[row] = 0.0
        elif kind == 9:  # products below the range of the output, whose sum is not, or beside other numbers
            for x, fmt in ((a, formats[0]), (b, formats[1])):
                x[row] = values(fmt, rng, length, 2, -76)
            if row % 20 == 9:
                c[row] = 0.0
                if row % 40 == 9 and unit.sums.aligns and length > 1:
                    # half of the least number, and one that decides it: see `least_published`
                    tie, largest = unit.output.emin - unit.output.precision, least_published(unit)
                    decided(unit, formats, a[row], b[row], rng, tie, largest)
    return a, b, c
