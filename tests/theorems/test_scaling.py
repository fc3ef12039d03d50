"""How algorithms scale and leave the range: what is derived for random ones, against running them."""

import itertools
import random
import tracemalloc
from contextlib import nullcontext
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.backends.block_arithmetic import BlockArithmetic
from mcfsim.compile.program import flat
from mcfsim.formats import Format, get_format
from mcfsim.oracle import FractionArithmetic
from mcfsim.rounding import Mode, Rounding
from mcfsim.theorems import THEOREMS, claim, double_word, relative_error, verify
from mcfsim.theorems.cells import grouped, representatives
from mcfsim.theorems.claims import product_of, quotient_of
from mcfsim.theorems.domain import cover
from mcfsim.theorems.homogeneity import NotHomogeneousError, Scales, scales_of
from mcfsim.theorems.hypotheses import RESULTS_FINITE, ordered
from mcfsim.theorems.judge import RangeWatch, inside, may_leave, try_block
from mcfsim.theorems.logic import Result, Word
from mcfsim.theorems.operands import unbounded
from mcfsim.theorems.parts import Selection
from mcfsim.theorems.statement import Scaling
from mcfsim.theorems.symmetries import try_scaling
from mcfsim.theorems.verification import prepare
from tests.theorems.trying import PAIR, add, class_of, core_of, mine, on_parts, text_at_random

pytestmark = pytest.mark.slow

P = 3
WIDE = Format("", precision=P, emin=-300, emax=300)
BF16 = mcf.get_format("bfloat16")


def so(t):
    return np.ones(t.size, bool)


ARITY = {"add": 2, "sub": 2, "mul": 2, "div": 2, "fma": 3, "neg": 1, "abs": 1}


def homogeneous(count, seed, *, common, fmt=WIDE, mode="nearest_even"):
    """Yield random algorithms that are shown to scale, and what is said of each of their numbers."""
    draw, rng = random.Random(seed), np.random.default_rng(seed)
    arity = ARITY | {"scale": 1, "sqrt": 1, "round": 1}
    while count:
        algorithm, scales = text_at_random(draw, 2, arity), Scales(fmt, Rounding(mode), 2, common)
        try:
            quantities = algorithm(scales, scales.operand(0), scales.operand(1))
        except NotHomogeneousError:
            continue
        count -= 1
        yield rng, algorithm, scales, quantities


def power(quantity, e, f):
    """Return by which power of two a number scales with operands scaled by these."""
    degrees = [int(d) for d in quantity.degrees]
    return degrees[0] * e if len(degrees) == 1 else degrees[0] * e + degrees[1] * f


def _values(rng, exponents, size=40):
    significand = rng.integers(4, 8, size) / 4 * rng.choice([-1, 1], size)
    return np.ldexp(significand, exponents)


@pytest.mark.parametrize("mode", [Mode.NEAREST_EVEN, Mode.UP, Mode.TO_ODD])
@pytest.mark.parametrize("common", [True, False])
@pytest.mark.sampled(6, each=False)
def test_what_is_said_of_each_number_is_so(common, mode):
    """How large it is and how fine; how it scales with its operands; and that they are negated with it."""
    wide, seen, odd = BlockArithmetic(WIDE, Rounding(mode), "exact"), 0, [0, 0]
    for rng, algorithm, scales, quantities in homogeneous(150, 1, common=common, mode=mode):
        e = rng.integers(-6, 7, (2, 40))
        if common:
            e[1] = e[0]
        a, b = _values(rng, e[0]), _values(rng, e[1])
        f, g = (7, 7) if common else (5, -9)
        with np.errstate(all="ignore"):
            results = algorithm(wide, a, b)
            scaled = algorithm(wide, np.ldexp(a, f), np.ldexp(b, g))
            negated = [algorithm(wide, -a, -b), algorithm(wide, -a, b)]
        for result, again, found in zip(results, scaled, quantities, strict=True):
            there = np.isfinite(result) & (result != 0)
            size, at = np.abs(result[there]), power(found, *e)[there]
            assert not (found.zero and size.size)
            assert np.all(size >= np.ldexp(1.0, at + found.low))
            assert np.all(size <= np.ldexp(1.0, at + found.top))
            units = np.ldexp(size, -(at + found.unit))
            assert np.all(units == np.floor(units))
            np.testing.assert_array_equal(again, np.ldexp(result, power(found, f, g)))
            seen += size.size > 0
        for each, said in enumerate((scales.odd, scales.odd_in_each)):
            said &= mode is not Mode.UP  # which is no mode for negated operands
            odd[each] += said
            for x, y in zip(results, negated[each], strict=True) if said else ():
                np.testing.assert_array_equal(np.abs(x), np.abs(y))
    assert seen > 300
    assert common or mode is Mode.UP or min(odd) > 20


