"""Recorded functions against NumPy; statements judged by a line as by NumPy, the oracle and in fractions."""

import itertools
import operator
from dataclasses import replace
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import pytest

from mcfsim.backends.factory import on_blocks
from mcfsim.compile import choice
from mcfsim.compile.lowering import lower
from mcfsim.compile.objects import is_available
from mcfsim.compile.scalars import encoding
from mcfsim.formats import Format, get_format
from mcfsim.kernels.element.machine import DTYPES, F64, Line, run
from mcfsim.oracle import same
from mcfsim.rounding import Rounding
from mcfsim.theorems import THEOREMS, compiled, findings, verify
from mcfsim.theorems.catalogue.expansions import to_sum
from mcfsim.theorems.claims import relative_error, sum_of
from mcfsim.theorems.exact import Exact
from mcfsim.theorems.judge import applicable, recorded_algorithm, try_block, violating
from mcfsim.theorems.logic import IsValue
from mcfsim.theorems.logic.terms import AtMost, Magnitude, Number, Product, Sum, Word
from mcfsim.theorems.parts import Selection
from mcfsim.theorems.recorded import PredicateRecorder, Recorded, RecordedExact
from mcfsim.theorems.recorded_functions import VERBS
from mcfsim.theorems.statement import Claim, Hypothesis
from mcfsim.theorems.trial import total
from mcfsim.theorems.verification import plan, prepare
from tests.theorems.trying import add, mine

TYPES = {dtype: kind for kind, dtype in DTYPES.items()}


def numbers(dtype):
    """Return numbers of every kind: zeros, ties, ends of ranges and what is next to them, NaN."""
    if dtype.kind == "b":
        return np.array([False, True])
    if dtype.kind == "i":
        info = np.iinfo(dtype)
        few = [0, 1, -1, 2, 7, -1022, -1023, -1100, 1023, 1024, 60]
        return np.array([*few, info.max, info.min, info.min + 1], dtype)
    info = np.finfo(dtype)
    halves = [0.5, 1.5, 2.5, 1 - info.eps / 2, 1 + info.eps, 0.5 - info.eps / 4, 2.0**23 + 0.5, 2.0**52 - 0.5]
    sizes = [0, 1, 2, 3, *halves, info.smallest_subnormal, info.tiny, info.tiny * (1 - info.eps), info.max]
    sizes += [info.tiny / 2, info.max / 2, 2.0**31, 2.0**52, 2.0**53 + 2, 1 / 3, np.inf, np.nan]
    found = np.array(sizes, dtype)
    return np.concatenate([found, -found])


def recorded(function, arrays):
    """Return what the line of a function gives, and where it is in doubt."""
    line = Line()
    recorder = PredicateRecorder(line)
    names = "abc"[: len(arrays)]
    kinds = (TYPES[x.dtype] for x in arrays)
    given = [Recorded(recorder, line.input(*one)) for one in zip(names, kinds, strict=True)]
    results = function(*given)
    results = results if isinstance(results, tuple) else (results,)
    values = (*(x.value for x in results), recorder.doubts())
    *found, doubt = run(line, values, **dict(zip(names, arrays, strict=True)))
    return found, doubt


def compared(function, arrays):
    """Return in how many cases they agree, and in how many there is doubt; None if it is not recorded."""
    with np.errstate(all="ignore"):
        try:
            truth = function(*arrays)
        except TypeError:
            return None
        try:
            found, doubt = recorded(function, arrays)
        except (TypeError, ValueError):  # what no register holds is left to NumPy
            return None
    for ours, right in zip(found, truth if isinstance(truth, tuple) else (truth,), strict=True):
        assert ours.dtype == right.dtype
        wrong = ~(same(ours, right) if ours.dtype.kind == "f" else ours == right) & ~doubt
        assert not wrong.any(), [(*(x[wrong][0] for x in arrays), ours[wrong][0], right[wrong][0])]
    return int((~doubt).sum()), int(doubt.sum())


