"""Algorithms and sums along a contracted axis as Triton kernels on PyTorch tensors of one device.

An algorithm takes tensors of any shapes that broadcast. Without a kernel, PyTorch's operations compute sums.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mcfsim.checks import check_processor
from mcfsim.compile.choice import check_wanted
from mcfsim.compile.contraction import ContractionLine, groups_of
from mcfsim.compile.kernel import Kernel, check_triton
from mcfsim.compile.launch import Launcher, elements_on, interprets, launch
from mcfsim.compile.lowering import Lowered, type_of
from mcfsim.compile.program import CacheKey, Program
from mcfsim.compile.sources import indented, module_head, statements
from mcfsim.compile.torch_calls import DTYPES, TorchCalls, check_machine, constant
from mcfsim.compile.torch_loops import Carried, DeviceStreams, TensorWay, as_numbers, values_alone
from mcfsim.compile.tracing import ProgramRecording
from mcfsim.compile.triton_source import IMPORTS, check_gpu, expression, typed
from mcfsim.formats import Format
from mcfsim.kernels.carriers import UnsupportedFormatError
from mcfsim.kernels.element.machine import DTYPES as NUMPY
from mcfsim.kernels.element.machine import Value
from mcfsim.kernels.real_numbers import Scalars
from mcfsim.kernels.torch_tensors import Tensors

#: The most operations and vectors of an algorithm; beyond these, compiling takes minutes.
MOST_STEPS, MOST_VECTORS = 128, 256


class NoKernelError(TypeError):
    """A kernel does not take its operands, or compiling it would take too long."""


def check_kernels(device: torch.device) -> None:
    """Raise an error for a device on which Triton runs no exact kernels.

    Raises
    ------
    ImportError
        If Triton is not installed, or too old to divide exactly.
    ValueError
        If the device is neither an NVIDIA GPU of compute capability 8.0 or higher, nor a CPU where Triton
        interprets kernels, as it does if TRITON_INTERPRET=1.
    """
    check_triton()
    if device.type == "cpu":
        if not interprets():
            raise ValueError("on a CPU kernels are interpreted, slowly, and only where TRITON_INTERPRET=1")
    else:
        check_gpu(device)


def serve(device: torch.device, wanted: bool | None) -> bool:
    """Return whether to try kernels on a device: if `wanted` is True, or is None and the device is a GPU.

    Raises
    ------
    TypeError
        If `wanted` is not True, False or None.
    ImportError, ValueError
        If `wanted` is True and kernels cannot run: see `check_kernels`.
    """
    check_wanted("kernels", wanted)
    if wanted is False or (wanted is None and device.type == "cpu"):
        return False
    try:
        check_kernels(device)
    except (ImportError, ValueError):
        if wanted:
            raise
        return False
    return True


def _on_tensors(launcher: Launcher, formats: tuple[Format, ...]) -> TensorWay:
    """Return a kernel bound to its numbers as a function of tensors that broadcast, values of formats.

    It returns new tensors, and whether an element is no value. An element's random words depend on its index
    in row-major order, counted from `start`.
    """

    def run(
        operands: Tensors, shape: torch.Size, streams: DeviceStreams | None = None, start: int = 0
    ) -> Carried:
        lowered, device = launcher.lowered, operands[0].device
        vectors = [_vector(x, fmt, shape) for x, fmt in zip(operands, formats, strict=True)]
        results = [torch.empty(shape, dtype=DTYPES[x.type], device=device) for x in lowered.results]
        words: Any = {} if streams is None else {0: streams}
        with np.errstate(all="ignore"):  # where NumPy interprets
            good = launcher(vectors, [x.view(-1) for x in results], start, words)
        return results, not good

    return run


def chosen_way(
    kernel: Callable[[], TensorWay], operations: Callable[[], TensorWay], kernels: bool | None
) -> TensorWay:
    """Return the way in which an algorithm runs: by a kernel, or by PyTorch's operations.

    Parameters
    ----------
    kernel, operations : callable
        Return the two ways.
    kernels : bool or None
        True, by the kernel; False, by operations; None, by the kernel if it takes the operands.
    """
    if kernels is not False:
        try:
            return kernel()
        except (NoKernelError, UnsupportedFormatError):
            if kernels:
                raise
    return operations()


def kernel_of(
    recording: ProgramRecording,
    dtypes: tuple[torch.dtype, ...],
    scalars: Scalars,
    *,
    checked: bool,
    long: bool,
) -> TensorWay:
    """Return the kernel of an algorithm, made once per set of real scalars, and compiled once for all.

    Parameters
    ----------
    recording : ProgramRecording
        The recording of the algorithm. Results that are no values are left out.
    dtypes : tuple of dtype
        The dtypes of the tensors, one per input.
    scalars : {"exact", "rounded", "float32"}
        How real scalars enter.
    checked : bool
        Whether the kernel looks for elements that are no values of their formats.
    long : bool
        Whether to compile however long that takes.

    Raises
    ------
    NoKernelError
        If a format's carrier does not hold all numbers of a tensor's dtype, or the algorithm is too long.
    UnsupportedFormatError
        If an operation has no exact path in binary64, or a real scalar leads beyond that.
    """
    steps, vectors = len(recording.steps), len(recording.inputs) + len(recording.outputs())
    if not long and (steps > MOST_STEPS or vectors > MOST_VECTORS):
        raise NoKernelError(
            f"{recording.name} has {steps} operations on {vectors} operands and results; a kernel of more "
            f"than {MOST_STEPS} or {MOST_VECTORS} takes minutes to compile"
        )
    for x, dtype in zip(recording.inputs, dtypes, strict=True):
        _check_held(dtype, x.format)
    return _kernel_of(CacheKey(recording.key, recording), scalars, checked)


@lru_cache(maxsize=256)
def rounding_kernel(program: Program, dtype: torch.dtype) -> TensorWay:
    """Return the kernel of a program that rounds numbers of a carrier, for tensors of a dtype.

    Raises
    ------
    NoKernelError, UnsupportedFormatError
        As `kernel_of` does.
    """
    (x,) = program.inputs
    _check_held(dtype, x.format)
    return _on_tensors(Kernel(program, hardware=True).with_numbers([]), (x.format,))


@lru_cache(maxsize=512)
def _kernel_of(kept: CacheKey, scalars: Scalars, checked: bool) -> TensorWay:
    program = values_alone(kept.item.program())
    kernel = _of_program(CacheKey(program.key, program), scalars, checked)
    formats = tuple(x.format for x in program.inputs)
    return _on_tensors(kernel.with_numbers(program.reals()), formats)


@lru_cache(maxsize=256)
def _of_program(kept: CacheKey, scalars: Scalars, checked: bool) -> Kernel:
    return Kernel(kept.item, scalars, checked=checked, hardware=True)


def _vector(x: torch.Tensor, fmt: Format, shape: torch.Size) -> torch.Tensor:
    """Return the elements of a tensor as a kernel takes them: in the carrier, one after another."""
    carrier = DTYPES[type_of(fmt)]
    if x.dtype != carrier:
        x = as_numbers(x)[0].to(carrier)
    if not fmt.has_negative_zero:  # -0 + 0 is +0
        x = torch.add(x, constant(0.0, type_of(fmt), x.device))
    return (
        x.reshape(-1) if x.shape == shape and x.is_contiguous() else x.expand(shape).reshape(-1).contiguous()
    )


def _check_held(dtype: torch.dtype, fmt: Format) -> None:
    """Raise NoKernelError unless a format's carrier holds all numbers of a dtype."""
    carrier = DTYPES[type_of(fmt)]
    whole = 4 if carrier == torch.float64 else 2
    if dtype.itemsize > (carrier.itemsize if dtype.is_floating_point else whole):
        raise NoKernelError(
            f"a kernel takes numbers of {fmt} as {carrier}, which does not hold all of {dtype}"
        )


