"""Scaled formats, whose elements share scales: their fields, their rules, and a table of named ones."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from fractions import Fraction
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from mcfsim.checks import chosen, hint, whole_number
from mcfsim.formats import FORMATS, Format, Posit, get_format
from mcfsim.formats.floating import floor_log2
from mcfsim.formats.grids import Grid
from mcfsim.formats.named import RELATED
from mcfsim.kernels.carriers import FLOAT32, UnsupportedFormatError, carrier_of, holds
from mcfsim.scaled.scale_rules import ScaleRule

#: Elements, and products of block and tensor scales, lie between 2 to this power and its inverse.
_RANGE = 200
_E8M0, _FLOAT32 = FORMATS["float8_e8m0fnu"], FORMATS["float32"]
#: Four Over Six's stand-in for the largest scale: 1.5 times it is a number of float8_e4m3fn, too.
SMALLER_TOP = 256
#: The formats in which some rules keep their scales, and the range of largest elements for which these, and
#: their inverses, are in binary32.
_KEPT: Mapping[ScaleRule, tuple[tuple[Format, ...], Fraction, Fraction]] = {
    ScaleRule.CURRENT: ((_FLOAT32,), Fraction(3, 2), _FLOAT32.max),
    ScaleRule.FLOOR_POWER: ((_FLOAT32, _E8M0), Fraction(4), _FLOAT32.max),
    ScaleRule.DEEPSEEK: ((_FLOAT32,), Fraction(1), Fraction(2**112)),
    ScaleRule.DEEPSEEK_POWER: ((_FLOAT32, _E8M0), Fraction(2), Fraction(2**112)),
    ScaleRule.QUARTET: ((_E8M0,), Fraction(0), _FLOAT32.max),
}


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
    block : int or (int, int) or "axis" or None
        How many neighbours along an axis share a scale; the last block may have fewer. Two numbers: rows and
        columns of a tile over the last two axes; tiles at the ends may be smaller. ``"axis"``: all along an
        axis; None: all elements of the tensor.
    scale : Format or str
        The floating-point format of the scales, or its name. It has NaN; its sign is not used.
    rule : ScaleRule or str
        The default rule, or its name.
    tensor_scale : Format or str, optional
        The format of a second scale that all blocks share. With the rule ``absmax`` it is ``amax / (M S)``
        rounded to nearest even, where S is the largest number of `scale`, and the scale of a block is ``amax
        / (M tensor_scale)``; other rules define both themselves. Some rules need a tensor scale, most take
        none.
    group : int, optional
        For the rule ``eden``, which needs it: how many neighbours share a correction, a multiple of `block`.

    Raises
    ------
    TypeError
        If a field is of the wrong type.
    ValueError
        If the block is empty, a format's name or the rule is unknown, the rule does not go with a tensor
        scale, scales have no NaN, or elements neither NaN nor zero.
    UnsupportedFormatError
        If the products of elements and scales are not all numbers of float64, a format's range is too wide
        for quotients to be exact, or a rule that computes in binary32 would leave its range.

    Examples
    --------
    >>> SCALED["nvfp4"].bits_per_element
    Fraction(9, 2)
    """

    name: str = field(compare=False)
    _: KW_ONLY
    element: Format
    block: int | tuple[int, int] | Literal["axis"] | None
    scale: Format
    rule: ScaleRule
    tensor_scale: Format | None = None
    group: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise TypeError(f"name must be a string, not {self.name!r}")
        for label in ("element", "scale", "tensor_scale"):
            if isinstance(getattr(self, label), str):
                object.__setattr__(self, label, get_format(getattr(self, label)))
        if type(self.element) not in (Format, Grid):
            raise TypeError(f"element must be a floating-point format or a grid, not {_kind(self.element)}")
        if not (self.element.has_nan or self.element.zero):
            raise ValueError(f"{self.element} has neither NaN nor zero, and so no element in place of a NaN")
        for label, scale in zip(("scale", "tensor_scale"), self.scales, strict=False):
            if type(scale) is not Format:
                raise TypeError(f"{label} must be a floating-point format, not {_kind(scale)}")
            if not scale.has_nan:
                raise ValueError(f"{scale} has no NaN, and so no scale for a block that holds one")
        self._check_block()
        object.__setattr__(self, "rule", chosen("rule", self.rule, ScaleRule))
        needed, given = self.rule.tensor_scale, self.tensor_scale is not None
        if needed is not None and needed is not given:
            every = ", ".join(repr(str(x)) for x in ScaleRule if x.tensor_scale in (given, None))
            with_or = "a" if given else "no"
            verb = "takes no" if given else "needs a"
            raise ValueError(
                f"rule '{self.rule}' {verb} tensor scale; rules with {with_or} tensor scale: {every}"
            )
        if self.rule is ScaleRule.EDEN or self.group is not None:
            self._check_group()
        if not self.rule.exact:
            self._check_binary32()
        self._check_exactness()

    def _check_block(self) -> None:
        block = self.block
        if block is None or (isinstance(block, str) and block == "axis"):
            return
        if isinstance(block, list | tuple):
            if len(block) != 2:
                raise ValueError(f"block = {block!r}: a tile has rows and columns, two numbers")
            object.__setattr__(self, "block", tuple(block))
        for size in block if isinstance(block, list | tuple) else [block]:
            if not isinstance(size, int) or isinstance(size, bool):
                raise TypeError(f"block must be an int, two of them, 'axis' or None, not {block!r}")
            if size < 1:
                raise ValueError(f"block = {block!r}: at least 1 element is needed")

    def _check_group(self) -> None:
        if self.rule is not ScaleRule.EDEN:
            raise ValueError(f"group = {self.group!r} is for rule 'eden', not '{self.rule}'")
        if not isinstance(self.block, int):
            raise ValueError(f"rule 'eden' needs blocks along an axis, an int, not {self.block!r}")
        if self.group is None:
            raise ValueError("rule 'eden' needs group=..., how many neighbours share a correction")
        group = whole_number("group", self.group, least=1)
        if group % self.block:
            raise ValueError(f"group = {group} must be a multiple of block = {self.block}")
        object.__setattr__(self, "group", group)

    def _check_binary32(self) -> None:
        """Raise UnsupportedFormatError unless a rule that computes in binary32 can."""
        named = f"rule '{self.rule}' computes in binary32"
        if not holds(FLOAT32, self.element):
            raise UnsupportedFormatError(f"{named}, which does not hold elements of {self.element}")
        if self.tensor_scale not in (None, _FLOAT32):
            raise UnsupportedFormatError(f"{named}: its tensor scale is float32, not {self.tensor_scale}")
        if self.rule in _KEPT:
            kept, least, most = _KEPT[self.rule]
            if self.scale not in kept:
                allowed = " or ".join(map(str, kept))
                raise UnsupportedFormatError(f"{named}: its scales are {allowed}, not {self.scale}")
        elif holds(FLOAT32, self.scale) and self.scale.zero:
            whole = self.rule in (ScaleRule.TORCHAO, ScaleRule.TRANSFORMER_ENGINE)
            times = self.scale.max if whole else SMALLER_TOP
            least, most = Fraction(0), _FLOAT32.max / (times if self.tensor_scale else 1)
        else:
            raise UnsupportedFormatError(
                f"{named}, and rounds scales to a format with zero, not {self.scale}"
            )
        if not least <= self.element.max <= most:
            raise UnsupportedFormatError(
                f"{named}, which has its scales if the largest element lies from {float(least):g} to "
                f"{float(most):g}; that of {self.element} is {float(self.element.max):g}"
            )

    def _check_exactness(self) -> None:
        try:
            carrier_of(self.values)
        except UnsupportedFormatError:
            raise UnsupportedFormatError(
                f"{self}: not every product of an element and its scale ({self.values.precision} bits) is a "
                "number of float64"
            ) from None
        for parts in ([self.element], self.scales) if self.rule.exact else ():
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
        group = self.group if rule == ScaleRule.EDEN else None
        return replace(self, rule=rule, group=group)  # type: ignore[arg-type]  # a name becomes a rule

    # -- what the fields imply -------------------------------------------------------------------------
    @property
    def bits_per_element(self) -> Fraction:
        """Bits of an element plus its share of the scale of a full block of fixed size, exactly."""
        size = self.block_size
        return self.element.bits + (Fraction(self.scale.bits, size) if size else Fraction(0))

    @property
    def block_size(self) -> int | None:
        """How many elements share a scale, if the format says how many."""
        if isinstance(self.block, tuple):
            return math.prod(self.block)
        return self.block if isinstance(self.block, int) else None

    @property
    def scales(self) -> list[Format]:
        """The formats of scales: that of blocks and, if there is one, that of the tensor."""
        return [self.scale] if self.tensor_scale is None else [self.scale, self.tensor_scale]

    @property
    def values(self) -> Format:
        """A floating-point format that contains all products of elements and scales."""
        return _products([self.element, *self.scales])

    @property
    def block_values(self) -> Format:
        """A floating-point format that contains all products of elements and scales of blocks."""
        return _products([self.element, self.scale])

    @property
    def carrier(self) -> np.dtype[np.floating]:
        """The dtype of dequantised numbers: float32 if it holds all of them, else float64."""
        return carrier_of(self.values)

    @property
    def top_precision(self) -> int:
        """Significand bits of the element format at its largest number."""
        quanta = self.element.max / self.element.smallest_subnormal
        return min(self.element.precision, int(quanta).bit_length())


