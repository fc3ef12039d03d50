"""Lines of a machine in plain Python, element by element, with which emitters are compared; and random lines.

The verbs are those of `mcfsim.kernels.element.machine`, by its words alone: integers wrap around, numbers
are rounded once to nearest even from exact fractions, subnormal numbers are kept. Nothing of the package
computes; tables are data.
"""

from __future__ import annotations

import math
import operator
import random
import struct
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from mcfsim.compile.lowering import Lowered
from mcfsim.compile.program import Draw
from mcfsim.formats import get_format
from mcfsim.kernels.element.machine import F32, F64, I32, I64, TRUTH, Line, Type, Value
from mcfsim.kernels.elementary import table_key, table_of
from mcfsim.random import RandomWords
from tests.shared import rationals

#: Precision and least exponent of a number, by its size.
_NUMBERS = {F32: (24, -126, 127), F64: (53, -1022, 1023)}
_CODES = {F32: ("<f", "<i"), F64: ("<d", "<q")}


# -- the machine ---------------------------------------------------------------------------------------------
def rounded(x: Fraction, kind: Type) -> float:
    """Return a fraction that is not zero as a number, rounded to nearest even; beyond the range, infinity."""
    return rationals.rounded(x, *_NUMBERS[kind])


def _added(a: float, b: float, kind: Type) -> float:
    if not (math.isfinite(a) and math.isfinite(b)):
        return math.nan if math.isnan(a) or math.isnan(b) or a == -b else a if math.isinf(a) else b
    total = Fraction(a) + Fraction(b)
    if total:
        return rounded(total, kind)
    return -0.0 if math.copysign(1, a) == math.copysign(1, b) == -1 else 0.0


def _signed(magnitude: float, a: float, b: float) -> float:
    return magnitude * math.copysign(1, a) * math.copysign(1, b)


def _multiplied(a: float, b: float, kind: Type) -> float:
    if math.isnan(a) or math.isnan(b) or {abs(a), abs(b)} == {0.0, math.inf}:
        return math.nan
    if math.isinf(a) or math.isinf(b):
        return _signed(math.inf, a, b)
    return rounded(Fraction(a) * Fraction(b), kind) if a and b else _signed(0.0, a, b)


def _divided(a: float, b: float, kind: Type) -> float:
    if math.isnan(a) or math.isnan(b) or (math.isinf(a) and math.isinf(b)) or (a == 0 and b == 0):
        return math.nan
    if math.isinf(a) or b == 0:
        return _signed(math.inf, a, b)
    return rounded(Fraction(a) / Fraction(b), kind) if a and math.isfinite(b) else _signed(0.0, a, b)


