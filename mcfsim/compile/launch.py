"""Launching of lines of machine operations as Triton kernels, and trials of a device's instructions."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

from mcfsim.compile.lowering import Lowered, lower
from mcfsim.compile.program import Register
from mcfsim.compile.sources import imported
from mcfsim.compile.tracing import trace
from mcfsim.compile.triton_source import ALIGNMENT, check_gpu, kernel_source
from mcfsim.formats import get_format
from mcfsim.kernels.element.machine import F32, F64, TRUTH, Value
from mcfsim.random import RandomWords, counters, word_bits

if TYPE_CHECKING:
    import torch

    from mcfsim.kernels.torch_tensors import Tensors


# -- a device's instructions, tried -----------------------------------------------------------------------
#: Lower halves of binary32 numbers at and near the points where a rounding to 16 bits changes.
_LOWER = sorted(
    {0, 1, 0xFFFF}
    | {m * 2**k + d for k in range(12, 16) for m in (1, 3) for d in (-1, 0, 1) if m << k < 2**16}
)
#: Codes of bfloat16 without the sign: zero, small and large ones, and some near one with few and many bits.
_CODES = (
    *(0x0000, 0x0001, 0x0002, 0x0003, 0x0040, 0x007F, 0x0080, 0x0081, 0x00FF, 0x0100, 0x2000, 0x3B80, 0x3BFF),
    *(0x3C00, 0x3F00, 0x3F7F, 0x3F80, 0x3F81, 0x3F82, 0x3FC0, 0x3FFF, 0x4000, 0x4049, 0x40AB, 0x437F, 0x4380),
    *(0x5F80, 0x7E80, 0x7EFF, 0x7F00, 0x7F7E, 0x7F7F, 0x7F80, 0x7F81, 0x7FC0),
)
#: How many tuples of operands are made at once.
_BLOCK = 1 << 24


class InstructionError(RuntimeError):
    """A device's instruction gives another result than the element algorithm that it should replace."""


class InstructionTrial(NamedTuple):
    """A trial of one verb (machine operation): a program that does little more than this verb.

    Attributes
    ----------
    lowered : Lowered
        Takes one binary32 number, or one to three codes of 16 bits, and has one result.
    text, instruction : str
        The source of the kernel by the element algorithm, and by the verb.
    """

    lowered: Lowered
    text: str
    instruction: str

    @property
    def coded(self) -> bool:
        """Whether it takes codes."""
        return any(x in self.lowered.packed for x in self.lowered.operands)

    @property
    def tuples(self) -> int:
        """The number of operand tuples that are numbered; for three codes only a part of them."""
        return 1 << 16 if self.coded and len(self.lowered.operands) == 1 else 1 << 32

    def given(self, columns: Iterable[torch.Tensor]) -> list[torch.Tensor]:
        """Return operands with the given integers as codes, of 16 bits or else of 32."""
        import torch

        if self.coded:
            return [_as(torch.int16, column) for column in columns]
        return [_as(torch.int32, column).view(torch.float32) for column in columns]


@lru_cache(maxsize=1)
def trials() -> dict[str, InstructionTrial]:
    """Return a trial of each verb, by name."""
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


def check_instructions(device: torch.device) -> None:
    """Raise InstructionError unless a device's instructions agree with the algorithms on hard operands."""
    for verb, trial in trials().items():
        operands = _hard(trial, device)
        found = differing(trial, operands)
        if found.numel():
            place = int(found[0])
            given = ", ".join(_written(x[place]) for x in operands)
            raise InstructionError(f"{device}: its {verb} instruction differs from the algorithm at {given}")


def first_difference(verb: str, device: torch.device, start: int = 0, stop: int | None = None) -> int | None:
    """Return the first tuple of operands on which an instruction and the algorithm differ, or None.

    All 2^32 binary32 numbers are tried, all pairs of codes, or as many triples; all verbs together take a
    GPU some minutes.

    Parameters
    ----------
    verb : str
        One of `trials`.
    device : device
    start, stop : int, optional
        The first tuple tried and the one after the last, by number; by default all are tried.
    """
    trial = trials()[verb]
    stop = trial.tuples if stop is None else min(stop, trial.tuples)
    for first in range(start, stop, _BLOCK):
        found = differing(trial, numbered(trial, first, min(first + _BLOCK, stop), device))
        if found.numel():
            return first + int(found[0])
    return None


def numbered(trial: InstructionTrial, start: int, stop: int, device: torch.device) -> list[torch.Tensor]:
    """Return operands by number: a number's code, the codes of a pair, or a pair and a code made of it."""
    import torch

    number = torch.arange(start, stop, dtype=torch.int64, device=device)
    # The third code runs through all codes as the second does, in another order for each first one.
    parts = [number >> 16, number, (number >> 16) * 40503 + number * 48271 + 12345]
    return trial.given({1: parts[1:2], 2: parts[:2], 3: parts}[len(trial.lowered.operands)])


