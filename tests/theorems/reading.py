"""Cases at random, with results right and wrong, and what each interpreter of propositions says of them."""

import random
from fractions import Fraction

import numpy as np

from mcfsim.backends.block_arithmetic import BlockArithmetic
from mcfsim.compile.program import flat
from mcfsim.formats import Format
from mcfsim.kernels.carriers import carrier_of
from mcfsim.kernels.element.machine import F32, F64, Line, run
from mcfsim.oracle import round_fraction
from mcfsim.rounding import Mode, Rounding
from mcfsim.theorems.compiled import RecordedTrial, _OnLine, _truth
from mcfsim.theorems.judge import structured, try_block
from mcfsim.theorems.logic.on_arrays import holds
from mcfsim.theorems.logic.on_numbers import Case
from mcfsim.theorems.operands import belongs, finite_values, unbounded
from mcfsim.theorems.paths import Paths
from mcfsim.theorems.recorded import PredicateRecorder, Recorded
from mcfsim.theorems.solver.unknown_numbers import Comparison, Conjunction, UnknownArithmetic, UnknownNumber
from mcfsim.theorems.trial import Trial

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
            self.give(number, call.algorithm(self.nearest, *map(self.of, call.operands))[i])
        return self[name]

    def of(self, x: UnknownNumber):
        (((name, _), c),) = x.value.terms
        return c * self[name] * UNIT

    def give(self, name, value):
        for part, number in zip(("", ".first", ".last"), (value, *bits(value)), strict=True):
            units = number / UNIT
            assert units.denominator == 1
            self[name + part] = units.numerator

    def meet(self, formula):
        return formula_holds(formula, self, self.p)


def formula_holds(formula, values, p):
    """Return whether a formula is true for given unknowns and p."""
    if not isinstance(formula, Comparison):
        parts = (formula_holds(part, values, p) for part in formula.parts)
        return all(parts) if isinstance(formula, Conjunction) else any(parts)
    form = formula.form.primitive
    sign = sum(int(c) * values[name] << p * (form.powers.stop - 1 - k) for (name, k), c in form.terms)
    return sign > 0 if formula.strict else sign >= 0


def bits(value):
    """Return the powers of two of the first and the last bit that is not zero."""
    if value == 0:
        return UNIT, ABOVE
    n, d = abs(value.numerator), value.denominator
    return Fraction(1 << (n.bit_length() - 1), d), Fraction(n & -n, d)


def name_of(x: UnknownNumber):
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
    some = (top, 2 * top - 1, top + 1, draw.randrange(top, 2 * top), draw.randrange(1, top + 1))
    significand = draw.choice(some)
    return draw.choice((1, -1)) * significand * Fraction(2) ** draw.randint(-2 * p - 3, 2 * p + 3)


def unknowns_of(question, draw: random.Random, p):
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


def formats_of(theorem):
    """Return formats on which a statement is read: small ones, so that their ends and ties are met often."""
    least = max(theorem.precision, 2)
    if theorem.range == "unbounded":
        return [unbounded(least), unbounded(least + 2)]
    return [Format("", precision=p, emin=-p - 4, emax=p + 4) for p in (least, least + 1, least + 3)]


def propositions(theorem):
    return [*(hypothesis.said for hypothesis in theorem.where), theorem.claim.said]


# -- operands and results -----------------------------------------------------------------------------------
def operands_of(theorem, fmt, draw, count):
    blocks = []
    for operand in theorem.operands:
        if not operand.paired:
            blocks += [_values(fmt, draw, count) for _ in range(operand.components)]
            continue
        high = _values(fmt, draw, count)
        depth = np.array([draw.choice((0, 0, 1, 2, fmt.precision)) for _ in range(count)])
        half = np.frexp(high.astype(np.float64))[1] - 1 - fmt.precision
        few = _values(unbounded(fmt.precision), draw, count, near=0).astype(np.float64)
        few = np.ldexp(few, half - depth - 1)
        low = _on_grid(fmt, few.astype(carrier_of(fmt)))
        fits = (high != 0) & belongs(operand, (high, low), fmt)
        blocks += [high, np.where(fits, low, low.dtype.type(0))]
    return blocks


def _values(fmt, draw, count, near=None):
    """Return finite values: of a small format any, or of exponents near zero."""
    p, carrier = fmt.precision, carrier_of(fmt)
    if near is None and fmt.emax < 30:
        values = finite_values(fmt)
        few = values[[draw.randrange(values.size) for _ in range(6)]]
        # Some come again, for equal ones and differences.
        return np.array([draw.choice((draw.choice(few), draw.choice(values))) for _ in range(count)])
    reach, top = (2 * p + 3 if near is None else near), 1 << (p - 1)
    numbers = (
        draw.choice((0, *8 * (1, -1)))
        * draw.choice((top, 2 * top - 1, draw.randrange(top, 2 * top)))
        * 2.0 ** (draw.randint(-reach, reach) - p + 1)
        for _ in range(count)
    )
    return np.array(list(numbers), carrier)


