"""How algorithms scale: what the analysis says of each number in random algorithms, against running them."""

import itertools
import tracemalloc
from fractions import Fraction

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.backends.block_arithmetic import BlockArithmetic
from mcfsim.formats import Format, get_format
from mcfsim.oracle import OracleArithmetic
from mcfsim.rounding import Mode, Rounding
from mcfsim.theorems import THEOREMS, Theorem, claim, double_word, value, verify
from mcfsim.theorems.cells import representatives
from mcfsim.theorems.domain import cover
from mcfsim.theorems.homogeneity import NotHomogeneousError, Scales, scales_of
from mcfsim.theorems.operands import finite_values
from mcfsim.theorems.selection import Selection
from mcfsim.theorems.statement import Scaling
from mcfsim.theorems.verification import prepare
from tests.theorems.trying import core_of, on_parts

pytestmark = pytest.mark.slow

P = 3
WIDE = Format("", precision=P, emin=-300, emax=300)
BF16 = mcf.get_format("bfloat16")
PAIR = (value("a"), value("b"))
TRUE = claim("true", lambda t: np.ones(t.size, bool))


def random_algorithm(rng):
    """Return a random straight line of operations on two operands, most of which do scale."""
    steps = []
    for n in range(2, 2 + int(rng.integers(1, 7))):
        name = rng.choice(["add", "sub", "mul", *2 * ["div", "scale"], "sqrt", "fma", "neg", "abs", "round"])
        steps.append(
            (str(name), rng.integers(0, n, 3).tolist(), float(rng.choice([0.05, 3, -1.25, 0.0, 60])))
        )

    def algorithm(ar, a, b):
        pool = [a, b]
        for name, (i, j, k), constant in steps:
            x, y, z = pool[i], pool[j], pool[k]
            if name == "scale":
                pool.append(ar.mul(x, constant))
            elif name == "fma":
                pool.append(ar.fma(x, y, z))
            elif name in ("sqrt", "neg", "abs", "round"):
                pool.append(getattr(ar, name)(x))
            else:
                pool.append(getattr(ar, name)(x, y))
        return tuple(pool[2:])

    return algorithm


def homogeneous(count, seed, *, common, fmt=WIDE, mode="nearest_even"):
    """Yield random algorithms that are shown to scale, and what is said of each of their numbers."""
    rng = np.random.default_rng(seed)
    while count:
        algorithm, scales = random_algorithm(rng), Scales(fmt, Rounding(mode), 2, common)
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


@pytest.mark.parametrize("common", [True, False])
def test_numbers_are_as_large_and_as_fine_as_is_said(common):
    wide = BlockArithmetic(WIDE, Rounding(), "exact")
    seen = 0
    for rng, algorithm, _, quantities in homogeneous(200, 1, common=common):
        e = rng.integers(-6, 7, (2, 40))
        if common:
            e[1] = e[0]
        with np.errstate(all="ignore"):
            results = algorithm(wide, _values(rng, e[0]), _values(rng, e[1]))
        for result, found in zip(results, quantities, strict=True):
            there = np.isfinite(result) & (result != 0)
            size, at = np.abs(result[there]), power(found, *e)[there]
            assert not (found.zero and size.size)
            assert np.all(size >= np.ldexp(1.0, at + found.low))
            assert np.all(size <= np.ldexp(1.0, at + found.top))
            units = np.ldexp(size, -(at + found.unit))
            assert np.all(units == np.floor(units))
            seen += size.size > 0
    assert seen > 400


@pytest.mark.parametrize("mode", [Mode.NEAREST_EVEN, Mode.UP, Mode.TO_ODD])
@pytest.mark.parametrize("common", [True, False])
def test_results_of_scaled_operands_are_scaled(common, mode):
    """By the oracle, one case after the other."""
    truth = OracleArithmetic(WIDE, Rounding(mode))
    seen = 0
    for rng, algorithm, _, quantities in homogeneous(60, 2, common=common, mode=mode):
        a, b = (float(_values(rng, rng.integers(-3, 4, 1), 1)[0]) for _ in range(2))
        e, f = (7, 7) if common else (5, -9)
        results = algorithm(truth, a, b), algorithm(truth, a * 2.0**e, b * 2.0**f)
        for x, y, found in zip(*results, quantities, strict=True):
            if np.isfinite(x):
                assert Fraction(y) == Fraction(x) * Fraction(2) ** power(found, e, f)
                seen += x != 0
            else:
                assert y == x or np.isnan(x) == np.isnan(y)
    assert seen > 120