def differing(trial: InstructionTrial, operands: Tensors) -> torch.Tensor:
    """Return the places where the instruction and the algorithm give different results."""
    import torch

    (result,) = trial.lowered.results
    coded = result in trial.lowered.packed
    made, kind = [], torch.int16 if coded else torch.float32
    for source in (trial.text, trial.instruction):
        out = torch.empty(operands[0].numel(), dtype=kind, device=operands[0].device)
        Launcher(trial.lowered, (), source)(operands, [out])
        made.append(out)
    one, other = made
    if coded:
        return torch.nonzero(one != other).reshape(-1)
    same = (one.view(torch.int32) == other.view(torch.int32)) | ((one != one) & (other != other))
    return torch.nonzero(~same).reshape(-1)


def _hard(trial: InstructionTrial, device: torch.device) -> list[torch.Tensor]:
    """Return hard operands: all upper halves with hard lower halves, all codes, or tuples of hard codes."""
    import torch

    count = len(trial.lowered.operands)
    if not trial.coded:
        upper = torch.arange(2**16, dtype=torch.int64, device=device) << 16
        lower = torch.tensor(_LOWER, dtype=torch.int64, device=device)
        return trial.given([(upper[:, None] | lower).reshape(-1)])
    if count == 1:
        return numbered(trial, 0, trial.tuples, device)
    few = _CODES if count == 2 else _CODES[::2]
    tuples = list(product([sign | code for code in few for sign in (0, 0x8000)], repeat=count))
    return trial.given(torch.tensor(tuples, dtype=torch.int64, device=device).T)


def _as(dtype: torch.dtype, codes: torch.Tensor) -> torch.Tensor:
    """Return the lowest bits of integers as signed integers of a dtype, without overflow."""
    half = 1 << (8 * dtype.itemsize - 1)
    return (((codes + half) & (2 * half - 1)) - half).to(dtype).contiguous()


def _written(x: torch.Tensor) -> str:
    return f"{float(x)!r}" if x.is_floating_point() else f"code {int(x) & 0xFFFF:#06x}"


# -- launches ---------------------------------------------------------------------------------------------
#: Random words, by the sources of a program.
SourceWords = Mapping[int, RandomWords]
#: Options that keep the compiler from fusing operations and from flushing subnormal numbers.
EXACT = {"enable_fp_fusion": False, "enable_reflect_ftz": False}
#: Elements of an instance, and warps that share them; and elements at a time if Triton interprets.
ELEMENTS, WARPS, INTERPRETED = 1024, 4, 1 << 18


@dataclass(frozen=True)
class Ready:
    """A line bound to its real scalars, ready to run on tensors.

    Attributes
    ----------
    lowered : Lowered
        The operations on each element.
    """

    lowered: Lowered
    _numbers: tuple[float, ...]

    def checked(self, operands: Tensors, results: Tensors) -> list[torch.Tensor]:
        """Return vectors as the line takes them; raise if one has another dtype, size or device."""
        given, values = [*operands, *results], [*self.lowered.operands, *self.lowered.results]
        if len(given) != len(values):
            raise ValueError(f"the kernel takes {len(values)} vectors, not {len(given)}")
        return [self._checked(x, value, given[0]) for x, value in zip(given, values, strict=True)]

    def _checked(self, x: torch.Tensor, value: Value, first: torch.Tensor) -> torch.Tensor:
        import torch

        wanted = self.lowered.dtype(value)
        if x.ndim != 1 or not x.is_contiguous():
            raise ValueError(f"a kernel takes contiguous vectors, not a tensor of shape {tuple(x.shape)}")
        if x.numel() != first.numel() or x.device != first.device:
            raise ValueError(
                f"vectors have {first.numel()} elements on {first.device}, and {x.numel()} on {x.device}"
            )
        if value in self.lowered.packed:
            if x.element_size() != wanted.itemsize:
                raise TypeError(f"codes of {wanted.itemsize} bytes do not fit a tensor of {x.dtype}")
            return x.view({1: torch.int8, 2: torch.int16}[wanted.itemsize])
        if str(x.dtype) != f"torch.{wanted}":
            raise TypeError(f"the kernel takes a tensor of {wanted}, not of {x.dtype}")
        return x.view(torch.int8) if value.type is TRUTH else x

    def streams(self, words: SourceWords | None) -> list[RandomWords]:
        """Return the stream of each operation that draws; raise if words of a source are missing."""
        words = words or {}
        if missing := sorted({draw.source for draw in self.lowered.draws} - words.keys()):
            raise ValueError(f"the kernel draws random words: words must have those of source {missing[0]}")
        streams = [words[draw.source].of(draw.operation) for draw in self.lowered.draws]
        if len({(x.seed, x.step) for x in streams}) > 1:
            raise ValueError("all random words of a kernel are of one seed and step")
        return streams


