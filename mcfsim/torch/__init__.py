"""For PyTorch models: the very steps that `mcfsim.simulate` makes; recorded gradients."""

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
from mcfsim.torch.gradient_hooks import ModelRecorder, record
from mcfsim.torch.optimizers import SGD, AdamW, TorchAdamW, declared_optimizer
from mcfsim.torch.watcher import Seen, Watch, watch
from mcfsim.torch.writes import OutsideWriteWarning

__all__ = [
    "SGD",
    "AdamW",
    "BackwardSteps",
    "ModelRecorder",
    "OutsideWriteWarning",
    "Seen",
    "TorchAdamW",
    "Watch",
    "adopt",
    "record",
    "release",
    "step_in_backward",
    "watch",
]


def __getattr__(name: str) -> Any:
    """Return the optimizer that another module of `mcfsim.optim` declares, made once."""
    made = declared_optimizer(name)
    if made is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = made
    return made
