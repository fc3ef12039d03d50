"""How algorithms scale: what the analysis says of each number in random algorithms, against running them."""

import itertools
import tracemalloc

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.backends.block_arithmetic import BlockArithmetic
from mcfsim.formats import Format, get_format
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


def so(t):
    return np.ones(t.size, bool)


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


@pytest.mark.parametrize("mode", [Mode.NEAREST_EVEN, Mode.UP, Mode.TO_ODD])
@pytest.mark.parametrize("common", [True, False])
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
    theorem = Theorem("unknown", algorithm, PAIR, claim("true", so), scaling="each")
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
PAIRED = (double_word("x"), double_word("y"))
PRODUCT, SUM = (lambda ar, a, b: ar.mul(a, b)), (lambda ar, a, b: ar.add(a, b))
DIFFER = "hypotheses or claim differ"
#: Algorithm, test, operands, reduction, and what is wrong with it.
INVALID = {
    "adds what scales differently": (
        *(lambda ar, a, b: ar.add(ar.mul(a, b), a), so, PAIR, "each", "fma|add combines"),
    ),
    "adds a constant": (lambda ar, a, b: ar.add(a, 1.0), so, PAIR, "common", "add combines"),
    "claims an absolute bound": (PRODUCT, lambda t: t.results[0] < 4, PAIR, "each", DIFFER),
    "claims an order": (PRODUCT, lambda t: t["a"] < t["b"], PAIR, "each", DIFFER),
    "claims what one large operand gives": (SUM, lambda t: t.results[0] < 1000, PAIR, "common", DIFFER),
    "takes the root of odd powers": (
        *(lambda ar, a, b: ar.sqrt(ar.mul(a, b)), so, PAIR, "each", "sqrt takes"),
    ),
    "adds words": (lambda ar, x, y: ar.add(ar.mul(x[0], y[0]), y[1]), so, PAIRED, "each", ""),
    "claims an order of words": (
        *(lambda ar, x, y: ar.mul(x[0], y[0]), lambda t: t["x"][0] < t["y"][0], PAIRED, "each", ""),
    ),
}


@pytest.mark.parametrize("what", INVALID)
@pytest.mark.parametrize("fmt", ["bfloat16", "float16"])
@pytest.mark.sampled(4)
def test_a_reduction_that_is_not_valid_is_refused(what, fmt):
    algorithm, test, operands, scaling, words = INVALID[what]
    options = {"scaling": scaling, "range": "unbounded" if operands is PAIRED else "bounded"}
    theorem = Theorem("invalid", algorithm, operands, claim("it is so", test), **options)
    with pytest.raises(ValueError, match=f"scaling='{scaling}' is not valid for 'invalid'.*{words}"):
        verify(theorem, fmt, samples=100, limit=1 << 20)


def test_a_claim_that_signs_change_is_tried_on_both_signs():
    theorem = Theorem("above", SUM, PAIR, claim("s >= b", lambda t: t.results[0] >= t["b"]), scaling="common")
    assert not any("sign" in text for text in cover(theorem, BF16, Rounding()).reductions)
    # Even by the core alone, without the operands that are tried to make sure.
    toy = Format("", precision=3, emin=-14, emax=15)
    parts = core_of(theorem, toy, Rounding())
    assert on_parts(theorem, toy, "nearest_even", [part for part in parts if part.kind == "core"]).violations


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
