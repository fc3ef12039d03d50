"""Random programs by every way that carries them out, against the oracle: all the same bits."""

import itertools
from functools import lru_cache, partial

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.backends.numpy import NumpyArithmetic
from mcfsim.compile.loops import Loop
from mcfsim.compile.objects import is_available
from mcfsim.formats import Grid, Posit
from mcfsim.kernels.carriers import UnsupportedFormatError, carrier_of
from mcfsim.oracle import same
from tests.oracle.operands import corners, random_tuples
from tests.shared.in_single import InSingle
from tests.shared.random_programs import NARROW, WIDE, entering, operands_of, recipe

pytestmark = pytest.mark.slow

SIZE, WORDS = 8, mcf.RandomWords(3, 1, 4)


@lru_cache(maxsize=1)
def pool():
    found = {}
    for fmt in (*NARROW, *WIDE):
        ar = NumpyArithmetic(fmt, mcf.Rounding(overflow="saturate"))
        if isinstance(fmt, Posit | Grid):
            rng = np.random.default_rng(2)
            drawn = rng.standard_normal(400) * 2.0 ** rng.integers(-6, 8, 400)
            values = np.concatenate([[0.0, np.nan, 1.0, -1.0, float(fmt.max), float(fmt.lowest)], drawn])
        else:
            values = np.concatenate([corners(fmt), *random_tuples(fmt, 200, 2, 1)])
        found[fmt] = np.asarray(ar.round(values), carrier_of(fmt))
    return found


def by_oracle(made, arrays):
    truth, text = InSingle(made.format, made.rounding), made.text(partial(entering, policy=made.policy))
    rows = [truth.evaluate(text, *map(float, row)) for row in zip(*arrays, strict=True)]
    return [np.array(column) for column in zip(*rows, strict=True)]


def by_arithmetic(made, arrays, **options):
    words = {"random": WORDS} if made.rounding.stochastic else {}
    ar = NumpyArithmetic(made.format, made.rounding, scalars=made.policy, **words, **options)
    return ar.evaluate(made.text(), *arrays)


def by_loop(made, arrays, *, compiled):
    program = made.program()
    loop, numbers = Loop(program, made.policy, apart=True), program.reals()
    bound_loop = loop.with_numbers(numbers) if compiled else loop.on_numpy(numbers)
    if program.drawn:
        bound_loop = bound_loop.drawing({0: WORDS})
    out = [np.empty(arrays[0].size, dtype) for dtype in bound_loop.results]
    assert bound_loop(arrays, out)
    return out


def on_tensors(made, arrays, *, kernels):
    import torch

    from mcfsim.backends.torch_device import DeviceArithmetic

    words = {"random": WORDS} if made.rounding.stochastic else {}
    options = {"scalars": made.policy, "device": "cpu", "kernels": kernels, **words}
    ar = DeviceArithmetic(made.format, made.rounding, **options)
    return [x.numpy() for x in ar.evaluate(made.text(), *map(torch.from_numpy, arrays))]


WAYS = {
    "calls": lambda made, arrays: by_loop(made, arrays, compiled=False),
    "loops": lambda made, arrays: by_loop(made, arrays, compiled=True),
    "LLVM": lambda made, arrays: by_arithmetic(made, arrays, compiled=True),
    "tensors": lambda made, arrays: on_tensors(made, arrays, kernels=False),
    "kernels": lambda made, arrays: on_tensors(made, arrays, kernels=True),
}
#: What says that a way does not take a text, which another then carries out: no straight line, no exact path.
REFUSALS = (TypeError, ValueError)


def compare(seeds, ways, *, stochastic=False):
    """Return how many programs each way took, and fail at the first difference."""
    took = dict.fromkeys(("eager", *ways), 0)
    for seed in seeds:
        made = recipe(seed, stochastic=stochastic)
        arrays = operands_of(made, SIZE, pool())
        try:
            eager = by_arithmetic(made, arrays, compiled=False)
        except UnsupportedFormatError:
            if stochastic:
                continue
            eager = None  # an operation is refused; of no use for the results, others leave it out
        truth = eager if stochastic else by_oracle(made, arrays)
        if eager is not None:
            took["eager"] += 1
            equal(seed, "eager", eager, truth)
        for way in ways:
            try:
                found = WAYS[way](made, arrays)
            except REFUSALS:
                continue
            took[way] += 1
            equal(seed, way, found, truth)
    return took


def lines(count, *, start=1000, most=14, stochastic=False):
    """Return short programs that are one line, and so can be compiled."""
    short = (s for s in range(start, start + 400) if len(recipe(s, stochastic=stochastic).steps) <= most)
    seeds = (s for s in short if compare([s], ["calls"], stochastic=stochastic)["calls"])
    return [*itertools.islice(seeds, count)]


def equal(seed, way, found, expected):
    for place, (x, y) in enumerate(zip(found, expected, strict=True)):
        wrong = np.flatnonzero(~same(x, np.asarray(y)))
        if wrong.size:
            at = wrong[0]
            pytest.fail(f"program {seed}, {way}: result {place}[{at}] is {x[at]!r}, not {y[at]!r}")


@pytest.mark.parametrize("part", range(6))
@pytest.mark.sampled(6, each=False)
@pytest.mark.costly("the oracle carries out programs element by element")
def test_programs_by_numpy_and_the_oracle(part):
    took = compare(range(20 * part, 20 * part + 20), ["calls"])
    assert took["eager"] > 5
    assert took["calls"] > 3


def test_programs_that_draw():
    took = compare(range(20), ["calls"], stochastic=True)
    assert took["calls"] > 5


def ready(way, request):
    """Return the ways that are asked together with one, or skip what is not installed."""
    if way == "loops" and not is_available():
        pytest.skip("LLVM is not installed")
    if way in ("tensors", "kernels"):
        pytest.importorskip("torch")
    if way == "kernels":
        request.getfixturevalue("interpreted")
    return ["LLVM", "loops"] if way == "loops" else [way]


@pytest.mark.parametrize("stochastic", [False, True])
@pytest.mark.parametrize(("way", "count", "most"), [("loops", 1, 7), ("tensors", 5, 14), ("kernels", 2, 14)])
@pytest.mark.sampled(3, each=False)
@pytest.mark.costly("programs are compiled, or their kernels interpreted")
def test_programs_by_each_way(way, count, most, stochastic, request):
    ways, seeds = ready(way, request), lines(count, most=most, stochastic=stochastic)
    took = compare(seeds, ways, stochastic=stochastic)
    assert all(took[x] == len(seeds) for x in ways) or (way == "kernels" and took[way])


#: How many programs each way carries out in a part; those of calls draw, too.
MANY = {"calls": 120, "loops": 1, "tensors": 30, "kernels": 5}


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", range(12))
@pytest.mark.parametrize("way", MANY)
def test_many_programs(way, part, request):
    start, ways = 10_000 + 1000 * part, ready(way, request)
    drawn = way in ("loops", "tensors") and bool(part % 2)
    seeds = range(start, start + MANY[way])
    if MANY[way] == 1:  # it might be no line
        seeds = lines(1, start=start, most=40, stochastic=drawn)
    took = compare(seeds, ways, stochastic=drawn)
    assert took[way] >= max(1, MANY[way] // 10)
    if way == "calls":
        assert compare(range(start, start + 25), ways, stochastic=True)[way]
