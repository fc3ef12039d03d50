"""All operands of a tiny format, by the oracle: operations as tables, claims in integers.

Nothing of `mcfsim.theorems` is used. Numbers are codes: places in a list of the format's values. Exact
numbers are Python's integers in units of a power of two.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np

from mcfsim.formats import Format
from mcfsim.oracle import operate_integers, round_fraction
from mcfsim.rounding import Rounding
from tests.theorems.campaign.statements import COMPARE

Array = Any
#: Formats of more values have no tables.
LARGE = 512


class Toy:
    """A tiny format with a rounding: its values, and operations on their codes."""

    def __init__(self, fmt: Format, rounding: Rounding) -> None:
        self.format, self.rounding = fmt, rounding
        self.quantum = fmt.emin - fmt.precision + 1
        top, self.largest = 2 ** (fmt.precision - 1), int(fmt.max / Fraction(2) ** self.quantum)
        integers = [
            *range(top),
            *(m << e for e in range(fmt.emax - fmt.emin + 1) for m in range(top, 2 * top)),
        ]
        integers = integers[: integers.index(self.largest) + 1]
        zero = [-0.0] if fmt.has_negative_zero else []
        #: Finite values, in order, then what results may be besides.
        self.finite = np.ldexp([*(-float(n) for n in integers[:0:-1]), *zero, *integers], self.quantum)
        self.values = np.concatenate([self.finite, [np.inf, -np.inf, np.nan]])
        scaled = np.ldexp(self.finite, -self.quantum).astype(np.int64)
        #: The values in units of the least one, and ``floor(log2 |x|)``; of what has none, anything.
        self.integers = np.array([*scaled.tolist(), 0, 0, 0], object)
        self.exponents = np.frexp(self.values)[1] - 1
        self._order = np.argsort(self.values.view(np.int64))
        self._tables: dict[Any, Array] = {}

    def codes(self, x: Array) -> Array:
        """Return the codes of values."""
        x = np.where(np.isnan(x), np.nan, x).view(np.int64)  # one NaN
        ordered = self.values.view(np.int64)[self._order]
        place = np.minimum(np.searchsorted(ordered, x), x.size and ordered.size - 1)
        if (ordered[place] != x).any():
            raise ValueError("no values of the format")
        return self._order[place].astype(np.int32)

    def apply(self, name: str, *given: Any) -> Array:
        """Return the codes of results; operands are arrays of codes, or constants."""
        if name in ("neg", "abs"):
            x = np.negative(self.values) if name == "neg" else np.abs(self.values)
            return self.codes(x if self.format.has_negative_zero else np.where(x == 0, 0.0, x))[given[0]]
        if name == "fma" or self.values.size > LARGE:
            return self._operated(name, [x if isinstance(x, float) else self.values[x] for x in given])
        key = name, tuple(x if isinstance(x, float) else None for x in given)
        free = [x for x in given if not isinstance(x, float)]
        if key not in self._tables:
            axes = iter(np.meshgrid(*[self.values] * len(free), indexing="ij"))
            self._tables[key] = self._operated(
                name, [x if isinstance(x, float) else next(axes) for x in given]
            )
        return self._tables[key][tuple(free)]

    def _operated(self, name: str, operands: list[Any]) -> Array:
        results = operate_integers(name, *operands, fmt=self.format, rounding=self.rounding)
        return self.codes(results.ravel()).reshape(results.shape)

    def pairs(self, kind: str) -> tuple[Array, Array]:
        """Return the codes of all pairs of a kind: double words, relaxed pairs."""
        if kind in self._tables:
            return self._tables[kind]
        n, count = self.integers, self.finite.size
        high, low = (grid.ravel() for grid in np.meshgrid(range(count), range(count), indexing="ij"))
        ulp = 2 ** np.maximum(self.exponents[high] - self.format.emin, 0)
        there = np.where(n[high] == 0, n[low] == 0, 2 * np.abs(n[low]) <= ulp).astype(bool)
        if kind == "double word":
            # A sum of two values is rounded by the definition; of gradual underflow, to nearest even.
            unit = Fraction(2) ** self.quantum
            rounded = {s: round_fraction(s * unit, self.format) for s in {*(n[high] + n[low])[there]}}
            fits = np.array([rounded.get(s, np.nan) for s in n[high] + n[low]])
            there &= fits == self.values[high]
        self._tables[kind] = high[there].astype(np.int32), low[there].astype(np.int32)
        return self._tables[kind]


@lru_cache(maxsize=32)
def toy(fmt: Format, rounding: Rounding) -> Toy:
    """Return the tables of a format, made once."""
    return Toy(fmt, rounding)


@dataclass
class Tried:
    """All cases of a statement: codes, one a case."""

    toy: Toy
    #: How many there are of each operand.
    shape: tuple[int, ...]
    operands: dict[str, list[Array]]
    results: list[Array]
    _known: dict[Any, Any] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """How many cases there are."""
        return math.prod(self.shape)

    # -- exact numbers --------------------------------------------------------------------------------------
    def exact(self, tree: Any) -> tuple[Array, int]:
        """Return an exact expression: integers, and the exponent of their unit."""
        if tree not in self._known:
            self._known[tree] = self._exact(tree)
        found: tuple[Array, int] = self._known[tree]
        return found

    def _exact(self, tree: Any) -> tuple[Array, int]:
        match tree:
            case ("x", name):
                return sum(
                    self.toy.integers[component] for component in self.operands[name]
                ), self.toy.quantum
            case ("r", i):
                return self.toy.integers[self.results[i]], self.toy.quantum
            case ("+" | "-" as sign, e, f):
                a, b, unit = self._aligned(e, f)
                return (a + b if sign == "+" else a - b), unit
            case ("*", e, f):
                (x, i), (y, j) = self.exact(e), self.exact(f)
                return x * y, i + j
            case ("times", e, n):
                return self.exact(e)[0] * n, self.exact(e)[1]
            case ("number", text):
                n = Fraction(text)
                unit = 1 - n.denominator.bit_length()
                return np.full(self.size, int(n / Fraction(2) ** unit), object), unit
            case ("neg" | "abs" as name, e):
                x, unit = self.exact(e)
                return (-x if name == "neg" else abs(x)), unit
        raise ValueError(f"no exact expression: {tree!r}")

    def _aligned(self, e: Any, f: Any) -> tuple[Array, Array, int]:
        """Return two expressions in the smaller unit of both."""
        (x, i), (y, j) = self.exact(e), self.exact(f)
        unit = min(i, j)
        x, y = (n if k == unit else n * 2 ** (k - unit) for n, k in ((x, i), (y, j)))
        return x, y, unit

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
                (x, unit), other = self.exact(e), Fraction(number)
                wanted = other * Fraction(2) ** -unit
                return COMPARE[op](x * wanted.denominator, wanted.numerator)
            case ("exact", op, e, f):
                return COMPARE[op](*self._aligned(e, f)[:2])
            case ("is", op, u, v):
                return COMPARE[op](self._float(u), self._float(v))
            case ("zero", e):
                return self.exact(e)[0] == 0
            case ("value", e):
                return self._is_value(*self.exact(e))
            case ("finite",) | ("results_finite",):
                return self.truth(("finite_results", *range(len(self.results))))
            case ("finite_results", *places):
                return np.logical_and.reduce([self.results[i] < toy.finite.size for i in places])
            case ("sum", a, b):
                return self.truth(("finite",)) & (
                    self._n(a) + self._n(b) == self.exact(("r", 0))[0] + self.exact(("r", 1))[0]
                )
            case ("within", error, reference, bound):
                e, r, _ = self._aligned(error, reference)
                bound = Fraction(bound)
                return self.truth(("finite",)) & (abs(e) * bound.denominator <= abs(r) * bound.numerator)
            case ("not", p):
                return ~self.truth(p)
            case ("and", p, q):
                return self.truth(p) & self.truth(q)
            case ("or", p, q):
                return self.truth(p) | self.truth(q)
            case (str(name), *given):
                return self._supposed(name, *given)
        raise ValueError(f"no predicate: {tree!r}")

    def _supposed(self, name: str, a: str, b: str = "", *given: Any) -> Array:
        """Return where a hypothesis of the catalogue holds, by its definition."""
        toy, n, e = self.toy, self._n(a), self.toy.exponents[self.operands[a][0]]
        if name == "nonzero":
            return np.logical_and.reduce([self._n(item) != 0 for item in (a, b, *given) if item])
        if name == "not_largest":
            return abs(n) != toy.largest
        m, f = self._n(b), toy.exponents[self.operands[b][0]]
        zero = (n == 0) | (m == 0)
        match name, *given:
            case ("ordered",):
                return abs(n) >= abs(m)
            case ("exponents_ordered",):
                return zero | (e >= f)
            case ("multiple_of_ulp",):
                return n % 2 ** np.where(m == 0, 0, np.maximum(f - toy.format.emin, 0)).astype(object) == 0
            case ("exponent_gap", most):
                return zero | (abs(e - f) <= most)
            case ("within_factor_two",):
                return (n * m >= 0) & (abs(m) <= 2 * abs(n)) & (abs(n) <= 2 * abs(m))
            case ("same_sign",):
                return n * m >= 0
            case ("sum_in_range",):
                return abs(n + m) <= toy.largest
            case ("product_in_range",):
                return abs(n * m) <= int(
                    Fraction(toy.format.max) / Fraction(4) ** toy.quantum
                )  # the floor does
            case ("product_of_quanta",):
                return n * m % 2 ** max(-toy.quantum, 0) == 0  # in units of quantum**2
        raise ValueError(f"no hypothesis: {name}")

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

    def _is_value(self, n: Array, unit: int) -> Array:
        """Return where integers are multiples of the quantum whose odd part is short, and none too large."""
        n, scale = abs(n), 2 ** abs(unit - self.toy.quantum)
        whole, n = (n % scale == 0, n // scale) if unit < self.toy.quantum else (True, n * scale)
        odd = n // np.where(n == 0, 1, n & -n)
        return whole & (odd < 2**self.toy.format.precision) & (n <= self.toy.largest)

    def worst(self, error: Any, reference: Any, where: Array) -> Fraction | None:
        """Return the largest quotient in magnitude, exactly; None if there is none but zero."""
        e, r, _ = self._aligned(error, reference)
        there = np.flatnonzero(where & self.truth(("finite",)) & (r != 0) & (e != 0))
        if not there.size:
            return None
        e, r = abs(e[there]), abs(r[there])
        share = e.astype(np.float64) / r.astype(np.float64)
        # Binary64 quotients, wrong by a little, leave few to be compared as fractions.
        near = share >= share.max() * (1 - 2.0**-40)
        return max(Fraction(*pair) for pair in {*zip(e[near], r[near], strict=True)})


def run(line: Any, toy: Toy) -> Tried:
    """Run a straight line on all combinations of operands."""
    tables = [
        (np.arange(toy.finite.size, dtype=np.int32),) if kind == "value" else toy.pairs(kind)
        for _, kind in line.operands
    ]
    shape = tuple(len(table[0]) for table in tables)
    operands, registers = {}, []
    for (name, _), table, row in zip(line.operands, tables, np.indices(shape, sparse=True), strict=True):
        operands[name] = [np.broadcast_to(column[row], shape).ravel() for column in table]
        registers += operands[name]
    for name, *given in line.steps:
        registers.append(toy.apply(name, *(x if isinstance(x, float) else registers[x] for x in given)))
    return Tried(toy, shape, operands, [registers[i] for i in line.results])


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
