"""Inputs of an analysis: samplers of random numbers, and arrays, by the names of a function's operands."""

from __future__ import annotations

import ast
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.checks import as_array, finite_number, hint, whole_number

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Sampler:
    """A distribution of real numbers.

    ``sampler * n`` stands for a tuple of n numbers, each drawn by itself.

    Parameters
    ----------
    text : str
        How it is written.
    draw : callable
        ``draw(generator, size)`` returns an array of numbers.
    count : int or None, optional
        How many numbers a tuple has; None for a single number.
    """

    text: str
    draw: Callable[[np.random.Generator, int], Numbers]
    count: int | None = None

    def __mul__(self, count: int) -> Sampler:
        if self.count is not None:
            raise ValueError(f"{self} stands for a tuple already")
        return Sampler(self.text, self.draw, whole_number("the number of elements", count, least=1))

    def __str__(self) -> str:
        return self.text if self.count is None else f"{self.text}*{self.count}"

    def block(self, seed: int, operand: int, number: int, size: int) -> list[Numbers]:
        """Return the numbers of one block of inputs, which depend on seed, operand and block alone."""
        generator = np.random.default_rng([seed, operand, number])
        return [self.draw(generator, size) for _ in range(1 if self.count is None else self.count)]


def uniform(low: float, high: float) -> Sampler:
    """Return the uniform distribution between two numbers."""
    low, high = finite_number("low", low), finite_number("high", high)
    if not low <= high:
        raise ValueError(f"uniform({low:g}, {high:g}): the first number must not exceed the second")
    return Sampler(f"uniform({low:g}, {high:g})", lambda rng, size: rng.uniform(low, high, size))


def normal(mean: float = 0.0, deviation: float = 1.0) -> Sampler:
    """Return the normal distribution of a mean and a standard deviation."""
    mean, deviation = finite_number("mean", mean), finite_number("deviation", deviation)
    if deviation < 0:
        raise ValueError(f"normal: the standard deviation {deviation:g} is negative")
    shown = "normal()" if (mean, deviation) == (0, 1) else f"normal({mean:g}, {deviation:g})"
    return Sampler(shown, lambda rng, size: rng.normal(mean, deviation, size))


def logspace(low: float, high: float) -> Sampler:
    """Return the distribution between two numbers of one sign whose logarithm is uniform."""
    low, high = finite_number("low", low), finite_number("high", high)
    if not (low * high > 0 and abs(low) <= abs(high)):
        raise ValueError(f"logspace({low:g}, {high:g}) takes two numbers of one sign, the smaller one first")
    ends = np.log(abs(low)), np.log(abs(high))
    return Sampler(
        f"logspace({low:g}, {high:g})", lambda rng, size: np.sign(low) * np.exp(rng.uniform(*ends, size))
    )


def values(source: str | os.PathLike[str] | Any) -> Sampler:
    """Return the distribution of the numbers of an array, or of a ``.npy``, ``.csv`` or text file.

    Each is drawn as often as any other.
    """
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        if not path.is_file():
            raise ValueError(f"values: there is no file {os.fspath(source)}")
        if path.suffix == ".npy":
            found = np.load(path, allow_pickle=False)
        else:
            found = np.loadtxt(path, delimiter="," if path.suffix == ".csv" else None, ndmin=1)
        shown = f"values({path.name!r})"
    else:
        found, shown = as_array(source, "values"), "values(...)"
    numbers = np.asarray(found, np.float64).reshape(-1)
    if not numbers.size or not np.isfinite(numbers).all():
        raise ValueError(f"{shown}: at least one number is needed, and none may be NaN or infinite")
    return Sampler(shown, lambda rng, size: rng.choice(numbers, size))


_MADE: Mapping[str, Callable[..., Sampler]] = {
    "uniform": uniform,
    "normal": normal,
    "logspace": logspace,
    "values": values,
}


def sampler(text: str) -> Sampler:
    """Return the sampler that a text such as ``"normal()*16"`` or ``"uniform(-4, 4)"`` describes.

    Raises
    ------
    ValueError
        If it is none: allowed are calls of ``uniform``, ``normal``, ``logspace`` and ``values`` with numbers
        or texts, and a product with the number of elements of a tuple.
    """
    try:
        tree: Any = ast.parse(text.strip(), mode="eval").body
        count = None
        if isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Mult):
            tree, count = tree.left, ast.literal_eval(tree.right)
        name = tree.func.id
        given = [ast.literal_eval(x) for x in tree.args]
        named = {x.arg: ast.literal_eval(x.value) for x in tree.keywords}
    except (SyntaxError, ValueError, AttributeError) as problem:
        raise ValueError(
            f"{text!r} is no sampler: write uniform(-1, 1), normal(), logspace(0.01, 100) or "
            "values('file.npy'), and *16 behind it for a tuple of 16 numbers"
        ) from problem
    if name not in _MADE:
        raise ValueError(f"unknown sampler {name!r}{hint(name, _MADE)}; known: {', '.join(_MADE)}")
    try:
        inspect.signature(_MADE[name]).bind(*given, **named)
    except TypeError as problem:
        raise ValueError(f"{text!r}: {problem}; {name}{inspect.signature(_MADE[name])}") from problem
    found = _MADE[name](*given, **named)
    return found if count is None else found * count


