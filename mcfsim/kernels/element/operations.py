"""Operations on one element: the exact result, or a number that rounds like it, rounded once into the format.

`mcfsim.kernels.operation_plan` decides how each operation is made exact; this module performs it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from mcfsim.eft import fast_two_sum, two_prod, two_sum
from mcfsim.formats import Format, get_format
from mcfsim.kernels.element.codes import encode_element
from mcfsim.kernels.element.element_rounding import round_element
from mcfsim.kernels.element.floats import CARRIERS, INFINITY, carries_over, round_float, takes_residual
from mcfsim.kernels.element.gpu_verbs import note_operation
from mcfsim.kernels.element.machine import F32, F64, Type, Value
from mcfsim.kernels.elementary import table_key
from mcfsim.kernels.operation_plan import Way
from mcfsim.rounding import Mode, Rounding, Underflow


class Binary64:
    """The processor's binary64 arithmetic, as an `mcfsim.protocol.Arithmetic` that records.

    With it, the error-free transformations of `mcfsim.eft` run on the values of a line.
    """

    format, rounding = get_format("float64"), Rounding()

    def add(self, a: Value, b: Value) -> Value:
        """Return ``a + b``."""
        return a + b

    def sub(self, a: Value, b: Value) -> Value:
        """Return ``a - b``."""
        return a - b

    def mul(self, a: Value, b: Value | float) -> Value:
        """Return ``a * b``."""
        return a * b

    def evaluate(self, function: Callable[..., Any], /, *operands: Any, **options: Any) -> Any:
        """Return ``function(self, *operands, **options)``."""
        return function(self, *operands, **options)


BINARY64: Any = Binary64()

#: The precision up to which `fma_by_parts` is shown to be exact.
MOST_IN_PARTS = 24

_ON_MACHINE: Mapping[str, Callable[..., Value]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "sqrt": lambda a: a.sqrt(),
}


class Into(NamedTuple):
    """The target of a result: a format into which it is rounded once, and a carrier.

    Attributes
    ----------
    fmt, rounding, word
        As for `mcfsim.kernels.element.floats.round_float`.
    carrier : Type
        The type of the result.
    clean : bool
        Whether NaN operands have clean codes, see `mcfsim.kernels.element.floats.round_float`.
    """

    fmt: Format
    rounding: Rounding
    carrier: Type
    word: Value | None = None
    clean: bool = False

    def flushed(self, *operands: Value) -> tuple[list[Value], Into]:
        """Return operands, flushed if that is the policy, and the target of their result."""
        flushes = self.rounding.underflow is Underflow.FLUSH_INPUTS
        return [flush_element(x, self.fmt) if flushes else x for x in operands], self.of_results()

    def of_results(self) -> Into:
        """Return the target of a result whose operands are flushed already."""
        return self._replace(rounding=self.rounding.of_results)

    def rounded(self, x: Value) -> Value:
        """Round a number, and keep its type."""
        return round_element(x, self.fmt, self.rounding, self.word, clean=self.clean)


def operate_element(
    operation: str, operands: Sequence[Value], way: str, into: Into, *, real: bool = False
) -> Value:
    """Perform an operation of a format on one element, rounded once.

    Parameters
    ----------
    operation : {"add", "sub", "mul", "div", "sqrt", "fma"}
        The operation.
    operands : sequence of value
        Values of the format in the carrier, or binary64 numbers that are no values of it.
    way : str
        See `mcfsim.kernels.operation_plan.Way`.
    into : Into
        The target of the result.
    real : bool, optional
        Whether an operand is no value of the format, so that binary64 may not hold a product.
    """
    operands, into = into.flushed(*operands)
    made = _operated(operation, operands, way, into, real)
    return note_operation(operation, operands, made, into.fmt, into.rounding)


def _operated(operation: str, operands: Sequence[Value], way: str, into: Into, real: bool) -> Value:
    if way == Way.NATIVE:
        return into.rounded(_ON_MACHINE[operation](*operands))
    within = way in (Way.EXACT_WITHIN, Way.STICKY_WITHIN)
    given = list(operands) if within else [x.widen() for x in operands]
    if way == Way.WIDE:
        return _rounded(_ON_MACHINE[operation](*given), None, into)
    fmt, word = into.fmt, into.word
    if operation == "sub":
        operation, given[1] = "add", -given[1]
    # In this mode an exact zero sum is -0, as -((-a) + (-b)) gives it.
    negated = into.rounding.mode is Mode.DOWN and operation in ("add", "fma")
    if negated:
        given[0], given[-1] = -given[0], -given[-1]
    if operation == "fma" and not real and 2 * fmt.precision <= 53:  # binary64 holds the product
        operation, given = "add", [given[0] * given[1], given[2]]
    if word is not None and operation == "add" and fmt.emax == CARRIERS[F64].bias:
        # A sum beyond the machine's range overflows for any word, as its largest number does for the word 1.
        leaves = _leaves(_ON_MACHINE["add"](*given), *given)
        into = into._replace(word=leaves.select(word.like(1), word))
    if way in (Way.EXACT, Way.EXACT_WITHIN):
        return _rounded(_ON_MACHINE[operation](*given), None, into, negated=negated)
    y, lost = _WITH_LOST[operation](*given)
    if operation == "add":
        y = _brought_back(fmt, y, *given)
    return _rounded(y, lost, into, negated=negated)


def _rounded(y: Value, lost: Value | None, into: Into, *, negated: bool = False) -> Value:
    """Round ``y + lost`` once, or its negative; `lost` has the sign of the error, or is zero or NaN."""
    fmt, rounding = into.fmt, into.rounding
    narrowed = y.line.narrows and into.carrier is F32 and y.type is F64 and _narrows(fmt, rounding)
    if narrowed:  # binary32 has more elements in a vector
        short = y.narrow()
        error = y - short.widen()  # exact, or infinite where binary32 overflows
        y, lost = short, error if lost is None else (abs(error) > 0.0).select(error, lost)
    # An overflow in between is no infinity: rounded to odd, it is binary32's largest number.
    overflows = narrowed and not carries_over(y.type, fmt, rounding)
    if lost is not None and takes_residual(y.type, fmt, rounding) and not overflows:
        mode = Mode.UP if negated else rounding.mode
        rounded = round_float(y, fmt, replace(rounding, mode=mode), residual=lost, clean=into.clean)
        if negated:
            rounded = -rounded if fmt.has_negative_zero else -rounded + 0.0
    else:
        y = y if lost is None else make_odd(y, lost)
        rounded = into.rounded(-y if negated else y)
    return _leave(rounded, into.carrier)


def _narrows(fmt: Format, rounding: Rounding) -> bool:
    """Return whether a binary64 number may first be rounded to odd in binary32, which holds the format.

    Binary32 must have the bits that decide, down to its smallest number. In stochastic rounding, a number
    beyond its range may not become its largest number.
    """
    spare = fmt.precision + rounding.guard_bits <= CARRIERS[F32].place + 1
    return spare and not (rounding.stochastic and fmt.emax == CARRIERS[F32].bias)


def change_element(operation: str, x: Value, into: Into) -> Value:
    """Perform ``neg``, ``abs`` or ``sign``, which are exact if the format has the result, or ``round``.

    Parameters
    ----------
    operation : {"neg", "abs", "sign", "round"}
        The operation.
    x : value
        A value of the format in the carrier; for ``round`` any number.
    into : Into
        The target of the result.
    """
    fmt = into.fmt
    if operation == "round":
        (x,), into = into.flushed(x)
    into = into.of_results()
    if operation == "sign":
        x = (x > 0.0).select(1.0, (x < 0.0).select(-1.0, x))
    elif operation in ("neg", "abs"):
        x = -x if operation == "neg" else abs(x)
        if fmt.lowest == -fmt.max or (operation == "abs" and not fmt.signed):
            return x if fmt.has_negative_zero or operation == "abs" else x + 0.0
    return _leave(into.rounded(x), into.carrier)


def function_element(name: str, x: Value, into: Into) -> Value:
    """Return an elementary function of a value, found in the table of all codes and rounded once.

    Parameters
    ----------
    name : str
        A name in `mcfsim.kernels.elementary.FUNCTIONS`.
    x : value
        A value of the format in the carrier.
    into : Into
        The target of the result; for its format `mcfsim.kernels.element.codes.has_codes` holds.
    """
    fmt = into.fmt
    (x,), into = into.flushed(x)
    # A loop may meet a number that is no value before it reports that: its place must be within the table.
    place = (encode_element(x, fmt) & ((1 << fmt.bits) - 1)).cut()
    return _rounded(place.look_up(table_key(name, fmt)), None, into)


def select_element(operation: str, operands: Sequence[Value], carrier: Type) -> Value:
    """Perform ``maximum``, ``minimum`` or ``choose``, which are exact.

    If an operand of ``maximum`` or ``minimum`` is NaN, so is the result; of +0 and -0 the maximum is +0 and
    the minimum -0 (IEEE 754-2019, 9.6). ``choose`` gives NaN for a NaN sign, and treats a zero of either sign
    like a positive number.

    Parameters
    ----------
    operation : {"maximum", "minimum", "choose"}
        The operation.
    operands : sequence of value
        Values of the format in the carrier.
    carrier : Type
        The carrier.
    """
    if operation == "choose":
        sign, x, y = operands
        chosen = (sign >= 0.0).select(x, (sign < 0.0).select(y, sign))
    else:
        a, b = operands
        greatest = operation == "maximum"
        codes = a.bits() & b.bits() if greatest else a.bits() | b.bits()
        either = a.equals(b).select(codes.as_number(), a + b)  # one number, zeros of two signs, or NaN
        above = (b < a).select(*((a, b) if greatest else (b, a)))
        chosen = ((a < b) | (b < a)).select(above, either)
    return _leave(chosen, carrier)


def _leave(x: Value, carrier: Type) -> Value:
    return x.widen() if carrier is F64 else x.narrow()


def flush_element(x: Value, fmt: Format) -> Value:
    """Flush a number below the smallest normal one to a zero, of its sign if the format has one."""
    zero: Value | float = 0.0
    if fmt.has_negative_zero:
        zero = (x.bits() & CARRIERS[x.type].sign_bit).as_number()
    return (abs(x) < float(fmt.smallest_normal)).select(zero, x)


# -- a result and its residual -------------------------------------------------------------------------------
def make_odd(y: Value, residual: Value) -> Value:
    """Round ``y + residual`` to odd (Boldo and Melquiond 2008)."""
    bits, above, below = y.bits(), residual > 0.0, residual < 0.0
    inward = (bits < 0).select(above, below)
    return ((bits - inward.count(bits.type)) | (above | below).count(bits.type)).as_number()


def _brought_back(fmt: Format, y: Value, a: Value, b: Value) -> Value:
    """Replace a finite sum beyond the machine's range by the largest number, which rounds alike."""
    if fmt.emax < CARRIERS[a.type].bias:
        return y
    left = _leaves(y, a, b)
    most = float(get_format("float64" if a.type is F64 else "float32").max)
    return left.select((y > 0.0).select(most, y.like(-most)), y)


