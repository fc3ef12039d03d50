"""Published models by name: the shapes of their tensors, from layers, width and vocabulary."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from mcfsim.checks.arguments import whole_number
from mcfsim.checks.names import hint

Extent = tuple[int, ...]


@dataclass(frozen=True)
class Shape:
    """A decoder-only transformer by its dimensions.

    Parameters
    ----------
    name : str
        As the command line has it.
    layers, width, vocabulary : int
        Blocks, numbers a token, and tokens that there are.
    context : int
        Learned positions; 0 for rotary ones, which have no parameters.
    inner : int
        Width within the feed-forward part.
    gated : bool
        False, as GPT: biases, layer norms, an inner layer of two matrices, the output tied to the embedding.
        True, as LLaMA: no biases, root-mean-square norms, three matrices, an output of its own.

    Raises
    ------
    TypeError
        If a dimension is no int.
    ValueError
        If one is less than 1, or the context negative.
    """

    name: str
    layers: int
    width: int
    vocabulary: int
    context: int
    inner: int
    gated: bool = False

    def __post_init__(self) -> None:
        for label in ("layers", "width", "vocabulary", "context", "inner"):
            whole_number(f"{self.name}: {label}", getattr(self, label), least=0 if label == "context" else 1)

    @property
    def tensors(self) -> dict[str, Extent]:
        """The extents of all tensors, by name, in the order of the forward pass."""
        found: dict[str, Extent] = {"embedding": (self.vocabulary, self.width)}
        if self.context:
            found["positions"] = (self.context, self.width)
        for layer in range(self.layers):
            found |= {f"layer{layer}.{name}": extent for name, extent in self._layer().items()}
        found |= self._norm("norm")
        if self.gated:
            found["output"] = (self.vocabulary, self.width)
        return found

    @property
    def size(self) -> int:
        """Parameters in all."""
        return sum(map(math.prod, self.tensors.values()))

    def _layer(self) -> dict[str, Extent]:
        """Return the extents of one layer's tensors."""
        d, inner = self.width, self.inner
        found = self._norm("attention.norm")
        for name in ("query", "key", "value", "output"):
            found |= self._linear(f"attention.{name}", d, d)
        found |= self._norm("inner.norm")
        for name in ("up", "gate") if self.gated else ("up",):
            found |= self._linear(f"inner.{name}", inner, d)
        return found | self._linear("inner.down", d, inner)

    def _linear(self, name: str, rows: int, columns: int) -> dict[str, Extent]:
        weight: dict[str, Extent] = {f"{name}.weight": (rows, columns)}
        return weight if self.gated else weight | {f"{name}.bias": (rows,)}

    def _norm(self, name: str) -> dict[str, Extent]:
        gain: dict[str, Extent] = {f"{name}.gain": (self.width,)}
        return gain if self.gated else gain | {f"{name}.bias": (self.width,)}


def _gpt(name: str, layers: int, width: int) -> Shape:
    """Return a GPT-3 shape: GPT-2's vocabulary, and an inner width of four times the outer."""
    return Shape(name, layers, width, vocabulary=50257, context=2048, inner=4 * width)


#: The models of Yu et al., ICML 2024, by name. GPT: Brown et al., NeurIPS 2020, Table 2.1. OpenLLaMA: Geng
#: and Liu, 2023, of the shape of LLaMA, Touvron et al., 2023, Table 2.
SHAPES: Mapping[str, Shape] = MappingProxyType(
    {
        shape.name: shape
        for shape in (
            _gpt("gpt-125m", 12, 768),
            _gpt("gpt-1.3b", 24, 2048),
            _gpt("gpt-2.7b", 32, 2560),
            _gpt("gpt-6.7b", 32, 4096),
            Shape("openllama-7b", 32, 4096, vocabulary=32000, context=0, inner=11008, gated=True),
        )
    }
)


def get_shape(name: str) -> Shape:
    """Return a shape by its name.

    Raises
    ------
    ValueError
        If there is none; the message lists the known ones.
    """
    if name not in SHAPES:
        raise ValueError(f"unknown shape {name!r}{hint(name, SHAPES)}; known shapes: {', '.join(SHAPES)}")
    return SHAPES[name]
