"""The emulated parts that replace a model's linear layers, tables and attention.

PyTorch's fast paths, which bypass layers, are closed. Attention has to know whether gradient checkpointing,
which recomputes in the backward pass, is among its callers, and whether the model's call is still running.
No public function tells, so the frames of the call stack are searched, which takes a few microseconds.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import torch
import torch.utils.checkpoint
from torch.overrides import TorchFunctionMode

from mcfsim.torch.emulated_products import (
    Enrolled,
    begin_counting,
    check_operands,
    counted,
    end_counting,
    looked_up,
    product,
)

#: The attribute in which an encoder keeps its former setting for nested tensors.
_NESTED = "nested_before"


class Counting:
    """The attributes that emulated layers and tables add to those that they replace."""

    emulated: Enrolled
    calls: torch.Tensor
    replaced: type
    _buffers: dict[str, torch.Tensor]

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """Move the module; keep its count even where values are lost, on a meta device or by `to_empty`."""
        before = self.calls
        found = super()._apply(fn, recurse)  # type: ignore[misc]
        if self.calls.is_meta:
            self._buffers["calls"] = before
        elif self.calls is not before:
            self.calls.copy_(before)
        return found


class _Emulated(Counting):
    """The common base of emulated linear layers."""

    weight: torch.Tensor
    bias: torch.Tensor | None

    def _product(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        if x.layout is not torch.strided:
            raise TypeError(f"emulated products take dense tensors, none of layout {x.layout}")
        check_operands(x, weight)  # before the call is counted
        number = self.emulated.number
        rows = math.prod(x.shape[:-1])  # not -1, which is ambiguous if rows have no elements
        y = product(x.reshape(1, rows, x.shape[-1]), weight[None], counted(self.calls, number), number)
        y = y.reshape(*x.shape[:-1], weight.shape[0])
        # A view of an operator's output cannot be changed in place, as activations may do.
        return y.clone() if self.bias is None else y + self.bias.to(y.dtype)


class EmulatedLinear(_Emulated, torch.nn.Linear):  # type: ignore[misc]  # PyTorch has no types here
    """A linear layer whose products follow a recipe."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return ``input weight' + bias``; the bias is added in the dtype of the result."""
        return self._product(input, self.weight)


class EmulatedConv1D(_Emulated):
    """An emulated ``Conv1D`` of GPT-2: a linear layer whose weight is stored as (inputs, outputs)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return ``x weight + bias``; the bias is added in the dtype of the result."""
        return self._product(x, self.weight.t())

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return _blank_conv1d, (self.replaced,), self.__getstate__()


_CONV1D: dict[type, type] = {}


def emulated_conv1d(kind: type) -> type:
    """Return the class of emulated layers of a kind of ``Conv1D``."""
    if kind not in _CONV1D:
        _CONV1D[kind] = type("EmulatedConv1D", (EmulatedConv1D, kind), {})
    return _CONV1D[kind]


def _blank_conv1d(kind: type) -> Any:
    """Return an empty emulated layer, for unpickling."""
    found: Any = emulated_conv1d(kind)
    return found.__new__(found)


