"""An optimizer's vectors at the start: made in memory or in files, and filled a block at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.convert import round_to
from mcfsim.formats import Format
from mcfsim.optim.declaration import Declaration
from mcfsim.optim.edges import Edges
from mcfsim.optim.groups import Groups, check_groups
from mcfsim.optim.layout import Layout, Tensors
from mcfsim.optim.remainder import remaining
from mcfsim.optim.state import State
from mcfsim.optim.state_slices import StateSlices, parts_of
from mcfsim.optim.strategies import Addition, Roles, Strategy
from mcfsim.optim.strategy import SLOTS
from mcfsim.optim.vectors import Split, Vector, form, write
from mcfsim.protocol import Arithmetic
from mcfsim.rounding import Mode
from mcfsim.scaled import ScaledFormat
from mcfsim.storage.files import Pathlike
from mcfsim.storage.maps import new_maps

Array = NDArray[Any]

#: Elements that are read and rounded at once.
AT_ONCE = 1 << 18
#: What the gradient's vector is called, in a folder.
_GRADIENT = "gradient"
#: What follows a vector's name in that of its scales.
_SCALES = "_scales"

#: The vectors whose numbers share scales, by name.
_Grouped = dict[str, tuple[ScaledFormat, Edges]]


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
    """Return the state before the first step, and, if that lies in a folder, a vector for gradients there.

    The parameter is rounded to nearest even, whatever the rounding of steps, and so is a master copy; all
    else starts from zero. A parameter that shares bits with its master copy is made from that, as in steps.
    """
    layout.dtype(parameters)  # refuses what it does not take before anything is made
    vectors = _vectors(hyper, strategy, roles)
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
    if folder is None:
        whole = _whole({name: np.zeros(*item) for name, item in forms.items()}, vectors, split, grouped)
        _fill(whole, vectors, strategy, layout, parameters)
        return _state(whole), None
    forms[_GRADIENT] = layout.size, form(strategy.gradient.format, packed=packed)
    with new_maps(folder, forms) as made:
        whole = _whole(made, vectors, split, grouped)
        _fill(whole, vectors, strategy, layout, parameters)
    return _state(whole), made[_GRADIENT]


def receive(layout: Layout, tensors: Tensors, fmt: Format, out: Array | None, *, packed: bool) -> Array:
    """Return tensors as one vector, rounded to nearest even into a format; in `out` if that is given."""
    taken = layout.dtype(tensors)
    if out is None:
        out = np.empty(
            layout.size, form(fmt, packed=True) if packed else round_to(np.empty(0, taken), fmt).dtype
        )
    for block, x in layout.blocks(tensors, AT_ONCE):
        write(out[block], round_to(x, fmt), fmt)
    return out


def _vectors(hyper: Declaration, strategy: Strategy, roles: Roles) -> dict[str, Arithmetic]:
    """Return the arithmetic of each vector, by its name: its field of `State`, and a number."""
    of = {"parameter": roles.model, "m": roles.moments, "v": roles.second_moment, "extra": roles.parameter}
    kept = {
        label: stored.components
        for label, stored in strategy.tensors.items()
        if label in of and (label not in SLOTS or hyper.keeps(label))
    }
    return {f"{label}{place}": of[label] for label, count in kept.items() for place in range(count)}


def _shares(strategy: Strategy) -> bool:
    """Return whether the parameter holds the leading bits of its master copy."""
    return strategy.extra is not None and strategy.extra.shared


def _grouped(strategy: Strategy, vectors: dict[str, Any], parts: dict[str, StateSlices]) -> _Grouped:
    """Return which vectors hold numbers that share scales, in which format, and where their groups lie."""
    found: _Grouped = {}
    for label, stored in strategy.tensors.items():
        if stored.scaled is not None and f"{label}0" in vectors:
            check_groups(strategy.name, label, stored.scaled)
            assert isinstance(stored.scaled, ScaledFormat)
            assert isinstance(stored.scaled.block, int)
            edges = Edges(parts[label].every(), stored.scaled.block)
            found[f"{label}0"] = stored.scaled, edges
    return found


def _whole(
    made: dict[str, Array], vectors: dict[str, Any], split: bool, grouped: _Grouped
) -> dict[str, Vector]:
    """Return the vectors, of those that were made some in place of the codes that they are kept as.

    A master copy takes the place of the bits that follow the parameter's codes, and a moment that of its
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


def _state(vectors: dict[str, Vector]) -> State:
    return State(
        *(
            tuple(x for name, x in vectors.items() if name.rstrip("0123456789") == label)
            for label in State._fields
        )
    )


def _fill(
    made: dict[str, Vector],
    vectors: dict[str, Any],
    strategy: Strategy,
    layout: Layout,
    parameters: Tensors,
) -> None:
    """Put the start in vectors of zero bytes."""
    given = ["parameter0", *(["extra0"] if strategy.addition is Addition.MASTER else [])]
    low = vectors["parameter0"].format
    for name, role in vectors.items():
        vector = made[name]
        if isinstance(vector, Groups):  # whatever their scales are
            element = vector.scaled.element
            _put_zero(vector.codes, round_to(np.zeros(1), element), element)
        elif name not in given:
            _put_zero(vector, _nearest(role, np.zeros(1)), role.format)
    for block, x in layout.blocks(parameters, AT_ONCE):
        for name in given:
            role = vectors[name]
            numbers = _nearest(role, x)
            if name == "parameter0" and _shares(strategy):  # as a step makes it of the master copy
                numbers = round_to(_nearest(vectors["extra0"], x), role.format, role.rounding)
            if name == "extra0" and strategy.extra and strategy.extra.remainder and low is not None:
                near = round_to(numbers, low).astype(role.carrier)
                numbers = np.asarray(remaining(role, low, strategy.extra.remainder, numbers, near))
            write(made[name][block], numbers, role.format)


def _put_zero(vector: Any, zero: Array, fmt: Format | None) -> None:
    """Put what zero is in a format in a vector of zero bytes, which in most it is already."""
    one = np.empty(1, vector.dtype)
    write(one, zero, fmt)
    if fmt is None or any(one.tobytes()):
        vector[...] = one[0]


def _nearest(role: Arithmetic, x: Array) -> Array:
    return np.asarray(role.round(x) if role.format is None else round_to(x, role.format))
