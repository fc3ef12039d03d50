"""Differences of losses on the same seeds and batches, and whether they tell two trainings apart."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import stdtrit


def shown(differences: ArrayLike, digits: int = 4) -> str:
    """Return the mean of differences with its 95 % interval, as tables show them."""
    return _shown(differences, f"+.{digits}f")


def percent(quotients: ArrayLike, digits: int = 1) -> str:
    """Return the mean of relative differences with its 95 % interval, in percent."""
    return _shown(quotients, f"+.{digits}%")


def _shown(differences: ArrayLike, form: str) -> str:
    low, high = interval(differences)
    return f"{np.mean(differences):{form}} ({low:{form}} to {high:{form}})"


def interval(differences: Sequence[float] | ArrayLike) -> tuple[float, float]:
    """Return the 95 % interval of the mean of differences, one per seed, by Student's t.

    With three seeds it reaches 2.5 standard deviations of the differences to both sides. A difference that is
    not finite, such as that of a training that diverged, raises ValueError.
    """
    found = np.asarray(differences, float)
    if found.size < 2 or not np.isfinite(found).all():
        raise ValueError(f"an interval takes two finite differences or more, not {found.tolist()}")
    half = float(stdtrit(found.size - 1, 0.975) * found.std(ddof=1) / np.sqrt(found.size))
    mean = float(found.mean())
    return mean - half, mean + half


def quotient(numerators: ArrayLike, denominators: ArrayLike) -> tuple[float, float, float]:
    """Return the quotient of two means of paired numbers, and the ends of its 95 % interval.

    The interval holds each r for which ``interval(numerators - r denominators)`` holds zero: Fieller, J. R.
    Stat. Soc. B 16(2), 1954. ValueError if it has no ends, because the denominators may as well be zero.
    """
    x, y = np.asarray(numerators, float), np.asarray(denominators, float)
    if not apart(y):
        raise ValueError(f"a quotient by {y.tolist()}, whose mean is not told from zero")
    factor = stdtrit(x.size - 1, 0.975) ** 2 / x.size
    spread = np.cov(x, y)
    roots = np.roots(
        [
            y.mean() ** 2 - factor * spread[1, 1],
            -2 * (x.mean() * y.mean() - factor * spread[0, 1]),
            x.mean() ** 2 - factor * spread[0, 0],
        ]
    )
    low, high = sorted(roots.real.tolist())
    return float(x.mean() / y.mean()), low, high


def apart(differences: ArrayLike) -> bool:
    """Return whether zero is outside the interval, so that one training is above the other."""
    low, high = interval(differences)
    return not low <= 0 <= high


def answer(differences: ArrayLike) -> str:
    """Return yes or no to whether trainings are told apart, for tables; "" if all differences are zero."""
    if not np.any(differences):
        return ""
    return "yes" if apart(differences) else "no"
