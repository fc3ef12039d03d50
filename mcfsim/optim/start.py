"""How an optimizer's state begins: from parameters, or from a state that another strategy has stored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.backends.factory import arithmetic
from mcfsim.convert import round_to
from mcfsim.eft import two_sum
from mcfsim.formats import Format
from mcfsim.kernels.carriers import carrier_of
from mcfsim.kernels.real_numbers import to_fraction
from mcfsim.optim.declaration import Declaration, components
from mcfsim.optim.groups import GroupBoundaries, Groups, check_groups, common_edges
from mcfsim.optim.layout import Layout, StateSlices, Tensors, blocks, parts_of
from mcfsim.optim.state import State, remaining
from mcfsim.optim.stored import Stored, WeightGrid
from mcfsim.optim.strategies import Addition, Roles, Strategy
from mcfsim.optim.strategy import SLOTS
from mcfsim.optim.vectors import Formats, Split, Vector, form, read, read_block, requantize, write
from mcfsim.protocol import Arithmetic
from mcfsim.rounding import Mode
from mcfsim.scaled import ScaledFormat
from mcfsim.storage.buffers import BLOCK, new_maps
from mcfsim.storage.files import Pathlike

# -- the first numbers ------------------------------------------------------------------------------------
Array = NDArray[Any]

#: Number of elements that are read and rounded at once.
AT_ONCE = 1 << 18
#: Name of the gradient's vector in a folder.
_GRADIENT = "gradient"
#: Suffix of a vector's name in the name of its scales.
_SCALES = "_scales"

#: Formats and groups of the vectors whose numbers share scales, by the vector's name.
_Grouped = dict[str, tuple[ScaledFormat, GroupBoundaries]]


def start(
    hyper: Declaration,
    strategy: Strategy,
    roles: Roles,
    layout: Layout,
    parameters: Tensors,
    *,
    packed: bool,
    folder: Pathlike | None,
) -> tuple[State, Array | None]:
    """Return the state before the first step and, if it lies in a folder, a vector for gradients there.

    The parameter, or a master copy and from that the parameter (`from_master`), is rounded to nearest even,
    whatever the rounding of steps; all else starts from zero.
    """
    _, pieces = layout.blocks(parameters, AT_ONCE)  # raises its errors before anything is made
    of, counts = roles.stored, components(hyper, strategy)
    # The arithmetic of each vector, by name: the field of `State` and the number of the component.
    vectors = {f"{label}{place}": of[label] for label, n in counts.items() for place in range(n)}
    parts = parts_of(hyper, layout)
    sizes = {name: parts[name[0]].size if name[0] in parts else layout.size for name in vectors}
    forms = {name: (sizes[name], form(role.format, packed=packed)) for name, role in vectors.items()}
    fmt = roles.model.format
    split = packed and _shares(strategy) and forms["parameter0"][1].kind == "u"
    if split and fmt is not None:
        forms["extra0"] = layout.size, Split.form(fmt)
    grouped = _grouped(strategy, vectors, parts) if packed else {}
    for name, (kept, edges) in grouped.items():
        codes, scales = Groups.forms(kept)
        forms |= {name: (sizes[name], codes), f"{name}{_SCALES}": (edges.count, scales)}
    place: AbstractContextManager[dict[str, Array]]
    if folder is None:
        place = nullcontext({name: np.zeros(*item) for name, item in forms.items()})
    else:
        forms[_GRADIENT] = layout.size, form(strategy.gradient.format, packed=packed)
        place = new_maps(folder, forms)
    with place as made:
        whole = _whole(made, vectors, split, grouped)
        _fill(whole, vectors, strategy, roles, pieces)
    state = [tuple(whole[f"{label}{place}"] for place in range(n)) for label, n in counts.items()]
    return State(*state), made.get(_GRADIENT)


def receive(layout: Layout, tensors: Tensors, fmt: Format, out: Array | None, *, packed: bool) -> Array:
    """Return tensors as one vector, rounded to nearest even into a format; in `out` if it is given."""
    taken, pieces = layout.blocks(tensors, AT_ONCE)
    if out is None:
        out = np.empty(layout.size, form(fmt, packed=True) if packed else _rounded(taken, fmt))
    for block, x in pieces:
        write(out[block], round_to(x, fmt), fmt)
    return out


@lru_cache(maxsize=64)
def _rounded(dtype: np.dtype[Any], fmt: Format) -> np.dtype[Any]:
    """Return the dtype of numbers of a dtype once they are rounded into a format."""
    return np.asarray(round_to(np.empty(0, dtype), fmt)).dtype


def _shares(strategy: Strategy) -> bool:
    """Return whether the parameter holds the leading bits of its master copy."""
    return strategy.extra is not None and strategy.extra.shared


def _grouped(strategy: Strategy, vectors: dict[str, Any], parts: dict[str, StateSlices]) -> _Grouped:
    """Return format and groups of each vector whose numbers share scales, by the vector's name."""
    found: _Grouped = {}
    for label, stored in strategy.tensors.items():
        if stored.scaled is not None and f"{label}0" in vectors:
            check_groups(strategy.name, label, stored.scaled)
            assert isinstance(stored.scaled, ScaledFormat)
            assert isinstance(stored.scaled.block, int)
            edges = GroupBoundaries(parts[label].every(), stored.scaled.block)
            found[f"{label}0"] = stored.scaled, edges
    return found


