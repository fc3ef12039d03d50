"""Hard cases for the text of one element: what an altered text must make in them is what the text makes.

A case is recorded with the text that is judged, carried out by NumPy, and compared bit for bit. Whether the
text as it is makes what it should an oracle says, where it takes the case; elsewhere tests of operations do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from types import SimpleNamespace
from typing import Any
from zlib import crc32

import numpy as np

import mcfsim as mcf
from mcfsim.backends.block_arithmetic import BlockArithmetic
from mcfsim.compile.scalars import _parts
from mcfsim.formats import Format, get_format
from mcfsim.kernels.blocks import get_kernel
from mcfsim.kernels.carriers import FLOAT32, FLOAT64, UnsupportedFormatError, carrier_of, holds
from mcfsim.kernels.codes_by_kind import codes_by_kind
from mcfsim.kernels.element.machine import F32, F64, I32, I64, Type, recorded, run
from mcfsim.kernels.elementary import FUNCTIONS
from mcfsim.kernels.operation_plan import Way, sum_within
from mcfsim.oracle import same
from mcfsim.rounding import DETERMINISTIC, Mode, Overflow, Rounding, Rule, Underflow
from tests.oracle.operands import FLUSHING, MODES, ROUNDINGS, UNUSUAL_FORMATS, random_tuples
from tests.shared.element_mutants import Mutant, made, marked

Array = Any
TYPES = {FLOAT32: F32, FLOAT64: F64}
ARITY = {"add": 2, "sub": 2, "mul": 2, "div": 2, "sqrt": 1, "fma": 3}
CHANGES = ("neg", "abs", "sign", "round")


@dataclass(frozen=True, eq=False)
class Case:
    """One text, of modules and operands, on operands by name."""

    name: str
    text: Callable[..., Any]
    operands: dict[str, Array]
    #: Whether NaN among the results must have clean codes.
    clean: bool = False
    #: What is true of the operands.
    oracle: Callable[[], Any] | None = None
    #: Whether a verb that GPUs have may be noted beside the result, and for each of its operands of which of
    #: this case's it is made; empty, if nothing is. None: it is not looked at.
    noted: Callable[[str], bool] | None = None

    @cached_property
    def expected(self) -> Any:
        """What the text as it is makes of the operands, or the class of an error."""
        try:
            line, results = self.record(_text())
        except ValueError:
            return ValueError
        (found,) = run(line, results, **self.operands)
        return found

    def record(self, modules: SimpleNamespace) -> Any:
        """Return the line and the result."""
        kinds = {name: _kind(x) for name, x in self.operands.items()}
        return recorded(lambda *x: self.text(modules, *x), **kinds)

    def wrong(self, modules: SimpleNamespace, known: Any = None) -> str | None:
        """Return what is wrong with the text of some modules in this case.

        Where it records what is known to be right, it is so again.
        """
        try:
            line, results = self.record(modules)
            if known is not None and signature(line, results) == known:
                return None
            (found,) = run(line, results, **self.operands)
        except Exception as error:
            return None if self.expected is type(error) else f"{self.name}: {type(error).__name__}: {error}"
        expected = self.expected
        if isinstance(expected, type) or found.dtype != expected.dtype:
            return f"{self.name}: {found.dtype}, not {expected}"
        differ = np.flatnonzero(~same(found, expected))
        if differ.size:
            i = differ[0]
            witness = ", ".join(repr(x[i].item()) for x in self.operands.values())
            return f"{self.name}: {witness} gives {found[i]!r}, not {expected[i]!r}; {differ.size} differ"
        if self.clean and (~clean(found)).any():
            return f"{self.name}: NaN whose code is not clean"
        if self.noted is not None and not self.noted(verb := noted_of(line, *results, list(self.operands))):
            return f"{self.name}: {verb or 'nothing'} is noted"
        return None


@cache
def _text() -> SimpleNamespace:
    return made({})


def _kind(x: Array) -> Type:
    return {"f": TYPES.get(x.dtype), "i": I32 if x.dtype.itemsize == 4 else I64}[x.dtype.kind]


def signature(line: Any, results: tuple[Any, ...]) -> Any:
    """Return all that a line says."""

    def said(x: Any) -> Any:
        constant = x.constant if x.constant is None else repr(x.constant)
        return x.number, x.verb, x.type, constant, [y.number for y in x.operands]

    noted = [said(y) for y in map(line.noted, line.values) if y is not None]
    return [said(x) for x in line.values], noted, [x.number for x in results]


def noted_of(line: Any, result: Any, names: list[str]) -> str:
    """Return what is noted beside a result, or what it is chosen from: the verb, and its operands' names.

    These are those of the line's operands of which they are made.
    """
    chosen = result.operands if result.verb == "select" else ()
    noted = next((x for x in map(line.noted, (result, *chosen)) if x is not None), None)
    if noted is None:
        return ""

    def under(x: Any) -> set[int]:
        return {x.number}.union(*map(under, x.operands))

    made = ("+".join(names[i] for i in sorted(under(x)) if i < len(names)) for x in noted.operands)
    return " ".join([noted.verb, *made])


def clean(x: Array) -> Array:
    """Return where a number is none of the NaN whose codes have low bits set."""
    integer = x.view(f"i{x.dtype.itemsize}")
    low = (1 << (np.finfo(x.dtype).nmant - 1)) - 1
    return ~np.isnan(x) | (integer & low == 0)


# -- operands ------------------------------------------------------------------------------------------------
def _rounded(x: Any, fmt: Format, *how: str) -> Array:
    return np.asarray(mcf.round_to(x, fmt, *how), np.float64)


@cache
@np.errstate(all="ignore")
def values_of(fmt: Format) -> Array:
    """Return some values of a format, those at its ends among them, and their negatives, as float64."""
    rng, low = np.random.default_rng(crc32(str(fmt).encode())), fmt.emin - fmt.precision
    spread = 2.0 ** rng.uniform(low, fmt.emax + 1, 40) * rng.uniform(1, 2, 40)
    near = [1.0, 3.0, float(fmt.max), float(fmt.smallest_normal)]
    small = 2.0 ** max(low + 1, -1074) * np.arange(1.0, 6.0)
    some = _rounded(np.concatenate([spread, near, small, rng.uniform(0.5, 4, 10)]), fmt)
    below = _rounded(np.nextafter(some, 0), fmt, "toward_zero")
    above = _rounded(np.nextafter(some, np.inf), fmt, "up", "saturate")
    every = np.concatenate([some, below, above])
    return np.unique(every[np.isfinite(every)])


@cache
@np.errstate(all="ignore")
def numbers(fmt: Format, carrier: Any) -> Array:
    """Return numbers of a carrier that are hard to round to a format, and any."""
    rng = np.random.default_rng(1)
    integer, info = np.dtype(f"i{carrier.itemsize}"), np.finfo(carrier)
    least, most = np.iinfo(integer).min, np.iinfo(integer).max
    codes = rng.integers(least, most, 60, integer).view(carrier)
    some, top, normal = values_of(fmt), float(fmt.max), float(fmt.smallest_normal)
    last = top - _rounded(np.nextafter(top, 0), fmt, "toward_zero")
    some = some[some >= 0] if some.size < 150 else rng.choice(some[some >= 0], 150)
    halves = some / 2 + np.append(some[1:], top) / 2
    past = top + last * np.array([0.25, 0.5, 0.75, 1.0, 1.5, 2.0])
    first = _rounded(5e-324, fmt, "up") * np.array([0.25, 0.5, 0.75, 1.5, 2.5])
    under = normal - normal * 2.0**-fmt.precision * np.array([0.25, 0.5, 1.0, 1.5, 2.0])
    exact = np.concatenate([some, halves, some / 2 + halves / 2, past, first, under]).astype(carrier)
    beside = [np.nextafter(exact, carrier.type(end)) for end in (np.inf, 0)]
    extremes = [0.0, np.inf, info.max, info.tiny, info.smallest_subnormal, info.max / 2, 0.5, 0.25]
    positive = np.concatenate([exact, *beside, np.array(extremes, carrier)])
    signed = positive * np.where(np.arange(positive.size) % 3, 1, -1).astype(carrier)
    special = np.array([-0.0, -np.inf, 0.0, np.inf, np.nan, -np.nan, top, -top, normal, -normal], carrier)
    infinity = np.array(np.inf, carrier).view(integer)
    odd = np.array([infinity + 1, most, -1, least + infinity + 1], integer)
    return np.concatenate([codes, signed, special, odd.view(carrier)])


def cleaned(x: Array) -> Array:
    """Return numbers, NaN among them with the code that processors make."""
    return np.where(np.isnan(x), x.dtype.type(np.nan), x)


@np.errstate(all="ignore")
def words_for(x: Array, fmt: Format, rounding: Rounding) -> Array:
    """Return random words, many of them next to where they decide."""
    rng, bits, wide = np.random.default_rng(2), rounding.random_bits, np.abs(np.asarray(x, np.float64))
    low, high = (_rounded(wide, fmt, mode, "saturate") for mode in ("toward_zero", "up"))
    share = np.clip(np.nan_to_num((wide - low) / (high - low), nan=0.5), 0, 1)
    deciding = np.ceil((1 - share) * 2.0**bits) + rng.integers(-2, 2, x.size)
    deciding = np.clip(deciding, 0, 2.0**bits - 1).astype(np.int64)
    ends = np.where(rng.random(x.size) < 0.5, 0, (1 << bits) - 1)
    any_word, kind = rng.integers(0, 1 << bits, x.size), rng.integers(0, 6, x.size)
    chosen = np.where(kind < 4, deciding, np.where(kind == 4, ends, any_word))
    low_bits = rng.integers(0, 2**32, x.size) & ((1 << (32 - bits)) - 1)
    return ((chosen << (32 - bits)) | low_bits).astype(np.uint32)


def _drawn(x: Array, fmt: Format, rounding: Rounding) -> dict[str, Array]:
    """Return the word that a text is given, where it draws."""
    if not rounding.stochastic:
        return {}
    return {"word": words_for(x, fmt, rounding).astype(np.int64) >> (32 - rounding.random_bits)}


def _arithmetic(fmt: Format, rounding: Rounding) -> BlockArithmetic | None:
    with suppress(UnsupportedFormatError):
        return BlockArithmetic(fmt, rounding, "exact")
    return None


# -- cases ---------------------------------------------------------------------------------------------------
def _about(fmt: Format, rounding: Rounding) -> str:
    bits = f" {rounding.random_bits} {rounding.rule}" if rounding.stochastic else ""
    return f"{fmt or repr(fmt)} {rounding.mode}{bits} {rounding.overflow} {rounding.underflow}"


def rounding_case(fmt: Format, rounding: Rounding, carrier: Any, tidy: bool) -> Case | None:
    """Return a case of rounding; None where the kernels refuse it."""
    try:
        get_kernel(fmt, rounding, carrier)
    except UnsupportedFormatError:
        return None
    x = numbers(fmt, carrier)
    x = cleaned(x) if tidy else x
    given = {"x": x, **_drawn(x, fmt, rounding)}
    if rounding.stochastic and not tidy and rounding.random_bits <= 30:
        given["word"] = given["word"].astype(np.int32)

    floating = type(fmt) is Format and fmt.emin > -900
    return Case(
        f"round {carrier} {_about(fmt, rounding)} {tidy}",
        lambda m, x, word=None: m.element_rounding.round_element(x, fmt, rounding, word, clean=tidy),
        given,
        tidy,
        partial(mcf.oracle.round_integers, x, fmt, rounding)
        if floating and not rounding.stochastic
        else None,
    )


def beside_quotients(precision: int, rng: np.random.Generator) -> list[tuple[int, int]]:
    """Return integers of so many bits whose quotients lie next to numbers of as many bits, or of one more."""
    found: list[tuple[int, int]] = []
    while len(found) < 24:
        bits = precision + len(found) % 2
        divisor = int(rng.integers(1 << (precision - 1), 1 << precision)) | 1
        rest = int(rng.choice([-3, -1, 1, 3]))
        quotient = rest * pow(divisor, -1, 1 << bits) % (1 << bits)
        dividend = (divisor * quotient - rest) >> bits
        if dividend.bit_length() <= precision and quotient >> (bits - 1):
            found.append((dividend, divisor))
    return found


def beside_squares(precision: int, rng: np.random.Generator) -> list[int]:
    """Return integers of so many bits whose roots lie next to numbers of as many bits, or of one more."""
    found: list[int] = []
    for number in range(24):
        bits, cut = (precision, precision) if number % 2 else (precision + 1, precision + 2)
        # By next to nothing, or about a unit in the last place of binary64.
        most = max(3, 2 ** (precision + cut - 56)) if number % 4 < 2 else 3
        rest, root = 8 * int(rng.integers(-most, most)) + 1, int(rng.choice([1, 3, 5, 7]))
        for place in range(3, cut):  # root**2 is the rest, modulo a power of two
            root += ((root * root - rest) >> place & 1) << (place - 1)
        root %= 1 << bits
        root = root if root >> (bits - 1) else (1 << bits) - root
        found.append(((root * root - rest) >> cut) << cut % 2)
    return found


@cache
@np.errstate(all="ignore")
def tuples(fmt: Format, arity: int, size: int = 300) -> list[Array]:
    """Return hard operands of an operation, in the carrier."""
    rng, some = np.random.default_rng(arity), values_of(fmt)
    wide = mcf.round_to(numbers(fmt, FLOAT64), fmt)
    pool = np.concatenate([some, -some if fmt.signed else some, wide, wide[-14:], wide[-14:]])
    pool = _rounded(pool, fmt)
    parts = [[rng.choice(pool, size) for _ in range(arity)]]
    if type(fmt) is Format:
        parts.append(random_tuples(fmt, size, arity, 1))
        if arity == 2:
            ends = np.array([float(fmt.max), float(fmt.smallest_normal), 1.0, 3.0, 0.0, np.inf, np.nan])
            ends = _rounded(np.concatenate([ends, -ends]), fmt)
            parts.append([x.ravel() for x in np.meshgrid(ends, ends)])
        if arity < 3 and fmt.precision > 2:
            pairs = beside_quotients(fmt.precision, rng)
            hard = [*zip(*pairs, strict=True)] if arity == 2 else [beside_squares(fmt.precision, rng)]
            # What is no value here is any other one.
            more = [np.array(x, np.float64) * 2.0**-fmt.precision for x in hard]
            more = [x * rng.choice([-1.0, 1.0], x.size) for x in more] if arity == 2 else more
            parts.append([_rounded(x, fmt) for x in more])
    found = [np.concatenate(x) for x in zip(*parts, strict=True)]
    if arity == 3:  # what a product loses, and what cancels
        a, b, c = found
        found[2] = np.where(np.arange(c.size) % 3 == 0, _rounded(-a * b, fmt), c)
    return [x.astype(carrier_of(fmt)) for x in found]


def operation_case(
    name: str,
    fmt: Format,
    rounding: Rounding,
    *,
    way: str | None = None,
    tidy: bool = False,
    scalar: tuple[int, float] | None = None,
) -> Case | None:
    """Return a case of an operation, planned or by a way of its own; perhaps with a real scalar somewhere."""
    ar = _arithmetic(fmt, rounding)
    if ar is None:
        return None
    entry = (ar.plan.values if scalar is None else ar.plan.reals)[name]
    if entry.way is Way.REFUSED:
        return None
    way, carrier = way or str(entry.way), carrier_of(fmt)
    operands = list(tuples(fmt, ARITY[name]))
    if way == "within":
        within = sum_within(fmt, rounding, carrier)
        if within is None:
            return None
        way = str(within.way)
    if way == "exact product" and name == "fma":
        with np.errstate(all="ignore"):
            operands[2] = -ar.mul(operands[0].copy(), operands[1].copy())
        way = "exact"
    operands = [cleaned(x) for x in operands] if tidy else operands
    if scalar is not None:
        position, number = scalar
        operands[position] = np.full(operands[0].size, number)
        other = 1 - position if len(operands) == 2 else 0
        if other != position:
            plain = np.array([1.0, 3.0, 5.0, 2.0**28, -1.0, -3.0, -5.0, -(2.0**28)], carrier)
            operands[other] = np.concatenate([operands[other][: -plain.size], plain])
    given = {f"x{i}": x for i, x in enumerate(operands)} | _drawn(operands[0], fmt, rounding)
    count, real = len(operands), scalar is not None

    def text(m: SimpleNamespace, *x: Any) -> Any:
        word = x[count] if len(x) > count else None
        into = m.operations.Into(fmt, rounding, TYPES[carrier], word, tidy)
        return m.operations.operate_element(name, x[:count], way, into, real=real)

    def oracle() -> Array:
        wide = [x.astype(np.float64) for x in operands]
        return mcf.oracle.operate_integers(name, *wide, fmt=fmt, rounding=rounding)

    plain = type(fmt) is Format and fmt.precision <= 11 and max(fmt.emax, -fmt.emin) < 150
    judged = oracle if plain and not rounding.stochastic and not real else None
    return Case(f"{name} {way} {_about(fmt, rounding)} {tidy} {scalar}", text, given, tidy, judged)


def change_case(name: str, fmt: Format, rounding: Rounding, tidy: bool = False) -> Case | None:
    """Return a case of a changed sign, of a function that a table has, or of values of another format."""
    if _arithmetic(fmt, rounding) is None:
        return None
    x = numbers(fmt, FLOAT64) if name == "round" else tuples(fmt, 1)[0]
    x = cleaned(x) if tidy else x

    def text(m: SimpleNamespace, x: Any, word: Any = None) -> Any:
        change = m.operations.function_element if name in FUNCTIONS else m.operations.change_element
        return change(name, x, m.operations.Into(fmt, rounding, TYPES[carrier_of(fmt)], word, tidy))

    return Case(f"{name} {_about(fmt, rounding)} {tidy}", text, {"x": x, **_drawn(x, fmt, rounding)}, tidy)


def selection_case(name: str, fmt: Format, carrier: Any) -> Case:
    """Return a case of an operation that takes one of its operands, on all pairs of zeros, signs and NaN."""
    x = [part.astype(carrier) for part in tuples(fmt, 3 if name == "choose" else 2)]
    hard = np.array([0.0, -0.0, 1.0, -1.0, np.nan], x[0].dtype)
    hard = hard if fmt.has_nan else hard[:4]
    grid = [part.reshape(-1) for part in np.meshgrid(*[hard] * len(x))]
    operands = {key: np.concatenate(pair) for key, *pair in zip("abc", x, grid, strict=False)}
    return Case(
        f"{name} {fmt} {carrier}",
        lambda m, *x: m.operations.select_element(name, x, TYPES[carrier]),
        operands,
    )


def parts_case(fmt: Format, rounding: Rounding, number: float) -> Case:
    """Return a case of an fma with a real factor in two parts."""
    ar, carrier = BlockArithmetic(fmt, rounding, "exact"), carrier_of(fmt)
    x, _, c = (cleaned(x) for x in tuples(fmt, 3))
    with np.errstate(all="ignore"):
        near = ar.mul(x, -number)
        c = np.where(np.arange(c.size) % 3 == 0, near, c)
    high, low = (np.full(x.size, part) for part in _parts(number, 53 - fmt.precision))
    given = {"x": x, "c": c, "high": high, "low": low}

    def text(m: SimpleNamespace, x: Any, c: Any, high: Any, low: Any) -> Any:
        into = m.operations.Into(fmt, rounding, TYPES[carrier], clean=True)
        return m.operations.fma_by_parts(x, (high, low), c, into)

    return Case(f"parts {_about(fmt, rounding)} {number}", text, given, True)


def residual_case(fmt: Format, mode: Mode, tidy: bool) -> Case:
    """Return a case of rounding together with what the carrier lost, whose sum binary64 holds."""
    rng, rounding = np.random.default_rng(5), Rounding(mode)
    x = numbers(fmt, FLOAT32)
    x = cleaned(x[(np.abs(x) > 2.0**-90) | ~np.isfinite(x)])
    codes = (x.view(np.int32) & ~np.int32(0x7F800000)) | (np.int32(141) << 23)
    x = np.concatenate([x, codes.view(np.float32)])
    share = rng.choice([0.0, 1.0, -1.0], x.size) * 2.0 ** -rng.integers(25, 28, x.size)
    with np.errstate(all="ignore"):
        lost = np.where(np.isfinite(x), x * share.astype(np.float32), 0).astype(np.float32)
    lost[-codes.size :] = (~codes).view(np.float32)

    return Case(
        f"residual {fmt} {mode} {tidy}",
        lambda m, x, lost: m.floats.round_float(x, fmt, rounding, residual=lost, clean=tidy),
        {"x": x, "lost": lost},
        tidy,
        lambda: mcf.oracle.round_integers(x.astype(np.float64) + lost, fmt, rounding),
    )


#: Formats of which sums may be rounded with what binary32 lost of them, and others.
WITH_RESIDUAL = ("bfloat16", "tf32", "full22", "full2", "full8fnuz", "full8none", "short8")
WITHOUT = ("float16", "posit8", "int8", "float32", "full8unsigned", "full24nozero", "full8nozero", "full1")
WITHOUT += ("full23", "near8", "high8")


def _asked(title: str, text: Callable[..., Any], expected: bool) -> Case:
    """Return a case of what is so for all numbers."""
    return Case(title, lambda m, x: x.like(float(text(m))), {"x": np.float32([1])}, oracle=lambda: [expected])


def residual_choices() -> Iterator[Case]:
    """Yield cases of which formats, modes and policies a residual is taken."""
    by_name = {str(fmt): fmt for fmt in FORMATS}
    for name in (*WITH_RESIDUAL, *WITHOUT):
        for rounding in (*MODES, Rounding("up", underflow="flush_before"), Rounding("stochastic")):
            given = (F32, by_name[name], rounding)
            decided = rounding.mode not in ("to_odd", "stochastic")
            chosen = name in WITH_RESIDUAL and decided and rounding.underflow is Underflow.GRADUAL
            title = f"takes residual {_about(*given[1:])}"
            yield _asked(title, lambda m, given=given: m.floats.takes_residual(*given), chosen)


def value_case(fmt: Format, carrier: Any) -> Case | None:
    """Return a case of whether numbers are values of a format."""
    if not holds(carrier, fmt):
        return None
    x = numbers(fmt, carrier)

    return Case(
        f"is value {fmt or repr(fmt)} {carrier}",
        lambda m, x: m.element_rounding.is_value(x, fmt),
        {"x": x},
        oracle=lambda: (mcf.round_to(x, fmt) == x) | np.isnan(x),
    )


def code_cases(fmt: Format, carrier: Any) -> Iterator[Case]:
    """Yield cases of codes: all of a format, their values, NaN of all kinds, integers that are none."""
    integers = np.arange(1 << 17, dtype=np.int32)
    kind = codes_by_kind(fmt)
    is_code = (integers < 1 << fmt.bits) & ~kind.unassigned(integers.astype(np.int64))
    codes = integers[is_code]
    values = mcf.codec.decode(codes, fmt).astype(carrier)
    nan = np.array([np.nan, -np.nan], carrier)
    payload = nan.view(f"i{nan.itemsize}") | 1
    zero = np.array([-0.0] if fmt.signed and fmt.zero else [], carrier)
    numbers = np.concatenate([values, zero, nan, payload.view(carrier)])
    title = f"{fmt or repr(fmt)} {carrier}"
    decode: Any = lambda m, code: m.codes.decode_element(code, fmt, TYPES[carrier])  # noqa: E731
    encode: Any = lambda m, x: m.codes.encode_element(x, fmt)  # noqa: E731
    told: Any = lambda m, code: m.codes.is_code(code, fmt)  # noqa: E731
    yield Case(f"decode {title}", decode, {"code": codes}, oracle=lambda: values)
    yield Case(f"encode {title}", encode, {"x": numbers}, oracle=lambda: mcf.codec.encode(numbers, fmt))
    yield Case(f"is code {title}", told, {"code": integers}, oracle=lambda: is_code)


def codes_known() -> Iterator[Case]:
    """Yield cases of which formats have codes that the algorithm of an element knows."""
    unknown = ("float32", "tf32", "posit8", "int8", "full8none", "float_p1", "seventeen")
    for fmt in (*FORMATS, *CODED):
        if str(fmt) in (*unknown, *map(str, CODED)):
            known = str(fmt) not in unknown
            yield _asked(f"has codes {fmt}", lambda m, fmt=fmt: m.codes.has_codes(fmt), known)


#: Verbs that GPUs have, of roundings and operations to nearest, and of codes.
ROUNDED = {"bfloat16": "round_bfloat16", "float16": "round_float16"}
OPERATED = {"add": "add_bfloat16", "sub": "sub_bfloat16", "mul": "mul_bfloat16", "fma": "fma_bfloat16"}


def noted_cases() -> Iterator[Case]:
    """Yield cases of which verbs of GPUs are noted: beside roundings, operations, and codes."""
    usual = Rounding()
    others = [Rounding("up"), Rounding(overflow="saturate")]
    others += [Rounding(underflow=x) for x in ("flush_after", "flush_inputs")]
    for name in ("bfloat16", "float16", "tf32"):
        fmt = get_format(name)
        for rounding in (usual, *others):
            for carrier in (FLOAT32, FLOAT64):
                case = rounding_case(fmt, rounding, carrier, False)
                known = rounding not in others[:2] and name in ROUNDED and carrier == FLOAT32
                verb = f"{ROUNDED[name]} x" if known else ""
                yield replace(case, name=f"noted {case.name}", noted=verb.__eq__)
            for operation in ARITY:
                yield _noted_operation(operation, fmt, rounding, "rounded")
    for operation in OPERATED:
        for kind in OPERANDS:
            yield _noted_operation(operation, get_format("bfloat16"), usual, kind)
        yield _noted_operation(operation, get_format("bfloat16"), usual, "rounded", FLOAT64)
    for name in ("bfloat16", "float16", "float8_e5m2"):
        for carrier in (FLOAT32, FLOAT64):
            decode, encode, _ = code_cases(get_format(name), carrier)
            for case, verb in ((decode, "decode_float16 code"), (encode, "encode_float16 x")):
                known = verb if name == "float16" and carrier == FLOAT32 else ""
                yield replace(case, name=f"noted {case.name}", noted=known.__eq__)


#: How an operand of an operation is made, and whether the lower half of its code is then known to be zero.
OPERANDS: dict[str, tuple[Callable[..., Any], bool]] = {
    "rounded": (lambda m, x: m.element_rounding.round_element(x, get_format("bfloat16"), Rounding()), True),
    "read": (lambda m, x: (x.bits().shr(16) << 16).as_number(), True),
    "negated": (
        lambda m, x: -abs(m.element_rounding.round_element(x, get_format("bfloat16"), Rounding())),
        True,
    ),
    "given": (lambda m, x: x, False),
    "halved": (lambda m, x: m.element_rounding.round_element(x, get_format("float16"), Rounding()), False),
    "less": (lambda m, x: (x.bits().shr(15) << 15).as_number(), False),
    "more": (lambda m, x: (x.bits().shr(17) << 17).as_number(), False),
    "joined": (lambda m, x: (x.bits() | 16).as_number(), False),
}


def _noted_operation(name: str, fmt: Format, rounding: Rounding, kind: str, carrier: Any = FLOAT32) -> Case:
    """Return a case of an operation, the last of whose operands is made in some way."""
    ar = BlockArithmetic(fmt, rounding, "exact")
    given = {f"x{i}": x.astype(carrier) for i, x in enumerate(tuples(fmt, ARITY[name]))}
    way = str(ar.plan.values[name].way)
    (first, _), (last, known) = OPERANDS["rounded"], OPERANDS[kind]

    def text(m: SimpleNamespace, *x: Any) -> Any:
        operands = [*(first(m, y) for y in x[:-1]), last(m, x[-1])]
        into = m.operations.Into(fmt, rounding, TYPES[carrier])
        return m.operations.operate_element(name, operands, way, into)

    takes = str(fmt) == "bfloat16" and rounding == Rounding() and name in OPERATED and known
    takes &= carrier == FLOAT32
    whole = " ".join([OPERATED.get(name, ""), *given])

    def noted(verb: str) -> bool:
        return verb == whole if takes else verb.partition(" ")[0] not in OPERATED.values()

    return Case(f"noted {name} {_about(fmt, rounding)} {kind} {carrier}", text, given, noted=noted)


def refused_cases() -> Iterator[Case]:
    """Yield cases in which stochastic rounding lacks its word, or has one that is too short."""
    x = np.float32([1.0, 1.1])
    for fmt in map(get_format, ("bfloat16", "posit8")):
        for bits, word in ((16, {}), (31, {"word": np.zeros(2, np.int32)})):

            def text(m: Any, x: Any, word: Any = None, given: Any = (fmt, bits)) -> Any:
                rounding = Rounding("stochastic", random_bits=given[1])
                return m.element_rounding.round_element(x, given[0], rounding, word)

            yield Case(f"refused {fmt} {len(word)}", text, {"x": x, **word})


# -- which -------------------------------------------------------------------------------------------------
def _named(name: str, precision: int, emin: int, emax: int, specials: str = "ieee", **more: Any) -> Format:
    return Format(name, precision=precision, emin=emin, emax=emax, specials=specials, **more)


UNUSUAL = [
    *UNUSUAL_FORMATS[-3:],
    *(_named("crowded24", 24, -100, 127), _named("crowded23", 23, -100, 127)),
    *(_named("high1", 1, 100, 127, "none"), _named("high3", 3, 110, 127)),
    *(_named("wide26", 26, -300, 300), _named("wide40", 40, -400, 400)),
    *(_named("far20", 20, -1000, 1000), _named("far12", 12, -1022, 1023), _named("wide27", 27, -300, 300)),
    # Of the carrier's range, but for one thing each; and next to where addition has room.
    *(_named("full8none", 8, -126, 127, "none"), _named("full8unsigned", 8, -126, 127, signed=False)),
    *(_named("full8fnuz", 8, -126, 127, "fnuz"), _named("full24none", 24, -126, 127, "none")),
    _named("full24unsigned", 24, -126, 127, signed=False),
    *(_named("full24nozero", 24, -126, 127, "none", zero=False), _named("full22", 22, -126, 127)),
    *(_named("full1", 1, -126, 127, "none"), _named("full1inf", 1, -126, 127, "nuz")),
    *(_named("full2", 2, -126, 127), _named("full23", 23, -126, 127)),
    _named("full8nozero", 8, -126, 127, zero=False),
    *(_named("full24nozero_inf", 24, -126, 127, zero=False), _named("full24nuz", 24, -126, 127, "nuz")),
    *(_named("code5", 1, -4, 6, "none", parity="code"), _named("narrow", 4, 0, 1)),
    *(_named("short8", 8, -126, 120), _named("near8", 8, -126, 100), _named("high8", 8, -100, 127)),
    *(_named("cut2", 22, -60, 100), _named("cut1", 23, -60, 100), _named("room", 20, -60, 122)),
    *(_named("no_room", 20, -60, 123), _named("two2", 2, 2, 9), _named("two1", 1, 1, 9, "none")),
]
NAMED = (
    *("bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e8m0fnu", "tf32"),
    *("float32", "float6_e3m2fn", "e6m9", "binary8p1se", "binary8p1uf", "binary7p1se", "binary6p1uf"),
    *("binary8p3se", "binary6p3ue", "posit3", "posit5es0", "posit6es3", "posit8", "posit16", "posit28"),
    *("posit32", "int8", "ternary", "int32"),
)
FORMATS = [*map(get_format, NAMED), *UNUSUAL]
#: Those whose codes are read and written.
CODED = [
    *map(get_format, ("bfloat16", "float16", "float8_e4m3fn", "float8_e5m2")),
    *map(get_format, ("float8_e4m3fnuz", "float8_e8m0fnu", "binary8p3se", "binary8p1uf", "binary6p3ue")),
    *(fmt for fmt in UNUSUAL if fmt.name in ("full8fnuz", "full8unsigned", "full8nozero", "narrow", "high8")),
    *(_named("wide3", 3, -300, 300), _named("all_of_binary64", 5, -1022, 1023)),
    *(_named("short_range", 8, -126, 100), _named("low_range", 8, -126, -1)),
    *(_named("top1", 1, -126, 127, "fn"), _named("gaps", 4, -3, 0), _named("gaps_fn", 3, -3, 1, "fn")),
    *(_named("gaps_nuz", 3, -3, 1, "nuz"), _named("gaps_unsigned", 3, -3, 1, "nuz", signed=False)),
    *(_named("sixteen_nuz", 8, -126, 127, "nuz"), _named("seventeen", 9, -126, 127)),
]
POLICIES = [*ROUNDINGS[1::2], *FLUSHING]
STOCHASTIC = [
    Rounding("stochastic", overflow, random_bits=bits, rule=rule, underflow=flush)
    for bits in (1, 8, 16, 23, 32)
    for rule in Rule
    for overflow in Overflow
    for flush in Underflow
]


def _calls() -> Iterator[Callable[[], Case | Iterable[Case] | None]]:
    """Yield what makes the cases, each called when they are asked for."""
    for i, fmt in enumerate(FORMATS):
        for carrier in (FLOAT32, FLOAT64):
            yield partial(value_case, fmt, carrier)
        for j, rounding in enumerate(MODES):
            yield partial(rounding_case, fmt, rounding, (FLOAT32, FLOAT64)[j % 2], False)
            yield partial(rounding_case, fmt, rounding, (FLOAT32, FLOAT64)[j % 2 == 0], j % 3 == 0)
        for j, rounding in enumerate(POLICIES):
            if (i + j) % 4 == 0:
                yield partial(rounding_case, fmt, rounding, (FLOAT32, FLOAT64)[(i + j // 3) % 2], False)
        for j, rounding in enumerate(STOCHASTIC):
            if (i * 7 + j) % 41 == 0:
                yield partial(rounding_case, fmt, rounding, (FLOAT32, FLOAT64)[(i + j // 41) % 2], j % 2 == 0)
        for j, rounding in enumerate([*MODES, *POLICIES[i % 4 :: 4], *STOCHASTIC[i::61]]):
            name = list(ARITY)[(i + j) % 6]
            yield partial(operation_case, name, fmt, rounding, tidy=j % 2 == 0)
            if (i + j) % 3 == 0:
                yield partial(change_case, CHANGES[(i + j // 3) % 4], fmt, rounding, j % 2 == 0)
                yield partial(operation_case, ("add", "sub")[j % 2], fmt, rounding, way="within", tidy=True)
    for name in ("bfloat16", "float16", "tf32", "float8_e5m2", "float32"):
        fmt = get_format(name)
        for j, rounding in enumerate(MODES):
            for operation in ARITY:
                yield partial(operation_case, operation, fmt, rounding, way="sticky", tidy=j % 2 == 0)
            for operation in ("add", "sub"):
                yield partial(operation_case, operation, fmt, rounding, way="within", tidy=j % 2 == 0)
            operation, position = [("mul", 0), ("div", 1), ("add", 1), ("sub", 0), ("fma", 0), ("fma", 2)][j]
            yield partial(operation_case, operation, fmt, rounding, scalar=(position, 0.9), tidy=True)
            yield partial(parts_case, fmt, rounding, (0.9, -1 / 3, 3e-4)[j % 3])
        yield partial(parts_case, fmt, Rounding("down", underflow="flush_inputs"), 0.1)
        for number in (np.inf, np.nan, 2.0**100, 1 + 2.0**-52):
            yield partial(parts_case, fmt, Rounding("down" if number == np.inf else "nearest_even"), number)
        yield partial(operation_case, "fma", fmt, Rounding(), way="exact product", tidy=True)
    for fmt in map(get_format, ("bfloat16", "posit8")):
        for bits in (3, 30):
            for carrier in (FLOAT32, FLOAT64):
                for tidy in (False, True):  # words of 32 bits, and of 64
                    yield partial(rounding_case, fmt, Rounding("stochastic", random_bits=bits), carrier, tidy)
    by_name = {str(fmt): fmt for fmt in FORMATS}
    for name in ("float32", "full24nozero_inf", "full24unsigned", "narrow", "cut1"):
        for rounding in POLICIES:
            yield partial(rounding_case, by_name[name], rounding, FLOAT32, False)
    for name in ("bfloat16", "tf32", "full22"):
        for j, mode in enumerate(x for x in DETERMINISTIC if x is not Mode.TO_ODD):
            yield partial(residual_case, by_name[name], mode, j == 1)
    for fmt in FORMATS:
        if not fmt.signed:
            for j, rounding in enumerate([*MODES, *POLICIES]):
                yield partial(change_case, CHANGES[j % 4], fmt, rounding)
            yield partial(change_case, "neg", fmt, Rounding(underflow="flush_inputs"))
        for j, mode in enumerate(("down", "toward_zero", "to_odd")):
            for operation in ("add", "div", "sqrt", "fma"):
                if fmt.precision > 11 or (j + fmt.precision) % 3 == 0:
                    yield partial(operation_case, operation, fmt, Rounding(mode), way=None, tidy=j == 1)
            yield partial(operation_case, "add", fmt, Rounding(mode), way="within", tidy=j == 1)
    for name in ("far12", "full22", "bfloat16"):  # sums that leave the machine's range, whatever is drawn
        for j, bits in enumerate((1, 8, 23)):
            rounding = Rounding("stochastic", random_bits=bits)
            yield partial(operation_case, "add", by_name[name], rounding, tidy=j == 1)
            yield partial(operation_case, "sub", by_name[name], rounding, way="within", tidy=j == 1)
    fmt = get_format("bfloat16")
    for j, rounding in enumerate(MODES):
        # Beside what a value gives, by less than binary64 tells; and of the opposite code.
        for first in (1.0, 3.0, 5.0):
            for target in (1.3125, 1.30859375 + 0.00390625, 161 / 128):
                for step in (-np.inf, np.inf):
                    over, under = (float(np.nextafter(x, step)) for x in (first * target, first / target))
                    yield partial(operation_case, "div", fmt, rounding, scalar=(1, -under))
                    yield partial(operation_case, "div", fmt, rounding, scalar=(0, over))
        for place in (0, 1):
            scalar = (place, -(2 - 2.0**-52) * 2.0**-27)
            yield partial(operation_case, "add", fmt, rounding, scalar=scalar, tidy=j % 2 == 0)
    for fmt in CODED[:-1]:
        for carrier in (FLOAT32, FLOAT64):
            if holds(carrier, fmt):
                yield partial(code_cases, fmt, carrier)
    for fmt in map(get_format, ("bfloat16", "float32", "float8_e5m2", "float8_e4m3fn")):
        for name in ("maximum", "minimum", "choose"):
            for carrier in (FLOAT32, FLOAT64):
                yield partial(selection_case, name, fmt, carrier)
    for fmt in map(get_format, ("bfloat16", "float8_e5m2", "float8_e4m3fn")):
        for j, rounding in enumerate([*MODES, *FLUSHING, *STOCHASTIC[::31]]):
            yield partial(change_case, ("exp", "log")[j % 2], fmt, rounding, j % 3 == 0)
    yield codes_known
    yield residual_choices
    yield refused_cases
    yield noted_cases


def battery(part: int = 0, parts: int = 1) -> Iterator[Case]:
    """Yield all cases, or a part of them, made one after the other; those of every kind are mixed."""
    calls = [*_calls()]
    names = set()
    for place in np.random.default_rng(0).permutation(len(calls))[part::parts]:
        with np.errstate(all="ignore"):
            made = calls[place]()
            made = [made] if isinstance(made, Case) else [*(made or ())]
        for case in made:
            if case.name not in names:
                names.add(case.name)
                yield case


# -- the judge -----------------------------------------------------------------------------------------------
class Judge:
    """All cases, each with the statements that it carries out, and what it records of the text as it is.

    All are made, and found out, when a case is first asked.
    """

    def __init__(self) -> None:
        self._cases = battery()
        self._asked: list[tuple[Case, set[tuple[str, int]], Any]] = []
        self._seen: set[tuple[str, int]] = set()
        self._text = marked(self._seen)

    def _every(self) -> Iterator[tuple[Case, set[tuple[str, int]], Any]]:
        yield from self._asked
        for case in self._cases:
            self._seen.clear()
            try:
                said = signature(*case.record(self._text))
            except ValueError:
                said = None
            self._asked.append((case, set(self._seen), said))
            yield self._asked[-1]

    def against(self, mutant: Mutant) -> str | None:
        """Return what is wrong with a mutant, or None."""
        try:
            text = mutant.text()
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        for case, places, said in self._every():
            concerned = mutant.line is None or (mutant.module, mutant.line) in places
            if concerned and (found := case.wrong(text, said)):
                return found
        return None

    def carried_out(self, module: str) -> set[int]:
        """Return the lines of a module's statements that some case carries out."""
        every = set().union(*(places for _, places, _ in self._every()))
        return {line for name, line in every if name == module}
