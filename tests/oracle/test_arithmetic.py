"""The oracle as an arithmetic: the definition's own results, and what it refuses."""

import ast
import inspect
import itertools
import math
from pathlib import Path

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim import oracle
from mcfsim.formats import FORMATS, Format, get_format
from mcfsim.oracle import OracleArithmetic, operate, round_float, same
from mcfsim.rounding import Rounding

from .operands import FLUSHING, ROUNDINGS, SMALL_FORMATS, label, values

BF16, E5M2 = FORMATS["bfloat16"], FORMATS["float8_e5m2"]
SAMPLES = (-math.inf, -3.0, -0.0, 0.0, 2.0**-16, 0.7, 1.25, 57344.0, math.inf, math.nan)
ARITY = {"add": 2, "sub": 2, "mul": 2, "div": 2, "sqrt": 1, "fma": 3}


@pytest.mark.parametrize("rounding", [*ROUNDINGS, *FLUSHING[:3]], ids=label)
@pytest.mark.parametrize("name", ARITY)
@pytest.mark.sampled(3)
def test_an_operation_is_that_of_the_definition(name, rounding):
    ar = OracleArithmetic(E5M2, rounding)
    samples = SAMPLES if name != "fma" else SAMPLES[::2]
    for operands in itertools.product(samples, repeat=ARITY[name]):
        found, expected = getattr(ar, name)(*operands), operate(name, operands, E5M2, rounding)
        assert isinstance(found, float)
        assert same(found, expected).all(), operands
    for x in (*SAMPLES, 1e6, 1e-9):
        assert same(ar.round(x), round_float(x, E5M2, rounding)).all()


@pytest.mark.parametrize("fmt", [*SMALL_FORMATS, BF16], ids=label)
@pytest.mark.sampled(3, each=False)
def test_neg_and_abs_change_the_sign_alone(fmt):
    """In every mode and under every policy: no subnormal number is flushed."""
    numbers = (
        values(fmt) if fmt.bits <= 8 else np.array([-3.0, 2.0**-133, -(2.0**-130), np.inf, np.nan, -0.0])
    )
    for rounding in (Rounding(), Rounding("up"), *FLUSHING[:3]):
        ar = OracleArithmetic(fmt, rounding)
        for x in numbers.tolist():
            assert same(ar.neg(x), -x if x != 0 or fmt.has_negative_zero else 0.0).all()
            assert same(ar.abs(x), abs(x)).all()


def test_two_s_complement_has_no_number_opposite_to_its_least():
    ar = OracleArithmetic(get_format("int8"))
    assert (ar.neg(-128.0), ar.abs(-128.0), ar.neg(127.0)) == (127.0, 127.0, -127.0)


def test_an_algorithm_runs_on_it():
    ar = OracleArithmetic(BF16)
    assert isinstance(ar, mcf.Arithmetic)
    assert ar.format is BF16
    assert mcf.two_sum(ar, 256.0, 1.0) == (256.0, 1.0)
    assert mcf.two_prod(ar, 1.0078125, 1.0078125) == (1.015625, 2.0**-14)
    assert ar.evaluate(lambda inner, x: (inner.add(x[0], x[1]), inner is ar), (1.0, 2.0)) == (3.0, True)
    assert repr(OracleArithmetic(BF16, Rounding("up"))) == "OracleArithmetic(bfloat16, up, ieee)"


def test_real_numbers_enter_exactly():
    ar = OracleArithmetic(BF16)
    assert ar.add(0.1, 0.2) == round_float(0.30000000000000004, BF16)
    assert ar.mul(3, 1.004) == 3.015625  # and 3.03125, had 1.004 been rounded first
    assert ar.neg(0.1) == -round_float(0.1, BF16)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: OracleArithmetic("bfloat16"), TypeError, "the format must be a Format, not 'bfloat16'"),
        (lambda: OracleArithmetic(BF16, "up"), TypeError, "the rounding must be a Rounding, not 'up'"),
        (lambda: OracleArithmetic(BF16, Rounding("stochastic")), ValueError, "has no one result"),
        (
            lambda: OracleArithmetic(Format(precision=60, emin=-14, emax=15)),
            ValueError,
            "numbers that binary64 does not hold",
        ),
        (lambda: OracleArithmetic(BF16).add(1.0, np.ones(2)), TypeError, "must be a Python float, not array"),
        (lambda: OracleArithmetic(BF16).add(True, 1.0), TypeError, "not True of type bool"),
        (lambda: OracleArithmetic(BF16).round("1"), TypeError, "not '1' of type str"),
        (lambda: OracleArithmetic(BF16).neg((1.0, 2.0)), TypeError, "of type tuple"),
    ],
)
def test_what_it_cannot_do_is_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_the_oracle_imports_formats_and_roundings_alone():
    """Nothing that it judges."""
    files = list(Path(inspect.getfile(oracle)).parent.glob("*.py"))
    assert len(files) >= 5
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            names = [node.module] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for name in names:
                allowed = ("mcfsim.formats", "mcfsim.rounding", "mcfsim.oracle")
                assert not name.startswith("mcfsim") or name.startswith(allowed), (file.name, name)
