"""Random words: published vectors of Philox4x32-10, and independence of how they are asked for."""

import numpy as np
import pytest

from mcfsim.random import RandomWords, philox

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
    words = RandomWords(seed=0x299F31D0A4093822, step=0x13198A2E, stream=0x03707344).words(
        4 * 0x85A308D3243F6A88 & ~3, 4
    )
    assert words.tolist() == list(KNOWN[2][2])


@pytest.mark.parametrize(("start", "count"), [(0, 1), (1, 1), (3, 6), (4, 4), (17, 100), (2**34 - 3, 9)])
def test_any_range_is_a_part_of_the_whole(start, count):
    stream = RandomWords(5, step=2, stream=7)
    single = [int(stream.words(i, 1)[0]) for i in range(start, start + count)]
    assert stream.words(start, count).tolist() == single
    assert stream.words(start, count).dtype == np.uint32


def test_no_words():
    assert RandomWords(0).words(5, 0).shape == (0,)


def test_seeds_steps_and_streams_differ():
    drawn = [
        RandomWords(*key).words(0, 64).tobytes()
        for key in [(0, 0, 0), (1, 0, 0), (2**32, 0, 0), (0, 1, 0), (0, 0, 1), (0, 1, 1)]
    ]
    assert len(set(drawn)) == len(drawn)


@pytest.mark.parametrize("key", [(-1,), (2**64,), (0, -1), (0, 2**32), (0, 0, -1), (0, 0, 2**32)])
def test_keys_out_of_range_are_refused(key):
    with pytest.raises(ValueError, match="must lie in"):
        RandomWords(*key)


def test_words_of_sixteen_bits_are_the_halves_of_those_of_32():
    stream = RandomWords(7, step=1, stream=2)
    words = stream.words(0, 50)
    halves = np.stack([words & 0xFFFF, words >> 16], axis=-1).reshape(-1)
    assert stream.words(0, 100, 16).dtype == np.uint16
    np.testing.assert_array_equal(stream.words(0, 100, 16), halves)
    np.testing.assert_array_equal(stream.words(13, 60, 16), halves[13:73])


@pytest.mark.parametrize(
    "arguments", [(-1, 4), (0, -1), (0, 4, 8), (0, 4, 64), (2**66 - 3, 4), (2**67 - 3, 4, 16), (2**70, 1)]
)
def test_words_that_there_are_not_are_refused(arguments):
    with pytest.raises(ValueError, match=r"must not be negative|32 or 16 bits|exceeds"):
        RandomWords(0).words(*arguments)


@pytest.mark.parametrize("arguments", [(1.5, 2), ("a", 2), (0, 1.5), (0, 2, 16.0), (True, 2)])
def test_indices_of_another_type_are_refused(arguments):
    with pytest.raises(TypeError, match="must be an int"):
        RandomWords(0).words(*arguments)


@pytest.mark.parametrize("key", [(1.0,), (True,), (0, "1"), (0, 0, None)])
def test_keys_of_another_type_are_refused(key):
    with pytest.raises(TypeError, match="must be an int"):
        RandomWords(*key)
