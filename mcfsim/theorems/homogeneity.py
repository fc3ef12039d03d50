"""How the numbers in an algorithm scale with its operands, found by running it on powers of two.

An algorithm is homogeneous if it only adds numbers that scale alike. If operand i is then multiplied by
``2**k[i]``, each number in it is multiplied by ``2**(d . k)``, as long as nothing overflows or underflows;
each number has its own vector d of degrees. Bounds on the size of each number tell where it could overflow
or underflow. If a number is near a sum of multiples of operands, as the errors in 2Sum are near zero, these
multiples are known. If all operands are multiplied by one power, there is only one degree.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from mcfsim.checks import Opaque
from mcfsim.compile.program import flat
from mcfsim.formats import Format
from mcfsim.formats.floating import floor_log2
from mcfsim.protocol import Forwarding
from mcfsim.rounding import Mode, Rounding, Underflow
from mcfsim.theorems.operands import OperandSpec

#: The exponent of a last bit that may lie anywhere.
_ANYWHERE = -(1 << 15)


class NotHomogeneousError(ValueError):
    """Raised if an algorithm combines numbers that scale differently."""


@dataclass(frozen=True, eq=False)
class Quantity(Opaque):
    """A number in an algorithm, relative to ``2**(degrees . exponents)`` of the operands.

    Attributes
    ----------
    degrees : tuple of Fraction
        The degree in each operand, or the one degree in all.
    signs : tuple of bool
        For each operand, whether negating it negates the number.
    low, unit : int
        Its magnitude is zero or at least ``2**low``; it is a multiple of ``2**unit``.
    most : Fraction
        Its magnitude is no larger. If several operands have one degree in all, `low` and `unit` are relative
        to the smallest operand, and `most` to the largest.
    exact, before : int and Fraction
        The values of `unit` and `most` before rounding.
    format, rounding : Format, Rounding
        The format to which it was rounded, and how.
    near : tuple of Fraction, optional
        Multiples of the operands; the number is no farther from their sum than `off`, relative to the
        largest operand.
    constant : Fraction, optional
        The number, if it is the same for all operands; 0 scales as anything does.
    nonzero : bool, optional
        Whether only underflow can make it zero; operands are not zero.
    """

    degrees: tuple[Fraction, ...]
    signs: tuple[bool, ...]
    low: int
    most: Fraction
    unit: int
    format: Format
    rounding: Rounding
    exact: int = _ANYWHERE
    before: Fraction = Fraction(0)
    near: tuple[Fraction, ...] | None = None
    off: Fraction = Fraction(0)
    constant: Fraction | None = None
    nonzero: bool = False

    @property
    def zero(self) -> bool:
        """Whether it is the constant 0."""
        return self.constant == 0

    @property
    def top(self) -> int:
        """The least integer such that it is at most ``2**top`` in magnitude."""
        return -floor_log2(1 / self.most)

    @property
    def odd(self) -> bool:
        """Whether negating all operands negates it."""
        return sum(self.signs) % 2 == 1

    @property
    def safe_from(self) -> int:
        """The least exponent at which it does not underflow, or is exact if it does."""
        fmt, normal = self.format, self.format.emin - self.low
        if self.rounding.underflow is not Underflow.GRADUAL:
            return normal
        return min(fmt.emin - fmt.precision + 1 - self.exact, normal)

    @property
    def safe_to(self) -> int:
        """The largest exponent at which it does not overflow."""
        return floor_log2(Fraction(self.format.max) / self.before)


@dataclass
class Scales(Forwarding):
    """An `mcfsim.protocol.Arithmetic` on quantities; each stands for all numbers of its range.

    Attributes
    ----------
    format, rounding : Format, Rounding
    operands : int
        Number of operands.
    common : bool
        Whether all are multiplied by one power of two.
    quantities : list of Quantity
        All computed numbers, without the operands.
    results : tuple of Quantity
        The results of the algorithm.
    odd : bool
        Whether, so far, negating all operands always negates a number or leaves it as it is.
    odd_in_each : bool
        Whether the same holds for every single operand.
    divides_by_sums : bool
        Whether a divisor may be a zero whose sign does not depend on those of the operands: a sum that
        cancels, or a number that underflows in a format with a single zero.
    """

    format: Format
    rounding: Rounding
    operands: int
    common: bool
    quantities: list[Quantity] = field(default_factory=list)
    results: tuple[Quantity, ...] = ()
    odd: bool = True
    odd_in_each: bool = True
    divides_by_sums: bool = False
    _root: Scales | None = None

    def like(self, fmt: Format, rounding: Rounding) -> Scales:
        """Return the arithmetic of another format, which adds its numbers to the same records.

        Raises
        ------
        ValueError
            If the format is not a floating-point format with sign and zero.
        """
        if not (type(fmt) is Format and fmt.signed and fmt.zero):
            raise ValueError(f"how numbers of {fmt} scale is not known")
        root = self._root or self
        if rounding.mode in (Mode.UP, Mode.DOWN):
            root.odd = root.odd_in_each = False
        return Scales(fmt, rounding, self.operands, self.common, self.quantities, _root=root)

    def operand(self, index: int, degree: int = 1) -> Quantity:
        """Return operand number `index`, a normal number."""
        among = range(1 if self.common else self.operands)
        degrees = tuple(Fraction(degree * (self.common or i == index)) for i in among)
        one = tuple(i == index for i in range(self.operands))
        unit = 1 - (self._root or self).format.precision
        most = 2 - Fraction(2) ** unit
        near = tuple(map(Fraction, one)) if degree == 1 else None
        return Quantity(
            degrees, one, 0, most, unit, self.format, self.rounding, unit, most, near, nonzero=True
        )

    def add(self, a: Any, b: Any) -> Quantity:
        """Return ``a + b``."""
        return self._sum("add", self._taken(a), self._taken(b))

    def sub(self, a: Any, b: Any) -> Quantity:
        """Return ``a - b``."""
        return self._sum("sub", self._taken(a), negated(self._taken(b)))

    def mul(self, a: Any, b: Any) -> Quantity:
        """Return ``a * b``."""
        return self._rounded(self.product(self._taken(a), self._taken(b)))

    def fma(self, a: Any, b: Any, c: Any) -> Quantity:
        """Return ``a * b + c``."""
        return self._sum("fma", self.product(self._taken(a), self._taken(b)), self._taken(c))

    def div(self, a: Any, b: Any) -> Quantity:
        """Return ``a / b``."""
        y = self._taken(b)
        if y.constant:
            return self._rounded(self.product(self._taken(a), self.number(1 / y.constant)))
        underflows = not y.format.has_negative_zero and any(y is x for x in self.quantities)
        (self._root or self).divides_by_sums |= underflows or not y.nonzero
        degrees, most = tuple(-degree for degree in y.degrees), 1 / Fraction(2) ** y.low
        inverse = replace(_apart(y, degrees=degrees, low=-y.top, most=most), constant=None)
        return self._rounded(replace(self.product(self._taken(a), inverse), unit=_ANYWHERE))

    def sqrt(self, a: Any) -> Quantity:
        """Return the square root."""
        x = self._taken(a)
        self._asymmetric(x.odd, any(x.signs))
        degrees = tuple(degree / 2 for degree in x.degrees)
        if any(degree.denominator > 1 for degree in degrees):
            raise NotHomogeneousError(f"sqrt takes the root of {_described(x)}, by an odd power of two")
        signs = (False,) * self.operands
        most = Fraction(2) ** -(-x.top // 2)
        known = {"degrees": degrees, "signs": signs, "low": x.low // 2, "most": most, "unit": _ANYWHERE}
        return self._rounded(_apart(x, **known))

    def neg(self, a: Any) -> Quantity:
        """Return ``-a``."""
        return self._rounded(negated(self._taken(a)), exact=isinstance(a, Quantity))

    def abs(self, a: Any) -> Quantity:
        """Return ``|a|``."""
        x = _apart(self._taken(a), signs=(False,) * self.operands)
        return self._rounded(x, exact=isinstance(a, Quantity))

    def sign(self, a: Any) -> Quantity:
        """Return the sign of ``a``, which has degree 0."""
        x = self._taken(a)
        return self._rounded(_apart(self._taken(1), signs=x.signs, nonzero=x.nonzero))

    def round(self, x: Any) -> Quantity:
        """Return x rounded into the format."""
        return self._rounded(self._taken(x))

    def _operate(self, name: str, *operands: Any) -> Quantity:
        """Refuse selections, and elementary functions, which do not scale by powers of two."""
        raise NotHomogeneousError(f"{name} is no operation that powers of two scale")

    def _taken(self, x: Any) -> Quantity:
        return x if isinstance(x, Quantity) else self.number(x)

    def number(self, x: Any) -> Quantity:
        """Return a constant as a quantity."""
        number = Fraction(x)
        value, nothing = abs(number), tuple(0 * d for d in self.operand(0).degrees)
        n, d = value.numerator, value.denominator
        low = floor_log2(value) if value else 0
        unit = (n & -n).bit_length() - d.bit_length() if d & (d - 1) == 0 else _ANYWHERE
        signs = (False,) * self.operands
        most = value or Fraction(1)
        found = Quantity(nothing, signs, low, most, unit, self.format, self.rounding, constant=number)
        return replace(found, nonzero=number != 0)

    def product(self, x: Quantity, y: Quantity) -> Quantity:
        """Return the exact product."""
        factor, other = (x, y) if x.constant is not None else (y, x)
        near, off, c = None, Fraction(0), factor.constant
        if c is not None and other.near is not None:
            near, off = tuple(c * part for part in other.near), abs(c) * other.off
        zero = x.zero or y.zero
        return replace(
            x,
            degrees=tuple(p + q for p, q in zip(x.degrees, y.degrees, strict=True)),
            signs=tuple(p != q for p, q in zip(x.signs, y.signs, strict=True)),
            low=x.low + y.low,
            most=x.most * y.most,
            unit=max(x.unit + y.unit, _ANYWHERE),
            near=near,
            off=off,
            constant=Fraction(0) if zero else None,
            nonzero=x.nonzero and y.nonzero,
        )

    def sum(self, operation: str, x: Quantity, y: Quantity) -> Quantity:
        """Return the exact sum; refuse numbers that scale differently."""
        if x.zero or y.zero:
            return y if x.zero else x
        if x.degrees != y.degrees:
            raise NotHomogeneousError(
                f"{operation} combines {_described(x)} with {_described(y)}, which scales differently"
            )
        self._asymmetric(x.odd != y.odd, x.signs != y.signs)
        unit, most, near, off = min(x.unit, y.unit), x.most + y.most, None, x.off + y.off
        if x.near is not None and y.near is not None:
            near = tuple(p + q for p, q in zip(x.near, y.near, strict=True))
            most = min(most, self._most(near, off))
        known: dict[str, Any] = {"near": near, "off": off, "constant": None, "nonzero": False}
        return replace(x, low=unit, most=most, unit=unit, **known)

    def _most(self, near: tuple[Fraction, ...], off: Fraction) -> Fraction:
        """Return a bound on a number near a sum of multiples of operands; for zero, any bound."""
        return sum(map(abs, near), Fraction(0)) * self.operand(0).most + off or Fraction(1)

    def _sum(self, operation: str, x: Quantity, y: Quantity) -> Quantity:
        return self._rounded(self.sum(operation, x, y))

    def _asymmetric(self, throughout: bool, somewhere: bool) -> None:
        root = self._root or self
        root.odd &= not throughout
        root.odd_in_each &= not (throughout or somewhere)

    def _rounded(self, x: Quantity, *, exact: bool = False) -> Quantity:
        """Round a quantity into the format, unless it is a value of it, record it, and return it."""
        p, fmt, most, off = self.format.precision, self.format, x.most, x.off
        if not (exact and x.format == fmt):
            step = Fraction(2) ** (floor_log2(most) - p + 1)
            most, off = -(-most // step) * step, off + step
        if x.near is None:  # rounded to a power of two, the bound holds for numbers that underflow, too
            most = Fraction(2) ** -floor_log2(1 / most)
        else:
            most = min(most, self._most(x.near, off))
        known = replace(x, unit=max(x.unit, x.low - p + 1), most=most, off=off)
        known = replace(known, constant=Fraction(0) if x.zero else None)
        found = replace(known, exact=x.unit, before=x.most, format=fmt, rounding=self.rounding)
        if not found.zero:
            self.quantities.append(found)
        return found


def _apart(x: Quantity, **changes: Any) -> Quantity:
    """Return a changed quantity, near no known multiples of operands, and constant only if it is zero."""
    return replace(x, near=None, off=Fraction(0), constant=Fraction(0) if x.zero else None, **changes)


def negated(x: Quantity) -> Quantity:
    """Return the negative of a quantity."""
    near = None if x.near is None else tuple(-part for part in x.near)
    return replace(x, near=near, constant=None if x.constant is None else -x.constant)


def scales_of(
    algorithm: Callable[..., Any],
    operands: tuple[OperandSpec, ...],
    fmt: Format,
    rounding: Rounding,
    *,
    common: bool = False,
    degree: int = 1,
) -> Scales | None:
    """Run an algorithm on quantities; return None if it does anything but operations of its arithmetic.

    Parameters
    ----------
    algorithm, operands, fmt, rounding
        Those of a `mcfsim.theorems.Theorem`, and the arithmetic it is tried in.
    common : bool, optional
        Whether all operands are multiplied by one power of two.
    degree : int, optional
        The degree of each operand: 2 if operands are multiplied by powers of four.

    Raises
    ------
    NotHomogeneousError
        If the algorithm combines numbers that scale differently.
    """
    scales = Scales(fmt, rounding, len(operands), common)
    taken: list[Any] = []
    for i, operand in enumerate(operands):
        high = scales.operand(i, degree)
        # A low word may lie arbitrarily deep.
        low = replace(high, low=_ANYWHERE, unit=_ANYWHERE, near=None)
        taken.append(high if operand.kind == "value" else (high, *[low] * (operand.components - 1)))
    try:
        scales.results = tuple(map(scales._taken, flat(algorithm(scales, *taken))))
    except NotHomogeneousError:
        raise
    except Exception:  # an algorithm may do anything with a quantity, which is not a block
        return None
    return scales


def _described(x: Quantity) -> str:
    degrees = ", ".join(str(degree) for degree in x.degrees)
    return f"a number of degree ({degrees}) in the operands"
