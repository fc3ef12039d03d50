"""What a model takes in memory while it is trained, by storage strategy and by tensor."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from pathlib import Path

from mcfsim.checks.names import hint
from mcfsim.formats import Format
from mcfsim.kernels.carriers import UnsupportedFormatError
from mcfsim.models.shapes import SHAPES
from mcfsim.models.weights import open_weights
from mcfsim.optim.strategies import STRATEGIES, Addition, Strategy, strategy

#: What the other strategies are compared with.
REFERENCE = "fp32-master"
#: More parameters than any number given is meant to be.
_MOST = 10**18


@dataclass(frozen=True)
class Footprint:
    """Bytes for each parameter, tensor by tensor.

    Parameters
    ----------
    parameter, gradient, m, v : Fraction
        The first components.
    components : Fraction
        Those after the first, and a compensation.
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
        """Of all tensors."""
        return sum((getattr(self, item.name) for item in fields(self)), Fraction(0))

    def saving(self, reference: Footprint) -> Fraction:
        """Return the share of another's bytes that are saved; negative if there are more."""
        return 1 - self.total / reference.total


def footprint(chosen: Strategy) -> Footprint:
    """Return what a strategy stores for each parameter.

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
        if label == "extra":
            parts["master" if chosen.addition is Addition.MASTER else "components"] += size
        else:
            parts[label] += size / stored.components
            parts["components"] += size - size / stored.components
    return Footprint(**parts)


def footprints(low: Format | str, names: Sequence[str] = ()) -> dict[str, Footprint]:
    """Return what strategies store for each parameter, by name.

    Parameters
    ----------
    low : Format or str
        The low format.
    names : sequence of str, optional
        The strategies; by default all but ``exact``, less those of which the format allows none.

    Raises
    ------
    ValueError
        If a name or the format is unknown, or a strategy that is named cannot be had in the format.
    """
    found = {}
    for name in names or STRATEGIES:
        try:
            chosen = strategy(name, low)
        except UnsupportedFormatError:
            if names:
                raise
            continue
        if names or chosen.bytes_per_parameter is not None:
            found[name] = footprint(chosen)
    return found


@dataclass(frozen=True)
class Model:
    """A model by the number of its parameters.

    Parameters
    ----------
    name : str
        What it is called.
    size : int
        How many it has.
    """

    name: str
    size: int


def get_model(text: str) -> Model:
    """Return the model that a word of the command line means.

    Parameters
    ----------
    text : str
        A number of parameters, as ``7e9``; a name of `SHAPES`; or the path of weights, see `open_weights`,
        of which the floating numbers count.

    Raises
    ------
    FileOfTensorsError
        If there is a file, and it is damaged, or no file of weights; a `ValueError`.
    OSError
        If it cannot be read.
    ValueError
        If it is a number of no parameters, or nothing that is known.
    """
    try:
        number = Decimal(text)
    except InvalidOperation:
        pass
    else:
        return Model(text, _whole(text, number))
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
    """Return a number of parameters as an int; raise unless it is one."""
    # The comparisons come first: the integer of 1e999999 would have a million digits.
    if not (number.is_finite() and 1 <= number <= _MOST) or number != int(number):
        raise ValueError(f"{text} parameters: it must be a whole number from 1 to {_MOST:.0e}")
    return int(number)
