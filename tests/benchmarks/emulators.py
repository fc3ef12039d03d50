"""Other emulators, which have a call for rounding an array."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import mcfsim as mcf
from tests.benchmarks.timing import Array, Call, Pair, installed


def emulators(x: Array, out: Array, **options: Any) -> Iterator[Pair]:
    """Rounding float32 to a format, beside the other emulators."""
    for name in ("bfloat16", "float8_e4m3fn"):
        ours = lambda name=name: mcf.round_to(x, name, out=out, **options)  # noqa: E731
        for peer, theirs in _calls(x, name).items():
            yield Pair(f"round float32 to {name}", ours, peer, theirs)


def _calls(x: Array, name: str) -> dict[str, Call]:
    """Return what rounds to a format, by the library that is installed."""
    found: dict[str, Call] = {}
    if gfloat := installed("gfloat"):
        from gfloat import formats

        infos = {
            "bfloat16": formats.format_info_bfloat16,
            "float8_e4m3fn": formats.format_info_ocp_e4m3,
        }
        found["gfloat"] = lambda: gfloat.round_ndarray(infos[name], x)
    if pychop := installed("pychop"):
        pychop.backend("numpy")
        bits = {"bfloat16": (8, 7), "float8_e4m3fn": (4, 3)}
        chop = pychop.Chop(**dict(zip(("exp_bits", "sig_bits"), bits[name], strict=True)))
        found["pychop"] = lambda: chop(x)
    return found
