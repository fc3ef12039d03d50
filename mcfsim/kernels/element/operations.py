"""Operations on one element: the exact result, or what rounds like it, rounded once into the format.

How an operation is made exact is settled by `mcfsim.kernels.plan`; here it is carried out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mcfsim.eft import fast_two_sum, two_prod, two_sum
from mcfsim.formats import Format, get_format
from mcfsim.kernels.element.floats import CARRIERS, INFINITY, round_float, takes_residual
from mcfsim.kernels.element.machine import F64, Type, Value
from mcfsim.kernels.element.rounding import round_element
from mcfsim.kernels.plan import Way
from mcfsim.rounding import Mode, Rounding, Underflow


class Binary64:
    """The processor's own arithmetic on binary64, as an `mcfsim.protocol.Arithmetic` that records.

    So that the error-free transformations of `mcfsim.eft` are texts for it, too.
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

_ON_MACHINE: Mapping[str, Callable[..., Value]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "sqrt": lambda a: a.sqrt(),
}


def operate_element(
    operation: str,
    operands: Sequence[Value],
    way: str,
    fmt: Format,
    rounding: Rounding,
    word: Value | None = None,
    *,
    carrier: Type,
    real: bool = False,
    clean: bool = False,
) -> Value:
    """Carry out an operation of a format on one element.

    Parameters
    ----------
    operation : {"add", "sub", "mul", "div", "sqrt", "fma"}
        The operation.
    operands : sequence of value
        Values of the format in the carrier, or binary64 numbers that are no values of it.
    way : str
        See `mcfsim.kernels.plan.Way`.
    fmt, rounding, word
        As for `mcfsim.kernels.element.rounding.round_element`, of the result.
    carrier : Type
        Of the result.
    real : bool, optional
        Whether an operand is no value of the format, so that binary64 need not hold a product.
    clean : bool, optional
        Whether operands that are NaN have clean codes, see `mcfsim.kernels.element.floats.round_float`.
    """
    if rounding.underflow is Underflow.FLUSH_INPUTS:
        operands = [flush_element(x, fmt) for x in operands]
        rounding = replace(rounding, underflow=Underflow.GRADUAL)
    if way == Way.NATIVE:
        return round_element(_ON_MACHINE[operation](*operands), fmt, rounding, word, clean=clean)
    within = way in (Way.EXACT_WITHIN, Way.STICKY_WITHIN)
    given = list(operands) if within else [x.widen() for x in operands]
    if way == Way.WIDE:
        return _leave(
            round_element(_ON_MACHINE[operation](*given), fmt, rounding, word, clean=clean), carrier
        )
    if operation == "sub":
        operation, given[1] = "add", -given[1]
    # An exact zero sum is -0 in this mode: -((-a) + (-b)) gives just that.
    negated = rounding.mode is Mode.DOWN and operation in ("add", "fma")
    if negated:
        given[0], given[-1] = -given[0], -given[-1]
    if operation == "fma" and not real and 2 * fmt.precision <= 53:  # binary64 holds the product
        operation, given = "add", [given[0] * given[1], given[2]]
    if way in (Way.EXACT, Way.EXACT_WITHIN):
        exact = _ON_MACHINE[operation](*given)
    elif operation == "add" and takes_residual(given[0].type, fmt, rounding):
        exact, residual = two_sum(BINARY64, *given)
        exact = _brought_back(fmt, exact, *given)
        mode = Mode.UP if negated else rounding.mode
        rounded = round_float(exact, fmt, replace(rounding, mode=mode), residual=residual, clean=clean)
        if negated:
            rounded = -rounded if fmt.has_negative_zero else -rounded + 0.0
        return _leave(rounded, carrier)
    else:
        exact = _ODD[operation](fmt, *given)
    return _leave(round_element(-exact if negated else exact, fmt, rounding, word, clean=clean), carrier)


def change_element(
    operation: str,
    x: Value,
    fmt: Format,
    rounding: Rounding,
    word: Value | None = None,
    *,
    carrier: Type,
    clean: bool = False,
) -> Value:
    """Carry out what is exact, but for what a format lacks: ``neg``, ``abs`` and ``sign``; or ``round``.

    Parameters
    ----------
    operation : {"neg", "abs", "sign", "round"}
        The operation.
    x : value
        A value of the format in the carrier; of ``round`` any number.
    fmt, rounding, word, carrier, clean
        As for `operate_element`.
    """
    if rounding.underflow is Underflow.FLUSH_INPUTS:
        x = flush_element(x, fmt) if operation == "round" else x
        rounding = replace(rounding, underflow=Underflow.GRADUAL)
    if operation == "sign":
        x = (x > 0.0).select(1.0, (x < 0.0).select(-1.0, x))
    elif operation in ("neg", "abs"):
        x = -x if operation == "neg" else abs(x)
        if fmt.lowest == -fmt.max or (operation == "abs" and not fmt.signed):
            return x if fmt.has_negative_zero or operation == "abs" else x + 0.0
    return _leave(round_element(x, fmt, rounding, word, clean=clean), carrier)


