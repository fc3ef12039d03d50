"""Families of operands found by search, besides those that statements declare.

They are from `experiments.families.search`, and each is proved. Certificates of formats do not try them.
Where worst cases follow no polynomial in u, high words differ from a power of two by multiples of the root
of u. A product or remainder then has arbitrary last bits, and the operands hardly exceed the power of two.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from mcfsim.theorems.symbolic import EVEN, ODD, Family, Polynomial, family, u
from mcfsim.theorems.symbolic.operand_families import root


def _of_even_p(t: Polynomial) -> dict[str, Family]:
    """Return families in ``t = 2**(-p/2)``, so that ``u = t**2``."""
    return {
        "dw_times_fp2": family(x=(1 + t - 2 * t**2, t**2 - 3 * t**4), y=1 + t + 2 * t**2),
        "dw_times_fp3": family(x=(1 + t, t**2 - t**3 + 3 * t**4), y=2 + 2 * t),
        "dw_div_fp2": family(x=(1 + t / 2 + 4 * t**2, t**2 - t**3 + 25 * t**4), y=2 - 4 * t + 8 * t**2),
        "dw_div_fp3": family(x=(1 + t / 2 + 4 * t**2, t**2 - t**3 + 25 * t**4), y=2 - 4 * t + 8 * t**2),
        "dw_div_dw2": family(
            x=(1 + 2 * t, -(t**2) + 3 * t**3 / 2 + 10 * t**4), y=(1 + t, t**2 - 5 * t**3 / 2 + t**4)
        ),
        "dw_div_dw2_fma": family(x=(1 + 8 * t + 4 * t**2, -(t**2) + 2 * t**4), y=(1 + t, t**2)),
        "dw_div_dw3": family(
            x=(1 + t + 2 * t**2, -(t**2) + 2 * t**3 - 5 * t**4),
            y=(2 - 2 * t + 4 * t**2, -(t**2) + 21 * t**4),
        ),
    }


def _of_odd_p(t: Polynomial) -> dict[str, Family]:
    """Return families in ``t = 2**(-(p-1)/2)``, so that ``u = t**2 / 2``."""
    return {
        "dw_times_fp2": family(x=(1 + 3 * t / 4 - t**2, t**2 / 2 - t**3 / 8), y=2 + 4 * t + 4 * t**2),
        "dw_times_fp3": family(x=(2 + t, -(t**2) + t**3), y=1 + 3 * t),
        "dw_div_fp2": family(
            x=(2 + 3 * t - 12 * t**2, -(t**2) + 2 * t**3 + 11 * t**4 / 2), y=2 - 5 * t + 3 * t**2
        ),
        "dw_div_fp3": family(x=(1 + t / 4 - 2 * t**2, -(t**2) / 2 + 5 * t**4 / 4), y=2 - 4 * t + 2 * t**2),
        "dw_div_dw2": family(
            x=(1 + 3 * t / 2 + 2 * t**2, t**2 / 2 - t**4 / 2), y=(1 + t, -(t**2) / 2 + t**3 / 4 + t**4)
        ),
        "dw_div_dw2_fma": family(
            x=(1 + 9 * t / 4 + 6 * t**2, -(t**2) / 2 + t**3 / 8 + t**4 / 2),
            y=(1 + t / 4 - t**2, t**2 / 2 - t**3 / 4 + 3 * t**4 / 2),
        ),
        "dw_div_dw3": family(
            x=(2 - t / 2 + 2 * t**2, -(t**2) / 2 + 11 * t**3 / 4 - 3 * t**4),
            y=(2 - 4 * t + 7 * t**2, -(t**2) / 2 + 3 * t**3 / 8 + t**4 / 2),
        ),
    }


_EVEN, _ODD = _of_even_p(root(EVEN)), _of_odd_p(root(ODD))
#: The families of each statement: one for every p, or one for even and one for odd p.
FOUND: Mapping[str, tuple[Family, ...]] = MappingProxyType(
    {
        "dw_times_fp1": (family(x=(2 + 24 * u, u + 4 * u**2), y=2 - 2 * u),),
        "sqrt_dw": (family(x=(1 + 6 * u, u - 6 * u**2)),),
        **{name: (one, _ODD[name]) for name, one in _EVEN.items()},
    }
)
