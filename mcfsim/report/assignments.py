"""Assignments of strategies and formats as tables, as JSON data and as CSV."""

from __future__ import annotations

import csv
import io
import math
from typing import Any

import numpy as np

from mcfsim.models.assigning import Assignment
from mcfsim.report.audits import planned, shape_text, share_text
from mcfsim.report.tables import Rows
from mcfsim.storage.sealed import without_nan


def assignment_table(found: Assignment, most: int | None = None) -> Rows:
    """Return one row of strings per tensor, in order of decreasing loss.

    Parameters
    ----------
    most : int, optional
        Largest number of rows; by default all.
    """
    rows = sorted(tensors(found), key=lambda row: -row["lost"])
    return [
        {
            "tensor": row["name"],
            "shape": shape_text(row["shape"]),
            "strategy": row["strategy"],
            "format": row["format"],
            "bytes / parameter": f"{row['bytes_per_parameter']:g}",
            "EDQ": share_text(row["edq"]),
            "lost": share_text(row["lost"]),
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
            "lost": share_text(without_nan(found.lost(chosen))),
            "in budget": "yes" if choices.bytes_of(chosen) <= found.budget * choices.size else "no",
        }
        for name, chosen in rows
    ]


def tensors(found: Assignment) -> list[dict[str, Any]]:
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


def as_json(found: Assignment, left_out: dict[str, str]) -> dict[str, Any]:
    """Return an assignment as JSON data; NaN, where no update was asked for, is null.

    Parameters
    ----------
    left_out : dict of str to str
        Tensors that were left out, and the reasons.
    """
    choices = found.choices
    data = {
        **planned(found.audit.plan),
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
        "tensors": tensors(found),
    }
    return without_nan(data)  # type: ignore[no-any-return]


def as_csv(found: Assignment) -> str:
    """Return the assignment of each tensor as CSV with a heading; a shape is ``3x4``, NaN is empty."""
    rows = tensors(found)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(rows[0])
    for row in rows:
        values = {**row, "shape": "x".join(map(str, row["shape"]))}
        writer.writerow("" if value != value else value for value in values.values())
    return text.getvalue()