Array = NDArray[Any]

#: Elements of an instance of the kernel, and those that PyTorch's operations compute at a time.
_ELEMENTS, _AT_ONCE = 256, 1 << 20


class TensorContraction:
    """Sums along the contracted axis by a line on a device, of arrays that come from the host and go back.

    Parameters
    ----------
    own : ContractionLine
    device : device
    kernels : bool or None
        As for `mcfsim.compile.torch_kernels.serve`.
    """

    def __init__(self, own: ContractionLine, device: torch.device, kernels: bool | None) -> None:
        self.line, self.parts, self._device = own, len(own.left), device
        self.given, self.carried = NUMPY[own.left[0].type], NUMPY[own.carried.type]
        self._kernel = serve(device, kernels)
        if not self._kernel:
            check_machine(device)

    def add(
        self, left: Array, right: Array, out: Array, first: int, last: int, *, paired: bool = False
    ) -> None:
        """Add groups of both operands to a matrix in place, as `Contraction.add`."""
        check_processor()
        if not out.size or last <= first:
            return
        places = slice(first * self.parts, last * self.parts)
        left = left[places] if paired else left[:, places]
        arrays = left, right[places], out
        there = [torch.from_numpy(np.array(x, order="C")).to(self._device) for x in arrays]
        carry_out = self._launch if self._kernel else self._by_operations
        carry_out(there[0], there[1], there[2], last - first, paired=paired)
        out[...] = there[2].cpu().numpy()

    def _launch(
        self, left: torch.Tensor, right: torch.Tensor, out: torch.Tensor, groups: int, *, paired: bool
    ) -> None:
        columns, size = out.shape[1], out.numel()
        strides = (0, columns, 1) if paired else (left.shape[1], 1, 0)
        elements = elements_on(out.device, size, _ELEMENTS)
        given = left, right, out, *strides, columns, size, groups
        with np.errstate(all="ignore"):
            launch(contraction_kernel(self.line), (-(-size // elements),), elements, *given)

    @cached_property
    def _calls(self) -> TorchCalls:
        own = self.line
        return TorchCalls((own.result,), (*own.left, *own.right, own.carried))

    def _by_operations(
        self, left: torch.Tensor, right: torch.Tensor, out: torch.Tensor, groups: int, *, paired: bool
    ) -> None:
        for some, numbers in groups_of(left, right, out, 0, groups, self.parts, _AT_ONCE, paired=paired):
            out[some] = self._calls([*numbers, out[some]])[0]


@lru_cache(maxsize=64)
def contraction_kernel(own: ContractionLine) -> str:
    """Return the source of a module with a function ``kernel``.

    It takes pointers to both operands and to the matrix; the strides of the left operand from row to row,
    from number to number and from column to column; the columns and the size of the matrix; and the number
    of groups.
    """
    parts = len(own.left)
    place = {x: n for values in (own.left, own.right) for n, x in enumerate(values)}
    lefts = set(own.left)

    def read(value: Value) -> str:
        if value is own.carried:
            return "carried"
        number = f"({place[value]} + group * {parts})"
        if value in lefts:
            at = f"left + (row * left_row + {number} * left_step + column * left_column)"
        else:
            at = f"right + ({number} * columns + column)"
        return f"tl.load({at}, mask=inside, other=0)"

    constants, body, made = statements(Lowered(own.line), (own.result,), read, expression)
    strides = ("left_row", "left_step", "left_column")
    arguments = ["left", "right", "out", *strides, "columns", "size", "groups", "ELEMENTS: tl.constexpr"]
    before = [
        *typed(constants),
        "i = tl.program_id(0).to(tl.int64) * ELEMENTS + tl.arange(0, ELEMENTS)",
        "inside = i < size",
        "row = i // columns",
        "column = i % columns",
        "carried = tl.load(out + i, mask=inside, other=0)",
        # Triton's interpreter takes no range whose length is only known at run time.
        "group = groups * 0",
        "while group < groups:",
    ]
    inside = [*body, f"carried = {made[0]}", "group += 1"]
    head = f"{module_head('Sums of products, a group at a time.', IMPORTS)}\n"
    signature = f'@triton.jit(do_not_specialize=["groups"])\ndef kernel({", ".join(arguments)}):\n'
    after = indented(["tl.store(out + i, carried, mask=inside)"])
    return f"{head}{signature}{indented(before)}{indented(inside, 2)}{after}"