def _products(parts: list[Format]) -> Format:
    """Return a floating-point format that contains all products of numbers of several formats."""
    precision = max(sum(part.precision for part in parts), 2)
    largest = math.prod((max(part.max, -part.lowest) for part in parts), start=Fraction(1))
    emin = sum(map(_low_exponent, parts)) + precision - 1
    return Format(precision=precision, emin=emin, emax=max(floor_log2(largest), emin))


def _kind(given: object) -> str:
    """Describe what was given in place of a format of the right kind."""
    kinds = {Posit: "the posit format", Grid: "the grid", Format: "the format"}
    return f"{kinds[type(given)]} {given}" if type(given) in kinds else repr(given)


def _low_exponent(fmt: Format) -> int:
    """Return the exponent of the smallest positive number, a power of two."""
    return floor_log2(fmt.smallest_subnormal)


def _mx(name: str, element: Any) -> ScaledFormat:
    return ScaledFormat(name, element=element, block=32, scale=_E8M0, rule=ScaleRule.FLOOR)


def _by_float32(name: str, element: Any, block: Any, rule: ScaleRule) -> ScaledFormat:
    return ScaledFormat(name, element=element, block=block, scale=_FLOAT32, rule=rule)


_NVFP4 = ScaledFormat(
    "nvfp4",
    element=FORMATS["float4_e2m1fn"],
    block=16,
    scale=FORMATS["float8_e4m3fn"],
    rule=ScaleRule.ABSMAX,
    tensor_scale=_FLOAT32,
)

