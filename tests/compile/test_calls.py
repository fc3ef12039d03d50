"""Lines as calls of NumPy's functions: the same bits as one verb after another, in whatever memory."""

import random
from threading import Thread
from typing import Any

import numpy as np
import pytest

from mcfsim.convert import round_to
from mcfsim.formats import get_format
from mcfsim.kernels.element.calls import Calls
from mcfsim.kernels.element.choices import Choice
from mcfsim.kernels.element.machine import F32, F64, I32, I64, TRUTH, Line, Type, Value, recorded
from mcfsim.kernels.element.on_numpy import DTYPES, run
from mcfsim.oracle import OracleArithmetic
from mcfsim.rounding import DETERMINISTIC, Rounding

SIZE = 600


def line_of(seed: int, verbs: int) -> tuple[Line, list[Value], list[Value]]:
    """Return a random line, of all verbs and above all of selections, its inputs, and results."""
    choose = random.Random(seed)
    line = Line()
    inputs = [line.input(f"x{place}", kind) for place, kind in enumerate((F32, F32, F64, I32, I64))]
    made = list(inputs)

    def some(kind: Type) -> Value:
        found = [value for value in made if value.type is kind]
        if kind is not TRUTH and choose.random() < 0.15:
            numbers = (
                (0.0, -0.0, 1.5, float("inf"), float("nan")) if kind.is_float else (0, 1, -1, 7, 2**31 - 1)
            )
            return line.constant(choose.choice(numbers), kind)
        if not found:
            return some(F32) < some(F32)
        return choose.choice(found[-4:] if choose.random() < 0.6 else found)

    def a_select() -> Value:
        kind = choose.choice([F32, F64, I32, I64, TRUTH])
        return some(TRUTH).select(some(kind), some(kind))

    def a_number() -> Value:
        kind = choose.choice([F32, F64])
        a, b = some(kind), some(kind)
        return choose.choice([lambda: a + b, lambda: a - b, lambda: a * b, lambda: -a, lambda: abs(a)])()

    def an_integer() -> Value:
        kind = choose.choice([I32, I64])
        a, b, count = some(kind), some(kind), choose.randrange(kind.bits)
        verbs = [lambda: a + b, lambda: a - b, lambda: a * b, lambda: a & b, lambda: a | b, lambda: a ^ b]
        verbs += [lambda: ~a, lambda: a << count, lambda: a >> count, lambda: a.shr(count)]
        verbs += [lambda: (a < b).select(a, b), lambda: (a < b).select(b, a), lambda: (a < 7).select(a, 7)]
        verbs += [lambda: a + some(TRUTH).count(kind), lambda: some(TRUTH).count(kind) | b]
        return choose.choice(verbs)()

    def a_truth() -> Value:
        kind = choose.choice([F32, F64, I32, I64])
        a, b, t, u = some(kind), some(kind), some(TRUTH), some(TRUTH)
        if kind.is_float and choose.random() < 0.5:
            bound = choose.choice([0.5, 2.0, 2.0**100])
            rare = [lambda: a.equals(a), lambda: abs(a) < bound, lambda: ~(abs(a) <= bound)]
            return choose.choice([*rare, lambda: b.like(bound) < abs(a)])()
        return choose.choice(
            [lambda: a < b, lambda: a <= b, lambda: a.equals(b), lambda: ~t, lambda: t & u, lambda: t ^ u]
        )()

    def another() -> Value:
        return choose.choice(
            [
                *(lambda: some(F32).bits(), lambda: some(F64).bits(), lambda: some(I32).as_number()),
                *(lambda: some(I64).as_number(), lambda: some(F32).widen(), lambda: some(F64).narrow()),
                *(lambda: some(I32).extend(), lambda: some(I64).cut(), lambda: some(TRUTH).count(I64)),
                *(lambda: abs(some(F32)).sqrt(), lambda: some(F64) / some(F64)),
            ]
        )()

    for _ in range(verbs):
        made.append(choose.choice([a_select, a_select, a_number, an_integer, a_truth, another])())
    results = choose.choices(made[-6:], k=choose.randrange(1, 4)) + choose.choices(
        made, k=choose.randrange(2)
    )
    return line, inputs, results


def operands(seed: int, size: int) -> list[Any]:
    """Return operands for such a line: integers, and numbers of all sizes, infinite and NaN for a share."""
    rng = np.random.default_rng(seed)
    share = rng.choice([0.0, 0.003, 0.3, 0.6, 1.0])
    numbers = [rng.standard_normal(size) * 4.0 ** rng.integers(-3, 3, size) for _ in range(3)]
    for x in numbers:
        wild = rng.random(size) < share
        x[wild] = rng.choice([np.inf, -np.inf, np.nan, 0.0, -0.0, 1e300, 2.0**-140], wild.sum())
    with np.errstate(over="ignore"):
        floats = [numbers[0].astype(np.float32), numbers[1].astype(np.float32), numbers[2]]
    return [*floats, *(rng.integers(-9, 9, size, dtype).astype(dtype) for dtype in (np.int32, np.int64))]


def assert_bits(found: Any, expected: Any) -> None:
    """Compare bit for bit, but for what NaN it is."""
    assert found.dtype == expected.dtype
    same = found.view(f"u{found.itemsize}") == np.ascontiguousarray(expected).view(f"u{found.itemsize}")
    if found.dtype.kind == "f":
        same |= np.isnan(found) & np.isnan(expected)
    assert same.all()


