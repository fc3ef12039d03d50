"""A watch on the linear layers of a PyTorch model: what recipes would do to their products as it trains."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch

from mcfsim.checks import whole_number
from mcfsim.kernels.torch_tensors import check_module
from mcfsim.models.product_rows import ProductRow, layer_costs, layers_to_keep, summary, write_rows
from mcfsim.random import RandomWords
from mcfsim.recipes import OperandFinding, Recipe, audit_products, get_recipe
from mcfsim.storage.files import Pathlike
from mcfsim.torch.emulated_layers import is_computed_anew, is_conv1d, linear_layers
from mcfsim.torch.emulated_products import transforms
from mcfsim.torch.local import is_spread
from mcfsim.torch.tensor_products import in_numpy


class _Key(NamedTuple):
    """The first fields of a row: what was measured, and where."""

    step: int
    layer: str
    recipe: str
    product: str
    operand: str


class _Sums:
    """Findings of a step, added up over the calls of a layer."""

    def __init__(self) -> None:
        self.calls = self.macs = 0
        self.finding = OperandFinding()

    def add(self, finding: OperandFinding, macs: int) -> None:
        self.calls, self.macs = self.calls + 1, self.macs + macs
        self.finding = OperandFinding.joined((self.finding, finding))


class ProductWatch:
    """A watch on the products of a model's linear layers; see `watch_products`.

    Attributes
    ----------
    recipes : dict of Recipe by name
        What is measured.
    layers : list of str
        The names of the layers that are watched.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        recipes: Sequence[Recipe | str],
        every: int,
        optimizer: torch.optim.Optimizer | None,
        seed: int,
    ) -> None:
        self.recipes = {recipe.name: recipe for recipe in map(get_recipe, recipes)}
        named = dict(linear_layers(model))
        self.layers = list(named)
        if len(self.recipes) != len(recipes) or not recipes:
            raise ValueError(f"recipes must be at least one, with different names, not {list(recipes)!r}")
        if not named:
            raise ValueError("the model has no linear layer")
        if any(is_spread(module.weight) for module in named.values()):
            raise ValueError("weights that processes share as DTensors are not watched")
        self._every, self._seed = every, seed
        self._step, self._watched = 0, False
        self._found: dict[_Key, _Sums] = {}
        self._calls = dict.fromkeys(self.layers, 0)
        self._handles: list[Any] = [
            module.register_forward_hook(self._layer_hook(number, name), prepend=True, with_kwargs=True)
            for number, (name, module) in enumerate(named.items())
        ]
        if optimizer is None:
            self._handles.append(model.register_forward_pre_hook(self._model_hook()))
        else:
            self._begin(1)
            self._handles.append(optimizer.register_step_post_hook(lambda *_: self._begin(self._step + 1)))

    # -- what users ask for ----------------------------------------------------------------------------------
    @property
    def rows(self) -> list[ProductRow]:
        """All measurements so far: one for each step, layer, recipe, product and operand."""
        return [
            ProductRow(
                *key,
                found.calls,
                found.macs,
                found.finding.relative_error,
                found.finding.operand_error,
                found.finding.underflow,
                found.finding.saturation,
                found.finding.outlier_blocks,
            )
            for key, found in sorted(self._found.items(), key=lambda item: self._order(item[0]))
        ]

    @property
    def unused(self) -> list[str]:
        """The names of layers without measurements: never called, or frozen below all gradients."""
        seen = {key.layer for key in self._found}
        return [name for name in self.layers if name not in seen]

    def summary(self) -> list[ProductRow]:
        """Return measurements over all steps; see `mcfsim.models.product_rows.summary`."""
        return summary(self.rows)

    def write(self, path: Pathlike) -> None:
        """Write all measurements so far as CSV, which ``mcfsim audit --products`` shows.

        Raises
        ------
        OutputError
            If the file cannot be written.
        """
        write_rows(path, self.rows)

    def assign(
        self, recipe: Recipe | str, *, share: float | None = None, error: float | None = None
    ) -> list[str]:
        """Return the names of layers to keep in high precision, for ``emulate(recipe, high=...)``.

        Parameters
        ----------
        recipe : Recipe or str
            A recipe that was measured, or its name.
        share, error : float, optional
            One of the two; see `mcfsim.models.product_rows.layers_to_keep`. Layers without measurements are
            not named and not counted.

        Raises
        ------
        ValueError
            If the recipe was not measured, or a number is out of range.
        """
        name = recipe.name if isinstance(recipe, Recipe) else recipe
        return layers_to_keep(layer_costs(self.rows, name), share=share, error=error)

    def remove(self) -> None:
        """End the watch and remove its hooks from the model; measurements stay."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._watched = False

    # -- what hooks do ------------------------------------------------------------------------------------
    def _order(self, key: _Key) -> tuple[Any, ...]:
        products = ("forward", "dgrad", "wgrad")
        places = self.layers.index(key.layer), list(self.recipes).index(key.recipe)
        return key.step, *places, products.index(key.product), key.operand

    def _begin(self, step: int) -> None:
        self._step, self._watched = step, step % self._every == 0

    def _model_hook(self) -> Callable[..., None]:
        def count(module: torch.nn.Module, args: Any) -> None:
            if _is_training(module):
                self._begin(self._step + 1)

        return _uncompiled(count)

    def _layer_hook(self, number: int, name: str) -> Callable[..., None]:
        def see(module: torch.nn.Module, args: Any, kwargs: Any, output: torch.Tensor) -> None:
            if not (self._watched and _is_training(module)):
                return
            if transforms():
                raise RuntimeError(
                    "no products are measured within torch.func's transforms: remove the watch"
                )
            x = args[0] if args else next(iter(kwargs.values()))
            step, wanted = self._step, ["forward"]
            if output.requires_grad:
                wanted += ["dgrad"] * x.requires_grad + ["wgrad"] * module.weight.requires_grad
            # The tensor may be changed in place before the backward pass comes here.
            kept = _rows(x).clone()
            # The module may have another weight after the call.
            weight = (module.weight.t() if is_conv1d(module) else module.weight).detach()

            def measure(dy: torch.Tensor | None) -> None:
                if self._handles and wanted:
                    self._measure(step, number, name, weight, kept, dy, wanted)
                    # The forward product is made once, however many backward passes follow.
                    wanted[:] = [product for product in wanted if product != "forward"]

            if output.requires_grad:
                _whole(output).register_hook(measure)
            else:
                measure(None)

        return _uncompiled(see)

    def _measure(
        self,
        step: int,
        number: int,
        name: str,
        taken: torch.Tensor,
        x: torch.Tensor,
        dy: torch.Tensor | None,
        wanted: Sequence[str],
    ) -> None:
        weight = _rows(taken)
        call, self._calls[name] = self._calls[name], self._calls[name] + 1
        words = RandomWords(self._seed, call, number)
        given = None if dy is None else in_numpy(_rows(dy.reshape(len(x), len(weight))))
        for recipe in self.recipes.values():
            found = audit_products(recipe, in_numpy(x), in_numpy(weight), given, words, wanted)
            for (product, operand), finding in found.items():
                key = _Key(step, name, recipe.name, product, operand)
                self._found.setdefault(key, _Sums()).add(finding, x.numel() * len(weight))


def _is_training(module: torch.nn.Module) -> bool:
    """Return whether a call is one of training; calls that checkpointing repeats were seen already."""
    return module.training and torch.is_grad_enabled() and not is_computed_anew()


def _whole(x: torch.Tensor) -> torch.Tensor:
    """Return the base of an output that is a view of all its elements, or else the output itself.

    An activation that works in place removes hooks from a view, but not from its base.
    """
    base = x._base
    same = base is not None and base.requires_grad and base.numel() == x.numel() and base.is_contiguous()
    return base if same else x


def _uncompiled(hook: Callable[..., None]) -> Callable[..., None]:
    """Return a hook that PyTorch's compiler leaves alone."""
    found: Callable[..., None] = torch.compiler.disable(hook)
    return found


