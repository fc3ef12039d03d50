"""What users call, as they call it, beside a copy and beside peers; and the limits: loops into memory there.

One thread but where two are said, medians of one run. They measure and test nothing.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
from rich.console import Console

import mcfsim as mcf
from experiments.common import write_result
from mcfsim.compile.loops import Loop
from mcfsim.compile.tracing import trace
from tests.benchmarks import roundings, steps, timing
from tests.benchmarks.timing import SIZE, Array, Call, Pair, installed

#: The strategies whose steps are timed.
STRATEGIES = ("plain", "kahan", "collage-light", "collage-plus", "fp32-master")
COPY, SAME = "copy of float32", "same algorithm to nearest, ml_dtypes"


def calls(x: Array) -> Iterator[Pair]:
    """Rounding, codes, blocks and algorithms, with new arrays for the results."""
    copy = partial(np.copy, x)
    for name, dtype in roundings.CASTS.items():
        peer = "NumPy cast" if dtype is np.float16 else "ml_dtypes cast"
        yield Pair(f'round_to(x, "{name}")', partial(mcf.round_to, x, name), peer, partial(x.astype, dtype))
    words = mcf.RandomWords(1)
    for name in ("bfloat16", "float8_e4m3fn"):
        drawn = partial(mcf.round_to, x, name, "stochastic", random=words)
        yield Pair(f'round_to(x, "{name}", "stochastic", random=words)', drawn, COPY, copy)
    for name in ("bfloat16", "float8_e4m3fn"):
        values = mcf.round_to(x, name, overflow="saturate")
        codes = mcf.codec.encode(values, name)
        own = codes.view(roundings.CASTS[name])
        encode, decode = partial(mcf.codec.encode, values, name), partial(mcf.codec.decode, codes, name)
        cast = partial(values.astype, roundings.CASTS[name])
        yield Pair(f'codec.encode(values, "{name}")', encode, "ml_dtypes cast", cast)
        yield Pair(
            f'codec.decode(codes, "{name}")', decode, "ml_dtypes cast", partial(own.astype, np.float32)
        )
    for name in ("mxfp8_e4m3", "mxfp4", "nvfp4"):
        scaled = mcf.quantize(x, name)
        yield Pair(f'quantize(x, "{name}")', partial(mcf.quantize, x, name), COPY, copy)
        yield Pair(f'scaled.dequantize(), of "{name}"', scaled.dequantize, COPY, copy)
    a, b = timing.addends(x, "bfloat16")
    theirs = [y.astype(ml_dtypes.bfloat16) for y in (a, b)]
    native = partial(mcf.two_sum, mcf.arithmetic("bfloat16", backend="native"), *theirs)
    for mode in ("nearest_even", "up"):
        ar = mcf.arithmetic("bfloat16", mode)
        ours = partial(mcf.two_sum, ar, a, b)
        yield Pair(f'two_sum(arithmetic("bfloat16", "{mode}"), a, b)', ours, SAME, native)


def optimizers(x: Array) -> Iterator[Pair]:
    """Steps of AdamW on packed vectors, on one thread and two."""
    for name in STRATEGIES:
        one, two = (_step(name, x, threads=threads) for threads in (1, 2))
        fused = steps.fused_step(x, steps.PARAMETERS) if installed("torch") else None
        if fused is not None:
            yield Pair(f"a step of AdamW, {name}", one, steps.FUSED, fused)
        yield Pair(f"a step of AdamW, {name}, two threads", two, "one thread", one)


def _step(name: str, x: Array, **options: Any) -> Call:
    made, gradient = timing.optimizer(name, x, steps.PARAMETERS, packed=True, compiled=True, **options)
    return partial(made.step, gradient, 1e-3)


def limits(x: Array) -> Iterator[Pair]:
    """The same where memory for the results is there, beside a copy into memory that is there."""
    out = np.empty_like(x)
    copy, words = partial(np.copyto, out, x), mcf.RandomWords(1)
    for name in roundings.CASTS:
        codes = np.empty(x.shape, mcf.codec.encode(mcf.round_to(x[:2], name), name).dtype)
        for mode in ("nearest_even", "nearest_away", "toward_zero", "up", "to_odd", "stochastic"):
            rounded = partial(mcf.round_to, x, name, mode, random=words, compiled=True)
            yield Pair(f"round to {name}, {mode}", partial(rounded, out=out), COPY, copy)
            yield Pair(f"round to codes of {name}, {mode}", partial(rounded, out=codes), COPY, copy)
    a, b = timing.addends(x, "bfloat16")
    for mode in ("nearest_even", "toward_zero", "up"):
        loop = Loop(trace(mcf.two_sum, "bfloat16", mode), checked=True).with_scalars({})
        filled = partial(loop, [a, b], [np.empty_like(a), np.empty_like(a)])
        yield Pair(f"two_sum in bfloat16, {mode}", filled, COPY, copy)


def main() -> None:
    """Time all, print two tables, and write the result file."""
    warnings.simplefilter("ignore")  # of the peers
    x, start = timing.drawn(), time.perf_counter()
    used, limit = timing.pair_table("what users call; medians"), timing.pair_table("limits; medians")
    rows = timing.measured(calls(x), SIZE, used) + timing.measured(optimizers(x), steps.PARAMETERS, used)
    fewest = timing.measured(limits(x), SIZE, limit)
    Console().print(used, limit, f"{time.perf_counter() - start:.0f} s in all")
    versions = timing.about("ml_dtypes", "llvmlite", "torch")
    found = {"versions": versions, "size": SIZE, "parameters": steps.PARAMETERS}
    write_result("calls", found | {"calls": rows, "limits": fewest})


if __name__ == "__main__":
    main()
