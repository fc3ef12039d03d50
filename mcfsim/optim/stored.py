"""A tensor of an optimizer as it lies in memory, as data."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mcfsim.checks.arguments import whole_number
from mcfsim.formats import FORMATS, Format, get_format
from mcfsim.kernels.carriers import UnsupportedFormatError
from mcfsim.optim.weight_grid import WeightGrid
from mcfsim.rounding import Mode, get_rounding
from mcfsim.scaled import ScaledFormat, ScaleRule, get_scaled_format

#: Stands in a declaration for the low format that `strategy` puts in.
LOW = Format("low", precision=2, emin=0, emax=0)
FLOAT32 = FORMATS["float32"]
#: float8_e4m3fn in groups of 128 with a scale in float32, by which the largest becomes the format's.
FLOAT8_GROUPS = ScaledFormat(
    "float8_groups", element=FORMATS["float8_e4m3fn"], block=128, scale=FLOAT32, rule=ScaleRule.ABSMAX
)


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
    scaled : ScaledFormat or str, optional
        For a moment that is computed in `format` and kept in a scaled format, or its name. After each step
        each tensor is quantised, to nearest even, and what comes of it rounded into `format`.
    grid : WeightGrid or str, optional
        For a parameter that is computed in `format` and lies on a grid, or the name of its integers. After
        each step each tensor is put on it, see `mcfsim.optim.on_grid`; an element takes the bits of its
        integer. Each tensor has a scale besides, which is not counted.

    Raises
    ------
    TypeError
        If `components` is no int, the rounding no name, or `shared` no bool.
    ValueError
        If the format or the rounding is unknown, or nothing is stored, or the format does not hold a grid.
    """

    format: Format | None
    components: int = 1
    rounding: Mode | None = None
    shared: bool = False
    scaled: ScaledFormat | None = None
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
        if self.scaled is not None:
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
