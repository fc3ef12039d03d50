"""Iterations of a fixed number of steps: Newton's, Newton-Schulz, bisection, refinement, conjugate gradients.

A matrix is a tuple of rows, each a tuple of values. No step tests for convergence: more steps than needed do
no harm, unless a docstring says so.
"""

from __future__ import annotations

from typing import Any

from mcfsim.checks import check_int
from mcfsim.formats import Format
from mcfsim.functions.reductions import Terms, check_tuples, in_accumulator, recursive_dot
from mcfsim.protocol import Arithmetic, Value, straight_line

Matrix = tuple[Terms, ...]


def _check_system(a: Matrix, b: Terms) -> int:
    """Return the order of a square system of equations."""
    n = check_tuples(b=b)
    if _columns(a, "a") != n or len(a) != n:
        raise ValueError(f"the matrix must be a tuple of {n} rows of {n} values, as b has {n}")
    return n


def _columns(x: Matrix, name: str) -> int:
    """Return the length of a matrix's rows."""
    if not isinstance(x, tuple):
        raise TypeError(f"{name} must be a tuple of rows")
    if not x:
        raise ValueError(f"{name} has no rows")
    return check_tuples(**{f"row {i}": row for i, row in enumerate(x)})


def _times(ar: Arithmetic, a: Matrix, x: Terms) -> Terms:
    return tuple(recursive_dot(ar, row, x) for row in a)


@straight_line
def newton_schulz_step(
    ar: Arithmetic, x: Matrix, *, a: Any = 1.875, b: Any = -1.25, c: Any = 0.375
) -> Matrix:
    """Return ``X (a I + b X'X + c (X'X)**2)``: one step towards the orthogonal factor of a matrix X.

    Each singular value s of X becomes ``a s + b s**3 + c s**5``; the singular vectors stay.

    Parameters
    ----------
    ar : Arithmetic
        Any arithmetic.
    x : tuple of rows
        With singular values between 0 and 1.4.
    a, b, c : float or Fraction, optional
        Real scalars. By default 15/8, -5/4, 3/8, with which singular values near 1 converge cubically. Muon
        takes 3.4445, -4.7750, 2.0315, which brings small ones up fast and lets none converge.

    Returns
    -------
    tuple of rows
        Later steps make it orthogonal whatever the rounding errors, but do not undo those errors: components
        of small singular values of X are inaccurate.

    References
    ----------
    Higham, Functions of Matrices, 2008, chapter 8. Jordan et al., Muon: an optimizer for hidden layers in
    neural networks, 2024.
    """
    _columns(x, "x")
    columns = tuple(zip(*x, strict=True))
    gram = tuple(_times(ar, columns, column) for column in columns)  # symmetric, as its square is
    square = tuple(_times(ar, gram, row) for row in gram)
    inner = tuple(
        tuple(ar.add(ar.mul(g, b), ar.mul(h, c)) for g, h in zip(*rows, strict=True))
        for rows in zip(gram, square, strict=True)
    )
    return tuple(
        tuple(
            ar.add(ar.mul(value, a), change)
            for value, change in zip(row, _times(ar, tuple(zip(*inner, strict=True)), row), strict=True)
        )
        for row in x
    )


@straight_line
def reciprocal_newton(ar: Arithmetic, a: Value, start: Value, *, steps: int = 3) -> Value:
    """Return 1 / a after steps ``x + x (1 - a x)`` by fused multiply-adds. 2 operations a step.

    Parameters
    ----------
    ar : Arithmetic
        Rounds to nearest and has a fused multiply-add.
    a, start : value
        A number, and an approximation to its reciprocal whose relative error is below 1.
    steps : int, optional
        Each squares the relative error e, until rounding errors are larger.

    Returns
    -------
    value
        Off by at most ``e**2 + u + |e| u`` after a step from error e, relative to 1 / a, to first order in u.
        So it need not be the correctly rounded quotient.

    References
    ----------
    Markstein, IA-64 and Elementary Functions, 2000, on division without a divider.
    """
    check_int("steps", steps, 0)
    x = start
    for _ in range(steps):
        error = ar.fma(ar.neg(a), x, 1.0)
        x = ar.fma(x, error, x)
    return x


@straight_line
def sqrt_newton(ar: Arithmetic, a: Value, start: Value, *, steps: int = 3) -> Value:
    """Return the square root of a after steps ``(x + a / x) / 2``: Heron's method. 3 operations a step.

    Parameters
    ----------
    ar : Arithmetic
        Rounds to nearest.
    a, start : value
        A positive number, and an approximation to its root, positive too.
    steps : int, optional
        Each takes the relative error e to about ``e**2 / 2``, until rounding errors are larger.

    Returns
    -------
    value
        Off by at most ``e**2 / (2 (1 + e)) + 1.5 u`` after a step from error e, relative to the root, to
        first order in u and e.

    References
    ----------
    Muller et al., Handbook of Floating-Point Arithmetic, 2nd ed., 2018, on Newton-Raphson iterations.
    """
    check_int("steps", steps, 0)
    x = start
    for _ in range(steps):
        x = ar.mul(ar.add(x, ar.div(a, x)), 0.5)
    return x


