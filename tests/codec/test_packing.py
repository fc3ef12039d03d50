"""Packed codes against one large integer that holds the whole stream, and against the libraries' bytes."""

import itertools
import tracemalloc

import ml_dtypes
import numpy as np
import pytest

from mcfsim.codec import all_values, decode, encode
from mcfsim.codec.packing import BLOCK, pack, packed_size, unpack
from mcfsim.formats import FORMATS

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
def test_every_width_and_small_count_packs_by_the_definition(bits):
    for size in (*range(18), 101):
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
def test_blocks_join_without_a_seam(bits, size):
    codes = random_codes(bits, size)
    packed = pack(codes, bits)
    singles = (codes[:, None] >> np.arange(bits, dtype=codes.dtype)) & codes.dtype.type(1)
    stream = np.zeros(8 * packed_size(size, bits), dtype=np.int64)
    stream[: singles.size] = singles.ravel()
    assert np.array_equal(packed, stream.reshape(-1, 8) @ (1 << np.arange(8)))
    assert np.array_equal(unpack(packed, bits, size), codes)


def test_the_low_half_of_a_byte_comes_first():
    assert pack([0x1, 0x2, 0x3], 4).tolist() == [0x21, 0x03]
    assert pack([0b000001, 0b000010, 0b000100, 0b100000], 6).tobytes() == bytes([0x81, 0x40, 0x80])
    assert pack([0x1234, 0xABCD], 16).tobytes() == b"\x34\x12\xcd\xab"
    assert pack([0x12345], 20).tobytes() == b"\x45\x23\x01"


@pytest.mark.parametrize("bits", [4, 6])
@pytest.mark.parametrize("shape", [(), (0,), (5,), (3, 7), (2, 0, 3), (3, 1, 5)])
def test_shapes_come_back(bits, shape):
    codes = random_codes(bits, int(np.prod(shape))).reshape(shape)
    packed = pack(codes, bits)
    assert packed.tobytes() == by_definition(codes, bits)
    for given in (shape, list(shape), tuple(np.int64(length) for length in shape)):
        assert unpack(packed, bits, given).shape == shape
        assert np.array_equal(unpack(packed, bits, given), codes)


def test_rows_of_a_multiple_of_8_codes_begin_with_a_byte():
    codes = random_codes(6, 5 * 32).reshape(5, 32)
    assert np.array_equal(pack(codes, 6).reshape(5, -1), [pack(row, 6) for row in codes])


@pytest.mark.parametrize("bits", [1, 4, 6, 8, 12, 16, 24])
@pytest.mark.parametrize("dtype", ["u4", "i4", ">u4", ">i8", "u8"])
def test_codes_are_taken_in_any_layout_and_dtype(bits, dtype):
    plain = random_codes(bits, 300 * 200).reshape(300, 200)
    codes = plain.astype(dtype)
    spread = np.zeros((600, 600), dtype=dtype)
    spread[::2, ::3] = codes
    read_only = codes.copy()
    read_only.flags.writeable = False
    for given, same in (
        (codes, plain),
        (codes.T, plain.T.copy()),
        (np.asfortranarray(codes), plain),
        (spread[::2, ::3], plain),
        (codes[::-1, ::-1], plain[::-1, ::-1].copy()),
        (np.broadcast_to(codes[:1], codes.shape), np.repeat(plain[:1], 300, axis=0)),
        (read_only, plain),
    ):
        assert np.array_equal(pack(given, bits), pack(same, bits))


@pytest.mark.parametrize("bits", [1, 4, 6, 8, 16, 64])
def test_bytes_are_taken_in_any_layout_and_left_alone(bits):
    codes = random_codes(bits, 2 * BLOCK + 5)
    packed = pack(codes, bits)
    spread = np.zeros(3 * packed.size, dtype=np.uint8)
    spread[::3] = packed
    packed.flags.writeable = False
    for given in (packed, spread[::3], packed[::-1].copy()[::-1]):
        result = unpack(given, bits, codes.size)
        assert np.array_equal(result, codes)
        assert result.flags.writeable
        assert not np.shares_memory(result, given)


@pytest.mark.parametrize("name", ["float4_e2m1fn", "float6_e3m2fn", "float8_e4m3fn", "bfloat16", "tf32"])
def test_the_values_of_a_format_go_there_and_back(name):
    fmt = FORMATS[name]
    values = all_values(fmt)
    packed = pack(encode(values, fmt), fmt.bits)
    assert packed.nbytes == packed_size(values.size, fmt.bits)
    assert np.array_equal(decode(unpack(packed, fmt.bits, values.shape), fmt), values)


@pytest.mark.parametrize("bits", [8, 16, 32, 64])
def test_whole_bytes_are_those_of_little_endian_arrays(bits):
    codes = random_codes(bits, 1000)
    assert pack(codes, bits).tobytes() == codes.astype(f"<u{bits // 8}").tobytes()


def test_four_bits_are_those_of_two_codes_a_byte():
    pairs = np.array(list(itertools.product(range(16), repeat=2)), dtype=np.uint8)
    packed = pack(pairs, 4)
    assert np.array_equal(packed, pairs[:, 0] + 16 * pairs[:, 1])
    values = np.arange(16, dtype=np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float32)
    assert np.array_equal(decode(unpack(packed, 4, pairs.shape), "e2m1fn"), values[pairs])


