"""The update that a step would have made in exact arithmetic, from the same state and gradients."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mcfsim.backends.factory import arithmetic
from mcfsim.kernels.native import NativeArithmetic
from mcfsim.optim.declaration import Declaration
from mcfsim.optim.layout import Layout, parts_of
from mcfsim.optim.staged import Mean, Stage, Staged, in_stages, mean
from mcfsim.optim.state import State
from mcfsim.optim.strategies import STRATEGIES, Roles
from mcfsim.protocol import Arithmetic

# -- steps in stages --------------------------------------------------------------------------------------
EXACT = STRATEGIES["exact"]
#: The components whose sum is a vector of the state.
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
    """Make one step of some tensors in one arithmetic, which also sums the means.

    Parameters
    ----------
    hyper : Staged
        The optimizer.
    ar : Arithmetic
        Binary64 or mpmath.
    layout : Layout
        Layout of the parameters.
    state : mapping of str to sequence of array
        Components of ``"parameter"`` and of the slots.
    gradient : array, shape (size,)
    step : int
        Number of the step, from 1.
    rate : float
        Learning rate.
    tensors : iterable of str, optional
        By default all. Empty tensors make no step.

    Yields
    ------
    str, dict of str to array or tuple of one array
        A tensor's name, and all results of its stages, as arrays of three dimensions.
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
    """Move averages in place: they are the slots as if kept in this arithmetic from the start.

    Parameters
    ----------
    hyper, ar, layout, gradient, step, rate
        As for `steps_of_tensors`.
    averages : mapping of str to array
        The averages, by slot.
    represented : sequence of array
        Components of the run's own parameter before the step; updates follow from it.
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
    """Return one step's update in binary64, and pairs of exact and binary64 elements to judge it by.

    A mean needs a whole tensor. So all elements of one tensor are judged for each kind of step: of the
    smallest one whose gradient and state are finite.

    Parameters
    ----------
    reference, exact : Arithmetic
        Binary64, and mpmath.
    hyper, layout, state, gradient, step, rate
        As for `steps_of_tensors`.
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
    """Return whether a tensor's gradient and state are finite; otherwise it has no exact step."""
    part = layout.slices[name]
    vectors = [gradient[part], *(x[part] for x in state["parameter"])]
    for slot, parts in parts_of(hyper, layout).items():
        vectors += [x[parts.tensor(name)] for x in state[slot]]
    return all(np.isfinite(np.asarray(x, np.float64)).all() for x in vectors)


# -- the step ---------------------------------------------------------------------------------------------
#: Binary64: close enough to exact arithmetic, as `one_step` shows.
REFERENCE = NativeArithmetic(np.float64, fused=False)
REFERENCE_ROLES = Roles(*[REFERENCE] * 5)


class OneStep(NamedTuple):
    """The exact update of a step, as binary64 computes it, and the error of binary64.

    Attributes
    ----------
    update : array of float64, shape (size,)
        The update of all parameters, in binary64.
    gap : float
        Largest difference between `update` and the update in mpmath over a sample, relative to the root
        mean square of the latter: the error of binary64 itself. (An element's own relative error has no
        bound, since ``beta1 m`` may cancel ``(1 - beta1) g``.) NaN without a finite nonzero sample.
    """

    update: NDArray[np.float64]
    gap: float


def sample_indices(size: int, sample: int, seed: int, step: int) -> NDArray[np.int64]:
    """Return at most `sample` distinct parameter indices, the same for the same seed and step."""
    generator = np.random.default_rng([seed, step])
    return np.sort(generator.choice(size, size=min(sample, size), replace=False))


def one_step(
    hyper: Declaration,
    layout: Layout,
    state: State,
    represented: Sequence[NDArray[Any]],
    gradient: NDArray[Any],
    step: int,
    rate: float,
    sample: NDArray[np.int64],
    precision: int = 400,
) -> OneStep:
    """Return the update of one step in binary64, judged by mpmath on a sample of parameters.

    Both run the optimizer's own algorithm, from the exact sums of the stored components.

    Parameters
    ----------
    hyper : Declaration
        The optimizer.
    layout : Layout
        Says which parameters decay.
    state : State
        State before the step: copies, or not yet changed.
    represented : sequence of array
        Components of the parameter that the optimizer means, before the step.
    gradient : array, shape (size,)
        As the optimizer received it.
    step : int
        Number of the step, from 1.
    rate : float
        Learning rate.
    sample : array of int
        Indices of the parameters that mpmath judges; may be empty. For a step in stages it judges whole
        tensors instead (`mcfsim.training.exact_step.updates`).
    precision : int, optional
        Bits of mpmath.
    """

    def update(ar: Arithmetic, indices: NDArray[np.int64], decayed: bool) -> Any:
        def total(components: Sequence[NDArray[Any]]) -> Any:
            parts = [ar.round(item[indices]) for item in components]
            return sum(parts[1:], parts[0])

        roles = Roles(ar, ar, ar, ar, ar)
        m, v = ((total(part),) if part else () for part in (state.m, state.v))
        whole = State((total(represented),), m, v, ())
        scalars: Any = hyper.scalars(roles, EXACT, step, rate, decayed=decayed)
        return hyper.step(roles, EXACT, whole, gradient[indices], scalars).update

    exact: Any = arithmetic(None, backend="exact", precision=precision)
    if isinstance(hyper, Staged):
        whole = {"parameter": represented, "m": state.m, "v": state.v}
        return _judged(exact, *updates(hyper, REFERENCE, exact, layout, whole, gradient, step, rate))
    everything = np.arange(layout.size)
    edge = layout.decayed_size
    wide = np.empty(layout.size)
    pairs: list[tuple[Any, Any]] = []
    with np.errstate(all="ignore"):
        for indices, decayed in ((everything[:edge], True), (everything[edge:], False)):
            wide[indices] = update(REFERENCE, indices, decayed)
            judged = sample[(sample < edge) == decayed]
            if judged.size:
                pairs += zip(update(exact, judged, decayed), exact.round(wide[judged]), strict=True)
    return _judged(exact, wide, pairs)


def _judged(exact: Any, wide: NDArray[np.float64], pairs: Sequence[tuple[Any, Any]]) -> OneStep:
    """Return an update in binary64 and its error, from pairs of exact and binary64 elements."""
    finite = [(truth, found) for truth, found in pairs if math.isfinite(truth) and math.isfinite(found)]
    scale = exact.sqrt(sum(truth * truth for truth, _ in finite) / max(1, len(finite)))
    gap = max((abs(truth - found) for truth, found in finite), default=math.nan)
    return OneStep(wide, float(gap / scale) if scale else math.nan)