def _root(x: float, kind: Type) -> float:
    if math.isnan(x) or x < 0:
        return math.nan
    if x == 0 or math.isinf(x):
        return x
    # With so many bits that what is left over only says that there is more.
    exact = Fraction(x)
    shift = 2 * (120 + max(0, exact.denominator.bit_length() - exact.numerator.bit_length()))
    scaled = exact * 2**shift
    root = math.isqrt(int(scaled))
    return rounded(Fraction(2 * root + (root * root != scaled), 2 ** (shift // 2 + 1)), kind)


def wrapped(n: int, kind: Type) -> int:
    """Return an integer as a type holds it."""
    half = 1 << (kind.bits - 1)
    return (n + half) % (2 * half) - half


def _verb(value: Value, given: Sequence[Any]) -> Any:
    """Return what a verb makes of its operands."""
    verb, kind = value.verb, value.type
    of = value.operands[0].type
    match verb:
        case "neg" | "abs" if kind.is_float:
            return -given[0] if verb == "neg" else abs(given[0])
        case "sqrt":
            return _root(given[0], kind)
        case "add" | "mul" | "div" if kind.is_float:
            return {"add": _added, "mul": _multiplied, "div": _divided}[verb](*given, kind)
        case "sub" if kind.is_float:
            return _added(given[0], -given[1], kind)
        case "lt" | "le" | "eq":
            return getattr(operator, verb)(*given)
        case "select":
            return given[1] if given[0] else given[2]
        case "bits":
            return struct.unpack(_CODES[of][1], struct.pack(_CODES[of][0], given[0]))[0]
        case "number":
            return struct.unpack(_CODES[kind][0], struct.pack(_CODES[kind][1], given[0]))[0]
        case "widen" | "extend":
            return given[0]
        case "narrow":
            x = given[0]
            return rounded(Fraction(x), kind) if math.isfinite(x) and x else x
        case "count":
            return int(given[0])
        case "look_up":
            return table_of(str(value.constant))[given[0]].item()
        case "not":
            return not given[0] if kind is TRUTH else ~given[0]
        case "shr":
            return wrapped((given[0] % 2**kind.bits) >> given[1], kind)
    if kind is TRUTH:
        return _LOGICAL[verb](*given)
    return wrapped(_OF_INTEGERS[verb](*given), kind)


_LOGICAL = {"and": operator.and_, "or": operator.or_, "xor": operator.xor}
_OF_TWO = {"add": operator.add, "sub": operator.sub, "mul": operator.mul, **_LOGICAL}
_OF_INTEGERS: dict[str, Callable[..., int]] = {
    **_OF_TWO,
    **{"neg": operator.neg, "shl": operator.lshift, "sar": operator.rshift, "cut": int},
}


def by_definition(line: Line, results: Sequence[Value], given: dict[Value, Sequence[Any]]) -> list[list[Any]]:
    """Return each result for each element, as Python's numbers, integers and truth values."""
    size = max((len(x) for x in given.values()), default=1)
    known: dict[Value, Any] = {}
    for value in line.needed(tuple(results)):
        if value.verb == "input":
            known[value] = [given[value][element % len(given[value])] for element in range(size)]
        elif value.verb == "constant":
            known[value] = [value.constant] * size
        else:
            rows = zip(*(known[x] for x in value.operands), strict=True)
            known[value] = [_verb(value, row) for row in rows]
    return [known[x] for x in results]


# -- lines ---------------------------------------------------------------------------------------------------
DRAWS = {Draw(0, 0): 16, Draw(0, 1): 32}
STREAM = RandomWords(2**40 + 5, step=3, stream=2)
#: The number of the first element, for words.
START = 2**34 - 40


class Frame:
    """A line to be filled, of vectors of numbers and codes, numbers for all elements, and random words."""

    def __init__(self) -> None:
        self.line = line = Line()
        self.numbers = line.input("x", F32), line.input("y", F32), line.input("z", F64), line.input("w", F64)
        self.codes = line.input("byte", I32), line.input("short", I32)
        self.single = line.input("s", F32), line.input("t", F64)
        self.words = line.input("words0", I64), line.input("words1", I64)

    def lowered(self, results: Sequence[Value]) -> Lowered:
        """Return the line with results as vectors hold them: of integers the bits as numbers, or codes."""
        made = {_lying(x): x for x in results}
        packed = {self.codes[0]: np.dtype(np.uint8), self.codes[1]: np.dtype(np.uint16)}
        packed |= {x: packed[self.codes[not _is_byte(x)]] for x in made if x.type is I32}
        needed = set(self.line.needed(tuple(made)))
        words = [x for x in self.words if x in needed]
        return Lowered(
            line=self.line,
            operands=(*self.numbers, *self.codes),
            numbers=tuple(x for x in self.single if x in needed),
            words=tuple(words),
            results=tuple(made),
            strange=None,
            draws={draw: DRAWS[draw] for draw, x in zip(DRAWS, self.words, strict=True) if x in words},
            packed=packed,
        )


def _is_byte(x: Value) -> bool:
    return x.verb == "and" and x.operands[1].constant == 0xFF


def _lying(x: Value) -> Value:
    """Return what is written for a value: integers that a mask leaves short are codes."""
    if x.type is TRUTH:
        return x.count() & 0xFF
    if not x.type.is_integer:
        return x
    short = x.type is I32 and x.verb == "and" and x.operands[1].constant in (0xFF, 0xFFFF)
    return x if short else x.as_number()


def cleaned(x: Value) -> Value:
    """Return a number, zero for NaN, whose code is left open."""
    return x.equals(x).select(x, 0.0)


def integers(frame: Frame, kind: Type) -> list[Value]:
    """Return integers of all sizes that differ from element to element, zero and the ends among them."""
    x, y, z, w = map(cleaned, frame.numbers)
    if kind is I32:
        bits = [x.bits(), ~y.bits(), frame.codes[0], frame.codes[1], frame.words[0].cut()]
    else:
        bits = [z.bits(), ~w.bits(), frame.words[1], frame.codes[0].extend(), frame.words[0]]
    return bits


#: Texts of every verb, by name: of numbers, and of integers, with a count below their size.
OF_NUMBERS: dict[str, Callable[..., Value]] = {
    **{"add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv},
    **{"sqrt": lambda a, b: a.sqrt(), "neg": lambda a, b: -a, "abs": lambda a, b: abs(a)},
    **{"lt": operator.lt, "le": operator.le, "eq": lambda a, b: a.equals(b)},
    "select": lambda a, b: (a < b).select(a, b),
    **{"add -0": lambda a, b: a + -0.0, "mul -0": lambda a, b: a * -0.0},
    "div inf": lambda a, b: a / math.inf,
    "nan": lambda a, b: (a < b).select(math.nan, b),
    "bits": lambda a, b: cleaned(a).bits(),
    "number": lambda a, b: (cleaned(a).bits() ^ 1).as_number(),
    "widen and narrow": lambda a, b: a.narrow() if a.type is F64 else a.widen(),
}
_SHIFTS = {"shl": operator.lshift, "sar": operator.rshift, "shr": lambda m, count: m.shr(count)}
_TABLES = table_key("exp", get_format("float8_e4m3fn")), table_key("log", get_format("float8_e5m2"))
OF_INTEGERS: dict[str, Callable[..., Value]] = {
    **{name: lambda m, n, count, made=made: made(m, n) for name, made in _OF_TWO.items()},
    **{"not": lambda m, n, count: ~m, "neg": lambda m, n, count: -m},
    **{name: lambda m, n, count, by=by: by(m, count) for name, by in _SHIFTS.items()},
    **{f"{name} 0": lambda m, n, count, by=by: by(m, 0) for name, by in _SHIFTS.items()},
    **{f"{name} most": lambda m, n, count, by=by: by(m, m.type.bits - 1) for name, by in _SHIFTS.items()},
    **{"lt": lambda m, n, count: m < n, "le": lambda m, n, count: m <= n},
    "eq": lambda m, n, count: (m >> 20).equals(n >> 20),
    "least": lambda m, n, count: (m < n).select(m, n),
    "greatest": lambda m, n, count: (m < n).select(n, m),
    "ends": lambda m, n, count: (m < n).select(m.like(-(2 ** (m.type.bits - 1))), 2 ** (m.type.bits - 1) - 1),
    "cut or extend": lambda m, n, count: m.cut() if m.type is I64 else m.extend(),
    **{f"truth {x}": lambda m, n, count, x=x: _LOGICAL[x](m < n, n < count) for x in _LOGICAL},
    "truth not": lambda m, n, count: ~(m < n),
    "truth chosen": lambda m, n, count: (m < n).select(n < count, m < count),
    "count": lambda m, n, count: (m < n).count(m.type),
    **{f"look_up {x}": lambda m, n, count, x=x: (m.cut() & 0xFF).look_up(x) for x in _TABLES},
    "look_up for all": lambda m, n, count: m.line.constant(56, I32).look_up(_TABLES[0]),
    **{"byte": lambda m, n, count: (m ^ n).cut() & 0xFF, "short": lambda m, n, count: (m ^ n).cut() & 0xFFFF},
}


def of_all_verbs(kind: Type) -> tuple[Frame, dict[str, Value]]:
    """Return a line of every verb on operands of a type, and its results by what each is."""
    frame = Frame()
    if kind.is_float:
        a, b = frame.numbers[:2] if kind is F32 else frame.numbers[2:]
        single = frame.single[kind is F64]
        made = {name: text(a, b) for name, text in OF_NUMBERS.items()}
        return frame, made | {f"{x}, for all": OF_NUMBERS[x](single, b) for x in ("add", "div", "lt")}
    most = kind.bits - 1
    m, n, *_ = integers(frame, kind)
    count = (frame.codes[0] if kind is I32 else frame.codes[0].extend()) & most
    return frame, {name: text(m, n, count) for name, text in OF_INTEGERS.items()}


def at_random(seed: int, verbs: int) -> tuple[Frame, dict[str, Value]]:
    """Return a random line of so many verbs, above all of selections, and some of its values as results."""
    choose, frame = random.Random(seed), Frame()
    line = frame.line
    made: dict[Type, list[Value]] = {
        F32: [*frame.numbers[:2], frame.single[0]],
        F64: [*frame.numbers[2:], frame.single[1]],
        I32: integers(frame, I32),
        I64: integers(frame, I64),
        TRUTH: [frame.numbers[0] < frame.numbers[1]],
    }

    def some(kind: Type) -> Value:
        if kind is not TRUTH and choose.random() < 0.15:
            numbers = (0.0, -0.0, 1.5, math.inf, math.nan) if kind.is_float else (0, 1, -1, 7, 2**31 - 1)
            return line.constant(choose.choice(numbers), kind)
        return choose.choice(made[kind][-4:] if choose.random() < 0.6 else made[kind])

    def number(kind: Type) -> Value:
        name = choose.choice([x for x in OF_NUMBERS if x != "sqrt"] + ["add", "mul"] * 3)
        return OF_NUMBERS[name](some(kind), some(kind))

    def integer(kind: Type) -> Value:
        count = line.constant(choose.randrange(kind.bits), kind)
        count = choose.choice([count, some(kind) & kind.bits - 1])
        return OF_INTEGERS[choose.choice([*OF_INTEGERS])](some(kind), some(kind), count)

    def chosen() -> Value:
        kind = choose.choice([F32, F64, I32, I64, TRUTH])
        return some(TRUTH).select(some(kind), some(kind))

    def rare() -> Value:
        kind = choose.choice([F32, F64])
        a, bound = some(kind), line.constant(choose.choice([0.5, 2.0, 2.0**100]), kind)
        return choose.choice([lambda: a.equals(a), lambda: abs(a) < bound, lambda: ~(abs(a) <= bound)])()

    texts = [chosen, chosen, rare, *(lambda k=k: number(k) for k in (F32, F64))]
    texts += [lambda k=k: integer(k) for k in (I32, I64)]
    for _ in range(verbs):
        value = choose.choice(texts)()
        made[value.type].append(value)
    last = [x for kind in made for x in made[kind][-3:] if x.verb not in ("input", "constant")]
    return frame, {x.verb: x for x in choose.sample(last, min(5, len(last)))}


# -- operands ------------------------------------------------------------------------------------------------
def hard(kind: Type) -> list[float]:
    """Return numbers at the ends of ranges, subnormal ones, halfway cases, and what is none."""
    precision, least, most = _NUMBERS[kind]
    tiny, unit = 2.0 ** (least - precision + 1), 2.0 ** (1 - precision)
    top = math.ldexp(2 - unit, most)
    some = [0.0, tiny, 3 * tiny, 2.0**least - tiny, 2.0**least, 1.0, 1 + unit, 1 - unit / 2, 1.5, 3.0, 1 / 3]
    half = 2.0 ** (precision - 1)
    some += [half, 2 * half, 2 * half - 1, half + 1, top, math.inf]
    if kind is F32:
        some[10] = float(np.float32(1 / 3))
    else:  # halves between numbers of binary32, and beside them; the ends of its range
        some += [1 + 2.0**-24, 1 + 3 * 2.0**-24, 1 + 2.0**-24 + 2.0**-52, 2.0**128 - 2.0**103, 2.0**-150]
        some += [2.0**128 - 2.0**103 - 2.0**75, 1.5 * 2.0**-149, 2.0**-150 + 2.0**-180, 2.0**-126 - 2.0**-151]
    return [*some, *(-x for x in some), math.nan]


def operands(seed: int, size: int, share: float) -> list[np.ndarray]:
    """Return operands of a frame: at random, a share of the numbers hard ones."""
    rng = np.random.default_rng(seed)
    numbers = []
    for place, kind in enumerate((F32, F32, F64, F64)):
        dtype = np.dtype(f"f{kind.bits // 8}")
        x = (rng.standard_normal(size) * 4.0 ** rng.integers(-9, 9, size)).astype(dtype)
        wild = rng.random(size) < share
        x[wild] = rng.choice(np.array(hard(kind), dtype), wild.sum())
        bits = rng.integers(0, 2**63, size, dtype=np.uint64).astype(f"u{kind.bits // 8}")
        x[place::7] = bits[place::7].view(dtype)
        numbers.append(x)
    return [*numbers, rng.integers(0, 256, size, np.uint8), rng.integers(0, 1 << 16, size, np.uint16)]


def pairs() -> list[np.ndarray]:
    """Return all pairs of hard numbers, with codes of all kinds beside them."""
    found = []
    for kind in (F32, F64):
        some = np.array(hard(kind), f"f{kind.bits // 8}")
        found += [x.ravel() for x in np.meshgrid(some, some)]
    size = max(x.size for x in found)
    found = [np.resize(x, size) for x in found]
    count = np.arange(size)
    return [*found, count.astype(np.uint8), (count * 257).astype(np.uint16)]
