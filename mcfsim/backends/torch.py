"""The emulator on PyTorch's CPU tensors: the same bits as on NumPy arrays, without a copy on the way in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from copy import copy
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.backends.block_arithmetic import BlockArithmetic
from mcfsim.backends.numpy import NumpyArithmetic
from mcfsim.formats import FORMATS, Format
from mcfsim.kernels.carriers import UnsupportedFormatError
from mcfsim.kernels.real_numbers import Scalars
from mcfsim.protocol import Value
from mcfsim.random import RandomWords
from mcfsim.rounding import Rounding
from mcfsim.storage.buffers import BLOCK

try:
    import torch
except ModuleNotFoundError as error:
    raise ImportError("backend 'torch' needs PyTorch: pip install 'mcfsim[torch]'") from error

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
#: The dtypes of torch whose values are those of a format; the longest ones first.
TORCH_DTYPES: dict[torch.dtype, Format] = {getattr(torch, name): FORMATS[name] for name in _NAMES}
#: NumPy knows these only by way of ml_dtypes, as which their bits are read.
_FOREIGN = {torch.bfloat16, *(dtype for dtype in TORCH_DTYPES if dtype.itemsize == 1)}
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
    raise UnsupportedFormatError(f"no torch dtype holds {fmt}; those that one holds: {', '.join(_NAMES)}")


def as_array(tensor: torch.Tensor) -> NDArray[Any]:
    """Return a CPU tensor as a NumPy array of the same memory, shape and strides.

    bfloat16 and the float8 dtypes become those of ml_dtypes, bit for bit.

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
    if tensor.is_complex() or tensor.is_quantized:
        raise TypeError(f"a tensor of dtype {tensor.dtype} holds no plain real numbers")
    if tensor.requires_grad and torch.is_grad_enabled():
        raise TypeError(
            "a tensor that requires grad is not differentiated through; pass tensor.detach(), or compute "
            "under torch.no_grad()"
        )
    tensor = tensor.detach()
    if tensor.dtype not in _FOREIGN:
        array: NDArray[Any] = tensor.numpy()
        return array
    import ml_dtypes

    scalar = getattr(ml_dtypes, TORCH_DTYPES[tensor.dtype].name)
    bits: NDArray[Any] = tensor.view(_BITS[tensor.itemsize]).numpy()
    return bits.view(scalar)


class TorchArithmetic:
    """Emulated arithmetic of one format and rounding on PyTorch's CPU tensors.

    Every operation is the one of `NumpyArithmetic`, on the tensors' own memory, and so has its bits.

    Parameters
    ----------
    fmt : Format
        Where every result is rounded.
    rounding : Rounding
        Mode and overflow policy.
    device : str or torch.device, optional
        ``"cpu"``; others are refused.
    scalars, threads, random
        As for `NumpyArithmetic`, whose random words an element of the same index gets.

    Attributes
    ----------
    carrier : torch.dtype
        Of all results: ``float32`` where it holds every value of the format, else ``float64``.

    Notes
    -----
    Operands are dense CPU tensors of any shape that broadcast, of any real dtype (bfloat16 and float8
    included) whose elements are values of the format, or Python numbers. Results are new tensors; if all
    operands are Python numbers, so is the result. Nothing is differentiated: a tensor that requires grad is
    refused, unless gradients are switched off by ``torch.no_grad()`` anyway.

    Raises
    ------
    ValueError
        If the device is not supported.
    UnsupportedFormatError
        If float64 does not hold the format, or an operation has no exact path.
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
    ) -> None:
        if torch.device(device).type != "cpu":
            raise ValueError(f"device {str(device)!r} is not supported; supported: 'cpu'")
        self._numpy: NumpyArithmetic | BlockArithmetic = NumpyArithmetic(
            fmt, rounding, scalars=scalars, threads=threads, random=random
        )

    def _over(self, arithmetic: NumpyArithmetic | BlockArithmetic) -> TorchArithmetic:
        """Return the same arithmetic, carried out by another one on the tensors' memory."""
        other = copy(self)
        other._numpy = arithmetic
        return other

    def __repr__(self) -> str:
        return repr(self._numpy).replace("Numpy", "Torch", 1)

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

    @staticmethod
    def _call(operation: Callable[..., Any], *operands: Any) -> Any:
        return _map(np.ndarray, torch.from_numpy, operation(*_map(torch.Tensor, as_array, operands)))


def _map(kind: type, change: Callable[[Any], Any], tree: Any) -> Any:
    """Change the leaves of this kind in nested tuples."""
    if isinstance(tree, tuple | list):
        return tuple(_map(kind, change, item) for item in tree)
    return change(tree) if isinstance(tree, kind) else tree


def flat(tensor: torch.Tensor) -> Any:
    """Return the elements of a tensor in row-major order, whose slices can be read and written."""
    array = as_array(tensor)
    return array.reshape(-1) if array.flags.c_contiguous else array.flat


def cut(sizes: Iterable[int]) -> Iterator[list[tuple[int, slice, slice]]]:
    """Cut tensors, strung together, into blocks, so that small ones share a block.

    Yields
    ------
    list of (int, slice, slice)
        The pieces of a block: which tensor, its elements, and where in the block they lie.
    """
    pieces: list[tuple[int, slice, slice]] = []
    filled = 0
    for index, size in enumerate(sizes):
        start = 0
        while start < size:
            length = min(size - start, BLOCK - filled)
            pieces.append((index, slice(start, start + length), slice(filled, filled + length)))
            start, filled = start + length, filled + length
            if filled == BLOCK:
                yield pieces
                pieces, filled = [], 0
    if pieces:
        yield pieces
