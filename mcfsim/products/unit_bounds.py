"""Proved properties of matrix units that align products: bounds on errors of sums, and monotonicity."""

from __future__ import annotations

from fractions import Fraction

from mcfsim.checks import check_int
from mcfsim.products.units import Unit, UnitSums, get_unit
from mcfsim.rounding import Mode

#: Unit roundoff of binary32, in which promoted sums are added.
_BINARY32 = Fraction(1, 1 << 24)


def _aligned(spec: Unit | str) -> tuple[Unit, int]:
    """Return a unit and its fraction bits, or raise if nothing is proved of it."""
    unit = get_unit(spec)
    if unit.sums is not UnitSums.ALIGNED or unit.scales:
        kind = "scaled" if unit.scales else str(unit.sums)
        raise ValueError(f"{unit} is {kind}: bounds are proved for {UnitSums.ALIGNED!s} sums without scales")
    assert unit.fraction_bits is not None
    return unit, unit.fraction_bits


def _product_bits(unit: Unit) -> int:
    """Return the largest number of bits of a product below its exponent."""
    return 2 * (max(fmt.precision for fmt in unit.inputs) - 1)


def error_bound(
    unit: Unit | str, length: int, *, addend: bool = False, promote_every: int | None = None
) -> Fraction:
    """Return a bound on the error of a dot product by a unit, relative to the sum of its terms' magnitudes.

    ``|dot(a, b, c) - (c + sum a_i b_i)| <= bound * (|c| + sum |a_i b_i|)``, in which a subnormal number
    counts as the smallest normal one of its sign.

    Parameters
    ----------
    unit : Unit or str
        It sums as `UnitSums.ALIGNED` says, and takes no scales.
    length : int
        The number of products.
    addend : bool, optional
        Whether there is an addend c other than zero.
    promote_every : int, optional
        As `dot` takes it.

    Returns
    -------
    Fraction
        It grows like the number of groups, or of those between promotions.

    Raises
    ------
    TypeError
        If a number is not an int.
    ValueError
        If a number is out of range, or nothing is proved of the unit.

    Notes
    -----
    The bound assumes that nothing is NaN or infinite or overflows, that no result but zero is subnormal, and
    that in each group the largest exponent is that of a term which is not zero. With FP16, FP8 and smaller
    inputs, and float32 or 14 bits as the output, only overflow and an addend below 2^-100 can violate that.
    If the unit cuts off lower bits of operands, the bound is for the operands without them.

    In a group let E be the largest exponent, ``q = 2**(E - fraction_bits)`` and L the number of terms with
    bits below q. Each loses less than q. The rest is a multiple of q, so that cutting it to the output loses
    at most ``ulp(D) - q``. Hence ``|D - sum| < (L - 1) q + ulp(D)`` if L > 0 and ``q <= ulp(D)``; always,
    ``|D - sum| <= L q + max(0, ulp(D) - q)``. With rounding to nearest, the last part is ``ulp / 2``. A term
    with the exponent E has no bit below q where fraction_bits allow it: then L is at most the number of the
    others. Both q and ulp(D) are small beside M, the sum of magnitudes: ``2**E <= M`` and ``|D| <= M``.
    Errors of groups add up. With c, or the carried sum, among the terms, cut sums never exceed M.

    Examples
    --------
    >>> float(error_bound("hopper_fp16", 16, addend=True)) * 2**23
    4.75
    >>> float(error_bound("hopper_fp8", 4096)), float(error_bound("hopper_fp8", 4096, promote_every=128))
    (0.4998779296875, 0.015504806078610787)
    """
    unit, bits = _aligned(unit)
    check_int("length", length, 0)
    if promote_every is not None:
        unit.check_parts(promote_every)
        parts = -(-length // promote_every)
        within = error_bound(unit, min(length, promote_every))
        # Parts are added to the first of them, and c comes last.
        return (1 + within) * (1 + _BINARY32) ** (max(parts - 1, 0) + addend) - 1
    cut = unit.rounding is Mode.TOWARD_ZERO
    kept, last, groups = _product_bits(unit), Fraction(1, 1 << bits), -(-length // unit.k)
    if addend and not groups:  # C alone is cut, too, if it has more bits
        groups = int(unit.added.precision > min(unit.output.precision, bits + 1))
    grows = 1 if cut else 1 + Fraction(1, 1 << unit.output.precision)

    def of_group(products: int, carried: int | None) -> Fraction:
        """Return the bound for one group; `carried` is the precision of what it carries."""
        terms = products + (carried is not None)
        top = max(kept, (carried or 1) - 1)
        losing = terms if bits < top else terms - 1
        ulp = Fraction(2, 1 << unit.output.precision)
        rounding = (max(ulp - last, Fraction(0)) if losing else ulp) if cut else ulp / 2
        return losing * last + rounding

    if not groups:
        return Fraction(0)
    found = of_group(min(length, unit.k), unit.added.precision if addend else None)
    if groups > 1:
        carried, last_group = unit.output.precision, length - unit.k * (groups - 1)
        found += (groups - 2) * of_group(unit.k, carried) + of_group(last_group, carried)
    return found * grows ** (groups - 1)


def is_monotone(unit: Unit | str, of: str) -> bool:
    """Return whether the result of a group provably never decreases when one of its terms grows.

    Parameters
    ----------
    unit : Unit or str
        It sums as `UnitSums.ALIGNED` says, and takes no scales.
    of : {"factors", "addend"}
        What grows: a factor whose other factor is positive, or C.

    Raises
    ------
    ValueError
        If `of` is something else, or nothing is proved of the unit.

    Notes
    -----
    Let x grow to the next number of its format, and its term raise E; q is the quantum after that, and s the
    number of a term's bits below its exponent. The term then grows by at least ``2**(E - 1 - s)``, and by
    twice that if x was zero. The k other terms lose at most ``q / 2`` each, and less than q if x was zero. So
    the sum does not fall if ``2**(fraction_bits - s) >= k``. Where x is negative, or E falls, the same goes
    backwards. Rounding is monotone.

    If it is False, a counterexample exists, provided that the formats have the numbers for it and that no
    rounding hides it. All of NVIDIA's units that align products are monotone in factors. Only those that
    carry float16 are monotone in C, except those of Ada and Hopper in FP8. Without that, dot products of
    several groups are not monotone in factors either.

    Examples
    --------
    >>> is_monotone("hopper_fp16", "factors"), is_monotone("hopper_fp16", "addend")
    (True, False)
    """
    unit, bits = _aligned(unit)
    if of not in ("factors", "addend"):
        raise ValueError(f"of = {of!r} must be 'factors' or 'addend'")
    below = _product_bits(unit) if of == "factors" else unit.added.precision - 1
    return bits >= below and 1 << (bits - below) >= unit.k
