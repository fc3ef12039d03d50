"""Adafactor, with and without a first moment: its hyperparameters and the stages of its step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from mcfsim.optim.declaration import Granularity, Interval, Slot
from mcfsim.optim.staged import Known, Mean, Stage, Staged, moved_by, parameter_of
from mcfsim.optim.state import average, converted, expanded
from mcfsim.optim.strategies import Roles, Strategy
from mcfsim.products import Accumulator
from mcfsim.protocol import Arithmetic, Value


class AdafactorScalars(NamedTuple):
    """The real scalars of one step, as Python floats; `beta2` may be an expansion of floats."""

    beta2: Any
    gain2: float
    epsilon: float
    threshold: float
    least_scale: float
    decay: float
    rate: float
    beta1: float = 0.0
    gain1: float = 1.0


@dataclass(frozen=True)
class Adafactor(Staged):
    """Hyperparameters of Adafactor.

    Parameters
    ----------
    beta2_power : float
        The second moment decays by the factor ``1 - t**-beta2_power`` in step t; positive.
    epsilon : float
        Added to the gradient's square; positive. An optimizer warns if it is zero in the format of the second
        moment, as 1e-30 is in fp16 and fp8: a step is then 0 / 0 where v is zero.
    threshold : float
        A tensor's direction is scaled down if its root mean square exceeds this; positive.
    least_scale : float
        The size of a tensor's step is the rate times the tensor's root mean square, or times `least_scale` if
        that is larger; not negative.
    weight_decay : float
        Decoupled decay, in units of the size of a tensor's step; not negative.
    accumulator : Accumulator, optional
        Sums the numbers of a mean; by default sums are exact.

    Raises
    ------
    TypeError
        If a hyperparameter is not a number, or `accumulator` is not an Accumulator.
    ValueError
        If a hyperparameter is out of range, or not finite.

    Notes
    -----
    The rate of step t is the schedule's, but at most ``t**-0.5``; a schedule of 1e-2 gives the paper's rate.
    """

    slots: ClassVar[tuple[Slot, ...]] = (Slot("v"),)
    ranges: ClassVar = {
        "beta2_power": Interval.POSITIVE,
        "epsilon": Interval.POSITIVE,
        "threshold": Interval.POSITIVE,
        "least_scale": Interval.NOT_NEGATIVE,
        "weight_decay": Interval.NOT_NEGATIVE,
    }

    beta2_power: float = 0.8
    epsilon: float = 1e-30
    threshold: float = 1.0
    least_scale: float = 1e-3
    weight_decay: float = 0.0
    accumulator: Accumulator | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.accumulator is not None and not isinstance(self.accumulator, Accumulator):
            raise TypeError(f"accumulator must be an Accumulator or None, not {self.accumulator!r}")

    def scalars(
        self, roles: Roles, strategy: Strategy, step: int, rate: float, *, decayed: bool
    ) -> AdafactorScalars:
        """Return the scalars of step number `step`, counted from 1, at learning rate `rate`."""
        gain2 = step**-self.beta2_power
        return AdafactorScalars(
            beta2=expanded(roles, strategy, 1.0 - gain2),
            gain2=gain2,
            epsilon=self.epsilon,
            threshold=self.threshold,
            least_scale=self.least_scale,
            decay=self.weight_decay if decayed else 0.0,
            rate=min(rate, step**-0.5),
        )

    def rounded_hyperparameters(self) -> dict[str, dict[str, float]]:
        """Return the scalars that enter every step, by role and by their names in the guide."""
        update = {"threshold": self.threshold, "least_scale": self.least_scale}
        return {"v": {"epsilon": self.epsilon}, "update": {**update, "weight_decay": self.weight_decay}}

    def parts(self, slot: str, shape: tuple[int, ...]) -> dict[str, Granularity]:
        """Return what a slot keeps: rows and columns for v of two or more dimensions, otherwise elements."""
        if slot == "v" and len(shape) >= 2:
            return {"rows": Granularity.ROW, "columns": Granularity.COLUMN}
        return {slot: Granularity.ELEMENT}

    def stages(self, shape: tuple[int, ...]) -> tuple[Stage | Mean, ...]:
        """Return a tensor's step; see `direction`, `sizes` and `moved` for its rounding points."""
        by = self.accumulator
        if len(shape) < 2:
            second: tuple[Stage | Mean, ...] = (Stage(full, Granularity.ELEMENT, ("square", "v")),)
        else:
            second = (
                Mean("row_mean", "square", Granularity.ROW, "v", by),
                Mean("column_mean", "square", Granularity.COLUMN, "v", by),
                Stage(rows, Granularity.ROW, ("rows", "row_mean")),
                Stage(columns, Granularity.COLUMN, ("columns", "column_mean")),
                Mean("all_rows", "rows", Granularity.MATRIX, "v", by),
                Stage(shares, Granularity.ROW, ("rows", "all_rows")),
                Stage(factored, Granularity.ELEMENT, ("share", "columns")),
            )
        return (
            Stage(squares, Granularity.ELEMENT, ("gradient",)),
            *second,
            Stage(direction, Granularity.ELEMENT, ("g", "variance", "parameter", "extra")),
            Mean("direction_mean", "direction_square", Granularity.TENSOR, "update", by),
            Mean("weight_mean", "weight_square", Granularity.TENSOR, "update", by),
            Stage(sizes, Granularity.TENSOR, ("direction_mean", "weight_mean")),
            self._last(),
        )

    def _last(self) -> Stage:
        return Stage(moved, Granularity.ELEMENT, ("direction", "clip", "size", "parameter", "extra"))


