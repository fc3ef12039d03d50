"""Programs and lines: what is recorded of a text, what is refused, and that it is the text."""

from __future__ import annotations

import inspect
import os
import pickle
import subprocess
import sys
from fractions import Fraction
from functools import partial

import mpmath
import numpy as np
import pytest

import mcfsim as mcf
from mcfsim import eft
from mcfsim.backends.factory import on_blocks
from mcfsim.compile import trace
from mcfsim.compile.program import flat
from mcfsim.formats import get_format
from mcfsim.kernels.element.machine import F32, F64, I32, I64, Line, recorded, run
from mcfsim.multiword import double_word
from mcfsim.oracle import OracleArithmetic
from mcfsim.rounding import Rounding
from tests.shared.refusals import check, refusals, refused

PAIR, OTHER = ("xh", "xl"), ("yh", "yl")
#: Texts, and their operands where the names of the parameters do not say them.
TEXTS = {
    **{name: (getattr(eft, name), None) for name in ("two_sum", "fast_two_sum", "two_prod_fma", "err_fma")},
    **{name: (getattr(double_word, name), (PAIR, OTHER)) for name in ("dw_times_dw2", "dw_div_dw3")},
    "dw_plus_fp": (double_word.dw_plus_fp, (PAIR, "y")),
    "partial": (partial(lambda ar, x, y, s: ar.fma(x, s, y), s=0.75), None),
}


@pytest.mark.costly("a process of its own")
def test_a_key_of_a_program_is_found_again_in_a_process_that_hashes_strings_otherwise():
    program = trace(eft.two_sum, "bfloat16")
    assert program.key == trace(eft.two_sum, "bfloat16").key != trace(eft.two_sum, "float16").key
    code = (
        "import pickle, sys, mcfsim as mcf; from mcfsim.compile import trace; "
        "read = pickle.load(sys.stdin.buffer).key; "
        'print({trace(mcf.two_sum, "bfloat16").key: "found"}.get(read))'
    )
    found = subprocess.run(
        [sys.executable, "-c", code],
        input=pickle.dumps(program),
        env={**os.environ, "PYTHONHASHSEED": "1"},
        capture_output=True,
        check=True,
    )
    assert found.stdout.split() == [b"found"]


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("mode", ["nearest_even", "up"])
def test_a_program_is_its_text_on_every_arithmetic(name, mode, assert_same):
    function, operands = TEXTS[name]
    program = trace(function, "bfloat16", mode, operands=operands)
    rng = np.random.default_rng(0)
    given = [mcf.round_to(np.float32(rng.standard_normal(200)), "bfloat16") for _ in program.inputs]
    nested = iter(given)
    shaped = [tuple(next(nested) for _ in x) if type(x) is tuple else next(nested) for x in operands or ()]
    expected = function(mcf.arithmetic("bfloat16", mode), *(shaped or given))
    with np.errstate(all="ignore"):
        found = program.run(on_blocks, *given)
    one = program.run(OracleArithmetic, *(float(x[0]) for x in given))
    for mine, other, single in zip(*map(flat, (found, expected, one)), strict=True):
        assert_same(mine, other)
        assert_same(other[0], single)


@pytest.mark.parametrize(
    ("name", "operations", "depth", "registers"),
    [("two_sum", 6, 5, 5), ("fast_two_sum", 3, 3, 3), ("two_prod_fma", 3, 3, 4), ("dw_plus_fp", 10, 9, 6)],
)
def test_counts(name, operations, depth, registers):
    function, operands = TEXTS[name]
    program = trace(function, "bfloat16", operands=operands)
    assert sum(program.count().values()) == len(program.steps) == operations
    assert (program.depth(), program.registers()) == (depth, registers)


def test_what_is_asked_twice_is_done_once_and_what_is_not_needed_is_left_out():
    def text(ar, a, b):
        ar.mul(a, a)
        first, second = ar.sub(a, b), ar.sub(a, b)
        return ar.add(first, second), ar.sub(b, a)

    program = trace(text, "bfloat16")
    assert [str(step) for step in program.steps] == ["t2 = sub(a, b)", "t3 = add(t2, t2)", "t4 = sub(b, a)"]


def test_zeros_of_either_sign_and_numbers_that_differ_behind_the_digits_that_they_show_are_no_one_operand():
    program = trace(lambda ar, a: (ar.add(a, 0.0), ar.add(a, -0.0), ar.add(a, 0)), "bfloat16")
    assert len(program.steps) == 3
    with mpmath.workprec(200):
        tie = 1 + mpmath.mpf(2) ** -8
        above = tie + mpmath.mpf(2) ** -100
    assert repr(tie) == repr(above)
    program = trace(lambda ar, a: (ar.mul(a, tie), ar.mul(a, above)), "bfloat16", operands=("a",))
    assert program.run(mcf.arithmetic, 1.0) == (1.0, 1.0078125)
    long = 10**5000  # Python writes none of so many digits
    program = trace(
        lambda ar, a: (ar.div(a, long), ar.div(a, Fraction(long + 1)), ar.div(a, long)), "bfloat16"
    )
    assert len(program.steps) == 2
    assert program.run(mcf.arithmetic, 1.0) == (0.0, 0.0, 0.0)


def test_formats_of_several_roles_stand_in_one_program():
    def text(ar, a):
        low = ar.like(get_format("float8_e5m2"), Rounding("toward_zero"))
        return low.add(low.round(a), 1.0), low.round(low.round(a)), ar.round(a)

    program = trace(text, "bfloat16")
    assert [(step.operation, str(step.result.format)) for step in program.steps] == [
        ("round", "float8_e5m2"),
        ("add", "float8_e5m2"),
    ]
    assert program.results[2] is program.inputs[0]


