"""Functions in exact arithmetic against their definitions, on arrays against the oracle, and as programs."""

from zlib import crc32

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim import functions
from mcfsim.backends.exact import ExactArithmetic
from mcfsim.compile.program import Register
from mcfsim.compile.tracing import trace
from mcfsim.functions import FPBENCH, Benchmark
from mcfsim.oracle import OracleArithmetic
from tests.functions.cases import CASES, FUNCTIONS, Case, M, Within, drawn, element, flat, gradient, mapped


# -- FPBench's functions, by another formula ----------------------------------------------------------------
def jet_engine(x, y):
    t, s, d = (3 * x**2 + 2 * y - x), (3 * x**2 - 2 * y - x), x**2 + 1
    inner = 2 * x * (t / d) * (t / d - 3) + x**2 * (4 * t / d - 6)
    return 2 * x + inner * d + 3 * x**2 * t / d + x**3 + 3 * s / d


def simplex(a, b, c, d, e, f):
    """Half the determinant of Cayley and Menger, of squared edges."""
    pairs = {(0, 1): a, (0, 2): b, (0, 3): c, (2, 3): d, (1, 3): e, (1, 2): f}
    rows = [[1, *(pairs.get((min(i, j), max(i, j)), 0) for j in range(4))] for i in range(4)]
    return M.det(M.matrix([[0, 1, 1, 1, 1], *rows])) / 2


def by_fourth(*x):
    return gradient(lambda y: simplex(*y), x)[3]


FORMULAS = {
    "doppler": lambda u, v, t: -(331.4 + 0.6 * t) * v / (331.4 + 0.6 * t + u) ** 2,
    "rigid_body_1": lambda x, y, z: -y * (x + 2 * z) - x - z,
    "rigid_body_2": lambda x, y, z: x * y * z * (2 - y) + 6 * z**2 - y,
    "jet_engine": jet_engine,
    "turbine_1": lambda v, w, r: 2 / r**2 - 1.5 - (3 - 2 * v) * (w * r) ** 2 / (8 * (1 - v)),
    "turbine_2": lambda v, w, r: 6 * v - 2.5 - v * (w * r) ** 2 / (2 * (1 - v)),
    "turbine_3": lambda v, w, r: 2.5 - 2 / r**2 - (1 + 2 * v) * (w * r) ** 2 / (8 * (1 - v)),
    "verhulst": lambda x: 4 / (1 / x + 1 / M.mpf(1.11)),
    "predator_prey": lambda x: 4 / (1 / x**2 + 1 / M.mpf(1.11) ** 2),
    "carbon_gas": lambda v: (
        (3.5e7 + 0.401 * (1000 / v) ** 2) * (v - 1000 * M.mpf(42.7e-6)) - 300000 * M.mpf(1.3806503e-23)
    ),
    "sine": lambda x: M.fsum((-1) ** k * x ** (2 * k + 1) / M.factorial(2 * k + 1) for k in range(4)),
    "sine_order_3": lambda x: x * (0.954929658551372 - 0.12900613773279798 * x**2),
    "sqroot": lambda x: M.fsum(M.binomial(0.5, k) * x**k for k in range(5)),
    "bspline3": lambda u: -(u**3) / 6,
    "kepler_0": lambda *x: by_fourth(*x) + x[0] * x[3],
    "kepler_1": lambda a, b, c, d: a * d * (b + c - a - d) - (b - c) ** 2 - d * (b - 1) * (c - 1),
    "kepler_2": simplex,
    "delta": simplex,
    "delta_4": by_fourth,
    "share_of_next": lambda t: 1 - 1 / (t + 1),
    "share_of_sum": lambda x, y: 1 - y / (x + y),
    "nonlin2": lambda x, y: 1 / (x * y + 1),
    "nonlin1_r4": lambda x: 1 / (x + 1),
    "nonlin1_test2": lambda x: (x - 1) / (x**2 - 1),
    "himmilbeau": lambda x, y: (x**2 + y - 11) ** 2 + (x + y**2 - 7) ** 2,
    "hypot": M.hypot,
    "exp1x": lambda x: M.expm1(x) / x,
    "exp1x_log": lambda x: M.expm1(x) / x,
    "logexp": lambda x: M.log1p(M.exp(x)),
    "sum_of_differences": lambda x, y, z: x + y + z,
    "i4": lambda x, y: M.hypot(M.sqrt(x), y),
    "i6": lambda x, y: M.sin(x * y),
    "sphere": lambda x, r, lat, lon: x + r * (M.sin(lat + lon) + M.sin(lat - lon)) / 2,
}


def of_benchmark(benchmark):
    box = tuple(Within(*ends) for ends in benchmark.inputs.values())
    return Case(FORMULAS[benchmark.function.__name__], box)


TRIED = CASES | {f"FPBench {name}": of_benchmark(item) for name, item in FPBENCH.items()}
RUN = FUNCTIONS | {f"FPBench {name}": benchmark.function for name, benchmark in FPBENCH.items()}
EXACT = ExactArithmetic(400)


def test_every_function_is_tried():
    assert {*functions.__all__} - {"FPBENCH", "Benchmark"} == {*CASES}
    assert all(type(item) is Benchmark and item.name == name for name, item in FPBENCH.items())


def test_ranges_are_those_that_were_compared_with_the_published_files():
    """All names, formulas and ranges were, by a reader of FPCore, with FPBench's commit 7e2b76b."""
    ranges = {
        name: {x: (*map(float, ends),) for x, ends in item.inputs.items()} for name, item in FPBENCH.items()
    }
    assert len(ranges) == 36
    assert crc32(repr(ranges).encode()) == 1486843699


@pytest.mark.parametrize("name", TRIED)
def test_in_exact_arithmetic_it_is_what_its_definition_says(name):
    case = TRIED[name]
    operands = drawn(case.operands, "float32", 12, seed=1)
    for i in range(12):
        given = element(operands, i)
        found = flat(RUN[name](EXACT, *given, **case.options))
        expected = flat(case.definition(*mapped(M.mpf, given)))
        assert len(found) == len(expected)
        for mine, true in zip(found, expected, strict=True):
            assert abs(M.mpf(mine) - true) <= M.mpf(2) ** -300 * max(1, abs(true))


@pytest.mark.parametrize("name", TRIED)
def test_on_arrays_it_has_the_bits_of_the_oracle(name, assert_same):
    case = TRIED[name]
    operands = drawn(case.operands, "bfloat16", 4, seed=2)
    found = flat(RUN[name](mcf.arithmetic("bfloat16"), *operands, **case.options))
    oracle = OracleArithmetic(mcf.get_format("bfloat16"))
    alone = [flat(RUN[name](oracle, *element(operands, i), **case.options)) for i in range(4)]
    for mine, other in zip(found, zip(*alone, strict=True), strict=True):
        assert_same(mine, np.float32(other))


@pytest.mark.parametrize("name", TRIED)
def test_it_is_a_straight_line_that_uses_all_operands(name):
    case = TRIED[name]
    count = iter(range(100))
    names = mapped(lambda _: f"x{next(count)}", case.operands)
    program = trace(RUN[name], "bfloat16", operands=names, options=case.options)
    used = {x.name for step in program.steps for x in step.operands if isinstance(x, Register)}
    assert {*flat(names)} <= used
    assert hasattr(RUN[name], "__wrapped__") or name in ("neumaier_sum", "sum_k")
