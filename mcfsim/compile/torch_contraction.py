"""Sums along a contracted axis on a device: the line of a group as a Triton kernel, or as operations."""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mcfsim.checks import check_processor
from mcfsim.compile.contraction import ContractionLine, groups_of
from mcfsim.compile.launch import elements_on, launch
from mcfsim.compile.lowering import Lowered
from mcfsim.compile.sources import indented, module_head, statements
from mcfsim.compile.torch_calls import TorchCalls, check_machine
from mcfsim.compile.torch_kernels import serve
from mcfsim.compile.triton_source import IMPORTS, expression, typed
from mcfsim.kernels.element.machine import DTYPES, Value

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
        self.given, self.carried = DTYPES[own.left[0].type], DTYPES[own.carried.type]
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
    from number to number and from column to column; the columns and the size of the matrix; and how many
    groups.
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
        # Triton's interpreter takes no range of a number that is not known before.
        "group = groups * 0",
        "while group < groups:",
    ]
    inside = [*body, f"carried = {made[0]}", "group += 1"]
    head = f"{module_head('Sums of products, a group at a time.', IMPORTS)}\n"
    signature = f'@triton.jit(do_not_specialize=["groups"])\ndef kernel({", ".join(arguments)}):\n'
    after = indented(["tl.store(out + i, carried, mask=inside)"])
    return f"{head}{signature}{indented(before)}{indented(inside, 2)}{after}"
