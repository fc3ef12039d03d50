"""Lines as PyTorch operations on tensors of any device: one per verb, in the order of the line.

A line is a straight line of machine operations on one element, a verb one such operation. Not every PyTorch
form of an operation rounds it once. Sums with a factor (``alpha``, ``addcmul``, ``lerp``) are contracted. On
CUDA devices a quotient by a Python number is a product with its reciprocal. Casts of binary64 to 16 bits go
by way of binary32. Roots of CPU tensors may be MKL's, which miss the last bit. So each verb is the plain
function of tensors of one dtype, constants are tensors of no dimensions on the device, only the cast of
binary64 to binary32 rounds, and NumPy computes the roots of CPU tensors.

The code of a NaN result is unspecified: lines are lowered with ``clean=False``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from mcfsim.compile.sources import CASTS
from mcfsim.kernels.element.machine import DTYPES as NUMPY
from mcfsim.kernels.element.machine import F32, F64, I64, Type, Value, recorded
from mcfsim.kernels.element.philox import philox_element
from mcfsim.kernels.elementary import table_of
from mcfsim.kernels.torch_tensors import Tensors
from mcfsim.random import RandomWords, counters, word_bits

DTYPES: Mapping[Type, torch.dtype] = {kind: getattr(torch, dtype.name) for kind, dtype in NUMPY.items()}


def root(x: torch.Tensor) -> torch.Tensor:
    """Return square roots, rounded once."""
    if x.device.type != "cpu":
        return torch.sqrt(x)
    with np.errstate(invalid="ignore"):
        return torch.from_numpy(np.asarray(np.sqrt(x.numpy())))


_FUNCTIONS: Mapping[str, Callable[..., torch.Tensor]] = {
    **{"add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div, "sqrt": root},
    **{"neg": torch.neg, "abs": torch.abs, "lt": torch.lt, "le": torch.le, "eq": torch.eq},
    **{"and": torch.bitwise_and, "or": torch.bitwise_or, "xor": torch.bitwise_xor},
    **{"not": torch.bitwise_not, "select": torch.where},
    **{"shl": torch.bitwise_left_shift, "sar": torch.bitwise_right_shift},
}
_VIEWS = ("bits", "number")


class TorchCalls:
    """A line as calls of PyTorch's functions; each value is freed after the last verb that takes it.

    Parameters
    ----------
    results : sequence of Value
        The values to compute.
    given : sequence of Value
        The inputs of the line from which to compute them.

    Raises
    ------
    ValueError
        If a result needs an input that is not given.
    """

    def __init__(self, results: Sequence[Value], given: Sequence[Value]) -> None:
        self._given = [x.number for x in given]
        self._results = [x.number for x in results]
        self._constants: list[Value] = []
        needed = list(results[0].line.needed(tuple(results))) if results else []
        steps: list[Value] = []
        for value in needed:
            if value.verb == "constant":
                self._constants.append(value)
            elif value.verb != "input":
                steps.append(value)
            elif value.number not in self._given:
                raise ValueError(f"the line needs its input {value.constant}, which is not given")
        last = {x.number: place for place, value in enumerate(steps) for x in value.operands}
        last |= dict.fromkeys([*self._results, *(x.number for x in self._constants)], len(steps))
        self._steps: list[tuple[Callable[..., torch.Tensor], int, list[int], list[int]]] = []
        for place, value in enumerate(steps):
            taken = [x.number for x in value.operands]
            done = [x for x in dict.fromkeys(taken) if last[x] == place]
            self._steps.append((_function(value), value.number, taken, done))

    def __call__(self, given: Tensors) -> list[torch.Tensor]:
        """Return the results for tensors of the inputs' dtypes, on one device, that broadcast.

        A result may be an operand itself or a constant; its shape is that of the operands it depends on.
        """
        device = given[0].device
        known = dict(zip(self._given, given, strict=True))
        for value in self._constants:
            known[value.number] = constant(value.constant, value.type, device)
        for function, number, taken, done in self._steps:
            known[number] = function(*[known[x] for x in taken])
            for x in done:
                del known[x]
        return [known[number] for number in self._results]


def constant(number: Any, kind: Type, device: torch.device) -> torch.Tensor:
    """Return a number as a tensor of no dimensions, made once per device."""
    return _constant(repr(number), kind, device)  # by repr, as zeros of either sign differ there


@lru_cache(maxsize=4096)
def _constant(number: str, kind: Type, device: torch.device) -> torch.Tensor:
    return scalar(float(number) if kind.is_float else int(number), kind, device)


def scalar(number: float, kind: Type, device: torch.device) -> torch.Tensor:
    """Return a number of a type as a tensor of no dimensions, without a copy from the host."""
    return torch.full((), number, dtype=DTYPES[kind], device=device)


@lru_cache(maxsize=128)
def table_on(key: str, device: torch.device) -> torch.Tensor:
    """Return a table on a device, copied there once (`mcfsim.kernels.elementary.table_key`)."""
    return torch.from_numpy(table_of(key).copy()).to(device)


def _function(value: Value) -> Callable[..., torch.Tensor]:
    """Return the function that computes a value from its operands."""
    if value.verb == "look_up":
        return lambda x, key=str(value.constant): table_on(key, x.device)[x.long()]
    if value.verb in _VIEWS:
        return lambda x, dtype=DTYPES[value.type]: x.view(dtype)
    if value.verb in CASTS:
        return lambda x, dtype=DTYPES[value.type]: x.to(dtype)
    if value.verb == "shr":
        return _shifted(value.operands[1], value.type)
    return _FUNCTIONS[value.verb]


def _shifted(count: Value, kind: Type) -> Callable[..., torch.Tensor]:
    """Return a right shift that fills with zeros: PyTorch has none, because it has no unsigned integers."""
    if isinstance(count.constant, int):
        kept = (1 << (kind.bits - count.constant)) - 1 if count.constant else -1

        def shift(x: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
            return torch.bitwise_and(torch.bitwise_right_shift(x, by), constant(kept, kind, x.device))

        return shift

    def shift_by_any(x: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
        one, ones, top = (constant(number, kind, x.device) for number in (1, -1, kind.bits - 1))
        # In two steps, because no shift may be by all bits.
        lost = torch.bitwise_left_shift(torch.bitwise_left_shift(ones, torch.sub(top, by)), one)
        return torch.bitwise_and(torch.bitwise_right_shift(x, by), torch.bitwise_not(lost))

    return shift_by_any


@lru_cache(maxsize=1)
def _philox() -> TorchCalls:
    names = ("index", "seed_low", "seed_high", "step", "place")
    line, results = recorded(philox_element, **dict.fromkeys(names, I64))
    return TorchCalls(results, [value for value in line.values if value.verb == "input"])


def drawn(words: RandomWords, start: int, count: int, bits: int, device: torch.device) -> torch.Tensor:
    """Return the words of a range of indices, as `RandomWords.draws` does, drawn on a device.

    Returns
    -------
    tensor of int64
        The shortest words that have at least `bits` bits, all nonnegative.
    """
    size = word_bits(bits)
    these, wanted = counters(start, count, size)
    index = torch.arange(these.start, these.stop, dtype=torch.int64, device=device)
    key = (scalar(number, I64, device) for number in (*words.key, words.step, words.place))
    four = torch.stack(_philox()([index, *key]), dim=1).reshape(-1)
    # In memory the lower half of a word comes first.
    short = four.view(torch.int16)[wanted] if size == 16 else four[wanted]
    return torch.bitwise_and(short.to(torch.int64), constant(2**size - 1, I64, device))


#: Operands that reveal quotients computed as products with reciprocals, roots that miss the last bit, and
#: flushed subnormal numbers.
_HARD = (169.0, 13.0, 4.6875, 0.9375, 2.0**-120, 1.5 * 2.0**-126, 1.75 * 2.0**-140, *map(float, range(3, 40)))


@lru_cache(maxsize=64)
def check_machine(device: torch.device) -> None:
    """Raise RuntimeError unless a device computes some hard cases as the processor does, correctly rounded.

    The cases reveal errors that are known from other devices. A device that passes is not tried again.
    """
    for kind in (F32, F64):
        dtype = DTYPES[kind]
        numbers = torch.tensor(_HARD, dtype=dtype, device="cpu")
        column, row = numbers[:, None], numbers.numpy()
        there = {"column": column.to(device), "row": numbers.to(device)}
        functions = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}
        for verb, function in functions.items():
            found = _FUNCTIONS[verb](there["column"], there["row"]).cpu().numpy()
            with np.errstate(over="ignore"):
                expected = function(column.numpy(), row)
            if not np.array_equal(found, expected):
                raise RuntimeError(f"its {verb} of {dtype} is not correctly rounded")
        if not np.array_equal(root(there["row"]).cpu().numpy(), np.sqrt(row)):
            raise RuntimeError(f"its sqrt of {dtype} is not correctly rounded")
    quotients = torch.from_numpy(expected)
    with np.errstate(over="ignore"):
        expected = expected.astype(np.float32)
    if not np.array_equal(quotients.to(device).to(torch.float32).cpu().numpy(), expected):
        raise RuntimeError("its cast of float64 to float32 is not correctly rounded")
