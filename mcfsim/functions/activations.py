"""Activation functions of neural networks on one value: sigmoid, softplus, GELU, SiLU, squared ReLU.

The bounds are to first order in the unit roundoff u. They assume elementary functions that round correctly to
nearest, and results that do not underflow. Each sums up the errors of its steps by the standard model.
"""

from __future__ import annotations

import math

from mcfsim.protocol import Arithmetic, Value, straight_line


@straight_line
def sigmoid(ar: Arithmetic, x: Value) -> Value:
    """Return ``1 / (1 + exp(-x))``, from ``exp(-|x|)``, which never overflows.

    Parameters
    ----------
    ar : Arithmetic
        Has `choose`, and therefore gradual underflow.
    x : value

    Returns
    -------
    value
        The relative error is at most 3 u. ``1 - sigmoid(x)`` is not that accurate for large x; use
        ``sigmoid(-x)`` there.

    References
    ----------
    The form is that of ``expit`` in many libraries; the bound is that of its steps.
    """
    e = ar.exp(ar.neg(ar.abs(x)))
    return ar.div(ar.choose(x, 1.0, e), ar.add(1.0, e))


@straight_line
def softplus(ar: Arithmetic, x: Value) -> Value:
    """Return ``log(1 + exp(x))`` as ``max(x, 0) + log1p(exp(-|x|))``.

    Parameters
    ----------
    ar : Arithmetic
        Any arithmetic.
    x : value

    Returns
    -------
    value
        The relative error is at most 3 u, and nothing overflows.

    References
    ----------
    Maechler, Accurately computing log(1 - exp(-|a|)), assessed by the Rmpfr package, 2012, on ``log1pexp``.
    """
    return ar.add(ar.maximum(x, 0.0), ar.log1p(ar.exp(ar.neg(ar.abs(x)))))


@straight_line
def gelu(ar: Arithmetic, x: Value) -> Value:
    """Return ``x (1 + erf(x / sqrt(2))) / 2``: the Gaussian error linear unit.

    Parameters
    ----------
    ar : Arithmetic
        Any arithmetic.
    x : value

    Returns
    -------
    value
        The relative error is a few u where x is positive. Where x is negative, ``1 + erf`` cancels: the
        result is off by up to about ``u |x|``, and has no relative accuracy below about -2. For -infinity it
        is NaN.

    Notes
    -----
    The factor 1 / sqrt(2) is the binary64 number nearest to it, a real scalar.

    References
    ----------
    Hendrycks, Gimpel, Gaussian error linear units (GELUs), arXiv:1606.08415, 2016.
    """
    return ar.mul(ar.mul(x, 0.5), ar.add(1.0, ar.erf(ar.mul(x, math.sqrt(0.5)))))


@straight_line
def silu(ar: Arithmetic, x: Value) -> Value:
    """Return ``x sigmoid(x)``: the sigmoid-weighted linear unit.

    Parameters
    ----------
    ar : Arithmetic
        Has `choose`, and therefore gradual underflow.
    x : value

    Returns
    -------
    value
        The relative error is at most 4 u. For -infinity the result is NaN.

    References
    ----------
    Elfwing, Uchibe, Doya, Sigmoid-weighted linear units for neural network function approximation in
    reinforcement learning, Neural Networks 107, 2018.
    """
    return ar.mul(x, sigmoid(ar, x))


@straight_line
def silu_gradient(ar: Arithmetic, x: Value, upstream: Value) -> Value:
    """Return ``upstream (s + x s (1 - s))`` with ``s = sigmoid(x)``: the gradient of ``upstream silu(x)``.

    Parameters
    ----------
    ar : Arithmetic
        Has `choose`, and therefore gradual underflow.
    x, upstream : value

    Returns
    -------
    value
        The slope is off by a few u times ``s (1 + |x|)``. Near its zero, at about -1.278, it cancels and has
        no relative accuracy.

    References
    ----------
    The chain rule, on the formula of Elfwing, Uchibe, Doya, 2018.
    """
    share = sigmoid(ar, x)
    slope = ar.add(share, ar.mul(ar.mul(x, share), ar.sub(1.0, share)))
    return ar.mul(upstream, slope)


@straight_line
def squared_relu(ar: Arithmetic, x: Value) -> Value:
    """Return ``max(x, 0)**2``.

    Parameters
    ----------
    ar : Arithmetic
        Any arithmetic.
    x : value

    Returns
    -------
    value
        The relative error is at most u.

    References
    ----------
    So et al., Primer: searching for efficient transformers for language modeling, NeurIPS 2021.
    """
    positive = ar.maximum(x, 0.0)
    return ar.mul(positive, positive)


@straight_line
def squared_relu_gradient(ar: Arithmetic, x: Value, upstream: Value) -> Value:
    """Return ``2 upstream max(x, 0)``: the gradient of ``upstream squared_relu(x)``.

    Parameters
    ----------
    ar : Arithmetic
        Any arithmetic.
    x, upstream : value

    Returns
    -------
    value
        The relative error is at most 2 u.

    References
    ----------
    The chain rule, on the formula of So et al., 2021.
    """
    return ar.mul(ar.mul(upstream, ar.maximum(x, 0.0)), 2.0)
