"""Kernels on GPUs, as a table of what `make bench-gpu` measured: a result file for each device."""

from __future__ import annotations

from typing import Any

from experiments.common import RESULTS, read_result, write_result
from mcfsim.report.tables import markdown_table

NOT_MEASURED = (
    "**Not measured**: no GPU has run these kernels yet. What is said of speed is a count of instructions,\n"
    "and what is said of bits is shown without a GPU, in two halves: that a kernel's operations give the\n"
    "emulator's bits, where NumPy carries them out, and that the compilers keep just these operations."
)
_FILES = "gpu_"


def keep(result: dict[str, Any]) -> None:
    """Write what was measured on a device into the file of that device."""
    write_result(_FILES + _model(result).lower(), result)


def measured() -> str:
    """Return the times of GPUs, a column of milliseconds for each, or say that none was measured."""
    files = sorted(path.stem for path in RESULTS.glob(f"{_FILES}*.json"))
    if not files:
        return NOT_MEASURED
    devices = [read_result(file) for file in files]
    found = [{row["name"]: row for row in _rows(device)} for device in devices]
    rows = []
    for name in {name: None for named in found for name in named}:
        having = [named[name] for named in found if name in named]
        line = {"what": name, "elements": f"{having[0]['elements']:.3g}"}
        for device, named in zip(devices, found, strict=True):
            row, on = named.get(name), _model(device)
            line[f"ms, {on}"] = f"{1e3 * row['seconds']:.4g}" if row else ""
            line[f"of a copy, {on}"] = f"{_rate(row) / _rate(device['copy']):.2f}" if row else ""
        rows.append(line)
    return "\n\n".join([markdown_table(rows), *map(_about, devices)])


def _rows(device: dict[str, Any]) -> list[dict[str, Any]]:
    return [device["copy"], *(row for group in device["rows"].values() for row in group)]


def _model(device: dict[str, Any]) -> str:
    """Return the model of a device, without its maker and what follows: ``H100``."""
    return str(device["device"].removeprefix("NVIDIA ").split()[0])


def _about(device: dict[str, Any]) -> str:
    wrong = "; ".join(
        f"{name} {share:.2%}" for name, share in device["not the exact step rounded once"].items()
    )
    about = device["versions"]
    return (
        f"{device['device']}: torch {about['torch']}, Triton {about['triton']}, "
        f"Python {about['python']}. Parameters that are not the exact first step rounded once: {wrong}."
    )


def _rate(row: dict[str, Any]) -> float:
    """Return the bytes a second that a row's call read and wrote."""
    return float(row["elements"] * row["bytes"] / row["seconds"])
