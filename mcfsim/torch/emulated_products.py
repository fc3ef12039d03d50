"""Products of layers by recipes, as operators that `torch.compile` takes, and counts of calls."""

from __future__ import annotations

from hashlib import sha256
from typing import Any, NamedTuple

import torch

from mcfsim.checks import check_processor
from mcfsim.random import RandomWords
from mcfsim.recipes.linear_layer import Entered, ForwardOperands, LinearLayer
from mcfsim.recipes.recipe import OperandSource, Recipe
from mcfsim.torch.tensor_products import TensorProducts

#: How many operation numbers of random words each product of a stack may use.
_EACH = 64


class Placed(NamedTuple):
    """The emulation of a layer.

    Attributes
    ----------
    recipe : Recipe
    layer : int
        The number of the layer, which is the stream of its random words.
    seed : int
        The seed of the random words.
    """

    recipe: Recipe
    layer: int
    seed: int


#: Emulations by number, since operators take tensors and numbers alone.
_PLACED: dict[int, Placed] = {}
_NUMBERS: dict[Placed, int] = {}


def number_of(placed: Placed) -> int:
    """Return the number by which operators know an emulation; equal emulations have the same one.

    It is a digest of all fields, the same in every process: compiled graphs hold it, and PyTorch keeps
    these on disk for other processes.
    """
    if placed not in _NUMBERS:
        number = int.from_bytes(sha256(repr(placed).encode()).digest()[:7])
        while number in _PLACED:
            number += 1
        _PLACED[number], _NUMBERS[placed] = placed, number
    return _NUMBERS[placed]


class Enrolled:
    """The emulation of a layer, as a module holds it; unpickling registers it in the new process too."""

    def __init__(self, placed: Placed) -> None:
        self.placed, self.number = placed, number_of(placed)

    def __reduce__(self) -> tuple[type[Enrolled], tuple[Placed]]:
        return Enrolled, (self.placed,)


def layer_of(number: int, call: torch.Tensor, place: int = 0) -> LinearLayer:
    """Return the layer that computes the product at a place of a stack, in a given call."""
    recipe, layer, seed = _PLACED[int(number)]
    words = RandomWords(seed, int(call), layer, _EACH * place) if recipe.stochastic else None
    units = any(product.unit is not None for product in recipe.products.values())
    return LinearLayer(recipe, TensorProducts(units=units), words)


def check_drawn_once(number: int) -> None:
    """Raise RuntimeError if a forward product that draws words is recomputed in a backward pass."""
    recipe = _PLACED[int(number)].recipe
    if recipe.forward.stochastic and torch._C._current_graph_task_id() >= 0:
        raise RuntimeError(
            f"the forward product of recipe {recipe.name!r} draws random words, and is computed anew in the "
            "backward pass, as by gradient checkpointing: with other words, gradients would be those of "
            "another result; leave out checkpointing, or let the forward product round to nearest"
        )


def _sizes(x: torch.Tensor, weight: torch.Tensor, number: int) -> tuple[int, int]:
    """Return the lengths of rows of activations and of weights that are kept for the backward pass, or 0."""
    recipe, length = _PLACED[int(number)].recipe, x.shape[-1]
    filled = length + (-length % recipe.forward.hadamard if recipe.forward.hadamard else 0)
    through = [p.right.source is OperandSource.FORWARD for p in (recipe.wgrad, recipe.dgrad)]
    return filled * through[0], filled * through[1]


