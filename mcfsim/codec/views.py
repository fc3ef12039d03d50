"""Arrays of NumPy's and ml_dtypes' own dtypes as codes, and back, in the same memory; tensors as arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.checks.arguments import as_array, is_tensor
from mcfsim.codec.codes import refuse
from mcfsim.formats import FORMATS, Format, get_format
from mcfsim.kernels.codes_by_kind import code_dtype
from mcfsim.kernels.native import native_dtype


def codes_of(array: NDArray[Any]) -> NDArray[Any]:
    """Return the codes of a NumPy or ml_dtypes floating array: its own memory, seen as unsigned integers.

    Parameters
    ----------
    array : array
        Of a dtype with a format in `mcfsim.FORMATS`; any shape and strides.

    Returns
    -------
    array of unsigned integers
        A view, read-only if the array is; of an array whose byte order is not the machine's, a copy. NaN
        keeps its payload.

    Raises
    ------
    TypeError
        If it is no array (or NumPy scalar) of such a dtype.
    """
    if not isinstance(array, np.ndarray | np.generic):
        raise TypeError(f"an array of a floating dtype has codes, not {type(array).__name__}")
    given = as_array(array, "array")
    if given.dtype.name not in FORMATS:
        raise TypeError(f"an array of dtype {given.dtype} has no codes of a known format")
    codes = np.dtype(f"u{given.dtype.itemsize}")
    if given.dtype.isnative or codes.itemsize == 1:
        return given.view(codes)
    return given.view(codes.newbyteorder(given.dtype.byteorder)).astype(codes)


def as_dtype(codes: NDArray[Any], fmt: Format | str) -> NDArray[Any]:
    """Return codes as an array of NumPy's or ml_dtypes' own dtype for the format: a view of the same memory.

    Parameters
    ----------
    codes : array of unsigned integers
        In `code_dtype` and the machine's byte order; any shape and strides. Codes of 4 and 6 bits take a byte
        each, as in ml_dtypes; see `mcfsim.codec.packing` for fewer.
    fmt : Format or str
        The format.

    Returns
    -------
    array
        A view, read-only if the codes are.

    Raises
    ------
    TypeError
        If the codes are no array of `code_dtype`.
    ValueError
        If a code has too many bits.
    UnsupportedFormatError
        If neither library has a dtype with these codes.
    """
    fmt = get_format(fmt)
    dtype = native_dtype(fmt)
    if not isinstance(codes, np.ndarray) or codes.dtype != code_dtype(fmt):
        kind = getattr(codes, "dtype", type(codes).__name__)
        raise TypeError(f"codes of {fmt} are an array of {code_dtype(fmt)}, not {kind}")
    codes = as_array(codes, "codes")
    if fmt.bits < 8 and codes.size and int(codes.max()) >= 2**fmt.bits:
        wrong = int(np.argmax(codes >= 2**fmt.bits))
        refuse(codes, wrong, f"is no code: codes of {fmt} lie in [0, 2**{fmt.bits})")
    return codes.view(dtype)


def on_host(x: Any) -> Any:
    """Return a tensor of PyTorch, of any device, as an array in the host's memory; all else as it is.

    One that is there already keeps its memory. bfloat16 and the float8 dtypes become those of ml_dtypes.

    Raises
    ------
    TypeError
        If the tensor is not dense and real, or if gradients would be lost: it requires grad, and
        ``torch.no_grad()`` is not on.
    """
    if not is_tensor(x):
        return x
    from mcfsim.kernels import torch_tensors

    return torch_tensors.as_array(torch_tensors.dense(x, x.device).cpu())
