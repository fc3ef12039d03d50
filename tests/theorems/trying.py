"""Statements tried in one go, on a domain or on tables of operands; and rationals to judge them by."""

from fractions import Fraction

import numpy as np

from mcfsim.backends.block_arithmetic import BlockArithmetic
from mcfsim.eft import two_sum
from mcfsim.formats import get_format
from mcfsim.kernels.carriers import carrier_of
from mcfsim.oracle import OracleArithmetic
from mcfsim.rounding import Rounding
from mcfsim.theorems import Theorem, claim, exact_sum, value
from mcfsim.theorems.domain import cover
from mcfsim.theorems.findings import Findings
from mcfsim.theorems.judge import applicable, structured, try_block, violating
from mcfsim.theorems.operands import finite_values
from mcfsim.theorems.parts import Part, Selection
from mcfsim.theorems.retry import is_of_kind, results_of, trial_of
from tests.shared.rationals import floor_log2

PAIR = (value("a"), value("b"))


def mine(algorithm=two_sum, said=None, operands=PAIR, **facts):
    """Return a statement of one's own, whose claim may be a test; by default that a sum is exact."""
    said = claim("it is so", said) if callable(said) else said or exact_sum()
    return Theorem("mine", algorithm, operands, said, **facts)


def add(ar, a, b):
    return ar.add(a, b)


def class_of(fmt, e):
    """Return the numbers of a format with an exponent, or its subnormal numbers and zeros below `emin`."""
    values = finite_values(fmt)
    low = np.abs(values) < 2.0**fmt.emin
    return values[low] if e < fmt.emin else values[~low & (np.frexp(values)[1] - 1 == e)]


def text_at_random(draw, operands, arity, constants=(0.05, 3, -1.25, 0.0, 60)):
    """Return a text that carries out random steps on the numbers that it has, some with a constant."""
    steps = []
    for count in range(operands, operands + draw.randint(1, 6)):
        operation = draw.choice(list(arity))
        places = [draw.randrange(count) for _ in range(arity[operation])]
        steps.append((operation, places, draw.choice(constants)))

    def text(ar, *numbers):
        for operation, places, constant in steps:
            given = [numbers[place] for place in places]
            if operation == "scale":
                made = ar.mul(*given, constant)
            elif operation == "divided":
                made = ar.div(*given, constant or 2.0)
            else:
                made = getattr(ar, operation)(*given)
            numbers += (made,)
        return numbers[operands:]

    return text


def on_parts(theorem, fmt, rounding, parts):
    ar, found = BlockArithmetic(fmt, rounding, "exact"), Findings(theorem, fmt.precision)
    for part in parts:
        for first, blocks in part.blocks(0, part.size):
            found.look_at(first, try_block(theorem, ar, blocks))
    return found


def on_tables(theorem, fmt, mode, *tables):
    carrier = carrier_of(fmt)
    part = Part("complete", "", tuple((np.asarray(table, carrier),) for table in tables))
    return on_parts(theorem, fmt, rounding_of(theorem, mode), [part])


def on_domain(theorem, fmt, mode):
    fmt, rounding = get_format(fmt), rounding_of(theorem, mode)
    return on_parts(theorem, fmt, rounding, cover(theorem, fmt, rounding, Selection("all")).parts)


def on_core(theorem, fmt, mode):
    """Try a statement on the core, which a small format would not be worth, and on nothing beside it."""
    rounding = rounding_of(theorem, mode)
    return on_parts(theorem, fmt, rounding, core_of(theorem, fmt, rounding))


def core_of(theorem, fmt, rounding):
    """Return the operands that stand for all by the reductions, without those that are tried to make sure."""
    parts = cover(theorem, fmt, rounding, few=0).parts
    return [part for part in parts if part.kind not in ("spread", "sample")]


def constant(found):
    return 0 if found.worst is None else found.theorem.claim.bound.size(found.worst[0], found.precision)


def last_bit(x):
    """Return the power of two of the last bit of a number that is not zero."""
    n, d = Fraction(x).as_integer_ratio()
    return Fraction(n & -n, d)


def bits_of(x):
    """Return how many bits a rational's significand has from its first to its last one."""
    return (abs(x) / last_bit(x)).numerator.bit_length() if x else 0


class Rationals:
    def __init__(self, fmt):
        self.fmt = fmt
        self.quantum = Fraction(2) ** (fmt.emin - fmt.precision + 1)
        self.numbers = [float(x) for x in finite_values(fmt) if not (x == 0 and np.signbit(x))]
        self.values = set(map(Fraction, self.numbers))

    def ulp(self, x):
        e = self.fmt.emin if x == 0 else max(floor_log2(x), self.fmt.emin)
        return Fraction(2) ** (e - self.fmt.precision + 1)


def by_oracle(theorem, fmt, rounding, case):
    """Return whether a case of exact numbers meets the hypotheses and fails the claim, run by the oracle.

    Stochastic results are for no oracle to repeat: there every path is run.
    """
    numbers = [float(x) for x in case]
    assert [Fraction(x) for x in numbers] == list(case)
    blocks = [np.array([x], carrier_of(fmt)) for x in numbers]
    if rounding.stochastic:
        trial = try_block(theorem, BlockArithmetic(fmt, rounding, "exact"), blocks)
    else:
        truth = OracleArithmetic(fmt, rounding)
        operands = structured(theorem.operands, numbers)
        for operand, words in zip(theorem.operands, operands, strict=True):
            assert is_of_kind(operand, words, fmt), (operand, words)
        trial = trial_of(theorem, truth, [numbers], [results_of(theorem, truth, numbers)])
    there = applicable(theorem, trial)
    return (there is None or bool(there[0])) and bool(violating(theorem, trial, there)[0])


def rounding_of(theorem, mode, **options):
    return Rounding(mode, **{"underflow": theorem.underflow, "rule": theorem.rules[0], **options})


# -- mutants ------------------------------------------------------------------------------------------------
def opposite(ar, name, a, b, *c):
    if name == "fma":
        return ar.fma(a, b, ar.neg(*c))
    return {"add": ar.sub, "sub": ar.add}[name](a, b)


def exchanged(ar, name, *operands):
    return getattr(ar, name)(*reversed(operands))


class Mutant:
    """An arithmetic that carries out its n-th operation in another way, and keeps a list of all.

    The results of those before it may be given: they are as they were without the alteration.
    """

    def __init__(self, ar, place=None, alteration=None, known=()):
        self._ar, self._place, self._alteration, self._known = ar, place, alteration, known
        self.format, self.rounding, self.done, self.results = ar.format, getattr(ar, "rounding", None), [], []

    def __getattr__(self, name):
        def operation(*operands):
            number = len(self.done)
            self.done.append(name)
            if number == self._place:
                result = self._alteration(self._ar, name, *operands)
            elif self._place is not None and number < min(self._place, len(self._known)):
                result = self._known[number]
            else:
                result = getattr(self._ar, name)(*operands)
            self.results.append(result)
            return result

        return getattr(self._ar, name) if name in ("neg", "abs") else operation

    def evaluate(self, function, *operands, **options):
        return function(self, *operands, **options)
