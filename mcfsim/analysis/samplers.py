"""Inputs of an analysis: samplers of random numbers, and arrays, by the names of a function's operands."""

from __future__ import annotations

import ast
import inspect
import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, wraps
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.checks import finite_number, hint, real_array, whole_number
from mcfsim.codec import real_numbers

Numbers = NDArray[np.float64]
#: The most numbers of a tuple: each costs an array for every block of inputs.
_LONGEST = 1 << 16


@dataclass(frozen=True)
class Sampler:
    """A distribution of real numbers.

    ``sampler * n`` stands for a tuple of n numbers, drawn independently.

    Parameters
    ----------
    text : str
        How it is written.
    draw : callable
        ``draw(generator, size)`` returns an array of numbers.
    count : int or None, optional
        How many numbers a tuple has; None for a single number.
    file : Path or None, optional
        The file from which the numbers were read, if one was.
    """

    text: str
    draw: Callable[[np.random.Generator, int], Numbers]
    count: int | None = None
    file: Path | None = None

    def __post_init__(self) -> None:
        if self.count is not None and whole_number("the number of elements", self.count, 1) > _LONGEST:
            raise ValueError(f"a tuple of {self.count} numbers is too long: at most {_LONGEST}")

    def __mul__(self, count: int) -> Sampler:
        if self.count is not None:
            raise ValueError(f"{self} stands for a tuple already")
        return replace(self, count=count)

    def __str__(self) -> str:
        return self.text if self.count is None else f"{self.text}*{self.count}"

    def block(self, seed: int, operand: int, number: int, size: int, kept: int) -> list[Numbers]:
        """Return the first numbers of one block, which depend on seed, operand and block alone."""
        generator = np.random.default_rng([seed, operand, number])
        return [
            self.draw(generator, size)[:kept].copy() for _ in range(1 if self.count is None else self.count)
        ]


def uniform(low: float, high: float) -> Sampler:
    """Return the uniform distribution between two numbers."""
    low, high = finite_number("low", low), finite_number("high", high)
    if not low <= high:
        raise ValueError(f"uniform({low:g}, {high:g}): the first number must not exceed the second")
    finite_number(f"uniform({low:g}, {high:g}): the difference", high - low)
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
    if not (low and (low > 0) == (high > 0) and abs(low) <= abs(high)):  # a product would underflow
        raise ValueError(f"logspace({low:g}, {high:g}) takes two numbers of one sign, the smaller one first")
    ends = np.log(abs(low)), np.log(abs(high))
    return Sampler(
        f"logspace({low:g}, {high:g})", lambda rng, size: np.sign(low) * np.exp(rng.uniform(*ends, size))
    )


def values(source: str | os.PathLike[str] | Any) -> Sampler:
    """Return the distribution of the numbers of an array, or of a ``.npy``, ``.csv`` or text file.

    All of them are equally likely.
    """
    path = None
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        if not path.is_file():
            raise ValueError(f"values: there is no file {os.fspath(source)}")
        shown = f"values({path.name!r})"
        try:
            with warnings.catch_warnings(action="ignore"):  # of a file without numbers
                found = _of_file(path)
        except Exception as problem:  # NumPy may raise anything for arbitrary bytes
            kinds = "a .npy file, or text with nothing but numbers"
            raise ValueError(f"{shown}: {path} is not {kinds}: {problem}") from problem
    else:
        found, shown = source, "values(...)"
    numbers = _numbers(found, shown).reshape(-1)
    if not numbers.size or not np.isfinite(numbers).all():
        raise ValueError(f"{shown}: at least one number is needed, and none may be NaN or infinite")
    return Sampler(shown, lambda rng, size: rng.choice(numbers, size), file=path)


def _numbers(x: Any, label: str) -> Numbers:
    """Return real numbers in binary64; raise ValueError if binary64 does not hold one of them."""
    array = real_array(x, label)
    try:
        return real_numbers(array).astype(np.float64, copy=False)
    except ValueError as problem:
        raise ValueError(f"{label}: {problem}") from None


def _of_file(path: Path) -> NDArray[Any]:
    if path.suffix == ".npy":
        with open(path, "rb") as file:
            array: NDArray[Any] = np.load(file, allow_pickle=False)
        return array
    return np.loadtxt(path, delimiter="," if path.suffix == ".csv" else None, ndmin=1)


_MADE: Mapping[str, Callable[..., Sampler]] = {
    made.__name__: made for made in (uniform, normal, logspace, values)
}


