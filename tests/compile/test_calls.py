"""Lines as calls of NumPy's functions: the same bits as one verb after another, in whatever memory."""

import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from mcfsim.convert import round_to
from mcfsim.formats import get_format
from mcfsim.kernels.element.calls import Calls, Choice
from mcfsim.kernels.element.forms import as_calls
from mcfsim.kernels.element.machine import DTYPES, F32, F64, TRUTH, Line, Value, recorded, run
from mcfsim.oracle import OracleArithmetic
from mcfsim.rounding import DETERMINISTIC, Rounding
from tests.shared.lines import at_random, operands

SIZE = 600


def line_of(seed: int) -> tuple[Line, list[Value], list[Value]]:
    """Return a random line of some 3 to 60 verbs, its inputs, and some of its values as results."""
    frame, results = at_random(seed, 4 + seed % 60)
    return frame.line, [*frame.numbers, *frame.codes, *frame.single, *frame.words], [*results.values()]


def given_for(seed: int, size: int) -> list[Any]:
    """Return operands for such a line."""
    share, rng = (0.0, 0.003, 0.3, 0.6, 1.0)[seed % 5], np.random.default_rng(seed)
    x, y, z, w, byte, short = operands(seed, size, share)
    words = [rng.integers(0, 2**bits, size) for bits in (16, 32)]
    return [x, y, z, w, byte.astype(np.int32), short.astype(np.int32), y[::-1].copy(), w[::-1].copy(), *words]


def carried_out(calls: Calls, given: list[Any], out: list[Any]) -> list[Any]:
    with np.errstate(all="ignore"):
        calls(given, out)
    return out


def assert_bits(found: list[Any], expected: list[Any]) -> None:
    """Compare bit for bit, but for what NaN it is."""
    for one, other in zip(found, map(np.ascontiguousarray, expected), strict=True):
        assert one.dtype == other.dtype
        same = one.view(f"u{one.itemsize}") == other.view(f"u{one.itemsize}")
        assert (same | (one != one) & (other != other)).all()


def by_verbs(line: Line, results: Any, inputs: list[Value], given: list[Any]) -> list[Any]:
    """Return what the reference makes of operands."""
    named = {str(value.constant): array for value, array in zip(inputs, given, strict=True)}
    return [np.array(x) for x in run(line, tuple(results), **named)]


@pytest.mark.parametrize("seed", range(100))
@pytest.mark.sampled(4, each=False)
def test_blocks_of_any_size_have_the_bits_of_one_verb_after_another(seed):
    """Operands are left as they are; what is the same for all elements needs no vector."""
    line, inputs, results = line_of(seed)
    single = random.Random(seed).sample(range(len(inputs)), 2)
    every, some = as_calls(results, inputs), as_calls(results, inputs, [inputs[place] for place in single])
    for size in (SIZE, 1, 37, SIZE):
        given = given_for(seed + size, size)
        kept, out = [x.copy() for x in given], [np.full(size, 77).astype(DTYPES[x.type]) for x in results]
        assert_bits(carried_out(every, given, out), by_verbs(line, results, inputs, given))
        assert_bits(given, kept)
    every([x[:0] for x in given], [x[:0] for x in out])
    for place in single:
        given[place] = np.array(given[place][0])
    spread = [np.broadcast_to(x, SIZE) for x in given]
    assert_bits(carried_out(some, given, out), by_verbs(line, results, inputs, spread))


@pytest.mark.parametrize("seed", range(100))
@pytest.mark.sampled(4, each=False)
def test_a_single_result_may_be_in_the_memory_of_any_operand(seed):
    line, inputs, _ = line_of(seed)
    result = next((x for x in reversed(line.values) if x.type in DTYPES and x.type is not TRUTH), inputs[0])
    calls = as_calls([result], inputs, apart=False)
    for size in (SIZE, 1):
        given = given_for(seed, size)
        expected = by_verbs(line, [result], inputs, given)
        for place, x in enumerate(inputs):
            if x.type is result.type:
                taken = [array.copy() for array in given]
                assert_bits(carried_out(calls, taken, [taken[place]]), expected)


def test_a_side_that_few_take_is_computed_for_few_and_one_that_none_takes_not_at_all():
    sizes: list[int] = []

    def text(x: Value) -> Value:
        return (abs(x) < 1.0).select((x + 1.0) * (x + 2.0) * (x + 3.0), x)

    line, results = recorded(text, x=F64)
    calls = as_calls(results, line.values[:1])
    ((choice, _),) = [call for call in calls._calls if isinstance(call[0], Choice)]
    compute = choice.sides[1].compute
    object.__setattr__(choice.sides[1], "compute", lambda x, out: (sizes.append(x[0].size), compute(x, out)))
    x = np.full(SIZE, 2.0)
    for count in (0, 1, 5, SIZE // 2, SIZE):
        x[:count] = 0.5
        out = np.empty(SIZE)
        calls([x], [out])
        assert out.tolist() == by_verbs(line, results, line.values[:1], [x])[0].tolist()
    assert sizes == [1, 5, SIZE, SIZE]


@pytest.mark.parametrize("mode", [*DETERMINISTIC])
@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float16", "tf32", "posit8", "int8"])
@pytest.mark.sampled(4, each=False)
def test_one_number_that_differs_in_a_block_rounds_by_the_definition(name, mode, assert_same):
    fmt, judge = get_format(name), OracleArithmetic(get_format(name), Rounding(mode))
    top, normal = float(fmt.max), float(fmt.smallest_normal)
    ends = [np.nextafter(np.float32(x), np.float32(to)) for x in (top, normal) for to in (0, np.inf)]
    block = np.linspace(1.0, 1.5, SIZE, dtype=np.float32)
    expected = np.array([judge.round(float(number)) for number in block], np.float32)
    for odd in (np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, top, -top, normal, -normal, *ends, 1e-45, 3e38):
        for place in (0, SIZE // 2, SIZE - 1):
            x, changed = block.copy(), expected.copy()
            x[place] = odd
            changed[place] = judge.round(float(x[place]))
            assert_same(round_to(x, fmt, mode), changed, x)
            assert_same(round_to(x[place : place + 1], fmt, mode), changed[place : place + 1])


@pytest.mark.slow
def test_threads_do_not_share_memory():
    line, inputs, results = line_of(36)
    calls = as_calls(results, inputs)

    def work(seed: int) -> None:
        for turn in range(15):
            given, out = given_for(seed + turn, SIZE), [np.empty(SIZE, DTYPES[x.type]) for x in results]
            assert_bits(carried_out(calls, given, out), by_verbs(line, results, inputs, given))

    with ThreadPoolExecutor(4) as pool:
        assert [*pool.map(work, range(4))] == [None] * 4


def test_an_operand_that_is_not_given_is_refused():
    line, results = recorded(lambda x, y: x + y, x=F32, y=F32)
    with pytest.raises(ValueError, match="the operand y is not given"):
        as_calls(results, line.values[:1])