@pytest.mark.parametrize("function", sorted(VERBS, key=str), ids=lambda function: function.__name__)
def test_a_recorded_function_is_that_of_numpy(function):
    recorded_for = {}
    for dtypes in itertools.product(DTYPES.values(), repeat=function.nin):
        grids = np.meshgrid(*map(numbers, dtypes), indexing="ij")
        counts = compared(function, [grid.ravel() for grid in grids])
        if counts is not None:
            recorded_for[dtypes] = counts
    assert recorded_for
    for sure, doubtful in recorded_for.values():
        assert doubtful <= sure, recorded_for  # it does not doubt everything


def exponent(x):
    return np.where(np.isfinite(x), np.frexp(x)[1], 0)


@pytest.mark.parametrize("dtype", [np.dtype(np.float32), np.dtype(np.float64)])
def test_choices_and_comparisons_with_numbers(dtype):
    x, y = (grid.ravel() for grid in np.meshgrid(numbers(dtype), numbers(dtype)))
    for function in (
        lambda x, y: np.where(x < y, x, y),
        lambda x, y: np.where(np.signbit(x), 0, y),
        lambda x, y: abs(x) - 1.5 >= y * 2,
        lambda x, y: x.astype(np.float64) + y,
        lambda x, y: ~((x == y) & (0 < x)) | (y != 0),  # noqa: SIM300
        lambda x, y: np.where(np.isfinite(x), np.frexp(x)[0], 0),
        lambda x, y: np.ldexp(x.astype(np.float64), exponent(y)),
        lambda x, y: np.multiply(x, y, dtype=np.float64),
        lambda x, y: (x * np.float64(3) + 0.1, x * 0.1 - 2),
        lambda x, y: 1 * (x > y) + 2 * (x < y) - abs(exponent(y)),
        lambda x, y: np.maximum(exponent(x), exponent(y)) - np.minimum(exponent(x), 3),
        lambda x, y: x.view(f"i{x.dtype.itemsize}") & 255,
    ):
        sure, doubtful = compared(function, [x, y])
        assert doubtful < sure


@pytest.mark.parametrize("extreme", [np.minimum, np.maximum])
@pytest.mark.slow
def test_which_zero_numpy_takes_is_in_doubt_and_a_claim_on_it_is_judged_as_numpy_judges_it(extreme):
    """Whichever a processor takes, in formats so small that nothing is recorded, and in others."""
    zeros = np.array([0.0, -0.0], np.float32)
    x, y = zeros[[0, 0, 1, 1]], zeros[[0, 1, 0, 1]]
    found, doubt = recorded(extreme, [x, y])
    assert doubt.tolist() == [False, True, True, False]
    assert np.signbit(found[0])[[0, 3]].tolist() == [False, True]
    for wanted, fmt in ((True, "float6_e3m2fn"), (False, "e5m6")):

        def test(t, wanted=wanted):
            there = (t["a"] == 0) & (t["b"] == 0)
            return ~there | (np.signbit(extreme(t["a"], t["b"])) == wanted)

        certificate = verify(mine(add, test), fmt)
        assert certificate.violations == (np.signbit(extreme(x, y)) != wanted).sum() > 0
        shown = np.float32([float.fromhex(x.hexadecimal) for x in certificate.simplest.operands])
        assert (shown == 0).all()
        assert np.signbit(extreme(*shown)) != wanted


class Judgement(NamedTuple):
    applicable: Any
    failing: Any
    open: Any


