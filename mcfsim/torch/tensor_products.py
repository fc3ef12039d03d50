"""Products of tensors: as matrix units sum them, or by a recipe, quantised with the bits of NumPy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mcfsim.compile.choice import check_wanted
from mcfsim.compile.torch_calls import check_machine
from mcfsim.compile.torch_kernels import TensorContraction
from mcfsim.convert import round_to
from mcfsim.formats import FORMATS
from mcfsim.kernels.torch_tensors import check_dense
from mcfsim.products.matrix_products import products_of
from mcfsim.products.unit_lines import group_line
from mcfsim.products.unit_products import UnitProducts
from mcfsim.products.units import Unit, get_unit
from mcfsim.random import RandomWords
from mcfsim.recipes.linear_layer import Entered, NumPyProducts, by_unit, signs_in
from mcfsim.recipes.recipe import OperandRecipe, ProductRecipe
from mcfsim.scaled import Scaled, ScaledFormat
from mcfsim.scaled.hadamard_transform import butterflies, factor_of, signs_of
from mcfsim.torch.quantized import has_line, on_device
from mcfsim.torch.tensor_scales import inside_of_deviation

_NUMPY = NumPyProducts()


#: What PyTorch calls float32 products whose operands are not shortened: by default, and when asked for.
_FULL = ("none", "ieee")


@contextmanager
def _in_binary32(device: torch.device) -> Iterator[None]:
    """Keep PyTorch from multiplying float32 in shorter dtypes, whatever the user allowed, autocast too."""
    on = torch.is_autocast_enabled(device.type)
    with torch.autocast(device.type, enabled=False) if on else nullcontext(), _unshortened():
        yield


@contextmanager
def _unshortened() -> Iterator[None]:
    """Let products of float32 take all bits of their operands."""
    backends = [torch.backends.cuda.matmul, getattr(torch.backends.mkldnn, "matmul", None)]
    if not all(hasattr(backend, "fp32_precision") for backend in backends):  # PyTorch below 2.9
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("highest")
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before)
        return
    # The older setting is not read: it raises where the newer ones contradict it.
    changed = [(x, x.fp32_precision) for x in backends if x.fp32_precision not in _FULL]
    for backend, _ in changed:
        backend.fp32_precision = "ieee"
    try:
        yield
    finally:
        for backend, precision in changed:
            backend.fp32_precision = "none"
            # A setting of all backends is not repeated for this one.
            if backend.fp32_precision != precision:
                backend.fp32_precision = precision


class TensorProducts:
    """Products of tensors of float32 on any device.

    Parameters
    ----------
    units : bool, optional
        Whether a matrix unit multiplies. It takes elements and scales apart, so NumPy quantises the operands.
    operations : bool, optional
        Whether operands are quantised and rotated by PyTorch's operations, with the same bits; by default,
        those on devices other than the CPU are. Cases without a line of operations are computed by NumPy.
    """

    def __init__(self, *, units: bool = False, operations: bool | None = None) -> None:
        self._units, self._operations = units, operations

    def _by_operations(self, x: torch.Tensor) -> bool:
        return x.device.type != "cpu" if self._operations is None else self._operations

    def enter(self, x: torch.Tensor, recipe: OperandRecipe, words: RandomWords | None) -> Entered:
        """Quantise a matrix whose contracted axis is the last."""
        if recipe.format is None:
            return Entered(x)
        fmt, random = recipe.format, words if recipe.stochastic else None
        if self._by_operations(x):
            x = x.detach()
            if not isinstance(fmt, ScaledFormat):
                return Entered(round_to(x, fmt, recipe.rounding, random=random).to(torch.float32))
            if not self._units and has_line(fmt, recipe.rounding):
                check_machine(x.device)
                # A number of binary64 is rounded once, as `mcfsim.scaled.Scaled.in_binary32` says.
                values = on_device(x, fmt, recipe.rounding, -1, random).to(torch.float32)
                return Entered(values, None, inside_of_deviation(x, fmt) if recipe.clips else None)
        found = _NUMPY.enter(in_numpy(x), recipe, words)
        inside = None if found.inside is None else torch.from_numpy(found.inside).to(x.device)
        return Entered(torch.from_numpy(found.values).to(x.device), found.scaled, inside)

    def rotate(
        self, x: torch.Tensor, product: ProductRecipe, words: RandomWords | None, *, back: bool = False
    ) -> torch.Tensor:
        """Transform the last axis, padded with zeros to a multiple of the order; or transform it back."""
        if not self._by_operations(x):
            return torch.from_numpy(_NUMPY.rotate(in_numpy(x), product, words, back=back)).to(x.device)
        size = product.hadamard
        filled = torch.nn.functional.pad(x, (0, -x.shape[1] % size))
        signs = torch.from_numpy(signs_of(signs_in(product, words), size)).to(x.device)
        groups = filled.reshape(-1, size)
        columns = (groups if back else groups * signs).T.contiguous()
        made = butterflies(columns, size, _sums_and_differences).T * factor_of(size, FORMATS["float32"])
        return (made * signs if back else made).reshape(filled.shape)

    def multiply(self, a: Entered, b: Entered, product: ProductRecipe) -> torch.Tensor:
        """Return ``a b'``, rounded to the output's format."""
        if product.unit is None:
            with _in_binary32(a.values.device):
                found = a.values @ b.values.T
        else:
            left, right = (x._replace(values=in_numpy(x.values)) for x in (a, b))
            device = a.values.device
            found = torch.from_numpy(by_unit(left, right, product, on_host_by(device))).to(device)
        return self.rounded(found, product)

    def rounded(self, x: torch.Tensor, product: ProductRecipe) -> torch.Tensor:
        """Return numbers rounded to the output's format."""
        output = product.output
        if output is None or output == FORMATS["bfloat16"]:
            return x if output is None else x.bfloat16().float()
        return round_to(x.detach(), output).to(torch.float32)


