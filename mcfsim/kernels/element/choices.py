"""Selections on blocks, by NumPy: a side that few elements take is computed for these alone."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.kernels.element.machine import Value
from mcfsim.storage.buffers import scratch

Array = NDArray[Any]

#: One element in so many is few: a masked copy, or a gathering, then costs less than passes over all.
_FEW = 16


def blend(condition: Array, yes: Array, no: Array, out: Array) -> None:
    """Fill a block with the elements of one block or another; `out` may be either of them."""
    taken = np.count_nonzero(condition)
    if taken == condition.size or not taken:
        chosen = yes if taken else no
        if chosen is not out:
            np.copyto(out, chosen)
        return
    if yes is out:
        condition, yes, taken = ~condition, no, condition.size - taken
    elif no is not out:
        np.copyto(out, no)
    if taken * _FEW <= condition.size:
        np.copyto(out, yes, where=condition)
        return
    # A masked copy takes a branch an element, and guesses wrong where the mask is any.
    integer = np.dtype(f"i{out.itemsize}")
    mask = scratch("mask", out.size, integer)
    np.copyto(mask, condition)
    np.negative(mask, mask)
    codes = out.view(integer)
    differing = np.bitwise_xor(yes.view(integer), codes, scratch("differing", out.size, integer))
    np.bitwise_xor(codes, np.bitwise_and(differing, mask, mask), codes)


def foreseen(condition: Value) -> tuple[Callable[[Array], bool | None], Value] | None:
    """Return a test that tells if a truth value is the same for a whole block, and of which value, if any.

    It costs less than the truth value, and returns None where it cannot tell. What it looks for is what
    hardly any block has: NaN, magnitudes beyond a bound, and bits that are set.
    """
    if condition.verb == "not":
        if (found := foreseen(condition.operands[0])) is None:
            return None
        inner, value = found

        def negated(x: Array) -> bool | None:
            return None if (known := inner(x)) is None else not known

        return negated, value
    if condition.verb not in ("eq", "le", "lt"):
        return None
    left, right = condition.operands
    if condition.verb == "eq":
        if left is right and left.type.is_float:
            return _is_number, left
        if left.verb == "and" and left.operands[1].verb == "constant" and right.constant == 0:
            return partial(_are_clear, left.operands[1].constant), left.operands[0]
        return None
    beyond = left.verb == "constant"
    bound, magnitude = (left, right) if beyond else (right, left)
    if magnitude.verb != "abs" or bound.verb != "constant":
        return None
    # |x| <= bound and bound < |x| ask for the same, the other two for less than the bound.
    within = operator.le if beyond == (condition.verb == "lt") else operator.lt
    number = float(bound.constant)  # type: ignore[arg-type]
    answer = not beyond

    def test(x: Array) -> bool | None:
        inside = within(np.maximum.reduce(x), number) and within(-number, np.minimum.reduce(x))
        return answer if inside else None

    return test, magnitude.operands[0]


def _are_clear(bits: Any, x: Array) -> bool | None:
    return None if np.bitwise_or.reduce(x) & bits else True


def _is_number(x: Array) -> bool | None:
    greatest = np.maximum.reduce(x)
    return True if greatest == greatest else None


@dataclass(frozen=True)
class Side:
    """What a selection chooses, or by what.

    Attributes
    ----------
    places : tuple of int
        Which of the selection's operands it takes.
    compute : callable, optional
        Fills a block from them; without it the one operand is it.
    """

    places: tuple[int, ...]
    compute: Callable[[Sequence[Array], Sequence[Array]], None] | None = None

    def of(self, given: Sequence[Array], out: Array, index: Array | None = None) -> Array:
        """Return it for all elements, or those of an index; `out` is memory for it."""
        if index is None:
            taken = [given[place] for place in self.places]
        else:
            taken = [x[index] if x.ndim else x for x in map(given.__getitem__, self.places)]
        if self.compute is None:
            return taken[0]
        self.compute(taken, (out,))
        return out


class Choice:
    """A selection whose sides are computed where they are taken, as far as that pays.

    Parameters
    ----------
    condition, yes, no : Side
    foresee : callable, optional
        As `foreseen` returns it; applied to an operand.
    watched : int
        Which.
    memory : str
        The place of the condition among the buffers.
    """

    def __init__(
        self,
        condition: Side,
        yes: Side,
        no: Side,
        foresee: Callable[[Array], bool | None] | None,
        watched: int,
        memory: str,
    ) -> None:
        self._condition, self._sides = condition, (no, yes)
        self._foresee, self._watched, self._memory = foresee, watched, memory

    def places(self) -> tuple[list[int], list[int]]:
        """Return which operands are sides themselves, and which ones are read while a side is computed."""
        ready = [side.places[0] for side in self._sides if side.compute is None]
        computed = [side for side in self._sides if side.compute is not None]
        return ready, [place for side in (self._condition, *computed) for place in side.places]

    def __call__(self, *given_and_out: Array) -> None:
        """Fill the last block from the others; it may be one of them."""
        *given, out = given_and_out
        if self._foresee is not None and (known := self._foresee(given[self._watched])) is not None:
            return self._whole(known, given, out)
        condition = self._condition.of(given, scratch(self._memory, out.size, np.bool_))
        taken = np.count_nonzero(condition)
        if taken in (0, out.size):
            return self._whole(bool(taken), given, out)
        usual = bool(2 * taken > out.size)
        where = ~condition if usual else condition
        rare = self._sides[not usual]
        if min(taken, out.size - taken) * _FEW <= out.size:
            # Before the block is filled, which may be an operand.
            index = np.flatnonzero(where)
            few = rare.of(given, np.empty(index.size, out.dtype), index)
            self._whole(usual, given, out)
            out[index] = few
        else:
            kept = scratch(f"{self._memory} rare", out.size, out.dtype)
            other = rare.of(given, kept)
            if other is not kept and other.ndim:  # it may be the block that is filled
                np.copyto(kept, other)
                other = kept
            self._whole(usual, given, out)
            blend(where, other, out, out)
        return None

    def _whole(self, chosen: bool, given: Sequence[Array], out: Array) -> None:
        made = self._sides[chosen].of(given, out)
        if made is not out:
            np.copyto(out, made)
