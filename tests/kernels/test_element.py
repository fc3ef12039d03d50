"""The text for one element, carried out by NumPy: against the oracle, and against the kernels bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.backends.block_arithmetic import BlockArithmetic
from mcfsim.formats import Format, get_format
from mcfsim.kernels.carriers import FLOAT32, FLOAT64, UnsupportedFormatError, carrier_of, holds
from mcfsim.kernels.dispatch import get_kernel
from mcfsim.kernels.element.machine import F32, F64, I64, recorded
from mcfsim.kernels.element.on_numpy import run
from mcfsim.kernels.element.operations import change_element, operate_element
from mcfsim.kernels.element.rounding import round_element
from mcfsim.kernels.plan import Way
from mcfsim.oracle import operate_integers
from mcfsim.rounding import Mode, Overflow, Rounding, Rule, Underflow
from tests.oracle.operands import (
    FLUSHING,
    ROUNDINGS,
    SMALL_FORMATS,
    UNUSUAL_FORMATS,
    WIDE_FORMATS,
    label,
    values,
)

TYPES = {FLOAT32: F32, FLOAT64: F64}
NAMED = ("posit3", "posit5es0", "posit6es3", "posit7", "posit8", "posit16", "posit32")
GRIDS = ("int4", "int8", "ternary", "int32")
#: No room for two more bits in binary32; subnormal numbers high above the carrier's; a quantum above one.
CROWDED = [
    Format(precision=24, emin=-100, emax=127),
    Format(precision=23, emin=-100, emax=127),
    Format(precision=1, emin=100, emax=127, specials="none"),
    Format(precision=3, emin=110, emax=127),
]
ROUNDED = [
    *(*SMALL_FORMATS, *UNUSUAL_FORMATS, *WIDE_FORMATS, *CROWDED),
    *map(get_format, (*NAMED, *GRIDS, "bfloat16", "float32", "e6m9")),
]
STOCHASTIC = [
    Rounding("stochastic", overflow, random_bits=bits, rule=rule)
    for overflow in Overflow
    for bits in (1, 8, 16, 23, 32)
    for rule in Rule
]
WIDE = [
    *(Format(precision=p, emin=-300, emax=300) for p in (26, 27)),
    Format(precision=40, emin=-400, emax=400),
    Format(precision=20, emin=-1000, emax=1000),
    Format(precision=12, emin=-1022, emax=1023),
]
ARITY = {"add": 2, "sub": 2, "mul": 2, "div": 2, "sqrt": 1, "fma": 3}


def numbers(fmt: Format, carrier: np.dtype[Any], rng: np.random.Generator) -> Any:
    """Return numbers of a carrier: any codes, values, what is half-way between two, and beside these."""
    integer, info = np.dtype(f"i{carrier.itemsize}"), np.finfo(carrier)
    codes = rng.integers(np.iinfo(integer).min, np.iinfo(integer).max, 2000, integer).view(carrier)
    with np.errstate(all="ignore"):
        some = values(fmt) if fmt.bits <= 9 else np.sort(mcf.round_to(codes, fmt))
        some = some[np.isfinite(some)].astype(carrier)
        halves = ((some[:-1].astype(np.float64) + some[1:]) / 2).astype(carrier)
        exact = np.concatenate([some, halves])
        beside = [np.nextafter(exact, carrier.type(end)) for end in (np.inf, -np.inf)]
        near = (rng.choice(some, 1000) * rng.uniform(0.5, 2, 1000)).astype(carrier)
    extremes = [0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan, info.max, info.tiny, info.smallest_subnormal]
    return np.concatenate([codes, exact, -exact, *beside, near, np.array(extremes, carrier)])


def drawn(rounding: Rounding, size: int, rng: np.random.Generator) -> Any:
    """Return random words, or None."""
    return rng.integers(0, 2**32, size, dtype=np.uint32) if rounding.stochastic else None


def played(text: Any, operands: list[Any], rounding: Rounding, words: Any) -> Any:
    """Record a text of operands and a word, and carry it out."""
    named = {f"x{i}": x for i, x in enumerate(operands)}
    kinds = {name: TYPES[x.dtype] for name, x in named.items()}
    if words is not None:
        named["word"], kinds["word"] = words.astype(np.int64) >> (32 - rounding.random_bits), I64
    count = len(operands)
    line, results = recorded(lambda *x: text(x[:count], x[count] if words is not None else None), **kinds)
    (found,) = run(line, results, **named)
    return found


@pytest.mark.parametrize("rounding", [*ROUNDINGS, *FLUSHING, *STOCHASTIC], ids=label)
@pytest.mark.parametrize("fmt", ROUNDED, ids=label)
@pytest.mark.sampled(12)
def test_numbers_round_as_in_blocks(fmt, rounding, assert_same):
    rng = np.random.default_rng(fmt.bits)
    for carrier in (FLOAT32, FLOAT64):
        if not holds(carrier, fmt):
            continue
        try:
            kernel = get_kernel(fmt, rounding, carrier)
        except UnsupportedFormatError:
            continue
        x = numbers(fmt, carrier, rng)
        words = drawn(rounding, x.size, rng)
        expected = np.empty_like(x)
        with np.errstate(all="ignore"):
            kernel(x.copy(), expected, words)
        found = played(lambda x, word: round_element(*x, fmt, rounding, word), [x], rounding, words)
        assert_same(found, expected, x)


@pytest.mark.parametrize("name", ARITY)
@pytest.mark.parametrize("mode", [*Mode][:-1])
@pytest.mark.parametrize("fmt", ["float8_e4m3fn", "float8_e5m2", "float6_e3m2fn"])
@pytest.mark.sampled(9)
def test_all_operands_of_a_small_format_by_the_oracle(fmt, mode, name, assert_same):
    fmt, rounding = get_format(fmt), Rounding(mode)
    every = values(fmt).astype(np.float32)
    few = every if ARITY[name] < 3 else every[:: max(1, every.size // 40)]
    grids = [np.ravel(x) for x in np.meshgrid(*[few] * ARITY[name], indexing="ij")]
    way = str(BlockArithmetic(fmt, rounding, "exact").plan.values[name].way)
    text = lambda x, word: operate_element(name, x, way, fmt, rounding, word, carrier=F32)  # noqa: E731
    expected = operate_integers(name, *(x.astype(np.float64) for x in grids), fmt=fmt, rounding=rounding)
    assert_same(played(text, grids, rounding, None), expected, *grids)


class _Words:
    """Random words that are there already, for whatever operation."""

    def __init__(self, words: Any) -> None:
        self.words = words

    def of(self, operation: int) -> _Words:
        return self

    def draws(self, start: int, count: int, bits: int) -> Any:
        return self.words


@pytest.mark.parametrize(
    "rounding",
    [*ROUNDINGS, *FLUSHING, *(Rounding("stochastic", random_bits=12, rule=rule) for rule in Rule)],
    ids=label,
)
@pytest.mark.parametrize(
    "fmt",
    [*SMALL_FORMATS, *UNUSUAL_FORMATS, *WIDE_FORMATS, *WIDE, *map(get_format, (*NAMED, *GRIDS, "e6m9"))],
    ids=label,
)
@pytest.mark.sampled(12)
def test_operations_are_those_on_blocks(fmt, rounding, assert_same):
    try:
        ar = BlockArithmetic(fmt, rounding, "exact")
    except UnsupportedFormatError:
        assert rounding.underflow is not Underflow.GRADUAL
        return
    rng, carrier = np.random.default_rng(fmt.bits), carrier_of(fmt)
    with np.errstate(all="ignore"):
        every = mcf.round_to(numbers(fmt, carrier, rng), fmt)
    words = drawn(rounding, 2000, rng)
    for name, arity in ARITY.items():
        entry = ar.plan.values[name]
        operands = [rng.choice(every, 2000) for _ in range(arity)]
        if entry.way is Way.REFUSED or (rounding.stochastic and fmt.emax == 1023):
            continue

        def text(x, word, name=name, way=str(entry.way)):
            return operate_element(name, x, way, fmt, rounding, word, carrier=TYPES[carrier])

        block = ar if words is None else ar.at(_Words(words), 0)
        with np.errstate(all="ignore"):
            expected = getattr(block, name)(*(x.copy() for x in operands))
        assert_same(played(text, operands, rounding, words), expected, *operands)
    for name in ("neg", "abs", "sign"):

        def changed(x, word, name=name):
            return change_element(name, *x, fmt, rounding, word, carrier=TYPES[carrier])

        block = ar if words is None else ar.at(_Words(words), 0)
        with np.errstate(all="ignore"):
            expected = getattr(block, name)(every[:2000].copy())
        assert_same(played(changed, [every[:2000]], rounding, words), expected, every[:2000])
