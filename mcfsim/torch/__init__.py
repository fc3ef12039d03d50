"""PyTorch optimizers that make exactly the steps of `mcfsim.simulate`, and quantised operands of products.

`optimizers` has the public classes, built on `step`. A `group` says how its parameters are stored;
`straight_step` and `whole_step` make its steps, which `watcher` and `change_recorder` observe.
`quantized` quantises operands of products, `tensor_products` multiplies tensors, as tensor cores do or by a
recipe, and `emulation` puts such products into a model. The rest deals with PyTorch: state dicts, DTensors,
captured graphs, steps in the backward pass, other libraries' optimizers. Imports `optim` and below. Begin
with `optimizers`.
"""

from __future__ import annotations

from typing import Any

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ImportError("mcfsim.torch needs PyTorch: pip install 'mcfsim[torch]'") from error

from mcfsim.torch.adoption import adopt, release
from mcfsim.torch.backward import BackwardSteps, step_in_backward
from mcfsim.torch.change_recorder import ChangeRecorder, apply_delta, changes
from mcfsim.torch.emulation import EmulatedModel, emulate, restore
from mcfsim.torch.moved import OutsideWriteWarning
from mcfsim.torch.optimizers import SGD, AdamW, TorchAdamW, declared_optimizer, optimizer
from mcfsim.torch.product_watch import ProductWatch, watch_products
from mcfsim.torch.quantized import quantize
from mcfsim.torch.tensor_products import matmul
from mcfsim.torch.watcher import ModelRecorder, Seen, Watch, record, watch
from mcfsim.torch.weight_average import WeightAverage, average

__all__ = [
    "SGD",
    "AdamW",
    "BackwardSteps",
    "ChangeRecorder",
    "EmulatedModel",
    "ModelRecorder",
    "OutsideWriteWarning",
    "ProductWatch",
    "Seen",
    "TorchAdamW",
    "Watch",
    "WeightAverage",
    "adopt",
    "apply_delta",
    "average",
    "changes",
    "emulate",
    "matmul",
    "optimizer",
    "quantize",
    "record",
    "release",
    "restore",
    "step_in_backward",
    "watch",
    "watch_products",
]


def __getattr__(name: str) -> Any:
    """Return the optimizer class for another declaration of `mcfsim.optim`; it is made once."""
    made = declared_optimizer(name)
    if made is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = made
    return made
