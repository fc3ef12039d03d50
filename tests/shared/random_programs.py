"""Random algorithms: operations in mixed formats, with real scalars of every kind."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Any

import mpmath
import numpy as np

from mcfsim.compile.program import Program
from mcfsim.compile.tracing import trace
from mcfsim.formats import Format, get_format
from mcfsim.kernels.carriers import carrier_of
from mcfsim.oracle import round_fraction
from mcfsim.rounding import Mode, Overflow, Rounding, Rule, Underflow
from tests.shared.in_single import Real, widened

ARITY = dict.fromkeys(("add", "sub", "mul", "div"), 2) | {"sqrt": 1, "fma": 3}
ARITY |= dict.fromkeys(("neg", "abs", "sign", "round"), 1)
#: Formats whose carrier is binary32, and others: a text has results of one carrier alone.
NARROW = [
    *map(get_format, ("bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "tf32")),
    *map(get_format, ("float32", "posit8", "int8", "float6_e2m3fn")),
    Format(precision=5, emin=-14, emax=15),
    Format(precision=6, emin=-6, emax=7, signed=False),
]
WIDE = [
    *map(get_format, ("float64", "posit16")),
    Format(precision=20, emin=-1000, emax=1023),
    Format(precision=24, emin=-1022, emax=1000),
    Format(precision=8, emin=-300, emax=300),
]
SCALARS: list[Any] = [
    *(0.1, -0.1, 1 / 3, 0.999, 1.0, -3.0, 0.0, -0.0, 2.0**-9, 1e30, 3e-39, 1e300, -1e300, 1e-300, 5e-324),
    *(float("inf"), -float("inf"), float("nan"), 7, -1, 2**60 + 1, 10**400, -(10**400)),
    *(Fraction(1, 3), Fraction(-2, 7), Fraction(1, 10**400), Fraction(10**400, 3), Decimal("0.1")),
    *(Decimal("-1e-400"), mpmath.mpf(1) / 3, mpmath.mpf("1e500")),
]


@dataclass(frozen=True)
class Recipe:
    """A text as data."""

    format: Format  # of the operands, and of the first arithmetic
    rounding: Rounding
    policy: str
    others: tuple[tuple[Format, Rounding], ...]  # of further arithmetics
    operands: int
    #: Of each operation the name, the arithmetic, and the operands: the numbers of values, or real scalars in
    #: tuples of one.
    steps: tuple[tuple[str, int, tuple[Any, ...]], ...]
    results: tuple[int, ...]  # the values that are returned

    def text(self, enter: Callable[[Any, Any], Any] = lambda ar, x: x) -> Callable[..., Any]:
        """Return the text; what a real scalar is in an arithmetic may be said."""

        def carry_out(ar: Any, *operands: Any) -> Any:
            ars = [ar, *(ar.like(fmt, rounding) for fmt, rounding in self.others)]
            values = list(operands)
            for name, which, taken in self.steps:
                given = [enter(ars[which], x[0]) if isinstance(x, tuple) else values[x] for x in taken]
                values.append(getattr(ars[which], name)(*given))
            return tuple(values[x] for x in self.results)

        return carry_out

    def program(self) -> Program:
        """Return the text as it is recorded."""
        names = tuple(f"x{place}" for place in range(self.operands))
        return trace(self.text(), self.format, self.rounding, operands=names, lines=False)


def entering(ar: Any, x: Any, policy: str) -> Any:
    """Return a real scalar as a policy has it enter an oracle, by the definition."""
    if policy == "exact":
        return x
    if policy == "float32" and widened(ar.format):
        return Real(x)
    if isinstance(x, float) and not (x and abs(x) < float("inf")):
        return ar.round(x)  # zeros, infinities, NaN
    mantissa, exponent = getattr(x, "man_exp", (x, 0))
    return round_fraction(Fraction(mantissa) * Fraction(2) ** int(exponent), ar.format, ar.rounding)


def recipe(seed: int, *, stochastic: bool = False) -> Recipe:
    """Return a random text of 3 to 40 operations.

    Short ones are drawn more often, since long ones often end in NaN. A hundred algorithms, from 10,000 on a
    thousand, share nine formats and roundings: operations are made once.
    """
    r = random.Random(seed)
    narrow, wide = _arithmetics(seed // (100 if seed < 10_000 else 1000), stochastic)
    pool = narrow if r.random() < 0.7 else wide
    drawn = [r.choice(pool) for _ in range(r.choice((1, 1, 2, 3)))]
    chosen = [fmt for fmt, _, _ in drawn]
    roundings = [first if place == 0 else other for place, (_, first, other) in enumerate(drawn)]
    operands, steps = r.randint(1, 3), list[tuple[str, int, tuple[Any, ...]]]()
    formats = [0] * operands  # of each value the arithmetic whose it is
    alone = [False] * operands  # whether it is made of numbers alone
    length = 3 + int(38 * r.random() ** 3)
    carrier = carrier_of(chosen[0])
    while len(steps) < length or carrier_of(chosen[formats[-1]]) != carrier:
        name, which = r.choice(list(ARITY)), r.randrange(len(chosen))
        taken: list[Any] = []
        for _ in range(ARITY[name]):
            if r.random() < 0.25:
                taken.append((r.choice(SCALARS),))
                continue
            place = max(r.randrange(len(formats)), r.randrange(len(formats)))
            if formats[place] != which and name != "round":
                steps.append(("round", which, (place,)))
                formats.append(which)
                alone.append(alone[place])
                place = len(formats) - 1
            taken.append(place)
        numbers = all(isinstance(x, tuple) or alone[x] for x in taken)
        if numbers and (roundings[which].stochastic or r.random() < 0.7):
            continue
        steps.append((name, which, tuple(taken)))
        formats.append(which)
        alone.append(numbers)
    fitting = [place for place, which in enumerate(formats) if carrier_of(chosen[which]) == carrier]
    results = (len(formats) - 1, *r.sample(fitting, 2))
    policy = r.choice(("exact", "exact", "rounded", "float32", "float32"))
    others = tuple(zip(chosen[1:], roundings[1:], strict=True))
    return Recipe(chosen[0], roundings[0], policy, others, operands, tuple(steps), results)


@lru_cache(maxsize=8)
def _arithmetics(part: int, stochastic: bool) -> list[list[tuple[Format, Rounding, Rounding]]]:
    """Return formats of either carrier, each with the rounding of a first and of a further arithmetic."""
    r = random.Random(f"{part} {stochastic}")
    found = []
    for formats, count in ((NARROW, 6), (WIDE, 3)):
        rows = []
        for fmt in r.sample(formats, count):
            other = _rounding(r, fmt, stochastic=False)
            rows.append((fmt, _rounding(r, fmt, stochastic=True) if stochastic else other, other))
        found.append(rows)
    return found


def _rounding(r: random.Random, fmt: Format, *, stochastic: bool) -> Rounding:
    if stochastic:
        return Rounding(mode=Mode.STOCHASTIC, random_bits=r.choice((4, 16, 20)), rule=r.choice(list(Rule)))
    modes = [mode for mode in Mode if mode is not Mode.STOCHASTIC]
    mode = Mode.NEAREST_EVEN if r.random() < 0.4 else r.choice(modes)
    overflow = Overflow.IEEE if r.random() < 0.7 else Overflow.SATURATE
    plain = type(fmt) is not Format or r.random() < 0.7
    return Rounding(mode, overflow, underflow=Underflow.GRADUAL if plain else r.choice(list(Underflow)))


def operands_of(made: Recipe, size: int, pool: dict[Format, Any]) -> list[Any]:
    """Return operands drawn from values of the format, specials among them."""
    rng = np.random.default_rng(len(made.steps))
    values = pool[made.format]
    return [values[rng.integers(0, values.size, size)] for _ in range(made.operands)]
