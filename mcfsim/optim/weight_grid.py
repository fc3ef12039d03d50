"""A grid of weights as data: the integers that a weight may be, and how far they reach."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from mcfsim.checks.names import hint
from mcfsim.formats import Format
from mcfsim.formats.grids import Grid, grid
from mcfsim.rounding import Mode, Rounding

#: Bits of a random word by which a weight goes up: so many of its fraction count.
RANDOM_BITS = 32
_AT_RANDOM = Rounding(Mode.STOCHASTIC, random_bits=RANDOM_BITS)


class Reach(StrEnum):
    """What the largest integer Q of a grid stands for; a tensor's scale is ``s = RN(Q / RN(reach))``.

    ``max``: the largest weight before the step, as the code of Zhao et al. has it. It is no magnitude: where
    no weight is positive s is negative or infinite. ``absmax``: the largest magnitude before the step.
    ``absmean``: the mean magnitude of the numbers that are put on the grid, at least 1e-5: their sum is
    exact, and their mean rounded once. ``fixed``: what it was at the start.

    At the start there is no weight before the step: there the first two are those of the start itself.

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
    """The numbers ``RN(k / s)`` of a tensor, with integers k and a scale s.

    A number W is put on the grid as ``RN(k / s)``, where k is ``RN(W s)``, clipped to the integers' ends and
    rounded to an integer. RN is to nearest even in the parameter's format.

    Parameters
    ----------
    integers : Grid or str
        Those of k, or their name: ``"ternary"``, ``"int8"``.
    reach : Reach or str, optional
        By which s follows in each step; by default as published.
    start : Reach or str, optional
        By which it does at the start, whose numbers are rounded to nearest even.
    rounding : Rounding or str, optional
        To an integer, in steps. By default stochastic: k is the integer above with a probability that is the
        fraction of ``RN(W s)``, as far as 32 bits resolve it. The published code draws 24.

    Raises
    ------
    TypeError
        If the integers are no grid.
    ValueError
        If a name is unknown, the integers have a fraction, or what is fixed is the start.
    """

    integers: Grid
    reach: Reach = Reach.MAX
    start: Reach = Reach.ABSMEAN
    rounding: Rounding = _AT_RANDOM

    def __post_init__(self) -> None:
        if isinstance(self.integers, str):
            object.__setattr__(self, "integers", grid(self.integers))
        if not isinstance(self.integers, Grid):
            raise TypeError(f"weights lie on integers, as 'int8' or 'ternary', not on {self.integers!r}")
        if self.integers.fraction_bits:
            raise ValueError(f"weights lie on integers, and {self.integers} has fractions of them")
        for label in ("reach", "start"):
            given = getattr(self, label)
            if given not in list(Reach):
                meant = hint(str(given), Reach)
                raise ValueError(f"unknown {label} {given!r}{meant}; allowed: {', '.join(Reach)}")
            object.__setattr__(self, label, Reach(given))
        if self.start is Reach.FIXED:
            raise ValueError("a grid's reach at the start follows from its weights, and is not 'fixed'")
        if not isinstance(self.rounding, Rounding):
            object.__setattr__(self, "rounding", Rounding(self.rounding, random_bits=RANDOM_BITS))

    @property
    def draws(self) -> bool:
        """Whether weights are put on it at random."""
        return self.rounding.stochastic

    def check_in(self, fmt: Format) -> None:
        """Raise ValueError unless a format computes with the grid's integers, and has a NaN.

        Parameters
        ----------
        fmt : Format
            Of the parameter.
        """
        if type(fmt) is not Format or not fmt.has_nan:
            raise ValueError(f"weights on a grid are numbers of a floating-point format with NaN, not {fmt}")
        most = max(-self.integers.low, self.integers.high)
        if not (fmt.signed and most <= 2**fmt.precision and most <= fmt.max and fmt.smallest_subnormal <= 1):
            raise ValueError(f"{fmt} does not hold the integers of {self.integers}")
