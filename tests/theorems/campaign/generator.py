"""Random statements: straight lines whose registers have types, and predicates that go by these.

The type of a register says how it answers to its operands: by which power it is multiplied if an operand is
multiplied by a power of two (its degrees, one an operand), and whether it changes sign if all operands do
(it is odd), or stays (even). Only what has equal types is added or compared, so a statement made with types
has its reduction by construction. One made without need not.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from random import Random
from typing import Any

from tests.theorems.campaign.statements import Line, Tree

#: Degrees, one for each scaling that is free, and whether it is odd.
Type = tuple[tuple[Fraction, ...], bool]

#: How often each operation is drawn.
SUMS = ("add", "add", "sub", "sub", "neg", "abs", "mul", "fma")
PRODUCTS = ("mul", "mul", "div", "div", "sqrt", "neg", "abs", "add", "sub", "fma", "fma")
ALL = ("add", "sub", "mul", "div", "sqrt", "fma", "neg", "abs")
#: Constants: multiples of any number by the first are no less exact than sums.
INTEGERS = (1.0, 2.0, 3.0)
CONSTANTS = (0.5, 0.375, 1.5, 2.0, 3.0, 5.0, -1.0, 0.0625)


@dataclass(frozen=True)
class Rules:
    """By what types a statement is made, for a reduction."""

    scaling: str
    #: Whether oddness counts, as it does where the first operand is taken positive.
    signs: bool
    #: Whether types count at all.
    typed: bool
    #: Operations that are drawn.
    names: tuple[str, ...]

    def of_operand(self, i: int, count: int) -> Type:
        """Return the type of an operand."""
        if self.scaling == "each":
            return tuple(Fraction(i == j) for j in range(count)), True
        return (Fraction(1),), True

    def whole(self, degrees: tuple[Fraction, ...]) -> bool:
        """Return whether a power of two comes out, for a power of two (of four) put in."""
        step = 2 if self.scaling == "square" else 1
        return all((step * degree).denominator == 1 for degree in degrees)

    def in_range(self, found: Type) -> bool:
        """Return whether a result overflows and underflows no sooner than operands do, as square has it."""
        return self.scaling != "square" or not self.typed or all(0 <= degree <= 1 for degree in found[0])

    def alike(self, x: Type, y: Type) -> bool:
        """Return whether numbers may be added and be compared for equality."""
        return not self.typed or (x[0] == y[0] and (x[1] == y[1] or not self.signs))

    def ordered(self, x: Type) -> bool:
        """Return whether an order may be asked for as it stands."""
        return not (self.typed and self.signs and x[1])


def rules(scaling: str, mode: str, *, typed: bool = True, sums: bool = True, signs: bool = True) -> Rules:
    """Return the rules for a reduction under a rounding mode.

    Common scaling may be of sums or of anything; a statement that scales need not be one of any signs.
    """
    names = ALL
    if typed and (sums or scaling != "common"):
        names = {"common": SUMS, "each": PRODUCTS}.get(scaling, ALL)
    return Rules(scaling, signs and mode not in ("up", "down"), typed and scaling != "none", names)


class Maker:
    """Draws one statement."""

    def __init__(self, random: Random, rules: Rules, operands: tuple[tuple[str, str], ...]) -> None:
        self.random, self.rules, self.operands = random, rules, operands
        self.steps: list[Tree] = []
        self.types: list[Type] = []
        #: Registers that may be a zero of any sign: by these nothing is divided.
        self.cancelled: set[int] = set()
        for i, (_, kind) in enumerate(operands):
            self.types += [rules.of_operand(i, len(operands))] * (1 if kind == "value" else 2)
        self.used: set[int] = set()
        #: How often a number is what an expression is compared with; factors are drawn of these.
        self.numbers = 0.0 if rules.typed else 0.1
        self.factors: tuple[int, ...] = (2, 3, -1, 5, 8)
        self.longest = 40

    # -- the algorithm --------------------------------------------------------------------------------------
    def line(self, count: int) -> Line:
        """Draw an algorithm of so many operations."""
        while len(self.steps) < count:
            for _ in range(60):
                if self._step():
                    break
        first, last = len(self.types) - count, len(self.types)
        # The last operation, what nothing uses, and some of the others.
        results = [i for i in range(first, last) if i == last - 1 or i not in self.used]
        others = [i for i in range(first, last) if i not in results]
        results += self.random.sample(others, min(len(others), self.random.randrange(2)))
        results = results[-3:]
        self.results = [self.types[i] for i in results]
        return Line(self.operands, tuple(self.steps), tuple(results))

    def _step(self) -> bool:
        random, name = self.random, self.random.choice(self.rules.names)
        # Late registers come more often, so that lines are long rather than broad.
        place = lambda: max(random.randrange(len(self.types)) for _ in range(random.choice((1, 2))))  # noqa: E731
        given: list[Any] = [place() for _ in range({"fma": 3, "neg": 1, "abs": 1, "sqrt": 1}.get(name, 2))]
        if name in ("mul", "fma") and (self.rules.scaling == "common" or random.random() < 0.15):
            exact = self.rules.scaling == "common" and self.rules.typed
            given[random.randrange(2)] = random.choice(INTEGERS if exact else CONSTANTS)
        found = self._type(name, given)
        if found is None or not self.rules.in_range(found):
            return False
        self.steps.append((name, *given))
        self.used.update(x for x in given if isinstance(x, int))
        self.types.append(found)
        if name in ("add", "sub", "fma") or any(x in self.cancelled for x in given):
            self.cancelled.add(len(self.types) - 1)
        return True

    def _type(self, name: str, given: list[Any]) -> Type | None:
        """Return the type of a result, or None if the operation is not one that has one."""
        none = self.rules.of_operand(0, len(self.operands))[0]
        constant = tuple(degree * 0 for degree in none), False
        types = [self.types[x] if isinstance(x, int) else constant for x in given]
        match name:
            case "add" | "sub":
                return types[0] if self.rules.alike(*types) else None
            case "neg":
                return types[0]
            case "abs":
                return types[0][0], False
            case "mul":
                return self._product(*types)
            case "fma":
                product = self._product(types[0], types[1])
                fits = self.rules.alike(product, types[2]) and self.rules.in_range(product)
                return types[2] if fits else None
            case "div":
                if self.rules.typed and given[1] in self.cancelled:
                    return None
                degrees = tuple(x - y for x, y in zip(types[0][0], types[1][0], strict=True))
                return degrees, types[0][1] != types[1][1]
            case "sqrt":
                degrees = tuple(x / 2 for x in types[0][0])
                fits = self.rules.whole(degrees) and self.rules.ordered(types[0])
                return (degrees, False) if fits or not self.rules.typed else None
        raise ValueError(name)

    def _product(self, x: Type, y: Type) -> Type:
        return tuple(a + b for a, b in zip(x[0], y[0], strict=True)), x[1] != y[1]

    # -- predicates -----------------------------------------------------------------------------------------
    def term(self) -> tuple[Tree, Type]:
        """Draw an operand or a result."""
        if self.random.random() < 0.45:
            i = self.random.randrange(len(self.operands))
            return ("x", self.operands[i][0]), self.rules.of_operand(i, len(self.operands))
        i = self.random.randrange(len(self.results))
        return ("r", i), self.results[i]

    def exact(self) -> tuple[Tree, Type]:
        """Draw an exact expression."""
        tree, kind = self.term()
        for _ in range(self.random.choice((0, 0, 1, 1, 2))):
            other, its = self.term()
            match self.random.randrange(6):
                case 0 | 1 | 2 if self.rules.alike(kind, its):
                    tree = (self.random.choice("+-"), tree, other)
                case 3 if len(repr(tree)) < self.longest:
                    tree, kind = ("*", tree, other), self._product(kind, its)
                case 4:
                    tree = ("times", tree, self.random.choice(self.factors))
                case 5:
                    size = self.random.random() < 0.7
                    tree, kind = (("abs", tree), (kind[0], False)) if size else (("neg", tree), kind)
        return tree, kind

    def number(self) -> tuple[Tree, Type]:
        """Draw a number, which can be compared with only where types do not count."""
        random = self.random
        number = Fraction(random.randrange(-9, 10), random.choice((1, 1, 2, 4, 3, 5)))
        return ("number", str(number)), self._type("mul", [1.0, 1.0]) or self.types[0]

    def both(self) -> tuple[Tree, Tree, Type] | None:
        """Draw two exact expressions that may be compared for equality."""
        e, kind = self.exact()
        for _ in range(8):
            f, other = self.number() if self.random.random() < self.numbers else self.exact()
            if f != e and self.rules.alike(kind, other):
                return e, f, kind
        return None

    def atom(self) -> Tree:
        """Draw a predicate on operands and results."""
        for _ in range(50):
            found = self._atom()
            if found is not None:
                return found
        return ("finite",)

    def _atom(self) -> Tree | None:
        random = self.random
        match random.randrange(8):
            case 0 | 1 | 2:
                pair = self.both()
                if pair is None:
                    return None
                e, f, kind = pair
                op = random.choice(("<", "<=", "==", "!=", ">=", ">"))
                if op not in ("==", "!=") and not self.rules.ordered(kind):
                    e, f = ("abs", e), ("abs", f)
                return ("exact", op, e, f)
            case 3 | 4:
                (u, kind), (v, other) = self.term(), self.term()
                # A component of a pair is not the pair, but of one type.
                if u == v or not self.rules.alike(kind, other):
                    return None
                u, v = ({"x": ("head", t[1]), "r": ("result", t[1])}[t[0]] for t in (u, v))
                op = random.choice(("<", "<=", "==", "!=", ">=", ">"))
                if op not in ("==", "!=") and not self.rules.ordered(kind):
                    u, v = ("size", u), ("size", v)
                return ("is", op, u, v)
            case 5:
                return ("zero", self.exact()[0])
            case 6:
                tree, kind = self.exact()
                return ("value", tree) if kind[0] == self.rules.of_operand(0, len(kind[0]))[0] else None
            case 7:
                tree, kind = self.term()
                if self.rules.ordered(kind) and random.random() < 0.6:
                    place = "result" if tree[0] == "r" else "head"
                    return ("is", random.choice(("<", "<=", ">", ">=")), (place, tree[1]), 0.0)
                return random.choice((("finite",), ("not", ("zero", tree))))
        raise AssertionError

    def hypothesis(self) -> Tree:
        """Draw a hypothesis on operands."""
        random = self.random
        names = [name for name, _ in self.operands]
        single = [("nonzero", random.choice(names)), ("results_finite",)]
        if len(names) < 2:
            return random.choice(single)
        a, b = random.sample(names, 2)
        products = [("same_sign", a, b)]
        if self._multiplied(a, b):  # these speak of overflow and underflow of the product
            products += [("product_in_range", a, b), ("product_of_quanta", a, b)]
        sums = [
            ("ordered", a, b),
            ("exponents_ordered", a, b),
            ("multiple_of_ulp", a, b),
            ("within_factor_two", a, b),
            ("same_sign", a, b),
            ("sum_in_range", a, b),
            ("not_largest", a),
            ("exponent_gap", a, b, random.randrange(4)),
        ]
        # Negating both leaves the sign of a product; but not that of three operands' products.
        own = {"common": sums, "square": sums, "each": products}.get(self.rules.scaling, sums + products)
        return random.choice(single + own) if random.random() < 0.8 else self._of_operands()

    def _multiplied(self, a: str, b: str) -> bool:
        pair = {i for i, (name, _) in enumerate(self.operands) if name in (a, b)}
        return any(name in ("mul", "fma") and {*given[:2]} == pair for name, *given in self.steps)

    def _of_operands(self) -> Tree:
        """Draw a predicate that does not look at results."""
        for _ in range(50):
            found = self.atom()
            if "'r'" not in repr(found) and "'result'" not in repr(found):
                return found
        return ("results_finite",)

    def unsound(self) -> Tree:
        """Draw a predicate that no reduction leaves as it is: one of absolute sizes, or of a sign."""
        name = self.random.choice(self.operands)[0]
        power = 2.0 ** self.random.randrange(-3, 4)
        op = self.random.choice(("<", "<=", ">=", ">"))
        return self.random.choice(
            (
                ("is", op, ("size", ("head", name)), power),
                ("is", op, ("head", name), 0.0),
                ("is", op, ("size", ("result", 0)), power),
                ("is", op, ("result", 0), 0.0),
            )
        )