def _on_grid(fmt, block):
    """Return numbers as values of the format; infinities and NaN as they are."""
    finite = np.isfinite(block)
    nearest = BlockArithmetic(fmt, Rounding(), "exact").round(np.where(finite, block, block.dtype.type(0)))
    return np.where(finite, nearest, block)


def trial_of(theorem, fmt, rounding, draw, count):
    ar = BlockArithmetic(fmt, rounding, "exact")
    with np.errstate(all="ignore"):
        return try_block(theorem, ar, operands_of(theorem, fmt, draw, count))


def altered(trial, draw, share=0.4, finite=False):
    """Return a trial with other results: neighbours, operands, zeros, ends of the range, infinities, NaN."""
    fmt, size = trial.format, trial.results[0].size
    given, made = flat(trial.operands), [np.array(result) for result in trial.results]
    ends = (0.0, float(fmt.max), float(fmt.smallest_subnormal))
    beyond = () if finite else (np.inf, -np.inf, np.nan)
    for element in range(size):
        for result in made:
            if draw.random() < share:
                x, many = result[element], np.finfo(result.dtype).nmant + 1
                ulp = np.spacing(x) * 2.0**many
                near = (-x, x + ulp / 2.0**fmt.precision, x - ulp / 2.0 ** (fmt.precision + 1))
                others = draw.choice(made)[element], draw.choice(given)[element]
                result[element] = draw.choice((*near, *others, *ends, *beyond))
    with np.errstate(all="ignore"):
        results = tuple(_on_grid(fmt, result) for result in made)
    if finite:
        results = tuple(np.where(np.isfinite(result), result, result.dtype.type(0)) for result in results)
    if isinstance(trial, Paths):
        paths = {"whose": trial.whose, "probability": trial.probability}
        return Paths(trial.ar, trial.names, trial.operands, results, **paths)
    return Trial(trial.ar, trial.names, tuple(map(_bare, trial.operands)), results)


def _bare(operand):
    return tuple(operand) if isinstance(operand, tuple) else operand


# -- readings -----------------------------------------------------------------------------------------------
def by_arrays(said, trial):
    with np.errstate(all="ignore"):
        return trial.throughout(holds(said, trial))


def by_fractions(theorem, said, trial):
    return np.array([case.holds(said) for case in cases_of(theorem, trial)])


def cases_of(theorem, trial):
    whose = trial.whose if isinstance(trial, Paths) else np.arange(trial.size)
    starts = np.flatnonzero(np.diff(whose, prepend=-1))
    for start, stop in zip(starts, [*starts[1:], whose.size], strict=True):
        pairs = zip(theorem.operands, trial.operands, strict=True)
        words = {x.name: [Fraction(float(block[start])) for block in flat(given)] for x, given in pairs}
        paths = []
        for path in range(start, stop):
            share = trial.probability.fraction(path) if isinstance(trial, Paths) else Fraction(1)
            paths.append((share, [_number(block[path]) for block in trial.results]))
        yield Case(trial.format, trial.rounding, words, paths)


def _number(x):
    return Fraction(float(x)) if np.isfinite(x) else float(x)


def by_line(theorem, said, trial):
    """Return what a recorded line says, a truth value a case, and where it leaves that open."""
    line, fmt = Line(), trial.format
    recorder = PredicateRecorder(line)
    blocks = [*flat(trial.operands), *trial.results]
    kind = F32 if carrier_of(fmt) == np.float32 else F64
    names = [f"x{place}" for place in range(len(blocks))]
    taken = [Recorded(recorder, line.input(name, kind), fmt) for name in names]
    count = theorem.components
    ar = _OnLine(fmt, trial.rounding, clean=True)
    operands = structured(theorem.operands, taken[:count])
    recorded = RecordedTrial(ar, trial.names, operands, tuple(taken[count:]))
    with np.errstate(all="ignore"):
        held = _truth(holds(said, recorded))
    return run(line, (held, recorder.doubts()), **dict(zip(names, blocks, strict=True)))


def by_solver(question, trial, ties):
    """Yield of each case what the solver's formulas say: what is supposed, and what is claimed."""
    ar = UnknownArithmetic()
    operands = [ar.operand(operand) for operand in question.operands]
    results = [ar.number(f"result {place}") for place in range(len(trial.results))]
    supposed, claimed = question.read(ar, operands, results)
    for case in range(trial.size):
        values = {}
        for operand, given in zip(question.operands, trial.operands, strict=True):
            words = [Fraction(float(block[case])) for block in flat(given)]
            names = [f"{operand.name}h", f"{operand.name}l"] if operand.paired else [operand.name]
            values |= dict(zip(names, words, strict=True))
        values |= {f"result {i}": Fraction(float(block[case])) for i, block in enumerate(trial.results)}
        assigned = Assigned(ar, values, trial.format.precision, ties)
        yield assigned.meet(supposed), assigned.meet(claimed)