# -- what is refused --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("bits", "dtype"), [*itertools.product([1, 4, 6, 8, 12, 31, 62], ["i8", "u8"]), (63, "u8")]
)
def test_a_code_of_too_many_bits_is_named(bits, dtype):
    codes = np.zeros((3, BLOCK), dtype=dtype)
    codes[1, 5], codes[2, 7] = 2**bits - 1, 2**bits - 1
    pack(codes, bits)
    codes[1, 5] = 2**bits
    for given in (codes, np.asfortranarray(codes)):
        with pytest.raises(
            ValueError, match=rf"element \(1, 5\) = {2**bits} lies outside \[0, 2\*\*{bits}\)"
        ):
            pack(given, bits)


@pytest.mark.parametrize("dtype", ["i1", "i2", "i4", "i8"])
@pytest.mark.parametrize("bits", [4, 6, 8, 16, 32, 63, 64])
def test_a_negative_code_is_named(dtype, bits):
    with pytest.raises(ValueError, match=r"element \(2,\) = -1 lies outside"):
        pack(np.array([0, 1, -1], dtype=dtype), bits)


def test_the_largest_codes_of_a_signed_dtype_are_packed():
    largest = 2**63 - 1
    assert unpack(pack(np.array([largest, 0]), 63), 63, 2).tolist() == [largest, 0]
    assert unpack(pack(np.array([largest, 0]), 64), 64, 2).tolist() == [largest, 0]


@pytest.mark.parametrize("codes", [[1.0], ["1"], [True], [None], [1j], [2**70], np.zeros(1, "V1")], ids=repr)
def test_codes_that_are_no_integers_are_refused(codes):
    with pytest.raises(TypeError, match="codes must be integers, not"):
        pack(codes, 4)


@pytest.mark.parametrize("bits", [0, -1, 65])
def test_widths_out_of_range_are_refused(bits):
    for call in (lambda: pack([0], bits), lambda: unpack(np.zeros(1, np.uint8), bits, 1)):
        with pytest.raises(ValueError, match=rf"bits = {bits} must lie between 1 and 64"):
            call()


@pytest.mark.parametrize("bits", [4.0, "4", None, True])
def test_widths_that_are_no_int_are_refused(bits):
    for call in (lambda: pack([0], bits), lambda: unpack(np.zeros(1, np.uint8), bits, 1)):
        with pytest.raises(TypeError, match="bits must be an int"):
            call()


@pytest.mark.parametrize(
    "packed", [[1], b"\x01", np.zeros(1, np.int8), np.zeros(1, np.uint16), None], ids=repr
)
def test_what_are_no_bytes_is_not_unpacked(packed):
    with pytest.raises(TypeError, match="an array of uint8, not"):
        unpack(packed, 4, 2)


@pytest.mark.parametrize(("count", "size"), [(5, 2), (5, 4), (0, 1), (1, 0), ((2, 3), 2)])
def test_too_many_or_too_few_bytes_are_refused(count, size):
    with pytest.raises(ValueError, match=rf"codes of 4 bits take \d bytes .*\({size},\)"):
        unpack(np.zeros(size, np.uint8), 4, count)


def test_bytes_in_two_dimensions_are_refused():
    with pytest.raises(ValueError, match=r"in one dimension, not an array of shape \(1, 4\)"):
        unpack(np.zeros((1, 4), np.uint8), 4, 8)


@pytest.mark.parametrize("bits", [1, 3, 4, 6, 11, 63])
def test_bits_that_fill_up_the_last_byte_must_be_zero(bits):
    count = next(n for n in itertools.count(1) if n * bits % 8)
    packed = pack(np.full(count, 2**bits - 1), bits)
    assert np.array_equal(unpack(packed, bits, count), [2**bits - 1] * count)
    for bit in range(count * bits % 8, 8):
        wrong = packed.copy()
        wrong[-1] |= 1 << bit
        with pytest.raises(ValueError, match=r"the last byte is 0x.* must be zero"):
            unpack(wrong, bits, count)


@pytest.mark.parametrize("shape", [-1, (2, -3)])
def test_negative_lengths_are_refused(shape):
    with pytest.raises(ValueError, match="negative length"):
        unpack(np.zeros(3, np.uint8), 4, shape)


@pytest.mark.parametrize("shape", [2.0, "2", (2.0, 1), None], ids=repr)
def test_lengths_that_are_no_integers_are_refused(shape):
    with pytest.raises(TypeError):
        unpack(np.zeros(1, np.uint8), 4, shape)


# -- memory -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("bits", [4, 6])
def test_memory_beyond_the_result_is_a_few_blocks(bits):
    codes = np.ones((1000, 4000), dtype=np.uint8).T
    for call, given in (
        (pack, codes),
        (lambda packed, bits: unpack(packed, bits, codes.shape), pack(codes, bits)),
    ):
        tracemalloc.start()
        result = call(given, bits)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < result.nbytes + 64 * BLOCK < result.nbytes + codes.nbytes / 2


@pytest.mark.parametrize("empty", [[], (), [[]], [[], []]])
@pytest.mark.parametrize("bits", [1, 4, 8, 11, 64])
def test_no_codes_take_no_bytes(empty, bits):
    packed = pack(empty, bits)
    assert (packed.dtype, packed.shape) == (np.uint8, (0,))
    assert unpack(packed, bits, 0).size == 0
    assert decode(empty, "e4m3fn").size == 0


def test_no_codes_in_an_array_of_floats_are_refused():
    with pytest.raises(TypeError, match="codes must be integers, not float64"):
        pack(np.zeros(0), 4)
