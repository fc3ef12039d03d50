"""The emulator on PyTorch tensors, bit-identical to NumPy's, and arithmetic in PyTorch's own dtypes."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from functools import partial
from typing import Any, Self

import numpy as np

from mcfsim.backends.block_arithmetic import BlockArithmetic
from mcfsim.backends.numpy import NumpyArithmetic
from mcfsim.backends.torch_device import DeviceArithmetic
from mcfsim.checks import check_processor, check_threads
from mcfsim.compile.choice import check_wanted
from mcfsim.formats import Format
from mcfsim.kernels.carriers import UnsupportedFormatError
from mcfsim.kernels.elementary import FUNCTIONS
from mcfsim.kernels.native import LibraryArithmetic
from mcfsim.kernels.real_numbers import Scalars, is_scalar, round_real
from mcfsim.kernels.torch_tensors import as_array, dense, device_of, torch, torch_dtype, uncompiled
from mcfsim.protocol import Forwarding, Value
from mcfsim.random import RandomWords
from mcfsim.rounding import Rounding


class TorchArithmetic(Forwarding):
    """Emulated arithmetic of one format and rounding on PyTorch tensors of one device.

    Every operation has the bits of `NumpyArithmetic`. On the CPU it is that operation, in the memory of the
    tensors. Elsewhere the device runs the same algorithm by PyTorch's elementwise operations.

    Parameters
    ----------
    fmt : Format
        Format of every result.
    rounding : Rounding
        Mode and overflow policy.
    device : str or torch.device, optional
        Device of operands and results: ``"cpu"``, or one on which PyTorch computes, such as ``"cuda"``.
    scalars, threads, random
        As for `NumpyArithmetic`; an element of the same index gets the same random words. Only the CPU uses
        threads.
    kernels : bool, optional
        Whether Triton kernels run algorithms and operations on the device, with the same bits. True: always,
        or an error. False: never. None: where Triton can (`mcfsim.backends.torch_device.DeviceArithmetic`).
        On the CPU there are kernels only if this is True and Triton interprets them.

    Attributes
    ----------
    kernels : bool
        Whether kernels are tried.
    carrier : torch.dtype
        The dtype of all results: ``float32`` if it holds every value of the format, else ``float64``.

    Notes
    -----
    Operands are Python numbers, or dense tensors of the device, of shapes that broadcast, of any real dtype
    (bfloat16 and float8 included) whose elements are values of the format. Results are new tensors; if all
    operands are Python numbers, so is the result. Nothing is differentiated: a tensor that requires grad is
    refused, unless ``torch.no_grad()`` is on.

    Raises
    ------
    ValueError
        If there is no such device; or if `kernels` is True and the device is neither an NVIDIA GPU nor a CPU
        with TRITON_INTERPRET=1.
    ImportError
        If `kernels` is True and Triton is not installed, or is older than 3.6.
    UnsupportedFormatError
        If float64 does not hold the format, or an operation has no exact path; on devices other than the CPU
        also if binary64 cannot take a real scalar exactly.
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
        check_wanted("kernels", kernels)
        self._numpy: NumpyArithmetic | BlockArithmetic
        if _is_cpu(device) and not kernels:
            self._numpy = NumpyArithmetic(fmt, rounding, scalars=scalars, threads=threads, random=random)
        else:
            options: Any = {"scalars": scalars, "random": random, "kernels": kernels}
            self._numpy = DeviceArithmetic(fmt, rounding, device=device, **options)

    def _over(self, arithmetic: NumpyArithmetic | BlockArithmetic) -> TorchArithmetic:
        """Return a copy that delegates to another arithmetic."""
        other = copy(self)
        other._numpy = arithmetic
        return other

    def __repr__(self) -> str:
        name = "Device" if isinstance(self._numpy, DeviceArithmetic) else "Numpy"
        return repr(self._numpy).replace(name, "Torch", 1)

    @property
    def format(self) -> Format:
        """Format of every result."""
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
        """The stream of the next operation, if rounding is stochastic."""
        return self._numpy.random

    @property
    def device(self) -> torch.device:
        """The device of operands and results."""
        return self._numpy.device if isinstance(self._numpy, DeviceArithmetic) else torch.device("cpu")

    @property
    def kernels(self) -> bool:
        """Whether Triton kernels are tried."""
        return isinstance(self._numpy, DeviceArithmetic) and self._numpy.kernels

    @property
    def carrier(self) -> torch.dtype:
        """The dtype of results."""
        return torch.float32 if self._numpy.carrier == np.float32 else torch.float64

    def like(self, fmt: Format, rounding: Rounding) -> TorchArithmetic:
        """Return the arithmetic of another format and rounding."""
        return self._over(self._numpy.like(fmt, rounding))

    def on_block(self, step: int, start: int) -> TorchArithmetic:
        """Return the operations on one contiguous block; nothing is checked."""
        return self._over(self._numpy.on_block(step, start))

    def evaluate(self, function: Callable[..., Any], /, *operands: Any, **options: Any) -> Any:
        """Return ``function(arithmetic, *operands, **options)``, computed block by block.

        Parameters
        ----------
        function : callable
            A branch-free sequence of operations of the arithmetic that is its first argument.
        *operands : value or (nested) tuple of values
            The operands; the result has the shape to which they broadcast.
        **options
            Passed to the function unchanged.
        """
        whole = partial(self._numpy.evaluate, function, **options)
        return uncompiled(self._carried_out, whole, *operands)

    def _operate(self, name: str, *operands: Any) -> Any:
        for x in operands:
            if isinstance(x, list | tuple) and name != "round":
                dense(x, self.device)  # which refuses it
        return uncompiled(self._carried_out, getattr(self._numpy, name), *operands)

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
    """Return nested tuples with the leaves of one type changed."""
    if isinstance(tree, tuple | list):
        return tuple(_map(kind, change, item) for item in tree)
    return change(tree) if isinstance(tree, kind) else tree