@dataclass(frozen=True)
class MomentumAdafactor(Adafactor):
    """Hyperparameters of Adafactor with a first moment, an average of updates.

    Parameters
    ----------
    beta2_power, epsilon, threshold, least_scale, weight_decay, accumulator
        As for `Adafactor`.
    beta1 : float
        Decay of the first moment, in [0, 1).
    """

    slots: ClassVar[tuple[Slot, ...]] = (Slot("m"), Slot("v"))
    ranges: ClassVar = {**Adafactor.ranges, "beta1": Interval.SHARE}

    beta1: float = 0.9

    def scalars(
        self, roles: Roles, strategy: Strategy, step: int, rate: float, *, decayed: bool
    ) -> AdafactorScalars:
        """Return the scalars of step number `step`, counted from 1, at learning rate `rate`."""
        found = super().scalars(roles, strategy, step, rate, decayed=decayed)
        return found._replace(beta1=self.beta1, gain1=1.0 - self.beta1)

    def rounded_hyperparameters(self) -> dict[str, dict[str, float]]:
        """Return the scalars that enter every step, by role and by their names in the guide."""
        return {**super().rounded_hyperparameters(), "m": {"1 - beta1": 1.0 - self.beta1}}

    def _last(self) -> Stage:
        return Stage(averaged, Granularity.ELEMENT, ("direction", "clip", "size", "m", "parameter", "extra"))


def squares(roles: Roles, strategy: Strategy, known: Known, scalars: AdafactorScalars) -> dict[str, Any]:
    """Return g, the gradient in the format of m, and ``RN(RN(g g) + epsilon)`` in the format of v."""
    ar, second = roles.moments, roles.second_moment
    g = ar.round(known["gradient"])
    taken = converted(second, g, ar)
    return {"g": g, "square": second.add(second.mul(taken, taken), scalars.epsilon)}


def full(roles: Roles, strategy: Strategy, known: Known, scalars: AdafactorScalars) -> dict[str, Any]:
    """Return the new second moment of each element of a vector, from the gradient's square."""
    v = average(roles.second_moment, known["v"], scalars.beta2, known["square"], scalars.gain2)
    return {"v": v, "variance": v[0]}


def rows(roles: Roles, strategy: Strategy, known: Known, scalars: AdafactorScalars) -> dict[str, Any]:
    """Return the new second moment of each row, from the mean of its gradients' squares."""
    moved = average(roles.second_moment, known["rows"], scalars.beta2, known["row_mean"], scalars.gain2)
    return {"rows": moved}


def columns(roles: Roles, strategy: Strategy, known: Known, scalars: AdafactorScalars) -> dict[str, Any]:
    """Return the new second moment of each column, from the mean of its gradients' squares."""
    ar = roles.second_moment
    return {"columns": average(ar, known["columns"], scalars.beta2, known["column_mean"], scalars.gain2)}


def shares(roles: Roles, strategy: Strategy, known: Known, scalars: AdafactorScalars) -> dict[str, Any]:
    """Return each row's second moment R divided by the mean: ``RN(R / mean R)``, of leading components."""
    return {"share": roles.second_moment.div(known["rows"][0], known["all_rows"])}


def factored(roles: Roles, strategy: Strategy, known: Known, scalars: AdafactorScalars) -> dict[str, Any]:
    """Return the second moment of each matrix element: ``RN(RN(R / mean R) C)``, C that of its column."""
    return {"variance": roles.second_moment.mul(known["share"], known["columns"][0])}


