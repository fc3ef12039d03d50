"""How the numbers in an algorithm scale with its operands, found by running it on powers of two.

An algorithm is homogeneous if it only adds numbers that scale alike. If operand i is then multiplied by
``2**k[i]``, each number in it is multiplied by ``2**(d . k)``, as long as nothing overflows or underflows;
each number has its own vector d of degrees. Bounds on the size of each number tell where it could overflow
or underflow. If all operands are multiplied by one power, there is only one degree.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from mcfsim.checks import Opaque
from mcfsim.formats import Format
from mcfsim.protocol import Forwarding
from mcfsim.rounding import Rounding
from mcfsim.theorems.operands import OperandSpec

#: The exponent of a last bit that may lie anywhere.
_ANYWHERE = -(1 << 20)


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
    low, top, unit : int
        Its magnitude is zero, or from ``2**low`` to ``2**top``; it is a multiple of ``2**unit``. If several
        operands have one degree in all, low and unit are relative to the smallest, top to the largest.
    exact : int
        The value of `unit` before rounding.
    format, rounding : Format, Rounding
        The format to which it was rounded, and how.
    zero : bool
        Whether it is the constant 0, which scales as anything does.
    """

    degrees: tuple[Fraction, ...]
    signs: tuple[bool, ...]
    low: int
    top: int
    unit: int
    format: Format
    rounding: Rounding
    exact: int = _ANYWHERE
    zero: bool = False

    @property
    def odd(self) -> bool:
        """Whether negating all operands negates it."""
        return sum(self.signs) % 2 == 1

    @property
    def safe_from(self) -> int:
        """The least exponent at which it does not underflow, or is exact if it does."""
        quantum = self.format.emin - self.format.precision + 1
        return min(quantum - self.exact, self.format.emin - self.low)

    @property
    def safe_to(self) -> int:
        """The largest exponent at which it does not overflow."""
        return self.format.emax - self.top


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
    odd : bool
        Whether, so far, negating all operands always negates a number or leaves it as it is.
    odd_in_each : bool
        Whether the same holds for every single operand.
    """

    format: Format
    rounding: Rounding
    operands: int
    common: bool
    quantities: list[Quantity] = field(default_factory=list)
    odd: bool = True
    odd_in_each: bool = True
    _root: Scales | None = None

    def like(self, fmt: Format, rounding: Rounding) -> Scales:
        """Return the same for another format; it records what it computes here, too."""
        root = self._root or self
        return Scales(fmt, rounding, self.operands, self.common, self.quantities, _root=root)

    def operand(self, index: int, degree: int = 1) -> Quantity:
        """Return operand number `index`, a normal number."""
        among = range(1 if self.common else self.operands)
        degrees = tuple(Fraction(degree * (self.common or i == index)) for i in among)
        signs = tuple(i == index for i in range(self.operands))
        return Quantity(degrees, signs, 0, 1, 1 - self.format.precision, self.format, self.rounding)

    def add(self, a: Any, b: Any) -> Quantity:
        """Return ``a + b``."""
        return self._sum("add", self._taken(a), self._taken(b))

    def sub(self, a: Any, b: Any) -> Quantity:
        """Return ``a - b``."""
        return self._sum("sub", self._taken(a), self._taken(b))

    def mul(self, a: Any, b: Any) -> Quantity:
        """Return ``a * b``."""
        return self._rounded(self._product(self._taken(a), self._taken(b)))

    def fma(self, a: Any, b: Any, c: Any) -> Quantity:
        """Return ``a * b + c``."""
        return self._sum("fma", self._product(self._taken(a), self._taken(b)), self._taken(c))

    def div(self, a: Any, b: Any) -> Quantity:
        """Return ``a / b``."""
        y = self._taken(b)
        inverse = replace(
            y, degrees=tuple(-degree for degree in y.degrees), low=-y.top, top=-y.low, zero=False
        )
        return self._rounded(replace(self._product(self._taken(a), inverse), unit=_ANYWHERE))

    def sqrt(self, a: Any) -> Quantity:
        """Return the square root."""
        x = self._taken(a)
        self._asymmetric(x.odd, any(x.signs))
        degrees = tuple(degree / 2 for degree in x.degrees)
        if any(degree.denominator > 1 for degree in degrees):
            raise NotHomogeneousError(f"sqrt takes the root of {_described(x)}, by an odd power of two")
        signs = (False,) * self.operands
        return self._rounded(
            replace(x, degrees=degrees, signs=signs, low=x.low // 2, top=-(-x.top // 2), unit=_ANYWHERE)
        )

    def neg(self, a: Any) -> Quantity:
        """Return ``-a``."""
        return self._rounded(self._taken(a))

    def abs(self, a: Any) -> Quantity:
        """Return ``|a|``."""
        return self._rounded(replace(self._taken(a), signs=(False,) * self.operands))

    def sign(self, a: Any) -> Quantity:
        """Return the sign of ``a``, which has degree 0."""
        return self._rounded(replace(self._taken(1), signs=self._taken(a).signs))

    def round(self, x: Any) -> Quantity:
        """Return x rounded into the format."""
        return self._rounded(self._taken(x))

    def _operate(self, name: str, *operands: Any) -> Quantity:
        """Refuse elementary functions, which no power of two scales, and selections."""
        raise NotHomogeneousError(f"{name} is no operation that powers of two scale")

    def evaluate(self, function: Callable[..., Any], /, *operands: Any, **options: Any) -> Any:
        """Return ``function(self, *operands, **options)``."""
        return function(self, *operands, **options)

    def _taken(self, x: Any) -> Quantity:
        """Return a quantity as it is, or a constant as a quantity."""
        if isinstance(x, Quantity):
            return x
        value = abs(Fraction(x))
        nothing = tuple(0 * d for d in self.operand(0).degrees), (False,) * self.operands
        if not value:
            return Quantity(*nothing, 0, 0, 0, self.format, self.rounding, zero=True)
        n, d = value.numerator, value.denominator
        low = n.bit_length() - d.bit_length()
        low -= value < Fraction(2) ** low
        unit = (n & -n).bit_length() - d.bit_length() if d & (d - 1) == 0 else _ANYWHERE
        return Quantity(*nothing, low, low + 1, unit, self.format, self.rounding)

    def _product(self, x: Quantity, y: Quantity) -> Quantity:
        return replace(
            x,
            degrees=tuple(p + q for p, q in zip(x.degrees, y.degrees, strict=True)),
            signs=tuple(p != q for p, q in zip(x.signs, y.signs, strict=True)),
            low=x.low + y.low,
            top=x.top + y.top,
            unit=max(x.unit + y.unit, _ANYWHERE),
            zero=x.zero or y.zero,
        )

    def _sum(self, operation: str, x: Quantity, y: Quantity) -> Quantity:
        if x.zero or y.zero:
            return self._rounded(y if x.zero else x)
        if x.degrees != y.degrees:
            raise NotHomogeneousError(
                f"{operation} combines {_described(x)} with {_described(y)}, which scales differently"
            )
        self._asymmetric(x.odd != y.odd, x.signs != y.signs)
        unit = min(x.unit, y.unit)
        return self._rounded(replace(x, low=unit, top=max(x.top, y.top) + 1, unit=unit))

    def _asymmetric(self, throughout: bool, somewhere: bool) -> None:
        root = self._root or self
        root.odd &= not throughout
        root.odd_in_each &= not (throughout or somewhere)

    def _rounded(self, x: Quantity) -> Quantity:
        """Round a quantity into the format, record it, and return it."""
        unit = max(x.unit, x.low - self.format.precision + 1)
        found = replace(x, unit=unit, exact=x.unit, format=self.format, rounding=self.rounding)
        if not found.zero:
            self.quantities.append(found)
        return found


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
        low = replace(high, low=_ANYWHERE, unit=_ANYWHERE)
        taken.append(high if operand.kind == "value" else (high, *[low] * (operand.components - 1)))
    try:
        algorithm(scales, *taken)
    except NotHomogeneousError:
        raise
    except Exception:  # an algorithm may do anything with a quantity, which is no block
        return None
    return scales


def _described(x: Quantity) -> str:
    degrees = ", ".join(str(degree) for degree in x.degrees)
    return f"a number of degree ({degrees}) in the operands"
