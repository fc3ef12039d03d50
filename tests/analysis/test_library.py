"""Every function of the library in every format and mode: values, errors of operations, bounds."""

import math
from fractions import Fraction
from functools import lru_cache
from zlib import crc32

import numpy as np
import pytest

from mcfsim.analysis.analyse import analyse
from mcfsim.analysis.rounded_run import run
from mcfsim.analysis.truth import of_program
from mcfsim.compile.program import Register
from mcfsim.kernels.elementary import FUNCTIONS
from mcfsim.oracle import OracleArithmetic
from mcfsim.oracle.functions import enclosure
from mcfsim.random import RandomWords
from mcfsim.rounding import Mode, Rounding
from tests.analysis.algorithms import waves
from tests.analysis.test_attribution import question
from tests.functions.cases import RUN, TRIED, Case, Within, drawn, flat, hostile, mapped
from tests.kernels.test_stochastic import by_definition

pytestmark = pytest.mark.slow

#: What the library's functions use, and the elementary functions that they do not.
SUBJECTS = {name: (RUN[name], case) for name, case in TRIED.items()}
SUBJECTS["waves"] = waves, Case(None, (Within(-2, 2), Within(-1, 1)))
FORMATS = ("bfloat16", "float16", "tf32", "float8_e4m3fn", "float8_e5m2")
#: Each function in each format and in each mode, half of their combinations.
CASES = [
    (name, fmt, mode)
    for subject_place, name in enumerate(SUBJECTS)
    for place, fmt in enumerate((*FORMATS, *(("float32",) if name.startswith("FPBench") else ())))
    for mode in [*Mode][(subject_place + place) % 2 :: 2]
]
#: Of posits no stochastic rounding is defined here. Their tables take ten seconds.
CASES += [
    pytest.param("waves", "posit16", mode, marks=pytest.mark.exhaustive)
    for mode in Mode
    if mode is not Mode.STOCHASTIC
]
#: Operations whose own errors binary64 holds, rounded once: the exact result is a sum of two of its numbers.
ROUNDED_ONCE = ("add", "sub", "mul", "neg", "abs", "sign", "round", "maximum", "minimum", "choose")
SEED, START = 7, 3
#: What binary64 loses below its range.
LEAST = Fraction(1, 2**1074)
TAIL = 1 - Fraction(1, 2**92)


def subject(name, fmt, count, inputs=hostile):
    """Return a function of one tuple, and inputs."""
    function, case = SUBJECTS[name]

    def text(ar, x):
        leaves = iter(x)
        return function(ar, *mapped(lambda _: next(leaves), case.operands), **case.options)

    numbers = flat(inputs(case.operands, fmt, count))
    return text, {"x": tuple(np.where(np.isfinite(x), x, 1) for x in numbers)}  # some ranges are too wide


def exactly(operation, operands):
    """Return fractions between which the exact result of an operation on fractions lies."""
    if operation in FUNCTIONS:
        (x,) = operands
        if x == 0 or (operation == "log" and x == 1):
            value = Fraction(1 if x == 0 and operation in ("exp", "cos") else 0)
            return value, value
        low, high = enclosure(operation, x, 256)
        if operation == "erf" and abs(x) > 8:  # there the oracle's ends are such as round alike
            low, high = min(low, low * TAIL), max(high, high * TAIL)
        return low, high
    match operation, operands:
        case "add", [a, b]:
            value = a + b
        case "sub", [a, b]:
            value = a - b
        case "mul", [a, b]:
            value = a * b
        case "fma", [a, b, c]:
            value = a * b + c
        case "div", [a, b]:
            value = a / b
        case "sqrt", [a]:
            root, unit = math.isqrt(math.floor(a * 4**400)), Fraction(1, 2**400)
            return root * unit, (root + (root**2 != a * 4**400)) * unit
        case "neg", [a]:
            value = -a
        case ("round" | "abs" | "sign") as name, [a]:
            value = {"round": a, "abs": abs(a), "sign": Fraction((a > 0) - (a < 0))}[name]
        case "maximum", [a, b]:
            value = max(a, b)
        case "minimum", [a, b]:
            value = min(a, b)
        case "choose", [s, x, y]:
            value = x if s >= 0 else y
    return value, value


oracle = lru_cache(OracleArithmetic)


def right_value(step, operands, word):
    """Return the result of a step by the oracle, or by the definition of stochastic rounding."""
    fmt, rounding = step.result.format, step.rounding
    if not rounding.stochastic:
        return getattr(oracle(fmt, rounding), step.operation)(*operands)
    # An infinity, NaN or zero that is exact is so in every mode; rounded to zero, no finite number overflows.
    plain = getattr(oracle(fmt, Rounding("toward_zero")), step.operation)(*operands)
    if not all(map(math.isfinite, (plain, *operands))):
        return plain
    low, high = exactly(step.operation, list(map(Fraction, operands)))
    if not low == high == 0:
        found = {by_definition(end, fmt, rounding, word) for end in (low, high)}
        assert len(found) == 1
        plain = found.pop()
    return plain


