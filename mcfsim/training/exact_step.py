"""The update that a step would have made in exact arithmetic, from the same state and gradients."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mcfsim.backends.factory import arithmetic
from mcfsim.kernels.native import NativeArithmetic
from mcfsim.optim.declaration import Declaration
from mcfsim.optim.layout import Layout, parts_of
from mcfsim.optim.staged import Gathered, Stage, Staged, in_stages, stages_of
from mcfsim.optim.state import State
from mcfsim.optim.strategies import STRATEGIES, Roles
from mcfsim.protocol import Arithmetic

EXACT = STRATEGIES["exact"]
#: Binary64: close enough to exact arithmetic, as `WideStep.judged` shows.
REFERENCE = NativeArithmetic(np.float64, fused=False)
REFERENCE_ROLES = Roles(*[REFERENCE] * 5)
#: The components whose sum is a vector of the state.
Components = Sequence[NDArray[Any]]


@dataclass(frozen=True)
class WideStep:
    """A step of an optimizer's own algorithm, in one arithmetic for all of it: binary64 or mpmath.

    Parameters
    ----------
    hyper : Declaration
        The optimizer.
    layout : Layout
        Layout of the parameters.
    state : mapping of str to sequence of array
        Components of ``"parameter"`` and of the slots, before the step.
    gradient : array, shape (size,)
    step : int
        Number of the step, from 1.
    rate : float
        Learning rate.
    """

    hyper: Declaration
    layout: Layout
    state: Mapping[str, Components]
    gradient: NDArray[Any]
    step: int
    rate: float

    def tensors(
        self, ar: Arithmetic, chosen: Iterable[str] | None = None
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the names of tensors, by default of all, and all results of their step by name.

        The results are arrays of three dimensions, or tuples of one array. Empty tensors make no step.
        """
        roles, layout = Roles(ar, ar, ar, ar, ar), self.layout
        slots = parts_of(self.hyper, layout)

        def total(label: str, part: slice) -> Any:
            first, *others = (ar.round(x[part]) for x in self.state[label])
            return (sum(others, first),)

        def gather(place: int, item: Gathered, x: Any, target: Any) -> NDArray[Any]:
            return item.taken(ar, x, target)

        for name in layout.slices if chosen is None else chosen:
            part, shape = layout.slices[name], self.hyper.viewed(name, layout.shapes[name])
            if part.start == part.stop:
                continue
            decayed = part.stop <= layout.decayed_size
            scalars = self.hyper.scalars(roles, EXACT, self.step, self.rate, decayed=decayed)
            scalars = self.hyper.of_shape(roles, scalars, shape)
            known: dict[str, Any] = {**dict.fromkeys(State._fields, ()), "gradient": self.gradient[part]}
            known["parameter"] = total("parameter", part)
            for slot, parts in slots.items():
                known |= {label: total(slot, place) for label, place in parts.slices[name].items()}

            def carry_out(place: int, stage: Stage, given: Any, scalars: Any = scalars) -> dict[str, Any]:
                return stage.text(roles, EXACT, given, scalars)

            with np.errstate(all="ignore"):
                found = in_stages(self.hyper, shape, known, carry_out, gather)
            yield name, found

    def judged(self, sample: NDArray[np.int64], precision: int = 400) -> OneStep:
        """Return the update in binary64, judged by mpmath on a sample of parameters.

        Both run the optimizer's own algorithm, from the exact sums of the stored components.

        Parameters
        ----------
        sample : array of int
            Indices of the parameters that mpmath judges; may be empty. A mean needs a whole tensor, so for
            a step in stages it judges all elements of some tensors instead, see `whole_tensors`.
        precision : int, optional
            Bits of mpmath.
        """
        exact: Any = arithmetic(None, backend="exact", precision=precision)
        wide = np.zeros(self.layout.size)
        for name, found in self.tensors(REFERENCE):
            wide[self.layout.slices[name]] = found["update"].reshape(-1)
        judged, numbers = self, wide
        chosen = self.whole_tensors() if isinstance(self.hyper, Staged) else None
        if chosen is None:
            indices = np.sort(sample)
            judged, numbers = self.of_elements(indices), wide[indices]
        pairs: list[tuple[Any, Any]] = []
        try:
            for name, found in judged.tensors(exact, chosen):
                ours = exact.round(numbers[judged.layout.slices[name]])
                pairs += zip(found["update"].reshape(-1), ours, strict=True)
        except ZeroDivisionError:  # as where epsilon and v are zero
            return OneStep(wide, math.nan)
        finite = [(truth, found) for truth, found in pairs if math.isfinite(truth) and math.isfinite(found)]
        scale = exact.sqrt(sum(truth * truth for truth, _ in finite) / max(1, len(finite)))
        gap = max((abs(truth - found) for truth, found in finite), default=math.nan)
        return OneStep(wide, float(gap / scale) if scale else math.nan)

    def whole_tensors(self) -> list[str]:
        """Return one tensor for each kind of step: the smallest one whose gradient and state are finite."""
        chosen: dict[Any, str] = {}
        for name, shape in sorted(self.layout.shapes.items(), key=lambda item: math.prod(item[1])):
            if math.prod(shape) and self._is_finite(name):
                chosen.setdefault(stages_of(self.hyper, self.hyper.viewed(name, shape)), name)
        return list(chosen.values())

    def _is_finite(self, name: str) -> bool:
        """Return whether a tensor's gradient and state are finite; otherwise it has no exact step."""
        part = self.layout.slices[name]
        vectors = [self.gradient[part], *(x[part] for x in self.state["parameter"])]
        for slot, parts in parts_of(self.hyper, self.layout).items():
            vectors += [x[parts.tensor(name)] for x in self.state[slot]]
        return all(np.isfinite(np.asarray(x, np.float64)).all() for x in vectors)

    def of_elements(self, indices: NDArray[np.int64]) -> WideStep:
        """Return the step of some elements, for a step that is a straight line; decayed ones come first."""
        edge = np.searchsorted(indices, self.layout.decayed_size)
        layout = Layout({"decayed": indices[:edge], "others": indices[edge:]}, ["decayed"])
        state = {label: [x[indices] for x in components] for label, components in self.state.items()}
        return replace(self, layout=layout, state=state, gradient=self.gradient[indices])


class OneStep(NamedTuple):
    """The exact update of a step, as binary64 computes it, and the error of binary64.

    Attributes
    ----------
    update : array of float64, shape (size,)
        The update of all parameters, in binary64.
    gap : float
        Largest difference between `update` and the update in mpmath over a sample, relative to the root
        mean square of the latter: the error of binary64 itself. (An element's own relative error has no
        bound, since ``beta1 m`` may cancel ``(1 - beta1) g``.) NaN without a finite nonzero sample, or if the
        exact step of one divides by zero.
    """

    update: NDArray[np.float64]
    gap: float


def sample_indices(size: int, sample: int, seed: int, step: int) -> NDArray[np.int64]:
    """Return at most `sample` distinct parameter indices, the same for the same seed and step."""
    generator = np.random.default_rng([seed, step])
    return np.sort(generator.choice(size, size=min(sample, size), replace=False))
