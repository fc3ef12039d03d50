"""Embedding tables looked up as a recipe quantises weights, with gradients straight through."""

from __future__ import annotations

from typing import Any

import torch

from mcfsim.checks import check_processor
from mcfsim.torch.emulated_linear import Counting, check_drawn_once, counted, layer_of
from mcfsim.torch.tensor_products import TensorProducts


# -- the operator -------------------------------------------------------------------------------------------
@torch.library.custom_op("mcfsim::table", mutates_args=())  # type: ignore[untyped-decorator]
def _table(weight: torch.Tensor, call: torch.Tensor, number: int) -> torch.Tensor:
    """Return weights as the forward product takes them, turned back where the recipe rotates."""
    check_processor()
    check_drawn_once(number)
    layer, products = layer_of(number, call), TensorProducts()
    entered = layer.weight(weight.float()).values
    own = layer.recipe.forward
    if own.hadamard:
        entered = products.rotate(entered, own, layer.signs("forward"), back=True)[:, : weight.shape[1]]
    found: torch.Tensor = entered.to(weight.dtype)
    return found.clone() if found is weight else found


@_table.register_fake  # type: ignore[untyped-decorator]
def _(weight: torch.Tensor, call: torch.Tensor, number: int) -> torch.Tensor:
    return torch.empty_like(weight)


def _straight(ctx: Any, given: torch.Tensor) -> tuple[torch.Tensor, None, None]:
    return given, None, None


_table.register_autograd(_straight)


# -- the layer ----------------------------------------------------------------------------------------------
class EmulatedEmbedding(Counting, torch.nn.Embedding):  # type: ignore[misc]  # PyTorch has no types here
    """A table whose quantised rows are looked up."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return rows of the quantised table, in the dtype of the weights."""
        number = self.emulated.number
        table = _table(self.weight, counted(self.calls, number), number)
        return torch.nn.functional.embedding(
            input, table, self.padding_idx, scale_grad_by_freq=self.scale_grad_by_freq
        )


def why_left(table: torch.nn.Embedding) -> str | None:
    """Return why a table is not emulated, or None if it can be."""
    if type(table) is not torch.nn.Embedding:
        return f"{type(table).__name__} is a subclass of Embedding, with a way of its own"
    if table.sparse:
        return "its gradient is sparse"
    return None if table.max_norm is None else "it changes its rows as they are looked up (max_norm)"
