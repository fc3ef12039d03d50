"""Search for the input with the largest error among the values of a format."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import combinations, product
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.analysis.attribution import Attribution, RoundedFunction
from mcfsim.analysis.samplers import Inputs
from mcfsim.checks import finite_number, hint, whole_number
from mcfsim.kernels.carriers import carrier_of
from mcfsim.kernels.codes_by_kind import codes_by_kind

#: Up to this many inputs, all are tried.
_ALL = 1 << 20
#: How many inputs are refined (more if pairs have few inputs), pairs of operands for each, inputs for a pair.
_REFINED, _PAIRS, _GRID = 8, 4, 1 << 14


def _relative(found: Attribution, u: float) -> Any:
    return np.abs(found.error / found.exact)


OBJECTIVES: Mapping[str, Callable[[Attribution, float], Any]] = {
    "error": _relative,
    "error/u": lambda found, u: _relative(found, u) / u,
    "error/(cond u)": lambda found, u: _relative(found, u) / (np.maximum(found.condition, 1.0) * u),
    "absolute": lambda found, u: np.abs(found.error),
}


@dataclass(frozen=True)
class WorstInput:
    """The worst input that a search found.

    Attributes
    ----------
    objective : str
    value : float
        The largest value of the objective; NaN if no input that was tried has one.
    start : float
        The largest value among the inputs that the search began with.
    inputs : dict of str to float
        The input, by the names of its numbers.
    all_tried : bool
        Whether every input of the range was tried.
    """

    objective: str
    value: float
    start: float
    inputs: dict[str, float]
    all_tried: bool

    def __str__(self) -> str:
        if np.isnan(self.value):
            return "no input that was tried has a finite error and an exact result other than 0"
        shown = ", ".join(f"{name} = {x!r}" for name, x in list(self.inputs.items())[:6])
        how = "of all inputs" if self.all_tried else f"found (random inputs: {self.start:.4g})"
        return f"largest {self.objective} {how}: {self.value:.4g} at {shown}"


def search(
    rounded: RoundedFunction,
    objective: str = "error/(cond u)",
    *,
    inside: tuple[float, float] | None = None,
    starts: int = 400,
    steps: int = 120,
    seed: int = 0,
    every: bool | None = None,
) -> WorstInput:
    """Search for the worst input: move operands by ulps or binades, or copy them from other inputs.

    Parameters
    ----------
    rounded : RoundedFunction
        A function with its format and inputs, as a report has it.
    objective : {"error/(cond u)", "error/u", "error", "absolute"}, optional
        What is to be large. Inputs whose error is no number, or whose exact result is zero, are left out.
    inside : tuple of two numbers, optional
        The range of all operands; by default each has the range of the report's inputs.
    starts, steps : int, optional
        How many inputs move side by side, and how many moves each makes.
    seed : int, optional
    every : bool, optional
        Whether all inputs of the range are tried; by default where they are at most a million.

    Raises
    ------
    ValueError
        If there is no such objective, or too many inputs to try them all.
    """
    if objective not in OBJECTIVES:
        known = ", ".join(OBJECTIVES)
        raise ValueError(f"unknown objective {objective!r}{hint(str(objective), OBJECTIVES)}; known: {known}")
    whole_number("starts", starts, least=2)
    whole_number("steps", steps, least=0)
    whole_number("seed", seed, least=0)
    space = _Space(rounded, inside)
    if every or (every is None and space.size <= _ALL):
        if space.size > _ALL:
            raise ValueError(f"{space.size} inputs are too many to try them all: at most {_ALL}")
        return _try_all(space, objective)
    return _climb(space, objective, starts, steps, np.random.default_rng(seed))


class _Space:
    """The inputs of a range, as places: integers in the order of the format's values."""

    def __init__(self, rounded: RoundedFunction, inside: tuple[float, float] | None) -> None:
        self.rounded, self.codes = rounded, codes_by_kind(rounded.format)
        self.given = self._entered(0)
        if inside is None:
            ends = [(int(x.min()), int(x.max())) for x in self.given]
            for number in range(1, rounded.inputs.blocks):
                pairs = zip(ends, self._entered(number), strict=True)
                ends = [(min(low, int(x.min())), max(high, int(x.max()))) for (low, high), x in pairs]
        else:
            if not isinstance(inside, tuple | list) or len(inside) != 2:
                raise ValueError(f"inside must be a pair of numbers, not {inside!r}")
            least, most = (finite_number("an end of the range", x) for x in inside)
            if not least <= most:
                raise ValueError(f"inside = ({least:g}, {most:g}): the first number exceeds the second")
            low, high = (rounded.rounded_inputs([np.array([x])])[0][0] for x in (least, most))
            ends = [(int(self._places(low)[0]), int(self._places(high)[0]))] * len(self.given)
        self.ends = ends
        self.size = prod(high - low + 1 for low, high in ends)

    def _entered(self, number: int) -> list[NDArray[np.int64]]:
        """Return the places of a block of the report's inputs."""
        given, _ = self.rounded.rounded_inputs(self.rounded.inputs.block(number))
        return [self._places(x) for x in given]

    def _places(self, x: NDArray[Any]) -> NDArray[np.int64]:
        return self.codes.places(self.codes.encode(np.ascontiguousarray(x)))

    def numbers(self, places: list[NDArray[np.int64]]) -> list[NDArray[np.float64]]:
        carrier = carrier_of(self.rounded.format)
        return [self.codes.decode(self.codes.at(x)).astype(carrier).astype(np.float64) for x in places]

    def value(self, places: list[NDArray[np.int64]], objective: str) -> NDArray[np.float64]:
        """Return the objective of inputs; -1 where it is no number."""
        parts = []
        for start in range(0, places[0].size, Inputs.BLOCK):
            part = [x[start : start + Inputs.BLOCK] for x in places]
            found = self.rounded.at(self.numbers(part))
            with np.errstate(all="ignore"):
                value = OBJECTIVES[objective](found, 2.0**-self.rounded.format.precision)
            finite = np.isfinite(value) & (found.exact != 0)
            parts.append(np.where(finite, value, -1.0))
        return np.concatenate(parts)

    def found(self, objective: str, place: list[int], value: float, start: float, every: bool) -> WorstInput:
        numbers = self.numbers([np.array([x]) for x in place])
        names = [x.name for x in self.rounded.program.inputs]
        pairs = zip(names, (float(x[0]) for x in numbers), strict=True)
        value, start = (x if x >= 0 else float("nan") for x in (value, start))
        return WorstInput(objective, value, start, dict(pairs), every)


