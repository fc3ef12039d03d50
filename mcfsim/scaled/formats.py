"""Scaled formats, whose elements share scales: their fields, their rules, and a table of named ones."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from enum import StrEnum
from fractions import Fraction
from types import MappingProxyType
from typing import Literal

import numpy as np

from mcfsim.checks import chosen, hint
from mcfsim.formats import FORMATS, Format, Posit, get_format
from mcfsim.formats.floating import floor_log2
from mcfsim.formats.grids import Grid, grid
from mcfsim.formats.named import RELATED
from mcfsim.kernels.carriers import UnsupportedFormatError, carrier_of

#: Elements, and products of block and tensor scales, lie between 2 to this power and its inverse.
_RANGE = 200


class ScaleRule(StrEnum):
    """A rule that gives the scale of a block from its elements; M is the largest number of their format.

    Three rules give powers of two from ``amax = max |x|``. A scale beyond the range of the scale format is
    replaced by the nearest one within it; a block of zeros has the smallest scale:

    ``floor``: ``2**(floor(log2(amax)) - floor(log2(M)))``, which lets elements overflow (OCP MX v1.0, 6.3).
    ``round_up``: the smallest scale with ``amax / scale <= M``, so no element does (Mishra et al. 2025).
    ``even``: ``floor``, with amax first rounded to the precision of M, ties to even.

    Three rules give real numbers, rounded once to nearest even in the scale format. A number beyond its
    largest becomes the largest; in a format without zero a number below its smallest becomes the smallest:

    ``absmax``: ``amax / M``.
    ``absmean``: ``max(mean |x|, 1e-5) / M`` (Zhao et al. 2024).
    ``max``: ``max(x) / M``, an error in a block without positive numbers (the update of Zhao et al. 2024).

    References
    ----------
    Open Compute Project, OCP microscaling formats (MX) specification, version 1.0, 2023.
    Mishra, Stosic, Layton, Micikevicius, Recipes for pre-training LLMs with MXFP8, arXiv 2506.08027, 2025.
    Zhao et al., Direct quantized training of language models, arXiv 2412.04787, 2024.
    """

    FLOOR = "floor"
    ROUND_UP = "round_up"
    EVEN = "even"
    ABSMAX = "absmax"
    ABSMEAN = "absmean"
    MAX = "max"


@dataclass(frozen=True)
class ScaledFormat:
    """A format of elements that share scales: ``x = element * scale``, or ``element * scale * tensor_scale``.

    Parameters
    ----------
    name : str
        A label, ignored by comparison and hashing.
    element : Format or Grid or str
        The format of the elements, or its name. Posits are refused: their products with scales have no
        format.
    block : int or "axis" or None
        How many neighbours along an axis share a scale; the last block may have fewer. ``"axis"``: all of
        them; None: all elements of the tensor.
    scale : Format or str
        The floating-point format of the scales, or its name. It has NaN; its sign is not used.
    rule : {"floor", "round_up", "even", "absmax", "absmean", "max"}
        The default rule, see `ScaleRule`.
    tensor_scale : Format or str, optional
        The format of a second scale that all blocks share: ``amax / (M S)`` rounded to nearest even, where S
        is the largest number of `scale`. The scale of a block is then ``amax / (M tensor_scale)``, and the
        rule must be ``absmax``.

    Raises
    ------
    TypeError
        If a field is of the wrong type.
    ValueError
        If the block is empty, a format's name or the rule is unknown, the rule does not go with a tensor
        scale, or scales have no NaN.
    UnsupportedFormatError
        If the products of elements and scales are not all numbers of float64, or a format's range is too
        wide for quotients to be exact.

    Examples
    --------
    >>> SCALED["nvfp4"].bits_per_element
    Fraction(9, 2)
    """

    name: str = field(compare=False)
    _: KW_ONLY
    element: Format
    block: int | Literal["axis"] | None
    scale: Format
    rule: ScaleRule
    tensor_scale: Format | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise TypeError(f"name must be a string, not {self.name!r}")
        for label in ("element", "scale", "tensor_scale"):
            if isinstance(getattr(self, label), str):
                object.__setattr__(self, label, get_format(getattr(self, label)))
        if type(self.element) not in (Format, Grid):
            raise TypeError(f"element must be a floating-point format or a grid, not {_kind(self.element)}")
        scales = [self.scale] if self.tensor_scale is None else [self.scale, self.tensor_scale]
        for label, scale in zip(("scale", "tensor_scale"), scales, strict=False):
            if type(scale) is not Format:
                raise TypeError(f"{label} must be a floating-point format, not {_kind(scale)}")
            if not scale.has_nan:
                raise ValueError(f"{scale} has no NaN, and so no scale for a block that holds one")
        if self.block not in (None, "axis"):
            if not isinstance(self.block, int) or isinstance(self.block, bool):
                raise TypeError(f"block must be an int, 'axis' or None, not {self.block!r}")
            if self.block < 1:
                raise ValueError(f"block = {self.block}: at least 1 element is needed")
        object.__setattr__(self, "rule", chosen("rule", self.rule, ScaleRule))
        if self.tensor_scale is not None and self.rule is not ScaleRule.ABSMAX:
            raise ValueError(f"rule {self.rule!s} goes with no tensor scale; only 'absmax' does")
        self._check_exactness(scales)

    def _check_exactness(self, scales: list[Format]) -> None:
        try:
            carrier_of(self.values)
        except UnsupportedFormatError:
            raise UnsupportedFormatError(
                f"{self}: not every product of an element and its scale ({self.values.precision} bits) is a "
                "number of float64"
            ) from None
        for parts in ([self.element], scales):
            low = sum(map(_low_exponent, parts))
            high = sum(floor_log2(part.max) for part in parts)
            if low < -_RANGE or high >= _RANGE:
                raise UnsupportedFormatError(
                    f"{self}: numbers of {', '.join(map(str, parts))} leave 2**-{_RANGE} ... 2**{_RANGE}, "
                    "between which quotients are exact"
                )

    def __str__(self) -> str:
        return self.name

    def with_rule(self, rule: ScaleRule | str) -> ScaledFormat:
        """Return the format with another default rule."""
        return replace(self, rule=rule)  # type: ignore[arg-type]  # a name becomes a rule in the making

    # -- what the fields imply -------------------------------------------------------------------------
    @property
    def bits_per_element(self) -> Fraction:
        """Bits of an element plus its share of the scale of a full block of fixed size, exactly."""
        shared = Fraction(self.scale.bits, self.block) if isinstance(self.block, int) else 0
        return self.element.bits + Fraction(shared)

    @property
    def values(self) -> Format:
        """A floating-point format that contains all products of elements and scales."""
        parts = [self.element, self.scale, *([self.tensor_scale] if self.tensor_scale else [])]
        precision = max(sum(part.precision for part in parts), 2)
        largest = math.prod((max(part.max, -part.lowest) for part in parts), start=Fraction(1))
        emin = sum(map(_low_exponent, parts)) + precision - 1
        return Format(precision=precision, emin=emin, emax=max(floor_log2(largest), emin))

    @property
    def carrier(self) -> np.dtype[np.floating]:
        """The dtype of dequantised numbers: float32 if it holds all of them, else float64."""
        return carrier_of(self.values)

    @property
    def top_precision(self) -> int:
        """Significand bits of the element format at its largest number."""
        quanta = self.element.max / self.element.smallest_subnormal
        return min(self.element.precision, int(quanta).bit_length())


def _kind(given: object) -> str:
    """Describe what was given in place of a format of the right kind."""
    kinds = {Posit: "the posit format", Grid: "the grid", Format: "the format"}
    return f"{kinds[type(given)]} {given}" if type(given) in kinds else repr(given)


def _low_exponent(fmt: Format) -> int:
    """Return the exponent of the smallest positive number, a power of two."""
    return floor_log2(fmt.smallest_subnormal)


def _mx(name: str, element: Format) -> ScaledFormat:
    return ScaledFormat(
        name, element=element, block=32, scale=FORMATS["float8_e8m0fnu"], rule=ScaleRule.FLOOR
    )


def _integers(name: str, rule: ScaleRule) -> ScaledFormat:
    return ScaledFormat(name, element=grid(name), block=None, scale=FORMATS["float32"], rule=rule)


_ALL = (
    _mx("mxfp8_e4m3", FORMATS["float8_e4m3fn"]),
    _mx("mxfp8_e5m2", FORMATS["float8_e5m2"]),
    _mx("mxfp6_e3m2", FORMATS["float6_e3m2fn"]),
    _mx("mxfp6_e2m3", FORMATS["float6_e2m3fn"]),
    _mx("mxfp4", FORMATS["float4_e2m1fn"]),
    _mx("mxint8", Grid("int8_fraction6", low=-128, high=127, fraction_bits=6)),
    ScaledFormat(
        "nvfp4",
        element=FORMATS["float4_e2m1fn"],
        block=16,
        scale=FORMATS["float8_e4m3fn"],
        rule=ScaleRule.ABSMAX,
        tensor_scale=FORMATS["float32"],
    ),
    _integers("ternary", ScaleRule.ABSMEAN),
    *(_integers(f"int{bits}", ScaleRule.ABSMAX) for bits in range(2, 9)),
)

#: The named scaled formats: the concrete formats of OCP MX, NVIDIA's NVFP4, integers with a scale per tensor.
SCALED: Mapping[str, ScaledFormat] = MappingProxyType({item.name: item for item in _ALL})

RELATED.update(
    (name, f"a scaled format, of numbers that share scales: use mcfsim.quantize(x, {name!r})")
    for name in SCALED
    if not name.startswith(("int", "ternary"))  # there are formats of these names, too
)


def get_scaled_format(spec: ScaledFormat | str) -> ScaledFormat:
    """Return the scaled format with a name of `SCALED`; return a `ScaledFormat` unchanged.

    Raises
    ------
    ValueError
        If the name is unknown; the message lists the known ones.
    """
    if isinstance(spec, ScaledFormat):
        return spec
    text = str(spec)
    key = text.strip().lower() if text.isascii() else ""
    if key in SCALED:
        return SCALED[key]
    try:
        meant = f": it is a format of single numbers, {get_format(key)}, for mcfsim.round_to"
    except ValueError:
        meant = hint(text.strip().lower(), SCALED)
    raise ValueError(f"unknown scaled format {spec!r}{meant}; known: {', '.join(SCALED)}")


# -- the table --------------------------------------------------------------------------------------------
def scaled_table(formats: Iterable[ScaledFormat] | None = None) -> list[dict[str, str]]:
    """Return a table with one row of text per scaled format.

    Parameters
    ----------
    formats : iterable of ScaledFormat, optional
        Default: all of `SCALED`.
    """
    return [
        {
            "format": item.name,
            "element": item.element.name,
            "block": "tensor" if item.block is None else str(item.block),
            "scale": item.scale.name,
            "tensor scale": item.tensor_scale.name if item.tensor_scale else "none",
            "rule": str(item.rule),
            "bits an element": f"{float(item.bits_per_element):g}",
            "dequantised": str(item.carrier),
        }
        for item in (SCALED.values() if formats is None else formats)
    ]
