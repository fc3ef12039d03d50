"""Random words: published vectors of Philox4x32-10; what draws them, and that they depend on places alone."""

import itertools
import math
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from fractions import Fraction
from importlib.util import find_spec
from itertools import product

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.multiword import double_word, expansion, summation
from mcfsim.optim.optimizer import Optimizer
from mcfsim.random import RandomWords
from mcfsim.rounding import Rounding
from mcfsim.storage.buffers import BLOCK, LARGE_BLOCK
from tests.shared.refusals import check, refusals, refused

MASK = 2**32 - 1

PI = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344, 0xA4093822, 0x299F31D0)
#: Salmon, Moraes, Dror, Shaw: kat_vectors of Random123, philox4x32 with 10 rounds.
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (PI[:4], PI[4:], (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
]


def philox(counter, key):
    """Return the four words of Philox4x32-10 by its definition, in integers of any size."""
    c0, c1, c2, c3 = (np.asarray(word).astype(object) for word in counter)
    k0, k1 = key
    for _ in range(10):
        first, second = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = second >> 32 ^ c1 ^ k0, second & MASK, first >> 32 ^ c3 ^ k1, first & MASK
        k0, k1 = (k0 + 0x9E3779B9) & MASK, (k1 + 0xBB67AE85) & MASK
    return np.broadcast_arrays(c0, c1, c2, c3)


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_published_known_answers(counter, key, expected):
    assert tuple(int(word) for word in philox(counter, key)) == expected
    (c0, c1, c2, c3), (k0, k1) = counter, key
    words = RandomWords(k1 << 32 | k0, step=c2, stream=c1 >> 12, operation=c3)
    assert tuple(words.words(4 * ((c1 & 0xFFF) << 32 | c0), 4).tolist()) == expected


#: Ends of what seed, step, stream, operation and counter may be, and numbers between.
ENDS = [
    [5, 2**32, 2**64 - 1],
    [5, 2**31, 2**32 - 1],
    [5, 2**16, 2**20 - 1],
    [0, 2**31, 2**32 - 1],
    [2**32 - 1, 2**32, 2**44 - 1],
]


@pytest.mark.parametrize("bits", [16, 32])
@pytest.mark.costly("imports PyTorch, and compiles loops")
@pytest.mark.slow
def test_all_draw_the_words_of_the_counter(bits):
    """NumPy, loops and rows of them, and PyTorch's operations, by the definition."""
    each, makers = 128 // bits, list(makers_of_words())
    for seed, step, stream, operation, counter in itertools.islice(product(*ENDS), 0, None, 2):
        count = min(5, 2**44 - counter)
        numbers = np.arange(counter, counter + count, dtype=np.uint64)
        key = seed & MASK, seed >> 32
        four = philox((numbers & MASK, stream << 12 | numbers >> 32, step, operation), key)
        expected = np.stack(four, axis=-1).astype("<u4").reshape(-1).view(f"<u{bits // 8}")
        words = RandomWords(seed, step, stream).of(operation)
        for draw in makers:
            found = draw(words, each * counter + 1, each * count - 1, bits)
            assert np.array_equal(found, expected[1:]), (draw, words, counter)


def makers_of_words():
    """Yield what draws: words, a first index, how many, of how many bits."""
    yield lambda words, start, count, bits: words.draws(start, count, bits)
    if find_spec("llvmlite") is not None:
        from mcfsim.compile.loops import draw, draw_rows

        def rows(words, start, count, bits):
            made = np.zeros((2, (count + 1) * bits // 32), np.int32)
            first = replace(words, operation=words.operation - (words.operation > 0))
            draw_rows(first, np.array([words.operation - first.operation, 0]), start * bits // 128, made)
            return made[0].view(f"u{bits // 8}")[1:]

        yield lambda *given: draw(*given, "here")
        yield rows
    if find_spec("torch") is not None:
        import torch

        from mcfsim.compile.torch_calls import drawn

        yield lambda *given: drawn(*given, torch.device("cpu")).numpy()


@pytest.mark.parametrize(("start", "count"), [(5, 0), (1, 1), (3, 6), (17, 100), (2**34 - 3, 9)])
def test_any_range_is_a_part_of_the_whole(start, count):
    stream = RandomWords(5, step=2, stream=7)
    words = stream.words(start, count)
    assert words.tolist() == [int(stream.words(i, 1)[0]) for i in range(start, start + count)]
    assert words.dtype == np.uint32
    assert stream.words(np.int8(100), np.int8(100)).tolist() == stream.words(100, 100).tolist()
    halves = stream.words(2 * start + 1, 2 * count, 16)  # low half first
    assert halves.dtype == np.uint16
    assert halves[1::2].tolist() == [x & 0xFFFF for x in stream.words(start + 1, count).tolist()]
    assert halves[::2].tolist() == [x >> 16 for x in words.tolist()]


def words(*given):
    return RandomWords(0).words(*given)


@refusals(
    refused(ValueError, "must lie in", RandomWords, -1, 2**64, (0, -1), (0, 2**32), (0, 0, -1)),
    refused(ValueError, "must lie in", RandomWords, (0, 0, 2**20), (0, 0, 0, 2**32)),
    refused(TypeError, "must be an int", RandomWords, 1.0, True, (0, "1"), (0, 0, None)),
    refused(ValueError, "must not be negative", words, (-1, 4), (0, -1)),
    refused(ValueError, "32 or 16 bits", words, (0, 4, 8), (0, 4, 64)),
    refused(ValueError, "exceeds", words, (2**46 - 3, 4), (2**47 - 3, 4, 16), (2**70, 1)),
    refused(TypeError, "must be an int", words, (1.5, 2), ("a", 2), (0, 1.5), (0, 2, 16.0), (True, 2)),
)
def test_refusals(rows):
    check(rows)


# -- by seed, step, stream and index alone: not by blocks, threads or who shares what ---------------------
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


def drawing(threads=1, fmt="bfloat16", seed=1, bits=16):
    rounding = Rounding("stochastic", random_bits=bits)
    return mcf.arithmetic(fmt, rounding, random=RandomWords(seed), threads=threads)


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.sampled(10, each=False)
@pytest.mark.slow
def test_results_depend_on_no_threads_and_no_blocks(name):
    """Where blocks end, the last element is what it is in a longer array."""
    x = mcf.round_to(np.random.default_rng(0).standard_normal(LARGE_BLOCK + 2).astype(np.float32), "bfloat16")
    whole = drawing()
    expected = np.atleast_2d(ALGORITHMS[name](whole, x))
    for size, threads in ((1, 1), (BLOCK, 1), (BLOCK + 1, 1), (BLOCK + 1, 2), (LARGE_BLOCK + 1, 4)):
        ar = drawing(threads)
        found = np.atleast_2d(ALGORITHMS[name](ar, x[:size]))
        assert ar.random.operation == whole.random.operation > 0
        assert np.array_equal(found, expected[:, :size], equal_nan=True), (size, threads)


def test_a_result_of_scalars_alone_has_the_word_of_index_0():
    """Two quanta above 1 and a fraction f: up as the first word of the stream says."""
    f = 0.5
    for seed in range(20):
        word = int(RandomWords(seed).words(0, 1, 16)[0])
        expected = 1.0 + 2.0**-7 * (math.floor(f * 2**16) + word >= 2**16)
        for size in (1, 5):
            ar = drawing(seed=seed)
            zeros = np.zeros(size, np.float32)
            inside = ar.evaluate(lambda inner, x: inner.add(x, inner.add(1.0, 2.0**-8)), zeros)
            assert (inside == expected).all()
        assert drawing(seed=seed).add(1.0, 2.0**-8) == expected


@pytest.mark.slow
def test_a_step_of_an_optimizer_depends_on_no_block():
    """A tensor whose last block is one element long, and the same tensor in a longer one."""
    x, g = np.random.default_rng(2).standard_normal((2, BLOCK + 2)).astype(np.float32)
    low, after = mcf.strategy("collage-plus", "bfloat16"), []
    for size in (BLOCK + 1, BLOCK + 2):
        made = Optimizer(mcf.AdamW(), low, {"x": x[:size]}, {"x"}, "stochastic", random=RandomWords(4))
        for _ in range(2):
            made.step(made.receive({"x": g[:size]}), 0.01)
        after.append([item[: BLOCK + 1] for item in made.represented()])
    assert np.array_equal(*after)


@pytest.mark.slow
def test_threads_that_share_an_arithmetic_share_no_stream():
    shared, rounds, threads = drawing(bits=16), 30, 4
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
