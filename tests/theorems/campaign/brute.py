"""All operands of a tiny format, by the oracle: operations as tables, claims in integers.

Nothing of `mcfsim.theorems` is used. Numbers are codes: places in a list of the format's values. Exact
numbers are integers in units of a power of two, in int64 while a bound on their bits allows it, and Python's
beyond.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from mcfsim.formats import Format
from mcfsim.oracle import operate_integers, round_fraction
from mcfsim.rounding import Rounding
from tests.theorems.campaign.statements import COMPARE

Array = Any
#: Integers of so many bits are held in int64.
WORD = 62
#: Formats of more values have no tables.
LARGE = 512


class Toy:
    """A tiny format with a rounding: its values, and operations on their codes."""

    def __init__(self, fmt: Format, rounding: Rounding) -> None:
        self.format, self.rounding = fmt, rounding
        self.quantum = fmt.emin - fmt.precision + 1
        p = fmt.precision
        integers = list(range(2 ** (p - 1)))  # subnormal numbers
        integers += [m << e for e in range(fmt.emax - fmt.emin + 1) for m in range(2 ** (p - 1), 2**p)]
        largest = int(fmt.max / Fraction(2) ** self.quantum)
        integers = [n for n in integers if n <= largest]
        assert largest in integers
        zero = [-0.0] if fmt.has_negative_zero else []
        negative = [-float(n) for n in reversed(integers) if n]
        #: Finite values, in order, then what results may be besides.
        self.finite = np.ldexp([*negative, *zero, *map(float, integers)], self.quantum)
        self.values = np.concatenate([self.finite, [np.inf, -np.inf, np.nan]])
        self.integers = np.zeros(self.values.size, np.int64)
        self.integers[: self.finite.size] = np.ldexp(self.finite, -self.quantum).astype(np.int64)
        self.bits = int(largest).bit_length()
        self._order = np.argsort(self.values.view(np.int64))
        self._sorted = self.values.view(np.int64)[self._order]
        self._tables: dict[Any, Array] = {}

    def holds(self, x: float) -> bool:
        """Return whether a number is a finite value."""
        return bool(np.isin(np.float64(x).view(np.int64), self.finite.view(np.int64)))

    def codes(self, x: Array) -> Array:
        """Return the codes of values."""
        x = np.where(np.isnan(x), np.nan, x)  # one NaN
        place = np.searchsorted(self._sorted, x.view(np.int64))
        assert (self._sorted[place] == x.view(np.int64)).all()
        return self._order[place].astype(np.int32)

    def apply(self, name: str, *given: Any) -> Array:
        """Return the codes of results; operands are arrays of codes, or constants."""
        if name in ("neg", "abs"):
            return self._table(name)[given[0]]
        if name == "fma" or self.values.size > LARGE:
            operands = (x if isinstance(x, float) else self.values[x] for x in given)
            return self.codes(operate_integers(name, *operands, fmt=self.format, rounding=self.rounding))
        constants = tuple(x if isinstance(x, float) else None for x in given)
        table = self._table(name, constants)
        return table[tuple(x for x in given if not isinstance(x, float))]

    def _table(self, name: str, constants: tuple[float | None, ...] = (None,)) -> Array:
        key = name, constants
        if key not in self._tables:
            self._tables[key] = self._made(name, constants)
        return self._tables[key]

    def _made(self, name: str, constants: tuple[float | None, ...]) -> Array:
        if name in ("neg", "abs"):
            x = np.negative(self.values) if name == "neg" else np.abs(self.values)
            return self.codes(x if self.format.has_negative_zero else np.where(x == 0, 0.0, x))
        free = sum(constant is None for constant in constants)
        axes = iter(np.meshgrid(*[self.values] * free, indexing="ij"))
        operands = [next(axes) if constant is None else constant for constant in constants]
        results = operate_integers(name, *operands, fmt=self.format, rounding=self.rounding)
        return self.codes(results.ravel()).reshape(results.shape)

    @cached_property
    def exponents(self) -> Array:
        """``floor(log2 |x|)`` of each value; of zero and what is not finite, what is never used."""
        n = np.abs(self.integers)
        bits = np.array([int(item).bit_length() for item in n])
        return np.where(n == 0, -(10**6), bits - 1 + self.quantum)

    def pairs(self, kind: str) -> tuple[Array, Array]:
        """Return the codes of all pairs of a kind: double words, relaxed pairs."""
        return _pairs(self, kind)


@lru_cache(maxsize=64)
def _pairs(toy: Toy, kind: str) -> tuple[Array, Array]:
    n, count = toy.integers, toy.finite.size
    high, low = (grid.ravel() for grid in np.meshgrid(range(count), range(count), indexing="ij"))
    ulp = 2 ** np.maximum(toy.exponents[high] - toy.format.emin, 0)
    there = np.where(n[high] == 0, n[low] == 0, 2 * np.abs(n[low]) <= ulp)
    if kind == "double word":
        # A sum of two values is rounded by the definition; of gradual underflow, to nearest even.
        sums = n[high] + n[low]
        unit = Fraction(2) ** toy.quantum
        rounded = {s: round_fraction(int(s) * unit, toy.format) for s in set(sums[there].tolist())}
        fits = np.array([rounded.get(s, np.nan) for s in sums.tolist()])
        there &= fits == toy.values[high]
    return high[there].astype(np.int32), low[there].astype(np.int32)


@lru_cache(maxsize=32)
def toy(fmt: Format, rounding: Rounding) -> Toy:
    """Return the tables of a format, made once."""
    return Toy(fmt, rounding)


@dataclass
class Integers:
    """Exact numbers ``n * 2**unit``, every ``|n| < 2**bits``."""

    n: Array
    unit: int
    bits: int

    def held(self, bits: int) -> Array:
        """Return the integers in a type that holds so many bits."""
        return self.n if bits <= WORD or self.n.dtype == object else self.n.astype(object)


@dataclass
class Tried:
    """All cases of a statement: codes, one a case."""

    toy: Toy
    #: How many there are of each operand.
    shape: tuple[int, ...]
    operands: dict[str, list[Array]]
    registers: list[Array]
    results: list[Array]
    _known: dict[Any, Any] = field(default_factory=dict)

    @cached_property
    def finite(self) -> Array:
        """Where all results are finite."""
        return np.logical_and.reduce([item < self.toy.finite.size for item in self.results])

    @property
    def size(self) -> int:
        """How many cases there are."""
        return int(np.prod(self.shape))

    # -- exact numbers --------------------------------------------------------------------------------------
    def exact(self, tree: Any) -> Integers:
        """Return an exact expression."""
        if tree not in self._known:
            self._known[tree] = self._exact(tree)
        found: Integers = self._known[tree]
        return found

    def _exact(self, tree: Any) -> Integers:
        toy = self.toy
        match tree:
            case ("x", name):
                parts = [toy.integers[component] for component in self.operands[name]]
                return Integers(sum(parts[1:], parts[0]), toy.quantum, toy.bits + len(parts) - 1)
            case ("r", i):
                return Integers(toy.integers[self.results[i]], toy.quantum, toy.bits)
            case ("+" | "-" as sign, e, f):
                return self._sum(self.exact(e), self.exact(f), 1 if sign == "+" else -1)
            case ("*", e, f):
                x, y = self.exact(e), self.exact(f)
                bits = x.bits + y.bits
                return Integers(x.held(bits) * y.held(bits), x.unit + y.unit, bits)
            case ("times", e, n):
                x = self.exact(e)
                bits = x.bits + int(n).bit_length()
                return Integers(x.held(bits) * n, x.unit, bits)
            case ("number", number):
                n = Fraction(number)
                unit = 1 - n.denominator.bit_length()
                n = int(n / Fraction(2) ** unit)
                kind = np.int64 if n.bit_length() <= WORD else object
                return Integers(np.full(self.size, n, kind), unit, n.bit_length())
            case ("neg" | "abs" as name, e):
                x = self.exact(e)
                return Integers(-x.n if name == "neg" else abs(x.n), x.unit, x.bits)
        raise ValueError(f"no exact expression: {tree!r}")

    def _aligned(self, x: Integers, y: Integers) -> tuple[Array, Array, int, int]:
        """Bring two numbers to the smaller unit; also return it, and the bits that they then have."""
        unit = min(x.unit, y.unit)
        up, down = x.unit - unit, y.unit - unit
        bits = max(x.bits + up, y.bits + down)
        return x.held(bits) << up, y.held(bits) << down, unit, bits

    def _sum(self, x: Integers, y: Integers, sign: int) -> Integers:
        a, b, unit, bits = self._aligned(x, y)
        if bits + 1 > WORD:
            a, b = a.astype(object), b.astype(object)
        return Integers(a + sign * b, unit, bits + 1)

    # -- predicates -----------------------------------------------------------------------------------------
    def truth(self, tree: Any) -> Array:
        """Return where a predicate holds."""
        if tree not in self._known:
            self._known[tree] = np.asarray(self._truth(tree), dtype=bool)
        return self._known[tree]

    def _truth(self, tree: Any) -> Array:
        toy = self.toy
        match tree:
            case ("exact", op, e, ("number", number)):
                other = Fraction(number)
                x = self.exact(("times", e, other.denominator))
                wanted = other.numerator * Fraction(2) ** -x.unit
                # Of integers and a number between two of them, both sides are doubled.
                doubled = math.floor(2 * wanted) | (wanted.denominator > 1)
                return COMPARE[op](2 * x.held(WORD + 1), doubled)
            case ("exact", op, e, f):
                a, b, _, _ = self._aligned(self.exact(e), self.exact(f))
                return COMPARE[op](a, b)
            case ("is", op, u, v):
                return COMPARE[op](self._float(u), self._float(v))
            case ("zero", e):
                return self.exact(e).n == 0
            case ("value", e):
                return self._is_value(self.exact(e))
            case ("finite",) | ("results_finite",):
                return self.finite
            case ("finite_results", *places):
                return np.logical_and.reduce([self.results[i] < toy.finite.size for i in places])
            case ("sum", a, b):
                total = self._sum(self.exact(("x", a)), self.exact(("x", b)), 1)
                return self.finite & (total.n == self._sum(self.exact(("r", 0)), self.exact(("r", 1)), 1).n)
            case ("within", error, reference, bound):
                return self.finite & self._within(error, reference, Fraction(bound))
            case ("not", p):
                return ~self.truth(p)
            case ("and", p, q):
                return self.truth(p) & self.truth(q)
            case ("or", p, q):
                return self.truth(p) | self.truth(q)
            case ("ordered", a, b):
                return abs(self._n(a)) >= abs(self._n(b))
            case ("exponents_ordered", a, b):
                zero = (self._n(a) == 0) | (self._n(b) == 0)
                return zero | (self._e(a) >= self._e(b))
            case ("multiple_of_ulp", a, b):
                place = np.where(self._n(b) == 0, 0, np.maximum(self._e(b) - toy.format.emin, 0))
                return self._n(a) % (1 << place) == 0
            case ("exponent_gap", a, b, most):
                zero = (self._n(a) == 0) | (self._n(b) == 0)
                return zero | (abs(self._e(a) - self._e(b)) <= most)
            case ("nonzero", *names):
                return np.logical_and.reduce([self._n(name) != 0 for name in names])
            case ("positive", a):
                return self._n(a) > 0
            case ("within_factor_two", a, b):
                x, y = self._n(a), self._n(b)
                same = np.sign(x) * np.sign(y) >= 0
                return same & (abs(y) <= 2 * abs(x)) & (abs(x) <= 2 * abs(y))
            case ("same_sign", a, b):
                return np.sign(self._n(a)) * np.sign(self._n(b)) >= 0
            case ("sum_in_range", a, b):
                return abs(self._n(a) + self._n(b)) <= toy.integers.max()
            case ("product_in_range", a, b):
                limit = Fraction(toy.format.max) / Fraction(4) ** toy.quantum
                return abs(self._n(a) * self._n(b)) <= int(limit)  # of integers: the floor does
            case ("product_of_quanta", a, b):
                product = self._n(a) * self._n(b)  # in units of quantum**2
                return product % (1 << max(-toy.quantum, 0)) == 0
            case ("not_largest", a):
                return abs(self._n(a)) != toy.integers.max()
        raise ValueError(f"no predicate: {tree!r}")

    def _float(self, tree: Any) -> Array:
        match tree:
            case ("head", name):
                return self.toy.values[self.operands[name][0]]
            case ("result", i):
                return self.toy.values[self.results[i]]
            case ("size", u):
                return np.abs(self._float(u))
            case float():
                return tree
        raise ValueError(f"no float: {tree!r}")

    def _n(self, name: str) -> Array:
        return self.toy.integers[self.operands[name][0]]

    def _e(self, name: str) -> Array:
        return self.toy.exponents[self.operands[name][0]]

    def _is_value(self, x: Integers) -> Array:
        fmt, q = self.toy.format, self.toy.quantum
        n = abs(x.n)
        # A multiple of the quantum, ...
        shift = x.unit - q
        if shift < 0:
            whole, n = n % (1 << -shift) == 0, n >> -shift
        else:
            whole, n = np.ones(n.shape, dtype=bool), x.held(x.bits + shift) << shift
            n = abs(n)
        # ... whose odd part has few bits, and not beyond the largest.
        largest = int(fmt.max / Fraction(2) ** q)
        odd = np.where(n == 0, 1, n & -n)
        return whole & (n // odd < 1 << fmt.precision) & (n <= largest)

    def _within(self, error: Any, reference: Any, bound: Fraction) -> Array:
        e, r, _, bits = self._aligned(self.exact(error), self.exact(reference))
        if bits + max(bound.numerator.bit_length(), bound.denominator.bit_length()) > WORD:
            e, r = e.astype(object), r.astype(object)
        return abs(e) * bound.denominator <= abs(r) * bound.numerator

    def worst(self, error: Any, reference: Any, where: Array) -> Fraction | None:
        """Return the largest quotient in magnitude, exactly; None if there is none but zero."""
        e, r, _, _ = self._aligned(self.exact(error), self.exact(reference))
        there = np.flatnonzero(where & self.finite & (r != 0) & (e != 0))
        if not there.size:
            return None
        e, r = abs(e[there]), abs(r[there])
        share = e.astype(np.float64) / r.astype(np.float64)
        # Binary64 quotients of exact integers, wrong by a little, leave few to be compared as fractions.
        near = share >= share.max() * (1 - 2.0**-40)
        return max(Fraction(*pair) for pair in set(zip(e[near].tolist(), r[near].tolist(), strict=True)))


def run(line: Any, toy: Toy) -> Tried:
    """Run a straight line on all operands."""
    tables = []
    for _, kind in line.operands:
        tables.append((np.arange(toy.finite.size, dtype=np.int32),) if kind == "value" else toy.pairs(kind))
    return run_on(line, toy, tables)


def run_on(line: Any, toy: Toy, tables: list[tuple[Array, ...]]) -> Tried:
    """Run a straight line on all combinations of operands, each a row of its table."""
    shape = tuple(len(table[0]) for table in tables)
    rows = np.indices(shape, sparse=True)
    operands, registers = {}, []
    for (name, _), table, row in zip(line.operands, tables, rows, strict=True):
        operands[name] = [np.broadcast_to(column[row], shape).ravel() for column in table]
        registers += operands[name]
    for name, *given in line.steps:
        registers.append(toy.apply(name, *(x if isinstance(x, float) else registers[x] for x in given)))
    return Tried(toy, shape, operands, registers, [registers[i] for i in line.results])


@dataclass
class Judged:
    """What is true of a statement."""

    verdict: str
    cases: int
    applicable: int
    violations: int
    worst: Fraction | None
    there: Array
    failing: Array


def judge(statement: Any, tried: Tried) -> Judged:
    """Return the truth about a statement on all cases."""
    there = np.ones(tried.size, dtype=bool)
    for tree in statement.where:
        there &= tried.truth(tree)
    # A format that neither overflows to NaN nor to infinity saturates: this hypothesis cannot be meant.
    fmt = tried.toy.format
    if ("results_finite",) in statement.where and not (fmt.has_nan or fmt.has_infinity):
        there[:] = False
    failing = there & ~tried.truth(statement.claim)
    applicable, violations = int(np.count_nonzero(there)), int(np.count_nonzero(failing))
    worst = None
    if statement.claim[0] == "within":
        worst = tried.worst(statement.claim[1], statement.claim[2], there)
    verdict = "refuted" if violations else "verified" if applicable else "vacuous"
    return Judged(verdict, tried.size, applicable, violations, worst, there, failing)
