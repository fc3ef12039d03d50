"""Tensors quantised with the bits of arrays: by views on the CPU, by PyTorch's operations elsewhere."""

import dataclasses
from contextlib import suppress

import numpy as np
import pytest
import torch

import mcfsim as mcf
import mcfsim.torch
from mcfsim.rounding import Rounding
from mcfsim.scaled import SCALED, ScaleRule
from mcfsim.torch.quantized import has_line, on_device
from tests.scaled.hostile_blocks import hostile_rows, with_no_numbers

ROUNDINGS = ["nearest_even", "nearest_away", "toward_zero", "to_odd", "stochastic"]


def with_rules():
    """Yield formats and rules that go together."""
    for name in sorted(set(SCALED) - {f"int{bits}" for bits in range(2, 8)}):
        fmt = SCALED[name]
        for rule in ScaleRule:
            with suppress(ValueError):
                yield fmt.with_rule(rule)


def named(x):
    return x if isinstance(x, str) else f"{x}-{x.rule}"


def array(fmt, shape=(40, 150)):
    return with_no_numbers(hostile_rows(*shape, min(fmt.block_size or 16, 64), 1), 2)


def policy(name):
    return Rounding(name, "saturate", random_bits=31 if name == "stochastic" else 16)


@pytest.mark.parametrize("name", ROUNDINGS)
@pytest.mark.parametrize("fmt", [*with_rules()], ids=named)
@pytest.mark.sampled(32, each=False)
@pytest.mark.slow
def test_pytorchs_operations_have_the_bits_of_numpy(fmt, name, assert_same):
    """On the CPU, whose operations are those of a device."""
    words, rounding = mcf.RandomWords(5), policy(name)
    if not has_line(fmt, rounding):
        assert not fmt.rule.exact or fmt.rule in ("absmax", "absmean", "max")
        return
    x = array(fmt)
    for axis in (-1, 0):
        expected = mcf.quantize(x, fmt, axis=axis, rounding=rounding, random=words).dequantize()
        found = on_device(torch.from_numpy(x), fmt, rounding, axis, words)
        assert_same(found.numpy(), expected, x)
        assert found.numpy().dtype == expected.dtype


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("fmt", "name"),
    [
        (fmt, name)
        for fmt in with_rules()
        for name in ("nearest_even", "stochastic")
        if (fmt.rule, name) != ("eden", "stochastic")  # which rounds scales so
    ],
    ids=named,
)
def test_a_gpu_has_the_bits_of_numpy(fmt, name, assert_same):
    x, rounding = np.abs(array(fmt)) + 1 if fmt.rule == "max" else array(fmt), policy(name)
    for kind in (torch.float32, torch.bfloat16):
        tensor = torch.from_numpy(x).to(kind)
        options = {"rounding": rounding, "random": mcf.RandomWords(5)}
        expected = mcfsim.torch.quantize(tensor, fmt, **options)
        found = mcfsim.torch.quantize(tensor.cuda(), fmt, **options)
        assert found.device.type == "cuda"
        assert_same(found.cpu().numpy(), expected.numpy(), tensor.float().numpy())


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "float16", "float8_e4m3fn", "float64"])
def test_a_tensor_on_the_cpu_is_its_array(kind, assert_same):
    x = np.random.default_rng(0).standard_normal((32, 48)).astype(np.float32)
    tensor = torch.from_numpy(x).to(getattr(torch, kind))
    for part in (tensor, tensor.T, tensor[:, ::2]):
        found = mcfsim.torch.quantize(part, "nvfp4_16x16")
        expected = mcf.quantize(
            part.double().numpy() if kind == "float64" else part.float().numpy(), "nvfp4_16x16"
        )
        assert_same(found.numpy(), expected.dequantize())
    found[...] = 0
    assert (tensor != 0).any()


