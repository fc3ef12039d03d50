"""Whether a device's instructions make what the texts say, tried on the device: hard operands, or all.

A program for each verb of `mcfsim.compile.hardware` is carried out both ways, by the instruction and by the
text, from the same operands; codes must be the same, and numbers, of which two NaN are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

from mcfsim.compile.lowering import Lowered, lower
from mcfsim.compile.program import Register
from mcfsim.compile.tracing import trace
from mcfsim.compile.triton_source import kernel_source
from mcfsim.formats import get_format

if TYPE_CHECKING:
    import torch

#: Makes of a source, its line and its numbers what fills results from operands (`mcfsim.compile.launch`).
Launch = Callable[[str, Lowered, tuple[float, ...]], Callable[..., Any]]

#: Lower halves of binary32 numbers near which a rounding to 16 bits turns.
_LOWER = sorted(
    {0, 1, 0xFFFF}
    | {m * 2**k + d for k in range(12, 16) for m in (1, 3) for d in (-1, 0, 1) if m << k < 2**16}
)
#: Codes of bfloat16 but for the sign: zero, small and large ones, and some with few and many bits near one.
_CODES = (
    *(0x0000, 0x0001, 0x0002, 0x0003, 0x0040, 0x007F, 0x0080, 0x0081, 0x00FF, 0x0100, 0x2000, 0x3B80, 0x3BFF),
    *(0x3C00, 0x3F00, 0x3F7F, 0x3F80, 0x3F81, 0x3F82, 0x3FC0, 0x3FFF, 0x4000, 0x4049, 0x40AB, 0x437F, 0x4380),
    *(0x5F80, 0x7E80, 0x7EFF, 0x7F00, 0x7F7E, 0x7F7F, 0x7F80, 0x7F81, 0x7FC0),
)
#: Tuples of operands that are made at once.
_BLOCK = 1 << 24


class InstructionError(RuntimeError):
    """A device's instruction makes something else than the text that it is to stand in for."""


class InstructionTrial(NamedTuple):
    """A program that is little more than one verb.

    Attributes
    ----------
    lowered : Lowered
        Of one number of binary32, or of one to three codes of 16 bits, with one result.
    text, instruction : str
        The kernel by the element's text, and by the verb.
    """

    lowered: Lowered
    text: str
    instruction: str

    @property
    def tuples(self) -> int:
        """How many tuples of operands are numbered; of three codes only a part."""
        coded = len(self.lowered.packed) - (self.lowered.results[0] in self.lowered.packed)
        return 1 << 16 if coded == 1 else 1 << 32


@lru_cache(maxsize=1)
def trials() -> dict[str, InstructionTrial]:
    """Return a trial of each verb, by its name."""
    wide = (Register("x", get_format("float32")),)
    halves = (Register("x", get_format("float16")),)
    programs = {
        "round_bfloat16": trace(lambda ar, x: ar.round(x), "bfloat16", operands=wide),
        "add_bfloat16": trace(lambda ar, a, b: ar.add(a, b), "bfloat16"),
        "sub_bfloat16": trace(lambda ar, a, b: ar.sub(a, b), "bfloat16"),
        "mul_bfloat16": trace(lambda ar, a, b: ar.mul(a, b), "bfloat16"),
        "fma_bfloat16": trace(lambda ar, a, b, c: ar.fma(a, b, c), "bfloat16"),
        "round_float16": trace(lambda ar, x: ar.round(x), "float16", operands=wide),
        "encode_float16": trace(lambda ar, a: ar.neg(a), "float16"),
        "decode_float16": trace(lambda ar, x: ar.round(x), "float32", operands=halves),
    }
    made = {}
    for verb, program in programs.items():
        lowered = lower(program, (), packed=True, clean=False)
        sources = [kernel_source(lowered, f"{verb}, tried.", hardware=asked) for asked in (False, True)]
        made[verb] = InstructionTrial(lowered, *sources)
    return made