@pytest.mark.parametrize(("magnitude", "odd"), [(True, False), (False, True)])
def test_a_root_of_what_negating_all_operands_negates_is_not_odd(magnitude, odd):
    def root(ar, a, b):
        return ar.sqrt(ar.mul(a, ar.abs(b) if magnitude else b))

    assert scales_of(root, PAIR, WIDE, Rounding(), common=True).odd == odd


def mul(ar, a, b):
    return ar.mul(a, b)


#: Whether it scales with a common power of two, and with one of each operand.
SCALING = [
    (add, True, False),
    (mul, True, True),
    (lambda ar, a, b: ar.add(a, 1.0), False, False),
    (lambda ar, a, b: ar.add(a, 0.0), True, True),
    (lambda ar, a, b: ar.add(ar.mul(a, b), a), False, False),
    (lambda ar, a, b: ar.fma(a, 0.5, b), True, False),
    (lambda ar, a, b: ar.fma(a, b, ar.neg(ar.mul(b, a))), True, True),
    (lambda ar, a, b: ar.sub(ar.div(a, b), 1.0), True, False),
    (lambda ar, a, b: ar.sqrt(ar.mul(a, b)), True, False),
    (lambda ar, a, b: ar.sqrt(a), False, False),
]


@pytest.mark.parametrize(("algorithm", "common", "each"), SCALING)
def test_what_scales(algorithm, common, each):
    for fits, shared in ((common, True), (each, False)):
        with nullcontext() if fits else pytest.raises(NotHomogeneousError):
            assert scales_of(algorithm, PAIR, WIDE, Rounding(), common=shared) is not None


@pytest.mark.parametrize("sign", [False, True])
def test_the_sign_of_a_sum_may_be_zero_as_the_sum(sign):
    def divided(ar, a, b):
        divisor = ar.sub(a, b)
        return ar.div(a, ar.sign(divisor) if sign else divisor), ar.div(a, ar.sign(b))

    scales = scales_of(divided, PAIR, WIDE, Rounding(), common=True)
    assert scales.divides_by_sums
    assert [x.nonzero for x in scales.quantities] == ([False] * 2 + [False, True, True])[not sign :]


def test_a_step_that_rounds_up_and_not_with_its_signs_is_tried_on_both_signs():
    """Whatever the mode of the statement: of positive sums, one that is rounded up is no less than exact."""

    def upward(ar, a, b):
        return ar.like(ar.format, Rounding(Mode.UP)).add(a, b)

    a, b = Word("a"), Word("b")
    said = claim(abs(a + b) <= abs(Result(0)))
    theorem = mine(upward, said, scaling="common", where=[ordered("a", "b"), RESULTS_FINITE])
    scales = scales_of(upward, PAIR, WIDE, Rounding(), common=True)
    assert (scales.odd, scales.odd_in_each) == (False, False)
    toy = Format("", precision=3, emin=-14, emax=15)
    assert on_parts(theorem, toy, Rounding(), core_of(theorem, toy, Rounding())).violations


@pytest.mark.parametrize("name", ["posit8", "int8"])
def test_of_steps_in_formats_that_do_not_scale_nothing_is_known(name):
    def through(ar, a, b):
        return ar.mul(ar.like(get_format(name), Rounding()).round(a), b)

    assert scales_of(through, PAIR, WIDE, Rounding()) is None


def test_a_low_word_is_not_near_the_high_one():
    """Their difference does not cancel, and times 2^126 it may overflow."""
    pair = (double_word("x"),)
    (found,) = scales_of(lambda ar, x: ar.sub(*x), pair, WIDE, Rounding()).quantities
    assert found.before >= 2 - Fraction(2) ** (1 - P)
    large = mine(lambda ar, x: ar.mul(ar.sub(*x), 2.0**126), so, pair, range="unbounded", scaling="each")
    assert may_leave(large, unbounded(P))


def test_of_other_algorithms_nothing_is_known():
    for algorithm in (lambda ar, a, b: ar.add(a + b, b), lambda ar, a, b: ar.round(np.maximum(a, b))):
        assert scales_of(algorithm, PAIR, WIDE, Rounding()) is None
    theorem = mine(algorithm, so, scaling="each")
    assert [part.kind for part in cover(theorem, BF16, Rounding()).parts] == ["complete"]


TOY = Format("", precision=P, emin=-10, emax=10)


