"""The matrix instructions of the GPU that is there, each by itself, and operands that are hard for them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import ml_dtypes  # noqa: F401, which registers its dtypes
import numpy as np
import torch
import triton
import triton.language as tl

import mcfsim as mcf
from mcfsim.products import UNITS
from tests.products.units_by_definition import hostile

#: Architectures by what CUDA calls their capability.
GENERATIONS = {(7, 5): "turing", (8, 0): "ampere", (8, 9): "ada", (9, 0): "hopper", (10, 0): "blackwell"}
#: Rows, columns and warps of a tile: of 4 warps Hopper makes one instruction.
TILES = {"wgmma": (64, 64, 4), "mma.sync": (16, 16, 1)}
#: Kinds of units, after the name of the architecture.
KINDS = ("fp16", "fp16_to_fp16", "bf16", "tf32", "fp8", "fp8_to_fp16", "fp64")
#: Rows that are made anew; in more of them each meets others.
_ROWS = 1 << 13
_INSTRUCTION = re.compile(r"\b(?:wgmma\.mma_async|mma\.sync|tcgen05\.mma)[\w.]*")


@triton.jit
def _products(a, b, c, out, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, OUT: tl.constexpr):
    """Write ``c + a @ b`` of a stack of matrices, those of b by columns, a program for each."""
    place = tl.program_id(0).to(tl.int64)
    rows, columns = tl.arange(0, M)[:, None], tl.arange(0, N)[None, :]
    left = tl.load(a + (place * M + rows) * K + tl.arange(0, K)[None, :])
    right = tl.load(b + (place * N + columns) * K + tl.arange(0, K)[:, None])
    at = (place * M + rows) * N + columns
    tl.store(out + at, tl.dot(left, right, tl.load(c + at), input_precision="tf32", out_dtype=OUT))


@dataclass(frozen=True)
class TensorCore:
    """A matrix instruction of the GPU that is there.

    Parameters
    ----------
    unit : str
        Name of the unit that states it.
    way : {"wgmma", "mma.sync"}
        Instruction of a group of warps, or of a warp.
    formats : tuple of str
        Formats of both operands.
    """

    unit: str
    way: str
    formats: tuple[str, str]

    @property
    def length(self) -> int:
        """Products of an element: of one group, or of several where Triton takes no fewer."""
        return max(32 if self.formats[0].startswith("float8") else 16, mcf.get_unit(self.unit).k)

    @property
    def size(self) -> int:
        """Elements of a tile."""
        return TILES[self.way][0] * TILES[self.way][1]

    @property
    def stored(self) -> tuple[str, ...]:
        """The formats in which operands are stored: TF32's are numbers of binary32."""
        return tuple("float32" if fmt == "tf32" else fmt for fmt in self.formats)

    def run(self, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, set[str]]:
        """Return ``c + a b^T`` of stacks ``(n, M, k)`` and ``(n, N, k)``, and the instructions that ran."""
        left, right = (self.there(x, fmt) for x, fmt in zip((a, b), self.stored, strict=True))
        added = self.there(c, mcf.get_unit(self.unit).added.name)
        made = torch.empty_like(added)
        kinds = {torch.float16: tl.float16, torch.float32: tl.float32, torch.float64: tl.float64}
        code = _products[(len(a),)](
            left,
            right,
            added,
            made,
            *(a.shape[1], b.shape[1], a.shape[2], kinds[made.dtype]),
            num_warps=TILES[self.way][2],
        )
        return made.cpu().numpy(), set(_INSTRUCTION.findall(code.asm["ptx"]))

    @staticmethod
    def there(x: np.ndarray, fmt: str) -> torch.Tensor:
        """Return numbers of a format, which lose nothing, on the GPU; NaN has one code."""
        return torch.from_numpy(np.ascontiguousarray(x)).to("cuda", getattr(torch, fmt))

    def operands(self, stack: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return matrices: what is hard for a unit on the diagonals, and all other pairs of their rows."""
        unit, rng = mcf.get_unit(self.unit), np.random.default_rng(seed)
        m, n, _ = TILES[self.way]
        formats = tuple(map(mcf.get_format, self.stored))
        rows = min(_ROWS, stack * m)
        a, b, c = hostile(unit, formats, self.length, rows, rng)
        usual = rng.random(rows) < 0.3
        for x, fmt in ((a, formats[0]), (b, formats[1])):
            x[usual] = mcf.round_to(rng.standard_normal(x[usual].shape), fmt)
        places = np.append(np.arange(rows), rng.integers(rows, size=stack * m - rows))
        a, b, c = a[places], b[places], c[places]
        added = rng.choice(c, (stack, m, n))
        added[:, np.arange(m), np.arange(m)] = c.reshape(stack, m)
        return a.reshape(stack, m, -1), b.reshape(stack, m, -1), added

    def emulated(
        self, a: np.ndarray, b: np.ndarray, c: np.ndarray, unit: mcf.Unit | None = None
    ) -> np.ndarray:
        """Return the same products by the unit, or by another one."""
        left, right = self.typed(a, b)
        return np.asarray(mcf.matmul(left, right.swapaxes(-1, -2), unit=unit or self.unit, c=c))

    def typed(self, a: np.ndarray, b: np.ndarray) -> list[Any]:
        """Return operands in arrays whose dtypes say their formats."""
        with np.errstate(all="ignore"):
            return [x.astype(np.dtype(fmt)) for x, fmt in zip((a, b), self.stored, strict=True)]


def tensor_cores(generation: str) -> list[TensorCore]:
    """Return the instructions of an architecture whose units are known."""
    found = []
    for name in (f"{generation}_{kind}" for kind in KINDS):
        if name in UNITS:
            pairs = [(x.name, y.name) for x in UNITS[name].inputs[:2] for y in UNITS[name].inputs[:2]]
            found += [TensorCore(name, way, pair) for way in _ways(name) for pair in pairs]
    return found


def _ways(unit: str) -> list[str]:
    """Return the instructions that a unit states: a warp of Hopper has no fp8, its groups no float64."""
    generation, kind = unit.split("_", 1)
    if generation != "hopper":
        return ["mma.sync"]
    alone = {"fp64": "mma.sync", "fp8": "wgmma", "fp8_to_fp16": "wgmma"}.get(kind)
    return [alone] if alone else list(TILES)


def differ(x: np.ndarray, y: np.ndarray) -> int:
    """Return how many numbers differ in their bits, once both are of the wider type.

    The code of a NaN of binary64 does not count: units do not state it.
    """
    kind = np.promote_types(x.dtype, y.dtype)
    with np.errstate(all="ignore"):
        wide = [z.astype(kind) for z in (x, y)]
    wrong = np.not_equal(*(z.view(f"u{kind.itemsize}") for z in wide))
    return int((wrong & ~(np.isnan(wide[0]) & np.isnan(wide[1]) & (kind.itemsize == 8))).sum())