@dataclass(frozen=True)
class Launcher(Ready):
    """A kernel bound to its real scalars.

    Attributes
    ----------
    source : str
        The source of the compiled module.
    by_hardware : str, optional
        The source that uses instructions of GPUs, for GPUs that have them.
    """

    source: str
    by_hardware: str | None = None

    def __call__(
        self, operands: Tensors, results: Tensors, start: int = 0, words: SourceWords | None = None
    ) -> bool:
        """Fill results from operands, contiguous vectors of one length on one device.

        Parameters
        ----------
        operands, results : sequence of tensor
            In the carriers; or codes, as tensors of any dtype of as many bytes; or tensors of bool for truth
            values that an epilogue makes. A result may be an operand.
        start : int, optional
            The index of the first element, used where random words are drawn.
        words : mapping of int to RandomWords, optional
            Those of each source of the program.

        Returns
        -------
        bool
            Whether all operands are values of their formats, if that is checked; else true.

        Raises
        ------
        TypeError, ValueError
            If a tensor has another dtype, size or device, or is not contiguous; if a source has no words,
            or words have several seeds; or if the tensors are on a CPU, and Triton does not interpret.
            Nothing is written then.

        Warns
        -----
        RuntimeWarning
            If the GPU's instructions are requested and give wrong results; the algorithm is used instead.
        """
        vectors = self.checked(operands, results)
        device, size = vectors[0].device, vectors[0].numel()
        streams = self.streams(words)
        elements = elements_on(device, size)
        for bits in self.lowered.draws.values():
            counters(start, size, word_bits(bits))  # raises where there are none
        if not size:
            return True
        text, shared = self.text_on(device), self.shared(device, streams)
        whole = size - size % ALIGNMENT  # vectors of this size are read and written many bytes at a time
        for part in (slice(0, whole), slice(whole, size)):
            if count := part.stop - part.start:
                given = (x[part] for x in vectors)
                launch(text, (-(-count // elements),), elements, *given, *shared, start + part.start, count)
        return not (self.lowered.strange is not None and bool(shared[0].item()))

    def text_on(self, device: torch.device) -> str:
        """Return the source for a device, with its instructions if they are requested and right."""
        if self.by_hardware is None or not _has_good_instructions(device):
            return self.source
        return self.by_hardware

    def shared(self, device: torch.device, streams: Sequence[RandomWords]) -> list[torch.Tensor]:
        """Return what all elements share, in device memory: the check's result, numbers, key, and tables."""
        import torch

        from mcfsim.compile.torch_calls import table_on

        shared = []
        if self.lowered.strange is not None:
            shared.append(torch.zeros(1, dtype=torch.int32, device=device))
        for kind, dtype in ((F32, torch.float32), (F64, torch.float64)):
            pairs = zip(self.lowered.numbers, self._numbers, strict=True)
            if numbers := [number for value, number in pairs if value.type is kind]:
                shared.append(sent(torch.tensor(numbers, dtype=dtype, device="cpu"), device))
        if streams:
            key = [*streams[0].key, streams[0].step, *(x.place for x in streams)]
            shared.append(sent(torch.tensor(key, dtype=torch.int64, device="cpu"), device))
        return [*shared, *(table_on(table, device) for table in self.lowered.tables)]


@lru_cache(maxsize=64)
def _has_good_instructions(device: torch.device) -> bool:
    """Return whether a device has the instructions, and they give the right results on hard operands."""
    try:
        check_gpu(device)
    except ValueError:
        return False
    try:
        check_instructions(device)
    except InstructionError as error:  # other errors have nothing to do with instructions
        warnings.warn(f"{error}; kernels on it do not use such instructions", RuntimeWarning, stacklevel=4)
        return False
    return True


def elements_on(device: torch.device, largest: int, usual: int = ELEMENTS) -> int:
    """Return how many elements an instance processes on a device, for vectors of at most `largest` elements.

    On a GPU it is the usual number.

    Raises
    ------
    ValueError
        If the device is a CPU, and Triton does not interpret.
    """
    if device.type != "cpu":
        return usual
    if not interprets():
        raise ValueError(
            "kernels take tensors of a GPU; on a CPU Triton interprets them if TRITON_INTERPRET=1"
        )
    return min(INTERPRETED, 1 << max(largest - 1, 0).bit_length())


def sent(x: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a CPU tensor on a device; copying it to a GPU is asynchronous."""
    if device.type != "cuda":
        return x.to(device)
    return x.pin_memory().to(device, non_blocking=True)


def launch(text: str, grid: tuple[int, ...], elements: int, *given: Any, **fixed: Any) -> None:
    """Launch the kernel of a source on the device of its first argument, a tensor.

    Each instance processes `elements` elements. The grid says how many instances there are.
    """
    import torch

    kernel = function(text, interpreted=given[0].device.type == "cpu")
    with torch.cuda.device_of(given[0]):  # where Triton launches; on a CPU it does nothing
        kernel[grid](*given, ELEMENTS=elements, num_warps=WARPS, **EXACT, **fixed)


@lru_cache(maxsize=256)
def function(text: str, *, interpreted: bool) -> Any:
    """Return the kernel of a generated module, interpreted by NumPy or not, as Triton is set now."""
    return imported(text).kernel


def interprets() -> bool:
    """Return whether Triton interprets kernels by NumPy, as it does if TRITON_INTERPRET is set."""
    return os.environ.get("TRITON_INTERPRET", "0") not in ("", "0")
