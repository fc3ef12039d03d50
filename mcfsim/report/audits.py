"""Audits, and assignments of strategies and formats, as tables, as JSON data and as CSV."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from mcfsim.models.adapters import CONFIG
from mcfsim.models.assigning import Assignment
from mcfsim.models.audit import EDGES, Audit, Total
from mcfsim.models.plan import MuonModel, Plan
from mcfsim.models.product_rows import ProductRow, summary
from mcfsim.models.tensor_findings import AuditedTensor, TensorFinding
from mcfsim.models.transfer import Encoding
from mcfsim.report.tables import Rows
from mcfsim.storage.sealed import without_nan


def strategy_table(audit: Audit) -> Rows:
    """Return one row of strings per strategy, the cheapest first: its memory, and the updates it loses."""
    recommended, _ = audit.recommended()
    return [
        {
            "strategy": total.strategy.name,
            "bytes / parameter": f"{total.strategy.bytes_per_parameter:g}",
            "GiB in all": f"{total.bytes / 2**30:.3g}",
            "lost": _share_text(total.lost),
            "EDQ": _share_text(total.edq),
            "changed": _share_text(total.changed),
            "least EDQ": _share_text(total.of_worst.edq),
            "of tensor": total.worst,
            "stop": f"{total.stopped} of {len(audit.tensors)}",
            "v frozen": frozen(total),
            "enough": "recommended" if total == recommended else "yes" if total.sufficient else "no",
        }
        for total in audit.totals()
    ]


def transfer_table(audit: Audit) -> Rows:
    """Return one row of strings per strategy: what a step changes, and the bytes to send it."""
    rows = []
    for total in audit.totals():
        least = min(total.transfer.values())
        sizes = {str(name): f"{size:.4g}" for name, size in total.transfer.items() if name != Encoding.XOR}
        share = _share_text(least / total.transfer[Encoding.DENSE])
        changed = _share_text(total.changed)
        rows.append({"strategy": total.strategy.name, "changed": changed, **sizes, "of dense": share})
    return rows


def tensor_table(audit: Audit, most: int) -> Rows:
    """Return one row of strings per tensor; the worst under the cheapest strategy comes first.

    Parameters
    ----------
    most : int
        Largest number of rows.
    """
    first, *others = [total.strategy.name for total in audit.shown()]
    mix = audit.mixed()
    return [
        {
            "tensor": item.name,
            "shape": _shape_text(item.shape),
            "rms": f"{item.rms:.3g}",
            "lost": _share_text(item.found[first].lost),
            "EDQ": _share_text(item.found[first].edq),
            "stops at": _stop(item.found[first]),
            "decay idle": _share_text(item.found[first].idle),
            "bytes": f"{item.found[first].bytes:.4g}",
            **{f"EDQ, {name}": _share_text(item.found[name].edq) for name in others},
            **({} if mix is None else {"in the mix": mix.strategies[item.name].name}),
        }
        for item in audit.worst_first(first)[:most]
    ]


def kind_table(audit: Audit) -> Rows:
    """Return one row of strings per kind of tensor: how the cheapest strategy does, and which is enough."""
    rows = []
    for kind, part in audit.by_kind().items():
        total = part.totals()[0]
        asked = [item for item in part.tensors if not math.isnan(item.found[total.strategy.name].at_first)]
        lost = [item.size * item.found[total.strategy.name].at_first for item in asked]
        middles = [x for item in part.tensors for x in item.stays_below]
        chosen, _ = part.recommended()
        rows.append(
            {
                "kind": str(kind),
                "tensors": str(len(part.tensors)),
                "parameters": f"{part.size:,}",
                "stays below": " to ".join(dict.fromkeys(f"{x:.3g}" for x in (min(middles), max(middles)))),
                "lost at first": _share_text(sum(lost) / sum(item.size for item in asked) if asked else None),
                "lost": _share_text(total.lost),
                "EDQ": _share_text(total.edq),
                "stop": f"{total.stopped} of {len(part.tensors)}",
                "cheapest that does": "-" if chosen is None else chosen.strategy.name,
            }
        )
    return rows


def product_table(rows: Sequence[ProductRow]) -> Rows:
    """Return one row of strings per layer, recipe, product and operand, over all steps.

    The largest errors of a recipe come first.
    """
    found = summary(rows)
    order = {name: place for place, name in enumerate(dict.fromkeys(row.recipe for row in found))}
    worst = sorted(found, key=lambda row: (order[row.recipe], not math.isnan(row.error), -row.error))
    return [
        {
            "layer": row.layer,
            "recipe": row.recipe,
            "product": row.product,
            "operand": row.operand,
            "error": _share_text(row.error),
            "operand's": _share_text(row.operand_error),
            "underflow": _share_text(row.underflow),
            "clipped": _share_text(row.saturation),
            "outliers": _share_text(row.outliers),
        }
        for row in worst
    ]


def adapters_text(adapters: Mapping[str, Any]) -> str:
    """Return ranks and scales of adapters, see `mcfsim.models.adapters.describe`, as a sentence."""
    ranks, scales = (adapters[label] and ", ".join(adapters[label]) for label in ("ranks", "scales"))
    said = f"by {CONFIG} B A is multiplied by {scales}" if scales else f"no {CONFIG} says their scale"
    return f"adapters of rank {ranks}; {said}"


def update_model(audit: Audit) -> str:
    """Return a sentence that states the assumed updates."""
    plan = audit.plan
    decay = f", and {plan.hyper.weight_decay:g} times the weight of tensors of two dimensions and more"
    return (
        f"A step asks each weight for its learning rate times a direction"
        f"{decay if plan.hyper.weight_decay else ''}. Directions: {plan.updates.words}. Weights walk as far "
        "as updates arrive: noise adds up in the square; what directions are longer keeps its sign."
    )


def frozen(total: Total) -> str:
    """Return, in percent, how much of the second moment cannot decay; a range where groups share a scale."""
    shares = dict.fromkeys(f"{100 * share:.0f}" for share in (total.frozen, total.beside))
    return f"{' to '.join(shares)} %"


def mix_offered(audit: Audit) -> str:
    """Return a sentence on one strategy per tensor, or "" if this saves nothing over one for all."""
    if (mix := audit.mixed()) is None:
        return ""
    sizes: dict[str, list[int]] = {}
    for item in audit.tensors:
        sizes.setdefault(mix.strategies[item.name].name, []).append(item.size)
    parts = [
        f"{name} for {len(found)} tensors, {100 * sum(found) / audit.size:.3g} % of the parameters"
        for name, found in sorted(sizes.items(), key=lambda pair: -sum(pair[1]))
    ]
    each = mix.bytes / audit.size
    return (
        f"Mixed, {each:.6g} bytes a parameter suffice, each tensor by the cheapest that does for it: "
        f"{'; '.join(parts)}. mcfsim assign --budget says what loses least within so many bytes."
    )


def audit_json(
    audit: Audit, left_out: Mapping[str, str], adapters: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return an audit as JSON data; NaN, where no update was asked for, is null.

    Parameters
    ----------
    left_out : mapping of str to str
        Tensors that were not audited, and the reasons.
    adapters : mapping, optional
        What `mcfsim.models.adapters.describe` says.
    """
    plan = audit.plan
    (recommended, why), mix = audit.recommended(), audit.mixed()
    data = {
        **_planned(plan),
        "low": str(audit.low),
        "updates": update_model(audit),
        "threshold": plan.threshold,
        "stopped": plan.stopped,
        "parameters": audit.size,
        "left_out": dict(left_out),
        "adapters": adapters,
        "kinds": kind_table(audit),
        "recommended": None if recommended is None else recommended.strategy.name,
        "reason": why,
        "mixed": None
        if mix is None
        else {
            "bytes": mix.bytes,
            "bytes_per_parameter": mix.bytes / audit.size,
            "strategies": {name: item.name for name, item in mix.strategies.items()},
        },
        "strategies": [_total(total) for total in audit.totals()],
        "steps": list(audit.steps),
        "rates": [plan.schedule.rate(step, plan.steps) for step in audit.steps],
        "histogram_edges": EDGES.tolist(),
        "tensors": [_tensor(item) for item in audit.tensors],
    }
    return without_nan(data)  # type: ignore[no-any-return]