def sampler(text: str) -> Sampler:
    """Return the sampler that a text such as ``"normal()*16"`` or ``"uniform(-4, 4)"`` describes.

    Raises
    ------
    ValueError
        If the text is not a sampler. Allowed are calls of ``uniform``, ``normal``, ``logspace`` and
        ``values`` with numbers or texts, optionally times the number of elements of a tuple.
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
            "values('file.npy'), and *16 after it for a tuple of 16 numbers"
        ) from problem
    if name not in _MADE:
        raise ValueError(f"unknown sampler {name!r}{hint(name, _MADE)}; known: {', '.join(_MADE)}")
    signature = inspect.signature(_MADE[name])
    try:
        signature.bind(*given, **named)
    except TypeError as problem:
        takes = ", ".join(signature.parameters)
        raise ValueError(f"{text!r}: {problem}; it is {name}({takes})") from problem
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
                # Whole blocks are drawn, so that a larger size begins with the same inputs.
                found += source.block(self.seed, place, number, self.BLOCK, stop - start)
            else:
                found += [x[start:stop] for x in source]
        return found

    @property
    def blocks(self) -> int:
        """The number of blocks."""
        return -(-self.size // self.BLOCK)

    def fresh(self, size: int, seed: int) -> Inputs | None:
        """Return other inputs of the same samplers, beside the same arrays; None if there is no sampler."""
        drawn = [isinstance(x, Sampler) for x in self.sources]
        return replace(self, size=size if all(drawn) else self.size, seed=seed) if any(drawn) else None

    def __str__(self) -> str:
        shown = (x.text if isinstance(x, Sampler) else "given" for x in self.sources)
        return ", ".join(f"{_called(name)}: {text}" for name, text in zip(self.shape, shown, strict=True))


def _called(name: Any) -> str:
    return str(name) if isinstance(name, str) else f"{name[0].removesuffix('0')}*{len(name)}"


def innermost(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that a partial or a decorated function calls in the end."""
    while True:
        inner = function.func if isinstance(function, partial) else getattr(function, "__wrapped__", None)
        if inner is None:
            return function
        function = inner


def name_of(function: Callable[..., Any]) -> str:
    """Return the name of a function, or of the class of a callable object."""
    inner = innermost(function)
    return str(getattr(inner, "__name__", type(inner).__name__))


def operand_names(
    function: Callable[..., Any], options: Mapping[str, Any], given: Iterable[str] = ()
) -> list[str]:
    """Return the names of a function's operands: its parameters after the arithmetic, options excluded.

    A parameter with a default is an operand if it is given as one.
    """
    parameters = list(inspect.signature(function).parameters.values())[1:]
    names = []
    for item in parameters:
        by_default = item.kind is item.KEYWORD_ONLY or item.default is not item.empty
        if item.name in options or item.kind is item.VAR_KEYWORD or (by_default and item.name not in given):
            continue
        if item.kind is item.VAR_POSITIONAL:
            raise ValueError(f"every operand needs its own name, but {item} stands for any number of them")
        names.append(item.name)
    return names


def in_order(function: Callable[..., Any], names: Sequence[str]) -> Callable[..., Any]:
    """Return a function that takes these operands by position, in this order, after the arithmetic."""
    parameters = list(inspect.signature(function).parameters.values())[1 : len(names) + 1]
    if all(item.name == name for item, name in zip(parameters, names, strict=False)) and not any(
        item.kind is item.KEYWORD_ONLY for item in parameters
    ):
        return function

    @wraps(innermost(function))
    def ordered(ar: Any, *operands: Any, **options: Any) -> Any:
        return function(ar, **dict(zip(names, operands, strict=True)), **options)

    return ordered


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
    names = operand_names(function, options, given)
    called = name_of(function)
    if stray := [name for name in given if name not in names]:
        if stray[0] in options:
            raise ValueError(f"{stray[0]} of {called} is an operand or an option, and not both")
        known = ", ".join(names) or "none"
        raise ValueError(f"{called} has no operand {stray[0]!r}{hint(stray[0], names)}; it takes {known}")
    if missing := [name for name in names if name not in given]:
        raise ValueError(f"{called} takes {', '.join(names)}, and has no inputs for {', '.join(missing)}")
    if not names:
        raise ValueError(f"{called} has no operands, and so no inputs")
    shape: list[Any] = []
    sources: list[Sampler | list[Numbers]] = []
    for name in names:
        source, many = _source(name, given[name])
        shape.append(name if many is None else tuple(f"{name}{place}" for place in range(many)))
        sources.append(source)
    size = _check_sizes(x for source in sources if not isinstance(source, Sampler) for x in source)
    size = whole_number("count", count, least=1) if size is None else size
    if not size:
        raise ValueError("there are no inputs")
    return Inputs(tuple(shape), sources, size, whole_number("seed", seed, least=0))


def _source(name: str, given: Any) -> tuple[Sampler | list[Numbers], int | None]:
    """Return the source of an operand's numbers, and how many it has if it is a tuple."""
    if isinstance(given, str | Sampler):
        drawn = sampler(given) if isinstance(given, str) else given
        return drawn, drawn.count
    single = not isinstance(given, tuple) and np.ndim(given) < 2
    arrays = list(given) if isinstance(given, tuple) else [given] if single else [*real_array(given, name).T]
    if not arrays:
        raise ValueError(f"{name}: a tuple has at least one number")
    found = [np.atleast_1d(_numbers(x, name)) for x in arrays]
    if any(x.ndim != 1 for x in found):
        raise ValueError(f"{name}: inputs are a vector or, for a tuple, a matrix with a column per number")
    _check_sizes(found)
    whole = np.stack(found)
    if not np.isfinite(whole).all():
        raise ValueError(f"{name}: inputs are finite numbers, one for each input")
    return [*whole], None if single else len(found)


def _check_sizes(arrays: Iterable[NDArray[Any]]) -> int | None:
    """Return the size of all arrays, if there are any."""
    sizes = sorted({x.size for x in arrays})
    if len(sizes) > 1:
        raise ValueError(f"arrays of inputs must be of one size, not {' and '.join(map(str, sizes))}")
    return sizes[0] if sizes else None
