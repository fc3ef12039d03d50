"""The emulator on PyTorch's tensors: the same bits as on NumPy arrays.

CPU tensors are computed with where they lie, as NumPy arrays; those of other devices on their device.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from functools import partial
from typing import Any

import numpy as np

from mcfsim.backends.block_arithmetic import BlockArithmetic
from mcfsim.backends.numpy import NumpyArithmetic
from mcfsim.backends.torch_device import DeviceArithmetic
from mcfsim.checks.arguments import check_threads
from mcfsim.compile.torch_kernels import check_wanted
from mcfsim.formats import Format
from mcfsim.kernels.real_numbers import Scalars
from mcfsim.kernels.torch_tensors import as_array, torch, uncompiled
from mcfsim.protocol import Value
from mcfsim.random import RandomWords
from mcfsim.rounding import Rounding


class TorchArithmetic:
    """Emulated arithmetic of one format and rounding on PyTorch's tensors of one device.

    Every operation has the bits of `NumpyArithmetic`. On the CPU it is that operation, on the tensors' own
    memory; elsewhere the same text, carried out on the device by PyTorch's elementwise operations.

    Parameters
    ----------
    fmt : Format
        Where every result is rounded.
    rounding : Rounding
        Mode and overflow policy.
    device : str or torch.device, optional
        ``"cpu"``, or a device on which PyTorch computes here, as ``"cuda"``: where operands and results are.
    scalars, threads, random
        As for `NumpyArithmetic`, whose random words an element of the same index gets. Threads are the CPU's.
    kernels : bool, optional
        Whether texts and operations on the device are kernels of Triton, with the same bits: True, always, or
        refused; False, never; None, where Triton serves (`mcfsim.backends.torch_device.DeviceArithmetic`). On
        the CPU they are not, unless it is true, and Triton interprets.

    Attributes
    ----------
    kernels : bool
        Whether kernels are tried.
    carrier : torch.dtype
        Of all results: ``float32`` where it holds every value of the format, else ``float64``.

    Notes
    -----
    Operands are dense tensors of the device, of any shape that broadcast, of any real dtype (bfloat16 and
    float8 included) whose elements are values of the format, or Python numbers. Results are new tensors; if
    all operands are Python numbers, so is the result. Nothing is differentiated: a tensor that requires grad
    is refused, unless gradients are switched off by ``torch.no_grad()`` anyway.

    Raises
    ------
    ValueError
        If there is no such device here; or if there must be kernels, and it is neither a GPU of NVIDIA nor a
        CPU where TRITON_INTERPRET=1.
    ImportError
        If there must be kernels, and there is no Triton, or one before 3.6.
    UnsupportedFormatError
        If float64 does not hold the format, or an operation has no exact path; on other devices than the CPU
        also if a real scalar is beyond what binary64 takes exactly.
    """

    def __init__(
        self,
        fmt: Format,
        rounding: Rounding,
        *,
        device: str | torch.device = "cpu",
        scalars: Scalars = "exact",
        threads: int = 1,
        random: RandomWords | None = None,
        kernels: bool | None = None,
    ) -> None:
        check_threads(threads)
        check_wanted(kernels)
        self._numpy: NumpyArithmetic | BlockArithmetic
        if _is_cpu(device) and not kernels:
            self._numpy = NumpyArithmetic(fmt, rounding, scalars=scalars, threads=threads, random=random)
        else:
            options: Any = {"scalars": scalars, "random": random, "kernels": kernels}
            self._numpy = DeviceArithmetic(fmt, rounding, device=device, **options)

    def _over(self, arithmetic: NumpyArithmetic | BlockArithmetic) -> TorchArithmetic:
        """Return the same arithmetic, carried out by another one."""
        other = copy(self)
        other._numpy = arithmetic
        return other

    def __repr__(self) -> str:
        name = "Device" if isinstance(self._numpy, DeviceArithmetic) else "Numpy"
        return repr(self._numpy).replace(name, "Torch", 1)

    @property
    def format(self) -> Format:
        """Where every result is rounded."""
        return self._numpy.format

    @property
    def rounding(self) -> Rounding:
        """Mode and overflow policy."""
        return self._numpy.rounding

    @property
    def scalars(self) -> Scalars:
        """How Python numbers enter."""
        return self._numpy.scalars

    @property
    def random(self) -> Any:
        """The stream that the next operation draws from, if rounding is stochastic."""
        return self._numpy.random

    @property
    def device(self) -> torch.device:
        """Where operands and results are."""
        return self._numpy.device if isinstance(self._numpy, DeviceArithmetic) else torch.device("cpu")

    @property
    def kernels(self) -> bool:
        """Whether kernels of Triton are tried."""
        return isinstance(self._numpy, DeviceArithmetic) and self._numpy.kernels

    @property
    def carrier(self) -> torch.dtype:
        """The dtype of results."""
        return torch.float32 if self._numpy.carrier == np.float32 else torch.float64

    def like(self, fmt: Format, rounding: Rounding) -> TorchArithmetic:
        """Return the arithmetic of another format and rounding."""
        return self._over(self._numpy.like(fmt, rounding))

    def on_block(self, step: int, start: int) -> TorchArithmetic:
        """Return the operations on one contiguous block, with nothing checked."""
        return self._over(self._numpy.on_block(step, start))

    def add(self, a: Value, b: Value) -> Value:
        """Return ``a + b``."""
        return self._call(self._numpy.add, a, b)

    def sub(self, a: Value, b: Value) -> Value:
        """Return ``a - b``."""
        return self._call(self._numpy.sub, a, b)

    def mul(self, a: Value, b: Value) -> Value:
        """Return ``a * b``; 0 times infinity is NaN."""
        return self._call(self._numpy.mul, a, b)

    def div(self, a: Value, b: Value) -> Value:
        """Return ``a / b``; x / 0 is an infinity (NaN in a format without), 0 / 0 is NaN."""
        return self._call(self._numpy.div, a, b)

    def sqrt(self, a: Value) -> Value:
        """Return the square root; NaN below zero, and -0 of -0."""
        return self._call(self._numpy.sqrt, a)

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """Return ``a * b + c`` rounded once."""
        return self._call(self._numpy.fma, a, b, c)

    def neg(self, a: Value) -> Value:
        """Return ``-a``; in a format without negative zero the negative of zero is zero."""
        return self._call(self._numpy.neg, a)

    def abs(self, a: Value) -> Value:
        """Return ``|a|``."""
        return self._call(self._numpy.abs, a)

    def sign(self, a: Value) -> Value:
        """Return 1 or -1 by the sign of `a`, and a zero or NaN as it is; rounded if 1 is no value."""
        return self._call(self._numpy.sign, a)

    def round(self, x: Value) -> Value:
        """Round real numbers into the format: scalars, or tensors of a floating or integer dtype."""
        return self._call(self._numpy.round, x)

    def evaluate(self, function: Callable[..., Any], /, *operands: Any, **options: Any) -> Any:
        """Return ``function(arithmetic, *operands, **options)``, computed a block at a time.

        Parameters
        ----------
        function : callable
            A branch-free sequence of operations of the arithmetic that it is handed first.
        *operands : value or (nested) tuple of values
            The result has the shape of all of them broadcast together.
        **options
            Handed to the function as they are.
        """
        return self._call(partial(self._numpy.evaluate, function, **options), *operands)

    def _call(self, operation: Callable[..., Any], *operands: Any) -> Any:
        return uncompiled(self._carried_out, operation, *operands)

    def _carried_out(self, operation: Callable[..., Any], *operands: Any) -> Any:
        if isinstance(self._numpy, DeviceArithmetic):
            return operation(*_map(torch.Tensor, lambda x: x, operands))
        return _map(np.ndarray, torch.from_numpy, operation(*_map(torch.Tensor, as_array, operands)))


def _is_cpu(device: str | torch.device) -> bool:
    try:
        return bool(torch.device(device).type == "cpu")
    except RuntimeError as error:
        raise ValueError(f"unknown device {device!r}: {error}") from error


def _map(kind: type, change: Callable[[Any], Any], tree: Any) -> Any:
    """Change the leaves of this kind in nested tuples."""
    if isinstance(tree, tuple | list):
        return tuple(_map(kind, change, item) for item in tree)
    return change(tree) if isinstance(tree, kind) else tree