@straight_line
def bisection(ar: Arithmetic, a: Value, low: Value, high: Value, *, steps: int = 8) -> Value:
    """Return the square root of a as the middle of an interval that each step halves.

    Parameters
    ----------
    ar : Arithmetic
        Rounds to nearest, and has `choose`, and therefore gradual underflow.
    a, low, high : value
        With ``0 <= low <= sqrt(a) <= high``.
    steps : int, optional
        After about p of them the middle is an end, and the interval no longer shrinks.

    Returns
    -------
    value
        Off by at most half the last interval and the rounding of the middle, while middle and square are
        exact. A square whose rounding crosses a sends the step the other way: then the root lies outside, by
        about u times itself.

    References
    ----------
    Dahlquist, Bjorck, Numerical Methods in Scientific Computing 1, 2008, chapter 6.
    """
    check_int("steps", steps, 0)
    for _ in range(steps):
        middle = ar.mul(ar.add(low, high), 0.5)
        above = ar.sub(ar.mul(middle, middle), a)
        low, high = ar.choose(above, low, middle), ar.choose(above, middle, high)
    return ar.mul(ar.add(low, high), 0.5)


def _factors(ar: Arithmetic, a: Matrix) -> list[list[Value]]:
    """Return the LU factors of a matrix in one, without pivoting; L has ones on its diagonal."""
    rows = [list(row) for row in a]
    for k, pivot in enumerate(rows):
        for row in rows[k + 1 :]:
            row[k] = ar.div(row[k], pivot[k])
            for j in range(k + 1, len(rows)):
                row[j] = ar.sub(row[j], ar.mul(row[k], pivot[j]))
    return rows


def _solve(ar: Arithmetic, factors: list[list[Value]], b: Terms) -> Terms:
    x = list(b)
    for i, row in enumerate(factors):
        for j in range(i):
            x[i] = ar.sub(x[i], ar.mul(row[j], x[j]))
    for i in reversed(range(len(x))):
        for j in range(i + 1, len(x)):
            x[i] = ar.sub(x[i], ar.mul(factors[i][j], x[j]))
        x[i] = ar.div(x[i], factors[i][i])
    return tuple(x)


@straight_line
def iterative_refinement(
    ar: Arithmetic, a: Matrix, b: Terms, *, steps: int = 1, residual: Format | str | None = None
) -> Terms:
    """Solve ``A x = b`` by LU factors without pivoting, with some steps of iterative refinement.

    Parameters
    ----------
    ar : Arithmetic
        Rounds to nearest.
    a, b : tuple of n rows, tuple of n values
        A matrix that needs no pivoting, such as one that is symmetric and positive definite, or diagonally
        dominant by columns.
    steps : int, optional
        Refinements; with 0 this is elimination alone.
    residual : Format or str, optional
        A format in which ``b - A x`` is computed, with the same carrier as that of `ar`; by default its own.

    Returns
    -------
    tuple of n values
        Residuals of twice the precision bring the relative error down to about u, whatever the condition
        number, if it is well below 1 / u. Residuals of the same precision reduce the backward error alone.

    References
    ----------
    Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., 2002, sections 9.3, 12.1 and 12.2.
    """
    n = _check_system(a, b)
    check_int("steps", steps, 0)
    factors = _factors(ar, a)
    x = _solve(ar, factors, b)
    wide = in_accumulator(ar, residual)[0]
    raised = tuple(tuple(map(wide.round, row)) for row in (*a, b))
    for _ in range(steps):
        guess = tuple(map(wide.round, x))
        left = []
        for i in range(n):
            rest = raised[n][i]
            for entry, value in zip(raised[i], guess, strict=True):
                rest = wide.sub(rest, wide.mul(entry, value))
            left.append(ar.round(rest))
        change = _solve(ar, factors, tuple(left))
        x = tuple(ar.add(value, more) for value, more in zip(x, change, strict=True))
    return x


@straight_line
def conjugate_gradients(ar: Arithmetic, a: Matrix, b: Terms, *, steps: int | None = None) -> Terms:
    """Solve ``A x = b`` for a symmetric positive definite matrix by conjugate gradients from zero.

    Parameters
    ----------
    ar : Arithmetic
        Any arithmetic.
    a, b : tuple of n rows, tuple of n values
    steps : int, optional
        At least 1; by default n, after which x would be exact without rounding errors. If the residual
        becomes zero before, the results are NaN.

    Returns
    -------
    tuple of n values
        Rounding errors cost the directions their conjugacy: after n steps the residual need not be small, and
        more steps may help.

    References
    ----------
    Hestenes, Stiefel, Methods of conjugate gradients for solving linear systems, J. Res. Nat. Bur. Standards
    49, 1952. Golub, Van Loan, Matrix Computations, 4th ed., 2013, section 11.3.
    """
    n = _check_system(a, b)
    steps = n if steps is None else steps
    check_int("steps", steps, 1)
    x: list[Value] = [0.0] * n
    rest, direction = b, b
    square = recursive_dot(ar, rest, rest)
    for step in range(steps):
        image = _times(ar, a, direction)
        length = ar.div(square, recursive_dot(ar, direction, image))
        x = [ar.add(value, ar.mul(length, d)) for value, d in zip(x, direction, strict=True)]
        if step + 1 < steps:
            rest = tuple(ar.sub(r, ar.mul(length, i)) for r, i in zip(rest, image, strict=True))
            before, square = square, recursive_dot(ar, rest, rest)
            share = ar.div(square, before)
            direction = tuple(ar.add(r, ar.mul(share, d)) for r, d in zip(rest, direction, strict=True))
    return tuple(x)
