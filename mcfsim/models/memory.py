"""Memory that training a model takes, by strategy and tensor; published models by name."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from itertools import product
from pathlib import Path
from types import MappingProxyType

from mcfsim.checks import hint, whole_number
from mcfsim.formats import Format
from mcfsim.kernels.carriers import UnsupportedFormatError
from mcfsim.models.weights import open_weights
from mcfsim.optim.strategies import STRATEGIES, Addition, Strategy, strategy
from mcfsim.optim.strategy import SLOTS

# -- published models -------------------------------------------------------------------------------------
Extent = tuple[int, ...]


@dataclass(frozen=True)
class Shape:
    """A decoder-only transformer by its dimensions.

    Parameters
    ----------
    name : str
        Its name on the command line.
    layers, width, vocabulary : int
        Number of blocks, numbers per token, and number of tokens.
    context : int
        Number of learned positions; 0 for rotary ones, which have no parameters.
    inner : int
        Inner width of the feed-forward part.
    gated : bool
        False, as in GPT: biases, layer norms, an inner layer of two matrices, the output tied to the
        embedding. True, as in LLaMA: no biases, root-mean-square norms, three matrices, an output of its own.

    Raises
    ------
    TypeError
        If a dimension is not an int.
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
        found |= self._module("norm", "gain", self.width)
        if self.gated:
            found["output"] = (self.vocabulary, self.width)
        return found

    @property
    def size(self) -> int:
        """Number of parameters in all."""
        return sum(map(math.prod, self.tensors.values()))

    def _layer(self) -> dict[str, Extent]:
        """Return the extents of one layer's tensors."""
        d, inner = self.width, self.inner
        found = self._module("attention.norm", "gain", d)
        for name in ("query", "key", "value", "output"):
            found |= self._module(f"attention.{name}", "weight", d, d)
        found |= self._module("inner.norm", "gain", d)
        for name in ("up", "gate") if self.gated else ("up",):
            found |= self._module(f"inner.{name}", "weight", inner, d)
        return found | self._module("inner.down", "weight", d, inner)

    def _module(self, name: str, tensor: str, *extent: int) -> dict[str, Extent]:
        """Return the tensor of a linear layer or norm, and its bias if the model has biases."""
        found: dict[str, Extent] = {f"{name}.{tensor}": extent}
        return found if self.gated else found | {f"{name}.bias": extent[:1]}


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
        If the name is unknown; the message lists the known ones.
    """
    if name not in SHAPES:
        raise ValueError(f"unknown shape {name!r}{hint(name, SHAPES)}; known shapes: {', '.join(SHAPES)}")
    return SHAPES[name]


# -- memory -----------------------------------------------------------------------------------------------
#: The strategy that the others are compared with.
REFERENCE = "fp32-master"
#: The largest number of parameters that is accepted.
_MOST = 10**18


@dataclass(frozen=True)
class Footprint:
    """The bytes that a strategy stores per parameter, tensor by tensor.

    Parameters
    ----------
    parameter, gradient, m, v : Fraction
        The first components.
    components : Fraction
        Components after the first, and a compensation.
    master : Fraction
        The master copy.
    """

    parameter: Fraction
    gradient: Fraction
    m: Fraction
    v: Fraction
    components: Fraction
    master: Fraction

    @property
    def total(self) -> Fraction:
        """Bytes per parameter of all tensors."""
        return sum(vars(self).values(), Fraction(0))

    def saving(self, reference: Footprint) -> Fraction:
        """Return the share of a reference's bytes that is saved; negative if more are needed."""
        return 1 - self.total / reference.total


def footprint(chosen: Strategy, moments: Sequence[str] = SLOTS) -> Footprint:
    """Return the bytes that a strategy stores per parameter.

    Parameters
    ----------
    chosen : Strategy
        The strategy.
    moments : sequence of str, optional
        The moments that the optimizer keeps.

    Raises
    ------
    ValueError
        If it stores exact numbers, which have no fixed size, or its low format is still open.
    """
    parts = {item.name: Fraction(0) for item in fields(Footprint)}
    for label, stored in chosen.tensors.items():
        size = chosen.size_of(label)
        if size is None:
            raise ValueError(f"strategy {chosen.name!r} stores exact numbers, which have no fixed size")
        if label in SLOTS and label not in moments:
            continue
        if label == "extra":
            parts["master" if chosen.addition is Addition.MASTER else "components"] += size
        else:
            parts[label] += size / stored.components
            parts["components"] += size - size / stored.components
    return Footprint(**parts)


def footprints(low: Format | str, names: Sequence[str] = ()) -> dict[str, Footprint]:
    """Return the bytes that strategies store per parameter, by name.

    Parameters
    ----------
    low : Format or str
        The low format.
    names : sequence of str, optional
        The strategies; by default all but ``exact`` and those that the format does not allow.

    Raises
    ------
    ValueError
        If a name or the format is unknown, or a named strategy is not possible in the format.
    """
    return {
        name: footprint(chosen)
        for name, chosen in possible(names, STRATEGIES, [low])
        if names or chosen.bytes_per_parameter is not None
    }


def possible(
    names: Sequence[str], default: Iterable[str], lows: Iterable[Format | str]
) -> Iterator[tuple[str, Strategy]]:
    """Yield the named strategies in low formats, by name; without names, the possible ones of the default.

    Raises
    ------
    ValueError
        If a name or a format is unknown, or a named strategy is not possible in a format.
    """
    for name, low in product(names or default, lows):
        try:
            chosen = strategy(name, low)
        except UnsupportedFormatError:
            if names:
                raise
        else:
            yield name, chosen


@dataclass(frozen=True)
class Model:
    """A model by its number of parameters.

    Parameters
    ----------
    name : str
        Its name.
    size : int
        Its number of parameters.
    """

    name: str
    size: int


def get_model(text: str) -> Model:
    """Return the model that a word of the command line means.

    Parameters
    ----------
    text : str
        A number of parameters, as ``7e9``; a name of `SHAPES`; or the path of weights, see `open_weights`;
        their floating numbers count.

    Raises
    ------
    FileOfTensorsError
        If the file exists but is damaged, or is not a file of weights; a `ValueError`.
    OSError
        If the file cannot be read.
    ValueError
        If it is a number but not a valid number of parameters, or if it is unknown.
    """
    with suppress(InvalidOperation):
        return Model(text, _whole(text, Decimal(text)))
    if text in SHAPES:
        return Model(text, SHAPES[text].size)
    if not Path(text).exists():
        raise ValueError(
            f"{text!r} is no number, no file and no known shape{hint(text, SHAPES)}; "
            f"known shapes: {', '.join(SHAPES)}"
        )
    return Model(text, open_weights(text).size)


def get_models(texts: Iterable[str]) -> list[Model]:
    """Return the models that words mean, each word once."""
    return [get_model(text) for text in dict.fromkeys(texts)]


def _whole(text: str, number: Decimal) -> int:
    """Return a number of parameters as an int; raise ValueError unless it is valid."""
    # The comparisons come first: the integer of 1e999999 would have a million digits.
    if not (number.is_finite() and 1 <= number <= _MOST) or number != int(number):
        raise ValueError(f"{text} parameters: it must be a whole number from 1 to {_MOST:.0e}")
    return int(number)
