"""How large an error of its operands an operation can pass on at most: the rules of running error analysis.

Each rule is a function of ``y = f(h)``, the computed operands h and bounds on their errors. Its source is
used twice, as in `mcfsim.analysis.secants`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from mcfsim.analysis.secants import select


def _passed(y: Any, a: Any, e: Any) -> Any:
    return e


def _add(y: Any, a: Any, b: Any, ea: Any, eb: Any) -> Any:
    return ea + eb


def _mul(y: Any, a: Any, b: Any, ea: Any, eb: Any) -> Any:
    return np.abs(b) * ea + np.abs(a) * eb + ea * eb


def _fma(y: Any, a: Any, b: Any, c: Any, ea: Any, eb: Any, ec: Any) -> Any:
    return np.abs(b) * ea + np.abs(a) * eb + ea * eb + ec


def _div(y: Any, a: Any, b: Any, ea: Any, eb: Any) -> Any:
    room = np.abs(b) - eb
    return select(room > 0, (ea + np.abs(a / b) * eb) / select(room > 0, room, 1.0), np.inf)


def _sqrt(y: Any, a: Any, e: Any) -> Any:
    return select(e > a, np.sqrt(a + e), e / (np.sqrt(a) + np.sqrt(np.maximum(a - e, 0.0))))


def _sign(y: Any, a: Any, e: Any) -> Any:
    return select((np.abs(a) > e) | (e == 0), 0.0, 2.0)


def _exp(y: Any, a: Any, e: Any) -> Any:
    return y * np.expm1(e)


def _expm1(y: Any, a: Any, e: Any) -> Any:
    return np.exp(a) * np.expm1(e)


def _log(y: Any, a: Any, e: Any) -> Any:
    return select(e < a, -np.log1p(-np.minimum(e / a, 1.0)), np.inf)


def _log1p(y: Any, a: Any, e: Any) -> Any:
    return _log(y, 1 + a, e)


def _erf(y: Any, a: Any, e: Any) -> Any:
    return np.minimum(e * 2 / np.sqrt(np.pi), 2.0)


def _bounded(y: Any, a: Any, e: Any) -> Any:
    return np.minimum(e, 2.0)


def _extreme(y: Any, a: Any, b: Any, ea: Any, eb: Any) -> Any:
    return np.maximum(ea, eb)


def _choose(y: Any, s: Any, a: Any, b: Any, es: Any, ea: Any, eb: Any) -> Any:
    settled = select(s >= 0, ea, eb)
    return select((np.abs(s) > es) | (es == 0), settled, np.abs(a - b) + np.maximum(ea, eb))


PASSED: Mapping[str, Callable[..., Any]] = {
    **{"add": _add, "sub": _add, "mul": _mul, "fma": _fma, "div": _div, "sqrt": _sqrt},
    **{"neg": _passed, "abs": _passed, "sign": _sign, "round": _passed},
    **{"maximum": _extreme, "minimum": _extreme, "choose": _choose},
    **{"exp": _exp, "expm1": _expm1, "log": _log, "log1p": _log1p},
    **{"tanh": _bounded, "erf": _erf, "sin": _bounded, "cos": _bounded},
}
