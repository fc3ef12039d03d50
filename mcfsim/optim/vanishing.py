"""Warnings of hyperparameters that are zero in the format that they are used in."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from mcfsim.convert import round_to
from mcfsim.protocol import Arithmetic


class VanishingScalarWarning(UserWarning):
    """A positive hyperparameter rounds to zero in the format that it is used in."""


def warn_of_vanishing(ar: Arithmetic, scalars: Mapping[str, float]) -> bool:
    """Warn of each number that rounds to zero in an arithmetic's format; return whether one does.

    Parameters
    ----------
    ar : Arithmetic
        That of the operations in which they are used.
    scalars : mapping of str to float
        By name; `epsilon` is added to the root of the second moment, the others are factors.
    """
    if ar.format is None:
        return False  # nothing is rounded
    found = {name: scalar for name, scalar in scalars.items() if _vanishes(ar, scalar)}
    for name, scalar in found.items():
        effect = (
            "where v is zero, a step is 0 / 0" if name == "epsilon" else "its products with 1 and less are 0"
        )
        warnings.warn(
            f"{name} = {scalar:.6g} is zero in {ar.format}, whose smallest positive number is "
            f"{float(ar.format.smallest_subnormal):.6g}: {effect}",
            VanishingScalarWarning,
            stacklevel=3,
        )
    return bool(found)


def _vanishes(ar: Any, scalar: float) -> bool:
    """Whether a number is positive and rounds to zero in an arithmetic's format, whatever the draw."""
    if not 0 < scalar < ar.format.smallest_normal:
        return False
    highest = np.full(1, 2**32 - 1, np.uint32)
    words = highest if ar.rounding.stochastic else None
    return bool(round_to(np.array([scalar]), ar.format, ar.rounding, random=words)[0] == 0)
