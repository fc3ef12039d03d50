"""Error-free transformations: where they are exact, by hand, and what longer algorithms cost."""

import itertools
from fractions import Fraction

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.formats import FORMATS, Format
from mcfsim.multiword import shewchuk, summation
from mcfsim.theorems import THEOREMS
from tests.oracle.operands import SMALL_FORMATS, label

#: Formats, and with what the statements of the catalogue begin that are tried on all operands there.
P4, P3 = (Format(precision=p, emin=emin, emax=emax) for p, emin, emax in ((4, -2, 3), (3, -1, 1)))
SAID = [
    *itertools.product(SMALL_FORMATS[::-1], ("two_sum", "fast_two_sum", "split", "two_prod")),
    *itertools.product([P4], ("fma_error", "grow_expansion", "fast_expansion_sum")),
    *((P3, "expansion_sum"), (FORMATS["bfloat16"], "vec_sum")),  # of which a sample
]


@pytest.mark.sampled(40, each=False)
@pytest.mark.parametrize(("fmt", "begin"), SAID, ids=label)
@pytest.mark.slow
def test_transforms_are_exact_where_the_catalogue_says_so(fmt, begin):
    for name in (x for x in THEOREMS if x.startswith(begin) and "_sr" not in x):
        for mode in THEOREMS[name].modes:
            certificate = mcf.verify(name, fmt, mode, samples=2000)
            assert certificate.as_expected, (name, mode, certificate.witnesses)
            assert certificate.covers or name == "vec_sum"


INF, NAN = np.inf, np.nan
BY_HAND = [
    # Overflow on the way: -65456 lies half-way between -65472 and -65440.
    (mcf.two_sum, "fp16", "nearest_even", (-65504.0, 48.0), (-65472.0, NAN)),
    (mcf.two_sum, "fp16", "nearest_even", (48.0, -65504.0), (-65472.0, 16.0)),
    (mcf.two_sum, "bf16", "nearest_even", (INF, 1.0), (INF, NAN)),
    # 1 + 129 * 2**-16 rounds up to 1 + 2**-7; the error is -383 * 2**-16, of 9 bits.
    (mcf.two_sum, "bf16", "up", (1.0, 129 * 2.0**-16), (1 + 2.0**-7, -382 * 2.0**-16)),
    (mcf.fast_two_sum, "bf16", "nearest_even", (1.0, 258.0), (260.0, -2.0)),  # the true error is -1
    (mcf.fast_two_sum, "bf16", "nearest_even", (1.0, 256.0), (256.0, 1.0)),  # exact all the same
    (mcf.two_prod_fma, "bf16", "nearest_even", (2.0**64, 2.0**64), (INF, -INF)),
    (mcf.eft.err_fma, "bf16", "nearest_even", (2.0**64, 2.0**64, 1.0), (INF, NAN, NAN)),
    (mcf.split, "bf16", "nearest_even", (2.0**124,), (NAN, NAN)),  # overflows near the top
    (mcf.split, "bf16", "nearest_even", (2.0**122 * 1.5,), (2.0**122 * 1.5, 0.0)),
]


@pytest.mark.parametrize(("transform", "fmt", "rounding", "operands", "expected"), BY_HAND)
def test_by_hand(transform, fmt, rounding, operands, expected, assert_same):
    ar = mcf.arithmetic(fmt, rounding)
    assert_same(transform(ar, *operands), expected)
    assert_same(transform(ar, *(np.float32([x]) for x in operands)), np.transpose([expected]))


#: Precision, and how many bits are split off.
SPLITS = [*((p, None) for p in range(3, 13)), *((8, bits) for bits in range(1, 8))]


@pytest.mark.parametrize(("precision", "bits"), SPLITS)
def test_split_rounds_to_fewer_bits_and_keeps_the_rest(precision, bits):
    m = np.arange(2 ** (precision - 1), 2**precision)
    m = np.concatenate([m, -m])
    ar = mcf.arithmetic(Format(precision=precision, emin=-60, emax=60))
    high, low = mcf.split(ar, m.astype(np.float64), bits=bits)
    s = (precision + 1) // 2 if bits is None else bits
    assert np.array_equal(high + low, m)
    quotient, rest = np.divmod(m, 2**s)  # high is m rounded to p - s bits, ties to even
    quotient += (2 * rest > 2**s) | ((2 * rest == 2**s) & (quotient % 2 == 1))
    assert np.array_equal(high, quotient * 2**s)
    assert (np.abs(low) <= 2 ** (s - 1)).all()  # of s - 1 bits, or a power of two