# -- operators --------------------------------------------------------------------------------------------
@torch.library.custom_op("mcfsim::linear", mutates_args=())  # type: ignore[untyped-decorator]
def _forward(
    x: torch.Tensor, weight: torch.Tensor, call: torch.Tensor, number: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return stacks of ``x weight'``, the number of the call, and what the backward pass takes from this one.

    The number comes out, too: a compiler would read the counter anew in the backward pass, when it has risen.
    """
    check_processor()
    check_drawn_once(number)
    kept: list[list[torch.Tensor]] = [[], [], [], []]
    found = []
    for place, (rows, columns) in enumerate(zip(x.float(), weight.float(), strict=True)):
        y, taken = layer_of(number, call, place).forward(rows, columns)
        found.append(y.to(dtype))
        for target, part in zip(kept, _parts(taken, _sizes(x, weight, number)), strict=True):
            target.append(part)
    stacked = [torch.stack(part) for part in kept] if found else _empty(x, weight, number)
    y = torch.stack(found) if found else x.new_empty((0, x.shape[1], weight.shape[1]), dtype=dtype)
    return y, call.clone(), stacked[0], stacked[1], stacked[2], stacked[3]


def _parts(taken: ForwardOperands, sizes: tuple[int, int]) -> list[torch.Tensor]:
    """Return values and clips of both operands, empty where the backward pass takes none."""
    parts = []
    for entered, size in zip(taken, sizes, strict=True):
        parts.append(entered.values if size else entered.values.new_empty((0, 0)))
    for entered, size in zip(taken, reversed(sizes), strict=True):
        inside = entered.inside if size else None
        empty = torch.empty((0, 0), dtype=torch.bool, device=entered.values.device)
        parts.append(empty if inside is None else inside)
    return parts


def _empty(x: torch.Tensor, weight: torch.Tensor, number: int) -> list[torch.Tensor]:
    """Return empty stacks with the shapes and dtypes of what is kept."""
    recipe, sizes = _PLACED[int(number)].recipe, _sizes(x, weight, number)
    clips = recipe.forward.left.clips, recipe.forward.right.clips
    values = [
        t.new_empty((len(t), t.shape[1] if size else 0, size), dtype=torch.float32)
        for t, size in zip((x, weight), sizes, strict=True)
    ]
    inside = [
        t.new_empty((len(t), t.shape[1] if size and clip else 0, size * clip), dtype=torch.bool)
        for t, size, clip in zip((x, weight), reversed(sizes), clips, strict=True)
    ]
    return values + inside


@_forward.register_fake  # type: ignore[untyped-decorator]
def _(x: torch.Tensor, weight: torch.Tensor, call: torch.Tensor, number: int, dtype: torch.dtype) -> Any:
    y = x.new_empty((*x.shape[:2], weight.shape[1]), dtype=dtype)
    return y, torch.empty_like(call), *_empty(x, weight, number)


@torch.library.custom_op("mcfsim::linear_backward", mutates_args=())  # type: ignore[untyped-decorator]
def _backward(
    dy: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    kept: list[torch.Tensor],
    call: torch.Tensor,
    number: int,
    wanted_x: bool,
    wanted_weight: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gradients of activations and weights, each empty unless wanted."""
    check_processor()
    found: tuple[list[torch.Tensor], list[torch.Tensor]] = [], []
    for place, rows in enumerate(dy.float()):
        taken = ForwardOperands(*(_entered(kept[side][place], kept[2 + side][place]) for side in range(2)))
        layer = layer_of(number, call, place)
        if wanted_x:
            found[0].append(layer.dgrad(rows, weight[place].float(), taken).to(x.dtype))
        if wanted_weight:
            found[1].append(layer.wgrad(rows, x[place].float(), taken).to(weight.dtype))
    gradients = [
        torch.stack(parts) if parts else t.new_empty(t.shape if want else (0,))
        for parts, t, want in zip(found, (x, weight), (wanted_x, wanted_weight), strict=True)
    ]
    return gradients[0], gradients[1]


def _entered(values: torch.Tensor, inside: torch.Tensor) -> Entered:
    return Entered(values, None, inside if inside.numel() else None)


@_backward.register_fake  # type: ignore[untyped-decorator]
def _(
    dy: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    kept: list[torch.Tensor],
    call: torch.Tensor,
    number: int,
    wanted_x: bool,
    wanted_weight: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    return (
        x.new_empty(x.shape if wanted_x else (0,)),
        weight.new_empty(weight.shape if wanted_weight else (0,)),
    )


def _twice(ctx: Any, *_: Any) -> Any:
    raise RuntimeError(
        "gradients of emulated products have no derivatives: recipes round them. Leave out "
        "create_graph=True, or emulate no layer that they pass"
    )


_backward.register_autograd(_twice)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
    x, weight, _, number, _ = inputs
    wanted_x, wanted_weight, *_ = ctx.needs_input_grad
    # An operand that no gradient needs is not kept, and may be changed: its shape and dtype are enough.
    kept = [t if want else _form(t) for t, want in ((x, wanted_weight), (weight, wanted_x))]
    ctx.save_for_backward(*kept, *output[1:])
    ctx.number = number


def _form(x: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the same shape and dtype whose elements are one zero."""
    return x.new_zeros(()).expand(x.shape)


def _gradients(ctx: Any, dy: torch.Tensor, *_: Any) -> tuple[torch.Tensor | None, ...]:
    x, weight, call, *kept = ctx.saved_tensors
    wanted = ctx.needs_input_grad[:2]
    dx, dweight = _backward(dy, x, weight, kept, call, ctx.number, *wanted)
    return dx if wanted[0] else None, dweight if wanted[1] else None, None, None, None


_forward.register_autograd(_gradients, setup_context=_setup)


@torch.library.custom_op("mcfsim::table", mutates_args=())  # type: ignore[untyped-decorator]
def looked_up(weight: torch.Tensor, call: torch.Tensor, number: int) -> torch.Tensor:
    """Return weights as the forward product takes them, rotated back if the recipe rotates."""
    check_processor()
    check_drawn_once(number)
    layer, products = layer_of(number, call), TensorProducts()
    entered = layer.weight(weight.float()).values
    own = layer.recipe.forward
    if own.hadamard:
        entered = products.rotate(entered, own, layer.signs("forward"), back=True)[:, : weight.shape[1]]
    found: torch.Tensor = entered.to(weight.dtype)
    return found.clone() if found is weight else found


@looked_up.register_fake  # type: ignore[untyped-decorator]
def _(weight: torch.Tensor, call: torch.Tensor, number: int) -> torch.Tensor:
    return torch.empty_like(weight)


def _straight(ctx: Any, given: torch.Tensor) -> tuple[torch.Tensor, None, None]:
    return given, None, None


looked_up.register_autograd(_straight)


# -- calls ------------------------------------------------------------------------------------------------
def begin_counting(module: torch.nn.Module, name: str) -> None:
    """Give a module a count of its calls in training, which is not part of its state."""
    with torch.inference_mode(False):  # a tensor made in it could not be changed outside
        calls = torch.zeros((), dtype=torch.int64, device="cpu")
    module.register_buffer(name, calls, persistent=False)


def end_counting(module: torch.nn.Module, name: str) -> None:
    """Remove the count that `begin_counting` gave."""
    del module._buffers[name]
    module._non_persistent_buffers_set.discard(name)


def counted(calls: torch.Tensor, *numbers: int) -> torch.Tensor:
    """Return the number of this call of emulations with these numbers; count it if gradients are recorded.

    Raises
    ------
    RuntimeError
        If derivatives are requested that would be missing or wrong; see `_check_transforms`.
    """
    if not torch.compiler.is_compiling():
        _check_transforms(numbers)
    call = calls.clone()
    if torch.is_grad_enabled():
        calls.add_(1)
    return call


def transforms() -> set[str]:
    """Return the kinds of transforms of `torch.func` that are on: ``Grad``, ``Jvp``, ``Vmap`` and others."""
    return {item.key().name for item in torch._C._functorch.get_interpreter_stack() or ()}


def _check_transforms(numbers: tuple[int, ...]) -> None:
    """Raise RuntimeError within function transforms that PyTorch's operators in Python do not support.

    Tangents of forward mode would silently be lost, and be zeros.
    """
    kinds = transforms()
    if kinds & {"Grad", "Jvp"} or torch.autograd.forward_ad._current_level >= 0:
        raise RuntimeError(
            "emulated products have gradients by backward() and torch.autograd.grad alone: not by "
            "torch.func.grad, vjp, jvp and what is made of them, nor in forward mode"
        )
    recipes = [_PLACED[number].recipe for number in numbers]
    parts = [recipe if torch.is_grad_enabled() else recipe.forward for recipe in recipes]
    drawn = [recipe.name for recipe, part in zip(recipes, parts, strict=True) if part.stochastic]
    if "Vmap" in kinds and drawn:
        raise RuntimeError(
            f"vmap would draw the same random words for each of its calls, by recipe {drawn[0]!r}; "
            "let the batch be an axis of the input"
        )


# -- products ---------------------------------------------------------------------------------------------
def check_operands(x: torch.Tensor, weight: torch.Tensor) -> None:
    """Raise TypeError unless operands of a product have floating dtypes, or ValueError if widths differ."""
    if not (x.is_floating_point() and weight.is_floating_point()):
        raise TypeError(f"emulated products take floating dtypes, not {x.dtype} by {weight.dtype}")
    if x.shape[-1] != weight.shape[-1]:  # a rotation would pad both to one length
        raise ValueError(f"rows of {x.shape[-1]} numbers do not go with rows of {weight.shape[-1]}")


def product(x: torch.Tensor, weight: torch.Tensor, call: torch.Tensor, number: int) -> torch.Tensor:
    """Return the products ``x weight'`` of two stacks of matrices, by a given emulation.

    The result has the dtype of autocast, if that is on, else of x. Autocast does not convert the operands.
    Operands that `check_operands` refuses raise.
    """
    check_operands(x, weight)
    kind = x.device.type
    on = kind != "meta" and torch.is_autocast_enabled(kind)
    dtype = torch.get_autocast_dtype(kind) if on else x.dtype
    if not x.shape[-1]:  # nothing to quantise, and sums of nothing
        return (x @ weight.transpose(-2, -1)).to(dtype)
    found: torch.Tensor = _forward(x, weight, call, number, dtype)[0]
    return found
