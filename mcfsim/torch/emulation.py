"""A PyTorch model with its matrix products emulated by a recipe, and the same model given back."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import torch

from mcfsim.checks import check_flag, hint, whole_number
from mcfsim.kernels.torch_tensors import check_module
from mcfsim.products import Unit
from mcfsim.random import RandomWords
from mcfsim.recipes.named_recipes import get_recipe
from mcfsim.recipes.recipe import Recipe
from mcfsim.torch.emulated_layers import (
    EmulatedConv1D,
    EmulatedEmbedding,
    EmulatedLinear,
    attention_calls,
    attention_left,
    close_fast_paths,
    emulate_attention,
    emulated_conv1d,
    linear_layers,
    open_fast_paths,
    restore_attention,
    why_left,
)
from mcfsim.torch.emulated_products import Enrolled, Placed, begin_counting, end_counting

#: The default of `unit`: each product uses the unit that the recipe names.
AS_THE_RECIPE = "recipe"
#: Last parts of the names of heads, for models that do not tell which layer is their head.
_HEADS = frozenset({"lm_head", "head", "classifier", "score", "output_projection", "embed_out"})
_OF = {torch.nn.Linear: EmulatedLinear, torch.nn.Embedding: EmulatedEmbedding}
_EMULATED = (EmulatedLinear, EmulatedConv1D, EmulatedEmbedding)
#: The name of attention in what is saved.
_ATTENTION = "scaled_dot_product_attention"
#: Random words tell this many calls apart.
_CALLS = 2**32


@dataclass
class EmulatedModel:
    """A record of what `emulate` did to a model.

    Attributes
    ----------
    recipe : Recipe
        The recipe.
    emulated : list of str
        The names of the layers that are emulated.
    high : list of str
        The names of linear layers that stay as they are, by the recipe or by choice.
    embeddings : list of str
        The names of tables whose rows are quantised.
    attention : bool
        Whether products of attention are emulated.
    left : dict of str by str
        The other modules that have weights, by name, and why they are not emulated: they compute as before.
        It does not list what functions compute with the weights of layers that are not called.
    """

    model: torch.nn.Module = field(repr=False)
    recipe: Recipe
    emulated: list[str] = field(default_factory=list)
    high: list[str] = field(default_factory=list)
    embeddings: list[str] = field(default_factory=list)
    attention: bool = False
    left: dict[str, str] = field(default_factory=dict)

    def restore(self) -> torch.nn.Module:
        """Give the model back as it was, with the weights that it has now."""
        return restore(self.model)

    def state_dict(self) -> dict[str, int]:
        """Return how often each layer was called with gradients, from which its random words follow.

        Raises
        ------
        ValueError
            If the model is no longer emulated.
        """
        return {name: int(calls) for name, calls in self._calls().items()}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on with the random words of a saved emulation of the same model.

        Raises
        ------
        TypeError
            If it is no state, or a count is no int.
        ValueError
            If the names of the layers differ, or a count is out of range; or if the model is no longer
            emulated. Nothing has changed then.
        """
        own = self._calls()
        if not isinstance(state, Mapping):
            raise TypeError(f"a {type(state).__name__} is no state of an emulation")
        if set(state) != set(own):
            odd = sorted(set(state) ^ set(own))
            raise ValueError(f"the state is of another emulation: {odd[0]!r} is in one of them alone")
        counts = {name: whole_number(f"the count of {name!r}", x, least=0) for name, x in state.items()}
        if large := [name for name, calls in counts.items() if calls >= _CALLS]:
            raise ValueError(f"{counts[large[0]]} calls of {large[0]!r} are more than have random words")
        for name, calls in counts.items():
            own[name].fill_(calls)

    def _calls(self) -> dict[str, torch.Tensor]:
        names, of_attention = self.emulated + self.embeddings, attention_calls(self.model)
        lost = self.attention and of_attention is None
        if lost or not all(isinstance(self.model.get_submodule(name), _EMULATED) for name in names):
            raise ValueError("the model is no longer emulated, and counts no calls")
        found = {name: self.model.get_submodule(name).calls for name in names}
        return found if of_attention is None else found | {_ATTENTION: of_attention}


