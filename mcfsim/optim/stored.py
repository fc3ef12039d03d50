"""A tensor of an optimizer as it lies in memory, as data."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mcfsim.checks.arguments import check_int, whole_number
from mcfsim.formats import FORMATS, Format, get_format
from mcfsim.kernels.carriers import UnsupportedFormatError
from mcfsim.optim.weight_grid import WeightGrid
from mcfsim.rounding import Mode, Rounding, Rule, get_rounding
from mcfsim.scaled import ScaledFormat, ScaleRule, get_scaled_format
from mcfsim.scaled.quantisers import DynamicMap, Quantiser, RangeExpansion

#: Stands in a declaration for the low format that `strategy` puts in.
LOW = Format("low", precision=2, emin=0, emax=0)
FLOAT32 = FORMATS["float32"]
#: Bits of the longest remainder of a master copy: more say no more of a binary32 number.
_LONGEST_REMAINDER = 16
#: float8_e4m3fn in groups of 128 with a scale in float32, by which the largest becomes the format's.
FLOAT8_GROUPS = ScaledFormat(
    "float8_groups", element=FORMATS["float8_e4m3fn"], block=128, scale=FLOAT32, rule=ScaleRule.ABSMAX
)
#: Signed, and for what has no negative numbers, as bitsandbytes and torchao keep m and v.
DYNAMIC, DYNAMIC_UNSIGNED = DynamicMap("dynamic", signed=True), DynamicMap("dynamic_unsigned", signed=False)
#: float8_e4m3fn in groups of 128, of numbers whose range is expanded first.
EXPANDED = RangeExpansion("float8_expanded")


def is_open(fmt: Format | None) -> bool:
    """Whether a format is the one that stands for a low format not yet chosen."""
    return fmt is not None and (fmt, fmt.name) == (LOW, LOW.name)


@dataclass(frozen=True)
class Stored:
    """A tensor of the optimizer as it lies in memory.

    Parameters
    ----------
    format : Format or str or None
        Of each component, or its name; `LOW` for the strategy's low format, None for exact numbers.
    components : int, optional
        Numbers an element.
    rounding : Mode or str, optional
        Of the operations whose results it stores; by default that of the run.
    shared : bool, optional
        Whether the parameter holds the leading bits of these numbers, so that only the others are stored:
        for a master copy in binary32, beside a parameter that is its leading bits, rounded.
    scaled : ScaledFormat or Quantiser or str, optional
        For a moment that is computed in `format` and kept in a scaled format, or its name, or in another way
        of `mcfsim.scaled.quantisers`. After each step each tensor is quantised, to nearest even, and what
        comes of it rounded into `format`.
    random_bits : int, optional
        Bits of each random word that stochastic rounding of its own uses, 1 to 32; by default those of the
        run's rounding, 16 unless that says otherwise.
    rule : Rule or str, optional
        How they decide, see `mcfsim.rounding.Rule`; by default as in the run's rounding.
    remainder : int, optional
        For a master copy in binary32: how many bits are stored of it beside the parameter, which is the
        master copy rounded. They count its distance from the parameter in steps, of which half an ulp of the
        parameter has ``2**(remainder - 1) - 1``; what they do not say is lost (`mcfsim.optim.remainder`).
    grid : WeightGrid or str, optional
        For a parameter that is computed in `format` and lies on a grid, or the name of its integers. After
        each step each tensor is put on it, see `mcfsim.optim.on_grid`; an element takes the bits of its
        integer. Each tensor has a scale besides, which is not counted.

    Raises
    ------
    TypeError
        If a number is no int, the rounding no name, or `shared` no bool.
    ValueError
        If the format or the rounding is unknown, a number out of range, nothing is stored, random bits or
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
        if not isinstance(self.shared, bool):
            raise TypeError(f"shared must be True or False, not {self.shared!r}")
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
            check_int("remainder", self.remainder)
            if not 2 <= self.remainder <= _LONGEST_REMAINDER:
                raise ValueError(f"remainder = {self.remainder} must lie between 2 and {_LONGEST_REMAINDER}")
        if self.scaled is not None:
            if not isinstance(self.scaled, Quantiser):
                object.__setattr__(self, "scaled", get_scaled_format(self.scaled))
            if self.format is None or self.components != 1:
                raise ValueError(f"{self.scaled} keeps one number of a format an element")
        if self.grid is not None:
            if not isinstance(self.grid, WeightGrid):
                object.__setattr__(self, "grid", WeightGrid(self.grid))
            if self.format is None or self.components != 1:
                raise ValueError(f"weights on {self.grid.integers} are one number of a format an element")
            if not is_open(self.format):
                self.grid.check_in(self.format)

    def _check_randomness(self) -> None:
        given = {"random_bits": self.random_bits, "rule": self.rule}
        given = {name: value for name, value in given.items() if value is not None}
        if given and not self.draws:
            names = " and ".join(given)
            raise ValueError(
                f"{names}: only rounding 'stochastic' of its own has them, not {self.rounding!s}"
            )
        found = Rounding(Mode.STOCHASTIC, **given)  # type: ignore[arg-type]  # which checks them
        if self.rule is not None:
            object.__setattr__(self, "rule", found.rule)

    def rounded(self, policy: Rounding) -> Rounding:
        """Return how its operations round in a run of a rounding, whose policies they take."""
        own = {"mode": self.rounding, "random_bits": self.random_bits, "rule": self.rule}
        return replace(policy, **{name: value for name, value in own.items() if value is not None})  # type: ignore[arg-type]

    @property
    def draws(self) -> bool:
        """Whether its operations round at random, or its way to a grid, whatever those of the run do."""
        return self.rounding is Mode.STOCHASTIC or (self.grid is not None and self.grid.draws)

    @property
    def bits(self) -> int | None:
        """Bits of an element's numbers; None for exact ones. `LOW` has none yet, and raises ValueError."""
        if is_open(self.format):
            raise ValueError("the low format is still open; strategy(..., 'bfloat16') puts one in")
        return None if self.format is None else self.format.bits * self.components


