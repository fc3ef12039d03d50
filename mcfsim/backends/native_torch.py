"""PyTorch's own number types on any device, behind the common interface: to compare hardware with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

from mcfsim.checks.processor import check_processor
from mcfsim.formats import Format
from mcfsim.kernels.carriers import UnsupportedFormatError
from mcfsim.kernels.native import LibraryArithmetic
from mcfsim.kernels.real_numbers import is_scalar, round_real
from mcfsim.kernels.torch_tensors import dense, device_of, torch, torch_dtype
from mcfsim.protocol import Value
from mcfsim.rounding import Rounding


class TorchNativeArithmetic(LibraryArithmetic):
    """PyTorch's operations on tensors of one dtype: one operation each, of tensors of the dtype.

    No bits are promised: they are the device's. On the CPU all but square roots were found correctly rounded,
    to nearest even. Roots of float32 and float64 may be the neighbours of the correctly rounded ones, where
    PyTorch leaves them to MKL.

    PyTorch has no arithmetic of float8. There an operation is that of float32, of which the result is cast;
    changes of sign as well. Beyond the largest number the cast of float8_e4m3fn gives that number, also of an
    infinity, from PyTorch 2.12 on, and NaN before; that of float8_e5m2 gives an infinity, and those of the
    fnuz types NaN.

    Python numbers are rounded first, each once, as the emulator does, so the scalar policy is ``rounded``.
    They become tensors on the device: PyTorch divides by a Python number otherwise than by a tensor.

    Parameters
    ----------
    fmt : Format
        One that a dtype of PyTorch holds, and its codes.
    device : str or torch.device, optional
        Where operands and results are.
    fused : bool, optional
        If true, `fma` is refused, as PyTorch has none; else it is a product and a sum, rounded twice.

    Raises
    ------
    UnsupportedFormatError
        If no dtype of PyTorch holds the format.
    ValueError
        If PyTorch has no tensors of it on the device here.
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

    def add(self, a: Value, b: Value) -> Value:
        """Return ``a + b``."""
        return self._apply(torch.add, a, b)

    def sub(self, a: Value, b: Value) -> Value:
        """Return ``a - b``."""
        return self._apply(torch.sub, a, b)

    def mul(self, a: Value, b: Value) -> Value:
        """Return ``a * b``."""
        return self._apply(torch.mul, a, b)

    def div(self, a: Value, b: Value) -> Value:
        """Return ``a / b``."""
        return self._apply(torch.div, a, b)

    def sqrt(self, a: Value) -> Value:
        """Return the square root."""
        return self._apply(torch.sqrt, a)

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """Return ``a * b + c`` if two roundings were agreed to.

        Raises
        ------
        UnsupportedFormatError
            Otherwise: PyTorch has no fused multiply-add.
        """
        if not self._fused:
            return self.add(self.mul(a, b), c)
        raise UnsupportedFormatError(
            f"fma in native {self.dtype}: PyTorch has no fused multiply-add, and a multiplication and an "
            "addition round twice; use backend='torch'"
        )

    def neg(self, a: Value) -> Value:
        """Return ``-a``."""
        return self._apply(torch.neg, a)

    def abs(self, a: Value) -> Value:
        """Return ``|a|``."""
        return self._apply(torch.abs, a)

    def sign(self, a: Value) -> Value:
        """Return 1 or -1 by the sign of `a`, and a zero or NaN as it is."""
        return self._apply(_sign, a)

    def round(self, x: Value) -> Value:
        """Cast to the dtype, as PyTorch does: tensors of float64, and long integers, may be rounded twice."""
        check_processor()
        return self._number(x) if is_scalar(x) else dense(x, self.device).to(self.dtype)

    def _apply(self, operation: Callable[..., torch.Tensor], *operands: Value) -> torch.Tensor:
        check_processor()
        return operation(*(self._enter(x).to(self._computes_in) for x in operands)).to(self.dtype)

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
        """Return a Python number, rounded once."""
        value = round_real(x, self._format, Rounding())
        return torch.tensor(value, dtype=torch.float64).to(self.dtype).to(self.device)


def _sign(x: torch.Tensor) -> torch.Tensor:
    return torch.where(torch.isnan(x) | (x == 0), x, torch.copysign(torch.ones_like(x), x))
