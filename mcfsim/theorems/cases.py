"""Single cases, written down: operands and results in hexadecimal and decimal."""

from __future__ import annotations

from dataclasses import dataclass

#: The most operands or results of a case that are printed.
SHOWN = 8


@dataclass(frozen=True)
class ShownNumber:
    """A number in hexadecimal, and in the fewest decimals that tell it from its neighbours in binary64.

    Raises
    ------
    ValueError
        If they are not the same number, so written.
    """

    hexadecimal: str
    decimal: str

    def __post_init__(self) -> None:
        try:
            number = float.fromhex(self.hexadecimal)
        except OverflowError as problem:
            raise ValueError(f"{self.hexadecimal!r} is no number of binary64") from problem
        if (number.hex(), repr(number)) != (self.hexadecimal, self.decimal):
            raise ValueError(f"{self.hexadecimal!r} and {self.decimal!r} are not one number")

    @classmethod
    def of(cls, x: float) -> ShownNumber:
        """Write a number down."""
        return cls(float(x).hex(), repr(float(x)))

    def __float__(self) -> float:
        return float.fromhex(self.hexadecimal)

    def __str__(self) -> str:
        return self.decimal


@dataclass(frozen=True)
class Witness:
    """A case: operands, component by component, and what the algorithm returned for them.

    Under stochastic rounding that is what each path returns, one after the other.
    """

    operands: tuple[ShownNumber, ...]
    results: tuple[ShownNumber, ...]

    def __str__(self) -> str:
        return f"{_listed(self.operands)} -> {_listed(self.results)}"


def _listed(numbers: tuple[ShownNumber, ...]) -> str:
    """Return numbers in decimal, of many the first ones and how many there are."""
    shown = [str(number) for number in numbers[:SHOWN]]
    if len(numbers) > SHOWN:
        shown.append(f"... {len(numbers)} in all")
    return f"({', '.join(shown)})"