# -- PyTorch's own dtypes ---------------------------------------------------------------------------------
class TorchNativeArithmetic(LibraryArithmetic):
    """PyTorch's arithmetic in one dtype: each operation is one PyTorch operation on tensors of the dtype.

    The device decides the bits; none are promised. On the CPU, all operations but square roots were found
    correctly rounded, to nearest even. A root of float32 or float64 may be a neighbour of the correctly
    rounded one, where PyTorch calls MKL.

    PyTorch has no arithmetic in float8. There each operation, changes of sign included, computes in float32
    and casts the result. Beyond the largest number, the cast to float8_e4m3fn gives that number from PyTorch
    2.12 on, also for an infinity, and NaN before; the cast to float8_e5m2 gives an infinity, and the casts to
    the fnuz types give NaN.

    Python numbers are first rounded, each once, as by the emulator; the scalar policy is ``rounded``. They
    become tensors on the device, because PyTorch divides by a Python number differently than by a tensor.

    Parameters
    ----------
    fmt : Format
        A format whose values and codes are those of a PyTorch dtype.
    device : str or torch.device, optional
        Device of operands and results.
    fused : bool, optional
        If True, `fma` raises, as PyTorch has none; if False, it is a product and a sum, rounded twice.

    Raises
    ------
    UnsupportedFormatError
        If no dtype of PyTorch holds the format.
    ValueError
        If PyTorch has no tensors of the dtype on the device.
    TypeError
        In operations, if an operand is neither a dense tensor of the dtype on the device nor a Python number.
    """

    dtype: torch.dtype

    def __init__(self, fmt: Format, *, device: str | torch.device = "cpu", fused: bool = True) -> None:
        super().__init__(fmt, torch_dtype(fmt), fused=fused)
        self.device: torch.device = device_of(device, self.dtype)
        self._computes_in = torch.float32 if self.dtype.itemsize == 1 else self.dtype

    def __repr__(self) -> str:
        return f"TorchNativeArithmetic({self.dtype}, device='{self.device}')"

    def _of(self, fmt: Format) -> Self:
        return type(self)(fmt, device=self.device, fused=self._fused)

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """Return ``a * b + c`` with two roundings, if `fused` is False.

        Raises
        ------
        UnsupportedFormatError
            If `fused` is True: PyTorch has no fused multiply-add.
        """
        if not self._fused:
            return self.add(self.mul(a, b), c)
        raise UnsupportedFormatError(
            f"fma in native {self.dtype}: PyTorch has no fused multiply-add, and a multiplication and an "
            "addition round twice; use backend='torch'"
        )

    def round(self, x: Value) -> Value:
        """Return numbers cast to the dtype by PyTorch, which may round float64 and long integers twice."""
        check_processor()
        return self._number(x) if is_scalar(x) else dense(x, self.device).to(self.dtype)

    def _operate(self, name: str, *operands: Value) -> torch.Tensor:
        check_processor()
        given = (self._enter(x).to(self._computes_in) for x in operands)
        return _OPERATIONS[name](*given).to(self.dtype)

    def _enter(self, x: Value) -> torch.Tensor:
        if is_scalar(x):
            return self._number(x)
        x = dense(x, self.device)
        if x.dtype != self.dtype:
            raise TypeError(
                f"an operand is of {x.dtype}, and this arithmetic computes with {self.dtype}; "
                "bring numbers in with .round(x) first"
            )
        return x

    def _number(self, x: Any) -> torch.Tensor:
        """Return a Python number, rounded once, as a tensor."""
        value = round_real(x, self.format, Rounding())
        return torch.tensor(value, dtype=torch.float64).to(self.dtype).to(self.device)


def _choose(s: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.where(s >= 0, x, torch.where(s < 0, y, s))


def _sign(x: torch.Tensor) -> torch.Tensor:
    return torch.where(torch.isnan(x) | (x == 0), x, torch.copysign(torch.ones_like(x), x))


#: PyTorch's functions, by the names of operations; elementary ones may miss the last bit.
_OPERATIONS: dict[str, Callable[..., torch.Tensor]] = {
    **{"add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div, "sqrt": torch.sqrt},
    **{"neg": torch.neg, "abs": torch.abs, "sign": _sign},
    **{name: getattr(torch, name) for name in (*FUNCTIONS, "maximum", "minimum")},
    "choose": _choose,
}
