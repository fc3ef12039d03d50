"""Exact sums as expansions: no bit is rounded away, and each added number makes them one component longer.

An expansion here is a tuple of values, *smallest* first, as in Shewchuk's paper. Those of
`mcfsim.multiword.expansion` have a fixed length, are normalised, and begin with the largest. An expansion
stands for the exact sum of its components; some may be zero. It is *nonoverlapping* if each nonzero component
is less in magnitude than the lowest set bit of the next one. It is *nonadjacent* if the same holds for twice
each component. It is *strongly nonoverlapping* if it is nonoverlapping, any two adjacent components are both
powers of two, and neither is adjacent to a third one.

All sums below are exact if the arithmetic rounds to nearest (with any tie rule), underflow is gradual and
nothing overflows. An infinite or NaN operand, or an overflow, makes components NaN or infinite.

References
----------
Shewchuk, Adaptive precision floating-point arithmetic and fast robust geometric predicates, Discrete Comput.
Geom. 18, 1997.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mcfsim.checks import as_array, check_processor, is_tensor
from mcfsim.codec import on_host, real_numbers
from mcfsim.eft import fast_two_sum, two_sum
from mcfsim.protocol import Arithmetic, Value, straight_line

Components = tuple[Value, ...]


def check_parts(x: Any, name: str, *, least: int = 1) -> None:
    """Raise unless x is a tuple of at least `least` values.

    Raises
    ------
    TypeError
        If x is not a tuple, or is a tuple of tuples.
    ValueError
        If it has fewer than `least` values.
    """
    if not isinstance(x, tuple):
        raise TypeError(f"{name} must be a tuple of values, not of type {type(x).__name__}; use tuple(...)")
    if any(isinstance(part, tuple) for part in x):
        raise TypeError(f"{name} must be a tuple of values, not of tuples")
    if len(x) < least:
        raise ValueError(f"{name} has length {len(x)}; at least {least} is needed")


@straight_line
def vec_sum(ar: Arithmetic, x: Components) -> Components:
    """Add numbers one after another by 2Sum and keep every error. 6 (n - 1) operations.

    Parameters
    ----------
    ar : Arithmetic
        Rounds to nearest.
    x : tuple of n values
        In any order. They are added from the first to the last.

    Returns
    -------
    tuple of n values
        The errors in the order of the additions, then the sum that recursive summation gives. Their exact
        sum equals that of x.

    Raises
    ------
    TypeError, ValueError
        If x is not a tuple of values, or is empty.

    References
    ----------
    Ogita, Rump, Oishi, SIAM J. Sci. Comput. 26(6), 2005, Algorithm 4.3.
    """
    check_parts(x, "x")
    total, *rest = x
    errors = []
    for number in rest:
        total, error = two_sum(ar, total, number)
        errors.append(error)
    return (*errors, total)


@straight_line
def grow_expansion(ar: Arithmetic, e: Components, b: Value) -> Components:
    """Add a number to an expansion, exactly. 6 m operations.

    Parameters
    ----------
    ar : Arithmetic
        Rounds to nearest; precision at least 3.
    e : tuple of m values
        Nonoverlapping, smallest first.
    b : value
        A number of the format, of any magnitude.

    Returns
    -------
    tuple of m + 1 values
        Nonoverlapping, smallest first. If e is nonadjacent and ties go to even, so is the result.

    Raises
    ------
    TypeError
        If e is not a tuple of values.

    References
    ----------
    Shewchuk 1997, Theorem 10.
    """
    check_parts(e, "e", least=0)
    return vec_sum(ar, (b, *e))


@straight_line
def expansion_sum(ar: Arithmetic, e: Components, f: Components) -> Components:
    """Add two expansions, exactly, one component after the other. 6 m n operations.

    Parameters
    ----------
    ar : Arithmetic
        Rounds to nearest; precision at least 3.
    e, f : tuples of m and n values
        Nonoverlapping, smallest first.

    Returns
    -------
    tuple of m + n values
        Nonoverlapping, smallest first. If e and f are nonadjacent and ties go to even, so is the result.

    Raises
    ------
    TypeError
        If e or f is not a tuple of values.

    References
    ----------
    Shewchuk 1997, Theorem 12.
    """
    check_parts(e, "e", least=0)
    check_parts(f, "f", least=0)
    final: list[Value] = []
    for b in f:  # the next components of f are larger: they do not change the smallest component
        smallest, *others = grow_expansion(ar, e, b)
        final, e = [*final, smallest], tuple(others)
    return (*final, *e)


@straight_line
def fast_expansion_sum(ar: Arithmetic, g: Components) -> Components:
    """Add two expansions, exactly, given their merged components. 6 (m + n) - 9 operations.

    Parameters
    ----------
    ar : Arithmetic
        Rounds to nearest, ties to even; precision at least 4.
    g : tuple of m + n values
        The components of two strongly nonoverlapping expansions, sorted by magnitude as `merge` does. At
        least two.

    Returns
    -------
    tuple of m + n values
        Nonoverlapping, smallest first; see below.

    Raises
    ------
    TypeError, ValueError
        If g is not a tuple of values, or has fewer than two.

    Notes
    -----
    The theorem calls the result strongly nonoverlapping. In the sense above it need not be, at any precision:
    ``(2**(p + 1) + 4,)`` and ``(-2**(p - 1) - 6, -2**(p + 1))`` are strongly nonoverlapping, but their sum
    comes out as ``(2, 0, -2**(p - 1) - 4)``, which is not. The result is known to be nonoverlapping for all
    expansions of two components in six binades with p = 3 and 4. If the operands are only nonoverlapping, the
    result may overlap; the result of `expansion_sum` does not.

    References
    ----------
    Shewchuk 1997, Theorem 13.
    """
    check_parts(g, "g", least=2)
    total, error = fast_two_sum(ar, g[1], g[0])
    return (error, *grow_expansion(ar, g[2:], total))


def merge(e: Components, f: Components) -> Components:
    """Sort the components of two expansions by magnitude: zeros first, NaN last, values unchanged.

    Merging is not arithmetic, and the place of a component depends on the operands. So it is not part of a
    straight-line algorithm; do it beforehand.

    Parameters
    ----------
    e, f : tuples of m and n values
        Numbers, or NumPy arrays that broadcast; or tensors of one device in the carriers' dtypes: float32,
        float64 or shorter floats. Tensors are sorted in the host's memory.

    Returns
    -------
    tuple of m + n arrays
        Equal magnitudes keep their order, e before f. If some operands are tensors, all results are tensors
        on their device.

    Raises
    ------
    TypeError, ValueError
        If e or f is not a tuple of values, or is empty; or if there are tensors of several devices, masked
        arrays, or integers of 64 bits that binary64 does not hold.
    """
    check_processor()
    check_parts(e, "e")
    check_parts(f, "f")
    devices = {x.device for x in (*e, *f) if is_tensor(x)}
    if len(devices) > 1:
        raise TypeError(f"tensors lie on several devices: {', '.join(sorted(map(str, devices)))}")
    parts = np.stack(np.broadcast_arrays(*(_array(x) for x in (*e, *f))))
    order = np.argsort(np.abs(parts), axis=0, kind="stable")
    merged = tuple(np.take_along_axis(parts, order, axis=0))
    if not devices:
        return merged
    import torch

    (device,) = devices
    return tuple(torch.from_numpy(np.asarray(x)).to(device) for x in merged)


def _array(x: Value) -> Any:
    """Return a component as a NumPy array; tensors of short floats, and integers, become floats."""
    array = as_array(on_host(x), "a component")
    if whole := array.dtype.kind in "iu":  # the least ones have no magnitude of their type
        array = real_numbers(array)
    return array.astype(np.promote_types(array.dtype, np.float32)) if whole or is_tensor(x) else array