# -- the operands of a function ---------------------------------------------------------------------------
@dataclass(frozen=True)
class Inputs:
    """The inputs of a function, in blocks.

    Parameters
    ----------
    shape : tuple
        For each operand a name, or a tuple of names.
    sources : sequence of Sampler or list of array
        One for each operand.
    size : int
        The number of inputs.
    seed : int
        The seed of samplers.
    """

    shape: tuple[Any, ...]
    sources: Sequence[Sampler | list[Numbers]]
    size: int
    seed: int

    #: Inputs of a block. Samplers draw by blocks, so that no result depends on how the work is shared.
    BLOCK = 4096

    def block(self, number: int) -> list[Numbers]:
        """Return the numbers of a block, one array for each name."""
        start, stop = number * self.BLOCK, min(self.size, (number + 1) * self.BLOCK)
        found: list[Numbers] = []
        for place, source in enumerate(self.sources):
            if isinstance(source, Sampler):
                # Whole blocks are drawn, so that more inputs begin with the same ones.
                found += [x[: stop - start] for x in source.block(self.seed, place, number, self.BLOCK)]
            else:
                found += [x[start:stop] for x in source]
        return found

    @property
    def blocks(self) -> int:
        """The number of blocks."""
        return -(-self.size // self.BLOCK)

    def fresh(self, size: int, seed: int) -> Inputs:
        """Return other inputs of the same samplers; arrays are repeated as they are."""
        drawn = any(isinstance(x, Sampler) for x in self.sources)
        return Inputs(self.shape, self.sources, size if drawn else self.size, seed)

    def __str__(self) -> str:
        shown = (x.text if isinstance(x, Sampler) else "given" for x in self.sources)
        return ", ".join(f"{_called(name)}: {text}" for name, text in zip(self.shape, shown, strict=True))


def _called(name: Any) -> str:
    return str(name) if isinstance(name, str) else f"{name[0].rstrip('0123456789')}*{len(name)}"


def operand_names(function: Callable[..., Any], options: Mapping[str, Any]) -> list[str]:
    """Return the names of a function's operands: its parameters behind the arithmetic, options excluded."""
    parameters = list(inspect.signature(function).parameters.values())[1:]
    names = []
    for item in parameters:
        if item.name in options or item.kind is item.KEYWORD_ONLY or item.default is not item.empty:
            continue
        if item.kind in (item.VAR_POSITIONAL, item.VAR_KEYWORD):
            raise ValueError(f"operands have names of their own, and {item} stands for any number of them")
        names.append(item.name)
    return names


def inputs_of(
    function: Callable[..., Any],
    given: Mapping[str, Any],
    options: Mapping[str, Any],
    count: int,
    seed: int,
) -> Inputs:
    """Return the inputs of a function.

    Parameters
    ----------
    function : callable
        ``function(ar, *operands, **options)``.
    given : mapping of str to Sampler, str, array or tuple
        For each operand a sampler, or its text; or an array of as many numbers as there are inputs; or, for a
        tuple, a tuple of arrays. An array of two dimensions is a tuple of its columns.
    options : mapping
        The function's options.
    count, seed : int
        Number of inputs and seed, for samplers.

    Raises
    ------
    TypeError, ValueError
        If an operand is missing, or there is none of a given name; if arrays differ in length, or hold NaN.
    """
    names = operand_names(function, options)
    called = getattr(function, "__name__", "the function")
    if stray := [name for name in given if name not in names]:
        known = ", ".join(names)
        raise ValueError(f"{called} has no operand {stray[0]!r}{hint(stray[0], names)}; it takes {known}")
    if missing := [name for name in names if name not in given]:
        raise ValueError(f"{called} takes {', '.join(names)}, and nothing is said of {', '.join(missing)}")
    shape: list[Any] = []
    sources: list[Sampler | list[Numbers]] = []
    for name in names:
        source = _source(name, given[name])
        many = (
            source.count if isinstance(source, Sampler) else None if _is_single(given[name]) else len(source)
        )
        shape.append(name if many is None else tuple(f"{name}{place}" for place in range(many)))
        sources.append(source)
    sizes = {x.size for source in sources if not isinstance(source, Sampler) for x in source}
    if len(sizes) > 1:
        raise ValueError(f"arrays of inputs have {' and '.join(map(str, sorted(sizes)))} numbers")
    size = sizes.pop() if sizes else whole_number("count", count, least=1)
    if not size:
        raise ValueError("there are no inputs")
    return Inputs(tuple(shape), sources, size, whole_number("seed", seed, least=0))


def _is_single(x: Any) -> bool:
    return not isinstance(x, tuple) and np.ndim(x) < 2


def _source(name: str, given: Any) -> Sampler | list[Numbers]:
    if isinstance(given, str):
        return sampler(given)
    if isinstance(given, Sampler):
        return given
    arrays = (
        list(given) if isinstance(given, tuple) else [given] if np.ndim(given) < 2 else [*np.asarray(given).T]
    )
    found = []
    for x in arrays:
        array = np.atleast_1d(np.asarray(as_array(x, name), np.float64))
        if array.ndim != 1 or not np.isfinite(array).all():
            raise ValueError(f"{name}: inputs are finite numbers, one for each input")
        found.append(array)
    return found
