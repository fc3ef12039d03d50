"""Matrix products of tensors as matrix units sum them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from mcfsim.compile.choice import check_wanted
from mcfsim.compile.torch_contraction import TensorContraction
from mcfsim.kernels.torch_tensors import check_dense
from mcfsim.products.matrix_products import products_of
from mcfsim.products.unit_lines import group_line
from mcfsim.products.unit_products import UnitProducts
from mcfsim.products.units import Unit, get_unit
from mcfsim.scaled import Scaled

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
        Whether the sums are a Triton kernel; by default where there is a GPU that runs it. Else a CPU takes
        compiled loops or NumPy, and other devices PyTorch's operations.

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
