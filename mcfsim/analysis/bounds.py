"""Bounds on the error of a program, with which measured errors are compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.analysis.attribution import Attribution, contributed, number
from mcfsim.analysis.attribution_loop import MARGIN
from mcfsim.analysis.expressions import Component
from mcfsim.analysis.rounded_run import RoundedRun, is_exact, is_held
from mcfsim.analysis.secants import RESULTS, select
from mcfsim.backends.block_arithmetic import BlockArithmetic
from mcfsim.compile.program import Program, ProgramStep, Register
from mcfsim.formats import Format
from mcfsim.formats.posit import Posit
from mcfsim.kernels.elementary import FUNCTIONS
from mcfsim.kernels.real_numbers import Scalars, is_scalar
from mcfsim.rounding import NEAREST, Mode, Rounding, Underflow

Array = NDArray[np.float64]
#: Bounds by name: the claim, as `mcfsim.analysis.error_report.BoundRow` has it, and a description.
BOUNDS: Mapping[str, tuple[str, str]] = {
    "first order": ("first order", "the sum of |derivative| times the unit of each rounding"),
    "3 sigma": (
        "heuristic",
        "three times the root of the sum of squares of the same terms, after Higham and Mary 2019; "
        "of stochastic rounding three standard deviations",
    ),
    "running": ("bound", "running error analysis (Wilkinson), with products of errors"),
    "interval": ("bound", "interval arithmetic in the format, rounded outward"),
}
#: Operations that only round a scalar, at most, if they return it.
_ROUND_SCALARS_ONCE = ("maximum", "minimum", "neg", "abs", "round")


def largest_unit(step: ProgramStep, scalars: Scalars) -> tuple[float, float]:
    """Return the largest own error of a step in a format: relative, and absolute for a subnormal result.

    This is half an ulp in rounding to nearest, one ulp in other modes, and known for a constant's component.
    Overflow is not covered. The error counts as infinite for posits, for formats without zero, where small
    numbers are flushed, and where scalars are rounded before the operation.
    """
    constant, rounding, fmt = step.operands[0], step.rounding, step.result.format
    if isinstance(constant, Component):
        return 0.0, abs(float(constant.error(fmt)))
    if isinstance(fmt, Posit) or rounding.underflow is not Underflow.GRADUAL or not fmt.zero:
        return 0.0, np.inf
    twice = scalars == "rounded" and step.operation not in _ROUND_SCALARS_ONCE
    if twice and not all(isinstance(x, Register) or is_held(x, fmt, rounding) for x in step.operands):
        return 0.0, np.inf
    ulps = 1.0 if rounding.mode in NEAREST else 2.0
    return ulps * 2.0**-fmt.precision, ulps * float(fmt.smallest_subnormal) / 2


def _own(step: ProgramStep, run: RoundedRun, x: Any) -> Any:
    """Return a bound on a step's own error for a result x, infinite where the computed one may overflow."""
    computed = run.values[step.result]
    relative, least = largest_unit(step, run.scalars)
    own = np.maximum(np.abs(x) * relative, least)
    low, high = ends(step.result.format)
    if computed.size and low < computed.min() and computed.max() < high:
        return own
    return np.where((computed > low) & (computed < high), own, np.inf)


def first_order(found: Attribution) -> tuple[Array, Array]:
    """Return the first-order bound, and the bound of three standard deviations after Higham and Mary.

    References
    ----------
    N. J. Higham and T. Mary, A new approach to probabilistic rounding error analysis, SIAM J. Sci. Comput.
    41(5), 2019.
    """
    total: Any = np.float64(0.0)
    squares: Any = np.float64(0.0)
    with np.errstate(all="ignore"):
        for step in found.run.program.steps:
            if step.result in found.sensitivities and not is_exact(step):
                own = _own(step, found.run, found.exact_values[step.result])
                term = contributed(np.abs(found.sensitivities[step.result]), own)
                # The standard deviation of stochastic rounding is at most half an ulp of the result.
                spread = term / 2 if step.rounding.stochastic else term
                total, squares = total + term, squares + np.square(spread)
        for x, error in found.input_errors.items():
            if x in found.sensitivities:
                term = np.abs(contributed(found.sensitivities[x], error))
                total, squares = total + term, squares + np.square(term)
    return _known(total, found), _known(3.0 * np.sqrt(squares), found)


