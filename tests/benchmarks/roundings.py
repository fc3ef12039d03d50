"""Rounding float32 to a format, beside other libraries."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np

import mcfsim as mcf
from tests.benchmarks.timing import Array, Call, Pair, installed

#: The dtypes of libraries that have a format.
CASTS: dict[str, Any] = {
    **{"bfloat16": ml_dtypes.bfloat16, "float16": np.float16},
    **{"float8_e4m3fn": ml_dtypes.float8_e4m3fn, "float8_e5m2": ml_dtypes.float8_e5m2},
}


def casts(x: Array, out: Array, **options: Any) -> Iterator[Pair]:
    """Beside the cast of the library that has the format, and what is compiled beside what is not."""
    for name, dtype in CASTS.items():
        operation, rounded = f"round float32 to {name}", partial(mcf.round_to, x, name, out=out)
        ours, peer = partial(rounded, **options), "NumPy cast" if dtype is np.float16 else "ml_dtypes cast"
        yield Pair(operation, ours, peer, partial(x.astype, dtype))


def emulators(x: Array, out: Array, **options: Any) -> Iterator[Pair]:
    """Beside the other emulators, which have a call for rounding an array."""
    for name in ("bfloat16", "float8_e4m3fn"):
        ours = partial(mcf.round_to, x, name, out=out, **options)
        for peer, theirs in _calls(x, name).items():
            yield Pair(f"round float32 to {name}", ours, peer, theirs)


def _calls(x: Array, name: str) -> dict[str, Call]:
    """Return what rounds to a format, by the library that is installed."""
    found: dict[str, Call] = {}
    if gfloat := installed("gfloat"):
        from gfloat import formats

        infos = {"bfloat16": formats.format_info_bfloat16, "float8_e4m3fn": formats.format_info_ocp_e4m3}
        found["gfloat"] = partial(gfloat.round_ndarray, infos[name], x)
    if pychop := installed("pychop"):
        pychop.backend("numpy")
        bits = {"bfloat16": (8, 7), "float8_e4m3fn": (4, 3)}
        chop = pychop.Chop(**dict(zip(("exp_bits", "sig_bits"), bits[name], strict=True)))
        found["pychop"] = partial(chop, x)
    return found