def _leaves(y: Value, a: Value, b: Value) -> Value:
    """Return whether a sum of finite numbers left the machine's range."""
    return (abs(a) < INFINITY) & (abs(b) < INFINITY) & ~(abs(y) < INFINITY)


def _quotient(a: Value, b: Value) -> tuple[Value, Value]:
    quotient = a / b
    high, low = two_prod(BINARY64, quotient, b)
    remainder = (a - high) - low
    return quotient, (b < 0.0).select(-remainder, remainder)


def _root(a: Value) -> tuple[Value, Value]:
    root = a.sqrt()
    high, low = two_prod(BINARY64, root, root)
    return root, (a - high) - low


def _fma(a: Value, b: Value, c: Value) -> tuple[Value, Value]:
    """Return ``a b + c`` and its residual, as a sum of three terms: Boldo and Melquiond 2008, Fig. 5."""
    high, low = two_prod(BINARY64, a, b)
    t_high, t_low = two_sum(BINARY64, c, low)
    v_high, v_low = two_sum(BINARY64, high, t_high)
    # In the last sum the first term is the larger, or a multiple of the second one's unit in the last place.
    y, lost = fast_two_sum(BINARY64, v_high, make_odd(*two_sum(BINARY64, t_low, v_low)))
    return _plainly(y, a * b + c), lost


