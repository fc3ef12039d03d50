"""Attention whose two products follow a recipe, wherever a model asks PyTorch for it."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from mcfsim.torch.checkpointing import is_checkpointed, is_running
from mcfsim.torch.emulated_linear import Enrolled, begin_counting, counted, end_counting, product

#: The attributes that emulated attention adds to a model.
_CALLS = "attention_calls"
_NUMBERS = "emulated_attention"
_MODES = "attention_modes"


class AttentionMode(TorchFunctionMode):  # type: ignore[misc]  # PyTorch has no types here
    """While it is on, `scaled_dot_product_attention` is computed by a recipe.

    `caller` is the frame that calls the model, if one does.
    """

    def __init__(
        self, numbers: tuple[int, int], calls: torch.Tensor, caller: FrameType | None = None
    ) -> None:
        super().__init__()
        self.numbers, self.calls, self.caller = numbers, calls, caller
        self.recorded = torch.is_grad_enabled()

    def is_on(self) -> bool:
        """Return whether the model's call is still running; an interrupt ends it, and runs no hook."""
        return self.caller is None or is_running(self.caller)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call a function of PyTorch's, or its replacement."""
        if func is not torch.nn.functional.scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        if not torch.compiler.is_compiling() and self.caller is not None:
            if not self.is_on():
                return func(*args, **(kwargs or {}))
            if self.recorded and is_checkpointed(self.caller):
                # One kind would complain of other tensors, the other take gradients of another attention.
                raise RuntimeError(
                    "emulated attention is within gradient checkpointing, which would compute it anew in "
                    "the backward pass, outside of the model's call, and not emulated; leave it out"
                )
        return attend(self.numbers, counted(self.calls, *self.numbers), *args, **(kwargs or {}))


def attend(
    numbers: tuple[int, int],
    call: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Return attention whose products ``Q K'`` and ``P V`` are emulated under these numbers.

    The arguments are those of `torch.nn.functional.scaled_dot_product_attention`. Scores, as the product
    gives them, are scaled, masked and exponentiated in binary32; the weights P come in the dtype of the
    products. A row that is masked as a whole gives zeros.

    Raises
    ------
    ValueError
        If there is a mask beside `is_causal`, or heads of keys do not divide those of queries.
    """
    if is_causal and attn_mask is not None:
        raise ValueError("scaled_dot_product_attention takes attn_mask or is_causal=True, not both")
    if enable_gqa:
        key, value = _grouped(query, key), _grouped(query, value)
    batch = torch.broadcast_shapes(*(x.shape[:-2] for x in (query, key, value)))
    heads = math.prod(batch)
    q, k, v = (x.expand(*batch, *x.shape[-2:]).reshape(heads, *x.shape[-2:]) for x in (query, key, value))
    made = product(q, k, call, numbers[0])
    by = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = made.float().reshape(*batch, *made.shape[-2:]) * by
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if attn_mask is not None:
        masked = attn_mask.dtype == torch.bool
        scores = scores.masked_fill(~attn_mask, -math.inf) if masked else scores + attn_mask.float()
    gone = (scores == -math.inf).all(-1, keepdim=True)
    # Before softmax, whose gradient of such a row is NaN, and after it.
    weights = scores.masked_fill(gone, 0.0).softmax(-1).masked_fill(gone, 0.0)
    weights = torch.nn.functional.dropout(weights.to(made.dtype), dropout_p)
    found = product(weights.reshape(made.shape), v.transpose(-2, -1), call, numbers[1])
    return found.reshape(*batch, *found.shape[-2:]).clone()


def _grouped(query: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return keys or values with as many heads as queries."""
    if query.shape[-3] % x.shape[-3]:
        raise ValueError(f"{x.shape[-3]} heads of keys or values do not divide {query.shape[-3]} of queries")
    return x.repeat_interleave(query.shape[-3] // x.shape[-3], -3)


class _Modes(list[AttentionMode]):
    """The modes of calls of a model that are running; copies of the model have none."""

    def __reduce__(self) -> tuple[type[_Modes], tuple[()]]:
        return _Modes, ()


# -- in a model ---------------------------------------------------------------------------------------------
def _enter(model: torch.nn.Module, args: Any) -> None:
    one, other = getattr(model, _NUMBERS)
    caller = None
    if not torch.compiler.is_compiling():
        _end_interrupted(model)
        caller = sys._getframe(1)
    mode = AttentionMode((one.number, other.number), getattr(model, _CALLS), caller)
    mode.__enter__()
    model.__dict__[_MODES].append(mode)


def _leave(model: torch.nn.Module, args: Any, output: Any) -> None:
    if model.__dict__[_MODES]:  # an error may come before it is entered
        model.__dict__[_MODES].pop().__exit__(None, None, None)


def _end_interrupted(model: torch.nn.Module) -> None:
    """End the modes of calls that an interrupt has ended."""
    modes = model.__dict__[_MODES]
    while modes and not modes[-1].is_on():
        mode = modes.pop()
        if torch.overrides._get_current_function_mode() is mode:
            mode.__exit__(None, None, None)


def emulate_attention(model: torch.nn.Module, numbers: tuple[Enrolled, Enrolled]) -> None:
    """Compute all attention within calls of a model by these emulations, one for each product."""
    model.__dict__[_NUMBERS], model.__dict__[_MODES] = numbers, _Modes()
    begin_counting(model, _CALLS)
    model.register_forward_pre_hook(_enter, prepend=True)
    model.register_forward_hook(_leave, always_call=True)


def restore_attention(model: torch.nn.Module) -> None:
    """Undo `emulate_attention`, in a copy of a model too."""
    if _NUMBERS not in model.__dict__:
        return
    _end_interrupted(model)
    for hooks, own in ((model._forward_pre_hooks, _enter), (model._forward_hooks, _leave)):
        for key in [key for key, hook in hooks.items() if hook is own]:
            del hooks[key]
            model._forward_hooks_always_called.pop(key, None)
    for name in (_NUMBERS, _MODES):
        del model.__dict__[name]
    end_counting(model, _CALLS)


def attention_calls(model: torch.nn.Module) -> torch.Tensor | None:
    """Return how often attention was computed in training; None if it is not emulated."""
    return model._buffers.get(_CALLS)


def attention_left(model: torch.nn.Module) -> str | None:
    """Return why a model's attention cannot be emulated, as far as the model says so; None otherwise."""
    told = getattr(getattr(model, "config", None), "_attn_implementation", None)
    if any(getattr(module, "gradient_checkpointing", False) is True for module in model.modules()):
        return "gradient checkpointing computes it anew in the backward pass, outside of the model's call"
    if told in (None, "sdpa"):
        return None
    return f"the model computes it by {told!r}; attn_implementation='sdpa' is what can be emulated"
