"""Random words: published vectors of Philox4x32-10, and independence of how they are asked for."""

from dataclasses import replace
from importlib.util import find_spec
from itertools import product

import numpy as np
import pytest

from mcfsim import random
from mcfsim.random import RandomWords, philox
from tests.shared.refusals import check, refusals, refused

MASK = 2**32 - 1

#: Salmon, Moraes, Dror, Shaw: kat_vectors of Random123, philox4x32 with 10 rounds.
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_published_known_answers(counter, key, expected):
    assert tuple(int(word) for word in philox(counter, key)) == expected


def test_words_are_those_of_the_counter_in_order():
    stream = RandomWords(seed=0x299F31D0A4093822, step=0x13198A2E, stream=0x85A30)
    words = stream.of(0x03707344).words(4 * 0x8D3243F6A88, 4)
    assert words.tolist() == list(KNOWN[2][2])


#: Ends of what seed, step, stream, operation and counter may be, and numbers between.
ENDS = [
    [0, 1, 2**32, 2**64 - 1],
    [0, 1, 5, 2**31, 2**32 - 1],
    [0, 1, 5, 2**16, 2**20 - 1],
    [0, 1, 5, 2**31, 2**32 - 1],
    [0, 1, 2**32 - 1, 2**32, 2**44 - 1],
]


def test_no_two_places_have_the_same_counter(monkeypatch):
    """Of all that the words are a function of, another value is another key or another counter."""
    met = {}
    monkeypatch.setattr(random, "_encrypt", lambda pairs, key: asked.append((pairs.tolist(), key)))
    for seed, step, stream, operation, counter in product(*ENDS):
        asked = []
        RandomWords(seed, step, stream).of(operation).words(4 * counter, 4)
        ((first, second), key), place = asked[0], (seed, step, stream, operation, counter)
        assert met.setdefault((first, second, key), place) == place
        c0, c1, c2, c3 = first >> 32, first & MASK, second >> 32, second & MASK
        assert (c0 | (c1 & 0xFFF) << 32, c1 >> 12, c2, c3) == (counter, stream, step, operation)
        assert key == (seed & MASK, seed >> 32)
    assert len(met) == 4 * 5**4


@pytest.mark.parametrize("bits", [16, 32])
@pytest.mark.costly("imports Numba and PyTorch, and compiles loops")
@pytest.mark.slow
def test_all_draw_the_words_of_the_counter(bits):
    """NumPy, loops and rows of them, and PyTorch's operations, by the definition."""
    each, makers = 128 // bits, list(makers_of_words())
    for seed, step, stream, operation, counter in product(*(ends[-3:] for ends in ENDS)):
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
    if find_spec("numba") is not None:
        from mcfsim.compile.words import draw, draw_rows

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
    halves = stream.words(2 * start + 1, 2 * count, 16)  # low half first
    assert halves.dtype == np.uint16
    assert halves[1::2].tolist() == [x & 0xFFFF for x in stream.words(start + 1, count).tolist()]
    assert halves[::2].tolist() == [x >> 16 for x in words.tolist()]


def words(*given):
    return RandomWords(0).words(*given)


@refusals(
    refused(
        ValueError, "must lie in", RandomWords, -1, 2**64, (0, -1), (0, 2**32), (0, 0, -1), (0, 0, 2**20)
    ),
    refused(ValueError, "must lie in", RandomWords, (0, 0, 0, 2**32)),
    refused(TypeError, "must be an int", RandomWords, 1.0, True, (0, "1"), (0, 0, None)),
    refused(ValueError, "must not be negative", words, (-1, 4), (0, -1)),
    refused(ValueError, "32 or 16 bits", words, (0, 4, 8), (0, 4, 64)),
    refused(ValueError, "exceeds", words, (2**46 - 3, 4), (2**47 - 3, 4, 16), (2**70, 1)),
    refused(TypeError, "must be an int", words, (1.5, 2), ("a", 2), (0, 1.5), (0, 2, 16.0), (True, 2)),
)
def test_refusals(rows):
    check(rows)
