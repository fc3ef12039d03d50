"""Audits at several learning rates as one self-contained HTML page, which needs no network."""

from __future__ import annotations

import base64
import json
import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mcfsim.models.audit import EDGES, Audit, Total, audit
from mcfsim.models.product_rows import ProductRow
from mcfsim.models.samples import TensorSample
from mcfsim.models.tensor_findings import AuditedTensor, TensorFinding
from mcfsim.report import terminal
from mcfsim.report.audits import frozen, mix_offered, product_table, update_model
from mcfsim.report.plotting import ARRIVING, BEYOND, COLOURS, UNASKED, filled_page, page_file

#: Peak learning rates of the page, as multiples of the plan's rate.
RATES = (0.25, 0.5, 1.0, 2.0, 4.0)
#: Files of the script, in order; each uses those before it.
_SCRIPTS = ("elements.js", "heat_map.js", "charts.js", "table.js", "audit.js")


def at_rates(samples: Iterable[TensorSample], found: Audit) -> list[Audit]:
    """Return audits of the same samples by the same plan at all peak rates of `RATES`.

    Parameters
    ----------
    samples : iterable of TensorSample
        The samples that were audited.
    found : Audit
        Their audit at the plan's own rate, which is not repeated.

    Raises
    ------
    ValueError
        If a rate is beyond the range of binary64.
    """
    kept, schedule = list(samples), found.plan.schedule
    schedules = [replace(schedule, peak=schedule.peak * times) for times in RATES]
    return [
        found if times == 1 else audit(kept, replace(found.plan, schedule=other), found.low)
        for times, other in zip(RATES, schedules, strict=True)
    ]


def audit_page(
    source: str, audits: Sequence[Audit], left_out: Mapping[str, str], products: Sequence[ProductRow] = ()
) -> str:
    """Return a complete HTML page: a recommendation, tables, heat maps, and a histogram of each tensor.

    The page contains its scripts and styles, and its Content-Security-Policy allows only these: no request
    and no other script. Strings from files, such as tensor names, enter as data and are shown as plain text.
    The data are JSON, deflated because they are long; browsers of 2023 or later inflate them.

    Parameters
    ----------
    source : str
        The weights that were audited.
    audits : sequence of Audit
        Audits of the same tensors and strategies at different peak rates; see `at_rates`.
    left_out : mapping of str to str
        Tensors that were not audited, and the reasons.
    products : sequence of ProductRow, optional
        What `mcfsim.torch.watch_products` measured, for a table of its own.

    Raises
    ------
    ValueError
        If there is no audit or no tensor, or audits are of different tensors, strategies or steps.
    """
    palette = "".join(f"--{name}: {colour}; " for name, colour in COLOURS.items())
    style = f":root {{ {palette}}}\n" + page_file("audit.css")
    script = "".join(map(page_file, _SCRIPTS))
    data = json.dumps(page_data(source, audits, left_out, products), allow_nan=False, separators=(",", ":"))
    packed = base64.b64encode(zlib.compress(data.encode())).decode()
    return filled_page("audit.html", style, script, data=packed)


def page_data(
    source: str, audits: Sequence[Audit], left_out: Mapping[str, str], products: Sequence[ProductRow] = ()
) -> dict[str, Any]:
    """Return the contents of the page as JSON data.

    Shares have four decimal places, other numbers four significant digits; NaN, where no update is asked for,
    is null.
    """
    first = _alike(audits)
    totals = {total.strategy.name: total for total in first.totals()}
    shown = {total.strategy.name for item in audits for total in item.shown()}
    names = [name for name in totals if name in shown]
    return {
        "source": source,
        "parameters": first.size,
        "plan": _plan(first),
        "updates": update_model(first),
        "low": str(first.low),
        "stopped": first.plan.stopped,
        "left_out": list(left_out.items()),
        "products": product_table(products),
        "terms": list(terminal.AUDIT.items()),
        "colours": list(ARRIVING),
        "beyond": BEYOND,
        "unasked": UNASKED,
        "steps": list(first.steps),
        "edges": EDGES.tolist(),
        "strategies": [
            {"name": name, "bytes_per_parameter": totals[name].strategy.bytes_per_parameter} for name in names
        ],
        "also": [name for name in totals if name not in names],
        "tensors": [_tensor(first, item) for item in first.tensors],
        "runs": [_run(item, names) for item in audits],
    }


