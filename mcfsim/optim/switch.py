"""A change of strategy: a state's numbers, summed exactly and rounded once into other storage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.backends.factory import arithmetic
from mcfsim.convert import round_to
from mcfsim.eft import two_sum
from mcfsim.kernels.carriers import carrier_of
from mcfsim.kernels.real_numbers import to_fraction
from mcfsim.optim.groups import Groups, common_edges
from mcfsim.optim.layout import StateSlices, blocks
from mcfsim.optim.start import from_master
from mcfsim.optim.state import State
from mcfsim.optim.stored import WeightGrid
from mcfsim.optim.strategies import Addition, Roles, Stored, Strategy
from mcfsim.optim.strategy import SLOTS
from mcfsim.optim.vectors import Formats, Split, Vector, read, read_block, requantize, write
from mcfsim.protocol import Arithmetic
from mcfsim.storage.buffers import BLOCK

Array = NDArray[Any]


# -- numbers ----------------------------------------------------------------------------------------------
def split_sum(parts: Sequence[Array], ar: Arithmetic, count: int) -> tuple[Array, ...]:
    """Split the exact sum of arrays into components of a format.

    Parameters
    ----------
    parts : sequence of array, shape (elements,)
        Values of any formats, or exact numbers. They are added exactly. A sum that is not finite is that of
        IEEE arithmetic, and a zero is negative only if all parts are.
    ar : Arithmetic
        The arithmetic of the components. Only its format matters; exact numbers take its precision.
    count : int
        Number of components.

    Returns
    -------
    tuple of array, shape (elements,)
        Each component is the rest so far, rounded once to nearest even, with overflow and underflow as in
        IEEE arithmetic. Components after one that is not finite are zero.
    """
    if not count:
        return ()
    fmt = ar.format
    if fmt is None:
        whole = ar.round(parts[0])
        for x in parts[1:]:
            whole = whole + ar.round(x)
        return (np.asarray(whole, object), *(ar.round(np.zeros(len(parts[0]))) for _ in range(count - 1)))
    rest, exact = _summed(parts)
    made = [np.empty(rest.size, carrier_of(fmt)) for _ in range(count)]
    with np.errstate(all="ignore"):
        for x in made:
            x[...] = rounded = round_to(rest, fmt)
            rest = np.where(np.isfinite(rounded), rest - rounded, 0.0)
    for place in np.flatnonzero(~exact):
        left = sum((_fraction(x[place]) for x in parts), Fraction(0))
        for x in made:
            x[place] = rounded = round_to(left, fmt)
            left = left - Fraction(rounded) if np.isfinite(rounded) else Fraction(0)
    return tuple(made)


def _summed(parts: Sequence[Array]) -> tuple[Array, NDArray[np.bool_]]:
    """Return sums in binary64, and where they are exact, or follow from numbers that are not finite."""
    ar = arithmetic("float64", compiled=False)
    whole = parts[0].astype(np.float64)
    exact = np.full(whole.size, parts[0].dtype != object)
    finite = _finite(parts[0])
    with np.errstate(all="ignore"):
        for x in parts[1:]:
            whole, error = two_sum(ar, whole, x.astype(np.float64))
            exact &= error == 0
            finite &= _finite(x)
    return whole, exact | ~finite


def _finite(x: Array) -> NDArray[np.bool_]:
    if x.dtype != object:
        return np.isfinite(x)
    return np.array([to_fraction(number) is not None for number in x], np.bool_)


def _fraction(x: Any) -> Fraction:
    found = to_fraction(x)
    assert found is not None
    return found


def stored_parameter(
    parts: Sequence[Array], strategy: Strategy, roles: Roles
) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
    """Return a parameter as a strategy stores it, given numbers whose exact sum it is.

    Returns
    -------
    parameter, extra : tuple of array
        The components, or the parameter and Kahan's compensation, by `split_sum`; or the sum rounded into the
        master copy, and what `mcfsim.optim.start.from_master` makes of that.
    """
    if strategy.addition is Addition.MASTER:
        (master,) = split_sum(parts, roles.parameter, 1)
        theta, kept = from_master(strategy, roles, master)
        return (theta,), (kept,)
    count = strategy.parameter.components
    made = split_sum(parts, roles.model, count + (strategy.extra is not None))
    return made[:count], made[count:]


# -- strategies ------------------------------------------------------------------------------------------
def alike(old: Strategy, new: Strategy, label: str) -> bool:
    """Return whether two strategies store a tensor in the same way, so that it can be taken over as it is.

    Parameters
    ----------
    old, new : Strategy
        With their low formats put in.
    label : str
        ``m``, ``v``, or ``parameter`` for the parameter with all that is stored with it. Exact numbers are
        never alike: their precisions may differ.
    """
    if (form := _form(old.tensors[label])) != _form(new.tensors[label]) or form.format is None:
        return False
    if label != "parameter" or old.extra is new.extra is None:
        return True
    if old.extra is None or new.extra is None or old.addition is not new.addition:
        return False
    shared = old.extra.shared and old.parameter.rounding is not new.parameter.rounding
    return _form(old.extra) == _form(new.extra) and not shared


def _form(stored: Stored) -> Stored:
    """Return how a tensor is stored, without the rounding of stored numbers; for a grid, the integers."""
    lies = None if stored.grid is None else WeightGrid(stored.grid.integers)
    return replace(stored, rounding=None, random_bits=None, rule=None, grid=lies)


def _copy(source: Vector, target: Vector) -> None:
    """Copy a vector to one of the same form, bit for bit."""
    if isinstance(source, Groups) and isinstance(target, Groups):
        target.codes[...], target.scales[...] = source.codes, source.scales
    elif isinstance(source, Split) and isinstance(target, Split):
        target.rest[...] = source.rest
    else:
        assert isinstance(source, np.ndarray)
        assert isinstance(target, np.ndarray)
        target[...] = source


# -- vectors ----------------------------------------------------------------------------------------------
def carry_over(
    source: State,
    target: State,
    formats: tuple[Formats, Formats],
    strategies: tuple[Strategy, Strategy],
    roles: Roles,
    parts: Mapping[str, StateSlices],
) -> bool:
    """Fill the vectors of a new state with what an old one represents, a block at a time.

    Parameters
    ----------
    source, target : State of vectors
        Of the same parameters, and both packed or neither.
    formats : tuple of Formats
        The formats of the vectors, old and new.
    strategies : tuple of Strategy
        The old and the new one.
    roles : Roles
        The arithmetics of the new strategy.
    parts : mapping of str to StateSlices
        The places of the numbers of each slot.

    Returns
    -------
    bool
        Whether the parameter is taken over as it was. Otherwise it lies on no grid yet.
    """
    old, new = strategies
    before, after = (dict(zip(State._fields, items, strict=True)) for items in formats)
    if same := alike(old, new, "parameter"):
        for x, y in zip(source.parameter + source.extra, target.parameter + target.extra, strict=True):
            _copy(x, y)
    else:
        for block in blocks(slice(0, len(target.parameter[0])), BLOCK):
            values = read_block(source._replace(m=(), v=()), formats[0], block)
            made = stored_parameter(values.represented(old), new, roles)
            # The parameter first: a master copy may be stored as what follows the parameter's bits.
            for label, numbers in zip(("parameter", "extra"), made, strict=True):
                for x, y in zip(getattr(target, label), numbers, strict=True):
                    write(x[block], y, after[label])
    for slot in SLOTS:
        given, made_of = getattr(source, slot), getattr(target, slot)
        if alike(old, new, slot):
            for x, y in zip(given, made_of, strict=True):
                _copy(x, y)
            continue
        if not made_of:
            continue
        places = parts[slot].every()
        for block in blocks(slice(0, parts[slot].size), BLOCK, common_edges((*given, *made_of), places)):
            moment = [read(x[block], before[slot]) for x in given]
            for x, y in zip(made_of, split_sum(moment, roles.of(slot), len(made_of)), strict=True):
                write(x[block], y, after[slot])
        kept, fmt = new.tensors[slot].scaled, after[slot]
        if kept is not None and fmt is not None and isinstance(made_of[0], np.ndarray):
            requantize(made_of[0], places, kept, fmt)
    return same