def _rows(x: torch.Tensor) -> torch.Tensor:
    """Return a matrix of binary32 on the CPU whose rows are those of the last axis."""
    rows = math.prod(x.shape[:-1])  # not -1, which is ambiguous if rows have no elements
    return x.detach().reshape(rows, x.shape[-1]).to("cpu", torch.float32).contiguous()


def watch_products(
    model: torch.nn.Module,
    recipes: Sequence[Recipe | str],
    every: int = 100,
    *,
    optimizer: torch.optim.Optimizer | None = None,
    seed: int = 0,
) -> ProductWatch:
    """Measure in every `every`-th training step what recipes would do to the products of linear layers.

    Parameters
    ----------
    model : torch.nn.Module
        On any device, plain or emulated. Layers of exactly `torch.nn.Linear`, ``Conv1D`` of Hugging Face, and
        those that replace them under `mcfsim.torch.emulate` are watched.
    recipes : sequence of Recipe or str
        Recipes, or names of `mcfsim.recipes.RECIPES`; all must have different names.
    every : int, optional
        Steps whose number is a multiple of it are measured.
    optimizer : torch.optim.Optimizer, optional
        Its steps count as the steps, so that gradients may be accumulated over several passes. By default
        each call of the model in training mode with gradients is a step.
    seed : int, optional
        The seed of the random words of stochastic recipes, which are those of (seed, measured call, layer).

    Returns
    -------
    ProductWatch
        Its ``rows`` are the measurements, ``write(path)`` writes them, ``assign(recipe, share=0.16)`` names
        the layers to keep in high precision, and ``remove()`` ends the watch.

    Raises
    ------
    TypeError
        If `model` is no module, `optimizer` no optimizer, a recipe no recipe, or `seed` no int.
    ValueError
        If a name is unknown or comes twice, `every` is not positive, the model has no linear layer, or its
        weights are DTensors.

    Notes
    -----
    The model computes the same bits as without the watch. Operands are the layer's activations, its weight,
    and the gradient of its output, in binary32; those in float64 are rounded to it. The products are those
    that training makes: dgrad if activations require a gradient, wgrad if the weight does. Several calls of a
    layer in a step add up. A call whose output gets no gradient is not measured, except of layers that need
    none. See `mcfsim.recipes.OperandFinding` for what is counted, including NaN and infinity.

    A measured step keeps copies of activations until its backward pass is over, and takes the time of some
    products on the CPU in binary64. `torch.compile` computes a watched model in pieces that end at each
    linear layer, in all steps, and refuses ``fullgraph=True``: watch, remove, then compile. A copy of a
    watched model calls the same watch; a watched model cannot be pickled. Each process measures its own
    tokens.

    Examples
    --------
    >>> import torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Linear(32, 4))
    >>> watch = watch_products(model, ["mxfp8", "nvfp4"], every=1)
    >>> model(torch.ones(8, 32)).sum().backward()
    >>> watch.remove()
    >>> sorted({row.product for row in watch.rows if row.layer == "0"})
    ['forward', 'wgrad']
    >>> watch.assign("nvfp4", share=0.3)
    ['1']
    """
    check_module(model)
    if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"optimizer must be a torch.optim.Optimizer, not {type(optimizer).__name__}")
    if isinstance(recipes, str | Recipe) or not isinstance(recipes, Iterable):
        raise TypeError(f"recipes must be a sequence of recipes, not {recipes!r}")
    RandomWords(seed)  # raises unless words can follow from it
    return ProductWatch(model, list(recipes), whole_number("every", every, least=1), optimizer, seed)
