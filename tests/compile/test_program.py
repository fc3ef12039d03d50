"""Programs: what is recorded of a text, and that it is the text, on every arithmetic."""

from __future__ import annotations

import inspect

import mpmath
import numpy as np
import pytest

import mcfsim as mcf
from mcfsim import eft
from mcfsim.backends.factory import on_blocks
from mcfsim.compile import trace
from mcfsim.compile.program import Register, Scalar, flat
from mcfsim.formats import get_format
from mcfsim.multiword import double_word
from mcfsim.optim.declaration import straight_optimizers
from mcfsim.optim.state import State
from mcfsim.optim.strategies import Roles
from mcfsim.oracle import OracleArithmetic
from mcfsim.rounding import Rounding

PAIR, OTHER = ("xh", "xl"), ("yh", "yl")
#: Texts, and their operands where the names of the parameters do not say them.
TEXTS = {
    **{name: (getattr(eft, name), None) for name in ("two_sum", "fast_two_sum", "split", "two_prod")},
    **{name: (getattr(eft, name), None) for name in ("two_prod_fma", "err_fma")},
    **{name: (getattr(double_word, name), (PAIR, OTHER)) for name in ("dw_times_dw2", "accurate_dw_plus_dw")},
    **{name: (getattr(double_word, name), (PAIR, "y")) for name in ("dw_plus_fp", "dw_times_fp3")},
    **{name: (getattr(double_word, name), (PAIR, OTHER)) for name in ("dw_div_dw2", "dw_div_dw3")},
}
every_text = pytest.mark.parametrize("name", TEXTS)


def values(program, fmt, size=200, seed=0):
    rng = np.random.default_rng(seed)
    return [mcf.round_to(np.float32(rng.standard_normal(size)), fmt) for _ in program.inputs]


@every_text
@pytest.mark.parametrize("mode", ["nearest_even", "up"])
def test_a_program_is_its_text_on_every_arithmetic(name, mode, assert_same):
    function, operands = TEXTS[name]
    program = trace(function, "bfloat16", mode, operands=operands)
    given = values(program, "bfloat16")
    ar = mcf.arithmetic("bfloat16", mode)
    nested = iter(given)
    structured = [
        tuple(next(nested) for _ in x) if isinstance(x, tuple) else next(nested) for x in operands or ()
    ]
    expected = function(ar, *(structured or given))
    with np.errstate(all="ignore"):
        found = program.run(on_blocks, *given)
    for mine, other in zip(flat(found), flat(expected), strict=True):
        assert_same(mine, other)
    one = program.run(OracleArithmetic, *(float(x[0]) for x in given))
    assert [float(x[0]) for x in flat(expected)] == pytest.approx(list(flat(one)), rel=0, abs=0, nan_ok=True)


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


def test_zeros_of_either_sign_are_no_one_operand():
    program = trace(lambda ar, a: (ar.add(a, 0.0), ar.add(a, -0.0), ar.add(a, 0)), "bfloat16")
    assert len(program.steps) == 3


def test_numbers_that_differ_behind_the_digits_that_they_show_are_no_one_operand():
    with mpmath.workprec(200):
        tie = 1 + mpmath.mpf(2) ** -8
        above = tie + mpmath.mpf(2) ** -100
    assert repr(tie) == repr(above)
    program = trace(lambda ar, a: (ar.mul(a, tie), ar.mul(a, above)), "bfloat16", operands=("a",))
    assert program.run(mcf.arithmetic, 1.0) == (1.0, 1.0078125)


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


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        (lambda ar, a: a + 1, TypeError, "unsupported operand"),
        (lambda ar, a: ar.add(a, np.float32(1)), TypeError, "values and real scalars alone"),
        (
            lambda ar, a: ar.like(get_format("float16"), Rounding()).add(a, a),
            ValueError,
            "round brings it over",
        ),
        (lambda ar, a: [a], TypeError, "no value of the arithmetic"),
        (lambda ar, a: a if a > 0 else ar.neg(a), TypeError, "is not compared"),
    ],
)
def test_what_is_no_text_is_refused(text, error, message):
    with pytest.raises(error, match=message):
        trace(text, "bfloat16")


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
    with pytest.raises(ValueError, match="numbers alone at random"):
        trace(lambda ar, a: ar.add(a, ar.mul(0.1, 0.3)), "bfloat16", "stochastic")