def test_operations_that_draw_are_numbered_and_never_shared():
    def text(ar, a, b):
        ar.add(a, b)
        ar.round(a)
        return ar.add(a, b), ar.neg(a), ar.add(a, b)

    program = trace(text, "bfloat16", "stochastic")
    assert [(step.operation, step.draw and step.draw.operation) for step in program.steps] == [
        *(("add", 2), ("neg", None), ("add", 3))
    ]
    assert program.drawn == (4,)


@pytest.mark.parametrize("operation", ["neg", "abs", "sign", "round", "sqrt", "add", "mul", "fma"])
def test_what_numbers_alone_give_at_random_is_not_recorded(operation):
    """One word is drawn for it, and not one for each element."""
    numbers = (0.1, 0.2, 0.3)[: {"add": 2, "mul": 2, "fma": 3}.get(operation, 1)]

    def text(ar, x):
        return ar.add(getattr(ar, operation)(*numbers), x)

    def by_another(ar, x):
        once = ar.like(get_format("float16"), Rounding())
        return ar.add(ar.round(getattr(once, operation)(*numbers)), x)

    for made in (text, by_another):
        with pytest.raises(ValueError, match="of numbers alone at random"):
            trace(made, "bfloat16", "stochastic")
        assert trace(made, "bfloat16", "up").steps


@pytest.mark.parametrize("underflow", ["flush_inputs", "flush_before", "flush_after"])
def test_a_small_value_that_is_brought_in_at_random_is_flushed(underflow, assert_same):
    rounding = Rounding("stochastic", underflow=underflow)
    program = trace(lambda ar, x: ar.maximum(x, ar.round(2.0**-130)), "bfloat16", rounding)
    assert_same(program.run(on_blocks, np.float32([-1, 2])), np.float32([0, 2]))


def test_fractions_among_the_numbers_are_shown():
    program = trace(lambda ar, x: ar.mul(x, Fraction(1, 3)), "bfloat16")
    assert str(program.steps[0]) == "t1 = mul(x, 0.333333)"


def test_the_pseudocode_has_the_lines_of_the_text():
    shown = trace(mcf.fast_two_sum, "bfloat16", "up").pseudocode().splitlines()
    text = inspect.getsource(mcf.fast_two_sum)
    assert shown[:2] == ["fast_two_sum(a, b):", "    # bfloat16, up"]
    assert [line.split("  #")[0].rstrip() for line in shown[2:-1]] == [
        *("    t1 = add(a, b)", "    t2 = sub(t1, a)", "    t3 = sub(b, t2)")
    ]
    assert shown[-1] == "    return (t1, t3)"
    assert all(line.rpartition(": ")[2] in text for line in shown[2:-1])


# -- lines of verbs ------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "verbs", "needed"),
    [
        (lambda x, y: (x + y) * (y + x), "add mul", "add mul"),
        (lambda x, y: (x * y, x + y)[1], "mul add", "add"),
        (lambda x, y: (x - y) + (y - x), "sub sub add", "sub sub add"),
        (lambda x, y: (x / y) + (y / x), "div div add", "div div add"),
    ],
)
def test_equal_values_are_made_once_and_unneeded_ones_left_out(text, verbs, needed):
    line, results = recorded(text, x=F64, y=F64)
    for values, expected in ((line.values, verbs), (line.needed(results), needed)):
        assert [value.verb for value in values] == ["input", "input", *expected.split()]


def test_constants_of_either_sign_and_type_are_told_apart_and_held_by_their_type():
    line = Line()
    numbers = [(0.0, F64), (-0.0, F64), (1.0, F64), (1.0, F32), (1, I32), (1, I64)]
    constants = [line.constant(*given) for given in numbers]
    assert len({value.number for value in constants}) == 6
    assert line.constant(-0.0, F64) is constants[1]


# -- what is refused -----------------------------------------------------------------------------------------
def traced(text):
    return trace(text, "bfloat16")


FP16 = get_format("float16")
PROGRAM, LINE = trace(mcf.two_sum, "bfloat16"), recorded(lambda x: x + 1.0, x=F32)
NO_CONSTANTS = [(0.1, F32), (2.0**128, F32), (2**31, I32), (-(2**63) - 1, I64), (1.0, I32)]
MIXED = [lambda x, n: x + n, lambda x, n: n.select(x, x), lambda x, n: (n < 1).select(x, n)]
MIXED += [lambda x, n: x + True, lambda x, n: (x < 1.0) + 1]


@refusals(
    refused(TypeError, "unsupported operand", traced, lambda ar, a: a + 1),
    refused(TypeError, "values and real scalars alone", traced, lambda ar, a: ar.add(a, np.float32(1))),
    refused(ValueError, "convert it by round", traced, lambda ar, a: ar.like(FP16, Rounding()).add(a, a)),
    refused(TypeError, "no value of the arithmetic", traced, lambda ar, a: [a]),
    refused(TypeError, "is not compared", traced, lambda ar, a: a if a > 0 else ar.neg(a)),
    refused(TypeError, "takes 2 operands, not 1", PROGRAM.run, (OracleArithmetic, 1.0)),
    refused(TypeError, "scalars none, not r", partial(PROGRAM.run, r=1.0), (OracleArithmetic, 1.0, 2.0)),
    refused(ValueError, "is no", Line().constant, *NO_CONSTANTS),
    refused(TypeError, None, partial(recorded, x=F32, n=I32), *MIXED),
    refused(TypeError, "x is of float64, not float32", partial(run, x=np.zeros(3)), LINE),
)
def test_refusals(rows):
    check(rows)