def emulate(
    model: torch.nn.Module,
    recipe: Recipe | str = "nvfp4",
    *,
    unit: Unit | str | None = AS_THE_RECIPE,
    head: bool = False,
    high: tuple[str, ...] | list[str] = (),
    embeddings: bool = False,
    attention: bool = False,
    seed: int = 0,
) -> EmulatedModel:
    """Replace the linear layers of a model by layers whose three products follow a recipe, in place.

    Parameters
    ----------
    model : torch.nn.Module
        On any device. Parameters, names, hooks and the state dict stay as they are; optimizers made before go
        on. Layers of exactly `torch.nn.Linear` are emulated, and ``Conv1D`` of Hugging Face's GPT-2.
    recipe : Recipe or str, optional
        The recipe, or a name of `mcfsim.recipes.RECIPES`.
    unit : Unit or str or None, optional
        The matrix unit of all products. By default each product uses what the recipe names. None: products in
        binary32 of exactly quantised operands, which are fast.
    head : bool, optional
        Whether the head is emulated too: what the model calls its output embeddings, a linear layer that
        shares its weight with an embedding, or one whose name ends as heads do (``lm_head``, ``head``,
        ``classifier``, ``score``).
    high : sequence of str, optional
        Names, or patterns as of `fnmatch`, of further layers that stay as they are; each must match a linear
        layer or a table.
    embeddings : bool, optional
        Whether embedding tables are quantised before rows are looked up: each as a whole, as weights of the
        forward product are. Gradients pass straight through. Tables that match `high` stay as they are.
    attention : bool, optional
        Whether the products ``Q K'`` and ``P V`` of `torch.nn.functional.scaled_dot_product_attention`, with
        the gradients of both operands, follow the recipe in all calls of the model, in all blocks.
    seed : int, optional
        The seed of the random words of stochastic recipes. Ranks that average gradients need different seeds:
        with the same words, errors of independent gradients have a correlation of a half.

    Returns
    -------
    EmulatedModel
        What was done; its ``restore()`` undoes it.

    Raises
    ------
    TypeError
        If `model` is no module, `high` no sequence of strings, `seed` no int, or a flag no bool.
    ValueError
        If the model is emulated already, a name is unknown, a pattern matches no layer, the seed is out of
        range, no layer is emulated, or the model says that it computes attention otherwise than by the
        function above. Nothing has changed then.

    Notes
    -----
    Results come in the dtype of autocast if it is on, else in that of the activations: values of the recipe's
    output format, rounded to that dtype. Operands are quantised as they come, under autocast too; those in
    float64 are rounded to binary32 first. Biases are added in the dtype of the result. Gradients have the
    dtypes of the tensors they belong to. `torch.compile` knows the operators, and keeps its graphs whole.

    Emulation applies to calls of layers. A head that is ``torch.nn.functional.linear(x, table.weight)`` stays
    as it is, and so does a layer whose weight is given to a function: its count in
    `EmulatedModel.state_dict` stays 0.

    Attention is intercepted while the model's own call runs, by a mode that its hooks enter and leave: not in
    calls of its parts alone. `torch.compile` traces the mode into its graph. Scaling, masks and softmax are
    PyTorch's, in binary32. Within the model's call, attention under gradient checkpointing raises
    RuntimeError; a checkpoint may be around the whole call. `torch.nn.MultiheadAttention` and other modules
    with weights of their own are not emulated: `EmulatedModel.left` lists them.

    Random words are those of (seed, layer, call): a layer's calls are counted where gradients are recorded,
    in evaluation too; other calls draw the words of the next counted one. So a run repeats bit for bit on a
    machine; to continue it elsewhere, save `EmulatedModel.state_dict`. Counts stay when a model is moved;
    `to_empty` leaves that of attention undefined. `torch.nn.DataParallel` draws the same words everywhere.

    What gradient checkpointing recomputes with ``use_reentrant=False`` counts as another call, unless it is
    compiled, and the backward pass draws the words of that call: gradients have the same expectation as
    without checkpointing, but other errors. A forward product that draws words would give another result when
    recomputed, so it raises RuntimeError.

    Gradients come by ``backward()`` and `torch.autograd.grad`. Their own derivatives, those of `torch.func`
    and of forward mode raise RuntimeError, and so does `torch.func.vmap` where it would draw the same words
    for each of its calls.

    In evaluation, too, PyTorch's encoders then call their layers, instead of one function for all of them.

    Examples
    --------
    >>> model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Linear(32, 4))
    >>> emulate(model, "mxfp8").emulated
    ['0', '1']
    >>> type(restore(model)[0]).__name__
    'Linear'
    """
    check_module(model)
    for label, flag in {"head": head, "embeddings": embeddings, "attention": attention}.items():
        check_flag(label, flag)
    RandomWords(seed)  # raises unless words can follow from it
    found = get_recipe(recipe)
    if unit != AS_THE_RECIPE:
        found = found.with_unit(unit)
    if any(isinstance(x, _EMULATED) or attention_calls(x) is not None for x in model.modules()):
        raise ValueError("the model is emulated already; mcfsim.torch.restore(model) gives it back first")
    emulation, heads, kept_high = EmulatedModel(model, found), _heads(model), _matching(model, high)
    chosen = []
    for number, (name, module) in enumerate(linear_layers(model)):
        kept = name in kept_high or found.keeps(name, *_block(model, name))
        if kept or (id(module) in heads and not head):
            emulation.high.append(name)
        else:
            emulation.emulated.append(name)
            chosen.append((number, module))
    # Their random words differ from those of the layers, whatever is emulated.
    first = len(chosen) + len(emulation.high)
    for number, (name, table) in enumerate(_tables(model) if embeddings else (), start=first + 2):
        if name in kept_high:
            continue
        if (why := why_left(table)) is not None:
            emulation.left[name] = why
        else:
            emulation.embeddings.append(name)
            chosen.append((number, table))
    if attention and (why := attention_left(model)) is not None:
        raise ValueError(f"attention cannot be emulated: {why}")
    emulation.attention = attention
    emulation.left |= _left(model)
    if not chosen and not attention:
        raise ValueError(
            f"no layer is emulated: {len(emulation.high)} linear layers stay in high precision"
            + (f", {emulation.high[0]!r} first" if emulation.high else "")
        )
    for number, module in chosen:
        _replace(module, Enrolled(Placed(found, number, seed)))
    if attention:
        one, other = (Enrolled(Placed(found, first + place, seed)) for place in range(2))
        emulate_attention(model, (one, other))
    close_fast_paths(model)
    return emulation


