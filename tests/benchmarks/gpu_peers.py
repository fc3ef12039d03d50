"""What kernels are measured beside: PyTorch's own optimizer and operations, and published optimizers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

import mcfsim as mcf
import mcfsim.torch
from mcfsim.optim.state import State
from tests.benchmarks.native_torch import roles_of
from tests.benchmarks.timing import installed

#: Settings of all optimizers.
RATE, BETAS, EPSILON, DECAY = 1e-3, (0.9, 0.999), 1e-8, 0.01


def two_sum(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Knuth's six operations, a kernel of torch's each."""
    s = a + b
    a1 = s - b
    b1 = s - a1
    return s, (a - a1) + (b - b1)


def published() -> Iterator[tuple[str, torch.dtype, Callable[[Any], Any]]]:
    """Yield optimizers of others that are installed, with the dtype of their parameters."""
    settings: dict[str, Any] = {"lr": RATE, "betas": BETAS, "eps": EPSILON, "weight_decay": DECAY}
    yield (
        "torch AdamW(fused=True), float32",
        torch.float32,
        lambda p: torch.optim.AdamW(p, fused=True, **settings),
    )
    yield (
        "torch AdamW(fused=True), bfloat16",
        torch.bfloat16,
        lambda p: torch.optim.AdamW(p, fused=True, **settings),
    )
    if optimi := installed("optimi"):
        yield "optimi AdamW, Kahan", torch.bfloat16, lambda p: optimi.AdamW(p, kahan_sum=True, **settings)
    if flashoptim := installed("flashoptim"):
        yield "FlashAdamW", torch.bfloat16, lambda p: flashoptim.FlashAdamW(p, **settings)
    if torchao := installed("torchao.optim"):
        yield (
            "torchao, stochastic",
            torch.bfloat16,
            lambda p: torchao._AdamW(p, bf16_stochastic_round=True, **settings),
        )


def parameter(size: int, device: torch.device, dtype: torch.dtype) -> torch.nn.Parameter:
    """Return a parameter with a gradient, the same each time."""
    generator = torch.Generator(device).manual_seed(0)
    p = torch.nn.Parameter((0.02 * torch.randn(size, device=device, generator=generator)).to(dtype))
    p.grad = (1e-3 * torch.randn(size, device=device, generator=generator)).to(dtype)
    return p


def steps(size: int, device: torch.device, seconds: Callable[..., float], row: Any) -> Iterator[Any]:
    """Yield a step of each peer, and of the Collage-plus text in torch's operations."""
    for name, dtype, made in published():
        p = parameter(size, device, dtype)
        optimizer = made([p])
        optimizer.step()
        kept = sum(x.element_size() for x in optimizer.state[p].values() if _is_vector(x, p))
        own = p.element_size()
        yield row(name, seconds(optimizer.step, device), size, 2 * (kept + own) + own)
    yield row("AdamW, collage-plus, torch's operations", seconds(unfused(size, device), device), size, 22)


def _is_vector(x: Any, p: torch.Tensor) -> bool:
    return isinstance(x, torch.Tensor) and x.shape == p.shape


def unfused(size: int, device: torch.device) -> Callable[[], None]:
    """Return a step of the Collage-plus text, an operation of torch's on bfloat16 tensors each."""
    strategy, hyper = mcf.strategy("collage-plus"), mcf.AdamW()
    emulated, native = strategy.roles(), roles_of(strategy)
    p = parameter(size, device, torch.bfloat16)
    zeros = [torch.zeros_like(p) for _ in range(4)]
    state = State((p.detach(), zeros[0]), (zeros[1],), (zeros[2], zeros[3]), ())

    def step() -> None:
        scalars = hyper.scalars(emulated, strategy, 1, RATE, decayed=True)
        new, _ = hyper.step(native, strategy, state, p.grad, scalars)
        for targets, sources in zip(state, new, strict=True):
            for target, source in zip(targets, sources, strict=True):
                target.copy_(source)

    return step


def shares_wrong(size: int, device: torch.device) -> dict[str, float]:
    """Return which share of parameters a first step does not round correctly, for those to nearest bfloat16.

    Each is to move a parameter p with gradient g to p (1 - lr decay) - lr g / (\\|g\\| + eps), where moments
    begin with zeros, whatever its conventions. That is computed in binary64 and rounded to the nearest
    bfloat16.
    """
    found = {}
    ours: tuple[str, torch.dtype, Callable[[Any], Any]] = (
        "collage-plus",
        torch.bfloat16,
        lambda p: mcfsim.torch.AdamW(p, RATE, BETAS, EPSILON, DECAY),
    )
    for name, dtype, made in (ours, *published()):
        if dtype is not torch.bfloat16 or "stochastic" in name:
            continue
        p = parameter(size, device, dtype)
        x, g = p.detach().double().cpu(), p.grad.double().cpu()
        exact = x * (1 - RATE * DECAY) - RATE * g / (g.abs() + EPSILON)
        nearest = mcf.round_to(exact.numpy(), "bfloat16")
        made([p]).step()
        found[name] = float((p.detach().double().cpu().numpy() != nearest).mean())
    return found
