"""PyTorch's own operators on CPU tensors of one dtype, as an arithmetic: a peer for benchmarks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from mcfsim.backends.tensors import TORCH_DTYPES, torch_dtype
from mcfsim.formats import Format
from mcfsim.optim.strategies import Roles, Strategy
from mcfsim.rounding import Rounding


class NativeTorch:
    """What a text asks for, in PyTorch's operators: one call, and one new tensor, an operation.

    Python numbers enter, and results are rounded, as PyTorch has it.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype, self.format, self.rounding, self.carrier = dtype, TORCH_DTYPES[dtype], Rounding(), dtype

    def like(self, fmt: Format, rounding: Rounding) -> NativeTorch:
        return NativeTorch(torch_dtype(fmt))

    def on_block(self, step: int, start: int) -> NativeTorch:
        return self

    def add(self, a: Any, b: Any) -> Any:
        return a + b

    def sub(self, a: Any, b: Any) -> Any:
        return a - b

    def mul(self, a: Any, b: Any) -> Any:
        return a * b

    def div(self, a: Any, b: Any) -> Any:
        return a / b

    def sqrt(self, a: Any) -> Any:
        return torch.sqrt(a)

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
            return torch.addcmul(c, a, b)
        x, scalar = (b, a) if isinstance(b, torch.Tensor) else (a, b)
        return torch.add(c, x, alpha=scalar)

    def neg(self, a: Any) -> Any:
        return -a

    def abs(self, a: Any) -> Any:
        return abs(a)

    def sign(self, a: Any) -> Any:
        return torch.sign(a)

    def round(self, x: Any) -> Any:
        return x.to(self.dtype)

    def evaluate(self, function: Callable[..., Any], /, *operands: Any, **options: Any) -> Any:
        return function(self, *operands, **options)


def roles_of(strategy: Strategy) -> Roles:
    """Return PyTorch's operators for each role of a strategy."""
    return Roles(*(NativeTorch(torch_dtype(role.format)) for role in strategy.roles()))
