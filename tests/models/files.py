"""Files of tensors to read, written by others' code; small recordings to replay, and loops that make them."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

import mcfsim as mcf

#: What the safetensors format calls the dtypes of numbers, and what NumPy and ml_dtypes have for them.
DTYPES: dict[str, Any] = {
    **{"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16},
    **{"F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E5M2": ml_dtypes.float8_e5m2, "I64": np.int64, "U8": np.uint8},
}
_LABELS = {np.dtype(kind): name for name, kind in DTYPES.items()} | {np.dtype(np.complex64): "C64"}
FLOATING = tuple(name for name in DTYPES if "F" in name)


def raw_safetensors(path: Path, tensors: dict[str, Any]) -> None:
    """Write arrays, or pairs of a dtype and an array, by the format's description, without the library."""
    header, data = {}, b""
    for name, item in tensors.items():
        dtype, x = item if isinstance(item, tuple) else (_LABELS[item.dtype], item)
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


def some_tensors(seed: int = 0) -> dict[str, NDArray[Any]]:
    """Return a tensor of every dtype that is read, of several shapes."""
    rng = np.random.default_rng(seed)
    shapes = [(3, 5), (17,), (2, 3, 4), (), (1, 1), (40,), (6,), (2, 2)]
    pairs = zip(DTYPES.items(), shapes, strict=True)
    return {f"layer.{name}": np.array(rng.standard_normal(shape) * 4, kind) for (name, kind), shape in pairs}


def checkpoint(path: Path, seed: int = 0) -> dict[str, NDArray[Any]]:
    """Write a small model: a matrix, a bias and a gain; return its tensors."""
    matrix = np.random.default_rng(seed).standard_normal((32, 24)) * 0.02
    tensors = {"matrix": np.float32(matrix), "bias": np.zeros(24, "f4"), "gain": np.ones(24, "f4")}
    raw_safetensors(path, tensors)
    return tensors


# -- recordings ----------------------------------------------------------------------------------------------
SHAPES = {"matrix": (4, 3), "bias": (3,), "scale": ()}
KINDS = {"matrix": ml_dtypes.bfloat16, "bias": np.float32, "scale": np.float64}


def gradients(step: int) -> dict[str, NDArray[Any]]:
    """Return gradients that depend on the step alone, in three dtypes."""
    rng = np.random.default_rng([step, 7])
    return {name: np.array(rng.standard_normal(shape), KINDS[name]) for name, shape in SHAPES.items()}


def weights() -> dict[str, NDArray[Any]]:
    return {name: np.array(x * 4, np.float32) for name, x in gradients(0).items()}


def rate(step: int) -> float:
    return 0.01 / step


def recorded(directory: Path, steps: int = 5) -> Path:
    """Write a recording with rates; return its directory."""
    recorder = mcf.record(weights(), directory)
    for step in range(1, steps + 1):
        recorder.step(gradients(step), rate(step))
    return directory


def adam(gradients: Iterable[Any], hyper: mcf.AdamW) -> Iterator[Any]:
    """Yield Adam's directions, step by step, of the gradients of one weight, or of many."""
    m = v = 0.0
    for step, g in enumerate(gradients, 1):
        m = hyper.beta1 * m + (1 - hyper.beta1) * g
        v = hyper.beta2 * v + (1 - hyper.beta2) * g * g
        yield m / (1 - hyper.beta1**step) / (np.sqrt(v / (1 - hyper.beta2**step)) + hyper.epsilon)