def _planned(plan: Plan) -> dict[str, Any]:
    """Return the optimizer and the schedule of a plan as JSON data, and Muon if it moves matrices."""
    data: dict[str, Any] = {"optimizer": {"name": "adamw", **asdict(plan.hyper)}}
    if isinstance(plan.updates, MuonModel):
        muon = plan.updates.muon
        data["muon"] = {"scale": str(muon.scale), "momentum": muon.momentum, "others": list(muon.others)}
    data["schedule"] = {**asdict(plan.schedule), "steps": plan.steps}
    return data


def _total(total: Total) -> dict[str, Any]:
    return {
        "name": total.strategy.name,
        "bytes_per_parameter": total.strategy.bytes_per_parameter,
        "bytes": total.bytes,
        "lost": total.lost,
        "edq": total.edq,
        "changed": total.changed,
        "transfer_bytes": {str(name): size for name, size in total.transfer.items()},
        "least_edq": total.of_worst.edq,
        "worst_tensor": total.worst,
        "tensors_that_stop": total.stopped,
        "v_frozen": total.frozen,
        "v_frozen_beside_a_larger_one": total.beside,
        "sufficient": total.sufficient,
    }


def _tensor(item: AuditedTensor) -> dict[str, Any]:
    about = asdict(item)
    found = about.pop("found")
    return {"name": item.name, "shape": item.shape, "parameters": item.size, **about, "strategies": found}


