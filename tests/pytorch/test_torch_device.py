"""Arithmetic on tensors has the bits of NumPy: as users get it, by PyTorch's own operations, by kernels."""

from fractions import Fraction

import numpy as np
import pytest
import torch

import mcfsim as mcf
from mcfsim.compile import torch_loops
from mcfsim.kernels.carriers import UnsupportedFormatError
from mcfsim.kernels.element.codes import has_codes
from mcfsim.multiword import double_word, expansion, shewchuk, summation
from mcfsim.storage.buffers import BLOCK
from tests.pytorch import devices
from tests.pytorch.devices import both, check, here, operation, there, values

#: Formats, modes, and policies of over- and underflow.
ROUNDINGS = [
    *((fmt, mode, ()) for fmt in devices.FORMATS for mode in devices.MODES if fmt != "float64"),
    *(("float64", mode, ()) for mode in devices.MODES if mode != "stochastic"),  # of which none is exact
    ("bfloat16", "up", ("saturate", "gradual")),
    ("float8_e4m3fn", "stochastic", ("nearest_boundary", "gradual")),
    ("float16", "down", ("ieee", "flush_inputs")),
    ("float32", "nearest_even", ("ieee", "flush_before")),
    ("float16", "stochastic", ("ieee", "flush_after")),
]


@pytest.mark.slow
@pytest.mark.parametrize(("fmt", "mode", "policies"), ROUNDINGS)
@pytest.mark.sampled(71, each=False)
def test_every_operation_has_the_bits_of_numpy(fmt, mode, policies, device, kernels, assert_same):
    ours, theirs = both(fmt, mode, *policies, device=device, kernels=kernels)
    sizes = (0, -110, -12) if policies else (0,)
    x = np.concatenate([devices.numbers(3) * 2.0**size for size in sizes], axis=1)
    check(assert_same, operation("round"), ours, theirs, there(x, device))
    t = there(theirs.like(theirs.format, mcf.Rounding()).round(x).astype(theirs.carrier), device)
    for name, count in {**devices.OPERATIONS, "round": 1}.items():
        check(assert_same, operation(name), ours, theirs, *t[:count])
    if has_codes(theirs.format):
        check(assert_same, operation("exp"), ours, theirs, t[0])
    assert ours.random == theirs.random


@pytest.mark.parametrize("fmt", ["tf32", "posit8", "int8", "float4_e2m1fn"])
@pytest.mark.parametrize("kernels", [False, True], indirect=True)
def test_functions_that_have_no_table_are_refused(fmt, device, kernels):
    ours, _ = both(fmt, device=device, kernels=kernels)
    with pytest.raises(UnsupportedFormatError, match=r"exp in \w+: loops and devices read tables"):
        ours.exp(torch.ones(2, device=device))


@pytest.mark.slow
@pytest.mark.parametrize("scalars", ["exact", "rounded", "float32"])
@pytest.mark.parametrize("mode", ["nearest_even", "down", "stochastic"])
@pytest.mark.parametrize("fmt", ["bfloat16", "float32", "float8_e4m3fn"])
@pytest.mark.sampled(162, each=False)
def test_real_scalars_easy_and_hard(fmt, mode, scalars, device, kernels, assert_same):
    ours, theirs = both(fmt, mode, device=device, kernels=kernels, scalars=scalars)
    _, t = values(2, ours, theirs)
    hard = 1.0 + 2.0**-8 + 2.0**-40  # next to a boundary of bfloat16's products
    chosen = (0.5, 0.1, hard, -0.0, np.inf, np.nan)
    for s in chosen[::2] if kernels else chosen:  # interpreted kernels take long
        for text in devices.WITH_SCALARS.values():
            check(assert_same, text, ours, theirs, *t, s)
    assert ours.random == theirs.random


@pytest.mark.parametrize("kernels", [False, True], indirect=True)
def test_real_scalars_that_binary64_does_not_hold_are_refused_unless_rounded(device, kernels, assert_same):
    third = Fraction(1, 3)
    ours, theirs = both("bfloat16", device=device, kernels=kernels, scalars="rounded")
    _, t = values(2, ours, theirs)
    check(assert_same, operation("fma"), ours, theirs, t[0], third, t[1])
    exact, _ = both("bfloat16", device=device, kernels=kernels)
    with pytest.raises(UnsupportedFormatError, match=r"fma with .* is beyond what"):
        exact.fma(t[0], third, t[1])