def judged(check, extremes=(-np.inf, np.inf)):
    """Return some cases of all parts of a domain, tried block by block, and what a line says of them.

    The first and the last ones of a part are among them. NumPy carries out the line: no LLVM is needed.
    """
    rng, columns = np.random.default_rng(5), []
    for part in check.domain().parts:
        many = min(part.size, 150) // 3
        near = np.r_[0:many, part.size - many : part.size, rng.integers(0, part.size, many)]
        columns.append(part.at(np.unique(near)))
    blocks = [np.concatenate(column) for column in zip(*columns, strict=True)]
    fmt = check.domain().format
    program = recorded_algorithm(check.theorem, fmt, check.rounding)
    ways = [encoding(use, x, "exact") for use, x in zip(program.uses, program.reals(), strict=True)]
    numbers = [*(number for _, given in ways for number in given), *extremes]
    predicates = compiled.Predicates(check.theorem, fmt, check.rounding)
    lowered = predicates(lower(program, tuple(way for way, _ in ways)))
    given = {str(x.constant): block for x, block in zip(lowered.operands, blocks, strict=True)}
    for x, number in zip(lowered.numbers, numbers, strict=False):
        given[str(x.constant)] = np.asarray(number, f"f{x.type.bits // 8}")
    trial = try_block(check.theorem, on_blocks(fmt, check.rounding), blocks)
    return trial, Judgement(*run(lowered.line, lowered.results, **given))


@pytest.mark.parametrize("part", range(9))
@pytest.mark.parametrize(
    ("fmt", "roundings"), [("float8_e4m3fn", ["up", "to_odd"]), ("bfloat16", None), ("float16", None)]
)
@pytest.mark.sampled(27, each=False)
@pytest.mark.slow
def test_the_line_says_what_numpy_says_or_nothing(fmt, roundings, part):
    """Of all statements that say something of a format, a ninth each time."""
    recorded, left_open = set(), []
    for check in plan(None, [fmt], roundings, Selection(limit=1 << 20, samples=1 << 12))[part::9]:
        if check.rounding.stochastic or not check.domain().size:
            continue
        if compiled.recordable(compiled.Predicates(check.theorem, check.domain().format, check.rounding)):
            trial, found = judged(check)
            there = applicable(check.theorem, trial)
            failing, settled = violating(check.theorem, trial, there), ~found.open
            there = np.ones(trial.size, np.bool_) if there is None else there
            np.testing.assert_array_equal(found.applicable, there & settled)
            np.testing.assert_array_equal(found.failing, failing & settled)
            recorded.add(check.theorem.name)
            left_open.append(found.open.mean())
    assert len(recorded) > 9
    assert np.median(left_open) < 1e-3


@pytest.mark.parametrize("name", ["fast_two_sum_unordered_error", "dw_times_dw1", "sqrt_dw"])
@pytest.mark.sampled(3, each=False)
@pytest.mark.slow
def test_errors_that_may_be_the_largest_are_left_open(name):
    check = prepare(name, "bfloat16", "nearest_even", Selection(limit=1 << 20, samples=1 << 10))
    trial, _ = judged(check)
    there = applicable(check.theorem, trial)
    ratio = check.theorem.claim.measure(trial).ratio
    held = np.isfinite(ratio) & trial.finite & (True if there is None else there)
    for share in (0.25, 0.5, 0.999, 1):
        least, most = (share * float(x) for x in (ratio[held].min(), ratio[held].max()))
        _, found = judged(check, (compiled.nearer_zero(least), compiled.nearer_zero(most)))
        beyond = held & ((ratio >= most) | (ratio <= least)) & (ratio != 0)
        assert beyond.any()
        assert found.open[beyond].all()
        assert not found.open.all()


# -- exact numbers ------------------------------------------------------------------------------------------
def edges(rng, size, most):
    """Return integers of so many bits at most, runs of ones and powers of two among them, and zero."""
    bits = rng.integers(0, 53, size)
    n = rng.integers(0, 1 << 53, size) >> bits
    n = np.where(rng.random(size) < 0.2, (np.int64(1) << (53 - bits)) - 1, n)
    n = np.where(rng.random(size) < 0.2, np.int64(1) << (52 - bits), n)
    block = np.where(rng.random(size) < 0.5, -n, n).astype(np.float64)
    last = np.ldexp(1.0, np.maximum(np.frexp(block)[1] - most, 0))
    return np.trunc(block / last) * last