# -- running error analysis -------------------------------------------------------------------------------
def running(found: Attribution) -> Array:
    """Return a running error bound, which is computed from computed values alone.

    Each operation passes on the errors of its operands by the largest slope within their bounds, not by
    derivatives, so that products of errors are counted.

    References
    ----------
    J. H. Wilkinson, Error analysis revisited, IMA Bulletin 22, 1986; N. J. Higham, Accuracy and Stability of
    Numerical Algorithms, 2nd ed., 2002, section 3.3.
    """
    values = found.run.values
    known: dict[Register, Any] = {x: np.abs(found.input_errors.get(x, 0.0)) for x in found.run.program.inputs}
    with np.errstate(all="ignore"):
        for step in found.run.program.steps:
            h = [number(x, values) for x in step.operands]
            e = [known[x] if isinstance(x, Register) else np.float64(0.0) for x in step.operands]
            y = values[step.result] - found.run.errors[step.result] if step.operation in RESULTS else 0.0
            passed = PASSED[step.operation](y, *h, *e)
            if not is_exact(step):
                passed = passed + _own(step, found.run, values[step.result])
            known[step.result] = passed * MARGIN
        total: Any = sum(known[x] for x in found.outputs)
    return _known(total, found)


def _known(bound: Any, found: Attribution) -> Array:
    """Return a bound for each input, infinite where it is NaN."""
    return np.broadcast_to(np.where(np.isnan(bound), np.inf, bound), found.computed.shape)


def ends(fmt: Format) -> tuple[float, float]:
    """Return two numbers between which no result overflowed: the ends of the range; zeros if unsigned."""
    return (float(fmt.lowest), float(fmt.max)) if fmt.signed else (0.0, 0.0)


# -- intervals --------------------------------------------------------------------------------------------
def interval(program: Program, outputs: Sequence[Register], inputs: Sequence[Any]) -> tuple[Array, Array]:
    """Return the ends of intervals that hold the exact results, each operation rounded outward.

    Real scalars are taken exactly, however they enter the function.

    An operation without an enclosure here (a quotient by an interval with zero, a periodic function) gives
    the whole line.
    """
    known: dict[Register, tuple[Any, Any]] = {
        x: (np.asarray(v), np.asarray(v)) for x, v in zip(program.inputs, inputs, strict=True)
    }
    size = len(inputs[0]) if inputs else 1
    with np.errstate(all="ignore"):
        for step in program.steps:
            known[step.result] = _enclosed(step, known, size)
        low, high = (
            np.sum([np.asarray(known[x][end], np.float64) for x in outputs], axis=0) for end in (0, 1)
        )
    return low, high


