"""Steps in stages as binary64 and exact arithmetic make them, from the sums of what is stored."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.optim.layout import Layout
from mcfsim.optim.means import mean
from mcfsim.optim.staged import Mean, Stage, Staged, in_stages
from mcfsim.optim.state_slices import parts_of
from mcfsim.optim.strategies import STRATEGIES, Roles
from mcfsim.protocol import Arithmetic

EXACT = STRATEGIES["exact"]
#: A vector of state, as the components whose sum it is.
Components = Sequence[NDArray[Any]]


def steps_of_tensors(
    hyper: Staged,
    ar: Arithmetic,
    layout: Layout,
    state: Mapping[str, Components],
    gradient: NDArray[Any],
    step: int,
    rate: float,
    tensors: Iterable[str] | None = None,
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Make one step of some tensors, all in one arithmetic, whose means are of its own sums.

    Parameters
    ----------
    hyper : Staged
        The optimizer.
    ar : Arithmetic
        Binary64 or mpmath.
    layout : Layout
        Of the parameters.
    state : mapping of str to sequence of array
        Components of ``"parameter"`` and of the slots.
    gradient : array, shape (size,)
    step : int
        Number of the step, from 1.
    rate : float
        Learning rate.
    tensors : iterable of str, optional
        By default all. Of empty ones there is no step.

    Yields
    ------
    str, dict of str to array or tuple of one array
        A tensor's name, and all that its stages have made, of three indices.
    """
    roles = Roles(ar, ar, ar, ar, ar)
    slots = parts_of(hyper, layout)
    for name in layout.slices if tensors is None else tensors:
        part, shape = layout.slices[name], layout.shapes[name]
        if part.start == part.stop:
            continue
        decayed = part.stop <= layout.decayed_size
        scalars = hyper.scalars(roles, EXACT, step, rate, decayed=decayed)
        known: dict[str, Any] = {"gradient": gradient[part], "extra": ()}
        known["parameter"] = (_total(ar, state["parameter"], part),)
        for slot, parts in slots.items():
            known |= {label: (_total(ar, state[slot], place),) for label, place in parts.slices[name].items()}

        def carry_out(place: int, stage: Stage, given: Any, scalars: Any = scalars) -> dict[str, Any]:
            return stage.text(roles, EXACT, given, scalars)

        def take_mean(place: int, item: Mean, x: Any, target: Any) -> NDArray[Any]:
            return mean(ar, x, target)

        with np.errstate(all="ignore"):
            yield name, in_stages(hyper, shape, known, carry_out, take_mean)


def move_averages(
    hyper: Staged,
    ar: Arithmetic,
    layout: Layout,
    averages: Mapping[str, NDArray[Any]],
    represented: Components,
    gradient: NDArray[Any],
    step: int,
    rate: float,
) -> None:
    """Move averages in place: what the slots would be, had they been kept in this arithmetic so far.

    Parameters
    ----------
    hyper, ar, layout, gradient, step, rate
        As of `steps_of_tensors`.
    averages : mapping of str to array
        By slot.
    represented : sequence of array
        Components of the parameter before the step: that of the run, from which updates follow.
    """
    state: dict[str, Components] = {"parameter": represented}
    state |= {slot.name: (averages[slot.name],) for slot in hyper.slots}
    slots = parts_of(hyper, layout)
    for name, found in steps_of_tensors(hyper, ar, layout, state, gradient, step, rate):
        for slot, parts in slots.items():
            for label, place in parts.slices[name].items():
                averages[slot][place] = found[label][0].reshape(-1)


def updates(
    hyper: Staged,
    reference: Arithmetic,
    exact: Arithmetic,
    layout: Layout,
    state: Mapping[str, Components],
    gradient: NDArray[Any],
    step: int,
    rate: float,
) -> tuple[NDArray[np.float64], list[tuple[Any, Any]]]:
    """Return the update of one step in binary64, and pairs of exact elements and these, to judge it.

    A mean wants a whole tensor, so judged are all elements of one tensor for each kind of step: the smallest
    one whose gradient and state are finite.

    Parameters
    ----------
    reference, exact : Arithmetic
        Binary64, and mpmath.
    hyper, layout, state, gradient, step, rate
        As of `steps_of_tensors`.
    """
    given = layout, state, gradient, step, rate
    wide = np.zeros(layout.size)
    for name, found in steps_of_tensors(hyper, reference, *given):
        wide[layout.slices[name]] = found["update"].reshape(-1)
    judged: dict[Any, str] = {}
    for name, shape in sorted(layout.shapes.items(), key=lambda item: math.prod(item[1])):
        if math.prod(shape) and _is_finite(hyper, layout, name, state, gradient):
            judged.setdefault(hyper.stages(shape), name)
    pairs: list[tuple[Any, Any]] = []
    for name, found in steps_of_tensors(hyper, exact, *given, judged.values()):
        ours = exact.round(wide[layout.slices[name]])
        pairs += zip(found["update"].reshape(-1), ours, strict=True)
    return wide, pairs


def _total(ar: Arithmetic, components: Components, part: slice) -> Any:
    first, *others = (ar.round(x[part]) for x in components)
    return sum(others, first)


def _is_finite(
    hyper: Staged, layout: Layout, name: str, state: Mapping[str, Components], gradient: NDArray[Any]
) -> bool:
    """Whether a tensor's gradient and state are finite: what is not has no exact step."""
    part = layout.slices[name]
    vectors = [gradient[part], *(x[part] for x in state["parameter"])]
    for slot, parts in parts_of(hyper, layout).items():
        vectors += [x[parts.tensor(name)] for x in state[slot]]
    return all(np.isfinite(np.asarray(x, np.float64)).all() for x in vectors)
