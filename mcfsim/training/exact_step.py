"""What a step would have done in exact arithmetic, from the same state and the same gradient."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mcfsim.backends.factory import arithmetic
from mcfsim.kernels.native import NativeArithmetic
from mcfsim.optim.declaration import Declaration
from mcfsim.optim.layout import Layout
from mcfsim.optim.staged import Staged
from mcfsim.optim.state import State
from mcfsim.optim.strategies import Roles
from mcfsim.protocol import Arithmetic
from mcfsim.training.staged_truth import EXACT, updates

#: Binary64, near enough to exact arithmetic, as `one_step` shows.
REFERENCE = NativeArithmetic(np.float64, fused=False)
REFERENCE_ROLES = Roles(*[REFERENCE] * 5)


class OneStep(NamedTuple):
    """The exact update.

    Attributes
    ----------
    update : array of float64, shape (size,)
        Of all parameters, in binary64.
    gap : float
        Largest difference between `update` and the update in mpmath over a sample, relative to the root
        mean square of the latter: what binary64 itself gets wrong. (An element's own relative error has
        no bound, as ``beta1 m`` may cancel ``(1 - beta1) g``.) NaN without a finite nonzero sample.
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

    Both run the optimizer's own text, from the exact sums of the components that are stored.

    Parameters
    ----------
    hyper : Declaration
        The optimizer.
    layout : Layout
        Which parameters decay.
    state : State
        Before the step; copies, or not yet changed.
    represented : sequence of array
        Components of the parameter that the optimizer means, before the step.
    gradient : array, shape (size,)
        As the optimizer received it.
    step : int
        Number of the step, from 1.
    rate : float
        Learning rate.
    sample : array of int
        Indices of the parameters that mpmath judges; may be empty. Of a step in stages it judges whole
        tensors in their place (`mcfsim.training.staged_truth.updates`).
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
    """Return an update in binary64 and what it gets wrong, by pairs of exact elements and its own."""
    finite = [(truth, found) for truth, found in pairs if math.isfinite(truth) and math.isfinite(found)]
    scale = exact.sqrt(sum(truth * truth for truth, _ in finite) / max(1, len(finite)))
    gap = max((abs(truth - found) for truth, found in finite), default=math.nan)
    return OneStep(wide, float(gap / scale) if scale else math.nan)
