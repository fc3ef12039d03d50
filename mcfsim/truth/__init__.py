"""The judge of the emulator: correct rounding by the definition, in integers, sharing no code with it."""

from mcfsim.truth.arithmetic import TruthArithmetic
from mcfsim.truth.definition import operate, round_float, round_fraction
from mcfsim.truth.integers import operate_integers, round_integers, same

__all__ = [
    "TruthArithmetic",
    "operate",
    "operate_integers",
    "round_float",
    "round_fraction",
    "round_integers",
    "same",
]