@pytest.mark.parametrize("bits", [20, 26, 27, 53])
@pytest.mark.sampled(4, each=False)
@pytest.mark.costly("all operands of a format")
def test_exact_numbers_are_exact_or_in_doubt(bits):
    rng, line = np.random.default_rng(bits), Line()
    recorder = PredicateRecorder(line)
    x, y, z = (RecordedExact(recorder, line.input(name, F64), 0, 60, bits) for name in "xyz")
    blocks = [edges(rng, 4000, bits) * factor for factor in (128, 1, 1)]
    exact = [list(map(Fraction, block)) for block in blocks]
    for make, long in (  # and whether some results have more than 53 bits
        (lambda a, b, c: a + b, True),
        (lambda a, b, c: a - b - c, True),
        (lambda a, b, c: a * b, 2 * bits > 53),
        (lambda a, b, c: (a + b) * 3, True),
    ):
        made = make(x, y, z).exact()
        numbers, doubt = run(line, (made.value, recorder.doubts()), **dict(zip("xyz", blocks, strict=True)))
        right = [Fraction(v) == make(*case) for v, *case in zip(numbers, *exact, strict=True)]
        assert np.all(doubt | right)
        assert not doubt.all()
        assert doubt.any() == long


@pytest.mark.parametrize("bits", [20, 27, 53])
@pytest.mark.sampled(3, each=False)
@pytest.mark.costly("rationals of many cases")
def test_quotients_of_squares_and_of_sums_are_near_without_doubt(bits):
    """A sum of two exact numbers is rounded once, and squares do not cancel; other sums are in doubt."""

    def square(number):
        return number * number

    rng, line = np.random.default_rng(bits), Line()
    recorder = PredicateRecorder(line)
    x, y, z = (RecordedExact(recorder, line.input(name, F64), 0, 60, bits) for name in "xyz")
    blocks = [edges(rng, 3000, bits) * factor for factor in (128, 1, 1)]
    exact = [list(map(Fraction, block)) for block in blocks]
    for error, reference, certain in (
        (lambda a, b, c: a * a + b * b, lambda a, b, c: c * c + a * a, True),
        (lambda a, b, c: a + b, lambda a, b, c: b - c, True),
        (lambda a, b, c: square(a - b) + c * c, lambda a, b, c: square(b + c), True),
        (lambda a, b, c: a, lambda a, b, c: a - b + c, False),
        (lambda a, b, c: a * a - b * b, lambda a, b, c: a, False),
        (lambda a, b, c: -(a + b), lambda a, b, c: abs(b - c), True),
    ):
        quotient = error(*(pair := (x, y, z))).ratio(reference(*pair)).value
        given = dict(zip("xyz", blocks, strict=True))
        found, doubt = run(line, (quotient, recorder.doubts()), **given)
        assert not (certain and doubt.any())
        assert certain or bits == 20 or doubt.any()
        for case in np.flatnonzero(~doubt).tolist():
            numbers = [column[case] for column in exact]
            over, under = error(*numbers), reference(*numbers)
            if under:
                assert abs(Fraction(found[case]) * under - over) <= abs(over) * Fraction(1, 2**47)
            assert over or under or found[case] == 0


def test_a_sum_of_squares_that_binary64_rounds_is_no_exact_number():
    """Asked for its bits: 1 + 2**-56 is not 1, and no number of four bits."""
    a, b = Word("a", 0), Word("b", 0)
    total = Sum((Product(a, a), Product(b, b)))
    small = AtMost(Magnitude(b), Number(Fraction(1, 1 << 28))) & AtMost(Number(1), a) & IsValue(Product(a, a))
    fmt = Format("", precision=4, emin=-34, emax=34)
    for where, violations in (((Hypothesis(small),), 3920), ((), 1252440)):
        assert verify(mine(add, Claim(IsValue(total)), where=where), fmt).violations == violations