def _alike(audits: Sequence[Audit]) -> Audit:
    """Return the first audit; raise if the audits cannot be shown on one page."""
    if not audits or not audits[0].tensors:
        raise ValueError("a page needs at least one audit, of at least one tensor")
    first = audits[0]
    for other in audits[1:]:
        for label, here, there in (
            ("tensors", [item.name for item in first.tensors], [item.name for item in other.tensors]),
            ("strategies", first.plan.strategies, other.plan.strategies),
            ("steps", first.steps, other.steps),
        ):
            if here != there:
                raise ValueError(f"audits of one page must have the same {label}: {here}, and {there}")
    return first


def _plan(audit: Audit) -> list[tuple[str, str]]:
    """Return the plan of the audit, in words."""
    plan, hyper = audit.plan, audit.plan.hyper
    course = "constant" if plan.schedule.final == 1 else f"cosine to {plan.schedule.final:g} of the peak rate"
    return [
        (
            "optimizer",
            f"AdamW, beta1 = {hyper.beta1:g}, beta2 = {hyper.beta2:g}, epsilon = {hyper.epsilon:g}, "
            f"weight decay {hyper.weight_decay:g}",
        ),
        ("schedule", f"{plan.steps:,} steps, {plan.schedule.warmup:,} of them warm-up, then {course}"),
        ("low format", str(audit.low)),
        ("threshold", f"{plan.threshold:g}: EDQ that every tensor must reach (--threshold)"),
        ("stopped", f"{plan.stopped:g}: EDQ below which a tensor has stopped (--stopped)"),
    ]


def _tensor(audit: Audit, item: AuditedTensor) -> dict[str, Any]:
    return {
        "name": item.name,
        "shape": list(item.shape),
        "parameters": item.size,
        "format": item.format,
        "decayed": item.decayed and audit.plan.hyper.weight_decay > 0,
        "rms": _short(item.rms),
        "zeros": _share(item.zeros),
        "direction_rms": _short(item.direction_rms),
    }


def _run(audit: Audit, names: Sequence[str]) -> dict[str, Any]:
    """Return the findings at one peak rate under the named strategies."""
    recommended, why = audit.recommended()
    totals = {total.strategy.name: total for total in audit.totals()}
    plan, below = audit.plan, EDGES.tolist().index(-1.0)
    return {
        "peak": _short(plan.schedule.peak),
        "rates": [_short(plan.schedule.rate(step, plan.steps)) for step in audit.steps],
        "recommended": None if recommended is None else names.index(recommended.strategy.name),
        "reason": why,
        "mix": mix_offered(audit),
        "totals": [_total(totals[name]) for name in names],
        "tensors": [
            {
                "histogram": [_share(share) for share in item.histogram],
                # Rounded once, because rounded shares need not add up.
                "below_half": _share(math.fsum(item.histogram[:below])),
                "found": [_found(item.found[name]) for name in names],
            }
            for item in audit.tensors
        ],
    }


def _total(total: Total) -> dict[str, Any]:
    return {
        "bytes": total.bytes,
        "lost": _share(total.lost),
        "edq": _share(total.edq),
        "least": _share(total.of_worst.edq),
        "worst": total.worst,
        "stopped": total.stopped,
        "frozen": frozen(total),
        "sufficient": total.sufficient,
    }


def _found(found: TensorFinding) -> dict[str, Any]:
    return {
        "lost": _share(found.lost),
        "edq": _share(found.edq),
        "stops": found.stops,
        "beyond": found.beyond,
        "idle": _share(found.idle),
        "bytes": found.bytes,
        "course": [_share(edq) for edq in found.edq_by_step],
    }


def _share(number: float | None) -> float | None:
    return None if number is None or not math.isfinite(number) else round(number, 4)


def _short(number: float) -> float:
    return float(f"{number:.4g}")
