"""Files of tensors to read: good ones of every kind, written by others' code."""

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

#: What the safetensors format calls the dtypes of numbers, and what NumPy and ml_dtypes have for them.
DTYPES: dict[str, Any] = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E5M2": ml_dtypes.float8_e5m2,
    "I64": np.int64,
    "U8": np.uint8,
}


def raw_safetensors(path: Path, tensors: dict[str, tuple[str, NDArray[Any]]]) -> None:
    """Write a safetensors file by the format's description, without the library."""
    header, data = {}, b""
    for name, (dtype, x) in tensors.items():
        end = len(data) + x.nbytes
        header[name] = {"dtype": dtype, "shape": list(x.shape), "data_offsets": [len(data), end]}
        data += x.tobytes()
    path.write_bytes(with_header(header, data))


def header_of(data: bytes) -> tuple[dict[str, Any], bytes]:
    """Return header and data of a safetensors file by the format's description."""
    start = 8 + int.from_bytes(data[:8], "little")
    return json.loads(data[8:start]), data[start:]


def with_header(header: Any, data: bytes) -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def some_tensors(seed: int = 0) -> dict[str, tuple[str, NDArray[Any]]]:
    """Return a tensor of every dtype that is read, of several shapes."""
    rng = np.random.default_rng(seed)
    shapes = [(3, 5), (17,), (2, 3, 4), (), (1, 1), (40,), (6,), (2, 2)]
    made = {}
    for (dtype, kind), shape in zip(DTYPES.items(), shapes, strict=True):
        made[f"layer.{dtype}"] = dtype, (rng.standard_normal(shape) * 4).astype(kind)
    return made


def checkpoint(path: Path, seed: int = 0, dtype: str = "F32") -> dict[str, NDArray[Any]]:
    """Write a small model: a matrix, a bias and a gain; return its tensors."""
    rng = np.random.default_rng(seed)
    tensors = {"matrix": rng.standard_normal((32, 24)) * 0.02, "bias": np.zeros(24), "gain": np.ones(24)}
    cast = {name: x.astype(DTYPES[dtype]) for name, x in tensors.items()}
    raw_safetensors(path, {name: (dtype, x) for name, x in cast.items()})
    return cast
