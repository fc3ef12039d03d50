"""Steps of optimizers: compiled, beside the same on NumPy, and beside PyTorch's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

import mcfsim as mcf
from mcfsim.optim.state import State
from tests.benchmarks.timing import Array, Call, Pair, installed

#: Parameters of a step.
PARAMETERS = 1 << 22
#: Those of a block that stays in cache.
_BLOCK = 1 << 17
_HYPER = mcf.AdamW()
_RATE = 1e-3
_FUSED = "torch AdamW(fused=True), float32"


def steps(x: Array) -> Iterator[Pair]:
    """One AdamW step under each strategy, on carrier numbers and on codes, beside its peers."""
    for name in mcf.STRATEGIES:
        if name != "exact":
            theirs = _step(name, x, compiled=False)
            for packed in (False, True):
                ours = _step(name, x, compiled=True, packed=packed)
                yield Pair(_titled(name, packed=packed), ours, "not compiled", theirs)
    if installed("torch"):
        yield from _beside_torch(x)


def threads(x: Array) -> Iterator[Pair]:
    """One AdamW step on two threads, beside one."""
    one, two = (_step("collage-plus", x, threads=threads, compiled=True, packed=True) for threads in (1, 2))
    yield Pair(f"{_titled('collage-plus', packed=True)}, two threads", two, "one thread", one)


def _titled(name: str, *, packed: bool) -> str:
    return f"one step of adamw, {name}" + (", packed" if packed else "")


def _optimizer(
    name: str, x: Array, parameters: int = PARAMETERS, **options: Any
) -> tuple[mcf.Optimizer, Array]:
    """Return an optimizer of so many numbers, and a gradient for it."""
    weights, gradient = {"w": 0.02 * x[:parameters]}, {"w": 1e-3 * x[-parameters:]}
    optimizer = mcf.Optimizer(_HYPER, mcf.strategy(name), weights, ["w"], **options)
    return optimizer, optimizer.receive(gradient)


def _step(name: str, x: Array, **options: Any) -> Call:
    optimizer, gradient = _optimizer(name, x, **options)
    return lambda: optimizer.step(gradient, _RATE)


def _beside_torch(x: Array) -> Iterator[Pair]:
    """The published optimizer's operations on bfloat16 tensors, and AdamW in binary32, fused."""
    import torch

    torch.set_num_threads(1)
    for name in ("collage-light", "collage-plus"):
        ours = _step(name, x, compiled=True, packed=True)
        for size, peer in ((PARAMETERS, "same text, torch bfloat16"), (_BLOCK, "the same, block by block")):
            yield Pair(_titled(name, packed=True), ours, peer, native_step(name, x, PARAMETERS, size))
    fused = fused_step(x, PARAMETERS)
    for name in ("plain", "collage-light", "collage-plus", "fp32"):
        yield Pair(_titled(name, packed=True), _step(name, x, compiled=True, packed=True), _FUSED, fused)


def native_step(name: str, x: Array, parameters: int, size: int) -> Call:
    """Return a step of the optimizer's own text in PyTorch's operators, on `size` elements at a time."""
    import torch

    from tests.benchmarks.native_torch import roles_of

    optimizer, received = _optimizer(name, x, parameters)
    native = roles_of(optimizer.strategy)

    def tensor(array: Array, dtype: torch.dtype) -> torch.Tensor:
        return torch.from_numpy(np.array(array)).to(dtype)

    roles = (native.model, native.moments, native.second_moment, native.parameter)
    state = State(
        *(
            tuple(tensor(item, role.carrier) for item in items)
            for items, role in zip(optimizer.state, roles, strict=True)
        )
    )
    gradient = tensor(received, native.moments.carrier)

    def step() -> None:
        scalars = _HYPER.scalars(optimizer.roles, optimizer.strategy, 1, _RATE, decayed=True)
        for start in range(0, parameters, size):
            block = slice(start, start + size)
            old = State(*(tuple(item[block] for item in items) for items in state))
            new, _ = _HYPER.step(native, optimizer.strategy, old, gradient[block], scalars)
            for targets, sources in zip(state, new, strict=True):
                for target, source in zip(targets, sources, strict=True):
                    target[block] = source

    return step


def fused_step(x: Array, parameters: int) -> Call:
    """Return a step of PyTorch's AdamW in binary32, as one kernel."""
    import torch

    parameter = torch.nn.Parameter(torch.from_numpy(0.02 * x[:parameters]))
    parameter.grad = torch.from_numpy(1e-3 * x[-parameters:])
    optimizer = torch.optim.AdamW(
        [parameter],
        lr=_RATE,
        betas=(_HYPER.beta1, _HYPER.beta2),
        eps=_HYPER.epsilon,
        weight_decay=_HYPER.weight_decay,
        fused=True,
    )
    return optimizer.step