#: What is kept of a tensor unless a strategy says otherwise.
ONE_LOW = Stored(LOW)


def check_shared(name: str, parameter: Stored, master: Stored) -> None:
    """Raise unless a parameter, rounded as it is, leaves of its master copy the low bits alone.

    Raises
    ------
    ValueError
        If it is rounded in another way.
    UnsupportedFormatError
        If the formats, so far as they are settled, have other exponents.
    """
    if parameter.rounding not in (Mode.NEAREST_AWAY, Mode.TOWARD_ZERO):
        raise ValueError(
            f"{name}: a parameter that shares bits with its master copy rounds nearest_away or toward_zero, "
            f"which change these bits by one or not at all; not {parameter.rounding!s}"
        )
    low = parameter.format
    if low is None or is_open(low) or is_open(master.format):
        return
    leading = low == replace(FLOAT32, name=low.name, precision=low.precision)
    if master.format != FLOAT32 or not leading or low.precision >= FLOAT32.precision:
        raise UnsupportedFormatError(
            f"{name}: the codes of {low} are not the leading bits of those of {master.format}; a master copy "
            "in float32 shares bits with a parameter of 8 exponent bits, as bfloat16"
        )


def check_remainder(name: str, parameter: Stored, master: Stored) -> None:
    """Raise unless a master copy may be kept as a remainder beside a parameter.

    Raises
    ------
    ValueError
        If it shares bits with the parameter as well.
    UnsupportedFormatError
        If the formats, so far as they are settled, are no floats, or not float32 and a lower one.
    """
    if master.shared:
        raise ValueError(f"{name}: a master copy shares bits with the parameter or has a remainder, not both")
    low = parameter.format
    if low is None or is_open(low) or is_open(master.format):
        return
    floating = type(low) is Format and low.signed and low.zero
    within = low.precision < FLOAT32.precision and low.emin >= FLOAT32.emin and low.emax <= FLOAT32.emax
    if master.format != FLOAT32 or not (floating and within):
        raise UnsupportedFormatError(
            f"{name}: a remainder is what a float with sign and zero, lower than float32, leaves of a master "
            f"copy in float32; not {low} of {master.format}"
        )
