"""Public calls, made while the processor rounds in some direction: ``python processor_calls.py MODE``.

Prints how many calls there are, and what is wrong with those that are not refused.
"""

import ctypes
import json
import platform
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from typing import Any

import numpy as np

import mcfsim as mcf
from mcfsim.checks.processor import RoundingDirectionError
from mcfsim.multiword import shewchuk, summation
from mcfsim.optim.optimizer import Optimizer
from mcfsim.rounding import Rounding
from mcfsim.theorems import THEOREMS, examine
from mcfsim.theorems.check import Check
from mcfsim.training import metrics

#: Of `fesetround`, by machine: upward, downward, toward zero. To nearest is 0 on both.
MODES = {
    "x86_64": {"upward": 0x800, "downward": 0x400, "toward zero": 0xC00},
    "aarch64": {"upward": 0x400000, "downward": 0x800000, "toward zero": 0xC00000},
}
X, Y = np.float32([1.0, 1.5, -0.375, 3.0]), np.float32([0.0078125, 2.0, 1.0, -1.0])
PAIR = (X, np.zeros_like(X))
LARGE = np.ones(1 << 18, np.float32)
AR = mcf.arithmetic("bfloat16")
CALLS: dict[str, Callable[[], Any]] = {}


def add_arithmetics() -> None:
    arithmetics = {
        "bfloat16": AR,
        "float16": mcf.arithmetic("float16"),
        "float32": mcf.arithmetic("float32"),
        "float64": mcf.arithmetic("float64"),
        "posit16": mcf.arithmetic("posit16"),
        "up": mcf.arithmetic("bfloat16", "up"),
        "stochastic": mcf.arithmetic("bfloat16", "stochastic", random=mcf.RandomWords(1)),
        "compiled": mcf.arithmetic("bfloat16", compiled=True),
        "native": mcf.arithmetic("float32", backend="native"),
    }
    for name, ar in arithmetics.items():
        for operation in ("add", "sub", "mul", "div"):
            CALLS[f"{operation} of {name}"] = lambda ar=ar, o=operation: getattr(ar, o)(X, Y)
        CALLS[f"sqrt of {name}"] = lambda ar=ar: ar.sqrt(np.abs(X))
        CALLS[f"round of {name}"] = lambda ar=ar: ar.round(X)
        CALLS[f"scalars of {name}"] = lambda ar=ar: ar.add(1.0, 0.5)
        if name not in ("native", "float64"):
            CALLS[f"fma of {name}"] = lambda ar=ar: ar.fma(X, Y, X)
            CALLS[f"quotient by a number of {name}"] = lambda ar=ar: ar.div(X, 3.0)
        CALLS[f"two_sum of {name}"] = lambda ar=ar: mcf.two_sum(ar, X, Y)
    threads = mcf.arithmetic("bfloat16", threads=2)
    CALLS["threads"] = lambda: threads.add(LARGE, LARGE)
    CALLS["compiled threads"] = lambda: mcf.two_sum(
        mcf.arithmetic("bfloat16", compiled=True, threads=2), LARGE, LARGE
    )
    meter = mcf.Meter(AR)
    CALLS["meter"] = lambda: meter.add(X, Y)


def add_functions() -> None:
    matrix = np.ones((4, 4), np.float32)
    scaled = mcf.quantize(X, "mxfp8_e4m3")
    CALLS.update(
        {
            "arithmetic": lambda: mcf.arithmetic("bfloat16"),
            "fast_two_sum": lambda: mcf.fast_two_sum(AR, X, Y),
            "two_prod": lambda: mcf.two_prod(AR, X, Y),
            "two_prod_fma": lambda: mcf.two_prod_fma(AR, X, Y),
            "split": lambda: mcf.split(AR, X),
            "round_to": lambda: mcf.round_to(X, "bfloat16"),
            "round_to number": lambda: mcf.round_to(0.1, "bfloat16"),
            "round_to fraction": lambda: mcf.round_to(Fraction(1, 3), "bfloat16"),
            "round_to many": lambda: mcf.round_to(LARGE, "bfloat16", threads=2),
            "encode": lambda: mcf.codec.encode(X, "bfloat16"),
            "decode": lambda: mcf.codec.decode(np.uint16([1, 2]), "bfloat16"),
            "next_up": lambda: mcf.codec.next_up(X, "bfloat16"),
            "next_down": lambda: mcf.codec.next_down(X, "bfloat16"),
            "ulp": lambda: mcf.codec.ulp(X, "bfloat16"),
            "quantize": lambda: mcf.quantize(X, "mxfp8_e4m3"),
            "quantize to nvfp4": lambda: mcf.quantize(X, "nvfp4"),
            "dequantize": lambda: scaled.dequantize(),
            "dot": lambda: mcf.dot(X, X, mcf.Accumulator("bfloat16", block=1)),
            "matmul": lambda: mcf.matmul(matrix, matrix, mcf.Accumulator("bfloat16", block=2)),
            "expand": lambda: mcf.expand(AR, 0.1, 2),
            "expansion_add": lambda: mcf.expansion_add(AR, PAIR, PAIR),
            "expansion_mul": lambda: mcf.expansion_mul(AR, PAIR, PAIR),
            "expansion_div": lambda: mcf.expansion_div(AR, PAIR, PAIR),
            "expansion_sqrt": lambda: mcf.expansion_sqrt(AR, (np.abs(X), PAIR[1])),
            "expansion_scale": lambda: mcf.expansion_scale(AR, PAIR, X),
            "grow": lambda: mcf.grow(AR, PAIR, X),
            "renormalize": lambda: mcf.renormalize(AR, PAIR),
            "recursive_sum": lambda: summation.recursive_sum(AR, (X, Y, X)),
            "kahan_sum": lambda: summation.kahan_sum(AR, (X, Y, X)),
            "dw_sum": lambda: summation.dw_sum(AR, (X, Y, X)),
            "neumaier_sum": lambda: summation.neumaier_sum(AR, (X, Y, X)),
            "vec_sum": lambda: shewchuk.vec_sum(AR, (X, Y)),
            "grow_expansion": lambda: shewchuk.grow_expansion(AR, (X, Y), X),
            "expansion_sum": lambda: shewchuk.expansion_sum(AR, (X, Y), (X, Y)),
            "edq": lambda: metrics.edq(X, Y),
            "ulp_error": lambda: metrics.ulp_error(X, Y, "bfloat16"),
            "relative_error": lambda: metrics.relative_error(X, Y),
            "schedule": lambda: mcf.Schedule(0.1, warmup=3, final=0.1).rate(2, 10),
        }
    )