@pytest.mark.parametrize("bits", [4, 16, 32])
@pytest.mark.slow
def test_words_are_those_of_numpy(bits, assert_same):
    rounding = Rounding("stochastic", "saturate", random_bits=bits)
    for name in ("mxfp4", "mxfp4_quartet", "fp8_e4m3_128x128"):
        x = hostile_rows(30, 70, 16, 2)
        words = mcf.RandomWords(3, step=2)
        dtypes = (np.uint32, *((np.uint16,) if bits <= 16 else ()))
        given = [words, *(words.words(0, x.size, 8 * np.dtype(d).itemsize).reshape(x.shape) for d in dtypes)]
        for random in given:
            expected = mcf.quantize(x, name, rounding=rounding, random=random).dequantize()
            assert_same(
                on_device(torch.from_numpy(x), SCALED[name], rounding, -1, random).numpy(), expected, x
            )


@pytest.mark.parametrize("shape", [(), (0,), (0, 5), (5, 0), (3,), (2, 3, 40)])
def test_shapes(shape, assert_same):
    x = np.ones(shape, np.float32)
    for name in ("mxfp4", "nvfp4", "fp8_e4m3_tensor", *(("nvfp4_16x16",) if len(shape) > 1 else ())):
        rounding = Rounding(overflow="saturate")
        expected = mcf.quantize(x, name).dequantize()
        assert_same(on_device(torch.from_numpy(x), SCALED[name], rounding, -1, None).numpy(), expected)
        assert_same(mcfsim.torch.quantize(torch.from_numpy(x), name).numpy(), expected)


def test_a_scale_of_a_tensor_that_underflows(assert_same):
    x, words = np.full((2, 128), -1e-44, np.float32), mcf.RandomWords(0)
    expected = mcf.quantize(x, "nvfp4_eden", random=words).dequantize()
    assert not expected.any()
    found = on_device(torch.from_numpy(x), SCALED["nvfp4_eden"], Rounding(overflow="saturate"), -1, words)
    assert_same(found.numpy(), expected)


@pytest.mark.parametrize("fields", [{"block": 2**70}, {"group": 2**70}, {"block": 2**70, "group": 2**71}])
def test_what_shares_a_scale_ends_with_the_axis(fields, assert_same):
    fmt = dataclasses.replace(SCALED["nvfp4_eden" if "group" in fields else "mxfp4"], **fields)
    x, words = hostile_rows(3, 40, 16, 1), mcf.RandomWords(0)
    found = on_device(torch.from_numpy(x), fmt, Rounding(overflow="saturate"), -1, words)
    assert_same(found.numpy(), mcf.quantize(x, fmt, random=words).dequantize())


def test_negated_views():
    x = torch.complex(torch.ones(4), torch.arange(4.0)).conj().imag
    assert x.is_neg()
    assert torch.equal(mcfsim.torch.quantize(x, "mxfp4"), -torch.arange(4.0))


@pytest.mark.parametrize(
    ("x", "options", "error", "message"),
    [
        (np.ones(3), {}, TypeError, "a tensor is quantised, not ndarray"),
        (torch.ones(3, dtype=torch.int32), {}, TypeError, "int32 has no floating-point"),
        (torch.ones(3, requires_grad=True), {}, TypeError, "requires grad"),
        (torch.ones(3, device="meta"), {}, TypeError, "meta"),
        (torch.ones(3), {"axis": 1}, np.exceptions.AxisError, "axis 1"),
        (torch.ones(3), {"rule": "torchao"}, ValueError, "a format with zero"),
        (torch.ones(3), {"rounding": "stochastic"}, ValueError, "needs random"),
        (torch.ones(3, dtype=torch.float64), {"rule": "quest"}, TypeError, "float64 is longer"),
    ],
)
def test_what_makes_no_sense_is_refused(x, options, error, message):
    with pytest.raises(error, match=message):
        mcfsim.torch.quantize(x, "mxfp4", **options)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"axis": 2}, np.exceptions.AxisError, "axis 2"),
        ({"axis": 1.0}, TypeError, "axis must be an int"),
        ({"random": np.zeros((4, 4), np.uint32)}, ValueError, "do not fit"),
        ({"random": np.zeros((4, 5), np.int32)}, TypeError, "uint32 or uint16"),
    ],
)
def test_a_device_refuses_what_an_array_does(options, error, message):
    given = {"axis": -1, "random": mcf.RandomWords(1)} | options
    with pytest.raises(error, match=message):
        on_device(torch.ones(4, 5), SCALED["mxfp4"], Rounding("stochastic"), **given)