def _whole(
    made: dict[str, Array], vectors: dict[str, Any], split: bool, grouped: _Grouped
) -> dict[str, Vector]:
    """Return the vectors by name; some wrap the arrays in which their numbers are stored.

    A `Split` master copy wraps the bits that follow the parameter's codes, and a `Groups` moment wraps its
    codes and scales.
    """
    whole: dict[str, Vector] = {name: made[name] for name in vectors}
    for name, (kept, edges) in grouped.items():
        fmt = vectors[name].format
        whole[name] = Groups.whole(made[name], made[f"{name}{_SCALES}"], kept, fmt, edges)
    if split:
        model = vectors["parameter0"]
        rounded = model.rounding.mode is Mode.NEAREST_AWAY
        whole["extra0"] = Split.beside(made["parameter0"], made["extra0"], model.format, rounded=rounded)
    return whole


def _fill(
    made: dict[str, Vector],
    vectors: dict[str, Any],
    strategy: Strategy,
    roles: Roles,
    pieces: Iterable[tuple[slice, Array]],
) -> None:
    """Write the numbers at the start to vectors of zero bytes."""
    given = ["parameter0", *(["extra0"] if strategy.addition is Addition.MASTER else [])]
    for name, role in vectors.items():
        vector = made[name]
        if isinstance(vector, Groups):  # any scale will do
            element = vector.scaled.element
            _put_zero(vector.codes, round_to(np.zeros(1), element), element)
        elif name not in given:
            _put_zero(vector, _nearest(role, np.zeros(1)), role.format)
    for block, x in pieces:
        numbers: tuple[Array, ...] = (_nearest(vectors[given[-1]], x),)
        if strategy.addition is Addition.MASTER:
            numbers = from_master(strategy, roles, *numbers)
        for name, made_of in zip(given, numbers, strict=True):
            write(made[name][block], made_of, vectors[name].format)


def from_master(strategy: Strategy, roles: Roles, master: Array) -> tuple[Array, Array]:
    """Return the parameter of a master copy, and the part of the master copy that is kept.

    The parameter is rounded to nearest even, whatever the rounding of steps; one that shares bits with its
    master copy is rounded as in a step.
    """
    model: Any = roles.model
    bits = strategy.extra.remainder if strategy.extra else None
    theta = round_to(master, model.format, model.rounding) if _shares(strategy) else _nearest(model, master)
    if bits is not None and model.format is not None:
        master = np.asarray(remaining(roles.parameter, model.format, bits, master, theta))
    return theta, master


def _put_zero(vector: Any, zero: Array, fmt: Format | None) -> None:
    """Fill a vector of zero bytes with a format's zero; for most formats, it already holds zeros."""
    one = np.empty(1, vector.dtype)
    write(one, zero, fmt)
    if fmt is None or any(one.tobytes()):
        vector[...] = one[0]


def _nearest(role: Arithmetic, x: Array) -> Array:
    return np.asarray(role.round(x) if role.format is None else round_to(x, role.format))


# -- numbers under another strategy, summed exactly and rounded once --------------------------------------
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
        Each component is the remainder so far, rounded once to nearest even, with overflow and underflow as
        in IEEE arithmetic. Components after one that is not finite are zero.
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
        master copy, and what `from_master` makes of that.
    """
    if strategy.addition is Addition.MASTER:
        (master,) = split_sum(parts, roles.parameter, 1)
        theta, kept = from_master(strategy, roles, master)
        return (theta,), (kept,)
    count = strategy.parameter.components
    made = split_sum(parts, roles.model, count + (strategy.extra is not None))
    return made[:count], made[count:]


# -- what two strategies store in the same way ------------------------------------------------------------
def alike(old: Strategy, new: Strategy, label: str) -> bool:
    """Return whether two strategies store a tensor in the same way, so that it can be taken over as it is.

    Parameters
    ----------
    old, new : Strategy
        With their low formats filled in.
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


# -- a state under another strategy -----------------------------------------------------------------------
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
        Whether the parameter is taken over as it was. Otherwise it does not lie on a grid yet.
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
            # The parameter first: a master copy may be stored as the bits that follow the parameter's.
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