@pytest.mark.parametrize("mode", [Mode.NEAREST_EVEN, Mode.TOWARD_ZERO, Mode.UP, Mode.NEAREST_AWAY])
@pytest.mark.sampled(4, each=False)
def test_cells_are_as_those_that_stand_for_them(mode):
    """Every pair of exponents has one among the representatives where all numbers are the same, scaled."""
    ar = BlockArithmetic(TOY, Rounding(mode), "exact")
    classes = np.arange(TOY.emin - 1, TOY.emax + 1)
    fewer = 0
    for _, algorithm, scales, quantities in homogeneous(2, 4, common=False, fmt=TOY, mode=mode):
        chosen, _ = representatives(*grouped(classes, TOY, scales))

        def normalised(cell, algorithm=algorithm, quantities=quantities):
            """Return all numbers of a cell, each divided by the power of two that it scales with."""
            a, b = (x.ravel() for x in np.meshgrid(*(class_of(TOY, e) for e in cell), indexing="ij"))
            with np.errstate(all="ignore"):
                results = algorithm(ar, a, b)
            pairs = zip(results, quantities, strict=True)
            scaled = (np.ldexp(r.astype(float), -power(q, *cell)) for r, q in pairs)
            return tuple(tuple(np.nan_to_num(x, nan=-7).tolist()) for x in scaled)

        known = {normalised(cell) for cell in chosen.tolist()}
        for cell in itertools.product(range(TOY.emin, TOY.emax + 1), repeat=2):
            assert normalised(cell) in known
        fewer += len(chosen) < classes.size**2
    assert fewer > 0


# -- statements that declare what is not so -----------------------------------------------------------------
PAIRED = (double_word("x"), double_word("y"))
ROOT, FIRSTS = (lambda ar, a, b: ar.sqrt(ar.mul(a, b))), (lambda ar, x, y: ar.mul(x[0], y[0]))
DIFFER = "hypotheses or claim differ"
#: Algorithm, test, reduction, and what is wrong with it.
INVALID = {
    "adds unlike powers": (lambda ar, a, b: ar.add(ar.mul(a, b), a), so, "each", "fma|add combines"),
    "adds a constant": (lambda ar, a, b: ar.add(a, 1.0), so, "common", "add combines"),
    "claims an absolute bound": (mul, lambda t: t.results[0] < 4, "each", DIFFER),
    "claims an order": (mul, lambda t: t["a"] < t["b"], "each", DIFFER),
    "claims what one large operand gives": (add, lambda t: t.results[0] < 1000, "common", DIFFER),
    "takes the root of odd powers": (ROOT, so, "each", "sqrt takes"),
    "adds words": (lambda ar, x, y: ar.add(ar.mul(x[0], y[0]), y[1]), so, "each", ""),
    "claims an order of words": (FIRSTS, lambda t: t["x"][0] < t["y"][0], "each", ""),
}


@pytest.mark.parametrize("what", INVALID)
@pytest.mark.parametrize("fmt", ["bfloat16", "float16"])
@pytest.mark.sampled(4)
def test_a_reduction_that_is_not_valid_is_refused(what, fmt):
    algorithm, test, scaling, words = INVALID[what]
    operands, reach = (PAIRED, "unbounded") if what.endswith("words") else (PAIR, "bounded")
    theorem = mine(algorithm, test, operands, scaling=scaling, range=reach)
    with pytest.raises(ValueError, match=f"scaling='{scaling}' is not valid for 'mine'.*{words}"):
        verify(theorem, fmt, samples=100, limit=1 << 20)


def test_a_claim_that_signs_change_is_tried_on_both_signs():
    theorem = mine(add, lambda t: t.results[0] >= t["b"], scaling="common")
    assert not any("sign" in text for text in cover(theorem, BF16, Rounding()).reductions)
    # Even by the core alone, without the operands that are tried to make sure.
    toy = Format("", precision=3, emin=-14, emax=15)
    parts = core_of(theorem, toy, Rounding())
    assert on_parts(theorem, toy, Rounding(), [part for part in parts if part.kind == "core"]).violations


@pytest.mark.parametrize("fmt", ["float16", "float32"])
@pytest.mark.sampled(2, each=False)
def test_trials_of_a_statement_that_supposes_many_bits_list_no_more_operands_than_fit(fmt):
    """Low words of all depths below significands of 14 bits would be billions."""
    check, fmt = prepare("dw_div_dw3", fmt, Rounding(), Selection(samples=1, limit=1)), get_format(fmt)
    tracemalloc.start()
    try:
        assert check.refusal() is None  # which tries how the statement scales
        assert tracemalloc.get_traced_memory()[1] < 1 << 29
    finally:
        tracemalloc.stop()