def restore(model: torch.nn.Module) -> torch.nn.Module:
    """Give a model back as it was before `emulate`, with the weights that it has now; return it.

    Raises
    ------
    TypeError
        If `model` is no module.
    ValueError
        If an emulated layer has become one of another class since, as by
        `torch.nn.utils.parametrize`. Nothing has changed then.
    """
    check_module(model)
    for name, module in model.named_modules():
        if isinstance(module, _EMULATED) and type(module) is not _emulated_class(module.replaced):
            raise ValueError(
                f"{name!r} has become a {type(module).__name__} since it was emulated: undo what made it one "
                "(as parametrize.remove_parametrizations does), then restore"
            )
    open_fast_paths(model)
    for module in model.modules():
        restore_attention(module)
        if isinstance(module, _EMULATED):
            module.__class__ = module.replaced
            for name in ("replaced", "emulated"):
                del module.__dict__[name]
            end_counting(module, "calls")
    return model


def _replace(module: torch.nn.Module, emulated: Enrolled) -> None:
    """Make a layer an emulated one, of the same parameters."""
    kind = type(module)
    module.__dict__["replaced"], module.__dict__["emulated"] = kind, emulated
    begin_counting(module, "calls")
    module.__class__ = _emulated_class(kind)


def _emulated_class(kind: type) -> type:
    return _OF[kind] if kind in _OF else emulated_conv1d(kind)


def _matching(model: torch.nn.Module, high: Any) -> set[str]:
    """Return the names of layers that match patterns; raise TypeError or ValueError if one matches none."""
    patterns = tuple(high) if isinstance(high, Iterable) and not isinstance(high, str) else (None,)
    if not all(isinstance(x, str) for x in patterns):
        raise TypeError(f"high must be a sequence of names or patterns, not {high!r}")
    names = [name for layers in (linear_layers(model), _tables(model)) for name, _ in layers]
    found: set[str] = set()
    for pattern in patterns:
        matching = {name for name in names if fnmatchcase(name, pattern)}
        if not matching:
            near = hint(pattern, names)
            raise ValueError(f"high has {pattern!r}{near}, which matches no linear layer and no table")
        found |= matching
    return found


def _heads(model: torch.nn.Module) -> set[int]:
    """Return the identities of layers that are heads."""
    tables = {id(m.weight) for m in model.modules() if isinstance(m, torch.nn.Embedding)}
    told: Any = getattr(model, "get_output_embeddings", lambda: None)()
    return {
        id(module)
        for name, module in linear_layers(model)
        if module is told or id(module.weight) in tables or name.rpartition(".")[2] in _HEADS
    }


def _tables(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Embedding]]:
    return ((name, x) for name, x in model.named_modules() if isinstance(x, torch.nn.Embedding))


def _left(model: torch.nn.Module) -> dict[str, str]:
    """Return modules that have weights of two dimensions or more and are not emulated, and why."""
    found, known = {}, {id(module) for _, module in linear_layers(model)}
    within = [module for module in model.modules() if isinstance(module, torch.nn.MultiheadAttention)]
    # The layer that holds the weights of its output projection is never called.
    known |= {id(module.out_proj) for module in within}
    for name, module in model.named_modules():
        own = any(p.ndim > 1 for p in module.parameters(recurse=False))
        if isinstance(module, torch.nn.MultiheadAttention):
            found[name] = "MultiheadAttention hands its weights to a function, and calls no linear layer"
        elif any(torch.nn.parameter.is_lazy(p) for p in module.parameters(recurse=False)):
            found[name] = f"{type(module).__name__} has no weights yet: let the model make them, then emulate"
        elif own and id(module) not in known and not isinstance(module, torch.nn.Embedding):
            found[name] = f"{type(module).__name__} has weights of its own, and is not exactly a Linear"
    return found


def _block(model: torch.nn.Module, name: str) -> tuple[int | None, int]:
    """Return the number of a layer's block, in the outermost list that has it, and the number of blocks."""
    found = re.match(r"(?:(.*?)\.)?(\d+)(?:\.|$)", name)
    if found is None:
        return None, 0
    names = [name for name, _ in model.get_submodule(found[1] or "").named_children()]
    return names.index(found[2]), len(names)
