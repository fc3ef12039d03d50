"""Real scalars by the policy ``float32``: results in fractions, rounded to binary32, then to the format."""

import itertools
import math
from decimal import Decimal
from fractions import Fraction
from functools import cache

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.backends.numpy import NumpyArithmetic
from mcfsim.compile.loops import Loop
from mcfsim.compile.program import Draw, Program, ProgramStep, Register, Scalar
from mcfsim.compile.scalars import by_policy
from mcfsim.compile.tracing import trace
from mcfsim.formats import FORMATS, Format, get_format
from mcfsim.kernels.elementary import FUNCTIONS
from mcfsim.oracle import OracleArithmetic
from mcfsim.protocol import RoundedNumber
from mcfsim.rounding import DETERMINISTIC, Rounding
from tests.kernels.test_stochastic import by_definition as drawn
from tests.oracle.operands import corners, label, random_tuples, values
from tests.shared.formats import by_definition, roundings
from tests.shared.in_single import SINGLE, InSingle, Real

#: Beside 9/10 and 999/1000; halfway between two numbers of binary32, and beside; beyond its ends.
SCALARS = [
    *(0.9, math.nextafter(0.9, 0), -0.999, 1 - 0.999, 1e-8, 1 / 3, Fraction(1, 3), Decimal("-0.1"), 7),
    *(1 + 2.0**-24, 1 + 3 * 2.0**-24, 1 + Fraction(1, 2**24) + Fraction(1, 10**40), 2**60 + 1),
    *(0.0, -0.0, math.inf, -math.inf, math.nan, 1e300, float(2**128 - 2**103), -1e-40, 2.0**-150, 5e-324),
]
WHOLE = [get_format(name) for name in ("float8_e4m3fn", "float8_e5m2")]
HARD = [get_format(name) for name in ("bfloat16", "float16", "float8_e4m3fnuz", "tf32", "posit8", "int8")]
UNSIGNED = Format("unsigned", precision=3, emin=0, emax=2, specials="none", signed=False)
#: Each operation, and where a scalar stands among its operands.
PLACES = [
    *((name, place) for name in ("add", "sub", "mul", "div") for place in (0, 1)),
    *(("fma", place) for place in (0, 1, 2)),
]
WORDS = mcf.RandomWords(5, stream=3)


def beside(name, place, x, y, s):
    """Return the operands of an operation, with a scalar at a place."""
    count = 3 if name == "fma" else 2
    return [*(x, y)[:place], s, *(x, y)[place : count - 1]]


def operations(ar, x, y, s, t):
    """Perform each operation with a scalar at each place, and one with two of them."""
    found = [getattr(ar, name)(*beside(name, place, x, y, s)) for name, place in PLACES]
    return (*found, ar.fma(s, x, t))


def text(ar, x, y, scalars=SCALARS):
    """Perform the operations with each scalar, and the one after the next."""
    pairs = zip(scalars, scalars[2:] + scalars[:2], strict=True)
    return tuple(itertools.chain(*(operations(ar, x, y, s, t) for s, t in pairs)))


@cache
def operands(fmt):
    """Return pairs of values: all, beside others; or of a longer format some that are hard."""
    rng = np.random.default_rng(4)
    if type(fmt) is not Format:
        x = np.asarray(mcf.round_to(rng.normal(size=90) * 2.0 ** rng.integers(-6, 7, 90), fmt))
        x = np.append(x, [0.0, float(fmt.max), float(fmt.lowest), np.nan])
        return x, rng.permuted(x)
    if fmt in WHOLE:
        x = values(fmt)
        return x, rng.permuted(x)
    x, y = random_tuples(fmt, 60, 2, 1)
    return np.concatenate([x, corners(fmt)]), np.concatenate([y, rng.permuted(corners(fmt))])


ENTERED = list(map(SINGLE.round, SCALARS))


@cache
def entering(fmt, flushes):
    """Return the pairs as operations take them, flushed or not."""
    pairs = [
        np.where(np.abs(x) < float(fmt.smallest_normal), np.copysign(0.0, x), x) if flushes else x
        for x in operands(fmt)
    ]
    if not fmt.has_negative_zero:
        pairs = [x + 0.0 for x in pairs]
    return [*zip(*(x.tolist() for x in pairs), strict=True)]


@cache
def row(fmt, flushes, place):
    return text(SINGLE, *entering(fmt, flushes)[place], ENTERED)


def carried_out(fmt, flushes, part):
    """Return the results in binary32 of a part of the pairs."""
    places = range(len(entering(fmt, flushes)))[part]
    rows = [row(fmt, flushes, place) for place in places]
    return [np.array(column) for column in zip(*rows, strict=True)]


def of_result(rounding):
    """Return a rounding of results, which are no operands."""
    return Rounding(rounding.mode, rounding.overflow) if flushing(rounding) else rounding


def flushing(rounding):
    return rounding.underflow == "flush_inputs"