def _enclosed(step: ProgramStep, known: Mapping[Register, Any], size: int) -> tuple[Any, Any]:
    fmt, name = step.result.format, step.operation
    below, above = (BlockArithmetic(fmt, Rounding(mode), "exact") for mode in (Mode.DOWN, Mode.UP))
    given = [known[x] if isinstance(x, Register) else (x, x) for x in step.operands]
    whole = np.full(size, -np.inf, below.carrier), np.full(size, np.inf, below.carrier)

    def at(ar: BlockArithmetic, *operands: Any) -> Any:
        if name == "round":
            operands = tuple(x if is_scalar(x) else np.asarray(x, np.float64) for x in operands)
        made = getattr(ar, name)(*operands)
        return np.broadcast_to(np.asarray(made, ar.carrier), size)

    if name in ("sin", "cos"):
        return whole
    if name in ("abs", "choose"):  # they compute nothing, so constants are rounded outward here
        given = [
            known[x] if isinstance(x, Register) else (below.round(x), above.round(x)) for x in step.operands
        ]
    if name == "abs":
        a, b = given[0]
        sizes = [np.abs(np.asarray(x, np.float64)) for x in (a, b)]
        least = np.where(np.asarray(a) * np.asarray(b) <= 0, 0.0, np.minimum(*sizes))
        low, high = least.astype(below.carrier), np.maximum(*sizes).astype(below.carrier)
    elif name == "choose":
        (s, t), (a, b), (c, d) = given
        yes, no = np.asarray(s) >= 0, np.asarray(t) < 0
        low = np.where(yes, a, np.where(no, c, np.minimum(a, c))).astype(below.carrier)
        high = np.where(yes, b, np.where(no, d, np.maximum(b, d))).astype(below.carrier)
    elif name in FUNCTIONS and step.registers and not fmt.has_infinity:
        # The format has no infinite operand, but the function has a limit there.
        inner = tuple(np.where(np.isinf(x), below.carrier.type(1), x) for x in given[0])
        limits = [below.carrier.type(x) for x in _LIMITS.get(name, (-np.inf, np.inf))]
        low = np.where(np.isinf(given[0][0]), limits[0], at(below, inner[0]))
        high = np.where(np.isinf(given[0][1]), limits[1], at(above, inner[1]))
    elif name in (*FUNCTIONS, "sqrt", "sign", "round", "neg"):
        a, b = given[0][::-1] if name == "neg" else given[0]
        low, high = at(below, a), at(above, b)
    elif name in ("maximum", "minimum", "add", "sub"):
        (a, b), (c, d) = given[0], given[1][::-1] if name == "sub" else given[1]
        low, high = at(below, a, c), at(above, b, d)
    else:
        corners = list(product(*given))
        low = np.minimum.reduce([at(below, *corner) for corner in corners])
        high = np.maximum.reduce([at(above, *corner) for corner in corners])
        if name == "div":
            c, d = (np.asarray(x, np.float64) for x in given[1])
            zero = (c <= 0) & (d >= 0)
            low, high = np.where(zero, whole[0], low), np.where(zero, whole[1], high)
    low, high = _beyond_ends(fmt, low, high)
    # Zero times infinity, and results beyond a format without infinities, give the whole line.
    lost = np.isnan(low) | np.isnan(high)
    return np.where(lost, whole[0], low), np.where(lost, whole[1], high)


#: Limits of elementary functions at the ends of the line, where they are finite.
_LIMITS: Mapping[str, tuple[float, float]] = {
    "exp": (0.0, np.inf),
    "expm1": (-1.0, np.inf),
    "tanh": (-1.0, 1.0),
    "erf": (-1.0, 1.0),
}


def _beyond_ends(fmt: Format, low: Any, high: Any) -> tuple[Any, Any]:
    """Return the ends of intervals, widened where no number of the format lies beyond the exact result."""
    if not fmt.has_infinity:  # results beyond either end may be that end, in every mode
        low = np.where(low <= float(fmt.lowest), np.asarray(-np.inf, low.dtype), low)
        high = np.where(high >= float(fmt.max), np.asarray(np.inf, high.dtype), high)
    if isinstance(fmt, Posit):  # nothing is rounded to zero
        least = float(fmt.smallest_subnormal)
        low = np.where(low == least, np.asarray(0.0, low.dtype), low)
        high = np.where(high == -least, np.asarray(0.0, high.dtype), high)
    return low, high


# -- rules of running error analysis, which compiled loops copy -------------------------------------------
# Each is a function of ``y = f(h)``, the computed operands h and bounds on their errors. It returns the
# largest error that the operation can pass on. Their source is used twice, as in `mcfsim.analysis.secants`.
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
