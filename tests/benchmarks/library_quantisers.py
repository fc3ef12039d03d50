"""Quantisers beside those of libraries on many blocks, hostile ones among them: what differs, and why.

``python -m tests.benchmarks.library_quantisers --microxcaling PATH --transformer-engine PATH --deepgemm
PATH`` takes folders with the sources of programs that are not installed; torchao is imported. With
``TRITON_INTERPRET=1`` it also takes ``--quartet PATH --quartet-2 PATH``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from itertools import product
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from tests.pytorch import libraries
from tests.pytorch.libraries import Tally
from tests.scaled.hostile_blocks import hostile_rows, with_no_numbers

#: Rows and columns of an array that is quantised at once: whole tiles and blocks of every kind.
ROWS, COLUMNS = 256, 2048
TILES = ((1, 128), (128, 128))
Compare = Callable[..., None]


def torchao() -> Iterator[tuple[str, int, Compare]]:
    """Yield comparisons with torchao, and how many elements a block has."""
    for name, rule in product(libraries.MX_ELEMENTS, libraries.MX_RULES):
        yield f"torchao {name} {rule}", 32, partial(libraries.torchao_mx, name=name, rule=rule)
    for both in (True, False):
        named = "nvfp4 torchao" + ("" if both else ", no tensor scale")
        yield f"torchao {named}", 16, partial(libraries.torchao_nvfp4, two_scales=both)


def microxcaling(path: str) -> Iterator[tuple[str, int, Compare]]:
    """Yield comparisons with microxcaling."""
    sys.path.insert(0, path)
    for name in ("mxfp8_e4m3", "mxfp8_e5m2", "mxfp6_e3m2", "mxfp6_e2m3", "mxfp4"):
        yield f"microxcaling {name} floor", 32, partial(libraries.microxcaling, name=name)


def transformer_engine(path: str) -> Iterator[tuple[str, int, Compare]]:
    """Yield comparisons with the references of Transformer Engine."""
    nvfp4, fp8 = libraries.transformer_engine(path)
    for tile, mode in product(((1, 16), (16, 16)), (None, "MAE", "MSE")):
        rule = "transformer_engine" if mode is None else f"four_six_{mode.lower()}"
        yield (
            f"Transformer Engine nvfp4 {tile[0]}x{tile[1]} {rule}",
            16,
            partial(libraries.te_nvfp4, module=nvfp4, tile=tile, four_six=mode),
        )
    for tile, power in product(TILES, (True, False)):
        rule = "floor_power" if power else "current"
        yield (
            f"Transformer Engine e4m3 {tile[0]}x{tile[1]} {rule}",
            128,
            partial(libraries.te_fp8, module=fp8, tile=tile, power=power),
        )


def deepgemm(path: str) -> Iterator[tuple[str, int, Compare]]:
    """Yield comparisons with DeepGEMM's casts."""
    module = libraries.loaded("deep_gemm_math", f"{path}/deep_gemm/utils/math.py")
    for tile, power in product(TILES, (False, True)):
        rule = "deepseek_power" if power else "deepseek"
        yield (
            f"DeepGEMM e4m3 {tile[0]}x{tile[1]} {rule}",
            128,
            partial(libraries.deep_gemm, module=module, tile=tile, power=power),
        )


def quartet(path: str) -> Iterator[tuple[str, int, Compare]]:
    """Yield comparisons with Quartet's kernel, interpreted."""
    module = libraries.interpreted(f"{path}/src/models/quantization/quantizers/mxfp4_triton.py")
    for rule in ("quest", "quartet"):
        yield f"Quartet mxfp4 {rule}", 32, partial(libraries.quartet, module=module, quest=rule == "quest")


def quartet_2(path: str) -> Iterator[tuple[str, int, Compare]]:
    """Yield the comparison with Quartet II's kernel, interpreted."""
    parents = ["models", "models.quantization", "models.quantization.quantizers"]
    stubs = [*parents, "models.quantization.quantizers.nvfp4_triton"]
    module = libraries.interpreted(f"{path}/src/models/quantization/schemes/quartet_2.py", stubs)
    yield "Quartet II nvfp4 eden", 16, partial(libraries.quartet_2, module=module)


def arrays(name: str, size: int, blocks: int) -> Iterator[np.ndarray[Any, Any]]:
    """Yield arrays with at least so many blocks: hostile ones, rows of any size, some with no numbers."""
    at_once = ROWS * COLUMNS // size
    for seed in range(-(-blocks // at_once)):
        x = hostile_rows(ROWS, COLUMNS, size, seed)
        rng = np.random.default_rng(seed)
        if "nvfp4" not in name:
            # Numbers of all sizes, but for scales that tensors share, and a tenth at the lower end.
            low = rng.random((ROWS, 1)) < 0.1
            exponent = np.where(low, rng.integers(-135, -110, (ROWS, 1)), rng.integers(-90, 90, (ROWS, 1)))
            x = (x * np.float32(2.0) ** exponent.astype(np.float32)).astype(np.float32)
        # Some have one amax, which no number spoils for all blocks; and Quartet's kernels take numbers.
        alone = name.startswith(("Transformer Engine nvfp4", "Quartet")) or "128x128" in name
        yield with_no_numbers(x, seed) if seed % 8 == 7 and not alone else x


def main() -> None:
    """Run the comparisons that the arguments allow, and print the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=10**6, help="blocks of each comparison")
    for name in ("microxcaling", "transformer-engine", "deepgemm", "quartet", "quartet-2"):
        parser.add_argument(f"--{name}", help="folder with its sources")
    given = parser.parse_args()
    quartets = given.quartet or given.quartet_2
    found: list[tuple[str, int, Compare]] = [] if quartets or find_spec("torchao") is None else [*torchao()]
    for made, path in (
        (microxcaling, given.microxcaling),
        (transformer_engine, given.transformer_engine),
        (deepgemm, given.deepgemm),
        (quartet, given.quartet),
        (quartet_2, given.quartet_2),
    ):
        found += [*made(path)] if path else []
    table = Table("comparison", "blocks", "scales differ", "elements differ", "why", "unexplained")
    for name, size, compare in track(found, console=Console(stderr=True)):
        tally = Tally(name)
        for x in arrays(name, size, given.blocks):
            compare(x, tally=tally)
        why = "; ".join(f"{reason} {count}" for reason, count in tally.reasons.items() if count)
        row = name, tally.blocks, tally.scales, tally.elements, why, tally.unexplained
        table.add_row(*map(str, row))
    Console(width=200).print(table)


if __name__ == "__main__":
    main()
