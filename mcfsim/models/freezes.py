"""Averages that cannot decay, because the format that they are stored in takes back each step of it."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.formats import Format
from mcfsim.multiword import expansion
from mcfsim.multiword.expansion import expand
from mcfsim.optim.strategies import Strategy
from mcfsim.optim.vectors import requantize
from mcfsim.rounding import Mode
from mcfsim.scaled import ScaledFormat
from mcfsim.scaled.quantisers import Quantiser

#: Significands that are tried: all of a format of up to so many bits, else so many spread evenly.
_MOST_BITS = 14
#: Numbers that are tried where a whole tensor shares a scale.
_GROUP = 128


def significands(fmt: Format) -> NDArray[np.float64]:
    """Return the numbers of a format from 1 up to 2; they stand for all that are normal.

    Of formats of more than 14 bits as many are taken, spread evenly, the ends among them.
    """
    bits = fmt.precision - 1
    if bits < _MOST_BITS:
        return 1.0 + np.arange(1 << bits) / (1 << bits)
    spread = np.linspace(0, (1 << bits) - 1, 1 << _MOST_BITS).astype(np.int64)
    return 1.0 + spread / (1 << bits)


@lru_cache
def frozen_share(strategy: Strategy, slot: str, beta: float, *, beside: bool = False) -> float:
    """Return the share of significands of a moving average that stay as they are when multiplied by beta.

    Where it is 1 an average never decays: `RN(beta x) = x` for every normal number x. So it is of a bfloat16
    second moment at beta2 = .999.

    Parameters
    ----------
    strategy : Strategy
        With its low format put in.
    slot : {"m", "v"}
        Which average.
    beta : float
        The decay rate, in [0, 1).
    beside : bool, optional
        Of numbers that share a scale: whether the largest of them stays, and the scale with it. By default
        all of them decay together, and a scale that can follows them.

    Returns
    -------
    float
        Of a single component, in its format; rounded at random, of those that no draw moves. Of an expansion,
        that starts without anything in the components after the first: of its sum. Of numbers that share a
        scale, as steps keep them: of a group spread over five octaves. 0 for exact numbers.

    References
    ----------
    Yu et al., Collage, ICML 2024, on beta2 = .999 in bfloat16.
    """
    stored = strategy.tensors[slot]
    fmt = stored.format
    if fmt is None:
        return 0.0
    if stored.draws:  # cut off, a product goes as far as a draw takes it
        stored = replace(stored, rounding=Mode.TOWARD_ZERO, random_bits=None, rule=None)
    roles = (replace(strategy, m=stored) if slot == "m" else replace(strategy, v=stored)).roles()
    ar: Any = roles.moments if slot == "m" else roles.second_moment
    if stored.scaled is not None:
        return _frozen_in_group(ar, stored.scaled, fmt, beta, beside=beside)
    x = ar.round(_within(fmt))
    zero = np.zeros_like(x)
    components = (x, *([zero] * (stored.components - 1)))
    by_expansion = slot == "v" and strategy.beta2_components > 1
    if by_expansion:
        decayed = expansion.mul(ar, expand(ar, beta, strategy.beta2_components), components)
    else:
        decayed = expansion.scale(ar, components, beta)
    before = np.sum([item.astype(np.float64) for item in components], axis=0)
    after = np.sum([item.astype(np.float64) for item in decayed], axis=0)
    return float(np.mean(before == after))


def _frozen_in_group(
    ar: Any, kept: ScaledFormat | Quantiser, fmt: Format, beta: float, *, beside: bool
) -> float:
    """Return the share of a group's numbers that stay, the largest one left out where it stays."""
    size = kept.block if isinstance(kept.block, int) and kept.block > 1 else _GROUP
    before = np.array(ar.round(np.geomspace(1 / 32, 1, size)))
    requantize(before, [slice(0, size)], kept, fmt)
    after = np.array(ar.mul(before, beta))
    if beside:
        after[-1] = before[-1]
    requantize(after, [slice(0, size)], kept, fmt)
    stays = after == before
    return float(np.mean(stays[:-1] if beside else stays))


def _within(fmt: Format) -> NDArray[np.float64]:
    """Return all significands, at an exponent in the middle of the format's range."""
    middle = (fmt.emin + fmt.emax) // 2
    return np.ldexp(significands(fmt), middle)