def check_instructions(device: torch.device, launch: Launch) -> None:
    """Raise InstructionError unless a device's instructions make of hard operands what the texts do.

    Parameters
    ----------
    device : device
    launch : callable
        `mcfsim.compile.launch.Launcher`.
    """
    for verb, trial in trials().items():
        operands = _hard(trial, device)
        found = differing(trial, operands, launch)
        if found.numel():
            place = int(found[0])
            given = ", ".join(_written(x[place]) for x in operands)
            raise InstructionError(f"{device}: its instruction for {verb} differs from the text at {given}")


def first_difference(
    verb: str, device: torch.device, launch: Launch, start: int = 0, stop: int | None = None
) -> int | None:
    """Return the first tuple of operands for which an instruction and the text differ, or None.

    All 2^32 numbers of binary32 are tried, all pairs of codes, or as many triples; some minutes of a GPU for
    all verbs.

    Parameters
    ----------
    verb : str
        One of `trials`.
    device : device
    launch : callable
        `mcfsim.compile.launch.Launcher`.
    start, stop : int, optional
        The first tuple tried and the one after the last, by number; by default all are.
    """
    trial = trials()[verb]
    stop = trial.tuples if stop is None else min(stop, trial.tuples)
    for first in range(start, stop, _BLOCK):
        found = differing(trial, numbered(trial, first, min(first + _BLOCK, stop), device), launch)
        if found.numel():
            return first + int(found[0])
    return None


def numbered(trial: InstructionTrial, start: int, stop: int, device: torch.device) -> list[torch.Tensor]:
    """Return operands by number: a number's code, the codes of a pair, or those and a third made of them."""
    import torch

    number = torch.arange(start, stop, dtype=torch.int64, device=device)
    if not any(x in trial.lowered.packed for x in trial.lowered.operands):
        return [_as(torch.int32, number).view(torch.float32)]
    # The third walks through all codes as the second does, another way for each first.
    parts = [number >> 16, number, (number >> 16) * 40503 + number * 48271 + 12345]
    used = {1: parts[1:2], 2: parts[:2], 3: parts}[len(trial.lowered.operands)]
    return [_as(torch.int16, part) for part in used]


def differing(trial: InstructionTrial, operands: Sequence[torch.Tensor], launch: Launch) -> torch.Tensor:
    """Return the places at which a program gives another result by the instruction than by the text."""
    import torch

    (result,) = trial.lowered.results
    coded = result in trial.lowered.packed
    made = []
    for source in (trial.text, trial.instruction):
        out = torch.empty(
            operands[0].numel(), dtype=torch.int16 if coded else torch.float32, device=operands[0].device
        )
        launch(source, trial.lowered, ())(operands, [out])
        made.append(out)
    one, other = made
    if coded:
        return torch.nonzero(one != other).reshape(-1)
    same = (one.view(torch.int32) == other.view(torch.int32)) | ((one != one) & (other != other))
    return torch.nonzero(~same).reshape(-1)


def _hard(trial: InstructionTrial, device: torch.device) -> list[torch.Tensor]:
    """Return hard operands: all upper halves with hard lower ones, all codes, or tuples of hard codes."""
    import torch

    operands = trial.lowered.operands
    if not any(x in trial.lowered.packed for x in operands):
        upper = torch.arange(2**16, dtype=torch.int64, device=device) << 16
        lower = torch.tensor(_LOWER, dtype=torch.int64, device=device)
        return [_as(torch.int32, (upper[:, None] | lower).reshape(-1)).view(torch.float32)]
    if len(operands) == 1:
        return numbered(trial, 0, trial.tuples, device)
    few = _CODES if len(operands) == 2 else _CODES[::2]
    tuples = list(product([sign | code for code in few for sign in (0, 0x8000)], repeat=len(operands)))
    columns = torch.tensor(tuples, dtype=torch.int64, device=device).T
    return [_as(torch.int16, column) for column in columns]


def _as(dtype: torch.dtype, codes: torch.Tensor) -> torch.Tensor:
    """Return the lowest bits of integers as integers with a sign, without leaving their range."""
    half = 1 << (8 * dtype.itemsize - 1)
    return (((codes + half) & (2 * half - 1)) - half).to(dtype).contiguous()


def _written(x: torch.Tensor) -> str:
    return f"{float(x)!r}" if x.is_floating_point() else f"code {int(x) & 0xFFFF:#06x}"
