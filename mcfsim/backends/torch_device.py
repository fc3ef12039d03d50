"""The emulator on PyTorch tensors of any device, which runs the elementwise algorithm itself."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch

from mcfsim.backends.numpy import OPERATIONS, NumpyArithmetic, broadcast
from mcfsim.checks import check_processor
from mcfsim.compile.device_rounding import round_there
from mcfsim.compile.lowering import type_of
from mcfsim.compile.program import CacheKey, flat, identity, mapped
from mcfsim.compile.torch_calls import DTYPES, check_machine
from mcfsim.compile.torch_kernels import chosen_way, kernel_of, serve
from mcfsim.compile.torch_loops import TensorWay, as_numbers, loop_of, taken, values_alone
from mcfsim.compile.tracing import ProgramRecording, Traced, record
from mcfsim.formats import Format
from mcfsim.kernels.real_numbers import Scalars, is_scalar
from mcfsim.kernels.torch_tensors import as_array, dense, device_of, no_device
from mcfsim.protocol import Value
from mcfsim.random import RandomWords
from mcfsim.rounding import Rounding


class DeviceArithmetic(NumpyArithmetic):
    """The operations of `NumpyArithmetic` on dense tensors of one device, computed on that device.

    Each algorithm given to `evaluate`, and each single operation, is lowered to one line. A kernel runs the
    line, or PyTorch does, with one PyTorch operation per verb. Operations on Python numbers alone run on the
    host.

    Parameters
    ----------
    fmt, rounding, scalars, random
        As for `NumpyArithmetic`.
    device : str or torch.device
        Device of operands and results; the CPU is a device like others.
    kernels : bool, optional
        Whether Triton kernels run lines, with the same bits. True: always. False: never. None: where the
        device is a GPU that Triton 3.6 or newer supports, and the kernel takes the operands. A kernel takes
        no 64-bit integers; if float32 is the carrier, no 32-bit integers and no float64 either. It takes no
        algorithm so long that compiling it would take minutes. On a CPU, kernels are interpreted if
        TRITON_INTERPRET=1 and `kernels` is True; this is for tests.

    Attributes
    ----------
    kernels : bool
        Whether kernels are tried.

    Raises
    ------
    TypeError
        If `kernels` is no bool; in operations, if `kernels` is True and a kernel does not take an operand.
    ImportError
        If `kernels` is True and Triton is not installed, or is older than 3.6.
    ValueError
        If PyTorch does not compute on the device, or `kernels` is True and Triton does not support it.
    UnsupportedFormatError
        If float64 does not hold the format; in operations, if there is no exact path in binary64, or binary64
        cannot take a real scalar exactly.
    """

    def __init__(
        self,
        fmt: Format,
        rounding: Rounding,
        *,
        device: str | torch.device,
        scalars: Scalars = "exact",
        random: RandomWords | None = None,
        kernels: bool | None = None,
    ) -> None:
        super().__init__(fmt, rounding, scalars=scalars, random=random)
        self.device = found_device(device)
        self.kernels = serve(self.device, kernels)
        self._how = kernels if self.kernels else False  # None: where they take the operands
        # Index of a block's first element, and whether elements are checked to be values.
        self._start, self._checked = 0, True

    def __repr__(self) -> str:
        where = f"device='{self.device}', kernels={self.kernels}"
        return super().__repr__().replace("Numpy", "Device", 1)[:-1] + f", {where})"

    def like(self, fmt: Format, rounding: Rounding) -> DeviceArithmetic:
        """Return the arithmetic of another format and rounding on the same device."""
        options: Any = {"scalars": self.scalars, "random": self.random, "kernels": self._how}
        other = DeviceArithmetic(fmt, rounding, device=self.device, **options)
        other._start, other._checked = self._start, self._checked
        return other

    def on_block(self, step: int, start: int) -> Any:
        """Return the operations on one contiguous block; no element is checked."""
        block = copy(self)
        block.random = None if self.random is None else replace(self.random, step=step)
        block._start, block._checked = start, False
        return block

    def round(self, x: Value) -> Value:
        """Return real numbers rounded to the format: scalars, or tensors of a floating or integer dtype."""
        if is_scalar(x):
            return super().round(x)
        x = self._tensor(x)
        check_processor()
        return round_there(x, self.format, self.rounding, self._streams(), self._start, self._how)

    def evaluate(self, function: Callable[..., Any], /, *operands: Any, **options: Any) -> Any:
        """Return ``function(arithmetic, *operands, **options)``, computed as one line.

        Parameters
        ----------
        function : callable
            A branch-free sequence of operations of the arithmetic that is its first argument.
        *operands : value or (nested) tuple of values
            The operands; the results are new tensors of the shape to which they broadcast.
        **options
            Passed to the function unchanged.

        Raises
        ------
        TypeError, ValueError
            If an operand is no tensor of the device, or has an element that is no value of the format; if the
            function is no straight line, draws for numbers alone, or has a second format that draws.
        UnsupportedFormatError
            If an operation has no exact path.
        """
        leaves = list(flat(operands))
        if all(map(is_scalar, leaves)):
            return super().evaluate(function, *operands, **options)
        check_processor()
        tensors = [self._tensor(x) for x in leaves if not is_scalar(x)]
        # PyTorch's function would import a computer algebra system.
        shape = torch.Size(broadcast([tuple(x.shape) for x in tensors]))
        recording = self._record(function, operands, options)
        streams, drawn = self._streams(), sum(recording.drawn)
        dtypes = tuple(x.dtype for x in tensors)

        def operations() -> TensorWay:
            return loop_of(values_alone(recording.program()), dtypes, self.scalars, checked=self._checked)

        def kernel() -> TensorWay:
            return kernel_of(recording, dtypes, self.scalars, checked=self._checked, long=bool(self._how))

        run = chosen_way(kernel, operations, self._how)
        results, strange = run(tensors, shape, taken(streams, drawn), self._start)
        if strange:
            self._refuse(tensors)
        inner = self.blocks.at(streams, 0)
        inner.operations = drawn
        rest = iter(results)

        def leave(x: Any) -> torch.Tensor:
            if isinstance(x, Traced):
                return next(rest)
            dtype = DTYPES[type_of(self.format)]
            return torch.full(shape, inner.settle(x), dtype=dtype, device=self.device)

        return mapped(leave, recording.results)

    def _record(
        self, function: Callable[..., Any], operands: Any, options: dict[str, Any]
    ) -> ProgramRecording:
        """Return the recorded operations of a function whose tensors are values of the format."""
        names = iter(f"x{place}" for place, _ in enumerate(flat(operands)))
        given = mapped(lambda x: x if is_scalar(x) else next(names), operands)
        if function in OPERATIONS.values():  # always the same operations
            key = function, mapped(lambda x: x if isinstance(x, str) else identity(x), given)
            return _recorded(CacheKey(key, given), self.format, self.rounding)
        return recorded(function, self.format, self.rounding, given, options)

    def _are_blocks(self, operands: tuple[Value, ...]) -> bool:
        return False  # NumPy's arrays are no operands here

    def _tensor(self, x: Any) -> torch.Tensor:
        """Return an operand without its graph; raise if it is no dense tensor of the device."""
        x = dense(x, self.device)
        as_numbers(x.new_empty(0))  # refuses other dtypes
        return x

    def _refuse(self, tensors: list[torch.Tensor]) -> None:
        """Raise a ValueError that names the first element that is no value of the format."""
        for x in tensors:
            self._taken_in(as_array(x.cpu()))
        raise ValueError(f"an operand has an element that is no value of {self.format}")


def recorded(
    function: Callable[..., Any], fmt: Format, rounding: Rounding, given: Any, options: dict[str, Any]
) -> ProgramRecording:
    """Return the recorded operations of a function on operands given as names and real scalars.

    Raises
    ------
    ValueError
        If a second format draws, or a result has another carrier.
    """
    recording = record(function, fmt, rounding, operands=given, options=options)
    if len(recording.drawn) > rounding.stochastic:
        raise ValueError("stochastic rounding of a second format needs random words of its own")
    for x in recording.outputs():
        if isinstance(x, Traced) and type_of(x.format) is not type_of(fmt):
            raise ValueError(f"a result is of {x.format}, whose carrier differs from that of {fmt}")
    return recording


@lru_cache(maxsize=512)
def _recorded(given: CacheKey, fmt: Format, rounding: Rounding) -> ProgramRecording:
    return recorded(given.key[0], fmt, rounding, given.item, {})


def found_device(device: str | torch.device) -> torch.device:
    """Return a device under the name that its tensors give it.

    Raises
    ------
    ValueError
        If there is no such device, or it does not compute as IEEE 754 requires.
    """
    found = device_of(device, torch.float64)
    try:
        check_machine(found)
    except RuntimeError as error:
        raise no_device(device, error) from error
    return found
