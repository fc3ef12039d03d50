"""Vectors that hold codes: what these are, of which bytes, and what is refused."""

from functools import partial

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.codec import decode, encode
from mcfsim.formats import Format
from mcfsim.kernels.codes_by_kind import codes_by_kind
from mcfsim.optim.vectors import Split, packed_dtype, read, write
from tests.optim.stored import SHORT, made

#: As bfloat16, but for the largest numbers, whose codes stand for nothing.
GAPS = Format("gaps", precision=8, emin=-126, emax=126)
packed = partial(made, 3, hyper=mcf.SGD(), packed=True)


@pytest.mark.parametrize(("low", "following"), [("bfloat16", 2), (SHORT, 4)], ids=str)
def test_of_a_split_master_copy_the_bits_that_follow_are_stored(low, following):
    optimizer = packed("split-master", low)
    (extra,) = optimizer.state.extra
    assert extra.itemsize == following
    assert extra.leading is optimizer.state.parameter[0]
    if low == "bfloat16":  # with a gradient of two bytes, and a v of four
        size = sum(x.itemsize for items in optimizer.state for x in items)
        assert size + 2 + 4 == optimizer.strategy.bytes_per_parameter


@pytest.mark.parametrize("mode", ["nearest_away", "toward_zero"])
def test_split_numbers_are_those_of_the_bits(mode, assert_same):
    """All leading halves with many that follow; the codes beside are the judge's, or by their definition."""
    follow = np.array([0, 1, 2**15 - 1, 2**15, 2**15 + 1, 2**16 - 1], np.uint32)
    bits = (np.arange(2**16, dtype=np.uint32)[:, None] << 16 | follow).reshape(-1)
    numbers = bits.view(np.float32).copy()
    numbers[np.isnan(numbers)] = np.nan
    leading = mcf.codec.encode(mcf.round_to(numbers, "bfloat16", mode), "bfloat16")
    away = mode == "nearest_away"
    known = ~np.isnan(numbers)
    assert np.array_equal(leading[known], (bits + (2**15 if away else 0) >> 16)[known])
    fmt = mcf.get_format("bfloat16")
    vector = Split.beside(leading, np.zeros(leading.size, Split.form(fmt)), fmt, rounded=away)
    vector.keep(numbers)
    assert np.array_equal(vector.rest[known], (bits & 0xFFFF)[known])
    assert_same(vector.numbers(), numbers)


def test_the_start_of_a_split_master_copy_is_rounded_as_a_step_rounds():
    start = {"w": np.array([1 + 2.0**-8, 1 + 3 * 2.0**-8, -1 - 2.0**-8, 1 + 2.0**-8 - 2.0**-24])}
    for optimizer in (made(start, "split-master", packed=packed) for packed in (False, True)):
        # The last is rounded to float32, where it becomes a tie, and then away from zero.
        shown = [1 + 2.0**-7, 1 + 2.0**-6, -1 - 2.0**-7, 1 + 2.0**-7]
        assert optimizer.weights()["w"].tolist() == shown
        assert optimizer.represented()[0].tolist() == start["w"].astype(np.float32).tolist()


@pytest.mark.parametrize(("low", "size"), [("bf16", 2), ("e4m3fn", 1), ("tf32", 4), ("float4_e2m1fn", 4)])
def test_codes_take_the_bytes_of_a_code_where_there_is_one_for_nan(low, size):
    optimizer = packed("plain", low)
    assert {x.itemsize for items in optimizer.state for x in items} == {size}
    assert optimizer.step(optimizer.receive({"w": np.ones(3)}), 0.5).itemsize == size
    assert optimizer.weights()["w"].tolist() == [0.5] * 3


@pytest.mark.parametrize("fmt", ["bfloat16", "e8m2", "float16", "float8_e4m3fn", GAPS, "posit16es1"])
def test_all_codes_are_read_as_their_values_and_written_again(fmt, assert_same):
    """Those that are the upper bits of a carrier's numbers, too, and those that nearly are."""
    fmt = mcf.get_format(fmt)
    codes = np.arange(1 << fmt.bits, dtype=packed_dtype(fmt))
    codes = codes[~codes_by_kind(fmt).unassigned(codes)] if codes_by_kind(fmt).gaps else codes
    values = decode(codes, fmt)
    assert_same(read(codes, fmt), values)
    written = np.zeros_like(codes)
    write(written, read(codes, fmt), fmt)
    nan = np.isnan(values)
    np.testing.assert_array_equal(written[~nan], codes[~nan])
    assert set(written[nan]) == set(encode([np.nan], fmt))


def test_what_is_no_code_is_refused_before_anything_changes():
    gaps = Format("gaps", precision=4, emin=-3, emax=0)
    optimizer = packed("plain", gaps)
    before = optimizer.state.parameter[0].copy()
    for codes in ([0, 255, 0], [0, 0b0101000, 0]):
        with pytest.raises(ValueError, match="element"):
            optimizer.step(np.array(codes, np.uint8), 0.1)
    with pytest.raises(TypeError, match="codes of gaps are an array of uint8, not uint16"):
        optimizer.step(np.zeros(3, np.uint16), 0.1)
    assert optimizer.count == 0
    assert np.array_equal(optimizer.state.parameter[0], before)