def direction(roles: Roles, strategy: Strategy, known: Known, scalars: AdafactorScalars) -> dict[str, Any]:
    """Return the direction ``U = RN(g / RN(sqrt(variance)))``, its square, and the parameter's square."""
    up = roles.update
    root = up.sqrt(converted(up, known["variance"], roles.second_moment))
    u = up.div(converted(up, known["g"], roles.moments), root)
    theta = up.round(parameter_of(known).represented(strategy)[0])
    return {"direction": u, "direction_square": up.mul(u, u), "weight_square": up.mul(theta, theta)}


def sizes(roles: Roles, strategy: Strategy, known: Known, scalars: AdafactorScalars) -> dict[str, Any]:
    """Return the divisor that clips a tensor's direction, and the negative size of its step.

    They are ``max(1, RN(RMS(U) / threshold))`` and ``RN(-rate max(RMS(theta), least_scale))``, where RMS is
    ``RN(sqrt(mean))``.
    """
    up = roles.update
    clip = _at_least(up, up.div(up.sqrt(known["direction_mean"]), scalars.threshold), 1.0)
    scale = _at_least(up, up.sqrt(known["weight_mean"]), scalars.least_scale)
    return {"clip": clip, "size": up.mul(scale, -scalars.rate)}


def moved(roles: Roles, strategy: Strategy, known: Known, scalars: AdafactorScalars) -> dict[str, Any]:
    """Move the parameter by the update ``D = RN(size RN(RN(U / clip) + RN(lambda theta)))``."""
    up = roles.update
    clipped = up.div(known["direction"], known["clip"])
    if scalars.decay:
        theta = up.round(parameter_of(known).represented(strategy)[0])
        clipped = up.add(clipped, up.mul(theta, scalars.decay))
    return moved_by(roles, strategy, known, up.mul(clipped, known["size"]))


def averaged(roles: Roles, strategy: Strategy, known: Known, scalars: AdafactorScalars) -> dict[str, Any]:
    """Average the updates ``RN(size RN(U / clip))`` in m, and move the parameter by the average and decay.

    The update is ``D = RN(m + RN(size RN(lambda theta)))``, or D = m without decay; m stands for its leading
    component.
    """
    ar, up = roles.moments, roles.update
    new = up.mul(up.div(known["direction"], known["clip"]), known["size"])
    m = average(ar, known["m"], scalars.beta1, converted(ar, new, up), scalars.gain1)
    update = converted(up, m[0], ar)
    if scalars.decay:
        theta = up.round(parameter_of(known).represented(strategy)[0])
        update = up.add(update, up.mul(up.mul(theta, scalars.decay), known["size"]))
    return {"m": m, **moved_by(roles, strategy, known, update)}


def _at_least(ar: Arithmetic, x: Value, least: float) -> Value:
    """Return the maximum of a nonnegative value and a real scalar, which is rounded.

    Nothing else is rounded: the difference has the right sign, and 2, 1 and 0 are numbers of the format. If
    the difference is below the smallest number and rounds to zero, the result is the scalar.
    """
    sign = ar.sign(ar.sub(x, least))
    above = ar.mul(ar.add(sign, ar.abs(sign)), 0.5)  # 1, or 0
    return ar.fma(x, above, ar.mul(ar.sub(1.0, above), least))


#: The rounding points of a matrix's step with decay, without first moment and addition: stage or mean, name,
#: operation. The operations left out round nothing; `sizes` uses them to find maxima.
ROUNDING_POINTS: tuple[tuple[str, str, str], ...] = (
    ("squares", "gradient", "round"),
    ("squares", "gradient squared", "mul"),
    ("squares", "epsilon added", "add"),
    ("row_mean", "mean of a row", "round"),
    ("column_mean", "mean of a column", "round"),
    ("rows", "row decayed", "mul"),
    ("rows", "row", "fma"),
    ("columns", "column decayed", "mul"),
    ("columns", "column", "fma"),
    ("all_rows", "mean of rows", "round"),
    ("shares", "share of a row", "div"),
    ("factored", "second moment", "mul"),
    ("direction", "root", "sqrt"),
    ("direction", "direction", "div"),
    ("direction", "weight", "round"),
    ("direction", "direction squared", "mul"),
    ("direction", "weight squared", "mul"),
    ("direction_mean", "mean of directions squared", "round"),
    ("weight_mean", "mean of weights squared", "round"),
    ("sizes", "length of the direction", "sqrt"),
    ("sizes", "length in thresholds", "div"),
    ("sizes", "length of the weights", "sqrt"),
    ("sizes", "least scale", "mul"),
    ("sizes", "size", "mul"),
    ("moved", "direction clipped", "div"),
    ("moved", "weight", "round"),
    ("moved", "weight decay", "mul"),
    ("moved", "decayed direction", "add"),
    ("moved", "update", "mul"),
)
