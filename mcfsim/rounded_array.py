"""Arrays of one format with operators: each operation is that of an arithmetic, rounded once."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import ArrayLike, DTypeLike, NDArray

from mcfsim.array_namespace import VERSION, ArrayNamespace
from mcfsim.backends.array_reductions import REDUCTIONS, check_integers, refuse_arguments
from mcfsim.backends.factory import arithmetic
from mcfsim.backends.numpy import NumpyArithmetic
from mcfsim.checks import as_array, check_processor, is_real, is_tensor, refuse_items
from mcfsim.codec import as_dtype, encode
from mcfsim.formats import Format, get_format
from mcfsim.kernels.real_numbers import exact_or_binary64, is_scalar, nearest_binary64
from mcfsim.products import Accumulator, matmul
from mcfsim.rounding import Underflow

#: The names of an arithmetic's operations, by NumPy's functions.
_OPERATIONS: dict[np.ufunc, str] = {
    **{np.add: "add", np.subtract: "sub", np.multiply: "mul", np.divide: "div", np.sqrt: "sqrt"},
    **{np.negative: "neg", np.absolute: "abs", np.fabs: "abs", np.sign: "sign"},
    **{np.maximum: "maximum", np.minimum: "minimum"},
    **{np.exp: "exp", np.log: "log", np.expm1: "expm1", np.log1p: "log1p"},
    **{np.tanh: "tanh", np.sin: "sin", np.cos: "cos"},
}
#: Python's comparisons of exact numbers, by NumPy's; then all functions whose results are truth values.
_COMPARISONS: dict[np.ufunc, Callable[[Any, Any], Any]] = {
    **{np.equal: operator.eq, np.not_equal: operator.ne},
    **{np.less: operator.lt, np.less_equal: operator.le},
    **{np.greater: operator.gt, np.greater_equal: operator.ge},
}
_QUESTIONS = {*_COMPARISONS, np.isnan, np.isinf, np.isfinite, np.signbit}
#: Functions that are exact in the carrier, so that their results are rounded once.
_EXACT = {np.floor, np.ceil, np.trunc, np.rint}
#: Functions of NumPy that move or choose elements.
_SHAPING: set[Any] = {
    *(np.reshape, np.ravel, np.transpose, np.swapaxes, np.moveaxis, np.squeeze, np.expand_dims),
    *(np.concatenate, np.stack, np.broadcast_to, np.flip, np.roll, np.repeat, np.tile, np.take),
    *(np.matrix_transpose, np.unstack, np.tril, np.triu, np.take_along_axis, np.sort),
}
#: Functions that return places, truth values, counts or shapes.
_LOCATING: set[Any] = {
    *(np.argmax, np.argmin, np.argsort, np.nonzero, np.count_nonzero, np.all, np.any),
    *(np.shape, np.ndim, np.size),
}


def array(x: Any, fmt: Format | str, rounding: str = "nearest_even", **options: Any) -> RoundedArray:
    """Return numbers, rounded into a format once, as an array with operators.

    With ``ar = arithmetic(fmt, rounding, **options)``, ``a + b`` has the bits of ``ar.add(a, b)``. The same
    goes for ``-``, ``*``, ``/``, unary minus, ``abs``, NumPy's functions for them, and `sqrt`, `maximum`,
    `minimum`, `sign`, `exp`, `log`, `expm1`, `log1p`, `tanh`, `sin` and `cos`. ``a @ b`` rounds each product
    and adds the products from left to right; `sum`, `prod`, `mean` and the cumulative functions work in the
    same order. Comparisons give arrays of truth values. Python numbers enter by the scalar policy of the
    arithmetic, and are compared unrounded. Arrays are immutable: ``a += b`` binds the name to a new array.
    NumPy's other functions, its arrays, and arrays of another format or rounding are refused: nothing is
    converted silently. ``x.__array_namespace__()`` has the functions of the array API standard.

    Parameters
    ----------
    x : array_like or Tensor
        Numbers as `round_to` takes them, of any shape; a `RoundedArray` is converted.
    fmt : Format or str
        The format.
    rounding : str, optional
        A name of `Mode`. Stochastic rounding needs ``random=``.
    **options
        Options of `arithmetic`, such as ``underflow="flush_inputs"`` or ``scalars="float32"``.

    Raises
    ------
    ValueError, TypeError
        As `round_to` and `arithmetic` do.

    Examples
    --------
    >>> x = array([1.0, 256.0], "bfloat16")
    >>> x + 1
    RoundedArray([  2., 256.], bfloat16)
    >>> (x / 3).as_dtype()
    array([0.333984, 85.5], dtype=bfloat16)
    """
    ar = arithmetic(get_format(fmt), rounding, **options)
    if not isinstance(ar, NumpyArithmetic):
        raise ValueError(f"arrays are computed by backend 'numpy' or 'llvm', not {options['backend']!r}")
    return _entered(x, ar)


def _entered(x: Any, ar: NumpyArithmetic) -> RoundedArray:
    """Return numbers, rounded once, as an array."""
    if isinstance(x, RoundedArray):
        x = x.values
    if is_tensor(x):
        x = as_array(x.detach().cpu())
    if isinstance(x, list | tuple):
        refuse_items(x, "x")
        given = np.array(x, object)
        if any(not isinstance(number, float | int) and is_scalar(number) for number in given.flat):
            rounded = [ar.round(number) for number in given.flat]
            return RoundedArray(np.asarray(rounded, ar.carrier).reshape(given.shape), ar)
    return RoundedArray(np.asarray(ar.round(x), ar.carrier), ar)


class RoundedArray(NDArrayOperatorsMixin):
    """An immutable array of values of a format, with operators; see `array`.

    Parameters
    ----------
    values : array
        Values of the format, in its carrier.
    arithmetic : NumpyArithmetic
        Carries out the operations.
    """

    __slots__ = ("arithmetic", "values")

    def __init__(self, values: NDArray[Any], arithmetic: NumpyArithmetic) -> None:
        self.values = values.view()
        self.values.flags.writeable = False
        self.arithmetic = arithmetic

    # -- attributes and conversions ------------------------------------------------------------------------
    @property
    def format(self) -> Format:
        """The format of the numbers."""
        return self.arithmetic.format

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape."""
        return self.values.shape

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return self.values.ndim

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.values.size

    @property
    def dtype(self) -> Format:
        """The format, as the array API standard calls it."""
        return self.arithmetic.format

    @property
    def device(self) -> str:
        """The device, which is always ``"cpu"``."""
        return "cpu"

    @property
    def T(self) -> RoundedArray:
        """The transpose."""
        return self._like(self.values.T)

    @property
    def mT(self) -> RoundedArray:
        """The transposes of the matrices of the last two axes."""
        return self._like(self.values.mT)

    def to_device(self, device: str, /, *, stream: None = None) -> RoundedArray:
        """Return the array; ValueError for any device but ``"cpu"``."""
        if device != "cpu" or stream is not None:
            raise ValueError(f"arrays are on device 'cpu', not {device!r}")
        return self

    def __array_namespace__(self, *, api_version: str | None = None) -> ArrayNamespace:
        if api_version not in (None, "2021.12", "2022.12", "2023.12", VERSION):
            raise ValueError(f"the namespace is of version {VERSION}, not {api_version!r}")
        return ArrayNamespace(self.format, self.arithmetic.rounding, self.enter)

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[RoundedArray]:
        return map(self._like, self.values)  # or raise NumPy's error

    def __getitem__(self, key: Any) -> RoundedArray:
        return self._like(self.values[key])

    def reshape(self, *shape: Any) -> RoundedArray:
        """Return the elements in another shape, as `numpy.reshape` does."""
        return self._like(self.values.reshape(*shape))

    def astype(self, fmt: Format | str, rounding: str = "nearest_even", **options: Any) -> RoundedArray:
        """Return the numbers rounded into another format, see `array`."""
        return array(self, fmt, rounding, **options)

    def as_dtype(self) -> NDArray[Any]:
        """Return an array of the format's NumPy or ml_dtypes dtype; UnsupportedFormatError if none exists."""
        return as_dtype(encode(self.values, self.format), self.format)

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        """Return the values in the format's carrier, float32 or float64, which holds them exactly.

        NumPy converts to any other dtype; ValueError if an integer dtype cannot hold a number's whole part.
        """
        if dtype is not None and np.dtype(dtype).kind in "iu":
            check_integers(self.values, np.dtype(dtype))
        return np.array(self.values, dtype, copy=copy)

    def __dlpack__(self, **options: Any) -> Any:
        return np.array(self.values).__dlpack__(**options)  # a copy, as the receiver may write to it

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.values.__dlpack_device__()

    def __float__(self) -> float:
        check_processor()
        return float(self.values)

    def __int__(self) -> int:
        return int(self.values)

    def __bool__(self) -> bool:
        check_processor()
        return bool(self.values)

    def __repr__(self) -> str:
        shown = np.array2string(self.values, separator=", ", prefix="RoundedArray(")
        return f"RoundedArray({shown}, {self.format})"

    def __reduce__(self) -> Any:
        return RoundedArray, (np.array(self.values), self.arithmetic)

    def _like(self, values: ArrayLike) -> RoundedArray:
        return RoundedArray(np.asarray(values, self.arithmetic.carrier), self.arithmetic)

    def enter(self, x: Any, fmt: Format | None = None) -> RoundedArray:
        """Return numbers rounded once, by this array's rounding, into its format or another one."""
        ar = self.arithmetic
        if fmt not in (None, ar.format):
            ar = ar.like(fmt, ar.rounding)
        return _entered(x, ar)

    # -- operations ----------------------------------------------------------------------------------------
    # Arrays are immutable: ``a += b`` binds the name to a new array.
    __iadd__ = NDArrayOperatorsMixin.__add__
    __isub__ = NDArrayOperatorsMixin.__sub__
    __imul__ = NDArrayOperatorsMixin.__mul__
    __itruediv__ = NDArrayOperatorsMixin.__truediv__
    __imatmul__ = NDArrayOperatorsMixin.__matmul__

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        if method != "__call__" or options:
            raise TypeError(
                f"numpy.{ufunc.__name__} of rounded arrays takes no {', '.join(options) or method}"
            )
        check_processor()
        operands = [self._operand(x) for x in inputs]
        if ufunc is np.matmul:
            return self._product(*operands)
        if ufunc is np.square:
            return self._operate("mul", [operands[0], operands[0]])
        if ufunc is np.reciprocal:
            return self._operate("div", [1, operands[0]])
        if ufunc is np.positive:
            return self
        if ufunc is np.copysign:
            return self._signed(*operands)
        if ufunc in _EXACT:
            with np.errstate(invalid="ignore"):  # of signalling NaN
                return self.enter(ufunc(*operands))
        if ufunc in _QUESTIONS:
            return self._ask(ufunc, operands)
        if ufunc not in _OPERATIONS:
            known = ", ".join(
                sorted({known.__name__ for known in {*_OPERATIONS, *_EXACT, *_QUESTIONS, np.copysign}})
            )
            raise TypeError(f"numpy.{ufunc.__name__} is no operation of an arithmetic; there are {known}")
        return self._operate(_OPERATIONS[ufunc], operands)

    def __array_function__(self, function: Callable[..., Any], types: Any, args: Any, kwargs: Any) -> Any:
        check_processor()
        if function is np.where:
            return self._chosen(*args, **kwargs)
        if function not in _SHAPING | _LOCATING | REDUCTIONS.keys():
            raise TypeError(
                f"numpy.{function.__name__} takes no rounded arrays: it may round in an order of its own; "
                "write it with operators, use a sum of mcfsim.functions, or take the values: numpy.asarray(x)"
            )
        refuse_arguments(function, args, kwargs)
        if function in REDUCTIONS:
            return REDUCTIONS[function](*args, **kwargs)
        if function in (np.sort, np.argsort) and len(args) < 3 and "kind" not in kwargs:
            kwargs = {"stable": True, **kwargs}  # else the processor decides the order of zeros of both signs
        found = function(*map(self._given, args), **{k: self._given(x) for k, x in kwargs.items()})
        if function in _LOCATING:
            return found
        return type(found)(map(self._like, found)) if isinstance(found, list | tuple) else self._like(found)

    def _chosen(self, condition: Any, *given: Any) -> RoundedArray:
        """Return elements of either of two arrays or numbers, by truth values; numbers are rounded."""
        if isinstance(condition, RoundedArray) or len(given) != 2:
            raise TypeError("where takes truth values, and two arrays or numbers")
        return self._like(np.where(condition, *map(self._taken, given)))

    def _signed(self, size: Any, sign: Any) -> RoundedArray:
        """Return magnitudes with given signs; a number takes its sign before it is rounded."""
        minus = np.signbit(sign) if isinstance(sign, np.ndarray) else _is_minus(exact_or_binary64(sign))
        if isinstance(size, np.ndarray):
            return self.enter(np.copysign(size, np.where(minus, -1.0, 1.0).astype(size.dtype)))
        size = exact_or_binary64(size)
        size = -size if _is_minus(size) else size
        return self._chosen(minus, -size, size)

    def fma(self, factor: Any, addend: Any) -> RoundedArray:
        """Return ``self * factor + addend``, rounded once."""
        return self._operate("fma", [self.values, self._operand(factor), self._operand(addend)])

    def _operate(self, name: str, operands: list[Any]) -> RoundedArray:
        """Return the result of an operation; arrays without axes get one meanwhile, unlike plain numbers."""
        shape = np.broadcast_shapes(*(np.shape(x) for x in operands))
        taken = [np.atleast_1d(x) if isinstance(x, np.ndarray) else x for x in operands]
        return self._like(np.reshape(getattr(self.arithmetic, name)(*taken), shape))

    def _product(self, a: Any, b: Any) -> RoundedArray:
        if not all(isinstance(x, np.ndarray) for x in (a, b)):
            raise TypeError("@ takes two arrays")
        if not self.accumulates:
            return self._product_by_operations(a, b)
        unit = Accumulator(self.format, self.arithmetic.rounding, block=1, products="rounded")  # type: ignore[arg-type]
        return self._like(matmul(a, b, unit))

    @property
    def accumulates(self) -> bool:
        """Whether an `mcfsim.Accumulator`, which neither draws nor flushes, computes sums of products."""
        rounding = self.arithmetic.rounding
        return not (rounding.stochastic or rounding.underflow is Underflow.FLUSH_INPUTS)

    def _product_by_operations(self, a: NDArray[Any], b: NDArray[Any]) -> RoundedArray:
        """Return a matrix product operation by operation, for stochastic rounding or flushed operands."""
        shape = np.matmul(np.empty(a.shape, bool), np.empty(b.shape, bool)).shape  # or raise NumPy's error
        left = a[..., None, :] if a.ndim == 1 else a
        right = b[..., None] if b.ndim == 1 else b
        total = None
        for k in range(left.shape[-1]):
            term = self._operate("mul", [left[..., :, k, None], right[..., None, k, :]])
            total = term if total is None else self._operate("add", [total.values, term.values])
        return self.enter(np.zeros(shape)) if total is None else total.reshape(shape)

    def _ask(self, ufunc: np.ufunc, operands: list[Any]) -> Any:
        """Return truth values; a number is compared as it is, not rounded."""
        exact = [x if isinstance(x, np.ndarray) else exact_or_binary64(x) for x in operands]
        with np.errstate(invalid="ignore"):  # of signalling NaN
            if all(isinstance(x, np.ndarray) or nearest_binary64(x) == x or x != x for x in exact):
                return ufunc(*(x if isinstance(x, np.ndarray) else np.float64(float(x)) for x in exact))
            compare = np.frompyfunc(_COMPARISONS[ufunc], 2, 1)
            found = compare(*(x.astype(object) if isinstance(x, np.ndarray) else x for x in exact))
        return np.asarray(found, bool)

    def _operand(self, x: Any) -> Any:
        """Return the values of an array of the same arithmetic, or a number."""
        if isinstance(x, RoundedArray):
            ours, theirs = self.arithmetic, x.arithmetic
            if (ours.format, ours.rounding) != (theirs.format, theirs.rounding):
                raise TypeError(
                    f"{_described(ours)} and {_described(theirs)} do not mix; convert one of them by astype"
                )
            return x.values
        if isinstance(x, np.generic) and is_real(x.dtype):  # otherwise a time would be an integer
            x = x.item()
        if is_scalar(x):
            return x
        raise TypeError(
            f"a {type(x).__name__} does not mix with {_described(self.arithmetic)}; convert it by "
            "mcfsim.array(x, fmt)"
        )

    def _taken(self, x: Any) -> NDArray[Any]:
        """Return the values of an array of the same arithmetic, or of a number, which is rounded."""
        x = self._operand(x)
        return x if isinstance(x, np.ndarray) else self.enter(x).values

    def _given(self, part: Any) -> Any:
        """Return an argument of a function that moves elements, with the values of rounded arrays in it."""
        if isinstance(part, RoundedArray):
            return self._operand(part)
        if isinstance(part, list | tuple) and any(isinstance(x, RoundedArray) for x in part):
            return [self._taken(x) for x in part]
        return part


def _is_minus(x: Fraction | float) -> bool:
    return x < 0 if isinstance(x, Fraction) else math.copysign(1.0, x) < 0


def _described(ar: NumpyArithmetic) -> str:
    return f"an array of {ar.format}, {ar.rounding.mode}"
