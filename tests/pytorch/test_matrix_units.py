"""Matrix units on tensors: as PyTorch's operations and as Triton kernels, beside `mcfsim.matmul`."""

from functools import partial

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.products.unit_lines import group_line
from mcfsim.products.unit_products import UnitProducts
from tests.products.units_by_definition import hostile
from tests.shared.refusals import check, refusals, refused

torch = pytest.importorskip("torch")

from mcfsim.compile import torch_kernels  # noqa: E402
from mcfsim.products.matrix_products import products_of  # noqa: E402
from mcfsim.torch import matmul  # noqa: E402

FEW = ("hopper_fp16", "cdna3_fp8", "cdna2_bf16", "hopper_fp64", "cdna1_fp32", "volta_fp16_to_fp16")


def operands(name, rows=12):
    unit = mcf.get_unit(name)
    a, b, c = hostile(unit, (unit.input, unit.input), 2 * unit.k + 1, rows, np.random.default_rng(2))
    return [torch.from_numpy(x) for x in (a, b.T.copy(), c)]


def same_bits(x, y):
    return x.dtype == y.dtype and x.numpy().tobytes() == y.numpy().tobytes()


@pytest.mark.parametrize("name", FEW)
@pytest.mark.sampled(3, each=False)
@pytest.mark.slow
def test_kernels_have_the_bits_of_the_host(name, interpreted):
    a, b, c = operands(name)
    expected = torch.as_tensor(mcf.matmul(a, b, unit=name, c=c))
    assert same_bits(matmul(a, b, name, c=c), expected)
    assert same_bits(matmul(a, b, name, c=c, kernels=True), expected)
    assert torch.isfinite(expected).any()


@pytest.mark.parametrize("name", FEW)
@pytest.mark.sampled(3, each=False)
@pytest.mark.slow
def test_operations_of_pytorch_have_the_bits_of_the_host(name):
    a, b, c = operands(name)
    line = group_line(mcf.get_unit(name))
    contraction = torch_kernels.TensorContraction(line, torch.device("cpu"), False)
    way = UnitProducts(name, None, 1, contraction, (5, 7))
    assert products_of(way, a, b, c, 1).tobytes() == mcf.matmul(a, b, unit=name, c=c).tobytes()
    dots = a.reshape(1, *a.shape), b.T.reshape(1, *a.shape)  # a stack of single dot products
    pairs = dots[0].transpose(0, 1), dots[1].permute(1, 2, 0)
    expected = mcf.matmul(*pairs, unit=name)
    assert products_of(way, *pairs, None, 1).tobytes() == expected.tobytes()


def test_dtypes_say_the_formats(interpreted):
    a = torch.tensor([[2.0**-9, 1.0]])
    for kind in (torch.float8_e4m3fn, torch.float8_e5m2):
        given = a.to(kind), a.T.to(kind)
        host = mcf.matmul(*given, unit="ada_fp8")
        assert same_bits(matmul(*given, "ada_fp8"), torch.as_tensor(host))


def test_scaled_operands_of_the_host_are_taken():
    a = mcf.quantize(np.ones((3, 64), "f4"), "mxfp8_e4m3")
    b = mcf.quantize(np.ones((64, 2), "f4"), "mxfp8_e4m3", axis=0)
    assert matmul(a, b, "blackwell_mxfp8").tolist() == [[64.0] * 2] * 3


LONG = [pytest.param(x, marks=pytest.mark.exhaustive) for x in ("hopper_fp16", "ada_fp8")]


@pytest.mark.parametrize("name", ["cdna2_bf16", *LONG])
@pytest.mark.costly("Triton and PTX's assembler compile a kernel twice")
@pytest.mark.slow
def test_the_code_of_a_gpu_fuses_nothing(name, monkeypatch):
    triton = pytest.importorskip("triton", reason="Triton is not installed")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from mcfsim.compile.launch import EXACT, WARPS, function

    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    source = torch_kernels.contraction_kernel(group_line(mcf.get_unit(name)))
    integers = ("left_row", "left_step", "left_column", "columns", "size", "groups")
    given = "*fp64" if mcf.get_unit(name).sums.aligns else "*fp32"
    signature = {"left": given, "right": given, "out": "*fp32", **dict.fromkeys(integers, "i32")}
    for fused in (False, True):
        options = {"num_warps": WARPS, **EXACT, "enable_fp_fusion": fused}
        made = triton.compile(
            ASTSource(
                fn=function(source, interpreted=False), signature=signature, constexprs={"ELEMENTS": 256}
            ),
            target=GPUTarget("cuda", 90, 32),
            options=options,
        )
        assert ("fma.rn" in made.asm["ptx"]) is fused


ONE = torch.ones(2, 2)


@refusals(
    refused(TypeError, "a must be a tensor, not list", partial(matmul, unit="hopper_fp16"), ([1.0], ONE)),
    refused(TypeError, "c must be a tensor", partial(matmul, c=1.0), (ONE, ONE, "hopper_fp16")),
    refused(TypeError, "kernels must be True", partial(matmul, kernels=1), (ONE, ONE, "hopper_fp16")),
    refused(ValueError, "different devices: cpu, meta", matmul, (ONE, ONE.to("meta"), "hopper_fp16")),
    refused(TypeError, "on device 'meta'", matmul, (ONE.to("meta"), ONE.to("meta"), "hopper_fp16")),
    refused(ValueError, r"a\[0, 0\] = 0.1.* no number of float16", matmul, (ONE * 0.1, ONE, "hopper_fp16")),
    refused(ValueError, "unknown unit", matmul, (ONE, ONE, "hopper")),
)
def test_calls_that_make_no_sense_are_refused(rows):
    check(rows)


def test_negated_views_are_multiplied():
    x = torch.complex(ONE, ONE * 3).conj().imag
    assert x.is_neg()
    assert torch.equal(matmul(x, x, "hopper_fp16"), torch.full((2, 2), 18.0))