def test_exact_numbers_of_a_line_need_a_range_that_binary64_has():
    line = Line()
    x = RecordedExact(PredicateRecorder(line), line.input("x", F64), -400, 400, 10)
    assert (x * x).unit == -800
    with pytest.raises(TypeError, match="binary64 does not hold"):
        x * x * x
    with pytest.raises(TypeError, match="no number of binary64"):
        x * ((1 << 53) + 1)
    for other in ("1", True, None, np.ones(3)):
        with pytest.raises(TypeError):
            operator.add(x, other)


def test_a_quotient_that_leaves_the_range_of_binary64_is_in_doubt():
    line = Line()
    recorder = PredicateRecorder(line)
    x, y = (RecordedExact(recorder, line.input(name, F64), -900, 900, 10) for name in "xy")
    quotient = x.ratio(y).value
    cases = {(0, 0): 0, (0, 1): 0, (1, 0): np.inf, (3, 4): 0.75, (2.0**-500, 2.0**522): 2.0**-1022}
    cases |= {(2.0**500, 2.0**-523): 2.0**1023}
    left = [(2.0**-501, 2.0**522), (2.0**-800, 2.0**800), (2.0**500, 2.0**-524), (2.0**800, -(2.0**-800))]
    given = np.array([*cases, *left], np.float64).T
    found, doubt = run(line, (quotient, recorder.doubts()), x=given[0], y=given[1])
    assert found[: len(cases)].tolist() == list(cases.values())
    assert doubt.tolist() == [False] * len(cases) + [True] * len(left)


@pytest.mark.slow
def test_a_total_is_the_sum():
    rng = np.random.default_rng(12)
    for many in (1, 2, 3, 7, 1000):
        numbers = np.ldexp(rng.integers(-255, 256, (many, 9)), rng.integers(-20, 20, (many, 9)))
        found = total(Exact.of(row, 8) for row in numbers)
        assert [found.fraction(i) for i in range(9)] == [sum(map(Fraction, column)) for column in numbers.T]
        assert found.bits <= 64  # and not one more for each number


# -- what is not recorded -----------------------------------------------------------------------------------
NOT_OF_SINGLE_CASES = {
    "a reduction": lambda t: t["a"] == np.max(t["a"]),
    "another": lambda t: t["a"] == t["a"].max(),
    "the size": lambda t: np.arange(t.size) < 3,
    "an index": lambda t: t["a"] == t["a"][0],
    "a sort": lambda t: np.sort(t["a"]) == t["a"],
    "a decision": lambda t: t["a"] > 0 if t["a"] > 0 else t["a"] < 0,
    "in place": lambda t: np.abs(t["a"], out=t["a"]) > 0,
    "some cases": lambda t: t.at(slice(0, 1))["a"] > 0,
    "an array beside": lambda t: t["a"] > np.arange(3.0),
    "no truth value": lambda t: t["a"] + t["b"],
    "a sum of cases": lambda t: np.add.reduce(t["a"]) > t["b"],
    "a list": lambda t: np.logical_and.reduce([t["a"] > 0, t["b"] > 0]),
    "a membership": lambda t: t["a"] in [0.0, 1.0],
    "a loss": lambda t: t["a"].astype(np.float16) > 0,
}


def recordable(test):
    predicates = compiled.Predicates(mine(add, test), get_format("bfloat16"), Rounding())
    return compiled.recordable(predicates) is not None


def test_what_does_not_speak_of_single_cases_is_not_recorded():
    assert [what for what, test in NOT_OF_SINGLE_CASES.items() if recordable(test)] == []
    assert recordable(lambda t: t["a"] <= t["a"])


def test_paths_of_stochastic_rounding_are_not_compiled(monkeypatch):
    monkeypatch.setattr(compiled, "_LEAST_RECORDED", 0)
    monkeypatch.setattr(choice._Account, "pays", lambda *_: pytest.fail("asked"))
    check = prepare("two_sum_sr_exact", "float8_e4m3fn", "stochastic")
    predicates = compiled.Predicates(check.theorem, check.format, check.rounding)
    assert compiled.recordable(predicates)  # as of one path
    assert check(0, 1 << 13)["applicable"] > 0