# -- unbounded exponents: the range of the format that stands for them is not the statement's ---------------
#: Of one operation: |RN(t) - t| <= u |t|.
OPERATIONS = {
    "mul": (mul, relative_error(1, product_of("a", "b"), unit=1)),
    "div": (lambda ar, a, b: ar.div(a, b), relative_error(1, quotient_of("a", "b"), unit=1)),
}


def stated(what, **facts):
    algorithm, about = (what, lambda t: t.finite) if callable(what) else OPERATIONS[what]
    return mine(algorithm, about, range="unbounded", **facts)


@pytest.mark.parametrize("fmt", ["float8_e4m3fn", "float8_e5m2", "bfloat16", "float32"])
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.sampled(3)
def test_errors_of_one_operation_are_as_the_definition_says(operation, fmt):
    for scaling in ("none", "each"):
        certificate = verify(stated(operation, scaling=scaling), fmt, samples=20_000, limit=1 << 22)
        assert certificate.holds, (scaling, str(certificate))
        assert certificate.worst.constant != "0/1"


@pytest.mark.parametrize("squarings", [4, 5, 12])
def test_what_overflows_where_nothing_can_is_not_tried_and_a_division_by_zero_is_none(squarings):
    def power(ar, a, b):
        for _ in range(squarings):
            a = ar.mul(a, a)
        return ar.mul(a, b)

    certificate = verify(stated(power), "bfloat16", samples=4000)
    assert certificate.holds
    assert certificate.applicable < certificate.tried
    divided = stated(lambda ar, a, b: ar.div(a, ar.sub(b, b)))
    assert verify(divided, "bfloat16", samples=99).verdict == "refuted"


def test_the_exponents_of_the_format_are_no_matter():
    formats = mcf.Format("wide", precision=8, emin=-500, emax=500), mcf.get_format("bfloat16")
    said = [theorem for theorem in THEOREMS.values() if theorem.range == "unbounded"]
    for theorem in (stated("mul", scaling="each"), *said[::3]):
        if theorem.precision <= 8:
            domains = [cover(theorem, fmt, Rounding(), Selection(limit=4000)) for fmt in formats]
            one, other = ((d.covers, [(x.kind, x.text, x.size) for x in d.parts]) for d in domains)
            assert one == other, theorem.name


@pytest.mark.parametrize("texts", [60, pytest.param(1500, marks=pytest.mark.exhaustive)])
def test_what_stays_in_range_is_as_with_unbounded_exponents(texts):
    """Inside the range, results are those of unbounded exponents; outside, some operation's is another."""
    draw, p = random.Random(texts), 4
    fmt = mcf.Format("narrow", precision=p, emin=-9, emax=9)
    ar, exactly = BlockArithmetic(fmt, Rounding(), "exact"), FractionArithmetic(p)
    seen = {True: 0, False: 0}

    def number():
        return draw.choice((1, -1)) * draw.randrange(8, 16) * 2.0 ** draw.randint(-9, 3)

    for _ in range(texts):
        algorithm = text_at_random(draw, 3, ARITY)
        numbers = [[number() for _ in range(40)] for _ in range(3)]
        watch = RangeWatch(ar, 40)
        with np.errstate(all="ignore"):
            results = flat(algorithm(watch, *(np.array(x, np.float32) for x in numbers)))
        for case, operands in enumerate(zip(*numbers, strict=True)):
            try:
                right = flat(algorithm(exactly, *map(Fraction, operands)))
            except ZeroDivisionError:
                continue
            found = [float(result[case]) for result in results]
            same = all(np.isfinite(found)) and list(map(Fraction, found)) == right
            assert same or not watch.inside[case], operands
            seen[same] += 1
    assert min(seen.values()) > texts


def test_statements_that_cannot_leave_the_range_are_not_watched():
    for theorem in THEOREMS.values():
        scaled = theorem.scaling != "none" and theorem.range == "unbounded"
        assert may_leave(theorem, unbounded(8)) == (theorem.range == "unbounded" and not scaled), theorem.name
    ar = BlockArithmetic(unbounded(8), Rounding(), "exact")
    trial = try_block(THEOREMS["two_sum"], ar, 2 * [np.ones(3, "f4")])
    assert inside(THEOREMS["two_sum"], trial) is None


def test_roots_are_moved_by_powers_of_four():
    root, place = THEOREMS["sqrt_dw"], (WIDE, Rounding())
    try_scaling(root, *place)
    with pytest.raises(ValueError, match="scaling='each' is not valid for 'sqrt_dw'"):
        try_scaling(replace(root, scaling=Scaling.EACH), *place)
