"""PyTorch's ways around the layers of a module in evaluation, closed while they are emulated."""

from __future__ import annotations

from typing import Any

import torch

#: Where an encoder keeps its former setting for tensors of sequences of several lengths.
_NESTED = "nested_before"


def _seen(module: torch.nn.Module, args: Any) -> None:
    """Do nothing: a layer that has a hook calls its parts, and hands their weights to no joint function."""


def close_fast_paths(model: torch.nn.Module) -> None:
    """Let encoders call their layers in evaluation without gradients, too."""
    for module in model.modules():
        if isinstance(module, torch.nn.TransformerEncoderLayer):
            module.register_forward_pre_hook(_seen)
        if isinstance(module, torch.nn.TransformerEncoder) and hasattr(module, "use_nested_tensor"):
            # Nested tensors are for the fast way alone.
            module.__dict__[_NESTED], module.use_nested_tensor = module.use_nested_tensor, False


def open_fast_paths(model: torch.nn.Module) -> None:
    """Undo `close_fast_paths`, in a copy of a model too."""
    for module in model.modules():
        if isinstance(module, torch.nn.TransformerEncoderLayer):
            hooks = module._forward_pre_hooks
            for key in [key for key, hook in hooks.items() if hook is _seen]:
                del hooks[key]
        if _NESTED in module.__dict__:
            module.use_nested_tensor = module.__dict__.pop(_NESTED)