# -- carried out --------------------------------------------------------------------------------------------
CHEAPEST = "fast_two_sum_unordered_error"
NAMES = ("two_sum_any", "two_prod_fma_any", "grow_unordered", CHEAPEST, "div_remainder", "sqrt_dw", "dw_sum")
#: Errors of which few cases exceed the last two.
LESS = relative_error(lambda p: 2 - Fraction(5, 2**p), sum_of("x", "y"))
MIXED = to_sum(lambda p: (Fraction(1, 3 * 4**p), Fraction(2, 5 * 4**p)), "|s| / 3 + 2 S / 5", 2)
CARRIED_OUT = {name: THEOREMS[name] for name in (*NAMES, "expansion_sum")}
CARRIED_OUT["own"] = replace(THEOREMS["dw_plus_fp"], name="own", claim=LESS)
CARRIED_OUT["mixed"] = replace(THEOREMS["dw_sum"], name="mixed", claim=MIXED)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.exhaustive] * (name != CHEAPEST)) for name in CARRIED_OUT]
)
@pytest.mark.slow
@pytest.mark.costly("all operands of a format")
def test_every_way_finds_the_same(name, monkeypatch, cache_folder):
    """What is compiled already would be run without being asked."""
    check = prepare(CARRIED_OUT[name], "bfloat16", "nearest_even", Selection(limit=1 << 20, samples=1 << 14))
    domain = check.domain()
    monkeypatch.setattr(compiled, "LEAST_COMPILED", 0)
    monkeypatch.setattr(compiled, "_LEAST_RECORDED", 0)
    ranges = [
        (first + a, first + min(a + (1 << 14), part.size))
        for first, part in zip(domain.starts(), domain.parts, strict=True)
        for a in {0, part.size // 2}
        if part.size > a
    ]
    terms = any(operand.kind == "sequence" for operand in check.theorem.operands)
    found, recordable = {}, compiled.recordable
    for way in ("integers", "calls", *(["llvm"] if is_available() else [])):
        asked = []

        def pays(account, numbers, spent, *, asked=asked, way=way):
            asked.append(spent)
            return way == "llvm"

        monkeypatch.setattr(choice._Account, "pays", pays)
        monkeypatch.setattr(compiled, "recordable", recordable if way != "integers" else lambda _: None)
        found[way] = [{**check(*unit), "seconds": 0} for unit in ranges]
        assert asked or (terms and way == "integers")  # so few that no loop of the algorithm is asked for
        assert found[way] == found["integers"]
    assert sum(x["applicable"] for x in found["calls"]) > 1000
    assert sum(x["violations"] for x in found["calls"]) > 0 or check.theorem.holds


@pytest.mark.parametrize("left", [0.0, 0.4, 0.9])
def test_a_loop_that_leaves_most_cases_open_is_given_up(left, monkeypatch):
    asked = []

    def judge(blocks, extremes, wanted):
        asked.append(size := blocks[0].size)
        where = np.arange(size) < left * size
        places = np.flatnonzero(where)
        return compiled.CaseCounts(size, size - places.size, 0, [], [places, *(x[places] for x in blocks)])

    monkeypatch.setattr(findings, "Judge", lambda *_: judge)
    monkeypatch.setattr(findings, "_TRUSTED", 1 << 12)
    found, block = findings.Findings(THEOREMS["two_sum_any"], 8), np.ones(1 << 10, np.float32)
    blocks = ((first, [block, block]) for first in range(0, 1 << 15, 1 << 10))
    found.judge(on_blocks(get_format("bfloat16"), Rounding()), blocks)
    assert found.applicable == 1 << 15
    assert (sum(asked) < 1 << 15) == (left > 0.5)
    assert sum(asked) >= 1 << 12