@pytest.mark.parametrize("each", [True, False])
def test_results_of_negated_operands_are_negated_where_it_is_said(each):
    wide = BlockArithmetic(WIDE, Rounding(), "exact")
    odd = 0
    for rng, algorithm, scales, _ in homogeneous(120, 3, common=False):
        a, b = (_values(rng, rng.integers(-3, 4, 40)) for _ in range(2))
        with np.errstate(all="ignore"):
            first, second = algorithm(wide, a, b), algorithm(wide, -a, b if each else -b)
        if not (scales.odd_in_each if each else scales.odd):
            continue
        odd += 1
        for x, y in zip(first, second, strict=True):
            np.testing.assert_array_equal(np.abs(x), np.abs(y))
    assert odd > 20


@pytest.mark.parametrize(
    ("algorithm", "common", "each"),
    [
        (lambda ar, a, b: ar.add(a, b), True, False),
        (lambda ar, a, b: ar.mul(a, b), True, True),
        (lambda ar, a, b: ar.add(a, 1.0), False, False),
        (lambda ar, a, b: ar.add(a, 0.0), True, True),
        (lambda ar, a, b: ar.add(ar.mul(a, b), a), False, False),
        (lambda ar, a, b: ar.fma(a, 0.5, b), True, False),
        (lambda ar, a, b: ar.fma(a, b, ar.neg(ar.mul(b, a))), True, True),
        (lambda ar, a, b: ar.sub(ar.div(a, b), 1.0), True, False),
        (lambda ar, a, b: ar.sqrt(ar.mul(a, b)), True, False),
        (lambda ar, a, b: ar.sqrt(a), False, False),
    ],
)
def test_what_scales(algorithm, common, each):
    for fits, shared in ((common, True), (each, False)):
        if fits:
            assert scales_of(algorithm, PAIR, WIDE, Rounding(), common=shared) is not None
        else:
            with pytest.raises(NotHomogeneousError):
                scales_of(algorithm, PAIR, WIDE, Rounding(), common=shared)


def test_of_other_algorithms_nothing_is_known():
    for algorithm in (lambda ar, a, b: ar.add(a + b, b), lambda ar, a, b: ar.round(np.maximum(a, b))):
        assert scales_of(algorithm, PAIR, WIDE, Rounding()) is None
    theorem = Theorem("unknown", lambda ar, a, b: ar.round(np.maximum(a, b)), PAIR, TRUE, scaling="each")
    assert [part.kind for part in cover(theorem, BF16, Rounding()).parts] == ["complete"]


def test_every_algorithm_of_the_catalogue_is_shown_to_scale():
    for theorem in THEOREMS.values():
        if theorem.scaling is Scaling.NONE:
            continue
        degree = 2 if theorem.scaling is Scaling.SQUARE else 1
        options = {"common": theorem.scaling is not Scaling.EACH, "degree": degree}
        for mode in theorem.modes:
            scales = scales_of(theorem.algorithm, theorem.operands, BF16, Rounding(mode), **options)
            assert scales is not None, (theorem.name, mode)


# -- cells --------------------------------------------------------------------------------------------------
TOY = Format("", precision=P, emin=-16, emax=16)


def _of_cell(fmt, e):
    values = np.abs(finite_values(fmt))
    low = values < 2.0**fmt.emin
    return values[low] if e < fmt.emin else values[~low & (np.frexp(values)[1] - 1 == e)]


@pytest.mark.parametrize("mode", [Mode.NEAREST_EVEN, Mode.TOWARD_ZERO, Mode.UP, Mode.NEAREST_AWAY])
@pytest.mark.sampled(4, each=False)
def test_cells_are_as_those_that_stand_for_them(mode):
    """Every pair of exponents has one among the representatives where all numbers are the same, scaled."""
    ar = BlockArithmetic(TOY, Rounding(mode), "exact")
    classes = np.arange(TOY.emin - 1, TOY.emax + 1)
    fewer = 0
    for _, algorithm, scales, quantities in homogeneous(2, 4, common=False, fmt=TOY, mode=mode):
        chosen = representatives(classes, TOY, scales)

        def normalised(cell, algorithm=algorithm, quantities=quantities):
            """Return all numbers of a cell, each divided by the power of two that it scales with."""
            a, b = (x.ravel() for x in np.meshgrid(*(_of_cell(TOY, e) for e in cell), indexing="ij"))
            with np.errstate(all="ignore"):
                results = algorithm(ar, a, b)
            scaled = (
                np.ldexp(r.astype(float), -power(q, *cell)) for r, q in zip(results, quantities, strict=True)
            )
            return tuple(tuple(np.nan_to_num(x, nan=-7).tolist()) for x in scaled)

        known = {normalised(cell) for cell in chosen.tolist()}
        for cell in itertools.product(range(TOY.emin, TOY.emax + 1), repeat=2):
            assert normalised(cell) in known
        fewer += len(chosen) < classes.size**2
    assert fewer > 0


