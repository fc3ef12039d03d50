"""Random words depend on seed, step, stream and index alone: not on blocks, threads or who shares what."""

import itertools
import math
import threading
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.multiword import double_word, expansion, summation
from mcfsim.optim.optimizer import Optimizer
from mcfsim.random import RandomWords
from mcfsim.rounding import Rounding
from mcfsim.storage.buffers import BLOCK, LARGE_BLOCK

pytestmark = pytest.mark.slow

#: Each has a result of scalars alone on the way, drawn for at random.
ALGORITHMS = {
    "dw_sum": lambda ar, x: summation.dw_sum(ar, (1.0, 2.0**-9, 0.3, x)),
    "sum_3": lambda ar, x: summation.sum_k(ar, (0.1, 0.2, 0.3, x), 3),
    "dot2": lambda ar, x: summation.dot2(ar, (0.1, 0.7, x), (0.3, 0.9, x)),
    "two_sum of scalars": lambda ar, x: mcf.two_sum(ar, mcf.two_sum(ar, 1.0, 2.0**-9)[0], x),
    "dw_times_fp": lambda ar, x: double_word.dw_times_fp3(ar, (1.0, 2.0**-9), x),
    "expansion product": lambda ar, x: expansion.mul(ar, expansion.mul(ar, (0.9, 0.1), (0.7, 0.1)), (x, x)),
    "a sign": lambda ar, x: ar.evaluate(lambda inner, y: inner.add(inner.neg(0.1), y), x),
    "a rounding": lambda ar, x: ar.evaluate(lambda inner, y: inner.add(inner.round(Fraction(1, 3)), y), x),
    "a fraction": lambda ar, x: ar.evaluate(lambda inner, y: inner.add(inner.mul(0.1, Fraction(1, 3)), y), x),
    "a number passed on": lambda ar, x: ar.evaluate(lambda inner, n, y: (n, inner.add(n, y)), 0.1, x),
}


def drawn(threads=1, fmt="bfloat16", seed=1, bits=16):
    rounding = Rounding("stochastic", random_bits=bits)
    return mcf.arithmetic(fmt, rounding, random=RandomWords(seed), threads=threads)


def flat(results):
    return results if isinstance(results, tuple) else (results,)


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.sampled(4, each=False)
def test_results_depend_on_no_threads_and_no_blocks(name):
    """Where blocks end, the last element is what it is in a longer array."""
    x = mcf.round_to(np.random.default_rng(0).standard_normal(LARGE_BLOCK + 2).astype(np.float32), "bfloat16")
    whole = drawn()
    expected = flat(ALGORITHMS[name](whole, x))
    for size, threads in ((1, 1), (BLOCK, 1), (BLOCK + 1, 1), (BLOCK + 1, 2), (LARGE_BLOCK + 1, 4)):
        ar = drawn(threads)
        found = flat(ALGORITHMS[name](ar, x[:size]))
        assert ar.random.operation == whole.random.operation > 0
        for one, other in zip(found, expected, strict=True):
            assert np.array_equal(one, other[:size], equal_nan=True), (size, threads)


def test_a_result_of_scalars_alone_has_the_word_of_index_0():
    """Two quanta above 1 and a fraction f: up as the first word of the stream says."""
    f = 0.5
    for seed in range(20):
        word = int(RandomWords(seed).words(0, 1, 16)[0])
        expected = 1.0 + 2.0**-7 * (math.floor(f * 2**16) + word >= 2**16)
        for size in (1, 5):
            ar = drawn(seed=seed)
            inside = ar.evaluate(
                lambda inner, x: inner.add(x, inner.add(1.0, 2.0**-8)), np.zeros(size, np.float32)
            )
            assert (inside == expected).all()
        assert drawn(seed=seed).add(1.0, 2.0**-8) == expected


def test_a_step_of_an_optimizer_depends_on_no_block():
    """A tensor whose last block is one element long, and the same tensor in a longer one."""
    low = mcf.strategy("collage-plus", "bfloat16")
    rng = np.random.default_rng(2)
    x, g = rng.standard_normal((2, BLOCK + 2)).astype(np.float32)
    after = []
    for size in (BLOCK + 1, BLOCK + 2):
        optimizer = Optimizer(mcf.AdamW(), low, {"x": x[:size]}, {"x"}, "stochastic", random=RandomWords(4))
        for _ in range(2):
            optimizer.step(optimizer.receive({"x": g[:size]}), 0.01)
        after.append([item[: BLOCK + 1] for item in optimizer.represented()])
    for one, other in zip(*after, strict=True):
        assert np.array_equal(one, other)


def test_threads_that_share_an_arithmetic_share_no_stream():
    shared, rounds, threads = drawn(bits=16), 90, 4
    ones, quarter = np.ones(256, np.float32), np.full(256, 1 + 2.0**-9)
    begin = threading.Barrier(threads)

    def work(_):
        found = []
        begin.wait()
        for _ in range(rounds):
            found += [shared.round(quarter), shared.mul(ones, 1 + 2.0**-9)]
            found += shared.evaluate(lambda ar, x: (ar.mul(x, 1 + 2.0**-9), ar.add(x, 2.0**-9)), ones)
        return [item.tobytes() for item in found]

    with ThreadPoolExecutor(threads) as pool:
        results = list(itertools.chain(*pool.map(work, range(threads))))
    assert shared.random.operation == len(results) == 4 * threads * rounds
    x, words = quarter.astype(np.float32), [RandomWords(1).of(s) for s in range(len(results))]
    streams = {mcf.round_to(x, "bfloat16", "stochastic", random=each).tobytes() for each in words}
    assert len(streams) == len(results)  # so a result tells its stream
    assert set(results) == streams
