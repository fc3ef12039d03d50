"""Linear layers with emulated products beside plain ones and the emulations of libraries, in one run.

``python -m tests.benchmarks.emulated_layers --microxcaling PATH`` takes a folder with that program's source;
torchao is imported. A call is a forward and a backward pass with gradients of activations and weights.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from mcfsim import torch as ours
from mcfsim.recipes import RECIPES
from tests.benchmarks.timing import installed

Layer = Callable[[torch.Tensor], torch.Tensor]


def plain(size: int, kind: torch.dtype) -> torch.nn.Linear:
    """Return a layer of PyTorch."""
    torch.manual_seed(0)
    return torch.nn.Linear(size, size, bias=False, dtype=kind)


def emulated(size: int, kind: torch.dtype, name: str) -> torch.nn.Module:
    """Return a layer by a recipe."""
    model = torch.nn.Sequential(plain(size, kind))
    ours.emulate(model, replace(RECIPES[name], first=Fraction(0), last=Fraction(0)), unit=None)
    return model


class TorchaoProducts(torch.autograd.Function):
    """The three products of a layer, all operands through torchao's MXFP8 and back."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Return the output."""
        ctx.save_for_backward(x, weight)
        return through_torchao(x) @ through_torchao(weight).t()

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return both gradients."""
        x, weight = ctx.saved_tensors
        dx = through_torchao(dy) @ through_torchao(weight.t().contiguous()).t()
        turned = through_torchao(dy.t().contiguous())
        return dx, turned @ through_torchao(x.t().contiguous()).t()


def through_torchao(x: torch.Tensor) -> torch.Tensor:
    """Return a matrix quantised and dequantised by torchao."""
    from torchao.prototype.mx_formats.mx_tensor import MXTensor

    return MXTensor.to_mx(x, torch.float8_e4m3fn, 32).dequantize(x.dtype)


def layers(size: int, kind: torch.dtype, microxcaling: str | None) -> Iterator[tuple[str, Layer]]:
    """Yield layers by name."""
    yield "PyTorch", plain(size, kind)
    yield "PyTorch, float32", plain(size, torch.float32)
    for name, recipe in RECIPES.items():
        if recipe.forward.unit is None:
            yield f"mcfsim {name}", emulated(size, kind, name)
    if installed("torchao"):
        weight = plain(size, kind).weight
        yield "torchao mxfp8", lambda x: TorchaoProducts.apply(x, weight)
    if microxcaling:
        sys.path.insert(0, microxcaling)
        specs = {"scale_bits": 8, "w_elem_format": "fp8_e4m3", "a_elem_format": "fp8_e4m3", "block_size": 32}
        from mx import Linear, finalize_mx_specs

        made = Linear(size, size, bias=False, mx_specs=finalize_mx_specs({**specs, "bfloat": 16}))
        yield "microxcaling mxfp8", made.to(kind)


def seconds(layer: Layer, x: torch.Tensor, repeats: int) -> list[float]:
    """Return the times of calls, without the first ones, by which loops are compiled."""
    found, first = [], max(5, (5 << 22) // x.numel())
    for _ in range(repeats + first):
        if x.is_cuda:
            torch.cuda.synchronize()
        begun = time.perf_counter()
        y = layer(x)
        y.backward(torch.ones_like(y))
        if x.is_cuda:
            torch.cuda.synchronize()
        found.append(time.perf_counter() - begun)
    return found[first:]


def main() -> None:
    """Print a table."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--size", type=int, default=1024, help="tokens, inputs and outputs")
    asked.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    asked.add_argument("--repeats", type=int, default=5)
    asked.add_argument("--threads", type=int, default=1)
    asked.add_argument("--device", default="cpu")
    asked.add_argument("--microxcaling", help="folder of its source")
    given = asked.parse_args()
    torch.set_num_threads(given.threads)
    torch.set_default_device(given.device)
    kind = getattr(torch, given.dtype)
    table = Table(title=f"{given.size} tokens, inputs and outputs, {given.dtype}, {given.threads} thread(s)")
    for title in ("layer", "ms a call", "of PyTorch's", "of PyTorch's in float32"):
        table.add_column(title, justify="left" if title == "layer" else "right")
    found: dict[str, float] = {}
    for name, layer in layers(given.size, kind, given.microxcaling):
        own = torch.float32 if name.endswith("float32") else kind
        x = torch.randn(given.size, given.size, dtype=own, requires_grad=True)
        found[name] = float(np.median(seconds(layer, x, given.repeats)))
    first, second = list(found.values())[:2]
    for name, each in found.items():
        table.add_row(name, f"{each * 1e3:.1f}", f"{each / first:.2f}", f"{each / second:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
