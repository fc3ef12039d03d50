"""Small recordings to replay, and loops that make them."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

import mcfsim as mcf

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
