"""Newton-Schulz iterations that turn a matrix into its polar factor, with stated formats and sums."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.backends.factory import on_blocks
from mcfsim.checks import check_flag, check_int, finite_number, hint, real_array
from mcfsim.formats import Format, get_format
from mcfsim.kernels import native
from mcfsim.kernels.carriers import UnsupportedFormatError, carrier_of
from mcfsim.kernels.exact_dot import Summands, dot_to_odd
from mcfsim.kernels.native import NativeArithmetic
from mcfsim.optim.declaration import Interval
from mcfsim.optim.stored import FLOAT32
from mcfsim.products import Accumulator, matmul
from mcfsim.protocol import Arithmetic
from mcfsim.rounding import Mode, Rounding

#: Coefficients (a, b, c) of the polynomials ``a x + b x^3 + c x^5``, one for each iteration.
Coefficients = tuple[tuple[float, float, float], ...]
Array = NDArray[Any]

_JORDAN = (3.4445, -4.7750, 2.0315)
#: Published coefficients by name. ``keller-jordan``: KellerJordan/Muon and `torch.optim.Muon`.
#: ``polar-express``: Amsel et al., arXiv 2505.16932, as in modded-nanogpt. ``dion``: microsoft/dion.
#: ``deepseek-v4``: eight of Keller Jordan's, then two that converge, as in NVIDIA's Emerging-Optimizers.
COEFFICIENTS: Mapping[str, Coefficients] = MappingProxyType(
    {
        "keller-jordan": (_JORDAN,) * 5,
        "polar-express": (
            (8.156554524902461, -22.48329292557795, 15.878769915207462),
            (4.042929935166739, -2.808917465908714, 0.5000178451051316),
            (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
            (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
            (2.3465413258596377, -1.7097828382687081, 0.42323551169305323),
        ),
        "dion": (
            (4.0848, -6.8946, 2.9270),
            (3.9505, -6.3029, 2.6377),
            (3.7418, -5.5913, 2.3037),
            (2.8769, -3.1427, 1.2046),
            (2.8366, -3.0525, 1.2012),
        ),
        "deepseek-v4": (*(_JORDAN,) * 8, *((2.0, -1.5, 0.5),) * 2),
    }
)
#: The root of an exact sum rounded to odd in 52 bits is correct for formats of at most this many bits.
_LONGEST = 25


@dataclass(frozen=True)
class NewtonSchulz:
    """An iteration ``X = a X + (b A + c A A) X`` with ``A = X X'``, from a matrix of norm at most 1.

    Parameters
    ----------
    coefficients : str or tuple of tuple of three float, optional
        A name of `COEFFICIENTS`, or (a, b, c) of each iteration.
    iterate : Format or str, optional
        The format of X and of all that is stored between matrix products, rounded to nearest even.
    components : int, optional
        How many numbers of that format an element has: 1, or 2, whose sum it is. With two, the matrix is
        normalised in the accumulator's format.
    accumulator : Accumulator, optional
        Sums the products of a matrix product; its result is rounded into the iterate's format afterwards. By
        default each sum is exact, and rounded once to float32.
    fused : bool, optional
        Whether ``b A + c (A A)`` and ``a X + Y X`` are computed from the accumulator's sums in its format, as
        by ``torch.addmm``: one fused multiply-add, and one rounding into the iterate's format. If not, each
        operation is rounded into the iterate's format: ``b A + (c A) A``, as Keller Jordan's code writes it.
    margin, epsilon : float, optional
        The matrix is divided by ``max(margin |X|, epsilon)``, where |X| is the Frobenius norm.
    added : bool, optional
        Whether epsilon is added to ``margin |X|`` instead.

    Raises
    ------
    TypeError
        If an argument is of the wrong type.
    ValueError
        If a name is unknown, a number out of range, or a rounding of the accumulator drawn at random.
    UnsupportedFormatError
        If the iterate's format has more than 25 bits or, with one component, numbers beyond 2**+-450.

    References
    ----------
    Jordan et al., Muon: an optimizer for hidden layers in neural networks, 2024; Higham, Functions of
    Matrices, SIAM 2008, section 8.3.
    """

    coefficients: str | Coefficients = "keller-jordan"
    iterate: Format | str = "bfloat16"
    components: int = 1
    accumulator: Accumulator = field(default_factory=lambda: Accumulator(FLOAT32, block=None))
    fused: bool = True
    margin: float = 1.0
    epsilon: float = 1e-7
    added: bool = False

    def __post_init__(self) -> None:
        fmt = get_format(self.iterate)
        object.__setattr__(self, "iterate", fmt)
        carrier_of(fmt)
        if type(fmt) is not Format or not (fmt.signed and fmt.zero):
            raise UnsupportedFormatError(f"iterates are floats with a sign and a zero, not {fmt}")
        if fmt.precision > _LONGEST:
            raise UnsupportedFormatError(f"iterates have at most {_LONGEST} bits, not {fmt.precision}")
        check_int("components", self.components, 1)
        if self.components > 2:
            raise ValueError(f"components = {self.components}: iterates have one or two")
        if not isinstance(self.accumulator, Accumulator):
            raise TypeError(f"accumulator must be an Accumulator, not {self.accumulator!r}")
        if self.components == 1:  # the norm is taken in the iterate's format
            Accumulator(fmt, block=None)  # refuses formats whose squares have no exact sum
        if self.accumulator.rounding.mode is not Mode.NEAREST_EVEN:
            raise ValueError(f"the accumulator must round nearest_even, not {self.accumulator.rounding.mode}")
        for name in ("fused", "added"):
            check_flag(name, getattr(self, name))
        if self.components > 1 and not self.fused:
            raise ValueError("iterates of two components are computed by fused operations: fused=True")
        assert isinstance(self.accumulator.format, Format)
        if self.components > 1 and self.accumulator.format.precision > _LONGEST:
            raise UnsupportedFormatError(
                f"sums of two components have at most {_LONGEST} bits, not those of {self.accumulator.format}"
            )
        for name, interval in (("margin", Interval.POSITIVE), ("epsilon", Interval.NOT_NEGATIVE)):
            object.__setattr__(self, name, interval.number(name, getattr(self, name)))
        object.__setattr__(self, "coefficients", _coefficients(self.coefficients))

    @property
    def iterations(self) -> Coefficients:
        """The coefficients of each iteration."""
        assert not isinstance(self.coefficients, str)
        return self.coefficients

    def __call__(self, ar: Arithmetic, x: Array) -> Array:
        """Return near-orthogonal factors of matrices, as values of an arithmetic.

        Parameters
        ----------
        ar : Arithmetic
            The arithmetic of one block. In mpmath or binary64 the same algorithm runs with neither formats
            nor accumulators; the emulator's arithmetic rounds the result.
        x : array, shape (stack, rows, columns)
            Values of the arithmetic.

        Returns
        -------
        array, shape (stack, rows, columns)
            NaN in each matrix that has a NaN or an infinity, or whose sums become infinite. A matrix of zeros
            stays one, unless epsilon is zero in the iterate's format: then it becomes NaN.
        """
        tall = x.shape[-2] > x.shape[-1]
        found = self.steps(ar).iterated(np.swapaxes(x, -1, -2) if tall else x, in_rows=not tall)
        return np.swapaxes(found, -1, -2) if tall else found

    def steps(self, ar: Arithmetic) -> Iterating:
        """Return the operations of the iteration."""
        return Iterating(ar, self)


def _coefficients(given: object) -> Coefficients:
    if isinstance(given, str):
        if given not in COEFFICIENTS:
            raise ValueError(
                f"unknown coefficients {given!r}{hint(given, COEFFICIENTS)}; known: {', '.join(COEFFICIENTS)}"
            )
        return COEFFICIENTS[given]
    if not isinstance(given, tuple | list) or not given:
        raise TypeError(f"coefficients are a name or a tuple of triples (a, b, c), not {given!r}")
    found = []
    for triple in given:
        if not isinstance(triple, tuple | list) or len(triple) != 3:
            raise TypeError(f"each iteration has three coefficients (a, b, c), not {triple!r}")
        a, b, c = (finite_number("a coefficient", number) for number in triple)
        found.append((a, b, c))
    return tuple(found)


#: A matrix as the components of its elements, most significant first.
Parts = tuple[Array, ...]


class Iterating:
    """The operations of an iteration, in formats or in one exact or native arithmetic."""

    def __init__(self, ar: Arithmetic, how: NewtonSchulz) -> None:
        self.ar, self.how = ar, how
        self.plain = ar.format is None or isinstance(ar, NativeArithmetic)
        fmt = how.iterate
        assert isinstance(fmt, Format)
        assert isinstance(how.accumulator.format, Format)
        self.iterate = ar if self.plain else ar.like(fmt, Rounding())
        self.wide = ar if self.plain else ar.like(how.accumulator.format, Rounding())

    def iterated(self, x: Array, *, in_rows: bool) -> Array:
        """Return the result of the iterations for matrices with no more rows than columns.

        In memory, rows of x are contiguous if `in_rows`, otherwise columns: some products depend on it.
        """
        now = self._normalised(x, in_rows)
        for a, b, c in self.how.iterations:
            square = self._stored(self.product(now, _turned(now), in_rows, not in_rows))
            if self.how.fused:
                scaled = _each(self.wide.mul, self.product(square, square), c)
                mixed = self._joined(square, b, scaled)
                now = self._joined(now, a, self.product(mixed, now, True, in_rows))
            else:
                it = self.iterate
                (scaled,) = self._stored(self.product((_each(it.mul, square[0], c),), square))
                mixed = (_each(it.add, _each(it.mul, square[0], b), scaled),)
                (moved,) = self._stored(self.product(mixed, now, True, in_rows))
                now = (_each(it.add, _each(it.mul, now[0], a), moved),)
            in_rows = True
        return _each(self.ar.round, self._whole(now))

    def _normalised(self, x: Array, in_rows: bool) -> Parts:
        it = self.iterate if self.how.components == 1 else self.wide
        x = _each(it.round, x)
        divisor = self.norm(it, x, in_rows)
        if self.how.margin != 1:
            divisor = _each(it.mul, divisor, self.how.margin)
        if self.how.added:
            divisor = _each(it.add, divisor, self.how.epsilon)
        else:
            least = _each(it.round, np.full_like(divisor, self.how.epsilon))
            divisor = np.where(divisor < least, least, divisor)
        found = _each(it.div, x, np.broadcast_to(divisor, x.shape))
        return self._stored(found)

    def norm(self, ar: Arithmetic, x: Array, in_rows: bool) -> Array:
        """Return the Frobenius norm of each matrix, rounded once from the exact one; shape (stack, 1, 1)."""
        if self.plain:
            return _each(ar.sqrt, (x * x).sum(axis=(1, 2), keepdims=True))
        rows = x.reshape(len(x), 1, -1).astype(np.float64)

        def operands(start: int, stop: int) -> tuple[Array, Array]:
            part = rows[:, :, start:stop]
            return part, np.swapaxes(part, 1, 2)

        summands = Summands(operands, (len(x), 1, 1), narrow=True, down=False)
        with np.errstate(all="ignore"):
            total = dot_to_odd(summands, (0, rows.shape[2]), None)
            root = native.make_odd(*native.sqrt(total))
        return _each(ar.round, root)

    def product(self, x: Parts, y: Parts, first: bool = True, second: bool = True) -> Array:
        """Return matrix products as the accumulator sums them; for components, without the smallest terms.

        `first` and `second` say whether the rows of x and of y are contiguous in memory.
        """
        if self.plain:
            return np.asarray(np.matmul(x[0], y[0]))
        pairs = [(i, j) for i in range(len(x)) for j in range(len(y)) if i + j < len(x)]
        left = np.concatenate([x[i] for i, _ in pairs], axis=-1)
        right = np.concatenate([y[j] for _, j in pairs], axis=-2)
        return np.asarray(matmul(left, right, self.how.accumulator))

    def _joined(self, x: Parts, factor: float, product: Array) -> Parts:
        """Return ``factor x + product``, computed in the accumulator's format and stored."""
        return self._stored(_each(self.wide.fma, self._whole(x), factor, product))

    def _whole(self, x: Parts) -> Array:
        """Return numbers from their components, in the accumulator's format."""
        total, *others = (_each(self.wide.round, part) for part in x)
        for part in others:
            total = _each(self.wide.add, total, part)
        return total

    def _stored(self, x: Array) -> Parts:
        """Return numbers of the accumulator's format as components of the iterate's."""
        found = [_each(self.iterate.round, x)]
        for _ in range(1, self.how.components):
            x = _each(self.wide.sub, x, _each(self.wide.round, found[-1]))
            found.append(_each(self.iterate.round, x))
        return tuple(found)