def _sums_and_differences(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    return torch.stack((first + second, first - second), dim=1)


def in_numpy(x: torch.Tensor) -> NDArray[np.float32]:
    """Return a tensor of float32 as an array, in the same memory if that is the CPU's and contiguous.

    This avoids ``numpy()``, after which PyTorch refuses to resize the memory, as FSDP2 does with weights.
    """
    found: NDArray[Any] = np.from_dlpack(x.detach().contiguous().cpu())
    return found


# -- as matrix units sum them -----------------------------------------------------------------------------
#: Rows and columns that a device computes at a time.
_ROWS, _COLUMNS = 1 << 12, 1 << 12


def matmul(
    a: torch.Tensor | Scaled,
    b: torch.Tensor | Scaled,
    unit: Unit | str,
    *,
    c: torch.Tensor | None = None,
    promote_every: int | None = None,
    split_k: int = 1,
    threads: int = 1,
    kernels: bool | None = None,
) -> torch.Tensor:
    """Return matrix products of tensors with the bits of `mcfsim.matmul` by a unit.

    Parameters
    ----------
    a, b : tensor or Scaled
        On one device. See `mcfsim.matmul`; the format of a number is that of the tensor's dtype, if it is one
        of the unit's. `Scaled` operands are arrays of the host.
    unit, c, promote_every, split_k, threads
        See `mcfsim.matmul`.
    kernels : bool, optional
        Whether the sums are a Triton kernel; by default if a GPU can run it. Otherwise a CPU uses
        compiled loops or NumPy, and other devices use PyTorch's operations.

    Returns
    -------
    tensor of float32 or float64
        On the device of the operands. Nothing is recorded for gradients.

    Raises
    ------
    TypeError, ValueError
        See `mcfsim.matmul`; or if tensors lie on different devices.
    ImportError, ValueError
        If `kernels` is True and kernels cannot run.

    Notes
    -----
    Operands are looked at and prepared on the host, in time that grows with their size alone.

    Examples
    --------
    >>> x = torch.ones(1, 20000)
    >>> [float(matmul(x, x.T, "hopper_fp8", promote_every=n)) for n in (None, 128)]
    [16384.0, 20000.0]
    """
    check_wanted("kernels", kernels)
    tensors = {"a": a, "b": b} | ({} if c is None else {"c": c})
    devices = set()
    for label, x in tensors.items():
        if isinstance(x, torch.Tensor):
            devices.add(x.device)
        elif label == "c" or not isinstance(x, Scaled):
            raise TypeError(f"{label} must be a tensor, not {type(x).__name__}")
    if len(devices) > 1:
        raise ValueError(f"tensors lie on different devices: {', '.join(sorted(map(str, devices)))}")
    for x in tensors.values():
        if isinstance(x, torch.Tensor):
            check_dense(x.detach())
    device = devices.pop() if devices else torch.device("cpu")
    way = _way(unit, promote_every, split_k, device, kernels)
    given = {label: _on_host(x) for label, x in tensors.items()}
    made = products_of(way, given["a"], given["b"], given.get("c"), threads)
    return torch.as_tensor(made, device=device)


def on_host_by(device: torch.device) -> Callable[..., Any]:
    """Return `mcfsim.matmul` by units, of operands on the host, whose sums a device computes."""

    def multiply(a: Any, b: Any, *, unit: Unit | str, promote_every: int | None = None) -> Any:
        return products_of(_way(unit, promote_every, 1, device, None), a, b, None, 1)

    return multiply


def _way(
    unit: Unit | str, promote_every: int | None, split_k: int, device: torch.device, kernels: bool | None
) -> UnitProducts:
    if device.type == "cpu" and not kernels:
        return UnitProducts(unit, promote_every, split_k)
    contraction = TensorContraction(group_line(get_unit(unit)), device, kernels)
    return UnitProducts(unit, promote_every, split_k, contraction, (_ROWS, _COLUMNS))


def _on_host(x: Any) -> Any:
    return x.detach().cpu().resolve_neg() if isinstance(x, torch.Tensor) else x
