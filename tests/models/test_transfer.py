"""Changes of weights as bytes: exactly those that were sent, or an error that says what is wrong."""

import struct
import zlib

import ml_dtypes
import numpy as np
import pytest

from mcfsim.models import transfer
from mcfsim.models.transfer import Delta, Encoding, apply_delta, expected_bytes

DTYPES = ("uint8", "uint16", "float32", "float64", ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn)


def pair(size, share, dtype="uint16", seed=0):
    """Return codes, and the same with a share of them changed."""
    random = np.random.default_rng(seed)
    width = np.dtype(dtype).itemsize
    old = random.integers(0, 2**8, (size, width), np.uint8)
    new = old.copy()
    new[random.random(size) < share, random.integers(width)] ^= 1
    return old.reshape(-1).view(dtype), new.reshape(-1).view(dtype)


def by_hand(encoding, old, new):
    """Return what follows the head, code by code."""
    old, new = (x.view(f"u{x.itemsize}") for x in (old, new))
    changed = np.flatnonzero(old != new).tolist()
    old, new = old.tolist(), new.tolist()
    values = struct.pack(f"<{len(changed)}H", *(new[place] for place in changed))
    if encoding == "mask":
        bits = [
            sum((p in changed) << k for k, p in enumerate(range(i, i + 8))) for i in range(0, len(old), 8)
        ]
        return bytes(bits) + values
    if encoding == "indices":
        return struct.pack(f"<{len(changed)}I", *changed) + values
    if encoding == "gaps":
        words, at = [], 0
        for place in changed:
            while place - at >= 65535:
                words.append(65535)
                at += 65535
            words.append(place - at)
            at = place + 1
        return struct.pack(f"<{len(words)}H", *words) + values
    sent = new if encoding == "dense" else [a ^ b for a, b in zip(old, new, strict=True)]
    return struct.pack(f"<{len(sent)}H", *sent)


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("encoding", [*Encoding])
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_sent_arrives(dtype, encoding, compress):
    for size, share in ((0, 0.0), (1, 1.0), (9, 0.0), (1000, 0.01), (1000, 0.5), (77, 1.0)):
        old, new = pair(size, share, dtype, size)
        delta = Delta.between(old, new)
        sent, there = delta.encode(encoding, new, compress=compress), old.copy()
        assert apply_delta(sent, there) == delta.places.size
        assert there.tobytes() == new.tobytes()


@pytest.mark.parametrize("encoding", [*Encoding])
def test_codes_are_the_same_in_both_byte_orders(encoding):
    old, new = pair(300, 0.05, "float32")
    sent = Delta.between(old, new).encode(encoding, new)
    turned, changed = (x.astype(">f4") for x in (old, new))
    delta = Delta.between(turned, changed)
    assert delta.encode(encoding, changed) == delta.encode(encoding, new) == sent
    given = (x.astype(x.dtype.newbyteorder()) for x in (delta.places, delta.after, delta.before))
    assert Delta(delta.size, *given).encode(encoding, new) == sent
    apply_delta(sent, turned)
    assert turned.tobytes() == changed.tobytes()


@pytest.mark.parametrize("encoding", [*Encoding])
def test_a_matrix_is_its_numbers(encoding):
    """Its rows stay rows, however it is laid out."""
    old, new = pair(300, 0.05)
    delta, there = Delta.between(old, new), old.copy().view(np.matrix)
    apply_delta(delta.encode(encoding, new), there)
    assert there.tobytes() == new.tobytes()


@pytest.mark.parametrize("encoding", [*Encoding])
def test_the_bytes_are_those_written_code_by_code(encoding):
    old, new = pair(300, 0.05)
    sent = Delta.between(old, new).encode(encoding, new)
    assert sent[32:] == by_hand(encoding, old, new)