# -- statements that declare what is not so -----------------------------------------------------------------
def multiplied(ar, a, b):
    return ar.mul(a, b)


def says(test):
    return claim("it is so", test)


PAIRED = (double_word("x"), double_word("y"))
DIFFER = "hypotheses or claim differ"
#: Algorithm, claim, operands, reduction, and what is wrong with it.
INVALID = {
    "adds what scales differently": (
        lambda ar, a, b: ar.add(ar.mul(a, b), a),
        TRUE,
        PAIR,
        "each",
        "fma|add combines",
    ),
    "adds a constant": (lambda ar, a, b: ar.add(a, 1.0), TRUE, PAIR, "common", "add combines"),
    "claims an absolute bound": (multiplied, says(lambda t: t.results[0] < 4), PAIR, "each", DIFFER),
    "claims an order": (multiplied, says(lambda t: t["a"] < t["b"]), PAIR, "each", DIFFER),
    "claims what one large operand gives": (
        lambda ar, a, b: ar.add(a, b),
        says(lambda t: t.results[0] < 1000),
        PAIR,
        "common",
        DIFFER,
    ),
    "takes the root of odd powers": (
        lambda ar, a, b: ar.sqrt(ar.mul(a, b)),
        TRUE,
        PAIR,
        "each",
        "sqrt takes",
    ),
    "adds words": (lambda ar, x, y: ar.add(ar.mul(x[0], y[0]), y[1]), TRUE, PAIRED, "each", ""),
    "claims an order of words": (
        lambda ar, x, y: ar.mul(x[0], y[0]),
        says(lambda t: t["x"][0] < t["y"][0]),
        PAIRED,
        "each",
        "",
    ),
}


@pytest.mark.parametrize("what", INVALID)
@pytest.mark.parametrize("fmt", ["bfloat16", "float16"])
@pytest.mark.sampled(4)
def test_a_reduction_that_is_not_valid_is_refused(what, fmt):
    algorithm, about, operands, scaling, words = INVALID[what]
    unbounded = {"range": "unbounded"} if operands is PAIRED else {}
    theorem = Theorem("invalid", algorithm, operands, about, scaling=scaling, **unbounded)
    with pytest.raises(ValueError, match=f"scaling='{scaling}' is not valid for 'invalid'.*{words}"):
        verify(theorem, fmt, samples=100, limit=1 << 20)


def test_a_claim_that_signs_change_is_tried_on_both_signs():
    above = claim("s >= b", lambda t: t.results[0] >= t["b"])
    theorem = Theorem("above", lambda ar, a, b: ar.add(a, b), PAIR, above, scaling="common")
    assert not any("sign" in text for text in cover(theorem, BF16, Rounding()).reductions)
    assert verify(theorem, "bfloat16", samples=0).violations
    # Even by the core alone, without the operands that are tried to make sure.
    toy = Format("", precision=3, emin=-14, emax=15)
    parts = core_of(theorem, toy, Rounding())
    assert on_parts(theorem, toy, "nearest_even", [part for part in parts if part.kind == "core"]).violations


@pytest.mark.parametrize("fmt", ["float16", "tf32", "float32", "e5m20"])
@pytest.mark.sampled(4, each=False)
def test_trials_of_a_statement_that_supposes_many_bits_list_no_more_operands_than_fit(fmt):
    """Low words of all depths below significands of 14 bits would be billions."""
    check, fmt = prepare("dw_div_dw3", fmt, Rounding(), Selection(samples=1, limit=1)), get_format(fmt)
    tracemalloc.start()
    try:
        assert check.refusal() is None  # which tries how the statement scales
        assert tracemalloc.get_traced_memory()[1] < 1 << 29
    finally:
        tracemalloc.stop()
