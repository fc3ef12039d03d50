"""Secant slopes: the exact factors by which an operation passes on the errors of its operands.

Let h be the computed operands of an operation f and D their errors, so that ``h - D`` are exact operands.
Every operation has slopes for which ``f(h) - f(h - D)`` is the sum of ``slope * D``, without a remainder.
With D = 0 they are the derivatives.

Each rule is a function of ``y = f(h)``, the operands and their errors. Its source is used twice: NumPy runs
it on arrays, and `mcfsim.analysis.compiled_attribution` copies it into a loop over numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

#: Compiled loops have a function of the same name on numbers instead.
select = np.where
NODES, WEIGHTS = np.polynomial.legendre.leggauss(12)


def erf(x: Any) -> Any:
    """Return the error function, by SciPy; a compiled loop has its own."""
    from scipy.special import erf

    return erf(x)


def erfc(x: Any) -> Any:
    """Return the complementary error function, by SciPy."""
    from scipy.special import erfc

    return erfc(x)


# -- rules, which compiled loops copy ---------------------------------------------------------------------
def flipped(s: Any, x: Any, y: Any, ds: Any) -> tuple[Any, Any]:
    """Return where ``choose`` went the other way than with exact operands, and the error that this made."""
    computed, exact = s >= 0, s - ds >= 0
    return computed != exact, select(computed == exact, 0.0, select(computed, x - y, y - x))


def _quotient(numerator: Any, denominator: Any, limit: Any) -> Any:
    """Return a quotient, or its limit where the denominator is zero."""
    zero = denominator == 0
    return select(zero, limit, numerator / select(zero, 1.0, denominator))


def _add(y: Any, a: Any, b: Any, da: Any, db: Any) -> tuple[Any, ...]:
    return 1.0, 1.0


def _sub(y: Any, a: Any, b: Any, da: Any, db: Any) -> tuple[Any, ...]:
    return 1.0, -1.0


def _mul(y: Any, a: Any, b: Any, da: Any, db: Any) -> tuple[Any, ...]:
    return b - db / 2, a - da / 2


def _fma(y: Any, a: Any, b: Any, c: Any, da: Any, db: Any, dc: Any) -> tuple[Any, ...]:
    return b - db / 2, a - da / 2, 1.0


def _div(y: Any, a: Any, b: Any, da: Any, db: Any) -> tuple[Any, ...]:
    middle = b - db / 2
    return 1 / middle, -((a / b + (a - da) / (b - db)) / 2) / middle


def _sqrt(y: Any, a: Any, d: Any) -> tuple[Any, ...]:
    return (1 / (np.sqrt(a) + np.sqrt(a - d)),)


def _neg(y: Any, a: Any, d: Any) -> tuple[Any, ...]:
    return (-1.0,)


def _round(y: Any, a: Any, d: Any) -> tuple[Any, ...]:
    return (1.0,)


def _magnitude(x: Any, d: Any) -> Any:
    sign = select(x >= 0, 1.0, -1.0)
    # Between numbers of two signs, |x| - |x - d| is 2 x - d or its negative.
    return select((x - d) * sign >= 0, sign, sign * _quotient(2 * x - d, d, 1.0))


def _abs(y: Any, a: Any, d: Any) -> tuple[Any, ...]:
    return (_magnitude(a, d),)


def _sign(y: Any, a: Any, d: Any) -> tuple[Any, ...]:
    return (_quotient(np.sign(a) - np.sign(a - d), d, 0.0),)


def _maximum(y: Any, a: Any, b: Any, da: Any, db: Any) -> tuple[Any, ...]:
    s = _magnitude(a - b, da - db)
    return (1 + s) / 2, (1 - s) / 2


def _minimum(y: Any, a: Any, b: Any, da: Any, db: Any) -> tuple[Any, ...]:
    s = _magnitude(a - b, da - db)
    return (1 - s) / 2, (1 + s) / 2


def _choose(y: Any, s: Any, a: Any, b: Any, ds: Any, da: Any, db: Any) -> tuple[Any, ...]:
    exact = s - ds
    unknown = select(exact == exact, 0.0, np.nan)  # where s overflowed
    return unknown, select(exact >= 0, 1.0, 0.0), select(exact >= 0, 0.0, 1.0)


def _exp(y: Any, a: Any, d: Any) -> tuple[Any, ...]:
    near, far = y * _quotient(-np.expm1(-d), d, 1.0), np.exp(a - d) * _quotient(np.expm1(d), d, 1.0)
    return (select(d < -40, far, near),)  # for a far below the exact operand, exp(a) is negligible


def _expm1(y: Any, a: Any, d: Any) -> tuple[Any, ...]:
    return _exp(np.exp(a), a, d)


def _log(y: Any, a: Any, d: Any) -> tuple[Any, ...]:
    return (_quotient(-np.log1p(-d / a), d, 1 / a),)


def _log1p(y: Any, a: Any, d: Any) -> tuple[Any, ...]:
    return _log(y, 1 + a, d)


def _tanh(y: Any, a: Any, d: Any) -> tuple[Any, ...]:
    # tanh(a) - tanh(b) = sinh(a - b) / (cosh(a) cosh(b)); exponentials are rearranged to stay in range.
    b = a - d
    rest = 4.0 / ((1 + np.exp(-2 * np.abs(a))) * (1 + np.exp(-2 * np.abs(b))))
    # sinh(d) = exp(|d|) (1 - exp(-2 |d|)) / 2, and |d| - |a| - |b| is 0, or -2 |a| or -2 |b|.
    falls = select(a * b > 0, np.exp(-2 * np.minimum(np.abs(a), np.abs(b))), 1.0) * rest
    return (falls * _quotient(-np.expm1(-2 * np.abs(d)) / 2, np.abs(d), 1.0),)


def _erf(y: Any, a: Any, d: Any) -> tuple[Any, ...]:
    # The mean of the derivative, by 12 points of Gauss and Legendre: exact to binary64 for |d| <= 1 / 2.
    middle, half, b = a - d / 2, d / 2, a - d
    mean = 0.0 * middle
    for x, w in zip(NODES, WEIGHTS):  # noqa: B905 - compiled loops have no strict
        mean = mean + w * np.exp(-np.square(middle + half * x))
    tails = select(a > 0, 1.0, -1.0) * (erfc(np.abs(b)) - erfc(np.abs(a)))
    direct = _quotient(select(a * b > 0, tails, erf(a) - erf(b)), d, 0.0)
    return (select(np.abs(d) > 0.5, direct, mean / np.sqrt(np.pi)),)


def _sine(d: Any) -> Any:
    """Return sin(d / 2) / (d / 2)."""
    return np.sinc(d / (2 * np.pi))


def _sin(y: Any, a: Any, d: Any) -> tuple[Any, ...]:
    return (np.cos(a - d / 2) * _sine(d),)


def _cos(y: Any, a: Any, d: Any) -> tuple[Any, ...]:
    return (-np.sin(a - d / 2) * _sine(d),)


#: Operations whose rules use the exact result y.
RESULTS = ("exp",)
#: The rules by operation of `mcfsim.protocol.Arithmetic`, as ``rule(y, *h, *errors)``: y is the exact result
#: on the computed operands h, and errors are computed minus exact operands. A rule returns a slope for each
#: operand; errors of zero give derivatives. ``choose`` passes on the error of the operand that the exact sign
#: selects, and nothing of the other, even if infinite. Where the computed sign selects the other operand, the
#: difference is an own error (`flipped`). A slope is NaN or infinite where an operand is outside the domain.
SLOPES: Mapping[str, Callable[..., tuple[Any, ...]]] = {
    **{"add": _add, "sub": _sub, "mul": _mul, "fma": _fma, "div": _div, "sqrt": _sqrt},
    **{"neg": _neg, "abs": _abs, "sign": _sign, "round": _round},
    **{"maximum": _maximum, "minimum": _minimum, "choose": _choose},
    **{"exp": _exp, "expm1": _expm1, "log": _log, "log1p": _log1p},
    **{"tanh": _tanh, "erf": _erf, "sin": _sin, "cos": _cos},
}
