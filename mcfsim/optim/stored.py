"""Storage of an optimizer's tensors, as data: formats, scaled formats, remainders, and grids of weights."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from mcfsim.checks import check_flag, check_int, chosen, whole_number
from mcfsim.formats import FORMATS, Format, get_format
from mcfsim.formats.grids import Grid, grid
from mcfsim.kernels.carriers import UnsupportedFormatError
from mcfsim.rounding import NEAREST, Mode, Rounding, Rule, get_rounding
from mcfsim.scaled import ScaledFormat, ScaleRule, get_scaled_format
from mcfsim.scaled.quantisers import DynamicMap, Quantiser, RangeExpansion

# -- grids of weights -------------------------------------------------------------------------------------
#: Number of random bits that round a weight, and number of bits of its fraction that count.
RANDOM_BITS = 32
_AT_RANDOM = Rounding(Mode.STOCHASTIC, random_bits=RANDOM_BITS)


class Reach(StrEnum):
    """The number that a grid's largest integer Q stands for; a tensor's scale is ``s = RN(Q / RN(reach))``.

    ``max``: the largest weight before the step, as in the code of Zhao et al. This is not a magnitude: if no
    weight is positive, s is negative or infinite. ``absmax``: the largest magnitude before the step.
    ``absmean``: the mean magnitude of the numbers that are put on the grid, at least 1e-5; their sum is
    exact, and their mean is rounded once. ``fixed``: the reach at the start.

    At the start, there are no weights before a step: the first two then use the weights at the start.

    References
    ----------
    Zhao et al., Direct quantized training of language models, arXiv 2412.04787, 2024.
    """

    MAX = "max"
    ABSMAX = "absmax"
    ABSMEAN = "absmean"
    FIXED = "fixed"


@dataclass(frozen=True)
class WeightGrid:
    """A grid of weights: the numbers ``RN(k / s)`` of a tensor, with integers k and a scale s.

    A number W is put on the grid as ``RN(k / s)``, where k is ``RN(W s)``, clipped to the integers' ends and
    rounded to an integer. RN is to nearest even in the parameter's format.

    Parameters
    ----------
    integers : Grid or str
        The integers k, or their name, such as ``"ternary"`` or ``"int8"``.
    reach : Reach or str, optional
        The reach that gives s in each step; by default as published.
    start : Reach or str, optional
        The reach that gives s at the start, where numbers are rounded to nearest even.
    rounding : Rounding or str, optional
        The rounding to an integer in steps. By default stochastic: k is the integer above with probability
        equal to the fraction of ``RN(W s)``, as far as 32 bits resolve it. The published code draws 24 bits.

    Raises
    ------
    TypeError
        If the integers are not a grid.
    ValueError
        If a name is unknown, the integers have fraction bits, or `start` is ``fixed``.
    """

    integers: Grid
    reach: Reach = Reach.MAX
    start: Reach = Reach.ABSMEAN
    rounding: Rounding = _AT_RANDOM

    def __post_init__(self) -> None:
        if isinstance(self.integers, str):
            object.__setattr__(self, "integers", grid(self.integers))
        if not isinstance(self.integers, Grid):
            raise TypeError(f"weights lie on integers, such as 'int8' or 'ternary', not on {self.integers!r}")
        if self.integers.fraction_bits:
            raise ValueError(f"weights lie on integers, and {self.integers} has fractions of them")
        for label in ("reach", "start"):
            object.__setattr__(self, label, chosen(label, getattr(self, label), Reach))
        if self.start is Reach.FIXED:
            raise ValueError("a grid's reach at the start follows from its weights, and is not 'fixed'")
        if not isinstance(self.rounding, Rounding):
            object.__setattr__(self, "rounding", Rounding(self.rounding, random_bits=RANDOM_BITS))

    @property
    def draws(self) -> bool:
        """Whether weights are put on the grid by stochastic rounding."""
        return self.rounding.stochastic

    def check_in(self, fmt: Format) -> None:
        """Raise ValueError unless a format is floating-point, has NaN, and holds the grid's integers.

        Parameters
        ----------
        fmt : Format
            The format of the parameter.
        """
        if type(fmt) is not Format or not fmt.has_nan:
            raise ValueError(f"weights on a grid are numbers of a floating-point format with NaN, not {fmt}")
        most = max(-self.integers.low, self.integers.high)
        if not (fmt.signed and most <= 2**fmt.precision and most <= fmt.max and fmt.smallest_subnormal <= 1):
            raise ValueError(f"{fmt} does not hold the integers of {self.integers}")


# -- tensors ----------------------------------------------------------------------------------------------
#: Placeholder in a declaration for the low format that `strategy` puts in.
LOW = Format("low", precision=2, emin=0, emax=0)
FLOAT32 = FORMATS["float32"]
#: Longest remainder of a master copy, in bits: more bits add nothing for a binary32 number.
_LONGEST_REMAINDER = 16
#: float8_e4m3fn in groups of 128 with a float32 scale that maps the largest to the format's largest number.
FLOAT8_GROUPS = ScaledFormat(
    "float8_groups", element=FORMATS["float8_e4m3fn"], block=128, scale=FLOAT32, rule=ScaleRule.ABSMAX
)
#: Signed, and for nonnegative numbers, as bitsandbytes and torchao keep m and v.
DYNAMIC, DYNAMIC_UNSIGNED = DynamicMap("dynamic", signed=True), DynamicMap("dynamic_unsigned", signed=False)
#: float8_e4m3fn in groups of 128, after an expansion of the range of the numbers.
EXPANDED = RangeExpansion("float8_expanded")


def is_open(fmt: Format | None) -> bool:
    """Return whether a format is `LOW`, which stands for a low format not yet chosen."""
    return fmt is not None and (fmt, fmt.name) == (LOW, LOW.name)


@dataclass(frozen=True)
class Stored:
    """The way in which a tensor of the optimizer is stored.

    Parameters
    ----------
    format : Format or str or None
        The format of each component, or its name; `LOW` for the low format, None for exact numbers.
    components : int, optional
        Number of components of an element.
    rounding : Mode or str, optional
        Rounding of the operations whose results the tensor stores; by default that of the run.
    shared : bool, optional
        Whether the parameter holds the leading bits of these numbers, so that only the other bits are stored.
        It is for a master copy in binary32 whose leading bits, rounded, are the parameter.
    scaled : ScaledFormat or Quantiser or str, optional
        For a moment that is computed in `format`: the scaled format, its name, or the quantiser of
        `mcfsim.scaled.quantisers` in which it is kept. After each step, each tensor is quantised, to nearest
        even, and the quantised numbers are rounded into `format`.
    random_bits : int, optional
        Bits of each random word for a stochastic rounding of its own, 1 to 32; by default those of the run's
        rounding, which are 16 unless it says otherwise.
    rule : Rule or str, optional
        How random bits decide, see `mcfsim.rounding.Rule`; by default as in the run's rounding.
    remainder : int, optional
        For a master copy in binary32: how many bits of it are stored beside the parameter, which is the
        rounded master copy. They count its distance from the parameter in steps; half an ulp of the parameter
        is ``2**(remainder - 1) - 1`` steps. Anything finer is lost (`mcfsim.optim.state`). The parameter
        is rounded to nearest, whatever the rounding of the run.
    grid : WeightGrid or str, optional
        For a parameter that is computed in `format`: the grid on which it lies, or the name of its integers.
        After each step, each tensor is put on its grid, see `mcfsim.optim.on_grid`. An element takes the bits
        of its integer. The scale of each tensor is not counted.

    Raises
    ------
    TypeError
        If a number is not an int, the rounding is not a name, or `shared` is not a bool.
    ValueError
        If the format or the rounding is unknown, a number is out of range, nothing is stored, random bits or
        their rule are given without stochastic rounding, or the format does not hold a grid.
    """

    format: Format | None
    components: int = 1
    rounding: Mode | None = None
    shared: bool = False
    scaled: ScaledFormat | Quantiser | None = None
    random_bits: int | None = None
    rule: Rule | None = None
    remainder: int | None = None
    grid: WeightGrid | None = None

    def __post_init__(self) -> None:
        check_flag("shared", self.shared)
        object.__setattr__(self, "components", whole_number("components", self.components, least=1))
        if self.format is not None:
            object.__setattr__(self, "format", get_format(self.format))
        if self.rounding is not None:
            if not isinstance(self.rounding, str):
                raise TypeError(f"the rounding of a tensor is the name of a mode, not {self.rounding!r}")
            object.__setattr__(self, "rounding", get_rounding(self.rounding).mode)
            if self.format is None:
                raise ValueError(f"exact numbers are not rounded, and take no rounding {self.rounding!s}")
        self._check_randomness()
        if self.remainder is not None:
            check_int("remainder", self.remainder, 2, _LONGEST_REMAINDER)
        if self.scaled is not None:
            if not isinstance(self.scaled, Quantiser):
                object.__setattr__(self, "scaled", get_scaled_format(self.scaled))
                _check_moments(self.scaled)
            if self.format is None or self.components != 1:
                raise ValueError(f"{self.scaled} keeps one number of a format per element")
        if self.grid is not None:
            if not isinstance(self.grid, WeightGrid):
                object.__setattr__(self, "grid", WeightGrid(self.grid))
            if self.format is None or self.components != 1:
                raise ValueError(f"weights on {self.grid.integers} are one number of a format per element")
            if not is_open(self.format):
                self.grid.check_in(self.format)

    def _check_randomness(self) -> None:
        given = {"random_bits": self.random_bits, "rule": self.rule}
        given = {name: value for name, value in given.items() if value is not None}
        if given and not self.draws:
            names = " and ".join(given)
            raise ValueError(
                f"{names}: only a rounding of its own that is 'stochastic' has them, not {self.rounding!s}"
            )
        found = Rounding(Mode.STOCHASTIC, **given)  # type: ignore[arg-type]  # which checks them
        if self.rule is not None:
            object.__setattr__(self, "rule", found.rule)

    def rounded(self, policy: Rounding) -> Rounding:
        """Return how operations on the tensor round in a run, given the run's rounding and policies."""
        own = {"mode": self.rounding, "random_bits": self.random_bits, "rule": self.rule}
        return replace(policy, **{name: value for name, value in own.items() if value is not None})  # type: ignore[arg-type]

    @property
    def draws(self) -> bool:
        """Whether its operations, or its grid, round at random, whatever the run's rounding."""
        return self.rounding is Mode.STOCHASTIC or (self.grid is not None and self.grid.draws)

    @property
    def bits(self) -> int | None:
        """Number of bits of an element; None for exact numbers. `LOW` has none yet, and raises ValueError."""
        if is_open(self.format):
            raise ValueError("the low format is still open; strategy(..., 'bfloat16') puts one in")
        return None if self.format is None else self.format.bits * self.components


