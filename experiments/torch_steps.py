"""Steps on tensors of a PyTorch model, as a table, from what `tests.benchmarks.torch_steps` measured."""

from __future__ import annotations

from typing import Any

from experiments.common import read_result, versions_of
from mcfsim.report.tables import markdown_table

_WHOSE = {"torch": "`torch.optim.AdamW`", "optimi": "`optimi.AdamW`", "mcfsim": "`mcfsim.torch`"}


def matrices() -> str:
    """Return the time of a step of one square matrix, beside PyTorch's own optimizer of that kind."""
    rows, peers = [], dict[tuple[int, str], float]()
    for found in read_result("torch_steps")["matrices"]:
        kind = found["name"].partition(",")[0].removeprefix("Torch")
        kind = "AdamW" if kind == "AMSGrad" else kind
        if found["whose"] == "torch":
            peers[found["side"], kind] = found["ns"]
        rows.append(
            {
                "optimizer": f"`{'torch.optim' if found['whose'] == 'torch' else 'mcfsim.torch'}`",
                "which": found["name"],
                "matrix": f"{found['side']} x {found['side']}",
                "ns, one thread": f"{found['ns']:.3g}",
                "times PyTorch's": f"{found['ns'] / peers[found['side'], kind]:.3g}",
            }
        )
    return markdown_table(rows)


def table() -> str:
    """Return time and bytes of each strategy, beside PyTorch's own optimizer."""
    result = read_result("torch_steps")
    fused = next(x["ns"] for x in result["steps"] if x["name"] == "fused, 32 bits" and x["threads"] == 1)
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for found in result["steps"]:
        whose = _WHOSE[found["whose"]]
        row = rows.setdefault(
            (whose, found["name"]),
            {"optimizer": whose, "which": found["name"], "bytes": f"{found['bytes']:g}"},
        )
        threads = "one thread" if found["threads"] == 1 else f"{found['threads']} threads"
        row[f"ns, {threads}"] = f"{found['ns']:.1f}"
        if found["threads"] == 1:
            if "least" in found:
                row["the least"] = f"{found['least']:.1f}"
            row["times fused, 32 bits"] = f"{found['ns'] / fused:.1f}"
            row["a step that is watched"] = f"{found['watched']:.0f}" if "watched" in found else ""
    about = result["versions"]
    return (
        f"{markdown_table(list(rows.values()))}\n\n"
        f"{result['parameters']:.3g} parameters in tensors of a million, medians of one run. "
        f"{about['processor']}; {versions_of(about)}."
    )


def recorded_table() -> str:
    """Return times of steps whose changes are recorded, as `tests.benchmarks.recorded_steps` measures."""
    result = read_result("recorded_steps")
    rows = [
        {
            "strategy": f"`{found['strategy']}`",
            "rate": f"{found['rate']:g}",
            "changed": f"{100 * found['changed']:.1f} %",
            "unrecorded": f"{found['ns']:.2f}",
            **{
                heading: f"{found[name]:.2f} ({100 * (found[name] / found['ns'] - 1):+.0f} %)"
                for heading, name in (("recorded", "recorded"), ("with old codes", "before"))
            },
        }
        for found in result["steps"]
    ]
    about = result["versions"]
    said = (
        f"{result['parameters']:.3g} parameters in tensors of a million, the thread's own time, medians. "
        f"{about['processor']}; {versions_of(about)}."
    )
    return f"{markdown_table(rows)}\n\n{said}"
