"""The factory `arithmetic`, which makes the arithmetic of a format."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from mcfsim.backends.block_arithmetic import BlockArithmetic
from mcfsim.backends.exact import ExactArithmetic
from mcfsim.backends.numpy import NumpyArithmetic
from mcfsim.checks import check_processor
from mcfsim.formats import Format, get_format
from mcfsim.kernels.carriers import native_dtype
from mcfsim.kernels.native import NativeArithmetic
from mcfsim.rounding import Overflow, Rounding, Underflow, get_rounding

if TYPE_CHECKING:
    from mcfsim.backends.torch import TorchArithmetic, TorchNativeArithmetic


BACKENDS = ("numpy", "llvm", "torch", "native", "exact")


def arithmetic(
    fmt: Format | str | None,
    rounding: Rounding | str = "nearest_even",
    overflow: Overflow | str = "ieee",
    underflow: Underflow | str = "gradual",
    *,
    backend: str = "numpy",
    **options: Any,
) -> NumpyArithmetic | TorchArithmetic | NativeArithmetic | TorchNativeArithmetic | ExactArithmetic:
    """Return an arithmetic that rounds each result once to a format.

    Parameters
    ----------
    fmt : Format or str or None
        The format of all results; None for ``backend="exact"``, which ignores it.
    rounding : str or Rounding, optional
        A name of `Mode`.
    overflow : {"ieee", "saturate", "nearest_boundary"}, optional
        See `Overflow`.
    underflow : {"gradual", "flush_inputs", "flush_before", "flush_after"}, optional
        See `Underflow`.
    backend : {"numpy", "llvm", "torch", "native", "exact"}, optional
        ``numpy``: the emulator. ``llvm``: the same, with all algorithms on arrays compiled
        (``compiled=True``); ``numba`` means the same. ``torch``: the same on PyTorch tensors of one device.
        ``native``: the type of NumPy or ml_dtypes, or, if a ``device`` is given, of PyTorch on tensors there;
        nearest even only. ``exact``: mpmath, not rounded to a format.
    **options
        Options of the arithmetic. `NumpyArithmetic`: ``scalars``, ``threads``, ``random``, ``compiled``.
        `TorchArithmetic`: the first three of these, ``device`` (``"cpu"``, or a device on which PyTorch
        computes, such as ``"cuda"``), and ``kernels``, whether Triton kernels run algorithms there
        (gpu.md). `TorchNativeArithmetic`: ``device``. `ExactArithmetic`: ``precision`` in bits.

    Raises
    ------
    ImportError
        If the backend needs PyTorch or llvmlite, and it is not installed.
    ValueError
        If a name is unknown, or the backend does not support the arguments.
    ProcessorError
        If the processor is set to treat subnormal numbers as zeros, or not to round to nearest.

    Examples
    --------
    >>> ar = arithmetic("bfloat16")
    >>> ar.add(256.0, 1.0)
    256.0
    """
    check_processor()
    policy = get_rounding(rounding, overflow, underflow)
    if backend == "exact":
        if fmt is not None:
            get_format(fmt)  # a misspelt name is an error here too
        return ExactArithmetic(**options)
    if fmt is None:
        raise ValueError(f"backend {backend!r} needs a format")
    fmt = get_format(fmt)
    if backend == "numpy":
        return NumpyArithmetic(fmt, policy, **options)
    if backend in ("llvm", "numba"):
        if options.pop("compiled", True) is False:
            raise ValueError(f"backend {backend!r} compiles; compiled=False contradicts it")
        return NumpyArithmetic(fmt, policy, compiled=True, **options)
    if backend == "torch":
        from mcfsim.backends.torch import TorchArithmetic

        return TorchArithmetic(fmt, policy, **options)
    if backend == "native":
        if not policy.standard:
            raise ValueError(
                f"native arithmetic rounds to nearest even, over- and underflows as in IEEE 754, not {policy}"
            )
        if "device" in options:
            from mcfsim.backends.torch import TorchNativeArithmetic

            return TorchNativeArithmetic(fmt, **options)
        return NativeArithmetic(native_dtype(fmt), **options)
    raise ValueError(f"unknown backend {backend!r}; allowed: {', '.join(BACKENDS)}")


def how_compiled(arithmetics: Iterable[Any]) -> bool | None:
    """Return the common `compiled` option of several arithmetics; False if they differ.

    It is False as well if one of them is no `NumpyArithmetic`, such as a `Meter`.
    """
    kinds = list(arithmetics)
    if any(type(ar) is not NumpyArithmetic for ar in kinds):
        return False
    said = {ar.compiled for ar in kinds}
    return said.pop() if len(said) == 1 else False


def on_blocks(fmt: Format, rounding: Rounding) -> BlockArithmetic:
    """Return the emulator's operations on contiguous blocks of carrier numbers.

    Nothing is checked. Scalars enter exactly.
    """
    return BlockArithmetic(fmt, rounding, "exact")
