"""Statements about a group of a matrix unit, true and false, on every operand of units of small formats.

Statements of `mcfsim.theorems` are about algorithms of one arithmetic, which rounds all results to one
format. A unit rounds once, to a format other than that of its operands. So its statements are judged here:
the unit runs in `mcfsim.products.matmul`, and all else is computed in integers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

import mcfsim as mcf
from mcfsim.products import Unit, is_monotone, matmul
from mcfsim.theorems.operands import finite_values

Array = NDArray[Any]

#: Integers are in units of 2**-UNIT, of which all terms, quanta and units in the last place are multiples.
UNIT = 24
_OF_ZERO = -126


def _format(precision: int, emin: int, emax: int) -> mcf.Format:
    return mcf.Format(precision=precision, emin=emin, emax=emax)


#: Units whose operands can all be tried.
SMALL = {
    unit.name: unit
    for unit in (
        Unit("smallest", _format(2, 0, 0), k=2, fraction_bits=3, output=_format(4, -2, 2)),
        Unit("plain", _format(2, 0, 2), k=2, fraction_bits=3, output=_format(4, -2, 6)),
        Unit("few bits", _format(2, 0, 2), k=2, fraction_bits=2, output=_format(5, -1, 6)),
        Unit("coarse output", _format(2, 0, 2), k=2, fraction_bits=5, output=_format(3, -2, 6)),
        Unit(
            "to nearest",
            _format(2, 0, 2),
            k=2,
            fraction_bits=3,
            output=_format(3, -2, 6),
            rounding="nearest_even",
        ),
        Unit("wide inputs", _format(3, 0, 0), k=2, fraction_bits=3, output=_format(4, -2, 3)),
        Unit("three products", _format(2, 0, 0), k=3, fraction_bits=4, output=_format(4, -2, 3)),
    )
}


def integers(x: Array) -> Array:
    """Return finite numbers in units of ``2**-UNIT``, exactly."""
    scaled = np.ldexp(np.asarray(x, np.float64), UNIT)
    whole = scaled.astype(np.int64)
    assert (whole == scaled).all()
    return whole


def _exponents(x: Array, emin: int) -> Array:
    return np.where(x == 0, _OF_ZERO, np.maximum(np.frexp(np.abs(x))[1] - 1, emin))


@dataclass(frozen=True)
class Groups:
    """Groups of a unit: their operands, results, and what becomes of them when operands change.

    Attributes
    ----------
    a, b : array, shape (groups, k)
    c, made : array, shape (groups,)
        Addends and results.
    changed : dict of arrays
        By the name of a change: a, b, c and the result after it, which is NaN where nothing can change.
    """

    unit: Unit
    a: Array
    b: Array
    c: Array
    made: Array
    changed: dict[str, tuple[Array, Array, Array, Array]]

    @cached_property
    def terms(self) -> Array:
        """C and the products, as integers."""
        return integers(np.column_stack([self.c, self.a * self.b]))

    @cached_property
    def _places(self) -> Array:
        (fmt,) = self.unit.inputs
        products = _exponents(self.a, fmt.emin) + _exponents(self.b, fmt.emin)
        return np.column_stack([_exponents(self.c, self.unit.added.emin), products])

    @cached_property
    def quantum(self) -> Array:
        """``2**(E - fraction_bits)``."""
        assert self.unit.fraction_bits is not None
        return _power(self._places.max(axis=1) - self.unit.fraction_bits)

    @cached_property
    def last(self) -> Array:
        """The last bit that a term may have, by its exponent."""
        (fmt,) = self.unit.inputs
        below = [self.unit.added.precision - 1] + [2 * (fmt.precision - 1)] * self.unit.k
        return _power(self._places - np.array(below))

    @cached_property
    def loses(self) -> Array:
        """Where a term has bits below the quantum."""
        return self.terms % self.quantum[:, None] != 0

    @cached_property
    def sums(self) -> Array:
        """The exact sums."""
        return self.terms.sum(axis=1)

    @cached_property
    def finite(self) -> Array:
        """Where the result is finite."""
        return np.isfinite(self.made)

    @cached_property
    def results(self) -> Array:
        """The results as integers; zero where one is not finite."""
        return integers(np.where(self.finite, self.made, 0.0))

    @cached_property
    def off(self) -> Array:
        """The magnitude of the error."""
        return abs(self.results - self.sums)

    @cached_property
    def ulp(self) -> Array:
        """The unit in the last place of the result."""
        fmt = self.unit.output
        return _power(
            np.maximum(_exponents(self.results * 2.0**-UNIT, fmt.emin), fmt.emin) - fmt.precision + 1
        )

    @cached_property
    def one_sign(self) -> Array:
        """Where all terms have one sign."""
        return (self.terms >= 0).all(axis=1) | (self.terms <= 0).all(axis=1)

    def nearby(self, mode: str) -> Array:
        """Return the exact sums, rounded to the output format."""
        fmt = self.unit.output
        wide = replace(fmt, name="", emax=fmt.emax + 20)  # so that no sum overflows
        return integers(mcf.round_to(self.sums * 2.0**-UNIT, wide, rounding=mode))

    @cached_property
    def rounding(self) -> Array:
        """What rounding a multiple of the quantum may lose."""
        nearest = self.unit.rounding == "nearest_even"
        return self.ulp // 2 if nearest else np.maximum(self.ulp - self.quantum, 0)

    def after(self, name: str) -> tuple[Array, Array]:
        """Return where a change leads to a finite result, too, and that result."""
        made = self.changed[name][3]
        there = np.isfinite(made)
        return there & self.finite, integers(np.where(there, made, 0.0))


def _power(exponents: Array) -> Array:
    """Return powers of two in units; one unit for very small powers, which belong to zeros."""
    return np.int64(1) << np.maximum(exponents + UNIT, 0)


# -- statements -------------------------------------------------------------------------------------------
Sides = tuple[Array, Any, Any]


@dataclass(frozen=True)
class Statement:
    """A statement about a group: where it applies, something is at most something else.

    Attributes
    ----------
    name, text : str
    sides : callable
        Of `Groups`: where it applies, and both sides as integers.
    holds : callable
        Of a `Unit`: True if it is proved, False if it is known to be false of some units.
    change : str
        The change of operands that it is about.
    """

    name: str
    text: str
    sides: Callable[[Groups], Sides]
    holds: Callable[[Unit], bool] = lambda unit: True
    change: str = ""


def _cut(g: Groups) -> Array:
    return g.finite & (g.unit.rounding == "toward_zero")


def _errors(bound: Callable[[Groups, Array], Array]) -> Callable[[Groups], Sides]:
    return lambda g: (g.finite, g.off, bound(g, g.loses.sum(axis=1)))


def _exact_of_one_sign(g: Groups) -> Sides:
    whole = ~g.loses.any(axis=1) & (g.nearby("toward_zero") == g.sums)
    return _cut(g) & g.one_sign, (whole != (g.results == g.sums)).astype(int), 0


def _toward_zero(g: Groups) -> Sides:
    few = (g.loses.sum(axis=1) <= 1) & (g.quantum <= g.ulp)
    return _cut(g) & g.one_sign & few, abs(g.results - g.nearby("toward_zero")), 0


def _falls(name: str) -> Callable[[Groups], Sides]:
    def sides(g: Groups) -> Sides:
        there, after = g.after(name)
        return there, g.results, after

    return sides


def _differs(name: str) -> Callable[[Groups], Sides]:
    def sides(g: Groups) -> Sides:
        there, after = g.after(name)
        return there, abs(g.results - after), 0

    return sides


def _never(unit: Unit) -> bool:
    return False


STATEMENTS = (
    Statement(
        "error", "|D - S| <= L q + max(0, ulp(D) - q)", _errors(lambda g, n: n * g.quantum + g.rounding)
    ),
    Statement(
        "error, by last bits",
        "|D - S| <= sum (q - u_i) over terms with bits below q + max(0, ulp(D) - q)",
        _errors(lambda g, n: ((g.quantum[:, None] - g.last) * g.loses).sum(axis=1) + g.rounding),
    ),
    Statement(
        "exact",
        "all terms are multiples of q, and S is a value of the output: D = S",
        lambda g: (g.finite & ~g.loses.any(axis=1) & (g.nearby("toward_zero") == g.sums), g.off, 0),
    ),
    Statement(
        "exact, of one sign",
        "no terms of opposite signs: D = S if and only if all terms are multiples of q and S is a value",
        _exact_of_one_sign,
    ),
    Statement(
        "below",
        "no terms of opposite signs: |D| <= |S|",
        lambda g: (_cut(g) & g.one_sign, abs(g.results), abs(g.sums)),
    ),
    Statement(
        "cut", "no terms of opposite signs, L <= 1, q <= ulp(D): D is S rounded toward zero", _toward_zero
    ),
    Statement("order", "D does not depend on the order of the products", _differs("order"), change="order"),
    Statement("exchange", "D is the same with a and b exchanged", _differs("exchange"), change="exchange"),
    Statement(
        "monotone in factors",
        "a_1 grows, b_1 > 0: D does not fall",
        _falls("factor"),
        lambda unit: is_monotone(unit, "factors"),
        "factor",
    ),
    Statement(
        "monotone in C",
        "C grows: D does not fall",
        _falls("addend"),
        lambda unit: is_monotone(unit, "addend"),
        "addend",
    ),
    # -- false ones
    Statement(
        "error, one term fewer",
        "|D - S| <= (L - 1) q + max(0, ulp(D) - q) if L > 0",
        _errors(lambda g, n: np.maximum(n - 1, 0) * g.quantum + g.rounding),
        _never,
    ),
    Statement(
        "error, E one less",
        "|D - S| <= L q / 2 + max(0, ulp(D) - q / 2)",
        _errors(lambda g, n: n * g.quantum // 2 + np.maximum(g.ulp - g.quantum // 2, g.rounding)),
        _never,
    ),
    Statement(
        "error, terms to nearest",
        "|D - S| <= L q / 2 + max(0, ulp(D) - q)",
        _errors(lambda g, n: n * g.quantum // 2 + g.rounding),
        _never,
    ),
    Statement(
        "error, output to nearest",
        "|D - S| <= L q + ulp(D) / 2",
        _errors(lambda g, n: n * g.quantum + g.ulp // 2),
        lambda unit: unit.rounding == "nearest_even",
    ),
    Statement("faithful", "|D - S| <= ulp(D)", _errors(lambda g, n: g.ulp), _never),
    Statement(
        "exact only if nothing is cut",
        "D = S: all terms are multiples of q",
        lambda g: (g.finite & (g.off == 0), g.loses.sum(axis=1), 0),
        _never,
    ),
    Statement(
        "sign",
        "D and S have no opposite signs",
        lambda g: (g.finite, -g.results * np.sign(g.sums), 0),
        _never,
    ),
)


# -- operands ---------------------------------------------------------------------------------------------
def every_group(unit: Unit) -> Iterator[Groups]:
    """Yield all groups of a unit of small formats, those of one addend at a time, in ascending order."""
    (fmt,), k = unit.inputs, unit.k
    values, addends = (np.unique(np.float64(finite_values(x))) for x in (fmt, unit.added))
    n = len(values)
    rows = np.array(list(product(values, repeat=k)))
    a, b = np.repeat(rows, len(rows), axis=0), np.tile(rows, (len(rows), 1))
    places = np.arange(n**k).reshape((n,) * k)
    orders = [places.swapaxes(0, 1).ravel(), np.moveaxis(places, 0, -1).ravel()]
    grown = np.minimum(np.arange(n**k) + n ** (k - 1), n**k - 1)
    grows = np.ix_(np.arange(n**k) < n**k - n ** (k - 1), rows[:, 0] > 0)
    all_made = [matmul(rows, rows.T, unit=unit, c=np.float64(c)) for c in addends]
    for place, made in enumerate(all_made):
        c = np.full(len(a), addends[place])
        changed = {}
        # Two permutations make all; what is not the same after one is looked at first.
        tried = [made[np.ix_(x, x)] for x in orders]
        differs = (tried[0] != made) & ~(np.isnan(tried[0]) & np.isnan(made))
        which = np.where(differs, 0, 1).ravel()[:, None]
        order = [np.where(which == 0, rows[orders[0]][i], rows[orders[1]][i]) for i in _pairs(len(rows))]
        changed["order"] = (*order, c, np.where(differs, *tried).ravel())
        changed["exchange"] = (b, a, c, made.T.ravel())
        after = np.full(made.shape, np.nan)
        after[grows] = made[grown][grows]
        changed["factor"] = (np.repeat(rows[grown], len(rows), axis=0), b, c, after.ravel())
        last = place + 1 == len(addends)
        more = np.full(made.shape, np.nan) if last else all_made[place + 1]
        changed["addend"] = (a, b, np.full(len(a), np.nan if last else addends[place + 1]), more.ravel())
        yield Groups(unit, a, b, c, made.ravel(), changed)


def _pairs(n: int) -> tuple[Array, Array]:
    return np.repeat(np.arange(n), n), np.tile(np.arange(n), n)


# -- verdicts ---------------------------------------------------------------------------------------------
def certificates(unit: Unit, statements: tuple[Statement, ...] = STATEMENTS) -> list[dict[str, Any]]:
    """Try statements on all groups of a unit, and return a verdict for each, with the simplest violation."""
    found = [_Found(statement) for statement in statements]
    for groups in every_group(unit):
        for each in found:
            each.judge(groups)
    return [each.verdict(unit) for each in found]


class _Found:
    def __init__(self, statement: Statement) -> None:
        self.statement, self.cases, self.applicable, self.violations = statement, 0, 0, 0
        self.worst, self.simplest, self.witness = Fraction(0), (np.inf, np.inf), None

    def judge(self, g: Groups) -> None:
        """Try the groups of a block."""
        there, left, right = self.statement.sides(g)
        right = np.broadcast_to(right, left.shape)
        violated = there & (left > right)
        self.cases += len(g.made)
        self.applicable += int(there.sum())
        self.violations += int(violated.sum())
        # The worst share of a bound, where terms lose something; else the bound is about rounding alone.
        some = there & (right > 0) & g.loses.any(axis=1)
        if self.statement.name.startswith("error") and some.any():
            ratio = np.where(some, left / np.where(some, right, 1), -1.0)
            place = int(ratio.argmax())
            self.worst = max(self.worst, Fraction(int(left[place]), int(right[place])))
        if places := np.flatnonzero(violated).tolist():
            numbers = np.column_stack([g.a, g.b, g.c])[places]
            nonzero, size = (g.terms[places] != 0).sum(axis=1), abs(numbers).sum(axis=1)
            first = np.lexsort(((numbers < 0).sum(axis=1), size, nonzero))[0]
            simple = float(nonzero[first]), float(size[first])
            if simple < self.simplest:
                self.simplest, self.witness = simple, self._case(g, places[first])

    def _case(self, g: Groups, place: int) -> dict[str, Any]:
        def shown(a: Array, b: Array, c: Array, made: Array) -> dict[str, Any]:
            whole = {"a": a[place].tolist(), "b": b[place].tolist()}
            return {**whole, "c": float(c[place]), "result": float(made[place])}

        case = shown(g.a, g.b, g.c, g.made)
        if self.statement.change:
            case["then"] = shown(*g.changed[self.statement.change])
        return case

    def verdict(self, unit: Unit) -> dict[str, Any]:
        """Return what was found."""
        verdict = "refuted" if self.violations else "verified" if self.applicable else "vacuous"
        found = {
            "statement": self.statement.name,
            "says": self.statement.text,
            "unit": unit.name,
            "proved": self.statement.holds(unit),
            "verdict": verdict,
            "cases": self.cases,
            "applicable": self.applicable,
            "violations": self.violations,
        }
        if self.worst:
            found["worst"] = str(self.worst)
        return found | ({"witness": self.witness} if self.witness else {})
