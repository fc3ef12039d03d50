"""Packed codes against one large integer that holds the whole stream, and against the libraries' bytes."""

from itertools import count, product

import numpy as np
import pytest

from mcfsim.packing import BLOCK, pack, packed_size, unpack
from tests.shared.layouts import LAYOUTS
from tests.shared.refusals import check, refusals, refused

WIDTHS = range(1, 65)


def random_codes(bits, size, seed=1):
    """Return random codes in the shortest dtype, the largest among them."""
    dtype = next(f"u{size}" for size in (1, 2, 4, 8) if bits <= 8 * size)
    codes = np.random.default_rng(seed).integers(0, 2**bits - 1, size, dtype=np.uint64, endpoint=True)
    codes[: size // 8] = 2**bits - 1
    return codes.astype(dtype)


def by_definition(codes, bits):
    """Return the bytes of the integer that has code i at bit ``i * bits``."""
    stream = sum(int(code) << (i * bits) for i, code in enumerate(codes.ravel().tolist()))
    return stream.to_bytes(-(-codes.size * bits // 8), "little")


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.sampled(3, each=False)
def test_every_width_and_small_count_packs_by_the_definition(bits):
    for size in (*range(0, 18, 1 if bits < 20 else 3), 101):
        codes = random_codes(bits, size, seed=size)
        packed = pack(codes, bits)
        assert packed.dtype == np.uint8
        assert packed.shape == (packed_size(size, bits),)
        assert packed.tobytes() == by_definition(codes, bits)
        back = unpack(packed, bits, size)
        assert back.dtype == codes.dtype
        assert np.array_equal(back, codes)


@pytest.mark.parametrize("bits", [1, 3, 4, 6, 7, 8, 12, 16, 19, 32, 53, 64])
@pytest.mark.parametrize("size", [BLOCK, BLOCK + 1, 3 * BLOCK - 3])
@pytest.mark.sampled(3)
def test_blocks_join_without_a_seam(bits, size):
    codes = random_codes(bits, size)
    packed = pack(codes, bits)
    singles = (codes[:, None] >> np.arange(bits, dtype=codes.dtype)) & codes.dtype.type(1)
    stream = np.zeros(8 * packed_size(size, bits), dtype=np.int64)
    stream[: singles.size] = singles.ravel()
    assert np.array_equal(packed, stream.reshape(-1, 8) @ (1 << np.arange(8)))
    packed.flags.writeable = False
    spread = np.repeat(packed, 3)[::3]
    for given in (packed, spread, packed[::-1].copy()[::-1]):
        result = unpack(given, bits, size)
        assert np.array_equal(result, codes)
        assert result.flags.writeable
        assert not np.shares_memory(result, given)


def test_the_low_half_of_a_byte_comes_first():
    assert pack([0x1, 0x2, 0x3], 4).tolist() == [0x21, 0x03]
    assert pack([0b000001, 0b000010, 0b000100, 0b100000], 6).tobytes() == bytes([0x81, 0x40, 0x80])
    assert pack([0x1234, 0xABCD], 16).tobytes() == b"\x34\x12\xcd\xab"


@pytest.mark.parametrize("shape", [(), (0,), (5,), (3, 7), (2, 0, 3), (3, 1, 5)])
def test_shapes_come_back(shape):
    codes = random_codes(6, int(np.prod(shape))).reshape(shape)
    packed = pack(codes.tolist(), 6)
    assert (packed.dtype, packed.tobytes()) == (np.uint8, by_definition(codes, 6))
    for given in (shape, list(shape), tuple(np.int64(length) for length in shape)):
        assert unpack(packed, 6, given).shape == shape
        assert np.array_equal(unpack(packed, 6, given), codes)


@pytest.mark.parametrize("bits", [1, 4, 6, 8, 12, 16, 24])
@pytest.mark.parametrize("dtype", ["u4", "i4", ">u4", ">i8", "u8"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.sampled(12)
def test_codes_are_taken_in_any_layout_and_dtype(layout, dtype, bits):
    given = LAYOUTS[layout](random_codes(bits, 300 * 200).reshape(300, 200).astype(dtype))
    assert np.array_equal(pack(given, bits), pack(np.array(given, dtype[-2:], order="C"), bits))


# -- what is refused --------------------------------------------------------------------------------------
@pytest.mark.parametrize(("bits", "dtype"), [*product([1, 4, 8, 12, 31, 62], ["i8", "u8"]), (63, "u8")])
def test_a_code_of_too_many_bits_is_named(bits, dtype):
    codes = np.zeros((3, BLOCK), dtype=dtype)
    codes[1, 5], codes[2, 7] = 2**bits - 1, 2**bits - 1
    pack(codes, bits)
    codes[1, 5] = 2**bits
    for given in (codes, np.asfortranarray(codes)):
        with pytest.raises(ValueError, match=rf"\(1, 5\) = {2**bits} lies outside \[0, 2\*\*{bits}\)"):
            pack(given, bits)


@pytest.mark.parametrize("bits", [1, 3, 4, 6, 11, 63])
def test_bits_that_fill_up_the_last_byte_must_be_zero(bits):
    size = next(n for n in count(1) if n * bits % 8)
    packed = pack(np.full(size, 2**bits - 1), bits)
    assert np.array_equal(unpack(packed, bits, size), [2**bits - 1] * size)
    for bit in range(size * bits % 8, 8):
        wrong = packed.copy()
        wrong[-1] |= 1 << bit
        with pytest.raises(ValueError, match=r"the last byte is 0x.* must be zero"):
            unpack(wrong, bits, size)


ONE = np.zeros(1, np.uint8)
NEGATIVE = [(np.array([0, 1, -1], f"i{size}"), bits) for size in (1, 2, 4, 8) for bits in (4, 8, 63, 64)]


@refusals(
    refused(ValueError, r"\(2,\) = -1 lies outside", pack, *NEGATIVE),
    refused(TypeError, "codes must be integers, not float64", pack, (np.zeros(0), 4)),
    refused(ValueError, "bits = .* must lie between 1 and 64", pack, *(([0], b) for b in (0, -1, 65))),
    refused(ValueError, "bits = .* must lie between 1 and 64", unpack, *((ONE, b, 1) for b in (0, -1, 65))),
    refused(TypeError, "bits must be an int", pack, *(([0], b) for b in (4.0, "4", None, True))),
    refused(TypeError, "bits must be an int", unpack, *((ONE, b, 1) for b in (4.0, "4", None, True))),
    refused(TypeError, "an array of uint8, not", unpack, (ONE.view("i1"), 4, 2)),
    *(
        refused(ValueError, rf"4 bits take \d bytes .*\({size},\)", unpack, (np.resize(ONE, size), 4, number))
        for number, size in ((5, 2), (5, 4), (0, 1), (1, 0), ((2, 3), 2))
    ),
    refused(ValueError, r"not an array of shape \(1, 4\)", unpack, (np.zeros((1, 4), np.uint8), 4, 8)),
    refused(ValueError, "negative length", unpack, (ONE, 4, -1), (ONE, 4, (2, -3))),
    refused(TypeError, None, unpack, *((ONE, 4, shape) for shape in (2.0, "2", (2.0, 1), None))),
)
def test_refusals(rows):
    check(rows)
