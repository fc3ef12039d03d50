"""Which of a model's tensors would stop learning under a plan of training, and what keeps them going."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from mcfsim.checks.processor import check_processor
from mcfsim.codec import ulp
from mcfsim.convert import round_to
from mcfsim.formats import Format
from mcfsim.models.audit import Audit, AuditedTensor, TensorFinding
from mcfsim.models.directions import Steady, Table, rms_of
from mcfsim.models.forecast import Course, TensorRows, forecast, points_of
from mcfsim.models.plan import Plan
from mcfsim.models.samples import TensorSample
from mcfsim.training.schedule import Schedule

#: Edges of the histogram of |update| / ulp(weight), as binary logarithms.
EDGES = np.arange(-16.0, 9.0)


def audit(samples: Iterable[TensorSample], plan: Plan, low: Format) -> Audit:
    """Try a plan of training on samples of a model's tensors.

    Parameters
    ----------
    samples : iterable of TensorSample
        From `mcfsim.models.scan.scan`.
    plan : Plan
        How the model is to be trained.
    low : Format
        For the histograms; usually that of the strategies.

    Returns
    -------
    Audit
        A forecast by the model of updates that `mcfsim.models.forecast` states.

    Raises
    ------
    ValueError
        If the updates that are known do not fit the tensors.
    """
    check_processor()
    kept = list(samples)
    decayed = np.array([plan.decays(item.shape) for item in kept])
    weights = np.array([item.values for item in kept])
    directions = plan.updates.directions(kept, plan.hyper, plan.schedule, plan.steps)
    trial = TensorRows(weights, directions, decayed)
    still = TensorRows(weights, Steady(np.zeros_like(weights), plan.hyper.beta1), decayed)
    peak = Schedule(plan.schedule.peak, warmup=0, final=1.0)
    found: list[dict[str, TensorFinding]] = [{} for _ in kept]
    for item in plan.strategies:
        course = forecast(trial, plan.hyper, item, plan.schedule, plan.steps)
        idle = forecast(still, plan.hyper, item, peak, 1).lost[:, 0]
        sizes = [(item.bytes_per_parameter or 0.0) * sample.size for sample in kept]
        for row, one in enumerate(_found(course, idle, sizes, plan.stopped)):
            found[row][item.name] = one
    stored = round_to(weights, low)
    largest = directions.at(min(max(1, plan.schedule.warmup), plan.steps))
    asked = plan.schedule.peak * (largest + np.where(decayed, plan.hyper.weight_decay, 0.0)[:, None] * stored)
    size = rms_of(largest)
    tensors = tuple(
        AuditedTensor(
            *(item.name, item.shape, item.format, bool(decayed[row]), item.rms, item.zeros),
            direction_rms=float(size[row]),
            histogram=tuple(histogram(asked[row], ulp(stored[row], low), EDGES)),
            found=found[row],
        )
        for row, item in enumerate(kept)
    )
    return Audit(plan, low, tuple(points_of(plan.schedule, plan.steps).tolist()), tensors)


def _found(course: Course, idle: Table, sizes: Sequence[float], stopped: float) -> Iterator[TensorFinding]:
    """Yield what was found of each tensor under one strategy."""
    lost, edq = course.over_run(course.lost), course.over_run(course.edq)
    stops = course.stops(stopped)
    for row, beyond in enumerate(course.beyond):
        yield TensorFinding(
            lost=float(lost[row]),
            edq=float(edq[row]),
            stops=stops[row],
            idle=None if np.isnan(idle[row]) else float(idle[row]),
            beyond=int(course.steps[beyond.argmax()]) if beyond.any() else None,
            bytes=sizes[row],
            lost_by_step=tuple(course.lost[row].tolist()),
            edq_by_step=tuple(course.edq[row].tolist()),
        )


def histogram(directions: Table, spacing: Table, edges: Table) -> list[float]:
    """Return shares of updates by the binary logarithm of |update| / ulp(weight), in bins with these edges.

    What is below the first edge counts for the first bin, what is above the last for the last one.
    """
    asked = np.abs(directions)
    with np.errstate(divide="ignore", over="ignore"):
        ratio = np.log2(asked / spacing)
    counts, _ = np.histogram(np.clip(ratio, edges[0], np.nextafter(edges[-1], 0)), edges)
    return [float(share) for share in counts / max(1, asked.size)]
