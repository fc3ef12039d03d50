"""Loops compiled by Numba: the bits of NumPy."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("numba", reason="Numba is not installed")
pytest.importorskip("platformdirs", reason="platformdirs is not installed")

import mcfsim as mcf
from mcfsim.backends.factory import on_blocks
from mcfsim.codec import all_values
from mcfsim.compile import trace
from mcfsim.compile.loops import Loop
from mcfsim.compile.lowering import lower
from mcfsim.compile.program import Scalar, flat
from mcfsim.compile.scalars import entering, uses
from mcfsim.formats import Format, get_format
from mcfsim.kernels.carriers import carrier_of
from mcfsim.kernels.element.on_numpy import run
from mcfsim.oracle import operate_integers
from mcfsim.rounding import DETERMINISTIC, Rounding
from tests.oracle.operands import corners


def every(ar, a, b, c):
    """Each operation once."""
    return (
        *(ar.add(a, b), ar.sub(a, b), ar.mul(a, b), ar.div(a, b), ar.sqrt(a), ar.fma(a, b, c)),
        *(ar.neg(a), ar.abs(a), ar.sign(a)),
    )


def operands(fmt, count, size=4000):
    rng, carrier = np.random.default_rng(1), carrier_of(fmt)
    with np.errstate(all="ignore"):
        some = mcf.round_to(rng.standard_normal(size) * 2.0 ** rng.integers(-9, 9, size), fmt)
        pool = np.concatenate([some.astype(carrier), corners(fmt).astype(carrier)])
    return [rng.choice(pool, size) for _ in range(count)]


@pytest.mark.parametrize("mode", DETERMINISTIC)
@pytest.mark.parametrize(
    "fmt", ["bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "tf32", "posit8", "int8"]
)
@pytest.mark.sampled(4)
def test_every_operation_has_the_bits_of_numpy(fmt, mode, assert_same):
    fmt = get_format(fmt)
    program = trace(every, fmt, mode)
    given = operands(fmt, 3)
    with np.errstate(all="ignore"):
        expected = program.run(on_blocks, *given)
    for mine, other in zip(Loop(program)(*given), expected, strict=True):
        assert_same(mine, other)


@pytest.mark.parametrize("mode", ["nearest_even", "up"])
@pytest.mark.parametrize("wide", ["float32", "float64", "float16", "bfloat16", "tf32", "e5m6", "float8_e5m2"])
@pytest.mark.parametrize(
    "fmt", ["bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "e5m6", "posit8", "int8"]
)
def test_values_are_brought_over_to_formats_that_have_them_and_others(fmt, wide, mode, assert_same):
    program = trace(lambda ar, x: ar.like(get_format(wide), ar.rounding).round(x), fmt, mode, operands=("x",))
    lowered, values = lower(program, ()), all_values(fmt)
    strange = np.array([0x7F812345, 0xFFC00001], np.uint32).view(np.float32)  # NaN
    values = np.concatenate([values, strange.astype(values.dtype)])
    with np.errstate(all="ignore"):
        expected = program.run(on_blocks, values)
    (found,) = run(lowered.line, lowered.results, **{str(lowered.operands[0].constant): values})
    assert_same(found, expected)


def test_real_scalars_enter_exactly(assert_same):
    def text(ar, a, b, rate):
        return ar.mul(a, -rate), ar.div(a, rate), ar.add(b, rate), ar.fma(a, rate, b), ar.add(a, 0.1)

    program = trace(text, "bfloat16", operands=("a", "b", Scalar("rate")))
    given, loop = operands(get_format("bfloat16"), 2), Loop(program)
    for rate in (0.9, 1 - 0.9, 3e-4, 1e-8, -160.1):
        with np.errstate(all="ignore"):
            expected = program.run(on_blocks, *given, rate=rate)
        for mine, other in zip(loop(*given, rate=rate), expected, strict=True):
            assert_same(mine, other)


@pytest.mark.parametrize("rate", [1e300, 2**53 + 1, 1e-200])
def test_scalars_too_far_out_are_refused(rate):
    program = trace(lambda ar, a, rate: ar.fma(a, rate, a), "bfloat16", operands=("a", Scalar("rate")))
    with pytest.raises(ValueError, match="beyond what a compiled loop takes exactly"):
        Loop(program)(np.ones(3, np.float32), rate=rate)


def test_tuples_come_and_go_as_the_text_has_them(assert_same):
    program = trace(mcf.double_word.dw_plus_fp, "bfloat16", operands=(("high", "low"), "y"))
    high, low, y = operands(get_format("bfloat16"), 3)
    found = Loop(program)((high, low), y)
    with np.errstate(all="ignore"):
        expected = program.run(on_blocks, high, low, y)
    for mine, other in zip(flat(found), flat(expected), strict=True):
        assert_same(mine, other)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ((np.ones(3), np.ones(3, np.float32)), "a must be a contiguous vector of float32"),
        ((np.ones((2, 2), np.float32), np.ones(4, np.float32)), "a must be a contiguous vector"),
        ((np.ones(6, np.float32)[::2], np.ones(3, np.float32)), "a must be a contiguous vector"),
        ((np.ones(3, np.float32), np.ones(4, np.float32)), "b has 4 elements, not 3"),
    ],
)
def test_other_arrays_are_refused(arrays, message):
    with pytest.raises((TypeError, ValueError), match=message):
        Loop(trace(mcf.two_sum, "bfloat16"))(*arrays)


def test_the_source_is_the_same_every_time():
    assert Loop(trace(mcf.two_sum, "bfloat16")).with_scalars({}).source == (
        Loop(trace(mcf.two_sum, "bfloat16")).with_scalars({}).source
    )


def test_operands_may_be_called_as_what_is_in_a_source(assert_same):
    def text(ar, i, r0, s0, found, f32, out0):
        total = ar.fma(i, 0.1, ar.mul(r0, s0))
        return ar.add(ar.add(total, found), ar.sub(f32, out0)), i

    given = operands(get_format("bfloat16"), 6)
    program = trace(text, "bfloat16")
    with np.errstate(all="ignore"):
        expected = program.run(on_blocks, *given)
    for mine, other in zip(Loop(program)(*given), expected, strict=True):
        assert_same(mine, other)
    named = trace(lambda ar, x, y: ar.sub(x, y), "bfloat16", operands=("not a name", "lambda"))
    assert_same(Loop(named)(*given[:2]), named.run(on_blocks, *given[:2]))
    with pytest.raises(ValueError, match="names of their own"):
        trace(lambda ar, x, y: ar.sub(x, y), "bfloat16", operands=("a", "a"))


def test_a_source_tells_which_operation_each_statement_is_for():
    shown = Loop(trace(mcf.fast_two_sum, "bfloat16")).with_scalars({}).source
    notes = [line.strip() for line in shown.splitlines() if line.strip().startswith("#")]
    assert [note.split("  ")[0] for note in notes] == [
        "# t1 = add(a, b)",
        "# t2 = sub(t1, a)",
        "# t3 = sub(b, t2)",
    ]
    one, other = (
        Loop(trace(lambda ar, x: ar.mul(x, rate), "bfloat16", lines=False)).with_scalars({}).source  # noqa: B023
        for rate in (0.1, 0.3)
    )
    assert one == other  # nothing is compiled again for another number


@pytest.mark.parametrize("fmt", ["bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz"])
def test_packed_loops_read_and_write_codes(fmt):
    fmt = get_format(fmt)
    program = trace(every, fmt)
    some = [mcf.codec.encode(x, fmt) for x in operands(fmt, 3)]
    every_code = np.random.default_rng(2).integers(
        0, 1 << fmt.bits, (3, 1 << 16), some[0].dtype
    )  # all NaN too
    codes = [np.concatenate(pair) for pair in zip(some, every_code, strict=True)]
    given = [mcf.codec.decode(x, fmt) for x in codes]
    for mine, other in zip(Loop(program, packed=True)(*codes), Loop(program)(*given), strict=True):
        assert mine.dtype == mcf.codec.code_dtype(fmt)
        assert np.array_equal(mine, mcf.codec.encode(other, fmt))


@pytest.mark.slow
def test_formats_without_short_codes_stay_as_they_are(assert_same):
    for name in ("tf32", "int8", "posit8", "float4_e2m1fn"):
        program, given = trace(every, name), operands(get_format(name), 3)
        for mine, other in zip(Loop(program, packed=True)(*given), Loop(program)(*given), strict=True):
            assert_same(mine, other)


def test_checked_packed_loops_tell_integers_that_are_no_codes():
    fmt = Format("gaps", precision=4, emin=-3, emax=0)  # of its seven bits some stand for nothing
    program = trace(mcf.two_sum, fmt)
    loop = Loop(program, checked=True, packed=True)
    codes = np.arange(256, dtype=np.uint8)
    for code in codes:
        given = np.array([code], np.uint8)
        try:
            mcf.codec.decode(given, fmt)
        except ValueError:
            with pytest.raises(ValueError, match="no value"):
                loop(given, np.zeros(1, np.uint8))
        else:
            loop(given, np.zeros(1, np.uint8))


@pytest.mark.parametrize("mode", DETERMINISTIC)
@pytest.mark.parametrize("fmt", ["bfloat16", "float16", "float8_e5m2"])
@pytest.mark.sampled(4)
def test_an_fma_with_a_short_scalar_stays_in_the_carrier(fmt, mode, assert_same):
    fmt, rounding = get_format(fmt), Rounding(mode)
    x, c = operands(fmt, 2)

    def exact(name, *given):
        wide = (np.broadcast_to(np.float64(item), x.shape) for item in given)
        return operate_integers(name, *wide, fmt=fmt, rounding=rounding)

    for number in (1.0, -0.75, 0.998046875, 2.0**-16, 2.0**-18, 3.0, 1e3):
        scalar = float(mcf.round_to(number, fmt))

        def text(ar, x, c, scalar=scalar):
            return ar.fma(x, scalar, c), ar.fma(scalar, x, ar.neg(ar.mul(x, scalar)))

        found = Loop(trace(text, fmt, rounding, operands=("x", "c")))(x, c)
        assert_same(found[0], exact("fma", x, scalar, c), x, c)
        assert_same(found[1], exact("fma", x, scalar, -exact("mul", x, scalar)), x)
    ways = {}
    for number in (1.0, 2.0**-20, 1e4):
        program = trace(lambda ar, x, c: ar.fma(x, 1.0, c), fmt)
        ways[number] = entering(uses(program)[0], float(mcf.round_to(number, fmt)), "exact")[0]
    assert ways[1.0] == "short"
    assert (ways[2.0**-20] == "short") is (str(fmt) == "float16")
    assert (ways[1e4] == "short") is (fmt.emax < 100)