def by_verbs(line: Line, results: Any, inputs: list[Value], given: list[Any]) -> list[Any]:
    """Return what the reference makes of operands."""
    named = {str(value.constant): array for value, array in zip(inputs, given, strict=True)}
    return [np.array(x) for x in run(line, tuple(results), **named)]


@pytest.mark.parametrize("seed", range(300))
def test_random_lines_have_the_bits_of_one_verb_after_another(seed):
    line, inputs, results = line_of(seed, 4 + seed % 60)
    calls = Calls(results, inputs)
    for size in (SIZE, 1, 37, SIZE):
        given = operands(seed + size, size)
        kept = [x.copy() for x in given]
        out = [np.full(size, 77).astype(DTYPES[x.type]) for x in results]
        with np.errstate(all="ignore"):
            calls(given, out)
        for found, expected in zip(out, by_verbs(line, results, inputs, given), strict=True):
            assert_bits(found, expected)
        for x, before in zip(given, kept, strict=True):
            assert_bits(x, before)
    calls([x[:0] for x in given], [x[:0] for x in out])


@pytest.mark.parametrize("seed", range(100))
def test_a_single_result_may_be_in_the_memory_of_any_operand(seed):
    line, inputs, _ = line_of(seed, 4 + seed % 60)
    result = next((x for x in reversed(line.values) if x.type in DTYPES and x.type is not TRUTH), inputs[0])
    calls = Calls([result], inputs, apart=False)
    for size in (SIZE, 1):
        given = operands(seed, size)
        (expected,) = by_verbs(line, [result], inputs, given)
        for place, x in enumerate(inputs):
            if x.type is result.type:
                taken = [array.copy() for array in given]
                with np.errstate(all="ignore"):
                    calls(taken, [taken[place]])
                assert_bits(taken[place], expected)


@pytest.mark.parametrize("seed", range(100))
def test_numbers_that_are_the_same_for_all_elements_need_no_vectors(seed):
    line, inputs, results = line_of(seed, 4 + seed % 60)
    single = random.Random(seed).sample(range(len(inputs)), 2)
    calls = Calls(results, inputs, [inputs[place] for place in single])
    given = operands(seed, SIZE)
    for place in single:
        given[place] = np.array(given[place][0])
    out = [np.empty(SIZE, DTYPES[x.type]) for x in results]
    with np.errstate(all="ignore"):
        calls(given, out)
    spread = [np.broadcast_to(x, SIZE) for x in given]
    for found, expected in zip(out, by_verbs(line, results, inputs, spread), strict=True):
        assert_bits(found, expected)


def test_a_side_that_few_take_is_computed_for_few_and_one_that_none_takes_not_at_all():
    sizes: list[int] = []

    def text(x: Value) -> Value:
        return (abs(x) < 1.0).select((x + 1.0) * (x + 2.0) * (x + 3.0), x)

    line, results = recorded(text, x=F64)
    calls = Calls(results, line.values[:1])
    ((choice, _),) = [call for call in calls._calls if isinstance(call[0], Choice)]
    compute = choice._sides[1].compute
    object.__setattr__(choice._sides[1], "compute", lambda x, out: (sizes.append(x[0].size), compute(x, out)))
    x = np.full(SIZE, 2.0)
    for count in (0, 1, 5, SIZE // 2, SIZE):
        x[:count] = 0.5
        out = np.empty(SIZE)
        calls([x], [out])
        assert out.tolist() == by_verbs(line, results, line.values[:1], [x])[0].tolist()
    assert sizes == [1, 5, SIZE, SIZE]


EDGES = ("bfloat16", "float8_e4m3fn", "float16", "tf32", "posit8", "int8")


@pytest.mark.parametrize("mode", [*DETERMINISTIC])
@pytest.mark.parametrize("name", EDGES)
def test_one_number_that_differs_in_a_block_rounds_by_the_definition(name, mode, assert_same):
    fmt, rounding = get_format(name), Rounding(mode)
    top, normal = float(fmt.max), float(fmt.smallest_normal)
    ends = [np.nextafter(np.float32(x), np.float32(to)) for x in (top, normal) for to in (0, np.inf)]
    block = np.linspace(1.0, 1.5, SIZE, dtype=np.float32)
    judge = OracleArithmetic(fmt, rounding)
    expected = np.array([judge.round(float(number)) for number in block], np.float32)
    for odd in (np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, top, -top, normal, -normal, *ends, 1e-45, 3e38):
        for place in (0, SIZE // 2, SIZE - 1):
            x, changed = block.copy(), expected.copy()
            x[place] = odd
            changed[place] = judge.round(float(x[place]))
            assert_same(round_to(x, fmt, mode), changed, x)
            assert_same(round_to(x[place : place + 1], fmt, mode), changed[place : place + 1])


def test_threads_do_not_share_memory():
    line, inputs, results = line_of(11, 40)
    calls = Calls(results, inputs)
    wrong: list[int] = []

    def work(seed: int) -> None:
        for turn in range(40):
            given = operands(seed + turn, SIZE)
            out = [np.empty(SIZE, DTYPES[x.type]) for x in results]
            with np.errstate(all="ignore"):
                calls(given, out)
            for found, expected in zip(out, by_verbs(line, results, inputs, given), strict=True):
                if found.tobytes() != np.ascontiguousarray(expected).tobytes():
                    wrong.append(seed)

    threads = [Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_an_operand_that_is_not_given_is_refused():
    line, results = recorded(lambda x, y: x + y, x=F32, y=F32)
    with pytest.raises(ValueError, match="the operand y is not given"):
        Calls(results, line.values[:1])
