"""The judge of the emulator: correct rounding by the definition, in integers, sharing no code with it."""

from mcfsim.oracle.arithmetic import OracleArithmetic
from mcfsim.oracle.definition import operate, round_float, round_fraction
from mcfsim.oracle.integers import operate_integers, round_integers, same
from mcfsim.oracle.unbounded import FractionArithmetic

__all__ = [
    "FractionArithmetic",
    "OracleArithmetic",
    "operate",
    "operate_integers",
    "round_float",
    "round_fraction",
    "round_integers",
    "same",
]