@pytest.mark.costly("it makes tables of functions and of their rests")
@pytest.mark.sampled(120, each=False)
@pytest.mark.parametrize(("name", "fmt", "mode"), CASES)
def test_values_and_own_errors_are_those_of_the_oracle_and_of_fractions(name, fmt, mode):
    count = 8
    asked = question(*subject(name, fmt, count), fmt, mode)
    given, _ = asked.rounded_inputs(asked.inputs.block(0))
    random = RandomWords(SEED) if asked.rounding.stochastic else None
    found = run(asked.program, given, random=random, start=START)
    for place, step in enumerate(asked.program.steps):
        values, errors = found.values[step.result].tolist(), found.errors[step.result].tolist()
        columns = [
            found.values[x].tolist() if isinstance(x, Register) else [x] * count for x in step.operands
        ]
        words = [0] * count
        if random is not None:  # a result of numbers alone has the word of index 0
            drawn = random.of(place)
            words = (drawn.words(START, count, 16) if step.registers else drawn.words(0, 1, 16)).tolist()
            words *= count // len(words)
        for row, word, value, own in zip(zip(*columns, strict=True), words, values, errors, strict=True):
            right = right_value(step, row, word)
            assert value.hex() == right.hex(), (step.operation, row, value, right)
            if all(map(math.isfinite, (*row, value))):
                check_error(step.operation, list(map(Fraction, row)), Fraction(value), own)


def check_error(operation, operands, value, own):
    """Compare an own error with fractions: all bits, or all but the last ones where it is rounded twice."""
    low, high = exactly(operation, operands)
    error = value - (low + high) / 2
    if math.isinf(own):  # of a function whose value is beyond binary64
        assert error < -(2**1023), (operation, operands, own)
    elif operation in ROUNDED_ONCE:
        assert own == float(error), (operation, operands, own)
    else:
        unsure = abs(error) / 2**50 + (high - low) + LEAST
        assert abs(Fraction(own) - error) <= unsure, (operation, operands, own)


@pytest.mark.costly("it makes tables of functions and of their rests")
@pytest.mark.sampled(105, each=False)
@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("name", SUBJECTS)
def test_errors_are_those_of_mpmath(name, fmt):
    count = 24
    asked = question(*subject(name, fmt, count, drawn), fmt)
    found, (given, _) = asked.block(0), asked.rounded_inputs(asked.inputs.block(0))
    right = of_program(asked, given).error_of(found.computed)
    with np.errstate(all="ignore"):
        # Where shares cancel, the error is their last bits.
        last = 2.0**-50 * sum(np.abs(share) for _, share in found.shares())
        there = np.isfinite(found.error) & np.isfinite(right)
        assert (np.abs(found.error - right) <= 1e-12 * np.abs(right) + last)[there].all()


# -- bounds --------------------------------------------------------------------------------------------------
@pytest.mark.costly("it makes tables of functions and of their rests")
@pytest.mark.sampled(391, each=False)
@pytest.mark.parametrize(("name", "fmt", "mode"), CASES)
def test_no_error_exceeds_what_claims_to_be_a_bound(name, fmt, mode):
    function, inputs = subject(name, fmt, 320)
    results = len(question(function, inputs, fmt, mode).program.outputs())
    report = analyse(
        function, inputs, fmt, rounding=mode, truth=0, output=crc32(f"{name} {fmt} {mode}".encode()) % results
    )
    rows = {row.name: row for row in report.bounds()}
    assert {name for name, row in rows.items() if row.claim == "bound"} == {"running", "interval"}
    for row in rows.values():
        assert row.claim != "bound" or not row.exceeded, row
    assert rows["first order"].claim == "first order"
    with np.errstate(all="ignore"):
        over = np.abs(report.error) / report.columns["first order"] - 1
    small = products(report.rounded.block(0))
    assert not (over[small < 1 / 8] > 1e-10 + 4 * small[small < 1 / 8]).any()


def products(found):
    """Return how much products of errors matter for each input: relatively, on the way and in the end.

    Infinite where a choice turns, which is no matter of first order either.
    """
    own, derivatives = found._forward[1], found.sensitivities
    with np.errstate(all="ignore"):
        first = sum(derivatives[x] * error for x, error in own.items() if x in derivatives)
        matter = np.where(found.turned, np.inf, np.abs(first / found.error - 1))
        for x, error in found.errors.items():
            matter = np.maximum(matter, np.where(error == 0, 0, np.abs(error / found.exact_values[x])))
    return matter