ASKED = [(fmt, rounding) for fmt in [*WHOLE, *HARD, UNSIGNED] for rounding in roundings(fmt)]


@pytest.mark.parametrize(("fmt", "rounding"), ASKED, ids=label)
@pytest.mark.sampled(234, each=False)
@pytest.mark.slow
@pytest.mark.costly("the oracle carries out some ten thousand operations in fractions")
def test_operations_with_scalars_are_rounded_to_binary32_and_then_to_the_format(fmt, rounding, assert_same):
    # Each rounding is asked a sixteenth of the operands, the usual one all.
    part = slice(None) if rounding == Rounding() else slice(ASKED.index((fmt, rounding)) % 16, None, 16)
    made = carried_out(fmt, flushing(rounding), part)
    expected = [by_definition(x, fmt, of_result(rounding)) for x in made]
    given = [x.astype(np.float32)[part] for x in operands(fmt)]
    named = ("x", "y", Scalar("s"), Scalar("t"))
    program = trace(operations, fmt, rounding, operands=named, lines=False)
    loop, called = Loop(program, "float32"), [np.empty(given[0].size, np.float32) for _ in expected]
    each = len(called) // len(SCALARS)
    for place, s in enumerate(SCALARS):
        by_name = {"s": s, "t": SCALARS[(place + 2) % len(SCALARS)]}
        assert loop.on_numpy(program.reals(by_name))(given, called[place * each : (place + 1) * each])
    ar = NumpyArithmetic(fmt, rounding, scalars="float32", compiled=False)
    size = 5000 if rounding == Rounding() else given[0].size  # where stand-ins are looked for
    found = ar.evaluate(text, *(np.resize(x, size) for x in given))
    for one, other, right in zip(found, called, expected, strict=True):
        assert_same(one, np.resize(right, size))
        assert_same(other, right)


@pytest.mark.parametrize("fmt", [*WHOLE, *HARD[:2]], ids=label)
@pytest.mark.sampled(4, each=False)
@pytest.mark.slow
@pytest.mark.costly("the oracle carries out some ten thousand operations in fractions")
def test_results_are_rounded_at_random_by_the_words_of_the_operation(fmt, assert_same):
    rounding = Rounding("stochastic", random_bits=16)
    given = [x.astype(np.float32) for x in operands(fmt)]
    ar, some = NumpyArithmetic(fmt, rounding, scalars="float32", random=WORDS), slice(None, None, 8)
    made = zip(ar.evaluate(text, *given), carried_out(fmt, False, some), strict=True)
    for place, (found, exact) in enumerate(made):
        words = WORDS.of(place).words(0, found.size, 16)[some].tolist()
        right = [
            drawn(Fraction(x), fmt, rounding, word)
            if np.isfinite(x) and x
            else OracleArithmetic(fmt).round(x)
            for x, word in zip(exact.tolist(), words, strict=True)
        ]
        assert_same(found[some], right, exact)


ALONE = dict.fromkeys(("neg", "abs", "sign", "sqrt", "round", *FUNCTIONS), 1)
ALONE |= {"mul": 2, "div": 2, "fma": 3}


ROUNDED = [*map(Rounding, DETERMINISTIC), *roundings(WHOLE[0])[-3::-5]]


@pytest.mark.parametrize(
    ("fmt", "rounding"), [(x, y) for x in (*WHOLE, *HARD) for y in ROUNDED if y in roundings(x)], ids=label
)
@pytest.mark.sampled(96, each=False)
@pytest.mark.slow
def test_numbers_alone_and_selections(fmt, rounding, assert_same):
    """Signs, functions and selections are of the number that binary32 has; a rounding is of the number."""
    truth, ar = InSingle(fmt, rounding), NumpyArithmetic(fmt, rounding, scalars="float32")
    for name, arity in ALONE.items():
        for place in range(len(SCALARS)):
            row = [SCALARS[(place + 5 * i) % len(SCALARS)] for i in range(arity)]
            assert_same(getattr(ar, name)(*row), getattr(truth, name)(*map(Real, row)))
    x, y = (z[::9].astype(np.float32) for z in operands(fmt))
    texts = [lambda ar, x, y, s: ar.maximum(s, x), lambda ar, x, y, s: ar.minimum(x, s)]
    if rounding.underflow == "gradual":
        texts += [lambda ar, x, y, s: ar.choose(x, s, y), lambda ar, x, y, s: ar.choose(s, x, y)]
    exact = NumpyArithmetic(fmt, rounding)
    for select, s in itertools.product(texts, SCALARS):
        assert_same(select(ar, x, y, s), select(exact, x, y, SINGLE.round(s)), x, y)
    left = [ar.evaluate(lambda _, x, s: (x, s), x, s)[1][0] for s in SCALARS]
    assert_same(left, [truth.evaluate(lambda _, s: s, Real(s)) for s in SCALARS])


