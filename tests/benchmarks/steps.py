"""Steps of optimizers: compiled, beside the same on NumPy, and beside PyTorch's."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

import mcfsim as mcf
from mcfsim.optim.groups import why_not_packed
from mcfsim.optim.state import State
from tests.benchmarks.timing import Array, Call, Pair, installed, optimizer

#: Parameters of a step.
PARAMETERS = 1 << 22
#: Those of a block that stays in cache.
_BLOCK = 1 << 17
_HYPER = mcf.AdamW()
_RATE = 1e-3
FUSED = "torch AdamW(fused=True), float32"


def steps(x: Array) -> Iterator[Pair]:
    """One AdamW step under each strategy, on carrier numbers and on codes, beside its peers."""
    for name in mcf.STRATEGIES:
        if name != "exact":
            theirs = _step(name, x, compiled=False)
            for packed in (False, True) if _packs(name) else (False,):
                ours = _step(name, x, compiled=True, packed=packed)
                yield Pair(_titled(name, packed=packed), ours, "not compiled", theirs)
    if installed("torch"):
        yield from _beside_torch(x)


def threads(x: Array) -> Iterator[Pair]:
    """One AdamW step on two threads, beside one."""
    one, two = (_packed("collage-plus", x, threads=count) for count in (1, 2))
    yield Pair(f"{_titled('collage-plus', packed=True)}, two threads", two, "one thread", one)


def _packs(name: str) -> bool:
    """Return whether all groups of a strategy's moments can be packed."""
    kept = [stored.scaled for stored in mcf.strategy(name).tensors.values() if stored.scaled is not None]
    return not any(map(why_not_packed, kept))


def _titled(name: str, *, packed: bool) -> str:
    return f"one step of adamw, {name}" + (", packed" if packed else "")


def _step(name: str, x: Array, **options: Any) -> Call:
    made, gradient = optimizer(name, x, PARAMETERS, **options)
    return partial(made.step, gradient, _RATE)


def _packed(name: str, x: Array, **options: Any) -> Call:
    return _step(name, x, compiled=True, packed=True, **options)


def _beside_torch(x: Array) -> Iterator[Pair]:
    """The published optimizer's operations on bfloat16 tensors, and AdamW in binary32, fused."""
    import torch

    torch.set_num_threads(1)
    for name in ("collage-light", "collage-plus"):
        ours = _packed(name, x)
        for size, peer in ((PARAMETERS, "same text, torch bfloat16"), (_BLOCK, "the same, block by block")):
            yield Pair(_titled(name, packed=True), ours, peer, native_step(name, x, PARAMETERS, size))
    fused = fused_step(x, PARAMETERS)
    for name in ("plain", "collage-light", "collage-plus", "fp32"):
        yield Pair(_titled(name, packed=True), _packed(name, x), FUSED, fused)


def native_step(name: str, x: Array, parameters: int, size: int) -> Call:
    """Return a step of the optimizer's own text in PyTorch's operators, on `size` elements at a time."""
    import torch

    from tests.benchmarks.native_torch import roles_of

    made, received = optimizer(name, x, parameters)
    native = roles_of(made.strategy)

    def tensor(array: Array, dtype: torch.dtype) -> torch.Tensor:
        return torch.from_numpy(np.array(array)).to(dtype)

    roles = (native.model, native.moments, native.second_moment, native.parameter)
    pairs = zip(made.state, roles, strict=True)
    state = State(*(tuple(tensor(item, role.carrier) for item in items) for items, role in pairs))
    gradient = tensor(received, native.moments.carrier)

    def step() -> None:
        scalars = _HYPER.scalars(made.roles, made.strategy, 1, _RATE, decayed=True)
        for start in range(0, parameters, size):
            block = slice(start, start + size)
            old = State(*(tuple(item[block] for item in items) for items in state))
            new, _ = _HYPER.step(native, made.strategy, old, gradient[block], scalars)
            for targets, sources in zip(state, new, strict=True):
                for target, source in zip(targets, sources, strict=True):
                    target[block] = source

    return step


def fused_step(x: Array, parameters: int) -> Call:
    """Return a step of PyTorch's AdamW in binary32, as one kernel."""
    import torch

    parameter = torch.nn.Parameter(torch.from_numpy(0.02 * x[:parameters]))
    parameter.grad = torch.from_numpy(1e-3 * x[-parameters:])
    betas, decay = (_HYPER.beta1, _HYPER.beta2), _HYPER.weight_decay
    options = {"lr": _RATE, "betas": betas, "eps": _HYPER.epsilon, "weight_decay": decay}
    return torch.optim.AdamW([parameter], fused=True, **options).step