def _plainly(y: Value, plainly: Value) -> Value:
    """Return a sum of three terms, or the result of two plain operations where the sum is zero or NaN.

    Infinities, NaN and the sign of an exact zero are right without the residuals and wrong with them.
    """
    return (abs(y) > 0.0).select(y, plainly)


def fma_by_parts(x: Value, factor: tuple[Value, Value], c: Value, into: Into) -> Value:
    """Return ``x s + c``, rounded once, for a real scalar s in two binary64 parts with exact products.

    Parameters
    ----------
    x, c : value
        Values of the format in the carrier, of `MOST_IN_PARTS` bits at most.
    factor : tuple of value
        The upper bits of s, and the others; of binary64.
    into : Into
        The target of the result.
    """
    (x, c), into = into.flushed(x, c)
    x, c = x.widen(), c.widen()
    down = into.rounding.mode is Mode.DOWN  # -((-x) s - c) has the sign of an exact zero sum right
    if down:
        x, c = -x, -c
    high, low = x * factor[0], x * factor[1]
    total, rest = two_sum(BINARY64, high, c)
    # The sum of both small terms is exact, or too small to lead to a boundary (stand_ins.md). In the
    # last sum the first term is the larger, or a multiple of the second one's unit in the last place.
    rest = rest + low
    y, lost = fast_two_sum(BINARY64, total, rest)
    # Infinities, NaN and the sign of an exact zero are right without the rest.
    y = (abs(rest) > 0.0).select(y, total)
    return _rounded(y, lost, into, negated=down)


_WITH_LOST: Mapping[str, Callable[..., tuple[Value, Value]]] = {
    "add": partial(two_sum, BINARY64),
    "mul": partial(two_prod, BINARY64),
    "div": _quotient,
    "sqrt": _root,
    "fma": _fma,
}
