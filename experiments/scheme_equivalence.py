"""Which ways to store a weight give the bits of binary32 master weights, from every bfloat16 start."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

import mcfsim as mcf
from experiments.common import read_result, resumed, write_result
from mcfsim.optim.strategies import FLOAT32, STRATEGIES, Stored, Strategy
from mcfsim.report.tables import markdown_table

STEPS = 10_000
#: Parts of the starts, each of which is a job.
PARTS = 8
#: Gradients are normal numbers times 2**-k of the weight that a run starts from, with k drawn evenly.
EXPONENTS = (2, 20)
#: Where a weight starts nearer to zero, gradients are sized as for this.
LEAST = 2.0**-120
REFERENCE = "fp32-master"
SCHEMES = {
    "split-truncated": "16 + 16 bits, cut off",
    "split-master": "16 + 16 bits, rounded, ties away",
    "remainder-16": "16 bits and a remainder of 16",
    "remainder-8": "16 bits and a remainder of 8",
    "mcf-3": "3 components",
    "collage-light": "2 components",
    "kahan": "Kahan",
    "eco": "error feedback",
    "plain": "nearest",
}


def scheme(name: str) -> Strategy:
    """Return a strategy whose moments are those of the reference: so the weights alone may differ."""
    wide = Stored(FLOAT32)
    return mcf.strategy(replace(STRATEGIES[name], m=wide, v=wide, beta2_components=1))


def starts(part: int) -> NDArray[np.float32]:
    """Return a part of all finite numbers of bfloat16."""
    codes = np.arange(1 << 16, dtype=np.uint32)[part::PARTS] << 16
    numbers = codes.view(np.float32)
    return numbers[np.isfinite(numbers)]


def gradients(part: int, step: int, size: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the gradients of a step, at a rate of 1."""
    rng = np.random.default_rng([part, step])
    scale = np.ldexp(np.float32(1), -rng.integers(*EXPONENTS, size.size, endpoint=True, dtype=np.int32))
    made: NDArray[np.float32] = rng.standard_normal(size.size, np.float32) * scale * size
    return made


class Watch:
    """The comparison of one scheme with the reference.

    Parameters
    ----------
    optimizer : Optimizer
    start : array
        What the weights began with.
    """

    def __init__(self, optimizer: mcf.Optimizer, start: NDArray[np.float32]) -> None:
        self.optimizer, self.start = optimizer, start
        self.apart = {"weight": np.zeros(start.size, np.int64), "seen": np.zeros(start.size, np.int64)}
        self.no_tie = 0

    def look(self, step: int, reference: mcf.Optimizer, there: NDArray[np.bool_]) -> None:
        """Compare after a step, where the reference's weights are finite."""
        master = reference.state.extra[0]
        whole = self.optimizer.represented()
        total = whole[0] if len(whole) == 1 else np.sum([x.astype(np.float64) for x in whole], axis=0)
        seen = self.optimizer.state.parameter[0] != reference.state.parameter[0]
        for key, apart in (("weight", total != master), ("seen", seen)):
            first = self.apart[key]
            first[there & apart & (first == 0)] = step
        tie = (master.view(np.uint32) & 0xFFFF) == 0x8000
        self.no_tie += int((there & seen & ~tie).sum())

    def result(self, there: NDArray[np.bool_]) -> dict[str, Any]:
        """Return how many starts came apart, and the first of them, of those that stayed finite."""
        found: dict[str, Any] = {"apart without a tie": self.no_tie}
        for key, first in self.apart.items():
            hit = there & (first > 0)
            found[key] = {"apart": int(hit.sum()), "step": None, "start": None}
            if hit.any():
                place = int(np.flatnonzero(hit)[np.argmin(first[hit])])
                found[key] |= {"step": int(first[place]), "start": float(self.start[place]).hex()}
        return found


def compared(part: int) -> dict[str, Any]:
    """Return the results of all schemes from a part of the starts."""
    start, hyper = starts(part), mcf.SGD(0.9)
    size = np.maximum(np.abs(start), np.float32(LEAST))
    reference, *others = (
        mcf.Optimizer(hyper, scheme(name), {"w": start}, steps=STEPS, compiled=True)
        for name in (REFERENCE, *SCHEMES)
    )
    watches = {name: Watch(other, start) for name, other in zip(SCHEMES, others, strict=True)}
    there = np.ones(start.size, np.bool_)
    with np.errstate(all="ignore"):
        for step in range(1, STEPS + 1):
            gradient = reference.receive({"w": gradients(part, step, size)})
            reference.advance(gradient, 1.0)
            there &= np.isfinite(reference.state.parameter[0])
            for watch in watches.values():
                watch.optimizer.advance(gradient, 1.0)
                watch.look(step, reference, there)
    return {
        "starts": int(there.sum()),
        "schemes": {name: watch.result(there) for name, watch in watches.items()},
    }


def joined(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the counts of all parts, and the first mismatch of each scheme."""
    found: dict[str, Any] = {}
    for name in SCHEMES:
        rows = [part["schemes"][name] for part in parts]
        found[name] = {"apart without a tie": sum(row["apart without a tie"] for row in rows)}
        for key in ("weight", "seen"):
            first = min((row[key] for row in rows if row[key]["step"]), key=lambda x: x["step"], default=None)
            found[name][key] = {
                "apart": sum(row[key]["apart"] for row in rows),
                "step": first and first["step"],
                "start": first and first["start"],
            }
    return {"starts": sum(part["starts"] for part in parts), "schemes": found}


def table() -> str:
    """Return the table of the result file."""
    result = read_result("scheme_equivalence")
    rows = []
    for name, found in result["schemes"].items():
        cells = {}
        for key, label in (("weight", "weight that is meant"), ("seen", "weight that the model sees")):
            apart, step = found[key]["apart"], found[key]["step"]
            start = found[key]["start"]
            cells[label] = (
                f"apart from {apart} starts; first in step {step}, from {float.fromhex(start):.6g}"
                if apart
                else "the same bits"
            )
        rows.append({"strategy": f"`{name}`", "kept": SCHEMES[name]} | cells)
    return markdown_table(rows)


def study() -> None:
    """Compare from all starts, and write the numbers."""
    parts = resumed("scheme_equivalence", compared, [(part,) for part in range(PARTS)])
    about = {"steps": STEPS, "patterns": sum(starts(part).size for part in range(PARTS))}
    write_result("scheme_equivalence", about | joined(parts))


if __name__ == "__main__":
    study()
