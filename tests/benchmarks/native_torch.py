"""PyTorch's own operators on CPU tensors of one dtype, as an arithmetic: a peer for benchmarks."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch

from mcfsim.formats import Format
from mcfsim.kernels.torch_tensors import TORCH_DTYPES, torch_dtype
from mcfsim.optim.strategies import Roles, Strategy
from mcfsim.rounding import Rounding


class NativeTorch:
    """What a text asks for, in PyTorch's operators: one call, and one new tensor, an operation.

    Python numbers enter, and results are rounded, as PyTorch has it.
    """

    add, sub, mul = (staticmethod(f) for f in (operator.add, operator.sub, operator.mul))
    div, sqrt, neg = (staticmethod(f) for f in (operator.truediv, torch.sqrt, operator.neg))
    abs, sign = (staticmethod(f) for f in (operator.abs, torch.sign))

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype, self.format, self.rounding, self.carrier = dtype, TORCH_DTYPES[dtype], Rounding(), dtype

    def like(self, fmt: Format, rounding: Rounding) -> NativeTorch:
        return NativeTorch(torch_dtype(fmt))

    def on_block(self, step: int, start: int) -> NativeTorch:
        return self

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
            return torch.addcmul(c, a, b)
        x, scalar = (b, a) if isinstance(b, torch.Tensor) else (a, b)
        return torch.add(c, x, alpha=scalar)

    def round(self, x: Any) -> Any:
        return x.to(self.dtype)

    def evaluate(self, function: Callable[..., Any], /, *operands: Any, **options: Any) -> Any:
        return function(self, *operands, **options)


def roles_of(strategy: Strategy) -> Roles:
    """Return PyTorch's operators for each role of a strategy."""
    return Roles(*(NativeTorch(torch_dtype(role.format)) for role in strategy.roles()))