@pytest.mark.parametrize("mode", ["nearest_even", "up", "stochastic"])
@pytest.mark.parametrize("fmt", ["bfloat16", "float8_e5m2", "tf32"])
@pytest.mark.sampled(3)
def test_whole_texts(fmt, mode, device, kernels, assert_same):
    """Called, and evaluated; of several components, too, where rounding is to nearest."""
    ours, theirs = both(fmt, mode, device=device, kernels=kernels)
    _, t = values(3, ours, theirs)
    texts = [
        lambda ar, x, y, z: ar.evaluate(mcf.two_sum, x, y),
        lambda ar, x, y, z: mcf.grow(ar, (x, y), z),
        lambda ar, x, y, z: ar.evaluate(
            lambda ar, x, y, z: (ar.mul(mcf.two_sum(ar, x, y)[0], 0.9), z, 0.1, ar.add(z, ar.neg(x))), x, y, z
        ),
        lambda ar, x, y, z: ar.evaluate(lambda ar, x: (ar.add(x, 0.1), ar.neg(x))[1], x),  # words unused
    ]
    if mode == "nearest_even" and fmt != "tf32":
        texts += [
            lambda ar, x, y, z: double_word.dw_div_fp2(ar, (x, y), z),
            lambda ar, x, y, z: expansion.mul(ar, (x, y), (y, z)),
            lambda ar, x, y, z: shewchuk.expansion_sum(ar, (x, y), (y, z)),
            lambda ar, x, y, z: summation.neumaier_sum(ar, (x, y, z)),
            lambda ar, x, y, z: summation.sum_k(ar, (x, y, z), 3),
        ]
    for text in texts:
        check(assert_same, text, ours, theirs, *t)
        assert ours.random == theirs.random


DTYPES = (
    *("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e5m2fnuz"),
    *("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"),
)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["nearest_even", "down", "stochastic"])
@pytest.mark.parametrize("fmt", ["bfloat16", "float8_e4m3fn", "float32", "float64", "int8"])
@pytest.mark.sampled(5)
def test_tensors_of_every_dtype_are_rounded_and_taken_in(fmt, mode, device, kernels, assert_same):
    ours, theirs = both(fmt, mode, device=device, kernels=kernels)
    devices.or_eager(ours)  # no kernel takes integers of 64 bits
    for dtype in DTYPES:
        t, a = devices.of_dtype(dtype, device)
        check(assert_same, operation("round"), ours, theirs, t, arrays=[a])
        if dtype.startswith(("float", "bfloat", "int")):
            a = np.array([[0.0, 1.0, 2.0, -1.0]], np.float32)
            t = there(a, device).to(t.dtype)
            check(assert_same, lambda ar, x: ar.add(x, 1.0), ours, theirs, t, arrays=[a])
    assert ours.random == theirs.random


def test_integers_are_rounded_once_or_refused_and_flushed_whole(device, kernels, assert_same):
    ours, theirs = both("float64", "up", device=device, kernels=kernels)
    devices.or_eager(ours)
    assert here(ours.round(torch.tensor([2**53, 2**60], device=device))).tolist() == [2.0**53, 2.0**60]
    with pytest.raises(UnsupportedFormatError, match=r"integers beyond 2\*\*53 cannot be rounded up"):
        ours.round(torch.tensor([0, 2**53 + 1], device=device))
    for fmt in (mcf.Format(precision=53, emin=70, emax=100), mcf.Posit(59, 4)):
        coarse, _ = both(fmt, device=device, kernels=kernels)
        devices.or_eager(coarse)
        with pytest.raises(UnsupportedFormatError, match="cannot be rounded nearest_even"):
            coarse.round(torch.tensor([2**62 + 1], device=device))
    fmt = mcf.Format(precision=4, emin=3, emax=40)
    for underflow in ("flush_inputs", "flush_before", "gradual"):
        ours, theirs = both(fmt, "up", "ieee", underflow, device=device, kernels=kernels)
        devices.or_eager(ours)
        x = np.array([5, 9, 2**32 + 5, -(2**32) - 5, 0, -5])
        check(assert_same, operation("round"), ours, theirs, there(x, device))


