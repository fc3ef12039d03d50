"""Matrix units beside what Khattak and Mikaitis published: results of GPUs, and models in MATLAB.

``python -m tests.benchmarks.published_units PATH`` takes a checkout of their MATLAB-tensor-core (arXiv
2512.07004, BSD licence). It compares units with every result that was recorded on a GPU there, and, where
GNU Octave is installed, with the models, on operands that are hard for them. Where a model is known to be
wrong, rows are counted apart.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from rich.console import Console
from rich.table import Table
from scipy.io import loadmat, savemat

import mcfsim as mcf
from mcfsim.products import UnitSums
from tests.products.units_by_definition import hostile, least_published

#: Architectures by GPU.
GPUS = {
    "V100": "volta",
    **dict.fromkeys(("A100", "A2"), "ampere"),
    **dict.fromkeys(("Ada", "L40S"), "ada"),
    **dict.fromkeys(("H100", "H200"), "hopper"),
    "B200": "blackwell",
}
FP8 = {"E4M3": ml_dtypes.float8_e4m3fn, "E5M2": ml_dtypes.float8_e5m2}
#: Models by file, with their names of formats: the unit of each.
MODELS = {
    "V100TC": {"binary16": "volta_fp16"},
    "A100TC": {"fp16": "ampere_fp16", "bf16": "ampere_bf16", "tf32": "ampere_tf32"},
    "AdaTC": {
        "fp16": "ada_fp16",
        "bf16": "ada_bf16",
        "tf32": "ada_tf32",
        "fp8-e4m3": "ada_fp8",
        "fp8-e5m2": "ada_fp8",
    },
    "H100TC": {
        **{"fp16": "hopper_fp16", "bf16": "hopper_bf16", "tf32": "hopper_tf32"},
        **dict.fromkeys(("fp8-e4m3", "fp8-e5m2"), "hopper_fp8"),
    },
    "B200TC": {
        **{"fp16": "blackwell_fp16", "bf16": "blackwell_bf16", "tf32": "blackwell_tf32"},
        **dict.fromkeys(("fp8-e4m3", "fp8-e5m2"), "blackwell_fp8"),
    },
    "MI100MC": {"fp16": "cdna1_fp16", "bf16": "cdna1_bf16"},
    "MI210MC": {"fp16": "cdna2_fp16", "bf16": "cdna2_bf16_1k"},
}
#: What their models call, and Octave 7 lacks.
_LACKING = {
    "fma": "function d = fma(a, b, c)\n  d = single(double(a) * double(b) + double(c));\nend\n",
    "string": "function s = string(x)\n  s = cellstr(x);\nend\n",
}
_SCRIPT = """
given = argv();
warning('off', 'all');
addpath(given{1}, [given{2} '/models'], [given{2} '/models/tools']);
load(given{3});
d = zeros(rows(a), 1);
for i = 1:rows(a)
  d(i) = feval(model, 1, a(i, :), b(i, :)', 1, c(i), formats{:});
end
save('-v6', given{4}, 'd');
"""


# -- results of GPUs --------------------------------------------------------------------------------------
def recorded(path: Path, base: int) -> np.ndarray:
    """Return numbers of binary32 whose codes are written in a file, a line each row."""
    rows = [[int(code, base) for code in line.split()] for line in path.read_text().splitlines()]
    return np.array([x for x in rows if x], np.uint32).view(np.float32).astype(np.float64)


def by_a_warp(architecture: str, half: bool, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Return what ``mma.sync`` makes of 32 products in FP8 on Hopper and Blackwell.

    Two groups of the unit for float16, from zero: products at places 0 and 1 of each four, then the others. C
    is added last, rounded to nearest in the output's format.
    """
    unit = f"{architecture}_fp16" + "_to_fp16" * half
    first = np.arange(a.shape[-1]) % 4 < 2
    total = np.zeros(len(a))
    for some in (first, ~first):
        total = np.float64(mcf.dot(a[:, some], b[:, some], unit=unit, c=total))
    fmt = "float16" if half else "float32"
    # binary64 has the bits that such sums need to be rounded once more.
    return np.asarray(mcf.round_to(total + mcf.round_to(c, fmt), fmt), np.float64)


def measured(root: Path) -> Iterator[dict[str, Any]]:
    """Yield how many results of a GPU differ from a unit's, a format and output each."""
    for gpu, architecture in GPUS.items():
        for folder in sorted((root / "model_validation" / gpu).iterdir()):
            kind, fp8 = folder.name, folder.name in FP8
            a, b = (recorded(folder / f"{x}_{gpu}_{kind}.txt", 16) for x in "ab")
            c = recorded(folder / f"c_{gpu}_fp32.txt", 2)[:, 0]
            for path in sorted(folder.glob("d_*")):
                expected, half = recorded(path, 2)[:, 0], path.stem.endswith("fp16")
                unit = f"{architecture}_{'fp8' if fp8 else kind}" + "_to_fp16" * half
                way = ""
                if fp8 and (architecture == "blackwell" or (architecture == "hopper" and half)):
                    found, way = by_a_warp(architecture, half, a, b, c), "mma.sync"
                else:
                    given = [x.astype(FP8[kind]) if fp8 else x for x in (a, b)]
                    # On Hopper FP8 is that of `wgmma`, which they began with zero.
                    addend = np.zeros_like(c) if fp8 and architecture == "hopper" else c
                    addend = mcf.round_to(addend, mcf.get_unit(unit).added)
                    found = np.asarray(mcf.dot(*given, unit=unit, c=addend), np.float64)
                yield {
                    **{"GPU": gpu, "operands": kind, "unit": unit, "way": way, "elements": len(expected)},
                    "different": int((found.view(np.int64) != expected.view(np.int64)).sum()),
                }


# -- models -----------------------------------------------------------------------------------------------
class Octave:
    """Their models, run by GNU Octave."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.root, self.folder = root, folder
        for name, text in _LACKING.items():
            (folder / f"{name}.m").write_text(text)
        (folder / "run.m").write_text(_SCRIPT)

    def __call__(
        self, model: str, formats: list[str], a: np.ndarray, b: np.ndarray, c: np.ndarray
    ) -> np.ndarray:
        """Return an element of the result for each row."""
        given, made = (str(self.folder / name) for name in ("given.mat", "made.mat"))
        cell = np.array(formats, dtype=object).reshape(1, -1)
        savemat(given, {"a": a, "b": b, "c": c, "model": model, "formats": cell})
        command = [
            "octave-cli",
            "-q",
            str(self.folder / "run.m"),
            str(self.folder),
            str(self.root),
            given,
            made,
        ]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        if run.returncode:
            sys.exit(f"{model}, {', '.join(formats)}: {run.stderr.strip()[-400:]}")
        return np.asarray(loadmat(made)["d"][:, 0], np.float64)


def modelled(name: str, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Return dot products by a unit as they read it."""
    unit = mcf.get_unit(name)
    if unit.sums is UnitSums.ALIGNED:
        unit = replace(unit, least_exponent=least_published(unit))
    if not name.startswith("cdna1"):
        return np.asarray(mcf.dot(a, b, unit=unit, c=c), np.float64)
    for start in range(0, a.shape[1], unit.k):  # the exact sum of a group and C, rounded once
        group = slice(start, start + unit.k)
        left, right = np.column_stack([a[:, group], c]), np.column_stack([b[:, group], np.ones_like(c)])
        c = np.float64(mcf.dot(left, right, mcf.Accumulator("float32", block=None)))
    return c


def models(root: Path, rows: int) -> Iterator[dict[str, Any]]:
    """Yield how many results of a model differ from those of a unit that is read as they read it."""
    with tempfile.TemporaryDirectory() as folder:
        octave = Octave(root, Path(folder))
        for model, kinds in MODELS.items():
            for kind, name in kinds.items():
                outputs = ["binary32"]
                if kind in ("fp16", "binary16") and not model.startswith("MI"):
                    outputs.append("binary16")
                for output in outputs:
                    yield compared(
                        octave, model, kind, name + "_to_fp16" * (output == "binary16"), output, rows
                    )


def compared(octave: Octave, model: str, kind: str, name: str, output: str, rows: int) -> dict[str, Any]:
    """Return how many results differ, but for sums that overflow: models make numbers of them, too."""
    unit = mcf.get_unit(name)
    fmt = unit.input
    if kind.startswith("fp8"):
        fmt = mcf.get_format("float8_e4m3fn" if kind.endswith("e4m3") else "float8_e5m2")
    a, b, c = hostile(unit, (fmt, fmt), unit.k, rows, np.random.default_rng(3))
    formats = [output] if model == "V100TC" else [kind] if model.startswith("MI") else [kind, output]
    theirs = octave(model, formats, a, b, c)
    given = [x.astype(np.dtype(fmt.name)) for x in (a, b)] if kind.startswith("fp8") else [a, b]
    with np.errstate(all="ignore"):
        ours = modelled(name, *given, c)
        alone = modelled(name, *given, np.zeros_like(c))
        usual = np.asarray(mcf.dot(*given, unit=name, c=c), np.float64)
    over = np.isfinite(np.concatenate([a, b], axis=1)).all(axis=1)
    over &= ~np.isfinite(alone) | (np.isfinite(c) & ~np.isfinite(ours))
    same = (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))
    return {
        **{"model": model, "operands": kind, "unit": name, "rows": rows, "overflow": int(over.sum())},
        "different": int((~same & ~over).sum()),
        "by the unit's name": int(
            (~((usual == theirs) | (np.isnan(usual) & np.isnan(theirs))) & ~over).sum()
        ),
    }


def main() -> None:
    """Print what differs, in two tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path, help="a checkout of MATLAB-tensor-core")
    parser.add_argument("--rows", type=int, default=2000, help="operands for each model")
    given = parser.parse_args()
    made = {"results of GPUs": measured(given.path)}
    if shutil.which("octave-cli"):
        made["models"] = models(given.path, given.rows)
    else:
        print("octave-cli is not installed: models are left out", file=sys.stderr)
    for title, rows in made.items():
        found = list(rows)
        table = Table(*found[0], title=title)
        for row in found:
            table.add_row(*map(str, row.values()))
        Console(width=120).print(table)
        print(
            sum(row["different"] for row in found),
            "differ of",
            sum(row.get("elements", row.get("rows")) for row in found),
        )


if __name__ == "__main__":
    main()
