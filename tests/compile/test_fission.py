"""Lines in parts: all is made once, of what is there, and has the bits of the line as a whole."""

from __future__ import annotations

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.compile import trace
from mcfsim.compile.choice import is_available
from mcfsim.compile.fission import AT_ONCE, parts
from mcfsim.compile.loops import Loop
from mcfsim.compile.scalars import uses
from mcfsim.kernels.carriers import carrier_of
from mcfsim.optim.recording import StepPrograms, numbers
from tests.shared.random_programs import recipe

SIZES = (1, AT_ONCE - 1, AT_ONCE, AT_ONCE + 1, 3 * AT_ONCE + 5)


def line_of(seed, *, checked=False):
    made = recipe(seed)
    program = made.program()
    return Loop(program, made.policy, checked=checked).line([use.number({}) for use in uses(program)])


def check(lowered):
    """Carry the parts out in thought, and return them."""
    asked = (*lowered.results, *(() if lowered.strange is None else (lowered.strange,)))
    split, kept, made = parts(lowered, asked), set(), set()
    for part in split:
        there = set(part.taken)
        assert there <= kept
        assert [x.number for x in part.values] == sorted({x.number for x in part.values})
        for x in part.values:
            assert set(x.operands) <= there | {y for y in x.operands if y.verb == "constant"}
            there.add(x)
        made |= set(part.values)
        kept |= set(part.kept)
        assert set(part.kept) <= there
        assert all(asked[place] in there or asked[place].verb == "constant" for place in part.results)
    assert sorted(place for part in split for place in part.results) == list(range(len(asked)))
    needed = {x for x in lowered.line.needed(asked) if x.verb != "constant"}
    assert needed <= made | {x for x in asked if x.verb == "constant"}
    return split


@pytest.mark.parametrize("checked", [False, True])
@pytest.mark.slow
def test_each_part_of_a_random_text_has_what_it_needs(checked):
    several = 0
    for seed in range(60):
        try:
            lowered = line_of(seed, checked=checked)
        except (TypeError, ValueError):  # no straight line, or no exact path
            continue
        several += len(check(lowered)) > 1
    assert several > 4


def step(strategy):
    """Return the program of a step, and its scalars."""
    hyper, own = mcf.AdamW(), mcf.strategy(strategy)
    roles = mcf.Optimizer(hyper, own, {"w": np.zeros(1, np.float32)}).roles
    scalars = hyper.scalars(roles, own, 3, 1e-3, decayed=True)
    program = StepPrograms(hyper, own).of(roles, scalars, own.gradient.format)
    return program, [use.number(numbers(scalars)) for use in uses(program)]


@pytest.mark.parametrize("strategy", [x for x in mcf.STRATEGIES if x not in ("exact", "mcf-3")])
def test_each_part_of_a_step_has_what_it_needs(strategy):
    program, given = step(strategy)
    lowered = Loop(program).line(given)
    in_64_bits = strategy.startswith(("fp32", "split", "eco", "remainder", "fp8", "int8", "coat"))
    assert (len(check(lowered)) > 1) == in_64_bits


@pytest.mark.skipif(not is_available(), reason="Numba is not installed")
@pytest.mark.parametrize("strategy", ["fp32-optim", "remainder-8"])
@pytest.mark.exhaustive
def test_steps_in_parts_have_the_bits_of_numpy(strategy, assert_same):
    program, given = step(strategy)
    loop = Loop(program, apart=True)
    for size in SIZES:
        rng = np.random.default_rng(size)
        operands = []
        for x in program.inputs:
            drawn = rng.standard_normal(size) * 2.0 ** rng.integers(-140, 100, size)
            drawn[::7] = rng.choice([0.0, -0.0, np.inf, np.nan, 1e-40], drawn[::7].size)
            with np.errstate(all="ignore"):
                operands.append(np.asarray(mcf.round_to(drawn, x.format), carrier_of(x.format)))
        made = []
        for filler in (loop.with_numbers(given), loop.on_numpy(given)):
            made.append([np.full(size, 7, dtype) for dtype in filler.results])
            with np.errstate(all="ignore"):
                filler(operands, made[-1])
        for mine, other in zip(*made, strict=True):
            assert_same(mine, other)


@pytest.mark.skipif(not is_available(), reason="Numba is not installed")
@pytest.mark.slow
@pytest.mark.costly("Numba or Triton compiles")
def test_operands_may_be_called_as_what_is_in_a_source_of_parts(assert_same):
    def long(ar, total, *x):
        for y in x:
            total = ar.fma(y, 0.1, ar.mul(total, 0.3))  # in binary64
        return total

    names = ("base", "whole", "whole_base", "kept3", "size", "min")
    loop = Loop(trace(long, "float32", operands=names, lines=False), apart=True)
    assert "kept" in loop.source([use.number({}) for use in uses(loop.program)])
    for size in SIZES:
        operands = [x.astype(np.float32) for x in np.random.default_rng(size).standard_normal((6, size))]
        assert_same(loop(*operands), mcf.arithmetic("float32", compiled=False).evaluate(long, *operands))