def _try_all(space: _Space, objective: str) -> WorstInput:
    ranges = [np.arange(low, high + 1) for low, high in space.ends]
    best, where = -1.0, [x[0] for x in ranges]
    for first in product(*ranges[:-2]):  # the last two operands side by side, the others one by one
        rest = np.meshgrid(*ranges[-2:], indexing="ij")
        places = [np.full(rest[0].size, x) for x in first] + [x.reshape(-1) for x in rest]
        values = space.value(places, objective)
        top = int(values.argmax())
        if values[top] > best:
            best, where = float(values[top]), [int(x[top]) for x in places]
    return space.found(objective, where, best, best, True)


def _climb(space: _Space, objective: str, starts: int, steps: int, rng: np.random.Generator) -> WorstInput:
    size, low, high = starts, *(np.array(ends) for ends in zip(*space.ends, strict=True))
    chosen = rng.integers(0, space.given[0].size, size)
    # Half of them from the given inputs, half from all places of the range.
    anywhere = rng.integers(low[:, None], high[:, None] + 1, (len(low), size))
    places = np.where(np.arange(size) % 2, anywhere, np.stack([x[chosen] for x in space.given]))
    values = space.value(list(places), objective)
    first, begun = float(values.max()), (places, values)
    binade = 1 << (space.rounded.format.precision - 1)
    for _ in range(steps):
        kind = rng.integers(0, 6, places.shape)
        # Powers of two instead of exponentials, and a stable sort: every processor finds the same inputs.
        powers = rng.integers(0, binade.bit_length(), places.shape)
        reach = np.ldexp(rng.uniform(1, 2, places.shape), powers).astype(np.int64)
        sign = rng.choice([-1, 1], places.shape)
        other = places[:, rng.integers(0, size, size)]
        moved = np.select(
            [kind == 0, kind == 1, kind == 2, kind == 3],
            [places + sign, places + sign * reach, places + sign * binade, other],
            places,
        )
        moved = np.where(
            rng.random(places.shape) < 0.02,
            rng.integers(low[:, None], high[:, None] + 1, places.shape),
            moved,
        )
        moved = np.clip(moved, low[:, None], high[:, None])
        tried = space.value(list(moved), objective)
        better = tried > values
        places, values = np.where(better, moved, places), np.where(better, tried, values)
        # The worst tenth restarts next to the best ones.
        order = np.argsort(values, kind="stable")
        tenth = size // 10
        if tenth:
            places[:, order[:tenth]] = places[:, order[-tenth:]]
            values[order[:tenth]] = values[order[-tenth:]]
    # The inputs of the start lie in binades that the search may have left.
    places, values = (np.concatenate(x, axis=-1) for x in zip((places, values), begun, strict=True))
    order = np.argsort(-values, kind="stable")
    best, where = float(values[order[0]]), places[:, order[0]]
    # The best inputs of several binades, each with two of its operands moved through their binades.
    met: set[tuple[int, ...]] = set()
    tries = 0
    for start in order:
        if len(met) >= _REFINED and tries >= _REFINED * _GRID:
            break
        binades = tuple((places[:, start] // binade).tolist())
        if binades not in met:
            met.add(binades)
            value, found, count = _refined(space, objective, places[:, start], binade, rng)
            tries += count
            if value > best:
                best, where = value, found
    return space.found(objective, [int(x) for x in where], best, first, False)


def _refined(
    space: _Space, objective: str, place: NDArray[np.int64], binade: int, rng: np.random.Generator
) -> tuple[float, NDArray[np.int64], int]:
    """Return the largest value with two operands moved within their binades, its input, and the tries."""
    low, high = zip(*space.ends, strict=True)
    pairs = list(combinations(range(len(place)), 2)) or [(0, 0)]
    best, where, tries = -1.0, place, 0
    for first, second in rng.permutation(pairs)[:_PAIRS]:
        # Python integers: the product of the sizes of two binades of binary64 exceeds int64.
        starts = [int(place[k]) // binade * binade for k in (first, second)]
        ends = [
            (max(low[k], start), min(high[k] + 1, start + binade))
            for k, start in zip((first, second), starts, strict=True)
        ]
        sizes = [int(stop - start) for start, stop in ends]
        if sizes[0] * sizes[1] <= _GRID:
            grid = [x.reshape(-1) for x in np.meshgrid(*(np.arange(*x) for x in ends))]
        else:
            grid = [rng.integers(*x, _GRID) for x in ends]
        tried = [np.full(grid[0].size, x) for x in place]
        tried[second], tried[first] = grid[1], grid[0]
        values = space.value(tried, objective)
        tries += values.size
        top = int(values.argmax())
        if values[top] > best:
            best, where = float(values[top]), np.array([x[top] for x in tried])
    return best, where, tries