@pytest.mark.parametrize(
    ("operands", "scalars", "message"),
    [
        ((1.0,), {}, "takes 2 operands, not 1"),
        ((1.0, 2.0), {"rate": 1.0}, "takes the scalars none, not rate"),
    ],
)
def test_programs_refuse_other_operands(operands, scalars, message):
    with pytest.raises(TypeError, match=message):
        trace(mcf.two_sum, "bfloat16").run(OracleArithmetic, *operands, **scalars)


def test_the_pseudocode_has_the_lines_of_the_text():
    shown = trace(mcf.fast_two_sum, "bfloat16", "up").pseudocode().splitlines()
    text = inspect.getsource(mcf.fast_two_sum)
    assert shown[:2] == ["fast_two_sum(a, b):", "    # bfloat16, up"]
    assert [line.split("  #")[0].rstrip() for line in shown[2:-1]] == [
        *("    t1 = add(a, b)", "    t2 = sub(t1, a)", "    t3 = sub(b, t2)")
    ]
    assert shown[-1] == "    return (t1, t3)"
    assert all(line.rpartition(": ")[2] in text for line in shown[2:-1])


# -- steps of optimizers ------------------------------------------------------------------------------------
@pytest.mark.parametrize("strategy", ["plain", "kahan", "collage-light", "collage-plus", "fp32-master"])
@pytest.mark.parametrize("optimizer", straight_optimizers())
def test_a_step_of_an_optimizer_is_a_program(optimizer, strategy):
    hyper, stored = straight_optimizers()[optimizer](), mcf.strategy(strategy, "bfloat16")
    rng = np.random.default_rng(0)
    trained = mcf.Optimizer(hyper, stored, {"w": rng.standard_normal(100)}, {"w"})
    roles = trained.roles
    numbers = hyper.scalars(roles, stored, 1, 2.0**-7, decayed=True)
    names = tuple(
        tuple(Scalar(f"{name}_{i}") for i, _ in enumerate(number))
        if isinstance(number, tuple)
        else Scalar(name)
        for name, number in zip(numbers._fields, numbers, strict=True)
    )

    def text(ar, state, gradient, scalars):
        recorders = Roles(*(ar.like(role.format, role.rounding) for role in roles))
        return hyper.step(recorders, stored, State(*state), gradient, numbers._make(scalars)).state

    kinds = (roles.model, roles.moments, roles.second_moment, roles.parameter)
    state = tuple(
        tuple(Register(f"{part}{i}", role.format) for i, _ in enumerate(x))
        for (part, x), role in zip(trained.state._asdict().items(), kinds, strict=True)
    )
    program = trace(text, "bfloat16", operands=(state, "gradient", names))
    assert program.count()
    for count in (1, 2):
        gradient = trained.receive({"w": np.float32(rng.standard_normal(100))})
        numbers = hyper.scalars(roles, stored, count, 2.0**-7, decayed=True)
        scalars = dict(zip((x.name for x in flat(names)), flat(tuple(numbers)), strict=True))
        with np.errstate(all="ignore"):
            found = program.run(on_blocks, *flat(tuple(map(tuple, trained.state))), gradient, **scalars)
        trained.step(gradient, 2.0**-7)
        for mine, expected in zip(flat(tuple(found)), flat(tuple(trained.state)), strict=True):
            np.testing.assert_array_equal(mine, expected)


@pytest.mark.parametrize("operation", ["neg", "abs", "sign", "round", "sqrt", "add", "mul", "fma"])
def test_what_numbers_alone_give_at_random_is_not_recorded(operation):
    """One word is drawn for it, and not one for each element."""
    numbers = (0.1, 0.2, 0.3)[: {"add": 2, "mul": 2, "fma": 3}.get(operation, 1)]

    def text(ar, x):
        return ar.add(getattr(ar, operation)(*numbers), x)

    def by_another(ar, x):
        once = ar.like(mcf.get_format("float16"), mcf.Rounding())
        return ar.add(ar.round(getattr(once, operation)(*numbers)), x)

    for made in (text, by_another):
        with pytest.raises(ValueError, match="of numbers alone at random"):
            trace(made, "bfloat16", "stochastic")
        assert trace(made, "bfloat16", "up").steps