def _leave(x: Value, carrier: Type) -> Value:
    return x.widen() if carrier is F64 else x.narrow()


def flush_element(x: Value, fmt: Format) -> Value:
    """Return a zero in place of a number below the smallest normal one."""
    zero = (x.bits() & CARRIERS[x.type].sign_bit).as_number()
    return (abs(x) < float(fmt.smallest_normal)).select(zero, x)


# -- a result and what it lost, made odd (Boldo and Melquiond 2008) ------------------------------------------
def _make_odd(y: Value, residual: Value) -> Value:
    """Round ``y + residual`` to odd; the residual has the error's sign, and is zero or NaN without one."""
    bits = y.bits()
    inexact = abs(residual) > 0.0
    opposite = (bits ^ residual.bits()) < 0
    return ((bits - (opposite & inexact).count(bits.type)) | inexact.count(bits.type)).as_number()


def _odd_sum(fmt: Format, a: Value, b: Value) -> Value:
    return _brought_back(fmt, _make_odd(*two_sum(BINARY64, a, b)), a, b)


def _brought_back(fmt: Format, y: Value, a: Value, b: Value) -> Value:
    """Return the largest number for a finite sum beyond the machine's range, as which it rounds."""
    if fmt.emax < CARRIERS[a.type].bias:
        return y
    left = (abs(a) < INFINITY) & (abs(b) < INFINITY) & ~(abs(y) < INFINITY)
    most = float(get_format("float64" if a.type is F64 else "float32").max)
    return left.select((y > 0.0).select(most, y.like(-most)), y)


def _odd_product(fmt: Format, a: Value, b: Value) -> Value:
    return _make_odd(*two_prod(BINARY64, a, b))


def _odd_quotient(fmt: Format, a: Value, b: Value) -> Value:
    quotient = a / b
    high, low = two_prod(BINARY64, quotient, b)
    remainder = (a - high) - low
    return _make_odd(quotient, (b < 0.0).select(-remainder, remainder))


def _odd_root(fmt: Format, a: Value) -> Value:
    root = a.sqrt()
    high, low = two_prod(BINARY64, root, root)
    return _make_odd(root, (a - high) - low)


def _odd_fma(fmt: Format, a: Value, b: Value, c: Value) -> Value:
    """Boldo and Melquiond 2008, Fig. 5: a sum of three terms."""
    high, low = two_prod(BINARY64, a, b)
    return _odd_three(high, low, c, a * b + c)


def _odd_three(high: Value, low: Value, c: Value, plainly: Value) -> Value:
    t_high, t_low = two_sum(BINARY64, c, low)
    v_high, v_low = two_sum(BINARY64, high, t_high)
    # Of the last sum the first term is the larger, or a multiple of the second one's unit in the last place.
    y, last = fast_two_sum(BINARY64, v_high, _make_odd(*two_sum(BINARY64, t_low, v_low)))
    # Infinities and NaN, and the sign of an exact zero, are right without the residuals and wrong with them.
    return _make_odd((abs(y) > 0.0).select(y, plainly), last)


def fma_by_parts(
    x: Value,
    factor: tuple[Value, Value],
    c: Value,
    fmt: Format,
    rounding: Rounding,
    word: Value | None = None,
    *,
    carrier: Type,
) -> Value:
    """Return ``x s + c`` for a real scalar s in two parts of binary64 whose products with values are exact.

    Parameters
    ----------
    x, c : value
        Values of the format in the carrier, whose NaN are clean.
    factor : tuple of value
        The upper bits of s, and the others; of binary64.
    fmt, rounding, word, carrier
        As for `operate_element`.
    """
    if rounding.underflow is Underflow.FLUSH_INPUTS:
        x, c = flush_element(x, fmt), flush_element(c, fmt)
        rounding = replace(rounding, underflow=Underflow.GRADUAL)
    x, c = x.widen(), c.widen()
    down = rounding.mode is Mode.DOWN  # -((-x) s - c) has the sign of an exact zero sum right
    if down:
        x, c = -x, -c
    high, low = x * factor[0], x * factor[1]
    exact = _odd_three(high, low, c, x * (factor[0] + factor[1]) + c)
    return _leave(round_element(-exact if down else exact, fmt, rounding, word, clean=True), carrier)


_ODD: Mapping[str, Callable[..., Value]] = {
    "add": _odd_sum,
    "mul": _odd_product,
    "div": _odd_quotient,
    "sqrt": _odd_root,
    "fma": _odd_fma,
}