def _check_moments(kept: ScaledFormat) -> None:
    """Raise ValueError unless moments, vectors of any float dtype, can be kept in a scaled format."""
    if isinstance(kept.block, tuple):
        raise ValueError(f"{kept} has tiles of a matrix; moments are kept in blocks of neighbours")
    if kept.rule.in_binary32:
        allowed = ", ".join(rule for rule in ScaleRule if not rule.in_binary32)
        raise ValueError(f"{kept}: rule '{kept.rule}' is for operands of products; moments take {allowed}")


#: How a tensor is stored unless a strategy says otherwise.
ONE_LOW = Stored(LOW)


def check_shared(name: str, parameter: Stored, master: Stored) -> None:
    """Raise an error unless a parameter can hold the leading bits of its master copy.

    Raises
    ------
    ValueError
        If the parameter's rounding does not allow it.
    UnsupportedFormatError
        If the formats are settled, but are not float32 and a shorter format with the same exponents.
    """
    if parameter.rounding not in (Mode.NEAREST_AWAY, Mode.TOWARD_ZERO):
        raise ValueError(
            f"{name}: a parameter that shares bits with its master copy rounds nearest_away or toward_zero, "
            f"which change these bits by one or not at all, not {parameter.rounding!s}"
        )
    low = parameter.format
    if low is None or is_open(low) or is_open(master.format):
        return
    leading = low == replace(FLOAT32, name=low.name, precision=low.precision)
    if master.format != FLOAT32 or not leading or low.precision >= FLOAT32.precision:
        raise UnsupportedFormatError(
            f"{name}: the codes of {low} are not the leading bits of those of {master.format}; a master copy "
            "in float32 shares bits with a parameter of 8 exponent bits, such as bfloat16"
        )


def check_remainder(name: str, parameter: Stored, master: Stored) -> None:
    """Raise an error unless a master copy can be kept as a remainder beside a parameter.

    Raises
    ------
    ValueError
        If it also shares bits with the parameter, or the parameter's own rounding is not to nearest.
    UnsupportedFormatError
        If the formats are settled, but are not floats, or not float32 and a lower format.
    """
    if master.shared:
        raise ValueError(f"{name}: a master copy shares bits with the parameter or has a remainder, not both")
    if parameter.rounding is not None and parameter.rounding not in NEAREST:
        raise ValueError(
            f"{name}: a remainder reaches half an ulp of the parameter, which must round to nearest, not "
            f"{parameter.rounding!s}"
        )
    low = parameter.format
    if low is None or is_open(low) or is_open(master.format):
        return
    floating = type(low) is Format and low.signed and low.zero
    within = low.precision < FLOAT32.precision and low.emin >= FLOAT32.emin and low.emax <= FLOAT32.emax
    if master.format != FLOAT32 or not (floating and within):
        raise UnsupportedFormatError(
            f"{name}: a remainder needs a parameter in a float format lower than float32, with sign and "
            f"zero, and a master copy in float32; not {low} and {master.format}"
        )
