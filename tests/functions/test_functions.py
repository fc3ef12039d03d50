"""Functions in exact arithmetic against their definitions, on arrays against the oracle, and as programs."""

from importlib.util import find_spec
from inspect import signature
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
    operands = drawn(case.operands, "float32", 6, seed=1)
    for i in range(6):
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


ACCUMULATED = [name for name in CASES if "accumulator" in signature(RUN[name]).parameters]


@pytest.mark.parametrize("name", ACCUMULATED)
@pytest.mark.sampled(6, each=False)
@pytest.mark.slow
def test_what_all_values_share_is_computed_in_the_accumulator(name, assert_same):
    """By the oracle's bits, compiled or not; in a shorter accumulator they are others."""
    case, fmt = CASES[name], mcf.get_format("bfloat16")
    operands, alone = drawn(case.operands, "bfloat16", 12, seed=2), {}
    for accumulator in ("float32", "float8_e5m2", "bfloat16", None):
        elements = [element(operands, i) for i in range(12)]
        found = [flat(RUN[name](OracleArithmetic(fmt), *x, accumulator=accumulator)) for x in elements]
        alone[accumulator] = np.float32([*zip(*found, strict=True)])
    assert_same(alone["bfloat16"], alone[None])
    for accumulator, right in alone.items():
        assert accumulator != "float8_e5m2" or (right != alone[None]).any()
        found = RUN[name](mcf.arithmetic(fmt), *operands, accumulator=accumulator)
        assert_same(np.stack(flat(found)), right)
    if find_spec("llvmlite"):  # which has no logarithm of long formats
        ar = mcf.arithmetic(fmt, compiled=True)
        found = RUN[name](ar, *operands, accumulator="float8_e5m2")
        assert_same(np.stack(flat(found)), alone["float8_e5m2"])


def test_an_accumulator_is_a_known_format():
    with pytest.raises(ValueError, match="unknown format 'float33'"):
        functions.softmax(mcf.arithmetic("bfloat16"), (1.0, 2.0), accumulator="float33")


@pytest.mark.parametrize("name", TRIED)
def test_it_is_a_straight_line_that_uses_all_operands(name):
    case = TRIED[name]
    count = iter(range(100))
    names = mapped(lambda _: f"x{next(count)}", case.operands)
    program = trace(RUN[name], "bfloat16", operands=names, options=case.options)
    used = {x.name for step in program.steps for x in step.operands if isinstance(x, Register)}
    assert {*flat(names)} <= used
    assert hasattr(RUN[name], "__wrapped__") or name in ("neumaier_sum", "sum_k")