_ALL = (
    _mx("mxfp8_e4m3", "float8_e4m3fn"),
    _mx("mxfp8_e5m2", "float8_e5m2"),
    _mx("mxfp6_e3m2", "float6_e3m2fn"),
    _mx("mxfp6_e2m3", "float6_e2m3fn"),
    _mx("mxfp4", "float4_e2m1fn"),
    _mx("mxint8", Grid("int8_fraction6", low=-128, high=127, fraction_bits=6)),
    _NVFP4,
    replace(_NVFP4, name="nvfp4_16x16", block=(16, 16)),
    replace(_NVFP4, name="nvfp4_eden", rule=ScaleRule.EDEN, group=128),
    replace(_mx("mxfp4_quartet", "float4_e2m1fn"), rule=ScaleRule.QUARTET, tensor_scale=_FLOAT32),
    _by_float32("fp8_e4m3_tensor", "float8_e4m3fn", None, ScaleRule.CURRENT),
    _by_float32("fp8_e5m2_tensor", "float8_e5m2", None, ScaleRule.CURRENT),
    _by_float32("fp8_e4m3_rows", "float8_e4m3fn", "axis", ScaleRule.CURRENT),
    _by_float32("fp8_e4m3_1x128", "float8_e4m3fn", 128, ScaleRule.FLOOR_POWER),
    _by_float32("fp8_e4m3_128x128", "float8_e4m3fn", (128, 128), ScaleRule.FLOOR_POWER),
    _by_float32("ternary", "ternary", None, ScaleRule.ABSMEAN),
    *(_by_float32(f"int{bits}", f"int{bits}", None, ScaleRule.ABSMAX) for bits in range(2, 9)),
)

#: The named scaled formats: the concrete formats of OCP MX, NVIDIA's NVFP4 with rows of 16 or tiles, what
#: Quartet and Quartet II store, FP8 by tensor, row, block and tile, integers with a scale per tensor.
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
def _block_text(block: int | tuple[int, int] | str | None) -> str:
    if isinstance(block, tuple):
        return "x".join(map(str, block))
    return "tensor" if block is None else str(block)


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
            "block": _block_text(item.block),
            "scale": item.scale.name,
            "tensor scale": item.tensor_scale.name if item.tensor_scale else "none",
            "rule": str(item.rule),
            "bits an element": f"{float(item.bits_per_element):g}",
            "dequantised": str(item.carrier),
        }
        for item in (SCALED.values() if formats is None else formats)
    ]