@pytest.mark.slow
def test_gaps_of_any_length():
    """At both ends, and around each multiple of what one word says."""
    places = np.cumsum([0, 1, 65534, 65535, 65536, 65537, 131070, 131071, 1, 327675])
    old = np.zeros(int(places[-1]) + 1, np.uint16)
    for kept in (places, places[1:], places[3:], places[-1:]):
        new = old.copy()
        new[kept] = np.arange(1, kept.size + 1)
        sent, there = Delta.between(old, new).encode("gaps"), old.copy()
        assert sent[32:] == by_hand("gaps", old, new)
        apply_delta(sent, there)
        assert np.array_equal(there, new)


def test_zeros_of_other_signs_and_codes_of_nan_differ():
    codes = np.array([0x0000, 0x8000, 0x7FC0, 0x7FC1, 0x3F80], np.uint16)
    old, new = codes.view(ml_dtypes.bfloat16), codes[[1, 0, 3, 2, 4]].view(ml_dtypes.bfloat16)
    delta = Delta.between(old, new)
    assert delta.places.tolist() == [0, 1, 2, 3]
    assert delta.after.tolist() == [0x8000, 0x0000, 0x7FC1, 0x7FC0]


@pytest.mark.parametrize("encoding", [*Encoding])
@pytest.mark.parametrize("compress", [False, True])
def test_damaged_bytes_change_nothing(encoding, compress):
    """Each bit turned over, each length cut, and bytes at the end."""
    old, new = pair(60, 0.1)
    sent = Delta.between(old, new).encode(encoding, new, compress=compress)
    damaged = [sent[:length] for length in range(len(sent))] + [sent + b"\0"]
    for bit in range(8 * len(sent)):
        turned = bytearray(sent)
        turned[bit // 8] ^= 1 << bit % 8
        damaged.append(bytes(turned))
    for data in damaged:
        there = old.copy()
        with pytest.raises(ValueError, match=r"bytes"):
            apply_delta(data, there)
        assert np.array_equal(there, old)


def signed(fields, payload):
    """Return bytes whose checksum is right, whatever they say."""
    head = struct.pack("<4sBBBBQQI", b"mcfd", 1, *fields)
    return head + struct.pack("<I", zlib.crc32(payload, zlib.crc32(head + bytes(4)))) + payload


def test_what_contradicts_itself_is_refused_though_its_checksum_is_right():
    base = zlib.crc32(bytes(2))
    for fields, payload in (
        ((2, 2, 2, 10, 1, base), struct.pack("<2H", 10, 7)),  # a gap that leads beyond the end
        ((2, 2, 2, 10, 1, base), struct.pack("<2H", 65535, 7)),  # one that does not end
        ((1, 2, 2, 10, 1, base), struct.pack("<IH", 10, 7)),
        ((0, 2, 2, 10, 1, base), struct.pack("<3B", 3, 0, 0) + b"\7"),  # two places for one code
        ((3, 2, 2, 10, 2, base), bytes(18) + b"\1\0"),
        ((4, 2, 0, 10, 1, 0), bytes(18)),
        ((2, 2, 3, 10, 1, base), zlib.compress(bytes(10**6))),  # that inflates to more than there may be
        ((2, 2, 3, 10, 1, base), bytes(8)),
    ):
        there = np.zeros(10, np.uint16)
        with pytest.raises(ValueError, match=r"bytes follow|change up to|be inflated"):
            apply_delta(signed(fields, payload), there)
        assert not there.any()


@pytest.mark.parametrize("encoding", ["mask", "indices", "gaps", "xor"])
def test_a_change_that_was_missed_is_found(encoding):
    old, new = pair(500, 0.1)
    sent = Delta.between(old, new).encode(encoding)
    there = new.copy()
    with pytest.raises(ValueError, match="was missed"):
        apply_delta(sent, there)
    assert np.array_equal(there, new)


def test_without_old_codes_nothing_is_known_of_the_weights():
    old, new = pair(500, 0.1)
    delta = Delta.between(old, new)
    there = np.zeros_like(old)
    assert (
        apply_delta(Delta(delta.size, delta.places, delta.after).encode("gaps"), there) == delta.places.size
    )
    assert np.array_equal(there, np.where(old != new, new, 0))


def test_what_is_refused():
    old, new = pair(50, 0.5)
    delta = Delta.between(old, new)
    sent = delta.encode("gaps")
    places = np.array([1, 2])
    for why, call, error in (
        ("not as str", lambda: apply_delta("x", old), TypeError),
        ("an array", lambda: apply_delta(sent, [1, 2]), TypeError),
        ("masked", lambda: apply_delta(sent, np.ma.array(old, hard_mask=True)), TypeError),
        ("50 codes of 2 bytes", lambda: apply_delta(sent, old[:-1].copy()), ValueError),
        ("50 of 4", lambda: apply_delta(sent, old.astype(np.uint32)), ValueError),
        ("contiguous", lambda: apply_delta(sent, np.repeat(old, 2)[::2]), ValueError),
        ("hand them over", lambda: delta.encode("dense"), ValueError),
        ("not the new ones", lambda: delta.encode("dense", old), ValueError),
        ("not 50 of 2 bytes", lambda: delta.encode("dense", old[1:]), ValueError),
        ("not kept", lambda: Delta(9, places, places.astype("u2")).encode("xor"), ValueError),
        ("zip", lambda: delta.encode("zip"), ValueError),
        ("uint16", lambda: Delta.between(old, new.astype(np.int32)), TypeError),
        ("shape", lambda: Delta.between(old, new[1:]), ValueError),
        ("complex128", lambda: Delta.between(old.astype(complex), new.astype(complex)), TypeError),
        ("ascend", lambda: Delta(2, places, places.astype("u2"), places.astype("u2") + 1), ValueError),
        ("ascend", lambda: Delta(9, places[::-1], places.astype("u2")), ValueError),
        (
            "at place 2 the code stays 2",
            lambda: Delta(9, places, np.uint16([0, 2]), np.uint16([1, 2])),
            ValueError,
        ),
        ("size must be an int", lambda: Delta(9.0, places, places.astype("u2")), TypeError),
        ("size = -1", lambda: Delta(-1, places[:0], places[:0].astype("u2")), ValueError),
        ("unsigned", lambda: Delta(9, places, places), TypeError),
        ("do not become", lambda: Delta(9, places, places.astype("u1"), places.astype("u2")), TypeError),
        ("2 places", lambda: Delta(9, places, places.astype("u2"), places[:1].astype("u2")), ValueError),
    ):
        with pytest.raises(error, match=why):
            call()


@pytest.mark.parametrize("share", [0.0, 1e-5, 1e-3, 0.3, 1.0])
def test_expected_sizes_are_those_of_codes_that_change_at_random(share):
    """Within six standard deviations of the number that change, each of which takes six bytes at most."""
    size = 1 << 20
    old, new = pair(size, share)
    delta, expected = Delta.between(old, new), expected_bytes(size, share, 2)
    most = 6 * (share * (1 - share) * size) ** 0.5
    for encoding in Encoding:
        found = len(delta.encode(encoding, new))
        assert abs(found - expected[encoding]) <= 6 * most, encoding


@pytest.mark.parametrize("share", [1e-9, 0.2, 0.9])
def test_expected_sizes_are_means_over_all_changes(share, monkeypatch):
    """Of seven codes, where two that stay take a word."""
    monkeypatch.setattr(transfer, "_MORE", 2)
    mean = dict.fromkeys(Encoding, 0.0)
    for bits in range(1 << 7):
        new = np.array([bits >> k & 1 for k in range(7)], np.uint8)
        delta, count = Delta.between(np.zeros_like(new), new), int(new.sum())
        for encoding in Encoding:
            mean[encoding] += share**count * (1 - share) ** (7 - count) * len(delta.encode(encoding, new))
    assert mean == pytest.approx(expected_bytes(7, share, 1), rel=1e-14)
