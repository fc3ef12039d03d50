"""Secant slopes: how exactly an operation passes on the errors of its operands.

Let h be the computed operands of an operation f and D their errors, so that ``h - D`` are exact operands.
Every operation has slopes for which ``f(h) - f(h - D)`` is the sum of ``slope * D``, without a remainder.
With D = 0 they are the derivatives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(12)


def slopes(operation: str, h: Sequence[Any], errors: Sequence[Any]) -> list[Any]:
    """Return the secant slopes of an operation, one for each operand.

    Parameters
    ----------
    operation : str
        An operation of `mcfsim.protocol.Arithmetic`.
    h : sequence of float or array of float64
        The computed operands.
    errors : sequence of float or array of float64
        Computed minus exact operands; zeros give derivatives.

    Notes
    -----
    ``choose`` passes on the error of the operand that the exact sign takes. Where the computed sign takes the
    other one, their difference is an error of its own (`flipped`). A slope is NaN or infinite where an
    operand is outside of the domain.
    """
    return _SLOPES[operation](*h, *errors)


def flipped(h: Sequence[Any], errors: Sequence[Any]) -> tuple[Any, Any]:
    """Return where ``choose`` went the other way than with exact operands, and the error that this made."""
    sign, x, y = h
    computed, exact = np.greater_equal(sign, 0), np.greater_equal(sign - errors[0], 0)
    return computed != exact, np.where(computed == exact, 0.0, np.where(computed, x - y, y - x))


def _quotient(numerator: Any, denominator: Any, limit: Any) -> Any:
    """Return a quotient, or its limit where the denominator is zero."""
    zero = np.equal(denominator, 0)
    return np.where(zero, limit, numerator / np.where(zero, 1.0, denominator))


def _fma(a: Any, b: Any, c: Any, da: Any, db: Any, dc: Any) -> list[Any]:
    return [b - db / 2, a - da / 2, 1.0]


def _div(a: Any, b: Any, da: Any, db: Any) -> list[Any]:
    middle = b - db / 2
    return [1 / middle, -((a / b + (a - da) / (b - db)) / 2) / middle]


def _magnitude(x: Any, d: Any) -> Any:
    sign = np.where(x >= 0, 1.0, -1.0)
    # Between numbers of two signs, |x| - |x - d| is 2 x - d or its negative.
    return np.where((x - d) * sign >= 0, sign, sign * _quotient(2 * x - d, d, 1.0))


def _extreme(sign: float) -> Callable[..., list[Any]]:
    def slopes_of(a: Any, b: Any, da: Any, db: Any) -> list[Any]:
        s = sign * _magnitude(a - b, da - db)
        return [(1 + s) / 2, (1 - s) / 2]

    return slopes_of


def _choose(s: Any, x: Any, y: Any, ds: Any, dx: Any, dy: Any) -> list[Any]:
    right = np.greater_equal(s - ds, 0)
    return [0.0, np.where(right, 1.0, 0.0), np.where(right, 0.0, 1.0)]


def _tanh(a: Any, d: Any) -> list[Any]:
    # tanh(a) - tanh(b) = sinh(a - b) / (cosh(a) cosh(b)); powers are taken apart, to stay in range.
    b = a - d
    rest = 4.0 / ((1 + np.exp(-2 * np.abs(a))) * (1 + np.exp(-2 * np.abs(b))))
    falls = np.exp(np.abs(d) - np.abs(a) - np.abs(b)) * rest  # sinh(d) = exp(|d|) (1 - exp(-2 |d|)) / 2
    return [falls * _quotient(-np.expm1(-2 * np.abs(d)) / 2, np.abs(d), 1.0)]


def _erf(a: Any, d: Any) -> list[Any]:
    from scipy.special import erf, erfc

    # The mean of the derivative, by 12 points of Gauss and Legendre: exact to binary64 for |d| <= 1 / 2.
    middle, half = a - d / 2, d / 2
    mean = sum(w * np.exp(-np.square(middle + half * x)) for x, w in zip(_NODES, _WEIGHTS, strict=True))
    far = np.abs(d) > 0.5
    b = a - d
    sign = np.where(a > 0, 1.0, -1.0)
    tails = sign * (erfc(np.abs(b)) - erfc(np.abs(a)))
    direct = _quotient(np.where(a * b > 0, tails, erf(a) - erf(b)), d, 0.0)
    return [np.where(far, direct, mean / np.sqrt(np.pi))]


def _sine(d: Any) -> Any:
    """Return sin(d / 2) / (d / 2)."""
    return np.sinc(d / (2 * np.pi))


_SLOPES: Mapping[str, Callable[..., list[Any]]] = {
    "add": lambda a, b, da, db: [1.0, 1.0],
    "sub": lambda a, b, da, db: [1.0, -1.0],
    "mul": lambda a, b, da, db: [b - db / 2, a - da / 2],
    "fma": _fma,
    "div": _div,
    "sqrt": lambda a, d: [1 / (np.sqrt(a) + np.sqrt(a - d))],
    "neg": lambda a, d: [-1.0],
    "round": lambda a, d: [1.0],
    "abs": lambda a, d: [_magnitude(a, d)],
    "sign": lambda a, d: [_quotient(np.sign(a) - np.sign(a - d), d, 0.0)],
    "exp": lambda a, d: [np.exp(a) * _quotient(-np.expm1(-d), d, 1.0)],
    "log": lambda a, d: [_quotient(-np.log1p(-d / a), d, 1 / a)],
    "expm1": lambda a, d: [np.exp(a) * _quotient(-np.expm1(-d), d, 1.0)],
    "log1p": lambda a, d: [_quotient(-np.log1p(-d / (1 + a)), d, 1 / (1 + a))],
    "tanh": _tanh,
    "erf": _erf,
    "sin": lambda a, d: [np.cos(a - d / 2) * _sine(d)],
    "cos": lambda a, d: [-np.sin(a - d / 2) * _sine(d)],
    "maximum": _extreme(1.0),
    "minimum": _extreme(-1.0),
    "choose": _choose,
}
