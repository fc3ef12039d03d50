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
from tests.functions.cases import CASES, RUN, TRIED, M, drawn, element, flat, mapped

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