def linear_layers(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    """Yield names and modules of linear layers, of Hugging Face's ``Conv1D``, and of emulated ones."""
    for name, module in model.named_modules():
        if type(module) in (torch.nn.Linear, EmulatedLinear) or is_conv1d(module):
            yield name, module


def is_conv1d(module: torch.nn.Module) -> bool:
    """Return whether a layer is a linear one whose weight is stored as (inputs, outputs)."""
    conv = type(module).__name__ == "Conv1D" and getattr(module, "weight", torch.empty(0)).ndim == 2
    return conv or isinstance(module, EmulatedConv1D)


class EmulatedEmbedding(Counting, torch.nn.Embedding):  # type: ignore[misc]  # PyTorch has no types here
    """A table whose quantised rows are looked up."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return rows of the quantised table, in the dtype of the weights."""
        number = self.emulated.number
        table = looked_up(self.weight, counted(self.calls, number), number)
        return torch.nn.functional.embedding(
            input, table, self.padding_idx, scale_grad_by_freq=self.scale_grad_by_freq
        )


def why_left(table: torch.nn.Embedding) -> str | None:
    """Return why a table is not emulated, or None if it can be."""
    if type(table) is not torch.nn.Embedding:
        return f"{type(table).__name__} is a subclass of Embedding, with a lookup of its own"
    if table.sparse:
        return "its gradient is sparse"
    return None if table.max_norm is None else "it changes its rows as they are looked up (max_norm)"


# -- paths around layers ----------------------------------------------------------------------------------
def _seen(module: torch.nn.Module, args: Any) -> None:
    """Do nothing: a layer with a hook calls its parts, and passes their weights to no fused function."""


def close_fast_paths(model: torch.nn.Module) -> None:
    """Make encoders call their layers even in evaluation without gradients."""
    for module in model.modules():
        if isinstance(module, torch.nn.TransformerEncoderLayer):
            module.register_forward_pre_hook(_seen)
        if isinstance(module, torch.nn.TransformerEncoder) and hasattr(module, "use_nested_tensor"):
            # Nested tensors serve only the fast path.
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


# -- attention --------------------------------------------------------------------------------------------
#: The attributes that emulated attention adds to a model.
_CALLS = "attention_calls"
_NUMBERS = "emulated_attention"
_MODES = "attention_modes"


class AttentionMode(TorchFunctionMode):  # type: ignore[misc]  # PyTorch has no types here
    """A mode in which `scaled_dot_product_attention` is computed by a recipe.

    `caller` is the frame that calls the model; None if there is none, or the call is being compiled.
    """

    def __init__(
        self, numbers: tuple[int, int], calls: torch.Tensor, caller: FrameType | None = None
    ) -> None:
        super().__init__()
        self.numbers, self.calls, self.caller = numbers, calls, caller
        self.recorded = torch.is_grad_enabled()

    def is_on(self) -> bool:
        """Return whether the model's call is still running; an interrupt ends it without running a hook."""
        return self.caller is None or any(frame is self.caller for frame in _frames())

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
                # One kind would complain of other tensors; the other would differentiate another attention.
                raise RuntimeError(
                    "emulated attention is within gradient checkpointing, which would compute it anew in "
                    "the backward pass, outside of the model's call, and not emulated; leave out "
                    "checkpointing"
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
    """Return attention whose products ``Q K'`` and ``P V`` are those of the emulations with these numbers.

    The arguments are those of `torch.nn.functional.scaled_dot_product_attention`. Scores, as the product
    gives them, are scaled, masked and exponentiated in binary32; the weights P come in the dtype of the
    products. A row that is masked as a whole gives zeros.

    Raises
    ------
    ValueError
        If both a mask and `is_causal` are given, or heads of keys do not divide those of queries.
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
    """The modes of a model's running calls; copies of the model have none."""

    def __reduce__(self) -> tuple[type[_Modes], tuple[()]]:
        return _Modes, ()


# -- in a model -------------------------------------------------------------------------------------------
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
    return f"the model computes it by {told!r}; only attn_implementation='sdpa' can be emulated"


# -- the callers of a call --------------------------------------------------------------------------------
def is_checkpointed(caller: FrameType) -> bool:
    """Return whether checkpointing makes this call, or a call between it and `caller`."""
    return any(True for _ in _names(caller))


def is_computed_anew() -> bool:
    """Return whether this call repeats one that was made with gradients already.

    Checkpointing that re-enters (``use_reentrant=True``) records gradients only the second time.
    """
    return torch._C._current_graph_task_id() >= 0 and "unpack_hook" in _names()


def _names(caller: FrameType | None = None) -> Iterator[str]:
    """Yield the names of the running functions of checkpointing, the innermost first, up to a caller."""
    for frame in _frames():
        if frame is caller:
            return
        if frame.f_code.co_filename == torch.utils.checkpoint.__file__:
            yield frame.f_code.co_name


def _frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back
