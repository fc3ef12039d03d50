"""How many instructions of a GPU an element takes, pipe by pipe, and what speed they allow: a forecast.

Counted is the machine code of a kernel, each instruction once. So what most elements leave out, as the care
for quotients near the ends of the range, makes the count too large. How many an SM carries out in a clock is
published. For the pipes that calculate it is in the table "Throughput of Native Arithmetic Instructions" of
NVIDIA's CUDA C++ Best Practices Guide. For loads, for the warps that issue, for the number of SMs and the
clock it is in the white papers on the architectures, "NVIDIA A100 Tensor Core GPU Architecture" and "NVIDIA
H100 Tensor Core GPU Architecture". Memory's share is that of copies that others measured on such cards.

Nothing here is measured. A kernel is at most as fast as its slowest pipe alone.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from experiments.machine_code.device_code import device_code
from mcfsim.compile.launch import ELEMENTS, WARPS
from mcfsim.compile.lowering import Lowered

#: The pipes, and the instructions that go there; the first that fits.
PIPES: Mapping[str, re.Pattern[str]] = {
    pipe: re.compile(names)
    for pipe, names in {
        "uniform": r"U[A-Z].*|R2UR|S2UR",
        "load and store": r"LD[A-Z]*|ST[A-Z]*",
        "control": r"BRA|EXIT|BSSY|BSYNC|CALL|RET|NOP|WARPSYNC|BREAK|YIELD|S2R|CS2R|DEPBAR",
        "binary64": r"D(?:ADD|MUL|FMA|SETP)",
        "binary32": r"F(?:ADD|MUL|FMA|CHK)",
        "bfloat16 and float16": r"H(?:ADD2|MUL2|FMA2)",
        "conversion": r"[FI]2[FI]P?|F2FP|FRND",
        "reciprocal and root": r"MUFU",
        "integer product": r"IMAD.*|IDP.*",
        "integer and comparison": r".*",
    }.items()
}

#: Instructions of each pipe that the threads of an SM complete in a clock, by compute capability. One on a
#: pair of numbers of 16 bits counts once, so its pipe has half of the results published. The figure for
#: conversions is that of binary32 to 16 bits; for two at once, as those counted are, none is published.
THROUGHPUT: Mapping[int, Mapping[str, int]] = {
    80: {
        "load and store": 32,
        "binary64": 32,
        "binary32": 64,
        "bfloat16 and float16": 64,
        "conversion": 16,
        "reciprocal and root": 16,
        "integer product": 64,
        "integer and comparison": 64,
        "issue": 128,
    },
    90: {
        "load and store": 32,
        "binary64": 64,
        "binary32": 128,
        "bfloat16 and float16": 128,
        "conversion": 16,
        "reciprocal and root": 16,
        "integer product": 64,
        "integer and comparison": 64,
        "issue": 128,
    },
}


class Device(NamedTuple):
    """A GPU.

    Attributes
    ----------
    capability : int
        Its compute capability, as `THROUGHPUT` has it.
    multiprocessors : int
    clock : float
        In hertz: the highest.
    copied : float
        Bytes a second that a copy reads and writes.
    """

    capability: int
    multiprocessors: int
    clock: float
    copied: float


DEVICES: Mapping[str, Device] = {
    "H100": Device(90, 132, 1.98e9, 3.0e12),
    "H200": Device(90, 132, 1.98e9, 4.3e12),
}


def by_pipe(source: str, lowered: Lowered, capability: int, *, elements: int = ELEMENTS) -> dict[str, float]:
    """Return the instructions that an element takes, by pipe.

    The pipe ``issue`` stands for all of them.

    Parameters
    ----------
    source, lowered, capability
        As of `experiments.machine_code.device_code.device_code`.
    elements : int, optional
        How many an instance has: what it does once is shared among them. By default as many as launched.

    Raises
    ------
    ImportError
        If Triton is not installed, or too old.
    """
    code = device_code(source, lowered, capability, elements=elements, aligned=True)
    found: Counter[str] = Counter()
    for name, count in code.instructions().items():
        if name != "NOP":  # which fill the end
            found[next(pipe for pipe, names in PIPES.items() if names.fullmatch(name))] += count
    each = elements / (32 * WARPS)
    counts = {pipe: found[pipe] / each for pipe in PIPES}
    return counts | {"issue": found.total() / each}


def limits(counts: Mapping[str, float], size: int, device: Device) -> dict[str, float]:
    """Return how many elements a second memory and each pipe that is used allow, by themselves.

    Parameters
    ----------
    counts : mapping of str to float
        The instructions that an element takes, see `by_pipe`.
    size : int
        The bytes that are read and written for an element.
    device : Device
    """
    clocks = device.multiprocessors * device.clock
    rates = THROUGHPUT[device.capability]
    allowed = {pipe: clocks * rate / counts[pipe] for pipe, rate in rates.items() if counts.get(pipe)}
    return {"memory": device.copied / size} | allowed
