"""Operands by PyTorch's operations, as on a device, have the bits of NumPy's: all named recipes."""

import numpy as np
import pytest
import torch

import mcfsim as mcf
from mcfsim import torch as mt
from mcfsim.recipes import RECIPES, OperandRecipe, ProductRecipe
from mcfsim.recipes.linear_layer import NumPyProducts
from mcfsim.torch import tensor_products
from mcfsim.torch.quantized import has_line
from mcfsim.torch.tensor_products import TensorProducts
from tests.scaled.hostile_blocks import hostile_rows, with_no_numbers

WORDS = mcf.RandomWords(5, 2, 1)
NAMES = [name for name in RECIPES if RECIPES[name].forward.unit is None]


def operands(shape=(40, 150)):
    """Return matrices that are hard to quantise, without and with what is no number."""
    hard = hostile_rows(*shape, 16, 1).astype(np.float32)
    usual = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    return [usual, hard, with_no_numbers(hard.copy(), 2), np.zeros((0, 48), np.float32)]


def entered(products, x, product, operand):
    if product.hadamard:
        x = products.rotate(x, product, WORDS.of(8))
    return products.enter(x, operand, WORDS)


@pytest.mark.parametrize("label", ["forward", "dgrad", "wgrad"])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.sampled(3)
def test_operands_have_the_bits_of_numpy(name, label, assert_same):
    product = RECIPES[name].products[label]
    for operand in {product.left, product.right}:
        for x in operands():
            with np.errstate(all="ignore"):
                expected = entered(NumPyProducts(), x, product, operand)
            found = entered(TensorProducts(operations=True), torch.from_numpy(x), product, operand)
            assert found.values.dtype == torch.float32
            assert_same(found.values.numpy(), expected.values)
            assert (found.inside is None) == (expected.inside is None)
            if found.inside is not None:
                assert np.array_equal(found.inside.numpy(), expected.inside)


@pytest.mark.parametrize("signs", ["none", "fixed", "random"])
@pytest.mark.parametrize("back", [False, True])
def test_transforms_have_the_bits_of_numpy(signs, back, assert_same):
    for size in (16,) if signs == "fixed" else (2, 16, 32, 128):
        product = ProductRecipe(hadamard=size, signs=signs)
        for x in operands():
            x = np.ascontiguousarray(x[:, : len(x[0]) // size * size] if back and len(x) else x)
            if back and x.shape[1] % size:
                continue
            with np.errstate(all="ignore"):
                expected = NumPyProducts().rotate(x, product, WORDS, back=back)
            found = TensorProducts(operations=True).rotate(torch.from_numpy(x), product, WORDS, back=back)
            assert_same(found.numpy(), expected)


@pytest.mark.slow
def test_most_recipes_are_lines_of_operations(monkeypatch):
    """Else the tests above would compare NumPy with itself."""
    calls = []
    line = tensor_products.on_device
    monkeypatch.setattr(tensor_products, "on_device", lambda *given: calls.append(1) or line(*given))
    x, by = torch.randn(32, 64), {}
    for name, recipe in RECIPES.items():
        for product in recipe.products.values():
            for operand in (product.left, product.right):
                calls.clear()
                TensorProducts(operations=True).enter(x, operand, WORDS)
                by.setdefault(name, []).append(bool(calls))
                assert bool(calls) == (
                    hasattr(operand.format, "rule") and has_line(operand.format, operand.rounding)
                )
    assert {name for name, found in by.items() if all(found)} >= {
        "mxfp8",
        "fp8-tensor",
        "fp8-blocks",
        "nvfp4",
        "quartet",
        "quartet2",
    }
    calls.clear()
    TensorProducts(operations=True, units=True).enter(x, OperandRecipe("mxfp4"), None)
    TensorProducts().enter(x, OperandRecipe("mxfp4"), None)
    assert not calls


@pytest.mark.gpu
def test_layers_by_a_unit_have_the_bits_of_the_cpu(assert_same):
    made = []
    for device in ("cpu", "cuda"):
        torch.manual_seed(3)
        net = torch.nn.Sequential(torch.nn.Linear(48, 40)).to(device)
        x = torch.randn(16, 48).to(device).requires_grad_()
        mt.emulate(net, "bf16-truncating")
        y = net(x)
        y.square().sum().backward()
        made.append([z.detach().cpu().numpy() for z in (y, x.grad, net[0].weight.grad)])
    for here, there in zip(*made, strict=True):
        assert_same(there, here)


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_layers_on_a_gpu_have_the_operands_of_the_cpu(name, assert_same):
    product = RECIPES[name].wgrad
    x = operands()[0]
    expected = entered(NumPyProducts(), x, product, product.left)
    found = entered(TensorProducts(), torch.from_numpy(x).cuda(), product, product.left)
    assert_same(found.values.cpu().numpy(), expected.values)
    net = torch.nn.Sequential(torch.nn.Linear(48, 40, device="cuda"))
    mt.emulate(net, name)
    y = net(torch.randn(16, 48, device="cuda"))
    y.sum().backward()
    assert y.isfinite().all()
    assert net[0].weight.grad.isfinite().all()
