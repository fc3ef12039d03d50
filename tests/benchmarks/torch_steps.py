"""Steps on the tensors of a PyTorch model, on the CPU: ours under each strategy beside `torch.optim.AdamW`.

Beside optimi's AdamW with Kahan summation, too, where that is installed.

This measures and tests nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import mcfsim as mcf
from experiments.common import write_result
from mcfsim.torch import Adafactor, AdamW, AMSGrad, Muon, TorchAdamW, TorchMuon, watch
from tests.benchmarks import timing
from tests.benchmarks.timing import about, installed, median_and_least, median_seconds

#: Parameters in all, in tensors of a layer's size.
PARAMETERS, LARGEST = 1 << 22, 1 << 20
#: Of torch's own: what a row is called, and its arguments.
PEERS: dict[str, dict[str, bool]] = {"for-loop": {"foreach": False, "fused": False}}
PEERS |= {"foreach": {"foreach": True}, "fused": {"fused": True}}


def parameters(count: int, dtype: torch.dtype) -> list[torch.nn.Parameter]:
    """Return tensors with gradients."""
    generator = torch.Generator().manual_seed(0)
    made = []
    for first in range(0, count, LARGEST):
        size = min(LARGEST, count - first)
        made.append(torch.nn.Parameter((0.02 * torch.randn(size, generator=generator)).to(dtype)))
        made[-1].grad = (1e-3 * torch.randn(size, generator=generator)).to(dtype)
    return made


def kinds() -> Iterator[tuple[str, str, int | float, torch.dtype, Callable[[Any], Any]]]:
    """Yield what is measured: whose it is, its name, bytes a parameter, dtype, how the optimizer is made."""
    for name, options in PEERS.items():
        for dtype, stored in ((torch.float32, 16), (torch.bfloat16, 8)):
            made = partial(torch.optim.AdamW, **options)
            yield "torch", f"{name}, {stored // 4 * 8} bits", stored, dtype, made
    if (optimi := installed("optimi")) is not None:
        kahan = partial(optimi.AdamW, lr=1e-3, kahan_sum=True)
        yield "optimi", "Kahan, 16 bits", 10, torch.bfloat16, kahan
    for strategy in (*mcf.STRATEGIES, "kahan+int8", "collage-light+fp8", "dqt-ternary", "dqt-int8", "bitnet"):
        chosen = mcf.strategy(strategy)
        if strategy != "exact":
            stored = chosen.bytes_per_parameter
            assert stored is not None
            assert chosen.parameter.format is not None
            dtype = getattr(torch, chosen.parameter.format.name)
            yield "mcfsim", strategy, stored, dtype, partial(AdamW, strategy=strategy)
    yield "mcfsim", "fp32, TorchAdamW", 16, torch.float32, partial(TorchAdamW, strategy="fp32")


#: Of matrices: sides, whose, name, dtype, and how the optimizer is made.
LOW = torch.bfloat16
MATRICES: list[tuple[int, str, str, torch.dtype, Callable[[Any], Any]]] = [
    (2048, "torch", "Adafactor", LOW, partial(torch.optim.Adafactor, foreach=False)),
    *((2048, "mcfsim", f"Adafactor, {x}", LOW, partial(Adafactor, strategy=x)) for x in ("plain", "kahan")),
    (2048, "torch", "AdamW, amsgrad", LOW, partial(torch.optim.AdamW, amsgrad=True, foreach=False)),
    (2048, "mcfsim", "AMSGrad, plain", LOW, partial(AMSGrad, strategy="plain")),
    (512, "torch", "Muon", LOW, torch.optim.Muon),
    *((512, "mcfsim", f"Muon, {x}", LOW, partial(Muon, strategy=x)) for x in ("plain", "kahan+int8")),
    (128, "torch", "Muon", LOW, torch.optim.Muon),
    (128, "mcfsim", "TorchMuon, plain", LOW, partial(TorchMuon, strategy="plain")),
]


def matrices() -> list[dict[str, Any]]:
    """Return the times of steps of one square matrix, on one thread."""
    torch.set_num_threads(1)
    rows = []
    for side, whose, name, dtype, made in MATRICES:
        generator = torch.Generator().manual_seed(0)
        weight = torch.nn.Parameter((0.02 * torch.randn(side, side, generator=generator)).to(dtype))
        weight.grad = (1e-3 * torch.randn(side, side, generator=generator)).to(dtype)
        optimizer = made([weight])
        optimizer.step()
        ns = 1e9 * median_seconds(optimizer.step) / side**2
        rows.append({"side": side, "whose": whose, "name": name, "ns": ns})
    return rows


def main() -> None:
    parser, rows = timing.parser(__doc__), list[dict[str, Any]]()
    parser.add_argument("--parameters", type=float, default=PARAMETERS)
    given = parser.parse_args()
    table = Table("whose", "which", "bytes", "threads", "ns a parameter", "least", "watched")
    count = int(given.parameters)
    for whose, name, stored, dtype, made in kinds():
        for threads in given.threads:
            torch.set_num_threads(threads)
            optimizer = made(parameters(count, dtype))
            optimizer.step()  # which may compile for long
            ns, least = (1e9 * seconds / count for seconds in median_and_least(optimizer.step))
            row = {"whose": whose, "name": name, "bytes": stored, "threads": threads}
            row |= {"ns": ns, "least": least}
            if whose == "mcfsim" and threads == 1:
                watch(optimizer, 1)
                row["watched"] = 1e9 * median_seconds(optimizer.step) / count
            rows.append(row)
            looked = f"{row['watched']:.1f}" if "watched" in row else ""
            table.add_row(whose, name, str(stored), str(threads), f"{ns:.2f}", f"{least:.2f}", looked)
    Console().print(table)
    of_matrices = matrices()
    Console().print(of_matrices)
    if given.write:
        versions = about("torch", "llvmlite")
        found = {"parameters": count, "steps": rows, "matrices": of_matrices}
        write_result("torch_steps", {"versions": versions, **found})


if __name__ == "__main__":
    main()