# -- blocks, stretches ------------------------------------------------------------------------------
@pytest.mark.parametrize("mode", ["nearest_even", "stochastic"])
@pytest.mark.sampled(2, each=False)
def test_large_tensors_are_worked_on_in_stretches(mode, device, kernels, monkeypatch, assert_same):
    ours, theirs = both("bfloat16", mode, device=device, kernels=kernels)
    a, t = values(2, ours, theirs)
    monkeypatch.setattr(torch_loops, "AT_ONCE", 101)
    check(assert_same, mcf.two_sum, ours, theirs, *t)
    assert_same(here(ours.add(t.T, t[:1, :1])), theirs.add(a.T, a[:1, :1]))
    t[1, 7] = 0.3
    with pytest.raises(ValueError, match=r"element \(1, 7\) = np\.float32\(0\.3\) is no value"):
        ours.add(t, 1.0)


def test_threads_of_the_cpu_share_large_tensors(assert_same):
    x = np.random.default_rng(1).standard_normal(3 * BLOCK + 3)
    expected = mcf.arithmetic("float16").round(x)
    ours = mcf.arithmetic("float16", backend="torch", threads=2)
    t = ours.round(torch.from_numpy(x))
    assert_same(t.numpy(), expected)
    assert_same(ours.mul(t, t).numpy(), mcf.arithmetic("float16").mul(expected, expected))


@pytest.mark.parametrize("given", ["bfloat16 nearest_even", "bfloat16 stochastic", "posit8 stochastic"])
@pytest.mark.sampled(2)
def test_a_block_of_a_step_draws_as_numpys_does(given, device, kernels, assert_same):
    """It goes on in another format, too, but by NumPy itself."""
    fmt, mode = given.split()
    whole = both(fmt, mode, device=device, kernels=kernels)
    ours, theirs = (ar.on_block(step=4, start=1000) for ar in whole)
    x = np.random.default_rng(0).standard_normal(300).astype(theirs.carrier)
    if kernels is not None:
        other = both("float16", "stochastic")[1].on_block(step=4, start=1000)
        found = both("bfloat16", "stochastic", device=device, kernels=kernels)[0].on_block(step=4, start=1000)
        found = found.like(other.format, other.rounding)
        check(assert_same, operation("round"), found, other, there(x, device))
    t, x = ours.round(there(x, device)), theirs.round(x)
    for _ in range(3):
        assert_same(here(t), x)
        t, x = ours.mul(ours.add(t, 0.1), 1.01), theirs.mul(theirs.add(x, 0.1), 1.01)
    check(assert_same, lambda ar, x: mcf.two_sum(ar, x, 0.3), ours, theirs, t, arrays=[x])
    once, same_once = (ar.like(ar.format, mcf.Rounding()) for ar in (ours, theirs))
    check(assert_same, lambda ar, x: ar.add(x, 0.1), once, same_once, t, arrays=[x])


def test_a_zero_has_no_sign_where_the_format_has_none(device, kernels, assert_same):
    for fmt in ("float8_e4m3fnuz", "int8", "posit8"):
        ours, theirs = both(fmt, device=device, kernels=kernels)
        zero = torch.tensor([-0.0, 0.0], device=device)
        check(assert_same, lambda ar, x: ar.evaluate(lambda ar, x: (x, ar.abs(x)), x), ours, theirs, zero)


def test_shapes_views_and_single_numbers(device, kernels, assert_same):
    ours, theirs = both("float16", "stochastic", device=device, kernels=kernels)
    a, t = (x.reshape(4, 6, 5) for x in values(4, ours, theirs, size=30))
    views = (lambda x: x[::2, 1:, ::3], lambda x: x.swapaxes(0, 2), lambda x: x[0, 0, 0], lambda x: x[:0])
    for view in views:  # words go by the index, not by the memory
        assert_same(here(ours.mul(view(t), view(t))), theirs.mul(view(a), view(a)))
        assert_same(here(ours.round(view(t) * 0.1)), theirs.round(view(a) * np.float32(0.1)))
    assert_same(here(ours.add(t[:, :1], t[0, 0])), theirs.add(a[:, :1], a[0, 0]))
    imaginary = torch.conj(torch.complex(t, t)).imag  # whose minus is not carried out
    assert_same(here(ours.add(imaginary, t)), theirs.add(-a, a))
    assert ours.add(0.1, 0.2) == theirs.add(0.1, 0.2)
    assert ours.round(0.1) == theirs.round(0.1)
    s, e = ours.evaluate(lambda ar, x: (x, ar.abs(x)), t)
    assert s.data_ptr() != t.data_ptr() != e.data_ptr()
    with pytest.raises(ValueError, match=r"shapes \(4, 6, 5\), \(7,\) do not broadcast"):
        ours.add(t, torch.zeros(7, device=device))