def add_work() -> None:
    problem = mcf.get_problem("quadratic", dimension=4, condition_number=10.0)
    for name, hyper in {"AdamW": mcf.AdamW(), "SGD": mcf.SGD()}.items():
        for strategy in ("plain", "plus", "kahan"):
            if strategy in mcf.STRATEGIES:
                optimizer = Optimizer(
                    hyper, mcf.strategy(strategy, "bfloat16"), {"x": np.ones(4, np.float32)}
                )
                CALLS[f"{name} {strategy}"] = lambda o=optimizer: o.step(np.ones(4, np.float32), 0.1)
    certificate = mcf.verify("two_sum", "e3m2")
    CALLS["simulate"] = lambda: mcf.simulate(problem, steps=1, progress=False)
    CALLS["verify"] = lambda: mcf.verify("two_sum", "e3m2")
    CALLS["verify in threads"] = lambda: mcf.verify("two_sum", "e3m2", workers=2, kind="threads")
    CALLS["a unit"] = lambda: Check(THEOREMS["two_sum"], mcf.get_format("e3m2"), Rounding())(0, 2)
    CALLS["examine"] = lambda: examine(certificate)


def add_torch() -> None:
    try:
        import torch
    except ImportError:
        return
    import mcfsim.torch as optimizers

    ones = torch.ones(4)
    ar = mcf.arithmetic("bfloat16", backend="torch")
    native = mcf.arithmetic("bfloat16", backend="native", device="cpu")
    parameter = torch.nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
    parameter.grad = torch.ones(4, dtype=torch.bfloat16)
    CALLS.update(
        {
            "torch add": lambda: ar.add(ones, ones),
            "torch scalar": lambda: ar.mul(ones, 0.1),
            "torch two_sum": lambda: mcf.two_sum(ar, ones, ones),
            "native torch": lambda: native.add(parameter.grad, parameter.grad),
            "native torch scalar": lambda: native.round(0.1),
            "round_to tensors": lambda: mcf.round_to(ones, "bfloat16"),
        }
    )
    for kind in (optimizers.AdamW, optimizers.SGD, optimizers.TorchAdamW):
        CALLS[f"torch {kind.__name__}"] = kind([parameter], lr=0.1).step


def tried(call: Callable[[], Any], mode: int, direction: str) -> str:
    """Return what is wrong with a call in a direction; nothing if it is refused as it should be."""
    library = ctypes.CDLL(None)
    if library.fesetround(mode):
        return "the direction cannot be set"
    try:
        call()
    except RoundingDirectionError as problem:
        said = str(problem)
        return "" if f"rounds {direction} and" in said and "fesetround(0)" in said else said
    except Exception as problem:
        return f"{type(problem).__name__}: {problem}"
    else:
        return "it is not refused"
    finally:
        library.fesetround(0)


def main() -> None:
    for add in (add_arithmetics, add_functions, add_work, add_torch):
        add()
    wrong = {}
    for direction, mode in MODES[platform.machine()].items():
        for name, call in CALLS.items():
            call()  # to nearest it works
            if problem := tried(call, mode, direction):
                wrong[f"{direction}: {name}"] = problem
            with ThreadPoolExecutor(1) as pool:
                if problem := pool.submit(tried, call, mode, direction).result():
                    wrong[f"{direction}, in a thread: {name}"] = problem
        for name, call in CALLS.items():
            try:
                call()
            except Exception as problem:
                wrong[f"afterwards: {name}"] = str(problem)
    json.dump({"calls": len(CALLS), "wrong": wrong}, sys.stdout)


if __name__ == "__main__":
    main()
