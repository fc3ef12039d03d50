"""Public calls, to be made while the processor rounds in some direction or flushes."""

import itertools
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np

import mcfsim as mcf
from mcfsim.multiword import shewchuk, summation
from mcfsim.optim.optimizer import Optimizer
from mcfsim.products.matrix_products import products_of
from mcfsim.products.unit_lines import group_line
from mcfsim.products.unit_products import UnitProducts
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
PAIR, HALF = (X, np.zeros_like(X)), np.float16([[0.5]])
LARGE = np.ones(1 << 18, np.float32)
AR = mcf.arithmetic("bfloat16")
CALLS: dict[str, Callable[[], Any]] = {}


def add_arithmetics() -> None:
    arithmetics = {
        **{name: mcf.arithmetic(name) for name in ("bfloat16", "float16", "float32", "float64", "posit16")},
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
    threads, compiled = (mcf.arithmetic("bfloat16", compiled=x, threads=2) for x in (None, True))
    CALLS["threads"] = lambda: threads.add(LARGE, LARGE)
    CALLS["compiled threads"] = lambda: mcf.two_sum(compiled, LARGE, LARGE)
    CALLS["meter"] = partial(mcf.Meter(AR).add, X, Y)


def add_functions() -> None:
    matrix = np.ones((4, 4), np.float32)
    on_arithmetic: list[tuple[Any, ...]] = [
        *((function, X, Y) for function in (mcf.fast_two_sum, mcf.two_prod, mcf.two_prod_fma)),
        *((function, PAIR, PAIR) for function in (mcf.expansion_add, mcf.expansion_mul, mcf.expansion_div)),
        *((mcf.split, X), (mcf.expand, 0.1, 2), (mcf.expansion_sqrt, (np.abs(X), PAIR[1]))),
        *((mcf.expansion_scale, PAIR, X), (mcf.grow, PAIR, X), (mcf.renormalize, PAIR)),
        *((getattr(summation, f"{x}_sum"), (X, Y, X)) for x in ("recursive", "kahan", "dw", "neumaier")),
        *((shewchuk.vec_sum, (X, Y)), (shewchuk.grow_expansion, (X, Y), X)),
        (shewchuk.expansion_sum, (X, Y), (X, Y)),
    ]
    alone: list[tuple[Any, ...]] = [
        *((getattr(mcf.codec, name), X, "bfloat16") for name in ("encode", "next_up", "next_down", "ulp")),
        *((mcf.codec.decode, np.uint16([1, 2]), "bfloat16"), (mcf.round_to, X, "bfloat16")),
        *((mcf.quantize, X, "mxfp8_e4m3"), (mcf.dot, X, X, mcf.Accumulator("bfloat16", block=1))),
        (mcf.matmul, matrix, matrix, mcf.Accumulator("bfloat16", block=2)),
        *((metrics.edq, X, Y), (metrics.relative_error, X, Y), (metrics.ulp_error, X, Y, "bfloat16")),
        *((metrics.lost_fraction, X, Y), (metrics.released_imprecision, X, Y), (mcf.expansion.value, (0.1,))),
        *((mcf.arithmetic, "bfloat16"), (shewchuk.merge, (X, Y), (X,))),
    ]
    for function, *given in alone:
        CALLS[function.__name__] = partial(function, *given)
    for function, *given in on_arithmetic:
        CALLS[function.__name__] = partial(function, AR, *given)
    array = mcf.array(X, "bfloat16")
    for item in (np.add, np.equal, np.less, np.sum, np.max, np.min, np.sort, np.argmax, np.nonzero, np.any):
        operands = [array] * getattr(item, "nin", 1)
        CALLS[f"{item.__name__} of a rounded array"] = partial(item, *operands)
    for kind in (float, bool):
        CALLS[f"{kind.__name__} of a rounded array"] = partial(kind, array[0])
    CALLS["round_to number"] = lambda: mcf.round_to(0.1, "bfloat16")
    CALLS["round_to fraction"] = lambda: mcf.round_to(Fraction(1, 3), "bfloat16")
    CALLS["round_to many"] = lambda: mcf.round_to(LARGE, "bfloat16", threads=2)
    CALLS["quantize to nvfp4"] = lambda: mcf.quantize(X, "nvfp4")
    CALLS["dequantize"] = mcf.quantize(X, "mxfp8_e4m3").dequantize
    CALLS["schedule"] = lambda: mcf.Schedule(0.1, warmup=3, final=0.1).rate(2, 10)
    CALLS["rates"] = lambda: mcf.Schedule(0.1, warmup=3, final=0.1).rates(10)


def add_work() -> None:
    problem = mcf.get_problem("quadratic", dimension=4, condition_number=10.0)
    for hyper, strategy in itertools.product((mcf.AdamW(), mcf.SGD()), ("plain", "kahan")):
        optimizer = Optimizer(hyper, mcf.strategy(strategy, "bfloat16"), {"x": np.ones(4, np.float32)})
        CALLS[f"{hyper} {strategy}"] = lambda o=optimizer: o.step(np.ones(4, np.float32), 0.1)
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
    from mcfsim.compile.torch_kernels import TensorContraction

    ones = torch.ones(4)
    ar = mcf.arithmetic("bfloat16", backend="torch")
    native = mcf.arithmetic("bfloat16", backend="native", device="cpu")
    parameter = torch.nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
    parameter.grad = torch.ones(4, dtype=torch.bfloat16)
    line = group_line(mcf.get_unit("hopper_fp16"))
    unit = UnitProducts("hopper_fp16", None, 1, TensorContraction(line, ones.device, False))
    CALLS["a unit on a device"] = lambda: products_of(unit, HALF, HALF, None, 1)
    CALLS["torch add"] = lambda: ar.add(ones, ones)
    CALLS["torch scalar"] = lambda: ar.mul(ones, 0.1)
    CALLS["torch two_sum"] = lambda: mcf.two_sum(ar, ones, ones)
    CALLS["native torch"] = lambda: native.add(parameter.grad, parameter.grad)
    CALLS["native torch scalar"] = lambda: native.round(0.1)
    CALLS["round_to tensors"] = lambda: mcf.round_to(ones, "bfloat16")
    for kind in (optimizers.AdamW, optimizers.SGD, optimizers.TorchAdamW):
        CALLS[f"torch {kind.__name__}"] = kind([parameter], lr=0.1).step
