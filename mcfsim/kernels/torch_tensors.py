"""PyTorch tensors: the dtypes that hold formats, checks of operands, and CPU tensors as NumPy arrays."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from numpy.typing import NDArray

from mcfsim.formats import FORMATS, Format
from mcfsim.kernels.carriers import UnsupportedFormatError

try:
    import torch as torch  # for modules that are only imported after this one
except ModuleNotFoundError as error:
    raise ImportError("backend 'torch' needs PyTorch: pip install 'mcfsim[torch]'") from error

#: Several tensors, as arguments.
Tensors = Sequence[torch.Tensor]

_NAMES = (
    "float64",
    "float32",
    "float16",
    "bfloat16",
    "float8_e5m2",
    "float8_e4m3fn",
    "float8_e5m2fnuz",
    "float8_e4m3fnuz",
)
#: The torch dtypes whose values are those of a format; the longest ones first.
TORCH_DTYPES: dict[torch.dtype, Format] = {getattr(torch, name): FORMATS[name] for name in _NAMES}
#: NumPy knows these only through ml_dtypes, whose dtypes of the same names read their bits.
_FOREIGN = {getattr(torch, name, None): name for name in (*_NAMES[3:], "float8_e8m0fnu")}
_BITS = {1: torch.uint8, 2: torch.int16}


def torch_dtype(fmt: Format) -> torch.dtype:
    """Return the torch dtype whose values are those of the format.

    Raises
    ------
    UnsupportedFormatError
        If there is none.
    """
    for dtype, known in TORCH_DTYPES.items():
        if known == fmt:
            return dtype
    raise UnsupportedFormatError(f"no torch dtype holds {fmt}; supported formats: {', '.join(_NAMES)}")


def device_of(device: str | torch.device, dtype: torch.dtype) -> torch.device:
    """Return a device under the name that its tensors give it.

    Raises
    ------
    ValueError
        If PyTorch cannot make tensors of the dtype there.
    """
    try:
        found: torch.device = torch.zeros(0, dtype=dtype, device=device).device
        if found.type == "meta":
            raise RuntimeError("its tensors hold no numbers")
    except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:
        raise no_device(device, error) from error
    return found


def no_device(device: str | torch.device, why: Exception) -> ValueError:
    """Return the error for a device on which PyTorch does not compute, with the reason."""
    reason = str(why).partition("\n")[0].rstrip(".")
    return ValueError(
        f"device {str(device)!r} cannot be used: {reason}; supported: 'cpu', and devices on which PyTorch "
        "computes here"
    )


def dense(x: Any, device: torch.device) -> torch.Tensor:
    """Return an operand on a device detached from its graph, with a lazy negation resolved.

    Raises
    ------
    TypeError
        If it is no dense tensor on the device, or is not real; or if gradients would be lost: it requires
        grad, and ``torch.no_grad()`` is not on.
    """
    if not isinstance(x, torch.Tensor):
        raise TypeError(
            f"an operand of type {type(x).__name__} is neither a tensor on {str(device)!r} nor a Python "
            "number"
        )
    if x.device != device:
        raise TypeError(
            f"an operand lies on device {str(x.device)!r}, and this arithmetic computes on {str(device)!r}; "
            f"move it with .to({str(device)!r})"
        )
    _check_plain(x)
    return x.detach().resolve_neg()


def _check_plain(tensor: torch.Tensor) -> None:
    """Raise TypeError unless a tensor is dense and real, and loses no gradients outside its graph."""
    if tensor.layout is not torch.strided:
        raise TypeError(f"a tensor with layout {tensor.layout} is not supported, only dense ones are")
    if tensor.is_complex() or tensor.is_quantized:
        raise TypeError(f"a tensor of dtype {tensor.dtype} holds no plain real numbers")
    if tensor.requires_grad and torch.is_grad_enabled():
        raise TypeError(
            "a tensor that requires grad is not differentiated through; pass tensor.detach(), or compute "
            "under torch.no_grad()"
        )


def uncompiled(function: Callable[..., Any], *given: Any, **named: Any) -> Any:
    """Call a function outside ``torch.compile`` and return its result.

    The compiler would replace NumPy's operations by PyTorch's, with PyTorch's bits.
    """
    if "torch._dynamo" in sys.modules:  # else there is no compiler in this process
        from mcfsim.kernels.disabled import call

        return call(function, *given, **named)
    return function(*given, **named)


def check_dense(tensor: torch.Tensor) -> None:
    """Raise TypeError unless a tensor on any device is dense and real, and holds numbers."""
    if tensor.device.type == "meta":
        raise TypeError("a tensor on device 'meta' has a shape, and no numbers")
    _check_plain(tensor)


def check_module(model: object) -> None:
    """Raise TypeError unless a model is one of PyTorch's."""
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, not {type(model).__name__}")


def as_array(tensor: torch.Tensor) -> NDArray[Any]:
    """Return a CPU tensor as a NumPy array with the same memory, shape and strides.

    bfloat16 and the float8 dtypes become the ml_dtypes ones, bit for bit.

    Raises
    ------
    TypeError
        If the tensor is not dense, real and in the CPU's memory, or if gradients would be lost: it requires
        grad, and ``torch.no_grad()`` is not on.
    """
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
        raise TypeError(
            f"a tensor on device {str(tensor.device)!r} with layout {tensor.layout} is not supported, only "
            "dense CPU tensors are; convert it with .to('cpu').to_dense()"
        )
    _check_plain(tensor)
    tensor = tensor.detach().resolve_neg()
    if tensor.dtype not in _FOREIGN:
        array: NDArray[Any] = tensor.numpy()
        return array
    import ml_dtypes

    scalar = getattr(ml_dtypes, _FOREIGN[tensor.dtype])
    bits: NDArray[Any] = tensor.view(_BITS[tensor.itemsize]).numpy()
    return bits.view(scalar)