@pytest.mark.parametrize(("transform", "arity"), [(mcf.split, 1), (mcf.two_prod, 2)])
def test_bits_to_cut_off_are_an_int_within_the_precision(transform, arity):
    one, exact = mcf.arithmetic("bf16"), mcf.arithmetic(None, backend="exact")
    for ar, bits, error, message in (
        *((one, x, ValueError, f"bits = {x} must lie between 1 and 7 to split") for x in (0, 8)),
        *((one, x, TypeError, "bits must be an int, not ") for x in (4.0, True)),
        (exact, None, ValueError, "needs an arithmetic with a format"),
    ):
        with pytest.raises(error, match=message):
            transform(ar, *(1.0,) * arity, bits=bits)


# -- algorithms of several operations: costs, shapes, and results without rounding ------------------------
FIVE = (8.0, 9.0, 10.0, 11.0, 12.0)
PAIR = (1.0, 0.0)

#: What a sum costs for each term but the first.
SUMS = [
    (summation.recursive_sum, {}, 1),
    (summation.kahan_sum, {}, 4),
    (summation.neumaier_sum, {}, 7),
    (summation.dw_sum, {}, 10),
    (summation.dw_sum, {"ordered": True}, 7),
    (summation.sum_k, {"k": 4}, 19),
]
#: Operations of each text: Knuth, Dekker, Veltkamp; Joldes, Muller, Popescu 2017, Algorithms 4, 6, 9, 11;
#: Shewchuk 1997; Ogita, Rump, Oishi 2005. Those of double words are in their docstrings.
COSTS = [
    (mcf.two_sum, (1.0, 2.0), {}, 6),
    (mcf.fast_two_sum, (2.0, 1.0), {}, 3),
    (mcf.split, (1.0,), {}, 4),
    (mcf.two_prod, (1.0, 2.0), {}, 17),
    (mcf.two_prod_fma, (1.0, 2.0), {}, 2),
    (mcf.eft.err_fma, (1.0, 2.0, 3.0), {}, 20),
    (mcf.grow, (PAIR, 2.0), {}, 10),
    (mcf.grow, (PAIR, 2.0), {"ordered": True}, 7),
    (mcf.expansion_add, (PAIR, PAIR), {}, 20),
    (mcf.expansion_scale, (PAIR, 2.0), {}, 6),
    (mcf.expansion_mul, (PAIR, PAIR), {}, 8),
    (mcf.renormalize, (PAIR,), {}, 6),
    (mcf.renormalize, ((1.0, 0.0, 0.0),), {}, 30),
    (shewchuk.vec_sum, (FIVE,), {}, 24),
    (shewchuk.grow_expansion, (FIVE, 1.0), {}, 30),
    (shewchuk.expansion_sum, (FIVE, FIVE[:3]), {}, 90),
    (shewchuk.fast_expansion_sum, (FIVE,), {}, 21),
    *((summation.dot2, ((2.0,) * n, (3.0,) * n), {}, 10 * n - 7) for n in (1, 2, 7)),
    *((add, ((1.0,) * n,), options, each * (n - 1)) for add, options, each in SUMS for n in (1, 2, 7)),
]


@pytest.mark.parametrize(("function", "operands", "options", "cost"), COSTS)
def test_every_text_costs_what_the_literature_says(function, operands, options, cost):
    meter = mcf.Meter(mcf.arithmetic("bf16"))
    function(meter, *operands, **options)
    assert len([operation for operation in meter.trace if operation != "neg"]) == cost
    assert sum(tally.calls for tally in meter.tallies.values()) == len(meter.trace)


def test_operands_broadcast_and_numbers_give_numbers():
    ar = mcf.arithmetic("bf16")
    s, e = mcf.two_sum(ar, np.float32([[1], [256]]), np.float32([1, 3]))
    assert (s.tolist(), e.tolist()) == ([[2, 4], [256, 260]], [[0, 0], [1, -1]])
    assert all(type(x) is float for x in mcf.two_sum(ar, 256.0, 1.0))
    assert summation.recursive_sum(ar, (np.ones((2, 1)), np.ones(3), 1.0)).tolist() == [[3.0] * 3] * 2
    # More terms than some loops of NumPy take operands.
    assert summation.kahan_sum(ar, (np.ones(3),) * 70)[0].tolist() == [70.0] * 3


@pytest.mark.parametrize("n", [1, 2, 3])
def test_exact_arithmetic_runs_the_same_texts_without_error(n):
    exact = mcf.arithmetic(None, backend="exact")
    x, y = (tuple(scale * 2.0 ** (-9 * i) for i in range(n)) for scale in (0.75, -1.25))
    value = mcf.expansion.value
    assert value(mcf.grow(exact, x, y[0])) == value(x) + Fraction(y[0])
    assert value(mcf.expansion_add(exact, x, y)) == value(x) + value(y)
    assert value(mcf.expansion_scale(exact, x, y[0])) == value(x) * Fraction(y[0])
    assert value(mcf.renormalize(exact, x)) == value(x)
    terms = tuple(Fraction(k, 2**k) for k in range(20))
    for algorithm in (summation.recursive_sum, summation.neumaier_sum):
        assert algorithm(exact, terms) == sum(terms)
