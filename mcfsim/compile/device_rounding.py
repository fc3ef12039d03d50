"""Rounding as a program, and rounding of tensors on their own device."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from mcfsim.compile.program import Program, Register
from mcfsim.compile.tracing import trace
from mcfsim.formats import Format, get_format
from mcfsim.kernels.carriers import FLOAT32, FLOAT64, UnsupportedFormatError
from mcfsim.rounding import Rounding

if TYPE_CHECKING:
    import torch

    from mcfsim.compile.torch_loops import DeviceStreams


@lru_cache(maxsize=256)
def rounding_program(carrier: np.dtype[Any], fmt: Format, rounding: Rounding) -> Program:
    """Return the program that rounds numbers of a carrier into a format."""
    x = Register("x", get_format(str(carrier)))
    return trace(lambda ar, x: ar.round(x), fmt, rounding, operands=(x,))


def round_there(
    x: torch.Tensor,
    fmt: Format,
    rounding: Rounding,
    streams: DeviceStreams | None,
    start: int,
    kernels: bool | None,
) -> torch.Tensor:
    """Round the elements of a tensor of a floating or integer dtype on the tensor's device.

    Parameters
    ----------
    x : tensor
        Dense, without a graph.
    fmt, rounding
        The target format, and the rounding.
    streams : DeviceStreams or None
        Streams of random words, if rounding is stochastic; the first is taken.
    start : int
        The index of the first element.
    kernels : bool or None
        Whether a Triton kernel rounds: True, always; False, never; None, if it takes the dtype.

    Returns
    -------
    tensor
        New, of the format's carrier.

    Raises
    ------
    UnsupportedFormatError
        If an integer cannot be rounded once.
    NoKernelError
        If a kernel must round, and does not take the dtype.
    """
    import torch

    from mcfsim.compile.torch_kernels import chosen_way, rounding_kernel
    from mcfsim.compile.torch_loops import rounding_loop, taken

    wide = x.dtype == torch.float64 or not x.dtype.is_floating_point
    carrier = FLOAT64 if wide else FLOAT32
    run = chosen_way(
        lambda: rounding_kernel(rounding_program(carrier, fmt, rounding), x.dtype),
        lambda: rounding_loop(x.dtype, fmt, rounding),
        kernels,
    )
    (result,), strange = run([x], x.shape, taken(streams, 1), start)
    if strange:
        raise UnsupportedFormatError(f"integers beyond 2**53 cannot be rounded {rounding.mode} to {fmt}")
    return result