def _each(operation: Callable[..., Any], *operands: Any) -> Array:
    """Apply an operation of one block to arrays of one shape, and to numbers, element by element."""
    shape = operands[0].shape
    flat = (np.ascontiguousarray(x).reshape(-1) if isinstance(x, np.ndarray) else x for x in operands)
    return np.asarray(operation(*flat)).reshape(shape)


def _turned(x: Parts) -> Parts:
    return tuple(np.swapaxes(part, -1, -2) for part in x)


# -- the iteration by itself, and how good its result is --------------------------------------------------
def orthogonalize(x: Any, how: NewtonSchulz | None = None) -> Array:
    """Return near-orthogonal factors of matrices by a Newton-Schulz iteration.

    Parameters
    ----------
    x : array_like, shape (..., rows, columns)
        Real numbers, which are rounded into the iterate's format.
    how : NewtonSchulz, optional
        The iteration, with its formats; by default that of Muon in bfloat16.

    Returns
    -------
    array of float32 or float64
        Numbers of the iterate's format; sums of two, in the accumulator's, if they have two components.

    Raises
    ------
    TypeError
        If x holds no real numbers, or `how` is not a NewtonSchulz.
    ValueError
        If x has fewer than two dimensions, or is empty.

    Examples
    --------
    >>> orthogonalize([[3.0, 0.0], [0.0, 4.0]], NewtonSchulz("deepseek-v4")).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    how = NewtonSchulz() if how is None else how
    if not isinstance(how, NewtonSchulz):
        raise TypeError(f"how must be a NewtonSchulz, not {how!r}")
    given = real_array(x, "x")
    if given.ndim < 2 or not given.size:
        raise ValueError(f"x must be a matrix or a stack of them, and not empty; it has shape {given.shape}")
    fmt = how.accumulator.format if how.components > 1 else how.iterate
    assert isinstance(fmt, Format)
    ar = on_blocks(fmt, Rounding())
    stack = _each(ar.round, given.reshape(-1, *given.shape[-2:]))
    with np.errstate(all="ignore"):
        return how(ar, stack).reshape(given.shape)


#: mpmath computes the polar factor of matrices with at most this many rows or columns.
MPMATH_SIZE = 32


def polar_factor(x: Any, *, digits: int | None = None) -> Array:
    """Return the orthogonal polar factor ``U V'`` of a matrix with singular value decomposition ``U S V'``.

    Parameters
    ----------
    x : array_like, shape (rows, columns)
        Finite numbers.
    digits : int, optional
        Decimal digits for mpmath; by default LAPACK computes the factor in binary64.

    Returns
    -------
    array of float64, shape (rows, columns)

    Raises
    ------
    ValueError
        If x is not a matrix or not finite, or has more than 32 rows and columns and `digits` is given.
    """
    given = real_array(x, "x").astype(np.float64)
    if given.ndim != 2 or not given.size or not np.isfinite(given).all():
        raise ValueError(f"x must be a matrix of finite numbers; it has shape {given.shape}")
    if digits is None:
        u, _, v = np.linalg.svd(given, full_matrices=False)
        return np.asarray(u @ v)
    if min(given.shape) > MPMATH_SIZE:
        raise ValueError(f"mpmath is for at most {MPMATH_SIZE} rows or columns, not for shape {given.shape}")
    import mpmath

    with mpmath.workdps(digits):
        u, _, v = mpmath.svd_r(mpmath.matrix(given.tolist()))
        return np.array((u * v).tolist(), dtype=np.float64)


def lost_orthogonality(x: Any) -> float:
    """Return ``|X X' - I| / sqrt n`` in the Frobenius norm, n the smaller number of rows and columns.

    A lost direction need not show here: a small singular value of the source may end anywhere near 1 or stay
    below. `polar_distance` shows it.
    """
    given = real_array(x, "x").astype(np.float64)
    given = given.T if given.shape[0] > given.shape[1] else given
    return float(np.linalg.norm(given @ given.T - np.eye(len(given))) / np.sqrt(len(given)))


def polar_distance(x: Any, source: Any) -> float:
    """Return the distance of x from the polar factor of its source, relative to that factor's norm."""
    factor = polar_factor(source)
    return float(np.linalg.norm(real_array(x, "x").astype(np.float64) - factor) / np.linalg.norm(factor))