def _shape_text(shape: Sequence[int]) -> str:
    """Return a tensor's shape for a table."""
    return " x ".join(map(str, shape)) or "scalar"


def _share_text(number: float | None) -> str:
    """Return a share for a table; "-" if there is none."""
    return "-" if number is None or math.isnan(number) else f"{number:.4f}"


def _stop(found: TensorFinding) -> str:
    if found.beyond is not None:
        return f"beyond at {found.beyond}"
    return "-" if found.stops is None else str(found.stops)


# -- assignments ------------------------------------------------------------------------------------------
def assignment_table(found: Assignment, most: int | None = None) -> Rows:
    """Return one row of strings per tensor, in order of decreasing loss.

    Parameters
    ----------
    most : int, optional
        Largest number of rows; by default all.
    """
    rows = sorted(assigned_tensors(found), key=lambda row: -row["lost"])
    return [
        {
            "tensor": row["name"],
            "shape": _shape_text(row["shape"]),
            "strategy": row["strategy"],
            "format": row["format"],
            "bytes / parameter": f"{row['bytes_per_parameter']:g}",
            "EDQ": _share_text(row["edq"]),
            "lost": _share_text(row["lost"]),
        }
        for row in rows[:most]
    ]


def comparison_table(found: Assignment) -> Rows:
    """Return one row of strings for the assignment, and one for each candidate given to all tensors."""
    choices = found.choices
    rows = [("as assigned", found.chosen)]
    rows += [(item.name, (place,) * len(choices.names)) for place, item in enumerate(choices.candidates)]
    return [
        {
            "all tensors": name,
            "bytes / parameter": f"{float(choices.bytes_of(chosen) / choices.size):.6g}",
            "GiB in all": f"{float(choices.bytes_of(chosen)) / 2**30:.3g}",
            "lost": _share_text(without_nan(found.lost(chosen))),
            "in budget": "yes" if choices.bytes_of(chosen) <= found.budget * choices.size else "no",
        }
        for name, chosen in rows
    ]


def assigned_tensors(found: Assignment) -> list[dict[str, Any]]:
    """Return the assignment of each tensor as data, in the order of the files.

    ``lost`` is the tensor's loss as a share of the updates that are asked of all tensors; NaN if none are.
    """
    whole = math.fsum(found.asked)
    losses = found.choices.losses[np.arange(len(found.chosen)), found.chosen].tolist()
    return [
        {
            "name": tensor.name,
            "shape": list(tensor.shape),
            "parameters": tensor.size,
            "strategy": chosen.name.rpartition(" ")[0],
            "format": str(chosen.parameter.format),
            "bytes_per_parameter": float(row[place]),
            "edq": what.edq,
            "lost": loss / whole if whole else math.nan,
        }
        for (tensor, chosen, what), row, place, loss in zip(
            found.tensors(), found.choices.bytes, found.chosen, losses, strict=True
        )
    ]


def assignment_json(found: Assignment, left_out: dict[str, str]) -> dict[str, Any]:
    """Return an assignment as JSON data; NaN, where no update was asked for, is null.

    Parameters
    ----------
    left_out : dict of str to str
        Tensors that were left out, and the reasons.
    """
    choices = found.choices
    data = {
        **_planned(found.audit.plan),
        "method": found.method,
        "budget": float(found.budget),
        "frozen_cost": found.frozen_cost,
        "weighed": found.words,
        "parameters": choices.size,
        "bytes": float(found.bytes),
        "bytes_per_parameter": float(found.bytes / choices.size),
        "lost": found.lost(),
        "candidates": {
            item.name: float(choices.bytes_of((place,) * len(choices.names)) / choices.size)
            for place, item in enumerate(choices.candidates)
        },
        "left_out": left_out,
        "tensors": assigned_tensors(found),
    }
    return without_nan(data)  # type: ignore[no-any-return]


def assignment_csv(found: Assignment) -> str:
    """Return the assignment of each tensor as CSV with a heading; a shape is ``3x4``, NaN is empty."""
    rows = assigned_tensors(found)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(rows[0])
    for row in rows:
        values = {**row, "shape": "x".join(map(str, row["shape"]))}
        writer.writerow("" if value != value else value for value in values.values())
    return text.getvalue()