@pytest.mark.parametrize("mode", ["up", "nearest_even"])
@pytest.mark.parametrize("underflow", ["gradual", "flush_inputs"])
def test_results_of_numbers_alone_are_values(mode, underflow, assert_same):
    """So an operation with no other number is rounded once; whether it is eager, recorded or watched."""
    fmt, rounding = get_format("float16"), Rounding(mode, underflow=underflow)

    def mixed(ar, x, real=lambda s: s):
        tiny, third = ar.mul(real(2.0**-12), real(2.0**-8)), ar.div(real(1), real(3))
        return (
            *(ar.add(x, third), ar.fma(x, third, tiny), ar.mul(tiny, real(2.0**10))),
            *(ar.fma(tiny, x, real(0.9)), ar.fma(real(0.9), third, tiny), ar.sqrt(tiny), ar.neg(third)),
        )

    def functions(ar, x, real=lambda s: s):
        near = ar.sin(ar.mul(real(-(2.0**-6)), real(2.0**-7)))  # which is its operand, if rounded to binary32
        return near, ar.maximum(x, ar.div(real(1), real(3)))

    x = np.array([1.0, 3.0, -(2.0**-24), 2.0**-13, 1000.0, np.inf], np.float32)
    truth, ar = InSingle(fmt, rounding), NumpyArithmetic(fmt, rounding, scalars="float32", compiled=False)
    for text in (mixed, functions):
        right = [np.array(z) for z in zip(*(text(truth, row, Real) for row in x.tolist()), strict=True)]
        program = trace(text, fmt, rounding, operands=("x",), lines=False)
        called = [np.empty(x.size, np.float32) for _ in right]
        assert Loop(program, "float32").on_numpy(program.reals())([x], called)
        watched = (mcf.Meter(ar).evaluate(text, x),) if text is mixed else ()
        for one, other in zip(
            [*ar.evaluate(text, x), *called, *itertools.chain(*watched)], right * 3, strict=False
        ):
            assert_same(np.broadcast_to(one, x.shape), other, x)


@pytest.mark.parametrize("fmt", ["float32", "float64", "posit32", "float8_e8m0fnu"])
def test_what_binary32_does_not_hold_and_binary32_itself_round_scalars_first(fmt, assert_same):
    x = np.asarray(mcf.round_to(np.exp2(np.arange(-9.0, 9)), fmt))
    ars = [mcf.arithmetic(fmt, scalars=policy) for policy in ("float32", "rounded")]
    for s in (0.9, Fraction(1, 3), 1e-300, 7):
        for name in ("mul", "add", "div"):
            assert_same(*(getattr(ar, name)(x, s) for ar in ars))
        assert_same(*(ar.exp(s) for ar in ars))


def test_a_program_keeps_its_scalars_and_draws_in_order():
    fmt, at_random = FORMATS["bfloat16"], Rounding("stochastic")
    x, s, results = Register("x", fmt), Scalar("s"), [Register(name, fmt) for name in "abcde"]
    steps = [
        ProgramStep("mul", at_random, (x, s), results[0], draw=Draw(0, 0)),
        ProgramStep("add", at_random, (results[0], x), results[1], draw=Draw(0, 1)),
        ProgramStep("fma", at_random, (0.5, x, -s), results[2], "line", Draw(0, 2)),
        ProgramStep("maximum", at_random, (results[2], 1.0), results[3]),
        ProgramStep("div", Rounding("up", underflow="flush_inputs"), (x, s), results[4], draw=None),
    ]
    program = Program("text", (x,), ("s",), tuple(steps), tuple(results), (3,))
    made = by_policy(program, "float32")
    assert made.reals({"s": 3.0}) == program.reals({"s": 3.0}) == [3.0, 0.5, -3.0, 1.0, 3.0]
    assert list(made.words) == list(program.words)
    assert [str(step) for step in made.steps] == [
        "x_float32 = round(x)",
        "a_float32 = mul(x_float32, s)",
        "a = round(a_float32)",
        "b = add(a, x)",
        "c_float32 = fma(0.5, x_float32, -s)",
        "c = round(c_float32)",
        "d = maximum(c, 1)",
        "x_bfloat16 = round(x)",
        "x_bfloat16_float32 = round(x_bfloat16)",
        "e_float32 = div(x_bfloat16_float32, s)",
        "e = round(e_float32)",
    ]
    assert [str(step.rounding.underflow) for step in made.steps[-4:]] == ["flush_inputs", *["gradual"] * 3]
    assert [step.text for step in made.steps if step.text] == ["line"] * 2
    assert by_policy(made, "float32").steps == made.steps


def test_a_result_of_numbers_alone_is_recorded_as_a_value():
    half, third = (RoundedNumber(x, np.float32) for x in (0.5, 1 / 3))
    program = trace(lambda ar, x: (ar.add(x, half), ar.add(x, third)), "bfloat16", operands=("x",))
    steps = [str(step) for step in program.steps]
    assert steps == ["t1 = round(0.5)", "t2 = add(x, t1)", "t3 = add(x, 0.333333)"]
