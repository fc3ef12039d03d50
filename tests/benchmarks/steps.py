"""Steps of optimizers by PyTorch: the same algorithm in its operators, and its own AdamW."""

from __future__ import annotations

import numpy as np

import mcfsim as mcf
from mcfsim.optim.state import State
from tests.benchmarks.timing import Array, Call, optimizer

#: Parameters of a step.
PARAMETERS = 1 << 22
_HYPER = mcf.AdamW()
_RATE = 1e-3
FUSED = "torch AdamW(fused=True), float32"


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
