"""Reference for the emulator: rounding and arithmetic by the definition, in integers and fractions.

It shares no code with the emulator. It imports only formats and rounding policies, which are data. Begin
with `definition`; `integers` does the same on int64 arrays, for hundreds of millions of operands.
"""

from mcfsim.oracle.arithmetic import FractionArithmetic, OracleArithmetic
from mcfsim.oracle.definition import operate, round_float, round_fraction
from mcfsim.oracle.integers import operate_integers, round_integers, same

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
