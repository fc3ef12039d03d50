"""Matrix units beside the GPU that is there: a million elements by each instruction, and products of PyTorch.

Operands are hard for units, or random. For PyTorch's products (cuBLAS) an order of the sums is looked for by
which a unit gives the same bits: parts of the contracted axis, and sums that begin again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import mcfsim as mcf
from mcfsim.products import UnitSums
from tests.benchmarks.timing import about
from tests.products.units_by_definition import least_published
from tests.pytorch.tensor_cores import GENERATIONS, TensorCore, differ, tensor_cores

#: Elements by each instruction.
ELEMENTS = 1 << 20
#: Products of an element of PyTorch's products, and rows and columns of their results.
LENGTHS, ROWS = (32, 128, 512, 2048), (64, 1024)
#: Products after which sums begin again, and parts of the contracted axis.
PROMOTED, PARTS = (None, 32, 64, 128, 256, 512), (1, 2, 4, 8, 16)
THREADS = os.cpu_count() or 1


def instructions(generation: str) -> Iterator[dict[str, Any]]:
    """Yield how many elements differ, an instruction each."""
    for core in tensor_cores(generation):
        stack = ELEMENTS // core.size
        given = core.operands(stack, 1)
        made, names = core.run(*given)
        unit = mcf.get_unit(core.unit)
        other = unit
        if unit.sums is UnitSums.ALIGNED:
            other = replace(unit, least_exponent=least_published(unit))
        wrong = wrong_by_other = 0
        for some in np.array_split(np.arange(stack), 8):
            part = [x[some] for x in given]
            wrong += differ(made[some], core.emulated(*part))
            wrong_by_other += differ(made[some], core.emulated(*part, other))
        yield {
            "unit": core.unit,
            "instruction": " ".join(sorted(names)),
            "elements": made.size,
            "NaN": int(np.isnan(made).sum()),
            "different": wrong,
            "by Khattak and Mikaitis": wrong_by_other,
        }


def called(core: TensorCore, a: torch.Tensor, b: torch.Tensor, *, fast: bool) -> torch.Tensor:
    """Return a product of PyTorch, accumulated in binary32."""
    if core.formats[0].startswith("float8"):
        one = torch.ones((), device=a.device)
        return torch._scaled_mm(
            a, b.T, scale_a=one, scale_b=one, out_dtype=torch.float32, use_fast_accum=fast
        )
    if a.itemsize == 2:
        return torch.mm(a, b.T, out_dtype=torch.float32)
    return a @ b.T


def products(generation: str) -> Iterator[dict[str, Any]]:
    """Yield what makes PyTorch's products, if it is found."""
    seen = set()
    for core in tensor_cores(generation):
        fp8 = core.formats[0].startswith("float8")
        if core.unit in seen or "to_fp16" in core.unit:
            continue
        seen.add(core.unit)
        for fast, rows, length in product((True, False) if fp8 else (False,), ROWS, LENGTHS):
            a, b, made = multiplied(core, fast, rows, length)
            yield {
                "unit": core.unit,
                "fast": fast if fp8 else None,
                "rows": rows,
                "length": length,
                **explained(core, a, b, made),
            }


def multiplied(
    core: TensorCore, fast: bool, rows: int, length: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the first 64 rows of two random matrices, and their part of the product that PyTorch makes.

    Numbers of binary32 are rounded to TF32 for a unit, as cuBLAS does by itself.
    """
    rng, fmt = np.random.default_rng(3), core.stored[0]
    a, b = (np.asarray(mcf.round_to(rng.standard_normal((rows, length)), fmt)) for _ in range(2))
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        given = [core.there(x.astype(np.float64), fmt) for x in (a, b)]
        made = called(core, given[0], given[1], fast=fast).cpu().numpy()
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False
    if fmt != core.formats[0]:
        a, b = (np.asarray(mcf.round_to(x, core.formats[0])) for x in (a, b))
    return a[:64], b[:64], made[:64, :64]


def explained(core: TensorCore, a: np.ndarray, b: np.ndarray, made: np.ndarray) -> dict[str, Any]:
    """Return by which order a unit gives the most equal elements, and how many differ."""
    unit = mcf.get_unit(core.unit)
    left, right = core.typed(a, b)
    best: dict[str, Any] = {"different": made.size + 1}
    for parts, promoted in product(PARTS, PROMOTED):
        if (promoted and (promoted % unit.k or promoted >= a.shape[1])) or parts > a.shape[1] // unit.k:
            continue
        if unit.output.precision > 24 and (promoted or parts > 1):
            continue
        found = mcf.matmul(left, right.T, unit=unit, promote_every=promoted, split_k=parts, threads=THREADS)
        wrong = differ(np.asarray(found), made)
        if wrong < best["different"]:
            best = {"different": wrong, "promote_every": promoted, "split_k": parts, "elements": made.size}
        if not wrong:
            break
    return best


def main() -> None:
    """Print two tables, of instructions and of products."""
    generation = GENERATIONS[torch.cuda.get_device_capability()]
    versions = about("torch", "triton")
    for title, made in (("instructions", instructions), ("products of PyTorch", products)):
        rows = list(made(generation))
        table = Table(*rows[0], title=f"{torch.cuda.get_device_name()}, {title}")
        for row in rows:
            table.add_row(*("" if x is None else str(x) for x in row.values()))
        Console(width=160).print(table)
    print(", ".join(f"{name} {versions[name]}" for name in ("torch", "triton")), "CUDA", torch.version.cuda)


if __name__ == "__main__":
    main()
